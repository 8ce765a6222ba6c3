//! How a write is ordered, replicated and acknowledged.
//!
//! The primary gives it the group's next sequence, stages it in its own store's open batch, and when the batch
//! is sealed sends it from there to every replica. `Osd::member_has` counts who has it on stable media; the
//! last one's word is the acknowledgement.

use crate::group::LearnerState;
use crate::io::Io;
use crate::operation::{OperationId, OperationKind, OperationState, Origin, Part};
use crate::osd::{Awaited, Osd, Outstanding, Peer, StagedRecord};
use crate::sabotage::Sabotage;
use base::{BLOCK_BYTES, Buffer, Epoch, OBJECT_BLOCKS, crc32c};
use store::{BatchId, StageError, WriteRecord};
use wire::{Replicate, Status, encode};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Deletions of a removed volume's objects under way at the same time.
const DELETIONS_AT_ONCE: usize = 16;

impl Osd {
    /// The epoch under which a write is put into the log.
    pub(crate) fn recorded_epoch(&self, epoch: Epoch) -> Epoch {
        if self.sabotage == Some(Sabotage::ReuseSequence) { Epoch(1) } else { epoch }
    }

    fn record(&self, id: OperationId) -> WriteRecord {
        let operation = self.operations.get(id).expect("an operation being ordered is alive");
        let group = &self.groups[operation.group as usize];
        let role = match operation.origin {
            Origin::Client(_) => store::Role::Primary,
            _ => store::Role::Housekeeping,
        };
        WriteRecord {
            key: operation.key,
            epoch: self.recorded_epoch(group.epoch),
            sequence: group.next_sequence,
            origin: operation.tag,
            first_block: operation.first_block,
            block_count: operation.block_count,
            token: self.next_staged_token(),
            role,
        }
    }

    /// Orders a write of whole blocks. `false` when the store has no room right now; otherwise it is under way,
    /// or refused and gone.
    pub(crate) fn order_write(&mut self, id: OperationId, data: &[u8], io: &mut impl Io) -> bool {
        let record = self.record(id);
        let checksums = &self.operations.live(id).checksums;
        match self.store.stage_write(&record, checksums, data) {
            Ok(staged) => {
                self.operations.live(id).staged = Some((staged.batch, staged.offset));
                self.ordered(id);
                true
            }
            Err(error) => self.not_staged(id, &error, io),
        }
    }

    /// Orders a zeroing, as [`Self::order_write`].
    pub(crate) fn order_zero(&mut self, id: OperationId, io: &mut impl Io) -> bool {
        let record = self.record(id);
        match self.store.stage_zero(&record) {
            Ok(()) => {
                self.ordered(id);
                true
            }
            Err(error) => self.not_staged(id, &error, io),
        }
    }

    fn not_staged(&mut self, id: OperationId, error: &StageError, io: &mut impl Io) -> bool {
        let status = match error {
            StageError::Busy => return false,
            StageError::Full => Status::NoSpace,
            StageError::Failed(_) => Status::DeviceFailed,
        };
        let operation = self.operations.live(id);
        let (origin, group) = (operation.origin, operation.group);
        self.refuse(origin, status, io);
        self.groups[group as usize].in_flight.retain(|other| *other != id);
        self.forget_operation(id);
        if origin == Origin::Repair {
            self.repair_failed(group, error, io);
        }
        true
    }

    /// It has its place in the group's order and in the store's open batch.
    pub(crate) fn ordered(&mut self, id: OperationId) {
        let operation = self.operations.live(id);
        let group_index = operation.group;
        let group = &mut self.groups[group_index as usize];
        let was_in_flight = operation.state == OperationState::Reading;
        operation.state = OperationState::Replicating;
        operation.sequence = group.next_sequence;
        operation.ordered_at = self.now;
        operation.members_awaited = match self.sabotage {
            Some(Sabotage::AcknowledgeEarly) => 1,
            _ => group.config.in_sync.len() as u8,
        };
        group.next_sequence = group.next_sequence.next();
        if !was_in_flight || operation.origin == Origin::Repair {
            group.in_flight.push_back(id);
        }
        self.note_staged(StagedRecord::Own { group: group_index, operation: id });
        self.outgoing.push_back(id);
    }

