//! Staging, sealing, durability.

use crate::actions::{
    Action, BatchId, Extent, Identity, Location, Options, Role, Sabotage, StageError, Staged, Statistics,
    WriteRecord,
};
use crate::batch::{OpenBatch, RecordView, header_of, records};
use crate::checkpoint::{Checkpoint, old_root};
use crate::cleaner::Cleaner;
use crate::device::DeviceError;
use crate::index::{Entry, Index, Page};
use crate::layout::{
    BatchHeader, Cursor, GROUP_MODULUS_MAX, NO_SEGMENT, RECORD_IS_DAMAGED, Record, RecordKind, STREAMS,
    Superblock,
};
use crate::pg_log::PgLogs;
use crate::segments::{SegmentState, Segments};
use base::{BLOCK_BYTES, Buffer, Epoch, LogEntry, ObjectKey, PgId, Sequence, ZERO_BLOCK_CRC32C, crc32c};
use std::collections::VecDeque;
use zerocopy::little_endian::U32;

/// The stream of foreground writes.
pub(crate) const HOT: usize = 0;
/// The stream of what cleaning moves, and of checkpoints.
pub(crate) const COLD: usize = 1;
/// Cold batches under way at the same time.
pub(crate) const COLD_IN_FLIGHT_MAX: usize = 2;
/// The least size of the largest cold batch: a header for fewer blocks would waste what cleaning wins.
const COLD_BATCH_BYTES: usize = 256 << 10;
/// Blocks of the largest write of a client.
const WRITE_BLOCKS_MAX: u64 = 65;
/// Free segments that only cleaning and checkpoints may take.
pub(crate) const RESERVE: u32 = 4;
/// Write tokens of superblocks; those of batches are below.
pub(crate) const TOKEN_SUPERBLOCK: u32 = 1 << 31;
const FLUSH_LOG: u32 = 0;
pub(crate) const FLUSH_SUPERBLOCK: u32 = 1;

/// The memory of a batch, lent again when nobody holds it any more.
#[derive(Debug)]
struct Slot {
    buffer: Buffer,
    is_used: bool,
}

/// A sealed batch on its way to the drive.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    slot: u32,
    stream: usize,
    segment: u32,
    /// The first data block on the drive.
    data_location: u32,
    /// Where the streams go on behind it.
    end_block: u32,
    next_segment: [U32; STREAMS],
    tokens: Vec<u64>,
    data_blocks: u32,
    is_written: bool,
}

/// Where the log ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEnd {
    pub(crate) sequence: u64,
    pub(crate) mount: u64,
    pub(crate) cursors: [Cursor; STREAMS],
    pub(crate) next_segment: [U32; STREAMS],
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Store {
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    pub(crate) superblock: Superblock,
    pub(crate) salt: u64,
    pub(crate) mount: u64,
    /// The sequence of the first batch written in this opening.
    mount_begin: u64,
    pub(crate) segments: Segments,
    pub(crate) index: Index,
    pub(crate) logs: PgLogs,
    slots: Vec<Slot>,
    pub(crate) open: [Option<OpenBatch>; STREAMS],
    open_tokens: Vec<u64>,
    token_vectors: Vec<Vec<u64>>,
    in_flight: VecDeque<InFlight>,
    pub(crate) in_flight_count: [usize; STREAMS],
    next_sequence: u64,
    /// Where the next batch of each stream goes.
    cursors: [Cursor; STREAMS],
    next_segment: [Option<u32>; STREAMS],
    /// A sealed batch told of it: only then may a batch go there.
    next_is_announced: [bool; STREAMS],
    /// Behind the newest durable batch.
    pub(crate) durable: LogEnd,
    /// A flush is under way that covers batches up to this one.
    flushing: Option<u64>,
    flushed_through: u64,
    /// Data blocks staged and not yet in the index.
    staged_blocks: u64,
    pub(crate) blocks_since_checkpoint: u64,
    pub(crate) foreground_since_clean: u64,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) cleaner: Cleaner,
    pub(crate) pages_blocks: u64,
    pub(crate) is_shutting_down: bool,
    pub(crate) is_shut_down: bool,
    /// Something could not be staged for want of segments, and there is none yet.
    pub(crate) is_starving: bool,
    failure: Option<String>,
    pub(crate) statistics: Statistics,
    /// The newest cold batch.
    pub(crate) cold_sequence: u64,
    /// The newest batch with clients' records.
    pub(crate) client_sequence: u64,
    /// What a slot holds while its memory is being filled elsewhere.
    stand_in: Buffer,
}

/// What opening found, from which a store goes on.
pub(crate) struct Recovered {
    pub(crate) identity: Identity,
    pub(crate) superblock: Superblock,
    pub(crate) salt: u64,
    pub(crate) segments: Segments,
    pub(crate) index: Index,
    pub(crate) logs: PgLogs,
    pub(crate) end: LogEnd,
    pub(crate) blocks_since_checkpoint: u64,
    pub(crate) pages_blocks: u64,
    pub(crate) replayed_batches: u64,
}

