//! Who asks for which epoch and when, and what becomes of the answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::epoch::CLAIM_PAUSE;
use crate::group::Wanted;
use crate::group::learner::Promotion;
use crate::group::role::{Change, Standing};
use crate::links::{Awaited, ToLearner};
use crate::testing::{Alone, PG, Pair, REPLICA};
use base::map::{Admission, ClusterMap, OsdInfo};
use base::{Instant, LinkId, Sequence};
use std::net::SocketAddr;
use std::sync::Arc;
use wire::{Lease, Message};

const ME: OsdId = OsdId(0);
const MOMENT: Duration = Duration::from_nanos(1);

fn ids(osds: &[u32]) -> Vec<OsdId> {
    osds.iter().copied().map(OsdId).collect()
}

/// What the map shows of an OSD that the registry hears from.
fn up() -> OsdInfo {
    OsdInfo { address: Some(([127, 0, 0, 1], 7000).into()), ..OsdInfo::default() }
}

fn map_of(alone: &mut Alone) -> &mut ClusterMap {
    Arc::make_mut(&mut alone.osd.shared.volumes.map)
}

/// An OSD that leads a group with these others in sync, and the link of each is 10 and its number. Some of them are there,
/// and said something just now; the rest have been away for a while.
fn leads_with(others: &[u32], there: &[u32]) -> Alone {
    let mut alone = Alone::new();
    let mut in_sync = vec![ME];
    for osd in ids(others) {
        map_of(&mut alone).osds.insert(osd, up());
        in_sync.push(osd);
    }
    let group = &mut alone.osd.shared.groups[0];
    group.wanted = Wanted { target: in_sync.clone(), size: in_sync.len(), min_size: 2 };
    group.config.in_sync = in_sync;
    for osd in ids(there) {
        alone.connect(osd);
    }
    alone.with(|_, cx| {
        cx.presence.find_neighbours(cx.me.id, cx.groups);
        cx.presence.look_around(cx.links, &cx.volumes.map, cx.now);
    });
    alone.now = alone.now + Duration::from_secs(1);
    for osd in ids(there) {
        alone.connect(osd);
    }
    alone
}

/// The configuration that an OSD would ask for.
fn next(alone: &mut Alone) -> Result<PgConfig, String> {
    alone.with(|_, cx| next_config(cx, 0))
}

/// Nothing was heard of an OSD for long, although it is there.
fn is_unheard(alone: &mut Alone, osd: u32) {
    let link = LinkId(10 + u64::from(osd));
    alone.osd.shared.links.osd_mut(link).unwrap().heard_at = Instant::default();
}

#[test]
fn an_epoch_begins_with_all_who_are_there_and_without_who_has_been_away_for_a_while() {
    let mut alone = leads_with(&[1, 2, 3], &[1, 2, 3]);
    let before = alone.osd.shared.groups[0].config.epoch;
    is_unheard(&mut alone, 1);
    let config = next(&mut alone).unwrap();
    assert_eq!((config.epoch, config.primary), (Epoch(before.0 + 1), ME));
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1, 2, 3]), vec![]));
    let mut alone = leads_with(&[1, 2, 3], &[1, 2]);
    let config = next(&mut alone).unwrap();
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1, 2]), ids(&[3])));
    // Who loses one after the other may be cut off itself: it makes sure of those who are left.
    is_unheard(&mut alone, 1);
    let told = next(&mut alone).unwrap_err();
    assert!(told.contains("osd.3") && told.contains("nor osd.1 just now"), "{told}");
    // Who went a moment ago may be back in another one, whoever else has been away.
    let mut alone = leads_with(&[1, 2, 3], &[1, 2]);
    alone.osd.shared.links.forget(LinkId(12));
    let told = next(&mut alone).unwrap_err();
    assert!(told.contains("osd.2 and osd.3") && told.contains("start its node"), "{told}");
}

#[test]
fn too_few_go_on_only_without_those_who_were_taken_out() {
    let scenes: [(&[u32], &[u32], usize, bool); 5] = [
        (&[1, 2], &[], 2, true),
        (&[1, 2], &[], 3, false),
        (&[1, 2], &[2], 3, true),
        (&[1, 2, 3], &[2], 3, false),
        (&[1, 2, 3], &[2, 3], 3, true),
    ];
    for (others, out, min_size, goes_on) in scenes {
        let mut alone = leads_with(others, &[1]);
        for osd in ids(out) {
            map_of(&mut alone).osds.get_mut(&osd).unwrap().admission = Admission::Out;
        }
        alone.osd.shared.groups[0].wanted.min_size = min_size;
        match next(&mut alone) {
            Ok(config) => assert!(goes_on && config.in_sync == ids(&[0, 1]), "{others:?}: {config:?}"),
            Err(told) => assert!(!goes_on && told.contains("2 of at least 3 members"), "{others:?}: {told}"),
        }
    }
}

