//! `millpond placement simulate`: how data would lie on a cluster, and what would move when it changes.
//!
//! It calls what the manager calls. Nothing is stored, and no cluster needs to be there.

use crate::Usage;
use crate::host::access;
use crate::output::{self, table};
use anyhow::bail;
use base::map::{ClusterMap, DeviceClass, FailureDomain, PlacementRule};
use base::units::ByteSize;
use base::{OsdId, PoolId};
use clap::Args;
use placement::{Candidate, PG_COUNT_MAX, Place, Spread, Survey, fair_replicas, moved, place, retarget};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

/// What the help ends with.
pub const EXAMPLES: &str = "\
Of each change is shown what it does to the placement that there was before any. \"Ideal\" is what has to move: what was
lost, or the fair share of what is new. A replica more or less than its share, or 5 % of it, is within bounds for an OSD.

Examples:
  millpond placement simulate                            339 hosts of 24 OSDs, 65,536 groups of 3 copies
  millpond placement simulate --add-host --remove-host   and what a host that comes or goes moves
  millpond placement simulate --hosts 12 --osds-per-host 8 --racks 4 --failure-domain rack --pgs 2048 --remove-rack
  millpond placement simulate --from-cluster --pgs 256 --add-osd --json";

const OSDS_MAX: u32 = 100_000;
const POOL: PoolId = PoolId(1);

