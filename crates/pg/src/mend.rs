//! How damage is repaired: a block that does not verify here is fetched from another member and written anew.
//!
//! Whoever meets damage while it reads (a client's read, the edges of an unaligned write, a push, a repair, a scrub)
//! starts a *mend* of that block and waits behind it. A mend is an operation on its block, and first in line: it waits for
//! what is under way there, and holds back all that waits. So no write is in flight on the block, every member in sync has
//! the same content, and what another one answers is right if it matches the checksum in this OSD's index. It is ordered
//! as a write to all members, which puts it at a new place of every drive.
//!
//! A block of which no member has a copy that verifies is *lost*: reads of it fail until it is written or zeroed anew.
//! While a member is away that may have one, they wait instead.

use crate::io::Io;
use crate::milestone::Milestone;
use crate::operation::{OperationId, OperationKind, OperationState, Origin};
use crate::osd::Osd;
use crate::sabotage::Sabotage;
use base::log_entry::REPAIR;
use base::{BLOCK_BYTES, Instant, LinkId, ObjectKey, OsdId, PgId, VolumeId, crc32c};
use std::time::Duration;
use store::Location;
use wire::{Checksums, Inquiry, Status, encode};
use zerocopy::little_endian::U32;

/// How long a member may take to answer before the next one is asked.
const FETCH_MAX: Duration = Duration::from_secs(2);
/// Lost blocks that are remembered one by one.
const LOST_MAX: usize = 4096;
/// A drive that could not read a block for so long, whenever it was tried, will not read it any more.
const UNREADABLE_FOR: Duration = Duration::from_secs(60);
/// Two failures so far apart are not the same: in between nobody looked.
const UNREADABLE_GAP: Duration = Duration::from_secs(30);
/// How long members are not asked again for a block that nobody had.
const LOST_PAUSE: Duration = Duration::from_secs(1);

/// Why a block is written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MendReason {
    /// It does not verify here.
    Damaged,
    /// It does not verify, or differs, at another member: what this OSD has is written to all.
    OtherDamaged,
    /// Most members hold something else than this OSD: what that one has is written to all.
    Outvoted(OsdId),
}

/// How sure it is that nobody has a block, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Absence {
    /// A member that did not answer may have it.
    Unknown,
    /// Every member answered, and a drive could not read what it has.
    Unreadable,
    /// No member has a copy that verifies.
    Certain,
}

impl Absence {
    pub(crate) fn of(status: Status) -> Absence {
        match status {
            Status::NotActive => Absence::Unknown,
            Status::DeviceFailed => Absence::Unreadable,
            _ => Absence::Certain,
        }
    }
}

/// A block that another member was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetching {
    id: OperationId,
    link: LinkId,
    /// How many members were asked so far.
    asked: usize,
    /// What those and this OSD said.
    absence: Absence,
    since: Instant,
}

/// A block that nobody had, and where this OSD's damaged copy lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    location: Location,
    /// When members were asked last.
    since: Instant,
    /// When they were asked for it first, of the times that followed each other closely.
    first_at: Instant,
    absence: Absence,
}

impl Lost {
    /// Whether no other time will show a sound copy.
    fn is_for_good(&self) -> bool {
        match self.absence {
            Absence::Unknown => false,
            Absence::Unreadable => self.since.since(self.first_at) >= UNREADABLE_FOR,
            Absence::Certain => true,
        }
    }
}

/// What became of damage that was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageCounts {
    /// Blocks that did not verify when they were read, here or at a member that a scrub asked.
    pub found: u64,
    /// Blocks that were written anew.
    pub mended: u64,
}

/// A block of which no member has a copy that verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBlock {
    /// Its group.
    pub pg: PgId,
    /// Its volume.
    pub volume: VolumeId,
    /// The 4 MiB piece of it.
    pub object: u32,
    /// The 4 KiB block of that.
    pub block: u16,
}

