//! Questions over HTTP, one on a connection at a time, to whoever is at a place: connections that are kept for the next one,
//! and attempts until the time is up.

use crate::nodes::Nodes;
use crate::protocol::{Failure, SILENCE_MAX, line};
use auth::Stream;
use axum::body::Bytes;
use axum::http::{Request, StatusCode, header};
use base::map::ClusterMap;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use registry::{Endpoint, RegistryError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

/// The pause before the next attempt; doubled each time up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest where it costs nobody anything: a socket is of this machine, and whoever served it may be back any moment.
const PAUSE_MAX_OF_SOCKET: Duration = Duration::from_millis(200);
/// How long one node may take to answer before another is asked.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);
/// Questions at a time; others wait.
const QUESTIONS_MAX: usize = 32;
/// A connection that nothing was asked on for so long is not asked on any more: the other side is about to end it.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Who has begun to answer, and says nothing for so long, has died.
const SILENCE_LIMIT: Duration = SILENCE_MAX.saturating_mul(3);
/// Bytes of the longest line.
const LINE_BYTES_MAX: usize = 512 << 20;

/// A connection, and to which of the nodes, where it is to one.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    endpoint: Option<Endpoint>,
}

/// Who is asked.
pub(crate) enum Way {
    Socket(PathBuf),
    Nodes(Nodes),
}

impl Way {
    fn pause_max(&self) -> Duration {
        match self {
            Way::Socket(_) => PAUSE_MAX_OF_SOCKET,
            Way::Nodes(_) => PAUSE_MAX,
        }
    }
}

/// See the module's documentation.
pub(crate) struct Link {
    way: Way,
    /// Where that is, for people.
    pub(crate) place: String,
    /// How long an answer is waited for.
    timeout: Duration,
    questions: Semaphore,
    /// Connections that are free, and since when.
    idle: Mutex<Vec<(Connection, Instant)>>,
}

/// Why one attempt gave no answer.
enum Missing {
    /// Nothing was asked.
    Unsent(String),
    /// It may have been done.
    Lost(String),
}

impl Link {
    pub(crate) fn new(way: Way, place: String, timeout: Duration) -> Link {
        Link { way, place, timeout, questions: Semaphore::new(QUESTIONS_MAX), idle: Mutex::default() }
    }

    /// Takes over from the map who can be asked.
    pub(crate) fn learn(&self, map: &ClusterMap) {
        if let Way::Nodes(nodes) = &self.way {
            nodes.learn(map);
        }
    }

