//! What was measured of the client and of the cluster's processes, and what is asserted of it.

use super::neighbour::{ACTS, Deed, Did};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

/// The most memory that a node's process may have meanwhile, in bytes: what an OSD has for itself, and the bounds of what it
/// keeps for one key (docs/security.md), several times over.
const MEMORY_MAX: u64 = 1 << 30;
/// The most that the kernel may have for TCP, in bytes: a machine with 24 GiB has three times as much before its connections crawl.
const TCP_MEMORY_MAX: u64 = 512 << 20;
/// How much more memory the processes may come to have in the second half of a long try than in the first, in bytes: what they keep
/// for somebody does not grow with what he did.
const GROWTH_MAX: u64 = 64 << 20;
/// What may be twice as long as something that takes no longer than that is not looked at: it is noise.
const SHORT: Duration = Duration::from_millis(10);
/// No operation of the client takes so long, whoever comes, is there or goes.
const STALL_MAX: Duration = Duration::from_secs(2);
/// What the hostile one has the nodes do, at least, by what the honest one has: in processor time.
const BUSY_MIN: f64 = 0.7;

/// What goes on while the client is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Alone,
    Honest,
    Hostile,
    /// The hostile one does one thing over and over.
    Single,
    /// Neighbours come or go.
    Between,
}

const PHASES: [Phase; 5] = [Phase::Alone, Phase::Honest, Phase::Hostile, Phase::Single, Phase::Between];

/// Something of each phase.
pub type ByPhase<T> = [T; PHASES.len()];

/// How long an operation took, and when it began, in microseconds of the clock.
pub type Took = (Duration, u64);

/// Of the processes of the nodes, and of the one that keeps them running and has the registry, the most memory that each had in
/// each of two halves of the time, in bytes.
pub type MemoryMax = [[u64; 4]; 2];

/// All that was measured.
#[derive(Default)]
pub struct Measured {
    /// Whether it was a long try.
    pub is_long: bool,
    pub took: ByPhase<Vec<Took>>,
    /// How long the phases lasted, in seconds: nobody counted that of the one between.
    pub seconds: ByPhase<f64>,
    /// Seconds of the processor that all nodes had, and their neighbour.
    pub cpu: ByPhase<[f64; 2]>,
    pub memory_max: MemoryMax,
    /// The most that the kernel had for TCP, in bytes.
    pub tcp_memory_max: u64,
    /// What the neighbours did.
    pub did: Did,
    /// Which act was done alone, and from when to when, in microseconds of the clock.
    pub singles: Vec<(usize, Range<u64>)>,
}

impl Measured {
    /// Prints it, and asserts that nobody was harmed.
    pub fn is_harmless(&mut self) {
        self.took.iter_mut().for_each(|took| took.sort_unstable());
        eprintln!("the honest neighbour was served {} requests", self.did.served);
        for phase in PHASES {
            self.tell(phase);
        }
        for (act, time) in &self.singles {
            let took = self.took_within(Phase::Single, |began_us| time.contains(&began_us));
            let [slow, slowest] = [took.len() * 99 / 100, took.len() - 1].map(|at| took[at]);
            eprintln!(
                "who {}, over and over: 99 % within {slow:.1?}, all within {slowest:.1?}",
                ACTS[*act].0
            );
        }
        let [early, late] = self.memory_max.map(|halves| halves.map(|bytes| bytes >> 20));
        eprintln!(
            "the most memory of the nodes' processes, and of the one that keeps them running: {early:?}, then {late:?} MiB; of the \
             kernel, for TCP: {} MiB",
            self.tcp_memory_max >> 20
        );
        self.memory_is_bounded();
        self.all_was_tried();
        let slowest = self.took.iter().filter_map(|took| took.last()).map(|(took, _)| *took).max();
        assert!(slowest < Some(STALL_MAX), "an operation took {slowest:?}");
        self.is_as_quick_as_beside_an_honest_one();
        if self.is_long {
            self.stays_as_quick();
        }
    }

    fn tell(&self, phase: Phase) {
        let took = &self.took[phase as usize];
        let Some((slowest, _)) = took.last() else { return };
        let [median, slow] = [took.len() / 2, took.len() * 99 / 100].map(|at| took[at].0);
        let [nodes, neighbour] = self.cpu[phase as usize];
        eprintln!(
            "{phase:?}: {} operations of the client, half of them within {median:.1?}, 99 % within {slow:.1?}, all \
             within {slowest:.1?}; processor: the nodes {nodes:.1} s, the neighbour {neighbour:.1} s",
            took.len()
        );
        if phase == Phase::Hostile {
            eprintln!(
                "what was done during the slowest percent: {:?}",
                told_of_slowest(took, &self.did.deeds)
            );
        }
    }

    fn memory_is_bounded(&self) {
        let [early, late] = self.memory_max;
        let told = format!("at most {early:?}, then {late:?} bytes");
        assert!(early.iter().chain(&late).all(|bytes| *bytes <= MEMORY_MAX), "{told}");
        assert!(
            self.tcp_memory_max <= TCP_MEMORY_MAX,
            "the kernel had {} bytes for TCP",
            self.tcp_memory_max
        );
        let grows = early.iter().zip(late).any(|(early, late)| late > early + GROWTH_MAX);
        assert!(!self.is_long || !grows, "{told}");
    }

