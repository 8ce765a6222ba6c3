//! What clients ask of a primary: checks, conflicts, reads.

use crate::group::IN_FLIGHT_MAX;
use crate::io::Io;
use crate::mend::MendReason;
use crate::milestone::Milestone;
use crate::operation::{Asked, OperationId, OperationKind, OperationState, Origin, Part};
use crate::osd::{Answer, Deferred, Handled, Osd, Peer, TOKEN_PART, spare_buffer};
use crate::sabotage::Sabotage;
use base::figures::RequestKind;
use base::geometry::VOLUME_BYTES_MAX;
use base::log_entry::{NAME, UNDONE};
use base::{BLOCK_BYTES, Buffer, Generation, LinkId, LogEntry, OBJECT_BYTES, ObjectKey, OsdId, crc32c};
use std::ops::Range;
use store::{DeviceError, Location};
use wire::encode::{self, RefusalDetails};
use wire::{Checksums, Inquiry, Request, Status};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Why a request cannot be served by this OSD now.
type Refusal = (Status, RefusalDetails);

impl Osd {
    /// The group of a request, if this OSD may serve it.
    fn admit(&mut self, request: &Request) -> Result<u32, Refusal> {
        let refuse = |status| Err((status, RefusalDetails { osd: self.id, ..RefusalDetails::default() }));
        let Some(volume) = self.volumes.get_mut(&request.key.volume) else {
            // It was made a moment ago, and the map that shows it is on its way.
            return refuse(Status::NotActive);
        };
        if volume.is_removed {
            return refuse(Status::NoSuchVolume);
        }
        let (pg, object) = (request.key.pg, request.key.object);
        // Whoever may use another pool only says that it is of that one: it must not fence those who may use this.
        if pg.pool != volume.pool || u64::from(object) >= VOLUME_BYTES_MAX / OBJECT_BYTES {
            return refuse(Status::NotPrimary);
        }
        if request.generation < volume.generation {
            let details = RefusalDetails { generation: volume.generation, ..RefusalDetails::default() };
            return Err((Status::Fenced, details));
        }
        // The attach is newer than the map: it fences the older ones from here on.
        volume.generation = volume.generation.max(request.generation);
        let Some(&index) = self.group_index.get(&pg) else { return refuse(Status::NotPrimary) };
        let group = &self.groups[index as usize];
        // Whose map is from before a split may mean the other half.
        let is_held = group.holds(&request.key) || self.sabotage == Some(Sabotage::ServeOtherHalf);
        if group.config.primary != self.id || !is_held {
            return refuse(Status::NotPrimary);
        }
        if !group.is_active() {
            return refuse(Status::NotActive);
        }
        if request.epoch != group.epoch {
            return Err((
                Status::StaleEpoch,
                RefusalDetails { epoch: group.epoch, ..RefusalDetails::default() },
            ));
        }
        Ok(index)
    }

    /// As [`Self::admit`], for what changes something: that takes enough members.
    fn admit_change(&mut self, request: &Request) -> Result<u32, Refusal> {
        let group = self.admit(request)?;
        // Without leases another OSD may be primary by now, and have learned that the client is fenced.
        let may_lead = self.has_leases(group) || self.sabotage == Some(Sabotage::ForgetFence);
        if self.groups[group as usize].is_writable() && may_lead {
            return Ok(group);
        }
        Err((Status::NotActive, RefusalDetails { osd: self.id, ..RefusalDetails::default() }))
    }

    /// The group that was found for a request; the client was told why, if there is none.
    fn or_refuse(&mut self, admitted: Result<u32, Refusal>, asked: &Asked, io: &mut impl Io) -> Option<u32> {
        admitted
            .map_err(|(status, details)| {
                self.milestones.pass(Milestone::refused(status));
                self.count_refused(asked, status);
                io.send(asked.link, &encode::reply_refused(asked.request, status, details))
            })
            .ok()
    }

    /// A request of a client that was taken up now.
    fn asked(&self, link: LinkId, request: &Request, kind: RequestKind) -> Asked {
        let (volume, bytes) = (request.key.volume, request.length);
        Asked { link, request: request.request, volume, kind, bytes, at: self.now }
    }

