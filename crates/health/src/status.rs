//! Everything about the cluster at one moment: the verdict, and what it was made from.

use crate::problem::Health;
use crate::verdict;
use crate::view::{
    self, Capacity, ClusterView, OsdView, PgHealth, PgView, PoolView, RecoveryView, Reports,
    TrashedVolumeView, VolumeView,
};
use base::map::{Admission, ClusterMap};
use base::{NodeId, OsdId, PoolId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::ToSchema;

/// Notes of OSDs that an overview tells, so that it stays small.
const NOTES_MAX: usize = 64;

/// Everything: `status --json`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// All but the lists that grow with the cluster.
    #[serde(flatten)]
    pub overview: Overview,
    /// The nodes.
    pub nodes: Vec<NodeView>,
    /// The OSDs.
    pub osds: Vec<OsdView>,
}

/// The cluster without its parts: what `status` shows a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    /// Which cluster this is.
    pub cluster: ClusterView,
    /// The verdict.
    pub health: Health,
    /// Who tells this; `null` where nobody does, and the registry's map is all there is.
    pub manager: Option<ManagerView>,
    /// Nodes and OSDs, counted.
    pub counts: Counts,
    /// Space, summed over the OSDs.
    pub capacity: Capacity,
    /// The placement groups, counted.
    pub pgs: PgCounts,
    /// The sum of what members lack that catch up.
    pub recovery: RecoveryView,
    /// The pools.
    pub pools: Vec<PoolView>,
    /// The volumes.
    pub volumes: Vec<VolumeView>,
    /// The volumes in the trash.
    #[serde(default)]
    pub trash: Vec<TrashedVolumeView>,
    /// What OSDs have to say besides, or is to be said of them, 64 notes at most.
    pub notes: Vec<NoteView>,
}

/// The process that manages the cluster, which all OSDs tell how they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManagerView {
    /// Its node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// The process.
    pub pid: u32,
    /// How long ago the OSD that confirmed its report the longest ago did so, in milliseconds. One that did not for 6 s counts as
    /// not reported.
    pub oldest_report_ms: u64,
}

impl ManagerView {
    /// Of a process that was told all within that time.
    #[must_use]
    pub fn new(node: NodeId, pid: u32, oldest: Duration) -> ManagerView {
        let oldest_report_ms = u64::try_from(oldest.as_millis()).unwrap_or(u64::MAX);
        ManagerView { node, pid, oldest_report_ms }
    }
}

/// Nodes and OSDs, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Nodes that have OSDs.
    pub nodes: usize,
    /// Those of them whose OSDs are all up.
    pub nodes_up: usize,
    /// OSDs.
    pub osds: usize,
    /// Those that are up.
    pub osds_up: usize,
    /// Those that no data is placed on.
    pub osds_out: usize,
}

/// What an OSD has to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NoteView {
    /// The OSD.
    #[schema(value_type = u32)]
    pub osd: OsdId,
    /// In words.
    pub note: String,
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its id.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Its OSDs.
    pub osds: usize,
    /// Those of them that are up.
    pub osds_up: usize,
}

/// How many placement groups are in which state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PgCounts {
    /// All.
    pub total: usize,
    /// By the name of the state; states without a group are absent.
    #[schema(value_type = BTreeMap<String, usize>)]
    pub by_state: BTreeMap<PgHealth, usize>,
    /// Those with fewer copies in sync than their pool wants.
    pub degraded: usize,
}

/// A cluster as it is told at one moment.
#[derive(Clone, Debug)]
pub struct Picture {
    /// All but the groups.
    pub status: Status,
    /// The placement groups, in order.
    pub pgs: Vec<PgView>,
}

impl Picture {
    /// What map and reports amount to at a moment: seconds since 1970. `manager` tells it, if anybody does.
    #[must_use]
    pub fn of(
        map: &ClusterMap,
        reports: &Reports,
        manager: Option<ManagerView>,
        now_unix_seconds: u64,
    ) -> Picture {
        let osds = view::osds(map, reports, now_unix_seconds);
        let pgs = view::pgs(map, reports);
        let pools = view::pools(map, &pgs);
        let mut nodes: BTreeMap<NodeId, NodeView> = BTreeMap::new();
        for osd in &osds {
            let node = nodes.entry(osd.node).or_insert(NodeView { node: osd.node, osds: 0, osds_up: 0 });
            node.osds += 1;
            node.osds_up += usize::from(osd.up);
        }
        let counts = Counts {
            nodes: nodes.len(),
            nodes_up: nodes.values().filter(|node| node.osds_up == node.osds).count(),
            osds: osds.len(),
            osds_up: osds.iter().filter(|osd| osd.up).count(),
            osds_out: osds.iter().filter(|osd| osd.admission != Admission::In).count(),
        };
        let left = || pgs.iter().filter_map(|pg| pg.recovery);
        let notes = osds.iter().flat_map(|osd| osd.notes.iter().map(|note| (osd.osd, note.clone())));
        let overview = Overview {
            cluster: ClusterView {
                id: map.cluster.to_string(),
                revision: map.revision,
                encryption: map.encryption,
                profile: map.profile,
                recovery_share: map.recovery_share,
            },
            health: verdict::judge(&osds, &pgs, &pools, reports.silence.as_deref())
                .with(reports.registry.iter().cloned().chain(verdict::late(&reports.late))),
            manager,
            counts,
            capacity: view::capacity(&osds),
            pgs: count(&pgs, &pools),
            recovery: RecoveryView {
                objects_left: left().map(|left| left.objects_left).sum(),
                bytes_left: left().map(|left| left.bytes_left).sum(),
            },
            pools,
            volumes: view::volumes(map),
            trash: view::trash(map),
            notes: notes.take(NOTES_MAX).map(|(osd, note)| NoteView { osd, note }).collect(),
        };
        Picture { status: Status { overview, nodes: nodes.into_values().collect(), osds }, pgs }
    }
}

