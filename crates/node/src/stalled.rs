//! Connections with a message that could not be handled yet: of one tenant, or of other OSDs.
//!
//! With each turn some are presented again, [`PER_TURN_MAX`] at most, and those first that were presented the longest time ago:
//! however many wait, a turn is short, and none is passed over.

use std::collections::VecDeque;
use std::time::Duration;

/// So many are presented in a turn: more than there are usually, and looked at within a small part of a millisecond.
const PER_TURN_MAX: usize = 64;
/// The longest pause between two turns while more wait than one turn presents: what made room need not happen again for those
/// that were not looked at.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Stalled<C> {
    /// In the order in which they are presented.
    waiting: VecDeque<C>,
}

impl<C> Default for Stalled<C> {
    fn default() -> Stalled<C> {
        Stalled { waiting: VecDeque::new() }
    }
}

impl<C> Stalled<C> {
    /// One waits, or goes on waiting.
    pub(crate) fn push(&mut self, connection: C) {
        self.waiting.push_back(connection);
    }

    /// How many are presented in this turn.
    pub(crate) fn due(&self) -> usize {
        self.waiting.len().min(PER_TURN_MAX)
    }

    /// The next one. It waits no longer, unless it is pushed again.
    pub(crate) fn pop(&mut self) -> Option<C> {
        self.waiting.pop_front()
    }

    /// How soon the next turn is to be at the latest.
    pub(crate) fn pause_max(&self) -> Option<Duration> {
        (self.waiting.len() > PER_TURN_MAX).then_some(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A turn in which nobody makes progress but whom `goes` names; whom it presents.
    fn turn(stalled: &mut Stalled<usize>, goes: impl Fn(usize) -> bool) -> Vec<usize> {
        let presented: Vec<usize> = (0..stalled.due()).filter_map(|_| stalled.pop()).collect();
        let left = presented.iter().copied().filter(|connection| !goes(*connection));
        left.for_each(|connection| stalled.push(connection));
        presented
    }

    #[test]
    fn few_are_all_presented_in_each_turn() {
        let mut stalled = Stalled::default();
        (0..PER_TURN_MAX).for_each(|connection| stalled.push(connection));
        for _ in 0..3 {
            assert_eq!(turn(&mut stalled, |_| false).len(), PER_TURN_MAX);
        }
        assert_eq!(stalled.pause_max(), None);
        turn(&mut stalled, |_| true);
        assert_eq!(stalled.due(), 0);
    }

    #[test]
    fn of_many_a_turn_presents_some_and_none_is_passed_over() {
        let mut stalled = Stalled::default();
        let count = 3 * PER_TURN_MAX + 7;
        (0..count).for_each(|connection| stalled.push(connection));
        let mut presented = BTreeMap::new();
        // New ones come with each turn.
        for round in 0..8 {
            assert_eq!(stalled.pause_max(), Some(PAUSE_MAX));
            let now = turn(&mut stalled, |_| false);
            assert_eq!(now.len(), PER_TURN_MAX);
            now.into_iter().for_each(|connection| *presented.entry(connection).or_insert(0) += 1);
            stalled.push(count + round);
        }
        let often: Vec<u32> = (0..count).map(|connection| presented[&connection]).collect();
        let (least, most) = (often.iter().min(), often.iter().max());
        assert_eq!((least, most), (Some(&2), Some(&3)), "each as often as every other");
    }
}
