//! `millpond volume snapshot`: what volumes held at one moment.

use super::find;
use crate::host::access;
use crate::host::directory::Directory;
use crate::output::time::{ago, since_1970};
use crate::output::{self, table};
use anyhow::{Context, bail};
use base::LayerId;
use base::map::ClusterMap;
use base::units::ByteSize;
use clap::Subcommand;
use cluster::{ChangeVolumes, Changed, ClusterError, REMOVED_AT_ONCE_MAX, VolumeChange, WantedSnapshot};
use health::view::{self, SnapshotView};
use registry_remote::Desk;
use ring::ReactorOptions;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};
use volume::{OpenAs, SessionOptions, VolumeLoop};

/// How long somebody is waited for who has a volume and fell silent: who only lost the registry is back within seconds of its
/// return.
const SILENCE_PATIENCE: Duration = Duration::from_secs(6);
/// The pause before it is tried again.
const SILENCE_PAUSE: Duration = Duration::from_millis(500);
/// How often it is tried again when somebody who had the volume is fenced: another may fall silent meanwhile.
const SETTLED_MAX: usize = 3;

/// What can be done with snapshots.
#[derive(Subcommand, Clone, Debug)]
pub enum SnapshotCommand {
    /// Make snapshots of one or several volumes, of all of them at one moment, also while they are written to
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// Each volume, and the name of its snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT", required = true)]
        snapshots: Vec<SnapshotName>,
        /// Where somebody has the volume who fell silent, take it from him: if he is there still, his operations fail
        #[arg(long)]
        fence: bool,
        /// Print the new snapshots as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots of a volume, the oldest first
    #[command(after_help = "Examples:\n  millpond volume snapshot ls disk")]
    Ls {
        /// The volume
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a snapshot another name
    #[command(after_help = "Examples:\n  millpond volume snapshot rename disk@monday before-upgrade")]
    Rename {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
        /// Its new name, which no other snapshot of that volume has
        new: String,
    },
    /// Keep a snapshot, and its volume, from being removed
    #[command(after_help = "Examples:\n  millpond volume snapshot protect disk@monday")]
    Protect {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
    },
    /// Let a snapshot be removed again
    #[command(after_help = "Examples:\n  millpond volume snapshot unprotect disk@monday")]
    Unprotect {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
    },
    /// Remove snapshots for good. What nothing else needs of them is deleted while clients go on
    #[command(after_help = REMOVE_EXAMPLES)]
    Rm {
        /// Each snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT", required = true)]
        snapshots: Vec<SnapshotName>,
        /// Print what was removed as JSON
        #[arg(long)]
        json: bool,
    },
}

const CREATE_EXAMPLES: &str = "\
Examples:
  millpond volume snapshot create disk@monday
  millpond volume snapshot create data@1 log@1     of both at one moment
  millpond nbd disk@monday                         serves it, read-only

Whoever writes to the volumes waits for some milliseconds. A snapshot holds what a machine would find that lost power at that
moment; a file system in it needs no more care than after that.";

const REMOVE_EXAMPLES: &str = "\
Examples:
  millpond volume snapshot rm disk@monday
  millpond volume snapshot rm disk@monday disk@tuesday data@1

Many of one volume are removed faster by one command than by one each. Of each volume all that are named are removed or none, up
to 48 of them.";

/// A snapshot, as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotName {
    pub(super) volume: String,
    pub(super) snapshot: String,
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<SnapshotName, String> {
        match text.split_once('@') {
            Some((volume, snapshot)) if !volume.is_empty() && !snapshot.is_empty() => {
                Ok(SnapshotName { volume: volume.to_owned(), snapshot: snapshot.to_owned() })
            }
            _ => Err("a snapshot is named VOLUME@SNAPSHOT, for example disk@monday".to_owned()),
        }
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}", self.volume, self.snapshot)
    }
}

