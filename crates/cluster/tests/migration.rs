//! Moving a cluster between two registries of this machine, and between one and a real etcd: broken off after every
//! transaction, under changes, and to wrong targets. At no time the cluster lives in both.

use async_trait::async_trait;
use base::map::DeviceClass;
use base::{ClusterId, NodeId, OsdUuid};
use cluster::{Cluster, ClusterError, Migrated, Migration, MigrationError, Presence, reclaim};
use registry::{KeyValue, Operation, Registry, RegistryError, Txn, TxnResult};
use registry_embedded::EmbeddedRegistry;
use registry_etcd::{EtcdOptions, EtcdRegistry};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use testkit::Etcd;
use testkit::between::{Behind, Between};

const CLUSTER_KEY: &str = "millpond/map/cluster";

type Shared = Arc<dyn Registry>;
type Done = Pin<Box<dyn Future<Output = ()> + Send>>;

fn id(number: u128) -> ClusterId {
    ClusterId(uuid::Uuid::from_u128(number))
}

/// Registries that nobody used before.
enum Maker {
    Embedded(TempDir, AtomicU32),
    Etcd(Etcd, AtomicU32),
}

impl Maker {
    fn embedded() -> Maker {
        Maker::Embedded(tempfile::tempdir().expect("a directory can be made"), AtomicU32::new(0))
    }

    fn etcd() -> Maker {
        Maker::Etcd(Etcd::start(1, &[]), AtomicU32::new(0))
    }

    async fn make(&self) -> Shared {
        match self {
            Maker::Embedded(directory, count) => {
                let name = format!("{}.redb", count.fetch_add(1, Ordering::Relaxed));
                let made = EmbeddedRegistry::create(&directory.path().join(name), id(1));
                Arc::new(made.expect("a registry can be made"))
            }
            Maker::Etcd(etcd, count) => {
                let url = format!("{}/m{}", etcd.url(), count.fetch_add(1, Ordering::Relaxed));
                let options: EtcdOptions = url.parse().expect("it is a URL");
                let made = EtcdRegistry::connect(options.with_timeout(Duration::from_secs(30))).await;
                Arc::new(made.expect("etcd starts"))
            }
        }
    }
}

/// A cluster of three OSDs with a pool and a volume, and with values that are no text, or as large as they may be.
async fn populate(registry: &Shared) {
    let cluster = Cluster::new(registry.clone());
    cluster.create(id(1)).await.expect("it is empty");
    for node in 0..3u32 {
        let uuid = OsdUuid(uuid::Uuid::from_u128(u128::from(node) + 1));
        cluster.register_osd(uuid, NodeId(node), 8 << 30, DeviceClass::Ssd).await.expect("an OSD can be");
    }
    cluster.create_pool("default", 3, 2, 64).await.expect("there are enough OSDs");
    cluster.create_volume("disk", "default", 1 << 30).await.expect("there is a pool");
    for (key, value) in [
        ("millpond/local/binary", vec![0xff, 0, b'"', b'\\', 0xc3]),
        ("millpond/local/empty", vec![]),
        ("millpond/local/large", vec![7; 1 << 20]),
        ("millpond/local/larger", vec![8; (1 << 20) - 100]),
    ] {
        registry.put(key, value.into()).await.expect("it can be written");
    }
}

/// What must be the same wherever the cluster lives.
async fn content(registry: &Shared) -> BTreeMap<String, Vec<u8>> {
    let entries = registry.range("millpond/").await.expect("it can be read").entries.into_iter();
    let is_of_the_cluster =
        |entry: &KeyValue| !entry.key.starts_with("millpond/mov") && entry.key != CLUSTER_KEY;
    let kept = entries.filter(is_of_the_cluster);
    kept.map(|entry| (entry.key, entry.value.as_bytes().to_vec())).collect()
}

async fn presence(registry: &Shared) -> Presence {
    Presence::read(&**registry).await.expect("it can be read")
}

async fn lives_in(registry: &Shared) -> bool {
    registry.get(CLUSTER_KEY).await.expect("it can be read").is_some()
}

