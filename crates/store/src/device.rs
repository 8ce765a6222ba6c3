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