impl Osd {
    /// Whether a mend of a block may help: it is not known to be lost, and the group serves.
    pub(crate) fn can_mend(&mut self, group: u32, key: ObjectKey, block: u16) -> bool {
        self.groups[group as usize].is_active() && !self.is_lost(key, block)
    }

    /// Starts to mend a block, if that may help and is not under way, or puts the mend before all that waits: whoever
    /// needs the block is among them.
    pub(crate) fn mend(
        &mut self,
        group: u32,
        key: ObjectKey,
        block: u16,
        reason: MendReason,
        io: &mut impl Io,
    ) {
        if self.can_mend(group, key, block) {
            self.begin_mend(group, key, block, reason, io);
        }
    }

    /// The same where it was found that it may help.
    pub(crate) fn begin_mend(
        &mut self,
        group: u32,
        key: ObjectKey,
        block: u16,
        reason: MendReason,
        io: &mut impl Io,
    ) {
        let is_mend = |id: &OperationId| {
            self.operations
                .get(*id)
                .is_some_and(|other| other.kind == OperationKind::Mend && other.overlaps(&key, block, 1))
        };
        let state = &mut self.groups[group as usize];
        if state.in_flight.iter().any(is_mend) {
            return;
        }
        if let Some(at) = state.waiting.iter().position(is_mend) {
            let waiting = state.waiting.remove(at).expect("it was found there");
            state.waiting.push_front(waiting);
            return;
        }
        let has_conflict = self.has_conflict(group, &key, block, 1, 0);
        let (id, operation) = self.operations.add();
        operation.kind = OperationKind::Mend;
        operation.origin = Origin::Mend(reason);
        operation.group = group;
        operation.key = key;
        operation.first_block = block;
        operation.block_count = 1;
        operation.offset = u32::from(block) * BLOCK_BYTES as u32;
        operation.length = BLOCK_BYTES as u32;
        if has_conflict {
            self.groups[group as usize].waiting.push_front(id);
        } else {
            self.start_mend(id, io);
        }
    }

    /// Its block is free: looks at what is there now.
    pub(crate) fn start_mend(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (key, block, group) = (operation.key, operation.first_block, operation.group);
        operation.state = OperationState::Reading;
        let origin = operation.origin;
        self.milestones.pass(match origin {
            Origin::Mend(MendReason::Outvoted(_)) => Milestone::MendOutvoted,
            Origin::Mend(MendReason::OtherDamaged) => Milestone::MendOtherDamaged,
            _ => Milestone::MendDamaged,
        });
        if self.sabotage != Some(Sabotage::StaleMend) {
            self.groups[group as usize].in_flight.push_back(id);
        }
        self.look_up(id, &key, block, 1);
        let is_hole = self.operations.live(id).parts[0].location.is_none();
        match origin {
            Origin::Mend(MendReason::Outvoted(osd)) => self.fetch_from(id, osd, 0, Absence::Certain, io),
            Origin::Mend(MendReason::OtherDamaged) if is_hole => self.order_mended(id, None, io),
            // It was written anew since.
            _ if is_hole => self.end_mend(id, io),
            _ => self.read_parts(id, io),
        }
    }

    /// The drive answered.
    pub(crate) fn mend_was_read(&mut self, id: OperationId, io: &mut impl Io) {
        let damage = self.first_damage(id);
        let operation = self.operations.live(id);
        match (damage, operation.origin) {
            (Some((_, status)), _) => {
                self.release_parts(id);
                self.fetch_next(id, 0, Absence::of(status), io);
            }
            (None, Origin::Mend(MendReason::OtherDamaged)) => {
                let buffer = operation.parts[0].buffer.take().expect("it was read without damage");
                self.order_mended(id, Some(&buffer.bytes()[..BLOCK_BYTES]), io);
                self.put_buffer(buffer);
            }
            // It was written anew, or the drive thought better of it.
            (None, _) => {
                let (key, block) = (operation.key, operation.first_block);
                self.lost.remove(&(key, block));
                self.release_parts(id);
                self.end_mend(id, io);
            }
        }
    }

