//! What a mechanism has of the rest of its OSD while it handles something.
//!
//! A mechanism owns what only it changes. What several need stands here, each part behind an interface of its own. No
//! mechanism calls one that calls it back: what it has done by another is a [`Task`], which the router carries out when the
//! mechanism is done, before anything else.

use crate::broken::{Broken, Sabotage};
use crate::damage::{Absence, Damage};
use crate::disk::Disk;
use crate::group::Groups;
use crate::io::Io;
use crate::journal::{Journal, Milestone};
use crate::ledger::{Ledger, StagedRecord};
use crate::links::presence::Presence;
use crate::links::{Awaited, Links, Peer};
use crate::operation::{Asked, MendReason, OperationId, OperationKind, OperationState, Operations, Purpose};
use crate::pace::Pace;
use crate::volumes::Volumes;
use base::figures::RequestKind;
use base::{BLOCK_BYTES, BlockRange, ClusterId, Epoch, Instant, LinkId, ObjectKey, OsdId};
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

/// How far members were asked for the one block that an operation needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    pub(crate) id: OperationId,
    /// How many of them were asked so far.
    pub(crate) asked: usize,
    /// What those and this OSD said.
    pub(crate) absence: Absence,
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

/// What several mechanisms need, as an OSD holds it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) turn: Turn,
    pub(crate) disk: Disk,
    pub(crate) ledger: Ledger,
    pub(crate) links: Links,
    pub(crate) presence: Presence,
    pub(crate) groups: Groups,
    pub(crate) operations: Operations,
    pub(crate) volumes: Volumes,
    pub(crate) damage: Damage,
    pub(crate) pace: Pace,
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
    pub(crate) operations: &'a mut Operations,
    pub(crate) volumes: &'a mut Volumes,
    pub(crate) damage: &'a mut Damage,
    pub(crate) pace: &'a mut Pace,
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

    /// Whether this OSD serves nothing more: its drive failed, or it is being shut down.
    pub(crate) fn is_leaving(&self) -> bool {
        self.disk.store.failure().is_some() || self.turn.is_shutting_down
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

    // Operations.

    /// Whether a new operation of these blocks must wait for another.
    pub(crate) fn must_wait(&self, group: u32, range: &BlockRange) -> bool {
        self.groups[group].line.must_wait(range)
    }

    /// Puts an operation at the end of its group's line.
    pub(crate) fn wait(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        let is_read = operation.kind == OperationKind::Read;
        self.groups[operation.group].line.wait(id, is_read, &operation.range);
        self.operations.count_waiting(id);
    }

    /// Has an operation hold back what is on its blocks, or comes there, until it has ended.
    pub(crate) fn hold(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        self.groups[operation.group].line.hold(id, &operation.range);
    }

    /// Issues the reads of an operation's parts.
    pub(crate) fn read_parts(&mut self, id: OperationId) {
        // Of what waited there may be very much at once.
        let has_waited = self.operations.shares.has(id.slot);
        let operation = self.operations.live(id);
        let is_first = matches!(operation.purpose, Purpose::Client(_)) && !has_waited;
        self.disk.read_parts(id, operation, is_first, self.io);
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
        let operation = self.operations.live(id);
        operation.state = OperationState::Waiting;
        let (group, is_read) = (operation.group, operation.kind == OperationKind::Read);
        self.groups[group].line.put_back(id, is_read, &operation.range);
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
        self.pace.client_was_served(self.now, moved);
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
            Status::NotPrimary | Status::NotActive | Status::StaleEpoch | Status::BeyondEnd => {
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
        self.release_parts(id);
        let operation = self.operations.live(id);
        let (group, key) = (operation.group, operation.range.key);
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
    pub(crate) fn report_damage(&mut self, id: OperationId, block: u16, status: Status) {
        let operation = self.operations.live(id);
        let (key, purpose) = (operation.range.key, operation.purpose);
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
