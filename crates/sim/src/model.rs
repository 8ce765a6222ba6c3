//! What a store has to hold: the plainest possible one, kept beside the real one.
//!
//! It knows the state after every operation that was reported durable, and the operations staged
//! since. A store that comes back from a crash must hold the durable state with some number of those
//! applied, in order, none skipped: [`Model::recover`] finds that number or says what is wrong.

use base::{Epoch, OBJECT_BLOCKS, ObjectKey, PgId, Sequence, ZERO_BLOCK_CRC32C};
use std::collections::VecDeque;

/// The version of one block: the operation that wrote it, 0 when it reads as zeros, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The token of the write, counted from 1; 0 where nothing is written.
    pub token: u64,
    /// The checksum of what was written; 0 where nothing is written. Other versions may have the same.
    pub checksum: u32,
    /// The place in its group's order at which it last changed; 0 where nothing is written.
    pub changed: Sequence,
    /// It is a hole: it reads as zeros, and lies nowhere.
    pub is_hole: bool,
}

/// What a store shows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The checksum by its index.
    pub checksum: u32,
    /// Whose bytes lie on the drive, as they say themselves; `None` if they do not verify, for they rotted, and of a hole.
    pub token: Option<u64>,
    /// It is a hole.
    pub is_hole: bool,
}

/// What an operation does to its object.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Writes blocks with these checksums.
    Write(Vec<u32>),
    /// The same, as a learner is given blocks that it lacks: the log does not tell of it, and they changed before.
    Push(Vec<u32>),
    /// Makes this many blocks read as zeros.
    Zero(u16),
    /// Makes this many blocks holes.
    Hole(u16),
    /// The same, as a learner is given holes that it lacks.
    PushHole(u16),
    /// Only moves the log's position. Whoever lagged has everything.
    Mark,
    /// The member missed this many writes, and its log begins anew behind them.
    Join(u64),
    /// The member, if it lags, has everything of its group's objects up to this one.
    Reached,
    /// It has everything.
    Whole,
    /// The object's group gives what is not its own by this modulus to another.
    Split(u32),
    /// The logs of all groups go; nothing is written anywhere.
    Forget,
}

/// A change that is staged.
#[derive(Clone, Debug)]
pub struct Change {
    /// What the store reports it by.
    pub token: u64,
    /// Which object, as an index into the model's.
    pub object: usize,
    /// Its place in the log of its placement group.
    pub epoch: Epoch,
    /// Its place in the log of its placement group. Of a push: the newest place that any of its blocks changed at.
    pub sequence: Sequence,
    /// The first block it changes.
    pub first_block: u16,
    /// What it does.
    pub effect: Effect,
    /// Which batch its data went to, where the store said so. Operations of one batch survive together.
    pub batch: Option<u64>,
}

impl Change {
    /// How many blocks it changes.
    #[must_use]
    pub fn block_count(&self) -> u16 {
        match &self.effect {
            Effect::Write(checksums) | Effect::Push(checksums) => checksums.len() as u16,
            Effect::Zero(count) | Effect::Hole(count) | Effect::PushHole(count) => *count,
            Effect::Mark | Effect::Join(_) | Effect::Reached | Effect::Whole => 0,
            Effect::Split(_) | Effect::Forget => 0,
        }
    }

    /// When its block of that number changed, in its group's order. Those of a push did so at different times.
    #[must_use]
    pub fn changed(&self, index: usize) -> Sequence {
        let earlier = if matches!(self.effect, Effect::Push(_)) { 5 * (index as u64 % 3) } else { 0 };
        Sequence(self.sequence.0.saturating_sub(earlier))
    }
}

/// One entry of a placement group's log, as the store's `LogEntry` but for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place in the order of writes.
    pub epoch: Epoch,
    /// The place in the order of writes.
    pub sequence: Sequence,
    /// The object, as an index into the model's; `None` for a mark.
    pub object: Option<usize>,
    /// The first block.
    pub first_block: u16,
    /// The number of blocks; 0 for a mark.
    pub block_count: u16,
}

