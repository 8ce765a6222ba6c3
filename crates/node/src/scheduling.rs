//! When whoever manages the cluster has snapshots made by schedules.
//!
//! It looks when the map changes, and when a slot begins; where nothing is scheduled it only waits for the map. Making a snapshot may take a
//! second, for clients come to a standstill: whoever decides all else does not wait for it.

use crate::clock::Clock;
use base::map::ClusterMap;
use base::schedule::LateSchedule;
use cluster::Cluster;
use manager::Scheduling;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The pause before it is looked again, at least: what was done shows in the map by then.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(100);
/// How long nobody looks while there are schedules, at most: somebody may set the clock meanwhile.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The schedules whose snapshots could not be made, by their names.
pub(crate) type Late = BTreeMap<String, LateSchedule>;

/// Has them made until it is dropped, and tells what is late.
pub(crate) async fn have_snapshots_made(
    cluster: &Cluster,
    mut maps: watch::Receiver<Arc<ClusterMap>>,
    late: watch::Sender<Late>,
) {
    let (mut scheduling, clock) = (Scheduling::new(cluster.clone()), Clock::new());
    loop {
        let map = maps.borrow_and_update().clone();
        let next_in = match map.revision {
            // The first map is empty: nothing was read yet.
            0 => None,
            _ => scheduling.act(&map, clock.now()).await,
        };
        let told = scheduling.late(clock.now().unix);
        late.send_if_modified(|before| {
            let is_new = *before != told;
            *before = told;
            is_new
        });
        let again_at = next_in.map(|left| Instant::now() + left.min(LOOK_PAUSE_MAX));
        tokio::time::sleep(LOOK_PAUSE_MIN).await;
        let waits = async {
            match again_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = maps.changed() => {}
            () = waits => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ClientId;
    use base::map::DeviceClass;
    use base::{ClusterId, NodeId, OsdUuid};
    use cluster::WantedSchedule;

    /// A cluster with two volumes that are due since long ago.
    async fn with_schedule(scratch: &tempfile::TempDir) -> Cluster {
        let id = ClusterId(uuid::Uuid::from_u128(1));
        let registry =
            registry_embedded::EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let uuid = OsdUuid(uuid::Uuid::from_u128(2));
        cluster.register_osd(uuid, NodeId(0), 1 << 30, DeviceClass::Ssd).await.unwrap();
        cluster.create_pool("p", 1, 1, 8).await.unwrap();
        for volume in ["v", "w"] {
            cluster.create_volume(volume, "p", 1 << 20).await.unwrap();
        }
        cluster
    }

    async fn schedule(cluster: &Cluster, name: &str, volume: &str) {
        let (every, keep) = ("366d".parse().unwrap(), "1 last".parse().unwrap());
        let wanted = WantedSchedule { volumes: vec![volume.to_owned()], every, keep };
        cluster.create_schedule(name, wanted, 0).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_who_take_themselves_for_the_manager_make_one_snapshot_and_tell_what_is_late() {
        let scratch = tempfile::tempdir().unwrap();
        let cluster = with_schedule(&scratch).await;
        schedule(&cluster, "yearly", "v").await;
        let mut maps = cluster.watch_map();
        let told = [(); 2].map(|()| watch::Sender::<Late>::default());
        for late in &told {
            let (cluster, late) = (cluster.clone(), late.clone());
            tokio::spawn(async move { have_snapshots_made(&cluster, cluster.watch_map(), late).await });
        }
        let patience = Duration::from_secs(30);
        let is_made = |map: &Arc<ClusterMap>| !map.snapshots.is_empty();
        tokio::time::timeout(patience, maps.wait_for(is_made)).await.expect("it is made").unwrap();
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
        let attached = cluster.attach("w", ClientId(1), lease, false, "client 1".to_owned()).await.unwrap();
        schedule(&cluster, "stuck", "w").await;
        for late in &told {
            let mut late = late.subscribe();
            let is_told = |late: &Late| late.get("stuck").is_some_and(|one| one.reason.contains("client 1"));
            tokio::time::timeout(patience, late.wait_for(is_told)).await.expect("it is told").unwrap();
        }
        cluster.detach(attached.id, ClientId(1)).await.unwrap();
        for late in &told {
            let is_told_no_more = |late: &Late| late.is_empty();
            let mut late = late.subscribe();
            tokio::time::timeout(patience, late.wait_for(is_told_no_more))
                .await
                .expect("it is made")
                .unwrap();
        }
        let map = cluster.map().await.unwrap();
        let counts: Vec<usize> = map.snapshots.values().map(|all| all.len()).collect();
        assert_eq!(counts, [1, 1]);
    }
}
