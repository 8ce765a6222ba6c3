//! OSDs that join and leave a running cluster: `millpond osd add`, `out`, `in`, `rm`.
//!
//! Each changes the cluster's state and returns; the manager moves the data, and the `up` that runs the cluster
//! follows its stored configuration. A removal and the forgetting of the drive are one transaction, so that no drive
//! of a removed OSD is ever started.

use crate::Usage;
use crate::commands::last_copy::GivenUp;
use crate::host::access;
use crate::host::configuration::{Configuration, NODES_MAX, Stored};
use crate::host::directory::Directory;
use crate::host::drive_files;
use crate::host::inquiry::Inquiry;
use crate::host::settings::Settings;
use crate::host::supervisor;
use crate::output;
use anyhow::{Context, anyhow, bail};
use base::map::{Admission, ClusterMap};
use base::units::ByteSize;
use base::{NodeId, OsdId};
use clap::{ArgGroup, Args};
use cluster::Cluster;
use drive::{Drive, DriveError, OSD_BYTES_MIN};
use health::view::OsdView;
use placement::Candidate;
use registry::{Registry, Txn};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How long a new OSD may take to come up.
const ADD_LIMIT: Duration = Duration::from_secs(60);
/// How often it is looked for meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a removal is tried again because something came between.
const ATTEMPTS_MAX: usize = 100;

/// Make another OSD on a drive while everything runs.
#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("drive").required(true).args(["device", "size"])))]
pub struct AddArguments {
    /// A block device, or a file that serves as one
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,

    /// The size of a new file in the cluster's directory, instead of a device
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// The node that runs it, a new one too [default: the one with the fewest drives]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..i64::from(NODES_MAX)))]
    node: Option<u32>,

    /// Print the new OSD as JSON
    #[arg(long)]
    json: bool,
}

/// `millpond osd add`.
pub fn add(arguments: &AddArguments, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    let settings = Settings::load(&directory)?;
    if settings.registry_url().is_some() && !settings.are_of_up() {
        bail!(
            "this host has joined a cluster: name the drive in node.devices of {}, and its running node makes an OSD on it",
            directory.settings_file().display()
        );
    }
    let osd = access::with_cluster_and_inquiry(path, async |cluster, inquiry| {
        add_to(cluster, inquiry, arguments, &directory).await
    })?;
    output::show(arguments.json, &osd, || {
        format!(
            "{} is up on {} with {}. Its part of the data is being moved onto it.\n\
             `millpond status --watch` shows when all is well, `millpond osd tree` what it holds.\n",
            osd.osd,
            osd.node,
            osd.path.as_deref().unwrap_or("its drive")
        )
    })
}

async fn add_to(
    cluster: &Cluster,
    inquiry: &Inquiry,
    arguments: &AddArguments,
    directory: &Directory,
) -> anyhow::Result<OsdView> {
    let registry = cluster.registry().as_ref();
    let configuration = Stored::require(registry).await?.configuration;
    let node = arguments.node.unwrap_or_else(|| configuration.emptiest_node(directory));
    // Beside those of other hosts a new one gets its number by joining.
    let own = configuration.node_ids(directory);
    if Settings::are_there(directory) && !own.contains(&NodeId(node)) {
        let names: Vec<String> = own.iter().map(NodeId::to_string).collect();
        bail!(Usage(format!("--node {node}: is no node of this host; choose one of {}", names.join(", "))));
    }
    let drive = match (&arguments.device, arguments.size) {
        (Some(device), _) => {
            let path = std::path::absolute(device)
                .with_context(|| format!("cannot make sense of the path {device:?}"))?;
            check_device(&path, &configuration, directory)?;
            NewDrive { path, is_own: false }
        }
        (None, size) => new_file(size.unwrap_or_default(), &configuration, directory)?,
    };
    let log = directory.child_log(&format!("node.{node}"));
    let log_start = log.metadata().map_or(0, |metadata| metadata.len());
    let add = |configuration: &mut Configuration| configuration.add(node, &drive.path, directory);
    if let Err(error) = Configuration::change(registry, add).await {
        drive.give_up();
        return Err(error);
    }
    match comes_up(cluster, inquiry, NodeId(node), &drive.path).await {
        Ok(osd) => Ok(osd),
        Err(error) => {
            let forget = |configuration: &mut Configuration| {
                configuration.forget(&drive.path, directory);
                Ok(())
            };
            Configuration::change(registry, forget).await?;
            drive.give_up();
            let last = supervisor::last_line(&log, log_start);
            let last = last.map(|line| format!("; the last its node said: {line}")).unwrap_or_default();
            Err(error.context(format!(
                "{}: no OSD came up on it, so it was given up{last}; all of it is in {}",
                drive.path.display(),
                log.display()
            )))
        }
    }
}

