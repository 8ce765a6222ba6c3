//! Copies that may be the last good ones, and are lost with the OSD or the drive that a command gives up. So a command asks
//! first: by the map, who else is in sync; of those who lead groups, whether they want a sound copy of a block that somebody who
//! catches up, or was a member, may have. What is to be lost all the same a person says, pool by pool.

use crate::host::inquiry::Inquiry;
use anyhow::bail;
use base::map::{ClusterMap, PgConfig};
use base::{OsdId, PgId, PoolId};
use clap::Args;
use cluster::Cluster;
use std::collections::{BTreeMap, BTreeSet};

/// What a person gives up.
#[derive(Args, Clone, Debug, Default)]
pub struct GivenUp {
    /// Go on though the OSD has, or may have, the last good copy of placement groups of this pool, which is lost then; repeat it for
    /// more
    #[arg(long, value_name = "POOL")]
    pub lose_last_copy_of: Vec<String>,
}

impl GivenUp {
    /// Whether the copies of a pool are given up.
    pub fn has(&self, map: &ClusterMap, pool: PoolId) -> bool {
        self.lose_last_copy_of.contains(&name_of(map, pool))
    }

    /// Refuses to lose the copies of other pools by replacing an OSD.
    pub fn check(&self, osd: OsdId, last: &LastCopies, map: &ClusterMap) -> anyhow::Result<()> {
        let is_refused = |(pool, _): &(&PoolId, &LastOfPool)| !self.has(map, **pool);
        let refused: Vec<_> = last.pools.iter().filter(is_refused).collect();
        if refused.is_empty() {
            return Ok(());
        }
        let told: Vec<String> = refused
            .iter()
            .map(|(pool, of_pool)| of_pool.in_words(&name_of(map, **pool), map.pgs_of(**pool).count()))
            .collect();
        bail!(
            "{osd} has the last good copy that there is now of {}; what was written there is lost if it is replaced. If its \
             drive is lost for good, and nobody else's comes back, say {}",
            told.join(", and of "),
            flags(map, refused.into_iter().map(|(pool, _)| *pool))
        )
    }

    /// Refuses to remove an OSD that is down if others want a sound copy of a block, which it may have: it is no member any more
    /// since it is out, so any group of its pools may have been its own.
    pub async fn check_not_wanted(
        &self,
        osd: OsdId,
        cluster: &Cluster,
        inquiry: &Inquiry,
    ) -> anyhow::Result<()> {
        let map = cluster.map().await?;
        // Who is up was asked for what it has when it was a member.
        let is_down = map.osds.get(&osd).is_some_and(|info| info.address.is_none());
        if !is_down {
            return Ok(());
        }
        let may_be_wanted = |map: &ClusterMap, pg: &PgId, _: &PgConfig| !self.has(map, pg.pool);
        let (map, mut in_want) = match in_want(cluster, inquiry, may_be_wanted).await? {
            Ok(told) => told,
            Err(why) => bail!(
                "{osd} is down, and may have the last sound copy of a block that others want, and nobody tells: {why}. Run this \
                 again when `millpond status` says how all OSDs are; or give up what it may have with --lose-last-copy-of"
            ),
        };
        in_want.retain(|pg| !self.has(&map, pg.pool));
        wanted_in_words(osd, &map, &in_want).map_or(Ok(()), |refusal| bail!(refusal))
    }
}

/// Why an OSD is not removed, if there are groups that may want what it has.
fn wanted_in_words(osd: OsdId, map: &ClusterMap, in_want: &BTreeSet<PgId>) -> Option<String> {
    let example = in_want.first()?;
    let groups = if in_want.len() == 1 { "placement group" } else { "placement groups" };
    let pools: BTreeSet<PoolId> = in_want.iter().map(|pg| pg.pool).collect();
    Some(format!(
        "{osd} is down, and may have the last sound copy of a block that the others want, in {} {groups}, {example} among \
         them; bring it back first, and take it in; or give up what it may have: {}",
        in_want.len(),
        flags(map, pools)
    ))
}

fn flags(map: &ClusterMap, pools: impl IntoIterator<Item = PoolId>) -> String {
    let flags = pools.into_iter().map(|pool| format!("--lose-last-copy-of {}", name_of(map, pool)));
    flags.collect::<Vec<_>>().join(" ")
}

fn name_of(map: &ClusterMap, pool: PoolId) -> String {
    map.pools.get(&pool).map_or_else(|| pool.to_string(), |pool| pool.name.clone())
}

