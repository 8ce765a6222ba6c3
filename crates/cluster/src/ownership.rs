//! Volumes that are opened, and owned from the first change on: asked for, given up, and got in turn.
//!
//! Whoever owns such a volume has it attached alone, as anybody who attaches it, but by a record that says that it *yields*. Another
//! who opened it and has something to change notes a *wish*, which the map shows to everybody. The owner begins no more changes,
//! waits until all that it began have ended, and gives the volume up: its records go, so nobody needs to fence it, and the
//! oldest wish is granted by the same transaction. Whoever has that owns the volume next; the others come after it, in the order in
//! which they asked.
//!
//! A wish ends with the lease of whoever has it, so that nobody waits for the dead; and an owner whose lease ends without a word is
//! fenced, as any other. One that lives and does not give it up is waited for.

use super::clerk::Bearer;
use super::question::{Attach, GiveUp, Own};
use super::{ATTEMPTS_MAX, AttachRecord, Attachment, Cluster, ClusterError, Read, Result, by, encode, keys};
use base::map::{VolumeInfo, Wish, WishId};
use base::{ClientId, VolumeId};
use registry::{Compare, KeyValue, LeaseId, Operation, Txn};
use serde::{Deserialize, Serialize};

/// Wishes for one volume, at most: each is shown to everybody. Who comes when there are as many asks again.
const WISHES_MAX: usize = 64;

/// What came of asking to own a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owning {
    /// It is attached.
    Owned(Box<Attachment>),
    /// Somebody owns it who gives it up, or is served before, or the map that shows what it is now is on its way: ask again when the
    /// map shows that the wish is granted, or after a while.
    Awaited {
        /// Who has it, if somebody has.
        holder: Option<String>,
    },
    /// Somebody has it and does not give it up. Nothing is wished any more.
    Kept {
        /// Who.
        holder: String,
    },
}

