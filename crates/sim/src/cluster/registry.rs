//! The registry: the map and its changes, leases of nodes, and answers that come late or never.

use super::network::address_of;
use super::plan::Plan;
use super::world::{Event, Input, MILLISECOND, Process, Proposal, SECOND, World};
use base::map::{Admission, ClusterMap, OsdInfo, PgConfig, PoolInfo, VolumeInfo};
use base::{ClusterId, Epoch, Generation, NodeId, OsdId, OsdUuid, PgId, PoolId, VolumeId};
use registry::cluster::Candidate;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a node counts as up without a sign of life.
const LEASE: u64 = 6 * SECOND;
/// How often it gives one.
const HEARTBEAT: u64 = 2 * SECOND;
/// How often leases are looked at.
const LEASE_CHECK: u64 = 500 * MILLISECOND;
/// The one pool.
pub(super) const POOL: PoolId = PoolId(1);
/// The generation under which all clients attached.
pub(super) const GENERATION: Generation = Generation(1);
/// The objects of each volume.
pub(super) const VOLUME_OBJECTS: u64 = 16;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) map: Arc<ClusterMap>,
    is_available: bool,
    outage: u64,
    /// By node: when its lease ends.
    leases: Vec<u64>,
    /// By node: since when it has had no address.
    down_since: Vec<Option<u64>>,
    /// By node: its drive is lost for good.
    is_lost: Vec<bool>,
    /// Every configuration there ever was.
    history: BTreeMap<(PgId, Epoch), PgConfig>,
    /// By group: who was no member of it at some time when its whole target was in sync.
    dispensable: BTreeSet<(PgId, OsdId)>,
}

impl Registry {
    pub(super) fn new(plan: &Plan) -> Registry {
        let mut map =
            ClusterMap { revision: 1, cluster: ClusterId::from_bytes([1; 16]), ..ClusterMap::default() };
        for index in 0..plan.nodes {
            map.osds.insert(
                OsdId(index as u32),
                OsdInfo {
                    uuid: osd_uuid(index),
                    node: NodeId(index as u32),
                    bytes: 1 << 30,
                    address: None,
                    incarnation: 0,
                    admission: Admission::In,
                },
            );
        }
        let (size, min_size) = (plan.size, plan.min_size);
        let pool = PoolInfo { name: "pool".to_owned(), size, min_size, pg_count: plan.pgs };
        map.pools.insert(POOL, pool);
        let mut history = BTreeMap::new();
        for index in 0..plan.pgs {
            let in_sync: Vec<_> = (0..size).map(|copy| OsdId((index + copy) % plan.nodes as u32)).collect();
            let config = PgConfig { epoch: Epoch(1), primary: in_sync[0], in_sync, learners: Vec::new() };
            let pg = PgId { pool: POOL, index };
            map.targets.insert(pg, config.in_sync.clone());
            history.insert((pg, Epoch(1)), config.clone());
            map.pgs.insert(pg, config);
        }
        for index in 0..plan.volumes {
            map.volumes.insert(
                VolumeId(index as u64 + 1),
                VolumeInfo {
                    name: format!("volume-{index}"),
                    pool: POOL,
                    bytes: VOLUME_OBJECTS * base::OBJECT_BYTES,
                    generation: GENERATION,
                    removed: false,
                },
            );
        }
        Registry {
            map: Arc::new(map),
            is_available: true,
            outage: 0,
            leases: vec![0; plan.nodes],
            down_since: vec![None; plan.nodes],
            is_lost: vec![false; plan.nodes],
            history,
            dispensable: BTreeSet::new(),
        }
    }

    /// Whether a group was registered as whole without this OSD, which may delete what it holds of it then.
    pub(super) fn is_dispensable(&self, pg: PgId, osd: OsdId) -> bool {
        self.dispensable.contains(&(pg, osd))
    }

    fn note_dispensable(&mut self) {
        for (pg, config) in &self.map.pgs {
            let target = &self.map.targets[pg];
            let size = self.map.pools[&pg.pool].size as usize;
            if target.len() < size || !target.iter().all(|osd| config.in_sync.contains(osd)) {
                continue;
            }
            let is_member = |osd: &OsdId| config.in_sync.contains(osd) || config.learners.contains(osd);
            let strangers = self.map.osds.keys().filter(|osd| !is_member(osd) && !target.contains(osd));
            self.dispensable.extend(strangers.map(|osd| (*pg, *osd)));
        }
    }

    /// Whether a node's drive is lost for good.
    pub(super) fn is_lost(&self, node: usize) -> bool {
        self.is_lost[node]
    }

