//! Cleaning: moving what is live out of segments that are mostly dead.
//!
//! A victim is read from its start, a piece at a time; its own headers tell whose each block is, and the index
//! whether it is still live. Live blocks go to the cold stream with the checksums their writers gave them: a
//! block that was damaged stays one, and reads of it still fail.
//!
//! Victims are chosen by benefit and cost, `(1 - u) * age / (1 + u)` for a used share `u` (Rosenblum and
//! Ousterhout, "The Design and Implementation of a Log-Structured File System", section 3.6), with the root of
//! the age: where all data is equally hot, age says little, and the emptiest segment is the cheapest.

use crate::actions::Action;
use crate::batch::{OpenBatch, RecordView, fault, header_of, known_header, records};
use crate::checkpoint::Checkpoint;
use crate::contents::Contents;
use crate::device::DeviceError;
use crate::layout::{BatchHeader, RECORD_IS_DAMAGED, Record, RecordKind};
use crate::log::{Log, Turn};
use crate::segments::{SegmentState, Segments};
use crate::streams::{COLD, RESERVE};
use base::{BLOCK_BYTES, ObjectKey, crc32c};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Blocks read at a time.
const PIECE_BLOCKS: u32 = 64;
/// The most blocks moved for a foreground that has gone quiet: 4 GiB.
const IDLE_BUDGET_MAX: i64 = 1 << 20;
/// After so many calls of [`Cleaner::retry_reads`] all segments that could not be read may be tried again; and who waits for
/// room so long, while no segment can be read to its end, is told that there is none.
const RETRIES_LONG: u32 = 256;
/// So many checkpoints in a row are written for room where nobody writes or moves anything else. What they leave behind they give
/// back themselves: more of them would follow each other for ever.
const CHECKPOINTS_MAX: u64 = 8;

/// What cleaning is at.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    victim: Option<u32>,
    /// The next block of the victim to read.
    position: u32,
    /// The header block of the batch that `position` lies in, while it lies in its data.
    header: Vec<u8>,
    /// Data blocks of that batch that were looked at; `None` while `position` is at a header.
    data_done: Option<u32>,
    /// The piece at `position` could not be read, and is tried once more.
    has_failed: bool,
    /// The last read failed: the next one is issued behind [`Cleaner::retry_reads`], for a drive that fails all of them would
    /// have all segments set aside at once.
    is_paused: bool,
    /// Something waits for room, and there is nothing to clean but what could not be read.
    is_stuck: bool,
    /// Calls of [`Cleaner::retry_reads`] since all that could not be read was given another try.
    retries: u32,
    /// Those that found something waiting for room while something could not be read, since a victim became free.
    retries_blocked: u32,
    /// The victim is read; its relocations become durable with this batch.
    drained_with: Option<u64>,
    /// Clients' blocks that the pace is reckoned by already.
    foreground_seen: u64,
    /// Blocks that may be moved before the foreground must write more.
    credit: i64,
    /// Blocks that may be moved while there is nothing else to do, a multiple of what the foreground wrote: a
    /// store that is left alone comes to rest.
    idle_budget: i64,
    /// What clients had written and what was moved when that changed last, and the superblock that was in force then.
    progress: Option<(u64, u64)>,
    progress_superblock: u64,
    scratch_runs: Vec<Run>,
    /// Blocks moved since opening, and those that were found damaged.
    pub(crate) moved_blocks: u64,
    pub(crate) damaged_blocks: u64,
}

/// Blocks of one record that are live, together.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The object, as it is called now.
    key: ObjectKey,
    first_block: u16,
    block_count: u16,
    /// The first of them on the drive.
    location: u32,
    /// Where its checksums begin in the header, in bytes.
    checksums_at: usize,
    is_damaged: bool,
}

/// Free segments below which cleaning begins.
fn begins_below(segments: &Segments) -> u32 {
    RESERVE + 2 + segments.count() / 16
}

/// Whether cleaning that segment gives back what it takes, where nothing else is free to take: not what becomes free by a
/// checkpoint only, for which there would be no room then.
fn is_worth_the_last(index: u32, segments: &Segments) -> bool {
    segments.free_count() > 0 || segments.frees_at_once(index)
}

