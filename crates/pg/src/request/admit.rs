//! Admission: whether this OSD may serve a request of a client now.

use crate::broken::Sabotage;
use crate::context::Context;
use crate::epoch::differences::done_runs;
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{Asked, Attempt, ByteRange, Operation, OperationId, OperationKind, Purpose};
use base::figures::RequestKind;
use base::geometry::VOLUME_BYTES_MAX;
use base::log_entry::NAME;
use base::{LinkId, OBJECT_BYTES};
use wire::encode::{self, RefusalDetails};
use wire::{Request, Status};

use crate::blocks::BlockRange;

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
        Attempt { tag: request.origin & NAME, is_again: request.is_again, is_narrowed: false };
    id
}

/// Of which blocks of an operation an earlier attempt was done, in runs: `(block, block count, is_done)`.
fn done_before(cx: &Context<'_, impl Io>, operation: &Operation) -> Vec<(u16, u16, bool)> {
    done_runs(cx.disk.store.pg_log(operation.range.key.pg), &operation.range, operation.attempt.tag)
}

/// Whether an earlier attempt at an operation was done in part: the members began to agree on it, and then another
/// one led that has the rest as it was before.
pub(crate) fn is_done_in_part(cx: &Context<'_, impl Io>, id: OperationId) -> bool {
    let Some(operation) = cx.operations.get(id) else { return false };
    operation.attempt.is_again && !cx.breaks(Sabotage::ForgetOrigin) && done_before(cx, operation).len() > 1
}

/// Answers an operation that was done by an earlier attempt. If that was done in part, what is left of the operation
/// are the first blocks that it did not reach; its bytes, if it has any, are held.
pub(crate) fn is_done_already(cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
    let Some(operation) = cx.operations.get(id) else { return false };
    if !operation.attempt.is_again || cx.breaks(Sabotage::ForgetOrigin) {
        return false;
    }
    let (purpose, group) = (operation.purpose, operation.group);
    let (key, tag) = (operation.range.key, operation.attempt.tag);
    let runs = done_before(cx, operation);
    if let Some((first_block, block_count, _)) = runs.iter().find(|(.., is_done)| !is_done) {
        let milestone = if runs.len() > 1 {
            cx.operations.live(id).narrow(*first_block, *block_count);
            Milestone::SentAgainInPart
        } else if cx.disk.store.pg_log(key.pg).any(|entry| entry.is_of(&key, tag)) {
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
        cx.io.send(asked.link, &encode::reply(asked.request, Status::Ok, 0));
    }
    cx.forget(id);
    true
}

/// Puts an operation at the end of its group's line.
pub(crate) fn wait(cx: &mut Context<'_, impl Io>, id: OperationId) {
    if let Some(operation) = cx.operations.get(id) {
        let group = operation.group;
        cx.groups[group].line.waiting.push_back(id);
        cx.turn.look_again(group);
    }
}

/// Whether a replica of the group said that it is nearly full.
pub(crate) fn is_member_full(cx: &Context<'_, impl Io>, group: u32) -> bool {
    cx.groups[group].replicas(cx.me.id).any(|osd| cx.links.to(osd).is_some_and(|peer| peer.is_full))
}