    /// Whether every group keeps a member in sync when a node's drive is lost, and the pool finds members enough.
    pub(super) fn can_lose(&self, node: usize) -> bool {
        let lives = |osd: &OsdId| osd.0 as usize != node && !self.is_lost[osd.0 as usize];
        let left = self.map.osds.keys().filter(|osd| lives(osd)).count();
        let keeps_somebody = |(pg, config): (&PgId, &PgConfig)| {
            let target = &self.map.targets[pg];
            // Who is surplus may be dropped at any moment, and delete what it has.
            let is_whole = target.iter().all(|osd| config.in_sync.contains(osd));
            config.in_sync.iter().any(|osd| lives(osd) && (!is_whole || target.contains(osd)))
        };
        left >= self.pool().min_size as usize && self.map.pgs.iter().all(keeps_somebody)
    }

    /// A node's drive is lost. What its OSD asked for and was not heard yet is lost with it.
    pub(super) fn lose(&mut self, node: usize) {
        self.is_lost[node] = true;
    }

    /// An operator, or the manager, says whether data is placed on an OSD.
    pub(super) fn admit(&mut self, node: usize, admission: Admission, world: &mut World) {
        let osd = OsdId(node as u32);
        if self.map.osds.get(&osd).is_some_and(|info| info.admission == admission) {
            return;
        }
        world.story(Some(Process(node)), || format!("is {admission:?}"));
        self.change(world, |map| {
            map.osds.get_mut(&osd).expect("every node is registered").admission = admission;
            retarget(map);
        });
    }

    /// The pool as it is now.
    pub(super) fn pool(&self) -> &PoolInfo {
        &self.map.pools[&POOL]
    }

    /// An operator has the pool keep more copies or fewer.
    pub(super) fn resize_pool(&mut self, world: &mut World) {
        let living = candidates(&self.map).into_iter().filter(|osd| !self.is_lost[osd.0 as usize]);
        let most = living.count().clamp(1, 3) as u64;
        // The one copy that is kept could be the one that was just lost.
        let least = if self.is_lost.contains(&true) { most.min(2) } else { 1 };
        let size = world.random.between(least, most) as u32;
        let min_size = world.random.between(1, u64::from(size)) as u32;
        world.story(None, || format!("the pool shall keep {size} copies, and {min_size} for writes"));
        self.change(world, |map| {
            let pool = map.pools.get_mut(&POOL).expect("there is one pool");
            (pool.size, pool.min_size) = (size, min_size);
            retarget(map);
        });
    }

    /// An operator, or the balancer, moves a group.
    pub(super) fn move_group(&mut self, world: &mut World) {
        let pgs: Vec<PgId> = self.map.pgs.keys().copied().collect();
        let pg = pgs[world.random.index(pgs.len())];
        let mut target = candidates(&self.map);
        while target.len() > self.pool().size as usize {
            target.remove(world.random.index(target.len()));
        }
        if target.is_empty() {
            return;
        }
        let first = world.random.index(target.len());
        target.rotate_left(first);
        world.story(None, || format!("pg {pg} shall lie on {target:?}"));
        self.change(world, |map| {
            map.targets.insert(pg, target);
        });
    }

