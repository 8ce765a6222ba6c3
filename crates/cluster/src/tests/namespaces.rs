//! Names in several places: what each leads to, what older programs leave, and what comes at the same moment.

use super::*;
use crate::testing::cluster_of;
use crate::{WantedSchedule, WantedSnapshot};
use async_trait::async_trait;
use base::map::{NamespaceInfo, Trashed, VolumeInfo};
use base::{Access, Permission, Principal, PublicKey, Rights, VolumeId};
use registry::implement::{Answer, Caller, Request, perform};
use registry::{Revision, Watch};
use std::pin::Pin;
use std::sync::Mutex;

const MIB: u64 = 1 << 20;

type Meanwhile = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A registry in which something else happens before the next transaction that changes something.
struct Interrupted {
    registry: Arc<dyn Registry>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

#[async_trait]
impl Caller for Interrupted {
    fn place(&self) -> String {
        "a test".to_owned()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        let changes = |operation: &Operation| !matches!(operation, Operation::Get { .. });
        if matches!(&request, Request::Txn(txn) if txn.then.iter().any(changes)) {
            let meanwhile = self.meanwhile.lock().unwrap().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile.await;
            }
        }
        perform(&*self.registry, request).await
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        self.registry.watch(&prefix, start).await
    }
}

/// Pools `p`, `q` and `r`, and the namespaces `n` and `m` in the first one.
async fn pools() -> Cluster {
    let cluster = cluster_of(2, 4).await;
    for pool in ["q", "r"] {
        cluster.create_pool(pool, 2, 1, 4).await.unwrap();
    }
    for namespace in ["n", "m"] {
        cluster.create_namespace("p", namespace).await.unwrap();
    }
    cluster
}

async fn create(cluster: &Cluster, name: &str) -> VolumeId {
    let pool = name.split_once('/').map_or("p", |(pool, _)| pool);
    cluster.create_volume(name, pool, MIB).await.unwrap()
}

async fn id_of(cluster: &Cluster, name: &str) -> Result<VolumeId, ClusterError> {
    cluster.find_volume(name).await.map(|(id, ..)| id)
}

async fn bare(cluster: &Cluster, name: &str) -> Option<VolumeId> {
    cluster.read::<VolumeId>(&keys::volume_name(name)).await.unwrap().value
}

/// That each volume is found by its name and by no other's, and that older programs find one of each name and make none of these.
async fn check(cluster: &Cluster) {
    let map = cluster.map().await.unwrap();
    let listed: Vec<(VolumeId, &VolumeInfo)> =
        map.volumes.iter().filter(|(_, info)| info.is_listed()).map(|(id, info)| (*id, info)).collect();
    for (id, info) in &listed {
        let name = map.full_name(info);
        assert_eq!(id_of(cluster, &name).await.unwrap(), *id, "{name}");
        assert_eq!(map.find_volume(&name).map(|(id, _)| id).ok(), Some(*id), "{name}");
        let by_key = id_of(cluster, &info.name).await.ok();
        assert_eq!(
            map.find_volume(&info.name).map(|(id, _)| id).ok(),
            by_key,
            "both look by one rule: {name}"
        );
        if info.namespace.is_empty() {
            let leads = bare(cluster, &info.name).await.expect("a name of a default namespace is taken");
            assert_eq!(map.volumes[&leads].name, info.name);
        }
    }
    for prefix in ["millpond/volume-name/", "millpond/volume-name-in/"] {
        let claims: Vec<(String, VolumeId)> = cluster.read_all(prefix).await.unwrap();
        for (key, id) in claims {
            let info = &map.volumes[&id];
            let is_one_of_its = [
                keys::volume_name(&info.name),
                keys::volume_name_beside(&info.name, info.pool),
                keys::volume_name_in(info.pool, &info.namespace, &info.name),
            ]
            .contains(&key);
            assert!(is_one_of_its && info.is_listed(), "{key} leads to {id}, {info:?}");
        }
    }
    let claims = ["millpond/volume-name/", "millpond/volume-name-in/"];
    let count = async |prefix| cluster.read_all::<VolumeId>(prefix).await.unwrap().len();
    assert_eq!(count(claims[0]).await + count(claims[1]).await, listed.len(), "each has one");
}

