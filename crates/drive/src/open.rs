//! A drive is opened: past the page cache, and alone by whoever writes to it.

use crate::OSD_BYTES_MIN;
use crate::class::class_of;
use crate::error::DriveError;
use crate::signature;
use crate::sysfs::{SYSFS, attribute, directory_of, queue_attribute};
use crate::usage::{loop_device_on, usage_of};
use base::map::DeviceClass;
use base::units::ByteSize;
use base::{BLOCK_BYTES, Buffer, SECTOR_BYTES};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use ring::{FREE_WITHIN, when_free};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use store::layout::SUPERBLOCK_OFFSETS;
use store::{Device, DeviceError, Identity};

/// How many operations a file takes at the same time. Its file system has its own queue.
const FILE_DEPTH: usize = 256;
/// What is erased at both ends of a drive, in bytes: more than any format keeps there, both superblocks
/// of an OSD among them.
const ERASED_BYTES: u64 = 8 << 20;
/// What is read and written at once, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// For what a drive is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To read and write it, alone: nobody else may use it or have it so.
    Alone,
    /// To see that it can be written, beside the OSD that may have it.
    Beside,
    /// To read it, whoever uses it.
    ReadOnly,
}

/// An opened drive, read and written without the page cache.
#[derive(Debug)]
pub struct Drive {
    path: PathBuf,
    file: File,
    /// The kernel's identity of it, equal for two paths to one drive.
    identity: (u64, u64),
    bytes: u64,
    /// Whether completed writes need a flush to be durable, as far as the kernel tells.
    pub has_volatile_cache: bool,
    /// How many operations it takes at the same time.
    pub depth: usize,
    /// What offsets and lengths must be multiples of, in bytes: its logical block; a sector where that is unknown.
    pub alignment_bytes: u32,
    /// What kind of drive it is; of a file, what it lies on.
    pub class: DeviceClass,
}

/// Checks that a drive can serve an OSD that it served before; whose it is, the node checks.
///
/// # Errors
/// When it is not there, not writable, used by something else, or too small.
pub fn check(path: &Path) -> Result<(), DriveError> {
    Drive::open(path, Use::Beside)?.require_room()
}

/// Checks that new OSDs can be made on all of these, and that no two paths lead to the same one.
///
/// # Errors
/// Those of [`Drive::open_new`], or when a drive is given twice.
pub fn check_new(paths: &[PathBuf]) -> Result<(), DriveError> {
    let mut seen: Vec<(&PathBuf, (u64, u64))> = Vec::new();
    for path in paths {
        let identity = Drive::open_new(path)?.identity;
        if let Some((other, _)) = seen.iter().find(|(_, other)| *other == identity) {
            return Err(DriveError::Twice(path.clone(), (*other).clone()));
        }
        seen.push((path, identity));
    }
    Ok(())
}

impl Drive {
    /// Opens the drive at `path`. One that is in use is waited for up to [`FREE_WITHIN`].
    ///
    /// # Errors
    /// When it is not there, in use, or the kernel refuses.
    pub fn open(path: &Path, purpose: Use) -> Result<Drive, DriveError> {
        let is_in_use = |error: &DriveError| matches!(error, DriveError::InUse(_));
        when_free(FREE_WITHIN, is_in_use, || Drive::open_once(path, purpose))
    }

    /// Opens a drive that an OSD shall be made on, alone: it must have room for one, and hold nobody's data. Another OSD
    /// is asked for by [`Drive::osd`].
    ///
    /// # Errors
    /// Those of [`Drive::open`], when it is too small, and when it holds something well known.
    pub fn open_new(path: &Path) -> Result<Drive, DriveError> {
        let mut drive = Drive::open(path, Use::Alone)?;
        drive.require_room()?;
        match drive.content()? {
            Some(content) => Err(DriveError::Foreign(drive.path, content)),
            None => Ok(drive),
        }
    }

