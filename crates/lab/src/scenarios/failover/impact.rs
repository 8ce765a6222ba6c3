//! What clients notice of work that goes on beside them.

use crate::scenarios::steady::Stretch;
use serde::{Deserialize, Serialize};

/// What clients got before the work, during it and after it, under the same load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Impact {
    /// Before.
    pub before: Stretch,
    /// During.
    pub during: Stretch,
    /// After, when everything was done that the work brought with it.
    pub after: Stretch,
}

impl Impact {
    /// Operations a second during it, as a multiple of those after; absent if there were none after.
    #[must_use]
    pub fn iops_kept(&self) -> Option<f64> {
        (self.after.iops > 0.0).then(|| self.during.iops / self.after.iops)
    }

    /// The latency that 99 % of the operations did not exceed, during it as a multiple of after; absent if there were
    /// none after or none during it. What serves clients is the same in both, which before need not be so.
    #[must_use]
    pub fn p99_growth(&self) -> Option<f64> {
        let (after, during) = (self.after.latency?.p99_us, self.during.latency?.p99_us);
        (after > 0.0).then(|| during / after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::failover::summary::tests::stretch;

    #[test]
    fn an_impact_is_what_is_left_of_the_rate_and_how_the_tail_grows() {
        let impact = impact(stretch(900.0, 1500.0), stretch(1000.0, 500.0));
        assert_eq!((impact.iops_kept(), impact.p99_growth()), (Some(0.9), Some(3.0)));
    }

    #[test]
    fn without_operations_it_is_unknown_and_not_zero() {
        let nothing = || Stretch { latency: None, ..stretch(0.0, 0.0) };
        let unknown = impact(stretch(900.0, 1500.0), nothing());
        assert_eq!((unknown.iops_kept(), unknown.p99_growth()), (None, None));
        let unknown = impact(nothing(), stretch(1000.0, 500.0));
        assert_eq!((unknown.iops_kept(), unknown.p99_growth()), (Some(0.0), None));
    }

    fn impact(during: Stretch, after: Stretch) -> Impact {
        Impact { before: stretch(2000.0, 250.0), during, after }
    }
}
