//! Pools over racks and on classes of drives.

use super::*;

fn rack(name: &str) -> Location {
    Location { rack: Some(name.to_owned()), ..Location::default() }
}

fn pool_by(name: &str, failure_domain: FailureDomain, device_class: Option<DeviceClass>) -> PoolInfo {
    let rule = PlacementRule { failure_domain, device_class };
    PoolInfo { name: name.to_owned(), size: 3, min_size: 2, pg_count: 32, rule, ..PoolInfo::default() }
}

#[tokio::test]
async fn what_a_person_says_of_an_osd_outlives_its_restarts() {
    let (_directory, cluster) = with_osds(6).await;
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
    let (_directory, cluster) = with_osds(6).await;
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
    let (_directory, cluster) = with_osds(6).await;
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
async fn an_osd_is_where_it_is_reached_from_here_if_its_node_has_several_addresses() {
    let (_directory, cluster) = three().await;
    let (osd, lease) = (OsdId(1), lease(&cluster).await);
    // An address that is nobody's, of a network that is for documents (RFC 5737).
    let preferred = SocketAddr::from(([203, 0, 113, 1], 7001));
    cluster.osd_up(osd, preferred, lease).await.unwrap();
    assert_eq!(cluster.map().await.unwrap().osds[&osd].address, Some(preferred));
    let addresses = vec![preferred.ip(), address(0).ip()];
    cluster.change_node(NodeId(1), |info| info.addresses.clone_from(&addresses)).await.unwrap();
    let map = cluster.map().await.unwrap();
    assert_eq!(map.osds[&osd].address, Some(address(7001)), "the loopback interface is everybody's");
    assert_eq!(all_places(map.nodes.get(&NodeId(1)), preferred), [preferred, address(7001)]);
}