/// The most blocks that moving what is live in a segment takes, headers included. A batch has all that is live in a piece, or
/// half of a piece at least: what does not fit any more is a run, which is no longer. Those few that the end of the cold stream's
/// segment makes smaller are made up for by others.
fn cost_of(index: u32, segments: &Segments) -> u32 {
    segments.all[index as usize].live + segments.end_of(index).div_ceil(PIECE_BLOCKS / 2)
}

/// Has the pages in a segment move with the next checkpoint, which is to begin now.
fn move_pages(index: u32, contents: &mut Contents, checkpoint: &mut Checkpoint) {
    let Contents { index: objects, segments, .. } = contents;
    for object in objects.objects_mut() {
        object.is_dirty |= object.page.is_some_and(|page| segments.of(page.location.get()) == Some(index));
    }
    checkpoint.want();
}

impl Cleaner {
    /// The foreground wrote.
    pub(crate) fn grant(&mut self, blocks: u32) {
        self.idle_budget = (self.idle_budget + 4 * i64::from(blocks)).min(IDLE_BUDGET_MAX);
    }

    /// Issues the read of the next piece, if cleaning is due and its pace allows it.
    pub(crate) fn advance(&mut self, checkpoint: &mut Checkpoint, turn: &mut Turn<'_>) {
        let (contents, log) = (&mut *turn.contents, &mut *turn.log);
        if log.cold_is_reserved {
            return;
        }
        let is_starving = log.is_starving || checkpoint.waits_for_room();
        let segments = &contents.segments;
        // What was live in the victim may have died meanwhile, and the segment been freed.
        let is_freed = |victim: u32| segments.all[victim as usize].state != SegmentState::Sealed;
        let is_of_use = |victim: u32| !is_freed(victim) && is_worth_the_last(victim, segments);
        if let Some(victim) = self.victim.filter(|victim| !is_of_use(*victim)) {
            self.victim = None;
            self.drained_with = None;
            if is_freed(victim) {
                self.retries_blocked = 0;
            }
        }
        if self.victim.is_none() && segments.free_count() >= begins_below(segments) {
            self.foreground_seen = log.client_blocks;
            return;
        }
        if self.is_paused || checkpoint.awaits_cleaning() || log.open_cold().is_some() || !log.cold_may_go() {
            return;
        }
        let (victim, end) = loop {
            if let Some(sequence) = self.drained_with {
                if log.durable.sequence.get() < sequence {
                    return;
                }
                self.end_victim(&mut contents.segments);
            }
            if self.victim.is_none() && !self.choose_victim(contents, log, checkpoint) {
                return;
            }
            let Some(victim) = self.victim else { return };
            if !self.pace_allows(victim, &contents.segments, log, is_starving) {
                return;
            }
            let end = contents.segments.end_of(victim);
            if self.position < end {
                break (victim, end);
            }
            self.drained_with = Some(log.cold_sequence);
        };
        let blocks = PIECE_BLOCKS.min(end - self.position);
        contents.segments.all[victim as usize].pins += 1;
        log.cold_is_reserved = true;
        let offset = contents.segments.offset(victim, self.position);
        turn.actions.push(Action::Read { token: 0, offset, length: blocks as usize * BLOCK_BYTES });
    }

    /// A read ended. Answers the segment that was read, unless it is no victim any more.
    pub(crate) fn read_ended(&mut self, turn: &mut Turn<'_>) -> Option<u32> {
        turn.log.cold_is_reserved = false;
        let victim = self.victim?;
        turn.contents.segments.all[victim as usize].pins -= 1;
        Some(victim)
    }

    /// Goes on with what was read of the victim.
    pub(crate) fn take_piece(&mut self, victim: u32, piece: Result<&[u8], DeviceError>, turn: &mut Turn<'_>) {
        match piece {
            Ok(piece) => {
                self.has_failed = false;
                self.move_live(victim, piece, turn);
            }
            Err(_) => self.piece_failed(victim, &mut turn.contents.segments),
        }
        turn.contents.segments.try_free(victim);
    }

