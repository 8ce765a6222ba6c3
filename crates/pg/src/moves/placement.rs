//! How a group moves to where its target says.
//!
//! The map names for each group the OSDs that shall hold it. The primary brings those that are not in sync up to
//! date like any learner ([`crate::heal::backfill`]), without a new epoch for it. When all of them are in sync, the next
//! configuration drops the others, and the primary role goes to the first of the target.
//!
//! # Why a move never costs a copy
//! Who is to go stays in sync until those who come are. Who was dropped deletes what it holds only when a
//! configuration without it has every member of the target in sync, and says so durably before the first block
//! goes: its log then begins anew, and does not tell what it has.

use super::delete::Deletions;
use crate::broken::Sabotage;
use crate::context::Context;
use crate::epoch::{self, claim};
use crate::group::role::State;
use crate::group::{Group, Wanted};
use crate::io::Io;
use crate::journal::{Journal, Milestone};
use base::map::{ClusterMap, PgConfig};
use base::{Epoch, OsdId, PgId, Sequence};
use std::time::Duration;
use store::Store;

/// How long a configuration lasts at least before the next step of a move: members that come and go shall not
/// make the primary role go to and fro.
const SETTLE: Duration = Duration::from_secs(2);

/// Who leads a group that has no members any more.
const NOBODY: OsdId = OsdId(u32::MAX);

/// What an active group lacks of being where its target says.
enum Step {
    /// Members that are not in the target are dropped.
    DropSurplus,
    /// The first of the target becomes the primary.
    HandOver,
}

fn next_step(group: &Group, me: OsdId) -> Option<Step> {
    let Wanted { target, .. } = &group.wanted;
    let preferred = *target.first()?;
    let is_in_sync = |osd: &OsdId| group.config.in_sync.contains(osd);
    let learning = &group.standing.primary()?.learning;
    if !group.is_active() || !learning.learners.is_empty() || !target.iter().all(is_in_sync) {
        return None;
    }
    if preferred != me {
        return Some(Step::HandOver);
    }
    let has_surplus = group.needed_of(&group.config.in_sync, me).count() < group.config.in_sync.len();
    // All that shall be in sync is: who is still named a learner, or was asked to be one, is none any more, and deletes
    // what it has when a later epoch tells it so.
    let is_done_with = |osd: &OsdId| !group.config.in_sync.contains(osd);
    let has_learners = !group.config.learners.is_empty() || learning.asked.iter().any(is_done_with);
    (has_surplus || has_learners).then_some(Step::DropSurplus)
}

/// Where a group shall lie: as the map says, else where it does.
pub(crate) fn target_of(map: &ClusterMap, pg: PgId, config: &PgConfig) -> Vec<OsdId> {
    match map.targets.get(&pg) {
        Some(target) if !target.is_empty() => target.clone(),
        _ => {
            let others = config.in_sync.iter().chain(&config.learners).filter(|osd| **osd != config.primary);
            std::iter::once(config.primary).chain(others.copied()).collect()
        }
    }
}

/// Whether a group is not yet where it shall be, and this OSD can do something about it.
pub(crate) fn has_work(cx: &Context<'_, impl Io>, group: &Group) -> bool {
    group.config.primary == cx.me.id
        && match next_step(group, cx.me.id) {
            Some(Step::HandOver) => {
                group.wanted.target.iter().all(|osd| *osd == cx.me.id || cx.can_follow(*osd))
            }
            Some(Step::DropSurplus) => true,
            None => false,
        }
}

/// Takes the next step of one group's move. One at a time: each is a short pause for the group's clients.
pub(crate) fn advance(cx: &mut Context<'_, impl Io>) {
    if !claim::may_end_by_choice(cx) {
        return;
    }
    for index in cx.groups.indices() {
        let group = &cx.groups[index];
        let pauses = &group.pauses;
        let is_early = cx.now.since(pauses.config_seen_at) < SETTLE || cx.now < pauses.hand_over_after;
        if is_early || !has_work(cx, group) {
            continue;
        }
        match next_step(group, cx.me.id) {
            Some(Step::HandOver) => hand_over(cx, index),
            Some(Step::DropSurplus) => {
                epoch::end(cx, index, "members that are not in its target go");
                cx.groups[index].pauses.claim_after = cx.now;
                claim::advance(cx, index);
            }
            None => {}
        }
        return;
    }
}

