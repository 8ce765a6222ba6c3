//! What a mechanism has of the rest of its OSD while it handles something.
//!
//! A mechanism owns what only it changes. What several need stands here, each part behind an interface of its own. No
//! mechanism calls one that calls it back: what it has done by another is a [`Task`], which the router carries out when the
//! mechanism is done, before anything else.

use crate::broken::{Broken, Sabotage};
use crate::damage::{Absence, Damage};
use crate::disk::Disk;
use crate::group::Groups;
use crate::group::line::Lines;
use crate::io::Io;
use crate::journal::{Journal, Milestone};
use crate::ledger::{Ledger, StagedRecord};
use crate::limits::Throttle;
use crate::links::presence::Presence;
use crate::links::{Awaited, Links, Peer};
use crate::mclock::Mclock;
use crate::operation::{Asked, MendReason, OperationId, OperationKind, OperationState, Operations, Purpose};
use crate::pace::Pace;
use crate::volumes::Volumes;
use base::figures::RequestKind;
use base::{BLOCK_BYTES, BlockRange, ClusterId, Epoch, Instant, LinkId, ObjectKey, OsdId, WorkClass};
use std::time::Duration;
use store::StageError;
use wire::{Outcome, RefusalDetails, Status};

/// How soon something is looked at again that may change at any moment.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Whether a message was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    Done,
    /// Not yet: it is to come again after the next turn.
    Stalled,
}

/// Who this OSD is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Me {
    pub(crate) id: OsdId,
    pub(crate) cluster: ClusterId,
    pub(crate) broken: Broken,
}

/// The most members that are asked for a block: more than a group has, with all that it had.
const ASKED_MAX: usize = 16;

/// Members that were asked for something, or that could not be. Maps change who is one meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AskedMembers {
    osds: [OsdId; ASKED_MAX],
    count: usize,
}

impl AskedMembers {
    pub(crate) fn has(&self, osd: OsdId) -> bool {
        self.osds[..self.count].contains(&osd)
    }

    /// One more is. `false` if there are too many.
    pub(crate) fn note(&mut self, osd: OsdId) -> bool {
        let Some(place) = self.osds.get_mut(self.count) else { return false };
        (*place, self.count) = (osd, self.count + 1);
        true
    }
}

/// How far members were asked for the one block that an operation needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(crate) id: OperationId,
    pub(crate) asked: AskedMembers,
    /// What those and this OSD said.
    pub(crate) absence: Absence,
}

impl Fetch {
    /// Nobody was asked yet.
    pub(crate) fn begin(id: OperationId, absence: Absence) -> Fetch {
        Fetch { id, asked: AskedMembers::default(), absence }
    }
}

/// What a mechanism has done by another.
#[derive(Debug)]
pub(crate) enum Task {
    /// Blocks of the group became free: start what waited for them.
    StartWaiting { group: u32 },
    /// Write a block anew.
    Mend { group: u32, range: BlockRange, reason: MendReason },
    /// Ask the members for the one block that a repair needs.
    Fetch(Fetch),
    /// Ask this one.
    FetchFrom(Fetch, OsdId),
    /// Blocks were compared, or shall not be any more.
    EndCheck { id: OperationId, group: u32 },
    /// All that was to be read for an operation is there: it was holes.
    WereHoles(OperationId),
    /// All members have the mark of the group's epoch, or a repair.
    RepairDone { group: u32 },
    /// The store would not take one.
    RepairFailed { group: u32, error: StageError },
}

/// When what is looked at next, and what is to be done before the present input is handled.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// When the slow things are looked at.
    pub(crate) next_tick: Instant,
    /// When there last was work.
    pub(crate) active_at: Instant,
    /// Groups with operations or repairs that wait for room, to be looked at with the end of the turn.
    pub(crate) blocked: Vec<u32>,
    /// The newest at the end.
    pub(crate) tasks: Vec<Task>,
    /// How much was begun of what waited ([`crate::request::queue`]).
    pub(crate) work: usize,
    /// All objects of a group were gone through for another OSD: that is done once in a turn, whoever asks.
    pub(crate) has_listed: bool,
    /// Something was left although it could be done, for it is the turn of others.
    pub(crate) goes_on: bool,
    /// For that the next turn is to be at once.
    pub(crate) next_is_due: bool,
    /// Nothing new is begun.
    pub(crate) is_shutting_down: bool,
    pub(crate) is_shut_down: bool,
}

/// An OSD that had nothing to do for so long is at rest.
pub(crate) const REST_AFTER: Duration = Duration::from_secs(5);

