//! Files that are written for people and their programs, and take the place of none that is there.

use crate::output;
use anyhow::{Context, bail};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// One of them.
pub struct NewFile {
    path: PathBuf,
    text: String,
    mode: u32,
}

impl NewFile {
    /// One that everybody may read.
    pub fn open(path: PathBuf, text: String) -> NewFile {
        NewFile { path, text, mode: 0o644 }
    }

    /// One that only its owner may read.
    pub fn secret(path: PathBuf, text: String) -> NewFile {
        NewFile { path, text, mode: 0o600 }
    }

    /// Where it is to be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self) -> anyhow::Result<()> {
        let shown = self.path.display();
        let opened = OpenOptions::new().write(true).create_new(true).mode(self.mode).open(&self.path);
        let mut file = match opened {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(exists(&self.path)),
            opened => opened.with_context(|| format!("cannot make {shown}"))?,
        };
        file.write_all(self.text.as_bytes()).with_context(|| format!("cannot write {shown}"))
    }
}

fn exists(path: &Path) -> anyhow::Error {
    anyhow::anyhow!("{} exists; remove it, or write elsewhere with --out", path.display())
}

/// Writes all of them, or none if one is there; says which. The directory is made if it is not there.
pub fn write_all(directory: &Path, files: &[NewFile]) -> anyhow::Result<()> {
    if let Some(file) = files.iter().find(|file| file.path.symlink_metadata().is_ok()) {
        return Err(exists(&file.path));
    }
    if let Err(error) = std::fs::create_dir_all(directory) {
        bail!("cannot make {}: {error}; write elsewhere with --out", directory.display());
    }
    for file in files {
        file.write()?;
        output::notice(&format!("wrote {}", file.path.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_are_written_all_or_none_and_secrets_are_their_owner_s_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("new");
        let files = [
            NewFile::open(directory.join("open"), "for all".to_owned()),
            NewFile::secret(directory.join("secret"), "for one".to_owned()),
        ];
        write_all(&directory, &files).unwrap();
        for (name, mode) in [("open", 0o644), ("secret", 0o600)] {
            let found = std::fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o777;
            assert_eq!(found & !mode, 0, "{name} {found:o}");
        }
        let more = [
            NewFile::open(directory.join("another"), String::new()),
            NewFile::open(directory.join("open"), String::new()),
        ];
        let error = write_all(&directory, &more).unwrap_err().to_string();
        assert!(error.contains("--out"), "{error}");
        assert!(!directory.join("another").exists());
        assert_eq!(std::fs::read_to_string(directory.join("open")).unwrap(), "for all");
    }
}
