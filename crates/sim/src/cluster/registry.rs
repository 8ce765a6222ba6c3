//! The registry, the manager, and how nodes use them: the real ones over a registry in memory, with answers that come
//! late or never.

mod clones;
pub(super) mod ownership;
mod removal;
mod replacement;
mod snapshots;
mod volumes;

pub(super) use clones::{family_of, is_clone, volume_id, volume_index};
pub(super) use snapshots::Look;

use super::hostile::Malice;
use super::network::address_of;
use super::plan::Plan;
use super::topology::Topology;
use super::world::{Event, Input, MILLISECOND, Process, Proposal, SECOND, World};
use crate::machine::identity_of;
use crate::random::Random;
use base::map::{
    Admission, ClusterMap, DeviceClass, OsdInfo, PgConfig, PlacementRule, PoolInfo, Trashed, VolumeInfo,
};
use base::status::{OsdStatus, PgState, PgStatus, Statuses};
use base::{ClientId, Epoch, Generation, NodeId, OsdId, OsdUuid, PgId, PoolId, VolumeId};
use cluster::{Attachment, Cluster, ClusterError, ManagerRecord, MapFollower, TargetChange};
use manager::Management;
use manager::decide::Moment;
use manager::decide::targets::target_changes;
use pg::{GroupSummary, Osd};
use placement::{Candidate, Survey};
use registry::{LeaseId, MemoryRegistry, RegistryError};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long a node counts as up, and a manager as such, without a sign of life.
const LEASE: Duration = Duration::from_secs(6);
/// How often it gives one.
const HEARTBEAT: u64 = 2 * SECOND;
/// The same of clients that have volumes attached.
const CLIENT_LEASE: Duration = Duration::from_secs(3);
const CLIENT_HEARTBEAT: u64 = SECOND;
/// How often leases end, and whoever manages decides.
const LEASE_CHECK: u64 = 500 * MILLISECOND;
/// The pool.
pub(super) const POOL: PoolId = PoolId(1);
/// Its name.
const POOL_NAME: &str = "pool";
/// Another one on the same OSDs, whose key somebody has who means harm.
pub(super) const MALICE_POOL: PoolId = PoolId(2);
const MALICE_POOL_NAME: &str = "malice";
/// Its groups, and its volumes.
const MALICE_PGS: u32 = 2;
const MALICE_VOLUMES: usize = 2;
/// The objects of each volume of these.
pub(super) const MALICE_OBJECTS: u64 = 4;
/// The objects of each volume, mostly.
pub(super) const VOLUME_OBJECTS: u64 = 16;

/// Another one, in lives in which a pool is removed.
const DOOMED_POOL_NAME: &str = "doomed";

/// A process that takes itself for the manager.
struct Manager {
    life: u32,
    lease: LeaseId,
    record: ManagerRecord,
    management: Management,
}

/// See the module's documentation.
pub(super) struct Registry {
    memory: Arc<MemoryRegistry>,
    cluster: Cluster,
    follower: MapFollower,
    pub(super) map: Arc<ClusterMap>,
    /// By process: the newest map it was given.
    maps: Vec<Arc<ClusterMap>>,
    /// By process: the lease under which its OSD was announced, or its volumes attached.
    leases: Vec<Option<LeaseId>>,
    /// By node.
    managers: Vec<Option<Manager>>,
    /// What OSDs told last of themselves, to whoever manages, as far as anything is decided by it.
    told: Statuses,
    is_available: bool,
    outage: u64,
    /// By node: its drive hangs, and it counts as down until that goes on.
    hangs: Vec<bool>,
    /// By node: its drive is lost for good.
    is_lost: Vec<bool>,
    /// By node: an operator wants to take it away once nothing needs it.
    retires: Vec<bool>,
    /// By node: that was done, while it ran or not.
    is_removed: Vec<bool>,
    /// By node: its drive is lost, and a blank one is to take its place.
    is_to_be_replaced: Vec<bool>,
    /// Groups whose last copies are lost with one of these, and that an operator has begin anew.
    given_up: BTreeSet<PgId>,
    /// Nobody looks whether a drive that is replaced holds the last copy of something.
    pub(super) gives_up_what_counts: bool,
    /// By node: as what its drive is formatted.
    uuids: Vec<OsdUuid>,
    /// By node: how much of the data shall lie there, as the size of its drive in bytes.
    weights: Vec<u64>,
    /// Where the nodes stand now.
    topology: Topology,
    /// Every configuration there ever was.
    history: BTreeMap<(PgId, Epoch), PgConfig>,
    /// By group: who was no member of it at some time when its whole target was in sync.
    dispensable: BTreeSet<(PgId, OsdId)>,
    /// The sizes that volumes ever had, in bytes.
    sizes: BTreeSet<(VolumeId, u64)>,
    /// How many volumes there are from the beginning.
    volumes: usize,
}

/// What a registry in memory answers: it lets nobody wait.
fn done<T>(future: impl Future<Output = T>) -> T {
    poll(future).expect("a registry in memory answers at once")
}

