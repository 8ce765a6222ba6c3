//! The kernel's file systems on a volume: a FUSE file of `nbdfuse`, a loop device on it, a file system on that.

use super::{PATIENCE, Process, attempt, path, run, wait_until};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::prerequisites::not_tested;

/// The volume as a FUSE file, the file as a loop device, the device mounted. Undone in reverse.
pub struct Mounted {
    place: PathBuf,
    fuse: Process,
    device: String,
    is_mounted: bool,
}

impl Mounted {
    /// A volume of so many bytes, for a test that is called that. `None` where this machine cannot; then it says why.
    pub fn device(test: &str, place: &Path, uri: &str, bytes: u64) -> Option<Mounted> {
        std::fs::create_dir_all(place).expect("a scratch directory can be made");
        let file = place.join("nbd");
        File::create(&file).expect("a scratch file can be made");
        let fuse =
            Process::start(Command::new("nbdfuse").args([path(&file), uri]), &place.join("nbdfuse.log"));
        let mut mounted = Mounted { place: place.to_owned(), fuse, device: String::new(), is_mounted: false };
        let mut ended = false;
        wait_until("the FUSE file is there", || {
            ended = !mounted.fuse.runs();
            ended || file.metadata().is_ok_and(|metadata| metadata.len() == bytes)
        });
        let output = attempt("losetup", &["--find", "--show", path(&file)]);
        if ended || !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            not_tested(test, &format!("no FUSE file or no loop device here: {why}"));
            return None;
        }
        mounted.device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Some(mounted)
    }

    /// Runs a program with the device as its last argument.
    #[track_caller]
    pub fn on_device(&self, command: &[&str]) {
        run(command[0], &[&command[1..], &[&self.device]].concat());
    }

    /// With these options for `mount`.
    pub fn mount_with(&mut self, options: &[&str]) -> PathBuf {
        let place = self.place.join("mounted");
        std::fs::create_dir_all(&place).expect("a scratch directory can be made");
        run("mount", &[options, &[&self.device, path(&place)]].concat());
        self.is_mounted = true;
        place
    }

    pub fn mount(&mut self) -> PathBuf {
        self.mount_with(&[])
    }

    pub fn unmount(&mut self) {
        run("umount", &[path(&self.place.join("mounted"))]);
        self.is_mounted = false;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            attempt("umount", &["--lazy", path(&self.place.join("mounted"))]);
        }
        if !self.device.is_empty() {
            attempt("losetup", &["--detach", &self.device]);
        }
        // The kernel lets go of the file a moment after the device is detached. Unmounted, the program writes what is left
        // and ends by itself.
        let began = Instant::now();
        let unmount = || attempt("fusermount3", &["-u", path(&self.place.join("nbd"))]).status.success();
        while !unmount() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
        while self.fuse.runs() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
