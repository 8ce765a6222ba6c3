//! How damage is repaired: a block that does not verify here is fetched from another member and written anew.
//!
//! Whoever meets damage while it reads (a client's read, the edges of an unaligned write, a push, a repair, a scrub)
//! starts a *mend* of that block and waits behind it. A mend is an operation on its block, and first in line: it waits for
//! what is under way there, and holds back all that waits. So no write is in flight on the block, every member in sync has
//! the same content, and what another one answers is right if it matches the checksum in this OSD's index. Of anybody else
//! that does not tell enough: what they hold may be an older or another content with the same checksum. So they say up to
//! which sequence they surely have the group's order, or of which write their copy is, and this OSD's index and log tell whether
//! that is what it lacks ([`Store::is_current`](store::Store::is_current)). It is ordered as a write to all members, which puts it
//! at a new place of every drive, and changes nothing: all go on to say that the block changed when it did.
//!
//! A block of which no member has a copy that verifies is *lost*: reads of it fail until it is written or zeroed anew.
//! While a member is away that may have one, they wait instead.

use crate::broken::Sabotage;
use crate::context::{Context, Fetch, Task};
use crate::damage::Absence;
use crate::disk::Disk;
use crate::epoch::repair;
use crate::group::Group;
use crate::group::obedience::may_fetch;
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{MendReason, Operation, OperationId, OperationKind, OperationState, Purpose};
use crate::replication::order;
use base::log_entry::{MEND, REPAIR};
use base::{BLOCK_BYTES, BlockRange, Epoch, Instant, LinkId, OsdId, Sequence, crc32c};
use std::time::Duration;
use store::{Currency, LastWrite};
use wire::{Fetched, Found, Inquiry, Status};
use zerocopy::little_endian::U32;

/// How long a member may take to answer before the next one is asked.
const FETCH_MAX: Duration = Duration::from_secs(2);

/// A block that another member was asked for.
#[derive(Clone, Copy, Debug)]
struct Fetching {
    fetch: Fetch,
    link: LinkId,
    since: Instant,
}

/// The mends of an OSD, and what else it asks other members for block by block.
#[derive(Debug, Default)]
pub(crate) struct Mends {
    fetching: Vec<Fetching>,
}

impl Mends {
    /// Whether nothing is asked for.
    pub(crate) fn is_idle(&self) -> bool {
        self.fetching.is_empty()
    }