    /// Each thing was done, and kept the nodes busy: processes that come last might be kept from doing harm by that.
    fn all_was_tried(&self) {
        let done = |act: usize| self.did.deeds.iter().filter(|deed| deed.act == act && deed.is_done).count();
        let acts: BTreeMap<&str, usize> =
            ACTS.iter().enumerate().map(|(act, (name, _))| (*name, done(act))).collect();
        eprintln!("what was done: {acts:?}");
        assert!(acts.values().all(|count| *count > 0), "something was never done: {acts:?}");
        assert!(self.did.served > 0, "an honest neighbour is served");
        assert!(!self.is_long || self.did.too_many > 0, "one key has as many connections as it likes");
        let [beside_hostile, beside_honest] =
            [Phase::Hostile, Phase::Honest].map(|phase| self.a_second(self.cpu[phase as usize][0], phase));
        assert!(
            beside_hostile > BUSY_MIN * beside_honest,
            "the nodes had {beside_hostile:.2} s of processor a second from a hostile neighbour, and {beside_honest:.2} s from \
             an honest one: nothing was tried"
        );
    }

    fn is_as_quick_as_beside_an_honest_one(&self) {
        // Who is kept waiting asks for less: the slowest percent of that does not tell of it.
        let [with_hostile, with_honest] = [Phase::Hostile, Phase::Honest]
            .map(|phase| self.a_second(self.took[phase as usize].len() as f64, phase));
        assert!(
            2.0 * with_hostile > with_honest,
            "{with_hostile:.0} operations a second beside a hostile neighbour, and {with_honest:.0} beside an honest one"
        );
        let [hostile, honest] = [Phase::Hostile, Phase::Honest].map(|phase| self.slow(phase, |_| true));
        // Of 20 s there are few samples, on a machine where all of this shares two processors: such a run has come to 2.1.
        let factor = if self.is_long { 2 } else { 8 };
        let most = factor * honest.max(SHORT);
        assert!(
            hostile < most,
            "99 % of the operations took up to {hostile:?} beside a hostile neighbour, and {honest:?} beside an honest one"
        );
        let mut too_slow = Vec::new();
        for (act, time) in &self.singles {
            let name = ACTS[*act].0;
            let slow = self.slow(Phase::Single, |began_us| time.contains(&began_us));
            if slow >= most {
                too_slow.push(name);
            }
        }
        assert!(too_slow.is_empty(), "of one thing over and over others notice: {too_slow:?}");
    }

    /// What a hostile one leaves behind harms beside an honest one too.
    fn stays_as_quick(&self) {
        let mut began: Vec<u64> =
            self.took[Phase::Honest as usize].iter().map(|(_, began_us)| *began_us).collect();
        began.sort_unstable();
        let middle = began[began.len() / 2];
        let [early, late] =
            [true, false].map(|is_early| self.slow(Phase::Honest, |at| (at < middle) == is_early));
        assert!(
            late < 2 * early.max(SHORT),
            "beside an honest one 99 % within {early:?}, and later within {late:?}"
        );
    }

    fn a_second(&self, sum: f64, phase: Phase) -> f64 {
        sum / self.seconds[phase as usize]
    }

    /// What the operations of a phase that began at such times took at most, all but the slowest percent.
    fn slow(&self, phase: Phase, began: impl Fn(u64) -> bool) -> Duration {
        let took = self.took_within(phase, began);
        took[took.len() * 99 / 100]
    }

    /// What the operations of a phase that began at such times took, the slowest last.
    fn took_within(&self, phase: Phase, began: impl Fn(u64) -> bool) -> Vec<Duration> {
        let then = self.took[phase as usize].iter().filter(|(_, began_us)| began(*began_us));
        let took: Vec<Duration> = then.map(|(took, _)| *took).collect();
        assert!(took.is_sorted() && !took.is_empty(), "something was measured, and is sorted");
        took
    }
}

/// What the hostile one was at more often when the slowest percent of operations began than when any did, in words.
fn told_of_slowest(sorted: &[Took], deeds: &[Deed]) -> Vec<String> {
    const MOMENT_US: u64 = 10_000;
    const { assert!(ACTS.len() <= u16::BITS as usize) };
    // A bit for each act.
    let mut acts_at: HashMap<u64, u16> = HashMap::new();
    for deed in deeds {
        for at in deed.began_us / MOMENT_US..=deed.ended_us / MOMENT_US {
            *acts_at.entry(at).or_default() |= 1 << deed.act;
        }
    }
    let acts_then = |(_, began_us): &Took| acts_at.get(&(began_us / MOMENT_US)).copied().unwrap_or(0);
    let acts: Vec<u16> = sorted.iter().map(acts_then).collect();
    let slowest = &acts[acts.len() * 99 / 100..];
    let share =
        |of: &[u16], act: usize| 100 * of.iter().filter(|acts| **acts & 1 << act != 0).count() / of.len();
    let told = ACTS.iter().enumerate().map(|(act, (name, _))| (name, share(slowest, act), share(&acts, act)));
    let more = told.filter(|(_, then, always)| then > always);
    more.map(|(name, then, always)| format!("{name}: {then} %, else {always} %")).collect()
}
