//! OSDs that are taken out, in and away, and targets that are written meanwhile.

use super::*;

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
            let PgConfig { epoch, history, .. } = map.pgs[&pg];
            let (next, primary) = (Epoch(epoch.0 + 1), target[0]);
            let config = PgConfig { epoch: next, primary, in_sync: target, learners: vec![], history };
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
    cluster.note_drive(osd, uuid(3), "/dev/nvme2n1").await.unwrap();
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
    let late = cluster.note_drive(osd, uuid(3), "/dev/x").await;
    assert!(matches!(late, Err(ClusterError::NoSuchOsd { .. })));

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
        let (epoch, primary, learners) = (Epoch(2), OsdId(1), vec![osd]);
        let config = PgConfig { epoch, primary, in_sync, learners, ..PgConfig::default() };
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

/// A registry that stands still before the first transaction which changes a key, or before that is first read, until it is
/// told to go on.
pub(super) struct Paused {
    before: String,
    is_of_reads: bool,
    signals: std::sync::Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>,
}

impl Paused {
    /// The cluster seen through it, what tells that it stands still, and what lets it go on.
    pub(super) fn before(
        cluster: &Cluster,
        key: &str,
    ) -> (Cluster, oneshot::Receiver<()>, oneshot::Sender<()>) {
        Paused::at(cluster, key, false)
    }

    /// The same before the key is read by itself.
    pub(super) fn before_read(
        cluster: &Cluster,
        key: &str,
    ) -> (Cluster, oneshot::Receiver<()>, oneshot::Sender<()>) {
        Paused::at(cluster, key, true)
    }

    fn at(
        cluster: &Cluster,
        key: &str,
        is_of_reads: bool,
    ) -> (Cluster, oneshot::Receiver<()>, oneshot::Sender<()>) {
        let ((reached, when), (go, goes)) = (oneshot::channel(), oneshot::channel());
        let signals = std::sync::Mutex::new(Some((reached, goes)));
        let paused = Paused { before: key.to_owned(), is_of_reads, signals };
        (Cluster::new(Arc::new(Behind(cluster.registry().clone(), paused))), when, go)
    }

    async fn stand_still_once(&self) {
        let signals = self.signals.lock().unwrap().take();
        if let Some((reached, goes)) = signals {
            reached.send(()).unwrap();
            goes.await.unwrap();
        }
    }
}

#[async_trait::async_trait]
impl Between for Paused {
    async fn before_get(&self, key: &str) {
        if self.is_of_reads && key == self.before {
            self.stand_still_once().await;
        }
    }

    async fn txn(
        &self,
        registry: &Arc<dyn Registry>,
        txn: Txn,
    ) -> Result<registry::TxnResult, RegistryError> {
        let is_it = txn.then.iter().any(|operation| operation.key() == self.before);
        if is_it && !self.is_of_reads {
            self.stand_still_once().await;
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

#[tokio::test]
async fn one_whose_lease_has_ended_and_that_lives_all_the_same_is_not_removed_as_it_becomes_in_sync() {
    let (_directory, cluster) = with_osds(4).await;
    let (osd, pg) = (OsdId(3), PgId { pool: PoolId(1), index: 0 });
    cluster.set_admission(osd, Admission::Out).await.unwrap();
    cluster.create_pool("p", 3, 2, 4).await.unwrap();
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

#[tokio::test]
async fn processes_that_have_all_ended_are_forgotten_and_neither_clients_nor_osds_that_are_out() {
    let (_directory, cluster) = three().await;
    let (first, second) = (lease(&cluster).await, lease(&cluster).await);
    cluster.osd_up(OsdId(0), address(7000), first).await.unwrap();
    cluster.osd_up(OsdId(1), address(7001), second).await.unwrap();
    cluster.set_admission(OsdId(1), Admission::Out).await.unwrap();
    let (node, pid) = (NodeId(0), 71);
    let (manager, http, client) = (lease(&cluster).await, lease(&cluster).await, lease(&cluster).await);
    let record = ManagerRecord { node, pid, address: None, away: BTreeMap::new(), late: BTreeMap::new() };
    assert!(cluster.become_manager(&record, manager).await.unwrap());
    let record = HttpRecord { node, pid, address: address(7100), remote_address: None };
    cluster.announce_http(&record, http).await.unwrap();
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    cluster.attach("v", ClientId(1), client, false, "process 72".to_owned()).await.unwrap();

    // The second time there is nothing to forget.
    for _ in 0..2 {
        cluster.forget_processes().await.unwrap();
        let map = cluster.map().await.unwrap();
        let up = map.osds.iter().filter(|(_, info)| info.address.is_some()).map(|(osd, _)| osd.0);
        assert_eq!(up.collect::<Vec<_>>(), [1]);
        assert_eq!(cluster.manager().await.unwrap(), None);
        assert_eq!(cluster.http_servers().await.unwrap(), []);
        assert_eq!(cluster.attachments(volume).await.unwrap().len(), 1);
    }
    // One that lives after all learns of it, and announces itself anew.
    for gone in [first, manager, http] {
        let kept = cluster.registry().lease_keep_alive(gone).await;
        assert!(matches!(kept, Err(RegistryError::LeaseNotFound { .. })), "{kept:?}");
    }
    for stays in [second, client] {
        cluster.registry().lease_keep_alive(stays).await.unwrap();
    }
}
