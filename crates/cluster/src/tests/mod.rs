//! The schema over an embedded registry, with concurrent users where they could hurt each other.

mod attach;
mod current;
mod namespaces;
mod opening;
mod osds;
mod places;
mod qos;
mod removed_pools;
mod replacement;
mod rights;

use super::*;
use base::map::{
    Admission, DeviceClass, FailureDomain, Location, NodeInfo, PgConfig, PlacementRule, PoolInfo, Reweight,
};
use base::status::Away;
use base::{ClientId, Epoch, Generation, NodeId, OsdId, OsdUuid, PgId, PoolId};
use placement::{Candidate, retarget};
use registry::RegistryError;
use registry::{Lease, LeaseId};
use registry_embedded::EmbeddedRegistry;
use registry_remote::{RemoteRegistry, SocketServer};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;
use testkit::between::{Behind, Between};
use tokio::sync::{oneshot, watch};

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
    let (directory, cluster) = with_osds(3).await;
    cluster.create_pool("default", 3, 2, 64).await.unwrap();
    (directory, cluster)
}

/// A cluster of so many OSDs on as many nodes without a pool.
async fn with_osds(count: u32) -> (TempDir, Cluster) {
    let (directory, cluster) = empty().await;
    cluster.create(id(1)).await.unwrap();
    for node in 0..count {
        cluster
            .register_osd(uuid(u128::from(node) + 1), NodeId(node), 8 * GIB, DeviceClass::Ssd)
            .await
            .unwrap();
    }
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
                (uuid, cluster.register_osd(uuid, NodeId(index / 2), GIB, DeviceClass::Ssd).await.unwrap())
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
    let moved = cluster.register_osd(uuid(1), NodeId(40), 2 * GIB, DeviceClass::Ssd).await.unwrap();
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

#[tokio::test]
async fn a_pool_is_changed_only_to_what_can_be() {
    let (_directory, cluster) = three().await;
    let info = cluster.change_pool("default", Some(2), None).await.unwrap();
    assert_eq!((info.size, info.min_size, info.pg_count), (2, 2, 64));
    assert_eq!(cluster.map().await.unwrap().pools[&PoolId(1)], info);
    assert_eq!(cluster.change_pool("default", None, Some(1)).await.unwrap().min_size, 1);
    let error = cluster.change_pool("default", Some(4), None).await.unwrap_err();
    assert!(matches!(error, ClusterError::TooFewOsds { size: 4, osds: 3, .. }), "{error}");
    for (size, min_size) in [(Some(0), None), (None, Some(0)), (None, Some(3)), (Some(17), None)] {
        let error = cluster.change_pool("default", size, min_size).await.unwrap_err();
        assert!(matches!(error, ClusterError::PoolInvalid { .. }), "{size:?} {min_size:?}: {error}");
    }
    assert!(matches!(cluster.change_pool("d", Some(1), None).await, Err(ClusterError::NoSuchPool { .. })));
    let left = cluster.map().await.unwrap().pools[&PoolId(1)].clone();
    assert_eq!((left.size, left.min_size), (2, 1), "what was refused changed nothing");
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
    for name in ["", "a b", "ü", "default/a/b/c", "default//a", &"x".repeat(101)] {
        let error = cluster.create_volume(name, "default", 1).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoName(_)), "{error}");
    }
    let error = cluster.create_volume("a/b", "default", 1).await.unwrap_err();
    assert!(matches!(error, ClusterError::PlaceInvalid { .. }), "{error}");
    let error = cluster.create_volume("default/a/b", "default", 1).await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchNamespace { .. }), "{error}");
    let error = cluster.create_volume("v", "default", (64 << 40) + 1).await.unwrap_err();
    assert!(error.to_string().contains("64TiB"), "{error}");
    assert!(matches!(cluster.create_volume("v", "none", 1).await, Err(ClusterError::NoSuchPool { .. })));

    let error = cluster.resize_volume("a.b_c-1", GIB, false).await.unwrap_err();
    assert!(error.to_string().contains("--allow-shrink"), "{error}");
    cluster.resize_volume("a.b_c-1", GIB, true).await.unwrap();
    let cut = cluster.map().await.unwrap().volumes[&first].cut.unwrap();
    assert!(cluster.cut_is_done(first, cut).await.unwrap());
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_one_manager_at_a_time_and_its_end_is_seen() {
    let (_directory, cluster) = three().await;
    let mut seen = cluster.watch_manager();
    let mut is = async |expected: Known<ManagerRecord>| {
        let waiting =
            tokio::time::timeout(Duration::from_secs(20), seen.wait_for(|known| *known == expected));
        waiting.await.expect("it comes to be so").unwrap();
    };
    is(Known::Absent).await;
    let record = |pid| ManagerRecord {
        node: NodeId(0),
        pid,
        address: None,
        away: Default::default(),
        late: Default::default(),
    };
    let (one, other) = (lease(&cluster).await, lease(&cluster).await);
    assert!(cluster.become_manager(&record(1), one).await.unwrap());
    assert!(!cluster.become_manager(&record(2), other).await.unwrap());
    is(Known::Is(record(1))).await;
    let mut telling = record(1);
    telling.away.insert(OsdId(2), Away::Out { at_unix_seconds: 1_700_000_000 });
    telling.away.insert(OsdId(0), Away::In { reason: "too few would be left".into() });
    assert!(cluster.publish_manager(&record(1), &telling, one).await.unwrap());
    assert!(!cluster.publish_manager(&record(1), &telling, one).await.unwrap());
    assert_eq!(cluster.manager().await.unwrap(), Some(telling));
    cluster.registry().lease_revoke(one).await.unwrap();
    is(Known::Absent).await;
    assert!(cluster.become_manager(&record(2), other).await.unwrap());
    // Whoever is told of a manager that died deposes that one and no other.
    assert!(!cluster.depose_manager(&record(1)).await.unwrap());
    is(Known::Is(record(2))).await;
    assert!(cluster.depose_manager(&record(2)).await.unwrap());
    is(Known::Absent).await;
}

