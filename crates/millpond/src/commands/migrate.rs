//! `millpond registry migrate`: moves the cluster of this machine from the registry in `millpond up` to an etcd, so that
//! other hosts can join it, and back. How that is done without ever having it in both: [`cluster::Migration`].
//!
//! Nobody may use the cluster meanwhile. The directory's lock and that of the registry's file keep `up` away; that no
//! drive is open and no lease lives tells that no process is left which `up` did not take along.

use crate::args::etcd::EtcdArguments;
use crate::commands::node::this_host;
use crate::host::access;
use crate::host::addresses::Addresses;
use crate::host::configuration::Configuration;
use crate::host::directory::Directory;
use crate::host::settings::Settings;
use crate::output;
use anyhow::{Context, bail};
use base::units::ByteSize;
use base::{ClusterId, NodeId};
use clap::{Args, Subcommand};
use cluster::{Cluster, ClusterError, Migrated, Migration, MigrationError, Presence, leased, reclaim};
use drive::{Drive, DriveError, Use};
use registry::{Connect, Registry};
use registry_embedded::EmbeddedRegistry;
use registry_etcd::EtcdOptions;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long leases of processes that were killed are waited for: longer than any of them lasts.
const LEASES_LIMIT: Duration = Duration::from_secs(15);
/// How often they are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What can be done with the registry.
#[derive(Subcommand, Clone, Debug)]
pub enum RegistryCommand {
    /// Move the cluster of this machine to an etcd, so that other hosts can join it, or back
    #[command(after_help = EXAMPLES)]
    Migrate(MigrateArguments),
}

const EXAMPLES: &str = "\
Examples:
  millpond down
  millpond registry migrate --to etcd://10.0.0.1,10.0.0.2,10.0.0.3 --listen 10.0.0.1
  millpond up --detach
  millpond cluster token                          with it, other hosts join: millpond node join

  millpond registry migrate --to embedded         back, when all nodes are of this machine again
  millpond registry migrate --to etcd://10.0.0.1 --cancel    gives up what broke off

It may break off at any time: run again, it goes on from where it is.";

/// Where a cluster is to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Into the registry that `up` runs.
    Embedded,
    /// Into an etcd, by its URL.
    Etcd(String),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Destination, String> {
        if text == "embedded" {
            return Ok(Destination::Embedded);
        }
        let options = text.parse::<EtcdOptions>();
        options.map(|_| Destination::Etcd(text.to_owned())).map_err(|error| {
            format!("{error}; `embedded` is the registry that `millpond up` runs on one machine")
        })
    }
}

/// How the cluster is moved.
#[derive(Args, Clone, Debug)]
pub struct MigrateArguments {
    /// etcd://HOST:PORT,HOST:PORT/NAME/, etcds:// where it wants TLS, or embedded: the registry that `up` runs
    #[arg(long, value_name = "URL|embedded")]
    pub to: Destination,

    /// How etcd is asked.
    #[command(flatten)]
    pub etcd: EtcdArguments,

    /// To an etcd: the address of this machine at which other hosts reach its OSDs from then on; repeat it for more, the one
    /// that is preferred first [default: 127.0.0.1, which none reaches]
    #[arg(long, value_name = "IP")]
    pub listen: Vec<IpAddr>,

    /// To an etcd: the name of this machine, for nodes that have none. Copies of data lie on distinct hosts
    /// [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// Give up a move that broke off: the cluster stays where it was
    #[arg(long)]
    pub cancel: bool,

    /// The registry that the cluster was to move to can never be had back, and nobody can look whether it arrived there
    #[arg(long, requires = "cancel")]
    pub target_is_lost: bool,
}

/// Performs a `registry` command.
pub fn run(command: &RegistryCommand, path: &Path) -> anyhow::Result<()> {
    let RegistryCommand::Migrate(arguments) = command;
    let directory = Directory::new(path)?;
    if !directory.has_cluster() && !Settings::are_there(&directory) {
        return access::no_cluster(&directory);
    }
    directory.prepare()?;
    // Says who runs the cluster, if somebody does, and how to stop it.
    let lock = directory.lock()?;
    let listen = match arguments.listen.as_slice() {
        [] => None,
        given => Some(Addresses::of_flags(given)?),
    };
    let said = access::block_on(async {
        match &arguments.to {
            Destination::Etcd(url) => to_etcd(arguments, url, listen.as_ref(), &directory).await,
            Destination::Embedded => to_embedded(arguments, &directory).await,
        }
    });
    drop(lock);
    output::print(&said?)
}

/// From where to where.
struct Ends {
    source: Arc<dyn Registry>,
    source_name: String,
    target: Arc<dyn Registry>,
    target_name: String,
}

