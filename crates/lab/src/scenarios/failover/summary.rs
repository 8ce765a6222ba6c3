//! What a run found, as it is printed and as it is written to a file.

use super::backfill::{BackfillResult, FOREGROUNDS, LOADED};
use super::loss::{CatchUpResult, LOSSES, Loss, LossResult};
use super::scrub::ScrubResult;
use super::{AWAY_TIME, DRIVES};
use crate::engine::histogram::LatencySummary;
use crate::report::{figure, grouped, number, table};
use crate::scenarios::steady::{self, Impact, Stretch};
use crate::statistics::median;
use base::units::ByteSize;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What each round found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rounds {
    /// By the name of the loss.
    pub losses: BTreeMap<&'static str, Vec<LossResult>>,
    /// Nodes that were away.
    pub catch_ups: Vec<CatchUpResult>,
    /// New OSDs, by what clients did meanwhile.
    pub backfills: BTreeMap<&'static str, Vec<BackfillResult>>,
    /// Deep scrubs of everything.
    pub scrubs: Vec<ScrubResult>,
}

impl Rounds {
    fn beside_catch_ups(&self) -> Vec<&Impact> {
        self.catch_ups.iter().map(|result| &result.clients).collect()
    }

    fn beside_backfills(&self) -> Vec<&Impact> {
        self.backfills.values().flatten().filter_map(|result| result.clients.as_ref()).collect()
    }

    fn beside_scrubs(&self) -> Vec<&Impact> {
        self.scrubs.iter().map(|result| &result.clients).collect()
    }
}

/// Everything that a run found. What is below one name is the worst of all rounds, each figure by itself; of what is told
/// as a multiple of another stretch of time it is the median: what else the machine does falls into one stretch or the
/// other, and the worst of several rounds would tell of that.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Bytes of the volume of many groups.
    pub volume_bytes: u64,
    /// Bytes of the volume of one group.
    pub single_volume_bytes: u64,
    /// The worst pause of all rounds, by the name of the loss, in seconds.
    pub pause_s: BTreeMap<&'static str, f64>,
    /// The longest time to full redundancy, by the name of the loss, in seconds.
    pub redundant_s: BTreeMap<&'static str, f64>,
    /// The longest catching up, in seconds.
    pub catch_up_s: Option<f64>,
    /// The latency that 99 % of the operations did not exceed, while a node caught up as a multiple of after,
    /// the median.
    pub catch_up_p99_growth: Option<f64>,
    /// That latency before, during and after it, of the round where it grew most, in microseconds.
    pub catch_up_p99_us: BTreeMap<&'static str, Option<f64>>,
    /// How fast the slowest new OSD was filled, by what clients did meanwhile, in millions of bytes a second.
    pub backfill_mb_per_second: BTreeMap<&'static str, f64>,
    /// The lowest share of what the drive itself took, by what clients did meanwhile.
    pub backfill_by_raw: BTreeMap<&'static str, f64>,
    /// The latency that 99 % of the operations did not exceed, while an OSD was filled as a multiple of after,
    /// the median.
    pub backfill_p99_growth: Option<f64>,
    /// That latency before, during and after it, of the round where it grew most, in microseconds.
    pub backfill_p99_us: BTreeMap<&'static str, Option<f64>>,
    /// How fast the slowest scrub read each drive, in millions of bytes a second.
    pub scrub_mb_per_second: Option<f64>,
    /// Operations a second during a scrub as a multiple of after, the median.
    pub scrub_iops_kept: Option<f64>,
    /// The latency that 99 % of the operations did not exceed, during a scrub as a multiple of after, the median.
    pub scrub_p99_growth: Option<f64>,
    /// That latency before, during and after it, of the round where it grew most, in microseconds.
    pub scrub_p99_us: BTreeMap<&'static str, Option<f64>>,
    /// CPU time of the machine per operation during a scrub as a multiple of after, the median.
    pub scrub_cpu_growth: Option<f64>,
    /// Every round.
    #[serde(flatten)]
    pub rounds: Rounds,
}

/// The latency that 99 % of a client's operations do not exceed grows by less than half beside recovery.
const RECOVERY_P99_GROWTH_MUST: f64 = 1.5;

