//! Opening a store: the newest checkpoint, then the log behind it.
//!
//! The log is followed batch by batch, by sequence. The next batch of each stream lies where the stream's last
//! one ended, or at the start of the segment that some earlier batch announced; nothing else is looked at.
//!
//! # Which batches count
//! A batch counts if it is the next in sequence, was written by this formatting, by the same mount as the one
//! before it or a later one, and is either known to have been durable or whole.
//! - *Known to have been durable*: a later batch that counts says so (`durable_through`). Its data is not read:
//!   damage in it is rot, and the reads of those blocks fail.
//! - *Whole*: its data has the fingerprint that the header says, under the drive's secret. Checksums do not tell: what lay there
//!   before may have the same. The few batches at the end that were under way when the
//!   power went are checked so. The first that is not whole ends the log; it was never acknowledged.
//!
//! # Why a batch that was given up never comes back
//! Say batch N was lost in a crash and N+1, behind it, was not. The log ends at N-1, and the next mount M
//! writes its own N. Were the old N+1 taken to follow the new N, it would bring back what was never
//! acknowledged and may contradict what was since. It is not: it carries a mount before M, and mounts do not
//! go down along the log. M is in both superblocks, durably, before its first batch is written, so no two
//! mounts have the same number. Of two candidates for one place, the later mount's counts, for it was written
//! when the other had been given up. Nor does a new N that is torn make the
//! old one whole: most headers end in zeros, and a client that sends its write again sends the same data, so what arrives of
//! the new one may be just what the old one lacked. The superblocks say with which batch M begins, and from there on
//! batches of earlier mounts are none.
//!
//! And should the new N rot when later mounts have begun, the old one does not stand in for it, for it is not there any more: an
//! opening erases the headers of what it gives up, wherever the batch behind the end of the log may be looked for. Of one number
//! these places are always the same, for what precedes it says them.
//!
//! # Damage is not the end of the log
//! When the chain ends, the rest of the open segments is searched for later batches that say that the missing
//! one was durable, and so are the segments that those go on in. If there is one, acknowledged writes are gone, and opening fails
//! with the place. Where the missing batch may have been the only one that told of the next segment, all are looked at that it
//! may have told of.
//!
//! # What cannot be read
//! A bad block counts as one that rotted: as a header it is none, and a batch that is not known to have been durable is not
//! whole with it. So a log goes on past it wherever a rotten block would let it, and ends with an error wherever that would.
//! What is a bad block, and no drive that is away, `window` tells.
//!
//! Nothing tells whether a last batch was torn, or went bad later when it was acknowledged already: of that neither a batch behind
//! it nor a superblock says that it was durable. The log ends before it, but not in silence: [`Statistics`] counts the bad blocks
//! at which it ends, and the OSD says so. The other members have what was acknowledged, and whoever was in no epoch since it
//! started does not undo what it lacks.
//!
//! [`Statistics`]: crate::Statistics

mod window;

use crate::actions::{Expected, Identity, Options, Sabotage};
use crate::batch::{Fault, fault, header_of, records};
use crate::checkpoint::Checkpoint;
use crate::cleaner::Cleaner;
use crate::contents::Contents;
use crate::device::Device;
use crate::error::OpenError;
use crate::index::{Index, ObjectIndex};
use crate::layout::{
    BatchHeader, Cursor, FORMAT_VERSION, GROUP_IS_INCOMPLETE, GROUP_MODULUS_SHIFT, GROUP_REACHED, LogEnd,
    NO_SEGMENT, Piece, RecordKind, RootEntry, RootGroup, RootHeader, RootHeld, RootObject, STREAMS,
    SUPERBLOCK_OFFSETS, Superblock,
};
use crate::log::Log;
use crate::pg_log::{DOUBTS_MAX, HELD_MAX, Held, PG_LOG_ENTRIES, PgLog, PgLogs};
use crate::segments::{SegmentState, Segments};
use crate::store::{Shutdown, Store};
use crate::superblock;
use base::{BLOCK_BYTES, Buffer, Fingerprints, LayerId, LogEntry, ObjectKey, PgId, PoolId, Sequence, crc32c};
use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use window::{BadBlocks, Window};
use zerocopy::FromBytes;

