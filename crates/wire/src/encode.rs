//! Messages to be sent: each function answers the bytes of one, or its header where data follows.

use crate::PROTOCOL_VERSION;
use crate::header::{HEADER_BYTES, Header, Kind, Status};
use crate::message::{
    FLAG_AFTER, FLAG_AGAIN, FLAG_ALL_ZEROS, FLAG_DEEP, FLAG_FULL, FLAG_IS_INCOMPLETE, FLAG_JOIN, FLAG_LAST,
    FLAG_MAY_LACK_TAIL, Fence, Findings, FindingsBody, Hello, HelloBody, Inquiry, LOG_ENTRIES_MAX, Lease,
    LogEntryBody, MAGIC, OBJECTS_MAX, ObjectBody, ObjectDigest, REASON_BYTES_MAX, Replicate, Request, Role,
};
use base::{
    BLOCK_BYTES, Epoch, Generation, LogEntry, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, Sequence, VolumeId,
};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// The bytes of a header.
pub type HeaderBytes = [u8; HEADER_BYTES];

fn bytes_of(header: Header) -> HeaderBytes {
    let mut bytes = [0; HEADER_BYTES];
    bytes.copy_from_slice(header.sealed().as_bytes());
    bytes
}

fn about_pg(kind: Kind, pg: PgId, epoch: Epoch) -> Header {
    Header {
        kind: kind as u8,
        pool: pg.pool.0.into(),
        pg_index: pg.index.into(),
        epoch: epoch.0.into(),
        ..Header::default()
    }
}

fn about_object(kind: Kind, key: ObjectKey, epoch: Epoch) -> Header {
    Header { volume: key.volume.0.into(), object: key.object.into(), ..about_pg(kind, key.pg, epoch) }
}

fn of_request(kind: Kind, request: &Request) -> Header {
    Header {
        request: request.request.into(),
        offset: request.offset.into(),
        length: request.length.into(),
        generation: request.generation.0.into(),
        sequence: request.origin.into(),
        flags: if request.is_again { FLAG_AGAIN } else { 0 },
        ..about_object(kind, request.key, request.epoch)
    }
}

/// A whole hello.
#[must_use]
pub fn hello(hello: &Hello) -> [u8; HEADER_BYTES + size_of::<HelloBody>()] {
    let (role, sender) = match hello.role {
        Role::Client(id) => (1u16, id.0),
        Role::Osd(id) => (2, u64::from(id.0)),
    };
    let body = HelloBody {
        magic: MAGIC,
        version: PROTOCOL_VERSION.into(),
        role: role.into(),
        target: hello.target.0.into(),
        cluster: hello.cluster.to_bytes(),
        sender: sender.into(),
        reserved: [0; 24],
    };
    let header = Header {
        kind: Kind::Hello as u8,
        body_bytes: (size_of::<HelloBody>() as u32).into(),
        ..Header::default()
    };
    let mut bytes = [0; HEADER_BYTES + size_of::<HelloBody>()];
    bytes[..HEADER_BYTES].copy_from_slice(header.sealed().as_bytes());
    bytes[HEADER_BYTES..].copy_from_slice(body.as_bytes());
    bytes
}

/// A whole welcome.
#[must_use]
pub fn welcome() -> HeaderBytes {
    bytes_of(Header { kind: Kind::Welcome as u8, ..Header::default() })
}

/// A whole refusal. A reason that is too long is cut.
#[must_use]
pub fn refused(reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let header = Header { kind: Kind::Refused as u8, body_bytes: (end as u32).into(), ..Header::default() };
    [header.sealed().as_bytes(), &reason.as_bytes()[..end]].concat()
}

/// A whole read request.
#[must_use]
pub fn read(request: &Request) -> HeaderBytes {
    bytes_of(of_request(Kind::Read, request))
}

/// The header of a write request; the checksums and the data follow.
#[must_use]
pub fn write(request: &Request, checksums: &[U32]) -> HeaderBytes {
    debug_assert_eq!(checksums.len(), usize::from(request.blocks().1), "a checksum for each block");
    let body_bytes = size_of_val(checksums) as u32 + request.length;
    bytes_of(Header { body_bytes: body_bytes.into(), ..of_request(Kind::Write, request) })
}

/// A whole zeroing request.
#[must_use]
pub fn zero(request: &Request) -> HeaderBytes {
    bytes_of(of_request(Kind::Zero, request))
}