    /// Whether an operation under way, or one waiting before it, touches the same blocks.
    pub(crate) fn has_conflict(
        &self,
        group: u32,
        key: &base::ObjectKey,
        first_block: u16,
        block_count: u16,
        waiting_before: usize,
    ) -> bool {
        let group = &self.groups[group as usize];
        let waiting = group.waiting.iter().take(waiting_before);
        group.in_flight.iter().chain(waiting).any(|id| {
            self.operations.get(*id).is_some_and(|other| other.overlaps(key, first_block, block_count))
        })
    }

    /// Refuses the originator of an operation.
    pub(crate) fn refuse(&mut self, origin: Origin, status: Status, io: &mut impl Io) {
        if let Origin::Client(asked) = origin {
            self.milestones.pass(Milestone::refused(status));
            self.count_refused(&asked, status);
            let details = RefusalDetails { osd: self.id, ..RefusalDetails::default() };
            io.send(asked.link, &encode::reply_refused(asked.request, status, details));
        }
    }

    /// A slot with what every request of a client has.
    fn add_operation(
        &mut self,
        asked: Asked,
        request: &Request,
        group: u32,
        kind: OperationKind,
    ) -> OperationId {
        let (id, operation) = self.operations.add();
        let (first_block, block_count) = request.blocks();
        operation.kind = kind;
        operation.origin = Origin::Client(asked);
        operation.group = group;
        operation.key = request.key;
        operation.offset = request.offset;
        operation.length = request.length;
        operation.first_block = first_block;
        operation.block_count = block_count;
        operation.tag = request.origin & NAME;
        operation.is_again = request.is_again;
        id
    }

    /// Of which blocks of an operation an earlier attempt was done, in runs: `(block, block count, is_done)`.
    fn done_before(&self, id: OperationId) -> Vec<(u16, u16, bool)> {
        let Some(operation) = self.operations.get(id) else { return Vec::new() };
        let log = self.store.pg_log(operation.key.pg);
        done_runs(log, &operation.key, operation.first_block, operation.block_count, operation.tag)
    }

    /// Whether an earlier attempt at an operation was done in part: the members began to agree on it, and then another
    /// one led that has the rest as it was before.
    fn is_done_in_part(&self, id: OperationId) -> bool {
        let is_again = self.operations.get(id).is_some_and(|operation| operation.is_again);
        is_again && self.sabotage != Some(Sabotage::ForgetOrigin) && self.done_before(id).len() > 1
    }

    /// Answers an operation that was done by an earlier attempt. If that was done in part, what is left of the operation
    /// are the first blocks that it did not reach; its bytes, if it has any, are held.
    fn is_done_already(&mut self, id: OperationId, io: &mut impl Io) -> bool {
        let operation = self.operations.live(id);
        let (origin, tag, key) = (operation.origin, operation.tag, operation.key);
        if !operation.is_again || self.sabotage == Some(Sabotage::ForgetOrigin) {
            return false;
        }
        let runs = self.done_before(id);
        if let Some((first_block, block_count, _)) = runs.iter().find(|(.., is_done)| !is_done) {
            if runs.len() > 1 {
                self.operations.live(id).narrow(*first_block, *block_count);
                self.milestones.pass(Milestone::SentAgainInPart);
            } else {
                let is_known = self.store.pg_log(key.pg).any(|entry| entry.is_of(&key, tag));
                self.milestones.pass(match is_known {
                    true => Milestone::SentAgainUndone,
                    false => Milestone::SentAgainUnknown,
                });
            }
            return false;
        }
        self.milestones.pass(Milestone::SentAgainDone);
        if let Origin::Client(asked) = origin {
            let group = self.operations.live(id).group;
            self.count_done(&asked, group);
            io.send(asked.link, &encode::reply(asked.request, Status::Ok, 0));
        }
        self.forget_operation(id);
        true
    }

