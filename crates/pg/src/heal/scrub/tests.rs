//! What a scrub asks of whom and when, what it finds, and what becomes of that.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::epoch;
use crate::testing::{Alone, PG, Pair, VOLUME};
use base::LayerId;
use base::Sequence;
use wire::{Message, ObjectHeld, Page};

#[test]
fn a_digest_tells_which_block_has_which_checksum() {
    let of = |blocks: &[(u16, u32)]| blocks.iter().fold(0, |all, (block, crc)| with_block(all, *block, *crc));
    assert_eq!(of(&[(1, 5), (2, 6)]), of(&[(1, 5), (2, 6)]));
    assert_ne!(of(&[(1, 5), (2, 6)]), of(&[(1, 6), (2, 5)]));
    assert_ne!(of(&[(1, 5)]), of(&[(2, 5)]));
    assert_ne!(of(&[(1, 5)]), of(&[]));
}

#[test]
fn a_scrub_asks_every_member_and_ends_with_a_report() {
    let mut pair = Pair::new();
    let write = pair.write_of(10, 7);
    pair.ask(&write);
    pair.run();
    assert!(pair.alone.osd.begin_scrub(PG, false));
    pair.turn();
    assert!(pair.heard.iter().any(|message| message.starts_with("ListObjects")), "{:?}", pair.heard);
    // The replica has no object that this OSD has not, and says the same of the one that both have.
    let epoch = pair.alone.osd.shared.groups[0].epoch;
    pair.hears(&Page { pg: PG, epoch, is_last: true }.encode(std::iter::empty()));
    let checking = pair.alone.osd.router.scrubs.current.as_ref().and_then(|scrub| scrub.checking.as_ref());
    let checking = checking.expect("it checks what there is");
    let inquiry = Inquiry { request: checking.id.number(), range: checking.run.range, epoch };
    let findings = look_into_index(pair.alone.osd.store(), &inquiry);
    pair.hears(&Checked { inquiry, findings }.encode());
    pair.run();
    let reports = pair.alone.osd.take_scrub_reports();
    assert_eq!(reports.len(), 1);
    assert_eq!((reports[0].objects, reports[0].found), (1, 0));
    assert!(pair.alone.osd.view().scrub_is_over());
}

/// A scrub of a group begins in which this OSD has no object. Its members are asked which they have.
fn begun() -> (Pair, Page) {
    let mut pair = Pair::new();
    assert!(pair.alone.osd.begin_scrub(PG, false));
    pair.turn();
    let epoch = pair.alone.osd.shared.groups[0].epoch;
    (pair, Page { pg: PG, epoch, is_last: false })
}

/// An object as a member lists it.
fn held(object: u32) -> ObjectHeld {
    ObjectHeld { layer: VOLUME.first_layer(), object, block_count: 1, has_doubts: 0, through: Sequence(0) }
}

/// A member lists so many objects, from that one on.
fn lists(pair: &mut Pair, page: Page, from: u32, count: u32) {
    let entries: Vec<ObjectHeld> = (from..from + count).map(held).collect();
    pair.hears(&page.encode(entries.into_iter()));
}

/// How many objects a scrub is going to look at, and whether a member is still asked for more.
fn listed(pair: &Pair) -> (usize, bool) {
    let scrub = pair.alone.osd.router.scrubs.current.as_ref().unwrap();
    (scrub.objects.len() + scrub.report.objects as usize, scrub.listing.is_some())
}

#[test]
fn a_member_that_lists_objects_out_of_order_or_without_end_is_asked_no_more() {
    for (from, count) in [(5, 10), (0, 3), (14, 1), (14, 2), (15, 0)] {
        let (mut pair, page) = begun();
        lists(&mut pair, page, 5, 10);
        assert_eq!(listed(&pair), (10, true));
        lists(&mut pair, page, from, count);
        assert_eq!(listed(&pair), (10, false), "{count} from {from} on");
    }
    let (mut pair, page) = begun();
    let count = wire::ENTRIES_MAX as u32;
    let pages = (UNKNOWN_OBJECTS_MAX / wire::ENTRIES_MAX) as u32;
    (0..pages).for_each(|number| lists(&mut pair, page, number * count, count));
    assert_eq!(listed(&pair), (UNKNOWN_OBJECTS_MAX, true));
    lists(&mut pair, page, pages * count, 1);
    assert_eq!(listed(&pair), (UNKNOWN_OBJECTS_MAX, false));
}

