//! What a client asks of a cluster. It asks a [`Clerk`], its own or that of a node: who may ask what is decided there.

use super::{
    AttachRecord, Attachment, Changed, Clerk, GroupRecord, HttpRecord, LockRecord, ManagerRecord, Owning,
    Read, Result, SpaceRecord, VolumeChange, WatchMode, WatchRecord, keys,
};
use base::map::{Stillness, VolumeInfo, WishId};
use base::{ClientId, ClusterId, Generation, OsdId, PublicKey, VolumeId};
use registry::LeaseId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// One kind of question, with what it is about.
pub trait Question: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What it is answered with.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
    /// Its name, where it is sent.
    const NAME: &'static str;
    /// Whether asking twice is as good as once.
    const IS_REPEATABLE: bool = true;
    /// About how many requests of the registry answering it takes.
    const COST: u32 = 1;
    /// Whether what a client has depends on it, so that it must not wait for other questions.
    const IS_SIGN_OF_LIFE: bool = false;

    /// The answer.
    ///
    /// # Errors
    /// Why there is none.
    fn answer(self, clerk: &Clerk) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Declares questions: what each is about, its name and its answer, how it differs from others, and how a clerk answers it.
macro_rules! questions {
    ($(
        $(#[$attribute:meta])*
        $question:ident { $($(#[$of_field:meta])* $field:ident: $kind:ty),* }
        $name:literal -> $answer:ty, $(const $constant:ident: $type:ty = $value:expr;)* |$clerk:ident| $body:block
    )*) => {$(
        $(#[$attribute])*
        #[allow(missing_docs, reason = "the operations of `Cluster` say what the fields are")]
        #[derive(Debug, Serialize, Deserialize)]
        pub struct $question { $($(#[$of_field])* pub $field: $kind),* }

        impl Question for $question {
            type Answer = $answer;
            const NAME: &'static str = $name;
            $(const $constant: $type = $value;)*

            async fn answer(self, $clerk: &Clerk) -> Result<$answer> {
                let $question { $($field),* } = self;
                $body
            }
        }
    )*};
}

questions! {
    /// Which cluster it is.
    Identify {}
    "identify" -> ClusterId, |clerk| { clerk.cluster.id().await }

    /// For a lease. One whose answer is lost ends by itself.
    Grant { ttl: Duration }
    "grant" -> LeaseId, const COST: u32 = 2; |clerk| { clerk.grant(ttl).await }

    /// That a lease lives on.
    KeepAlive { lease: LeaseId }
    "keep-alive" -> (), const IS_SIGN_OF_LIFE: bool = true; |clerk| { clerk.keep_alive(lease).await }

    /// That a lease ends.
    Revoke { lease: LeaseId }
    "revoke" -> (), |clerk| { clerk.revoke(lease).await }

    /// [`Cluster::attach`](super::Cluster::attach); with an id, only if the name leads to that volume. Who does not know that volumes
    /// have layers gets none that has had a snapshot. Who `yields` gives it up by [`GiveUp`] when another has a wish for it. Who `renews`
    /// has it attached already, and gets it only if nobody else had it since.
    Attach {
        volume: String,
        client: ClientId,
        lease: LeaseId,
        shared: bool,
        description: String,
        id: Option<VolumeId>,
        #[serde(default)] knows_layers: bool,
        #[serde(default)] yields: bool,
        #[serde(default)] renews: bool
    }
    "attach" -> Attachment, const COST: u32 = 10; const IS_REPEATABLE: bool = false; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.check_description(&description)?;
        clerk.check_lease(lease).await?;
        let asked = Attach { volume, client, lease, shared, description, id, knows_layers, yields, renews };
        let mut attached = clerk.cluster.attach_by(bearer.as_ref(), asked).await?;
        clerk.mask(&mut attached.unfenced);
        Ok(attached)
    }

    /// That an attachment whose lease ended goes on under another one. Answers whether it does: not if somebody attached the
    /// volume meanwhile who bears with no other.
    Resume { volume: VolumeId, client: ClientId, generation: Generation, lease: LeaseId }
    "resume" -> bool, const COST: u32 = 10; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.check_lease(lease).await?;
        clerk.cluster.resume_by(bearer.as_ref(), &Resume { volume, client, generation, lease }).await
    }

    /// [`Cluster::detach`](super::Cluster::detach).
    Detach { volume: VolumeId, client: ClientId }
    "detach" -> (), const COST: u32 = 10; |clerk| {
        match clerk.bearer().await? {
            Some(bearer) => clerk.cluster.detach_by(&bearer, volume, client).await,
            None => clerk.cluster.detach(volume, client).await,
        }
    }

    /// [`Cluster::fenced`](super::Cluster::fenced).
    Fenced { volume: VolumeId, client: ClientId, generation: Generation }
    "fenced" -> (), const COST: u32 = 10; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.cluster.fenced_by(bearer.as_ref(), &Fenced { volume, client, generation }).await
    }

    /// To be listed among those who have a volume open, for as long as the lease lives: [`Cluster::watchers`](super::Cluster::watchers).
    Open {
        volume: VolumeId,
        client: ClientId,
        lease: LeaseId,
        mode: WatchMode,
        description: String,
        since_unix_seconds: u64
    }
    "open" -> (), const COST: u32 = 5; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.check_description(&description)?;
        clerk.check_lease(lease).await?;
        let asked = Open { volume, client, lease, mode, description, since_unix_seconds };
        clerk.cluster.watch_by(bearer.as_ref(), asked).await
    }

    /// [`Cluster::watchers`](super::Cluster::watchers), without what one must know to speak as another.
    Watchers { volume: VolumeId }
    "watchers" -> Vec<WatchRecord>, const COST: u32 = 5; |clerk| {
        if !clerk.is_for_monitor() && let Some(bearer) = clerk.bearer().await? {
            let info: Read<VolumeInfo> = clerk.cluster.read(&keys::volume(volume)).await?;
            info.value.map_or(Ok(()), |info| bearer.permission(&info).map(drop))?;
        }
        let mut records = clerk.cluster.watchers(volume).await?;
        clerk.mask_watchers(&mut records);
        Ok(records)
    }

    /// To own a volume that was opened, for as long as nobody else who opened it wishes that: [`Owning`] says what comes of it. Asked
    /// under the generation that the asker's map shows. Who `keeps` it gives it to nobody who wishes it, until it gives it up by itself.
    Own {
        volume: VolumeId,
        client: ClientId,
        lease: LeaseId,
        description: String,
        wish: WishId,
        generation: Generation,
        #[serde(default)] keeps: bool
    }
    "own" -> Owning, const COST: u32 = 10; const IS_REPEATABLE: bool = false; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.check_description(&description)?;
        clerk.check_lease(lease).await?;
        let asked = Own { volume, client, lease, description, wish, generation, keeps };
        let mut owning = clerk.cluster.own_by(bearer.as_ref(), asked).await?;
        if let Owning::Owned(attached) = &mut owning {
            clerk.mask(&mut attached.unfenced);
        }
        Ok(owning)
    }

    /// That a client gives a volume up that it owns under that generation, with nothing under way: whoever wished it first gets it.
    GiveUp { volume: VolumeId, client: ClientId, generation: Generation }
    "give-up" -> (), const COST: u32 = 10; const IS_SIGN_OF_LIFE: bool = true; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.cluster.give_up_by(bearer.as_ref(), &GiveUp { volume, client, generation }).await
    }

    /// That a client wishes no more to own a volume that it asked for.
    WishNoMore { volume: VolumeId, wish: WishId, lease: LeaseId }
    "wish-no-more" -> (), const COST: u32 = 5; |clerk| {
        clerk.check_lease(lease).await?;
        clerk.cluster.wish_no_more(volume, wish, lease).await
    }

    /// [`Cluster::locks`](super::Cluster::locks).
    Locks { volume: String }
    "locks" -> Vec<LockRecord>, const COST: u32 = 5; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.cluster.locks_by(bearer.as_ref(), &volume).await
    }

    /// [`Cluster::lock`](super::Cluster::lock).
    Lock { volume: String, lock: LockRecord }
    "lock" -> (), const COST: u32 = 10; const IS_REPEATABLE: bool = false; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.check_description(&lock.description)?;
        clerk.cluster.lock_by(bearer.as_ref(), &volume, lock).await
    }

    /// [`Cluster::unlock`](super::Cluster::unlock).
    Unlock { volume: String, name: String, locker: String, cookie: String }
    "unlock" -> (), const COST: u32 = 10; const IS_REPEATABLE: bool = false; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.cluster.unlock_by(bearer.as_ref(), &volume, [&name, &locker, &cookie]).await
    }

    /// That a client which has a volume attached stands still, as the map asks it to.
    StandsStill { volume: VolumeId, client: ClientId, number: Stillness, lease: LeaseId }
    "stands-still" -> (), const COST: u32 = 2; const IS_SIGN_OF_LIFE: bool = true; |clerk| {
        let bearer = clerk.bearer().await?;
        clerk.check_lease(lease).await?;
        clerk.cluster.stands_still_by(bearer.as_ref(), &StandsStill { volume, client, number, lease }).await
    }

    /// [`Cluster::attachments`](super::Cluster::attachments), without what one must know to speak as another.
    Attachments { volume: VolumeId }
    "attachments" -> Vec<AttachRecord>, const COST: u32 = 10; |clerk| {
        // OSDs let in no key that is for asking how the cluster is.
        if clerk.is_for_monitor() {
            return clerk.cluster.attachments(volume).await;
        }
        if let Some(bearer) = clerk.bearer().await? {
            let info: Read<VolumeInfo> = clerk.cluster.read(&keys::volume(volume)).await?;
            info.value.map_or(Ok(()), |info| bearer.permission(&info).map(drop))?;
        }
        let mut records = clerk.cluster.attachments(volume).await?;
        clerk.mask(&mut records);
        Ok(records)
    }

    /// A change of volumes, where the key may change all of those that it is about.
    ChangeVolumes { change: VolumeChange }
    "change-volumes" -> Changed, const COST: u32 = 20; const IS_REPEATABLE: bool = false; |clerk| {
        clerk.managed().await?.change_volumes(change).await
    }

    /// [`Cluster::metadata`](super::Cluster::metadata), of a volume that the key may change.
    Metadata { volume: String }
    "metadata" -> BTreeMap<String, String>, const COST: u32 = 5; |clerk| {
        clerk.managed().await?.metadata(&volume).await
    }

    /// [`Cluster::place_metadata`](super::Cluster::place_metadata), of a place in which the key may change volumes.
    PlaceMetadata { place: String }
    "place-metadata" -> BTreeMap<String, String>, const COST: u32 = 5; |clerk| {
        clerk.managed().await?.place_metadata(&place).await
    }

    /// [`Cluster::groups`](super::Cluster::groups), of a place in which the key may change volumes.
    Groups { place: String }
    "groups" -> BTreeMap<String, GroupRecord>, const COST: u32 = 5; |clerk| {
        clerk.managed().await?.groups(&place).await
    }

    /// [`Cluster::space`](super::Cluster::space): every key sees it.
    Space {}
    "space" -> Option<SpaceRecord>, |clerk| { clerk.cluster.space().await }

    /// Who manages the cluster, and the key of that node.
    Manager {}
    "manager" -> Option<(ManagerRecord, Option<PublicKey>)>, const COST: u32 = 2; |clerk| {
        clerk.check_monitors()?;
        let Some(record) = clerk.cluster.manager().await? else { return Ok(None) };
        let key = clerk.cluster.key_of_node(record.node).await?;
        Ok(Some((record, key)))
    }

    /// [`Cluster::http_servers`](super::Cluster::http_servers).
    HttpServers {}
    "http-servers" -> Vec<HttpRecord>, |clerk| {
        clerk.check_monitors()?;
        clerk.cluster.http_servers().await
    }

    /// [`Cluster::drives`](super::Cluster::drives).
    Drives {}
    "drives" -> BTreeMap<OsdId, String>, |clerk| {
        clerk.check_monitors()?;
        clerk.cluster.drives().await
    }
}