    pub(crate) fn handle_read_request(
        &mut self,
        link: LinkId,
        request: &Request,
        io: &mut impl Io,
    ) -> Handled {
        let asked = self.asked(link, request, RequestKind::Read);
        let admitted = self.admit(request);
        let Some(group) = self.or_refuse(admitted, &asked, io) else { return Handled::Done };
        // Every read holds at least one buffer at most for each of its blocks.
        let (first_block, block_count) = request.blocks();
        if self.small.available() < usize::from(block_count) || self.large.available() == 0 {
            return Handled::Stalled;
        }
        let waiting = self.groups[group as usize].waiting.len();
        let has_conflict = self.sabotage != Some(Sabotage::ReadUncommitted)
            && self.has_conflict(group, &request.key, first_block, block_count, waiting);
        let id = self.add_operation(asked, request, group, OperationKind::Read);
        if has_conflict {
            self.groups[group as usize].waiting.push_back(id);
        } else {
            self.start_read(id, io);
        }
        Handled::Done
    }

    pub(crate) fn handle_allocated_request(
        &mut self,
        link: LinkId,
        request: &Request,
        io: &mut impl Io,
    ) -> Handled {
        let asked = self.asked(link, request, RequestKind::Allocated);
        let admitted = self.admit(request);
        if let Some(group) = self.or_refuse(admitted, &asked, io) {
            let bits = self.store.allocated_bits(&request.key);
            self.defer(group, asked, Answer::Allocated(bits));
        }
        Handled::Done
    }

    fn defer(&mut self, group: u32, asked: Asked, answer: Answer) {
        let epoch = self.groups[group as usize].epoch;
        self.deferred.push(Deferred { group, epoch, asked, answer });
    }

    pub(crate) fn handle_zero_request(
        &mut self,
        link: LinkId,
        request: &Request,
        io: &mut impl Io,
    ) -> Handled {
        let asked = self.asked(link, request, RequestKind::Zero);
        let admitted = self.admit_change(request);
        let Some(group) = self.or_refuse(admitted, &asked, io) else { return Handled::Done };
        let state = &self.groups[group as usize];
        if state.in_flight.len() + state.waiting.len() >= IN_FLIGHT_MAX {
            return Handled::Stalled;
        }
        let (first_block, block_count) = request.blocks();
        let waiting = self.groups[group as usize].waiting.len();
        let has_conflict = self.has_conflict(group, &request.key, first_block, block_count, waiting);
        let id = self.add_operation(asked, request, group, OperationKind::Zero);
        if !has_conflict && self.is_done_already(id, io) {
            return Handled::Done;
        }
        if has_conflict || !self.order_zero(id, io) {
            self.wait(id);
        }
        Handled::Done
    }

    pub(crate) fn handle_write_request(
        &mut self,
        link: LinkId,
        request: &Request,
        checksums: Checksums<'_>,
        data: &[u8],
        io: &mut impl Io,
    ) -> Handled {
        let asked = self.asked(link, request, RequestKind::Write);
        let admitted = self.admit_change(request);
        let Some(group) = self.or_refuse(admitted, &asked, io) else { return Handled::Done };
        let origin = Origin::Client(asked);
        if self.store.is_full() || self.is_member_full(group) {
            self.refuse(origin, Status::NoSpace, io);
            return Handled::Done;
        }
        if self.groups[group as usize].in_flight.len() >= IN_FLIGHT_MAX || self.large.available() == 0 {
            return Handled::Stalled;
        }
        if !payload_verifies(request.offset, checksums, data) {
            self.refuse(origin, Status::CorruptPayload, io);
            return Handled::Done;
        }
        let (first_block, block_count) = request.blocks();
        let waiting = self.groups[group as usize].waiting.len();
        let has_conflict = self.has_conflict(group, &request.key, first_block, block_count, waiting);
        let id = self.add_operation(asked, request, group, OperationKind::Write);
        self.operations.live(id).checksums.extend_from_slice(checksums);
        let must_wait = has_conflict || self.is_done_in_part(id);
        if !must_wait && self.is_done_already(id, io) {
            return Handled::Done;
        }
        if !must_wait && request.is_aligned() && self.order_write(id, data, io) {
            return Handled::Done;
        }
        if self.operations.get(id).is_none() {
            return Handled::Done;
        }
        // The slow way: its bytes are kept until the blocks are free, their edges read, or the store has room.
        let mut payload = self.large.take().expect("one was there a moment ago");
        let start = request.offset as usize % BLOCK_BYTES;
        payload.bytes_mut().expect("a buffer from the pool is unique")[start..start + data.len()]
            .copy_from_slice(data);
        self.operations.live(id).payload = Some(payload);
        if must_wait || !self.start_held_write(id, io) {
            self.wait(id);
        }
        Handled::Done
    }

