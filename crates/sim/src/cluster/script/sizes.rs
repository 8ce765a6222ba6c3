//! A volume is made smaller and larger again while clients work on it, nodes die, groups split, and one client does not hear of
//! any of it. What the volume lost is zeros when it has grown again, what lies before the end is as it was, and nothing is
//! served beyond.

use super::FOR_EVER;
use crate::cluster::client::{Step, all_of};
use crate::cluster::history::Kind;
use crate::cluster::inspect;
use crate::cluster::life::Life;
use crate::cluster::registry::volume_id;
use crate::cluster::world::{Event, MILLISECOND, Process, SECOND};
use base::{BLOCK_BYTES, OBJECT_BYTES, ObjectKey};

/// How often it is made smaller and larger again.
const ROUNDS: usize = 3;
/// The volume. The others keep their sizes.
const RESIZED: usize = 0;
/// The client that may hear of nothing.
pub(super) const OUT_OF_TOUCH: usize = 1;
/// How long that one goes on when nothing is left beyond the end.
const GOES_ON: u64 = 300 * MILLISECOND;

impl Life {
    /// The life of the script.
    pub(super) fn resized_under_load(&mut self) -> Result<(), String> {
        if self.world.random.percent(40) {
            self.world.plan.doublings += 1;
            let at = self.world.random.below(4 * SECOND);
            self.world.after(at, Event::SplitPool);
        }
        for _ in 0..ROUNDS {
            self.shrinks_and_grows()?;
        }
        Ok(())
    }

    fn shrinks_and_grows(&mut self) -> Result<(), String> {
        let whole = self.registry.volume(RESIZED).bytes;
        let (deaf, registry) = (Process(self.nodes.len() + OUT_OF_TOUCH), self.world.registry());
        if self.world.random.percent(60) {
            self.world.event(Some(deaf), "hears of nothing while a volume is resized");
            self.world.cut(registry, deaf, FOR_EVER);
            self.world.cut(deaf, registry, FOR_EVER);
        }
        self.works_on_everything(0);
        self.works_on_everything(OUT_OF_TOUCH);
        self.passes(50 * MILLISECOND)?;
        if self.world.random.percent(60) {
            let node = self.some_node();
            let is_power_cut = self.world.random.percent(50);
            let outage = self.world.random.between(100 * MILLISECOND, 4 * SECOND);
            self.stop_node_for(node, is_power_cut, "dies while a volume is made smaller", outage);
            self.passes(100 * MILLISECOND)?;
        }
        let mut lost = Vec::new();
        let mut end = u64::MAX;
        while let Some(smaller) = self.some_end_before(end) {
            lost.extend(self.is_made_smaller(smaller, end)?);
            if self.registry.resize_volume(RESIZED, whole, &mut self.world) {
                return Err("a volume grows before what it lost is gone".to_owned());
            }
            end = smaller;
            if self.world.random.percent(70) {
                break;
            }
            self.passes(SECOND)?;
        }
        self.wait("that a volume has nothing left beyond its end", |life| {
            life.registry.volume(RESIZED).cut.is_none()
        })?;
        self.has_nothing_beyond_its_end()?;
        self.works_on_everything(OUT_OF_TOUCH);
        self.run_until(self.world.now + GOES_ON, |_| false)?;
        self.has_nothing_beyond_its_end()?;
        self.world.event(None, "a volume is made larger again");
        if !self.registry.resize_volume(RESIZED, whole, &mut self.world) {
            return Err("a volume does not grow although what it lost is gone".to_owned());
        }
        self.history.grows(&lost, self.world.now)?;
        self.world.heal(registry, deaf, 0);
        self.world.heal(deaf, registry, 0);
        self.wait("that the cluster is whole after a volume was resized", Life::has_healed)?;
        self.do_all(Kind::Read, self.world.plan.operation_blocks_max)
    }

    /// The volume ends at a block of the history now, which lies before where it ended. Answers what the history calls what it
    /// lost.
    fn is_made_smaller(&mut self, end: u64, before: u64) -> Result<Vec<u64>, String> {
        self.world.event(None, "a volume is made smaller");
        let bytes = end * self.world.plan.unit_bytes;
        if !self.registry.resize_volume(RESIZED, bytes, &mut self.world) {
            return Err("a volume cannot be made smaller".to_owned());
        }
        let is_lost = |step: &Step| step.volume == RESIZED && (end..before).contains(&step.first_block);
        let steps = all_of(Kind::Zero, &self.world.plan, 1);
        Ok(self.history.shrinks(steps.into_iter().filter(is_lost), self.world.now))
    }

    /// A block of the history that is worked on and lies before that one, if there is one.
    fn some_end_before(&mut self, end: u64) -> Option<u64> {
        let is_before = |step: &Step| step.volume == RESIZED && step.first_block < end;
        let steps: Vec<Step> =
            all_of(Kind::Zero, &self.world.plan, 1).into_iter().filter(is_before).collect();
        (!steps.is_empty()).then(|| steps[self.world.random.index(steps.len())].first_block)
    }

    /// A client writes most of everything anew, and reads the rest.
    pub(super) fn works_on_everything(&mut self, client: usize) {
        let mut steps = all_of(Kind::Write, &self.world.plan, self.world.plan.operation_blocks_max);
        for step in &mut steps {
            if self.world.random.percent(20) {
                step.kind = Kind::Read;
            }
        }
        self.clients[client].run_errands(steps, &mut self.world);
    }

    /// Some time passes, up to so much.
    pub(super) fn passes(&mut self, time_max: u64) -> Result<(), String> {
        let time = self.world.random.below(time_max);
        self.run_until(self.world.now + time, |_| false).map(drop)
    }

    /// Checks that no member in sync holds anything of the volume beyond its end.
    fn has_nothing_beyond_its_end(&self) -> Result<(), String> {
        let (volume, end) = (volume_id(RESIZED), self.registry.volume(RESIZED).bytes);
        for node in &self.nodes {
            let is_in_sync = |key: &ObjectKey| {
                let config = self.registry.map.pgs.get(&key.pg);
                config.is_some_and(|config| config.in_sync.contains(&node.osd_id()))
            };
            let all = node.osd().into_iter().flat_map(|osd| osd.store().objects());
            for key in all.filter(|key| key.layer.volume() == volume && is_in_sync(key)) {
                for (block, held) in (0..).zip(inspect::blocks(node, &key)) {
                    let at = u64::from(key.object) * OBJECT_BYTES + block * BLOCK_BYTES as u64;
                    let first = end.saturating_sub(at).min(BLOCK_BYTES as u64) as usize;
                    if held.bytes()[first..].iter().any(|byte| *byte != 0) {
                        let osd = node.osd_id();
                        return Err(format!(
                            "{osd} holds something in block {block} of {key}, beyond the end of its volume at {end}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
