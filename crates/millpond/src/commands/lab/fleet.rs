//! Simulated OSDs in a cluster of this machine, as many as one wishes: for plans that ask what it costs to look at thousands.

use crate::host::access;
use crate::host::directory::Directory;
use crate::host::settings::Settings;
use anyhow::{Context, bail};
use lab::scenarios::large::fleet::{Fleet, POOL, Size};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long groups may take to become active, as the manager sees it.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(500);

/// Adds them to the cluster in a directory, says so by a file once the manager takes all their groups for active, and keeps them up
/// until it is ended.
pub fn run(path: &Path, size: Size, ready: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let directory = Directory::new(path)?;
    access::require_up(&directory)?;
    let cluster = runtime.block_on(access::connect(&Settings::load(&directory)?, &directory))?;
    let mut fleet = runtime.block_on(Fleet::register(&cluster, size))?;
    runtime.block_on(fleet.report(&cluster))?;
    let began = Instant::now();
    while groups_active(path)? < size.groups as usize {
        if began.elapsed() > PATIENCE {
            bail!("the groups of pool {POOL} are not all active after {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(PAUSE);
    }
    std::fs::write(ready, "").with_context(|| format!("{}: cannot write it", ready.display()))?;
    runtime.block_on(std::future::pending::<()>());
    Ok(())
}

fn groups_active(path: &Path) -> anyhow::Result<usize> {
    let pools = access::with_inquiry(path, async |inquiry| inquiry.pools().await)?;
    Ok(pools.iter().find(|pool| pool.name == POOL).map_or(0, |pool| pool.pgs_active))
}
