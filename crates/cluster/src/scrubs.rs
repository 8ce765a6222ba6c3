//! When placement groups were scrubbed, and which an operator wants scrubbed.

use super::{Cluster, Result, decode, encode, keys};
use base::PgId;
use registry::RegistryError;
use registry::{Compare, KeyValue, Operation, OperationResult, Registry, Txn};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The pause before wishes are watched again after the registry failed.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// When a group was scrubbed last, and what was found. Times are milliseconds since 1970 by the clock of the node
/// that did it: nothing but the schedule of scrubs is decided by them. 0 is never.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubRecord {
    /// When the last scrub began, light or deep.
    pub light_ms: u64,
    /// When the last deep scrub began.
    pub deep_ms: u64,
    /// Objects that the last one looked at.
    pub objects: u64,
    /// Bytes that the last one read of each member's drive.
    pub bytes: u64,
    /// Blocks that did not verify or differed, in the last one.
    pub found: u64,
    /// The same, in all since the group was made.
    pub found_ever: u64,
}

/// That an operator wants a group scrubbed. It stands until a scrub that began with it in view has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubWish {
    /// When it was wished, by the clock of whoever did: it tells one wish from another, and no clock is compared with it.
    pub at_ms: u64,
    /// Whether drives are to be read.
    pub deep: bool,
}

/// A scrub that has ended.
#[derive(Clone, Copy, Debug)]
pub struct ScrubResult {
    /// When it began, as in [`ScrubRecord`].
    pub began_ms: u64,
    /// Whether drives were read.
    pub deep: bool,
    /// Objects that it looked at.
    pub objects: u64,
    /// Bytes that it read of each member's drive.
    pub bytes: u64,
    /// Blocks that did not verify or differed.
    pub found: u64,
    /// What was wished when it began.
    pub wish: Option<ScrubWish>,
}

/// What is known of a group's scrubs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubState {
    /// When it was done.
    pub record: ScrubRecord,
    /// What is wished and was not fulfilled yet.
    pub wish: Option<ScrubWish>,
}

/// Tells when somebody wishes a scrub. A clone tells the same.
#[derive(Clone, Debug)]
pub struct ScrubWishes {
    changes: tokio::sync::watch::Receiver<()>,
}

impl ScrubWishes {
    /// Watches the wishes in `cluster`'s registry, by a task of its own for as long as this or a clone lives.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch(cluster: &Cluster) -> ScrubWishes {
        let (sender, changes) = tokio::sync::watch::channel(());
        let registry = cluster.registry.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = sender.closed() => return,
                    _ = follow(&*registry, &sender) => {}
                }
                // The registry is away, or forgot what this missed: a look at all of it makes up for that.
                sender.send_replace(());
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(RETRY_PAUSE) => {}
                }
            }
        });
        ScrubWishes { changes }
    }

    /// Waits for the next wish.
    pub async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // Its task ends only with the runtime.
            std::future::pending::<()>().await;
        }
    }
}

async fn follow(
    registry: &dyn Registry,
    sender: &tokio::sync::watch::Sender<()>,
) -> Result<(), RegistryError> {
    let revision = registry.range(keys::SCRUB_WISHES).await?.revision;
    let mut changes = registry.watch(keys::SCRUB_WISHES, revision.next()).await?;
    loop {
        changes.next().await?;
        sender.send_replace(());
    }
}

impl Cluster {
    /// Wishes groups to be scrubbed.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn wish_scrubs(&self, pgs: impl IntoIterator<Item = PgId>, wish: ScrubWish) -> Result<()> {
        let wishes = pgs.into_iter().map(|pg| Operation::put(keys::scrub_wish(pg), encode(&wish)));
        self.perform_all(wishes).await
    }

    /// Notes what a scrub of a group found, and that the wish it began with is fulfilled; a newer one stays. Only the
    /// group's primary does.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn scrub_done(&self, pg: PgId, result: &ScrubResult) -> Result<()> {
        let ScrubResult { began_ms, deep, objects, bytes, found, wish } = *result;
        let key = keys::scrub(pg);
        let before: ScrubRecord = self.read(&key).await?.value.unwrap_or_default();
        let record = ScrubRecord {
            light_ms: began_ms,
            deep_ms: if deep { began_ms } else { before.deep_ms },
            objects,
            bytes,
            found,
            found_ever: before.found_ever + found,
        };
        self.registry.txn(Txn::new().then(Operation::put(key, encode(&record)))).await?;
        if let Some(wish) = wish.filter(|wish| deep || !wish.deep) {
            let key = keys::scrub_wish(pg);
            let is_same = Compare::Value(key.clone(), encode(&wish));
            self.registry.txn(Txn::new().when(is_same).then(Operation::delete(key))).await?;
        }
        Ok(())
    }

    /// What is known of the scrubs of all groups; those without an entry were never scrubbed, and nobody wished it.
    ///
    /// # Errors
    /// Those of the registry, or an entry that cannot be read.
    pub async fn scrubs(&self) -> Result<BTreeMap<PgId, ScrubState>> {
        let mut states = BTreeMap::new();
        for prefix in [keys::SCRUBS, keys::SCRUB_WISHES] {
            for entry in self.registry.range(prefix).await?.entries {
                note(&mut states, &entry)?;
            }
        }
        Ok(states)
    }

    /// The same of some groups: what it costs grows with their number, not with that of all groups.
    ///
    /// # Errors
    /// As [`Self::scrubs`].
    pub async fn scrubs_of(&self, pgs: &[PgId]) -> Result<BTreeMap<PgId, ScrubState>> {
        let mut states = BTreeMap::new();
        let keys = pgs.iter().flat_map(|pg| [keys::scrub(*pg), keys::scrub_wish(*pg)]);
        for txn in Txn::split(keys.map(Operation::get)) {
            for result in self.registry.txn(txn).await?.results {
                if let OperationResult::Got(Some(entry)) = result {
                    note(&mut states, &entry)?;
                }
            }
        }
        Ok(states)
    }
}

/// Takes up an entry of a group's scrubs.
fn note(states: &mut BTreeMap<PgId, ScrubState>, entry: &KeyValue) -> Result<()> {
    let of = |prefix: &str| entry.key.strip_prefix(prefix).and_then(|id| id.parse::<PgId>().ok());
    if let Some(pg) = of(keys::SCRUBS) {
        states.entry(pg).or_default().record = decode(&entry.key, &entry.value)?;
    } else if let Some(pg) = of(keys::SCRUB_WISHES) {
        states.entry(pg).or_default().wish = Some(decode(&entry.key, &entry.value)?);
    }
    Ok(())
}
