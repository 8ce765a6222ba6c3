//! What a key may with volumes that are opened: read, own, and note locks.

use super::*;
use crate::*;
use base::map::WishId;
use base::{Access, Permission, Principal, PublicKey, VolumeId};
use registry::MemoryRegistry;

struct Keys {
    cluster: Cluster,
    ours: VolumeId,
    theirs: VolumeId,
    pool: PoolId,
}

impl Keys {
    async fn new() -> Keys {
        let cluster = Cluster::new(Arc::new(MemoryRegistry::new()));
        cluster.create(ClusterId::default()).await.unwrap();
        for node in 0..2u32 {
            let uuid = OsdUuid::from_bytes([node as u8 + 1; 16]);
            cluster.register_osd(uuid, NodeId(node), 8 << 30, DeviceClass::Ssd).await.unwrap();
        }
        let mut made = Vec::new();
        for name in ["ours", "theirs"] {
            let info =
                PoolInfo { name: name.into(), size: 2, min_size: 1, pg_count: 4, ..PoolInfo::default() };
            let pool = cluster.create_pool_by(&info).await.unwrap();
            made.push((pool, cluster.create_volume(name, name, 1 << 20).await.unwrap()));
        }
        Keys { cluster, ours: made[0].1, theirs: made[1].1, pool: made[0].0 }
    }

    /// Who answers a key, and a lease of it.
    async fn key(&self, name: &str, permission: Permission) -> (Clerk, LeaseId) {
        let key = PublicKey(std::array::from_fn(|at| name.as_bytes().get(at).copied().unwrap_or(0)));
        let principal = Principal::new(key, Access::Pools([(self.pool, permission)].into()));
        self.cluster.put_principal(name, &principal).await.unwrap();
        let visitor = Arc::new(Visitor::new(name.into(), principal));
        let clerk = Clerk::for_visitor(self.cluster.clone(), visitor);
        let lease = clerk.ask(Grant { ttl: Duration::from_secs(10) }).await.unwrap();
        (clerk, lease)
    }
}

fn open(volume: VolumeId, client: u64, lease: LeaseId, mode: WatchMode) -> Open {
    let (client, description) = (ClientId(client), "a test".to_owned());
    Open { volume, client, lease, mode, description, since_unix_seconds: 7 }
}

fn own(volume: VolumeId, client: u64, lease: LeaseId, generation: u32) -> Own {
    let (wish, description) = (WishId(client), "a test".to_owned());
    let (client, generation) = (ClientId(client), Generation(generation));
    Own { volume, client, lease, description, wish, generation, keeps: false }
}

fn lock(volume: &str, locker: &str) -> Lock {
    let lock = LockRecord {
        name: "a".into(),
        locker: locker.into(),
        tag: Some("t".into()),
        ..LockRecord::default()
    };
    Lock { volume: volume.to_owned(), lock }
}

fn unlock(locker: &str) -> Unlock {
    let (volume, name) = ("ours".to_owned(), "a".to_owned());
    Unlock { volume, name, locker: locker.to_owned(), cookie: String::new() }
}

