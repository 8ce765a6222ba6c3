//! What waits too long: operations past their time limit, connections on which nothing comes, and what people are
//! told of it.
//!
//! All of it is found by one look around, some times a second while operations are in flight. An operation that is
//! answered promptly costs nothing here.

use super::{Client, PieceState};
use crate::error::ClientError;
use base::{Instant, LinkId, Network, OsdId, PgId};
use std::time::Duration;
use wire::Status;

/// How often to look around while operations are in flight: how much later than its limit an operation may end.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long nothing at all may come on a connection on which an answer is awaited.
///
/// A primary whose node is lost is replaced within about a second under load, and then the newer map says where to go.
/// What is left for this limit is what no map tells: an OSD that the others reach and this client does not, a node that
/// lost its power and has nobody to take over, a connection that only one end still knows. A limit that is too short
/// costs little, since sending again is safe; yet a drive that pauses for a second or two is not to be taken for a
/// lost one.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// An OSD that greets and then does not answer is there, and slow: each time it is given twice the time, so that what
/// is sent again does not add to its work. This often at most: the kernel gives a drive 30 s.
const SILENCE_DOUBLINGS_MAX: u32 = 3;

/// From when on a person is told that an operation waits. A failover takes about a second.
pub(super) const BLOCKED_AFTER: Duration = Duration::from_secs(3);

/// How often operations that were given up are told of.
const GIVEN_UP_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Notices that nobody fetches; later ones are dropped.
const NOTICES_MAX: usize = 64;

/// Why an attempt at a piece was in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Nothing was in vain yet.
    None,
    /// The map does not show the placement group.
    Unmapped,
    /// The map shows no address of the primary.
    PrimaryDown(OsdId),
    /// The system refuses a connection.
    NoConnection(OsdId),
    /// The connection ended.
    ConnectionEnded(OsdId),
    /// The OSD does not serve the group now.
    NotServed(OsdId, Status),
    /// The volume is being attached anew.
    Renewing,
    /// A limit of the volume, or of this client's key, does not let it begin yet.
    Throttled(OsdId),
}

/// What a person who runs the client should be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Operations wait for some seconds already. Said once, until they go on.
    Blocked {
        /// The volume's name.
        volume: String,
        /// How many operations on it wait for so long.
        operations: u64,
        /// For what the oldest of them waits, naming placement group and OSD.
        why: String,
    },
    /// Operations on the volume go on.
    GoesOn {
        /// The volume's name.
        volume: String,
        /// How long it took.
        waited: Duration,
    },
    /// Operations reached their time limit and failed.
    GivenUp {
        /// The volume's name.
        volume: String,
        /// How many, since this was said last.
        operations: u64,
        /// The limit.
        limit: Duration,
        /// For what the newest of them waited, naming placement group and OSD.
        why: String,
    },
}

/// What is known of a volume's operations that wait too long.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    blocked: Option<Blocked>,
    /// Operations given up and not told of.
    given_up: u64,
    given_up_why: String,
    given_up_told: Option<Instant>,
    waiting: Waiting,
}

/// A person was told that operations wait.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    /// The group that was named.
    pg: PgId,
    since: Instant,
    /// That group answered since.
    is_answered: bool,
}

impl Stalls {
    /// Changes reached their time limit before they were begun.
    pub(super) fn gave_up(&mut self, operations: u64, why: &str) {
        if operations > 0 {
            self.given_up += operations;
            why.clone_into(&mut self.given_up_why);
        }
    }

    /// The group gave a final answer to an operation on the volume. Answers whether a person waits for that.
    pub(super) fn answered(&mut self, pg: PgId) -> bool {
        let Some(blocked) = self.blocked.as_mut().filter(|blocked| blocked.pg == pg) else { return false };
        blocked.is_answered = true;
        true
    }
}

/// What waits of a volume, as of one look around.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    operations: u64,
    /// Since when the oldest waits, and its piece.
    oldest: Option<(Instant, u32)>,
    /// Something waits for the group that a person was told of.
    is_for_named: bool,
}

