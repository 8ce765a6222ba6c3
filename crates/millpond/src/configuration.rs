//! What `up` was asked for the first time, remembered in the registry, so that later starts need no flags.

use crate::Usage;
use crate::device::OSD_BYTES_MIN;
use crate::directory::Directory;
use anyhow::{Context, bail};
use base::units::ByteSize;
use registry::Registry;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where it stands in the registry.
const KEY: &str = "millpond/local/configuration";
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

/// What a person asked `up` for; what is absent is left to the default or to memory.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Node processes.
    pub nodes: Option<u32>,
    /// The size of each OSD's file.
    pub osd_size: Option<ByteSize>,
    /// Devices instead of files.
    pub devices: Vec<PathBuf>,
    /// Copies of each object in the first pool.
    pub replicas: Option<u32>,
    /// Whether the drives lose what they did not flush with power, instead of what the kernel says.
    pub volatile_cache: Option<bool>,
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
    /// Every OSD was up once and the pool `default` was made: from then on a missing drive is a loss
    /// and is not made anew.
    pub prepared: bool,
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
        let nodes = match (request.nodes, devices) {
            (Some(nodes), 0) => nodes,
            (None, 0) => NODES_DEFAULT,
            (Some(nodes), devices) if nodes > devices => bail!(Usage(format!(
                "--nodes {nodes}: there {} for them; give each node a --device, or ask for fewer nodes",
                if devices == 1 {
                    "is only 1 device".to_owned()
                } else {
                    format!("are only {devices} devices")
                }
            ))),
            (Some(nodes), _) => nodes,
            (None, devices) => NODES_DEFAULT.min(devices),
        };
        let osds = if devices == 0 { nodes } else { devices };
        let replicas = request.replicas.unwrap_or(REPLICAS_DEFAULT.min(osds));
        if replicas > osds {
            bail!(Usage(format!(
                "--replicas {replicas}: each copy needs an OSD of its own, and there would be only {osds}; \
                 ask for fewer replicas or more nodes"
            )));
        }
        let volatile_cache = request.volatile_cache;
        Ok(Configuration { nodes, replicas, drives, volatile_cache, prepared: false })
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

    /// Its drives, each with the node that runs it. Device `i` belongs to node `i` modulo the nodes.
    pub fn drives(&self, directory: &Directory) -> Vec<(u32, PathBuf)> {
        match &self.drives {
            Drives::Files(_) => (0..self.nodes).map(|node| (node, directory.osd_file(node))).collect(),
            Drives::Devices(devices) => {
                (0u32..).zip(devices).map(|(index, path)| (index % self.nodes, path.clone())).collect()
            }
        }
    }

    /// Reads it from the registry, if a cluster was made there.
    pub async fn load(registry: &dyn Registry) -> anyhow::Result<Option<Configuration>> {
        let Some(entry) = registry.get(KEY).await? else { return Ok(None) };
        serde_json::from_slice(entry.value.as_bytes()).map(Some).with_context(|| {
            format!(
                "key {KEY} of the registry cannot be read; was it written by a newer version of millpond?"
            )
        })
    }

    /// Writes it to the registry.
    pub async fn store(&self, registry: &dyn Registry) -> anyhow::Result<()> {
        let text = serde_json::to_vec(self).context("cannot write the configuration as JSON")?;
        registry.put(KEY, text.into()).await.context("cannot remember the configuration")?;
        Ok(())
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
        let nodes: Vec<u32> = configuration.drives(&directory).into_iter().map(|(node, _)| node).collect();
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
    }
}
