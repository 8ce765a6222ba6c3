//! What another OSD was sent as replication and has not acknowledged, and how much of it it was sent as a learner.
//!
//! All that an OSD is sent stands in one stream, for whichever group it is, and nobody but the kernel knows what of it was read.
//! So that no group waits for what another one's member does not take, it is divided by what is not acknowledged: of what an OSD
//! leaves unread, that much may be what it was sent as a learner, for each attempt at one; the rest it was sent as a member in
//! sync, or was answered ([`super::inquiries`]).
//!
//! Who acknowledges what it did not read, or does not what it did, shifts that and no more: both parts have their bounds.

use super::inquiries::UNREAD_BYTES_MAX;
use super::{Awaited, ToLearner};
use base::BLOCK_BYTES;
use std::collections::VecDeque;

/// Replicated messages that a learner may leave unacknowledged before it is given up for now. An OSD that leaves more as all
/// learners together that it is or was begins to be no other.
const LEARNER_LAG_MAX: usize = 16_384;

/// The bytes of one that is not given up for what others leave unread: as many as an OSD brings up to date at a time leave no
/// more than [`UNREAD_BYTES_MAX`] so.
const LEARNER_PART_MAX: usize = UNREAD_BYTES_MAX / 4;

/// All learners at an OSD leave no more than this unread. What they have not acknowledged beyond that they did read.
const LEARNERS_BYTES_MAX: usize = 2 * UNREAD_BYTES_MAX;

/// An OSD that leaves more unread beside what it was sent as a learner is nobody's learner: from half of that on it is given
/// nothing more that could wait, so it acknowledged what it did not read.
const BESIDE_LEARNERS_MAX: usize = 2 * UNREAD_BYTES_MAX;

#[derive(Clone, Copy, Debug)]
struct Sent {
    ordinal: u64,
    awaited: Awaited,
}

/// What a learner was sent in one attempt and has not acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Lag {
    messages: usize,
    /// Of what blocks are to hold.
    bytes: usize,
}

/// See the module's documentation. Of one link.
#[derive(Debug, Default)]
pub(crate) struct Unacknowledged {
    /// The oldest first.
    sent: VecDeque<Sent>,
    /// By the session of an attempt at a learner, which may have been given up.
    learners: Vec<(u32, Lag)>,
}

impl Unacknowledged {
    /// A message is sent, behind all others.
    pub(crate) fn add(&mut self, ordinal: u64, awaited: Awaited) {
        self.sent.push_back(Sent { ordinal, awaited });
        let Some((session, bytes)) = to_learner(awaited) else { return };
        let known = self.learners.iter().position(|(other, _)| *other == session);
        let at = known.unwrap_or(self.learners.len());
        if known.is_none() {
            self.learners.push((session, Lag::default()));
        }
        let lag = &mut self.learners[at].1;
        lag.messages += 1;
        lag.bytes += bytes;
    }

