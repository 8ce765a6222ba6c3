//! `millpond node`: hosts of a cluster whose registry is an etcd.

use crate::args::ListArguments;
use crate::commands::membership::fewer_copies;
use crate::host::access;
use crate::host::addresses::Addresses;
use crate::host::directory::{Directory, Phase};
use crate::host::joined;
use crate::host::settings::Settings;
use crate::host::supervisor;
use crate::host::token::Token;
use crate::output::{self, table};
use anyhow::{Context, bail};
use base::map::{Admission, ClusterMap, Location, NodeInfo};
use base::units::ByteSize;
use base::{Access, NodeId, OsdId};
use clap::{Args, Subcommand};
use cluster::{Cluster, Manager, ManagerRecord};
use registry::{Connect, Txn};
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long the OSDs of a host that joins may take to come up.
const JOIN_LIMIT: Duration = Duration::from_secs(120);
/// How long its process may take to be seen.
const START_PATIENCE: Duration = Duration::from_secs(2);
/// How often they are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a removal is tried again because something came between.
const ATTEMPTS_MAX: usize = 100;
/// Where systemd says that it runs this machine.
const SYSTEMD: &str = "/run/systemd/system";
/// The unit that runs a node.
const UNIT: &str = "/etc/systemd/system/millpond-node.service";
const UNIT_NAME: &str = "millpond-node.service";

/// What can be done with hosts.
#[derive(Subcommand, Clone, Debug)]
pub enum NodeCommand {
    /// Let this host join a cluster with its drives, and run it
    #[command(after_help = JOIN_EXAMPLES)]
    Join(JoinArguments),
    /// Run the node of this host, until Ctrl-C; systemd does it where there is one
    #[command(after_help = "Examples:\n  millpond node run\n  millpond node run --dir /var/lib/millpond")]
    Run {
        /// In a session of its own, after whoever started it.
        #[arg(long, hide = true)]
        detached: bool,
    },
    /// Stop the node of this host, and wait until it has stopped
    #[command(
        after_help = "Examples:\n  millpond node stop\n\nWhere systemd runs it: systemctl stop millpond-node"
    )]
    Stop,
    /// Run the node of this host in the background again
    #[command(after_help = "Examples:\n  millpond node start")]
    Start,
    /// List the nodes
    #[command(after_help = "Examples:\n  millpond node ls\n  millpond node ls --json")]
    Ls(ListArguments),
    /// Take all OSDs of a node out: their data is moved to others while they go on serving
    #[command(after_help = "Examples:\n  millpond node drain 3\n  millpond status --watch")]
    Drain {
        /// The node's number
        #[arg(value_parser = parse_node)]
        node: NodeId,
        /// Go on though too few OSDs are left for the copies of some pool
        #[arg(long)]
        allow_fewer_copies: bool,
    },
    /// Remove a node that was drained, with its OSDs and its key
    #[command(after_help = "Examples:\n  millpond node rm 3")]
    Rm {
        /// The node's number
        #[arg(value_parser = parse_node)]
        node: NodeId,
    },
}

const JOIN_EXAMPLES: &str = "\
Examples:
  millpond node join millpond1.eyJyZWdpc3… --device /dev/nvme0n1 --device /dev/nvme1n1 --listen 10.0.0.4
  millpond node join millpond1.eyJyZWdpc3… --device /dev/nvme0n1 --listen 10.0.0.4 --rack r2 --zone a
  millpond node join millpond1.eyJyZWdpc3… --device /dev/nvme0n1 --listen 10.0.0.4 --listen fd00::4

`millpond cluster token` prints the token, on a host that takes part.";

/// How a host joins.
#[derive(Args, Clone, Debug)]
pub struct JoinArguments {
    /// The cluster's token; `-` reads it from stdin, where no list of processes shows it
    pub token: String,

    /// A block device for an OSD, or a file that serves as one; repeat it for more
    #[arg(long = "device", value_name = "PATH", required = true)]
    pub devices: Vec<PathBuf>,

    /// The address of this host that the others reach it at; repeat it for more, as of IPv4 and IPv6 or of several networks,
    /// the one that is preferred first
    #[arg(long, value_name = "IP", required = true)]
    pub listen: Vec<IpAddr>,

    /// The host's name [default: this machine's]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// The rack it stands in
    #[arg(long, value_name = "NAME")]
    pub rack: Option<String>,

    /// The zone it stands in
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,

    /// The region it stands in
    #[arg(long, value_name = "NAME")]
    pub region: Option<String>,

    /// Whether the drives lose what they did not flush with power; false only with power-loss protection
    /// [default: what the kernel says]
    #[arg(long, value_name = "BOOL")]
    pub volatile_cache: Option<bool>,
}