    /// Starts to mend a block, if that is not under way, or puts the mend before all that waits: whoever needs the block is
    /// among them.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        group: u32,
        range: BlockRange,
        reason: MendReason,
    ) {
        let is_mend = |(id, _): &(OperationId, bool)| {
            cx.operations.get(*id).is_some_and(|other| other.kind == OperationKind::Mend)
        };
        let mend = cx.lines.on(range).find(is_mend);
        if let Some((id, is_under_way)) = mend {
            if !is_under_way {
                cx.lines.wait_first(group, id, &range);
            }
            return;
        }
        let has_conflict = cx.lines.on(range).any(|(_, is_under_way)| is_under_way);
        let id = cx.operations.add_for(OperationKind::Mend, Purpose::Mend(reason), group, range);
        if has_conflict {
            cx.lines.wait_first(group, id, &range);
        } else {
            self.start(cx, id);
        }
    }

    /// Its block is free: looks at what is there now.
    pub(crate) fn start(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        let purpose = operation.purpose;
        operation.state = OperationState::Reading;
        cx.disk.look_up(operation);
        let is_hole = operation.is_hole();
        cx.pass(match purpose {
            Purpose::Mend(MendReason::Outvoted(_)) => Milestone::MendOutvoted,
            Purpose::Mend(MendReason::OtherDamaged) => Milestone::MendOtherDamaged,
            _ => Milestone::MendDamaged,
        });
        if !cx.breaks(Sabotage::StaleMend) {
            cx.hold(id);
        }
        match purpose {
            Purpose::Mend(MendReason::Outvoted(osd)) => {
                self.fetch_from(cx, Fetch::begin(id, Absence::Certain), osd);
            }
            Purpose::Mend(MendReason::OtherDamaged) if is_hole => order_mended(cx, id, None),
            // It was written anew since.
            _ if is_hole => end(cx, id),
            _ => cx.read_parts(id),
        }
    }

    /// The drive answered.
    pub(crate) fn was_read(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        match (operation.first_damage(), operation.purpose) {
            (Some((_, status)), _) => {
                cx.release_parts(id);
                self.fetch_next(cx, Fetch::begin(id, Absence::of(status)));
            }
            (None, Purpose::Mend(MendReason::OtherDamaged)) => {
                let buffer = operation.parts[0].buffer.take().expect("it was read without damage");
                order_mended(cx, id, Some(&buffer.bytes()[..BLOCK_BYTES]));
                cx.disk.put(buffer);
            }
            // It was written anew, or the drive thought better of it.
            (None, _) => {
                cx.damage.is_sound(operation.range.key, operation.range.first_block);
                end(cx, id);
            }
        }
    }

    /// Asks the next member for the one block that an operation needs.
    pub(crate) fn fetch_next(&mut self, cx: &mut Context<'_, impl Io>, mut fetch: Fetch) {
        let me = cx.me.id;
        let group = &cx.groups[cx.operations.live(fetch.id).group];
        let mut members: Vec<OsdId> = group.replicas(me).collect();
        // The copy of a learner, or of who was a member before, may be the last good one; whether it is the right one its
        // checksum tells.
        for osd in group.wanted_learners().chain(group.config.learners.iter().copied()) {
            if osd != me && !members.contains(&osd) {
                members.push(osd);
            }
        }
        members.retain(|osd| !fetch.asked.has(*osd));
        for osd in members {
            let is_noted = fetch.asked.note(osd);
            if is_noted && cx.links.ready(osd).is_some() {
                return self.fetch_from(cx, fetch, osd);
            }
            if !is_noted || !cx.volumes.is_gone(osd, cx.now) {
                fetch.absence = Absence::Unknown;
            }
        }
        nobody_has(cx, fetch);
    }

    /// Asks this member.
    pub(crate) fn fetch_from(&mut self, cx: &mut Context<'_, impl Io>, fetch: Fetch, osd: OsdId) {
        let Some(link) = cx.links.ready(osd) else {
            return self.fetch_instead(cx, Fetch { absence: Absence::Unknown, ..fetch });
        };
        let operation = cx.operations.live(fetch.id);
        operation.state = OperationState::Fetching;
        let range = BlockRange::one(operation.range.key, operation.range.first_block);
        let epoch = cx.groups[operation.group].epoch;
        let inquiry = Inquiry { request: fetch.id.number(), range, epoch };
        self.fetching.push(Fetching { fetch, link, since: cx.now });
        cx.io.send(link, &inquiry.encode());
    }

    /// Gives up on members that do not answer.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        let mut index = 0;
        while let Some(Fetching { fetch, link, since }) = self.fetching.get(index).copied() {
            let is_alive = cx.operations.get(fetch.id).is_some();
            let is_late = cx.now.since(since) >= FETCH_MAX || cx.links.get(link).is_none();
            if is_alive && !is_late {
                index += 1;
                continue;
            }
            self.fetching.swap_remove(index);
            if is_alive {
                cx.pass(Milestone::FetchLate);
                self.fetch_instead(cx, Fetch { absence: Absence::Unknown, ..fetch });
            }
        }
    }

    /// A member's answer to a fetch.
    pub(crate) fn handle_fetched(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        fetched: &Fetched<'_>,
    ) {
        let Fetched { head, checksums, data } = *fetched;
        let Found { inquiry, status, .. } = head;
        let is_meant = |asked: &Fetching| asked.fetch.id.number() == inquiry.request && asked.link == link;
        let Some(index) = self.fetching.iter().position(is_meant) else { return };
        let Fetch { id, asked, absence } = self.fetching.swap_remove(index).fetch;
        let Some(operation) = cx.operations.get(id) else { return };
        // What this one has is taken for right, whatever this OSD has.
        let is_trusted =
            matches!(operation.purpose, Purpose::Mend(MendReason::Outvoted(_)) | Purpose::Adoption(_));
        let expected = match (is_trusted, checksums.first()) {
            (true, Some(theirs)) => theirs.get(),
            _ => operation.checksums[0].get(),
        };
        let breaks_trust = cx.breaks(Sabotage::TrustFetched);
        let verifies = data.len() == BLOCK_BYTES && (crc32c(data) == expected || breaks_trust);
        let is_current = is_trusted || breaks_trust || is_current(cx, id, link, currency_in(&head));
        let verifies = verifies && is_current;
        if status == Status::Ok {
            let operation = cx.operations.live(id);
            let in_sync = &cx.groups[operation.group].config.in_sync;
            let is_learner = cx.links.osd_at(link).is_some_and(|osd| !in_sync.contains(&osd));
            if !is_current {
                cx.pass(Milestone::FetchedOlder);
            } else if !verifies && !is_trusted {
                cx.pass(Milestone::FetchedWrong);
            } else if is_learner {
                cx.pass(Milestone::FetchedFromLearner);
            }
        }
        if status == Status::Ok && verifies {
            order_mended(cx, id, Some(data));
        } else if status == Status::Ok && data.is_empty() && is_trusted {
            order_mended(cx, id, None);
        } else {
            // What the member has verified there, or it had not been sent: it may be asked another time.
            let is_garbled =
                status == Status::Ok && checksums.first().is_some_and(|theirs| crc32c(data) != theirs.get());
            let found = if is_garbled { Absence::Unknown } else { Absence::of(status) };
            self.fetch_instead(cx, Fetch { id, asked, absence: absence.min(found) });
        }
    }

    /// A member that was asked has no sound copy.
    fn fetch_instead(&mut self, cx: &mut Context<'_, impl Io>, fetch: Fetch) {
        match cx.operations.live(fetch.id).purpose {
            // Only what that one has is taken for right; the next scrub asks again.
            Purpose::Mend(MendReason::Outvoted(_)) => nobody_has(cx, fetch),
            Purpose::Adoption(_) => repair::adopt_next(cx, fetch),
            _ => self.fetch_next(cx, fetch),
        }
    }
}

