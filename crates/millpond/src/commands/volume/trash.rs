//! Volumes in the trash, as people name and see them.

use crate::output::table;
use anyhow::{Context, bail};
use base::duration::{Limit, about};
use base::map::Trashed;
use base::units::ByteSize;
use health::view::TrashedVolumeView;
use std::time::{SystemTime, UNIX_EPOCH};

/// In the trash from now on, for so long.
pub(super) fn from_now(keep: Limit) -> Trashed {
    let at_unix_seconds = unix_seconds();
    let until_unix_seconds = match keep {
        Limit::Never => None,
        Limit::Seconds(seconds) => Some(at_unix_seconds.saturating_add(seconds)),
    };
    Trashed { at_unix_seconds, until_unix_seconds }
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The volume in the trash that had that name, or has that id.
pub(super) fn find(trash: Vec<TrashedVolumeView>, which: &str) -> anyhow::Result<TrashedVolumeView> {
    let (mut named, others): (Vec<_>, Vec<_>) = trash.into_iter().partition(|volume| volume.name == which);
    if named.len() > 1 {
        let ids: Vec<String> = named.iter().map(|volume| volume.volume.0.to_string()).collect();
        bail!(
            "{} volumes in the trash were called {which}; `millpond volume trash` tells them apart: say which by its id, {}",
            ids.len(),
            ids.join(" or ")
        );
    }
    let has_id = |volume: &TrashedVolumeView| which.parse() == Ok(volume.volume.0);
    let found = named.pop().or_else(|| others.into_iter().find(has_id));
    found.with_context(|| {
        format!("nothing in the trash was called {which}; `millpond volume trash` shows what is there")
    })
}

pub(super) fn table(volumes: &[TrashedVolumeView], now: u64) -> String {
    if volumes.is_empty() {
        return "the trash is empty\n".to_owned();
    }
    let row = |volume: &TrashedVolumeView| {
        vec![
            volume.name.clone(),
            ByteSize(volume.bytes).to_string(),
            volume.pool.clone(),
            volume.volume.0.to_string(),
            format!("{} ago", about(now.saturating_sub(volume.trashed_at_unix_seconds).max(1))),
            volume.purged_at_unix_seconds.map_or("never".to_owned(), |at| match at.saturating_sub(now) {
                0 => "now".to_owned(),
                left => format!("in {}", about(left)),
            }),
        ]
    };
    table::render(&["VOLUME", ">SIZE", "POOL", ">ID", ">REMOVED", ">PURGED"], volumes.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VolumeId;

    fn lying(id: u64, name: &str, purged_at_unix_seconds: Option<u64>) -> TrashedVolumeView {
        TrashedVolumeView {
            volume: VolumeId(id),
            name: name.to_owned(),
            pool: "default".to_owned(),
            bytes: 1 << 30,
            trashed_at_unix_seconds: 1_000_000,
            purged_at_unix_seconds,
        }
    }

    #[test]
    fn what_is_in_the_trash_is_found_by_the_name_that_it_had_or_by_its_id_where_several_had_that() {
        let trash =
            || vec![lying(3, "disk", None), lying(7, "disk", None), lying(9, "3", None), lying(8, "b", None)];
        let found = |which: &str| {
            find(trash(), which).map(|volume| volume.volume.0).map_err(|error| error.to_string())
        };
        assert_eq!([found("b"), found("7"), found("3")], [Ok(8), Ok(7), Ok(9)], "a name goes before an id");
        let several = found("disk").unwrap_err();
        assert!(several.contains("2 volumes") && several.contains("3 or 7"), "{several}");
        for nothing in ["c", "5", ""] {
            assert!(found(nothing).unwrap_err().contains("millpond volume trash"), "{nothing}");
        }
    }

    #[test]
    fn the_trash_shows_since_when_and_for_how_long() {
        assert_eq!(table(&[], 0), "the trash is empty\n");
        let day = 86_400;
        let volumes = [("a", None), ("b", Some(3 * day)), ("c", Some(0))]
            .map(|(name, keep)| lying(1, name, keep.map(|keep| 1_000_000 + keep)));
        let shown = table(&volumes, 1_000_000 + 7200);
        for (line, (since, until)) in
            shown.lines().skip(1).zip([("2 h ago", "never"), ("2 h ago", "in 3 d"), ("2 h ago", "now")])
        {
            assert!(line.contains(since) && line.ends_with(until), "{shown}");
        }
        assert_eq!(shown.lines().count(), 4);
        let ahead = table(&volumes, 999_000);
        assert!(ahead.contains("1 s ago"), "a clock that is behind: {ahead}");
    }

    #[test]
    fn what_is_kept_for_ever_has_no_end() {
        let Trashed { at_unix_seconds, until_unix_seconds } = from_now(Limit::Seconds(60));
        assert_eq!(until_unix_seconds, Some(at_unix_seconds + 60));
        assert_eq!(from_now(Limit::Never).until_unix_seconds, None);
        assert_eq!(from_now(Limit::Seconds(u64::MAX)).until_unix_seconds, Some(u64::MAX));
    }
}
