//! Who refuses a stale primary, and whoever is none, and why that is enough.
//!
//! A primary is *stale* when the registry holds a later epoch of its group. It may not know that. What it then does changes
//! nothing and is believed by nobody, for five reasons, of which the first two are the functions of this file:
//!
//! 1. *It orders nothing that counts.* A member takes an order only of the very epoch it obeys, which has one primary and is
//!    begun only by whoever asked for the member's position ([`may_activate`]), and only the next in sequence ([`may_order`];
//!    [`may_push`] and [`may_tell`] for what stands beside it). Of a member in sync, no
//!    acknowledgement to a client can do without it.
//! 2. *It gets no position.* A query of an older epoch than the one obeyed is not answered, nor one of the same epoch by
//!    somebody else ([`judge_query`]). So of an epoch that was never begun none can be begun later.
//! 3. *It obeys the later one as soon as it hears of it*, by a map, or by a refused order: its epoch ends.
//! 4. *It serves no reads and takes no writes without leases* of every member in sync (`links::lease`), and nobody claims
//!    an epoch in its place before all it promised has run out (`epoch::claim`): so it need not hear of anything to stop.
//! 5. *The registry takes no proposal but one that replaces the configuration it was made from*, by compare-and-swap.
//!
//! Why the first is enough for writes: a write is acknowledged when every member in sync of its epoch has it on stable
//! media. Whoever began a later epoch is one of those, or was brought up to date by one, and had the others say where they
//! stand; from then on they refuse the older epoch. So an acknowledgement of the older epoch was complete before that, and
//! what it acknowledged is in the positions that the later epoch began from.
//!
//! Whoever is no primary at all gets no further than that one. All that a member obeys hangs on the query that it obeyed, and
//! that is one of the very epoch, and of the very OSD, that the map of this OSD names ([`judge_query`]). What an OSD says of
//! itself counts for nothing: each has a key, and may say anything. So the epoch that a member obeys is never later than the
//! one that its map shows. What is asked by a later one waits for the map (`epoch::kept`); why not otherwise is told in
//! docs/decisions/0025-who-may-say-what.md.
//!
//! And who is the primary is so of that group alone. Whatever it orders or pushes is about blocks of objects that the group
//! [holds](Group::holds), for a start finds each object by its own group, whatever a record calls it. Both go by the same
//! modulus: an epoch is obeyed by that of its query, and ends where the group is split. Only entries of the log may name
//! objects of the other half: they tell of the time before.

use super::Group;
use super::role::Role;
use base::{Epoch, History, OsdId, Sequence};
use std::cmp::Ordering;
use wire::{Query, Status};

/// By how much a member may be further than the one that asks where it stands. None is by more than what is under way at a
/// time, and the marks of epochs that came to nothing; whoever says more would have the group's sequences used up.
pub(crate) const AHEAD_MAX: u64 = 1 << 32;
/// So much of a history an epoch may begin in. What is left is more than any epoch orders: at 100,000 writes a second it takes
/// 66 years.
const HISTORY_USED_MAX: u64 = 1 << 46;

/// Why a member takes no order of a primary, and the epoch it obeys.
pub(crate) type Refusal = (Status, Epoch);

/// Whether this member applies what `sender`, as the primary of that epoch, ordered with that sequence.
pub(crate) fn may_order(
    group: &Group,
    sender: Option<OsdId>,
    epoch: Epoch,
    sequence: Sequence,
) -> Result<(), Refusal> {
    let expected = group.standing.following().and_then(|following| following.expected);
    let is_next = expected == Some(sequence) && !sequence.ends_history();
    if epoch == group.epoch && is_next && is_leader(group, sender) {
        return Ok(());
    }
    Err((if epoch < group.epoch { Status::StaleEpoch } else { Status::NotActive }, group.epoch))
}

/// Whether it is the OSD whose epoch this member obeys: any other one has a key of its own too, and may know the epoch and
/// what is expected next.
fn is_leader(group: &Group, sender: Option<OsdId>) -> bool {
    sender.is_some() && group.leader == sender
}

/// Whether this member is a learner of that epoch, and takes what `sender`, as its primary, pushes beside the order.
pub(crate) fn may_push(group: &Group, sender: Option<OsdId>, epoch: Epoch) -> bool {
    group.epoch == epoch && matches!(group.standing.role(), Role::Learner(_)) && is_leader(group, sender)
}

/// Whether `sender`, as the primary of that epoch, is told what this member has.
pub(crate) fn may_inquire(group: &Group, sender: Option<OsdId>, epoch: Epoch) -> bool {
    group.epoch == epoch && is_leader(group, sender)
}

