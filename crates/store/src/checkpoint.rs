//! Checkpoints: the index on the drive, so that a start need not read the whole log.
//!
//! A checkpoint covers all batches up to a sequence C, the newest durable one when it begins. Pages of the
//! objects that changed since their last page are appended to the log a few at a time while work goes on, then
//! a root that tells where every object's page is and how the log goes on behind C, then the superblocks point
//! to the root. A start reads the root and its pages and replays the batches behind C.
//!
//! # Why pages may be newer than C
//! A page written while work goes on may hold effects of batches behind C, which the replay applies again. Only
//! durable batches change the index, so each of them is in the log that the replay reads. A replayed write or
//! zeroing sets the same state again; the last one of each block is the last one replayed. A replayed
//! relocation applies only where the block still lies at its origin: a block that went on from there since is
//! either left alone, or set by the very write that moved it, which the replay meets afterwards. A replayed split of a
//! group that the root has split already changes nothing; records before it that name the parent are those of the child
//! where the object is the child's now (`PgLogs::home`).

use crate::actions::Action;
use crate::index::Page;
use crate::layout::{
    GROUP_IS_INCOMPLETE, GROUP_MODULUS_SHIFT, ROOT_PIECES_MAX, Record, RecordKind, RootEntry, RootGroup,
    RootHeader, RootObject, RootPiece, SUPERBLOCK_OFFSETS, Superblock,
};
use crate::store::{COLD, COLD_IN_FLIGHT_MAX, FLUSH_SUPERBLOCK, LogEnd, Store, TOKEN_SUPERBLOCK};
use crate::superblock;
use base::{BLOCK_BYTES, Buffer, ObjectKey, crc32c};
use zerocopy::{FromBytes, IntoBytes};

const INTERVAL_BYTES_MAX: u64 = 16 << 30;

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// Pages are being appended.
    Pages,
    /// The root is being appended.
    Root,
    /// The root is appended up to this batch, which must be durable.
    RootSealed(u64),
    /// A superblock is being written, or flushed.
    Superblock(usize),
}

/// What was put into the open cold batch, whose place is not known before it is sealed.
#[derive(Debug)]
struct Pending {
    /// The object of a page; `None` for a piece of the root.
    key: Option<ObjectKey>,
    data_index: u32,
    bytes: u32,
    crc32c: u32,
}

/// A checkpoint that is being written, and what the next one will free.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    phase: Phase,
    /// Space is short until one was written.
    pub(crate) is_wanted: bool,
    /// The next one is to be whole, whether there is news or not.
    is_renewal: bool,
    end: Option<LogEnd>,
    queue: Vec<ObjectKey>,
    pending: Vec<Pending>,
    /// Pages that no root will point at once this checkpoint is complete.
    replaced: Vec<(u32, u32)>,
    /// Pages that went while the root was being written already.
    replaced_later: Vec<(u32, u32)>,
    root: Vec<u8>,
    root_done: usize,
    root_pieces: Vec<RootPiece>,
    scratch: Vec<u8>,
    buffer: Buffer,
}

impl Default for Checkpoint {
    fn default() -> Checkpoint {
        Checkpoint {
            phase: Phase::Idle,
            is_wanted: false,
            is_renewal: false,
            end: None,
            queue: Vec::new(),
            pending: Vec::new(),
            replaced: Vec::new(),
            replaced_later: Vec::new(),
            root: Vec::new(),
            root_done: 0,
            root_pieces: Vec::new(),
            scratch: Vec::new(),
            buffer: Buffer::new(BLOCK_BYTES),
        }
    }
}

impl Checkpoint {
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Pages that are still counted, and that no root will point at: first blocks and how many.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.replaced.iter().chain(&self.replaced_later).copied()
    }

    /// Groups were split: what is under way goes on with the objects as they are called now.
    pub(crate) fn rename(&mut self, name_of: impl Fn(ObjectKey) -> ObjectKey) {
        let pending = self.pending.iter_mut().filter_map(|page| page.key.as_mut());
        for key in self.queue.iter_mut().chain(pending) {
            *key = name_of(*key);
        }
    }

    /// An object is gone, or has a newer page: its old one is needed until the next root is in force.
    pub(crate) fn page_was_replaced(&mut self, page: Page) {
        let list = match self.phase {
            Phase::Idle | Phase::Pages => &mut self.replaced,
            Phase::Root | Phase::RootSealed(_) | Phase::Superblock(_) => &mut self.replaced_later,
        };
        list.push((page.location, page.blocks()));
    }
}

