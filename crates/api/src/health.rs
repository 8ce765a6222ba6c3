//! Whether the cluster keeps its promise, why not, and what to do next.

use crate::codes::{self, Code};
use crate::duration::about;
use crate::integrity;
use crate::view::{OsdView, PgHealth, PgView, PoolView};
use base::map::Admission;
use base::{NodeId, OsdId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What kind of thing it is.
    #[schema(schema_with = codes::schema)]
    pub code: Code,
    /// How bad it is.
    pub level: Level,
    /// What is wrong, and why.
    pub what: String,
    /// What that means for the data and for clients.
    pub consequence: String,
    /// What to do.
    pub next: String,
}

impl Problem {
    /// A problem of the level that its code has.
    #[must_use]
    pub fn new(code: Code, what: String, consequence: impl Into<String>, next: impl Into<String>) -> Problem {
        let level = code.explanation().level;
        Problem { code, level, what, consequence: consequence.into(), next: next.into() }
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// The worst of the problems.
    pub level: Level,
    /// The problems, worst first.
    pub problems: Vec<Problem>,
}

impl Health {
    /// With more problems.
    #[must_use]
    pub fn with(self, more: impl Iterator<Item = Problem>) -> Health {
        let mut problems: Vec<Problem> = self.problems.into_iter().chain(more).collect();
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.level));
        let level = problems.first().map_or(Level::Ok, |problem| problem.level);
        Health { level, problems }
    }
}

/// An OSD that is filled to so many percent of what clients can store is told of.
const FILLED_PERCENT: u64 = 85;
/// From here on it is told of as urgent.
const NEARLY_FULL_PERCENT: u64 = 90;

const WAIT_OR_READ_LOG: &str = "wait some seconds; if it stays so, read the log of the primary's node";

const HOW_TO_MAKE_ROOM: &str = "`millpond volume ls`, `millpond volume rm NAME`, or `fstrim` in a client";

/// Judges the cluster. `silence` is why nobody tells how the OSDs are, if so.
pub fn judge(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView], silence: Option<&str>) -> Health {
    let mut problems = Vec::new();
    who_is_silent(osds, silence, &mut problems);
    stopped_groups(pgs, &mut problems);
    for osd in osds {
        down_osd(osd, &mut problems);
        osd_that_is_out(osd, pgs, &mut problems);
        osd_problems(osd, &mut problems);
    }
    degraded_groups(osds, pgs, pools, &mut problems);
    short_targets(osds, pgs, pools, &mut problems);
    if pools.is_empty() {
        problems.push(Problem::new(
            Code::PoolNone,
            "there is no pool".to_owned(),
            "no volume can be made",
            "make one with `millpond pool create default`",
        ));
    }
    Health { level: Level::Ok, problems: Vec::new() }.with(problems.into_iter())
}

/// Those who do not tell how their OSDs are, or that nobody does.
fn who_is_silent(osds: &[OsdView], silence: Option<&str>, problems: &mut Vec<Problem>) {
    if let Some(why) = silence {
        problems.push(Problem::new(
            Code::ManagerSilent,
            format!("nobody tells how the OSDs are: {why}"),
            "volumes are served meanwhile, as far as it goes; nothing is moved, and nobody is taken out",
            "wait some seconds, in which another manager takes over; if it stays so, look whether any node runs, and whether \
             it can be reached from here",
        ));
        return;
    }
    let mut silent: BTreeMap<NodeId, usize> = BTreeMap::new();
    for osd in osds.iter().filter(|osd| osd.up && !osd.is_reported()) {
        *silent.entry(osd.node).or_default() += 1;
    }
    for (node, count) in silent {
        let osds = if count == 1 { "OSD, which is" } else { "OSDs, which are" };
        problems.push(Problem::new(
            Code::NodeSilent,
            format!("{node} tells the manager nothing of its {count} {osds} up"),
            "how they are is not known; volumes are served all the same if the node only does not reach the manager",
            format!(
                "look whether {node} and the manager's node (`millpond status --json | jq .manager`) reach each other, and \
                 read the log of {node}"
            ),
        ));
    }
}

