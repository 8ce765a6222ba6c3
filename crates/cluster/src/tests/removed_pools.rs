//! What is remembered of pools that were removed.

use super::osds::Paused;
use super::*;
use base::map::RemovedPool;

const REMOVED: PoolId = PoolId(1);

fn owed_by(osds: &[u32]) -> RemovedPool {
    RemovedPool { name: "default".to_owned(), owed_by: osds.iter().copied().map(OsdId).collect() }
}

#[tokio::test]
async fn a_pool_that_was_removed_is_remembered_until_nobody_owes_it_anything() {
    let (_directory, cluster) = three().await;
    assert!(cluster.map().await.unwrap().removed_pools.is_empty());
    cluster.remove_pool("default").await.unwrap();
    let map = cluster.map().await.unwrap();
    assert!(map.pools.is_empty() && map.pgs.is_empty());
    assert_eq!(map.removed_pools, BTreeMap::from([(REMOVED, owed_by(&[0, 1, 2]))]));
    // Its name is free at once, and its id never.
    assert_eq!(cluster.create_pool("default", 3, 2, 8).await.unwrap(), PoolId(2));

    let (before, now) = (owed_by(&[0, 1, 2]), owed_by(&[1]));
    assert!(cluster.replace_removed_pool(REMOVED, &before, &now).await.unwrap());
    assert!(!cluster.replace_removed_pool(REMOVED, &before, &owed_by(&[])).await.unwrap(), "it is another");
    assert_eq!(cluster.map().await.unwrap().removed_pools[&REMOVED], now);
    assert!(cluster.replace_removed_pool(REMOVED, &now, &owed_by(&[])).await.unwrap());
    assert!(!cluster.replace_removed_pool(REMOVED, &now, &owed_by(&[])).await.unwrap(), "it is gone");
    let map = cluster.map().await.unwrap();
    assert!(map.removed_pools.is_empty() && map.pools.contains_key(&PoolId(2)));
    assert_eq!(cluster.registry().range(keys::REMOVED_POOLS).await.unwrap().entries, []);
}

#[tokio::test]
async fn an_osd_that_comes_or_goes_while_a_pool_is_removed_is_listed_as_it_is_then() {
    for comes in [true, false] {
        let (_directory, cluster) = with_osds(4).await;
        cluster.set_admission(OsdId(3), Admission::Out).await.unwrap();
        cluster.create_pool("default", 3, 2, 8).await.unwrap();
        let (slow, paused, go) = Paused::before(&cluster, &keys::removed_pool(REMOVED));
        let removing = tokio::spawn(async move { slow.remove_pool("default").await });
        paused.await.unwrap();
        let listed = if comes {
            let osd = cluster.register_osd(uuid(5), NodeId(4), GIB, DeviceClass::Ssd).await.unwrap();
            assert_eq!(osd, OsdId(4));
            owed_by(&[0, 1, 2, 3, 4])
        } else {
            assert!(cluster.remove_osd(OsdId(3), Txn::new()).await.unwrap());
            owed_by(&[0, 1, 2])
        };
        go.send(()).unwrap();
        removing.await.unwrap().unwrap();
        assert_eq!(cluster.map().await.unwrap().removed_pools[&REMOVED], listed);
    }
}

#[tokio::test]
async fn a_map_with_removed_pools_reads_back_what_it_says_and_one_from_before_has_none() {
    let (_directory, cluster) = three().await;
    let text = serde_json::to_string(&cluster.map().await.unwrap()).unwrap();
    assert!(!text.contains("removed_pools"), "a map without any is as it was before: {text}");
    assert_eq!(serde_json::from_str::<ClusterMap>(&text).unwrap(), cluster.map().await.unwrap());
    cluster.remove_pool("default").await.unwrap();
    let map = cluster.map().await.unwrap();
    let read: ClusterMap = serde_json::from_str(&serde_json::to_string(&map).unwrap()).unwrap();
    assert_eq!((read.removed_pools.len(), read), (1, map));
}
