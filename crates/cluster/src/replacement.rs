//! An OSD whose drive is lost goes on, under its number, on another drive that is blank.
//!
//! What counts on an OSD is its number: who has it in sync takes it to hold every acknowledged write. So a blank drive may
//! have it only while no configuration has it in sync, and none may come to have it so by what the drive before it had:
//! - Whoever becomes in sync is named by what it is formatted as, too ([`Cluster::claim_pg`]). A claim that was decided before
//!   the replacement and comes after it fails.
//! - It writes `joined`, which is a condition of the replacement. A claim that comes between the look and the transaction has
//!   that fail.
//! - A process that still runs what was formatted before cannot say that it is up ([`Cluster::osd_up_as`]).

use super::osds::{OsdRecord, OsdUp, so_many_of};
use super::{Cluster, ClusterError, Read, Result, encode, keys};
use base::map::{Admission, DeviceClass, PgConfig};
use base::{Epoch, NodeId, OsdId, OsdUuid, PgId};
use registry::{Compare, Operation, Txn};
use std::collections::BTreeSet;

/// Groups that begin anew in one transaction: it has room for that many, and for what else changes.
const ANEW_AT_ONCE: usize = 100;

/// A drive that takes the place of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// As what it is formatted when its OSD starts. Nothing was ever formatted so.
    pub uuid: OsdUuid,
    /// Where it is.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// What kind of drive it is.
    pub class: DeviceClass,
}

/// An OSD that belongs on a drive, as far as the cluster knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotOsd {
    /// The OSD.
    pub osd: OsdId,
    /// As what it is formatted.
    pub uuid: OsdUuid,
    /// It never came up so: its drive may be blank, and is formatted then.
    pub is_new: bool,
}

impl Cluster {
    /// The OSD of a node whose drive was at that path when it was started last, or is to be there.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn osd_at(&self, node: NodeId, path: &str) -> Result<Option<SlotOsd>> {
        for (osd, _) in self.drives().await?.into_iter().filter(|(_, drive)| drive == path) {
            let read: Read<OsdRecord> = self.read(&keys::osd(osd)).await?;
            if let Some(OsdRecord { uuid, is_new, .. }) = read.value.filter(|record| record.node == node) {
                return Ok(Some(SlotOsd { osd, uuid, is_new }));
            }
        }
        Ok(None)
    }

    /// Puts an OSD that is down on another drive, which is blank, together with what `along` does under its own
    /// conditions; it is in from then on. False if something that this was decided by has changed: look again.
    ///
    /// Groups that `lost` names and that nobody else is in sync in begin anew, with nothing: what was acknowledged of them
    /// is given up. Each begins another [history](base::History): whoever was a member before may come back.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchOsd`], [`ClusterError::OsdUp`], [`ClusterError::OsdInSync`]; [`ClusterError::PgInvalid`] for a
    /// group that was given up too often; those of the registry.
    pub async fn replace_osd(
        &self,
        id: OsdId,
        replacement: &Replacement,
        lost: &BTreeSet<PgId>,
        along: Txn,
    ) -> Result<bool> {
        let (read, record) = self.osd_record(id).await?;
        let up: Read<OsdUp> = self.read(&keys::up(id)).await?;
        if up.value.is_some() {
            return Err(ClusterError::OsdUp { osd: id });
        }
        // Read before the configurations are.
        let joined: Read<PgId> = self.read(&keys::joined(id)).await?;
        let map = self.map().await?;
        let is_given_up = |pg: &PgId, in_sync: &[OsdId]| lost.contains(pg) && *in_sync == [id];
        let counting = map.pgs.iter().filter(|(_, config)| config.in_sync.contains(&id));
        let counting = counting.filter(|(pg, config)| !is_given_up(pg, &config.in_sync));
        let counting: Vec<PgId> = counting.map(|(pg, _)| *pg).collect();
        if let Some(example) = counting.first() {
            let what = so_many_of(counting.len(), map.pgs.len(), *example);
            return Err(ClusterError::OsdInSync { osd: id, what });
        }
        // As long as it is down nobody else becomes in sync in these, but by a claim that was under way before.
        let mut anew = Vec::new();
        for pg in lost {
            let read: Read<PgConfig> = self.read(&keys::pg(*pg)).await?;
            let Some(present) = read.value.as_ref().filter(|config| config.in_sync.contains(&id)) else {
                continue;
            };
            // Somebody else has what was to be given up.
            if present.in_sync != [id] {
                return Ok(false);
            }
            let (pg, expected) = (*pg, present.epoch);
            let too_often = ClusterError::PgInvalid { pg, expected, reason: "it was given up too often" };
            let history = present.history.next().ok_or(too_often)?;
            let next = PgConfig { epoch: Epoch(expected.0 + 1), history, ..present.clone() };
            anew.push((read.unchanged(), Operation::put(&read.key, encode(&next))));
        }
        let conditions = [read.unchanged(), up.unchanged(), joined.unchanged()];
        let undisturbed = |txn: Txn| conditions.iter().cloned().fold(txn, Txn::when);
        let begin = |txn: Txn, groups: Vec<(Compare, Operation)>| {
            groups.into_iter().fold(txn, |txn, (is_unchanged, put)| txn.when(is_unchanged).then(put))
        };
        // Should it come to nothing behind the first of these, they go on with what they have, in another history.
        while anew.len() > ANEW_AT_ONCE {
            let some = anew.split_off(anew.len() - ANEW_AT_ONCE);
            if !self.commit(begin(undisturbed(Txn::new()), some)).await? {
                return Ok(false);
            }
        }
        let now = OsdRecord {
            uuid: replacement.uuid,
            bytes: replacement.bytes,
            found_class: replacement.class,
            admission: Admission::In,
            is_new: true,
            ..record.clone()
        };
        let txn = begin(undisturbed(along), anew)
            .then(Operation::put(keys::osd(id), encode(&now)))
            .then(Operation::delete(keys::uuid(record.uuid)))
            .then(Operation::put(keys::uuid(replacement.uuid), encode(&id)))
            .then(Operation::put(keys::drive(id), encode(&replacement.path)));
        self.commit(txn).await
    }
}