/// Groups that do not serve, one problem for each reason.
fn stopped_groups(pgs: &[PgView], problems: &mut Vec<Problem>) {
    let mut reasons: BTreeMap<(PgHealth, &str), usize> = BTreeMap::new();
    for pg in pgs.iter().filter(|pg| pg.state != PgHealth::Active) {
        *reasons.entry((pg.state, pg.reason.as_deref().unwrap_or("no reason given"))).or_default() += 1;
    }
    for ((state, reason), count) in reasons {
        let (code, next) = match state {
            PgHealth::Stopped => (
                Code::PgStopped,
                "bring the OSD named here back; `millpond osd tree` shows its node and drive",
            ),
            PgHealth::Waiting => {
                (Code::PgWaiting, "bring what it waits for; `millpond pg dump` shows which groups")
            }
            PgHealth::Peering => (Code::PgPeering, WAIT_OR_READ_LOG),
            PgHealth::Unknown => (Code::PgUnknown, WAIT_OR_READ_LOG),
            PgHealth::Active => continue,
        };
        let what = format!("{} {}: {reason}", groups(count, pgs.len()), state_verb(state, count));
        let consequence = match state {
            PgHealth::Unknown => "they may serve or not",
            _ => "reads and writes of their data wait, or fail at their time limit",
        };
        problems.push(Problem::new(code, what, consequence, next));
    }
}

fn state_verb(state: PgHealth, count: usize) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    match state {
        PgHealth::Unknown => format!("{verb} in an unknown state"),
        PgHealth::Waiting if count == 1 => "waits".to_owned(),
        PgHealth::Waiting => "wait".to_owned(),
        _ => format!("{verb} {}", state.name()),
    }
}

/// An OSD that is down: what becomes of it.
fn down_osd(osd: &OsdView, problems: &mut Vec<Problem>) {
    if osd.up {
        return;
    }
    let (name, node, number) = (osd.osd, osd.node, osd.osd.0);
    let is_needed = osd.pgs_in_sync + osd.pgs_target > 0;
    let read_log = match &osd.failure {
        Some(_) => replace_drive(osd),
        None if osd.host == node.to_string() => {
            format!(
                "read {node}.log in the cluster's directory; `up` starts the node again by itself, unless \
                 it was told --no-restart"
            )
        }
        // A host that has joined, or on which the cluster began.
        None => format!(
            "look at host {}: `millpond node start` there runs its node, if nobody does, or `millpond up` where that runs it; \
             its log is in that host's directory",
            osd.host
        ),
    };
    let (what, next) = match (osd.admission, osd.out_in_seconds, &osd.stays_in_because) {
        (Admission::In, Some(seconds), _) => {
            let out = format!("it is taken out in {} if it stays away", about(seconds));
            (format!("{name} on {node} is down"), format!("{read_log}; {out}"))
        }
        (Admission::In, None, Some(reason)) => {
            let stays = format!("it is not taken out by itself: {reason}");
            (format!("{name} on {node} is down"), format!("{read_log}; {stays}"))
        }
        (Admission::In, None, None) => (format!("{name} on {node} is down"), read_log),
        (Admission::OutWhileDown, ..) if is_needed => (
            format!("{name} on {node} is down and out"),
            format!("{read_log}; it is in again when it is back"),
        ),
        (Admission::Out, ..) if is_needed => (format!("{name} on {node} is down and out"), read_log),
        (Admission::OutWhileDown, ..) => (
            format!("{name} on {node} is down and out, and nothing waits for it"),
            format!("{read_log}; it is in again when it is back. If it is lost: `millpond osd rm {number}`"),
        ),
        (Admission::Out, ..) => (
            format!("{name} on {node} is down and out, and nothing waits for it"),
            format!("remove it with `millpond osd rm {number}`"),
        ),
    };
    let is_waited_for = osd.admission == Admission::In || is_needed;
    let (code, what) = match &osd.failure {
        Some(reason) => {
            let drive = osd.path.as_deref().unwrap_or("its drive");
            (Code::OsdDriveFailed, format!("{what}: its drive {drive} failed: {reason}"))
        }
        None if is_waited_for => (Code::OsdDown, what),
        None => (Code::OsdRemovable, what),
    };
    let consequence = match osd.pgs_in_sync.max(osd.pgs_target) {
        _ if !is_waited_for => "its placement groups are whole elsewhere".to_owned(),
        0 => "no placement group counts on it".to_owned(),
        1 => "1 placement group has one copy less".to_owned(),
        count => format!("{count} placement groups have one copy less"),
    };
    problems.push(Problem::new(code, what, consequence, next));
}

/// What to do about an OSD that gave its drive up. Its process runs on, for its other drives.
fn replace_drive(osd: &OsdView) -> String {
    let number = osd.osd.0;
    let again = osd.pid.map(|pid| format!(", or have it tried again with `kill {pid}`")).unwrap_or_default();
    format!(
        "replace the drive: `millpond osd out {number}`, `millpond osd rm {number}`, `millpond osd add --device PATH`{again}"
    )
}

