//! What lay in the trash for as long as it was to.
//!
//! Times there are those of the clocks that people set: one that is ahead purges early. Whoever wants a volume kept whatever the
//! clocks say keeps it until it is purged by hand.

use base::VolumeId;
use base::map::{ClusterMap, Trashed};
use std::time::Duration;

/// What is to be purged now, and how long it is until something else is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    /// Volumes, each with how it lies there.
    pub due: Vec<(VolumeId, Trashed)>,
    /// None if nothing else is to be purged by itself.
    pub next_in: Option<Duration>,
}

impl Expiry {
    /// At that time, since 1970.
    #[must_use]
    pub fn of(map: &ClusterMap, unix: Duration) -> Expiry {
        let mut expiry = Expiry::default();
        for (volume, _, trashed) in map.trash() {
            let Some(until) = trashed.until_unix_seconds else { continue };
            match Duration::from_secs(until).checked_sub(unix).filter(|left| !left.is_zero()) {
                None => expiry.due.push((volume, trashed)),
                Some(left) => expiry.next_in = Some(expiry.next_in.map_or(left, |next| next.min(left))),
            }
        }
        expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::VolumeInfo;

    #[test]
    fn what_is_due_is_purged_and_the_next_is_waited_for() {
        let mut map = ClusterMap::default();
        let seconds = Duration::from_secs;
        let until = |until_unix_seconds| Trashed { at_unix_seconds: 5, until_unix_seconds };
        for (id, trashed, removed) in [
            (1, None, false),
            (2, Some(until(None)), false),
            (3, Some(until(Some(100))), false),
            (4, Some(until(Some(90))), false),
            (5, Some(until(Some(20))), true),
        ] {
            map.volumes.insert(VolumeId(id), VolumeInfo { trashed, removed, ..VolumeInfo::default() });
        }
        let expiry = |due: &[u64], next_in| Expiry {
            due: due.iter().map(|id| (VolumeId(*id), map.volumes[&VolumeId(*id)].trashed.unwrap())).collect(),
            next_in,
        };
        assert_eq!(Expiry::of(&map, seconds(30)), expiry(&[], Some(seconds(60))));
        let moment = seconds(90) - Duration::from_nanos(1);
        assert_eq!(Expiry::of(&map, moment), expiry(&[], Some(Duration::from_nanos(1))));
        assert_eq!(Expiry::of(&map, seconds(90)), expiry(&[4], Some(seconds(10))));
        assert_eq!(Expiry::of(&map, seconds(100)), expiry(&[3, 4], None));
    }
}
