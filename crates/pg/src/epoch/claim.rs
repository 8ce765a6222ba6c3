//! Claims: asking the registry for the next epoch of a group, and who may.

use super::{CLAIM_PAUSE_LONG, end, link_ended, query};
use crate::broken::Sabotage;
use crate::context::Context;
use crate::group::Group;
use crate::group::learner::LEARN_PAUSE_LONG;
use crate::group::obedience::goes_on_in;
use crate::group::role::{Phase, State};
use crate::io::Io;
use crate::journal::Milestone;
use base::map::PgConfig;
use base::{Epoch, History, OsdId, PgId};
use std::time::Duration;

/// How long the members may take to say where they stand.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a primary that the registry just told of may take to show itself to its replicas.
const NEW_PRIMARY_PATIENCE: Duration = Duration::from_secs(2);
/// How long an epoch may wait for a learner's last acknowledgements.
const PROMOTION_MAX: Duration = Duration::from_secs(1);
/// Replicas take over one after the other: this much later each.
const TAKEOVER_STAGGER: Duration = Duration::from_millis(200);
/// A primary that gets a group back so soon after it handed it over keeps it for some time: the heir could not lead it, or its
/// drive does nothing for so long that it gives its groups up, over and over.
const HAND_OVER_FAILED: Duration = Duration::from_secs(30);
/// How long.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(20);
/// For so many groups at a time the registry may be asked for an epoch by choice: should it go away just then, no more of them
/// wait for it.
const CHOICES_MAX: usize = 4;

/// Takes a group's next step towards serving, if it can be taken now.
pub(crate) fn advance(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &cx.groups[index];
    if !group.config.in_sync.contains(&cx.me.id) {
        return;
    }
    match group.state() {
        State::Claiming | State::Candidate | State::Left => return,
        State::Replica | State::Learner | State::Waiting | State::Stopped => return try_to_claim(cx, index),
        State::Querying | State::Repairing | State::Active if group.config.primary != cx.me.id => return,
        State::Querying | State::Repairing | State::Active => {}
    }
    // Whoever the registry does not hear from does not hear from it whom to obey.
    let is_asking = group.state() == State::Querying;
    let is_silent = |osd: &OsdId| !cx.is_present(*osd) || is_asking && cx.presence.is_away(*osd, cx.now);
    let silent = group.replicas(cx.me.id).find(is_silent);
    if let Some(silent) = silent {
        return end(cx, index, &format!("{silent} does not answer"));
    }
    match cx.groups[index].standing.phase() {
        Some(Phase::Querying { since, .. }) if cx.now.since(*since) > QUERY_TIMEOUT => {
            cx.pass(Milestone::QueryTimeout);
            end(cx, index, "a member does not say where it stands");
        }
        Some(Phase::Repairing(repairing)) if repairing.current.is_none() => super::repair::next(cx, index),
        _ => {}
    }
}

/// Asks the registry for an epoch, if one can begin: as the primary, or in its place if it is gone.
fn try_to_claim(cx: &mut Context<'_, impl Io>, index: u32) {
    let group = &cx.groups[index];
    if cx.now < group.pauses.claim_after || cx.turn.is_shutting_down || cx.disk.patience.is_silent(cx.now) {
        return;
    }
    let is_primary = group.config.primary == cx.me.id;
    let may_claim = match is_primary {
        // A primary knows its log's end only when nothing is on its way to the drive. Who takes over goes on as a
        // replica until it has the epoch, and looks then.
        true => group.staged_count == 0 && promotion_is_settled(cx, index),
        false => may_take_over(cx, index),
    };
    if !may_claim {
        return;
    }
    if let Some(failure) = cx.disk.store.failure() {
        if is_primary {
            let reason = format!("the drive of {} failed: {failure}; replace it", cx.me.id);
            cx.groups[index].standing.must_stop(reason);
        }
        return;
    }
    let config = match next_config(cx, index) {
        Ok(config) => config,
        Err(reason) => {
            if is_primary {
                cx.groups[index].standing.must_wait(reason);
            }
            return;
        }
    };
    if !is_primary && !cx.breaks(Sabotage::ForgetFence) {
        // What it still asks for on this connection is not granted any more: a lease that ran out must not be
        // renewed behind the proposal. Should it live, it learns by this that the epoch is over.
        let primary = cx.groups[index].config.primary;
        if let Some(link) = cx.links.link_of(primary) {
            cx.io.close(link, "it is silent, and is replaced");
            link_ended(cx, link, "it is silent, and is replaced");
        }
    }
    let group = &mut cx.groups[index];
    group.standing.claims();
    let kind = kind_of(group, &config, cx.me.id);
    cx.journal.pass(kind);
    cx.io.propose(group.pg, group.config.epoch, config);
}

