//! A host that has joined a cluster: runs the processes of its node, and follows what its settings say of drives.
//!
//! As with `millpond up`, a drive that is added while it runs gets one more process, so that those which run are not
//! disturbed; the next start makes one process of all of them again.

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

/// How often the settings are looked at for drives that were added.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs the node of this machine until someone wishes it to stop.
pub fn run(directory: &Directory) -> anyhow::Result<()> {
    run_cluster(serve(directory.clone()))
}

async fn serve(directory: Directory) -> anyhow::Result<(anyhow::Result<()>, DirectoryLock)> {
    let mut stop = StopSignals::install()?;
    let settings = Settings::require(&directory)?;
    let node = settings.require_node(&directory)?;
    let mut lock = directory.lock()?;
    let mut host =
        Host { supervisor: Supervisor::new(true)?, directory, node, drives: Vec::new(), processes: 0 };
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
    /// The drives that processes were started for.
    drives: Vec<PathBuf>,
    /// How many were started.
    processes: usize,
}

impl Host {
    async fn run(&mut self, stop: &mut StopSignals) -> anyhow::Result<()> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                ended = self.supervisor.supervise() => {
                    output::warning(&ended.message);
                    if self.supervisor.is_over() {
                        bail!("no process of {} is left, so it stops", self.node);
                    }
                }
                _ = look.tick() => {
                    let followed = Settings::load(&self.directory).and_then(|settings| self.follow(&settings));
                    if let Err(error) = followed {
                        output::warning(&format!("the settings are not followed: {error:#}"));
                    }
                }
                () = stop.wait() => return Ok(()),
            }
        }
    }

    /// Starts a process for the drives that none was started for.
    fn follow(&mut self, settings: &Settings) -> anyhow::Result<()> {
        let wanted = settings.devices();
        self.drives.retain(|drive| wanted.contains(drive));
        let new: Vec<PathBuf> = wanted.into_iter().filter(|drive| !self.drives.contains(drive)).collect();
        if new.is_empty() {
            return Ok(());
        }
        // They are not looked at again and again.
        self.drives.extend(new.iter().cloned());
        let (usable, lost): (Vec<PathBuf>, Vec<PathBuf>) =
            new.into_iter().partition(|drive| match drive::check(drive) {
                Ok(()) => true,
                Err(problem) => {
                    output::warning(&format!("{problem:#}; {} goes on without it", self.node));
                    false
                }
            });
        if usable.is_empty() {
            match self.processes {
                0 => bail!("none of the {} drives of {} can be used", lost.len(), self.node),
                _ => return Ok(()),
            }
        }
        self.start(&usable, settings)
    }

    fn start(&mut self, drives: &[PathBuf], settings: &Settings) -> anyhow::Result<()> {
        self.processes += 1;
        let name = match self.processes {
            1 => self.node.to_string(),
            number => format!("{}, process {number}", self.node),
        };
        let mut arguments: Vec<OsString> =
            vec!["node-process".into(), "--node".into(), self.node.0.to_string().into()];
        arguments.extend(["--dir".into(), self.directory.path().into()]);
        arguments.extend(["--key".into(), self.directory.host_key().into()]);
        arguments.extend(["--listen".into(), settings.listen().to_string().into()]);
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
        let log = self.directory.child_log("node");
        self.supervisor.start(ChildPlan { name, arguments, log, namespace: None })
    }
}
