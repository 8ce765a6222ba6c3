//! How a group begins an epoch.
//!
//! The primary may serve only when every in-sync member agrees with it. It gets there in four steps:
//! 1. *Claim* ([`claim`]): a compare-and-swap in the registry makes the epoch one higher. Whoever holds an older epoch is
//!    refused by every member that has heard of the newer one ([`crate::group::obedience`]).
//! 2. *Query* ([`query`]): each replica obeys the new epoch from now on and tells the newest entries of its log, once
//!    nothing it staged before is still on its way to the drive. It does so when its map shows the epoch ([`kept`]).
//! 3. *Mark*: the primary begins the epoch with a mark behind everything any member has.
//! 4. *Repair* ([`repair`]): entries that not all members have were never acknowledged (an acknowledgement needs all of
//!    them). For each block they touch ([`differences`]), the primary's present content is written to all members, in order,
//!    as any write. What a replica had beyond the primary is so replaced.
//!
//! A crash at any point is harmless: the next epoch finds the same differences or fewer.

pub(crate) mod claim;
pub(crate) mod differences;
pub(crate) mod kept;
pub(crate) mod query;
pub(crate) mod repair;

use crate::context::{Context, LOOK_AGAIN};
use crate::group::role::State;
use crate::io::Io;
use crate::operation::Purpose;
use base::{LinkId, OsdId};
use std::time::Duration;
use wire::Status;

/// The pause before a group that lost its epoch claims another.
pub(crate) const CLAIM_PAUSE: Duration = Duration::from_millis(100);
/// The pause after a claim that came to nothing.
pub(crate) const CLAIM_PAUSE_LONG: Duration = Duration::from_secs(1);

/// Ends the epoch of a group this OSD is primary of. What is under way is answered with "try again": it
/// may or may not have taken effect, and nobody was told that it did.
pub(crate) fn end(cx: &mut Context<'_, impl Io>, index: u32, reason: &str) {
    let group = &mut cx.groups[index];
    if matches!(group.state(), State::Replica | State::Learner | State::Left) {
        return;
    }
    let repair = group.standing.must_wait(reason.to_owned());
    group.pauses.claim_after = cx.now + CLAIM_PAUSE;
    group.standing.promotion_failed();
    if let Some(learning) = group.learning_mut() {
        learning.learners.clear();
    }
    let mut ended = cx.lines.take_all(index);
    ended.extend(repair);
    for id in ended {
        let Some(operation) = cx.operations.get_mut(id) else { continue };
        let purpose = std::mem::replace(&mut operation.purpose, Purpose::Deletion);
        cx.abandon(id);
        cx.refuse(purpose, Status::NotActive);
    }
    cx.turn.tick_soon(cx.now);
}

/// The same of a claim that cannot be made again soon.
pub(crate) fn end_for_longer(cx: &mut Context<'_, impl Io>, index: u32, reason: &str) {
    end(cx, index, reason);
    cx.groups[index].pauses.claim_after = cx.now + CLAIM_PAUSE_LONG;
}

/// A link ended: what was waited for on it does not come any more.
pub(crate) fn link_ended(cx: &mut Context<'_, impl Io>, link: LinkId, reason: &str) {
    cx.volumes.forget_told(link);
    let Some(osd) = cx.links.ended(link, cx.now + LOOK_AGAIN) else { return };
    cx.turn.next_tick = cx.now;
    lost_member(cx, osd, &format!("the connection to {osd} ended: {reason}"));
}

