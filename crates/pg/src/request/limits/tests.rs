#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use super::*;
use crate::limits::WAITING_PER_LINK_MAX;
use crate::links::OsdLink;
use crate::links::access::{ClientLink, Credential};
use crate::testing::{Alone, PG, VOLUME};
use base::map::ClusterMap;
use base::{Access, BLOCK_BYTES, BlockRange, ClientId, Limit, ObjectKey, Principal, PublicKey, crc32c};
use base::{Limited, Limits, OsdId};
use std::sync::Arc;
use std::time::Duration;
use wire::{Allowance, KNOWS_LIMITS, Kind, Message};

const CLIENT: LinkId = LinkId(50);
const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
const HOME: OsdId = OsdId(1);

fn iops(per_second: u64) -> Limits {
    Limits { iops: Some(Limit { per_second, burst: 0 }), ..Limits::default() }
}

/// An OSD with a volume that has limits, and a client. The first few operations were saved up.
fn limited(limits: Limits) -> Alone {
    let mut alone = Alone::new();
    alone.write(KEY);
    set(&mut alone, limits);
    connect(&mut alone, CLIENT, None);
    alone
}

fn connect(alone: &mut Alone, link: LinkId, credential: Option<Credential>) {
    if let Some(credential) = credential.clone() {
        alone.osd.handle_accepted(link, Some(credential)).unwrap();
    }
    let client = ClientLink::new(ClientId(link.0), credential);
    alone.osd.shared.links.insert(link, Peer::Client(client));
}

fn set(alone: &mut Alone, limits: Limits) {
    change(alone, |map| map.volumes.get_mut(&VOLUME).unwrap().limits = limits);
}

fn change(alone: &mut Alone, change: impl FnOnce(&mut ClusterMap)) {
    let mut map = (*alone.osd.shared.volumes.map).clone();
    map.revision += 1;
    change(&mut map);
    alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
}

/// The bytes of a request: a read, or a write of that block.
fn request(alone: &Alone, number: u64, kind: Kind, block: u16) -> Vec<u8> {
    let request = Request { request: number, ..alone.request(&BlockRange::one(KEY, block)) };
    let data = [7; BLOCK_BYTES];
    match kind {
        Kind::Write => [&request.encode(kind)[..], &crc32c(&data).to_le_bytes(), &data].concat(),
        _ => request.encode(kind).to_vec(),
    }
}

fn sends(alone: &mut Alone, link: LinkId, bytes: &[u8]) -> usize {
    let Alone { osd, io, now } = alone;
    osd.handle_bytes(*now, link, bytes, io).unwrap().consumed
}

/// What the client was told of each request.
fn told(alone: &mut Alone, link: LinkId) -> Vec<(u64, Status)> {
    alone.io.told(link, |message| match message {
        Message::Reply(reply) => Some((reply.head.request, reply.head.status)),
        _ => None,
    })
}

/// How many operations are done in so many seconds, by a client that has so many of a kind under way.
fn done(alone: &mut Alone, kind: Kind, depth: u64, seconds: usize) -> usize {
    let (mut number, mut done) = (1_000_000, 0);
    for _ in 0..depth {
        number += 1;
        let bytes = request(alone, number, kind, number as u16 % 32);
        sends(alone, CLIENT, &bytes);
    }
    for _ in 0..200 * seconds {
        alone.passes(Duration::from_millis(5));
        for (request_number, status) in told(alone, CLIENT) {
            match status {
                Status::Ok => {
                    done += 1;
                    number += 1;
                    let bytes = request(alone, number, kind, number as u16 % 32);
                    sends(alone, CLIENT, &bytes);
                }
                Status::SendAgain => {
                    let bytes = request(alone, request_number, kind, request_number as u16 % 32);
                    sends(alone, CLIENT, &bytes);
                }
                Status::Throttled => {}
                other => panic!("{other:?}"),
            }
        }
    }
    done
}

#[test]
fn what_is_beyond_a_limit_waits_and_is_done_at_its_rate() {
    for kind in [Kind::Read, Kind::Write, Kind::Zero] {
        let mut alone = limited(iops(200));
        let done = done(&mut alone, kind, 64, 10);
        assert!((1_950..=2_050).contains(&done), "{kind:?}: {done} in ten seconds");
        let throttled =
            alone.osd.view().volume_traffic().find(|(volume, _)| *volume == VOLUME).unwrap().1.throttled;
        assert!((1_800..=2_200).contains(&throttled), "{throttled}");
    }
    assert!(done(&mut limited(Limits::default()), Kind::Read, 64, 2) > 1_000);
}

