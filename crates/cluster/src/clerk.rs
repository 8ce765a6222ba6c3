//! Who answers what clients ask of a cluster. A node has one for each connection on which a client has proved its key.
//!
//! A client that is no owner asks [`Question`](super::Question)s and follows the cluster map; keys and values of the registry it
//! neither reads nor writes. What must be written for it is, by the same code as for anybody else (`attach.rs`), which asks the
//! [`Bearer`] whether this key may.
//! - It attaches volumes of its pools. Such a record bears the name of the key; none of another key is replaced, and none of its
//!   own is hidden by one.
//! - Having others fenced, by a newer generation, takes the right to write; so who only reads attaches a volume beside others
//!   only.
//! - It makes, changes and removes volumes of those pools that its key manages: by a [`Cluster`] that finds no others, and whose
//!   every transaction is under the condition below (`change.rs`).
//! - Its leases are those that were granted to its key. Which these are stands in the registry, and ends with them; so it may
//!   go on at another node.
//! - That the key may still do so is a condition of each change: who is removed from the registry changes nothing any more,
//!   however old the map is that the node has.
//!
//! Who may ask how the cluster is learns besides whom to ask, and has nothing done.
//!
//! Of the map they follow what routes requests, and of volumes those that their keys are for (`shown.rs`).

use super::question::Question;
use super::shown::{OfClients, Shown};
use super::{AttachRecord, Cluster, ClusterError, Result, WatchMode, WatchRecord, current, encode, keys};
use base::map::VolumeInfo;
use base::{Access, ClientId, Permission, PlaceName, PoolId, Principal, Rights};
use registry::implement::{PROBE, SCHEME};
use registry::{Compare, LeaseId, Operation, Range, Registry, RegistryError, Txn, Watch};
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
/// What reading the whole map counts as, in requests.
const MAP_COST: u32 = 10;
/// The longest lease. Each is a record of the registry while it lives.
const TTL_MAX: Duration = Duration::from_secs(60);
/// Leases of one key that a process granted or kept alive, at most.
const LEASES_MAX: usize = 1024;
/// The longest description of who has a volume, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 1024;
/// Records that one key has of who has one volume, at most.
const HOLDERS_MAX: usize = 512;
/// Those who share it may make half of them: who does not has those before fenced, and their records removed.
const SHARERS_MAX: usize = HOLDERS_MAX / 2;

/// A key that clients come with, as one process of a node knows it: what it may, and what it has used of that on all its
/// connections.
#[derive(Debug)]
pub struct Visitor {
    name: String,
    principal: Principal,
    /// Signs of life have a share of their own: they keep what a key has, whatever else is asked with it.
    signs_of_life: Share,
    requests: Share,
    /// Leases that are known to be its, and until when they live at least if nothing keeps them alive.
    leases: Mutex<BTreeMap<LeaseId, Instant>>,
}

impl Visitor {
    /// The principal of that name. It may nothing that it needs to be an owner or a node for.
    #[must_use]
    pub fn new(name: String, principal: Principal) -> Visitor {
        let (signs_of_life, requests, leases) = Default::default();
        Visitor { name, principal, signs_of_life, requests, leases }
    }

    /// Whether it is that principal, as it is now.
    #[must_use]
    pub fn is(&self, name: &str, principal: &Principal) -> bool {
        self.name == name && self.principal == *principal
    }

