//! The registry as a client sees it that is no owner of the cluster. A node serves it on a connection on which that client has
//! proved its key.
//!
//! It reads the cluster map, and writes nothing. What must be written for it the node does, as its [`Errand`]s: by the same code
//! as for anybody else (`attach.rs`), which asks the [`Bearer`] whether this key may.
//! - It attaches volumes of its pools. Such a record bears the name of the key; none of another key is replaced, and none of its
//!   own is hidden by one.
//! - Having others fenced, by a newer generation, takes the right to write; so who only reads attaches a volume beside others
//!   only.
//! - Its leases are those that were granted to its key. Which these are stands in the registry, and ends with them; so it may
//!   go on at another node.
//! - That the key may still do so is a condition of each change: who is removed from the registry changes nothing any more,
//!   however old the map is that the node has.
//!
//! Who may ask how the cluster is reads besides what that takes, and has nothing done.

use super::errand::{Errand, Outcome};
use super::{AttachRecord, Cluster, ClusterError, Read, encode, keys};
use async_trait::async_trait;
use base::map::VolumeInfo;
use base::{Access, ClientId, Permission, PoolId, Principal, VolumeId};
use registry::RawErrand;
use registry::RegistryError;
use registry::implement::PROBE;
use registry::implement::SCHEME;
use registry::implement::{Answer, Caller, Request, perform};
use registry::{Compare, LeaseId, Operation, Registry, RegistryTrouble, Revision, Txn, Watch};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Requests of one key, in the long run: one each so often.
const REQUEST_EVERY: Duration = Duration::from_millis(5);
/// So much of that may be used at once after a silence.
const BURST: Duration = Duration::from_secs(2);
/// The longest that a request waits for its turn: another node may have one sooner.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Conditions and steps of one transaction, none of which changes anything.
const READS_MAX: usize = 16;
/// The longest lease. Each is a record of the registry while it lives.
const TTL_MAX: Duration = Duration::from_secs(60);
/// Leases of one connection, at most.
const LEASES_MAX: usize = 64;
/// The longest description of who has a volume, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;
/// Records that one key has of who has one volume, at most.
const HOLDERS_MAX: usize = 512;
/// Those who share it may make half of them: who does not has those before fenced, and their records removed.
const SHARERS_MAX: usize = HOLDERS_MAX / 2;

type Result<T, E = RegistryError> = std::result::Result<T, E>;

/// How much is asked with one key, on all its connections to one process.
#[derive(Debug, Default)]
pub struct Pace {
    /// Signs of life have a share of their own: they keep what a key has, whatever else is asked with it.
    of_leases: Share,
    of_the_rest: Share,
}

/// A share of requests, and up to when it is used.
#[derive(Debug, Default)]
struct Share(Mutex<Option<Instant>>);

impl Share {
    /// Takes a turn for so many requests, and says how long it is until then; none if that is too long, and then none is
    /// taken. Whoever has a key can ask for as much as he likes.
    fn take(&self, requests: u32) -> Option<Duration> {
        let now = Instant::now();
        // Nothing that can panic runs while it is held.
        let mut used_until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let until = used_until.unwrap_or(earliest).max(earliest) + REQUEST_EVERY * requests;
        let wait = until.saturating_duration_since(now);
        if wait > WAIT_MAX {
            return None;
        }
        *used_until = Some(until);
        Some(wait)
    }
}

/// A key that a client came with, and what it may do with the volumes of pools.
pub(super) struct Bearer {
    pub(super) name: String,
    pools: BTreeMap<PoolId, Permission>,
    /// That it may still do so.
    pub(super) unchanged: Compare,
}

impl Bearer {
    fn forbidden<T>(&self, reason: String) -> Result<T, ClusterError> {
        Err(RegistryError::Forbidden { who: self.name.clone(), reason }.into())
    }

    fn permission(&self, info: &VolumeInfo) -> Result<Permission, ClusterError> {
        match self.pools.get(&info.pool) {
            Some(permission) => Ok(*permission),
            None => self.forbidden(format!(
                "volume {} is in no pool that its key is for; `millpond auth ls` shows which are",
                info.name
            )),
        }
    }

