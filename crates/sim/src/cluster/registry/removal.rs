//! Nodes that go for good: their drives are lost, or an operator takes them away.

use super::{Registry, candidates, done};
use crate::cluster::world::{Process, World};
use base::map::{Admission, PgConfig};
use base::{OsdId, PgId};
use cluster::ClusterError;
use registry::Txn;

impl Registry {
    /// Whether a node is gone for good: its drive is lost, or its OSD was removed.
    pub(in crate::cluster) fn is_gone(&self, node: usize) -> bool {
        self.is_lost[node] || self.is_removed[node]
    }

    /// Whether an operator wants to take a node away.
    pub(in crate::cluster) fn retires(&self, node: usize) -> bool {
        self.retires[node]
    }

    /// Whether a process goes by a map without the OSD that it had.
    pub(in crate::cluster) fn knows_of_its_removal(&self, process: Process) -> bool {
        let Process(node) = process;
        self.is_removed.get(node) == Some(&true) && !self.maps[node].osds.contains_key(&OsdId(node as u32))
    }

    /// Whether whoever shall be taken away is.
    pub(in crate::cluster) fn has_removed_all(&self) -> bool {
        (0..self.retires.len()).all(|node| !self.retires[node] || self.is_gone(node))
    }

    /// An operator wants to take a node away: no data is placed there from now on. False where the pool would be left with
    /// too few others for its copies.
    pub(in crate::cluster) fn retire(&mut self, node: usize, world: &mut World) -> bool {
        let is_known = self.map.osds.contains_key(&OsdId(node as u32));
        let has_lost = self.has_lost_its_drive(node);
        if has_lost || !self.is_available || !is_known || !self.can_do_without(node) {
            return false;
        }
        self.retires[node] = true;
        self.admit(node, Admission::Out, world);
        true
    }

    /// Whether the pool finds members enough among the other nodes that stay.
    pub(super) fn can_do_without(&self, node: usize) -> bool {
        let stays = |other: usize| other != node && !self.has_lost_its_drive(other) && !self.retires[other];
        let others = candidates(&self.map).into_iter().filter(|osd| stays(osd.0 as usize));
        let most = self.map.pools.values().map(|pool| pool.size).max().unwrap_or(0);
        others.count() >= most as usize
    }

    /// Whether every group keeps a member in sync when a node's drive is lost, and the pool finds members enough.
    pub(in crate::cluster) fn can_lose(&self, node: usize) -> bool {
        let lives = |osd: &OsdId| osd.0 as usize != node && !self.has_lost_its_drive(osd.0 as usize);
        let is_left = |osd: &usize| {
            let known = OsdId(*osd as u32);
            self.map.osds.contains_key(&known) && lives(&known) && !self.retires[*osd]
        };
        let left = (0..self.retires.len()).filter(is_left).count();
        let keeps_somebody = |(pg, config): (&PgId, &PgConfig)| {
            let target = &self.map.targets[pg];
            // Who is surplus may be dropped at any moment, and delete what it has.
            let is_whole = target.iter().all(|osd| config.in_sync.contains(osd));
            config.in_sync.iter().any(|osd| lives(osd) && (!is_whole || target.contains(osd)))
        };
        left >= self.pool().min_size as usize && self.map.pgs.iter().all(keeps_somebody)
    }

    /// A node's drive is lost. What its OSD asked for and was not heard yet is lost with it.
    pub(in crate::cluster) fn lose(&mut self, node: usize) {
        self.is_lost[node] = true;
    }

    /// An operator removes OSDs whose drives are lost, and those that shall be taken away, once they are out and no group
    /// needs them.
    pub(super) fn remove_who_goes(&mut self, world: &mut World) {
        for node in 0..self.is_lost.len() {
            let osd = OsdId(node as u32);
            let is_out = self.map.osds.get(&osd).is_some_and(|info| info.admission != Admission::In);
            let goes = self.is_lost[node] || self.retires[node];
            if !goes || !is_out || !world.random.one_in(4) {
                continue;
            }
            match done(self.cluster.remove_osd(osd, Txn::new())) {
                Ok(true) => {
                    self.is_removed[node] = true;
                    // No group needs it, or the registry would have refused.
                    self.dispensable.extend(self.map.pgs.keys().map(|pg| (*pg, osd)));
                    let what = match (self.is_lost[node], world.mailboxes[node].is_running) {
                        (true, _) => "a lost OSD is removed",
                        (false, true) => "a drained OSD is removed while it runs",
                        (false, false) => "a drained OSD is removed while it is away",
                    };
                    world.event(Some(Process(node)), what);
                }
                Ok(false) | Err(ClusterError::OsdInUse { .. }) => {}
                Err(error) => panic!("an OSD cannot be removed: {error}"),
            }
            self.show(world);
        }
    }
}