impl Store {
    fn checkpoint_interval_blocks(&self) -> u64 {
        let device_bytes = self.superblock.device_bytes.get();
        let segment_bytes = u64::from(self.segments.blocks_each) * BLOCK_BYTES as u64;
        let chosen = (device_bytes / 32).clamp(8 * segment_bytes, INTERVAL_BYTES_MAX.max(8 * segment_bytes));
        self.options.checkpoint_interval_bytes.unwrap_or(chosen) / BLOCK_BYTES as u64
    }

    /// Begins a checkpoint when one is due, and takes the next step of one that is under way.
    pub(crate) fn advance_checkpoint(&mut self, actions: &mut Vec<Action>) {
        if self.checkpoint.is_idle() {
            let is_due = self.blocks_since_checkpoint >= self.checkpoint_interval_blocks();
            let is_last = self.is_shutting_down && self.is_quiet() && !self.cleaner.is_reading();
            if self.is_shut_down {
                return;
            }
            if is_last && self.shutdown_is_covered() && !self.checkpoint.is_renewal {
                self.is_shut_down = true;
                actions.push(Action::ShutdownDone);
                return;
            }
            let has_news = self.durable.sequence > self.superblock.covers.get();
            let is_wanted = self.checkpoint.is_renewal || self.checkpoint.is_wanted && has_news;
            if !(is_due || is_wanted || is_last || self.needs_room_of_pages()) {
                return;
            }
            self.begin_checkpoint();
        }
        if self.checkpoint.phase == Phase::Pages {
            self.append_pages(actions);
        }
        if self.checkpoint.phase == Phase::Root {
            self.append_root(actions);
        }
    }

    /// Writes everything anew that a start needs, superblocks and unchanged pages too: what is on the drive may not be
    /// what this store wrote there, and the index in memory tells it all.
    pub fn renew_checkpoint(&mut self) {
        self.checkpoint.is_renewal = true;
    }

    /// Whether the superblocks are left alone just now, so that what is read of them is whole.
    #[must_use]
    pub fn superblocks_are_at_rest(&self) -> bool {
        !matches!(self.checkpoint.phase, Phase::Superblock(_))
    }

    /// Whether a block read from the place of a superblock is one of this store's, an older one too.
    #[must_use]
    pub fn is_own_superblock(&self, block: &[u8]) -> bool {
        Superblock::read_from_prefix(block)
            .is_ok_and(|(found, _)| found.is_intact() && superblock::identity(&found) == self.identity)
    }

    /// Whether a start would have nothing of clients' to replay.
    fn shutdown_is_covered(&self) -> bool {
        self.client_sequence <= self.superblock.covers.get()
    }

    fn begin_checkpoint(&mut self) {
        self.checkpoint.is_wanted = false;
        self.checkpoint.end = Some(self.durable);
        self.checkpoint.phase = Phase::Pages;
        self.blocks_since_checkpoint = 0;
        let is_renewal = std::mem::take(&mut self.checkpoint.is_renewal);
        let dirty =
            self.index.iter().filter(|(_, object)| is_renewal || object.is_dirty || object.page.is_none());
        self.checkpoint.queue.clear();
        self.checkpoint.queue.extend(dirty.map(|(key, _)| *key));
        // The map's order is its history's; sorted pages are read faster.
        self.checkpoint.queue.sort_unstable_by(|left, right| right.cmp(left));
    }

    fn append_pages(&mut self, actions: &mut Vec<Action>) {
        let mut scratch = std::mem::take(&mut self.checkpoint.scratch);
        while let Some(key) = self.checkpoint.queue.last().copied() {
            let Some(object) = self.index.get(&key) else {
                self.checkpoint.queue.pop();
                continue;
            };
            object.to_page(&mut scratch);
            if !self.append_meta(RecordKind::Page, Some(key), &scratch, actions) {
                self.checkpoint.scratch = scratch;
                return;
            }
            self.index.get_mut(&key).expect("it was just read").is_dirty = false;
            self.checkpoint.queue.pop();
        }
        self.checkpoint.scratch = scratch;
        if self.open[COLD].is_some() && !self.seal_cold(actions) {
            return;
        }
        self.make_root();
        self.checkpoint.root_done = 0;
        self.checkpoint.root_pieces.clear();
        self.checkpoint.phase = Phase::Root;
    }

