//! What inputs came to: how deep a target was reached, where no coverage tells.

use base::hash::Map;
use std::fmt;

/// What an input came to: what it was taken for, or that it was refused; and as what, or why.
pub type Outcome = (&'static str, &'static str);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    times: u64,
    /// The round in which it was seen last.
    round: u64,
}

/// How often each was seen.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    counts: Map<Outcome, Count>,
    round: u64,
    has_news: bool,
}

impl Outcomes {
    /// What one input comes to.
    #[cfg(test)]
    pub(crate) fn of(run: fn(&[u8], &mut Outcomes), input: &[u8]) -> Outcomes {
        let mut seen = Outcomes::default();
        run(input, &mut seen);
        seen
    }

    /// An input came to that.
    pub fn note(&mut self, what: &'static str, which: &'static str) {
        let count = self.counts.entry((what, which)).or_default();
        count.times += 1;
        self.has_news |= count.round < self.round;
        count.round = self.round;
    }

    /// From here on everything is news again.
    pub(crate) fn begin_round(&mut self) {
        self.round += 1;
        self.has_news = false;
    }

    /// Whether something was seen that was not seen in this round before this was asked last.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// How often that was seen.
    #[must_use]
    pub fn times(&self, outcome: Outcome) -> u64 {
        self.counts.get(&outcome).map_or(0, |count| count.times)
    }

    /// Counts what another one saw, too.
    pub fn add(&mut self, other: &Outcomes) {
        for (outcome, count) in &other.counts {
            self.counts.entry(*outcome).or_default().times += count.times;
        }
    }

    /// Those of `expected` that were never seen.
    #[must_use]
    pub fn missing(&self, expected: &[Outcome]) -> Vec<Outcome> {
        expected.iter().copied().filter(|outcome| self.times(*outcome) == 0).collect()
    }
}

impl fmt::Display for Outcomes {
    /// A line for each.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all: Vec<(&Outcome, &Count)> = self.counts.iter().collect();
        all.sort_unstable_by_key(|(outcome, _)| **outcome);
        all.iter().try_for_each(|((what, which), count)| {
            writeln!(formatter, "{:>12}  {what}: {which}", count.times)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_is_told_once_in_each_round() {
        let mut seen = Outcomes::default();
        for _ in 0..2 {
            seen.begin_round();
            assert!(!seen.take_news());
            seen.note("refused", "length");
            seen.note("refused", "length");
            assert!(seen.take_news() && !seen.take_news());
            seen.note("refused", "length");
            assert!(!seen.take_news());
            seen.note("refused", "offset");
            assert!(seen.take_news());
        }
        assert_eq!((seen.times(("refused", "length")), seen.times(("refused", "offset"))), (6, 2));
        assert_eq!(seen.missing(&[("refused", "length"), ("read", "")]), [("read", "")]);
        assert_eq!(seen.to_string().lines().count(), 2);
    }
}
