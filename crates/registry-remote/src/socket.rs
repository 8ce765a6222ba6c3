//! A registry on a Unix socket.

use axum::middleware::from_fn;
use axum::{Extension, Router};
use cluster::{Clerk, Cluster};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use registry::Registry;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};

/// Connections at a time, of which each watch is one; further ones are closed.
const CONNECTIONS_MAX: usize = 2048;
/// How long a request may take to come: who says nothing must not hold a place.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// The pause after a connection could not be accepted, for want of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of the longest path a Unix socket can have on Linux.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why a socket could not be served.
#[derive(thiserror::Error, Debug)]
pub enum ServeError {
    /// Another process serves it.
    #[error(
        "{path}: another process answers on this socket; is this cluster running already? stop it with `millpond down`"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("{path}: is there already and is no socket; move it away")]
    NotASocket {
        /// What stands there.
        path: PathBuf,
    },
    /// Linux allows no such path for a socket.
    #[error(
        "{path}: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes; use a directory with a shorter path"
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}; check that the directory exists and is writable")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Serves a registry on a Unix socket until it is dropped; then the socket's name is gone too.
pub struct SocketServer {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl SocketServer {
    /// Serves `registry` at `path`. A socket that a dead server left there is replaced.
    ///
    /// # Errors
    /// Why that path cannot be served.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn bind(path: &Path, registry: Arc<dyn Registry>) -> Result<SocketServer, ServeError> {
        let io_error = |source| ServeError::Io { path: path.to_owned(), source };
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(ServeError::PathTooLong { path: path.to_owned() });
        }
        clear_way(path)?;
        let listener = listen(path).map_err(io_error)?;
        let clerk = Clerk::of_owner(Cluster::new(registry));
        let router = crate::router().layer(Extension(clerk)).layer(from_fn(crate::in_time));
        let task = tokio::spawn(accept(listener, router));
        Ok(SocketServer { path: path.to_owned(), task })
    }

    /// Where it serves.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket on which nobody answers.
fn clear_way(path: &Path) -> Result<(), ServeError> {
    let io_error = |source| ServeError::Io { path: path.to_owned(), source };
    let metadata = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io_error)?,
    };
    if !metadata.file_type().is_socket() {
        return Err(ServeError::NotASocket { path: path.to_owned() });
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ServeError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(io_error)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(io_error(source)),
    }
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    // Between bind and listen nobody can connect, so the mode is in force before anybody could.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket)))
}

async fn accept(listener: UnixListener, router: Router) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                // At once: refusing must cost nothing that could run out.
                Ok((stream, _)) if connections.len() >= CONNECTIONS_MAX => drop(stream),
                Ok((stream, _)) => {
                    let service = TowerToHyperService::new(router.clone());
                    let serving = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(REQUEST_LIMIT)
                        .serve_connection(TokioIo::new(stream), service);
                    connections.spawn(async move { drop(serving.await) });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the registry was not accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}
