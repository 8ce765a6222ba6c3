//! How full a store may be, and for whom.

use crate::actions::Role;
use crate::contents::Contents;
use crate::log::Log;

/// Blocks of the largest write of a client.
const WRITE_BLOCKS_MAX: u64 = 65;

/// The room of a store, in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    /// What cleaning and checkpoints do not need for themselves.
    working: u64,
    /// How far apart the limits lie.
    apart: u64,
    used: u64,
}

impl Space {
    pub(crate) fn of(contents: &Contents, log: &Log) -> Space {
        let segments = &contents.segments;
        let working = u64::from(segments.count().saturating_sub(8)) * u64::from(segments.blocks_each);
        Space {
            working,
            // Two percent; on a small drive more, for what is being written anew is there twice.
            apart: (working / 50).max(u64::from(4 * log.batch_blocks_max).min(working / 8)),
            // A checkpoint's pages are there twice while the next one is being written.
            used: contents.index.block_count + log.staged_blocks + 2 * segments.pages_blocks,
        }
    }

    /// The same, with so many blocks of pages given back.
    pub(crate) fn without_pages(self, blocks: u64) -> Space {
        Space { used: self.used - 2 * blocks, ..self }
    }

    /// The most blocks in use at which a role may still write. What is left is the room that cleaning and checkpoints need.
    pub(crate) fn blocks_max(self, role: Role) -> u64 {
        let below = match role {
            Role::Housekeeping => 0,
            Role::Replica => 1,
            Role::Recovery => 2,
            Role::Primary => 3,
        };
        self.working * 94 / 100 - below * self.apart
    }

    /// Whether a role may write so many blocks more.
    pub(crate) fn has_room(self, role: Role, blocks: u64) -> bool {
        self.used + blocks <= self.blocks_max(role)
    }

    /// Whether clients' writes are refused: the largest of them would be.
    pub(crate) fn is_full(self) -> bool {
        !self.has_room(Role::Primary, WRITE_BLOCKS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_do_without_is_refused_first() {
        let space = Space { working: 10_000, apart: 200, used: 0 };
        let roles = [Role::Primary, Role::Recovery, Role::Replica, Role::Housekeeping];
        assert_eq!(roles.map(|role| space.blocks_max(role)), [8800, 9000, 9200, 9400]);
        let full = Space { used: 8800, ..space };
        assert!(full.is_full() && full.has_room(Role::Recovery, 65));
        assert!(!full.without_pages(33).is_full(), "pages count twice");
    }
}
