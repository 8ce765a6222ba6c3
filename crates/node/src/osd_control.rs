//! The control side of one OSD: keeps its lease, carries maps down and proposals up, until it ends.

use crate::error::NodeError;
use crate::lease::{KEEP_ALIVE, LEASE_TTL};
use crate::scrubbing::{self, Scrubs};
use crate::shard::{Command, Proposal, Report, ShardError, ToShard};
use api::board::Board;
use base::map::ClusterMap;
use base::status::OsdStatus;
use base::{OsdId, OsdUuid};
use cluster::{Cluster, ClusterError, ScrubWishes};
use registry::{LeaseId, RegistryError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// How long an OSD waits for the map before it is announced without.
const MAP_LIMIT: Duration = Duration::from_secs(2);
/// How long the map may take to show a configuration that was claimed: the claim is taken for failed then.
const CLAIM_MAP_LIMIT: Duration = Duration::from_secs(10);

type Maps = watch::Receiver<Arc<ClusterMap>>;

/// One OSD as the control side sees it.
pub(crate) struct OsdControl {
    pub(crate) id: OsdId,
    /// As what its drive is formatted.
    pub(crate) uuid: OsdUuid,
    pub(crate) address: SocketAddr,
    pub(crate) shard: ToShard,
    pub(crate) reports: mpsc::Receiver<Report>,
    pub(crate) ended: oneshot::Receiver<Result<(), ShardError>>,
}

/// How an OSD ended that can be done without.
pub(crate) enum End {
    /// The node was asked to stop.
    Asked,
    /// It was removed from the cluster.
    Removed,
    /// Its number was given to another drive.
    Replaced,
    /// It gave its drive up, and has let go of it: how it was then.
    GaveUp(Box<OsdStatus>),
}

impl OsdControl {
    /// Whether a map shows it as what it is formatted.
    fn is_in(&self, map: &ClusterMap) -> bool {
        map.osds.get(&self.id).is_some_and(|info| info.uuid == self.uuid)
    }
}

/// What an OSD is controlled with, besides itself.
pub(crate) struct Means {
    pub(crate) cluster: Cluster,
    pub(crate) maps: Maps,
    pub(crate) wishes: ScrubWishes,
    pub(crate) board: Board,
    pub(crate) stop: watch::Receiver<bool>,
}

/// Announces an OSD and keeps it, until it ends.
///
/// # Errors
/// When it cannot be announced, or cannot go on though its drive is sound.
pub(crate) async fn control_osd(mut osd: OsdControl, mut means: Means) -> Result<End, NodeError> {
    // Before it is announced, so that it knows who calls it at once.
    let _ = tokio::time::timeout(MAP_LIMIT, means.maps.wait_for(|map| osd.is_in(map))).await;
    let map = means.maps.borrow_and_update().clone();
    let is_known = osd.is_in(&map);
    if is_known {
        osd.shard.tell(Command::Map(map)).await;
    }
    // None once its drive has failed: it is down from then on.
    let mut lease = None;
    let end = match announce(&osd, &means.cluster).await {
        Ok(granted) => {
            lease = Some(granted);
            keep(&mut osd, &mut means, &mut lease, is_known).await?
        }
        Err(NodeError::Cluster(ClusterError::OsdReplaced { .. })) => End::Replaced,
        Err(error) => return Err(error),
    };
    if let End::GaveUp(_) = end {
        return Ok(end);
    }
    osd.shard.tell(Command::Shutdown).await;
    let _ = (&mut osd.ended).await;
    means.board.forget(osd.id);
    if let Some(lease) = lease {
        // Gone at once instead of when the lease ends.
        let _ = means.cluster.registry().lease_revoke(lease).await;
    }
    Ok(end)
}

/// Keeps an OSD that was announced. It is known once a map has shown it: what shows it otherwise is older until then.
async fn keep(
    osd: &mut OsdControl,
    means: &mut Means,
    lease: &mut Option<LeaseId>,
    mut is_known: bool,
) -> Result<End, NodeError> {
    let Means { cluster, maps, wishes, board, stop } = means;
    // It was granted just now, and claims wait for nothing.
    let mut keep_alive = tokio::time::interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut scrubs = Scrubs::new();
    let mut look = tokio::time::interval(scrubbing::LOOK_EVERY);
    let mut scrubs_are_due = false;
    let mut status: Option<OsdStatus> = None;
    loop {
        tokio::select! {
            Some(report) = osd.reports.recv() => match report {
                Report::Propose(proposal) => {
                    tokio::spawn(propose(osd, cluster.clone(), maps.clone(), proposal));
                }
                Report::Tally(tally) => board.note_figures(osd.id, *tally),
                Report::Status(new) => {
                    board.note_status(osd.id, &new);
                    status = Some(*new);
                }
                Report::Scrubbed(report) => {
                    tracing::info!(osd = %osd.id, pg = %report.pg, deep = report.is_deep, found = report.found, "scrubbed");
                    // What is not noted is done again.
                    let _ = cluster.scrub_done(report.pg, &scrubs.ended(&report)).await;
                }
                Report::Ready { .. } => {}
            },
            () = wishes.changed() => scrubs_are_due = true,
            _ = look.tick() => scrubs_are_due = true,
            Ok(()) = maps.changed() => {
                let map: Arc<ClusterMap> = maps.borrow_and_update().clone();
                if osd.is_in(&map) {
                    is_known = true;
                    osd.shard.tell(Command::Map(map)).await;
                } else if is_known && map.osds.contains_key(&osd.id) {
                    tracing::warn!(osd = %osd.id, "it was put on another drive, so it ends on this one");
                    return Ok(End::Replaced);
                } else if is_known {
                    tracing::info!(osd = %osd.id, "it was removed from the cluster, so it ends");
                    return Ok(End::Removed);
                }
            }
            _ = keep_alive.tick() => {
                if let Some(held) = *lease {
                    *lease = Some(renew(osd, cluster, held).await);
                }
            }
            result = &mut osd.ended => {
                return match (result, status) {
                    // It was told to.
                    (_, Some(status)) if lease.is_none() => Ok(End::GaveUp(Box::new(status))),
                    (Ok(Err(error)), _) => Err(error.into()),
                    _ => Err(NodeError::Shard(format!("{} ended", osd.id))),
                };
            }
            _ = stop.changed() => return Ok(End::Asked),
        }
        if let Some(held) = *lease
            && let Some(reason) = status.as_ref().and_then(|status| status.failure.as_ref())
            && withdraw(osd, cluster, held, reason).await
        {
            *lease = None;
            // Another drive may be where this one was, and this one put to another use: it must be let go of.
            osd.shard.tell(Command::Shutdown).await;
        }
        if scrubs_are_due && let Some(status) = &status {
            scrubs_are_due = false;
            let due = scrubs.due(cluster, status).await;
            if !due.is_empty() {
                osd.shard.tell(Command::Scrub(due)).await;
            }
        }
    }
}

async fn announce(osd: &OsdControl, cluster: &Cluster) -> Result<LeaseId, NodeError> {
    let lease = cluster.registry().lease_grant(LEASE_TTL).await?;
    if let Err(error) = cluster.osd_up_as(osd.id, osd.uuid, osd.address, lease.id).await {
        let _ = cluster.registry().lease_revoke(lease.id).await;
        return Err(error.into());
    }
    tracing::info!(osd = %osd.id, address = %osd.address, "up");
    Ok(lease.id)
}

/// An OSD whose drive failed counts as down from now on, so that it is replaced in time; the manager goes on being told why.
/// False while the registry is away.
async fn withdraw(osd: &OsdControl, cluster: &Cluster, lease: LeaseId, reason: &str) -> bool {
    match cluster.registry().lease_revoke(lease).await {
        Ok(()) | Err(RegistryError::LeaseNotFound { .. }) => {}
        Err(_) => return false,
    }
    tracing::error!(
        osd = %osd.id, reason,
        "the drive failed; the placement groups go on without this OSD, and `millpond status` says how to replace it"
    );
    true
}

/// Renews the lease, or announces the OSD again if it was lost. Answers the lease that it is up by.
async fn renew(osd: &OsdControl, cluster: &Cluster, lease: LeaseId) -> LeaseId {
    match cluster.registry().lease_keep_alive(lease).await {
        Ok(()) => lease,
        Err(RegistryError::LeaseNotFound { .. }) => announce(osd, cluster).await.unwrap_or(lease),
        Err(error) => {
            tracing::warn!(osd = %osd.id, %error, "the registry does not answer");
            lease
        }
    }
}

/// Carries a proposal to the registry and tells the shard what came of it.
///
/// The shard is given a map before that has the new configuration: whoever begins an epoch knows of every attach that was
/// registered before its claim. Who attaches later finds in the map who must be told.
fn propose(
    osd: &OsdControl,
    cluster: Cluster,
    mut maps: Maps,
    Proposal { pg, expected, config, is_split, decided_by }: Proposal,
) -> impl Future<Output = ()> + use<> {
    let (osd, shard) = (osd.id, osd.shard.clone());
    async move {
        let changed = match is_split {
            true => cluster.split_pg(pg, expected, config.clone()).await,
            false => cluster.claim_pg(pg, expected, config.clone(), &decided_by).await,
        };
        let claimed = match changed {
            Ok(is_changed) => is_changed,
            Err(error) => {
                tracing::warn!(%osd, %pg, %error, "a new epoch could not be claimed");
                false
            }
        };
        // The answer to an earlier attempt may have been lost: whoever is primary claims, and nobody else.
        let stands = claimed || cluster.map().await.is_ok_and(|map| map.pgs.get(&pg) == Some(&config));
        let mut accepted = None;
        if stands {
            let is_new =
                |map: &Arc<ClusterMap>| map.pgs.get(&pg).is_some_and(|found| found.epoch >= config.epoch);
            let shown = tokio::time::timeout(CLAIM_MAP_LIMIT, maps.wait_for(is_new));
            let map = shown.await.ok().and_then(|map| Some(map.ok()?.clone()));
            if let Some(map) = map
                && shard.commands.send(Command::Map(map)).await.is_ok()
            {
                accepted = Some(config);
            }
        }
        shard.tell(Command::Proposal { pg, accepted }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::PgConfig;
    use base::{Epoch, NodeId};
    use registry_embedded::EmbeddedRegistry;

    const UUID: OsdUuid = OsdUuid(uuid::Uuid::from_u128(2));

    #[tokio::test]
    async fn an_epoch_that_was_claimed_begins_only_with_a_map_that_shows_it() {
        let scratch = tempfile::tempdir().unwrap();
        let id = base::ClusterId(uuid::Uuid::from_u128(1));
        let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let id = cluster.register_osd(UUID, NodeId(0), 1 << 30, base::map::DeviceClass::Ssd).await.unwrap();
        let address: SocketAddr = ([127, 0, 0, 1], 7000).into();
        let lease = cluster.registry().lease_grant(LEASE_TTL).await.unwrap().id;
        cluster.osd_up(id, address, lease).await.unwrap();
        cluster.create_pool("default", 1, 1, 1).await.unwrap();
        let before = cluster.map().await.unwrap();
        let (pg, config) = before.pgs.first_key_value().map(|(pg, config)| (*pg, config.clone())).unwrap();
        let (commands, mut received) = mpsc::channel(4);
        let (_reports, reports) = mpsc::channel(4);
        let (_ended, ended) = oneshot::channel();
        let reactor = ring::Reactor::new(ring::ReactorOptions::default()).unwrap();
        let shard = ToShard { commands, waker: reactor.waker() };
        let osd = OsdControl { id, uuid: UUID, address, shard, reports, ended };
        let decided_by = Arc::new(before);
        let (maps, watched) = watch::channel(decided_by.clone());
        let next = PgConfig { epoch: Epoch(config.epoch.0 + 1), ..config.clone() };
        let proposal =
            Proposal { pg, expected: config.epoch, config: next.clone(), is_split: false, decided_by };
        let proposing = tokio::spawn(propose(&osd, cluster.clone(), watched, proposal));
        // Claimed, and the watch is late.
        while cluster.map().await.unwrap().pgs[&pg] != next {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(received.try_recv().is_err(), "the shard was told before it had the map");
        maps.send_replace(Arc::new(cluster.map().await.unwrap()));
        proposing.await.unwrap();
        assert!(matches!(received.recv().await, Some(Command::Map(map)) if map.pgs[&pg] == next));
        let told = received.recv().await;
        assert!(matches!(told, Some(Command::Proposal { accepted: Some(config), .. }) if config == next));
    }
}
