//! The schema over an embedded registry, with concurrent users where they could hurt each other.

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
async fn an_attachment_whose_lease_ended_goes_on_unless_somebody_else_attached() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let attach = async |client, lease, shared| {
        let attached = cluster.attach("v", ClientId(client), lease, shared, format!("client {client}")).await;
        attached.unwrap().generation
    };
    let revoke = async |lease| cluster.registry().lease_revoke(lease).await.unwrap();
    let resume = async |client, generation, lease| {
        let client = ClientId(client);
        cluster.resume_by(None, &Resume { volume, client, generation, lease }).await.unwrap()
    };
    let first = lease(&cluster).await;
    let generation = attach(1, first, false).await;
    revoke(first).await;
    let second = lease(&cluster).await;
    assert!(resume(1, generation, second).await);
    assert_eq!(cluster.attachments(volume).await.unwrap().len(), 1, "it keeps others out again");
    cluster.resize_volume("v", 2 * GIB, false).await.unwrap();
    assert!(resume(1, generation, second).await, "it may be asked again, and the size is no matter");

    // Somebody came and went, and has fenced it perhaps.
    revoke(second).await;
    let other = lease(&cluster).await;
    attach(2, other, false).await;
    let third = lease(&cluster).await;
    assert!(!resume(1, generation, third).await, "somebody has it");
    revoke(other).await;
    assert!(!resume(1, generation, third).await, "somebody had it");
    assert!(cluster.attachments(volume).await.unwrap().is_empty());

    // Those who share it bear with each other.
    let generation = attach(3, third, true).await;
    revoke(third).await;
    let (fourth, fifth) = (lease(&cluster).await, lease(&cluster).await);
    attach(4, fourth, true).await;
    assert!(resume(3, generation, fifth).await);
    for lease in [fourth, fifth] {
        revoke(lease).await;
    }
    cluster.detach(volume, ClientId(3)).await.unwrap();
    let sixth = lease(&cluster).await;
    assert!(!resume(3, generation, sixth).await, "it has said that it is done");
    cluster.remove_volume("v").await.unwrap();
    assert!(!resume(4, generation, sixth).await, "the volume is gone");
}