/// What a member tells of how current its copy is.
fn currency_in(found: &Found) -> Currency {
    match found.written_in {
        None => Currency::Through(found.through),
        Some(epoch) => {
            let epoch = Some(epoch).filter(|epoch| *epoch != Epoch(0));
            Currency::Of(LastWrite { sequence: found.through, epoch })
        }
    }
}

/// Whether what a member has in the one block of an operation is what this OSD's index is about, should its checksum be the
/// same: checksums alone do not tell.
fn is_current(cx: &Context<'_, impl Io>, id: OperationId, link: LinkId, theirs: Currency) -> bool {
    let (Some(operation), Some(osd)) = (cx.operations.get(id), cx.links.osd_at(link)) else { return false };
    let BlockRange { key, first_block, .. } = operation.range;
    if cx.groups[operation.group].config.in_sync.contains(&osd) {
        // Members in sync have the same on blocks that an operation holds, once they agreed.
        return operation.purpose != Purpose::Repair || repair::has_same(cx, operation, osd);
    }
    cx.breaks(Sabotage::TrustOldCopy) || cx.disk.store.is_current(&key, first_block, theirs)
}

/// Orders what a block shall hold as a write to all members, `None` for zeros.
fn order_mended(cx: &mut Context<'_, impl Io>, id: OperationId, data: Option<&[u8]>) {
    let operation = cx.operations.live(id);
    operation.state = OperationState::Reading;
    let origin = operation.attempt.origin;
    match operation.purpose {
        // Another's content, which most members have, is news to this one.
        Purpose::Mend(MendReason::Outvoted(_)) => operation.attempt.origin = REPAIR,
        Purpose::Mend(_) => operation.attempt.origin = REPAIR | MEND,
        Purpose::Adoption(osd) => {
            operation.purpose = Purpose::Repair;
            repair::adopted(cx, id, osd);
        }
        _ => {}
    }
    let operation = cx.operations.live(id);
    let purpose = operation.purpose;
    let is_ordered = match data {
        Some(data) => {
            operation.checksums.clear();
            operation.checksums.push(U32::new(crc32c(data)));
            order::write(cx, id, data)
        }
        None => {
            operation.kind = OperationKind::Zero;
            order::zero(cx, id)
        }
    };
    if is_ordered {
        return;
    }
    if purpose == Purpose::Repair {
        // The word that an adopted content would have come with is that of its member. The next time it may be another's.
        cx.operations.live(id).attempt.origin = origin;
        return repair::must_come_again(cx, id);
    }
    // The store has no room right now: it begins anew.
    cx.operations.live(id).kind = OperationKind::Mend;
    cx.put_back(id);
}

/// No member has a copy that verifies.
fn nobody_has(cx: &mut Context<'_, impl Io>, fetch: Fetch) {
    let Fetch { id, absence, .. } = fetch;
    let operation = cx.operations.live(id);
    let (key, block, purpose) = (operation.range.key, operation.range.first_block, operation.purpose);
    if let Some(location) = cx.disk.location_of(key, block)
        && !matches!(purpose, Purpose::Mend(MendReason::Outvoted(_)))
    {
        cx.pass(match absence {
            Absence::Certain => Milestone::LostCertain,
            Absence::Unreadable => Milestone::LostUnreadable,
            Absence::Unknown => Milestone::LostUncertain,
        });
        if cx.damage.nobody_has(cx.now, key, block, location, absence) {
            cx.note(format!("no member that can be reached has a sound copy of block {block} of {key}"));
        }
    }
    match purpose {
        Purpose::Repair => repair::adopt_next(cx, Fetch::begin(id, Absence::Certain)),
        _ => end(cx, id),
    }
}

