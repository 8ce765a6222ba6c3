//! Schedules: made, changed, paused, removed; what is done for them, the manager decides.
//!
//! Whatever is done for a schedule is done under the condition that it is the one by which that was decided, and what it removes is
//! the very snapshot that was looked at. So two processes that both take themselves for the manager make no snapshot twice,
//! and remove none that somebody has renamed or protected since.

use super::error::check_name;
use super::snapshots::{FoundSnapshot, OnBehalf};
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, VOLUMES_AT_ONCE_MAX, WantedSnapshot, keys};
use base::map::{ClusterMap, SnapshotInfo, VolumeInfo};
use base::schedule::{Interval, Keep, Schedule};
use base::{LayerId, ScheduleId, VolumeId, VolumeName};
use registry::{Operation, Txn};

/// Bytes of a name: those of snapshots consist of it and of a moment.
const NAME_BYTES_MAX: usize = 80;

/// A schedule that is to be made.
#[derive(Clone, Debug)]
pub struct WantedSchedule {
    /// Of which volumes, by name.
    pub volumes: Vec<String>,
    /// How often.
    pub every: Interval,
    /// Which snapshots are kept.
    pub keep: Keep,
}

/// What is to be otherwise with a schedule.
#[derive(Clone, Debug, Default)]
pub struct ScheduleChange {
    /// How often from now on.
    pub every: Option<Interval>,
    /// Which snapshots are kept from now on.
    pub keep: Option<Keep>,
    /// More volumes, by name.
    pub add: Vec<String>,
    /// Volumes that are none of its from now on, by name.
    pub remove: Vec<String>,
}