    /// The answer to a question, and whether an attempt before it may have had another.
    pub(crate) async fn ask<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &impl Serialize,
        is_repeatable: bool,
    ) -> (Result<A, Failure>, bool) {
        let deadline = Instant::now() + self.timeout;
        let Ok(_turn) = timeout_at(deadline, self.questions.acquire()).await else {
            return (Err(self.unreachable("too much is asked at once".to_owned())), false);
        };
        let mut may_be_done = false;
        let asking = self.try_until(deadline, path, question, is_repeatable, &mut may_be_done);
        let answer = match asking.await {
            Ok((answer, lines)) => {
                // One that does not come to its end is not used again.
                let _ = timeout_at(deadline, self.keep(lines)).await;
                answer
            }
            Err(failure) => Err(failure),
        };
        (answer, may_be_done)
    }

    fn unreachable(&self, reason: String) -> Failure {
        let (registry, waited_ms) = (self.place.clone(), self.timeout.as_millis() as u64);
        Failure::Registry(RegistryError::Unreachable { registry, waited_ms, reason })
    }

    /// Asks others from now on, as far as there are any: that node did not answer, or not for the registry.
    fn leave(&self, endpoint: Option<Endpoint>) {
        if let (Way::Nodes(nodes), Some(endpoint)) = (&self.way, endpoint) {
            nodes.failed(endpoint);
            self.idle().retain(|(connection, _)| connection.endpoint != Some(endpoint));
        }
    }

    /// Leaves who told that, and does not any more.
    pub(crate) fn leave_teller(&self, lines: &Lines) {
        self.leave(lines.connection.endpoint);
    }

    /// The first line of a stream, and the others as they come.
    pub(crate) async fn follow<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<(A, Lines), Failure> {
        let deadline = Instant::now() + self.timeout;
        let (first, lines) = self.try_until(deadline, path, question, true, &mut false).await?;
        Ok((first?, lines))
    }

    async fn try_until<A: DeserializeOwned>(
        &self,
        deadline: Instant,
        path: &str,
        question: &impl Serialize,
        is_repeatable: bool,
        may_be_done: &mut bool,
    ) -> Result<(Result<A, Failure>, Lines), Failure> {
        let question = Bytes::from(line(question));
        let is_of_nodes = matches!(self.way, Way::Nodes(_));
        let mut pause = PAUSE_MIN;
        loop {
            // What may not be repeated is worth waiting for.
            let is_brief = is_of_nodes && is_repeatable;
            let limit = if is_brief { deadline.min(Instant::now() + ATTEMPT_LIMIT) } else { deadline };
            let reason = match self.attempt::<A>(path, question.clone(), limit, is_repeatable).await {
                // It is that node which does not reach the registry: another may.
                Ok((
                    Err(Failure::Registry(
                        error @ (RegistryError::Unreachable { .. } | RegistryError::Closed),
                    )),
                    lines,
                )) if is_of_nodes => {
                    // Its registry may have done what is safe to repeat.
                    *may_be_done |= is_repeatable;
                    self.leave_teller(&lines);
                    match error {
                        RegistryError::Unreachable { reason, .. } => reason,
                        error => error.to_string(),
                    }
                }
                Ok(answered) => return Ok(answered),
                Err(Missing::Unsent(reason)) => reason,
                Err(Missing::Lost(reason)) if is_repeatable => {
                    *may_be_done = true;
                    reason
                }
                Err(Missing::Lost(reason)) => {
                    let registry = self.place.clone();
                    return Err(Failure::Registry(RegistryError::OutcomeUnknown { registry, reason }));
                }
            };
            if Instant::now() + pause >= deadline {
                return Err(self.unreachable(reason));
            }
            sleep(pause).await;
            pause = (pause * 2).min(self.way.pause_max());
        }
    }

    async fn attempt<A: DeserializeOwned>(
        &self,
        path: &str,
        question: Bytes,
        limit: Instant,
        is_repeatable: bool,
    ) -> Result<(Result<A, Failure>, Lines), Missing> {
        let connecting = self.connection(limit.min(Instant::now() + ATTEMPT_LIMIT));
        let mut connection = connecting.await.map_err(Missing::Unsent)?;
        let endpoint = connection.endpoint;
        let request = Request::post(path)
            .header(header::HOST, "millpond")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(question))
            .expect("its parts are those of a request");
        let asking = async {
            let answer = connection.sender.try_send_request(request).await.map_err(|mut error| {
                let reason = "the connection was lost".to_owned();
                if error.take_message().is_some() { Missing::Unsent(reason) } else { Missing::Lost(reason) }
            })?;
            let status = answer.status();
            let body = answer.into_body();
            let (buffer, searched, heard) = (Vec::new(), 0, Instant::now());
            let mut lines = Lines { body, status, buffer, searched, heard, connection };
            let first = lines.next_line().await.map_err(Missing::Lost)?;
            Ok((first.unwrap_or_default(), lines))
        };
        let asked = timeout_at(limit, asking).await;
        let asked = asked.unwrap_or_else(|_| Err(Missing::Lost("no answer in time".to_owned())));
        if let Err(Missing::Lost(_)) = &asked {
            self.leave(endpoint);
        }
        let (first, lines) = asked?;
        let answer = match lines.status {
            StatusCode::OK => serde_json::from_slice(&first).map_err(|error| error.to_string()),
            status @ (StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY) => Err(format!(
                "{status}, as an older version does that does not know what is asked (upgrade all nodes to that of this program)"
            )),
            status => Err(format!("{status}: {}", String::from_utf8_lossy(&first))),
        };
        match answer {
            Ok(answer) => Ok((answer, lines)),
            // Who does not understand the question has done nothing.
            Err(reason) if is_repeatable || lines.status.is_client_error() => {
                let registry = self.place.clone();
                Ok((Err(Failure::Registry(RegistryError::Protocol { registry, reason })), lines))
            }
            Err(reason) => Err(Missing::Lost(reason)),
        }
    }

    /// A connection that is free, or a new one.
    async fn connection(&self, limit: Instant) -> Result<Connection, String> {
        while let Some((connection, since)) = self.idle().pop() {
            if since.elapsed() < IDLE_MAX && connection.sender.is_ready() {
                return Ok(connection);
            }
        }
        let mut endpoint = None;
        let opening = async {
            let stream: Box<dyn Stream> = match &self.way {
                Way::Socket(path) => {
                    Box::new(UnixStream::connect(path).await.map_err(|error| error.to_string())?)
                }
                Way::Nodes(nodes) => nodes.open(*endpoint.insert(nodes.next())).await?,
            };
            Ok::<_, String>(stream)
        };
        let opened = timeout_at(limit, opening).await;
        let opened = opened.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let stream = opened.inspect_err(|_| self.leave(endpoint))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Why it ended, whoever asks is told.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Connection { sender, endpoint })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Connection, Instant)>> {
        // Nothing that can panic runs while it is held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the connection of an answer that was one line, once that is over.
    async fn keep(&self, mut lines: Lines) {
        if lines.next_line().await == Ok(None) && lines.connection.sender.ready().await.is_ok() {
            let mut idle = self.idle();
            idle.retain(|(_, since)| since.elapsed() < IDLE_MAX);
            idle.push((lines.connection, Instant::now()));
        }
    }
}

