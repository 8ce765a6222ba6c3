//! Who uses a block device: mounts, swap, RAID, device mapper, loop devices. From /proc and /sys.

use crate::sysfs::{SYSFS, attribute, directory_of, entries, parse_number};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Who uses the device with that number or a partition of it, as the end of a sentence that begins with its name, with
/// what to do about it. `None` if nobody does, as far as the kernel shows.
pub(crate) fn usage_of(device: u64) -> Option<String> {
    // A mount may be at a place of any bytes.
    let mountinfo = fs::read("/proc/self/mountinfo").unwrap_or_default();
    if let Some(place) = mounted_at(&String::from_utf8_lossy(&mountinfo), device) {
        return Some(format!("is mounted at {place}; unmount it first, or give another device"));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    if paths.any(|path| is_at(path, device)) {
        return Some("is swap space; give another device, or end its use with `swapoff`".to_owned());
    }
    let sysfs = directory_of(Path::new(SYSFS), device);
    if let Some(holder) = entries(&sysfs.join("holders")).first() {
        return Some(format!("is part of {holder} (RAID or device mapper); give another device"));
    }
    entries(&sysfs).into_iter().find_map(|name| {
        let partition = sysfs.join(&name);
        attribute(&partition, "partition")?;
        let usage = usage_of(parse_number(&attribute(&partition, "dev")?)?)?;
        Some(format!("has a partition {name} that {usage}"))
    })
}

/// The loop device that lies on the file at `path`, which must be canonical.
pub(crate) fn loop_device_on(path: &Path) -> Option<String> {
    let block = Path::new(SYSFS).join("block");
    let name = entries(&block).into_iter().find(|name| {
        let backing = fs::read_to_string(block.join(name).join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == path)
    })?;
    Some(format!("/dev/{name}"))
}

/// Whether a path leads to the block device with that number.
fn is_at(path: &str, device: u64) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.file_type().is_block_device() && metadata.rdev() == device)
}

/// The first place where `device` is mounted, by its number or by the source's path: file systems that
/// span devices (btrfs) show a number of their own.
fn mounted_at(mountinfo: &str, device: u64) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        // id, parent, major:minor, root, mount point, options, optional fields…, "-", type, source, …
        // (proc_pid_mountinfo(5))
        let mut fields = line.split(' ');
        let number = parse_number(fields.nth(2)?)?;
        let place = fields.nth(1)?;
        let source = fields.skip_while(|field| *field != "-").nth(2);
        (number == device || source.is_some_and(|source| is_at(source, device))).then(|| unescape(place))
    })
}

/// Undoes the octal escapes of blanks in mountinfo.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::makedev;

    const MOUNTINFO: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 7:3 / /mnt/my\\040disk rw,relatime shared:9 master:1 - xfs /dev/loop3 rw
";

    #[test]
    fn a_mounted_device_is_found_with_its_place() {
        let device = makedev(7, 3);
        assert_eq!(mounted_at(MOUNTINFO, device).as_deref(), Some("/mnt/my disk"));
        assert_eq!(mounted_at(MOUNTINFO, makedev(7, 4)), None);
    }

    #[test]
    fn a_line_that_is_no_mount_is_passed_over() {
        let device = makedev(254, 0);
        assert_eq!(mounted_at("garbage\n\n1 2 x:y / /\n", device), None);
    }
}
