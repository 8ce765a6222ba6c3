//! What this program knows of the subjects of a plan.

use crate::commands::bench::nodes_of;
use crate::host::access;
use crate::host::directory::Directory;
use crate::top::scrape;
use anyhow::bail;
use cluster::HttpServers;
use lab::engine::cpu::Watched;
use lab::engine::plan::TargetName;
use lab::monitor::device_bytes;
use lab::plan::{Place, Subject};
use lab::run::Host;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// OSDs tell every two seconds what they have done.
const VOLUME_DELAY: Duration = Duration::from_millis(2500);

/// This machine, and the cluster of the directory that the command was given.
pub struct ThisHost {
    directory: PathBuf,
}

impl ThisHost {
    /// With the cluster in a directory, where a subject names no other.
    pub fn new(directory: &Path) -> anyhow::Result<ThisHost> {
        Ok(ThisHost { directory: std::path::absolute(directory)? })
    }
}

impl Host for ThisHost {
    fn agent(&self) -> Command {
        // The program that runs, even if another was built meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.args(["lab", "agent"]);
        command
    }

    fn directory_of(&self, subject: &Subject) -> PathBuf {
        let own = subject.dir.as_ref().map(std::path::absolute).and_then(Result::ok);
        own.unwrap_or_else(|| self.directory.clone())
    }

    fn processes(&self, subject: &Subject) -> anyhow::Result<Vec<Watched>> {
        let directory = Directory::new(&self.directory_of(subject))?;
        match subject.place() {
            Some(Place::Volume(_)) => nodes_of(&directory),
            // The export may be anybody's; if a cluster is up here, it is most likely that one's.
            Some(Place::Nbd(_)) if directory.holder()?.is_some() => nodes_of(&directory),
            _ => Ok(Vec::new()),
        }
    }

    fn served_delay(&self, subject: &Subject) -> Duration {
        match subject.place() {
            Some(Place::Volume(_)) => VOLUME_DELAY,
            _ => Duration::ZERO,
        }
    }

    fn served(&self, subject: &Subject, clients: u32) -> anyhow::Result<Option<(u64, u64)>> {
        let clients = if subject.is_by_client() { clients } else { 1 };
        let targets: Vec<TargetName> = (1..=clients).filter_map(|client| subject.target(client)).collect();
        match subject.place() {
            Some(Place::Raw(_)) => {
                let counted = targets.iter().map(|target| match target {
                    TargetName::Raw(path) => device_bytes(path),
                    _ => None,
                });
                Ok(counted.sum_of_both())
            }
            Some(Place::Volume(_)) => {
                let names: Vec<&str> = targets
                    .iter()
                    .filter_map(|target| match target {
                        TargetName::Volume(name) => Some(name.as_str()),
                        _ => None,
                    })
                    .collect();
                volume_bytes(&self.directory_of(subject), &names)
            }
            _ => Ok(None),
        }
    }
}

trait SumOfBoth {
    /// The sums of both parts; `None` if one is unknown.
    fn sum_of_both(self) -> Option<(u64, u64)>;
}

impl<I: Iterator<Item = Option<(u64, u64)>>> SumOfBoth for I {
    fn sum_of_both(mut self) -> Option<(u64, u64)> {
        self.try_fold((0, 0), |sum, one| one.map(|one| (sum.0 + one.0, sum.1 + one.1)))
    }
}

/// Bytes that the OSDs of a cluster read and wrote for clients of these volumes; `None` if one of its processes does not say.
fn volume_bytes(directory: &Path, names: &[&str]) -> anyhow::Result<Option<(u64, u64)>> {
    access::with_inquiry(directory, async |inquiry| {
        let desk = inquiry.desk();
        let map = Arc::new(desk.map().await?);
        let mut volumes = Vec::new();
        for name in names {
            match map.volume_named(name) {
                Some((volume, _)) => volumes.push(volume),
                None => bail!("there is no volume {name}; `millpond volume ls` lists them"),
            }
        }
        let (nodes, silent) = scrape::all(&desk.ask(HttpServers {}).await?, &map, inquiry).await?;
        if !silent.is_empty() {
            return Ok(None);
        }
        let of_all = nodes.iter().flat_map(|node| &node.osds).flat_map(|osd| &osd.volumes);
        let ours = of_all.filter(|one| volumes.contains(&one.volume));
        Ok(Some(ours.fold((0, 0), |(read, written), one| {
            (read + one.traffic.read_bytes, written + one.traffic.written_bytes)
        })))
    })
}