/// A node: `node ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Its number.
    pub node: NodeId,
    /// The machine it runs on.
    pub host: String,
    /// Where that stands, the largest first; empty if nobody said.
    pub location: String,
    /// Its OSDs.
    pub osds: Vec<OsdId>,
    /// Those that are up.
    pub osds_up: usize,
    /// Those that data is placed on.
    pub osds_in: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Its process that manages the cluster, if one of its processes does.
    pub manager_pid: Option<u32>,
}

/// Performs a `node` command.
pub fn run(command: &NodeCommand, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    match command {
        NodeCommand::Join(join) => self::join(join, &directory),
        NodeCommand::Run { detached } => {
            if *detached {
                nix::unistd::setsid().context("cannot leave the terminal's session")?;
            }
            joined::run(&directory)
        }
        NodeCommand::Start => {
            let node = Settings::require(&directory)?.require_node(&directory)?;
            let how = start(&directory)?;
            output::print_line(&format!("{node} {how}"))
        }
        NodeCommand::Stop => crate::commands::detach::down(path),
        NodeCommand::Ls(arguments) => {
            let (map, manager) =
                access::with_desk(path, async |desk| Ok((desk.map().await?, desk.ask(Manager {}).await?)))?;
            let views = views(&map, manager.as_ref().map(|(record, _)| record));
            output::show(arguments.json, &views, || table(&views))
        }
        NodeCommand::Drain { node, allow_fewer_copies } => drain(*node, *allow_fewer_copies, path),
        NodeCommand::Rm { node } => remove(*node, path),
    }
}

fn join(arguments: &JoinArguments, directory: &Directory) -> anyhow::Result<()> {
    let token: Token = crate::host::token::given(&arguments.token)?;
    if directory.has_cluster() {
        bail!("`millpond up` runs the cluster in {}; join another one with another --dir", directory.given());
    }
    directory.prepare()?;
    let lock = directory.lock()?;
    let mut settings = Settings::load(directory)?;
    if settings.are_of_client() {
        bail!("{} is of a client of a cluster; join with another --dir", directory.given());
    }
    match (settings.cluster(), settings.node()) {
        (Some(id), _) if id != token.cluster => {
            bail!("{} is of cluster {id}, not {}; join with another --dir", directory.given(), token.cluster)
        }
        (_, Some(node)) if has_joined(directory, node)? => bail!(
            "this host is {node} of the cluster already; `millpond node start` runs it, and another drive is named in \
             node.devices of {}",
            directory.settings_file().display()
        ),
        _ => {}
    }
    let devices = arguments.devices.iter().map(|path| {
        std::path::absolute(path).with_context(|| format!("cannot make sense of the path {path:?}"))
    });
    let devices = devices.collect::<anyhow::Result<Vec<PathBuf>>>()?;
    // Before anything is made: a wrong device leaves no half of a node behind.
    drive::check_new(&devices)?;
    let listen = Addresses::of_flags(&arguments.listen)?;
    settings.take(&token.registry, token.cluster, &token.etcd)?;
    let node = access::block_on(announce(arguments, directory, &mut settings, &token))?;
    settings.set("node.listen", listen.to_value());
    settings.set_devices(&devices);
    if let Some(volatile) = arguments.volatile_cache {
        settings.set("node.volatile_cache", volatile);
    }
    settings.store()?;
    drop(lock);
    let log = directory.child_log("node");
    let log_start = log.metadata().map_or(0, |metadata| metadata.len());
    let how = start(directory)?;
    let osds = comes_up(node, devices.len(), directory).with_context(|| {
        let last = supervisor::last_line(&log, log_start).map(|line| format!("; it said last: {line}"));
        format!(
            "not all OSDs of {node} came up{}; all of it is in {}",
            last.unwrap_or_default(),
            log.display()
        )
    })?;
    let names: Vec<String> = osds.iter().map(OsdId::to_string).collect();
    output::print_line(&format!(
        "This host is {node} and {how}: {} up. `millpond node ls` shows all hosts, `millpond status` how the cluster is.",
        names.join(", ")
    ))
}

