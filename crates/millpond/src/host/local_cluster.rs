//! A whole cluster on this machine, or this machine's part of one: one child process per node, and the registry in this
//! process, if it was not moved elsewhere ([`crate::host::home`]).
//!
//! [`LocalCluster::open`] takes the directory, [`LocalCluster::become_ready`] starts the nodes and waits,
//! [`LocalCluster::run`] keeps them running, [`LocalCluster::stop`] ends them in good order. All of it
//! belongs on the main thread, as [`crate::host::supervisor`] explains.
//!
//! While it runs it follows the stored configuration: a drive that was added gets one more process of its node,
//! so that those which run are not disturbed; a process whose last drive was removed is not started again. The
//! next start makes one process of each node again.

use crate::host::access;
use crate::host::configuration::{self, Configuration, Drives, NodeDrive, Request};
use crate::host::directory::{Directory, DirectoryLock, Phase};
use crate::host::drive_files;
use crate::host::home::Home;
use crate::host::inquiry::Inquiry;
use crate::host::network_namespaces::NetworkNamespaces;
use crate::host::readiness::{GROUPS_ACTIVE, OSDS_UP, Start, Step};
use crate::host::scrape_targets::ScrapeTargets;
use crate::host::stop::StopSignals;
use crate::host::supervisor::{ChildPlan, Ended, Running, Supervisor};
use crate::output;
use crate::output::progress::Progress;
use anyhow::{Context, bail};
use base::{Access, ClusterId, Encryption, NodeId};
use cluster::Cluster;
use registry::{Registry, RegistryError, Revision, Watch};
use registry_remote::{Desk, SocketServer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long tasks may take to end once everything else has.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(2);
/// How often a node may fail at its start before the start is given up.
const FAILURES_MAX: u32 = 3;
/// How long OSDs and placement groups may take.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long the others may take once a node is given up.
const REST_LIMIT: Duration = Duration::from_secs(5);
/// The pause before the configuration is watched again after that failed.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// How a start ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Started {
    /// Everything serves.
    Fully,
    /// The processes run, and not everything serves: why.
    Partly(String),
    /// Someone wished to stop before.
    Interrupted,
}

/// A cluster that this process runs.
pub struct LocalCluster {
    directory: Directory,
    lock: DirectoryLock,
    home: Home,
    server: Option<SocketServer>,
    scrape_targets: ScrapeTargets,
    cluster: Cluster,
    configuration: Configuration,
    /// The drives that passed their checks. Those that did not are for their nodes to wait for, and to tell of.
    drives: Vec<NodeDrive>,
    /// The drives that the configuration named when it was looked at last, unusable ones included.
    known: Vec<NodeDrive>,
    processes: Vec<NodeProcess>,
    supervisor: Supervisor,
    namespaces: Option<NetworkNamespaces>,
}

/// A process of a node.
struct NodeProcess {
    name: String,
    node: u32,
    /// Its drives. Without one it is not needed any more.
    drives: Vec<NodeDrive>,
}

impl LocalCluster {
    /// Takes the directory, opens or makes the registry and the drives, and serves the registry. No
    /// node is started yet; each will run in a namespace of its own, if there are some.
    pub async fn open(
        directory: Directory,
        request: &Request,
        restart: bool,
        namespaces: Option<NetworkNamespaces>,
    ) -> anyhow::Result<LocalCluster> {
        directory.prepare()?;
        let lock = directory.lock()?;
        let (home, configuration) = Home::open(&directory, request).await?;
        let drives = prepare_drives(&directory, &configuration)?;
        let cluster = Cluster::new(home.registry().clone());
        access::admit(&cluster, &directory.admin_key(), "admin", Access::Admin).await?;
        if !home.is_elsewhere() {
            // Whoever had this directory took all processes of the cluster along, and leases run anew after an opening.
            cluster.forget_processes().await.context("cannot end the leases of processes that have ended")?;
        }
        let server = home.serve(&directory)?;
        if let Some(limit) = request.osd_out_after {
            let seconds = limit.setting_seconds();
            let set = cluster.change_settings(|settings| settings.osd_out_after_seconds = seconds).await;
            set.context("cannot remember --osd-out-after")?;
        }
        if request.encryption {
            cluster.set_encryption(Encryption::On).await.context("cannot remember --encryption")?;
        }
        let supervisor = Supervisor::new(restart)?;
        // What other hosts serve is reached on these alone.
        let nodes = home.is_elsewhere().then(|| configuration.node_ids(&directory));
        let scrape_targets = ScrapeTargets::keep(cluster.clone(), directory.scrape_targets(), nodes);
        let (known, processes) = (configuration.drives(&directory), Vec::new());
        Ok(LocalCluster {
            directory,
            lock,
            home,
            server,
            scrape_targets,
            cluster,
            configuration,
            drives,
            known,
            processes,
            supervisor,
            namespaces,
        })
    }