    /// Asks the next member for the one block that an operation needs.
    pub(crate) fn fetch_next(&mut self, id: OperationId, asked: usize, absence: Absence, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let group = &self.groups[operation.group as usize];
        let mut members: Vec<OsdId> = group.replicas(self.id).collect();
        // The copy of a learner, or of who was a member before, may be the last good one; whether it is the right one its
        // checksum tells.
        for osd in group.wanted_learners().chain(group.config.learners.iter().copied()) {
            if osd != self.id && !members.contains(&osd) {
                members.push(osd);
            }
        }
        let is_there = |osd: &OsdId| self.ready_link(*osd).is_some();
        let skipped = members.iter().skip(asked).take_while(|osd| !is_there(osd)).copied();
        let absence = if skipped.clone().all(|osd| self.is_gone(osd)) { absence } else { Absence::Unknown };
        let index = asked + skipped.count();
        match members.get(index) {
            Some(osd) => self.fetch_from(id, *osd, index + 1, absence, io),
            None => self.nobody_has(id, absence, io),
        }
    }

    pub(crate) fn fetch_from(
        &mut self,
        id: OperationId,
        osd: OsdId,
        asked: usize,
        absence: Absence,
        io: &mut impl Io,
    ) {
        let Some(link) = self.ready_link(osd) else {
            return self.fetch_instead(id, asked, Absence::Unknown, io);
        };
        let operation = self.operations.live(id);
        operation.state = OperationState::Fetching;
        let inquiry = Inquiry {
            request: id.number(),
            key: operation.key,
            epoch: self.groups[operation.group as usize].epoch,
            first_block: operation.first_block,
            block_count: 1,
        };
        self.fetching.push(Fetching { id, link, asked, absence, since: self.now });
        io.send(link, &encode::fetch(&inquiry));
    }

    /// Gives up on members that do not answer.
    pub(crate) fn advance_fetching(&mut self, io: &mut impl Io) {
        let mut index = 0;
        while let Some(fetching) = self.fetching.get(index).copied() {
            let is_alive = self.operations.get(fetching.id).is_some();
            let is_late =
                self.now.since(fetching.since) >= FETCH_MAX || !self.peers.contains_key(&fetching.link);
            if is_alive && !is_late {
                index += 1;
                continue;
            }
            self.fetching.swap_remove(index);
            if is_alive {
                self.milestones.pass(Milestone::FetchLate);
                self.fetch_instead(fetching.id, fetching.asked, Absence::Unknown, io);
            }
        }
    }

    /// A member's answer to a fetch.
    pub(crate) fn handle_fetched(
        &mut self,
        link: LinkId,
        inquiry: &Inquiry,
        status: Status,
        checksums: Checksums<'_>,
        data: &[u8],
        io: &mut impl Io,
    ) {
        let is_meant = |fetching: &Fetching| fetching.id.number() == inquiry.request && fetching.link == link;
        let Some(index) = self.fetching.iter().position(is_meant) else { return };
        let fetching = self.fetching.swap_remove(index);
        let id = fetching.id;
        let Some(operation) = self.operations.get(id) else { return };
        // What this one has is taken for right, whatever this OSD has.
        let is_trusted =
            matches!(operation.origin, Origin::Mend(MendReason::Outvoted(_)) | Origin::Adoption(_));
        let expected = match (is_trusted, checksums.first()) {
            (true, Some(theirs)) => theirs.get(),
            _ => operation.checksums[0].get(),
        };
        let verifies = data.len() == BLOCK_BYTES
            && (crc32c(data) == expected || self.sabotage == Some(Sabotage::TrustFetched));
        if status == Status::Ok {
            let in_sync = &self.groups[operation.group as usize].config.in_sync;
            let is_learner = |osd: &OsdId| self.osd_links.get(osd) == Some(&link) && !in_sync.contains(osd);
            if !verifies && !is_trusted {
                self.milestones.pass(Milestone::FetchedWrong);
            } else if self.osd_links.keys().any(is_learner) {
                self.milestones.pass(Milestone::FetchedFromLearner);
            }
        }
        if status == Status::Ok && verifies {
            self.order_mended(id, Some(data), io);
        } else if status == Status::Ok && data.is_empty() && is_trusted {
            self.order_mended(id, None, io);
        } else {
            self.fetch_instead(id, fetching.asked, fetching.absence.min(Absence::of(status)), io);
        }
    }