impl Cluster {
    /// Makes a schedule at that time since 1970.
    ///
    /// # Errors
    /// [`ClusterError::ScheduleExists`], [`ClusterError::ScheduleInvalid`], [`ClusterError::NoSuchVolume`],
    /// [`ClusterError::NamedTwice`], [`ClusterError::TooManyAtOnce`], [`ClusterError::NameInvalid`]; those of the registry.
    pub async fn create_schedule(
        &self,
        name: &str,
        wanted: WantedSchedule,
        unix_seconds: u64,
    ) -> Result<Schedule> {
        check_name("schedule", name)?;
        if name.len() > NAME_BYTES_MAX {
            let reason = format!(
                "its name is longer than {NAME_BYTES_MAX} characters, and snapshots get it with a moment behind it; \
                 choose a shorter one"
            );
            return Err(ClusterError::ScheduleInvalid { name: name.to_owned(), reason });
        }
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<Schedule> = self.read(&keys::schedule(name)).await?;
            if read.value.is_some() {
                return Err(ClusterError::ScheduleExists { name: name.to_owned() });
            }
            let mut volumes = Vec::new();
            self.add_volumes(&mut volumes, &wanted.volumes).await?;
            check_volumes(name, &volumes)?;
            let schedule = Schedule {
                id: ScheduleId(uuid::Uuid::new_v4().as_u64_pair().0),
                volumes,
                every_seconds: wanted.every,
                keep: wanted.keep.clone(),
                since_unix_seconds: unix_seconds,
                paused: false,
            };
            if self.commit(read.replaced_by(&schedule)).await? {
                return Ok(schedule);
            }
        }
        Err(contended(name))
    }

    /// Changes a schedule at that time since 1970. Volumes that are gone for good are none of its any more then.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchSchedule`], and those of [`Self::create_schedule`].
    pub async fn change_schedule(
        &self,
        name: &str,
        change: &ScheduleChange,
        unix_seconds: u64,
    ) -> Result<Schedule> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, before) = self.find_schedule(name).await?;
            let ScheduleChange { every, keep, add, remove } = change;
            let volumes = self.changed_volumes(name, &before.volumes, add, remove).await?;
            let every_seconds = every.unwrap_or(before.every_seconds);
            let begins_anew = every_seconds != before.every_seconds || !add.is_empty();
            let since_unix_seconds = if begins_anew { unix_seconds } else { before.since_unix_seconds };
            let keep = keep.clone().unwrap_or_else(|| before.keep.clone());
            let schedule = Schedule { volumes, every_seconds, keep, since_unix_seconds, ..before };
            if self.commit(read.replaced_by(&schedule)).await? {
                return Ok(schedule);
            }
        }
        Err(contended(name))
    }

    /// Has a schedule make and remove nothing, or go on at that time since 1970.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchSchedule`]; those of the registry.
    pub async fn pause_schedule(&self, name: &str, paused: bool, unix_seconds: u64) -> Result<Schedule> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, before) = self.find_schedule(name).await?;
            if before.paused == paused {
                return Ok(before);
            }
            let since_unix_seconds = if paused { before.since_unix_seconds } else { unix_seconds };
            let schedule = Schedule { paused, since_unix_seconds, ..before };
            if self.commit(read.replaced_by(&schedule)).await? {
                return Ok(schedule);
            }
        }
        Err(contended(name))
    }

    /// Removes a schedule. Its snapshots stay.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchSchedule`]; those of the registry.
    pub async fn remove_schedule(&self, name: &str) -> Result<Schedule> {
        for _ in 0..ATTEMPTS_MAX {
            let (read, schedule) = self.find_schedule(name).await?;
            let txn = Txn::new().when(read.unchanged()).then(Operation::delete(&read.key));
            if self.commit(txn).await? {
                return Ok(schedule);
            }
        }
        Err(contended(name))
    }

    /// Makes snapshots for a schedule, of volumes of it, if it still is as it was. None: another made one of them before.
    ///
    /// # Errors
    /// [`ClusterError::ScheduleChanged`], and those of [`Self::take_snapshots`].
    pub async fn take_scheduled(
        &self,
        name: &str,
        schedule: &Schedule,
        wanted: &[WantedSnapshot],
        at_unix_seconds: u64,
    ) -> Result<Option<Vec<LayerId>>> {
        match self.take_for(Some(OnBehalf { name, schedule }), wanted, at_unix_seconds).await {
            Err(ClusterError::SnapshotExists { volume, name }) => {
                match self.find_snapshot(&volume, &name).await {
                    Ok(FoundSnapshot { snapshot, .. })
                        if snapshot.value.as_ref().and_then(|info| info.schedule) == Some(schedule.id) =>
                    {
                        Ok(None)
                    }
                    Err(error @ ClusterError::Registry(_)) => Err(error),
                    _ => Err(ClusterError::SnapshotExists { volume, name }),
                }
            }
            taken => taken.map(Some),
        }
    }

    /// Removes the snapshot of a layer that a schedule made, if that still is as it was, and the snapshot as it was seen. Says whether: it may have been renamed, protected,
    /// cloned or removed since, or its volume put into the trash.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn remove_scheduled(
        &self,
        name: &str,
        schedule: &Schedule,
        layer: LayerId,
        seen: &SnapshotInfo,
    ) -> Result<bool> {
        let id = layer.volume();
        for _ in 0..ATTEMPTS_MAX {
            let decided_by = match self.read_same_schedule(name, schedule).await {
                Err(ClusterError::ScheduleChanged { .. }) => return Ok(false),
                read => read?,
            };
            let found: Read<SnapshotInfo> = self.read(&keys::snapshot(layer)).await?;
            let named: Read<u32> = self.read(&keys::snapshot_name(id, &seen.name)).await?;
            let read: Read<VolumeInfo> = self.read(&keys::volume(id)).await?;
            let Some(info) = read.value.clone().filter(VolumeInfo::is_listed) else { return Ok(false) };
            let is_same = found.value.as_ref() == Some(seen) && named.value == Some(layer.number());
            if !is_same || seen.protected {
                return Ok(false);
            }
            match self.check_uncloned(&self.map().await?, id, Some(layer), &seen.name) {
                Err(ClusterError::HasClones { .. }) => return Ok(false),
                checked => checked?,
            }
            let found = FoundSnapshot { layer, named, snapshot: found };
            if self.commit_removal(&read, info, &[found], Some(&decided_by)).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: format!("the snapshot {}", seen.name) })
    }

    /// A schedule as it is in the registry now, if that is as it was.
    pub(super) async fn read_same_schedule(&self, name: &str, schedule: &Schedule) -> Result<Read<Schedule>> {
        let read: Read<Schedule> = self.read(&keys::schedule(name)).await?;
        match read.value.as_ref() == Some(schedule) {
            true => Ok(read),
            false => Err(ClusterError::ScheduleChanged { name: name.to_owned() }),
        }
    }

    async fn find_schedule(&self, name: &str) -> Result<(Read<Schedule>, Schedule)> {
        let read: Read<Schedule> = self.read(&keys::schedule(name)).await?;
        let schedule = read.value.clone();
        let schedule = schedule.ok_or_else(|| ClusterError::NoSuchSchedule { name: name.to_owned() })?;
        Ok((read, schedule))
    }

    async fn add_volumes(&self, volumes: &mut Vec<VolumeId>, names: &[String]) -> Result<()> {
        for name in names {
            let (id, ..) = self.find_volume(name).await?;
            if volumes.contains(&id) {
                return Err(ClusterError::NamedTwice { volume: name.clone() });
            }
            volumes.push(id);
        }
        Ok(())
    }

    /// The volumes of a schedule, without those that are gone for good, with some more and without others. One in the trash bears
    /// the name that it had.
    async fn changed_volumes(
        &self,
        schedule: &str,
        before: &[VolumeId],
        add: &[String],
        remove: &[String],
    ) -> Result<Vec<VolumeId>> {
        let mut there: Vec<(VolumeId, VolumeInfo)> = Vec::new();
        for id in before {
            let read: Read<VolumeInfo> = self.read(&keys::volume(*id)).await?;
            there.extend(read.value.filter(|info| !info.removed).map(|info| (*id, info)));
        }
        let map = if remove.is_empty() { ClusterMap::default() } else { self.map().await? };
        for name in remove {
            let wanted: VolumeName = name.parse()?;
            let is_meant = |(_, info): &(VolumeId, VolumeInfo)| map.may_mean(&wanted, info);
            let is_listed = |one: &&(VolumeId, VolumeInfo)| is_meant(one) && one.1.is_listed();
            let mut meant: Vec<_> = there.iter().filter(is_listed).collect();
            if meant.len() > 1 {
                meant.sort_unstable_by_key(|(_, info)| map.full_name(info));
                let all = meant.into_iter().map(|(_, info)| map.full_name(info)).collect();
                return Err(ClusterError::AmbiguousName { name: name.clone(), all });
            }
            let listed = there.iter().position(|one| is_meant(one) && one.1.is_listed());
            let Some(index) = listed.or_else(|| there.iter().position(is_meant)) else {
                let reason = format!(
                    "it has no volume {name} that could be taken out; `millpond schedule info {schedule}` shows those it has"
                );
                return Err(ClusterError::ScheduleInvalid { name: schedule.to_owned(), reason });
            };
            there.remove(index);
        }
        let mut volumes: Vec<VolumeId> = there.into_iter().map(|(id, _)| id).collect();
        self.add_volumes(&mut volumes, add).await?;
        check_volumes(schedule, &volumes)?;
        Ok(volumes)
    }
}

