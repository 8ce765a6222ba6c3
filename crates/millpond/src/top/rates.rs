//! Two readings of counts, and what happened in between, a second.

use api::figures::{NodeFigures, OsdFigures};
use base::figures::{Figures, Latencies, RequestKind, Traffic};
use base::map::ClusterMap;
use base::{ClientId, NodeId, OsdId, VolumeId};
use health::codes::Level;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// OSDs tell their counts once a second, so that a reading is so old at most.
const LAG: Duration = Duration::from_secs(1);

/// Counts at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// When they were read.
    pub at: Instant,
    /// What the processes told.
    pub nodes: Vec<NodeFigures>,
    /// Who did not answer.
    pub silent: Vec<String>,
    /// The map, for names.
    pub map: Arc<ClusterMap>,
    /// Who the clients are.
    pub clients: BTreeMap<ClientId, String>,
    /// The verdict.
    pub level: Level,
    /// Objects that were not compared with or sent to members that catch up yet.
    pub recovery_objects_left: u64,
    /// Bytes that are known to be sent to them yet.
    pub recovery_bytes_left: u64,
}

/// What was done a second: `top --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The verdict.
    pub health: Level,
    /// The time between the readings, in seconds.
    pub seconds: f64,
    /// Processes that did not answer, and why.
    pub silent: Vec<String>,
    /// Members that catch up.
    pub recovery: Recovery,
    /// All OSDs together.
    pub total: OsdRate,
    /// Each OSD.
    pub osds: Vec<OsdRate>,
    /// Each pool.
    pub pools: Vec<TrafficRate>,
    /// The busiest volumes.
    pub volumes: Vec<TrafficRate>,
    /// The busiest clients.
    pub clients: Vec<TrafficRate>,
}

/// How members catch up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// Objects that were not compared or sent yet.
    pub objects_left: u64,
    /// Bytes that are known to be sent yet.
    pub bytes_left: u64,
    /// Bytes a second that they were sent.
    pub bytes_per_s: f64,
}

/// What an OSD did a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OsdRate {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: Option<NodeId>,
    /// Client reads.
    pub reads_per_s: f64,
    /// Client writes, zeroings and trims.
    pub writes_per_s: f64,
    /// Writes for other primaries.
    pub replicated_per_s: f64,
    /// Bytes of client reads.
    pub read_bytes_per_s: f64,
    /// Bytes of client writes.
    pub written_bytes_per_s: f64,
    /// Operations that failed for good.
    pub errors_per_s: f64,
    /// Half of the reads took no longer, in microseconds; `null` without reads.
    pub read_p50_us: Option<f64>,
    /// 99 % took no longer.
    pub read_p99_us: Option<f64>,
    /// Half of the writes took no longer.
    pub write_p50_us: Option<f64>,
    /// 99 % took no longer.
    pub write_p99_us: Option<f64>,
    /// CPU time of its thread, in percent of one core.
    pub cpu_percent: f64,
    /// The same by operation, replicated writes included, in microseconds.
    pub cpu_us_per_operation: Option<f64>,
    /// Operations that had not ended.
    pub in_flight: u64,
}

/// What a pool, a volume or a client was served a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrafficRate {
    /// Its name.
    pub name: String,
    /// Reads.
    pub reads_per_s: f64,
    /// Writes, zeroings and trims.
    pub writes_per_s: f64,
    /// Bytes of the reads.
    pub read_bytes_per_s: f64,
    /// Bytes of the writes.
    pub written_bytes_per_s: f64,
    /// Operations of a volume or a client that had to wait for a limit.
    pub throttled_per_s: f64,
    /// Operations of a volume that had to wait for their turn, because others were used too.
    pub queued_per_s: f64,
    /// The limits of a volume, and what else is set of it, in words, if something is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limits: String,
}

impl OsdRate {
    /// Reads and writes of clients.
    pub fn operations_per_s(&self) -> f64 {
        self.reads_per_s + self.writes_per_s
    }
}

impl TrafficRate {
    /// Reads and writes.
    pub fn operations_per_s(&self) -> f64 {
        self.reads_per_s + self.writes_per_s
    }
}

