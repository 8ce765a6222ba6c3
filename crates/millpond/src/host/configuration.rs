//! What `up` was asked for the first time, and which drives came and went since; remembered in the registry, so that
//! later starts need no flags. A running `up` follows it.

use crate::Usage;
use crate::host::directory::Directory;
use anyhow::{Context, bail};
use base::NodeId;
use base::duration::Limit;
use base::units::ByteSize;
use cluster::Cluster;
use drive::OSD_BYTES_MIN;
use registry::{Compare, KeyValue, Operation, Registry, Txn};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Where it stands in the registry.
pub const KEY: &str = "millpond/local/configuration";
/// How often a change is tried again because another came between.
const ATTEMPTS_MAX: usize = 100;
/// Nodes where nothing else is asked for.
const NODES_DEFAULT: u32 = 3;
/// Nodes on one machine at most: each is a process with threads of its own.
pub const NODES_MAX: u32 = 64;
/// Copies of each object where nothing else is asked for and there are as many OSDs.
const REPLICAS_DEFAULT: u32 = 3;
/// Copies of each object at most.
pub const REPLICAS_MAX: u32 = 8;
/// The size of an OSD's file where nothing else is asked for.
const OSD_SIZE_DEFAULT: ByteSize = ByteSize(8 << 30);

/// What a person asks `up` for; what is absent is left to the default or to memory.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Request {
    /// Node processes [default: 3, or the number of devices when fewer]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    pub nodes: Option<u32>,

    /// The size of each OSD's file [default: 8GiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "devices")]
    pub osd_size: Option<ByteSize>,

    /// A block device, or a file that serves as one, for an OSD; repeat it for more. Dealt to the nodes in turn
    #[arg(long = "device", value_name = "PATH")]
    pub devices: Vec<PathBuf>,

    /// Copies of each object [default: 3, or the number of OSDs when fewer]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
    pub replicas: Option<u32>,

    /// Whether the drives lose what they did not flush with power; false only with power-loss protection
    /// [default: what the kernel says]
    #[arg(long, value_name = "BOOL")]
    pub volatile_cache: Option<bool>,

    /// How long an OSD may be down before its data is placed on others, for example 30min, or never; remembered
    /// [default: 10min]
    // Kept with the cluster's settings.
    #[arg(long, value_name = "DURATION")]
    pub osd_out_after: Option<Limit>,

    /// Have the traffic between clients and OSDs, and among OSDs, encrypted; remembered. `millpond cluster encryption off`
    /// takes it back
    // Kept in its map.
    #[arg(long)]
    pub encryption: bool,
}

/// What the OSDs live on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drives {
    /// One file for each node in the cluster's directory, each of that size.
    Files(ByteSize),
    /// Devices or files given by path, dealt to the nodes in turn.
    Devices(Vec<PathBuf>),
}

/// A cluster on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Its node processes.
    pub nodes: u32,
    /// Copies of each object in the pool `default`.
    pub replicas: u32,
    /// What its OSDs live on.
    pub drives: Drives,
    /// Whether the drives lose what they did not flush with power, where that was said by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volatile_cache: Option<bool>,
    /// Drives that were added since the first start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<AddedDrive>,
    /// How many drives were ever added.
    #[serde(default)]
    pub additions: u32,
    /// Drives of the first start whose OSDs were removed; those in the cluster's directory relative to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<PathBuf>,
    /// Every OSD was up once and the pool `default` was made: from then on a missing drive is a loss
    /// and is not made anew.
    pub prepared: bool,
}

/// A drive that was added to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddedDrive {
    /// The node that runs its OSD.
    pub node: u32,
    /// Where it is, relative to the cluster's directory if it is in there.
    pub path: PathBuf,
    /// Which addition it was.
    pub addition: u32,
}

/// A drive of a cluster as it is made up now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeDrive {
    /// The node that runs its OSD.
    pub node: u32,
    /// Where it is.
    pub path: PathBuf,
    /// Which addition it was, 0 at the first start: a drive that was removed and added again is another one.
    pub addition: u32,
}