#[test]
fn only_who_is_there_is_said_to_be_cut_off_from_the_registry() {
    for there in [vec![1], vec![]] {
        let mut alone = leads_with(&[1, 2], &there);
        for osd in ids(&[1, 2]) {
            map_of(&mut alone).osds.get_mut(&osd).unwrap().address = None;
        }
        let told = next(&mut alone).unwrap_err();
        assert!(told.starts_with("osd.1 and osd.2 cannot be reached"), "{told}");
        assert_eq!(told.contains("the registry"), !there.is_empty(), "{told}");
    }
}

#[test]
fn who_is_unfit_is_left_out_and_who_has_caught_up_is_taken_in_if_it_can_follow_and_is_wanted() {
    let mut alone = leads_with(&[1, 2], &[1, 2]);
    let change = |alone: &mut Alone, change| {
        alone.osd.shared.groups[0].standing.primary_mut().unwrap().change = change;
    };
    change(&mut alone, Change::LeaveOut(OsdId(2)));
    let config = next(&mut alone).unwrap();
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1]), ids(&[2])));
    alone.osd.shared.groups[0].config.in_sync = ids(&[0, 1]);
    let promotion = Promotion { osd: OsdId(2), link: LinkId(12), through: 0, since: alone.now };
    change(&mut alone, Change::TakeIn(promotion));
    let config = next(&mut alone).unwrap();
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1, 2]), vec![]));
    // A later epoch came, of which this OSD did not hear that it asked for it.
    alone.osd.shared.groups[0].config.epoch.0 += 1;
    let config = next(&mut alone).unwrap();
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1]), ids(&[2])));
    alone.osd.shared.groups[0].config.epoch.0 -= 1;
    map_of(&mut alone).osds.get_mut(&OsdId(2)).unwrap().address = None;
    let config = next(&mut alone).unwrap();
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1]), ids(&[2])));
    map_of(&mut alone).osds.insert(OsdId(2), up());
    alone.osd.shared.groups[0].wanted.target = ids(&[0, 1]);
    let config = next(&mut alone).unwrap();
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1]), vec![]));
}

#[test]
fn who_takes_over_goes_on_without_the_primary_although_that_is_there() {
    let mut alone = leads_with(&[1, 2], &[1, 2]);
    alone.osd.shared.groups[0].config.primary = OsdId(1);
    let config = next(&mut alone).unwrap();
    assert_eq!((config.primary, config.in_sync, config.learners), (ME, ids(&[0, 2]), ids(&[1])));
    // The primary is one of those who may come back.
    alone.osd.shared.groups[0].wanted.min_size = 3;
    let told = next(&mut alone).unwrap_err();
    assert!(told.starts_with("osd.1 cannot be reached, and 2 of at least 3"), "{told}");
    map_of(&mut alone).osds.get_mut(&OsdId(1)).unwrap().admission = Admission::Out;
    assert!(next(&mut alone).is_ok());
    is_unheard(&mut alone, 2);
    let told = next(&mut alone).unwrap_err();
    assert!(told.contains("nor osd.2 just now"), "{told}");
}

#[test]
fn former_members_are_named_until_the_whole_target_is_in_sync() {
    let mut alone = leads_with(&[1, 2], &[1, 2]);
    map_of(&mut alone).osds.insert(OsdId(5), up());
    let group = &mut alone.osd.shared.groups[0];
    (group.wanted.target, group.config.learners) = (ids(&[0, 1, 3]), ids(&[5, 6]));
    let mut beside = |in_sync: &[u32]| alone.with(|_, cx| learners_beside(cx, 0, &ids(in_sync)));
    assert_eq!(beside(&[0, 1]), ids(&[3, 2, 5]), "no map shows the last one any more");
    assert_eq!(beside(&[0, 1, 3]), ids(&[]));
    assert_eq!(beside(&[0, 1, 2, 3]), ids(&[]));
}