impl Client {
    /// From now on operations that are not done within `timeout` fail with [`ClientError::TimedOut`]; `None`, as at the
    /// start, lets them wait for ever. What was sent of a write by then may still take effect.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// The next thing that a person should be told.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Why operations wait, if one is to be tried again: in words, for a person.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let index = self.pieces.iter().position(|piece| piece.state == PieceState::Waiting);
        index.map_or_else(|| self.why_put_off(), |index| Some(self.why_in_vain(index as u32)))
    }

    /// Of an idle client nothing can be late.
    pub(super) fn has_reason_to_look(&self) -> bool {
        self.operations_in_flight() > 0 || self.has_gone_on
    }

    /// Something came on a connection.
    pub(super) fn heard_of(&mut self, link: LinkId) {
        if let Some(state) = self.links.get(&link).and_then(|osd| self.osds.get_mut(osd)) {
            state.silent_since = None;
        }
    }

    /// An OSD answered a request: it is not slow any more.
    pub(super) fn answered_by(&mut self, link: LinkId) {
        if !self.silences.is_empty()
            && let Some(osd) = self.links.get(&link)
        {
            self.silences.remove(osd);
        }
    }

    /// Looks for what has waited too long. It costs a walk over all pieces.
    pub(super) fn look_around(&mut self, now: Instant, io: &mut impl Network) {
        self.look_at = now + LOOK_EVERY;
        self.has_gone_on = false;
        // Before operations are given up: an answer to them is awaited on their connections all the same.
        let is_any_late = self.look_at_pieces(now);
        (0..self.volumes.len()).for_each(|volume| self.tell_of_blocked(now, volume));
        if is_any_late {
            self.give_up_late(now);
        }
        self.look_at_put_off(now);
        (0..self.volumes.len()).for_each(|volume| self.tell_of_given_up(now, volume));
        while let Some((osd, link)) = self.silent_link(now) {
            self.give_up_silent(now, osd, link, io);
        }
    }

    /// Notes what waits of each volume, and on which connections something is awaited. Answers whether an operation is
    /// past the time limit.
    fn look_at_pieces(&mut self, now: Instant) -> bool {
        self.osds.values_mut().for_each(|state| state.is_awaited = false);
        self.volumes.iter_mut().for_each(|volume| volume.stalls.waiting = Waiting::default());
        let (mut is_any_late, mut last_operation) = (false, None);
        for (index, piece) in (0u32..).zip(&self.pieces) {
            let osd = match piece.state {
                PieceState::Free => continue,
                PieceState::Sent(link) => self.links.get(&link).copied(),
                PieceState::Queued(osd) => Some(osd),
                PieceState::Waiting | PieceState::Held => None,
            };
            if let Some(state) = osd.and_then(|osd| self.osds.get_mut(&osd)) {
                state.is_awaited = true;
                state.silent_since.get_or_insert(now);
            }
            let operation = self.operations[piece.operation as usize].as_ref();
            let operation = operation.expect("a piece has an operation");
            let age = now.since(operation.submitted);
            let is_late = self.timeout.is_some_and(|limit| age >= limit);
            is_any_late |= is_late;
            if is_late || age >= BLOCKED_AFTER {
                let stalls = &mut self.volumes[operation.volume.0 as usize].stalls;
                let is_for_named = stalls.blocked.is_some_and(|blocked| blocked.pg == piece.key.pg);
                let waiting = &mut stalls.waiting;
                // Pieces of one operation mostly stand together.
                waiting.operations += u64::from(last_operation != Some(piece.operation));
                last_operation = Some(piece.operation);
                waiting.is_for_named |= is_for_named;
                if waiting.oldest.is_none_or(|(oldest, _)| operation.submitted < oldest) {
                    waiting.oldest = Some((operation.submitted, index));
                }
            }
        }
        is_any_late
    }

    fn silent_link(&self, now: Instant) -> Option<(OsdId, LinkId)> {
        let is_silent = |osd: &OsdId| {
            let state = &self.osds[osd];
            // Who does not even greet may be away, and is tried again and again at the same pace.
            let doublings =
                if state.version.is_some() { self.silences.get(osd).copied().unwrap_or(0) } else { 0 };
            let limit = SILENCE_MAX * (1 << doublings.min(SILENCE_DOUBLINGS_MAX));
            state.is_awaited && state.silent_since.is_some_and(|since| now.since(since) >= limit)
        };
        self.osds.keys().copied().find(is_silent).map(|osd| (osd, self.osds[&osd].link))
    }

    /// Gives up a connection. What was sent on it is sent again on the next one, before whose hello the OSD closes this
    /// one: so nothing that it still holds runs late.
    fn give_up_silent(&mut self, now: Instant, osd: OsdId, link: LinkId, io: &mut impl Network) {
        let state = &self.osds[&osd];
        let seconds = state.silent_since.map_or(0, |since| now.since(since).as_secs());
        let reason = if state.version.is_some() {
            *self.silences.entry(osd).or_default() += 1;
            format!("it has not answered for {seconds} s")
        } else {
            format!("it did not greet within {seconds} s")
        };
        self.give_up_link(now, link, &reason, io);
    }

    fn tell_of_blocked(&mut self, now: Instant, volume: usize) {
        let Stalls { blocked: known, waiting, .. } = self.volumes[volume].stalls;
        let name = || self.volumes[volume].name.clone();
        let (blocked, notice) = match (known, waiting.oldest) {
            (Some(known), None) if known.is_answered => {
                (None, Some(Notice::GoesOn { volume: name(), waited: now.since(known.since) }))
            }
            (known, None) => (known, None),
            (Some(known), _) if waiting.is_for_named => (Some(known), None),
            (known, Some((since, index))) => {
                let pg = self.pieces[index as usize].key.pg;
                // The group that was named goes on, and others of the same trouble do not yet.
                let goes_on = known.filter(|known| known.is_answered).map(|known| known.since);
                let blocked = Blocked { pg, since: goes_on.unwrap_or(since), is_answered: false };
                let (operations, why) = (waiting.operations, self.why(now, index));
                let notice = Notice::Blocked { volume: name(), operations, why };
                (Some(blocked), goes_on.is_none().then_some(notice))
            }
        };
        self.volumes[volume].stalls.blocked = blocked;
        notice.into_iter().for_each(|notice| self.tell(notice));
    }

    fn give_up_late(&mut self, now: Instant) {
        let Some(limit) = self.timeout else { return };
        for index in 0..self.pieces.len() as u32 {
            let piece = &self.pieces[index as usize];
            if piece.state == PieceState::Free {
                continue;
            }
            let operation = self.operations[piece.operation as usize].as_ref();
            let operation = operation.expect("a piece has an operation");
            if now.since(operation.submitted) < limit {
                continue;
            }
            let volume = operation.volume.0 as usize;
            let failure = operation.failure.is_none().then(|| {
                let why = self.why(now, index);
                let stalls = &mut self.volumes[volume].stalls;
                stalls.given_up += 1;
                stalls.given_up_why.clone_from(&why);
                ClientError::TimedOut { volume: self.volumes[volume].name.clone(), limit, why }
            });
            self.may_have_loose_end(index);
            // A reply that still comes finds the slot free, or used again under another serial.
            self.drop_piece(index, failure);
        }
    }

    fn tell_of_given_up(&mut self, now: Instant, volume: usize) {
        let (Some(limit), state) = (self.timeout, &mut self.volumes[volume]) else { return };
        let stalls = &mut state.stalls;
        let is_due = stalls.given_up_told.is_none_or(|told| now.since(told) >= GIVEN_UP_TOLD_EVERY);
        if stalls.given_up > 0 && is_due {
            stalls.given_up_told = Some(now);
            let operations = std::mem::take(&mut stalls.given_up);
            let (volume, why) = (state.name.clone(), stalls.given_up_why.clone());
            self.tell(Notice::GivenUp { volume, operations, limit, why });
        }
    }

    pub(super) fn tell(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }

    /// For what a piece waits, in words.
    fn why(&self, now: Instant, index: u32) -> String {
        let piece = &self.pieces[index as usize];
        let osd = match piece.state {
            PieceState::Sent(link) => self.links.get(&link).copied(),
            PieceState::Queued(osd) => Some(osd),
            PieceState::Free | PieceState::Waiting | PieceState::Held => None,
        };
        let silent = osd.and_then(|osd| {
            let state = self.osds.get(&osd)?;
            Some((osd, state.version.is_some(), now.since(state.silent_since?).as_secs()))
        });
        let pg = piece.key.pg;
        match silent {
            Some((osd, true, seconds)) if seconds > 0 => {
                format!("pg {pg} on {osd} does not answer: nothing came from there for {seconds} s")
            }
            Some((osd, false, seconds)) if seconds > 0 => {
                format!("pg {pg} on {osd} cannot be reached: it has not greeted for {seconds} s")
            }
            _ => match (piece.trouble, osd) {
                (Trouble::None, Some(osd)) => format!("pg {pg} on {osd} has not answered yet"),
                _ => self.why_in_vain(index),
            },
        }
    }

    /// Why the newest attempt at a piece that ended was in vain.
    fn why_in_vain(&self, index: u32) -> String {
        let piece = &self.pieces[index as usize];
        let pg = piece.key.pg;
        if piece.state == PieceState::Held {
            return format!("pg {pg}: what was to change the same bytes before it has not ended");
        }
        match piece.trouble {
            Trouble::None => format!("pg {pg} was not asked yet"),
            Trouble::Unmapped => format!("the map does not show pg {pg}"),
            Trouble::Throttled(osd) => {
                format!(
                    "pg {pg} on {osd}: the limits of the volume, or of this client's key, allow no more at the moment"
                )
            }
            Trouble::Renewing => format!("pg {pg} is not asked while the volume is being attached anew"),
            Trouble::PrimaryDown(osd) => format!("pg {pg} on {osd} cannot be reached: the OSD is down"),
            Trouble::NoConnection(osd) => {
                format!("pg {pg} on {osd} cannot be reached: this machine refuses another connection")
            }
            Trouble::ConnectionEnded(osd) => {
                let reason = self.ends.get(&osd).map_or("", String::as_str);
                format!("pg {pg} on {osd} cannot be reached: the connection ended: {reason}")
            }
            Trouble::NotServed(osd, status) => {
                let what = match status {
                    Status::NotPrimary => "not its primary",
                    Status::StaleEpoch => "another epoch",
                    Status::Frozen => "a snapshot was made, and the map that shows it is on its way",
                    Status::BeyondEnd => "beyond the end of the volume, as far as it knows",
                    _ => "not active",
                };
                format!("pg {pg} on {osd} does not serve: {what}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
