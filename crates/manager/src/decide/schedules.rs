//! Of which volumes snapshots are made by themselves, and which of those are removed again.
//!
//! Both go by the manager's clock, and by what the map shows of the snapshots that there are: nothing else remembers what was
//! done. See [`base::schedule`] for what clocks that are set come to.

use base::calendar::stamp;
use base::map::{ClusterMap, SnapshotInfo, VolumeInfo};
use base::schedule::Schedule;
use base::{LayerId, VolumeId};
use std::collections::BTreeSet;
use std::time::Duration;

/// So many snapshots are removed at once: whoever removes them looks again then whether others are due to be made.
const REMOVED_AT_ONCE_MAX: usize = 16;

/// What is to be done now for schedules, and how long it is until something else is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agenda {
    /// Snapshots to be made, by the names of their schedules.
    pub take: Vec<Due>,
    /// Snapshots to be removed, of each volume the oldest first.
    pub remove: Vec<Surplus>,
    /// None if nothing is to be done by itself before the map changes.
    pub next_in: Option<Duration>,
}

/// Snapshots of volumes that are to be made at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The name of the schedule.
    pub name: String,
    /// The schedule.
    pub schedule: Schedule,
    /// When the slot began that they are of, in seconds since 1970.
    pub slot_unix_seconds: u64,
    /// The volumes, by id and name.
    pub volumes: Vec<(VolumeId, String)>,
}

impl Due {
    /// What the snapshots are called: by the slot, so that nobody makes one of a slot twice.
    #[must_use]
    pub fn snapshot_name(&self) -> String {
        format!("{}-{}", self.name, stamp(self.slot_unix_seconds))
    }
}

/// A snapshot that its schedule keeps no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surplus {
    /// The name of the schedule.
    pub name: String,
    /// The schedule.
    pub schedule: Schedule,
    /// The snapshot's layer.
    pub layer: LayerId,
    /// The snapshot.
    pub info: SnapshotInfo,
}

impl Agenda {
    /// At that time, since 1970.
    #[must_use]
    pub fn of(map: &ClusterMap, unix: Duration) -> Agenda {
        let mut agenda = Agenda::default();
        if map.schedules.is_empty() {
            return agenda;
        }
        let now = unix.as_secs();
        let cloned: BTreeSet<LayerId> =
            map.volumes.values().filter(|info| !info.removed).filter_map(|info| info.parent).collect();
        for (name, schedule) in map.schedules.iter().filter(|(_, schedule)| !schedule.paused) {
            let mut due = Due {
                name: name.clone(),
                schedule: schedule.clone(),
                slot_unix_seconds: schedule.slot(now),
                volumes: Vec::new(),
            };
            for (volume, info) in listed(map, schedule) {
                let made: Vec<(LayerId, &SnapshotInfo)> = map
                    .snapshots_of(volume)
                    .rev()
                    .filter(|(_, info)| info.schedule == Some(schedule.id))
                    .collect();
                let at: Vec<u64> = made.iter().map(|(_, info)| info.at_unix_seconds).collect();
                if schedule.is_due(now, at.iter().copied()) {
                    due.volumes.push((volume, map.short_name(volume, info)));
                }
                let kept = schedule.keep.kept(&at);
                // What somebody protects, and what was cloned from, stays as long as that is so.
                let goes =
                    |(layer, info): &(LayerId, &SnapshotInfo)| !info.protected && !cloned.contains(layer);
                let surplus = made.into_iter().zip(kept).filter(|(_, is_kept)| !is_kept).map(|(one, _)| one);
                agenda.remove.extend(surplus.filter(goes).rev().map(|(layer, info)| Surplus {
                    name: name.clone(),
                    schedule: schedule.clone(),
                    layer,
                    info: info.clone(),
                }));
            }
            if listed(map, schedule).next().is_some() {
                let left = Duration::from_secs(schedule.next_slot(now)).saturating_sub(unix);
                agenda.next_in = Some(agenda.next_in.map_or(left, |next| next.min(left)));
            }
            if !due.volumes.is_empty() {
                agenda.take.push(due);
            }
        }
        if agenda.remove.len() > REMOVED_AT_ONCE_MAX {
            agenda.remove.truncate(REMOVED_AT_ONCE_MAX);
            agenda.next_in = Some(Duration::ZERO);
        }
        agenda
    }
}