#[test]
fn a_scrub_that_is_asked_for_twice_is_done_once_and_as_deep_as_the_deeper() {
    let mut scrubs = Scrubs::default();
    assert!(scrubs.enqueue(PG, false) && scrubs.enqueue(PG, true) && scrubs.enqueue(PG, false));
    assert_eq!(scrubs.queue, [(PG, true)]);
    assert!(scrubs.enqueue(PG.child(1), false));
    assert_eq!(scrubs.queue, [(PG, true), (PG.child(1), false)]);
}

#[test]
fn so_many_groups_wait_for_their_scrub_and_no_more() {
    let mut scrubs = Scrubs::default();
    let mut waits = |index| scrubs.enqueue(PgId { index, ..PG }, false);
    let most = QUEUE_MAX as u32;
    assert!((0..most).all(&mut waits) && !waits(most));
}

#[test]
fn a_scrub_ends_with_the_epoch() {
    let mut pair = Pair::new();
    assert!(pair.alone.osd.begin_scrub(PG, true));
    pair.turn();
    assert!(!pair.alone.osd.view().scrub_is_over());
    let (now, link) = (pair.alone.now, pair.link);
    pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
    pair.run();
    assert!(pair.alone.osd.view().scrub_is_over() && pair.alone.osd.take_scrub_reports().is_empty());
}

/// The object that is scrubbed.
const OBJECT: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };

/// What blocks that are full of their own numbers are in short, under that key if they are read.
fn findings_of(blocks: &[u16], deep: Option<u64>) -> Findings {
    let mut findings = Findings::default();
    let [index, data] = &mut findings.digest;
    for block in blocks {
        let bytes = [*block as u8; BLOCK_BYTES];
        *index = with_block(*index, *block, crc32c(&bytes));
        if let Some(key) = deep {
            let key: [u8; 16] = u128::from(key).to_le_bytes();
            *data = mixed(*data, keyed_hash(&key, [&bytes[..]]));
        }
    }
    findings
}

/// The OSD with two replicas, OSD 1 and 2, for which a test speaks. No time passes but what a test lets pass.
struct Three {
    alone: Alone,
    links: [LinkId; 2],
    /// The blocks of [`OBJECT`] that all members have.
    blocks: Vec<u16>,
}

impl Three {
    /// The group has these blocks, so many from each of these on.
    fn new(runs: &[(u16, u16)]) -> Three {
        let mut alone = Alone::new();
        for (first_block, block_count) in runs {
            alone.order(OBJECT, *first_block, *block_count, 0);
        }
        let links = [1, 2].map(|osd| alone.connect(OsdId(osd)));
        let group = &mut alone.osd.shared.groups[0];
        group.config.in_sync = [0, 1, 2].map(OsdId).to_vec();
        group.wanted.target.clone_from(&group.config.in_sync);
        (group.wanted.size, group.wanted.min_size) = (3, 2);
        alone.io.to.clear();
        let blocks = runs.iter().flat_map(|(first_block, count)| *first_block..first_block + count).collect();
        Three { alone, links, blocks }
    }

    /// So much time passes, and the scrub goes on if it is time for that.
    fn passes(&mut self, time: Duration) {
        self.alone.now = self.alone.now + time;
        self.alone.with(|router, cx| router.scrubs.advance(cx));
    }

    /// Somebody says that.
    fn hears(&mut self, link: LinkId, bytes: &[u8]) {
        let Alone { osd, io, now } = &mut self.alone;
        osd.handle_bytes(*now, link, bytes, io).unwrap();
    }

    fn epoch(&self) -> Epoch {
        self.alone.osd.shared.groups[0].epoch
    }

    /// A replica, by its number here, has these objects, and no others if it is the last page.
    fn lists(&mut self, replica: usize, is_last: bool, objects: &[u32]) {
        let entries: Vec<ObjectHeld> = objects.iter().map(|object| held(*object)).collect();
        let page = Page { pg: PG, epoch: self.epoch(), is_last };
        self.hears(self.links[replica], &page.encode(entries.into_iter()));
    }

