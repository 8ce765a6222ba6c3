//! The using end: a registry that lives in another process, or is served by the nodes of a cluster.
//!
//! A task keeps one connection, and makes a new one when it is lost. Operations wait for a connection up
//! to the timeout. One whose answer was lost with the connection is repeated if that is harmless, else
//! reported as of unknown outcome. Leases live at the server and survive a reconnection. A watch resumes
//! after the last change it returned.
//!
//! A watch that is not read does not hold up the others: when its share of waiting batches is full it is
//! cut off, and resumes like after a lost connection once its reader comes back.
//!
//! Nodes are tried one after the other, from one that is drawn. They tell which others there are, so that a client
//! outlives all those that it knew at first.

use super::protocol::{ClientLine, LineReader, PROTOCOL, ServerLine, VERSION, encode};
use async_trait::async_trait;
use auth::{Identity, Stream};
use base::Encryption;
use registry::RawErrand;
use registry::RegistryError;
use registry::implement::PROBE;
use registry::implement::{Answer, Caller, Request};
use registry::{Endpoint, Endpoints};
use registry::{Registry, Revision, Watch, WatchBatch};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Lines waiting to be written.
const OUTGOING_MAX: usize = 256;
/// Batches of one watch waiting to be read.
const WATCH_BATCHES_MAX: usize = 64;
/// The pause before the first attempt to connect again; doubled each time up to the longest.
const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(50);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(2);
/// A connection that lived so long was a good one: the pause starts small again.
const STEADY: Duration = Duration::from_secs(5);
/// How long a server may take to greet.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one node may take to answer before another is asked.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);
/// How long a node may leave unacknowledged what it was sent. Another one is found before a lease of ten seconds ends that
/// is kept alive every three.
const SILENCE_LIMIT: Duration = Duration::from_secs(4);

/// A registry behind a Unix socket, served by a [`super::SocketServer`], or behind the nodes of a cluster.
pub struct RemoteRegistry {
    client: Arc<Client>,
}

impl RemoteRegistry {
    /// A client that connects in the background; operations wait for it up to `timeout`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(socket: &Path, timeout: Duration) -> RemoteRegistry {
        RemoteRegistry::reach(Place::Socket(socket.to_owned()), timeout)
    }

    fn reach(place: Place, timeout: Duration) -> RemoteRegistry {
        let (sender, link) = watch::channel(Link::Down("not connected yet".to_owned()));
        let (shown, is_of_nodes) = (place.to_string(), matches!(place, Place::Nodes(_)));
        let task = tokio::spawn(stay_connected(place, sender));
        RemoteRegistry {
            client: Arc::new(Client {
                place: shown,
                is_of_nodes,
                timeout,
                link,
                task,
                ids: AtomicU64::new(1),
            }),
        }
    }

    /// A client that has seen its registry answer.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when nobody answers within `timeout`.
    pub async fn connect(socket: &Path, timeout: Duration) -> Result<RemoteRegistry, RegistryError> {
        RemoteRegistry::new(socket, timeout).answering().await
    }

    /// A client of a cluster's nodes that has seen one of them answer.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when none answers within `timeout`, or takes that key.
    pub async fn connect_to_nodes(
        endpoints: &Endpoints,
        identity: &Identity,
        timeout: Duration,
    ) -> Result<RemoteRegistry, RegistryError> {
        let place = Place::Nodes(Nodes::new(endpoints, identity));
        RemoteRegistry::reach(place, timeout).answering().await
    }

    async fn answering(self) -> Result<RemoteRegistry, RegistryError> {
        self.get(PROBE).await?;
        Ok(self)
    }
}

/// Where a registry is served.
enum Place {
    Socket(PathBuf),
    Nodes(Nodes),
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Socket(path) => path.display().fmt(formatter),
            Place::Nodes(nodes) => formatter.write_str(&nodes.shown),
        }
    }
}

impl Place {
    async fn open(&mut self) -> Result<Box<dyn Stream>, String> {
        match self {
            Place::Socket(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| error.to_string())?;
                Ok(Box::new(stream))
            }
            Place::Nodes(nodes) => nodes.open().await,
        }
    }
}

/// The nodes of a cluster, as far as they are known.
struct Nodes {
    identity: Identity,
    /// Those that were named at first.
    first: Vec<Endpoint>,
    /// Those that a node told of last.
    told: Vec<Endpoint>,
    /// Attempts without success since the last success.
    failures: usize,
    /// Counts the attempts, from a number that was drawn: clients shall spread over the nodes.
    next: usize,
    shown: String,
}

impl Nodes {
    fn new(endpoints: &Endpoints, identity: &Identity) -> Nodes {
        let next = (uuid::Uuid::new_v4().as_u64_pair().0 >> 1) as usize;
        let (shown, first) = (endpoints.place(), endpoints.all().to_vec());
        Nodes { identity: identity.clone(), told: first.clone(), first, failures: 0, next, shown }
    }

