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
use crate::batch::{header_of, records};
use crate::device::DeviceError;
use crate::layout::{RECORD_IS_DAMAGED, Record, RecordKind};
use crate::segments::SegmentState;
use crate::store::{COLD, COLD_IN_FLIGHT_MAX, HOT, RESERVE, Store};
use base::{BLOCK_BYTES, ObjectKey, crc32c};
use zerocopy::little_endian::U32;

/// Blocks read at a time.
const PIECE_BLOCKS: u32 = 64;
/// The most blocks moved for a foreground that has gone quiet: 4 GiB.
const IDLE_BUDGET_MAX: i64 = 1 << 20;

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
    /// The victim is read; its relocations become durable with this batch.
    drained_with: Option<u64>,
    is_reading: bool,
    /// Blocks that may be moved before the foreground must write more.
    credit: i64,
    /// Blocks that may be moved while there is nothing else to do, a multiple of what the foreground wrote: a
    /// store that is left alone comes to rest.
    idle_budget: i64,
    scratch_runs: Vec<Run>,
}

/// Blocks of one record that are live, together.
#[derive(Clone, Copy, Debug)]
struct Run {
    record: Record,
    /// The object, as it is called now.
    key: ObjectKey,
    first_block: u16,
    block_count: u16,
    /// The first of them on the drive.
    location: u32,
    /// Where its checksums begin among the record's.
    tail_index: usize,
    is_damaged: bool,
}

impl Cleaner {
    pub(crate) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// The foreground wrote.
    pub(crate) fn grant(&mut self, blocks: u32) {
        self.idle_budget = (self.idle_budget + 4 * i64::from(blocks)).min(IDLE_BUDGET_MAX);
    }
}

impl Store {
    /// Free segments below which cleaning begins.
    fn cleaning_begins_below(&self) -> u32 {
        RESERVE + 2 + self.segments.count() / 16
    }

    /// Issues the read of the next piece, if cleaning is due and its pace allows it.
    pub(crate) fn advance_cleaning(&mut self, actions: &mut Vec<Action>) {
        if self.cleaner.is_reading || self.is_shutting_down {
            return;
        }
        // What was live in the victim may have died meanwhile, and the segment been freed.
        let is_freed = |victim: u32| self.segments.all[victim as usize].state != SegmentState::Sealed;
        if self.cleaner.victim.is_some_and(is_freed) {
            self.cleaner.victim = None;
            self.cleaner.drained_with = None;
        }
        if self.cleaner.victim.is_none() && self.segments.free_count() >= self.cleaning_begins_below() {
            self.foreground_since_clean = 0;
            return;
        }
        if self.open[COLD].is_some() || self.in_flight_count[COLD] >= COLD_IN_FLIGHT_MAX {
            return;
        }
        let (victim, end) = loop {
            if let Some(sequence) = self.cleaner.drained_with {
                if self.durable.sequence < sequence {
                    return;
                }
                self.end_victim();
            }
            if self.cleaner.victim.is_none() && !self.choose_victim() {
                return;
            }
            let Some(victim) = self.cleaner.victim else { return };
            if !self.pace_allows(victim) {
                return;
            }
            let written = self.segments.all[victim as usize].written;
            let end = if written == 0 { self.segments.blocks_each } else { written };
            if self.cleaner.position < end {
                break (victim, end);
            }
            self.cleaner.drained_with = Some(self.cold_sequence);
        };
        let segment = &mut self.segments.all[victim as usize];
        let blocks = PIECE_BLOCKS.min(end - self.cleaner.position);
        segment.pins += 1;
        self.cleaner.is_reading = true;
        actions.push(Action::Read {
            token: 0,
            offset: self.segments.offset(victim, self.cleaner.position),
            length: blocks as usize * BLOCK_BYTES,
        });
    }

    /// A piece was read.
    pub fn handle_read(&mut self, token: u32, data: Result<&[u8], DeviceError>, actions: &mut Vec<Action>) {
        assert_eq!(token, 0, "cleaning has one read under way");
        self.cleaner.is_reading = false;
        let Some(victim) = self.cleaner.victim else { return };
        self.segments.all[victim as usize].pins -= 1;
        if self.failure().is_some() {
            return;
        }
        match data {
            Ok(data) => self.move_live(victim, data, actions),
            Err(_) => self.quarantine(victim),
        }
        self.segments.try_free(victim);
        self.advance_cleaning(actions);
    }