/// What an OSD counted in between.
struct Between<'a> {
    now: &'a OsdFigures,
    before: Option<&'a OsdFigures>,
    node: NodeId,
    seconds: f64,
}

impl Sample {
    /// What happened between two readings.
    pub fn between(before: &Reading, now: &Reading) -> Sample {
        let wall = now.at.saturating_duration_since(before.at);
        let earlier: BTreeMap<(OsdId, u32), &OsdFigures> = before
            .nodes
            .iter()
            .flat_map(|node| node.osds.iter().map(move |osd| ((osd.osd, node.pid), osd)))
            .collect();
        let each: Vec<Between<'_>> = now
            .nodes
            .iter()
            .flat_map(|node| node.osds.iter().map(move |osd| (node, osd)))
            .map(|(node, osd)| {
                // Of a process that was started in between all counts are new.
                let before = earlier.get(&(osd.osd, node.pid)).copied();
                Between { now: osd, before, node: node.node, seconds: seconds(before, osd, wall) }
            })
            .collect();
        let mut osds: Vec<OsdRate> = each.iter().map(OsdRate::of).collect();
        osds.sort_by_key(|osd| (osd.node, osd.name.len(), osd.name.clone()));
        let pools = by_owner(&each, |osd| osd.pools.iter().map(|it| (it.pool, it.traffic)).collect());
        let pool_name = |pool| now.map.pools.get(&pool).map(|info| info.name.clone());
        let volumes = by_owner(&each, |osd| osd.volumes.iter().map(|it| (it.volume, it.traffic)).collect());
        let volume_name = |volume| now.map.volumes.get(&volume).map(|info| now.map.shown_name(info));
        let limits_of = |volume: &VolumeId| {
            let info = now.map.volumes.get(volume);
            let limits = info.map(|info| info.limits).filter(|limits| !limits.is_none());
            let qos = info.map(|info| info.qos).filter(|qos| !qos.is_default());
            let told = [limits.map(|limits| limits.to_string()), qos.map(|qos| qos.to_string())];
            told.into_iter().flatten().collect::<Vec<_>>().join("; ")
        };
        let volumes = volumes
            .into_iter()
            .map(|(volume, rate)| (volume, TrafficRate { limits: limits_of(&volume), ..rate }));
        let volumes: BTreeMap<VolumeId, TrafficRate> = volumes.collect();
        let clients = by_owner(&each, |osd| osd.clients.iter().map(|it| (it.client, it.traffic)).collect());
        Sample {
            health: now.level,
            seconds: wall.as_secs_f64(),
            silent: now.silent.clone(),
            recovery: Recovery {
                objects_left: now.recovery_objects_left,
                bytes_left: now.recovery_bytes_left,
                bytes_per_s: each.iter().map(Between::recovery_bytes_per_s).sum(),
            },
            total: OsdRate::total(&each, &osds),
            osds,
            pools: named(pools, |pool| pool_name(pool).unwrap_or_else(|| pool.to_string())),
            volumes: named(volumes, |volume| volume_name(volume).unwrap_or_else(|| volume.to_string())),
            clients: named(clients, |client| {
                now.clients.get(&client).cloned().unwrap_or_else(|| format!("{:016x}", client.0))
            }),
        }
    }
}

/// The time in which an OSD counted what is new. One that had nothing to do told nothing meanwhile.
fn seconds(before: Option<&OsdFigures>, now: &OsdFigures, wall: Duration) -> f64 {
    let told = before.map(|before| Duration::from_nanos(now.at_ns.saturating_sub(before.at_ns)));
    told.filter(|told| !told.is_zero() && *told <= wall + LAG).unwrap_or(wall).as_secs_f64().max(1e-3)
}