    fn forbidden<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(RegistryError::Forbidden { who: self.name.clone(), reason: reason.into() }.into())
    }

    /// It asked for what its key is not for.
    fn not_its<T>(&self, what: &str) -> Result<T> {
        let own = match self.principal.access {
            Access::Monitor => "to ask how the cluster is",
            _ => "for the volumes of some pools",
        };
        self.forbidden(format!(
            "its key is {own}, and not {what}; use the key of an owner (`millpond auth add NAME --admin`)"
        ))
    }

    fn was_changed<T>(&self) -> Result<T> {
        self.forbidden("its access was changed a moment ago; connect again")
    }

    async fn take_turn(&self, share: &Share, requests: u32) -> Result<(), RegistryError> {
        let Some(wait) = share.take(requests) else {
            let reason = "more is asked with this key than a node does for one".to_owned();
            return Err(RegistryError::Unreachable { registry: place(), waited_ms: 0, reason });
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    fn leases(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Instant>> {
        // Nothing that can panic runs while it is held.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a lease is its own, and forgets those that may have ended.
    fn note_lease(&self, lease: LeaseId, ttl: Duration) {
        let (now, mut leases) = (Instant::now(), self.leases());
        leases.retain(|_, until| *until > now);
        leases.insert(lease, now + ttl);
    }

    /// Whether a lease is its own. Of another's it learns nothing, not even that it is there.
    async fn check_lease(&self, registry: &dyn Registry, lease: LeaseId) -> Result<()> {
        if self.leases().contains_key(&lease) {
            return Ok(());
        }
        let entry = registry.get(&keys::client_lease(lease)).await?;
        if entry.is_some_and(|entry| entry.value == encode(&self.name)) {
            self.note_lease(lease, TTL_MAX);
            return Ok(());
        }
        Err(RegistryError::LeaseNotFound { lease }.into())
    }

    async fn grant(&self, registry: &dyn Registry, ttl: Duration) -> Result<LeaseId> {
        if !matches!(self.principal.access, Access::Pools(_)) {
            return self.not_its("to have something for a while");
        }
        if ttl > TTL_MAX {
            return self.forbidden(format!("its leases are of {} s at most", TTL_MAX.as_secs()));
        }
        let now = Instant::now();
        if self.leases().values().filter(|until| **until > now).count() >= LEASES_MAX {
            return self.forbidden(format!(
                "it has {LEASES_MAX} leases at one node, which is as many as there may be"
            ));
        }
        let lease = registry.lease_grant(ttl).await?;
        let put = Operation::put_leased(keys::client_lease(lease.id), encode(&self.name), lease.id);
        registry.txn(Txn::new().then(put)).await?;
        self.note_lease(lease.id, lease.ttl);
        Ok(lease.id)
    }
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

/// A key that a client came with, and what it may do with the volumes of pools and namespaces.
#[derive(Debug)]
pub(super) struct Bearer {
    pub(super) name: String,
    visitor: Arc<Visitor>,
    rights: Rights,
    /// That it may still do so.
    pub(super) unchanged: Compare,
}

impl Bearer {
    fn forbidden<T>(&self, reason: String) -> Result<T> {
        Err(RegistryError::Forbidden { who: self.name.clone(), reason }.into())
    }

    /// What it is for.
    pub(super) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// It asked for a volume that its key is not for, whether that is there or not.
    pub(super) fn is_not_for<T>(&self) -> Result<T> {
        self.forbidden(
            "that volume is in no pool that its key is for, nor in such a namespace; `millpond auth ls` shows which are"
                .to_owned(),
        )
    }

    /// What it may do with a volume. One that it is not for is not named: its id may have been guessed.
    pub(super) fn permission(&self, info: &VolumeInfo) -> Result<Permission> {
        match self.rights.to(info.pool, &info.namespace) {
            Some(permission) => Ok(permission),
            None => self.is_not_for(),
        }
    }

    /// Whether it may make, change and remove volumes at all.
    fn may_manage_some(&self) -> Result<()> {
        let pools = self.rights.pools.values().copied();
        match pools.chain(self.rights.named().map(|(.., one)| one)).any(Permission::may_manage) {
            true => Ok(()),
            false => self.manages_not("its key does not make or change volumes"),
        }
    }

    /// Whether it may make volumes in a place, of that pool if there is one.
    pub(super) fn may_manage_place(&self, pool: Option<PoolId>, place: &PlaceName) -> Result<()> {
        let what = if place.namespace.is_empty() { "pool" } else { "namespace" };
        match pool.and_then(|pool| self.rights.to(pool, &place.namespace)) {
            Some(permission) if permission.may_manage() => Ok(()),
            _ => self.manages_not(&format!("its key does not make volumes in {what} {place}")),
        }
    }

    /// Whether it may make and remove namespaces of a pool, if there is one: who manages all of it may.
    pub(super) fn may_manage_namespaces(&self, pool: Option<PoolId>, place: &str) -> Result<()> {
        match pool.and_then(|pool| self.rights.to(pool, "")) {
            Some(permission) if permission.may_manage() => Ok(()),
            _ => self.manages_not(&format!("its key does not make or remove the namespace {place}")),
        }
    }

    /// Whether it may change a volume, and remove it.
    pub(super) fn may_manage(&self, info: &VolumeInfo) -> Result<()> {
        match self.permission(info)? {
            permission if permission.may_manage() => Ok(()),
            _ => self.manages_not(&format!("its key does not change volume {}", info.name)),
        }
    }

    fn manages_not<T>(&self, what: &str) -> Result<T> {
        self.forbidden(format!(
            "{what}; one that does is made by an owner: `millpond auth add NAME --pool P --manage`, with \
             `--namespace N` for one of its namespaces alone"
        ))
    }

    /// Whether it still may do so.
    pub(super) async fn check_unchanged(&self, registry: &dyn Registry) -> Result<()> {
        match registry.txn(Txn::new().when(self.unchanged.clone())).await?.succeeded {
            true => Ok(()),
            false => self.visitor.was_changed(),
        }
    }

    /// Waits for its turn to have more asked of the registry than the question counts for.
    pub(super) async fn take_turn(&self, requests: u32) -> Result<()> {
        Ok(self.visitor.take_turn(&self.visitor.requests, requests).await?)
    }

    /// Whether it may have a volume in that way.
    pub(super) fn may_attach(&self, info: &VolumeInfo, shared: bool) -> Result<()> {
        match self.permission(info)? {
            permission if permission.may_write() || shared => Ok(()),
            _ => self.forbidden(format!(
                "its key only reads volume {}, beside others: attach it with --shared",
                info.name
            )),
        }
    }

    /// Whether it may have those fenced who had a volume before.
    pub(super) fn may_fence(&self, info: &VolumeInfo) -> Result<()> {
        match self.permission(info)? {
            permission if permission.may_write() => Ok(()),
            _ => self.forbidden(format!(
                "its key only reads volume {}, and somebody who wrote to it has not detached; attach it first with a key that \
                 may write",
                info.name
            )),
        }
    }

    /// Whether it may have a volume open in that way.
    pub(super) fn may_watch(&self, info: &VolumeInfo, mode: &WatchMode) -> Result<()> {
        match self.permission(info)? {
            permission if permission.may_write() || *mode != WatchMode::ReadWrite => Ok(()),
            _ => self.forbidden(format!("its key only reads volume {}: open it read-only", info.name)),
        }
    }

    /// Whether it may write to a volume, and so note who works on it.
    pub(super) fn may_lock(&self, info: &VolumeInfo) -> Result<()> {
        match self.permission(info)? {
            permission if permission.may_write() => Ok(()),
            _ => self.forbidden(format!("its key only reads volume {}, and locks nothing", info.name)),
        }
    }

    /// Whether it may remove a lock that came with another key.
    pub(super) fn may_break_lock(&self, info: &VolumeInfo, principal: Option<&String>) -> Result<()> {
        match self.permission(info)? {
            permission if permission.may_manage() || principal == Some(&self.name) => Ok(()),
            _ => self.forbidden(format!(
                "that lock of volume {} came with another key; it is broken with one that manages volumes \
                 (`millpond auth add NAME --pool P --manage`), or by an owner",
                info.name
            )),
        }
    }

    /// Whether what is noted of who has a volume open came with it.
    pub(super) fn check_own_watch(&self, record: Option<&WatchRecord>) -> Result<()> {
        match record.filter(|record| record.principal.as_ref() != Some(&self.name)) {
            None => Ok(()),
            Some(other) => self.forbidden(format!("client {:016x} came with another key", other.client.0)),
        }
    }

    /// Whether one more may say that it has a volume open.
    pub(super) fn check_watchers(&self, volume: &str, watchers: &[WatchRecord]) -> Result<()> {
        let own = watchers.iter().filter(|watcher| watcher.principal.as_ref() == Some(&self.name)).count();
        match own < HOLDERS_MAX {
            true => Ok(()),
            false => self.forbidden(format!("{own} clients with this key have volume {volume} open already")),
        }
    }

    /// Whether records are its own.
    pub(super) fn check_own<'a>(&self, records: impl IntoIterator<Item = &'a AttachRecord>) -> Result<()> {
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
    ) -> Result<()> {
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
#[derive(Clone)]
pub struct Clerk {
    pub(super) cluster: Cluster,
    /// None: an owner, who may everything.
    visitor: Option<Arc<Visitor>>,
}

impl Clerk {
    /// Answers whoever reaches it.
    #[must_use]
    pub fn of_owner(cluster: Cluster) -> Clerk {
        Clerk { cluster, visitor: None }
    }

    /// Answers who came with a key, as far as that goes.
    #[must_use]
    pub fn for_visitor(cluster: Cluster, visitor: Arc<Visitor>) -> Clerk {
        Clerk { cluster, visitor: Some(visitor) }
    }

    /// Answers, once it is the turn of this key.
    ///
    /// # Errors
    /// [`RegistryError::Forbidden`], and [`RegistryError::Unreachable`] if its turn does not come soon; those of the question.
    pub async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer> {
        let Some(visitor) = &self.visitor else { return question.answer(self).await };
        let share = if Q::IS_SIGN_OF_LIFE { &visitor.signs_of_life } else { &visitor.requests };
        visitor.take_turn(share, Q::COST).await?;
        question.answer(self).await.map_err(|error| match error {
            ClusterError::Registry(error) => veil(error).into(),
            error => error,
        })
    }

    /// All of what the cluster map is made of, as far as it is for whoever asks, and its changes from there on.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn follow_map(&self) -> Result<(Range, Box<dyn Watch>), RegistryError> {
        let registry = &*self.cluster.registry;
        let Some(visitor) = &self.visitor else { return current::read_and_watch(registry).await };
        visitor.take_turn(&visitor.requests, MAP_COST).await?;
        let (mut range, changes) = current::read_and_watch(registry).await.map_err(veil)?;
        let mut shown = Shown::to(&visitor.name, &visitor.principal);
        shown.reduce(&mut range);
        let changes: Box<dyn Watch> = Box::new(OfClients { changes, shown });
        Ok((range, changes))
    }

    /// Sees whether the registry answers, for whoever follows something there.
    ///
    /// # Errors
    /// Why it does not.
    pub async fn probe(&self) -> Result<(), RegistryError> {
        self.cluster.registry.get(PROBE).await.map(drop)
    }

    /// The registry itself, for an owner.
    ///
    /// # Errors
    /// [`RegistryError::Forbidden`].
    pub fn registry(&self) -> Result<&Arc<dyn Registry>> {
        match &self.visitor {
            None => Ok(&self.cluster.registry),
            Some(visitor) => visitor.not_its("for the registry"),
        }
    }

    /// Whether this key may ask how the cluster is.
    pub(super) fn check_monitors(&self) -> Result<()> {
        match &self.visitor {
            Some(visitor) if visitor.principal.access != Access::Monitor => {
                visitor.not_its("to ask how the cluster is")
            }
            _ => Ok(()),
        }
    }

    /// Whether it is answered who asks how the cluster is, and has no volumes.
    pub(super) fn is_for_monitor(&self) -> bool {
        self.visitor.as_ref().is_some_and(|visitor| visitor.principal.access == Access::Monitor)
    }

    /// The key, and that it still may what it did when it came. None for an owner.
    pub(super) async fn bearer(&self) -> Result<Option<Bearer>> {
        let Some(visitor) = &self.visitor else { return Ok(None) };
        let Access::Pools(rights) = &visitor.principal.access else { return visitor.not_its("for volumes") };
        let key = keys::principal(&visitor.name);
        let entry = self.cluster.registry.get(&key).await?;
        let now = entry.as_ref().and_then(|entry| serde_json::from_slice(entry.value.as_bytes()).ok());
        if now.as_ref() != Some(&visitor.principal) {
            return visitor.was_changed();
        }
        let unchanged = Compare::unchanged(key, entry.as_ref());
        let (name, rights, visitor) = (visitor.name.clone(), rights.clone(), visitor.clone());
        Ok(Some(Bearer { name, visitor, rights, unchanged }))
    }

    /// The cluster, for changes of volumes: of those that the key may change, while it may.
    pub(super) async fn managed(&self) -> Result<Cluster> {
        let Some(bearer) = self.bearer().await? else { return Ok(self.cluster.clone()) };
        bearer.may_manage_some()?;
        Ok(self.cluster.for_bearer(bearer))
    }

    pub(super) fn check_description(&self, description: &str) -> Result<()> {
        match &self.visitor {
            Some(visitor)
                if description.len() > DESCRIPTION_BYTES_MAX || description.contains(char::is_control) =>
            {
                visitor.forbidden("it describes itself in few and printable words")
            }
            _ => Ok(()),
        }
    }

    /// Leaves out of records of other keys by which OSDs would take one for them.
    pub(super) fn mask(&self, records: &mut [AttachRecord]) {
        let Some(visitor) = &self.visitor else { return };
        for record in records.iter_mut().filter(|record| record.principal.as_ref() != Some(&visitor.name)) {
            record.client = ClientId(0);
        }
    }

    /// The same, of those who have a volume open.
    pub(super) fn mask_watchers(&self, records: &mut [WatchRecord]) {
        let Some(visitor) = &self.visitor else { return };
        // Whoever asks how the cluster is gets in nowhere with it.
        let is_own = |principal: &Option<String>| principal.as_ref() == Some(&visitor.name);
        for record in records.iter_mut().filter(|record| !self.is_for_monitor() && !is_own(&record.principal))
        {
            record.client = ClientId(0);
        }
    }

    pub(super) async fn check_lease(&self, lease: LeaseId) -> Result<()> {
        match &self.visitor {
            Some(visitor) => visitor.check_lease(&*self.cluster.registry, lease).await,
            None => Ok(()),
        }
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Result<LeaseId> {
        match &self.visitor {
            Some(visitor) => visitor.grant(&*self.cluster.registry, ttl).await,
            None => Ok(self.cluster.registry.lease_grant(ttl).await?.id),
        }
    }

    pub(super) async fn keep_alive(&self, lease: LeaseId) -> Result<()> {
        self.check_lease(lease).await?;
        let kept = self.cluster.registry.lease_keep_alive(lease).await;
        if let Some(visitor) = &self.visitor {
            match &kept {
                Ok(()) => visitor.note_lease(lease, TTL_MAX),
                Err(RegistryError::LeaseNotFound { .. }) => drop(visitor.leases().remove(&lease)),
                Err(_) => {}
            }
        }
        Ok(kept?)
    }

    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        self.check_lease(lease).await?;
        self.cluster.registry.lease_revoke(lease).await?;
        if let Some(visitor) = &self.visitor {
            visitor.leases().remove(&lease);
        }
        Ok(())
    }
}

fn place() -> String {
    format!("{SCHEME}, behind the node that was asked")
}

/// An error of the registry behind a node, without where that is.
fn veil(error: RegistryError) -> RegistryError {
    let registry = place();
    match error {
        RegistryError::Unreachable { waited_ms, reason, .. } => {
            RegistryError::Unreachable { registry, waited_ms, reason }
        }
        RegistryError::OutcomeUnknown { reason, .. } => RegistryError::OutcomeUnknown { registry, reason },
        RegistryError::Protocol { reason, .. } => RegistryError::Protocol { registry, reason },
        RegistryError::Refused { reason, .. } => RegistryError::Refused { registry, reason },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::*;
    use crate::shown::is_for_clients;
    use crate::{Attachment, MapFollower};
    use base::map::{DeviceClass, PoolInfo, Stillness};
    use base::{ClusterId, Generation, NodeId, OsdUuid, PublicKey, VolumeId};
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

    /// Who answers a client that may do that with the pool `ours`.
    async fn client(cluster: &Cluster, name: &str, permission: Permission) -> Clerk {
        let pool = cluster.map().await.unwrap().pool_named("ours").unwrap().0;
        visitor(cluster, name, Access::Pools([(pool, permission)].into())).await
    }

    async fn visitor(cluster: &Cluster, name: &str, access: Access) -> Clerk {
        let known = cluster.principals().await.unwrap();
        let principal = known.get(name).cloned().unwrap_or_else(|| {
            let key = std::array::from_fn(|at| name.as_bytes().get(at).copied().unwrap_or(0));
            Principal::new(PublicKey(key), access)
        });
        cluster.put_principal(name, &principal).await.unwrap();
        Clerk::for_visitor(cluster.clone(), Arc::new(Visitor::new(name.into(), principal)))
    }

    async fn map_of(client: &Clerk) -> base::map::ClusterMap {
        let (range, changes) = client.follow_map().await.unwrap();
        MapFollower::of(range, changes).unwrap().map().unwrap()
    }

    async fn volume_named(cluster: &Cluster, name: &str) -> (VolumeId, VolumeInfo) {
        let map = cluster.map().await.unwrap();
        let found = map.volumes.iter().find(|(_, info)| info.name == name).unwrap();
        (*found.0, found.1.clone())
    }

    async fn lease(client: &Clerk) -> LeaseId {
        client.ask(Grant { ttl: TTL }).await.unwrap()
    }

    async fn attach(
        client: &Clerk,
        volume: &str,
        number: u64,
        lease: LeaseId,
        shared: bool,
    ) -> Result<Attachment> {
        attach_as(client, volume, number, lease, shared, "a test").await
    }

    async fn attach_as(
        client: &Clerk,
        volume: &str,
        number: u64,
        lease: LeaseId,
        shared: bool,
        description: &str,
    ) -> Result<Attachment> {
        let (volume, description) = (volume.to_owned(), description.to_owned());
        client
            .ask(Attach {
                volume,
                client: ClientId(number),
                lease,
                shared,
                description,
                id: None,
                knows_layers: true,
                yields: false,
                renews: false,
            })
            .await
    }

    async fn resume(
        client: &Clerk,
        volume: VolumeId,
        number: u64,
        generation: u32,
        lease: LeaseId,
    ) -> Result<bool> {
        let (generation, number) = (Generation(generation), ClientId(number));
        client.ask(Resume { volume, client: number, generation, lease }).await
    }

    async fn detach(client: &Clerk, volume: VolumeId, number: u64) -> Result<()> {
        client.ask(Detach { volume, client: ClientId(number) }).await
    }

    async fn fenced(client: &Clerk, attached: &Attachment) -> Result<()> {
        let Attachment { id: volume, client: own, generation, .. } = *attached;
        client.ask(Fenced { volume, client: own, generation }).await
    }

    #[track_caller]
    fn assert_forbidden<T: std::fmt::Debug>(done: Result<T>, words: &str) {
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
        let (seen, whole) = (map_of(&client).await, owner.map().await.unwrap());
        assert_eq!((&seen.pgs, seen.volumes.len(), whole.volumes.len()), (&whole.pgs, 1, 2));
        assert_eq!(client.ask(Identify {}).await.unwrap(), ClusterId::default());
        let first = lease(&client).await;
        let attached = attach(&client, "a", 1, first, false).await.unwrap();
        assert_eq!(attached.generation, Generation(1));
        let volume = attached.id;
        let records = owner.attachments(volume).await.unwrap();
        assert_eq!(records[0].principal.as_deref(), Some("host"));
        assert_eq!(client.ask(Attachments { volume }).await.unwrap(), records);
        assert!(resume(&client, volume, 1, 1, first).await.unwrap());
        client.ask(KeepAlive { lease: first }).await.unwrap();
        client.ask(Revoke { lease: first }).await.unwrap();
        detach(&client, volume, 1).await.unwrap();
        assert_eq!(owner.holders(volume).await.unwrap(), []);

        let second = lease(&client).await;
        assert_forbidden(attach(&client, "theirs/b", 1, second, false).await, "no pool that its key is for");
        let unseen = attach(&client, "b", 1, second, false).await;
        assert!(matches!(unseen, Err(ClusterError::NoSuchVolume { .. })), "{unseen:?}");
        let (b, _) = volume_named(&owner, "b").await;
        assert_forbidden(client.ask(Attachments { volume: b }).await, "no pool that its key is for");
        assert_forbidden(resume_there(&owner, &client, b, second).await, "another key");
        let says = StandsStill { volume: b, client: ClientId(7), number: Stillness(1), lease: second };
        assert_forbidden(client.ask(says).await, "another key");
        let nowhere = attach(&client, "c", 1, second, false).await.unwrap_err().to_string();
        assert!(nowhere.contains("volume c"), "{nowhere}");
        assert_forbidden(client.registry().map(drop), "--admin");
        assert_forbidden(client.ask(Manager {}).await, "the volumes of some pools");
        assert_forbidden(client.ask(HttpServers {}).await, "the volumes of some pools");
        assert_forbidden(client.ask(Drives {}).await, "the volumes of some pools");
    }

    /// Tries to go on with what an owner has attached.
    async fn resume_there(owner: &Cluster, client: &Clerk, volume: VolumeId, lease: LeaseId) -> Result<bool> {
        let of_owner = owner.registry().lease_grant(TTL).await.unwrap().id;
        owner.attach("b", ClientId(7), of_owner, true, "an owner".to_owned()).await.unwrap();
        resume(client, volume, 7, 0, lease).await
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_honest_client_asks_for_is_refused() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let before = owner.registry().range("").await.unwrap();
        let own = lease(&client).await;
        assert_forbidden(client.ask(Grant { ttl: Duration::from_secs(3600) }).await, "60 s at most");
        let long = "x".repeat(DESCRIPTION_BYTES_MAX + 1);
        for description in ["\u{1b}[2J", &long] {
            assert_forbidden(attach_as(&client, "a", 1, own, true, description).await, "printable");
        }
        // What is told of the map is of nothing else.
        let (range, mut changes) = client.follow_map().await.unwrap();
        assert!(range.entries.iter().all(|entry| entry.key.starts_with(keys::MAP)));
        owner.registry().put("millpond/settings", "{}".into()).await.unwrap();
        owner.registry().put("millpond/map/node/9", "{}".into()).await.unwrap();
        let told = changes.next().await.unwrap().events;
        assert_eq!(told.iter().map(registry::Event::key).collect::<Vec<_>>(), ["millpond/map/node/9"]);
        for key in ["millpond/settings", "millpond/map/node/9"] {
            owner.registry().delete(key).await.unwrap();
        }
        client.ask(Revoke { lease: own }).await.unwrap();
        let after = owner.registry().range("").await.unwrap();
        assert_eq!(after.entries, before.entries, "nothing was changed");
    }

    #[tokio::test(start_paused = true)]
    async fn what_osds_still_hold_of_removed_pools_and_which_schedules_there_are_is_told_to_owners_alone() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let monitor = visitor(&owner, "monitor", Access::Monitor).await;
        let (_, mut changes) = client.follow_map().await.unwrap();
        let wanted = crate::WantedSchedule {
            volumes: vec!["b".to_owned()],
            every: "1h".parse().unwrap(),
            keep: "1 last".parse().unwrap(),
        };
        owner.create_schedule("hourly", wanted, 0).await.unwrap();
        owner.remove_volume("b").await.unwrap();
        owner.remove_pool("theirs").await.unwrap();
        owner.registry().put("millpond/map/node/9", "{}".into()).await.unwrap();
        let mut told: Vec<String> = Vec::new();
        while told.last().is_none_or(|key| key != "millpond/map/node/9") {
            told.extend(changes.next().await.unwrap().events.iter().map(|event| event.key().to_owned()));
        }
        assert!(told.iter().any(|key| key.starts_with("millpond/map/pool/")), "{told:?}");
        assert!(told.iter().all(|key| is_for_clients(key)), "{told:?}");
        let map = owner.map().await.unwrap();
        assert_eq!((map.removed_pools.len(), map.schedules.len()), (1, 1));
        for other in [&client, &monitor] {
            let known = map_of(other).await;
            assert!(known.removed_pools.is_empty() && known.schedules.is_empty());
            assert_eq!(known.revision, map.revision);
        }
        assert_eq!(map_of(&Clerk::of_owner(owner)).await, map);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_of_another_is_as_if_it_were_not_there() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let theirs = owner.registry().lease_grant(TTL).await.unwrap().id;
        let gone = |done: Result<()>| {
            let is_gone = matches!(done, Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. })));
            assert!(is_gone, "{done:?}");
        };
        gone(client.ask(KeepAlive { lease: theirs }).await);
        gone(client.ask(Revoke { lease: theirs }).await);
        gone(attach(&client, "a", 1, theirs, true).await.map(drop));
        let volume = volume_named(&owner, "a").await.0;
        gone(resume(&client, volume, 1, 0, theirs).await.map(drop));
        owner.registry().lease_keep_alive(theirs).await.unwrap();
        // At another node it goes on with its own.
        let own = lease(&client).await;
        let elsewhere = self::client(&owner, "host", Permission::ReadWrite).await;
        elsewhere.ask(KeepAlive { lease: own }).await.unwrap();
        let stranger = self::client(&owner, "stranger", Permission::ReadWrite).await;
        gone(stranger.ask(Revoke { lease: own }).await);
        client.ask(KeepAlive { lease: own }).await.unwrap();
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
        detach(&reader, a, 1).await.unwrap();
        // A writer attaches, and is gone without a word.
        let of_writer = lease(&writer).await;
        attach(&writer, "a", 2, of_writer, false).await.unwrap();
        let seen = reader.ask(Attachments { volume: a }).await.unwrap();
        assert_eq!(seen.iter().map(|record| record.client).collect::<Vec<_>>(), [ClientId(0)]);
        assert_forbidden(detach(&reader, a, 2).await, "another key");
        writer.ask(Revoke { lease: of_writer }).await.unwrap();
        let held = owner.holders(a).await.unwrap();
        assert_eq!(held.len(), 1);
        // Neither as itself, nor as the one who is gone.
        for client in [1, 2] {
            let attached = attach(&reader, "a", client, of_reader, true).await;
            assert_forbidden(attached, if client == 1 { "may write" } else { "another key" });
        }
        assert_forbidden(resume(&reader, a, 2, 1, of_reader).await, "another key");
        let claim = Attachment { client: ClientId(1), ..shared.clone() };
        assert_forbidden(fenced(&reader, &claim).await, "may write");
        assert_eq!(owner.holders(a).await.unwrap(), held);
        // Another writer has it fenced, and says so.
        let other = client(&owner, "other", Permission::ReadWrite).await;
        let of_other = lease(&other).await;
        let attached = attach(&other, "a", 3, of_other, false).await.unwrap();
        let masked = AttachRecord { client: ClientId(0), ..held[0].clone() };
        assert_eq!(attached.unfenced, [masked], "nobody is told the ids of others");
        // Who has not got it says nothing of it.
        let claim = Attachment { generation: Generation(9), ..attached.clone() };
        assert!(matches!(fenced(&other, &claim).await, Err(ClusterError::Contended { .. })));
        let claim = Attachment { client: ClientId(2), ..attached.clone() };
        assert_forbidden(fenced(&other, &claim).await, "another key");
        assert_eq!(owner.holders(a).await.unwrap().len(), 2);
        fenced(&other, &attached).await.unwrap();
        let left = owner.holders(a).await.unwrap();
        assert_eq!(left.iter().map(|record| record.client).collect::<Vec<_>>(), [ClientId(3)]);
        // Who has it beside is none of those before.
        other.ask(Revoke { lease: of_other }).await.unwrap();
        detach(&other, a, 3).await.unwrap();
        let of_other = lease(&other).await;
        let one = attach(&other, "a", 4, of_other, true).await.unwrap();
        attach(&other, "a", 5, of_other, true).await.unwrap();
        fenced(&other, &one).await.unwrap();
        assert_eq!(owner.holders(a).await.unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_of_the_same_name_with_less_rights_does_not_undo_what_it_did_with_more() {
        let owner = cluster().await;
        let writer = client(&owner, "host", Permission::ReadWrite).await;
        let own = lease(&writer).await;
        let (a, _) = volume_named(&owner, "a").await;
        attach(&writer, "a", 1, own, false).await.unwrap();
        writer.ask(Revoke { lease: own }).await.unwrap();
        owner.remove_principal("host").await.unwrap();
        let reader = client(&owner, "host", Permission::Read).await;
        let own = lease(&reader).await;
        assert_forbidden(detach(&reader, a, 1).await, "may write");
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
        principal.access = Access::Pools([(pool, Permission::ReadWrite)].into());
        owner.put_principal("host", &principal).await.unwrap();
        assert_forbidden(attach(&client, "a", 2, own, true).await, "connect again");
        assert_forbidden(resume(&client, a, 1, 1, own).await, "connect again");
        owner.remove_principal("host").await.unwrap();
        assert_forbidden(detach(&client, a, 1).await, "connect again");
        assert_eq!(owner.holders(a).await.unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_monitors_reads_what_that_takes_and_changes_nothing() {
        let owner = cluster().await;
        let monitor = visitor(&owner, "prometheus", Access::Monitor).await;
        let (a, _) = volume_named(&owner, "a").await;
        assert_eq!(map_of(&monitor).await, owner.map().await.unwrap());
        assert_eq!(monitor.ask(Manager {}).await.unwrap(), None);
        assert_eq!(monitor.ask(HttpServers {}).await.unwrap(), []);
        assert_eq!(monitor.ask(Drives {}).await.unwrap(), BTreeMap::new());
        assert_eq!(monitor.ask(Attachments { volume: a }).await.unwrap(), []);
        let words = "to ask how the cluster is";
        assert_forbidden(monitor.ask(Grant { ttl: TTL }).await, words);
        let theirs = owner.registry().lease_grant(TTL).await.unwrap().id;
        assert!(monitor.ask(KeepAlive { lease: theirs }).await.is_err());
        assert!(monitor.ask(Revoke { lease: theirs }).await.is_err());
        assert_forbidden(attach(&monitor, "a", 1, theirs, true).await, words);
        assert_forbidden(resume(&monitor, a, 1, 0, theirs).await, words);
        assert_forbidden(detach(&monitor, a, 1).await, words);
        let claim = Fenced { volume: a, client: ClientId(1), generation: Generation(0) };
        assert_forbidden(monitor.ask(claim).await, words);
        assert_forbidden(monitor.registry().map(drop), words);
        owner.registry().lease_keep_alive(theirs).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn whose_key_says_owner_or_node_is_none_by_coming_as_a_visitor() {
        let owner = cluster().await;
        for access in [Access::Admin, Access::Node(NodeId(0))] {
            let name = format!("{access:?}");
            let clerk = Clerk::for_visitor(
                owner.clone(),
                Arc::new(Visitor::new(name, Principal::new(PublicKey([9; 32]), access))),
            );
            assert_forbidden(clerk.registry().map(drop), "");
            assert_forbidden(clerk.ask(Grant { ttl: TTL }).await, "");
            assert_forbidden(clerk.ask(Drives {}).await, "");
            assert_forbidden(attach(&clerk, "a", 1, LeaseId(1), true).await, "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_served_as_fast_as_its_share_allows_and_leaves_no_heaps() {
        let owner = cluster().await;
        let client = client(&owner, "host", Permission::ReadWrite).await;
        let burst = (BURST.as_millis() / REQUEST_EVERY.as_millis()) as u32;
        let began = Instant::now();
        for _ in 0..burst {
            client.ask(Identify {}).await.unwrap();
        }
        assert_eq!(began.elapsed(), Duration::ZERO, "what it did not use a moment ago it may use now");
        for _ in 0..1000 {
            client.ask(Identify {}).await.unwrap();
        }
        assert!(began.elapsed() >= REQUEST_EVERY * 1000, "{:?}", began.elapsed());
        // Many at once: some are sent elsewhere before anything is done, and signs of life get through.
        let own = lease(&client).await;
        let many = (0..burst).map(|_| client.ask(Identify {}));
        let (mut done, mut turned_away) = (0, 0);
        let mut all: Vec<_> = many.map(Box::pin).collect();
        for asking in &mut all {
            // Taken up at once, all of them.
            match tokio::time::timeout(Duration::ZERO, asking).await {
                Ok(Err(ClusterError::Registry(RegistryError::Unreachable { .. }))) => turned_away += 1,
                _ => done += 1,
            }
        }
        assert!(turned_away > 0 && done >= (WAIT_MAX.as_millis() / REQUEST_EVERY.as_millis()) as u32 / 2);
        let began = Instant::now();
        client.ask(KeepAlive { lease: own }).await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(all);
        tokio::time::sleep(TTL_MAX).await;

        for number in 0..LEASES_MAX {
            let long = client.ask(Grant { ttl: TTL_MAX }).await;
            long.unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        assert_forbidden(client.ask(Grant { ttl: TTL }).await, "1024 leases");
        tokio::time::sleep(TTL_MAX).await;
        let own = lease(&client).await;
        for number in 0..SHARERS_MAX as u64 {
            attach(&client, "a", number, own, true).await.unwrap();
        }
        let more = SHARERS_MAX as u64;
        assert_forbidden(attach(&client, "a", more, own, true).await, "without --shared");
        attach(&client, "a", 0, own, true).await.expect("it has a place already");
        // They go, and one who does not share it makes room.
        client.ask(Revoke { lease: own }).await.unwrap();
        let own = lease(&client).await;
        let alone = attach(&client, "a", more, own, false).await.unwrap();
        assert_eq!(alone.unfenced.len(), SHARERS_MAX);
        fenced(&client, &alone).await.unwrap();
        assert_eq!(owner.holders(alone.id).await.unwrap().len(), 1);
    }
}
