//! What one learner is asked, told and given, and what becomes of it by what it says.

use super::*;
use crate::moves::placement;
use base::RecoveryShare;
use wire::{Found, Inquiry};

/// An object of the one group, and the OSD that is to be in sync in it too.
const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
const LEARNER: OsdId = OsdId(1);

/// A group with a learner, which was asked where it stands. The object has these blocks: the first ones, and how many.
fn taught(written: &[(u16, u16)]) -> (Alone, LinkId) {
    let mut alone = Alone::new();
    for (first_block, block_count) in written.iter().copied() {
        alone.order(KEY, first_block, block_count, 0);
    }
    let link = lacks_one(&mut alone);
    assert_eq!(learners(&mut alone, link, 0), 1);
    alone.io.to.clear();
    (alone, link)
}

/// The learner of a group has joined, its log says so, and it is still to be given that.
fn is_to_get(alone: &mut Alone, index: u32, work: impl IntoIterator<Item = Work>) {
    let work = work.into_iter().collect();
    let learner = alone.osd.shared.groups[index].learner_mut(LEARNER).unwrap();
    learner.joined = Some(Joined { has_mark: true, work, ..Joined::default() });
}

/// It is given the next of that.
fn goes_on(alone: &mut Alone) {
    alone.with(|router, cx| router.backfill.recover_next(cx, 0, LEARNER));
}

fn blocks_of(range: BlockRange) -> String {
    format!("{}: {:?}", range.key.object, range.blocks())
}

/// What a learner was told since the last time, in short; but for its log, and leases.
fn is_told(alone: &mut Alone, link: LinkId) -> Vec<String> {
    alone.io.told(link, |message| {
        Some(match message {
            Message::PushEntry(_) | Message::Lease(_) => return None,
            Message::PushWrite(push) => format!("write {}", blocks_of(push.head.range)),
            Message::PushZero(push) => format!("zero {}", blocks_of(push.range)),
            Message::PushLost(lost) => format!("lost {}", blocks_of(lost.push.range)),
            Message::ReplicateWrite(write) => format!("order {}", blocks_of(write.head.range)),
            Message::ReplicateZero(zero) => format!("order zero {}", blocks_of(zero.range)),
            Message::ListObjects(wanted) => {
                format!("list behind {:?}", wanted.after.map(|(_, object)| object))
            }
            Message::ListBlocks(of) => format!("blocks of {}", of.key.object),
            Message::Reached(of) => format!("reached {}", of.key.object),
            Message::Query(_) => "query".to_owned(),
            Message::Activate(_) => "join".to_owned(),
            Message::Whole(_) => "whole".to_owned(),
            other => format!("{other:?}"),
        })
    })
}

/// All that a learner is told by and by, which has everything on stable media at once, and answers nothing.
fn takes_all(alone: &mut Alone, link: LinkId) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        alone.drive_answers();
        let told = is_told(alone, link);
        if told.is_empty() {
            return all;
        }
        all.extend(told);
        has_all(alone, link);
    }
}

/// The same, but for the zeros of an object that a learner is given as a whole.
fn takes_all_but_zeros(alone: &mut Alone, link: LinkId, object: u32) -> Vec<String> {
    let zeros = format!("zero {object}: ");
    let all = takes_all(alone, link);
    all.into_iter().filter(|told| !told.starts_with(&zeros)).collect()
}

fn bits_of(blocks: &[u16]) -> BlockBits {
    let mut bits: BlockBits = [0; OBJECT_BLOCKS / 8];
    for block in blocks {
        bits[usize::from(*block) / 8] |= 1 << (block % 8);
    }
    bits
}

/// A learner says which blocks of an object it has, and which are in doubt.
fn says_blocks(alone: &mut Alone, link: LinkId, of: ObjectEpoch, allocated: &[u16], doubted: &[u16]) {
    let (allocated, doubted) = (bits_of(allocated), bits_of(doubted));
    hears(alone, link, &Blocks { of, allocated: &allocated, doubted: &doubted }.encode());
}

fn reads(alone: &Alone) -> usize {
    alone.io.drive.iter().filter(|(token, ..)| reads_data(*token)).count()
}