async fn migrate(source: &Shared, target: &Shared) -> Result<Migrated, MigrationError> {
    Migration::new(&**source, "the source", &**target, "the target").run().await
}

async fn cancel(source: &Shared, target: &Shared) -> Result<ClusterId, MigrationError> {
    Migration::new(&**source, "the source", &**target, "the target").cancel().await
}

/// Lets so many changes through, of both registries together, and then nothing any more: as if the process ended. Of the
/// last change the answer may be lost.
struct Broken {
    left: Arc<AtomicU32>,
    answer_is_lost: bool,
}

impl Broken {
    fn pair(source: &Shared, target: &Shared, changes: u32, answer_is_lost: bool) -> [Shared; 2] {
        let left = Arc::new(AtomicU32::new(changes));
        [source, target].map(|registry| -> Shared {
            Arc::new(Behind(registry.clone(), Broken { left: left.clone(), answer_is_lost }))
        })
    }
}

fn changes(txn: &Txn) -> bool {
    let changes =
        |operation: &Operation| matches!(operation, Operation::Put { .. } | Operation::Delete { .. });
    txn.then.iter().any(changes)
}

#[async_trait]
impl Between for Broken {
    fn lets_read(&self) -> Result<(), RegistryError> {
        match self.left.load(Ordering::Relaxed) {
            0 => Err(RegistryError::Closed),
            _ => Ok(()),
        }
    }
    async fn txn(&self, registry: &Shared, txn: Txn) -> Result<TxnResult, RegistryError> {
        self.lets_read()?;
        if !changes(&txn) {
            return registry.txn(txn).await;
        }
        let was_last = self.left.fetch_sub(1, Ordering::Relaxed) == 1;
        if was_last && !self.answer_is_lost {
            return Err(RegistryError::Closed);
        }
        let done = registry.txn(txn).await;
        if was_last { Err(RegistryError::Closed) } else { done }
    }
}

#[track_caller]
fn broke_off(outcome: &Result<Migrated, MigrationError>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(MigrationError::Registry(RegistryError::Closed))
        | Err(MigrationError::Cluster(ClusterError::Registry(RegistryError::Closed))) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Breaks a move off before and after each of its changes, then ends it, or gives it up.
async fn breaks_off_anywhere(from: &Maker, to: &Maker) {
    for (answer_is_lost, gives_up) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut broken = 0;
        for count in 1.. {
            let (source, target) = (from.make().await, to.make().await);
            populate(&source).await;
            let before = content(&source).await;
            let [one, other] = Broken::pair(&source, &target, count, answer_is_lost);
            let outcome = migrate(&one, &other).await;
            let is_over = !broke_off(&outcome);
            let lives = (lives_in(&source).await, lives_in(&target).await);
            assert_ne!(lives, (true, true), "after {count} changes it lives in both");
            if lives.0 {
                assert_eq!(content(&source).await, before, "the source changes only when all is done");
            }
            broken += u32::from(!is_over);
            let arrived = lives.1;
            if gives_up {
                match cancel(&source, &target).await {
                    Ok(cluster) => {
                        assert!(!arrived);
                        assert_eq!(cluster, id(1));
                        assert_eq!(presence(&source).await, Presence::Here(id(1)));
                        assert_eq!(content(&source).await, before);
                        let left = target.range("").await.expect("it can be read").entries;
                        assert!(left.is_empty(), "{left:?}");
                    }
                    Err(error) => {
                        assert!(matches!(error, MigrationError::Arrived { .. }) && arrived, "{error}");
                    }
                }
            }
            let migrated = migrate(&source, &target).await.expect("it goes on from wherever it was");
            assert_eq!((migrated.cluster, migrated.keys), (id(1), before.len()));
            assert_eq!(presence(&target).await, Presence::Here(id(1)));
            assert!(matches!(presence(&source).await, Presence::Moved(_)));
            assert_eq!(content(&target).await, before);
            if is_over {
                break;
            }
        }
        // Begin, three of copying at least, leave, arrive.
        assert!(broken >= 6, "{broken}");
    }
}

