//! What a run found, as it is printed and as it is written to a file.

use super::{
    AWAY_TIME, BackfillResult, CatchUpResult, DRIVES, Foreground, Impact, Loss, LossResult, Options,
    ScrubResult,
};
use crate::engine::cpu::Machine;
use crate::engine::histogram::LatencySummary;
use crate::report::statistics::median;
use crate::report::{grouped, microseconds};
use crate::scenarios::steady::{self, Stretch};
use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What each round found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// By the name of the loss.
    pub losses: BTreeMap<String, Vec<LossResult>>,
    /// Nodes that were away.
    pub catch_ups: Vec<CatchUpResult>,
    /// New OSDs, by what clients did meanwhile.
    pub backfills: BTreeMap<String, Vec<BackfillResult>>,
    /// Deep scrubs of everything.
    pub scrubs: Vec<ScrubResult>,
}

/// Everything that a run found. What is below one name is the worst of all rounds, each figure by itself; of what is told
/// as a multiple of another stretch of time it is the median: what else the machine does falls into one stretch or the
/// other, and the worst of several rounds would tell of that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The machine.
    pub machine: Machine,
    /// When.
    pub date: String,
    /// Bytes of the volume of many groups.
    pub volume_bytes: u64,
    /// Bytes of the volume of one group.
    pub single_volume_bytes: u64,
    /// The worst pause of all rounds, by the name of the loss, in seconds.
    pub pause_s: BTreeMap<String, f64>,
    /// The longest time to full redundancy, by the name of the loss, in seconds.
    pub redundant_s: BTreeMap<String, f64>,
    /// The longest catching up, in seconds.
    pub catch_up_s: Option<f64>,
    /// The latency that 99 % of the operations did not exceed, while a node caught up as a multiple of after,
    /// the median.
    pub catch_up_p99_growth: Option<f64>,
    /// That latency before, during and after it, of the round where it grew most, in microseconds.
    pub catch_up_p99_us: BTreeMap<String, Option<f64>>,
    /// How fast the slowest new OSD was filled, by what clients did meanwhile, in millions of bytes a second.
    pub backfill_mb_per_second: BTreeMap<String, f64>,
    /// The lowest share of what the drive itself took, by what clients did meanwhile.
    pub backfill_by_raw: BTreeMap<String, f64>,
    /// The latency that 99 % of the operations did not exceed, while an OSD was filled as a multiple of after,
    /// the median.
    pub backfill_p99_growth: Option<f64>,
    /// That latency before, during and after it, of the round where it grew most, in microseconds.
    pub backfill_p99_us: BTreeMap<String, Option<f64>>,
    /// How fast the slowest scrub read each drive, in millions of bytes a second.
    pub scrub_mb_per_second: Option<f64>,
    /// Operations a second during a scrub as a multiple of after, the median.
    pub scrub_iops_kept: Option<f64>,
    /// The latency that 99 % of the operations did not exceed, during a scrub as a multiple of after, the median.
    pub scrub_p99_growth: Option<f64>,
    /// That latency before, during and after it, of the round where it grew most, in microseconds.
    pub scrub_p99_us: BTreeMap<String, Option<f64>>,
    /// CPU time of the machine per operation during a scrub as a multiple of after, the median.
    pub scrub_cpu_growth: Option<f64>,
    /// Every round.
    #[serde(flatten)]
    pub rounds: Rounds,
}

/// The latency that 99 % of a client's operations do not exceed grows by less than half beside recovery.
const RECOVERY_P99_GROWTH_MUST: f64 = 1.5;

fn largest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::max)
}

fn smallest(values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(f64::min)
}

/// `figure` of the results below each name, the one that `worse` picks of every two.
fn worst_by_name<T>(
    results: &BTreeMap<String, Vec<T>>,
    figure: fn(&T) -> f64,
    worse: fn(f64, f64) -> f64,
) -> BTreeMap<String, f64> {
    let worst = |results: &Vec<T>| results.iter().map(figure).reduce(worse);
    results.iter().filter_map(|(name, results)| Some((name.clone(), worst(results)?))).collect()
}

