//! CPU time of threads and how long they waited for a CPU, by the scheduler's counters
//! (`/proc/…/schedstat`, <https://docs.kernel.org/scheduler/sched-stats.html>).
//!
//! The counters are brought up to date when a thread goes on or off a CPU, and CPU time also at the clock's
//! tick (every 1 to 10 ms): what a thread has just begun is seen a little late. A kernel without them shows
//! zeros, and nothing is told then.

use super::threads::without_number;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was counted at one moment. Taking it costs two short files for each thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadTimes {
    /// By process and thread id.
    threads: BTreeMap<(u32, u32), Thread>,
}

/// What the threads of one name did in a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThreadUse {
    /// The process, as it is called in the report.
    pub process: String,
    /// The threads' name, without the number behind it.
    pub thread: String,
    /// How many there are, those that did nothing included.
    pub threads: usize,
    /// Microseconds on a CPU, of all together.
    pub cpu_us: f64,
    /// Microseconds ready to run and not running, of all together.
    pub waited_us: f64,
    /// How often they were put on a CPU.
    pub slices: u64,
}

#[derive(Clone, Debug)]
struct Thread {
    process: String,
    name: String,
    times: Times,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    cpu_ns: u64,
    waited_ns: u64,
    slices: u64,
}

impl ThreadTimes {
    /// Of these processes' threads, each process with what it is called. One that is gone has none.
    #[must_use]
    pub fn of(processes: &[(String, u32)]) -> ThreadTimes {
        let mut threads = BTreeMap::new();
        for (process, pid) in processes {
            let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for entry in entries.flatten() {
                let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                    continue;
                };
                let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).ok();
                let Some(times) = read("schedstat").and_then(|text| Times::parse(&text)) else { continue };
                let name = read("comm").unwrap_or_default();
                let name = without_number(name.trim()).to_owned();
                threads.insert((*pid, id), Thread { process: process.clone(), name, times });
            }
        }
        ThreadTimes { threads }
    }

    /// What threads did since `earlier`, by process and name, those with the most CPU time first. Names that
    /// did nothing are left out. A thread that came since did all it did since; what one did that is gone by
    /// now is lost.
    #[must_use]
    pub fn since(&self, earlier: &ThreadTimes) -> Vec<ThreadUse> {
        let mut uses: BTreeMap<(&str, &str), (usize, Times)> = BTreeMap::new();
        for (id, thread) in &self.threads {
            let then = earlier.threads.get(id).map(|thread| thread.times).unwrap_or_default();
            // Counters that went back are those of another thread, to which the id was given since.
            let grown = thread.times.since(then).unwrap_or(thread.times);
            let (threads, sum) = uses.entry((&thread.process, &thread.name)).or_default();
            *threads += 1;
            sum.cpu_ns += grown.cpu_ns;
            sum.waited_ns += grown.waited_ns;
            sum.slices += grown.slices;
        }
        let did_something = uses.into_iter().filter(|(_, (_, sum))| *sum != Times::default());
        let mut uses: Vec<ThreadUse> = did_something
            .map(|((process, thread), (threads, sum))| ThreadUse {
                process: process.to_owned(),
                thread: thread.to_owned(),
                threads,
                cpu_us: sum.cpu_ns as f64 / 1000.0,
                waited_us: sum.waited_ns as f64 / 1000.0,
                slices: sum.slices,
            })
            .collect();
        // The order of names stays among equals.
        uses.sort_by(|one, other| other.cpu_us.total_cmp(&one.cpu_us));
        uses
    }
}

impl Times {
    /// From `/proc/…/schedstat`: nanoseconds on a CPU, nanoseconds ready and not on one, how often it was put
    /// on one.
    fn parse(text: &str) -> Option<Times> {
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        Some(Times { cpu_ns: numbers.next()?, waited_ns: numbers.next()?, slices: numbers.next()? })
    }

