//! Where an axis has its ticks and how a value is written: round numbers, thousands, and the unit that suits.

/// What a figure counts. It decides the prefix (`1.5 ms` from 1,500 µs) and the steps between ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number, whose meaning the axis label gives: IOPS, operations, cores.
    Number,
    /// A duration in microseconds, shown as ns, µs, ms or s.
    Microseconds,
    /// A duration in seconds, shown as µs, ms, s, min or h.
    Seconds,
    /// Bytes, shown in powers of 1,024 as people name block sizes: KiB, MiB, GiB.
    Bytes,
    /// Bytes per second, shown in powers of 1,000 as people name throughput: MB/s, GB/s.
    BytesPerSecond,
    /// A value already in percent: 50 is `50 %`.
    Percent,
    /// A ratio: 1.5 is `1.5×`.
    Times,
}

/// How many of the base unit one shown unit is, and its name.
type Prefix = (f64, &'static str);

impl Unit {
    /// From small to large. A prefix is used from its own size on, save for minutes and hours: people read
    /// `90 s` and `100 min` better than `1.5 min` and `1.67 h`.
    fn prefixes(self) -> &'static [Prefix] {
        match self {
            Unit::Number => &[(1.0, ""), (1e6, " M"), (1e9, " G")],
            Unit::Microseconds => &[(1e-3, " ns"), (1.0, " µs"), (1e3, " ms"), (1e6, " s")],
            Unit::Seconds => {
                &[(1e-9, " ns"), (1e-6, " µs"), (1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3_600.0, " h")]
            }
            Unit::Bytes => &[
                (1.0, " B"),
                (1_024.0, " KiB"),
                (1_048_576.0, " MiB"),
                (1_073_741_824.0, " GiB"),
                (1_099_511_627_776.0, " TiB"),
            ],
            Unit::BytesPerSecond => &[(1.0, " B/s"), (1e3, " kB/s"), (1e6, " MB/s"), (1e9, " GB/s")],
            Unit::Percent => &[(1.0, " %")],
            Unit::Times => &[(1.0, "×")],
        }
    }

    fn prefix(self, magnitude: f64) -> Prefix {
        let used_from = |prefix: &Prefix| match prefix.1 {
            " min" | " h" => prefix.0 * 3.0,
            _ => prefix.0 * 0.999_999_9,
        };
        let prefixes = self.prefixes();
        *prefixes.iter().rev().find(|prefix| magnitude >= used_from(prefix)).unwrap_or(&prefixes[0])
    }
}

/// One tick of an axis. A tick without a label is a minor one.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// In the unit of the axis.
    pub value: f64,
    /// As shown, with its unit; empty for a minor tick.
    pub label: String,
}

/// A value for people, with its unit and about three significant digits: `12,346`, `1.5 ms`, `99.9 %`.
/// What is not a number is `unavailable`, never 0.
pub fn value(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return "unavailable".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let (size, name) = unit.prefix(value.abs());
    let shown = value / size;
    // Rounding may carry into the next prefix: 999.9 µs is 1 ms.
    let rounded = round_to_significant(shown);
    let (next_size, next_name) = unit.prefix((rounded * size).abs());
    let (shown, name) =
        if next_name == name { (rounded, name) } else { (rounded * size / next_size, next_name) };
    let decimals = (2.0 - shown.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    let digits = fixed(shown, decimals);
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => &digits,
    };
    format!("{digits}{name}")
}

