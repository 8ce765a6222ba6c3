//! Whose word it takes that a volume is served to nobody any more who had it before. Why that is enough is told in
//! docs/protocol.md.

use base::map::{ClusterMap, PgConfig};
use base::{OsdId, PgId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// A fence that is being set up: one member in sync of each placement group of the volume's pool is to vouch for it. A group
/// that began another epoch since the first map knows by its primary's.
#[derive(Clone, Debug)]
pub struct Fencing {
    groups: BTreeMap<PgId, PgConfig>,
    vouching: BTreeSet<OsdId>,
}

impl Fencing {
    /// By a map that shows the new generation. `None` if it does not show the volume.
    #[must_use]
    pub fn new(map: &ClusterMap, volume: VolumeId) -> Option<Fencing> {
        let pool = map.volumes.get(&volume)?.pool;
        let groups = map.pgs.iter().filter(|(pg, _)| pg.pool == pool);
        let groups = groups.map(|(pg, config)| (*pg, config.clone())).collect();
        Some(Fencing { groups, vouching: BTreeSet::new() })
    }

    /// An OSD has answered the fence.
    pub fn vouches(&mut self, osd: OsdId) {
        self.vouching.insert(osd);
    }

    /// The members in sync of groups that may still serve under an older generation, by a later map. One of each would do;
    /// with none left the fence stands.
    #[must_use]
    pub fn open(&self, map: &ClusterMap) -> BTreeSet<OsdId> {
        let is_open = |(pg, config): &(&PgId, &PgConfig)| {
            map.pgs.get(pg).is_some_and(|now| now.epoch == config.epoch)
                && !config.in_sync.iter().any(|osd| self.vouching.contains(osd))
        };
        self.groups.iter().filter(is_open).flat_map(|(_, config)| config.in_sync.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::{PoolInfo, VolumeInfo};
    use base::{Epoch, Generation, PoolId};

    fn config(epoch: u32, in_sync: &[u32]) -> PgConfig {
        let in_sync: Vec<OsdId> = in_sync.iter().map(|osd| OsdId(*osd)).collect();
        PgConfig { epoch: Epoch(epoch), primary: in_sync[0], in_sync, ..PgConfig::default() }
    }

    #[test]
    fn one_member_of_each_group_vouches_or_the_group_began_another_epoch() {
        let mut map = ClusterMap { revision: 1, ..ClusterMap::default() };
        assert!(Fencing::new(&map, VolumeId(1)).is_none());
        for pool in [1, 2] {
            let info = PoolInfo {
                name: format!("p{pool}"),
                size: 2,
                min_size: 1,
                pg_count: 2,
                ..PoolInfo::default()
            };
            map.pools.insert(PoolId(pool), info);
            map.pgs.insert(PgId { pool: PoolId(pool), index: 0 }, config(3, &[0, 1]));
            map.pgs.insert(PgId { pool: PoolId(pool), index: 1 }, config(4, &[2, 1 + 2 * pool]));
        }
        let (name, generation) = ("v".to_owned(), Generation(2));
        let volume = VolumeInfo { name, pool: PoolId(1), bytes: 4096, generation, ..VolumeInfo::default() };
        map.volumes.insert(VolumeId(1), volume);
        let mut fencing = Fencing::new(&map, VolumeId(1)).unwrap();
        assert_eq!(fencing.open(&map), [0, 1, 2, 3].map(OsdId).into());
        fencing.vouches(OsdId(1));
        assert_eq!(fencing.open(&map), [2, 3].map(OsdId).into(), "group 0 has one");
        map.pgs.insert(PgId { pool: PoolId(1), index: 1 }, config(5, &[3]));
        assert!(fencing.open(&map).is_empty(), "group 1 began anew");
    }
}
