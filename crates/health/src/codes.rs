//! Everything that can be wrong with a cluster, by stable codes, and what each of them means.
//!
//! A code is for scripts, alerts and searches: it never changes its meaning, and none is used again for
//! something else. What is wrong in a given cluster, and why, says [`crate::problem::Problem`].

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// How the whole cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Everything serves, with all its copies.
    Ok,
    /// Everything serves, and something wants attention.
    Warning,
    /// Something does not serve.
    Error,
}

impl Level {
    /// Its name, as in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// Defines the codes with what is to be told of each.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $level:ident, $meaning:literal, $consequence:literal,
        $action:literal, $clears:literal;)*) => {
        /// What can be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// All codes, in the order in which they are explained.
            pub const ALL: [Code; [$($name),*].len()] = [$(Code::$variant),*];

            /// Its name, as in JSON and metrics.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// What it means, for the data and for the operator.
            #[must_use]
            pub fn explanation(self) -> Explanation {
                match self {
                    $(Code::$variant => Explanation {
                        code: self,
                        level: Level::$level,
                        meaning: $meaning,
                        consequence: $consequence,
                        action: $action,
                        clears: $clears,
                    },)*
                }
            }
        }
    };
}

codes! {
    /// Some placement groups serve nothing, to keep the promise.
    PgStopped = "PG_STOPPED", Error,
        "placement groups serve nothing: their primary is down and nobody could take over, or going on would break the promise",
        "reads and writes of their data wait, or fail at their time limit; nothing that was acknowledged is lost by it",
        "bring the OSD that is named back: start its node, or mend its drive. If its drive is lost for good, `millpond osd replace`",
        "when enough members in sync are up again and have agreed on what they hold";
    /// Some placement groups wait for something that they name.
    PgWaiting = "PG_WAITING", Error,
        "placement groups do not serve until something has happened that they name: an OSD that is back, room on a drive, the registry",
        "reads and writes of their data wait, or fail at their time limit; nothing that was acknowledged is lost by it",
        "bring what they wait for; `millpond pg dump` shows which groups, and `millpond osd tree` the nodes",
        "as soon as what they wait for is there";
    /// The members of some placement groups are agreeing.
    PgPeering = "PG_PEERING", Error,
        "the members of placement groups are agreeing on what they hold, or their primary takes up a new configuration",
        "reads and writes of their data wait, for milliseconds as a rule",
        "wait some seconds; if it stays so, read the log of the primary's node",
        "when the members agree";
    /// Some placement groups were not reported by their primary.
    PgUnknown = "PG_UNKNOWN", Error,
        "the primary of placement groups is up and has not told how they are",
        "they may serve or not; nobody can tell",
        "wait some seconds; if it stays so, read the log of the primary's node: it may not reach the manager",
        "when the manager hears of them";
    /// Nobody tells how the cluster is.
    ManagerSilent = "MANAGER_SILENT", Error,
        "the process that manages the cluster does not answer, or there is none",
        "volumes are served, and who fails is replaced; but how the OSDs are is not known, nothing is moved, and nobody is taken out",
        "wait some seconds, in which another takes over; if it stays so, look whether any node runs, and whether it can be reached from here",
        "when a manager answers";
    /// A node does not tell how its OSDs are.
    NodeSilent = "NODE_SILENT", Warning,
        "OSDs of a node are up, and the manager has heard nothing of them for seconds",
        "they may serve or not; nobody can tell",
        "look whether that node and the manager's reach each other, and read the node's log",
        "when the node tells again";
    /// Bytes of which no sound copy is left.
    DataLost = "DATA_LOST", Error,
        "no member of a placement group has a copy of some blocks that verifies",
        "reads of these ranges fail, never with wrong bytes; everything else works",
        "write the ranges anew from a backup, or discard them",
        "when every lost block was written, discarded or removed, or a sound copy came back";
    /// An OSD takes no more data.
    OsdFull = "OSD_FULL", Error,
        "an OSD has no room for more data, or for more objects: pieces of 4 MiB of volumes of which something was written, some 8 million",
        "writes to every placement group that it has a copy of fail (ENOSPC), however empty the other OSDs are; if it is objects that it has no room for, those alone that begin one; reads, trims and removals work",
        "remove or trim data, or add OSDs; if it is not nearly filled, look with `smartctl` whether its drive can be read: where it cannot, no room is made, and the OSD is to be replaced",
        "when enough was freed on it, or moved off it, or its drive can be read again";
    /// The registry takes no changes.
    RegistryFull = "REGISTRY_FULL", Error,
        "the etcd that is the registry has used up its quota (alarm NOSPACE)",
        "volumes are served as they are, but nothing can change: who fails is not replaced, and nothing can be attached",
        "give it room: `etcdctl defrag` on each member, or a larger --quota-backend-bytes; then `etcdctl alarm disarm`",
        "when the alarm is disarmed";
    /// One more loss loses data.
    PgLastCopy = "PG_LAST_COPY", Warning,
        "placement groups serve with a single copy though their pool wants more",
        "one more lost drive loses data",
        "bring the OSD that is named back at once, or let it catch up where it says that it does",
        "when a second member is in sync";
    /// Fewer copies than the pool wants.
    PgDegraded = "PG_DEGRADED", Warning,
        "placement groups serve with fewer copies than their pool wants",
        "nothing is lost; what one more failure does is said with the problem",
        "bring the OSD that is named back; if a member is catching up, wait",
        "when all copies are in sync again, on these OSDs or on others";
    /// An OSD is down.
    OsdDown = "OSD_DOWN", Warning,
        "the process of an OSD does not run, or does not reach the registry",
        "its placement groups have one copy less; they go on where enough others are in sync",
        "read the log of its node; `millpond up` starts the node again by itself, unless it was told --no-restart. If the drive is lost, `millpond osd replace`",
        "when it is up again, or all its groups are whole elsewhere and it was removed";
    /// An OSD gave its drive up.
    OsdDriveFailed = "OSD_DRIVE_FAILED", Warning,
        "a drive refused a write or a flush, or was cut short: its OSD uses it no more and counts as down",
        "its placement groups have one copy less, and are rebuilt elsewhere in time where there is room",
        "put another drive in, and run `millpond osd replace`. If it was the cable, end the process that is named; it starts again and tries the drive",
        "when the OSD is up on another drive or was removed, or its process was started anew and the drive works";
    /// A drive does nothing, without an error.
    OsdDriveHangs = "OSD_DRIVE_HANGS", Warning,
        "a drive does nothing of what it is asked, or does not write, and gives no error: its OSD counts as down until it does",
        "its placement groups have one copy less, and are rebuilt elsewhere in time where there is room",
        "look in the kernel's log (`dmesg`) of that host and at what the drive is behind: a controller, a path, a frozen file system, a full pool. If it does not come back, put another drive in, and run `millpond osd replace`",
        "by itself when the drive does again what it is asked; or when the OSD is up on another drive or was removed";
    /// An OSD was not started on its drive.
    OsdStartRefused = "OSD_START_REFUSED", Warning,
        "an OSD is not started: its drive is not there, was emptied or swapped, or what is on it is damaged; the reason stands with it",
        "its placement groups have one copy less; the other OSDs of its node run",
        "`millpond osd replace` makes it anew, on the same drive or on another, and the others bring back what it shall hold. If its drive can be brought back as it was, it is started by itself",
        "when it is up, on whichever drive, or was removed";
    /// An OSD is being emptied.
    OsdDraining = "OSD_DRAINING", Warning,
        "an OSD is out and still holds copies that placement groups count on",
        "none while it runs: it serves until the last of them was moved. Do not remove its drive yet",
        "wait; where it says that nobody could take them, add an OSD",
        "when the last group was moved off it";
    /// An OSD that is down and that nothing needs.
    OsdRemovable = "OSD_REMOVABLE", Warning,
        "an OSD is down and out, and nothing waits for it",
        "none: its placement groups are whole elsewhere",
        "`millpond osd rm`, if it is not to come back",
        "when it was removed, or is up again";
    /// An OSD is nearly full.
    OsdNearlyFull = "OSD_NEARLY_FULL", Warning,
        "an OSD is filled to 90 % or more of what clients can store on it",
        "none yet; just below 100 % the placement groups that it has a copy of refuse writes, and at 102 % it takes no more backfill",
        "add OSDs or remove data now",
        "below 90 %";
    /// An OSD fills up.
    OsdFilling = "OSD_FILLING", Warning,
        "an OSD is filled to 85 % or more of what clients can store on it",
        "none yet; just below 100 % the placement groups that it has a copy of refuse writes, and at 102 % it takes no more backfill",
        "add OSDs or remove data before that",
        "below 85 %";
    /// A drive gave other bytes than were written.
    OsdDamagedBlocks = "OSD_DAMAGED_BLOCKS", Warning,
        "a drive returned blocks whose checksum does not verify, or could not read them, since its OSD was started",
        "none: such blocks are read from another member and written anew. A drive that does this may soon do worse",
        "check the drive with `smartctl`, look for more with `millpond scrub start --deep`, and plan to replace it",
        "when its OSD is started again";
    /// A member of the registry is down.
    RegistryMemberDown = "REGISTRY_MEMBER_DOWN", Warning,
        "a member of the etcd that is the registry does not answer from here, or has no leader",
        "none while a majority is left; without one nothing can change, and who fails is not replaced",
        "start that member again, or replace it: `etcdctl member remove`, `etcdctl member add`; correct `registry` in millpond.toml where it names one that is gone",
        "when it answers and has a leader";
    /// The registry fills up.
    RegistryFilling = "REGISTRY_FILLING", Warning,
        "the store of an etcd that is the registry is at 80 % of its quota or more",
        "none yet; when the quota is used up, nothing can change",
        "`etcdctl defrag` on each member, one after the other; if it grows again, a larger --quota-backend-bytes",
        "below 80 %";
    /// The registry is too old.
    RegistryOutdated = "REGISTRY_OUTDATED", Warning,
        "a member of the etcd that is the registry is older than 3.4",
        "what was tested are 3.4 and later; older ones may answer otherwise",
        "upgrade it, one member after the other",
        "when all members are of 3.4 or later";
    /// Snapshots of a schedule were not made.
    SnapshotLate = "SNAPSHOT_LATE", Warning,
        "snapshots that a schedule has made by itself could not be made for a minute or longer; the reason stands with it",
        "none for what is stored; there is no snapshot of that time",
        "do what the reason says: as a rule a client has operations that wait, or fell silent; `millpond schedule info` names the volumes. Or `millpond schedule pause`",
        "when the snapshots are made: it is tried again all the time. What was missed meanwhile is not made up for. Or when the schedule is paused or removed";
    /// There is no pool.
    PoolNone = "POOL_NONE", Warning,
        "there is no pool",
        "no volume can be made",
        "`millpond pool create default`",
        "with the first pool";
    /// A pool wants more copies than there are OSDs.
    PoolShortOfOsds = "POOL_SHORT_OF_OSDS", Warning,
        "a pool wants more copies than OSDs are in",
        "its placement groups keep as many copies as there are OSDs for",
        "`millpond osd add`, or `millpond osd in`",
        "when as many OSDs are in as the pool has copies";
}