    /// Puts an operation at the end of its group's line.
    fn wait(&mut self, id: OperationId) {
        if let Some(operation) = self.operations.get(id) {
            let group = operation.group;
            self.groups[group as usize].waiting.push_back(id);
            self.look_again(group);
        }
    }

    /// Starts whatever of a group's waiting operations can start.
    pub(crate) fn start_waiting(&mut self, group: u32, io: &mut impl Io) {
        let mut index = 0;
        while let Some(&id) = self.groups[group as usize].waiting.get(index) {
            if self.groups[group as usize].in_flight.len() >= IN_FLIGHT_MAX {
                return;
            }
            let operation = self.operations.live(id);
            let (key, first_block, block_count) =
                (operation.key, operation.first_block, operation.block_count);
            let (kind, has_payload) = (operation.kind, operation.payload.is_some());
            if self.has_conflict(group, &key, first_block, block_count, index) {
                index += 1;
                continue;
            }
            self.groups[group as usize].waiting.remove(index);
            if self.is_done_already(id, io) {
                continue;
            }
            let started = match kind {
                OperationKind::Read => {
                    // Whatever the pools have: the writes behind it may hold all they lend.
                    self.start_read(id, io);
                    true
                }
                OperationKind::Zero => self.order_zero(id, io),
                OperationKind::Write => !has_payload || self.start_held_write(id, io),
                OperationKind::Push => {
                    self.start_push(id, io);
                    true
                }
                OperationKind::Mend => {
                    self.start_mend(id, io);
                    true
                }
                OperationKind::Check => {
                    self.start_check(id, io);
                    true
                }
                OperationKind::Mark => unreachable!("a mark never waits"),
            };
            if !started {
                self.groups[group as usize].waiting.insert(index, id);
                self.look_again(group);
                return;
            }
        }
    }

    /// Looks its blocks up and reads them, unless all are zeros. Buffers are there.
    fn start_read(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (key, first_block, block_count) = (operation.key, operation.first_block, operation.block_count);
        let (origin, group) = (operation.origin, operation.group);
        operation.state = OperationState::Reading;
        operation.epoch = self.groups[group as usize].epoch;
        self.look_up(id, &key, first_block, block_count);
        let operation = self.operations.live(id);
        if operation.parts.iter().all(|part| part.location.is_none()) {
            if let Origin::Client(asked) = origin {
                self.defer(group, asked, Answer::Zeros);
            }
            self.forget_operation(id);
            return;
        }
        self.read_parts(id, io);
    }

    /// Fills an operation's parts and checksums from the index.
    pub(crate) fn look_up(
        &mut self,
        id: OperationId,
        key: &base::ObjectKey,
        first_block: u16,
        block_count: u16,
    ) {
        self.scratch_extents.clear();
        self.scratch_checksums.clear();
        self.store.lookup(
            key,
            first_block,
            block_count,
            &mut self.scratch_extents,
            &mut self.scratch_checksums,
        );
        let operation = self.operations.live(id);
        operation.checksums.clear();
        operation.checksums.extend(self.scratch_checksums.iter().map(|checksum| U32::new(*checksum)));
        operation.parts.clear();
        operation.parts.extend(self.scratch_extents.iter().map(|extent| Part {
            first_block: extent.first_block,
            block_count: extent.block_count,
            location: extent.location,
            buffer: None,
        }));
    }

    /// As [`Self::look_up`], of at most `wanted` blocks from the operation's first, but only as far as all of them have
    /// data or none has, and lie in at most `parts_max` places of the drive; so many the operation is about then.
    /// Answers how many, and whether they are zeros.
    pub(crate) fn look_up_run(&mut self, id: OperationId, wanted: u16, parts_max: usize) -> (u16, bool) {
        let operation = self.operations.live(id);
        let (key, first_block) = (operation.key, operation.first_block);
        self.look_up(id, &key, first_block, wanted);
        let operation = self.operations.live(id);
        let is_zeros = operation.parts[0].location.is_none();
        let alike = operation.parts.iter().take_while(|part| part.location.is_none() == is_zeros);
        let count = alike.take(parts_max).count();
        operation.parts.truncate(count);
        let found = operation.parts.iter().map(|part| part.block_count).sum();
        operation.block_count = found;
        operation.offset = u32::from(first_block) * BLOCK_BYTES as u32;
        operation.length = u32::from(found) * BLOCK_BYTES as u32;
        operation.checksums.truncate(usize::from(found));
        (found, is_zeros)
    }