#[test]
fn writes_do_not_wait_behind_reads_nor_reads_behind_writes() {
    let few = Some(Limit { per_second: 1, burst: 0 });
    for (limits, slow, fast) in [
        (Limits { read_iops: few, ..Limits::default() }, Kind::Read, Kind::Write),
        (Limits { write_iops: few, ..Limits::default() }, Kind::Write, Kind::Read),
    ] {
        let mut alone = limited(limits);
        let bytes = request(&alone, 1, slow, 0).repeat(20);
        assert_eq!(sends(&mut alone, CLIENT, &bytes), bytes.len());
        alone.run();
        told(&mut alone, CLIENT);
        assert!(done(&mut alone, fast, 8, 2) > 200);
    }
}

#[test]
fn bytes_are_limited_as_operations_are() {
    let bandwidth = Some(Limit { per_second: 400 << 10, burst: 0 });
    let mut alone = limited(Limits { bandwidth, ..Limits::default() });
    let done = done(&mut alone, Kind::Read, 32, 10);
    assert!((950..=1_050).contains(&done), "{done} blocks in ten seconds");
    // What moves none is not.
    assert!(self::done(&mut alone, Kind::Zero, 8, 2) > 200);
}

#[test]
fn a_key_has_limits_of_its_own() {
    let mut alone = limited(Limits::default());
    let principal = Principal { limits: iops(30), ..Principal::new(PublicKey([5; 32]), Access::Admin) };
    change(&mut alone, |map| drop(map.principals.insert("tenant".to_owned(), principal.clone())));
    let (tenant, other) = (LinkId(60), LinkId(61));
    let credential = Credential { name: "tenant".into(), principal, seen_at: u64::MAX };
    connect(&mut alone, tenant, Some(credential));
    connect(&mut alone, other, None);
    // Those that move nothing: a tenant has few buffers in this scene.
    let bytes = request(&alone, 1, Kind::Zero, 0).repeat(50);
    for link in [tenant, other] {
        assert_eq!(sends(&mut alone, link, &bytes), bytes.len());
    }
    (0..400).for_each(|_| alone.passes(Duration::from_micros(2_500)));
    assert_eq!(told(&mut alone, other).len(), 50);
    let few = told(&mut alone, tenant).len();
    assert!((25..=35).contains(&few), "{few} in a second");
    // One that has both waits for both.
    set(&mut alone, iops(20));
    alone.run();
    told(&mut alone, tenant);
    sends(&mut alone, tenant, &bytes);
    (0..20).for_each(|_| alone.turn());
    let fewer = told(&mut alone, tenant).len();
    assert!((15..=25).contains(&fewer), "{fewer} in a second");
}

#[test]
fn what_waited_goes_on_when_its_limit_is_taken_off_or_raised() {
    for limits in [Limits::default(), iops(1_000_000)] {
        let mut alone = limited(iops(1));
        let all =
            [request(&alone, 1, Kind::Read, 0).repeat(30), request(&alone, 2, Kind::Write, 1).repeat(30)]
                .concat();
        assert_eq!(sends(&mut alone, CLIENT, &all), all.len());
        alone.turn();
        assert!(told(&mut alone, CLIENT).len() <= 2);
        set(&mut alone, limits);
        alone.run();
        let told = told(&mut alone, CLIENT);
        let count = |wanted| told.iter().filter(|told| **told == wanted).count();
        assert!(count((1, Status::Ok)) >= 28 && count((2, Status::SendAgain)) >= 28, "{told:?}");
        assert!(alone.osd.shared.rates.limits.waiting() == 0);
    }
}

#[test]
fn what_was_begun_by_who_is_to_stand_still_ends_and_counts_all_the_same() {
    let mut alone = limited(iops(10));
    let of = |alone: &Alone, kind, number: u64| request(alone, number, kind, (number % 512) as u16);
    let all: Vec<u8> = (0..30).flat_map(|number| of(&alone, Kind::Zero, number)).collect();
    sends(&mut alone, CLIENT, &all);
    let count = |told: &[(u64, Status)], wanted| told.iter().filter(|(_, status)| *status == wanted).count();
    assert!(count(&told(&mut alone, CLIENT), Status::Ok) <= 2);
    change(&mut alone, |map| {
        map.still.insert(VOLUME, base::map::Stillness(5));
    });
    alone.settles();
    assert!(count(&told(&mut alone, CLIENT), Status::SendAgain) >= 28);
    let more: Vec<u8> = (100..110).flat_map(|number| of(&alone, Kind::Zero, number)).collect();
    sends(&mut alone, CLIENT, &more);
    alone.run();
    assert_eq!(count(&told(&mut alone, CLIENT), Status::Ok), 10, "none waits");
    change(&mut alone, |map| map.still.clear());
    set(&mut alone, iops(10));
    // In five seconds of the run before what was begun beyond the limit was made up for.
    let done = done(&mut alone, Kind::Zero, 32, 2);
    assert!((15..=25).contains(&done), "{done}");
}

