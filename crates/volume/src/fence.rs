//! Sees to it that no OSD serves who had a volume before, ahead of its first use: one member in sync of each placement group
//! is to know the new generation. Why that is enough is told in docs/protocol.md.

use auth::{Channel, Identity};
use base::map::ClusterMap;
use base::{ClientId, Generation, OsdId, VolumeId};
use client::Fencing;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::{Fence, Hello, Kind, Message, Role, VERSIONS};

/// How long it may take: an OSD that vouches for one that fell silent does so within 15 s.
pub(super) const FENCE_LIMIT: Duration = Duration::from_secs(30);
/// After so long a person is told what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an OSD may take to greet.
const GREETING_LIMIT: Duration = Duration::from_secs(3);
/// How long it may take to answer. Then it is asked anew, on another connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The pause before an OSD is asked anew.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What an OSD answered; or why it did not, and then it is asked anew.
type Answer = (OsdId, Result<(), String>);

/// Who is to be told what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) volume: VolumeId,
    pub(super) generation: Generation,
}

/// Waits until no placement group serves the volume under an older generation.
///
/// `maps` must show the generation. The volume is used only after that.
///
/// # Errors
/// After [`FENCE_LIMIT`], in words: which OSDs could not be made sure of, and why.
pub(super) async fn set_up(
    mut maps: watch::Receiver<Arc<ClusterMap>>,
    order: Order,
    identity: &Identity,
) -> Result<(), String> {
    let first = maps.borrow_and_update().clone();
    let Some(mut fencing) = Fencing::new(&first, order.volume) else {
        return Err("the volume was removed".to_owned());
    };
    let (started, mut is_told) = (Instant::now(), false);
    let (sender, mut answers) = mpsc::channel::<Answer>(64);
    let mut tasks = JoinSet::new();
    let mut asked: BTreeSet<(OsdId, SocketAddr)> = BTreeSet::new();
    let mut troubles: BTreeMap<OsdId, String> = BTreeMap::new();
    loop {
        let map = maps.borrow_and_update().clone();
        let open = fencing.open(&map);
        if open.is_empty() {
            return Ok(());
        }
        for osd in &open {
            match map.osds.get(osd).and_then(|info| info.address) {
                Some(address) if asked.insert((*osd, address)) => {
                    let asking =
                        Asking { identity: identity.clone(), maps: maps.clone(), osd: *osd, address, order };
                    tasks.spawn(asking.ask_until_answered(sender.clone()));
                }
                Some(_) => {}
                None => drop(troubles.insert(*osd, "it is down".to_owned())),
            }
        }
        let limit = if is_told { FENCE_LIMIT } else { PATIENCE };
        let left = (started + limit).saturating_duration_since(Instant::now());
        if left.is_zero() {
            let words = in_words(&open, &troubles);
            if is_told {
                return Err(words);
            }
            is_told = true;
            tracing::warn!(
                volume = %order.volume,
                "the volume is not served yet: who had it before may still be served by {words}; trying on"
            );
            continue;
        }
        tokio::select! {
            Some((osd, answer)) = answers.recv() => match answer {
                Ok(()) => fencing.vouches(osd),
                Err(reason) => drop(troubles.insert(osd, reason)),
            },
            Ok(()) = maps.changed() => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

fn in_words(open: &BTreeSet<OsdId>, troubles: &BTreeMap<OsdId, String>) -> String {
    let words = open.iter().map(|osd| {
        let trouble = troubles.get(osd).map_or("it does not answer", String::as_str);
        format!("{osd} ({trouble})")
    });
    words.collect::<Vec<_>>().join(", ")
}

/// One OSD, to be asked.
struct Asking {
    identity: Identity,
    maps: watch::Receiver<Arc<ClusterMap>>,
    osd: OsdId,
    address: SocketAddr,
    order: Order,
}

impl Asking {
    async fn ask_until_answered(self, answers: mpsc::Sender<Answer>) {
        loop {
            let answer = self.ask().await;
            let is_done = answer.is_ok();
            if answers.send((self.osd, answer)).await.is_err() || is_done {
                return;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Asks once.
    async fn ask(&self) -> Result<(), String> {
        let (address, order) = (self.address, self.order);
        let unreachable = |error: std::io::Error| format!("{address} cannot be reached: {error}");
        let silent = |_| format!("{address} does not answer");
        let map = self.maps.borrow().clone();
        let mut channel = auth::dial(&self.identity, &map, address).await?;
        // Not as the client that the volume has: of that an OSD has one connection, on which its requests are.
        let asks = ClientId(uuid::Uuid::new_v4().as_u64_pair().0);
        let (role, cluster) = (Role::Client(asks), map.cluster);
        let hello = Hello { role, cluster, target: self.osd, versions: VERSIONS };
        channel.send(&hello.encode()).await.map_err(unreachable)?;
        let mut inbox = Vec::new();
        timeout(GREETING_LIMIT, next(&mut channel, &mut inbox)).await.map_err(silent)??;
        let fence = Fence { request: 1, volume: order.volume, generation: order.generation };
        channel.send(&fence.encode(Kind::Fence)).await.map_err(unreachable)?;
        let waits = |_| {
            "its map does not show the attach yet, or it is not sure of OSDs that it reached a moment ago"
                .to_owned()
        };
        match timeout(ANSWER_LIMIT, next(&mut channel, &mut inbox)).await.map_err(waits)?? {
            Some(done) if done == fence => Ok(()),
            _ => Err("it answered something else".to_owned()),
        }
    }
}

/// The next message: `None` for a welcome.
async fn next(channel: &mut Channel, inbox: &mut Vec<u8>) -> Result<Option<Fence>, String> {
    loop {
        let parsed = match wire::parse(inbox).map_err(|error| error.to_string())? {
            Some((Message::Welcome(_), size)) => Some((None, size)),
            Some((Message::FenceDone(fence), size)) => Some((Some(fence), size)),
            Some((Message::Refused(refused), _)) => return Err(format!("it refused: {}", refused.reason)),
            Some(_) => return Err("it sent what nobody asked for".to_owned()),
            None => None,
        };
        if let Some((message, size)) = parsed {
            inbox.drain(..size);
            return Ok(message);
        }
        let count = channel.receive(inbox).await.map_err(|error| error.to_string())?;
        if count == 0 {
            return Err("it closed the connection".to_owned());
        }
    }
}