    /// `None` if any went back.
    fn since(self, then: Times) -> Option<Times> {
        Some(Times {
            cpu_ns: self.cpu_ns.checked_sub(then.cpu_ns)?,
            waited_ns: self.waited_ns.checked_sub(then.waited_ns)?,
            slices: self.slices.checked_sub(then.slices)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn snapshot(threads: &[(u32, &str, &str)]) -> ThreadTimes {
        let thread = |&(id, name, schedstat): &(u32, &str, &str)| {
            let times = Times::parse(schedstat).unwrap();
            ((7, id), Thread { process: "node.1".to_owned(), name: without_number(name).to_owned(), times })
        };
        ThreadTimes { threads: threads.iter().map(thread).collect() }
    }

    #[test]
    fn threads_are_summed_by_name_as_captured() {
        let then = snapshot(&[
            (10, "shard-0", "8234551 2101508 21\n"),
            (11, "shard-1", "5000000 1000000 10\n"),
            (12, "gone", "9000000000 1 1\n"),
            (13, "idle", "400 500 3\n"),
            (14, "clock", "7000000 0 100\n"),
        ]);
        let now = snapshot(&[
            (10, "shard-0", "9234551 2101508 25\n"),
            (11, "shard-1", "5500000 1250000 11\n"),
            (13, "idle", "400 500 3\n"),
            (14, "clock", "2000 1000 2\n"),
            (15, "shard-2", "3000000 750000 5\n"),
        ]);
        let thread_use = |thread: &str, threads, cpu_us, waited_us, slices| {
            let (process, thread) = ("node.1".to_owned(), thread.to_owned());
            ThreadUse { process, thread, threads, cpu_us, waited_us, slices }
        };
        // 1000 + 500 + 3000 and 0 + 250 + 750; the clock's id was given to another thread.
        let expected = [thread_use("shard", 3, 4500.0, 1000.0, 10), thread_use("clock", 1, 2.0, 1.0, 2)];
        assert_eq!(now.since(&then), expected);
        assert_eq!(Times::parse("8234551 2101508\n"), None);
        assert!(ThreadTimes::of(&[("gone".to_owned(), u32::MAX)]).threads.is_empty());
    }

    #[test]
    fn threads_that_share_too_few_cpus_are_all_the_time_on_one_or_wait_for_one() {
        const SPUN: Duration = Duration::from_millis(600);
        let cpus = std::thread::available_parallelism().unwrap().get();
        let spinners = 2 * cpus;
        let named = |name: String| std::thread::Builder::new().name(name);
        let of_this = [("this".to_owned(), std::process::id())];
        let mut threads = Vec::new();
        let begin = Instant::now();
        for number in 0..spinners {
            let spin = move || {
                while begin.elapsed() < SPUN {
                    std::hint::spin_loop();
                }
            };
            threads.push(named(format!("spins-{number}")).spawn(spin).unwrap());
        }
        let sleep = move || std::thread::sleep(SPUN);
        threads.push(named("sleeps-1".to_owned()).spawn(sleep).unwrap());
        std::thread::sleep(SPUN / 6);
        let (then, began) = (ThreadTimes::of(&of_this), Instant::now());
        std::thread::sleep(SPUN / 2);
        let (now, seconds) = (ThreadTimes::of(&of_this), began.elapsed().as_secs_f64());
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(begin.elapsed() >= SPUN);
        let uses = now.since(&then);
        let spun = uses.iter().find(|one| one.thread == "spins").unwrap();
        let all_us = spinners as f64 * seconds * 1e6;
        assert_eq!((spun.process.as_str(), spun.threads), ("this", spinners));
        let (cpu, waited) = (spun.cpu_us / all_us, spun.waited_us / all_us);
        // No more than half of the time there is a CPU for them; how much of it others take is not known.
        assert!(cpu > 0.05 && cpu < 0.6 && waited > 0.3, "{cpu} {waited} {spun:?}");
        assert!(cpu + waited > 0.7 && cpu + waited < 1.15, "{cpu} {waited} {spun:?}");
        let slept = uses.iter().find(|one| one.thread == "sleeps").map_or(0.0, |one| one.cpu_us);
        assert!(slept < 20_000.0, "{uses:?}");
    }
}