#[test]
fn a_client_that_is_gone_leaves_nothing_that_waits() {
    let mut alone = limited(iops(1));
    let bytes = request(&alone, 1, Kind::Write, 0).repeat(30);
    sends(&mut alone, CLIENT, &bytes);
    assert!(alone.osd.shared.rates.limits.waiting() > 25);
    alone.osd.handle_closed(alone.now, CLIENT, "a test", &mut alone.io);
    (0..200).for_each(|_| alone.turn());
    let limits = &alone.osd.shared.rates.limits;
    assert!(limits.keeps_nothing());
    assert!(limits.is_at_rest() && limits.next_at().is_none());
}

#[test]
fn who_never_sends_again_what_may_begin_saves_nothing_up() {
    let mut alone = limited(iops(100));
    let write = |alone: &Alone, number| request(alone, number, Kind::Write, 0);
    for _ in 0..200 {
        let bytes = write(&alone, 1).repeat(10);
        sends(&mut alone, CLIENT, &bytes);
        alone.turn();
        told(&mut alone, CLIENT);
    }
    // All of what it was ever told that may begin, as far as that counts.
    let bytes = write(&alone, 2).repeat(2_000);
    let mut sent = 0;
    while sent < bytes.len() {
        let consumed = sends(&mut alone, CLIENT, &bytes[sent..]);
        if consumed == 0 {
            break;
        }
        sent += consumed;
    }
    alone.passes(Duration::from_millis(1));
    let paid = sent / write(&alone, 2).len();
    assert!(paid <= WAITING_PER_LINK_MAX + 250, "{paid} began or wait");
}

#[test]
fn no_more_wait_than_may_and_the_rest_stays_in_the_connection() {
    let mut alone = limited(iops(1));
    let read = request(&alone, 1, Kind::Read, 0);
    let mut consumed = 0;
    for _ in 0..4 {
        let Alone { osd, io, now } = &mut alone;
        consumed += osd.handle_bytes(*now, CLIENT, &read.repeat(400), io).unwrap().consumed;
    }
    let waiting = consumed / read.len();
    assert!((WAITING_PER_LINK_MAX..=WAITING_PER_LINK_MAX + 2).contains(&waiting), "{waiting}");
}

#[test]
fn who_takes_no_answers_is_in_nobody_elses_way_and_no_more_of_his_waits_than_may() {
    let mut alone = limited(iops(200));
    let (deaf, other) = (LinkId(60), LinkId(61));
    for (link, key) in [(deaf, 5), (other, 6)] {
        let principal = Principal::new(PublicKey([key; 32]), Access::Admin);
        let name = format!("key-{key}");
        change(&mut alone, |map| {
            map.principals.insert(name.clone(), principal.clone());
        });
        connect(&mut alone, link, Some(Credential { name: name.into(), principal, seen_at: u64::MAX }));
    }
    let tenant = alone.osd.shared.links.tenants.of(deaf);
    let bytes = request(&alone, 1, Kind::Read, 0).repeat(30);
    sends(&mut alone, deaf, &bytes);
    // What a tenant may have of the buffers is gone, as if it had not taken its answers.
    let held: Vec<_> = (0..4).filter_map(|_| alone.osd.shared.disk.large.take_for(tenant)).collect();
    let (mut number, mut done) = (1_000, 0);
    for _ in 0..200 {
        let zero = |step: u64| request(&alone, number + step, Kind::Zero, ((number + step) % 512) as u16);
        let bytes: Vec<u8> = (0..10).flat_map(zero).collect();
        number += 10;
        sends(&mut alone, other, &bytes);
        alone.turn();
        let told = told(&mut alone, other);
        done += told.iter().filter(|(_, status)| [Status::Ok, Status::SendAgain].contains(status)).count();
    }
    assert!(done > 1_500, "{done} in ten seconds, where 2,000 are allowed");
    assert!(alone.osd.shared.rates.limits.waiting() <= 2 * WAITING_PER_LINK_MAX);
    drop(held);
}