    /// Behind which objects a replica was asked for more.
    fn asked_to_list(&mut self, replica: usize) -> Vec<Option<(LayerId, u32)>> {
        self.alone.io.told(self.links[replica], |message| match message {
            Message::ListObjects(wanted) => Some(wanted.after),
            _ => None,
        })
    }

    /// A scrub begins; a replica has these objects too.
    fn begin(&mut self, is_deep: bool, others: &[u32]) {
        assert!(self.alone.osd.begin_scrub(PG, is_deep));
        self.passes(Duration::ZERO);
        self.lists(1, true, others);
        self.lists(0, true, &[]);
    }

    /// What a replica was asked to check.
    fn asked(&mut self, replica: usize) -> Vec<Check> {
        self.alone.io.told(self.links[replica], |message| match message {
            Message::Check(check) => Some(check),
            _ => None,
        })
    }

    /// The one check that both replicas were asked for.
    fn check(&mut self) -> Check {
        let asked = self.asked(0);
        assert_eq!(asked, self.asked(1));
        let [check] = &asked[..] else { panic!("{asked:?}") };
        *check
    }

    /// What a member finds that has what it should.
    fn same(&self, check: &Check) -> Findings {
        let range = check.inquiry.range;
        let is_meant = |block: &&u16| range.key == OBJECT && range.blocks().contains(*block);
        let blocks: Vec<u16> = self.blocks.iter().filter(is_meant).copied().collect();
        findings_of(&blocks, check.deep)
    }

    /// Somebody answers a check.
    fn finds(&mut self, link: LinkId, check: &Check, findings: Findings) {
        self.hears(link, &Checked { inquiry: check.inquiry, findings }.encode());
    }

    /// All members answer the check that is under way, the replicas with what `findings` makes of what they should find; then
    /// it is time for the next. Answers what was checked.
    fn answer(&mut self, findings: impl Fn(usize, &Check, Findings) -> Findings) -> Check {
        let check = self.check();
        self.alone.drive_answers();
        for (replica, link) in self.links.into_iter().enumerate() {
            let found = findings(replica, &check, self.same(&check));
            self.finds(link, &check, found);
        }
        let next_at = self.alone.osd.router.scrubs.next_at.expect("it pauses before the next one");
        self.passes(next_at.since(self.alone.now));
        check
    }

    /// The members agree about what is checked.
    fn agree(&mut self) -> Check {
        self.answer(|_, _, same| same)
    }

    fn is_over(&self) -> bool {
        self.alone.osd.view().scrub_is_over()
    }

    /// The members agree until the scrub is over. Answers the blocks that were checked.
    fn complete(&mut self) -> Vec<(u16, u16)> {
        let mut checked = Vec::new();
        while !self.is_over() {
            checked.push(blocks_of(&self.agree()));
        }
        checked
    }

    /// The blocks that are being mended, and why.
    fn mends(&self) -> Vec<(u16, Purpose)> {
        let shared = &self.alone.osd.shared;
        let operations = shared.lines.all(0).filter_map(|id| shared.operations.get(id));
        let mends = operations.filter(|operation| matches!(operation.purpose, Purpose::Mend(_)));
        let mut mends: Vec<_> = mends.map(|mend| (mend.range.first_block, mend.purpose)).collect();
        mends.sort_unstable_by_key(|(block, _)| *block);
        mends
    }

    /// A block gives back something else than was written.
    fn rots(&mut self, block: u16) {
        rots(&mut self.alone, block);
    }
}

fn blocks_of(check: &Check) -> (u16, u16) {
    let BlockRange { first_block, block_count, .. } = check.inquiry.range;
    (first_block, block_count)
}

fn rots(alone: &mut Alone, block: u16) {
    let place = alone.osd.shared.disk.location_of(OBJECT, block).unwrap();
    alone.io.disk[place.0 as usize * BLOCK_BYTES] ^= 1;
}

