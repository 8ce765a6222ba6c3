//! Nodes that are lost: how long clients wait, how soon everything is redundant again, and what catching up costs.

use super::{AWAY_TIME, Bench, SINGLE, SPREAD, STEADY_TIME, WARM_TIME, process_of, stretch_of_calm, unknown};
use crate::scenarios::steady::{Impact, Stretch};
use crate::testbed::{frozen, signal};
use anyhow::Context;
use base::OsdId;
use nix::sys::signal::Signal;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What happens to a node.
pub struct Loss {
    /// Its name, as in JSON.
    pub name: &'static str,
    pub explained: &'static str,
    /// What the pause must stay below, in seconds.
    pub must_s: f64,
    /// Whether it is the node that leads.
    is_primary: bool,
    /// Whether it stands still and comes back, and is not killed.
    stands_still: bool,
}

/// All of them, in the order in which they are measured.
pub const LOSSES: [Loss; 3] = [
    Loss {
        name: "replica",
        explained: "SIGKILL of a replica's node",
        must_s: 3.0,
        is_primary: false,
        stands_still: false,
    },
    Loss {
        name: "primary",
        explained: "SIGKILL of the primary's node",
        must_s: 3.0,
        is_primary: true,
        stands_still: false,
    },
    Loss {
        name: "host",
        explained: "the primary's node stands still for 10 s (SIGSTOP), in place of a host that vanishes",
        must_s: 6.0,
        is_primary: true,
        stands_still: true,
    },
];

/// One loss of a node.
#[derive(Clone, Debug, Serialize)]
pub struct LossResult {
    /// The longest time without a completed operation, in seconds.
    pub pause_s: f64,
    /// From the kill, or from when the node goes on, until every group has all of its members in sync, in seconds.
    pub redundant_s: f64,
}

/// A node that was away and caught up.
#[derive(Clone, Debug, Serialize)]
pub struct CatchUpResult {
    /// From when the node went on until every group had all of its members in sync, in seconds.
    pub catch_up_s: f64,
    /// What clients got while it was away.
    pub away: Stretch,
    /// What clients noticed of the catching up.
    pub clients: Impact,
}

/// Has a process stand still for a while; answers when it goes on.
fn stand_still(pid: u32) -> Instant {
    let frozen = frozen(pid);
    std::thread::sleep(AWAY_TIME);
    drop(frozen);
    Instant::now()
}

impl Bench<'_> {
    pub fn lose(&self, loss: &Loss, round: u32) -> anyhow::Result<LossResult> {
        let (timeline, (lost, back, whole)) = self.under_load(SINGLE, round, || {
            std::thread::sleep(WARM_TIME);
            let pid = process_of(self.cluster, self.member(loss)?)?;
            let lost = Instant::now();
            let back = if loss.stands_still {
                stand_still(pid)
            } else {
                signal(pid, Signal::SIGKILL);
                // The groups do not know of it at once, and would still look whole.
                std::thread::sleep(Duration::from_secs(1));
                lost
            };
            let whole = self.becomes_whole(loss.explained)?;
            std::thread::sleep(STEADY_TIME);
            Ok((lost, back, whole))
        })?;
        // Up to the end of the load, since catching up and becoming in sync can make clients wait too.
        let until = whole + STEADY_TIME;
        Ok(LossResult {
            pause_s: timeline.longest_pause(lost, until).as_secs_f64(),
            redundant_s: (whole - back).as_secs_f64(),
        })
    }

    pub fn catch_up(&self, round: u32) -> anyhow::Result<CatchUpResult> {
        // Another node each time.
        let osds = self.cluster.osds()?;
        let pid = process_of(self.cluster, osds[round as usize % osds.len()].osd)?;
        let (timeline, (steady, [lost, back, whole], calm)) = self.under_load(SPREAD, round, || {
            let steady = stretch_of_calm();
            let lost = Instant::now();
            let back = stand_still(pid);
            let whole = self.becomes_whole("a node was away")?;
            Ok((steady, [lost, back, whole], stretch_of_calm()))
        })?;
        Ok(CatchUpResult {
            catch_up_s: (whole - back).as_secs_f64(),
            away: timeline.stretch(&(lost..back)),
            clients: timeline.impact(&steady, &(back..whole), &calm),
        })
    }

    /// The OSD to lose.
    fn member(&self, loss: &Loss) -> anyhow::Result<OsdId> {
        let groups = self.cluster.pgs()?;
        let group = groups.iter().find(|group| group.pg == self.group);
        let member = group.and_then(|group| match loss.is_primary {
            true => Some(group.primary),
            false => group.in_sync.iter().copied().find(|osd| *osd != group.primary),
        });
        member.with_context(|| unknown(&format!("the members of group {}", self.group)))
    }
}
