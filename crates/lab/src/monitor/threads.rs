//! What threads do: 20 times a second it is looked in which state each is, in which system call, and what the kernel has it wait
//! for. Where a program's time goes that does not go into CPU time is seen by this, and by nothing that counts CPU time.
//!
//! A look takes samples: those that are due and those that were taken are both told, since a machine that is busy lets this come
//! late, and what was missed is not like what was not.
//!
//! Where it is allowed, the kernel's stack of threads that do not run is read too. That is dear: once a
//! second all are, and else at looks that cost allows. A thread whose slices (`/proc/…/schedstat`) have not
//! grown since its stack was read has not run since, and the stack is still the same: this makes threads that
//! wait long cheap. Who waits uninterruptibly, as for a drive, has his stack read at every look.

use super::stacks::{Stacks, innermost};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(50);
/// After so many looks it is looked which threads there are.
const LOOKS_OF_A_LIST: u64 = 20;
/// Of more threads than this not all are looked at.
const THREADS_MAX: usize = 1000;
/// Looks take stacks while looking has taken at most this of a core: what one more adds is not known before,
/// and all together is meant to take 0.02.
const COST_MAX: f64 = 0.0195;
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
    /// The kernel's letter for the thread's state: `S` waits, `D` waits uninterruptibly. Of one that runs,
    /// and of one that was woken while it was looked at, none. It is read of one thread in each place in a
    /// second, and others there are taken to be alike.
    #[serde(default)]
    pub state: Option<char>,
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
    /// How many looks took the stacks of all that did not run.
    #[serde(default)]
    pub with_stacks: u64,
    /// How often which stack was found where, the most first. In state `D` of all looks that were taken;
    /// others of those with stacks only.
    #[serde(default)]
    pub stacks: Vec<(Stack, u64)>,
}

/// A kernel stack and where it was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stack {
    /// Where.
    pub place: Place,
    /// Names of the kernel's functions, the outermost first, with `;` between them.
    pub functions: String,
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
            let mut looker = Looker { processes, threads: HashMap::new(), counts: Counts::default() };
            let mut found = Found::default();
            loop {
                let is_listed = found.taken.is_multiple_of(LOOKS_OF_A_LIST);
                if is_listed {
                    looker.list();
                }
                let may_cost = is_listed || own_seconds() <= COST_MAX * began.elapsed().as_secs_f64();
                let with_stacks = may_cost && looker.sees_stacks();
                looker.look(with_stacks);
                found.taken += 1;
                found.with_stacks += u64::from(with_stacks);
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
            found.stacks = looker.stacks();
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
    path: PathBuf,
    syscall: File,
    channel: Option<File>,
    slices: Option<File>,
    /// `None` where reading it is refused.
    stack: Option<File>,
    known: Option<Known>,
    /// A call that does nothing but wait, and the place that it was found in since it was last looked which
    /// threads there are.
    usual: Option<(u64, usize)>,
    is_there: bool,
}

/// Where a thread waits for as long as its slices do not grow.
struct Known {
    slices: u64,
    place: usize,
    stack: usize,
    is_uninterruptible: bool,
}

impl Thread {
    fn open(process: usize, name: &str, path: PathBuf) -> Option<Thread> {
        let open = |file: &str| File::open(path.join(file)).ok();
        // Anybody may open it.
        let is_allowed = |file: &File| file.read_at(&mut [0], 0).is_ok();
        Some(Thread {
            process,
            name: name.to_owned(),
            syscall: open("syscall")?,
            channel: open("wchan"),
            slices: open("schedstat"),
            stack: open("stack").filter(is_allowed),
            path,
            known: None,
            usual: None,
            is_there: true,
        })
    }