/// Goes on only a little further each time.
async fn crawls(from: &Maker, to: &Maker) {
    let (source, target) = (from.make().await, to.make().await);
    populate(&source).await;
    let before = content(&source).await;
    let mut attempts = 0;
    loop {
        attempts += 1;
        assert!(attempts < 50, "it comes to no end");
        let [one, other] = Broken::pair(&source, &target, 3, true);
        let outcome = migrate(&one, &other).await;
        assert_ne!((lives_in(&source).await, lives_in(&target).await), (true, true));
        if !broke_off(&outcome) {
            break;
        }
    }
    assert!(attempts > 2, "{attempts}");
    assert_eq!(content(&target).await, before);
    assert_eq!(presence(&target).await, Presence::Here(id(1)));
}

/// There and back, twice, with changes at the other end.
async fn there_and_back(from: &Maker, to: &Maker) {
    let (here, there) = (from.make().await, to.make().await);
    populate(&here).await;
    for round in 0..2 {
        for (source, target) in [(&here, &there), (&there, &here)] {
            let cluster = Cluster::new(source.clone());
            let before = content(source).await;
            migrate(source, target).await.expect("it can be moved");
            // Again it changes nothing.
            migrate(source, target).await.expect("it is moved");
            let migration = Migration::new(&**source, "the source", &**target, "the target");
            migration.clean().await.expect("what is left over can be removed");
            let left = source.range("").await.expect("it can be read").entries;
            assert_eq!(left.iter().map(|entry| &entry.key).collect::<Vec<_>>(), ["millpond/moved"]);
            assert_eq!(content(target).await, before);
            for error in [
                cluster.id().await.expect_err("it is gone"),
                cluster.map().await.map(drop).expect_err("it is gone"),
                cluster.create(id(1)).await.expect_err("it is gone"),
                cluster
                    .change_settings(|settings| settings.osd_out_after_seconds += 1)
                    .await
                    .expect_err("gone"),
            ] {
                assert!(matches!(error, ClusterError::Moved { .. }), "{error}");
                assert!(error.to_string().contains("the target"), "{error}");
            }
            let cluster = Cluster::new(target.clone());
            let name = format!("v{round}-{}", Arc::ptr_eq(target, &here));
            cluster.create_volume(&name, "default", 1 << 20).await.expect("it is alive");
        }
    }
    let map = Cluster::new(here).map().await.expect("it is here again");
    assert_eq!((map.volumes.len(), map.pgs.len()), (5, 64));
}

/// Does something at the source just before, or just after, the cluster leaves it.
struct Meddler {
    is_before: bool,
    done: AtomicBool,
    meddle: fn(Shared) -> Done,
}

#[async_trait]
impl Between for Meddler {
    async fn txn(&self, registry: &Shared, txn: Txn) -> Result<TxnResult, RegistryError> {
        let leaves = txn.then.contains(&Operation::delete(CLUSTER_KEY));
        let meddles = leaves && !self.done.swap(leaves, Ordering::Relaxed);
        if meddles && self.is_before {
            (self.meddle)(registry.clone()).await;
        }
        let done = registry.txn(txn).await;
        if meddles && !self.is_before {
            (self.meddle)(registry.clone()).await;
        }
        done
    }
}

fn makes_a_volume(registry: Shared) -> Done {
    Box::pin(async move {
        let made = Cluster::new(registry).create_volume("late", "default", 1 << 20).await;
        made.expect("the cluster still lives there");
    })
}

fn removes_a_key(registry: Shared) -> Done {
    Box::pin(async move {
        assert!(registry.delete("millpond/local/binary").await.expect("it can be written"));
    })
}

fn comes_up(registry: Shared) -> Done {
    Box::pin(async move {
        let cluster = Cluster::new(registry);
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.expect("it is granted").id;
        let address = ([127, 0, 0, 1], 7000).into();
        cluster.osd_up(base::OsdId(1), address, lease).await.expect("the cluster still lives there");
    })
}

fn is_refused(registry: Shared) -> Done {
    Box::pin(async move {
        let cluster = Cluster::new(registry);
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.expect("it is granted").id;
        let address = ([127, 0, 0, 1], 7000).into();
        let up = cluster.osd_up(base::OsdId(1), address, lease).await.map(drop);
        let set = cluster.set_admission(base::OsdId(1), base::map::Admission::Out).await.map(drop);
        for refused in [up, set] {
            assert!(matches!(refused, Err(ClusterError::Moved { .. })), "{refused:?}");
        }
    })
}

