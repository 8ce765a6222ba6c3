//! `/metrics`: what Prometheus scrapes, as OpenMetrics or in Prometheus' own text format.
//!
//! Every process tells of its own OSDs. The manager's process tells of the whole cluster too, so that sums over all
//! processes count nothing twice.

use crate::board::Told;
use base::figures::{Latencies, RequestFigures, RequestKind, Tally, Traffic};
use base::map::ClusterMap;
use base::status::OsdStatus;
use base::{NodeId, OsdId, VolumeId};
use health::codes::{Code, Level};
use health::status::{Overview, Picture};
use health::view::{PgHealth, PoolView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// In which of its two text formats a scraper wants the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, version 0.0.4: what everything understands.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format for what an `Accept` header says.
    #[must_use]
    pub fn accepted(header: Option<&str>) -> Format {
        match header.is_some_and(|header| header.contains("application/openmetrics-text")) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// The content type to answer with.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What is told at one scrape.
#[derive(Clone, Debug)]
pub struct Exposition {
    /// The node.
    pub node: NodeId,
    /// Its OSDs, those of this process.
    pub osds: BTreeMap<OsdId, Told>,
    /// The map, for names.
    pub map: Arc<ClusterMap>,
    /// Whether the registry answered a moment ago.
    pub registry_answers: bool,
    /// Whether this process manages the cluster.
    pub is_manager: bool,
    /// The whole cluster, where this process tells of it.
    pub cluster: Option<Arc<Picture>>,
}

impl Exposition {
    /// The text of all metrics.
    #[must_use]
    pub fn encode(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(self)));
        let mut openmetrics = String::new();
        text::encode(&mut openmetrics, &registry).expect("text can always be appended to a string");
        match format {
            Format::OpenMetrics => openmetrics,
            Format::Prometheus => to_prometheus(&openmetrics),
        }
    }
}

/// OpenMetrics in Prometheus' own format, which differs in this: a counter's family has the name of its samples, and
/// nothing marks the end.
fn to_prometheus(openmetrics: &str) -> String {
    let counters: Vec<&str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut prometheus = String::with_capacity(openmetrics.len() + 16 * counters.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let comment =
            ["# HELP ", "# TYPE "].into_iter().find_map(|kind| Some((kind, line.strip_prefix(kind)?)));
        match comment.and_then(|(kind, rest)| Some((kind, rest.split_once(' ')?))) {
            Some((kind, (family, rest))) if counters.contains(&family) => {
                prometheus.push_str(&format!("{kind}{family}_total {rest}\n"));
            }
            _ => prometheus.extend([line, "\n"]),
        }
    }
    prometheus
}

type Result = std::result::Result<(), fmt::Error>;
type Labels<const N: usize> = [(&'static str, String); N];
type NoLabels = Labels<0>;

/// A family of metrics after the other.
struct Writer<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Writer<'_, '_> {
    /// A counter; its samples get `_total` behind the name.
    fn counter<V: EncodeCounterValue, L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_counter(&value, None::<&Exemplar<NoLabels, f64>>)?;
        }
        Ok(())
    }

    fn gauge<V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, String); N], V)>,
    ) -> Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A gauge without labels.
    fn single<V: EncodeGaugeValue>(&mut self, name: &str, help: &str, value: V) -> Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        family.encode_gauge(&value)
    }
}

#[derive(Debug)]
struct Families(Exposition);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result {
        let mut writer = Writer(&mut encoder);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let build = [([("version", version), ("node", self.0.node.to_string())], 1u64)];
        let help = "The version of this process, and the node it belongs to";
        writer.gauge("millpond_build_info", help, build)?;
        let answers = u64::from(self.0.registry_answers);
        let help = "Whether the registry answered this process";
        writer.single("millpond_registry_reachable", help, answers)?;
        let is_manager = u64::from(self.0.is_manager);
        writer.single("millpond_manager", "Whether this process manages the cluster", is_manager)?;
        self.requests(&mut writer)?;
        self.osds(&mut writer)?;
        self.traffic(&mut writer)?;
        match &self.0.cluster {
            Some(picture) => cluster(&mut writer, &picture.status.overview),
            None => Ok(()),
        }
    }
}

impl Families {
    /// What the OSDs counted that told it.
    fn figures(&self) -> impl Iterator<Item = (OsdId, &Tally)> {
        self.0.osds.iter().filter_map(|(osd, told)| Some((*osd, told.figures.as_deref()?)))
    }

