//! What a deep scrub of everything costs the clients that are served meanwhile.

use super::{Bench, POLL_INTERVAL, SPREAD, STEADY_TIME, WARM_TIME, WHOLE_LIMIT, stretch_of_calm};
use crate::engine::cpu::Monitor;
use crate::report::Cpu;
use crate::scenarios::steady::Impact;
use crate::testbed::ScrubFigures;
use anyhow::bail;
use serde::Serialize;
use std::time::Instant;

/// A deep scrub of everything.
#[derive(Clone, Debug, Serialize)]
pub struct ScrubResult {
    /// From its start until the last group was done, in seconds.
    pub seconds: f64,
    /// Bytes that it read of each drive.
    pub bytes: u64,
    /// Millions of bytes that it read a second of each drive.
    pub mb_per_second: f64,
    /// Blocks that it found damaged or different; there must be none.
    pub found: u64,
    /// What clients noticed.
    pub clients: Impact,
    /// CPU time by the operations of the clients, the scrub's included.
    pub cpu_during: Cpu,
    /// CPU time by the operations of the clients, after.
    pub cpu_after: Cpu,
}

impl ScrubResult {
    /// CPU time of the machine per operation during it, as a multiple of after.
    pub fn cpu_growth(&self) -> Option<f64> {
        let after = self.cpu_after.machine_us_per_operation.filter(|us| *us > 0.0)?;
        Some(self.cpu_during.machine_us_per_operation? / after)
    }
}

impl Bench<'_> {
    pub fn scrub(&self, round: u32) -> anyhow::Result<ScrubResult> {
        let monitor = Monitor::new(self.cluster.processes()?);
        let moment = || (Instant::now(), monitor.snapshot());
        let newest_ms = self.cluster.scrubs()?.iter().map(|scrub| scrub.deep_ms).max().unwrap_or(0);
        let (timeline, (steady, [began, ended, settled, over], scrubs)) =
            self.under_load(SPREAD, round, || {
                let steady = stretch_of_calm();
                let began = moment();
                self.cluster.command(&["scrub", "start", "--deep"])?;
                let scrubs = self.all_are_scrubbed(newest_ms)?;
                let ended = moment();
                std::thread::sleep(WARM_TIME);
                let settled = moment();
                std::thread::sleep(STEADY_TIME);
                Ok((steady, [began, ended, settled, moment()], scrubs))
            })?;
        let clients = timeline.impact(&steady, &(began.0..ended.0), &(settled.0..over.0));
        let seconds = clients.during.seconds;
        let bytes: u64 = scrubs.iter().map(|scrub| scrub.bytes).sum();
        Ok(ScrubResult {
            seconds,
            bytes,
            mb_per_second: bytes as f64 / 1e6 / seconds,
            found: scrubs.iter().map(|scrub| scrub.found).sum(),
            cpu_during: Cpu::new(&monitor.usage(&began.1, &ended.1), clients.during.operations()),
            cpu_after: Cpu::new(&monitor.usage(&settled.1, &over.1), clients.after.operations()),
            clients,
        })
    }

    /// Waits until every group had a deep scrub that began after `newest_ms`. Looks seldom, since CPU time is measured.
    fn all_are_scrubbed(&self, newest_ms: u64) -> anyhow::Result<Vec<ScrubFigures>> {
        let started = Instant::now();
        loop {
            let scrubs = self.cluster.scrubs()?;
            let left = scrubs.iter().filter(|scrub| !scrub.is_done_since(newest_ms)).count();
            if left == 0 {
                return Ok(scrubs);
            }
            if started.elapsed() > WHOLE_LIMIT {
                bail!(
                    "{left} placement groups were not scrubbed deeply within {} s; is the machine too busy, or the volume too \
                     large (--volume-size)?",
                    WHOLE_LIMIT.as_secs()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