#[test]
fn a_deep_scrub_compares_indexes_and_then_reads_all_blocks_of_all_objects() {
    let mut three = Three::new(&[(66, 6), (1000, 2)]);
    three.begin(true, &[9]);
    let mut keys = BTreeSet::new();
    for object in [3, 9] {
        for number in 0..17 {
            let left = u64::from(object == 3);
            assert_eq!(three.alone.osd.view().scrub_progress(), Some((PG, true, left)), "{object}");
            let check = three.agree();
            assert_eq!(check.inquiry.range.key, ObjectKey { object, ..OBJECT });
            let blocks = if number == 0 { (0, 1024) } else { ((number - 1) * 64, 64) };
            assert_eq!((blocks_of(&check), check.deep.is_some()), (blocks, number > 0));
            keys.extend(check.deep);
        }
    }
    assert_eq!(keys.len(), 32, "each check has a key of its own");
    assert!(three.is_over() && three.alone.osd.view().scrub_progress().is_none());
    let bytes = 2 * 1024 * BLOCK_BYTES as u64;
    let report = ScrubReport { pg: PG, is_deep: true, objects: 2, bytes, found: 0 };
    assert_eq!(three.alone.osd.take_scrub_reports(), [report]);
    assert_eq!(three.alone.osd.view().operations_in_flight(), 0);
    assert_eq!(three.alone.osd.view().damage().found, 0);
    assert!(!three.alone.osd.view().notes().any(|note| note.contains("damaged data")));
}

#[test]
fn a_scrub_waits_for_the_one_before_it_and_is_not_done_beside_one_that_is_as_deep() {
    let mut three = Three::new(&[(0, 1)]);
    three.begin(false, &[]);
    let scrubs = |three: &Three, pg, is_deep| three.alone.osd.router.scrubs.does(pg, is_deep);
    assert!(scrubs(&three, PG, false));
    assert!(!scrubs(&three, PG, true) && !scrubs(&three, PG.child(1), false));
    assert!(three.alone.osd.begin_scrub(PG, false) && three.alone.osd.router.scrubs.queue.is_empty());
    assert!(three.alone.osd.begin_scrub(PG, true));
    assert_eq!(three.alone.osd.router.scrubs.queue, [(PG, true)]);
    three.passes(Duration::ZERO);
    assert_eq!(three.alone.osd.view().scrub_progress(), Some((PG, false, 0)));
    three.alone.osd.shared.turn.next_tick = three.alone.now + ANSWER_MAX;
    three.agree();
    assert!(three.alone.osd.view().scrub_progress().is_none() && !three.is_over());
    assert_eq!(three.alone.osd.next_timeout(), three.alone.now, "the next one begins at once");
    three.passes(Duration::ZERO);
    assert!(three.alone.osd.router.scrubs.does(PG, false) && three.alone.osd.router.scrubs.does(PG, true));
    three.lists(1, true, &[]);
    three.lists(0, true, &[]);
    three.complete();
    let reports = three.alone.osd.take_scrub_reports();
    let told: Vec<_> = reports.iter().map(|report| (report.is_deep, report.objects, report.bytes)).collect();
    assert_eq!(told, [(false, 1, 0), (true, 1, 1024 * BLOCK_BYTES as u64)]);
}

#[test]
fn a_group_that_does_not_serve_is_not_scrubbed_and_keeps_no_other_waiting() {
    let mut alone = Alone::with_groups(3);
    alone.with(|router, cx| {
        epoch::end(cx, 1, "a test");
        for index in [9, 1, 2] {
            assert!(router.scrubs.enqueue(PgId { index, ..PG }, false));
        }
        router.scrubs.advance(cx);
    });
    let report = ScrubReport { pg: PG.child(2), is_deep: false, objects: 0, bytes: 0, found: 0 };
    assert_eq!(alone.osd.take_scrub_reports(), [report]);
}

