//! An OSD that comes new: how fast it is filled, and what clients notice of that.
//!
//! There is one drive more than there are replicas. A new OSD comes on the one that is free, and gets its share of
//! everything; nothing else is moved. The manager waits half a second for more to change before it moves anything, which
//! counts. Then another OSD goes, so that there is a free drive again.
//!
//! Once it is filled, one OSD more serves clients than before. Where each has its CPU that makes them faster; where all
//! share a few it costs each operation more. So what clients notice of the filling is told by the time after it.

use super::impact::Impact;
use super::{Bench, FailoverError, POLL_INTERVAL, SPREAD, WHOLE_LIMIT, stretch_of_calm};
use crate::engine::plan::{Job, TargetName};
use crate::scenarios::jobs;
use crate::testbed::{LoopDevice, STATUS_DELAY};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How long the drive itself is written to.
const RAW_TIME: Duration = Duration::from_secs(1);

/// Whether clients are served meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreground {
    /// There are none.
    Idle,
    /// They keep the cluster as busy as in all of these measurements.
    Loaded,
}

impl Foreground {
    /// Both, in the order in which they are measured.
    pub const ALL: [Foreground; 2] = [Foreground::Idle, Foreground::Loaded];

    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Foreground::Idle => "idle",
            Foreground::Loaded => "loaded",
        }
    }

    pub(super) fn explained(self) -> &'static str {
        match self {
            Foreground::Idle => "without clients",
            Foreground::Loaded => "under the load",
        }
    }
}

/// A new OSD that was filled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// The drive of an OSD that comes, and an OSD that goes then.
struct Replacement<'a> {
    drive: &'a LoopDevice,
    /// Every drive has a node of its own.
    node: u32,
    leaving: u32,
    leaving_pid: Option<u32>,
}

/// When the new OSD was there, and when it had its share.
struct Filled {
    osd: u32,
    began: Instant,
    whole: Instant,
}

impl Bench<'_> {
    pub(super) fn backfill(
        &self,
        foreground: Foreground,
        round: u32,
    ) -> Result<BackfillResult, FailoverError> {
        let replacement = self.replacement()?;
        let raw_mb_per_second = self.raw_mb_per_second(replacement.drive)?;
        let (filled, clients) = match foreground {
            Foreground::Idle => (self.fill(&replacement)?, None),
            Foreground::Loaded => {
                let (timeline, (steady, filled, calm)) = self.under_load(SPREAD, round, || {
                    let steady = stretch_of_calm();
                    let filled = self.fill(&replacement)?;
                    Ok((steady, filled, stretch_of_calm()))
                })?;
                let impact = Impact {
                    before: timeline.stretch(steady.start, steady.end),
                    during: timeline.stretch(filled.began, filled.whole),
                    after: timeline.stretch(calm.start, calm.end),
                };
                (filled, Some(impact))
            }
        };
        std::thread::sleep(STATUS_DELAY);
        let bytes = self.bytes_on(filled.osd)?;
        self.cluster.command(&["osd", "out", &replacement.leaving.to_string()])?;
        self.cluster.remove_osd(replacement.leaving, replacement.leaving_pid)?;
        self.becomes_whole("an OSD was removed")?;
        let filled_s = (filled.whole - filled.began).as_secs_f64();
        let mb_per_second = bytes as f64 / 1e6 / filled_s;
        let by_raw = mb_per_second / raw_mb_per_second;
        Ok(BackfillResult { filled_s, bytes, mb_per_second, raw_mb_per_second, by_raw, clients })
    }

    fn replacement(&self) -> Result<Replacement<'_>, FailoverError> {
        let osds = self.cluster.osds()?;
        let osd_on =
            |drive: &LoopDevice| osds.iter().find(|osd| osd.path.as_deref() == Some(drive.path())).cloned();
        let unknown = |what: &str| FailoverError::Unknown(what.to_owned());
        let free = self.drives.iter().position(|drive| osd_on(drive).is_none());
        let free = free.ok_or_else(|| unknown("a drive without an OSD"))?;
        // Another one each time.
        let leaving = osd_on(&self.drives[(free + 1) % self.drives.len()]);
        let (leaving, leaving_pid) = leaving
            .and_then(|leaving| Some((leaving.osd?, leaving.pid)))
            .ok_or_else(|| unknown("an OSD on each of the other drives"))?;
        Ok(Replacement { drive: &self.drives[free], node: free as u32, leaving, leaving_pid })
    }

    /// What a drive without an OSD takes.
    fn raw_mb_per_second(&self, drive: &LoopDevice) -> Result<f64, FailoverError> {
        let job = Job::prefill(TargetName::Raw(drive.path().to_owned()), self.drive_bytes);
        let write = Job { io_size: None, runtime: Some(RAW_TIME), ..job };
        let sample = jobs::bench(self.millpond, self.cluster.directory(), &write)?;
        Ok(sample.mib_per_second * f64::from(1 << 20) / 1e6)
    }

    fn fill(&self, replacement: &Replacement<'_>) -> Result<Filled, FailoverError> {
        let osd = self.cluster.add_osd(replacement.drive.path(), replacement.node)?;
        let began = Instant::now();
        // Until it is decided what moves, all is where it shall be.
        while !self.cluster.pgs()?.iter().any(|group| group.target.contains(&osd)) {
            if began.elapsed() > WHOLE_LIMIT {
                return Err(FailoverError::Unknown(format!("a placement group that moves to osd.{osd}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Filled { osd, began, whole: self.becomes_whole("an OSD was added")? })
    }

    /// The bytes of data on an OSD, as it told of them last.
    fn bytes_on(&self, osd: u32) -> Result<u64, FailoverError> {
        let osds = self.cluster.osds()?;
        let bytes = osds.iter().find(|one| one.osd == Some(osd)).and_then(|one| one.used_bytes);
        bytes.ok_or_else(|| FailoverError::Unknown(format!("the data on osd.{osd}")))
    }
}
