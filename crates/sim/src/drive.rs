//! A drive in memory that behaves as badly as drives are allowed to.
//!
//! A write that completed lies in the drive's cache until a flush that was submitted afterwards
//! completes. A power cut keeps or loses every 512-byte sector of every write that is not yet on the
//! media, each on its own: so writes are lost, torn and reordered. Reads see the newest completed
//! write. A drive without a volatile cache has completed writes on its media, and only the writes in
//! flight are torn.
//!
//! Two faces: the blocking [`Device`] for formatting and opening, and submit and complete for the
//! store at work, completed in whatever order the simulation likes.

use crate::random::Random;
use base::{BLOCK_BYTES, Buffer, SECTOR_BYTES};
use std::collections::BTreeSet;
use std::rc::Rc;
use store::{Action, Device, DeviceError, Store};

/// One block's content, shared between the images; `None` was never written and reads as zeros.
pub type Content = Option<Rc<[u8; BLOCK_BYTES]>>;

/// What was submitted to the drive and is not completed.
#[derive(Debug)]
enum Flying {
    Write {
        token: u32,
        offset: u64,
        buffer: Buffer,
        length: usize,
    },
    /// `covers`: the serial of the newest write that had completed when the flush was submitted.
    Flush {
        token: u32,
        covers: u64,
    },
    Read {
        token: u32,
        offset: u64,
        buffer: Buffer,
        length: usize,
    },
}

impl Flying {
    fn token(&self) -> u32 {
        match self {
            Flying::Write { token, .. } | Flying::Flush { token, .. } | Flying::Read { token, .. } => *token,
        }
    }
}

/// A completed operation, to be told to the store.
#[derive(Debug)]
pub enum Completion {
    /// For `handle_written`.
    Written(u32),
    /// For `handle_flushed`.
    Flushed(u32),
    /// For `handle_read`, with what was read.
    Read(u32, Buffer, usize),
}

impl Completion {
    /// Tells the store, and how it ended.
    pub fn tell(self, store: &mut Store, result: Result<(), DeviceError>, actions: &mut Vec<Action>) {
        match self {
            Completion::Written(token) => store.handle_written(token, result, actions),
            Completion::Flushed(token) => store.handle_flushed(token, result, actions),
            Completion::Read(token, buffer, length) => {
                store.handle_read(token, result.map(|()| &buffer.bytes()[..length]), actions);
            }
        }
    }
}

/// A write that completed and that no flush covers yet.
#[derive(Clone, Debug)]
struct Cached {
    serial: u64,
    first_block: usize,
    contents: Vec<Content>,
}

/// What a power cut or an error leaves of one write.
#[derive(Clone, Copy, Debug)]
enum Remains {
    Nothing,
    Everything,
    /// This many sectors from the start.
    Prefix(u64),
    /// Each sector with this chance in a hundred.
    Sectors(u64),
}

/// The simulated drive. See the module's documentation for its manners.
#[derive(Debug)]
pub struct SimDrive {
    /// What survives a power cut for certain.
    media: Vec<Content>,
    /// What a read sees.
    visible: Vec<Content>,
    cache: Vec<Cached>,
    flying: Vec<Flying>,
    serial: u64,
    volatile_cache: bool,
    /// Blocking operations that still succeed before the power fails.
    fuse: Option<u64>,
    powered: bool,
    random: Random,
    /// For each block, the number of the write into it that completed last; 0 before the first.
    written_by: Vec<u64>,
    /// Every write up to this number is on the media.
    durable_through: u64,
    torn_writes: u64,
    /// Blocks that no [`Device`] reads.
    bad: BTreeSet<u32>,
}

impl SimDrive {
    /// A drive of `bytes`, all zeros.
    ///
    /// # Panics
    /// If `bytes` is no multiple of 4 KiB.
    #[must_use]
    pub fn new(bytes: u64, volatile_cache: bool, random: Random) -> SimDrive {
        assert!(bytes.is_multiple_of(BLOCK_BYTES as u64), "a drive has whole blocks");
        let blocks = bytes as usize / BLOCK_BYTES;
        SimDrive {
            media: vec![None; blocks],
            visible: vec![None; blocks],
            cache: Vec::new(),
            flying: Vec::new(),
            serial: 0,
            volatile_cache,
            fuse: None,
            powered: true,
            random,
            written_by: vec![0; blocks],
            durable_through: 0,
            torn_writes: 0,
            bad: BTreeSet::new(),
        }
    }

