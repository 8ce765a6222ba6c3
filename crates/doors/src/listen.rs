//! Where clients of doors connect to: a Unix socket that only its owner reaches, or a TCP port.

use socket2::{Domain, SockAddr, Socket, Type};
use std::fmt;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The longest path a Unix socket can have on Linux, in bytes (`sun_path` less its final zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Clients that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Where clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port; port 0 stands for a free one.
    Tcp(SocketAddr),
}

impl Listen {
    /// Whether only this machine reaches it.
    #[must_use]
    pub fn is_of_this_machine(&self) -> bool {
        match self {
            Listen::Unix(_) => true,
            Listen::Tcp(address) => address.ip().to_canonical().is_loopback(),
        }
    }
}

/// Where the lease of who listens in one of these places is noted: beside the first Unix socket, which nobody else has. Who is killed there
/// is followed at once (see `volume::SessionOptions::note`).
pub(crate) fn note_beside(places: &[Listen]) -> Option<PathBuf> {
    places.iter().find_map(|place| match place {
        Listen::Unix(path) => Some(note_at(path)),
        Listen::Tcp(_) => None,
    })
}

/// The same of who listens on that socket.
pub(crate) fn note_at(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lease");
    name.into()
}

impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Listen::Tcp(address) => write!(formatter, "tcp:{address}"),
        }
    }
}

/// Why nobody can connect.
#[derive(thiserror::Error, Debug)]
pub enum ListenError {
    /// Somebody serves there.
    #[error("{0} is in use by another server; end that one, or listen elsewhere with --listen")]
    InUse(Listen),
    /// There is something that is not ours to remove.
    #[error("{} exists and is no socket; remove it, or listen elsewhere with --listen", .0.display())]
    NotASocket(PathBuf),
    /// No Unix socket can be there.
    #[error(
        "{}: the path of a Unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter one with --listen",
        .0.display()
    )]
    PathTooLong(PathBuf),
    /// The system refused.
    #[error("cannot listen on {place}: {source}; choose another place with --listen")]
    Io {
        /// Where.
        place: Listen,
        /// What the system said.
        source: Error,
    },
}

/// A listening socket, and the name it has in the file system, which goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    /// `None` once it was given to a reactor.
    socket: Option<Socket>,
    place: Listen,
    /// Which file the socket's name is.
    file: Option<WhichFile>,
}

/// A file's file system and number there, and when it was changed: numbers are given again at once.
type WhichFile = (u64, u64, i64, i64);

/// Which file is there.
fn file_at(path: &Path) -> Option<WhichFile> {
    let found = path.symlink_metadata().ok()?;
    Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

impl Listener {
    /// Listens. A Unix socket that a dead server left is replaced.
    pub(crate) fn bind(listen: &Listen) -> Result<Listener, ListenError> {
        let failed = |source: Error| match source.kind() {
            ErrorKind::AddrInUse => ListenError::InUse(listen.clone()),
            _ => ListenError::Io { place: listen.clone(), source },
        };
        match listen {
            Listen::Unix(path) => {
                if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                    return Err(ListenError::PathTooLong(path.clone()));
                }
                clear_way(listen, path)?;
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
                socket.bind(&SockAddr::unix(path).map_err(failed)?).map_err(failed)?;
                let mut listener =
                    Listener { socket: Some(socket), place: listen.clone(), file: file_at(path) };
                // Before it listens nobody can connect, so the mode is in force before anybody could.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
                listener.file = file_at(path);
                listener.socket().listen(BACKLOG).map_err(failed)?;
                Ok(listener)
            }
            Listen::Tcp(address) => {
                let socket =
                    Socket::new(Domain::for_address(*address), Type::STREAM, None).map_err(failed)?;
                // A server that was just ended leaves connections behind that would block the port.
                socket.set_reuse_address(true).map_err(failed)?;
                socket.bind(&(*address).into()).map_err(failed)?;
                socket.listen(BACKLOG).map_err(failed)?;
                let bound = socket.local_addr().map_err(failed)?.as_socket().unwrap_or(*address);
                Ok(Listener { socket: Some(socket), place: Listen::Tcp(bound), file: None })
            }
        }
    }

    fn socket(&self) -> &Socket {
        self.socket.as_ref().expect("it is given away once, after it was made")
    }

    /// Where it listens, with the port that it got.
    pub(crate) fn place(&self) -> &Listen {
        &self.place
    }

    /// The socket, for a reactor.
    pub(crate) fn take_socket(&mut self) -> Socket {
        self.socket.take().expect("it is given away once, after it was made")
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Who came to serve here when this one did not answer any more has a name of its own.
        if let Listen::Unix(path) = &self.place
            && file_at(path) == self.file
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket on which nobody answers.
fn clear_way(listen: &Listen, path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::Io { place: listen.clone(), source };
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(ListenError::InUse(listen.clone())),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_socket_is_its_owners_alone_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let listener = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = Listener::bind(&Listen::Unix(path.clone())).unwrap_err();
        assert!(matches!(second, ListenError::InUse(_)), "{second}");
        assert!(path.exists(), "who is refused removes nothing");
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn what_other_machines_reach_is_known() {
        let tcp = |address: &str| Listen::Tcp(address.parse().unwrap());
        for own in [Listen::Unix("x".into()), tcp("127.0.0.1:1"), tcp("[::1]:1"), tcp("[::ffff:127.0.0.2]:1")]
        {
            assert!(own.is_of_this_machine(), "{own}");
        }
        for open in [tcp("0.0.0.0:1"), tcp("[::]:1"), tcp("192.0.2.1:1"), tcp("[::ffff:192.0.2.1]:1")] {
            assert!(!open.is_of_this_machine(), "{open}");
        }
    }

    #[test]
    fn who_ends_leaves_the_socket_of_who_follows_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let mut first = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        // It does not answer any more, and is not gone.
        drop(first.take_socket());
        let second = Listener::bind(&Listen::Unix(path.clone())).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_server_left_is_replaced_and_what_is_no_socket_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::bind(&Listen::Unix(path.clone())).unwrap());
        std::fs::write(&path, "data").unwrap();
        let refused = Listener::bind(&Listen::Unix(path.clone())).unwrap_err();
        assert!(matches!(refused, ListenError::NotASocket(_)), "{refused}");
        let long = directory.path().join("x".repeat(120));
        assert!(matches!(Listener::bind(&Listen::Unix(long)), Err(ListenError::PathTooLong(_))));
    }

    #[test]
    fn a_tcp_port_that_is_taken_is_named() {
        let listener = Listener::bind(&Listen::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let second = Listener::bind(listener.place()).unwrap_err().to_string();
        assert!(second.contains(&listener.place().to_string()) && second.contains("in use"), "{second}");
    }
}
