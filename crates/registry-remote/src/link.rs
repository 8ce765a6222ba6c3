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
use registry::RegistryError;
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

type Sender = SendRequest<Full<Bytes>>;

/// Who is asked.
pub(crate) enum Way {
    Socket(PathBuf),
    Nodes(Nodes),
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
    idle: Mutex<Vec<(Sender, Instant)>>,
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
        let _turn = timeout_at(deadline, self.questions.acquire()).await;
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
            let reason = match self.attempt::<A>(path, question.clone(), limit).await {
                // It is that node which does not reach the registry: another may.
                Ok((
                    Err(Failure::Registry(
                        error @ (RegistryError::Unreachable { .. } | RegistryError::Closed),
                    )),
                    _,
                )) if is_of_nodes => match error {
                    RegistryError::Unreachable { reason, .. } => reason,
                    error => error.to_string(),
                },
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
                return Err(Failure::Registry(RegistryError::Unreachable {
                    registry: self.place.clone(),
                    waited_ms: self.timeout.as_millis() as u64,
                    reason,
                }));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn attempt<A: DeserializeOwned>(
        &self,
        path: &str,
        question: Bytes,
        limit: Instant,
    ) -> Result<(Result<A, Failure>, Lines), Missing> {
        let connecting = timeout_at(limit.min(Instant::now() + ATTEMPT_LIMIT), self.connection()).await;
        let mut sender =
            connecting.unwrap_or_else(|_| Err("it does not answer".to_owned())).map_err(Missing::Unsent)?;
        let request = Request::post(path)
            .header(header::HOST, "millpond")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(question))
            .expect("its parts are those of a request");
        let asking = async {
            let answer = sender.try_send_request(request).await.map_err(|mut error| {
                let reason = "the connection was lost".to_owned();
                if error.take_message().is_some() { Missing::Unsent(reason) } else { Missing::Lost(reason) }
            })?;
            let status = answer.status();
            let body = answer.into_body();
            let mut lines = Lines { body, buffer: Vec::new(), searched: 0, heard: Instant::now(), sender };
            let first = lines.next_line().await.map_err(Missing::Lost)?;
            Ok((status, first.unwrap_or_default(), lines))
        };
        let asked = timeout_at(limit, asking).await;
        let (status, first, lines) =
            asked.unwrap_or_else(|_| Err(Missing::Lost("no answer in time".to_owned())))?;
        if let Way::Nodes(nodes) = &self.way {
            nodes.answered();
        }
        let answer = match status {
            StatusCode::OK => serde_json::from_slice(&first).map_err(|error| error.to_string()),
            status => Err(format!("{status}: {}", String::from_utf8_lossy(&first))),
        };
        let answer = answer.unwrap_or_else(|reason| {
            Err(Failure::Registry(RegistryError::Protocol { registry: self.place.clone(), reason }))
        });
        Ok((answer, lines))
    }

    /// A connection that is free, or a new one.
    async fn connection(&self) -> Result<Sender, String> {
        while let Some((sender, since)) = self.idle().pop() {
            if since.elapsed() < IDLE_MAX && sender.is_ready() {
                return Ok(sender);
            }
        }
        let stream: Box<dyn Stream> = match &self.way {
            Way::Socket(path) => {
                Box::new(UnixStream::connect(path).await.map_err(|error| error.to_string())?)
            }
            Way::Nodes(nodes) => nodes.open().await?,
        };
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Why it ended, whoever asks is told.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Sender, Instant)>> {
        // Nothing that can panic runs while it is held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the connection of an answer that was one line, once that is over.
    async fn keep(&self, mut lines: Lines) {
        if lines.next_line().await == Ok(None) && lines.sender.ready().await.is_ok() {
            let mut idle = self.idle();
            idle.retain(|(_, since)| since.elapsed() < IDLE_MAX);
            idle.push((lines.sender, Instant::now()));
        }
    }
}

/// What an answer says, line by line. Dropping it ends the connection, unless it is kept.
pub(crate) struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    /// Bytes of the buffer known to hold no line's end.
    searched: usize,
    /// When something was said last.
    heard: Instant,
    sender: Sender,
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
