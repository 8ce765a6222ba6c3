//! Who may change volumes, and which: every change with every key.

use super::*;
use crate::{
    ChangeVolumes, Changed, Clerk, GroupChange, Groups, Metadata, PlaceMetadata, Visitor, VolumeChange,
};
use async_trait::async_trait;
use base::map::{SnapshotInfo, VolumeInfo};
use base::{Access, Permission, Principal, PublicKey, Rights, VolumeId};
use registry::implement::{Answer, Caller, Request, perform};
use registry::{MemoryRegistry, Revision, Watch};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const OURS: PoolId = PoolId(1);
const THEIRS: PoolId = PoolId(2);

/// A registry that counts what it is asked, and from which the key `host` is removed before one of the transactions to come.
struct Interrupted {
    registry: Arc<dyn Registry>,
    /// Transactions until then; none: it is not removed.
    until: Mutex<Option<usize>>,
    requests: AtomicU64,
}

#[async_trait]
impl Caller for Interrupted {
    fn place(&self) -> String {
        "a test".to_owned()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let changes = |operation: &Operation| !matches!(operation, Operation::Get { .. });
        if matches!(&request, Request::Txn(txn) if txn.then.iter().any(changes)) {
            let now = {
                let mut until = self.until.lock().unwrap();
                let now = *until == Some(0);
                *until = until.and_then(|left| left.checked_sub(1));
                now
            };
            if now {
                self.registry.delete(&keys::principal("host")).await?;
            }
        }
        perform(&*self.registry, request).await
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        self.registry.watch(&prefix, start).await
    }
}

/// A cluster with the same volumes in each of two pools and of two namespaces of the first one, and the volumes in the trash of
/// each.
struct Two {
    cluster: Cluster,
    interrupted: Arc<Interrupted>,
    trashed: BTreeMap<&'static str, VolumeId>,
}

/// The places.
const PLACES: [&str; 4] = ["ours", "theirs", "ours/mine", "ours/other"];

/// What a volume of a place is called: in pools by names that lead to it from everywhere.
fn named(place: &str, name: &str) -> String {
    if place.contains('/') { format!("{place}/{name}") } else { format!("{place}-{name}") }
}

impl Two {
    async fn new() -> Two {
        let registry: Arc<dyn Registry> = Arc::new(MemoryRegistry::new());
        let (until, requests) = (Mutex::new(None), AtomicU64::new(0));
        let interrupted = Arc::new(Interrupted { registry, until, requests });
        let cluster = Cluster::new(interrupted.clone());
        cluster.create(ClusterId::default()).await.unwrap();
        for node in 0..2u32 {
            let uuid = OsdUuid::from_bytes([node as u8 + 1; 16]);
            cluster.register_osd(uuid, NodeId(node), 8 << 30, DeviceClass::Ssd).await.unwrap();
        }
        let mut trashed = BTreeMap::new();
        for (pool, id) in [("ours", OURS), ("theirs", THEIRS)] {
            let info =
                PoolInfo { name: pool.into(), size: 2, min_size: 1, pg_count: 4, ..PoolInfo::default() };
            assert_eq!(cluster.create_pool_by(&info).await.unwrap(), id);
            cluster.create_namespace(pool, "empty").await.unwrap();
        }
        for place in PLACES {
            let named = |name: &str| named(place, name);
            let pool = place.split('/').next().unwrap();
            if let Some((_, namespace)) = place.split_once('/') {
                cluster.create_namespace(pool, namespace).await.unwrap();
            }
            for name in ["v", "w", "lies", "held"] {
                cluster.create_volume(&named(name), pool, MIB).await.unwrap();
            }
            let wanted = WantedSnapshot { volume: named("v"), name: "s".to_owned() };
            cluster.take_snapshots(&[wanted], 5).await.unwrap();
            cluster.clone_volume(&named("v"), "s", &named("clone")).await.unwrap();
            cluster.set_metadata(&named("v"), "k", "noted").await.unwrap();
            cluster.set_place_metadata(place, "k", "noted").await.unwrap();
            let group = format!("{place}/g");
            cluster.change_group(&group, GroupChange::Create).await.unwrap();
            let lease = cluster.registry().lease_grant(Duration::from_secs(3600)).await.unwrap().id;
            let holder = "somebody".to_owned();
            cluster.attach(&named("held"), ClientId(7), lease, false, holder).await.unwrap();
            let wanted = WantedSnapshot { volume: named("w"), name: "s".to_owned() };
            cluster.take_snapshots(&[wanted], 5).await.unwrap();
            let lies = cluster.trash_volume(&named("lies"), Default::default()).await.unwrap();
            trashed.insert(place, lies);
        }
        Two { cluster, interrupted, trashed }
    }