#[test]
fn a_claim_is_counted_by_what_it_changes() {
    let before = PgConfig { primary: ME, in_sync: ids(&[0, 1, 2]), ..PgConfig::default() };
    let mut group = Group::new(PG, 1, before, ids(&[0, 1]), true, Instant::default());
    let kind = |group: &Group, in_sync: &[u32]| {
        kind_of(group, &PgConfig { in_sync: ids(in_sync), ..PgConfig::default() }, ME)
    };
    assert_eq!(kind(&group, &[0, 1, 2]), Milestone::ClaimSame);
    assert_eq!(kind(&group, &[0, 1]), Milestone::ClaimSurplusDropped);
    assert_eq!(kind(&group, &[0, 2]), Milestone::ClaimMemberRemoved);
    assert_eq!(kind(&group, &[0]), Milestone::ClaimMemberRemoved);
    assert_eq!(kind(&group, &[0, 1, 3]), Milestone::ClaimMemberTakenIn);
    group.standing.primary_mut().unwrap().change = Change::LeaveOut(OsdId(2));
    assert_eq!(kind(&group, &[0, 1]), Milestone::ClaimUnfit);
    assert_eq!(kind(&group, &[0, 1, 2]), Milestone::ClaimSame);
    group.config.primary = OsdId(1);
    assert_eq!(kind(&group, &[0, 1, 2]), Milestone::ClaimTakeOver);
}

/// An OSD that follows OSD 1 since just now, with these in sync. Whatever it promised in an earlier life is over.
fn follows(in_sync: &[u32]) -> Alone {
    // Another group it leads, alone.
    let mut alone = Alone::with_groups(2);
    alone.now = alone.now + Duration::from_secs(10);
    let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
    map.revision += 1;
    for osd in ids(in_sync) {
        map.osds.entry(osd).or_insert_with(up);
    }
    let config = map.pgs.get_mut(&PG).unwrap();
    (config.epoch, config.primary) = (Epoch(config.epoch.0 + 1), OsdId(1));
    config.in_sync = ids(in_sync);
    map.targets.insert(PG, ids(in_sync));
    alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    assert_eq!(alone.osd.shared.groups[0].state(), State::Replica);
    alone
}

#[test]
fn replicas_take_over_one_after_the_other_when_nothing_binds_them_to_the_primary_any_more() {
    let mut alone = follows(&[2, 1, 3, 0, 4]);
    let may = |alone: &mut Alone, at: Instant| {
        alone.now = at;
        alone.with(|_, cx| may_take_over(cx, 0))
    };
    // Two are before it.
    let stagger = 2 * TAKEOVER_STAGGER;
    let free_at = alone.now + NEW_PRIMARY_PATIENCE;
    assert!(!may(&mut alone, free_at - MOMENT) && !may(&mut alone, free_at));
    assert!(!may(&mut alone, free_at + stagger - MOMENT) && may(&mut alone, free_at + stagger));
    // What it promises binds it, and then it lets the others go first once more.
    let promised_at = free_at + stagger;
    alone.osd.shared.presence.leases.promise(OsdId(1), promised_at, 900);
    assert!(!may(&mut alone, promised_at));
    let free_at = promised_at + Duration::from_secs(1);
    assert!(!may(&mut alone, free_at) && !may(&mut alone, free_at + stagger - MOMENT));
    assert!(may(&mut alone, free_at + stagger));
    // Who led by itself until now stands in nobody's place, and is bound all the same.
    alone.osd.shared.groups[0].standing = Standing::new(true);
    assert!(may(&mut alone, free_at));
    alone.osd.shared.presence.leases.promise(OsdId(1), free_at, 900);
    assert!(!may(&mut alone, free_at));
}

#[test]
fn who_takes_over_ends_the_connection_of_the_primary_before_it_asks_for_the_epoch() {
    let mut alone = follows(&[1, 0]);
    let primary = alone.connect(OsdId(1));
    alone.now = alone.now + NEW_PRIMARY_PATIENCE;
    alone.with(|_, cx| advance(cx, 0));
    assert_eq!(alone.osd.shared.groups[0].state(), State::Candidate);
    assert_eq!(alone.io.closed, [primary]);
    assert!(alone.osd.shared.links.get(primary).is_none());
    assert_eq!(alone.passed("claim: takes over"), 1);
    let (pg, config) = alone.io.proposals.remove(0);
    assert_eq!((pg, config.primary, config.in_sync), (PG, ME, ids(&[0])));
    // Where it comes to nothing it follows as before, and does not ask again at once.
    alone.osd.handle_proposal(alone.now, PG, None, &mut alone.io);
    let group = &alone.osd.shared.groups[0];
    assert_eq!(group.state(), State::Replica);
    assert_eq!(group.pauses.claim_after, alone.now + CLAIM_PAUSE_LONG);
}