    fn look(&mut self, with_stacks: bool, counts: &mut Counts, stack_buffer: &mut [u8]) {
        // Before what is kept until they grow: if the thread runs in between, it is looked at anew next time.
        let slices = if with_stacks { self.slices() } else { None };
        let mut buffer = [0; 256];
        let Some(text) = read(&self.syscall, &mut buffer) else { return };
        let Some(number) = syscall_of(text) else {
            counts.count(self.raw(u64::MAX, String::new(), None));
            return;
        };
        // What it waits for takes as long to read as the call, so that is done once in a while where it is
        // always the same.
        if let Some((_, place)) = self.usual.filter(|(usual, _)| *usual == number && !with_stacks) {
            counts.found[place] += 1;
            return;
        }
        if let Some(known) = self.known.take()
            && slices.or_else(|| self.slices()) == Some(known.slices)
        {
            counts.count_again(&known, with_stacks);
            self.known = Some(known);
            return;
        }
        let mut stack = self.stack.as_ref().filter(|_| with_stacks).and_then(|file| read(file, stack_buffer));
        // Both tell the same function, and there are kernels whose wchan tells none.
        let channel = stack.and_then(innermost).map(str::to_owned).unwrap_or_else(|| {
            let text = self.channel.as_ref().and_then(|file| read(file, &mut buffer));
            String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
        });
        let state = counts.state(number, &channel, &self.path);
        let is_uninterruptible = state == Some('D');
        let is_told = !matches!(channel.as_str(), "0" | "");
        let place = counts.count(self.raw(number, channel, state));
        if is_made_to_wait(number) && state == Some('S') && is_told {
            self.usual = Some((number, place));
        }
        if is_uninterruptible && !with_stacks {
            stack = self.stack.as_ref().and_then(|file| read(file, stack_buffer));
        }
        // Of one that was woken meanwhile there may be none.
        let Some(stack) = stack.filter(|text| innermost(text).is_some()) else { return };
        let stack = counts.stacks.count(place, stack);
        self.known =
            slices.zip(stack).map(|(slices, stack)| Known { slices, place, stack, is_uninterruptible });
    }

    /// How often it was put on a CPU; `None` of a kernel that does not count that.
    fn slices(&self) -> Option<u64> {
        let mut buffer = [0; 64];
        let text = std::str::from_utf8(read(self.slices.as_ref()?, &mut buffer)?).ok()?;
        text.split_whitespace().nth(2)?.parse().ok().filter(|slices| *slices > 0)
    }

    fn raw(&self, number: u64, channel: String, state: Option<char>) -> Raw {
        Raw { process: self.process, thread: self.name.clone(), number, channel, state }
    }
}

/// What a file tells now, up to what the buffer takes.
fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let count = file.read_at(buffer, 0).ok()?;
    buffer.get(..count)
}

/// A place as the kernel tells it.
#[derive(PartialEq, Eq, Hash)]
struct Raw {
    process: usize,
    thread: String,
    number: u64,
    channel: String,
    state: Option<char>,
}

#[derive(Default)]
struct Counts {
    places: HashMap<Raw, usize>,
    /// By place.
    found: Vec<u64>,
    stacks: Stacks,
    /// Of those that wait in a call for something, as found since it was last looked which threads there are.
    states: HashMap<(u64, String), char>,
}

impl Counts {
    fn count(&mut self, raw: Raw) -> usize {
        let place = *self.places.entry(raw).or_insert(self.found.len());
        self.found.resize(self.places.len(), 0);
        self.found[place] += 1;
        place
    }

    fn count_again(&mut self, known: &Known, with_stacks: bool) {
        self.found[known.place] += 1;
        if with_stacks || known.is_uninterruptible {
            self.stacks.count_again(known.place, known.stack);
        }
    }

    /// Of a thread that waits in this call for this. Its file is dear, and nearly each place to wait has one
    /// state.
    fn state(&mut self, number: u64, channel: &str, path: &Path) -> Option<char> {
        let place = (number, channel.to_owned());
        if let Some(state) = self.states.get(&place) {
            return Some(*state);
        }
        let text = std::fs::read(path.join("stat")).ok()?;
        let state = state_of(&text).filter(|state| *state != 'R')?;
        self.states.insert(place, state);
        Some(state)
    }
}

/// The letter behind the thread's name, which may hold parentheses itself, from `/proc/…/stat`.
fn state_of(text: &[u8]) -> Option<char> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    text.get(name_end + 2).map(|byte| char::from(*byte))
}

struct Looker {
    processes: Vec<(String, u32)>,
    /// By process and thread id.
    threads: HashMap<(u32, u32), Thread>,
    counts: Counts,
}