/// Makes the node known to the cluster; answers which it is. A host that began to join before goes on as the same node.
async fn announce(
    arguments: &JoinArguments,
    directory: &Directory,
    settings: &mut Settings,
    token: &Token,
) -> anyhow::Result<NodeId> {
    let registry = settings.registry()?.context("the token names a registry")?.connect().await?;
    let cluster = Cluster::new(registry);
    let found = cluster.id().await?;
    if found != token.cluster {
        bail!(
            "the token is of cluster {}, and its registry has cluster {found}; get a new token",
            token.cluster
        );
    }
    let info = NodeInfo {
        host: arguments.host.clone().unwrap_or_else(this_host),
        location: Location {
            region: arguments.region.clone(),
            zone: arguments.zone.clone(),
            rack: arguments.rack.clone(),
        },
        client_port: None,
        addresses: Vec::new(),
    };
    let node = match settings.node() {
        // It began to join before.
        Some(node) => {
            cluster.change_node(node, |known| known.clone_from(&info)).await?;
            node
        }
        None => cluster.new_node(&info).await?,
    };
    settings.set("node.number", i64::from(node.0));
    // From here on it is known which node this is, whatever comes between.
    settings.store()?;
    access::admit(&cluster, &directory.host_key(), &node.to_string(), Access::Node(node)).await?;
    Ok(node)
}

/// The name that this machine has, as the kernel knows it.
pub fn this_host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// Whether a node has OSDs.
fn has_joined(directory: &Directory, node: NodeId) -> anyhow::Result<bool> {
    let map = access::with_cluster(directory.as_given(), async |cluster| Ok(cluster.map().await?))?;
    Ok(map.osds.values().any(|info| info.node == node))
}

/// Has the node run from now on; answers who runs it.
fn start(directory: &Directory) -> anyhow::Result<String> {
    if let Some(holder) = directory.holder()? {
        return Ok(format!("is run by process {} already", holder.pid));
    }
    if Path::new(SYSTEMD).exists() && nix::unistd::geteuid().is_root() {
        return start_by_systemd(directory);
    }
    let log = supervisor::open_log(&directory.child_log("node"))?;
    let arguments = ["node", "run", "--detached", "--dir"].map(Into::into).into_iter();
    let child = supervisor::start_in_background(arguments.chain([directory.path().into()]), log)?;
    Ok(format!(
        "runs in the background (process {}, log {})",
        child.id(),
        directory.child_log("node").display()
    ))
}

fn start_by_systemd(directory: &Directory) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let unit = unit(&program, directory.path());
    if std::fs::read_to_string(UNIT).ok().as_deref() != Some(&unit) {
        std::fs::write(UNIT, unit).with_context(|| format!("cannot write {UNIT}"))?;
    }
    for arguments in [&["daemon-reload"][..], &["enable", "--now", UNIT_NAME]] {
        let done = Command::new("systemctl").args(arguments).status().context("cannot run systemctl")?;
        if !done.success() {
            bail!("systemctl {} failed; `systemctl status {UNIT_NAME}` says why", arguments.join(" "));
        }
    }
    Ok(format!("is run by systemd as {UNIT_NAME}"))
}

/// What systemd is to do.
fn unit(program: &Path, directory: &Path) -> String {
    format!(
        "[Unit]\nDescription=Millpond node\nAfter=network-online.target\nWants=network-online.target\n\n\
         [Service]\nExecStart={} node run --dir {}\nRestart=always\nRestartSec=1\nLimitNOFILE=1048576\n\
         LimitMEMLOCK=infinity\nTimeoutStopSec=60\n\n[Install]\nWantedBy=multi-user.target\n",
        program.display(),
        directory.display()
    )
}