#[test]
fn nothing_of_a_learner_is_touched_before_its_log_says_that_it_catches_up() {
    for is_old in [false, true] {
        let mut alone = Alone::new();
        alone.write(KEY);
        if is_old {
            alone.age_log();
        }
        let link = lacks_one(&mut alone);
        assert_eq!(learners(&mut alone, link, 0), 1);
        assert_eq!(is_told(&mut alone, link), ["query"]);
        says(&mut alone, link, PG, Sequence(1), &[]);
        let joins = alone.io.told(link, |message| match message {
            Message::Activate(activate) => Some((activate.mark, activate.join)),
            Message::PushEntry(_) => None,
            other => panic!("{other:?}"),
        });
        let begins = alone.osd.store().pg_log_begins(PG);
        let next = alone.osd.shared.groups[0].standing.primary().unwrap().next_sequence;
        assert_eq!(joins, [(Sequence(begins.0.saturating_sub(1)), Some(next))]);
        assert_eq!((begins > Sequence(0), reads(&alone)), (is_old, 0));
        has_all(&mut alone, link);
        assert_eq!(is_told(&mut alone, link), ["list behind None"]);
        goes_on(&mut alone);
        assert!(is_told(&mut alone, link).is_empty(), "it was asked for that");
    }
}

#[test]
fn a_learner_that_owes_an_answer_is_given_up_when_it_is_silent_for_long() {
    let nearly = LEARNER_SILENCE_MAX - Duration::from_nanos(1);
    let mut alone = Alone::new();
    alone.write(KEY);
    let link = lacks_one(&mut alone);
    let later = |alone: &mut Alone, time: Duration| {
        alone.now = alone.now + time;
        learners(alone, link, 0)
    };
    assert_eq!(later(&mut alone, Duration::ZERO), 1);
    assert_eq!(later(&mut alone, nearly), 1);
    says(&mut alone, link, PG, Sequence(1), &[]);
    assert_eq!(later(&mut alone, nearly), 1, "it said where it stands");
    has_all(&mut alone, link);
    assert_eq!(later(&mut alone, nearly), 1, "its log says that it catches up");
    let epoch = alone.osd.shared.groups[0].epoch;
    let held = ObjectHeld {
        layer: VOLUME.first_layer(),
        object: 3,
        block_count: 1,
        has_doubts: 0,
        through: Sequence(0),
    };
    hears(&mut alone, link, &Page { pg: PG, epoch, is_last: false }.encode([held].into_iter()));
    assert_eq!(later(&mut alone, nearly), 1, "it said which objects it has");
    says_blocks(&mut alone, link, ObjectEpoch { key: KEY, epoch }, &[], &[]);
    alone.drive_answers();
    assert_eq!(later(&mut alone, nearly), 1, "it said which blocks");
    has_all(&mut alone, link);
    assert_eq!(later(&mut alone, nearly), 1, "it has what it was pushed");
    assert_eq!(later(&mut alone, Duration::from_nanos(1)), 0, "it was asked for more objects");
}

#[test]
fn a_learner_that_waits_for_its_turn_owes_nothing_and_goes_on_when_nobody_is_served() {
    let (mut alone, link) = taught(&[]);
    is_to_get(&mut alone, 0, [Work::Range(BlockRange::one(KEY, 0))]);
    alone.now = alone.now + 2 * LEARNER_SILENCE_MAX;
    // Clients are served, and pushes that could not wait were before it.
    alone.with(|_, cx| {
        cx.rates.pace.client_came(cx.now);
        for _ in 0..100 {
            cx.rates.pace.push_begins(cx.now, PUSH_BLOCKS, RecoveryShare::default());
        }
    });
    assert_eq!(learners(&mut alone, link, 0), 1);
    assert!(is_told(&mut alone, link).is_empty());
    alone.now = alone.now + Duration::from_secs(1);
    assert_eq!(learners(&mut alone, link, 0), 1);
    assert_eq!(is_told(&mut alone, link), ["zero 3: 0..1"]);
}

#[test]
fn nobody_is_brought_up_to_date_in_a_group_that_does_not_serve() {
    let (mut alone, link) = short_of_one();
    alone.with(|_, cx| epoch::end(cx, 0, "a test"));
    assert_eq!(learners(&mut alone, link, 0), 0);
}

/// How many learners there are at a moment at which the OSD is there.
fn learners_at(alone: &mut Alone, link: LinkId, now: base::Instant) -> usize {
    alone.now = now;
    alone.osd.shared.links.osd_mut(link).unwrap().since = now;
    learners(alone, link, 0)
}