    /// Who answers whoever has a key of that name with that access.
    async fn clerk(&self, name: &str, access: Access) -> Clerk {
        let key = PublicKey(std::array::from_fn(|at| name.as_bytes().get(at).copied().unwrap_or(0)));
        let principal = Principal::new(key, access);
        self.cluster.put_principal(name, &principal).await.unwrap();
        Clerk::for_visitor(self.cluster.clone(), Arc::new(Visitor::new(name.into(), principal)))
    }

    async fn of_pools(&self, name: &str, pools: &[(PoolId, Permission)]) -> Clerk {
        self.clerk(name, Access::Pools(pools.iter().copied().collect())).await
    }

    /// Somebody who may do that in namespaces of the first pool.
    async fn of_namespaces(&self, name: &str, named: &[(&str, Permission)]) -> Clerk {
        let named = named.iter().map(|(name, permission)| ((*name).to_owned(), *permission)).collect();
        let namespaces = [(OURS, named)].into();
        self.clerk(name, Access::Pools(Rights { namespaces, ..Rights::default() })).await
    }

    /// Volumes that are not of a place, and their snapshots.
    async fn beside(&self, place: &str) -> BTreeMap<VolumeId, (VolumeInfo, Vec<SnapshotInfo>)> {
        let map = self.cluster.map().await.unwrap();
        let others = map.volumes.iter().filter(|(_, info)| map.place_of(info).to_string() != place);
        let snapshots = |id| map.snapshots_of(id).map(|(_, info)| info.clone()).collect();
        others.map(|(id, info)| (*id, (info.clone(), snapshots(*id)))).collect()
    }

    /// All that the registry holds.
    async fn all(&self) -> Vec<KeyValue> {
        self.cluster.registry().range("").await.unwrap().entries
    }

    /// Every change that there is, of volumes of that place: each is done if it may be.
    fn changes(&self, place: &'static str) -> Vec<VolumeChange> {
        use VolumeChange as To;
        let named = |name: &str| named(place, name);
        let pool = place.split('/').next().unwrap();
        let (id, [v, w]) = (self.trashed[place], ["v", "w"].map(named));
        let (s, new) = ("s".to_owned(), named("new"));
        let snapshot = "new".to_owned();
        let wanted = vec![WantedSnapshot { volume: v.clone(), name: snapshot.clone() }];
        let changes = vec![
            To::Create { name: new.clone(), pool: pool.to_owned(), bytes: MIB, notes: BTreeMap::new() },
            To::Resize { name: v.clone(), bytes: MIB / 2, allow_shrink: true },
            To::Rename { name: v.clone(), new: new.clone() },
            To::Remove { name: w.clone() },
            To::Trash {
                name: w.clone(),
                at_unix_seconds: 5,
                keep_seconds: None,
                guarded_until_unix_seconds: None,
            },
            To::Restore { id, name: None },
            To::Purge { id, generation: Generation(1) },
            To::Clone { volume: v.clone(), snapshot: s.clone(), name: new.clone(), notes: BTreeMap::new() },
            To::Flatten { name: named("clone"), is_wanted: true },
            To::RollBack { volume: v.clone(), snapshot: s.clone() },
            To::TakeSnapshots { wanted, at_unix_seconds: 5 },
            To::RenameSnapshot { volume: v.clone(), name: s.clone(), new: snapshot },
            To::ProtectSnapshot { volume: v.clone(), name: s.clone(), protected: true },
            To::RemoveSnapshots { volume: w, names: BTreeSet::from([s]) },
            To::SetMetadata { volume: v.clone(), key: "new".to_owned(), value: "text".to_owned() },
            To::RemoveMetadata { volume: v.clone(), key: "k".to_owned() },
            To::SetPlaceMetadata { place: place.to_owned(), key: "new".to_owned(), value: "text".to_owned() },
            To::RemovePlaceMetadata { place: place.to_owned(), key: "k".to_owned() },
            To::Group { name: format!("{place}/new"), change: GroupChange::Create },
            To::Group {
                name: format!("{place}/g"),
                change: GroupChange::TakeSnapshot { name: "new".to_owned(), at_unix_seconds: 5 },
            },
            To::Group { name: format!("{place}/g"), change: GroupChange::Add { volume: v } },
            To::TakeAway { volume: named("held"), generation: Generation(1) },
            To::CreateNamespace { pool: pool.to_owned(), name: "new".to_owned() },
            To::RemoveNamespace { pool: pool.to_owned(), name: "empty".to_owned() },
        ];
        // Whoever adds a change adds it here.
        for change in &changes {
            match change {
                To::Create { .. } | To::Resize { .. } | To::Rename { .. } | To::Remove { .. } => {}
                To::Trash { .. } | To::Restore { .. } | To::Purge { .. } | To::Clone { .. } => {}
                To::Flatten { .. } | To::RollBack { .. } | To::TakeSnapshots { .. } => {}
                To::RenameSnapshot { .. } | To::ProtectSnapshot { .. } | To::RemoveSnapshots { .. } => {}
                To::SetMetadata { .. } | To::RemoveMetadata { .. } => {}
                To::SetPlaceMetadata { .. } | To::RemovePlaceMetadata { .. } => {}
                To::Group { .. } | To::TakeAway { .. } => {}
                To::CreateNamespace { .. } | To::RemoveNamespace { .. } => {}
            }
        }
        changes
    }
}