    /// A drive with the content that a read of this one sees now, all of it on the media, idle.
    #[must_use]
    pub fn copy(&self) -> SimDrive {
        SimDrive {
            media: self.visible.clone(),
            visible: self.visible.clone(),
            serial: self.serial,
            written_by: self.written_by.clone(),
            durable_through: self.serial,
            bad: self.bad.clone(),
            ..SimDrive::new(0, self.volatile_cache, self.random.clone())
        }
    }

    /// Submits a write.
    ///
    /// # Errors
    /// What is wrong with it: misaligned, out of bounds, or over another write in flight.
    pub fn submit_write(
        &mut self,
        token: u32,
        offset: u64,
        buffer: Buffer,
        length: usize,
    ) -> Result<(), String> {
        self.check_range("write", offset, length)?;
        if length > buffer.size() {
            return Err(format!("write of {length} bytes from a buffer of {}", buffer.size()));
        }
        for flying in &self.flying {
            if let Flying::Write { offset: other, length: other_length, .. } = flying
                && offset < other + *other_length as u64
                && *other < offset + length as u64
            {
                return Err(format!(
                    "write of {length} bytes at {offset} while one of {other_length} bytes at {other} \
                     is in flight"
                ));
            }
        }
        self.flying.push(Flying::Write { token, offset, buffer, length });
        Ok(())
    }

    /// The blocks of the newest writes that have completed, so many of them.
    #[must_use]
    pub fn newest_blocks(&self, writes: u64) -> Vec<u32> {
        let newest = self.written_by.iter().copied().max().unwrap_or_default();
        let is_new = |number: &u64| *number > 0 && *number + writes > newest;
        (0..).zip(&self.written_by).filter(|(_, number)| is_new(number)).map(|(block, _)| block).collect()
    }

    /// Submits a flush. It will cover the writes that have completed by now.
    pub fn submit_flush(&mut self, token: u32) {
        self.flying.push(Flying::Flush { token, covers: self.serial });
    }

    /// Submits a read.
    ///
    /// # Errors
    /// What is wrong with it: misaligned, out of bounds, too long.
    pub fn submit_read(&mut self, token: u32, offset: u64, length: usize) -> Result<(), String> {
        self.submit_read_into(token, offset, Buffer::new(length), length)
    }

    /// Submits a read into the front of a buffer that nobody else holds.
    ///
    /// # Errors
    /// As [`SimDrive::submit_read`].
    pub fn submit_read_into(
        &mut self,
        token: u32,
        offset: u64,
        buffer: Buffer,
        length: usize,
    ) -> Result<(), String> {
        self.check_range("read", offset, length)?;
        if length > 256 << 10 {
            return Err(format!("read of {length} bytes at {offset}, but at most 256 KiB are allowed"));
        }
        self.flying.push(Flying::Read { token, offset, buffer, length });
        Ok(())
    }

    /// How many operations are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// One operation in flight less, whichever chance picks.
    fn take_any(&mut self) -> Option<Flying> {
        let count = self.flying.len();
        (count > 0).then(|| self.flying.swap_remove(self.random.index(count)))
    }

    /// Completes one operation in flight, whichever chance picks; `None` when there is none.
    pub fn complete_any(&mut self) -> Option<Completion> {
        let flying = self.take_any()?;
        Some(self.complete(flying))
    }

    /// The same but for those whose tokens are held back; `None` when there is no other.
    pub fn complete_any_but(&mut self, is_held_back: impl Fn(u32) -> bool) -> Option<Completion> {
        let may_complete = |index: &usize| !is_held_back(self.flying[*index].token());
        let free: Vec<usize> = (0..self.flying.len()).filter(may_complete).collect();
        if free.is_empty() {
            return None;
        }
        let flying = self.flying.swap_remove(free[self.random.index(free.len())]);
        Some(self.complete(flying))
    }

    fn complete(&mut self, flying: Flying) -> Completion {
        match flying {
            Flying::Write { token, offset, buffer, length } => {
                self.write_all(offset, &buffer.bytes()[..length]);
                Completion::Written(token)
            }
            Flying::Flush { token, covers } => {
                self.settle(covers);
                Completion::Flushed(token)
            }
            Flying::Read { token, offset, mut buffer, length } => {
                let bytes = buffer.bytes_mut().expect("a buffer that is being read into has one holder");
                self.read_visible(offset, &mut bytes[..length]);
                Completion::Read(token, buffer, length)
            }
        }
    }

