//! Where clients of networks wait until they have encrypted and proved who they are, on a thread of their own: what a handshake
//! takes nobody else waits for. Who is done goes on to the gateway.
//!
//! Bounds: [`PLACES`] are here at the same time, [`PLACES_OF_HOST`] of them from one address, and none for longer than [`LOBBY_LIMIT`]; who
//! comes when it is full waits outside, and whose host has its part is sent away.

use super::super::exports::Exports;
use super::super::negotiation::{Negotiation, Step};
use super::super::terms::Terms;
use auth::CertifiedServer;
use base::PublicKey;
use ring::{Stream, Waker};
use socket2::Socket;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Clients that are here at the same time.
const PLACES: usize = 256;
/// And of one address: clients of one host come many at once when their server starts anew.
const PLACES_OF_HOST: usize = 64;
/// How long a client may take to encrypt.
const LOBBY_LIMIT: Duration = Duration::from_secs(15);
/// What a client may say before it encrypts, in bytes: some options that are refused.
const BYTES_MAX: usize = 64 << 10;
/// Room for one receipt.
const RECEIPT_BYTES: usize = 512;
/// The pause before it is accepted again where that failed: for want of descriptors, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A client that has encrypted.
pub(super) struct Arrival {
    pub(super) stream: Stream,
    /// What it has proved to have.
    pub(super) key: PublicKey,
    /// It wants old answers to end with zeros.
    pub(super) padding: bool,
}

/// See the module's documentation. Dropping it sends away who is there.
pub(super) struct Lobby {
    arrivals: Receiver<Arrival>,
    /// Dropped, it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lobby {
    /// Opens one where these sockets listen; the waker says that somebody is done.
    pub(super) fn open(sockets: Vec<Socket>, server: CertifiedServer, waker: Waker) -> io::Result<Lobby> {
        let (sender, arrivals) = sync_channel(PLACES);
        let (stop, stopped) = oneshot::channel();
        for socket in &sockets {
            socket.set_nonblocking(true)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let places = Arc::new(Semaphore::new(PLACES));
        let place = Arc::new(Place { server, sender, waker, places, hosts: Mutex::default() });
        let work = move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                for socket in sockets {
                    let place = place.clone();
                    tokio::task::spawn_local(async move {
                        match TcpListener::from_std(socket.into()) {
                            Ok(listener) => place.receive(listener).await,
                            Err(error) => tracing::error!(%error, "nobody can connect there"),
                        }
                    });
                }
                // Whoever has the other end is gone then.
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name("nbd-lobby".to_owned()).spawn(work)?;
        Ok(Lobby { arrivals, stop: Some(stop), thread: Some(thread) })
    }

    /// Somebody who is done.
    pub(super) fn next(&self) -> Option<Arrival> {
        self.arrivals.try_recv().ok()
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Place {
    server: CertifiedServer,
    sender: SyncSender<Arrival>,
    waker: Waker,
    places: Arc<Semaphore>,
    /// How many are here of each address.
    hosts: Mutex<HashMap<IpAddr, usize>>,
}

/// One of an address is here, for as long as this lives.
struct Guest {
    place: Arc<Place>,
    host: IpAddr,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut hosts = self.place.hosts();
        if let Some(count) = hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}

impl Place {
    fn hosts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        // Nothing that can panic runs while it is held.
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of an address, unless there are as many as may be.
    fn guest(self: &Arc<Place>, host: IpAddr) -> Option<Guest> {
        let mut hosts = self.hosts();
        let count = hosts.entry(host).or_insert(0);
        if *count >= PLACES_OF_HOST {
            return None;
        }
        *count += 1;
        drop(hosts);
        Some(Guest { place: self.clone(), host })
    }

    async fn receive(self: Arc<Place>, listener: TcpListener) {
        loop {
            // It is never closed.
            let Ok(permit) = self.places.clone().acquire_owned().await else { return };
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "NBD clients cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(guest) = self.guest(peer.ip().to_canonical()) else {
                tracing::info!(%peer, "an NBD client is sent away: too many of its host come at once");
                continue;
            };
            tokio::task::spawn_local(async move {
                let late = || Err("it did not encrypt in time".to_owned());
                let admitted = timeout(LOBBY_LIMIT, guest.place.admit(stream)).await;
                if let Err(reason) = admitted.unwrap_or_else(|_| late()) {
                    tracing::info!(%peer, reason, "an NBD client did not come in");
                }
                drop((guest, permit));
            });
        }
    }

    /// Has one encrypt, and hands it on.
    async fn admit(&self, mut stream: TcpStream) -> Result<(), String> {
        let broken = |error: io::Error| error.to_string();
        stream.set_nodelay(true).map_err(broken)?;
        let padding = encrypt(&mut stream).await?;
        let (stream, session, key) = self.server.accept(stream).await.map_err(|error| error.to_string())?;
        let stream = Stream::new(stream, Some(session));
        // The gateway takes them faster than they come; if it does not any more, nobody is served.
        if self.sender.try_send(Arrival { stream, key, padding }).is_err() {
            return Err("the server takes nobody in".to_owned());
        }
        self.waker.wake();
        Ok(())
    }
}

/// Speaks with a client until it is to encrypt. Answers whether it wants padding.
async fn encrypt(stream: &mut TcpStream) -> Result<bool, String> {
    let broken = |error: io::Error| error.to_string();
    let none = Exports::new(Vec::new()).map_err(|error| error.to_string())?;
    let mut output = Vec::new();
    let mut negotiation = Negotiation::start(none, Terms::MustEncrypt, &mut output);
    let (mut received, mut total) = (Vec::new(), 0);
    loop {
        stream.write_all(&output).await.map_err(broken)?;
        output.clear();
        match negotiation.step(&received, false, &mut output) {
            Step::Consumed(count) => {
                received.drain(..count);
            }
            Step::Encrypt(count) => {
                stream.write_all(&output).await.map_err(broken)?;
                // What follows in the clear was said by somebody else.
                return match count == received.len() {
                    true => Ok(negotiation.padding()),
                    false => Err("it did not wait before it encrypted".to_owned()),
                };
            }
            Step::Closed(_, closed) => {
                // It is sent away whether it hears why or not.
                let _ = stream.write_all(&output).await;
                return Err(closed.to_string());
            }
            Step::Wait(_) => {
                if total >= BYTES_MAX {
                    return Err("it says too much before it encrypts".to_owned());
                }
                let start = received.len();
                received.resize(start + RECEIPT_BYTES, 0);
                let count = stream.read(&mut received[start..]).await.map_err(broken)?;
                received.truncate(start + count);
                total += count;
                if count == 0 {
                    return Err("it left".to_owned());
                }
            }
            Step::Settle | Step::Agreed(..) => {
                return Err("it chose an export where there is none".to_owned());
            }
        }
    }
}
