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
//! either left alone, or set by the very write that moved it, which the replay meets afterwards. So it must not be one up to C:
//! a checkpoint begins while no relocation is under way, and those behind C moved what was where they found it at C or later.
//! A replayed split of a
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
    /// One is to begin, as soon as what cleaning moved is durable.
    awaits_cleaning: bool,
    /// It goes on once cleaning made room.
    waits_for_room: bool,
    /// Cleaning cannot make any: it may take what is left.
    may_take_last: bool,
    /// The next one is to be whole, whether there is news or not.
    is_renewal: bool,
    /// The copy of the superblock that is written first, 0 or 1.
    first_copy: usize,
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
            awaits_cleaning: false,
            waits_for_room: false,
            may_take_last: false,
            is_renewal: false,
            first_copy: 0,
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

    /// Whether cleaning is to move nothing now, so that one can begin.
    pub(crate) fn awaits_cleaning(&self) -> bool {
        self.awaits_cleaning
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

    /// The copy of the superblock at `offset` is not what it should be. It is written before the other, which is all there is,
    /// is touched.
    pub(crate) fn renew_superblock(&mut self, offset: u64) {
        self.renew();
        self.first_copy = usize::from(offset == SUPERBLOCK_OFFSETS[1]);
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
            let begins = is_due || is_wanted || is_last || self.would_make_room(turn.contents, turn.log);
            self.awaits_cleaning = begins && !turn.log.cold_is_still();
            if !begins || self.awaits_cleaning {
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
        let piece_bytes = turn.log.root_piece_bytes(root.len());
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
                layer: key.layer.0.into(),
                object: key.object.into(),
                page,
            };
            bytes.extend_from_slice(entry.as_bytes());
        }
        for (pg, log) in &contents.logs.groups {
            let flag = |is_so: bool, bit: u32| if is_so { bit } else { 0 };
            let (reached_layer, reached_object) = log.reached.unwrap_or_default();
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
                reached_layer: reached_layer.0.into(),
                reached_object: reached_object.into(),
                doubt_count: (log.doubts.len() as u32).into(),
                held_count: (log.held.len() as u32).into(),
                batches_ahead: batches_ahead.into(),
            };
            bytes.extend_from_slice(group.as_bytes());
            for entry in log.entries.iter().chain(&log.doubts) {
                bytes.extend_from_slice(RootEntry::from(entry).as_bytes());
            }
            for Held { object: (layer, object), through } in &log.held {
                let (layer, through) = (layer.0.into(), through.0.into());
                let held = RootHeld { layer, object: (*object).into(), reserved: 0.into(), through };
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
        self.write_superblock(self.first_copy, actions);
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
        if copy == self.first_copy {
            return self.write_superblock(1 - copy, actions);
        }
        self.phase = Phase::Idle;
        self.first_copy = 0;
        segments.covers = self.superblock.covers.get();
        for piece in self.replaced.drain(..) {
            segments.piece_died(&piece);
        }
        std::mem::swap(&mut self.replaced, &mut self.replaced_later);
        segments.free_all_unused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::write_token;
    use crate::index::{Entry, Index, ObjectIndex};
    use crate::layout::{Cursor, NO_SEGMENT, SEGMENTS_OFFSET};
    use crate::pg_log::PgLogs;
    use crate::segments::SegmentState;
    use base::{Fingerprints, Sequence};
    use zerocopy::FromBytes;

    const BLOCKS: u32 = 16;

    /// A store with so many free segments of 16 blocks, and objects of a block each. Its cold stream has so many blocks left, and
    /// a next segment.
    fn scene(free: usize, cold_room: u32, objects: u32) -> (Contents, Log, Checkpoint) {
        let segment_bytes = BLOCKS * BLOCK_BYTES as u32;
        let mut segments = Segments::new(SEGMENTS_OFFSET + 64 * u64::from(segment_bytes), segment_bytes);
        for segment in &mut segments.all[64 - free..] {
            segment.state = SegmentState::Sealed;
        }
        segments.free_all_unused();
        let mut index = Index::default();
        for object in 0..objects {
            let entry = Entry { location: segments.location(9, object), crc32c: 0 };
            index.set(ObjectKey { object, ..ObjectKey::default() }, 0, entry, Sequence(1));
        }
        let cursor = |segment: u32, block: u32| Cursor { segment: segment.into(), block: block.into() };
        let end = LogEnd {
            sequence: 3u64.into(),
            cursors: [cursor(0, 0), cursor(1, BLOCKS - cold_room)],
            next_segment: [NO_SEGMENT, 3].map(Into::into),
            ..LogEnd::default()
        };
        let options = Options {
            batch_bytes_max: 8 * BLOCK_BYTES,
            checkpoint_interval_bytes: Some(100 * BLOCK_BYTES as u64),
            ..Options::default()
        };
        let superblock = Superblock::empty();
        let fingerprints = Fingerprints::new(&superblock.secret);
        let log = Log::new(end, &superblock, fingerprints, &segments, &options, 0, false);
        let checkpoint = Checkpoint::new(superblock, &segments, &options);
        (Contents { index, logs: PgLogs::new(16), segments }, log, checkpoint)
    }

    fn advance(
        checkpoint: &mut Checkpoint,
        is_last: bool,
        contents: &mut Contents,
        log: &mut Log,
    ) -> Result<Vec<Action>, String> {
        let mut actions = Vec::new();
        checkpoint.advance(is_last, &mut Turn { contents, log, actions: &mut actions })?;
        Ok(actions)
    }

    #[test]
    fn the_log_between_checkpoints_is_as_long_as_its_drive_is_large_within_bounds() {
        let interval_bytes = |device_bytes: u64, segment_bytes: u32, given: Option<u64>| {
            let superblock = Superblock { device_bytes: device_bytes.into(), ..Superblock::empty() };
            let segments = Segments::new(SEGMENTS_OFFSET + u64::from(segment_bytes), segment_bytes);
            let options = Options { checkpoint_interval_bytes: given, ..Options::default() };
            Checkpoint::new(superblock, &segments, &options).interval_blocks * BLOCK_BYTES as u64
        };
        assert_eq!(interval_bytes(256 << 20, 4 << 20, None), 32 << 20, "eight segments");
        assert_eq!(interval_bytes(64 << 30, 64 << 20, None), 2 << 30);
        assert_eq!(interval_bytes(4 << 40, 64 << 20, None), INTERVAL_BYTES_MAX);
        assert_eq!(interval_bytes(4 << 40, 3 << 30, None), 24 << 30, "of large segments eight too");
        assert_eq!(interval_bytes(4 << 40, 64 << 20, Some(1 << 20)), 1 << 20);
    }

    #[test]
    fn a_checkpoint_begins_when_the_log_is_long_or_when_one_is_wanted_and_there_is_news() {
        let begins = |change: &dyn Fn(&mut Checkpoint, &mut Log), is_last| {
            let (mut contents, mut log, mut checkpoint) = scene(20, 16, 1);
            change(&mut checkpoint, &mut log);
            advance(&mut checkpoint, is_last, &mut contents, &mut log).unwrap();
            assert_eq!(checkpoint.begun_at, if checkpoint.is_idle() { 0 } else { 100 });
            assert!(!(checkpoint.is_renewal || checkpoint.is_wanted) || checkpoint.is_idle());
            !checkpoint.is_idle()
        };
        let with = |appended: u64, durable: u64| {
            move |checkpoint: &mut Checkpoint, log: &mut Log| {
                (log.appended_blocks, log.durable.sequence) = (appended, durable.into());
                (checkpoint.begun_at, checkpoint.superblock.covers) = (0, 5u64.into());
            }
        };
        let wanted = |durable: u64| {
            move |checkpoint: &mut Checkpoint, log: &mut Log| {
                with(100, durable)(checkpoint, log);
                checkpoint.interval_blocks = 1000;
                checkpoint.want();
            }
        };
        assert!(!begins(&with(99, 6), false) && begins(&with(100, 6), false));
        assert!(!begins(&wanted(5), false), "there is no news");
        assert!(begins(&wanted(6), false));
        let idle = |checkpoint: &mut Checkpoint, log: &mut Log| {
            with(100, 6)(checkpoint, log);
            checkpoint.interval_blocks = 1000;
        };
        assert!(!begins(&idle, false) && begins(&idle, true));
        let renewed = |checkpoint: &mut Checkpoint, log: &mut Log| {
            idle(checkpoint, log);
            log.durable.sequence = 5u64.into();
            checkpoint.renew();
            assert!(!checkpoint.is_all_of(5));
        };
        assert!(begins(&renewed, false), "there is no news, and it is to be written nevertheless");
        let (.., mut checkpoint) = scene(20, 16, 1);
        checkpoint.superblock.covers = 5u64.into();
        assert_eq!([5, 6].map(|sequence| checkpoint.is_all_of(sequence)), [true, false]);
    }

    #[test]
    fn a_checkpoint_begins_once_what_cleaning_moved_is_durable() {
        let (mut contents, mut log, mut checkpoint) = scene(20, 16, 1);
        *log.open_cold() = log.slots.take();
        for _ in 0..2 {
            let actions = advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
            assert!(actions.is_empty() && checkpoint.is_idle() && checkpoint.awaits_cleaning());
        }
        assert!(log.seal(COLD, &mut contents.segments, &mut Vec::new()).is_some());
        advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
        assert!(checkpoint.is_idle() && checkpoint.awaits_cleaning(), "it is under way");
        log.in_flight.was_written(write_token(log.cold_sequence));
        log.in_flight.issue_flush(&mut Vec::new());
        log.in_flight.were_flushed();
        assert!(log.next_durable(&mut contents.segments).is_some());
        advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
        assert!(!checkpoint.is_idle() && !checkpoint.awaits_cleaning());
    }

    #[test]
    fn a_root_may_be_as_large_as_superblocks_can_point_to_and_no_larger() {
        for objects in [1, 5] {
            let root_bytes = (size_of::<RootHeader>() + objects * size_of::<RootObject>()) as u64;
            for (bytes_max, fits) in [(root_bytes, true), (root_bytes - 1, false)] {
                let (mut contents, mut log, mut checkpoint) = scene(20, 16, objects as u32);
                log.root_bytes_max = bytes_max;
                let result = advance(&mut checkpoint, true, &mut contents, &mut log);
                assert_eq!(result.is_ok(), fits, "{result:?}");
                if let Err(reason) = result {
                    let told = format!("{objects} objects and 0 placement groups");
                    assert!(reason.contains(&told) && reason.contains(&root_bytes.to_string()), "{reason}");
                } else {
                    // A page each, with the root behind them, each in blocks of its own.
                    assert_eq!(checkpoint.blocks, objects as u64 + 1);
                    assert_eq!(checkpoint.phase, Phase::RootSealed(log.cold_sequence));
                    assert_eq!(contents.segments.pages_blocks, objects as u64 + 1);
                    assert!(contents.index.iter().all(|(_, object)| !object.is_dirty));
                }
            }
        }
    }

    #[test]
    fn only_what_changed_is_written_anew_unless_all_is_to_be() {
        for (is_renewal, pages) in [(false, 2), (true, 4)] {
            let (mut contents, mut log, mut checkpoint) = scene(20, 16, 3);
            let location = contents.segments.location(9, 5).into();
            let page = Piece { location, bytes: 7u32.into(), ..Piece::default() };
            for object in contents.index.objects_mut() {
                (object.is_dirty, object.page) = (false, Some(page));
            }
            // One that changed, and one that was never written.
            let key = |object| ObjectKey { object, ..ObjectKey::default() };
            contents.index.get_mut(&key(1)).unwrap().is_dirty = true;
            assert!(contents.index.insert(key(7), ObjectIndex::default()));
            if is_renewal {
                checkpoint.renew();
            }
            checkpoint.begin(&contents, &log);
            assert_eq!(checkpoint.queue.len(), pages);
            // The last is written first.
            assert!(checkpoint.queue.is_sorted_by(|one, next| one > next));
            assert!(advance(&mut checkpoint, false, &mut contents, &mut log).is_ok());
            let replaced = checkpoint.replaced().filter(|piece| piece.location == page.location).count();
            assert_eq!(replaced, pages - 1, "their old pages go once it is complete");
        }
    }

    #[test]
    fn a_checkpoint_waits_for_room_that_cleaning_needs_unless_there_is_nothing_to_clean() {
        let (mut contents, mut log, mut checkpoint) = scene(0, 1, 2);
        for _ in 0..2 {
            let actions = advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
            assert!(actions.is_empty() && checkpoint.waits_for_room() && !checkpoint.is_idle());
        }
        checkpoint.take_last();
        let actions = advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
        assert!(!actions.is_empty() && !checkpoint.waits_for_room());
        // That was for this one only.
        log.appended_blocks = 9;
        checkpoint.want();
        checkpoint.begin(&contents, &log);
        assert!(!checkpoint.may_take_last && !checkpoint.is_wanted && checkpoint.begun_at == 9);
        // While cleaning reads what it appends next, nothing else is.
        let (mut contents, mut log, mut checkpoint) = scene(20, 16, 2);
        log.cold_is_reserved = true;
        let actions = advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
        assert!(actions.is_empty() && checkpoint.phase == Phase::Pages && !checkpoint.waits_for_room());
        log.cold_is_reserved = false;
        assert!(!advance(&mut checkpoint, true, &mut contents, &mut log).unwrap().is_empty());
    }

    #[test]
    fn pages_that_go_while_the_root_is_written_are_needed_by_it_and_go_with_the_next_one() {
        let (mut contents, _, mut checkpoint) = scene(20, 16, 1);
        let segments = &mut contents.segments;
        let piece = |block: u32, segments: &Segments| Piece {
            location: segments.location(9, block).into(),
            bytes: (BLOCK_BYTES as u32).into(),
            ..Piece::default()
        };
        for block in 0..5 {
            let placed = piece(block, segments);
            segments.piece_was_placed(&placed);
        }
        let phases = [Phase::Idle, Phase::Pages, Phase::Root, Phase::RootSealed(9), Phase::Superblock(0)];
        for (block, phase) in (0..).zip(phases) {
            checkpoint.phase = phase;
            checkpoint.page_was_replaced(piece(block, segments));
        }
        assert_eq!(checkpoint.replaced().count(), 5);
        let mut actions = Vec::new();
        assert!(!checkpoint.superblocks_are_at_rest());
        checkpoint.superblock.covers = 8u64.into();
        checkpoint.superblock_was_written(segments, &mut actions);
        assert!(matches!(actions[..], [Action::Flush { token: FLUSH_SUPERBLOCK }]));
        checkpoint.superblock_was_flushed(segments, &mut actions);
        let [_, Action::Write { token, offset, length, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((*token, *offset, *length), (TOKEN_SUPERBLOCK | 1, SUPERBLOCK_OFFSETS[1], BLOCK_BYTES));
        assert_eq!((segments.pages_blocks, segments.covers), (5, 0), "the first copy may be damaged yet");
        // Without a cache what is written is durable.
        checkpoint.needs_flush = false;
        checkpoint.superblock_was_written(segments, &mut actions);
        assert!(actions.len() == 2 && checkpoint.is_idle() && checkpoint.superblocks_are_at_rest());
        let left: Vec<u32> = checkpoint.replaced().map(|piece| piece.location.get()).collect();
        assert_eq!(left, [2, 3, 4].map(|block| segments.location(9, block)));
        assert_eq!((segments.pages_blocks, segments.covers), (3, 8));
        checkpoint.phase = Phase::Superblock(1);
        checkpoint.superblock_was_flushed(segments, &mut actions);
        assert_eq!((checkpoint.replaced().count(), segments.pages_blocks), (0, 0));
    }

    #[test]
    fn a_superblock_is_written_once_the_whole_root_is_durable_and_points_to_it() {
        let (mut contents, mut log, mut checkpoint) = scene(20, 16, 2);
        let before = Piece { location: contents.segments.location(9, 5).into(), ..Piece::default() };
        (checkpoint.superblock.root[0], checkpoint.superblock.root_pieces) = (before, 1u32.into());
        advance(&mut checkpoint, true, &mut contents, &mut log).unwrap();
        let root = log.cold_sequence;
        let mut actions = Vec::new();
        checkpoint.became_durable(root - 1, &mut actions);
        assert!(actions.is_empty());
        checkpoint.became_durable(root, &mut actions);
        let [Action::Write { token, offset, buffer, .. }] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((*token, *offset), (TOKEN_SUPERBLOCK, SUPERBLOCK_OFFSETS[0]));
        let (written, _) = Superblock::read_from_prefix(buffer.bytes()).unwrap();
        assert_eq!(written.crc32c.get(), crc32c(&written.as_bytes()[4..]), "it is sealed");
        let [piece] = written.pieces() else { panic!("{:?}", written.pieces()) };
        let root_bytes = size_of::<RootHeader>() + 2 * size_of::<RootObject>();
        assert_eq!((piece.bytes.get() as usize, piece.crc32c.get()), (root_bytes, crc32c(&checkpoint.root)));
        // Behind two pages and their header, and its own.
        assert_eq!(piece.location.get(), contents.segments.location(1, 4));
        assert_eq!((written.covers.get(), written.sequence.get()), (3, 1));
        let replaced: Vec<u32> = checkpoint.replaced().map(|piece| piece.location.get()).collect();
        assert_eq!(replaced, [before.location.get()]);
        // It says how far the groups' logs are ahead of what it covers.
        log.durable.sequence = 8u64.into();
        contents.logs.note_modulus(base::PgId::default(), 1);
        checkpoint.make_root(&contents, 8);
        let groups = &checkpoint.root[root_bytes..];
        let (group, _) = RootGroup::read_from_prefix(groups).unwrap();
        assert_eq!((group.batches_ahead.get(), groups.len()), (5, size_of::<RootGroup>()));
        let (header, _) = RootHeader::read_from_prefix(&checkpoint.root).unwrap();
        assert_eq!((header.object_count.get(), header.group_count.get()), (2, 1));
        assert_eq!(header.end.sequence.get(), 3);
    }
}