    fn open_once(path: &Path, purpose: Use) -> Result<Drive, DriveError> {
        let failed = |error: io::Error| refusal(path, error);
        let metadata = std::fs::metadata(path).map_err(failed)?;
        check_unused(path, &metadata, purpose)?;
        let is_block_device = metadata.file_type().is_block_device();
        // The kernel opens a block device exclusively only when nobody has it mounted or opened so.
        let is_exclusive = is_block_device && purpose == Use::Alone;
        let exclusive = if is_exclusive { OFlag::O_EXCL } else { OFlag::empty() };
        let mut file = OpenOptions::new()
            .read(true)
            .write(purpose != Use::ReadOnly)
            .custom_flags((OFlag::O_DIRECT | exclusive).bits())
            .open(path)
            .map_err(failed)?;
        if purpose == Use::Alone {
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => DriveError::InUse(path.to_owned()),
                TryLockError::Error(error) => failed(error),
            })?;
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let sysfs = directory_of(Path::new(SYSFS), metadata.rdev());
        let queue = |name| if is_block_device { queue_attribute(&sysfs, name) } else { None };
        Ok(Drive {
            path: path.to_owned(),
            file,
            identity: if is_block_device { (0, metadata.rdev()) } else { (metadata.dev(), metadata.ino()) },
            bytes,
            // A cache that cannot be asked about is taken to be volatile: a flush too many costs time, one too few
            // costs data.
            has_volatile_cache: queue("write_cache").is_none_or(|kind| kind != "write through"),
            depth: queue("nr_requests").and_then(|count| count.parse().ok()).unwrap_or(FILE_DEPTH),
            alignment_bytes: queue("logical_block_size")
                .and_then(|bytes| bytes.parse().ok())
                .unwrap_or(SECTOR_BYTES as u32),
            class: class_of(&metadata),
        })
    }

    /// Another descriptor of it, for a reactor. The lock is shared, and held until both are closed.
    ///
    /// # Errors
    /// When the kernel has no descriptor left.
    pub fn descriptor(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn require_room(&self) -> Result<(), DriveError> {
        if self.bytes < OSD_BYTES_MIN {
            return Err(DriveError::TooSmall(self.path.clone(), ByteSize(self.bytes)));
        }
        Ok(())
    }

    /// What it holds, if that is something well known that is no OSD.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn content(&mut self) -> Result<Option<&'static str>, DriveError> {
        let bytes = Device::bytes(self).min(signature::PROBE_BYTES as u64);
        let found = look(self, 0, bytes as usize);
        let found = found.map_err(|error| DriveError::Device(self.path.clone(), error))?;
        Ok(signature::find(found.bytes()))
    }

    /// Whose OSD it holds; `None` where the places of an OSD's superblocks hold nothing at all.
    ///
    /// # Errors
    /// When it holds something else, or one that is damaged or newer than this program, or cannot be read.
    pub fn osd(&mut self) -> Result<Option<Identity>, DriveError> {
        let path = self.path.clone();
        osd_on(self, &path)
    }

    /// Erases both ends, where an OSD and everybody else keeps what a drive is known by. All it holds is lost.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn erase(&mut self) -> Result<(), DeviceError> {
        let zeros = Buffer::new(CHUNK_BYTES);
        // Not of whole blocks: what partition tables keep there is in a device's last sector.
        let end = self.bytes - self.bytes % u64::from(self.alignment_bytes);
        for (from, to) in [(0, end.min(ERASED_BYTES)), (end.saturating_sub(ERASED_BYTES), end)] {
            for offset in (from..to).step_by(CHUNK_BYTES) {
                let length = (to - offset).min(CHUNK_BYTES as u64);
                self.write(offset, &zeros.bytes()[..length as usize])?;
            }
        }
        self.flush()
    }
}

fn look(device: &mut impl Device, offset: u64, bytes: usize) -> Result<Buffer, DeviceError> {
    let mut buffer = Buffer::new(bytes);
    let memory = buffer.bytes_mut().expect("a new buffer has one holder");
    device.read(offset, &mut memory[..bytes])?;
    Ok(buffer)
}

/// See [`Drive::osd`].
fn osd_on(device: &mut impl Device, path: &Path) -> Result<Option<Identity>, DriveError> {
    let mut unreadable = None;
    for offset in SUPERBLOCK_OFFSETS {
        match look(device, offset, CHUNK_BYTES) {
            Ok(chunk) if chunk.bytes().iter().all(|byte| *byte == 0) => {}
            Ok(_) => {
                let found = store::identify(device);
                let found = found.map_err(|error| DriveError::Superblock(path.to_owned(), error))?;
                return found.map(Some).ok_or_else(|| DriveError::NotBlank(path.to_owned()));
            }
            // The other copy may do. Without one nobody knows that the drive is blank.
            Err(error) => unreadable = Some(DriveError::Device(path.to_owned(), error)),
        }
    }
    unreadable.map_or(Ok(None), Err)
}