#[test]
fn a_learner_of_a_later_history_is_not_overwritten_and_is_asked_again_after_a_while() {
    let (mut alone, link) = taught(&[(0, 1)]);
    let epoch = alone.osd.shared.groups[0].epoch;
    let last_sequence = History(1).floor().next();
    let (log_begins, is_incomplete, may_lack_tail) = (Sequence(0), false, false);
    let state = LogState { pg: PG, epoch, last_sequence, log_begins, is_incomplete, may_lack_tail };
    hears(&mut alone, link, &state.encode(std::iter::empty()));
    assert!(is_told(&mut alone, link).is_empty());
    let given_up_at = alone.now;
    for (pause, expected) in [(LEARN_PAUSE - Duration::from_nanos(1), 0), (LEARN_PAUSE, 1)] {
        assert_eq!(learners_at(&mut alone, link, given_up_at + pause), expected, "after {pause:?}");
    }
}

#[test]
fn a_learner_that_refuses_is_given_up_for_a_while_and_for_longer_if_it_has_no_room() {
    for (status, pause) in [(Status::NotActive, LEARN_PAUSE), (Status::NoSpace, LEARN_PAUSE_LONG)] {
        let (mut alone, link) = taught(&[(0, 1)]);
        is_to_get(&mut alone, 0, [Work::Range(BlockRange::one(KEY, 0))]);
        goes_on(&mut alone);
        assert_eq!(reads(&alone), 1);
        let session = alone.osd.router.backfill.sessions;
        let refuses = |alone: &mut Alone, session: u32| {
            alone.with(|router, cx| router.backfill.learner_refused(cx, 0, session, LEARNER, status));
            let learning = alone.osd.shared.groups[0].learning_mut().unwrap();
            (learning.learners.len(), learning.cramped.contains(&LEARNER))
        };
        assert_eq!(refuses(&mut alone, session + 1), (1, false), "in another attempt");
        assert_eq!(refuses(&mut alone, session), (0, status == Status::NoSpace));
        let given_up_at = alone.now;
        for (pause, expected) in [(pause - Duration::from_nanos(1), 0), (pause, 1)] {
            let count = learners_at(&mut alone, link, given_up_at + pause);
            assert_eq!(count, expected, "{status:?}, after {pause:?}");
        }
        assert_eq!(is_told(&mut alone, link), ["query"]);
        // What was read for the earlier attempt is of no use in this one.
        alone.drive_answers();
        assert!(is_told(&mut alone, link).is_empty());
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
        // When it is wanted no more, an epoch is to tell it so.
        alone.osd.shared.groups[0].wanted.target = vec![OsdId(0)];
        assert_eq!(learners(&mut alone, link, 0), 0);
        assert!(alone.with(|_, cx| placement::has_work(cx, &cx.groups[0])));
    }
}

#[test]
fn a_refusal_keeps_who_refused_from_being_taken_in_and_nobody_else() {
    let (mut alone, link) = taught(&[]);
    is_to_get(&mut alone, 0, []);
    goes_on(&mut alone);
    assert_eq!(is_told(&mut alone, link), ["whole"]);
    let session = alone.osd.router.backfill.sessions;
    for (osd, is_kept) in [(OsdId(2), true), (LEARNER, false)] {
        alone.with(|router, cx| router.backfill.learner_refused(cx, 0, session, osd, Status::NotActive));
        assert_eq!(alone.osd.shared.groups[0].standing.promotion().is_some(), is_kept, "{osd}");
    }
}

#[test]
fn a_learner_that_has_everything_is_taken_in_with_its_last_acknowledgement() {
    let (mut alone, link) = taught(&[(0, 1)]);
    is_to_get(&mut alone, 0, [Work::Range(BlockRange::one(KEY, 0))]);
    goes_on(&mut alone);
    alone.drive_answers();
    assert_eq!(is_told(&mut alone, link), ["write 3: 0..1"]);
    goes_on(&mut alone);
    assert!(alone.osd.shared.groups[0].is_active(), "nobody knows that it has this");
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["whole"]);
    let group = &alone.osd.shared.groups[0];
    let promotion = group.standing.promotion().unwrap();
    assert_eq!((promotion.osd, promotion.link, promotion.through), (LEARNER, link, 2));
    assert!(!group.is_active());
    // It says once more that it has what it was pushed.
    hears(&mut alone, link, &ack(1));
    assert!(alone.io.proposals.is_empty(), "that it has everything is not in its log yet");
    hears(&mut alone, link, &ack(2));
    let in_sync: Vec<Vec<OsdId>> =
        alone.io.proposals.iter().map(|(_, config)| config.in_sync.clone()).collect();
    assert_eq!(in_sync, [[OsdId(0), LEARNER]], "at once");
    assert!(alone.osd.router.backfill.promotions.is_empty());
}

