//! `millpond pg`: the placement groups.

use crate::host::access;
use crate::output;
use crate::output::table::Table;
use base::OsdId;
use clap::{Args, Subcommand};
use health::view::PgView;
use std::path::Path;

/// Look at placement groups.
#[derive(Args, Clone, Copy, Debug)]
pub struct PgArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: PgCommand,
}

/// What can be done with placement groups.
#[derive(Subcommand, Clone, Copy, Debug)]
pub enum PgCommand {
    /// Show every placement group: its state, why it is so, and its members
    #[command(after_help = "Examples:\n  millpond pg dump\n  \
                            millpond pg dump --json | jq '.[] | select(.state != \"active\")'")]
    Dump {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Performs a `pg` command.
pub fn run(arguments: &PgArguments, directory: &Path) -> anyhow::Result<()> {
    let PgCommand::Dump { json } = arguments.command;
    let pgs = access::with_inquiry(directory, async |inquiry| inquiry.pgs().await)?;
    output::show(json, &pgs, || dump(&pgs))
}

fn dump(pgs: &[PgView]) -> String {
    if pgs.is_empty() {
        return "no placement groups; they come with a pool: `millpond pool create NAME`\n".to_owned();
    }
    let mut table = Table::new(&[
        "PG", "STATE", ">EPOCH", "PRIMARY", "IN SYNC", "LEARNERS", "TARGET", ">OBJECTS", "REASON",
    ]);
    for pg in pgs {
        table.row(vec![
            pg.pg.to_string(),
            pg.state.name().to_owned(),
            pg.epoch.0.to_string(),
            pg.primary.to_string(),
            list(&pg.in_sync),
            list(&pg.learners),
            list(&pg.target),
            pg.objects.map_or_else(|| "-".to_owned(), |objects| objects.to_string()),
            pg.reason.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

fn list(osds: &[OsdId]) -> String {
    if osds.is_empty() {
        return "-".to_owned();
    }
    osds.iter().map(|osd| osd.0.to_string()).collect::<Vec<_>>().join(",")
}