#[test]
fn members_are_asked_for_their_objects_one_after_the_other_and_nobody_else_is_heard() {
    let mut three = Three::new(&[(0, 1)]);
    assert!(three.alone.osd.begin_scrub(PG, false));
    three.passes(Duration::ZERO);
    assert_eq!((three.asked_to_list(0), three.asked_to_list(1)), (vec![], vec![None]));
    // The other member, and pages of another group or of another epoch.
    three.lists(0, true, &[5]);
    let (link, epoch) = (three.links[1], three.epoch());
    for (pg, epoch) in [(PG.child(1), epoch), (PG, Epoch(epoch.0 - 1))] {
        let page = Page { pg, epoch, is_last: true };
        three.hears(link, &page.encode([held(5)].into_iter()));
    }
    assert_eq!(three.alone.osd.view().scrub_progress(), Some((PG, false, 1)));
    assert!(three.asked_to_list(0).is_empty() && three.asked_to_list(1).is_empty());
    three.lists(1, false, &[7]);
    assert_eq!(
        (three.asked_to_list(0), three.asked_to_list(1)),
        (vec![], vec![Some((VOLUME.first_layer(), 7))])
    );
    three.lists(1, true, &[8]);
    assert_eq!((three.asked_to_list(0), three.asked_to_list(1)), (vec![None], vec![]));
    three.lists(0, true, &[4]);
    three.complete();
    assert_eq!(three.alone.osd.take_scrub_reports()[0].objects, 4);
}

#[test]
fn a_check_is_over_when_all_members_have_answered_it_and_nobody_else_has_a_say() {
    let mut three = Three::new(&[(0, 2)]);
    three.begin(false, &[]);
    let check = three.check();
    let (same, other) = (three.same(&check), Findings { damaged: 0, digest: [1, 1] });
    let request = check.inquiry.request ^ 1;
    let earlier = Check { inquiry: Inquiry { request, ..check.inquiry }, ..check };
    let stranger = three.alone.connect(OsdId(3));
    let [one, two] = three.links;
    three.finds(one, &earlier, other);
    three.finds(stranger, &check, other);
    three.finds(one, &check, same);
    // A second time.
    three.finds(one, &check, other);
    let is_checking = |three: &Three| {
        let scrub = three.alone.osd.router.scrubs.current.as_ref().unwrap();
        scrub.checking.is_some()
    };
    assert!(is_checking(&three) && three.alone.osd.router.scrubs.next_at.is_none());
    three.finds(two, &check, same);
    assert!(!is_checking(&three));
    three.passes(Duration::ZERO);
    let report = ScrubReport { pg: PG, is_deep: false, objects: 1, bytes: 0, found: 0 };
    assert_eq!(three.alone.osd.take_scrub_reports(), [report]);
}

#[test]
fn what_this_osd_reads_itself_is_awaited_as_what_others_do_and_no_memory_is_held_for_longer() {
    let mut three = Three::new(&[(0, 2), (64, 1)]);
    three.begin(true, &[]);
    three.agree();
    let check = three.check();
    three.alone.drive_answers();
    let disk = &three.alone.osd.shared.disk;
    assert_eq!((disk.small.available(), disk.large.available()), (disk.small.count(), disk.large.count()));
    let [one, two] = three.links;
    three.finds(one, &check, three.same(&check));
    three.finds(two, &check, three.same(&check));
    let next_at = three.alone.osd.router.scrubs.next_at.expect("all have answered");
    three.passes(next_at.since(three.alone.now));
    let check = three.check();
    three.finds(one, &check, three.same(&check));
    three.finds(two, &check, three.same(&check));
    assert_eq!(three.alone.osd.router.scrubs.next_at, None, "its own drive has not answered");
    three.alone.drive_answers();
    assert!(three.alone.osd.router.scrubs.next_at.is_some());
}

#[test]
fn a_scrub_pauses_longer_while_clients_are_served_and_reads_no_more_than_it_may() {
    let milliseconds = Duration::from_millis;
    for (is_deep, took, idle, pause) in [
        (false, milliseconds(400), milliseconds(1000), milliseconds(100)),
        (false, milliseconds(400), milliseconds(999), milliseconds(3600)),
        (false, milliseconds(556), milliseconds(0), PAUSE_MAX),
        (false, milliseconds(9999), milliseconds(0), PAUSE_MAX),
        (true, milliseconds(400), milliseconds(1000), milliseconds(100)),
        (true, milliseconds(0), milliseconds(1000), Duration::from_nanos(2_621_440)),
    ] {
        let mut three = Three::new(&[(0, 1)]);
        three.begin(is_deep, &[9]);
        if is_deep {
            three.agree();
        }
        let check = three.check();
        three.alone.drive_answers();
        three.alone.now = three.alone.now + took;
        three.alone.osd.shared.turn.active_at = three.alone.now - idle;
        for link in three.links {
            three.finds(link, &check, three.same(&check));
        }
        let moment = Duration::from_nanos(1);
        three.passes(pause - moment);
        assert!(three.asked(0).is_empty(), "{is_deep} {took:?} {idle:?}: sooner than {pause:?}");
        three.passes(moment);
        assert_eq!(three.asked(0).len(), 1, "{is_deep} {took:?} {idle:?}: later than {pause:?}");
        assert_eq!(three.alone.osd.router.scrubs.next_at, None, "until it is answered");
    }
}

