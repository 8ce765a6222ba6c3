//! A host that has joined a cluster: runs the processes of its node, and follows what its settings say of drives.
//!
//! As with `millpond up`, a drive that is added while it runs gets one more process, so that those which run are not
//! disturbed; the next start makes one process of all of them again. A process that runs is left alone, whatever the settings
//! say by then; once it has ended it is started again only for drives that they name. A drive that is not there is the
//! process's to wait for, and to tell of.

use crate::host::directory::{Directory, DirectoryLock, Phase};
use crate::host::local_cluster::run_cluster;
use crate::host::settings::Settings;
use crate::host::stop::StopSignals;
use crate::host::supervisor::{ChildPlan, Supervisor};
use crate::output;
use anyhow::bail;
use base::NodeId;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How often the settings are looked at for drives that were added, or are named no more: at least once before a process that
/// has ended is started again.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs the node of this machine until someone wishes it to stop.
pub fn run(directory: &Directory) -> anyhow::Result<()> {
    run_cluster(serve(directory.clone()))
}

async fn serve(directory: Directory) -> anyhow::Result<(anyhow::Result<()>, DirectoryLock)> {
    let mut stop = StopSignals::install()?;
    let settings = Settings::require(&directory)?;
    let node = settings.require_node(&directory)?;
    let mut lock = directory.lock()?;
    let (supervisor, processes) = (Supervisor::new(true)?, Vec::new());
    let mut host = Host { supervisor, directory, node, processes, started: 0 };
    host.follow(&settings)?;
    lock.announce(Phase::Running, None)?;
    let outcome = host.run(&mut stop).await;
    output::notice("stopping");
    for warning in host.supervisor.stop(stop.wait()).await {
        output::warning(&warning);
    }
    Ok((outcome, lock))
}

struct Host {
    directory: Directory,
    node: NodeId,
    supervisor: Supervisor,
    processes: Vec<Process>,
    /// How many were started.
    started: usize,
}

/// A process of the node, with the drives that it is for.
struct Process {
    name: String,
    drives: Vec<PathBuf>,
}

impl Host {
    async fn run(&mut self, stop: &mut StopSignals) -> anyhow::Result<()> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                ended = self.supervisor.supervise() => {
                    // One that has none of its drives any more ended by itself.
                    self.follow_or_warn();
                    match self.retire_if_needless(&ended.name) {
                        true => output::notice(&format!("{} has ended: it has no OSD any more", ended.name)),
                        false => output::warning(&ended.message),
                    }
                }
                _ = look.tick() => self.follow_or_warn(),
                () = stop.wait() => return Ok(()),
            }
            if self.started > 0 && self.supervisor.is_over() {
                bail!("no process of {} is left, so it stops", self.node);
            }
        }
    }

    fn follow_or_warn(&mut self) {
        let followed = Settings::load(&self.directory).and_then(|settings| self.follow(&settings));
        if let Err(error) = followed {
            output::warning(&format!("the settings are not followed: {error:#}"));
        }
    }

    /// Starts a process for the drives that none was started for, and has the others started for those alone that are named
    /// still.
    fn follow(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let wanted = settings.devices();
        for process in &mut self.processes {
            let count = process.drives.len();
            process.drives.retain(|drive| wanted.contains(drive));
            match process.drives.len() {
                // On a blank one that is no OSD's any more it would make another.
                0 if count > 0 => self.supervisor.start_no_more(&process.name),
                left if left < count => {
                    let arguments = arguments(&self.directory, self.node, &process.drives, settings);
                    self.supervisor.change(&process.name, arguments);
                }
                _ => {}
            }
        }
        let is_new = |drive: &PathBuf| !self.processes.iter().any(|process| process.drives.contains(drive));
        let new: Vec<PathBuf> = wanted.into_iter().filter(is_new).collect();
        if new.is_empty() {
            return Ok(());
        }
        for drive in &new {
            if let Err(problem) = drive::check(drive) {
                output::warning(&format!("{problem:#}; {} goes on without it", self.node));
            }
        }
        self.start(new, settings)
    }

    /// Has a process that has ended stay so if none of its drives is named any more. Says whether.
    fn retire_if_needless(&mut self, name: &str) -> bool {
        let is_needless = |process: &Process| process.name == name && process.drives.is_empty();
        if !self.processes.iter().any(is_needless) {
            return false;
        }
        self.supervisor.retire(name);
        self.processes.retain(|process| process.name != name);
        true
    }

    fn start(&mut self, drives: Vec<PathBuf>, settings: &Settings) -> anyhow::Result<()> {
        self.started += 1;
        let name = match self.started {
            1 => self.node.to_string(),
            number => format!("{}, process {number}", self.node),
        };
        let arguments = arguments(&self.directory, self.node, &drives, settings);
        let log = self.directory.child_log("node");
        self.processes.push(Process { name: name.clone(), drives });
        self.supervisor.start(ChildPlan { name, arguments, log, namespace: None })
    }
}

/// The arguments of a process for these drives.
fn arguments(directory: &Directory, node: NodeId, drives: &[PathBuf], settings: &Settings) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        vec!["node-process".into(), "--node".into(), node.0.to_string().into()];
    arguments.extend(["--dir".into(), directory.path().into()]);
    arguments.extend(["--key".into(), directory.host_key().into()]);
    arguments.extend(settings.listen().to_flags());
    arguments.extend(["--spin-us".into(), settings.spin_max().as_micros().to_string().into()]);
    if let Some(port) = settings.client_port() {
        arguments.extend(["--client-port".into(), port.to_string().into()]);
    }
    if let Some(volatile) = settings.volatile_cache() {
        arguments.extend(["--volatile-cache".into(), volatile.to_string().into()]);
    }
    for drive in drives {
        arguments.extend(["--osd".into(), drive.into()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_has_ended_is_started_again_only_for_drives_that_are_named() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::new(scratch.path()).unwrap();
        let says = |text: &str| {
            std::fs::write(directory.settings_file(), text).unwrap();
            Settings::load(&directory).unwrap()
        };
        let supervisor = Supervisor::new(true).unwrap();
        let (node, processes) = (NodeId(1), Vec::new());
        let mut host = Host { supervisor, directory: directory.clone(), node, processes, started: 0 };
        host.follow(&says("[node]\ndevices = [\"a\", \"b\"]\n")).unwrap();
        // The program of a test runs no node.
        assert!(host.supervisor.supervise().await.restarts);
        host.follow(&says("[node]\ndevices = [\"b\"]\n")).unwrap();
        assert!(!host.supervisor.is_over(), "one is left to it");
        host.follow(&says("[node]\n")).unwrap();
        assert!(host.supervisor.is_over());
    }
}
