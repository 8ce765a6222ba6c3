//! What lay in the trash for as long as it was to.
//!
//! How long that is counts from when the manager sees it there, by the manager's clock: whoever put it there may have another one.
//! Should a clock be set, or another manager have one that is ahead, things are purged too early. Whoever wants a volume kept
//! whatever the clocks say keeps it until it is purged by hand.

use base::map::{ClusterMap, Trashed};
use base::{Generation, VolumeId};
use std::time::Duration;

/// So many things are done at once: whoever does them has others to do that do not wait for long.
const AT_ONCE_MAX: usize = 16;

/// What is to be done now about the trash, and how long it is until something else is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Volumes that are new there, each under its generation and with how it lies there from now on.
    pub new: Vec<(VolumeId, Generation, Trashed)>,
    /// Volumes to be purged, each under its generation.
    pub due: Vec<(VolumeId, Generation)>,
    /// None if nothing else is to be done by itself.
    pub next_in: Option<Duration>,
}

impl Expiry {
    /// At that time, since 1970.
    #[must_use]
    pub fn of(map: &ClusterMap, unix: Duration) -> Expiry {
        let mut expiry = Expiry::default();
        for (volume, info, trashed) in map.trash() {
            let left = match (trashed.keep_seconds, trashed.until_unix_seconds) {
                (None, _) => continue,
                (Some(_), Some(until)) => Duration::from_secs(until).saturating_sub(unix),
                (Some(keep), None) => {
                    // In whole seconds, and not less than was asked for.
                    let until = (unix.as_secs() + u64::from(unix.subsec_nanos() > 0)).saturating_add(keep);
                    let trashed = Trashed { until_unix_seconds: Some(until), ..trashed };
                    expiry.new.push((volume, info.generation, trashed));
                    continue;
                }
            };
            if left.is_zero() {
                // What was cloned from is kept as long as there are clones.
                if map.clones_of(volume).next().is_some() {
                    continue;
                }
                expiry.due.push((volume, info.generation));
            } else {
                expiry.next_in = Some(expiry.next_in.map_or(left, |next| next.min(left)));
            }
        }
        if expiry.new.len() > AT_ONCE_MAX || expiry.due.len() > AT_ONCE_MAX {
            expiry.new.truncate(AT_ONCE_MAX);
            expiry.due.truncate(AT_ONCE_MAX);
            expiry.next_in = Some(Duration::ZERO);
        }
        expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::VolumeInfo;

    fn lying(keep_seconds: Option<u64>, until_unix_seconds: Option<u64>) -> VolumeInfo {
        let trashed =
            Some(Trashed { at_unix_seconds: 5, keep_seconds, until_unix_seconds, ..Trashed::default() });
        VolumeInfo { trashed, generation: Generation(7), ..VolumeInfo::default() }
    }

    #[test]
    fn what_is_due_is_purged_and_the_next_is_waited_for() {
        let mut map = ClusterMap::default();
        let seconds = Duration::from_secs;
        let removed = VolumeInfo { removed: true, ..lying(Some(1), Some(20)) };
        let volumes =
            [VolumeInfo::default(), lying(None, None), lying(Some(1), Some(100)), lying(Some(1), Some(90))];
        map.volumes.extend((1..).map(VolumeId).zip(volumes.into_iter().chain([removed])));
        let expiry = |due: &[u64], next_in| {
            let due = due.iter().map(|id| (VolumeId(*id), Generation(7))).collect();
            Expiry { due, next_in, ..Expiry::default() }
        };
        assert_eq!(Expiry::of(&map, seconds(30)), expiry(&[], Some(seconds(60))));
        let moment = seconds(90) - Duration::from_nanos(1);
        assert_eq!(Expiry::of(&map, moment), expiry(&[], Some(Duration::from_nanos(1))));
        assert_eq!(Expiry::of(&map, seconds(90)), expiry(&[4], Some(seconds(10))));
        assert_eq!(Expiry::of(&map, seconds(100)), expiry(&[3, 4], None));
    }

    #[test]
    fn the_time_there_counts_from_when_the_manager_sees_it_whatever_clock_others_have() {
        let mut map = ClusterMap::default();
        map.volumes.insert(VolumeId(1), lying(Some(60), None));
        let moment = Duration::from_millis(1_000_000_500);
        let expiry = Expiry::of(&map, moment);
        assert_eq!((expiry.due.len(), expiry.next_in), (0, None));
        let [(volume, generation, trashed)] = expiry.new[..] else { panic!("one is new") };
        assert_eq!((volume, generation, trashed.at_unix_seconds), (VolumeId(1), Generation(7), 5));
        assert_eq!(trashed.until_unix_seconds, Some(1_000_061));
        map.volumes.insert(VolumeId(1), lying(Some(u64::MAX), None));
        assert_eq!(Expiry::of(&map, moment).new[0].2.until_unix_seconds, Some(u64::MAX));
    }

    #[test]
    fn of_many_some_are_done_and_the_rest_at_once_behind_them() {
        for info in [lying(Some(1), Some(20)), lying(Some(1), None)] {
            let mut map = ClusterMap::default();
            map.volumes.extend((0..40).map(|id| (VolumeId(id), info.clone())));
            let mut rounds = 0;
            loop {
                let expiry = Expiry::of(&map, Duration::from_secs(30));
                let done: Vec<VolumeId> =
                    expiry.due.iter().map(|due| due.0).chain(expiry.new.iter().map(|new| new.0)).collect();
                assert!(!done.is_empty() && done.len() <= AT_ONCE_MAX);
                done.iter().for_each(|id| drop(map.volumes.remove(id)));
                rounds += 1;
                if expiry.next_in.is_none() {
                    break;
                }
                assert_eq!(expiry.next_in, Some(Duration::ZERO));
            }
            assert_eq!((map.volumes.len(), rounds), (0, 3));
        }
    }
}
