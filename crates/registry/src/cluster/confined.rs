//! The registry as a client sees it that may use some pools: it reads the map, attaches the volumes of its pools, and does
//! nothing else. One that may ask how the cluster is reads besides what that takes. A node serves it on a connection on which
//! that client has proved its key.
//!
//! What it asks for is looked at key by key:
//! - It reads the map, what name is which volume, and who has the volumes of its pools.
//! - It says that it has such a volume, or no longer. Such a record bears the name of its key; it replaces or deletes none that
//!   bears another, but may say that another is fenced if it may write.
//! - It raises a volume's generation by one and changes nothing else of it, if it may write. Who may only read can have
//!   nobody fenced, so it attaches a volume beside others only.
//! - Its leases are those that were granted to its key. Which these are stands in the registry, and ends with them; so it may
//!   go on at another node.
//!
//! Each such decision is by what the registry holds, and part of the transaction's conditions: what changed meanwhile makes it
//! fail, and it is asked again.

use super::{AttachRecord, encode, keys};
use crate::error::RegistryError;
use crate::interface::{
    Compare, KeyValue, LeaseId, Operation, Registry, RegistryTrouble, Revision, Txn, Watch,
};
use crate::request::{Answer, Caller, Request, perform};
use crate::socket::PROBE;
use async_trait::async_trait;
use base::map::VolumeInfo;
use base::{Access, ClientId, Generation, Permission, PoolId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Requests of one connection, in the long run: one each so often.
const REQUEST_EVERY: Duration = Duration::from_millis(10);
/// So much of that may be used at once after a silence.
const BURST: Duration = Duration::from_secs(2);
/// The longest lease. Each is a few records of the registry while it lives.
const TTL_MAX: Duration = Duration::from_secs(60);
/// The longest description of who has a volume, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;

/// Records of who shares one volume, at most.
const HOLDERS_MAX: usize = 256;
/// Leases of one connection, at most.
const LEASES_MAX: usize = 64;

type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// See the module's documentation.
pub struct ConfinedRegistry {
    inner: Arc<dyn Registry>,
    name: String,
    pools: BTreeMap<PoolId, Permission>,
    /// It may read whom to ask how the cluster is, and what else is read for that.
    monitors: bool,
    state: Mutex<State>,
}

struct State {
    /// Leases that are known to be its.
    leases: BTreeSet<LeaseId>,
    /// Up to when its share of requests is used.
    used_until: Instant,
}

/// A key that a client has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKey {
    /// Whoever takes part may read it.
    Public,
    /// Who may ask how the cluster is may read it.
    OfMonitors,
    /// A volume of the map.
    Volume(VolumeId),
    /// Who has a volume, or had it last.
    Guard(VolumeId),
    /// That a client has it while its lease lives; without a client, whoever does.
    Attached(VolumeId, Option<ClientId>),
    /// That a client has it until it says otherwise.
    Holder(VolumeId, Option<ClientId>),
}

impl ClientKey {
    /// What a key is, or the prefix of some.
    fn parse(key: &str) -> Option<ClientKey> {
        if let Some(id) = key.strip_prefix(keys::VOLUMES)
            && let Ok(id) = id.parse().map(VolumeId)
            && key == keys::volume(id)
        {
            return Some(ClientKey::Volume(id));
        }
        let is_public = key.starts_with(keys::MAP)
            || key.starts_with(keys::VOLUME_NAMES)
            || [keys::MOVING_IN, keys::MOVED, PROBE].contains(&key);
        if is_public {
            return Some(ClientKey::Public);
        }
        let is_of_monitors = [keys::MANAGER, keys::SETTINGS, keys::HTTP, keys::DRIVES].contains(&key);
        if is_of_monitors {
            return Some(ClientKey::OfMonitors);
        }
        let (kind, rest) = key.strip_prefix("millpond/")?.split_once('/')?;
        let (volume, client) = match rest.split_once('/') {
            None => (rest, None),
            Some((volume, client)) => (volume, Some(client)),
        };
        let volume = VolumeId(volume.parse().ok()?);
        let client = match client {
            None | Some("") => None,
            Some(client) => Some(ClientId(u64::from_str_radix(client, 16).ok()?)),
        };
        let (found, written) = match (kind, client) {
            ("attach-guard", None) => (ClientKey::Guard(volume), keys::attach_guard(volume)),
            ("attached", None) => (ClientKey::Attached(volume, None), keys::attached_to(volume)),
            ("holder", None) => (ClientKey::Holder(volume, None), keys::holders_of(volume)),
            ("attached", Some(client)) => {
                (ClientKey::Attached(volume, Some(client)), keys::attached(volume, client))
            }
            ("holder", Some(client)) => {
                (ClientKey::Holder(volume, Some(client)), keys::holder(volume, client))
            }
            _ => return None,
        };
        // Nothing that is written in another way: a prefix of one volume's keys is none of another's.
        (key == written).then_some(found)
    }
}