#[test]
fn a_check_waits_for_what_is_under_way_on_its_blocks_and_holds_back_what_comes() {
    let mut three = Three::new(&[(0, 2)]);
    let change = |three: &mut Three, is_under_way: bool| {
        three.alone.with(|_, cx| {
            let range = BlockRange::one(OBJECT, 1);
            assert_eq!(cx.must_wait(&range), !is_under_way);
            let id = cx.operations.add_for(OperationKind::Zero, Purpose::Deletion, 0, range);
            if is_under_way {
                cx.hold(id)
            } else {
                cx.wait(id)
            }
            id
        })
    };
    let before = change(&mut three, true);
    three.begin(false, &[]);
    assert!(three.asked(0).is_empty() && three.asked(1).is_empty());
    let half = Duration::from_secs(6);
    three.passes(half);
    assert!(three.asked(0).is_empty() && !three.is_over());
    three.alone.with(|_, cx| {
        cx.lines.ended(before);
        cx.forget(before);
        cx.then(Task::StartWaiting { group: 0 });
    });
    let check = three.check();
    let behind = change(&mut three, false);
    // Only now is it waited for who does not answer.
    three.passes(half);
    assert!(!three.is_over());
    let state = |three: &Three| three.alone.osd.shared.operations.get(behind).unwrap().state;
    assert_eq!(state(&three), OperationState::Waiting);
    for link in three.links {
        three.finds(link, &check, three.same(&check));
    }
    assert_eq!(state(&three), OperationState::Replicating);
    assert_eq!(three.alone.osd.view().operations_in_flight(), 1);
}

#[test]
fn a_scrub_is_given_up_when_a_member_does_not_answer_for_ten_seconds() {
    let moment = Duration::from_nanos(1);
    let is_given_up_then = |three: &mut Three| {
        three.passes(ANSWER_MAX - moment);
        assert!(!three.is_over());
        three.passes(moment);
        assert!(three.is_over() && three.alone.osd.take_scrub_reports().is_empty());
        assert_eq!(three.alone.osd.view().operations_in_flight(), 0);
        assert!(!three.alone.osd.shared.lines.must_wait(&BlockRange::whole(OBJECT)));
    };
    let mut three = Three::new(&[(0, 1)]);
    assert!(three.alone.osd.begin_scrub(PG, false));
    three.passes(Duration::ZERO);
    three.passes(Duration::from_secs(6));
    three.lists(1, true, &[]);
    is_given_up_then(&mut three);
    three.begin(false, &[]);
    let check = three.check();
    let [one, two] = three.links;
    three.finds(one, &check, three.same(&check));
    is_given_up_then(&mut three);
    // It comes too late.
    three.finds(two, &check, three.same(&check));
    assert!(three.is_over() && three.alone.osd.take_scrub_reports().is_empty());
}

#[test]
fn a_scrub_ends_with_its_epoch_whatever_is_under_way() {
    let mut three = Three::new(&[(0, 1)]);
    // Another epoch serves by the next time that it is looked at, in a pause and in a check.
    for is_checking in [false, true] {
        three.begin(true, &[]);
        let check = three.check();
        if !is_checking {
            for link in three.links {
                three.finds(link, &check, three.same(&check));
            }
            assert!(three.alone.osd.router.scrubs.next_at.is_some());
        }
        let group = &mut three.alone.osd.shared.groups[0];
        group.epoch = Epoch(group.epoch.0 + 1);
        three.passes(Duration::ZERO);
        assert!(three.is_over(), "{is_checking}");
        assert_eq!(three.alone.osd.view().operations_in_flight(), 0);
        three.passes(Duration::ZERO);
        assert_eq!(three.alone.osd.router.scrubs.next_at, None, "nothing is due any more");
    }
    // It ends in a check of indexes, and while the drive is read.
    for is_reading in [false, true] {
        let mut three = Three::new(&[(0, 1)]);
        three.begin(true, &[]);
        if is_reading {
            three.agree();
        }
        three.check();
        three.alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        three.passes(Duration::ZERO);
        assert!(three.is_over(), "{is_reading}");
        three.alone.drive_answers();
        assert_eq!(three.alone.osd.view().operations_in_flight(), 0);
        assert!(three.alone.osd.take_scrub_reports().is_empty());
    }
}

