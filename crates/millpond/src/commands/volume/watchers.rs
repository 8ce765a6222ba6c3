//! `millpond volume watchers`: who has a volume open.

use super::find;
use crate::host::access;
use crate::output::time::{ago, since_1970};
use crate::output::{self, table};
use base::map::ClusterMap;
use cluster::{AttachRecord, WatchMode, WatchRecord, Watchers};
use health::view::WatcherView;
use registry_remote::Desk;
use std::path::Path;
use std::time::Duration;

/// Lists who has a volume open.
pub fn run(name: &str, json: bool, directory: &Path) -> anyhow::Result<()> {
    let watchers = access::with_desk(directory, async |desk| {
        let map = desk.map().await?;
        let volume = find(&map, name)?.volume;
        let attached = desk.ask(cluster::Attachments { volume }).await?;
        watchers(desk, &map, volume, &attached).await
    })?;
    output::show(json, &watchers, || list(&watchers, since_1970()))
}

/// Those of a volume, and whether they own it.
pub(super) async fn watchers(
    desk: &Desk,
    map: &ClusterMap,
    volume: base::VolumeId,
    attached: &[AttachRecord],
) -> anyhow::Result<Vec<WatcherView>> {
    let records = desk.ask(Watchers { volume }).await?;
    let view = |record: WatchRecord| WatcherView {
        client: format!("{:016x}", record.client.0),
        snapshot: match record.mode {
            WatchMode::Snapshot(number) => {
                let name = map.snapshot(volume.layer(number)).map(|snapshot| snapshot.name.clone());
                Some(name.unwrap_or_else(|| format!("layer {number}, which was removed")))
            }
            WatchMode::ReadOnly | WatchMode::ReadWrite => None,
        },
        read_only: record.mode != WatchMode::ReadWrite,
        // Clients of other keys have no ids here, and are told by what they say of themselves.
        owns: record.mode == WatchMode::ReadWrite
            && attached.iter().any(|holder| {
                holder.yields && (holder.client, &holder.description) == (record.client, &record.description)
            }),
        description: record.description,
        principal: record.principal,
        since_unix_seconds: record.since_unix_seconds,
    };
    Ok(records.into_iter().map(view).collect())
}

/// How somebody has it open, in words.
pub(super) fn how(watcher: &WatcherView) -> String {
    match watcher {
        WatcherView { snapshot: Some(name), .. } => format!("snapshot {name}"),
        WatcherView { read_only: true, .. } => "read-only".to_owned(),
        WatcherView { owns: true, .. } => "read-write, and owns it now".to_owned(),
        WatcherView { .. } => "read-write".to_owned(),
    }
}

fn list(watchers: &[WatcherView], now: Duration) -> String {
    if watchers.is_empty() {
        return "nobody has it open; `millpond volume info` shows who has it attached\n".to_owned();
    }
    let row = |watcher: &WatcherView| {
        vec![
            how(watcher),
            watcher.principal.clone().unwrap_or_default(),
            ago(Duration::from_secs(watcher.since_unix_seconds), now),
            watcher.description.clone(),
        ]
    };
    table::render(&["OPEN", "KEY", "SINCE", "BY"], watchers.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_a_volume_open_is_listed_with_how() {
        let reader = WatcherView {
            client: "7".to_owned(),
            description: "pid 7 on beta".to_owned(),
            read_only: true,
            owns: false,
            snapshot: None,
            principal: Some("backup".to_owned()),
            since_unix_seconds: 60,
        };
        let owner = WatcherView { read_only: false, owns: true, ..reader.clone() };
        let of_snapshot = WatcherView { snapshot: Some("monday".to_owned()), ..reader.clone() };
        let text = list(&[reader, owner, of_snapshot], Duration::from_secs(120));
        let parts =
            ["read-only", "read-write, and owns it now", "snapshot monday", "backup", "pid 7 on beta"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert!(list(&[], Duration::ZERO).contains("nobody"));
    }
}
