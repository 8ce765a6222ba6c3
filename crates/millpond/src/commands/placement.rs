//! `millpond placement`: where nodes stand, and how data would lie on a cluster of any size.

use crate::Usage;
use crate::commands::node::parse_node;
use crate::commands::simulation::{self, SimulateArguments};
use crate::host::access;
use crate::output;
use anyhow::bail;
use base::NodeId;
use base::map::{Location, NodeInfo};
use clap::{Args, Subcommand};
use std::path::Path;

/// What can be done about placement.
#[derive(Subcommand, Clone, Debug)]
pub enum PlacementCommand {
    /// Say on which host a node runs, and in which rack, zone and region that stands. Data moves if rules ask for it
    #[command(
        after_help = "What is not given stays as it is; an empty name takes one back.\nNodes of the same host fail together. \
                      A host that several nodes run on stands where the first of them does.\n\nExamples:\n  \
                      millpond placement locate 0 --host alpha --rack r1\n  \
                      millpond placement locate node.0 --zone a --region eu\n  \
                      millpond placement locate 0 --rack ''    in no rack any more"
    )]
    Locate(LocateArguments),
    /// Place data on a cluster that need not exist, change the cluster, and show how even it is and what moves
    #[command(after_help = simulation::EXAMPLES)]
    Simulate(SimulateArguments),
}

/// What is said of a node.
#[derive(Args, Clone, Debug)]
pub struct LocateArguments {
    /// The node: its number, or node.NUMBER
    #[arg(value_name = "ID", value_parser = parse_node)]
    node: NodeId,
    /// The machine it runs on [default: one of its own]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// What shares a power feed and a switch
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    /// A building, or a fire compartment
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
    /// What one disaster does not take whole with another
    #[arg(long, value_name = "NAME")]
    region: Option<String>,
}

/// Performs a `placement` command.
pub fn run(command: &PlacementCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        PlacementCommand::Locate(arguments) => locate(arguments, directory),
        PlacementCommand::Simulate(arguments) => simulation::run(arguments, directory),
    }
}

fn locate(arguments: &LocateArguments, directory: &Path) -> anyhow::Result<()> {
    let LocateArguments { node, host, rack, zone, region } = arguments;
    if [host, rack, zone, region].iter().all(|name| name.is_none()) {
        bail!(Usage("say what is to be noted: --host, --rack, --zone or --region".to_owned()));
    }
    let replace = |level: &mut Option<String>, name: &Option<String>| {
        if let Some(name) = name {
            *level = Some(name.clone()).filter(|name| !name.is_empty());
        }
    };
    let info = access::with_cluster(directory, async |cluster| {
        let changed = cluster.change_node(*node, |info: &mut NodeInfo| {
            if let Some(host) = host {
                info.host.clone_from(host);
            }
            replace(&mut info.location.rack, rack);
            replace(&mut info.location.zone, zone);
            replace(&mut info.location.region, region);
        });
        Ok(changed.await?)
    })?;
    let host =
        if info.host.is_empty() { "a host of its own".to_owned() } else { format!("host {}", info.host) };
    let stands = match &info.location {
        location if *location == Location::default() => "where is not known".to_owned(),
        location => format!("in {location}"),
    };
    output::print_line(&format!("{node} runs on {host}, {stands}; `millpond osd tree` shows all"))
}
