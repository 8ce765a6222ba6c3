//! Bays of drives that are files.

use super::*;
use base::map::OsdInfo;
use cluster::Replacement;
use registry::Txn;
use registry_embedded::EmbeddedRegistry;
use std::fs::File;
use std::path::Path;

const NODE: NodeId = NodeId(4);
const SLOT: (OsdId, OsdUuid) = (OsdId(3), OsdUuid(uuid::Uuid::from_u128(7)));
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn what_a_map_says_of_an_osd_that_does_not_run_counts_once_it_was_shown() {
    let mut map = ClusterMap::default();
    let look = |map: &ClusterMap, is_known| outlook(map, NODE, SLOT, is_known);
    assert_eq!((look(&map, false), look(&map, true)), (Outlook::Unclear, Outlook::Over));
    let info = OsdInfo { uuid: SLOT.1, node: NODE, ..OsdInfo::default() };
    map.osds.insert(SLOT.0, info.clone());
    assert_eq!(look(&map, false), Outlook::Waits);
    let address = Some(([127, 0, 0, 1], 7000).into());
    map.osds.insert(SLOT.0, OsdInfo { address, ..info.clone() });
    assert_eq!(look(&map, false), Outlook::Runs);
    map.osds.insert(SLOT.0, OsdInfo { node: NodeId(5), ..info.clone() });
    assert_eq!(look(&map, false), Outlook::Over);
    map.osds.insert(SLOT.0, OsdInfo { uuid: OsdUuid::default(), ..info });
    assert_eq!((look(&map, false), look(&map, true)), (Outlook::Unclear, Outlook::Replaced));
}

