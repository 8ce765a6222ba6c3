//! A server of one volume over NBD.

use super::nbd::NbdClient;
use super::site::Site;
use super::{Process, command, path, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A `millpond nbd` of one volume, which ends with the test.
pub struct Door {
    process: Process,
    volume: String,
    socket: PathBuf,
}

impl Door {
    /// Serves a volume of a cluster, or tells what the server said when it ended instead.
    pub fn open(site: &Site, volume: &str, name: &str, flags: &[&str]) -> Result<Door, String> {
        Door::of(command(&["--dir", path(&site.dir())]), site.scratch(), volume, name, flags)
    }

    /// The same by `millpond`, the command up to its own arguments, with files in `scratch`.
    pub fn of(
        mut millpond: Command,
        scratch: &Path,
        volume: &str,
        name: &str,
        flags: &[&str],
    ) -> Result<Door, String> {
        // Of a volume that is named in full.
        let name = name.replace('/', "-");
        let socket = scratch.join(format!("{name}.sock"));
        millpond.args(["nbd", volume, "--listen", &format!("unix:{}", path(&socket))]).args(flags);
        let process = Process::start(&mut millpond, &scratch.join(format!("{name}.log")));
        let mut door = Door { process, volume: volume.to_owned(), socket };
        let mut ended = false;
        wait_until("the volume is served, or refused", || {
            ended = !door.runs();
            ended || door.log().contains("Serving ")
        });
        if ended { Err(door.log()) } else { Ok(door) }
    }

    /// Its URI.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///{}?socket={}", self.volume, path(&self.socket))
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it has said.
    pub fn log(&self) -> String {
        self.process.said()
    }

    /// A connection to it.
    #[track_caller]
    pub fn client(&self) -> NbdClient {
        NbdClient::connect(&self.socket, &self.volume).expect("the export can be reached")
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.process.runs()
    }

    /// Kills it, so that it says goodbye to nobody.
    pub fn is_killed(&mut self) {
        self.process.is_killed();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // In good order, so that the volume is detached and the next server need not wait.
        self.process.is_asked_to_end();
        let asked = Instant::now();
        while self.runs() && asked.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