/// Whether this member is in sync in that epoch, and takes the word of `sender`, as its primary, for the state of all.
pub(crate) fn may_tell(group: &Group, sender: Option<OsdId>, epoch: Epoch) -> bool {
    let has_begun = matches!(group.standing.role(), Role::Replica(following) if following.expected.is_some());
    group.epoch == epoch && has_begun && is_leader(group, sender)
}

/// Whether whoever sent that may begin its epoch here, or let this member join as a learner.
pub(crate) fn may_activate(group: &Group, sender: Option<OsdId>, epoch: Epoch) -> Result<(), Refusal> {
    if group.epoch != epoch {
        return Err((Status::StaleEpoch, group.epoch));
    }
    // One that left the group since it told that primary where it stands is to be asked anew: it knows no leader then.
    let may_follow = matches!(group.standing.role(), Role::Replica(_) | Role::Learner(_));
    if may_follow && is_leader(group, sender) { Ok(()) } else { Err((Status::NotActive, epoch)) }
}

/// Whether the order of an epoch may go on behind `mark` at a member in sync whose log ends with `own`. The mark is behind the
/// last that any member has, who may be as far ahead of the primary as that believes, and the primary of this member; and
/// behind the floor of the group's history, which it does not leave.
pub(crate) fn may_go_on(history: History, own: Sequence, mark: Sequence) -> bool {
    let ahead = mark.0.saturating_sub(own.max(history.floor()).0);
    ahead <= 2 * AHEAD_MAX && mark.history() == history && !mark.ends_history()
}

/// Whether the log of a learner, which may have nothing to compare with, may begin behind `mark`, and the order reach it at
/// `from`. However far off that is in the group's history, there is room for the next epoch: see [`goes_on_in`].
pub(crate) fn may_join(history: History, mark: Sequence, from: Sequence) -> bool {
    mark < from && from.history() == history
}

/// The history for the next epoch of a group that is in `history` by the registry, and whose order ends with `own` at whoever
/// claims that epoch.
///
/// Nobody's order leaves the history of the epoch that it obeys. So who has a later one than the registry tells that it was set
/// back to before the group was given up: what is in the later one counts. And where somebody who led it has used much of a
/// history up, with whatever marks, the order goes on in the next one.
pub(crate) fn goes_on_in(history: History, own: Sequence) -> History {
    let latest = history.max(own.history());
    let is_used_up = latest == own.history() && own.in_history() > HISTORY_USED_MAX;
    if is_used_up { latest.next().unwrap_or(latest) } else { latest }
}

/// Whether an entry of the log is from before whatever reaches a member next.
pub(crate) fn is_from_before(group: &Group, sequence: Sequence) -> bool {
    let expected = group.standing.following().and_then(|following| following.expected);
    expected.is_some_and(|expected| sequence < expected)
}

/// What becomes of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its sender is obeyed from here on, and told where this member stands.
    Obey,
    /// The map that names its sender may be on its way.
    AwaitMap,
    /// Its epoch is over, or never was.
    Ignore,
}

/// What becomes of the query of an OSD that says that it claimed an epoch of a group. It is obeyed if the map shows that very
/// epoch, and this OSD as its primary; and a group that was split is asked for by its new modulus, which that map shows too.
pub(crate) fn judge_query(group: &Group, leader: OsdId, query: &Query) -> Verdict {
    let Query { modulus, epoch, .. } = *query;
    match epoch.cmp(&group.config.epoch) {
        Ordering::Greater => Verdict::AwaitMap,
        Ordering::Equal
            if leader == group.config.primary && epoch >= group.epoch && modulus == group.modulus =>
        {
            Verdict::Obey
        }
        Ordering::Equal | Ordering::Less => Verdict::Ignore,
    }
}