/// An OSD that is out and still holds something.
fn osd_that_is_out(osd: &OsdView, pgs: &[PgView], problems: &mut Vec<Problem>) {
    if osd.admission == Admission::In || osd.pgs_in_sync == 0 {
        return;
    }
    let count = osd.pgs_in_sync;
    let still = if count == 1 { "is still to be" } else { "are still to be" };
    let remove = format!("`millpond osd rm {}` removes it when nothing is left", osd.osd.0);
    let next = match osd.pgs_target {
        0 => format!("wait: `millpond status --watch` shows how far it is; {remove}"),
        _ => format!("nobody is in that could take them: add an OSD with `millpond osd add`; {remove}"),
    };
    let what = format!("{} is out; {} {still} moved off it", osd.osd, groups(count, pgs.len()));
    let consequence = match osd.up {
        true => "it serves until then, and its drive must stay",
        false => "they count on what it holds until they are rebuilt elsewhere",
    };
    problems.push(Problem::new(Code::OsdDraining, what, consequence, next));
}

/// An OSD that is on its way to being full. Its limits are shares of the space that it can append to
/// (`blocks_max` in `crates/store/src/store.rs`): 88 % for clients' writes, which is what it reports as usable, and 90 %
/// for what it lacks as a learner, which is 102 % of the usable. What the index takes counts too, so that it is full
/// a little before its figures say so.
fn filled(osd: &OsdView) -> Option<Problem> {
    let (used, usable) = (osd.used_bytes?, osd.usable_bytes.filter(|usable| *usable > 0)?);
    let percent = u64::try_from(u128::from(used) * 100 / u128::from(usable)).unwrap_or(u64::MAX);
    let (code, what, next) = match percent {
        ..FILLED_PERCENT => return None,
        FILLED_PERCENT..NEARLY_FULL_PERCENT => {
            (Code::OsdFilling, "filled", "add OSDs or remove data before that")
        }
        _ => (Code::OsdNearlyFull, "nearly full: filled", "add OSDs or remove data now"),
    };
    Some(Problem::new(
        code,
        format!("{} is {what} to {percent} % of what it can store", osd.osd),
        "just below 100 % the placement groups that it has a copy of refuse writes (ENOSPC), and at 102 % it takes no \
         more backfill",
        format!("{next}: {HOW_TO_MAKE_ROOM}"),
    ))
}

fn osd_problems(osd: &OsdView, problems: &mut Vec<Problem>) {
    let name = osd.osd;
    if osd.full == Some(true) {
        problems.push(Problem::new(
            Code::OsdFull,
            format!("{name} is full and refuses writes"),
            "writes to the placement groups that it has a copy of fail (ENOSPC); reads, trims and removals work",
            format!("remove or trim data: {HOW_TO_MAKE_ROOM}"),
        ));
    } else {
        problems.extend(filled(osd));
    }
    integrity::problems_of(osd, problems);
}