/// Waits until so many OSDs of a node are up.
fn comes_up(node: NodeId, count: usize, directory: &Directory) -> anyhow::Result<Vec<OsdId>> {
    access::with_cluster(directory.as_given(), async |cluster| {
        let began = Instant::now();
        let deadline = began + JOIN_LIMIT;
        loop {
            let map = cluster.map().await?;
            let up = map.osds.iter().filter(|(_, info)| info.node == node && info.address.is_some());
            let up: Vec<OsdId> = up.map(|(osd, _)| *osd).collect();
            if up.len() >= count {
                return Ok(up);
            }
            let has_ended = directory.holder()?.is_none_or(|holder| holder.phase == Phase::Stopping);
            if has_ended && began.elapsed() > START_PATIENCE {
                bail!("its process has ended, with {} of {count} up", up.len());
            }
            if Instant::now() >= deadline {
                bail!("{} of {count} are up after {} s", up.len(), JOIN_LIMIT.as_secs());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
}

/// A node as people name it: by its number, or as it is printed.
pub fn parse_node(text: &str) -> Result<NodeId, String> {
    let number = text.strip_prefix("node.").unwrap_or(text);
    let wrong = |_| format!("{text:?} names no node; write its number, for example 0 or node.0");
    number.parse().map(NodeId).map_err(wrong)
}

fn views(map: &ClusterMap, manager: Option<&ManagerRecord>) -> Vec<NodeView> {
    let known = map.nodes.keys().copied().chain(map.osds.values().map(|info| info.node));
    let known: BTreeSet<NodeId> = known.collect();
    let view = |node: NodeId| {
        let osds = || map.osds.iter().filter(move |(_, info)| info.node == node);
        NodeView {
            node,
            host: map.host_of(node),
            location: map.nodes.get(&node).map(|info| info.location.to_string()).unwrap_or_default(),
            osds: osds().map(|(osd, _)| *osd).collect(),
            osds_up: osds().filter(|(_, info)| info.address.is_some()).count(),
            osds_in: osds().filter(|(_, info)| info.admission == Admission::In).count(),
            bytes: osds().map(|(_, info)| info.bytes).sum(),
            manager_pid: manager.filter(|manager| manager.node == node).map(|manager| manager.pid),
        }
    };
    known.into_iter().map(view).collect()
}

fn table(views: &[NodeView]) -> String {
    if views.is_empty() {
        return "no nodes; `millpond node join` makes a host one\n".to_owned();
    }
    let row = |view: &NodeView| {
        vec![
            view.node.to_string(),
            view.host.clone(),
            view.location.clone(),
            view.osds.len().to_string(),
            view.osds_up.to_string(),
            view.osds_in.to_string(),
            ByteSize(view.bytes).to_string(),
            view.manager_pid.map(|pid| format!("process {pid}")).unwrap_or_default(),
        ]
    };
    let headings = ["NODE", "HOST", "LOCATION", ">OSDS", ">UP", ">IN", ">SIZE", "MANAGER"];
    table::render(&headings, views.iter().map(row))
}

fn drain(node: NodeId, allow_fewer_copies: bool, path: &Path) -> anyhow::Result<()> {
    let osds = access::with_cluster(path, async |cluster| {
        let map = cluster.map().await?;
        let osds = osds_of(&map, node)?;
        if !allow_fewer_copies && let Some(sentence) = fewer_copies(&map, &osds) {
            bail!("{sentence}; add OSDs on other nodes first, or say --allow-fewer-copies");
        }
        for osd in &osds {
            cluster.set_admission(*osd, Admission::Out).await?;
        }
        Ok(osds)
    })?;
    let out = match osds.as_slice() {
        [osd] => {
            format!("{osd} of {node} is out: what it holds is being moved to others, and it goes on serving")
        }
        osds => format!(
            "The {} OSDs of {node} are out: what they hold is being moved to others, and they go on serving",
            osds.len()
        ),
    };
    output::print_line(&format!(
        "{out} meanwhile.\n`millpond status --watch` shows how far it is. When nothing is left, `millpond node rm {}` \
         removes the node; `millpond osd in` takes an OSD in again.",
        node.0
    ))
}

fn osds_of(map: &ClusterMap, node: NodeId) -> anyhow::Result<Vec<OsdId>> {
    let osds: Vec<OsdId> =
        map.osds.iter().filter(|(_, info)| info.node == node).map(|(osd, _)| *osd).collect();
    if osds.is_empty() && !map.nodes.contains_key(&node) {
        bail!("there is no {node}; `millpond node ls` lists them");
    }
    Ok(osds)
}

fn remove(node: NodeId, path: &Path) -> anyhow::Result<()> {
    let osds = access::with_cluster(path, async |cluster| {
        let osds = osds_of(&cluster.map().await?, node)?;
        for osd in &osds {
            // Something that this was decided by may have changed: then it is looked at again.
            let mut attempts = 0..ATTEMPTS_MAX;
            while !cluster.remove_osd(*osd, Txn::new()).await? {
                if attempts.next().is_none() {
                    bail!("the cluster is being changed by others all the time; try again");
                }
            }
        }
        cluster.remove_node(node).await?;
        Ok(osds)
    })?;
    let (with, are) = match osds.len() {
        1 => ("1 OSD. Its drive is".to_owned(), "it is"),
        count => (format!("{count} OSDs. Its drives are"), "they are"),
    };
    output::print_line(&format!(
        "{node} is removed, with {with} left as {are}: `millpond osd wipe PATH --yes` makes one usable again."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_its_number_or_its_name() {
        assert_eq!(parse_node("3"), Ok(NodeId(3)));
        assert_eq!(parse_node("node.3"), Ok(NodeId(3)));
        assert!(parse_node("three").is_err());
        assert!(parse_node("osd.3").unwrap_err().contains("node.0"));
    }

    #[test]
    fn the_unit_of_systemd_runs_the_node_and_starts_it_again() {
        let unit = unit(Path::new("/usr/bin/millpond"), Path::new("/var/lib/millpond"));
        assert!(unit.contains("ExecStart=/usr/bin/millpond node run --dir /var/lib/millpond\n"), "{unit}");
        assert!(unit.contains("Restart=always"), "{unit}");
    }
}