/// Whose OSD a drive holds, or `None` if it holds none.
///
/// # Errors
/// When it holds one that is damaged or newer than this program, or cannot be read.
pub fn identify(device: &mut impl Device) -> Result<Option<Identity>, OpenError> {
    Ok(superblock::read(device)?.map(|found| superblock::identity(&found.newest)))
}

impl Store {
    /// Opens the store of a drive. Everything that was ever reported durable is there.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing that counts is changed then.
    pub fn open(device: &mut impl Device, expected: &Expected, options: Options) -> Result<Store, OpenError> {
        let superblocks = superblock::read(device)?.ok_or(OpenError::NotAnOsd)?;
        let mut found = superblocks.newest;
        let identity = superblock::identity(&found);
        if let Some(cluster) = expected.cluster.filter(|cluster| *cluster != identity.cluster) {
            return Err(OpenError::OtherCluster { found: identity.cluster, expected: cluster });
        }
        if let Some(uuid) = expected.osd_uuid.filter(|uuid| *uuid != identity.osd_uuid) {
            return Err(OpenError::OtherOsd { found: identity.osd_uuid, expected: uuid });
        }
        if device.bytes() < found.device_bytes.get() {
            return Err(OpenError::Truncated { found: device.bytes(), formatted: found.device_bytes.get() });
        }
        if let Some(what) = superblock::fault(&found, &options) {
            return Err(OpenError::Impossible { what, offset: SUPERBLOCK_OFFSETS[0] });
        }
        let mut recovery = Recovery::new(device, found, &options);
        recovery.durable_through = superblocks.durable_through();
        recovery.read_checkpoint()?;
        recovery.replay()?;
        if options.sabotage != Some(Sabotage::KeepGivenUp) {
            recovery.erase_given_up()?;
        }
        recovery.settle_segments();
        let unreadable_blocks = recovery.unreadable_blocks;
        let Recovery { contents, end, fingerprints, freed_pages, replayed_batches, replayed_blocks, .. } =
            recovery;
        found.mount = (found.mount.get() + 1).into();
        found.version = FORMAT_VERSION.into();
        found.mount_begin = (end.sequence.get() + 1).into();
        found.sequence = (found.sequence.get() + 1).into();
        superblocks.replace(device, &found)?;
        let mut checkpoint = Checkpoint::new(found, &contents.segments, &options);
        for page in freed_pages {
            checkpoint.page_was_replaced(page);
        }
        let replayed_clients = replayed_batches > 0;
        let log = Log::new(
            end,
            &found,
            fingerprints,
            &contents.segments,
            &options,
            replayed_blocks,
            replayed_clients,
        );
        Ok(Store {
            identity,
            contents,
            log,
            checkpoint,
            cleaner: Cleaner::default(),
            shutdown: Shutdown::No,
            failure: None,
            replayed_batches,
            unreadable_blocks,
            sabotage: options.sabotage,
        })
    }
}

/// A batch that was found and may have been under way at the crash.
struct Found {
    header: BatchHeader,
    block: Vec<u8>,
    place: Cursor,
}

impl Found {
    /// Where the log ends behind it; the batch before it is where it ended so far.
    fn end(&self, before: &LogEnd) -> LogEnd {
        let BatchHeader { sequence, mount, next_segment, .. } = self.header;
        let behind = self.place.block.get() + 1 + self.header.data_blocks.get();
        let mut cursors = before.cursors;
        cursors[usize::from(self.header.stream)] = Cursor { block: behind.into(), ..self.place };
        LogEnd { sequence, mount, cursors, next_segment }
    }
}

/// Where the next batch of a stream may lie: where its last one ended, or at the start of the segment that is its next.
fn places(end: &LogEnd, stream: usize) -> [Cursor; 2] {
    [end.cursors[stream], Cursor { segment: end.next_segment[stream], block: 0.into() }]
}

fn damaged(what: &'static str, location: u32) -> OpenError {
    OpenError::Damaged { what, offset: u64::from(location) * BLOCK_BYTES as u64 }
}

fn impossible(what: &'static str, location: u32) -> OpenError {
    OpenError::Impossible { what, offset: u64::from(location) * BLOCK_BYTES as u64 }
}

