//! What kind of drive, store and load a seed stands for.

use crate::random::Random;
use base::BLOCK_BYTES;
use store::layout::RootEntry;

/// Where the log begins on a drive: the superblocks have the space before it to themselves.
pub const LOG_OFFSET_BYTES: u64 = 4 << 20;

/// The part of the drive that all logs take in a checkpoint, at most: one in so many.
const LOGS_PART: u64 = 48;
/// What many objects mean: their pages are of a block each, and take some of the batches of the smallest segments.
const MANY_OBJECTS: usize = 64;
/// The drive of a life with many objects, and its log between two checkpoints: for all of them to change meanwhile.
const MANY_OBJECTS_SEGMENTS: u64 = 56;
const MANY_OBJECTS_INTERVAL_SEGMENTS: u64 = 20;
/// What large segments mean: several pieces of cleaning each, on a drive of a few more than there must be.
const LARGE_SEGMENT_BYTES: u32 = 1 << 20;
const LARGE_SEGMENTS: u64 = 20;

/// The parameters of one simulated life, all drawn from its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Segments of the drive.
    pub segments: u64,
    /// Whether completed writes still need a flush.
    pub volatile_cache: bool,
    /// The largest batch, in bytes.
    pub batch_bytes_max: usize,
    /// Log written between two checkpoints, in bytes; `None` leaves it to the store.
    pub checkpoint_interval_bytes: Option<u64>,
    /// Placement groups.
    pub pgs: usize,
    /// Entries of each group's log: of all of them together, a checkpoint leaves most of the drive to clients.
    pub pg_log_entries: usize,
    /// Objects.
    pub objects: usize,
    /// How much the objects could hold, in percent of what the store says is usable.
    pub demand_percent: u64,
    /// Blocks of the largest write.
    pub write_blocks_max: u64,
    /// Of a hundred operations, how many zero blocks.
    pub zero_percent: u64,
    /// Of a hundred operations, how many are marks.
    pub mark_percent: u64,
    /// Most operations staged in one turn.
    pub operations_per_turn_max: u64,
    /// Of a hundred turns, how many complete nothing.
    pub slow_percent: u64,
    /// Crashes and restarts.
    pub restarts: u64,
    /// Of a hundred lives between restarts, how many last only a few turns.
    pub short_percent: u64,
    /// Turns of a long life.
    pub turns_max: u64,
    /// Whether everything is written once before the work begins.
    pub fill_first: bool,
    /// Whether bits rot on the media.
    pub rot: bool,
    /// Whether there are many objects, so that other work goes on between the pages of a checkpoint.
    pub has_many_objects: bool,
}

impl Plan {
    /// Draws a plan.
    #[must_use]
    pub fn draw(random: &mut Random) -> Plan {
        let segment_bytes = random.choose(&[64 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10]);
        // Up to a batch that fills a segment, and that cleaning has to read in pieces.
        let batch_bytes_max = random.choose(&[16 << 10, 32 << 10, 64 << 10, 300 << 10]);
        let batch_bytes_max = batch_bytes_max.min(segment_bytes as usize);
        let batch_blocks_max = (batch_bytes_max / BLOCK_BYTES) as u64;
        let interval = random.choose(&[0, 4, 4, 8]);
        let mut plan = Plan {
            segment_bytes,
            segments: random.between(20, 56),
            volatile_cache: random.percent(75),
            batch_bytes_max,
            checkpoint_interval_bytes: (interval > 0).then_some(interval * u64::from(segment_bytes)),
            pgs: random.between(1, 3) as usize,
            pg_log_entries: 0,
            objects: random.between(1, 6) as usize,
            demand_percent: random.choose(&[10, 30, 60, 80, 95, 130]),
            write_blocks_max: random.between(1, (batch_blocks_max - 2).min(65)),
            zero_percent: random.choose(&[0, 2, 5, 15]),
            mark_percent: random.choose(&[0, 3, 10]),
            operations_per_turn_max: random.choose(&[1, 2, 4, 8, 16, 100]),
            slow_percent: random.choose(&[0, 20, 50]),
            restarts: random.between(2, 6),
            short_percent: random.choose(&[20, 40, 80]),
            turns_max: random.choose(&[40, 150, 400, 1000]),
            fill_first: random.percent(60),
            rot: random.percent(20),
            has_many_objects: false,
        };
        if random.percent(15) {
            plan.hasten();
        }
        let log_bytes = plan.segments * u64::from(plan.segment_bytes) / LOGS_PART;
        plan.pg_log_entries = log_bytes as usize / size_of::<RootEntry>() / plan.pgs;
        plan.pg_log_entries = plan.pg_log_entries.min(store::PG_LOG_ENTRIES);
        plan
    }

    /// Has many objects, each of a few blocks, in the smallest segments, and work in every turn: a checkpoint's pages take some
    /// batches, and what is staged meanwhile is durable before its root is made. That is small, for logs are short; and lives
    /// are, for each look at the store takes longer.
    pub fn have_many_objects(&mut self) {
        self.has_many_objects = true;
        self.objects = MANY_OBJECTS;
        (self.segment_bytes, self.segments) = (64 << 10, MANY_OBJECTS_SEGMENTS);
        self.batch_bytes_max = self.batch_bytes_max.min(self.segment_bytes as usize);
        let interval_bytes = MANY_OBJECTS_INTERVAL_SEGMENTS * u64::from(self.segment_bytes);
        self.checkpoint_interval_bytes = Some(interval_bytes);
        self.pg_log_entries = self.pg_log_entries.min(64);
        self.write_blocks_max = self.write_blocks_max.min(2);
        self.demand_percent = self.demand_percent.min(30);
        self.operations_per_turn_max = 16;
        (self.turns_max, self.short_percent) = (150, 20);
    }

    /// Has few and large segments, of which all is live as a rule, in large batches: what is moved out of one then takes about as
    /// much as it gives.
    pub fn have_large_segments(&mut self) {
        let scale = u64::from(LARGE_SEGMENT_BYTES / self.segment_bytes);
        self.checkpoint_interval_bytes = self.checkpoint_interval_bytes.map(|bytes| bytes * scale);
        (self.segment_bytes, self.segments) = (LARGE_SEGMENT_BYTES, LARGE_SEGMENTS);
        self.batch_bytes_max = 300 << 10;
        self.write_blocks_max = 65;
        (self.objects, self.demand_percent, self.fill_first) = (6, self.demand_percent.max(80), true);
        self.turns_max = self.turns_max.min(400);
    }

    /// Batches of one size and one crash after the other: what a crash left behind a lost batch then lies
    /// just behind a new one.
    fn hasten(&mut self) {
        self.write_blocks_max = 1;
        self.operations_per_turn_max = 1;
        self.mark_percent = 0;
        self.zero_percent = 0;
        self.slow_percent = 20;
        self.restarts *= 4;
        self.short_percent = 95;
        self.fill_first = false;
    }

    /// Bytes of the drive.
    #[must_use]
    pub fn drive_bytes(&self) -> u64 {
        LOG_OFFSET_BYTES + self.segments * u64::from(self.segment_bytes)
    }
}
