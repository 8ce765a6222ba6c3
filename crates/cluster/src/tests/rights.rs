//! Who may change volumes, and which: every change with every key.

use super::*;
use crate::{ChangeVolumes, Changed, Clerk, Metadata, Visitor, VolumeChange};
use async_trait::async_trait;
use base::{Access, Permission, Principal, PublicKey, VolumeId};
use registry::implement::{Answer, Caller, Request, perform};
use registry::{MemoryRegistry, Revision, Watch};
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

/// A cluster with the same volumes in each of two pools, and the volumes in the trash of each.
struct Two {
    cluster: Cluster,
    interrupted: Arc<Interrupted>,
    trashed: BTreeMap<&'static str, VolumeId>,
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
            let named = |name: &str| format!("{pool}-{name}");
            for name in ["v", "w", "lies"] {
                cluster.create_volume(&named(name), pool, MIB).await.unwrap();
            }
            let wanted = WantedSnapshot { volume: named("v"), name: "s".to_owned() };
            cluster.take_snapshots(&[wanted], 5).await.unwrap();
            cluster.clone_volume(&named("v"), "s", &named("clone")).await.unwrap();
            cluster.set_metadata(&named("v"), "k", "noted").await.unwrap();
            let wanted = WantedSnapshot { volume: named("w"), name: "s".to_owned() };
            cluster.take_snapshots(&[wanted], 5).await.unwrap();
            let lies = cluster.trash_volume(&named("lies"), Default::default()).await.unwrap();
            trashed.insert(pool, lies);
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

    /// All that the registry holds.
    async fn all(&self) -> Vec<KeyValue> {
        self.cluster.registry().range("").await.unwrap().entries
    }

    /// Every change that there is, of volumes of that pool: each is done if it may be.
    fn changes(&self, pool: &'static str) -> Vec<VolumeChange> {
        use VolumeChange as To;
        let named = |name: &str| format!("{pool}-{name}");
        let (id, [v, w]) = (self.trashed[pool], ["v", "w"].map(named));
        let (s, new) = ("s".to_owned(), named("new"));
        let wanted = vec![WantedSnapshot { volume: v.clone(), name: new.clone() }];
        let changes = vec![
            To::Create { name: new.clone(), pool: pool.to_owned(), bytes: MIB },
            To::Resize { name: v.clone(), bytes: MIB / 2, allow_shrink: true },
            To::Rename { name: v.clone(), new: new.clone() },
            To::Remove { name: w.clone() },
            To::Trash { name: w.clone(), at_unix_seconds: 5, keep_seconds: None },
            To::Restore { id, name: None },
            To::Purge { id, generation: Generation(1) },
            To::Clone { volume: v.clone(), snapshot: s.clone(), name: new.clone() },
            To::Flatten { name: named("clone"), is_wanted: true },
            To::RollBack { volume: v.clone(), snapshot: s.clone() },
            To::TakeSnapshots { wanted, at_unix_seconds: 5 },
            To::RenameSnapshot { volume: v.clone(), name: s.clone(), new },
            To::ProtectSnapshot { volume: v.clone(), name: s.clone(), protected: true },
            To::RemoveSnapshot { volume: w, name: s },
            To::SetMetadata { volume: v.clone(), key: "new".to_owned(), value: "text".to_owned() },
            To::RemoveMetadata { volume: v, key: "k".to_owned() },
        ];
        // Whoever adds a change adds it here.
        for change in &changes {
            match change {
                To::Create { .. } | To::Resize { .. } | To::Rename { .. } | To::Remove { .. } => {}
                To::Trash { .. } | To::Restore { .. } | To::Purge { .. } | To::Clone { .. } => {}
                To::Flatten { .. } | To::RollBack { .. } | To::TakeSnapshots { .. } => {}
                To::RenameSnapshot { .. } | To::ProtectSnapshot { .. } | To::RemoveSnapshot { .. } => {}
                To::SetMetadata { .. } | To::RemoveMetadata { .. } => {}
            }
        }
        changes
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
        let makes = matches!(change, VolumeChange::Create { .. });
        let foreign =
            if makes { "does not make volumes in pool ours" } else { "no pool that its key is for" };
        let beside = if makes { foreign } else { "does not change volume" };
        let refused = [
            (two.of_pools("reader", &[(OURS, Read)]).await, "--manage"),
            (two.of_pools("writer", &[(OURS, ReadWrite)]).await, "--manage"),
            (two.of_pools("stranger", &[(THEIRS, Manage)]).await, foreign),
            (two.of_pools("beside", &[(OURS, ReadWrite), (THEIRS, Manage)]).await, beside),
            (two.of_pools("nobody", &[(THEIRS, ReadWrite)]).await, "--manage"),
            (two.clerk("monitor", Access::Monitor).await, "to ask how the cluster is"),
            (two.clerk("node", Access::Node(NodeId(0))).await, ""),
        ];
        let host = two.of_pools("host", &[(OURS, Manage)]).await;
        let before = two.all().await;
        for (clerk, words) in refused {
            assert_forbidden(clerk.ask(ChangeVolumes { change: change.clone() }).await, words, &change);
            assert_eq!(two.all().await, before, "{change:?}");
        }
        let theirs = two.changes("theirs")[index].clone();
        assert!(host.ask(ChangeVolumes { change: theirs.clone() }).await.is_err(), "{theirs:?}");
        assert_eq!(two.all().await, before, "{theirs:?}");
        // And by who may.
        let of_theirs = async || {
            let map = two.cluster.map().await.unwrap();
            let volumes = map.volumes.into_iter().filter(|(_, info)| info.pool == THEIRS);
            let volumes: BTreeMap<_, _> = volumes.collect();
            let snapshots = map.snapshots.into_iter().filter(|(id, _)| volumes.contains_key(id));
            let snapshots: BTreeMap<_, _> = snapshots.collect();
            (volumes, snapshots)
        };
        let untouched = of_theirs().await;
        let done = host.ask(ChangeVolumes { change: change.clone() }).await;
        let done = done.unwrap_or_else(|error| panic!("{change:?}: {error}"));
        assert_ne!(done, Changed::Nothing, "{change:?}");
        assert_ne!(two.all().await, before, "{change:?}");
        assert_eq!(of_theirs().await, untouched, "{change:?}");
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
    assert_forbidden(
        host.ask(ChangeVolumes { change: change.clone() }).await,
        "no pool that its key is for",
        &change,
    );
    assert_eq!(two.all().await, before);
    let read = host.ask(Metadata { volume: "ours-v".to_owned() }).await.unwrap();
    assert_eq!(read["k"], "noted");
    let words = "no pool that its key is for";
    assert_forbidden(host.ask(Metadata { volume: "theirs-v".to_owned() }).await, words, &change);
    let writer = two.of_pools("writer", &[(OURS, Permission::ReadWrite)]).await;
    assert_forbidden(writer.ask(Metadata { volume: "ours-v".to_owned() }).await, "--manage", &change);
    // What is not there is told as what it is, and so is a name that another has: the map shows them.
    let gone = VolumeChange::Rename { name: "nowhere".to_owned(), new: "x".to_owned() };
    let gone = host.ask(ChangeVolumes { change: gone }).await;
    assert!(matches!(gone, Err(ClusterError::NoSuchVolume { .. })), "{gone:?}");
    let taken = VolumeChange::Rename { name: "ours-v".to_owned(), new: "theirs-v".to_owned() };
    let taken = host.ask(ChangeVolumes { change: taken }).await;
    assert!(matches!(taken, Err(ClusterError::VolumeExists { .. })), "{taken:?}");
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