#[test]
fn what_does_not_verify_is_mended_and_what_lies_between_is_checked_again() {
    let mut three = Three::new(&[(66, 6)]);
    three.rots(69);
    three.begin(true, &[]);
    three.agree();
    three.agree();
    let check = three.answer(|replica, _, same| match replica {
        0 => Findings { damaged: 1 << 2, ..same },
        _ => same,
    });
    assert_eq!(blocks_of(&check), (64, 64));
    let mends = [(66, MendReason::OtherDamaged), (69, MendReason::Damaged)];
    assert_eq!(three.mends(), mends.map(|(block, reason)| (block, Purpose::Mend(reason))));
    assert_eq!(three.alone.osd.view().damage().found, 1, "here");
    let notes = three.alone.osd.view().notes().filter(|note| note.contains("a scrub found it"));
    assert_eq!(notes.count(), 1);
    let checked = three.complete();
    assert_eq!(checked[..4], [(70, 58), (67, 2), (64, 2), (128, 64)]);
    assert_eq!(checked.len(), 3 + 14);
    let bytes = (1024 + 58 + 2 + 2) * BLOCK_BYTES as u64;
    let report = ScrubReport { pg: PG, is_deep: true, objects: 1, bytes, found: 2 };
    assert_eq!(three.alone.osd.take_scrub_reports(), [report]);
}

#[test]
fn of_blocks_that_the_drive_does_not_give_only_those_are_damaged_that_it_cannot_read() {
    let mut three = Three::new(&[(66, 6)]);
    let place = three.alone.osd.shared.disk.location_of(OBJECT, 70).unwrap();
    three.alone.io.bad = Some(u64::from(place.0) * BLOCK_BYTES as u64);
    three.begin(true, &[]);
    three.agree();
    three.agree();
    let check = three.check();
    // All at once, and then one by one.
    three.alone.drive_answers();
    three.alone.drive_answers();
    let current = three.alone.osd.router.scrubs.current.as_ref();
    let findings = &current.and_then(|scrub| scrub.checking.as_ref()).expect("others are awaited").findings;
    let sound = findings_of(&[66, 67, 68, 69, 71], check.deep);
    assert_eq!(findings[&OsdId(0)], Findings { damaged: 1 << 6, ..sound });
}

#[test]
fn where_members_differ_they_are_asked_ever_closer_and_what_most_of_them_hold_is_right() {
    for (by, reason) in [
        ([1, 0], MendReason::OtherDamaged),
        ([0, 1], MendReason::OtherDamaged),
        ([1, 1], MendReason::Outvoted(OsdId(1))),
        // All differ.
        ([1, 2], MendReason::OtherDamaged),
    ] {
        let mut three = Three::new(&[(66, 6)]);
        three.begin(false, &[]);
        let mut checked = Vec::new();
        while !three.is_over() {
            let check = three.answer(|replica, check, same| {
                let [index, data] = same.digest;
                let is_there = check.inquiry.range.blocks().contains(&70);
                Findings { digest: [if is_there { index ^ by[replica] } else { index }, data], ..same }
            });
            checked.push(blocks_of(&check));
        }
        checked.sort_unstable();
        let parts = |first: u16, size: u16, count: u16| {
            let starts = (first..).step_by(size.into()).take(count.into());
            starts.map(move |start| (start, size))
        };
        let closer = parts(0, 64, 16).chain(parts(64, 4, 16)).chain(parts(68, 1, 4));
        let mut expected: Vec<(u16, u16)> = closer.chain([(0, 1024)]).collect();
        expected.sort_unstable();
        assert_eq!(checked, expected);
        assert_eq!(three.mends(), [(70, Purpose::Mend(reason))], "{by:?}");
        assert_eq!(three.alone.osd.take_scrub_reports()[0].found, 1);
    }
}

