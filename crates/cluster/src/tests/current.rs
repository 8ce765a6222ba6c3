//! The map as it is watched.

use super::*;

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
