//! Where others come in over TCP and prove their keys, who are served by ordinary code: nodes and owners at the manager's port,
//! clients at theirs.
//!
//! Strangers can occupy handshakes, so many at a time for five seconds each, and nothing else. Who has a key can occupy so many
//! connections.

use crate::listeners::Listeners;
use crate::refusals::Refusals;
use crate::socket_buffers;
use auth::{AuthError, Channel, Identity};
use axum::Router;
use axum::middleware::from_fn;
use base::{Encryption, NodeId, PublicKey};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The pause after a connection could not be accepted: descriptors may be short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The most that a request may have in front of its body, in bytes.
const HEADERS_BYTES_MAX: usize = 64 << 10;

/// See the module's documentation.
pub(crate) struct Entrance {
    /// The node that it is of.
    pub(crate) node: NodeId,
    identity: Identity,
    connections_per_key_max: usize,
    /// How many each key has.
    connections: Mutex<BTreeMap<PublicKey, usize>>,
    refusals: Refusals,
}

impl Entrance {
    pub(crate) fn new(node: NodeId, identity: Identity, connections_per_key_max: usize) -> Entrance {
        let (connections, refusals) = (Mutex::default(), Refusals::default());
        Entrance { node, identity, connections_per_key_max, connections, refusals }
    }

    /// Has whoever connected prove its key; `authorize` says who that is, or why it is refused.
    pub(crate) async fn admit<T>(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        encryption: Encryption,
        authorize: impl FnOnce(PublicKey) -> Result<T, String>,
    ) -> Option<(Channel, T)> {
        // Questions and answers are small messages back and forth.
        let _ = stream.set_nodelay(true);
        let _ = socket_buffers::limit(&stream, socket_buffers::OF_QUESTIONS);
        match self.identity.accept(stream, encryption, authorize).await {
            Ok(admitted) => Some(admitted),
            Err(error @ AuthError::Unauthorized { .. }) => {
                self.refusals.log(&self.node, from, &error);
                None
            }
            Err(error) => {
                // Anybody can send garbage, as often as he likes.
                tracing::debug!(node = %self.node, %from, %error, "a connection came to nothing");
                None
            }
        }
    }

    /// Answers requests, one at a time, until either side ends the connection, or nothing is asked for so long. A request
    /// has a time limit of its own.
    pub(crate) async fn serve(&self, channel: Channel, router: Router, silence_limit: Duration) {
        let router = router.layer(from_fn(registry_remote::in_time));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(silence_limit)
            .max_buf_size(HEADERS_BYTES_MAX)
            .serve_connection(TokioIo::new(channel.into_stream()), TowerToHyperService::new(router));
        if let Err(error) = served.await {
            tracing::debug!(node = %self.node, %error, "a connection ended");
        }
    }

    /// Takes a place among the connections of a key, if one is free.
    pub(crate) fn enter(&self, key: PublicKey) -> Option<Place<'_>> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let count = connections.entry(key).or_default();
        if *count >= self.connections_per_key_max {
            if let Some(count) = self.refusals.due() {
                tracing::warn!(node = %self.node, %key, count, "it has too many connections, so one more is closed; refused were so many since the last line");
            }
            return None;
        }
        *count += 1;
        Some(Place { entrance: self, key })
    }
}

/// A connection's place; dropping it gives it back.
pub(crate) struct Place<'a> {
    entrance: &'a Entrance,
    key: PublicKey,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut connections = self.entrance.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = connections.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.key);
            }
        }
    }
}

/// Hands every connection to `meet`, in a task of its own, for ever. So many at a time may hold what they are handed with it,
/// until the handshake is over or to their end; others wait until they are accepted.
pub(crate) async fn accept_all<Meeting>(
    mut listeners: Listeners,
    places_max: usize,
    meet: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit) -> Meeting,
) where
    Meeting: Future<Output = ()> + Send + 'static,
{
    let places = std::sync::Arc::new(Semaphore::new(places_max));
    loop {
        let permit = places.clone().acquire_owned().await.expect("nobody closes it");
        match listeners.accept().await {
            Ok((stream, from)) => drop(tokio::spawn(meet(stream, from, permit))),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::SecretKey;

    #[test]
    fn a_key_has_so_many_connections_and_places_are_given_back() {
        let identity = Identity::new(&SecretKey::generate().unwrap());
        let entrance = Entrance::new(NodeId(0), identity, 2);
        let (one, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let first = entrance.enter(one).unwrap();
        let second = entrance.enter(one).unwrap();
        assert!(entrance.enter(one).is_none());
        assert!(entrance.enter(other).is_some());
        drop(first);
        let third = entrance.enter(one);
        assert!(third.is_some() && entrance.enter(one).is_none());
        drop((second, third));
        assert!(entrance.connections.lock().unwrap().is_empty(), "nothing is kept of who is gone");
    }

    #[tokio::test]
    async fn who_proves_its_key_is_admitted_if_that_key_may_come_in() {
        let [own, known, stranger] = [(); 3].map(|()| Identity::new(&SecretKey::generate().unwrap()));
        let (own_key, known_key) = (own.public(), known.public());
        let entrance = Entrance::new(NodeId(0), own, 2);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (identity, expected) in [(known, Some(7)), (stranger, None)] {
            let reaching = tokio::spawn(async move {
                let reached = auth::reach(&identity, own_key, address, Encryption::Off).await;
                reached.is_ok()
            });
            let (stream, from) = listener.accept().await.unwrap();
            let authorize = |key: PublicKey| match key == known_key {
                true => Ok(7),
                false => Err("nobody knows that key".to_owned()),
            };
            let admitted = entrance.admit(stream, from, Encryption::Off, authorize).await;
            assert_eq!(admitted.as_ref().map(|(_, who)| *who), expected);
            let is_reached = reaching.await.unwrap();
            assert!(is_reached || expected.is_none());
        }
    }

    #[tokio::test]
    async fn so_many_at_a_time_are_met_and_others_as_soon_as_one_of_them_is_through() {
        let here: [std::net::IpAddr; 1] = [std::net::Ipv4Addr::LOCALHOST.into()];
        let listeners = Listeners::on_free_port(&here, crate::listeners::bind).unwrap();
        let address = listeners.address();
        let (met, mut meetings) = tokio::sync::mpsc::unbounded_channel();
        let accepting = tokio::spawn(accept_all(listeners, 2, move |_, from, permit| {
            let met = met.clone();
            async move { drop(met.send((from, permit))) }
        }));
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let mut next = async || {
            let meeting = tokio::time::timeout(Duration::from_secs(10), meetings.recv()).await;
            meeting.expect("somebody is met").expect("they are met for ever")
        };
        let ((first, permit), (second, _held)) = (next().await, next().await);
        let soon = tokio::time::timeout(Duration::from_millis(50), next()).await;
        assert!(soon.is_err(), "two are not through yet");
        drop(permit);
        let (third, _) = next().await;
        let found: Vec<SocketAddr> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        let mut all = [first, second, third];
        all.sort_unstable_by_key(|from| found.iter().position(|client| client == from));
        assert_eq!(all.as_slice(), found);
        accepting.abort();
    }
}
