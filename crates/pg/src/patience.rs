//! Whether a drive does what it is asked, or only seems to: one that hangs gives no error.

use crate::io::reads;
use base::Instant;
use std::time::Duration;

/// A drive that does nothing of what it was asked for so long, or writes nothing, counts as lost until it does. One that is only
/// slow, or that the kernel resets, is back sooner.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The same of one that writes and reads nothing. What it was asked to read may be bad, and the kernel tries again for half a
/// minute.
const READ_SILENCE_MAX: Duration = Duration::from_secs(40);

/// What is known of reads, or of writes and flushes.
#[derive(Debug, Default)]
struct Kind {
    /// Operations that it was asked for and that have not ended.
    outstanding: u64,
    /// Those that ended, and how many had when this was looked at last.
    ended: u64,
    seen: u64,
    /// Since when none has ended though something was outstanding, as far as was looked.
    since: Instant,
    /// When one had ended last.
    moved: Instant,
}

impl Kind {
    fn look(&mut self, now: Instant) {
        let has_moved = self.ended != self.seen;
        if has_moved {
            (self.seen, self.moved) = (self.ended, now);
        }
        if has_moved || self.outstanding == 0 {
            self.since = now;
        }
    }

    fn has_ended(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.ended += 1;
    }

    /// For how long nothing has come of what it was asked.
    fn stuck_for(&self, now: Instant) -> Duration {
        let is_stuck = self.outstanding > 0 && self.ended == self.seen;
        if is_stuck { now.since(self.since) } else { Duration::ZERO }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    reads: Kind,
    changes: Kind,
}

impl Patience {
    /// What a token is of. A drive that reads on may be stuck with what it is to write: in a full pool behind it, or a frozen file
    /// system.
    fn of(&mut self, token: u64) -> &mut Kind {
        if reads(token) { &mut self.reads } else { &mut self.changes }
    }

    /// The drive is asked for something.
    pub(crate) fn asks(&mut self, token: u64) {
        self.of(token).outstanding += 1;
    }

    /// The drive is asked to read something that this machine does not know of.
    pub(crate) fn asks_to_read(&mut self) {
        self.reads.outstanding += 1;
    }

    /// That has ended.
    pub(crate) fn has_read(&mut self) {
        self.reads.has_ended();
    }

    /// Something that the drive was asked for has ended.
    pub(crate) fn has_answered(&mut self, token: u64) {
        self.of(token).has_ended();
    }

    /// Looks at whether the drive does anything; to be done several times a second.
    pub(crate) fn look(&mut self, now: Instant) {
        self.reads.look(now);
        self.changes.look(now);
    }

    /// Whether the drive has been doing nothing of what it was asked for long, or is stuck with one kind of it.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        let reads = self.reads.stuck_for(now);
        let writes = now.since(self.changes.moved) < SILENCE_MAX;
        let reads_max = if writes { READ_SILENCE_MAX } else { SILENCE_MAX };
        reads >= reads_max || self.changes.stuck_for(now) >= SILENCE_MAX
    }
}
