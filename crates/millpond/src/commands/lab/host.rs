//! What this program knows of the subjects of a plan.

use crate::commands::bench::nodes_of;
use crate::host::access;
use crate::host::directory::Directory;
use crate::host::inquiry::Inquiry;
use crate::top::scrape;
use anyhow::bail;
use api::figures::NodeFigures;
use cluster::HttpServers;
use doors::nbd::{NbdAddress, NbdUri};
use lab::engine::cpu::Watched;
use lab::engine::plan::TargetName;
use lab::monitor::device_bytes;
use lab::plan::{Place, Subject};
use lab::run::{Condition, Counted, Host};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// OSDs tell every two seconds what they have done.
const VOLUME_DELAY: Duration = Duration::from_millis(2500);

/// The program that runs, even if another was built meanwhile.
pub fn own_program() -> Command {
    Command::new("/proc/self/exe")
}

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
        let mut command = own_program();
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
            // What is asked of a cluster that is up there its nodes work for.
            Some(Place::System(_)) if directory.holder()?.is_some() => nodes_of(&directory),
            Some(Place::Nbd(uri)) => served_by(&directory, "NBD server", server_of(uri)),
            Some(Place::VhostUser(socket)) => {
                served_by(&directory, "vhost-user back-end", listener_on(Path::new(socket)))
            }
            _ => Ok(Vec::new()),
        }
    }

    fn served_delay(&self, subject: &Subject) -> Duration {
        match subject.place() {
            Some(Place::Volume(_)) => VOLUME_DELAY,
            _ => Duration::ZERO,
        }
    }

    fn served(&self, subject: &Subject, clients: u32) -> anyhow::Result<Option<Counted>> {
        let clients = if subject.is_by_client() { clients } else { 1 };
        let targets: Vec<TargetName> = (1..=clients).filter_map(|client| subject.target(client)).collect();
        match subject.place() {
            // What lies in the page cache is counted when it is written back, or never.
            Some(Place::Raw(_)) if !subject.is_direct() => Ok(None),
            Some(Place::Raw(_)) => {
                let mut counted = Counted::default();
                for target in &targets {
                    let TargetName::Raw(path) = target else { return Ok(None) };
                    let Some((read, written)) = device_bytes(path) else { return Ok(None) };
                    counted.read_bytes += read;
                    counted.written_bytes += written;
                }
                Ok(Some(counted))
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

    fn condition(&self, subject: &Subject) -> anyhow::Result<Condition> {
        let path = self.directory_of(subject);
        match subject.place() {
            Some(Place::Volume(_)) => condition(&path),
            // An export may be anybody's, and a system anything.
            Some(Place::Nbd(_) | Place::VhostUser(_) | Place::System(_))
                if Directory::new(&path)?.holder()?.is_some() =>
            {
                Ok(Condition { full: None, ..condition(&path)? })
            }
            _ => Ok(Condition::default()),
        }
    }
}

/// How full a cluster is, and how its nodes were built.
fn condition(directory: &Path) -> anyhow::Result<Condition> {
    access::with_inquiry(directory, async |inquiry| {
        let capacity = inquiry.overview().await?.capacity;
        let share = |used: u64, usable: u64| (usable > 0).then(|| used as f64 / usable as f64);
        let full =
            capacity.used_bytes.zip(capacity.usable_bytes).and_then(|(used, usable)| share(used, usable));
        let (nodes, _) = figures_of_all(inquiry).await?;
        Ok(Condition { full, is_debug: nodes.iter().any(|node| node.is_debug) })
    })
}

/// What all processes of a cluster count, and who of them does not say.
async fn figures_of_all(inquiry: &Inquiry) -> anyhow::Result<(Vec<NodeFigures>, Vec<String>)> {
    let desk = inquiry.desk();
    let map = Arc::new(desk.map().await?);
    scrape::all(&desk.ask(HttpServers {}).await?, &map, inquiry).await
}

/// Who works for what a server serves. It may be anybody's; if a cluster is up in the directory, it is most likely that one's.
fn served_by(directory: &Directory, label: &str, server: Option<u32>) -> anyhow::Result<Vec<Watched>> {
    let is_up = directory.holder()?.is_some();
    let mut processes = if is_up { nodes_of(directory)? } else { Vec::new() };
    processes.extend(server.map(|pid| Watched { label: label.to_owned(), pid }));
    Ok(processes)
}

/// The process that serves an export by a socket of this host's file system.
fn server_of(uri: &str) -> Option<u32> {
    let NbdAddress::Unix(path) = uri.parse::<NbdUri>().ok()?.address else { return None };
    let stream = UnixStream::connect(path).ok()?;
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
    u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0)
}

/// The process that listens on a socket of this host's file system, found without connecting: a back-end has one front-end.
fn listener_on(path: &Path) -> Option<u32> {
    const LISTENS: &str = "00010000";
    let path = std::path::absolute(path).ok()?;
    let all = std::fs::read_to_string("/proc/net/unix").ok()?;
    let inode = all.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (flags, inode, bound) = (fields.nth(3)?, fields.nth(2)?, fields.next()?);
        (flags == LISTENS && Path::new(bound) == path).then(|| format!("socket:[{inode}]"))
    })?;
    let has_it = |pid: &u32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
        targets.any(|target| target.to_str() == Some(&inode))
    };
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(has_it)
}

/// Bytes that the OSDs of a cluster read and wrote for clients of these volumes; `None` if one of its processes does not say.
fn volume_bytes(directory: &Path, names: &[&str]) -> anyhow::Result<Option<Counted>> {
    access::with_inquiry(directory, async |inquiry| {
        let map = inquiry.desk().map().await?;
        let mut volumes = Vec::new();
        for name in names {
            match map.volume_named(name) {
                Some((volume, _)) => volumes.push(volume),
                None => bail!("there is no volume {name}; `millpond volume ls` lists them"),
            }
        }
        let (nodes, silent) = figures_of_all(inquiry).await?;
        if !silent.is_empty() {
            return Ok(None);
        }
        let mut counted = Counted { by: nodes.iter().map(|node| node.pid).collect(), ..Counted::default() };
        for one in nodes.iter().flat_map(|node| &node.osds).flat_map(|osd| &osd.volumes) {
            if volumes.contains(&one.volume) {
                counted.read_bytes += one.traffic.read_bytes;
                counted.written_bytes += one.traffic.written_bytes;
            }
        }
        Ok(Some(counted))
    })
}