#[test]
fn a_learner_that_has_everything_is_not_taken_in_before_the_registry_answers() {
    let (mut alone, link) = taught(&[(0, 1)]);
    is_to_get(&mut alone, 0, [Work::Range(BlockRange::one(KEY, 0))]);
    goes_on(&mut alone);
    alone.drive_answers();
    alone.now = alone.now + Duration::from_secs(5);
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["write 3: 0..1"]);
    assert_eq!(learners(&mut alone, link, 0), 1);
    assert!(alone.osd.shared.groups[0].is_active() && is_told(&mut alone, link).is_empty());
    alone.osd.handle_registry(alone.now);
    assert_eq!(learners(&mut alone, link, 0), 0);
    assert_eq!(is_told(&mut alone, link), ["whole"]);
    let promoted = alone.osd.shared.groups[0].standing.promotion().map(|promotion| promotion.osd);
    assert_eq!(promoted, Some(LEARNER));
}

#[test]
fn so_many_blocks_are_on_their_way_to_a_learner_and_a_small_push_counts_for_some() {
    let whole = vec![Work::Range(BlockRange::whole(KEY))];
    let small: Vec<Work> = (0..40).map(|block| Work::Range(BlockRange::one(KEY, block))).collect();
    for (work, most, first, next) in
        [(whole, 4, "zero 3: 0..64", "zero 3: 256..320"), (small, 16, "zero 3: 0..1", "zero 3: 16..17")]
    {
        let (mut alone, link) = taught(&[]);
        is_to_get(&mut alone, 0, work);
        goes_on(&mut alone);
        let told = is_told(&mut alone, link);
        assert_eq!((told.len(), told[0].as_str()), (most, first));
        hears(&mut alone, link, &ack(1));
        assert_eq!(is_told(&mut alone, link), [next], "one of them is there");
    }
}

#[test]
fn beside_clients_pushes_are_small_and_spaced_out_unless_these_wait_for_nothing_else() {
    let all = vec!["zero 3: 0..64", "zero 3: 64..128", "zero 3: 128..192", "zero 3: 192..256"];
    for (min_size, expected) in [(1, vec!["zero 3: 0..16"]), (2, all)] {
        let (mut alone, link) = taught(&[]);
        alone.osd.shared.groups[0].wanted.min_size = min_size;
        is_to_get(&mut alone, 0, [Work::Range(BlockRange::whole(KEY))]);
        alone.with(|_, cx| cx.rates.pace.client_came(cx.now));
        goes_on(&mut alone);
        assert_eq!(is_told(&mut alone, link), expected);
    }
}

#[test]
fn what_clients_wait_for_keeps_nobody_else_from_its_pushes() {
    let mut alone = Alone::with_groups(2);
    let link = lacks_one(&mut alone);
    alone.with(|router, cx| router.backfill.advance(cx));
    alone.io.to.clear();
    alone.osd.shared.groups[0].wanted.min_size = 2;
    let [waited_for, other] = [0, 1].map(|index| ObjectKey {
        pg: PgId { index, ..PG },
        layer: VOLUME.first_layer(),
        object: index,
    });
    is_to_get(&mut alone, 0, [Work::Range(BlockRange::whole(waited_for))]);
    is_to_get(&mut alone, 1, [Work::Range(BlockRange { block_count: 16, ..BlockRange::whole(other) })]);
    alone.with(|_, cx| cx.rates.pace.client_came(cx.now));
    goes_on(&mut alone);
    assert_eq!(is_told(&mut alone, link).len(), 4, "as much as may be on its way to one");
    alone.with(|router, cx| router.backfill.recover_others(cx, 0));
    assert_eq!(is_told(&mut alone, link), ["zero 1: 0..16"]);
}

#[test]
fn what_costs_no_push_is_asked_and_told_beside_clients_too() {
    let (mut alone, link) = taught(&[]);
    says(&mut alone, link, PG, Sequence(1), &[]);
    alone.with(|_, cx| {
        cx.rates.pace.client_came(cx.now);
        cx.rates.pace.push_begins(cx.now, PUSH_BLOCKS, RecoveryShare::default());
        assert!(!cx.rates.pace.may_push(cx.now, 0));
    });
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["join", "list behind None"]);
}