/// What is said to whom a change is refused who is not for the place that it is about.
fn words_of_strangers(change: &VolumeChange, place: &str) -> String {
    use VolumeChange as To;
    let what = if place.contains('/') { "namespace" } else { "pool" };
    match change {
        To::Create { .. }
        | To::SetPlaceMetadata { .. }
        | To::RemovePlaceMetadata { .. }
        | To::Group { .. } => {
            format!("does not make volumes in {what} {place}")
        }
        To::CreateNamespace { .. } | To::RemoveNamespace { .. } => "does not make or remove".to_owned(),
        To::Restore { .. } | To::Purge { .. } => "no pool that its key is for".to_owned(),
        _ if place.contains('/') => "no pool that its key is for".to_owned(),
        _ => NOT_THERE.to_owned(),
    }
}

/// What is said of a bare name that leads to nothing where a key is for.
const NOT_THERE: &str = "there is no volume";

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(done: Result<T, ClusterError>, words: &str, what: &VolumeChange) {
    match done {
        Err(error @ ClusterError::NoSuchVolume { .. }) if words == NOT_THERE => {
            assert!(error.to_string().contains(words), "{what:?}: {error}");
        }
        done => assert_forbidden(done, words, what),
    }
}

#[track_caller]
fn assert_forbidden<T: std::fmt::Debug>(done: Result<T, ClusterError>, words: &str, what: &VolumeChange) {
    match done {
        Err(ClusterError::Registry(RegistryError::Forbidden { reason, .. })) => {
            assert!(reason.contains(words), "{what:?}: {reason}");
        }
        other => panic!("{what:?}: {other:?} is not forbidden"),
    }
}

#[tokio::test(start_paused = true)]
async fn each_change_is_made_by_who_manages_its_pool_and_by_nobody_else() {
    use Permission::{Manage, Read, ReadWrite};
    let count = Two::new().await.changes("ours").len();
    for index in 0..count {
        let two = Two::new().await;
        let change = two.changes("ours")[index].clone();
        let foreign = words_of_strangers(&change, "ours");
        let beside = match change {
            // It may read what a clone is made of.
            VolumeChange::Create { .. }
            | VolumeChange::Clone { .. }
            | VolumeChange::SetPlaceMetadata { .. }
            | VolumeChange::RemovePlaceMetadata { .. }
            | VolumeChange::Group { .. } => "does not make volumes in pool ours",
            VolumeChange::CreateNamespace { .. } | VolumeChange::RemoveNamespace { .. } => &foreign,
            _ => "does not change volume",
        };
        let refused = [
            (two.of_pools("reader", &[(OURS, Read)]).await, "--manage"),
            (two.of_pools("writer", &[(OURS, ReadWrite)]).await, "--manage"),
            (two.of_pools("stranger", &[(THEIRS, Manage)]).await, foreign.as_str()),
            (two.of_namespaces("guest", &[("mine", Manage)]).await, foreign.as_str()),
            (two.of_pools("beside", &[(OURS, ReadWrite), (THEIRS, Manage)]).await, beside),
            (two.of_pools("nobody", &[(THEIRS, ReadWrite)]).await, "--manage"),
            (two.clerk("monitor", Access::Monitor).await, "to ask how the cluster is"),
            (two.clerk("node", Access::Node(NodeId(0))).await, ""),
        ];
        let host = two.of_pools("host", &[(OURS, Manage)]).await;
        let before = two.all().await;
        for (clerk, words) in refused {
            assert_refused(clerk.ask(ChangeVolumes { change: change.clone() }).await, words, &change);
            assert_eq!(two.all().await, before, "{change:?}");
        }
        let theirs = two.changes("theirs")[index].clone();
        assert!(host.ask(ChangeVolumes { change: theirs.clone() }).await.is_err(), "{theirs:?}");
        assert_eq!(two.all().await, before, "{theirs:?}");
        // And by who may.
        let untouched = two.beside("ours").await;
        let done = host.ask(ChangeVolumes { change: change.clone() }).await;
        let done = done.unwrap_or_else(|error| panic!("{change:?}: {error}"));
        assert_ne!(done, Changed::Nothing, "{change:?}");
        assert_ne!(two.all().await, before, "{change:?}");
        assert_eq!(two.beside("ours").await, untouched, "{change:?}");
        let owner = Clerk::of_owner(two.cluster.clone());
        let done = owner.ask(ChangeVolumes { change: theirs.clone() }).await;
        done.unwrap_or_else(|error| panic!("{theirs:?}: {error}"));
    }
}