    /// Connects to the next. Once none that it was told of lets it in, those that were named at first have their turn.
    async fn open(&mut self) -> Result<Box<dyn Stream>, String> {
        let (told, first) = (self.told.len(), self.first.len());
        let among = if self.failures % (told + first) < told { &self.told } else { &self.first };
        let endpoint = among[self.next % among.len()];
        self.next += 1;
        self.failures += 1;
        // Whatever the rest of the cluster does: it costs nothing here.
        let channel = auth::reach(&self.identity, endpoint.key, endpoint.address, Encryption::On).await?;
        channel.end_unless_acknowledged_within(SILENCE_LIMIT).map_err(|error| error.to_string())?;
        Ok(Box::new(channel.into_stream()))
    }

    /// Takes over which there are, from a node that serves this client.
    fn learn(&mut self, endpoints: Vec<Endpoint>) {
        self.failures = 0;
        if !endpoints.is_empty() {
            self.told = endpoints;
        }
    }
}

#[async_trait]
impl Caller for RemoteRegistry {
    fn place(&self) -> String {
        self.client.place.clone()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        request.check()?;
        let revokes = matches!(request, Request::LeaseRevoke { .. });
        let repeatable = request.repeatable();
        let line = |id| ClientLine::Request { id, request: request.clone() };
        let (answer, attempts) = self.client.call(repeatable, None, line).await?;
        match answer {
            // The first attempt's answer was lost, and it did what was asked.
            Err(RegistryError::LeaseNotFound { .. }) if revokes && attempts > 1 => Ok(Answer::Done),
            answer => answer,
        }
    }

    async fn send_on_errand(&self, errand: RawErrand) -> Result<Option<serde_json::Value>, RegistryError> {
        // Who reaches the socket may write.
        if !self.client.is_of_nodes {
            return Ok(None);
        }
        match self.call(Request::Errand(errand)).await? {
            Answer::Errand(outcome) => Ok(outcome),
            other => Err(other.unexpected(&self.place())),
        }
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        let mut watch =
            RemoteWatch { client: self.client.clone(), prefix, position: start, subscription: None };
        watch.subscribe().await?;
        Ok(Box::new(watch))
    }
}

/// Whether there is a connection now.
#[derive(Clone)]
enum Link {
    Down(String),
    Up(Arc<Connection>),
}

/// What the registry and its watches share. The last of them ends the connection.
struct Client {
    place: String,
    /// There are several that can be asked.
    is_of_nodes: bool,
    timeout: Duration,
    link: watch::Receiver<Link>,
    task: JoinHandle<()>,
    ids: AtomicU64,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Sends a line made for an id of its own and waits for the answer. Returns it with the number of
    /// attempts it took. A subscription is entered on the connection that the line goes over.
    async fn call(
        &self,
        repeatable: bool,
        subscription: Option<&mut Option<Subscription>>,
        line: impl Fn(u64) -> ClientLine,
    ) -> Result<(Result<Answer, RegistryError>, u32), RegistryError> {
        let deadline = Instant::now() + self.timeout;
        let mut subscription = subscription;
        let mut attempts = 0;
        loop {
            let connection = self.connection(deadline).await?;
            attempts += 1;
            let id = self.ids.fetch_add(1, Ordering::Relaxed);
            if let Some(subscription) = &mut subscription {
                **subscription = connection.subscribe(id);
            }
            let asking = connection.ask(id, encode(&line(id)));
            // What may not be repeated is worth waiting for.
            let is_brief = self.is_of_nodes && repeatable;
            let limit = if is_brief { deadline.min(Instant::now() + ATTEMPT_LIMIT) } else { deadline };
            let reason = match tokio::time::timeout_at(limit, asking).await {
                // It is that node which does not reach the registry: another may.
                Ok(Ok(Err(RegistryError::Unreachable { .. } | RegistryError::Closed)))
                    if self.is_of_nodes && Instant::now() < deadline =>
                {
                    connection.give_up();
                    continue;
                }
                Ok(Ok(answer)) => return Ok((answer, attempts)),
                Ok(Err(Lost::BeforeSending)) => continue,
                Ok(Err(Lost::AfterSending)) if repeatable => continue,
                Ok(Err(Lost::AfterSending)) => "the connection was lost",
                Err(_) if self.is_of_nodes => {
                    connection.give_up();
                    if repeatable && Instant::now() < deadline {
                        continue;
                    }
                    "no answer in time"
                }
                Err(_) => "no answer in time",
            };
            return Err(if repeatable {
                self.unreachable(reason)
            } else {
                RegistryError::OutcomeUnknown { registry: self.place.clone(), reason: reason.to_owned() }
            });
        }
    }