impl ConfinedRegistry {
    /// `inner` as the principal `name` may use it that has this access; none for one that is confined to nothing, or has no
    /// business here.
    #[must_use]
    pub fn new(inner: Arc<dyn Registry>, name: String, access: &Access) -> Option<ConfinedRegistry> {
        let (pools, monitors) = match access {
            Access::Pools(pools) => (pools.clone(), false),
            Access::Monitor => (BTreeMap::new(), true),
            Access::Admin | Access::Node(_) => return None,
        };
        let state = Mutex::new(State { leases: BTreeSet::new(), used_until: Instant::now() });
        Some(ConfinedRegistry { inner, name, pools, monitors, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is this client's turn: whoever has its key can ask for as much as he likes.
    async fn take_turn(&self) {
        let wait = {
            let (now, mut state) = (Instant::now(), self.state());
            let earliest = now.checked_sub(BURST).unwrap_or(now);
            state.used_until = state.used_until.max(earliest) + REQUEST_EVERY;
            state.used_until.saturating_duration_since(now)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn forbidden<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(RegistryError::Forbidden { who: self.name.clone(), reason: reason.into() })
    }

    /// The registry's business that is not this client's.
    fn not_its<T>(&self, key: &str) -> Result<T> {
        let key: String = key.chars().take(80).collect();
        self.forbidden(format!(
            "its key is for the volumes of some pools, and {key:?} is the cluster's; use the key of an owner (`millpond auth \
             add NAME --admin`)"
        ))
    }

    /// What it may do with a volume, and how that stands in the map.
    async fn volume(&self, volume: VolumeId) -> Result<(Permission, VolumeInfo, KeyValue)> {
        let key = keys::volume(volume);
        let nowhere = || {
            self.forbidden(format!(
                "{volume} is of no pool that its key is for; `millpond auth ls` shows which are"
            ))
        };
        let Some(entry) = self.inner.get(&key).await? else { return nowhere() };
        let info: VolumeInfo = match serde_json::from_slice(entry.value.as_bytes()) {
            Ok(info) => info,
            Err(error) => return self.forbidden(format!("{key} cannot be read: {error}")),
        };
        match self.pools.get(&info.pool) {
            Some(permission) => Ok((*permission, info, entry)),
            None => nowhere(),
        }
    }

    /// The same, if it may be attached at all.
    async fn volume_to_attach(&self, volume: VolumeId) -> Result<(Permission, VolumeInfo, KeyValue)> {
        let found = self.volume(volume).await?;
        if found.1.removed {
            return self.forbidden(format!("{volume} was removed"));
        }
        Ok(found)
    }

    /// Whether one more may say that it has a volume: such records last.
    async fn check_room(&self, volume: VolumeId, name: &str, shared: bool) -> Result<()> {
        let holders = self.inner.range(&keys::holders_of(volume)).await?.entries.len();
        // Who does not share it sees to it that those before are fenced, and removes their records.
        if holders < if shared { HOLDERS_MAX } else { 2 * HOLDERS_MAX } {
            return Ok(());
        }
        self.forbidden(format!(
            "{holders} clients have volume {name}, or had it and did not detach; attaching it once without --shared, by who may \
             write, makes room"
        ))
    }

    /// Whether it may read a key, or all of a prefix.
    async fn check_read(&self, key: &str) -> Result<()> {
        match ClientKey::parse(key) {
            Some(ClientKey::Public | ClientKey::Volume(_)) => Ok(()),
            Some(ClientKey::OfMonitors) if self.monitors => Ok(()),
            Some(ClientKey::OfMonitors) => self.not_its(key),
            Some(ClientKey::Guard(_) | ClientKey::Attached(..) | ClientKey::Holder(..)) if self.monitors => {
                Ok(())
            }
            Some(
                ClientKey::Guard(volume) | ClientKey::Attached(volume, _) | ClientKey::Holder(volume, _),
            ) => self.volume(volume).await.map(drop),
            None => self.not_its(key),
        }
    }

    /// Looks at all that a transaction is about, and answers what may be done instead: the same, under more conditions.
    async fn confine(&self, txn: Txn) -> Result<Txn> {
        let Txn { compares, then, otherwise } = txn;
        for compare in &compares {
            self.check_read(compare.key()).await?;
        }
        for operation in &otherwise {
            match operation {
                Operation::Get { key } => self.check_read(key).await?,
                Operation::Range { prefix } => self.check_read(prefix).await?,
                Operation::Put { key, .. } | Operation::Delete { key } => return self.not_its(key),
            }
        }
        let mut confined = Txn { compares, then: Vec::new(), otherwise };
        for operation in then {
            let operation = match operation {
                Operation::Get { key } => {
                    self.check_read(&key).await?;
                    Operation::Get { key }
                }
                Operation::Range { prefix } => {
                    self.check_read(&prefix).await?;
                    Operation::Range { prefix }
                }
                Operation::Put { .. } => self.confine_put(operation, &mut confined.compares).await?,
                Operation::Delete { key } => {
                    self.check_delete(&key, &mut confined.compares).await?;
                    Operation::Delete { key }
                }
            };
            confined.then.push(operation);
        }
        Ok(confined)
    }

    async fn confine_put(&self, put: Operation, conditions: &mut Vec<Compare>) -> Result<Operation> {
        let Operation::Put { key, value, lease } = &put else { return Ok(put) };
        match ClientKey::parse(key) {
            Some(ClientKey::Guard(volume)) => {
                self.volume_to_attach(volume).await?;
                let is_client = serde_json::from_slice::<ClientId>(value.as_bytes()).is_ok();
                if !is_client || lease.is_some() {
                    return self.forbidden(format!("{key:?} names one client, under no lease"));
                }
                Ok(put)
            }
            Some(ClientKey::Volume(volume)) => {
                let (permission, info, entry) = self.volume_to_attach(volume).await?;
                if permission < Permission::ReadWrite {
                    return self.only_reads(&info.name);
                }
                let raised =
                    VolumeInfo { generation: Generation(info.generation.0.saturating_add(1)), ..info };
                let is_raised =
                    serde_json::from_slice(value.as_bytes()).is_ok_and(|wanted: VolumeInfo| wanted == raised);
                // One that was made from an older reading fails by its own condition, as it shall.
                let is_stale = conditions.iter().any(|compare| {
                    matches!(compare, Compare::ModRevision(of, revision)
                        if of == key && *revision < entry.mod_revision)
                });
                if (!is_raised && !is_stale) || lease.is_some() {
                    return self.forbidden(format!(
                        "of {volume} it may raise the generation by one, and that is all"
                    ));
                }
                conditions.push(Compare::unchanged(key, Some(&entry)));
                Ok(Operation::put(key, encode(&raised)))
            }
            Some(ClientKey::Attached(volume, Some(client)) | ClientKey::Holder(volume, Some(client))) => {
                let (permission, info, _) = self.volume_to_attach(volume).await?;
                let Ok(record) = serde_json::from_slice::<AttachRecord>(value.as_bytes()) else {
                    return self
                        .forbidden(format!("{key:?} says who has {volume}, and this says something else"));
                };
                let is_readable = record.description.len() <= DESCRIPTION_BYTES_MAX
                    && !record.description.contains(char::is_control);
                if record.client != client || !is_readable {
                    return self.forbidden(format!("{key:?} describes one client, in few printable words"));
                }
                if permission < Permission::ReadWrite && !record.shared {
                    return self.only_reads(&info.name);
                }
                let is_leased = matches!(ClientKey::parse(key), Some(ClientKey::Attached(..)));
                match lease {
                    Some(lease) if is_leased => self.check_lease(*lease).await?,
                    None if !is_leased => {}
                    _ => return self.forbidden(format!("{key:?} is under another lease than it must be")),
                }
                let before = self.inner.get(key).await?;
                self.check_own(key, before.as_ref())?;
                if before.is_none() && !is_leased {
                    self.check_room(volume, &info.name, record.shared).await?;
                }
                conditions.push(Compare::unchanged(key, before.as_ref()));
                let record = AttachRecord { principal: Some(self.name.clone()), ..record };
                Ok(Operation::Put { key: key.clone(), value: encode(&record), lease: *lease })
            }
            _ => self.not_its(key),
        }
    }

    async fn check_delete(&self, key: &str, conditions: &mut Vec<Compare>) -> Result<()> {
        let (volume, may_be_another) = match ClientKey::parse(key) {
            Some(ClientKey::Holder(volume, Some(_))) => (volume, true),
            Some(ClientKey::Attached(volume, Some(_))) => (volume, false),
            _ => return self.not_its(key),
        };
        let (permission, _, _) = self.volume(volume).await?;
        let before = self.inner.get(key).await?;
        // Who may write has whoever was there before fenced, and says so.
        if !(may_be_another && permission == Permission::ReadWrite) {
            self.check_own(key, before.as_ref())?;
        }
        conditions.push(Compare::unchanged(key, before.as_ref()));
        Ok(())
    }

    /// Whether a record that stands there is its own.
    fn check_own(&self, key: &str, entry: Option<&KeyValue>) -> Result<()> {
        let Some(entry) = entry else { return Ok(()) };
        let record: Option<AttachRecord> = serde_json::from_slice(entry.value.as_bytes()).ok();
        if record.and_then(|record| record.principal).as_ref() == Some(&self.name) {
            return Ok(());
        }
        self.forbidden(format!("{key:?} is there already, by another key"))
    }

    fn only_reads<T>(&self, volume: &str) -> Result<T> {
        self.forbidden(format!(
            "its key only reads volume {volume}: attach it with --shared; and if whoever wrote to it last did not detach, have \
             somebody attach it first who may write"
        ))
    }

    /// Whether a lease is its own. Of another's it learns nothing, not even that it is there.
    async fn check_lease(&self, lease: LeaseId) -> Result<()> {
        if self.state().leases.contains(&lease) {
            return Ok(());
        }
        let entry = self.inner.get(&keys::client_lease(lease)).await?;
        if entry.is_some_and(|entry| entry.value == encode(&self.name)) {
            self.state().leases.insert(lease);
            return Ok(());
        }
        Err(RegistryError::LeaseNotFound { lease })
    }

    async fn grant(&self, ttl: Duration) -> Result<Answer> {
        if ttl > TTL_MAX {
            return self.forbidden(format!("its leases are of {} s at most", TTL_MAX.as_secs()));
        }
        if self.state().leases.len() >= LEASES_MAX {
            return self
                .forbidden(format!("it has {LEASES_MAX} leases on one connection, and there are no more"));
        }
        let lease = self.inner.lease_grant(ttl).await?;
        let put = Operation::put_leased(keys::client_lease(lease.id), encode(&self.name), lease.id);
        self.inner.txn(Txn::new().then(put)).await?;
        self.state().leases.insert(lease.id);
        Ok(Answer::Granted { lease: lease.id, ttl_ms: lease.ttl.as_millis() as u64 })
    }
}

#[async_trait]
impl Caller for ConfinedRegistry {
    fn place(&self) -> String {
        format!("the cluster, as {} may use it", self.name)
    }

    async fn call(&self, request: Request) -> Result<Answer> {
        self.take_turn().await;
        let request = match request {
            Request::Get { key } => {
                self.check_read(&key).await?;
                Request::Get { key }
            }
            Request::Range { prefix } => {
                self.check_read(&prefix).await?;
                Request::Range { prefix }
            }
            Request::Txn(txn) => {
                txn.check()?;
                Request::Txn(self.confine(txn).await?)
            }
            Request::LeaseGrant { ttl_ms } => return self.grant(Duration::from_millis(ttl_ms)).await,
            Request::LeaseKeepAlive { lease } | Request::LeaseRevoke { lease } => {
                self.check_lease(lease).await?;
                let done = perform(&*self.inner, request).await;
                if matches!(done, Err(RegistryError::LeaseNotFound { .. })) {
                    self.state().leases.remove(&lease);
                }
                return done;
            }
            Request::Compact { .. } => return self.not_its("history"),
        };
        perform(&*self.inner, request).await
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>> {
        self.take_turn().await;
        // What others attach is nobody's business while it goes on, and the map says when a volume changes hands.
        if !prefix.starts_with(keys::MAP) {
            return self.not_its(&prefix);
        }
        self.inner.watch(&prefix, start).await
    }

    async fn find_troubles(&self) -> Vec<RegistryTrouble> {
        self.inner.troubles().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRegistry;
    use crate::cluster::{Cluster, ClusterError};
    use base::map::{Admission, DeviceClass, PoolInfo};
    use base::{ClusterId, NodeId, OsdId, OsdUuid};

    const TTL: Duration = Duration::from_secs(10);

    /// A cluster with a volume in each of two pools, as its owner has it.
    async fn cluster() -> Cluster {
        let cluster = Cluster::new(Arc::new(MemoryRegistry::new()));
        cluster.create(ClusterId::default()).await.unwrap();
        for node in 0..3u32 {
            let uuid = OsdUuid(uuid::Uuid::from_u128(u128::from(node) + 1));
            cluster.register_osd(uuid, NodeId(node), 8 << 30, DeviceClass::Ssd).await.unwrap();
        }
        for (pool, volume) in [("ours", "a"), ("theirs", "b")] {
            let info =
                PoolInfo { name: pool.into(), size: 3, min_size: 2, pg_count: 8, ..PoolInfo::default() };
            cluster.create_pool_by(&info).await.unwrap();
            cluster.create_volume(volume, pool, 1 << 30).await.unwrap();
        }
        cluster
    }

    /// The same as a client has it that may do that with the pool `ours`.
    async fn client(cluster: &Cluster, name: &str, permission: Permission) -> Cluster {
        let (pool, _) = cluster.map().await.unwrap().pool_named("ours").unwrap();
        confined(cluster, name, &Access::Pools(BTreeMap::from([(pool, permission)])))
    }

    fn confined(cluster: &Cluster, name: &str, access: &Access) -> Cluster {
        let confined = ConfinedRegistry::new(cluster.registry().clone(), name.into(), access);
        Cluster::new(Arc::new(confined.unwrap()))
    }

    async fn volume_named(cluster: &Cluster, name: &str) -> (VolumeId, VolumeInfo) {
        let map = cluster.map().await.unwrap();
        let found = map.volumes.iter().find(|(_, info)| info.name == name).unwrap();
        (*found.0, found.1.clone())
    }

    fn attach<'a>(
        cluster: &'a Cluster,
        volume: &'a str,
        number: u64,
        lease: LeaseId,
        shared: bool,
    ) -> impl Future<Output = Result<crate::cluster::Attachment, ClusterError>> + 'a {
        cluster.attach(volume, ClientId(number), lease, shared, "a test".to_owned())
    }

    #[track_caller]
    fn assert_forbidden<T: std::fmt::Debug>(done: Result<T, ClusterError>, words: &str) {
        match done {
            Err(ClusterError::Registry(RegistryError::Forbidden { reason, .. })) => {
                assert!(reason.contains(words), "{reason}");
            }
            other => panic!("{other:?} is not forbidden"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_attaches_the_volumes_of_its_pools_and_changes_nothing_else() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        assert_eq!(client.map().await.unwrap(), owner.map().await.unwrap());
        assert_eq!(client.id().await.unwrap(), ClusterId::default());
        let lease = client.registry().lease_grant(TTL).await.unwrap().id;
        let attached = attach(&client, "a", 1, lease, false).await.unwrap();
        assert_eq!(attached.generation, Generation(1));
        let records = owner.attachments(attached.id).await.unwrap();
        assert_eq!(records[0].principal.as_deref(), Some("host"));
        assert!(client.resume(attached.id, ClientId(1), Generation(1), lease).await.unwrap());
        client.registry().lease_keep_alive(lease).await.unwrap();
        client.registry().lease_revoke(lease).await.unwrap();
        client.detach(attached.id, ClientId(1)).await.unwrap();
        assert_eq!(owner.attachments(attached.id).await.unwrap(), []);

        let lease = client.registry().lease_grant(TTL).await.unwrap().id;
        assert_forbidden(attach(&client, "b", 1, lease, false).await, "no pool that its key is for");
        assert_forbidden(client.create_volume("c", "ours", 1 << 30).await, "the cluster's");
        assert_forbidden(client.resize_volume("a", 2 << 30, false).await, "generation by one");
        assert_forbidden(client.remove_volume("a").await, "");
        assert_forbidden(client.remove_pool("ours").await, "");
        assert_forbidden(client.set_admission(OsdId(0), Admission::Out).await, "the cluster's");
        assert_forbidden(client.remove_principal("owner").await, "the cluster's");
        assert_forbidden(client.settings().await, "the cluster's");
        assert_forbidden(client.manager().await, "the cluster's");
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_honest_client_asks_for_is_refused() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let (registry, inner) = (client.registry(), owner.registry());
        let ((a, info), (b, _)) = (volume_named(&owner, "a").await, volume_named(&owner, "b").await);
        let before = inner.range("").await.unwrap();
        let lease = registry.lease_grant(TTL).await.unwrap().id;
        for prefix in ["", "m", "millpond/", "millpond/attached/1", "millpond/attached/", "millpond/http/"] {
            let read = registry.range(prefix).await;
            assert!(matches!(read, Err(RegistryError::Forbidden { .. })), "{prefix}: {read:?}");
            assert!(registry.watch(prefix, Revision(0)).await.is_err(), "{prefix}");
        }
        for key in ["millpond/settings", "millpond/next/volume", &keys::attach_guard(b), &keys::holders_of(b)]
        {
            assert!(registry.get(key).await.is_err(), "{key}");
            let compare = Txn::new().when(Compare::Exists((*key).to_owned()));
            assert!(registry.txn(compare).await.is_err(), "{key}");
        }
        let record = |client: u64, shared| AttachRecord {
            client: ClientId(client),
            shared,
            generation: info.generation,
            description: "x".to_owned(),
            principal: None,
        };
        let raised = |by| VolumeInfo { generation: Generation(info.generation.0 + by), ..info.clone() };
        let writes = [
            Operation::put(keys::volume(a), encode(&raised(2))),
            Operation::put(keys::volume(a), encode(&VolumeInfo { bytes: 1, ..raised(1) })),
            Operation::put(keys::volume(a), encode(&VolumeInfo { removed: true, ..raised(1) })),
            Operation::put_leased(keys::volume(a), encode(&raised(1)), lease),
            Operation::delete(keys::volume(a)),
            Operation::put(keys::attach_guard(a), "\"text\""),
            Operation::delete(keys::attach_guard(a)),
            Operation::put(keys::holder(b, ClientId(1)), encode(&record(1, true))),
            // Of another client than its key says; with what could steer a terminal; under a lease, and under none.
            Operation::put(keys::holder(a, ClientId(1)), encode(&record(2, true))),
            Operation::put(
                keys::holder(a, ClientId(1)),
                encode(&AttachRecord { description: "\u{1b}[2J".to_owned(), ..record(1, true) }),
            ),
            Operation::put_leased(keys::holder(a, ClientId(1)), encode(&record(1, true)), lease),
            Operation::put(keys::attached(a, ClientId(1)), encode(&record(1, true))),
            Operation::put(format!("{}0", keys::holder(a, ClientId(1))), encode(&record(1, true))),
            Operation::put("millpond/map/principal/me", "1"),
            Operation::put(keys::client_lease(lease), encode(&"host")),
            Operation::put("elsewhere", "1"),
        ];
        for write in writes {
            for txn in [Txn::new().then(write.clone()), Txn::new().otherwise(write.clone())] {
                let done = registry.txn(txn).await;
                assert!(matches!(done, Err(RegistryError::Forbidden { .. })), "{write:?}: {done:?}");
            }
        }
        assert!(matches!(registry.compact(Revision(1)).await, Err(RegistryError::Forbidden { .. })));
        assert!(registry.lease_grant(Duration::from_secs(3600)).await.is_err());
        registry.lease_revoke(lease).await.unwrap();
        assert_eq!(inner.range("").await.unwrap().entries, before.entries, "nothing was changed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_another_is_as_if_it_were_not_there() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let (a, info) = volume_named(&owner, "a").await;
        let theirs = owner.registry().lease_grant(TTL).await.unwrap().id;
        let registry = client.registry();
        let gone = |done: Result<(), RegistryError>| {
            assert!(matches!(done, Err(RegistryError::LeaseNotFound { .. })), "{done:?}");
        };
        gone(registry.lease_keep_alive(theirs).await);
        gone(registry.lease_revoke(theirs).await);
        let record = AttachRecord {
            client: ClientId(1),
            shared: true,
            generation: info.generation,
            description: String::new(),
            principal: None,
        };
        let put = Operation::put_leased(keys::attached(a, ClientId(1)), encode(&record), theirs);
        gone(registry.txn(Txn::new().then(put)).await.map(drop));
        owner.registry().lease_keep_alive(theirs).await.unwrap();
        // At another node it goes on with its own.
        let own = registry.lease_grant(TTL).await.unwrap().id;
        let elsewhere = self::client(&owner, "host", Permission::ReadWrite).await;
        elsewhere.registry().lease_keep_alive(own).await.unwrap();
        let stranger = self::client(&owner, "stranger", Permission::ReadWrite).await;
        gone(stranger.registry().lease_revoke(own).await);
        registry.lease_keep_alive(own).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_only_read_has_nobody_fenced() {
        let owner = cluster().await;
        let reader = client(&owner, "backup", Permission::Read).await;
        let writer = client(&owner, "host", Permission::ReadWrite).await;
        let lease = reader.registry().lease_grant(TTL).await.unwrap().id;
        assert_forbidden(attach(&reader, "a", 1, lease, false).await, "--shared");
        let shared = attach(&reader, "a", 1, lease, true).await.unwrap();
        assert_eq!(shared.generation, Generation(0));
        // A writer attaches, and is gone without a word.
        let (a, _) = volume_named(&owner, "a").await;
        reader.registry().lease_revoke(lease).await.unwrap();
        reader.detach(a, ClientId(1)).await.unwrap();
        let of_writer = writer.registry().lease_grant(TTL).await.unwrap().id;
        attach(&writer, "a", 2, of_writer, false).await.unwrap();
        let taken = reader.detach(a, ClientId(2)).await;
        assert_forbidden(taken, "by another key");
        writer.registry().lease_revoke(of_writer).await.unwrap();
        let lease = reader.registry().lease_grant(TTL).await.unwrap().id;
        assert_forbidden(attach(&reader, "a", 1, lease, true).await, "may write");
        // Nor does it hide that somebody was there.
        let held = owner.holders(a).await.unwrap();
        assert_eq!(held.len(), 1);
        assert_forbidden(reader.fenced(a, &held).await, "by another key");
        let covered = AttachRecord { shared: true, ..held[0].clone() };
        let put = Operation::put(keys::holder(a, ClientId(2)), encode(&covered));
        assert!(reader.registry().txn(Txn::new().then(put)).await.is_err());
        assert_eq!(owner.holders(a).await.unwrap(), held);
        // Another writer has it fenced, and says so.
        let other = client(&owner, "other", Permission::ReadWrite).await;
        let lease = other.registry().lease_grant(TTL).await.unwrap().id;
        let attached = attach(&other, "a", 3, lease, false).await.unwrap();
        assert_eq!(attached.unfenced, held);
        other.fenced(a, &attached.unfenced).await.unwrap();
        let left = owner.holders(a).await.unwrap();
        assert_eq!(left.iter().map(|record| record.client).collect::<Vec<_>>(), [ClientId(3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_monitors_reads_what_that_takes_and_changes_nothing() {
        let owner = cluster().await;
        let monitor = confined(&owner, "prometheus", &Access::Monitor);
        let (a, _) = volume_named(&owner, "a").await;
        assert_eq!(monitor.map().await.unwrap(), owner.map().await.unwrap());
        assert_eq!(monitor.manager().await.unwrap(), None);
        assert_eq!(monitor.http_servers().await.unwrap(), []);
        assert_eq!(monitor.drives().await.unwrap(), BTreeMap::new());
        assert_eq!(monitor.attachments(a).await.unwrap(), []);
        monitor.settings().await.unwrap();
        let lease = monitor.registry().lease_grant(TTL).await.unwrap().id;
        assert_forbidden(attach(&monitor, "a", 1, lease, true).await, "no pool that its key is for");
        assert_forbidden(monitor.change_settings(|settings| settings.osd_out_after_seconds = 1).await, "");
        assert_forbidden(monitor.set_admission(OsdId(0), Admission::Out).await, "the cluster's");
        assert!(monitor.registry().range("millpond/").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_by_what_has_changed_meanwhile_fails() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let (a, info) = volume_named(&owner, "a").await;
        let read = client.registry().get(&keys::volume(a)).await.unwrap().unwrap();
        owner.resize_volume("a", 2 << 30, false).await.unwrap();
        let raised = VolumeInfo { generation: Generation(1), ..info };
        let txn = Txn::new()
            .when(Compare::unchanged(keys::volume(a), Some(&read)))
            .then(Operation::put(keys::volume(a), encode(&raised)));
        assert!(!client.registry().txn(txn).await.unwrap().succeeded);
        assert_eq!(volume_named(&owner, "a").await.1.bytes, 2 << 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_served_as_fast_as_its_share_allows_and_leaves_no_heaps() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let began = Instant::now();
        for _ in 0..1200 {
            client.registry().get(PROBE).await.unwrap();
        }
        assert!(began.elapsed() >= REQUEST_EVERY * 1000, "{:?}", began.elapsed());
        tokio::time::sleep(BURST).await;
        let began = Instant::now();
        for _ in 0..100 {
            client.registry().get(PROBE).await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "what it did not use a moment ago it may use now");

        let (a, _) = volume_named(&owner, "a").await;
        for number in 0..LEASES_MAX {
            client.registry().lease_grant(TTL).await.unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        assert!(client.registry().lease_grant(TTL).await.is_err());
        let hold = |number: usize, shared| {
            let record = AttachRecord {
                client: ClientId(number as u64),
                shared,
                generation: Generation(0),
                description: String::new(),
                principal: None,
            };
            Txn::new().then(Operation::put(keys::holder(a, record.client), encode(&record)))
        };
        for number in 0..HOLDERS_MAX {
            client.registry().txn(hold(number, true)).await.unwrap();
        }
        let refused = client.registry().txn(hold(HOLDERS_MAX, true)).await.unwrap_err().to_string();
        assert!(refused.contains("without --shared"), "{refused}");
        client.registry().txn(hold(HOLDERS_MAX, false)).await.unwrap();
    }
}