/// Checks that there is a drive, and, unless it is only read, that nobody uses it but perhaps an OSD, as far as the kernel
/// shows.
fn check_unused(path: &Path, metadata: &Metadata, purpose: Use) -> Result<(), DriveError> {
    let (kind, number, path) = (metadata.file_type(), metadata.rdev(), path.to_owned());
    if kind.is_dir() {
        return Err(DriveError::Directory(path));
    }
    if !kind.is_block_device() && !kind.is_file() {
        return Err(DriveError::NeitherDeviceNorFile(path));
    }
    if purpose == Use::ReadOnly {
        return Ok(());
    }
    if kind.is_file() {
        let device = path.canonicalize().ok().and_then(|canonical| loop_device_on(&canonical));
        return device.map_or(Ok(()), |device| Err(DriveError::BehindLoop(path, device)));
    }
    if let Some(usage) = usage_of(number) {
        return Err(DriveError::Used(path, usage));
    }
    match attribute(&directory_of(Path::new(SYSFS), number), "ro").as_deref() {
        Some("1") => Err(DriveError::ReadOnly(path)),
        _ => Ok(()),
    }
}

/// What it means that the kernel would not open the drive at `path`.
fn refusal(path: &Path, error: io::Error) -> DriveError {
    let path = path.to_owned();
    match error.kind() {
        ErrorKind::NotFound => DriveError::Missing(path),
        ErrorKind::ReadOnlyFilesystem => DriveError::ReadOnly(path),
        ErrorKind::PermissionDenied => DriveError::NotPermitted(path),
        ErrorKind::ResourceBusy => DriveError::InUse(path),
        // So does a file system that takes no direct I/O refuse the flag.
        _ if error.raw_os_error() == Some(Errno::EINVAL as i32) => DriveError::NoDirectIo(path),
        _ => DriveError::Open(path, error),
    }
}

impl Device for Drive {
    fn bytes(&self) -> u64 {
        self.bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
    }
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.file
            .read_exact_at(into, offset)
            .map_err(|error| DeviceError(format!("read of {} bytes at offset {offset}: {error}", into.len())))
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.file.write_all_at(data, offset).map_err(|error| {
            DeviceError(format!("write of {} bytes at offset {offset}: {error}", data.len()))
        })
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|error| DeviceError(format!("flush: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use store::testing::Memory;

    /// Where a file can be read and written directly.
    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    fn sparse(directory: &Path, name: &str, bytes: u64) -> PathBuf {
        let path = directory.join(name);
        File::create_new(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    #[test]
    fn a_drive_cannot_be_opened_twice() {
        let scratch = scratch();
        let path = sparse(scratch.path(), "drive", 8 << 20);
        let first = Drive::open(&path, Use::Alone).unwrap();
        let second = Drive::open(&path, Use::Alone).unwrap_err();
        assert!(matches!(second, DriveError::InUse(_)), "{second}");
        for purpose in [Use::Beside, Use::ReadOnly] {
            Drive::open(&path, purpose).unwrap();
        }
        // A reactor's descriptor holds it too.
        let descriptor = first.descriptor().unwrap();
        drop(first);
        Drive::open(&path, Use::Alone).unwrap_err();
        // What held it lets go while it is waited for.
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(descriptor);
        });
        Drive::open(&path, Use::Alone).unwrap();
        holder.join().unwrap();
    }

    #[test]
    fn a_drive_is_blank_until_something_lies_where_superblocks_do() {
        let scratch = scratch();
        let mut drive = Drive::open(&sparse(scratch.path(), "drive", 8 << 20), Use::Alone).unwrap();
        assert!(drive.has_volatile_cache);
        assert_eq!(drive.osd().unwrap(), None);
        let mut block = Buffer::new(4096);
        block.bytes_mut().unwrap().fill(1);
        for (offset, expected, next) in
            [(4096, "is not blank", "osd wipe"), (1 << 20, "both superblocks", "osd replace")]
        {
            drive.write(offset, block.bytes()).unwrap();
            let refusal = drive.osd().unwrap_err().to_string();
            assert!(refusal.contains(expected) && refusal.contains(next), "{refusal}");
        }
    }

    /// A device with a bad sector somewhere.
    struct WithBadSector(Memory, u64);

    impl Device for WithBadSector {
        fn bytes(&self) -> u64 {
            self.0.bytes()
        }
        fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
            match (offset..offset + into.len() as u64).contains(&self.1) {
                true => Err(DeviceError("a bad sector".to_owned())),
                false => self.0.read(offset, into),
            }
        }
        fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            self.0.write(offset, data)
        }
        fn flush(&mut self) -> Result<(), DeviceError> {
            self.0.flush()
        }
    }

