//! How full a store may be, and for whom.
//!
//! Two things run out: blocks, and places in a checkpoint's root, where each object and each group has one however little it
//! holds. Of both the same roles are refused first. Who writes to an object that is there needs no place, and goes on.

use crate::actions::Role;
use crate::contents::Contents;
use crate::layout::{RootHeader, RootObject};
use crate::log::Log;

/// Blocks of the largest write of a client.
const WRITE_BLOCKS_MAX: u64 = 65;
/// What an object takes of a root.
const OBJECT_ROOT_BYTES: u64 = size_of::<RootObject>() as u64;

/// The room of a store, in blocks, and in bytes of a checkpoint's root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    /// What cleaning and checkpoints do not need for themselves.
    working: u64,
    /// How far apart the limits lie.
    apart: u64,
    used: u64,
    /// The largest root.
    root_bytes_max: u64,
    /// What the root comes to when the logs are full of all groups that were not left: entries of a log are refused to nobody.
    root_bytes: u64,
}

/// How many steps below the highest limit a role is refused.
fn steps_below(role: Role) -> u64 {
    match role {
        Role::Housekeeping => 0,
        Role::Replica => 1,
        Role::Recovery => 2,
        Role::Primary => 3,
    }
}

impl Space {
    pub(crate) fn of(contents: &Contents, log: &Log) -> Space {
        let segments = &contents.segments;
        let working = u64::from(segments.count().saturating_sub(8)) * u64::from(segments.blocks_each);
        // Each block that is staged may begin an object.
        let objects = contents.index.len() as u64 + log.staged_blocks;
        Space {
            working,
            // Two percent; on a small drive more, for what is being written anew is there twice.
            apart: (working / 50).max(u64::from(4 * log.batch_blocks_max).min(working / 8)),
            // A checkpoint's pages are there twice while the next one is being written.
            used: contents.index.block_count + log.staged_blocks + 2 * segments.pages_blocks,
            root_bytes_max: log.root_bytes_max,
            root_bytes: size_of::<RootHeader>() as u64
                + objects * OBJECT_ROOT_BYTES
                + contents.logs.root_bytes_max(),
        }
    }

    /// The same, with so many blocks of pages given back.
    pub(crate) fn without_pages(self, blocks: u64) -> Space {
        Space { used: self.used - 2 * blocks, ..self }
    }

    /// The most blocks in use at which a role may still write. What is left is the room that cleaning and checkpoints need.
    pub(crate) fn blocks_max(self, role: Role) -> u64 {
        self.working * 94 / 100 - steps_below(role) * self.apart
    }

    /// Whether a role may write so many blocks more.
    pub(crate) fn has_room(self, role: Role, blocks: u64) -> bool {
        self.used + blocks <= self.blocks_max(role)
    }

    /// Whether a role may add an object. What is left is for groups that come: no mark or split is refused.
    pub(crate) fn has_room_for_object(self, role: Role) -> bool {
        let limit = self.root_bytes_max * 94 / 100 - steps_below(role) * (self.root_bytes_max / 50);
        self.root_bytes + OBJECT_ROOT_BYTES <= limit
    }

