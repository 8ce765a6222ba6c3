//! Admission: whether this OSD may serve a request of a client now, and what is known of an attempt at it that came before.
//!
//! # Under an older generation
//! A newer attach fences what others *change*. Reads are served under whatever generation they name, and so is whoever opened a
//! volume without having it: what a read brings is decided by the group, its epoch and its leases, and by the layer and the end
//! that this OSD's map shows, and each of these is asked all the same. So a read of somebody who was fenced long ago is as fresh
//! as any other (docs/protocol.md, *Why the promise holds*). Whose key may read no more is refused by that
//! ([`crate::links::ClientLink`]), and what lies in the trash by this.
//!
//! # Where volumes end
//! What reaches beyond the end of its volume, by the byte, is refused, reads too, by the size that this OSD's map shows. Whoever
//! asked tries again: the map that shows a newer size may be on its way to the one or to the other. A map that is too old must
//! not let anybody write where a volume was cut since ([`crate::moves::cut`]). So a primary admits nothing before its map
//! shows the epoch that it serves. For such a map is no older than the epoch; and of a volume that was cut before that epoch
//! was registered it shows the cut.
//!
//! That costs no time: who drives an OSD hands it a map that shows an epoch before the answer to the proposal of it
//! ([`crate::Io::propose`]), as fences need it too. Should another one not, the group waits for the next map.

use crate::block_set::BlockSet;
use crate::broken::Sabotage;
use crate::context::Context;
use crate::epoch::differences::{Told, told_of};
use crate::io::Io;
use crate::journal::Milestone;
use crate::links::OsdLink;
use crate::mclock;
use crate::operation::{Asked, Attempt, ByteRange, OperationId, OperationKind, Purpose};
use base::figures::RequestKind;
use base::geometry::VOLUME_BYTES_MAX;
use base::log_entry::name_of;
use base::{BlockRange, LinkId, OBJECT_BYTES, ObjectKey};
use wire::{Outcome, RefusalDetails, Request, Status};

/// Why a request cannot be served by this OSD now.
pub(crate) type Refusal = (Status, RefusalDetails);

/// What a request is for, as far as that decides who may have it served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// To see what a volume or a snapshot holds.
    Read,
    /// To change what a volume holds.
    Change,
    /// To be told of the whole of a volume.
    Look,
}

/// The group of a request that reads, if this OSD may serve it.
pub(crate) fn admit(cx: &mut Context<'_, impl Io>, request: &Request) -> Result<u32, Refusal> {
    admit_for(cx, request, Aim::Read)
}

/// As [`admit`], for a question about the whole of a volume, whichever snapshots it has: it tells nothing of what they hold.
pub(crate) fn admit_look(cx: &mut Context<'_, impl Io>, request: &Request) -> Result<u32, Refusal> {
    admit_for(cx, request, Aim::Look)
}

fn admit_for(cx: &mut Context<'_, impl Io>, request: &Request, aim: Aim) -> Result<u32, Refusal> {
    let refuse = |status| Err((status, RefusalDetails { osd: cx.me.id, ..RefusalDetails::default() }));
    let layer = request.key.layer;
    let Some(volume) = cx.volumes.of_layer_mut(layer) else {
        // It was made a moment ago, and the map that shows it is on its way.
        return refuse(Status::NotActive);
    };
    if volume.is_removed || volume.is_in_trash {
        return refuse(Status::NoSuchVolume);
    }
    if layer.number() > volume.head.number() {
        // The map that shows the snapshot behind which it begins is on its way.
        return refuse(Status::NotActive);
    }
    let (pg, object) = (request.key.pg, request.key.object);
    // Whoever may use another pool only says that it is of that one: it must not fence those who may use this.
    if pg.pool != volume.pool || u64::from(object) >= VOLUME_BYTES_MAX / OBJECT_BYTES {
        return refuse(Status::NotPrimary);
    }
    let end = if aim == Aim::Look {
        u64::MAX
    } else if !request.of_snapshot {
        // Whoever does not know of a snapshot would read what was written before it, and write what nobody finds behind it.
        if layer != volume.head && !cx.me.broken.is(Sabotage::ReadOlder) {
            return refuse(Status::Frozen);
        }
        // Of who had the volume before, only changes could do harm.
        let is_fenced = aim == Aim::Change && request.generation < volume.generation;
        if is_fenced && !cx.me.broken.is(Sabotage::ForgetGeneration) {
            let details = RefusalDetails { generation: volume.generation, ..RefusalDetails::default() };
            return Err((Status::Fenced, details));
        }
        // The attach is newer than the map: it fences the older ones from here on.
        volume.is_attached_as(request.generation);
        volume.bytes
    } else {
        // A snapshot is the same for whoever reads it, attached or not.
        match cx.volumes.map.snapshot(layer) {
            Some(snapshot) => snapshot.bytes,
            // It was made a moment ago, or removed.
            None => return refuse(Status::Frozen),
        }
    };
    let Some(index) = cx.groups.find(pg) else { return refuse(Status::NotPrimary) };
    let group = &cx.groups[index];
    // Whose map is from before a split may mean the other half.
    let is_held = group.holds(&request.key) || cx.me.broken.is(Sabotage::ServeOtherHalf);
    if group.config.primary != cx.me.id || !is_held {
        return refuse(Status::NotPrimary);
    }
    if !group.is_active() || !group.is_shown {
        return refuse(Status::NotActive);
    }
    if request.epoch != group.epoch {
        return Err((Status::StaleEpoch, RefusalDetails { epoch: group.epoch, ..RefusalDetails::default() }));
    }
    if end_of(request) > end && !cx.me.broken.is(Sabotage::ServeBeyondEnd) {
        return refuse(Status::BeyondEnd);
    }
    Ok(index)
}