    fn append_root(&mut self, actions: &mut Vec<Action>) {
        let root = std::mem::take(&mut self.checkpoint.root);
        let piece_bytes = (self.batch_blocks_max() as usize - 1) * BLOCK_BYTES;
        while self.checkpoint.root_done < root.len() {
            let piece = &root[self.checkpoint.root_done..];
            let piece = &piece[..piece.len().min(piece_bytes)];
            if !self.append_meta(RecordKind::Root, None, piece, actions) {
                self.checkpoint.root = root;
                return;
            }
            self.checkpoint.root_done += piece.len();
        }
        self.checkpoint.root = root;
        if self.open[COLD].is_some() && !self.seal_cold(actions) {
            return;
        }
        assert!(self.checkpoint.root_pieces.len() <= ROOT_PIECES_MAX, "a root of 16 TiB fits the superblock");
        self.checkpoint.phase = Phase::RootSealed(self.cold_sequence);
        self.checkpoint_may_go_on(actions);
    }

    fn seal_cold(&mut self, actions: &mut Vec<Action>) -> bool {
        self.in_flight_count[COLD] < COLD_IN_FLIGHT_MAX && self.seal(COLD, actions)
    }

    /// Puts a page or a piece of the root into the open cold batch. `false` while there is no room.
    fn append_meta(
        &mut self,
        kind: RecordKind,
        key: Option<ObjectKey>,
        bytes: &[u8],
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.cleaner.is_reading() {
            return false;
        }
        let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u16;
        let blocks_max = self.cold_blocks_max().max(u32::from(blocks) + 1);
        if self.open[COLD].as_ref().is_some_and(|batch| !batch.fits(kind, blocks, blocks_max))
            && !self.seal_cold(actions)
        {
            return false;
        }
        if self.open[COLD].is_none() {
            self.open[COLD] = self.take_slot();
        }
        let Some(batch) = self.open[COLD].as_mut() else { return false };
        let record = Record {
            bytes: (bytes.len() as u32).into(),
            crc32c: crc32c(bytes).into(),
            ..Record::new(kind, key.unwrap_or_default(), 0, blocks)
        };
        let data_index = batch.data_blocks;
        batch.push(&record, [], bytes);
        self.checkpoint.pending.push(Pending {
            key,
            data_index,
            bytes: bytes.len() as u32,
            crc32c: record.crc32c.get(),
        });
        self.statistics.checkpoint_blocks += u64::from(blocks);
        true
    }

    /// A cold batch has its place: so have the pages in it.
    pub(crate) fn cold_was_sealed(&mut self, data_location: u32) {
        let mut pending = std::mem::take(&mut self.checkpoint.pending);
        for page in pending.drain(..) {
            let location = data_location + page.data_index;
            let placed = Page { location, bytes: page.bytes, crc32c: page.crc32c };
            match page.key {
                Some(key) => {
                    let Some(object) = self.index.get_mut(&key) else { continue };
                    if let Some(old) = object.page.replace(placed) {
                        self.checkpoint.page_was_replaced(old);
                    }
                }
                None => self.checkpoint.root_pieces.push(RootPiece {
                    location: location.into(),
                    bytes: page.bytes.into(),
                    crc32c: page.crc32c.into(),
                }),
            }
            self.segments.at(location).pages += placed.blocks();
            self.pages_blocks += u64::from(placed.blocks());
        }
        self.checkpoint.pending = pending;
    }