#[test]
fn who_waits_for_long_hears_each_second_that_it_does() {
    let mut alone = limited(iops(1));
    let bytes = [1, 2, 3, 4].map(|number| request(&alone, number, Kind::Read, 0)).concat();
    sends(&mut alone, CLIENT, &bytes);
    let mut last = alone.now;
    let mut ends = 0;
    while ends < 4 {
        alone.turn();
        for (_, status) in told(&mut alone, CLIENT) {
            assert!(alone.now.since(last) <= Duration::from_millis(1_200), "{:?}", alone.now.since(last));
            last = alone.now;
            ends += usize::from(status == Status::Ok);
        }
    }
    // One that knows nothing of limits hears nothing that it would not understand.
    let old = LinkId(51);
    connect(&mut alone, old, None);
    let Some(Peer::Client(client)) = alone.osd.shared.links.get_mut(old) else { panic!() };
    client.knows_limits = false;
    let bytes = request(&alone, 9, Kind::Write, 0).repeat(4);
    sends(&mut alone, old, &bytes);
    (0..100).for_each(|_| alone.turn());
    let told = told(&mut alone, old);
    assert!(told.len() >= 3, "{told:?}");
    assert!(told.iter().all(|(_, status)| [Status::Ok, Status::NotActive].contains(status)), "{told:?}");
}

/// The limit's home is another OSD, to which a link stands.
fn with_home(alone: &mut Alone) -> LinkId {
    let link = LinkId(70);
    alone.osd.shared.links.insert_osd(link, OsdLink::new(HOME, Some(KNOWS_LIMITS), alone.now));
    alone.osd.shared.rates.limits.has_home(Limited::Volume(VOLUME), HOME);
    link
}

#[test]
fn a_primary_asks_the_home_and_begins_what_that_gives() {
    let mut alone = limited(iops(6_000));
    let link = with_home(&mut alone);
    let bytes = request(&alone, 1, Kind::Read, 0).repeat(10);
    sends(&mut alone, CLIENT, &bytes);
    let Alone { osd, io, now } = &mut alone;
    osd.end_turn(*now, io);
    let asked = io.told(link, |message| match message {
        Message::AskAllowance(asked) => Some(asked),
        _ => None,
    });
    let [Allowance { of, is_all: true, reads, .. }] = asked[..] else { panic!("{asked:?}") };
    assert!(of == Limited::Volume(VOLUME) && (10..=80).contains(&reads), "{asked:?}");
    assert_eq!(told(&mut alone, CLIENT), []);
    let given = Allowance { of, is_all: false, reads: 4, changes: 0, read_bytes: 0, changed_bytes: 0 };
    alone.with(|_, cx| cx.rates.limits.was_given(link, &given, cx.now));
    alone.settles();
    assert_eq!(told(&mut alone, CLIENT), [(1, Status::Ok); 4]);
    // Without it this OSD gives itself its part.
    alone.osd.handle_closed(alone.now, link, "a test", &mut alone.io);
    (0..10).for_each(|_| alone.turn());
    assert_eq!(told(&mut alone, CLIENT), [(1, Status::Ok); 6]);
}

#[test]
fn a_home_gives_to_others_what_they_ask_for_as_long_as_their_links_last() {
    let mut alone = limited(iops(100));
    let link = with_home(&mut alone);
    alone.osd.shared.rates.limits.has_home(Limited::Volume(VOLUME), OsdId(0));
    let asked = Allowance {
        of: Limited::Volume(VOLUME),
        is_all: true,
        reads: 50,
        changes: 50,
        read_bytes: 0,
        changed_bytes: 0,
    };
    alone.with(|_, cx| cx.rates.limits.was_asked(HOME, link, &asked, cx.now));
    let mut given = [0, 0];
    for _ in 0..10 {
        alone.turn();
        for [reads, changes] in alone.io.told(link, |message| match message {
            Message::Allowance(given) => Some([given.reads, given.changes]),
            _ => None,
        }) {
            given = [given[0] + reads, given[1] + changes];
        }
    }
    assert!((45..=55).contains(&(given[0] + given[1])) && given[0].abs_diff(given[1]) <= 5, "{given:?}");
    alone.osd.handle_closed(alone.now, link, "a test", &mut alone.io);
    alone.run();
    assert!(alone.osd.shared.rates.limits.is_at_rest());
    // One that is not known gives nothing.
    let other = Allowance { of: Limited::Key(5), ..asked };
    alone.with(|_, cx| cx.rates.limits.was_asked(HOME, link, &other, cx.now));
    assert!(!alone.osd.shared.rates.limits.has_bucket(other.of));
}
