//! Which volumes that were made smaller hold nothing beyond their ends any more, so that they may grow, and which that lost
//! snapshots hold nothing any more that nobody sees: as the primaries of all groups of their pools say.
//!
//! A primary's word counts in the very epoch that the map shows of its group. It may be old by then: in that epoch, and in
//! all that follow it, nobody adds anything beyond the end, as long as the volume does not grow (`crates/pg/src/moves/cut.rs`).
//! Nor does a group that was split since: both halves begin with what the group had.

use base::map::{ClusterMap, PgConfig};
use base::status::{PgState, PgStatus, Statuses};
use base::{CutId, PgId, PoolId, VolumeId};
use std::collections::BTreeMap;

/// The volumes that were cut or pruned and have lost all that they were to lose, each with the number of the cut.
#[must_use]
pub fn cuts_done(map: &ClusterMap, statuses: &Statuses) -> Vec<(VolumeId, CutId)> {
    let mut through: BTreeMap<PoolId, CutId> = BTreeMap::new();
    let mut done = Vec::new();
    for (volume, info) in &map.volumes {
        for cut in [info.cut, info.prune].into_iter().flatten() {
            let through = through.entry(info.pool).or_insert_with(|| cut_through(map, statuses, info.pool));
            if cut <= *through {
                done.push((*volume, cut));
            }
        }
    }
    done
}

/// The clones that hold all that they saw of their parents, each with the number of its flattening.
#[must_use]
pub fn flattened(map: &ClusterMap, statuses: &Statuses) -> Vec<(VolumeId, CutId)> {
    let asked = map.volumes.iter().filter_map(|(volume, info)| Some((*volume, info.pool, info.flatten?)));
    let is_done = |pool, flatten| flatten <= through(map, statuses, pool, |told| told.flatten.through);
    asked
        .filter(|(_, pool, flatten)| is_done(*pool, *flatten))
        .map(|(volume, _, flatten)| (volume, flatten))
        .collect()
}

/// The cut such that all groups of a pool have nothing left of it, nor of those before it. 0 if there is none.
fn cut_through(map: &ClusterMap, statuses: &Statuses, pool: PoolId) -> CutId {
    through(map, statuses, pool, |told| told.cut_through)
}

/// The lowest number that groups of a pool say.
fn through(map: &ClusterMap, statuses: &Statuses, pool: PoolId, says: impl Fn(&PgStatus) -> CutId) -> CutId {
    let of_group = |(pg, config): (PgId, &PgConfig)| {
        let told = statuses.get(&config.primary).and_then(|status| status.pgs.get(&pg));
        let told = told.filter(|told| told.state == PgState::Active && told.epoch == config.epoch);
        told.map_or(CutId(0), &says)
    };
    map.pgs_of(pool).map(of_group).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{PoolInfo, VolumeInfo};
    use base::status::OsdStatus;
    use base::{Epoch, OsdId};
    use std::sync::Arc;

    const POOL: PoolId = PoolId(1);
    const EPOCH: Epoch = Epoch(7);
    const NONE: [u64; 0] = [];

    fn group(index: u32) -> PgId {
        PgId { pool: POOL, index }
    }

    /// A pool of two groups, each led by the OSD of its number, and volumes of it that were cut so.
    fn map(cuts: &[u64]) -> ClusterMap {
        let mut map = ClusterMap::default();
        map.pools.insert(POOL, PoolInfo { name: "p".into(), pg_count: 2, ..PoolInfo::default() });
        for index in 0..2 {
            let in_sync = vec![OsdId(index), OsdId(1 - index)];
            let config = PgConfig { epoch: EPOCH, primary: OsdId(index), in_sync, ..PgConfig::default() };
            map.pgs.insert(group(index), config);
        }
        for (number, cut) in (1..).zip(cuts) {
            let volume = VolumeInfo {
                name: format!("v{number}"),
                pool: POOL,
                bytes: 4096,
                cut: (*cut > 0).then_some(CutId(*cut)),
                ..VolumeInfo::default()
            };
            map.volumes.insert(VolumeId(number), volume);
        }
        map
    }

    fn active(cut_through: u64) -> PgStatus {
        PgStatus {
            epoch: EPOCH,
            state: PgState::Active,
            in_sync: vec![],
            objects: 0,
            recovery: None,
            cut_through: CutId(cut_through),
            flatten: Default::default(),
        }
    }

    /// What the OSDs say of the group that they lead.
    fn told(said: [Option<PgStatus>; 2]) -> Statuses {
        let status = |(osd, said): (u32, Option<PgStatus>)| {
            let pgs = said.map(|said| (group(osd), said)).into_iter().collect();
            (OsdId(osd), Arc::new(OsdStatus { pgs, ..OsdStatus::default() }))
        };
        (0..).zip(said).map(status).collect()
    }

    fn done(map: &ClusterMap, said: [Option<PgStatus>; 2]) -> Vec<u64> {
        cuts_done(map, &told(said)).into_iter().map(|(volume, _)| volume.0).collect()
    }

    #[test]
    fn a_cut_is_done_when_all_groups_say_so() {
        let map = map(&[5, 0, 8]);
        assert_eq!(done(&map, [None, None]), NONE);
        assert_eq!(done(&map, [Some(active(8)), None]), NONE, "one says nothing");
        assert_eq!(done(&map, [Some(active(8)), Some(active(0))]), NONE);
        assert_eq!(done(&map, [Some(active(8)), Some(active(5))]), [1]);
        assert_eq!(done(&map, [Some(active(9)), Some(active(8))]), [1, 3]);
        let cuts = cuts_done(&map, &told([Some(active(5)), Some(active(7))]));
        assert_eq!(cuts, [(VolumeId(1), CutId(5))], "with the number by which it was decided");
    }

    #[test]
    fn a_word_counts_in_the_very_epoch_of_the_map_from_its_primary_while_it_serves() {
        let mut map = map(&[5]);
        let all = || Some(active(5));
        assert_eq!(done(&map, [all(), all()]), [1]);
        for epoch in [Epoch(6), Epoch(8)] {
            assert_eq!(done(&map, [all(), Some(PgStatus { epoch, ..active(5) })]), NONE, "{epoch}");
        }
        let state = PgState::Waiting { reason: "it takes no writes".into() };
        assert_eq!(done(&map, [Some(PgStatus { state, ..active(5) }), all()]), NONE);
        // Another OSD leads it now, and says nothing.
        map.pgs.get_mut(&group(1)).unwrap().primary = OsdId(0);
        assert_eq!(done(&map, [all(), all()]), NONE);
    }

    #[test]
    fn a_half_that_was_split_off_has_a_word_of_its_own_and_another_pool_has_none() {
        let mut map = map(&[5]);
        let child = group(0).child(2);
        map.pgs.insert(child, map.pgs[&group(0)].clone());
        let mut statuses = told([Some(active(5)), Some(active(5))]);
        assert_eq!(cuts_done(&map, &statuses), []);
        let parent = Arc::make_mut(statuses.get_mut(&OsdId(0)).unwrap());
        parent.pgs.insert(child, active(5));
        assert_eq!(cuts_done(&map, &statuses), [(VolumeId(1), CutId(5))]);
        map.volumes.get_mut(&VolumeId(1)).unwrap().pool = PoolId(2);
        assert_eq!(cuts_done(&map, &statuses), [], "nothing is known of that pool");
    }
}