#[tokio::test]
async fn a_name_is_unique_in_its_place_and_a_bare_one_is_never_guessed_at() {
    let cluster = pools().await;
    let names = ["p/v", "q/v", "p/n/v", "p/m/v", "q/w", "p/n/x"];
    let mut ids = Vec::new();
    for name in names {
        ids.push(create(&cluster, name).await);
        check(&cluster).await;
        let pool = name.split('/').next().unwrap();
        let again = cluster.create_volume(name, pool, MIB).await.unwrap_err();
        assert!(matches!(again, ClusterError::VolumeExists { .. }), "{again}");
    }
    let error = id_of(&cluster, "v").await.unwrap_err();
    assert!(matches!(&error, ClusterError::AmbiguousName { all, .. } if *all == ["p/v", "q/v"]), "{error}");
    for refused in [
        cluster.remove_volume("v").await.map(drop),
        cluster.trash_volume("v", Trashed::default()).await.map(drop),
        cluster.resize_volume("v", 2 * MIB, false).await,
        cluster.rename_volume("v", "y").await,
    ] {
        assert!(matches!(refused, Err(ClusterError::AmbiguousName { .. })), "{refused:?}");
    }
    assert_eq!(id_of(&cluster, "w").await.unwrap(), ids[4], "it is the only one");
    for missing in ["x", "p/w", "q/n/v", "p/n/w", "p/o/v"] {
        let error = id_of(&cluster, missing).await.unwrap_err();
        assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{missing}: {error}");
    }
    assert!(matches!(id_of(&cluster, "s/v").await, Err(ClusterError::NoSuchPool { .. })));
    assert!(matches!(id_of(&cluster, "p//v").await, Err(ClusterError::NoName(_))));
    // One goes, and the name is the other's alone.
    cluster.rename_volume("p/v", "y").await.unwrap();
    check(&cluster).await;
    assert_eq!(id_of(&cluster, "v").await.unwrap(), ids[1]);
    assert_eq!(bare(&cluster, "v").await, Some(ids[1]));
    cluster.rename_volume("p/y", "p/v").await.unwrap();
    assert_eq!(bare(&cluster, "v").await, Some(ids[1]), "who comes second is beside it");
    cluster.trash_volume("q/v", Trashed::default()).await.unwrap();
    check(&cluster).await;
    assert_eq!(id_of(&cluster, "v").await.unwrap(), ids[0]);
    cluster.restore_volume(ids[1], None).await.unwrap();
    check(&cluster).await;
    cluster.remove_volume("p/v").await.unwrap();
    cluster.remove_volume("p/n/v").await.unwrap();
    check(&cluster).await;
    assert_eq!(id_of(&cluster, "p/m/v").await.unwrap(), ids[3]);
    create(&cluster, "p/n/v").await;
    create(&cluster, "r/v").await;
    create(&cluster, "p/v").await;
    check(&cluster).await;
    for name in ["r/v", "q/v", "p/v"] {
        cluster.remove_volume(name).await.unwrap();
        check(&cluster).await;
    }
    assert_eq!(bare(&cluster, "v").await, None);
}

#[tokio::test]
async fn what_has_a_name_that_no_other_pool_has_is_written_as_before_there_were_namespaces() {
    let cluster = cluster_of(2, 4).await;
    let id = create(&cluster, "v").await;
    let entries = cluster.registry.range("millpond/").await.unwrap().entries;
    let of = |key: &str| {
        let found = entries.iter().find(|entry| entry.key == key);
        String::from_utf8(found.unwrap().value.as_bytes().to_vec()).unwrap()
    };
    assert_eq!(of("millpond/volume-name/v"), "1");
    assert_eq!(
        of("millpond/map/volume/1"),
        r#"{"name":"v","pool":1,"bytes":1048576,"generation":0,"removed":false}"#
    );
    let speak_of_it =
        entries.iter().filter(|entry| entry.key.contains("name")).map(|entry| entry.key.as_str());
    assert_eq!(speak_of_it.collect::<Vec<_>>(), ["millpond/pool-name/p", "millpond/volume-name/v"]);
    // It is found, unique, renamed and removed.
    assert_eq!(id_of(&cluster, "p/v").await.unwrap(), id);
    cluster.create_pool("q", 2, 1, 4).await.unwrap();
    create(&cluster, "q/v").await;
    let taken = cluster.create_volume("v", "p", MIB).await.unwrap_err();
    assert!(matches!(taken, ClusterError::VolumeExists { .. }), "{taken}");
    cluster.rename_volume("p/v", "w").await.unwrap();
    cluster.remove_volume("w").await.unwrap();
    check(&cluster).await;
}

