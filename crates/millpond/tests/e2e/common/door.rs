//! A server of one volume over NBD.

use super::nbd::NbdClient;
use super::site::Site;
use super::{command, path, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A `millpond nbd` of one volume, killed with the test.
pub struct Door {
    child: Child,
    volume: String,
    socket: PathBuf,
    log: PathBuf,
}

impl Door {
    pub fn open(site: &Site, volume: &str, name: &str, flags: &[&str]) -> Door {
        Door::try_open(site, volume, name, flags)
            .unwrap_or_else(|said| panic!("the NBD server ended: {said}"))
    }

    pub fn try_open(site: &Site, volume: &str, name: &str, flags: &[&str]) -> Result<Door, String> {
        let socket = site.scratch().join(format!("{name}.sock"));
        let log = site.scratch().join(format!("{name}.log"));
        let output = File::create(&log).expect("a log can be made");
        let copy = output.try_clone().expect("a descriptor can be doubled");
        let dir = site.dir();
        let listen = format!("unix:{}", path(&socket));
        let child = command(&["nbd", volume, "--listen", &listen, "--dir", path(&dir)])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(copy)
            .spawn()
            .expect("the command can be started");
        let mut door = Door { child, volume: volume.to_owned(), socket, log };
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
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A connection to it.
    #[track_caller]
    pub fn client(&self) -> NbdClient {
        NbdClient::connect(&self.socket, &self.volume).expect("the export can be reached")
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids are positive")
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Kills it, so that it says goodbye to nobody.
    pub fn is_killed(&mut self) {
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
        self.ends();
    }

    /// Waits for its end.
    pub fn ends(&mut self) {
        wait_until("the NBD server has ended", || !self.runs());
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
        // In good order, so that the volume is detached and the next server need not wait.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
        let asked = Instant::now();
        while self.runs() && asked.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
