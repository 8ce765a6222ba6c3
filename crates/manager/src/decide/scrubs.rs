//! When placement groups are scrubbed: when an operator wishes it, lightly each day, deeply each week. The process of the OSD
//! that leads a group decides it.
//!
//! Each group has its own time of the day and of the week, by its number, so that they do not all come at once. What
//! was done stands in the registry, so that a restart or another primary goes on from there.

use super::Moment;
use base::PgId;
use base::hash::mix;
use cluster::{ScrubState, ScrubWish};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often light scrubs are due.
const LIGHT_EVERY: Duration = Duration::from_hours(24);
/// How often deep scrubs are due.
const DEEP_EVERY: Duration = Duration::from_hours(7 * 24);
/// A scrub that was begun and not reported after so long was given up, and is begun anew.
const REPEAT_AFTER: Duration = Duration::from_secs(600);

/// The schedule of one OSD's groups.
#[derive(Debug)]
pub struct Schedule {
    started_ms: u64,
    begun: BTreeMap<PgId, Begun>,
}

/// A scrub under way.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// When.
    pub at: Moment,
    /// What was wished then.
    pub wish: Option<ScrubWish>,
}

impl Schedule {
    /// Of an OSD that starts.
    #[must_use]
    pub fn new(now: Moment) -> Schedule {
        Schedule { started_ms: now.unix_ms(), begun: BTreeMap::new() }
    }

    /// Which of these groups to scrub now, and whether deeply. They count as begun.
    pub fn due(
        &mut self,
        now: Moment,
        groups: &[PgId],
        states: &BTreeMap<PgId, ScrubState>,
    ) -> Vec<(PgId, bool)> {
        self.begun.retain(|_, begun| now.now.saturating_sub(begun.at.now) < REPEAT_AFTER);
        let none = ScrubState::default();
        let mut due = Vec::new();
        for &pg in groups {
            if self.begun.contains_key(&pg) {
                continue;
            }
            let state = states.get(&pg).unwrap_or(&none);
            if let Some(deep) = what_is_due(pg, state, self.started_ms, now.unix_ms()) {
                self.begun.insert(pg, Begun { at: now, wish: state.wish });
                due.push((pg, deep));
            }
        }
        due
    }

    /// A group's scrub ended: how it was begun, if it was not given up before.
    pub fn ended(&mut self, pg: PgId) -> Option<Begun> {
        self.begun.remove(&pg)
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

    #[test]
    fn a_scrub_is_begun_once_and_anew_when_nothing_is_heard_of_it() {
        let at = |seconds| Moment {
            now: Duration::from_secs(seconds),
            unix: Duration::from_millis(START) + Duration::from_secs(seconds),
        };
        let mut schedule = Schedule::new(at(0));
        let wish = Some(ScrubWish { at_ms: START, deep: true });
        let states = BTreeMap::from([(pg(1), ScrubState { wish, ..ScrubState::default() })]);
        assert_eq!(schedule.due(at(1), &[pg(0), pg(1)], &states), [(pg(1), true)]);
        assert_eq!(schedule.due(at(600), &[pg(0), pg(1)], &states), []);
        assert_eq!(schedule.due(at(601), &[pg(0), pg(1)], &states), [(pg(1), true)]);
        let begun = schedule.ended(pg(1)).unwrap();
        assert_eq!((begun.at.unix_ms(), begun.wish), (START + 601_000, wish));
        assert!(schedule.ended(pg(1)).is_none());
    }
}
