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
//! relocation applies only where the block still lies where it was moved from: a block that went on from there since is
//! either left alone, or set by the very write that moved it, which the replay meets afterwards. A replayed split of a
//! group that the root has split already changes nothing; records before it that name the parent are those of the child
//! where the object is the child's now (`PgLogs::home`). Of a pool that was forgotten the root may have nothing: what the replay
//! meets of it begins anew, as far as it goes, and is taken away again by the zeroings and the forgetting that follow.

use crate::actions::{Action, Options};
use crate::contents::Contents;
use crate::in_flight::{FLUSH_SUPERBLOCK, TOKEN_SUPERBLOCK};
use crate::layout::{
    GROUP_IS_INCOMPLETE, GROUP_MODULUS_SHIFT, GROUP_REACHED, LogEnd, Piece, Record, RecordKind, RootEntry,
    RootGroup, RootHeader, RootHeld, RootObject, SUPERBLOCK_OFFSETS, Superblock,
};
use crate::log::{Log, Turn};
use crate::pg_log::Held;
use crate::segments::Segments;
use crate::space::Space;
use crate::streams::COLD;
use crate::superblock;
use base::{BLOCK_BYTES, Buffer, ObjectKey, crc32c};
use zerocopy::IntoBytes;

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
    /// Its location is counted from the batch's first data block.
    piece: Piece,
}

/// A checkpoint that is being written, and what the next one will free.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    /// The newest that was written, or is being written.
    superblock: Superblock,
    /// Blocks of log between the beginnings of two checkpoints.
    interval_blocks: u64,
    needs_flush: bool,
    phase: Phase,
    /// Blocks of log when the last one began.
    begun_at: u64,
    /// Space is short until one was written.
    is_wanted: bool,
    /// It goes on once cleaning made room.
    waits_for_room: bool,
    /// Cleaning cannot make any: it may take what is left.
    may_take_last: bool,
    /// The next one is to be whole, whether there is news or not.
    is_renewal: bool,
    end: Option<LogEnd>,
    queue: Vec<ObjectKey>,
    pending: Vec<Pending>,
    /// Pages that no root will point at once this checkpoint is complete.
    replaced: Vec<Piece>,
    /// Pages that went while the root was being written already.
    replaced_later: Vec<Piece>,
    root: Vec<u8>,
    root_done: usize,
    root_pieces: Vec<Piece>,
    scratch: Vec<u8>,
    buffer: Buffer,
    /// Blocks of pages and roots since opening.
    pub(crate) blocks: u64,
}

impl Checkpoint {
    /// None under way behind that superblock.
    pub(crate) fn new(superblock: Superblock, segments: &Segments, options: &Options) -> Checkpoint {
        let eight_segments = 8 * u64::from(segments.blocks_each) * BLOCK_BYTES as u64;
        let chosen = (superblock.device_bytes.get() / 32)
            .clamp(eight_segments, INTERVAL_BYTES_MAX.max(eight_segments));
        Checkpoint {
            superblock,
            interval_blocks: options.checkpoint_interval_bytes.unwrap_or(chosen) / BLOCK_BYTES as u64,
            needs_flush: options.volatile_cache,
            phase: Phase::Idle,
            begun_at: 0,
            is_wanted: false,
            waits_for_room: false,
            may_take_last: false,
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
            blocks: 0,
        }
    }

