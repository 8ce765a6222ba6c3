//! The serving end: exposes any registry on a Unix socket, or to whoever is at the other end of a stream.
//!
//! Everything that arrives is bounded before it is believed: the line's length, the operations in
//! progress, the watches, the connections. What makes no sense closes its connection with a reason; the
//! others do not notice.

use super::protocol::{
    ClientLine, LINE_BYTES_MAX, LineError, LineReader, PROTOCOL, ServerLine, VERSION, write_message,
};
use registry::Endpoint;
use registry::RegistryError;
use registry::implement::PROBE;
use registry::implement::check_prefix;
use registry::implement::{Answer, perform};
use registry::{Operation, Registry, Revision, Txn, Watch};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Connections at a time; further ones are told so and closed.
const CONNECTIONS_MAX: usize = 512;
/// What the processes of the cluster's owner may occupy.
const OF_OWNER: ConnectionLimits =
    ConnectionLimits { in_progress: 256, watches: 1024, line_bytes: LINE_BYTES_MAX };
/// Messages waiting to be written to one connection.
const OUTGOING_MAX: usize = 64;
/// How long a new connection may take to say hello: one that says nothing must not hold a place.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a closing connection may take to read the reason.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
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

/// What one connection may occupy.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Operations in progress; then its next line is not read.
    pub in_progress: usize,
    /// Watches.
    pub watches: usize,
    /// Bytes of the longest line that it sends.
    pub line_bytes: usize,
}

/// Serves a registry to whoever is at the other end of a stream, until that ends. The other side is told at once, and again
/// whenever they change, where else the registry is served.
pub async fn serve_stream<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    registry: Arc<dyn Registry>,
    limits: ConnectionLimits,
    endpoints: watch::Receiver<Vec<Endpoint>>,
) {
    serve(stream, registry, limits, Some(endpoints)).await;
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
        let task = tokio::spawn(accept(listener, registry));
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

async fn accept(listener: UnixListener, registry: Arc<dyn Registry>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() >= CONNECTIONS_MAX => {
                    let reason = format!("there are {CONNECTIONS_MAX} connections already; close some");
                    // At once or not at all: refusing must cost nothing that could run out.
                    let text = format!("{}\n", serde_json::json!({"close": {"reason": reason}}));
                    let _ = stream.try_write(text.as_bytes());
                }
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, registry.clone(), OF_OWNER, None));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the registry was not accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Serves one connection to its end.
async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    registry: Arc<dyn Registry>,
    limits: ConnectionLimits,
    endpoints: Option<watch::Receiver<Vec<Endpoint>>>,
) {
    let (reader, writer) = tokio::io::split(stream);
    let (outgoing, messages) = mpsc::channel(OUTGOING_MAX);
    let mut writing = JoinSet::new();
    writing.spawn(write_all(writer, messages));
    let mut connection = Connection {
        registry,
        outgoing: outgoing.clone(),
        operations: JoinSet::new(),
        permits: Arc::new(Semaphore::new(limits.in_progress)),
        watches: HashMap::new(),
        watches_max: limits.watches,
        endpoints,
        watch_tasks: JoinSet::new(),
    };
    let ended = tokio::select! {
        ended = connection.read(LineReader::limited(reader, limits.line_bytes)) => ended,
        // The peer no longer reads: nothing that is left to say can arrive.
        _ = writing.join_next() => return,
    };
    drop(connection);
    if let Err(reason) = ended {
        tracing::debug!(reason, "a connection to the registry is closed");
        let farewell = async {
            let _ = outgoing.send(ServerLine::Close { reason }.into()).await;
            drop(outgoing);
            let _ = writing.join_next().await;
        };
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, farewell).await;
    }
}

async fn write_all(mut writer: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        if write_message(&mut writer, &message.line).await.is_err() {
            return;
        }
    }
}

/// What waits to be written.
struct Message {
    line: ServerLine,
    /// The place of the operation that it is the answer to: kept until it is written, so that who does not read has few under way.
    _permit: Option<OwnedSemaphorePermit>,
}

impl From<ServerLine> for Message {
    fn from(line: ServerLine) -> Message {
        Message { line, _permit: None }
    }
}

struct Connection {
    registry: Arc<dyn Registry>,
    outgoing: mpsc::Sender<Message>,
    operations: JoinSet<()>,
    permits: Arc<Semaphore>,
    watches: HashMap<u64, AbortHandle>,
    watches_max: usize,
    /// Where else the registry is served, until that is being told.
    endpoints: Option<watch::Receiver<Vec<Endpoint>>>,
    watch_tasks: JoinSet<()>,
}

