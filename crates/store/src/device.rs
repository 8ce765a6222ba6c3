//! The drive while a store is opened, which alone may block.

/// What is read at a time of most drives, in bytes.
const READ_AHEAD_BYTES: usize = 1 << 20;

/// A read, write or flush that failed. The text names the place.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// A drive that is read and written at once, while a store is formatted or opened. Offsets and lengths are
/// multiples of 4 KiB, and the memory is aligned to 4 KiB.
pub trait Device {
    /// Its size in bytes.
    fn bytes(&self) -> u64;
    /// How much is read at once where more of it follows: a multiple of 4 KiB, and no less than an object's page has. Memory
    /// gains nothing by much.
    fn read_ahead_bytes(&self) -> usize {
        READ_AHEAD_BYTES
    }
    /// Fills `into` from `offset`.
    ///
    /// # Errors
    /// When not all of it could be read.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// When not all of it could be written.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError>;
    /// Makes what was written durable.
    ///
    /// # Errors
    /// When that cannot be promised.
    fn flush(&mut self) -> Result<(), DeviceError>;
}

/// A drive in memory, of any size: where nothing was written are zeros.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    /// What was written, by blocks.
    pub(crate) blocks: std::collections::BTreeMap<u64, Vec<u8>>,
    /// Where something was written, in order; `None` for a flush.
    pub(crate) done: Vec<Option<u64>>,
    /// Blocks that cannot be read.
    pub(crate) bad: std::collections::BTreeSet<u64>,
    /// How often it was read, and which of these reads fail, whatever they are of: the drive is away.
    pub(crate) reads: u64,
    pub(crate) away: std::collections::BTreeSet<u64>,
}

#[cfg(test)]
impl Memory {
    pub(crate) fn new(bytes: u64) -> Memory {
        Memory { bytes, ..Memory::default() }
    }
}

#[cfg(test)]
impl Device for Memory {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_ahead_bytes(&self) -> usize {
        16 * base::BLOCK_BYTES
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        if offset + into.len() as u64 > self.bytes {
            return Err(DeviceError(format!("there is no {offset}")));
        }
        let first = offset / base::BLOCK_BYTES as u64;
        let blocks = first..first + (into.len() / base::BLOCK_BYTES) as u64;
        let is_away = self.away.contains(&self.reads);
        self.reads += 1;
        if is_away || self.bad.range(blocks).next().is_some() {
            return Err(DeviceError(format!("{offset} cannot be read")));
        }
        for (number, block) in (offset / base::BLOCK_BYTES as u64..).zip(into.chunks_mut(base::BLOCK_BYTES)) {
            match self.blocks.get(&number) {
                Some(bytes) => block.copy_from_slice(bytes),
                None => block.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + data.len() as u64 <= self.bytes, "there is no {offset}");
        self.done.push(Some(offset));
        for (number, block) in (offset / base::BLOCK_BYTES as u64..).zip(data.chunks(base::BLOCK_BYTES)) {
            self.blocks.insert(number, block.to_vec());
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.done.push(None);
        Ok(())
    }
}
