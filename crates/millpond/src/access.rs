//! How a command reaches the cluster that it is about.

use crate::directory::Directory;
use anyhow::{Context, bail};
use registry::cluster::Cluster;
use registry::{DEFAULT_TIMEOUT, RemoteRegistry};
use std::path::Path;
use std::sync::Arc;

/// Runs `work` with the cluster that is up in the directory at `path`.
pub fn with_cluster<T>(
    path: &Path,
    work: impl AsyncFnOnce(&Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let directory = Directory::new(path)?;
    require_up(&directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime of this command")?;
    runtime.block_on(async {
        let registry = RemoteRegistry::connect(&directory.registry_socket(), DEFAULT_TIMEOUT).await?;
        work(&Cluster::new(Arc::new(registry))).await
    })
}

/// Says what to do where no cluster is up.
pub fn require_up(directory: &Directory) -> anyhow::Result<()> {
    let given = directory.given();
    if directory.holder()?.is_some() {
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
        "there is no cluster in {given}; make one with `millpond up --dir {given}`, \
         or name the directory of another with --dir or MILLPOND_DIR"
    )
}