/// A member cannot be reached: the epochs in which it is in sync end, and nobody brings it up to date.
pub(crate) fn lost_member(cx: &mut Context<'_, impl Io>, osd: OsdId, reason: &str) {
    for index in cx.groups.indices() {
        let group = &mut cx.groups[index];
        if let Some(learning) = group.learning_mut() {
            learning.forget(osd);
        }
        if group.standing.promotion().is_some_and(|promotion| promotion.osd == osd) {
            group.standing.promotion_failed();
        }
        if group.config.primary == cx.me.id && group.config.in_sync.contains(&osd) {
            end(cx, index, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::group::learner::{Learner, Promotion};
    use crate::group::position::Difference;
    use crate::group::role::{Change, Repairing};
    use crate::testing::{Alone, PG, Pair, REPLICA};
    use base::{BlockRange, Epoch, Instant, Sequence};

    fn learner(osd: u32, now: Instant) -> Learner {
        Learner { osd: OsdId(osd), link: LinkId(50), session: osd, heard_at: now, joined: None }
    }

    /// The next look at the slow things is a long while away.
    fn looks_late(pair: &mut Pair) -> Instant {
        let late = pair.alone.now + Duration::from_secs(9);
        pair.alone.osd.shared.turn.next_tick = late;
        late
    }

    #[test]
    fn an_epoch_that_ends_leaves_nothing_under_way_and_the_next_one_is_claimed_a_moment_later() {
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.turns(5);
        let now = pair.alone.now;
        pair.alone.osd.shared.groups[0].learning_mut().unwrap().learners.push(learner(5, now));
        looks_late(&mut pair);
        pair.alone.with(|_, cx| end(cx, 0, "a test"));
        assert_eq!(pair.told(), Some(Status::NotActive));
        let shared = &pair.alone.osd.shared;
        let group = &shared.groups[0];
        assert!(group.state() == State::Waiting && group.learners().is_empty());
        assert_eq!(shared.operations.in_flight(), 0);
        assert_eq!((group.pauses.claim_after, shared.turn.next_tick), (now + CLAIM_PAUSE, now + LOOK_AGAIN));
        // For longer where the next one would come to nothing too.
        pair.alone.with(|_, cx| end_for_longer(cx, 0, "a test"));
        assert_eq!(pair.alone.osd.shared.groups[0].pauses.claim_after, now + CLAIM_PAUSE_LONG);
        let mut pair = Pair::new();
        pair.alone.with(|_, cx| end_for_longer(cx, 0, "a test"));
        assert_eq!(pair.alone.osd.shared.groups[0].state(), State::Waiting);
    }

    #[test]
    fn a_repair_that_is_being_read_when_its_epoch_ends_goes_when_the_drive_is_done() {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.run();
        let key = pair.request(10).key;
        pair.asks_its_members();
        pair.alone.with(|_, cx| {
            let last = cx.disk.end_of(PG);
            let queue = [Difference { range: BlockRange::one(key, 10), origin: 0 }].into();
            let repairing = Repairing { queue, current: None, mark_is_due: false, others: Vec::new() };
            cx.groups[0].standing.differences_are_known(last.next(), repairing);
            repair::next(cx, 0);
            end(cx, 0, "a test");
            assert_eq!(cx.operations.in_flight(), 1, "the drive reads into its memory");
        });
        pair.alone.drive_answers();
        let shared = &pair.alone.osd.shared;
        assert_eq!(shared.operations.in_flight(), 0);
        assert_eq!(shared.disk.small.available(), shared.disk.small.count());
        assert_eq!(shared.groups[0].state(), State::Waiting);
    }

    #[test]
    fn who_follows_somebody_has_no_epoch_of_its_own_that_could_end() {
        let mut alone = Alone::new();
        let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
        alone.is_led_by(OsdId(1), epoch);
        alone.osd.shared.groups[0].standing.was_activated(Sequence(7), false);
        alone.with(|_, cx| end(cx, 0, "a test"));
        let standing = &alone.osd.shared.groups[0].standing;
        assert_eq!(standing.state(), State::Replica);
        assert_eq!(standing.following().and_then(|following| following.expected), Some(Sequence(7)));
        // Nor does who asks for one give up when it loses somebody: the registry will tell.
        alone.osd.shared.groups[0].standing.claims();
        alone.with(|_, cx| lost_member(cx, OsdId(1), "a test"));
        assert_eq!(alone.osd.shared.groups[0].state(), State::Candidate);
    }

    #[test]
    fn who_is_lost_is_no_learner_any_more_and_ends_the_epochs_in_which_it_is_in_sync() {
        let mut alone = Alone::new();
        let now = alone.now;
        let group = &mut alone.osd.shared.groups[0];
        group.learning_mut().unwrap().learners.extend([learner(5, now), learner(6, now)]);
        alone.with(|_, cx| lost_member(cx, OsdId(5), "a test"));
        let group = &mut alone.osd.shared.groups[0];
        assert!(group.is_active());
        assert_eq!(group.learners().iter().map(|learner| learner.osd).collect::<Vec<_>>(), [OsdId(6)]);
        // One that was to be taken in is not; another one is.
        let promotion = Promotion { osd: OsdId(6), link: LinkId(50), through: 0, since: now };
        group.standing.primary_mut().unwrap().change = Change::TakeIn(promotion);
        for (lost, is_left) in [(5, true), (6, false)] {
            alone.with(|_, cx| lost_member(cx, OsdId(lost), "a test"));
            assert_eq!(alone.osd.shared.groups[0].standing.promotion().is_some(), is_left, "{lost}");
        }
        let group = &mut alone.osd.shared.groups[0];
        assert!(group.is_active());
        group.config.in_sync.push(OsdId(7));
        alone.with(|_, cx| lost_member(cx, OsdId(7), "a test"));
        assert_eq!(alone.osd.shared.groups[0].state(), State::Waiting);
    }

    #[test]
    fn a_link_that_ends_is_looked_at_once_and_its_osd_is_not_dialled_at_once() {
        let mut pair = Pair::new();
        let (now, link) = (pair.alone.now, pair.link);
        let late = looks_late(&mut pair);
        pair.alone.with(|_, cx| link_ended(cx, LinkId(77), "a test"));
        assert!(pair.alone.osd.shared.groups[0].is_active(), "it was nobody's");
        assert_eq!(pair.alone.osd.shared.turn.next_tick, late);
        pair.alone.with(|_, cx| link_ended(cx, link, "a test"));
        let shared = &pair.alone.osd.shared;
        assert_eq!((shared.turn.next_tick, shared.groups[0].state()), (now, State::Waiting));
        let again_at = now + LOOK_AGAIN;
        assert!(!shared.links.may_dial(REPLICA, again_at - Duration::from_nanos(1)));
        assert!(shared.links.may_dial(REPLICA, again_at));
    }
}
