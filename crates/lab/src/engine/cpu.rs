//! CPU time and memory from `/proc`: of single processes, and of the whole machine.
//!
//! The machine's figure alone holds kernel workers, soft interrupts and whoever else worked for the job,
//! so it is the one to compare. A process's figure says where to look, and a [`Role`]'s who had the rest. Whatever cannot be
//! read is absent.
//!
//! A soft interrupt that comes while a thread runs counts for that thread: what is sent over loopback is received by whoever
//! sends it. Where a kernel counts interrupts apart (`CONFIG_IRQ_TIME_ACCOUNTING`), they are in no role, and the roles together
//! fall short of the machine.

use procfs::process::{Process, Stat, all_processes_with_root};
use procfs::{CpuTime, Current, DiskStats, FromRead, FromReadSI, KernelStats, Meminfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Nanoseconds of a tick in `/proc`: user space is shown 100 a second on every architecture Millpond runs on.
const TICK_NS: u64 = 10_000_000;

/// A process to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// What to call it in a report, for example `node.1`.
    pub label: String,
    /// Its process id.
    pub pid: u32,
}

/// Who has CPU time of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The processes that make the load.
    Client,
    /// The processes that are watched, the kernel's threads that work for them included.
    Nodes,
    /// The kernel's own threads, but for the next. Loop devices' workers are among them, which real drives do not have.
    Kernel,
    /// The kernel's threads for soft interrupts that do not run within another thread.
    SoftInterrupts,
    /// All other processes.
    Rest,
    /// This process, where others make the load.
    Lab,
}

impl Role {
    /// All that there are where a process makes the load itself and measures it.
    pub const OF_A_JOB: [Role; 5] =
        [Role::Client, Role::Nodes, Role::Kernel, Role::SoftInterrupts, Role::Rest];

    /// What to call it in a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Client => "client",
            Role::Nodes => "nodes",
            Role::Kernel => "kernel threads",
            Role::SoftInterrupts => "soft interrupts",
            Role::Rest => "rest",
            Role::Lab => "lab",
        }
    }

    /// The role of a process that nobody named.
    fn of(stat: &Stat) -> Role {
        // Whatever the kernel runs for itself this one has started.
        const KTHREADD: i32 = 2;
        match (stat.ppid, stat.comm.starts_with("ksoftirqd/")) {
            (KTHREADD, true) => Role::SoftInterrupts,
            (KTHREADD, false) => Role::Kernel,
            _ => Role::Rest,
        }
    }
}

/// How much of the machine's CPU time the roles have together, as a share of 1; `None` if nothing is known of either.
#[must_use]
pub fn told_share(machine_us: Option<f64>, roles_us: &BTreeMap<Role, f64>) -> Option<f64> {
    let told: f64 = roles_us.values().sum();
    machine_us.filter(|us| *us > 0.0 && told > 0.0).map(|machine| told / machine)
}

/// What the whole machine's CPUs did since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MachineTicks {
    cpus: u32,
    /// Idle or waiting for I/O. The kernel measures how long, while it counts for the rest whoever it finds running when a tick
    /// comes: who runs briefly between two sleeps is found too rarely, up to a third of it. So the machine's time is what is left.
    idle: u64,
    /// Wanted to run, but the hypervisor ran somebody else.
    steal: u64,
}

impl MachineTicks {
    /// Microseconds of CPU used since `earlier`, which was that long ago.
    fn since(self, earlier: MachineTicks, seconds: f64) -> f64 {
        let all = f64::from(self.cpus) * seconds * 1e6;
        (all - ticks_us(earlier.idle, self.idle) - ticks_us(earlier.steal, self.steal)).max(0.0)
    }
}

fn ticks_us(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 * TICK_NS as f64 / 1000.0
}