impl Looker {
    /// Looks which threads there are.
    fn list(&mut self) {
        self.counts.states.clear();
        for thread in self.threads.values_mut() {
            thread.is_there = false;
            thread.usual = None;
        }
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
                    if thread.name != name {
                        name.clone_into(&mut thread.name);
                        thread.known = None;
                    }
                    thread.is_there = true;
                    continue;
                }
                if self.threads.len() >= THREADS_MAX {
                    return;
                }
                let Some(thread) = Thread::open(process, name, path) else { continue };
                self.threads.insert((*pid, id), thread);
            }
        }
        self.threads.retain(|_, thread| thread.is_there);
    }

    /// Whether stacks can be read of any thread.
    fn sees_stacks(&self) -> bool {
        self.threads.values().any(|thread| thread.stack.is_some())
    }

    fn look(&mut self, with_stacks: bool) {
        // More than the kernel shows of one.
        let mut buffer = [0; 4096];
        self.threads.values_mut().for_each(|thread| thread.look(with_stacks, &mut self.counts, &mut buffer));
    }

    fn place(&self, raw: &Raw) -> Place {
        let what = match (raw.number, raw.channel.as_str()) {
            (u64::MAX, _) => "running".to_owned(),
            (OUTSIDE, "0" | "") => "waiting, in no call".to_owned(),
            (OUTSIDE, channel) => channel.to_owned(),
            (number, "0" | "") => syscall_name(number),
            (number, channel) => format!("{}: {channel}", syscall_name(number)),
        };
        let process = self.processes[raw.process].0.clone();
        Place { process, thread: raw.thread.clone(), what, state: raw.state }
    }

    fn places(&self) -> Vec<(Place, u64)> {
        let found = |(raw, place): (&Raw, &usize)| (self.place(raw), self.counts.found[*place]);
        let mut places = most(self.counts.places.iter().map(found));
        places.truncate(LINES_MAX);
        places
    }

    fn stacks(&self) -> Vec<(Stack, u64)> {
        let places: HashMap<usize, Place> =
            self.counts.places.iter().map(|(raw, place)| (*place, self.place(raw))).collect();
        let mut stacks = most(self.counts.stacks.folded().filter_map(|(place, functions, count)| {
            Some((Stack { place: places.get(&place)?.clone(), functions }, count))
        }));
        stacks.truncate(LINES_MAX);
        stacks
    }
}

/// Calls that do nothing but wait.
fn is_made_to_wait(number: u64) -> bool {
    use nix::libc;
    let waits = [
        libc::SYS_futex,
        libc::SYS_clock_nanosleep,
        libc::SYS_epoll_pwait,
        libc::SYS_ppoll,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
    ];
    waits.iter().any(|wait| u64::try_from(*wait) == Ok(number))
}

