//! Connections of one OSD, made and accepted, on a thread of the process that does nothing else: handshakes cost neither the OSD's
//! thread anything, nor those who keep leases alive, and a registry that is away keeps no connection waiting.

use crate::listeners::Listeners;
use crate::refusals::Refusals;
use crate::shard::{Command, Dial, ToShard};
use auth::{Channel, Identity};
use base::map::ClusterMap;
use base::{Access, OsdId, PublicKey};
use pg::Credential;
use ring::Stream;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Handshakes with those who connect, at the same time: as many as a reactor takes connections. One more waits in the
/// listener's queue.
const HANDSHAKES_MAX: usize = 16_384;
/// The pause after a connection could not be accepted, for want of file descriptors perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long whoever connected may leave unread what it is sent: that occupies buffers, and others wait for those. An honest
/// client that was paused connects anew, and asks again.
const UNREAD_MAX: Duration = Duration::from_secs(30);

/// What one OSD's connections are made with.
pub(crate) struct Switchboard {
    pub(crate) osd: OsdId,
    pub(crate) identity: Identity,
    pub(crate) maps: watch::Receiver<Arc<ClusterMap>>,
    pub(crate) shard: ToShard,
    pub(crate) refusals: Refusals,
}

impl Switchboard {
    /// Connects and accepts until the OSD's thread has ended.
    pub(crate) async fn run(self, mut listeners: Listeners, mut dials: mpsc::Receiver<Dial>) {
        let this = Arc::new(self);
        let mut handshakes = JoinSet::new();
        loop {
            tokio::select! {
                dial = dials.recv() => match dial {
                    Some(dial) => drop(tokio::spawn(this.clone().connect(dial))),
                    None => return,
                },
                accepted = listeners.accept(), if handshakes.len() < HANDSHAKES_MAX => match accepted {
                    Ok((stream, from)) => drop(handshakes.spawn(this.clone().accept(stream, from))),
                    Err(error) => {
                        tracing::warn!(osd = %this.osd, %error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = handshakes.join_next() => {}
            }
        }
    }

    async fn connect(self: Arc<Self>, dial: Dial) {
        let Dial { connection, address } = dial;
        let command = match self.reach(address).await {
            Ok((stream, credential)) => {
                Command::Connected { connection, stream, credential: Some(credential) }
            }
            Err(reason) => Command::NotConnected { connection, reason },
        };
        self.shard.tell(command).await;
    }

    /// Connects to whoever must be at an address.
    async fn reach(&self, address: SocketAddr) -> Result<(Stream, Credential), String> {
        let map = self.maps.borrow().clone();
        let key = auth::key_at(&map, address)?;
        let channel = auth::reach(&self.identity, key, address, map.encryption).await?;
        let stream = stream_of(channel).map_err(|error| error.to_string())?;
        Ok((stream, self.credential_of(key)?))
    }

    async fn accept(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        // The handshake is small messages back and forth.
        let _ = stream.set_nodelay(true);
        if let Err(error) = end_when_unread(&stream, UNREAD_MAX) {
            return tracing::debug!(osd = %self.osd, %from, %error, "a connection came to nothing");
        }
        let encryption = self.maps.borrow().encryption;
        let accepted = self.identity.accept(stream, encryption, |key| self.credential_of(key)).await;
        let (channel, credential) = match accepted {
            Ok(accepted) => accepted,
            Err(error @ auth::AuthError::Unauthorized { .. }) => {
                return self.refusals.log(&self.osd, from, &error);
            }
            Err(error) => {
                // Anybody can send garbage, as often as he likes.
                return tracing::debug!(osd = %self.osd, %from, %error, "a connection came to nothing");
            }
        };
        if let Ok(stream) = stream_of(channel) {
            self.shard.tell(Command::Accepted { stream, credential: Some(credential) }).await;
        }
    }

    /// Whose key that is, by the newest map.
    fn credential_of(&self, key: PublicKey) -> Result<Credential, String> {
        let map = self.maps.borrow();
        let (name, principal) = map.whose(&key, &self.osd.to_string())?;
        // No OSD has anything for it, and a client's place is not to be had by asking.
        if principal.access == Access::Monitor {
            return Err(format!(
                "{name} may ask how the cluster is, and OSDs are not asked that; the manager is"
            ));
        }
        Ok(Credential { name: name.into(), principal: principal.clone(), seen_at: map.revision })
    }
}

/// Has the kernel end a connection whose other end takes nothing of what is sent for so long, even if it says that it lives.
fn end_when_unread(stream: &TcpStream, after: Duration) -> std::io::Result<()> {
    let milliseconds = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    Ok(nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::TcpUserTimeout, &milliseconds)?)
}

/// A connection as a reactor takes it.
fn stream_of(channel: Channel) -> std::io::Result<Stream> {
    let (socket, session) = channel.into_parts()?;
    Ok(Stream::new(socket, session))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Principal;
    use std::io::ErrorKind;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn who_takes_nothing_of_what_is_sent_is_cut_off_however_alive_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let deaf = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        end_when_unread(&stream, Duration::from_secs(1)).unwrap();
        let much = vec![0; 64 << 20];
        let sent = tokio::time::timeout(Duration::from_secs(30), stream.write_all(&much)).await;
        assert_eq!(sent.expect("it ends").unwrap_err().kind(), ErrorKind::TimedOut);
        drop(deaf);
    }

    #[test]
    fn whoever_has_something_to_ask_of_an_osd_has_a_credential_of_the_newest_map() {
        let key = |byte| PublicKey([byte; 32]);
        let mut map = ClusterMap { revision: 8, ..ClusterMap::default() };
        for (name, public_key, access) in
            [("client.a", key(1), Access::Admin), ("client.b", key(2), Access::Monitor)]
        {
            map.principals.insert(name.to_owned(), Principal::new(public_key, access));
        }
        let reactor = ring::Reactor::new(ring::ReactorOptions::default()).unwrap();
        let (commands, _commands) = mpsc::channel(1);
        let (_maps, maps) = watch::channel(Arc::new(map));
        let switchboard = Switchboard {
            osd: OsdId(3),
            identity: Identity::new(&auth::SecretKey::generate().unwrap()),
            maps,
            shard: ToShard { commands, waker: reactor.waker() },
            refusals: Refusals::default(),
        };
        let credential = switchboard.credential_of(key(1)).unwrap();
        assert_eq!((&*credential.name, credential.seen_at), ("client.a", 8));
        assert_eq!(credential.principal.access, Access::Admin);
        let refused = switchboard.credential_of(key(2)).unwrap_err();
        assert!(refused.starts_with("client.b may ask how the cluster is"), "{refused}");
        assert!(switchboard.credential_of(key(3)).unwrap_err().contains("is not one of this cluster"));
    }
}
