//! Looks now and then whether the drive under a running OSD still is the one that it was started on: its superblocks, which
//! only a start would read, and its last block, which is not there any more when a file was cut short.

use base::{BLOCK_BYTES, Buffer, Instant};
use ring::{FileId, Reactor};
use std::io::{Error, ErrorKind};
use std::time::Duration;
use store::Store;
use store::layout::SUPERBLOCK_OFFSETS;

/// How often it is looked. More often than a drive may be silent: at rest these reads alone tell whether it does anything.
const EVERY: Duration = Duration::from_secs(5);
/// The same where something is wrong look after look: each has a whole checkpoint written.
const EVERY_MAX: Duration = Duration::from_secs(3600);
/// Tokens of these reads; those of the OSD are smaller.
const TOKEN: u64 = 0xff << 56;

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing wrong.
    Sound,
    /// Not a superblock of this OSD, where there must be one.
    Overwritten {
        /// In bytes from the drive's start.
        offset: u64,
    },
    /// The drive ends earlier than it did.
    Truncated {
        /// How many bytes it had.
        bytes: u64,
    },
}

/// See the module's documentation.
#[derive(Debug)]
pub struct DriveWatch {
    bytes: u64,
    next_at: Instant,
    pause: Duration,
    /// The newest look found something overwritten.
    was_wrong: bool,
    /// Memory for each place, while nothing is read into it.
    buffers: [Option<Buffer>; 3],
}

impl DriveWatch {
    /// Whether a token is that of a read of a look.
    #[must_use]
    pub fn is_own(token: u64) -> bool {
        token & TOKEN == TOKEN
    }

    /// For a drive of so many bytes.
    #[must_use]
    pub fn new(bytes: u64, now: Instant) -> DriveWatch {
        let buffers = [(); 3].map(|()| Some(Buffer::new(BLOCK_BYTES)));
        DriveWatch { bytes, next_at: now + EVERY, pause: EVERY, was_wrong: false, buffers }
    }

    /// Where to look: the superblocks, and the end.
    fn places(&self) -> [u64; 3] {
        let [first, second] = SUPERBLOCK_OFFSETS;
        [first, second, self.bytes - BLOCK_BYTES as u64]
    }

    /// Begins a look, if one is due and the last one ended. Answers how many reads that is.
    pub fn begin(&mut self, now: Instant, store: &Store, reactor: &mut Reactor, file: FileId) -> usize {
        let is_over = self.buffers.iter().all(Option::is_some);
        if now < self.next_at || !is_over || !store.superblocks_are_at_rest() || store.failure().is_some() {
            return 0;
        }
        self.pause = if self.was_wrong { (self.pause * 2).min(EVERY_MAX) } else { EVERY };
        self.was_wrong = false;
        self.next_at = now + self.pause;
        let places = self.places();
        for (index, offset) in (0u64..).zip(places) {
            if let Some(buffer) = self.buffers[index as usize].take() {
                reactor.read(file, TOKEN | index, offset, buffer, BLOCK_BYTES);
            }
        }
        places.len()
    }

    /// A place was read.
    pub fn was_read(
        &mut self,
        token: u64,
        buffer: Option<Buffer>,
        result: &Result<(), Error>,
        store: &Store,
    ) -> Finding {
        let index = (token & !TOKEN) as usize;
        let offset = self.places()[index];
        let buffer = buffer.expect("a read gives its buffer back");
        let is_superblock = index < SUPERBLOCK_OFFSETS.len();
        let finding = match result {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Finding::Truncated { bytes: self.bytes }
            }
            // One that was written meanwhile may have been read half; the next look tells.
            _ if !is_superblock || !store.superblocks_are_at_rest() => Finding::Sound,
            Ok(()) if store.is_own_superblock(buffer.bytes()) => Finding::Sound,
            _ => Finding::Overwritten { offset },
        };
        self.was_wrong |= matches!(finding, Finding::Overwritten { .. });
        self.buffers[index] = Some(buffer);
        finding
    }
}
