//! What the OSDs of this process told last, for whoever asks over HTTP.

use crate::figures::OsdFigures;
use base::OsdId;
use registry::cluster::OsdStatus;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What one OSD told last.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// What it counted.
    pub figures: Option<Arc<OsdFigures>>,
    /// How it is.
    pub status: Option<Arc<OsdStatus>>,
}

/// See the module's documentation. A clone is the same board.
#[derive(Clone, Debug, Default)]
pub struct Board {
    osds: Arc<Mutex<BTreeMap<OsdId, Told>>>,
}

impl Board {
    /// Notes what an OSD counted.
    pub fn note_figures(&self, osd: OsdId, figures: OsdFigures) {
        self.change(|osds| osds.entry(osd).or_default().figures = Some(Arc::new(figures)));
    }

    /// Notes how an OSD is.
    pub fn note_status(&self, osd: OsdId, status: &OsdStatus) {
        self.change(|osds| osds.entry(osd).or_default().status = Some(Arc::new(status.clone())));
    }

    /// Forgets an OSD that ended.
    pub fn forget(&self, osd: OsdId) {
        self.change(|osds| drop(osds.remove(&osd)));
    }

    /// All that was told.
    #[must_use]
    pub fn told(&self) -> BTreeMap<OsdId, Told> {
        self.change(|osds| osds.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<OsdId, Told>) -> T) -> T {
        // Whoever panicked while holding it left a whole entry behind.
        change(&mut self.osds.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