fn contended(name: &str) -> ClusterError {
    ClusterError::Contended { what: format!("the schedule {name}") }
}

fn check_volumes(name: &str, volumes: &[VolumeId]) -> Result<()> {
    if volumes.is_empty() {
        let reason = format!(
            "it would have no volume; `millpond schedule rm {name}` removes it, `millpond schedule pause {name}` has it wait"
        );
        return Err(ClusterError::ScheduleInvalid { name: name.to_owned(), reason });
    }
    if volumes.len() > VOLUMES_AT_ONCE_MAX {
        return Err(ClusterError::TooManyAtOnce { count: volumes.len(), max: VOLUMES_AT_ONCE_MAX });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::cluster_of;
    use base::ClientId;
    use base::map::Trashed;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    fn wants(volumes: &[&str]) -> WantedSchedule {
        WantedSchedule {
            volumes: volumes.iter().map(|name| (*name).to_owned()).collect(),
            every: "1h".parse().unwrap(),
            keep: "2 last".parse().unwrap(),
        }
    }

    fn snapshots(names: &[(&str, &str)]) -> Vec<WantedSnapshot> {
        let one = |(volume, name): &(&str, &str)| WantedSnapshot {
            volume: (*volume).to_owned(),
            name: (*name).to_owned(),
        };
        names.iter().map(one).collect()
    }

    async fn with_volumes(names: &[&str]) -> Cluster {
        let cluster = cluster_of(2, 4).await;
        for name in names {
            cluster.create_volume(name, "p", MIB).await.unwrap();
        }
        cluster
    }

    #[tokio::test]
    async fn a_schedule_is_made_changed_paused_and_removed_and_shows_in_the_map() {
        let cluster = with_volumes(&["v", "w", "x"]).await;
        let made = cluster.create_schedule("hourly", wants(&["v", "w"]), 100).await.unwrap();
        let map = cluster.map().await.unwrap();
        let ids = ["v", "w", "x"].map(|name| map.volume_named(name).unwrap().0);
        assert_eq!((map.schedules["hourly"].clone(), made.volumes.as_slice()), (made.clone(), &ids[..2]));
        let error = cluster.create_schedule("hourly", wants(&["v"]), 100).await.unwrap_err();
        assert!(matches!(error, ClusterError::ScheduleExists { .. }), "{error}");
        // A volume may be of several.
        let other = cluster.create_schedule("other", wants(&["v"]), 100).await.unwrap();
        assert_ne!(other.id, made.id);

        let keep = ScheduleChange { keep: Some("3 daily".parse().unwrap()), ..ScheduleChange::default() };
        let changed = cluster.change_schedule("hourly", &keep, 200).await.unwrap();
        assert_eq!((changed.keep.to_string().as_str(), changed.since_unix_seconds), ("3 daily", 100));
        let every = ScheduleChange { every: Some("2h".parse().unwrap()), ..ScheduleChange::default() };
        let changed = cluster.change_schedule("hourly", &every, 300).await.unwrap();
        assert_eq!((changed.every_seconds.seconds(), changed.since_unix_seconds), (7200, 300));
        assert_eq!(
            cluster.change_schedule("hourly", &every, 400).await.unwrap(),
            changed,
            "it is so already"
        );
        let exchange = ScheduleChange {
            add: vec!["x".to_owned()],
            remove: vec!["v".to_owned()],
            ..ScheduleChange::default()
        };
        let changed = cluster.change_schedule("hourly", &exchange, 500).await.unwrap();
        assert_eq!((changed.volumes.as_slice(), changed.since_unix_seconds), (&ids[1..], 500));

        assert!(cluster.pause_schedule("hourly", true, 600).await.unwrap().paused);
        let paused = cluster.pause_schedule("hourly", true, 700).await.unwrap();
        assert_eq!((paused.paused, paused.since_unix_seconds), (true, 500));
        let resumed = cluster.pause_schedule("hourly", false, 800).await.unwrap();
        assert_eq!((resumed.paused, resumed.since_unix_seconds, resumed.id), (false, 800, made.id));
        assert_eq!(
            cluster.pause_schedule("hourly", false, 900).await.unwrap(),
            resumed,
            "it goes on already"
        );
        assert_eq!(cluster.remove_schedule("hourly").await.unwrap(), resumed);
        assert_eq!(cluster.map().await.unwrap().schedules.into_keys().collect::<Vec<_>>(), ["other"]);
        for refused in [
            cluster.remove_schedule("hourly").await,
            cluster.pause_schedule("hourly", true, 0).await,
            cluster.change_schedule("hourly", &keep, 0).await,
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, ClusterError::NoSuchSchedule { .. }), "{error}");
            assert!(error.to_string().contains("schedule ls"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_a_schedule_is_refused_with_the_way_out() {
        let names: Vec<String> = (0..=VOLUMES_AT_ONCE_MAX).map(|number| format!("v{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let cluster = with_volumes(&names).await;
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for (name, volumes, why) in [
            ("a/b", &names[..1], "cannot be the name of a schedule"),
            (&long, &names[..1], "choose a shorter one"),
            ("s", &["nothing"][..], "volume ls"),
            ("s", &["v1", "v2", "v1"], "v1 is named twice"),
            ("s", &names, "24 are the most"),
            ("s", &[], "schedule rm s"),
        ] {
            let error = cluster.create_schedule(name, wants(volumes), 0).await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        cluster.create_schedule(&long[1..], wants(&names[1..]), 0).await.unwrap();
        let name = &long[1..];
        let change = |add: &[&str], remove: &[&str]| {
            let [add, remove] =
                [add, remove].map(|names| names.iter().map(|one| (*one).to_owned()).collect());
            ScheduleChange { add, remove, ..ScheduleChange::default() }
        };
        for (add, remove, why) in [
            (&["v0"][..], &[][..], "24 are the most"),
            (&["v1"], &["v2"], "v1 is named twice"),
            (&[], &["v0"], "has no volume v0"),
            (&[], &["v1", "v1"], "has no volume v1"),
            (&[], &names[1..], "would have no volume"),
        ] {
            let error = cluster.change_schedule(name, &change(add, remove), 0).await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let changed = cluster.change_schedule(name, &change(&["v0"], &["v1"]), 0).await.unwrap();
        assert_eq!(changed.volumes.len(), VOLUMES_AT_ONCE_MAX);
    }

    #[tokio::test]
    async fn volumes_that_are_gone_for_good_leave_a_schedule_when_it_is_changed() {
        let cluster = with_volumes(&["v", "w", "x"]).await;
        let made = cluster.create_schedule("s", wants(&["v", "w", "x"]), 0).await.unwrap();
        cluster.trash_volume("v", Trashed::default()).await.unwrap();
        cluster.remove_volume("w").await.unwrap();
        // Another one of that name is none of its.
        cluster.create_volume("v", "p", MIB).await.unwrap();
        let changed = cluster.change_schedule("s", &ScheduleChange::default(), 0).await.unwrap();
        assert_eq!(changed.volumes, [made.volumes[0], made.volumes[2]]);
        let change = ScheduleChange { remove: vec!["v".to_owned()], ..ScheduleChange::default() };
        assert_eq!(cluster.change_schedule("s", &change, 0).await.unwrap().volumes, made.volumes[2..]);
    }

    #[tokio::test]
    async fn nobody_makes_a_snapshot_of_a_slot_twice_nor_for_a_schedule_that_was_changed() {
        let cluster = with_volumes(&["v", "w", "x"]).await;
        let made = cluster.create_schedule("s", wants(&["v", "w"]), 0).await.unwrap();
        let both = snapshots(&[("v", "s-1"), ("w", "s-1")]);
        let layers = cluster.take_scheduled("s", &made, &both, 7).await.unwrap().unwrap();
        let map = cluster.map().await.unwrap();
        for layer in &layers {
            let info = map.snapshot(*layer).unwrap();
            assert_eq!((info.schedule, info.at_unix_seconds, info.name.as_str()), (Some(made.id), 7, "s-1"));
        }
        assert!(cluster.take_scheduled("s", &made, &both, 8).await.unwrap().is_none(), "another was faster");
        assert_eq!(cluster.map().await.unwrap(), map);
        // The name is somebody else's.
        cluster.take_snapshots(&snapshots(&[("v", "s-2")]), 9).await.unwrap();
        let next = snapshots(&[("v", "s-2"), ("w", "s-2")]);
        let error = cluster.take_scheduled("s", &made, &next, 9).await.unwrap_err();
        assert!(matches!(error, ClusterError::SnapshotExists { .. }), "{error}");
        // A volume that is none of its, as one is that got the name of one of its.
        let error = cluster.take_scheduled("s", &made, &snapshots(&[("x", "s-3")]), 9).await.unwrap_err();
        assert!(matches!(error, ClusterError::ScheduleChanged { .. }), "{error}");
        cluster.pause_schedule("s", true, 0).await.unwrap();
        let error = cluster.take_scheduled("s", &made, &snapshots(&[("v", "s-3")]), 9).await.unwrap_err();
        assert!(matches!(error, ClusterError::ScheduleChanged { .. }), "{error}");
        let map = cluster.map().await.unwrap();
        assert!(map.still.is_empty() && map.snapshots.values().map(|all| all.len()).sum::<usize>() == 3);
    }

    #[tokio::test]
    async fn a_schedule_that_is_paused_while_clients_come_to_a_standstill_makes_nothing() {
        let cluster = with_volumes(&["v"]).await;
        let made = cluster.create_schedule("s", wants(&["v"]), 0).await.unwrap();
        let lease = cluster.registry.lease_grant(Duration::from_secs(600)).await.unwrap().id;
        let attached = cluster.attach("v", ClientId(1), lease, false, "client 1".to_owned()).await.unwrap();
        let next = snapshots(&[("v", "s-1")]);
        let pausing = async {
            let mut maps = cluster.watch_map();
            let seen = maps.wait_for(|map| map.still.contains_key(&attached.id)).await.unwrap().clone();
            cluster.pause_schedule("s", true, 0).await.unwrap();
            let number = seen.still[&attached.id];
            let says = crate::StandsStill { volume: attached.id, client: ClientId(1), number, lease };
            cluster.stands_still_by(None, &says).await.unwrap();
        };
        let (taken, ()) = tokio::join!(cluster.take_scheduled("s", &made, &next, 7), pausing);
        assert!(matches!(taken, Err(ClusterError::ScheduleChanged { .. })), "{taken:?}");
        let map = cluster.map().await.unwrap();
        assert!(map.snapshots.is_empty() && map.still.is_empty());
    }

    #[tokio::test]
    async fn what_a_schedule_removes_is_the_snapshot_that_was_seen_and_no_other() {
        let cluster = with_volumes(&["v"]).await;
        let made = cluster.create_schedule("s", wants(&["v"]), 0).await.unwrap();
        let take = async |name: &str| {
            let taken = cluster.take_scheduled("s", &made, &snapshots(&[("v", name)]), 7).await;
            let layer = taken.unwrap().unwrap()[0];
            (layer, cluster.map().await.unwrap().snapshot(layer).unwrap().clone())
        };
        let (layer, seen) = take("s-1").await;
        cluster.protect_snapshot("v", "s-1", true).await.unwrap();
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap(), "it was protected since");
        let protected = SnapshotInfo { protected: true, ..seen.clone() };
        assert!(!cluster.remove_scheduled("s", &made, layer, &protected).await.unwrap());
        cluster.protect_snapshot("v", "s-1", false).await.unwrap();
        cluster.rename_snapshot("v", "s-1", "mine").await.unwrap();
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap(), "it was renamed since");
        // Nor another one that has the name now.
        let (other, _) = take("s-1").await;
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap());
        cluster.rename_snapshot("v", "s-1", "other").await.unwrap();
        cluster.rename_snapshot("v", "mine", "s-1").await.unwrap();
        cluster.clone_volume("v", "s-1", "c").await.unwrap();
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap(), "it was cloned since");
        cluster.remove_volume("c").await.unwrap();
        let volume = cluster.trash_volume("v", Trashed::default()).await.unwrap();
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap(), "it lies in the trash");
        cluster.restore_volume(volume, None).await.unwrap();
        // By a schedule that is another by now nothing is removed.
        let paused = cluster.pause_schedule("s", true, 5).await.unwrap();
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap(), "it was paused since");
        assert_ne!(paused, made);
        let made = cluster.pause_schedule("s", false, made.since_unix_seconds).await.unwrap();
        assert!(cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap());
        assert!(!cluster.remove_scheduled("s", &made, layer, &seen).await.unwrap(), "it is gone");
        let map = cluster.map().await.unwrap();
        assert_eq!(map.snapshots_of(volume).map(|(layer, _)| layer).collect::<Vec<_>>(), [other]);
        assert!(map.volumes[&volume].prune.is_some());
    }
}