async fn is_changed_meanwhile(from: &Maker, to: &Maker) {
    type Case = (bool, fn(Shared) -> Done, fn(&MigrationError) -> bool);
    let cases: [Case; 4] = [
        (true, makes_a_volume, |error| matches!(error, MigrationError::Changed { .. })),
        (true, removes_a_key, |error| matches!(error, MigrationError::Changed { .. })),
        (false, removes_a_key, |error| matches!(error, MigrationError::Changed { .. })),
        (true, comes_up, |error| {
            matches!(error, MigrationError::InUse { who, .. } if who == &["osd.1 is up"])
                && error.to_string().contains("osd.1 is up;")
        }),
    ];
    for (is_before, meddle, is_expected) in cases {
        let (source, target) = (from.make().await, to.make().await);
        populate(&source).await;
        let inner = source.clone();
        let meddler: Shared =
            Arc::new(Behind(inner, Meddler { is_before, done: AtomicBool::new(false), meddle }));
        let refused = migrate(&meddler, &target).await.expect_err("it was changed");
        assert!(is_expected(&refused), "{refused}");
        assert_eq!(presence(&source).await, Presence::Here(id(1)), "it lives where it did");
        assert!(!lives_in(&target).await);
        let now = content(&source).await;
        if cluster::leased(&*source).await.expect("it can be read").is_empty() {
            migrate(&source, &target).await.expect("nobody meddles any more");
            assert_eq!(content(&target).await, now);
        } else {
            let refused = migrate(&source, &target).await.expect_err("an OSD is up");
            assert!(matches!(refused, MigrationError::InUse { .. }), "{refused}");
        }
    }
    // Who decided before and acts after is too late.
    let (source, target) = (from.make().await, to.make().await);
    populate(&source).await;
    let (inner, done) = (source.clone(), AtomicBool::new(false));
    let meddler: Shared = Arc::new(Behind(inner, Meddler { is_before: false, done, meddle: is_refused }));
    migrate(&meddler, &target).await.expect("nothing was changed");
}

/// A registry that is a part of another one, as that of an etcd whose name goes on where the other's ends.
fn key_of_another(key: &str) -> String {
    format!("two/{key}")
}

async fn leaves_alone_what_is_anothers(from: &Maker, to: &Maker) {
    let (source, target) = (from.make().await, to.make().await);
    populate(&source).await;
    migrate(&source, &target).await.expect("nothing is there");
    Migration::new(&*source, "the source", &*target, "the target").clean().await.expect("it lives there");
    // Another cluster comes to stand within what the first one left, and within what it has.
    for registry in [&source, &target] {
        for (key, value) in [(CLUSTER_KEY, "1"), ("millpond/map/osd/0", "2")] {
            registry.put(&key_of_another(key), value.into()).await.expect("it can be written");
        }
    }
    let there = async |registry: &Shared| registry.range("two/").await.expect("it can be read").entries.len();
    let moved = migrate(&target, &source).await.expect("it comes back");
    assert_eq!(moved.keys, content(&source).await.len());
    Migration::new(&*target, "the target", &*source, "the source").clean().await.expect("it lives there");
    assert_eq!((there(&source).await, there(&target).await), (2, 2));
    assert!(content(&target).await.is_empty());
}