/// What there is without waiting.
fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl Registry {
    pub(super) fn new(plan: &Plan) -> Registry {
        let memory = Arc::new(MemoryRegistry::new());
        let cluster = Cluster::new(memory.clone());
        done(create(&cluster, plan)).expect("a plan's cluster can be made");
        let follower = done(MapFollower::begin(&*memory)).expect("a registry in memory can be read");
        let processes = plan.processes();
        let mut registry = Registry {
            memory,
            cluster,
            map: Arc::new(follower.map().expect("the cluster was made")),
            follower,
            maps: (0..processes).map(|_| Arc::default()).collect(),
            leases: vec![None; processes],
            managers: (0..plan.nodes).map(|_| None).collect(),
            told: Statuses::new(),
            is_available: true,
            outage: 0,
            hangs: vec![false; plan.nodes],
            is_lost: vec![false; plan.nodes],
            retires: vec![false; plan.nodes],
            is_removed: vec![false; plan.nodes],
            is_to_be_replaced: vec![false; plan.nodes],
            given_up: BTreeSet::new(),
            gives_up_what_counts: false,
            uuids: (0..plan.nodes).map(osd_uuid).collect(),
            weights: vec![OSD_BYTES; plan.nodes],
            topology: plan.topology.clone(),
            history: BTreeMap::new(),
            dispensable: BTreeSet::new(),
            sizes: BTreeSet::new(),
            volumes: plan.volumes,
        };
        registry.note_map();
        registry
    }

    /// Whether a group was registered as whole without this OSD, which may delete what it holds of it then, or its pool was
    /// removed.
    pub(super) fn is_dispensable(&self, pg: PgId, osd: OsdId) -> bool {
        self.dispensable.contains(&(pg, osd)) || !self.map.pools.contains_key(&pg.pool)
    }

    /// Whether a volume ever had that size.
    pub(super) fn had_size(&self, volume: VolumeId, bytes: u64) -> bool {
        self.sizes.contains(&(volume, bytes))
    }

    /// A volume, by its number among those of a life, as it is now.
    pub(super) fn volume(&self, index: usize) -> &VolumeInfo {
        &self.map.volumes[&volume_id(index)]
    }

    /// Keeps what checkers ask for later.
    fn note_map(&mut self) {
        self.sizes.extend(self.map.volumes.iter().map(|(volume, info)| (*volume, info.bytes)));
        for (pg, config) in &self.map.pgs {
            self.history.entry((*pg, config.epoch)).or_insert_with(|| config.clone());
            let target = &self.map.targets[pg];
            let size = self.map.pools[&pg.pool].size as usize;
            if target.len() < size || !target.iter().all(|osd| config.in_sync.contains(osd)) {
                continue;
            }
            let is_member = |osd: &OsdId| config.in_sync.contains(osd) || config.learners.contains(osd);
            // Who was removed before may still have to hear of it.
            let osds = (0..self.is_removed.len()).map(|node| OsdId(node as u32));
            let strangers = osds.filter(|osd| !is_member(osd) && !target.contains(osd));
            self.dispensable.extend(strangers.map(|osd| (*pg, osd)));
        }
    }

    /// Whether a group ever had one member alone in sync.
    pub(super) fn had_one_member_alone(&self) -> bool {
        self.history.values().any(|config| config.in_sync.len() == 1)
    }

    /// Whether an OSD was ever to lead a group.
    pub(super) fn has_led(&self, pg: PgId, osd: OsdId) -> bool {
        let mut of_group = self.history.range((pg, Epoch(0))..=(pg, Epoch(u32::MAX)));
        of_group.any(|(_, config)| config.primary == osd)
    }

    /// A group of the pool, whichever chance picks.
    pub(super) fn some_group(&self, random: &mut Random) -> PgId {
        let groups: Vec<PgId> = self.map.pgs.keys().filter(|pg| pg.pool == POOL).copied().collect();
        groups[random.index(groups.len())]
    }

    /// Whether data is placed on an OSD.
    pub(super) fn is_in(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_some_and(|info| info.admission == Admission::In)
    }

    /// Groups that shall lie otherwise than the pool's rule wants, by a count of its own: with more copies in one failure
    /// domain than it takes.
    pub(super) fn crowded_groups(&self) -> usize {
        let of_pool = self.map.targets.iter().filter(|(pg, _)| pg.pool == POOL);
        let targets: Vec<Vec<OsdId>> = of_pool.map(|(_, target)| target.clone()).collect();
        let candidates = Candidate::all(&self.map);
        if candidates.is_empty() {
            return 0;
        }
        Survey::of(self.pool().size, self.topology.failure_domain, &targets, &candidates).violations
    }

    /// A node is carried to another failure domain, with its drive.
    pub(super) fn carry(&mut self, node: usize, world: &mut World) {
        let domain = self.topology.some_domain(&mut world.random);
        if !self.is_available {
            return;
        }
        world.story(Some(Process(node)), || format!("stands in domain {domain} from now on"));
        self.topology.carry(node, domain);
        self.set_clock(world);
        let info = self.topology.info(node);
        done(self.cluster.change_node(node_id(node), |known| known.clone_from(&info))).expect("it is known");
        self.show(world);
    }

    /// The nodes of some failure domain.
    pub(super) fn some_neighbours(&self, random: &mut Random) -> Vec<usize> {
        self.topology.some_neighbours(random)
    }

    /// Whether the manager has nothing to change where data lies: members that nobody wants any more go soon, with what they
    /// alone may hold.
    pub(super) fn is_settled(&self) -> bool {
        // Who is back is in again in a moment.
        let is_back = |info: &OsdInfo| info.admission == Admission::OutWhileDown && info.address.is_some();
        target_changes(&self.map).is_empty() && !self.map.osds.values().any(is_back)
    }

    /// Whether an OSD counts as up.
    pub(super) fn is_up(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_some_and(|info| info.address.is_some())
    }

    /// The pool as it is now.
    pub(super) fn pool(&self) -> &PoolInfo {
        &self.map.pools[&POOL]
    }

    /// An operator says whether data is placed on an OSD.
    pub(super) fn admit(&mut self, node: usize, admission: Admission, world: &mut World) {
        let osd = OsdId(node as u32);
        if !self.is_available || self.map.osds.get(&osd).is_none_or(|info| info.admission == admission) {
            return;
        }
        world.story(Some(Process(node)), || format!("is {admission:?}"));
        self.set_clock(world);
        done(self.cluster.set_admission(osd, admission)).expect("the map shows it");
        self.show(world);
    }

    /// An operator has more or less of the data lie on an OSD.
    pub(super) fn reweigh(&mut self, node: usize, world: &mut World) {
        self.weights[node] = OSD_BYTES << world.random.below(3);
        let is_known = self.map.osds.contains_key(&OsdId(node as u32));
        if !self.is_available || !is_known {
            return;
        }
        world.story(Some(Process(node)), || format!("weighs {}", self.weights[node]));
        self.set_clock(world);
        done(self.register(node)).expect("it is known");
        self.show(world);
    }

    /// An operator has the pool keep more copies or fewer.
    pub(super) fn resize_pool(&mut self, world: &mut World) {
        let living = candidates(&self.map).into_iter().filter(|osd| !self.has_lost_its_drive(osd.0 as usize));
        let most = living.count().clamp(1, 3) as u64;
        // The one copy that is kept could be the one that was just lost.
        let has_lost = self.is_lost.contains(&true) || self.is_to_be_replaced.contains(&true);
        let least = if has_lost { most.min(2) } else { 1 };
        let size = world.random.between(least, most) as u32;
        let min_size = world.random.between(1, u64::from(size)) as u32;
        if !self.is_available {
            return;
        }
        world.story(None, || format!("the pool shall keep {size} copies, and {min_size} for writes"));
        self.set_clock(world);
        match done(self.cluster.change_pool(POOL_NAME, Some(size), Some(min_size))) {
            Ok(_) => {}
            Err(ClusterError::TooFewOsds { .. } | ClusterError::TooFewDomains { .. }) => {
                world.coverage.count("the pool is not resized: too few OSDs")
            }
            Err(error) => panic!("the pool cannot be resized: {error}"),
        }
        self.show(world);
    }

    /// An operator wants twice as many groups. False where that cannot be asked for now.
    pub(super) fn split_pool(&mut self, world: &mut World) -> bool {
        if !self.is_available || self.pool().split_to.is_some() {
            return false;
        }
        self.set_clock(world);
        let pg_count = 2 * self.pool().pg_count;
        done(self.cluster.set_pg_count(POOL_NAME, pg_count)).expect("the groups are not being split");
        world.event(None, "the pool shall have twice as many groups");
        self.show(world);
        true
    }

    /// An operator, or the balancer, moves a group.
    pub(super) fn move_group(&mut self, world: &mut World) {
        let pg = self.some_group(&mut world.random);
        let mut target = candidates(&self.map);
        while target.len() > self.pool().size as usize {
            target.remove(world.random.index(target.len()));
        }
        if target.is_empty() || !self.is_available {
            return;
        }
        let first = world.random.index(target.len());
        target.rotate_left(first);
        world.story(None, || format!("pg {pg} shall lie on {target:?}"));
        self.set_clock(world);
        let change = TargetChange { pg, before: self.map.targets.get(&pg).cloned(), target };
        done(self.cluster.change_targets(&[change])).expect("targets are in order");
        self.show(world);
    }

    /// An operator has an OSD lead a group of whose target it is, as far as the manager leaves that so.
    pub(super) fn have_it_lead(&mut self, pg: PgId, osd: OsdId, world: &mut World) {
        let Some(before) = self.map.targets.get(&pg).cloned() else { return };
        if !self.is_available || !self.is_in(osd) || !before.contains(&osd) || before[0] == osd {
            return;
        }
        world.story(None, || format!("{osd} shall lead pg {pg}"));
        self.set_clock(world);
        let target =
            std::iter::once(osd).chain(before.iter().copied().filter(|other| *other != osd)).collect();
        done(self.cluster.change_targets(&[TargetChange { pg, before: Some(before), target }]))
            .expect("targets are in order");
        self.show(world);
    }

    /// Nobody is out any more but those whose drives are lost, and those that shall be taken away and can be.
    pub(super) fn admit_all(&mut self, world: &mut World) {
        for node in 0..self.is_lost.len() {
            let is_out = self.is_lost[node] || self.retires[node];
            self.admit(node, if is_out { Admission::Out } else { Admission::In }, world);
        }
        for node in 0..self.is_lost.len() {
            if self.retires[node] && !self.is_gone(node) && !self.can_do_without(node) {
                self.retires[node] = false;
                self.admit(node, Admission::In, world);
            }
        }
    }

    /// The registry forgets that an OSD or a client is alive, which is heard all the time.
    pub(super) fn lose_a_lease(&mut self, process: Process, world: &mut World) {
        let Some(lease) = self.leases[process.0].filter(|_| self.is_available) else { return };
        self.set_clock(world);
        self.revoke(lease);
        self.show(world);
    }

    /// Who was primary of a group in an epoch, and with whom.
    pub(super) fn config_of(&self, pg: PgId, epoch: Epoch) -> Option<&PgConfig> {
        self.history.get(&(pg, epoch))
    }

    /// Whether a process can talk to the registry, both ways.
    pub(super) fn is_reachable(&self, process: Process, world: &World) -> bool {
        let registry = world.registry();
        self.is_available && !world.is_cut(process, registry) && !world.is_cut(registry, process)
    }

    fn set_clock(&self, world: &World) {
        self.memory.advance(Duration::from_nanos(world.now));
    }

    /// Sends the map to everybody, if it has changed.
    fn show(&mut self, world: &mut World) {
        let mut is_new = false;
        while let Some(seen) = poll(self.follower.next()) {
            is_new = true;
            if seen.is_err() {
                // The registry was opened anew: what a new reading shows has all of it.
                world.coverage.count("the map is read anew");
                self.follower =
                    done(MapFollower::begin(&*self.memory)).expect("a registry in memory can be read");
            }
        }
        if !is_new {
            return;
        }
        let map = self.follower.map().expect("the cluster does not go away");
        let before = std::mem::replace(&mut self.map, Arc::new(map));
        self.note_map();
        for (osd, info) in &self.map.osds {
            let was = before.osds.get(osd).map(|before| before.admission);
            if info.admission == Admission::OutWhileDown && was == Some(Admission::In) {
                world.event(Some(Process(osd.0 as usize)), "taken out, for it stayed away");
            }
            if info.address.is_none() && before.osds.get(osd).is_some_and(|before| before.address.is_some()) {
                world.event(Some(Process(osd.0 as usize)), "lease ended");
            }
        }
        for index in 0..world.mailboxes.len() - 1 {
            if world.mailboxes[index].is_running {
                let (process, life) = (Process(index), world.mailboxes[index].life);
                let delay = world.registry_delay();
                world.after(delay, Event::MapArrives { process, life, map: self.map.clone() });
            }
        }
    }

    /// A map reaches a process, unless it cannot, or has a newer one.
    pub(super) fn map_arrives(
        &mut self,
        process: Process,
        life: u32,
        map: Arc<ClusterMap>,
        world: &mut World,
    ) {
        if !world.is_alive(process, life) || self.maps[process.0].revision >= map.revision {
            return;
        }
        if !self.is_reachable(process, world) {
            let again = world.random.between(100 * MILLISECOND, SECOND);
            return world.after(again, Event::MapArrives { process, life, map });
        }
        self.maps[process.0] = map.clone();
        world.tell(process, Input::Map(map));
    }

    /// Sees to it that a process has the newest map. False if that does not get through.
    pub(super) fn shows_map(&mut self, process: Process, world: &mut World) -> bool {
        let life = world.mailboxes[process.0].life;
        if self.maps[process.0].revision < self.map.revision && self.is_reachable(process, world) {
            self.map_arrives(process, life, self.map.clone(), world);
        }
        self.maps[process.0].revision >= self.map.revision
    }

    /// The newest map, as a process finds it when it starts.
    pub(super) fn map_at_start(&mut self, process: Process) -> Arc<ClusterMap> {
        self.maps[process.0] = self.map.clone();
        self.map.clone()
    }

    /// A node announces where it serves.
    pub(super) fn announce(&mut self, process: Process, world: &mut World) {
        self.announce_again(process, world);
        let life = world.mailboxes[process.0].life;
        world.after(HEARTBEAT, Event::Heartbeat { process, life });
    }

    async fn register(&self, node: usize) -> Result<OsdId, ClusterError> {
        self.cluster.register_osd(self.uuids[node], node_id(node), self.weights[node], DeviceClass::Ssd).await
    }

    fn announce_again(&mut self, process: Process, world: &mut World) {
        let life = world.mailboxes[process.0].life;
        self.set_clock(world);
        if !self.map.osds.contains_key(&OsdId(process.0 as u32)) {
            world.event(Some(process), "an OSD is added");
        }
        self.hangs[process.0] = false;
        let address = address_of(process, life);
        let announced = done(async {
            let osd = self.register(process.0).await?;
            let lease = self.cluster.registry().lease_grant(LEASE).await?.id;
            self.cluster.osd_up_as(osd, self.uuids[process.0], address, lease).await?;
            Ok::<LeaseId, ClusterError>(lease)
        });
        self.leases[process.0] = Some(announced.expect("an OSD can be announced"));
        self.show(world);
    }

    /// A client attaches every volume. `None` if another has one of them, or it is not told what came of it.
    pub(super) fn attach(
        &mut self,
        process: Process,
        client: ClientId,
        world: &mut World,
    ) -> Option<Vec<Attachment>> {
        self.set_clock(world);
        let is_shared = !world.plan.is_exclusive;
        let names: Vec<String> = self.volumes().map(volume_name).collect();
        let attached = done(async {
            let lease = self.cluster.registry().lease_grant(CLIENT_LEASE).await?.id;
            let mut attached = Vec::new();
            for name in names {
                let description = format!("process {}", process.0);
                attached.push(self.cluster.attach(&name, client, lease, is_shared, description).await?);
            }
            Ok((lease, attached))
        });
        self.show(world);
        match attached {
            Ok(_) if !world.is_calm && world.random.percent(world.plan.lost_answer_percent) => {
                world.event(Some(process), "attach: answer lost");
                None
            }
            Ok((lease, attached)) => {
                self.leases[process.0] = Some(lease);
                let life = world.mailboxes[process.0].life + 1;
                world.after(CLIENT_HEARTBEAT, Event::ClientHeartbeat { process, life });
                Some(attached)
            }
            Err(ClusterError::Attached { .. }) => {
                world.coverage.count("attach: another has it");
                None
            }
            // The life is about to end.
            Err(ClusterError::NoSuchVolume { .. }) => None,
            Err(error) => panic!("a volume cannot be attached: {error}"),
        }
    }

    /// Somebody who means harm attaches a volume of its own, which nobody else does. Answers the generation that it has now,
    /// unless the registry cannot be reached.
    pub(super) fn attach_once_more(
        &mut self,
        process: Process,
        client: ClientId,
        volume: VolumeId,
        world: &mut World,
    ) -> Option<Generation> {
        if !self.is_reachable(process, world) {
            return None;
        }
        self.set_clock(world);
        let name = self.map.volumes.get(&volume)?.name.clone();
        let attached = done(async {
            let lease = self.cluster.registry().lease_grant(CLIENT_LEASE).await?.id;
            self.cluster.attach(&name, client, lease, false, "malice".to_owned()).await
        });
        self.show(world);
        Some(attached.expect("it is there, and nobody else has it").generation)
    }

    /// Notes that nobody is served any more who had the volumes before.
    pub(super) fn fenced(&mut self, volumes: &[Attachment], world: &mut World) {
        self.set_clock(world);
        for attached in volumes.iter().filter(|attached| !attached.unfenced.is_empty()) {
            done(self.cluster.fenced(attached)).expect("a fence can be noted");
        }
        self.show(world);
    }

    /// A client's sign of life, if it gets through. False if it has its volumes no longer.
    pub(super) fn client_heartbeat(&mut self, process: Process, life: u32, world: &mut World) -> bool {
        if self.is_heard(process, world) {
            self.set_clock(world);
            if !self.keep_alive(self.leases[process.0]) {
                return false;
            }
        }
        world.after(CLIENT_HEARTBEAT, Event::ClientHeartbeat { process, life });
        true
    }

    /// A node ends in good order, and says so.
    pub(super) fn withdraw(&mut self, node: usize, world: &mut World) {
        if !self.is_reachable(Process(node), world) {
            return;
        }
        self.set_clock(world);
        let manager = self.managers[node].take().map(|manager| manager.lease);
        for lease in self.leases[node].take().into_iter().chain(manager) {
            self.revoke(lease);
        }
        self.show(world);
    }

    /// As whoever controls an OSD does whose drive hangs, or goes on: it counts as down meanwhile, if the registry can be told. When
    /// the drive goes on, or it is taken out, the next sign of life has it announced again.
    pub(super) fn heed_drive(&mut self, node: usize, hangs: bool, world: &mut World) {
        if !hangs || !self.maps[node].is_down_while_it_hangs(OsdId(node as u32)) {
            self.hangs[node] = false;
        } else if !self.hangs[node] && self.is_reachable(Process(node), world) {
            world.event(Some(Process(node)), "its drive hangs, so it counts as down");
            self.hangs[node] = true;
            self.set_clock(world);
            if let Some(lease) = self.leases[node].take() {
                self.revoke(lease);
            }
            self.show(world);
        }
    }

    /// A node's sign of life, if it gets through.
    pub(super) fn heartbeat(&mut self, process: Process, life: u32, world: &mut World) {
        // A drive whose OSD was removed is announced no more.
        if !world.is_alive(process, life) || self.is_removed[process.0] {
            return;
        }
        if self.is_heard(process, world) {
            self.set_clock(world);
            if !self.hangs[process.0] {
                if !self.keep_alive(self.leases[process.0]) {
                    world.event(Some(process), "lease lost and announced anew");
                    self.announce_again(process, world);
                }
                // Whoever waits for this takes a turn ten times a second.
                world.mailboxes[process.0].inputs.push_back(Input::RegistryAnswered);
            }
            let manages = self.managers[process.0].as_ref().map(|manager| manager.lease);
            if manages.is_some() && !self.keep_alive(manages) {
                world.event(Some(process), "is the manager no longer");
                self.managers[process.0] = None;
            }
        }
        world.after(HEARTBEAT, Event::Heartbeat { process, life });
    }

    fn is_heard(&self, process: Process, world: &World) -> bool {
        world.mailboxes[process.0].hung_until <= world.now && self.is_reachable(process, world)
    }

    /// Ends a lease, which may have ended before.
    fn revoke(&self, lease: LeaseId) {
        let _ = done(self.cluster.registry().lease_revoke(lease));
    }

    /// Renews a lease. False if it has ended.
    fn keep_alive(&self, lease: Option<LeaseId>) -> bool {
        let Some(lease) = lease else { return false };
        match done(self.cluster.registry().lease_keep_alive(lease)) {
            Ok(()) => true,
            Err(RegistryError::LeaseNotFound { .. }) => false,
            Err(error) => panic!("a lease cannot be renewed: {error}"),
        }
    }

    /// Leases of nodes that were silent for too long end, and whoever manages decides.
    pub(super) fn check_leases(&mut self, world: &mut World) {
        world.after(LEASE_CHECK, Event::LeaseCheck);
        if !self.is_available {
            return;
        }
        self.set_clock(world);
        self.show(world);
        self.remove_who_goes(world);
        for node in 0..self.managers.len() {
            let life = world.mailboxes[node].life;
            if !world.is_alive(Process(node), life) || !self.is_heard(Process(node), world) {
                continue;
            }
            if self.managers[node].as_ref().is_some_and(|manager| manager.life != life) {
                self.managers[node] = None;
            }
            // Sometimes by a map that others have changed since.
            if self.managers[node].is_some() && !world.random.one_in(4) {
                self.decide(node, world);
            } else if self.managers[node].is_none() {
                self.elect(node, life, world);
            }
        }
    }

    /// Clients part, each with nothing under way, and a volume is removed: at once, or when it lay in the trash for a while.
    pub(super) fn remove_volume(&mut self, index: usize, world: &mut World) {
        self.part_clients(world);
        self.volumes -= 1;
        done(self.get_rid_of(&volume_name(index), world)).expect("nobody has it attached");
        self.show(world);
    }

    /// Clients part, or are held for dead.
    pub(super) fn part_clients(&mut self, world: &mut World) {
        self.set_clock(world);
        for process in self.is_lost.len()..self.leases.len() {
            if let Some(lease) = self.leases[process].take() {
                self.revoke(lease);
            }
        }
    }

    /// At once, or by way of the trash, out of which an operator takes it once more.
    async fn get_rid_of(&self, name: &str, world: &mut World) -> Result<(), ClusterError> {
        if world.random.percent(50) {
            return self.cluster.remove_volume(name).await.map(drop);
        }
        let at_unix_seconds = world.now / SECOND;
        let until =
            |seconds: u64| Trashed { at_unix_seconds, keep_seconds: Some(seconds), ..Trashed::default() };
        let volume = self.cluster.trash_volume(name, until(3600)).await?;
        if world.random.percent(30) {
            let generation = self.cluster.map().await?.volumes[&volume].generation;
            return self.cluster.purge_volume(volume, generation).await.map(drop);
        }
        self.cluster.restore_volume(volume, None).await?;
        self.cluster.trash_volume(name, until(world.random.below(4))).await.map(drop)
    }

    /// The pool that is to be removed is, and its volume before it.
    pub(super) fn remove_doomed_pool(&mut self, volume: usize, world: &mut World) -> PoolId {
        let (pool, _) = self.map.pool_named(DOOMED_POOL_NAME).expect("it was made with the cluster");
        self.part_clients(world);
        self.volumes -= 1;
        done(self.cluster.remove_volume(&volume_name(volume))).expect("nobody has it attached");
        done(self.cluster.remove_pool(DOOMED_POOL_NAME)).expect("it holds no volume any more");
        self.show(world);
        pool
    }

    /// An OSD tells whoever manages of itself.
    pub(super) fn hear(&mut self, osd: &Osd) {
        let cleared_pools = osd.view().cleared_pools().collect();
        let pgs = osd.view().summaries().map(|summary| {
            let GroupSummary { pg, epoch, trouble, in_sync, cut_through, flatten, .. } = summary;
            let state = if trouble.is_none() { PgState::Active } else { PgState::Peering };
            (pg, PgStatus { epoch, state, in_sync, objects: 0, recovery: None, cut_through, flatten })
        });
        let pgs = pgs.collect();
        self.told.insert(osd.id(), Arc::new(OsdStatus { cleared_pools, pgs, ..OsdStatus::default() }));
    }

    /// A node becomes the manager, if there is none.
    fn elect(&mut self, node: usize, life: u32, world: &mut World) {
        let elected = done(async {
            if self.cluster.manager().await?.is_some() {
                return Ok(None);
            }
            let lease = self.cluster.registry().lease_grant(LEASE).await?.id;
            let record = ManagerRecord {
                node: node_id(node),
                pid: life,
                address: None,
                away: BTreeMap::new(),
                late: BTreeMap::new(),
            };
            let is_elected = self.cluster.become_manager(&record, lease).await?;
            Ok::<_, ClusterError>(is_elected.then_some((lease, record)))
        });
        if let Some((lease, record)) = elected.expect("a manager can be chosen") {
            world.event(Some(Process(node)), "becomes the manager");
            let management = Management::new(self.cluster.clone());
            self.managers[node] = Some(Manager { life, lease, record, management });
        }
    }

    /// A node that takes itself for the manager decides by the map that it has.
    fn decide(&mut self, node: usize, world: &mut World) {
        let map = self.maps[node].clone();
        let Some(manager) = &mut self.managers[node] else { return };
        // Whoever holds the last sound copy of something stays until it is mended.
        let out_after = (!world.has_damage).then(|| Duration::from_nanos(world.plan.out_after));
        let now = Duration::from_nanos(world.now);
        let moment = Moment { now, unix: now };
        let is_manager = done(async {
            manager.management.decide_who_is_in(&map, moment, out_after).await?;
            if manager.management.must_retarget(&map) {
                manager.management.retarget(&map, &target_changes(&map)).await?;
            }
            manager.management.split_pools(&map).await?;
            manager.management.settle_removed_pools(&map, &self.told).await?;
            manager.management.settle_cuts(&map, &self.told).await?;
            manager.management.purge_trash(&map, moment.unix).await?;
            let away = manager.management.away(&map, out_after);
            if away == manager.record.away {
                return Ok::<bool, ClusterError>(true);
            }
            let record = ManagerRecord { away, ..manager.record.clone() };
            let is_manager = self.cluster.publish_manager(&manager.record, &record, manager.lease).await;
            manager.record = record;
            match is_manager {
                Err(ClusterError::Registry(RegistryError::LeaseNotFound { .. })) => Ok(false),
                other => other,
            }
        });
        if !is_manager.expect("what is decided can be written") {
            world.event(Some(Process(node)), "is the manager no longer");
            self.managers[node] = None;
        }
        self.show(world);
    }

    /// The registry goes away for a while.
    pub(super) fn go_away(&mut self, duration: u64, world: &mut World) {
        self.set_clock(world);
        self.show(world);
        self.is_available = false;
        self.outage = world.next_serial();
        world.after(duration, Event::RegistryBack { serial: self.outage });
    }

    /// It is back; `serial` 0 ends any outage.
    pub(super) fn come_back(&mut self, serial: u64, world: &mut World) {
        if self.is_available || serial != 0 && serial != self.outage {
            return;
        }
        self.is_available = true;
        if world.random.percent(50) {
            world.event(None, "the registry is started anew");
            self.memory.reopen(Duration::from_nanos(world.now));
        } else {
            // It ran all the time, and heard from nobody.
            world.event(None, "the registry can be reached again");
            self.set_clock(world);
        }
        self.show(world);
    }

    /// A proposal reaches the registry. Answers whether it was taken.
    ///
    /// # Errors
    /// If it breaks the registry's rules.
    pub(super) fn propose(&mut self, proposal: Box<Proposal>, world: &mut World) -> Result<bool, String> {
        let Proposal { process, pg, expected, ref config, is_split, ref decided_by, .. } = *proposal;
        if self.has_lost_its_drive(process.0) {
            return Ok(false);
        }
        if !self.is_reachable(process, world) {
            world.coverage.count("proposal: registry unreachable");
            let patience = world.random.between(10 * MILLISECOND, 10 * SECOND);
            world.after(patience, Event::ProposalLookUp(proposal));
            return Ok(false);
        }
        self.set_clock(world);
        let changed = match is_split {
            true => done(self.cluster.split_pg(pg, expected, config.clone())),
            false => done(self.cluster.claim_pg(pg, expected, config.clone(), decided_by)),
        };
        let is_accepted = match changed {
            // Its pool was removed.
            Err(ClusterError::NoSuchPg { .. }) if !self.map.pools.contains_key(&pg.pool) => false,
            changed => changed.map_err(|error| error.to_string())?,
        };
        if is_accepted {
            world.coverage.count(if is_split { "proposal: a group is split" } else { "proposal: accepted" });
            world.story(Some(process), || format!("begins {} of pg {pg}: {config:?}", config.epoch));
        } else {
            world.coverage.count("proposal: refused");
        }
        self.show(world);
        if !world.is_calm && world.random.percent(world.plan.lost_answer_percent) {
            world.coverage.count("proposal: answer lost");
            let patience = world.random.between(10 * MILLISECOND, 10 * SECOND);
            world.after(patience, Event::ProposalLookUp(proposal));
        } else if is_accepted {
            self.answer(*proposal, true, world);
        } else {
            self.look_up(*proposal, world);
        }
        Ok(is_accepted)
    }

    /// The proposer heard no, or nothing: what the map says is the answer.
    pub(super) fn look_up(&self, proposal: Proposal, world: &mut World) {
        let found = self.map.pgs.get(&proposal.pg).filter(|_| self.is_reachable(proposal.process, world));
        let is_accepted = found == Some(&proposal.config);
        self.answer(proposal, is_accepted, world);
    }

    fn answer(&self, proposal: Proposal, is_accepted: bool, world: &mut World) {
        let Proposal { process, life, pg, config, .. } = proposal;
        let delay = world.registry_delay();
        let accepted = is_accepted.then_some(config);
        world.after(delay, Event::ProposalAnswer { process, life, pg, accepted });
    }
}

