//! Whether the history of one block can be explained: is the block a linearizable register?
//!
//! Every write brings a value that no other write brings, so a read tells which write it saw. For such
//! registers there is an exact test without search (Gibbons and Korach, "Testing shared memories", SIAM
//! Journal on Computing 26(4), 1997). All operations of one value, its write and the reads that saw it, form a
//! *cluster*; let *f* be the time when the first of them ended and *s* the time when the last of them began.
//!
//! - If *f < s*, the register held the value at every moment from *f* to *s*: somebody had already written or
//!   seen it at *f*, somebody still saw it after *s*, and it was written once. This is a *forward zone*.
//! - Otherwise the register held it at some moment between *s* and *f*: a *backward zone*.
//!
//! The history is linearizable exactly if no read ended before its write began, no two forward zones overlap,
//! and no backward zone lies within a forward zone. A violation of any of the three is a contradiction by the
//! above, so there are no false alarms; and since the conditions are sufficient, nothing is missed either:
//! stale reads, lost acknowledged writes, reads from the future, values that come and go.
//!
//! A write that never ended, or whose client was told of a failure, may take effect at any time after its
//! beginning, or never: its end is infinitely far away, which makes its zone one that lies within no other, unless
//! somebody saw its value.
//!
//! Zeros are the exception: every zeroing brings them, and so does the beginning of time. So reads of zeros
//! name no write. What is checked of them is weaker, but sound:
//! - a read of zeros, and a zeroing that ended, each need a moment of their own when the register held zeros: as
//!   a backward zone, each for itself;
//! - a read of zeros needs a zeroing that began before the read ended, and after whose end no operation of
//!   another value both began and ended before the read began.
//!
//! An answer that a block is not allocated has to keep only the last of these: it is given without waiting for
//! what is under way.

use std::collections::BTreeMap;

/// The value of a block that was never written, or zeroed.
pub const ZEROS: u64 = 0;
/// When an operation ended that never did.
pub const PENDING: u64 = u64::MAX;

/// What an operation did to the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It wrote this value, which no other write brings unless it is [`ZEROS`].
    Write(u64),
    /// It read this value.
    Read(u64),
    /// It was told that nothing is there.
    SeenAbsent,
}

/// One operation on the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// What it did.
    pub access: Access,
    /// When it began.
    pub invoked: u64,
    /// When it ended, or [`PENDING`].
    pub completed: u64,
    /// What the reader calls it.
    pub label: u64,
}

impl std::fmt::Display for Observation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = |at: u64| at as f64 / 1e9;
        write!(formatter, "operation {}: {:?} from {:.6}", self.label, self.access, seconds(self.invoked))?;
        match self.completed {
            PENDING => write!(formatter, ", never ended"),
            at => write!(formatter, " to {:.6}", seconds(at)),
        }
    }
}

/// A cluster's zone: when its first operation ended and its last one began.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_end: u64,
    last_begin: u64,
    value: u64,
    label: u64,
}

impl Zone {
    /// That of one operation alone.
    fn of(one: &Observation, value: u64) -> Zone {
        Zone { first_end: one.completed, last_begin: one.invoked, value, label: one.label }
    }

    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

/// Checks the history of one register, which held [`ZEROS`] at first. The module's documentation says what it
/// finds.
///
/// # Errors
/// A contradiction, in words.
pub fn check(history: &[Observation]) -> Result<(), String> {
    let zones = zones(history)?;
    let mut forward: Vec<Zone> = zones.values().copied().filter(Zone::is_forward).collect();
    forward.sort_by_key(|zone| (zone.first_end, zone.last_begin));
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Err(format!(
                "the value of operation {} comes back after that of operation {} was there, or the other way round",
                pair[0].value, pair[1].value
            ));
        }
    }
    let needs_a_moment = |one: &&Observation| {
        one.completed != PENDING && matches!(one.access, Access::Write(ZEROS) | Access::Read(ZEROS))
    };
    let moments = history.iter().filter(needs_a_moment).map(|one| Zone::of(one, ZEROS));
    for zone in zones.into_values().filter(|zone| !zone.is_forward()).chain(moments) {
        // Forward zones are apart from each other here: only the last that begins before can contain it.
        let behind = forward.partition_point(|other| other.first_end < zone.last_begin);
        if let Some(other) = behind.checked_sub(1).map(|index| forward[index])
            && zone.first_end < other.last_begin
            && zone.value != other.value
        {
            return Err(format!(
                "operation {} saw or made another value while the value of operation {} was certainly there before \
                 and after it",
                zone.label, other.value
            ));
        }
    }
    check_zeros(history)
}

