//! The directory of a cluster on this machine: where its files are, and who runs it.
//!
//! `lock` is held with `flock` by the `up` that runs the cluster, so it is free again the moment
//! that process is gone, however it went. Its content says who holds it and how far it is.

use crate::host::settings::{CLIENT_KEY, Settings};
use anyhow::{Context, anyhow, bail};
use auth::{Identity, SecretKey};
use drive::{FREE_WITHIN, when_free};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use volume::ClusterAccess;

/// The longest path a Unix socket can have on Linux, in bytes (`sun_path` less its final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// A cluster's directory. Absolute, so that child processes find it wherever they stand.
#[derive(Clone, Debug)]
pub struct Directory {
    path: PathBuf,
    /// As the user wrote it, for messages that can be pasted back.
    given: PathBuf,
}

impl Directory {
    /// The directory at `path`, which need not exist.
    pub fn new(path: &Path) -> anyhow::Result<Directory> {
        let absolute =
            std::path::absolute(path).with_context(|| format!("cannot make sense of the path {path:?}"))?;
        // Dots are cleaned away so that the socket paths stay as short as they can.
        let absolute = absolute.canonicalize().unwrap_or(absolute);
        Ok(Directory { path: absolute, given: path.to_owned() })
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As the user wrote it.
    pub fn given(&self) -> std::path::Display<'_> {
        self.given.display()
    }

    /// As the user wrote it, to be handed on.
    pub fn as_given(&self) -> &Path {
        &self.given
    }

    /// The embedded registry's file.
    pub fn registry_file(&self) -> PathBuf {
        self.path.join("registry.redb")
    }

    /// The socket on which the registry is served.
    pub fn registry_socket(&self) -> PathBuf {
        self.path.join(ClusterAccess::SOCKET)
    }

    /// What this machine has to know to take part in a cluster whose registry is elsewhere.
    pub fn settings_file(&self) -> PathBuf {
        self.path.join("millpond.toml")
    }

    /// The key of the node that this host is.
    pub fn host_key(&self) -> PathBuf {
        self.path.join("node.key")
    }

    /// The key of whoever owns the cluster.
    pub fn admin_key(&self) -> PathBuf {
        self.path.join(ClusterAccess::KEY)
    }

    /// The key of a machine that is a client.
    pub fn client_key(&self) -> PathBuf {
        self.path.join(CLIENT_KEY)
    }

    /// The key of one node.
    pub fn node_key(&self, node: u32) -> PathBuf {
        self.node(node).join("node.key")
    }

    /// The way into the cluster, as whoever has the key in that file; as its owner, if none is named.
    pub fn access(&self, key: Option<&Path>) -> anyhow::Result<ClusterAccess> {
        let settings = Settings::load(self)?;
        let own = if settings.are_of_client() { self.client_key() } else { self.admin_key() };
        let registry = settings.registry_of(self)?;
        let key = SecretKey::load(key.unwrap_or(&own)).context("no key to act with; name one with --key")?;
        let identity = Identity::new(&key);
        Ok(ClusterAccess { desk: registry.into(), identity })
    }

    /// The socket on which a virtual machine is served a volume unless another is asked for.
    pub fn vhost_user_socket(&self, volume: &str) -> PathBuf {
        self.path.join(format!("vhost-user-{}.sock", volume.replace('/', "-")))
    }

    /// The socket on which NBD is served unless another is asked for.
    pub fn nbd_socket(&self) -> PathBuf {
        self.path.join("nbd.sock")
    }

    /// Where Prometheus finds what to scrape.
    pub fn scrape_targets(&self) -> PathBuf {
        self.path.join("prometheus.json")
    }

    /// Where a detached `up` writes what it has to say.
    pub fn up_log(&self) -> PathBuf {
        self.path.join("up.log")
    }

    /// One node's own directory.
    pub fn node(&self, node: u32) -> PathBuf {
        self.path.join(format!("node.{node}"))
    }

    /// Where a child process writes what it has to say.
    pub fn child_log(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.log"))
    }

    /// The file that serves as an OSD's drive where no device was given.
    pub fn osd_file(&self, index: u32) -> PathBuf {
        self.path.join(format!("osd.{index}.img"))
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Makes the directory if it is missing, and checks that sockets can live in it.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let socket_bytes = self.registry_socket().as_os_str().len();
        if socket_bytes > SOCKET_PATH_BYTES_MAX {
            bail!(
                "{}: the path is {} bytes too long for the Unix sockets in it; choose a shorter --dir",
                self.path.display(),
                socket_bytes - SOCKET_PATH_BYTES_MAX
            );
        }
        std::fs::create_dir_all(&self.path)
            .with_context(|| format!("cannot make the directory {}; choose another with --dir", self.given()))
    }