    /// The cluster's state.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cluster's id.
    pub fn id(&self) -> ClusterId {
        self.home.cluster()
    }

    /// How it is made up.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Its drives that can be used.
    pub fn drives(&self) -> &[NodeDrive] {
        &self.drives
    }

    /// The nodes that run them.
    pub fn nodes(&self) -> BTreeSet<u32> {
        self.drives.iter().map(|drive| drive.node).collect()
    }

    /// The processes that run now.
    pub fn running(&self) -> watch::Receiver<Vec<Running>> {
        self.supervisor.running()
    }

    /// Runs one more process of this program for as long as the cluster runs.
    pub fn start_child(&mut self, name: &str, mut arguments: Vec<OsString>) -> anyhow::Result<()> {
        arguments.extend(["--dir".into(), self.directory.path().into()]);
        let log = self.directory.child_log(name);
        self.supervisor.start(ChildPlan { name: name.to_owned(), arguments, log, namespace: None })
    }

    /// Starts the nodes and waits until everything serves, or until it is clear that it will not.
    /// An error means that nothing useful runs, and that [`Self::stop`] is next.
    pub async fn become_ready(&mut self, stop: &mut StopSignals) -> anyhow::Result<Started> {
        let first = !self.configuration.prepared;
        let (steps_in, mut steps) = watch::channel(Step::default());
        let map = self.cluster.map().await?;
        let start = Start {
            cluster: self.cluster.clone(),
            inquiry: Inquiry::new(Desk::of(self.cluster.clone()), &self.directory),
            incarnations: map.osds.iter().map(|(id, info)| (*id, info.incarnation)).collect(),
            osds_expected: self.drives.len(),
            nodes: self.known.iter().map(|drive| NodeId(drive.node)).collect(),
            running: self.supervisor.running(),
            first_pool_replicas: first.then_some(self.configuration.replicas),
            steps: steps_in,
        };
        let (ready, refused) = (start.wait(), start.refusals());
        tokio::pin!(ready, refused);
        let mut is_told_of_refusals = false;
        // At the first start one after the other, so that `osd.0` lies on the first drive and so on.
        let nodes: BTreeSet<u32> = self.known.iter().map(|drive| drive.node).collect();
        let mut waiting: VecDeque<u32> = nodes.iter().copied().collect();
        let mut started_drives = 0;
        while let Some(node) = waiting.pop_front() {
            started_drives += self.start_node(node).await?;
            if first {
                break;
            }
        }
        let mut progress: Option<(&str, Progress)> = None;
        let mut given_up = BTreeMap::new();
        let mut deadline = Instant::now() + START_LIMIT;
        loop {
            tokio::select! {
                outcome = &mut ready => {
                    show(&mut progress, *steps.borrow_and_update());
                    drop(progress);
                    outcome?;
                    return self.prepared().await;
                }
                Ok(()) = steps.changed() => {
                    let step = *steps.borrow_and_update();
                    show(&mut progress, step);
                    if step.label == OSDS_UP && step.done >= started_drives && let Some(node) = waiting.pop_front() {
                        started_drives += self.start_node(node).await?;
                    }
                    if step.label == GROUPS_ACTIVE && self.drives_lost() > 0 {
                        // Groups that miss a drive will not become active; the others will soon.
                        deadline = deadline.min(Instant::now() + REST_LIMIT);
                    }
                }
                ended = self.supervisor.supervise() => {
                    report(progress.as_ref().map(|(_, progress)| progress), &ended);
                    if ended.failures >= FAILURES_MAX || !ended.restarts {
                        given_up.insert(ended.name.clone(), first_line(&ended.message).to_owned());
                        if first || given_up.len() == nodes.len() {
                            bail!("{} cannot start: {}", ended.name, first_line(&ended.message));
                        }
                        deadline = deadline.min(Instant::now() + REST_LIMIT);
                    }
                }
                refusals = &mut refused, if !is_told_of_refusals => {
                    is_told_of_refusals = true;
                    let refusals = refusals?.join("; ");
                    if first {
                        bail!("the cluster did not come up: {refusals}");
                    }
                    // The others may serve without them.
                    deadline = deadline.min(Instant::now() + REST_LIMIT);
                }
                () = stop.wait() => return Ok(Started::Interrupted),
                () = tokio::time::sleep_until(deadline) => {
                    drop(progress);
                    return self.started_partly(first, &start, given_up.into_values().collect()).await;
                }
            }
        }
    }

    async fn prepared(&mut self) -> anyhow::Result<Started> {
        if !self.configuration.prepared {
            let prepared = |configuration: &mut Configuration| {
                configuration.prepared = true;
                Ok(())
            };
            (self.configuration, ()) = Configuration::change(self.home.registry().as_ref(), prepared).await?;
        }
        Ok(match self.drives_lost() {
            0 => Started::Fully,
            lost => Started::Partly(format!("{lost} of its drives cannot be used, as warned above")),
        })
    }

