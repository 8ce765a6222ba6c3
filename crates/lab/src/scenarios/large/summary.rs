//! What a run found, as it is printed and as it is written to a file.

use super::events::{Events, GROUPS};
use super::meter::Writes;
use super::watching::{Cost, Watching};
use crate::report::{grouped, size};
use base::units::ByteSize;
use serde::Serialize;
use std::fmt;

/// What a question about the cluster may take, in seconds and in CPU time.
const SECONDS_MUST: f64 = 1.0;
const CPU_MS_MUST: f64 = 100.0;
/// Replicas that move when a host joins, by the fewest that must.
const MOVED_MUST: f64 = 1.1;
/// How far an OSD may be from its share.
const IMBALANCE_PERCENT_MUST: f64 = 5.0;

/// Everything that a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Simulated OSDs.
    pub simulated_osds: u32,
    /// By the kind of registry.
    pub watched: Vec<Watching>,
    /// Hosts that join and die.
    pub events: Option<Events>,
}

fn verdict(holds: bool) -> &'static str {
    if holds { "" } else { "  MISSES" }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for watching in &self.watched {
            self.watched(watching, out)?;
        }
        let Some(events) = &self.events else { return Ok(()) };
        writeln!(out, "\n{} groups on real processes, embedded registry", grouped(f64::from(GROUPS)))?;
        for (how, death) in &events.deaths {
            writeln!(
                out,
                "a host {how}: {:.2} s until all groups are active without it ({} of them it held, {} it led)",
                death.active_s, death.groups_held, death.groups_led
            )?;
            writes(&death.writes, out)?;
        }
        let join = &events.join;
        let moved = join.replicas_moved as f64 / join.replicas_ideal as f64;
        writeln!(
            out,
            "a host joins ({} to {} OSDs): {:.1} s until all lies where it shall",
            join.osds[0], join.osds[1], join.seconds
        )?;
        writeln!(
            out,
            "  replicas moved: {} of at least {}, {moved:.3}x (must: {MOVED_MUST}x){}",
            join.replicas_moved,
            join.replicas_ideal,
            verdict(moved <= MOVED_MUST)
        )?;
        writeln!(
            out,
            "  bytes moved: {} of at least {}, {:.3}x",
            ByteSize(join.bytes_moved),
            ByteSize(join.bytes_ideal),
            join.bytes_moved as f64 / join.bytes_ideal as f64
        )?;
        writeln!(
            out,
            "  farthest from its share of groups: {:.2} % (must: {IMBALANCE_PERCENT_MUST} %){}",
            join.imbalance_percent,
            verdict(join.imbalance_percent <= IMBALANCE_PERCENT_MUST)
        )?;
        writes(&join.writes, out)
    }
}

impl Summary {
    fn watched(&self, watching: &Watching, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "\n{} OSDs, {} of them simulated, {} groups; registry: {}",
            grouped(watching.osds as f64),
            grouped(f64::from(self.simulated_osds)),
            grouped(watching.groups as f64),
            watching.registry
        )?;
        for (name, cost) in [
            ("scrape of a node", watching.node_scrape),
            ("scrape of the manager", watching.manager_scrape),
            ("status", watching.status),
            ("status --json", watching.status_json),
        ] {
            let Cost { seconds_max, cpu_ms, bytes } = cost;
            // Every OSD in JSON is seven megabytes: it is shown, and promised is what people look at.
            let holds = name.contains("json") || (seconds_max < SECONDS_MUST && cpu_ms < CPU_MS_MUST);
            writeln!(
                out,
                "{name:<22} {seconds_max:>7.3} s {cpu_ms:>8.1} ms CPU {:>10}{}",
                ByteSize(bytes).to_string(),
                verdict(holds)
            )?;
        }
        writeln!(
            out,
            "manager at rest: {:.1} % of a core, {}; told of all {:.1} s after they began",
            watching.manager_cpu_percent,
            size(watching.manager_bytes),
            watching.gathered_s
        )?;
        writes(&watching.steady, out)
    }
}

fn writes(writes: &Writes, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kinds: Vec<String> = writes.by_kind.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let kinds = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") };
    writeln!(
        out,
        "  registry, {:.1} s: {} transactions, {} changes, {} ({:.2} a second): {kinds}",
        writes.seconds,
        writes.transactions,
        writes.changes,
        ByteSize(writes.bytes),
        writes.transactions as f64 / writes.seconds
    )
}