#[tokio::test(start_paused = true)]
async fn whose_key_is_removed_before_a_change_is_committed_has_changed_nothing() {
    let count = Two::new().await.changes("ours").len();
    for index in 0..count {
        let two = Two::new().await;
        let change = two.changes("ours")[index].clone();
        // Of the snapshots the first transaction asks clients to stand still.
        let transactions = if matches!(change, VolumeChange::TakeSnapshots { .. }) { 2 } else { 1 };
        for at in 0..transactions {
            let before = two.all().await;
            let host = two.of_pools("host", &[(OURS, Permission::Manage)]).await;
            *two.interrupted.until.lock().unwrap() = Some(at);
            let done = host.ask(ChangeVolumes { change: change.clone() }).await;
            assert_forbidden(done, "connect again", &change);
            assert!(two.interrupted.until.lock().unwrap().is_none(), "{change:?}");
            assert_eq!(two.all().await, before, "{change:?}");
            assert!(host.ask(ChangeVolumes { change: change.clone() }).await.is_err(), "{change:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_volumes_that_are_changed_together_all_must_be_managed() {
    let two = Two::new().await;
    let host = two.of_pools("host", &[(OURS, Permission::Manage)]).await;
    let before = two.all().await;
    let wanted = ["ours-v", "theirs-v"]
        .map(|volume| WantedSnapshot { volume: volume.to_owned(), name: "new".to_owned() });
    let change = VolumeChange::TakeSnapshots { wanted: wanted.to_vec(), at_unix_seconds: 5 };
    assert_refused(host.ask(ChangeVolumes { change: change.clone() }).await, NOT_THERE, &change);
    let in_full = ["ours-v", "theirs/theirs-v"]
        .map(|volume| WantedSnapshot { volume: volume.to_owned(), name: "new".to_owned() });
    let change = VolumeChange::TakeSnapshots { wanted: in_full.to_vec(), at_unix_seconds: 5 };
    let words = "no pool that its key is for";
    assert_forbidden(host.ask(ChangeVolumes { change: change.clone() }).await, words, &change);
    assert_eq!(two.all().await, before);
    let read = host.ask(Metadata { volume: "ours-v".to_owned() }).await.unwrap();
    assert_eq!(read["k"], "noted");
    assert_refused(host.ask(Metadata { volume: "theirs-v".to_owned() }).await, NOT_THERE, &change);
    let read = host.ask(PlaceMetadata { place: "ours".to_owned() }).await.unwrap();
    assert_eq!(read["k"], "noted");
    assert!(host.ask(Groups { place: "ours".to_owned() }).await.unwrap().contains_key("g"));
    for place in ["theirs", "nowhere", "theirs/nowhere"] {
        let place = place.to_owned();
        let words = "does not make volumes in";
        assert_forbidden(host.ask(PlaceMetadata { place: place.clone() }).await, words, &change);
        assert_forbidden(host.ask(Groups { place }).await, words, &change);
    }
    for volume in ["theirs/theirs-v", "theirs/nothing", "nowhere/theirs-v"] {
        // Whether it is there is not to be seen by what is said.
        assert_forbidden(host.ask(Metadata { volume: volume.to_owned() }).await, words, &change);
    }
    let writer = two.of_pools("writer", &[(OURS, Permission::ReadWrite)]).await;
    assert_forbidden(writer.ask(Metadata { volume: "ours-v".to_owned() }).await, "--manage", &change);
    // What is not there is told as what it is. What is called so elsewhere is in nobody's way.
    let gone = VolumeChange::Rename { name: "nowhere".to_owned(), new: "x".to_owned() };
    let gone = host.ask(ChangeVolumes { change: gone }).await;
    assert!(matches!(gone, Err(ClusterError::NoSuchVolume { .. })), "{gone:?}");
    let taken = VolumeChange::Rename { name: "ours-v".to_owned(), new: "ours-w".to_owned() };
    let taken = host.ask(ChangeVolumes { change: taken }).await;
    assert!(matches!(taken, Err(ClusterError::VolumeExists { .. })), "{taken:?}");
    let free = VolumeChange::Rename { name: "ours-v".to_owned(), new: "theirs-v".to_owned() };
    host.ask(ChangeVolumes { change: free }).await.unwrap();
    assert_eq!(host.ask(Metadata { volume: "theirs-v".to_owned() }).await.unwrap(), read, "it is its own");
}

#[tokio::test(start_paused = true)]
async fn who_makes_snapshots_in_vain_asks_of_the_registry_what_a_key_may() {
    let two = Two::new().await;
    let host = two.of_pools("host", &[(OURS, Permission::Manage)]).await;
    let lease = two.cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
    for volume in ["ours-v", "ours-w"] {
        // It never says that it stands still.
        let client = ClientId(7);
        two.cluster.attach(volume, client, lease, false, "a deaf client".to_owned()).await.unwrap();
    }
    let asked = || two.interrupted.requests.load(Ordering::Relaxed);
    let (before, began) = (asked(), tokio::time::Instant::now());
    while began.elapsed().as_secs() < 30 {
        let wanted = ["ours-v", "ours-w"]
            .map(|volume| WantedSnapshot { volume: volume.to_owned(), name: "new".to_owned() });
        let change = VolumeChange::TakeSnapshots { wanted: wanted.to_vec(), at_unix_seconds: 5 };
        let refused = host.ask(ChangeVolumes { change }).await.unwrap_err();
        let is_meant = matches!(refused, ClusterError::NotStill { .. })
            || matches!(refused, ClusterError::Registry(RegistryError::Unreachable { .. }));
        assert!(is_meant, "{refused}");
    }
    // So many in a second, and what a key may ask at once after a silence.
    let most = 200 * began.elapsed().as_secs() + 400;
    assert!(asked() - before <= most, "{} of {most}", asked() - before);
}

#[tokio::test(start_paused = true)]
async fn each_change_in_a_namespace_is_made_by_who_manages_that_or_its_pool_and_by_nobody_else() {
    use Permission::{Manage, Read, ReadWrite};
    let of_pool = |change: &VolumeChange| {
        matches!(change, VolumeChange::CreateNamespace { .. } | VolumeChange::RemoveNamespace { .. })
    };
    let count = Two::new().await.changes("ours/mine").len();
    for index in 0..count {
        let two = Two::new().await;
        let change = two.changes("ours/mine")[index].clone();
        let foreign = words_of_strangers(&change, "ours/mine");
        let beside = match change {
            VolumeChange::Create { .. }
            | VolumeChange::Clone { .. }
            | VolumeChange::SetPlaceMetadata { .. }
            | VolumeChange::RemovePlaceMetadata { .. }
            | VolumeChange::Group { .. } => "does not make volumes in namespace ours/mine",
            _ if of_pool(&change) => &foreign,
            _ => "does not change volume",
        };
        let mut refused = vec![
            (two.of_namespaces("reader", &[("mine", Read)]).await, "--manage"),
            (two.of_namespaces("writer", &[("mine", ReadWrite)]).await, "--manage"),
            (two.of_namespaces("neighbour", &[("other", Manage)]).await, foreign.as_str()),
            (two.of_namespaces("beside", &[("mine", Read), ("other", Manage)]).await, beside),
            (two.of_pools("pool-reader", &[(OURS, Read)]).await, "--manage"),
            (two.of_pools("stranger", &[(THEIRS, Manage)]).await, foreign.as_str()),
        ];
        let host = two.of_namespaces("host", &[("mine", Manage)]).await;
        let pool = two.of_pools("pool", &[(OURS, Manage)]).await;
        if of_pool(&change) {
            refused.push((host.clone(), foreign.as_str()));
        }
        let before = two.all().await;
        for (clerk, words) in refused {
            assert_refused(clerk.ask(ChangeVolumes { change: change.clone() }).await, words, &change);
            assert_eq!(two.all().await, before, "{change:?}");
        }
        for other in ["ours", "theirs", "ours/other"] {
            let theirs = two.changes(other)[index].clone();
            assert!(host.ask(ChangeVolumes { change: theirs.clone() }).await.is_err(), "{theirs:?}");
            assert_eq!(two.all().await, before, "{theirs:?}");
        }
        let untouched = two.beside("ours/mine").await;
        let who = if of_pool(&change) || index % 2 == 0 { &pool } else { &host };
        if !of_pool(&change) {
            // Either of them may; whoever comes second finds it done.
            let done = host.ask(ChangeVolumes { change: change.clone() }).await;
            assert_ne!(
                done.unwrap_or_else(|error| panic!("{change:?}: {error}")),
                Changed::Nothing,
                "{change:?}"
            );
        }
        let again = who.ask(ChangeVolumes { change: change.clone() }).await;
        assert!(!of_pool(&change) || again.is_ok(), "{change:?}: {again:?}");
        assert!(
            !matches!(again, Err(ClusterError::Registry(RegistryError::Forbidden { .. }))),
            "{change:?}: {again:?}"
        );
        assert_ne!(two.all().await, before, "{change:?}");
        assert_eq!(two.beside("ours/mine").await, untouched, "{change:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_a_namespace_makes_clones_there_of_what_it_may_read_and_restores_and_renames_there_alone() {
    use Permission::{Manage, Read};
    let two = Two::new().await;
    let host = two.of_namespaces("host", &[("mine", Manage), ("other", Read)]).await;
    let change = async |change: VolumeChange| host.ask(ChangeVolumes { change }).await;
    let clone = |volume: &str, name: &str| VolumeChange::Clone {
        volume: volume.to_owned(),
        snapshot: "s".to_owned(),
        name: name.to_owned(),
        notes: BTreeMap::new(),
    };
    // Of what it reads, where it manages.
    let Changed::Volume(made) = change(clone("ours/other/w", "ours/mine/copy")).await.unwrap() else {
        panic!()
    };
    let map = two.cluster.map().await.unwrap();
    let info = &map.volumes[&made];
    assert_eq!((map.full_name(info).as_str(), info.pool), ("ours/mine/copy", OURS));
    let parent = map.volume_named("ours/other/w").unwrap().0;
    assert_eq!(info.parent.map(base::LayerId::volume), Some(parent));
    let before = two.all().await;
    for (asked, words) in [
        // A bare name is beside what it is made of.
        (clone("ours/other/v", "copy2"), "does not make volumes in namespace ours/other"),
        (clone("ours/mine/v", "ours/other/copy"), "does not make volumes in namespace ours/other"),
        (clone("ours/mine/v", "ours/copy"), "does not make volumes in pool ours"),
        (clone("ours/mine/v", "ours/nowhere/copy"), "does not make volumes in namespace ours/nowhere"),
        (clone("ours/ours-v", "ours/mine/copy2"), "no pool that its key is for"),
        (clone("ours/empty/v", "ours/mine/copy2"), "no pool that its key is for"),
    ] {
        assert_forbidden(change(asked.clone()).await, words, &asked);
    }
    let rename = |new: &str| VolumeChange::Rename { name: "ours/mine/v".to_owned(), new: new.to_owned() };
    for elsewhere in ["ours/other/x", "ours/x", "theirs/x"] {
        let refused = change(rename(elsewhere)).await.unwrap_err();
        assert!(matches!(refused, ClusterError::OtherPlace { .. }), "{refused}");
        assert!(refused.to_string().contains("volume clone"), "{refused}");
    }
    let id = two.trashed["ours/mine"];
    let restore = |id, name: &str| VolumeChange::Restore { id, name: Some(name.to_owned()) };
    for elsewhere in ["ours/other/x", "ours/x", "theirs/x"] {
        let refused = change(restore(id, elsewhere)).await.unwrap_err();
        assert!(matches!(refused, ClusterError::OtherPlace { .. }), "{refused}");
    }
    let taken = change(restore(id, "w")).await.unwrap_err();
    assert!(matches!(taken, ClusterError::VolumeExists { .. }), "{taken}");
    let asked = restore(two.trashed["ours/other"], "x");
    assert_forbidden(change(asked.clone()).await, "does not change volume", &asked);
    let asked = restore(two.trashed["ours"], "x");
    assert_forbidden(change(asked.clone()).await, "no pool that its key is for", &asked);
    // Snapshots of two namespaces at one moment, of which it manages one.
    let wanted = ["ours/mine/v", "ours/other/v"]
        .map(|volume| WantedSnapshot { volume: volume.to_owned(), name: "new".to_owned() });
    let asked = VolumeChange::TakeSnapshots { wanted: wanted.to_vec(), at_unix_seconds: 5 };
    assert_forbidden(change(asked.clone()).await, "does not change volume", &asked);
    assert_eq!(two.all().await, before);
    let both = two.of_namespaces("both", &[("mine", Manage), ("other", Manage)]).await;
    let Changed::Snapshots(layers) = both.ask(ChangeVolumes { change: asked }).await.unwrap() else {
        panic!()
    };
    assert_eq!(layers.len(), 2);
    // By whatever names, one volume is one.
    let wanted = ["v", "ours/mine/v"]
        .map(|volume| WantedSnapshot { volume: volume.to_owned(), name: "twice".to_owned() });
    let twice = VolumeChange::TakeSnapshots { wanted: wanted.to_vec(), at_unix_seconds: 5 };
    let only = two.of_namespaces("only", &[("mine", Manage)]).await;
    let refused = only.ask(ChangeVolumes { change: twice }).await.unwrap_err();
    assert!(matches!(refused, ClusterError::NamedTwice { .. }), "{refused}");
    change(restore(id, "ours/mine/back")).await.unwrap();
    change(rename("renamed")).await.unwrap();
    let map = two.cluster.map().await.unwrap();
    assert_eq!(map.volume_named("ours/mine/back").unwrap().0, id);
    assert!(map.volume_named("ours/mine/renamed").is_some() && map.volume_named("ours/mine/v").is_none());
    // What a clone of another namespace is made of is not removed, and who it is is told to who may see it alone.
    let asked =
        VolumeChange::RemoveSnapshots { volume: "ours/other/w".to_owned(), names: ["s".to_owned()].into() };
    let neighbour = two.of_namespaces("neighbour", &[("other", Manage)]).await;
    let blind = neighbour.ask(ChangeVolumes { change: asked.clone() }).await.unwrap_err();
    let seeing = both.ask(ChangeVolumes { change: asked }).await.unwrap_err();
    assert!(matches!(
        (&blind, &seeing),
        (ClusterError::HasUnseenClones { .. }, ClusterError::HasClones { .. })
    ));
    assert!(
        !blind.to_string().contains("copy") && seeing.to_string().contains("ours/mine/copy"),
        "{blind} {seeing}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_guesses_the_id_of_a_volume_of_another_namespace_has_nothing_of_it() {
    use crate::question::{Attach, Attachments, Detach, Fenced, Grant, Resume, StandsStill};
    let two = Two::new().await;
    let host = two.of_namespaces("host", &[("mine", Permission::Manage)]).await;
    let (client, ttl) = (ClientId(7), Duration::from_secs(10));
    let lease = host.ask(Grant { ttl }).await.unwrap();
    let map = two.cluster.map().await.unwrap();
    let id = map.volume_named("ours/other/v").unwrap().0;
    let of_owner = two.cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
    two.cluster.attach("ours/other/v", client, of_owner, true, "an owner".to_owned()).await.unwrap();
    let before = two.all().await;
    let forbidden = |done: Result<(), ClusterError>| match done {
        Err(ClusterError::Registry(RegistryError::Forbidden { reason, .. })) => {
            assert!(!reason.contains("other/v"), "{reason}");
        }
        other => panic!("{other:?} is not forbidden"),
    };
    let generation = Generation(0);
    forbidden(host.ask(Attachments { volume: id }).await.map(drop));
    forbidden(host.ask(Resume { volume: id, client, generation, lease }).await.map(drop));
    forbidden(host.ask(Detach { volume: id, client }).await);
    forbidden(host.ask(Fenced { volume: id, client, generation }).await);
    forbidden(host.ask(StandsStill { volume: id, client, number: base::map::Stillness(1), lease }).await);
    let attach = |volume: &str, id| Attach {
        volume: volume.to_owned(),
        client: ClientId(8),
        lease,
        shared: true,
        description: "a test".to_owned(),
        id,
        knows_layers: true,
        yields: false,
        renews: false,
    };
    forbidden(host.ask(attach("ours/other/v", None)).await.map(drop));
    forbidden(host.ask(attach("ours/ours-v", None)).await.map(drop));
    let other = host.ask(attach("v", Some(id))).await;
    assert!(
        matches!(other, Err(ClusterError::NoSuchVolume { .. })),
        "its own v is another volume: {other:?}"
    );
    assert_eq!(two.all().await, before);
    let own = host.ask(attach("v", None)).await.unwrap();
    assert_eq!(own.id, map.volume_named("ours/mine/v").unwrap().0, "a bare name is of its namespace");
    host.ask(attach("ours/mine/v", Some(own.id))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_sees_volumes_snapshots_and_keys_of_its_own_and_changes_of_these_alone() {
    let two = Two::new().await;
    let host = two.of_namespaces("host", &[("mine", Permission::Read)]).await;
    let pool = two.of_pools("pool", &[(OURS, Permission::Read)]).await;
    let map_of = async |clerk: &Clerk| {
        let (range, changes) = clerk.follow_map().await.unwrap();
        crate::MapFollower::of(range, changes).unwrap().map().unwrap()
    };
    let places = |map: &base::map::ClusterMap| {
        let places = map.volumes.values().map(|info| map.place_of(info).to_string());
        places.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let whole = two.cluster.map().await.unwrap();
    assert_eq!(places(&whole).len(), PLACES.len());
    let seen = map_of(&host).await;
    assert_eq!(places(&seen), ["ours/mine"]);
    assert_eq!(seen.volumes.len(), 5);
    assert!(!seen.snapshots.is_empty() && seen.snapshots.keys().all(|id| seen.volumes.contains_key(id)));
    assert_eq!(seen.principals.keys().collect::<Vec<_>>(), ["host"]);
    assert_eq!(seen.namespaces[&OURS].keys().collect::<Vec<_>>(), ["mine"]);
    assert_eq!(
        (seen.pools.len(), seen.pgs.len(), seen.osds.len()),
        (2, whole.pgs.len(), 2),
        "by which it goes"
    );
    let seen = map_of(&pool).await;
    assert_eq!(places(&seen), ["ours", "ours/mine", "ours/other"]);
    assert_eq!(seen.namespaces[&OURS].len(), 3);

    // And of what changes then.
    let (range, changes) = host.follow_map().await.unwrap();
    let key = two.cluster.principals().await.unwrap()["host"].public_key;
    let mut follower = crate::MapFollower::of(range, changes).unwrap().seen_with(Some(key));
    for (name, pool) in [("ours/other/new", "ours"), ("ours-new", "ours"), ("ours/mine/new", "ours")] {
        two.cluster.create_volume(name, pool, MIB).await.unwrap();
        let wanted = WantedSnapshot { volume: name.to_owned(), name: "s".to_owned() };
        two.cluster.take_snapshots(&[wanted], 5).await.unwrap();
    }
    two.cluster.create_namespace("ours", "late").await.unwrap();
    two.cluster.rename_volume("ours/mine/new", "last").await.unwrap();
    let map = loop {
        follower.next().await.unwrap();
        let map = follower.map().unwrap();
        if map.volume_named("last").is_some() {
            break map;
        }
    };
    assert_eq!((places(&map), map.volumes.len()), (vec!["ours/mine".to_owned()], 6));
    assert!(map.snapshots.keys().all(|id| map.volumes.contains_key(id)) && map.still.is_empty());
    assert_eq!(map.snapshots_of(map.volume_named("last").unwrap().0).count(), 1);
    assert_eq!(map.namespaces[&OURS].len(), 1);
    // Whose access is another one by now is told of nothing any more.
    two.of_namespaces("host", &[("other", Permission::Read)]).await;
    let told = loop {
        match follower.next().await {
            Ok(()) => assert_eq!(places(&follower.map().unwrap()), ["ours/mine"]),
            Err(error) => break error,
        }
    };
    assert!(matches!(told, ClusterError::Registry(RegistryError::Forbidden { .. })), "{told}");
}