/// Performs a `volume snapshot` command.
pub fn run(command: &SnapshotCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        SnapshotCommand::Create { snapshots, fence, json } => {
            let made = create(snapshots, *fence, directory)?;
            output::show(*json, &made, || {
                made.iter().map(|one| format!("snapshot {}@{} made\n", one.volume, one.name)).collect()
            })
        }
        SnapshotCommand::Ls { name, json } => {
            let snapshots = access::with_desk(directory, async |desk| {
                let map = desk.map().await?;
                let volume = find(&map, name)?;
                Ok(view::snapshots(&map, volume.volume))
            })?;
            output::show(*json, &snapshots, || list(&snapshots, since_1970()))
        }
        SnapshotCommand::Rename { snapshot: SnapshotName { volume, snapshot }, new } => {
            let rename = VolumeChange::RenameSnapshot {
                volume: volume.clone(),
                name: snapshot.clone(),
                new: new.clone(),
            };
            access::change(directory, rename)?;
            output::print_line(&format!("snapshot {volume}@{snapshot} is called {volume}@{new} now"))
        }
        SnapshotCommand::Protect { snapshot } => {
            protect(directory, snapshot, true)?;
            output::print_line(&format!("snapshot {snapshot} cannot be removed now, nor can its volume"))
        }
        SnapshotCommand::Unprotect { snapshot } => {
            protect(directory, snapshot, false)?;
            output::print_line(&format!("snapshot {snapshot} can be removed now"))
        }
        SnapshotCommand::Rm { snapshots, json } => {
            let removed = access::with_desk(directory, async |desk| remove(desk, snapshots).await)?;
            output::show(*json, &removed, || {
                snapshots.iter().map(|one| format!("snapshot {one} removed\n")).collect()
            })
        }
    }
}

/// Makes them. Somebody who has a volume and fell silent is waited for, and not served any more where that is asked for.
fn create(snapshots: &[SnapshotName], fence: bool, path: &Path) -> anyhow::Result<Vec<SnapshotView>> {
    let wanted: Vec<WantedSnapshot> = snapshots
        .iter()
        .map(|one| WantedSnapshot { volume: one.volume.clone(), name: one.snapshot.clone() })
        .collect();
    let take = async |desk: &Desk| {
        let layers = take_snapshots(desk, wanted.clone()).await?;
        let map = desk.map().await?;
        let is_made = |one: &SnapshotView, layer: &LayerId| one.number == layer.number();
        let view = |layer: LayerId| {
            view::snapshots(&map, layer.volume()).into_iter().find(|one| is_made(one, &layer))
        };
        // One that is not there was made and removed since.
        Ok(layers.into_iter().filter_map(view).collect())
    };
    let (mut settled, began) = (0, Instant::now());
    loop {
        let error = match access::with_desk(path, take) {
            Ok(made) => return Ok(made),
            Err(error) => error,
        };
        match error.downcast_ref() {
            Some(ClusterError::Unsettled { .. }) if began.elapsed() < SILENCE_PATIENCE => {
                std::thread::sleep(SILENCE_PAUSE);
            }
            Some(ClusterError::Unsettled { volume, .. }) if fence && settled < SETTLED_MAX => {
                settle(volume, &Directory::new(path)?).with_context(|| error.to_string())?;
                settled += 1;
            }
            Some(ClusterError::Unsettled { .. }) if !fence => {
                bail!("{error}. If it is gone for good, say it again with --fence, which does that")
            }
            _ => return Err(error),
        }
    }
}

/// Makes snapshots at one moment, by the clock of this machine.
pub(super) async fn take_snapshots(
    desk: &Desk,
    wanted: Vec<WantedSnapshot>,
) -> Result<Vec<LayerId>, ClusterError> {
    let change = VolumeChange::TakeSnapshots { wanted, at_unix_seconds: since_1970().as_secs() };
    match desk.ask(ChangeVolumes { change }).await? {
        Changed::Snapshots(layers) => Ok(layers),
        // No version answers so.
        _ => Ok(Vec::new()),
    }
}