    async fn started_partly(
        &self,
        first: bool,
        start: &Start,
        mut problems: Vec<String>,
    ) -> anyhow::Result<Started> {
        let verdict = start.verdict().await?;
        problems.extend(verdict.problems.into_iter().map(|problem| problem.what));
        let problem = if problems.is_empty() { "it took too long".to_owned() } else { problems.join("; ") };
        if first {
            bail!(
                "the cluster did not come up: {problem}; the nodes' logs are in {}",
                self.directory.given()
            );
        }
        Ok(Started::Partly(problem))
    }

    /// Tells those who look at the directory that the start is over, once everything is said about it.
    pub fn announce(&mut self, started: &Started) -> anyhow::Result<()> {
        match started {
            Started::Fully => self.lock.announce(Phase::Running, None),
            Started::Partly(problem) => self.lock.announce(Phase::Running, Some(problem.clone())),
            Started::Interrupted => Ok(()),
        }
    }

    fn drives_lost(&self) -> usize {
        self.known.len() - self.drives.len()
    }

    /// Starts a node; says how many drives it has that can be used.
    async fn start_node(&mut self, node: u32) -> anyhow::Result<u64> {
        let drives: Vec<NodeDrive> = self.known.iter().filter(|drive| drive.node == node).cloned().collect();
        let count = self.drives.iter().filter(|drive| drive.node == node).count() as u64;
        self.start_process(NodeProcess { name: format!("node.{node}"), node, drives }).await?;
        Ok(count)
    }

    async fn start_process(&mut self, process: NodeProcess) -> anyhow::Result<()> {
        let own = self.directory.node(process.node);
        std::fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
        let (id, key) = (NodeId(process.node), self.directory.node_key(process.node));
        access::admit(&self.cluster, &key, &id.to_string(), Access::Node(id)).await?;
        let name = process.name.clone();
        // One log for each node, however many processes it has.
        let log = self.directory.child_log(&format!("node.{}", process.node));
        let arguments = self.arguments(&process)?;
        let node = process.node;
        self.processes.push(process);
        let namespace = self.namespaces.as_ref().map(|namespaces| namespaces.name(node));
        self.supervisor.start(ChildPlan { name, arguments, log, namespace })
    }

    fn arguments(&self, process: &NodeProcess) -> anyhow::Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> =
            vec!["node-process".into(), "--node".into(), process.node.to_string().into()];
        arguments.extend(self.home.arguments(&self.directory, process.node)?);
        arguments.extend(["--key".into(), self.directory.node_key(process.node).into()]);
        for drive in &process.drives {
            arguments.extend(["--osd".into(), drive.path.clone().into()]);
        }
        if let Some(volatile) = self.configuration.volatile_cache {
            arguments.extend(["--volatile-cache".into(), volatile.to_string().into()]);
        }
        if let Some(namespaces) = &self.namespaces {
            arguments.extend(["--listen".into(), namespaces.address(process.node).to_string().into()]);
        }
        Ok(arguments)
    }

    /// Does what the configuration says now that it did not say before.
    async fn follow_configuration(&mut self) -> anyhow::Result<()> {
        let Some(configuration) = Configuration::load(self.home.registry().as_ref()).await? else {
            return Ok(());
        };
        let wanted = configuration.drives(&self.directory);
        self.configuration = configuration;
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            let count = process.drives.len();
            process.drives.retain(|drive| wanted.contains(drive));
            match process.drives.len() {
                0 if count > 0 => self.supervisor.retire(&process.name),
                left if left < count => {
                    let arguments = self.arguments(&self.processes[at])?;
                    self.supervisor.change(&self.processes[at].name, arguments);
                }
                _ => {}
            }
        }
        let known = std::mem::replace(&mut self.known, wanted.clone());
        self.drives.retain(|drive| wanted.contains(drive));
        for drive in wanted.into_iter().filter(|drive| !known.contains(drive)) {
            let (node, path) = (drive.node, drive.path.display());
            output::notice(&format!("{path} was added: node.{node} gets one more process for it"));
            self.drives.push(drive.clone());
            let name = format!("node.{node} on {path}");
            self.start_process(NodeProcess { name, node, drives: vec![drive] }).await?;
        }
        Ok(())
    }

    async fn follow_or_warn(&mut self) {
        if let Err(error) = self.follow_configuration().await {
            output::warning(&format!("a change of the cluster's drives was not followed: {error:#}"));
        }
    }

    /// Keeps the processes running, and follows the configuration, until someone wishes to stop. Fails when
    /// no process is left.
    pub async fn run(&mut self, stop: &mut StopSignals) -> anyhow::Result<()> {
        let mut changes = Changes { registry: self.home.registry().clone(), watch: None };
        loop {
            tokio::select! {
                ended = self.supervisor.supervise() => {
                    // A process ends by itself when its OSDs were removed, perhaps before that is heard of here.
                    self.follow_or_warn().await;
                    self.tell_of(&ended);
                    if self.supervisor.is_over() {
                        bail!("no process of the cluster is left, so it stops");
                    }
                }
                () = changes.next() => self.follow_or_warn().await,
                () = stop.wait() => return Ok(()),
            }
        }
    }

    fn tell_of(&self, ended: &Ended) {
        let is_of = |process: &&NodeProcess| process.name == ended.name;
        let is_needed = self.processes.iter().rfind(is_of).is_none_or(|process| !process.drives.is_empty());
        match ended.is_retired || !is_needed {
            true => output::notice(&format!("{} has ended: it has no OSD any more", ended.name)),
            false => report(None, ended),
        }
    }

    /// Waits for the next process that ends, and says so. For whoever has other things to do meanwhile.
    pub async fn watch_over(&mut self) -> Ended {
        let ended = self.supervisor.supervise().await;
        report(None, &ended);
        ended
    }

    /// Ends the processes, then the registry. A second wish to stop kills. The lock is the caller's to
    /// drop, after its runtime: tasks may hold the registry until then, and whoever gets the directory
    /// next must find everything closed.
    pub async fn stop(mut self, stop: &mut StopSignals) -> DirectoryLock {
        if let Err(error) = self.lock.announce(Phase::Stopping, None) {
            output::warning(&format!("{error:#}"));
        }
        for warning in self.supervisor.stop(stop.wait()).await {
            output::warning(&warning);
        }
        if let Err(error) = self.scrape_targets.stop().await {
            output::warning(&format!("{error:#}"));
        }
        drop(self.server);
        self.lock
    }
}