fn count(pgs: &[PgView], pools: &[PoolView]) -> PgCounts {
    let sizes: BTreeMap<PoolId, usize> = pools.iter().map(|pool| (pool.pool, pool.size as usize)).collect();
    let mut counts = PgCounts { total: pgs.len(), ..PgCounts::default() };
    for pg in pgs {
        *counts.by_state.entry(pg.state).or_default() += 1;
        let size = sizes.get(&pg.pg.pool).copied().unwrap_or(0);
        counts.degraded += usize::from(pg.in_sync.len() < size);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::{Code, Level};
    use crate::problem::Problem;
    use base::map::{OsdInfo, PoolInfo, RemovedPool};
    use base::schedule::LateSchedule;
    use base::status::OsdStatus;

    #[test]
    fn the_json_names_are_those_that_were_promised() {
        let mut map = ClusterMap::default();
        let pool =
            PoolInfo { name: "default".into(), size: 3, min_size: 2, pg_count: 64, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        let json = serde_json::to_value(Picture::of(&map, &Reports::default(), None, 0).status).unwrap();
        for pointer in [
            "/cluster/id",
            "/cluster/encryption",
            "/cluster/recovery_share",
            "/health/level",
            "/health/problems",
            "/manager",
            "/capacity/used_bytes",
            "/pgs/by_state",
            "/osds",
        ] {
            assert!(json.pointer(pointer).is_some(), "{pointer} is missing in {json}");
        }
        assert_eq!(json["pools"][0]["min_size"], 2);
        assert_eq!(json["capacity"]["used_bytes"], serde_json::Value::Null);
    }

    #[test]
    fn what_is_wrong_with_the_registry_is_part_of_the_verdict() {
        let problem =
            Problem::new(Code::RegistryFull, "it is full".into(), "nothing can change", "give it room");
        let reports = Reports { registry: vec![problem.clone()], ..Reports::default() };
        let health = Picture::of(&ClusterMap::default(), &reports, None, 0).status.overview.health;
        assert_eq!((health.level, &health.problems[0]), (Level::Error, &problem));
        assert_eq!(health.problems[1].code, Code::PoolNone);
    }

    #[test]
    fn schedules_that_are_late_are_part_of_the_verdict() {
        let late =
            LateSchedule { slot_unix_seconds: 0, volumes: vec!["v".into()], reason: "a reason".into() };
        let reports = Reports { late: [("hourly".into(), late)].into(), ..Reports::default() };
        let health = Picture::of(&ClusterMap::default(), &reports, None, 0).status.overview.health;
        let codes: Vec<Code> = health.problems.iter().map(|problem| problem.code).collect();
        assert_eq!((health.level, codes), (Level::Warning, vec![Code::PoolNone, Code::SnapshotLate]));
    }

    #[test]
    fn what_an_osd_that_is_away_may_still_hold_of_removed_pools_is_noted_and_is_no_problem() {
        let mut map = ClusterMap::default();
        let up = Some(([127, 0, 0, 1], 7000).into());
        for (osd, address) in [(1, up), (2, None)] {
            map.osds.insert(OsdId(osd), OsdInfo { bytes: 1 << 30, address, ..OsdInfo::default() });
        }
        let told = |map: &ClusterMap| Picture::of(map, &Reports::default(), None, 0).status.overview;
        let before = told(&map);
        assert_eq!(before.notes, []);
        let removed = RemovedPool { name: "scratch".into(), owed_by: vec![OsdId(1), OsdId(2)] };
        map.removed_pools.insert(PoolId(4), removed.clone());
        let now = told(&map);
        assert_eq!((now.health, now.notes.len(), now.notes[0].osd), (before.health, 1, OsdId(2)));
        let note = &now.notes[0].note;
        assert!(note.starts_with("pool scratch was removed while it was away"), "{note}");
        map.removed_pools.insert(PoolId(5), RemovedPool { name: "other".into(), ..removed });
        assert!(told(&map).notes[0].note.starts_with("2 pools, scratch among them, were removed"));
    }

    #[test]
    fn whoever_asks_reads_back_what_is_told() {
        let mut map = ClusterMap::default();
        let address = Some(([127, 0, 0, 1], 7000).into());
        map.osds.insert(OsdId(3), OsdInfo { bytes: 1 << 30, address, ..OsdInfo::default() });
        let status =
            OsdStatus { notes: vec!["a note".into()], write_amplification: 1.5, ..OsdStatus::default() };
        let reports = Reports::from(BTreeMap::from([(OsdId(3), status)]));
        let manager = ManagerView::new(NodeId(0), 7, Duration::from_millis(20));
        let status = Picture::of(&map, &reports, Some(manager), 0).status;
        assert_eq!(status.overview.notes, [NoteView { osd: OsdId(3), note: "a note".into() }]);
        let text = serde_json::to_string(&status).unwrap();
        let read: Status = serde_json::from_str(&text).unwrap();
        assert_eq!((read.overview, read.osds), (status.overview, status.osds));
    }
}
