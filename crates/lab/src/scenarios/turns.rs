//! What `make bench-encryption` and `make bench-against` measure: two variants of one thing in turns, by the same jobs: what
//! differs, by how much, and how surely.

use super::trials::{self, FIGURES, Trial};
use super::{VOLUME, cluster_with_volume};
use crate::engine::plan::{Mode, TargetName, parse_seconds};
use crate::report::{figure, number, table};
use crate::statistics::{Ratio, Verdict};
use crate::testbed::{Cluster, Testbed, is_settled};
use base::Encryption;
use base::units::ByteSize;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What may be worse without being called so.
const TOLERANCE: f64 = 0.02;
/// How long a cluster may take to serve again after a switch.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// How long connections may be made anew after a switch.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What is measured of two variants.
#[derive(clap::Args, Clone, Debug)]
pub struct Turns {
    /// How often each is measured; fewer than six have no interval
    #[arg(long, value_name = "COUNT", default_value_t = 6, value_parser = super::rounds())]
    rounds: u32,

    /// How long each job is measured, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    runtime: Duration,

    /// The volume's size
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    volume_size: ByteSize,

    /// Measure only the cases whose names begin so, as "randwrite" or "write 256KiB"
    #[arg(long, value_name = "CASE", default_value = "", value_parser = parse_case)]
    only: String,
}

/// The begin of a case's name.
fn parse_case(text: &str) -> Result<String, String> {
    let names: Vec<String> = cases().iter().map(Trial::name).collect();
    if names.iter().any(|name| name.starts_with(text)) {
        return Ok(text.to_owned());
    }
    Err(format!("there is no such case; these are there: {}", names.join(", ")))
}

/// How two builds are compared.
#[derive(clap::Args, Clone, Debug)]
pub struct Against {
    /// The other build of millpond
    #[arg(value_name = "MILLPOND")]
    base: PathBuf,