#[test]
fn nobody_finds_damage_where_it_was_not_asked_to_read() {
    let mut three = Three::new(&[(66, 6)]);
    three.begin(true, &[]);
    let answer = |three: &mut Three, damaged: u64| {
        let check = three.answer(|replica, _, same| match replica {
            0 => Findings { damaged, ..same },
            _ => same,
        });
        blocks_of(&check)
    };
    // It was asked for its index.
    assert_eq!(answer(&mut three, u64::MAX), (0, 1024));
    assert_eq!(answer(&mut three, 1 << 63), (0, 64));
    // That one is mended, and was not asked for again.
    assert_eq!(answer(&mut three, 1 << 63), (0, 63));
    let checked = three.complete();
    assert_eq!((checked[0], checked.len()), ((64, 64), 15));
    let mends = [63].map(|block| (block, Purpose::Mend(MendReason::OtherDamaged)));
    assert_eq!(three.mends(), mends);
    assert_eq!(three.alone.osd.take_scrub_reports()[0].found, 1);
}

#[test]
fn what_is_looked_at_more_closely_ends_where_its_object_does() {
    let mut three = Three::new(&[(1000, 2)]);
    three.begin(true, &[]);
    for _ in 0..16 {
        three.agree();
    }
    // One of the last blocks does not verify at a replica, and behind it the members differ.
    let check = three.answer(|replica, _, same| match replica {
        0 => Findings { damaged: 1 << 10, ..same },
        _ => same,
    });
    assert_eq!(blocks_of(&check), (960, 64));
    let check = three.answer(|replica, _, same| {
        let [index, data] = same.digest;
        Findings { digest: [index ^ replica as u64, data], ..same }
    });
    assert_eq!(blocks_of(&check), (971, 53));
    let mut checked = three.complete();
    checked.sort_unstable();
    let parts = (0..17).map(|part| (971 + 3 * part, 3));
    let expected: Vec<(u16, u16)> = [(960, 10)].into_iter().chain(parts).chain([(1022, 2)]).collect();
    assert_eq!(checked, expected);
}

#[test]
fn a_member_answers_its_primary_from_its_index_or_by_reading() {
    let (mut alone, primary) = (Alone::new(), OsdId(1));
    alone.order(OBJECT, 0, 2, 0);
    alone.order(OBJECT, 66, 6, 0);
    let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
    let link = alone.connect(primary);
    alone.is_led_by(primary, epoch);
    alone.query(link, PG, 1, epoch);
    let range = BlockRange { key: OBJECT, first_block: 64, block_count: 64 };
    let answer = |alone: &mut Alone, epoch, deep| {
        alone.io.to.clear();
        let check = Check { inquiry: Inquiry { request: 5, range, epoch }, deep };
        alone.osd.handle_bytes(alone.now, link, &check.encode(), &mut alone.io).unwrap();
        alone.drive_answers();
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
        alone.io.told(link, |message| match message {
            Message::Checked(checked) => Some(checked),
            _ => None,
        })
    };
    let inquiry = Inquiry { request: 5, range, epoch };
    for deep in [None, Some(0x0123_4567_89ab_cdef)] {
        let findings = findings_of(&[66, 67, 68, 69, 70, 71], deep);
        assert_eq!(answer(&mut alone, epoch, deep), [Checked { inquiry, findings }]);
    }
    rots(&mut alone, 69);
    let findings = Findings { damaged: 1 << 5, ..findings_of(&[66, 67, 68, 70, 71], Some(7)) };
    assert_eq!(answer(&mut alone, epoch, Some(7)), [Checked { inquiry, findings }]);
    assert_eq!(alone.osd.view().damage().found, 1);
    // Of other epochs it says nothing.
    assert!(answer(&mut alone, Epoch(epoch.0 + 1), None).is_empty());
    assert!(answer(&mut alone, Epoch(epoch.0 - 1), Some(7)).is_empty());
}
