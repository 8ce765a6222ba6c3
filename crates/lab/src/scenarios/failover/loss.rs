//! Nodes that are lost: how long clients wait, how soon everything is redundant again, and what catching up costs.

use super::impact::Impact;
use super::{AWAY_TIME, Bench, FailoverError, SINGLE, SPREAD, STEADY_TIME, WARM_TIME, stretch_of_calm};
use crate::scenarios::steady::Stretch;
use crate::testbed::cleanup::Undo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The process of a replica is killed.
    Replica,
    /// The process of the primary is killed.
    Primary,
    /// The primary's host vanishes without closing its connections.
    Host,
}

impl Loss {
    /// All of them, in the order in which they are measured.
    pub const ALL: [Loss; 3] = [Loss::Replica, Loss::Primary, Loss::Host];

    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Loss::Replica => "replica",
            Loss::Primary => "primary",
            Loss::Host => "host",
        }
    }

    /// What the pause must stay below, in seconds.
    #[must_use]
    pub fn must_s(self) -> f64 {
        match self {
            Loss::Replica | Loss::Primary => 3.0,
            Loss::Host => 6.0,
        }
    }

    pub(super) fn explained(self) -> &'static str {
        match self {
            Loss::Replica => "SIGKILL of a replica's node",
            Loss::Primary => "SIGKILL of the primary's node",
            Loss::Host => {
                "the primary's node stands still for 10 s (SIGSTOP), in place of a host that vanishes"
            }
        }
    }
}

/// One loss of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossResult {
    /// The longest time without a completed operation, in seconds.
    pub pause_s: f64,
    /// From the kill, or from when the node goes on, until every group has all of its members in sync, in seconds.
    pub redundant_s: f64,
}

/// A node that was away and caught up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CatchUpResult {
    /// From when the node went on until every group had all of its members in sync, in seconds.
    pub catch_up_s: f64,
    /// What clients got while it was away.
    pub away: Stretch,
    /// What clients noticed of the catching up.
    pub clients: Impact,
}

impl Bench<'_> {
    pub(super) fn lose(&self, loss: Loss, round: u32) -> Result<LossResult, FailoverError> {
        let (timeline, (lost, back, whole)) = self.under_load(SINGLE, round, || {
            std::thread::sleep(WARM_TIME);
            let pid = self.node_of(self.member(loss)?)?;
            let lost = Instant::now();
            let back = if loss == Loss::Host {
                let frozen = Frozen::new(pid);
                std::thread::sleep(AWAY_TIME);
                drop(frozen);
                Instant::now()
            } else {
                signal(pid, Signal::SIGKILL);
                // The groups do not know of it at once, and would still look whole.
                std::thread::sleep(Duration::from_secs(1));
                lost
            };
            let whole = self.becomes_whole(loss.explained())?;
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

    pub(super) fn catch_up(&self, round: u32) -> Result<CatchUpResult, FailoverError> {
        // Another node each time.
        let osds = self.cluster.osds()?;
        let osd = &osds[round as usize % osds.len()];
        let pid = osd.pid.ok_or_else(|| FailoverError::Unknown(format!("the process of {}", osd.label)))?;
        let (timeline, (steady, [lost, back, whole], calm)) = self.under_load(SPREAD, round, || {
            let steady = stretch_of_calm();
            let lost = Instant::now();
            let frozen = Frozen::new(pid);
            std::thread::sleep(AWAY_TIME);
            drop(frozen);
            let back = Instant::now();
            let whole = self.becomes_whole("a node was away")?;
            Ok((steady, [lost, back, whole], stretch_of_calm()))
        })?;
        Ok(CatchUpResult {
            catch_up_s: (whole - back).as_secs_f64(),
            away: timeline.stretch(lost, back),
            clients: Impact {
                before: timeline.stretch(steady.start, steady.end),
                during: timeline.stretch(back, whole),
                after: timeline.stretch(calm.start, calm.end),
            },
        })
    }

    /// The OSD to lose.
    fn member(&self, loss: Loss) -> Result<u32, FailoverError> {
        let groups = self.cluster.pgs()?;
        let group = groups.iter().find(|group| group.pg == self.group);
        let member = group.and_then(|group| match loss {
            Loss::Primary | Loss::Host => Some(group.primary),
            Loss::Replica => group.in_sync.iter().copied().find(|osd| *osd != group.primary),
        });
        member.ok_or_else(|| FailoverError::Unknown(format!("the members of group {}", self.group)))
    }

    fn node_of(&self, osd: u32) -> Result<u32, FailoverError> {
        let label = format!("osd.{osd}");
        let found = self.cluster.osds()?.into_iter().find(|osd| osd.label == label);
        let pid = found.and_then(|osd| osd.pid);
        pid.ok_or_else(|| FailoverError::Unknown(format!("the process of {label}")))
    }
}

/// A process that stands still until this is dropped, or this program is stopped.
struct Frozen(#[expect(dead_code, reason = "dropping it undoes")] Undo);

impl Frozen {
    fn new(pid: u32) -> Frozen {
        let undo = Undo::new(move || signal(pid, Signal::SIGCONT));
        signal(pid, Signal::SIGSTOP);
        Frozen(undo)
    }
}

fn signal(pid: u32, signal: Signal) {
    // It can only fail because the process is gone; then waiting for it to come back shows it.
    kill(Pid::from_raw(pid.cast_signed()), signal).ok();
}