#[test]
fn learners_of_several_groups_get_their_pushes_by_turns() {
    let mut alone = Alone::with_groups(3);
    let link = lacks_one(&mut alone);
    alone.with(|router, cx| router.backfill.advance(cx));
    assert_eq!(alone.osd.router.backfill.learning, [0, 1, 2]);
    alone.io.to.clear();
    // Each is to get one push, of zeros.
    let all_are_to_get = |alone: &mut Alone| {
        for index in 0..3 {
            let key = ObjectKey { pg: PgId { index, ..PG }, layer: VOLUME.first_layer(), object: index };
            is_to_get(alone, index, [Work::Range(BlockRange { block_count: 16, ..BlockRange::whole(key) })]);
        }
    };
    let later = |alone: &mut Alone, milliseconds| alone.now = alone.now + Duration::from_millis(milliseconds);
    all_are_to_get(&mut alone);
    alone.with(|_, cx| cx.rates.pace.client_came(cx.now));
    for next in ["zero 2: 0..16", "zero 0: 0..16", "zero 1: 0..16"] {
        alone.with(|router, cx| router.backfill.recover_others(cx, 1));
        assert_eq!(is_told(&mut alone, link), [next]);
        later(&mut alone, 4);
    }
    later(&mut alone, 1000);
    all_are_to_get(&mut alone);
    alone.with(|router, cx| router.backfill.recover_others(cx, 1));
    let all = ["zero 2: 0..16", "zero 0: 0..16", "zero 1: 0..16"];
    assert_eq!(is_told(&mut alone, link), all, "nobody is served");
    // Where one push may be started, whoever just got something is given the next.
    alone.with(|_, cx| cx.rates.pace.client_came(cx.now));
    later(&mut alone, 20);
    all_are_to_get(&mut alone);
    let session = alone.osd.shared.groups[1].learners()[0].session;
    alone.with(|router, cx| router.backfill.learner_has(cx, 1, session, ToLearner::Push { cost: 16 }));
    assert_eq!(is_told(&mut alone, link), ["zero 1: 0..16"]);
    // Who is none any more is nobody's turn, and when nobody waits any more nothing is due.
    alone.osd.shared.groups[1].learning_mut().unwrap().forget(LEARNER);
    for _ in 0..3 {
        later(&mut alone, 20);
        alone.with(|router, cx| router.backfill.go_on(cx));
    }
    assert_eq!(is_told(&mut alone, link), ["zero 2: 0..16", "zero 0: 0..16"]);
    assert_eq!(alone.osd.router.backfill.learning, [2, 0]);
    assert_eq!(alone.osd.shared.rates.pace.next_at, None);
}

#[test]
fn what_a_learner_is_told_and_asked_is_behind_what_it_was_pushed_before() {
    let (mut alone, link) = taught(&[(0, 1), (20, 1)]);
    let (other, epoch) = (ObjectKey { object: 4, ..KEY }, alone.osd.shared.groups[0].epoch);
    let [first, last] = [0, 20].map(|block| Work::Range(BlockRange::one(KEY, block)));
    is_to_get(&mut alone, 0, [first, Work::Reached(KEY), Work::Object(other, Sequence(0)), last]);
    goes_on(&mut alone);
    alone.drive_answers();
    assert_eq!(is_told(&mut alone, link), ["write 3: 0..1"]);
    goes_on(&mut alone);
    assert!(is_told(&mut alone, link).is_empty(), "it is not known to have that");
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["reached 3", "blocks of 4"]);
    goes_on(&mut alone);
    // Of another object, and of another epoch.
    says_blocks(&mut alone, link, ObjectEpoch { key: KEY, epoch }, &[1], &[]);
    says_blocks(&mut alone, link, ObjectEpoch { key: other, epoch: Epoch(epoch.0 + 1) }, &[1], &[]);
    alone.drive_answers();
    assert!(is_told(&mut alone, link).is_empty(), "it has not answered");
    says_blocks(&mut alone, link, ObjectEpoch { key: other, epoch }, &[1, 300], &[]);
    alone.drive_answers();
    assert_eq!(is_told(&mut alone, link), ["zero 4: 1..2", "zero 4: 300..301", "write 3: 20..21"]);
}

