//! What the OSDs of one process counted: for metrics, and for whoever takes two readings and shows the difference.

use base::figures::{Counts, Figures, Tally, Traffic};
use base::{ClientId, NodeId, OsdId, PoolId, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the OSDs of one process counted: `/api/v1/figures`. All counts begin with the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeFigures {
    /// The node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// The process.
    pub pid: u32,
    /// Whether it was built without optimisation: its figures are none to publish.
    #[serde(default)]
    pub is_debug: bool,
    /// Its OSDs.
    pub osds: Vec<OsdFigures>,
}

/// What one OSD counted, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OsdFigures {
    /// The OSD.
    #[schema(value_type = u32)]
    pub osd: OsdId,
    /// When, in nanoseconds of a clock that never goes back. Only differences of it mean something.
    pub at_ns: u64,
    /// What it did for clients and primaries.
    #[schema(value_type = FiguresSchema)]
    pub requests: Figures,
    /// CPU time of its thread, in nanoseconds; what the kernel does for it on other threads is not in it.
    pub cpu_ns: u64,
    /// Operations that have not ended.
    pub operations_in_flight: u64,
    /// Bytes that members were sent that catch up.
    pub recovery_sent_bytes: u64,
    /// What clients were served, by pool.
    pub pools: Vec<PoolTraffic>,
    /// The same by volume: the busiest of late, at most 64.
    pub volumes: Vec<VolumeTraffic>,
    /// The same by client, since it connected: the busiest of late, at most 64.
    pub clients: Vec<ClientTraffic>,
}

impl OsdFigures {
    /// What `osd` counted.
    #[must_use]
    pub fn of(osd: OsdId, tally: &Tally) -> OsdFigures {
        let Counts { requests, cpu_ns, operations_in_flight, recovery_sent_bytes } = tally.counts;
        let (pools, volumes, clients) = (tally.pools.iter(), tally.volumes.iter(), tally.clients.iter());
        OsdFigures {
            osd,
            at_ns: tally.at.nanoseconds,
            requests,
            cpu_ns,
            operations_in_flight,
            recovery_sent_bytes,
            pools: pools.map(|&(pool, traffic)| PoolTraffic { pool, traffic }).collect(),
            volumes: volumes.map(|&(volume, traffic)| VolumeTraffic { volume, traffic }).collect(),
            clients: clients.map(|&(client, traffic)| ClientTraffic { client, traffic }).collect(),
        }
    }
}

/// What clients were served of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolTraffic {
    /// The pool.
    #[schema(value_type = u32)]
    pub pool: PoolId,
    /// What.
    #[serde(flatten)]
    #[schema(value_type = TrafficSchema)]
    pub traffic: Traffic,
}

/// What clients were served of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeTraffic {
    /// The volume.
    #[schema(value_type = u64)]
    pub volume: VolumeId,
    /// What.
    #[serde(flatten)]
    #[schema(value_type = TrafficSchema)]
    pub traffic: Traffic,
}

/// What a client was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientTraffic {
    /// The client's id, in hexadecimal: it has more bits than a JSON number keeps.
    #[serde(with = "hexadecimal")]
    #[schema(value_type = String)]
    pub client: ClientId,
    /// What.
    #[serde(flatten)]
    #[schema(value_type = TrafficSchema)]
    pub traffic: Traffic,
}

mod hexadecimal {
    use base::ClientId;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(client: &ClientId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", client.0))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClientId, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(ClientId).map_err(serde::de::Error::custom)
    }
}

// The counts themselves belong to the data path, which knows nothing of schemas: here is what they are in JSON.

/// By kind of request.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct FiguresSchema {
    /// Client reads.
    read: RequestFiguresSchema,
    /// Client writes.
    write: RequestFiguresSchema,
    /// Client zeroings and trims.
    zero: RequestFiguresSchema,
    /// Questions of clients for what is allocated.
    allocated: RequestFiguresSchema,
    /// Replicated writes and zeroings.
    replicate: RequestFiguresSchema,
}

/// What became of the requests of one kind.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct RequestFiguresSchema {
    /// Bytes of those that were done.
    bytes: u64,
    /// Those that failed for good.
    errors: u64,
    /// Those that were turned away and are sent again.
    redirected: u64,
    /// How long those took that were done.
    latencies: LatenciesSchema,
}

/// How many operations took how long.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct LatenciesSchema {
    /// By upper bound: 8 µs, 16 µs, and so on up to 16.777216 s; the last has no bound.
    buckets: Vec<u64>,
    /// The sum of all, in nanoseconds.
    sum_ns: u64,
}

/// What clients were served.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct TrafficSchema {
    /// Reads.
    reads: u64,
    /// Bytes of them.
    read_bytes: u64,
    /// Writes, zeroings and trims.
    writes: u64,
    /// Bytes of the writes.
    written_bytes: u64,
    /// Those of a volume or of a client that had to wait for a limit.
    throttled: u64,
    /// Those of a volume that had to wait for their turn, because others were used too.
    queued: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_back_what_it_prints() {
        let client = ClientTraffic { client: ClientId(u64::MAX - 1), traffic: Traffic::default() };
        let json = serde_json::to_value(client).unwrap();
        assert_eq!(json["client"], "fffffffffffffffe");
        assert_eq!(json["reads"], 0);
        assert_eq!(serde_json::from_value::<ClientTraffic>(json).unwrap(), client);
    }
}
