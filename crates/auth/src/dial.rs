//! Connections to OSDs: by address, to whoever the cluster map says is there.

use crate::channel::Channel;
use crate::handshake::Identity;
use base::map::ClusterMap;
use base::{Encryption, OsdId, PublicKey};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a connection may take to stand, before the handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Connects to the OSD that the map shows at an address. Both sides have proved who they are then, and what follows is
/// encrypted if the map says so.
///
/// # Errors
/// In words, for a person.
pub async fn dial(identity: &Identity, map: &ClusterMap, address: SocketAddr) -> Result<Channel, String> {
    reach(identity, key_at(map, address)?, address, map.encryption).await
}

/// Connects to whoever must have that key. Both sides have proved who they are then, and what follows is encrypted if either
/// wants it.
///
/// # Errors
/// In words, for a person.
pub async fn reach(
    identity: &Identity,
    key: PublicKey,
    address: SocketAddr,
    encryption: Encryption,
) -> Result<Channel, String> {
    let connecting = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await;
    let stream = connecting
        .map_err(|_| format!("{address} does not answer"))?
        .map_err(|error| format!("{address} cannot be reached: {error}"))?;
    // The handshake is small messages back and forth.
    stream.set_nodelay(true).map_err(|error| format!("{address} cannot be reached: {error}"))?;
    identity.connect(stream, key, encryption).await.map_err(|error| format!("{address}: {error}"))
}

/// The key of whoever must be at an address.
///
/// # Errors
/// In words, for a person: the map does not show it.
pub fn key_at(map: &ClusterMap, address: SocketAddr) -> Result<PublicKey, String> {
    let is_there = |osd: &OsdId| map.osds[osd].address == Some(address);
    let osd = map.osds.keys().copied().find(is_there);
    let osd = osd.ok_or_else(|| format!("the cluster map does not show who is at {address}"))?;
    map.key_of_osd(osd).ok_or_else(|| {
        format!(
            "the cluster map shows no key of {}, which runs {osd}; is that node of an older version?",
            map.osds[&osd].node
        )
    })
}