/// The log of one placement group.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The newest entries, oldest first.
    pub entries: VecDeque<Entry>,
    /// What came before was dropped to make room; 0 if nothing was.
    pub begins: Sequence,
    /// How many entries are kept.
    entries_max: usize,
}

impl Log {
    fn push(&mut self, entry: Entry) {
        let is_mark = |entry: &Entry| entry.object.is_none();
        if is_mark(&entry) {
            self.entries.retain(|earlier| !is_mark(earlier));
        }
        if self.entries.len() == self.entries_max {
            self.begins = self.entries.pop_front().map_or(self.begins, |dropped| dropped.sequence.next());
        }
        self.entries.push_back(entry);
    }

    fn restart(&mut self, mark: Entry) {
        self.entries.clear();
        self.begins = mark.sequence.next();
        self.entries.push_back(mark);
    }

    /// The place of the newest entry.
    #[must_use]
    pub fn position(&self) -> Option<(Epoch, Sequence)> {
        self.entries.back().map(|entry| (entry.epoch, entry.sequence))
    }
}

/// What a store showed: for each object of the model its 1024 blocks, `None` where it says zeros, and for each placement
/// group its position.
#[derive(Clone, Debug)]
pub struct Shown {
    /// By object, by block.
    pub blocks: Vec<Vec<Option<Seen>>>,
    /// By placement group.
    pub positions: Vec<Option<(Epoch, Sequence)>>,
}

/// The model. See the module's documentation.
#[derive(Clone, Debug)]
pub struct Model {
    /// The placement groups of this life.
    pub pgs: Vec<PgId>,
    /// The objects of this life.
    pub keys: Vec<ObjectKey>,
    /// For each object the index of its placement group.
    pub pg_of: Vec<usize>,
    /// The durable state of every object's blocks.
    pub blocks: Vec<Vec<Version>>,
    /// The durable log of every placement group.
    pub logs: Vec<Log>,
    /// For each object the place in its group's order behind which the member missed something of it, as far as is durable.
    pub missed_behind: Vec<Option<Sequence>>,
    /// What each group was split by last, durably; 0 where it never was.
    pub moduli: Vec<u32>,
    /// Staged operations that were not reported durable, in order.
    pub staged: VecDeque<Change>,
}

impl Model {
    /// Nothing is written yet; of each group's log so many entries are kept.
    #[must_use]
    pub fn new(pgs: Vec<PgId>, keys: Vec<ObjectKey>, log_entries_max: usize) -> Model {
        let pg_of = keys
            .iter()
            .map(|key| {
                pgs.iter().position(|pg| *pg == key.pg).expect("an object's group is one of the model's")
            })
            .collect();
        Model {
            blocks: vec![vec![Version::default(); OBJECT_BLOCKS]; keys.len()],
            logs: vec![Log { entries_max: log_entries_max, ..Log::default() }; pgs.len()],
            missed_behind: vec![None; keys.len()],
            moduli: vec![0; pgs.len()],
            staged: VecDeque::new(),
            pgs,
            keys,
            pg_of,
        }
    }

    /// The store reported `token` durable.
    ///
    /// # Errors
    /// If it is not the oldest staged operation's turn.
    pub fn durable(&mut self, token: u64) -> Result<(), String> {
        match self.staged.front() {
            Some(operation) if operation.token == token => {
                let operation = self.staged.pop_front().expect("it was just looked at");
                self.apply(&operation, |_, _, _| ());
                Ok(())
            }
            Some(operation) => Err(format!(
                "operation {token} was reported durable before operation {}, which was staged earlier",
                operation.token
            )),
            None => Err(format!("operation {token} was reported durable, but nothing is staged")),
        }
    }