/// Where a request ends, in bytes from the start of its volume.
fn end_of(request: &Request) -> u64 {
    u64::from(request.key.object) * OBJECT_BYTES + u64::from(request.offset) + u64::from(request.length)
}

/// As [`admit`], for what changes something: that takes enough members.
pub(crate) fn admit_change(cx: &mut Context<'_, impl Io>, request: &Request) -> Result<u32, Refusal> {
    let group = match admit_for(cx, request, Aim::Change) {
        // What was done of it before was done in its layer, and nobody shall take it for undone in the next one.
        Err((Status::Frozen, details)) if request.since.is_some() => {
            return Err((Status::OutcomeUnknown, details));
        }
        admitted => admitted?,
    };
    // Without leases another OSD may be primary by now, and have learned that the client is fenced.
    let may_lead = cx.has_leases(group) || cx.breaks(Sabotage::ForgetFence);
    if cx.groups[group].is_writable() && may_lead {
        return Ok(group);
    }
    Err((Status::NotActive, RefusalDetails { osd: cx.me.id, ..RefusalDetails::default() }))
}

/// The group that was found for a request; the client was told why, if there is none, and that nothing was begun.
pub(crate) fn or_refuse(
    cx: &mut Context<'_, impl Io>,
    admitted: Result<u32, Refusal>,
    asked: &Asked,
) -> Option<u32> {
    let refuse = |(status, details)| {
        let details = RefusalDetails { was_not_begun: true, ..details };
        cx.refuse_client(asked, status, details);
    };
    admitted.map_err(refuse).ok()
}

/// A request of a client that was taken up now.
pub(crate) fn asked(cx: &Context<'_, impl Io>, link: LinkId, request: &Request, kind: RequestKind) -> Asked {
    let (volume, bytes) = (request.key.layer.volume(), request.length);
    let tenant = cx.links.tenants.of(link);
    Asked {
        link,
        tenant,
        request: request.request,
        volume,
        kind,
        unverified: request.unverified,
        bytes,
        at: cx.now,
    }
}

/// Whether a request may begin now, where several volumes are used. If not it stays in its connection.
pub(crate) fn is_its_turn(cx: &mut Context<'_, impl Io>, asked: &Asked) -> bool {
    let cost = mclock::cost_of(asked.kind, asked.bytes);
    cx.rates.mclock.may_begin(asked.volume, cost, &mut cx.operations.under_way, cx.now)
}

/// A request has begun that was added ([`add_operation`]), or waits in line: its volume's turn is over with it.
pub(crate) fn has_begun(cx: &mut Context<'_, impl Io>, asked: &Asked) {
    let cost = mclock::cost_of(asked.kind, asked.bytes);
    if cx.rates.mclock.begins(asked.volume, cost, cx.now)
        && let Some(volume) = cx.volumes.get_mut(asked.volume)
    {
        volume.traffic.queued += 1;
    }
}

/// The blocks that a request touches.
pub(crate) fn range_of(request: &Request) -> BlockRange {
    let (first_block, block_count) = request.blocks();
    BlockRange { key: request.key, first_block, block_count }
}

