use super::*;
use crate::commands::last_copy::tests::{map, pg};
use base::ClusterId;
use base::map::DeviceClass;
use registry::MemoryRegistry;
use registry_remote::Desk;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const OSD: OsdId = OsdId(0);
const OTHER: OsdId = OsdId(1);
const NODE: NodeId = NodeId(7);
const CLUSTER: ClusterId = ClusterId(uuid::Uuid::from_u128(1));

fn uuid_of(osd: OsdId) -> OsdUuid {
    OsdUuid(uuid::Uuid::from_u128(u128::from(osd.0) + 1))
}

/// A host that has joined, whose OSDs are down.
struct Scene {
    _scratch: tempfile::TempDir,
    directory: Directory,
    settings: Settings,
    cluster: Cluster,
    inquiry: Inquiry,
    arguments: ReplaceArguments,
}

impl Scene {
    async fn new() -> Scene {
        // Where a file can be read and written directly.
        let scratch = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        let cluster = Cluster::new(Arc::new(MemoryRegistry::new()));
        cluster.create(CLUSTER).await.unwrap();
        for osd in [OSD, OTHER] {
            let uuid = uuid_of(osd);
            cluster.register_osd(uuid, NODE, OSD_BYTES_MIN, DeviceClass::Ssd).await.unwrap();
        }
        Scene {
            settings: Settings::load(&directory).unwrap(),
            inquiry: Inquiry::new(Desk::of(cluster.clone()), &directory),
            arguments: ReplaceArguments {
                osd: OSD,
                drive: None,
                erase: false,
                given_up: GivenUp::default(),
                json: false,
            },
            _scratch: scratch,
            directory,
            cluster,
        }
    }

    fn work(&self) -> Work<'_> {
        let Scene { cluster, inquiry, arguments, directory, settings, .. } = self;
        Work { cluster, inquiry, arguments, directory, settings }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A drive, blank or formatted as that of an OSD.
    fn drive(&self, name: &str, osd: Option<OsdId>) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create_new(&path).unwrap().set_len(OSD_BYTES_MIN).unwrap();
        if let Some(osd) = osd {
            let mut drive = Drive::open(&path, Use::Alone).unwrap();
            let identity = store::Identity { cluster: CLUSTER, osd_uuid: uuid_of(osd), osd };
            store::format(&mut drive, identity, [1; 16], &store::Options::default()).unwrap();
        }
        path
    }

    async fn hold(&self, new: &Path, old: &Path) -> anyhow::Result<Held> {
        let map = self.cluster.map().await?;
        self.work().hold(new, Some(old), info_of(&map, OSD)?).await
    }

    async fn started_at(&self, osd: OsdId, path: &Path) {
        self.cluster.note_drive(osd, uuid_of(osd), &path.display().to_string()).await.unwrap();
    }

    /// What the settings name once a drive has taken the place of another.
    async fn named_after(&self, devices: &[&Path], old: &Path, new: &Path) -> Vec<PathBuf> {
        let mut settings = Settings::load(&self.directory).unwrap();
        settings.set_devices(&devices.iter().map(|device| device.to_path_buf()).collect::<Vec<_>>());
        settings.store().unwrap();
        let drives = self.cluster.drives().await.unwrap();
        self.work().name_in_settings(&Runner::Node, new, Some(old), &drives).await.unwrap();
        Settings::load(&self.directory).unwrap().devices()
    }
}

#[tokio::test]
async fn a_drive_of_another_osd_where_the_one_before_was_is_left_to_that() {
    let scene = Scene::new().await;
    let (new, shifted) = (scene.drive("new", None), scene.drive("shifted", Some(OTHER)));
    // Whether that OSD runs or not.
    let running = Drive::open(&shifted, Use::Alone).unwrap();
    assert!(scene.hold(&new, &shifted).await.unwrap()._old.is_none());
    drop(running);
    assert!(scene.hold(&new, &shifted).await.unwrap()._old.is_none());
    // Its own, blank ones, and what nobody can read are held.
    let (own, blank, unknown) =
        (scene.drive("own", Some(OSD)), scene.drive("blank", None), scene.drive("unknown", None));
    let file = std::fs::OpenOptions::new().write(true).open(&unknown).unwrap();
    file.write_all_at(&[7; 4096], 4096).unwrap();
    for before in [&own, &blank, &unknown] {
        assert!(scene.hold(&new, before).await.unwrap()._old.is_some(), "{}", before.display());
    }
    let running = Drive::open(&own, Use::Alone).unwrap();
    let refusal = scene.hold(&new, &own).await.err().expect("somebody runs it").to_string();
    assert!(refusal.contains("a process still runs osd.0 there"), "{refusal}");
    drop(running);
}