/// Bytes of each OSD, as far as placement is concerned.
const OSD_BYTES: u64 = 1 << 30;

/// A cluster, as `millpond up` and its users would make it.
async fn create(cluster: &Cluster, plan: &Plan) -> Result<(), ClusterError> {
    cluster.create(identity_of(0).cluster).await?;
    if plan.topology.has_shape() {
        for index in 0..plan.nodes {
            assert_eq!(cluster.new_node(&plan.topology.info(index)).await?, node_id(index));
        }
    }
    for index in 0..plan.nodes - plan.late_nodes {
        cluster.register_osd(osd_uuid(index), node_id(index), OSD_BYTES, DeviceClass::Ssd).await?;
    }
    if plan.malice == Some(Malice::Stranger) {
        // Somebody has its key, and it holds nothing.
        let (index, class) = (plan.nodes, DeviceClass::Ssd);
        let osd = cluster.register_osd(osd_uuid(index), node_id(index), OSD_BYTES, class).await?;
        cluster.set_admission(osd, Admission::Out).await?;
    }
    let rule = PlacementRule { failure_domain: plan.topology.failure_domain, ..PlacementRule::default() };
    let (name, size, min_size) = (POOL_NAME.to_owned(), plan.size, plan.min_size);
    cluster
        .create_pool_by(&PoolInfo { name, size, min_size, pg_count: plan.pgs, rule, ..PoolInfo::default() })
        .await?;
    for index in 0..plan.volumes {
        let bytes = plan.volume_objects * base::OBJECT_BYTES;
        let is_doomed = plan.has_doomed_pool && index + 1 == plan.volumes;
        if is_doomed {
            cluster.create_pool(DOOMED_POOL_NAME, plan.size, plan.min_size, plan.pgs).await?;
        }
        let pool = if is_doomed { DOOMED_POOL_NAME } else { POOL_NAME };
        cluster.create_volume(&volume_name(index), pool, bytes).await?;
    }
    if plan.malice == Some(Malice::Client) {
        cluster.create_pool(MALICE_POOL_NAME, plan.size.min(2), 1, MALICE_PGS).await?;
        for index in 0..MALICE_VOLUMES {
            let name = format!("{MALICE_POOL_NAME}-{index}");
            let bytes = MALICE_OBJECTS * base::OBJECT_BYTES;
            let volume = cluster.create_volume(&name, MALICE_POOL_NAME, bytes).await?;
            assert!(malicious_volumes(plan).any(|known| known == volume), "volumes are numbered");
        }
    }
    Ok(())
}

