//! What threads do: 20 times a second it is looked in which state each is, in which system call, and what the kernel has it wait
//! for. Where a program's time goes that does not go into CPU time is seen by this, and by nothing that counts CPU time.
//!
//! A look takes samples: those that are due and those that were taken are both told, since a machine that is busy lets this come
//! late, and what was missed is not like what was not.

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// After so many looks it is looked which threads there are.
const LOOKS_OF_A_LIST: u64 = 20;
/// Of more threads than this not all are looked at.
const THREADS_MAX: usize = 1000;
/// The most lines that are kept.
const LINES_MAX: usize = 200;

/// Where threads of one name were found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The process, as it is called in the report.
    pub process: String,
    /// The thread's name, without the number behind it.
    pub thread: String,
    /// `running`, which it may wait for a processor to do, or what it waits in: a system call by its number and the kernel's function.
    pub what: String,
}

/// What was found in a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// How many looks were due.
    pub due: u64,
    /// How many there were.
    pub taken: u64,
    /// The most threads that were looked at.
    pub threads: usize,
    /// How much of a core looking took, of 1.
    pub cost: f64,
    /// How often threads were found where, the most first.
    pub places: Vec<(Place, u64)>,
}

/// Looks at threads on a thread of its own until it is ended.
pub struct Watch {
    going_on: Sender<()>,
    thread: JoinHandle<Found>,
}

impl Watch {
    /// Begins with the threads of these processes, each with what it is called. `None` where no thread can be started.
    #[must_use]
    pub fn begin(processes: Vec<(String, u32)>) -> Option<Watch> {
        let (going_on, ended) = channel::<()>();
        let watch = move || {
            let began = Instant::now();
            let mut looker = Looker { processes, threads: HashMap::new(), counts: HashMap::new() };
            let mut found = Found::default();
            loop {
                if found.taken.is_multiple_of(LOOKS_OF_A_LIST) {
                    looker.list();
                }
                looker.look();
                found.taken += 1;
                found.threads = found.threads.max(looker.threads.len());
                // By the clock: one that was late is not made up for.
                let passed = (began.elapsed().as_nanos() / INTERVAL.as_nanos()) as u32;
                let next = INTERVAL * (passed + 1);
                let left = next.saturating_sub(began.elapsed());
                if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            let seconds = began.elapsed().as_secs_f64();
            found.due = (seconds / INTERVAL.as_secs_f64()).ceil() as u64;
            found.cost = own_seconds() / seconds.max(f64::MIN_POSITIVE);
            found.places = looker.places();
            found
        };
        let thread = std::thread::Builder::new().name("thread-watch".to_owned()).spawn(watch).ok()?;
        Some(Watch { going_on, thread })
    }

    /// What was found.
    #[must_use]
    pub fn end(self) -> Found {
        drop(self.going_on);
        self.thread.join().unwrap_or_default()
    }
}

/// CPU time of the calling thread, in seconds.
fn own_seconds() -> f64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0.0, |time| time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

/// A thread, with the files that tell of it kept open.
struct Thread {
    process: usize,
    name: String,
    syscall: File,
    channel: Option<File>,
    is_there: bool,
}

struct Looker {
    processes: Vec<(String, u32)>,
    /// By process and thread id.
    threads: HashMap<(u32, u32), Thread>,
    counts: HashMap<(usize, String, u64, String), u64>,
}

impl Looker {
    /// Looks which threads there are.
    fn list(&mut self) {
        self.threads.values_mut().for_each(|thread| thread.is_there = false);
        for (process, (_, pid)) in self.processes.iter().enumerate() {
            let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for entry in entries.flatten() {
                let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                    continue;
                };
                let path = entry.path();
                // A thread names itself some time after it has begun.
                let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
                let name = without_number(name.trim());
                if let Some(thread) = self.threads.get_mut(&(*pid, id)) {
                    name.clone_into(&mut thread.name);
                    thread.is_there = true;
                    continue;
                }
                let Ok(syscall) = File::open(path.join("syscall")) else { continue };
                if self.threads.len() >= THREADS_MAX {
                    return;
                }
                let thread = Thread {
                    process,
                    name: name.to_owned(),
                    syscall,
                    channel: File::open(path.join("wchan")).ok(),
                    is_there: true,
                };
                self.threads.insert((*pid, id), thread);
            }
        }
        self.threads.retain(|_, thread| thread.is_there);
    }

    fn look(&mut self) {
        let mut buffer = [0; 256];
        for thread in self.threads.values() {
            let Ok(count) = thread.syscall.read_at(&mut buffer, 0) else { continue };
            let number = syscall_of(&buffer[..count]);
            let mut channel = String::new();
            if number.is_some() {
                let count = thread.channel.as_ref().and_then(|file| file.read_at(&mut buffer, 0).ok());
                channel = String::from_utf8_lossy(&buffer[..count.unwrap_or(0)]).into_owned();
            }
            let place = (thread.process, thread.name.clone(), number.unwrap_or(u64::MAX), channel);
            *self.counts.entry(place).or_default() += 1;
        }
    }

