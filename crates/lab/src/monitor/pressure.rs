//! How long something that could go on waited for a CPU or for I/O: Linux' pressure stall information
//! (<https://docs.kernel.org/accounting/psi.html>).

use std::time::Instant;

/// What was counted at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Stalls {
    at: Instant,
    cpu_us: Option<u64>,
    io_us: Option<u64>,
}

/// Shares of the time between two moments, of 1. A kernel without the counters has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// In which something waited for a CPU.
    pub cpu: Option<f64>,
    /// In which something waited for I/O.
    pub io: Option<f64>,
}

impl Stalls {
    /// As of now.
    #[must_use]
    pub fn now() -> Stalls {
        let total = |what: &str| {
            let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).ok()?;
            total_us(&text)
        };
        Stalls { at: Instant::now(), cpu_us: total("cpu"), io_us: total("io") }
    }

    /// What there was since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Stalls) -> Pressure {
        let us = self.at.duration_since(earlier.at).as_secs_f64() * 1e6;
        let share = |now: Option<u64>, then: Option<u64>| {
            let stalled = now?.checked_sub(then?)?;
            (us > 0.0).then(|| (stalled as f64 / us).min(1.0))
        };
        Pressure { cpu: share(self.cpu_us, earlier.cpu_us), io: share(self.io_us, earlier.io_us) }
    }
}

/// Microseconds in all, of the line of `some`.
fn total_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_are_read_as_captured() {
        let text = "some avg10=1.53 avg60=0.87 avg300=0.36 total=109538434\nfull avg10=0.00 total=3\n";
        assert_eq!(total_us(text), Some(109_538_434));
        assert_eq!((total_us("full avg10=0.00 total=3\n"), total_us("some total=x")), (None, None));
    }

    #[test]
    fn the_share_is_of_the_time_between() {
        let at = Instant::now();
        let then = Stalls { at, cpu_us: Some(100), io_us: None };
        let now =
            Stalls { at: at + std::time::Duration::from_secs(2), cpu_us: Some(500_100), io_us: Some(9) };
        assert_eq!(now.since(&then), Pressure { cpu: Some(0.25), io: None });
    }
}
