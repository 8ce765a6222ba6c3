//! `millpond volume meta`: what is noted beside a volume.

use crate::host::access;
use crate::output::{self, table};
use anyhow::Context;
use clap::Subcommand;
use cluster::{Metadata, VolumeChange};
use std::path::Path;

/// What can be done with what is noted beside a volume.
#[derive(Subcommand, Clone, Debug)]
pub enum MetaCommand {
    /// List what is noted beside a volume
    #[command(after_help = "Examples:\n  millpond volume meta ls disk")]
    Ls {
        /// The volume
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print what is noted under a key
    #[command(after_help = "Examples:\n  millpond volume meta get disk owner")]
    Get {
        /// The volume
        name: String,
        /// The key
        key: String,
    },
    /// Note something under a key
    #[command(after_help = "Examples:\n  millpond volume meta set disk owner 'the mail server'")]
    Set {
        /// The volume
        name: String,
        /// The key, up to 128 bytes
        key: String,
        /// What is noted, up to 4096 bytes of JSON
        value: String,
    },
    /// Forget what is noted under a key
    #[command(after_help = "Examples:\n  millpond volume meta rm disk owner")]
    Rm {
        /// The volume
        name: String,
        /// The key
        key: String,
    },
}

/// Performs a `volume meta` command.
pub fn run(command: &MetaCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        MetaCommand::Ls { name, json } => {
            let noted = access::with_desk(directory, async |desk| {
                Ok(desk.ask(Metadata { volume: name.clone() }).await?)
            })?;
            output::show(*json, &noted, || match noted.is_empty() {
                true => "nothing is noted\n".to_owned(),
                false => {
                    // A value may be of several lines, or steer a terminal.
                    let row = |(key, value): (&String, &String)| {
                        vec![key.clone(), value.escape_debug().to_string()]
                    };
                    table::render(&["KEY", "VALUE"], noted.iter().map(row))
                }
            })
        }
        MetaCommand::Get { name, key } => {
            let noted = access::with_desk(directory, async |desk| {
                Ok(desk.ask(Metadata { volume: name.clone() }).await?)
            })?;
            let value = noted.get(key).with_context(|| {
                format!("nothing is noted under {key:?}; `millpond volume meta ls {name}` lists what is")
            })?;
            output::print_line(value)
        }
        MetaCommand::Set { name, key, value } => {
            let (volume, key, value) = (name.clone(), key.clone(), value.clone());
            access::change(directory, VolumeChange::SetMetadata { volume, key, value }).map(drop)
        }
        MetaCommand::Rm { name, key } => {
            let (volume, key) = (name.clone(), key.clone());
            access::change(directory, VolumeChange::RemoveMetadata { volume, key }).map(drop)
        }
    }
}
