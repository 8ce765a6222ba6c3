//! `millpond up`: a whole cluster on this machine, until Ctrl-C.

use crate::commands::detach;
use crate::commands::pool::copies;
use crate::host::configuration::Request;
use crate::host::directory::{Directory, DirectoryLock};
use crate::host::local_cluster::{LocalCluster, Started, run_cluster};
use crate::host::network_namespaces::NetworkNamespaces;
use crate::host::stop::StopSignals;
use crate::output;
use anyhow::Context;
use clap::Args;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  millpond up                                    three nodes on files of 8GiB in ./data, until Ctrl-C
  millpond up --detach --dir /srv/pond           the same in the background; `millpond down` ends it
  millpond up --osd-size 2GiB --nodes 4          smaller files, one node more
  millpond up --device /dev/nvme0n1 --device /dev/nvme1n1 --device /dev/nvme2n1
  millpond up --osd-out-after never              a lost OSD's data is placed on others by hand only

A later `up` on the same directory needs no flags: it continues with what is there.
Ctrl-C (or SIGTERM) ends it cleanly; a second one kills.";

/// Start a whole cluster on this machine, or start it again where it left off.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct UpArguments {
    /// What is asked for.
    #[command(flatten)]
    pub request: Request,

    /// Run in the background; return when the cluster serves
    #[arg(long)]
    pub detach: bool,

    /// Leave a node down when it ends, instead of starting it again
    #[arg(long)]
    pub no_restart: bool,

    /// For tests of partitions: each node runs in a network namespace of its own, which somebody else made.
    #[arg(long, hide = true, value_name = "PREFIX@IP")]
    pub network_namespaces: Option<NetworkNamespaces>,

    /// This is the background process of `--detach`.
    #[arg(long, hide = true, conflicts_with = "detach")]
    pub detached: bool,
}

/// Runs a cluster until someone wishes it to stop, or starts a process that does.
pub fn run(arguments: &UpArguments, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    if arguments.detach {
        return detach::start(&directory);
    }
    if arguments.detached {
        nix::unistd::setsid().context("cannot leave the terminal's session")?;
    }
    run_cluster(serve(arguments, directory))
}

async fn serve(
    arguments: &UpArguments,
    directory: Directory,
) -> anyhow::Result<(anyhow::Result<()>, DirectoryLock)> {
    let mut stop = StopSignals::install()?;
    let (restart, namespaces) = (!arguments.no_restart, arguments.network_namespaces.clone());
    let mut local = LocalCluster::open(directory.clone(), &arguments.request, restart, namespaces).await?;
    let work = async {
        let started = local.become_ready(&mut stop).await?;
        if started == Started::Interrupted {
            return Ok(());
        }
        if let Err(error) = tell(&local, &directory, &started, arguments.detached) {
            // Nobody reads the summary; the cluster runs all the same.
            output::warning(&format!("{error:#}"));
        }
        local.announce(&started)?;
        local.run(&mut stop).await
    };
    let outcome: anyhow::Result<()> = work.await;
    output::notice("stopping");
    Ok((outcome, local.stop(&mut stop).await))
}

fn tell(
    local: &LocalCluster,
    directory: &Directory,
    started: &Started,
    detached: bool,
) -> anyhow::Result<()> {
    output::print(&summary(local, directory, started, detached))?;
    if let Started::Partly(problem) = started {
        output::warning(&format!(
            "not everything serves: {problem}\n  `millpond status --dir {}` says what to do",
            directory.given()
        ));
    }
    Ok(())
}

fn summary(local: &LocalCluster, directory: &Directory, started: &Started, detached: bool) -> String {
    let dir = directory.given();
    let flag = if dir.to_string() == "./data" { String::new() } else { format!(" --dir {dir}") };
    let so_many = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    };
    let mut text = format!(
        "Cluster {} is {} in {dir}: {}, {}, {} in the pool default.\n\n",
        local.id(),
        if *started == Started::Fully { "up" } else { "partly up" },
        so_many(local.nodes().len(), "node"),
        so_many(local.drives().len(), "OSD"),
        copies(local.configuration().replicas),
    );
    text.push_str(&format!(
        "Next:\n  millpond status{flag}\n  millpond volume create disk 4GiB{flag}\n  millpond nbd disk{flag}\n\n"
    ));
    text.push_str(&if detached {
        format!("It runs in the background (log: {dir}/up.log). `millpond down{flag}` stops it.\n")
    } else {
        "Ctrl-C stops it; the next `millpond up` continues with its data.\n".to_owned()
    });
    text
}