    /// Whether a cluster was ever made here.
    pub fn has_cluster(&self) -> bool {
        self.registry_file().exists()
    }

    /// Who runs the cluster now, if anyone does.
    pub fn holder(&self) -> anyhow::Result<Option<Holder>> {
        let path = self.lock_file();
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot open {}", path.display())),
        };
        // Shared, so that two who only ask do not take each other for the holder.
        match Flock::lock(file.try_clone()?, FlockArg::LockSharedNonblock) {
            Ok(_free) => Ok(None),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut text = String::new();
                file.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
                // Between taking the lock and writing its name the holder is nameless for a moment.
                Ok(Some(serde_json::from_str(&text).unwrap_or_default()))
            }
            Err((_, error)) => Err(anyhow!(error)).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// Becomes the one that runs the cluster here. Whoever is ending is waited for, up to [`FREE_WITHIN`].
    pub fn lock(&self) -> anyhow::Result<DirectoryLock> {
        let path = self.lock_file();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            // Whoever reads it can lock it.
            .mode(0o600)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("cannot open {}; is the directory writable?", path.display()))?;
        let is_soon_free = Cell::new(false);
        let attempt = || match Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(file),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                // Someone who only asks has it for an instant, and names nobody.
                let pid = self.holder()?.map(|holder| holder.pid).filter(|pid| *pid != 0);
                is_soon_free.set(pid.is_none_or(is_ending));
                let Some(pid) = pid else {
                    bail!("{} is locked by another process; try again in a moment", path.display())
                };
                let given = self.given();
                bail!(
                    "the cluster in {given} is already up, run by process {pid}; \
                     see it with `millpond status --dir {given}`, or stop it with `millpond down --dir {given}`"
                )
            }
            Err((_, error)) => Err(anyhow!(error)).with_context(|| format!("cannot lock {}", path.display())),
        };
        let file = when_free(FREE_WITHIN, |_| is_soon_free.take(), attempt)?;
        let mut lock = DirectoryLock { file, holder: Holder::default() };
        lock.announce(Phase::Starting, None)?;
        Ok(lock)
    }
}

/// Whether a process was killed, or is gone. What it holds is let go of by the last of its threads.
fn is_ending(pid: u32) -> bool {
    // From the moment on that its memory is given back there are no words.
    std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |words| words.is_empty())
}

/// How far the process that runs a cluster is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// OSDs are coming up.
    #[default]
    Starting,
    /// It serves, or it says why not.
    Running,
    /// It is shutting down.
    Stopping,
}

/// The process that runs a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process id; 0 while it has not yet written it.
    pub pid: u32,
    /// How far it is.
    pub phase: Phase,
    /// Why it does not serve fully though it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The right to run the cluster in a directory; given back when dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    file: Flock<File>,
    holder: Holder,
}

impl DirectoryLock {
    /// Writes for others to read who holds the lock and how far it is.
    pub fn announce(&mut self, phase: Phase, problem: Option<String>) -> anyhow::Result<()> {
        self.holder = Holder { pid: std::process::id(), phase, problem };
        let text = serde_json::to_vec(&self.holder).context("cannot write the lock's holder as JSON")?;
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&text)
        };
        write(&mut self.file).context("cannot write to the directory's lock file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_directory_has_one_holder_and_names_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        assert_eq!(directory.holder().unwrap(), None);
        let mut lock = directory.lock().unwrap();
        lock.announce(Phase::Running, Some("osd.1 is down".into())).unwrap();
        let holder = directory.holder().unwrap().unwrap();
        assert_eq!((holder.pid, holder.phase), (std::process::id(), Phase::Running));
        let refusal = directory.lock().unwrap_err().to_string();
        assert!(refusal.contains(&format!("process {}", std::process::id())), "{refusal}");
        drop(lock);
        assert_eq!(directory.holder().unwrap(), None);
        directory.lock().unwrap();
    }

    #[test]
    fn the_lock_of_one_that_was_killed_is_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        let mut lock = directory.lock().unwrap();
        let mut killed = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        killed.kill().unwrap();
        lock.holder.pid = killed.id();
        let text = serde_json::to_vec(&lock.holder).unwrap();
        std::fs::write(directory.lock_file(), text).unwrap();
        killed.wait().unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| directory.lock());
            std::thread::sleep(Duration::from_millis(200));
            assert!(!next.is_finished());
            drop(lock);
            next.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_by_name() {
        let directory = Directory::new(Path::new(&format!("/tmp/{}", "x".repeat(120)))).unwrap();
        let refusal = directory.prepare().unwrap_err().to_string();
        assert!(refusal.contains("shorter --dir"), "{refusal}");
    }
}