#[test]
fn pauses_double_up_to_half_a_minute() {
    let seconds: Vec<u64> = (0..7).map(|attempts| pause(attempts).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
    assert_eq!(pause(u32::MAX).as_secs(), 30);
}

/// A cluster with a node, and what its bays have in common.
struct Scene {
    around: Arc<Surroundings>,
    stop: watch::Sender<bool>,
    scratch: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Scene {
        // Where a file can be read and written directly.
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let id = ClusterId(uuid::Uuid::from_u128(1));
        let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let around = Surroundings {
            node: NODE,
            identity: Identity::new(&auth::SecretKey::generate().unwrap()),
            volatile_cache: Some(false),
            spin_max: Duration::ZERO,
            listen: vec![std::net::Ipv4Addr::LOCALHOST.into()],
            maps: cluster.watch_map(),
            wishes: ScrubWishes::watch(&cluster),
            cluster,
            board: Board::default(),
            handshakes: Handle::current(),
        };
        Scene { around: Arc::new(around), stop: watch::Sender::new(false), scratch }
    }

    fn path(&self) -> PathBuf {
        self.scratch.path().join("drive")
    }

    /// A blank drive where the OSD's is.
    fn put_blank(&self, bytes: u64) {
        let file = File::create(self.path()).unwrap();
        file.set_len(bytes).unwrap();
    }

    /// Starts the bay; what it ends with.
    fn tend(&self) -> tokio::task::JoinHandle<Result<End, NodeError>> {
        let (around, paths, stop) = (self.around.clone(), [self.path()], self.stop.subscribe());
        tokio::spawn(async move {
            let (bay, _, started) = all_of(start_all(&around, &paths).await?).await.remove(0);
            bay.tend(started, stop).await
        })
    }

    /// Has the OSD made and run once, until it is asked to stop.
    async fn has_run(&self, osd: OsdId) {
        self.put_blank(256 << 20);
        let tended = self.tend();
        self.sees("it is up", |map| is_up(map, osd)).await;
        self.stop.send_replace(true);
        assert!(matches!(tended.await.unwrap(), Ok(End::Asked)));
        self.stop.send_replace(false);
    }

    /// Has the drive, as `millpond osd replace` has it.
    fn hold(&self) -> File {
        let held = File::open(self.path()).unwrap();
        held.lock().unwrap();
        held
    }

    async fn sees(&self, what: &str, condition: impl Fn(&ClusterMap) -> bool) {
        let mut maps = self.around.maps.clone();
        let seen = tokio::time::timeout(PATIENCE, maps.wait_for(|map| condition(map))).await;
        assert!(seen.is_ok_and(|seen| seen.is_ok()), "the map never shows that {what}");
    }

    /// The same while bays are kept.
    async fn sees_while_kept(&self, bays: &mut Bays, what: &str, condition: impl Fn(&ClusterMap) -> bool) {
        tokio::select! {
            kept = bays.keep() => panic!("they are kept no more: {kept:?}"),
            () = self.sees(what, condition) => {}
        }
    }

    /// Waits until the manager would be told so.
    async fn is_told(&self, osd: OsdId, words: &str) -> OsdStatus {
        let told = tokio::time::timeout(PATIENCE, async {
            loop {
                let statuses = self.around.board.statuses();
                if let Some(status) = statuses.get(&osd)
                    && status.start_refused.as_ref().is_some_and(|reason| reason.contains(words))
                {
                    return OsdStatus::clone(status);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        told.await.unwrap_or_else(|_| panic!("nobody is told {words:?}"))
    }
}

/// What became of all of them.
async fn all_of(starting: JoinSet<Started>) -> Vec<Started> {
    starting.join_all().await
}

fn is_up(map: &ClusterMap, osd: OsdId) -> bool {
    map.osds.get(&osd).is_some_and(|info| info.address.is_some())
}

fn osds(map: &ClusterMap) -> Vec<OsdId> {
    map.osds.keys().copied().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_drives_are_numbered_as_they_are_named_and_known_ones_opened_at_the_same_time() {
    let scene = Scene::new().await;
    let paths = ["one", "two"].map(|name| scene.scratch.path().join(name));
    for path in &paths {
        File::create(path).unwrap().set_len(256 << 20).unwrap();
    }
    let running = |started: Vec<Started>| -> Vec<OsdControl> {
        let outcomes = started.into_iter().map(|(.., outcome)| outcome);
        outcomes.map(|outcome| outcome.unwrap_or_else(|vacancy| panic!("{}", vacancy.reason()))).collect()
    };
    let shut_down = async |osds: Vec<OsdControl>| {
        for mut osd in osds {
            osd.shard.tell(Command::Shutdown).await;
            let _ = (&mut osd.ended).await;
        }
    };
    let first = running(all_of(start_all(&scene.around, &paths).await.unwrap()).await);
    let drives = scene.around.cluster.drives().await.unwrap();
    let noted = |number: usize| Some(paths[number].display().to_string());
    assert_eq!([0, 1].map(|osd| drives.get(&OsdId(osd)).cloned()), [0, 1].map(noted));
    assert_eq!(first.len(), 2);
    shut_down(first).await;
    // Somebody has the one still, and nobody the other.
    let [held, other] = paths.each_ref().map(|path| {
        let file = File::open(path).unwrap();
        file.lock().unwrap();
        file
    });
    other.unlock().unwrap();
    let around = scene.around.clone();
    let again = tokio::spawn(async move { all_of(start_all(&around, &paths).await.unwrap()).await });
    let opened = tokio::time::timeout(PATIENCE, async {
        while other.try_lock().is_ok() {
            other.unlock().unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    opened.await.expect("the other is opened while the one is waited for");
    drop(held);
    let mut second = running(again.await.unwrap());
    second.sort_by_key(|osd| osd.id);
    assert_eq!(second.iter().map(|osd| osd.id).collect::<Vec<_>>(), [OsdId(0), OsdId(1)]);
    shut_down(second).await;
}

async fn replace(cluster: &Cluster, osd: OsdId, path: &Path, bytes: u64) {
    let uuid = OsdUuid(uuid::Uuid::new_v4());
    let path = path.display().to_string();
    let replacement = Replacement { uuid, path, bytes, class: DeviceClass::Ssd };
    assert!(cluster.replace_osd(osd, &replacement, &BTreeSet::new(), Txn::new()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_osd_that_is_not_started_says_why_and_starts_as_soon_as_its_number_is_given_to_the_drive() {
    let scene = Scene::new().await;
    let (cluster, osd) = (&scene.around.cluster, OsdId(0));
    scene.has_run(osd).await;

    // Another drive, a larger one, is where its own was.
    std::fs::remove_file(scene.path()).unwrap();
    let second = scene.tend();
    let told = scene.is_told(osd, "there is no such device or file").await;
    assert_eq!((told.path, told.pid), (scene.path().display().to_string(), std::process::id()));
    scene.put_blank(512 << 20);
    scene.is_told(osd, "is blank, but osd.0 was on it").await;
    replace(cluster, osd, &scene.path(), 512 << 20).await;
    scene.sees("it is up again", |map| is_up(map, osd) && map.osds[&osd].bytes == 512 << 20).await;
    let map = cluster.map().await.unwrap();
    assert_eq!((map.osds.len(), map.osds[&osd].incarnation), (1, 2));
    let gone = tokio::time::timeout(PATIENCE, async {
        while scene.around.board.statuses().get(&osd).is_none_or(|status| status.start_refused.is_some()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    gone.await.expect("what it says now is how it is");
    scene.stop.send_replace(true);
    assert!(matches!(second.await.unwrap(), Ok(End::Asked)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_osd_ends_that_was_put_on_another_drive_and_its_bay_with_it() {
    let scene = Scene::new().await;
    let (cluster, osd) = (&scene.around.cluster, OsdId(0));
    scene.put_blank(256 << 20);
    let tended = scene.tend();
    scene.sees("it is up", |map| is_up(map, osd)).await;
    // Its process hung, so that its lease ran out, and goes on.
    let up = cluster.registry().get("millpond/map/up/0").await.unwrap().unwrap();
    cluster.registry().lease_revoke(up.lease.unwrap()).await.unwrap();
    let elsewhere = scene.scratch.path().join("elsewhere");
    let replaced = tokio::time::timeout(PATIENCE, async {
        let uuid = OsdUuid(uuid::Uuid::new_v4());
        let path = elsewhere.display().to_string();
        let replacement = Replacement { uuid, path, bytes: 1 << 30, class: DeviceClass::Ssd };
        // It says that it is up again before it hears of this, unless this comes first.
        while !cluster
            .replace_osd(osd, &replacement, &BTreeSet::new(), Txn::new())
            .await
            .is_ok_and(|is_done| is_done)
        {
            if let Some(up) = cluster.registry().get("millpond/map/up/0").await.unwrap() {
                let _ = cluster.registry().lease_revoke(up.lease.unwrap()).await;
            }
        }
    });
    replaced.await.expect("it can be replaced");
    let ended = tokio::time::timeout(PATIENCE, tended).await.expect("it ends").unwrap();
    assert!(matches!(ended, Ok(End::Removed)));
    assert!(!is_up(&cluster.map().await.unwrap(), osd));
    assert!(scene.around.board.statuses().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blank_drive_becomes_no_other_osd_where_one_was_that_is_put_on_another() {
    let scene = Scene::new().await;
    let (cluster, osd) = (&scene.around.cluster, OsdId(0));
    scene.has_run(osd).await;
    scene.put_blank(256 << 20);
    let tended = scene.tend();
    scene.is_told(osd, "is blank, but osd.0 was on it").await;
    replace(cluster, osd, &scene.scratch.path().join("elsewhere"), 256 << 20).await;
    let ended = tokio::time::timeout(PATIENCE, tended).await.expect("its bay is over").unwrap();
    assert!(matches!(ended, Ok(End::Removed)));
    assert_eq!(osds(&cluster.map().await.unwrap()), [osd]);
    assert!(scene.around.board.statuses().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bay_that_no_osd_belongs_in_since_names_shifted_wakes_when_one_is_put_there() {
    let scene = Scene::new().await;
    let (cluster, osds) = (&scene.around.cluster, [OsdId(0), OsdId(1)]);
    let paths = ["one", "two"].map(|name| scene.scratch.path().join(name));
    let put_blank = |path: &Path| File::create(path).unwrap().set_len(256 << 20).unwrap();
    for path in &paths {
        put_blank(path);
    }
    let start = async || Bays::start(&scene.around, &paths, scene.stop.subscribe()).await.unwrap();
    let are_up = |map: &ClusterMap| osds.iter().all(|osd| is_up(map, *osd));
    let mut first = start().await;
    scene.sees_while_kept(&mut first, "both are up", are_up).await;
    scene.stop.send_replace(true);
    first.end().await.unwrap();
    scene.stop.send_replace(false);

    // The first drive is lost, and the second one has its name from now on.
    std::fs::rename(&paths[1], &paths[0]).unwrap();
    let mut second = start().await;
    let sleeps = tokio::time::timeout(PATIENCE, async {
        while second.dormant.is_empty() {
            let _ = tokio::time::timeout(Duration::from_millis(20), second.keep()).await;
        }
    });
    sleeps.await.expect("the bay where nothing is any more is dormant");
    put_blank(&paths[1]);
    replace(cluster, osds[0], &paths[1], 256 << 20).await;
    scene.sees_while_kept(&mut second, "both are up again", are_up).await;
    assert!(second.dormant.is_empty());
    scene.stop.send_replace(true);
    second.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blank_drive_becomes_no_other_osd_when_its_own_is_put_on_another_while_it_is_waited_for() {
    let scene = Scene::new().await;
    let (cluster, osd) = (&scene.around.cluster, OsdId(0));
    scene.has_run(osd).await;
    scene.put_blank(256 << 20);
    let held = scene.hold();
    let bay = Bay::new(scene.around.clone(), scene.path());
    let before = bay.known().await.unwrap().map(|slot| slot.osd);
    assert_eq!(before, Some(osd));
    let starting = tokio::spawn(start_first(bay, before));
    replace(cluster, osd, &scene.scratch.path().join("elsewhere"), 256 << 20).await;
    drop(held);
    let (.., started) = starting.await.unwrap();
    let vacancy = started.err().expect("nothing is started");
    assert!(vacancy.is_of_drive() && !vacancy.is_known(), "it is left alone");
    assert!(vacancy.reason().contains("belonged to osd.0, which was put on another drive"));
    assert_eq!(osds(&cluster.map().await.unwrap()), [osd]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_osd_that_is_replaced_again_while_its_drive_is_waited_for_becomes_no_second_one() {
    let scene = Scene::new().await;
    let (cluster, osd) = (&scene.around.cluster, OsdId(0));
    scene.has_run(osd).await;
    scene.put_blank(256 << 20);
    replace(cluster, osd, &scene.path(), 256 << 20).await;
    let held = scene.hold();
    let tended = scene.tend();
    // It waits for the drive then. Were it later, it would see what it is to see anyway.
    tokio::time::sleep(Duration::from_millis(300)).await;
    replace(cluster, osd, &scene.path(), 256 << 20).await;
    let second = cluster.map().await.unwrap().osds[&osd].uuid;
    drop(held);
    scene.sees("it is up so", |map| is_up(map, osd) && map.osds[&osd].uuid == second).await;
    assert_eq!(osds(&cluster.map().await.unwrap()), [osd]);
    scene.stop.send_replace(true);
    assert!(matches!(tended.await.unwrap(), Ok(End::Asked)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_that_could_not_be_formatted_makes_no_second_osd() {
    let scene = Scene::new().await;
    let (cluster, osd) = (&scene.around.cluster, OsdId(0));
    // No OSD has room on it: one is registered, and cannot be formatted.
    scene.put_blank(16 << 20);
    let tended = scene.tend();
    scene.is_told(osd, "an OSD needs at least").await;
    scene.put_blank(256 << 20);
    scene.sees("it is up", |map| is_up(map, osd)).await;
    assert_eq!(cluster.map().await.unwrap().osds.len(), 1);
    scene.stop.send_replace(true);
    assert!(matches!(tended.await.unwrap(), Ok(End::Asked)));
}

#[test]
fn only_osds_of_the_node_that_do_not_run_are_down() {
    let mut map = ClusterMap::default();
    let address = Some(([127, 0, 0, 1], 7000).into());
    for (osd, node, address) in [(1, NODE, None), (2, NODE, address), (3, NodeId(5), None)] {
        map.osds.insert(OsdId(osd), OsdInfo { uuid: SLOT.1, node, address, ..OsdInfo::default() });
    }
    assert_eq!(down(&map, NODE), [(OsdId(1), SLOT.1)].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_of_no_use_is_left_alone_where_another_is_and_is_an_error_where_none_is() {
    let scene = Scene::new().await;
    let missing = scene.scratch.path().join("missing");
    let start = async |paths: &[PathBuf]| Bays::start(&scene.around, paths, scene.stop.subscribe()).await;
    let kept = start(std::slice::from_ref(&missing)).await.unwrap().keep().await;
    let error = kept.expect_err("nothing runs");
    assert!(error.to_string().contains("there is no such device or file"), "{error}");
    scene.put_blank(256 << 20);
    let paths = [missing, scene.path()];
    let mut bays = start(&paths).await.unwrap();
    scene.sees_while_kept(&mut bays, "it is up", |map| is_up(map, OsdId(0))).await;
    assert_eq!((bays.tended.len(), bays.dormant.len()), (1, 1));
    scene.stop.send_replace(true);
    bays.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_no_drive_ends_the_node_at_once() {
    let Scene { around, stop, scratch } = Scene::new().await;
    let mut around = Arc::into_inner(around).unwrap();
    around.listen = vec![std::net::Ipv4Addr::new(192, 0, 2, 1).into()];
    let path = scratch.path().join("drive");
    File::create(&path).unwrap().set_len(256 << 20).unwrap();
    let mut bays = Bays::start(&Arc::new(around), &[path], stop.subscribe()).await.unwrap();
    assert!(matches!(bays.keep().await, Err(NodeError::Listen { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_that_does_not_answer_holds_up_neither_the_others_nor_the_end() {
    let scene = Scene::new().await;
    scene.put_blank(256 << 20);
    let mut bays = Bays::start(&scene.around, &[scene.path()], scene.stop.subscribe()).await.unwrap();
    bays.starting.spawn(std::future::pending());
    scene.sees_while_kept(&mut bays, "the other is up", |map| is_up(map, OsdId(0))).await;
    assert_eq!(bays.starting.len(), 1);
    scene.stop.send_replace(true);
    tokio::time::timeout(PATIENCE, bays.end()).await.expect("it is not waited for").unwrap();
    assert!(!is_up(&scene.around.cluster.map().await.unwrap(), OsdId(0)), "the other has ended as it should");
}

#[tokio::test]
async fn of_a_drive_that_does_not_say_what_is_on_it_the_manager_is_told_until_it_does() {
    let scene = Scene::new().await;
    let cluster = &scene.around.cluster;
    let bay = Bay::new(scene.around.clone(), scene.path());
    let osd = cluster.register_osd(bay.new_uuid, NODE, 256 << 20, DeviceClass::Ssd).await.unwrap();
    scene.sees("it is there", |map| map.osds.contains_key(&osd)).await;
    let board = &scene.around.board;
    let (says, answer) = oneshot::channel();
    let awaited = tokio::spawn(async move { bay.is_awaited(Some(osd), answer).await });
    tokio::task::yield_now().await;
    tokio::time::pause();
    let moment = Duration::from_millis(5);
    tokio::time::advance(SILENT_AFTER - 2 * moment).await;
    tokio::task::yield_now().await;
    assert!(board.statuses().is_empty());
    tokio::time::advance(4 * moment).await;
    tokio::time::resume();
    let told = async |is_told: bool| {
        let telling = async {
            while board.statuses().contains_key(&osd) != is_told {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, telling).await.expect("it is told so");
    };
    told(true).await;
    // It is put elsewhere, and that is not told any more.
    let info = cluster.map().await.unwrap().osds[&osd].clone();
    cluster.note_osd(osd, info.uuid, NodeId(5), info.bytes, info.device_class).await.unwrap();
    told(false).await;
    cluster.note_osd(osd, info.uuid, NODE, info.bytes, info.device_class).await.unwrap();
    told(true).await;
    let told = board.statuses();
    assert!(told[&osd].drive_hangs && told[&osd].path == scene.path().display().to_string());
    says.send(7).unwrap();
    assert_eq!(awaited.await.unwrap(), Ok(7));
    assert!(board.statuses().is_empty(), "what becomes of it now is told by others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_osd_of_which_the_registrys_answer_was_lost_becomes_no_second_one() {
    let scene = Scene::new().await;
    scene.put_blank(256 << 20);
    let bay = Bay::new(scene.around.clone(), scene.path());
    // It was registered, and nobody here knows.
    let cluster = &scene.around.cluster;
    let osd = cluster.register_osd(bay.new_uuid, NODE, 256 << 20, DeviceClass::Ssd).await.unwrap();
    let started = bay.start(None).await;
    let mut started = started.unwrap_or_else(|vacancy| panic!("{}", vacancy.reason()));
    assert_eq!((started.id, osds(&cluster.map().await.unwrap())), (osd, vec![osd]));
    started.shard.tell(Command::Shutdown).await;
    let _ = (&mut started.ended).await;
}