    fn requests(&self, writer: &mut Writer<'_, '_>) -> Result {
        let all = || {
            self.figures().flat_map(|(osd, figures)| {
                RequestKind::ALL.map(move |kind| (labels(osd, kind), figures.counts.requests.of(kind)))
            })
        };
        let counts = |count: fn(&RequestFigures) -> u64| all().map(move |(labels, it)| (labels, count(it)));
        let help = "Operations that were done, by kind; replicate: what a primary had this OSD write";
        writer.counter("millpond_osd_operations", help, counts(|requests| requests.latencies.count()))?;
        let help = "Bytes of the operations that were done";
        writer.counter("millpond_osd_operation_bytes", help, counts(|requests| requests.bytes))?;
        let help = "Operations that failed for good: damage, no space, a failed drive, a fenced client";
        writer.counter("millpond_osd_operation_errors", help, counts(|requests| requests.errors))?;
        let help = "Operations that were turned away and are sent again, here or to another OSD";
        writer.counter("millpond_osd_operations_redirected", help, counts(|requests| requests.redirected))?;
        let name = "millpond_osd_operation_duration_seconds";
        let help = "How long operations took, from when they were taken up to the answer";
        let mut family = writer.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, requests) in all() {
            let latencies = &requests.latencies;
            let bound = |bucket| Latencies::bound(bucket).map_or(f64::INFINITY, |bound| bound.as_secs_f64());
            let buckets: Vec<(f64, u64)> =
                latencies.buckets.iter().enumerate().map(|(bucket, count)| (bound(bucket), *count)).collect();
            let sum = latencies.sum_ns as f64 / 1e9;
            let exemplars = None::<&HashMap<usize, Exemplar<NoLabels, f64>>>;
            family.encode_family(&labels)?.encode_histogram(sum, latencies.count(), &buckets, exemplars)?;
        }
        Ok(())
    }

    fn osds(&self, writer: &mut Writer<'_, '_>) -> Result {
        let figures = || self.figures().map(|(osd, figures)| ([("osd", osd.to_string())], figures));
        let all_told = || {
            let told = self.0.osds.iter();
            told.filter_map(|(osd, told)| Some(([("osd", osd.to_string())], told.status.as_ref()?)))
        };
        // Of one that was not started nobody knows how it is.
        let statuses = || all_told().filter(|(_, status)| status.start_refused.is_none());
        let infos = self.0.osds.iter().filter_map(|(osd, told)| {
            let (status, node) = (told.status.as_ref()?, self.0.node.to_string());
            Some(([("osd", osd.to_string()), ("node", node), ("device", status.path.clone())], 1u64))
        });
        writer.gauge("millpond_osd_info", "The node and the drive of an OSD", infos)?;
        let refused = all_told().map(|(labels, status)| (labels, u64::from(status.start_refused.is_some())));
        let help =
            "Whether it is not started, because its drive is not there or what is on it cannot be used";
        writer.gauge("millpond_osd_start_refused", help, refused)?;
        let seconds = figures().map(|(labels, it)| (labels, it.counts.cpu_ns as f64 / 1e9));
        let help = "CPU time of the OSD's thread; what the kernel does for it on other threads is not in it";
        writer.counter("millpond_osd_cpu_seconds", help, seconds)?;
        let operations = figures().map(|(labels, it)| (labels, it.counts.operations_in_flight));
        writer.gauge("millpond_osd_operations_in_flight", "Operations that have not ended", operations)?;
        let bytes = figures().map(|(labels, it)| (labels, it.counts.recovery_sent_bytes));
        let help = "Bytes that members were sent that catch up";
        writer.counter("millpond_osd_recovery_sent_bytes", help, bytes)?;
        let told = |value: fn(&OsdStatus) -> u64| statuses().map(move |(labels, it)| (labels, value(it)));
        let mut gauge = |name, help, value: fn(&OsdStatus) -> u64| writer.gauge(name, help, told(value));
        gauge("millpond_osd_used_bytes", "Bytes that hold something", |it| it.used_bytes)?;
        let help = "Bytes that can hold something, used ones included";
        gauge("millpond_osd_usable_bytes", help, |it| it.usable_bytes)?;
        gauge("millpond_osd_full", "Whether it refuses writes for want of space", |it| it.full.into())?;
        let help = "Whether its drive failed and is used no more";
        gauge("millpond_osd_drive_failed", help, |it| it.failure.is_some().into())?;
        let help = "Whether its drive does nothing of what it is asked, without an error";
        gauge("millpond_osd_drive_hangs", help, |it| it.drive_hangs.into())?;
        gauge("millpond_osd_index_bytes", "Memory of its index", |it| it.index_bytes)?;
        let ratios = statuses().map(|(labels, it)| (labels, it.write_amplification));
        let help = "Bytes written to the drive for each byte that clients wrote; 0 before the first";
        writer.gauge("millpond_osd_write_amplification_ratio", help, ratios)?;
        let help = "Blocks that did not verify when they were read, since the start";
        writer.counter("millpond_osd_damaged_blocks", help, told(|it| it.damaged_reads))?;
        let help = "Blocks that it, as primary, had written anew from sound copies, since the start";
        writer.counter("millpond_osd_mended_blocks", help, told(|it| it.mended_blocks))?;
        let help = "Blocks of the groups it is primary of that no member has a sound copy of";
        writer.gauge("millpond_osd_lost_blocks", help, told(|it| it.lost_blocks))
    }

    fn traffic(&self, writer: &mut Writer<'_, '_>) -> Result {
        let pools: Vec<(OsdId, Labels<1>, Traffic)> = self
            .figures()
            .flat_map(|(osd, figures)| figures.pools.iter().map(move |it| (osd, it)))
            .map(|(osd, (pool, traffic))| {
                let name = self.0.map.pools.get(pool).map(|pool| pool.name.clone());
                (osd, [("pool", name.unwrap_or_else(|| pool.to_string()))], *traffic)
            })
            .collect();
        let volumes: Vec<(OsdId, Labels<3>, Traffic)> = self
            .figures()
            .flat_map(|(osd, figures)| figures.volumes.iter().map(move |it| (osd, it)))
            // Not of one that was removed, or lies in the trash: another may have its name.
            .filter_map(|(osd, (volume, traffic))| {
                Some((osd, volume_labels(&self.0.map, *volume)?, *traffic))
            })
            .collect();
        by_owner(writer, "pool", "millpond_pool_operations", "millpond_pool_operation_bytes", &pools)?;
        by_owner(
            writer,
            "volume",
            "millpond_volume_operations",
            "millpond_volume_operation_bytes",
            &volumes,
        )?;
        let of_each = |counted: fn(&Traffic) -> u64| {
            volumes.iter().map(move |(osd, [pool, namespace, volume], traffic)| {
                let labels = [("osd", osd.to_string()), pool.clone(), namespace.clone(), volume.clone()];
                (labels, counted(traffic))
            })
        };
        let help = "Operations of clients that had to wait at an OSD for a limit of the volume or of a key";
        let throttled = of_each(|traffic| traffic.throttled);
        writer.counter("millpond_volume_throttled_operations", help, throttled)?;
        let help = "Operations of clients that had to wait at an OSD because several volumes wanted more than it does";
        writer.counter("millpond_volume_queued_operations", help, of_each(|traffic| traffic.queued))
    }
}

