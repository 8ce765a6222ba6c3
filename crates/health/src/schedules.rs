//! Schedules of snapshots as the commands show them.

use base::VolumeId;
use base::map::{ClusterMap, SnapshotInfo, VolumeInfo};
use base::schedule::{LateSchedule, Schedule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A schedule: `schedule ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleView {
    /// Its name.
    pub name: String,
    /// How often snapshots are made.
    pub every_seconds: u64,
    /// Which are kept.
    pub keep: String,
    /// Whether it makes snapshots, and why not.
    pub state: ScheduleState,
    /// Why it is late, if it is.
    pub reason: Option<String>,
    /// Its volumes, as it was given them.
    pub volumes: Vec<ScheduledVolume>,
    /// When the last snapshot of it was made that there is, in seconds since 1970.
    pub last_unix_seconds: Option<u64>,
    /// When it is due next, in seconds since 1970. None: it is paused, or idles.
    pub next_unix_seconds: Option<u64>,
}

/// Whether a schedule makes snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleState {
    /// It does.
    Active,
    /// Somebody paused it.
    Paused,
    /// It could not make some that were due.
    Late,
    /// None of its volumes is there any more.
    Idle,
}

impl ScheduleState {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ScheduleState::Active => "active",
            ScheduleState::Paused => "paused",
            ScheduleState::Late => "late",
            ScheduleState::Idle => "idle",
        }
    }
}

/// A volume of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledVolume {
    /// Its name, or the one that it had; where nobody knows that any more, its number.
    pub name: String,
    /// Whether it is there: what lies in the trash, or is gone, is passed over.
    pub is_there: bool,
    /// Its snapshots of this schedule.
    pub snapshots: usize,
    /// When the last of them was made, in seconds since 1970.
    pub last_unix_seconds: Option<u64>,
}

/// The schedules, by name, at that time since 1970. Some are late.
#[must_use]
pub fn schedules(
    map: &ClusterMap,
    late: &BTreeMap<String, LateSchedule>,
    now_unix_seconds: u64,
) -> Vec<ScheduleView> {
    let view = |(name, schedule): (&String, &Schedule)| {
        let volumes: Vec<ScheduledVolume> =
            schedule.volumes.iter().map(|id| volume(map, schedule, *id)).collect();
        let late = late.get(name);
        let state = match (schedule.paused, late) {
            (true, _) => ScheduleState::Paused,
            _ if volumes.iter().all(|volume| !volume.is_there) => ScheduleState::Idle,
            (_, Some(_)) => ScheduleState::Late,
            (_, None) => ScheduleState::Active,
        };
        let is_due = |id: &VolumeId| {
            let is_there = map.volumes.get(id).is_some_and(VolumeInfo::is_listed);
            is_there && schedule.is_due(now_unix_seconds, made(map, schedule, *id))
        };
        let next = match schedule.volumes.iter().any(is_due) {
            true => now_unix_seconds,
            false => schedule.next_slot(now_unix_seconds),
        };
        ScheduleView {
            name: name.clone(),
            every_seconds: schedule.every_seconds.seconds(),
            keep: schedule.keep.to_string(),
            state,
            reason: late.filter(|_| state == ScheduleState::Late).map(|late| late.reason.clone()),
            last_unix_seconds: volumes.iter().filter_map(|volume| volume.last_unix_seconds).max(),
            next_unix_seconds: [ScheduleState::Active, ScheduleState::Late].contains(&state).then_some(next),
            volumes,
        }
    };
    map.schedules.iter().map(view).collect()
}

fn volume(map: &ClusterMap, schedule: &Schedule, id: VolumeId) -> ScheduledVolume {
    let info = map.volumes.get(&id);
    ScheduledVolume {
        name: info.map_or_else(|| id.to_string(), |info| map.shown_name(info)),
        is_there: info.is_some_and(VolumeInfo::is_listed),
        snapshots: made(map, schedule, id).count(),
        last_unix_seconds: made(map, schedule, id).last(),
    }
}

/// When the snapshots of a volume were made that it has of a schedule, in that order.
fn made(map: &ClusterMap, schedule: &Schedule, volume: VolumeId) -> impl Iterator<Item = u64> {
    let its = |info: &SnapshotInfo| (info.schedule == Some(schedule.id)).then_some(info.at_unix_seconds);
    map.snapshots_of(volume).filter_map(move |(_, info)| its(info))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ScheduleId;
    use base::map::Trashed;

    #[test]
    fn a_schedule_is_shown_with_what_it_did_last_does_next_and_why_it_does_not() {
        let mut map = ClusterMap::default();
        map.volumes.insert(VolumeId(1), VolumeInfo { name: "v".to_owned(), ..VolumeInfo::default() });
        let schedule = Schedule {
            id: ScheduleId(7),
            volumes: vec![VolumeId(1), VolumeId(2)],
            every_seconds: "1h".parse().unwrap(),
            keep: "2 last".parse().unwrap(),
            since_unix_seconds: 7300,
            paused: false,
        };
        map.schedules.insert("s".to_owned(), schedule);
        let shown = |map: &ClusterMap, now: u64| schedules(map, &BTreeMap::new(), now).remove(0);
        let new = shown(&map, 7400);
        assert_eq!(
            (new.state, new.last_unix_seconds, new.next_unix_seconds),
            (ScheduleState::Active, None, Some(10_800))
        );
        let names: Vec<(&str, bool)> =
            new.volumes.iter().map(|one| (one.name.as_str(), one.is_there)).collect();
        assert_eq!(names, [("v", true), ("volume.2", false)]);
        assert_eq!(shown(&map, 10_801).next_unix_seconds, Some(10_801), "it is due");
        let info = |schedule| SnapshotInfo { at_unix_seconds: 10_802, schedule, ..SnapshotInfo::default() };
        map.snapshots.insert(VolumeId(1), [(0, info(None)), (1, info(Some(ScheduleId(7))))].into());
        let made = shown(&map, 10_803);
        assert_eq!((made.last_unix_seconds, made.next_unix_seconds), (Some(10_802), Some(14_400)));
        assert_eq!(made.volumes[0].snapshots, 1);

        let reason = "somebody does not stand still".to_owned();
        let late =
            LateSchedule { slot_unix_seconds: 14_400, volumes: vec!["v".to_owned()], reason: reason.clone() };
        let late = BTreeMap::from([("s".to_owned(), late)]);
        let told = schedules(&map, &late, 14_500).remove(0);
        assert_eq!((told.state, told.reason), (ScheduleState::Late, Some(reason)));
        map.volumes.get_mut(&VolumeId(1)).unwrap().trashed = Some(Trashed::default());
        let idle = shown(&map, 14_500);
        assert_eq!((idle.state, idle.next_unix_seconds, idle.reason), (ScheduleState::Idle, None, None));
        map.schedules.get_mut("s").unwrap().paused = true;
        let paused = schedules(&map, &late, 14_500).remove(0);
        assert_eq!(
            (paused.state, paused.next_unix_seconds, paused.reason),
            (ScheduleState::Paused, None, None)
        );
    }
}