/// The volumes of somebody who means harm.
pub(super) fn malicious_volumes(plan: &Plan) -> impl Iterator<Item = VolumeId> + use<> {
    let first = plan.volumes;
    (first..first + MALICE_VOLUMES).map(volume_id)
}

/// The OSDs that data may be placed on.
fn candidates(map: &ClusterMap) -> Vec<OsdId> {
    Candidate::all(map).into_iter().map(|candidate| candidate.osd).collect()
}

fn volume_name(index: usize) -> String {
    format!("volume-{index}")
}

pub(super) fn node_id(index: usize) -> NodeId {
    NodeId(index as u32)
}

/// The formatting of a node's drive.
fn osd_uuid(index: usize) -> OsdUuid {
    identity_of(index).osd_uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_share_a_failure_domain_without_need_are_seen() {
        let mut random = Random::new(7);
        let mut plan = Plan::draw(&mut random);
        (plan.nodes, plan.late_nodes, plan.size, plan.pgs) = (4, 0, 2, 3);
        plan.topology = std::iter::repeat_with(|| Topology::draw(4, 4, 2, &mut random))
            .find(|topology| topology.some_neighbours(&mut Random::new(1)).len() == 2)
            .expect("it goes on for ever");
        let mut registry = Registry::new(&plan);
        assert_eq!(registry.crowded_groups(), 0);
        let neighbours = plan.topology.some_neighbours(&mut Random::new(1));
        let target = neighbours.iter().map(|node| OsdId(*node as u32)).collect();
        let pg = PgId { pool: POOL, index: 1 };
        let change = TargetChange { pg, before: registry.map.targets.get(&pg).cloned(), target };
        done(registry.cluster.change_targets(&[change])).unwrap();
        registry.map = Arc::new(done(registry.cluster.map()).unwrap());
        assert_eq!(registry.crowded_groups(), 1);
        assert!(!registry.is_settled(), "the manager mends it");
    }
}