async fn is_refused_where_something_is(from: &Maker, to: &Maker) {
    let source = from.make().await;
    populate(&source).await;
    let before = content(&source).await;
    let refusal = async |target: &Shared| {
        let refused = migrate(&source, target).await.expect_err("something is there");
        assert_eq!(presence(&source).await, Presence::Here(id(1)));
        assert_eq!(content(&source).await, before);
        refused
    };
    let used = to.make().await;
    used.put("something/else", "1".into()).await.expect("it can be written");
    let refused = refusal(&used).await;
    assert!(
        matches!(&refused, MigrationError::TargetInUse { key, .. } if key == "something/else"),
        "{refused}"
    );
    assert!(refused.to_string().contains("etcd://HOST/NAME/"), "{refused}");

    let others = to.make().await;
    Cluster::new(others.clone()).create(id(2)).await.expect("it is empty");
    let refused = refusal(&others).await;
    assert!(matches!(refused, MigrationError::TargetOfOther { found, .. } if found == id(2)), "{refused}");

    let copy = to.make().await;
    Cluster::new(copy.clone()).create(id(1)).await.expect("it is empty");
    let refused = refusal(&copy).await;
    assert!(matches!(refused, MigrationError::Twice { .. }), "{refused}");

    // Another cluster is on its way there.
    let (other, awaited) = (from.make().await, to.make().await);
    Cluster::new(other.clone()).create(id(2)).await.expect("it is empty");
    let [one, two] = Broken::pair(&other, &awaited, 2, false);
    assert!(broke_off(&migrate(&one, &two).await));
    let refused = refusal(&awaited).await;
    assert!(matches!(refused, MigrationError::TargetAwaitsOther { .. }), "{refused}");
    // Nor can one be made there meanwhile, or started.
    let cluster = Cluster::new(awaited.clone());
    let made = cluster.create(id(3)).await.expect_err("a cluster is on its way");
    assert!(matches!(made, ClusterError::MovingIn { .. }), "{made}");
    assert!(made.to_string().contains("registry migrate"), "{made}");
    let refused = migrate(&awaited, &to.make().await).await.expect_err("it is not there yet");
    assert!(matches!(refused, MigrationError::Cluster(ClusterError::MovingIn { .. })), "{refused}");

    let empty = from.make().await;
    let refused = migrate(&empty, &to.make().await).await.expect_err("there is nothing to move");
    assert!(matches!(refused, MigrationError::Cluster(ClusterError::NoCluster)), "{refused}");

    // Where it left for is not what is named now, or is not what it was.
    let (right, wrong) = (to.make().await, to.make().await);
    while lives_in(&source).await {
        // The beginning, and one thing more.
        let [one, two] = Broken::pair(&source, &right, 2, true);
        assert!(broke_off(&migrate(&one, &two).await));
    }
    let elsewhere = Migration::new(&*source, "the source", &*wrong, "another target");
    let refused = elsewhere.run().await.expect_err("it left for the other one");
    assert!(matches!(refused, MigrationError::MovedElsewhere { .. }), "{refused}");
    let refused = migrate(&source, &wrong).await.expect_err("the other one is gone");
    assert!(matches!(refused, MigrationError::TargetLost { .. }), "{refused}");
    assert!(refused.to_string().contains("--target-is-lost"), "{refused}");
    let refused = cancel(&source, &wrong).await.expect_err("nobody knows whether it arrived");
    assert!(matches!(refused, MigrationError::TargetLost { .. }), "{refused}");
    assert!(!lives_in(&source).await);
    assert_eq!(reclaim(&*source).await.expect("a person says so"), id(1));
    assert_eq!(content(&source).await, before);
    migrate(&source, &wrong).await.expect("it can be moved now");
    assert_eq!(content(&wrong).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_two_of_this_machine() {
    let maker = Maker::embedded();
    breaks_off_anywhere(&maker, &maker).await;
    crawls(&maker, &maker).await;
    there_and_back(&maker, &maker).await;
    leaves_alone_what_is_anothers(&maker, &maker).await;
    is_changed_meanwhile(&maker, &maker).await;
    is_refused_where_something_is(&maker, &maker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_this_machine_to_etcd() {
    let (from, to) = (Maker::embedded(), Maker::etcd());
    breaks_off_anywhere(&from, &to).await;
    crawls(&from, &to).await;
    there_and_back(&from, &to).await;
    leaves_alone_what_is_anothers(&from, &to).await;
    is_changed_meanwhile(&from, &to).await;
    is_refused_where_something_is(&from, &to).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_etcd_to_this_machine() {
    let (from, to) = (Maker::etcd(), Maker::embedded());
    breaks_off_anywhere(&from, &to).await;
    crawls(&from, &to).await;
    is_changed_meanwhile(&from, &to).await;
    is_refused_where_something_is(&from, &to).await;
}
