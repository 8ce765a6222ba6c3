//! What block devices counted.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Bytes of a sector in these counters, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// Bytes that were read from a block device and written to it since it is there; `None` of what is none.
#[must_use]
pub fn device_bytes(device: &Path) -> Option<(u64, u64)> {
    let metadata =
        std::fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let number = metadata.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    counted(&std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
}

/// The third and the seventh number: sectors (<https://docs.kernel.org/block/stat.html>).
fn counted(stat: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = stat.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some((numbers.get(2)? * SECTOR_BYTES, numbers.get(6)? * SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_counted_as_captured() {
        let stat =
            "     100       0     6743      367      535       10    74034      503        0      528\n";
        assert_eq!(counted(stat), Some((6743 * 512, 74_034 * 512)));
        assert_eq!((counted("1 2 3"), device_bytes(Path::new("/dev/null"))), (None, None));
    }
}