impl Between<'_> {
    fn requests(&self) -> Figures {
        self.before.map_or(self.now.requests, |before| self.now.requests.since(&before.requests))
    }

    fn recovery_bytes_per_s(&self) -> f64 {
        let before = self.before.map_or(0, |before| before.recovery_sent_bytes);
        self.now.recovery_sent_bytes.saturating_sub(before) as f64 / self.seconds
    }

    fn cpu_ns(&self) -> u64 {
        // Without an earlier reading it holds the whole life of the process.
        self.before.map_or(0, |before| self.now.cpu_ns.saturating_sub(before.cpu_ns))
    }
}

impl OsdRate {
    fn of(between: &Between<'_>) -> OsdRate {
        let requests = between.requests();
        let rate = |count: u64| count as f64 / between.seconds;
        let done = |kind| requests.of(kind).latencies.count();
        let operations: u64 = RequestKind::ALL.into_iter().map(done).sum();
        let errors = RequestKind::ALL.into_iter().map(|kind| requests.of(kind).errors).sum();
        let cpu_ns = between.cpu_ns();
        let (read, write) = (&requests.read.latencies, &requests.write.latencies);
        OsdRate {
            name: between.now.osd.to_string(),
            node: Some(between.node),
            reads_per_s: rate(done(RequestKind::Read)),
            writes_per_s: rate(done(RequestKind::Write) + done(RequestKind::Zero)),
            replicated_per_s: rate(done(RequestKind::Replicate)),
            read_bytes_per_s: rate(requests.read.bytes),
            written_bytes_per_s: rate(requests.write.bytes),
            errors_per_s: rate(errors),
            read_p50_us: quantile_us(read, 0.5),
            read_p99_us: quantile_us(read, 0.99),
            write_p50_us: quantile_us(write, 0.5),
            write_p99_us: quantile_us(write, 0.99),
            cpu_percent: rate(cpu_ns) / 1e7,
            cpu_us_per_operation: (operations > 0).then(|| cpu_ns as f64 / 1e3 / operations as f64),
            in_flight: between.now.operations_in_flight,
        }
    }

