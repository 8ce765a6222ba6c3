//! Where the replicas of placement groups shall lie.

use super::{Cluster, Result, encode, keys};
use base::map::Admission;
use base::{OsdId, PgId, PoolId};
use registry::{Compare, OPERATIONS_PER_TXN_MAX, Operation, Txn};
use std::collections::{BTreeMap, BTreeSet};

/// A new target of a placement group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetChange {
    /// The group.
    pub pg: PgId,
    /// The target that this was decided by, if there was one.
    pub before: Option<Vec<OsdId>>,
    /// The OSDs that shall hold the group, the preferred primary first.
    pub target: Vec<OsdId>,
}

impl TargetChange {
    fn newcomers(&self) -> impl Iterator<Item = OsdId> {
        self.target.iter().copied().filter(|osd| !self.before.as_ref().is_some_and(|one| one.contains(osd)))
    }
}

impl Cluster {
    /// Writes new targets: each if its pool is there, its old target is unchanged, and all OSDs that are new
    /// in it are in. Says whether all were written; if not, look again. They are written in as few
    /// transactions as their number allows, each of them whole or not at all.
    ///
    /// # Errors
    /// Those of the registry, or an OSD's record that cannot be read.
    pub async fn change_targets(&self, changes: &[TargetChange]) -> Result<bool> {
        let admitted = self.admitted(changes.iter().flat_map(TargetChange::newcomers).collect()).await?;
        let is_admitted = |change: &&TargetChange| change.newcomers().all(|osd| admitted.contains_key(&osd));
        let possible: Vec<&TargetChange> = changes.iter().filter(is_admitted).collect();
        let mut all = possible.len() == changes.len();
        for batch in batches(&possible) {
            let pools: BTreeSet<PoolId> = batch.iter().map(|change| change.pg.pool).collect();
            let newcomers: BTreeSet<OsdId> = batch.iter().flat_map(|change| change.newcomers()).collect();
            let there = pools.into_iter().map(|pool| Compare::Exists(keys::pool(pool)));
            let compares = there.chain(newcomers.iter().map(|osd| admitted[osd].clone()));
            let mut txn = compares.fold(Txn::new(), Txn::when);
            for change in batch {
                let key = keys::target(change.pg);
                txn = txn.then(Operation::put(&key, encode(&change.target))).when(match &change.before {
                    Some(before) => Compare::Value(key, encode(before)),
                    None => Compare::Absent(key),
                });
            }
            all &= self.commit(txn).await?;
        }
        Ok(all)
    }

    /// Those of the OSDs that are in, each with the condition that it still is as it was read.
    async fn admitted(&self, osds: BTreeSet<OsdId>) -> Result<BTreeMap<OsdId, Compare>> {
        let mut admitted = BTreeMap::new();
        for osd in osds {
            let read: super::Read<super::osds::OsdRecord> = self.read(&keys::osd(osd)).await?;
            if read.value.as_ref().is_some_and(|record| record.admission == Admission::In) {
                admitted.insert(osd, read.unchanged());
            }
        }
        Ok(admitted)
    }
}

/// Cuts the changes into as many as one transaction can have conditions for: a target each, its pool, its newcomers, and
/// the cluster.
fn batches<'a>(changes: &'a [&'a TargetChange]) -> Vec<&'a [&'a TargetChange]> {
    let mut batches = Vec::new();
    let (mut start, mut pools, mut newcomers) = (0, BTreeSet::new(), BTreeSet::new());
    for (at, change) in changes.iter().enumerate() {
        pools.insert(change.pg.pool);
        newcomers.extend(change.newcomers());
        if at + 1 - start + pools.len() + newcomers.len() >= OPERATIONS_PER_TXN_MAX {
            batches.push(&changes[start..at]);
            start = at;
            pools = BTreeSet::from([change.pg.pool]);
            newcomers = change.newcomers().collect();
        }
    }
    if start < changes.len() {
        batches.push(&changes[start..]);
    }
    batches
}