/// `figure` of the results below each name, the one that `worse` picks of every two.
fn worst_by_name<T>(
    results: &BTreeMap<&'static str, Vec<T>>,
    figure: fn(&T) -> f64,
    worse: fn(f64, f64) -> f64,
) -> BTreeMap<&'static str, f64> {
    let worst = |results: &Vec<T>| results.iter().map(figure).reduce(worse);
    results.iter().filter_map(|(name, results)| Some((*name, worst(results)?))).collect()
}

/// Before, during and after, of where the tail grew most.
fn worst_p99_us(impacts: &[&Impact]) -> BTreeMap<&'static str, Option<f64>> {
    let growth = |impact: &Impact| impact.p99_growth().unwrap_or(0.0);
    let worst = impacts.iter().max_by(|one, other| growth(one).total_cmp(&growth(other)));
    let stretches = worst.into_iter().flat_map(|impact| impact.stretches());
    stretches.map(|(name, stretch)| (name, stretch.latency.map(|latency| latency.p99_us))).collect()
}

fn median_of(impacts: &[&Impact], figure: fn(&Impact) -> Option<f64>) -> Option<f64> {
    median(impacts.iter().filter_map(|impact| figure(impact)).collect())
}

impl Summary {
    pub fn new(volume_bytes: u64, single_volume_bytes: u64, rounds: Rounds) -> Summary {
        let Rounds { losses, catch_ups, backfills, scrubs } = &rounds;
        let beside_catch_ups = rounds.beside_catch_ups();
        let beside_backfills = rounds.beside_backfills();
        let beside_scrubs = rounds.beside_scrubs();
        Summary {
            volume_bytes,
            single_volume_bytes,
            pause_s: worst_by_name(losses, |result| result.pause_s, f64::max),
            redundant_s: worst_by_name(losses, |result| result.redundant_s, f64::max),
            catch_up_s: catch_ups.iter().map(|result| result.catch_up_s).reduce(f64::max),
            catch_up_p99_growth: median_of(&beside_catch_ups, Impact::p99_growth),
            catch_up_p99_us: worst_p99_us(&beside_catch_ups),
            backfill_mb_per_second: worst_by_name(backfills, |result| result.mb_per_second, f64::min),
            backfill_by_raw: worst_by_name(backfills, |result| result.by_raw, f64::min),
            backfill_p99_growth: median_of(&beside_backfills, Impact::p99_growth),
            backfill_p99_us: worst_p99_us(&beside_backfills),
            scrub_mb_per_second: scrubs.iter().map(|result| result.mb_per_second).reduce(f64::min),
            scrub_iops_kept: median_of(&beside_scrubs, Impact::iops_kept),
            scrub_p99_growth: median_of(&beside_scrubs, Impact::p99_growth),
            scrub_p99_us: worst_p99_us(&beside_scrubs),
            scrub_cpu_growth: median(scrubs.iter().filter_map(ScrubResult::cpu_growth).collect()),
            rounds,
        }
    }

    fn write_losses(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |loss: &Loss| {
            let results = self.rounds.losses.get(loss.name)?;
            let pause = self.pause_s.get(loss.name).copied();
            Some(vec![
                loss.name.to_owned(),
                number(pause, 2, ""),
                format!("< {:.0}", loss.must_s),
                verdict(pause, Some(loss.must_s)),
                number(self.redundant_s.get(loss.name).copied(), 1, ""),
                joined(results, |result| format!("{:.2}", result.pause_s)),
            ])
        };
        let headings = ["lost", ">pause s", ">must", "", ">redundant s", "all pauses, s"];
        formatter.write_str(&table::render(&headings, LOSSES.iter().filter_map(row)))?;
        LOSSES.iter().try_for_each(|loss| writeln!(formatter, "  {:<8}{}", loss.name, loss.explained))
    }

    fn write_backfills(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings = ["filled", ">longest s", ">MB/s", ">drive MB/s", ">share", "all MB/s by the drive's"];
        let row = |(name, explained): (&str, &str)| {
            let results = self.rounds.backfills.get(name)?;
            let worst = results.iter().min_by(|one, other| one.by_raw.total_cmp(&other.by_raw))?;
            Some(vec![
                explained.to_owned(),
                number(results.iter().map(|result| result.filled_s).reduce(f64::max), 1, ""),
                format!("{:.1}", worst.mb_per_second),
                grouped(worst.raw_mb_per_second),
                format!("{:.1} %", worst.by_raw * 100.0),
                joined(results, |one| format!("{:.0}/{:.0}", one.mb_per_second, one.raw_mb_per_second)),
            ])
        };
        write!(formatter, "\n{}", table::render(&headings, FOREGROUNDS.into_iter().filter_map(row)))
    }

