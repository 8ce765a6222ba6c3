//! Who may write to a volume: one client, or several that share it knowingly.

use super::clerk::Bearer;
use super::question::{Attach, Fenced, Resume};
use super::{ATTEMPTS_MAX, Cluster, ClusterError, Read, Result, decode, encode, keys};
use base::map::{VolumeInfo, WishId};
use base::{ClientId, Generation, VolumeId};
use registry::{Compare, LeaseId, Operation, Txn};
use serde::{Deserialize, Serialize};

/// Records that one transaction deletes, each with a condition.
const DELETIONS_AT_ONCE: usize = 60;

/// An attached client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRecord {
    /// The client.
    pub client: ClientId,
    /// It agreed to share the volume.
    pub shared: bool,
    /// The generation it was given.
    pub generation: Generation,
    /// It opened the volume and owns it for a while: it gives it up when another who opened it has something to change.
    #[serde(default, skip_serializing_if = "is_false")]
    pub yields: bool,
    /// Who it is, for people: process and host.
    pub description: String,
    /// By whose key it was attached, where a node did it: see [`super::Clerk`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(it: &bool) -> bool {
    !it
}

/// What an attached client works with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The volume.
    pub id: VolumeId,
    /// Who attached it.
    pub client: ClientId,
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
pub(super) fn by(bearer: Option<&Bearer>, txn: Txn) -> Txn {
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
        let volume = volume.to_owned();
        self.attach_by(
            None,
            Attach {
                volume,
                client,
                lease,
                shared,
                description,
                id: None,
                knows_layers: true,
                yields: false,
                renews: false,
            },
        )
        .await
    }

    /// The same, for a client that came with a key, if that may.
    pub(super) async fn attach_by(&self, bearer: Option<&Bearer>, asked: Attach) -> Result<Attachment> {
        self.attach_for(bearer, asked, None).await
    }

    /// The same. Where a wish is fulfilled, only if the volume has the generation that whoever wishes knows: who asks once more, since
    /// it heard no answer, does not have the first time done late. The wish goes with that.
    pub(super) async fn attach_for(
        &self,
        bearer: Option<&Bearer>,
        asked: Attach,
        wish: Option<(Option<WishId>, Generation)>,
    ) -> Result<Attachment> {
        let Attach { volume, client, lease, shared, description, id: expected, knows_layers, yields, renews } =
            asked;
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, mut info) = self.find_volume_by(bearer, &volume).await?;
            if expected.is_some_and(|expected| expected != id) {
                return Err(ClusterError::NoSuchVolume { name: volume });
            }
            if wish.is_some_and(|(_, known)| known != info.generation) {
                return Err(ClusterError::Contended { what: format!("the volume {volume}") });
            }
            // It would write to the layer that is the first snapshot, and look for a clone in other groups.
            if (info.head > 0 || id.is_clone()) && !knows_layers {
                return Err(ClusterError::HasLayers { volume });
            }
            // Read before the attachments are: one that is made afterwards changes it.
            let guard: Read<ClientId> = self.read(&keys::attach_guard(id)).await?;
            let attached = self.attachments(id).await?;
            let holders = self.holders(id).await?;
            // Whoever had it alone since then raised its generation.
            let is_own = |old: &AttachRecord| old.client == client && old.generation == info.generation;
            if renews && !holders.iter().any(is_own) {
                return Err(ClusterError::HadByOthers { volume });
            }
            if let Some(bearer) = bearer {
                bearer.may_attach(&info, shared)?;
                let own = || attached.iter().chain(&holders).filter(|record| record.client == client);
                bearer.check_own(own())?;
                // It was attached under rights that its key has no more.
                if own().any(|record| !record.shared) {
                    bearer.may_fence(&info)?;
                }
                bearer.check_room(&info.name, &holders, client, shared)?;
            }
            let mut others = attached.iter().filter(|holder| holder.client != client);
            if let Some(holder) = others.find(|holder| !shared || !holder.shared) {
                let next = match (shared, holder.shared) {
                    (false, true) => "detach it there, or attach it with --shared here too",
                    (false, false) if holder.yields => {
                        "it gives it up to who opens it, with --open; else detach it there"
                    }
                    (false, false) => "detach it there, or wait a few seconds if that process is dead",
                    _ => "it is not shared there: detach it, or attach it with --shared there too",
                };
                return Err(ClusterError::Attached {
                    name: volume,
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
            let record = AttachRecord { client, shared, generation, yields, description, principal };
            let mut txn = guard
                .replaced_by(&client)
                .when(read.unchanged())
                .then(Operation::put(keys::holder(id, client), encode(&record)))
                .then(Operation::put_leased(keys::attached(id, client), encode(&record), lease));
            if is_raised {
                txn = txn.then(Operation::put(&read.key, encode(&info)));
            }
            if let Some((Some(wish), _)) = wish {
                txn = txn.then(Operation::delete(keys::wish(id, wish)));
            }
            if self.commit(by(bearer, txn)).await? {
                return Ok(Attachment { id, client, info, generation, unfenced });
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {volume}") })
    }

    /// Goes on with an attachment whose lease ended, under another lease, if nobody attached the volume meanwhile who bears
    /// with no other, and the key may that the client came with. Says whether: if not, whoever did may be served already.
    ///
    /// # Errors
    /// Those of the registry; then it is not known whether it goes on, and it may be asked again.
    pub(super) async fn resume_by(&self, bearer: Option<&Bearer>, asked: &Resume) -> Result<bool> {
        let &Resume { volume, client, generation, lease } = asked;
        for _ in 0..ATTEMPTS_MAX {
            let info: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
            let guard: Read<ClientId> = self.read(&keys::attach_guard(volume)).await?;
            let held: Read<AttachRecord> = self.read(&keys::holder(volume, client)).await?;
            let known = info.value.as_ref().filter(|info| info.is_listed() && info.generation == generation);
            let (Some(known), Some(record)) = (known, &held.value) else { return Ok(false) };
            if let Some(bearer) = bearer {
                bearer.check_own([record])?;
                bearer.may_attach(known, record.shared)?;
            }
            // Who attaches at this moment and saw nobody looks again.
            let txn = guard
                .replaced_by(&client)
                .when(info.unchanged())
                .when(held.unchanged())
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
        self.registry.delete(&keys::attached(volume, client)).await?;
        self.registry.delete(&keys::holder(volume, client)).await?;
        Ok(())
    }

    /// The same, for a client that came with a key, whose attachment it must be.
    pub(super) async fn detach_by(&self, bearer: &Bearer, volume: VolumeId, client: ClientId) -> Result<()> {
        let info: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
        for key in [keys::attached(volume, client), keys::holder(volume, client)] {
            let read: Read<AttachRecord> = self.read(&key).await?;
            bearer.check_own(&read.value)?;
            // It was attached under rights that its key has no more.
            if let (Some(info), Some(AttachRecord { shared: false, .. })) = (&info.value, &read.value) {
                bearer.may_fence(info)?;
            }
            let txn = Txn::new().when(read.unchanged()).then(Operation::delete(&key));
            // Changed meanwhile, it is not what was to end.
            self.registry.txn(by(Some(bearer), txn)).await?;
        }
        Ok(())
    }

    /// Takes a volume away from those who have it attached under that generation, whatever they do with it: the next one has them
    /// fenced, as if their leases had ended. They learn of it by the map. Nobody has it attached so: nothing is done.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchVolume`]; those of the registry.
    pub async fn take_away(&self, volume: &str, generation: Generation) -> Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let (id, read, info) = self.find_volume(volume).await?;
            let attached = self.registry.range(&keys::attached_to(id)).await?.entries;
            if info.generation != generation || attached.is_empty() {
                return Ok(());
            }
            let next = VolumeInfo { generation: Generation(generation.0 + 1), ..info };
            let txn = attached.iter().take(DELETIONS_AT_ONCE).fold(read.replaced_by(&next), |txn, entry| {
                txn.when(Compare::unchanged(&entry.key, Some(entry))).then(Operation::delete(&entry.key))
            });
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(ClusterError::Contended { what: format!("the volume {volume}") })
    }

    /// Notes that nobody serves those any more who had a volume before: see [`Attachment::unfenced`].
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn fenced(&self, attachment: &Attachment) -> Result<()> {
        let &Attachment { id: volume, client, generation, .. } = attachment;
        self.fenced_by(None, &Fenced { volume, client, generation }).await
    }

    /// The same, for a client that came with a key, if that may have others fenced, and has the volume under that generation.
    pub(super) async fn fenced_by(&self, bearer: Option<&Bearer>, asked: &Fenced) -> Result<()> {
        let &Fenced { volume, client, generation } = asked;
        let info: Read<VolumeInfo> = self.read(&keys::volume(volume)).await?;
        let Some(info) = info.value else { return Ok(()) };
        bearer.map_or(Ok(()), |bearer| bearer.may_fence(&info))?;
        let attached = self.attachments(volume).await?;
        let entries = self.registry.range(&keys::holders_of(volume)).await?.entries;
        let mut deletions = Vec::new();
        let mut has_it = false;
        for entry in &entries {
            let record: AttachRecord = decode(&entry.key, &entry.value)?;
            if record.client == client {
                bearer.map_or(Ok(()), |bearer| bearer.check_own([&record]))?;
                has_it = record.generation == generation;
            } else if record.generation < generation
                && !attached.iter().any(|holder| holder.client == record.client)
            {
                deletions.push(entry);
            }
        }
        if bearer.is_some() && !has_it {
            return Err(ClusterError::Contended { what: format!("the volume {}", info.name) });
        }
        for some in deletions.chunks(DELETIONS_AT_ONCE) {
            let txn = some.iter().fold(Txn::new(), |txn, entry| {
                txn.when(Compare::unchanged(&entry.key, Some(*entry))).then(Operation::delete(&entry.key))
            });
            // One that changed meanwhile keeps the others of its batch: whoever attaches next has them fenced again.
            self.registry.txn(by(bearer, txn)).await?;
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
        let records = self.read_all(&keys::attached_to(volume)).await?;
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }
}
