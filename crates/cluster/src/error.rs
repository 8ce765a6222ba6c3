//! Why an operation on the cluster's state was refused.

use super::presence::MoveRecord;
use super::watchers::WatchMode;
use base::map::{DeviceClass, FailureDomain};
use base::names;
use base::units::ByteSize;
use base::{ClusterId, Epoch, LayerId, NodeId, OsdId, PgId, VolumeId};
use registry::RegistryError;

/// Why an operation on the cluster's state was refused. Unless it is the registry that failed, nothing
/// was changed.
#[derive(thiserror::Error, Debug)]
pub enum ClusterError {
    /// The registry failed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The node that was to do it refused, in its words.
    #[error("{reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// The registry is empty.
    #[error("there is no cluster in this registry yet; start one with `millpond up`")]
    NoCluster,
    /// The registry is another cluster's.
    #[error(
        "this registry belongs to cluster {found}, not {expected}; use the directory of cluster {expected}"
    )]
    OtherCluster {
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
        expected: ClusterId,
    },
    /// It is being moved into this registry.
    #[error(
        "cluster {} is being moved into this registry from {}; run `millpond registry migrate` again where that was begun: \
         it goes on from where it is", record.cluster, record.source
    )]
    MovingIn {
        /// The move.
        record: Box<MoveRecord>,
    },
    /// It was moved to another registry.
    #[error(
        "cluster {} was moved from this registry to {}; if `millpond registry migrate` broke off, run it again as it was: it \
         goes on from where it is. Else use the directory or the token of where the cluster is now", record.cluster,
        record.target
    )]
    Moved {
        /// The move.
        record: Box<MoveRecord>,
    },
    /// An entry is not what this version writes.
    #[error(
        "the registry's key {key:?} cannot be read ({reason}); was it written by another version of millpond?"
    )]
    Unreadable {
        /// The key.
        key: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// Others kept changing what was to be changed.
    #[error("{what} is being changed by others all the time; try again")]
    Contended {
        /// What was to be changed.
        what: String,
    },
    /// No node has that id.
    #[error("there is no {node}; `millpond osd tree` lists them")]
    NoSuchNode {
        /// The id.
        node: NodeId,
    },
    /// A name breaks the rules.
    #[error(
        "{name:?} cannot be the name of a {what}: it {reason}; use 1 to 100 of the characters A-Z a-z 0-9 . _ -"
    )]
    NameInvalid {
        /// What it was to name.
        what: &'static str,
        /// The name, shortened.
        name: String,
        /// Which rule.
        reason: &'static str,
    },
    /// No OSD has that id.
    #[error("there is no {osd}; `millpond osd tree` lists them")]
    NoSuchOsd {
        /// The id.
        osd: OsdId,
    },
    /// It runs OSDs.
    #[error("{node} still has {osd}; empty it with `millpond node drain {}`, then remove its OSDs with `millpond osd rm`", node.0)]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// One of its OSDs.
        osd: OsdId,
    },
    /// Data is placed on it.
    #[error("{osd} is in, so data may be placed on it; take it out first with `millpond osd out {}`", osd.0)]
    OsdIn {
        /// The OSD.
        osd: OsdId,
    },
    /// Its number was given to another drive.
    #[error("{osd} was put on another drive, so what was formatted as it before is {osd} no longer")]
    OsdReplaced {
        /// The OSD.
        osd: OsdId,
    },
    /// It runs.
    #[error("{osd} is up, so its drive is in use and cannot be replaced by another")]
    OsdUp {
        /// The OSD.
        osd: OsdId,
    },
    /// It counts as holding acknowledged writes.
    #[error(
        "{osd} cannot be replaced yet: it counts as holding acknowledged writes of {what}; `millpond status` shows what they \
         wait for"
    )]
    OsdInSync {
        /// The OSD.
        osd: OsdId,
        /// How many groups of how many, and one of them.
        what: String,
    },
    /// It holds, or shall hold, placement groups.
    #[error(
        "{osd} cannot be removed yet: {what}; `millpond status` shows what is still to be moved off it, and what \
         that waits for"
    )]
    OsdInUse {
        /// The OSD.
        osd: OsdId,
        /// How many groups of how many, and one of them.
        what: String,
    },
    /// The volume has no such snapshot.
    #[error(
        "the volume {volume} has no snapshot {name}; `millpond volume snapshot ls {volume}` lists those it has"
    )]
    NoSuchSnapshot {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("the volume {volume} has a snapshot {name} already; choose another name")]
    SnapshotExists {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// It is not to be removed.
    #[error(
        "the snapshot {volume}@{name} is protected, so neither it nor its volume is removed; `millpond volume snapshot unprotect \
         {volume}@{name}` first"
    )]
    SnapshotProtected {
        /// The volume.
        volume: String,
        /// The name.
        name: String,
    },
    /// Something was cloned from it.
    #[error(
        "{what} is what {clone} was cloned from, which needs what it holds; `millpond volume flatten {clone}` has that copied, or \
         remove the clone first"
    )]
    HasClones {
        /// What was to be removed.
        what: String,
        /// The name of a clone.
        clone: String,
    },
    /// Something was cloned from it that whoever asks does not see.
    #[error(
        "{what} is what {clone} was cloned from, which this key is not for, and which needs what it holds; whoever manages that one has \
         it flattened, or removes it"
    )]
    HasUnseenClones {
        /// What was to be removed.
        what: String,
        /// The clone.
        clone: VolumeId,
    },
    /// It is no clone, or was flattened.
    #[error("the volume {name} depends on no other: it is no clone, or was flattened")]
    NoClone {
        /// The volume.
        name: String,
    },
    /// It is a clone of a clone of …
    #[error(
        "the volume {volume} is a clone of a clone, {max} deep, and no deeper ones are made; `millpond volume flatten {volume}` first"
    )]
    ClonedTooDeep {
        /// The volume.
        volume: String,
        /// How deep clones may be.
        max: usize,
    },
    /// As many clones were made as a family can have.
    #[error(
        "{} clones were made of {volume} and what it was cloned from, and there are no numbers for more; copy it to a new volume,          which begins anew",
        VolumeId::CLONE_MAX
    )]
    NoMoreClones {
        /// The volume.
        volume: String,
    },
    /// It was rolled back too often.
    #[error(
        "the volume {volume} was rolled back {max} times to what its snapshots go back to; remove snapshots that are not needed first"
    )]
    BentTooOften {
        /// The volume.
        volume: String,
        /// How often it may be.
        max: usize,
    },
    /// It had as many layers as a volume can have.
    #[error(
        "the volume {volume} has had {} snapshots, and there are no numbers for more; copy it to a new volume, which begins anew",
        LayerId::NUMBER_MAX
    )]
    NoMoreSnapshots {
        /// The volume.
        volume: String,
    },
    /// A client of an older version.
    #[error(
        "snapshots were made of volume {volume}, which the version of this client does not know; use that of the cluster's nodes"
    )]
    HasLayers {
        /// The volume.
        volume: String,
    },
    /// A reservation is beyond a limit.
    #[error(
        "volume {volume}: {reason}; reserve less with `millpond volume qos`, or raise the limits with `millpond volume limit`"
    )]
    ReservedMore {
        /// The volume.
        volume: String,
        /// Which, in words.
        reason: String,
    },
    /// More would be reserved than there is.
    #[error(
        "{wanted} operations a second cannot be reserved for volume {volume}: there are {left} left. The OSDs together are taken to do \
         {can}, of which a write takes one for each copy; `millpond cluster capacity` says what that goes by, and changes it"
    )]
    TooMuchReserved {
        /// The volume.
        volume: String,
        /// What was to be reserved for it.
        wanted: u32,
        /// What can be.
        left: u64,
        /// What all OSDs are taken to do, in operations of 4 KiB a second.
        can: u64,
    },
    /// An OSD of an older version.
    #[error(
        "no snapshot was made: {osd} runs a version that knows none; start its node with the version of this program first"
    )]
    KnowsNoLayers {
        /// The OSD.
        osd: OsdId,
    },
    /// A client of the volume does not come to a standstill.
    #[error(
        "no snapshot was made: {holder} has the volume {volume} attached and did not stand still within a second; it may have \
         operations that wait (`millpond status`), or be of a version that knows no snapshots. Try again, or detach it there"
    )]
    NotStill {
        /// The volume.
        volume: String,
        /// Who has it.
        holder: String,
    },
    /// Somebody may write to the volume who cannot be asked to stop.
    #[error(
        "no snapshot was made: {holder} had the volume {volume} attached, fell silent, and may write to it still; attach the \
         volume once, which makes sure of that"
    )]
    Unsettled {
        /// The volume.
        volume: String,
        /// Who had it.
        holder: String,
    },
    /// One volume was named twice.
    #[error("the volume {volume} is named twice; name it once")]
    NamedTwice {
        /// The volume.
        volume: String,
    },
    /// So many snapshots are not removed at once.
    #[error(
        "{count} snapshots are too many to be removed at once: {max} are the most; remove them in several steps"
    )]
    TooManyToRemove {
        /// How many.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// So many snapshots are not made at one moment.
    #[error("snapshots of {count} volumes are too many for one moment: {max} are the most")]
    TooManyAtOnce {
        /// How many.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// No schedule has that name.
    #[error("there is no schedule {name}; `millpond schedule ls` lists them")]
    NoSuchSchedule {
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error(
        "there is a schedule {name} already; choose another name, or change that one with `millpond schedule set {name}`"
    )]
    ScheduleExists {
        /// The name.
        name: String,
    },
    /// Such a schedule cannot be.
    #[error("the schedule {name} cannot be like that: {reason}")]
    ScheduleInvalid {
        /// The name.
        name: String,
        /// Why, and what is possible.
        reason: String,
    },
    /// It is not the one any more for which something was to be done.
    #[error("the schedule {name} was changed, paused or removed meanwhile; look again")]
    ScheduleChanged {
        /// The name.
        name: String,
    },
    /// No pool has that name.
    #[error("there is no pool {name}; `millpond pool ls` lists them, `millpond pool create {name}` makes it")]
    NoSuchPool {
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("there is a pool {name} already; choose another name")]
    PoolExists {
        /// The name.
        name: String,
    },
    /// Such a pool cannot be.
    #[error("the pool {name} cannot be like that: {reason}")]
    PoolInvalid {
        /// The name.
        name: String,
        /// Why, and what is possible.
        reason: String,
    },
    /// There are fewer OSDs than copies.
    #[error(
        "the pool {name} wants {size} copies of everything, but only {osds} OSDs are in; add OSDs with \
         `millpond osd add`, take some in with `millpond osd in`, or lower the size"
    )]
    TooFewOsds {
        /// The pool.
        name: String,
        /// Copies.
        size: u32,
        /// OSDs that could hold one.
        osds: usize,
    },
    /// There are fewer OSDs on such drives than copies.
    #[error(
        "the pool {name} wants {size} copies of everything on {class} drives, and only {osds} OSDs on such are in; `millpond \
         osd tree` shows the classes, `millpond osd class ID {class}` corrects one"
    )]
    TooFewOfClass {
        /// The pool.
        name: String,
        /// Copies.
        size: u32,
        /// The class.
        class: DeviceClass,
        /// OSDs that could hold one.
        osds: usize,
    },
    /// There are fewer failure domains than copies.
    #[error(
        "the pool {name} wants its {size} copies in distinct {domain}s, and OSDs are in only {domains} {domain}s that have a \
         name; say where nodes stand with `millpond placement locate`, or choose --failure-domain host"
    )]
    TooFewDomains {
        /// The pool.
        name: String,
        /// Copies.
        size: u32,
        /// What was asked to be distinct.
        domain: FailureDomain,
        /// How many there are.
        domains: usize,
    },
    /// The pool still has volumes.
    #[error(
        "the pool {name} still holds {volumes} volumes, {example} among them; remove them first with `millpond volume rm \
         --now`, and those that `millpond volume trash` shows with `millpond volume purge`"
    )]
    PoolInUse {
        /// The pool.
        name: String,
        /// How many.
        volumes: usize,
        /// The name of one.
        example: String,
    },
    /// No volume has that name.
    #[error(
        "there is no volume {name}; `millpond volume ls` lists them, `millpond volume create {name} SIZE` makes it"
    )]
    NoSuchVolume {
        /// The name.
        name: String,
    },
    /// It is no name.
    #[error(transparent)]
    NoName(#[from] names::NameError),
    /// Volumes of several places have it.
    #[error("{}", names::ambiguous(name, all))]
    AmbiguousName {
        /// The name.
        name: String,
        /// Their full names.
        all: Vec<String>,
    },
    /// It would be somewhere else by that name.
    #[error(
        "the volume {name} stays in {place}, and {new} is not there; `millpond volume clone` makes one in another namespace of its pool \
         that holds the same, `millpond volume export` and `import` copy it to another pool"
    )]
    OtherPlace {
        /// The volume.
        name: String,
        /// Its pool and namespace.
        place: String,
        /// The name that it was to have.
        new: String,
    },
    /// Nothing can be there.
    #[error("{place} {reason}; name one pool, in front of the volume's name or beside it")]
    PlaceInvalid {
        /// The pool and the namespace.
        place: String,
        /// Why.
        reason: String,
    },
    /// It is no name of a pool or of a namespace in one.
    #[error("{reason}")]
    NoPlace {
        /// Which text, and why.
        reason: String,
    },
    /// A clone would lie in another pool than what it is made of.
    #[error(
        "a clone lies in the pool of its snapshot, which is {pool}, and {new} is not there; `millpond volume export` and `import` copy a \
         snapshot to another pool"
    )]
    OtherPool {
        /// The pool.
        pool: String,
        /// The name that the clone was to have.
        new: String,
    },
    /// The pool has no such namespace.
    #[error(
        "there is no namespace {place}; `millpond namespace ls` lists them, `millpond namespace create {place}` makes it"
    )]
    NoSuchNamespace {
        /// The pool and the namespace.
        place: String,
    },
    /// The name is taken.
    #[error("there is a namespace {place} already; choose another name")]
    NamespaceExists {
        /// The pool and the namespace.
        place: String,
    },
    /// Volumes are in it.
    #[error(
        "the namespace {place} still holds {volumes} volumes, {example} among them; remove them first with `millpond volume rm \
         --now`, and those that `millpond volume trash` shows with `millpond volume purge`"
    )]
    NamespaceInUse {
        /// The pool and the namespace.
        place: String,
        /// How many.
        volumes: usize,
        /// The name of one.
        example: String,
    },
    /// Keys are for it.
    #[error(
        "the key {key} is for the namespace {place}, and would be for another one that is called so later; remove that first with \
         `millpond auth rm {key}`"
    )]
    NamespaceHasKeys {
        /// The pool and the namespace.
        place: String,
        /// The name of one of the keys.
        key: String,
    },
    /// The pool still has namespaces.
    #[error(
        "the pool {name} still has the namespace {namespace}; remove it first with `millpond namespace rm {name}/{namespace}`"
    )]
    PoolHasNamespaces {
        /// The pool.
        name: String,
        /// One of them.
        namespace: String,
    },
    /// Nothing is noted there.
    #[error(
        "nothing is noted under {key:?} beside {what}; `millpond volume meta ls` lists what is beside a volume"
    )]
    NoSuchMetadata {
        /// Beside what.
        what: String,
        /// The key.
        key: String,
    },
    /// Nobody has a key of that name.
    #[error("there is no key {name}; `millpond auth ls` lists them")]
    NoSuchKey {
        /// The name.
        name: String,
    },
    /// That cannot be noted.
    #[error("that cannot be noted: {reason}")]
    MetadataInvalid {
        /// Why.
        reason: String,
    },
    /// There is no such group.
    #[error("there is no group {name}")]
    NoSuchGroup {
        /// Its name.
        name: String,
    },
    /// The name is taken.
    #[error("there is a group {name} already; choose another name")]
    GroupExists {
        /// The name.
        name: String,
    },
    /// The volume is in a group, and not in another one.
    #[error(
        "the volume {volume} is in a group already, and a volume is in one at most; take it out of that first"
    )]
    GroupedAlready {
        /// The volume.
        volume: String,
    },
    /// The volume is not in the group.
    #[error("the volume {volume} is not in the group {group}")]
    NotInGroup {
        /// The volume.
        volume: String,
        /// The group.
        group: String,
    },
    /// What a group's snapshot holds of a volume is not to be had while that lies in the trash.
    #[error(
        "the volume {volume} lies in the trash with a part of a snapshot of the group {group}; `millpond volume restore` brings it back, \
         `millpond volume purge` removes it for good"
    )]
    GroupedInTrash {
        /// The volume's name.
        volume: String,
        /// The group.
        group: String,
    },
    /// A pool or namespace still has groups that hold something.
    #[error("{place} still has the group {group}, which holds volumes or snapshots; remove that first")]
    PlaceHasGroup {
        /// The pool, and the namespace.
        place: String,
        /// The name of one.
        group: String,
    },
    /// A group holds no more.
    #[error("the group {group} has {max} {what}, which is the most")]
    GroupFull {
        /// The group.
        group: String,
        /// Of what.
        what: &'static str,
        /// How many.
        max: usize,
    },
    /// The group has no such snapshot.
    #[error("the group {group} has no snapshot {name}")]
    NoSuchGroupSnapshot {
        /// The group.
        group: String,
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("the group {group} has a snapshot {name} already; choose another name")]
    GroupSnapshotExists {
        /// The group.
        group: String,
        /// The name.
        name: String,
    },
    /// A snapshot of a group was not made of all volumes, or is not there of all any more.
    #[error(
        "the snapshot {name} of the group {group} is not complete: a volume is gone, or lost its part; remove it and make another one"
    )]
    GroupSnapshotIncomplete {
        /// The group.
        group: String,
        /// The name.
        name: String,
    },
    /// It does not lie in the trash.
    #[error("{volume} does not lie in the trash; `millpond volume trash` shows what does")]
    NotInTrash {
        /// The volume.
        volume: VolumeId,
    },
    /// The name is taken.
    #[error("there is a volume {name} already; choose another name")]
    VolumeExists {
        /// The name.
        name: String,
    },
    /// No volume can have that size.
    #[error("the volume {name} cannot have {bytes} bytes; a volume has 64TiB at most")]
    VolumeSizeInvalid {
        /// The volume.
        name: String,
        /// The size.
        bytes: u64,
    },
    /// It would become smaller.
    #[error(
        "the volume {name} has {from}, {to} is less and would lose what lies beyond; if that is meant, say --allow-shrink"
    )]
    WouldShrink {
        /// The volume.
        name: String,
        /// Its size.
        from: ByteSize,
        /// The size asked for.
        to: ByteSize,
    },
    /// It was made smaller, and what it held beyond its end is not deleted yet.
    #[error(
        "the volume {name} cannot grow yet: it was made smaller, and what it held beyond its end is still being deleted. For that \
         all placement groups of its pool must be active: `millpond pg dump` shows which are not, `millpond status` what to do"
    )]
    StillCut {
        /// The volume.
        name: String,
    },
    /// Somebody is attached who does not share.
    #[error("the volume {name} is attached by {holder}; {next}")]
    Attached {
        /// The volume.
        name: String,
        /// Who, as it described itself.
        holder: String,
        /// What can be done.
        next: &'static str,
    },
    /// It was to be attached anew, by who has it no more.
    #[error("somebody else had the volume {volume} meanwhile; attach it again")]
    HadByOthers {
        /// The volume.
        volume: String,
    },
    /// Somebody has the volume open.
    #[error(
        "volume {name} is open ({mode}) at {watcher}; close it there, or wait a few seconds if that process is dead. `millpond \
         volume watchers {name}` lists who has it open"
    )]
    Watched {
        /// The volume.
        name: String,
        /// Who, as it described itself.
        watcher: String,
        /// How.
        mode: WatchMode,
    },
    /// Another locker holds the lock (EBUSY).
    #[error(
        "lock {name:?} of volume {volume} is held by {holder}; `millpond volume lock ls {volume}` lists who holds what, and \
         `millpond volume lock rm` removes a lock whose locker is gone"
    )]
    LockHeld {
        /// The volume.
        volume: String,
        /// The lock.
        name: String,
        /// Who, and how.
        holder: String,
    },
    /// The same locker holds the lock already (EEXIST).
    #[error("lock {name:?} of volume {volume} is held by this locker already; there is nothing to do")]
    LockOwn {
        /// The volume.
        volume: String,
        /// The lock.
        name: String,
    },
    /// That locker does not hold the lock (ENOENT).
    #[error(
        "lock {name:?} of volume {volume} is not held by {locker:?} under that cookie; `millpond volume lock ls {volume}` lists who \
         holds what"
    )]
    NoSuchLock {
        /// The volume.
        volume: String,
        /// The lock.
        name: String,
        /// Who does not hold it.
        locker: String,
    },
    /// A lock cannot be noted.
    #[error("the lock cannot be taken: {reason}")]
    LockInvalid {
        /// Why.
        reason: String,
    },
    /// The name of a key is taken.
    #[error(
        "there is a key {name} already; choose another name, or remove that one with `millpond auth rm {name}`"
    )]
    PrincipalExists {
        /// The name.
        name: String,
    },
    /// Nobody can have such an access.
    #[error("such an access cannot be given: {reason}; `millpond pool ls` lists the pools")]
    AccessInvalid {
        /// Why.
        reason: String,
    },
    /// There is no such placement group.
    #[error("there is no placement group {pg}; `millpond pg dump` lists them")]
    NoSuchPg {
        /// The group.
        pg: PgId,
    },
    /// A configuration that cannot be.
    #[error("the placement group {pg} cannot go from {expected} to this configuration: {reason}")]
    PgInvalid {
        /// The group.
        pg: PgId,
        /// The epoch it was to follow.
        expected: Epoch,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// A volume's name leads to no volume.
    #[error(
        "the name {name} leads to {volume}, which is not there by that name; was the registry changed by hand?"
    )]
    DanglingName {
        /// The name.
        name: String,
        /// Where it leads.
        volume: VolumeId,
    },
}

impl From<names::Unfound> for ClusterError {
    fn from(unfound: names::Unfound) -> ClusterError {
        match unfound {
            names::Unfound::NoName(error) => error.into(),
            names::Unfound::Missing { name } => ClusterError::NoSuchVolume { name },
            names::Unfound::Ambiguous { name, all } => ClusterError::AmbiguousName { name, all },
        }
    }
}

/// Whether a name keeps the rules for names of pools, namespaces, volumes, snapshots and keys.
///
/// # Errors
/// [`ClusterError::NameInvalid`].
pub fn check_name(what: &'static str, name: &str) -> Result<(), ClusterError> {
    names::check(name).map_err(|reason| {
        let name = name.chars().take(names::NAME_BYTES_MAX).collect();
        ClusterError::NameInvalid { what, name, reason }
    })
}
