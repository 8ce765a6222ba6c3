//! What all clients asked for and what they were told, with the times, and what each block's bytes say about
//! who wrote them.
//!
//! A block's *versions* are all writes of it, in the order in which they began, whatever became of them. A read that brings
//! one which had to be gone is refused as soon as it ends, by the version's name; the rest of what cannot be is found
//! when all is over ([`checker`]).

use super::checker::{self, Access, Observation, PENDING, ZEROS};
use super::client::Step;
use super::ownership::NOT_YET;
use super::plan::Plan;
use super::registry::{family_of, volume_id};
use crate::contents::{Contents, Place};
use base::{BLOCK_BYTES, Buffer, Generation, LayerId, VolumeId};
use client::Outcome;
use std::collections::BTreeMap;
use std::ops::Range;

/// Whoever makes volumes smaller and larger: no client, and no fence keeps it out.
const OPERATOR: usize = usize::MAX;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Zero,
    Allocated,
}

/// What became of an operation, as far as anybody was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is under way still, or its client died.
    Unknown,
    Acknowledged,
    /// Its client was told that it failed. It may have taken effect, and may still.
    Failed,
}

/// A write of a block.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// The operation.
    number: u64,
    /// When the first read ended that brought it; [`PENDING`] while none did. Of a zeroing nobody knows.
    seen: u64,
}

/// What a volume held from its beginning on, or since it was rolled back so often.
type Stream = (usize, usize);

/// A block of a volume, in what this calls blocks.
type BlockOf = (Stream, u64);

/// What a stream begins with.
#[derive(Clone, Copy, Debug)]
struct Origin {
    /// The snapshot that the volume was rolled back to, or cloned from.
    layer: LayerId,
    at: u64,
}

/// A snapshot.
#[derive(Clone, Copy, Debug)]
struct Moment {
    stream: Stream,
    /// When it was made.
    at: u64,
}

#[derive(Debug)]
struct Operation {
    process: usize,
    /// What its volume was attached with.
    generation: Generation,
    step: Step,
    invoked: u64,
    /// [`PENDING`] until it is done, if ever.
    completed: u64,
    fate: Fate,
    /// It is of somebody who has the volume: whom an older one must not get in the way of.
    is_holder: bool,
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
    /// By block, its writes in the order in which they began.
    versions: BTreeMap<BlockOf, Vec<Version>>,
    contents: Contents,
    /// The snapshots.
    moments: BTreeMap<LayerId, Moment>,
    /// Of streams that begin with what a snapshot holds.
    origins: BTreeMap<Stream, Origin>,
    /// From which generations on volumes go on as they were rolled back to.
    rollbacks: BTreeMap<usize, Vec<Generation>>,
    /// What snapshots were seen to hold, by block.
    held: BTreeMap<(LayerId, u64), u64>,
    /// Since when which volumes are served to nobody under an older generation.
    fences: Vec<(VolumeId, Generation, u64)>,
    /// Bytes of what this calls a block: the unit that clients read and write.
    unit_bytes: usize,
}

impl History {
    pub(super) fn new(plan: &Plan) -> History {
        History {
            operations: Vec::new(),
            versions: BTreeMap::new(),
            contents: plan.contents,
            moments: BTreeMap::new(),
            origins: BTreeMap::new(),
            rollbacks: BTreeMap::new(),
            held: BTreeMap::new(),
            fences: Vec::new(),
            unit_bytes: plan.unit_bytes as usize,
        }
    }

    /// How many operations on a volume were done in a time.
    pub(super) fn done_between(&self, volume: usize, from: u64, to: u64) -> usize {
        let is_done = |operation: &&Operation| {
            operation.step.volume == volume && (from..to).contains(&operation.completed)
        };
        self.operations.iter().filter(is_done).count()
    }

    /// How many operations were begun.
    pub(super) fn len(&self) -> u64 {
        self.operations.len() as u64
    }

