//! How many cycles the CPUs worked, of all processes and the kernel: by their own counters where there are
//! any (<https://man7.org/linux/man-pages/man2/perf_event_open.2.html>), and estimated from CPU time and
//! clock where there are none, as in most virtual machines.
//!
//! A halted CPU counts no cycles; one whose kernel waits in a loop instead (`idle=poll`) counts them as work.
//! A guest's cycles count where it runs. Counting for all processes takes `CAP_PERFMON`, or
//! `kernel.perf_event_paranoid` of 0 or less.

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

/// Counters of all CPUs that are online, which count since they were made.
pub struct Cycles {
    counters: Vec<Counter>,
}

/// How many cycles, and whether they were counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CycleCount {
    /// Cycles of all CPUs together.
    pub cycles: u64,
    /// Whether this is CPU time by clock frequency: the clock may have been another while it was not looked
    /// at.
    pub is_estimated: bool,
}

impl CycleCount {
    /// What was counted, or else CPU time (microseconds) by frequency (megahertz).
    #[must_use]
    pub fn of(counted: Option<u64>, cpu_us: Option<f64>, clock_mhz: Option<f64>) -> Option<CycleCount> {
        let estimate = || Some((cpu_us? * clock_mhz?).round() as u64);
        match counted {
            Some(cycles) => Some(CycleCount { cycles, is_estimated: false }),
            None => estimate().map(|cycles| CycleCount { cycles, is_estimated: true }),
        }
    }
}

impl Cycles {
    /// Begins to count. `None` where any CPU has no such counter, or where it is not allowed.
    #[must_use]
    pub fn begin() -> Option<Cycles> {
        Cycles::begin_event(Hardware::CPU_CYCLES)
    }

    fn begin_event(event: impl Into<Event> + Copy) -> Option<Cycles> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
        let counter = |cpu| {
            let mut builder = Builder::new().kind(event).any_pid().one_cpu(cpu);
            // As it comes, it leaves out the kernel, where storage spends most.
            builder.include_kernel().include_hv();
            let mut counter = builder.build()?;
            counter.enable()?;
            Ok(counter)
        };
        let counters: std::io::Result<Vec<Counter>> = cpus_of(&online)?.into_iter().map(counter).collect();
        Some(Cycles { counters: counters.ok()? })
    }

    /// How many there were, of all CPUs together. `None` if any did not count, as when it went offline.
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.counters.into_iter().map(count_of).sum()
    }
}

/// Where counters are shared (`perf` may run too), it counted only part of the time, and the rest is taken to
/// be alike.
fn count_of(mut counter: Counter) -> Option<u64> {
    let read = counter.read_count_and_time().ok()?;
    let share = read.time_enabled as f64 / read.time_running as f64;
    match read.time_running {
        0 => None,
        running if running == read.time_enabled => Some(read.count),
        _ => Some((read.count as f64 * share).round() as u64),
    }
}

/// Of a list like `0-3,8`.
fn cpus_of(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// The clock of the CPUs now, in megahertz, on average: what they run at while they work must be asked while
/// they do. `None` on architectures that do not tell (all but x86).
#[must_use]
pub fn clock_mhz() -> Option<f64> {
    average_mhz(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn average_mhz(cpuinfo: &str) -> Option<f64> {
    let lines = cpuinfo.lines().filter(|line| line.starts_with("cpu MHz"));
    let clocks: Vec<f64> = lines
        .filter_map(|line| line.split_once(':')?.1.trim().parse().ok())
        .filter(|mhz| *mhz > 0.0)
        .collect();
    (!clocks.is_empty()).then(|| clocks.iter().sum::<f64>() / clocks.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;
    use std::time::{Duration, Instant};

    /// Whether this process may count for all others, by what the kernel says about it.
    fn is_allowed() -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        // CAP_SYS_ADMIN and CAP_PERFMON; a container may be refused the call whatever it has.
        let has_capability = field("CapEff:") & (1 << 21 | 1 << 38) != 0;
        let is_filtered = field("Seccomp:") != 0;
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
        let is_open = paranoid.trim().parse().is_ok_and(|level: i32| level <= 0);
        (has_capability || is_open) && !is_filtered && !paranoid.is_empty()
    }

    #[test]
    fn each_cpu_is_counted_all_the_time() {
        // Where there is no hardware to count, software that is counted the same way shows that it would be.
        let outside = Instant::now();
        let Some(counting) = Cycles::begin_event(Software::CPU_CLOCK) else { return assert!(!is_allowed()) };
        let inside = Instant::now();
        let cpus = counting.counters.len();
        std::thread::sleep(Duration::from_millis(200));
        let inside = inside.elapsed().as_secs_f64();
        let ns = counting.end().unwrap();
        let outside = outside.elapsed().as_secs_f64();
        let each = ns as f64 / 1e9 / cpus as f64;
        assert!(cpus >= std::thread::available_parallelism().unwrap().get());
        assert!(each > inside * 0.99 && each < outside * 1.01, "{inside} {each} {outside}");
    }

    #[test]
    fn switches_of_other_processes_and_the_kernel_are_counted() {
        let counting = Cycles::begin_event(Software::CONTEXT_SWITCHES);
        let Some(counting) = counting else { return assert!(!is_allowed()) };
        for _ in 0..20 {
            assert!(std::process::Command::new("sleep").arg("0.001").status().unwrap().success());
        }
        assert!(counting.end().unwrap() >= 40);
    }

    #[test]
    fn cycles_are_counted_where_there_are_counters_and_else_estimated() {
        let begin = Instant::now();
        let counting = Cycles::begin();
        let clock = clock_mhz();
        while begin.elapsed() < Duration::from_millis(200) {
            std::hint::spin_loop();
        }
        let found = CycleCount::of(counting.and_then(Cycles::end), Some(200_000.0), clock);
        let Some(found) = found else { return assert_eq!(clock, None) };
        // One CPU for a fifth of a second, at 0.5 GHz or more.
        assert!(found.cycles > 50_000_000, "{found:?}");
    }

    #[test]
    fn what_was_captured_is_read() {
        let cpuinfo = "processor\t: 0\ncpu MHz\t\t: 2596.148\ncache size\t: 1 KB\ncpu MHz\t\t: 3400.852\n";
        assert_eq!(average_mhz(cpuinfo), Some(2998.5));
        assert_eq!(average_mhz("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
        assert_eq!(cpus_of("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!((cpus_of("0\n"), cpus_of("")), (Some(vec![0]), None));
        // 1500 us at 2000 MHz.
        let estimated = CycleCount { cycles: 3_000_000, is_estimated: true };
        assert_eq!(CycleCount::of(None, Some(1500.0), Some(2000.0)), Some(estimated));
        let counted = CycleCount { cycles: 7, is_estimated: false };
        assert_eq!(CycleCount::of(Some(7), Some(1500.0), Some(2000.0)), Some(counted));
        assert_eq!(CycleCount::of(None, Some(1500.0), None), None);
    }
}