fn hand_over(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &mut cx.groups[index];
    group.pauses.handed_over_at = Some(cx.now);
    let heir = group.wanted.target[0];
    let in_sync = group.needed_of(&group.config.in_sync, heir).collect();
    cx.pass(Milestone::ClaimHandOver);
    claim::propose_primary(cx, index, heir, in_sync);
}

/// Takes over what a newer map says of groups. Those that this OSD holds something of are known from here on.
pub(crate) fn heed(cx: &mut Context<'_, impl Io>, map: &ClusterMap) {
    let me = cx.me.id;
    for (pg, config) in &map.pgs {
        let target = target_of(map, *pg, config);
        if let Some(index) = cx.groups.find(*pg) {
            cx.groups[index].wanted.target = target;
            claim::handle_config(cx, index, config);
            continue;
        }
        let modulus = cx.disk.store.pg_modulus(*pg).or_else(|| map.modulus_of(*pg)).unwrap_or_default();
        let group = Group::new(*pg, modulus, config.clone(), target, config.primary == me, cx.now);
        // What it held in an earlier life is to be deleted, when it is no member any more.
        if group.has_member(me) || cx.disk.store.pg_position(*pg).is_some() {
            cx.groups.add(group);
        }
    }
}

/// Looks whether this OSD left groups whose data it still has.
pub(crate) fn find_left(cx: &mut Context<'_, impl Io>, deletions: &mut Deletions) {
    let leaves_early = cx.breaks(Sabotage::LeaveEarly);
    for group in cx.groups.iter_mut() {
        // Of a pool that the map does not show nothing says how many copies there must be elsewhere.
        if !cx.volumes.map.pools.contains_key(&group.pg.pool) {
            continue;
        }
        let is_member = group.has_member(cx.me.id);
        match group.state() {
            State::Left if is_member => {
                group.standing.obeys();
                cx.journal.pass(Milestone::LeftGroupReturns);
            }
            State::Replica | State::Learner
                if !is_member && (group.is_whole_in(&group.config.in_sync) || leaves_early) =>
            {
                // Who was activated in an epoch may be a learner of it that this map does not show yet: only a
                // later epoch without it tells that it is none.
                let expected = group.standing.following().and_then(|following| following.expected);
                let is_over = group.config.epoch > group.epoch
                    || group.config.epoch == group.epoch && expected.is_none();
                if is_over && !may_count(&cx.disk.store, group) && group.query.is_none() {
                    leave(group, cx.journal, deletions);
                }
            }
            _ => {}
        }
    }
}

/// Whether the registry may yet take an epoch that counts on what the drive holds of a group that it shows no member of here: the
/// one behind that in which this OSD was brought up to date, whoever asked for it. After a start the store alone tells which
/// that was. A store that knows a later epoch than the registry tells that this was set back, and what it says of who holds the
/// group may be long over.
fn may_count(store: &Store, group: &Group) -> bool {
    let Some((epoch, sequence)) = store.pg_position(group.pg) else { return false };
    // Who began to delete it in this epoch noted that it has nothing. Who was brought up to date in it has its mark at least.
    let has_nothing = sequence == Sequence(0) && store.pg_is_incomplete(group.pg);
    epoch > group.config.epoch || epoch == group.config.epoch && !has_nothing
}

/// This OSD is no member of a group any more that it follows: what it holds of it goes.
fn leave(group: &mut Group, journal: &mut Journal, deletions: &mut Deletions) {
    group.standing.left();
    // What it may have told a primary of what it holds will not be true any more.
    group.leader = None;
    journal.pass(Milestone::LeftGroup);
    deletions.are_due = true;
}

