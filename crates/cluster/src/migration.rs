//! Moving a cluster from one registry to another, while none of its processes runs.
//!
//! A cluster lives in the registry that has `millpond/map/cluster`, and [`Migration`] takes care that never more than one
//! has it:
//!
//! | step | transaction | source | target |
//! |------|-------------|--------|--------|
//! | begin | at the target, if nothing is there | cluster | `moving-in` |
//! | copy | at the target, several, each while `moving-in` is unchanged | cluster | `moving-in`, some keys |
//! | compare | none: both are read anew | cluster | `moving-in`, all keys |
//! | leave | at the source: the cluster's key out, `moved` in | `moved` | `moving-in`, all keys |
//! | compare | none: what the source did not take any more cannot be missed from here on | | |
//! | arrive | at the target: `moving-in` out, the cluster's key in | `moved` | cluster |
//! | clean | at the source, several | `moved` alone | cluster |
//!
//! After the cluster's key has left a registry no change is taken there ([`super::Cluster`]'s are all under the condition
//! that it is there). So what is compared after that is final; if something came between the copy and that moment, the
//! cluster's key goes back.
//!
//! It may break off anywhere: doing it again looks where it is and goes on. Until the cluster has left, the source is as it
//! was. Keys that die with a lease are not copied; that there are none, so that nobody is at work, is a condition of
//! leaving. Values are copied byte for byte; revisions are each registry's own, and nothing that Millpond keeps
//! outlives a process with one in it.

use super::presence::{MoveRecord, Presence, Seen, is_of_presence};
use super::{ClusterError, encode, keys};
use base::ClusterId;
use registry::{KeyValue, Operation, Range, Registry, RegistryError, Txn, Value};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// How often the source may change while it is copied before that is told.
const COPIES_MAX: usize = 3;

/// Why a cluster was not moved, or not to the end. Unless the variant says otherwise, it lives where it did.
#[derive(thiserror::Error, Debug)]
pub enum MigrationError {
    /// An entry cannot be read.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// One of the two failed. How far the move is, is found out when it is done again.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The target is used for something else.
    #[error(
        "{target} is not empty: it has the key {key:?}, and a cluster can only be moved to where nothing is; choose another \
         NAME in etcd://HOST/NAME/, or remove what is there if nobody needs it"
    )]
    TargetInUse {
        /// The target.
        target: String,
        /// One of its keys.
        key: String,
    },
    /// Another cluster lives in the target.
    #[error(
        "{target} has cluster {found} already; choose another NAME in etcd://HOST/NAME/ to make room for a second one"
    )]
    TargetOfOther {
        /// The target.
        target: String,
        /// The cluster.
        found: ClusterId,
    },
    /// Another cluster is being moved to the target.
    #[error(
        "cluster {} is being moved into {} from {}; run that `millpond registry migrate` again to its end, or choose another \
         NAME in etcd://HOST/NAME/", record.cluster, record.target, record.source
    )]
    TargetAwaitsOther {
        /// The move.
        record: Box<MoveRecord>,
    },
    /// The cluster lives in both.
    #[error(
        "cluster {cluster} is in {source_name} and in {target}: one of them is a copy that somebody made by other means. Start \
         neither until you know which one; `millpond osd tree` on each shows what they know of the OSDs"
    )]
    Twice {
        /// The cluster.
        cluster: ClusterId,
        /// The source.
        source_name: String,
        /// The target.
        target: String,
    },
    /// The cluster has left for somewhere else.
    #[error(
        "cluster {} was moved from {source_name} to {}; to finish that move, name that one", record.cluster, record.target
    )]
    MovedElsewhere {
        /// The source.
        source_name: String,
        /// The move.
        record: Box<MoveRecord>,
    },
    /// The cluster has left, and the target does not know of it.
    #[error(
        "cluster {} has left {source_name} for {}, which is not as it was left: {found}. Nothing was changed. If it was emptied \
         or restored from a backup and cannot be had back as it was, `millpond registry migrate --cancel --target-is-lost` has \
         the cluster live in {source_name} again", record.cluster, record.target
    )]
    TargetLost {
        /// The source.
        source_name: String,
        /// The move.
        record: Box<MoveRecord>,
        /// What is there instead.
        found: String,
    },
    /// Somebody is at work in the source.
    #[error(
        "the cluster in {source_name} is in use: {}{}; stop what is named (`millpond down`, `millpond node stop`, servers of \
         volumes by Ctrl-C or SIGTERM) and try again: a killed one is forgotten after 10 s", who.first().map_or("", String::as_str),
        match who.len() { 0 | 1 => String::new(), count => format!(", and {} more", count - 1) }
    )]
    InUse {
        /// The source.
        source_name: String,
        /// Who, in words.
        who: Vec<String>,
    },
    /// The source was changed meanwhile.
    #[error(
        "the registry {source_name} was changed while it was copied, so the cluster stays there; see that nobody uses it, and \
         try again"
    )]
    Changed {
        /// The source.
        source_name: String,
    },
    /// Somebody else does the same.
    #[error("somebody else moves cluster {cluster} at the same time; see what they do before you try again")]
    Overtaken {
        /// The cluster.
        cluster: ClusterId,
    },
    /// It is moved already.
    #[error(
        "cluster {cluster} has arrived in {target}; `millpond registry migrate` without --cancel ends the move, and another \
         one brings it back"
    )]
    Arrived {
        /// The cluster.
        cluster: ClusterId,
        /// The target.
        target: String,
    },
}