/// What is to be told of a code, whatever the cluster: `health explain --json` prints these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The code.
    pub code: Code,
    /// How bad it is.
    pub level: Level,
    /// What it means.
    pub meaning: &'static str,
    /// What that means for the data and for clients.
    pub consequence: &'static str,
    /// What to do.
    pub action: &'static str,
    /// When it goes away.
    pub clears: &'static str,
}

/// A name that is no code, with those that are near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCode {
    /// What was given.
    pub given: String,
    /// The nearest codes, the nearest first; never empty.
    pub near: Vec<Code>,
}

impl std::fmt::Display for UnknownCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let near: Vec<&str> = self.near.iter().map(|code| code.name()).collect();
        write!(formatter, "{:?} is no health code; the nearest: {}", self.given, near.join(", "))
    }
}

impl std::error::Error for UnknownCode {}

impl std::fmt::Display for Code {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Code, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = Code::ALL.into_iter().find(|code| code.name() == name);
        found.ok_or_else(|| serde::de::Error::custom(format!("{name:?} is no health code of this version")))
    }
}

/// How many near codes are named.
const NEAR_MAX: usize = 3;

impl std::str::FromStr for Code {
    type Err = UnknownCode;

    /// Takes a code in any case, and with dashes for underscores.
    fn from_str(text: &str) -> Result<Code, UnknownCode> {
        let wanted = text.trim().to_ascii_uppercase().replace('-', "_");
        if let Some(code) = Code::ALL.into_iter().find(|code| code.name() == wanted) {
            return Ok(code);
        }
        let mut near = Code::ALL.to_vec();
        near.sort_by_key(|code| distance(&wanted, code.name()));
        near.truncate(NEAR_MAX);
        Err(UnknownCode { given: text.to_owned(), near })
    }
}