    /// A little more is moved than the foreground writes, the more so the fewer segments are free.
    fn pace_allows(&mut self, victim: u32) -> bool {
        let free = self.segments.free_count();
        let is_idle = self.foreground_is_idle();
        if self.is_starving || is_idle || free <= RESERVE + 1 {
            self.cleaner.credit = 0;
            self.foreground_since_clean = 0;
            return self.is_starving || !is_idle || self.cleaner.idle_budget > 0;
        }
        let segment = &self.segments.all[victim as usize];
        let blocks = i64::from(self.segments.blocks_each);
        let used = i64::from(segment.live + segment.pages).min(blocks - 1);
        let begin = i64::from(self.cleaning_begins_below());
        let urgency = 4 * (begin - i64::from(free)).max(1);
        let written = self.foreground_since_clean as i64;
        self.foreground_since_clean = 0;
        self.cleaner.credit +=
            written * used.max(1) * urgency / ((blocks - used) * (begin - i64::from(RESERVE)));
        self.cleaner.credit = self.cleaner.credit.min(4 * i64::from(PIECE_BLOCKS));
        self.cleaner.credit > 0
    }

    fn foreground_is_idle(&self) -> bool {
        self.in_flight_count[HOT] == 0 && self.open[HOT].as_ref().is_none_or(|batch| batch.record_count == 0)
    }

    fn choose_victim(&mut self) -> bool {
        let now = self.durable.sequence;
        let is_idle = self.foreground_is_idle();
        if is_idle && !self.is_starving && self.cleaner.idle_budget <= 0 {
            return false;
        }
        let is_urgent = self.segments.free_count() <= RESERVE + 1 && (self.is_starving || !is_idle);
        let blocks = f64::from(self.segments.blocks_each);
        let mut best: Option<(f64, u32)> = None;
        let mut waiting_for_checkpoint = 0u32;
        for (index, segment) in self.segments.all.iter().enumerate() {
            if segment.state != SegmentState::Sealed || segment.in_flight > 0 {
                continue;
            }
            if segment.live == 0 && segment.pages == 0 {
                waiting_for_checkpoint += 1;
                continue;
            }
            // Moving pages takes a checkpoint, which leaves pages elsewhere: not for the sake of tidiness.
            if segment.pages > 0 && is_idle && !self.is_starving {
                continue;
            }
            let used = f64::from(segment.live + segment.pages) / blocks;
            // Moving nearly everything wins nearly nothing: only for want of anything better.
            if !is_urgent && used > if is_idle { 0.5 } else { 0.9 } {
                continue;
            }
            if used >= 1.0 - 2.0 / blocks {
                continue;
            }
            let age = ((now - segment.last_sequence.min(now)) as f64 + 1.0).sqrt();
            let score = (1.0 - used) * age / (1.0 + used);
            if best.is_none_or(|(known, _)| score > known) {
                best = Some((score, index as u32));
            }
        }
        if waiting_for_checkpoint > self.segments.count() / 16 || (is_urgent && waiting_for_checkpoint > 0) {
            self.checkpoint.is_wanted = true;
            self.cleaner.idle_budget -= i64::from(PIECE_BLOCKS);
        }
        let Some((_, victim)) = best else { return false };
        if self.segments.all[victim as usize].pages > 0 && self.checkpoint.is_idle() {
            // Its pages move with the next checkpoint.
            let segments = &self.segments;
            for (_, object) in self.index.iter_mut() {
                object.is_dirty |= object.page.is_some_and(|page| segments.of(page.location) == Some(victim));
            }
            self.checkpoint.is_wanted = true;
        }
        if self.segments.all[victim as usize].live == 0 {
            return false;
        }
        self.cleaner.victim = Some(victim);
        self.cleaner.position = 0;
        self.cleaner.data_done = None;
        self.cleaner.drained_with = None;
        true
    }

    /// Everything that could be moved was. What is left could not be read.
    fn end_victim(&mut self) {
        let Some(victim) = self.cleaner.victim.take() else { return };
        self.cleaner.drained_with = None;
        if self.segments.all[victim as usize].live > 0 {
            self.quarantine(victim);
        }
    }

    fn quarantine(&mut self, victim: u32) {
        let segment = &mut self.segments.all[victim as usize];
        if segment.state == SegmentState::Sealed {
            segment.state = SegmentState::Quarantined;
            self.statistics.damaged_blocks += u64::from(segment.live);
        }
        self.cleaner.victim = None;
        self.cleaner.drained_with = None;
    }

