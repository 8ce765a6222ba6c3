//! What all clients asked for and what they were told, with the times, and what each block's bytes say about
//! who wrote them.

use super::checker::{self, Access, Observation, PENDING, ZEROS};
use super::client::Step;
use super::plan::Plan;
use super::registry::{POOL, volume_id};
use base::{BLOCK_BYTES, Buffer, Generation, OBJECT_BYTES, PgId, SECTOR_BYTES, VolumeId};
use client::Outcome;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Zero,
    Allocated,
}

#[derive(Debug)]
struct Operation {
    process: usize,
    /// What its volume was attached with.
    generation: Generation,
    step: Step,
    invoked: u64,
    /// [`PENDING`] until it has ended.
    completed: u64,
    /// By group: the last sequence when it began, and when its client had sent its last attempt; empty before that.
    ends: [Vec<u64>; 2],
    /// Of a read: who wrote each block. Of an allocation query: [`ZEROS`] for each block that is not there.
    values: Vec<u64>,
}

/// What an operation had to do with one block.
struct Touch<'a> {
    operation: &'a Operation,
    number: u64,
    /// Of a read: who wrote what it saw.
    seen: Option<u64>,
}

/// See the module's documentation. Operations are named by numbers from 1, which are what they write.
#[derive(Debug)]
pub(super) struct History {
    operations: Vec<Operation>,
    /// Since when which volumes are served to nobody under an older generation.
    fences: Vec<(VolumeId, Generation, u64)>,
    /// Bytes of what this calls a block: the unit that clients read and write.
    unit_bytes: usize,
    /// Entries of each group's log.
    pg_log_entries: u64,
    /// Groups at first.
    pgs: u32,
}

impl History {
    pub(super) fn new(plan: &Plan) -> History {
        let (unit_bytes, pg_log_entries) = (plan.unit_bytes as usize, plan.pg_log_entries as u64);
        let pgs = plan.pgs;
        History { operations: Vec::new(), fences: Vec::new(), unit_bytes, pg_log_entries, pgs }
    }

    /// How many operations were begun.
    pub(super) fn len(&self) -> u64 {
        self.operations.len() as u64
    }

    /// Notes that an operation begins, with the last sequence of each group; answers its number.
    pub(super) fn begin(
        &mut self,
        process: usize,
        generation: Generation,
        step: Step,
        now: u64,
        ends: &[u64],
    ) -> u64 {
        self.operations.push(Operation {
            process,
            generation,
            step,
            invoked: now,
            completed: PENDING,
            ends: [ends.to_vec(), Vec::new()],
            values: Vec::new(),
        });
        self.operations.len() as u64
    }

    /// Notes that a volume is served to nobody under an older generation from now on.
    pub(super) fn fence(&mut self, volume: VolumeId, generation: Generation, now: u64) {
        self.fences.push((volume, generation, now));
    }

    fn get(&self, number: u64) -> &Operation {
        &self.operations[number as usize - 1]
    }

    /// What an operation asks for.
    pub(super) fn step(&self, number: u64) -> Step {
        self.get(number).step
    }