    /// All together. CPU time is by operation of a client here: what replicas do for it counts for it.
    fn total(each: &[Between<'_>], osds: &[OsdRate]) -> OsdRate {
        let mut requests = Figures::default();
        each.iter().for_each(|between| requests.add(&between.requests()));
        let sum = |of: fn(&OsdRate) -> f64| osds.iter().map(of).sum::<f64>();
        let operations_per_s = sum(OsdRate::operations_per_s);
        let cpu_percent = sum(|osd| osd.cpu_percent);
        let (read, write) = (&requests.read.latencies, &requests.write.latencies);
        OsdRate {
            name: "total".to_owned(),
            node: None,
            reads_per_s: sum(|osd| osd.reads_per_s),
            writes_per_s: sum(|osd| osd.writes_per_s),
            replicated_per_s: sum(|osd| osd.replicated_per_s),
            read_bytes_per_s: sum(|osd| osd.read_bytes_per_s),
            written_bytes_per_s: sum(|osd| osd.written_bytes_per_s),
            errors_per_s: sum(|osd| osd.errors_per_s),
            read_p50_us: quantile_us(read, 0.5),
            read_p99_us: quantile_us(read, 0.99),
            write_p50_us: quantile_us(write, 0.5),
            write_p99_us: quantile_us(write, 0.99),
            cpu_percent,
            // A percent of a core is 10,000 microseconds a second.
            cpu_us_per_operation: (operations_per_s > 0.0).then(|| cpu_percent * 1e4 / operations_per_s),
            in_flight: osds.iter().map(|osd| osd.in_flight).sum(),
        }
    }
}

fn quantile_us(latencies: &Latencies, share: f64) -> Option<f64> {
    latencies.quantile(share).map(|latency| latency.as_secs_f64() * 1e6)
}

/// What all OSDs together did for each owner, a second.
fn by_owner<K: Ord + Copy>(
    each: &[Between<'_>],
    of: impl Fn(&OsdFigures) -> Vec<(K, Traffic)>,
) -> BTreeMap<K, TrafficRate> {
    let mut owners: BTreeMap<K, TrafficRate> = BTreeMap::new();
    for between in each {
        let before: BTreeMap<K, Traffic> =
            between.before.map(|before| of(before).into_iter().collect()).unwrap_or_default();
        for (owner, traffic) in of(between.now) {
            // One that the earlier reading did not name was not among the busiest then: what it did before is unknown.
            let earlier = match (before.get(&owner), between.before) {
                (Some(earlier), _) => *earlier,
                (None, Some(_)) if before.len() >= base::figures::BUSIEST_MAX => traffic,
                (None, _) => Traffic::default(),
            };
            let done = traffic.since(&earlier);
            let rate = |count: u64| count as f64 / between.seconds;
            let sum = owners.entry(owner).or_default();
            sum.reads_per_s += rate(done.reads);
            sum.writes_per_s += rate(done.writes);
            sum.read_bytes_per_s += rate(done.read_bytes);
            sum.written_bytes_per_s += rate(done.written_bytes);
            sum.throttled_per_s += rate(done.throttled);
            sum.queued_per_s += rate(done.queued);
        }
    }
    owners
}

fn named<K>(owners: BTreeMap<K, TrafficRate>, name: impl Fn(K) -> String) -> Vec<TrafficRate> {
    owners.into_iter().map(|(owner, rate)| TrafficRate { name: name(owner), ..rate }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::figures::PoolTraffic;
    use base::PoolId;
    use base::map::PoolInfo;

    fn reading(at: Instant, osds: Vec<OsdFigures>) -> Reading {
        let mut map = ClusterMap::default();
        let pool =
            PoolInfo { name: "default".into(), size: 3, min_size: 2, pg_count: 8, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        Reading {
            at,
            nodes: vec![NodeFigures { node: NodeId(0), pid: 7, is_debug: false, osds }],
            silent: vec![],
            map: Arc::new(map),
            clients: BTreeMap::new(),
            level: Level::Ok,
            recovery_objects_left: 0,
            recovery_bytes_left: 0,
        }
    }

    fn osd(at_s: u64, reads: u64) -> OsdFigures {
        let mut requests = Figures::default();
        (0..reads).for_each(|_| requests.read.done(4096, Duration::from_micros(100)));
        let traffic = Traffic { reads, read_bytes: reads * 4096, ..Traffic::default() };
        OsdFigures {
            osd: OsdId(0),
            at_ns: at_s * 1_000_000_000,
            requests,
            cpu_ns: reads * 10_000,
            operations_in_flight: 1,
            recovery_sent_bytes: 0,
            pools: vec![PoolTraffic { pool: PoolId(1), traffic }],
            volumes: vec![],
            clients: vec![],
        }
    }

    #[test]
    fn rates_are_what_was_done_in_the_time_in_which_it_was_counted() {
        let start = Instant::now();
        let before = reading(start, vec![osd(10, 1000)]);
        // Read two seconds later, and counted within three.
        let now = reading(start + Duration::from_secs(2), vec![osd(13, 4000)]);
        let sample = Sample::between(&before, &now);
        let rate = &sample.osds[0];
        assert_eq!((rate.reads_per_s, rate.read_bytes_per_s), (1000.0, 4_096_000.0));
        assert_eq!((rate.cpu_percent, rate.cpu_us_per_operation), (1.0, Some(10.0)));
        let p50 = rate.read_p50_us.unwrap();
        assert!((64.0..=128.0).contains(&p50), "{p50}");
        assert_eq!(rate.write_p50_us, None);
        assert_eq!((sample.pools[0].name.as_str(), sample.pools[0].reads_per_s), ("default", 1000.0));
        assert_eq!(sample.total.reads_per_s, 1000.0);
    }

    #[test]
    fn an_osd_that_was_idle_for_long_did_what_is_new_just_now() {
        let start = Instant::now();
        let before = reading(start, vec![osd(10, 1000)]);
        let now = reading(start + Duration::from_secs(2), vec![osd(3600, 2000)]);
        assert_eq!(Sample::between(&before, &now).osds[0].reads_per_s, 500.0);
        // Nothing new.
        assert_eq!(Sample::between(&before, &before.clone()).osds[0].reads_per_s, 0.0);
    }
}