    /// Moves the live blocks of a piece.
    fn move_live(&mut self, victim: u32, piece: &[u8], actions: &mut Vec<Action>) {
        let Some(mut batch) = self.take_slot() else { return };
        let blocks_max = self.cold_blocks_max();
        let blocks = (piece.len() / BLOCK_BYTES) as u32;
        let start = self.cleaner.position;
        let mut at = 0;
        while at < blocks {
            let block = &piece[at as usize * BLOCK_BYTES..][..BLOCK_BYTES];
            let Some(done) = self.cleaner.data_done else {
                let Some(header) = header_of(block, self.salt) else {
                    // The end of what was appended; or damage, which shows in what stays live.
                    self.cleaner.position = u32::MAX;
                    break;
                };
                self.cleaner.header.clear();
                self.cleaner.header.extend_from_slice(block);
                self.cleaner.data_done = (header.data_blocks.get() > 0).then_some(0);
                at += 1;
                continue;
            };
            let header_block = std::mem::take(&mut self.cleaner.header);
            let header = header_of(&header_block, self.salt).expect("it was verified when it was kept");
            let here = (header.data_blocks.get().saturating_sub(done)).min(blocks - at);
            self.find_runs(
                &header_block,
                (done, here),
                self.segments.location(victim, start + at),
                piece,
                at,
            );
            let runs = std::mem::take(&mut self.cleaner.scratch_runs);
            let data_start = self.segments.location(victim, start + at);
            let mut looked_at = here;
            for run in &runs {
                if !batch.fits(RecordKind::Relocate, run.block_count, blocks_max) {
                    looked_at = run.location - data_start;
                    break;
                }
                let first = (run.location - self.segments.location(victim, start)) as usize * BLOCK_BYTES;
                let data = &piece[first..first + usize::from(run.block_count) * BLOCK_BYTES];
                push_run(&mut batch, run, &header_block, &header, data);
            }
            self.cleaner.scratch_runs = runs;
            self.cleaner.header = header_block;
            at += looked_at;
            let done = done + looked_at;
            self.cleaner.data_done = (done < header.data_blocks.get()).then_some(done);
            if looked_at < here {
                break;
            }
        }
        if self.cleaner.position != u32::MAX {
            self.cleaner.position = start + at;
        }
        let moved = batch.data_blocks;
        self.cleaner.credit -= i64::from(moved.max(1));
        self.cleaner.idle_budget -= i64::from(moved + 1);
        self.statistics.cleaned_blocks += u64::from(moved);
        if moved == 0 {
            self.return_slot(batch);
            return;
        }
        self.open[COLD] = Some(batch);
        self.seal(COLD, actions);
    }

    /// The live runs among `count` data blocks of a batch, from its `done`th on, the first of which lies at
    /// `location` of the drive and at block `at` of the piece.
    fn find_runs(
        &mut self,
        header_block: &[u8],
        (done, count): (u32, u32),
        location: u32,
        piece: &[u8],
        at: u32,
    ) {
        let blocks_max = self.cold_blocks_max();
        let mut runs = std::mem::take(&mut self.cleaner.scratch_runs);
        runs.clear();
        let header = header_of(header_block, self.salt).expect("it was verified when it was kept");
        for view in records(header_block, &header) {
            if !matches!(view.kind, RecordKind::Write | RecordKind::Relocate) {
                continue;
            }
            let key = self.logs.home(view.record.key());
            for number in 0..view.record.block_count.get() {
                let data_index = view.data_index + u32::from(number);
                if data_index < done || data_index >= done + count {
                    continue;
                }
                let here = location + (data_index - done);
                let block = view.record.first_block.get() + number;
                if self.index.entry(&key, block).is_none_or(|entry| entry.location != here) {
                    continue;
                }
                let bytes = &piece[(at + data_index - done) as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                let is_damaged = crc32c(bytes) != view.tail[usize::from(number)].get();
                self.statistics.damaged_blocks += u64::from(is_damaged);
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
                        record: view.record,
                        key,
                        first_block: block,
                        block_count: 1,
                        location: here,
                        tail_index: usize::from(number),
                        is_damaged,
                    }),
                }
            }
        }
        self.cleaner.scratch_runs = runs;
    }
}

fn push_run(
    batch: &mut crate::batch::OpenBatch,
    run: &Run,
    header_block: &[u8],
    header: &crate::layout::BatchHeader,
    data: &[u8],
) {
    let view = records(header_block, header)
        .find(|view| {
            view.record.key() == run.record.key() && {
                let first = view.record.first_block.get();
                view.record.first_block == run.record.first_block
                    && run.first_block - first == run.tail_index as u16
                    && view.record.sequence == run.record.sequence
                    && view.kind as u8 == run.record.kind
                    && view.tail.len() >= run.tail_index + usize::from(run.block_count)
            }
        })
        .expect("the run was found in this header");
    let record = Record {
        flags: if run.is_damaged { RECORD_IS_DAMAGED } else { 0 },
        ..Record::new(RecordKind::Relocate, run.key, run.first_block, run.block_count)
    };
    let checksums = &view.tail[run.tail_index..run.tail_index + usize::from(run.block_count)];
    let mut origins = [U32::ZERO; PIECE_BLOCKS as usize];
    for (origin, location) in origins.iter_mut().zip(run.location..).take(usize::from(run.block_count)) {
        *origin = location.into();
    }
    batch.push(&record, [checksums, &origins[..usize::from(run.block_count)]], data);
}
