//! Which process manages the cluster, and when it decides.
//!
//! [`Candidate::run`] is a task of every process of a node. One of them holds the leased key `millpond/manager` and decides; the others wait
//! until it is gone. Everything it decides is written under the condition that what it was decided by still holds, so
//! a manager that does not know yet that it is none any more does no harm, and a killed one costs its lease's time.
//! What is decided, and by what rules, says [`manager::decide`].
//!
//! It acts when the map or the settings change, and when an OSD has been away for long enough; at rest it only keeps
//! its lease alive, has the registry forget its history as it grows old, and, while something waits for a word of the OSDs,
//! looks whether it came. Beside that, so that its lease does not wait for it, it has snapshots made by schedules.

use crate::clock::Clock;
use crate::lease::{KEEP_ALIVE, LEASE_TTL};
use crate::scheduling::{Late, have_snapshots_made};
use base::NodeId;
use base::map::ClusterMap;
use cluster::{Cluster, ClusterError, HistoryBounds, Known, ManagerRecord, Settings};
use manager::Management;
use manager::announcements::announcements;
use manager::collector::Collector;
use manager::decide::targets::target_changes;
use registry::{LeaseId, RegistryError};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

/// How long the map is left to change before something is decided by it: several OSDs that come at once move data once.
const SETTLE: Duration = Duration::from_millis(500);
/// The pause before something is tried again that was refused or failed.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The pause before it is looked again how full the cluster is.
const SPACE_PAUSE: Duration = Duration::from_secs(10);
/// How often it is looked whether volumes that were made smaller may grow again: somebody may wait for it.
const CUT_LOOK_PAUSE: Duration = Duration::from_millis(200);
/// How long nobody looks what lay in the trash for long enough, at most.
const TRASH_LOOK_PAUSE: Duration = Duration::from_secs(600);
/// The pause before this process stands again, at first and at last: doubled each time that nothing came of it.
const ELECTION_PAUSE_MIN: Duration = Duration::from_millis(100);
const ELECTION_PAUSE_MAX: Duration = Duration::from_secs(2);

type Maps = watch::Receiver<Arc<ClusterMap>>;

/// A process that stands ready to be the manager.
pub struct Candidate {
    /// Its node.
    pub node: NodeId,
    /// The cluster.
    pub cluster: Cluster,
    /// Where it is told how the OSDs are, and asked.
    pub address: SocketAddr,
    /// What it is told.
    pub collector: Collector,
}

impl Candidate {
    /// Waits to be the manager and is it, again and again, until `stop` changes.
    pub async fn run(
        self,
        maps: Maps,
        mut managers: watch::Receiver<Known<ManagerRecord>>,
        mut stop: watch::Receiver<bool>,
    ) {
        let Candidate { node, cluster, address, collector } = &self;
        let mut pause = ELECTION_PAUSE_MIN;
        loop {
            let began = Instant::now();
            tokio::select! {
                absent = managers.wait_for(|known| *known == Known::Absent) => if absent.is_err() { return },
                _ = stop.changed() => return,
            }
            collector.stand();
            let led = Manager::elect(cluster, *node, *address, collector).await;
            match led {
                Ok(Some(mut manager)) => {
                    tracing::info!(%node, "this node manages the cluster");
                    collector.begin(Instant::now().into_std());
                    let mut own_stop = stop.clone();
                    let schedules = have_snapshots_made(cluster, maps.clone(), manager.late.clone());
                    tokio::select! {
                        () = manager.lead(maps.clone()) => tracing::warn!(%node, "this node no longer manages the cluster"),
                        () = schedules => {}
                        () = cluster.bound_history(HistoryBounds::default()) => {}
                        _ = own_stop.changed() => {}
                    }
                    collector.end();
                    // Gone at once, so that the next one need not wait for the lease to end.
                    let _ = cluster.registry().lease_revoke(manager.lease).await;
                }
                Ok(None) => collector.end(),
                Err(error) => {
                    collector.end();
                    tracing::warn!(%node, %error, "no manager could be chosen");
                }
            }
            if began.elapsed() > ELECTION_PAUSE_MAX {
                pause = ELECTION_PAUSE_MIN;
            }
            tokio::select! {
                // Until the watch has shown who is the manager now.
                () = tokio::time::sleep(pause) => {}
                _ = stop.changed() => return,
            }
            pause = (pause * 2).min(ELECTION_PAUSE_MAX);
        }
    }
}