/// A slot with what every request of a client has.
pub(crate) fn add_operation(
    cx: &mut Context<'_, impl Io>,
    asked: Asked,
    request: &Request,
    group: u32,
    kind: OperationKind,
) -> OperationId {
    let id = cx.operations.add_for(kind, Purpose::Client(asked), group, range_of(request));
    let is_reserved = cx.rates.mclock.is_reserved(asked.volume, cx.now);
    cx.operations.under_way.begins(id.slot, asked.kind, asked.bytes, is_reserved);
    let operation = cx.operations.live(id);
    operation.bytes = ByteRange { offset: request.offset, length: request.length };
    operation.attempt = Attempt { origin: name_of(request.origin), since: request.since, is_narrowed: false };
    id
}

/// What became of the earlier attempts at an operation, by its blocks.
struct Before {
    /// One of them was done.
    done: BlockSet,
    /// None was done, or what was done was undone before anybody could see it: it is to be done now.
    not_done: BlockSet,
    /// Nobody can tell: what the log told of them is gone, and the block was changed since, by one of them or by others.
    unknown: BlockSet,
    /// The log says that something was undone.
    is_told_undone: bool,
}

/// See [`Before`]. `None` of an operation that was not sent before.
///
/// What an earlier attempt did is in the group's order behind what its client knew that this had reached. So a log that
/// lacks nothing from there on tells by its silence too, and so does a block that was not changed since. Who says that the group
/// had reached more than it has was lied to by whoever led it, or lies. Since when is not known then, now or when the group has
/// come so far: silence tells nothing, however long the log is.
fn done_before(cx: &Context<'_, impl Io>, id: OperationId) -> Option<Before> {
    let operation = cx.operations.get(id)?;
    let (range, name) = (operation.range, name_of(operation.attempt.origin));
    let since = operation.attempt.since.filter(|_| !cx.breaks(Sabotage::ForgetOrigin))?;
    let is_ahead = since > cx.groups[operation.group].reached();
    let (store, key) = (&cx.disk.store, &range.key);
    let Told { done, undone } = told_of(store.pg_log(key.pg), &range, name);
    let untold = BlockSet::of(range.blocks()).without(done.or(undone));
    // What has no name is in no log.
    let begins = store.pg_log_begins(key.pg).0;
    let is_log_enough = name != 0 && !is_ahead && begins <= since.0.saturating_add(1);
    let mut as_it_was = BlockSet::default();
    if is_log_enough || cx.breaks(Sabotage::TrustSilence) {
        as_it_was = untold;
    } else if !is_ahead && !untold.is_empty() {
        store.for_each_block(key, |block, _, changed| {
            if changed <= since {
                as_it_was.insert(block);
            }
        });
    }
    Some(Before {
        done,
        not_done: undone.or(untold.and(as_it_was)),
        unknown: untold.without(as_it_was),
        is_told_undone: !undone.is_empty(),
    })
}

/// Whether an earlier attempt at an operation was done in part: the members began to agree on it, and then another
/// one led that has the rest as it was before.
pub(crate) fn is_done_in_part(cx: &Context<'_, impl Io>, id: OperationId) -> bool {
    let is_in_part =
        |before: Before| before.unknown.is_empty() && !before.done.is_empty() && !before.not_done.is_empty();
    done_before(cx, id).is_some_and(is_in_part)
}

/// Answers an operation that was done by an earlier attempt, or of which nobody can tell whether it was: to do it again then
/// could undo what others wrote since. If it was done in part, what is left of the operation are the first blocks that it
/// did not reach; its bytes, if it has any, are held.
pub(crate) fn is_answered(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    let Some(before) = done_before(cx, id) else { return false };
    let operation = cx.operations.live(id);
    let (purpose, group) = (operation.purpose, operation.group);
    if operation.attempt.since > Some(cx.groups[group].reached()) {
        cx.journal.pass(Milestone::SentAgainAhead);
    }
    if !before.unknown.is_empty() {
        cx.pass(Milestone::SentAgainUnknown);
        cx.refuse(purpose, Status::OutcomeUnknown);
        cx.forget(id);
        return true;
    }
    if let Some(left) = before.not_done.first_run() {
        let milestone = if !before.done.is_empty() {
            operation.narrow(left.start, left.end - left.start);
            Milestone::SentAgainInPart
        } else if before.is_told_undone {
            Milestone::SentAgainUndone
        } else {
            Milestone::SentAgainNotDone
        };
        cx.pass(milestone);
        return false;
    }
    cx.pass(Milestone::SentAgainDone);
    if let Purpose::Client(asked) = purpose {
        cx.count_done(&asked, group);
        let reached = cx.groups[group].reached();
        cx.io.send(asked.link, &Outcome::done(asked.request, reached, 0));
    }
    cx.forget(id);
    true
}

/// Puts an operation at the end of its group's line.
pub(crate) fn wait(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let group = cx.operations.live(id).group;
    cx.wait(id);
    cx.turn.look_again(group);
}