/// The zones of all values but zeros.
fn zones(history: &[Observation]) -> Result<BTreeMap<u64, Zone>, String> {
    let mut zones = BTreeMap::new();
    for one in history {
        if let Access::Write(value) = one.access
            && value != ZEROS
        {
            let other = zones.insert(value, Zone::of(one, value));
            assert!(other.is_none(), "every write brings a value of its own");
        }
    }
    let written: BTreeMap<u64, u64> = zones.iter().map(|(value, zone)| (*value, zone.last_begin)).collect();
    for one in history {
        let Access::Read(value) = one.access else { continue };
        if value == ZEROS || one.completed == PENDING {
            continue;
        }
        let Some(zone) = zones.get_mut(&value) else {
            return Err(format!("operation {} read the value {value}, which nobody wrote here", one.label));
        };
        if one.completed < written[&value] {
            return Err(format!(
                "operation {} read the value of operation {value} before that began",
                one.label
            ));
        }
        zone.first_end = zone.first_end.min(one.completed);
        zone.last_begin = zone.last_begin.max(one.invoked);
    }
    Ok(zones)
}

/// Whether every read of zeros can have got them from somewhere.
fn check_zeros(history: &[Observation]) -> Result<(), String> {
    let mut others: Vec<(u64, u64, u64)> = history
        .iter()
        .filter(|one| matches!(one.access, Access::Write(value) | Access::Read(value) if value != ZEROS))
        .filter(|one| one.completed != PENDING)
        .map(|one| (one.completed, one.invoked, one.label))
        .collect();
    others.sort_unstable();
    // By the time until which operations ended: the latest beginning among them.
    let mut latest = (0, 0);
    for (_, invoked, label) in &mut others {
        latest = latest.max((*invoked, *label));
        (*invoked, *label) = latest;
    }
    let zeroings: Vec<_> = history.iter().filter(|one| one.access == Access::Write(ZEROS)).collect();
    for one in history {
        if !matches!(one.access, Access::Read(ZEROS) | Access::SeenAbsent) || one.completed == PENDING {
            continue;
        }
        let before = others.partition_point(|(completed, ..)| *completed < one.invoked);
        let Some((_, since, label)) = before.checked_sub(1).map(|index| others[index]) else { continue };
        let has_source =
            zeroings.iter().any(|zeroing| zeroing.completed >= since && zeroing.invoked <= one.completed);
        if !has_source {
            return Err(format!(
                "operation {} saw zeros although the value of operation {label} was there and nobody zeroed it since",
                one.label
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(operations: &[(Access, u64, u64)]) -> Vec<Observation> {
        let labelled = (1..).zip(operations);
        labelled
            .map(|(label, (access, invoked, completed))| Observation {
                access: *access,
                invoked: *invoked,
                completed: *completed,
                label,
            })
            .collect()
    }

    fn accepted(operations: &[(Access, u64, u64)]) {
        assert_eq!(check(&history(operations)), Ok(()));
    }

    fn refused(operations: &[(Access, u64, u64)], why: &str) {
        let error = check(&history(operations)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    use Access::{Read, SeenAbsent, Write};

    #[test]
    fn one_after_the_other_is_legal() {
        accepted(&[(Read(0), 0, 1), (Write(1), 2, 3), (Read(1), 4, 5), (Write(2), 6, 7), (Read(2), 8, 9)]);
    }

    #[test]
    fn a_read_beside_a_write_may_see_either() {
        accepted(&[(Write(1), 0, 1), (Write(2), 2, 9), (Read(1), 3, 4)]);
        accepted(&[(Write(1), 0, 1), (Write(2), 2, 9), (Read(2), 3, 4)]);
        accepted(&[(Write(1), 0, 1), (Write(2), 2, 9), (Read(1), 3, 4), (Read(2), 5, 6)]);
        accepted(&[(Write(1), 0, 10), (Write(2), 1, 9), (Read(2), 11, 12)]);
        accepted(&[(Write(1), 0, 10), (Write(2), 1, 9), (Read(1), 11, 12)]);
    }

    #[test]
    fn a_stale_read_is_caught() {
        refused(&[(Write(1), 0, 1), (Write(2), 2, 3), (Read(1), 4, 5)], "certainly there");
    }

    #[test]
    fn a_lost_write_is_caught() {
        refused(&[(Write(1), 0, 1), (Read(0), 2, 3)], "nobody zeroed");
        refused(&[(Write(1), 0, 1), (Write(2), 2, 3), (Read(2), 4, 5), (Read(1), 6, 7)], "comes back");
    }

    #[test]
    fn a_read_from_the_future_is_caught() {
        refused(&[(Read(1), 0, 1), (Write(1), 2, 3)], "before that began");
        refused(&[(Read(7), 0, 1)], "nobody wrote");
    }

    #[test]
    fn reads_that_go_backwards_are_caught_even_beside_the_write() {
        refused(&[(Write(1), 0, 1), (Write(2), 2, 99), (Read(2), 3, 4), (Read(1), 5, 6)], "certainly there");
        refused(
            &[(Write(1), 0, 1), (Write(2), 2, PENDING), (Read(2), 3, 4), (Read(1), 5, 6), (Read(2), 7, 8)],
            "comes back",
        );
    }

    #[test]
    fn a_write_that_never_ended_may_take_effect_late_or_never() {
        accepted(&[(Write(1), 0, 1), (Write(2), 2, PENDING), (Read(1), 3, 4)]);
        accepted(&[
            (Write(1), 0, 1),
            (Write(2), 2, PENDING),
            (Read(1), 3, 4),
            (Write(3), 5, 6),
            (Read(2), 7, 8),
        ]);
        refused(
            &[(Write(2), 2, PENDING), (Read(2), 3, 4), (Write(3), 5, 6), (Read(2), 7, 8)],
            "certainly there",
        );
    }

    #[test]
    fn zeros_come_from_a_zeroing_or_the_beginning() {
        accepted(&[(Read(0), 0, 1), (Write(1), 2, 3), (Write(0), 4, 5), (Read(0), 6, 7)]);
        accepted(&[(Write(1), 2, 9), (Read(0), 3, 4)]);
        accepted(&[(Write(0), 1, PENDING), (Write(1), 2, 3), (Read(0), 4, 5)]);
        refused(&[(Write(0), 0, 1), (Write(1), 2, 3), (Read(0), 4, 5)], "nobody zeroed");
        refused(&[(Write(1), 0, 1), (Write(0), 2, 3), (Read(1), 4, 5)], "certainly there");
        refused(
            &[(Write(1), 0, 1), (Write(0), 2, PENDING), (Read(0), 3, 4), (Read(1), 5, 6)],
            "certainly there",
        );
    }

    #[test]
    fn absence_needs_a_source_and_nothing_more() {
        accepted(&[(Write(1), 0, 1), (Write(0), 2, PENDING), (SeenAbsent, 3, 4), (Read(1), 5, 6)]);
        refused(&[(Write(1), 0, 1), (SeenAbsent, 3, 4)], "nobody zeroed");
    }

    #[test]
    fn a_write_that_takes_effect_again_is_refused() {
        let repeated =
            [(Write(1), 0, 9), (Read(1), 1, 2), (Write(2), 3, 4), (Read(2), 5, 6), (Read(1), 10, 11)];
        refused(&repeated, "comes back");
    }

    #[test]
    fn the_checker_agrees_with_a_search_through_all_orders() {
        let mut random = crate::random::Random::new(1);
        let (mut legal, mut illegal) = (0, 0);
        for _ in 0..3000 {
            let mut operations = Vec::new();
            let writes = random.between(1, 3);
            for value in 1..=writes {
                let invoked = random.below(12);
                let completed = if random.one_in(4) { PENDING } else { invoked + 1 + random.below(6) };
                operations.push((Write(value), invoked, completed));
            }
            for _ in 0..random.between(1, 3) {
                let invoked = random.below(14);
                let value = random.between(1, writes);
                operations.push((Read(value), invoked, invoked + 1 + random.below(4)));
            }
            let observations = history(&operations);
            let expected = has_order(&observations, &mut vec![false; observations.len()], 0);
            assert_eq!(check(&observations).is_ok(), expected, "{observations:?}");
            if expected { legal += 1 } else { illegal += 1 }
        }
        assert!(legal > 300 && illegal > 300, "{legal} legal, {illegal} illegal");
    }

    /// Whether the operations that are not `used` can follow each other from a register that holds `value`.
    fn has_order(history: &[Observation], used: &mut Vec<bool>, value: u64) -> bool {
        let is_left = |index: &usize| !used[*index] && history[*index].completed != PENDING;
        if !(0..history.len()).any(|index| is_left(&index)) {
            return true;
        }
        for index in 0..history.len() {
            let one = history[index];
            let comes_first = (0..history.len())
                .filter(|other| !used[*other] && *other != index)
                .all(|other| history[other].completed >= one.invoked);
            if used[index] || !comes_first {
                continue;
            }
            let next = match one.access {
                Write(next) => next,
                Read(seen) if seen == value => value,
                _ => continue,
            };
            used[index] = true;
            let found = has_order(history, used, next);
            used[index] = false;
            if found {
                return true;
            }
        }
        false
    }
}
