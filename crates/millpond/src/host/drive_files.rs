//! Files in the cluster's directory that serve as drives.

use crate::output;
use anyhow::Context;
use base::units::ByteSize;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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