    /// A member that was asked has no sound copy.
    fn fetch_instead(&mut self, id: OperationId, asked: usize, absence: Absence, io: &mut impl Io) {
        match self.operations.live(id).origin {
            // Only what that one has is taken for right; the next scrub asks again.
            Origin::Mend(MendReason::Outvoted(_)) => self.nobody_has(id, absence, io),
            Origin::Adoption(_) => self.adopt_next(id, asked, io),
            _ => self.fetch_next(id, asked, absence, io),
        }
    }

    /// Orders what a block shall hold as a write to all members, `None` for zeros.
    fn order_mended(&mut self, id: OperationId, data: Option<&[u8]>, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let group = operation.group;
        operation.state = OperationState::Reading;
        match operation.origin {
            Origin::Mend(_) => operation.tag = REPAIR,
            Origin::Adoption(osd) => {
                operation.origin = Origin::Repair;
                self.adopted(id, osd);
            }
            _ => {}
        }
        let operation = self.operations.live(id);
        let origin = operation.origin;
        let is_ordered = match data {
            Some(data) => {
                operation.checksums.clear();
                operation.checksums.push(U32::new(crc32c(data)));
                self.order_write(id, data, io)
            }
            None => {
                operation.kind = OperationKind::Zero;
                self.order_zero(id, io)
            }
        };
        if is_ordered {
            return;
        }
        if origin == Origin::Repair {
            return self.repair_must_come_again(id);
        }
        // The store has no room right now: it begins anew, before what waits.
        let operation = self.operations.live(id);
        (operation.kind, operation.state) = (OperationKind::Mend, OperationState::Waiting);
        let state = &mut self.groups[group as usize];
        state.in_flight.retain(|other| *other != id);
        state.waiting.push_front(id);
        self.look_again(group);
    }

    /// No member has a copy that verifies.
    fn nobody_has(&mut self, id: OperationId, absence: Absence, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (key, block, origin) = (operation.key, operation.first_block, operation.origin);
        if let Some(location) = self.location_of(key, block)
            && !matches!(origin, Origin::Mend(MendReason::Outvoted(_)))
        {
            if self.lost.len() >= LOST_MAX {
                self.lost.pop_first();
            }
            let since = self.now;
            self.milestones.pass(match absence {
                Absence::Certain => Milestone::LostCertain,
                Absence::Unreadable => Milestone::LostUnreadable,
                Absence::Unknown => Milestone::LostUncertain,
            });
            let is_same =
                |lost: &&Lost| lost.location == location && since.since(lost.since) < UNREADABLE_GAP;
            let before = self.lost.get(&(key, block)).filter(is_same);
            let first_at = before.map_or(since, |lost| lost.first_at);
            let lost = Lost { location, since, first_at, absence };
            if self.lost.insert((key, block), lost).is_none() {
                self.note(format!(
                    "no member that can be reached has a sound copy of block {block} of {key}"
                ));
            }
        }
        if origin == Origin::Repair { self.adopt_next(id, 0, io) } else { self.end_mend(id, io) }
    }

    fn end_mend(&mut self, id: OperationId, io: &mut impl Io) {
        let group = self.operations.live(id).group;
        self.groups[group as usize].in_flight.retain(|other| *other != id);
        self.forget_operation(id);
        self.start_waiting(group, io);
    }

