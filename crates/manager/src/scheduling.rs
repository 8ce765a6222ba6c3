//! Has snapshots made and removed that schedules want, and remembers what could not be done.
//!
//! What is done is written under the condition that the schedule is the one by which it was decided, and called by its slot: two
//! who both take themselves for the manager make no snapshot twice. What fails is tried again within the slot, and what is late
//! is told.

use crate::decide::Moment;
use crate::decide::schedules::{Agenda, Due};
use base::map::ClusterMap;
use base::schedule::LateSchedule;
use base::{ScheduleId, VolumeId};
use cluster::{Cluster, ClusterError, WantedSnapshot};
use std::collections::BTreeMap;
use std::time::Duration;

/// The pause before something is tried again that failed, at first and at last: doubled each time. Where one client does not come to a
/// standstill, the others wait for it for a second each time.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(80);
/// How long after the beginning of its slot what fails is late.
const LATE_AFTER_SECONDS: u64 = 60;
/// So many schedules that are late are told of.
const LATE_MAX: usize = 16;

/// What one process that manages the cluster has done for schedules, and could not do.
pub struct Scheduling {
    cluster: Cluster,
    /// What was made last for each that the map may not show yet.
    made: BTreeMap<ScheduleId, (u64, Vec<VolumeId>)>,
    failing: BTreeMap<ScheduleId, Failing>,
}

/// A schedule that is due since a while.
struct Failing {
    name: String,
    late: LateSchedule,
    /// How long it was left alone the last time.
    pause: Duration,
    /// When it is tried again, by the monotonic clock.
    again_at: Duration,
}

impl Scheduling {
    /// For a process that has just become the manager.
    #[must_use]
    pub fn new(cluster: Cluster) -> Scheduling {
        Scheduling { cluster, made: BTreeMap::new(), failing: BTreeMap::new() }
    }