#[tokio::test]
async fn settings_are_defaults_until_they_are_changed() {
    let (_directory, cluster) = three().await;
    let seen = cluster.watch_settings();
    assert_eq!(cluster.settings().await.unwrap().osd_out_after(), Some(Duration::from_secs(600)));
    cluster.change_settings(|settings| settings.osd_out_after_seconds = 0).await.unwrap();
    assert_eq!(cluster.settings().await.unwrap().osd_out_after(), None);
    let mut seen = seen;
    let never = Known::Is(Settings { osd_out_after_seconds: 0, ..Settings::default() });
    tokio::time::timeout(Duration::from_secs(20), seen.wait_for(|known| *known == never))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_wish_for_a_scrub_stands_until_one_that_began_with_it_has_ended() {
    let (_directory, cluster) = three().await;
    let pg = *cluster.map().await.unwrap().pgs.keys().next().unwrap();
    let wish_of = async || cluster.scrubs().await.unwrap().get(&pg).and_then(|state| state.wish);
    let done = async |deep: bool, wish: Option<ScrubWish>| {
        let result = ScrubResult { began_ms: 7, deep, objects: 2, bytes: 8192, found: 1, wish };
        cluster.scrub_done(pg, &result).await.unwrap();
    };
    // Whoever wishes has a clock far behind.
    let (light, deep) = (ScrubWish { at_ms: 1, deep: false }, ScrubWish { at_ms: 2, deep: true });
    cluster.wish_scrubs([pg], light).await.unwrap();
    done(true, None).await;
    assert_eq!(wish_of().await, Some(light), "a scrub that began before it fulfilled it");
    cluster.wish_scrubs([pg], deep).await.unwrap();
    done(false, Some(light)).await;
    assert_eq!(wish_of().await, Some(deep), "a newer wish went with an older one");
    done(true, Some(deep)).await;
    assert_eq!(wish_of().await, None);
    let record = cluster.scrubs().await.unwrap()[&pg].record.clone();
    assert_eq!((record.light_ms, record.deep_ms, record.objects, record.found_ever), (7, 7, 2, 3));

    let all: Vec<PgId> = cluster.map().await.unwrap().pgs.into_keys().collect();
    cluster.wish_scrubs(all.iter().copied(), light).await.unwrap();
    assert_eq!(cluster.scrubs_of(&all).await.unwrap(), cluster.scrubs().await.unwrap());
    let some = cluster.scrubs_of(&all[..1]).await.unwrap();
    assert_eq!(some, BTreeMap::from([(pg, ScrubState { record, wish: Some(light) })]));
}

#[tokio::test]
async fn an_http_server_is_known_as_long_as_its_lease_lives() {
    let (_directory, cluster) = empty().await;
    let (first, second) = (lease(&cluster).await, lease(&cluster).await);
    let server = |node, pid, port| HttpRecord {
        node: NodeId(node),
        pid,
        address: address(port),
        remote_address: None,
    };
    cluster.announce_http(&server(10, 5, 7005), first).await.unwrap();
    cluster.announce_http(&server(2, 9, 7001), second).await.unwrap();
    // A process that has announced itself anew is there once.
    cluster.announce_http(&server(2, 9, 7002), second).await.unwrap();
    assert_eq!(cluster.http_servers().await.unwrap(), [server(2, 9, 7002), server(10, 5, 7005)]);
    cluster.registry().lease_revoke(second).await.unwrap();
    assert_eq!(cluster.http_servers().await.unwrap(), [server(10, 5, 7005)]);
}

#[tokio::test]
async fn what_an_older_version_wrote_can_be_read() {
    let (_directory, cluster) = three().await;
    let registry = cluster.registry();
    let osd = r#"{"uuid":"00000000-0000-0000-0000-000000000001","node":0,"bytes":1024,"incarnation":7}"#;
    registry.put(&keys::osd(OsdId(0)), osd.into()).await.unwrap();
    let pool = r#"{"name":"default","size":3,"min_size":2,"pg_count":64}"#;
    registry.put(&keys::pool(PoolId(1)), pool.into()).await.unwrap();
    registry.put(&keys::node(NodeId(1)), r#"{"later":true}"#.into()).await.unwrap();
    let map = cluster.map().await.unwrap();
    let info = &map.osds[&OsdId(0)];
    assert_eq!((info.bytes, info.reweight, info.device_class), (1024, Reweight::FULL, DeviceClass::Ssd));
    assert_eq!(map.pools[&PoolId(1)].rule, PlacementRule::default());
    assert_eq!(map.nodes[&NodeId(1)], NodeInfo::default());
    assert_eq!(map.host_of(NodeId(1)), "node.1");
}
