//! Whether the cluster keeps its promise, why not, and what to do next.

use crate::view::{OsdView, PgHealth, PgView, PoolView};
use base::OsdId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// How the whole cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Everything serves, with all its copies.
    Ok,
    /// Everything serves, and something wants attention.
    Warning,
    /// Something does not serve.
    Error,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad it is.
    pub level: Level,
    /// What is wrong, and why.
    pub what: String,
    /// What to do.
    pub next: String,
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The worst of the problems.
    pub level: Level,
    /// The problems, worst first.
    pub problems: Vec<Problem>,
}

/// Judges the cluster.
pub fn judge(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView]) -> Health {
    let mut problems = Vec::new();
    stopped_groups(pgs, &mut problems);
    for osd in osds {
        osd_problems(osd, &mut problems);
    }
    degraded_groups(osds, pgs, pools, &mut problems);
    if pools.is_empty() {
        problems.push(Problem {
            level: Level::Warning,
            what: "there is no pool, so no volume can be made".to_owned(),
            next: "make one with `millpond pool create default`".to_owned(),
        });
    }
    problems.sort_by_key(|problem| std::cmp::Reverse(problem.level));
    let level = problems.first().map_or(Level::Ok, |problem| problem.level);
    Health { level, problems }
}

/// Groups that do not serve, one problem for each reason.
fn stopped_groups(pgs: &[PgView], problems: &mut Vec<Problem>) {
    let mut reasons: BTreeMap<(PgHealth, &str), usize> = BTreeMap::new();
    for pg in pgs.iter().filter(|pg| pg.state != PgHealth::Active) {
        *reasons.entry((pg.state, pg.reason.as_deref().unwrap_or("no reason given"))).or_default() += 1;
    }
    for ((state, reason), count) in reasons {
        let (level, next) = match state {
            PgHealth::Stopped => {
                (Level::Error, "bring the OSD named here back; `millpond osd tree` shows its node and drive")
            }
            PgHealth::Waiting => {
                (Level::Error, "bring what it waits for; `millpond pg dump` shows which groups")
            }
            _ => (Level::Error, "wait some seconds; if it stays so, read the log of the primary's node"),
        };
        problems.push(Problem {
            level,
            what: format!("{} {}: {reason}", groups(count, pgs.len()), state_verb(state, count)),
            next: next.to_owned(),
        });
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

fn osd_problems(osd: &OsdView, problems: &mut Vec<Problem>) {
    let name = osd.osd;
    if !osd.up {
        problems.push(Problem {
            level: Level::Warning,
            what: format!("{name} on {} is down", osd.node),
            next: format!(
                "read {}.log in the cluster's directory; `up` starts the node again by itself",
                osd.node
            ),
        });
    }
    if osd.full == Some(true) {
        problems.push(Problem {
            level: Level::Error,
            what: format!("{name} is full and refuses writes"),
            next: "remove or trim data: `millpond volume ls`, `millpond volume rm NAME`, or `fstrim` in a client"
                .to_owned(),
        });
    }
    if let Some(count) = osd.damaged_reads.filter(|count| *count > 0) {
        problems.push(Problem {
            level: Level::Warning,
            what: format!(
                "{name} found {count} {} whose checksum does not verify",
                if count == 1 { "block" } else { "blocks" }
            ),
            next: format!(
                "its drive{} returned other bytes than were written; check it with `smartctl` and plan to replace it",
                osd.path.as_ref().map(|path| format!(" {path}")).unwrap_or_default()
            ),
        });
    }
}

/// Active groups with fewer copies than their pool wants: what that means for the data, and what happens next.
fn degraded_groups(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView], problems: &mut Vec<Problem>) {
    let is_up = |id: &OsdId| osds.iter().any(|osd| osd.osd == *id && osd.up);
    for pool in pools {
        let lacking = |pg: &&PgView| {
            pg.pg.pool == pool.pool && pg.state == PgHealth::Active && pg.in_sync.len() < pool.size as usize
        };
        let mut by_copies: BTreeMap<usize, Vec<&PgView>> = BTreeMap::new();
        for pg in pgs.iter().filter(lacking) {
            by_copies.entry(pg.in_sync.len()).or_default().push(pg);
        }
        for (copies, lacking) in by_copies {
            let learners: BTreeSet<OsdId> =
                lacking.iter().flat_map(|pg| pg.learners.iter().copied()).collect();
            let (back, away): (Vec<OsdId>, Vec<OsdId>) = learners.into_iter().partition(is_up);
            let names = |osds: &[OsdId]| osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(" and ");
            let next = match (back.is_empty(), away.is_empty()) {
                (false, true) => format!("wait: {} is catching up by itself", names(&back)),
                (_, false) => format!(
                    "bring {} back (`millpond osd tree` shows its node); it catches up by itself then",
                    names(&away)
                ),
                (true, true) => {
                    "`millpond pg dump` shows which groups; their pool wants more OSDs than there are".into()
                }
            };
            problems.push(Problem {
                level: Level::Warning,
                what: format!(
                    "{} of pool {} {} {copies} of {} copies; {}",
                    groups(lacking.len(), pool.pg_count as usize),
                    pool.name,
                    if lacking.len() == 1 { "has" } else { "have" },
                    pool.size,
                    what_one_more_failure_does(copies, pool.min_size as usize)
                ),
                next,
            });
        }
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
    use crate::view::{self, Statuses};
    use base::map::{ClusterMap, OsdInfo, PgConfig, PoolInfo};
    use base::{Epoch, NodeId, OsdId, OsdUuid, PgId, PoolId};
    use registry::cluster::{OsdStatus, PgState, PgStatus};

    fn healthy() -> (ClusterMap, Statuses) {
        let mut map = ClusterMap::default();
        let mut statuses = Statuses::new();
        let members: Vec<OsdId> = (0..3).map(OsdId).collect();
        for (index, osd) in (0u32..).zip(&members) {
            let address = Some(format!("127.0.0.1:{}", 7000 + index).parse().unwrap());
            let info = OsdInfo {
                uuid: OsdUuid::default(),
                node: NodeId(index),
                bytes: 1 << 30,
                address,
                incarnation: 1,
            };
            map.osds.insert(*osd, info);
            statuses.insert(*osd, OsdStatus { usable_bytes: 1 << 30, ..OsdStatus::default() });
        }
        let pool = PoolInfo { name: "default".into(), size: 3, min_size: 2, pg_count: 6 };
        map.pools.insert(PoolId(1), pool);
        for index in 0..6 {
            let pg = PgId { pool: PoolId(1), index };
            let primary = OsdId(index % 3);
            let config = PgConfig { epoch: Epoch(1), primary, in_sync: members.clone(), learners: vec![] };
            map.pgs.insert(pg, config);
            let status =
                PgStatus { epoch: Epoch(1), state: PgState::Active, in_sync: members.clone(), objects: 0 };
            statuses.get_mut(&primary).unwrap().pgs.insert(pg, status);
        }
        (map, statuses)
    }

    fn verdict(map: &ClusterMap, statuses: &Statuses) -> Health {
        let pgs = view::pgs(map, statuses);
        judge(&view::osds(map, statuses), &pgs, &view::pools(map, &pgs))
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
            health.problems[0].what,
            "1 of 6 placement groups of pool default has 2 of 3 copies; one more failure stops them until somebody \
             is back, and loses nothing"
        );
        assert_eq!(health.problems[0].next, "wait: osd.1 is catching up by itself");
        map.osds.get_mut(&OsdId(1)).unwrap().address = None;
        let health = verdict(&map, &statuses);
        let degraded = health.problems.iter().find(|problem| problem.what.contains("2 of 3 copies")).unwrap();
        assert!(degraded.next.starts_with("bring osd.1 back"), "{}", degraded.next);
    }

    #[test]
    fn a_group_is_not_active_on_the_word_of_an_older_epoch() {
        let (mut map, statuses) = healthy();
        map.pgs.get_mut(&PgId { pool: PoolId(1), index: 0 }).unwrap().epoch = Epoch(2);
        let pgs = view::pgs(&map, &statuses);
        assert_eq!((pgs[0].state, pgs[1].state), (PgHealth::Peering, PgHealth::Active));
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
    fn figures_nobody_reported_are_absent() {
        let (map, _) = healthy();
        let osds = view::osds(&map, &Statuses::new());
        let capacity = view::capacity(&osds);
        assert_eq!((capacity.bytes, capacity.used_bytes, capacity.osds_unreported), (3 << 30, None, 3));
        assert_eq!(view::pgs(&map, &Statuses::new())[0].state, PgHealth::Unknown);
    }
}