    /// Whether clients' writes are refused: the largest of them would be.
    pub(crate) fn is_full(self) -> bool {
        !self.has_room(Role::Primary, WRITE_BLOCKS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::Options;
    use crate::index::{Entry, Index};
    use crate::layout::{LogEnd, RootGroup, SEGMENTS_OFFSET, Superblock};
    use crate::pg_log::PgLogs;
    use crate::segments::Segments;
    use base::{BLOCK_BYTES, Epoch, Fingerprints, LayerId, LogEntry, ObjectKey, PgId, PoolId, Sequence};

    #[test]
    fn as_many_groups_as_an_osd_should_hold_leave_most_of_a_root_to_objects() {
        let options = Options::default();
        let root_bytes_max = (options.root_pieces_max * (options.batch_bytes_max - BLOCK_BYTES)) as u64;
        let mut logs = PgLogs::new(options.pg_log_entries);
        for index in 0..PgId::PER_OSD_MAX {
            let entry = LogEntry {
                epoch: Epoch(1),
                sequence: Sequence(1),
                layer: LayerId(1),
                object: 0,
                first_block: 0,
                block_count: 1,
                origin: 0,
            };
            logs.push(PgId { pool: PoolId(1), index }, entry);
        }
        let root_bytes = logs.root_bytes_max() + 6_000_000 * OBJECT_ROOT_BYTES;
        let space = Space { working: 10_000, apart: 200, used: 0, root_bytes_max, root_bytes };
        assert!(space.has_room_for_object(Role::Primary));
    }

    #[test]
    fn what_is_counted_of_a_store_are_blocks_staged_and_there_pages_twice_and_the_places_in_a_root() {
        // Segments, their blocks and a batch's: how far the limits are apart is two percent, some batches, or an eighth.
        let scenes: [(u32, u32, usize, u64); 5] =
            [(608, 1024, 8, 12_288), (64, 256, 16, 286), (64, 256, 128, 512), (16, 16, 8, 16), (7, 16, 8, 0)];
        for (count, blocks_each, batch_blocks, apart) in scenes {
            let segment_bytes = blocks_each * BLOCK_BYTES as u32;
            let bytes = SEGMENTS_OFFSET + u64::from(count) * u64::from(segment_bytes);
            let mut segments = Segments::new(bytes, segment_bytes);
            segments.pages_blocks = 5;
            let batch_bytes_max = batch_blocks * BLOCK_BYTES;
            let options = Options { batch_bytes_max, root_pieces_max: 3, ..Options::default() };
            let superblock = Superblock::empty();
            let fingerprints = Fingerprints::new(&superblock.secret);
            let mut log =
                Log::new(LogEnd::default(), &superblock, fingerprints, &segments, &options, 0, false);
            log.staged_blocks = 20;
            let (mut index, mut logs) = (Index::default(), PgLogs::new(16));
            for block in 0..3 {
                index.set(ObjectKey::default(), block, Entry { location: 1, crc32c: 0 }, Sequence(1));
            }
            logs.note_modulus(PgId::default(), 1);
            let space = Space::of(&Contents { index, logs, segments }, &log);
            let working = u64::from(count - count.min(8)) * u64::from(blocks_each);
            assert_eq!((space.working, space.apart), (working, apart));
            assert_eq!(space.used, 3 + 20 + 2 * 5);
            assert_eq!(space.root_bytes_max, 3 * (batch_blocks as u64 - 1) * BLOCK_BYTES as u64);
            let taken = size_of::<RootHeader>() + 21 * size_of::<RootObject>() + size_of::<RootGroup>();
            assert_eq!(space.root_bytes, taken as u64);
        }
    }

    #[test]
    fn who_can_do_without_is_refused_first() {
        let space = Space { working: 10_000, apart: 200, used: 0, root_bytes_max: 10_000, root_bytes: 0 };
        let roles = [Role::Primary, Role::Recovery, Role::Replica, Role::Housekeeping];
        assert_eq!(roles.map(|role| space.blocks_max(role)), [8800, 9000, 9200, 9400]);
        let full = Space { used: 8800, ..space };
        assert!(full.is_full() && full.has_room(Role::Recovery, 65));
        let without_pages = [32, 33].map(|pages| full.without_pages(pages).is_full());
        assert_eq!(without_pages, [true, false], "pages count twice");
        let last = Space { used: 8800 - WRITE_BLOCKS_MAX, ..space };
        assert!(!last.is_full() && Space { used: last.used + 1, ..space }.is_full());
        for (role, limit) in roles.into_iter().zip([8800, 9000, 9200, 9400]) {
            let takes = |root_bytes| Space { root_bytes, ..space }.has_room_for_object(role);
            assert_eq!([limit - 32, limit - 31].map(takes), [true, false], "{role:?}");
        }
    }
}