/// Each that was found once, with the sum of its counts, the most first.
pub fn most<Found: Ord>(found: impl Iterator<Item = (Found, u64)>) -> Vec<(Found, u64)> {
    let mut sums: BTreeMap<Found, u64> = BTreeMap::new();
    found.for_each(|(found, count)| *sums.entry(found).or_default() += count);
    let mut sums: Vec<(Found, u64)> = sums.into_iter().collect();
    // The order stays among equals.
    sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    sums
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
pub(super) fn without_number(name: &str) -> &str {
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

    /// A thread of captured files, which waits for a drive in `pread64`.
    fn captured(test: &str) -> (PathBuf, Looker) {
        let path = std::env::temp_dir().join(format!("captured-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let put = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
        put("syscall", "17 0x3 0x7f20b3c27da3 0x1000 0x0 0x0 0x0 0x7f20b3c27d50 0x7f20b41262ec\n");
        put("wchan", "blkdev_direct_IO");
        put("schedstat", "8234551 2101508 21\n");
        put("stat", "14144 (odd) S (name)) D 14093 14093 11980 0 -1 4194368 2 0 0 0 0\n");
        put("stack", "[<0>] blkdev_direct_IO+0x1/0x2\n[<0>] ksys_pread64+0x1/0x2\n");
        let threads = HashMap::from([((1, 2), Thread::open(0, "reads", path.clone()).unwrap())]);
        (path, Looker { processes: vec![("node".to_owned(), 1)], threads, counts: Counts::default() })
    }

    #[test]
    fn a_stack_is_read_anew_when_its_thread_has_run_and_at_each_look_if_it_waits_uninterruptibly() {
        let (path, mut looker) = captured("drive");
        let put = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
        let stacks = |looker: &Looker| {
            let mut stacks = looker.stacks();
            stacks.sort();
            stacks.into_iter().map(|(stack, count)| (stack.functions, count)).collect::<Vec<_>>()
        };
        let (first, second) = ("ksys_pread64;blkdev_direct_IO".to_owned(), "x;blkdev_direct_IO".to_owned());
        looker.look(false);
        looker.look(true);
        assert_eq!(stacks(&looker), [(first.clone(), 2)]);
        put("stack", "[<0>] blkdev_direct_IO+0x1/0x2\n[<0>] x+0x1/0x2\n");
        looker.look(false);
        looker.look(true);
        assert_eq!(stacks(&looker), [(first.clone(), 4)], "it has not run");
        put("schedstat", "8234551 2101508 22\n");
        looker.look(true);
        assert_eq!(stacks(&looker), [(first.clone(), 4), (second.clone(), 1)]);
        // It still is in state D, which is read once in a while.
        put("stat", "14144 (reads-1) S 14093 14093 11980 0 -1 4194368 2 0 0 0 0\n");
        put("schedstat", "8234551 2101508 23\n");
        looker.look(false);
        assert_eq!(stacks(&looker), [(first.clone(), 4), (second.clone(), 2)]);
        looker.counts.states.clear();
        put("schedstat", "8234551 2101508 24\n");
        looker.look(false);
        let places: [(Place, u64); 2] = looker.places().try_into().unwrap();
        let [(place, 6), (other, 1)] = places else { panic!("{places:?}") };
        assert_eq!((place.what.as_str(), place.state), ("pread64: blkdev_direct_IO", Some('D')));
        assert_eq!((other.what, other.state), (place.what, Some('S')));
        assert_eq!(stacks(&looker), [(first, 4), (second, 2)], "others' only at looks with stacks");
        put("schedstat", "0 0 0\n");
        assert_eq!(looker.threads[&(1, 2)].slices(), None, "a kernel that does not count them");
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn what_a_call_waits_for_that_does_nothing_else_is_read_once_in_a_while() {
        let (path, mut looker) = captured("futex");
        let put = |file: &str, text: &str| std::fs::write(path.join(file), text).unwrap();
        put(
            "syscall",
            "202 0x562229758b00 0x89 0x0 0x7f20b4029cc0 0x0 0xffffffff 0x7f20b4029ca8 0x7f20b412f829\n",
        );
        put("stat", "14144 (reads-1) S 14093 14093 11980 0 -1 4194368 2 0 0 0 0\n");
        put("wchan", "futex_do_wait");
        looker.look(false);
        put("wchan", "another");
        looker.look(false);
        // Another call's, and whatever a look with stacks shows, is read at once.
        put("syscall", "0 0x3 0x7f20b3c27da3 0x1 0x20022 0x0 0x0 0x7f20b3c27d50 0x7f20b41262ec\n");
        looker.look(false);
        put(
            "syscall",
            "202 0x562229758b00 0x89 0x0 0x7f20b4029cc0 0x0 0xffffffff 0x7f20b4029ca8 0x7f20b412f829\n",
        );
        looker.look(true);
        let places: Vec<(String, u64)> =
            looker.places().into_iter().map(|(place, count)| (place.what, count)).collect();
        let expected = [("futex: futex_do_wait", 2), ("futex: blkdev_direct_IO", 1), ("read: another", 1)];
        assert_eq!(places, expected.map(|(what, count)| (what.to_owned(), count)));
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn the_kernels_stack_of_a_thread_that_waits_is_found_where_that_is_allowed() {
        let (reader, writer) = std::io::pipe().unwrap();
        let reads = std::thread::Builder::new()
            .name("reads-pipe-1".to_owned())
            .spawn(move || std::io::Read::read(&mut { reader }, &mut [0]).unwrap())
            .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let watch = Watch::begin(vec![("this".to_owned(), std::process::id())]).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        let found = watch.end();
        drop(writer);
        assert_eq!(reads.join().unwrap(), 0);
        let of_thread = |stack: &&(Stack, u64)| stack.0.place.thread == "reads-pipe";
        let stacks: Vec<&(Stack, u64)> = found.stacks.iter().filter(of_thread).collect();
        if std::fs::read("/proc/thread-self/stack").is_err() {
            assert_eq!((found.with_stacks, stacks), (0, vec![]));
            return;
        }
        let [(stack, count)] = stacks[..] else { panic!("{found:?}") };
        assert!((1..=found.taken).contains(&found.with_stacks) && *count == found.with_stacks, "{found:?}");
        // Whatever is called around it on this kernel.
        let functions: Vec<&str> = stack.functions.split(';').collect();
        let at = |part: &str| functions.iter().position(|function| function.contains(part)).unwrap();
        assert!(at("vfs_read") < at("pipe_read") && functions.len() >= 4, "{stack:?}");
        assert_eq!(stack.place.state, Some('S'));
        let what = format!("read: {}", functions[functions.len() - 1]);
        let place = found.places.iter().find(|(place, _)| place.thread == "reads-pipe").unwrap();
        assert_eq!((&place.0, place.1), (&Place { what, ..stack.place.clone() }, found.taken));
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