impl Cluster {
    /// Has a client own a volume that it opened, or notes its wish.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchVolume`]; [`registry::RegistryError::Forbidden`]; those of the registry.
    pub(super) async fn own_by(&self, bearer: Option<&Bearer>, asked: Own) -> Result<Owning> {
        let Own { volume, client, lease, description, wish, generation, keeps } = asked;
        let own_key = keys::wish(volume, wish);
        for _ in 0..ATTEMPTS_MAX {
            let read: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let listed = read.value.as_ref().filter(|info| info.is_listed());
            let info = listed.ok_or_else(|| ClusterError::NoSuchVolume { name: volume.to_string() })?;
            if let Some(bearer) = bearer {
                bearer.may_attach(info, false)?;
            }
            let wishes = self.wishes(volume).await?;
            let own = wishes.iter().find(|entry| entry.key == own_key);
            // The map shows its name to everybody; whose it is the lease says.
            let is_anothers = own.is_some_and(|own| own.lease != Some(lease));
            // Who has it and heard no answer is before everybody: they wait for this one.
            let has_it = self.registry.get(&keys::attached(volume, client)).await?.is_some();
            let is_first = has_it || wishes.first().is_none_or(|first| first.key == own_key && !is_anothers);
            let holder = if !is_first {
                self.blocking(volume, client).await?.map(|holder| holder.description)
            } else if info.generation != generation {
                None
            } else {
                let attach = Attach {
                    volume: self.full_name(info).await?,
                    client,
                    lease,
                    shared: false,
                    description: description.clone(),
                    id: Some(volume),
                    knows_layers: true,
                    yields: !keeps,
                    renews: false,
                };
                let fulfilled = (!is_anothers).then_some(wish);
                match self.attach_for(bearer, attach, Some((fulfilled, generation))).await {
                    Ok(attached) => return Ok(Owning::Owned(Box::new(attached))),
                    // Whoever attached it may be gone again.
                    Err(ClusterError::Attached { .. }) => match self.blocking(volume, client).await? {
                        None => continue,
                        Some(holder) if !holder.yields => {
                            if !is_anothers {
                                self.registry.delete(&own_key).await?;
                            }
                            return Ok(Owning::Kept { holder: holder.description });
                        }
                        Some(holder) => Some(holder.description),
                    },
                    // It has another name by now.
                    Err(ClusterError::NoSuchVolume { .. }) => continue,
                    Err(ClusterError::Contended { .. }) => None,
                    Err(error) => return Err(error),
                }
            };
            // A question that comes late is that of one who may own it by now, and asks no more.
            if own.is_some() || wishes.len() >= WISHES_MAX || info.generation != generation {
                return Ok(Owning::Awaited { holder });
            }
            let is_granted = false;
            let put = Operation::put_leased(&own_key, encode(&Wish { is_granted }), lease);
            // Of a volume that goes meanwhile nothing is wished.
            let txn = Txn::new().when(read.unchanged()).when(Compare::unchanged(&own_key, own)).then(put);
            self.commit(by(bearer, txn)).await?;
            // It may have been given up before anybody knew of the wish.
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// Gives up what a client owns under that generation: with nothing under way. Whoever wished it first is granted that. What is not
    /// so any more is left as it is.
    ///
    /// # Errors
    /// [`registry::RegistryError::Forbidden`]; those of the registry.
    pub(super) async fn give_up_by(&self, bearer: Option<&Bearer>, asked: &GiveUp) -> Result<()> {
        let &GiveUp { volume, client, generation } = asked;
        for _ in 0..ATTEMPTS_MAX {
            let attached: Read<AttachRecord> = self.read(&keys::attached(volume, client)).await?;
            let held: Read<AttachRecord> = self.read(&keys::holder(volume, client)).await?;
            let records = || attached.value.iter().chain(&held.value);
            if let Some(bearer) = bearer {
                bearer.check_own(records())?;
            }
            if records().next().is_none() || records().any(|record| record.generation != generation) {
                return Ok(());
            }
            let mut txn = Txn::new();
            for read in [&attached, &held] {
                txn = txn.when(read.unchanged()).then(Operation::delete(&read.key));
            }
            if let Some(first) = self.wishes(volume).await?.first()
                && let Some(lease) = first.lease
            {
                let granted = encode(&Wish { is_granted: true });
                txn = txn
                    .when(Compare::unchanged(&first.key, Some(first)))
                    .then(Operation::put_leased(&first.key, granted, lease));
            }
            if self.commit(by(bearer, txn)).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// A client wishes no more to own a volume, if it did under that lease.
    ///
    /// # Errors
    /// Those of the registry.
    pub(super) async fn wish_no_more(&self, volume: VolumeId, wish: WishId, lease: LeaseId) -> Result<()> {
        let key = keys::wish(volume, wish);
        let entry = self.registry.get(&key).await?;
        if let Some(entry) = entry.filter(|entry| entry.lease == Some(lease)) {
            let txn = Txn::new().when(Compare::unchanged(&key, Some(&entry))).then(Operation::delete(&key));
            self.registry.txn(txn).await?;
        }
        Ok(())
    }

    /// The wishes to own a volume, the oldest first.
    async fn wishes(&self, volume: VolumeId) -> Result<Vec<KeyValue>> {
        let mut entries = self.registry.range(&keys::wishes_of(volume)).await?.entries;
        entries.sort_by_key(|entry| entry.create_revision);
        Ok(entries)
    }

    /// Another client that has a volume attached: one that keeps it, if there is such a one.
    async fn blocking(&self, volume: VolumeId, client: ClientId) -> Result<Option<AttachRecord>> {
        let mut others = self.attachments(volume).await?;
        others.retain(|record| record.client != client);
        let keeps = others.iter().position(|record| !record.yields).unwrap_or(0);
        Ok(others.into_iter().nth(keeps))
    }
}

#[cfg(test)]
mod tests;