/// The map, and all groups that want a sound copy of a block; or why it is not told whether one of those does that
/// `may_be_wanted`. Nobody's silence is taken for a no, but for that of who is down, who leads none.
pub async fn in_want(
    cluster: &Cluster,
    inquiry: &Inquiry,
    may_be_wanted: impl Fn(&ClusterMap, &PgId, &PgConfig) -> bool,
) -> anyhow::Result<Result<(ClusterMap, BTreeSet<PgId>), String>> {
    let leaders = |map: &ClusterMap| -> BTreeSet<OsdId> {
        let asked = map.pgs.iter().filter(|(pg, config)| may_be_wanted(map, pg, config));
        asked.map(|(_, config)| config.primary).filter(|osd| is_up(map, *osd)).collect()
    };
    let told = match leaders(&cluster.map().await?).is_empty() {
        true => Vec::new(),
        false => match inquiry.told_osds().await? {
            Ok(told) => told,
            Err(why) => return Ok(Err(why)),
        },
    };
    // Whoever leads a group by now must have told.
    let map = cluster.map().await?;
    let is_silent = |leader: &OsdId| !told.iter().any(|view| view.osd == *leader && view.is_reported());
    if let Some(leader) = leaders(&map).into_iter().find(is_silent) {
        return Ok(Err(format!("{leader} has not said how its placement groups are")));
    }
    Ok(Ok((map, told.into_iter().flat_map(|view| view.in_want).collect())))
}

/// The groups of which an OSD may have the last good copy: nobody else who is up is in sync, or those who are want one.
#[derive(Debug, Default)]
pub struct LastCopies {
    pub pools: BTreeMap<PoolId, LastOfPool>,
    /// Those that nobody else is in sync in at all.
    pub alone: BTreeSet<PgId>,
    /// Those in which somebody is who is down.
    pub with_others_down: BTreeMap<PgId, PgConfig>,
}

/// Those of a pool.
#[derive(Debug, Default)]
pub struct LastOfPool {
    pgs: usize,
    example: PgId,
    /// Who else has one, and is down.
    down: BTreeSet<OsdId>,
    /// Of those that nobody else is in sync in, who else is or shall be a member.
    older: BTreeSet<OsdId>,
    /// In how many of them it is not in sync, and the others want a sound copy of a block.
    in_want: usize,
}

impl LastOfPool {
    /// What is given up with them, and by whom else it may be had, for a person.
    fn in_words(&self, pool: &str, of_all: usize) -> String {
        let LastOfPool { pgs, example, down, older, in_want } = self;
        let who_has = |osds: &BTreeSet<OsdId>| {
            let names: Vec<String> = osds.iter().map(OsdId::to_string).collect();
            format!("{} {}", names.join(" and "), if osds.len() == 1 { "has" } else { "have" })
        };
        let mut more = Vec::new();
        if !down.is_empty() {
            let is = if down.len() == 1 { "is" } else { "are" };
            more.push(format!("{} one too, and {is} down: bring that back first", who_has(down)));
        }
        if !older.is_empty() {
            more.push(format!("what {} of them is older, and is given up with it", who_has(older)));
        }
        if *in_want > 0 {
            more.push(format!(
                "in {in_want} of them the others want a sound copy of a block, which it may have: bring it back first"
            ));
        }
        let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join("; ")) };
        format!("{pgs} of {of_all} placement groups of pool {pool}, {example} among them{more}")
    }
}

impl LastCopies {
    /// `in_want` are the groups that want a sound copy of a block.
    pub fn of(map: &ClusterMap, osd: OsdId, in_want: &BTreeSet<PgId>) -> LastCopies {
        let mut last = LastCopies::default();
        for (pg, config) in &map.pgs {
            let is_in_sync = config.in_sync.contains(&osd);
            let target = map.targets.get(pg);
            let is_wanted = has_a_part(map, pg, config, osd) && in_want.contains(pg);
            let others: Vec<OsdId> = config.in_sync.iter().copied().filter(|one| *one != osd).collect();
            let is_last = is_in_sync && !others.iter().any(|one| is_up(map, *one));
            if !is_last && !is_wanted {
                continue;
            }
            let fresh = || LastOfPool { example: *pg, ..LastOfPool::default() };
            let of_pool = last.pools.entry(pg.pool).or_insert_with(fresh);
            of_pool.pgs += 1;
            if is_wanted {
                of_pool.in_want += 1;
            } else if others.is_empty() {
                let members = config.learners.iter().chain(target.into_iter().flatten());
                of_pool.older.extend(members.filter(|one| **one != osd));
                last.alone.insert(*pg);
            } else {
                of_pool.down.extend(&others);
                last.with_others_down.insert(*pg, config.clone());
            }
        }
        last
    }

    pub fn has(&self, pg: &PgId) -> bool {
        self.alone.contains(pg) || self.with_others_down.contains_key(pg)
    }
}

/// Whether an OSD is or shall be a member of a group, and is not in sync in it.
pub fn has_a_part(map: &ClusterMap, pg: &PgId, config: &PgConfig, osd: OsdId) -> bool {
    let is_target = || map.targets.get(pg).is_some_and(|target| target.contains(&osd));
    !config.in_sync.contains(&osd) && (config.learners.contains(&osd) || is_target())
}

fn is_up(map: &ClusterMap, osd: OsdId) -> bool {
    map.osds.get(&osd).is_some_and(|info| info.address.is_some())
}

#[cfg(test)]
pub(super) mod tests;