    fn places(&self) -> Vec<(Place, u64)> {
        let mut places: BTreeMap<Place, u64> = BTreeMap::new();
        for ((process, thread, number, channel), count) in &self.counts {
            let what = match (*number, channel.as_str()) {
                (u64::MAX, _) => "running".to_owned(),
                (OUTSIDE, "0" | "") => "waiting, in no call".to_owned(),
                (OUTSIDE, channel) => channel.to_owned(),
                (number, "0" | "") => syscall_name(number),
                (number, channel) => format!("{}: {channel}", syscall_name(number)),
            };
            let process = self.processes[*process].0.clone();
            *places.entry(Place { process, thread: thread.clone(), what }).or_default() += count;
        }
        let mut places: Vec<(Place, u64)> = places.into_iter().collect();
        places.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        places.truncate(LINES_MAX);
        places
    }
}

/// Of a thread that waits outside of any call, as a fault does.
const OUTSIDE: u64 = u64::MAX - 1;

/// The number of the call that a thread waits in, from `/proc/…/syscall`; `None` if it runs.
fn syscall_of(text: &[u8]) -> Option<u64> {
    let word = text.split(|byte| byte.is_ascii_whitespace()).next()?;
    match word {
        b"running" => None,
        word => Some(std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).unwrap_or(OUTSIDE)),
    }
}

/// Those that storage waits in, on this architecture; others by their number.
fn syscall_name(number: u64) -> String {
    use nix::libc;
    let known = [
        (libc::SYS_io_uring_enter, "io_uring_enter"),
        (libc::SYS_epoll_pwait, "epoll_pwait"),
        (libc::SYS_ppoll, "ppoll"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_pread64, "pread64"),
        (libc::SYS_pwrite64, "pwrite64"),
        (libc::SYS_preadv, "preadv"),
        (libc::SYS_pwritev, "pwritev"),
        (libc::SYS_fsync, "fsync"),
        (libc::SYS_fdatasync, "fdatasync"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_recvmsg, "recvmsg"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_recvfrom, "recvfrom"),
        (libc::SYS_io_getevents, "io_getevents"),
        (libc::SYS_io_submit, "io_submit"),
        (libc::SYS_clock_nanosleep, "clock_nanosleep"),
        (libc::SYS_wait4, "wait4"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll"),
    ];
    let found = known.iter().find(|(known, _)| u64::try_from(*known) == Ok(number));
    found.map_or_else(|| format!("call {number}"), |(_, name)| (*name).to_owned())
}

/// A thread's name without what tells it from others of its kind.
fn without_number(name: &str) -> &str {
    let cut = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let cut = cut.trim_end_matches(['-', '_', '.', '/', ':', '#', ' ']);
    if cut.is_empty() { name } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_the_kernel_tells_is_read_as_captured() {
        assert_eq!(syscall_of(b"running\n"), None);
        assert_eq!(syscall_of(b"202 0x7f3 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f2\n"), Some(202));
        assert_eq!(syscall_of(b"-1 0x7ffd 0x7f2\n"), Some(OUTSIDE));
        for (name, expected) in
            [("osd.3", "osd"), ("tp_osd_tp", "tp_osd_tp"), ("worker-12", "worker"), ("7", "7")]
        {
            assert_eq!(without_number(name), expected);
        }
    }

    #[test]
    fn a_thread_that_sleeps_and_one_that_works_are_told_apart() {
        let ended = Arc::new(AtomicBool::new(false));
        let (one, other) = (ended.clone(), ended.clone());
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let sleeps = named("sleeps-1").spawn(move || {
            while !one.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let works = named("works-1").spawn(move || {
            while !other.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        // Until they have named themselves.
        std::thread::sleep(Duration::from_millis(300));
        let watch = Watch::begin(vec![("this".to_owned(), std::process::id())]).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let found = watch.end();
        ended.store(true, Ordering::Relaxed);
        sleeps.unwrap().join().unwrap();
        works.unwrap().join().unwrap();
        assert!(found.taken <= found.due && found.due >= 30, "{found:?}");
        // A machine that others use too has threads wait for a processor, which counts as running.
        assert!(found.taken >= 5 && found.threads >= 4, "{found:?}");
        let share = |thread: &str, is_meant: fn(&str) -> bool| {
            let of_thread = found.places.iter().filter(|(place, _)| place.thread == thread);
            let (meant, rest): (Vec<_>, Vec<_>) = of_thread.partition(|(place, _)| is_meant(&place.what));
            let sum = |places: &[&(Place, u64)]| places.iter().map(|(_, count)| count).sum::<u64>() as f64;
            sum(&meant) / (sum(&meant) + sum(&rest))
        };
        assert!(share("works", |what| what == "running") > 0.6, "{found:?}");
        assert!(share("sleeps", |what| what.starts_with("clock_nanosleep")) > 0.6, "{found:?}");
    }
}