    /// Starts a write whose bytes are held: orders it, or first reads the edges it leaves. `false` when there
    /// is no room.
    pub(crate) fn start_held_write(&mut self, id: OperationId, io: &mut impl Io) -> bool {
        if self.operations.live(id).is_aligned() {
            return self.order_held_write(id, io);
        }
        if self.small.available() < 2 {
            return false;
        }
        let operation = self.operations.live(id);
        let (key, offset, length) = (operation.key, operation.offset as usize, operation.length as usize);
        let group = operation.group;
        let (first, last) = (operation.first_block, operation.first_block + operation.block_count - 1);
        operation.state = OperationState::Reading;
        self.groups[group as usize].in_flight.push_back(id);
        let head_is_partial = !offset.is_multiple_of(BLOCK_BYTES);
        let tail_is_partial = !(offset + length).is_multiple_of(BLOCK_BYTES);
        self.scratch_extents.clear();
        self.scratch_checksums.clear();
        if head_is_partial {
            self.store.lookup(&key, first, 1, &mut self.scratch_extents, &mut self.scratch_checksums);
        }
        if tail_is_partial && !(head_is_partial && first == last) {
            self.store.lookup(&key, last, 1, &mut self.scratch_extents, &mut self.scratch_checksums);
        }
        let operation = self.operations.live(id);
        operation.parts.clear();
        operation.parts.extend(self.scratch_extents.iter().map(|extent| Part {
            first_block: extent.first_block,
            block_count: extent.block_count,
            location: extent.location,
            buffer: None,
        }));
        operation.edge_checksums = [0; 2];
        operation.edge_checksums[..self.scratch_checksums.len()].copy_from_slice(&self.scratch_checksums);
        if operation.parts.iter().any(|part| part.location.is_some()) {
            self.read_parts(id, io);
        } else {
            self.edges_were_read(id, io);
        }
        true
    }

    /// The blocks at the edges of an unaligned write are there: completes it to whole blocks and orders it.
    pub(crate) fn edges_were_read(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let damage = operation.parts.iter().zip(operation.edge_checksums).find_map(|(part, expected)| {
            part.location?;
            match &part.buffer {
                None => Some((part.first_block, Status::DeviceFailed)),
                Some(buffer) if crc32c(&buffer.bytes()[..BLOCK_BYTES]) != expected => {
                    Some((part.first_block, Status::Damaged))
                }
                Some(_) => None,
            }
        });
        let group = operation.group;
        if let Some((block, status)) = damage {
            self.release_parts(id);
            self.groups[group as usize].in_flight.retain(|other| *other != id);
            if self.wait_for_mend(id, block, io) {
                return;
            }
            self.report_damage(id, block, status, io);
            self.forget_operation(id);
            self.start_waiting(group, io);
            return;
        }
        complete_edges(operation);
        self.release_parts(id);
        if !self.order_held_write(id, io) && self.operations.get(id).is_some() {
            // It waits for room in the store at the head of the line; what came after it keeps waiting too.
            let group = &mut self.groups[group as usize];
            group.in_flight.retain(|other| *other != id);
            group.waiting.push_front(id);
            self.operations.live(id).state = OperationState::Waiting;
            let group = self.operations.live(id).group;
            self.look_again(group);
        }
    }

    fn order_held_write(&mut self, id: OperationId, io: &mut impl Io) -> bool {
        let operation = self.operations.live(id);
        let length = usize::from(operation.block_count) * BLOCK_BYTES;
        let payload = operation.payload.take().expect("a held write has its bytes");
        let is_ordered = self.order_write(id, &payload.bytes()[..length], io);
        match self.operations.get_mut(id) {
            Some(operation) if !is_ordered => operation.payload = Some(payload),
            _ => self.put_buffer(payload),
        }
        is_ordered
    }

    /// A batch will not change any more: what was ordered in it goes to the replicas, from its memory.
    pub(crate) fn send_sealed(&mut self, batch: BatchId, buffer: &Buffer, io: &mut impl Io) {
        while let Some(&id) = self.outgoing.front() {
            if let Some(operation) = self.operations.get(id) {
                if operation.staged.is_some_and(|(staged, _)| staged != batch) {
                    return;
                }
                self.send_to_replicas(id, buffer, io);
            }
            self.outgoing.pop_front();
        }
    }

