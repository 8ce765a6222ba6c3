//! What waits too long, in virtual time.

use super::super::tests::{LINK, OSD, REACHED, TestIo, VERSION, connected, map, of};
use super::super::{Holding, Outcome, VolumeHandle};
use super::*;
use base::map::{ClusterMap, OsdInfo};
use base::{BLOCK_BYTES, Buffer, ClientId, Epoch, Generation, OBJECT_BYTES, PoolId, VolumeId, crc32c};
use std::sync::Arc;
use wire::{Kind, Request, Welcome};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A client, its clock, and an OSD that does what a test says.
struct Scene {
    client: Client,
    volume: VolumeHandle,
    io: TestIo,
    now: Instant,
}

impl Scene {
    /// Connected, and nothing under way.
    fn new(timeout: Option<Duration>) -> Scene {
        let (mut client, volume, io) = connected();
        client.set_timeout(timeout);
        Scene { client, volume, io, now: Instant::default() }
    }

    fn read(&mut self, token: u64, offset: u64) {
        let buffer = Buffer::new(BLOCK_BYTES);
        self.client.submit_read(self.now, of(self.volume, token, offset, 4096), buffer, &mut self.io);
    }

    fn write(&mut self, token: u64, offset: u64) {
        let buffer = Buffer::new(BLOCK_BYTES);
        self.client.submit_write(self.now, of(self.volume, token, offset, 4096), buffer, &mut self.io);
    }

    /// Lets time pass; whatever is asked meanwhile is answered so, or not at all.
    fn pass(&mut self, time: Duration, mut answer: impl FnMut(&Request) -> Option<Vec<u8>>) {
        let until = self.now + time;
        loop {
            for (_, request, _) in self.io.requests() {
                if let Some(bytes) = answer(&request) {
                    self.hear(self.link(), &bytes);
                }
            }
            match self.client.next_timeout() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => break,
            }
            self.client.handle_timeout(self.now, &mut self.io);
        }
        self.now = until;
    }

    fn pass_in_silence(&mut self, time: Duration) {
        self.pass(time, |_| None);
    }

    /// The newest connection.
    fn link(&self) -> LinkId {
        LinkId(LINK.0 + u64::from(self.io.connects) - 1)
    }

    fn hear(&mut self, link: LinkId, bytes: &[u8]) {
        let consumed = self.client.handle_bytes(self.now, link, bytes, &mut self.io).unwrap();
        assert_eq!(consumed, bytes.len());
    }

    /// The OSD answers the newest connection.
    fn greet(&mut self) {
        let link = self.link();
        self.client.handle_connected(link, &mut self.io);
        self.hear(link, &Welcome { version: VERSION }.encode());
    }

    fn ended(&mut self) -> Option<(u64, Outcome)> {
        self.client.poll_completion().map(|completion| (completion.token, completion.outcome))
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.client.poll_notice()).collect()
    }
}

fn done(request: &Request) -> Option<Vec<u8>> {
    Some(wire::Outcome::done(request.request, REACHED, 0).to_vec())
}

fn not_active(request: &Request) -> Option<Vec<u8>> {
    Some(wire::Outcome::refused(request.request, Status::NotActive, Default::default()).to_vec())
}

fn filled(request: &Request, byte: u8) -> Vec<u8> {
    let data = [byte; BLOCK_BYTES];
    let mut bytes = wire::Outcome::done(request.request, REACHED, BLOCK_BYTES + 4).to_vec();
    bytes.extend_from_slice(U32::new(crc32c(&data)).as_bytes());
    bytes.extend_from_slice(&data);
    bytes
}

#[track_caller]
fn timed_out(ended: Option<(u64, Outcome)>, token: u64) -> String {
    match ended {
        Some((ended, Outcome::Failed(error @ ClientError::TimedOut { .. }))) if ended == token => {
            error.to_string()
        }
        other => panic!("operation {token} was to reach its time limit: {other:?}"),
    }
}