/// Whether a primary that asks for a lease gets one.
fn is_promised(alone: &mut Alone, primary: LinkId) -> bool {
    let asked = Lease { ttl_ms: 900, stamp: 5, ..Lease::default() }.encode();
    alone.osd.handle_bytes(alone.now, primary, &asked, &mut alone.io).unwrap();
    let granted = alone.io.told(primary, |message| match message {
        Message::Lease(lease) => (lease.granted_ttl_ms > 0).then_some(()),
        _ => None,
    });
    !granted.is_empty()
}

/// How long after it lost its way to the registry an OSD is not expected back in a moment.
const LOST_FOR: Duration = Duration::from_secs(3);

/// An OSD that follows OSD 1, which says that it is there and has just lost its way to the registry, with OSD 2 beside it. The
/// link to the first, and when that was.
fn follows_who_is_cut_off() -> (Alone, LinkId, Instant) {
    let mut alone = follows(&[1, 0, 2]);
    let link = alone.connect(OsdId(1));
    let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
    map.revision += 1;
    map.osds.get_mut(&OsdId(1)).unwrap().address = None;
    map.pools.get_mut(&PG.pool).unwrap().min_size = 2;
    alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    alone.with(|_, cx| cx.presence.look_around(cx.links, &cx.volumes.map, cx.now));
    let now = alone.now;
    (alone, link, now)
}

/// So much later, when the other member has said something just now.
fn is_later(alone: &mut Alone, at: Instant) {
    alone.now = at;
    alone.connect(OsdId(2));
}

#[test]
fn who_does_not_reach_the_registry_is_promised_nothing_more_by_who_does() {
    let (mut alone, link, lost_at) = follows_who_is_cut_off();
    let silent_for = Duration::from_secs(5);
    for (passed, answers, promised) in [
        (LOST_FOR - MOMENT, false, true),
        (LOST_FOR, false, false),
        (silent_for, false, true),
        (silent_for, true, false),
    ] {
        is_later(&mut alone, lost_at + passed);
        if answers {
            alone.osd.handle_registry(alone.now);
        }
        assert_eq!(is_promised(&mut alone, link), promised, "after {passed:?}, registry answers: {answers}");
    }
    // It is back.
    map_of(&mut alone).osds.insert(OsdId(1), up());
    alone.with(|_, cx| cx.presence.look_around(cx.links, &cx.volumes.map, cx.now));
    assert!(is_promised(&mut alone, link));
}

#[test]
fn who_does_not_reach_the_registry_leads_on_where_nobody_could_take_over() {
    for is_other_up in [true, false] {
        let (mut alone, link, lost_at) = follows_who_is_cut_off();
        is_later(&mut alone, lost_at + LOST_FOR);
        if is_other_up {
            alone.osd.shared.groups[0].wanted.min_size = 3;
        } else {
            map_of(&mut alone).osds.get_mut(&OsdId(2)).unwrap().address = None;
        }
        assert!(is_promised(&mut alone, link), "{is_other_up}");
        // Those who are left are all there is once it was taken out.
        map_of(&mut alone).osds.get_mut(&OsdId(1)).unwrap().admission = Admission::Out;
        assert_eq!(is_promised(&mut alone, link), !is_other_up);
    }
    // Nor by who is not in sync.
    let (mut alone, link, lost_at) = follows_who_is_cut_off();
    is_later(&mut alone, lost_at + LOST_FOR);
    alone.osd.shared.groups[0].config.in_sync = ids(&[1, 2]);
    assert!(is_promised(&mut alone, link));
}

#[test]
fn who_does_not_reach_the_registry_leads_on_while_a_group_that_is_led_here_cannot_do_without_it() {
    let (mut alone, link, lost_at) = follows_who_is_cut_off();
    is_later(&mut alone, lost_at + LOST_FOR);
    let led_here = &mut alone.osd.shared.groups[1];
    led_here.config.in_sync = ids(&[0, 1]);
    led_here.wanted = Wanted { target: ids(&[0, 1]), size: 2, min_size: 2 };
    assert!(is_promised(&mut alone, link), "it would stop with the connection");
    alone.osd.shared.groups[1].wanted.min_size = 1;
    assert!(!is_promised(&mut alone, link));
}

