//! What is kept while as much is asked for as can be.

use serde::{Deserialize, Serialize};

/// A bound of a figure: the highest rate is looked for at which it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Which figure, as they are named in `run.json`: `mean_us`, `p99_us` and so on.
    pub figure: String,
    /// No more than this, in the figure's unit.
    pub at_most: f64,
}

impl Objective {
    /// Fewer rates are never tried: as much as there is, and a rate at which the bound holds or does not.
    pub const PROBES_MIN: u32 = 2;

    /// Whether it can be looked for.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.at_most.is_finite() && self.at_most > 0.0 {
            true => Ok(()),
            false => Err(format!("within {} at_most {} cannot be", self.figure, self.at_most)),
        }
    }
}