impl Store {
    pub(crate) fn from_recovered(recovered: Recovered, options: Options) -> Store {
        // Foreground batches under way, one being filled, and some that slow replicas still hold.
        let slot_count = options.batches_in_flight_max + 3 + COLD_IN_FLIGHT_MAX + 1;
        let slots = (0..slot_count)
            .map(|_| Slot {
                buffer: Buffer::new(options.batch_bytes_max.max(COLD_BATCH_BYTES)),
                is_used: false,
            })
            .collect();
        let end = recovered.end;
        let next =
            end.next_segment.map(|segment| Some(segment.get()).filter(|segment| *segment != NO_SEGMENT));
        Store {
            identity: recovered.identity,
            mount: recovered.superblock.mount.get(),
            mount_begin: end.sequence + 1,
            superblock: recovered.superblock,
            salt: recovered.salt,
            segments: recovered.segments,
            index: recovered.index,
            logs: recovered.logs,
            slots,
            open: [None, None],
            open_tokens: Vec::new(),
            token_vectors: Vec::new(),
            in_flight: VecDeque::new(),
            in_flight_count: [0; STREAMS],
            next_sequence: end.sequence + 1,
            cursors: end.cursors,
            next_segment: next,
            next_is_announced: [true; STREAMS],
            durable: end,
            flushing: None,
            flushed_through: end.sequence,
            staged_blocks: 0,
            blocks_since_checkpoint: recovered.blocks_since_checkpoint,
            foreground_since_clean: 0,
            checkpoint: Checkpoint::default(),
            cleaner: Cleaner::default(),
            pages_blocks: recovered.pages_blocks,
            is_shutting_down: false,
            is_shut_down: false,
            is_starving: false,
            failure: None,
            statistics: Statistics { replayed_batches: recovered.replayed_batches, ..Statistics::default() },
            cold_sequence: 0,
            client_sequence: if recovered.replayed_batches > 0 { end.sequence } else { 0 },
            stand_in: Buffer::new(1),
            options,
        }
    }