struct Manager {
    cluster: Cluster,
    lease: LeaseId,
    record: ManagerRecord,
    management: Management,
    /// What the OSDs tell.
    collector: Collector,
    /// The map of the last decision.
    seen: Option<Arc<ClusterMap>>,
    clock: Clock,
    /// What could not be done for schedules.
    late: watch::Sender<Late>,
    /// When it is looked again how full the cluster is.
    space_due: Instant,
}

impl Manager {
    /// Becomes the manager, unless another was faster.
    async fn elect(
        cluster: &Cluster,
        node: NodeId,
        address: SocketAddr,
        collector: &Collector,
    ) -> Result<Option<Manager>, ClusterError> {
        let lease = cluster.registry().lease_grant(LEASE_TTL).await?.id;
        let (pid, address) = (std::process::id(), Some(address));
        let record = ManagerRecord { node, pid, address, away: BTreeMap::new(), late: Late::new() };
        let elected = cluster.become_manager(&record, lease).await;
        if let Ok(true) = elected {
            let management = Management::new(cluster.clone());
            let (cluster, collector, clock) = (cluster.clone(), collector.clone(), Clock::new());
            let late = watch::Sender::default();
            return Ok(Some(Manager {
                cluster,
                lease,
                record,
                management,
                collector,
                seen: None,
                clock,
                late,
                space_due: Instant::now(),
            }));
        }
        // After an error it may have been elected all the same: what tells others so goes with the lease.
        let revoked = cluster.registry().lease_revoke(lease).await;
        elected?;
        revoked?;
        Ok(None)
    }