/// Active groups with fewer copies than their pool wants: what that means for the data, and what happens next.
fn degraded_groups(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView], problems: &mut Vec<Problem>) {
    let is_up = |id: &OsdId| osds.iter().any(|osd| osd.osd == *id && osd.up);
    let is_in = |id: &OsdId| osds.iter().any(|osd| osd.osd == *id && osd.admission == Admission::In);
    for pool in pools {
        let lacking = |pg: &&PgView| {
            pg.pg.pool == pool.pool && pg.state == PgHealth::Active && pg.in_sync.len() < pool.size as usize
        };
        let mut by_copies: BTreeMap<usize, Vec<&PgView>> = BTreeMap::new();
        for pg in pgs.iter().filter(lacking) {
            by_copies.entry(pg.in_sync.len()).or_default().push(pg);
        }
        for (copies, lacking) in by_copies {
            let missing = |pg: &&PgView| {
                let members = pg.target.iter().chain(&pg.learners);
                members.filter(|osd| !pg.in_sync.contains(osd)).copied().collect::<Vec<OsdId>>()
            };
            let missing: BTreeSet<OsdId> = lacking.iter().flat_map(missing).collect();
            let (back, away): (Vec<OsdId>, Vec<OsdId>) = missing.into_iter().partition(is_up);
            // Whoever is out is no longer waited for.
            let away: Vec<OsdId> = away.into_iter().filter(is_in).collect();
            let names = |osds: &[OsdId]| osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(" and ");
            let next = match (back.is_empty(), away.is_empty()) {
                (false, true) => {
                    let left = integrity::what_is_left(lacking.iter().copied(), osds);
                    let is_full = |osd: &&OsdView| back.contains(&osd.osd) && osd.full == Some(true);
                    let full: Vec<OsdId> = osds.iter().filter(is_full).map(|osd| osd.osd).collect();
                    let room = match full.is_empty() {
                        true => String::new(),
                        false => format!(
                            "; but {} is full and may have no room for what it lacks: add OSDs, or remove or trim data: \
                             {HOW_TO_MAKE_ROOM}",
                            names(&full)
                        ),
                    };
                    let back = names(&back);
                    match left.is_empty() {
                        // Nobody brings it up to date: its process may have died, which the registry does not know yet.
                        true => format!(
                            "wait: {back} was not reached a moment ago; it catches up by itself, or is shown as down in some \
                             seconds{room}"
                        ),
                        false => format!("wait: {back} is catching up by itself{left}{room}"),
                    }
                }
                (_, false) => format!(
                    "bring {} back (`millpond osd tree` shows its node); it catches up by itself then",
                    names(&away)
                ),
                (true, true) => {
                    "`millpond pg dump` shows which groups; their pool wants more OSDs than are in: add one with \
                     `millpond osd add`"
                        .into()
                }
            };
            let what = format!(
                "{} of pool {} {} {copies} of {} copies",
                groups(lacking.len(), pool.pg_count as usize),
                pool.name,
                if lacking.len() == 1 { "has" } else { "have" },
                pool.size,
            );
            let code = if copies > 1 { Code::PgDegraded } else { Code::PgLastCopy };
            let consequence = what_one_more_failure_does(copies, pool.min_size as usize);
            problems.push(Problem::new(code, what, consequence, next));
        }
    }
}

/// Pools that want more copies than there are OSDs to place them on.
fn short_targets(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView], problems: &mut Vec<Problem>) {
    for pool in pools {
        let is_allowed = |osd: &&OsdView| pool.device_class.is_none_or(|class| class == osd.device_class);
        let within: Vec<&OsdView> =
            osds.iter().filter(|osd| osd.admission == Admission::In).filter(is_allowed).collect();
        let nodes: BTreeSet<NodeId> = within.iter().map(|osd| osd.node).collect();
        let is_short = |pg: &&PgView| pg.pg.pool == pool.pool && pg.target.len() < pool.size as usize;
        if within.len() >= pool.size as usize || !pgs.iter().any(|pg| is_short(&pg)) {
            continue;
        }
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let what = format!(
            "pool {} wants {} copies and only {} OSD{}{} on {} node{} {} in",
            pool.name,
            pool.size,
            within.len(),
            plural(within.len()),
            pool.device_class.map_or(String::new(), |class| format!(" of class {class}")),
            nodes.len(),
            plural(nodes.len()),
            if within.len() == 1 { "is" } else { "are" },
        );
        let next = "add one with `millpond osd add`, or take one in again with `millpond osd in`";
        let consequence = "its placement groups keep as many copies as there are OSDs for";
        problems.push(Problem::new(Code::PoolShortOfOsds, what, consequence, next));
    }
}

/// What the next lost OSD means for groups with so many copies in sync.
fn what_one_more_failure_does(copies: usize, min_size: usize) -> &'static str {
    match copies {
        0 | 1 => "one more lost drive loses data",
        copies if copies > min_size => "nothing is at risk from one more failure",
        _ => "one more failure stops them until somebody is back, and loses nothing",
    }
}