#[test]
fn an_operation_that_is_refused_until_its_limit_fails_and_names_group_osd_and_reason() {
    let mut scene = Scene::new(Some(10 * SECOND));
    scene.write(1, 0);
    scene.pass(10 * SECOND - Duration::from_millis(1), not_active);
    assert_eq!(scene.ended(), None, "not before its limit");
    scene.pass(2 * LOOK_EVERY, not_active);
    let text = timed_out(scene.ended(), 1);
    for part in ["\"v\"", "pg 1.", "on osd.1 does not serve: not active", "10 s", "may still take effect"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert_eq!((scene.ended(), scene.client.operations_in_flight()), (None, 0));
    scene.pass(HOUR, |request| panic!("{request:?} is sent after its end"));
    assert_eq!(scene.client.next_timeout(), None, "an idle client has nothing to look for");
}

#[test]
fn without_a_limit_an_operation_waits_for_ever_and_then_is_done() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    scene.pass(100 * HOUR, not_active);
    assert_eq!(scene.ended(), None);
    scene.pass(SECOND, done);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn a_late_answer_is_nobodys_even_when_its_slot_is_used_again() {
    let mut scene = Scene::new(Some(SECOND));
    scene.read(1, 0);
    let (_, late, _) = scene.io.requests().remove(0);
    scene.pass_in_silence(2 * SECOND);
    timed_out(scene.ended(), 1);
    scene.hear(LINK, &filled(&late, 1));
    assert_eq!(scene.ended(), None);
    scene.read(2, 0);
    let (_, request, _) = scene.io.requests().remove(0);
    assert_eq!(request.request as u32, late.request as u32, "the slot is used again");
    scene.hear(LINK, &filled(&late, 1));
    assert_eq!(scene.ended(), None);
    scene.hear(LINK, &filled(&request, 2));
    let completion = scene.client.poll_completion().unwrap();
    assert_eq!((completion.token, completion.outcome), (2, Outcome::Done));
    assert_eq!(completion.buffer.unwrap().bytes(), [2; BLOCK_BYTES]);
}

#[test]
fn an_operation_that_waits_for_a_connection_fails_and_is_not_sent_later() {
    let mut client = Client::new(ClientId(9), Arc::new(map()));
    let volume = client.add_volume(VolumeId(5), Generation(1), Holding::Alone);
    client.set_timeout(Some(2 * SECOND));
    let mut scene = Scene { client, volume, io: TestIo::default(), now: Instant::default() };
    scene.write(1, 0);
    scene.pass_in_silence(3 * SECOND);
    let text = timed_out(scene.ended(), 1);
    assert!(text.contains("on osd.1 cannot be reached: it has not greeted for 2 s"), "{text}");
    scene.greet();
    assert_eq!(scene.io.requests().len(), 0);
}

#[test]
fn an_operation_at_its_limit_takes_none_with_it_that_was_submitted_later() {
    let mut scene = Scene::new(Some(10 * SECOND));
    scene.write(1, 0);
    scene.pass(5 * SECOND, not_active);
    scene.write(2, 8192);
    scene.pass(6 * SECOND, not_active);
    timed_out(scene.ended(), 1);
    assert_eq!((scene.ended(), scene.client.operations_in_flight()), (None, 1));
    scene.pass(SECOND, done);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
}

#[test]
fn an_operation_fails_once_and_as_a_whole_when_a_part_of_it_is_late() {
    let mut scene = Scene::new(Some(2 * SECOND));
    scene.client.submit_zero(scene.now, of(scene.volume, 1, OBJECT_BYTES - 4096, 8192), &mut scene.io);
    let mut is_first = true;
    scene.pass(3 * SECOND, |request| if std::mem::take(&mut is_first) { done(request) } else { None });
    timed_out(scene.ended(), 1);
    assert_eq!((scene.ended(), scene.client.operations_in_flight()), (None, 0));
}

#[test]
fn a_silent_connection_is_given_up_and_what_was_sent_is_sent_again() {
    let mut scene = Scene::new(None);
    scene.pass_in_silence(HOUR);
    scene.write(1, 0);
    let (kind, first, _) = scene.io.requests().remove(0);
    assert!(kind == Kind::Write && first.since.is_none());
    scene.pass_in_silence(SILENCE_MAX - SECOND / 2);
    assert_eq!(scene.io.closed, [], "an hour without anything to say is no silence");
    scene.pass_in_silence(SECOND);
    assert_eq!((scene.io.closed.as_slice(), scene.io.connects), ([LINK].as_slice(), 2));
    scene.greet();
    let (_, again, _) = scene.io.requests().remove(0);
    assert!(again.since == Some(REACHED) && again.origin == first.origin, "{again:?}");
    scene.hear(LINK, &done(&first).unwrap());
    assert_eq!(scene.ended(), None, "the connection that was given up has no say");
    scene.hear(scene.link(), &done(&again).unwrap());
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn an_osd_that_never_greets_is_dialled_again_and_again() {
    let mut client = Client::new(ClientId(9), Arc::new(map()));
    let volume = client.add_volume(VolumeId(5), Generation(1), Holding::Alone);
    let mut scene = Scene { client, volume, io: TestIo::default(), now: Instant::default() };
    scene.write(1, 0);
    scene.pass_in_silence(60 * SECOND);
    assert!((9..=12).contains(&scene.io.connects), "{} times in a minute", scene.io.connects);
    scene.greet();
    scene.pass(SECOND, done);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn an_osd_that_greets_and_is_slow_gets_more_time_until_it_answers() {
    let mut scene = Scene::new(None);
    let given_up = |scene: &mut Scene| {
        let (started, before) = (scene.now, scene.io.connects);
        while scene.io.connects == before {
            scene.pass_in_silence(Duration::from_millis(50));
        }
        scene.greet();
        scene.now.since(started).as_secs()
    };
    scene.write(1, 0);
    let patience: Vec<u64> = (0..5).map(|_| given_up(&mut scene)).collect();
    assert_eq!(patience, [5, 10, 20, 40, 40]);
    scene.pass(SECOND, done);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    scene.write(2, 0);
    assert_eq!(given_up(&mut scene), 5);
}

#[test]
fn a_connection_on_which_anything_comes_is_not_silent() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    scene.io.requests();
    for token in 2..60 {
        scene.write(token, 8192);
        scene.pass(SECOND, done);
        assert_eq!(scene.ended(), Some((token, Outcome::Done)));
    }
    assert_eq!(scene.io.closed, []);
}

#[test]
fn operations_that_fail_sooner_do_not_hide_that_a_connection_is_silent() {
    let mut scene = Scene::new(Some(SECOND));
    for token in 0..4 {
        scene.write(token, 0);
        scene.pass_in_silence(2 * SECOND);
        timed_out(scene.ended(), token);
    }
    assert_eq!(scene.io.closed, [LINK]);
}

#[test]
fn a_map_that_shows_an_osd_started_anew_ends_the_connection_to_the_old_one() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    scene.io.requests();
    let mut newer: ClusterMap = map();
    newer.revision += 1;
    newer.osds.get_mut(&OSD).unwrap().incarnation += 1;
    scene.client.handle_map(scene.now, Arc::new(newer), &mut scene.io);
    scene.pass_in_silence(SECOND / 10);
    assert_eq!((scene.io.closed.as_slice(), scene.io.connects), ([LINK].as_slice(), 2));
    scene.greet();
    scene.pass(SECOND, |request| {
        assert!(request.since.is_some());
        done(request)
    });
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}

#[test]
fn a_person_is_told_once_that_operations_wait_and_once_that_they_go_on() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    scene.write(2, 4096);
    scene.pass(BLOCKED_AFTER - SECOND / 2, not_active);
    assert_eq!(scene.notices(), []);
    scene.pass(HOUR, not_active);
    let notices = scene.notices();
    let [Notice::Blocked { volume, operations: 2, why }] = notices.as_slice() else { panic!("{notices:?}") };
    assert!(volume == "v" && why.contains("on osd.1 does not serve: not active"), "{why}");
    scene.pass(SECOND, done);
    let notices = scene.notices();
    let [Notice::GoesOn { volume, waited }] = notices.as_slice() else { panic!("{notices:?}") };
    assert!(volume == "v" && *waited >= HOUR, "{waited:?}");
    assert_eq!(scene.client.next_timeout(), None);
}