/// One process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProcessSnapshot {
    /// Tells a process from a later one with the same id.
    start_ticks: u64,
    /// Of the whole process, ended threads included, in whole ticks.
    cpu_ticks: u64,
    /// Of processes that it started and waited for, in whole ticks.
    children_ticks: u64,
    /// Of each live thread, to the nanosecond; empty where the kernel does not tell.
    threads_ns: BTreeMap<i32, u64>,
    resident_bytes: Option<u64>,
}

impl ProcessSnapshot {
    /// Nanoseconds of CPU used in all.
    fn since_start(&self) -> u64 {
        let threads_ns: u64 = self.threads_ns.values().sum();
        if self.threads_ns.is_empty() { self.cpu_ticks * TICK_NS } else { threads_ns }
    }

    /// Nanoseconds of CPU used since `earlier`.
    fn since(&self, earlier: &ProcessSnapshot) -> Option<u64> {
        if self.start_ticks != earlier.start_ticks {
            return None;
        }
        let ticks_ns = self.cpu_ticks.saturating_sub(earlier.cpu_ticks) * TICK_NS;
        if self.threads_ns.is_empty() || earlier.threads_ns.is_empty() {
            return Some(ticks_ns);
        }
        let threads_ns: u64 = self
            .threads_ns
            .iter()
            .map(|(thread, now)| now.saturating_sub(earlier.threads_ns.get(thread).copied().unwrap_or(0)))
            .sum();
        // A thread that ended in between took its nanoseconds along; only the ticks still hold them.
        // Rounding alone makes the two differ by less than two ticks.
        Some(if ticks_ns > threads_ns + 2 * TICK_NS { ticks_ns } else { threads_ns })
    }
}

/// Reads the counters of the machine, of this process and of the processes it was given.
#[derive(Clone, Debug)]
pub struct Monitor {
    proc: PathBuf,
    /// This process.
    own: u32,
    clients: Vec<u32>,
    nodes: Vec<Watched>,
}

/// Every counter at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Instant,
    machine: Option<MachineTicks>,
    clients: Vec<Option<ProcessSnapshot>>,
    nodes: Vec<Option<ProcessSnapshot>>,
    /// All other processes that there were, by their ids.
    others: BTreeMap<i32, (Role, ProcessSnapshot)>,
    /// What loop devices have completed since boot.
    loop_completions: Option<u64>,
}

/// The watched processes as they were last seen.
#[derive(Clone, Debug, Default)]
pub struct LastSeen(Vec<Option<ProcessSnapshot>>);

impl Snapshot {
    /// Has watched processes that are gone count as they were last seen: what they used later is missing.
    pub fn fill_in(&mut self, seen: &LastSeen) {
        for (node, seen) in self.nodes.iter_mut().zip(&seen.0) {
            if node.is_none() {
                node.clone_from(seen);
            }
        }
    }

    /// Has nodes that were not watched from the beginning count as such.
    pub fn adopt(&mut self, nodes: &[Watched]) {
        for node in nodes {
            if let Some((role, _)) = self.others.get_mut(&node.pid.cast_signed()) {
                *role = Role::Nodes;
            }
        }
    }
}

/// What one process used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its label.
    pub label: String,
    /// Its process id.
    pub pid: u32,
    /// CPU time in microseconds, user and system, kernel workers of its own included.
    pub cpu_us: Option<f64>,
    /// Resident memory at the end, in bytes.
    pub resident_bytes: Option<u64>,
}

/// What was used between two snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// The time between them, in seconds.
    pub seconds: f64,
    /// CPU time of the whole machine, in microseconds.
    pub machine_us: Option<f64>,
    /// CPU time that the hypervisor gave to others, in microseconds, all CPUs together.
    pub steal_us: Option<f64>,
    /// All that make the load, as if they were one process.
    pub client: ProcessUsage,
    /// The processes that were watched, in the order they were given.
    pub nodes: Vec<ProcessUsage>,
    /// CPU time of each role, in microseconds; absent if a part of it is unknown. That of processes that ended in between is
    /// missing.
    pub roles: BTreeMap<Role, f64>,
    /// Reads, writes, discards and flushes that loop devices completed, those of all together.
    pub loop_completions: Option<u64>,
}

