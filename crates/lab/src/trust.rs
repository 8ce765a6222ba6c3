//! Why figures are not to be trusted, if they are not. Each finding has a code, which stays what it is:
//!
//! | code | when |
//! |---|---|
//! | `depth` | operations a second times average latency are not the operations in flight (Little 1961), by more than 5 % |
//! | `counts` | the subject counted other amounts than the clients, by more than 1 % |
//! | `cached` | more than 20 % of what went through the page cache came from, or went to, no device |
//! | `cpu-lines` | of more than 10 % of the machine's CPU time it is not known who had it, or more is told of than it has |
//! | `cycles` | cycles that were counted by CPU time are no clock between 300 MHz and 8 GHz |
//! | `neighbours` | processes that have nothing to do with it used more than 5 % of the CPUs |
//! | `steal` | the hypervisor gave more than 2 % of the CPUs' time to others |
//! | `drift` | rates rose or fell surely, by more than 5 % within samples or over the rounds |
//! | `control` | two samples of the same differ surely, by more than 2 % |
//! | `errors` | operations failed |
//! | `debug` | the program, an agent or a node was built without optimisation |
//! | `agents` | agents' clocks differ by more than a second, or less than 95 % of their windows lie at the same time |
//! | `compresses` | data that was written, or read, was not random |
//! | `repeats` | data that was written, or read, was the same in several places |
//! | `empty` | reads brought nothing but zeros: the subject was never written to; or its cluster is less than 5 % full |
//! | `rate` | the rate that was asked for was not had, by more than 1 %, or took more than 5 % longer |
//! | `objective` | the highest rate within a bound was looked for, and at none it was kept |
//! | `stalls` | in some seconds less than a fifth of the usual was done, and no event says why |
//! | `event` | an event failed |
//! | `stop` | a subject could not be stopped: what it has may be there still |
//! | `cut-short` | samples were stopped before their end, or are missing |

use crate::archive::{FIGURES, Finding, Outcome, Sample};
use crate::engine::contents::Counts;
use crate::engine::cpu::{Role, told_share};
use crate::monitor::DriveUse;
use crate::report::Side;
use crate::statistics::{Ratio, Trend, Verdict, median};

/// What fio is called among agents.
pub const FIO: &str = "fio";

const DEPTH_TOLERANCE: f64 = 0.05;
const COUNTS_TOLERANCE: f64 = 0.01;
/// Less than this may be anybody's: a file system's own writes, a glance at a partition table.
const COUNTS_BYTES_MIN: f64 = 4.0 * 1048576.0;
const CACHED_MAX: f64 = 0.20;
const CPU_UNTOLD_MAX: f64 = 0.10;
const CLOCKS_MHZ: std::ops::RangeInclusive<f64> = 300.0..=8000.0;
const NEIGHBOURS_MAX: f64 = 0.05;
const STEAL_MAX: f64 = 0.02;
const DRIFT_MAX: f64 = 0.05;
const CONTROL_TOLERANCE: f64 = 0.02;
const RATE_SHORT_MAX: f64 = 0.01;
/// How many times its time a sample at a rate may take.
const RATE_LATE_MAX: f64 = 1.05;
const STALLED_SHARE: f64 = 0.2;
/// Of fewer in a second some seconds have none by chance.
const STALLED_OF_MIN: f64 = 20.0;
/// Two of the same that differ by this much need no interval.
const CONTROL_OFF_MAX: f64 = 0.10;
const CLOCK_AHEAD_MS_MAX: f64 = 1000.0;
const OVERLAP_MIN: f64 = 0.95;
const CONTENTS_SHARE_MAX: f64 = 0.01;
const FULL_MIN: f64 = 0.05;
/// Of fewer operations the average number in flight is not what it is in the long run.
const DEPTH_OPERATIONS_MIN: u64 = 1000;

