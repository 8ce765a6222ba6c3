//! Drives: the block devices that OSDs live on, and the files that serve as such.
//!
//! [`Drive::open`] is the one way to one: past the page cache, locked, and refused with what to do about it where somebody
//! uses it, as far as the kernel shows. What a drive holds is looked at before it is taken: another's data is kept.
//!
//! - `usage`: who uses a block device. `signature`: what lies on it that is no OSD. `class`: what kind of drive it is.
//! - [`DriveWatch`]: whether the drive under a running OSD still is what it was.

mod class;
mod error;
mod open;
mod signature;
mod sysfs;
mod usage;
mod watch;

pub use error::DriveError;
pub use open::{Drive, Use, check, check_new};
pub use ring::{FREE_WITHIN, when_free};
pub use watch::{DriveWatch, Finding};

/// The smallest drive an OSD can live on, in bytes.
pub const OSD_BYTES_MIN: u64 = 256 << 20;
