//! OSDs that go on under their numbers on blank drives, and who still counts on what was on the drives before.

use super::osds::Paused;
use super::*;
use base::History;
use registry::OPERATIONS_PER_TXN_MAX;
use std::collections::BTreeSet;

const OSD: OsdId = OsdId(2);

/// A blank drive.
fn blank(number: u128) -> Replacement {
    let (path, class) = (format!("/dev/blank{number}"), DeviceClass::Nvme);
    Replacement { uuid: uuid(number), path, bytes: 16 * GIB, class }
}

/// Puts the OSD on a blank drive.
async fn replace(cluster: &Cluster, number: u128) -> Result<bool> {
    cluster.replace_osd(OSD, &blank(number), &BTreeSet::new(), Txn::new()).await
}

/// Has every group go on without an OSD, which is a learner from then on.
async fn goes_on_without(cluster: &Cluster, osd: OsdId) {
    for (pg, config) in cluster.map().await.unwrap().pgs {
        let in_sync: Vec<OsdId> = config.in_sync.iter().copied().filter(|one| *one != osd).collect();
        let epoch = Epoch(config.epoch.0 + 1);
        let (primary, learners) = (in_sync[0], vec![osd]);
        let next = PgConfig { epoch, primary, in_sync, learners, ..config };
        assert!(cluster.change_pg(pg, config.epoch, next).await.unwrap());
    }
}

/// A configuration in which the OSD is in sync again.
fn with_it(config: &PgConfig) -> PgConfig {
    let mut next = PgConfig { epoch: Epoch(config.epoch.0 + 1), ..config.clone() };
    next.in_sync.append(&mut next.learners);
    next
}

#[tokio::test]
async fn an_osd_that_is_down_goes_on_under_its_number_on_a_blank_drive() {
    let (_directory, cluster) = three().await;
    let lease = lease(&cluster).await;
    cluster.osd_up_as(OSD, uuid(3), address(7002), lease).await.unwrap();
    assert!(matches!(replace(&cluster, 9).await, Err(ClusterError::OsdUp { osd: OSD })));
    cluster.registry().lease_revoke(lease).await.unwrap();
    let error = replace(&cluster, 9).await.unwrap_err();
    assert!(matches!(error, ClusterError::OsdInSync { osd: OSD, .. }), "{error}");
    assert!(error.to_string().contains("64 of 64 placement groups, 1.0 among them"), "{error}");
    goes_on_without(&cluster, OSD).await;
    cluster.set_admission(OSD, Admission::Out).await.unwrap();
    let before = cluster.map().await.unwrap();

    let refused = Txn::new().when(Compare::Exists("another".into()));
    assert!(!cluster.replace_osd(OSD, &blank(9), &BTreeSet::new(), refused).await.unwrap());
    let along = Txn::new().then(Operation::put("another", "1"));
    assert!(cluster.replace_osd(OSD, &blank(9), &BTreeSet::new(), along).await.unwrap());
    assert!(cluster.registry().get("another").await.unwrap().is_some());
    let map = cluster.map().await.unwrap();
    let info = &map.osds[&OSD];
    assert_eq!((info.uuid, info.bytes, info.node), (uuid(9), 16 * GIB, NodeId(2)));
    assert_eq!((info.device_class, info.admission, info.incarnation), (DeviceClass::Nvme, Admission::In, 1));
    assert_eq!((&map.targets, &map.pgs), (&before.targets, &before.pgs), "its groups stay its own");
    assert_eq!(cluster.osd_of(uuid(3)).await.unwrap(), None, "what was formatted before is nobody");
    assert_eq!(cluster.osd_of(uuid(9)).await.unwrap(), Some(OSD));
    let slot = |is_new| Some(SlotOsd { osd: OSD, uuid: uuid(9), is_new });
    assert_eq!(cluster.osd_at(NodeId(2), "/dev/blank9").await.unwrap(), slot(true));
    assert_eq!(cluster.osd_at(NodeId(1), "/dev/blank9").await.unwrap(), None, "of another node");
    assert_eq!(cluster.osd_at(NodeId(2), "/dev/blank8").await.unwrap(), None);

    // A process that hung meanwhile still runs it as it was.
    let lease = super::lease(&cluster).await;
    let late = cluster.osd_up_as(OSD, uuid(3), address(7002), lease).await;
    assert!(matches!(late, Err(ClusterError::OsdReplaced { osd: OSD })));
    assert_eq!(cluster.map().await.unwrap().osds[&OSD].address, None);
    assert_eq!(cluster.osd_up_as(OSD, uuid(9), address(7003), lease).await.unwrap(), 2);
    assert_eq!(
        cluster.osd_at(NodeId(2), "/dev/blank9").await.unwrap(),
        slot(false),
        "blank it is a loss now"
    );
}