    /// Notes that a snapshot is made.
    pub(super) fn snapshot_was_made(&mut self, layer: LayerId, volume: usize, now: u64) {
        let stream = (volume, self.rollbacks.get(&volume).map_or(0, Vec::len));
        self.moments.insert(layer, Moment { stream, at: now });
    }

    /// Notes that a volume is rolled back: who has it under that generation or a later one sees what the snapshot holds, and
    /// what was written since.
    pub(super) fn is_rolled_back(&mut self, volume: usize, layer: LayerId, from: Generation, now: u64) {
        let rollbacks = self.rollbacks.entry(volume).or_default();
        rollbacks.push(from);
        self.origins.insert((volume, rollbacks.len()), Origin { layer, at: now });
    }

    /// Notes that a clone of a snapshot is made.
    pub(super) fn is_cloned(&mut self, clone: usize, layer: LayerId, now: u64) {
        self.origins.insert((clone, 0), Origin { layer, at: now });
    }

    /// When an operation reads what it reads, if that is not when it is asked for.
    fn moment_of(&self, step: &Step) -> Option<u64> {
        step.layer.map(|layer| self.moments[&layer].at)
    }

    /// Which stream an operation belongs to.
    fn stream_of(&self, operation: &Operation) -> Stream {
        let Step { volume, layer, .. } = operation.step;
        match layer {
            Some(layer) => self.moments[&layer].stream,
            None => {
                let rollbacks = self.rollbacks.get(&volume).map_or(&[][..], Vec::as_slice);
                // Whoever resizes it does so now.
                let is_past =
                    |from: &&Generation| operation.process == OPERATOR || **from <= operation.generation;
                (volume, rollbacks.iter().filter(is_past).count())
            }
        }
    }

    /// Notes that an operation begins; answers its number.
    pub(super) fn begin(&mut self, process: usize, generation: Generation, step: Step, now: u64) -> u64 {
        let invoked = self.moment_of(&step).unwrap_or(now);
        self.operations.push(Operation {
            process,
            generation,
            step,
            invoked,
            completed: PENDING,
            fate: Fate::Unknown,
            is_holder: true,
            values: Vec::new(),
        });
        let number = self.operations.len() as u64;
        if matches!(step.kind, Kind::Write | Kind::Zero) {
            let stream = self.stream_of(self.get(number));
            for block in step.first_block..step.first_block + step.blocks {
                let versions = self.versions.entry((stream, block)).or_default();
                versions.push(Version { number, seen: PENDING });
            }
        }
        number
    }

    /// The same, of somebody who only reads a volume, under the generation that its map shows.
    pub(super) fn begin_reading(&mut self, process: usize, shown: Generation, step: Step, now: u64) -> u64 {
        let number = self.begin(process, shown, step, now);
        self.operations[number as usize - 1].is_holder = false;
        number
    }

    /// Changes of a process that wait for their volume; or of one that is named.
    fn waiting(&mut self, process: usize, of: Option<VolumeId>) -> impl Iterator<Item = &mut Operation> {
        self.operations.iter_mut().filter(move |operation| {
            let volume = volume_id(operation.step.volume);
            operation.fate == Fate::Unknown
                && (operation.process, operation.generation) == (process, NOT_YET)
                && of.is_none_or(|of| of == volume)
        })
    }

    /// Notes that a process owns a volume from now on: under that generation what waited for it begins.
    pub(super) fn is_owned(&mut self, process: usize, volume: VolumeId, generation: Generation) {
        self.waiting(process, Some(volume)).for_each(|operation| operation.generation = generation);
    }

    /// Notes that a change which waited was done: its volume was given back to it before it was given up.
    pub(super) fn was_done_under(&mut self, number: u64, generation: Generation) {
        let operation = &mut self.operations[number as usize - 1];
        if operation.generation == NOT_YET {
            operation.generation = generation;
        }
    }

    /// Notes that a process starts anew: what waited was not begun, or nobody knows as whose.
    pub(super) fn starts_anew(&mut self, process: usize) {
        for operation in self.waiting(process, None) {
            operation.fate = Fate::Failed;
        }
    }