/// Reads and writes of pools or volumes, at each OSD that leads groups of theirs.
fn by_owner<const N: usize>(
    writer: &mut Writer<'_, '_>,
    label: &'static str,
    operations: &str,
    bytes: &str,
    owners: &[(OsdId, Labels<N>, Traffic)],
) -> Result {
    let samples = |reads: fn(&Traffic) -> u64, writes: fn(&Traffic) -> u64| {
        owners.iter().flat_map(move |(osd, owner, traffic)| {
            [("read", reads(traffic)), ("write", writes(traffic))].map(|(operation, value)| {
                let mut labels = vec![("osd", osd.to_string())];
                labels.extend(owner.iter().cloned());
                labels.push(("operation", operation.to_owned()));
                (labels, value)
            })
        })
    };
    let help = format!("Operations of clients that an OSD served, by {label}; a zeroing counts as a write");
    writer.counter(operations, &help, samples(|it| it.reads, |it| it.writes))?;
    let help = format!("Bytes of clients' reads and writes that an OSD served, by {label}");
    writer.counter(bytes, &help, samples(|it| it.read_bytes, |it| it.written_bytes))
}

/// By which a volume is known, its place beside its name: others may be called so elsewhere.
fn volume_labels(map: &ClusterMap, volume: VolumeId) -> Option<Labels<3>> {
    let info = map.volumes.get(&volume).filter(|volume| volume.is_listed())?;
    let place = map.place_of(info);
    Some([("pool", place.pool), ("namespace", place.namespace), ("volume", info.name.clone())])
}

