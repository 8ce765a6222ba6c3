//! What one node at a time decides for the cluster, so that nobody needs to be asked: where data shall lie when the
//! OSDs or pools have changed, and that an OSD which stays away is no longer waited for.
//!
//! [`run`] is a task of every node. One of them holds the leased key `millpond/manager` and decides; the others wait
//! until it is gone. Everything it decides is written under the condition that what it was decided by still holds, so
//! a manager that does not know yet that it is none any more does no harm, and a killed one costs its lease's time.
//! It keeps nothing that the registry has not: its successor begins to count anew how long an OSD is away.
//!
//! It acts when the map or the settings change, and when an OSD has been away for long enough; at rest it only keeps
//! its lease alive.
//!
//! # Who is taken out
//!
//! An OSD that has been down for `osd_out_after` is taken out only if its groups can be rebuilt elsewhere, as good as
//! before ([`reason_to_stay`]):
//! - The OSDs that are in and up are enough for the copies of every pool. If not, nothing could be rebuilt: its groups
//!   go on with what they have anyway, and it would lose by being out, because it catches up by its log as long as it
//!   is a member, and is filled anew once it was none.
//! - They lie on as many nodes as the copies did before. Two copies of a group on one node are a risk that nobody chose,
//!   and would be undone when the node is back.
//! - They are more than half of those that are in. So many do not die by themselves: it is a switch or the power, and
//!   what is left could hardly take it all.
//!
//! A person may take it out all the same: `millpond osd out`.

