//! A client of OSDs that says whatever a test wants it to, under a key that the cluster knows.

use auth::{Identity, SecretKey};
use base::map::ClusterMap;
use base::{ClientId, Generation, OsdId};
use cluster::{Attach, Attachment, ClusterError, Grant};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use volume::ClusterAccess;
use wire::{Hello, Message, Role, VERSIONS};

/// How long an OSD may take for something that is honestly asked, on a busy machine.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// A connection's buffers, each way, of one that is to keep little.
const BUFFER_LITTLE: usize = 16 << 10;
/// How long a volume stays attached.
const ATTACHED_FOR: Duration = Duration::from_secs(10);

/// Who has a key, with the cluster as it was when this was made.
pub struct Tenant {
    identity: Identity,
    /// Who attaches volumes: a cluster on one machine has no port at which clients with other keys could have that done.
    owner: ClusterAccess,
    pub map: ClusterMap,
    runtime: Runtime,
}

impl Tenant {
    /// Whoever has the key in that file, of the cluster in that directory.
    pub fn new(dir: &Path, key: &Path) -> Tenant {
        let identity = Identity::new(&SecretKey::load(key).expect("the key can be read"));
        let runtime = Builder::new_current_thread().enable_all().build().expect("there is memory for that");
        let owner = ClusterAccess::local(dir).expect("the owner's key can be read");
        let map = runtime.block_on(async {
            let desk = owner.desk.open(&owner.identity).await.expect("the registry answers");
            desk.map().await.expect("there is a map")
        });
        Tenant { identity, owner, map, runtime }
    }

    /// Attaches a volume once more, for that client. Answers its new generation, or why there is none.
    pub fn attach(&self, volume: &str, client: ClientId) -> std::result::Result<Generation, String> {
        let attached = self.runtime.block_on(async {
            let desk = self.owner.desk.open(&self.owner.identity).await?;
            let lease = desk.ask(Grant { ttl: ATTACHED_FOR }).await?;
            let (volume, description) = (volume.to_owned(), "a test".to_owned());
            let attached = desk
                .ask(Attach {
                    volume,
                    client,
                    lease,
                    shared: false,
                    description,
                    id: None,
                    knows_layers: true,
                    yields: false,
                    renews: false,
                })
                .await?;
            Ok::<Attachment, ClusterError>(attached)
        });
        attached.map(|attached| attached.generation).map_err(|error| error.to_string())
    }

    /// The OSDs that can be reached.
    pub fn osds(&self) -> Vec<OsdId> {
        let is_up = |osd: &&OsdId| self.map.osds[*osd].address.is_some();
        self.map.osds.keys().filter(is_up).copied().collect()
    }

    /// A connection to an OSD after the handshake, on which nothing was said yet; or why there is none.
    pub fn connect(&self, osd: OsdId) -> std::result::Result<RawLink, String> {
        let address = self.map.osds[&osd].address.ok_or("it is down")?;
        self.runtime.block_on(async {
            let channel = auth::dial(&self.identity, &self.map, address).await?;
            let (stream, session) = channel.into_parts().map_err(|error| error.to_string())?;
            assert!(session.is_none(), "what is said here is not encrypted");
            RawLink::new(stream).map_err(|error| error.to_string())
        })
    }

    /// The same, greeted as that client.
    pub fn greet(&self, osd: OsdId, client: ClientId) -> std::result::Result<RawLink, String> {
        let mut link = self.connect(osd)?;
        let (role, cluster) = (Role::Client(client), self.map.cluster);
        let hello = Hello { role, cluster, target: osd, versions: VERSIONS };
        link.send(&hello.encode()).map_err(|error| error.to_string())?;
        let refusal = link.receive(|message| match message {
            Message::Welcome(_) => None,
            Message::Refused(refused) => Some(refused.reason.to_owned()),
            other => Some(format!("{other:?}")),
        });
        refusal.map_err(|error| error.to_string())?.map_or(Ok(link), Err)
    }
}

/// One connection. Ends with this.
pub struct RawLink {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// How much of that was handled.
    done: usize,
}

impl RawLink {
    fn new(stream: TcpStream) -> Result<RawLink> {
        stream.set_nonblocking(false)?;
        let link = RawLink { stream, inbox: Vec::new(), done: 0 };
        link.wait_at_most(ANSWER_LIMIT)?;
        Ok(link)
    }

    /// How long an answer is waited for from now on, or for room to send.
    pub fn wait_at_most(&self, limit: Duration) -> Result<()> {
        self.stream.set_read_timeout(Some(limit))?;
        self.stream.set_write_timeout(Some(limit))
    }

    /// Has this end's kernel keep little of what is sent and what comes, so that what is left is left to the other end.
    pub fn keeps_little(&self) -> Result<()> {
        setsockopt(&self.stream, sockopt::SndBuf, &BUFFER_LITTLE)?;
        Ok(setsockopt(&self.stream, sockopt::RcvBuf, &BUFFER_LITTLE)?)
    }

    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for the next message.
    pub fn receive<T>(&mut self, handle: impl FnOnce(Message<'_>) -> T) -> Result<T> {
        while !self.has_message()? {
            self.inbox.drain(..self.done);
            self.done = 0;
            self.fill()?;
        }
        match wire::parse(&self.inbox[self.done..]) {
            Ok(Some((message, size))) => {
                self.done += size;
                Ok(handle(message))
            }
            other => unreachable!("a message was there: {other:?}"),
        }
    }

    fn has_message(&self) -> Result<bool> {
        let parsed = wire::parse(&self.inbox[self.done..]);
        let parsed = parsed.map_err(|error| Error::new(ErrorKind::InvalidData, error.to_string()))?;
        Ok(parsed.is_some())
    }

    fn fill(&mut self) -> Result<()> {
        let mut piece = [0; 64 << 10];
        match self.stream.read(&mut piece)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.inbox.extend_from_slice(&piece[..count]);
                Ok(())
            }
        }
    }

    /// Takes what has come and throws it away. Answers how much that was.
    pub fn drain(&mut self) -> Result<usize> {
        self.stream.set_nonblocking(true)?;
        let (mut piece, mut taken) = ([0; 64 << 10], 0);
        let end = loop {
            match self.stream.read(&mut piece) {
                Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => taken += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(taken),
                Err(error) => break Err(error),
            }
        };
        self.stream.set_nonblocking(false)?;
        end
    }
}
