//! Who may write to a volume: one client, or several that share it knowingly.

use super::confined::{Bearer, HOLDERS_MAX};
use super::errand::{Errand, Outcome};
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, encode, keys};
use crate::interface::{LeaseId, Operation, Txn};
use base::map::VolumeInfo;
use base::{ClientId, Generation, VolumeId};
use serde::{Deserialize, Serialize};

/// An attached client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRecord {
    /// The client.
    pub client: ClientId,
    /// It agreed to share the volume.
    pub shared: bool,
    /// The generation it was given.
    pub generation: Generation,
    /// Who it is, for people: process and host.
    pub description: String,
    /// By whose key it was attached, where a node did it: see [`super::ConfinedRegistry`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// What an attached client works with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The volume.
    pub id: VolumeId,
    /// Its description, the new generation included.
    pub info: VolumeInfo,
    /// The generation that every request bears.
    pub generation: Generation,
    /// Who had it before and may still be served: the lease ended, without a word that nothing is under way. Every
    /// OSD that might serve them must know of this generation before the volume is used; then say
    /// [`Cluster::fenced`].
    pub unfenced: Vec<AttachRecord>,
}

/// A transaction of a client that came with a key: only while that may still do what it may.
fn by(bearer: Option<&Bearer>, txn: Txn) -> Txn {
    match bearer {
        Some(bearer) => txn.when(bearer.unchanged.clone()),
        None => txn,
    }
}