type Result<T, E = MigrationError> = std::result::Result<T, E>;

/// What a move did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The cluster, which lives in the target now.
    pub cluster: ClusterId,
    /// Keys of it there.
    pub keys: usize,
    /// Bytes of these and their values.
    pub bytes: usize,
}

/// A cluster's move from one registry to another. See the module's documentation.
pub struct Migration<'a> {
    source: &'a dyn Registry,
    target: &'a dyn Registry,
    source_name: String,
    target_name: String,
}

impl<'a> Migration<'a> {
    /// A move from `source` to `target`, which people call by these names.
    pub fn new(
        source: &'a dyn Registry,
        source_name: impl Into<String>,
        target: &'a dyn Registry,
        target_name: impl Into<String>,
    ) -> Migration<'a> {
        Migration { source, target, source_name: source_name.into(), target_name: target_name.into() }
    }

    /// Moves the cluster, or goes on where an earlier attempt ended. Done again after it has ended, it changes nothing.
    /// What is left over in the source stays until [`Self::clean`].
    ///
    /// # Errors
    /// See [`MigrationError`]. After each of them it may be done again.
    pub async fn run(&self) -> Result<Migrated> {
        let source = Seen::read(self.source).await?;
        match source.presence.clone() {
            Presence::Here(cluster) => {
                // Before anything is left at the target.
                self.check_idle(leased(self.source).await?)?;
                let record = self.begin(cluster).await?;
                self.copy(&record).await?;
                self.leave(&source, &record).await?;
                self.arrive(&record).await
            }
            Presence::Moved(record) => self.arrive(&record).await,
            Presence::Absent => Err(ClusterError::NoCluster.into()),
            Presence::MovingIn(record) => Err(ClusterError::MovingIn { record: Box::new(record) }.into()),
        }
    }

    /// Notes at the target that the cluster is coming. From here on this attempt alone writes there.
    async fn begin(&self, cluster: ClusterId) -> Result<MoveRecord> {
        let target = Seen::read(self.target).await?;
        match &target.presence {
            // This one's, begun before, or what was left behind when it was here before: nobody needs these keys.
            Presence::MovingIn(record) | Presence::Moved(record) if record.cluster == cluster => {}
            Presence::MovingIn(record) => {
                return Err(MigrationError::TargetAwaitsOther { record: Box::new(record.clone()) });
            }
            Presence::Absent | Presence::Moved(_) => {
                let mut entries = self.target.range("").await?.entries.into_iter();
                if let Some(KeyValue { key, .. }) = entries.find(|entry| !is_of_presence(&entry.key)) {
                    return Err(MigrationError::TargetInUse { target: self.target_name.clone(), key });
                }
            }
            Presence::Here(found) if *found == cluster => {
                let (source_name, target) = (self.source_name.clone(), self.target_name.clone());
                return Err(MigrationError::Twice { cluster, source_name, target });
            }
            Presence::Here(found) => {
                let target = self.target_name.clone();
                return Err(MigrationError::TargetOfOther { target, found: *found });
            }
        }
        let record = self.record(cluster);
        match target.replace(self.target, keys::MOVED, keys::MOVING_IN, encode(&record)).await? {
            true => Ok(record),
            false => Err(MigrationError::Overtaken { cluster }),
        }
    }

    fn record(&self, cluster: ClusterId) -> MoveRecord {
        MoveRecord {
            attempt: Uuid::new_v4(),
            cluster,
            source: self.source_name.clone(),
            target: self.target_name.clone(),
            at_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        }
    }

    /// Makes the target's keys those of the source, whatever an earlier attempt left there, and sees both equal.
    async fn copy(&self, record: &MoveRecord) -> Result<()> {
        let overtaken = MigrationError::Overtaken { cluster: record.cluster };
        let target = Seen::read(self.target).await?;
        if target.presence != Presence::MovingIn(record.clone()) {
            return Err(overtaken);
        }
        for _ in 0..=COPIES_MAX {
            let compared = self.compare().await?;
            if compared.differences.is_empty() {
                return Ok(());
            }
            for txn in Txn::split_when(&target.unchanged(), compared.differences) {
                if !self.target.txn(txn).await?.succeeded {
                    return Err(overtaken);
                }
            }
        }
        Err(self.changed())
    }

    fn changed(&self) -> MigrationError {
        MigrationError::Changed { source_name: self.source_name.clone() }
    }

    fn check_idle(&self, who: Vec<String>) -> Result<()> {
        match who.is_empty() {
            true => Ok(()),
            false => Err(MigrationError::InUse { source_name: self.source_name.clone(), who }),
        }
    }

    /// Reads both anew.
    async fn compare(&self) -> Result<Compared> {
        let source = self.source.range(keys::OWN).await?;
        let who = who_has(&source);
        let (source, target) = (kept(source), kept(self.target.range(keys::OWN).await?));
        let new = source.iter().filter(|(key, value)| target.get(*key) != Some(value));
        let new = new.map(|(key, value)| Operation::put(key, value.clone()));
        let gone = target.keys().filter(|key| !source.contains_key(*key)).map(Operation::delete);
        let bytes = source.iter().map(|(key, value)| key.len() + value.len()).sum();
        Ok(Compared { differences: new.chain(gone).collect(), keys: source.len(), bytes, who })
    }

    /// Has the source be the cluster's no more.
    async fn leave(&self, source: &Seen, record: &MoveRecord) -> Result<()> {
        match source.replace(self.source, keys::CLUSTER, keys::MOVED, encode(record)).await? {
            true => Ok(()),
            false => Err(self.changed()),
        }
    }

    /// Has the target be the cluster's, which has left the source.
    async fn arrive(&self, record: &MoveRecord) -> Result<Migrated> {
        let cluster = record.cluster;
        let target = Seen::read(self.target).await?;
        match &target.presence {
            Presence::MovingIn(found) if is_of(found, record) => {}
            Presence::Here(found) if *found == cluster => {
                let kept = kept(self.target.range(keys::OWN).await?);
                let bytes = kept.iter().map(|(key, value)| key.len() + value.len()).sum();
                return Ok(Migrated { cluster, keys: kept.len(), bytes });
            }
            other => return Err(self.lost(record, other)),
        }
        let compared = self.compare().await?;
        if !compared.differences.is_empty() || !compared.who.is_empty() {
            self.return_to_source(record, &target).await?;
            self.check_idle(compared.who)?;
            return Err(self.changed());
        }
        match target.replace(self.target, keys::MOVING_IN, keys::CLUSTER, encode(&cluster)).await? {
            true => Ok(Migrated { cluster, keys: compared.keys, bytes: compared.bytes }),
            false => Err(MigrationError::Overtaken { cluster }),
        }
    }

    /// What is in the target instead of the cluster that has left the source for it.
    fn lost(&self, record: &MoveRecord, found: &Presence) -> MigrationError {
        let (source_name, record) = (self.source_name.clone(), Box::new(record.clone()));
        if record.target != self.target_name {
            return MigrationError::MovedElsewhere { source_name, record };
        }
        let found = match found {
            Presence::Absent => "it knows of no cluster".to_owned(),
            Presence::Here(other) => format!("it has cluster {other}"),
            Presence::MovingIn(other) => format!("cluster {} is being moved there", other.cluster),
            Presence::Moved(other) => format!("cluster {} has left it for {}", other.cluster, other.target),
        };
        MigrationError::TargetLost { source_name, record, found }
    }

    /// Has the source be the cluster's again, which has not arrived in the target and cannot any more.
    async fn return_to_source(&self, record: &MoveRecord, target: &Seen) -> Result<()> {
        // First: what an attempt that broke off may still have on its way to the target is refused there then.
        let again = self.record(record.cluster);
        let txn = Txn { compares: target.unchanged(), ..Txn::new() };
        let txn = txn.then(Operation::put(keys::MOVING_IN, encode(&again)));
        if !self.target.txn(txn).await?.succeeded {
            return Err(MigrationError::Overtaken { cluster: record.cluster });
        }
        reclaim(self.source).await.map(drop)
    }

    /// Gives a move up that has not come to its end: the cluster lives in the source again, and the target is emptied.
    ///
    /// # Errors
    /// [`MigrationError::Arrived`] if there is nothing to give up; else as [`Self::run`].
    pub async fn cancel(&self) -> Result<ClusterId> {
        let source = Seen::read(self.source).await?.presence;
        let left = match &source {
            Presence::Moved(record) => Some(record.clone()),
            _ => None,
        };
        let cluster = match left.as_ref() {
            Some(record) => record.cluster,
            None => source.id()?,
        };
        let target = Seen::read(self.target).await?;
        match (&left, &target.presence) {
            (_, Presence::Here(found)) if *found == cluster => {
                return Err(MigrationError::Arrived { cluster, target: self.target_name.clone() });
            }
            (None, Presence::MovingIn(coming)) if coming.cluster == cluster => {}
            // Nothing was begun there.
            (None, _) => return Ok(cluster),
            (Some(record), Presence::MovingIn(coming)) if is_of(coming, record) => {
                self.return_to_source(record, &target).await?;
            }
            (Some(record), other) => return Err(self.lost(record, other)),
        }
        // What was copied goes first, and the note that it was at last.
        let target = Seen::read(self.target).await?;
        let gone = kept(self.target.range(keys::OWN).await?).into_keys().chain([keys::MOVING_IN.to_owned()]);
        self.delete(self.target, &target, gone).await?;
        Ok(cluster)
    }

    /// Removes what is left over in the source, but for the note that the cluster was moved.
    ///
    /// # Errors
    /// Those of the two; [`MigrationError::Overtaken`] if the cluster does not live in the target.
    pub async fn clean(&self) -> Result<()> {
        let source = Seen::read(self.source).await?;
        let Presence::Moved(record) = &source.presence else { return Ok(()) };
        let cluster = record.cluster;
        match Presence::read(self.target).await? {
            Presence::Here(found) if found == cluster => {
                let gone = kept(self.source.range(keys::OWN).await?);
                self.delete(self.source, &source, gone.into_keys()).await
            }
            _ => Err(MigrationError::Overtaken { cluster }),
        }
    }

    async fn delete(
        &self,
        registry: &dyn Registry,
        seen: &Seen,
        gone: impl Iterator<Item = String>,
    ) -> Result<()> {
        for txn in Txn::split_when(&seen.unchanged(), gone.map(Operation::delete)) {
            if !registry.txn(txn).await?.succeeded {
                return Err(self.changed());
            }
        }
        Ok(())
    }
}