    /// The blocks of drives that it touches, counted from its volume's start.
    pub(super) fn blocks_of(&self, number: u64) -> Range<u64> {
        let step = self.step(number);
        let unit_bytes = self.unit_bytes as u64;
        let end = (step.first_block + step.blocks) * unit_bytes;
        step.first_block * unit_bytes / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64)
    }

    /// What its volume was attached with.
    pub(super) fn generation(&self, number: u64) -> Generation {
        self.get(number).generation
    }

    /// When it began.
    pub(super) fn began_at(&self, number: u64) -> u64 {
        self.get(number).invoked
    }

    /// Whether some of these bytes lie where a write other than `number` began of which nobody was told that it is done.
    pub(super) fn has_unfinished_write(&self, number: u64, bytes: &Range<u64>) -> bool {
        let volume = self.get(number).step.volume;
        (1..).zip(&self.operations).any(|(other, Operation { step, completed, .. })| {
            let begin = step.first_block * self.unit_bytes as u64;
            let end = begin + step.blocks * self.unit_bytes as u64;
            other != number
                && *completed == PENDING
                && matches!(step.kind, Kind::Write | Kind::Zero)
                && step.volume == volume
                && begin < bytes.end
                && bytes.start < end
        })
    }

    /// An operation in words.
    pub(super) fn describe(&self, number: u64) -> String {
        let operation = self.get(number);
        let Step { kind, volume, first_block, blocks } = operation.step;
        let end = if operation.completed == PENDING { "begins" } else { "done" };
        let values =
            if operation.values.is_empty() { String::new() } else { format!(" {:?}", operation.values) };
        format!(
            "operation {number} {end}: {kind:?} volume {} blocks {first_block}+{blocks}{values}",
            volume + 1
        )
    }

    /// Makes the content that a write brings.
    pub(super) fn fill(&self, number: u64, memory: &mut [u8]) {
        let step = self.get(number).step;
        for (block, bytes) in (step.first_block..).zip(memory.chunks_exact_mut(self.unit_bytes)) {
            fill_block(number, step.volume, block, bytes);
        }
    }

    /// Notes that a client's process is gone, and nothing it had begun is sent again.
    pub(super) fn client_died(&mut self, process: usize, ends: &[u64]) {
        for operation in self.operations.iter_mut().filter(|operation| operation.process == process) {
            if operation.ends[1].is_empty() {
                operation.ends[1] = ends.to_vec();
            }
        }
    }

    /// Whether so much was written between a write's first attempt and its last that the log may have forgotten the
    /// first: then it may have taken effect twice.
    fn outlives_the_log(&self, number: u64) -> bool {
        let operation = self.get(number);
        let Step { kind, volume, first_block, blocks } = operation.step;
        let [begin, end] = &operation.ends;
        let units = OBJECT_BYTES / self.unit_bytes as u64;
        // What a dead client sent last may arrive after it.
        let late = if operation.completed == PENDING { self.pg_log_entries / 4 } else { 0 };
        let objects = first_block / units..=(first_block + blocks - 1) / units;
        matches!(kind, Kind::Write | Kind::Zero)
            && objects.into_iter().any(|object| {
                let volume = volume_id(volume);
                let last = self.log_end(end, volume, object as u32).unwrap_or(u64::MAX);
                let first = self.log_end(begin, volume, object as u32).unwrap_or(0);
                (last - first).saturating_add(late) >= self.pg_log_entries
            })
    }

    /// The last sequence of the group of an object: a group that was split off goes on with its parent's. `None` where
    /// nothing is known of any.
    fn log_end(&self, ends: &[u64], volume: VolumeId, object: u32) -> Option<u64> {
        let counts = std::iter::successors(Some(ends.len() as u32), |count| Some(count / 2));
        let counts = counts.take_while(|count| *count >= self.pgs);
        let mut ends =
            counts.filter_map(|count| ends.get(PgId::of_object(POOL, count, volume, object).index as usize));
        ends.clone().find(|end| **end > 0).or_else(|| ends.next()).copied()
    }

    /// Notes how an operation ended, with the last sequence of each group.
    ///
    /// # Errors
    /// If a block's bytes are not what any write of it could have left.
    pub(super) fn complete(
        &mut self,
        number: u64,
        now: u64,
        outcome: &Outcome,
        buffer: Option<&Buffer>,
        ends: &[u64],
    ) -> Result<(), String> {
        self.operations[number as usize - 1].ends[1] = ends.to_vec();
        let step = self.get(number).step;
        let values = match (step.kind, outcome) {
            // Whether it took effect nobody knows.
            (_, Outcome::Failed(_)) => return Ok(()),
            (Kind::Read, _) => {
                let buffer = buffer.ok_or("a read gave no buffer back")?;
                let blocks = buffer.bytes().chunks_exact(self.unit_bytes).take(step.blocks as usize);
                (step.first_block..)
                    .zip(blocks)
                    .map(|(block, bytes)| self.author(step.volume, block, bytes))
                    .collect::<Result<Vec<_>, _>>()?
            }
            (Kind::Allocated, Outcome::Allocated(runs)) => {
                let runs = runs.iter().flat_map(|(bytes, is_there)| {
                    std::iter::repeat_n(u64::from(*is_there), *bytes as usize / self.unit_bytes)
                });
                let values: Vec<u64> = runs.collect();
                if values.len() as u64 != step.blocks {
                    return Err(format!("an answer for {} blocks, of {}", values.len(), step.blocks));
                }
                values
            }
            (Kind::Allocated, Outcome::Done) => {
                return Err("an allocation query without an answer".to_owned());
            }
            (Kind::Write | Kind::Zero, _) => Vec::new(),
        };
        let operation = &mut self.operations[number as usize - 1];
        if operation.completed != PENDING {
            return Err(format!("operation {number} ended twice"));
        }
        operation.completed = now;
        operation.values = values;
        Ok(())
    }

    /// Who wrote a block, by its bytes.
    fn author(&self, volume: usize, block: u64, bytes: &[u8]) -> Result<u64, String> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(ZEROS);
        }
        let number = u64::from_le_bytes(bytes[..8].try_into().expect("a block has more than 8 bytes"));
        let mut expected = [0; BLOCK_BYTES];
        let expected = &mut expected[..self.unit_bytes];
        fill_block(number, volume, block, expected);
        if number == 0 || number > self.len() || expected != bytes {
            return Err(format!(
                "volume {} block {block} holds bytes that nobody wrote there; they begin with {:02x?}",
                volume + 1,
                &bytes[..24]
            ));
        }
        Ok(number)
    }

    /// Checks that every block is linearizable, and answers of how many. Then of how many this cannot be asked, for the
    /// log does not reach back over a write's attempts, and the second takes effect again.
    ///
    /// # Errors
    /// What cannot be, and the block's history.
    pub(super) fn check(&self) -> Result<(u64, u64), String> {
        self.check_fences()?;
        let mut blocks: BTreeMap<(usize, u64), Vec<Observation>> = BTreeMap::new();
        let mut unchecked = BTreeSet::new();
        for (number, operation) in (1..).zip(&self.operations) {
            let Step { kind, volume, first_block, blocks: count } = operation.step;
            if self.outlives_the_log(number) {
                unchecked.extend((first_block..first_block + count).map(|block| (volume, block)));
            }
            for index in 0..count {
                let access = match kind {
                    Kind::Write => Access::Write(number),
                    Kind::Zero => Access::Write(ZEROS),
                    _ if operation.completed == PENDING => continue,
                    Kind::Read => Access::Read(operation.values[index as usize]),
                    Kind::Allocated if operation.values[index as usize] == ZEROS => Access::SeenAbsent,
                    Kind::Allocated => continue,
                };
                blocks.entry((volume, first_block + index)).or_default().push(Observation {
                    access,
                    invoked: operation.invoked,
                    completed: operation.completed,
                    label: number,
                });
            }
        }
        blocks.retain(|block, _| !unchecked.contains(block));
        for ((volume, block), observations) in &blocks {
            checker::check(observations).map_err(|error| {
                let mut text =
                    format!("volume {} block {block} is not linearizable: {error}; its history:", volume + 1);
                for observation in observations {
                    let process = self.get(observation.label).process;
                    text.push_str(&format!("\n    process {process} {observation}"));
                }
                text
            })?;
        }
        Ok((blocks.len() as u64, unchecked.len() as u64))
    }

    /// Checks that nothing was done for whom a fence kept out: neither what began after the fence stood, nor, of what had
    /// begun before, anything that the new holder's operations on the same block should have seen.
    fn check_fences(&self) -> Result<(), String> {
        let kept_out = |operation: &Operation| {
            let volume = volume_id(operation.step.volume);
            let fences = self.fences.iter().filter(move |(fenced, ..)| *fenced == volume);
            let newer = fences.filter(|(_, generation, _)| *generation > operation.generation);
            newer.map(|(.., at)| *at).min().is_some_and(|at| at <= operation.invoked)
        };
        for (number, operation) in (1..).zip(&self.operations) {
            if operation.completed != PENDING && kept_out(operation) {
                return Err(format!("{} although a fence kept it out when it began", self.describe(number)));
            }
        }
        if self.fences.is_empty() {
            return Ok(());
        }
        let mut blocks: BTreeMap<(usize, u64), Vec<Touch<'_>>> = BTreeMap::new();
        let ended = (1..).zip(&self.operations).filter(|(_, operation)| operation.completed != PENDING);
        for (number, operation) in ended {
            let Step { kind, volume, first_block, blocks: count } = operation.step;
            for index in 0..count {
                let seen = (kind == Kind::Read).then(|| operation.values[index as usize]);
                let here = blocks.entry((volume, first_block + index)).or_default();
                here.push(Touch { operation, number, seen });
            }
        }
        for ((volume, block), touches) in &blocks {
            for Touch { operation: read, number, seen } in touches {
                let Some(author) = seen.filter(|author| *author != ZEROS) else { continue };
                let written_under = self.get(author).generation;
                // Of what newer holders had done before this began, all is later than whatever an older one wrote.
                let overlooked = touches.iter().find(|Touch { operation: other, seen, .. }| {
                    other.generation > written_under
                        && other.completed < read.invoked
                        && *seen != Some(author)
                        && other.step.kind != Kind::Allocated
                });
                if let Some(Touch { number: other, .. }) = overlooked {
                    return Err(format!(
                        "volume {} block {block}: operation {number} read what operation {author} wrote under {written_under:?}, \
                         after operation {other} of a later holder had done or seen something else",
                        volume + 1
                    ));
                }
            }
        }
        Ok(())
    }

    /// Operations that have not ended.
    pub(super) fn pending(&self) -> impl Iterator<Item = String> + '_ {
        let pending = (1..).zip(&self.operations).filter(|(_, operation)| operation.completed == PENDING);
        pending.map(|(number, _)| self.describe(number))
    }
}

/// The content that operation `number` writes to a block: every sector says who wrote it, where it belongs, and
/// which of the block it is.
fn fill_block(number: u64, volume: usize, block: u64, bytes: &mut [u8]) {
    let place = (volume as u64) << 48 | block;
    for (index, sector) in bytes.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        sector[..8].copy_from_slice(&number.to_le_bytes());
        sector[8..16].copy_from_slice(&place.to_le_bytes());
        sector[16..24].copy_from_slice(&(index as u64).to_le_bytes());
        sector[24..].fill(number as u8 ^ 0x5a);
    }
}