#[test]
fn objects_are_compared_page_by_page_and_a_learner_is_told_how_far_it_got() {
    let mut alone = Alone::new();
    let data = [7; BLOCK_BYTES];
    let written: Vec<u32> = (0..=66).filter(|object| *object != 30).collect();
    for some in written.chunks(32) {
        alone.with(|_, cx| {
            for object in some {
                let range = BlockRange::one(ObjectKey { object: *object, ..KEY }, 0);
                let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, 0, range);
                cx.operations.live(id).checksums.push(U32::new(crc32c(&data)));
                assert!(order::write(cx, id, &data));
            }
        });
        alone.run();
    }
    let link = lacks_one(&mut alone);
    assert_eq!(learners(&mut alone, link, 0), 1);
    says(&mut alone, link, PG, Sequence(1), &[]);
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["query", "join", "list behind None"]);
    let epoch = alone.osd.shared.groups[0].epoch;
    let (_, end) = alone.osd.store().pg_position(PG).unwrap();
    // Of what is on its first page object 2 may be older, and 30 is nobody else's. 3 it lacks, and 66 is behind the page.
    let held = |object: u32| {
        let through = if object == 2 { Sequence(0) } else { end };
        ObjectHeld { layer: VOLUME.first_layer(), object, block_count: 1, has_doubts: 0, through }
    };
    let first: Vec<ObjectHeld> = (0..=65).filter(|object| *object != 3).map(held).collect();
    hears(&mut alone, link, &Page { pg: PG, epoch, is_last: false }.encode(first.into_iter()));
    assert_eq!(takes_all_but_zeros(&mut alone, link, 30), ["blocks of 2"]);
    let key = ObjectKey { object: 2, ..KEY };
    says_blocks(&mut alone, link, ObjectEpoch { key, epoch }, &[0], &[]);
    // The 64th that both know of is object 64.
    let expected = ["write 2: 0..1", "write 3: 0..1", "reached 64", "reached 65", "list behind Some(65)"];
    assert_eq!(takes_all_but_zeros(&mut alone, link, 3), expected);
    hears(&mut alone, link, &Page { pg: PG, epoch, is_last: true }.encode(std::iter::empty()));
    assert_eq!(takes_all_but_zeros(&mut alone, link, 66), ["write 66: 0..1", "whole"]);
}

#[test]
fn a_learner_without_room_frees_some_before_it_is_given_what_it_lacks() {
    let mut alone = Alone::new();
    alone.order(KEY, 0, 2, 0);
    alone.write(ObjectKey { object: 5, ..KEY });
    let link = lacks_one(&mut alone);
    assert_eq!(learners(&mut alone, link, 0), 1);
    alone.osd.shared.groups[0].learning_mut().unwrap().cramped.insert(LEARNER);
    let log: Vec<LogEntry> = alone.osd.store().pg_log(PG).collect();
    says(&mut alone, link, PG, Sequence(0), &log);
    has_all(&mut alone, link);
    let asked = ["query", "join", "list behind None"];
    assert_eq!(is_told(&mut alone, link), asked, "its log tells what it lacks, and not what it has too much");
    let epoch = alone.osd.shared.groups[0].epoch;
    let (_, end) = alone.osd.store().pg_position(PG).unwrap();
    let held = |object, block_count, through| ObjectHeld {
        layer: VOLUME.first_layer(),
        object,
        block_count,
        has_doubts: 0,
        through,
    };
    let lists = |alone: &mut Alone, is_last: bool, entries: &[ObjectHeld]| {
        hears(alone, link, &Page { pg: PG, epoch, is_last }.encode(entries.iter().copied()));
    };
    // It has an object that nobody else has, and of another one a block; one it lacks.
    lists(&mut alone, false, &[held(3, 3, Sequence(0)), held(7, 1, Sequence(0))]);
    let mut freed = takes_all(&mut alone, link);
    assert_eq!(freed.pop().as_deref(), Some("blocks of 3"));
    assert!(freed.len() == 16 && freed.iter().all(|told| told.starts_with("zero 7: ")), "{freed:?}");
    says_blocks(&mut alone, link, ObjectEpoch { key: KEY, epoch }, &[0, 4], &[0]);
    assert_eq!(takes_all(&mut alone, link), ["zero 3: 4..5", "list behind Some(7)"]);
    lists(&mut alone, true, &[]);
    assert_eq!(takes_all(&mut alone, link), ["list behind None"], "now for what it lacks");
    lists(&mut alone, true, &[held(3, 2, end)]);
    assert_eq!(takes_all_but_zeros(&mut alone, link, 5), ["write 5: 0..1", "whole"]);
}