impl Cluster {
    /// Attaches a volume for as long as the lease lives. An exclusive attach raises the generation, which
    /// fences whoever had it before, and so does a shared one that follows an exclusive one which did not end well; else
    /// it works under the present generation, beside other shared ones. A client that attaches again replaces its own
    /// attachment.
    ///
    /// # Errors
    /// [`ClusterError::Attached`] with the holder; [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn attach(
        &self,
        volume: &str,
        client: ClientId,
        lease: LeaseId,
        shared: bool,
        description: String,
    ) -> Result<Attachment> {
        let (name, said) = (volume.to_owned(), description.clone());
        let errand = Errand::Attach { volume: name, client, lease, shared, description: said };
        if let Some(outcome) = self.registry.run_errand(errand).await? {
            return outcome.expect(|outcome| match outcome {
                Outcome::Attached(attachment) => Some(attachment),
                _ => None,
            });
        }
        self.attach_by(None, volume, client, lease, shared, description).await
    }

    /// The same, for a client that came with a key, if that may.
    pub(super) async fn attach_by(
        &self,
        bearer: Option<&Bearer>,
        volume: &str,
        client: ClientId,
        lease: LeaseId,
        shared: bool,
        description: String,
    ) -> Result<Attachment> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, mut info) = self.find_volume(volume).await?;
            // Read before the attachments are: one that is made afterwards changes it.
            let guard: Read<ClientId> = self.read(&keys::attach_guard(id)).await?;
            let attached = self.attachments_here(id).await?;
            let holders = self.holders(id).await?;
            if let Some(bearer) = bearer {
                bearer.may_attach(&info, shared)?;
                bearer.check_own(attached.iter().chain(&holders).filter(|record| record.client == client))?;
                bearer.check_room(&info.name, &holders, client, shared)?;
            }
            let mut others = attached.iter().filter(|holder| holder.client != client);
            if let Some(holder) = others.find(|holder| !shared || !holder.shared) {
                let next = match (shared, holder.shared) {
                    (false, true) => "detach it there, or attach it with --shared here too",
                    (false, false) => "detach it there, or wait a few seconds if that process is dead",
                    _ => "it is not shared there: detach it, or attach it with --shared there too",
                };
                return Err(ClusterError::Attached {
                    name: volume.to_owned(),
                    holder: holder.description.clone(),
                    next,
                });
            }
            let gone = holders.into_iter().filter(|old| {
                old.client != client && !attached.iter().any(|holder| holder.client == old.client)
            });
            let gone: Vec<AttachRecord> = gone.collect();
            // Who shares it bears with others who shared it, not with one who had it alone.
            let is_raised =
                !shared || gone.iter().any(|old| !old.shared && old.generation == info.generation);
            if is_raised {
                info.generation = Generation(info.generation.0 + 1);
            }
            let must_fence = gone.iter().any(|old| !shared || !old.shared);
            if let Some(bearer) = bearer
                && (is_raised || must_fence)
            {
                bearer.may_fence(&info)?;
            }
            let unfenced =
                gone.into_iter().filter(|old| must_fence && old.generation < info.generation).collect();
            let generation = info.generation;
            let description = description.clone();
            let principal = bearer.map(|bearer| bearer.name.clone());
            let record = AttachRecord { client, shared, generation, description, principal };
            let mut txn = Txn::new()
                .when(read.unchanged())
                .when(guard.unchanged())
                .then(Operation::put(&guard.key, encode(&client)))
                .then(Operation::put(keys::holder(id, client), encode(&record)))
                .then(Operation::put_leased(keys::attached(id, client), encode(&record), lease));
            if is_raised {
                txn = txn.then(Operation::put(&read.key, encode(&info)));
            }
            if self.commit(by(bearer, txn)).await? {
                return Ok(Attachment { id, info, generation, unfenced });
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {volume}") })
    }

    /// Goes on with an attachment whose lease ended, under another lease, if nobody attached the volume meanwhile who bears
    /// with no other. Says whether: if not, whoever did may be served already.
    ///
    /// # Errors
    /// Those of the registry; then it is not known whether it goes on, and it may be asked again.
    pub async fn resume(
        &self,
        volume: VolumeId,
        client: ClientId,
        generation: Generation,
        lease: LeaseId,
    ) -> Result<bool> {
        let errand = Errand::Resume { volume, client, generation, lease };
        if let Some(outcome) = self.registry.run_errand(errand).await? {
            return outcome.expect(|outcome| match outcome {
                Outcome::Resumed(goes_on) => Some(goes_on),
                _ => None,
            });
        }
        self.resume_by(None, volume, client, generation, lease).await
    }

    /// The same, for a client that came with a key, if that may.
    pub(super) async fn resume_by(
        &self,
        bearer: Option<&Bearer>,
        volume: VolumeId,
        client: ClientId,
        generation: Generation,
        lease: LeaseId,
    ) -> Result<bool> {
        for _ in 0..ATTEMPTS_MAX {
            let info: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let guard: Read<ClientId> = self.read(&keys::attach_guard(volume)).await?;
            let held: Read<AttachRecord> = self.read(&keys::holder(volume, client)).await?;
            let is_as_it_was =
                info.value.as_ref().is_some_and(|info| !info.removed && info.generation == generation);
            let (true, Some(record), Some(known)) = (is_as_it_was, &held.value, &info.value) else {
                return Ok(false);
            };
            if let Some(bearer) = bearer {
                bearer.check_own([record])?;
                bearer.may_attach(known, record.shared)?;
            }
            let txn = Txn::new()
                .when(info.unchanged())
                .when(held.unchanged())
                // Who attaches at this moment and saw nobody looks again.
                .when(guard.unchanged())
                .then(Operation::put(&guard.key, encode(&client)))
                .then(Operation::put_leased(keys::attached(volume, client), encode(record), lease));
            if self.commit(by(bearer, txn)).await? {
                return Ok(true);
            }
        }
        Err(ClusterError::Contended { what: volume.to_string() })
    }

    /// Ends a client's attachment, if it has one. Only who has nothing under way may say so: whoever attaches next relies
    /// on it.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn detach(&self, volume: VolumeId, client: ClientId) -> Result<()> {
        if let Some(outcome) = self.registry.run_errand(Errand::Detach { volume, client }).await? {
            return outcome.expect(|outcome| (outcome == Outcome::Done).then_some(()));
        }
        self.registry.delete(&keys::attached(volume, client)).await?;
        self.registry.delete(&keys::holder(volume, client)).await?;
        Ok(())
    }

    /// The same, for a client that came with a key, whose attachment it must be.
    pub(super) async fn detach_by(&self, bearer: &Bearer, volume: VolumeId, client: ClientId) -> Result<()> {
        for key in [keys::attached(volume, client), keys::holder(volume, client)] {
            let read: Read<AttachRecord> = self.read(&key).await?;
            bearer.check_own(&read.value)?;
            let txn = Txn::new().when(read.unchanged()).then(Operation::delete(&key));
            // Changed meanwhile, it is not what was to end.
            self.registry.txn(by(Some(bearer), txn)).await?;
        }
        Ok(())
    }

    /// Notes that nobody serves these any more who had a volume before: see [`Attachment::unfenced`].
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn fenced(&self, volume: VolumeId, old: &[AttachRecord]) -> Result<()> {
        if let Some(outcome) = self.registry.run_errand(Errand::Fenced { volume, old: old.to_vec() }).await? {
            return outcome.expect(|outcome| (outcome == Outcome::Done).then_some(()));
        }
        self.delete_all(old.iter().map(|old| keys::holder(volume, old.client))).await
    }

    /// The same, for a client that came with a key, if that may have others fenced.
    pub(super) async fn fenced_by(
        &self,
        bearer: &Bearer,
        volume: VolumeId,
        old: &[AttachRecord],
    ) -> Result<()> {
        let info: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
        let Some(info) = info.value else { return Ok(()) };
        bearer.may_fence(&info)?;
        for old in old.iter().take(HOLDERS_MAX) {
            let key = keys::holder(volume, old.client);
            let read: Read<AttachRecord> = self.read(&key).await?;
            // Of one who attached again there is more to say.
            if read.value.as_ref() == Some(old) {
                let txn = Txn::new().when(read.unchanged()).then(Operation::delete(&key));
                self.registry.txn(by(Some(bearer), txn)).await?;
            }
        }
        Ok(())
    }

    /// Who attached a volume and neither detached with nothing under way nor was fenced.
    pub(super) async fn holders(&self, volume: VolumeId) -> Result<Vec<AttachRecord>> {
        let records = self.read_all(&keys::holders_of(volume)).await?;
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }

    /// The attached clients whose leases live.
    ///
    /// # Errors
    /// Those of the registry, or a record that cannot be read.
    pub async fn attachments(&self, volume: VolumeId) -> Result<Vec<AttachRecord>> {
        if let Some(outcome) = self.registry.run_errand(Errand::Attachments { volume }).await? {
            return outcome.expect(|outcome| match outcome {
                Outcome::Attachments(records) => Some(records),
                _ => None,
            });
        }
        self.attachments_here(volume).await
    }

    pub(super) async fn attachments_here(&self, volume: VolumeId) -> Result<Vec<AttachRecord>> {
        let records = self.read_all(&keys::attached_to(volume)).await?;
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }
}
