//! What the kernel says of a block device in sysfs.

use std::fs;
use std::path::{Path, PathBuf};

/// Where it is mounted.
pub(crate) const SYSFS: &str = "/sys";

/// The directory of the block device with that number.
pub(crate) fn directory_of(sysfs: &Path, device: u64) -> PathBuf {
    sysfs.join(format!("dev/block/{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device)))
}

/// What a file of a directory there says.
pub(crate) fn attribute(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

/// What it says of a device's queue. A partition has none of its own; its parent directory is the whole device's.
pub(crate) fn queue_attribute(directory: &Path, name: &str) -> Option<String> {
    ["queue", "../queue"].iter().find_map(|queue| attribute(&directory.join(queue), name))
}

/// The device of a number that is written as `8:16`.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The names in a directory, in order.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<String> =
        names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}
