//! The drives under the OSDs: checked before they are used, made where they are files of our own.

use crate::host::mounts;
use crate::host::signature;
use crate::output;
use anyhow::{Context, bail};
use base::units::ByteSize;
use ring::{FREE_WITHIN, when_free};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The smallest drive an OSD can live on, in bytes.
pub const OSD_BYTES_MIN: u64 = 256 << 20;

/// Whether the drive's content is still anybody's or already an OSD's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It will be formatted, so it must hold nothing.
    First,
    /// It was used by this cluster before; the node checks whose it is.
    Again,
}

/// A drive that passed the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// Its size in bytes.
    pub bytes: u64,
    /// The kernel's identity of it, equal for two paths to one drive.
    identity: (u64, u64),
}

/// Checks that the drive at `path` can serve an OSD: there, writable, large enough, in nobody's use,
/// and (on first use) without anybody's data.
pub fn check(path: &Path, usage: Use) -> anyhow::Result<Drive> {
    let shown = path.display();
    let metadata = check_unused(path)?;
    let is_block = metadata.file_type().is_block_device();
    let mut file = open_to_write(path, is_block && usage == Use::First)?;
    let bytes = file.seek(SeekFrom::End(0)).with_context(|| format!("{shown}: cannot find out its size"))?;
    if bytes < OSD_BYTES_MIN {
        bail!(
            "{shown}: too small: it has {}, and an OSD needs at least {}",
            ByteSize(bytes),
            ByteSize(OSD_BYTES_MIN)
        );
    }
    if usage == Use::First
        && let Some(content) = content_of(&mut file).with_context(|| format!("{shown}: cannot read it"))?
    {
        bail!(
            "{shown}: holds {content}, and would lose it; give another device, \
             or erase this one with `millpond osd wipe {shown} --yes`"
        );
    }
    let identity = if is_block { (0, metadata.rdev()) } else { (metadata.dev(), metadata.ino()) };
    Ok(Drive { bytes, identity })
}

/// Checks several drives, and that no two paths lead to the same one.
pub fn check_all<'a>(paths: impl Iterator<Item = &'a Path>, usage: Use) -> anyhow::Result<Vec<Drive>> {
    let mut seen: Vec<(&Path, Drive)> = Vec::new();
    for path in paths {
        let drive = check(path, usage)?;
        if let Some((other, _)) = seen.iter().find(|(_, other)| other.identity == drive.identity) {
            bail!("{}: is the same drive as {}; give each drive once", path.display(), other.display());
        }
        seen.push((path, drive));
    }
    Ok(seen.into_iter().map(|(_, drive)| drive).collect())
}

/// Checks that there is a block device or a file at `path`, that it can be written, and that nobody
/// uses it, as far as the kernel shows.
pub fn check_unused(path: &Path) -> anyhow::Result<Metadata> {
    let shown = path.display();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{shown}: there is no such device or file; `lsblk` lists the devices of this machine")
        }
        Err(error) => return Err(error).with_context(|| format!("{shown}: cannot look at it")),
    };
    if metadata.is_dir() {
        bail!("{shown}: is a directory; give a block device, or a file that serves as one");
    }
    if metadata.file_type().is_block_device() {
        let number = mounts::DeviceNumber::from_raw(metadata.rdev());
        if let Some(usage) = mounts::user_of(number) {
            bail!("{shown}: {usage}");
        }
        if mounts::is_read_only(number) {
            bail!(
                "{shown}: is read-only; give another device, or make it writable with `blockdev --setrw {shown}`"
            );
        }
    } else if !metadata.is_file() {
        bail!("{shown}: is neither a block device nor a file; give one of these");
    } else if let Some(device) =
        path.canonicalize().ok().and_then(|canonical| mounts::loop_device_on(&canonical))
    {
        bail!("{shown}: is the file behind {device}; give {device}, or detach it with `losetup -d {device}`");
    }
    Ok(metadata)
}

