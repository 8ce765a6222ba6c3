//! What several rounds of measurement say together, and how surely.
//!
//! Two subjects are measured in turns, so that what changes on the machine from round to round is common to
//! both. Intervals are made of rounds, never of single operations or seconds, which are too alike to count as
//! so many observations. A figure that each round has one of (a rate, a mean, a cost) is compared by
//! `comparison`; the tail of the latencies, which only all rounds together have enough of, by
//! `bootstrap`.
//!
//! Both aim at this: of comparisons without a difference, no more than 5 % claim one. Their tests
//! measure it. Whether figures change while they are measured is told by [`Trend`]. What cannot be said is `None`: too few rounds, too few operations, a round that failed.

mod bootstrap;
mod comparison;
#[cfg(test)]
mod random;
mod trend;

pub use bootstrap::{Quantile, Resampling, quantile_interval, quantile_of, quantile_ratio};
pub use comparison::{Ratio, Verdict, coverage, median};
pub use trend::Trend;