    /// A change of a volume that a process began under that generation, and that has not ended.
    pub(super) fn unfinished_change(
        &self,
        process: usize,
        volume: VolumeId,
        generation: Generation,
    ) -> Option<u64> {
        let is_it = |operation: &Operation| {
            let Operation { step, fate, .. } = operation;
            matches!(step.kind, Kind::Write | Kind::Zero)
                && (operation.process, operation.generation) == (process, generation)
                && (volume_id(step.volume), *fate) == (volume, Fate::Unknown)
        };
        (1..).zip(&self.operations).find(|(_, operation)| is_it(operation)).map(|(number, _)| number)
    }

    /// Notes that a volume is made smaller, and what it loses by that: each of these parts is zeros at some moment between now
    /// and its growth. Answers what is to be told to [`Self::grows`].
    pub(super) fn shrinks(&mut self, lost: impl Iterator<Item = Step>, now: u64) -> Vec<u64> {
        lost.map(|step| self.begin(OPERATOR, Generation(0), Step { kind: Kind::Zero, ..step }, now)).collect()
    }

    /// Notes that a volume grows again. At this very moment all that it lost is zeros: whatever was acknowledged there before is
    /// gone, however late it came.
    ///
    /// # Errors
    /// If it grew before.
    pub(super) fn grows(&mut self, shrinkings: &[u64], now: u64) -> Result<(), String> {
        for shrinking in shrinkings {
            let step = self.step(*shrinking);
            let last = self.begin(OPERATOR, Generation(0), step, now);
            for number in [*shrinking, last] {
                self.complete(number, now, &Outcome::Done, None)?;
            }
        }
        Ok(())
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

    /// Whether some of these bytes of the volume that an operation is on lie where a write began, and did so before then, of which
    /// nobody was told that it is done. That may be this operation, if it began before `epoch_at`: then there was an earlier attempt.
    pub(super) fn has_unfinished_write(
        &self,
        number: u64,
        bytes: &Range<u64>,
        before: u64,
        epoch_at: u64,
    ) -> bool {
        let volume = self.get(number).step.volume;
        (1..).zip(&self.operations).any(|(other, Operation { step, invoked, completed, .. })| {
            let before = if other == number { before.min(epoch_at) } else { before };
            let begin = step.first_block * self.unit_bytes as u64;
            let end = begin + step.blocks * self.unit_bytes as u64;
            *completed == PENDING
                && *invoked < before
                && matches!(step.kind, Kind::Write | Kind::Zero)
                && step.volume == volume
                && begin < bytes.end
                && bytes.start < end
        })
    }

    /// An operation in words.
    pub(super) fn describe(&self, number: u64) -> String {
        let operation = self.get(number);
        let Step { kind, volume, layer, first_block, blocks } = operation.step;
        let of = layer.map_or_else(String::new, |layer| format!(" ({layer})"));
        let end = if operation.completed == PENDING { "begins" } else { "done" };
        let values =
            if operation.values.is_empty() { String::new() } else { format!(" {:?}", operation.values) };
        format!(
            "operation {number} {end}: {kind:?} volume {}{of} blocks {first_block}+{blocks}{values}",
            volume + 1
        )
    }

    /// Makes the content that a write brings.
    pub(super) fn fill(&self, number: u64, memory: &mut [u8]) {
        let step = self.get(number).step;
        for (block, bytes) in (step.first_block..).zip(memory.chunks_exact_mut(self.unit_bytes)) {
            self.contents.fill(number, place_of(step.volume, block), bytes);
        }
    }

    /// Notes how an operation ended.
    ///
    /// # Errors
    /// If a block's bytes are not what any write of it could have left, or are what one left that had to be gone when a read
    /// began.
    pub(super) fn complete(
        &mut self,
        number: u64,
        now: u64,
        outcome: &Outcome,
        buffer: Option<&Buffer>,
    ) -> Result<(), String> {
        let step = self.get(number).step;
        let values = match (step.kind, outcome) {
            // Whether it took effect nobody knows.
            (_, Outcome::Failed(_)) => {
                self.operations[number as usize - 1].fate = Fate::Failed;
                return Ok(());
            }
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
            (Kind::Allocated, Outcome::Done | Outcome::Changed(_) | Outcome::Space(_)) => {
                return Err("an allocation query without an answer".to_owned());
            }
            (Kind::Write | Kind::Zero, _) => Vec::new(),
        };
        let operation = &mut self.operations[number as usize - 1];
        if operation.fate != Fate::Unknown {
            return Err(format!("operation {number} ended twice"));
        }
        (operation.completed, operation.fate) = (now, Fate::Acknowledged);
        operation.values = values;
        if let Some(layer) = step.layer {
            self.operations[number as usize - 1].completed = self.moments[&layer].at;
        }
        if step.kind != Kind::Read {
            return Ok(());
        }
        let stream = self.stream_of(self.get(number));
        for index in 0..step.blocks as usize {
            let (author, block) = (self.get(number).values[index], step.first_block + index as u64);
            match step.layer {
                Some(layer) => self.check_holds(number, layer, block, author)?,
                None => {
                    self.check_is_fresh(number, (stream, block), author)?;
                    self.was_seen((stream, block), author, now);
                    self.check_inherited(number, stream, block, author)?;
                }
            }
        }
        Ok(())
    }

    /// What a read brought of a stream that begins with a snapshot, and was not written in it, is what that holds.
    fn check_inherited(
        &mut self,
        number: u64,
        stream: Stream,
        block: u64,
        author: u64,
    ) -> Result<(), String> {
        match self.inherits(stream, block, author)? {
            Some(origin) => self.check_holds(number, origin.layer, block, author),
            None => Ok(()),
        }
    }

    /// Where a block of a stream is from that reads as that author's, if it is from the snapshot that the stream begins with.
    ///
    /// # Errors
    /// If it can be from nowhere.
    fn inherits(&self, stream: Stream, block: u64, author: u64) -> Result<Option<Origin>, String> {
        let origin = self.origins.get(&stream).copied();
        if author == ZEROS {
            // Who zeroed it may have been somebody of this stream.
            let is_zeroing = |version: &Version| self.get(version.number).step.kind == Kind::Zero;
            let versions = self.versions.get(&(stream, block));
            let is_certain = versions.is_none_or(|versions| !versions.iter().any(is_zeroing));
            return Ok(origin.filter(|_| is_certain));
        }
        if self.stream_of(self.get(author)) == stream {
            return Ok(None);
        }
        origin.map(Some).ok_or_else(|| {
            format!("volume {} block {block} holds what operation {author} wrote elsewhere", stream.0 + 1)
        })
    }

    /// Checks that a snapshot holds what it was seen to hold before. What was there counts as read when it was made.
    fn check_holds(&mut self, number: u64, layer: LayerId, block: u64, author: u64) -> Result<(), String> {
        let Moment { stream, at } = self.moments[&layer];
        let held = *self.held.entry((layer, block)).or_insert(author);
        if held != author {
            return Err(format!(
                "{layer} block {block}: operation {number} read what operation {author} wrote, and before it was what \
                 operation {held} wrote"
            ));
        }
        self.was_seen((stream, block), author, at);
        self.check_inherited(number, stream, block, author)
    }

    /// Notes that a read brought what `author` wrote to a block.
    fn was_seen(&mut self, block: BlockOf, author: u64, now: u64) {
        let Some(versions) = self.versions.get_mut(&block) else { return };
        if let Ok(at) = versions.binary_search_by_key(&author, |version| version.number) {
            versions[at].seen = versions[at].seen.min(now);
        }
    }

    /// When a version was certainly there, or had been.
    fn there_since(&self, version: &Version) -> u64 {
        version.seen.min(self.get(version.number).completed)
    }

    /// Checks that a read of a block did not bring a version that had to be gone: one that had certainly been there before
    /// another began, which certainly was there before the read began.
    fn check_is_fresh(&self, read: u64, block: BlockOf, author: u64) -> Result<(), String> {
        let Some(versions) = self.versions.get(&block) else { return Ok(()) };
        let is_zeroing = |version: &&Version| self.get(version.number).step.kind == Kind::Zero;
        let may_be_it = |version: &&Version| match author {
            ZEROS => is_zeroing(version),
            author => version.number == author,
        };
        // Zeros may be those of any zeroing, or of the beginning.
        let range = match versions.binary_search_by_key(&author, |version| version.number) {
            Ok(at) => at..at + 1,
            Err(_) => 0..versions.len(),
        };
        let sources = || versions[range.clone()].iter().filter(may_be_it);
        let there_since = sources().map(|version| self.there_since(version)).max().unwrap_or(0);
        let began = self.get(read).invoked;
        let begun_later = |version: &&Version| self.get(version.number).invoked > there_since;
        let is_newer = |version: &&Version| !may_be_it(version) && self.there_since(version) < began;
        let newer = versions.iter().rev().take_while(begun_later).find(is_newer);
        let Some(newer) = newer else { return Ok(()) };
        let name = |number: u64| match number {
            ZEROS => "zeros".to_owned(),
            number => {
                let place = versions.partition_point(|version| version.number < number) + 1;
                format!("version {place} of {} (operation {number})", versions.len())
            }
        };
        Err(format!(
            "volume {} block {} is stale: operation {read} read {}, although {} was there before it began{}",
            block.0.0 + 1,
            block.1,
            name(author),
            name(newer.number),
            self.told(versions)
        ))
    }

    /// The newest versions of a block, in lines.
    fn told(&self, versions: &[Version]) -> String {
        const TOLD_MAX: usize = 24;
        let seconds = |at: u64| at as f64 / 1e9;
        let mut text = String::new();
        for (place, version) in (1..).zip(versions).skip(versions.len().saturating_sub(TOLD_MAX)) {
            let Operation { step, invoked, completed, fate, .. } = self.get(version.number);
            let (number, kind) = (version.number, step.kind);
            text.push_str(&format!(
                "\n    version {place}: operation {number}, {kind:?}, begun at {:.6}, ",
                seconds(*invoked)
            ));
            match fate {
                Fate::Acknowledged => text.push_str(&format!("acknowledged at {:.6}", seconds(*completed))),
                Fate::Failed => text.push_str("failed, as its client was told"),
                Fate::Unknown => text.push_str("of an unknown end"),
            }
            if version.seen != PENDING {
                text.push_str(&format!(", seen by {:.6}", seconds(version.seen)));
            }
        }
        text
    }

    /// Who wrote a block, by its bytes.
    fn author(&self, volume: usize, block: u64, bytes: &[u8]) -> Result<u64, String> {
        static NOTHING: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        if *bytes == NOTHING[..bytes.len()] {
            return Ok(ZEROS);
        }
        let number = self.contents.author_of(bytes);
        let is_its = |number| family_of(self.get(number).step.volume) == family_of(volume);
        if (1..=self.len()).contains(&number)
            && is_its(number)
            && self.contents.is_by(number, place_of(volume, block), bytes)
        {
            return Ok(number);
        }
        Err(format!(
            "volume {} block {block} holds bytes that nobody wrote there; they say operation {number}, and begin \
             with {:02x?}",
            volume + 1,
            &bytes[..24]
        ))
    }

    /// Checks that every block is linearizable, and answers of how many. No write takes effect twice, however often it was
    /// sent and whatever the logs have forgotten meanwhile.
    ///
    /// # Errors
    /// What cannot be, and the block's history.
    pub(super) fn check(&self) -> Result<u64, String> {
        self.check_fences()?;
        let mut blocks: BTreeMap<BlockOf, Vec<Observation>> = BTreeMap::new();
        for (number, operation) in (1..).zip(&self.operations) {
            let Step { kind, first_block, blocks: count, .. } = operation.step;
            let stream = self.stream_of(operation);
            for index in 0..count {
                let access = match kind {
                    Kind::Write => Access::Write(number),
                    Kind::Zero => Access::Write(ZEROS),
                    _ if operation.completed == PENDING => continue,
                    Kind::Read => Access::Read(operation.values[index as usize]),
                    Kind::Allocated if operation.values[index as usize] == ZEROS => Access::SeenAbsent,
                    Kind::Allocated => continue,
                };
                blocks.entry((stream, first_block + index)).or_default().push(Observation {
                    access,
                    invoked: operation.invoked,
                    completed: operation.completed,
                    label: number,
                });
            }
        }
        self.trace_back(&mut blocks)?;
        for (((volume, _), block), observations) in &blocks {
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
        Ok(blocks.len() as u64)
    }

    /// Notes what streams begin with as written when they begin, as far as somebody read it, and as read from the snapshot when
    /// that was made.
    fn trace_back(&self, blocks: &mut BTreeMap<BlockOf, Vec<Observation>>) -> Result<(), String> {
        // Later streams first: what they begin with may be what the earlier ones begin with.
        let mut streams: Vec<(Stream, Origin)> =
            self.origins.iter().map(|(stream, origin)| (*stream, *origin)).collect();
        streams.sort_unstable_by_key(|(_, origin)| std::cmp::Reverse(origin.at));
        for (stream, origin) in streams {
            let Moment { stream: from, at } = self.moments[&origin.layer];
            let its: Vec<BlockOf> =
                blocks.range((stream, 0)..=(stream, u64::MAX)).map(|(block, _)| *block).collect();
            for block in its {
                let observations = blocks.get_mut(&block).expect("it was just found");
                let mut read: Vec<(u64, u64)> = Vec::new();
                for one in observations.iter() {
                    let Access::Read(author) = one.access else { continue };
                    if self.inherits(stream, block.1, author)?.is_some() {
                        read.push((author, one.label));
                    }
                }
                let Some((author, label)) = read.first().copied() else { continue };
                let begins = |access, at| Observation { access, invoked: at, completed: at, label };
                if author != ZEROS {
                    observations.push(begins(Access::Write(author), origin.at));
                }
                blocks.entry((from, block.1)).or_default().push(begins(Access::Read(author), at));
            }
        }
        Ok(())
    }

    /// Checks that nothing was changed by whom a fence kept out: neither by what began after the fence stood, nor, of what had
    /// begun before, anything that the new holder's operations on the same block should have seen.
    fn check_fences(&self) -> Result<(), String> {
        let kept_out = |operation: &Operation| {
            let volume = volume_id(operation.step.volume);
            let fences = self.fences.iter().filter(move |(fenced, ..)| *fenced == volume);
            let newer = fences.filter(|(_, generation, _)| *generation > operation.generation);
            newer.map(|(.., at)| *at).min().is_some_and(|at| at <= operation.invoked)
        };
        for (number, operation) in (1..).zip(&self.operations) {
            // Who reads is kept out of nothing.
            let is_change = matches!(operation.step.kind, Kind::Write | Kind::Zero);
            let may_be_kept_out = operation.process != OPERATOR && is_change;
            if operation.completed != PENDING && may_be_kept_out && kept_out(operation) {
                return Err(format!("{} although a fence kept it out when it began", self.describe(number)));
            }
        }
        if self.fences.is_empty() {
            return Ok(());
        }
        let mut blocks: BTreeMap<BlockOf, Vec<Touch<'_>>> = BTreeMap::new();
        let ended = (1..).zip(&self.operations).filter(|(_, operation)| operation.completed != PENDING);
        for (number, operation) in ended {
            let Step { kind, first_block, blocks: count, .. } = operation.step;
            let stream = self.stream_of(operation);
            for index in 0..count {
                let seen = (kind == Kind::Read).then(|| operation.values[index as usize]);
                let here = blocks.entry((stream, first_block + index)).or_default();
                here.push(Touch { operation, number, seen });
            }
        }
        for (((volume, _), block), touches) in &blocks {
            for Touch { operation: read, number, seen } in touches {
                let Some(author) = seen.filter(|author| *author != ZEROS) else { continue };
                let written_under = self.get(author).generation;
                // Of what newer holders had done before this began, all is later than whatever an older one wrote.
                let overlooked = touches.iter().find(|Touch { operation: other, seen, .. }| {
                    other.is_holder
                        && other.generation > written_under
                        && other.completed < read.invoked
                        && *seen != Some(author)
                        && other.step.kind != Kind::Allocated
                        && other.step.layer.is_none()
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

    /// The operation that took longest of those that began since then, and how long that was: of one that has not ended, so far.
    pub(super) fn slowest_since(&self, then: u64, now: u64) -> (u64, u64) {
        let took = |operation: &Operation| operation.completed.min(now).saturating_sub(operation.invoked);
        let new = (1..).zip(&self.operations).filter(|(_, operation)| operation.invoked >= then);
        // Of one that failed nobody noted when.
        let new = new.filter(|(_, operation)| operation.fate != Fate::Failed);
        new.map(|(number, operation)| (number, took(operation)))
            .max_by_key(|(_, took)| *took)
            .unwrap_or_default()
    }

    /// Operations that have not ended.
    pub(super) fn pending(&self) -> impl Iterator<Item = String> + '_ {
        let pending = (1..).zip(&self.operations).filter(|(_, operation)| operation.completed == PENDING);
        pending.map(|(number, _)| self.describe(number))
    }
}

/// Where a block's content says that it belongs: the same for a volume and its clones, which may have the same bytes.
fn place_of(volume: usize, block: u64) -> Place {
    Place { volume: family_of(volume) as u64, block }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::Collision;
    use client::ClientError;

    const BLOCK: u64 = 5;

    fn history() -> History {
        let contents = Contents::Colliding(Collision { crc32c: None, of_both: true });
        let unit_bytes = BLOCK_BYTES as u64;
        History::new(&Plan { contents, unit_bytes, ..Plan::default() })
    }

    fn begin(history: &mut History, kind: Kind, at: u64) -> u64 {
        history.begin(
            0,
            Generation(1),
            Step { kind, volume: 0, layer: None, first_block: BLOCK, blocks: 1 },
            at,
        )
    }

    fn done(history: &mut History, kind: Kind, from: u64, to: u64) -> u64 {
        let number = begin(history, kind, from);
        history.complete(number, to, &Outcome::Done, None).unwrap();
        number
    }

    fn read(history: &mut History, author: u64, from: u64, to: u64) -> Result<(), String> {
        let number = begin(history, Kind::Read, from);
        let mut buffer = Buffer::new(BLOCK_BYTES);
        if author != ZEROS {
            let bytes = &mut buffer.bytes_mut().unwrap()[..BLOCK_BYTES];
            history.contents.fill(author, place_of(0, BLOCK), bytes);
        }
        history.complete(number, to, &Outcome::Done, Some(&buffer))
    }

    fn refused(found: Result<(), String>, parts: &[&str]) {
        let error = found.unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn a_read_of_what_was_written_over_is_stale_by_name() {
        let mut history = history();
        let (first, second) = (done(&mut history, Kind::Write, 1, 2), done(&mut history, Kind::Write, 3, 6));
        read(&mut history, first, 5, 8).unwrap();
        read(&mut history, second, 7, 8).unwrap();
        let parts = [
            "volume 1 block 5 is stale",
            "read version 1 of 2 (operation 1)",
            "although version 2 of 2 (operation 2)",
            "acknowledged at",
        ];
        refused(read(&mut history, first, 9, 10), &parts);
    }

    #[test]
    fn of_a_write_of_an_unknown_end_only_what_was_seen_counts() {
        let mut history = history();
        let first = done(&mut history, Kind::Write, 1, 2);
        let failed = begin(&mut history, Kind::Write, 3);
        let error = ClientError::NoSpace { volume: String::new() };
        history.complete(failed, 4, &Outcome::Failed(error), None).unwrap();
        begin(&mut history, Kind::Write, 5);
        read(&mut history, first, 6, 7).unwrap();
        read(&mut history, failed, 8, 9).unwrap();
        let parts =
            ["version 2 of 3 (operation 2)", "failed, as its client was told, seen by", "unknown end"];
        refused(read(&mut history, first, 10, 11), &parts);
    }

    #[test]
    fn a_write_is_unfinished_while_nobody_was_told_and_only_if_it_began_before_then() {
        let mut history = history();
        done(&mut history, Kind::Write, 1, 2);
        begin(&mut history, Kind::Write, 5);
        let reading = begin(&mut history, Kind::Read, 7);
        let block = |number: u64| number * BLOCK_BYTES as u64..(number + 1) * BLOCK_BYTES as u64;
        assert!(history.has_unfinished_write(reading, &block(BLOCK), 6, 0));
        assert!(!history.has_unfinished_write(reading, &block(BLOCK), 5, 6), "it began when members agreed");
        assert!(!history.has_unfinished_write(reading, &block(BLOCK + 1), 6, 6));
        assert!(history.has_unfinished_write(2, &block(BLOCK), 6, 6), "an earlier attempt at it");
        assert!(!history.has_unfinished_write(2, &block(BLOCK), 6, 5), "it began in this epoch");
    }

    #[test]
    fn zeros_are_stale_unless_something_made_them() {
        let mut history = history();
        read(&mut history, ZEROS, 1, 2).unwrap();
        let first = done(&mut history, Kind::Write, 3, 4);
        refused(read(&mut history, ZEROS, 5, 6), &["read zeros, although version 1 of 1"]);
        done(&mut history, Kind::Zero, 7, 8);
        read(&mut history, ZEROS, 9, 10).unwrap();
        refused(read(&mut history, first, 11, 12), &["although version 2 of 2"]);
        begin(&mut history, Kind::Zero, 13);
        done(&mut history, Kind::Write, 14, 15);
        read(&mut history, ZEROS, 16, 17).unwrap();
    }

    /// A history in which the volume lost the block at 10 and grew again at 20. Answers what was written there before that, and
    /// meanwhile.
    fn cut_off() -> (History, u64, u64) {
        let mut history = history();
        let before = done(&mut history, Kind::Write, 1, 2);
        let step = Step { kind: Kind::Read, volume: 0, layer: None, first_block: BLOCK, blocks: 1 };
        let lost = history.shrinks(std::iter::once(step), 10);
        // By who had not heard of it.
        let meanwhile = done(&mut history, Kind::Write, 12, 14);
        read(&mut history, meanwhile, 15, 16).unwrap();
        read(&mut history, ZEROS, 17, 18).unwrap();
        history.grows(&lost, 20).unwrap();
        (history, before, meanwhile)
    }

    #[test]
    fn what_was_cut_off_is_zeros_when_its_volume_has_grown_whenever_it_was_written() {
        let (mut history, before, _) = cut_off();
        refused(read(&mut history, before, 21, 22), &["is stale", "operation 1)"]);
        let (mut history, _, meanwhile) = cut_off();
        refused(read(&mut history, meanwhile, 21, 22), &["is stale", "there before it began"]);
        assert!(history.check().is_err(), "nor is there an order in which that can be");
        // What was begun before the growth may be done after it, and stays then.
        let (mut history, ..) = cut_off();
        let late = done(&mut history, Kind::Write, 19, 25);
        read(&mut history, ZEROS, 21, 22).unwrap();
        read(&mut history, late, 26, 27).unwrap();
        assert_eq!(history.check(), Ok(1));
        read(&mut history, ZEROS, 28, 29).unwrap();
        assert!(history.check().is_err(), "it was seen, and nothing zeroed it since");
    }

    #[test]
    fn bytes_that_nobody_wrote_are_refused_whatever_their_checksum() {
        let mut history = history();
        done(&mut history, Kind::Write, 1, 2);
        refused(read(&mut history, 77, 3, 4), &["nobody wrote", "operation 77"]);
        assert!(history.author(0, BLOCK, &[0x5a; BLOCK_BYTES]).is_err());
    }
}