    /// Some time has passed: reads that failed may be tried again. Somebody waits for a segment if `is_starving`.
    pub(crate) fn retry_reads(&mut self, is_starving: bool, segments: &mut Segments) {
        let is_stuck = std::mem::take(&mut self.is_stuck);
        let is_paused = std::mem::take(&mut self.is_paused);
        if !is_starving {
            self.retries_blocked = 0;
        } else if is_stuck || is_paused {
            self.retries_blocked += 1;
        }
        self.retries += 1;
        if is_stuck || self.retries >= RETRIES_LONG {
            self.retries = 0;
            segments.retry_unread();
        }
    }

    /// Whether somebody has waited for room for long, and of nothing that would make some all could be read.
    pub(crate) fn is_blocked(&self, log: &Log) -> bool {
        log.is_starving && self.retries_blocked >= RETRIES_LONG
    }

    /// A little more is moved than the foreground writes, the more so the fewer segments are free.
    fn pace_allows(&mut self, victim: u32, segments: &Segments, log: &Log, is_starving: bool) -> bool {
        let free = segments.free_count();
        let is_idle = log.foreground_is_idle();
        let written = (log.client_blocks - self.foreground_seen) as i64;
        self.foreground_seen = log.client_blocks;
        if is_starving || is_idle || free <= RESERVE + 1 {
            self.credit = 0;
            return is_starving || !is_idle || self.idle_budget > 0;
        }
        let segment = &segments.all[victim as usize];
        let blocks = i64::from(segments.blocks_each);
        let used = i64::from(segment.live + segment.pages).min(blocks - 1);
        let begin = i64::from(begins_below(segments));
        let urgency = 4 * (begin - i64::from(free)).max(1);
        self.credit += written * used.max(1) * urgency / ((blocks - used) * (begin - i64::from(RESERVE)));
        self.credit = self.credit.min(4 * i64::from(PIECE_BLOCKS));
        self.credit > 0
    }

    fn choose_victim(&mut self, contents: &mut Contents, log: &Log, checkpoint: &mut Checkpoint) -> bool {
        let now = log.durable.sequence.get();
        let is_idle = log.foreground_is_idle();
        let is_starving = log.is_starving || checkpoint.waits_for_room();
        if is_idle && !is_starving && self.idle_budget <= 0 {
            return false;
        }
        let may_want = self.may_want_checkpoint(log, checkpoint);
        let segments = &contents.segments;
        let is_urgent = segments.free_count() <= RESERVE + 1 && (is_starving || !is_idle);
        let blocks = f64::from(segments.blocks_each);
        let mut best: Option<(f64, u32)> = None;
        // Where none is free, the best of those that a checkpoint has to move pages out of first.
        let mut best_with_pages: Option<(f64, u32)> = None;
        let mut waiting_for_checkpoint = 0u32;
        for (index, segment) in segments.all.iter().enumerate() {
            if segment.state != SegmentState::Sealed || segment.in_flight > 0 {
                continue;
            }
            if segment.live == 0 && segment.pages == 0 {
                waiting_for_checkpoint += 1;
                continue;
            }
            let is_worth_it = is_worth_the_last(index as u32, segments);
            if !is_worth_it && segment.pages == 0 {
                waiting_for_checkpoint += 1;
                continue;
            }
            // Moving pages takes a checkpoint, which leaves pages elsewhere: not for the sake of tidiness.
            if segment.pages > 0 && (!may_want || is_idle && !is_starving) {
                continue;
            }
            let used = f64::from(segment.live + segment.pages) / blocks;
            // Moving nearly everything wins nearly nothing: only for want of anything better.
            if !is_urgent && used > if is_idle { 0.5 } else { 0.9 } {
                continue;
            }
            // What costs as much as it gives is moved for ever.
            let cost = cost_of(index as u32, segments);
            if segment.pages + cost + 1 >= segments.blocks_each {
                continue;
            }
            // A segment gives nothing before all of it is moved, and what takes the last room would keep a checkpoint from it.
            if is_worth_it && segments.free_count() == 0 && cost > log.cold_blocks_left(segments) {
                continue;
            }
            let age = ((now - segment.last_sequence.min(now)) as f64 + 1.0).sqrt();
            let score = (1.0 - used) * age / (1.0 + used);
            let best_of_its_kind = if is_worth_it { &mut best } else { &mut best_with_pages };
            if best_of_its_kind.is_none_or(|(known, _)| score > known) {
                *best_of_its_kind = Some((score, index as u32));
            }
        }
        // A checkpoint may make room yet.
        let is_left_to_checkpoint = waiting_for_checkpoint > 0 || best_with_pages.is_some();
        self.is_stuck = is_starving && best.is_none() && !(may_want && is_left_to_checkpoint);
        let is_much = waiting_for_checkpoint > segments.count() / 16;
        if may_want && (is_much || is_urgent && waiting_for_checkpoint > 0) {
            checkpoint.want();
            self.idle_budget -= i64::from(PIECE_BLOCKS);
        }
        let Some((_, victim)) = best else {
            if let Some((_, victim)) = best_with_pages.filter(|_| checkpoint.is_idle()) {
                move_pages(victim, contents, checkpoint);
            }
            if checkpoint.waits_for_room() && log.in_flight.is_empty() {
                checkpoint.take_last();
            }
            return false;
        };
        if segments.all[victim as usize].pages > 0 && checkpoint.is_idle() {
            move_pages(victim, contents, checkpoint);
        }
        if contents.segments.all[victim as usize].live == 0 {
            return false;
        }
        self.victim = Some(victim);
        self.position = 0;
        self.data_done = None;
        self.has_failed = false;
        self.drained_with = None;
        true
    }