    /// The ordinal of the oldest message.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.sent.front().map(|sent| sent.ordinal)
    }

    /// The oldest one is acknowledged, if it is no later than that.
    pub(crate) fn pop_through(&mut self, through: u64) -> Option<Awaited> {
        let sent = self.sent.pop_front_if(|front| front.ordinal <= through)?;
        self.was_taken(sent.awaited);
        Some(sent.awaited)
    }

    /// One of them is not going to be.
    pub(crate) fn remove(&mut self, ordinal: u64) -> Option<Awaited> {
        let index = self.sent.binary_search_by_key(&ordinal, |sent| sent.ordinal).ok()?;
        let sent = self.sent.remove(index).expect("it was just found");
        self.was_taken(sent.awaited);
        Some(sent.awaited)
    }

    fn was_taken(&mut self, awaited: Awaited) {
        let Some((session, bytes)) = to_learner(awaited) else { return };
        let Some(at) = self.learners.iter().position(|(other, _)| *other == session) else { return };
        let lag = &mut self.learners[at].1;
        lag.messages -= 1;
        lag.bytes -= bytes;
        if lag.messages == 0 {
            self.learners.swap_remove(at);
        }
    }

    /// Of so many bytes that are unread, those that the OSD was not sent as a learner.
    pub(crate) fn beside_learners(&self, unread_bytes: usize) -> usize {
        unread_bytes.saturating_sub(self.learners_bytes())
    }

    /// Whether an OSD that leaves so many bytes unread may become a learner in one more group, or anew.
    pub(crate) fn may_learn(&self, unread_bytes: usize) -> bool {
        let messages: usize = self.learners.iter().map(|(_, lag)| lag.messages).sum();
        messages <= LEARNER_LAG_MAX && !self.is_behind(unread_bytes)
    }

    /// Whether one that leaves so many bytes unread is to take some of it before it is sent more as a learner.
    fn is_behind(&self, unread_bytes: usize) -> bool {
        unread_bytes.min(self.learners_bytes()) > UNREAD_BYTES_MAX
            || self.beside_learners(unread_bytes) > BESIDE_LEARNERS_MAX
    }

    /// Whether one that is a learner by that attempt, and leaves so many bytes unread, is to be given up.
    pub(crate) fn lags(&self, session: u32, unread_bytes: usize) -> bool {
        let known = self.learners.iter().find(|(other, _)| *other == session);
        let Lag { messages, bytes } = known.map(|(_, lag)| *lag).unwrap_or_default();
        let has_part = bytes > LEARNER_PART_MAX || self.beside_learners(unread_bytes) > BESIDE_LEARNERS_MAX;
        messages > LEARNER_LAG_MAX || has_part && self.is_behind(unread_bytes)
    }

    /// How many bytes that are unread it may have been sent as a learner.
    fn learners_bytes(&self) -> usize {
        let bytes: usize = self.learners.iter().map(|(_, lag)| lag.bytes).sum();
        bytes.min(LEARNERS_BYTES_MAX)
    }
}