    /// Fails one operation in flight, whichever chance picks. Of a write, anything may have happened.
    pub fn fail_any(&mut self) -> Option<Completion> {
        Some(match self.take_any()? {
            Flying::Write { token, offset, buffer, length } => {
                self.write_partly(offset, &buffer.bytes()[..length]);
                Completion::Written(token)
            }
            Flying::Flush { token, .. } => Completion::Flushed(token),
            Flying::Read { token, buffer, length, .. } => Completion::Read(token, buffer, length),
        })
    }

    /// Fails one write or flush in flight, whichever chance picks; `None` when there is none. Of a write, anything may have
    /// happened, and of what a flush was for: some drives forget what they could not bring to the media.
    pub fn fail_any_change(&mut self) -> Option<Completion> {
        let is_change = |flying: &Flying| !matches!(flying, Flying::Read { .. });
        let changes: Vec<usize> =
            (0..self.flying.len()).filter(|index| is_change(&self.flying[*index])).collect();
        if changes.is_empty() {
            return None;
        }
        let failed = self.flying.swap_remove(changes[self.random.index(changes.len())]);
        Some(match failed {
            Flying::Write { token, offset, buffer, length } => {
                self.write_partly(offset, &buffer.bytes()[..length]);
                Completion::Written(token)
            }
            Flying::Flush { token, .. } => {
                if self.random.percent(50) {
                    self.lose_cache();
                }
                Completion::Flushed(token)
            }
            Flying::Read { .. } => unreachable!("only what changes something was picked"),
        })
    }

    /// The power fails: whatever is not on the media is lost, kept or torn; nothing is in flight.
    pub fn power_cut(&mut self) {
        self.kill();
        self.lose_cache();
        self.powered = false;
    }

    /// Of what completed and is not on the media yet, anything may be there from now on.
    fn lose_cache(&mut self) {
        let cache = std::mem::take(&mut self.cache);
        for write in &cache {
            let remains = self.draw_remains(write.contents.len());
            self.torn_writes += u64::from(matches!(remains, Remains::Prefix(_) | Remains::Sectors(_)));
            let media = &mut self.media[write.first_block..write.first_block + write.contents.len()];
            overlay(media, &write.contents, remains, &mut self.random);
        }
        self.visible.clone_from(&self.media);
        // What is left is on the media, whole or not.
        self.durable_through = self.serial;
    }