    /// Whether one more checkpoint may make room.
    fn may_want_checkpoint(&mut self, log: &Log, checkpoint: &Checkpoint) -> bool {
        let progress = Some((log.client_sequence, self.moved_blocks));
        let superblock = checkpoint.superblock().sequence.get();
        if progress != self.progress {
            (self.progress, self.progress_superblock) = (progress, superblock);
        }
        superblock - self.progress_superblock < CHECKPOINTS_MAX
    }

    /// Everything that could be moved was. What is left lies behind a header that does not verify.
    fn end_victim(&mut self, segments: &mut Segments) {
        let Some(victim) = self.victim else { return };
        self.damaged_blocks += u64::from(segments.all[victim as usize].live);
        self.set_aside(victim, SegmentState::Quarantined, segments);
    }

    /// A piece of the victim could not be read. Once that may be the drive's trouble, twice it is the place's.
    fn piece_failed(&mut self, victim: u32, segments: &mut Segments) {
        self.credit -= i64::from(PIECE_BLOCKS);
        self.idle_budget -= i64::from(PIECE_BLOCKS);
        self.is_paused = true;
        if std::mem::replace(&mut self.has_failed, true) {
            self.set_aside(victim, SegmentState::Unread, segments);
        }
    }

    /// Leaves what is live in the victim where it is, if anything is.
    fn set_aside(&mut self, victim: u32, state: SegmentState, segments: &mut Segments) {
        let segment = &mut segments.all[victim as usize];
        if segment.state == SegmentState::Sealed && segment.live > 0 {
            segment.state = state;
        }
        self.victim = None;
        self.drained_with = None;
    }