    /// Nobody is out any more but those whose drives are lost.
    pub(super) fn admit_all(&mut self, world: &mut World) {
        for node in 0..self.is_lost.len() {
            let admission = if self.is_lost[node] { Admission::Out } else { Admission::In };
            self.admit(node, admission, world);
        }
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

    /// Changes the map, and sends it to everybody.
    fn change(&mut self, world: &mut World, change: impl FnOnce(&mut ClusterMap)) {
        let mut map = (*self.map).clone();
        map.revision += 1;
        change(&mut map);
        self.map = Arc::new(map);
        self.note_dispensable();
        for index in 0..world.mailboxes.len() - 1 {
            if world.mailboxes[index].is_running {
                let (process, life) = (Process(index), world.mailboxes[index].life);
                let delay = world.registry_delay();
                world.after(delay, Event::MapArrives { process, life, map: self.map.clone() });
            }
        }
    }

    /// A map reaches a process, unless it cannot, or has a newer one.
    pub(super) fn map_arrives(&self, process: Process, life: u32, map: Arc<ClusterMap>, world: &mut World) {
        if !world.is_alive(process, life) || world.mailboxes[process.0].map_revision >= map.revision {
            return;
        }
        if !self.is_reachable(process, world) {
            let again = world.random.between(100 * MILLISECOND, SECOND);
            return world.after(again, Event::MapArrives { process, life, map });
        }
        world.mailboxes[process.0].map_revision = map.revision;
        world.tell(process, Input::Map(map));
    }

    /// A node announces where it serves.
    pub(super) fn announce(&mut self, process: Process, world: &mut World) {
        let life = world.mailboxes[process.0].life;
        self.leases[process.0] = world.now + LEASE;
        self.change(world, |map| {
            let info = map.osds.get_mut(&OsdId(process.0 as u32)).expect("every node is registered");
            info.address = Some(address_of(process, life));
            info.incarnation += 1;
        });
        world.after(HEARTBEAT, Event::Heartbeat { process, life });
    }

    /// A node's sign of life, if it gets through.
    pub(super) fn heartbeat(&mut self, process: Process, life: u32, world: &mut World) {
        if !world.is_alive(process, life) {
            return;
        }
        let is_hung = world.mailboxes[process.0].hung_until > world.now;
        if !is_hung && self.is_reachable(process, world) {
            let is_announced =
                self.map.osds.get(&OsdId(process.0 as u32)).is_some_and(|osd| osd.address.is_some());
            if !is_announced {
                world.event(Some(process), "lease lost and announced anew");
                return self.announce(process, world);
            }
            self.leases[process.0] = world.now + LEASE;
        }
        world.after(HEARTBEAT, Event::Heartbeat { process, life });
    }

    /// Ends the leases of nodes that were silent for too long.
    pub(super) fn check_leases(&mut self, world: &mut World) {
        world.after(LEASE_CHECK, Event::LeaseCheck);
        if !self.is_available {
            return;
        }
        for index in 0..self.leases.len() {
            let osd = OsdId(index as u32);
            let info = self.map.osds.get(&osd).expect("every node is registered");
            let (is_up, admission) = (info.address.is_some(), info.admission);
            // What the manager does.
            let since = self.down_since[index].get_or_insert(world.now);
            let is_overdue = world.now - *since >= world.plan.out_after;
            if is_up {
                self.down_since[index] = None;
            }
            match admission {
                Admission::In if !is_up && is_overdue && !world.has_damage => {
                    self.admit(index, Admission::OutWhileDown, world)
                }
                Admission::OutWhileDown if is_up => self.admit(index, Admission::In, world),
                _ => {}
            }
            if is_up && self.leases[index] <= world.now {
                world.event(Some(Process(index)), "lease ended");
                self.change(world, |map| {
                    map.osds.get_mut(&osd).expect("every node is registered").address = None;
                });
            }
        }
    }

    /// The registry goes away for a while.
    pub(super) fn go_away(&mut self, duration: u64, world: &mut World) {
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
        world.story(None, || "the registry is back".to_owned());
        for lease in &mut self.leases {
            // It knows nothing of what it did not hear meanwhile.
            *lease = world.now + LEASE;
        }
    }

    /// A proposal reaches the registry. Answers whether it was taken.
    ///
    /// # Errors
    /// If it breaks the rules that the real registry checks.
    pub(super) fn propose(&mut self, proposal: Box<Proposal>, world: &mut World) -> Result<bool, String> {
        let Proposal { process, pg, expected, ref config, .. } = *proposal;
        registry::cluster::check_pg(pg, expected, config).map_err(|error| error.to_string())?;
        if self.is_lost[process.0] {
            return Ok(false);
        }
        if !self.is_reachable(process, world) {
            world.coverage.count("proposal: registry unreachable");
            let patience = world.random.between(10 * MILLISECOND, 10 * SECOND);
            world.after(patience, Event::ProposalLookUp(proposal));
            return Ok(false);
        }
        let present = self.map.pgs.get(&pg).map(|config| config.epoch);
        let is_accepted = present == Some(expected);
        if is_accepted {
            world.coverage.count("proposal: accepted");
            self.history.insert((pg, config.epoch), config.clone());
            let config = config.clone();
            world.story(Some(process), || format!("begins {} of pg {pg}: {config:?}", config.epoch));
            self.change(world, |map| {
                map.pgs.insert(pg, config);
            });
        } else {
            world.coverage.count("proposal: refused");
        }
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

/// The OSDs that data may be placed on.
fn candidates(map: &ClusterMap) -> Vec<OsdId> {
    Candidate::all(map).into_iter().map(|candidate| candidate.osd).collect()
}

/// What the manager does when OSDs or pools change.
fn retarget(map: &mut ClusterMap) {
    let candidates = Candidate::all(map);
    for (pool, info) in &map.pools {
        let pgs: Vec<PgId> = (0..info.pg_count).map(|index| PgId { pool: *pool, index }).collect();
        let present: Vec<Vec<OsdId>> =
            pgs.iter().map(|pg| map.targets.get(pg).cloned().unwrap_or_default()).collect();
        let targets = registry::cluster::retarget(*pool, info.size, &present, &candidates);
        map.targets.extend(pgs.into_iter().zip(targets));
    }
}

/// The identity of a node's drive.
pub(super) fn osd_uuid(index: usize) -> OsdUuid {
    OsdUuid::from_bytes([index as u8 + 2; 16])
}