impl Configuration {
    /// A new cluster as asked for. Says what cannot be.
    pub fn new(request: &Request) -> anyhow::Result<Configuration> {
        let drives = if request.devices.is_empty() {
            let size = request.osd_size.unwrap_or(OSD_SIZE_DEFAULT);
            if size.0 < OSD_BYTES_MIN {
                bail!(Usage(format!(
                    "--osd-size {size}: an OSD needs at least {}; give more",
                    ByteSize(OSD_BYTES_MIN)
                )));
            }
            Drives::Files(ByteSize(size.0 / 4096 * 4096))
        } else {
            let absolute = |path: &PathBuf| {
                std::path::absolute(path).with_context(|| format!("cannot make sense of the path {path:?}"))
            };
            Drives::Devices(request.devices.iter().map(absolute).collect::<anyhow::Result<_>>()?)
        };
        let devices = request.devices.len() as u32;
        // Of files there are as many as nodes.
        let nodes =
            request.nodes.unwrap_or(if devices == 0 { NODES_DEFAULT } else { NODES_DEFAULT.min(devices) });
        let osds = if devices == 0 { nodes } else { devices };
        if nodes > osds {
            let are = if osds == 1 { "is only 1 device" } else { &format!("are only {osds} devices") };
            bail!(Usage(format!(
                "--nodes {nodes}: there {are} for them; give each node a --device, or ask for fewer nodes"
            )));
        }
        let replicas = request.replicas.unwrap_or(REPLICAS_DEFAULT.min(osds));
        if replicas > osds {
            bail!(Usage(format!(
                "--replicas {replicas}: each copy needs an OSD of its own, and there would be only {osds}; \
                 ask for fewer replicas or more nodes"
            )));
        }
        Ok(Configuration {
            nodes,
            replicas,
            drives,
            volatile_cache: request.volatile_cache,
            added: Vec::new(),
            additions: 0,
            removed: Vec::new(),
            prepared: false,
        })
    }

    /// What in `request` contradicts this cluster, as a sentence.
    pub fn conflict(&self, request: &Request, directory: &Directory) -> Option<String> {
        let leave_out = |flag: &str, is: String| {
            Some(format!(
                "{flag} does not fit the cluster in {}, which {is}; leave {flag} out to start it as it is, \
                 or make another cluster with another --dir",
                directory.given()
            ))
        };
        if request.nodes.is_some_and(|nodes| nodes != self.nodes) {
            return leave_out("--nodes", format!("has {} nodes", self.nodes));
        }
        if request.replicas.is_some_and(|replicas| replicas != self.replicas) {
            return leave_out("--replicas", format!("was made with {} copies of each object", self.replicas));
        }
        if request.volatile_cache.is_some() && request.volatile_cache != self.volatile_cache {
            return leave_out("--volatile-cache", "was made with another choice".to_owned());
        }
        match (&self.drives, request.osd_size, request.devices.as_slice()) {
            (_, None, []) => None,
            (Drives::Files(size), Some(asked), _) if *size == asked => None,
            (Drives::Files(size), Some(_), _) => leave_out("--osd-size", format!("has OSD files of {size}")),
            (Drives::Devices(_), Some(_), _) => leave_out("--osd-size", "lives on devices".to_owned()),
            (Drives::Files(_), None, _) => leave_out("--device", "lives on files of its own".to_owned()),
            (Drives::Devices(devices), None, asked) => {
                let mut asked: Vec<PathBuf> =
                    asked.iter().map(|path| std::path::absolute(path).unwrap_or(path.clone())).collect();
                let mut devices = devices.clone();
                asked.sort();
                devices.sort();
                if asked == devices {
                    return None;
                }
                let list: Vec<String> = devices.iter().map(|path| path.display().to_string()).collect();
                leave_out("--device", format!("lives on {}", list.join(", ")))
            }
        }
    }

    /// Its drives, each with the node that runs it.
    pub fn drives(&self, directory: &Directory) -> Vec<NodeDrive> {
        let is_removed = |path: &Path| self.removed.iter().any(|one| directory.path().join(one) == path);
        let first = self.first_drives(directory).into_iter().filter(|(_, path)| !is_removed(path));
        let first = first.map(|(node, path)| NodeDrive { node, path, addition: 0 });
        let added = self.added.iter().map(|added| NodeDrive {
            node: added.node,
            path: directory.path().join(&added.path),
            addition: added.addition,
        });
        first.chain(added).collect()
    }

    /// Its nodes, those without a drive included.
    pub fn node_ids(&self, directory: &Directory) -> BTreeSet<NodeId> {
        let nodes = (0..self.nodes).chain(self.drives(directory).into_iter().map(|drive| drive.node));
        nodes.map(NodeId).collect()
    }

    /// Those of the first start. Device `i` belongs to node `i` modulo the nodes.
    fn first_drives(&self, directory: &Directory) -> Vec<(u32, PathBuf)> {
        match &self.drives {
            Drives::Files(_) => (0..self.nodes).map(|node| (node, directory.osd_file(node))).collect(),
            Drives::Devices(devices) => {
                (0u32..).zip(devices).map(|(index, path)| (index % self.nodes, path.clone())).collect()
            }
        }
    }

    /// Adds a drive, unless it is there already.
    pub fn add(&mut self, node: u32, path: &Path, directory: &Directory) -> anyhow::Result<NodeDrive> {
        if self.drives(directory).iter().any(|drive| drive.path == path) {
            bail!(
                "{}: is a drive of this cluster already; `millpond osd tree` shows its OSD",
                path.display()
            );
        }
        self.additions += 1;
        let addition = self.additions;
        self.added.push(AddedDrive { node, path: within(path, directory), addition });
        Ok(NodeDrive { node, path: path.to_owned(), addition })
    }