#[test]
fn who_is_promised_nothing_more_is_replaced_when_nothing_binds_its_members_any_more() {
    let (mut alone, link, lost_at) = follows_who_is_cut_off();
    let refused_at = lost_at + LOST_FOR;
    // What it has given up for what it asks for now binds nobody.
    alone.osd.shared.presence.leases.promise(OsdId(1), refused_at - MOMENT, wire::LEASE_MS_MAX);
    is_later(&mut alone, refused_at);
    assert!(!is_promised(&mut alone, link));
    let free_at = refused_at + Duration::from_micros(956_250);
    for (at, is_replaced) in [(free_at - MOMENT, false), (free_at, true)] {
        is_later(&mut alone, at);
        alone.with(|_, cx| advance(cx, 0));
        assert_eq!(alone.io.closed.contains(&link), is_replaced);
        assert_eq!(alone.io.proposals.len(), usize::from(is_replaced));
    }
    let (pg, config) = alone.io.proposals.remove(0);
    assert_eq!((pg, config.primary, config.in_sync), (PG, ME, ids(&[0, 2])));
}

#[test]
fn epochs_are_ended_by_choice_only_while_the_registry_answers_and_for_some_groups_at_a_time() {
    let mut alone = Alone::with_groups(CHOICES_MAX as u32 + 1);
    let may = |alone: &mut Alone| alone.with(|_, cx| may_end_by_choice(cx));
    for index in 0..CHOICES_MAX as u32 {
        assert!(may(&mut alone), "{index} wait for an answer");
        alone.with(|_, cx| {
            end(cx, index, "a test");
            cx.groups[index].standing.claims();
        });
    }
    assert!(!may(&mut alone));
    let mut alone = Alone::new();
    alone.now = alone.now + Duration::from_secs(5);
    assert!(!may(&mut alone));
    alone.osd.handle_registry(alone.now);
    assert!(may(&mut alone));
}

#[test]
fn a_replica_that_cannot_take_over_goes_on_as_one() {
    for (min_size, fails) in [(2, false), (1, true)] {
        let mut alone = follows(&[1, 0]);
        let group = &mut alone.osd.shared.groups[0];
        group.wanted.min_size = min_size;
        group.standing.was_activated(Sequence(7), false);
        if fails {
            alone.osd.fail_drive(alone.now, "a test", &mut alone.io);
        }
        alone.now = alone.now + NEW_PRIMARY_PATIENCE;
        alone.with(|_, cx| advance(cx, 0));
        let standing = &alone.osd.shared.groups[0].standing;
        assert_eq!(standing.state(), State::Replica);
        assert_eq!(standing.following().and_then(|following| following.expected), Some(Sequence(7)));
        assert!(alone.io.proposals.is_empty());
    }
}

#[test]
fn who_is_not_in_sync_claims_nothing_even_if_nobody_else_is_left() {
    let mut alone = follows(&[1, 0]);
    alone.osd.shared.groups[0].config.in_sync = ids(&[1]);
    map_of(&mut alone).osds.get_mut(&OsdId(1)).unwrap().admission = Admission::Out;
    alone.now = alone.now + NEW_PRIMARY_PATIENCE;
    alone.with(|_, cx| advance(cx, 0));
    assert!(alone.io.proposals.is_empty());
}

#[test]
fn a_primary_whose_drive_failed_stops_and_says_what_to_do() {
    let mut alone = Alone::new();
    alone.osd.fail_drive(alone.now, "a test", &mut alone.io);
    alone.with(|_, cx| {
        end(cx, 0, "a test");
        cx.groups[0].pauses.claim_after = cx.now;
        advance(cx, 0);
    });
    let group = &alone.osd.shared.groups[0];
    assert_eq!(group.state(), State::Stopped);
    let trouble = group.summary().trouble.unwrap();
    assert!(trouble.contains("osd.0 failed") && trouble.contains("replace it"), "{trouble}");
    assert!(alone.io.proposals.is_empty());
}

#[test]
fn an_epoch_is_claimed_when_nothing_is_on_its_way_to_the_drive_any_more() {
    let mut alone = Alone::new();
    let before = alone.passed("claim: the same members");
    alone.with(|_, cx| {
        end(cx, 0, "a test");
        cx.groups[0].pauses.claim_after = cx.now;
        for (staged_count, proposals) in [(1, 0), (0, 1)] {
            cx.groups[0].staged_count = staged_count;
            advance(cx, 0);
            assert_eq!(cx.io.proposals.len(), proposals, "{staged_count} staged");
        }
    });
    assert_eq!(alone.passed("claim: the same members"), before + 1);
}