    async fn connection(&self, deadline: Instant) -> Result<Arc<Connection>, RegistryError> {
        let mut link = self.link.clone();
        let mut reason = "not connected".to_owned();
        loop {
            match &*link.borrow_and_update() {
                Link::Up(connection) if connection.is_open() => return Ok(connection.clone()),
                Link::Up(_) => "the connection was lost".clone_into(&mut reason),
                Link::Down(down) => reason.clone_from(down),
            }
            match tokio::time::timeout_at(deadline, link.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(RegistryError::Closed),
                Err(_) => return Err(self.unreachable(&reason)),
            }
        }
    }

    fn unreachable(&self, reason: &str) -> RegistryError {
        RegistryError::Unreachable {
            registry: self.place.clone(),
            waited_ms: self.timeout.as_millis() as u64,
            reason: reason.to_owned(),
        }
    }
}

/// Connects, and again whenever the connection is lost.
async fn stay_connected(mut place: Place, link: watch::Sender<Link>) {
    let mut pause = RECONNECT_PAUSE_MIN;
    loop {
        let reason = match greet(&mut place).await {
            Ok((reader, writer)) => {
                let since = Instant::now();
                let (outgoing, lines) = mpsc::channel(OUTGOING_MAX);
                let waiting = Mutex::new(Some(Waiting::default()));
                let connection = Arc::new(Connection { outgoing, waiting, given_up: Notify::new() });
                link.send_replace(Link::Up(connection.clone()));
                let reason = tokio::select! {
                    reason = receive(reader, &connection, &mut place) => reason,
                    reason = transmit(writer, lines) => reason,
                    () = connection.given_up.notified() => "it did not answer in time".to_owned(),
                };
                connection.close();
                if since.elapsed() >= STEADY {
                    pause = RECONNECT_PAUSE_MIN;
                }
                reason
            }
            Err(reason) => reason,
        };
        tracing::debug!(registry = %place, reason, "not connected to the registry");
        link.send_replace(Link::Down(reason));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
    }
}

/// Opens a connection and exchanges hellos.
async fn greet(
    place: &mut Place,
) -> Result<(LineReader<ReadHalf<Box<dyn Stream>>>, WriteHalf<Box<dyn Stream>>), String> {
    let greeting = async {
        let (reader, mut writer) = tokio::io::split(place.open().await?);
        let mut reader = LineReader::new(reader);
        let hello = ClientLine::Hello { protocol: PROTOCOL.to_owned(), version: VERSION };
        // A server that refuses may have closed already; what it said is read all the same.
        let written = writer.write_all(&encode(&hello)).await;
        match reader.next_message().await.map_err(|error| error.to_string())? {
            Some(ServerLine::Hello { version: VERSION }) => {
                written.map_err(|error| error.to_string())?;
                Ok((reader, writer))
            }
            Some(ServerLine::Hello { version }) => {
                Err(format!("it speaks version {version}, this millpond version {VERSION}"))
            }
            Some(ServerLine::Close { reason }) => Err(format!("it refused: {reason}")),
            Some(_) => Err("it did not say hello".to_owned()),
            None => Err("it closed the connection".to_owned()),
        }
    };
    tokio::time::timeout(GREETING_TIMEOUT, greeting)
        .await
        .unwrap_or_else(|_| Err("it says nothing".to_owned()))
}