    fn location_of(&mut self, key: ObjectKey, block: u16) -> Option<Location> {
        self.scratch_extents.clear();
        self.scratch_checksums.clear();
        self.store.lookup(&key, block, 1, &mut self.scratch_extents, &mut self.scratch_checksums);
        self.scratch_extents.first().and_then(|extent| extent.location)
    }

    /// Whether no member had a sound copy of a block when they were asked a moment ago.
    fn is_lost(&mut self, key: ObjectKey, block: u16) -> bool {
        let Some(known) = self.lost.get(&(key, block)).copied() else { return false };
        if self.location_of(key, block) != Some(known.location) {
            // It was written anew, or moved.
            self.lost.remove(&(key, block));
            return false;
        }
        self.now.since(known.since) < LOST_PAUSE
    }

    /// A new epoch begins: members may have come back with sound copies.
    pub(crate) fn forget_lost(&mut self, pg: PgId) {
        self.lost.retain(|(key, _), _| key.pg != pg);
    }

    /// Whether every member said that it has no sound copy of a block, or cannot read the one it has now.
    pub(crate) fn cannot_be_read(&self, key: ObjectKey, block: u16) -> bool {
        self.lost.get(&(key, block)).is_some_and(|lost| lost.absence > Absence::Unknown)
    }

    /// Whether no member has a sound copy of a block, nor one that its drive may read another time.
    pub(crate) fn is_lost_for_good(&self, key: ObjectKey, block: u16) -> bool {
        self.lost.get(&(key, block)).is_some_and(Lost::is_for_good)
    }

    /// The blocks of the groups this OSD is primary of that no member has a sound copy of, in order.
    pub fn lost_blocks(&mut self) -> Vec<LostBlock> {
        let certain = self.lost.iter().filter(|(_, lost)| lost.is_for_good());
        let known: Vec<(ObjectKey, u16, Location)> =
            certain.map(|((key, block), lost)| (*key, *block, lost.location)).collect();
        let mut lost = Vec::new();
        for (key, block, location) in known {
            if self.location_of(key, block) == Some(location) {
                lost.push(LostBlock { pg: key.pg, volume: key.volume, object: key.object, block });
            }
        }
        lost.sort_unstable_by_key(|lost| (lost.volume, lost.object, lost.block));
        lost
    }

    /// A primary asks what blocks hold here.
    pub(crate) fn handle_fetch(&mut self, link: LinkId, inquiry: &Inquiry, io: &mut impl Io) {
        let known = self.group_index.get(&inquiry.key.pg).copied();
        // Who was a member before does not hear of later epochs.
        let is_obsolete = |index: u32| self.groups[index as usize].epoch > inquiry.epoch;
        let Some(group) = known.filter(|index| !is_obsolete(*index)) else {
            return io.send(link, &encode::fetched(inquiry, Status::NotActive, false));
        };
        let id = self.add_inquiry(OperationKind::Read, link, group, inquiry);
        self.look_up(id, &inquiry.key, inquiry.first_block, inquiry.block_count);
        if self.operations.live(id).parts.iter().all(|part| part.location.is_none()) {
            io.send(link, &encode::fetched(inquiry, Status::Ok, false));
            return self.forget_operation(id);
        }
        self.read_parts(id, io);
    }

    /// The drive answered what a primary asked for.
    pub(crate) fn fetch_was_read(&mut self, id: OperationId, io: &mut impl Io) {
        let damage = self.first_damage(id);
        let operation = self.operations.live(id);
        let Origin::Peer { link, request } = operation.origin else { return self.forget_operation(id) };
        let inquiry = Inquiry {
            request,
            key: operation.key,
            epoch: operation.epoch,
            first_block: operation.first_block,
            block_count: operation.block_count,
        };
        match damage {
            Some((_, status)) => {
                self.damage.found += 1;
                io.send(link, &encode::fetched(&inquiry, status, false));
            }
            None => {
                io.send(link, &encode::fetched(&inquiry, Status::Ok, true));
                self.send_content(id, link, io);
            }
        }
        self.release_parts(id);
        self.forget_operation(id);
    }
}
