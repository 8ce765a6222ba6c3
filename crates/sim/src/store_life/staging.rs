//! What is staged in a turn, and what the store may answer.

use super::{Life, ROUNDS_MAX, Unsealed};
use crate::contents::{Contents, Place};
use crate::machine::push_words;
use crate::model::{Change, Effect};
use base::hash::mix;
use base::{BLOCK_BYTES, Epoch, OBJECT_BLOCKS, ObjectKey, Sequence, crc32c};
use store::{RecordKind, Role, StageError, Store, WriteRecord};
use zerocopy::little_endian::U32;

/// Turns in a row in which a store may answer that it is busy before it is helped along.
const BUSY_TURNS_MAX: u32 = 50;
/// Of so many operations of a life that splits groups one is a split.
const SPLIT_EVERY: u64 = 40;
/// Of so many operations of a life that lets everything go one begins that.
const FORGET_EVERY: u64 = 60;
/// Of so many operations of a life with a member that lags one is about that; and where there are many objects.
const LAG_EVERY: u64 = 12;
const LAG_EVERY_WITH_MANY_OBJECTS: u64 = 4;
/// The most writes that it misses at a time.
const MISSED_MAX: u64 = 2000;
/// Of so many writes of a life with pushes one is a push.
const PUSH_EVERY: u64 = 6;
/// Of so many zeroings of a life with holes one leaves some.
const HOLE_EVERY: u64 = 2;
/// What two checkpoints of a life may take: three full logs and six objects' pages, each twice. Pages of more objects are of a
/// block each.
const CHECKPOINT_BYTES_MAX: u64 = 512 << 10;
const CHECKPOINT_OBJECTS: usize = 6;

impl Life {
    /// Stages one operation; `false` when the store has no room right now.
    pub(super) fn stage_something(&mut self, store: &mut Store) -> Result<bool, String> {
        if let Some(object) = self.forgetting {
            return self.let_all_go(store, object);
        }
        if self.relief == 0 && self.forgets.as_mut().is_some_and(|random| random.one_in(FORGET_EVERY)) {
            self.forgetting = Some(0);
        }
        if let Some((object, modulus)) = self.draw_split() {
            return self.stage(store, object, 0, Effect::Split(modulus));
        }
        if let Some((object, effect)) = self.draw_lag() {
            return self.stage(store, object, 0, effect);
        }
        let object = self.random.index(self.plan.objects);
        let kind = self.random.below(100);
        let zero = self.relief > 0 || kind < self.plan.zero_percent;
        if zero {
            let (first_block, count) = if self.random.percent(15) {
                (0, OBJECT_BLOCKS as u16)
            } else {
                self.draw_range(self.range_blocks)
            };
            self.stage(store, object, first_block, self.draw_zeros(count))
        } else if kind < self.plan.zero_percent + self.plan.mark_percent {
            self.stage(store, object, 0, Effect::Mark)
        } else {
            let (first_block, count) = self.draw_range(self.plan.write_blocks_max);
            let checksums = self.fill(object, first_block, count);
            let is_push = self.has_pushes && mix(self.next_token).is_multiple_of(PUSH_EVERY);
            let effect = if is_push { Effect::Push(checksums) } else { Effect::Write(checksums) };
            self.stage(store, object, first_block, effect)
        }
    }

    /// Zeroes blocks, one way or another: as nothing, or as holes.
    fn draw_zeros(&self, count: u16) -> Effect {
        let drawn = mix(self.next_token) / PUSH_EVERY;
        match self.relief == 0 && self.has_holes && drawn.is_multiple_of(HOLE_EVERY) {
            false => Effect::Zero(count),
            true if self.has_pushes && (drawn / HOLE_EVERY).is_multiple_of(PUSH_EVERY) => {
                Effect::PushHole(count)
            }
            true => Effect::Hole(count),
        }
    }

    /// The next step of letting everything go: each object is zeroed, from this one on, and when nothing is there any more, all
    /// logs go too.
    fn let_all_go(&mut self, store: &mut Store, object: usize) -> Result<bool, String> {
        if object < self.plan.objects {
            let is_staged = self.stage(store, object, 0, Effect::Zero(OBJECT_BLOCKS as u16))?;
            self.forgetting = Some(object + usize::from(is_staged));
            return Ok(is_staged);
        }
        // Only then nothing of them can be there.
        if !self.model.staged.is_empty() {
            return Ok(false);
        }
        self.stage(store, 0, 0, Effect::Forget)
    }

    /// A group with something in its log and how it is split, now and then.
    fn draw_split(&mut self) -> Option<(usize, u32)> {
        let random = self.splits.as_mut()?;
        if self.relief > 0 || !random.one_in(SPLIT_EVERY) {
            return None;
        }
        let object = random.index(self.plan.objects);
        let pg = self.pg_of[object];
        let modulus = 2 * self.moduli[pg];
        let is_possible = self.next_sequence[pg] > 1 && modulus as usize <= self.model.pgs.len();
        is_possible.then_some((object, modulus))
    }

