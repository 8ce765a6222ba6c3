//! Placement groups that do not serve, or with fewer copies than their pool wants.

use super::{HOW_TO_MAKE_ROOM, so_many_groups};
use crate::codes::Code;
use crate::problem::Problem;
use crate::view::{OsdView, PgHealth, PgView, PoolView};
use base::OsdId;
use base::duration::about;
use base::map::Admission;
use base::units::ByteSize;
use std::collections::{BTreeMap, BTreeSet};

const WAIT_OR_READ_LOG: &str = "wait some seconds; if it stays so, read the log of the primary's node";

/// Groups that do not serve, one problem for each reason.
pub(super) fn stopped(pgs: &[PgView], problems: &mut Vec<Problem>) {
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
            PgHealth::Waiting if count == 1 => {
                (Code::PgWaiting, "bring what it waits for; `millpond pg dump` shows which group")
            }
            PgHealth::Waiting => {
                (Code::PgWaiting, "bring what they wait for; `millpond pg dump` shows which groups")
            }
            PgHealth::Peering => (Code::PgPeering, WAIT_OR_READ_LOG),
            PgHealth::Unknown => (Code::PgUnknown, WAIT_OR_READ_LOG),
            PgHealth::Active => continue,
        };
        let what = format!("{} {}: {reason}", so_many_groups(count, pgs.len()), state_verb(state, count));
        let consequence = match (state, count) {
            (PgHealth::Unknown, 1) => "it may serve or not",
            (PgHealth::Unknown, _) => "they may serve or not",
            (_, 1) => "reads and writes of its data wait, or fail at their time limit",
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

/// Active groups with fewer copies than their pool wants: what that means for the data, and what happens next.
pub(super) fn degraded(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView], problems: &mut Vec<Problem>) {
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
            let of_one = |osds: &[OsdId], one: &'static str, several: &'static str| {
                if osds.len() == 1 { one } else { several }
            };
            let next = match (back.is_empty(), away.is_empty()) {
                (false, true) => {
                    let left = what_is_left(lacking.iter().copied(), osds);
                    let is_full = |osd: &&OsdView| back.contains(&osd.osd) && osd.full == Some(true);
                    let full: Vec<OsdId> = osds.iter().filter(is_full).map(|osd| osd.osd).collect();
                    let room = match full.is_empty() {
                        true => String::new(),
                        false => format!(
                            "; but {} full and may have no room for what {}: add OSDs, or remove or trim data: \
                             {HOW_TO_MAKE_ROOM}",
                            names(&full) + of_one(&full, " is", " are"),
                            of_one(&full, "it lacks", "they lack"),
                        ),
                    };
                    match left.is_empty() {
                        // Nobody brings it up to date: its process may have died, which the registry does not know yet.
                        true => format!(
                            "wait: {} not reached a moment ago; {} shown as down in some seconds{room}",
                            names(&back) + of_one(&back, " was", " were"),
                            of_one(
                                &back,
                                "it catches up by itself, or is",
                                "they catch up by themselves, or are"
                            ),
                        ),
                        false => format!(
                            "wait: {} catching up by {}{left}{room}",
                            names(&back) + of_one(&back, " is", " are"),
                            of_one(&back, "itself", "themselves"),
                        ),
                    }
                }
                (_, false) => format!(
                    "bring {} back (`millpond osd tree` shows {}); {} then",
                    names(&away),
                    of_one(&away, "its node", "their nodes"),
                    of_one(&away, "it catches up by itself", "they catch up by themselves"),
                ),
                (true, true) => {
                    "`millpond pg dump` shows which groups; their pool wants more OSDs than are in: add one with \
                     `millpond osd add`"
                        .into()
                }
            };
            let what = format!(
                "{} of pool {} {} {copies} of {} copies",
                so_many_groups(lacking.len(), pool.pg_count as usize),
                pool.name,
                if lacking.len() == 1 { "has" } else { "have" },
                pool.size,
            );
            let code = if copies > 1 { Code::PgDegraded } else { Code::PgLastCopy };
            let consequence = what_one_more_failure_does(lacking.len(), copies, pool.min_size as usize);
            problems.push(Problem::new(code, what, consequence, next));
        }
    }
}

/// What the next lost OSD means for so many groups with so many copies in sync.
fn what_one_more_failure_does(groups: usize, copies: usize, min_size: usize) -> &'static str {
    match (copies, groups) {
        (0 | 1, _) => "one more lost drive loses data",
        (copies, _) if copies > min_size => "nothing is at risk from one more failure",
        (_, 1) => "one more failure stops it until somebody is back, and loses nothing",
        _ => "one more failure stops them until somebody is back, and loses nothing",
    }
}

/// How much those who catch up in these groups still lack, and how long that may take.
fn what_is_left<'a>(pgs: impl IntoIterator<Item = &'a PgView>, osds: &[OsdView]) -> String {
    let left = pgs.into_iter().filter_map(|pg| pg.recovery);
    let sum = |one: (u64, u64), other: (u64, u64)| (one.0 + other.0, one.1 + other.1);
    let Some((objects, bytes)) = left.map(|left| (left.objects_left, left.bytes_left)).reduce(sum) else {
        return String::new();
    };
    let rate: u64 = osds.iter().filter_map(|osd| osd.recovery_bytes_per_s).sum();
    let estimate = match bytes.checked_div(rate) {
        Some(seconds) if seconds > 0 => format!(", about {} at {}/s", about(seconds), ByteSize(rate)),
        _ => String::new(),
    };
    let differing = ByteSize(bytes);
    match objects {
        1 => format!("; 1 object, of it {differing} known to differ, is left{estimate}"),
        _ => format!("; {objects} objects, of them {differing} known to differ, are left{estimate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{self, RecoveryView, Reports};
    use base::map::{ClusterMap, OsdInfo};
    use base::status::OsdStatus;
    use base::{Epoch, PgId, PoolId};

    fn osd_with(status: OsdStatus) -> OsdView {
        let mut map = ClusterMap::default();
        map.osds.insert(OsdId(0), OsdInfo::default());
        view::osds(&map, &Reports::from(BTreeMap::from([(OsdId(0), status)])), 0).remove(0)
    }

    #[test]
    fn what_is_left_of_catching_up_is_told_with_an_estimate_as_soon_as_there_is_a_rate() {
        let group = |recovery| PgView {
            pg: PgId { pool: PoolId(1), index: 0 },
            state: PgHealth::Active,
            reason: None,
            epoch: Epoch(1),
            primary: OsdId(0),
            in_sync: vec![OsdId(0)],
            learners: vec![OsdId(1)],
            target: vec![OsdId(0), OsdId(1)],
            objects: Some(9),
            recovery,
            flatten: None,
        };
        let left = |objects_left, bytes_left| Some(RecoveryView { objects_left, bytes_left });
        let osds = |rate| vec![osd_with(OsdStatus { recovery_bytes_per_s: rate, ..OsdStatus::default() }); 2];
        assert_eq!(what_is_left(&[group(None)], &osds(1 << 20)), "");
        let groups = [group(left(3, 60 << 20)), group(None), group(left(4, 60 << 20))];
        let known = "; 7 objects, of them 120MiB known to differ, are left";
        assert_eq!(what_is_left(&groups, &osds(0)), known);
        assert_eq!(what_is_left(&groups, &osds(1 << 20)), format!("{known}, about 60 s at 2MiB/s"));
    }
}