#[tokio::test]
async fn what_older_programs_leave_is_found_and_stays_unique() {
    let cluster = pools().await;
    let first = create(&cluster, "p/v").await;
    let second = create(&cluster, "q/v").await;
    // One removes the first, and hands nothing on.
    let info = VolumeInfo { removed: true, ..cluster.map().await.unwrap().volumes[&first].clone() };
    let put = Operation::put(keys::volume(first), encode(&info));
    cluster.perform_all([put, Operation::delete(keys::volume_name("v"))]).await.unwrap();
    assert_eq!(id_of(&cluster, "v").await.unwrap(), second);
    assert_eq!(id_of(&cluster, "q/v").await.unwrap(), second);
    let taken = cluster.create_volume("q/v", "q", MIB).await.unwrap_err();
    assert!(matches!(taken, ClusterError::VolumeExists { .. }), "{taken}");
    create(&cluster, "p/v").await;
    check(&cluster).await;
    // One changes a volume of a namespace, knowing nothing of that.
    let spaced = create(&cluster, "p/n/v").await;
    let entry = cluster.registry.get(&keys::volume(spaced)).await.unwrap().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(entry.value.as_bytes()).unwrap();
    assert_eq!(record["name"], "n/v", "which is a name that it makes for none");
    record["generation"] = 7.into();
    cluster.perform_all([Operation::put(keys::volume(spaced), encode(&record))]).await.unwrap();
    let (found, _, info) = cluster.find_volume("p/n/v").await.unwrap();
    assert_eq!((found, info.namespace.as_str(), info.generation.0), (spaced, "n", 7));
    check(&cluster).await;
}