    /// Whether it may have a volume in that way.
    pub(super) fn may_attach(&self, info: &VolumeInfo, shared: bool) -> Result<(), ClusterError> {
        match self.permission(info)? {
            Permission::ReadWrite => Ok(()),
            Permission::Read if shared => Ok(()),
            Permission::Read => self.forbidden(format!(
                "its key only reads volume {}, beside others: attach it with --shared",
                info.name
            )),
        }
    }

    /// Whether it may have those fenced who had a volume before.
    pub(super) fn may_fence(&self, info: &VolumeInfo) -> Result<(), ClusterError> {
        match self.permission(info)? {
            Permission::ReadWrite => Ok(()),
            Permission::Read => self.forbidden(format!(
                "its key only reads volume {}, and somebody who wrote to it has not detached; attach it first with a key that \
                 may write",
                info.name
            )),
        }
    }

    /// Whether records are its own.
    pub(super) fn check_own<'a>(
        &self,
        records: impl IntoIterator<Item = &'a AttachRecord>,
    ) -> Result<(), ClusterError> {
        match records.into_iter().find(|record| record.principal.as_ref() != Some(&self.name)) {
            None => Ok(()),
            Some(other) => self.forbidden(format!(
                "client {:016x} came with another key ({})",
                other.client.0, other.description
            )),
        }
    }

    /// Whether one more may say that it has a volume: such records last.
    pub(super) fn check_room(
        &self,
        volume: &str,
        holders: &[AttachRecord],
        client: ClientId,
        shared: bool,
    ) -> Result<(), ClusterError> {
        let is_known = holders.iter().any(|holder| holder.client == client);
        let own = holders.iter().filter(|holder| holder.principal.as_ref() == Some(&self.name)).count();
        if is_known || own < if shared { SHARERS_MAX } else { HOLDERS_MAX } {
            return Ok(());
        }
        self.forbidden(format!(
            "{own} clients with this key have volume {volume}, or had it and did not detach; attaching it once without \
             --shared, with a key that may write, makes room"
        ))
    }
}

/// See the module's documentation.
pub struct ConfinedRegistry {
    inner: Arc<dyn Registry>,
    name: String,
    principal: Principal,
    pace: Arc<Pace>,
    /// Leases that are known to be its, and until when they live at least if nothing keeps them alive.
    leases: Mutex<BTreeMap<LeaseId, Instant>>,
}

