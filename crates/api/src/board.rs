//! What the OSDs of this process told last, for whoever asks over HTTP, and for the manager.

use base::OsdId;
use base::figures::Tally;
use base::status::{OsdStatus, Statuses};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// What one OSD told last.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// What it counted.
    pub figures: Option<Arc<Tally>>,
    /// How it is.
    pub status: Option<Arc<OsdStatus>>,
}

/// See the module's documentation. A clone is the same board.
#[derive(Clone, Debug, Default)]
pub struct Board {
    osds: Arc<Mutex<BTreeMap<OsdId, Told>>>,
    statuses_changed: Arc<Notify>,
}

impl Board {
    /// Notes what an OSD counted.
    pub fn note_figures(&self, osd: OsdId, figures: Tally) {
        self.change(|osds| osds.entry(osd).or_default().figures = Some(Arc::new(figures)));
    }

    /// Notes how an OSD is.
    pub fn note_status(&self, osd: OsdId, status: &OsdStatus) {
        self.change(|osds| osds.entry(osd).or_default().status = Some(Arc::new(status.clone())));
        self.statuses_changed.notify_one();
    }

    /// Forgets an OSD that ended.
    pub fn forget(&self, osd: OsdId) {
        self.change(|osds| drop(osds.remove(&osd)));
        self.statuses_changed.notify_one();
    }

    /// All that was told.
    #[must_use]
    pub fn told(&self) -> BTreeMap<OsdId, Told> {
        self.change(|osds| osds.clone())
    }

    /// How those are that told it.
    #[must_use]
    pub fn statuses(&self) -> Statuses {
        self.change(|osds| osds.iter().filter_map(|(osd, told)| Some((*osd, told.status.clone()?))).collect())
    }

    /// Waits until a status was noted since the last time. For one who waits.
    pub async fn statuses_changed(&self) {
        self.statuses_changed.notified().await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<OsdId, Told>) -> T) -> T {
        // Whoever panicked while holding it left a whole entry behind.
        change(&mut self.osds.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
