//! Loop devices over files of a tmpfs.

use super::cleanup::Undo;
use super::command;
use super::{COMMAND_LIMIT, cannot_make, told};
use anyhow::Context;
use std::path::{Path, PathBuf};

/// A loop device over a sparse file.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    direct_io: bool,
    _undo: Undo,
}

impl LoopDevice {
    /// Makes `directory/name` of `bytes` and a loop device over it, which hands I/O to the file directly
    /// where the file system can do that.
    pub fn new(directory: &Path, name: &str, bytes: u64) -> anyhow::Result<LoopDevice> {
        let backing = directory.join(name);
        std::fs::File::create_new(&backing)
            .and_then(|file| file.set_len(bytes))
            .with_context(|| cannot_make(&backing))?;
        let file = backing.display().to_string();
        // The device's name is not known before it exists, so undoing asks for it: nothing that fails or
        // ends the process in between leaves a device behind.
        let undone = backing.clone();
        let undo = Undo::new(move || {
            detach_loops_of(&undone);
            told(&undone, std::fs::remove_file(&undone));
        });
        let attach = |direct: &str| {
            command::run("losetup", &["--find", "--show", direct, file.as_str()], COMMAND_LIMIT)
        };
        let path = attach("--direct-io=on").or_else(|error| {
            // A failed attempt may have left the device without direct I/O.
            detach_loops_of(&backing);
            attach("--direct-io=off").map_err(|_| error)
        })?;
        let path = PathBuf::from(path.trim());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let direct_io = std::fs::read_to_string(format!("/sys/block/{name}/loop/dio"))
            .is_ok_and(|flag| flag.trim() == "1");
        Ok(LoopDevice { path, direct_io, _undo: undo })
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is read and written without the page cache in between.
    #[must_use]
    pub fn direct_io(&self) -> bool {
        self.direct_io
    }
}

pub(super) fn detach_loops_of(backing: &Path) {
    let arguments = ["--noheadings", "--output", "NAME", "--associated", &backing.display().to_string()];
    match command::run_unguarded("losetup", &arguments, COMMAND_LIMIT) {
        Ok(names) => {
            for name in names.split_whitespace() {
                if let Err(error) = command::run_unguarded("losetup", &["--detach", name], COMMAND_LIMIT) {
                    eprintln!("{error}");
                }
            }
        }
        Err(error) => eprintln!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops_of(backing: &Path) -> String {
        let arguments = ["--noheadings", "--associated", &backing.display().to_string()];
        command::run("losetup", &arguments, COMMAND_LIMIT).unwrap()
    }

    #[test]
    fn a_loop_device_and_its_file_are_gone_after_use() {
        if !testkit::prerequisites::has_device("a loop device goes away", "/dev/loop-control") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let device = LoopDevice::new(directory.path(), "drive", 16 << 20).unwrap();
        let backing = directory.path().join("drive");
        assert!(loops_of(&backing).contains(device.path().to_str().unwrap()));
        drop(device);
        assert_eq!(loops_of(&backing), "");
        assert!(!backing.exists());
    }
}
