//! What an OSD counts of the requests it serves: for operators, nothing is decided by it.
//!
//! A request is counted when it is answered. It took from when it was taken up, by the clock of that turn, to the turn
//! in which the answer was sent; what it waited in the inbox before, for want of room, is not seen from here. Each count
//! is a few additions to memory that is there: no clock is read for it, and nothing allocated.

use crate::operation::Asked;
use crate::osd::{Osd, Peer};
use base::figures::{Figures, RequestKind, Traffic};
use base::{ClientId, Instant, PoolId, VolumeId};
use std::collections::BTreeMap;
use wire::Status;

/// A write or zeroing that a primary sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicated {
    /// The length of what is written.
    pub(crate) bytes: u32,
    /// When it was taken up.
    pub(crate) at: Instant,
}

impl Osd {
    /// What it did since the start.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What clients were served of each pool since the start.
    #[must_use]
    pub fn pool_traffic(&self) -> BTreeMap<PoolId, Traffic> {
        let mut pools: BTreeMap<PoolId, Traffic> = BTreeMap::new();
        for group in &self.groups {
            pools.entry(group.pg.pool).or_default().add(&group.traffic);
        }
        pools
    }

    /// What clients were served of each volume since the start.
    pub fn volume_traffic(&self) -> impl Iterator<Item = (VolumeId, Traffic)> + '_ {
        self.volumes.iter().map(|(id, volume)| (*id, volume.traffic))
    }

    /// What each client that is connected was served since it connected.
    pub fn client_traffic(&self) -> impl Iterator<Item = (ClientId, Traffic)> + '_ {
        self.peers.values().filter_map(|peer| match peer {
            Peer::Client(client) => Some((client.id, client.traffic)),
            Peer::Unknown(_) | Peer::Osd(_) => None,
        })
    }

    /// A client's request was done.
    pub(crate) fn count_done(&mut self, asked: &Asked, group: u32) {
        let Asked { link, volume, kind, bytes, at, .. } = *asked;
        let bytes = u64::from(bytes);
        self.figures.of_mut(kind).done(bytes, self.now.since(at));
        self.groups[group as usize].traffic.count(kind, bytes);
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.traffic.count(kind, bytes);
        }
        if let Some(Peer::Client(client)) = self.peers.get_mut(&link) {
            client.traffic.count(kind, bytes);
        }
    }

    /// A client's request was refused.
    pub(crate) fn count_refused(&mut self, asked: &Asked, status: Status) {
        self.count_failed(asked.kind, status);
    }

    /// A replicated write is durable here.
    pub(crate) fn count_replicated(&mut self, write: Option<Replicated>) {
        if let Some(Replicated { bytes, at }) = write {
            self.figures.replicate.done(u64::from(bytes), self.now.since(at));
        }
    }

    /// A replicated write was refused.
    pub(crate) fn count_replica_refused(&mut self, status: Status) {
        self.count_failed(RequestKind::Replicate, status);
    }

    fn count_failed(&mut self, kind: RequestKind, status: Status) {
        let figures = self.figures.of_mut(kind);
        match status {
            // Whoever asked goes elsewhere, or asks again.
            Status::NotPrimary | Status::NotActive | Status::StaleEpoch => figures.redirected += 1,
            _ => figures.errors += 1,
        }
    }
}