    /// A store that was opened again shows this. Makes it the durable state, forgets the rest of what
    /// was staged, and returns how many staged operations survived.
    ///
    /// # Errors
    /// If no prefix of the staged operations explains what it shows, with the first difference.
    pub fn recover(&mut self, shown: &Shown) -> Result<usize, String> {
        let acknowledged = self.clone();
        let mut differences = 0usize;
        for (versions, blocks) in self.blocks.iter().zip(&shown.blocks) {
            differences += versions.iter().zip(blocks).filter(|(v, seen)| !agrees(**v, **seen)).count();
        }
        let mut survivors = 0;
        let mut batch = None;
        while differences != 0 || !self.positions_agree(shown) {
            let Some(operation) = self.staged.pop_front() else {
                return Err(acknowledged.explain(shown));
            };
            survivors += 1;
            batch = operation.batch.or(batch);
            let blocks = &shown.blocks[operation.object];
            let mut change = 0isize;
            self.apply(&operation, |block, old, new| {
                let seen = blocks[block];
                change += isize::from(!agrees(new, seen)) - isize::from(!agrees(old, seen));
            });
            differences = differences.checked_add_signed(change).expect("a count of differences");
        }
        // What shows nowhere may have survived, too.
        let shows_nowhere =
            |operation: &mut Change| matches!(operation.effect, Effect::Reached | Effect::Whole);
        while let Some(operation) = self.staged.pop_front_if(shows_nowhere) {
            self.apply(&operation, |_, _, _| ());
        }
        let lost = self.staged.iter().find_map(|operation| operation.batch);
        if batch.is_some() && batch == lost {
            return Err(format!(
                "half of a batch came back: {survivors} staged operations survived, {} did not, and those \
                 beside the cut were written in one batch",
                self.staged.len()
            ));
        }
        self.staged.clear();
        Ok(survivors)
    }

    fn positions_agree(&self, shown: &Shown) -> bool {
        self.logs.iter().zip(&shown.positions).all(|(log, position)| log.position() == *position)
    }

    /// Applies `operation` to the durable state; `changed` hears each block with old and new version.
    fn apply(&mut self, operation: &Change, mut changed: impl FnMut(usize, Version, Version)) {
        if let Effect::Split(modulus) = operation.effect {
            return self.split(self.pg_of[operation.object], modulus);
        }
        if matches!(operation.effect, Effect::Forget) {
            for log in &mut self.logs {
                log.entries.clear();
                log.begins = Sequence(0);
            }
            return;
        }
        self.note_missed(operation);
        if matches!(operation.effect, Effect::Reached | Effect::Whole) {
            return;
        }
        let first = usize::from(operation.first_block);
        let blocks = &mut self.blocks[operation.object];
        for index in 0..usize::from(operation.block_count()) {
            let new = match &operation.effect {
                Effect::Write(checksums) | Effect::Push(checksums) => Version {
                    token: operation.token,
                    checksum: checksums[index],
                    changed: operation.changed(index),
                    is_hole: false,
                },
                Effect::Hole(_) | Effect::PushHole(_) => Version {
                    token: operation.token,
                    checksum: ZERO_BLOCK_CRC32C,
                    changed: operation.sequence,
                    is_hole: true,
                },
                _ => Version::default(),
            };
            changed(first + index, blocks[first + index], new);
            blocks[first + index] = new;
        }
        if let Effect::Push(_) | Effect::PushHole(_) = operation.effect {
            return;
        }
        let marks = matches!(operation.effect, Effect::Mark | Effect::Join(_));
        let entry = Entry {
            epoch: operation.epoch,
            sequence: operation.sequence,
            object: (!marks).then_some(operation.object),
            first_block: operation.first_block,
            block_count: operation.block_count(),
        };
        let log = &mut self.logs[self.pg_of[operation.object]];
        match operation.effect {
            Effect::Join(_) => log.restart(entry),
            _ => log.push(entry),
        }
    }

    /// Who joins has missed what comes behind its log's end so far; until it is told that it has it, or all.
    fn note_missed(&mut self, operation: &Change) {
        let pg = self.pg_of[operation.object];
        let place = |key: &ObjectKey| (key.layer, key.object);
        let last = self.logs[pg].position().map_or(Sequence(0), |(_, sequence)| sequence);
        let reached = place(&self.keys[operation.object]);
        for (object, missed_behind) in self.missed_behind.iter_mut().enumerate() {
            if self.pg_of[object] != pg {
                continue;
            }
            match operation.effect {
                Effect::Join(_) => *missed_behind = missed_behind.or(Some(last)),
                Effect::Reached if place(&self.keys[object]) > reached => {}
                Effect::Reached | Effect::Mark | Effect::Whole => *missed_behind = None,
                _ => {}
            }
        }
    }