impl Usage {
    /// CPU time of all nodes in microseconds; `None` if that of one that was watched is unknown, or none was.
    #[must_use]
    pub fn nodes_us(&self) -> Option<f64> {
        if self.nodes.is_empty() {
            return None;
        }
        let watched: Option<f64> = self.nodes.iter().map(|node| node.cpu_us).sum();
        // With those that came later.
        watched.map(|us| self.roles.get(&Role::Nodes).copied().unwrap_or(us))
    }
}

impl Monitor {
    /// Watches the machine, this process, which makes the load, and `nodes`.
    #[must_use]
    pub fn new(nodes: Vec<Watched>) -> Monitor {
        Monitor::of(vec![std::process::id()], nodes)
    }

    /// Watches the machine, the processes `clients`, which make the load, and `nodes`.
    #[must_use]
    pub fn of(clients: Vec<u32>, nodes: Vec<Watched>) -> Monitor {
        Monitor { proc: PathBuf::from("/proc"), own: std::process::id(), clients, nodes }
    }

    /// Reads every counter now. Takes some milliseconds.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            at: Instant::now(),
            machine: read_machine(&self.proc),
            clients: self.clients.iter().map(|pid| read_process(&self.proc, *pid)).collect(),
            nodes: self.nodes.iter().map(|node| read_process(&self.proc, node.pid)).collect(),
            others: self.read_others(),
            loop_completions: read_loop_completions(&self.proc),
        }
    }

    /// Notes what the watched processes have used by now, of those that are there.
    pub fn look(&self, seen: &mut LastSeen) {
        seen.0.resize(self.nodes.len(), None);
        for (node, seen) in self.nodes.iter().zip(&mut seen.0) {
            if let Some(snapshot) = read_process(&self.proc, node.pid) {
                *seen = Some(snapshot);
            }
        }
    }

    fn read_others(&self) -> BTreeMap<i32, (Role, ProcessSnapshot)> {
        let known = self.nodes.iter().map(|node| node.pid).chain(self.clients.iter().copied());
        let known: Vec<i32> = known.map(u32::cast_signed).collect();
        let all = all_processes_with_root(&self.proc).into_iter().flatten().flatten();
        let others = all.filter(|process| !known.contains(&process.pid));
        let read = |process: Process| {
            let stat = process.stat().ok()?;
            let role = if process.pid == self.own.cast_signed() { Role::Lab } else { Role::of(&stat) };
            Some((process.pid, (role, snapshot_of(&process, &stat))))
        };
        others.filter_map(read).collect()
    }

    /// What was used from `before` to `after`, two snapshots of this monitor.
    #[must_use]
    pub fn usage(&self, before: &Snapshot, after: &Snapshot) -> Usage {
        let machine = before.machine.zip(after.machine);
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let process =
            |label: &str, pid: u32, before: &Option<ProcessSnapshot>, after: &Option<ProcessSnapshot>| {
                let cpu_ns =
                    before.as_ref().zip(after.as_ref()).and_then(|(before, after)| after.since(before));
                ProcessUsage {
                    label: label.to_owned(),
                    pid,
                    cpu_us: cpu_ns.map(|nanoseconds| nanoseconds as f64 / 1000.0),
                    resident_bytes: after.as_ref().and_then(|snapshot| snapshot.resident_bytes),
                }
            };
        let clients =
            (self.clients.iter().zip(&before.clients).zip(&after.clients)).map(|((pid, before), after)| {
                let own = process("client", *pid, before, after);
                // A client may have others work for it, which are gone when this looks.
                let children_ticks =
                    |one: &Option<ProcessSnapshot>| one.as_ref().map_or(0, |one| one.children_ticks);
                let children_us = ticks_us(children_ticks(before), children_ticks(after));
                ProcessUsage { cpu_us: own.cpu_us.map(|us| us + children_us), ..own }
            });
        let client = clients.reduce(|sum, one| ProcessUsage {
            cpu_us: sum.cpu_us.zip(one.cpu_us).map(|(sum, one)| sum + one),
            resident_bytes: sum.resident_bytes.zip(one.resident_bytes).map(|(sum, one)| sum + one),
            ..sum
        });
        let nobody =
            || ProcessUsage { label: "client".to_owned(), pid: 0, cpu_us: None, resident_bytes: None };
        let client = client.unwrap_or_else(nobody);
        let nodes: Vec<ProcessUsage> = (self.nodes.iter().zip(&before.nodes).zip(&after.nodes))
            .map(|((node, before), after)| process(&node.label, node.pid, before, after))
            .collect();
        let others = after.others.iter().map(|(pid, (role, now))| {
            let since = before.others.get(pid).and_then(|(_, then)| now.since(then));
            // One that was not there before had nothing then.
            (*role, Some(since.unwrap_or_else(|| now.since_start()) as f64 / 1000.0))
        });
        let own = nodes.iter().map(|node| (Role::Nodes, node.cpu_us)).chain([(Role::Client, client.cpu_us)]);
        let mut roles: BTreeMap<Role, Option<f64>> =
            Role::OF_A_JOB.into_iter().map(|role| (role, Some(0.0))).collect();
        for (role, us) in own.chain(others) {
            let sum = roles.entry(role).or_insert(Some(0.0));
            *sum = sum.zip(us).map(|(sum, us)| sum + us);
        }
        let roles = roles.into_iter().filter_map(|(role, us)| Some((role, us?))).collect();
        Usage {
            seconds,
            machine_us: machine.map(|(before, after)| after.since(before, seconds)),
            steal_us: machine.map(|(before, after)| ticks_us(before.steal, after.steal)),
            client,
            nodes,
            roles,
            loop_completions: before
                .loop_completions
                .zip(after.loop_completions)
                .map(|(before, after)| after.saturating_sub(before)),
        }
    }
}