/// Whether a group that does not serve here is about to, as far as this OSD can see.
pub(crate) fn is_on_its_way(cx: &Context<'_, impl Io>, index: u32) -> bool {
    let group = &cx.groups[index];
    match group.state() {
        State::Candidate | State::Claiming | State::Querying | State::Repairing => true,
        State::Replica | State::Learner | State::Waiting => next_config(cx, index).is_ok(),
        State::Stopped | State::Active | State::Left => false,
    }
}

/// Whether an epoch that serves may be ended by choice: for a member that has caught up, a move, or a split. Until the registry
/// has answered nobody is served then, so it waits while that is away.
pub(crate) fn may_end_by_choice(cx: &Context<'_, impl Io>) -> bool {
    cx.presence.hears_registry(cx.now)
        && cx.groups.iter().filter(|group| group.is_claiming()).count() < CHOICES_MAX
}

/// Whether an OSD is to be replaced as a primary, and is promised nothing more: it has lost its way to the registry, this OSD
/// has not, and takes a group of it over as soon as nothing binds it. What nobody can go on with goes on with it.
pub(crate) fn is_to_be_replaced(cx: &Context<'_, impl Io>, primary: OsdId) -> bool {
    let is_taken_over = |index: u32| {
        let config = &cx.groups[index].config;
        config.primary == primary && config.in_sync.contains(&cx.me.id) && next_config(cx, index).is_ok()
    };
    // The connection ends with the takeover, and with it what this OSD leads with the other in sync.
    let stops = |index: u32| {
        let group = &cx.groups[index];
        group.is_led_here() && group.config.in_sync.contains(&primary) && next_config(cx, index).is_err()
    };
    cx.presence.is_unheard(primary, cx.now)
        && cx.presence.hears_registry(cx.now)
        && cx.groups.indices().any(is_taken_over)
        && !cx.groups.indices().any(stops)
}

/// Whether a learner that shall be in sync has everything that was sent to it on stable media: part of that was
/// acknowledged to clients without it. If it takes too long, the epoch begins without it.
fn promotion_is_settled(cx: &mut Context<'_, impl Io>, index: u32) -> bool {
    let Some(promotion) = cx.groups[index].standing.promotion() else { return true };
    let oldest = match cx.links.osd_mut(promotion.link) {
        Some(peer) => peer.unacknowledged.oldest().unwrap_or(u64::MAX),
        None => 0,
    };
    if oldest > promotion.through {
        return true;
    }
    let is_late = oldest == 0 || cx.now.since(promotion.since) >= PROMOTION_MAX;
    if is_late {
        let osd = promotion.osd;
        cx.groups[index].standing.promotion_failed();
        // The group waited for it in vain, and is not to do so again and again. (Who is gone is not slow.)
        if oldest > 0
            && let Some(learning) = cx.groups[index].learning_mut()
        {
            learning.put_off(osd, cx.now + LEARN_PAUSE_LONG);
        }
        cx.pass(Milestone::PromotionLate);
    }
    is_late
}

/// Whether a replica is free to take its group over: it has promised the primary nothing any more, and those
/// before it in the list had their chance.
fn may_take_over(cx: &mut Context<'_, impl Io>, index: u32) -> bool {
    let (now, me) = (cx.now, cx.me.id);
    let group = &mut cx.groups[index];
    let primary = group.config.primary;
    let is_free = cx.presence.leases.is_free_of(primary, now)
        && now.since(group.pauses.config_seen_at) >= NEW_PRIMARY_PATIENCE;
    // Who was led by itself until now stands in nobody's place.
    let Some(following) = group.standing.following_mut() else { return is_free };
    if !is_free {
        following.free_since = None;
        return false;
    }
    let since = *following.free_since.get_or_insert(now);
    let before = group.config.in_sync.iter().filter(|osd| **osd != primary);
    let rank = before.take_while(|osd| **osd != me).count() as u32;
    now.since(since) >= TAKEOVER_STAGGER * rank
}