#[test]
fn an_epoch_waits_for_what_a_learner_was_sent_and_not_for_long() {
    let learner = OsdId(1);
    let settled = |alone: &mut Alone| alone.with(|_, cx| promotion_is_settled(cx, 0));
    let is_promoted = |alone: &Alone| alone.osd.shared.groups[0].standing.promotion().is_some();
    // Of three messages the learner has so many, and the first two count.
    for (acknowledged, is_settled) in [(0, false), (1, false), (2, true), (3, true)] {
        for is_there in [true, false] {
            let mut alone = Alone::new();
            let (since, link) = (alone.now, alone.connect(learner));
            let peer = alone.osd.shared.links.osd_mut(link).unwrap();
            let awaited = Awaited::Learner { group: 0, session: 1, sent: ToLearner::Entry };
            (0..3).for_each(|_| peer.sends(awaited));
            while peer.unacknowledged.pop_through(acknowledged).is_some() {}
            let promotion = Promotion { osd: learner, link, through: 2, since };
            let primary = alone.osd.shared.groups[0].standing.primary_mut().unwrap();
            primary.change = Change::TakeIn(promotion);
            if !is_there {
                alone.osd.shared.links.forget(link);
                assert!(settled(&mut alone) && !is_promoted(&alone), "nobody tells what it has");
                continue;
            }
            for at in [since, since + PROMOTION_MAX - MOMENT] {
                alone.now = at;
                assert_eq!(settled(&mut alone), is_settled, "{acknowledged}");
                assert!(is_promoted(&alone));
            }
            alone.now = since + PROMOTION_MAX;
            assert!(settled(&mut alone));
            assert_eq!(is_promoted(&alone), is_settled, "{acknowledged}");
            let learning = alone.osd.shared.groups[0].learning_mut().unwrap();
            let again = alone.now + LEARN_PAUSE_LONG;
            let may_try = |osd| [again - MOMENT, again].map(|at| learning.may_try(osd, at));
            let expected = [is_settled, true];
            assert_eq!(may_try(learner), expected, "{acknowledged}: it is not waited for again at once");
            assert_eq!(may_try(OsdId(9)), [true; 2], "and the others are");
        }
    }
}

/// An OSD that asked for the next epoch of its group, and what it asked for.
fn asks() -> (Alone, PgConfig) {
    let mut alone = Alone::new();
    alone.with(|_, cx| {
        end(cx, 0, "a test");
        cx.groups[0].pauses.claim_after = cx.now;
        advance(cx, 0);
    });
    let (_, config) = alone.io.proposals.remove(0);
    assert_eq!(alone.osd.shared.groups[0].state(), State::Claiming);
    (alone, config)
}

/// The registry answers that, a moment later.
fn is_answered(alone: &mut Alone, config: &PgConfig) {
    alone.now = alone.now + MOMENT;
    alone.osd.handle_proposal(alone.now, PG, Some(config.clone()), &mut alone.io);
}

#[test]
fn what_is_granted_is_the_epoch_that_is_obeyed_though_no_map_shows_it_yet() {
    let (mut alone, config) = asks();
    is_answered(&mut alone, &config);
    let group = &alone.osd.shared.groups[0];
    assert_eq!((group.epoch, &group.config), (config.epoch, &config));
    assert!(!group.is_shown);
    let pauses = group.pauses;
    assert_eq!((pauses.config_seen_at, pauses.hand_over_after), (alone.now, Instant::default()));
    alone.run();
    assert!(alone.osd.shared.groups[0].is_active());
    // An answer that nobody waits for, to whatever.
    let later = PgConfig { epoch: Epoch(config.epoch.0 + 1), ..config };
    is_answered(&mut alone, &later);
    alone.osd.handle_proposal(alone.now, PG, None, &mut alone.io);
    let group = &alone.osd.shared.groups[0];
    assert!(group.is_active() && group.epoch != later.epoch, "{group:?}");
}

#[test]
fn an_answer_that_names_an_epoch_that_was_obeyed_already_begins_none() {
    let (mut alone, _) = asks();
    let stands = alone.osd.shared.groups[0].config.clone();
    assert_eq!(stands.epoch, alone.osd.shared.groups[0].epoch);
    is_answered(&mut alone, &stands);
    assert_eq!(alone.osd.shared.groups[0].state(), State::Waiting);
    assert_eq!(alone.passed("claim: came to nothing"), 1);
}

#[test]
fn who_handed_a_group_over_follows_the_heir_by_the_newest_configuration_that_it_knows() {
    for is_newer in [true, false] {
        let (mut alone, config) = asks();
        let known = alone.osd.shared.groups[0].config.clone();
        let epoch = if is_newer { config.epoch } else { known.epoch };
        let answer = PgConfig { epoch, primary: OsdId(1), in_sync: ids(&[1, 0]), ..config };
        is_answered(&mut alone, &answer);
        let group = &alone.osd.shared.groups[0];
        assert_eq!(group.state(), State::Replica);
        assert_eq!(group.config, if is_newer { answer } else { known });
        assert_eq!(group.pauses.config_seen_at == alone.now, is_newer);
    }
}

