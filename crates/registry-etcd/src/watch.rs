//! A watch that outlives members.
//!
//! A task reads what etcd shows as it comes, so that nobody who reads slowly holds up the watches beside it. When its share
//! of waiting batches is full the stream is dropped; it is opened anew from the last change that was returned once the
//! reader comes back, as after a lost connection.

use super::convert::{Nonsense, Space, revision};
use super::link::{self, Link};
use super::messages::{self, RangeResponse, WatchCreateRequest, WatchRequest, WatchResponse};
use super::outcome::{Failure, classify};
use super::{Answered, Client, PAUSE};
use async_trait::async_trait;
use registry::RegistryError;
use registry::{Event, Revision, Watch, WatchBatch};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;
use tonic::{Status, Streaming};

/// Batches of one watch waiting to be read.
const BATCHES_MAX: usize = 64;
/// How long a member may take to start a watch.
const START_LIMIT: Duration = Duration::from_secs(3);

/// What a stream brings.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    Batch(WatchBatch),
    /// Nothing below this is left to be shown.
    Position(Revision),
}

type Item = Result<Shown, RegistryError>;

/// A stream of one member while it lasts.
struct Subscription {
    items: mpsc::Receiver<Item>,
    task: JoinHandle<()>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct EtcdWatch {
    client: Arc<Client>,
    prefix: String,
    position: Revision,
    subscription: Option<Subscription>,
}

impl EtcdWatch {
    pub(super) async fn start(
        client: Arc<Client>,
        prefix: String,
        start: Revision,
    ) -> Result<EtcdWatch, RegistryError> {
        let deadline = Instant::now() + client.options.timeout;
        let mut watch = EtcdWatch { client, prefix, position: start, subscription: None };
        watch.subscribe(Some(deadline)).await?;
        Ok(watch)
    }

