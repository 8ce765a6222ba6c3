//! Whether the cluster keeps its promise, why not, and what to do next.

mod damage;
mod groups;
mod osds;
mod schedules;
#[cfg(test)]
mod tests;

use crate::codes::{Code, Level};
use crate::problem::{Health, Problem};
use crate::view::{OsdView, PgView, PoolView};
use base::NodeId;
use base::map::Admission;
use std::collections::{BTreeMap, BTreeSet};

pub use schedules::late;

const HOW_TO_MAKE_ROOM: &str = "`millpond volume purge` of what `millpond volume trash` shows, `millpond volume rm NAME \
                                --now`, or `fstrim` in a client";

/// Judges the cluster. `silence` is why nobody tells how the OSDs are, if so.
pub fn judge(osds: &[OsdView], pgs: &[PgView], pools: &[PoolView], silence: Option<&str>) -> Health {
    let mut problems = Vec::new();
    who_is_silent(osds, silence, &mut problems);
    groups::stopped(pgs, &mut problems);
    for osd in osds {
        osds::down(osd, &mut problems);
        osds::hangs(osd, &mut problems);
        osds::out(osd, pgs, &mut problems);
        osds::full(osd, &mut problems);
        damage::problems_of(osd, &mut problems);
    }
    groups::degraded(osds, pgs, pools, &mut problems);
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

fn so_many_groups(count: usize, total: usize) -> String {
    format!("{count} of {total} placement groups")
}