    /// Groups are numbered as their place in the list says.
    fn split(&mut self, pg: usize, modulus: u32) {
        let child = pg + modulus as usize / 2;
        self.logs[child] = self.logs[pg].clone();
        (self.moduli[pg], self.moduli[child]) = (modulus, modulus);
        for (key, pg_of) in self.keys.iter_mut().zip(&mut self.pg_of) {
            if *pg_of == pg && !key.pg.holds(modulus, key.layer, key.object) {
                (*pg_of, key.pg) = (child, self.pgs[child]);
            }
        }
    }

    /// Why `shown` follows from no prefix of what was staged.
    fn explain(&self, shown: &Shown) -> String {
        for (index, (log, position)) in self.logs.iter().zip(&shown.positions).enumerate() {
            if *position < log.position() {
                return format!(
                    "acknowledged operations are lost: pg {} stands at {position:?}, but {:?} was durable",
                    self.pgs[index],
                    log.position()
                );
            }
        }
        for (object, blocks) in shown.blocks.iter().enumerate() {
            for (block, seen) in blocks.iter().enumerate() {
                let version = self.blocks[object][block];
                let staged = self.staged.iter().any(|operation| {
                    let first = usize::from(operation.first_block);
                    operation.object == object
                        && (first..first + usize::from(operation.block_count())).contains(&block)
                });
                if !staged && !agrees(version, *seen) {
                    return format!(
                        "block {block} of {} shows {seen:x?}, but {version:x?} is durable and nothing newer was \
                         staged for it",
                        self.keys[object]
                    );
                }
            }
        }
        format!(
            "what the store shows is no state between what was durable and the {} operations staged since, \
             applied in order; positions {:?}",
            self.staged.len(),
            shown.positions
        )
    }
}