fn named(impact: &Impact) -> [(&'static str, &Stretch); 3] {
    [("before", &impact.before), ("during", &impact.during), ("after", &impact.after)]
}

fn p99_us(stretch: &Stretch) -> Option<f64> {
    stretch.latency.map(|latency| latency.p99_us)
}

/// Before, during and after, of where the tail grew most.
fn worst_p99_us<'a>(impacts: impl Iterator<Item = &'a Impact>) -> BTreeMap<String, Option<f64>> {
    let growth = |impact: &Impact| impact.p99_growth().unwrap_or(0.0);
    let worst = impacts.max_by(|one, other| growth(one).total_cmp(&growth(other)));
    let stretches = worst.into_iter().flat_map(named);
    stretches.map(|(name, stretch)| (name.to_owned(), p99_us(stretch))).collect()
}

impl Summary {
    pub(super) fn new(options: &Options, rounds: Rounds) -> Summary {
        let Rounds { losses, catch_ups, backfills, scrubs } = &rounds;
        let beside_catch_ups = || catch_ups.iter().map(|result| &result.clients);
        let beside_backfills = || backfills.values().flatten().filter_map(|result| result.clients.as_ref());
        let beside_scrubs = || scrubs.iter().map(|result| &result.clients);
        Summary {
            machine: Machine::this(),
            date: options.run.date.clone(),
            volume_bytes: options.volume_bytes,
            single_volume_bytes: options.single_bytes(),
            pause_s: worst_by_name(losses, |result| result.pause_s, f64::max),
            redundant_s: worst_by_name(losses, |result| result.redundant_s, f64::max),
            catch_up_s: largest(catch_ups.iter().map(|result| result.catch_up_s)),
            catch_up_p99_growth: median(beside_catch_ups().filter_map(Impact::p99_growth).collect()),
            catch_up_p99_us: worst_p99_us(beside_catch_ups()),
            backfill_mb_per_second: worst_by_name(backfills, |result| result.mb_per_second, f64::min),
            backfill_by_raw: worst_by_name(backfills, |result| result.by_raw, f64::min),
            backfill_p99_growth: median(beside_backfills().filter_map(Impact::p99_growth).collect()),
            backfill_p99_us: worst_p99_us(beside_backfills()),
            scrub_mb_per_second: smallest(scrubs.iter().map(|result| result.mb_per_second)),
            scrub_iops_kept: median(beside_scrubs().filter_map(Impact::iops_kept).collect()),
            scrub_p99_growth: median(beside_scrubs().filter_map(Impact::p99_growth).collect()),
            scrub_p99_us: worst_p99_us(beside_scrubs()),
            scrub_cpu_growth: median(scrubs.iter().filter_map(ScrubResult::cpu_growth).collect()),
            rounds,
        }
    }

