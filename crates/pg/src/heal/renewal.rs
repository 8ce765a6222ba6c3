//! What an OSD does when the drive under it is not what it was: cut short, or overwritten by somebody else.
//!
//! Blocks of data that do not verify are mended one by one where they are met ([`super::mend`]). What only a start reads
//! is met by nobody until it is too late, so it is looked at now and then; what is wrong is written anew from memory, which
//! has all of it.

use crate::context::Context;
use crate::disk::Disk;
use crate::io::Io;
use crate::journal::Journal;
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

impl Renewals {
    /// A drive that gave back other bytes than were written may have done so to what only a start reads.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        let found = cx.damage.counts.found;
        if found > self.found && cx.now >= self.after {
            *self = Renewals { found, after: cx.now + RENEWAL_PAUSE };
            cx.disk.store.renew_checkpoint();
        }
    }
}

/// The place of a superblock holds something else: what a start needs is written anew.
pub(crate) fn renew_superblocks(journal: &mut Journal, disk: &mut Disk, offset: u64) {
    journal.note(format!(
        "the superblock at offset {offset} was overwritten or cannot be read; all that a start needs is written anew"
    ));
    disk.store.renew_checkpoint();
}
