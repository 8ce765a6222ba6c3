//! Clients want more of a volume than its limits allow, while nodes die and are cut off. No more is done than that, no less where
//! nothing is in the way, and everything in the end.

use crate::cluster::life::Life;
use crate::cluster::world::{MILLISECOND, Process, SECOND};
use base::{Limit, Limits};

/// How often limits are set.
const ROUNDS: usize = 4;
/// The volume. The others have none.
const LIMITED: usize = 0;
/// How long is counted.
const COUNTED: u64 = 5 * SECOND;
/// How long it takes until the limits that were set are kept everywhere.
const SETTLES: u64 = 2 * SECOND;
/// How often clients look whether they want enough.
const ASKED_EVERY: u64 = 250 * MILLISECOND;
/// What may be done beyond the rate for what was saved up, and because of who does not reach whom at the moment, in milliseconds.
const BEYOND: u64 = 200;

impl Life {
    /// The life of the script.
    pub(super) fn limited_under_load(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS {
            self.is_limited()?;
        }
        self.registry.limit_volume(LIMITED, Limits::default(), &mut self.world);
        self.wait("that nothing waits any more", |life| {
            life.clients.iter().all(|client| !client.has_errands())
        })?;
        self.wait("that the cluster is whole without limits", Life::has_healed)
    }

    fn is_limited(&mut self) -> Result<(), String> {
        let iops = self.world.random.between(20, 200);
        let limit = Some(Limit { per_second: iops, burst: 0 });
        let limits = match self.world.random.below(3) {
            0 => Limits { iops: limit, ..Limits::default() },
            // What is read and written is as much together.
            1 => Limits { read_iops: limit, write_iops: limit, iops: limit, ..Limits::default() },
            _ => Limits {
                iops: limit,
                bandwidth: Some(Limit { per_second: 1 << 40, burst: 0 }),
                ..Limits::default()
            },
        };
        self.registry.limit_volume(LIMITED, limits, &mut self.world);
        self.wants_more(iops, SETTLES)?;
        let began = self.world.now;
        let is_disturbed = self.world.random.percent(60);
        if is_disturbed {
            let (node, registry) = (self.some_node(), self.world.registry());
            if self.world.random.percent(50) {
                let outage = self.world.random.between(100 * MILLISECOND, 3 * SECOND);
                self.stop_node_for(node, false, "dies while a volume is limited", outage);
            } else {
                self.world.event(Some(Process(node)), "hears of no change of a limit");
                let time = self.world.random.between(SECOND, 4 * SECOND);
                self.world.cut(registry, Process(node), time);
            }
        }
        self.wants_more(iops, COUNTED)?;
        let done = self.history.done_between(LIMITED, began, self.world.now);
        let seconds = (self.world.now - began) as f64 / SECOND as f64;
        let most = iops as f64 * (seconds + BEYOND as f64 / 1000.0) + 8.0;
        if done as f64 > most {
            return Err(format!(
                "{done} operations on a volume in {seconds} s are more than {iops} a second"
            ));
        }
        if !is_disturbed && (done as f64) < 0.45 * iops as f64 * seconds {
            return Err(format!("{done} operations on a volume in {seconds} s are few for {iops} a second"));
        }
        self.world.event(None, "a limit was kept");
        Ok(())
    }

    /// Clients want twice of what may be done, for so long.
    fn wants_more(&mut self, iops: u64, time: u64) -> Result<(), String> {
        for _ in 0..time / ASKED_EVERY {
            while self.clients.iter().map(|client| client.errands_on(LIMITED)).sum::<u64>() < 2 * iops {
                (0..2).for_each(|client| self.works_on_everything(client));
            }
            self.run_until(self.world.now + ASKED_EVERY, |_| false)?;
        }
        Ok(())
    }
}