    fn write_losses(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<10}{:>10}{:>9}{:>10}{:>14}  all pauses, s",
            "lost", "pause s", "must", "", "redundant s"
        )?;
        for loss in Loss::ALL {
            let Some(results) = self.rounds.losses.get(loss.name()) else { continue };
            let pause = self.pause_s.get(loss.name()).copied().unwrap_or_default();
            let redundant = self.redundant_s.get(loss.name()).copied().unwrap_or_default();
            let verdict = if pause < loss.must_s() { "met" } else { "MISSED" };
            let all: Vec<String> = results.iter().map(|result| format!("{:.2}", result.pause_s)).collect();
            writeln!(
                formatter,
                "{:<10}{pause:>10.2}{:>9}{verdict:>10}{redundant:>14.1}  {}",
                loss.name(),
                format!("< {:.0}", loss.must_s()),
                all.join(" ")
            )?;
        }
        for loss in Loss::ALL {
            writeln!(formatter, "  {:<8}{}", loss.name(), loss.explained())?;
        }
        Ok(())
    }

    fn write_catch_ups(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (round, result) in (1..).zip(&self.rounds.catch_ups) {
            writeln!(
                formatter,
                "\nround {round}: caught up in {:.1} s after {} s away, in which clients wrote {}; p99 {}, IOPS {}",
                result.catch_up_s,
                AWAY_TIME.as_secs(),
                ByteSize(result.away.written_bytes),
                times(result.clients.p99_growth()),
                times(result.clients.iops_kept())
            )?;
            let [before, during, after] = named(&result.clients);
            write_stretches(formatter, &[before, ("away", &result.away), during, after])?;
        }
        Ok(())
    }

    fn write_backfills(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "\n{:<10}{:>10}{:>12}{:>12}{:>10}  all MB/s by the drive's",
            "filled", "longest s", "MB/s", "drive MB/s", "share"
        )?;
        for foreground in Foreground::ALL {
            let Some(results) = self.rounds.backfills.get(foreground.name()) else { continue };
            let by_share =
                |one: &&BackfillResult, other: &&BackfillResult| one.by_raw.total_cmp(&other.by_raw);
            let Some(worst) = results.iter().min_by(by_share) else { continue };
            let longest_s = largest(results.iter().map(|result| result.filled_s)).unwrap_or_default();
            let all = results
                .iter()
                .map(|result| format!("{:.0}/{:.0}", result.mb_per_second, result.raw_mb_per_second));
            writeln!(
                formatter,
                "{:<10}{longest_s:>10.1}{:>12.1}{:>12}{:>10}  {}",
                foreground.name(),
                worst.mb_per_second,
                grouped(worst.raw_mb_per_second),
                percent(worst.by_raw),
                all.collect::<Vec<_>>().join(" ")
            )?;
        }
        for foreground in Foreground::ALL {
            writeln!(
                formatter,
                "  {:<8}a new OSD gets its share of everything {}",
                foreground.name(),
                foreground.explained()
            )?;
        }
        let loaded = self.rounds.backfills.get(Foreground::Loaded.name()).into_iter().flatten();
        for (round, result) in (1..).zip(loaded) {
            let Some(clients) = &result.clients else { continue };
            writeln!(
                formatter,
                "\nround {round}: a new OSD got {} in {:.1} s; p99 {}, IOPS {}",
                ByteSize(result.bytes),
                result.filled_s,
                times(clients.p99_growth()),
                times(clients.iops_kept())
            )?;
            write_stretches(formatter, &named(clients))?;
        }
        Ok(())
    }

    fn write_scrubs(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (round, result) in (1..).zip(&self.rounds.scrubs) {
            let clients = &result.clients;
            writeln!(
                formatter,
                "\nround {round}: a deep scrub read {} of each drive in {:.1} s, {:.1} MB/s; p99 {}, IOPS {}",
                ByteSize(result.bytes),
                result.seconds,
                result.mb_per_second,
                times(clients.p99_growth()),
                times(clients.iops_kept())
            )?;
            if result.found > 0 {
                writeln!(
                    formatter,
                    "DAMAGE: it found {} blocks damaged or different, and nothing did that on purpose",
                    result.found
                )?;
            }
            write_stretches(formatter, &named(clients))?;
            writeln!(formatter, "{:<10}{:>10}{:>12}{:>12}", "CPU", "machine µs", "nodes µs", "steal s")?;
            for (name, cpu) in [("during", &result.cpu_during), ("after", &result.cpu_after)] {
                writeln!(
                    formatter,
                    "{name:<10}{:>10}{:>12}{:>12}",
                    microseconds(cpu.machine_us_per_operation),
                    microseconds(cpu.nodes_us_per_operation),
                    cpu.steal_seconds.map_or_else(unavailable, |seconds| format!("{seconds:.1}"))
                )?;
            }
        }
        Ok(())
    }

    fn write_impacts(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "\n{:<24}{:>10}{:>9}{:>10}{:>10}{:>12}  p99 of all rounds",
            "median, during by after", "p99", "must", "", "IOPS", "machine µs"
        )?;
        let backfills = self.rounds.backfills.values().flatten().filter_map(|result| result.clients.as_ref());
        let lines: [(_, _, Vec<&Impact>, _); 3] = [
            (
                "catching up",
                Some(RECOVERY_P99_GROWTH_MUST),
                self.rounds.catch_ups.iter().map(|result| &result.clients).collect(),
                None,
            ),
            ("a new OSD is filled", Some(RECOVERY_P99_GROWTH_MUST), backfills.collect(), None),
            (
                "a deep scrub",
                None,
                self.rounds.scrubs.iter().map(|result| &result.clients).collect(),
                self.scrub_cpu_growth,
            ),
        ];
        for (name, must, impacts, cpu) in lines {
            let p99 = median(impacts.iter().filter_map(|impact| impact.p99_growth()).collect());
            let iops = median(impacts.iter().filter_map(|impact| impact.iops_kept()).collect());
            let all: Vec<String> = impacts.iter().map(|impact| times(impact.p99_growth())).collect();
            // What is not measured is not a figure that could not be.
            let cpu = cpu.map_or_else(|| "-".to_owned(), |cpu| times(Some(cpu)));
            let limit = must.map_or_else(String::new, |must| format!("< {must:.1}x"));
            let verdict = match (p99, must) {
                (Some(p99), Some(must)) if p99 < must => "met",
                (Some(_), Some(_)) => "MISSED",
                _ => "",
            };
            writeln!(
                formatter,
                "{name:<24}{:>10}{limit:>9}{verdict:>10}{:>10}{cpu:>12}  {}",
                times(p99),
                times(iops),
                all.join(" ")
            )?;
        }
        Ok(())
    }
}