/// The configuration to ask for.
///
/// # Errors
/// Why there can be none now.
fn next_config(cx: &Context<'_, impl Io>, index: u32) -> Result<PgConfig, String> {
    let me = cx.me.id;
    let group = &cx.groups[index];
    let config = &group.config;
    if !cx.volumes.map.pools.contains_key(&group.pg.pool) {
        return Err("no map shows its pool any more".to_owned());
    }
    let min_size = group.wanted.min_size;
    let unfit = group.standing.unfit();
    let names = |osds: &[OsdId]| {
        let is_cut_off = osds.iter().any(|osd| cx.is_present(*osd) && !cx.volumes.is_up(*osd));
        let names = osds.iter().map(OsdId::to_string).collect::<Vec<_>>().join(" and ");
        let or = if is_cut_off { ", or does not reach the registry" } else { "" };
        format!("{names} cannot be reached{or}")
    };
    let (mut in_sync, absent): (Vec<OsdId>, Vec<OsdId>) =
        config.in_sync.iter().copied().partition(|osd| *osd == me || cx.can_follow(*osd));
    if config.primary != me {
        // The primary is replaced because it is silent towards this member, whatever else it does.
        in_sync.retain(|osd| *osd != config.primary);
    }
    in_sync.retain(|osd| unfit != Some(*osd));
    // In an epoch that came since, whoever was brought up to date in this one may have left the group.
    let promotion = group.standing.promotion().filter(|_| config.epoch == group.epoch);
    let promoted = promotion.map(|promotion| promotion.osd);
    let is_wanted = |osd: &OsdId| group.wanted_learners().any(|wanted| wanted == *osd);
    in_sync.extend(promoted.filter(|osd| is_wanted(osd) && cx.can_follow(*osd)));
    let is_reachable = |osd: &OsdId| in_sync.contains(osd) || *osd == config.primary || unfit == Some(*osd);
    let missing: Vec<OsdId> = config.in_sync.iter().copied().filter(|osd| !is_reachable(osd)).collect();
    let mut gone = absent;
    if config.primary != me && !gone.contains(&config.primary) {
        gone.push(config.primary);
    }
    // Fewer than that take no writes, so whoever is gone misses nothing as long as it may come back. One that
    // was taken out will not: those who are left are all there is, and bring others up to date.
    if in_sync.len() < min_size && gone.iter().any(|osd| !cx.volumes.is_out(*osd)) {
        let count = in_sync.len();
        return Err(format!(
            "{}, and {count} of at least {min_size} members are left; start its node, or take it out with \
             `millpond osd out` if its drive is lost",
            names(&gone)
        ));
    }
    if missing.iter().any(|osd| !cx.presence.is_away(*osd, cx.now)) {
        return Err(format!("{}; start its node", names(&missing)));
    }
    let replaces_somebody = !missing.is_empty() || config.primary != me;
    if let Some(silent) =
        in_sync.iter().find(|osd| replaces_somebody && **osd != me && !cx.links.was_heard(**osd, cx.now))
    {
        return Err(format!("{}, nor {silent} just now", names(&gone)));
    }
    // Who is not in the target goes when all of it is in sync, this OSD excepted: it hands over first.
    let in_sync: Vec<OsdId> = group.needed_of(&in_sync, me).collect();
    let learners = learners_beside(cx, index, &in_sync);
    let (epoch, history) = (Epoch(config.epoch.0 + 1), next_history(cx, index));
    Ok(PgConfig { epoch, primary: me, in_sync, learners, history })
}

/// The history of a configuration that is asked for.
fn next_history(cx: &Context<'_, impl Io>, index: u32) -> History {
    let group = &cx.groups[index];
    goes_on_in(group.config.history, cx.disk.end_of(group.pg))
}

/// Whom a configuration with these members in sync names beside them: the others of the target; and until all of that
/// is in sync, who was a member before. Such a one gets nothing any more, but it keeps what it has, and may have the
/// last sound copy of a block.
fn learners_beside(cx: &Context<'_, impl Io>, index: u32, in_sync: &[OsdId]) -> Vec<OsdId> {
    let Group { config, wanted, .. } = &cx.groups[index];
    let mut learners: Vec<OsdId> = wanted.target.clone();
    if !wanted.target.iter().all(|osd| in_sync.contains(osd)) {
        let former = config.in_sync.iter().chain(&config.learners);
        let is_known = |osd: &&OsdId| !wanted.target.contains(osd) && cx.volumes.map.osds.contains_key(osd);
        learners.extend(former.filter(is_known));
    }
    learners.retain(|osd| !in_sync.contains(osd));
    learners
}