    /// Issues the reads of an operation's parts, of those that were not read yet. For what clients ask the memory was
    /// checked to be there; whatever else is read leaves them half of it, and has other memory made.
    pub(crate) fn read_parts(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let is_for_client = matches!(operation.origin, Origin::Client(_));
        let mut awaited = 0;
        for (index, part) in operation.parts.iter().enumerate() {
            let Some(location) = part.location.filter(|_| part.buffer.is_none()) else { continue };
            let length = usize::from(part.block_count) * BLOCK_BYTES;
            let pool = if part.block_count == 1 { &mut self.small } else { &mut self.large };
            let lent = if is_for_client || pool.available() > pool.count() / 2 { pool.take() } else { None };
            let buffer = lent.unwrap_or_else(|| spare_buffer(length));
            self.store.pin(location);
            awaited += 1;
            io.read(part_token(id, index), u64::from(location.0) * BLOCK_BYTES as u64, buffer, length);
        }
        operation.parts_awaited = awaited;
    }

    /// The drive answered one part. `buffer` is shared with the caller, who puts it back too.
    pub(crate) fn part_was_read(
        &mut self,
        token: u64,
        buffer: Option<Buffer>,
        result: Result<(), DeviceError>,
        io: &mut impl Io,
    ) {
        let slot = token as u32;
        let index = (token >> 32 & 0xfff) as usize;
        let serial_low = (token >> 44 & 0xfff) as u32;
        let id = self.operations.reading(slot, serial_low);
        let operation = self.operations.live(id);
        let part = &mut operation.parts[index];
        let location: Location = part.location.expect("only parts on the drive are read");
        part.buffer = buffer;
        operation.parts_awaited -= 1;
        let is_last = operation.parts_awaited == 0;
        self.store.unpin(location);
        if let Err(error) = result {
            self.note(format!("a read of the drive failed: {error}"));
            self.operations.live(id).parts[index].buffer = None;
        }
        if is_last {
            self.parts_were_read(id, io);
        }
    }

    fn parts_were_read(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (kind, origin) = (operation.kind, operation.origin);
        if operation.state == OperationState::Abandoned {
            self.release_parts(id);
            return self.forget_operation(id);
        }
        // A repair is divided by whoever orders it.
        if origin != Origin::Repair && self.divide_failed(id) {
            return self.read_parts(id, io);
        }
        match (kind, origin) {
            (OperationKind::Read, Origin::Peer { .. }) => self.fetch_was_read(id, io),
            (OperationKind::Read, _) => self.finish_read(id, io),
            (OperationKind::Push, _) => self.push_was_read(id, io),
            (OperationKind::Mend, _) => self.mend_was_read(id, io),
            (OperationKind::Check, _) => self.check_was_read(id, io),
            (_, Origin::Repair) => self.repair_was_read(id, io),
            _ => self.edges_were_read(id, io),
        }
    }

    /// Divides the parts that the drive did not give into single blocks, for it may be one of them that it cannot read.
    /// Answers whether there are any.
    fn divide_failed(&mut self, id: OperationId) -> bool {
        let parts = &mut self.operations.live(id).parts;
        let has_failed =
            |part: &Part| part.location.is_some() && part.buffer.is_none() && part.block_count > 1;
        if !parts.iter().any(has_failed) {
            return false;
        }
        self.milestones.pass(Milestone::ReadDivided);
        for part in std::mem::take(parts) {
            let (Some(Location(location)), true) = (part.location, has_failed(&part)) else {
                parts.push(part);
                continue;
            };
            parts.extend((0..part.block_count).map(|number| Part {
                first_block: part.first_block + number,
                block_count: 1,
                location: Some(Location(location + u32::from(number))),
                buffer: None,
            }));
        }
        true
    }