/// What is simulated.
#[derive(Args, Clone, Debug)]
pub struct SimulateArguments {
    /// Machines
    #[arg(long, value_name = "COUNT", default_value_t = 339, value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// OSDs on each
    #[arg(long, value_name = "COUNT", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..))]
    osds_per_host: u32,
    /// Racks that the hosts stand in, by turns; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    racks: u32,
    /// The size of an OSD
    #[arg(long, value_name = "SIZE", default_value = "8TiB")]
    osd_bytes: ByteSize,
    /// By turns, hosts have OSDs of this size, of half and of twice of it
    #[arg(long)]
    mixed_sizes: bool,
    /// Take the hosts and OSDs of the running cluster instead
    #[arg(long, conflicts_with_all = ["hosts", "osds_per_host", "racks", "osd_bytes", "mixed_sizes"])]
    from_cluster: bool,
    /// Of these, only OSDs on such drives: nvme, ssd or hdd
    #[arg(long, value_name = "CLASS", requires = "from_cluster")]
    device_class: Option<DeviceClass>,
    /// Placement groups
    #[arg(long, value_name = "COUNT", default_value_t = PG_COUNT_MAX,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(PG_COUNT_MAX)))]
    pgs: u32,
    /// Copies of each
    #[arg(long, value_name = "COPIES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=16))]
    copies: u32,
    /// What no two copies of a group lie in, if there are enough: osd, host, rack, zone or region
    #[arg(long, value_name = "LEVEL", default_value_t)]
    failure_domain: FailureDomain,
    /// Then add a host like the first
    #[arg(long)]
    add_host: bool,
    /// Then take a host away
    #[arg(long)]
    remove_host: bool,
    /// Then add an OSD like the first to its host
    #[arg(long)]
    add_osd: bool,
    /// Then take an OSD away
    #[arg(long)]
    remove_osd: bool,
    /// Then take a rack away
    #[arg(long)]
    remove_rack: bool,
    /// Then have one OSD hold half
    #[arg(long)]
    reweight_osd: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How data lies: `placement simulate --json` prints this.
#[derive(Clone, Debug, Serialize)]
struct Simulation {
    osds: usize,
    hosts: usize,
    racks: usize,
    bytes: u64,
    pgs: u32,
    copies: u32,
    failure_domain: FailureDomain,
    /// Of the placement.
    seconds: f64,
    placed: Survey,
    /// Each of what was placed.
    changes: Vec<Change>,
}

/// What a change of the cluster does.
#[derive(Clone, Debug, Serialize)]
struct Change {
    change: String,
    /// Replicas that are copied.
    moved: usize,
    /// Those that have to be.
    ideal: f64,
    /// The one by the other, if there is something to move.
    ratio: Option<f64>,
    seconds: f64,
    /// Groups whose preferred primary is another.
    primaries_changed: usize,
    after: Survey,
}

/// Performs `placement simulate`.
pub fn run(arguments: &SimulateArguments, directory: &Path) -> anyhow::Result<()> {
    let simulation = simulate(arguments, &candidates(arguments, directory)?)?;
    output::show(arguments.json, &simulation, || simulation.render())
}

fn candidates(arguments: &SimulateArguments, directory: &Path) -> anyhow::Result<Vec<Candidate>> {
    if !arguments.from_cluster {
        return made_up(arguments);
    }
    let map: ClusterMap = access::with_desk(directory, async |desk| Ok(desk.map().await?))?;
    let rule =
        PlacementRule { failure_domain: arguments.failure_domain, device_class: arguments.device_class };
    Ok(Candidate::of_rule(&map, &rule))
}

fn made_up(arguments: &SimulateArguments) -> anyhow::Result<Vec<Candidate>> {
    let SimulateArguments { hosts, osds_per_host, racks, osd_bytes, .. } = *arguments;
    if hosts.checked_mul(osds_per_host).is_none_or(|osds| osds > OSDS_MAX) {
        bail!(Usage(format!(
            "--hosts {hosts} of --osds-per-host {osds_per_host} are more than {OSDS_MAX} OSDs"
        )));
    }
    if !(ByteSize(4096)..=ByteSize(1 << 50)).contains(&osd_bytes) {
        bail!(Usage(format!("--osd-bytes {osd_bytes} is no size of a drive; choose 4KiB to 1PiB")));
    }
    let osd = |number: u32| {
        let host = number / osds_per_host;
        let weight = match host % 3 {
            1 if arguments.mixed_sizes => osd_bytes.0 / 2,
            2 if arguments.mixed_sizes => osd_bytes.0 * 2,
            _ => osd_bytes.0,
        };
        let rack = (racks > 0).then(|| host % racks);
        Candidate { osd: OsdId(number), weight, place: Place { rack, host, ..Place::default() } }
    };
    Ok((0..hosts * osds_per_host).map(osd).collect())
}

fn simulate(arguments: &SimulateArguments, candidates: &[Candidate]) -> anyhow::Result<Simulation> {
    let SimulateArguments { pgs, copies, failure_domain, .. } = *arguments;
    if candidates.len() < copies as usize {
        bail!(Usage(format!("--copies {copies} are more than the {} OSDs that there are", candidates.len())));
    }
    let started = Instant::now();
    let targets = place(POOL, pgs, copies, failure_domain, candidates);
    let seconds = started.elapsed().as_secs_f64();
    let mut simulation = Simulation {
        osds: candidates.len(),
        hosts: Candidate::named_domains(candidates, FailureDomain::Host),
        racks: Candidate::named_domains(candidates, FailureDomain::Rack),
        bytes: candidates.iter().map(|one| one.weight).sum(),
        pgs,
        copies,
        failure_domain,
        seconds,
        placed: Survey::of(copies, failure_domain, &targets, candidates),
        changes: Vec::new(),
    };
    for (change, after) in changes(arguments, candidates)? {
        let started = Instant::now();
        let new = retarget(POOL, copies, failure_domain, &targets, &after);
        let seconds = started.elapsed().as_secs_f64();
        let count = moved(&targets, &new);
        let ideal = what_must_move(arguments, &targets, candidates, &after);
        let is_other = |(before, after): &(&Vec<OsdId>, &Vec<OsdId>)| before.first() != after.first();
        simulation.changes.push(Change {
            change,
            moved: count,
            ideal,
            ratio: (ideal > 0.0).then(|| count as f64 / ideal),
            seconds,
            primaries_changed: targets.iter().zip(&new).filter(is_other).count(),
            after: Survey::of(copies, failure_domain, &new, &after),
        });
    }
    Ok(simulation)
}

/// The changes that were asked for, each with what there is after it.
fn changes(
    arguments: &SimulateArguments,
    candidates: &[Candidate],
) -> anyhow::Result<Vec<(String, Vec<Candidate>)>> {
    let first = candidates[0];
    // Neither the first nor the last: nothing is special about it.
    let middle = candidates[candidates.len() / 2];
    let next_osd = candidates.iter().map(|one| one.osd.0 + 1).max().unwrap_or(0);
    let next_host = candidates.iter().map(|one| one.place.host + 1).max().unwrap_or(0);
    let without = |is_gone: &dyn Fn(&Candidate) -> bool| -> Vec<Candidate> {
        candidates.iter().filter(|one| !is_gone(one)).copied().collect()
    };
    let mut changes = Vec::new();
    if arguments.add_host {
        let like = candidates.iter().filter(|one| one.place.host == first.place.host);
        let place = Place { host: next_host, ..first.place };
        let new = (next_osd..).zip(like).map(|(osd, one)| Candidate { osd: OsdId(osd), place, ..*one });
        changes.push(("a host comes".to_owned(), candidates.iter().copied().chain(new).collect()));
    }
    if arguments.remove_host {
        changes.push(("a host goes".to_owned(), without(&|one| one.place.host == middle.place.host)));
    }
    if arguments.add_osd {
        let new = Candidate { osd: OsdId(next_osd), ..first };
        changes.push(("an OSD comes".to_owned(), candidates.iter().copied().chain([new]).collect()));
    }
    if arguments.remove_osd {
        changes.push(("an OSD goes".to_owned(), without(&|one| one.osd == middle.osd)));
    }
    if arguments.remove_rack {
        if !middle.place.is_named(FailureDomain::Rack) {
            bail!(Usage("--remove-rack: the hosts stand in no racks; give --racks".to_owned()));
        }
        let rack = |one: &Candidate| one.place.domain(FailureDomain::Rack, one.osd);
        changes.push(("a rack goes".to_owned(), without(&|one| rack(one) == rack(&middle))));
    }
    if arguments.reweight_osd {
        let half = |one: &Candidate| match one.osd == middle.osd {
            true => Candidate { weight: one.weight.div_ceil(2), ..*one },
            false => *one,
        };
        changes.push(("an OSD counts half".to_owned(), candidates.iter().map(half).collect()));
    }
    if changes.iter().any(|(_, after)| after.is_empty()) {
        bail!(Usage("the change would leave no OSD; give more --hosts or --racks".to_owned()));
    }
    Ok(changes)
}

/// The replicas that have to move: those on OSDs that are gone, the share of those that are new, and what is too much
/// for those that count less.
fn what_must_move(
    arguments: &SimulateArguments,
    targets: &[Vec<OsdId>],
    before: &[Candidate],
    after: &[Candidate],
) -> f64 {
    let SimulateArguments { pgs, copies, failure_domain, .. } = *arguments;
    let weights =
        |of: &[Candidate]| -> BTreeSet<(OsdId, u64)> { of.iter().map(|one| (one.osd, one.weight)).collect() };
    let (was, is) = (weights(before), weights(after));
    let ids = |of: &BTreeSet<(OsdId, u64)>| -> BTreeSet<OsdId> { of.iter().map(|(osd, _)| *osd).collect() };
    let (were, are) = (ids(&was), ids(&is));
    let held = |osd: &OsdId| targets.iter().flatten().filter(|one| *one == osd).count() as f64;
    let lost: f64 = targets.iter().flatten().filter(|osd| !are.contains(osd)).count() as f64;
    let fair = fair_replicas(copies, failure_domain, pgs, after);
    let of_change = |(one, fair): (&Candidate, f64)| match () {
        () if !were.contains(&one.osd) => fair,
        () if !was.contains(&(one.osd, one.weight)) => (held(&one.osd) - fair).max(0.0),
        () => 0.0,
    };
    lost + after.iter().zip(fair).map(of_change).sum::<f64>()
}

impl Simulation {
    fn render(&self) -> String {
        let Simulation { osds, hosts, racks, pgs, copies, failure_domain, seconds, placed, .. } = self;
        let in_racks = if *racks > 0 { format!(" in {racks} racks") } else { String::new() };
        let mut text = format!(
            "{pgs} placement groups of {copies} copies on {osds} OSDs of {hosts} hosts{in_racks}, {}; copies in distinct \
             {failure_domain}s\nplaced in {seconds:.2} s; groups that break the rule: {}\n\n",
            ByteSize(self.bytes),
            placed.violations
        );
        let headings = ["OF AN OSD", ">LEAST", ">MEAN", ">MOST", "OF ITS SHARE", ">OFF AT MOST", ">BEYOND"];
        let rows = [spread_row("replicas", placed.replicas), spread_row("primaries", placed.primaries)];
        text.push_str(&table::render(&headings, rows));
        if self.changes.is_empty() {
            return text;
        }
        let row = |change: &Change| {
            let (replicas, primaries) = (change.after.replicas, change.after.primaries);
            vec![
                change.change.clone(),
                change.moved.to_string(),
                format!("{:.0}", change.ideal),
                change.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")),
                format!("{:.2}", change.seconds),
                change.primaries_changed.to_string(),
                change.after.violations.to_string(),
                format!("{} to {}", replicas.least, replicas.most),
                format!("{} to {}", primaries.least, primaries.most),
                (replicas.beyond + primaries.beyond).to_string(),
            ]
        };
        let headings = [
            "CHANGE",
            ">MOVED",
            ">IDEAL",
            ">RATIO",
            ">SECONDS",
            ">NEW PRIMARIES",
            ">RULE BROKEN",
            "REPLICAS",
            "PRIMARIES",
            ">BEYOND",
        ];
        text.push('\n');
        text.push_str(&table::render(&headings, self.changes.iter().map(row)));
        text
    }
}

fn spread_row(what: &str, spread: Spread) -> Vec<String> {
    vec![
        what.to_owned(),
        spread.least.to_string(),
        format!("{:.2}", spread.mean),
        spread.most.to_string(),
        format!("{:.1} to {:.1} %", spread.least_percent, spread.most_percent),
        format!("{:.2}", spread.off_max),
        spread.beyond.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::arguments::{Arguments, Command};
    use crate::commands::placement::PlacementCommand;
    use clap::Parser;

    fn simulated(arguments: &str) -> anyhow::Result<Simulation> {
        let words = format!("millpond placement simulate {arguments}");
        let parsed = Arguments::try_parse_from(words.split_whitespace())?;
        let Command::Placement(PlacementCommand::Simulate(arguments)) = parsed.command else {
            unreachable!("it was named")
        };
        simulate(&arguments, &made_up(&arguments)?)
    }

    #[test]
    fn every_change_moves_little_more_than_it_must_and_keeps_the_rules() {
        let changes = "--add-host --remove-host --add-osd --remove-osd --remove-rack --reweight-osd";
        let cluster = "--hosts 20 --osds-per-host 4 --racks 5 --pgs 2048";
        for more in ["", "--mixed-sizes", "--failure-domain rack", "--failure-domain osd --copies 2"] {
            let simulation = simulated(&format!("{cluster} {changes} {more}")).unwrap();
            assert_eq!((simulation.osds, simulation.hosts, simulation.racks), (80, 20, 5));
            assert_eq!((simulation.placed.violations, simulation.placed.replicas.beyond), (0, 0), "{more}");
            assert_eq!(simulation.changes.len(), 6);
            for change in &simulation.changes {
                assert_eq!((change.after.violations, change.after.replicas.beyond), (0, 0), "{change:?}");
                assert!(change.moved as f64 <= change.ideal * 1.1 + 8.0, "{more}: {change:?}");
            }
            let text = simulation.render();
            assert!(
                text.contains("80 OSDs of 20 hosts in 5 racks") && text.contains("a rack goes"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (arguments, says) in [
            ("--hosts 1 --osds-per-host 2", "more than the 2 OSDs"),
            ("--hosts 100000 --osds-per-host 100000", "more than 100000 OSDs"),
            ("--hosts 4 --pgs 16 --remove-rack", "give --racks"),
            ("--hosts 1 --pgs 16 --remove-host", "leave no OSD"),
            ("--osd-bytes 1", "no size of a drive"),
            ("--failure-domain shelf", "osd, host, rack"),
            ("--from-cluster --hosts 3", "cannot be used with"),
        ] {
            let error = simulated(arguments).unwrap_err().to_string();
            assert!(error.contains(says), "{arguments}: {error}");
        }
    }
}