#[test]
fn a_person_is_told_of_operations_at_their_limit_now_and_then_and_not_that_they_go_on() {
    let mut scene = Scene::new(Some(2 * SECOND));
    for token in 0..100 {
        scene.write(token, 0);
        scene.pass(3 * SECOND, not_active);
        timed_out(scene.ended(), token);
    }
    let (mut blocked, mut given_up, mut told) = (0, 0, 0);
    for notice in scene.notices() {
        match notice {
            Notice::Blocked { .. } => blocked += 1,
            Notice::GivenUp { operations, limit, why, .. } => {
                assert!(limit == 2 * SECOND && why.contains("osd.1"), "{why}");
                (given_up, told) = (given_up + operations, told + 1);
            }
            Notice::GoesOn { .. } => panic!("nothing goes on"),
        }
    }
    assert_eq!(blocked, 1);
    assert!((96..=100).contains(&given_up) && (20..=31).contains(&told), "{given_up} in {told} notices");
}

/// The group of an object.
fn group(object: u32) -> PgId {
    map().pg_of(PoolId(1), VolumeId(5), object).unwrap()
}

#[test]
fn what_is_held_back_fails_at_its_limit_too_and_says_for_what_it_waited() {
    let mut scene = Scene::new(Some(10 * SECOND));
    scene.write(1, 0);
    let (_, request, _) = scene.io.requests().remove(0);
    scene.hear(LINK, &not_active(&request).unwrap());
    scene.read(2, 0);
    scene.write(3, 0);
    assert_eq!((scene.io.requests().len(), scene.client.operations_in_flight()), (0, 3));
    scene.pass(10 * SECOND, not_active);
    let texts = [1, 2, 3].map(|token| timed_out(scene.ended(), token));
    assert!(texts[0].contains("does not serve: not active"), "{}", texts[0]);
    for text in &texts[1..] {
        assert!(text.contains("what was to change the same bytes before it has not ended"), "{text}");
    }
    assert!(!scene.client.is_quiet(), "what was sent of the first may still be done");
    scene.pass(HOUR, |request| panic!("{request:?} is sent after its end"));
    assert_eq!((scene.ended(), scene.client.next_timeout()), (None, None));
}