    /// Opens a stream from the position on, with whichever member can.
    async fn subscribe(&mut self, deadline: Option<Instant>) -> Result<(), RegistryError> {
        let mut was_refused = false;
        loop {
            let link = self.client.link(deadline).await.map_err(|failure| self.client.failed(failure))?;
            let opened = timeout(START_LIMIT, self.open(&link)).await;
            let failure = match opened {
                Ok(Ok((position, subscription))) => {
                    self.position = position;
                    self.subscription = Some(subscription);
                    return Ok(());
                }
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Unknown("it did not start a watch in time".to_owned()),
            };
            let reason = match failure {
                Failure::NotDone(reason) | Failure::Unknown(reason) => reason,
                // Some versions say so of a token that is too old, and a new link brings a new one.
                Failure::Refused(reason) if !was_refused => {
                    was_refused = true;
                    reason
                }
                other => return Err(self.client.failed(other)),
            };
            link.give_up(&reason);
            if deadline.is_some_and(|deadline| Instant::now() + PAUSE >= deadline) {
                return Err(self.client.unreachable(&reason));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Opens a stream with one member; answers its first revision.
    async fn open(&self, link: &Arc<Link>) -> Result<(Revision, Subscription), Failure> {
        let (known, space) = (&self.client.known, &self.client.options.space);
        // A member may be behind the others. After this read it is not, and *now* is now.
        let newest = known.newest();
        let probe: RangeResponse =
            link.ask(link::RANGE, space.probe()).await.map_err(|status| classify(&status))?;
        known.take(&probe.header(), newest).map_err(Failure::Unknown)?;
        let shown = revision(probe.header().revision).map_err(|Nonsense(words)| Failure::Unknown(words))?;
        let position = if self.position == Revision(0) { shown.next() } else { self.position };
        // One early: etcd accepts a watch that begins with the last revision that was cut off, and what was deleted in
        // that one may be missing.
        let start_revision = position.0.saturating_sub(1).clamp(1, i64::MAX.unsigned_abs()).cast_signed();
        let create = WatchCreateRequest {
            key: space.key(&self.prefix),
            range_end: space.end(&self.prefix),
            start_revision,
            progress_notify: true,
            fragment: true,
        };
        // The stream of questions stays open: etcd ends the watch with it.
        let questions =
            tokio_stream::once(WatchRequest { create: Some(create) }).chain(tokio_stream::pending());
        let mut stream: Streaming<WatchResponse> =
            link.converse(link::WATCH, questions).await.map_err(|status| classify(&status))?;
        let first = stream.message().await.map_err(|status| classify(&status))?;
        let first = first.ok_or_else(|| Failure::Unknown("it closed a watch at once".to_owned()))?;
        if first.canceled && first.compact_revision == 0 {
            return Err(why_canceled(&first));
        }
        let (sender, items) = mpsc::channel(BATCHES_MAX);
        let follower = Follower { space: space.clone(), position, gathered: Vec::new() };
        let registry = self.client.options.to_string();
        let task = tokio::spawn(follow(link.clone(), first, stream, follower, sender, registry));
        Ok((position, Subscription { items, task }))
    }
}

fn why_canceled(message: &WatchResponse) -> Failure {
    let reason = &message.cancel_reason;
    classify(&match reason.contains("permission denied") {
        true => Status::permission_denied(reason),
        false => Status::unknown(reason),
    })
}

#[async_trait]
impl Watch for EtcdWatch {
    fn position(&self) -> Revision {
        self.position
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        loop {
            let Some(subscription) = &mut self.subscription else {
                self.subscribe(None).await?;
                continue;
            };
            match subscription.items.recv().await {
                Some(Ok(Shown::Batch(batch))) => {
                    self.position = batch.revision.next();
                    return Ok(batch);
                }
                Some(Ok(Shown::Position(position))) => self.position = position,
                Some(Err(error)) => return Err(error),
                None => self.subscription = None,
            }
        }
    }
}

/// Hands on what a stream brings until it ends, or nobody takes it.
async fn follow(
    link: Arc<Link>,
    first: WatchResponse,
    mut stream: Streaming<WatchResponse>,
    mut follower: Follower,
    sender: mpsc::Sender<Item>,
    registry: String,
) {
    let mut message = first;
    loop {
        match follower.take(message) {
            Ok(None) => {}
            Ok(Some(shown)) => {
                if sender.try_send(Ok(shown)).is_err() {
                    return;
                }
            }
            Err(Ended::Compacted(compacted)) => {
                let asked = follower.position;
                // Where there is no room, the reader opens the stream anew and is told then.
                let _ = sender.try_send(Err(RegistryError::Compacted { asked, compacted }));
                return;
            }
            Err(Ended::Nonsense(Nonsense(reason))) => {
                let _ = sender.try_send(Err(RegistryError::Protocol { registry, reason }));
                return;
            }
            Err(Ended::Canceled(reason)) => return link.give_up(&reason),
        }
        let next = tokio::select! {
            next = stream.message() => next,
            _ = link.ended() => return,
        };
        message = match next {
            Ok(Some(message)) => message,
            Ok(None) => return link.give_up("it closed a watch"),
            Err(status) => return link.give_up(status.message()),
        };
        link.has_answered();
    }
}

/// Why a stream shows no more.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// What it would show is gone up to here.
    Compacted(Revision),
    Canceled(String),
    Nonsense(Nonsense),
}

/// Puts together what etcd shows: each change once, in order, revisions whole.
struct Follower {
    space: Space,
    /// The first revision that was not shown.
    position: Revision,
    /// Of a revision that is not complete yet.
    gathered: Vec<Event>,
}

impl Follower {
    fn take(&mut self, message: WatchResponse) -> Result<Option<Shown>, Ended> {
        let shown = revision(message.header.unwrap_or_default().revision).map_err(Ended::Nonsense)?;
        if message.compact_revision > 0 {
            return Err(Ended::Compacted(revision(message.compact_revision).map_err(Ended::Nonsense)?));
        }
        if message.canceled {
            return Err(Ended::Canceled(message.cancel_reason));
        }
        let is_progress = message.events.is_empty() && !message.created;
        let events = message.events.into_iter().map(|event: messages::Event| self.space.event(event));
        let events = events.collect::<Result<Vec<_>, _>>().map_err(Ended::Nonsense)?;
        // It began one revision early, and some versions show a change twice.
        self.gathered.extend(events.into_iter().filter(|event| event.revision() >= self.position));
        if message.fragment {
            return Ok(None);
        }
        // Not the revision of the header: etcd cuts off what it shows of a long past, and says the present's.
        if let Some(last) = self.gathered.last() {
            let revision = last.revision();
            self.position = revision.next();
            return Ok(Some(Shown::Batch(WatchBatch {
                revision,
                events: std::mem::take(&mut self.gathered),
            })));
        }
        if is_progress && shown >= self.position {
            self.position = shown.next();
            return Ok(Some(Shown::Position(self.position)));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::{EventType, KeyValue, ResponseHeader};

    fn follower(position: u64) -> Follower {
        Follower { space: Space("/m/".to_owned()), position: Revision(position), gathered: Vec::new() }
    }

    fn put(key: &str, revision: i64) -> messages::Event {
        let kv = KeyValue { key: format!("/m/{key}").into(), mod_revision: revision, ..KeyValue::default() };
        messages::Event { kind: EventType::Put.into(), kv: Some(kv) }
    }

    fn message(revision: i64, events: Vec<messages::Event>) -> WatchResponse {
        let header = ResponseHeader { cluster_id: 1, member_id: 1, revision };
        WatchResponse { header: Some(header), events, ..WatchResponse::default() }
    }

    fn shown(taken: Result<Option<Shown>, Ended>) -> (u64, Vec<(String, u64)>) {
        match taken {
            Ok(Some(Shown::Batch(batch))) => {
                let events = batch.events.iter().map(|event| (event.key().to_owned(), event.revision().0));
                (batch.revision.0, events.collect())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_revision_in_parts_is_shown_as_one() {
        let mut follower = follower(5);
        let part = WatchResponse { fragment: true, ..message(9, vec![put("a", 5)]) };
        assert_eq!(follower.take(part), Ok(None));
        let whole = shown(follower.take(message(9, vec![put("b", 5)])));
        assert_eq!(whole, (5, vec![("a".to_owned(), 5), ("b".to_owned(), 5)]));
        assert_eq!(follower.position, Revision(6));
    }

    #[test]
    fn what_was_shown_is_not_shown_again_and_the_header_is_not_believed() {
        let mut follower = follower(5);
        let events = vec![put("early", 4), put("a", 5), put("a", 6)];
        assert_eq!(shown(follower.take(message(2000, events))).0, 6, "more of them follow");
        assert_eq!(follower.take(message(2000, vec![put("again", 6)])), Ok(None));
        assert_eq!(shown(follower.take(message(2000, vec![put("a", 7)]))).0, 7);
    }

    #[test]
    fn progress_moves_the_position_on_and_what_creates_a_watch_does_not() {
        let mut follower = follower(5);
        let created = WatchResponse { created: true, ..message(50, vec![]) };
        assert_eq!(follower.take(created), Ok(None));
        assert_eq!(follower.take(message(20, vec![])), Ok(Some(Shown::Position(Revision(21)))));
        assert_eq!(follower.take(message(19, vec![])), Ok(None));
    }

    #[test]
    fn a_watch_whose_past_is_gone_says_so() {
        let mut follower = follower(5);
        let gone = WatchResponse { canceled: true, compact_revision: 8, ..message(9, vec![]) };
        assert_eq!(follower.take(gone), Err(Ended::Compacted(Revision(8))));
        let canceled =
            WatchResponse { canceled: true, cancel_reason: "why".to_owned(), ..message(9, vec![]) };
        assert_eq!(follower.take(canceled), Err(Ended::Canceled("why".to_owned())));
    }
}