    #[test]
    fn whose_osd_a_drive_holds_is_told_by_the_superblock_that_can_be_read() {
        const NOWHERE: u64 = u64::MAX;
        let options = store::Options { segment_bytes: Some(64 << 10), ..store::Options::default() };
        let identity = Identity {
            cluster: base::ClusterId::from_bytes([1; 16]),
            osd_uuid: base::OsdUuid::from_bytes([2; 16]),
            osd: base::OsdId(3),
        };
        let mut device = WithBadSector(Memory(vec![0; 8 << 20]), NOWHERE);
        // In a copy, and beside it.
        for bad in [0, 32 << 10, 1 << 20, (1 << 20) + (32 << 10)] {
            device.1 = bad;
            let refusal = osd_on(&mut device, Path::new("/a/drive")).unwrap_err();
            assert!(matches!(refusal, DriveError::Device(..)), "nobody knows that it is blank: {refusal}");
        }
        device.1 = NOWHERE;
        assert_eq!(osd_on(&mut device, Path::new("/a/drive")).unwrap(), None);
        store::format(&mut device, identity, *b"this one is ours", &options).unwrap();
        for bad in [NOWHERE, 0, 32 << 10, 1 << 20, (1 << 20) + (32 << 10)] {
            device.1 = bad;
            assert_eq!(osd_on(&mut device, Path::new("/a/drive")).unwrap(), Some(identity), "{bad}");
        }
    }

    #[test]
    fn a_small_a_missing_and_a_double_drive_are_refused_by_name() {
        let scratch = scratch();
        let small = sparse(scratch.path(), "small", 4096);
        let refusal = check_new(&[small]).unwrap_err().to_string();
        assert!(refusal.contains("small: too small: it has 4KiB") && refusal.contains("256MiB"), "{refusal}");

        let refusal = check(&scratch.path().join("missing")).unwrap_err().to_string();
        assert!(refusal.contains("no such device"), "{refusal}");
        let good = sparse(scratch.path(), "good", OSD_BYTES_MIN);
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&good, &link).unwrap();
        assert_eq!(Drive::open_new(&good).unwrap().bytes(), OSD_BYTES_MIN);
        let refusal = check_new(&[good, link]).unwrap_err().to_string();
        assert!(refusal.contains("same drive"), "{refusal}");
    }

    #[test]
    fn what_is_no_drive_is_refused_by_what_it_is() {
        let expected = [
            ("/", "is a directory"),
            ("/dev/null", "neither a block device nor a file"),
            ("/nowhere/drive", "/nowhere/drive: there is no such device or file; `lsblk` lists"),
        ];
        for (path, expected) in expected {
            let refusal = Drive::open(Path::new(path), Use::ReadOnly).unwrap_err().to_string();
            assert!(refusal.contains(expected), "{refusal}");
        }
    }

    #[test]
    fn data_of_others_is_kept_on_first_use_only() {
        let scratch = scratch();
        let path = sparse(scratch.path(), "drive", OSD_BYTES_MIN);
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"XFSB", 0).unwrap();
        let refusal = check_new(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(refusal.contains("an XFS file system") && refusal.contains("osd wipe"), "{refusal}");
        check(&path).unwrap();
    }

    #[test]
    fn both_ends_are_erased_and_the_size_stays() {
        let scratch = scratch();
        let path = scratch.path().join("drive");
        std::fs::write(&path, vec![7u8; 20 << 20]).unwrap();
        Drive::open(&path, Use::Alone).unwrap().erase().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (start, rest) = bytes.split_at(8 << 20);
        let (middle, end) = rest.split_at(4 << 20);
        assert_eq!(end.len(), 8 << 20);
        assert!(start.iter().chain(end).all(|byte| *byte == 0) && middle.iter().all(|byte| *byte == 7));
    }
}