    /// Whose drive this is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The memory of batches, to be registered before work starts.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.slots.iter_mut().map(|slot| &mut slot.buffer)
    }

    /// Why the store does not work any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Appends a write of whole blocks to the open batch. `checksums` has one for each block.
    ///
    /// # Errors
    /// When the OSD is full for this role, busy, or has failed.
    ///
    /// # Panics
    /// If lengths do not match, or the record is larger than a batch.
    pub fn stage_write(
        &mut self,
        record: &WriteRecord,
        checksums: &[U32],
        data: &[u8],
    ) -> Result<Staged, StageError> {
        assert_eq!(data.len(), usize::from(record.block_count) * BLOCK_BYTES, "data is whole blocks");
        assert_eq!(checksums.len(), usize::from(record.block_count), "a checksum for each block");
        self.append_write(&on_drive(RecordKind::Write, record), record, checksums, data)
    }

    /// Appends a block whose content is lost: reads of it shall fail as they do where it was lost. `checksum` is the
    /// one of what it held.
    ///
    /// # Errors
    /// As [`Self::stage_write`].
    ///
    /// # Panics
    /// If the record is about more than one block.
    pub fn stage_damaged(&mut self, record: &WriteRecord, checksum: U32) -> Result<(), StageError> {
        assert_eq!(record.block_count, 1, "each lost block has a record of its own");
        let fillers = [[0xa5; BLOCK_BYTES], [0x5a; BLOCK_BYTES]];
        let never_verifies = fillers.iter().find(|filler| crc32c(&filler[..]) != checksum.get());
        let data = never_verifies.expect("two blocks that differ in this way have different checksums");
        let damaged = Record { flags: RECORD_IS_DAMAGED, ..on_drive(RecordKind::Write, record) };
        self.append_write(&damaged, record, &[checksum], data).map(|_| ())
    }

    fn append_write(
        &mut self,
        on_drive: &Record,
        record: &WriteRecord,
        checksums: &[U32],
        data: &[u8],
    ) -> Result<Staged, StageError> {
        self.check_limit(record.role, u64::from(record.block_count))?;
        self.make_room(RecordKind::Write, record.block_count)?;
        let batch = self.open[HOT].as_mut().expect("make_room opened it");
        let offset = batch.push(on_drive, [checksums], data) as u32;
        self.staged_blocks += u64::from(record.block_count);
        self.statistics.client_blocks += u64::from(record.block_count);
        self.foreground_since_clean += u64::from(record.block_count);
        self.open_tokens.push(record.token);
        Ok(Staged { batch: BatchId(batch.slot), offset })
    }

    /// Appends a zeroing to the open batch: the blocks read as zeros and their space is freed. A full OSD
    /// takes it too.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_zero(&mut self, record: &WriteRecord) -> Result<(), StageError> {
        self.stage_small(&on_drive(RecordKind::Zero, record), RecordKind::Zero, record.token)
    }

    /// Appends a mark: a place in a group's order without data. `modulus` is the group's.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_mark(
        &mut self,
        pg: PgId,
        modulus: u32,
        epoch: Epoch,
        sequence: Sequence,
        token: u64,
    ) -> Result<(), StageError> {
        self.stage_place(RecordKind::Mark, pg, modulus, epoch, sequence, token)
    }

    /// Appends a mark with which the group's log begins anew, because this member is catching up: until the
    /// next ordinary mark or [`Self::stage_whole`], [`Self::pg_is_incomplete`].
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_join(
        &mut self,
        pg: PgId,
        modulus: u32,
        epoch: Epoch,
        sequence: Sequence,
        token: u64,
    ) -> Result<(), StageError> {
        self.stage_place(RecordKind::Join, pg, modulus, epoch, sequence, token)
    }

    /// Appends the word that a group is split: from here on it has the objects that are its own by `modulus`, twice
    /// what it was before. The others are those of [`PgId::child`], which begins with a copy of the log. Nothing of that
    /// one may have been staged before, and nothing of an object by the name of its former group after.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    ///
    /// # Panics
    /// If the modulus is odd, or larger than any pool's.
    pub fn stage_split(&mut self, pg: PgId, modulus: u32, token: u64) -> Result<(), StageError> {
        assert!(modulus.is_multiple_of(2) && pg.index < modulus / 2, "{pg} does not split to {modulus}");
        self.stage_place(RecordKind::Split, pg, modulus, Epoch(0), Sequence(0), token)
    }

    /// Appends the word that this member has caught up: its log tells what it has from here on.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_whole(&mut self, pg: PgId, epoch: Epoch, token: u64) -> Result<(), StageError> {
        self.stage_place(RecordKind::Mark, pg, 0, epoch, Sequence(0), token)
    }

    /// Appends an entry to a group's log, of a write whose content is or comes here by other records.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_entry(&mut self, record: &WriteRecord) -> Result<(), StageError> {
        self.stage_small(&on_drive(RecordKind::Entry, record), RecordKind::Entry, record.token)
    }

    fn stage_place(
        &mut self,
        kind: RecordKind,
        pg: PgId,
        modulus: u32,
        epoch: Epoch,
        sequence: Sequence,
        token: u64,
    ) -> Result<(), StageError> {
        assert!(modulus <= GROUP_MODULUS_MAX, "no pool has {modulus} groups");
        let key = ObjectKey { pg, object: modulus, ..ObjectKey::default() };
        let place =
            Record { epoch: epoch.0.into(), sequence: sequence.0.into(), ..Record::new(kind, key, 0, 0) };
        self.stage_small(&place, kind, token)
    }

    /// The end of a turn: seals the open batch, unless enough are under way, and lets cleaning and
    /// checkpoints go on.
    pub fn flush(&mut self, actions: &mut Vec<Action>) {
        if self.failure.is_some() {
            return;
        }
        let most = self.options.batches_in_flight_max;
        let goes_now = self.open[HOT].as_ref().is_some_and(|batch| {
            // While one is under way the next one grows, unless it is large already: one write for many
            // operations. Alone it goes at once.
            let limit = if batch.is_half_full(self.batch_blocks_max()) { most } else { 1 };
            batch.record_count > 0 && self.in_flight_count[HOT] < limit
        });
        if goes_now {
            self.seal(HOT, actions);
        }
        self.replenish(actions);
        if self.checkpoint.is_idle() && self.in_flight_count[COLD] < COLD_IN_FLIGHT_MAX {
            // What cleaning moved when the stream had nowhere to go.
            self.seal(COLD, actions);
        }
        self.advance_checkpoint(actions);
        self.advance_cleaning(actions);
        // Cleaning may just have found that space waits for a checkpoint.
        self.advance_checkpoint(actions);
        self.issue_log_flush(actions);
    }

    /// A write ended.
    pub fn handle_written(&mut self, token: u32, result: Result<(), DeviceError>, actions: &mut Vec<Action>) {
        if let Err(error) = result {
            return self.fail(&error.to_string(), actions);
        }
        if self.failure.is_some() {
            return;
        }
        if token & TOKEN_SUPERBLOCK != 0 {
            return self.superblock_was_written(actions);
        }
        let batch =
            self.in_flight.iter_mut().find(|batch| batch.sequence as u32 & !TOKEN_SUPERBLOCK == token);
        batch.expect("only batches in flight are written").is_written = true;
        self.settle(actions);
        self.issue_log_flush(actions);
    }

    /// A flush ended.
    pub fn handle_flushed(&mut self, token: u32, result: Result<(), DeviceError>, actions: &mut Vec<Action>) {
        if let Err(error) = result {
            return self.fail(&error.to_string(), actions);
        }
        if self.failure.is_some() {
            return;
        }
        if token == FLUSH_SUPERBLOCK {
            return self.superblock_was_flushed(actions);
        }
        self.flushed_through = self.flushing.take().expect("only a flush under way ends");
        self.settle(actions);
        self.issue_log_flush(actions);
    }

    /// Begins to stop: everything staged becomes durable, then a checkpoint makes the next start quick.
    /// Nothing may be staged any more. [`Action::ShutdownDone`] tells the end.
    pub fn begin_shutdown(&mut self, actions: &mut Vec<Action>) {
        self.is_shutting_down = true;
        if self.failure.is_some() {
            actions.push(Action::ShutdownDone);
        }
        self.flush(actions);
    }

    /// Where blocks of an object lie, and their checksums, one for each. Appends to both vectors. Only what is
    /// durable is seen.
    pub fn lookup(
        &self,
        key: &ObjectKey,
        first_block: u16,
        block_count: u16,
        extents: &mut Vec<Extent>,
        checksums: &mut Vec<u32>,
    ) {
        let object = self.index.get(key);
        let first_extent = extents.len();
        for block in first_block..first_block + block_count {
            let entry = object.and_then(|object| object.get(block));
            checksums.push(entry.map_or(ZERO_BLOCK_CRC32C, |entry| entry.crc32c));
            let location = entry.map(|entry| entry.location);
            if let Some(last) = extents[first_extent..].last_mut() {
                let continues = match (last.location, location) {
                    (None, None) => true,
                    // Two segments that touch are two extents: they are pinned one by one.
                    (Some(Location(start)), Some(location)) => {
                        start + u32::from(last.block_count) == location
                            && self.segments.of(start) == self.segments.of(location)
                    }
                    _ => false,
                };
                if continues {
                    last.block_count += 1;
                    continue;
                }
            }
            extents.push(Extent { first_block: block, block_count: 1, location: location.map(Location) });
        }
    }

    /// Keeps what lies at a location from being overwritten while it is read.
    pub fn pin(&mut self, location: Location) {
        self.segments.at(location.0).pins += 1;
    }

    /// Ends a [`Self::pin`].
    pub fn unpin(&mut self, location: Location) {
        let segment = self.segments.at(location.0);
        assert!(segment.pins > 0, "what is unpinned was pinned");
        segment.pins -= 1;
        if segment.pins == 0 {
            let index = self.segments.of(location.0).expect("it was just found");
            self.segments.try_free(index);
        }
    }

    /// Which blocks of an object are allocated: a bit for each, the lowest first.
    #[must_use]
    pub fn allocated_bits(&self, key: &ObjectKey) -> [u8; base::OBJECT_BLOCKS / 8] {
        let mut bits = [0; base::OBJECT_BLOCKS / 8];
        if let Some(object) = self.index.get(key) {
            for block in 0..base::OBJECT_BLOCKS as u16 {
                bits[usize::from(block) / 8] |= u8::from(object.get(block).is_some()) << (block % 8);
            }
        }
        bits
    }

    /// Calls `visit` with each block of an object that is there, in order, and its checksum.
    pub fn for_each_block(&self, key: &ObjectKey, mut visit: impl FnMut(u16, u32)) {
        let Some(object) = self.index.get(key) else { return };
        for block in 0..base::OBJECT_BLOCKS as u16 {
            if let Some(entry) = object.get(block) {
                visit(block, entry.crc32c);
            }
        }
    }

    /// Every object with at least one block.
    pub fn objects(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.index.iter().map(|(key, _)| *key)
    }

    /// How many objects of a group are there.
    #[must_use]
    pub fn object_count(&self, pg: PgId) -> u64 {
        self.index.object_count(pg)
    }

    /// The newest durable entry of a group's order.
    #[must_use]
    pub fn pg_position(&self, pg: PgId) -> Option<(Epoch, Sequence)> {
        self.logs.position(pg)
    }

    /// The newest durable entries of a group's order, oldest first.
    pub fn pg_log(&self, pg: PgId) -> impl ExactSizeIterator<Item = LogEntry> + DoubleEndedIterator + '_ {
        const NONE: &VecDeque<LogEntry> = &VecDeque::new();
        self.logs.groups.get(&pg).map_or(NONE, |log| &log.entries).iter().copied()
    }

    /// From where on [`Self::pg_log`] lacks nothing; 0 if it goes back to the group's first entry.
    #[must_use]
    pub fn pg_log_begins(&self, pg: PgId) -> Sequence {
        self.logs.groups.get(&pg).map_or(Sequence(0), |log| log.begins)
    }

    /// The group's modulus: it has the objects whose place, divided by that, leaves its number ([`PgId::holds`]). `None`
    /// if it holds nothing of the group.
    #[must_use]
    pub fn pg_modulus(&self, pg: PgId) -> Option<u32> {
        self.logs.groups.get(&pg).map(|log| log.modulus).filter(|modulus| *modulus > 0)
    }

    /// Whether this member was catching up when the group's log began, and may lack what came before.
    #[must_use]
    pub fn pg_is_incomplete(&self, pg: PgId) -> bool {
        self.logs.groups.get(&pg).is_some_and(|log| log.is_incomplete)
    }

    /// Whether clients' writes are refused for want of space: the largest of them would be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.check_limit(Role::Primary, WRITE_BLOCKS_MAX) == Err(StageError::Full)
    }

    /// Figures.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics {
            device_bytes: self.superblock.device_bytes.get(),
            usable_bytes: self.blocks_max(Role::Primary) * BLOCK_BYTES as u64,
            live_bytes: self.index.block_count * BLOCK_BYTES as u64,
            free_segments: self.segments.free_count(),
            segments: self.segments.count(),
            index_bytes: self.index.memory_bytes(),
            objects: self.index.len() as u64,
            ..self.statistics
        }
    }

    /// Recomputes the accounting from the index. For tests and the simulator.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn verify(&self) -> Result<(), String> {
        let mut live = vec![0u32; self.segments.all.len()];
        let mut pages = vec![0u32; self.segments.all.len()];
        let mut seen = base::hash::Set::default();
        let mut blocks = 0;
        for (key, object) in self.index.iter() {
            if self.logs.home(*key) != *key {
                return Err(format!("{key} lies in a group that it is not one of any more"));
            }
            for entry in object.entries() {
                let segment =
                    self.segments.of(entry.location).ok_or(format!("{key}: {entry:?} lies in no segment"))?;
                live[segment as usize] += 1;
                blocks += 1;
                if !seen.insert(entry.location) {
                    return Err(format!("{key}: {entry:?} belongs to two blocks"));
                }
            }
            if let Some(page) = object.page {
                pages[self.segments.of(page.location).ok_or("a page lies in no segment")? as usize] +=
                    page.blocks();
            }
        }
        // While a checkpoint is under way, what it has written of its root is counted too.
        let is_exact = self.checkpoint.is_idle();
        for (location, blocks) in old_root(&self.superblock).chain(self.checkpoint.replaced()) {
            pages[self.segments.of(location).ok_or("a checkpoint lies in no segment")? as usize] += blocks;
        }
        if blocks != self.index.block_count {
            return Err(format!("the index counts {} blocks and has {blocks}", self.index.block_count));
        }
        for (index, segment) in self.segments.all.iter().enumerate() {
            if segment.live != live[index] {
                return Err(format!(
                    "segment {index} counts {} live blocks and has {}",
                    segment.live, live[index]
                ));
            }
            if segment.pages < pages[index] || is_exact && segment.pages > pages[index] {
                return Err(format!(
                    "segment {index} counts {} page blocks and has {}",
                    segment.pages, pages[index]
                ));
            }
            if segment.state == SegmentState::Free && (segment.live > 0 || segment.pages > 0) {
                return Err(format!("segment {index} is free and holds {} live blocks", segment.live));
            }
        }
        let counted: u64 = self.segments.all.iter().map(|segment| u64::from(segment.pages)).sum();
        if self.pages_blocks != counted {
            return Err(format!(
                "{} page blocks are counted, and the segments have {counted}",
                self.pages_blocks
            ));
        }
        Ok(())
    }

    fn needs_flush(&self) -> bool {
        self.options.volatile_cache && self.options.sabotage != Some(Sabotage::ReportBeforeFlush)
    }

    /// The largest batch in blocks.
    pub(crate) fn batch_blocks_max(&self) -> u32 {
        ((self.options.batch_bytes_max / BLOCK_BYTES) as u32).min(self.segments.blocks_each)
    }

    /// The largest cold batch that wastes nothing of its segment's end.
    pub(crate) fn cold_blocks_max(&self) -> u32 {
        let most = self
            .batch_blocks_max()
            .max((COLD_BATCH_BYTES / BLOCK_BYTES) as u32)
            .min(self.segments.blocks_each);
        let room = self.cursor_room(COLD);
        if room >= 2 { room.min(most) } else { most }
    }

    /// The most live blocks at which a role may still write. What is left is the room that cleaning and
    /// checkpoints need.
    fn blocks_max(&self, role: Role) -> u64 {
        let working =
            u64::from(self.segments.count().saturating_sub(8)) * u64::from(self.segments.blocks_each);
        // Two percent; on a small drive more, for what is being written anew is there twice.
        let apart = (working / 50).max(u64::from(4 * self.batch_blocks_max()).min(working / 8));
        let below = match role {
            Role::Housekeeping => 0,
            Role::Replica => 1,
            Role::Recovery => 2,
            Role::Primary => 3,
        };
        working * 94 / 100 - below * apart
    }

    fn check_limit(&self, role: Role, blocks: u64) -> Result<(), StageError> {
        if let Some(reason) = &self.failure {
            return Err(StageError::Failed(reason.clone()));
        }
        if self.has_room(role, blocks, self.pages_blocks) { Ok(()) } else { Err(StageError::Full) }
    }

    fn has_room(&self, role: Role, blocks: u64, pages_blocks: u64) -> bool {
        // A checkpoint's pages are there twice while the next one is being written.
        let used = self.index.block_count + self.staged_blocks + 2 * pages_blocks;
        used + blocks <= self.blocks_max(role)
    }

    /// Whether clients' writes are refused for no other reason than pages that the next checkpoint gives back: on a small
    /// drive that was emptied, nobody may write any more so that one becomes due.
    pub(crate) fn needs_room_of_pages(&self) -> bool {
        let replaced = || self.checkpoint.replaced().map(|(_, blocks)| u64::from(blocks)).sum::<u64>();
        let has_room = |pages_blocks| self.has_room(Role::Primary, WRITE_BLOCKS_MAX, pages_blocks);
        !has_room(self.pages_blocks) && has_room(self.pages_blocks - replaced())
    }

    fn stage_small(&mut self, record: &Record, kind: RecordKind, token: u64) -> Result<(), StageError> {
        if let Some(reason) = &self.failure {
            return Err(StageError::Failed(reason.clone()));
        }
        self.make_room(kind, record.block_count.get())?;
        self.open[HOT].as_mut().expect("make_room opened it").push(record, [], &[]);
        self.open_tokens.push(token);
        Ok(())
    }

    /// Sees to it that the open foreground batch takes a record.
    fn make_room(&mut self, kind: RecordKind, block_count: u16) -> Result<(), StageError> {
        let blocks_max = self.batch_blocks_max();
        assert!(kind.data_blocks(block_count) < blocks_max, "a record fits a batch");
        if self.open[HOT].is_none() {
            let slot = self.take_slot().ok_or(StageError::Busy)?;
            self.open[HOT] = Some(slot);
        }
        let batch = self.open[HOT].as_ref().expect("it was just opened");
        if !batch.fits(kind, block_count, blocks_max) {
            return Err(StageError::Busy);
        }
        let blocks = batch.blocks() + kind.data_blocks(block_count);
        let room = self.cursor_room(HOT);
        // A batch ends with its segment, so that little of it is wasted; the record begins the next one.
        let ends_segment = batch.record_count > 0 && batch.blocks() <= room && blocks > room;
        let has_room = room >= blocks || self.next_segment[HOT].is_some();
        if has_room && !ends_segment {
            return Ok(());
        }
        self.is_starving |= !has_room;
        Err(StageError::Busy)
    }

    /// A batch to fill, with memory that nobody holds.
    pub(crate) fn take_slot(&mut self) -> Option<OpenBatch> {
        let index = self.slots.iter().position(|slot| !slot.is_used && slot.buffer.is_unique())?;
        let slot = &mut self.slots[index];
        slot.is_used = true;
        // The slot keeps an empty stand-in while the batch is filled, so that the batch is its only holder.
        let buffer = std::mem::replace(&mut slot.buffer, self.stand_in.clone());
        Some(OpenBatch::new(index as u32, buffer))
    }

    /// Takes back a batch that was not needed.
    pub(crate) fn return_slot(&mut self, batch: OpenBatch) {
        let slot = &mut self.slots[batch.slot as usize];
        slot.buffer = batch.buffer;
        slot.is_used = false;
    }

    fn cursor_room(&self, stream: usize) -> u32 {
        self.segments.blocks_each - self.cursors[stream].block.get()
    }

    /// Chooses segments to go on in, where the streams have none, and tells of them where that is needed.
    fn replenish(&mut self, actions: &mut Vec<Action>) {
        for stream in [COLD, HOT] {
            if self.next_segment[stream].is_none() {
                let keep = if stream == HOT { RESERVE } else { 0 };
                self.next_segment[stream] = self.segments.take(keep);
                self.next_is_announced[stream] = false;
            }
        }
        self.is_starving &= self.next_segment[HOT].is_none();
        // A batch that must go to a segment nobody was told of waits for an empty batch that tells of it.
        let waits = (0..STREAMS).any(|stream| {
            let is_silent = self.next_segment[stream].is_some() && !self.next_is_announced[stream];
            let blocks = self.open[stream].as_ref().map_or(0, OpenBatch::blocks);
            is_silent && blocks > self.cursor_room(stream)
        });
        if !waits {
            return;
        }
        let has_place = |stream: &usize| {
            self.cursor_room(*stream) > 0
                || self.next_segment[*stream].is_some() && self.next_is_announced[*stream]
        };
        if let Some(stream) = [COLD, HOT].iter().copied().find(has_place)
            && let Some(batch) = self.take_slot()
        {
            let (segment, block) = self.place(stream, batch.blocks()).expect("it was just looked for");
            self.issue(stream, batch, (segment, block), Vec::new(), actions);
        }
    }

    /// Where a batch of `blocks` goes, or `None` while its stream has nowhere to go.
    fn place(&mut self, stream: usize, blocks: u32) -> Option<(u32, u32)> {
        if self.cursor_room(stream) < blocks {
            let next = self.next_segment[stream].filter(|_| self.next_is_announced[stream])?;
            let old = self.cursors[stream].segment.get();
            self.segments.all[old as usize].state = SegmentState::Sealed;
            self.segments.try_free(old);
            self.segments.all[next as usize].state = SegmentState::Open;
            self.cursors[stream] = Cursor { segment: next.into(), block: 0.into() };
            let keep = if stream == HOT { RESERVE } else { 0 };
            self.next_segment[stream] = self.segments.take(keep);
            self.next_is_announced[stream] = false;
        }
        let cursor = &mut self.cursors[stream];
        let (segment, block) = (cursor.segment.get(), cursor.block.get());
        cursor.block = (block + blocks).into();
        Some((segment, block))
    }

    /// Seals a stream's open batch and issues its write. `false` while it has nowhere to go.
    pub(crate) fn seal(&mut self, stream: usize, actions: &mut Vec<Action>) -> bool {
        let Some(blocks) = self.open[stream].as_ref().map(OpenBatch::blocks) else { return false };
        let Some(place) = self.place(stream, blocks) else { return false };
        let batch = self.open[stream].take().expect("it was just looked at");
        let mut tokens = self.token_vectors.pop().unwrap_or_default();
        if stream == HOT {
            std::mem::swap(&mut tokens, &mut self.open_tokens);
        }
        self.issue(stream, batch, place, tokens, actions);
        true
    }

    /// Seals a batch that has its place and issues its write.
    fn issue(
        &mut self,
        stream: usize,
        mut batch: OpenBatch,
        (segment, block): (u32, u32),
        tokens: Vec<u64>,
        actions: &mut Vec<Action>,
    ) {
        let blocks = batch.blocks();
        let batch_has_clients = stream == HOT && batch.record_count > 0;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let next_segment = self.next_segment.map(|segment| U32::new(segment.unwrap_or(NO_SEGMENT)));
        batch.seal(BatchHeader {
            salt: self.salt.into(),
            sequence: sequence.into(),
            mount: self.mount.into(),
            mount_begin: self.mount_begin.into(),
            durable_through: self.durable.sequence.into(),
            next_segment,
            stream: stream as u8,
            ..BatchHeader::default()
        });
        self.next_is_announced = [true; STREAMS];
        let state = &mut self.segments.all[segment as usize];
        state.written = block + blocks;
        state.in_flight += 1;
        state.last_sequence = sequence;
        let data_location = self.segments.location(segment, block + 1);
        let slot = batch.slot;
        self.slots[slot as usize].buffer = batch.buffer.clone();
        if stream == HOT {
            actions.push(Action::Sealed { batch: BatchId(slot), buffer: batch.buffer.clone() });
        } else {
            self.cold_sequence = sequence;
            // An empty batch tells of segments; what the open one holds has no place yet.
            if batch.record_count > 0 {
                self.cold_was_sealed(data_location);
            }
        }
        actions.push(Action::Write {
            token: sequence as u32 & !TOKEN_SUPERBLOCK,
            offset: self.segments.offset(segment, block),
            buffer: batch.buffer,
            length: blocks as usize * BLOCK_BYTES,
        });
        if batch_has_clients {
            self.client_sequence = sequence;
            self.cleaner.grant(blocks);
        }
        self.in_flight_count[stream] += 1;
        self.statistics.batches += 1;
        self.statistics.header_blocks += 1;
        self.blocks_since_checkpoint += u64::from(blocks);
        self.in_flight.push_back(InFlight {
            sequence,
            slot,
            stream,
            segment,
            data_location,
            end_block: block + blocks,
            next_segment,
            tokens,
            data_blocks: blocks - 1,
            is_written: false,
        });
    }

    /// Issues a flush if written batches wait for one and none is under way.
    fn issue_log_flush(&mut self, actions: &mut Vec<Action>) {
        if !self.needs_flush() || self.flushing.is_some() || self.failure.is_some() {
            return;
        }
        let written = self.in_flight.iter().take_while(|batch| batch.is_written).last();
        if let Some(last) = written.map(|batch| batch.sequence).filter(|last| *last > self.flushed_through) {
            self.flushing = Some(last);
            actions.push(Action::Flush { token: FLUSH_LOG });
        }
    }

    /// Takes every batch that became durable into the index, in order, and tells of it.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        while let Some(front) = self.in_flight.front() {
            if !front.is_written || (self.needs_flush() && front.sequence > self.flushed_through) {
                break;
            }
            let mut batch = self.in_flight.pop_front().expect("it was just looked at");
            let slot = &mut self.slots[batch.slot as usize];
            slot.is_used = false;
            // A clone: applying changes everything else of the store.
            let buffer = slot.buffer.clone();
            self.in_flight_count[batch.stream] -= 1;
            self.segments.all[batch.segment as usize].in_flight -= 1;
            if batch.stream == HOT {
                self.staged_blocks -= u64::from(batch.data_blocks);
            }
            self.durable.sequence = batch.sequence;
            self.durable.mount = self.mount;
            self.durable.cursors[batch.stream] =
                Cursor { segment: batch.segment.into(), block: batch.end_block.into() };
            self.durable.next_segment = batch.next_segment;
            let block = &buffer.bytes()[..BLOCK_BYTES];
            let header = header_of(block, self.salt).expect("this store sealed it");
            for view in records(block, &header) {
                // Cleaning goes by headers from before a split; nothing else is staged by a former name.
                let key = match view.kind {
                    RecordKind::Relocate => self.logs.home_of(&view),
                    _ => view.record.key(),
                };
                let (index, segments, logs) = (&mut self.index, &mut self.segments, &mut self.logs);
                let freed = apply(&view, key, batch.data_location, index, segments, logs);
                if let Some(page) = freed {
                    self.checkpoint.page_was_replaced(page);
                }
                if view.kind == RecordKind::Split && self.options.sabotage != Some(Sabotage::KeepOldNames) {
                    self.checkpoint.rename(|key| self.logs.home(key));
                }
            }
            self.segments.try_free(batch.segment);
            for token in batch.tokens.drain(..) {
                actions.push(Action::Durable { token });
            }
            self.token_vectors.push(batch.tokens);
        }
        self.checkpoint_may_go_on(actions);
    }

    /// The drive does not do what it is told: nothing more is promised. Only the first reason counts.
    pub fn fail(&mut self, reason: &str, actions: &mut Vec<Action>) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(reason.to_owned());
        let tokens: Vec<u64> = self
            .in_flight
            .iter()
            .flat_map(|batch| batch.tokens.iter().copied())
            .chain(self.open_tokens.drain(..))
            .collect();
        for token in tokens {
            actions.push(Action::Lost { token, reason: reason.to_owned() });
        }
        if self.is_shutting_down {
            actions.push(Action::ShutdownDone);
        }
    }

    /// Nothing is staged or under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.open.iter().flatten().all(|batch| batch.record_count == 0)
    }
}