    fn send_to_replicas(&mut self, id: OperationId, buffer: &Buffer, io: &mut impl Io) {
        let operation = self.operations.get(id).expect("the caller looked");
        let group_index = operation.group;
        let group = &self.groups[group_index as usize];
        let message = Replicate {
            key: operation.key,
            epoch: group.epoch,
            sequence: operation.sequence,
            first_block: operation.first_block,
            block_count: operation.block_count,
            origin: operation.tag,
        };
        let header = match operation.kind {
            OperationKind::Mark => encode::activate(group.pg, group.epoch, operation.sequence),
            kind => encode::replicate(&message, kind == OperationKind::Zero),
        };
        let replicas = group.config.in_sync.iter().filter(|osd| **osd != self.id);
        let replicas = replicas.filter_map(|osd| Some((*self.osd_links.get(osd)?, Awaited::Write(id))));
        // Learners have everything from their join on; nobody waits for them.
        let learners = group.learners.iter().filter_map(|learner| match learner.state {
            LearnerState::Joined { from, .. } if operation.sequence >= from => {
                Some((learner.link, Awaited::Learning { group: group_index, session: learner.session }))
            }
            _ => None,
        });
        for (link, awaited) in replicas.chain(learners) {
            let Some(Peer::Osd(peer)) = self.peers.get_mut(&link) else { continue };
            peer.sent += 1;
            peer.outstanding.push_back(Outstanding { ordinal: peer.sent, awaited });
            let is_backlogged = io.unsent_bytes(link) > self.share_limit_bytes;
            io.send(link, &header);
            if let Some((_, offset)) = operation.staged {
                let range =
                    offset as usize..offset as usize + usize::from(operation.block_count) * BLOCK_BYTES;
                io.send(link, operation.checksums.as_bytes());
                if is_backlogged {
                    // A slow replica must not keep the store's batches: two that wait for each other would stop.
                    io.send(link, &buffer.bytes()[range]);
                } else {
                    io.send_shared(link, buffer.clone(), range);
                }
            }
        }
    }

    /// One more member has a write on stable media. With the last one it is acknowledged.
    pub(crate) fn member_has(&mut self, id: OperationId, io: &mut impl Io) {
        let Some(operation) = self.operations.get_mut(id) else { return };
        operation.members_awaited -= 1;
        if operation.members_awaited > 0 {
            return;
        }
        let (origin, group, is_narrowed) = (operation.origin, operation.group, operation.is_narrowed);
        let ordered_at = operation.ordered_at;
        if let Origin::Client(asked) = origin {
            self.pace.write_ended(self.now, self.now.since(ordered_at));
            // The acknowledgement of a write: every in-sync member has it.
            match is_narrowed {
                false => {
                    io.send(asked.link, &encode::reply(asked.request, Status::Ok, 0));
                    self.count_done(&asked, group);
                }
                true => self.refuse(origin, Status::NotActive, io),
            }
        }
        let in_flight = &mut self.groups[group as usize].in_flight;
        if in_flight.front() == Some(&id) {
            in_flight.pop_front();
        } else {
            in_flight.retain(|other| *other != id);
        }
        self.forget_operation(id);
        if let Origin::Mend(_) = origin {
            self.damage.mended += 1;
        }
        if origin == Origin::Repair {
            self.repair_done(group, io);
        } else if !self.groups[group as usize].waiting.is_empty() {
            self.start_waiting(group, io);
        }
    }

    /// Deletes objects a few at a time: those of removed volumes as ordinary ordered zeroings, and those of groups
    /// that this OSD left.
    pub(crate) fn delete_some(&mut self, io: &mut impl Io) {
        for _ in 0..DELETIONS_AT_ONCE {
            if !self.splittings.is_empty() {
                // What is staged before a split is what is split.
                return;
            }
            let Some(key) = self.deletions.pop_front() else { return };
            let Some(&group) = self.group_index.get(&key.pg) else { continue };
            if !self.groups[group as usize].holds(&key) {
                // It went to the other half since, and is looked for there.
                self.deletions_are_due = true;
                continue;
            }
            if self.has_left(group) {
                if self.delete_left(group, key) {
                    continue;
                }
                self.deletions.push_front(key);
                return;
            }
            // This OSD may be a member again, and even lead the group, since what it held was to be deleted.
            if !self.volumes.get(&key.volume).is_some_and(|volume| volume.is_removed) {
                continue;
            }
            let state = &self.groups[group as usize];
            let block_count = OBJECT_BLOCKS as u16;
            if !state.is_active()
                || !state.is_writable()
                || self.has_conflict(group, &key, 0, block_count, state.waiting.len())
            {
                continue;
            }
            let (id, operation) = self.operations.add();
            operation.kind = OperationKind::Zero;
            operation.origin = Origin::Deletion;
            operation.group = group;
            operation.key = key;
            operation.offset = 0;
            operation.length = base::OBJECT_BYTES as u32;
            operation.first_block = 0;
            operation.block_count = block_count;
            if !self.order_zero(id, io) {
                self.operations.remove(id);
                self.deletions.push_front(key);
                return;
            }
        }
    }
}

