//! How a command reaches the cluster that it is about.

use crate::host::directory::Directory;
use crate::host::inquiry::Inquiry;
use crate::host::settings::Settings;
use anyhow::{Context, bail};
use auth::SecretKey;
use base::{Access, ClusterId, Principal};
use cluster::{ChangeVolumes, Changed, Cluster, ClusterError, Identify, VolumeChange};
use node::Location;
use registry::Connect;
use registry_remote::{Desk, DeskPlace};
use std::path::Path;

/// Runs `work` with the cluster that is up in the directory at `path`.
pub fn with_cluster<T>(
    path: &Path,
    work: impl AsyncFnOnce(&Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let directory = Directory::new(path)?;
    require_up(&directory)?;
    let settings = Settings::load(&directory)?;
    block_on(async { work(&connect(&settings, &directory).await?).await })
}

/// The cluster that the settings of a directory lead to.
pub async fn connect(settings: &Settings, directory: &Directory) -> anyhow::Result<Cluster> {
    let registry = settings.registry_of(directory)?;
    let cluster = Cluster::new(registry.connect().await?);
    require_expected(settings, directory, &registry, cluster.id()).await?;
    Ok(cluster)
}

/// Whether it is the cluster that the settings name, if they name one.
async fn require_expected(
    settings: &Settings,
    directory: &Directory,
    registry: &Location,
    id: impl Future<Output = Result<ClusterId, ClusterError>>,
) -> anyhow::Result<()> {
    let Some(expected) = settings.cluster() else { return Ok(()) };
    let found = id.await?;
    if found != expected {
        bail!("{registry} has cluster {found}, and {} is of cluster {expected}", directory.given());
    }
    Ok(())
}

/// The same, with what is needed to ask how it is.
pub fn with_cluster_and_inquiry<T>(
    path: &Path,
    work: impl AsyncFnOnce(&Cluster, &Inquiry) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let directory = Directory::new(path)?;
    with_cluster(path, async |cluster| {
        work(cluster, &Inquiry::new(Desk::of(cluster.clone()), &directory)).await
    })
}

/// Runs `work` with what any client may ask of the cluster that the directory at `path` leads to.
pub fn with_desk<T>(path: &Path, work: impl AsyncFnOnce(&Desk) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let directory = Directory::new(path)?;
    require_up(&directory)?;
    let settings = Settings::load(&directory)?;
    block_on(async {
        let registry = settings.registry_of(&directory)?;
        let desk = match &registry {
            Location::Nodes { endpoints, identity } => {
                DeskPlace::Nodes(endpoints.clone()).open(identity).await?
            }
            registry => Desk::of(Cluster::new(registry.connect().await?)),
        };
        require_expected(&settings, &directory, &registry, desk.ask(Identify {})).await?;
        work(&desk).await
    })
}

/// Has volumes changed, as far as the key may that the directory at `path` holds.
pub fn change(path: &Path, change: VolumeChange) -> anyhow::Result<Changed> {
    with_desk(path, async |desk| Ok(desk.ask(ChangeVolumes { change }).await?))
}

/// Runs `work` with what is needed to ask how the cluster is that the directory at `path` leads to.
pub fn with_inquiry<T>(
    path: &Path,
    work: impl AsyncFnOnce(&Inquiry) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let directory = Directory::new(path)?;
    with_desk(path, async |desk| work(&Inquiry::new(desk.clone(), &directory)).await)
}

/// Runs what a command has to wait for.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime of this command")?;
    runtime.block_on(work)
}

/// Lets in whoever has the key in a file, which is made if it is missing.
pub async fn admit(cluster: &Cluster, path: &Path, name: &str, access: Access) -> anyhow::Result<()> {
    let key = SecretKey::load_or_generate(path, name)?;
    let principal = Principal::new(key.public(), access);
    cluster.put_principal(name, &principal).await.with_context(|| format!("cannot let in {name}"))
}

/// Says what to do where no cluster is up.
pub fn require_up(directory: &Directory) -> anyhow::Result<()> {
    let given = directory.given();
    // A registry elsewhere says itself whether it is there.
    if Settings::are_there(directory) || directory.holder()?.is_some() {
        return Ok(());
    }
    if directory.has_cluster() {
        bail!("the cluster in {given} is not up; start it with `millpond up --detach --dir {given}`");
    }
    no_cluster(directory)
}

/// Says what to do where no cluster is.
pub fn no_cluster<T>(directory: &Directory) -> anyhow::Result<T> {
    let given = directory.given();
    bail!(
        "there is no cluster in {given}; make one with `millpond up --dir {given}`, join one of other hosts with `millpond \
         node join`, or name the directory of another with --dir or MILLPOND_DIR"
    )
}