fn unavailable() -> String {
    "unavailable".to_owned()
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(unavailable, |ratio| format!("{ratio:.2}x"))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn write_stretches(formatter: &mut fmt::Formatter<'_>, stretches: &[(&str, &Stretch)]) -> fmt::Result {
    writeln!(formatter, "{:<10}{:>10}{:>12}{:>12}", "", "IOPS", "p99 ms", "longest ms")?;
    for (name, stretch) in stretches {
        let milliseconds = |of: fn(&LatencySummary) -> f64| {
            let of = stretch.latency.as_ref().map(of);
            of.map_or_else(unavailable, |us| format!("{:.2}", us / 1000.0))
        };
        writeln!(
            formatter,
            "{name:<10}{:>10}{:>12}{:>12}",
            grouped(stretch.iops),
            milliseconds(|latency| latency.p99_us),
            milliseconds(|latency| latency.max_us)
        )?;
    }
    Ok(())
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "Machine   {}", self.machine)?;
        writeln!(formatter, "Date      {}", self.date)?;
        writeln!(
            formatter,
            "Setup     3 nodes on this machine, 3 replicas, {DRIVES} loop devices on tmpfs, of which one is free; a volume \
             of {}\n          in many placement groups and one of {} in one",
            ByteSize(self.volume_bytes),
            ByteSize(self.single_volume_bytes)
        )?;
        writeln!(
            formatter,
            "Load      4 KiB at random, {} % reads, {} in flight; a pause is the longest time without a completed \
             operation,\n          on a volume with one placement group; the worst of {} rounds counts. `up` starts a \
             killed node again\n          after 1 s, and after twice as long each time that it ran less than a minute.\n",
            steady::READ_PERCENT,
            steady::DEPTH,
            self.rounds.catch_ups.len()
        )?;
        self.write_losses(formatter)?;
        self.write_catch_ups(formatter)?;
        self.write_backfills(formatter)?;
        self.write_scrubs(formatter)?;
        self.write_impacts(formatter)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::engine::cpu::{ProcessUsage, Usage};
    use crate::engine::histogram::Latency;
    use crate::report::Cpu;
    use crate::scenarios::Run;
    use std::path::PathBuf;

    /// A second in which every operation took as long.
    pub(crate) fn stretch(iops: f64, latency_us: f64) -> Stretch {
        let mut latency = Latency::new();
        latency.record((latency_us * 1000.0) as u64);
        let exactly = |summary| LatencySummary { p99_us: latency_us, max_us: latency_us, ..summary };
        Stretch { seconds: 1.0, iops, written_bytes: 0, latency: latency.summary().map(exactly) }
    }

    fn cpu(machine_us: Option<f64>) -> Cpu {
        let process = || ProcessUsage { label: "p".into(), pid: 7, cpu_us: None, resident_bytes: None };
        let usage = Usage {
            seconds: 1.0,
            machine_us,
            steal_us: Some(0.0),
            client: process(),
            nodes: vec![process()],
        };
        Cpu::new(&usage, 1000)
    }

    fn impact(during_iops: f64, during_us: f64) -> Impact {
        let during = stretch(during_iops, during_us);
        Impact { before: stretch(1200.0, 400.0), during, after: stretch(1000.0, 500.0) }
    }

    fn backfill(mb_per_second: f64, raw_mb_per_second: f64, clients: Option<Impact>) -> BackfillResult {
        let bytes = 1 << 30;
        let filled_s = bytes as f64 / 1e6 / mb_per_second;
        let by_raw = mb_per_second / raw_mb_per_second;
        BackfillResult { filled_s, bytes, mb_per_second, raw_mb_per_second, by_raw, clients }
    }

    fn scrub(mb_per_second: f64, clients: Impact, machine_us: Option<f64>) -> ScrubResult {
        ScrubResult {
            seconds: 10.0,
            bytes: 1 << 30,
            mb_per_second,
            found: 0,
            clients,
            cpu_during: cpu(machine_us),
            cpu_after: cpu(Some(20_000.0)),
        }
    }

    fn rounds() -> Rounds {
        let mut rounds = Rounds::default();
        for (round, loss) in (1..).zip(Loss::ALL) {
            let result = |pause_s| LossResult { pause_s, redundant_s: 10.0 * pause_s };
            let results = vec![result(0.5), result(f64::from(round))];
            rounds.losses.insert(loss.name().into(), results);
        }
        rounds.catch_ups = [3.0, 5.0]
            .map(|catch_up_s| CatchUpResult {
                catch_up_s,
                away: stretch(900.0, 600.0),
                clients: impact(800.0, 100.0 * catch_up_s),
            })
            .into();
        let idle = vec![backfill(200.0, 1600.0, None), backfill(250.0, 2500.0, None)];
        rounds.backfills.insert(Foreground::Idle.name().into(), idle);
        let loaded = vec![
            backfill(50.0, 2000.0, Some(impact(700.0, 900.0))),
            backfill(60.0, 2000.0, Some(impact(600.0, 750.0))),
        ];
        rounds.backfills.insert(Foreground::Loaded.name().into(), loaded);
        rounds.scrubs = vec![
            scrub(90.0, impact(900.0, 600.0), Some(30_000.0)),
            scrub(80.0, impact(950.0, 700.0), Some(25_000.0)),
        ];
        rounds
    }

    fn summary(rounds: Rounds) -> Summary {
        let options = Options {
            run: Run {
                millpond: PathBuf::new(),
                directory: PathBuf::new(),
                rounds: 2,
                date: "2026-01-02".into(),
            },
            volume_bytes: 512 << 20,
        };
        Summary::new(&options, rounds)
    }

    #[test]
    fn the_worst_of_all_rounds_counts_and_the_median_of_multiples() {
        let summary = summary(rounds());
        assert_eq!((summary.pause_s["primary"], summary.redundant_s["host"]), (2.0, 30.0));
        assert_eq!((summary.catch_up_s, summary.catch_up_p99_us["during"]), (Some(5.0), Some(500.0)));
        assert_eq!(summary.catch_up_p99_growth, Some(0.8));
        assert_eq!(summary.backfill_mb_per_second["idle"], 200.0);
        assert_eq!(summary.backfill_mb_per_second["loaded"], 50.0);
        assert_eq!(
            summary.backfill_by_raw["idle"], 0.1,
            "the share, not the rate: the drive was faster then"
        );
        assert_eq!(
            (summary.backfill_p99_growth, summary.backfill_p99_us["during"]),
            (Some(1.65), Some(900.0)),
            "the median of the multiples, and latencies of the round that was worst"
        );
        assert_eq!((summary.scrub_mb_per_second, summary.scrub_iops_kept), (Some(80.0), Some(0.925)));
        assert_eq!(
            (times(summary.scrub_p99_growth).as_str(), summary.scrub_p99_us["during"]),
            ("1.30x", Some(700.0))
        );
        assert_eq!(summary.scrub_cpu_growth, Some(1.375));
    }

    #[test]
    fn the_json_has_the_worst_figures_and_every_round_beside_each_other() {
        let summary = summary(rounds());
        let json = serde_json::to_value(&summary).unwrap();
        for (pointer, expected) in [
            ("/pause_s/replica", 1.0),
            ("/pause_s/primary", 2.0),
            ("/pause_s/host", 3.0),
            ("/redundant_s/host", 30.0),
            ("/catch_up_p99_us/before", 400.0),
            ("/catch_up_p99_us/after", 500.0),
            ("/backfill_mb_per_second/loaded", 50.0),
            ("/backfill_by_raw/idle", 0.1),
            ("/backfill_p99_us/before", 400.0),
            ("/scrub_p99_us/during", 700.0),
            ("/losses/host/1/pause_s", 3.0),
            ("/catch_ups/0/catch_up_s", 3.0),
            ("/backfills/idle/1/raw_mb_per_second", 2500.0),
            ("/backfills/loaded/0/clients/during/iops", 700.0),
            ("/scrubs/1/clients/during/latency/p99_us", 700.0),
            ("/scrubs/0/cpu_during/machine_us_per_operation", 30.0),
        ] {
            assert_eq!(
                json.pointer(pointer).and_then(serde_json::Value::as_f64),
                Some(expected),
                "{pointer}"
            );
        }
        assert_eq!(serde_json::from_value::<Summary>(json).unwrap(), summary);
    }

    #[test]
    fn what_could_not_be_measured_is_said_and_not_zero() {
        let mut rounds = rounds();
        rounds.scrubs = vec![scrub(90.0, impact(900.0, 600.0), None)];
        rounds.scrubs[0].clients.during.latency = None;
        let summary = summary(rounds);
        assert_eq!((summary.scrub_p99_growth, summary.scrub_cpu_growth), (None, None));
        assert_eq!(summary.scrub_p99_us["during"], None);
        assert!(summary.to_string().contains("p99 unavailable, IOPS 0.90x"), "{summary}");
        let nothing = super::tests::summary(Rounds::default());
        assert_eq!((nothing.catch_up_s, nothing.scrub_mb_per_second), (None, None));
        assert!(nothing.backfill_by_raw.is_empty() && nothing.scrub_p99_us.is_empty());
    }

    #[test]
    fn the_report_judges_pauses_and_shows_shares() {
        let mut rounds = rounds();
        rounds.losses.insert("replica".into(), vec![LossResult { pause_s: 3.5, redundant_s: 9.0 }]);
        let text = summary(rounds).to_string();
        let line =
            |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(line("replica").contains("MISSED") && line("primary").contains("met"), "{text}");
        assert!(line("idle").ends_with("250.0       2,500    10.0 %  200/1600 250/2500"), "{text}");
        assert!(line("loaded").ends_with("50.0       2,000     2.5 %  50/2000 60/2000"), "{text}");
        assert!(text.contains("round 1: a new OSD got 1GiB in 21.5 s; p99 1.80x, IOPS 0.70x"), "{text}");
        assert!(
            text.contains("round 2: a deep scrub read 1GiB of each drive in 10.0 s, 80.0 MB/s"),
            "{text}"
        );
        let words = |start: &str| line(start).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words("a new OSD is filled"),
            "a new OSD is filled 1.65x < 1.5x MISSED 0.65x - 1.80x 1.50x"
        );
        assert_eq!(words("a deep scrub"), "a deep scrub 1.30x 0.93x 1.38x 1.20x 1.40x");
        assert!(words("catching up").contains("< 1.5x met"), "{text}");
        assert!(!text.contains("DAMAGE"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn damage_that_a_scrub_found_is_shouted() {
        let mut rounds = rounds();
        rounds.scrubs[1].found = 3;
        assert!(summary(rounds).to_string().contains("DAMAGE: it found 3 blocks"));
    }
}
