//! A note of the lease under which a process has its volumes, in a file beside what it serves them at.
//!
//! Volumes stay attached until the lease of whoever had them ends, which takes a while after it died. Who follows it at the same place
//! finds the note, and knows by the lock on that file, which ends with the process, that nobody is there any more: it ends that lease at
//! once. What the dead one had sent is fenced when the volumes are attached, as ever.

use registry::LeaseId;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Note {
    path: PathBuf,
    file: File,
}

impl Note {
    /// Has the note to itself from now on. `None` if another process does, or it cannot be kept: then leases end by themselves.
    pub(super) fn take(path: &Path) -> Option<Note> {
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let taken = open.and_then(|file| file.try_lock().map_err(Into::into).map(|()| file));
        match taken {
            Ok(file) => Some(Note { path: path.to_owned(), file }),
            Err(error) => {
                tracing::debug!(%error, path = %path.display(), "it is not noted under which lease volumes are had");
                None
            }
        }
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
        // The lease was ended. Who opened the file before finds no lock and no lease in it, and keeps its note where nobody looks.
        let _ = self.file.set_len(0);
        let _ = std::fs::remove_file(&self.path);
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
