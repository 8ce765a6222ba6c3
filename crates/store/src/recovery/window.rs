//! Reading a drive of which a block may be bad.
//!
//! More is read at once than is wanted. Where that fails, what is wanted is read alone: a bad block keeps nothing else from
//! being read.
//!
//! # A bad block, and a drive that is away
//! Power that goes while a sector is written may leave it bad, at the end of a log more often than anywhere else, and whoever
//! waits for it to become readable waits for ever. But the same error comes from a drive that is away for a moment, and what
//! lies there then may have been acknowledged: no log may end for that. The two are told apart by this, and by nothing else: a
//! block is *bad* if it cannot be read, then one before it and one behind it can be, both within [`NEIGHBOURS`], and then it
//! still cannot; and that [`ROUNDS`] times in a row.
//! - A drive that is away gives nothing. If that was why the block could not be read, it was over when the neighbours were read,
//!   and the block can be read behind them. If it begins later, it was not why. So being away once, from whenever to whenever,
//!   makes no block bad.
//! - A part of a drive that is away, as one of several that are striped or lie in a row, has more blocks: on one side at least
//!   there is no neighbour.
//!
//! What cannot be read and is not bad ends the opening with the drive's error: nothing was changed, and it can be tried again.

use crate::device::{Device, DeviceError};
use base::{BLOCK_BYTES, Buffer};
use std::collections::BTreeSet;
use std::ops::Range;

/// How far from a bad block one that can be read may be, in blocks: what goes bad at once is a sector or a page of flash, and
/// stripes are larger.
const NEIGHBOURS: u32 = 4;
/// How often it is tried, for a drive that comes and goes. Some drives take seconds for each.
const ROUNDS: u32 = 3;

/// Whether a block lies behind the last one of a device.
fn is_beyond(device: &impl Device, location: u32) -> bool {
    u64::from(location) >= device.bytes() / BLOCK_BYTES as u64
}

/// Reads blocks of a drive through a window.
pub(super) struct Window {
    buffer: Buffer,
    start: u32,
    blocks: u32,
    /// Where not everything can be read: no more is read there than is wanted, for each failure may take seconds.
    spotty: Range<u32>,
}

impl Window {
    pub(super) fn new(bytes: usize) -> Window {
        Window { buffer: Buffer::new(bytes), start: 0, blocks: 0, spotty: 0..0 }
    }

    /// Its size in bytes.
    pub(super) fn size(&self) -> usize {
        self.buffer.size()
    }

    /// `count` blocks from `location`, at most a window's.
    ///
    /// # Errors
    /// When they cannot be read, not even alone.
    pub(super) fn blocks(
        &mut self,
        device: &mut impl Device,
        location: u32,
        count: u32,
    ) -> Result<&[u8], DeviceError> {
        self.fetch(device, location, count)?;
        Ok(self.shown(location, count))
    }

    /// Has the window show `count` blocks from `location`.
    fn fetch(&mut self, device: &mut impl Device, location: u32, count: u32) -> Result<(), DeviceError> {
        if location >= self.start && location + count <= self.start + self.blocks {
            return Ok(());
        }
        let left = (device.bytes() / BLOCK_BYTES as u64).saturating_sub(u64::from(location));
        let ahead = left.min((self.buffer.size() / BLOCK_BYTES) as u64).max(u64::from(count)) as u32;
        if ahead > count && !self.spotty.contains(&location) {
            if self.read(device, location, ahead).is_ok() {
                return Ok(());
            }
            self.spotty = location..location + ahead;
        }
        self.read(device, location, count)
    }

    fn read(&mut self, device: &mut impl Device, location: u32, blocks: u32) -> Result<(), DeviceError> {
        let offset = u64::from(location) * BLOCK_BYTES as u64;
        let memory = self.buffer.bytes_mut().expect("a window has one holder");
        self.blocks = 0;
        device.read(offset, &mut memory[..blocks as usize * BLOCK_BYTES])?;
        (self.start, self.blocks) = (location, blocks);
        Ok(())
    }

    /// What was fetched.
    fn shown(&self, location: u32, count: u32) -> &[u8] {
        let first = (location - self.start) as usize * BLOCK_BYTES;
        &self.buffer.bytes()[first..first + count as usize * BLOCK_BYTES]
    }
}

/// The bad blocks that were met.
pub(super) struct BadBlocks {
    met: BTreeSet<u32>,
    trial: Window,
}

impl BadBlocks {
    pub(super) fn new() -> BadBlocks {
        BadBlocks { met: BTreeSet::new(), trial: Window::new(BLOCK_BYTES) }
    }

    /// A block through a window; `None` if it is bad.
    ///
    /// # Errors
    /// When it cannot be read and is not bad, as far as can be told: the drive is away.
    pub(super) fn block<'a>(
        &mut self,
        window: &'a mut Window,
        device: &mut impl Device,
        location: u32,
    ) -> Result<Option<&'a [u8]>, DeviceError> {
        if self.met.contains(&location) {
            return Ok(None);
        }
        if let Err(error) = window.fetch(device, location, 1) {
            if self.is_bad(device, location, error)? {
                self.met.insert(location);
                return Ok(None);
            }
            window.fetch(device, location, 1)?;
        }
        Ok(Some(window.shown(location, 1)))
    }

    /// Whether a block is bad that could not be read just now; that error, if it cannot be told.
    fn is_bad(
        &mut self,
        device: &mut impl Device,
        location: u32,
        error: DeviceError,
    ) -> Result<bool, DeviceError> {
        for _ in 0..ROUNDS {
            if !self.has_neighbours(device, location) {
                return Err(error);
            }
            if self.can_be_read(device, location) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether blocks on both sides can be read now. Behind the last one of the drive is none.
    fn has_neighbours(&mut self, device: &mut impl Device, location: u32) -> bool {
        let mut behind = location + 1..=location.saturating_add(NEIGHBOURS);
        let mut before = (location.saturating_sub(NEIGHBOURS)..location).rev();
        behind.any(|other| is_beyond(device, other) || self.can_be_read(device, other))
            && before.any(|other| self.can_be_read(device, other))
    }

    fn can_be_read(&mut self, device: &mut impl Device, location: u32) -> bool {
        !self.met.contains(&location) && self.trial.read(device, location, 1).is_ok()
    }
}