/// All of an outcome's.
#[must_use]
pub fn findings(outcome: &Outcome) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |code: &str, text: String| findings.push(Finding { code: code.to_owned(), text });
    let agents_debug = outcome.samples.iter().flat_map(|sample| &sample.agents).any(|agent| agent.is_debug);
    if outcome.build.is_debug || agents_debug {
        found("debug", "the program was built without optimisation; build it with --release".to_owned());
    }
    for subject in outcome.subjects.iter().filter(|subject| subject.is_debug) {
        found("debug", format!("what serves {} was built without optimisation", subject.name));
    }
    for sample in &outcome.samples {
        let what = name(outcome, sample);
        let mut of_sample = |code: &str, text: Option<String>| {
            if let Some(text) = text {
                found(code, format!("{what}: {text}"));
            }
        };
        of_sample("depth", depth(outcome, sample));
        of_sample("counts", counts(sample));
        of_sample("cached", cached(outcome, sample));
        of_sample("cpu-lines", cpu_lines(outcome, sample));
        of_sample("cycles", cycles(sample));
        of_sample("neighbours", neighbours(outcome, sample));
        of_sample("steal", steal(outcome, sample));
        of_sample("errors", errors(sample));
        of_sample("agents", agents(sample));
        of_sample("rate", rate(outcome, sample));
        of_sample("objective", objective(outcome, sample));
        of_sample("stalls", stalls(sample));
        for event in &sample.events {
            let failed = event.failed.as_ref().map(|reason| format!("{} failed: {reason}", event.name));
            of_sample("event", failed);
        }
        for missing in &sample.missing {
            of_sample("cut-short", Some(missing.clone()));
        }
        of_sample("cut-short", sample.stopped_early.then(|| "it was stopped before its end".to_owned()));
        for (code, text) in contents(sample) {
            of_sample(code, Some(text));
        }
    }
    for subject in &outcome.subjects {
        if let Some(full) = subject.full.filter(|full| *full < FULL_MIN) {
            let (name, full) = (&subject.name, percent(full));
            found("empty", format!("the cluster of {name} is {full} full only, and fuller ones are slower"));
        }
    }
    for point in 0..outcome.points.len() {
        for subject in 0..outcome.subjects.len() {
            if let Some(text) = drift(outcome, point, subject) {
                found("drift", text);
            }
        }
        for text in control(outcome, point) {
            found("control", text);
        }
    }
    for error in &outcome.not_stopped {
        found("stop", error.clone());
    }
    if let Some(why) = &outcome.ended_early {
        found("cut-short", format!("samples are missing: {why}"));
    }
    findings
}