/// The volumes of a schedule that people see under their names.
fn listed<'a>(
    map: &'a ClusterMap,
    schedule: &'a Schedule,
) -> impl Iterator<Item = (VolumeId, &'a VolumeInfo)> {
    let known = schedule.volumes.iter().filter_map(|id| Some((*id, map.volumes.get(id)?)));
    known.filter(|(_, info)| info.is_listed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ScheduleId;
    use base::map::Trashed;
    use base::schedule::Interval;

    const HOUR: u64 = 3600;
    /// 11 o'clock on the 29th of November 2026.
    const ELEVEN: u64 = 1_795_950_000;
    const ID: ScheduleId = ScheduleId(7);

    fn schedule(volumes: &[u64], keep: &str) -> Schedule {
        Schedule {
            id: ID,
            volumes: volumes.iter().copied().map(VolumeId).collect(),
            every_seconds: Interval::try_from(HOUR).expect("it is within the bounds"),
            keep: keep.parse().expect("it says what is kept"),
            since_unix_seconds: 5,
            paused: false,
        }
    }

    /// Volumes 1 and 2 with a schedule, of which snapshots were made at these moments.
    fn map(keep: &str, made: &[u64]) -> ClusterMap {
        let mut map = ClusterMap::default();
        for id in [1, 2] {
            map.volumes.insert(VolumeId(id), VolumeInfo { name: format!("v{id}"), ..VolumeInfo::default() });
            if !made.is_empty() {
                let info = |at: &u64| SnapshotInfo {
                    name: format!("s-{}", stamp(*at)),
                    at_unix_seconds: *at,
                    schedule: Some(ID),
                    ..SnapshotInfo::default()
                };
                map.snapshots.insert(VolumeId(id), (0..).zip(made.iter().map(info)).collect());
            }
        }
        map.schedules.insert("s".to_owned(), schedule(&[1, 2], keep));
        map
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The volumes that are due, and of which slot.
    fn due(map: &ClusterMap, seconds: u64) -> Vec<(u64, Vec<u64>)> {
        let take = Agenda::of(map, at(seconds)).take;
        let volumes = |due: &Due| due.volumes.iter().map(|(id, _)| id.0).collect();
        take.iter().map(|due| (due.slot_unix_seconds, volumes(due))).collect()
    }

    /// The numbers of the snapshots of the first volume that go.
    fn removed(map: &ClusterMap) -> Vec<u32> {
        let remove = Agenda::of(map, at(ELEVEN)).remove;
        remove.iter().filter(|one| one.layer.volume() == VolumeId(1)).map(|one| one.layer.number()).collect()
    }

    #[test]
    fn all_volumes_of_a_schedule_are_due_at_one_moment_and_the_next_slot_is_waited_for() {
        let before = map("2 last", &[ELEVEN - HOUR + 3]);
        let half = Duration::from_millis(ELEVEN * 1000 - 500);
        assert_eq!(
            Agenda::of(&before, half),
            Agenda { next_in: Some(Duration::from_millis(500)), ..Agenda::default() }
        );
        let agenda = Agenda::of(&before, at(ELEVEN));
        assert_eq!((agenda.take.len(), agenda.next_in), (1, Some(at(HOUR))));
        let due = &agenda.take[0];
        assert_eq!(due.snapshot_name(), "s-20261129T110000Z");
        let names: Vec<&str> = due.volumes.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["v1", "v2"]);
        assert_eq!(Agenda::of(&map("2 last", &[ELEVEN + 1]), at(ELEVEN + 2)).take, []);
        assert_eq!(Agenda::of(&ClusterMap::default(), at(ELEVEN)), Agenda::default());
    }

    #[test]
    fn slots_that_nobody_saw_are_one_and_clocks_that_are_set_make_no_second_one() {
        assert_eq!(due(&map("2 last", &[ELEVEN - 100 * HOUR]), ELEVEN + 7), [(ELEVEN, vec![1, 2])]);
        let both = map("2 last", &[ELEVEN - HOUR + 1, ELEVEN + 1]);
        for seconds in [ELEVEN, ELEVEN - 1, ELEVEN - HOUR, ELEVEN + 1800] {
            assert_eq!(due(&both, seconds), [], "{}", stamp(seconds));
        }
        // It was wrong by years once.
        let ahead = map("2 last", &[ELEVEN + 30_000 * HOUR, ELEVEN - HOUR]);
        assert_eq!(due(&ahead, ELEVEN), [(ELEVEN, vec![1, 2])]);
        // And what was made since is not what goes for that.
        assert_eq!(removed(&map("1 last", &[ELEVEN + 30_000 * HOUR, ELEVEN])), [0]);
        // In the slot in which the schedule was made nothing is due, and nothing of others counts.
        let mut new = map("2 last", &[]);
        new.schedules.get_mut("s").expect("it is there").since_unix_seconds = ELEVEN + 5;
        assert_eq!(due(&new, ELEVEN + 6), []);
        assert_eq!(due(&new, ELEVEN + HOUR), [(ELEVEN + HOUR, vec![1, 2])]);
        let mut of_another = map("1 last", &[ELEVEN - HOUR, ELEVEN - 1, ELEVEN]);
        of_another.schedules.get_mut("s").expect("it is there").id = ScheduleId(8);
        assert_eq!(due(&of_another, ELEVEN), [(ELEVEN, vec![1, 2])]);
        assert_eq!(removed(&of_another), [0; 0], "an old schedule of that name made them");
    }

    #[test]
    fn what_is_in_the_trash_or_gone_is_passed_over_and_who_is_paused_does_nothing() {
        let mut map = map("1 last", &[ELEVEN - 2 * HOUR, ELEVEN - HOUR]);
        assert_eq!((due(&map, ELEVEN), removed(&map)), (vec![(ELEVEN, vec![1, 2])], vec![0]));
        let info = map.volumes.get_mut(&VolumeId(1)).expect("it is there");
        info.trashed = Some(Trashed::default());
        assert_eq!((due(&map, ELEVEN), removed(&map)), (vec![(ELEVEN, vec![2])], vec![]));
        map.volumes.get_mut(&VolumeId(2)).expect("it is there").removed = true;
        assert_eq!(Agenda::of(&map, at(ELEVEN)), Agenda::default(), "it idles");
        map.volumes.clear();
        assert_eq!(Agenda::of(&map, at(ELEVEN)), Agenda::default());
        let mut map = self::map("1 last", &[ELEVEN - 2 * HOUR, ELEVEN - HOUR]);
        map.schedules.get_mut("s").expect("it is there").paused = true;
        assert_eq!(Agenda::of(&map, at(ELEVEN)), Agenda::default());
    }

    #[test]
    fn what_is_kept_no_more_goes_unless_it_is_protected_or_cloned() {
        let made: Vec<u64> = (0..6).map(|hour| ELEVEN - (5 - hour) * HOUR).collect();
        let mut map = map("2 hourly", &made);
        assert_eq!(removed(&map), [0, 1, 2, 3]);
        map.snapshots
            .get_mut(&VolumeId(1))
            .expect("it has some")
            .get_mut(&1)
            .expect("it is there")
            .protected = true;
        let clone = VolumeInfo { parent: Some(VolumeId(1).layer(2)), ..VolumeInfo::default() };
        map.volumes.insert(VolumeId(9), clone);
        assert_eq!(removed(&map), [0, 3]);
        map.volumes.get_mut(&VolumeId(9)).expect("it is there").removed = true;
        assert_eq!(removed(&map), [0, 2, 3]);
        // What people made themselves neither goes nor counts.
        let own =
            SnapshotInfo { name: "mine".to_owned(), at_unix_seconds: ELEVEN, ..SnapshotInfo::default() };
        map.snapshots.get_mut(&VolumeId(1)).expect("it has some").insert(6, own);
        assert_eq!(removed(&map), [0, 2, 3]);
    }

    #[test]
    fn of_many_some_are_removed_and_the_rest_at_once_behind_them() {
        let made: Vec<u64> = (0..30).map(|hour| ELEVEN - (29 - hour) * HOUR).collect();
        let mut map = map("4 last", &made);
        let mut rounds = Vec::new();
        loop {
            let Agenda { remove, next_in, take } = Agenda::of(&map, at(ELEVEN));
            assert_eq!(take, []);
            for Surplus { layer, .. } in &remove {
                map.snapshots.get_mut(&layer.volume()).and_then(|all| all.remove(&layer.number()));
            }
            rounds.push(remove.len());
            if next_in != Some(Duration::ZERO) {
                break;
            }
        }
        assert_eq!(rounds, [16, 16, 16, 4]);
        assert!(map.snapshots.values().all(|all| all.keys().copied().eq(26..30)));
    }
}
