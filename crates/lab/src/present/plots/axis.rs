//! What an axis shows, and where on it a value lies.

use super::ticks::{self, Tick, Unit};

/// One axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What is shown, without the unit: the ticks carry that.
    pub label: String,
    /// How values are spread.
    pub scale: Scale,
    /// What the values count.
    pub unit: Unit,
    /// Whether a linear axis begins at 0 although the data does not. No effect on the other scales.
    pub from_zero: bool,
}

/// How an axis spreads its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equally long.
    Linear,
    /// Equal ratios are equally long. What is not above 0 is drawn at the lower end, where a drop to 0 is
    /// seen.
    Log,
    /// The values are quantiles in `[0, 1)`, spread by `log10(1 / (1 - quantile))` as HdrHistogram's plots
    /// are: each nine more is equally long. The unit is ignored. A quantile of 1 is drawn at the upper end.
    Percentile,
}

impl Axis {
    /// A linear axis that begins at 0.
    pub fn from_zero(label: &str, unit: Unit) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear, unit, from_zero: true }
    }

    /// A linear axis over the span of the data.
    pub fn linear(label: &str, unit: Unit) -> Self {
        Self { from_zero: false, ..Self::from_zero(label, unit) }
    }

    /// A logarithmic axis.
    pub fn logarithmic(label: &str, unit: Unit) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label, unit) }
    }

    /// An axis of percentiles, for quantiles in `[0, 1)`.
    pub fn percentiles(label: &str) -> Self {
        Self { scale: Scale::Percentile, ..Self::linear(label, Unit::Number) }
    }

    /// A value of this axis for people.
    pub fn value(&self, value: f64) -> String {
        match self.scale {
            Scale::Percentile => ticks::percentile(value),
            Scale::Linear | Scale::Log => ticks::value(value, self.unit),
        }
    }
}

/// Whether the data may touch the ends of its axis: time does, heights get some air.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fit {
    Tight,
    Airy,
}

/// Larger values come from a broken measurement and would leave nothing to see of the others.
const MAGNITUDE_MAX: f64 = 1e30;

/// Whether a value can be drawn at all.
pub(super) fn is_drawable(value: f64) -> bool {
    value.abs() < MAGNITUDE_MAX
}

/// An axis fitted to its data.
///
/// Invariant: `low < high`, both finite, so that every drawable value has a place in `0..=1`.
pub(super) struct Ruler {
    scale: Scale,
    /// The ends, as `Scale::spread` gives them.
    low: f64,
    high: f64,
    /// All within the ends.
    pub(super) ticks: Vec<Tick>,
}

impl Scale {
    fn spread(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Log => value.max(1e-30).log10(),
            // `ln_1p` keeps the nines that `1 - quantile` would lose.
            Scale::Percentile => -(-value.clamp(0.0, 1.0)).ln_1p() / std::f64::consts::LN_10,
        }
    }

    /// Whether a value may move the ends of the axis.
    fn stretches(self, value: f64) -> bool {
        is_drawable(value)
            && match self {
                Scale::Linear => true,
                Scale::Log => value > 1e-30,
                Scale::Percentile => (0.0..1.0).contains(&value),
            }
    }
}