    #[command(flatten)]
    turns: Turns,
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
struct Summary {
    volume_bytes: u64,
    /// What the variants are called.
    variants: [&'static str; 2],
    cases: Vec<Trial>,
}

/// The same jobs on one cluster, its traffic in plain and encrypted.
pub fn encryption(testbed: &Testbed, turns: &Turns) -> anyhow::Result<impl fmt::Display + Serialize> {
    super::say("filling the drives and a volume");
    let (_drives, cluster) =
        cluster_with_volume(testbed, testbed.millpond(), "cluster", turns.volume_size.0)?;
    let mut summary = Summary::new(turns, ["plain", "encrypted"]);
    summary.measure(turns, turns.rounds, [&cluster, &cluster], |variant| {
        let encryption = [Encryption::Off, Encryption::On][variant];
        cluster.command(&["cluster", "encryption", &encryption.to_string()])?;
        std::thread::sleep(SETTLE_TIME);
        cluster.wait_for_pgs("encryption was switched", SETTLE_LIMIT, POLL_INTERVAL, is_settled).map(drop)
    })?;
    Ok(summary)
}

/// Two builds of `millpond`, each with a cluster of its own. Both run all the time, on drives of the same memory; the one whose
/// turn it is not is idle. So both find the same machine.
pub fn against(testbed: &Testbed, options: &Against) -> anyhow::Result<impl fmt::Display + Serialize> {
    let turns = &options.turns;
    let builds = [std::path::absolute(&options.base)?, testbed.millpond().to_owned()];
    let mut summary = Summary::new(turns, ["base", "this"]);
    // Who is made first has other memory and other devices than who comes second, which is worth some percent for as long as
    // both run: each is first for half of the rounds.
    for (first, rounds) in [(0, turns.rounds.div_ceil(2)), (1, turns.rounds / 2)] {
        super::say("filling the drives and the volumes of both builds");
        let make = |variant: usize| {
            let name = format!("{}-{first}", summary.variants[variant]);
            cluster_with_volume(testbed, &builds[variant], &name, turns.volume_size.0)
        };
        let mut made = [make(first)?, make(1 - first)?];
        made.rotate_left(first);
        let [(_, base), (_, this)] = &made;
        summary.measure(turns, rounds, [base, this], |_| Ok(()))?;
    }
    Ok(summary)
}

/// What virtual machines do, and what backups do.
fn cases() -> Vec<Trial> {
    let small = [64, 16, 1].map(|depth| [(Mode::RandomRead, depth), (Mode::RandomWrite, depth)]).concat();
    let small = small.into_iter().map(|(mode, depth)| Trial::new(mode, 4 << 10, depth, 2));
    small.chain([Mode::Read, Mode::Write].map(|mode| Trial::new(mode, 256 << 10, 8, 2))).collect()
}

impl Summary {
    fn new(turns: &Turns, variants: [&'static str; 2]) -> Summary {
        let mut cases = cases();
        cases.retain(|case| case.name().starts_with(&turns.only));
        Summary { volume_bytes: turns.volume_size.0, variants, cases }
    }

    /// Measures so many rounds more.
    fn measure(
        &mut self,
        turns: &Turns,
        rounds: u32,
        clusters: [&Cluster; 2],
        become_variant: impl Fn(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        trials::measure(rounds, &self.variants, &mut self.cases, |variant, trial, round| {
            become_variant(variant)?;
            let target = TargetName::Volume(VOLUME.to_owned());
            clusters[variant].bench(&trial.job(target, turns.runtime, round))
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.variants;
        let rounds = self.cases.first().map_or(0, |case| case.samples[0].len());
        let volume = ByteSize(self.volume_bytes);
        writeln!(
            formatter,
            "Volume    {volume}; medians of {rounds} rounds, and {second} by {first} with its 95 % interval\n"
        )?;
        let headings = [first, second].map(|variant| format!(">{variant}"));
        let headings = ["case", "figure", &headings[0], &headings[1], ">ratio", ">interval", ""];
        let mut rows = Vec::new();
        for case in &self.cases {
            let mut name = case.name();
            for (heading, of, more_is_better) in FIGURES {
                let ratio = case.ratio(1, 0, of);
                let interval = ratio.and_then(|ratio| ratio.interval);
                let verdict = match ratio.map(|ratio| ratio.verdict(TOLERANCE)) {
                    None | Some(Verdict::NoDifferenceShown) => "",
                    Some(verdict) if (verdict == Verdict::Above) == more_is_better => "better",
                    Some(_) => "WORSE",
                };
                rows.push(vec![
                    std::mem::take(&mut name),
                    heading.to_owned(),
                    figure(case.median(0, of)),
                    figure(case.median(1, of)),
                    number(ratio.map(|Ratio { estimate, .. }| estimate), 2, ""),
                    interval.map_or("-".to_owned(), |[low, high]| format!("{low:.2} to {high:.2}")),
                    verdict.to_owned(),
                ]);
            }
        }
        formatter.write_str(&table::render(&headings, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::jobs::Sample;

    #[test]
    fn cases_are_chosen_by_the_begin_of_their_names() {
        let chosen = |only: &str| {
            let only = parse_case(only).unwrap();
            let turns = Turns { rounds: 1, runtime: Duration::ZERO, volume_size: ByteSize(1 << 30), only };
            Summary::new(&turns, ["base", "this"]).cases.iter().map(Trial::name).collect::<Vec<_>>()
        };
        assert_eq!(chosen("").len(), cases().len());
        assert_eq!(chosen("write 256"), ["write 256KiB depth 8"]);
        assert_eq!(
            chosen("randread"),
            ["randread 4KiB depth 64", "randread 4KiB depth 16", "randread 4KiB depth 1"]
        );
        let told = parse_case("4KiB").unwrap_err();
        assert!(told.contains("randwrite 4KiB depth 1, read 256KiB"), "{told}");
    }

    #[test]
    fn what_is_surely_worse_or_better_is_called_so() {
        let mut cases = cases();
        let run = |variant: usize, _: &Trial, round: u32| {
            let drift = f64::from(round);
            let nodes_us_per_operation = Some([10.0, 9.0][variant] * drift);
            let iops = [1000.0, 900.0][variant] / drift;
            Ok(Sample { iops, nodes_us_per_operation, ..Sample::default() })
        };
        trials::measure(6, &["base", "this"], &mut cases, run).unwrap();
        let summary = Summary { volume_bytes: 1 << 30, variants: ["base", "this"], cases };
        let text = summary.to_string();
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("randread 4KiB depth 64").ends_with("0.90  0.90 to 0.90  WORSE"), "{text}");
        assert!(line("nodes µs").ends_with("0.90  0.90 to 0.90  better"), "{text}");
        assert!(line("average µs").contains("unavailable") && line("average µs").ends_with(" -"), "{text}");
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!((&json["cases"][0]["mode"], &json["cases"][7]["depth"]), (&"randread".into(), &8.into()));
        assert_eq!(json["cases"][0]["samples"][1][0]["iops"], 900.0);
    }
}