fn groups(count: usize, total: usize) -> String {
    format!("{count} of {total} placement groups")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{self, Reports};
    use base::map::{ClusterMap, NodeInfo, OsdInfo, PgConfig, PoolInfo};
    use base::status::{OsdStatus, PgState, PgStatus, RecoveryProgress};
    use base::{Epoch, PgId, PoolId};
    use cluster::Away;
    use registry::RegistryTrouble;

    type Statuses = BTreeMap<OsdId, OsdStatus>;

    fn healthy() -> (ClusterMap, Statuses) {
        let mut map = ClusterMap::default();
        let mut statuses = Statuses::new();
        let members: Vec<OsdId> = (0..3).map(OsdId).collect();
        for (index, osd) in (0u32..).zip(&members) {
            let address = Some(format!("127.0.0.1:{}", 7000 + index).parse().unwrap());
            let info = OsdInfo { node: NodeId(index), bytes: 1 << 30, address, ..OsdInfo::default() };
            map.osds.insert(*osd, info);
            statuses.insert(*osd, OsdStatus { usable_bytes: 1 << 30, ..OsdStatus::default() });
        }
        let pool =
            PoolInfo { name: "default".into(), size: 3, min_size: 2, pg_count: 6, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        for index in 0..6 {
            let pg = PgId { pool: PoolId(1), index };
            let primary = OsdId(index % 3);
            let config = PgConfig { epoch: Epoch(1), primary, in_sync: members.clone(), learners: vec![] };
            map.pgs.insert(pg, config);
            let status = PgStatus {
                epoch: Epoch(1),
                state: PgState::Active,
                in_sync: members.clone(),
                objects: 0,
                recovery: None,
            };
            statuses.get_mut(&primary).unwrap().pgs.insert(pg, status);
        }
        (map, statuses)
    }

    fn verdict(map: &ClusterMap, statuses: &Statuses) -> Health {
        judged(map, &Reports::from(statuses.clone()))
    }

    fn judged(map: &ClusterMap, reports: &Reports) -> Health {
        let pgs = view::pgs(map, reports);
        judge(&view::osds(map, reports), &pgs, &view::pools(map, &pgs), reports.silence.as_deref())
    }

    #[test]
    fn a_whole_cluster_has_no_problems() {
        let (map, statuses) = healthy();
        assert_eq!(verdict(&map, &statuses), Health { level: Level::Ok, problems: vec![] });
    }

    #[test]
    fn a_lost_osd_is_named_with_the_groups_it_stops() {
        let (mut map, mut statuses) = healthy();
        map.osds.get_mut(&OsdId(1)).unwrap().address = None;
        statuses.remove(&OsdId(1));
        let health = verdict(&map, &statuses);
        assert_eq!(health.level, Level::Error);
        let text: Vec<&str> = health.problems.iter().map(|problem| problem.what.as_str()).collect();
        assert_eq!(
            text,
            ["2 of 6 placement groups are stopped: its primary osd.1 is down", "osd.1 on node.1 is down"]
        );
        assert!(health.problems.iter().all(|problem| !problem.next.is_empty()));
    }

    #[test]
    fn a_degraded_group_says_what_it_means_and_what_comes_next() {
        let (mut map, mut statuses) = healthy();
        let pg = PgId { pool: PoolId(1), index: 0 };
        let config = map.pgs.get_mut(&pg).unwrap();
        (config.in_sync, config.learners) = (vec![OsdId(0), OsdId(2)], vec![OsdId(1)]);
        let status = statuses.get_mut(&OsdId(0)).unwrap().pgs.get_mut(&pg).unwrap();
        status.in_sync = vec![OsdId(0), OsdId(2)];
        let health = verdict(&map, &statuses);
        assert_eq!(health.level, Level::Warning);
        assert_eq!(
            (health.problems[0].code, health.problems[0].what.as_str()),
            (Code::PgDegraded, "1 of 6 placement groups of pool default has 2 of 3 copies")
        );
        assert_eq!(
            health.problems[0].consequence,
            "one more failure stops them until somebody is back, and loses nothing"
        );
        let next = &health.problems[0].next;
        assert!(next.starts_with("wait: osd.1 was not reached a moment ago; it catches up"), "{next}");
        let status = statuses.get_mut(&OsdId(0)).unwrap().pgs.get_mut(&pg).unwrap();
        status.recovery = Some(RecoveryProgress { objects_left: 3, bytes_left: 4096 });
        let next = verdict(&map, &statuses).problems.swap_remove(0).next;
        assert_eq!(
            next,
            "wait: osd.1 is catching up by itself; 3 objects, of them 4KiB known to differ, are left"
        );
        statuses.get_mut(&OsdId(1)).unwrap().full = true;
        let next = &verdict(&map, &statuses)
            .problems
            .into_iter()
            .find(|it| it.next.starts_with("wait"))
            .unwrap()
            .next;
        assert!(next.contains("osd.1 is full and may have no room for what it lacks: add OSDs"), "{next}");
        map.osds.get_mut(&OsdId(1)).unwrap().address = None;
        let health = verdict(&map, &statuses);
        let degraded = health.problems.iter().find(|problem| problem.what.contains("2 of 3 copies")).unwrap();
        assert!(degraded.next.starts_with("bring osd.1 back"), "{}", degraded.next);
    }

    #[test]
    fn a_group_is_not_active_on_the_word_of_an_older_epoch() {
        let (mut map, statuses) = healthy();
        map.pgs.get_mut(&PgId { pool: PoolId(1), index: 0 }).unwrap().epoch = Epoch(2);
        let pgs = view::pgs(&map, &Reports::from(statuses));
        assert_eq!((pgs[0].state, pgs[1].state), (PgHealth::Peering, PgHealth::Active));
    }

    /// The problems of `map`, each with what comes next.
    fn told(map: &ClusterMap, statuses: &Statuses, away: Option<Away>) -> Vec<String> {
        let away = away.into_iter().map(|away| (OsdId(2), away)).collect();
        let health = judged(map, &Reports { away, ..Reports::from(statuses.clone()) });
        health.problems.into_iter().map(|problem| format!("{}: {}", problem.what, problem.next)).collect()
    }

    #[test]
    fn an_osd_that_is_down_says_what_becomes_of_it() {
        let (mut map, statuses) = healthy();
        map.osds.get_mut(&OsdId(2)).unwrap().address = None;
        let down = |away| {
            let problems = told(&map, &statuses, away);
            problems.into_iter().find(|problem| problem.starts_with("osd.2 on node.2 is down: ")).unwrap()
        };
        assert!(down(None).ends_with("starts the node again by itself, unless it was told --no-restart"));
        let mut joined = map.clone();
        joined.nodes.insert(NodeId(2), NodeInfo { host: "h3".into(), ..NodeInfo::default() });
        let told = self::told(&joined, &statuses, None);
        assert!(
            told.iter().any(|problem| problem.contains("look at host h3: `millpond node start`")),
            "{told:?}"
        );
        let soon =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 470;
        let told = down(Some(Away::Out { at_unix_seconds: soon }));
        assert!(told.ends_with("it is taken out in 8 min if it stays away"), "{told}");
        let told = down(Some(Away::In { reason: "too few are left".into() }));
        assert!(told.ends_with("it is not taken out by itself: too few are left"), "{told}");
    }

    #[test]
    fn an_osd_that_is_out_is_a_problem_as_long_as_it_holds_or_misses_something() {
        let (mut map, statuses) = healthy();
        map.osds.get_mut(&OsdId(2)).unwrap().admission = Admission::Out;
        // Nothing was found to take its place yet.
        let problems = told(&map, &statuses, None);
        assert!(
            problems[0]
                .starts_with("osd.2 is out; 6 of 6 placement groups are still to be moved off it: nobody")
        );
        for (pg, config) in &map.pgs {
            map.targets.insert(*pg, config.in_sync.iter().copied().filter(|osd| *osd != OsdId(2)).collect());
        }
        let problems = told(&map, &statuses, None);
        assert!(problems[0].contains("are still to be moved off it: wait"), "{problems:?}");
        assert!(
            problems[1].starts_with("pool default wants 3 copies and only 2 OSDs on 2 nodes are in: add one")
        );
        for config in map.pgs.values_mut() {
            config.in_sync.retain(|osd| *osd != OsdId(2));
            config.primary = config.in_sync[0];
        }
        let problems = told(&map, &statuses, None);
        assert!(!problems.iter().any(|problem| problem.contains("moved off it")), "{problems:?}");
        let degraded = problems.iter().find(|problem| problem.contains("2 of 3 copies"));
        assert!(degraded.is_none_or(|problem| problem.contains("osd add")), "{problems:?}");
        map.osds.get_mut(&OsdId(2)).unwrap().address = None;
        let problems = told(&map, &statuses, None);
        assert!(
            problems
                .iter()
                .any(|problem| problem.contains("nothing waits for it: remove it with `millpond osd rm 2`")),
            "{problems:?}"
        );
    }

    #[test]
    fn a_full_osd_is_an_error_and_a_damaged_block_a_warning() {
        let (map, mut statuses) = healthy();
        statuses.get_mut(&OsdId(0)).unwrap().damaged_reads = 1;
        statuses.get_mut(&OsdId(2)).unwrap().full = true;
        let health = verdict(&map, &statuses);
        let levels: Vec<Level> = health.problems.iter().map(|problem| problem.level).collect();
        assert_eq!(levels, [Level::Error, Level::Warning]);
        assert!(health.problems[0].what.contains("osd.2 is full"));
        assert!(health.problems[1].what.contains("1 block whose"));
    }

    #[test]
    fn an_osd_on_its_way_to_being_full_says_at_which_point_what_happens() {
        let (map, mut statuses) = healthy();
        let mut judged_at = |used_bytes: u64, full: bool| {
            let status = statuses.get_mut(&OsdId(1)).unwrap();
            (status.usable_bytes, status.used_bytes, status.full) = (1000, used_bytes, full);
            verdict(&map, &statuses)
        };
        assert_eq!(judged_at(849, false).problems, []);
        for (used, start, urgency) in [
            (850, "osd.1 is filled to 85 %", "before that"),
            (899, "osd.1 is filled to 89 %", "before that"),
            (900, "osd.1 is nearly full: filled to 90 %", "now"),
            (999, "osd.1 is nearly full: filled to 99 %", "now"),
        ] {
            let health = judged_at(used, false);
            let [problem] = health.problems.as_slice() else { panic!("{health:?}") };
            assert_eq!((health.level, problem.level), (Level::Warning, Level::Warning));
            assert!(problem.what.starts_with(start), "{}", problem.what);
            let consequence = &problem.consequence;
            assert!(consequence.contains("ENOSPC") && consequence.contains("backfill"), "{consequence}");
            assert!(
                problem.next.starts_with(&format!("add OSDs or remove data {urgency}")),
                "{}",
                problem.next
            );
        }
        // A full one says so, and nothing less.
        let health = judged_at(1000, true);
        let [problem] = health.problems.as_slice() else { panic!("{health:?}") };
        assert_eq!(
            (problem.level, problem.what.as_str()),
            (Level::Error, "osd.1 is full and refuses writes")
        );
    }

    #[test]
    fn figures_nobody_reported_are_absent() {
        let (map, _) = healthy();
        let osds = view::osds(&map, &Reports::default());
        let capacity = view::capacity(&osds);
        assert_eq!((capacity.bytes, capacity.used_bytes, capacity.osds_unreported), (3 << 30, None, 3));
        assert_eq!(view::pgs(&map, &Reports::default())[0].state, PgHealth::Unknown);
    }

    #[test]
    fn who_tells_nothing_is_named_once_and_nobody_is_where_no_manager_tells() {
        let (mut map, mut statuses) = healthy();
        statuses.remove(&OsdId(1));
        let health = verdict(&map, &statuses);
        let what: Vec<&str> = health.problems.iter().map(|problem| problem.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "2 of 6 placement groups are in an unknown state: node.1, which runs its primary, tells nothing",
                "node.1 tells the manager nothing of its 1 OSD, which is up"
            ]
        );
        map.osds.get_mut(&OsdId(2)).unwrap().address = None;
        let reports = Reports { silence: Some("node.0 does not answer".to_owned()), ..Reports::default() };
        let health = crate::status::Picture::of(&map, &reports, None).status.overview.health;
        let codes: Vec<Code> = health.problems.iter().map(|problem| problem.code).collect();
        // Who is down, the registry knows.
        assert_eq!(codes, [Code::ManagerSilent, Code::PgStopped, Code::PgUnknown, Code::OsdDown]);
        assert!(health.problems[0].what.contains("node.0 does not answer"), "{health:?}");
        assert!(health.problems[2].what.ends_with("nobody tells how it is"), "{health:?}");
    }

    #[test]
    fn every_code_can_come_up() {
        let mut found: BTreeSet<Code> = BTreeSet::new();
        let mut see = |change: &dyn Fn(&mut ClusterMap, &mut Statuses)| {
            let (mut map, mut statuses) = healthy();
            change(&mut map, &mut statuses);
            let problems = verdict(&map, &statuses).problems;
            assert!(problems.iter().all(|problem| !problem.consequence.is_empty()), "{problems:?}");
            found.extend(problems.iter().map(|problem| problem.code));
            problems.into_iter().map(|problem| problem.code).collect::<Vec<Code>>()
        };
        let pg = PgId { pool: PoolId(1), index: 0 };
        let state = |statuses: &mut Statuses, state| {
            statuses.get_mut(&OsdId(0)).unwrap().pgs.get_mut(&pg).unwrap().state = state;
        };
        let status = |statuses: &mut Statuses, change: &dyn Fn(&mut OsdStatus)| {
            change(statuses.get_mut(&OsdId(0)).unwrap());
        };
        let is_down = |map: &mut ClusterMap, osd: u32| map.osds.get_mut(&OsdId(osd)).unwrap().address = None;
        let reason = || "a reason".to_owned();
        assert_eq!(see(&|map, _| is_down(map, 1)), [Code::PgStopped, Code::OsdDown]);
        see(&|_, statuses| state(statuses, PgState::Stopped { reason: reason() }));
        assert_eq!(
            see(&|_, statuses| state(statuses, PgState::Waiting { reason: reason() })),
            [Code::PgWaiting]
        );
        assert_eq!(see(&|_, statuses| state(statuses, PgState::Peering)), [Code::PgPeering]);
        assert_eq!(see(&|_, statuses| status(statuses, &|it| it.pgs.clear())), [Code::PgUnknown]);
        assert_eq!(see(&|_, statuses| status(statuses, &|it| it.lost_blocks = 1)), [Code::DataLost]);
        assert_eq!(see(&|_, statuses| status(statuses, &|it| it.full = true)), [Code::OsdFull]);
        let filled = |statuses: &mut Statuses, used| {
            status(statuses, &|it| (it.used_bytes, it.usable_bytes) = (used, 100));
        };
        assert_eq!(see(&|_, statuses| filled(statuses, 85)), [Code::OsdFilling]);
        assert_eq!(see(&|_, statuses| filled(statuses, 90)), [Code::OsdNearlyFull]);
        let damaged = see(&|_, statuses| status(statuses, &|it| it.damaged_reads = 1));
        assert_eq!(damaged, [Code::OsdDamagedBlocks]);
        let copies = |map: &mut ClusterMap, count| map.pgs.get_mut(&pg).unwrap().in_sync.truncate(count);
        assert_eq!(see(&|map, _| copies(map, 2)), [Code::PgDegraded]);
        assert_eq!(see(&|map, _| copies(map, 1)), [Code::PgLastCopy]);
        let failed = see(&|map, statuses| {
            is_down(map, 0);
            status(statuses, &|it| it.failure = Some(reason()));
        });
        assert!(failed.contains(&Code::OsdDriveFailed), "{failed:?}");
        let out = |map: &mut ClusterMap, osd: u32| {
            map.osds.get_mut(&OsdId(osd)).unwrap().admission = Admission::Out;
        };
        assert!(see(&|map, _| out(map, 2)).contains(&Code::OsdDraining));
        let short = see(&|map, _| {
            out(map, 2);
            is_down(map, 2);
            for (pg, config) in &mut map.pgs {
                config.in_sync.retain(|osd| *osd != OsdId(2));
                config.primary = config.in_sync[0];
                map.targets.insert(*pg, config.in_sync.clone());
            }
        });
        assert!(short.contains(&Code::OsdRemovable) && short.contains(&Code::PoolShortOfOsds), "{short:?}");
        assert_eq!(see(&|map, _| (map.pools.clear(), map.pgs.clear()).0), [Code::PoolNone]);
        let silent = see(&|_, statuses| drop(statuses.remove(&OsdId(0))));
        assert_eq!(silent, [Code::PgUnknown, Code::NodeSilent]);
        let whole = verdict(&healthy().0, &healthy().1);
        let member = || "a:2379".to_owned();
        for (trouble, code, level) in [
            (RegistryTrouble::Full { member: member() }, Code::RegistryFull, Level::Error),
            (
                RegistryTrouble::Filling { member: member(), bytes: 8, bytes_max: 9, is_quota_known: true },
                Code::RegistryFilling,
                Level::Warning,
            ),
            (
                RegistryTrouble::MemberDown { member: member(), reason: "it is gone".into() },
                Code::RegistryMemberDown,
                Level::Warning,
            ),
            (
                RegistryTrouble::Outdated { member: member(), version: "3.3.1".into() },
                Code::RegistryOutdated,
                Level::Warning,
            ),
        ] {
            let (map, statuses) = healthy();
            let reports = Reports { registry: vec![trouble], ..Reports::from(statuses) };
            let health = crate::status::Picture::of(&map, &reports, None).status.overview.health;
            let [problem] = health.problems.as_slice() else { panic!("{health:?}") };
            assert_eq!((problem.code, problem.level, health.level), (code, level, level));
            assert!(problem.what.contains("a:2379") && !problem.consequence.is_empty(), "{problem:?}");
            assert_eq!(whole.clone().with([problem.clone()].into_iter()).level, level);
            found.insert(code);
        }
        let nobody = Reports { silence: Some(reason()), ..Reports::default() };
        found.extend(judged(&healthy().0, &nobody).problems.iter().map(|problem| problem.code));
        let missing: Vec<Code> = Code::ALL.into_iter().filter(|code| !found.contains(code)).collect();
        assert!(missing.is_empty(), "no cluster shows {missing:?}");
    }
}