struct Recovery<'a, D> {
    device: &'a mut D,
    superblock: Superblock,
    /// Under the superblock's secret.
    fingerprints: Fingerprints,
    sabotage: Option<Sabotage>,
    contents: Contents,
    end: LogEnd,
    /// Where the chain was followed to, which may be beyond what counts.
    chain: LogEnd,
    /// Not known to have been durable, oldest first.
    undecided: VecDeque<Found>,
    windows: [Window; STREAMS],
    probe: Window,
    bad_blocks: BadBlocks,
    /// Up to here the superblocks say that the log was durable.
    durable_through: u64,
    freed_pages: Vec<Piece>,
    /// The last batch of which the groups' logs in the root tell already.
    logs_through: u64,
    replayed_batches: u64,
    replayed_blocks: u64,
    /// Bad blocks for which the log ends where it does, as far as is known.
    unreadable_blocks: u64,
}

impl<'a, D: Device> Recovery<'a, D> {
    fn new(device: &'a mut D, superblock: Superblock, options: &Options) -> Recovery<'a, D> {
        let sabotage = options.sabotage;
        let mut segments = Segments::new(superblock.device_bytes.get(), superblock.segment_bytes.get());
        segments.covers = superblock.covers.get();
        segments.sabotage = sabotage;
        // A fresh log begins in the first segments.
        let cursors = [0, 1].map(|segment: u32| Cursor { segment: segment.into(), block: 0.into() });
        let end = LogEnd { cursors, next_segment: [2.into(), 3.into()], ..LogEnd::default() };
        let window_bytes = device.read_ahead_bytes();
        Recovery {
            device,
            superblock,
            fingerprints: Fingerprints::new(&superblock.secret),
            sabotage,
            contents: Contents {
                index: Index::default(),
                logs: PgLogs::new(options.pg_log_entries),
                segments,
            },
            end,
            chain: end,
            undecided: VecDeque::new(),
            windows: [Window::new(window_bytes), Window::new(window_bytes)],
            probe: Window::new(BLOCK_BYTES),
            bad_blocks: BadBlocks::new(),
            durable_through: 0,
            freed_pages: Vec::new(),
            logs_through: 0,
            replayed_batches: 0,
            replayed_blocks: 0,
            unreadable_blocks: 0,
        }
    }

    fn count_piece(&mut self, piece: &Piece) -> Result<(), OpenError> {
        let (segments, location) = (&mut self.contents.segments, piece.location.get());
        let last = piece.blocks().checked_sub(1).and_then(|behind| location.checked_add(behind));
        let segment = segments.of(location);
        if segment.is_none() || last.is_none_or(|last| segments.of(last) != segment) {
            return Err(damaged("a checkpoint's pointer to a place outside of the log", location));
        }
        // Pieces lie beside each other: so all of them are no more to read than the drive is.
        if segments.at(location).pages + piece.blocks() > segments.blocks_each {
            return Err(damaged("a checkpoint's pointer to a place of another", location));
        }
        segments.piece_was_placed(piece);
        Ok(())
    }

    fn read_checkpoint(&mut self) -> Result<(), OpenError> {
        let (superblock, mut root) = (self.superblock, Vec::new());
        let Some(first) = superblock.pieces().first() else { return Ok(()) };
        for piece in superblock.pieces() {
            self.count_piece(piece)?;
            let (location, bytes) = (piece.location.get(), piece.bytes.get() as usize);
            let mut buffer = Buffer::new(bytes);
            let memory = buffer.bytes_mut().expect("a new buffer has one holder");
            self.device.read(u64::from(location) * BLOCK_BYTES as u64, memory)?;
            if crc32c(&memory[..bytes]) != piece.crc32c.get() {
                return Err(damaged("the root of the checkpoint", location));
            }
            root.extend_from_slice(&memory[..bytes]);
        }
        self.parse_root(&root, first.location.get())
    }

    /// Takes over the root that begins at `location`.
    fn parse_root(&mut self, root: &[u8], location: u32) -> Result<(), OpenError> {
        let ends_early = || damaged("the root of the checkpoint", location);
        let (header, rest) = RootHeader::read_from_prefix(root).ok().ok_or_else(ends_early)?;
        if !self.may_end(&header.end) {
            return Err(impossible("the end of the log in the root of the checkpoint", location));
        }
        (self.end, self.chain) = (header.end, header.end);
        let count = header.object_count.get() as usize;
        let objects = <[RootObject]>::ref_from_prefix_with_elems(rest, count);
        let (objects, mut rest) = objects.ok().ok_or_else(ends_early)?;
        self.read_pages(objects)?;
        for _ in 0..header.group_count.get() {
            let (group, after) = RootGroup::read_from_prefix(rest).ok().ok_or_else(ends_early)?;
            let [entry_count, doubt_count, held_count] =
                [group.entry_count, group.doubt_count, group.held_count].map(|count| count.get() as usize);
            let entries = <[RootEntry]>::ref_from_prefix_with_elems(after, entry_count + doubt_count);
            let (entries, after) = entries.ok().ok_or_else(ends_early)?;
            let held = <[RootHeld]>::ref_from_prefix_with_elems(after, held_count);
            let (held, after) = held.ok().ok_or_else(ends_early)?;
            rest = after;
            let is_bounded =
                entry_count <= PG_LOG_ENTRIES && doubt_count <= DOUBTS_MAX && held_count <= HELD_MAX;
            if !is_bounded || !entries.iter().all(RootEntry::is_possible) {
                return Err(impossible("a group in the root of the checkpoint", location));
            }
            let pg = PgId { pool: PoolId(group.pool.get()), index: group.pg_index.get() };
            let flags = group.flags.get();
            let (entries, doubts) = entries.split_at(entry_count);
            let log = PgLog {
                begins: Sequence(group.log_begins.get()),
                started: Sequence(group.log_started.get()),
                is_incomplete: flags & GROUP_IS_INCOMPLETE != 0,
                modulus: flags >> GROUP_MODULUS_SHIFT,
                reached: (flags & GROUP_REACHED != 0)
                    .then(|| (LayerId(group.reached_layer.get()), group.reached_object.get())),
                doubts: doubts.iter().map(LogEntry::from).collect(),
                held: held
                    .iter()
                    .map(|held| Held {
                        object: (LayerId(held.layer.get()), held.object.get()),
                        through: Sequence(held.through.get()),
                    })
                    .collect(),
                ..PgLog::default()
            };
            self.contents.logs.insert(pg, log);
            for entry in entries {
                self.contents.logs.push(pg, entry.into());
            }
            let through = header.end.sequence.get().saturating_add(group.batches_ahead.get().into());
            self.logs_through = self.logs_through.max(through);
        }
        if self.sabotage != Some(Sabotage::ReplayOverLogs) {
            // All are of the same moment.
            self.contents.logs.ahead = self.contents.logs.groups.keys().copied().collect();
        }
        Ok(())
    }

    /// Whether the log may have ended there when the checkpoint was begun that the superblock points to.
    fn may_end(&self, end: &LogEnd) -> bool {
        let segments = &self.contents.segments;
        let is_place = |place: &Cursor| {
            place.segment.get() < segments.count() && place.block.get() <= segments.blocks_each
        };
        end.sequence == self.superblock.covers
            && end.mount.get() <= self.superblock.mount.get()
            && end.cursors.iter().all(is_place)
            && end.next_segment.iter().all(|segment| segments.may_be_next(segment.get()))
    }

    /// Reads every object's page, in the order of the drive: those written together are read together.
    fn read_pages(&mut self, objects: &[RootObject]) -> Result<(), OpenError> {
        let mut order: Vec<&RootObject> = objects.iter().collect();
        order.sort_unstable_by_key(|object| object.page.location.get());
        for object in order {
            let page = object.page;
            let is_damaged = || damaged("a checkpoint's page", page.location.get());
            if page.bytes.get() as usize > self.windows[0].size() {
                return Err(is_damaged());
            }
            self.count_piece(&page)?;
            let bytes = self.windows[0].blocks(self.device, page.location.get(), page.blocks())?;
            let bytes = &bytes[..page.bytes.get() as usize];
            let index = (crc32c(bytes) == page.crc32c.get()).then(|| ObjectIndex::from_page(bytes));
            let mut index = index.flatten().ok_or_else(is_damaged)?;
            index.page = Some(page);
            let key = ObjectKey {
                pg: PgId { pool: PoolId(object.pool.get()), index: object.pg_index.get() },
                layer: LayerId(object.layer.get()),
                object: object.object.get(),
            };
            for entry in index.entries().filter(|entry| !entry.is_hole()) {
                if self.contents.segments.of(entry.location).is_none() {
                    return Err(is_damaged());
                }
                self.contents.segments.at(entry.location).live += 1;
            }
            if !self.contents.index.insert(key, index) {
                return Err(impossible("a second page of an object", page.location.get()));
            }
        }
        Ok(())
    }

    fn replay(&mut self) -> Result<(), OpenError> {
        let mut durable_through = self.durable_through;
        let mut root = self.superblock.pieces().last().map(|piece| piece.location.get());
        while let Some(found) = self.next_batch()? {
            durable_through = durable_through.max(found.header.durable_through.get());
            // The root in force was durable before the superblock was written, and so was all before it.
            let data = self.data_of(&found);
            if root.is_some_and(|root| (data..data + found.header.data_blocks.get()).contains(&root)) {
                durable_through = durable_through.max(found.header.sequence.get());
                root = None;
            }
            self.undecided.push_back(found);
            while self.undecided.front().is_some_and(|first| first.header.sequence.get() <= durable_through) {
                let first = self.undecided.pop_front().expect("it was just looked at");
                self.replay_batch(&first)?;
            }
        }
        if root.is_some() {
            // What follows would be written over the checkpoint.
            let location = self.contents.segments.location_of(self.chain.cursors[0]);
            return Err(damaged("a batch of the log before the checkpoint's root", location));
        }
        if self.sabotage == Some(Sabotage::DropLastBatch) {
            self.undecided.pop_back();
        }
        while let Some(found) = self.undecided.pop_front() {
            if self.sabotage != Some(Sabotage::TrustTornBatch) && !self.is_whole(&found)? {
                break;
            }
            self.replay_batch(&found)?;
        }
        self.contents.logs.ahead.clear();
        if self.sabotage != Some(Sabotage::TrustEnd) {
            self.search_for_lost_batches(durable_through)?;
        }
        if !self.can_go_on() {
            let location = self.contents.segments.location_of(self.end.cursors[0]);
            return Err(impossible("a segment in which the log goes on", location));
        }
        Ok(())
    }

    /// Whether the log can go on where it says: no two streams in one segment, and nothing that is needed in one that is to be
    /// written next.
    fn can_go_on(&self) -> bool {
        let (segments, end) = (&self.contents.segments, &self.end);
        let is_unused = |number: &u32| segments.is_unused(*number);
        let next = end.next_segment.iter().map(|segment| segment.get());
        let mut written: Vec<u32> = next.filter(|segment| *segment != NO_SEGMENT).collect();
        let are_unused = written.iter().all(is_unused);
        written.extend(end.cursors.iter().map(|cursor| cursor.segment.get()));
        written.sort_unstable();
        are_unused && written.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// The next batch of the chain, wherever it is.
    fn next_batch(&mut self) -> Result<Option<Found>, OpenError> {
        let (mut best, mut unreadable_blocks): (Option<Found>, u64) = (None, 0);
        let mounts = self.mounts_of_next();
        for stream in 0..STREAMS {
            for (number, place) in places(&self.chain, stream).into_iter().enumerate() {
                let segments = &self.contents.segments;
                let (segment, block) = (place.segment.get(), place.block.get());
                if segment >= segments.count() || block >= segments.blocks_each {
                    continue;
                }
                let window = if number == 0 { &mut self.windows[stream] } else { &mut self.probe };
                let location = segments.location_of(place);
                let Some(bytes) = self.bad_blocks.block(window, self.device, location)? else {
                    unreadable_blocks += 1;
                    continue;
                };
                let Some(header) = header_of(bytes, &self.fingerprints) else { continue };
                let is_next = header.sequence.get() == self.chain.sequence.get() + 1
                    && usize::from(header.stream) == stream
                    && header.data_blocks.get() < segments.blocks_each - block;
                let (mount, mount_before) = (header.mount.get(), self.chain.mount.get());
                let begin = header.mount_begin.get();
                let is_begin = begin == 0 || begin == header.sequence.get();
                let mount_fits = mounts.contains(&mount) && (mount == mount_before || is_begin);
                let is_later = best.as_ref().is_none_or(|best| mount > best.header.mount.get());
                if is_next && (mount_fits || self.sabotage == Some(Sabotage::IgnoreMount)) && is_later {
                    best = Some(Found { header, block: bytes.to_vec(), place });
                }
            }
        }
        if let Some(found) = &best {
            let location = self.contents.segments.location_of(found.place);
            match fault(&found.block, &found.header) {
                None => {}
                Some(Fault::UnknownRecord(kind)) => {
                    let offset = u64::from(location) * BLOCK_BYTES as u64;
                    return Err(OpenError::UnknownRecord { kind, offset });
                }
                Some(Fault::Impossible(what)) => return Err(impossible(what, location)),
            }
            let mut announced = found.header.next_segment.iter();
            if !announced.all(|segment| self.contents.segments.may_be_next(segment.get())) {
                return Err(impossible("a segment that is announced by the batch", location));
            }
            self.chain = found.end(&self.chain);
        } else {
            self.unreadable_blocks = unreadable_blocks;
        }
        Ok(best)
    }

    /// The mounts by which the next batch of the chain may have been written: what earlier ones wrote in its place was given up.
    fn mounts_of_next(&self) -> RangeInclusive<u64> {
        let (last, begin) = (self.superblock.mount.get(), self.superblock.mount_begin.get());
        let is_of_last = begin != 0 && self.chain.sequence.get() + 1 >= begin;
        let first = if is_of_last { last } else { self.chain.mount.get() };
        first..=last
    }

    /// The first data block of a batch.
    fn data_of(&self, found: &Found) -> u32 {
        self.contents.segments.location_of(found.place) + 1
    }

    /// Whether all data of a batch arrived on the drive.
    fn is_whole(&mut self, found: &Found) -> Result<bool, OpenError> {
        let blocks = found.header.data_blocks.get();
        let location = self.data_of(found);
        let mut window = Window::new((blocks as usize).max(1) * BLOCK_BYTES);
        let mut fingerprint = self.fingerprints.begin();
        for block in location..location + blocks {
            let Some(bytes) = self.bad_blocks.block(&mut window, self.device, block)? else {
                self.unreadable_blocks = 1;
                return Ok(false);
            };
            fingerprint.add(bytes);
        }
        let is_whole = fingerprint.value() == found.header.data_fingerprint.get();
        if !is_whole {
            // Behind it nothing was acknowledged, whatever could not be read.
            self.unreadable_blocks = 0;
        }
        Ok(is_whole)
    }

    fn replay_batch(&mut self, found: &Found) -> Result<(), OpenError> {
        let data_location = self.data_of(found);
        if found.header.sequence.get() > self.logs_through {
            self.contents.logs.ahead.clear();
        }
        let mut has_clients = false;
        for view in records(&found.block, &found.header) {
            has_clients |= !matches!(view.kind, RecordKind::Relocate | RecordKind::Page | RecordKind::Root);
            let is_forgotten = match self.sabotage {
                Some(Sabotage::ForgetZero) => view.kind == RecordKind::Zero,
                Some(Sabotage::ForgetHole) => view.kind == RecordKind::Hole,
                Some(Sabotage::ForgetSplit) => view.kind == RecordKind::Split,
                _ => false,
            };
            if is_forgotten {
                continue;
            }
            if self.contents.is_impossible_split(&view) {
                return Err(impossible("a split by the batch", data_location - 1));
            }
            let key = self.contents.logs.home_of(&view);
            self.freed_pages.extend(self.contents.apply(&view, key, data_location));
        }
        self.replayed_batches += u64::from(has_clients);
        self.replayed_blocks += 1 + u64::from(found.header.data_blocks.get());
        self.end = found.end(&self.end);
        self.contents.segments.all[found.place.segment.get() as usize].last_sequence =
            found.header.sequence.get();
        Ok(())
    }

    /// Looks behind the end of the log for batches that say that more of it was durable.
    fn search_for_lost_batches(&mut self, durable_through: u64) -> Result<(), OpenError> {
        let (segments, sequence) = (&self.contents.segments, self.end.sequence.get());
        if durable_through > sequence {
            return Err(damaged("a batch of the log", segments.location_of(self.end.cursors[0])));
        }
        let goes_on = |stream: usize| places(&self.end, stream).map(|place| (stream, place));
        let mut to_search: VecDeque<(usize, Cursor)> = (0..STREAMS).flat_map(goes_on).collect();
        to_search.extend(self.untold_places()?);
        let mut searched = BTreeSet::new();
        while let Some((stream, place)) = to_search.pop_front() {
            let segment = place.segment.get();
            if segment >= self.contents.segments.count() || !searched.insert(segment) {
                continue;
            }
            for block in place.block.get()..self.contents.segments.blocks_each {
                let location = self.contents.segments.location(segment, block);
                let window = &mut self.windows[stream];
                let Some(bytes) = self.bad_blocks.block(window, self.device, location)? else { continue };
                let header = header_of(bytes, &self.fingerprints);
                let Some(header) = header.filter(|header| header.sequence.get() > sequence) else { continue };
                if header.durable_through.get() > sequence {
                    let location = self.contents.segments.location_of(self.end.cursors[stream]);
                    return Err(damaged("the header of a batch of the log", location));
                }
                // It was given up, or tells of where the log went on from here.
                let begins = header.next_segment.map(|segment| Cursor { segment, block: 0.into() });
                to_search.extend((0..STREAMS).zip(begins));
            }
        }
        Ok(())
    }

    /// Where the log may have gone on behind a batch that is missing, and that alone told of it: it was in none of the segments that
    /// are known, and in one that was free.
    fn untold_places(&mut self) -> Result<Vec<(usize, Cursor)>, OpenError> {
        let sequence = self.end.sequence.get();
        let mut places = Vec::new();
        if self.end.next_segment.iter().all(|segment| segment.get() != NO_SEGMENT) {
            return Ok(places);
        }
        for segment in 0..self.contents.segments.count() {
            if !self.contents.segments.is_unused(segment) {
                continue;
            }
            let location = self.contents.segments.location(segment, 0);
            let found = self.bad_blocks.block(&mut self.probe, self.device, location)?;
            let header = found.and_then(|bytes| header_of(bytes, &self.fingerprints));
            if let Some(header) = header.filter(|header| header.sequence.get() > sequence) {
                let stream = usize::from(header.stream).min(STREAMS - 1);
                places.push((stream, Cursor { segment: segment.into(), block: 0.into() }));
            }
        }
        Ok(places)
    }

    /// Erases the headers of batches that were given up where the next batch is looked for: should that one rot some day, an older
    /// one of its number would be taken for it.
    fn erase_given_up(&mut self) -> Result<(), OpenError> {
        for stream in 0..STREAMS {
            for place in places(&self.end, stream) {
                let segments = &self.contents.segments;
                if place.segment.get() >= segments.count() || place.block.get() >= segments.blocks_each {
                    continue;
                }
                let location = segments.location_of(place);
                let found = self.bad_blocks.block(&mut self.probe, self.device, location)?;
                let header = found.map(|bytes| header_of(bytes, &self.fingerprints));
                let (zeros, offset) = (Buffer::new(BLOCK_BYTES), u64::from(location) * BLOCK_BYTES as u64);
                match header {
                    // It may be one, and be read another time. If it cannot be written either, that comes to light with the next batch.
                    None => drop(self.device.write(offset, zeros.bytes())),
                    Some(Some(header)) if header.sequence > self.end.sequence => {
                        self.device.write(offset, zeros.bytes())?;
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// What each segment is now.
    fn settle_segments(&mut self) {
        let end = self.end;
        for segment in &mut self.contents.segments.all {
            segment.state = SegmentState::Sealed;
        }
        for stream in 0..STREAMS {
            let cursor = end.cursors[stream];
            let open = &mut self.contents.segments.all[cursor.segment.get() as usize];
            open.state = SegmentState::Open;
            open.written = cursor.block.get();
            if let Some(next) = self.contents.segments.all.get_mut(end.next_segment[stream].get() as usize) {
                next.state = SegmentState::Next;
            }
        }
        for piece in self.superblock.pieces() {
            let segment = self.contents.segments.at(piece.location.get());
            assert!(segment.pages > 0, "the root's pieces were counted");
        }
        self.contents.segments.free_all_unused();
    }
}

#[cfg(test)]
mod tests;