    /// The superblock that is in force, or is being written.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Pages that are still counted, and that no root will point at.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = &Piece> {
        self.replaced.iter().chain(&self.replaced_later)
    }

    /// Groups were split: what is under way goes on with the objects as they are called now.
    pub(crate) fn rename(&mut self, name_of: impl Fn(ObjectKey) -> ObjectKey) {
        let pending = self.pending.iter_mut().filter_map(|page| page.key.as_mut());
        for key in self.queue.iter_mut().chain(pending) {
            *key = name_of(*key);
        }
    }

    /// An object is gone, or has a newer page: its old one is needed until the next root is in force.
    pub(crate) fn page_was_replaced(&mut self, page: Piece) {
        let list = match self.phase {
            Phase::Idle | Phase::Pages => &mut self.replaced,
            Phase::Root | Phase::RootSealed(_) | Phase::Superblock(_) => &mut self.replaced_later,
        };
        list.push(page);
    }

    /// Space is short until one more was written.
    pub(crate) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Whether one that is under way cannot go on before cleaning made room.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }

    /// There is nothing to clean that would make room for it.
    pub(crate) fn take_last(&mut self) {
        self.may_take_last = true;
    }

    /// The next one writes everything anew.
    pub(crate) fn renew(&mut self) {
        self.is_renewal = true;
    }

    /// Whether a start would have nothing to replay of what was up to this batch, and nothing is to be renewed.
    pub(crate) fn is_all_of(&self, sequence: u64) -> bool {
        sequence <= self.superblock.covers.get() && !self.is_renewal
    }

    /// Whether the superblocks are left alone just now.
    pub(crate) fn superblocks_are_at_rest(&self) -> bool {
        !matches!(self.phase, Phase::Superblock(_))
    }

    /// Begins a checkpoint when one is due, or the last one, and takes the next step of one that is under way.
    ///
    /// # Errors
    /// When its root would be larger than a superblock can point to though the groups' logs are as short as they may be, which
    /// [`Space`] does not let it come near: for an operator.
    pub(crate) fn advance(&mut self, is_last: bool, turn: &mut Turn<'_>) -> Result<(), String> {
        if self.is_idle() {
            let is_due = turn.log.appended_blocks - self.begun_at >= self.interval_blocks;
            let has_news = turn.log.durable.sequence.get() > self.superblock.covers.get();
            let is_wanted = self.is_renewal || self.is_wanted && has_news;
            if !(is_due || is_wanted || is_last || self.would_make_room(turn.contents, turn.log)) {
                return Ok(());
            }
            self.begin(turn.contents, turn.log);
        }
        if self.phase == Phase::Pages {
            self.append_pages(turn);
        }
        if self.phase == Phase::Root {
            let (bytes, bytes_max) = (self.root.len(), turn.log.root_bytes_max);
            if bytes as u64 > bytes_max {
                let (objects, groups) = (turn.contents.index.len(), turn.contents.logs.groups.len());
                return Err(format!(
                    "{objects} objects and {groups} placement groups are more than a checkpoint has room \
                     for: its root takes {bytes} bytes, and may take {bytes_max}; add OSDs before you replace \
                     this one"
                ));
            }
            self.append_root(turn);
        }
        Ok(())
    }

    /// Whether clients' writes are refused for no other reason than pages that the next checkpoint gives back: on a small
    /// drive that was emptied, nobody may write any more so that one becomes due.
    fn would_make_room(&self, contents: &Contents, log: &Log) -> bool {
        let replaced = || self.replaced().map(|piece| u64::from(piece.blocks())).sum::<u64>();
        let space = Space::of(contents, log);
        space.is_full() && !space.without_pages(replaced()).is_full()
    }

    fn begin(&mut self, contents: &Contents, log: &Log) {
        self.is_wanted = false;
        self.may_take_last = false;
        self.end = Some(log.durable);
        self.phase = Phase::Pages;
        self.begun_at = log.appended_blocks;
        let is_renewal = std::mem::take(&mut self.is_renewal);
        let objects = contents.index.iter();
        let dirty = objects.filter(|(_, object)| is_renewal || object.is_dirty || object.page.is_none());
        self.queue.clear();
        self.queue.extend(dirty.map(|(key, _)| key));
        // The map's order is its history's; sorted pages are read faster.
        self.queue.sort_unstable_by(|left, right| right.cmp(left));
    }

    fn append_pages(&mut self, turn: &mut Turn<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        while let Some(key) = self.queue.last().copied() {
            if let Some(object) = turn.contents.index.get(&key) {
                object.to_page(&mut scratch);
                if !self.append(Some(key), &scratch, turn) {
                    self.scratch = scratch;
                    return;
                }
                turn.contents.index.get_mut(&key).expect("it was just read").is_dirty = false;
            }
            self.queue.pop();
        }
        self.scratch = scratch;
        if turn.log.open_cold().is_some() && !self.seal(turn) {
            return;
        }
        // What objects leave is for the groups' logs, whose full length nobody refuses.
        let objects_bytes = turn.contents.index.len() * size_of::<RootObject>() + size_of::<RootHeader>();
        let logs_bytes_max = turn.log.root_bytes_max.saturating_sub(objects_bytes as u64);
        turn.contents.logs.shorten(logs_bytes_max);
        self.make_root(turn.contents, turn.log.durable.sequence.get());
        self.root_done = 0;
        self.root_pieces.clear();
        self.phase = Phase::Root;
    }

    fn append_root(&mut self, turn: &mut Turn<'_>) {
        let root = std::mem::take(&mut self.root);
        let piece_bytes = (turn.log.batch_blocks_max as usize - 1) * BLOCK_BYTES;
        while self.root_done < root.len() {
            let piece = &root[self.root_done..];
            let piece = &piece[..piece.len().min(piece_bytes)];
            if !self.append(None, piece, turn) {
                self.root = root;
                return;
            }
            self.root_done += piece.len();
        }
        self.root = root;
        if turn.log.open_cold().is_some() && !self.seal(turn) {
            return;
        }
        self.phase = Phase::RootSealed(turn.log.cold_sequence);
        self.became_durable(turn.log.durable.sequence.get(), turn.actions);
    }

    /// Puts an object's page, or a piece of the root, into the open cold batch. `false` while there is no room.
    fn append(&mut self, key: Option<ObjectKey>, bytes: &[u8], turn: &mut Turn<'_>) -> bool {
        let log = &mut *turn.log;
        if log.cold_is_reserved {
            return false;
        }
        let kind = if key.is_some() { RecordKind::Page } else { RecordKind::Root };
        let blocks = bytes.len().div_ceil(BLOCK_BYTES) as u16;
        let blocks_max = log.cold_blocks_max(&turn.contents.segments).max(u32::from(blocks) + 1);
        // Where nothing is pending, it is what cleaning moved.
        let is_cleaning = self.pending.is_empty();
        if log.open_cold().as_ref().is_some_and(|batch| is_cleaning || !batch.fits(kind, blocks, blocks_max))
            && !self.seal(turn)
        {
            return false;
        }
        let log = &mut *turn.log;
        if log.open_cold().is_none() {
            // What one that was broken off took is not free before the next one is complete: where that took the last
            // segment and was broken off too, there would be none to move anything to.
            let leaves_room = log.leaves_room_to_clean(u32::from(blocks) + 1, &turn.contents.segments);
            self.waits_for_room = !leaves_room && !self.may_take_last;
            if self.waits_for_room {
                return false;
            }
            *log.open_cold() = log.slots.take();
        }
        let Some(batch) = log.open_cold() else { return false };
        let piece = Piece {
            location: batch.data_blocks.into(),
            bytes: (bytes.len() as u32).into(),
            crc32c: crc32c(bytes).into(),
        };
        let record = Record::new(kind, key.unwrap_or_default(), 0, blocks);
        batch.push(&Record { bytes: piece.bytes, crc32c: piece.crc32c, ..record }, [], bytes);
        self.pending.push(Pending { key, piece });
        self.blocks += u64::from(blocks);
        true
    }

    /// Seals the open cold batch: so what is pending in it has its place. `false` while it has to wait.
    fn seal(&mut self, turn: &mut Turn<'_>) -> bool {
        if !turn.log.cold_may_go() {
            return false;
        }
        let segments = &mut turn.contents.segments;
        let Some(sealed) = turn.log.seal(COLD, segments, turn.actions) else { return false };
        let mut pending = std::mem::take(&mut self.pending);
        for Pending { key, mut piece } in pending.drain(..) {
            piece.location = (sealed.data_location + piece.location.get()).into();
            if let Some(key) = key {
                let Some(object) = turn.contents.index.get_mut(&key) else { continue };
                if let Some(old) = object.page.replace(piece) {
                    self.page_was_replaced(old);
                }
            } else {
                self.root_pieces.push(piece);
            }
            segments.piece_was_placed(&piece);
        }
        self.pending = pending;
        true
    }

    /// Makes the root of what is durable now, which is more than the checkpoint covers: up to the batch `durable`.
    fn make_root(&mut self, contents: &Contents, durable: u64) {
        let end = self.end.expect("a checkpoint under way has an end");
        let batches_ahead = (durable - end.sequence.get()) as u32;
        let mut bytes = std::mem::take(&mut self.root);
        bytes.clear();
        // The header says how many objects follow, which one walk through the index tells at its end.
        bytes.resize(size_of::<RootHeader>(), 0);
        let mut object_count = 0u64;
        for (key, object) in contents.index.iter() {
            let Some(page) = object.page else { continue };
            object_count += 1;
            let entry = RootObject {
                pool: key.pg.pool.0.into(),
                pg_index: key.pg.index.into(),
                volume: key.volume.0.into(),
                object: key.object.into(),
                page,
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        for (pg, log) in &contents.logs.groups {
            let flag = |is_so: bool, bit: u32| if is_so { bit } else { 0 };
            let (reached_volume, reached_object) = log.reached.unwrap_or_default();
            let group = RootGroup {
                pool: pg.pool.0.into(),
                pg_index: pg.index.into(),
                flags: (log.modulus << GROUP_MODULUS_SHIFT
                    | flag(log.is_incomplete, GROUP_IS_INCOMPLETE)
                    | flag(log.reached.is_some(), GROUP_REACHED))
                .into(),
                entry_count: (log.entries.len() as u32).into(),
                log_begins: log.begins.0.into(),
                log_started: log.started.0.into(),
                reached_volume: reached_volume.0.into(),
                reached_object: reached_object.into(),
                doubt_count: (log.doubts.len() as u32).into(),
                held_count: (log.held.len() as u32).into(),
                batches_ahead: batches_ahead.into(),
            };
            bytes.extend_from_slice(group.as_bytes());
            for entry in log.entries.iter().chain(&log.doubts) {
                bytes.extend_from_slice(RootEntry::from(entry).as_bytes());
            }
            for Held { object: (volume, object), through } in &log.held {
                let (volume, through) = (volume.0.into(), through.0.into());
                let held = RootHeld { volume, object: (*object).into(), reserved: 0.into(), through };
                bytes.extend_from_slice(held.as_bytes());
            }
        }
        let group_count = (contents.logs.groups.len() as u64).into();
        let header = RootHeader { end, object_count: object_count.into(), group_count };
        bytes[..size_of::<RootHeader>()].copy_from_slice(header.as_bytes());
        self.root = bytes;
    }

    /// Batches up to this one are durable: perhaps the root among them.
    pub(crate) fn became_durable(&mut self, sequence: u64, actions: &mut Vec<Action>) {
        let Phase::RootSealed(root) = self.phase else { return };
        if sequence < root {
            return;
        }
        let end = self.end.expect("a checkpoint under way has an end");
        let mut superblock = Superblock {
            sequence: (self.superblock.sequence.get() + 1).into(),
            covers: end.sequence,
            root_pieces: (self.root_pieces.len() as u32).into(),
            ..self.superblock
        };
        superblock.root[..self.root_pieces.len()].copy_from_slice(&self.root_pieces);
        self.replaced.extend(self.superblock.pieces());
        self.superblock = superblock;
        if !self.buffer.is_unique() {
            self.buffer = Buffer::new(BLOCK_BYTES);
        }
        superblock::fill(&mut self.buffer, &superblock);
        self.write_superblock(0, actions);
    }

    fn write_superblock(&mut self, copy: usize, actions: &mut Vec<Action>) {
        self.phase = Phase::Superblock(copy);
        actions.push(Action::Write {
            token: TOKEN_SUPERBLOCK | copy as u32,
            offset: SUPERBLOCK_OFFSETS[copy],
            buffer: self.buffer.clone(),
            length: BLOCK_BYTES,
        });
    }

    pub(crate) fn superblock_was_written(&mut self, segments: &mut Segments, actions: &mut Vec<Action>) {
        if self.needs_flush {
            actions.push(Action::Flush { token: FLUSH_SUPERBLOCK });
        } else {
            self.superblock_was_flushed(segments, actions);
        }
    }

    pub(crate) fn superblock_was_flushed(&mut self, segments: &mut Segments, actions: &mut Vec<Action>) {
        let Phase::Superblock(copy) = self.phase else {
            unreachable!("superblocks are written by checkpoints only")
        };
        if copy + 1 < SUPERBLOCK_OFFSETS.len() {
            return self.write_superblock(copy + 1, actions);
        }
        self.phase = Phase::Idle;
        segments.covers = self.superblock.covers.get();
        for piece in self.replaced.drain(..) {
            segments.piece_died(&piece);
        }
        std::mem::swap(&mut self.replaced, &mut self.replaced_later);
        segments.free_all_unused();
    }
}