/// Whether a member of the group has no room for a write to an object: this OSD, or a replica that said so.
pub(crate) fn is_full(cx: &Context<'_, impl Io>, group: u32, key: &ObjectKey) -> bool {
    cx.disk.store.is_full() || peers_of(cx, group).any(|peer| peer.is_full) || lacks_object(cx, group, key)
}

/// Whether an object is not there, and a member of the group takes none that it has not.
pub(crate) fn lacks_object(cx: &Context<'_, impl Io>, group: u32, key: &ObjectKey) -> bool {
    cx.disk.store.block_count(key) == 0
        && (cx.disk.store.takes_no_objects() || peers_of(cx, group).any(|peer| peer.takes_no_objects))
}

fn peers_of<'a>(cx: &'a Context<'_, impl Io>, group: u32) -> impl Iterator<Item = &'a OsdLink> {
    cx.groups[group].replicas(cx.me.id).filter_map(|osd| cx.links.to(osd))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::epoch;
    use crate::request::write;
    use crate::testing::{Alone, PG, Pair, VOLUME, ack};
    use base::log_entry::{REPAIR, UNDONE};
    use base::map::{ClusterMap, Trashed};
    use base::{BLOCK_BYTES, Epoch, Generation, History, ObjectKey, OsdId, PgId, Sequence, crc32c};
    use std::sync::Arc;
    use std::time::Duration;
    use wire::Message;
    use zerocopy::little_endian::U32;

    fn request(alone: &Alone) -> Request {
        Request {
            request: 1,
            key: ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 },
            offset: 0,
            length: BLOCK_BYTES as u32,
            epoch: alone.osd.shared.groups[0].epoch,
            generation: Generation(1),
            origin: 0,
            since: None,
            unverified: false,
            of_snapshot: false,
        }
    }

    fn refused(alone: &mut Alone, request: &Request) -> Option<Status> {
        alone.with(|_, cx| admit(cx, request).err().map(|(status, _)| status))
    }

    fn change_refused(alone: &mut Alone, request: &Request) -> Option<Status> {
        alone.with(|_, cx| admit_change(cx, request).err().map(|(status, _)| status))
    }

    #[test]
    fn a_request_is_admitted_by_volume_generation_group_and_epoch() {
        let mut alone = Alone::new();
        let wanted = request(&alone);
        assert_eq!(refused(&mut alone, &wanted), None);
        let of = |key: ObjectKey| Request { key, ..wanted };
        let unknown = of(ObjectKey { layer: base::LayerId(9), ..wanted.key });
        assert_eq!(refused(&mut alone, &unknown), Some(Status::NotActive), "its map may be on its way");
        let elsewhere = of(ObjectKey { pg: PgId { index: 9, ..PG }, ..wanted.key });
        assert_eq!(refused(&mut alone, &elsewhere), Some(Status::NotPrimary));
        let beyond = of(ObjectKey { object: u32::MAX, ..wanted.key });
        assert_eq!(refused(&mut alone, &beyond), Some(Status::NotPrimary));
        let stale = Request { epoch: Epoch(0), ..wanted };
        assert_eq!(refused(&mut alone, &stale), Some(Status::StaleEpoch));
    }

    #[test]
    fn nothing_is_admitted_that_reaches_beyond_the_end_of_its_volume_by_a_byte() {
        let mut alone = Alone::new();
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().bytes = 3 * OBJECT_BYTES + 4097;
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        let wanted = request(&alone);
        let (offset, length) = (4096, 1);
        assert_eq!(refused(&mut alone, &Request { offset, length, ..wanted }), None);
        let beyond = Some(Status::BeyondEnd);
        assert_eq!(refused(&mut alone, &Request { offset, length: 2, ..wanted }), beyond);
        assert_eq!(refused(&mut alone, &Request { offset: 4097, length: 1, ..wanted }), beyond);
        let behind = ObjectKey { object: 4, ..wanted.key };
        assert_eq!(refused(&mut alone, &Request { key: behind, length: 1, ..wanted }), beyond);
        // Who asks wrongly otherwise is told that.
        let stale = Request { key: behind, epoch: Epoch(0), ..wanted };
        assert_eq!(refused(&mut alone, &stale), Some(Status::StaleEpoch));
        // Nothing was begun of it; and what was refused is served when a map shows the larger volume.
        alone.io.sent.clear();
        alone.with(|_, cx| write::handle_zero(cx, LinkId(7), &Request { key: behind, ..wanted }));
        let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().unwrap().0 else {
            panic!("the client is answered")
        };
        assert!(reply.head.status == Status::BeyondEnd && reply.head.details.was_not_begun);
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().bytes = 5 * OBJECT_BYTES;
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(refused(&mut alone, &Request { key: behind, ..wanted }), None);
    }

    #[test]
    fn nobody_is_served_by_a_map_that_is_older_than_the_epoch() {
        let mut alone = Alone::new();
        alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        while alone.io.proposals.is_empty() {
            alone.now = alone.now + Duration::from_millis(50);
            alone.osd.end_turn(alone.now, &mut alone.io);
        }
        // It is granted, and the map that shows that is late.
        let (pg, config) = alone.io.proposals.remove(0);
        alone.osd.handle_proposal(alone.now, pg, Some(config.clone()), &mut alone.io);
        alone.run();
        assert!(alone.osd.shared.groups[0].is_active());
        let wanted = request(&alone);
        assert_eq!(wanted.epoch, config.epoch);
        assert_eq!(refused(&mut alone, &wanted), Some(Status::NotActive));
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        map.pgs.insert(PG, config);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(refused(&mut alone, &wanted), None);
    }

    #[test]
    fn a_newer_attach_fences_what_older_ones_change_and_not_what_they_read() {
        let mut alone = Alone::new();
        let older = request(&alone);
        let newer = Request { generation: Generation(2), ..older };
        assert_eq!(refused(&mut alone, &newer), None);
        assert_eq!(change_refused(&mut alone, &older), Some(Status::Fenced));
        assert_eq!(change_refused(&mut alone, &newer), None);
        let look = |alone: &mut Alone| alone.with(|_, cx| admit_look(cx, &older).is_ok());
        assert!(refused(&mut alone, &older).is_none() && look(&mut alone));
        // What the map shows of the volume holds for it as for anybody: its newest layer, its end, the trash.
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().head = 1;
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        assert_eq!(refused(&mut alone, &older), Some(Status::Frozen));
        let of_head = Request { key: ObjectKey { layer: VOLUME.layer(1), ..older.key }, ..older };
        assert_eq!(refused(&mut alone, &of_head), None);
        let ahead = Request { key: ObjectKey { layer: VOLUME.layer(2), ..older.key }, ..older };
        assert_eq!(refused(&mut alone, &ahead), Some(Status::NotActive));
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().bytes = 3 * OBJECT_BYTES;
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        assert_eq!(refused(&mut alone, &of_head), Some(Status::BeyondEnd));
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().trashed = Some(Trashed::default());
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(refused(&mut alone, &of_head), Some(Status::NoSuchVolume));
        assert!(!look(&mut alone));
    }

    #[test]
    fn who_was_fenced_reads_what_was_written_since_and_changes_none_of_it() {
        let mut alone = Alone::new();
        let offset = u32::from(BLOCK) * BLOCK_BYTES as u32;
        let older = Request { offset, ..request(&alone) };
        assert_eq!(write(&mut alone, 5, None, 1), Status::Ok);
        let newer = Request { generation: Generation(2), ..older };
        assert_eq!(refused(&mut alone, &newer), None);
        assert_eq!(write(&mut alone, 6, None, 2), Status::Fenced, "it names the older one");
        assert!(holds(&alone, 1));
        let data = [3; BLOCK_BYTES];
        alone.io.sent.clear();
        alone.with(|_, cx| write::handle_write(cx, LinkId(7), &newer, &[U32::new(crc32c(&data))], &data));
        alone.run();
        assert!(holds(&alone, 3));
        let told = |alone: &mut Alone| {
            alone.io.told(LinkId(7), |message| match message {
                Message::Reply(reply) => Some((reply.head.status, reply.data.to_vec())),
                _ => None,
            })
        };
        told(&mut alone);
        alone.with(|router, cx| router.reads.handle_read(cx, LinkId(7), &older));
        alone.run();
        assert_eq!(told(&mut alone), [(Status::Ok, data.to_vec())]);
    }

    #[test]
    fn too_few_members_in_sync_take_reads_and_no_writes() {
        let mut alone = Alone::new();
        let wanted = request(&alone);
        alone.osd.shared.groups[0].wanted.min_size = 2;
        assert_eq!(refused(&mut alone, &wanted), None);
        let change = alone.with(|_, cx| admit_change(cx, &wanted).err().map(|(status, _)| status));
        assert_eq!(change, Some(Status::NotActive));
    }

    #[test]
    fn nobody_changes_anything_where_a_member_may_be_led_by_another() {
        let mut alone = Alone::new();
        let wanted = request(&alone);
        // A member whose lease this OSD does not hold.
        alone.osd.shared.groups[0].config.in_sync.push(OsdId(1));
        let change = alone.with(|_, cx| admit_change(cx, &wanted).err().map(|(status, _)| status));
        assert_eq!(change, Some(Status::NotActive));
    }

    const BLOCK: u16 = 10;

    /// A client writes a block full of that byte, and is told so.
    fn write(alone: &mut Alone, origin: u64, since: Option<Sequence>, byte: u8) -> Status {
        let offset = u32::from(BLOCK) * BLOCK_BYTES as u32;
        let request = Request { offset, origin, since, ..request(alone) };
        let data = [byte; BLOCK_BYTES];
        let checksums = [U32::new(crc32c(&data))];
        alone.io.sent.clear();
        alone.with(|_, cx| write::handle_write(cx, LinkId(7), &request, &checksums, &data));
        alone.run();
        let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().unwrap().0 else {
            panic!("the client is answered")
        };
        reply.head.status
    }

    /// Whether the block is full of that byte.
    fn holds(alone: &Alone, byte: u8) -> bool {
        let (key, mut checksums) = (request(alone).key, Vec::new());
        alone.osd.shared.disk.store.lookup(&key, BLOCK, 1, &mut Vec::new(), &mut checksums);
        checksums == [crc32c(&[byte; BLOCK_BYTES])]
    }

    fn reached(alone: &Alone) -> Sequence {
        alone.osd.shared.groups[0].reached()
    }

    #[test]
    fn a_write_that_the_log_has_forgotten_is_not_done_again_over_somebody_elses() {
        let mut alone = Alone::new();
        let since = Some(reached(&alone));
        // The first client is not told: the answer is lost. The second one is.
        assert_eq!(write(&mut alone, 5, None, 1), Status::Ok);
        assert_eq!(write(&mut alone, 6, None, 2), Status::Ok);
        assert_eq!(write(&mut alone, 5, since, 1), Status::Ok, "it was done");
        assert!(holds(&alone, 2), "and is not done again");
        alone.age_log();
        assert_eq!(write(&mut alone, 5, since, 1), Status::OutcomeUnknown);
        assert!(holds(&alone, 2), "what was acknowledged is there");
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
    }

    #[test]
    fn what_did_not_change_since_a_write_was_sent_first_tells_that_it_was_not_done() {
        let mut alone = Alone::new();
        assert_eq!(write(&mut alone, 4, None, 1), Status::Ok);
        // The first attempt does not arrive.
        let since = Some(reached(&alone));
        alone.age_log();
        assert_eq!(write(&mut alone, 5, since, 2), Status::Ok);
        assert!(holds(&alone, 2));
        // That one's answer is lost: the log has it, and forgets it.
        assert_eq!(write(&mut alone, 5, since, 2), Status::Ok);
        alone.age_log();
        assert_eq!(write(&mut alone, 5, since, 2), Status::OutcomeUnknown);
    }

    #[test]
    fn of_a_block_that_is_not_there_the_log_alone_tells() {
        let mut alone = Alone::new();
        let before = Some(reached(&alone));
        alone.age_log();
        assert_eq!(write(&mut alone, 5, before, 1), Status::OutcomeUnknown, "it may have been zeroed since");
        let since = Some(reached(&alone));
        assert_eq!(write(&mut alone, 5, since, 1), Status::Ok);
        // Without a name it is in no log, and the block has changed since.
        assert_eq!(write(&mut alone, 0, since, 2), Status::OutcomeUnknown);
    }

    #[test]
    fn who_says_that_the_group_had_reached_more_than_it_has_does_nothing_again_over_somebody_elses() {
        let mut alone = Alone::new();
        assert_eq!(write(&mut alone, 5, None, 1), Status::Ok, "and the answer is lost");
        assert_eq!(write(&mut alone, 6, None, 2), Status::Ok);
        let far = Some(Sequence(u64::MAX));
        // However long the log is: it will not always be, and then the group may have come as far as that says.
        assert_eq!(write(&mut alone, 8, far, 1), Status::OutcomeUnknown);
        alone.age_log();
        let last = reached(&alone);
        for since in [far, Some(last.next())] {
            assert_eq!(write(&mut alone, 5, since, 1), Status::OutcomeUnknown);
        }
        assert!(holds(&alone, 2), "what was acknowledged is there");
        assert_eq!(alone.passed("sent again: names more than its group has reached"), 3);
        // The log tells what it has to whoever asks.
        assert_eq!(write(&mut alone, 7, None, 3), Status::Ok);
        assert_eq!(write(&mut alone, 7, far, 4), Status::Ok, "it was done");
        assert!(holds(&alone, 3));
        assert_eq!(write(&mut alone, 5, Some(last), 1), Status::Ok, "it was not sent before then");
    }

    #[test]
    fn what_a_client_knew_of_a_group_before_it_was_given_up_tells_nothing_of_what_was_done_since() {
        let mut before = Alone::new();
        for origin in 10..20 {
            assert_eq!(write(&mut before, origin, None, 1), Status::Ok);
        }
        let since = Some(reached(&before));
        // On a blank drive fewer writes follow than there were.
        let mut alone = Alone::new();
        alone.begins_anew(History(1));
        assert_eq!(write(&mut alone, 6, None, 2), Status::Ok);
        alone.age_log();
        assert_eq!(write(&mut alone, 5, since, 1), Status::OutcomeUnknown);
        assert!(holds(&alone, 2), "what was acknowledged is there");
    }

    #[test]
    fn only_what_every_member_has_is_told_as_reached() {
        let mut pair = Pair::new();
        let before = reached(&pair.alone);
        pair.acknowledges = false;
        let write = pair.write_of(BLOCK, 7);
        assert_eq!(pair.ask(&write), None);
        pair.turns(5);
        assert_eq!(
            reached(&pair.alone),
            before,
            "an epoch that begins without it may give its place to another"
        );
        let ack = ack(pair.received);
        pair.hears(&ack);
        assert_eq!(reached(&pair.alone), before.next());
        let Message::Reply(reply) = wire::parse(&pair.alone.io.to[&LinkId(99)]).unwrap().unwrap().0 else {
            panic!("the client is answered")
        };
        assert_eq!((reply.head.status, reply.head.reached), (Status::Ok, before.next()));
    }

    #[test]
    fn who_is_refused_before_anything_was_begun_is_told_so() {
        let mut alone = Alone::new();
        let stale = Request { epoch: Epoch(0), ..request(&alone) };
        alone.io.sent.clear();
        alone.with(|_, cx| write::handle_zero(cx, LinkId(7), &stale));
        let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().unwrap().0 else {
            panic!("the client is answered")
        };
        assert!(reply.head.status == Status::StaleEpoch && reply.head.details.was_not_begun);
        // A write that was ordered may have been done when its epoch ends.
        let mut pair = Pair::new();
        pair.acknowledges = false;
        let write = pair.write_of(BLOCK, 7);
        pair.ask(&write);
        pair.turn();
        let (now, link) = (pair.alone.now, pair.link);
        pair.alone.osd.handle_closed(now, link, "a test", &mut pair.alone.io);
        let Message::Reply(reply) = wire::parse(&pair.alone.io.to[&LinkId(99)]).unwrap().unwrap().0 else {
            panic!("the client is answered")
        };
        assert!(reply.head.status == Status::NotActive && !reply.head.details.was_not_begun);
    }

    #[test]
    fn an_object_is_served_by_the_active_primary_of_its_own_group_and_by_nobody_else() {
        let mut alone = Alone::with_groups(2);
        let object_of = |index| {
            let is_of = |object: &u32| PgId::of_object(PG.pool, 2, VOLUME, *object).index == index;
            (0..).find(is_of).unwrap()
        };
        let of = |wanted: Request, object| Request { key: ObjectKey { object, ..wanted.key }, ..wanted };
        let wanted = request(&alone);
        let (own, of_other_half) = (of(wanted, object_of(0)), of(wanted, object_of(1)));
        assert_eq!(refused(&mut alone, &own), None);
        assert_eq!(refused(&mut alone, &of_other_half), Some(Status::NotPrimary));
        alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        assert_eq!(refused(&mut alone, &own), Some(Status::NotActive));
        alone.is_led_by(OsdId(1), Epoch(9));
        assert_eq!(refused(&mut alone, &own), Some(Status::NotPrimary));
    }

    #[test]
    fn nothing_is_served_of_a_volume_that_was_removed_nor_of_objects_that_none_has() {
        let mut alone = Alone::new();
        let wanted = request(&alone);
        let beyond = (VOLUME_BYTES_MAX / OBJECT_BYTES) as u32;
        for (object, status) in [(beyond - 1, Status::BeyondEnd), (beyond, Status::NotPrimary)] {
            let request = Request { key: ObjectKey { object, ..wanted.key }, ..wanted };
            assert_eq!(refused(&mut alone, &request), Some(status), "object {object}");
        }
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        for (trashed, removed, status) in [
            (Some(Trashed::default()), false, Some(Status::NoSuchVolume)),
            (None, false, None),
            (None, true, Some(Status::NoSuchVolume)),
        ] {
            map.revision += 1;
            let volume = map.volumes.get_mut(&VOLUME).unwrap();
            (volume.trashed, volume.removed) = (trashed, removed);
            alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
            assert_eq!(refused(&mut alone, &wanted), status, "{trashed:?} {removed}");
        }
    }

    #[test]
    fn a_log_tells_by_its_silence_from_where_it_begins_on() {
        let mut alone = Alone::new();
        alone.age_log();
        let begins = alone.osd.store().pg_log_begins(PG).0;
        assert_eq!(write(&mut alone, 5, Some(Sequence(begins - 2)), 1), Status::OutcomeUnknown);
        assert_eq!(write(&mut alone, 5, Some(Sequence(begins - 1)), 1), Status::Ok);
    }

    #[test]
    fn a_write_of_which_nobody_can_tell_in_one_block_is_done_again_in_none() {
        let mut alone = Alone::new();
        let key = request(&alone).key;
        alone.age_log();
        // The log tells that it was done in the second of three blocks.
        alone.order(key, 11, 1, REPAIR | 5);
        alone.io.sent.clear();
        alone.send_again(key, 10, 3, 5);
        let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().unwrap().0 else {
            panic!("the client is answered")
        };
        assert_eq!(reply.head.status, Status::OutcomeUnknown);
        assert_eq!(alone.osd.store().block_count(&key), 1);
    }

    #[test]
    fn what_became_of_an_earlier_attempt_is_told_and_only_what_is_to_be_done_is_done() {
        const WHAT_BECAME: [&str; 5] = [
            "sent again: was not done",
            "sent again: was done",
            "sent again: was undone",
            "sent again: was done in part",
            "sent again: nobody can tell whether it was done",
        ];
        type Case = (fn(&mut Alone, ObjectKey), (u16, u16, u64), Status, bool);
        let mut alone = Alone::new();
        let (key, mut passed) = (request(&alone).key, [0_u64; WHAT_BECAME.len()]);
        let cases: [Case; WHAT_BECAME.len()] = [
            // What others did there in the same object is not its own.
            (|alone, key| alone.order(key, 10, 2, 6), (10, 2, 5), Status::Ok, true),
            (|_, _| {}, (10, 2, 5), Status::Ok, false),
            // Another one led for a while, which did not have it.
            (|alone, key| alone.order(key, 10, 2, REPAIR | UNDONE | 5), (10, 2, 5), Status::Ok, true),
            (|alone, key| alone.order(key, 21, 1, REPAIR | 7), (20, 3, 7), Status::NotActive, true),
            (|alone, _| alone.age_log(), (10, 2, 5), Status::OutcomeUnknown, false),
        ];
        for (number, (earlier, (first_block, block_count, name), status, is_to_be_done)) in
            cases.into_iter().enumerate()
        {
            earlier(&mut alone, key);
            let ordered = reached(&alone);
            alone.send_again(key, first_block, block_count, name);
            let told = alone.io.told(LinkId(7), |message| match message {
                Message::Reply(reply) => Some((reply.head.status, reply.head.reached)),
                _ => None,
            });
            assert_eq!(told.len(), 1, "{number}");
            assert_eq!(told[0].0, status, "{number}");
            assert_eq!(reached(&alone) > ordered, is_to_be_done, "{number}");
            if status == Status::Ok {
                assert_eq!(told[0].1, reached(&alone), "{number}");
            }
            passed[number] += 1;
            assert_eq!(WHAT_BECAME.map(|name| alone.passed(name)), passed, "{number}");
            assert_eq!(alone.osd.view().operations_in_flight(), 0);
            assert_eq!(alone.osd.shared.disk.large.available(), 4, "no memory is kept");
        }
    }

    #[test]
    fn where_a_replica_is_full_nothing_is_written_and_what_gives_room_back_is_done() {
        let mut pair = Pair::new();
        let fills_up = |pair: &mut Pair, is_full| {
            let through = pair.received;
            pair.hears(&wire::ReplicateAck { through, is_full, takes_no_objects: false }.encode());
        };
        let done = |pair: &mut Pair, bytes: &[u8]| {
            pair.ask(bytes);
            pair.run();
            pair.told()
        };
        let write = pair.write_of(BLOCK, 7);
        assert_eq!(done(&mut pair, &write), Some(Status::Ok));
        fills_up(&mut pair, true);
        assert_eq!(pair.ask(&write), Some(Status::NoSpace), "although the object is there");
        let zero = pair.request(BLOCK).encode(wire::Kind::Zero).to_vec();
        assert_eq!(done(&mut pair, &zero), Some(Status::Ok));
        fills_up(&mut pair, false);
        assert_eq!(done(&mut pair, &write), Some(Status::Ok));
    }
}
