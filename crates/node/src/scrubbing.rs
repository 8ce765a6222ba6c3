//! When the groups that an OSD leads are scrubbed: when an operator wishes it, lightly each day, deeply each week.
//!
//! Each group has its own time of the day and of the week, by its number, so that they do not all come at once. What
//! was done stands in the registry, so that a restart or another primary goes on from there.

use base::PgId;
use base::hash::mix;
use base::status::{OsdStatus, PgState};
use cluster::{Cluster, ScrubResult, ScrubState, ScrubWish};
use pg::ScrubReport;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// How often light scrubs are due.
const LIGHT_EVERY: Duration = Duration::from_hours(24);
/// How often deep scrubs are due.
const DEEP_EVERY: Duration = Duration::from_hours(7 * 24);
/// How often it is looked whether one is due.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(60);
/// A scrub that was begun and not reported after so long was given up, and is begun anew.
const REPEAT_AFTER: Duration = Duration::from_secs(600);

/// The schedule of one OSD's groups.
#[derive(Debug)]
pub(crate) struct Schedule {
    started_ms: u64,
    begun: BTreeMap<PgId, Begun>,
}

/// A scrub under way.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// When, by both clocks.
    at: Instant,
    at_ms: u64,
    wish: Option<ScrubWish>,
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Schedule {
    pub(crate) fn new() -> Schedule {
        Schedule { started_ms: now_ms(), begun: BTreeMap::new() }
    }

    /// The groups to scrub now, and whether deeply.
    pub(crate) async fn due(&mut self, cluster: &Cluster, status: &OsdStatus) -> Vec<(PgId, bool)> {
        let active = status.pgs.iter().filter(|(_, status)| status.state == PgState::Active);
        let active: Vec<PgId> = active.map(|(pg, _)| *pg).collect();
        if active.is_empty() {
            return Vec::new();
        }
        // While the registry is away nothing is scrubbed: it could not be noted.
        let Ok(states) = cluster.scrubs_of(&active).await else { return Vec::new() };
        let now = Instant::now();
        let now_ms = now_ms();
        self.begun.retain(|_, begun| now.duration_since(begun.at) < REPEAT_AFTER);
        let none = ScrubState::default();
        let mut due = Vec::new();
        for pg in active {
            if self.begun.contains_key(&pg) {
                continue;
            }
            let state = states.get(&pg).unwrap_or(&none);
            if let Some(deep) = what_is_due(pg, state, self.started_ms, now_ms) {
                self.begun.insert(pg, Begun { at: now, at_ms: now_ms, wish: state.wish });
                due.push((pg, deep));
            }
        }
        due
    }

    /// A scrub ended: what is to be noted of it.
    pub(crate) fn ended(&mut self, report: &ScrubReport) -> ScrubResult {
        let begun = self.begun.remove(&report.pg);
        ScrubResult {
            began_ms: begun.map_or_else(now_ms, |begun| begun.at_ms),
            deep: report.is_deep,
            objects: report.objects,
            bytes: report.bytes,
            found: report.found,
            wish: begun.and_then(|begun| begun.wish),
        }
    }
}

/// The scrub that a group needs now, if any: whether it is deep. A group that was never scrubbed counts as scrubbed
/// when its OSD started.
fn what_is_due(pg: PgId, state: &ScrubState, started_ms: u64, now_ms: u64) -> Option<bool> {
    let shift = mix(u64::from(pg.pool.0) << 32 | u64::from(pg.index));
    let turn = |at_ms: u64, every: Duration| {
        let every_ms = every.as_millis() as u64;
        (at_ms + shift % every_ms) / every_ms
    };
    let is_over = |done_ms: u64, every: Duration| {
        let done_ms = if done_ms == 0 { started_ms } else { done_ms };
        turn(now_ms, every) > turn(done_ms, every)
    };
    if state.wish.is_some_and(|wish| wish.deep) || is_over(state.record.deep_ms, DEEP_EVERY) {
        return Some(true);
    }
    (state.wish.is_some() || is_over(state.record.light_ms, LIGHT_EVERY)).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::PoolId;
    use cluster::ScrubRecord;

    const HOUR_MS: u64 = 3_600_000;
    const START: u64 = 1_000_000 * HOUR_MS;

    fn pg(index: u32) -> PgId {
        PgId { pool: PoolId(1), index }
    }

    #[test]
    fn each_group_is_scrubbed_once_a_day_and_deeply_once_a_week_at_a_time_of_its_own() {
        let mut times = Vec::new();
        for index in 0..20 {
            let mut state = ScrubState::default();
            let (mut light, mut deep) = (0, 0);
            for hour in 0..28 * 24 {
                let now = START + hour * HOUR_MS;
                let Some(is_deep) = what_is_due(pg(index), &state, START, now) else { continue };
                state.record.light_ms = now;
                if is_deep {
                    state.record.deep_ms = now;
                    deep += 1;
                    times.push(hour % (7 * 24));
                } else {
                    light += 1;
                }
            }
            assert_eq!(deep, 4, "of pg {index}");
            assert!((23..=28).contains(&(light + deep)), "{light} and {deep} of pg {index}");
        }
        times.sort_unstable();
        times.dedup();
        assert!(times.len() >= 15, "they come at the same times: {times:?}");
    }

    #[test]
    fn what_is_wished_is_due_whatever_the_clock_of_whoever_wishes_it_says() {
        let record = ScrubRecord { light_ms: START + 20, deep_ms: START, ..ScrubRecord::default() };
        for at_ms in [START - HOUR_MS, START + HOUR_MS] {
            for deep in [false, true] {
                let state = ScrubState { record: record.clone(), wish: Some(ScrubWish { at_ms, deep }) };
                assert_eq!(what_is_due(pg(0), &state, START, START + 30), Some(deep));
            }
        }
        assert_eq!(what_is_due(pg(0), &ScrubState { record, wish: None }, START, START + 30), None);
    }
}
