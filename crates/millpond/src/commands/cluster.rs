//! `millpond cluster`: a cluster whose registry is an etcd, for nodes on many hosts.

use crate::args::etcd::EtcdArguments;
use crate::host::access;
use crate::host::directory::Directory;
use crate::host::settings::Settings;
use crate::host::token::Token;
use crate::output;
use anyhow::{Context, bail};
use base::{Access, ClusterId, Encryption, Profile, RecoveryShare, WorkClass};
use clap::{Args, Subcommand};
use cluster::{Cluster, ClusterError};
use registry::Connect;
use serde::Serialize;
use std::path::Path;

/// What can be done with a cluster as a whole.
#[derive(Subcommand, Clone, Debug)]
pub enum ClusterCommand {
    /// Make a cluster in an etcd, and print the token with which hosts join it
    #[command(after_help = INIT_EXAMPLES)]
    Init(InitArguments),
    /// Print the token with which hosts join
    #[command(
        after_help = "Examples:\n  millpond cluster token\n\nWhoever has it owns the cluster: it holds what \
                            etcd wants to see."
    )]
    Token,
    /// Have the traffic of the cluster encrypted, or not any more; without a word, say how it is
    #[command(after_help = ENCRYPTION_HELP)]
    Encryption {
        /// on or off
        #[arg(value_name = "on|off")]
        encryption: Option<Encryption>,
    },
    /// Have OSDs favour clients, or the work that nobody waits for; without a profile, say what is set
    #[command(after_help = PROFILE_HELP)]
    Profile {
        /// balanced, clients, recovery or background
        #[arg(value_name = "PROFILE")]
        profile: Option<Profile>,
    },
    /// Set how many operations an OSD is taken to do in a second, for what may be reserved; without a number, say how many
    #[command(after_help = CAPACITY_HELP)]
    Capacity {
        /// Operations of 4 KiB
        #[arg(value_name = "IOPS", value_parser = clap::value_parser!(u32).range(1..))]
        iops: Option<u32>,
    },
    /// Set how much of what OSDs do may be recovery while they serve clients; without a share, say what it is
    #[command(after_help = RECOVERY_HELP)]
    Recovery {
        /// In percent
        #[arg(value_name = "SHARE")]
        share: Option<RecoveryShare>,
    },
}

const ENCRYPTION_HELP: &str = "\
Examples:
  millpond cluster encryption on
  millpond cluster encryption

It concerns what goes between clients and OSDs, and among OSDs; both prove their keys either way. It can be switched while
everything runs: connections are made anew within seconds, and what was under way on them is done again. What it costs is
in docs/performance.md. Nodes and clients must all be of a version that knows it.";

const PROFILE_HELP: &str = "\
Examples:
  millpond cluster profile clients
  millpond cluster profile

  balanced    recovery, scrub, removal (snapshots that go, clones that are flattened) and deletion have 10% each
  clients     3% each
  recovery    recovery has 50%, the others 5% each
  background  scrub, removal and deletion have 20% each, recovery 10%

It is heeded within a second. An OSD that serves nobody goes by none of it. `millpond cluster recovery` sets the share of
recovery beside it, until a profile is set again.";

const CAPACITY_HELP: &str = "\
Examples:
  millpond cluster capacity 50000
  millpond cluster capacity

Reservations of all volumes together take no more than this of each OSD that is in; a reserved operation counts for each of its
copies. It is 20000 unless it is set. `millpond bench` shows what a cluster does.";

const RECOVERY_HELP: &str = "\
Examples:
  millpond cluster recovery 40%
  millpond cluster recovery

It concerns members of placement groups that catch up, and OSDs that are filled, from 1% to 80%; 10% unless it is set. An
OSD that serves clients copies that share of what it does, and no less than 2 MiB a second for each percent: at 10%, 100 GiB
of one drive's take 85 minutes at most, and a drive that is filled by many takes as much less. One that serves nobody copies
as fast as it can. So does any for a group that takes no writes until then: clients wait for nothing else.";

const INIT_EXAMPLES: &str = "\
Examples:
  millpond cluster init --registry etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  millpond cluster init --registry etcds://etcd.example:2379/pond/ --etcd-ca ca.pem --etcd-certificate pond.pem \\
      --etcd-key pond.key

This machine can then be used to manage the cluster; `millpond node join` makes it a node too.";

/// How a cluster is made.
#[derive(Args, Clone, Debug)]
pub struct InitArguments {
    /// The etcd that is to keep the cluster's state: etcd://HOST:PORT,HOST:PORT/NAME/, or etcds:// where it wants TLS
    #[arg(long, value_name = "URL")]
    pub registry: String,

    /// How etcd is asked.
    #[command(flatten)]
    pub etcd: EtcdArguments,

    /// Have all traffic encrypted from the start; `millpond cluster encryption` changes it later
    #[arg(long)]
    pub encryption: bool,

    /// Print the cluster's id and token as JSON
    #[arg(long)]
    pub json: bool,
}

/// A new cluster: `cluster init --json`.
#[derive(Clone, Debug, Serialize)]
struct Made {
    cluster: ClusterId,
    token: String,
}