    /// Every round of what clients noticed.
    fn write_rounds(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (round, result) in (1..).zip(&self.rounds.catch_ups) {
            let [before, during, after] = result.clients.stretches();
            let what = format!(
                "caught up in {:.1} s after {} s away, in which clients wrote {}",
                result.catch_up_s,
                AWAY_TIME.as_secs(),
                ByteSize(result.away.written_bytes)
            );
            let stretches = [before, ("away", &result.away), during, after];
            write_round(formatter, round, &what, &result.clients, &stretches)?;
        }
        for (round, result) in (1..).zip(self.rounds.backfills.get(LOADED).into_iter().flatten()) {
            let Some(clients) = &result.clients else { continue };
            let what = format!("a new OSD got {} in {:.1} s", ByteSize(result.bytes), result.filled_s);
            write_round(formatter, round, &what, clients, &clients.stretches())?;
        }
        for (round, result) in (1..).zip(&self.rounds.scrubs) {
            let what = format!(
                "a deep scrub read {} of each drive in {:.1} s, {:.1} MB/s",
                ByteSize(result.bytes),
                result.seconds,
                result.mb_per_second
            );
            write_round(formatter, round, &what, &result.clients, &result.clients.stretches())?;
            if result.found > 0 {
                writeln!(
                    formatter,
                    "DAMAGE: it found {} blocks damaged or different, and nothing did that on purpose",
                    result.found
                )?;
            }
            let rows = [("during", &result.cpu_during), ("after", &result.cpu_after)].map(|(name, cpu)| {
                vec![
                    name.to_owned(),
                    figure(cpu.machine_us_per_operation),
                    figure(cpu.nodes_us_per_operation),
                    number(cpu.steal_seconds, 1, ""),
                ]
            });
            formatter.write_str(&table::render(&["CPU", ">machine µs", ">nodes µs", ">steal s"], rows))?;
        }
        Ok(())
    }

    fn write_impacts(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings =
            ["median, during by after", ">p99", ">must", "", ">IOPS", ">machine µs", "p99 of all rounds"];
        let must = Some(RECOVERY_P99_GROWTH_MUST);
        // What is not measured is not a figure that could not be.
        let scrub_cpu = self.scrub_cpu_growth.map_or("-".to_owned(), |cpu| times(Some(cpu)));
        let rows = [
            ("catching up", must, self.rounds.beside_catch_ups(), "-"),
            ("a new OSD is filled", must, self.rounds.beside_backfills(), "-"),
            ("a deep scrub", None, self.rounds.beside_scrubs(), scrub_cpu.as_str()),
        ];
        let row = |(name, must, impacts, cpu): (&str, Option<f64>, Vec<&Impact>, &str)| {
            let p99 = median_of(&impacts, Impact::p99_growth);
            vec![
                name.to_owned(),
                times(p99),
                must.map_or_else(String::new, |must| format!("< {must:.1}x")),
                verdict(p99, must),
                times(median_of(&impacts, Impact::iops_kept)),
                cpu.to_owned(),
                joined(&impacts, |impact| times(impact.p99_growth())),
            ]
        };
        write!(formatter, "\n{}", table::render(&headings, rows.map(row)))
    }
}

fn times(ratio: Option<f64>) -> String {
    number(ratio, 2, "x")
}

fn verdict(value: Option<f64>, must: Option<f64>) -> String {
    let is_met = value.zip(must).map(|(value, must)| value < must);
    is_met.map_or("", |is_met| if is_met { "met" } else { "MISSED" }).to_owned()
}

fn joined<T>(all: &[T], shown: impl Fn(&T) -> String) -> String {
    all.iter().map(shown).collect::<Vec<_>>().join(" ")
}