    /// Makes the snapshots of one schedule that is due, if one is, and removes some that are kept no more. Answers how long it is
    /// until something else is to be done; what was done shows in the map.
    pub async fn act(&mut self, map: &ClusterMap, moment: Moment) -> Option<Duration> {
        let agenda = Agenda::of(map, moment.unix);
        let is_due = |id: &ScheduleId| agenda.take.iter().any(|due| due.schedule.id == *id);
        self.made.retain(|id, _| is_due(id));
        self.failing.retain(|id, _| is_due(id));
        let mut waits: Vec<Duration> = agenda.next_in.into_iter().collect();
        let mut has_tried = false;
        for due in &agenda.take {
            if self.is_made(due) {
                continue;
            }
            match self.failing.get(&due.schedule.id) {
                Some(failing) if failing.again_at > moment.now => waits.push(failing.again_at - moment.now),
                // Each takes a moment of its own.
                _ if has_tried => waits.push(Duration::ZERO),
                _ => {
                    has_tried = true;
                    waits.extend(self.take(due, moment).await);
                }
            }
        }
        for surplus in &agenda.remove {
            let (schedule, snapshot) = (&surplus.name, &surplus.info.name);
            match self
                .cluster
                .remove_scheduled(&surplus.name, &surplus.schedule, surplus.layer, &surplus.info)
                .await
            {
                Ok(true) => {
                    tracing::debug!(%schedule, %snapshot, "the snapshot is kept no more, and removed")
                }
                // It changed, and shows in the map when it has.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%schedule, %snapshot, %error, "a snapshot that is kept no more could not be removed; it is tried again");
                    waits.push(RETRY_PAUSE_MIN);
                }
            }
        }
        waits.into_iter().min()
    }

    /// What has been late for a while at that time since 1970, by the names of the schedules.
    #[must_use]
    pub fn late(&self, unix: Duration) -> BTreeMap<String, LateSchedule> {
        let is_late = |failing: &&Failing| {
            unix.as_secs().saturating_sub(failing.late.slot_unix_seconds) >= LATE_AFTER_SECONDS
        };
        let late =
            self.failing.values().filter(is_late).map(|failing| (failing.name.clone(), failing.late.clone()));
        late.take(LATE_MAX).collect()
    }

    /// Whether it was done, though the map did not show it yet.
    fn is_made(&self, due: &Due) -> bool {
        let made = self.made.get(&due.schedule.id);
        made.is_some_and(|(slot, volumes)| {
            *slot == due.slot_unix_seconds && volumes.iter().eq(due.volumes.iter().map(|(id, _)| id))
        })
    }

    /// Makes snapshots, or remembers why not and answers when it is tried again.
    async fn take(&mut self, due: &Due, moment: Moment) -> Option<Duration> {
        let Due { name, schedule, slot_unix_seconds, volumes } = due;
        let snapshot = due.snapshot_name();
        let want = |(_, volume): &(VolumeId, String)| WantedSnapshot {
            volume: volume.clone(),
            name: snapshot.clone(),
        };
        let wanted: Vec<WantedSnapshot> = volumes.iter().map(want).collect();
        let error = match self.cluster.take_scheduled(name, schedule, &wanted, moment.unix.as_secs()).await {
            Ok(taken) => {
                if taken.is_some() {
                    tracing::info!(schedule = %name, %snapshot, volumes = volumes.len(), "snapshots were made by schedule");
                }
                self.failing.remove(&schedule.id);
                let ids = volumes.iter().map(|(id, _)| *id).collect();
                self.made.insert(schedule.id, (*slot_unix_seconds, ids));
                return None;
            }
            // The map shows it in a moment.
            Err(ClusterError::ScheduleChanged { .. }) => return Some(RETRY_PAUSE_MIN),
            Err(error) => error,
        };
        let reason = error.to_string();
        let before = self.failing.remove(&schedule.id);
        if before.as_ref().is_none_or(|before| before.late.reason != reason) {
            tracing::warn!(schedule = %name, %error, "snapshots could not be made by schedule; it is tried again");
        }
        let pause = before.as_ref().map_or(RETRY_PAUSE_MIN, |before| (before.pause * 2).min(RETRY_PAUSE_MAX));
        let slot_unix_seconds = before.map_or(*slot_unix_seconds, |before| before.late.slot_unix_seconds);
        let volumes = volumes.iter().map(|(_, volume)| volume.clone()).collect();
        let late = LateSchedule { slot_unix_seconds, volumes, reason };
        let failing = Failing { name: name.clone(), late, pause, again_at: moment.now + pause };
        self.failing.insert(schedule.id, failing);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ClientId;
    use base::schedule::Interval;
    use cluster::testing::cluster_of;
    use cluster::{ScheduleChange, WantedSchedule};

    const HOUR: u64 = 3600;
    /// 11 o'clock on the 29th of November 2026.
    const ELEVEN: u64 = 1_795_950_000;

    fn moment(unix_seconds: u64) -> Moment {
        let unix = Duration::from_secs(unix_seconds);
        Moment { now: unix.saturating_sub(Duration::from_secs(ELEVEN - 100 * HOUR)), unix }
    }

    async fn with_schedules(names: &[&str]) -> Cluster {
        let cluster = cluster_of(2, 4).await;
        for name in ["v", "w"] {
            cluster.create_volume(name, "p", 1 << 20).await.unwrap();
        }
        for name in names {
            let wanted = WantedSchedule {
                volumes: vec!["v".to_owned(), "w".to_owned()],
                every: Interval::try_from(HOUR).unwrap(),
                keep: "2 last".parse().unwrap(),
            };
            cluster.create_schedule(name, wanted, ELEVEN - HOUR).await.unwrap();
        }
        cluster
    }

    async fn names(cluster: &Cluster) -> Vec<String> {
        let map = cluster.map().await.unwrap();
        let (volume, _) = map.volume_named("v").unwrap();
        map.snapshots_of(volume).map(|(_, info)| info.name.clone()).collect()
    }

    #[tokio::test]
    async fn snapshots_are_made_slot_by_slot_and_old_ones_removed() {
        let cluster = with_schedules(&["a", "b"]).await;
        let mut scheduling = Scheduling::new(cluster.clone());
        for hour in 0..4 {
            let mut rounds = 0;
            loop {
                let map = cluster.map().await.unwrap();
                let next = scheduling.act(&map, moment(ELEVEN + hour * HOUR + rounds)).await.unwrap();
                rounds += 1;
                if next > Duration::from_secs(60) {
                    break;
                }
                assert!(rounds < 10, "it comes to no end");
            }
        }
        let expected =
            ["a-20261129T130000Z", "b-20261129T130000Z", "a-20261129T140000Z", "b-20261129T140000Z"];
        let map = cluster.map().await.unwrap();
        // The last round removes what the ones before made too many, in the map that it was shown.
        scheduling.act(&map, moment(ELEVEN + 3 * HOUR + 30)).await;
        assert_eq!(names(&cluster).await, expected);
        assert!(scheduling.late(moment(ELEVEN + 4 * HOUR).unix).is_empty());
    }

    #[tokio::test]
    async fn two_managers_and_maps_that_are_behind_make_none_twice() {
        let cluster = with_schedules(&["a", "b"]).await;
        let mut managers = [cluster.clone(), cluster.clone()].map(Scheduling::new);
        let behind = cluster.map().await.unwrap();
        for round in 0..4 {
            for manager in &mut managers {
                manager.act(&behind, moment(ELEVEN + round)).await;
            }
        }
        assert_eq!(names(&cluster).await, ["a-20261129T110000Z", "b-20261129T110000Z"]);
        for manager in &managers {
            assert!(manager.failing.is_empty() && manager.made.len() == 2, "who was slower did not fail");
        }
        let [first, second] = &mut managers;
        let next = moment(ELEVEN + HOUR);
        let map = cluster.map().await.unwrap();
        tokio::join!(first.act(&map, next), second.act(&map, next));
        assert_eq!(names(&cluster).await.len(), 3);
    }

    #[tokio::test]
    async fn what_fails_is_tried_again_holds_up_no_other_and_is_late_after_a_minute() {
        let cluster = with_schedules(&["a"]).await;
        cluster.create_volume("x", "p", 1 << 20).await.unwrap();
        let of_x = WantedSchedule {
            volumes: vec!["x".to_owned()],
            every: Interval::try_from(HOUR).unwrap(),
            keep: "2 last".parse().unwrap(),
        };
        cluster.create_schedule("b", of_x, ELEVEN - HOUR).await.unwrap();
        // A client that does not stand still.
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
        let attached = cluster.attach("v", ClientId(1), lease, false, "client 1".to_owned()).await.unwrap();
        let map = cluster.map().await.unwrap();
        let mut scheduling = Scheduling::new(cluster.clone());
        assert_eq!(scheduling.act(&map, moment(ELEVEN)).await, Some(Duration::ZERO), "the other one is due");
        let left = scheduling.act(&map, moment(ELEVEN + 1)).await.unwrap();
        assert_eq!(left, Duration::from_secs(9));
        let (x, _) = map.volume_named("x").unwrap();
        assert_eq!(cluster.map().await.unwrap().snapshots_of(x).count(), 1);
        assert!(scheduling.late(moment(ELEVEN + 59).unix).is_empty());
        let map = cluster.map().await.unwrap();
        scheduling.act(&map, moment(ELEVEN + HOUR + 10)).await;
        let late = scheduling.late(moment(ELEVEN + HOUR + 10).unix);
        let told = &late["a"];
        assert_eq!(
            (told.slot_unix_seconds, told.volumes.as_slice()),
            (ELEVEN, ["v", "w"].map(str::to_owned).as_slice())
        );
        assert!(told.reason.contains("client 1"), "{}", told.reason);
        // It goes: one snapshot for all that was missed.
        cluster.detach(attached.id, ClientId(1)).await.unwrap();
        let left = scheduling.act(&map, moment(ELEVEN + HOUR + 20)).await;
        assert_eq!(left, Some(Duration::from_secs(10)), "it is left alone for longer each time");
        scheduling.act(&map, moment(ELEVEN + HOUR + 30)).await;
        scheduling.act(&map, moment(ELEVEN + HOUR + 31)).await;
        assert_eq!(names(&cluster).await, ["a-20261129T120000Z"]);
        assert!(scheduling.late(moment(ELEVEN + 2 * HOUR).unix).is_empty());
    }

    #[tokio::test]
    async fn what_is_paused_or_done_by_another_is_late_no_more() {
        let cluster = with_schedules(&["a"]).await;
        let taken = WantedSnapshot { volume: "v".to_owned(), name: "a-20261129T110000Z".to_owned() };
        cluster.take_snapshots(&[taken], 5).await.unwrap();
        let mut scheduling = Scheduling::new(cluster.clone());
        scheduling.act(&cluster.map().await.unwrap(), moment(ELEVEN)).await;
        let late = scheduling.late(moment(ELEVEN + 60).unix);
        assert!(late["a"].reason.contains("has a snapshot a-20261129T110000Z already"), "{late:?}");
        cluster.change_schedule("a", &ScheduleChange::default(), ELEVEN + 60).await.unwrap();
        scheduling.act(&cluster.map().await.unwrap(), moment(ELEVEN + 61)).await;
        assert!(!scheduling.late(moment(ELEVEN + 61).unix).is_empty());
        cluster.pause_schedule("a", true, ELEVEN + 62).await.unwrap();
        let waits = scheduling.act(&cluster.map().await.unwrap(), moment(ELEVEN + 62)).await;
        assert_eq!((waits, scheduling.late(moment(ELEVEN + 62).unix).len()), (None, 0));
    }
}