impl Ends {
    fn migration(&self) -> Migration<'_> {
        Migration::new(&*self.source, &self.source_name, &*self.target, &self.target_name)
    }

    /// What `up` runs, from wherever it is.
    async fn configuration(&self) -> anyhow::Result<Option<Configuration>> {
        let at_source = Configuration::load(&*self.source).await?;
        Ok(match at_source {
            Some(configuration) => Some(configuration),
            None => Configuration::load(&*self.target).await?,
        })
    }

    /// Moves the cluster as soon as nobody is at work.
    async fn migrate(&self) -> anyhow::Result<Migrated> {
        wait_for_leases(&*self.source).await?;
        self.migration().run().await.map_err(|error| match error {
            MigrationError::Registry(_) | MigrationError::Cluster(ClusterError::Registry(_)) => {
                anyhow::Error::new(error).context(
                    "the move is not done; run the same command again, and it goes on from where it is",
                )
            }
            error => error.into(),
        })
    }

    /// Gives up a move.
    async fn cancel(&self) -> anyhow::Result<String> {
        Ok(canceled(self.migration().cancel().await?, &self.source_name))
    }
}

fn canceled(cluster: ClusterId, source_name: &str) -> String {
    format!("Cluster {cluster} is in {source_name}, as it was. `millpond up` runs it.\n")
}