#[test]
fn who_gets_a_group_back_a_short_while_after_it_handed_it_over_keeps_it_for_some_time() {
    for (passed, keeps_it) in [(HAND_OVER_FAILED - MOMENT, true), (HAND_OVER_FAILED, false)] {
        let (mut alone, config) = asks();
        alone.osd.shared.groups[0].pauses.handed_over_at = Some(alone.now + MOMENT);
        alone.now = alone.now + passed;
        is_answered(&mut alone, &config);
        let expected = if keeps_it { alone.now + HAND_OVER_PAUSE } else { Instant::default() };
        assert_eq!(alone.osd.shared.groups[0].pauses.hand_over_after, expected);
    }
}

#[test]
fn a_group_is_handed_over_by_an_epoch_in_which_the_heir_leads() {
    let mut alone = leads_with(&[1, 2], &[1, 2]);
    let before = alone.osd.shared.groups[0].config.epoch;
    alone.with(|_, cx| propose_primary(cx, 0, OsdId(1), ids(&[0, 1])));
    assert_eq!(alone.osd.shared.groups[0].state(), State::Claiming, "nobody is served meanwhile");
    let (pg, config) = alone.io.proposals.remove(0);
    assert_eq!((pg, config.epoch, config.primary), (PG, Epoch(before.0 + 1), OsdId(1)));
    assert_eq!((config.in_sync, config.learners), (ids(&[0, 1]), ids(&[2])));
}

#[test]
fn a_map_that_shows_a_claim_before_its_answer_comes_does_not_end_it_and_that_of_another_does() {
    let (mut alone, config) = asks();
    alone.with(|_, cx| handle_config(cx, 0, &config));
    assert_eq!(alone.osd.shared.groups[0].state(), State::Claiming);
    is_answered(&mut alone, &config);
    assert_eq!(alone.osd.shared.groups[0].epoch, config.epoch);
    alone.run();
    assert!(alone.osd.shared.groups[0].is_active());
    let later = PgConfig { epoch: Epoch(config.epoch.0 + 1), ..config };
    alone.with(|_, cx| handle_config(cx, 0, &later));
    let group = &alone.osd.shared.groups[0];
    assert_eq!(group.state(), State::Waiting);
    assert_eq!(group.pauses.claim_after, alone.now + CLAIM_PAUSE);
}

#[test]
fn a_replica_takes_what_it_expects_until_the_primary_of_a_newer_configuration_asks() {
    let mut alone = follows(&[1, 0, 2]);
    let before = alone.now;
    alone.now = before + Duration::from_secs(1);
    let group = &mut alone.osd.shared.groups[0];
    group.standing.was_activated(Sequence(7), false);
    group.standing.following_mut().unwrap().free_since = Some(before);
    let epoch = Epoch(group.config.epoch.0 + 1);
    let config = PgConfig { epoch, primary: OsdId(2), ..group.config.clone() };
    for _ in 0..2 {
        alone.with(|_, cx| handle_config(cx, 0, &config));
        let group = &alone.osd.shared.groups[0];
        let following = group.standing.following().unwrap();
        assert_eq!((following.expected, following.free_since), (Some(Sequence(7)), None));
        assert_eq!(group.config, config);
        assert_eq!(group.pauses.config_seen_at, before + Duration::from_secs(1), "once");
        alone.now = alone.now + Duration::from_secs(1);
    }
}

#[test]
fn who_says_nothing_any_more_is_waited_for_no_longer_than_its_lease_lasts() {
    let mut pair = Pair::new();
    for (turns, state) in [(60, State::Active), (60, State::Waiting)] {
        (0..turns).for_each(|_| pair.alone.turn());
        assert_eq!(pair.alone.osd.shared.groups[0].state(), state);
    }
    assert!(pair.alone.osd.shared.links.get(pair.link).is_some(), "its connection stands");
}

#[test]
fn a_member_may_take_five_seconds_to_say_where_it_stands() {
    let mut pair = Pair::new();
    pair.asks_its_members();
    let asked_at = pair.alone.now;
    pair.turns(250);
    assert_eq!(pair.alone.now.since(asked_at), QUERY_TIMEOUT);
    pair.alone.with(|_, cx| advance(cx, 0));
    assert_eq!(pair.alone.osd.shared.groups[0].state(), State::Querying);
    // It is looked at every tenth of a second.
    pair.turns(5);
    assert_eq!(pair.alone.osd.shared.groups[0].state(), State::Waiting);
    assert_eq!(pair.alone.passed("peering: a member does not say where it stands"), 1);
}