#[test]
fn an_object_is_looked_into_if_something_of_it_may_differ() {
    let mut alone = Alone::new();
    alone.order(KEY, 0, 2, 0);
    let through = alone.osd.store().last_changed(&KEY);
    let same = ObjectHeld { layer: VOLUME.first_layer(), object: 3, block_count: 2, has_doubts: 0, through };
    let all = [
        same,
        ObjectHeld { through: through.next(), ..same },
        ObjectHeld { through: Sequence(through.0 - 1), ..same },
        ObjectHeld { has_doubts: 1, ..same },
        ObjectHeld { block_count: 1, ..same },
        ObjectHeld { block_count: 3, ..same },
    ];
    let found = alone.with(|_, cx| all.map(|held| is_behind(cx, &KEY, &held)));
    assert_eq!(found, [false, false, true, true, true, true]);
}

#[test]
fn of_an_object_a_learner_gets_what_it_lacks_has_too_much_or_may_have_as_it_came_to_nothing() {
    let (mut alone, link) = taught(&[(7, 3), (17, 1), (100, 1)]);
    let of = ObjectEpoch { key: KEY, epoch: alone.osd.shared.groups[0].epoch };
    let through = alone.osd.store().changed(&KEY, 17).unwrap();
    is_to_get(&mut alone, 0, [Work::Object(KEY, through)]);
    goes_on(&mut alone);
    assert_eq!(is_told(&mut alone, link), ["blocks of 3"]);
    says_blocks(&mut alone, link, of, &[7, 9, 17, 100, 300], &[9]);
    assert_eq!(is_told(&mut alone, link), ["zero 3: 300..301"], "the others are being read");
    alone.drive_answers();
    assert_eq!(is_told(&mut alone, link), ["write 3: 8..10", "write 3: 100..101"]);
}

#[test]
fn what_is_ordered_when_a_learner_joins_is_pushed_and_what_is_only_being_read_is_not() {
    let (mut alone, _) = taught(&[(0, 2)]);
    let (_, last) = alone.osd.store().pg_position(PG).unwrap();
    let mut work = VecDeque::new();
    let entries = alone.with(|_, cx| {
        let [ordered, read] = [0, 1].map(|block| {
            let range = BlockRange::one(KEY, block);
            cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range)
        });
        cx.operations.live(read).state = OperationState::Reading;
        cx.hold(read);
        assert!(order::zero(cx, ordered));
        under_way(cx, 0, last, &mut work)
    });
    let places: Vec<_> = entries.iter().map(|entry| (entry.sequence, entry.first_block)).collect();
    assert_eq!(places, [(last.next(), 0)]);
    assert_eq!(work, [Work::Range(BlockRange::one(KEY, 0))]);
}

#[test]
fn a_push_says_of_each_block_what_it_holds_and_when_it_changed() {
    let (mut alone, link) = taught(&[(0, 2), (4, 1)]);
    let all = BlockRange { block_count: 6, ..BlockRange::whole(KEY) };
    is_to_get(&mut alone, 0, [Work::Range(all)]);
    goes_on(&mut alone);
    assert_eq!(is_told(&mut alone, link), ["zero 3: 2..4", "zero 3: 5..6"]);
    alone.drive_answers();
    let pushed = alone.io.told(link, |message| match message {
        Message::PushWrite(push) => {
            let words: Vec<u32> = push.checksums.iter().map(|word| word.get()).collect();
            Some((push.head.range.blocks(), words, push.data.to_vec()))
        }
        _ => None,
    });
    let changed = [0, 1, 4].map(|block| alone.osd.store().changed(&KEY, block).unwrap().0);
    assert!(changed[0] < changed[2]);
    let [zeroth, first, fourth] = changed.map(|changed| [changed as u32, (changed >> 32) as u32]);
    let sum = |block: u8| crc32c(&[block; BLOCK_BYTES]);
    let two = [&[sum(0), sum(1)][..], &zeroth, &first].concat();
    let one = [&[sum(4)][..], &fourth].concat();
    let data = [[0_u8; BLOCK_BYTES], [1; BLOCK_BYTES]].concat();
    assert_eq!(pushed, [(0..2, two, data), (4..5, one, vec![4; BLOCK_BYTES])]);
    assert_eq!(alone.osd.view().pushed_bytes(), 3 * BLOCK_BYTES as u64);
    // Nothing is held back, or kept, for it any more.
    assert!(!alone.with(|_, cx| cx.must_wait(&all)));
    assert_eq!(alone.osd.view().operations_in_flight(), 0);
}