impl ConfinedRegistry {
    /// `inner` as the principal of that name may use it; none for one that is confined to nothing, or has no business here.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Registry>,
        name: String,
        principal: Principal,
        pace: Arc<Pace>,
    ) -> Option<ConfinedRegistry> {
        match principal.access {
            Access::Pools(_) | Access::Monitor => {
                Some(ConfinedRegistry { inner, name, principal, pace, leases: Mutex::default() })
            }
            Access::Admin | Access::Node(_) => None,
        }
    }

    fn monitors(&self) -> bool {
        self.principal.access == Access::Monitor
    }

    fn leases(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Instant>> {
        // Nothing that can panic runs while it is held.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forbidden<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(RegistryError::Forbidden { who: self.name.clone(), reason: reason.into() })
    }

    /// The registry's business that is not this client's.
    fn not_its<T>(&self, key: &str) -> Result<T> {
        let key: String = key.chars().take(80).collect();
        let what =
            if self.monitors() { "to ask how the cluster is" } else { "for the volumes of some pools" };
        self.forbidden(format!(
            "its key is {what}, and {key:?} is the cluster's; use the key of an owner (`millpond auth add NAME --admin`)"
        ))
    }

    fn check_get(&self, key: &str) -> Result<()> {
        let is_public = key.starts_with(keys::MAP)
            || key.starts_with(keys::VOLUME_NAMES)
            || [keys::MOVING_IN, keys::MOVED, PROBE].contains(&key);
        if is_public || self.monitors() && [keys::MANAGER, keys::SETTINGS].contains(&key) {
            return Ok(());
        }
        self.not_its(key)
    }

    fn check_range(&self, prefix: &str) -> Result<()> {
        let is_of_monitors =
            [keys::HTTP, keys::DRIVES, keys::ATTACHED].iter().any(|allowed| prefix.starts_with(allowed))
                || [keys::MANAGER, keys::SETTINGS].contains(&prefix);
        if prefix.starts_with(keys::MAP) || self.monitors() && is_of_monitors {
            return Ok(());
        }
        self.not_its(prefix)
    }

    /// Whether a transaction is one that only reads what it may.
    fn check_txn(&self, txn: &Txn) -> Result<()> {
        if txn.compares.len() + txn.then.len() + txn.otherwise.len() > READS_MAX {
            return self.forbidden(format!("a transaction has {READS_MAX} conditions and steps at most"));
        }
        txn.compares.iter().try_for_each(|compare| self.check_get(compare.key()))?;
        txn.then.iter().chain(&txn.otherwise).try_for_each(|operation| match operation {
            Operation::Get { key } => self.check_get(key),
            // Each would be the whole map again.
            Operation::Range { prefix: key } | Operation::Put { key, .. } | Operation::Delete { key } => {
                self.not_its(key)
            }
        })
    }

    /// The key, and that it still may what it did when it came.
    async fn bearer(&self) -> Result<Bearer> {
        let Access::Pools(pools) = &self.principal.access else { return self.not_its("an attachment") };
        let key = keys::principal(&self.name);
        let entry = self.inner.get(&key).await?;
        let now = entry.as_ref().and_then(|entry| serde_json::from_slice(entry.value.as_bytes()).ok());
        if now.as_ref() != Some(&self.principal) {
            return self.forbidden("its access was changed a moment ago; connect again");
        }
        let unchanged = Compare::unchanged(key, entry.as_ref());
        Ok(Bearer { name: self.name.clone(), pools: pools.clone(), unchanged })
    }

    async fn run(&self, errand: Errand) -> Result<Outcome> {
        if let (Errand::Attachments { volume }, true) = (&errand, self.monitors()) {
            let records = Cluster::new(self.inner.clone()).attachments(*volume).await;
            return Outcome::of(records, Outcome::Attachments);
        }
        let bearer = self.bearer().await?;
        let cluster = Cluster::new(self.inner.clone());
        match errand {
            Errand::Attach { volume, client, lease, shared, description } => {
                if description.len() > DESCRIPTION_BYTES_MAX || description.contains(char::is_control) {
                    return self.forbidden("it describes itself in few and printable words");
                }
                self.check_lease(lease).await?;
                let bearer = Some(&bearer);
                let attached = cluster.attach_by(bearer, &volume, client, lease, shared, description).await;
                Outcome::of(attached, |mut attached| {
                    self.mask(&mut attached.unfenced);
                    Outcome::Attached(attached)
                })
            }
            Errand::Resume { volume, client, generation, lease } => {
                self.check_lease(lease).await?;
                let resumed = cluster.resume_by(Some(&bearer), volume, client, generation, lease).await;
                Outcome::of(resumed, Outcome::Resumed)
            }
            Errand::Detach { volume, client } => {
                Outcome::of(cluster.detach_by(&bearer, volume, client).await, |()| Outcome::Done)
            }
            Errand::Fenced { volume, client, generation } => {
                let fenced = cluster.fenced_by(&bearer, volume, client, generation).await;
                Outcome::of(fenced, |()| Outcome::Done)
            }
            Errand::Attachments { volume } => {
                let records = self.attachments(&cluster, &bearer, volume).await;
                Outcome::of(records, Outcome::Attachments)
            }
        }
    }

    /// Who has a volume, without what one must know to speak as another.
    async fn attachments(
        &self,
        cluster: &Cluster,
        bearer: &Bearer,
        volume: VolumeId,
    ) -> Result<Vec<AttachRecord>, ClusterError> {
        let info: Read<VolumeInfo> = cluster.read(&keys::volume(volume)).await?;
        if let Some(info) = &info.value {
            bearer.permission(info)?;
        }
        let mut records = cluster.attachments(volume).await?;
        self.mask(&mut records);
        Ok(records)
    }

    /// Leaves out of records of other keys by which OSDs would take one for them.
    fn mask(&self, records: &mut [AttachRecord]) {
        for record in records.iter_mut().filter(|record| record.principal.as_ref() != Some(&self.name)) {
            record.client = ClientId(0);
        }
    }

    /// Whether a lease is its own. Of another's it learns nothing, not even that it is there.
    async fn check_lease(&self, lease: LeaseId) -> Result<()> {
        if self.leases().contains_key(&lease) {
            return Ok(());
        }
        let entry = self.inner.get(&keys::client_lease(lease)).await?;
        if entry.is_some_and(|entry| entry.value == encode(&self.name)) {
            self.leases().insert(lease, Instant::now() + TTL_MAX);
            return Ok(());
        }
        Err(RegistryError::LeaseNotFound { lease })
    }

    async fn grant(&self, ttl: Duration) -> Result<Answer> {
        if !matches!(self.principal.access, Access::Pools(_)) {
            return self.not_its("a lease");
        }
        if ttl > TTL_MAX {
            return self.forbidden(format!("its leases are of {} s at most", TTL_MAX.as_secs()));
        }
        let now = Instant::now();
        let alive = {
            let mut leases = self.leases();
            leases.retain(|_, until| *until > now);
            leases.len()
        };
        if alive >= LEASES_MAX {
            return self.forbidden(format!(
                "it has {LEASES_MAX} leases on one connection, which is as many as there may be"
            ));
        }
        let lease = self.inner.lease_grant(ttl).await?;
        let put = Operation::put_leased(keys::client_lease(lease.id), encode(&self.name), lease.id);
        self.inner.txn(Txn::new().then(put)).await?;
        self.leases().insert(lease.id, now + lease.ttl);
        Ok(Answer::Granted { lease: lease.id, ttl_ms: lease.ttl.as_millis() as u64 })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<()> {
        self.check_lease(lease).await?;
        let kept = self.inner.lease_keep_alive(lease).await;
        match &kept {
            Ok(()) => drop(self.leases().insert(lease, Instant::now() + TTL_MAX)),
            Err(RegistryError::LeaseNotFound { .. }) => drop(self.leases().remove(&lease)),
            Err(_) => {}
        }
        kept
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.check_lease(lease).await?;
        self.inner.lease_revoke(lease).await?;
        self.leases().remove(&lease);
        Ok(())
    }

    async fn perform(&self, request: Request) -> Result<Answer> {
        match &request {
            Request::Get { key } => self.check_get(key)?,
            Request::Range { prefix } => self.check_range(prefix)?,
            Request::Txn(txn) => self.check_txn(txn)?,
            Request::LeaseGrant { ttl_ms } => return self.grant(Duration::from_millis(*ttl_ms)).await,
            Request::LeaseKeepAlive { lease } => return self.keep_alive(*lease).await.map(|()| Answer::Done),
            Request::LeaseRevoke { lease } => return self.revoke(*lease).await.map(|()| Answer::Done),
            Request::Compact { .. } => return self.not_its("history"),
            Request::Errand(errand) => {
                let Ok(errand) = serde_json::from_value(errand.body.clone()) else {
                    return self.forbidden("it asks for something that nodes do not do for clients");
                };
                let outcome = self.run(errand).await?;
                let answer = serde_json::to_value(outcome).expect("it has nothing that JSON lacks");
                return Ok(Answer::Errand(Some(answer)));
            }
        }
        perform(&*self.inner, request).await
    }

    async fn take_turn(&self, share: &Share, requests: u32) -> Result<()> {
        let Some(wait) = share.take(requests) else {
            let reason = "more is asked with this key than a node does for one".to_owned();
            return Err(RegistryError::Unreachable { registry: self.place(), waited_ms: 0, reason });
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// An error of the registry behind the node, without where that is.
    fn veil(&self, error: RegistryError) -> RegistryError {
        let registry = self.place();
        match error {
            RegistryError::Unreachable { waited_ms, reason, .. } => {
                RegistryError::Unreachable { registry, waited_ms, reason }
            }
            RegistryError::OutcomeUnknown { reason, .. } => {
                RegistryError::OutcomeUnknown { registry, reason }
            }
            RegistryError::Protocol { reason, .. } => RegistryError::Protocol { registry, reason },
            RegistryError::Refused { reason, .. } => RegistryError::Refused { registry, reason },
            other => other,
        }
    }
}

#[async_trait]
impl Caller for ConfinedRegistry {
    fn place(&self) -> String {
        format!("{SCHEME}, behind the node that was asked")
    }

    async fn call(&self, request: Request) -> Result<Answer> {
        let share = match &request {
            Request::LeaseKeepAlive { .. } => &self.pace.of_leases,
            _ => &self.pace.of_the_rest,
        };
        // What a node does for a client takes it some ten.
        let requests = if matches!(request, Request::Errand(_)) { 10 } else { 1 };
        self.take_turn(share, requests).await?;
        self.perform(request).await.map_err(|error| self.veil(error))
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>> {
        self.take_turn(&self.pace.of_the_rest, 1).await?;
        // What others attach is nobody's business while it goes on, and the map says when a volume changes hands.
        if !prefix.starts_with(keys::MAP) {
            return self.not_its(&prefix);
        }
        self.inner.watch(&prefix, start).await.map_err(|error| self.veil(error))
    }

    async fn send_on_errand(&self, errand: RawErrand) -> Result<Option<serde_json::Value>> {
        match self.call(Request::Errand(errand)).await? {
            Answer::Errand(outcome) => Ok(outcome),
            other => Err(other.unexpected(&self.place())),
        }
    }

    async fn find_troubles(&self) -> Vec<RegistryTrouble> {
        self.inner.troubles().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attachment;
    use base::map::{Admission, DeviceClass, PoolInfo};
    use base::{ClusterId, Generation, NodeId, OsdId, OsdUuid, PublicKey};
    use registry::MemoryRegistry;

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
        let pool = cluster.map().await.unwrap().pool_named("ours").unwrap().0;
        confined(cluster, name, Access::Pools(BTreeMap::from([(pool, permission)]))).await
    }

    async fn confined(cluster: &Cluster, name: &str, access: Access) -> Cluster {
        let known = cluster.principals().await.unwrap();
        let principal = known.get(name).cloned().unwrap_or_else(|| {
            let key = std::array::from_fn(|at| name.as_bytes().get(at).copied().unwrap_or(0));
            Principal { public_key: PublicKey(key), access }
        });
        cluster.put_principal(name, &principal).await.unwrap();
        let pace = Arc::new(Pace::default());
        let confined = ConfinedRegistry::new(cluster.registry().clone(), name.into(), principal, pace);
        Cluster::new(Arc::new(confined.unwrap()))
    }

    async fn volume_named(cluster: &Cluster, name: &str) -> (VolumeId, VolumeInfo) {
        let map = cluster.map().await.unwrap();
        let found = map.volumes.iter().find(|(_, info)| info.name == name).unwrap();
        (*found.0, found.1.clone())
    }

    async fn lease(cluster: &Cluster) -> LeaseId {
        cluster.registry().lease_grant(TTL).await.unwrap().id
    }

    async fn attach(
        cluster: &Cluster,
        volume: &str,
        number: u64,
        lease: LeaseId,
        shared: bool,
    ) -> Result<Attachment, ClusterError> {
        cluster.attach(volume, ClientId(number), lease, shared, "a test".to_owned()).await
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
        let first = lease(&client).await;
        let attached = attach(&client, "a", 1, first, false).await.unwrap();
        assert_eq!(attached.generation, Generation(1));
        let records = owner.attachments(attached.id).await.unwrap();
        assert_eq!(records[0].principal.as_deref(), Some("host"));
        assert_eq!(client.attachments(attached.id).await.unwrap(), records);
        assert!(client.resume(attached.id, ClientId(1), Generation(1), first).await.unwrap());
        client.registry().lease_keep_alive(first).await.unwrap();
        client.registry().lease_revoke(first).await.unwrap();
        client.detach(attached.id, ClientId(1)).await.unwrap();
        assert_eq!(owner.holders(attached.id).await.unwrap(), []);

        let second = lease(&client).await;
        assert_forbidden(attach(&client, "b", 1, second, false).await, "no pool that its key is for");
        let (b, _) = volume_named(&owner, "b").await;
        assert_forbidden(client.attachments(b).await, "no pool that its key is for");
        let nowhere = attach(&client, "c", 1, second, false).await.unwrap_err().to_string();
        assert!(nowhere.contains("volume c"), "{nowhere}");
        assert_forbidden(client.create_volume("c", "ours", 1 << 30).await, "the cluster's");
        assert_forbidden(client.resize_volume("a", 2 << 30, false).await, "the cluster's");
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
        let own = lease(&client).await;
        let prefixes = [
            "",
            "m",
            "millpond",
            "millpond/",
            "millpond/ma",
            "millpond/attached/1",
            "millpond/attached/",
            "millpond/attach-guard/1",
            "millpond/http/",
            "millpond/volume-name/",
            "millpond/client-lease/",
        ];
        for prefix in prefixes {
            let read = registry.range(prefix).await;
            assert!(matches!(read, Err(RegistryError::Forbidden { .. })), "{prefix}: {read:?}");
            let read = registry.txn(Txn::new().then(Operation::range(prefix))).await;
            assert!(matches!(read, Err(RegistryError::Forbidden { .. })), "{prefix}: {read:?}");
            assert!(registry.watch(prefix, Revision(0)).await.is_err(), "{prefix}");
        }
        for key in ["millpond/settings", "millpond/next/volume", &keys::attach_guard(b), &keys::holders_of(b)]
        {
            assert!(registry.get(key).await.is_err(), "{key}");
            let compare = Txn::new().when(Compare::Exists((*key).to_owned()));
            assert!(registry.txn(compare).await.is_err(), "{key}");
        }
        let raised = VolumeInfo { generation: Generation(1), ..info.clone() };
        let writes = [
            Operation::put(keys::volume(a), encode(&raised)),
            Operation::delete(keys::volume(a)),
            Operation::put(keys::attach_guard(a), "1"),
            Operation::delete(keys::attached(a, ClientId(1))),
            Operation::put("millpond/map/principal/me", "1"),
            Operation::put(keys::client_lease(own), encode(&"host")),
            Operation::put("elsewhere", "1"),
        ];
        for write in writes {
            for txn in [Txn::new().then(write.clone()), Txn::new().otherwise(write.clone())] {
                let done = registry.txn(txn).await;
                assert!(matches!(done, Err(RegistryError::Forbidden { .. })), "{write:?}: {done:?}");
            }
        }
        let many = (0..READS_MAX).fold(Txn::new(), |txn, _| txn.then(Operation::get(keys::CLUSTER)));
        assert!(registry.txn(many.clone()).await.is_ok());
        assert!(registry.txn(many.then(Operation::get(keys::CLUSTER))).await.is_err());
        assert!(matches!(registry.compact(Revision(1)).await, Err(RegistryError::Forbidden { .. })));
        assert!(registry.lease_grant(Duration::from_secs(3600)).await.is_err());
        for description in ["\u{1b}[2J".to_owned(), "x".repeat(DESCRIPTION_BYTES_MAX + 1)] {
            let attached = client.attach("a", ClientId(1), own, true, description).await;
            assert_forbidden(attached, "printable");
        }
        registry.lease_revoke(own).await.unwrap();
        assert_eq!(inner.range("").await.unwrap().entries, before.entries, "nothing was changed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_another_is_as_if_it_were_not_there() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let theirs = owner.registry().lease_grant(TTL).await.unwrap().id;
        let registry = client.registry();
        let gone = |done: Result<(), RegistryError>| {
            assert!(matches!(done, Err(RegistryError::LeaseNotFound { .. })), "{done:?}");
        };
        gone(registry.lease_keep_alive(theirs).await);
        gone(registry.lease_revoke(theirs).await);
        let attached = attach(&client, "a", 1, theirs, true).await;
        assert!(matches!(attached, Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. }))));
        owner.registry().lease_keep_alive(theirs).await.unwrap();
        // At another node it goes on with its own.
        let own = lease(&client).await;
        let elsewhere = self::client(&owner, "host", Permission::ReadWrite).await;
        elsewhere.registry().lease_keep_alive(own).await.unwrap();
        let stranger = self::client(&owner, "stranger", Permission::ReadWrite).await;
        gone(stranger.registry().lease_revoke(own).await);
        registry.lease_keep_alive(own).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_only_read_has_nobody_fenced_and_hides_nobody() {
        let owner = cluster().await;
        let reader = client(&owner, "backup", Permission::Read).await;
        let writer = client(&owner, "host", Permission::ReadWrite).await;
        let of_reader = lease(&reader).await;
        assert_forbidden(attach(&reader, "a", 1, of_reader, false).await, "--shared");
        let shared = attach(&reader, "a", 1, of_reader, true).await.unwrap();
        assert_eq!(shared.generation, Generation(0));
        let (a, _) = volume_named(&owner, "a").await;
        reader.detach(a, ClientId(1)).await.unwrap();
        // A writer attaches, and is gone without a word.
        let of_writer = lease(&writer).await;
        attach(&writer, "a", 2, of_writer, false).await.unwrap();
        let seen = reader.attachments(a).await.unwrap();
        assert_eq!(seen.iter().map(|record| record.client).collect::<Vec<_>>(), [ClientId(0)]);
        assert_forbidden(reader.detach(a, ClientId(2)).await, "another key");
        writer.registry().lease_revoke(of_writer).await.unwrap();
        let held = owner.holders(a).await.unwrap();
        assert_eq!(held.len(), 1);
        // Neither as itself, nor as the one who is gone.
        for client in [1, 2] {
            let attached = attach(&reader, "a", client, of_reader, true).await;
            assert_forbidden(attached, if client == 1 { "may write" } else { "another key" });
        }
        assert_forbidden(reader.resume(a, ClientId(2), Generation(1), of_reader).await, "another key");
        let claim = Attachment { client: ClientId(1), ..shared.clone() };
        assert_forbidden(reader.fenced(&claim).await, "may write");
        assert_eq!(owner.holders(a).await.unwrap(), held);
        // Another writer has it fenced, and says so.
        let other = client(&owner, "other", Permission::ReadWrite).await;
        let of_other = lease(&other).await;
        let attached = attach(&other, "a", 3, of_other, false).await.unwrap();
        let masked = AttachRecord { client: ClientId(0), ..held[0].clone() };
        assert_eq!(attached.unfenced, [masked], "nobody is told the ids of others");
        // Who has not got it says nothing of it.
        let claim = Attachment { generation: Generation(9), ..attached.clone() };
        assert!(matches!(other.fenced(&claim).await, Err(ClusterError::Refused { .. })));
        let claim = Attachment { client: ClientId(2), ..attached.clone() };
        assert_forbidden(other.fenced(&claim).await, "another key");
        assert_eq!(owner.holders(a).await.unwrap().len(), 2);
        other.fenced(&attached).await.unwrap();
        let left = owner.holders(a).await.unwrap();
        assert_eq!(left.iter().map(|record| record.client).collect::<Vec<_>>(), [ClientId(3)]);
        // Who has it beside is none of those before.
        other.registry().lease_revoke(of_other).await.unwrap();
        other.detach(a, ClientId(3)).await.unwrap();
        let of_other = lease(&other).await;
        let one = attach(&other, "a", 4, of_other, true).await.unwrap();
        attach(&other, "a", 5, of_other, true).await.unwrap();
        other.fenced(&Attachment { generation: Generation(one.generation.0), ..one }).await.unwrap();
        assert_eq!(owner.holders(a).await.unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_of_the_same_name_with_less_rights_does_not_undo_what_it_did_with_more() {
        let owner = cluster().await;
        let writer = client(&owner, "host", Permission::ReadWrite).await;
        let own = lease(&writer).await;
        let (a, _) = volume_named(&owner, "a").await;
        attach(&writer, "a", 1, own, false).await.unwrap();
        writer.registry().lease_revoke(own).await.unwrap();
        owner.remove_principal("host").await.unwrap();
        let reader = client(&owner, "host", Permission::Read).await;
        let own = lease(&reader).await;
        assert_forbidden(reader.detach(a, ClientId(1)).await, "may write");
        assert_forbidden(attach(&reader, "a", 1, own, true).await, "may write");
        assert_eq!(owner.holders(a).await.unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn whose_access_was_changed_changes_nothing_however_old_the_node_s_map_is() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let own = lease(&client).await;
        let (a, _) = volume_named(&owner, "a").await;
        attach(&client, "a", 1, own, false).await.unwrap();
        let mut principal = owner.principals().await.unwrap().remove("host").unwrap();
        let pool = volume_named(&owner, "b").await.1.pool;
        principal.access = Access::Pools(BTreeMap::from([(pool, Permission::ReadWrite)]));
        owner.put_principal("host", &principal).await.unwrap();
        assert_forbidden(attach(&client, "a", 2, own, true).await, "connect again");
        assert_forbidden(client.resume(a, ClientId(1), Generation(1), own).await, "connect again");
        owner.remove_principal("host").await.unwrap();
        assert_forbidden(client.detach(a, ClientId(1)).await, "connect again");
        assert_eq!(owner.holders(a).await.unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_monitors_reads_what_that_takes_and_changes_nothing() {
        let owner = cluster().await;
        let monitor = confined(&owner, "prometheus", Access::Monitor).await;
        let (a, _) = volume_named(&owner, "a").await;
        assert_eq!(monitor.map().await.unwrap(), owner.map().await.unwrap());
        assert_eq!(monitor.manager().await.unwrap(), None);
        assert_eq!(monitor.http_servers().await.unwrap(), []);
        assert_eq!(monitor.drives().await.unwrap(), BTreeMap::new());
        assert_eq!(monitor.attachments(a).await.unwrap(), []);
        monitor.settings().await.unwrap();
        assert!(monitor.registry().lease_grant(TTL).await.is_err());
        let theirs = owner.registry().lease_grant(TTL).await.unwrap().id;
        assert_forbidden(attach(&monitor, "a", 1, theirs, true).await, "to ask how the cluster is");
        assert_forbidden(monitor.change_settings(|settings| settings.osd_out_after_seconds = 1).await, "");
        assert_forbidden(monitor.set_admission(OsdId(0), Admission::Out).await, "the cluster's");
        for prefix in ["millpond", "millpond/", "millpond/holder/", "millpond/attach-guard/"] {
            assert!(monitor.registry().range(prefix).await.is_err(), "{prefix}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_served_as_fast_as_its_share_allows_and_leaves_no_heaps() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let burst = (BURST.as_millis() / REQUEST_EVERY.as_millis()) as u32;
        let began = Instant::now();
        for _ in 0..burst {
            client.registry().get(PROBE).await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "what it did not use a moment ago it may use now");
        for _ in 0..1000 {
            client.registry().get(PROBE).await.unwrap();
        }
        assert!(began.elapsed() >= REQUEST_EVERY * 1000, "{:?}", began.elapsed());
        // Many at once: some are sent elsewhere before anything is done, and signs of life get through.
        let own = lease(&client).await;
        let registry = client.registry();
        let many = (0..burst).map(|_| registry.get(PROBE));
        let (mut done, mut turned_away) = (0, 0);
        let mut all: Vec<_> = many.collect();
        for asking in &mut all {
            // Taken up at once, all of them.
            match tokio::time::timeout(Duration::ZERO, asking).await {
                Ok(Err(RegistryError::Unreachable { .. })) => turned_away += 1,
                _ => done += 1,
            }
        }
        assert!(turned_away > 0 && done >= (WAIT_MAX.as_millis() / REQUEST_EVERY.as_millis()) as u32 / 2);
        let began = Instant::now();
        client.registry().lease_keep_alive(own).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(all);
        tokio::time::sleep(TTL_MAX).await;

        for number in 0..LEASES_MAX {
            let long = client.registry().lease_grant(TTL_MAX).await;
            long.unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        assert!(client.registry().lease_grant(TTL).await.is_err());
        tokio::time::sleep(TTL_MAX).await;
        let own = lease(&client).await;
        for number in 0..SHARERS_MAX as u64 {
            attach(&client, "a", number, own, true).await.unwrap();
        }
        let more = SHARERS_MAX as u64;
        assert_forbidden(attach(&client, "a", more, own, true).await, "without --shared");
        attach(&client, "a", 0, own, true).await.expect("it has a place already");
        // They go, and one who does not share it makes room.
        client.registry().lease_revoke(own).await.unwrap();
        let own = lease(&client).await;
        let alone = attach(&client, "a", more, own, false).await.unwrap();
        assert_eq!(alone.unfenced.len(), SHARERS_MAX);
        client.fenced(&alone).await.unwrap();
        assert_eq!(owner.holders(alone.id).await.unwrap().len(), 1);
    }
}