fn labels(osd: OsdId, kind: RequestKind) -> [(&'static str, String); 2] {
    [("osd", osd.to_string()), ("operation", kind.name().to_owned())]
}

/// The whole cluster.
fn cluster(writer: &mut Writer<'_, '_>, status: &Overview) -> Result {
    let level = match status.health.level {
        Level::Ok => 0u64,
        Level::Warning => 1,
        Level::Error => 2,
    };
    writer.single("millpond_health_level", "The verdict: 0 ok, 1 warning, 2 error", level)?;
    // All codes, so that an alert sees a 0 and not nothing.
    let problems = Code::ALL.into_iter().map(|code| {
        let labels =
            [("code", code.name().to_owned()), ("level", code.explanation().level.name().to_owned())];
        (labels, status.health.problems.iter().filter(|problem| problem.code == code).count() as u64)
    });
    let help = "Problems by code; `millpond health explain CODE` says what one means";
    writer.gauge("millpond_health_problems", help, problems)?;
    let counts = &status.counts;
    let osds = [("up", counts.osds_up as u64), ("down", (counts.osds - counts.osds_up) as u64)];
    let osds = osds.map(|(state, count)| ([("state", state.to_owned())], count));
    writer.gauge("millpond_osds", "OSDs that are up and down", osds)?;
    let within = (counts.osds - counts.osds_out) as u64;
    writer.single("millpond_osds_in", "OSDs that data is placed on", within)?;
    let states = PgHealth::ALL.map(|state| {
        let count = status.pgs.by_state.get(&state).copied().unwrap_or(0) as u64;
        ([("state", state.name().to_owned())], count)
    });
    writer.gauge("millpond_pgs", "Placement groups by state", states)?;
    let help = "Placement groups with fewer copies in sync than their pool wants";
    writer.single("millpond_pgs_degraded", help, status.pgs.degraded as u64)?;
    let help = "Objects that were not compared with or sent to members that catch up yet";
    writer.single("millpond_recovery_objects_left", help, status.recovery.objects_left)?;
    let help = "Bytes that are known to be sent to members that catch up yet";
    writer.single("millpond_recovery_left_bytes", help, status.recovery.bytes_left)?;
    let capacity = &status.capacity;
    writer.single("millpond_cluster_size_bytes", "Bytes of all drives", capacity.bytes)?;
    let help = "Bytes in use, each copy counted, of the OSDs that report";
    writer.single("millpond_cluster_used_bytes", help, capacity.used_bytes.unwrap_or(0))?;
    let help = "Bytes that data may take, each copy counted, of the OSDs that report";
    writer.single("millpond_cluster_usable_bytes", help, capacity.usable_bytes.unwrap_or(0))?;
    let pools = |value: fn(&PoolView) -> u64| {
        let samples = status.pools.iter().map(move |pool| ([("pool", pool.name.clone())], value(pool)));
        samples.collect::<Vec<_>>()
    };
    writer.gauge("millpond_pool_copies", "Copies that a pool keeps", pools(|it| it.size.into()))?;
    writer.gauge("millpond_pool_pgs", "Placement groups of a pool", pools(|it| it.pg_count.into()))?;
    let help = "Placement groups of a pool that serve";
    writer.gauge("millpond_pool_pgs_active", help, pools(|it| it.pgs_active as u64))?;
    writer.gauge("millpond_pool_volumes", "Volumes of a pool", pools(|it| it.volumes as u64))?;
    let help = "Bytes that a pool's volumes could hold if they were written in full";
    writer.gauge("millpond_pool_provisioned_bytes", help, pools(|it| it.volume_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::figures::{Counts, Figures};
    use base::map::{PoolInfo, Trashed, VolumeInfo};
    use base::{Instant, PoolId};
    use health::view::Reports;
    use std::time::Duration;

    fn exposition() -> Exposition {
        let mut map = ClusterMap::default();
        let pool = PoolInfo {
            name: "a \"pool\"\\".into(),
            size: 3,
            min_size: 2,
            pg_count: 8,
            ..PoolInfo::default()
        };
        map.pools.insert(PoolId(1), pool);
        let disk = VolumeInfo { name: "disk".into(), pool: PoolId(1), ..VolumeInfo::default() };
        let in_trash = VolumeInfo { trashed: Some(Trashed::default()), ..disk.clone() };
        let removed = VolumeInfo { removed: true, ..disk.clone() };
        let beside = VolumeInfo { namespace: "n".into(), ..disk.clone() };
        map.volumes.extend([(VolumeId(1), in_trash), (VolumeId(2), removed), (VolumeId(3), disk)]);
        map.volumes.insert(VolumeId(4), beside);
        let mut requests = Figures::default();
        requests.read.done(4096, Duration::from_micros(9));
        requests.read.done(4096, Duration::from_secs(100));
        let traffic = Traffic { reads: 2, read_bytes: 8192, ..Traffic::default() };
        let counts =
            Counts { requests, cpu_ns: 1_500_000_000, operations_in_flight: 4, recovery_sent_bytes: 0 };
        let figures = Tally {
            at: Instant::default(),
            counts,
            pools: vec![(PoolId(1), traffic)],
            volumes: (1..5).map(|id| (VolumeId(id), Traffic { reads: 10 + id, ..traffic })).collect(),
            clients: vec![],
        };
        let status = Arc::new(OsdStatus::default());
        let told = Told { figures: Some(Arc::new(figures)), status: Some(status) };
        let whole = Arc::new(Picture::of(&map, &Reports::default(), None, 0));
        Exposition {
            node: NodeId(1),
            osds: [(OsdId(3), told)].into(),
            map: Arc::new(map),
            registry_answers: true,
            is_manager: true,
            cluster: Some(whole),
        }
    }

    #[test]
    fn both_formats_have_the_same_samples_and_name_counters_each_in_its_way() {
        let openmetrics = exposition().encode(Format::OpenMetrics);
        let prometheus = exposition().encode(Format::Prometheus);
        assert!(openmetrics.ends_with("# EOF\n") && !prometheus.contains("# EOF"));
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&openmetrics), samples(&prometheus));
        assert!(openmetrics.contains("# TYPE millpond_osd_operations counter\n"), "{openmetrics}");
        assert!(prometheus.contains("# TYPE millpond_osd_operations_total counter\n"), "{prometheus}");
        assert!(prometheus.contains("# HELP millpond_osd_operations_total "), "{prometheus}");
        for sample in [
            "millpond_osd_operations_total{osd=\"osd.3\",operation=\"read\"} 2",
            "millpond_osd_operation_duration_seconds_bucket{le=\"0.000008\",osd=\"osd.3\",operation=\"read\"} 0",
            "millpond_osd_operation_duration_seconds_bucket{le=\"+Inf\",osd=\"osd.3\",operation=\"read\"} 2",
            "millpond_osd_cpu_seconds_total{osd=\"osd.3\"} 1.5",
            "millpond_pool_operations_total{osd=\"osd.3\",pool=\"a \\\"pool\\\"\\\\\",operation=\"read\"} 2",
            // Once, though volumes that are not there any more had that name.
            "millpond_volume_operations_total{osd=\"osd.3\",pool=\"a \\\"pool\\\"\\\\\",namespace=\"\",volume=\"disk\",operation=\"read\"} \
             13",
            "millpond_volume_operations_total{osd=\"osd.3\",pool=\"a \\\"pool\\\"\\\\\",namespace=\"n\",volume=\"disk\",operation=\"read\"} \
             14",
            "millpond_health_level 0",
            "millpond_health_problems{code=\"POOL_NONE\",level=\"warning\"} 0",
            "millpond_pool_copies{pool=\"a \\\"pool\\\"\\\\\"} 3",
        ] {
            assert!(samples(&prometheus).contains(&sample.to_owned()), "{sample} is not in:\n{prometheus}");
        }
        let of_volumes =
            samples(&prometheus).iter().filter(|line| line.contains("volume_operations_total{")).count();
        assert_eq!(of_volumes, 4, "reads and writes of two, of one name in two namespaces:\n{prometheus}");
    }

    #[test]
    fn the_format_is_the_one_that_the_scraper_takes() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                          version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        assert_eq!(Format::accepted(Some("*/*")), Format::Prometheus);
        assert_eq!(Format::accepted(None), Format::Prometheus);
    }
}