fn write_round(
    formatter: &mut fmt::Formatter<'_>,
    round: u32,
    what: &str,
    clients: &Impact,
    stretches: &[(&str, &Stretch)],
) -> fmt::Result {
    let (p99, iops) = (times(clients.p99_growth()), times(clients.iops_kept()));
    writeln!(formatter, "\nround {round}: {what}; p99 {p99}, IOPS {iops}")?;
    let row = |(name, stretch): &(&str, &Stretch)| {
        let milliseconds =
            |of: fn(LatencySummary) -> f64| number(stretch.latency.map(|us| of(us) / 1000.0), 2, "");
        vec![
            (*name).to_owned(),
            grouped(stretch.iops),
            milliseconds(|latency| latency.p99_us),
            milliseconds(|latency| latency.max_us),
        ]
    };
    let headings = ["clients", ">IOPS", ">p99 ms", ">longest ms"];
    formatter.write_str(&table::render(&headings, stretches.iter().map(row)))
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
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
             killed node again\n          after 1 s, and after twice as long each time that it ran less than a minute. A new \
             OSD gets its\n          share of everything.\n",
            steady::READ_PERCENT,
            steady::DEPTH,
            self.rounds.catch_ups.len()
        )?;
        self.write_losses(formatter)?;
        self.write_backfills(formatter)?;
        self.write_rounds(formatter)?;
        self.write_impacts(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cpu::{ProcessUsage, Usage};
    use crate::report::Cpu;
    use crate::scenarios::steady::tests::stretch;

    fn cpu(machine_us: Option<f64>) -> Cpu {
        let process = || ProcessUsage { label: "p".into(), pid: 7, cpu_us: None, resident_bytes: None };
        let usage = Usage {
            roles: BTreeMap::new(),
            loop_completions: None,
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
        for (round, loss) in (1..).zip(&LOSSES) {
            let result = |pause_s| LossResult { pause_s, redundant_s: 10.0 * pause_s };
            let results = vec![result(0.5), result(f64::from(round))];
            rounds.losses.insert(loss.name, results);
        }
        rounds.catch_ups = [3.0, 5.0]
            .map(|catch_up_s| CatchUpResult {
                catch_up_s,
                away: stretch(900.0, 600.0),
                clients: impact(800.0, 100.0 * catch_up_s),
            })
            .into();
        let idle = vec![backfill(200.0, 1600.0, None), backfill(250.0, 2500.0, None)];
        rounds.backfills.insert("idle", idle);
        let loaded = vec![
            backfill(50.0, 2000.0, Some(impact(700.0, 900.0))),
            backfill(60.0, 2000.0, Some(impact(600.0, 750.0))),
        ];
        rounds.backfills.insert(LOADED, loaded);
        rounds.scrubs = vec![
            scrub(90.0, impact(900.0, 600.0), Some(30_000.0)),
            scrub(80.0, impact(950.0, 700.0), Some(25_000.0)),
        ];
        rounds
    }

    fn summary(rounds: Rounds) -> Summary {
        Summary::new(512 << 20, 64 << 20, rounds)
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
        let json = serde_json::to_value(summary(rounds())).unwrap();
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
        let nothing = self::summary(Rounds::default());
        assert_eq!((nothing.catch_up_s, nothing.scrub_mb_per_second), (None, None));
        assert!(nothing.backfill_by_raw.is_empty() && nothing.scrub_p99_us.is_empty());
    }

    #[test]
    fn the_report_judges_pauses_and_shows_shares() {
        let mut rounds = rounds();
        rounds.losses.insert("replica", vec![LossResult { pause_s: 3.5, redundant_s: 9.0 }]);
        let text = summary(rounds).to_string();
        let line =
            |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned();
        assert!(line("replica").contains("MISSED") && line("primary").contains("met"), "{text}");
        assert!(text.contains("round 1: a new OSD got 1GiB in 21.5 s; p99 1.80x, IOPS 0.70x"), "{text}");
        assert!(
            text.contains("round 2: a deep scrub read 1GiB of each drive in 10.0 s, 80.0 MB/s"),
            "{text}"
        );
        let words = |start: &str| line(start).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words("without clients"), "without clients 5.4 250.0 2,500 10.0 % 200/1600 250/2500");
        assert_eq!(words("under the load"), "under the load 21.5 50.0 2,000 2.5 % 50/2000 60/2000");
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