impl Turn {
    /// Looks at what waits in a group with the end of this turn, or of the next one if that is now.
    pub(crate) fn look_again(&mut self, group: u32) {
        if !self.blocked.contains(&group) {
            self.blocked.push(group);
        }
    }

    /// Looks at the slow things soon.
    pub(crate) fn tick_soon(&mut self, now: Instant) {
        self.next_tick = self.next_tick.min(now + LOOK_AGAIN);
    }

    /// Whether there was work a short while ago.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        now.since(self.active_at) < REST_AFTER
    }
}

/// How fast what is begun that could be begun at once.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// Of what is pushed to learners.
    pub(crate) pace: Pace,
    /// Of what clients ask for, by limits.
    pub(crate) limits: Throttle,
    /// Of what they ask for of several volumes.
    pub(crate) mclock: Mclock,
}

/// What several mechanisms need, as an OSD holds it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) turn: Turn,
    pub(crate) disk: Disk,
    pub(crate) ledger: Ledger,
    pub(crate) links: Links,
    pub(crate) presence: Presence,
    pub(crate) groups: Groups,
    pub(crate) lines: Lines,
    pub(crate) operations: Operations,
    pub(crate) volumes: Volumes,
    pub(crate) damage: Damage,
    pub(crate) rates: Rates,
    pub(crate) journal: Journal,
}

/// See the module's documentation.
pub(crate) struct Context<'a, I> {
    pub(crate) me: Me,
    pub(crate) now: Instant,
    pub(crate) turn: &'a mut Turn,
    pub(crate) disk: &'a mut Disk,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) links: &'a mut Links,
    pub(crate) presence: &'a mut Presence,
    pub(crate) groups: &'a mut Groups,
    pub(crate) lines: &'a mut Lines,
    pub(crate) operations: &'a mut Operations,
    pub(crate) volumes: &'a mut Volumes,
    pub(crate) damage: &'a mut Damage,
    pub(crate) rates: &'a mut Rates,
    pub(crate) journal: &'a mut Journal,
    pub(crate) io: &'a mut I,
}