/// Opens the drive at `path` for reading and writing; `exclusive` has the kernel refuse a block device
/// that it uses itself.
pub fn open_to_write(path: &Path, exclusive: bool) -> anyhow::Result<File> {
    let shown = path.display();
    let flags = if exclusive { nix::fcntl::OFlag::O_EXCL.bits() } else { 0 };
    let is_in_use = |error: &std::io::Error| error.kind() == ErrorKind::ResourceBusy;
    let open = || OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    match when_free(FREE_WITHIN, is_in_use, open) {
        Ok(file) => Ok(file),
        Err(error) if matches!(error.kind(), ErrorKind::ReadOnlyFilesystem) => {
            bail!("{shown}: is read-only; give another device, or make it writable")
        }
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied) => {
            bail!(
                "{shown}: is read-only for this user; run as root, or change its owner or mode with `chown` or `chmod`"
            )
        }
        Err(error) if matches!(error.kind(), ErrorKind::ResourceBusy) => {
            bail!("{shown}: is in use by another program or by the kernel; give another device")
        }
        Err(error) => Err(error).with_context(|| format!("{shown}: cannot open it for writing")),
    }
}

/// What the drive holds, if it is something well known that is not an OSD.
pub fn content_of(file: &mut File) -> std::io::Result<Option<&'static str>> {
    let mut start = Vec::with_capacity(signature::PROBE_BYTES);
    file.seek(SeekFrom::Start(0))?;
    file.take(signature::PROBE_BYTES as u64).read_to_end(&mut start)?;
    Ok(signature::find(&start))
}

/// Makes a file of `bytes` to serve as a drive. Its space is set aside where the file system can do so;
/// otherwise it grows as it is written.
pub fn make_file(path: &Path, bytes: u64, set_aside: bool) -> anyhow::Result<()> {
    let shown = path.display();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("{shown}: cannot make this file"))?;
    let length = i64::try_from(bytes).with_context(|| format!("{shown}: {bytes} bytes are too many"))?;
    let mode = nix::fcntl::FallocateFlags::empty();
    if !set_aside || nix::fcntl::fallocate(&file, mode, 0, length).is_err() {
        let sized = file.set_len(bytes);
        if sized.is_err() {
            let _ = std::fs::remove_file(path);
        }
        sized.with_context(|| {
            format!("{shown}: cannot make it {} large; choose a smaller --osd-size", ByteSize(bytes))
        })?;
    }
    file.sync_all().with_context(|| format!("{shown}: cannot make it durable"))
}

/// Whether the file system of `directory` can set `bytes` aside. Warns when it could run out of space later.
pub fn can_set_aside(directory: &Path, bytes: u64) -> bool {
    let Ok(space) = nix::sys::statvfs::statvfs(directory) else { return false };
    // The field's width differs between architectures.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    let free = space.blocks_available() as u64 * space.fragment_size() as u64;
    if free < bytes {
        output::warning(&format!(
            "{} has {} free, and the OSD files may grow to {}; OSDs stop when it is full. \
             Choose a smaller --osd-size, or another --dir.",
            directory.display(),
            ByteSize(free),
            ByteSize(bytes)
        ));
    }
    // Set aside on tmpfs would be memory taken at once.
    let in_memory = nix::sys::statfs::statfs(directory)
        .is_ok_and(|file_system| file_system.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
    !in_memory && free > bytes.saturating_add(bytes / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_a_missing_and_a_double_drive_are_refused_by_name() {
        let scratch = tempfile::tempdir().unwrap();
        let small = scratch.path().join("small");
        std::fs::write(&small, [0; 4096]).unwrap();
        let refusal = check(&small, Use::First).unwrap_err().to_string();
        assert!(refusal.contains("small: too small") && refusal.contains("256MiB"), "{refusal}");

        let missing = scratch.path().join("missing");
        let refusal = check(&missing, Use::Again).unwrap_err().to_string();
        assert!(refusal.contains("no such device"), "{refusal}");

        let good = scratch.path().join("good");
        make_file(&good, OSD_BYTES_MIN, false).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&good, &link).unwrap();
        assert_eq!(check(&good, Use::First).unwrap().bytes, OSD_BYTES_MIN);
        let both = [good.as_path(), link.as_path()];
        let refusal = check_all(both.into_iter(), Use::First).unwrap_err().to_string();
        assert!(refusal.contains("same drive"), "{refusal}");
    }

    #[test]
    fn data_of_others_is_kept_on_first_use_only() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("drive");
        make_file(&path, OSD_BYTES_MIN, false).unwrap();
        use std::os::unix::fs::FileExt;
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"XFSB", 0).unwrap();
        let refusal = check(&path, Use::First).unwrap_err().to_string();
        assert!(refusal.contains("an XFS file system") && refusal.contains("osd wipe"), "{refusal}");
        check(&path, Use::Again).unwrap();
    }
}
