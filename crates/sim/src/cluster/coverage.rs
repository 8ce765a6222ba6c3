//! How often what happened: a simulation that stops reaching the interesting places would pass in silence.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Counts of faults and notable events, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Cow<'static, str>, u64>,
}

impl Coverage {
    /// Counts one more of `what`.
    pub fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Counts `number` more of `what`.
    pub fn add(&mut self, what: impl Into<Cow<'static, str>>, number: u64) {
        *self.counts.entry(what.into()).or_default() += number;
    }

    /// How often `what` happened.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Adds what happened elsewhere.
    pub fn merge(&mut self, other: &Coverage) {
        for (what, number) in &other.counts {
            self.add(what.clone(), *number);
        }
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(what, number)| (what.as_ref(), *number))
    }
}