#[test]
fn a_trouble_of_two_groups_is_over_when_the_second_answers_too() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    // One operation in two pieces, of two other groups.
    scene.client.submit_zero(scene.now, of(scene.volume, 2, 2 * OBJECT_BYTES - 4096, 8192), &mut scene.io);
    let millisecond = Duration::from_millis(1);
    scene.pass(BLOCKED_AFTER - millisecond, not_active);
    assert_eq!(scene.notices(), []);
    scene.pass(millisecond, not_active);
    let notices = scene.notices();
    let [Notice::Blocked { operations: 2, why, .. }] = notices.as_slice() else { panic!("{notices:?}") };
    assert!(why.starts_with(&format!("pg {} on osd.1 does not serve", group(0))), "{why}");
    scene.pass(2 * SECOND, |request| match request.key.object {
        0 => done(request),
        _ => not_active(request),
    });
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    assert_eq!(scene.notices(), [], "nobody is told of each group by itself");
    scene.pass(SECOND, done);
    assert_eq!(scene.ended(), Some((2, Outcome::Done)));
    let notices = scene.notices();
    let [Notice::GoesOn { waited, .. }] = notices.as_slice() else { panic!("{notices:?}") };
    assert!((5 * SECOND..=6 * SECOND).contains(waited), "{waited:?}: since the first of them waited");
}

#[test]
fn a_person_is_told_of_the_operation_that_waits_the_longest() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    scene.write(2, OBJECT_BYTES);
    let sent = scene.io.requests();
    scene.hear(LINK, &done(&sent[0].1).unwrap());
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
    // One stands before it, where the first was, and one behind it.
    scene.now = scene.now + SECOND;
    scene.write(3, 2 * OBJECT_BYTES);
    scene.write(4, 3 * OBJECT_BYTES);
    let slots: Vec<u32> = scene.io.requests().iter().map(|(_, request, _)| request.request as u32).collect();
    assert_eq!(slots, [0, 2]);
    scene.now = scene.now + 9 * SECOND;
    scene.client.handle_timeout(scene.now, &mut scene.io);
    let notices = scene.notices();
    let [Notice::Blocked { operations: 3, why, .. }] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!(*why, format!("pg {} on osd.1 has not answered yet", group(1)));
}