#[tokio::test]
async fn it_may_be_replaced_again_and_again_until_it_is_up() {
    let (_directory, cluster) = three().await;
    goes_on_without(&cluster, OSD).await;
    for number in [9, 10] {
        assert!(replace(&cluster, number).await.unwrap());
        assert_eq!(cluster.map().await.unwrap().osds[&OSD].uuid, uuid(number));
    }
    assert_eq!(cluster.osd_of(uuid(9)).await.unwrap(), None);
    let ids = cluster.registry().range("millpond/uuid/").await.unwrap().entries;
    assert_eq!(ids.len(), 3, "an OSD is formatted as one thing");
}

#[tokio::test]
async fn nobody_becomes_in_sync_by_what_was_on_the_drive_before() {
    let (_directory, cluster) = three().await;
    goes_on_without(&cluster, OSD).await;
    let pg = PgId { pool: PoolId(1), index: 5 };
    let before = cluster.map().await.unwrap();
    assert!(replace(&cluster, 9).await.unwrap());
    let next = with_it(&before.pgs[&pg]);
    let claim = |map: ClusterMap| {
        let (cluster, next) = (cluster.clone(), next.clone());
        async move { cluster.claim_pg(pg, Epoch(2), next, &map).await.unwrap() }
    };
    assert!(!claim(before).await, "it was decided by acknowledgements of a drive that is gone");
    assert!(claim(cluster.map().await.unwrap()).await);
}

#[tokio::test]
async fn one_that_becomes_in_sync_while_it_is_replaced_is_not() {
    let (_directory, cluster) = three().await;
    goes_on_without(&cluster, OSD).await;
    let pg = PgId { pool: PoolId(1), index: 5 };
    let map = cluster.map().await.unwrap();
    let (slow, paused, go) = Paused::before(&cluster, &keys::osd(OSD));
    let replacing = tokio::spawn(async move { replace(&slow, 9).await });
    paused.await.unwrap();
    assert!(cluster.claim_pg(pg, Epoch(2), with_it(&map.pgs[&pg]), &map).await.unwrap());
    go.send(()).unwrap();
    assert!(!replacing.await.unwrap().unwrap(), "it holds acknowledged writes by now");
    assert!(matches!(replace(&cluster, 9).await, Err(ClusterError::OsdInSync { .. })));
}

#[tokio::test]
async fn groups_that_are_lost_begin_anew_only_where_that_is_said_and_nobody_else_has_them() {
    let (_directory, cluster) = three().await;
    goes_on_without(&cluster, OSD).await;
    let single = cluster.create_pool("single", 1, 1, 512).await.unwrap();
    let map = cluster.map().await.unwrap();
    let alone = map.pgs.iter().filter(|(pg, config)| pg.pool == single && config.in_sync == [OSD]);
    let alone: BTreeSet<PgId> = alone.map(|(pg, _)| *pg).collect();
    assert!(alone.len() > OPERATIONS_PER_TXN_MAX, "they do not fit in one transaction");
    assert!(matches!(replace(&cluster, 9).await, Err(ClusterError::OsdInSync { .. })));
    // One that another has in sync too is not given up, whatever is said.
    let pg = PgId { pool: PoolId(1), index: 5 };
    assert!(cluster.change_pg(pg, Epoch(2), with_it(&map.pgs[&pg])).await.unwrap());
    let mut all = alone.clone();
    all.insert(pg);
    let refused = cluster.replace_osd(OSD, &blank(9), &all, Txn::new()).await;
    assert!(matches!(refused, Err(ClusterError::OsdInSync { .. })));
    let without = PgConfig { epoch: Epoch(4), ..map.pgs[&pg].clone() };
    assert!(cluster.change_pg(pg, Epoch(3), without).await.unwrap());
    assert!(cluster.replace_osd(OSD, &blank(9), &alone, Txn::new()).await.unwrap());
    // Whoever was a member of them once is to be told from who has what is written from here on.
    let after = cluster.map().await.unwrap();
    for (pg, config) in &after.pgs {
        let history = History(u16::from(alone.contains(pg)));
        assert_eq!(config.history, history, "{pg}");
        let before = &map.pgs[pg];
        let anew = PgConfig { epoch: Epoch(before.epoch.0 + 1), history, ..before.clone() };
        assert!(history.is_first() || *config == anew, "{pg}: {config:?}");
    }
}

#[tokio::test]
async fn a_group_that_somebody_else_has_by_the_time_that_it_is_given_up_is_not() {
    let (_directory, cluster) = with_osds(3).await;
    cluster.create_pool("single", 1, 1, 64).await.unwrap();
    let map = cluster.map().await.unwrap();
    let alone = map.pgs.iter().filter(|(_, config)| config.in_sync == [OSD]);
    let lost: BTreeSet<PgId> = alone.map(|(pg, _)| *pg).collect();
    let pg = *lost.first().expect("some group lies there alone");
    let (slow, paused, go) = Paused::before_read(&cluster, &keys::pg(pg));
    let replacing = tokio::spawn(async move { slow.replace_osd(OSD, &blank(9), &lost, Txn::new()).await });
    paused.await.unwrap();
    // What its process asked for before it ended.
    let config = &map.pgs[&pg];
    let late = PgConfig { epoch: Epoch(2), in_sync: vec![OSD, OsdId(0)], ..config.clone() };
    assert!(cluster.claim_pg(pg, config.epoch, late.clone(), &map).await.unwrap());
    go.send(()).unwrap();
    assert!(!replacing.await.unwrap().unwrap(), "a blank drive would count as in sync");
    let after = cluster.map().await.unwrap();
    assert_eq!((after.osds[&OSD].uuid, &after.pgs[&pg]), (uuid(3), &late));
}

