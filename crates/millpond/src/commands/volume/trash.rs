//! Volumes in the trash, as people name and see them.

use crate::commands::status::with_namespaces;
use crate::output::time::{ago, since_1970};
use anyhow::{Context, bail};
use base::VolumeName;
use base::duration::{Limit, about};
use base::map::ClusterMap;
use base::units::ByteSize;
use clap::Args;
use cluster::VolumeChange;
use health::view::{self, TrashedVolumeView};
use std::time::Duration;

/// That a volume lies in the trash from now on, for so long.
pub(super) fn from_now(name: &str, keep: Limit) -> VolumeChange {
    let keep_seconds = match keep {
        Limit::Never => None,
        Limit::Seconds(seconds) => Some(seconds),
    };
    VolumeChange::Trash {
        name: name.to_owned(),
        at_unix_seconds: since_1970().as_secs(),
        keep_seconds,
        guarded_until_unix_seconds: None,
    }
}

/// Which volume in the trash is meant.
#[derive(Args, Clone, Debug)]
pub struct Which {
    /// The name that it had
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Its id instead, where several had that name
    #[arg(long, conflicts_with = "name")]
    id: Option<u64>,
}

impl Which {
    /// The volume in the trash that is meant.
    pub(super) fn find(&self, map: &ClusterMap) -> anyhow::Result<TrashedVolumeView> {
        if self.name.is_none() && self.id.is_none() {
            bail!(
                "say which volume, by the name that it had or by --id; `millpond volume trash` lists what is there"
            );
        }
        let name: Option<VolumeName> = self.name.as_deref().map(str::parse).transpose()?;
        let is_meant = |volume: &TrashedVolumeView| match (self.id, &name) {
            (Some(id), _) => volume.volume.0 == id,
            (None, Some(name)) => {
                map.volumes.get(&volume.volume).is_some_and(|info| map.may_mean(name, info))
            }
            (None, None) => false,
        };
        let mut meant: Vec<TrashedVolumeView> = view::trash(map).into_iter().filter(is_meant).collect();
        let what =
            self.id.map_or_else(|| self.name.clone().unwrap_or_default(), |id| format!("with id {id}"));
        if meant.len() > 1 {
            let is_elsewhere = |one: &TrashedVolumeView| one.full_name() != meant[0].full_name();
            let has_places = meant.iter().any(is_elsewhere);
            let id = |volume: &TrashedVolumeView| match has_places {
                true => format!("--id {} ({})", volume.volume.0, volume.full_name()),
                false => format!("--id {}", volume.volume.0),
            };
            let ids: Vec<String> = meant.iter().map(id).collect();
            bail!(
                "{} volumes in the trash were called {what}; `millpond volume trash` tells them apart: say which, {}",
                ids.len(),
                ids.join(" or ")
            );
        }
        meant.pop().with_context(|| {
            format!("there is nothing {what} in the trash; `millpond volume trash` shows what is there")
        })
    }
}

pub(super) fn table(volumes: &[TrashedVolumeView], now: Duration) -> String {
    if volumes.is_empty() {
        return "the trash is empty\n".to_owned();
    }
    let row = |volume: &TrashedVolumeView| {
        vec![
            volume.name.clone(),
            ByteSize(volume.bytes).to_string(),
            volume.pool.clone(),
            volume.namespace.clone(),
            volume.volume.0.to_string(),
            ago(Duration::from_secs(volume.trashed_at_unix_seconds), now),
            volume.purged_at_unix_seconds.map_or("never".to_owned(), |at| {
                match at.saturating_sub(now.as_secs()) {
                    0 => "now".to_owned(),
                    left => format!("in {}", about(left)),
                }
            }),
        ]
    };
    let headings = ["VOLUME", ">SIZE", "POOL", "NAMESPACE", ">ID", ">REMOVED", ">PURGED"];
    with_namespaces(headings, volumes.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{PoolInfo, Trashed, VolumeInfo};
    use base::{Generation, PoolId, VolumeId};

    fn lying(id: u64, name: &str, purged_at_unix_seconds: Option<u64>) -> TrashedVolumeView {
        TrashedVolumeView {
            volume: VolumeId(id),
            name: name.to_owned(),
            pool: "default".to_owned(),
            namespace: String::new(),
            bytes: 1 << 30,
            trashed_at_unix_seconds: 1_000_000,
            purged_at_unix_seconds,
            generation: Generation(1),
        }
    }

    #[test]
    fn what_is_in_the_trash_is_found_by_the_name_that_it_had_or_by_its_id_where_several_had_that() {
        let mut map = ClusterMap::default();
        map.pools.insert(PoolId(1), PoolInfo { name: "p".to_owned(), ..PoolInfo::default() });
        let all =
            [(3, "", "disk"), (7, "", "disk"), (9, "", "7"), (8, "", "b"), (10, "n", "b"), (11, "n", "c")];
        for (id, namespace, name) in all {
            let (namespace, name, trashed) =
                (namespace.to_owned(), name.to_owned(), Some(Trashed::default()));
            let info = VolumeInfo { pool: PoolId(1), namespace, name, trashed, ..VolumeInfo::default() };
            map.volumes.insert(VolumeId(id), info);
        }
        let found = |name: Option<&str>, id: Option<u64>| {
            let which = Which { name: name.map(str::to_owned), id };
            which.find(&map).map(|volume| volume.volume.0).map_err(|error| error.to_string())
        };
        assert_eq!(
            [found(Some("b"), None), found(Some("7"), None), found(None, Some(7))],
            [Ok(8), Ok(9), Ok(7)]
        );
        let in_full = ["p/b", "p/n/b", "p/n/c"].map(|name| found(Some(name), None));
        assert_eq!(in_full, [Ok(8), Ok(10), Ok(11)]);
        let several = found(Some("disk"), None).unwrap_err();
        assert!(several.contains("2 volumes") && several.contains("--id 3 or --id 7"), "{several}");
        for nothing in
            [found(Some("c"), None), found(Some("8"), None), found(None, Some(5)), found(None, None)]
        {
            assert!(nothing.unwrap_err().contains("millpond volume trash"));
        }
    }

    #[test]
    fn the_trash_shows_since_when_and_for_how_long() {
        assert_eq!(table(&[], Duration::ZERO), "the trash is empty\n");
        let day = 86_400;
        let volumes = [("a", None), ("b", Some(3 * day)), ("c", Some(0))]
            .map(|(name, keep)| lying(1, name, keep.map(|keep| 1_000_000 + keep)));
        let shown = table(&volumes, Duration::from_secs(1_000_000 + 7200));
        for (line, (since, until)) in
            shown.lines().skip(1).zip([("2 h ago", "never"), ("2 h ago", "in 3 d"), ("2 h ago", "now")])
        {
            assert!(line.contains(since) && line.ends_with(until), "{shown}");
        }
        assert_eq!(shown.lines().count(), 4);
        let ahead = table(&volumes, Duration::from_secs(999_000));
        assert!(ahead.contains("1 s ago"), "a clock that is behind: {ahead}");
    }

    #[test]
    fn what_is_kept_for_ever_has_no_end() {
        for (limit, keeps) in [(Limit::Seconds(60), Some(60)), (Limit::Never, None)] {
            let change = from_now("disk", limit);
            assert!(matches!(change, VolumeChange::Trash { keep_seconds, .. } if keep_seconds == keeps));
        }
    }
}