/// Removes them, as many of a volume at once as can be. What is not there is found out before any is removed.
async fn remove(desk: &Desk, snapshots: &[SnapshotName]) -> anyhow::Result<Vec<SnapshotView>> {
    let map = desk.map().await?;
    let found: Vec<_> =
        snapshots.iter().map(|one| find_snapshot(&map, one)).collect::<anyhow::Result<_>>()?;
    let mut of_volumes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for SnapshotName { volume, snapshot } in snapshots {
        of_volumes.entry(volume).or_default().insert(snapshot);
    }
    let mut removed = 0;
    for (volume, names) in of_volumes {
        let names: Vec<&str> = names.into_iter().collect();
        for names in names.chunks(REMOVED_AT_ONCE_MAX) {
            let (volume, count) = (volume.to_owned(), names.len());
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let change = VolumeChange::RemoveSnapshots { volume, names };
            if let Err(error) = desk.ask(ChangeVolumes { change }).await {
                let error = anyhow::Error::from(error);
                return Err(match removed {
                    0 => error,
                    _ => error.context(format!("{removed} of the {} were removed", snapshots.len())),
                });
            }
            removed += count;
        }
    }
    Ok(found)
}

/// Attaches a volume for a moment, so that nobody is served any more who had it before and fell silent.
fn settle(volume: &str, directory: &Directory) -> anyhow::Result<()> {
    let options = SessionOptions {
        cluster: directory.access(None)?,
        volumes: vec![volume.to_owned()],
        open: OpenAs::Owner,
        timeout: None,
        purpose: "millpond volume snapshot".to_owned(),
        note: None,
    };
    VolumeLoop::attach(options, ReactorOptions::default())?;
    Ok(())
}

fn protect(directory: &Path, name: &SnapshotName, protected: bool) -> anyhow::Result<()> {
    let SnapshotName { volume, snapshot: name } = name.clone();
    access::change(directory, VolumeChange::ProtectSnapshot { volume, name, protected }).map(drop)
}

fn find_snapshot(map: &ClusterMap, name: &SnapshotName) -> anyhow::Result<SnapshotView> {
    let volume = find(map, &name.volume)?;
    let found = view::snapshots(map, volume.volume).into_iter().find(|one| one.name == name.snapshot);
    found.with_context(|| {
        format!("there is no snapshot {name}; `millpond volume snapshot ls {}` lists them", name.volume)
    })
}

fn list(snapshots: &[SnapshotView], now: Duration) -> String {
    if snapshots.is_empty() {
        return "there is no snapshot\n".to_owned();
    }
    let row = |one: &SnapshotView| {
        vec![
            one.name.clone(),
            ByteSize(one.bytes).to_string(),
            one.number.to_string(),
            ago(Duration::from_secs(one.at_unix_seconds), now),
            if one.protected { "yes" } else { "no" }.to_owned(),
            if one.clones.is_empty() { "none".to_owned() } else { one.clones.join(", ") },
        ]
    };
    table::render(
        &["SNAPSHOT", ">SIZE", ">NUMBER", ">MADE", "PROTECTED", "CLONES"],
        snapshots.iter().map(row),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_by_its_volume_and_its_own_name() {
        let name: SnapshotName = "disk@monday".parse().unwrap();
        assert_eq!((name.volume.as_str(), name.snapshot.as_str()), ("disk", "monday"));
        assert_eq!(name.to_string(), "disk@monday");
        for wrong in ["disk", "disk@", "@monday", "@", ""] {
            let error = wrong.parse::<SnapshotName>().unwrap_err();
            assert!(error.contains("VOLUME@SNAPSHOT"), "{wrong}: {error}");
        }
    }

    #[test]
    fn snapshots_are_listed_with_their_size_and_age() {
        assert_eq!(list(&[], Duration::ZERO), "there is no snapshot\n");
        let one = SnapshotView {
            volume: "disk".to_owned(),
            name: "monday".to_owned(),
            number: 3,
            bytes: 1 << 30,
            at_unix_seconds: 1_000_000,
            protected: true,
            schedule: None,
            clones: vec!["copy".to_owned()],
        };
        let shown = list(&[one], Duration::from_secs(1_007_200));
        let line = shown.lines().nth(1).unwrap();
        for part in ["monday", "1GiB", "3", "2 h ago", "yes", "copy"] {
            assert!(line.contains(part), "{part}: {shown}");
        }
    }
}
