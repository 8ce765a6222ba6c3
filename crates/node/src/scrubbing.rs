//! Has the groups that an OSD leads scrubbed when it is time: see [`manager::decide::scrubs`].

use crate::clock::Clock;
use base::PgId;
use base::status::{OsdStatus, PgState};
use cluster::{Cluster, ScrubResult};
use manager::decide::scrubs::Schedule;
use pg::ScrubReport;
use std::time::Duration;

/// How often it is looked whether one is due.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The scrubs of one OSD's groups.
#[derive(Debug)]
pub(crate) struct Scrubs {
    clock: Clock,
    schedule: Schedule,
}

impl Scrubs {
    pub(crate) fn new() -> Scrubs {
        let clock = Clock::new();
        Scrubs { clock, schedule: Schedule::new(clock.now()) }
    }

    /// The groups to scrub now, and whether deeply.
    pub(crate) async fn due(&mut self, cluster: &Cluster, status: &OsdStatus) -> Vec<(PgId, bool)> {
        let active = status.pgs.iter().filter(|(_, status)| status.state == PgState::Active);
        let active: Vec<PgId> = active.map(|(pg, _)| *pg).collect();
        if active.is_empty() {
            return Vec::new();
        }
        // While the registry is away nothing is scrubbed: it could not be noted.
        let Ok(states) = cluster.scrubs_of(&active).await else { return Vec::new() };
        self.schedule.due(self.clock.now(), &active, &states)
    }

    /// A scrub ended: what is to be noted of it.
    pub(crate) fn ended(&mut self, report: &ScrubReport) -> ScrubResult {
        let begun = self.schedule.ended(report.pg);
        ScrubResult {
            began_ms: begun.map_or_else(|| self.clock.now(), |begun| begun.at).unix_ms(),
            deep: report.is_deep,
            objects: report.objects,
            bytes: report.bytes,
            found: report.found,
            wish: begun.and_then(|begun| begun.wish),
        }
    }
}
