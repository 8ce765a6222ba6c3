//! `millpond volume clone`, `flatten` and `rollback`: what volumes begin with, and go back to.

use super::snapshot::SnapshotName;
use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::output;
use crate::output::progress::Progress;
use anyhow::{Context, bail};
use base::CutId;
use base::map::VolumeInfo;
use cluster::{ChangeVolumes, ClusterError, VolumeChange};
use health::view::PgView;
use registry::RegistryError;
use registry_remote::Desk;
use std::path::Path;
use std::time::Duration;

/// The pause before it is looked again how far a flattening is.
const LOOK_PAUSE: Duration = Duration::from_millis(300);
/// The same, for who is not told how far.
const UNTOLD_PAUSE: Duration = Duration::from_secs(1);

/// Rolls a volume back, where somebody says that what was written since may go.
pub(super) fn roll_back(directory: &Path, to: &SnapshotName, discard_changes: bool) -> anyhow::Result<()> {
    let SnapshotName { volume, snapshot } = to;
    if !discard_changes {
        bail!(
            "what was written to {volume} since {to} was made would be lost; `millpond volume snapshot create {volume}@NAME` keeps \
             it, --discard-changes says that it may go"
        );
    }
    let (volume, snapshot) = (volume.clone(), snapshot.clone());
    access::change(directory, VolumeChange::RollBack { volume, snapshot }).map(drop)
}

/// Has a clone flattened, and waits for it unless that is not wanted.
pub(super) fn flatten(directory: &Path, name: &str, waits: bool) -> anyhow::Result<()> {
    access::with_inquiry(directory, async |inquiry| {
        let (name, desk) = (name.to_owned(), inquiry.desk());
        let change = VolumeChange::Flatten { name: name.clone(), is_wanted: true };
        desk.ask(ChangeVolumes { change }).await?;
        if !waits {
            return output::print_line(&format!("volume {name} is being flattened"));
        }
        let info = find(desk, &name).await?;
        // It may be done by now.
        if let Some(number) = info.flatten {
            wait(inquiry, &name, &info, number).await?;
        }
        output::print_line(&format!("volume {name} is flat: it depends on no other any more"))
    })
}

/// Ends that. What was copied stays copied.
pub(super) fn end_flattening(directory: &Path, name: &str) -> anyhow::Result<()> {
    access::change(directory, VolumeChange::Flatten { name: name.to_owned(), is_wanted: false })?;
    output::print_line(&format!(
        "volume {name} is not being flattened any more; what was copied is not copied again by another time"
    ))
}

async fn find(desk: &Desk, name: &str) -> anyhow::Result<VolumeInfo> {
    let map = desk.map().await?;
    let found = map.find_volume(name).map(|(_, info)| info.clone());
    found.with_context(|| format!("the volume {name} was renamed or removed meanwhile"))
}

/// The placement groups, if this key may ask how the cluster is.
pub(super) async fn groups(inquiry: &Inquiry) -> anyhow::Result<Option<Vec<PgView>>> {
    match inquiry.pgs().await {
        Ok(groups) => Ok(Some(groups)),
        Err(error) => match error.downcast_ref() {
            Some(ClusterError::Registry(RegistryError::Forbidden { .. })) => Ok(None),
            _ => Err(error),
        },
    }
}

async fn wait(inquiry: &Inquiry, name: &str, asked: &VolumeInfo, number: CutId) -> anyhow::Result<()> {
    let mut progress: Option<Progress> = None;
    loop {
        match find(inquiry.desk(), name).await? {
            VolumeInfo { parent: None, .. } => return Ok(()),
            VolumeInfo { flatten, .. } if flatten != Some(number) => {
                bail!(
                    "somebody had the flattening of {name} end; `millpond volume flatten {name}` goes on with it"
                )
            }
            _ => {}
        }
        let Some(groups) = groups(inquiry).await? else {
            // Who may not ask that sees in the map when it is done.
            tokio::time::sleep(UNTOLD_PAUSE).await;
            continue;
        };
        let of_pool = || groups.iter().filter(|group| group.pg.pool == asked.pool);
        let is_done = |group: &&PgView| group.flatten.is_some_and(|flatten| flatten.through >= number.0);
        let progress = progress.get_or_insert_with(|| {
            Progress::new(&format!("flattening {name}, groups done"), of_pool().count() as u64)
        });
        progress.set(of_pool().filter(is_done).count() as u64);
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}
