//! The schema over an embedded registry, with concurrent users where they could hurt each other.

use super::*;
use crate::interface::{Lease, LeaseId};
use crate::{EmbeddedRegistry, RemoteRegistry, SocketServer};
use base::map::PgConfig;
use base::{ClientId, Epoch, Generation, NodeId, OsdId, OsdUuid, PgId, PoolId};
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;

const GIB: u64 = 1 << 30;

fn id(number: u128) -> ClusterId {
    ClusterId(uuid::Uuid::from_u128(number))
}

fn uuid(number: u128) -> OsdUuid {
    OsdUuid(uuid::Uuid::from_u128(number))
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn empty() -> (TempDir, Cluster) {
    let directory = tempfile::tempdir().unwrap();
    let registry = EmbeddedRegistry::create(&directory.path().join("registry.redb"), id(1)).unwrap();
    (directory, Cluster::new(Arc::new(registry)))
}

/// A cluster of three OSDs on three nodes with the pool `default`.
async fn three() -> (TempDir, Cluster) {
    let (directory, cluster) = empty().await;
    cluster.create(id(1)).await.unwrap();
    for node in 0..3 {
        cluster.register_osd(uuid(u128::from(node) + 1), NodeId(node), 8 * GIB).await.unwrap();
    }
    cluster.create_pool("default", 3, 2, 64).await.unwrap();
    (directory, cluster)
}

async fn lease(cluster: &Cluster) -> LeaseId {
    let Lease { id, .. } = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap();
    id
}

async fn see(
    maps: &mut watch::Receiver<Arc<ClusterMap>>,
    condition: impl FnMut(&Arc<ClusterMap>) -> bool,
) -> Arc<ClusterMap> {
    let waiting = tokio::time::timeout(Duration::from_secs(20), maps.wait_for(condition));
    waiting.await.expect("the map comes to show it").unwrap().clone()
}

#[tokio::test]
async fn a_cluster_is_created_once_and_never_becomes_another() {
    let (_directory, cluster) = empty().await;
    assert!(matches!(cluster.id().await, Err(ClusterError::NoCluster)));
    assert!(matches!(cluster.map().await, Err(ClusterError::NoCluster)));
    cluster.create(id(1)).await.unwrap();
    cluster.create(id(1)).await.unwrap();
    assert!(matches!(cluster.create(id(2)).await, Err(ClusterError::OtherCluster { .. })));
    assert_eq!(cluster.id().await.unwrap(), id(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_osd_keeps_its_id_and_no_two_share_one() {
    let (_directory, cluster) = empty().await;
    cluster.create(id(1)).await.unwrap();
    let tasks: Vec<_> = (0..24u32)
        .map(|index| {
            let cluster = cluster.clone();
            // Each is registered by two at once.
            tokio::spawn(async move {
                let uuid = uuid(u128::from(index / 2) + 1);
                (uuid, cluster.register_osd(uuid, NodeId(index / 2), GIB).await.unwrap())
            })
        })
        .collect();
    let mut ids = std::collections::BTreeMap::new();
    for task in tasks {
        let (uuid, id) = task.await.unwrap();
        assert_eq!(*ids.entry(uuid).or_insert(id), id);
    }
    let mut numbers: Vec<u32> = ids.values().map(|id| id.0).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..12).collect::<Vec<_>>());
    let moved = cluster.register_osd(uuid(1), NodeId(40), 2 * GIB).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert_eq!(moved, ids[&uuid(1)]);
    assert_eq!((map.osds[&moved].node, map.osds[&moved].bytes), (NodeId(40), 2 * GIB));
}

#[tokio::test]
async fn an_osd_is_up_as_long_as_its_lease() {
    let (_directory, cluster) = three().await;
    let osd = OsdId(1);
    assert_eq!(cluster.map().await.unwrap().osds[&osd].address, None);
    let first = lease(&cluster).await;
    assert_eq!(cluster.osd_up(osd, address(7001), first).await.unwrap(), 1);
    assert_eq!(cluster.map().await.unwrap().osds[&osd].address, Some(address(7001)));
    let second = lease(&cluster).await;
    assert_eq!(cluster.osd_up(osd, address(7002), second).await.unwrap(), 2);
    cluster.registry().lease_revoke(first).await.unwrap();
    let info = cluster.map().await.unwrap().osds[&osd].clone();
    assert_eq!((info.address, info.incarnation), (Some(address(7002)), 2), "the newer start goes on");
    cluster.registry().lease_revoke(second).await.unwrap();
    let info = cluster.map().await.unwrap().osds[&osd].clone();
    assert_eq!((info.address, info.incarnation), (None, 2));
    let unknown = cluster.osd_up(OsdId(9), address(7009), first).await;
    assert!(matches!(unknown, Err(ClusterError::NoSuchOsd { osd: OsdId(9) })));
}

#[tokio::test]
async fn a_pool_is_made_whole_and_removed_whole() {
    let (_directory, cluster) = three().await;
    let map = cluster.map().await.unwrap();
    let (pool, info) = map.pool_named("default").unwrap();
    assert_eq!((pool, info.size, info.min_size, info.pg_count), (PoolId(1), 3, 2, 64));
    assert_eq!(map.pgs.len(), 64);
    for config in map.pgs.values() {
        assert_eq!((config.epoch, config.in_sync.len()), (Epoch(1), 3));
        assert_eq!(config.primary, config.in_sync[0]);
    }
    let large = cluster.create_pool("large", 2, 1, 1000).await.unwrap();
    assert_eq!(cluster.map().await.unwrap().pgs.len(), 1064);
    cluster.create_volume("v", "large", GIB).await.unwrap();
    let error = cluster.remove_pool("large").await.unwrap_err();
    assert!(matches!(&error, ClusterError::PoolInUse { volumes: 1, .. }), "{error}");
    cluster.remove_volume("v").await.unwrap();
    assert_eq!(cluster.map().await.unwrap().volumes.len(), 1, "its objects are not gone yet");
    cluster.remove_pool("large").await.unwrap();
    let map = cluster.map().await.unwrap();
    assert_eq!((map.pools.len(), map.pgs.len(), map.volumes.len()), (1, 64, 0));
    assert!(cluster.registry().range(&keys::pgs_of(large)).await.unwrap().entries.is_empty());
    assert!(matches!(cluster.remove_pool("large").await, Err(ClusterError::NoSuchPool { .. })));
    assert_eq!(cluster.create_pool("large", 1, 1, 1).await.unwrap(), PoolId(3), "no id is used twice");
}

#[tokio::test]
async fn pools_that_cannot_be_are_refused_with_what_could() {
    let (_directory, cluster) = three().await;
    let error = cluster.create_pool("four", 4, 2, 64).await.unwrap_err();
    assert!(matches!(error, ClusterError::TooFewOsds { size: 4, osds: 3, .. }), "{error}");
    for (size, min_size, pg_count) in
        [(0, 0, 64), (17, 2, 64), (3, 0, 64), (3, 4, 64), (3, 2, 0), (3, 2, 65_537)]
    {
        let error = cluster.create_pool("p", size, min_size, pg_count).await.unwrap_err();
        assert!(matches!(error, ClusterError::PoolInvalid { .. }), "{error}");
        assert!(error.to_string().contains("choose"), "{error}");
    }
    assert!(matches!(cluster.create_pool("default", 3, 2, 8).await, Err(ClusterError::PoolExists { .. })));
    assert!(matches!(cluster.create_pool("a/b", 3, 2, 8).await, Err(ClusterError::NameInvalid { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_make_one_pool_one_succeeds_and_leaves_nothing_double() {
    let (_directory, cluster) = three().await;
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let cluster = cluster.clone();
            tokio::spawn(async move { cluster.create_pool("p", 3, 2, 200).await })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(_) => made += 1,
            Err(error) => assert!(matches!(error, ClusterError::PoolExists { .. }), "{error}"),
        }
    }
    assert_eq!(made, 1);
    assert_eq!(cluster.registry().range(keys::PGS).await.unwrap().entries.len(), 264);
}

#[tokio::test]
async fn volumes_are_made_resized_and_removed() {
    let (_directory, cluster) = three().await;
    let first = cluster.create_volume("a.b_c-1", "default", 64 << 40).await.unwrap();
    assert!(matches!(
        cluster.create_volume("a.b_c-1", "default", 1).await,
        Err(ClusterError::VolumeExists { .. })
    ));
    for name in ["", "a b", "ü", "a/b", &"x".repeat(101)] {
        let error = cluster.create_volume(name, "default", 1).await.unwrap_err();
        assert!(matches!(error, ClusterError::NameInvalid { .. }), "{error}");
    }
    for bytes in [0, (64 << 40) + 1] {
        let error = cluster.create_volume("v", "default", bytes).await.unwrap_err();
        assert!(error.to_string().contains("64TiB"), "{error}");
    }
    assert!(matches!(cluster.create_volume("v", "none", 1).await, Err(ClusterError::NoSuchPool { .. })));

    let error = cluster.resize_volume("a.b_c-1", GIB, false).await.unwrap_err();
    assert!(error.to_string().contains("--allow-shrink"), "{error}");
    cluster.resize_volume("a.b_c-1", GIB, true).await.unwrap();
    cluster.resize_volume("a.b_c-1", 2 * GIB, false).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert_eq!(map.volume_named("a.b_c-1").map(|(id, info)| (id, info.bytes)), Some((first, 2 * GIB)));

    cluster.remove_volume("a.b_c-1").await.unwrap();
    assert!(matches!(cluster.remove_volume("a.b_c-1").await, Err(ClusterError::NoSuchVolume { .. })));
    assert!(matches!(
        cluster.resize_volume("a.b_c-1", 1, true).await,
        Err(ClusterError::NoSuchVolume { .. })
    ));
    let again = cluster.create_volume("a.b_c-1", "default", GIB).await.unwrap();
    assert_ne!(again, first);
    let map = cluster.map().await.unwrap();
    assert!(map.volumes[&first].removed);
    assert_eq!(map.volume_named("a.b_c-1").unwrap().0, again);
}

#[tokio::test]
async fn an_exclusive_attach_keeps_others_out_and_raises_the_generation() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let (one, two) = (ClientId(1), ClientId(2));
    let (lease_one, lease_two) = (lease(&cluster).await, lease(&cluster).await);
    let attach =
        |client, lease, shared, who: &str| cluster.attach("v", client, lease, shared, who.to_owned());

    let attachment = attach(one, lease_one, false, "process 71 on alpha").await.unwrap();
    assert_eq!((attachment.id, attachment.generation), (volume, Generation(1)));
    assert_eq!(attachment.info.generation, Generation(1));
    for shared in [false, true] {
        let error = attach(two, lease_two, shared, "process 72 on beta").await.unwrap_err();
        assert!(error.to_string().contains("process 71 on alpha"), "{error}");
    }
    let error = cluster.remove_volume("v").await.unwrap_err();
    assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
    assert_eq!(attach(one, lease_one, false, "again").await.unwrap().generation, Generation(2));

    cluster.registry().lease_revoke(lease_one).await.unwrap();
    assert_eq!(cluster.attachments(volume).await.unwrap(), []);
    assert_eq!(attach(two, lease_two, false, "two").await.unwrap().generation, Generation(3));
    cluster.detach(volume, two).await.unwrap();
    cluster.detach(volume, two).await.unwrap();
    cluster.remove_volume("v").await.unwrap();
    let error = attach(two, lease_two, false, "two").await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
}

#[tokio::test]
async fn shared_attaches_coexist_with_each_other_only() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let lease = lease(&cluster).await;
    let attach =
        |client, shared| cluster.attach("v", ClientId(client), lease, shared, format!("client {client}"));
    assert_eq!(attach(9, false).await.unwrap().generation, Generation(1));
    cluster.detach(volume, ClientId(9)).await.unwrap();
    assert_eq!(attach(1, true).await.unwrap().generation, Generation(1));
    assert_eq!(attach(2, true).await.unwrap().generation, Generation(1));
    let error = attach(3, false).await.unwrap_err();
    assert!(error.to_string().contains("--shared"), "{error}");
    let holders = cluster.attachments(volume).await.unwrap();
    assert_eq!(holders.iter().map(|holder| holder.client.0).collect::<Vec<_>>(), [1, 2]);
    assert!(holders.iter().all(|holder| holder.shared));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_attaching_at_once_one_succeeds_and_a_removal_never_meets_a_holder() {
    let (_directory, cluster) = three().await;
    for round in 0..15u64 {
        let name = format!("v{round}");
        let volume = cluster.create_volume(&name, "default", GIB).await.unwrap();
        let lease = lease(&cluster).await;
        let tasks: Vec<_> = (0..6u64)
            .map(|client| {
                let (cluster, name) = (cluster.clone(), name.clone());
                let shared = client >= 4;
                tokio::spawn(async move {
                    cluster
                        .attach(&name, ClientId(client), lease, shared, format!("client {client}"))
                        .await
                        .is_ok()
                })
            })
            .collect();
        let removed = cluster.remove_volume(&name).await.is_ok();
        let mut attached = Vec::new();
        for (client, task) in tasks.into_iter().enumerate() {
            if task.await.unwrap() {
                attached.push(client);
            }
        }
        assert_eq!(removed, attached.is_empty(), "{attached:?}");
        let exclusive = attached.iter().filter(|&&client| client < 4).count();
        assert!(exclusive == 0 || attached.len() == 1, "{attached:?}");
        let generation = cluster.map().await.unwrap().volumes[&volume].generation;
        assert_eq!(generation, Generation(exclusive as u32));
    }
}

#[tokio::test]
async fn a_configuration_changes_only_from_the_epoch_it_was_made_for() {
    let (_directory, cluster) = three().await;
    let pg = PgId { pool: PoolId(1), index: 5 };
    let first = cluster.map().await.unwrap().pgs[&pg].clone();
    let mut smaller = PgConfig { epoch: Epoch(2), ..first.clone() };
    smaller.learners = vec![smaller.in_sync.pop().unwrap()];
    assert!(cluster.change_pg(pg, Epoch(1), smaller.clone()).await.unwrap());
    assert!(!cluster.change_pg(pg, Epoch(1), smaller.clone()).await.unwrap());
    assert_eq!(cluster.map().await.unwrap().pgs[&pg], smaller);
    let refused = [
        PgConfig { epoch: Epoch(2), ..smaller.clone() },
        PgConfig { epoch: Epoch(3), primary: OsdId(77), ..smaller.clone() },
        PgConfig { epoch: Epoch(3), learners: vec![smaller.primary], ..smaller.clone() },
        PgConfig { epoch: Epoch(3), in_sync: vec![], ..smaller.clone() },
    ];
    for config in refused {
        let error = cluster.change_pg(pg, Epoch(2), config).await.unwrap_err();
        assert!(matches!(error, ClusterError::PgInvalid { .. }), "{error}");
    }
    let unknown = PgId { pool: PoolId(1), index: 64 };
    let error =
        cluster.change_pg(unknown, Epoch(2), PgConfig { epoch: Epoch(3), ..first }).await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchPg { .. }), "{error}");
}

#[tokio::test]
async fn a_status_is_seen_as_long_as_its_lease_and_written_only_when_it_changes() {
    let (_directory, cluster) = three().await;
    let lease = lease(&cluster).await;
    let pg = PgId { pool: PoolId(1), index: 0 };
    let states = [
        PgState::Waiting { reason: "osd.2 is down".into() },
        PgState::Peering,
        PgState::Active,
        PgState::Stopped { reason: "below min_size".into() },
    ];
    for state in states {
        let mut status = OsdStatus { path: "/dev/nvme0n1".into(), pid: 7, ..OsdStatus::default() };
        status.pgs.insert(pg, PgStatus { epoch: Epoch(1), state, in_sync: vec![OsdId(0)], objects: 3 });
        status.write_amplification = f64::NAN;
        cluster.publish_osd_status(OsdId(0), lease, &status).await.unwrap();
        let revision = cluster.map().await.unwrap().revision;
        cluster.publish_osd_status(OsdId(0), lease, &status).await.unwrap();
        assert_eq!(cluster.map().await.unwrap().revision, revision);
        status.write_amplification = 0.0;
        assert_eq!(cluster.osd_statuses().await.unwrap()[&OsdId(0)], status);
    }
    cluster.registry().lease_revoke(lease).await.unwrap();
    assert!(cluster.osd_statuses().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_map_comes_to_equal_a_reading() {
    let (_directory, cluster) = empty().await;
    let mut maps = cluster.watch_map();
    assert_eq!(maps.borrow().revision, 0);
    cluster.create(id(1)).await.unwrap();
    let lease = lease(&cluster).await;
    for node in 0..3 {
        let osd = cluster.register_osd(uuid(u128::from(node) + 1), NodeId(node), GIB).await.unwrap();
        cluster.osd_up(osd, address(7000), lease).await.unwrap();
    }
    see(&mut maps, |map| map.osds.values().filter(|osd| osd.address.is_some()).count() == 3).await;
    cluster.create_pool("p", 3, 2, 300).await.unwrap();
    cluster.create_volume("v", "p", GIB).await.unwrap();
    let map = see(&mut maps, |map| map.volume_named("v").is_some()).await;
    assert_eq!(map.pgs.len(), 300);
    cluster.registry().lease_revoke(lease).await.unwrap();
    let map = see(&mut maps, |map| map.osds.values().all(|osd| osd.address.is_none())).await;
    assert_eq!(*map, cluster.map().await.unwrap());
    cluster.remove_volume("v").await.unwrap();
    cluster.remove_pool("p").await.unwrap();
    let map = see(&mut maps, |map| map.pools.is_empty()).await;
    assert!(map.pgs.is_empty() && map.volumes.is_empty());
}

#[tokio::test]
async fn a_watched_map_is_read_anew_after_its_history_went() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("registry.sock");
    let registry: Arc<dyn Registry> =
        Arc::new(EmbeddedRegistry::create(&directory.path().join("registry.redb"), id(1)).unwrap());
    let local = Cluster::new(registry.clone());
    local.create(id(1)).await.unwrap();
    let server = SocketServer::bind(&socket, registry.clone()).unwrap();
    let remote = Cluster::new(Arc::new(RemoteRegistry::new(&socket, Duration::from_secs(10))));
    let mut maps = remote.watch_map();
    see(&mut maps, |map| map.cluster == id(1)).await;

    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    for node in 0..3 {
        local.register_osd(uuid(u128::from(node) + 1), NodeId(node), GIB).await.unwrap();
    }
    let revision = registry.range("").await.unwrap().revision;
    registry.compact(revision).await.unwrap();
    let _server = SocketServer::bind(&socket, registry).unwrap();
    let map = see(&mut maps, |map| map.osds.len() == 3).await;
    assert_eq!(*map, local.map().await.unwrap());
    local.create_pool("p", 3, 2, 8).await.unwrap();
    see(&mut maps, |map| map.pgs.len() == 8).await;
}

#[tokio::test]
async fn an_entry_that_makes_no_sense_is_named_and_does_not_stop_the_watch() {
    let (_directory, cluster) = three().await;
    let mut maps = cluster.watch_map();
    see(&mut maps, |map| map.pgs.len() == 64).await;
    let key = keys::pg(PgId { pool: PoolId(1), index: 0 });
    cluster.registry().put(&key, "nonsense".into()).await.unwrap();
    cluster.registry().put("millpond/map/moon/1", "of a later version".into()).await.unwrap();
    cluster.create_volume("v", "default", GIB).await.unwrap();
    let map = see(&mut maps, |map| map.volume_named("v").is_some()).await;
    assert_eq!(map.pgs.len(), 64);
    let error = cluster.map().await.unwrap_err();
    assert!(error.to_string().contains(&key), "{error}");
}
