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
    use base::map::{ClusterMap, OsdInfo, PgConfig, PoolInfo, VolumeInfo};
    use base::{
        BLOCK_BYTES, Buffer, ClusterId, Epoch, Generation, LinkId, Network, ObjectKey, OsdId, OsdUuid, PgId,
        PoolId,
    };
    use pg::{Io, OsdOptions};
    use std::net::SocketAddr;
    use std::ops::Range;
    use std::sync::Arc;
    use store::testing::Memory;
    use store::{Expected, Identity, Options, Store};
    use wire::{Hello, Kind, Request, Role, VERSIONS};

    const ME: OsdId = OsdId(0);
    const PG: PgId = PgId { pool: PoolId(1), index: 0 };
    const VOLUME: VolumeId = VolumeId(1);
    const CLIENT: ClientId = ClientId(9);
    const LINK: LinkId = LinkId(7);

    /// A drive on which everything succeeds, of which nothing is read, a network that leads nowhere, and who proposes what.
    #[derive(Default)]
    struct Surroundings {
        done: Vec<(u64, Option<Buffer>)>,
        proposals: Vec<PgConfig>,
    }

    impl Network for Surroundings {
        fn connect(&mut self, _: SocketAddr) -> Option<LinkId> {
            None
        }
        fn send(&mut self, _: LinkId, _: &[u8]) {}
        fn send_shared(&mut self, _: LinkId, _: Buffer, _: Range<usize>) {}
        fn unsent_bytes(&self, _: LinkId) -> usize {
            0
        }
        fn close(&mut self, _: LinkId, _: &str) {}
    }

    impl Io for Surroundings {
        fn read(&mut self, _: u64, _: u64, _: Buffer, _: usize) {
            panic!("nobody reads")
        }
        fn write(&mut self, token: u64, _: u64, buffer: Buffer, _: usize) {
            self.done.push((token, Some(buffer)));
        }
        fn flush(&mut self, token: u64) {
            self.done.push((token, None));
        }
        fn propose(&mut self, _: PgId, _: Epoch, config: PgConfig) {
            self.proposals.push(config);
        }
        fn propose_split(&mut self, _: PgId, _: Epoch, _: PgConfig) {}
    }

    /// An OSD that serves a volume to a client, alone.
    struct Served {
        osd: Osd,
        io: Surroundings,
        map: ClusterMap,
        now: Instant,
    }

    impl Served {
        fn new() -> Served {
            let (cluster, osd_uuid) = (ClusterId::from_bytes([1; 16]), OsdUuid::from_bytes([2; 16]));
            let options =
                Options { segment_bytes: Some(512 << 10), batch_bytes_max: 300 << 10, ..Options::default() };
            let mut drive = Memory(vec![0; 16 << 20]);
            store::format(&mut drive, Identity { cluster, osd_uuid, osd: ME }, [3; 16], &options).unwrap();
            let store = Store::open(&mut drive, &Expected::default(), options).unwrap();
            let mut map = ClusterMap { revision: 1, cluster, ..ClusterMap::default() };
            map.osds.insert(ME, OsdInfo { uuid: osd_uuid, bytes: 16 << 20, ..OsdInfo::default() });
            let name = "pool".to_owned();
            let pool = PoolInfo { name, size: 1, min_size: 1, pg_count: 1, ..PoolInfo::default() };
            map.pools.insert(PG.pool, pool);
            let (epoch, in_sync) = (Epoch(1), vec![ME]);
            map.targets.insert(PG, in_sync.clone());
            map.pgs.insert(PG, PgConfig { epoch, primary: ME, in_sync, ..PgConfig::default() });
            let volume = VolumeInfo {
                name: "volume".to_owned(),
                pool: PG.pool,
                bytes: 1 << 30,
                generation: Generation(1),
                ..VolumeInfo::default()
            };
            map.volumes.insert(VOLUME, volume);
            let osd = Osd::new(store, &OsdOptions::default());
            let (io, now) = (Surroundings::default(), Instant { nanoseconds: 1_000_000_000 });
            let mut served = Served { osd, io, map, now };
            served.takes_map();
            (0..200).for_each(|_| served.turn());
            served.osd.handle_accepted(LINK, None).unwrap();
            let hello = Hello { role: Role::Client(CLIENT), cluster, target: ME, versions: VERSIONS };
            served.hears(&hello.encode());
            served
        }

        fn takes_map(&mut self) {
            self.osd.handle_map(self.now, Arc::new(self.map.clone()), &mut self.io);
        }

        /// A moment passes: the drive and the registry do what they were asked.
        fn turn(&mut self) {
            self.now = self.now + Duration::from_millis(50);
            for (token, buffer) in std::mem::take(&mut self.io.done) {
                self.osd.handle_file(self.now, token, buffer, Ok(()), &mut self.io);
            }
            for config in std::mem::take(&mut self.io.proposals) {
                self.map.revision += 1;
                self.map.pgs.insert(PG, config.clone());
                self.takes_map();
                self.osd.handle_proposal(self.now, PG, Some(config), &mut self.io);
            }
            self.osd.end_turn(self.now, &mut self.io);
        }

        fn hears(&mut self, bytes: &[u8]) {
            let progress = self.osd.handle_bytes(self.now, LINK, bytes, &mut self.io).unwrap();
            assert_eq!(progress.consumed, bytes.len());
        }

        /// The client has a block zeroed; the drive has not done it yet.
        fn zeroes(&mut self) {
            let request = Request {
                request: 1,
                key: ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 },
                offset: 0,
                length: BLOCK_BYTES as u32,
                epoch: self.map.pgs[&PG].epoch,
                generation: Generation(1),
                origin: 0,
                since: None,
                unverified: false,
                of_snapshot: false,
            };
            self.hears(&request.encode(Kind::Zero));
            assert_eq!(self.osd.view().operations_in_flight(), 1, "the group serves");
        }
    }

    #[test]
    fn what_changed_is_told_once_a_second_and_again_until_it_is_taken() {
        let mut served = Served::new();
        let mut tallier = Tallier::default();
        let begin = served.now;
        let mut tell = |served: &Served, after_ms: u64, is_taken: bool| {
            let mut told = None;
            tallier.tell(begin + Duration::from_millis(after_ms), &served.osd, |tally| {
                told = Some(tally);
                is_taken
            });
            // How long this thread works meanwhile is no news here, however slow the machine is.
            if let Some(counts) = &mut tallier.told {
                counts.cpu_ns = u64::MAX;
            }
            told
        };
        let first = tell(&served, 0, true).unwrap();
        assert_eq!((first.at, first.counts.requests), (begin, *served.osd.view().figures()));
        assert_eq!((first.counts.operations_in_flight, first.counts.recovery_sent_bytes), (0, 0));
        assert!((1..=thread_cpu_ns()).contains(&first.counts.cpu_ns));
        assert_eq!(first.pools, [(PG.pool, Traffic::default())]);
        assert!(first.volumes.is_empty() && first.clients.is_empty(), "they have done nothing");
        assert!(tell(&served, 1000, true).is_none(), "nothing has changed");
        served.zeroes();
        assert!(tell(&served, 1999, true).is_none(), "it was looked at less than a second ago");
        let waits = tell(&served, 2000, true).unwrap();
        assert_eq!((waits.at, waits.counts.operations_in_flight), (begin + Duration::from_secs(2), 1));
        (0..10).for_each(|_| served.turn());
        assert!(tell(&served, 3000, false).is_some());
        assert!(tell(&served, 3999, true).is_none());
        let done = tell(&served, 4000, true).expect("it was not taken");
        assert_eq!((done.counts.requests.zero.latencies.count(), done.counts.operations_in_flight), (1, 0));
        let traffic = Traffic { writes: 1, ..Traffic::default() };
        assert_eq!(done.pools, [(PG.pool, traffic)]);
        assert_eq!((done.volumes, done.clients), (vec![(VOLUME, traffic)], vec![(CLIENT, traffic)]));
        assert!(tell(&served, 5000, true).is_none());
    }

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