/// Fills what an unaligned write leaves of its first and last block from what they held, and extends the write
/// to both.
fn complete_edges(operation: &mut crate::operation::Operation) {
    let payload = operation.payload.as_mut().expect("a held write has its bytes");
    let memory = payload.bytes_mut().expect("a held write's buffer has one holder");
    let start = operation.offset as usize % BLOCK_BYTES;
    let end = start + operation.length as usize;
    let aligned_end = usize::from(operation.block_count) * BLOCK_BYTES;
    memory[..start].fill(0);
    memory[end..aligned_end].fill(0);
    let last_start = aligned_end - BLOCK_BYTES;
    for part in &operation.parts {
        let Some(buffer) = &part.buffer else { continue };
        let old = &buffer.bytes()[..BLOCK_BYTES];
        if part.first_block == operation.first_block {
            memory[..start].copy_from_slice(&old[..start]);
        }
        if part.first_block == operation.first_block + operation.block_count - 1 {
            memory[end..aligned_end].copy_from_slice(&old[end - last_start..]);
        }
    }
    // Only now whole blocks are known; the edges' checksums are this primary's, the others the writer's.
    operation.checksums[0] = U32::new(crc32c(&memory[..BLOCK_BYTES]));
    let last = usize::from(operation.block_count) - 1;
    operation.checksums[last] = U32::new(crc32c(&memory[last_start..aligned_end]));
    operation.offset = u32::from(operation.first_block) * BLOCK_BYTES as u32;
    operation.length = aligned_end as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::ClientLink;
    use crate::group::GroupState;
    use crate::osd::OsdLink;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::figures::{RequestFigures, Traffic};
    use base::log_entry::REPAIR;
    use base::map::{ClusterMap, PgConfig};
    use base::{ClientId, Generation, LinkId, ObjectKey, OsdId};
    use std::sync::Arc;
    use wire::Message;

    #[test]
    fn the_most_degraded_groups_are_brought_up_to_date_first() {
        let mut alone = Alone::with_groups(3);
        let osd = &mut alone.osd;
        for other in 1..4 {
            let link = LinkId(10 + u64::from(other));
            let mut peer = OsdLink::new(OsdId(other), false, alone.now);
            peer.is_ready = true;
            osd.osd_links.insert(OsdId(other), link);
            osd.peers.insert(link, Peer::Osd(peer));
        }
        for (group, in_sync) in osd.groups.iter_mut().zip([3, 1, 2]) {
            group.target = (0..4).map(OsdId).collect();
            group.config.in_sync = (0..in_sync).map(OsdId).collect();
        }
        osd.advance_recovery(&mut alone.io);
        let begun: Vec<usize> = osd.groups.iter().map(|group| group.learners.len()).collect();
        // Four at a time: all three that the group of one copy lacks, one of the two of the next.
        assert_eq!(begun, [0, 3, 1]);
        assert_eq!(osd.learning, [1, 2]);
    }

    #[test]
    fn a_write_that_was_done_in_part_is_done_where_it_was_not() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        // Members had agreed on the second of three blocks when another one began to lead, which lacks the others.
        let name = 5;
        alone.order(key, 11, 1, REPAIR | name);
        let newest = |alone: &Alone| alone.osd.store.pg_log(PG).next_back().unwrap();
        let mut expected = [(10, 1), (12, 1), (12, 1)].into_iter();
        for status in [Status::NotActive, Status::NotActive, Status::Ok] {
            let sequence = newest(&alone).sequence;
            alone.io.sent.clear();
            alone.send_again(key, 10, 3, name);
            let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().unwrap().0 else {
                panic!("the client is answered")
            };
            assert_eq!(reply.status, status);
            assert_eq!(newest(&alone).sequence > sequence, status != Status::Ok);
            assert_eq!((newest(&alone).first_block, newest(&alone).block_count), expected.next().unwrap());
        }
        // Each block has what was meant for it.
        let mut checksums = Vec::new();
        alone.osd.store.lookup(&key, 10, 3, &mut Vec::new(), &mut checksums);
        assert_eq!(checksums, [10, 11, 12].map(|byte| crc32c(&[byte; BLOCK_BYTES])));
    }

    #[test]
    fn a_long_read_of_one_bad_place_comes_to_an_end_and_names_the_place() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.order(key, 10, 3, 0);
        let mut extents = Vec::new();
        alone.osd.store.lookup(&key, 10, 3, &mut extents, &mut Vec::new());
        assert_eq!(extents.len(), 1, "one read of the drive brings all three");
        let location = extents[0].location.unwrap();
        alone.io.bad = Some(u64::from(location.0 + 1) * BLOCK_BYTES as u64);
        let request = wire::Request {
            request: 1,
            key,
            offset: 10 * BLOCK_BYTES as u32,
            length: 3 * BLOCK_BYTES as u32,
            epoch: alone.osd.groups[0].epoch,
            generation: Generation(1),
            origin: 0,
            is_again: false,
        };
        alone.io.sent.clear();
        alone.osd.handle_read_request(LinkId(7), &request, &mut alone.io);
        alone.run();
        let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().expect("it is answered").0 else {
            panic!("by a reply")
        };
        assert_eq!((reply.status, reply.offset), (Status::DeviceFailed, 11 * BLOCK_BYTES as u32));
        assert_eq!(alone.osd.operations_in_flight(), 0);
    }

    #[test]
    fn what_was_to_go_with_a_group_stays_when_this_osd_leads_the_group_again() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        // Noted when it had left the group.
        alone.osd.deletions.push_back(key);
        alone.run();
        assert!(alone.osd.deletions.is_empty() && alone.holds(key));
    }

    #[test]
    fn who_left_a_group_since_it_said_where_it_stands_does_not_join_it() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        let (primary, other, link) = (OsdId(1), OsdId(2), LinkId(7));
        let peer = OsdLink { osd: primary, is_ready: true, ..OsdLink::default() };
        alone.osd.peers.insert(link, Peer::Osd(peer));
        alone.osd.osd_links.insert(primary, link);
        // Others hold the group now. Before a map says that this OSD shall hold it again, the primary asks it.
        let epoch = Epoch(9);
        let mut map = map(1);
        let in_sync = vec![primary, other];
        map.pgs.insert(PG, PgConfig { epoch, primary, in_sync: in_sync.clone(), learners: Vec::new() });
        map.targets.insert(PG, in_sync.clone());
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.osd.handle_query(link, PG, 1, epoch, &mut alone.io);
        assert!(!alone.io.sent.is_empty(), "it says where it stands");
        // Another map from before that comes first.
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        alone.osd.delete_some(&mut alone.io);
        alone.osd.deletions.push_back(key);
        alone.osd.delete_some(&mut alone.io);
        map.targets.insert(PG, [in_sync.clone(), vec![OsdId(0)]].concat());
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let join = encode::join(PG, epoch, base::Sequence(1), base::Sequence(20));
        alone.osd.handle_bytes(alone.now, link, &join, &mut alone.io).unwrap();
        assert!(matches!(alone.osd.groups[0].state, GroupState::Replica { expected: None }));
        // Asked anew, it says that its log does not tell what it has, and joins.
        alone.osd.handle_query(link, PG, 1, epoch, &mut alone.io);
        alone.run();
        assert!(!alone.holds(key) && alone.osd.store.pg_is_incomplete(PG));
    }

    #[test]
    fn what_belongs_to_a_removed_volume_goes() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        assert!(alone.holds(key));
        let mut map = map(1);
        map.volumes.get_mut(&VOLUME).unwrap().removed = true;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        alone.run();
        assert!(!alone.holds(key));
    }

    /// The map without its pool, and what belongs to that.
    fn without_pools(revision: u64) -> ClusterMap {
        ClusterMap { revision, osds: map(1).osds, ..ClusterMap::default() }
    }

    #[test]
    fn of_a_removed_pool_nothing_is_kept_and_no_epoch_is_claimed() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        let mut removed = map(1);
        removed.revision = 2;
        removed.volumes.get_mut(&VOLUME).unwrap().removed = true;
        alone.osd.handle_map(alone.now, Arc::new(removed), &mut alone.io);
        let without = Arc::new(without_pools(3));
        // In the middle of a claim, which the registry refuses then.
        alone.osd.end_epoch(0, "a test", &mut alone.io);
        while alone.io.proposals.is_empty() {
            alone.now = alone.now + std::time::Duration::from_millis(50);
            alone.osd.end_turn(alone.now, &mut alone.io);
        }
        alone.osd.handle_map(alone.now, without.clone(), &mut alone.io);
        alone.io.proposals.clear();
        alone.osd.handle_proposal(alone.now, PG, None, &mut alone.io);
        alone.run();
        assert!(!alone.holds(key));
        assert!(alone.io.proposals.is_empty() && alone.osd.has_left(0));
        // Another map changes nothing of that, and nothing waits for the group.
        alone.osd.handle_map(alone.now, without, &mut alone.io);
        assert!(alone.osd.has_left(0));
        assert!(!alone.osd.groups.iter().any(|group| group.config.primary == OsdId(0)));
    }

    #[test]
    fn what_others_held_by_a_registry_that_was_set_back_is_not_deleted_here() {
        for (epoch, is_kept) in [(Epoch(2), true), (Epoch(9), false)] {
            let mut alone = Alone::new();
            let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
            let mut map = map(1);
            map.revision = 2;
            map.pgs.get_mut(&PG).unwrap().epoch = Epoch(4);
            alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
            alone.run();
            alone.write(key);
            let known = alone.osd.store.pg_position(PG).unwrap().0;
            assert!(Epoch(4) <= known && known < Epoch(9), "{known:?}");
            // The registry says that another holds it, by an epoch from before what this OSD wrote, or a later one.
            let primary = OsdId(1);
            let config = PgConfig { epoch, primary, in_sync: vec![primary], learners: Vec::new() };
            map.pgs.insert(PG, config);
            map.targets.insert(PG, vec![primary]);
            alone.restart(map);
            assert_eq!(alone.holds(key), is_kept, "{epoch:?}");
            assert_eq!(alone.osd.has_left(0), !is_kept);
        }
    }

    #[test]
    fn of_a_pool_that_is_gone_before_its_volumes_everything_is_kept() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.write(key);
        alone.osd.handle_map(alone.now, Arc::new(without_pools(2)), &mut alone.io);
        alone.run();
        assert!(alone.holds(key) && !alone.osd.has_left(0));
    }

    #[test]
    fn what_clients_ask_is_counted_when_it_is_answered() {
        let mut alone = Alone::new();
        let link = LinkId(7);
        alone.osd.peers.insert(link, Peer::Client(ClientLink::new(ClientId(9), None)));
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.send_again(key, 0, 2, 5);
        // Again: it is done already, and answered all the same.
        alone.send_again(key, 0, 2, 5);
        let request = wire::Request {
            request: 2,
            key,
            offset: 0,
            length: 4 * BLOCK_BYTES as u32,
            epoch: alone.osd.groups[0].epoch,
            generation: Generation(1),
            origin: 0,
            is_again: false,
        };
        alone.osd.handle_read_request(link, &request, &mut alone.io);
        // Of nothing: it is answered without the drive.
        let hole = wire::Request { key: ObjectKey { object: 4, ..key }, ..request };
        alone.osd.handle_read_request(link, &hole, &mut alone.io);
        alone.osd.handle_allocated_request(link, &hole, &mut alone.io);
        alone.osd.handle_zero_request(link, &hole, &mut alone.io);
        let stale = wire::Request { epoch: Epoch(0), ..request };
        alone.osd.handle_read_request(link, &stale, &mut alone.io);
        let fenced = wire::Request { generation: Generation(0), ..request };
        alone.osd.handle_read_request(link, &fenced, &mut alone.io);
        alone.run();
        let figures = alone.osd.figures();
        let counted = |of: &RequestFigures| (of.latencies.count(), of.bytes, of.errors, of.redirected);
        let blocks = |count: u64| count * BLOCK_BYTES as u64;
        assert_eq!(counted(&figures.write), (2, blocks(4), 0, 0));
        assert_eq!(counted(&figures.read), (2, blocks(8), 1, 1));
        assert_eq!(counted(&figures.zero), (1, blocks(4), 0, 0));
        assert_eq!(figures.allocated.latencies.count(), 1);
        // The drive answers a turn later, which is 50 ms here; the second write was answered at once.
        assert_eq!(figures.write.latencies.sum_ns % 50_000_000, 0);
        assert!(figures.write.latencies.sum_ns > 0);
        let traffic = Traffic { reads: 2, read_bytes: blocks(8), writes: 3, written_bytes: blocks(4) };
        assert_eq!(alone.osd.pool_traffic().into_iter().collect::<Vec<_>>(), [(PG.pool, traffic)]);
        assert_eq!(alone.osd.volume_traffic().collect::<Vec<_>>(), [(VOLUME, traffic)]);
        assert_eq!(alone.osd.client_traffic().collect::<Vec<_>>(), [(ClientId(9), traffic)]);
    }
}