impl<I: Io> Context<'_, I> {
    pub(crate) fn breaks(&self, promise: Sabotage) -> bool {
        self.me.broken.is(promise)
    }

    /// Has something done by another mechanism when this one is done.
    pub(crate) fn then(&mut self, task: Task) {
        self.turn.tasks.push(task);
    }

    pub(crate) fn pass(&mut self, milestone: Milestone) {
        self.journal.pass(milestone);
    }

    pub(crate) fn note(&mut self, text: String) {
        self.journal.note(text);
    }

    // Who is there.

    /// Whether an OSD answers: the connection stands, and it grants leases, or was not asked for long.
    pub(crate) fn is_present(&self, osd: OsdId) -> bool {
        self.presence.is_present(self.links, osd, self.now)
    }

    /// Whether an OSD can take part in an epoch that begins now: it answers, and counts as up in the registry. Who does not
    /// reach that gets no map by which it would know whom to obey.
    pub(crate) fn can_follow(&self, osd: OsdId) -> bool {
        self.is_present(osd) && self.volumes.is_up(osd)
    }

    /// Whether this OSD serves nothing: its drive failed, or does nothing for now, or it is being shut down.
    pub(crate) fn is_leaving(&self) -> bool {
        self.disk.store.failure().is_some()
            || self.disk.patience.is_silent(self.now)
            || self.turn.is_shutting_down
    }

    /// Whether no replica of a group may take it over now: only then may what is read be served.
    pub(crate) fn has_leases(&self, group: u32) -> bool {
        let in_sync = &self.groups[group].config.in_sync;
        in_sync.iter().all(|osd| *osd == self.me.id || self.presence.leases.holds(*osd, self.now))
    }

    // What is staged and sent.

    /// The epoch under which a write is put into the log.
    pub(crate) fn recorded_epoch(&self, epoch: Epoch) -> Epoch {
        if self.breaks(Sabotage::ReuseSequence) { Epoch(1) } else { epoch }
    }

    /// Notes what was staged of a group with the ledger's next token.
    pub(crate) fn note_staged(&mut self, group: u32, record: StagedRecord) {
        self.ledger.note(group, record, self.groups);
    }

    /// How many bytes whoever is at the other end of a link leaves unread, but for those that it may have been sent as a learner.
    pub(crate) fn unread_bytes(&self, link: LinkId) -> usize {
        let unread_bytes = self.io.unsent_bytes(link);
        match self.links.get(link) {
            Some(Peer::Osd(peer)) => peer.unacknowledged.beside_learners(unread_bytes),
            _ => unread_bytes,
        }
    }

    /// Sends a message that counts as replicated.
    pub(crate) fn send_replicated(&mut self, link: LinkId, awaited: Awaited, bytes: &[u8]) {
        if let Some(peer) = self.links.osd_mut(link) {
            peer.sends(awaited);
            self.io.send(link, bytes);
        }
    }

    // Work that no client waits for.

    /// Something of a class is begun that costs so much.
    pub(crate) fn work_begins(&mut self, class: WorkClass, cost: u32) {
        let share = self.volumes.map.share_of(class);
        self.rates.pace.work_begins(self.now, class, cost, share);
    }

    // Operations.

    /// Whether a new operation of these blocks must wait for another.
    pub(crate) fn must_wait(&self, range: &BlockRange) -> bool {
        self.lines.must_wait(range)
    }

    /// Puts an operation at the end of its group's line.
    pub(crate) fn wait(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        let is_read = operation.kind == OperationKind::Read;
        self.lines.wait(operation.group, id, is_read, &operation.range);
        self.operations.count_waiting(id);
    }

    /// Has an operation hold back what is on its blocks, or comes there, until it has ended.
    pub(crate) fn hold(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        self.lines.hold(operation.group, id, &operation.range);
    }

    /// Issues the reads of an operation's parts.
    pub(crate) fn read_parts(&mut self, id: OperationId) {
        // Of what waited there may be very much at once.
        let has_waited = self.operations.shares.has(id.slot);
        let operation = self.operations.live(id);
        let is_first = matches!(operation.purpose, Purpose::Client(_)) && !has_waited;
        self.disk.read_parts(id, operation, is_first, self.io);
        if operation.parts_awaited == 0 {
            self.then(Task::WereHoles(id));
        }
    }

    /// Gives the buffers of an operation's parts back.
    pub(crate) fn release_parts(&mut self, id: OperationId) {
        self.disk.release_parts(self.operations.live(id));
    }

    /// Ends an operation without a word.
    pub(crate) fn forget(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        if let Purpose::Peer { link, .. } = operation.purpose
            && let Some(peer) = self.links.osd_mut(link)
        {
            peer.inquiries.read_ended();
        }
        if let Some(payload) = operation.payload.take_held() {
            self.disk.put(payload);
        }
        self.disk.release_parts(operation);
        self.operations.remove(id);
    }

    /// The same of one for which the drive may still work: then it goes when the drive is done.
    pub(crate) fn abandon(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        if operation.parts_awaited > 0 {
            operation.state = OperationState::Abandoned;
        } else {
            self.forget(id);
        }
    }

    /// Has an operation wait again, before all others: for room in the store, or for a block to be mended.
    pub(crate) fn put_back(&mut self, id: OperationId) {
        self.operations.under_way.ends(id.slot);
        let operation = self.operations.live(id);
        operation.state = OperationState::Waiting;
        let (group, is_read) = (operation.group, operation.kind == OperationKind::Read);
        self.lines.put_back(group, id, is_read, &operation.range);
        self.turn.look_again(group);
    }

    /// Refuses whoever an operation is for.
    pub(crate) fn refuse(&mut self, purpose: Purpose, status: Status) {
        if let Purpose::Client(asked) = purpose {
            let details = RefusalDetails { osd: self.me.id, ..RefusalDetails::default() };
            self.refuse_client(&asked, status, details);
        }
    }

    pub(crate) fn refuse_client(&mut self, asked: &Asked, status: Status, details: RefusalDetails) {
        self.pass(Milestone::refused(status));
        self.count_refused(asked.kind, status);
        self.io.send(asked.link, &Outcome::refused(asked.request, status, details));
    }

    /// A client's request was done.
    pub(crate) fn count_done(&mut self, asked: &Asked, group: u32) {
        let Asked { link, volume, kind, bytes, at, .. } = *asked;
        let bytes = u64::from(bytes);
        self.journal.figures.of_mut(kind).done(bytes, self.now.since(at));
        // What zeroes takes as long for one block as for many.
        let moved = if matches!(kind, RequestKind::Read | RequestKind::Write) { bytes } else { 0 };
        self.rates.pace.client_was_served(self.now, moved);
        self.groups[group].traffic.count(kind, bytes);
        if let Some(volume) = self.volumes.get_mut(volume) {
            volume.traffic.count(kind, bytes);
        }
        if let Some(Peer::Client(client)) = self.links.get_mut(link) {
            client.traffic.count(kind, bytes);
        }
    }

    /// A request was refused.
    pub(crate) fn count_refused(&mut self, kind: RequestKind, status: Status) {
        let figures = self.journal.figures.of_mut(kind);
        match status {
            // Whoever asked goes elsewhere, or asks again.
            Status::NotPrimary
            | Status::NotActive
            | Status::StaleEpoch
            | Status::BeyondEnd
            | Status::Frozen => {
                figures.redirected += 1;
            }
            _ => figures.errors += 1,
        }
    }

    // Damage.

    /// Whether a mend of a block may help: it is not known to be lost, and the group serves.
    pub(crate) fn can_mend(&mut self, group: u32, key: ObjectKey, block: u16) -> bool {
        self.groups[group].is_active() && !self.damage.is_lost(self.disk, self.now, key, block)
    }

    /// Has a block written anew, if that may help.
    pub(crate) fn mend(&mut self, group: u32, key: ObjectKey, block: u16, reason: MendReason) {
        if self.can_mend(group, key, block) {
            self.then(Task::Mend { group, range: BlockRange::one(key, block), reason });
        }
    }

    /// Gives back what was read for an operation that met damage, and lets it wait until the block is mended. `false` when
    /// it cannot be.
    ///
    /// It waits before whatever came after it: its client may be fenced by now, and what the next holder of the volume
    /// does to the same blocks must find it done.
    pub(crate) fn wait_for_mend(&mut self, id: OperationId, block: u16) -> bool {
        let operation = self.operations.live(id);
        let (group, key) = (operation.group, operation.key_of(block));
        self.release_parts(id);
        if !self.can_mend(group, key, block) {
            return false;
        }
        self.met_damage(key, block);
        // It is looked at again with the end of the turn, for the mend may come to nothing at once.
        self.put_back(id);
        self.then(Task::Mend { group, range: BlockRange::one(key, block), reason: MendReason::Damaged });
        true
    }

    /// Counts a block that does not verify here, and tells the operator.
    pub(crate) fn met_damage(&mut self, key: ObjectKey, block: u16) {
        self.damage.counts.found += 1;
        self.note(format!("damaged data: block {block} of {key} on {}", self.me.id));
    }

    /// Tells whoever an operation is for, and the operator, of damage that cannot be mended.
    pub(crate) fn report_damage(&mut self, id: OperationId, key: ObjectKey, block: u16, status: Status) {
        let purpose = self.operations.live(id).purpose;
        if !self.damage.cannot_be_read(key, block) {
            // A member that is away may have a sound copy: the client waits for it.
            self.damage.counts.found += 1;
            return self.refuse(purpose, Status::NotActive);
        }
        self.met_damage(key, block);
        if let Purpose::Client(asked) = purpose {
            let offset = u32::from(block) * BLOCK_BYTES as u32;
            let details = RefusalDetails { offset, osd: self.me.id, ..RefusalDetails::default() };
            self.refuse_client(&asked, status, details);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::{Alone, PG, Pair, VOLUME};
    use base::Tenant;
    use wire::{Kind, Message, Request};

    const CLIENT: LinkId = LinkId(99);
    const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };

    #[test]
    fn a_group_is_looked_at_once_in_a_turn_and_slow_things_no_later_than_they_were_to_be() {
        let mut turn = Turn::default();
        [3, 5, 3].into_iter().for_each(|group| turn.look_again(group));
        assert_eq!(turn.blocked, [3, 5]);
        let now = Instant::default() + Duration::from_secs(10);
        let soon = now + Duration::from_millis(1);
        for (due, expected) in [(now + 2 * LOOK_AGAIN, now + LOOK_AGAIN), (soon, soon)] {
            turn.next_tick = due;
            turn.tick_soon(now);
            assert_eq!(turn.next_tick, expected);
        }
        turn.active_at = now;
        assert!(turn.is_busy(now + (REST_AFTER - Duration::from_nanos(1))));
        assert!(!turn.is_busy(now + REST_AFTER));
    }

    fn told(alone: &mut Alone) -> Vec<Status> {
        alone.io.told(CLIENT, |message| match message {
            Message::Reply(reply) => Some(reply.head.status),
            _ => None,
        })
    }

    #[test]
    fn whatever_is_under_way_when_an_epoch_ends_is_answered_once_and_gives_its_memory_back() {
        let mut pair = Pair::new();
        for block in [10, 11] {
            let write = pair.write_of(block, 7);
            pair.ask(&write);
            pair.run();
        }
        pair.acknowledges = false;
        let write = pair.write_of(12, 7);
        assert_eq!(pair.ask(&write), None);
        pair.turns(5);
        // The edges of one are being read, and a block for a client. Two wait for the one that the replica does not acknowledge.
        let (offset, length) = (11 * BLOCK_BYTES as u32 + 100, 50);
        let head = Request { offset, length, ..pair.request(11) }.encode(Kind::Write);
        let data = [9; 50];
        let edges = [&head[..], &base::crc32c(&data).to_le_bytes(), &data].concat();
        let reads = [10, 12].map(|block| pair.request(block).encode(Kind::Read));
        pair.ask(&[&edges[..], &reads[0], &reads[1], &pair.write_of(12, 8)].concat());
        assert_eq!(pair.alone.osd.view().operations_in_flight(), 5);
        pair.alone.with(|_, cx| crate::epoch::end(cx, 0, "a test"));
        assert_eq!(told(&mut pair.alone), [Status::NotActive; 4]);
        assert_eq!(pair.alone.osd.view().operations_in_flight(), 2, "the drive still works for them");
        pair.alone.drive_answers();
        assert_eq!(told(&mut pair.alone), [Status::NotActive]);
        assert_eq!(pair.alone.osd.view().operations_in_flight(), 0);
        let disk = &pair.alone.osd.shared.disk;
        let free = (disk.small.available(), disk.large.available(), disk.spare_bytes.all());
        assert_eq!(free, (disk.small.count(), disk.large.count(), 0));
        let shares = pair.alone.osd.shared.operations.shares.all();
        assert_eq!((shares.operations, shares.bytes), (0, 0));
    }

    #[test]
    fn only_bytes_that_are_moved_count_beside_operations_for_how_much_is_pushed() {
        for (kind, expected_us) in [
            (RequestKind::Read, 5_000..5_500),
            (RequestKind::Write, 5_000..5_500),
            (RequestKind::Zero, 11_000..12_000),
            (RequestKind::Allocated, 11_000..12_000),
        ] {
            let mut alone = Alone::new();
            alone.with(|_, cx| {
                let (tenant, bytes, at) = (Tenant::NOBODY, 4 * BLOCK_BYTES as u32, cx.now);
                let asked = Asked {
                    link: CLIENT,
                    tenant,
                    request: 1,
                    volume: VOLUME,
                    kind,
                    unverified: false,
                    bytes,
                    at,
                };
                (0..2000).for_each(|_| cx.count_done(&asked, 0));
            });
            // Four for each operation, and four blocks if they were moved.
            let paused_us = alone.pause_behind_pushes().as_micros();
            assert!(expected_us.contains(&paused_us), "{kind:?}: {paused_us} us");
        }
    }

    /// A pair whose primary has a block on a place of its drive that gives back something else. The replica has it.
    fn damaged() -> Pair {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.run();
        let place = pair.alone.osd.shared.disk.location_of(KEY, 10).unwrap();
        pair.alone.io.disk[place.0 as usize * BLOCK_BYTES] ^= 1;
        pair.block = Some(vec![7; BLOCK_BYTES]);
        pair
    }

    #[test]
    fn a_read_that_met_damage_is_answered_once_and_with_what_the_mend_brought() {
        let mut pair = damaged();
        let read = pair.request(10).encode(Kind::Read);
        pair.ask(&read);
        pair.run();
        let told = &pair.alone.io.to[&CLIENT];
        let (message, size) = wire::parse(told).unwrap().expect("it is answered");
        let Message::Reply(reply) = message else { panic!("by a reply") };
        assert_eq!((reply.head.status, size), (Status::Ok, told.len()));
        assert!(reply.data == [7; BLOCK_BYTES] && reply.checksums[0].get() == base::crc32c(reply.data));
        let disk = &pair.alone.osd.shared.disk;
        assert_eq!((disk.small.available(), disk.large.available()), (4, 4));
        let damage = pair.alone.osd.view().damage();
        assert_eq!((damage.found, damage.mended), (1, 1));
        assert_eq!(damage.renewals, 1, "what a start needs is written anew");
        assert!(pair.alone.osd.view().notes().any(|note| note.starts_with("damaged data: block 10 of")));
    }

    #[test]
    fn damage_that_a_member_may_have_sound_is_no_loss_to_a_client_and_counts_each_time() {
        let mut pair = damaged();
        pair.garbles = true;
        let read = pair.request(10).encode(Kind::Read);
        pair.ask(&read);
        pair.run();
        assert_eq!(pair.told(), Some(Status::NotActive), "it is to try again");
        assert_eq!(pair.alone.osd.view().damage().found, 2);
        let figures = pair.alone.osd.view().figures().read;
        assert_eq!((figures.errors, figures.redirected), (0, 1));
    }
}
