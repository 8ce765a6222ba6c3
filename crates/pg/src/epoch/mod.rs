//! How a group begins an epoch.
//!
//! The primary may serve only when every in-sync member agrees with it. It gets there in four steps:
//! 1. *Claim* ([`claim`]): a compare-and-swap in the registry makes the epoch one higher. Whoever holds an older epoch is
//!    refused by every member that has heard of the newer one ([`crate::group::obedience`]).
//! 2. *Query* ([`query`]): each replica obeys the new epoch from now on and tells the newest entries of its log, once
//!    nothing it staged before is still on its way to the drive. It does so when its map shows the epoch ([`kept`]).
//! 3. *Mark*: the primary begins the epoch with a mark behind everything any member has.
//! 4. *Repair* ([`repair`]): entries that not all members have were never acknowledged (an acknowledgement needs all of
//!    them). For each block they touch ([`differences`]), the primary's present content is written to all members, in order,
//!    as any write. What a replica had beyond the primary is so replaced.
//!
//! A crash at any point is harmless: the next epoch finds the same differences or fewer.

pub(crate) mod claim;
pub(crate) mod differences;
pub(crate) mod kept;
pub(crate) mod query;
pub(crate) mod repair;

use crate::context::{Context, LOOK_AGAIN};
use crate::group::role::State;
use crate::io::Io;
use crate::operation::Purpose;
use base::{LinkId, OsdId};
use std::time::Duration;
use wire::Status;

/// The pause before a group that lost its epoch claims another.
pub(crate) const CLAIM_PAUSE: Duration = Duration::from_millis(100);
/// The pause after a claim that came to nothing.
pub(crate) const CLAIM_PAUSE_LONG: Duration = Duration::from_secs(1);

/// Ends the epoch of a group this OSD is primary of. What is under way is answered with "try again": it
/// may or may not have taken effect, and nobody was told that it did.
pub(crate) fn end(cx: &mut Context<'_, impl Io>, index: u32, reason: &str) {
    let group = &mut cx.groups[index];
    if matches!(group.state(), State::Replica | State::Learner | State::Left) {
        return;
    }
    let repair = group.standing.must_wait(reason.to_owned());
    group.pauses.claim_after = cx.now + CLAIM_PAUSE;
    group.standing.promotion_failed();
    if let Some(learning) = group.learning_mut() {
        learning.learners.clear();
    }
    let mut ended = group.line.take_all();
    ended.extend(repair);
    for id in ended {
        let Some(operation) = cx.operations.get_mut(id) else { continue };
        let purpose = std::mem::replace(&mut operation.purpose, Purpose::Deletion);
        cx.abandon(id);
        cx.refuse(purpose, Status::NotActive);
    }
    cx.turn.tick_soon(cx.now);
}

/// The same of a claim that cannot be made again soon.
pub(crate) fn end_for_longer(cx: &mut Context<'_, impl Io>, index: u32, reason: &str) {
    end(cx, index, reason);
    cx.groups[index].pauses.claim_after = cx.now + CLAIM_PAUSE_LONG;
}

/// A link ended: what was waited for on it does not come any more.
pub(crate) fn link_ended(cx: &mut Context<'_, impl Io>, link: LinkId, reason: &str) {
    cx.volumes.forget_told(link);
    let Some(osd) = cx.links.ended(link, cx.now + LOOK_AGAIN) else { return };
    cx.turn.next_tick = cx.now;
    lost_member(cx, osd, &format!("the connection to {osd} ended: {reason}"));
}

/// A member cannot be reached: the epochs in which it is in sync end, and nobody brings it up to date.
pub(crate) fn lost_member(cx: &mut Context<'_, impl Io>, osd: OsdId, reason: &str) {
    for index in cx.groups.indices() {
        let group = &mut cx.groups[index];
        if let Some(learning) = group.learning_mut() {
            learning.forget(osd);
        }
        if group.standing.promotion().is_some_and(|promotion| promotion.osd == osd) {
            group.standing.promotion_failed();
        }
        if group.config.primary == cx.me.id && group.config.in_sync.contains(&osd) {
            end(cx, index, reason);
        }
    }
}