fn name(outcome: &Outcome, sample: &Sample) -> String {
    let (subject, point) = (&outcome.subjects[sample.subject].name, &outcome.points[sample.point].name);
    let twin = if sample.is_control { " once more" } else { "" };
    format!("{point} on {subject}{twin}, round {}", sample.round)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn depth(outcome: &Outcome, sample: &Sample) -> Option<String> {
    let point = &outcome.points[sample.point];
    // Whoever asks at a rate has in flight what is in flight, and fio collects operations before it begins them.
    let is_by_fio = sample.agents.iter().any(|agent| agent.name == FIO);
    if sample.asked_iops.is_some() || is_by_fio || sample.operations() < DEPTH_OPERATIONS_MIN {
        return None;
    }
    let meant = f64::from(point.job.depth) * f64::from(point.clients);
    let seen = sample.iops() * sample.mean_us()? / 1e6;
    let off = seen / meant - 1.0;
    (off.abs() > DEPTH_TOLERANCE).then(|| {
        format!(
            "{:.0} operations a second of {:.0} µs are {seen:.1} in flight, and {meant:.0} were to be",
            sample.iops(),
            sample.mean_us().unwrap_or_default()
        )
    })
}

fn counts(sample: &Sample) -> Option<String> {
    let served = sample.served?;
    let differ = |asked: u64, served: u64| {
        let (asked, served) = (asked as f64, served as f64);
        (asked - served).abs() > (COUNTS_TOLERANCE * asked.max(served)).max(COUNTS_BYTES_MIN)
    };
    let told = |what: &str, asked: u64, served: u64| {
        differ(asked, served).then(|| {
            let mib = |bytes: u64| bytes as f64 / 1048576.0;
            format!("clients {what} {:.0} MiB, and the subject counted {:.0}", mib(asked), mib(served))
        })
    };
    let read = told("read", served.asked_read_bytes, served.read_bytes);
    let written = told("wrote", served.asked_written_bytes, served.written_bytes);
    let both: Vec<String> = read.into_iter().chain(written).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// How much went through the page cache and to no device of this host.
fn cached(outcome: &Outcome, sample: &Sample) -> Option<String> {
    let (subject, point) = (&outcome.subjects[sample.subject], &outcome.points[sample.point]);
    // What devices of other hosts got is not seen, and a command has no bytes.
    let is_elsewhere = sample.agents.iter().any(|agent| agent.is_remote);
    if !subject.is_cached || is_elsewhere || point.run.is_some() {
        return None;
    }
    let told = |what: &str, side: Option<&Side>, of: fn(&DriveUse) -> f64| {
        let side = side?;
        let of_devices: f64 = sample.drives.iter().map(of).sum();
        let share = (1.0 - of_devices / side.mib_per_second.max(f64::MIN_POSITIVE)).max(0.0);
        (share > CACHED_MAX).then(|| format!("{} of what was {what}", percent(share)))
    };
    let read = told("read came from memory", sample.read.as_ref(), |drive| drive.read_mib_per_second);
    let written = told("written went no farther than memory", sample.write.as_ref(), |drive| {
        drive.write_mib_per_second
    });
    let both: Vec<String> = read.into_iter().chain(written).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

fn cpu_lines(outcome: &Outcome, sample: &Sample) -> Option<String> {
    let cpu = sample.cpu.as_ref()?;
    let told = told_share(cpu.machine_us_per_operation, &cpu.roles_us_per_operation)?;
    // What the hypervisor takes from a thread counts as the thread's own: that is told as what it is.
    let is_stolen = steal(outcome, sample).is_some();
    (told < 1.0 - CPU_UNTOLD_MAX || (told > 1.0 + CPU_UNTOLD_MAX && !is_stolen))
        .then(|| format!("the lines of CPU time have {} of the machine's", percent(told)))
}

/// Whether the cycles that were counted and CPU time are those of a clock that there can be.
fn cycles(sample: &Sample) -> Option<String> {
    let mhz = sample.cycles.filter(|cycles| !cycles.is_estimated)?.clock_mhz?;
    (!CLOCKS_MHZ.contains(&mhz)).then(|| {
        format!("cycles by CPU time are a clock of {mhz:.0} MHz, which no CPU has: one is miscounted")
    })
}

fn neighbours(outcome: &Outcome, sample: &Sample) -> Option<String> {
    // Of an agent that is reached by a process of this host nobody knows which it is.
    if sample.agents.iter().any(|agent| agent.is_remote) {
        return None;
    }
    let cpus = f64::from(outcome.machine.cpus?);
    let us_per_operation = *sample.cpu.as_ref()?.roles_us_per_operation.get(&Role::Rest)?;
    let share = us_per_operation / 1e6 * sample.iops() / cpus;
    (share > NEIGHBOURS_MAX)
        .then(|| format!("processes that have nothing to do with it used {} of the CPUs", percent(share)))
}

fn steal(outcome: &Outcome, sample: &Sample) -> Option<String> {
    let stolen = sample.cpu.as_ref()?.steal_seconds?;
    let cpus = f64::from(outcome.machine.cpus?);
    let share = stolen / (sample.seconds * cpus).max(f64::MIN_POSITIVE);
    (share > STEAL_MAX).then(|| format!("the hypervisor gave {} of the CPUs' time to others", percent(share)))
}

fn errors(sample: &Sample) -> Option<String> {
    let first = sample.first_error.as_deref().unwrap_or("no reason was given");
    let errors = sample.errors.max(sample.probes.iter().map(|probe| probe.errors).sum());
    (errors > 0).then(|| format!("{errors} operations failed, the first: {first}"))
}

fn agents(sample: &Sample) -> Option<String> {
    let ahead = sample.agents.iter().find(|agent| agent.clock_ahead_ms.abs() > CLOCK_AHEAD_MS_MAX);
    if let Some(agent) = ahead {
        let seconds = agent.clock_ahead_ms / 1000.0;
        return Some(format!("the clock of {} is ahead by {seconds:.1} s; set it right", agent.name));
    }
    if sample.stopped_early || !sample.missing.is_empty() {
        return None;
    }
    let opened = sample.agents.iter().map(|agent| agent.opened_unix_ms);
    let closed = sample.agents.iter().map(|agent| agent.opened_unix_ms + agent.seconds * 1000.0);
    let together_ms = closed.clone().reduce(f64::min)? - opened.clone().reduce(f64::max)?;
    let in_all_ms = closed.reduce(f64::max)? - opened.reduce(f64::min)?;
    let overlap = if in_all_ms > 0.0 { together_ms.max(0.0) / in_all_ms } else { 1.0 };
    (overlap < OVERLAP_MIN)
        .then(|| format!("clients worked at the same time for {} of the time only", percent(overlap)))
}

fn rate(outcome: &Outcome, sample: &Sample) -> Option<String> {
    let point = &outcome.points[sample.point];
    let asked = sample.asked_iops?;
    let runtime = point.job.runtime.filter(|_| !sample.stopped_early)?.as_secs_f64();
    let (had, overdue) = (sample.iops(), sample.overdue);
    (overdue > 0 || had < asked * (1.0 - RATE_SHORT_MAX) || sample.seconds > runtime * RATE_LATE_MAX).then(|| {
        format!(
            "{asked:.0} operations a second were to be, and {had:.0} were had in {:.1} s instead of {runtime:.1}; \
             {overdue} were never begun",
            sample.seconds
        )
    })
}

/// Whether the highest rate was looked for and none was found.
fn objective(outcome: &Outcome, sample: &Sample) -> Option<String> {
    let within = outcome.points[sample.point].within.as_ref()?;
    let is_none = sample.probes.last().is_some_and(|probe| !probe.holds);
    is_none.then(|| {
        let (tried, figure, bound) = (sample.probes.len(), &within.figure, within.at_most);
        format!("at none of {tried} rates was {figure} within {bound}; what is told is the last")
    })
}

/// Seconds in which next to nothing was done.
fn stalls(sample: &Sample) -> Option<String> {
    if !sample.events.is_empty() {
        return None;
    }
    let whole = || sample.series.iter().filter(|second| second.seconds > 0.5);
    let rates: Vec<f64> = whole().map(|second| second.read_iops + second.write_iops).collect();
    let usual = median(rates.clone())?;
    if usual < STALLED_OF_MIN {
        return None;
    }
    let stalled = rates.iter().filter(|rate| **rate < usual * STALLED_SHARE).count();
    (stalled > 0).then(|| format!("in {stalled} seconds less than a fifth of the usual {usual:.0} was done"))
}

fn contents(sample: &Sample) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    let share = |of: fn(&Counts) -> u64, counts: &Counts| {
        let share = of(counts) as f64 / counts.looked.max(1) as f64;
        (share > CONTENTS_SHARE_MAX).then_some(share)
    };
    let (read, written) = (&sample.contents.read, &sample.contents.written);
    if let Some(share) = share(|counts| counts.zeros, read) {
        told.push(("empty", format!("{} of the blocks that were read hold zeros", percent(share))));
    }
    if let Some(share) = share(|counts| counts.compressible, read) {
        told.push(("compresses", format!("{} of the blocks that were read are not random", percent(share))));
    }
    if let Some(share) = share(|counts| counts.zeros + counts.compressible, written) {
        told.push((
            "compresses",
            format!("{} of the blocks that were written are not random", percent(share)),
        ));
    }
    for (counts, what) in [(read, "read"), (written, "written")] {
        if let Some(share) = share(|counts| counts.repeated, counts) {
            let share = percent(share);
            told.push(("repeats", format!("{share} of the blocks that were {what} are the same as others")));
        }
    }
    told
}

/// What surely changes within samples, or from round to round.
fn drift(outcome: &Outcome, point: usize, subject: usize) -> Option<String> {
    let samples: Vec<&Sample> = outcome.samples_of(point, subject, false).collect();
    let within: Vec<Vec<f64>> = samples
        .iter()
        .map(|sample| {
            let whole = sample.series.iter().filter(|second| second.seconds > 0.5);
            whole.map(|second| second.read_iops + second.write_iops).collect()
        })
        .collect();
    let over: Vec<f64> = samples.iter().map(|sample| sample.iops()).collect();
    let where_ = format!("{} on {}", outcome.points[point].name, outcome.subjects[subject].name);
    let told = |trend: Trend, when: &str| {
        let change = trend.change;
        (trend.is_sure() && change.abs() > DRIFT_MAX).then(|| {
            let way = if change > 0.0 { "rise" } else { "fall" };
            format!("{where_}: operations a second {way} by {} {when}", percent(change.abs()))
        })
    };
    Trend::of(&within)
        .and_then(|trend| told(trend, "within samples"))
        .or_else(|| Trend::of(&[over]).and_then(|trend| told(trend, "over the rounds")))
}

/// Figures that differ between two samples of the same.
fn control(outcome: &Outcome, point: usize) -> Vec<String> {
    if !outcome.control {
        return Vec::new();
    }
    let told = FIGURES.iter().filter(|figure| ["iops", "mean_us", "machine_us"].contains(&figure.name));
    let told = told.filter_map(|figure| {
        let quotients = outcome.samples_of(point, 0, true).filter_map(|twin| {
            let one = outcome.samples_of(point, 0, false).find(|one| one.round == twin.round)?;
            Some((figure.of)(twin)? / (figure.of)(one)?)
        });
        let ratio = Ratio::of(quotients.collect())?;
        // Fewer than six rounds have no interval.
        let is_off = ratio.interval.is_none() && (ratio.estimate - 1.0).abs() > CONTROL_OFF_MAX;
        (is_off || ratio.verdict(CONTROL_TOLERANCE) != Verdict::NoDifferenceShown).then(|| {
            let [low, high] = ratio.interval.unwrap_or([ratio.estimate; 2]);
            let (point, subject) = (&outcome.points[point].name, &outcome.subjects[0].name);
            format!(
                "{point} on {subject}: {} of the same differ by {:.3} ({low:.3} to {high:.3})",
                figure.heading, ratio.estimate
            )
        })
    });
    told.collect()
}