/// What a configuration that is asked for is to change.
fn kind_of(group: &Group, config: &PgConfig, me: OsdId) -> Milestone {
    let before = &group.config;
    let unfit = group.standing.unfit();
    let is_new = |osd: &OsdId| !before.in_sync.contains(osd);
    let is_gone = |osd: &&OsdId| !config.in_sync.contains(osd);
    if before.primary != me {
        Milestone::ClaimTakeOver
    } else if config.in_sync.iter().any(is_new) {
        Milestone::ClaimMemberTakenIn
    } else if unfit.is_some_and(|osd| is_gone(&&osd)) {
        Milestone::ClaimUnfit
    } else if before.in_sync.iter().filter(is_gone).any(|osd| group.wanted.target.contains(osd)) {
        Milestone::ClaimMemberRemoved
    } else if before.in_sync.iter().any(|osd| is_gone(&osd)) {
        Milestone::ClaimSurplusDropped
    } else {
        Milestone::ClaimSame
    }
}

/// Asks for a configuration in which another member is the primary. From here on this OSD serves nothing of the
/// group, and the other begins an epoch of its own when it hears of it.
pub(crate) fn propose_primary(cx: &mut Context<'_, impl Io>, index: u32, heir: OsdId, in_sync: Vec<OsdId>) {
    end(cx, index, &format!("{heir} becomes its primary"));
    let (learners, history) = (learners_beside(cx, index, &in_sync), next_history(cx, index));
    let group = &mut cx.groups[index];
    let epoch = Epoch(group.config.epoch.0 + 1);
    group.standing.claims();
    let config = PgConfig { epoch, primary: heir, in_sync, learners, history };
    cx.io.propose(group.pg, group.config.epoch, config);
}

/// Asks for the next epoch with the same members, and for the group that is split off with them too. From here on this
/// OSD serves nothing of the group.
pub(crate) fn propose_split(cx: &mut Context<'_, impl Io>, index: u32) {
    end(cx, index, "it is being split");
    let group = &mut cx.groups[index];
    let config = PgConfig { epoch: Epoch(group.config.epoch.0 + 1), ..group.config.clone() };
    group.standing.claims();
    cx.journal.pass(Milestone::ClaimSplit);
    cx.io.propose_split(group.pg, group.config.epoch, config);
}

/// The registry's answer to a proposal: the configuration that stands now, or `None` when the proposal came
/// to nothing.
pub(crate) fn handle_proposal(cx: &mut Context<'_, impl Io>, pg: PgId, accepted: Option<PgConfig>) {
    let (now, me) = (cx.now, cx.me.id);
    let Some(index) = cx.groups.find(pg) else { return };
    let group = &mut cx.groups[index];
    if !group.is_claiming() {
        return;
    }
    let stands = |config: &PgConfig| {
        config.epoch >= group.config.epoch && config.epoch > group.epoch && config.primary == me
    };
    if let Some(config) = accepted.as_ref().filter(|config| config.primary != me) {
        // It was handed over.
        if config.epoch > group.config.epoch {
            group.config = config.clone();
            group.pauses.config_seen_at = now;
        }
        return group.standing.obeys();
    }
    let Some(config) = accepted.filter(stands) else {
        group.pauses.claim_after = now + CLAIM_PAUSE_LONG;
        if group.config.primary == me {
            group.standing.must_wait("the registry did not take the new epoch".to_owned());
        } else {
            group.standing.claim_was_in_vain();
        }
        return cx.pass(Milestone::ClaimInVain);
    };
    group.epoch = config.epoch;
    group.config = config;
    group.note_shown(&cx.volumes.map);
    let pauses = &mut group.pauses;
    pauses.config_seen_at = now;
    if pauses.handed_over_at.is_some_and(|at| now.since(at) < HAND_OVER_FAILED) {
        pauses.hand_over_after = now + HAND_OVER_PAUSE;
    }
    group.standing.epoch_was_granted(now);
    query::ask(cx, index);
}

/// A newer configuration.
pub(crate) fn handle_config(cx: &mut Context<'_, impl Io>, index: u32, config: &PgConfig) {
    let me = cx.me.id;
    let group = &mut cx.groups[index];
    if config.epoch <= group.config.epoch {
        return;
    }
    let is_claiming = group.is_claiming();
    group.config = config.clone();
    group.pauses.config_seen_at = cx.now;
    if let Some(following) = group.standing.following_mut() {
        following.free_since = None;
    }
    if config.primary == me {
        // When it is this OSD's own claim, the answer to the proposal is on its way and begins the epoch.
        if !is_claiming {
            end(cx, index, "the configuration changed");
        }
    } else if group.is_led_here() || is_claiming {
        end(cx, index, "another OSD is primary now");
        cx.groups[index].standing.obeys();
    }
}

#[cfg(test)]
mod tests;
