//! Who has how much of what waits: of clients' operations that were put in line, those of each connection, of each tenant,
//! and all.
//!
//! An operation counts from when it is put in line until it has ended: what it waited for may end many at a time, and then the
//! drive is to read for all of them.

use base::hash::Map;
use base::tenant::Held;
use base::{LinkId, Tenant};

/// How much waits, or waited and has not ended yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) operations: usize,
    /// Of memory that they hold, or are going to.
    pub(crate) bytes: usize,
}

impl Share {
    /// Whether one more operation with so many bytes is no more than that.
    pub(crate) fn fits(self, bytes: usize, most: Share) -> bool {
        self.operations < most.operations && self.bytes + bytes <= most.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.operations += 1;
        self.bytes += bytes;
    }

    fn take_off(&mut self, bytes: usize) {
        self.operations -= 1;
        self.bytes -= bytes;
    }
}

/// An operation that counts: whose it is, and its bytes.
#[derive(Clone, Copy, Debug)]
struct Counted {
    link: LinkId,
    tenant: Tenant,
    bytes: usize,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_link: Map<LinkId, Share>,
    /// By tenant, and of all.
    operations: Held,
    bytes: Held,
    /// By the slot of an operation, if it counts.
    counted: Vec<Option<Counted>>,
}

impl Shares {
    pub(crate) fn all(&self) -> Share {
        Share { operations: self.operations.all(), bytes: self.bytes.all() }
    }

    pub(crate) fn of_tenant(&self, tenant: Tenant) -> Share {
        Share { operations: self.operations.of(tenant), bytes: self.bytes.of(tenant) }
    }

    pub(crate) fn of(&self, link: LinkId) -> Share {
        self.by_link.get(&link).copied().unwrap_or_default()
    }

    /// The most operations, and the most bytes, that one connection has.
    pub(crate) fn most_of_a_link(&self) -> Share {
        let most = |of: fn(&Share) -> usize| self.by_link.values().map(of).max().unwrap_or(0);
        Share { operations: most(|share| share.operations), bytes: most(|share| share.bytes) }
    }

    /// Whether the operation in a slot counts.
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.counted.get(slot as usize).is_some_and(Option::is_some)
    }

    /// Counts the operation in a slot, once.
    pub(crate) fn count(&mut self, slot: u32, link: LinkId, tenant: Tenant, bytes: usize) {
        let slot = slot as usize;
        if slot >= self.counted.len() {
            self.counted.resize(slot + 1, None);
        }
        if self.counted[slot].is_none() {
            self.counted[slot] = Some(Counted { link, tenant, bytes });
            self.operations.add(tenant, 1);
            self.bytes.add(tenant, bytes);
            self.by_link.entry(link).or_default().add(bytes);
        }
    }

    /// The operation in a slot has ended.
    pub(crate) fn ended(&mut self, slot: u32) {
        let counted = self.counted.get_mut(slot as usize).and_then(Option::take);
        let Some(Counted { link, tenant, bytes }) = counted else { return };
        self.operations.take_off(tenant, 1);
        self.bytes.take_off(tenant, bytes);
        let share = self.by_link.get_mut(&link).expect("what counts has a share");
        share.take_off(bytes);
        if share.operations == 0 {
            self.by_link.remove(&link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_counts_once_until_it_has_ended() {
        let mut shares = Shares::default();
        let (one, other) = (LinkId(1), LinkId(2));
        let (tenant, nobody) = (Tenant(1), Tenant::NOBODY);
        shares.count(7, one, tenant, 100);
        shares.count(7, one, tenant, 100);
        shares.count(3, other, nobody, 10);
        assert_eq!(shares.of(one), Share { operations: 1, bytes: 100 });
        assert_eq!((shares.of_tenant(tenant), shares.of_tenant(nobody)), (shares.of(one), shares.of(other)));
        assert_eq!(shares.all(), Share { operations: 2, bytes: 110 });
        assert!(shares.has(7) && !shares.has(4) && !shares.has(1000));
        shares.ended(7);
        shares.ended(7);
        shares.ended(1000);
        assert_eq!((shares.of(one), shares.all().bytes), (Share::default(), 10));
        assert_eq!(shares.of_tenant(tenant), Share::default());
        assert!(!shares.by_link.contains_key(&one), "nothing is kept of who has nothing");
    }

    #[test]
    fn a_share_has_room_for_so_many_operations_and_bytes() {
        let most = Share { operations: 2, bytes: 100 };
        assert!(Share { operations: 1, bytes: 60 }.fits(40, most));
        assert!(!Share { operations: 1, bytes: 60 }.fits(41, most));
        assert!(!Share { operations: 2, bytes: 0 }.fits(0, most));
    }

    #[test]
    fn of_several_operations_those_count_that_have_not_ended() {
        let mut shares = Shares::default();
        assert_eq!(shares.most_of_a_link(), Share::default());
        let (one, other, tenant) = (LinkId(1), LinkId(2), Tenant(1));
        for (slot, link, bytes) in [(0, one, 100), (1, one, 20), (2, other, 500)] {
            shares.count(slot, link, tenant, bytes);
        }
        assert_eq!(shares.most_of_a_link(), Share { operations: 2, bytes: 500 });
        shares.ended(0);
        assert!(!shares.has(0) && shares.has(1));
        assert_eq!(shares.of(one), Share { operations: 1, bytes: 20 });
        let both = Share { operations: 2, bytes: 520 };
        assert_eq!((shares.of_tenant(tenant), shares.all()), (both, both));
        shares.ended(1);
        assert_eq!((shares.of(one), shares.of(other)), (Share::default(), shares.all()));
    }
}