    /// The writes in flight, each with its first block and how many it has.
    pub fn flying_writes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.flying.iter().filter_map(|flying| match flying {
            Flying::Write { offset, length, .. } => {
                Some(((*offset / BLOCK_BYTES as u64) as u32, (*length / BLOCK_BYTES) as u32))
            }
            Flying::Flush { .. } | Flying::Read { .. } => None,
        })
    }

    /// What the write in flight to `block` brings.
    #[must_use]
    pub fn flying_bytes(&self, block: u32) -> Option<&[u8]> {
        self.flying.iter().find_map(|flying| match flying {
            Flying::Write { offset, buffer, length, .. }
                if *offset == u64::from(block) * BLOCK_BYTES as u64 =>
            {
                Some(&buffer.bytes()[..*length])
            }
            _ => None,
        })
    }

    /// The write in flight to `from` goes to `to` instead: it will be told as done, and is done elsewhere.
    pub fn misdirect_write(&mut self, from: u32, to: u32) {
        for flying in &mut self.flying {
            if let Flying::Write { offset, .. } = flying
                && *offset == u64::from(from) * BLOCK_BYTES as u64
            {
                *offset = u64::from(to) * BLOCK_BYTES as u64;
            }
        }
    }

    /// How many writes power cuts and failures have torn: of which they left a part.
    #[must_use]
    pub fn torn_writes(&self) -> u64 {
        self.torn_writes
    }

    /// The process is killed, the power stays: writes in flight land or do not, completed ones stay
    /// in the drive's cache, still without being durable.
    pub fn kill(&mut self) {
        while let Some(flying) = self.take_any() {
            if let Flying::Write { offset, buffer, length, .. } = flying {
                self.write_partly(offset, &buffer.bytes()[..length]);
            }
        }
    }

    /// Lets the power fail after `operations` more blocking operations.
    pub fn arm(&mut self, operations: u64) {
        self.fuse = Some(operations);
    }

    /// Switches the power on, and takes any fuse away.
    pub fn power_on(&mut self) {
        self.powered = true;
        self.fuse = None;
    }

    /// Whether the power is on.
    #[must_use]
    pub fn is_powered(&self) -> bool {
        self.powered
    }

    /// The content that a read of `block` sees.
    #[must_use]
    pub fn block(&self, block: u32) -> &[u8; BLOCK_BYTES] {
        static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        self.visible[block as usize].as_deref().unwrap_or(&ZEROS)
    }

    /// The content that a read of `block` sees, to be kept; `None` if nothing was ever written there.
    #[must_use]
    pub fn content(&self, block: u32) -> Option<Rc<[u8; BLOCK_BYTES]>> {
        self.visible[block as usize].clone()
    }

    /// How many writes came to the media for certain after the one that last wrote `block`.
    #[must_use]
    pub fn durable_writes_after(&self, block: u32) -> u64 {
        self.durable_through.saturating_sub(self.written_by[block as usize])
    }

    /// How many writes came to the media for certain, ever.
    #[must_use]
    pub fn durable_writes(&self) -> u64 {
        self.durable_through
    }

    /// Flips bits of `block` on the media: rot, which no operation reports.
    pub fn rot(&mut self, block: u32) {
        let (byte, bit) = (self.random.index(BLOCK_BYTES), self.random.below(8));
        self.change(block, |content| content[byte] ^= 1 << bit);
    }

    /// Gives `block` back what it held before it rotted, unless it was written meanwhile.
    pub fn heal(&mut self, block: u32, rotten: &Content, before: &Content) {
        let block = block as usize;
        let is_rotten = match (&self.visible[block], rotten) {
            (Some(now), Some(rotten)) => Rc::ptr_eq(now, rotten),
            _ => false,
        };
        if is_rotten {
            self.media[block].clone_from(before);
            self.visible[block].clone_from(before);
        }
    }

    /// Whether all that completed is on the media.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.cache.is_empty()
    }

    /// How many blocks it has.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        self.visible.len() as u32
    }

    /// Fills `block` with noise on the media.
    pub fn scramble(&mut self, block: u32) {
        let mut random = self.random.fork();
        self.change(block, |content| content.fill_with(|| random.next_u64() as u8));
    }

    /// From now on `block` is bad: a start cannot read it, until it is written.
    pub fn go_bad(&mut self, block: u32) {
        self.bad.insert(block);
    }

    /// Whether some block is bad.
    #[must_use]
    pub fn has_bad_blocks(&self) -> bool {
        !self.bad.is_empty()
    }

    /// Gives `block` the content of another one, as a write that went astray does.
    pub fn misdirect(&mut self, from: u32, block: u32) {
        let content = *self.block(from);
        self.change(block, |bytes| *bytes = content);
    }

    fn change(&mut self, block: u32, change: impl FnOnce(&mut [u8; BLOCK_BYTES])) {
        let block = block as usize;
        let mut bytes = self.visible[block].as_deref().copied().unwrap_or([0; BLOCK_BYTES]);
        change(&mut bytes);
        let changed = Some(Rc::new(bytes));
        self.media[block].clone_from(&changed);
        self.visible[block] = changed;
    }

    /// Puts what is in the cache onto the media, so that what is done to the media is not undone by that later.
    pub fn write_cache_back(&mut self) {
        self.settle(self.serial);
    }

    /// Cuts the drive's end off, as a truncated file would be.
    pub fn truncate(&mut self, bytes: u64) {
        let blocks = bytes as usize / BLOCK_BYTES;
        self.media.truncate(blocks);
        self.visible.truncate(blocks);
        self.written_by.truncate(blocks);
    }

    fn check_range(&self, what: &str, offset: u64, length: usize) -> Result<(), String> {
        let block = BLOCK_BYTES as u64;
        if length == 0 || !offset.is_multiple_of(block) || !(length as u64).is_multiple_of(block) {
            return Err(format!("{what} of {length} bytes at {offset} is not in whole blocks"));
        }
        let bytes = self.visible.len() as u64 * block;
        if offset.checked_add(length as u64).is_none_or(|end| end > bytes) {
            return Err(format!(
                "{what} of {length} bytes at {offset} ends beyond the drive's {bytes} bytes"
            ));
        }
        Ok(())
    }

    fn read_visible(&self, offset: u64, into: &mut [u8]) {
        let first = offset as usize / BLOCK_BYTES;
        for (index, bytes) in into.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            match &self.visible[first + index] {
                Some(content) => bytes.copy_from_slice(&content[..]),
                None => bytes.fill(0),
            }
        }
    }

    fn write_all(&mut self, offset: u64, data: &[u8]) {
        let contents = data.chunks_exact(BLOCK_BYTES).map(|bytes| Some(shared(bytes))).collect();
        self.accept(offset as usize / BLOCK_BYTES, contents);
    }

    fn write_partly(&mut self, offset: u64, data: &[u8]) {
        let remains = self.draw_remains(data.len() / BLOCK_BYTES);
        self.torn_writes += u64::from(matches!(remains, Remains::Prefix(_) | Remains::Sectors(_)));
        let first_block = offset as usize / BLOCK_BYTES;
        let written: Vec<Content> = data.chunks_exact(BLOCK_BYTES).map(|bytes| Some(shared(bytes))).collect();
        let mut contents = self.visible[first_block..first_block + written.len()].to_vec();
        overlay(&mut contents, &written, remains, &mut self.random);
        self.accept(first_block, contents);
    }

    /// Takes a write into the cache, or onto the media where there is no cache.
    fn accept(&mut self, first_block: usize, contents: Vec<Content>) {
        self.serial += 1;
        let blocks = first_block..first_block + contents.len();
        self.visible[blocks.clone()].clone_from_slice(&contents);
        self.written_by[blocks.clone()].fill(self.serial);
        self.bad.retain(|bad| !blocks.contains(&(*bad as usize)));
        if self.volatile_cache {
            self.cache.push(Cached { serial: self.serial, first_block, contents });
        } else {
            self.media[blocks].clone_from_slice(&contents);
            self.durable_through = self.serial;
        }
    }

    /// Brings every cached write up to `covers` to the media.
    fn settle(&mut self, covers: u64) {
        let settled = self.cache.iter().take_while(|write| write.serial <= covers).count();
        for write in self.cache.drain(..settled) {
            self.media[write.first_block..write.first_block + write.contents.len()]
                .clone_from_slice(&write.contents);
        }
        self.durable_through = self.durable_through.max(covers);
    }

    fn draw_remains(&mut self, blocks: usize) -> Remains {
        let sectors = (blocks * BLOCK_BYTES / SECTOR_BYTES) as u64;
        match self.random.below(8) {
            0..=2 => Remains::Nothing,
            3 | 4 => Remains::Everything,
            5 => Remains::Prefix(self.random.below(sectors)),
            6 => Remains::Sectors(97),
            _ => Remains::Sectors(50),
        }
    }

    /// One blocking operation more. `last` happens to it if the power fails now.
    fn spend(&mut self, last: impl FnOnce(&mut SimDrive)) -> Result<(), DeviceError> {
        if !self.powered {
            return Err(DeviceError("the simulated drive has no power".to_owned()));
        }
        match &mut self.fuse {
            Some(0) => {
                last(self);
                self.power_cut();
                Err(DeviceError("the simulated drive lost its power".to_owned()))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Device for SimDrive {
    fn bytes(&self) -> u64 {
        self.visible.len() as u64 * BLOCK_BYTES as u64
    }

    fn read_ahead_bytes(&self) -> usize {
        // Little: stores are opened very often, and what they read ends within a window more often.
        64 << 10
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.check_range("read", offset, into.len()).map_err(DeviceError)?;
        self.spend(|_| ())?;
        let first = (offset / BLOCK_BYTES as u64) as u32;
        if let Some(bad) = self.bad.range(first..first + (into.len() / BLOCK_BYTES) as u32).next() {
            return Err(DeviceError(format!("block {bad} of the simulated drive is bad")));
        }
        self.read_visible(offset, into);
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check_range("write", offset, data.len()).map_err(DeviceError)?;
        self.spend(|drive| drive.write_partly(offset, data))?;
        self.write_all(offset, data);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.spend(|_| ())?;
        self.settle(self.serial);
        Ok(())
    }
}

fn shared(bytes: &[u8]) -> Rc<[u8; BLOCK_BYTES]> {
    Rc::new(bytes.try_into().expect("a block has 4 KiB"))
}

/// Lays what remains of `written` over `contents`.
fn overlay(contents: &mut [Content], written: &[Content], remains: Remains, random: &mut Random) {
    let sectors_per_block = (BLOCK_BYTES / SECTOR_BYTES) as u64;
    for (index, (below, above)) in contents.iter_mut().zip(written).enumerate() {
        let mut kept = [false; BLOCK_BYTES / SECTOR_BYTES];
        for (sector, kept) in (index as u64 * sectors_per_block..).zip(&mut kept) {
            *kept = match remains {
                Remains::Nothing => false,
                Remains::Everything => true,
                Remains::Prefix(sectors) => sector < sectors,
                Remains::Sectors(percent) => random.percent(percent),
            };
        }
        if kept.iter().all(|&kept| kept) {
            below.clone_from(above);
        } else if kept.iter().any(|&kept| kept) {
            let mut bytes = below.as_deref().copied().unwrap_or([0; BLOCK_BYTES]);
            let above = above.as_deref().copied().unwrap_or([0; BLOCK_BYTES]);
            for (sector, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                bytes[range.clone()].copy_from_slice(&above[range]);
            }
            *below = Some(Rc::new(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer_of(byte: u8, blocks: usize) -> Buffer {
        let mut buffer = Buffer::new(blocks * BLOCK_BYTES);
        buffer.bytes_mut().unwrap().fill(byte);
        buffer
    }

    fn write(drive: &mut SimDrive, offset: u64, byte: u8, blocks: usize) {
        drive.submit_write(0, offset, buffer_of(byte, blocks), blocks * BLOCK_BYTES).unwrap();
        assert!(matches!(drive.complete_any(), Some(Completion::Written(0))));
    }

    #[test]
    fn a_flushed_write_survives_every_power_cut() {
        for seed in 0..50 {
            let mut drive = SimDrive::new(64 << 10, true, Random::new(seed));
            write(&mut drive, 0, 7, 4);
            drive.submit_flush(1);
            drive.complete_any();
            write(&mut drive, 32 << 10, 8, 4);
            drive.power_cut();
            assert!((0..4).all(|block| drive.block(block).iter().all(|&byte| byte == 7)));
        }
    }

    #[test]
    fn an_unflushed_write_is_lost_kept_or_torn_at_sectors() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let mut drive = SimDrive::new(64 << 10, true, Random::new(seed));
            write(&mut drive, 0, 7, 4);
            assert_eq!(drive.block(3)[0], 7, "a read sees the newest write");
            drive.power_cut();
            let sectors: Vec<u8> = (0..4)
                .flat_map(|block| drive.block(block).chunks(SECTOR_BYTES).map(|sector| sector[0]))
                .collect();
            for (block, bytes) in (0..4).map(|block| (block, drive.block(block))) {
                for sector in bytes.chunks(SECTOR_BYTES) {
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "block {block} tore a sector");
                }
            }
            match sectors.iter().filter(|&&byte| byte == 7).count() {
                0 => lost += 1,
                32 => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 20 && kept > 20 && torn > 20, "{lost} lost, {kept} kept, {torn} torn");
    }

    #[test]
    fn a_flush_does_not_cover_a_write_that_completes_after_its_submission() {
        let mut survived = 0;
        for seed in 0..200 {
            let mut drive = SimDrive::new(64 << 10, true, Random::new(seed));
            drive.submit_flush(1);
            drive.submit_write(0, 0, buffer_of(7, 1), BLOCK_BYTES).unwrap();
            while drive.complete_any().is_some() {}
            drive.power_cut();
            survived += u32::from(drive.block(0).iter().all(|&byte| byte == 7));
        }
        assert!((1..150).contains(&survived), "{survived} of 200 survived");
    }

    #[test]
    fn without_a_volatile_cache_completion_is_durability() {
        for seed in 0..50 {
            let mut drive = SimDrive::new(64 << 10, false, Random::new(seed));
            write(&mut drive, 0, 7, 4);
            drive.power_cut();
            assert!((0..4).all(|block| drive.block(block).iter().all(|&byte| byte == 7)));
        }
    }

    #[test]
    fn a_killed_process_leaves_completed_writes_in_the_cache_not_on_the_media() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut drive = SimDrive::new(64 << 10, true, Random::new(seed));
            write(&mut drive, 0, 7, 1);
            drive.kill();
            assert_eq!(drive.block(0)[0], 7);
            drive.power_cut();
            lost += u32::from(drive.block(0)[0] == 0);
        }
        assert!(lost > 10, "only {lost} of 100 were lost");
    }

    #[test]
    fn a_blown_fuse_fails_every_operation_until_the_power_is_back() {
        let mut drive = SimDrive::new(64 << 10, true, Random::new(1));
        let data = buffer_of(7, 1);
        drive.arm(1);
        Device::write(&mut drive, 0, data.bytes()).unwrap();
        assert!(Device::flush(&mut drive).is_err());
        assert!(Device::flush(&mut drive).is_err());
        drive.power_on();
        Device::flush(&mut drive).unwrap();
    }

    #[test]
    fn a_bad_block_fails_every_read_that_it_is_a_part_of_until_it_is_written() {
        let mut drive = SimDrive::new(64 << 10, true, Random::new(1));
        drive.go_bad(3);
        let reads = |drive: &mut SimDrive, first: usize, blocks: usize| {
            Device::read(drive, (first * BLOCK_BYTES) as u64, &mut vec![0; blocks * BLOCK_BYTES]).is_ok()
        };
        let of_each = [(0, 3, true), (0, 4, false), (3, 1, false), (2, 9, false), (4, 9, true)];
        for (first, blocks, succeeds) in of_each {
            for drive in [&mut drive.copy(), &mut drive] {
                assert_eq!(reads(drive, first, blocks), succeeds, "{blocks} from {first}");
            }
        }
        write(&mut drive, 3 * BLOCK_BYTES as u64, 7, 1);
        assert!(reads(&mut drive, 0, 16) && !drive.has_bad_blocks());
    }

    #[test]
    fn what_a_flush_was_for_may_be_there_or_not_when_it_failed() {
        let (mut kept, mut lost) = (0, 0);
        for seed in 0..100 {
            let mut drive = SimDrive::new(64 << 10, true, Random::new(seed));
            write(&mut drive, 0, 7, 1);
            assert!(drive.fail_any_change().is_none(), "nothing is in flight");
            drive.submit_flush(1);
            drive.submit_read(2, 0, BLOCK_BYTES).unwrap();
            assert!(matches!(drive.fail_any_change(), Some(Completion::Flushed(1))));
            assert!(drive.fail_any_change().is_none(), "a read is left");
            let Some(Completion::Read(2, buffer, _)) = drive.complete_any() else {
                panic!("the read is left")
            };
            assert_eq!(buffer.bytes()[..BLOCK_BYTES], *drive.block(0));
            match buffer.bytes()[0] {
                7 => kept += 1,
                _ => lost += 1,
            }
        }
        assert!(kept > 40 && lost > 10, "{kept} kept, {lost} lost");
    }

    #[test]
    fn a_write_that_goes_astray_is_done_elsewhere_and_told_as_done() {
        let mut drive = SimDrive::new(64 << 10, false, Random::new(1));
        write(&mut drive, 0, 3, 2);
        drive.submit_write(5, 0, buffer_of(7, 2), 2 * BLOCK_BYTES).unwrap();
        assert_eq!(drive.flying_writes().collect::<Vec<_>>(), [(0, 2)]);
        assert_eq!(drive.flying_bytes(0).unwrap(), [7; 2 * BLOCK_BYTES]);
        drive.misdirect_write(0, 8);
        assert!(matches!(drive.complete_any(), Some(Completion::Written(5))));
        assert_eq!([0, 1, 8, 9].map(|block| drive.block(block)[0]), [3, 3, 7, 7]);
    }

    #[test]
    fn a_write_over_one_in_flight_is_refused() {
        let mut drive = SimDrive::new(64 << 10, true, Random::new(1));
        drive.submit_write(0, 0, buffer_of(7, 2), 2 * BLOCK_BYTES).unwrap();
        assert!(drive.submit_write(1, 4096, buffer_of(7, 1), BLOCK_BYTES).is_err());
        assert!(drive.submit_write(1, 100, buffer_of(7, 1), BLOCK_BYTES).is_err());
        assert!(drive.submit_write(1, 64 << 10, buffer_of(7, 1), BLOCK_BYTES).is_err());
    }
}
