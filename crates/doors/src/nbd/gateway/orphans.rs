//! What connections that are gone have left under way: changes of volumes, whose answers nobody awaits.
//!
//! A client whose connection ended makes another one, and does again what it thinks fit. What it had sent before must not
//! take effect behind that. The volume's client sees to it that nothing that touches the same bytes passes such a change
//! ([`client::Client::abandon`]); and a new connection to the export begins only when all of them have ended, so that who
//! comes back finds a volume on which nothing moves but what it does itself. Connections that live go on meanwhile: there may
//! be several at a time, and nothing was promised of what one does while another is gone.
//!
//! A connection that has as much under way as it may is not received from, and so its end is not noticed, while more of what it
//! sent waits to be taken in. Each second those are asked whether anybody is at their other end ([`Gateway::part_from_gone`]); those
//! that said goodbye only when somebody comes. Before a new connection chooses an export, all are: of one that goes on, what was
//! received may not be all that waits before its end.
//!
//! That is waited for [`SETTLE_LIMIT`], more than a failover takes. Then the volume is attached anew under a newer
//! generation, and the older one fenced: what was sent under that takes effect never more. Where that cannot be, because
//! others share the volume or the fence does not stand, new connections begin in spite of it. What touches the same bytes
//! waits then still; all else has nothing to wait for.

use super::work::Kind;
use super::{Door, Gateway};
use crate::nbd::vocabulary::Waiting;
use base::Instant;
use std::time::Duration;
use volume::Renewal;

/// How long what dead connections left may take before it is fenced: more than it takes to replace an OSD, or to give up a
/// silent one.
pub(super) const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// How long a renewal may take before new connections begin in spite of it: more than a fence may.
const RENEWAL_LIMIT: Duration = Duration::from_secs(60);

/// Whether new connections to an export begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// They do.
    #[default]
    Open,
    /// They wait until the orphans have ended.
    Awaited,
    /// The same, and the volume is being attached anew.
    Renewing,
}

/// The orphans of an export.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orphans {
    count: usize,
    stage: Stage,
    /// Since when it is in that stage.
    since: Instant,
}

impl Orphans {
    fn enter(&mut self, stage: Stage, now: Instant) {
        (self.stage, self.since) = (stage, now);
    }
}

impl Gateway {
    /// Ends connections whose clients are gone, with all that these sent and nobody took in: behind what a new connection does, none of
    /// that may be done. If `somebody_comes`, all are looked at, else those from which nothing is received. One that said that it asks
    /// for nothing more, and then sends nothing more, may await its last answers, until `somebody_comes`.
    pub(super) fn part_from_gone(&mut self, somebody_comes: bool) {
        let now = self.volumes.now();
        if match somebody_comes {
            // Once in a turn: many may come at a time.
            true => std::mem::replace(&mut self.looked_for_gone, now) == now,
            false => self.doors_stalled == 0,
        } {
            return;
        }
        let (doors, reactor) = (&self.doors, self.volumes.reactor());
        let is_asked = |door: &&Door| match door.nbd.is_finishing() {
            // All that it sent was taken in unless it is stalled.
            true => door.is_stalled && somebody_comes,
            false => door.is_stalled || somebody_comes && !door.nbd.is_negotiating(),
        };
        let is_gone = |door: &&Door| is_asked(door) && reactor.has_peer_left(door.id);
        let gone: Vec<_> =
            doors.iter().flatten().map(Box::as_ref).filter(is_gone).map(|door| door.id).collect();
        for connection in gone {
            let reason = "the client is gone, and with it what it sent and nobody took in";
            self.volumes.reactor().close(connection, reason);
            self.forget(connection, reason);
        }
        self.disown_dead();
    }

    /// Finds the changes of connections that ended since this was called last.
    pub(super) fn disown_dead(&mut self) {
        if !std::mem::take(&mut self.has_dead) {
            return;
        }
        let now = self.volumes.now();
        for work in self.works.iter_mut().filter(|work| work.kind == Kind::Change && !work.is_orphan) {
            let door = self.doors.get(work.connection.slot()).and_then(Option::as_ref);
            if door.is_some_and(|door| door.id == work.connection) {
                continue;
            }
            work.is_orphan = true;
            let orphans = &mut self.orphans[work.export];
            orphans.count += 1;
            if orphans.stage == Stage::Open {
                orphans.enter(Stage::Awaited, now);
                self.exports.set_settling(work.export, true);
            }
        }
        let works = &self.works;
        self.volumes.abandon(|token| works.is_orphan(token));
    }

    /// One of an export's orphans has ended.
    pub(super) fn orphan_ended(&mut self, export: usize) {
        self.orphans[export].count -= 1;
        if self.orphans[export].count == 0 {
            self.let_in(export);
        }
    }

    /// New connections to an export begin.
    fn let_in(&mut self, export: usize) {
        let now = self.volumes.now();
        self.orphans[export].enter(Stage::Open, now);
        self.exports.set_settling(export, false);
        let is_waiting = |door: &Door| !door.is_ready && door.nbd.waiting() == Waiting::Settlement;
        for (slot, door) in self.doors.iter_mut().enumerate() {
            if let Some(door) = door.as_mut().filter(|door| is_waiting(door)) {
                door.is_ready = true;
                self.ready.push(slot);
            }
        }
    }

    /// Looks for orphans that take too long while somebody waits.
    pub(super) fn tick_orphans(&mut self, now: Instant) {
        for export in 0..self.orphans.len() {
            let Orphans { count, stage, since } = self.orphans[export];
            let waited = now.since(since);
            match stage {
                Stage::Awaited if waited >= self.settle_limit && self.has_waiting() => {
                    if self.volumes.begin_renewal(self.handles[export]) {
                        self.orphans[export].enter(Stage::Renewing, now);
                        let name = self.exports.all()[export].name();
                        tracing::warn!(
                            export = name,
                            operations = count,
                            "what connections that are gone have sent does not end; the volume is attached anew"
                        );
                    } else {
                        self.let_in(export);
                    }
                }
                Stage::Renewing if waited >= RENEWAL_LIMIT => self.let_in(export),
                Stage::Open | Stage::Awaited | Stage::Renewing => {}
            }
        }
    }

    fn has_waiting(&self) -> bool {
        self.doors.iter().flatten().any(|door| door.nbd.waiting() == Waiting::Settlement)
    }

    /// Hears what came of volumes that were attached anew.
    pub(super) fn heed_renewals(&mut self) {
        while let Some(Renewal { volume, outcome }) = self.volumes.poll_renewal() {
            let Some(export) = self.handles.iter().position(|handle| *handle == volume) else { continue };
            if outcome.is_err() {
                self.let_in(export);
            } else if self.orphans[export].stage == Stage::Renewing {
                // Most end now. What was sent under the newer generation since is waited for anew.
                self.orphans[export].enter(Stage::Awaited, self.volumes.now());
            }
        }
    }
}