async fn receive(
    mut reader: LineReader<impl AsyncRead + Unpin>,
    connection: &Connection,
    place: &mut Place,
) -> String {
    loop {
        match reader.next_message().await {
            Ok(Some(ServerLine::Answer { id, result })) => connection.answered(id, result),
            Ok(Some(ServerLine::Batch { watch, result })) => connection.watched(watch, result),
            Ok(Some(ServerLine::Endpoints { endpoints })) => {
                if let Place::Nodes(nodes) = &mut *place {
                    nodes.learn(endpoints);
                }
            }
            Ok(Some(ServerLine::Close { reason })) => return format!("it closed the connection: {reason}"),
            Ok(Some(ServerLine::Hello { .. } | ServerLine::Part { .. })) => {
                return "it sent what makes no sense here".to_owned();
            }
            Ok(None) => return "it closed the connection".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

async fn transmit(mut writer: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Vec<u8>>) -> String {
    while let Some(line) = lines.recv().await {
        if let Err(error) = writer.write_all(&line).await {
            return error.to_string();
        }
    }
    "the client is gone".to_owned()
}

/// Why an operation on one connection has no answer.
enum Lost {
    BeforeSending,
    AfterSending,
}

type WatchItem = Result<WatchBatch, RegistryError>;

/// Who waits for something on a connection.
#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Result<Answer, RegistryError>>>,
    watches: HashMap<u64, mpsc::Sender<WatchItem>>,
}

/// One connection while it lives.
struct Connection {
    outgoing: mpsc::Sender<Vec<u8>>,
    /// `None` once it is closed: nobody can begin to wait for what will never come.
    waiting: Mutex<Option<Waiting>>,
    /// Another shall take its place.
    given_up: Notify,
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, Option<Waiting>> {
        // Nothing that can panic runs while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    /// Drops everyone's sender; they find their channel closed.
    fn close(&self) {
        self.lock().take();
    }

    /// Ends it, so that another is made.
    fn give_up(&self) {
        self.close();
        self.given_up.notify_one();
    }

    async fn ask(&self, id: u64, line: Vec<u8>) -> Result<Result<Answer, RegistryError>, Lost> {
        let (sender, answer) = oneshot::channel();
        match &mut *self.lock() {
            Some(waiting) => waiting.answers.insert(id, sender),
            None => return Err(Lost::BeforeSending),
        };
        let _forget = Forget { connection: self, id };
        self.outgoing.send(line).await.map_err(|_| Lost::BeforeSending)?;
        answer.await.map_err(|_| Lost::AfterSending)
    }

    fn answered(&self, id: u64, result: Result<Answer, RegistryError>) {
        if let Some(waiting) = &mut *self.lock()
            && let Some(sender) = waiting.answers.remove(&id)
        {
            // Who stopped waiting meanwhile does not want it.
            let _ = sender.send(result);
        }
    }

    fn subscribe(self: &Arc<Self>, watch: u64) -> Option<Subscription> {
        let (sender, batches) = mpsc::channel(WATCH_BATCHES_MAX);
        self.lock().as_mut()?.watches.insert(watch, sender);
        Some(Subscription { connection: self.clone(), watch, batches })
    }

    fn watched(&self, watch: u64, item: WatchItem) {
        let mut waiting = self.lock();
        let Some(waiting) = &mut *waiting else { return };
        let ended = item.is_err();
        let taken = waiting.watches.get(&watch).is_some_and(|sender| sender.try_send(item).is_ok());
        if !taken || ended {
            waiting.watches.remove(&watch);
        }
        if !taken && !ended {
            self.unwatch(watch);
        }
    }

    /// Asks the server to stop. If there is no room to ask now, the next batch gives another occasion.
    fn unwatch(&self, watch: u64) {
        let _ = self.outgoing.try_send(encode(&ClientLine::Unwatch { watch }));
    }
}

/// Removes an operation from those waiting, however its waiting ends.
struct Forget<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = &mut *self.connection.lock() {
            waiting.answers.remove(&self.id);
        }
    }
}

/// A watch's share of one connection.
struct Subscription {
    connection: Arc<Connection>,
    watch: u64,
    batches: mpsc::Receiver<WatchItem>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let running = match &mut *self.connection.lock() {
            Some(waiting) => waiting.watches.remove(&self.watch).is_some(),
            None => false,
        };
        if running {
            self.connection.unwatch(self.watch);
        }
    }
}

/// A watch that outlives connections.
struct RemoteWatch {
    client: Arc<Client>,
    prefix: String,
    position: Revision,
    subscription: Option<Subscription>,
}

impl RemoteWatch {
    async fn subscribe(&mut self) -> Result<(), RegistryError> {
        let mut subscription = None;
        let (prefix, start) = (self.prefix.clone(), self.position);
        let line = |id| ClientLine::Watch { id, watch: id, prefix: prefix.clone(), start };
        let (answer, _) = self.client.call(true, Some(&mut subscription), line).await?;
        match answer? {
            Answer::Watching { position } => {
                self.position = position;
                self.subscription = subscription;
                Ok(())
            }
            other => Err(other.unexpected(&self.client.place)),
        }
    }
}

#[async_trait]
impl Watch for RemoteWatch {
    fn position(&self) -> Revision {
        self.position
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        loop {
            let Some(subscription) = &mut self.subscription else {
                match self.subscribe().await {
                    // A watch has no deadline: it waits for its registry as long as it takes.
                    Ok(()) | Err(RegistryError::Unreachable { .. }) => continue,
                    Err(error) => return Err(error),
                }
            };
            match subscription.batches.recv().await {
                Some(Ok(batch)) => {
                    self.position = batch.revision.next();
                    return Ok(batch);
                }
                Some(Err(error)) => {
                    self.subscription = None;
                    return Err(error);
                }
                None => self.subscription = None,
            }
        }
    }
}

// The futures of operations go between threads.
const _: fn(&RemoteRegistry) = |registry| {
    fn is_send(_: impl Future + Send) {}
    is_send(registry.get(""));
};
