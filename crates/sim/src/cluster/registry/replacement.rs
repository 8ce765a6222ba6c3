//! OSDs that go on under their numbers on blank drives: what `millpond osd replace` does when their own are lost.

use super::{Registry, done};
use crate::cluster::world::{Process, World};
use base::OsdId;
use base::map::{Admission, DeviceClass};
use cluster::{ClusterError, Replacement};
use registry::Txn;
use store::Identity;

impl Registry {
    /// Whether a node's drive is lost, and a blank one is to take its place.
    pub(in crate::cluster) fn is_to_be_replaced(&self, node: usize) -> bool {
        self.is_to_be_replaced[node]
    }

    /// Whether what a node held is lost, whatever becomes of its OSD.
    pub(in crate::cluster) fn has_lost_its_drive(&self, node: usize) -> bool {
        self.is_gone(node) || self.is_to_be_replaced[node]
    }

    /// A node's drive is lost, and an operator has a blank one. Sometimes its OSD is taken out at once.
    pub(in crate::cluster) fn lose_for_another(&mut self, node: usize, world: &mut World) {
        self.is_to_be_replaced[node] = true;
        if world.random.percent(50) {
            self.admit(node, Admission::Out, world);
        }
    }

    /// A node's drive is lost, with the last copies of the groups that it alone is in sync in. An operator gives these up, and has
    /// a blank one.
    pub(in crate::cluster) fn give_up(&mut self, node: usize) {
        self.is_to_be_replaced[node] = true;
        let osd = OsdId(node as u32);
        let last = self.map.pgs.iter().filter(|(_, config)| config.in_sync == [osd]);
        self.given_up = last.map(|(pg, _)| *pg).collect();
    }

    /// The operator gives a node's OSD the blank drive, which is formatted as `identity`. False while it counts as up, or
    /// groups count on what it had.
    pub(in crate::cluster) fn replace(&mut self, node: usize, identity: Identity, world: &mut World) -> bool {
        self.set_clock(world);
        let replacement = Replacement {
            uuid: identity.osd_uuid,
            path: format!("drive-{node}"),
            bytes: self.weights[node],
            class: DeviceClass::Ssd,
        };
        let (osd, mut lost) = (OsdId(node as u32), self.given_up.clone());
        if self.gives_up_what_counts {
            lost.extend(self.map.pgs.keys().copied());
        }
        let is_replaced = match done(self.cluster.replace_osd(osd, &replacement, &lost, Txn::new())) {
            Ok(is_replaced) => is_replaced,
            Err(ClusterError::OsdUp { .. }) => false,
            Err(ClusterError::OsdInSync { .. }) => {
                // Groups with too few members left wait for it, unless it is out.
                if world.random.one_in(3) {
                    self.admit(node, Admission::Out, world);
                }
                false
            }
            Err(error) => panic!("an OSD cannot be put on another drive: {error}"),
        };
        if is_replaced {
            world.event(Some(Process(node)), "goes on under its number on a blank drive");
            (self.uuids[node], self.is_to_be_replaced[node]) = (identity.osd_uuid, false);
            self.given_up.clear();
        }
        self.show(world);
        is_replaced
    }
}