    /// A group of which the member misses something, or something that it is told while it lags, now and then.
    fn draw_lag(&mut self) -> Option<(usize, Effect)> {
        let random = self.lags.as_mut()?;
        let every = if self.plan.has_many_objects { LAG_EVERY_WITH_MANY_OBJECTS } else { LAG_EVERY };
        if self.relief > 0 || !random.one_in(every) {
            return None;
        }
        let object = random.index(self.plan.objects);
        let effect = match random.below(10) {
            0..=3 => Effect::Join(random.between(1, MISSED_MAX)),
            4..=7 => Effect::Reached,
            _ => Effect::Whole,
        };
        Some((object, effect))
    }

    pub(super) fn draw_range(&mut self, blocks_max: u64) -> (u16, u16) {
        let first = self.random.below(self.range_blocks);
        let count = self.random.between(1, blocks_max.min(self.range_blocks - first));
        (first as u16, count as u16)
    }

    /// Makes the data that the next operation would write, and its checksums.
    pub(super) fn fill(&mut self, object: usize, first_block: u16, count: u16) -> Vec<u32> {
        self.data.resize(usize::from(count) * BLOCK_BYTES, 0);
        let (token, contents) = (self.next_token, self.contents);
        let blocks = self.data.chunks_exact_mut(BLOCK_BYTES).zip(u64::from(first_block)..);
        blocks
            .map(|(bytes, block)| {
                contents.fill(token, Place { volume: object as u64, block }, bytes);
                crc32c(bytes)
            })
            .collect()
    }

    pub(super) fn stage(
        &mut self,
        store: &mut Store,
        object: usize,
        first_block: u16,
        effect: Effect,
    ) -> Result<bool, String> {
        let (token, pg) = (self.next_token, self.pg_of[object]);
        let next = self.next_sequence[pg];
        let sequence = match effect {
            Effect::Join(missed) => next + missed,
            // What is pushed changed before.
            Effect::Push(_) | Effect::PushHole(_) => next - 1,
            _ => next,
        };
        let role = match &effect {
            Effect::Zero(_) | Effect::Hole(_) | Effect::PushHole(_) => {
                self.random.choose(&[Role::Primary, Role::Replica, Role::Housekeeping])
            }
            _ => self.random.choose(&[Role::Primary, Role::Primary, Role::Replica]),
        };
        let mut operation = Change {
            token,
            object,
            epoch: Epoch(self.epochs[pg]),
            sequence: Sequence(sequence),
            first_block,
            effect,
            batch: None,
        };
        match self.offer(store, &mut operation, role) {
            Ok(()) => {
                let numbers =
                    [token, object as u64, u64::from(first_block), u64::from(operation.block_count())];
                self.trace.note(name_of(&operation.effect), &numbers);
                self.relief =
                    self.relief.saturating_sub(u64::from(matches!(operation.effect, Effect::Zero(_))));
                self.next_token += 1;
                self.was_staged(operation);
                self.busy_turns = 0;
                Ok(true)
            }
            Err(StageError::Busy) => {
                self.trace.note("busy", &[]);
                self.busy_turns += 1;
                if self.busy_turns >= BUSY_TURNS_MAX {
                    self.help_along(store, &mut operation, role)?;
                }
                Ok(false)
            }
            Err(StageError::Full) => {
                self.refused_as_full(store, &operation)?;
                Ok(true)
            }
            Err(error) => Err(format!("operation {token} was refused on a sound drive: {error}")),
        }
    }

    fn offer(&mut self, store: &mut Store, operation: &mut Change, role: Role) -> Result<(), StageError> {
        let record = WriteRecord {
            key: ObjectKey {
                pg: self.model.pgs[self.pg_of[operation.object]],
                ..self.model.keys[operation.object]
            },
            epoch: operation.epoch,
            sequence: operation.sequence,
            origin: 0,
            first_block: operation.first_block,
            block_count: operation.block_count(),
            token: operation.token,
            role,
        };
        match &operation.effect {
            Effect::Write(checksums) => {
                let little_endian: Vec<U32> = checksums.iter().copied().map(U32::new).collect();
                let staged = store.stage_write(&record, &little_endian, &self.data)?;
                let seals = self.seals.get(&staged.batch).copied().unwrap_or(0);
                operation.batch = Some(u64::from(staged.batch.0) << 48 | seals);
                let first = u64::from(operation.first_block);
                self.unsealed.push(Unsealed {
                    batch: staged.batch,
                    offset: staged.offset as usize,
                    token: operation.token,
                    object: operation.object,
                    blocks: first..first + u64::from(operation.block_count()),
                });
                Ok(())
            }
            Effect::Push(checksums) => {
                let words = push_words(checksums, |number| operation.changed(number));
                let record = WriteRecord { sequence: Sequence(0), ..record };
                store.stage_push(&record, &words, &self.data)
            }
            Effect::Zero(_) => store.stage_zero(&record),
            Effect::Hole(_) => store.stage_hole(&record),
            Effect::PushHole(_) => {
                let record = WriteRecord { sequence: Sequence(0), ..record };
                store.stage_pushed_hole(&record, operation.sequence)
            }
            Effect::Mark | Effect::Join(_) => {
                let (pg, modulus) = (record.key.pg, self.moduli[self.pg_of[operation.object]]);
                let Change { epoch, sequence, token, .. } = *operation;
                let joins = matches!(operation.effect, Effect::Join(_));
                let kind = if joins { RecordKind::Join } else { RecordKind::Mark };
                store.stage_mark(kind, pg, modulus, epoch, sequence, token)
            }
            Effect::Reached => store.stage_reached(record.key, operation.token),
            Effect::Whole => store.stage_whole(record.key.pg, operation.epoch, operation.token),
            Effect::Split(modulus) => store.stage_split(record.key.pg, *modulus, operation.token),
            Effect::Forget => store.stage_forget(record.key.pg.pool, operation.token),
        }
    }

