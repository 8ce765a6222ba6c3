//! Snapshots in the middle of everything: an operator makes them of some volumes at one moment and removes them again, and clients
//! read them.
//!
//! What a snapshot holds is what its volume held at the moment when it was made: whoever reads it, however late, counts as having
//! read the volume then, in the history of each block. And whatever one reader was given all others are.

use super::client::{Step, all_of_volume};
use super::history::Kind;
use super::inspect;
use super::life::Life;
use super::node::Node;
use super::registry::{Look, volume_id};
use super::world::{Event, MICROSECOND, MILLISECOND, SECOND};
use base::LayerId;
use cluster::Standstill;
use pg::Osd;

/// How long an operator waits for clients to stand still.
const STANDSTILL_LIMIT: u64 = SECOND;
/// How long deleting what nobody sees any more may take when nothing breaks.
const PRUNING_LIMIT: u64 = 60 * SECOND;
/// The most snapshots at the same time.
const COUNT_MAX: usize = 6;

/// A snapshot that is there.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) layer: LayerId,
    /// The number of its volume among those of a life.
    pub(super) volume: usize,
    pub(super) name: String,
}

/// Clients that are to stand still.
struct UnderWay {
    standstill: Standstill,
    wanted: Vec<(usize, String)>,
    until: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Snapshots {
    there: Vec<Taken>,
    under_way: Option<UnderWay>,
    begun: u64,
}

impl Snapshots {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.there.len()
    }

    /// A volume is removed, with its snapshots.
    pub(super) fn are_gone_of(&mut self, volume: usize) {
        self.there.retain(|taken| taken.volume != volume);
    }

    /// Whether clients are asked to stand still for some.
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.is_some()
    }
}

impl Life {
    /// An operator makes snapshots, or removes one.
    pub(super) fn snapshots_change(&mut self) {
        if self.world.is_calm {
            return;
        }
        let pause = self.world.random.between(20 * MILLISECOND, 1500 * MILLISECOND);
        self.world.after(pause, Event::Snapshots);
        let is_full = self.snapshots.there.len() >= COUNT_MAX;
        if is_full || !self.snapshots.there.is_empty() && self.world.random.one_in(3) {
            let at = self.world.random.index(self.snapshots.there.len());
            return self.remove_snapshot(at);
        }
        if self.world.plan.clones && self.lineage_changes() {
            return;
        }
        if self.snapshots.are_under_way() {
            return;
        }
        let all: Vec<usize> = self.registry.volumes().collect();
        let volumes = all.into_iter().filter(|_| self.world.random.one_in(2)).collect();
        self.ask_for_snapshots(volumes);
    }

    /// An operator does something with what is there. False if not.
    fn lineage_changes(&mut self) -> bool {
        let what = self.world.random.below(12);
        if self.snapshots.there.is_empty() || what > 5 {
            return false;
        }
        let taken = self.snapshots.there[self.world.random.index(self.snapshots.there.len())].clone();
        match what {
            0 => self.roll_back(&taken),
            1 | 2 => self.clone_snapshot(&taken),
            _ => self.clone_changes(),
        }
        true
    }

    /// An operator makes snapshots of these volumes at one moment: their clients are asked to stand still.
    pub(super) fn ask_for_snapshots(&mut self, volumes: Vec<usize>) {
        self.snapshots.begun += 1;
        let name = format!("s{}", self.snapshots.begun);
        let wanted: Vec<(usize, String)> = volumes.into_iter().map(|volume| (volume, name.clone())).collect();
        if wanted.is_empty() {
            return;
        }
        if let Some(standstill) =
            self.registry.begin_standstill(&wanted, self.snapshots.begun, &mut self.world)
        {
            let until = self.world.now + STANDSTILL_LIMIT;
            self.snapshots.under_way = Some(UnderWay { standstill, wanted, until });
            self.world.after(MILLISECOND, Event::Standstill);
        }
    }

