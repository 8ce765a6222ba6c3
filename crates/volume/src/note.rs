//! A note of the lease under which a process has its volumes, in a file beside what it serves them at.
//!
//! Volumes stay attached until the lease of whoever had them ends, which takes a while after it died. Who follows it at the same place
//! finds the note, and knows by the lock on that file, which ends with the process, that nobody is there any more: it ends that lease at
//! once. What the dead one had sent is fenced when the volumes are attached, as ever.

use registry::LeaseId;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is tried to have the note, and the pause between.
const ATTEMPTS_MAX: usize = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    file: File,
}

impl Note {
    /// Has the note to itself from now on. `None` if another process does, or it cannot be kept: then leases end by themselves.
    pub(super) fn take(path: &Path) -> Option<Note> {
        for _ in 0..ATTEMPTS_MAX {
            match Note::try_take(path) {
                Ok(Some(note)) => return Some(note),
                // Who is about to end has it still.
                Ok(None) => std::thread::sleep(PAUSE),
                Err(error) => {
                    tracing::debug!(%error, path = %path.display(), "it is not noted under which lease volumes are had");
                    return None;
                }
            }
        }
        None
    }

    /// `None` if another has it, or took it away meanwhile.
    fn try_take(path: &Path) -> io::Result<Option<Note>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let note = Note { path: path.to_owned(), file };
        if note.is_there() { Ok(Some(note)) } else { Ok(None) }
    }

    /// Whether it is this file that stands there.
    fn is_there(&self) -> bool {
        let which = |found: io::Result<Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        which(self.file.metadata()) == which(self.path.symlink_metadata())
    }

    /// The lease of who had it before, if that did not end in good order.
    pub(super) fn read(&mut self) -> Option<LeaseId> {
        let mut text = String::new();
        self.file.read_to_string(&mut text).ok()?;
        u64::from_str_radix(text.trim(), 16).ok().map(LeaseId)
    }

    /// Notes the lease that is had now. If that cannot be, it ends by itself.
    pub(super) fn write(&mut self, lease: LeaseId) {
        let mut write = || {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(format!("{:x}\n", lease.0).as_bytes())
        };
        if let Err(error) = write() {
            tracing::warn!(%error, path = %self.path.display(), "the lease cannot be noted; who follows will wait for its end");
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // The lease was ended.
        let _ = self.file.set_len(0);
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_note_is_its_writer_s_alone_and_is_found_after_its_death() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.sock.lease");
        let mut first = Note::take(&path).unwrap();
        assert_eq!(first.read(), None);
        first.write(LeaseId(u64::MAX));
        first.write(LeaseId(0xab));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Note::take(&path).is_none(), "it is held");
        // As a process that is killed lets it go.
        first.file.unlock().unwrap();
        let mut second = Note::take(&path).unwrap();
        assert_eq!(second.read(), Some(LeaseId(0xab)));
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(Note::take(&path).unwrap().read(), None);
        assert!(Note::take(&directory.path().join("not/there")).is_none());
    }
}
