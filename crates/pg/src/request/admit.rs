//! Admission: whether this OSD may serve a request of a client now.

use crate::broken::Sabotage;
use crate::context::Context;
use crate::epoch::differences::done_runs;
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{Asked, Attempt, ByteRange, OperationId, OperationKind, Purpose};
use base::figures::RequestKind;
use base::geometry::VOLUME_BYTES_MAX;
use base::log_entry::name_of;
use base::{BlockRange, LinkId, OBJECT_BYTES};
use wire::{Outcome, RefusalDetails, Request, Status};

/// Why a request cannot be served by this OSD now.
pub(crate) type Refusal = (Status, RefusalDetails);

/// The group of a request, if this OSD may serve it.
pub(crate) fn admit(cx: &mut Context<'_, impl Io>, request: &Request) -> Result<u32, Refusal> {
    let refuse = |status| Err((status, RefusalDetails { osd: cx.me.id, ..RefusalDetails::default() }));
    let Some(volume) = cx.volumes.get_mut(request.key.volume) else {
        // It was made a moment ago, and the map that shows it is on its way.
        return refuse(Status::NotActive);
    };
    if volume.is_removed {
        return refuse(Status::NoSuchVolume);
    }
    let (pg, object) = (request.key.pg, request.key.object);
    // Whoever may use another pool only says that it is of that one: it must not fence those who may use this.
    if pg.pool != volume.pool || u64::from(object) >= VOLUME_BYTES_MAX / OBJECT_BYTES {
        return refuse(Status::NotPrimary);
    }
    if request.generation < volume.generation {
        let details = RefusalDetails { generation: volume.generation, ..RefusalDetails::default() };
        return Err((Status::Fenced, details));
    }
    // The attach is newer than the map: it fences the older ones from here on.
    volume.generation = volume.generation.max(request.generation);
    let Some(index) = cx.groups.find(pg) else { return refuse(Status::NotPrimary) };
    let group = &cx.groups[index];
    // Whose map is from before a split may mean the other half.
    let is_held = group.holds(&request.key) || cx.me.broken.is(Sabotage::ServeOtherHalf);
    if group.config.primary != cx.me.id || !is_held {
        return refuse(Status::NotPrimary);
    }
    if !group.is_active() {
        return refuse(Status::NotActive);
    }
    if request.epoch != group.epoch {
        return Err((Status::StaleEpoch, RefusalDetails { epoch: group.epoch, ..RefusalDetails::default() }));
    }
    Ok(index)
}

/// As [`admit`], for what changes something: that takes enough members.
pub(crate) fn admit_change(cx: &mut Context<'_, impl Io>, request: &Request) -> Result<u32, Refusal> {
    let group = admit(cx, request)?;
    // Without leases another OSD may be primary by now, and have learned that the client is fenced.
    let may_lead = cx.has_leases(group) || cx.breaks(Sabotage::ForgetFence);
    if cx.groups[group].is_writable() && may_lead {
        return Ok(group);
    }
    Err((Status::NotActive, RefusalDetails { osd: cx.me.id, ..RefusalDetails::default() }))
}

/// The group that was found for a request; the client was told why, if there is none.
pub(crate) fn or_refuse(
    cx: &mut Context<'_, impl Io>,
    admitted: Result<u32, Refusal>,
    asked: &Asked,
) -> Option<u32> {
    admitted.map_err(|(status, details)| cx.refuse_client(asked, status, details)).ok()
}

/// A request of a client that was taken up now.
pub(crate) fn asked(cx: &Context<'_, impl Io>, link: LinkId, request: &Request, kind: RequestKind) -> Asked {
    let (volume, bytes) = (request.key.volume, request.length);
    Asked { link, request: request.request, volume, kind, bytes, at: cx.now }
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
    let operation = cx.operations.live(id);
    operation.bytes = ByteRange { offset: request.offset, length: request.length };
    operation.attempt =
        Attempt { origin: name_of(request.origin), is_again: request.is_again, is_narrowed: false };
    id
}

/// Of which blocks of an operation that was sent before an earlier attempt was done, in runs:
/// `(block, block count, is_done)`.
fn done_before(cx: &Context<'_, impl Io>, id: OperationId) -> Option<Vec<(u16, u16, bool)>> {
    let operation = cx.operations.get(id).filter(|operation| operation.attempt.is_again)?;
    let (range, name) = (operation.range, name_of(operation.attempt.origin));
    let is_forgotten = cx.breaks(Sabotage::ForgetOrigin);
    (!is_forgotten).then(|| done_runs(cx.disk.store.pg_log(range.key.pg), &range, name))
}