/// A whole request for an object's allocated blocks.
#[must_use]
pub fn allocated(request: &Request) -> HeaderBytes {
    bytes_of(of_request(Kind::Allocated, request))
}

/// The header of a reply that carries nothing, or `body_bytes` of checksums and data that follow.
#[must_use]
pub fn reply(request: u64, status: Status, body_bytes: usize) -> HeaderBytes {
    bytes_of(Header {
        kind: Kind::Reply as u8,
        status: (status as u16).into(),
        request: request.into(),
        body_bytes: (body_bytes as u32).into(),
        ..Header::default()
    })
}

/// A whole reply to a read of nothing but zeros.
#[must_use]
pub fn reply_zeros(request: u64) -> HeaderBytes {
    bytes_of(Header {
        kind: Kind::Reply as u8,
        flags: FLAG_ALL_ZEROS,
        request: request.into(),
        ..Header::default()
    })
}

/// What a refused request's reply tells beside the status.
#[derive(Clone, Copy, Debug, Default)]
pub struct RefusalDetails {
    /// The group's epoch.
    pub epoch: Epoch,
    /// The volume's generation.
    pub generation: Generation,
    /// The damaged place, in bytes from the object's start.
    pub offset: u32,
    /// Whose damage or failure.
    pub osd: OsdId,
}

/// A whole reply that refuses.
#[must_use]
pub fn reply_refused(request: u64, status: Status, details: RefusalDetails) -> HeaderBytes {
    bytes_of(Header {
        kind: Kind::Reply as u8,
        status: (status as u16).into(),
        request: request.into(),
        epoch: details.epoch.0.into(),
        generation: details.generation.0.into(),
        offset: details.offset.into(),
        sequence: u64::from(details.osd.0).into(),
        ..Header::default()
    })
}

/// The header of a replicated write (checksums and data follow), or a whole replicated zeroing.
#[must_use]
pub fn replicate(replicate: &Replicate, is_zero: bool) -> HeaderBytes {
    about_blocks(if is_zero { Kind::ReplicateZero } else { Kind::ReplicateWrite }, replicate)
}

/// The header of a push (checksums and data follow), or a whole push of zeros.
#[must_use]
pub fn push(replicate: &Replicate, is_zero: bool) -> HeaderBytes {
    about_blocks(if is_zero { Kind::PushZero } else { Kind::PushWrite }, replicate)
}

/// The header of a push of a lost block; the checksum of what it held follows.
#[must_use]
pub fn push_lost(replicate: &Replicate) -> HeaderBytes {
    about_blocks(Kind::PushLost, replicate)
}

fn about_blocks(kind: Kind, replicate: &Replicate) -> HeaderBytes {
    let block_count = u32::from(replicate.block_count);
    let body_bytes = match kind {
        Kind::ReplicateWrite | Kind::PushWrite => block_count * (BLOCK_BYTES as u32 + 4),
        Kind::PushLost => block_count * 4,
        _ => 0,
    };
    bytes_of(Header {
        body_bytes: body_bytes.into(),
        length: (block_count * BLOCK_BYTES as u32).into(),
        offset: (u32::from(replicate.first_block) * BLOCK_BYTES as u32).into(),
        sequence: replicate.sequence.0.into(),
        request: replicate.origin.into(),
        ..about_object(kind, replicate.key, replicate.epoch)
    })
}

/// A whole acknowledgement of the first `through` replicated messages.
#[must_use]
pub fn replicate_ack(through: u64, is_full: bool) -> HeaderBytes {
    bytes_of(Header {
        kind: Kind::ReplicateAck as u8,
        flags: if is_full { FLAG_FULL } else { 0 },
        sequence: through.into(),
        ..Header::default()
    })
}

/// A whole refusal of one replicated message.
#[must_use]
pub fn replicate_refused(ordinal: u64, status: Status, epoch: Epoch) -> HeaderBytes {
    bytes_of(Header {
        kind: Kind::ReplicateRefused as u8,
        status: (status as u16).into(),
        epoch: epoch.0.into(),
        sequence: ordinal.into(),
        ..Header::default()
    })
}

/// A whole query.
#[must_use]
pub fn query(pg: PgId, modulus: u32, epoch: Epoch) -> HeaderBytes {
    bytes_of(Header { length: modulus.into(), ..about_pg(Kind::Query, pg, epoch) })
}