#[tokio::test]
async fn a_path_that_another_osd_needs_stays_named_in_the_settings() {
    let scene = Scene::new().await;
    let (new, before, gone) = (scene.path("new"), scene.path("before"), scene.path("gone"));
    let named = async || scene.named_after(&[&gone, &before], &before, &new).await;
    scene.started_at(OSD, &before).await;
    scene.started_at(OTHER, &gone).await;
    assert_eq!(named().await, [gone.clone(), new.clone()], "nobody else's");
    // The other's is there since the last start, or was there then.
    scene.drive("before", Some(OTHER));
    assert_eq!(named().await, [gone.clone(), before.clone(), new.clone()]);
    std::fs::remove_file(&before).unwrap();
    scene.started_at(OTHER, &before).await;
    assert_eq!(named().await, [new.clone(), before.clone()], "what is gone is nobody's");
}

#[tokio::test]
async fn who_is_taken_out_for_a_replacement_that_is_given_up_is_in_again_when_it_comes_back() {
    let scene = Scene::new().await;
    let (cluster, new) = (&scene.cluster, scene.drive("new", None));
    cluster.create_pool("p", 2, 2, 1).await.unwrap();
    let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
    cluster.osd_up(OTHER, ([127, 0, 0, 1], 7001).into(), lease).await.unwrap();
    let is_out = async {
        while cluster.map().await.unwrap().osds[&OSD].admission == Admission::In {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let (work, runner) = (scene.work(), Runner::Node);
    let replacing = work.register(&runner, &new, None);
    // Of two copies one is left, and the group takes no writes by that: so it waits for it, unless it is out.
    tokio::select! {
        done = replacing => panic!("{OSD} is in sync still: {done:?}"),
        () = is_out => {}
    }
    // Here a person ends the command, puts the drive back, and whoever manages sees the OSD come up.
    cluster.osd_up(OSD, ([127, 0, 0, 1], 7000).into(), lease).await.unwrap();
    assert!(cluster.take_in_again(OSD).await.unwrap());
}

#[tokio::test]
async fn nobodys_silence_is_taken_for_a_no_where_others_may_want_what_is_on_a_drive() {
    let mut scene = Scene::new().await;
    let (cluster, new) = (scene.cluster.clone(), scene.drive("new", None));
    cluster.create_pool("p", 2, 1, 1).await.unwrap();
    let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
    cluster.osd_up(OTHER, ([127, 0, 0, 1], 7001).into(), lease).await.unwrap();
    // The other goes on alone. Whatever it wants, no manager tells.
    let config = cluster.map().await.unwrap().pgs[&pg(0)].clone();
    let (epoch, in_sync, learners) = (Epoch(config.epoch.0 + 1), vec![OTHER], vec![OSD]);
    let next = PgConfig { epoch, primary: OTHER, in_sync, learners, history: config.history };
    assert!(cluster.change_pg(pg(0), config.epoch, next).await.unwrap());
    let info = cluster.map().await.unwrap().osds[&OSD].clone();
    let exchange = async |scene: &Scene| {
        let uuid = OsdUuid(uuid::Uuid::from_u128(9));
        scene.work().exchange(uuid, &Runner::Node, &new, None, &info).await.unwrap()
    };
    // Neither is another drive taken, nor is it removed.
    let none = GivenUp::default();
    let (replaced, removed) =
        tokio::join!(exchange(&scene), none.check_not_wanted(OSD, &cluster, &scene.inquiry));
    let Exchanged::Untold(why) = replaced else { panic!("nobody told anything") };
    assert!(why.contains("nobody manages the cluster"), "{why}");
    let refusal = removed.expect_err("nobody told anything").to_string();
    assert!(refusal.contains("nobody manages the cluster"), "{refusal}");
    assert_eq!(cluster.map().await.unwrap().osds[&OSD].uuid, uuid_of(OSD));
    scene.arguments.given_up.lose_last_copy_of = vec!["p".to_owned()];
    let given_up = scene.arguments.given_up.clone();
    given_up.check_not_wanted(OSD, &cluster, &scene.inquiry).await.unwrap();
    assert!(matches!(exchange(&scene).await, Exchanged::Done));
}

#[test]
fn an_osd_must_be_out_where_too_few_are_left_without_it() {
    let enough = map(&[1, 2], &[&[0, 1, 2], &[1, 2]]);
    assert!(!must_be_out(&enough, OSD, &[pg(0)]));
    let few = map(&[1], &[&[0, 1, 2]]);
    assert!(must_be_out(&few, OSD, &[pg(0)]));
    assert!(!must_be_out(&few, OSD, &[]));
}

#[test]
fn groups_of_which_it_has_the_last_copy_are_not_waited_for() {
    let map = map(&[1], &[&[0, 1, 2], &[1, 2], &[0], &[0, 2], &[2]]);
    assert_eq!(waiting(&map, OSD, &LastCopies::of(&map, OSD, &BTreeSet::new())), [pg(0)]);
}
