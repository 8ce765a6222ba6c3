//! What kind of drive something lies on, as far as the kernel tells in sysfs.

use crate::sysfs::{SYSFS, attribute, directory_of, entries, parse_number};
use base::map::DeviceClass;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Devices on devices on devices: no stack is as high.
const LAYERS_MAX: usize = 8;

/// The class of a block device, or of that under the file system of a file. What cannot be told is an SSD.
pub(crate) fn class_of(metadata: &Metadata) -> DeviceClass {
    let device = if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() };
    class_within(Path::new(SYSFS), device, LAYERS_MAX).unwrap_or_default()
}

/// The class of the block device with that number, of which a sysfs tells.
fn class_within(sysfs: &Path, device: u64, layers: usize) -> Option<DeviceClass> {
    let directory = fs::canonicalize(directory_of(sysfs, device)).ok()?;
    // A partition has no queue of its own; its parent directory is the whole device's.
    let is_whole = directory.join("queue").is_dir();
    let whole = if is_whole { directory.as_path() } else { directory.parent()? };
    let layers = layers.checked_sub(1)?;
    // What lies on several devices, or through a loop on a file, is as slow as the slowest under it.
    if let Some(class) = under(whole).into_iter().filter_map(|one| class_within(sysfs, one, layers)).max() {
        return Some(class);
    }
    let is_nvme = whole.file_name()?.to_str()?.starts_with("nvme");
    match attribute(whole, "queue/rotational")?.as_str() {
        "1" => Some(DeviceClass::Hdd),
        _ if is_nvme => Some(DeviceClass::Nvme),
        _ => Some(DeviceClass::Ssd),
    }
}

/// The numbers of the devices under a device: of a mapped or joined one its parts, of a loop that of its file.
fn under(whole: &Path) -> Vec<u64> {
    let slaves = whole.join("slaves");
    let parts = entries(&slaves).into_iter();
    let numbers = parts.filter_map(|part| parse_number(&attribute(&slaves.join(part), "dev")?));
    let file = attribute(whole, "loop/backing_file").and_then(|path| fs::metadata(path).ok());
    numbers.chain(file.map(|metadata| metadata.dev())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::makedev;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A sysfs with a device of that name and number.
    fn add(sysfs: &Path, name: &str, number: &str, rotational: Option<&str>) -> PathBuf {
        let device = sysfs.join("devices").join(name);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("dev"), format!("{number}\n")).unwrap();
        if let Some(rotational) = rotational {
            fs::create_dir(device.join("queue")).unwrap();
            fs::write(device.join("queue/rotational"), format!("{rotational}\n")).unwrap();
        }
        fs::create_dir_all(sysfs.join("dev/block")).unwrap();
        symlink(&device, sysfs.join("dev/block").join(number)).unwrap();
        device
    }

    #[test]
    fn a_drive_is_what_the_kernel_says_of_it_and_of_what_is_under_it() {
        let scratch = tempfile::tempdir().unwrap();
        let sysfs = scratch.path();
        let nvme = add(sysfs, "nvme0n1", "259:0", Some("0"));
        add(sysfs, "nvme0n1/nvme0n1p2", "259:2", None);
        add(sysfs, "sda", "8:0", Some("0"));
        let platters = add(sysfs, "sdb", "8:16", Some("1"));
        let mapped = add(sysfs, "dm-0", "252:0", Some("0"));
        fs::create_dir(mapped.join("slaves")).unwrap();
        symlink(&nvme, mapped.join("slaves/nvme0n1")).unwrap();
        let class = |major, minor| class_within(sysfs, makedev(major, minor), LAYERS_MAX);
        assert_eq!(class(259, 0), Some(DeviceClass::Nvme));
        assert_eq!(class(259, 2), Some(DeviceClass::Nvme));
        assert_eq!(class(8, 0), Some(DeviceClass::Ssd));
        assert_eq!(class(8, 16), Some(DeviceClass::Hdd));
        assert_eq!(class(252, 0), Some(DeviceClass::Nvme));
        symlink(&platters, mapped.join("slaves/sdb")).unwrap();
        assert_eq!(class(252, 0), Some(DeviceClass::Hdd));
        assert_eq!(class(1, 1), None, "it knows no such device");
        // Two that name each other end somewhere.
        fs::create_dir(platters.join("slaves")).unwrap();
        symlink(&mapped, platters.join("slaves/dm-0")).unwrap();
        assert_eq!(class(8, 0), Some(DeviceClass::Ssd));
        assert!(class(8, 16).is_some());
    }
}
