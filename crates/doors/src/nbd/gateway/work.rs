//! Pieces of work that are out at the volumes, and what became of them in NBD's words.

use crate::nbd::in_flight::PieceId;
use crate::nbd::protocol::ErrorCode;
use crate::nbd::vocabulary::Failure;
use base::OBJECT_BYTES;
use client::ClientError;
use ring::ConnectionId;
use volume::Slots;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    /// Writes, trims and zeroings: all that is answered with a word.
    Change,
    Extents,
}

/// One piece of work.
#[derive(Debug)]
pub(super) struct Work {
    /// Whom it is for. That connection may be gone by the time it is done.
    pub(super) connection: ConnectionId,
    /// By its place among the exports.
    pub(super) export: usize,
    pub(super) piece: PieceId,
    pub(super) kind: Kind,
    /// In bytes.
    pub(super) length: usize,
    /// Operations that it was cut into and that have not ended.
    pub(super) parts_left: u32,
    /// The first failure of them.
    pub(super) failure: Option<Failure>,
    /// A change whose connection is gone.
    pub(super) is_orphan: bool,
}

/// All work that is out.
#[derive(Debug, Default)]
pub(super) struct Works(Slots<Work>);

impl Works {
    /// How much is out.
    pub(super) fn count(&self) -> usize {
        self.0.count()
    }

    /// Takes work in; the answer names it.
    pub(super) fn insert(&mut self, work: Work) -> u64 {
        self.0.insert(work) as u64
    }

    /// All that is out.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Work> {
        self.0.iter_mut()
    }

    /// Whether the work is an orphan, if it is out.
    pub(super) fn is_orphan(&self, token: u64) -> bool {
        self.0.find(token as usize).is_some_and(|work| work.is_orphan)
    }

    /// What the work is.
    pub(super) fn kind(&mut self, token: u64) -> Kind {
        self.0.get(token as usize).kind
    }

    /// An operation of the work ended. The work itself, if it was the last.
    pub(super) fn part_ended(&mut self, token: u64, failure: Option<Failure>) -> Option<Work> {
        let work = self.0.get(token as usize);
        work.parts_left -= 1;
        if work.failure.is_none() {
            work.failure = failure;
        }
        (work.parts_left == 0).then(|| self.0.remove(token as usize))
    }

    /// Takes everything back.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Work> {
        self.0.drain()
    }
}

/// What an NBD client is told of a failure.
pub(super) fn failure(error: &ClientError, kind: Kind) -> Failure {
    let (code, offset) = match error {
        // A volume that shrank meanwhile. The protocol has a code of its own for writes beyond the end.
        ClientError::OutOfRange { .. } if kind == Kind::Change => (ErrorCode::NoSpace, None),
        ClientError::OutOfRange { .. } => (ErrorCode::Invalid, None),
        ClientError::NoSpace { .. } => (ErrorCode::NoSpace, None),
        ClientError::Fenced { .. } => (ErrorCode::Shutdown, None),
        // The protocol has no word for a device that is read-only now: this is what others say of one.
        ClientError::Forbidden { .. }
        | ClientError::IsSnapshot { .. }
        | ClientError::ReadOnly { .. }
        | ClientError::NotOwned { .. } => (ErrorCode::NotPermitted, None),
        ClientError::Damaged { object, offset, .. } => {
            (ErrorCode::Io, Some(u64::from(*object) * OBJECT_BYTES + u64::from(*offset)))
        }
        ClientError::NoSuchVolume { .. }
        | ClientError::DeviceFailed { .. }
        | ClientError::CorruptInTransit { .. }
        | ClientError::OutcomeUnknown { .. }
        | ClientError::Abandoned { .. }
        | ClientError::TimedOut { .. } => (ErrorCode::Io, None),
    };
    Failure { code, offset, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{LinkId, OsdId};

    fn work(parts_left: u32) -> Work {
        let connection = ConnectionId::of_link(LinkId(1));
        let piece = PieceId { slot: 0, index: 0, generation: 2 };
        let (kind, failure) = (Kind::Change, None);
        Work { connection, export: 0, piece, kind, length: 1, parts_left, failure, is_orphan: false }
    }

    #[test]
    fn work_ends_with_its_last_part_and_the_first_failure() {
        let mut works = Works::default();
        let token = works.insert(work(3));
        assert!(works.part_ended(token, None).is_none());
        assert!(works.part_ended(token, Some(Failure::new(ErrorCode::Io, "first"))).is_none());
        let done = works.part_ended(token, Some(Failure::new(ErrorCode::Io, "second"))).unwrap();
        assert_eq!(done.failure.unwrap().message, "first");
        assert_eq!(works.count(), 0);
        assert_eq!(works.insert(work(1)), token, "a slot is used again");
    }

    #[test]
    fn damage_is_told_with_its_place_in_the_volume() {
        let damaged = ClientError::Damaged { volume: "v".into(), object: 2, offset: 8192, osd: OsdId(1) };
        let told = failure(&damaged, Kind::Read);
        assert_eq!((told.code, told.offset), (ErrorCode::Io, Some(2 * OBJECT_BYTES + 8192)));
        assert!(told.message.contains("osd.1"), "{}", told.message);
        let code = |error| failure(&error, Kind::Change).code;
        assert_eq!(code(ClientError::NoSpace { volume: "v".into() }), ErrorCode::NoSpace);
        assert_eq!(code(ClientError::Fenced { volume: "v".into() }), ErrorCode::Shutdown);
        assert_eq!(code(ClientError::OutcomeUnknown { volume: "v".into() }), ErrorCode::Io);
    }
}
