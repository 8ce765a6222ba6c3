//! What the command line accepts, with the help that a person reads.

use crate::commands::{
    auth, bench, ceph_conf, client, cluster, config, lab, log, migrate, monitor, namespace, nbd, node,
    node_process, osd, pg, placement, pool, schedule, scrub, status, up, verdict, vhost_user, volume,
};
use crate::top;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  millpond up --detach                       start a cluster of three nodes in ./data
  millpond status                            how it is, and what to do if it is not well
  millpond volume create disk 20GiB          make a volume
  millpond nbd disk --listen unix:disk.sock  serve it to NBD clients (QEMU, fio, the kernel)
  millpond down                              stop the cluster; the next `up` continues with its data

Exit codes: 0 done, 1 failed, 2 called wrongly; of `health` 1 also says that something does not serve.
MILLPOND_LOG chooses what is logged to stderr, for example MILLPOND_LOG=debug; MILLPOND_LOG_FORMAT=json has it as JSON.";

/// NVMe-native distributed storage: replicated block volumes.
#[derive(Parser, Debug)]
#[command(name = "millpond", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    /// The directory of the cluster on this machine
    #[arg(long, global = true, env = "MILLPOND_DIR", value_name = "DIRECTORY", default_value = "./data")]
    pub dir: PathBuf,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a whole cluster on this machine, or start it again where it left off
    Up(up::UpArguments),
    /// Stop the cluster that `up` started, and wait until it has stopped
    #[command(after_help = "Examples:\n  millpond down\n  millpond down --dir /srv/pond")]
    Down,
    /// Make a cluster of several hosts, whose registry is an etcd; have the traffic of any cluster encrypted
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Let this host join such a cluster; look at hosts, empty and remove one
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Let this machine use volumes of a cluster of other hosts
    #[command(subcommand)]
    Client(client::ClientCommand),
    /// Move the cluster of this machine to an etcd, so that other hosts can join it, or back
    #[command(subcommand)]
    Registry(migrate::RegistryCommand),
    /// Show what this machine is told by its settings
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show how the cluster is, why, and what to do next
    Status(status::StatusArguments),
    /// Show the verdict alone, or explain a code of it
    Health(verdict::HealthArguments),
    /// Show what the cluster does now, by OSD, pool, volume and client
    Top(top::TopArguments),
    /// Show what the nodes logged
    Log(log::LogArguments),
    /// Have a Prometheus on this machine scrape the nodes of all machines, until Ctrl-C
    Monitor(monitor::MonitorArguments),
    /// Look at OSDs, add and remove them, or wipe the drive of one
    #[command(subcommand)]
    Osd(osd::OsdCommand),
    /// Look at placement groups
    #[command(subcommand)]
    Pg(pg::PgCommand),
    /// Say where nodes stand, and try out how data would lie
    #[command(subcommand)]
    Placement(placement::PlacementCommand),
    /// Create, change, list and remove pools
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// Create, list and remove namespaces: parts of a pool whose volumes have names and keys of their own
    #[command(subcommand)]
    Namespace(namespace::NamespaceCommand),
    /// Look for damage before somebody needs the data, and see what was found
    #[command(subcommand)]
    Scrub(scrub::ScrubCommand),
    /// Create, list, resize and remove volumes
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Have snapshots of volumes made, and old ones removed, by themselves
    #[command(subcommand)]
    Schedule(schedule::ScheduleCommand),
    /// Say who may connect, and what they may do
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    /// Write what programs that use Ceph's RBD read to find this cluster
    CephConf(ceph_conf::CephConfArguments),
    /// Serve volumes over NBD, until Ctrl-C
    Nbd(nbd::NbdArguments),
    /// Serve a volume to a virtual machine, as a disk by vhost-user-blk, until Ctrl-C
    VhostUser(vhost_user::VhostUserArguments),
    /// Measure a drive, a volume or an NBD export
    Bench(bench::BenchArguments),
    /// Measure anything by a plan, so that the figures can be trusted, and compare
    Lab(lab::LabArguments),
    /// Start a cluster, run the 10K challenge on a volume `demo`, and show how to attach a client
    #[command(after_help = demo_help())]
    Demo,
    /// A process of one node, started by `up` or `node run`
    #[command(hide = true)]
    NodeProcess(node_process::NodeProcessArguments),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  millpond completions bash > /etc/bash_completion.d/millpond\n  \
                            millpond completions zsh > ~/.zfunc/_millpond")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn demo_help() -> String {
    "The volume `demo` is scratch: every run of the demo overwrites what it holds.\n\
     With a terminal the cluster stays up until Ctrl-C; without one everything stops after the table.\n\n\
     Examples:\n  millpond demo\n  millpond demo --dir /srv/demo | cat"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_contradicts_itself_nowhere() {
        Arguments::command().debug_assert();
    }
}