/// Whether a store that shows this of a block (`None`: zeros) holds `version`: of several with one checksum the one whose
/// bytes are there.
#[must_use]
pub fn agrees(version: Version, seen: Option<Seen>) -> bool {
    match seen {
        None => version.token == 0,
        Some(Seen { checksum, token, is_hole }) => {
            version.token != 0
                && (version.checksum, version.is_hole) == (checksum, is_hole)
                && token.is_none_or(|token| token == version.token)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{LayerId, PoolId};

    fn model() -> Model {
        let pg = PgId { pool: PoolId(1), index: 0 };
        Model::new(vec![pg], vec![ObjectKey { pg, layer: LayerId(1), object: 0 }], 1024)
    }

    fn write(token: u64, first_block: u16, checksums: &[u32], batch: u64) -> Change {
        Change {
            token,
            object: 0,
            epoch: Epoch(1),
            sequence: Sequence(token),
            first_block,
            effect: Effect::Write(checksums.to_vec()),
            batch: Some(batch),
        }
    }

    /// Blocks by number, checksum, and who wrote what is there.
    fn shown_of(blocks: &[(usize, u32, Option<u64>)], sequence: u64) -> Shown {
        let mut all = vec![None; OBJECT_BLOCKS];
        for (block, checksum, token) in blocks {
            all[*block] = Some(Seen { checksum: *checksum, token: *token, is_hole: false });
        }
        let position = (sequence > 0).then_some((Epoch(1), Sequence(sequence)));
        Shown { blocks: vec![all], positions: vec![position] }
    }

    fn shown(blocks: &[(usize, u32)], sequence: u64) -> Shown {
        let blocks: Vec<_> = blocks.iter().map(|(block, checksum)| (*block, *checksum, None)).collect();
        shown_of(&blocks, sequence)
    }

    #[test]
    fn a_prefix_of_what_was_staged_may_survive() {
        let mut model = model();
        model.staged.push_back(write(1, 0, &[10], 1));
        model.durable(1).unwrap();
        model.staged.push_back(write(2, 0, &[20], 2));
        model.staged.push_back(write(3, 1, &[30], 3));
        for (blocks, sequence, survivors) in
            [(vec![(0, 10)], 1, 0), (vec![(0, 20)], 2, 1), (vec![(0, 20), (1, 30)], 3, 2)]
        {
            assert_eq!(model.clone().recover(&shown(&blocks, sequence)), Ok(survivors));
        }
    }

    #[test]
    fn a_lost_acknowledged_write_is_refused() {
        let mut model = model();
        model.staged.push_back(write(1, 0, &[10], 1));
        model.durable(1).unwrap();
        assert!(model.recover(&shown(&[], 0)).unwrap_err().contains("acknowledged"));
    }

    #[test]
    fn a_skipped_write_is_refused() {
        let mut model = model();
        model.staged.push_back(write(1, 0, &[10], 1));
        model.staged.push_back(write(2, 1, &[20], 2));
        assert!(model.recover(&shown(&[(1, 20)], 2)).is_err());
    }

    #[test]
    fn an_older_version_of_the_same_checksum_is_refused() {
        let mut model = model();
        for token in [1, 2] {
            model.staged.push_back(write(token, 0, &[10], token));
            model.durable(token).unwrap();
        }
        model.staged.push_back(write(3, 0, &[10], 3));
        let of = |token: u64, sequence| shown_of(&[(0, 10, Some(token))], sequence);
        assert_eq!(model.clone().recover(&of(2, 2)), Ok(0));
        assert_eq!(model.clone().recover(&of(3, 3)), Ok(1));
        assert!(model.clone().recover(&of(1, 2)).is_err(), "what was overwritten is back");
        assert!(model.clone().recover(&of(2, 3)).is_err(), "the log tells of a write that is not there");
    }

    #[test]
    fn a_push_is_in_no_log_and_says_when_its_blocks_changed() {
        let mut model = model();
        model.staged.push_back(write(1, 0, &[10], 1));
        model.durable(1).unwrap();
        let effect = Effect::Push(vec![20, 21]);
        model.staged.push_back(Change { sequence: Sequence(9), effect, batch: None, ..write(2, 0, &[], 1) });
        assert_eq!(model.recover(&shown(&[(0, 20), (1, 21)], 1)), Ok(1));
        assert_eq!([0, 1].map(|block| model.blocks[0][block].changed), [Sequence(9), Sequence(4)]);
    }

    #[test]
    fn who_joins_has_missed_what_came_behind_its_log_until_it_is_told_otherwise() {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let keys = (0..2).map(|object| ObjectKey { pg, layer: LayerId(1), object }).collect();
        let mut model = Model::new(vec![pg], keys, 1024);
        let change = |token, sequence, effect| Change {
            sequence: Sequence(sequence),
            effect,
            batch: None,
            ..write(token, 0, &[], 1)
        };
        let expected = [
            (Effect::Write(vec![10]), 5, [None, None]),
            (Effect::Join(20), 26, [Some(Sequence(5)); 2]),
            (Effect::Write(vec![20]), 27, [Some(Sequence(5)); 2]),
            (Effect::Reached, 28, [None, Some(Sequence(5))]),
            (Effect::Join(3), 31, [Some(Sequence(27)), Some(Sequence(5))]),
            (Effect::Whole, 32, [None, None]),
        ];
        for (token, (effect, sequence, missed_behind)) in (1..).zip(expected) {
            model.staged.push_back(change(token, sequence, effect));
            model.durable(token).unwrap();
            assert_eq!(model.missed_behind, missed_behind, "after operation {token}");
        }
        assert_eq!(model.logs[0].position(), Some((Epoch(1), Sequence(31))));
        assert_eq!((model.logs[0].begins, model.logs[0].entries.len()), (Sequence(32), 1));
    }

    #[test]
    fn half_a_batch_is_refused() {
        let mut model = model();
        model.staged.push_back(write(1, 0, &[10], 1));
        model.staged.push_back(write(2, 1, &[20], 1));
        assert!(model.recover(&shown(&[(0, 10)], 1)).unwrap_err().contains("half of a batch"));
    }

    #[test]
    fn reports_out_of_order_are_refused() {
        let mut model = model();
        model.staged.push_back(write(1, 0, &[10], 1));
        model.staged.push_back(write(2, 1, &[20], 1));
        assert!(model.durable(2).is_err());
    }
}