/// Tells when the stored configuration may have changed.
struct Changes {
    registry: Arc<dyn Registry>,
    watch: Option<Box<dyn Watch>>,
}

impl Changes {
    /// Waits for the next change. The first time, and whenever some may have been missed, it comes at once.
    /// Dropping the future loses none.
    async fn next(&mut self) {
        let Some(watch) = &mut self.watch else {
            match self.registry.watch(configuration::KEY, Revision(0)).await {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => self.failed(&error).await,
            }
            return;
        };
        if let Err(error) = watch.next().await {
            self.watch = None;
            self.failed(&error).await;
        }
    }

    async fn failed(&self, error: &RegistryError) {
        tracing::warn!(%error, "the cluster's configuration is not watched; watching it again");
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}

/// Makes what files are missing at a first start, and tells which drives can be used, with a warning of those that cannot any
/// more.
fn prepare_drives(directory: &Directory, configuration: &Configuration) -> anyhow::Result<Vec<NodeDrive>> {
    let drives = configuration.drives(directory);
    if !configuration.prepared
        && let Drives::Files(size) = configuration.drives
    {
        let missing: Vec<&PathBuf> =
            drives.iter().map(|drive| &drive.path).filter(|path| !path.exists()).collect();
        let set_aside = !missing.is_empty()
            && drive_files::can_set_aside(directory.path(), size.0 * missing.len() as u64);
        for path in missing {
            drive_files::make_file(path, size.0, set_aside)?;
        }
    }
    let mut usable = Vec::new();
    for drive in drives {
        match drive::check(&drive.path) {
            Ok(()) => usable.push(drive),
            Err(problem) if configuration.prepared => {
                output::warning(&format!("{problem:#}; node.{} starts without it", drive.node));
            }
            Err(problem) => return Err(problem.into()),
        }
    }
    Ok(usable)
}

fn show(progress: &mut Option<(&'static str, Progress)>, step: Step) {
    if step.label.is_empty() {
        return;
    }
    if progress.as_ref().is_none_or(|(label, _)| *label != step.label) {
        *progress = Some((step.label, Progress::new(step.label, step.total)));
    }
    if let Some((_, progress)) = progress {
        progress.set(step.done);
    }
}

fn report(progress: Option<&Progress>, ended: &Ended) {
    match progress {
        Some(progress) => progress.aside(|| output::warning(&ended.message)),
        None => output::warning(&ended.message),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}
/// Runs what runs a cluster, on a runtime whose main thread starts the children while another serves,
/// and gives the directory back when all of that is gone.
pub fn run_cluster(
    work: impl Future<Output = anyhow::Result<(anyhow::Result<()>, DirectoryLock)>>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime of this command")?;
    let (outcome, lock) = runtime.block_on(work)?;
    // A measurement that was interrupted may still block a thread; it is not waited for.
    runtime.shutdown_timeout(RUNTIME_PATIENCE);
    drop(lock);
    outcome
}