    /// The first block of an operation's parts that does not verify, and why.
    pub(crate) fn first_damage(&mut self, id: OperationId) -> Option<(u16, Status)> {
        let operation = self.operations.live(id);
        let first_block = operation.parts.first().map_or(operation.first_block, |part| part.first_block);
        for part in operation.parts.iter().filter(|part| part.location.is_some()) {
            let Some(buffer) = &part.buffer else { return Some((part.first_block, Status::DeviceFailed)) };
            let blocks = buffer.bytes().chunks_exact(BLOCK_BYTES).take(usize::from(part.block_count));
            for (number, block) in (part.first_block..).zip(blocks) {
                // What the drive gave against what the writer computed.
                if crc32c(block) != operation.checksums[usize::from(number - first_block)].get() {
                    return Some((number, Status::Damaged));
                }
            }
        }
        None
    }

    fn finish_read(&mut self, id: OperationId, io: &mut impl Io) {
        let damage = self.first_damage(id);
        let operation = self.operations.live(id);
        let (origin, group, epoch) = (operation.origin, operation.group, operation.epoch);
        // Looked up in an earlier turn: a lease that lasts now lasted then, if nobody else was primary since.
        let state = &self.groups[group as usize];
        if !state.is_active() || state.epoch != epoch || !self.has_leases(group) {
            if !self.has_leases(group) {
                self.milestones.pass(Milestone::LeaseEnded);
            }
            self.refuse(origin, Status::NotActive, io);
            self.release_parts(id);
            self.forget_operation(id);
            return;
        }
        if let Some((block, status)) = damage {
            self.release_parts(id);
            if !self.wait_for_mend(id, block, io) {
                self.report_damage(id, block, status, io);
                self.forget_operation(id);
            }
            return;
        }
        let operation = self.operations.live(id);
        if let Origin::Client(asked) = operation.origin {
            let body_bytes = usize::from(operation.block_count) * (BLOCK_BYTES + size_of::<U32>());
            io.send(asked.link, &encode::reply(asked.request, Status::Ok, body_bytes));
            self.send_content(id, asked.link, io);
            self.count_done(&asked, group);
        }
        self.forget_operation(id);
    }

    /// Sends what was read for an operation: the checksums, then the blocks.
    pub(crate) fn send_content(&mut self, id: OperationId, link: LinkId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        io.send(link, operation.checksums.as_bytes());
        for part in &mut operation.parts {
            let length = usize::from(part.block_count) * BLOCK_BYTES;
            match part.buffer.take() {
                Some(buffer) => io.send_shared(link, buffer, 0..length),
                None => io.send_shared(link, self.zeros.clone(), 0..length),
            }
        }
    }

    /// An operation that answers what another OSD asks.
    pub(crate) fn add_inquiry(
        &mut self,
        kind: OperationKind,
        link: LinkId,
        group: u32,
        inquiry: &Inquiry,
    ) -> OperationId {
        let (id, operation) = self.operations.add();
        operation.kind = kind;
        operation.origin = Origin::Peer { link, request: inquiry.request };
        operation.group = group;
        operation.key = inquiry.key;
        operation.epoch = inquiry.epoch;
        operation.first_block = inquiry.first_block;
        operation.block_count = inquiry.block_count;
        operation.state = OperationState::Reading;
        id
    }

    /// Lets an operation that met damage wait until the block is mended. `false` when it cannot be.
    ///
    /// It waits before whatever came after it: its client may be fenced by now, and what the next holder of the volume
    /// does to the same blocks must find it done.
    pub(crate) fn wait_for_mend(&mut self, id: OperationId, block: u16, io: &mut impl Io) -> bool {
        let operation = self.operations.live(id);
        let (group, key) = (operation.group, operation.key);
        if !self.can_mend(group, key, block) {
            return false;
        }
        self.met_damage(key, block);
        self.operations.live(id).state = OperationState::Waiting;
        self.groups[group as usize].waiting.push_front(id);
        self.begin_mend(group, key, block, MendReason::Damaged, io);
        // The mend may have come to nothing at once.
        self.look_again(group);
        true
    }

    /// Counts a block that does not verify here, and tells the operator.
    pub(crate) fn met_damage(&mut self, key: ObjectKey, block: u16) {
        self.damage.found += 1;
        self.note(format!("damaged data: block {block} of {key} on {}", self.id));
    }