/// The id of the process that started `pid`, or `None` if it is gone.
#[must_use]
pub fn parent_of(pid: u32) -> Option<u32> {
    let process = Process::new(pid.cast_signed()).ok()?;
    process.stat().ok()?.ppid.try_into().ok()
}

/// What this machine is, for the head of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: Option<String>,
    /// CPUs the kernel schedules on.
    pub cpus: Option<u32>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel's release.
    pub kernel: Option<String>,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn this() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            line.split_once(':').map(|(_, value)| value.trim().to_owned())
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        Machine {
            cpu: field("model name").or_else(|| field("Model")),
            cpus: std::thread::available_parallelism().ok().and_then(|count| u32::try_from(count.get()).ok()),
            memory_bytes: Meminfo::current().ok().map(|memory| memory.mem_total),
            kernel: kernel.ok().map(|text| text.trim().to_owned()),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unknown = || "unavailable".to_owned();
        write!(
            formatter,
            "{}, {} CPUs, {} memory, Linux {}",
            self.cpu.clone().unwrap_or_else(|| "unknown CPU".to_owned()),
            self.cpus.map_or_else(unknown, |count| count.to_string()),
            self.memory_bytes.map_or_else(unknown, |bytes| base::units::ByteSize(bytes).to_string()),
            self.kernel.clone().unwrap_or_else(unknown),
        )
    }
}

fn read_machine(proc: &Path) -> Option<MachineTicks> {
    let stat = KernelStats::from_file(proc.join("stat"), procfs::current_system_info()).ok()?;
    let CpuTime { idle, iowait, steal, .. } = stat.total;
    let cpus = stat.cpu_time.len() as u32;
    Some(MachineTicks { cpus, idle: idle + iowait?, steal: steal.unwrap_or(0) })
}