    /// Forgets a drive, if it knows it.
    pub fn forget(&mut self, path: &Path, directory: &Directory) {
        if !self.drives(directory).iter().any(|drive| drive.path == path) {
            return;
        }
        let own = within(path, directory);
        let count = self.added.len();
        self.added.retain(|added| added.path != own);
        if self.added.len() == count {
            self.removed.push(own);
        }
    }

    /// The node that has the fewest drives; of several the first.
    pub fn emptiest_node(&self, directory: &Directory) -> u32 {
        let mut counts: BTreeMap<u32, usize> = (0..self.nodes).map(|node| (node, 0)).collect();
        for drive in self.drives(directory) {
            *counts.entry(drive.node).or_default() += 1;
        }
        counts.into_iter().min_by_key(|(node, count)| (*count, *node)).map_or(0, |(node, _)| node)
    }

    /// Reads it from the registry, if a cluster was made there.
    pub async fn load(registry: &dyn Registry) -> anyhow::Result<Option<Configuration>> {
        Ok(Stored::read(registry).await?.map(|stored| stored.configuration))
    }

    /// Writes it to the registry for the first time.
    pub async fn store(&self, registry: &dyn Registry) -> anyhow::Result<()> {
        registry.put(KEY, self.to_json()?.into()).await.context("cannot remember the configuration")?;
        Ok(())
    }

    /// Changes what stands in the registry, whoever else changes it too. Answers it as it is then, and what
    /// `change` answered.
    pub async fn change<T>(
        registry: &dyn Registry,
        mut change: impl FnMut(&mut Configuration) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Configuration, T)> {
        for _ in 0..ATTEMPTS_MAX {
            let stored = Stored::require(registry).await?;
            let mut configuration = stored.configuration.clone();
            let answer = change(&mut configuration)?;
            if registry.txn(stored.replaced_by(&configuration)?).await?.succeeded {
                return Ok((configuration, answer));
            }
        }
        bail!("the cluster's configuration is being changed by others all the time; try again")
    }

    fn to_json(&self) -> anyhow::Result<Vec<u8>> {
        serde_json::to_vec(self).context("cannot write the configuration as JSON")
    }
}

/// A path as it is written down: so that the cluster's directory can be moved.
fn within(path: &Path, directory: &Directory) -> PathBuf {
    path.strip_prefix(directory.path()).unwrap_or(path).to_owned()
}

/// The configuration as it was read.
pub struct Stored {
    /// What it says.
    pub configuration: Configuration,
    entry: KeyValue,
}

impl Stored {
    async fn read(registry: &dyn Registry) -> anyhow::Result<Option<Stored>> {
        let Some(entry) = registry.get(KEY).await? else { return Ok(None) };
        let configuration = serde_json::from_slice(entry.value.as_bytes()).with_context(|| {
            format!(
                "key {KEY} of the registry cannot be read; was it written by a newer version of millpond?"
            )
        })?;
        Ok(Some(Stored { configuration, entry }))
    }

    /// Reads it where a cluster runs.
    pub async fn require(registry: &dyn Registry) -> anyhow::Result<Stored> {
        let stored = Stored::read(registry).await?;
        stored.context("the cluster was not started by `millpond up`, so its drives are not known")
    }

    /// Replaces it by another, if it is unchanged.
    pub fn replaced_by(&self, configuration: &Configuration) -> anyhow::Result<Txn> {
        Ok(Txn::new()
            .when(Cluster::is_here())
            .when(Compare::unchanged(KEY, Some(&self.entry)))
            .then(Operation::put(KEY, configuration.to_json()?)))
    }
}