    /// It is looked whether all clients stand still.
    pub(super) fn look_at_standstill(&mut self) {
        let Some(UnderWay { standstill, wanted, until }) = self.snapshots.under_way.take() else { return };
        let is_late = self.world.now >= until;
        match self.registry.look_at(&standstill, is_late, &mut self.world) {
            Look::Made(layers) => {
                for (layer, (volume, name)) in layers.into_iter().zip(wanted) {
                    self.world.event(None, "a snapshot is made");
                    self.world.story(None, || format!("{layer} of {name} is frozen"));
                    self.history.snapshot_was_made(layer, volume, self.world.now);
                    self.snapshots.there.push(Taken { layer, volume, name });
                }
            }
            Look::Ended(why) => self.world.coverage.count(why),
            Look::Moving => {
                self.snapshots.under_way = Some(UnderWay { standstill, wanted, until });
                let pause = self.world.random.between(100 * MICROSECOND, 10 * MILLISECOND);
                self.world.after(pause, Event::Standstill);
            }
        }
    }

    fn remove_snapshot(&mut self, at: usize) {
        let Taken { volume, name, layer } = self.snapshots.there[at].clone();
        if self.registry.remove_snapshot(volume, &name, &mut self.world) {
            self.world.event(None, "a snapshot is removed");
            self.world.story(None, || format!("{layer} is seen no more"));
            self.snapshots.there.remove(at);
        }
    }

    /// Reads of everything that the snapshots hold.
    pub(super) fn reads_of_snapshots(&self) -> Vec<Step> {
        let plan = &self.world.plan;
        let of = |taken: &Taken| {
            let (volume, layer) = (taken.volume, Some(taken.layer));
            let its = all_of_volume(Kind::Read, plan, volume, plan.operation_blocks_max);
            its.into_iter().map(move |step| Step { layer, ..step })
        };
        self.snapshots.there.iter().flat_map(of).collect()
    }

    /// Nothing is left that nobody sees; and when no snapshot is left, nothing but what the volumes hold.
    pub(super) fn remove_all_snapshots(&mut self) -> Result<(), String> {
        if self.snapshots.begun == 0 {
            return Ok(());
        }
        self.are_pruned()?;
        inspect::check_changes(&self.nodes, &self.registry.map)?;
        self.end_clones()?;
        while !self.snapshots.there.is_empty() {
            let left = self.snapshots.there.len();
            self.remove_snapshot(0);
            if self.snapshots.there.len() == left {
                return Err("a snapshot cannot be removed at rest".to_owned());
            }
        }
        self.are_pruned()?;
        self.read_again()
    }

    /// What nobody sees is deleted, and nobody looks for more.
    pub(super) fn are_pruned(&mut self) -> Result<(), String> {
        if self.snapshots.begun == 0 {
            return Ok(());
        }
        // An epoch that has just begun looks soon.
        self.run_until(self.world.now + 500 * MILLISECOND, |_| false)?;
        let limit = self.world.now + PRUNING_LIMIT;
        let volumes: Vec<usize> = self.registry.volumes().collect();
        let of_life: Vec<_> = volumes.iter().copied().map(volume_id).collect();
        let unseen =
            |life: &Life| inspect::check_nothing_is_unseen(&life.nodes, &life.registry.map, &of_life);
        let is_pruned = self.run_until(limit, |life| {
            let waits = |volume| life.registry.volume(volume).prune.is_some();
            // What was deleted last is with the members still when nothing is left to be looked for.
            let is_at_work = |osd: &Osd| osd.view().is_cutting() || osd.view().operations_in_flight() > 0;
            !volumes.iter().copied().any(waits)
                && unseen(life).is_ok()
                && !life.living().filter_map(Node::osd).any(is_at_work)
        })?;
        match unseen(self) {
            Err(what) => Err(format!("what nobody sees is not deleted: {what}")),
            Ok(()) if !is_pruned => Err(format!("volumes wait for what was deleted: {}", self.troubles())),
            Ok(()) => Ok(()),
        }
    }
}