/// What an answer says, line by line. Dropping it ends the connection, unless it is kept.
pub(crate) struct Lines {
    body: Incoming,
    status: StatusCode,
    buffer: Vec<u8>,
    /// Bytes of the buffer known to hold no line's end.
    searched: usize,
    /// When something was said last.
    heard: Instant,
    connection: Connection,
}

impl Lines {
    /// The next line that says something, without its end, or `None` when all is said. Safe to cancel.
    async fn next_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.searched = 0;
                if line.is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > LINE_BYTES_MAX {
                return Err(format!("it says more than {LINE_BYTES_MAX} bytes at once"));
            }
            let frame = timeout_at(self.heard + SILENCE_LIMIT, self.body.frame()).await;
            self.heard = Instant::now();
            match frame.map_err(|_| "it fell silent")? {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(_)) => return Err("the connection was lost".to_owned()),
                None if self.buffer.is_empty() => return Ok(None),
                None if self.status == StatusCode::OK => return Err("it was cut within a line".to_owned()),
                // Words, and none of ours.
                None => {
                    self.searched = 0;
                    return Ok(Some(std::mem::take(&mut self.buffer)));
                }
            }
        }
    }

    /// What is said next; `None` when it is over: the other side ended it, fell silent, or says what makes no sense. Safe to
    /// cancel.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        serde_json::from_slice(&self.next_line().await.ok()??).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SocketServer;
    use crate::protocol::CALL;
    use registry::implement::{Answer, PROBE, Request};
    use registry::{MemoryRegistry, Operation, Registry, Txn};
    use std::sync::Arc;

    #[tokio::test]
    async fn what_has_no_turn_in_time_is_not_sent() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("registry.sock");
        let registry: Arc<dyn Registry> = Arc::new(MemoryRegistry::new());
        let _server = SocketServer::bind(&socket, registry.clone()).unwrap();
        let link = Link::new(Way::Socket(socket), "a test".to_owned(), Duration::from_secs(2));
        let get = Request::Get { key: PROBE.to_owned() };
        let (got, _) = link.ask::<Answer>(CALL, &get, true).await;
        assert!(matches!(got, Ok(Answer::Got(None))));
        let _others = link.questions.acquire_many(QUESTIONS_MAX as u32).await.unwrap();
        let put = Request::Txn(Txn::new().then(Operation::put("a", "1")));
        let (answer, _) = link.ask::<Answer>(CALL, &put, false).await;
        assert!(matches!(answer, Err(Failure::Registry(RegistryError::Unreachable { .. }))), "{answer:?}");
        assert_eq!(registry.get("a").await, Ok(None));
    }
}