fn on_drive(kind: RecordKind, record: &WriteRecord) -> Record {
    Record {
        epoch: record.epoch.0.into(),
        sequence: record.sequence.0.into(),
        ..Record::new(kind, record.key, record.first_block, record.block_count).with_origin(record.origin)
    }
}

/// Takes a durable record into the index. The same code runs when a batch becomes durable and when a start
/// replays it, so both come to the same state. `key` is what the object is called now. Answers the
/// checkpoint page of an object that is gone.
pub(crate) fn apply(
    view: &RecordView<'_>,
    key: ObjectKey,
    data_location: u32,
    index: &mut Index,
    segments: &mut Segments,
    logs: &mut PgLogs,
) -> Option<Page> {
    let (first_block, block_count) = (view.record.first_block.get(), view.record.block_count.get());
    let mut freed = None;
    match view.kind {
        RecordKind::Write => {
            for number in 0..block_count {
                let location = data_location + view.data_index + u32::from(number);
                let crc32c = view.tail[usize::from(number)].get();
                let old = index.set(key, first_block + number, Entry { location, crc32c });
                segments.at(location).live += 1;
                if let Some(old) = old {
                    segments.block_died(old.location);
                }
            }
        }
        RecordKind::Zero => {
            freed = index.remove(&key, first_block, block_count, |old| segments.block_died(old.location));
        }
        RecordKind::Relocate => {
            let (checksums, origins) = view.tail.split_at(usize::from(block_count));
            for number in 0..block_count {
                let block = first_block + number;
                let origin = origins[usize::from(number)].get();
                let crc32c = checksums[usize::from(number)].get();
                // Overwritten since it was read: the copy is dead on arrival. The checksum tells even a write to
                // the very place that the block was read from, should that have been freed meanwhile.
                if index.entry(&key, block) != Some(Entry { location: origin, crc32c }) {
                    continue;
                }
                let location = data_location + view.data_index + u32::from(number);
                index.set(key, block, Entry { location, crc32c });
                segments.at(location).live += 1;
                segments.block_died(origin);
            }
        }
        RecordKind::Mark | RecordKind::Join => {
            if let Some(modulus) = view.record.modulus() {
                logs.note_modulus(key.pg, modulus);
            }
        }
        RecordKind::Split => {
            if let Some(modulus) = view.record.modulus()
                && logs.split(key.pg, modulus)
            {
                index.split(key.pg, modulus);
            }
            return None;
        }
        RecordKind::Entry => {}
        RecordKind::Page | RecordKind::Root => return None,
    }
    // The log of the group that the record names: it was copied with this entry when the group was split.
    let pg = view.record.key().pg;
    let (epoch, sequence) = view.record.position();
    let is_placed = sequence > Sequence(0) || view.kind == RecordKind::Join;
    if view.kind == RecordKind::Mark {
        logs.completed(pg);
    }
    if view.kind != RecordKind::Relocate && is_placed {
        let origin = match view.kind {
            RecordKind::Write | RecordKind::Zero | RecordKind::Entry => view.record.origin(),
            _ => 0,
        };
        let object = if block_count == 0 { 0 } else { key.object };
        let volume = key.volume;
        let entry = LogEntry { epoch, sequence, volume, object, first_block, block_count, origin };
        match view.kind {
            RecordKind::Join => logs.restart(pg, entry),
            _ => logs.push(pg, entry),
        }
    }
    freed
}