impl Connection {
    /// Reads until the peer ends (`Ok`) or must be closed (`Err` with the reason).
    async fn read(&mut self, mut lines: LineReader<impl AsyncRead + Unpin>) -> Result<(), String> {
        let hello = tokio::time::timeout(HELLO_TIMEOUT, lines.next()).await;
        let hello = hello.map_err(|_| format!("no hello within {} s", HELLO_TIMEOUT.as_secs()))?;
        match hello.map_err(|error| error.to_string())? {
            None => return Ok(()),
            Some(ClientLine::Hello { protocol, version }) if protocol == PROTOCOL && version == VERSION => {}
            Some(ClientLine::Hello { protocol, version }) => {
                let protocol: String = protocol.chars().take(40).collect();
                return Err(format!(
                    "this is {PROTOCOL} version {VERSION}, not {protocol} version {version}; run the same version of millpond at both ends"
                ));
            }
            Some(_) => return Err("the first line must be a hello".to_owned()),
        }
        self.say(ServerLine::Hello { version: VERSION }).await?;
        if let Some(endpoints) = self.endpoints.take() {
            self.watch_tasks.spawn(tell(endpoints, self.outgoing.clone()));
        }
        loop {
            let line = match lines.next().await {
                Ok(Some(line)) => line,
                Ok(None) | Err(LineError::Io(_)) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            self.handle(line).await?;
        }
    }

    async fn handle(&mut self, line: ClientLine) -> Result<(), String> {
        while self.operations.try_join_next().is_some() {}
        match line {
            ClientLine::Hello { .. } => Err("a second hello".to_owned()),
            ClientLine::Request { id, request } => {
                let permit = self.permits.clone().acquire_owned().await;
                let permit = permit.expect("the semaphore is never closed");
                let (registry, outgoing) = (self.registry.clone(), self.outgoing.clone());
                self.operations.spawn(async move {
                    let result = perform(&*registry, request).await;
                    // A closed channel is a closed connection: nobody waits for this answer.
                    let line = ServerLine::Answer { id, result };
                    let _ = outgoing.send(Message { line, _permit: Some(permit) }).await;
                });
                Ok(())
            }
            ClientLine::Watch { id, watch, prefix, start } => {
                self.start_watch(id, watch, &prefix, start).await
            }
            ClientLine::Unwatch { watch } => {
                if let Some(task) = self.watches.remove(&watch) {
                    task.abort();
                }
                Ok(())
            }
        }
    }

    async fn start_watch(
        &mut self,
        id: u64,
        watch: u64,
        prefix: &str,
        start: Revision,
    ) -> Result<(), String> {
        while self.watch_tasks.try_join_next().is_some() {}
        self.watches.retain(|_, task| !task.is_finished());
        let max = self.watches_max;
        if self.watches.len() >= max {
            return Err(format!("more than {max} watches on one connection"));
        }
        if self.watches.contains_key(&watch) {
            return Err(format!("watch {watch} is running already"));
        }
        let started = match check_prefix(prefix) {
            Ok(()) => match check_start(&*self.registry, start).await {
                Ok(()) => self.registry.watch(prefix, start).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        match started {
            Ok(source) => {
                let position = source.position();
                self.say(ServerLine::Answer { id, result: Ok(Answer::Watching { position }) }).await?;
                let task = self.watch_tasks.spawn(forward(watch, source, self.outgoing.clone()));
                self.watches.insert(watch, task);
                Ok(())
            }
            Err(error) => self.say(ServerLine::Answer { id, result: Err(error) }).await,
        }
    }

    async fn say(&self, message: ServerLine) -> Result<(), String> {
        self.outgoing.send(message.into()).await.map_err(|_| "the connection is gone".to_owned())
    }
}

/// Whether a watch may go on from there. Who followed another registry, or this one before it was set back, has seen revisions
/// that this one did not come to: it must read anew, and not wait for these.
async fn check_start(registry: &dyn Registry, start: Revision) -> Result<(), RegistryError> {
    if start.0 <= 1 {
        return Ok(());
    }
    let now = registry.txn(Txn::new().then(Operation::get(PROBE))).await?.revision;
    match start > now.next() {
        true => Err(RegistryError::Compacted { asked: start, compacted: now }),
        false => Ok(()),
    }
}

/// Tells where else the registry is served, at once and whenever that changes.
async fn tell(mut endpoints: watch::Receiver<Vec<Endpoint>>, outgoing: mpsc::Sender<Message>) {
    loop {
        let line = ServerLine::Endpoints { endpoints: endpoints.borrow_and_update().clone() };
        if outgoing.send(line.into()).await.is_err() || endpoints.changed().await.is_err() {
            return;
        }
    }
}

/// Passes on what a watch sees until it fails or the connection ends.
async fn forward(watch: u64, mut source: Box<dyn Watch>, outgoing: mpsc::Sender<Message>) {
    loop {
        let result = source.next().await;
        if matches!(result, Err(RegistryError::Closed)) {
            // The server is going down; the client will find it again and resume.
            return;
        }
        let ended = result.is_err();
        if outgoing.send(ServerLine::Batch { watch, result }.into()).await.is_err() || ended {
            return;
        }
    }
}