#[test]
fn the_first_that_is_given_up_is_told_of_at_once_and_others_some_seconds_later_in_sum() {
    let mut scene = Scene::new(Some(5 * SECOND));
    scene.write(1, 0);
    scene.pass(3 * SECOND, not_active);
    scene.write(2, OBJECT_BYTES);
    scene.pass(2 * SECOND, not_active);
    timed_out(scene.ended(), 1);
    scene.pass(5 * SECOND, not_active);
    timed_out(scene.ended(), 2);
    scene.write(3, OBJECT_BYTES);
    scene.pass(5 * SECOND, not_active);
    timed_out(scene.ended(), 3);
    let told: Vec<(u64, String)> = scene
        .notices()
        .into_iter()
        .map(|notice| match notice {
            Notice::Blocked { why, .. } => (0, why),
            Notice::GivenUp { operations, why, .. } => (operations, why),
            Notice::GoesOn { .. } => panic!("nothing goes on"),
        })
        .collect();
    let [(0, first), (1, second), (0, third), (2, fourth)] = told.as_slice() else { panic!("{told:?}") };
    for (why, object) in [(first, 0), (second, 0), (third, 1), (fourth, 1)] {
        assert!(why.starts_with(&format!("pg {} ", group(object))), "{why}");
    }
}

#[test]
fn of_notices_that_nobody_fetches_the_first_are_kept() {
    let mut scene = Scene::new(None);
    for token in 0..40 {
        scene.write(token, 0);
        scene.pass(4 * SECOND, not_active);
        scene.pass(SECOND, done);
        assert_eq!(scene.ended(), Some((token, Outcome::Done)));
    }
    assert_eq!(scene.notices().len(), NOTICES_MAX);
}

#[test]
fn for_how_long_nothing_came_is_told_from_a_second_on() {
    // It is looked around every 250 ms, and silence is noticed then.
    for (limit, words) in [
        (1000, "has not answered yet"),
        (1250, "does not answer: nothing came from there for 1 s"),
        (3250, "does not answer: nothing came from there for 3 s"),
    ] {
        let mut scene = Scene::new(Some(Duration::from_millis(limit)));
        scene.write(1, 0);
        scene.pass_in_silence(Duration::from_millis(limit));
        let text = timed_out(scene.ended(), 1);
        assert!(text.contains(words), "{text}");
    }
    for (limit, words) in
        [(750, "has not answered yet"), (1000, "cannot be reached: it has not greeted for 1 s")]
    {
        let mut client = Client::new(ClientId(9), Arc::new(map()));
        let volume = client.add_volume(VolumeId(5), Generation(1), Holding::Alone);
        client.set_timeout(Some(Duration::from_millis(limit)));
        let mut scene = Scene { client, volume, io: TestIo::default(), now: Instant::default() };
        scene.write(1, 0);
        scene.pass_in_silence(Duration::from_millis(limit));
        let text = timed_out(scene.ended(), 1);
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn an_osd_that_was_slow_and_does_not_even_greet_any_more_gets_no_more_time_for_that() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    let millisecond = Duration::from_millis(1);
    scene.pass_in_silence(LOOK_EVERY + SILENCE_MAX - millisecond);
    assert_eq!(scene.io.closed, []);
    scene.pass_in_silence(millisecond);
    assert_eq!(scene.io.closed, [LINK]);
    let why = scene.client.trouble().unwrap();
    assert!(why.ends_with("the connection ended: it has not answered for 5 s"), "{why}");
    let before = scene.now;
    while scene.io.closed.len() == 1 {
        scene.pass_in_silence(Duration::from_millis(50));
    }
    let took = scene.now.since(before);
    assert!((SILENCE_MAX..SILENCE_MAX + SECOND).contains(&took), "{took:?}");
    let why = scene.client.trouble().unwrap();
    assert!(why.ends_with("the connection ended: it did not greet within 5 s"), "{why}");
}

#[test]
fn a_connection_is_not_silent_once_what_was_asked_on_it_goes_elsewhere() {
    let mut scene = Scene::new(None);
    scene.write(1, 0);
    scene.pass_in_silence(SECOND);
    let mut newer: ClusterMap = map();
    newer.revision += 1;
    let other = OsdId(2);
    let address = Some("127.0.0.1:7001".parse().unwrap());
    newer.osds.insert(other, OsdInfo { bytes: 1 << 30, address, ..OsdInfo::default() });
    for config in newer.pgs.values_mut() {
        (config.epoch, config.primary, config.in_sync) = (Epoch(4), other, vec![other, OSD]);
    }
    scene.client.handle_map(scene.now, Arc::new(newer), &mut scene.io);
    scene.greet();
    scene.pass(20 * SECOND, not_active);
    assert!(scene.io.closed.is_empty() && scene.io.connects == 2, "{:?}", scene.io.closed);
    scene.pass(SECOND, done);
    assert_eq!(scene.ended(), Some((1, Outcome::Done)));
}