    /// Moves the live blocks of a piece.
    fn move_live(&mut self, victim: u32, piece: &[u8], turn: &mut Turn<'_>) {
        let (contents, log) = (&mut *turn.contents, &mut *turn.log);
        let Some(mut batch) = log.slots.take() else { return };
        let blocks_max = log.cold_blocks_max(&contents.segments);
        let blocks = (piece.len() / BLOCK_BYTES) as u32;
        let start = self.position;
        let mut at = 0;
        while at < blocks {
            let block = &piece[at as usize * BLOCK_BYTES..][..BLOCK_BYTES];
            let Some(done) = self.data_done else {
                let found = header_of(block, log.fingerprints());
                let Some(header) = found.filter(|header| fault(block, header).is_none()) else {
                    // The end of what was appended; or damage, which shows in what stays live.
                    self.position = u32::MAX;
                    break;
                };
                self.header.clear();
                self.header.extend_from_slice(block);
                self.data_done = (header.data_blocks.get() > 0).then_some(0);
                at += 1;
                continue;
            };
            let header_block = std::mem::take(&mut self.header);
            let header = known_header(&header_block);
            let here = (header.data_blocks.get().saturating_sub(done)).min(blocks - at);
            let data_start = contents.segments.location(victim, start + at);
            let data = &piece[at as usize * BLOCK_BYTES..];
            self.find_runs((&header, &header_block), (done, here), (data_start, data), contents, blocks_max);
            let runs = std::mem::take(&mut self.scratch_runs);
            let mut looked_at = here;
            for run in &runs {
                if !batch.fits(RecordKind::Relocate, run.block_count, blocks_max) {
                    looked_at = run.location - data_start;
                    break;
                }
                let first = (run.location - data_start) as usize * BLOCK_BYTES;
                let data = &data[first..first + usize::from(run.block_count) * BLOCK_BYTES];
                push_run(&mut batch, run, &header_block, data);
                // What did not fit is found once more.
                self.damaged_blocks += u64::from(run.is_damaged);
            }
            self.scratch_runs = runs;
            self.header = header_block;
            at += looked_at;
            let done = done + looked_at;
            self.data_done = (done < header.data_blocks.get()).then_some(done);
            if looked_at < here {
                break;
            }
        }
        if self.position != u32::MAX {
            self.position = start + at;
        }
        let moved = batch.data_blocks;
        self.credit -= i64::from(moved.max(1));
        self.idle_budget -= i64::from(moved + 1);
        self.moved_blocks += u64::from(moved);
        if moved == 0 {
            log.slots.give_back(batch);
            return;
        }
        *log.open_cold() = Some(batch);
        log.seal(COLD, &mut contents.segments, turn.actions);
    }

    /// The live runs among `count` data blocks of a batch from its `done`th on, which lie at `location` of the drive.
    fn find_runs(
        &mut self,
        (header, header_block): (&BatchHeader, &[u8]),
        (done, count): (u32, u32),
        (location, data): (u32, &[u8]),
        contents: &Contents,
        blocks_max: u32,
    ) {
        let mut runs = std::mem::take(&mut self.scratch_runs);
        runs.clear();
        let is_here = |view: &RecordView<'_>| {
            let end = view.data_index + view.kind.data_blocks(view.record.block_count.get());
            view.kind.has_blocks() && view.data_index < done + count && end > done
        };
        let views = records(header_block, header).filter(is_here);
        // As far as objects are called what they were.
        contents.index.bring(views.clone().map(|view| view.begin()));
        for view in views {
            let key = contents.logs.home(view.record.key());
            let Some(object) = contents.index.get(&key) else { continue };
            for number in 0..view.record.block_count.get() {
                let data_index = view.data_index + u32::from(number);
                if data_index < done || data_index >= done + count {
                    continue;
                }
                let here = location + (data_index - done);
                let block = view.record.first_block.get() + number;
                if object.get(block).is_none_or(|entry| entry.location != here) {
                    continue;
                }
                let bytes = &data[(data_index - done) as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                let is_damaged = crc32c(bytes) != view.tail[usize::from(number)].get();
                match runs.last_mut() {
                    Some(run)
                        if !is_damaged
                            && !run.is_damaged
                            && number > 0
                            && u32::from(run.block_count) < blocks_max / 2
                            && run.key == key
                            && run.first_block + run.block_count == block
                            && run.location + u32::from(run.block_count) == here =>
                    {
                        run.block_count += 1;
                    }
                    _ => runs.push(Run {
                        key,
                        first_block: block,
                        block_count: 1,
                        location: here,
                        checksums_at: view.tail_at + usize::from(number) * size_of::<U32>(),
                        is_damaged,
                    }),
                }
            }
        }
        self.scratch_runs = runs;
    }
}

fn push_run(batch: &mut OpenBatch, run: &Run, header_block: &[u8], data: &[u8]) {
    let record = Record {
        flags: if run.is_damaged { RECORD_IS_DAMAGED } else { 0 },
        ..Record::new(RecordKind::Relocate, run.key, run.first_block, run.block_count)
    };
    let count = usize::from(run.block_count);
    let (checksums, _) = <[U32]>::ref_from_prefix_with_elems(&header_block[run.checksums_at..], count)
        .expect("the run was found in this header");
    let mut sources = [U32::ZERO; PIECE_BLOCKS as usize];
    for (source, location) in sources.iter_mut().zip(run.location..).take(count) {
        *source = location.into();
    }
    batch.push(&record, [checksums, &sources[..count]], data);
}

#[cfg(test)]
mod tests;
