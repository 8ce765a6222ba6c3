//! An OSD that comes new: how fast it is filled, and what clients notice of that.
//!
//! There is one drive more than there are replicas. A new OSD comes on the one that is free, and gets its share of
//! everything; nothing else is moved. The manager waits half a second for more to change before it moves anything, which
//! counts. Then another OSD goes, so that there is a free drive again.
//!
//! Once it is filled, one OSD more serves clients than before. Where each has its CPU that makes them faster; where all
//! share a few it costs each operation more. So what clients notice of the filling is told by the time after it.

use super::{Bench, POLL_INTERVAL, SPREAD, WHOLE_LIMIT, stretch_of_calm, unknown};
use crate::engine::plan::{Job, TargetName};
use crate::scenarios::steady::Impact;
use crate::testbed::{LoopDevice, STATUS_DELAY};
use anyhow::{Context, bail};
use base::OsdId;
use health::view::OsdView;
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the drive itself is written to.
const RAW_TIME: Duration = Duration::from_secs(1);
/// The name of filling while clients keep the cluster as busy as in all of these measurements.
pub const LOADED: &str = "loaded";
/// What clients do meanwhile, as in JSON and in words, in the order in which it is measured.
pub const FOREGROUNDS: [(&str, &str); 2] = [("idle", "without clients"), (LOADED, "under the load")];

/// A new OSD that was filled.
#[derive(Clone, Debug, Serialize)]
pub struct BackfillResult {
    /// From when the OSD was there until every group was in sync where it shall lie, in seconds.
    pub filled_s: f64,
    /// Bytes of data that it then held.
    pub bytes: u64,
    /// Millions of bytes that arrived a second.
    pub mb_per_second: f64,
    /// Millions of bytes a second that its drive took just before, when it was written to sequentially.
    pub raw_mb_per_second: f64,
    /// The former by the latter.
    pub by_raw: f64,
    /// What clients noticed; absent if there were none.
    pub clients: Option<Impact>,
}

impl Bench<'_> {
    /// Fills an OSD under the load of a round, or without any.
    pub fn backfill(&self, round: Option<u32>) -> anyhow::Result<BackfillResult> {
        let osds = self.cluster.osds()?;
        let osd_on = |drive: &LoopDevice| -> Option<&OsdView> {
            osds.iter().find(|osd| osd.path.as_deref().map(Path::new) == Some(drive.path()))
        };
        let free = self.drives.iter().position(|drive| osd_on(drive).is_none());
        let free = free.with_context(|| unknown("a drive without an OSD"))?;
        // Another one each time.
        let leaving = osd_on(&self.drives[(free + 1) % self.drives.len()]);
        let leaving = leaving.with_context(|| unknown("an OSD on each of the other drives"))?;
        let raw_mb_per_second = self.raw_mb_per_second(&self.drives[free])?;
        let ((osd, filled), clients) = match round {
            None => (self.fill(free)?, None),
            Some(round) => {
                let (timeline, (steady, (osd, filled), calm)) = self.under_load(SPREAD, round, || {
                    let steady = stretch_of_calm();
                    let filled = self.fill(free)?;
                    Ok((steady, filled, stretch_of_calm()))
                })?;
                let clients = timeline.impact(&steady, &filled, &calm);
                ((osd, filled), Some(clients))
            }
        };
        std::thread::sleep(STATUS_DELAY);
        // As it told of them last.
        let bytes = self.cluster.osds()?.iter().find(|one| one.osd == osd).and_then(|one| one.used_bytes);
        let bytes = bytes.with_context(|| unknown(&format!("the data on {osd}")))?;
        self.cluster.command(&["osd", "out", &leaving.osd.0.to_string()])?;
        self.cluster.remove_osd(leaving.osd, leaving.pid)?;
        self.becomes_whole("an OSD was removed")?;
        let filled_s = (filled.end - filled.start).as_secs_f64();
        let mb_per_second = bytes as f64 / 1e6 / filled_s;
        let by_raw = mb_per_second / raw_mb_per_second;
        Ok(BackfillResult { filled_s, bytes, mb_per_second, raw_mb_per_second, by_raw, clients })
    }

    /// What a drive without an OSD takes.
    fn raw_mb_per_second(&self, drive: &LoopDevice) -> anyhow::Result<f64> {
        let job = Job::prefill(TargetName::Raw(drive.path().to_owned()), self.drive_bytes);
        let sample = self.testbed.bench(&Job { io_size: None, runtime: Some(RAW_TIME), ..job })?;
        Ok(sample.mib_per_second * f64::from(1 << 20) / 1e6)
    }

    /// Makes an OSD on the free drive, of the node of the same number; answers from when to when it got its share.
    fn fill(&self, free: usize) -> anyhow::Result<(OsdId, Range<Instant>)> {
        let osd = self.cluster.add_osd(&self.drives[free], free as u32)?;
        let began = Instant::now();
        // Until it is decided what moves, all is where it shall be.
        while !self.cluster.pgs()?.iter().any(|group| group.target.contains(&osd)) {
            if began.elapsed() > WHOLE_LIMIT {
                bail!(unknown(&format!("a placement group that moves to {osd}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok((osd, began..self.becomes_whole("an OSD was added")?))
    }
}
