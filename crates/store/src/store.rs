//! A store at work: what happens at the end of a turn, and when the drive answered.

use crate::actions::{Action, Identity, Sabotage};
use crate::batch::{known_header, records};
use crate::checkpoint::Checkpoint;
use crate::cleaner::Cleaner;
use crate::contents::Contents;
use crate::device::DeviceError;
use crate::in_flight::{FLUSH_SUPERBLOCK, TOKEN_SUPERBLOCK};
use crate::layout::RecordKind;
use crate::log::{Log, Turn};
use crate::streams::{COLD, HOT};
use base::{BLOCK_BYTES, Buffer};

/// How far a store has come with stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    No,
    Begun,
    Done,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct Store {
    pub(crate) identity: Identity,
    pub(crate) contents: Contents,
    pub(crate) log: Log,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) cleaner: Cleaner,
    pub(crate) shutdown: Shutdown,
    pub(crate) failure: Option<String>,
    /// Batches with clients' records that opening replayed.
    pub(crate) replayed_batches: u64,
    pub(crate) unreadable_blocks: u64,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Store {
    /// The memory of batches, to be registered before work starts.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.log.slots.buffers_mut()
    }

    /// Why the store does not work any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The end of a turn: seals the open batch, unless enough are under way, and lets cleaning and
    /// checkpoints go on.
    pub fn flush(&mut self, actions: &mut Vec<Action>) {
        if self.failure.is_some() {
            return;
        }
        let segments = &mut self.contents.segments;
        if self.log.foreground_goes_now()
            && let Some(sealed) = self.log.seal(HOT, segments, actions)
        {
            self.cleaner.grant(sealed.blocks);
        }
        self.log.replenish(segments, actions);
        if self.checkpoint.is_idle() && self.log.cold_may_go() {
            // What cleaning moved when the stream had nowhere to go.
            self.log.seal(COLD, segments, actions);
        }
        self.advance_checkpoint(actions);
        self.advance_cleaning(actions);
        // Cleaning may just have found that space waits for a checkpoint.
        self.advance_checkpoint(actions);
        if self.failure.is_none() {
            self.log.in_flight.issue_flush(actions);
        }
    }

    /// A write ended.
    pub fn handle_written(&mut self, token: u32, result: Result<(), DeviceError>, actions: &mut Vec<Action>) {
        if let Err(error) = result {
            return self.fail(&error.to_string(), actions);
        }
        if self.failure.is_some() {
            return;
        }
        if token & TOKEN_SUPERBLOCK != 0 {
            return self.checkpoint.superblock_was_written(&mut self.contents.segments, actions);
        }
        self.log.in_flight.was_written(token);
        self.settle(actions);
    }

    /// A flush ended.
    pub fn handle_flushed(&mut self, token: u32, result: Result<(), DeviceError>, actions: &mut Vec<Action>) {
        if let Err(error) = result {
            return self.fail(&error.to_string(), actions);
        }
        if self.failure.is_some() {
            return;
        }
        if token == FLUSH_SUPERBLOCK {
            return self.checkpoint.superblock_was_flushed(&mut self.contents.segments, actions);
        }
        self.log.in_flight.were_flushed();
        self.settle(actions);
    }

    /// A read ended: cleaning goes on.
    pub fn handle_read(&mut self, token: u32, data: Result<&[u8], DeviceError>, actions: &mut Vec<Action>) {
        assert_eq!(token, 0, "cleaning has one read under way");
        let mut turn = Turn { contents: &mut self.contents, log: &mut self.log, actions };
        let Some(victim) = self.cleaner.read_ended(&mut turn) else { return };
        if self.failure.is_none() {
            self.cleaner.take_piece(victim, data, &mut turn);
            self.advance_cleaning(actions);
        }
    }

    /// Some time has passed: reads of the store's own that failed may be tried again. To be called now and then, some times a
    /// second while there is work; of a drive that fails all reads, one is asked for after each call.
    pub fn retry_reads(&mut self) {
        self.cleaner.retry_reads(self.log.is_starving, &mut self.contents.segments);
    }

    /// Writes everything anew that a start needs, superblocks and unchanged pages too: what is on the drive may not be
    /// what this store wrote there, and the index in memory tells it all.
    pub fn renew_checkpoint(&mut self) {
        self.checkpoint.renew();
    }

    /// The same where the superblock at that offset of the drive, in bytes, was overwritten, or cannot be read.
    pub fn renew_superblock(&mut self, offset: u64) {
        self.checkpoint.renew_superblock(offset);
    }

    /// Begins to stop: everything staged becomes durable, then a checkpoint makes the next start quick.
    /// Nothing may be staged any more. [`Action::ShutdownDone`] tells the end.
    pub fn begin_shutdown(&mut self, actions: &mut Vec<Action>) {
        if self.shutdown == Shutdown::No {
            self.shutdown = Shutdown::Begun;
        }
        if self.failure.is_some() {
            actions.push(Action::ShutdownDone);
        }
        self.flush(actions);
    }

    /// The drive does not do what it is told: nothing more is promised. Only the first reason counts.
    pub fn fail(&mut self, reason: &str, actions: &mut Vec<Action>) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(reason.to_owned());
        let lost = |token| Action::Lost { token, reason: reason.to_owned() };
        actions.extend(self.log.give_up().map(lost));
        if self.shutdown != Shutdown::No {
            actions.push(Action::ShutdownDone);
        }
    }

    fn advance_checkpoint(&mut self, actions: &mut Vec<Action>) {
        let is_last = self.shutdown == Shutdown::Begun && self.log.is_quiet();
        if is_last && self.checkpoint.is_idle() && self.checkpoint.is_all_of(self.log.client_sequence) {
            self.shutdown = Shutdown::Done;
            actions.push(Action::ShutdownDone);
        }
        if self.shutdown != Shutdown::Done {
            let mut turn = Turn { contents: &mut self.contents, log: &mut self.log, actions };
            let advanced = self.checkpoint.advance(is_last, &mut turn);
            if let Err(reason) = advanced {
                self.fail(&reason, actions);
            }
        }
    }

    fn advance_cleaning(&mut self, actions: &mut Vec<Action>) {
        let is_needed = self.shutdown == Shutdown::No || self.checkpoint.waits_for_room();
        if is_needed && self.failure.is_none() {
            let mut turn = Turn { contents: &mut self.contents, log: &mut self.log, actions };
            self.cleaner.advance(&mut self.checkpoint, &mut turn);
        }
    }

    /// Takes every batch that became durable into the index, in order, and tells of it.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        while let Some((batch, buffer)) = self.log.next_durable(&mut self.contents.segments) {
            let block = &buffer.bytes()[..BLOCK_BYTES];
            let header = known_header(block);
            self.contents.bring(records(block, &header));
            for view in records(block, &header) {
                // As a start does. Cleaning goes by headers from before a split; nothing else is staged by a former name.
                let key = self.contents.logs.home_of(&view);
                if let Some(page) = self.contents.apply(&view, key, batch.data_location) {
                    self.checkpoint.page_was_replaced(page);
                }
                if view.kind == RecordKind::Split && self.sabotage != Some(Sabotage::KeepOldNames) {
                    self.checkpoint.rename(|key| self.contents.logs.home(key));
                }
            }
            self.contents.segments.try_free(batch.segment);
            self.log.in_flight.tell(batch.tokens, actions);
        }
        self.checkpoint.became_durable(self.log.durable.sequence.get(), actions);
        self.log.in_flight.issue_flush(actions);
    }
}

#[cfg(test)]
mod tests;