#[tokio::test]
async fn a_namespace_is_removed_when_nothing_is_in_it_and_no_key_is_for_it() {
    let cluster = pools().await;
    for (pool, name, is_meant) in [
        (
            "p",
            "n",
            matches!(cluster.create_namespace("p", "n").await, Err(ClusterError::NamespaceExists { .. })),
        ),
        ("s", "n", matches!(cluster.create_namespace("s", "n").await, Err(ClusterError::NoSuchPool { .. }))),
        (
            "p",
            "a/b",
            matches!(cluster.create_namespace("p", "a/b").await, Err(ClusterError::NameInvalid { .. })),
        ),
        ("p", "", matches!(cluster.create_namespace("p", "").await, Err(ClusterError::NameInvalid { .. }))),
        (
            "q",
            "n",
            matches!(cluster.remove_namespace("q", "n").await, Err(ClusterError::NoSuchNamespace { .. })),
        ),
    ] {
        assert!(is_meant, "{pool}/{name}");
    }
    let map = cluster.map().await.unwrap();
    assert_eq!(map.namespaces[&base::PoolId(1)].keys().collect::<Vec<_>>(), ["m", "n"]);
    let in_use = async |words: &str| {
        let error = cluster.remove_namespace("p", "n").await.unwrap_err();
        assert!(matches!(error, ClusterError::NamespaceInUse { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let id = create(&cluster, "p/n/v").await;
    create(&cluster, "p/m/w").await;
    in_use("1 volumes, v").await;
    cluster.trash_volume("p/n/v", Trashed::default()).await.unwrap();
    in_use("v (in the trash)").await;
    let generation = cluster.map().await.unwrap().volumes[&id].generation;
    cluster.purge_volume(id, generation).await.unwrap();
    cluster.add_principal("k", &for_namespace("n")).await.unwrap();
    let error = cluster.remove_namespace("p", "n").await.unwrap_err();
    assert!(matches!(error, ClusterError::NamespaceHasKeys { .. }), "{error}");
    assert!(error.to_string().contains("auth rm k"), "{error}");
    cluster.remove_principal("k").await.unwrap();
    cluster.remove_namespace("p", "n").await.unwrap();
    let error = cluster.create_volume("p/n/v", "p", MIB).await.unwrap_err();
    assert!(error.to_string().contains("millpond namespace create p/n"), "{error}");
    let error = cluster.add_principal("k", &for_namespace("n")).await.unwrap_err();
    assert!(matches!(error, ClusterError::AccessInvalid { .. }), "{error}");
    // A pool goes when it has none.
    cluster.create_namespace("q", "n").await.unwrap();
    let error = cluster.remove_pool("q").await.unwrap_err().to_string();
    assert!(error.contains("namespace rm q/n"), "{error}");
    cluster.remove_namespace("q", "n").await.unwrap();
    cluster.remove_pool("q").await.unwrap();
    // What a pool that goes leaves behind is of no other.
    let left = [Operation::put(keys::namespace(base::PoolId(2), "n"), encode(&NamespaceInfo::default()))];
    cluster.perform_all(left).await.unwrap();
    assert!(!cluster.map().await.unwrap().namespaces.contains_key(&base::PoolId(2)));
}

fn for_namespace(name: &str) -> Principal {
    let named = [(name.to_owned(), Permission::Manage)].into();
    let namespaces = [(base::PoolId(1), named)].into();
    Principal::new(PublicKey([3; 32]), Access::Pools(Rights { namespaces, ..Rights::default() }))
}

#[tokio::test]
async fn a_key_is_for_so_many_namespaces_as_one_transaction_takes() {
    let cluster = pools().await;
    let names: Vec<String> = (0..33).map(|number| format!("n{number}")).collect();
    for name in &names {
        cluster.create_namespace("p", name).await.unwrap();
    }
    let access = |count: usize| {
        let named = names[..count].iter().map(|name| (name.clone(), Permission::Read)).collect();
        let namespaces = [(base::PoolId(1), named)].into();
        Principal::new(PublicKey([3; 32]), Access::Pools(Rights { namespaces, ..Rights::default() }))
    };
    let error = cluster.add_principal("k", &access(33)).await.unwrap_err();
    assert!(matches!(error, ClusterError::AccessInvalid { .. }), "{error}");
    cluster.add_principal("k", &access(32)).await.unwrap();
}

/// What happens, what happens meanwhile, and what comes of it: none if it is done.
type Case = (&'static str, &'static str, Option<&'static str>);

async fn perform_named(cluster: &Cluster, what: &str) -> Result<(), ClusterError> {
    let words: Vec<&str> = what.split(' ').collect();
    let place = |at: usize| words[at].split_once('/').unwrap();
    match words[0] {
        "create" => cluster.create_volume(words[1], words[1].split('/').next().unwrap(), MIB).await.map(drop),
        "remove" => cluster.remove_volume(words[1]).await.map(drop),
        "rename" => cluster.rename_volume(words[1], words[2]).await,
        "trash" => cluster.trash_volume(words[1], Trashed::default()).await.map(drop),
        "restore" => {
            let map = cluster.map().await.unwrap();
            let (id, ..) = map.trash().next().unwrap();
            cluster.restore_volume(id, None).await
        }
        "clone" => cluster.clone_volume(words[1], "s", words[2]).await.map(drop),
        "make" => cluster.create_namespace(place(1).0, place(1).1).await,
        "unmake" => cluster.remove_namespace(place(1).0, place(1).1).await,
        "unpool" => cluster.remove_pool(words[1]).await,
        "admit" => cluster.add_principal("k", &for_namespace(words[1])).await,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_comes_at_the_same_moment_is_noticed() {
    let cases: &[Case] = &[
        ("unmake p/n", "create p/n/x", Some("still holds")),
        ("create p/n/x", "unmake p/n", Some("no namespace p/n")),
        ("unmake p/n", "clone p/v p/n/x", Some("still holds")),
        ("clone p/v p/n/x", "unmake p/n", Some("no namespace p/n")),
        ("unmake p/n", "admit n", Some("auth rm k")),
        ("admit n", "unmake p/n", Some("has no namespace n")),
        ("unpool r", "make r/n", Some("namespace rm r/n")),
        ("make r/n", "unpool r", Some("no pool r")),
        ("create q/new", "create q/new", Some("volume new already")),
        ("create q/v", "create q/v", Some("volume v already")),
        ("create p/n/x", "create p/n/x", Some("volume p/n/x already")),
        ("rename p/w q", "create p/q", Some("volume q already")),
        ("rename p/w v2", "create q/v2", None),
        ("remove p/w", "create q/w", None),
        ("create q/w", "remove p/w", None),
        ("create q/w", "rename p/w w2", None),
        ("create q/w", "trash p/w", None),
        ("trash p/w", "create q/w", None),
        ("rename p/w w2", "create r/w", None),
        ("restore", "create p/lies", Some("volume lies already")),
        ("restore", "create q/lies", None),
        ("create p/lies", "restore", Some("volume lies already")),
        // Three of a name: of two that leave, each may have been whose it becomes.
        ("remove p/t", "remove q/t", None),
        ("remove q/t", "remove p/t", None),
        ("remove p/t", "rename q/t t2", None),
        ("remove r/t", "remove p/t", None),
        ("trash p/t", "trash r/t", None),
        ("rename p/t t2", "rename q/t t2", None),
    ];
    for (what, meanwhile, words) in cases {
        let alone = pools().await;
        for name in ["p/v", "p/w", "p/lies", "p/t", "q/t", "r/t"] {
            if !(name == "r/t" && (what.contains(" r") || meanwhile.starts_with("unpool")))
                || what.contains("r/t")
            {
                create(&alone, name).await;
            }
        }
        let wanted = WantedSnapshot { volume: "p/v".to_owned(), name: "s".to_owned() };
        alone.take_snapshots(&[wanted], 5).await.unwrap();
        alone.trash_volume("p/lies", Trashed::default()).await.unwrap();
        let (other, said) = (alone.clone(), (*meanwhile).to_owned());
        let happens: Meanwhile = Box::pin(async move { perform_named(&other, &said).await.unwrap() });
        let interrupted =
            Arc::new(Interrupted { registry: alone.registry.clone(), meanwhile: Mutex::new(Some(happens)) });
        let cluster = Cluster::new(interrupted.clone());
        let done = perform_named(&cluster, what).await;
        assert!(interrupted.meanwhile.lock().unwrap().is_none(), "{what}, {meanwhile}");
        match words {
            None => done.unwrap_or_else(|error| panic!("{what}, {meanwhile}: {error}")),
            Some(words) => {
                let error = done.expect_err(what).to_string();
                assert!(error.contains(words), "{what}, {meanwhile}: {error}");
            }
        }
        check(&alone).await;
    }
}

#[tokio::test]
async fn schedules_and_clones_are_of_volumes_by_their_full_names() {
    let cluster = pools().await;
    let mut ids = Vec::new();
    for name in ["p/v", "q/v", "p/n/v"] {
        ids.push(create(&cluster, name).await);
    }
    let wanted = |names: &[&str]| WantedSchedule {
        volumes: names.iter().map(|name| (*name).to_owned()).collect(),
        every: "1h".parse().unwrap(),
        keep: "1 last".parse().unwrap(),
    };
    let error = cluster.create_schedule("s", wanted(&["v"]), 0).await.unwrap_err();
    assert!(matches!(error, ClusterError::AmbiguousName { .. }), "{error}");
    let made = cluster.create_schedule("s", wanted(&["p/v", "q/v", "p/n/v"]), 0).await.unwrap();
    assert_eq!(made.volumes, ids);
    let without = |name: &str| crate::ScheduleChange { remove: vec![name.to_owned()], ..Default::default() };
    let error = cluster.change_schedule("s", &without("v"), 0).await.unwrap_err();
    assert!(matches!(error, ClusterError::AmbiguousName { .. }), "{error}");
    let changed = cluster.change_schedule("s", &without("p/n/v"), 0).await.unwrap();
    assert_eq!(changed.volumes, ids[..2]);
    let changed = cluster.change_schedule("s", &without("q/v"), 0).await.unwrap();
    assert_eq!(changed.volumes, ids[..1]);

    for name in ["p/v", "p/n/v"] {
        let wanted = WantedSnapshot { volume: name.to_owned(), name: "s".to_owned() };
        cluster.take_snapshots(&[wanted], 5).await.unwrap();
    }
    // A bare name is beside what it is made of.
    for (of, name, full) in
        [("p/v", "c", "p/c"), ("p/n/v", "c", "p/n/c"), ("p/n/v", "p/d", "p/d"), ("p/v", "p/m/c", "p/m/c")]
    {
        let clone = cluster.clone_volume(of, "s", name).await.unwrap();
        let map = cluster.map().await.unwrap();
        assert_eq!(map.full_name(&map.volumes[&clone]), full);
    }
    let error = cluster.clone_volume("p/v", "s", "q/c").await.unwrap_err();
    assert!(matches!(error, ClusterError::OtherPool { .. }), "{error}");
    assert!(error.to_string().contains("volume export"), "{error}");
    check(&cluster).await;
}