#[test]
fn a_push_is_behind_what_came_before_it_on_its_blocks_and_before_what_came_behind() {
    let (mut alone, link) = taught(&[(0, 1)]);
    let (range, data) = (BlockRange::one(KEY, 0), [9; BLOCK_BYTES]);
    is_to_get(&mut alone, 0, [Work::Range(range)]);
    alone.with(|_, cx| {
        let id = cx.operations.add_for(OperationKind::Write, Purpose::Deletion, 0, range);
        cx.operations.live(id).checksums.push(U32::new(crc32c(&data)));
        assert!(order::write(cx, id, &data));
    });
    goes_on(&mut alone);
    assert_eq!(reads(&alone), 0, "the write is not done");
    alone.with(|_, cx| {
        let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
        cx.wait(id);
    });
    alone.settles();
    assert_eq!(is_told(&mut alone, link), ["order 3: 0..1", "write 3: 0..1", "order zero 3: 0..1"]);
    assert_eq!(alone.osd.view().operations_in_flight(), 0);
}

/// A learner is to be given five blocks, of which one does not verify at its primary. That asks for it, the learner too.
fn asked_for_a_block() -> (Alone, LinkId, Inquiry) {
    let (mut alone, link) = taught(&[(10, 5)]);
    let place = alone.osd.shared.disk.location_of(KEY, 12).unwrap();
    alone.io.disk[place.0 as usize * BLOCK_BYTES] ^= 1;
    is_to_get(&mut alone, 0, [Work::Range(BlockRange { key: KEY, first_block: 10, block_count: 5 })]);
    goes_on(&mut alone);
    alone.settles();
    let asked = alone.io.told(link, |message| match message {
        Message::Fetch(inquiry) => Some(inquiry),
        Message::Lease(_) => None,
        other => panic!("{other:?}"),
    });
    assert!(asked.len() == 1 && asked[0].range == BlockRange::one(KEY, 12), "{asked:?}");
    (alone, link, asked[0])
}

/// The learner answers that, without a copy.
fn has_none(alone: &mut Alone, link: LinkId, inquiry: Inquiry, status: Status) {
    let found = Found { inquiry, status, through: Sequence(0), written_in: None };
    hears(alone, link, &found.encode(false));
    alone.settles();
}

#[test]
fn a_push_that_meets_damage_goes_on_when_the_block_is_mended() {
    let (mut alone, link, inquiry) = asked_for_a_block();
    let through = alone.osd.store().changed(&KEY, 12).unwrap();
    let found = Found { inquiry, status: Status::Ok, through, written_in: None };
    let data = [12; BLOCK_BYTES];
    hears(&mut alone, link, &[&found.encode(true)[..], &crc32c(&data).to_le_bytes(), &data].concat());
    alone.settles();
    assert_eq!(is_told(&mut alone, link), ["order 3: 12..13", "write 3: 10..15"]);
    assert_eq!(alone.osd.view().damage().mended, 1);
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["whole"]);
}

#[test]
fn what_is_lost_for_good_a_learner_is_told_of_and_gets_all_the_rest() {
    let (mut alone, link, inquiry) = asked_for_a_block();
    has_none(&mut alone, link, inquiry, Status::Damaged);
    let sent = alone.io.to.get(&link).cloned();
    assert_eq!(is_told(&mut alone, link), ["write 3: 10..12", "lost 3: 12..13", "write 3: 13..15"]);
    alone.io.to.insert(link, sent.unwrap());
    let lost = alone.io.told(link, |message| match message {
        Message::PushLost(lost) => Some(lost.words.map(U32::get)),
        _ => None,
    });
    let changed = alone.osd.store().changed(&KEY, 12).unwrap().0;
    assert_eq!(lost, [[crc32c(&[12; BLOCK_BYTES]), changed as u32, (changed >> 32) as u32]]);
    assert_eq!(alone.osd.view().operations_in_flight(), 0);
    assert_eq!(alone.osd.view().pushed_bytes(), 4 * BLOCK_BYTES as u64);
    has_all(&mut alone, link);
    assert_eq!(is_told(&mut alone, link), ["whole"], "it is as good as any other");
}

#[test]
fn a_learner_is_given_up_for_longer_while_somebody_else_may_have_what_it_is_to_get() {
    let (mut alone, link, inquiry) = asked_for_a_block();
    has_none(&mut alone, link, inquiry, Status::NotActive);
    assert!(is_told(&mut alone, link).is_empty());
    assert_eq!(alone.osd.view().operations_in_flight(), 0);
    let given_up_at = alone.now;
    for (pause, expected) in [(LEARN_PAUSE_LONG - Duration::from_nanos(1), 0), (LEARN_PAUSE_LONG, 1)] {
        assert_eq!(learners_at(&mut alone, link, given_up_at + pause), expected, "after {pause:?}");
    }
}