#[test]
fn a_group_that_lacks_a_member_says_whom_it_waits_for() {
    let mut pair = Pair::new();
    let (now, link) = (pair.alone.now, pair.link);
    pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
    pair.run();
    let trouble = pair.alone.osd.view().summaries().next().and_then(|summary| summary.trouble);
    let trouble = trouble.expect("it does not serve");
    assert!(trouble.contains(&REPLICA.to_string()) && trouble.contains("start its node"), "{trouble}");
    assert!(pair.alone.io.proposals.is_empty(), "too few are left for an epoch without it");
}

/// The map says where the replica listens, if the registry hears from it. It is there as ever.
fn is_heard_at(pair: &mut Pair, address: Option<SocketAddr>) {
    let mut map = (*pair.alone.osd.shared.volumes.map).clone();
    map.revision += 1;
    map.osds.get_mut(&REPLICA).unwrap().address = address;
    let now = pair.alone.now;
    pair.alone.osd.handle_map(now, Arc::new(map), &mut pair.alone.io);
}

#[test]
fn who_does_not_reach_the_registry_stays_for_the_epoch_and_is_not_counted_on_for_the_next() {
    let mut pair = Pair::new();
    is_heard_at(&mut pair, None);
    pair.turns(320);
    let group = &mut pair.alone.osd.shared.groups[0];
    assert!(group.is_active() && group.config.in_sync.len() == 2, "it answers: {group:?}");
    group.wanted.min_size = 1;
    pair.alone.with(|_, cx| end(cx, 0, "a test"));
    pair.turns(320);
    let group = &pair.alone.osd.shared.groups[0];
    assert!(group.is_active(), "nothing waits for it: {group:?}");
    assert_eq!(group.config.in_sync, [OsdId(0)]);
    assert_eq!(group.config.learners, [REPLICA]);
    assert!(group.learners().is_empty(), "it would not know whom to obey");
}

#[test]
fn a_group_that_needs_who_does_not_reach_the_registry_waits_and_says_so() {
    let mut pair = Pair::new();
    let address = pair.alone.osd.shared.volumes.map.osds[&REPLICA].address;
    is_heard_at(&mut pair, None);
    pair.alone.with(|_, cx| end(cx, 0, "a test"));
    pair.turns(320);
    let trouble = pair.alone.osd.view().summaries().next().and_then(|summary| summary.trouble);
    let trouble = trouble.expect("it does not serve");
    assert!(trouble.contains(&REPLICA.to_string()) && trouble.contains("the registry"), "{trouble}");
    assert!(pair.alone.io.proposals.is_empty());
    is_heard_at(&mut pair, address);
    pair.turns(80);
    assert!(pair.alone.osd.shared.groups[0].is_active());
}

#[test]
fn who_loses_the_registry_while_it_is_asked_is_not_waited_for() {
    let mut pair = Pair::new();
    pair.asks_its_members();
    is_heard_at(&mut pair, None);
    pair.turns(200);
    assert_eq!(pair.alone.osd.shared.groups[0].state(), State::Waiting);
}

#[test]
fn a_claim_that_comes_to_nothing_is_not_made_again_at_once() {
    let mut pair = Pair::new();
    pair.alone.with(|_, cx| {
        end(cx, 0, "a test");
        cx.groups[0].pauses.claim_after = cx.now;
        advance(cx, 0);
    });
    assert_eq!(pair.alone.io.proposals.len(), 1);
    let now = pair.alone.now;
    pair.alone.osd.handle_proposal(now, PG, None, &mut pair.alone.io);
    pair.alone.io.proposals.clear();
    pair.alone.with(|_, cx| advance(cx, 0));
    assert!(pair.alone.io.proposals.is_empty());
    assert_eq!(pair.alone.osd.shared.groups[0].state(), State::Waiting);
    let pause = pair.alone.osd.shared.groups[0].pauses.claim_after.since(now);
    assert_eq!(pause, CLAIM_PAUSE_LONG);
}

#[test]
fn who_shut_down_claims_nothing() {
    let mut pair = Pair::new();
    pair.alone.osd.begin_shutdown(&mut pair.alone.io);
    pair.alone.with(|_, cx| {
        cx.groups[0].pauses.claim_after = cx.now;
        advance(cx, 0);
    });
    assert!(pair.alone.io.proposals.is_empty());
}
