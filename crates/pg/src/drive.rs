//! What an OSD does when the drive under it is not what it was: cut short, or overwritten by somebody else.
//!
//! Blocks of data that do not verify are mended one by one where they are met ([`crate::mend`]). What only a start reads
//! is met by nobody until it is too late, so it is looked at now and then; what is wrong is written anew from memory, which
//! has all of it.

use crate::io::Io;
use crate::osd::Osd;
use base::Instant;
use std::time::Duration;

/// How long after one renewal of the checkpoint damage brings the next: it writes the whole index.
const RENEWAL_PAUSE: Duration = Duration::from_secs(600);

/// When damage last had the checkpoint renewed, and how much was known then.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    found: u64,
    after: Instant,
}

impl Osd {
    /// Whoever drives this OSD finds that its drive cannot be used any more: it takes part in nothing from now on, and the
    /// others go on without it.
    pub fn fail_drive(&mut self, now: Instant, reason: &str, io: &mut impl Io) {
        self.now = now;
        if self.store.failure().is_some() {
            return;
        }
        self.note(format!("the drive failed: {reason}"));
        self.fail_store(reason, io);
        self.next_tick = now;
    }

    /// The place of a superblock holds something else: what a start needs is written anew.
    pub fn renew_superblocks(&mut self, offset: u64) {
        self.note(format!(
            "the superblock at offset {offset} was overwritten or cannot be read; all that a start needs is written anew"
        ));
        self.store.renew_checkpoint();
    }

    /// A drive that gave back other bytes than were written may have done so to what only a start reads.
    pub(crate) fn renew_after_damage(&mut self) {
        if self.damage.found > self.renewals.found && self.now >= self.renewals.after {
            self.renewals = Renewals { found: self.damage.found, after: self.now + RENEWAL_PAUSE };
            self.store.renew_checkpoint();
        }
    }
}