/// A whole word that the group serves.
#[must_use]
pub fn serves(pg: PgId, epoch: Epoch) -> HeaderBytes {
    bytes_of(about_pg(Kind::Serves, pg, epoch))
}

/// A whole word that a learner has everything.
#[must_use]
pub fn whole(pg: PgId, epoch: Epoch) -> HeaderBytes {
    bytes_of(about_pg(Kind::Whole, pg, epoch))
}

/// A whole activation.
#[must_use]
pub fn activate(pg: PgId, epoch: Epoch, mark: Sequence) -> HeaderBytes {
    bytes_of(Header { sequence: mark.0.into(), ..about_pg(Kind::Activate, pg, epoch) })
}

/// A whole activation of a learner, whose log begins anew at `mark` and which gets what is ordered from `from` on.
#[must_use]
pub fn join(pg: PgId, epoch: Epoch, mark: Sequence, from: Sequence) -> HeaderBytes {
    bytes_of(Header {
        flags: FLAG_JOIN,
        sequence: mark.0.into(),
        request: from.0.into(),
        ..about_pg(Kind::Activate, pg, epoch)
    })
}

/// A whole log entry for a learner.
#[must_use]
pub fn push_entry(pg: PgId, epoch: Epoch, entry: &LogEntry) -> HeaderBytes {
    bytes_of(Header {
        volume: entry.volume.0.into(),
        object: entry.object.into(),
        offset: u32::from(entry.first_block).into(),
        length: u32::from(entry.block_count).into(),
        generation: entry.epoch.0.into(),
        sequence: entry.sequence.0.into(),
        request: entry.origin.into(),
        ..about_pg(Kind::PushEntry, pg, epoch)
    })
}

/// A whole lease message.
#[must_use]
pub fn lease(lease: &Lease) -> HeaderBytes {
    bytes_of(Header {
        kind: Kind::Lease as u8,
        length: lease.ttl_ms.into(),
        request: lease.stamp.into(),
        offset: lease.granted_ttl_ms.into(),
        sequence: lease.granted_stamp.into(),
        ..Header::default()
    })
}

/// A whole request for the objects of a group, those behind `after`.
#[must_use]
pub fn list_objects(pg: PgId, epoch: Epoch, after: Option<(VolumeId, u32)>) -> HeaderBytes {
    let (volume, object) = after.unwrap_or_default();
    bytes_of(Header {
        flags: if after.is_some() { FLAG_AFTER } else { 0 },
        volume: volume.0.into(),
        object: object.into(),
        ..about_pg(Kind::ListObjects, pg, epoch)
    })
}

/// Appends a whole answer to that.
///
/// # Panics
/// If there are more entries than fit.
pub fn objects(bytes: &mut Vec<u8>, pg: PgId, epoch: Epoch, entries: &[ObjectDigest], is_last: bool) {
    assert!(entries.len() <= OBJECTS_MAX, "a page of objects");
    let header = Header {
        flags: if is_last { FLAG_LAST } else { 0 },
        body_bytes: (size_of::<ObjectBody>() as u32 * entries.len() as u32).into(),
        ..about_pg(Kind::Objects, pg, epoch)
    };
    bytes.extend_from_slice(header.sealed().as_bytes());
    for entry in entries {
        let body = ObjectBody {
            volume: entry.volume.0.into(),
            object: entry.object.into(),
            reserved: 0.into(),
            digest: entry.digest.into(),
        };
        bytes.extend_from_slice(body.as_bytes());
    }
}

/// A whole request for the checksums of an object's blocks.
#[must_use]
pub fn list_blocks(key: ObjectKey, epoch: Epoch) -> HeaderBytes {
    bytes_of(about_object(Kind::ListBlocks, key, epoch))
}

/// Appends a whole answer to that: a bit for each block that there is, and a checksum for each block.
pub fn blocks(
    bytes: &mut Vec<u8>,
    key: ObjectKey,
    epoch: Epoch,
    allocated: &[u8; OBJECT_BLOCKS / 8],
    checksums: &[U32; OBJECT_BLOCKS],
) {
    let body_bytes = (size_of_val(allocated) + size_of_val(checksums)) as u32;
    let header = Header { body_bytes: body_bytes.into(), ..about_object(Kind::Blocks, key, epoch) };
    bytes.extend_from_slice(header.sealed().as_bytes());
    bytes.extend_from_slice(allocated);
    bytes.extend_from_slice(checksums.as_bytes());
}

