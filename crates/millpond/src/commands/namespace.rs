//! `millpond namespace`: parts of a pool whose volumes have names and keys of their own.

use crate::host::access;
use crate::output::{self, table};
use anyhow::bail;
use base::PlaceName;
use base::units::ByteSize;
use clap::Subcommand;
use cluster::{ClusterError, VolumeChange};
use health::view::{self, NamespaceView};
use std::path::Path;

/// What can be done with namespaces.
#[derive(Subcommand, Clone, Debug)]
pub enum NamespaceCommand {
    /// Make a namespace in a pool
    #[command(after_help = "Examples:\n  millpond namespace create default/team-a\n  \
                            millpond volume create default/team-a/disk 20GiB\n  \
                            millpond auth add team-a --pool default --namespace team-a --manage\n\n\
                            Volumes of a namespace have names of their own, and a key may be for these volumes alone. Where they \
                            lie, and how often, is the pool's.")]
    Create {
        /// The pool, and the name of the namespace
        #[arg(value_name = "POOL/NAMESPACE")]
        place: PlaceName,
    },
    /// List the namespaces. Each pool has a default one besides, which has no name
    #[command(after_help = "Examples:\n  millpond namespace ls\n  millpond namespace ls default --json")]
    Ls {
        /// Only those of this pool
        pool: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a namespace in which no volume is, not in the trash either, and for which no key is
    #[command(after_help = "Examples:\n  millpond namespace rm default/team-a")]
    Rm {
        /// The pool, and the namespace
        #[arg(value_name = "POOL/NAMESPACE")]
        place: PlaceName,
    },
}

/// Performs a `namespace` command.
pub fn run(command: &NamespaceCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        NamespaceCommand::Create { place } => {
            let PlaceName { pool, namespace: name } = named(place)?.clone();
            access::change(directory, VolumeChange::CreateNamespace { pool, name })?;
            output::print_line(&format!("namespace {place} made"))
        }
        NamespaceCommand::Ls { pool, json } => {
            let all = access::with_desk(directory, async |desk| {
                let map = desk.map().await?;
                if let Some(name) = pool.as_ref().filter(|name| map.pool_named(name).is_none()) {
                    return Err(ClusterError::NoSuchPool { name: name.clone() }.into());
                }
                Ok(view::namespaces(&map))
            })?;
            let is_wanted = |one: &NamespaceView| pool.as_ref().is_none_or(|pool| one.pool == *pool);
            let wanted: Vec<NamespaceView> = all.into_iter().filter(is_wanted).collect();
            output::show(*json, &wanted, || list(&wanted))
        }
        NamespaceCommand::Rm { place } => {
            let PlaceName { pool, namespace: name } = named(place)?.clone();
            access::change(directory, VolumeChange::RemoveNamespace { pool, name })?;
            output::print_line(&format!("namespace {place} removed"))
        }
    }
}

fn named(place: &PlaceName) -> anyhow::Result<&PlaceName> {
    if place.namespace.is_empty() {
        bail!(crate::Usage(format!(
            "{place} is a pool, whose default namespace is there as long as it is; name one as {place}/NAMESPACE"
        )));
    }
    Ok(place)
}

fn list(namespaces: &[NamespaceView]) -> String {
    if namespaces.is_empty() {
        return "no namespaces but the default ones; make one with `millpond namespace create POOL/NAMESPACE`\n"
            .to_owned();
    }
    let row = |one: &NamespaceView| {
        vec![
            one.name.clone(),
            one.pool.clone(),
            one.volumes.to_string(),
            ByteSize(one.volume_bytes).to_string(),
            one.trashed.to_string(),
        ]
    };
    table::render(&["NAMESPACE", "POOL", ">VOLUMES", ">PROVISIONED", ">IN TRASH"], namespaces.iter().map(row))
}
