//! What an OSD counted, on its way from its shard to the control side: once a second while something changes.

use base::figures::{BUSIEST_MAX, Counts, Tally, Traffic};
use base::hash::Map;
use base::{ClientId, Instant, VolumeId};
use nix::time::{ClockId, clock_gettime};
use pg::Osd;
use std::hash::Hash;
use std::time::Duration;

/// How often figures are told while they change.
const PAUSE: Duration = Duration::from_secs(1);

/// CPU time that is told although nothing was counted for it, as when this OSD catches up, in nanoseconds.
const CPU_NS_MIN: u64 = 10_000_000;

fn counts_of(osd: &Osd) -> Counts {
    Counts {
        requests: *osd.view().figures(),
        operations_in_flight: osd.view().operations_in_flight() as u64,
        recovery_sent_bytes: osd.view().pushed_bytes(),
        cpu_ns: thread_cpu_ns(),
    }
}

/// Whether a change is worth telling.
fn is_news(now: &Counts, told: &Counts) -> bool {
    now.requests != told.requests
        || now.operations_in_flight != told.operations_in_flight
        || now.recovery_sent_bytes != told.recovery_sent_bytes
        || now.cpu_ns.saturating_sub(told.cpu_ns) >= CPU_NS_MIN
}

/// Tells what a shard counted. It belongs on the shard's thread, whose CPU time it reads.
#[derive(Debug, Default)]
pub(crate) struct Tallier {
    next_at: Instant,
    /// What was told last.
    told: Option<Counts>,
    volumes: Busiest<VolumeId>,
    clients: Busiest<ClientId>,
}

impl Tallier {
    /// Tells what `osd` counted, if it is time and something has changed; `tell` says whether it could.
    pub(crate) fn tell(&mut self, now: Instant, osd: &Osd, tell: impl FnOnce(Tally) -> bool) {
        if now < self.next_at {
            return;
        }
        self.next_at = now + PAUSE;
        let counts = counts_of(osd);
        if self.told.is_some_and(|told| !is_news(&counts, &told)) {
            return;
        }
        let tally = Tally {
            at: now,
            counts,
            pools: osd.view().pool_traffic().into_iter().collect(),
            volumes: self.volumes.choose(osd.view().volume_traffic()).collect(),
            clients: self.clients.choose(osd.view().client_traffic()).collect(),
        };
        if tell(tally) {
            self.told = Some(counts);
        }
    }
}

/// Those of many that did the most since they were looked at last.
#[derive(Debug, Default)]
struct Busiest<K> {
    /// The operations of all of them then.
    before: Map<K, u64>,
    /// In use again and again: operations since then, and what all came to.
    ranked: Vec<(u64, K, Traffic)>,
}

impl<K: Copy + Eq + Hash + Ord> Busiest<K> {
    /// At most [`BUSIEST_MAX`] of those that did anything at all, in order of their ids.
    fn choose(&mut self, all: impl Iterator<Item = (K, Traffic)>) -> impl Iterator<Item = (K, Traffic)> {
        self.ranked.clear();
        let before = &self.before;
        let done = all.filter(|(_, traffic)| traffic.operations() > 0);
        self.ranked.extend(done.map(|(key, traffic)| {
            let operations = traffic.operations();
            let earlier = before.get(&key).copied().unwrap_or(0);
            // A client that connected anew began anew.
            (operations.checked_sub(earlier).unwrap_or(operations), key, traffic)
        }));
        self.before.clear();
        self.before.extend(self.ranked.iter().map(|(_, key, traffic)| (*key, traffic.operations())));
        let by_rank = |(recent, key, traffic): &(u64, K, Traffic)| {
            (std::cmp::Reverse((*recent, traffic.operations())), *key)
        };
        if self.ranked.len() > BUSIEST_MAX {
            self.ranked.select_nth_unstable_by_key(BUSIEST_MAX, by_rank);
            self.ranked.truncate(BUSIEST_MAX);
        }
        self.ranked.sort_unstable_by_key(|(_, key, _)| *key);
        self.ranked.iter().map(|(_, key, traffic)| (*key, *traffic))
    }
}

/// The CPU time of this thread, in nanoseconds.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("every thread has a clock of its CPU time, and it can be read");
    u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::figures::Figures;

    fn reads(reads: u64) -> Traffic {
        Traffic { reads, ..Traffic::default() }
    }

    #[test]
    fn of_many_volumes_those_are_told_that_do_the_most_now() {
        let mut busiest = Busiest::<VolumeId>::default();
        let count = BUSIEST_MAX as u64 + 10;
        // The last ten do the least, and one did nothing ever.
        let all = (0..count).map(|volume| (VolumeId(volume), reads(2 * count - volume)));
        let chosen: Vec<VolumeId> =
            busiest.choose(all.chain([(VolumeId(count), reads(0))])).map(|(key, _)| key).collect();
        assert_eq!(chosen, (0..BUSIEST_MAX as u64).map(VolumeId).collect::<Vec<_>>());
        // Now only the last one does anything.
        let more = |volume: u64| if volume == count - 1 { 5 } else { 0 };
        let all = (0..count).map(|volume| (VolumeId(volume), reads(2 * count - volume + more(volume))));
        let chosen: Vec<(VolumeId, Traffic)> = busiest.choose(all).collect();
        assert_eq!(chosen.len(), BUSIEST_MAX);
        assert_eq!(chosen.last(), Some(&(VolumeId(count - 1), reads(count + 6))));
    }

    #[test]
    fn as_many_as_there_is_room_for_are_all_told_in_order_and_nothing_is_kept_of_others() {
        let mut busiest = Busiest::<VolumeId>::default();
        let all = (0..BUSIEST_MAX as u64).map(VolumeId);
        let chosen = busiest.choose(all.clone().rev().map(|volume| (volume, reads(1))));
        assert!(chosen.map(|(volume, _)| volume).eq(all));
        let chosen: Vec<_> = busiest.choose([(VolumeId(7), reads(3))].into_iter()).collect();
        assert_eq!(chosen, [(VolumeId(7), reads(3))]);
        assert_eq!(busiest.before.len(), 1);
    }

    #[test]
    fn what_waits_and_what_costs_cpu_alone_is_told_too() {
        let told = Counts {
            requests: Figures::default(),
            operations_in_flight: 0,
            recovery_sent_bytes: 0,
            cpu_ns: 5,
        };
        assert!(!is_news(&told, &told) && !is_news(&Counts { cpu_ns: 6, ..told }, &told));
        let mut requests = Figures::default();
        requests.read.redirected += 1;
        assert!(is_news(&Counts { requests, ..told }, &told));
        assert!(is_news(&Counts { recovery_sent_bytes: 1, ..told }, &told));
        assert!(is_news(&Counts { operations_in_flight: 1, ..told }, &told));
        assert!(is_news(&Counts { cpu_ns: 5 + CPU_NS_MIN, ..told }, &told));
    }

    #[test]
    fn the_cpu_time_of_a_thread_grows_when_it_works() {
        let before = thread_cpu_ns();
        let mut state = 1u64;
        while thread_cpu_ns() == before {
            state = base::hash::mix(state);
        }
        assert!(thread_cpu_ns() > before, "{state}");
    }
}
