//! One turn of a life: the drive completes something, the store asks for something, and both are looked at.

use super::{Life, ROUNDS_MAX, Reader};
use crate::contents::Place;
use crate::drive::Completion;
use crate::inspect::{self, View};
use crate::plan::LOG_OFFSET_BYTES;
use base::{BLOCK_BYTES, Buffer, OBJECT_BLOCKS, Sequence, crc32c};
use store::layout::SUPERBLOCK_OFFSETS;
use store::{Action, BatchId, Expected, Store};

/// Writes to the media after a block's own that prove it durable to any later replay: more than can be
/// in flight together with the writes of two checkpoints.
const WRITES_UNTIL_PROVEN: u64 = 16;

impl Life {
    pub(super) fn work(&mut self, store: &mut Store, turns: u64) -> Result<(), String> {
        for _ in 0..turns {
            self.turn += 1;
            if !self.random.percent(self.plan.slow_percent) {
                let completions = self.random.below(self.drive.in_flight() as u64 + 1);
                for _ in 0..completions {
                    self.complete_one(store)?;
                }
            }
            self.let_go(store, self.turn)?;
            let operations = self.random.below(self.plan.operations_per_turn_max + 1);
            for _ in 0..operations {
                if self.cut || !self.stage_something(store)? {
                    break;
                }
            }
            if self.cut {
                return Ok(());
            }
            if self.random.percent(90) {
                self.end_turn(store)?;
            }
            if self.cut {
                return Ok(());
            }
            self.look_around(store)?;
        }
        Ok(())
    }

    pub(super) fn end_turn(&mut self, store: &mut Store) -> Result<(), String> {
        store.flush(&mut self.actions);
        self.perform()
    }

    /// One device operation less until the end.
    fn moment(&mut self) {
        if let Some(moments) = &mut self.moments {
            *moments = moments.saturating_sub(1);
            self.cut = *moments == 0;
        }
    }

    /// A start finds this checkpoint: in half of the cases that is soon, before what the store is told next hides what it finds.
    fn checkpoint_is_in_force(&mut self) {
        if let (Some(random), Some(moments)) = (&mut self.lags, &mut self.moments)
            && random.percent(50)
        {
            *moments = (*moments).min(random.between(1, 8));
        }
    }