/// A drive that is to become an OSD.
struct NewDrive {
    path: PathBuf,
    /// A file that was made for it.
    is_own: bool,
}

impl NewDrive {
    fn give_up(&self) {
        if self.is_own {
            // What is left behind is a file that nobody uses.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Checks that a drive is nobody's, this cluster's included.
fn check_device(path: &Path, configuration: &Configuration, directory: &Directory) -> anyhow::Result<()> {
    let known = configuration.drives(directory);
    let is_same = |other: &Path| other == path || same_file(other, path);
    if let Some(drive) = known.iter().find(|drive| is_same(&drive.path)) {
        bail!(
            "{}: is a drive of this cluster already, {} on node.{}; `millpond osd tree` shows its OSD",
            path.display(),
            drive.path.display(),
            drive.node
        );
    }
    let shown = path.display();
    match Drive::open_new(path)?.osd() {
        Ok(None) => Ok(()),
        Ok(Some(found)) => bail!(
            "{shown}: holds {} of cluster {}, and would lose it; give another device, or erase this one with \
             `millpond osd wipe {shown} --yes`",
            found.osd,
            found.cluster
        ),
        // Whose it is cannot be told, and nobody asks for its data here.
        Err(DriveError::Superblock(path, _)) => Err(DriveError::NotBlank(path).into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether two paths lead to one file or device.
pub fn same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

/// Makes a file for an OSD under a name that no drive of this cluster ever had.
fn new_file(
    size: ByteSize,
    configuration: &Configuration,
    directory: &Directory,
) -> anyhow::Result<NewDrive> {
    if size.0 < OSD_BYTES_MIN {
        bail!(Usage(format!("--size {size}: an OSD needs at least {}; give more", ByteSize(OSD_BYTES_MIN))));
    }
    let bytes = size.0 / 4096 * 4096;
    let ever = configuration.nodes + configuration.additions;
    let free = (ever..).map(|index| directory.osd_file(index)).find(|path| !path.exists());
    let path = free.context("there is no free name for another file")?;
    drive_files::make_file(&path, bytes, drive_files::can_set_aside(directory.path(), bytes))?;
    Ok(NewDrive { path, is_own: true })
}

/// Waits until an OSD of a node is up on a drive.
async fn comes_up(
    cluster: &Cluster,
    inquiry: &Inquiry,
    node: NodeId,
    path: &Path,
) -> anyhow::Result<OsdView> {
    let (shown, deadline) = (path.display().to_string(), Instant::now() + ADD_LIMIT);
    loop {
        // By the registry, which knows it first, and can tell it from one that was on that drive before.
        let (map, drives) = (cluster.map().await?, cluster.drives().await?);
        let is_up =
            |osd: &OsdId| map.osds.get(osd).is_some_and(|info| info.address.is_some() && info.node == node);
        let found = drives.iter().find(|(osd, drive)| **drive == shown && is_up(osd)).map(|(osd, _)| *osd);
        if let Some(found) = found
            && let Some(mut osd) = inquiry.osds().await?.into_iter().find(|osd| osd.osd == found && osd.up)
        {
            // It is up before it reports itself to whoever answers this.
            osd.path.get_or_insert(shown);
            return Ok(osd);
        }
        if Instant::now() >= deadline {
            return Err(anyhow!("it is not up after {} s", ADD_LIMIT.as_secs()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// `millpond osd out`.
pub fn out(osd: OsdId, allow_fewer_copies: bool, path: &Path) -> anyhow::Result<()> {
    let (before, held) = access::with_cluster(path, async |cluster| {
        let map = cluster.map().await?;
        // Who is down and not coming back must go; what its copies were worth is lost already.
        let is_up = map.osds.get(&osd).is_some_and(|info| info.address.is_some());
        if is_up
            && !allow_fewer_copies
            && let Some(sentence) = fewer_copies(&map, &[osd])
        {
            bail!("{sentence}; add an OSD first with `millpond osd add`, or say --allow-fewer-copies");
        }
        let before = cluster.set_admission(osd, Admission::Out).await?;
        let groups = map.pgs.values().filter(|config| config.in_sync.contains(&osd)).count();
        Ok((before, groups))
    })?;
    let is_out = match before {
        Admission::In => "is out",
        Admission::Out => "was out already",
        Admission::OutWhileDown => "is out, whether it comes back or not",
    };
    let number = osd.0;
    output::print_line(&match held {
        0 => {
            format!("{osd} {is_out}. It holds nothing that is needed: `millpond osd rm {number}` removes it.")
        }
        held => format!(
            "{osd} {is_out}. Its {} being moved to other OSDs; it goes on serving meanwhile.\n`millpond status --watch` \
             shows how far it is. When nothing is left, `millpond osd rm {number}` removes it; `millpond osd in {number}` \
             takes it in again.",
            if held == 1 {
                "1 placement group is".to_owned()
            } else {
                format!("{held} placement groups are")
            }
        ),
    })
}

/// What it would mean to take OSDs out, if too few would be left.
pub fn fewer_copies(map: &ClusterMap, osds: &[OsdId]) -> Option<String> {
    let within = Candidate::all(map);
    let left = within.iter().filter(|candidate| !osds.contains(&candidate.osd)).count();
    if left == within.len() {
        return None;
    }
    let pool = map.pools.values().filter(|pool| left < pool.size as usize).max_by_key(|pool| pool.size)?;
    let names = osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(", ");
    let osds = if left == 1 { "OSD" } else { "OSDs" };
    Some(format!(
        "taking {names} out would leave {left} {osds} for the {} copies of pool {}, whose data would then have \
         fewer copies",
        pool.size, pool.name
    ))
}

/// `millpond osd in`.
pub fn take_in(osd: OsdId, path: &Path) -> anyhow::Result<()> {
    let (before, is_up) = access::with_cluster(path, async |cluster| {
        let before = cluster.set_admission(osd, Admission::In).await?;
        let map = cluster.map().await?;
        Ok((before, map.osds.get(&osd).is_some_and(|info| info.address.is_some())))
    })?;
    let was = if before == Admission::In { "was in already" } else { "is in" };
    output::print_line(&match is_up {
        true => {
            format!("{osd} {was}: data is placed on it. `millpond status --watch` shows when all is well.")
        }
        false => format!(
            "{osd} {was}, and it is down: data is placed on it when it is back. `millpond osd tree` shows its node."
        ),
    })
}

/// `millpond osd rm`.
pub fn remove(osd: OsdId, given_up: &GivenUp, path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    let drive = access::with_cluster_and_inquiry(path, async |cluster, inquiry| {
        given_up.check_not_wanted(osd, cluster, inquiry).await?;
        remove_from(cluster, osd, &directory).await
    })?;
    let Some(drive) = drive else {
        return output::print_line(&format!("{osd} is removed. Where its drive was is not known."));
    };
    let delete = if drive.starts_with(directory.path()) { ", or delete the file" } else { "" };
    let shown = drive.display();
    output::print_line(&format!(
        "{osd} is removed. Its drive {shown} is left as it is.\nTo use it again: `millpond osd wipe {shown} --yes`, then \
         `millpond osd add --device {shown}`{delete}."
    ))
}

/// Removes an OSD together with what the configuration says of its drive. Answers where that was.
async fn remove_from(
    cluster: &Cluster,
    osd: OsdId,
    directory: &Directory,
) -> anyhow::Result<Option<PathBuf>> {
    let registry: &dyn Registry = cluster.registry().as_ref();
    let settings = Settings::load(directory)?;
    for _ in 0..ATTEMPTS_MAX {
        let drives = cluster.drives().await?;
        let drive = drives.get(&osd).map(PathBuf::from);
        let map = cluster.map().await?;
        let node_of = |osd: &OsdId| map.osds.get(osd).map(|info| info.node);
        let stored = if settings.registry_url().is_some() && !settings.are_of_up() {
            None
        } else {
            let stored = Stored::require(registry).await?;
            let own = stored.configuration.node_ids(directory);
            let is_own = |osd: &OsdId| node_of(osd).is_none_or(|node| own.contains(&node));
            Some(stored).filter(|_| is_own(&osd)).map(|stored| (stored, own))
        };
        let Some((stored, own)) = stored else {
            // Its host's settings name the drive still; the node finds there that its OSD was removed.
            match cluster.remove_osd(osd, Txn::new()).await? {
                true => return Ok(drive),
                false => continue,
            }
        };
        let mut configuration = stored.configuration.clone();
        if let Some(drive) = &drive {
            // Other hosts have paths of their own.
            let is_here = |other: &OsdId| node_of(other).is_some_and(|node| own.contains(&node));
            let is_shared = drives
                .iter()
                .any(|(other, path)| *other != osd && is_here(other) && Path::new(path) == drive);
            // A path that means another OSD's drive by now is still needed.
            if !is_shared {
                configuration.forget(drive, directory);
            }
        }
        if cluster.remove_osd(osd, stored.replaced_by(&configuration)?).await? {
            return Ok(drive);
        }
    }
    bail!("the cluster is being changed by others all the time; try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{OsdInfo, PoolInfo};
    use base::{NodeId, PoolId};

    #[test]
    fn taking_out_one_of_as_many_as_copies_is_told() {
        let mut map = ClusterMap::default();
        for osd in 0..4 {
            let info = OsdInfo { node: NodeId(osd), bytes: 1 << 30, ..OsdInfo::default() };
            map.osds.insert(OsdId(osd), info);
        }
        let pool = PoolInfo { name: "p".into(), size: 3, min_size: 2, pg_count: 64, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        assert_eq!(fewer_copies(&map, &[OsdId(0)]), None);
        map.osds.get_mut(&OsdId(3)).unwrap().admission = Admission::Out;
        let told = fewer_copies(&map, &[OsdId(0)]).unwrap();
        assert!(told.contains("leave 2 OSDs for the 3 copies of pool p"), "{told}");
        assert_eq!(fewer_copies(&map, &[OsdId(3)]), None, "it is out already");
    }

    #[test]
    fn a_new_file_has_a_name_that_no_drive_had() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        let request = crate::host::configuration::Request::default();
        let mut configuration = Configuration::new(&request).unwrap();
        let size = ByteSize(OSD_BYTES_MIN);
        let first = new_file(size, &configuration, &directory).unwrap();
        assert_eq!(first.path, directory.osd_file(3));
        configuration.add(0, &first.path, &directory).unwrap();
        configuration.forget(&first.path, &directory);
        let second = new_file(size, &configuration, &directory).unwrap();
        assert_eq!(second.path, directory.osd_file(4));
        second.give_up();
        assert!(!second.path.exists() && first.path.exists());
        assert!(new_file(ByteSize(1 << 20), &configuration, &directory).is_err());
    }
}