/// By which attempt at a learner something is sent, and how many bytes of blocks it has at most, if it is to a learner.
fn to_learner(awaited: Awaited) -> Option<(u32, usize)> {
    let Awaited::Learner { session, sent, .. } = awaited else { return None };
    let blocks = match sent {
        ToLearner::Entry | ToLearner::Mark => 0,
        ToLearner::Write { blocks } => blocks,
        ToLearner::Push { cost } => cost,
    };
    Some((session, usize::from(blocks) * BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A learner is sent so many writes of 4 MiB.
    fn send(unacknowledged: &mut Unacknowledged, session: u32, count: u64) {
        let sent = ToLearner::Write { blocks: 1024 };
        for _ in 0..count {
            let ordinal = unacknowledged.sent.back().map_or(0, |sent| sent.ordinal) + 1;
            unacknowledged.add(ordinal, Awaited::Learner { group: session, session, sent });
        }
    }

    #[test]
    fn of_several_learners_those_that_lag_are_given_up_and_no_other() {
        let mut unacknowledged = Unacknowledged::default();
        let (quiet, busy) = (1, 2);
        send(&mut unacknowledged, quiet, 2);
        send(&mut unacknowledged, busy, 6);
        let all = UNREAD_BYTES_MAX;
        assert!(!unacknowledged.lags(busy, all) && unacknowledged.may_learn(all));
        send(&mut unacknowledged, busy, 1);
        assert!(!unacknowledged.lags(busy, all), "it takes what it is sent");
        assert!(unacknowledged.lags(busy, all + 1) && !unacknowledged.lags(quiet, all + 1));
        assert!(!unacknowledged.may_learn(all + 1), "nobody else's learner is begun with");
        // What was sent by an attempt that was given up counts until it is acknowledged.
        assert_eq!(unacknowledged.oldest(), Some(1));
        assert!(unacknowledged.pop_through(3).is_some() && unacknowledged.remove(9).is_some());
        assert!(unacknowledged.may_learn(all + 1));
        while unacknowledged.pop_through(8).is_some() {}
        assert!(unacknowledged.learners.is_empty() && unacknowledged.oldest().is_none());
    }

    #[test]
    fn no_learner_pays_for_what_was_sent_otherwise_unless_it_says_that_it_has_what_it_did_not_read() {
        let mut unacknowledged = Unacknowledged::default();
        send(&mut unacknowledged, 1, 1);
        let own = 1024 * BLOCK_BYTES;
        let beside = own + BESIDE_LEARNERS_MAX;
        assert_eq!(unacknowledged.beside_learners(beside), BESIDE_LEARNERS_MAX);
        assert!(!unacknowledged.lags(1, beside) && unacknowledged.may_learn(beside));
        unacknowledged.pop_through(1);
        assert!(unacknowledged.lags(1, beside) && !unacknowledged.may_learn(beside));
    }

    #[test]
    fn what_was_read_and_not_acknowledged_covers_nothing_that_is_unread() {
        let mut unacknowledged = Unacknowledged::default();
        send(&mut unacknowledged, 1, 1000);
        assert_eq!(unacknowledged.beside_learners(LEARNERS_BYTES_MAX + 5), 5);
    }

    #[test]
    fn messages_count_however_small_they_are_and_those_of_others_do_not() {
        let mut unacknowledged = Unacknowledged::default();
        let awaited = |session| Awaited::Learner { group: 0, session, sent: ToLearner::Entry };
        for ordinal in 1..=LEARNER_LAG_MAX as u64 {
            unacknowledged.add(ordinal, awaited(1));
        }
        assert!(unacknowledged.may_learn(0));
        unacknowledged.add(LEARNER_LAG_MAX as u64 + 1, awaited(2));
        assert!(!unacknowledged.may_learn(0), "who acknowledges nothing is not sent its log again and again");
        assert!(!unacknowledged.lags(1, 0) && !unacknowledged.lags(2, 0));
        unacknowledged.add(LEARNER_LAG_MAX as u64 + 2, awaited(1));
        assert!(unacknowledged.lags(1, 0) && !unacknowledged.lags(2, 0));
    }

    #[test]
    fn of_what_a_learner_was_sent_each_message_counts_by_its_blocks_until_it_is_acknowledged() {
        let mut unacknowledged = Unacknowledged::default();
        let add = |unacknowledged: &mut Unacknowledged, ordinal, sent| {
            unacknowledged.add(ordinal, Awaited::Learner { group: 0, session: 1, sent });
        };
        let much = UNREAD_BYTES_MAX + 1;
        for ordinal in [1, 2] {
            add(&mut unacknowledged, ordinal, ToLearner::Push { cost: 9 * 1024 });
        }
        assert!(unacknowledged.pop_through(1).is_some());
        assert!(!unacknowledged.may_learn(much), "the other one may be unread still");
        assert!(unacknowledged.pop_through(2).is_some());
        assert!(unacknowledged.may_learn(much));
        let small = [ToLearner::Entry, ToLearner::Mark, ToLearner::Push { cost: 3 }];
        for (ordinal, sent) in (3..).zip(small) {
            add(&mut unacknowledged, ordinal, sent);
        }
        assert_eq!(unacknowledged.beside_learners(3 * BLOCK_BYTES + 5), 5);
    }

    #[test]
    fn a_learner_that_left_little_is_given_up_when_its_osd_leaves_too_much_beside_learners() {
        let mut unacknowledged = Unacknowledged::default();
        send(&mut unacknowledged, 1, 1);
        send(&mut unacknowledged, 2, 10);
        let most = 11 * 1024 * BLOCK_BYTES + BESIDE_LEARNERS_MAX;
        assert!(!unacknowledged.lags(1, most) && unacknowledged.lags(2, most));
        assert!(unacknowledged.lags(1, most + 1));
    }
}