#[tokio::test]
async fn who_did_not_detach_is_to_be_fenced_until_it_was() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let attach = async |client, shared| {
        let lease = lease(&cluster).await;
        let attached = cluster.attach("v", ClientId(client), lease, shared, format!("client {client}")).await;
        let attached = attached.unwrap();
        let clients: Vec<u64> = attached.unfenced.iter().map(|old| old.client.0).collect();
        (lease, attached, clients)
    };
    let revoke = async |lease| cluster.registry().lease_revoke(lease).await.unwrap();
    let (first, _, unfenced) = attach(1, false).await;
    assert_eq!(unfenced, Vec::<u64>::new());
    revoke(first).await;
    // Who came next was gone before it had fenced anybody.
    let (second, _, unfenced) = attach(2, false).await;
    assert_eq!(unfenced, [1]);
    revoke(second).await;
    // One who would share it shares it with others who do.
    let (third, attached, unfenced) = attach(3, true).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([1u64, 2].as_slice(), Generation(3)));
    let (fourth, attached, unfenced) = attach(4, true).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([1u64, 2].as_slice(), Generation(3)));
    cluster.fenced(&attached).await.unwrap();
    revoke(third).await;
    let (fifth, attached, unfenced) = attach(5, true).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([0u64; 0].as_slice(), Generation(3)));
    cluster.detach(volume, ClientId(4)).await.unwrap();
    cluster.detach(volume, ClientId(5)).await.unwrap();
    let (_, attached, unfenced) = attach(6, false).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([3u64].as_slice(), Generation(4)));
    cluster.detach(volume, ClientId(6)).await.unwrap();
    revoke(fourth).await;
    revoke(fifth).await;
    cluster.remove_volume("v").await.unwrap();
    let left = cluster.registry().range("millpond/holder/").await.unwrap().entries;
    assert!(left.is_empty(), "{left:?}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watched_map_comes_to_equal_a_reading() {
    let (_directory, cluster) = empty().await;
    let mut maps = cluster.watch_map();
    assert_eq!(maps.borrow().revision, 0);
    cluster.create(id(1)).await.unwrap();
    let lease = lease(&cluster).await;
    for node in 0..3 {
        let osd = cluster
            .register_osd(uuid(u128::from(node) + 1), NodeId(node), GIB, DeviceClass::Ssd)
            .await
            .unwrap();
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
        local.register_osd(uuid(u128::from(node) + 1), NodeId(node), GIB, DeviceClass::Ssd).await.unwrap();
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

/// Writes a target over whatever is there.
async fn aim(cluster: &Cluster, pg: PgId, target: &[u32]) -> bool {
    let before = cluster.map().await.unwrap().targets.get(&pg).cloned();
    let target = target.iter().copied().map(OsdId).collect();
    cluster.change_targets(&[TargetChange { pg, before, target }]).await.unwrap()
}

/// Takes an OSD out, and out of every target and configuration, as if all were moved to the others.
async fn drain(cluster: &Cluster, osd: OsdId) {
    cluster.set_admission(osd, Admission::Out).await.unwrap();
    let map = cluster.map().await.unwrap();
    for (pool, info) in &map.pools {
        let groups = (0..info.pg_count).map(|index| PgId { pool: *pool, index });
        let present: Vec<Vec<OsdId>> = groups.clone().map(|pg| map.targets[&pg].clone()).collect();
        let targets = retarget(*pool, info.size, info.rule.failure_domain, &present, &Candidate::all(&map));
        let changes: Vec<TargetChange> = groups
            .zip(present.into_iter().zip(targets))
            .map(|(pg, (before, target))| TargetChange { pg, before: Some(before), target })
            .collect();
        assert!(cluster.change_targets(&changes).await.unwrap());
        for TargetChange { pg, target, .. } in changes {
            let epoch = map.pgs[&pg].epoch;
            let config =
                PgConfig { epoch: Epoch(epoch.0 + 1), primary: target[0], in_sync: target, learners: vec![] };
            assert!(cluster.change_pg(pg, epoch, config).await.unwrap());
        }
    }
}

#[tokio::test]
async fn an_osd_that_is_out_gets_no_data_and_one_that_is_in_again_does() {
    let (_directory, cluster) = three().await;
    let osd = OsdId(2);
    assert_eq!(cluster.set_admission(osd, Admission::Out).await.unwrap(), Admission::In);
    assert_eq!(cluster.set_admission(osd, Admission::Out).await.unwrap(), Admission::Out);
    let map = cluster.map().await.unwrap();
    assert_eq!(map.osds[&osd].admission, Admission::Out);
    assert_eq!(Candidate::all(&map).iter().map(|one| one.osd.0).collect::<Vec<_>>(), [0, 1]);
    let error = cluster.create_pool("three", 3, 2, 8).await.unwrap_err();
    assert!(matches!(error, ClusterError::TooFewOsds { osds: 2, .. }), "{error}");
    cluster.create_pool("two", 2, 1, 8).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert!(map.targets.iter().all(|(pg, target)| pg.pool == PoolId(1) || !target.contains(&osd)));
    cluster.set_admission(osd, Admission::In).await.unwrap();
    cluster.create_pool("three", 3, 2, 8).await.unwrap();
    let unknown = cluster.set_admission(OsdId(9), Admission::Out).await;
    assert!(matches!(unknown, Err(ClusterError::NoSuchOsd { osd: OsdId(9) })));
}

#[tokio::test]
async fn only_who_is_down_is_taken_out_for_it_and_only_such_a_one_comes_in_by_itself() {
    let (_directory, cluster) = three().await;
    let (lease, osd) = (lease(&cluster).await, OsdId(1));
    cluster.osd_up(osd, address(7001), lease).await.unwrap();
    assert!(!cluster.take_out_while_down(osd).await.unwrap(), "it is up");
    cluster.registry().lease_revoke(lease).await.unwrap();
    assert!(!cluster.take_in_again(osd).await.unwrap(), "it is in");
    assert!(cluster.take_out_while_down(osd).await.unwrap());
    assert!(!cluster.take_out_while_down(osd).await.unwrap(), "it is out");
    assert_eq!(cluster.map().await.unwrap().osds[&osd].admission, Admission::OutWhileDown);
    assert!(cluster.take_in_again(osd).await.unwrap());
    cluster.set_admission(osd, Admission::Out).await.unwrap();
    assert!(!cluster.take_in_again(osd).await.unwrap(), "somebody took it out");
    // Whoever decides by a map from before an OSD was removed is not stopped by it.
    assert!(!cluster.take_out_while_down(OsdId(9)).await.unwrap());
    assert!(!cluster.take_in_again(OsdId(9)).await.unwrap());
    assert_eq!(cluster.map().await.unwrap().osds[&osd].admission, Admission::Out);
}

#[tokio::test]
async fn a_target_is_written_only_over_the_one_it_was_decided_by_for_osds_that_are_in() {
    let (_directory, cluster) = three().await;
    let lease = lease(&cluster).await;
    cluster.register_osd(uuid(4), NodeId(3), 8 * GIB, DeviceClass::Ssd).await.unwrap();
    let pg = PgId { pool: PoolId(1), index: 5 };
    let before = cluster.map().await.unwrap().targets[&pg].clone();
    let change = |before: &Vec<OsdId>, last| TargetChange {
        pg,
        before: Some(before.clone()),
        target: vec![OsdId(0), OsdId(1), OsdId(last)],
    };
    assert!(cluster.change_targets(&[]).await.unwrap());
    assert!(cluster.change_targets(&[change(&before, 3)]).await.unwrap());
    assert!(!cluster.change_targets(&[change(&before, 2)]).await.unwrap(), "it is another by now");
    let now = cluster.map().await.unwrap().targets[&pg].clone();
    assert_eq!(now, [OsdId(0), OsdId(1), OsdId(3)]);
    assert!(!cluster.change_targets(&[change(&now, 77)]).await.unwrap(), "there is no osd.77");
    cluster.set_admission(OsdId(2), Admission::Out).await.unwrap();
    assert!(!cluster.change_targets(&[change(&now, 2)]).await.unwrap(), "osd.2 is out");
    assert_eq!(cluster.map().await.unwrap().targets[&pg], now);
    // Who is out may stay where it is: nobody may be there to take its place.
    cluster.set_admission(OsdId(3), Admission::Out).await.unwrap();
    let order = TargetChange { target: vec![OsdId(3), OsdId(0)], ..change(&now, 3) };
    assert!(cluster.change_targets(&[order]).await.unwrap());
    let gone = TargetChange { pg: PgId { pool: PoolId(9), index: 0 }, before: None, target: vec![OsdId(0)] };
    assert!(!cluster.change_targets(&[gone]).await.unwrap(), "there is no such pool");
    cluster.osd_up(OsdId(0), address(7000), lease).await.unwrap();
    assert!(aim(&cluster, pg, &[1, 0]).await, "a start since is no change");
}

#[tokio::test]
async fn targets_of_many_groups_are_written_in_transactions_within_the_limits() {
    let (_directory, cluster) = three().await;
    for node in 3..60 {
        cluster
            .register_osd(uuid(u128::from(node) + 1), NodeId(node), 8 * GIB, DeviceClass::Ssd)
            .await
            .unwrap();
    }
    let pool = cluster.create_pool("large", 2, 1, 700).await.unwrap();
    let map = cluster.map().await.unwrap();
    let changes: Vec<TargetChange> = (0..700)
        .map(|index| PgId { pool, index })
        .map(|pg| {
            let before = map.targets[&pg].clone();
            let next = |osd: &OsdId| OsdId((osd.0 + 1) % 60);
            TargetChange { pg, target: before.iter().map(next).collect(), before: Some(before) }
        })
        .collect();
    assert!(cluster.change_targets(&changes).await.unwrap());
    let map = cluster.map().await.unwrap();
    assert!(changes.iter().all(|change| map.targets[&change.pg] == change.target));
    assert!(!cluster.change_targets(&changes).await.unwrap());
}

#[tokio::test]
async fn an_osd_is_removed_once_nothing_needs_it_and_leaves_nothing() {
    let (_directory, cluster) = three().await;
    cluster.register_osd(uuid(4), NodeId(3), 8 * GIB, DeviceClass::Ssd).await.unwrap();
    let (lease, osd) = (lease(&cluster).await, OsdId(2));
    cluster.osd_up(osd, address(7002), lease).await.unwrap();
    cluster.note_drive(osd, "/dev/nvme2n1").await.unwrap();
    assert_eq!(cluster.drives().await.unwrap()[&osd], "/dev/nvme2n1");
    let removed = || cluster.remove_osd(osd, Txn::new());
    assert!(matches!(removed().await, Err(ClusterError::OsdIn { .. })));
    cluster.set_admission(osd, Admission::Out).await.unwrap();
    let error = removed().await.unwrap_err();
    assert!(error.to_string().contains("it holds acknowledged writes of 64 of 64"), "{error}");
    drain(&cluster, osd).await;
    let pg = PgId { pool: PoolId(1), index: 0 };
    let map = cluster.map().await.unwrap();
    let config = PgConfig { epoch: Epoch(3), learners: vec![osd], ..map.pgs[&pg].clone() };
    assert!(cluster.change_pg(pg, Epoch(2), config.clone()).await.unwrap());

    let refused = Txn::new().when(Compare::Exists("another".into()));
    assert!(!cluster.remove_osd(osd, refused).await.unwrap(), "what goes along does not hold");
    let along = Txn::new().when(Compare::Absent("another".into())).then(Operation::put("another", "1"));
    assert!(cluster.remove_osd(osd, along).await.unwrap(), "a learner does not matter");
    let everything = cluster.registry().range("").await.unwrap().entries;
    assert!(everything.iter().any(|entry| entry.key == "another"));
    for gone in ["osd/2", "up/2", "drive/2", &format!("uuid/{}", uuid(3))] {
        assert!(!everything.iter().any(|entry| entry.key.ends_with(gone)), "{gone} is left");
    }
    assert!(matches!(removed().await, Err(ClusterError::NoSuchOsd { .. })));
    assert_eq!(cluster.osd_of(uuid(3)).await.unwrap(), None);
    assert_eq!(cluster.osd_of(uuid(4)).await.unwrap(), Some(OsdId(3)));
    assert!(matches!(cluster.note_drive(osd, "/dev/x").await, Err(ClusterError::NoSuchOsd { .. })));

    // A primary that did not hear of it yet wants to take it in.
    let mut late = PgConfig { epoch: Epoch(4), ..config };
    late.in_sync.append(&mut late.learners);
    assert!(!cluster.change_pg(pg, Epoch(3), late).await.unwrap());
    let next = cluster.register_osd(uuid(5), NodeId(2), 8 * GIB, DeviceClass::Ssd).await.unwrap();
    assert_eq!(next, OsdId(4), "no id is used twice");
}

#[tokio::test]
async fn a_dead_osd_is_removed_and_one_without_a_successor_is_not() {
    let (_directory, cluster) = three().await;
    let osd = OsdId(0);
    // It is in sync nowhere, but nothing was found to take its place.
    for index in 0..64 {
        let pg = PgId { pool: PoolId(1), index };
        let in_sync = vec![OsdId(1), OsdId(2)];
        let config = PgConfig { epoch: Epoch(2), primary: OsdId(1), in_sync, learners: vec![osd] };
        assert!(cluster.change_pg(pg, Epoch(1), config).await.unwrap());
    }
    cluster.set_admission(osd, Admission::Out).await.unwrap();
    let error = cluster.remove_osd(osd, Txn::new()).await.unwrap_err();
    assert!(error.to_string().contains("no OSD was found yet to take its place"), "{error}");
    for index in 0..64 {
        assert!(aim(&cluster, PgId { pool: PoolId(1), index }, &[1, 2]).await);
    }
    assert!(cluster.remove_osd(osd, Txn::new()).await.unwrap());
}

/// A registry that stands still before the first transaction which changes a key, until it is told to go on.
struct Paused {
    before: String,
    signals: std::sync::Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>,
}

impl Paused {
    /// The cluster seen through it, what tells that it stands still, and what lets it go on.
    fn before(cluster: &Cluster, key: &str) -> (Cluster, oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((reached, when), (go, goes)) = (oneshot::channel(), oneshot::channel());
        let signals = std::sync::Mutex::new(Some((reached, goes)));
        let paused = Behind(cluster.registry().clone(), Paused { before: key.to_owned(), signals });
        (Cluster::new(Arc::new(paused)), when, go)
    }
}

#[async_trait::async_trait]
impl Between for Paused {
    async fn txn(
        &self,
        registry: &Arc<dyn Registry>,
        txn: Txn,
    ) -> Result<registry::TxnResult, RegistryError> {
        let is_it = txn.then.iter().any(|operation| operation.key() == self.before);
        let signals = if is_it { self.signals.lock().unwrap().take() } else { None };
        if let Some((reached, goes)) = signals {
            reached.send(()).unwrap();
            goes.await.unwrap();
        }
        registry.txn(txn).await
    }
}

fn names(map: &ClusterMap, osd: OsdId) -> bool {
    let members = map.pgs.values().map(|config| &config.in_sync);
    map.targets.values().chain(members).any(|osds| osds.contains(&osd))
}

#[tokio::test]
async fn a_pool_that_is_made_while_an_osd_is_removed_does_not_lie_on_it() {
    for removal_ends_first in [true, false] {
        let (_directory, cluster) = with_osds(4).await;
        let osd = OsdId(3);
        let (slow, paused, go) = Paused::before(&cluster, &keys::pool_name("p"));
        let making = tokio::spawn(async move { slow.create_pool("p", 3, 2, 100).await });
        paused.await.unwrap();
        cluster.set_admission(osd, Admission::Out).await.unwrap();
        if removal_ends_first {
            assert!(cluster.remove_osd(osd, Txn::new()).await.unwrap());
            go.send(()).unwrap();
            making.await.unwrap().unwrap();
            let map = cluster.map().await.unwrap();
            assert!(map.pgs.len() == 100 && !names(&map, osd));
        } else {
            let (slow, paused, go_on) = Paused::before(&cluster, &keys::osd(osd));
            let removing = tokio::spawn(async move { slow.remove_osd(osd, Txn::new()).await });
            paused.await.unwrap();
            go.send(()).unwrap();
            making.await.unwrap().unwrap();
            assert!(names(&cluster.map().await.unwrap(), osd), "else nothing is tested");
            go_on.send(()).unwrap();
            assert!(!removing.await.unwrap().unwrap(), "it was removed from under a pool");
        }
    }
}

#[tokio::test]
async fn a_target_that_is_written_while_an_osd_is_removed_does_not_name_it() {
    for removal_ends_first in [true, false] {
        let (_directory, cluster) = with_osds(4).await;
        cluster.set_admission(OsdId(3), Admission::Out).await.unwrap();
        cluster.create_pool("p", 3, 2, 4).await.unwrap();
        cluster.set_admission(OsdId(3), Admission::In).await.unwrap();
        let (osd, pg) = (OsdId(3), PgId { pool: PoolId(1), index: 0 });
        let before = cluster.map().await.unwrap().targets.get(&pg).cloned();
        let change = TargetChange { pg, before, target: vec![OsdId(0), OsdId(1), osd] };
        let (slow, paused, go) = Paused::before(&cluster, &keys::target(pg));
        let writing = tokio::spawn(async move { slow.change_targets(&[change]).await });
        paused.await.unwrap();
        cluster.set_admission(osd, Admission::Out).await.unwrap();
        if removal_ends_first {
            assert!(cluster.remove_osd(osd, Txn::new()).await.unwrap());
            go.send(()).unwrap();
        } else {
            let (slow, paused, go_on) = Paused::before(&cluster, &keys::osd(osd));
            let removing = tokio::spawn(async move { slow.remove_osd(osd, Txn::new()).await });
            paused.await.unwrap();
            go.send(()).unwrap();
            go_on.send(()).unwrap();
            removing.await.unwrap().unwrap();
        }
        assert!(!writing.await.unwrap().unwrap(), "osd.3 is out, or gone");
        assert!(!names(&cluster.map().await.unwrap(), osd));
    }
}

#[tokio::test]
async fn a_learner_that_becomes_in_sync_while_it_is_removed_stays() {
    let (_directory, cluster) = with_osds(4).await;
    let (osd, pg) = (OsdId(3), PgId { pool: PoolId(1), index: 0 });
    cluster.set_admission(osd, Admission::Out).await.unwrap();
    cluster.create_pool("p", 3, 2, 4).await.unwrap();
    let lease = lease(&cluster).await;
    cluster.osd_up(osd, address(7003), lease).await.unwrap();
    let mut config = cluster.map().await.unwrap().pgs[&pg].clone();
    (config.epoch, config.learners) = (Epoch(2), vec![osd]);
    assert!(cluster.change_pg(pg, Epoch(1), config.clone()).await.unwrap());
    let (slow, paused, go) = Paused::before(&cluster, &keys::osd(osd));
    let removing = tokio::spawn(async move { slow.remove_osd(osd, Txn::new()).await });
    paused.await.unwrap();
    config.epoch = Epoch(3);
    config.in_sync.append(&mut config.learners);
    assert!(cluster.change_pg(pg, Epoch(2), config).await.unwrap());
    go.send(()).unwrap();
    assert!(!removing.await.unwrap().unwrap(), "it was removed though it holds acknowledged writes");
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
    let record = |pid| ManagerRecord { node: NodeId(0), pid, address: None, away: Default::default() };
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
    let never = Known::Is(Settings { osd_out_after_seconds: 0 });
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

/// Six OSDs on six nodes, no pool.
async fn six() -> (TempDir, Cluster) {
    let (directory, cluster) = empty().await;
    cluster.create(id(1)).await.unwrap();
    for node in 0..6 {
        let uuid = uuid(u128::from(node) + 1);
        cluster.register_osd(uuid, NodeId(node), 8 * GIB, DeviceClass::Ssd).await.unwrap();
    }
    (directory, cluster)
}

fn rack(name: &str) -> Location {
    Location { rack: Some(name.to_owned()), ..Location::default() }
}

fn pool_by(name: &str, failure_domain: FailureDomain, device_class: Option<DeviceClass>) -> PoolInfo {
    let rule = PlacementRule { failure_domain, device_class };
    PoolInfo { name: name.to_owned(), size: 3, min_size: 2, pg_count: 32, rule, ..PoolInfo::default() }
}

#[tokio::test]
async fn what_a_person_says_of_an_osd_outlives_its_restarts() {
    let (_directory, cluster) = six().await;
    let osd = OsdId(2);
    let half = Reweight::from_thousandths(500).unwrap();
    assert_eq!(cluster.set_reweight(osd, half).await.unwrap(), Reweight::FULL);
    assert_eq!(cluster.set_reweight(osd, half).await.unwrap(), half);
    assert_eq!(cluster.set_device_class(osd, Some(DeviceClass::Nvme)).await.unwrap(), DeviceClass::Nvme);
    // It starts again, and its drive is found to be what it is.
    cluster.register_osd(uuid(3), NodeId(2), 8 * GIB, DeviceClass::Hdd).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert_eq!((map.osds[&osd].reweight, map.osds[&osd].device_class), (half, DeviceClass::Nvme));
    let weights: Vec<u64> = Candidate::all(&map).iter().map(|one| one.weight / GIB).collect();
    assert_eq!(weights, [8, 8, 4, 8, 8, 8]);
    assert_eq!(cluster.set_device_class(osd, None).await.unwrap(), DeviceClass::Hdd);
    assert_eq!(cluster.map().await.unwrap().osds[&osd].device_class, DeviceClass::Hdd);
    cluster.set_reweight(osd, Reweight::from_thousandths(0).unwrap()).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert!(Candidate::all(&map).iter().all(|one| one.osd != osd), "nothing shall lie on it");
    let unknown = cluster.set_reweight(OsdId(9), half).await;
    assert!(matches!(unknown, Err(ClusterError::NoSuchOsd { osd: OsdId(9) })));
}

#[tokio::test]
async fn a_pool_over_racks_needs_as_many_as_it_has_copies() {
    let (_directory, cluster) = six().await;
    let by_rack = pool_by("p", FailureDomain::Rack, None);
    let error = cluster.create_pool_by(&by_rack).await.unwrap_err();
    assert!(error.to_string().contains("only 0 racks"), "{error}");
    for node in 0..4 {
        let location = rack(&format!("r{}", node / 2));
        let info = cluster.change_node(NodeId(node), |info| info.location = location.clone()).await.unwrap();
        assert_eq!((info.host.as_str(), &info.location), ("", &location));
    }
    // Nodes 4 and 5 may stand anywhere.
    let error = cluster.create_pool_by(&by_rack).await.unwrap_err();
    assert!(matches!(error, ClusterError::TooFewDomains { domains: 2, size: 3, .. }), "{error}");
    let there = NodeInfo { host: "h".to_owned(), location: rack("r2"), ..NodeInfo::default() };
    cluster.change_node(NodeId(4), |info| info.clone_from(&there)).await.unwrap();
    // Two nodes of one host stand where the first of them does.
    cluster.change_node(NodeId(5), |info| info.host = "h".to_owned()).await.unwrap();
    cluster.create_pool_by(&by_rack).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert_eq!(map.pool_named("p").unwrap().1.rule, by_rack.rule);
    for target in map.targets.values() {
        let mut racks: Vec<u32> = target.iter().map(|osd| osd.0 / 2).collect();
        racks.sort_unstable();
        assert_eq!(racks, [0, 1, 2], "{target:?}");
    }
    let error = cluster.change_pool("p", Some(4), None).await.unwrap_err();
    assert!(matches!(error, ClusterError::TooFewDomains { domains: 3, size: 4, .. }), "{error}");
    let unknown = cluster.change_node(NodeId(7), |info| info.location = rack("r1")).await;
    assert!(matches!(unknown, Err(ClusterError::NoSuchNode { node: NodeId(7) })));
    let error = cluster.change_node(NodeId(0), |info| info.location = rack("a/b")).await.unwrap_err();
    assert!(matches!(error, ClusterError::NameInvalid { what: "rack", .. }), "{error}");
}

#[tokio::test]
async fn a_pool_on_a_class_lies_on_such_drives_alone() {
    let (_directory, cluster) = six().await;
    for osd in 0..3 {
        cluster.set_device_class(OsdId(osd), Some(DeviceClass::Nvme)).await.unwrap();
    }
    let fast = pool_by("fast", FailureDomain::Host, Some(DeviceClass::Nvme));
    cluster.create_pool_by(&fast).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert!(map.targets.values().flatten().all(|osd| osd.0 < 3));
    let slow = pool_by("slow", FailureDomain::Host, Some(DeviceClass::Hdd));
    let error = cluster.create_pool_by(&slow).await.unwrap_err();
    assert!(error.to_string().contains("on hdd drives, and only 0 OSDs"), "{error}");
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