    fn make_root(&mut self) {
        let end = self.checkpoint.end.expect("a checkpoint under way has an end");
        let mut bytes = std::mem::take(&mut self.checkpoint.root);
        bytes.clear();
        // The header says how many objects follow, which one walk through the index tells at its end.
        bytes.resize(size_of::<RootHeader>(), 0);
        let mut object_count = 0u64;
        for (key, object) in self.index.iter() {
            let Some(page) = object.page else { continue };
            object_count += 1;
            let entry = RootObject {
                pool: key.pg.pool.0.into(),
                pg_index: key.pg.index.into(),
                volume: key.volume.0.into(),
                object: key.object.into(),
                location: page.location.into(),
                bytes: page.bytes.into(),
                crc32c: page.crc32c.into(),
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        for (pg, log) in &self.logs.groups {
            let incomplete = if log.is_incomplete { GROUP_IS_INCOMPLETE } else { 0 };
            let group = RootGroup {
                pool: pg.pool.0.into(),
                pg_index: pg.index.into(),
                flags: (log.modulus << GROUP_MODULUS_SHIFT | incomplete).into(),
                entry_count: (log.entries.len() as u32).into(),
                log_begins: log.begins.0.into(),
            };
            bytes.extend_from_slice(group.as_bytes());
            for entry in &log.entries {
                let entry = RootEntry {
                    sequence: entry.sequence.0.into(),
                    volume: entry.volume.0.into(),
                    epoch: entry.epoch.0.into(),
                    object: entry.object.into(),
                    first_block: entry.first_block.into(),
                    block_count: entry.block_count.into(),
                    reserved: 0.into(),
                    origin: entry.origin.into(),
                };
                bytes.extend_from_slice(entry.as_bytes());
            }
        }
        let header = RootHeader {
            covers: end.sequence.into(),
            mount: end.mount.into(),
            cursors: end.cursors,
            next_segment: end.next_segment,
            object_count: object_count.into(),
            group_count: (self.logs.groups.len() as u64).into(),
        };
        bytes[..size_of::<RootHeader>()].copy_from_slice(header.as_bytes());
        self.checkpoint.root = bytes;
    }

    /// Batches became durable: perhaps the root among them.
    pub(crate) fn checkpoint_may_go_on(&mut self, actions: &mut Vec<Action>) {
        let Phase::RootSealed(sequence) = self.checkpoint.phase else { return };
        if self.durable.sequence < sequence {
            return;
        }
        let end = self.checkpoint.end.expect("a checkpoint under way has an end");
        let mut superblock = Superblock {
            sequence: (self.superblock.sequence.get() + 1).into(),
            covers: end.sequence.into(),
            root_pieces: (self.checkpoint.root_pieces.len() as u32).into(),
            ..self.superblock
        };
        superblock.root[..self.checkpoint.root_pieces.len()].copy_from_slice(&self.checkpoint.root_pieces);
        for piece in old_root(&self.superblock) {
            self.checkpoint.replaced.push(piece);
        }
        self.superblock = superblock;
        if !self.checkpoint.buffer.is_unique() {
            self.checkpoint.buffer = Buffer::new(BLOCK_BYTES);
        }
        superblock::fill(&mut self.checkpoint.buffer, &superblock);
        self.write_superblock(0, actions);
    }

    fn write_superblock(&mut self, copy: usize, actions: &mut Vec<Action>) {
        self.checkpoint.phase = Phase::Superblock(copy);
        actions.push(Action::Write {
            token: TOKEN_SUPERBLOCK | copy as u32,
            offset: SUPERBLOCK_OFFSETS[copy],
            buffer: self.checkpoint.buffer.clone(),
            length: BLOCK_BYTES,
        });
    }

    pub(crate) fn superblock_was_written(&mut self, actions: &mut Vec<Action>) {
        if self.options.volatile_cache {
            actions.push(Action::Flush { token: FLUSH_SUPERBLOCK });
        } else {
            self.superblock_was_flushed(actions);
        }
    }

    pub(crate) fn superblock_was_flushed(&mut self, actions: &mut Vec<Action>) {
        let Phase::Superblock(copy) = self.checkpoint.phase else {
            unreachable!("superblocks are written by checkpoints only")
        };
        if copy + 1 < SUPERBLOCK_OFFSETS.len() {
            return self.write_superblock(copy + 1, actions);
        }
        self.checkpoint.phase = Phase::Idle;
        self.segments.covers = self.superblock.covers.get();
        let later = std::mem::take(&mut self.checkpoint.replaced_later);
        let mut replaced = std::mem::replace(&mut self.checkpoint.replaced, later);
        for (location, blocks) in replaced.drain(..) {
            self.segments.at(location).pages -= blocks;
            self.pages_blocks -= u64::from(blocks);
        }
        self.checkpoint.replaced_later = replaced;
        self.segments.free_all_unused();
    }
}

/// Where a superblock's root lies: first blocks and how many.
pub(crate) fn old_root(superblock: &Superblock) -> impl Iterator<Item = (u32, u32)> + use<> {
    let pieces = superblock.root;
    let count = superblock.root_pieces.get() as usize;
    pieces
        .into_iter()
        .take(count)
        .map(|piece| (piece.location.get(), piece.bytes.get().div_ceil(BLOCK_BYTES as u32)))
}
