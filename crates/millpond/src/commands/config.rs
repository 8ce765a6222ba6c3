//! `millpond config`: what this machine is told by `DIR/millpond.toml` and the environment.

use crate::host::directory::Directory;
use crate::host::settings::{Settings, Shown};
use crate::output::{self, table};
use clap::Subcommand;
use std::path::Path;

/// What can be done with settings.
#[derive(Subcommand, Clone, Debug)]
pub enum ConfigCommand {
    /// Print every key with its value and what it is for
    #[command(
        after_help = "The file is millpond.toml in --dir. A variable of the environment goes before it: \
                            MILLPOND_NODE_LISTEN before node.listen, and so on.\n\n\
                            Examples:\n  millpond config show\n  millpond config show --origin"
    )]
    Show {
        /// Say of each value where it comes from
        #[arg(long)]
        origin: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Performs a `config` command.
pub fn run(command: &ConfigCommand, path: &Path) -> anyhow::Result<()> {
    let ConfigCommand::Show { origin, json } = command;
    let shown = Settings::load(&Directory::new(path)?)?.show();
    output::show(*json, &shown, || table(&shown, *origin))
}

fn table(shown: &[Shown], with_origin: bool) -> String {
    let mut headings = vec!["KEY", "VALUE"];
    if with_origin {
        headings.push("ORIGIN");
    }
    headings.push("WHAT IT IS FOR");
    let row = |one: &Shown| {
        let mut row = vec![one.key.to_owned(), one.value.clone()];
        if with_origin {
            row.push(one.origin.to_owned());
        }
        row.push(one.explanation.to_owned());
        row
    };
    table::render(&headings, shown.iter().map(row))
}
