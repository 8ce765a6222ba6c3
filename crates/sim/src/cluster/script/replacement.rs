//! Drives are replaced under the numbers of their OSDs: one that nobody counts on, and one that may not be.

use super::FOR_EVER;
use crate::cluster::life::Life;
use crate::cluster::world::{Event, Process, SECOND};
use base::OsdId;
use base::map::Admission;

/// So long after its end no OSD counts as up any more, nor a while later.
const DOWN_AFTER: u64 = 8 * SECOND;

impl Life {
    /// One of two members misses everything, and its drive is replaced. The other one, which alone has everything, is down for a
    /// while, and an operator wants to replace its drive, too: that is refused. Then both come back, and whoever was brought up
    /// to date on the blank drive leads and is read whole.
    pub(super) fn drive_replaced(&mut self) -> Result<(), String> {
        let away = self.some_node();
        let other = 1 - away;
        self.misses_everything(away)?;
        if !self.is_put_on_another_drive(away)? {
            return Err(format!("nobody counts on osd.{away}, and its drive cannot be replaced"));
        }
        let is_power_cut = self.world.random.percent(50);
        self.stop_node_for(other, is_power_cut, "is down, and has everything", FOR_EVER);
        // Whether that was refused, what can be read in the end tells.
        self.is_put_on_another_drive(other)?;
        self.registry.admit(other, Admission::In, &mut self.world);
        self.world.after(0, Event::Start(Process(other)));
        self.comes_back(away)?;
        self.check_agreement()?;
        self.leads_alone(away)
    }

    /// An operator has the OSD of a node that is down go on with a blank drive. False if that is refused.
    fn is_put_on_another_drive(&mut self, node: usize) -> Result<bool, String> {
        let osd = OsdId(node as u32);
        self.run_until(self.world.now + DOWN_AFTER, |life| {
            life.registry.map.osds.get(&osd).is_some_and(|info| info.address.is_none())
        })?;
        let identity = self.nodes[node].next_identity();
        let is_replaced = self.registry.replace(node, identity, &mut self.world);
        if is_replaced {
            self.nodes[node].replace_drive(&mut self.world.random);
        }
        Ok(is_replaced)
    }
}