use crate::control::{KEEP_ALIVE, LEASE_TTL};
use base::map::{Admission, ClusterMap, PgConfig, PoolInfo};
use base::{NodeId, OsdId, PgId, PoolId};
use registry::cluster::{
    Away, Candidate, Cluster, ClusterError, Known, ManagerRecord, Settings, TargetChange, retarget,
};
use registry::{LeaseId, RegistryError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

/// How long the map is left to change before something is decided by it: several OSDs that come at once move data once.
const SETTLE: Duration = Duration::from_millis(500);
/// The pause before something is tried again that was refused or failed.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

type Maps = watch::Receiver<Arc<ClusterMap>>;

/// Waits to be the manager and is it, again and again, until `stop` changes.
pub async fn run(cluster: Cluster, node: NodeId, maps: Maps, mut stop: watch::Receiver<bool>) {
    let mut managers = cluster.watch_manager();
    loop {
        tokio::select! {
            absent = managers.wait_for(|known| *known == Known::Absent) => if absent.is_err() { return },
            _ = stop.changed() => return,
        }
        let led = Manager::elect(&cluster, node).await;
        match led {
            Ok(Some(mut manager)) => {
                tracing::info!(%node, "this node manages the cluster");
                let mut own_stop = stop.clone();
                tokio::select! {
                    () = manager.lead(maps.clone()) => tracing::warn!(%node, "this node no longer manages the cluster"),
                    _ = own_stop.changed() => {}
                }
                // Gone at once, so that the next one need not wait for the lease to end.
                let _ = cluster.registry().lease_revoke(manager.lease).await;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%node, %error, "no manager could be chosen"),
        }
        tokio::select! {
            // Until the watch has shown who is the manager now.
            () = tokio::time::sleep(RETRY_PAUSE) => {}
            _ = stop.changed() => return,
        }
    }
}

/// Since when an OSD that is in is known to be down.
#[derive(Clone, Copy, Debug)]
struct Down {
    since: Instant,
    /// The same, for people.
    since_unix_seconds: u64,
}

/// What targets are decided by, and what was decided.
#[derive(Clone, Debug, PartialEq)]
struct Layout {
    candidates: Vec<Candidate>,
    pools: BTreeMap<PoolId, PoolInfo>,
    targets: BTreeMap<PgId, Vec<OsdId>>,
}

impl Layout {
    fn of(map: &ClusterMap) -> Layout {
        let candidates = Candidate::all(map);
        Layout { candidates, pools: map.pools.clone(), targets: map.targets.clone() }
    }
}

struct Manager {
    cluster: Cluster,
    lease: LeaseId,
    record: ManagerRecord,
    down: BTreeMap<OsdId, Down>,
    /// What nothing is to be done about.
    settled: Option<Layout>,
}

impl Manager {
    /// Becomes the manager, unless another was faster.
    async fn elect(cluster: &Cluster, node: NodeId) -> Result<Option<Manager>, ClusterError> {
        let lease = cluster.registry().lease_grant(LEASE_TTL).await?.id;
        let record = ManagerRecord { node, pid: std::process::id(), away: BTreeMap::new() };
        if cluster.become_manager(&record, lease).await? {
            let (cluster, down) = (cluster.clone(), BTreeMap::new());
            return Ok(Some(Manager { cluster, lease, record, down, settled: None }));
        }
        cluster.registry().lease_revoke(lease).await?;
        Ok(None)
    }

    /// Decides until the lease is lost.
    async fn lead(&mut self, mut maps: Maps) {
        let mut settings = self.cluster.watch_settings();
        let mut keep_alive = tokio::time::interval(KEEP_ALIVE);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        maps.mark_changed();
        let mut due: Option<Instant> = None;
        loop {
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let soon = Instant::now() + SETTLE;
            tokio::select! {
                Ok(()) = maps.changed() => {
                    maps.mark_unchanged();
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                Ok(()) = settings.changed() => {
                    settings.mark_unchanged();
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                _ = keep_alive.tick() => {
                    let kept = self.cluster.registry().lease_keep_alive(self.lease).await;
                    if let Err(RegistryError::LeaseNotFound { .. }) = kept {
                        return;
                    }
                }
                () = pause => {
                    let map = maps.borrow_and_update().clone();
                    let out_after = match &*settings.borrow_and_update() {
                        Known::NotYet => None,
                        Known::Absent => Settings::default().osd_out_after(),
                        Known::Is(settings) => settings.osd_out_after(),
                    };
                    due = match self.decide(&map, out_after).await {
                        Ok(Decided::Lost) => return,
                        Ok(Decided::Again { at }) => at,
                        Err(error) => {
                            tracing::warn!(%error, "a decision could not be written; it is made again");
                            Some(Instant::now() + RETRY_PAUSE)
                        }
                    };
                }
            }
        }
    }

    /// Decides what there is to decide by a map.
    async fn decide(
        &mut self,
        map: &Arc<ClusterMap>,
        out_after: Option<Duration>,
    ) -> Result<Decided, ClusterError> {
        // The first map is empty: nothing was read yet.
        if map.revision == 0 {
            return Ok(Decided::Again { at: None });
        }
        self.note_who_is_down(map);
        for (&osd, info) in &map.osds {
            if info.admission == Admission::OutWhileDown
                && info.address.is_some()
                && self.cluster.take_in_again(osd).await?
            {
                tracing::info!(%osd, "it is back, so it is in again");
            }
        }
        let mut at = self.take_out(map, out_after).await?;
        if !self.retarget(map).await? {
            let retry = Instant::now() + RETRY_PAUSE;
            at = Some(at.map_or(retry, |at| at.min(retry)));
        }
        let away = self.away(map, out_after);
        if away != self.record.away {
            let now = ManagerRecord { away, ..self.record.clone() };
            if !self.cluster.publish_manager(&self.record, &now, self.lease).await? {
                return Ok(Decided::Lost);
            }
            self.record = now;
        }
        Ok(Decided::Again { at })
    }

    fn note_who_is_down(&mut self, map: &ClusterMap) {
        let is_down = |osd: &OsdId| {
            map.osds.get(osd).is_some_and(|info| info.address.is_none() && info.admission == Admission::In)
        };
        self.down.retain(|osd, _| is_down(osd));
        for osd in map.osds.keys().filter(|osd| is_down(osd)) {
            self.down.entry(*osd).or_insert_with(|| {
                let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Down { since: Instant::now(), since_unix_seconds: unix.as_secs() }
            });
        }
    }

    /// Takes out who has been away for long enough and can be. Answers when the next one will have been.
    async fn take_out(
        &mut self,
        map: &ClusterMap,
        out_after: Option<Duration>,
    ) -> Result<Option<Instant>, ClusterError> {
        let Some(out_after) = out_after else { return Ok(None) };
        let mut next: Option<Instant> = None;
        let mut map = map.clone();
        for (&osd, down) in &self.down {
            let at = down.since + out_after;
            if at > Instant::now() {
                next = Some(next.map_or(at, |next| next.min(at)));
            } else if reason_to_stay(&map, osd).is_none() && self.cluster.take_out_while_down(osd).await? {
                tracing::warn!(%osd, seconds = out_after.as_secs(), "it stayed away, so its data is placed elsewhere");
                // What was allowed for the first one may not be for the second.
                if let Some(info) = map.osds.get_mut(&osd) {
                    info.admission = Admission::OutWhileDown;
                }
            }
        }
        Ok(next)
    }

    /// Writes the targets that the map asks for. Says whether nothing is left to write.
    async fn retarget(&mut self, map: &Arc<ClusterMap>) -> Result<bool, ClusterError> {
        let layout = Layout::of(map);
        if self.settled.as_ref() == Some(&layout) {
            return Ok(true);
        }
        let decided_by = map.clone();
        // A large pool takes a while, and the leases of this node's OSDs are kept alive meanwhile.
        let changes = tokio::task::spawn_blocking(move || changes(&decided_by)).await;
        let changes = changes.unwrap_or_else(|error| {
            tracing::error!(%error, "targets could not be decided");
            Vec::new()
        });
        if changes.is_empty() {
            self.settled = Some(layout);
            return Ok(true);
        }
        tracing::info!(groups = changes.len(), "placement groups get new targets");
        // Their change shows in the map, which is looked at again.
        self.cluster.change_targets(&changes).await
    }

    /// What becomes of those who are down, for people.
    fn away(&self, map: &ClusterMap, out_after: Option<Duration>) -> BTreeMap<OsdId, Away> {
        let becomes = |(&osd, down): (&OsdId, &Down)| {
            let away = match (out_after, reason_to_stay(map, osd)) {
                (None, _) => Away::In { reason: "--osd-out-after is never".to_owned() },
                (_, Some(reason)) => Away::In { reason },
                (Some(out_after), None) => {
                    Away::Out { at_unix_seconds: down.since_unix_seconds.saturating_add(out_after.as_secs()) }
                }
            };
            (osd, away)
        };
        self.down.iter().map(becomes).collect()
    }
}

enum Decided {
    /// There is another manager.
    Lost,
    /// It is time to decide again then, whether anything changes before or not.
    Again { at: Option<Instant> },
}

/// Why an OSD that is in and down is not taken out, however long it stays away. The rule and its reasons are in the
/// module's documentation.
fn reason_to_stay(map: &ClusterMap, osd: OsdId) -> Option<String> {
    let within = || map.osds.iter().filter(|(_, info)| info.admission == Admission::In && info.bytes > 0);
    let left = || within().filter(|(id, info)| info.address.is_some() && **id != osd);
    let (within_count, left_count) = (within().count(), left().count());
    let largest = map.pools.values().max_by_key(|pool| pool.size)?;
    let copies = largest.size as usize;
    if left_count < copies {
        return Some(format!(
            "pool {} wants {copies} copies, and only {left_count} other OSDs are in and up",
            largest.name
        ));
    }
    let nodes: BTreeSet<NodeId> = within().map(|(_, info)| info.node).collect();
    let nodes_left: BTreeSet<NodeId> = left().map(|(_, info)| info.node).collect();
    if nodes_left.len() < copies.min(nodes.len()) {
        return Some(format!(
            "the {copies} copies of pool {} would have to share the {} nodes that are left",
            largest.name,
            nodes_left.len()
        ));
    }
    if left_count * 2 <= within_count {
        return Some(format!(
            "only {left_count} of the {within_count} OSDs that are in would be left, which looks like more than a \
             lost drive"
        ));
    }
    None
}

/// The targets that are to be others than they are.
fn changes(map: &ClusterMap) -> Vec<TargetChange> {
    let candidates = Candidate::all(map);
    let mut changes = Vec::new();
    for (&pool, info) in &map.pools {
        let groups = || (0..info.pg_count).map(|index| PgId { pool, index });
        let present: Vec<Vec<OsdId>> = groups().map(|pg| present(map, pg)).collect();
        let targets = retarget(pool, info.size, &present, &candidates);
        for ((pg, present), target) in groups().zip(present).zip(targets) {
            if target != present {
                changes.push(TargetChange { pg, before: map.targets.get(&pg).cloned(), target });
            }
        }
    }
    changes
}

/// Where a group's replicas shall lie now: where its target says, else where its configuration has them.
fn present(map: &ClusterMap, pg: PgId) -> Vec<OsdId> {
    if let Some(target) = map.targets.get(&pg) {
        return target.clone();
    }
    let Some(PgConfig { primary, in_sync, .. }) = map.pgs.get(&pg) else { return Vec::new() };
    let others = in_sync.iter().filter(|osd| *osd != primary);
    std::iter::once(primary).chain(others).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::OsdInfo;
    use base::{Epoch, OsdUuid};

    /// OSDs on these nodes, all in, and all up but the first `down`; one pool.
    fn map(nodes: &[u32], down: usize, copies: u32) -> ClusterMap {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        for (osd, &node) in nodes.iter().enumerate() {
            let address = (osd >= down).then(|| "127.0.0.1:7000".parse().unwrap());
            let info = OsdInfo {
                uuid: OsdUuid::default(),
                node: NodeId(node),
                bytes: 1 << 30,
                address,
                incarnation: 1,
                admission: Admission::In,
            };
            map.osds.insert(OsdId(osd as u32), info);
        }
        let pool = PoolInfo { name: "p".into(), size: copies, min_size: 1, pg_count: 16 };
        map.pools.insert(PoolId(1), pool);
        map
    }

    fn stays_because(nodes: &[u32], down: usize, copies: u32) -> String {
        reason_to_stay(&map(nodes, down, copies), OsdId(0)).unwrap_or_default()
    }

    #[test]
    fn who_is_away_is_taken_out_only_if_its_groups_can_be_rebuilt_as_good_as_before() {
        assert_eq!(stays_because(&[0, 1, 2, 3], 1, 3), "");
        assert_eq!(stays_because(&[0, 0, 1, 1, 2, 2], 1, 3), "");
        assert_eq!(stays_because(&[0, 0, 0, 0], 1, 3), "", "there is only one node anyway");
        assert!(stays_because(&[0, 1, 2], 1, 3).contains("only 2 other OSDs"));
        assert!(stays_because(&[0, 1, 2, 3], 2, 3).contains("only 2 other OSDs"));
        assert!(stays_because(&[0, 0, 1, 1, 2, 2], 2, 3).contains("share the 2 nodes"));
        assert!(stays_because(&[0, 1, 2, 3], 2, 2).contains("2 of the 4 OSDs"));
    }

    #[test]
    fn an_osd_that_is_out_counts_for_nothing() {
        let mut map = map(&[0, 1, 2, 3], 1, 3);
        map.osds.get_mut(&OsdId(3)).unwrap().admission = Admission::Out;
        assert!(reason_to_stay(&map, OsdId(0)).is_some());
        // Of two pools the one with more copies decides.
        let mut two = self::map(&[0, 1, 2], 1, 2);
        assert_eq!(reason_to_stay(&two, OsdId(0)), None);
        let pool = PoolInfo { name: "q".into(), size: 3, min_size: 2, pg_count: 16 };
        two.pools.insert(PoolId(2), pool);
        assert!(reason_to_stay(&two, OsdId(0)).unwrap().contains("pool q wants 3"));
    }

    #[test]
    fn targets_change_with_the_osds_and_settle() {
        let mut map = map(&[0, 1, 2, 3], 0, 3);
        for change in changes(&map) {
            map.targets.insert(change.pg, change.target);
        }
        assert_eq!(map.targets.len(), 16);
        assert_eq!(changes(&map), []);
        map.osds.get_mut(&OsdId(2)).unwrap().admission = Admission::OutWhileDown;
        let away = changes(&map);
        assert!(!away.is_empty() && away.iter().all(|change| !change.target.contains(&OsdId(2))));
        assert!(away.iter().all(|change| change.before.as_ref() == map.targets.get(&change.pg)));
    }

    #[test]
    fn a_group_without_a_target_keeps_what_it_has() {
        let mut map = map(&[0, 1, 2], 0, 3);
        let placed = changes(&map);
        for change in &placed {
            let config = PgConfig {
                epoch: Epoch(1),
                primary: change.target[0],
                in_sync: change.target.iter().rev().copied().collect(),
                learners: vec![],
            };
            map.pgs.insert(change.pg, config);
        }
        assert_eq!(changes(&map), []);
    }

    async fn see(maps: &mut Maps, what: &str, condition: impl Fn(&ClusterMap) -> bool) {
        let waiting = tokio::time::timeout(Duration::from_secs(30), maps.wait_for(|map| condition(map)));
        assert!(waiting.await.is_ok_and(|seen| seen.is_ok()), "the map never shows that {what}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_stays_away_is_taken_out_and_in_again_and_a_manager_that_ends_is_followed_by_another() {
        let scratch = tempfile::tempdir().unwrap();
        let id = base::ClusterId(uuid::Uuid::from_u128(1));
        let registry = registry::EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        cluster.change_settings(|settings| settings.osd_out_after_seconds = 1).await.unwrap();
        let mut leases = Vec::new();
        for node in 0..4u16 {
            let uuid = OsdUuid(uuid::Uuid::from_u128(u128::from(node) + 1));
            let osd = cluster.register_osd(uuid, NodeId(u32::from(node)), 1 << 30).await.unwrap();
            let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
            cluster.osd_up(osd, ([127, 0, 0, 1], 7000 + node).into(), lease).await.unwrap();
            leases.push(lease);
        }
        cluster.create_pool("p", 3, 2, 64).await.unwrap();
        let placed = cluster.map().await.unwrap().targets;
        let mut maps = cluster.watch_map();
        let mut stops = Vec::new();
        for node in 0..2 {
            let stop = watch::Sender::new(false);
            tokio::spawn(run(cluster.clone(), NodeId(node), maps.clone(), stop.subscribe()));
            stops.push(stop);
        }
        let names = |map: &ClusterMap, osd| map.targets.values().any(|target| target.contains(&OsdId(osd)));

        cluster.registry().lease_revoke(leases[2]).await.unwrap();
        // Maps are empty until the first one was read.
        let is = |map: &ClusterMap, admission| {
            map.osds.get(&OsdId(2)).is_some_and(|info| info.admission == admission)
                && map.targets.len() == placed.len()
        };
        see(&mut maps, "osd.2 is out", |map| is(map, Admission::OutWhileDown) && !names(map, 2)).await;
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
        cluster.osd_up(OsdId(2), ([127, 0, 0, 1], 7002).into(), lease).await.unwrap();
        see(&mut maps, "osd.2 is in again", |map| is(map, Admission::In) && names(map, 2)).await;

        // With two away there is nowhere to rebuild.
        cluster.registry().lease_revoke(leases[1]).await.unwrap();
        cluster.registry().lease_revoke(leases[3]).await.unwrap();
        let first = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                let record = cluster.manager().await.unwrap().expect("somebody manages");
                let stays = |osd| match record.away.get(&OsdId(osd)) {
                    Some(Away::In { reason }) => reason.contains("2 other OSDs"),
                    _ => false,
                };
                if stays(1) && stays(3) {
                    return record;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let first = first.await.expect("the manager says why it leaves both in");
        // Longer than `osd_out_after`.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let map = cluster.map().await.unwrap();
        assert!(map.osds.values().all(|info| info.admission == Admission::In));

        stops[first.node.0 as usize].send_replace(true);
        cluster.set_admission(OsdId(0), Admission::Out).await.unwrap();
        see(&mut maps, "osd.0 is out", |map| !names(map, 0)).await;
        let second = cluster.manager().await.unwrap().expect("somebody manages");
        assert_ne!(first.node, second.node);
        assert_ne!(maps.borrow().targets, placed);
    }
}