#[track_caller]
fn forbidden<T: std::fmt::Debug>(done: Result<T>, words: &str) {
    match done {
        Err(ClusterError::Registry(RegistryError::Forbidden { reason, .. })) => {
            assert!(reason.contains(words), "{reason}");
        }
        other => panic!("{other:?} is not forbidden"),
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_read_opens_a_volume_to_read_it_and_who_may_write_owns_it() {
    let keys = Keys::new().await;
    let (reader, of_reader) = keys.key("reader", Permission::Read).await;
    let (writer, of_writer) = keys.key("writer", Permission::ReadWrite).await;
    let (other, of_other) = keys.key("other", Permission::ReadWrite).await;
    reader.ask(open(keys.ours, 1, of_reader, WatchMode::ReadOnly)).await.unwrap();
    forbidden(reader.ask(open(keys.ours, 2, of_reader, WatchMode::ReadWrite)).await, "read-only");
    forbidden(reader.ask(own(keys.ours, 1, of_reader, 0)).await, "only reads");
    for (clerk, lease) in [(&reader, of_reader), (&writer, of_writer)] {
        forbidden(
            clerk.ask(open(keys.theirs, 1, lease, WatchMode::ReadOnly)).await,
            "no pool that its key is for",
        );
        forbidden(clerk.ask(own(keys.theirs, 1, lease, 0)).await, "no pool that its key is for");
        forbidden(clerk.ask(Watchers { volume: keys.theirs }).await, "no pool that its key is for");
    }
    // Nobody passes for another, by its id or its lease.
    forbidden(writer.ask(open(keys.ours, 1, of_writer, WatchMode::ReadOnly)).await, "another key");
    assert!(writer.ask(open(keys.ours, 3, of_reader, WatchMode::ReadOnly)).await.is_err());
    assert!(writer.ask(own(keys.ours, 3, of_reader, 0)).await.is_err());
    writer.ask(open(keys.ours, 3, of_writer, WatchMode::ReadWrite)).await.unwrap();
    let seen = reader.ask(Watchers { volume: keys.ours }).await.unwrap();
    assert_eq!(seen.iter().map(|record| record.client.0).collect::<Vec<_>>(), [1, 0]);
    let told: Vec<_> = seen.iter().map(|record| record.principal.clone().unwrap()).collect();
    assert_eq!(told, ["reader", "writer"]);
    let owned = writer.ask(own(keys.ours, 3, of_writer, 0)).await.unwrap();
    assert!(matches!(owned, Owning::Owned(_)), "{owned:?}");
    let give_up = || GiveUp { volume: keys.ours, client: ClientId(3), generation: Generation(1) };
    for clerk in [&reader, &other] {
        forbidden(clerk.ask(give_up()).await, "another key");
    }
    assert!(matches!(other.ask(own(keys.ours, 4, of_other, 1)).await, Ok(Owning::Awaited { .. })));
    // The map tells that somebody wishes it, and nothing of whom.
    let map = keys.cluster.map().await.unwrap();
    assert_eq!(map.wishes[&keys.ours].len(), 1);
    writer.ask(give_up()).await.unwrap();
    assert!(matches!(other.ask(own(keys.ours, 4, of_other, 1)).await, Ok(Owning::Owned(_))));
    // A key that lost its rights has nothing done.
    keys.cluster.remove_principal("other").await.unwrap();
    forbidden(other.ask(open(keys.ours, 4, of_other, WatchMode::ReadOnly)).await, "connect again");
    forbidden(other.ask(own(keys.ours, 4, of_other, 2)).await, "connect again");
}

#[tokio::test(start_paused = true)]
async fn who_may_write_locks_and_who_manages_breaks_the_locks_of_others() {
    let keys = Keys::new().await;
    let (reader, _) = keys.key("reader", Permission::Read).await;
    let (writer, _) = keys.key("writer", Permission::ReadWrite).await;
    let (other, _) = keys.key("other", Permission::ReadWrite).await;
    let (manager, _) = keys.key("manager", Permission::Manage).await;
    forbidden(reader.ask(lock("ours", "r")).await, "only reads");
    writer.ask(lock("ours", "w")).await.unwrap();
    other.ask(lock("ours", "o")).await.unwrap();
    // What a key is not for is for it as if it were not there.
    let error = writer.ask(lock("theirs", "w")).await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
    let error = reader.ask(Locks { volume: "theirs".to_owned() }).await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
    let locks = reader.ask(Locks { volume: "ours".to_owned() }).await.unwrap();
    let told: Vec<_> = locks.iter().map(|lock| lock.principal.clone().unwrap()).collect();
    assert_eq!(told, ["writer", "other"], "whatever they say of themselves");
    forbidden(reader.ask(unlock("w")).await, "only reads");
    forbidden(writer.ask(unlock("o")).await, "another key");
    writer.ask(unlock("w")).await.unwrap();
    manager.ask(unlock("o")).await.unwrap();
    assert!(keys.cluster.locks("ours").await.unwrap().is_empty());
    writer.ask(lock("ours", "w")).await.unwrap();
    Clerk::of_owner(keys.cluster.clone()).ask(unlock("w")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_owned_that_shares_its_name_with_others_and_by_who_may_change_that_one_alone() {
    let keys = Keys::new().await;
    keys.cluster.create_namespace("ours", "n").await.unwrap();
    let inside = keys.cluster.create_volume("ours/n/theirs", "ours", 1 << 20).await.unwrap();
    let beside = keys.cluster.create_volume("ours/theirs", "ours", 1 << 20).await.unwrap();
    let key = PublicKey([9; 32]);
    let named = [("n".to_owned(), Permission::ReadWrite)].into();
    let rights = base::Rights { namespaces: [(keys.pool, named)].into(), ..base::Rights::default() };
    let principal = Principal::new(key, Access::Pools(rights));
    keys.cluster.put_principal("tenant", &principal).await.unwrap();
    let tenant = Clerk::for_visitor(keys.cluster.clone(), Arc::new(Visitor::new("tenant".into(), principal)));
    let lease = tenant.ask(Grant { ttl: Duration::from_secs(10) }).await.unwrap();
    tenant.ask(open(inside, 1, lease, WatchMode::ReadWrite)).await.unwrap();
    let owned = tenant.ask(own(inside, 1, lease, 0)).await.unwrap();
    assert!(matches!(&owned, Owning::Owned(attached) if attached.id == inside), "{owned:?}");
    for other in [beside, keys.ours, keys.theirs] {
        assert!(tenant.ask(open(other, 1, lease, WatchMode::ReadOnly)).await.is_err());
        assert!(tenant.ask(own(other, 1, lease, 0)).await.is_err());
        assert!(tenant.ask(Watchers { volume: other }).await.is_err());
    }
    // Locks are of the volume that is meant, and of no other that is called so.
    tenant.ask(lock("ours/n/theirs", "a")).await.unwrap();
    for other in ["ours/theirs", "theirs/theirs"] {
        assert!(tenant.ask(lock(other, "a")).await.is_err());
        assert!(tenant.ask(Locks { volume: other.to_owned() }).await.is_err());
    }
    assert!(keys.cluster.locks_by(None, "ours/theirs").await.unwrap().is_empty());
    assert_eq!(keys.cluster.locks_by(None, "ours/n/theirs").await.unwrap().len(), 1);
}