impl Ruler {
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, fit: Fit, tick_count: usize) -> Self {
        let scale = axis.scale;
        let mut values = values.filter(|&value| scale.stretches(value)).peekable();
        let zero = values.peek().is_some()
            && ((axis.from_zero && scale == Scale::Linear) || scale == Scale::Percentile);
        let (mut low, mut high) = values
            .chain(zero.then_some(0.0))
            .map(|value| scale.spread(value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(at), high.max(at)));
        let empty = low > high;
        if empty {
            (low, high) = (0.0, 1.0);
        }
        let flat = high - low <= high.abs().max(low.abs()) * 1e-9;
        if flat {
            (low, high) = match scale {
                Scale::Linear if high == 0.0 => (0.0, 1.0),
                Scale::Linear => (low - low.abs() * 0.1, high + high.abs() * 0.1),
                Scale::Log => (low - 0.5, high + 0.5),
                Scale::Percentile => (0.0, 1.0),
            };
        } else if fit == Fit::Airy {
            let air = (high - low) * 0.05;
            let keeps_zero = |end: f64| end == 0.0 && scale != Scale::Log;
            // Air must not invent values below 0 where there are none.
            let floor = if low >= 0.0 && scale != Scale::Log { 0.0 } else { f64::NEG_INFINITY };
            (low, high) = (
                if keeps_zero(low) { low } else { (low - air).max(floor) },
                if keeps_zero(high) { high } else { high + air },
            );
        }
        assert!(
            low < high && low.is_finite() && high.is_finite(),
            "the ends of an axis differ: {low}, {high}"
        );
        let ticks = match scale {
            // Numbers beside nothing would look like a measurement.
            _ if empty => Vec::new(),
            Scale::Linear => ticks::linear(low, high, tick_count, axis.unit),
            Scale::Log => ticks::logarithmic(10f64.powf(low), 10f64.powf(high), tick_count, axis.unit),
            Scale::Percentile => ticks::percentiles(1.0 - 10f64.powf(-high)),
        };
        Self { scale, low, high, ticks }
    }

    /// Where a value lies between the lower end, 0, and the upper end, 1. None if it cannot be drawn.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let share = (self.scale.spread(value) - self.low) / (self.high - self.low);
        is_drawable(value).then(|| share.clamp(0.0, 1.0))
    }

    /// Whether labels may be left out here and there: each nine stands for itself, while even steps are left
    /// out evenly.
    pub(super) fn is_uneven(&self) -> bool {
        self.scale != Scale::Linear
    }

    /// Whether the axis covers this value, rather than drawing it at an end.
    pub(super) fn covers(&self, value: f64) -> bool {
        let slack = (self.high - self.low) * 1e-9;
        is_drawable(value) && (self.low - slack..=self.high + slack).contains(&self.scale.spread(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruler(axis: &Axis, values: &[f64], fit: Fit) -> Ruler {
        Ruler::new(axis, values.iter().copied(), fit, 5)
    }

    #[test]
    fn each_scale_spreads_its_values_as_documented() {
        let linear = ruler(&Axis::from_zero("", Unit::Number), &[50.0, 100.0], Fit::Tight);
        assert_eq!(linear.place(50.0), Some(0.5));
        let logarithmic = ruler(&Axis::logarithmic("", Unit::Number), &[1.0, 100.0], Fit::Tight);
        assert_eq!(logarithmic.place(10.0), Some(0.5));
        let percentiles = ruler(&Axis::percentiles(""), &[0.5, 0.9999], Fit::Tight);
        for (quantile, place) in
            [(0.0, 0.0), (0.9, 0.25), (0.99, 0.5), (0.999, 0.75), (0.9999, 1.0), (1.0, 1.0)]
        {
            let found = percentiles.place(quantile).unwrap();
            assert!((found - place).abs() < 1e-9, "{quantile}: {found}");
        }
    }

    #[test]
    fn what_cannot_be_measured_has_no_place() {
        let axis =
            ruler(&Axis::linear("", Unit::Number), &[1.0, f64::NAN, f64::INFINITY, 1e300, 3.0], Fit::Tight);
        assert_eq!(axis.place(2.0), Some(0.5), "broken values do not stretch the axis");
        for broken in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
            assert_eq!(axis.place(broken), None);
        }
    }

    #[test]
    fn a_drop_to_zero_on_a_logarithmic_axis_is_at_its_lower_end() {
        let axis = ruler(&Axis::logarithmic("", Unit::Number), &[0.0, -5.0, 10.0, 1_000.0], Fit::Tight);
        assert_eq!(axis.place(0.0), Some(0.0));
        assert_eq!(axis.place(10.0), Some(0.0));
        assert!(!axis.covers(0.0) && axis.covers(10.0));
    }

    #[test]
    fn air_does_not_reach_below_zero() {
        let axis = ruler(&Axis::linear("", Unit::Number), &[0.1, 100.0], Fit::Airy);
        assert_eq!(axis.place(0.0), Some(0.0));
        assert!(axis.place(100.0).unwrap() < 1.0);
    }

    #[test]
    fn an_axis_has_ticks_if_and_only_if_there_is_data() {
        let axes = [
            Axis::linear("", Unit::Number),
            Axis::from_zero("", Unit::Seconds),
            Axis::logarithmic("", Unit::Microseconds),
            Axis::percentiles(""),
        ];
        let values: [&[f64]; 8] = [
            &[],
            &[0.0],
            &[7.0],
            &[-7.0, -7.0],
            &[f64::NAN],
            &[1e-40, 1e29],
            &[-1e29, 1e29],
            &[1e15, 1e15 + 1.0],
        ];
        for axis in &axes {
            for values in values {
                for fit in [Fit::Tight, Fit::Airy] {
                    let ruler = ruler(axis, values, fit);
                    let any = values.iter().any(|&value| axis.scale.stretches(value));
                    assert_eq!(ruler.ticks.is_empty(), !any, "{:?} {values:?}", axis.scale);
                    assert!(
                        values
                            .iter()
                            .filter_map(|&value| ruler.place(value))
                            .all(|at| (0.0..=1.0).contains(&at))
                    );
                }
            }
        }
    }
}
