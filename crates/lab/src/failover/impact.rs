//! What clients notice of work that goes on beside them.

use crate::steady::Stretch;
use serde::{Deserialize, Serialize};

/// What clients got before the work and during it, under the same load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Impact {
    /// Before.
    pub before: Stretch,
    /// During.
    pub during: Stretch,
}

impl Impact {
    /// Operations a second during it, as a multiple of those before; absent if there were none before.
    #[must_use]
    pub fn iops_kept(&self) -> Option<f64> {
        (self.before.iops > 0.0).then(|| self.during.iops / self.before.iops)
    }

    /// The latency that 99 % of the operations did not exceed, during it as a multiple of before; absent if there were
    /// none before or none during it.
    #[must_use]
    pub fn p99_growth(&self) -> Option<f64> {
        let (before, during) = (self.before.latency?.p99_us, self.during.latency?.p99_us);
        (before > 0.0).then(|| during / before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::summary::tests::stretch;

    #[test]
    fn an_impact_is_what_is_left_of_the_rate_and_how_the_tail_grows() {
        let impact = Impact { before: stretch(1000.0, 500.0), during: stretch(900.0, 1500.0) };
        assert_eq!((impact.iops_kept(), impact.p99_growth()), (Some(0.9), Some(3.0)));
    }

    #[test]
    fn without_operations_it_is_unknown_and_not_zero() {
        let nothing = Stretch { latency: None, ..stretch(0.0, 0.0) };
        let impact = Impact { before: nothing.clone(), during: stretch(900.0, 1500.0) };
        assert_eq!((impact.iops_kept(), impact.p99_growth()), (None, None));
        let impact = Impact { before: stretch(1000.0, 500.0), during: nothing };
        assert_eq!((impact.iops_kept(), impact.p99_growth()), (Some(0.0), None));
    }
}
