//! `millpond volume clone`, `flatten` and `rollback`: what volumes begin with, and go back to.

use super::snapshot::SnapshotName;
use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::output;
use crate::output::progress::Progress;
use anyhow::{Context, bail};
use base::CutId;
use base::map::VolumeInfo;
use cluster::Cluster;
use health::view::PgView;
use std::path::Path;
use std::time::Duration;

/// The pause before it is looked again how far a flattening is.
const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// Rolls a volume back, where somebody says that what was written since may go.
pub(super) fn roll_back(directory: &Path, to: &SnapshotName, discard_changes: bool) -> anyhow::Result<()> {
    let SnapshotName { volume, snapshot } = to;
    if !discard_changes {
        bail!(
            "what was written to {volume} since {to} was made would be lost; `millpond volume snapshot create {volume}@NAME` keeps \
             it, --discard-changes says that it may go"
        );
    }
    access::with_cluster(directory, async |cluster| Ok(cluster.roll_back_volume(volume, snapshot).await?))?;
    Ok(())
}

/// Has a clone flattened, and waits for it unless that is not wanted.
pub(super) fn flatten(directory: &Path, name: &str, waits: bool) -> anyhow::Result<()> {
    access::with_cluster_and_inquiry(directory, async |cluster, inquiry| {
        cluster.flatten_volume(name, true).await?;
        if !waits {
            return output::print_line(&format!("volume {name} is being flattened"));
        }
        let info = find(cluster, name).await?;
        // It may be done by now.
        if let Some(number) = info.flatten {
            wait(cluster, inquiry, name, &info, number).await?;
        }
        output::print_line(&format!("volume {name} is flat: it depends on no other any more"))
    })
}

/// Ends that. What was copied stays copied.
pub(super) fn end_flattening(directory: &Path, name: &str) -> anyhow::Result<()> {
    access::with_cluster(directory, async |cluster| Ok(cluster.flatten_volume(name, false).await?))?;
    output::print_line(&format!(
        "volume {name} is not being flattened any more; what was copied is not copied again by another time"
    ))
}

async fn find(cluster: &Cluster, name: &str) -> anyhow::Result<VolumeInfo> {
    let map = cluster.map().await?;
    let found = map.volume_named(name).map(|(_, info)| info.clone());
    found.with_context(|| format!("the volume {name} was renamed or removed meanwhile"))
}

async fn wait(
    cluster: &Cluster,
    inquiry: &Inquiry,
    name: &str,
    asked: &VolumeInfo,
    number: CutId,
) -> anyhow::Result<()> {
    let mut progress: Option<Progress> = None;
    loop {
        match find(cluster, name).await? {
            VolumeInfo { parent: None, .. } => return Ok(()),
            VolumeInfo { flatten, .. } if flatten != Some(number) => {
                bail!(
                    "somebody had the flattening of {name} end; `millpond volume flatten {name}` goes on with it"
                )
            }
            _ => {}
        }
        let groups = inquiry.pgs().await?;
        let of_pool = || groups.iter().filter(|group| group.pg.pool == asked.pool);
        let is_done = |group: &&PgView| group.flatten.is_some_and(|flatten| flatten.through >= number.0);
        let progress = progress.get_or_insert_with(|| {
            Progress::new(&format!("flattening {name}, groups done"), of_pool().count() as u64)
        });
        progress.set(of_pool().filter(is_done).count() as u64);
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}