/// A quantile as a percentile with all its nines: 0.999 is `99.9 %`.
pub fn percentile(quantile: f64) -> String {
    if !quantile.is_finite() {
        return "unavailable".to_owned();
    }
    let nines = (1.0 / (1.0 - quantile.clamp(0.0, 1.0 - 1e-12))).log10().ceil();
    let digits = format!("{:.*}", (nines - 1.0).clamp(1.0, 10.0) as usize, quantile * 100.0);
    format!("{} %", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// Evenly spaced ticks within `[low, high]`, about `count` of them, at round numbers of the unit shown.
/// One prefix serves the whole axis, so that `0.5 ms` stands beside `1 ms` and not `500 µs`.
pub fn linear(low: f64, high: f64, count: usize, unit: Unit) -> Vec<Tick> {
    let (size, name) = unit.prefix(low.abs().max(high.abs()));
    let step = round_step((high - low) / size / count.max(1) as f64);
    let decimals = (-step.log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
    let first = (low / size / step - 1e-9).ceil();
    let last = (high / size / step + 1e-9).floor();
    if !(step > 0.0 && first.is_finite() && last.is_finite()) {
        return Vec::new();
    }
    let steps = ((last - first).max(-1.0) + 1.0).min(64.0) as usize;
    (0..steps)
        .map(|index| {
            let shown = (first + index as f64) * step;
            let label = if shown == 0.0 { "0".to_owned() } else { fixed(shown, decimals) + name };
            Tick { value: shown * size, label }
        })
        .collect()
}

/// The one of 1, 2 or 5 times a power of ten that is nearest to `step`, as ratios go.
pub fn round_step(step: f64) -> f64 {
    if !(step.is_finite() && step > 1e-300) {
        return 1.0;
    }
    let power = 10f64.powf(step.log10().floor());
    let factor = match step / power {
        ..1.5 => 1.0,
        ..3.2 => 2.0,
        ..7.0 => 5.0,
        _ => 10.0,
    };
    factor * power
}

/// Ticks within `[low, high]` of a logarithmic axis, both above 0: every decade where there are several,
/// 1-2-5 where there are few, evenly spaced ones where the axis spans less than a factor of four; powers of
/// two for bytes. At most about `count` carry a label.
pub fn logarithmic(low: f64, high: f64, count: usize, unit: Unit) -> Vec<Tick> {
    if !(low > 0.0 && high > low && high.is_finite()) {
        return Vec::new();
    }
    let count = count.max(2);
    if unit == Unit::Bytes {
        return powers_of_two(low, high, count);
    }
    if high / low < 4.0 {
        return linear(low, high, count, unit);
    }
    let within = |value: &f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value);
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let multiples = |factors: &'static [f64]| {
        (first..=last).flat_map(move |decade| factors.iter().map(move |factor| factor * 10f64.powi(decade)))
    };
    let one_two_five: Vec<f64> = multiples(&[1.0, 2.0, 5.0]).filter(within).collect();
    let labelled: Vec<f64> = if one_two_five.len() <= count + 1 {
        one_two_five
    } else {
        let decades: Vec<f64> = multiples(&[1.0]).filter(within).collect();
        let stride = decades.len().div_ceil(count + 1).max(1);
        // A single decade says nothing of the scale; two labels do.
        let halves = multiples(&[1.0, 3.0]).filter(within).collect();
        if decades.len() < 3 { halves } else { decades.into_iter().step_by(stride).collect() }
    };
    let mut ticks: Vec<Tick> =
        labelled.into_iter().map(|tick| Tick { value: tick, label: value(tick, unit) }).collect();
    if last - first <= 6 {
        let minor = multiples(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).filter(within);
        let is_new =
            |tick: &f64, ticks: &[Tick]| ticks.iter().all(|other| (other.value / tick - 1.0).abs() > 1e-6);
        for tick in minor {
            if is_new(&tick, &ticks) {
                ticks.push(Tick { value: tick, label: String::new() });
            }
        }
    }
    ticks
}

fn powers_of_two(low: f64, high: f64, count: usize) -> Vec<Tick> {
    let (first, last) = ((low.log2() - 1e-9).ceil() as i32, (high.log2() + 1e-9).floor() as i32);
    let stride = ((last - first).max(0) as usize / count + 1).min(64);
    (first..=last)
        .step_by(stride)
        .map(|power| Tick { value: 2f64.powi(power), label: value(2f64.powi(power), Unit::Bytes) })
        .collect()
}

/// 50 %, 90 %, 99 %, 99.9 % and so on up to `highest`, a quantile below 1; first of all 0 %.
pub fn percentiles(highest: f64) -> Vec<Tick> {
    let nines = (1.0 / (1.0 - highest.clamp(0.0, 1.0 - 1e-12)) * (1.0 + 1e-6)).log10().floor() as i32;
    [0.0, 0.5]
        .into_iter()
        .filter(|&quantile| quantile <= highest)
        .chain((1..=nines.min(12)).map(|nines| 1.0 - 10f64.powi(-nines)))
        .map(|quantile| Tick { value: quantile, label: percentile(quantile) })
        .collect()
}

fn round_to_significant(value: f64) -> f64 {
    if value.abs() >= 100.0 {
        return value.round();
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    if scale.is_finite() { (value * scale).round() / scale } else { value }
}

/// A number with the given decimals, thousands grouped by commas and a true minus sign.
fn fixed(value: f64, decimals: usize) -> String {
    // Such a number has no place for commas, and no report has such a number.
    if value.abs() >= 1e15 {
        return format!("{value:.2e}").replace('-', "−");
    }
    let digits = format!("{:.*}", decimals, value.abs());
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let mut grouped = String::new();
    if value < 0.0 && digits.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
        grouped.push('−');
    }
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if !fraction.is_empty() {
        grouped.push('.');
        grouped.push_str(fraction);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: Vec<Tick>) -> Vec<String> {
        ticks.into_iter().map(|tick| tick.label).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn values_are_written_with_thousands_and_the_unit_that_suits() {
        let table = [
            (0.0, Unit::Number, "0"),
            (0.0, Unit::Microseconds, "0"),
            (-0.0, Unit::Seconds, "0"),
            (12_000.0, Unit::Number, "12,000"),
            (12_345.6, Unit::Number, "12,346"),
            (999_999.0, Unit::Number, "999,999"),
            (1_234_567.0, Unit::Number, "1.23 M"),
            (-1_500.0, Unit::Number, "−1,500"),
            (0.25, Unit::Number, "0.25"),
            (0.000_123_4, Unit::Number, "0.000123"),
            (1_500.0, Unit::Microseconds, "1.5 ms"),
            (999.9, Unit::Microseconds, "1 ms"),
            (0.25, Unit::Microseconds, "250 ns"),
            (87.26, Unit::Microseconds, "87.3 µs"),
            (2_000_000.0, Unit::Microseconds, "2 s"),
            (90.0, Unit::Seconds, "90 s"),
            (600.0, Unit::Seconds, "10 min"),
            (14_400.0, Unit::Seconds, "4 h"),
            (0.0015, Unit::Seconds, "1.5 ms"),
            (4_096.0, Unit::Bytes, "4 KiB"),
            (1_500_000_000.0, Unit::BytesPerSecond, "1.5 GB/s"),
            (12.5, Unit::Percent, "12.5 %"),
            (1.125, Unit::Times, "1.13×"),
            (f64::NAN, Unit::Times, "unavailable"),
            (f64::INFINITY, Unit::Number, "unavailable"),
        ];
        for (number, unit, expected) in table {
            assert_eq!(value(number, unit), expected, "{number} {unit:?}");
        }
    }

    #[test]
    fn percentiles_keep_all_their_nines() {
        let table = [
            (0.0, "0 %"),
            (0.5, "50 %"),
            (0.9, "90 %"),
            (0.95, "95 %"),
            (0.99, "99 %"),
            (0.999, "99.9 %"),
            (0.9995, "99.95 %"),
            (0.9999, "99.99 %"),
            (0.99999, "99.999 %"),
            (1.0, "100 %"),
            (f64::NAN, "unavailable"),
        ];
        for (quantile, expected) in table {
            assert_eq!(percentile(quantile), expected, "{quantile}");
        }
    }

    #[test]
    fn linear_ticks_are_round_and_share_one_unit() {
        let table: [(f64, f64, usize, Unit, &[&str]); 8] = [
            (0.0, 12_000.0, 4, Unit::Number, &["0", "2,000", "4,000", "6,000", "8,000", "10,000", "12,000"]),
            (0.0, 1_500.0, 3, Unit::Microseconds, &["0", "0.5 ms", "1.0 ms", "1.5 ms"]),
            (0.0, 60.0, 6, Unit::Seconds, &["0", "10 s", "20 s", "30 s", "40 s", "50 s", "60 s"]),
            (0.0, 600.0, 5, Unit::Seconds, &["0", "2 min", "4 min", "6 min", "8 min", "10 min"]),
            (-1.0, 1.0, 4, Unit::Number, &["−1.0", "−0.5", "0", "0.5", "1.0"]),
            (0.0, 2_000_000.0, 4, Unit::Number, &["0", "0.5 M", "1.0 M", "1.5 M", "2.0 M"]),
            (0.95, 1.25, 3, Unit::Times, &["1.0×", "1.1×", "1.2×"]),
            (3.0, 3.0, 4, Unit::Number, &["3"]),
        ];
        for (low, high, count, unit, expected) in table {
            assert_eq!(labels(linear(low, high, count, unit)), expected, "{low} to {high} {unit:?}");
        }
    }

    #[test]
    fn logarithmic_ticks_suit_the_span() {
        let table: [(f64, f64, usize, Unit, &[&str]); 7] = [
            (10.0, 100_000.0, 5, Unit::Microseconds, &["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"]),
            (80.0, 1_200.0, 5, Unit::Microseconds, &["100 µs", "200 µs", "500 µs", "1 ms"]),
            (0.4, 6.0, 5, Unit::Times, &["0.5×", "1×", "2×", "5×"]),
            (100.0, 300.0, 5, Unit::Microseconds, &["100 µs", "150 µs", "200 µs", "250 µs", "300 µs"]),
            (512.0, 65_536.0, 4, Unit::Bytes, &["512 B", "2 KiB", "8 KiB", "32 KiB"]),
            (1e-3, 1e9, 5, Unit::Number, &["0.001", "1", "1,000", "1 M", "1 G"]),
            (0.0, 10.0, 5, Unit::Number, &[]),
        ];
        for (low, high, count, unit, expected) in table {
            assert_eq!(labels(logarithmic(low, high, count, unit)), expected, "{low} to {high} {unit:?}");
        }
    }

    #[test]
    fn percentile_ticks_add_a_nine_each() {
        assert_eq!(labels(percentiles(0.9999)), ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert_eq!(labels(percentiles(0.3)), ["0 %"]);
        assert_eq!(percentiles(f64::from_bits(1.0f64.to_bits() - 1)).len(), 14);
    }

    #[test]
    fn extreme_ranges_give_few_ticks_and_end() {
        let extremes = [0.0, 1e-300, 1.0, 1e15, 1e300, f64::MAX, f64::NAN, f64::INFINITY, -1e300];
        for low in extremes {
            for high in extremes {
                for unit in [Unit::Number, Unit::Seconds, Unit::Bytes, Unit::Times] {
                    let count = linear(low, high, 5, unit).len() + logarithmic(low, high, 5, unit).len();
                    assert!(count < 200, "{low} to {high}: {count}");
                }
            }
        }
    }

    #[test]
    fn every_tick_lies_within_its_axis() {
        for (low, high) in [(0.0, 1.0), (7.3, 911.0), (0.003, 12_345.0), (99.0, 101.0)] {
            for tick in
                linear(low, high, 5, Unit::Number).into_iter().chain(logarithmic(low, high, 5, Unit::Number))
            {
                let slack = (high - low) * 1e-6;
                assert!(
                    (low - slack..=high + slack).contains(&tick.value),
                    "{} in {low} to {high}",
                    tick.value
                );
            }
        }
    }
}