    /// Tells an operation's originator, and the operator, of damage that cannot be mended.
    pub(crate) fn report_damage(&mut self, id: OperationId, block: u16, status: Status, io: &mut impl Io) {
        self.damage.found += 1;
        let operation = self.operations.live(id);
        let (key, origin) = (operation.key, operation.origin);
        if !self.cannot_be_read(key, block) {
            // A member that is away may have a sound copy: the client waits for it.
            return self.refuse(origin, Status::NotActive, io);
        }
        if let Origin::Client(asked) = origin {
            self.milestones.pass(Milestone::refused(status));
            self.count_refused(&asked, status);
            let details = RefusalDetails {
                generation: Generation(0),
                offset: u32::from(block) * BLOCK_BYTES as u32,
                osd: self.id,
                ..RefusalDetails::default()
            };
            io.send(asked.link, &encode::reply_refused(asked.request, status, details));
        }
        self.note(format!("damaged data: block {block} of {key} on {}", self.id));
    }

    /// Gives the buffers of an operation's parts back.
    pub(crate) fn release_parts(&mut self, id: OperationId) {
        let mut parts = std::mem::take(&mut self.operations.live(id).parts);
        for part in parts.drain(..) {
            if let Some(buffer) = part.buffer {
                self.put_buffer(buffer);
            }
        }
        self.operations.live(id).parts = parts;
    }

    /// Ends an operation without a word.
    pub(crate) fn forget_operation(&mut self, id: OperationId) {
        if let Some(payload) = self.operations.live(id).payload.take() {
            self.put_buffer(payload);
        }
        self.operations.remove(id);
    }

    /// Whether a replica of the group said that it is nearly full.
    fn is_member_full(&self, group: u32) -> bool {
        self.groups[group as usize].replicas(self.id).any(|osd: OsdId| {
            let link = self.osd_links.get(&osd).and_then(|link| self.peers.get(link));
            matches!(link, Some(Peer::Osd(peer)) if peer.is_full)
        })
    }
}

/// Whether a write that its client sends again was done by an earlier attempt, as a group's log tells, oldest entry
/// first: then doing it again could undo what followed it. Nothing of it is in flight. A log is finite: what more than
/// 1,024 writes of its group followed is not known any more.
///
/// Members agree on a write run by run, and whoever leads may change in between: so this is asked of each block. The
/// answer is in runs: `(block, block count, was_done)`.
pub(crate) fn done_runs(
    log: impl DoubleEndedIterator<Item = LogEntry>,
    key: &ObjectKey,
    first_block: u16,
    block_count: u16,
    tag: u64,
) -> Vec<(u16, u16, bool)> {
    let entries: Vec<LogEntry> = match tag {
        0 => Vec::new(),
        _ => log.rev().filter(|entry| entry.is_of(key, tag)).collect(),
    };
    let was_done = |block: u16| {
        entries.iter().find(|entry| entry.covers(block)).is_some_and(|entry| entry.origin & UNDONE == 0)
    };
    runs_alike(first_block..first_block + block_count, was_done)
}

/// Blocks in runs of which the same is true: `(block, block count, is_so)`.
pub(crate) fn runs_alike(blocks: Range<u16>, is_so: impl Fn(u16) -> bool) -> Vec<(u16, u16, bool)> {
    let mut runs: Vec<(u16, u16, bool)> = Vec::new();
    for block in blocks {
        let is_so = is_so(block);
        match runs.last_mut() {
            Some((_, count, last)) if *last == is_so => *count += 1,
            _ => runs.push((block, 1, is_so)),
        }
    }
    runs
}

/// Names one part of an operation to the drive. Twelve bits of the serial are enough: a slot is not used again
/// while the drive still works for it.
fn part_token(id: OperationId, index: usize) -> u64 {
    TOKEN_PART << 56 | u64::from(id.serial & 0xfff) << 44 | (index as u64) << 32 | u64::from(id.slot)
}

/// Whether the parts of a write's data, one for each block it touches, match their checksums.
pub(crate) fn payload_verifies(offset: u32, checksums: Checksums<'_>, data: &[u8]) -> bool {
    let head = data.len().min(BLOCK_BYTES - offset as usize % BLOCK_BYTES);
    let (head, rest) = data.split_at(head);
    let parts = std::iter::once(head).chain(rest.chunks(BLOCK_BYTES));
    parts.zip(checksums).all(|(part, checksum)| crc32c(part) == checksum.get())
}
