//! `millpond scrub`: looking for damage before somebody needs the data.

use crate::Usage;
use crate::args::ListArguments;
use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::output::time::{ago, since_1970};
use crate::output::{self, table};
use anyhow::{Context, bail};
use base::PgId;
use base::map::PgConfig;
use clap::Subcommand;
use cluster::{Cluster, ScrubState, ScrubWish};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// What can be done about scrubs.
#[derive(Subcommand, Clone, Debug)]
pub enum ScrubCommand {
    /// Have placement groups scrubbed now: all of them, or those that are named
    #[command(
        after_help = "A light scrub compares what the members' indexes say; a deep one reads every byte.\n\
                            Both come by themselves, each day and each week. What is found is repaired.\n\n\
                            Examples:\n  millpond scrub start --deep\n  millpond scrub start --pg 1.17\n  \
                            millpond scrub start --deep --osd 2"
    )]
    Start {
        /// Read every byte from the drives
        #[arg(long)]
        deep: bool,
        /// Only this placement group; may be given several times
        #[arg(long, value_name = "POOL.INDEX")]
        pg: Vec<PgId>,
        /// Only the placement groups of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Only the placement groups that this OSD holds
        #[arg(long, value_name = "NUMBER", value_parser = crate::commands::osd::parse_osd)]
        osd: Option<base::OsdId>,
    },
    /// Show when each placement group was scrubbed, and what was found
    #[command(
        after_help = "Examples:\n  millpond scrub ls\n  millpond scrub ls --json | jq '.[] | select(.found > 0)'"
    )]
    Ls(ListArguments),
}

/// A group's scrubs: `scrub ls --json` is a list of these. Times are milliseconds since 1970, 0 for never.
#[derive(Clone, Debug, Serialize)]
struct ScrubView {
    pg: PgId,
    /// What is under way or wished.
    state: &'static str,
    light_ms: u64,
    deep_ms: u64,
    /// Objects that the last one looked at.
    objects: u64,
    /// Bytes that the last one read of each member's drive.
    bytes: u64,
    /// Blocks that the last one found damaged or different.
    found: u64,
    /// The same of all.
    found_ever: u64,
}

/// Performs a `scrub` command.
pub fn run(command: &ScrubCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        ScrubCommand::Start { deep, pg, pool, osd } => {
            let count = access::with_cluster(directory, async |cluster| {
                let map = cluster.map().await?;
                let known = |name: &String| {
                    let found = map.pool_named(name).map(|(id, _)| id);
                    found.with_context(|| format!("there is no pool {name}; `millpond pool ls` lists them"))
                };
                let pool = pool.as_ref().map(known).transpose()?;
                if let Some(missing) = pg.iter().find(|pg| !map.pgs.contains_key(pg)) {
                    bail!(Usage(format!(
                        "there is no placement group {missing}; `millpond pg dump` lists them"
                    )));
                }
                let is_meant = |(known, config): &(&PgId, &PgConfig)| {
                    (pg.is_empty() || pg.contains(known))
                        && pool.is_none_or(|pool| known.pool == pool)
                        && osd.is_none_or(|osd| config.in_sync.contains(&osd))
                };
                let meant: Vec<PgId> = map.pgs.iter().filter(is_meant).map(|(pg, _)| *pg).collect();
                cluster
                    .wish_scrubs(meant.iter().copied(), ScrubWish { at_ms: now_ms(), deep: *deep })
                    .await?;
                Ok(meant.len())
            })?;
            let kind = if *deep { "deep" } else { "light" };
            output::print_line(&format!(
                "{count} placement groups get a {kind} scrub, one after the other on each OSD; `millpond scrub ls` shows \
                 how far it is"
            ))
        }
        ScrubCommand::Ls(arguments) => {
            let scrubs = access::with_cluster_and_inquiry(directory, list)?;
            output::show(arguments.json, &scrubs, || table(&scrubs))
        }
    }
}

async fn list(cluster: &Cluster, inquiry: &Inquiry) -> anyhow::Result<Vec<ScrubView>> {
    let states: BTreeMap<PgId, ScrubState> = cluster.scrubs().await?;
    let running: BTreeSet<PgId> = inquiry.osds().await?.iter().filter_map(|osd| osd.scrubbing).collect();
    let map = cluster.map().await?;
    let view = |pg: &PgId| {
        let none = ScrubState::default();
        let scrub = states.get(pg).unwrap_or(&none);
        let state = match (running.contains(pg), scrub.wish.map(|wish| wish.deep)) {
            (true, _) => "running",
            (false, Some(true)) => "deep wished",
            (false, Some(false)) => "wished",
            (false, None) => "-",
        };
        let record = &scrub.record;
        ScrubView {
            pg: *pg,
            state,
            light_ms: record.light_ms,
            deep_ms: record.deep_ms,
            objects: record.objects,
            bytes: record.bytes,
            found: record.found,
            found_ever: record.found_ever,
        }
    };
    Ok(map.pgs.keys().map(view).collect())
}

fn table(scrubs: &[ScrubView]) -> String {
    if scrubs.is_empty() {
        return "no placement groups; they come with a pool: `millpond pool create NAME`\n".to_owned();
    }
    let now = since_1970();
    let ago = |at_ms: u64| match at_ms {
        0 => "never".to_owned(),
        at_ms => ago(Duration::from_millis(at_ms), now),
    };
    let row = |scrub: &ScrubView| {
        vec![
            scrub.pg.to_string(),
            scrub.state.to_owned(),
            ago(scrub.light_ms),
            ago(scrub.deep_ms),
            scrub.objects.to_string(),
            base::units::ByteSize(scrub.bytes).to_string(),
            scrub.found.to_string(),
            scrub.found_ever.to_string(),
        ]
    };
    let headings = ["PG", "STATE", "LAST", "LAST DEEP", ">OBJECTS", ">READ", ">FOUND", ">FOUND EVER"];
    table::render(&headings, scrubs.iter().map(row))
}

fn now_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}