/// Performs a `cluster` command.
pub fn run(command: &ClusterCommand, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    match command {
        ClusterCommand::Init(init) => {
            let made = make(init, &directory)?;
            output::show(init.json, &made, || {
                format!(
                    "Cluster {} is made; {} says how this machine reaches it.\n\nOn each host that is to have drives in \
                     it:\n  millpond node join {} --device /dev/nvme0n1 --listen ADDRESS\n\nWhoever has this token owns the \
                     cluster. `millpond cluster token` prints it again.\n",
                    made.cluster,
                    directory.settings_file().display(),
                    made.token
                )
            })
        }
        ClusterCommand::Encryption { encryption } => switch_encryption(*encryption, path),
        ClusterCommand::Profile { profile } => set_profile(*profile, path),
        ClusterCommand::Capacity { iops } => set_capacity(*iops, path),
        ClusterCommand::Recovery { share } => set_recovery_share(*share, path),
        ClusterCommand::Token => output::print_line(&Token::of(&Settings::require(&directory)?)?.to_string()),
    }
}

fn switch_encryption(encryption: Option<Encryption>, path: &Path) -> anyhow::Result<()> {
    let (is_change, now) = match encryption {
        Some(encryption) => {
            let switch = async |cluster: &Cluster| Ok(cluster.set_encryption(encryption).await?);
            (access::with_cluster(path, switch)?, encryption)
        }
        None => (false, access::with_desk(path, async |desk| Ok(desk.map().await?.encryption))?),
    };
    output::print_line(&match (now, is_change) {
        (Encryption::On, true) => "The traffic of the cluster is encrypted from now on: within seconds its connections are \
                                   made anew, and none is made in plain any more."
            .to_owned(),
        (Encryption::Off, true) => {
            "The traffic of the cluster goes in plain from now on: within seconds its connections are made anew.".to_owned()
        }
        (now, false) => format!("Encryption of the cluster's traffic is {now}."),
    })
}

fn set_recovery_share(share: Option<RecoveryShare>, path: &Path) -> anyhow::Result<()> {
    let now = match share {
        Some(share) => {
            access::with_cluster(path, async |cluster| Ok(cluster.set_recovery_share(share).await?))?;
            share
        }
        None => access::with_desk(path, async |desk| Ok(desk.map().await?.recovery_share))?,
    };
    output::print_line(&format!("The share of recovery is {now} where clients are served."))
}

fn set_profile(profile: Option<Profile>, path: &Path) -> anyhow::Result<()> {
    let map = access::with_cluster(path, async |cluster| {
        if let Some(profile) = profile {
            cluster.set_profile(profile).await?;
        }
        Ok(cluster.map().await?)
    })?;
    let classes = WorkClass::ALL.map(|class| format!("{class} {}", map.share_of(class)));
    output::print_line(&format!(
        "The profile is {}: of what an OSD does while it serves clients, {}.",
        map.profile,
        classes.join(", ")
    ))
}

fn set_capacity(iops: Option<u32>, path: &Path) -> anyhow::Result<()> {
    let now = access::with_cluster(path, async |cluster| {
        if let Some(iops) = iops {
            cluster.change_settings(|settings| settings.osd_iops = iops).await?;
        }
        Ok(cluster.settings().await?.osd_iops)
    })?;
    output::print_line(&format!("An OSD is taken to do {now} operations of 4 KiB a second."))
}

fn make(arguments: &InitArguments, directory: &Directory) -> anyhow::Result<Made> {
    if directory.has_cluster() {
        bail!(
            "`millpond up` runs the cluster in {}; make another one with another --dir, or have other hosts join this one: \
             `millpond registry migrate` moves it into an etcd",
            directory.given()
        );
    }
    directory.prepare()?;
    let _lock = directory.lock()?;
    let mut settings = Settings::load(directory)?;
    let id = match settings.cluster() {
        // Begun before, and perhaps not done.
        Some(id) if settings.registry_url() == Some(&arguments.registry) => id,
        Some(id) => {
            bail!("{} is of cluster {id} already; make another one with another --dir", directory.given())
        }
        None => ClusterId(uuid::Uuid::new_v4()),
    };
    settings.set_registry(&arguments.registry, id);
    settings.set_etcd(&arguments.etcd.paths()?);
    // From here on it is known which cluster this is to be, whatever comes between.
    settings.store()?;
    access::block_on(async {
        let registry = settings.registry()?.context("the registry was just named")?.connect().await?;
        let cluster = Cluster::new(registry);
        match cluster.create(id).await {
            Err(ClusterError::OtherCluster { found, .. }) => bail!(
                "there is a cluster in this registry already, {found}; `millpond node join` with its token joins it, another \
                 NAME in etcd://HOST/NAME/ makes room for a second one"
            ),
            created => created?,
        }
        if arguments.encryption {
            cluster.set_encryption(Encryption::On).await?;
        }
        access::admit(&cluster, &directory.admin_key(), "admin", Access::Admin).await
    })?;
    Ok(Made { cluster: id, token: Token::of(&settings)?.to_string() })
}