#[tokio::test]
async fn a_group_that_is_given_up_is_in_another_history_each_time_and_goes_back_to_none() {
    let (_directory, cluster) = three().await;
    goes_on_without(&cluster, OSD).await;
    cluster.create_pool("single", 1, 1, 8).await.unwrap();
    let alone = async || {
        let groups = cluster.map().await.unwrap().pgs.into_iter();
        groups.filter(|(_, config)| config.in_sync == [OSD]).collect::<BTreeMap<PgId, PgConfig>>()
    };
    let give_up = async |number| {
        let lost = alone().await.into_keys().collect();
        assert!(cluster.replace_osd(OSD, &blank(number), &lost, Txn::new()).await.unwrap());
        alone().await
    };
    let groups = give_up(9).await;
    let (pg, config) = groups.iter().next().expect("some group lies there alone");
    let next = |history| PgConfig { epoch: Epoch(config.epoch.0 + 1), history, ..config.clone() };
    let refused = cluster.change_pg(*pg, config.epoch, next(History(0))).await;
    assert!(matches!(refused, Err(ClusterError::PgInvalid { .. })));
    cluster.set_pg_count("single", 16).await.unwrap();
    for other in [History(0), History(2)] {
        let refused = cluster.split_pg(*pg, config.epoch, next(other)).await;
        assert!(matches!(refused, Err(ClusterError::PgInvalid { .. })), "{other}");
    }
    assert!(cluster.split_pg(*pg, config.epoch, next(History(1))).await.unwrap());
    let child = pg.child(8);
    assert_eq!(alone().await[&child].history, History(1));
    let groups = give_up(10).await;
    assert!(groups.contains_key(&child) && groups.values().all(|config| config.history == History(2)));
    // Whose log is in a later one claims in that, as after the registry was set back.
    let config = &groups[&child];
    let claimed = PgConfig { epoch: Epoch(config.epoch.0 + 1), history: History(7), ..config.clone() };
    let map = cluster.map().await.unwrap();
    assert!(cluster.claim_pg(child, config.epoch, claimed, &map).await.unwrap());
    let of_child = |groups: &BTreeMap<PgId, PgConfig>| groups[&child].history;
    assert_eq!(of_child(&alone().await), History(7));
    assert_eq!(of_child(&give_up(11).await), History(8));
}

#[tokio::test]
async fn what_was_formatted_before_is_noted_nowhere_and_becomes_no_other_osd() {
    let (_directory, cluster) = three().await;
    goes_on_without(&cluster, OSD).await;
    let note = async |number| {
        let noted = cluster.note_osd(OSD, uuid(number), NodeId(1), GIB, DeviceClass::Hdd).await;
        noted.and(cluster.note_drive(OSD, uuid(number), "/dev/before").await)
    };
    assert!(replace(&cluster, 9).await.unwrap());
    let before = cluster.map().await.unwrap();
    assert!(matches!(note(3).await, Err(ClusterError::OsdReplaced { osd: OSD })));
    let late = cluster.note_drive(OSD, uuid(3), "/dev/before").await;
    assert!(matches!(late, Err(ClusterError::OsdReplaced { osd: OSD })));
    assert_eq!(cluster.drives().await.unwrap()[&OSD], "/dev/blank9", "its node looks for it there");
    assert_eq!(cluster.map().await.unwrap().osds, before.osds);
    // One that comes in between is seen, whichever of the two is written.
    for (key, next) in [(keys::osd(OSD), 10), (keys::drive(OSD), 11)] {
        let was = cluster.map().await.unwrap().osds[&OSD].uuid;
        let (slow, paused, go) = Paused::before(&cluster, &key);
        let noting = tokio::spawn(async move {
            slow.note_osd(OSD, was, NodeId(1), GIB, DeviceClass::Hdd).await?;
            slow.note_drive(OSD, was, "/dev/before").await
        });
        paused.await.unwrap();
        assert!(replace(&cluster, next).await.unwrap());
        go.send(()).unwrap();
        let late = noting.await.unwrap();
        assert!(matches!(late, Err(ClusterError::OsdReplaced { osd: OSD })), "{late:?}");
        assert_eq!(cluster.map().await.unwrap().osds[&OSD].uuid, uuid(next));
        assert_eq!(cluster.drives().await.unwrap()[&OSD], format!("/dev/blank{next}"));
    }
    note(11).await.unwrap();
    assert_eq!(cluster.map().await.unwrap().osds[&OSD].node, NodeId(1));
    assert_eq!(cluster.drives().await.unwrap()[&OSD], "/dev/before");
}