/// The in-sync copies below which a placement group of `size` copies stops: it survives the loss of half.
pub fn min_size_default(size: u32) -> u32 {
    size - size / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn devices(count: usize) -> Vec<PathBuf> {
        (0..count).map(|index| format!("/dev/d{index}").into()).collect()
    }

    fn refusal(request: &Request) -> String {
        Configuration::new(request).unwrap_err().to_string()
    }

    #[test]
    fn devices_are_dealt_to_the_nodes_in_turn() {
        let request = Request { devices: devices(5), nodes: Some(2), ..Request::default() };
        let configuration = Configuration::new(&request).unwrap();
        let directory = Directory::new(Path::new("/pond")).unwrap();
        let nodes: Vec<u32> = configuration.drives(&directory).into_iter().map(|drive| drive.node).collect();
        assert_eq!(nodes, [0, 1, 0, 1, 0]);
        assert_eq!(configuration.replicas, 3);
    }

    #[test]
    fn fewer_devices_than_three_make_fewer_nodes_and_copies() {
        let request = Request { devices: devices(2), ..Request::default() };
        let configuration = Configuration::new(&request).unwrap();
        assert_eq!((configuration.nodes, configuration.replicas), (2, 2));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_flag_named() {
        let small = Request { osd_size: Some(ByteSize(1 << 20)), ..Request::default() };
        assert!(refusal(&small).contains("--osd-size 1MiB"));
        let nodes = Request { nodes: Some(3), devices: devices(1), ..Request::default() };
        assert!(refusal(&nodes).contains("--nodes 3"));
        let replicas = Request { replicas: Some(4), ..Request::default() };
        assert!(refusal(&replicas).contains("--replicas 4"));
    }

    #[test]
    fn a_later_start_may_repeat_the_flags_but_not_contradict_them() {
        let directory = Directory::new(Path::new("/pond")).unwrap();
        let first = Request { osd_size: Some(ByteSize(1 << 30)), ..Request::default() };
        let configuration = Configuration::new(&first).unwrap();
        assert_eq!(configuration.conflict(&Request::default(), &directory), None);
        assert_eq!(configuration.conflict(&first, &directory), None);
        let conflicts = [
            (Request { nodes: Some(4), ..Request::default() }, "--nodes"),
            (Request { replicas: Some(2), ..Request::default() }, "--replicas"),
            (Request { osd_size: Some(ByteSize(2 << 30)), ..Request::default() }, "--osd-size"),
            (Request { devices: devices(3), ..Request::default() }, "--device"),
        ];
        for (request, flag) in conflicts {
            let sentence = configuration.conflict(&request, &directory).unwrap();
            assert!(sentence.starts_with(flag) && sentence.contains("/pond"), "{sentence}");
        }
        let on_devices = Configuration::new(&Request { devices: devices(3), ..Request::default() }).unwrap();
        let reordered = Request { devices: devices(3).into_iter().rev().collect(), ..Request::default() };
        assert_eq!(on_devices.conflict(&reordered, &directory), None);
    }

    #[test]
    fn drives_come_and_go_and_the_others_stay_where_they_are() {
        let directory = Directory::new(Path::new("/pond")).unwrap();
        let shown = |configuration: &Configuration| -> Vec<String> {
            let drives = configuration.drives(&directory).into_iter();
            drives.map(|drive| format!("{} {}", drive.node, drive.path.display())).collect()
        };
        let mut files = Configuration::new(&Request::default()).unwrap();
        files.forget(Path::new("/pond/osd.1.img"), &directory);
        assert_eq!(shown(&files), ["0 /pond/osd.0.img", "2 /pond/osd.2.img"]);
        assert_eq!(files.emptiest_node(&directory), 1);
        let added = files.add(1, Path::new("/pond/osd.1.img"), &directory).unwrap();
        assert_eq!((added.node, added.addition), (1, 1));
        let refusal = files.add(0, Path::new("/pond/osd.2.img"), &directory).unwrap_err().to_string();
        assert!(refusal.contains("is a drive of this cluster already"), "{refusal}");
        files.add(3, Path::new("/dev/x"), &directory).unwrap();
        assert_eq!(
            shown(&files),
            ["0 /pond/osd.0.img", "2 /pond/osd.2.img", "1 /pond/osd.1.img", "3 /dev/x"]
        );
        files.forget(Path::new("/pond/osd.1.img"), &directory);
        files.forget(Path::new("/nowhere"), &directory);
        assert_eq!(shown(&files), ["0 /pond/osd.0.img", "2 /pond/osd.2.img", "3 /dev/x"]);
        let moved = Directory::new(Path::new("/lake")).unwrap();
        assert_eq!(files.drives(&moved).len(), 3, "what was removed from the directory stays removed");

        let mut devices = Configuration::new(&Request { devices: devices(3), ..Request::default() }).unwrap();
        devices.forget(Path::new("/dev/d0"), &directory);
        assert_eq!(shown(&devices), ["1 /dev/d1", "2 /dev/d2"]);
        assert_eq!(devices.conflict(&Request::default(), &directory), None);
    }

    #[test]
    fn half_of_the_copies_may_be_lost() {
        let sizes: Vec<u32> = (1..=5).map(min_size_default).collect();
        assert_eq!(sizes, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_configuration_survives_json() {
        let configuration =
            Configuration::new(&Request { devices: devices(3), ..Request::default() }).unwrap();
        let text = serde_json::to_string(&configuration).unwrap();
        assert_eq!(serde_json::from_str::<Configuration>(&text).unwrap(), configuration);
        let older = r#"{"nodes":3,"replicas":3,"drives":{"files":8589934592},"prepared":true}"#;
        assert_eq!(serde_json::from_str::<Configuration>(older).unwrap().added, []);
    }
}