/// Whether an earlier attempt at an operation was done in part: the members began to agree on it, and then another
/// one led that has the rest as it was before.
pub(crate) fn is_done_in_part(cx: &Context<'_, impl Io>, id: OperationId) -> bool {
    done_before(cx, id).is_some_and(|runs| runs.len() > 1)
}

/// Answers an operation that was done by an earlier attempt. If that was done in part, what is left of the operation
/// are the first blocks that it did not reach; its bytes, if it has any, are held.
pub(crate) fn is_done_already(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    let Some(runs) = done_before(cx, id) else { return false };
    let operation = cx.operations.live(id);
    let (purpose, group) = (operation.purpose, operation.group);
    let (key, name) = (operation.range.key, name_of(operation.attempt.origin));
    if let Some((first_block, block_count, _)) = runs.iter().find(|(.., is_done)| !is_done) {
        let milestone = if runs.len() > 1 {
            operation.narrow(*first_block, *block_count);
            Milestone::SentAgainInPart
        } else if cx.disk.store.pg_log(key.pg).any(|entry| entry.is_of(&key, name)) {
            Milestone::SentAgainUndone
        } else {
            Milestone::SentAgainUnknown
        };
        cx.pass(milestone);
        return false;
    }
    cx.pass(Milestone::SentAgainDone);
    if let Purpose::Client(asked) = purpose {
        cx.count_done(&asked, group);
        cx.io.send(asked.link, &Outcome::done(asked.request, 0));
    }
    cx.forget(id);
    true
}

/// Puts an operation at the end of its group's line.
pub(crate) fn wait(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let group = cx.operations.live(id).group;
    cx.groups[group].line.waiting.push_back(id);
    cx.turn.look_again(group);
}

/// Whether a replica of the group said that it is nearly full.
pub(crate) fn is_member_full(cx: &Context<'_, impl Io>, group: u32) -> bool {
    cx.groups[group].replicas(cx.me.id).any(|osd| cx.links.to(osd).is_some_and(|peer| peer.is_full))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::{Alone, PG, VOLUME};
    use base::{BLOCK_BYTES, Epoch, Generation, ObjectKey, OsdId, PgId, VolumeId};

    fn request(alone: &Alone) -> Request {
        Request {
            request: 1,
            key: ObjectKey { pg: PG, volume: VOLUME, object: 3 },
            offset: 0,
            length: BLOCK_BYTES as u32,
            epoch: alone.osd.shared.groups[0].epoch,
            generation: Generation(1),
            origin: 0,
            is_again: false,
        }
    }

    fn refused(alone: &mut Alone, request: &Request) -> Option<Status> {
        alone.with(|_, cx| admit(cx, request).err().map(|(status, _)| status))
    }

    #[test]
    fn a_request_is_admitted_by_volume_generation_group_and_epoch() {
        let mut alone = Alone::new();
        let wanted = request(&alone);
        assert_eq!(refused(&mut alone, &wanted), None);
        let of = |key: ObjectKey| Request { key, ..wanted };
        let unknown = of(ObjectKey { volume: VolumeId(9), ..wanted.key });
        assert_eq!(refused(&mut alone, &unknown), Some(Status::NotActive), "its map may be on its way");
        let elsewhere = of(ObjectKey { pg: PgId { index: 9, ..PG }, ..wanted.key });
        assert_eq!(refused(&mut alone, &elsewhere), Some(Status::NotPrimary));
        let beyond = of(ObjectKey { object: u32::MAX, ..wanted.key });
        assert_eq!(refused(&mut alone, &beyond), Some(Status::NotPrimary));
        let stale = Request { epoch: Epoch(0), ..wanted };
        assert_eq!(refused(&mut alone, &stale), Some(Status::StaleEpoch));
    }

    #[test]
    fn a_newer_attach_fences_the_older_ones() {
        let mut alone = Alone::new();
        let older = request(&alone);
        let newer = Request { generation: Generation(2), ..older };
        assert_eq!(refused(&mut alone, &newer), None);
        assert_eq!(refused(&mut alone, &older), Some(Status::Fenced));
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
}