fn end(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let group = cx.operations.live(id).group;
    cx.lines.ended(id);
    cx.forget(id);
    cx.then(Task::StartWaiting { group });
}

/// An operation that answers what another OSD asks; what is hashed is, under this `key`.
pub(crate) fn add_inquiry(
    cx: &mut Context<'_, impl Io>,
    kind: OperationKind,
    link: LinkId,
    group: u32,
    inquiry: &Inquiry,
    key: u64,
) -> OperationId {
    if let Some(peer) = cx.links.osd_mut(link) {
        peer.inquiries.read_begins();
    }
    let purpose = Purpose::Peer { link, request: inquiry.request, key };
    let id = cx.operations.add_for(kind, purpose, group, inquiry.range);
    let operation = cx.operations.live(id);
    operation.epoch = inquiry.epoch;
    operation.state = OperationState::Reading;
    id
}

/// The inquiry that such an operation answers, and whom.
pub(crate) fn inquiry_of(operation: &Operation) -> Option<(LinkId, Inquiry)> {
    let Purpose::Peer { link, request, .. } = operation.purpose else { return None };
    Some((link, Inquiry { request, range: operation.range, epoch: operation.epoch }))
}

/// A primary asks what a block holds here.
pub(crate) fn handle_fetch(cx: &mut Context<'_, impl Io>, link: LinkId, inquiry: &Inquiry) {
    let sender = cx.links.osd_at(link);
    // Until a split is on stable media what is here is called otherwise. Who has said where it stands since it obeys somebody has
    // nothing else staged.
    let is_splitting =
        |group: &Group| group.staged_count > 0 && (group.leader.is_none() || group.query.is_some());
    let is_told = |index: &u32| {
        let group = &cx.groups[*index];
        may_fetch(group, sender, inquiry.epoch) && !is_splitting(group)
    };
    let Some(group) = cx.groups.find(inquiry.range.key.pg).filter(is_told) else {
        return cx.io.send(
            link,
            &Found { inquiry: *inquiry, status: Status::NotActive, through: Sequence(0), written_in: None }
                .encode(false),
        );
    };
    let id = add_inquiry(cx, OperationKind::Read, link, group, inquiry, 0);
    let operation = cx.operations.live(id);
    cx.disk.look_up(operation);
    if operation.is_hole() {
        let found = found(cx.disk, inquiry, Status::Ok);
        cx.io.send(link, &found.encode(false));
        return cx.forget(id);
    }
    cx.read_parts(id);
}

/// The answer about blocks here: how current they are.
fn found(disk: &Disk, inquiry: &Inquiry, status: Status) -> Found {
    let BlockRange { key, first_block, block_count } = inquiry.range;
    // What was ordered by a registry that forgot it since tells nothing of what is ordered now.
    let is_from_another = disk.knows_later_epoch(key.pg, inquiry.epoch);
    let currency = match block_count {
        1 if !is_from_another => disk.store.currency(&key, first_block),
        _ => Currency::Through(Sequence(0)),
    };
    let (through, written_in) = match currency {
        Currency::Through(through) => (through, None),
        Currency::Of(LastWrite { sequence, epoch }) => (sequence, Some(epoch.unwrap_or_default())),
    };
    Found { inquiry: *inquiry, status, through, written_in }
}

/// The drive answered what a primary asked for.
pub(crate) fn fetch_was_read(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let operation = cx.operations.live(id);
    if !cx.disk.is_where_it_was(operation) {
        // It was written anew meanwhile. What is told of the blocks is to be of what is sent.
        cx.disk.release_parts(operation);
        cx.disk.look_up(operation);
        if !operation.is_hole() {
            return cx.read_parts(id);
        }
    }
    let damage = operation.first_damage();
    let Some((link, inquiry)) = inquiry_of(operation) else { return cx.forget(id) };
    let found = found(cx.disk, &inquiry, damage.map_or(Status::Ok, |(_, status)| status));
    match damage {
        Some(_) => {
            cx.damage.counts.found += 1;
            cx.io.send(link, &found.encode(false));
        }
        None if operation.is_hole() => cx.io.send(link, &found.encode(false)),
        None => {
            cx.io.send(link, &found.encode(true));
            cx.disk.send_content(operation, link, cx.io);
        }
    }
    cx.forget(id);
}

#[cfg(test)]
mod tests;