/// A configuration in which nobody is a member.
fn of_nobody(epoch: Epoch) -> PgConfig {
    PgConfig { epoch, primary: NOBODY, in_sync: Vec::new(), ..PgConfig::default() }
}

/// Leaves the groups of pools that were removed, those too that the drive holds something of and no map shows any more: nobody
/// is a member of them, whatever is known of their volumes. Of a pool that the map shows neither as there nor as removed nothing
/// goes: the registry was set back to a time before the pool was made, and here may be all there is of its volumes.
pub(crate) fn leave_removed(cx: &mut Context<'_, impl Io>, deletions: &mut Deletions) {
    let map = cx.volumes.map.clone();
    if map.removed_pools.is_empty() || cx.breaks(Sabotage::ForgetTombstones) {
        return;
    }
    let is_removed = |pg: PgId| map.removed_pools.contains_key(&pg.pool);
    let store = &cx.disk.store;
    let mut held: Vec<PgId> = store.groups().filter(|pg| is_removed(*pg)).collect();
    held.sort_unstable();
    // Of what was left before the logs are there still.
    deletions.are_due |= !held.is_empty();
    held.retain(|pg| cx.groups.find(*pg).is_none());
    for pg in held {
        let modulus = store.pg_modulus(pg).unwrap_or_default();
        let (epoch, _) = store.pg_position(pg).unwrap_or_default();
        cx.groups.add(Group::new(pg, modulus, of_nobody(epoch), Vec::new(), false, cx.now));
    }
    for index in cx.groups.indices() {
        let group = &mut cx.groups[index];
        if group.has_left() || !is_removed(group.pg) {
            continue;
        }
        group.wanted.target.clear();
        // An epoch that this map does not show may have begun before the pool was removed.
        let epoch = Epoch(group.config.epoch.max(group.epoch).0 + 1);
        claim::handle_config(cx, index, &of_nobody(epoch));
        let group = &mut cx.groups[index];
        // Nobody is told any more where it stands.
        group.query = None;
        leave(group, cx.journal, deletions);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::group::PendingQuery;
    use crate::group::learner::Learner;
    use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME, map};
    use base::map::RemovedPool;
    use base::{Instant, LinkId, ObjectKey, PoolId, Sequence};
    use std::sync::Arc;

    const ME: OsdId = OsdId(0);

    #[test]
    fn who_is_not_in_the_target_goes_when_the_whole_target_is_in_sync() {
        let mut pair = Pair::new();
        let group = &mut pair.alone.osd.shared.groups[0];
        (group.wanted.target, group.wanted.size, group.wanted.min_size) = (vec![OsdId(0)], 1, 1);
        assert!(matches!(next_step(&pair.alone.osd.shared.groups[0], OsdId(0)), Some(Step::DropSurplus)));
        // A configuration lasts for some seconds first.
        for _ in 0..4 {
            pair.run();
        }
        assert_eq!(pair.alone.osd.shared.groups[0].config.in_sync, [OsdId(0)]);
    }

    #[test]
    fn a_group_is_handed_over_to_the_first_of_its_target_and_not_while_somebody_catches_up() {
        let mut pair = Pair::new();
        let me = OsdId(0);
        let group = &mut pair.alone.osd.shared.groups[0];
        group.wanted.target = vec![REPLICA, me];
        assert!(matches!(next_step(group, me), Some(Step::HandOver)));
        group.wanted.target = vec![REPLICA, me, OsdId(2)];
        assert!(next_step(group, me).is_none(), "one of the target is not in sync");
    }

    fn group(pair: &mut Pair) -> &mut Group {
        &mut pair.alone.osd.shared.groups[0]
    }

    /// The next step of the pair's group, and whether that is to hand it over.
    fn step(pair: &Pair) -> Option<bool> {
        next_step(&pair.alone.osd.shared.groups[0], ME).map(|step| matches!(step, Step::HandOver))
    }

    #[test]
    fn a_group_that_lies_where_it_shall_has_no_step_left_but_to_forget_its_learners() {
        let mut pair = Pair::new();
        let other = OsdId(2);
        assert_eq!(step(&pair), None);
        group(&mut pair).config.learners = vec![other];
        assert_eq!(step(&pair), Some(false));
        let (link, heard_at) = (LinkId(50), Instant::default());
        let learner = Learner { osd: other, link, session: 1, heard_at, joined: None };
        group(&mut pair).learning_mut().unwrap().learners.push(learner);
        assert_eq!(step(&pair), None, "it is being brought up to date");
        group(&mut pair).learning_mut().unwrap().learners.clear();
        group(&mut pair).config.learners.clear();
        group(&mut pair).learning_mut().unwrap().asked.insert(REPLICA);
        assert_eq!(step(&pair), None, "it is in sync by now");
        group(&mut pair).learning_mut().unwrap().asked.insert(other);
        assert_eq!(step(&pair), Some(false));
        group(&mut pair).learning_mut().unwrap().asked.clear();
        group(&mut pair).wanted.target = vec![REPLICA, ME];
        assert_eq!(step(&pair), Some(true));
        pair.alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        assert_eq!(step(&pair), None, "nobody is served");
    }

    #[test]
    fn a_group_of_which_the_map_does_not_say_where_it_shall_lie_stays_where_it_is() {
        let mut map = map(1);
        let (in_sync, learners) = ([1, 2].map(OsdId).to_vec(), vec![OsdId(3)]);
        let config = PgConfig { primary: OsdId(2), in_sync, learners, ..PgConfig::default() };
        assert_eq!(target_of(&map, PG, &config), [ME]);
        map.targets.insert(PG, Vec::new());
        assert_eq!(target_of(&map, PG, &config), [2, 1, 3].map(OsdId));
        map.targets.remove(&PG);
        assert_eq!(target_of(&map, PG, &config), [2, 1, 3].map(OsdId));
    }

    #[test]
    fn there_is_something_to_do_if_whoever_shall_hold_a_group_can_follow() {
        let mut pair = Pair::new();
        let is_to_move = |pair: &mut Pair, target: [OsdId; 2]| {
            pair.alone.osd.shared.groups[0].wanted.target = target.to_vec();
            pair.alone.with(|_, cx| has_work(cx, &cx.groups[0]))
        };
        assert!(!is_to_move(&mut pair, [ME, REPLICA]) && is_to_move(&mut pair, [REPLICA, ME]));
        pair.alone.osd.shared.groups[0].config.primary = REPLICA;
        assert!(!is_to_move(&mut pair, [REPLICA, ME]), "another one leads it");
        pair.alone.osd.shared.groups[0].config.primary = ME;
        let map = Arc::make_mut(&mut pair.alone.osd.shared.volumes.map);
        map.osds.get_mut(&REPLICA).unwrap().address = None;
        assert!(!is_to_move(&mut pair, [REPLICA, ME]), "it does not reach the registry");
    }

    #[test]
    fn the_next_step_is_taken_when_the_configuration_has_lasted_and_is_asked_for_at_once() {
        let moment = Duration::from_nanos(1);
        for (lasted, pause, is_due) in [
            (SETTLE - moment, Duration::ZERO, false),
            (SETTLE, moment, false),
            (SETTLE, Duration::ZERO, true),
        ] {
            for target in [vec![REPLICA, ME], vec![ME]] {
                let mut pair = Pair::new();
                let group = &mut pair.alone.osd.shared.groups[0];
                let (epoch, is_handed_over) = (Epoch(group.epoch.0 + 1), target.len() == 2);
                (group.wanted.size, group.wanted.min_size) = (target.len(), target.len());
                group.wanted.target.clone_from(&target);
                let now = pair.alone.now;
                pair.alone.with(|_, cx| {
                    let pauses = &mut cx.groups[0].pauses;
                    (pauses.config_seen_at, pauses.hand_over_after) = (now - lasted, now + pause);
                    advance(cx);
                });
                let asked = std::mem::take(&mut pair.alone.io.proposals);
                let group = &pair.alone.osd.shared.groups[0];
                assert_eq!(group.is_active(), !is_due);
                if !is_due {
                    assert!(asked.is_empty(), "{lasted:?} {pause:?}");
                    continue;
                }
                let in_sync = if is_handed_over { vec![ME, REPLICA] } else { vec![ME] };
                let config = PgConfig { epoch, primary: target[0], in_sync, ..PgConfig::default() };
                assert_eq!(asked, [(PG, config)]);
                assert_eq!(group.pauses.handed_over_at, is_handed_over.then_some(now));
            }
        }
    }

    #[test]
    fn no_step_is_taken_while_the_registry_is_away() {
        for target in [vec![REPLICA, ME], vec![ME]] {
            let mut pair = Pair::new();
            pair.alone.io.is_registry_away = true;
            pair.turns(250);
            let (size, min_size) = (target.len(), target.len());
            group(&mut pair).wanted = Wanted { target: target.clone(), size, min_size };
            pair.turns(100);
            assert!(group(&mut pair).is_active() && group(&mut pair).config.in_sync.len() == 2);
            pair.alone.io.is_registry_away = false;
            pair.turns(10);
            let config = &group(&mut pair).config;
            assert_eq!((config.primary, config.in_sync.len()), (target[0], target.len()));
        }
    }

    /// The map comes as it is changed.
    fn comes(alone: &mut Alone, change: impl FnOnce(&mut ClusterMap)) {
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        change(&mut map);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    }

    #[test]
    fn of_the_groups_that_a_map_shows_those_are_known_that_this_osd_holds_or_shall_hold() {
        let mut alone = Alone::new();
        let other = OsdId(1);
        comes(&mut alone, |map| {
            map.targets.insert(PG, vec![ME, other]);
            for (index, target) in [(1, vec![other]), (2, vec![other, ME])] {
                let (pg, epoch) = (PgId { index, ..PG }, Epoch(3));
                let config = PgConfig { epoch, primary: other, in_sync: vec![other], ..PgConfig::default() };
                map.pgs.insert(pg, config);
                map.targets.insert(pg, target);
            }
        });
        let known = alone.osd.shared.groups.iter();
        let known: Vec<_> = known.map(|group| (group.pg.index, group.wanted.target.clone())).collect();
        assert_eq!(known, [(0, vec![ME, other]), (2, vec![other, ME])]);
        assert_eq!(alone.osd.shared.groups[1].state(), State::Replica);
    }

    #[test]
    fn a_group_is_left_when_it_is_whole_without_this_osd_in_an_epoch_that_it_is_surely_none_of() {
        // The epoch that the map shows, behind what the drive knows of; that which is obeyed, behind that; whether it has begun
        // here; and how many members the group shall have.
        for (shown, obeyed, has_begun, size, is_to_leave) in [
            (3, -1, true, 1, true),
            (3, 0, false, 1, true),
            (3, 0, true, 1, false),
            (3, 1, false, 1, false),
            (3, -1, false, 2, false),
            // The registry may yet take the epoch in which it is in sync, whoever proposed that.
            (0, 0, false, 1, false),
            (1, 0, false, 1, true),
            (-1, 0, false, 1, false),
        ] {
            let mut alone = Alone::new();
            alone.write(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 });
            let (known, _) = alone.osd.store().pg_position(PG).unwrap();
            let later = |epoch: Epoch, by: i64| Epoch((i64::from(epoch.0) + by) as u32);
            let other = OsdId(1);
            alone.with(|router, cx| {
                epoch::end(cx, 0, "a test");
                let group = &mut cx.groups[0];
                group.standing.obeys();
                if has_begun {
                    group.standing.was_activated(Sequence(7), false);
                }
                let (epoch, in_sync) = (later(known, shown), vec![other]);
                group.config = PgConfig { epoch, primary: other, in_sync, ..PgConfig::default() };
                group.epoch = later(epoch, obeyed);
                group.leader = Some(other);
                group.wanted = Wanted { target: vec![other, ME], size, min_size: 1 };
                find_left(cx, &mut router.deletions);
                assert!(!cx.groups[0].has_left(), "it is a member still");
                cx.groups[0].wanted.target = vec![other];
                // The registry was set back to before there was that pool.
                let map = std::mem::take(&mut cx.volumes.map);
                find_left(cx, &mut router.deletions);
                assert!(!cx.groups[0].has_left(), "nothing tells of its pool");
                cx.volumes.map = map;
                find_left(cx, &mut router.deletions);
                let group = &cx.groups[0];
                let is_left = [group.has_left(), group.leader.is_none(), router.deletions.are_due];
                assert_eq!(is_left, [is_to_leave; 3], "{shown} {obeyed} {has_begun} {size}");
                find_left(cx, &mut router.deletions);
                assert_eq!(cx.groups[0].has_left(), is_to_leave);
                // It is to hold the group again.
                cx.groups[0].wanted.target.push(ME);
                find_left(cx, &mut router.deletions);
                assert_eq!(cx.groups[0].state(), State::Replica);
            });
            let returned = alone.passed("placement: is a member again before it deleted everything");
            assert_eq!(returned, u64::from(is_to_leave));
        }
    }

    #[test]
    fn who_began_to_delete_goes_on_in_the_same_epoch_after_a_start_or_when_it_was_to_stay_for_a_moment() {
        type Interruption = fn(&mut Alone);
        let interruptions: [Interruption; 2] = [
            |alone| alone.restart(ClusterMap::clone(&alone.osd.shared.volumes.map)),
            |alone| {
                comes(alone, |map| map.targets.get_mut(&PG).unwrap().push(ME));
                alone.run();
                assert_eq!(alone.osd.shared.groups[0].state(), State::Replica);
                comes(alone, |map| map.targets.get_mut(&PG).unwrap().truncate(1));
            },
        ];
        for interrupt in interruptions {
            let mut alone = Alone::new();
            for object in 0..100 {
                alone.write(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object });
            }
            comes(&mut alone, |map| {
                let (epoch, primary) = (Epoch(9), OsdId(1));
                let config = PgConfig { epoch, primary, in_sync: vec![primary], ..PgConfig::default() };
                map.pgs.insert(PG, config);
                map.targets.insert(PG, vec![primary]);
            });
            let left = |alone: &Alone| alone.osd.store().objects().count();
            while left(&alone) == 100 {
                alone.turn();
            }
            assert!(left(&alone) > 0);
            interrupt(&mut alone);
            alone.run();
            assert_eq!(left(&alone), 0);
        }
    }

    #[test]
    fn of_several_pools_only_the_groups_of_those_that_were_removed_are_left() {
        let other = PgId { pool: PoolId(2), index: 0 };
        for (shown, obeyed) in [(0, 3), (3, 0)] {
            let mut alone = Alone::new();
            comes(&mut alone, |map| {
                map.pools.insert(other.pool, map.pools[&PG.pool].clone());
                map.pgs.insert(other, map.pgs[&PG].clone());
                map.targets.insert(other, vec![ME]);
            });
            alone.run();
            assert!(alone.osd.shared.groups.iter().all(Group::is_active));
            let group = &mut alone.osd.shared.groups[0];
            let epoch = group.epoch;
            (group.config.epoch, group.epoch) = (Epoch(epoch.0 + shown), Epoch(epoch.0 + obeyed));
            group.query = Some(PendingQuery { link: LinkId(50), epoch });
            comes(&mut alone, |map| {
                map.pools.remove(&PG.pool);
                map.pgs.remove(&PG);
                map.targets.remove(&PG);
                map.volumes.clear();
                let removed = RemovedPool { name: "pool".to_owned(), owed_by: vec![ME] };
                map.removed_pools.insert(PG.pool, removed);
            });
            let group = &alone.osd.shared.groups[0];
            assert!(group.has_left() && group.query.is_none() && group.members().next().is_none());
            assert_eq!((group.config.epoch, group.config.primary), (Epoch(epoch.0 + 4), NOBODY));
            assert!(alone.osd.shared.groups[1].is_active());
        }
    }
}