/// Whether `sender` is told what blocks of a group hold here, so that it can mend its own: the primary that the map names, if
/// that has not told of a later epoch. Who was a member before, and was not asked by it, may have the last sound copy.
pub(crate) fn may_fetch(group: &Group, sender: Option<OsdId>, epoch: Epoch) -> bool {
    epoch >= group.config.epoch && sender == Some(group.config.primary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::PgConfig;
    use base::{Instant, PgId};

    const LEADER: OsdId = OsdId(1);
    const EPOCH: Epoch = Epoch(5);

    /// A member that obeys an epoch, and waits for its write 7.
    fn member(is_learner: bool) -> Group {
        let config =
            PgConfig { epoch: EPOCH, primary: LEADER, in_sync: vec![LEADER, OsdId(0)], ..Default::default() };
        let mut group = Group::new(PgId::default(), 1, config, vec![], false, Instant::default());
        group.leader = Some(LEADER);
        group.standing.was_activated(Sequence(7), is_learner);
        group
    }

    #[test]
    fn an_older_epoch_orders_nothing() {
        let group = member(false);
        assert_eq!(may_order(&group, Some(LEADER), EPOCH, Sequence(7)), Ok(()));
        assert_eq!(may_order(&group, Some(LEADER), Epoch(4), Sequence(7)), Err((Status::StaleEpoch, EPOCH)));
        assert_eq!(may_order(&group, Some(LEADER), Epoch(6), Sequence(7)), Err((Status::NotActive, EPOCH)));
    }

    #[test]
    fn an_order_with_a_gap_or_a_second_time_is_not_taken() {
        for sequence in [6, 8] {
            assert_eq!(
                may_order(&member(false), Some(LEADER), EPOCH, Sequence(sequence)),
                Err((Status::NotActive, EPOCH))
            );
        }
    }

    #[test]
    fn who_obeys_nobody_takes_orders_of_nobody() {
        let mut group = member(false);
        group.standing.obeys();
        assert_eq!(may_order(&group, Some(LEADER), EPOCH, Sequence(7)), Err((Status::NotActive, EPOCH)));
        group.standing.claims();
        assert_eq!(may_order(&group, Some(LEADER), EPOCH, Sequence(7)), Err((Status::NotActive, EPOCH)));
    }

    #[test]
    fn a_candidate_takes_orders_until_it_has_an_epoch_of_its_own() {
        let mut group = member(false);
        group.standing.claims();
        assert_eq!(may_order(&group, Some(LEADER), EPOCH, Sequence(7)), Ok(()));
        assert!(may_activate(&group, Some(LEADER), EPOCH).is_err() && !may_push(&group, Some(LEADER), EPOCH));
        group.standing.epoch_was_granted(Instant::default());
        assert!(may_order(&group, Some(LEADER), EPOCH, Sequence(7)).is_err());
    }

    #[test]
    fn only_a_learner_of_the_epoch_is_pushed_to() {
        assert!(
            may_push(&member(true), Some(LEADER), EPOCH) && !may_push(&member(true), Some(LEADER), Epoch(4))
        );
        assert!(!may_push(&member(false), Some(LEADER), EPOCH), "a member in sync has everything");
        assert!(
            may_tell(&member(false), Some(LEADER), EPOCH) && !may_tell(&member(true), Some(LEADER), EPOCH)
        );
    }

    #[test]
    fn nobody_but_the_leader_is_obeyed_or_told() {
        for sender in [None, Some(OsdId(2))] {
            let order = may_order(&member(false), sender, EPOCH, Sequence(7));
            assert_eq!(order, Err((Status::NotActive, EPOCH)), "{sender:?}");
            assert!(!may_push(&member(true), sender, EPOCH) && !may_inquire(&member(true), sender, EPOCH));
            assert!(!may_tell(&member(false), sender, EPOCH));
            let mut group = member(false);
            group.leader = None;
            assert!(may_order(&group, sender, EPOCH, Sequence(7)).is_err(), "it obeys nobody");
            assert!(may_activate(&group, sender, EPOCH).is_err());
        }
        assert!(may_inquire(&member(true), Some(LEADER), EPOCH));
    }

    #[test]
    fn an_epoch_is_begun_by_whoever_asked_for_the_position() {
        let mut group = member(false);
        assert!(may_activate(&group, Some(LEADER), EPOCH).is_ok());
        assert!(
            may_activate(&group, Some(OsdId(2)), EPOCH).is_err()
                && may_activate(&group, None, EPOCH).is_err()
        );
        assert_eq!(may_activate(&group, Some(LEADER), Epoch(4)), Err((Status::StaleEpoch, EPOCH)));
        group.leader = None;
        assert!(may_activate(&group, Some(LEADER), EPOCH).is_err(), "it left since it was asked");
    }

    #[test]
    fn no_epoch_uses_the_sequences_up() {
        let (first, own) = (History(0), Sequence(1000));
        for (ahead, may) in [(0, true), (2 * AHEAD_MAX, true), (2 * AHEAD_MAX + 1, false)] {
            assert_eq!(may_go_on(first, own, Sequence(own.0 + ahead)), may, "{ahead}");
        }
        assert!(!may_go_on(first, own, Sequence(u64::MAX)));
        // Where the group was given up its order goes on behind the floor, wherever this member is.
        let (second, floor) = (History(1), History(1).floor());
        assert!(!may_go_on(first, own, floor.next()) && may_go_on(second, own, floor.next()));
        assert!(may_join(second, floor.next(), floor.next().next()));
        assert!(!may_join(first, floor.next(), floor.next().next()));
        // A learner that has nothing joins a group that has ordered very much.
        let (mark, from) = (Sequence(1 << 40), Sequence((1 << 40) + 1024));
        assert!(may_join(first, mark, from));
        assert!(!may_join(first, from, from), "its log would begin in what is still to come");
        assert!(!may_join(first, mark, Sequence(u64::MAX)));
        // Wherever somebody who led it brought it, the next epoch goes on, and there is no way out of the history before.
        let last = Sequence(floor.0 - 1);
        let begun = Sequence(last.0 - 1);
        assert!(may_join(first, mark, last) && !may_join(first, mark, floor));
        assert!(may_go_on(first, begun, begun));
        assert!(!may_go_on(first, begun, last) && !may_go_on(first, begun, floor));
        for own in [begun, last] {
            let next = goes_on_in(first, own);
            assert_eq!(next, second);
            assert!(may_go_on(next, own, next.floor().next()));
        }
    }

    #[test]
    fn no_order_leaves_its_history() {
        let last = Sequence(History(1).floor().0 - 1);
        for (expected, is_taken) in [(last.0 - 1, true), (last.0, false), (u64::MAX, false)] {
            let expected = Sequence(expected);
            let mut group = member(false);
            group.standing.was_activated(expected, false);
            let taken = may_order(&group, Some(LEADER), EPOCH, expected);
            assert_eq!(taken.is_ok(), is_taken, "{expected}");
        }
    }

    #[test]
    fn an_epoch_is_claimed_in_the_latest_history_and_in_the_next_when_much_of_that_is_used_up() {
        let behind = |history: u16, more: u64| Sequence(History(history).floor().0 + more);
        for (known, own, expected) in [
            (0, Sequence(0), 0),
            (0, behind(0, HISTORY_USED_MAX), 0),
            (0, behind(0, HISTORY_USED_MAX + 1), 1),
            (2, behind(1, 5), 2),
            // However much of that before the group was given up.
            (2, behind(1, u64::from(u32::MAX) << 16), 2),
            // The registry was set back.
            (0, behind(1, 5), 1),
            (1, behind(3, HISTORY_USED_MAX + 1), 4),
            (u16::MAX, Sequence(u64::MAX), u16::MAX),
        ] {
            assert_eq!(goes_on_in(History(known), own), History(expected), "{known}, {own}");
        }
    }

    #[test]
    fn an_entry_is_from_before_what_comes_next() {
        let group = member(true);
        assert!(is_from_before(&group, Sequence(6)) && !is_from_before(&group, Sequence(7)));
        let mut group = member(true);
        group.standing.obeys();
        assert!(!is_from_before(&group, Sequence(0)), "nothing has begun");
    }

    #[test]
    fn a_query_is_obeyed_of_whom_the_map_names_and_in_that_epoch_only() {
        let judged = |group: &Group, leader, epoch, modulus| {
            judge_query(group, leader, &Query { pg: group.pg, modulus, epoch })
        };
        let group = member(false);
        assert_eq!(judged(&group, LEADER, EPOCH, 1), Verdict::Obey);
        assert_eq!(judged(&group, OsdId(2), EPOCH, 1), Verdict::Ignore, "one epoch has one primary");
        assert_eq!(judged(&group, LEADER, Epoch(4), 1), Verdict::Ignore, "it is over");
        for leader in [LEADER, OsdId(2)] {
            assert_eq!(judged(&group, leader, Epoch(6), 1), Verdict::AwaitMap);
            assert_eq!(judged(&group, leader, Epoch(u32::MAX), 1), Verdict::AwaitMap);
        }
        assert_eq!(judged(&group, LEADER, EPOCH, 2), Verdict::Ignore, "it means other objects");
        // The map names another, whom this member was not asked by yet.
        let mut group = member(false);
        (group.config.epoch, group.config.primary) = (Epoch(6), OsdId(2));
        assert_eq!(judged(&group, LEADER, EPOCH, 1), Verdict::Ignore);
        assert_eq!(judged(&group, LEADER, Epoch(6), 1), Verdict::Ignore);
        assert_eq!(judged(&group, OsdId(2), Epoch(6), 1), Verdict::Obey);
    }

    #[test]
    fn blocks_are_told_of_to_the_primary_that_the_map_names() {
        let group = member(false);
        assert!(may_fetch(&group, Some(LEADER), EPOCH) && may_fetch(&group, Some(LEADER), Epoch(6)));
        assert!(!may_fetch(&group, Some(LEADER), Epoch(4)), "it is over");
        for sender in [None, Some(OsdId(2)), Some(OsdId(0))] {
            assert!(!may_fetch(&group, sender, EPOCH) && !may_fetch(&group, sender, Epoch(6)), "{sender:?}");
        }
    }
}