    fn was_staged(&mut self, operation: Change) {
        let pg = self.pg_of[operation.object];
        if let Effect::Split(modulus) = operation.effect {
            let child = pg + modulus as usize / 2;
            (self.moduli[pg], self.moduli[child]) = (modulus, modulus);
            (self.epochs[child], self.next_sequence[child]) = (self.epochs[pg], self.next_sequence[pg]);
            for (key, pg_of) in self.model.keys.iter().zip(&mut self.pg_of) {
                if *pg_of == pg && !self.model.pgs[pg].holds(modulus, key.layer, key.object) {
                    *pg_of = child;
                }
            }
            self.report.splits += 1;
        } else if matches!(operation.effect, Effect::Forget) {
            self.forgetting = None;
            self.report.forgets += 1;
        } else if let Effect::Push(_) | Effect::PushHole(_) = operation.effect {
            self.report.pushed_blocks += u64::from(operation.block_count());
        } else if !matches!(operation.effect, Effect::Reached | Effect::Whole) {
            self.next_sequence[pg] = operation.sequence.0 + 1;
        }
        if let Effect::Write(checksums) | Effect::Push(checksums) = &operation.effect {
            match self.contents {
                Contents::Plain => {}
                Contents::Colliding(_) => self.report.colliding_blocks += checksums.len() as u64,
                Contents::Lookalike { .. } => self.report.lookalike_blocks += checksums.len() as u64,
            }
        }
        self.model.staged.push_back(operation);
    }

    fn refused_as_full(&mut self, store: &Store, operation: &Change) -> Result<(), String> {
        self.trace.note("full", &[]);
        self.report.refusals += 1;
        let statistics = store.statistics();
        if !matches!(operation.effect, Effect::Write(_) | Effect::Push(_)) {
            return Err(format!("a full store refused a {}", name_of(&operation.effect)));
        }
        // Checkpoints count as used too, which matters on a drive as small as the smallest here; and while two are there, twice.
        let more_objects = self.plan.objects.saturating_sub(CHECKPOINT_OBJECTS) as u64;
        let checkpoint_bytes = CHECKPOINT_BYTES_MAX + 4 * more_objects * BLOCK_BYTES as u64;
        if statistics.live_bytes + checkpoint_bytes < statistics.usable_bytes / 2 {
            return Err(format!("refused as full with {statistics:?}"));
        }
        self.relief = self.random.between(1, 6);
        Ok(())
    }

    /// The store has been busy for many turns: with everything completed and nobody in its way, it must
    /// take an operation in the end. Nothing is staged by this.
    fn help_along(&mut self, store: &mut Store, operation: &mut Change, role: Role) -> Result<(), String> {
        self.let_go(store, u64::MAX)?;
        for _ in 0..ROUNDS_MAX {
            if !self.round(store)? {
                return Ok(());
            }
            if self.drive.in_flight() == 0 {
                return match self.offer(store, operation, role) {
                    Err(StageError::Busy) => Err(format!(
                        "stuck: busy with nothing in flight and nothing to do, {:?}",
                        store.statistics()
                    )),
                    Err(StageError::Full) => self.refused_as_full(store, operation),
                    Err(error) => Err(format!("refused on a sound drive: {error}")),
                    Ok(()) => {
                        self.trace.note("stage late", &[operation.token]);
                        self.was_staged(operation.clone());
                        self.next_token += 1;
                        self.busy_turns = 0;
                        Ok(())
                    }
                };
            }
        }
        Err(format!("busy for {ROUNDS_MAX} rounds without coming to rest, {:?}", store.statistics()))
    }
}

fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::Write(_) => "stage write",
        Effect::Push(_) => "stage push",
        Effect::Zero(_) => "stage zero",
        Effect::Hole(_) => "stage hole",
        Effect::PushHole(_) => "stage push hole",
        Effect::Mark => "stage mark",
        Effect::Join(_) => "stage join",
        Effect::Reached => "stage reached",
        Effect::Whole => "stage whole",
        Effect::Split(_) => "stage split",
        Effect::Forget => "stage forget",
    }
}
