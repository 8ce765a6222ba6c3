//! Who uses a block device: mounts, swap, RAID, device mapper, loop devices. From /proc and /sys.

use std::fmt;
use std::fs;
use std::path::Path;

/// The kernel's number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    major: u64,
    minor: u64,
}

impl DeviceNumber {
    /// From the `st_rdev` of a device's file.
    pub fn from_raw(raw: u64) -> DeviceNumber {
        DeviceNumber { major: nix::sys::stat::major(raw), minor: nix::sys::stat::minor(raw) }
    }

    fn parse(text: &str) -> Option<DeviceNumber> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.major, self.minor)
    }
}

/// Who uses the device or a partition of it, as the end of a sentence that begins with its name, with
/// what to do about it. `None` if nobody does, as far as the kernel shows.
pub fn user_of(device: DeviceNumber) -> Option<String> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(place) = mounted_at(&mountinfo, device) {
        return Some(format!("is mounted at {place}; unmount it first, or give another device"));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swap_paths(&swaps).any(|path| number_of(Path::new(path)) == Some(device)) {
        return Some("is swap space; give another device, or end its use with `swapoff`".to_owned());
    }
    let sysfs = Path::new("/sys/dev/block").join(device.to_string());
    if let Some(holder) = entries(&sysfs.join("holders")).next() {
        return Some(format!("is part of {holder} (RAID or device mapper); give another device"));
    }
    for name in entries(&sysfs) {
        let partition = sysfs.join(&name);
        if !partition.join("partition").exists() {
            continue;
        }
        let number = fs::read_to_string(partition.join("dev")).ok();
        if let Some(usage) = number.and_then(|text| DeviceNumber::parse(&text)).and_then(user_of) {
            return Some(format!("has a partition {name} that {usage}"));
        }
    }
    None
}

/// Whether the kernel refuses every write to the device.
pub fn is_read_only(device: DeviceNumber) -> bool {
    fs::read_to_string(format!("/sys/dev/block/{device}/ro")).is_ok_and(|text| text.trim() == "1")
}

/// The loop device that lies on the file at `path`, which must be canonical.
pub fn loop_device_on(path: &Path) -> Option<String> {
    entries(Path::new("/sys/block")).filter(|name| name.starts_with("loop")).find_map(|name| {
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
        (Path::new(backing.trim_end_matches('\n')) == path).then(|| format!("/dev/{name}"))
    })
}

fn entries(directory: &Path) -> impl Iterator<Item = String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names.into_iter()
}

fn number_of(path: &Path) -> Option<DeviceNumber> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = fs::metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| DeviceNumber::from_raw(metadata.rdev()))
}

fn swap_paths(swaps: &str) -> impl Iterator<Item = &str> {
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next())
}

/// The first place where `device` is mounted, by its number or by the source's path: file systems that
/// span devices (btrfs) show a number of their own.
fn mounted_at(mountinfo: &str, device: DeviceNumber) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        // id, parent, major:minor, root, mount point, options, optional fields…, "-", type, source, …
        // (proc_pid_mountinfo(5))
        let mut fields = line.split(' ');
        let number = DeviceNumber::parse(fields.nth(2)?)?;
        let place = fields.nth(1)?;
        let source = fields.skip_while(|field| *field != "-").nth(2);
        let by_source = || source.and_then(|source| number_of(Path::new(source))) == Some(device);
        (number == device || by_source()).then(|| unescape(place))
    })
}

/// Undoes the octal escapes of blanks in mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 7:3 / /mnt/my\\040disk rw,relatime shared:9 master:1 - xfs /dev/loop3 rw
";

    #[test]
    fn a_mounted_device_is_found_with_its_place() {
        let device = DeviceNumber { major: 7, minor: 3 };
        assert_eq!(mounted_at(MOUNTINFO, device).as_deref(), Some("/mnt/my disk"));
        assert_eq!(mounted_at(MOUNTINFO, DeviceNumber { major: 7, minor: 4 }), None);
    }

    #[test]
    fn a_line_that_is_no_mount_is_passed_over() {
        let device = DeviceNumber { major: 254, minor: 0 };
        assert_eq!(mounted_at("garbage\n\n1 2 x:y / /\n", device), None);
    }
}