/// Has a registry be its cluster's again that left it for another, which must be lost for good: nobody looks whether the
/// cluster lives there. Where the other is there, [`Migration::cancel`] is the way. Answers the cluster.
///
/// # Errors
/// [`ClusterError::NoCluster`], [`ClusterError::MovingIn`]; those of the registry.
pub async fn reclaim(source: &dyn Registry) -> Result<ClusterId> {
    let seen = Seen::read(source).await?;
    let Presence::Moved(record) = &seen.presence else { return Ok(seen.presence.id()?) };
    let cluster = record.cluster;
    match seen.replace(source, keys::MOVED, keys::CLUSTER, encode(&cluster)).await? {
        true => Ok(cluster),
        false => Err(MigrationError::Overtaken { cluster }),
    }
}

/// Whether what is coming to a target is what has left for it. A later attempt may have begun before the leaving of an
/// earlier one came through.
fn is_of(coming: &MoveRecord, left: &MoveRecord) -> bool {
    coming == left || (coming.cluster == left.cluster && coming.target == left.target)
}

/// What two registries have in common, and not.
struct Compared {
    /// What makes the target's keys those of the source.
    differences: Vec<Operation>,
    /// Keys of the source.
    keys: usize,
    /// Bytes of these and their values.
    bytes: usize,
    /// Who is at work in the source, in words.
    who: Vec<String>,
}