/// Processes that were killed are in use until their leases have run out.
async fn wait_for_leases(source: &dyn Registry) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        let who = leased(source).await?;
        let Some(first) = who.first() else { return Ok(()) };
        // Whoever is there still is told of as the reason.
        if began.elapsed() > LEASES_LIMIT {
            return Ok(());
        }
        if !is_told {
            output::notice(&format!(
                "waiting up to {} s for {} to be over",
                LEASES_LIMIT.as_secs(),
                match who.len() {
                    1 => format!("what says that {first}"),
                    count => format!("what says that {first}, and {} more such things,", count - 1),
                }
            ));
            is_told = true;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Refuses while a process has one of the drives.
fn check_drives(configuration: &Configuration, directory: &Directory) -> anyhow::Result<()> {
    for drive in configuration.drives(directory) {
        // One that is lost is in nobody's use.
        if let Err(DriveError::InUse(path)) = Drive::open(&drive.path, Use::Alone) {
            let (path, node) = (path.display(), drive.node);
            bail!(
                "{path}: is in use, so a process of node.{node} still runs though `millpond up` does not; end it (`fuser \
                 {path}` names it) and try again"
            );
        }
    }
    Ok(())
}

fn embedded_name(directory: &Directory) -> String {
    format!("{} on {}", directory.registry_file().display(), this_host())
}

async fn to_etcd(
    arguments: &MigrateArguments,
    url: &str,
    listen: Option<&Addresses>,
    directory: &Directory,
) -> anyhow::Result<String> {
    let mut settings = Settings::load(directory)?;
    let given = directory.given();
    if let Some(named) = settings.registry_url() {
        if !settings.are_of_up() {
            bail!("{given} is of a cluster that is in {named} already; there is nothing to move");
        }
        if named != url {
            bail!(
                "the cluster in {given} is in {named}; to move it to another etcd, move it back first: `millpond registry \
                 migrate --to embedded --dir {given}`"
            );
        }
    }
    let source = EmbeddedRegistry::open(&directory.registry_file())?;
    let cluster = source.cluster();
    let source_name = embedded_name(directory);
    if arguments.target_is_lost {
        return Ok(canceled(reclaim(&source).await?, &source_name));
    }
    settings.set_registry(url, cluster);
    settings.set_etcd(&arguments.etcd.paths()?);
    settings.set_up(listen);
    let location = settings.registry()?.context("the registry was just named")?;
    let target = location.connect().await?;
    let ends = Ends { source: Arc::new(source), source_name, target, target_name: location.to_string() };
    if arguments.cancel {
        return ends.cancel().await;
    }
    let configuration = ends.configuration().await?.with_context(|| {
        format!("the cluster in {given} never came up; start it once with `millpond up --dir {given}`")
    })?;
    check_drives(&configuration, directory)?;
    let migrated = ends.migrate().await?;
    let host = arguments.host.clone().unwrap_or_else(this_host);
    let nodes = configuration.node_ids(directory);
    locate(&Cluster::new(ends.target.clone()), &nodes, &host).await?;
    ends.migration().clean().await?;
    settings.store()?;
    let listen = settings.listen();
    let reached = match listen.all().iter().all(IpAddr::is_loopback) {
        false => format!("Other hosts will reach its OSDs at {listen}"),
        true => format!(
            "Its OSDs listen on {listen}, where no other host reaches them: name an address of this machine in node.listen of \
             {} before one joins",
            directory.settings_file().display()
        ),
    };
    Ok(format!(
        "Cluster {} is in {location} now: {} keys, {}. {reached}.\n\nNext:\n  millpond up --detach --dir {given}\n  \
         millpond cluster token --dir {given}\nand with the token on each host that is to join:\n  millpond node join TOKEN \
         --device /dev/nvme0n1 --listen ADDRESS\n",
        migrated.cluster,
        migrated.keys,
        ByteSize(migrated.bytes as u64)
    ))
}

/// Has the nodes of this machine count as one host, so that no two copies lie on it where there are others.
async fn locate(cluster: &Cluster, nodes: &BTreeSet<NodeId>, host: &str) -> anyhow::Result<()> {
    let map = cluster.map().await?;
    for node in nodes.iter().filter(|node| map.osds.values().any(|info| info.node == **node)) {
        let located = cluster.change_node(*node, |info| {
            if info.host.is_empty() {
                host.clone_into(&mut info.host);
            }
        });
        located.await.context("the cluster was moved; run the same command again to name its host")?;
    }
    Ok(())
}

async fn to_embedded(arguments: &MigrateArguments, directory: &Directory) -> anyhow::Result<String> {
    let mut settings = Settings::load(directory)?;
    let given = directory.given();
    if settings.registry_url().is_none() {
        bail!("the cluster in {given} is in a registry of this machine; there is nothing to move");
    }
    if !settings.are_of_up() {
        bail!(
            "the nodes of {given} are not run by `millpond up`: only a cluster that began with it, and whose nodes are all of \
             one machine, can be moved to where it is"
        );
    }
    let location = settings.registry()?.context("it was just named")?;
    let source = location.connect().await?;
    if arguments.target_is_lost {
        return Ok(canceled(reclaim(&*source).await?, &location.to_string()));
    }
    let expected = settings.cluster().context("the settings name no cluster")?;
    let path = directory.registry_file();
    let target = match directory.has_cluster() {
        true => EmbeddedRegistry::open_of(&path, expected)?,
        false => EmbeddedRegistry::create(&path, expected)?,
    };
    let (source_name, target_name) = (location.to_string(), embedded_name(directory));
    let ends = Ends { source, source_name, target: Arc::new(target), target_name };
    if arguments.cancel {
        return ends.cancel().await;
    }
    let configuration = ends.configuration().await?.with_context(|| {
        format!("{location} does not tell what `millpond up` runs; was it changed by hand?")
    })?;
    match Presence::read(&*ends.source).await? {
        Presence::Here(found) if found != expected => {
            bail!("{location} has cluster {found}, and {given} is of cluster {expected}")
        }
        Presence::Here(_) => {
            check_nodes(&Cluster::new(ends.source.clone()), &configuration.node_ids(directory)).await?
        }
        // It has left, and these were looked at before.
        _ => {}
    }
    check_drives(&configuration, directory)?;
    let migrated = ends.migrate().await?;
    ends.migration().clean().await?;
    settings.forget_registry();
    settings.store()?;
    Ok(format!(
        "Cluster {} is in {} now: {} keys, {}. Nobody needs {location} any more.\n\nNext:\n  millpond up --detach --dir \
         {given}\n",
        migrated.cluster,
        path.display(),
        migrated.keys,
        ByteSize(migrated.bytes as u64)
    ))
}

/// Refuses where other hosts have nodes: they do not reach a registry of this machine.
async fn check_nodes(cluster: &Cluster, own: &BTreeSet<NodeId>) -> anyhow::Result<()> {
    let map = cluster.map().await?;
    let nodes = map.nodes.keys().chain(map.osds.values().map(|info| &info.node));
    let others: BTreeSet<&NodeId> = nodes.filter(|node| !own.contains(*node)).collect();
    if let Some(node) = others.first() {
        let (host, number) = (map.host_of(**node), node.0);
        let more = match others.len() {
            1 => String::new(),
            count => format!(", and so are {} more", count - 1),
        };
        bail!(
            "{node} is of another host, {host}, which does not reach a registry of this one{more}; empty it with `millpond node \
             drain {number}`, then remove it with `millpond node rm {number}`"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_an_etcd_or_the_registry_of_up() {
        assert_eq!("embedded".parse(), Ok(Destination::Embedded));
        assert_eq!("etcd://a".parse(), Ok(Destination::Etcd("etcd://a".to_owned())));
        for wrong in ["", "etcd", "unix:/x", "http://a"] {
            let refusal = wrong.parse::<Destination>().unwrap_err();
            assert!(refusal.contains("embedded") && refusal.contains("etcd://10.0.0.1"), "{refusal}");
        }
    }
}