fn read_loop_completions(proc: &Path) -> Option<u64> {
    let DiskStats(devices) = DiskStats::from_file(proc.join("diskstats")).ok()?;
    let loops = devices.iter().filter(|device| device.name.starts_with("loop"));
    let of = |optional: Option<u64>| optional.unwrap_or(0);
    Some(loops.map(|device| device.reads + device.writes + of(device.discards) + of(device.flushes)).sum())
}

fn read_process(proc: &Path, pid: u32) -> Option<ProcessSnapshot> {
    let process = Process::new_with_root(proc.join(pid.to_string())).ok()?;
    let stat = process.stat().ok()?;
    Some(snapshot_of(&process, &stat))
}

fn snapshot_of(process: &Process, stat: &Stat) -> ProcessSnapshot {
    let threads = process.tasks().into_iter().flatten().flatten();
    let memory = process.statm().ok().map(|memory| memory.resident);
    ProcessSnapshot {
        start_ticks: stat.starttime,
        cpu_ticks: stat.utime + stat.stime,
        children_ticks: (stat.cutime + stat.cstime).max(0).cast_unsigned(),
        threads_ns: threads
            .filter_map(|thread| Some((thread.tid, thread.schedstat().ok()?.sum_exec_runtime)))
            .collect(),
        // Of one that ended and was not waited for that is 0, and unknown what it was.
        resident_bytes: memory.filter(|pages| *pages > 0).map(|pages| pages * procfs::page_size()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const STAT: &str = "cpu  14122 10 2588 245555 831 3 53 81 7 0\ncpu0 6310 0 939 124309 52 0 10 39 0 0\n\
                        cpu1 7812 1 1649 121246 779 3 43 42 7 0\n\
                        intr 1\nctxt 9\nbtime 9\nprocesses 9\n";
    const PROCESS: &str = "4242 (a (very) odd) name) S 1 4242 4242 0 -1 4194560 1200 0 0 0 731 269 0 0 20 0 3 0 \
                           98765 25000000 900 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0\n";

    const DISKSTATS: &str = "   7       0 loop0 100 6743 367 535 10 74034 503 223 0 528 760 25 0 117 541 1 168\n   \
                             7       1 loop1 1000 0 0 0 0 0 0 0 0 0 0\n 259       0 nvme0n1 7 0 0 0 7 0 0 0 0 0 0\n";

    /// A captured `/proc` with one process of two threads.
    fn captured() -> (tempfile::TempDir, Monitor) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::write(root.join("stat"), STAT).unwrap();
        fs::write(root.join("diskstats"), DISKSTATS).unwrap();
        for thread in [4242, 4243] {
            fs::create_dir_all(root.join(format!("4242/task/{thread}"))).unwrap();
            fs::write(root.join(format!("4242/task/{thread}/schedstat")), "5000000000 1 1\n").unwrap();
        }
        fs::write(root.join("4242/stat"), PROCESS).unwrap();
        fs::write(root.join("4242/statm"), "6000 250 40 30 0 900 0\n").unwrap();
        let nodes =
            vec![Watched { label: "node.1".into(), pid: 4242 }, Watched { label: "node.2".into(), pid: 777 }];
        let monitor = Monitor { proc: root.to_owned(), own: 998, clients: vec![999], nodes };
        (directory, monitor)
    }

    #[test]
    fn counters_are_read_as_captured() {
        let (directory, _) = captured();
        let root = directory.path();
        let machine = MachineTicks { cpus: 2, idle: 245_555 + 831, steal: 81 };
        assert_eq!(read_machine(root), Some(machine));
        // A name with parentheses does not shift the fields.
        let process = read_process(root, 4242).unwrap();
        assert_eq!((process.start_ticks, process.cpu_ticks), (98765, 731 + 269));
        assert_eq!(process.threads_ns, BTreeMap::from([(4242, 5_000_000_000), (4243, 5_000_000_000)]));
        fs::write(root.join("stat"), STAT.replace(" 831 3 53 81 7 0", "")).unwrap();
        fs::write(root.join("4242/stat"), "garbage").unwrap();
        assert_eq!((read_machine(root), read_process(root, 4242)), (None, None));
    }

    #[test]
    fn usage_is_the_difference_of_two_snapshots_and_what_is_missing_stays_missing() {
        let (directory, monitor) = captured();
        let root = directory.path();
        let before = monitor.snapshot();
        fs::write(root.join("stat"), STAT.replace("cpu  14122", "cpu  14222")).unwrap();
        fs::write(root.join("4242/task/4243/schedstat"), "5001500000 1 1\n").unwrap();
        // What other drives do is none of loop devices'.
        let more = DISKSTATS.replace("loop1 1000 ", "loop1 1005 ").replace("nvme0n1 7 ", "nvme0n1 9 ");
        fs::write(root.join("diskstats"), more).unwrap();
        let usage = monitor.usage(&before, &monitor.snapshot());
        assert_eq!(usage.machine_us, Some(2.0 * usage.seconds * 1e6), "two CPUs that were never idle");
        assert_eq!(
            (read_loop_completions(root), usage.loop_completions),
            (Some(100 + 10 + 25 + 1 + 1005), Some(5))
        );
        assert_eq!(usage.steal_us, Some(0.0));
        assert_eq!(usage.nodes[0].cpu_us, Some(1500.0));
        assert_eq!(usage.nodes[0].resident_bytes, Some(250 * procfs::page_size()));
        assert_eq!((usage.nodes[1].cpu_us, usage.nodes[1].resident_bytes), (None, None));
        assert_eq!(usage.client.cpu_us, None);
        assert_eq!(usage.nodes_us(), None, "a sum with an unknown part is unknown");
    }

    #[test]
    fn a_node_that_is_gone_counts_as_last_seen_and_one_that_came_is_a_node() {
        let (directory, monitor) = captured();
        let root = directory.path();
        let before = monitor.snapshot();
        let mut seen = LastSeen::default();
        fs::write(root.join("4242/task/4243/schedstat"), "5001500000 1 1\n").unwrap();
        monitor.look(&mut seen);
        fs::rename(root.join("4242"), root.join("5000")).unwrap();
        fs::write(root.join("5000/stat"), PROCESS.replace("4242 (a", "5000 (a").replace("98765", "99999"))
            .unwrap();
        monitor.look(&mut seen);
        let mut after = monitor.snapshot();
        assert_eq!(monitor.usage(&before, &after).nodes[0].cpu_us, None);
        after.fill_in(&seen);
        let usage = monitor.usage(&before, &after);
        assert_eq!(usage.nodes[0].cpu_us, Some(1500.0));
        let all_us = 10_001_500.0;
        assert_eq!((usage.roles.get(&Role::Rest), usage.roles.get(&Role::Nodes)), (Some(&all_us), None));
        after.adopt(&[Watched { label: "node.1".into(), pid: 5000 }]);
        let usage = monitor.usage(&before, &after);
        assert_eq!(usage.roles.get(&Role::Rest), Some(&0.0));
    }

    #[test]
    fn the_machine_used_what_it_neither_idled_nor_had_stolen_however_many_ticks_found_it_busy() {
        let before = MachineTicks { cpus: 2, idle: 1000, steal: 50 };
        let after = MachineTicks { cpus: 2, idle: 1300, steal: 60 };
        // Four seconds of two CPUs, of which three and a tenth are accounted for.
        assert_eq!(after.since(before, 4.0), 4_900_000.0);
        assert_eq!(after.since(before, 1.5), 0.0, "ticks of idleness are told a little late");
    }

    #[test]
    fn the_time_of_a_thread_that_ended_is_taken_from_the_ticks() {
        let (directory, monitor) = captured();
        let root = directory.path();
        let before = monitor.snapshot();
        fs::remove_dir_all(root.join("4242/task/4243")).unwrap();
        fs::write(root.join("4242/stat"), PROCESS.replace(" 731 ", " 831 ")).unwrap();
        let usage = monitor.usage(&before, &monitor.snapshot());
        assert_eq!(usage.nodes[0].cpu_us, Some(1_000_000.0));
    }

    #[test]
    fn all_that_runs_has_a_role() {
        let (directory, mut monitor) = captured();
        let root = directory.path();
        monitor.clients = vec![4242];
        monitor.nodes.clear();
        let put = |pid: u32, name: &str, parent: u32, seconds: u64| {
            let fields =
                PROCESS.replacen("4242 (a (very) odd) name) S 1", &format!("{pid} ({name}) S {parent}"), 1);
            fs::create_dir_all(root.join(format!("{pid}/task/{pid}"))).unwrap();
            fs::write(root.join(format!("{pid}/stat")), fields).unwrap();
            fs::write(root.join(format!("{pid}/statm")), "0 0 0 0 0 0 0\n").unwrap();
            let nanoseconds = seconds * 1_000_000_000;
            fs::write(root.join(format!("{pid}/task/{pid}/schedstat")), format!("{nanoseconds} 1 1\n"))
                .unwrap();
        };
        let all = |grown: u64| {
            put(11, "kworker/0:1H-kb", 2, 100 + grown);
            put(12, "ksoftirqd/1", 2, 200 + 2 * grown);
            put(13, "rcu_preempt", 2, 300 + 3 * grown);
            // Anybody may call himself so.
            put(14, "ksoftirqd/0", 1, 400 + 4 * grown);
        };
        all(0);
        let before = monitor.snapshot();
        all(1);
        put(15, "came since", 1, 5);
        put(998, "millpond", 1, 7);
        fs::write(root.join("4242/task/4243/schedstat"), "5001500000 1 1\n").unwrap();
        let usage = monitor.usage(&before, &monitor.snapshot());
        let expected = [1500.0, 0.0, 1e6 + 3e6, 2e6, 4e6 + 5e6, 7e6];
        assert_eq!(usage.roles, Role::OF_A_JOB.into_iter().chain([Role::Lab]).zip(expected).collect());
        monitor.clients = vec![4343];
        let usage = monitor.usage(&monitor.snapshot(), &monitor.snapshot());
        assert_eq!(usage.roles.get(&Role::Client), None, "what cannot be read is absent");
    }

    #[test]
    fn without_scheduler_statistics_ticks_are_used() {
        let (directory, monitor) = captured();
        let root = directory.path();
        fs::remove_dir_all(root.join("4242/task")).unwrap();
        let before = monitor.snapshot();
        fs::write(root.join("4242/stat"), PROCESS.replace(" 269 ", " 272 ")).unwrap();
        let usage = monitor.usage(&before, &monitor.snapshot());
        assert_eq!(usage.nodes[0].cpu_us, Some(30_000.0));
    }

    #[test]
    fn another_process_under_the_same_id_is_not_mistaken_for_the_first() {
        let (directory, monitor) = captured();
        let before = monitor.snapshot();
        fs::write(directory.path().join("4242/stat"), PROCESS.replace("98765", "98766")).unwrap();
        let usage = monitor.usage(&before, &monitor.snapshot());
        assert_eq!(usage.nodes[0].cpu_us, None);
    }

    #[test]
    fn this_process_is_seen_working() {
        let monitor = Monitor::new(vec![Watched { label: "self".into(), pid: std::process::id() }]);
        let before = monitor.snapshot();
        let started = Instant::now();
        let mut value = 1u64;
        while started.elapsed().as_millis() < 60 {
            value = std::hint::black_box(base::hash::mix(value));
        }
        let usage = monitor.usage(&before, &monitor.snapshot());
        assert!(usage.client.cpu_us.unwrap() > 1000.0, "{usage:?}");
        assert!(usage.nodes_us().unwrap() > 1000.0);
        assert!(usage.client.resident_bytes.unwrap() > 100_000);
        assert!(parent_of(std::process::id()).unwrap() > 0);
    }
}