/// A whole request for what blocks hold.
#[must_use]
pub fn fetch(inquiry: &Inquiry) -> HeaderBytes {
    bytes_of(about_inquiry(Kind::Fetch, inquiry))
}

/// The header of an answer to that. Checksums and data of all blocks follow if it is `with_data`.
#[must_use]
pub fn fetched(inquiry: &Inquiry, status: Status, with_data: bool) -> HeaderBytes {
    let bytes = if with_data { u32::from(inquiry.block_count) * (BLOCK_BYTES as u32 + 4) } else { 0 };
    bytes_of(Header {
        status: (status as u16).into(),
        body_bytes: bytes.into(),
        ..about_inquiry(Kind::Fetched, inquiry)
    })
}

/// A whole request to check blocks.
#[must_use]
pub fn check(inquiry: &Inquiry, is_deep: bool) -> HeaderBytes {
    bytes_of(Header { flags: if is_deep { FLAG_DEEP } else { 0 }, ..about_inquiry(Kind::Check, inquiry) })
}

/// Appends a whole answer to that.
pub fn checked(bytes: &mut Vec<u8>, inquiry: &Inquiry, findings: &Findings) {
    let body = FindingsBody { damaged: findings.damaged.into(), digest: findings.digest.map(Into::into) };
    let header =
        Header { body_bytes: (size_of_val(&body) as u32).into(), ..about_inquiry(Kind::Checked, inquiry) };
    bytes.extend_from_slice(header.sealed().as_bytes());
    bytes.extend_from_slice(body.as_bytes());
}

fn about_inquiry(kind: Kind, inquiry: &Inquiry) -> Header {
    Header {
        offset: (u32::from(inquiry.first_block) * BLOCK_BYTES as u32).into(),
        length: (u32::from(inquiry.block_count) * BLOCK_BYTES as u32).into(),
        request: inquiry.request.into(),
        ..about_object(kind, inquiry.key, inquiry.epoch)
    }
}

/// A whole order to fence a volume.
#[must_use]
pub fn fence(fence: &Fence) -> HeaderBytes {
    bytes_of(about_fence(Kind::Fence, fence))
}

/// A whole answer to that.
#[must_use]
pub fn fence_done(fence: &Fence) -> HeaderBytes {
    bytes_of(about_fence(Kind::FenceDone, fence))
}

fn about_fence(kind: Kind, fence: &Fence) -> Header {
    Header {
        kind: kind as u8,
        request: fence.request.into(),
        volume: fence.volume.0.into(),
        generation: fence.generation.0.into(),
        ..Header::default()
    }
}

/// What a position tells of a log beside its entries.
#[derive(Clone, Copy, Debug)]
pub struct LogState {
    /// The last write the member has, 0 if none.
    pub last_sequence: Sequence,
    /// From here on the entries lack nothing; 0 if they go back to the group's first write.
    pub log_begins: Sequence,
    /// The member was catching up when its log began, and does not have what came before.
    pub is_incomplete: bool,
    /// The member was in no epoch of the group since it started.
    pub may_lack_tail: bool,
}

/// Appends a whole position to `bytes`.
///
/// # Panics
/// If there are more than 1,024 entries.
pub fn position(
    bytes: &mut Vec<u8>,
    pg: PgId,
    epoch: Epoch,
    state: LogState,
    entries: impl ExactSizeIterator<Item = LogEntry>,
) {
    assert!(entries.len() <= LOG_ENTRIES_MAX, "a log of {} entries does not fit", entries.len());
    let incomplete = if state.is_incomplete { FLAG_IS_INCOMPLETE } else { 0 };
    let tail = if state.may_lack_tail { FLAG_MAY_LACK_TAIL } else { 0 };
    let header = Header {
        flags: incomplete | tail,
        body_bytes: ((entries.len() * size_of::<LogEntryBody>()) as u32).into(),
        sequence: state.last_sequence.0.into(),
        request: state.log_begins.0.into(),
        ..about_pg(Kind::Position, pg, epoch)
    };
    bytes.extend_from_slice(header.sealed().as_bytes());
    for entry in entries {
        let body = LogEntryBody {
            sequence: entry.sequence.0.into(),
            volume: entry.volume.0.into(),
            epoch: entry.epoch.0.into(),
            object: entry.object.into(),
            first_block: entry.first_block.into(),
            block_count: entry.block_count.into(),
            reserved: 0.into(),
            origin: entry.origin.into(),
        };
        bytes.extend_from_slice(body.as_bytes());
    }
}