/// Edits that make one text the other; a part that is the other's is near, whatever the rest.
fn distance(wanted: &str, name: &str) -> usize {
    if !wanted.is_empty() && name.contains(wanted) {
        return 0;
    }
    // Wagner and Fischer, "The String-to-String Correction Problem" (1974), one row at a time.
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (line, one) in wanted.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, other) in name.bytes().enumerate() {
            let replaced = diagonal + usize::from(one != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[name.len()]
}

/// What a code is in the OpenAPI document.
#[must_use]
pub fn schema() -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(Code::ALL.map(Code::name))).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The table of all codes in `docs/operations.md`.
    fn table() -> String {
        let mut table = String::from(
            "| code | level | means | for the data | do | goes away |\n|---|---|---|---|---|---|\n",
        );
        for Explanation { code, level, meaning, consequence, action, clears } in
            Code::ALL.map(Code::explanation)
        {
            let level = level.name();
            table.push_str(&format!(
                "| `{code}` | {level} | {meaning} | {consequence} | {action} | {clears} |\n"
            ));
        }
        table
    }

    #[test]
    fn every_code_is_explained_and_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            let Explanation { meaning, consequence, action, clears, level, .. } = code.explanation();
            for text in [meaning, consequence, action, clears] {
                assert!(text.len() > 8 && !text.ends_with('.') && !text.contains('|'), "{code}: {text:?}");
            }
            assert!(code.name().bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{code}");
            assert_ne!(level, Level::Ok, "{code}");
            assert_eq!(code.name().parse(), Ok(code));
        }
        assert_eq!("osd-down".parse(), Ok(Code::OsdDown));
    }

    #[test]
    fn a_wrong_code_is_answered_with_those_that_are_near() {
        let near = |text: &str| text.parse::<Code>().unwrap_err().near;
        assert_eq!(near("OSD_DOWM")[0], Code::OsdDown);
        for code in near("full") {
            assert!(code.name().ends_with("FULL"), "{code}");
        }
        assert_eq!(near("PG_DEGRADE")[0], Code::PgDegraded);
        assert_eq!(near("").len(), NEAR_MAX);
    }

    #[test]
    fn the_page_for_operators_has_every_code_as_it_is_explained() {
        let page = include_str!("../../../docs/operations.md");
        assert!(page.contains(&table()), "docs/operations.md must have this table:\n{}", table());
        // And none that is no code any more.
        for line in page.lines().filter_map(|line| line.strip_prefix("| `")) {
            let name = line.split('`').next().unwrap_or_default();
            let is_code = name.contains('_') && !name.contains(|c: char| !c.is_ascii_uppercase() && c != '_');
            assert!(!is_code || name.parse::<Code>().is_ok(), "{name} is no code");
        }
    }
}
