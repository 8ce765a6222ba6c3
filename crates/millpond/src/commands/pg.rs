//! `millpond pg`: the placement groups.

use crate::args::ListArguments;
use crate::host::access;
use crate::output::{self, table};
use base::OsdId;
use clap::Subcommand;
use health::view::PgView;
use std::path::Path;

/// What can be done with placement groups.
#[derive(Subcommand, Clone, Copy, Debug)]
pub enum PgCommand {
    /// Show every placement group: its state, why it is so, and its members
    #[command(after_help = "Examples:\n  millpond pg dump\n  \
                            millpond pg dump --json | jq '.[] | select(.state != \"active\")'")]
    Dump(ListArguments),
}

/// Performs a `pg` command.
pub fn run(command: &PgCommand, directory: &Path) -> anyhow::Result<()> {
    let PgCommand::Dump(arguments) = command;
    let pgs = access::with_inquiry(directory, async |inquiry| inquiry.pgs().await)?;
    output::show(arguments.json, &pgs, || dump(&pgs))
}

fn dump(pgs: &[PgView]) -> String {
    if pgs.is_empty() {
        return "no placement groups; they come with a pool: `millpond pool create NAME`\n".to_owned();
    }
    let row = |pg: &PgView| {
        vec![
            pg.pg.to_string(),
            pg.state.name().to_owned(),
            pg.epoch.0.to_string(),
            pg.primary.to_string(),
            list(&pg.in_sync),
            list(&pg.learners),
            list(&pg.target),
            pg.objects.map_or_else(|| "-".to_owned(), |objects| objects.to_string()),
            pg.reason.clone().unwrap_or_default(),
        ]
    };
    let headings =
        ["PG", "STATE", ">EPOCH", "PRIMARY", "IN SYNC", "LEARNERS", "TARGET", ">OBJECTS", "REASON"];
    table::render(&headings, pgs.iter().map(row))
}

fn list(osds: &[OsdId]) -> String {
    if osds.is_empty() {
        return "-".to_owned();
    }
    osds.iter().map(|osd| osd.0.to_string()).collect::<Vec<_>>().join(",")
}