/// What goes along when a cluster moves.
fn kept(range: Range) -> BTreeMap<String, Value> {
    let is_kept = |entry: &KeyValue| entry.lease.is_none() && !is_of_presence(&entry.key);
    range.entries.into_iter().filter(is_kept).map(|entry| (entry.key, entry.value)).collect()
}

/// Who is at work in a registry, by the keys that die with a lease, in words.
///
/// # Errors
/// Those of the registry.
pub async fn leased(registry: &dyn Registry) -> Result<Vec<String>, RegistryError> {
    Ok(who_has(&registry.range(keys::OWN).await?))
}

fn who_has(range: &Range) -> Vec<String> {
    let leased = range.entries.iter().filter(|entry| entry.lease.is_some());
    let mut who: Vec<String> = leased.map(|entry| who(&entry.key)).collect();
    who.sort();
    who.dedup();
    who
}

/// Whose life a key tells of.
fn who(key: &str) -> String {
    let name = |prefix: &str| key.strip_prefix(prefix);
    if let Some(osd) = name("millpond/map/up/") {
        return format!("osd.{osd} is up");
    }
    if let Some(volume) = name("millpond/attached/").and_then(|rest| rest.split('/').next()) {
        return format!("volume.{volume} is attached");
    }
    if let Some((node, pid)) = name(keys::HTTP).and_then(|process| process.split_once('-')) {
        return format!("process {pid} of node.{node} runs");
    }
    if key == keys::MANAGER {
        return "a node manages it".to_owned();
    }
    format!("{key} belongs to a lease that lives")
}