    /// Does what the store asked for, up to the end if it comes in between.
    pub(super) fn perform(&mut self) -> Result<(), String> {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            if self.cut {
                break;
            }
            self.perform_one(action)?;
        }
        self.actions = actions;
        Ok(())
    }

    fn perform_one(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Write { token, offset, buffer, length } => {
                let content = crc32c(&buffer.bytes()[..length]);
                self.trace.note("write", &[u64::from(token), offset, length as u64, u64::from(content)]);
                self.check_place(offset, length)?;
                if self.plan.has_many_objects && offset == SUPERBLOCK_OFFSETS[1] {
                    self.checkpoint_is_in_force();
                }
                self.drive.submit_write(token, offset, buffer, length)?;
                self.moment();
            }
            Action::Flush { token } => {
                self.trace.note("flush", &[u64::from(token)]);
                self.drive.submit_flush(token);
                self.moment();
            }
            Action::Read { token, offset, length } => {
                self.trace.note("read", &[u64::from(token), offset, length as u64]);
                self.drive.submit_read(token, offset, length)?;
                self.moment();
            }
            Action::Sealed { batch, buffer } => {
                self.trace.note("sealed", &[u64::from(batch.0)]);
                self.sealed(batch, buffer)?;
            }
            Action::Durable { token } => {
                self.trace.note("durable", &[token]);
                self.model.durable(token)?;
            }
            Action::Lost { token, reason } => {
                self.trace.note("lost", &[token]);
                match &mut self.lost {
                    Some(lost) => lost.push(token),
                    None => return Err(format!("operation {token} was lost on a sound drive: {reason}")),
                }
            }
            Action::ShutdownDone => {
                self.trace.note("shutdown done", &[]);
                self.shutdown_done = true;
            }
        }
        Ok(())
    }

    /// A write belongs to one superblock copy or into one segment.
    fn check_place(&self, offset: u64, length: usize) -> Result<(), String> {
        let end = offset + length as u64;
        let sound = if offset < LOG_OFFSET_BYTES {
            (offset == 0 || offset == 1 << 20) && length == BLOCK_BYTES
        } else {
            let segment = |place: u64| (place - LOG_OFFSET_BYTES) / u64::from(self.plan.segment_bytes);
            segment(offset) == segment(end - 1)
        };
        if sound {
            return Ok(());
        }
        Err(format!("a write of {length} bytes at {offset} is in no single segment and no superblock copy"))
    }

    /// A batch's data is final: it must be what was staged, as replicas are sent it from there.
    fn sealed(&mut self, batch: BatchId, buffer: Buffer) -> Result<(), String> {
        *self.seals.entry(batch).or_default() += 1;
        for staged in self.unsealed.extract_if(.., |staged| staged.batch == batch) {
            let data = &buffer.bytes()[staged.offset..];
            for (bytes, block) in data.chunks_exact(BLOCK_BYTES).zip(staged.blocks.clone()) {
                let place = Place { volume: staged.object as u64, block };
                if !self.contents.is_by(staged.token, place, bytes) {
                    return Err(format!("{batch:?} is sealed, and its data is not what was staged"));
                }
            }
        }
        if self.random.percent(20) {
            self.held.push((self.turn + self.random.below(4), buffer));
        }
        Ok(())
    }

    pub(super) fn complete_one(&mut self, store: &mut Store) -> Result<(), String> {
        if self.cut {
            return Ok(());
        }
        let Some(completion) = self.drive.complete_any() else { return Ok(()) };
        self.moment();
        if self.cut {
            return Ok(());
        }
        let (what, token) = match completion {
            Completion::Written(token) => ("written", token),
            Completion::Flushed(token) => ("flushed", token),
            Completion::Read(token, ..) => ("read done", token),
        };
        self.trace.note(what, &[u64::from(token)]);
        completion.tell(store, Ok(()), &mut self.actions);
        self.perform()
    }

    /// Completes everything and ends the turn. False if the end came in between.
    pub(super) fn round(&mut self, store: &mut Store) -> Result<bool, String> {
        while self.drive.in_flight() > 0 && !self.cut {
            self.complete_one(store)?;
        }
        if !self.cut {
            self.end_turn(store)?;
        }
        Ok(!self.cut)
    }

    /// Completes everything until nothing is left to do.
    pub(super) fn settle(&mut self, store: &mut Store) -> Result<(), String> {
        self.let_go(store, u64::MAX)?;
        for _ in 0..ROUNDS_MAX {
            if !self.round(store)? {
                return Ok(());
            }
            if self.drive.in_flight() == 0 {
                return match self.model.staged.len() {
                    0 => Ok(()),
                    staged => Err(format!("the store rests, but {staged} operations are not durable")),
                };
            }
        }
        Err(format!("the store did not come to rest in {ROUNDS_MAX} rounds, {:?}", store.statistics()))
    }

    /// Ends the readers and senders whose turn it is; what a reader pinned must not have changed.
    pub(super) fn let_go(&mut self, store: &mut Store, turn: u64) -> Result<(), String> {
        self.held.retain(|(until, _)| *until > turn);
        for reader in self.readers.extract_if(.., |reader| reader.until_turn <= turn) {
            for (block, content) in (reader.location.0..).zip(&reader.contents) {
                if self.drive.content(block) != *content {
                    return Err(format!("block {block} of the drive changed while a reader had it pinned"));
                }
            }
            store.unpin(reader.location);
        }
        Ok(())
    }

    /// Reads, checks, and lets bits rot, each now and then.
    fn look_around(&mut self, store: &mut Store) -> Result<(), String> {
        if self.random.percent(10) {
            self.begin_read(store);
        }
        if self.random.percent(15) {
            let object = self.random.index(self.plan.objects);
            inspect::check_object(store, &self.model, object, self.media())?;
        }
        if self.random.percent(2) {
            self.check_everything(store)?;
        }
        if self.plan.rot && self.random.percent(5) {
            self.let_rot(store)?;
        }
        if self.random.one_in(150) {
            self.settle(store)?;
            if !self.cut {
                self.check_fresh_replay(store)?;
            }
        }
        Ok(())
    }

    fn begin_read(&mut self, store: &mut Store) {
        let key = self.model.keys[self.random.index(self.plan.objects)];
        let (first, count) = self.draw_range(16);
        let (mut extents, mut checksums) = (Vec::new(), Vec::new());
        store.lookup(&key, first, count, &mut extents, &mut checksums);
        let until_turn = self.turn + self.random.between(1, 30);
        for extent in extents {
            let Some(location) = extent.on_drive() else { continue };
            store.pin(location);
            let blocks = location.0..location.0 + u32::from(extent.block_count);
            let contents = blocks.map(|block| self.drive.content(block)).collect();
            self.readers.push(Reader { location, contents, until_turn });
        }
    }

    /// Rots one block that no reader looks at and that is certainly durable.
    fn let_rot(&mut self, store: &Store) -> Result<(), String> {
        if self.drive.durable_writes() - self.durable_at_open < WRITES_UNTIL_PROVEN {
            return Ok(());
        }
        let object = self.random.index(self.plan.objects);
        let block = self.random.below(self.range_blocks) as usize;
        let view = View::of(store, &self.model, self.media())?;
        let place = view.locations[object][block].filter(|location| *location != inspect::HOLE);
        let Some(location) = place else { return Ok(()) };
        let pinned = self.readers.iter().any(|reader| {
            (reader.location.0..reader.location.0 + reader.contents.len() as u32).contains(&location)
        });
        if !pinned && self.drive.durable_writes_after(location) >= WRITES_UNTIL_PROVEN {
            self.trace.note("rot", &[object as u64, block as u64, u64::from(location)]);
            self.drive.rot(location);
            self.rotten.insert((object, block), self.model.blocks[object][block].token);
        }
        Ok(())
    }

    pub(super) fn check_everything(&mut self, store: &Store) -> Result<(), String> {
        for object in 0..self.plan.objects {
            inspect::check_object(store, &self.model, object, self.media())?;
            let is_held = store.object_held_through(&self.model.keys[object]) > Sequence(0);
            self.report.held += u64::from(is_held && self.model.missed_behind[object].is_some());
        }
        inspect::check_logs(store, &self.model)?;
        store.verify().map_err(|wrong| format!("the store's own accounting is wrong: {wrong}"))
    }

    /// A store opened from what is on the drive must be the same as this one, place by place.
    fn check_fresh_replay(&mut self, store: &Store) -> Result<(), String> {
        self.trace.note("fresh replay", &[]);
        let mut copy = self.drive.copy();
        let expected = Expected { cluster: None, osd_uuid: None };
        let fresh = Store::open(&mut copy, &expected, self.options.clone())
            .map_err(|error| format!("cannot open a copy of the drive: {error}"))?;
        fresh.verify().map_err(|wrong| format!("the accounting of a fresh replay is wrong: {wrong}"))?;
        let (here, there) =
            (View::of(store, &self.model, self.media())?, View::of(&fresh, &self.model, self.media())?);
        for (object, key) in self.model.keys.iter().enumerate() {
            for block in 0..OBJECT_BLOCKS {
                let place = |view: &View| (view.locations[object][block], view.shown.blocks[object][block]);
                if place(&here) != place(&there) {
                    return Err(format!(
                        "block {block} of {key} is at {:x?} in the index and at {:x?} in that of a fresh replay",
                        place(&here),
                        place(&there)
                    ));
                }
            }
        }
        inspect::check_logs(&fresh, &self.model)
    }
}