    /// Decides until the lease is lost.
    async fn lead(&mut self, mut maps: Maps) {
        let mut settings = self.cluster.watch_settings();
        let mut late = self.late.subscribe();
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
            let is_cutting = has_cuts(&maps.borrow());
            tokio::select! {
                Ok(()) = maps.changed() => due = Some(due.map_or(soon, |due| due.min(soon))),
                Ok(()) = late.changed() => due = Some(due.map_or(soon, |due| due.min(soon))),
                Ok(()) = settings.changed() => due = Some(due.map_or(soon, |due| due.min(soon))),
                _ = keep_alive.tick() => {
                    let kept = self.cluster.registry().lease_keep_alive(self.lease).await;
                    if let Err(RegistryError::LeaseNotFound { .. }) = kept {
                        return;
                    }
                    let map = maps.borrow().clone();
                    self.heed_osds(&map).await;
                }
                () = tokio::time::sleep(CUT_LOOK_PAUSE), if is_cutting => {
                    let map = maps.borrow().clone();
                    self.heed_osds(&map).await;
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
        // Somebody who managed it before has told of what was then.
        let before = self.seen.replace(map.clone()).unwrap_or_else(|| map.clone());
        for (is_warning, what) in announcements(&before, map) {
            match is_warning {
                true => tracing::warn!("{what}"),
                false => tracing::info!("{what}"),
            }
        }
        let moment = self.clock.now();
        let next = self.management.decide_who_is_in(map, moment, out_after).await?;
        let mut at = next.map(|next| self.clock.instant(next));
        if !self.retarget(map).await? {
            let retry = Instant::now() + RETRY_PAUSE;
            at = Some(at.map_or(retry, |at| at.min(retry)));
        }
        self.management.split_pools(map).await?;
        let away = self.management.away(map, out_after);
        let late = self.late.borrow().clone();
        if away != self.record.away || late != self.record.late {
            let now = ManagerRecord { away, late, ..self.record.clone() };
            if !self.cluster.publish_manager(&self.record, &now, self.lease).await? {
                return Ok(Decided::Lost);
            }
            self.record = now;
        }
        if let Some(left) = self.management.purge_trash(map, moment.unix).await? {
            // Somebody may set the clock meanwhile.
            let look = Instant::now() + left.min(TRASH_LOOK_PAUSE);
            at = Some(at.map_or(look, |at| at.min(look)));
        }
        Ok(Decided::Again { at })
    }

    /// Decides what waits for a word of the OSDs, which no change of the map announces.
    async fn heed_osds(&mut self, map: &ClusterMap) {
        let now = Instant::now();
        let notes_space = now >= self.space_due;
        if map.removed_pools.is_empty() && !has_cuts(map) && !notes_space {
            return;
        }
        let Some(heard) = self.collector.heard(now.into_std(), map) else { return };
        // Who has not been told by all yet takes the cluster for smaller than it is.
        if notes_space && heard.is_complete {
            self.space_due = now + SPACE_PAUSE;
            if let Err(error) = self.management.note_space(&heard.statuses).await {
                tracing::warn!(%error, "how full the cluster is could not be noted; it is tried again");
            }
        }
        if let Err(error) = self.management.settle_removed_pools(map, &heard.statuses).await {
            tracing::warn!(%error, "who holds nothing of removed pools could not be noted; it is tried again");
        }
        if let Err(error) = self.management.settle_cuts(map, &heard.statuses).await {
            tracing::warn!(%error, "which volumes may grow again could not be noted; it is tried again");
        }
    }

    /// Writes the targets that the map asks for. Says whether nothing is left to write.
    async fn retarget(&mut self, map: &Arc<ClusterMap>) -> Result<bool, ClusterError> {
        if !self.management.must_retarget(map) {
            return Ok(true);
        }
        let decided_by = map.clone();
        // A large pool takes a while, and the leases of this node's OSDs are kept alive meanwhile.
        let changes = tokio::task::spawn_blocking(move || target_changes(&decided_by)).await;
        let changes = changes.unwrap_or_else(|error| {
            tracing::error!(%error, "targets could not be decided");
            Vec::new()
        });
        self.management.retarget(map, &changes).await
    }
}

/// Whether something of a volume is to be deleted everywhere, or copied, before it is as it shall be.
fn has_cuts(map: &ClusterMap) -> bool {
    map.volumes.values().any(|info| [info.cut, info.prune, info.flatten].iter().any(Option::is_some))
}

enum Decided {
    /// There is another manager.
    Lost,
    /// It is time to decide again then, whether anything changes before or not.
    Again { at: Option<Instant> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{Admission, DeviceClass, VolumeInfo};
    use base::status::Away;
    use base::{CutId, Generation, OsdId, OsdUuid, PoolId, VolumeId};

    async fn see(maps: &mut Maps, what: &str, condition: impl Fn(&ClusterMap) -> bool) {
        let waiting = tokio::time::timeout(Duration::from_secs(30), maps.wait_for(|map| condition(map)));
        assert!(waiting.await.is_ok_and(|seen| seen.is_ok()), "the map never shows that {what}");
    }

    /// A cluster of four nodes with an OSD each, the leases of those, and a pool.
    async fn of_four(scratch: &tempfile::TempDir) -> (Cluster, Vec<LeaseId>) {
        let id = base::ClusterId(uuid::Uuid::from_u128(1));
        let registry =
            registry_embedded::EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let mut leases = Vec::new();
        for node in 0..4u16 {
            let uuid = OsdUuid(uuid::Uuid::from_u128(u128::from(node) + 1));
            let osd =
                cluster.register_osd(uuid, NodeId(u32::from(node)), 1 << 30, DeviceClass::Ssd).await.unwrap();
            let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
            cluster.osd_up(osd, ([127, 0, 0, 1], 7000 + node).into(), lease).await.unwrap();
            leases.push(lease);
        }
        cluster.create_pool("p", 3, 2, 64).await.unwrap();
        (cluster, leases)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn targets_that_were_not_all_written_are_decided_again_soon() {
        let scratch = tempfile::tempdir().unwrap();
        let (cluster, leases) = of_four(&scratch).await;
        let (address, collector) = (([127, 0, 0, 1], 7100).into(), Collector::default());
        let elected = Manager::elect(&cluster, NodeId(0), address, &collector).await.unwrap();
        let mut manager = elected.expect("nobody else stands");
        cluster.set_admission(OsdId(0), Admission::Out).await.unwrap();
        let map = Arc::new(cluster.map().await.unwrap());
        // Somebody writes others than this map has.
        assert!(cluster.change_targets(&target_changes(&map)).await.unwrap());
        let before = Instant::now();
        let Ok(Decided::Again { at: Some(at) }) = manager.decide(&map, None).await else {
            panic!("no other map may come")
        };
        assert!(before + RETRY_PAUSE <= at && at <= Instant::now() + RETRY_PAUSE);
        // However late it is before somebody who is away is taken out.
        cluster.registry().lease_revoke(leases[3]).await.unwrap();
        let newer = Arc::new(cluster.map().await.unwrap());
        let out_after = Duration::from_secs(600);
        let stale = Arc::new(ClusterMap { targets: map.targets.clone(), ..ClusterMap::clone(&newer) });
        for (map, is_soon) in [(&stale, true), (&newer, false)] {
            let Ok(Decided::Again { at: Some(at) }) = manager.decide(map, Some(out_after)).await else {
                panic!("somebody is away")
            };
            assert_eq!(at <= Instant::now() + RETRY_PAUSE, is_soon);
            assert!(at <= Instant::now() + out_after);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_stays_away_is_taken_out_and_in_again_and_a_manager_that_ends_is_followed_by_another() {
        let scratch = tempfile::tempdir().unwrap();
        let (cluster, leases) = of_four(&scratch).await;
        cluster.change_settings(|settings| settings.osd_out_after_seconds = 1).await.unwrap();
        let placed = cluster.map().await.unwrap().targets;
        let mut maps = cluster.watch_map();
        let mut stops = Vec::new();
        for node in 0..2 {
            let stop = watch::Sender::new(false);
            let candidate = Candidate {
                node: NodeId(node),
                cluster: cluster.clone(),
                address: ([127, 0, 0, 1], 7100 + node as u16).into(),
                collector: Collector::default(),
            };
            tokio::spawn(candidate.run(maps.clone(), cluster.watch_manager(), stop.subscribe()));
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_is_elected_tells_who_is_away_and_notices_that_it_is_the_manager_no_more() {
        let scratch = tempfile::tempdir().unwrap();
        let (cluster, leases) = of_four(&scratch).await;
        let (address, collector) = (([127, 0, 0, 1], 7100).into(), Collector::default());
        let elected = Manager::elect(&cluster, NodeId(0), address, &collector).await.unwrap();
        let mut manager = elected.expect("nobody else stands");
        assert!(Manager::elect(&cluster, NodeId(1), address, &collector).await.unwrap().is_none());
        let out_after = Some(Duration::from_secs(600));
        let decided = manager.decide(&Arc::default(), out_after).await;
        assert!(matches!(decided, Ok(Decided::Again { at: None })) && manager.seen.is_none());
        cluster.registry().lease_revoke(leases[3]).await.unwrap();
        let map = Arc::new(cluster.map().await.unwrap());
        let decided = manager.decide(&map, out_after).await;
        assert!(matches!(decided, Ok(Decided::Again { at: Some(_) })));
        let record = cluster.manager().await.unwrap().expect("it manages");
        assert_eq!(record.away.keys().copied().collect::<Vec<_>>(), [OsdId(3)]);
        assert!(cluster.depose_manager(&record).await.unwrap());
        // There is nothing new to tell.
        assert!(matches!(manager.decide(&map, out_after).await, Ok(Decided::Again { .. })));
        cluster.registry().lease_revoke(leases[2]).await.unwrap();
        let map = Arc::new(cluster.map().await.unwrap());
        assert!(matches!(manager.decide(&map, out_after).await, Ok(Decided::Lost)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_could_not_be_done_for_schedules_is_published_until_it_is_done() {
        let scratch = tempfile::tempdir().unwrap();
        let (cluster, _) = of_four(&scratch).await;
        let (address, collector) = (([127, 0, 0, 1], 7100).into(), Collector::default());
        let elected = Manager::elect(&cluster, NodeId(0), address, &collector).await.unwrap();
        let mut manager = elected.expect("nobody else stands");
        let map = Arc::new(cluster.map().await.unwrap());
        let late = base::schedule::LateSchedule {
            slot_unix_seconds: 3600,
            volumes: vec!["v".to_owned()],
            reason: "somebody does not stand still".to_owned(),
        };
        for late in [Late::from([("hourly".to_owned(), late)]), Late::new()] {
            manager.late.send_replace(late.clone());
            assert!(matches!(manager.decide(&map, None).await, Ok(Decided::Again { .. })));
            assert_eq!(cluster.manager().await.unwrap().expect("it manages").late, late);
        }
    }

    #[test]
    fn one_volume_that_was_made_smaller_among_others_is_waited_for() {
        let mut map = ClusterMap::default();
        for (id, cut) in [(1, None), (2, Some(CutId(4)))] {
            assert!(!has_cuts(&map));
            let (name, pool, generation) = (format!("v{id}"), PoolId(1), Generation(1));
            let info = VolumeInfo { name, pool, bytes: 4096, generation, cut, ..VolumeInfo::default() };
            map.volumes.insert(VolumeId(id), info);
        }
        assert!(has_cuts(&map));
    }
}
