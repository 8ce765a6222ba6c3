//! The memory of what clients sent and is not handled yet.
//!
//! Each connection has a little of it from the start, and more when what it brings does not fit: so much that any message does.
//! Were it less, halves of messages might take all that there is, and none could get what it takes to its end. Of that no tenant has
//! more than it leaves to the others ([`base::tenant`]): who begins thousands of large messages and ends none has its own others
//! wait.

use base::Tenant;
use base::hash::{Map, Set};
use base::tenant::{Held, may_have};
use std::hash::Hash;

/// What a connection has from the start, in bytes.
pub(crate) const INBOX_BYTES: usize = 16 << 10;
/// The most that it has, in bytes: many messages at once.
pub(crate) const INBOX_BYTES_MAX: usize = (1 << 20) + wire::MESSAGE_BYTES_MAX;
/// The least that it has when it has more than from the start, in bytes: any message.
const INBOX_BYTES_GROWN: usize = wire::MESSAGE_BYTES_MAX.next_multiple_of(4096);
/// What all connections of clients have beyond what each has from the start, in bytes.
const GROWN_BYTES_MAX: usize = 256 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Inboxes<C> {
    held: Held,
    /// Those that have more than they had from the start: whose they are, and how much more.
    grown: Map<C, (Tenant, usize)>,
    /// Tenants of which a message waits for memory, or waited a moment ago.
    short: Set<Tenant>,
}

impl<C> Default for Inboxes<C> {
    fn default() -> Inboxes<C> {
        Inboxes { held: Held::default(), grown: Map::default(), short: Set::default() }
    }
}

impl<C: Copy + Eq + Hash> Inboxes<C> {
    /// The size to which an inbox of that size may grow that is full: its own if there is no more for its tenant.
    pub(crate) fn grow(&mut self, connection: C, tenant: Tenant, bytes: usize) -> usize {
        let more = (2 * bytes).clamp(INBOX_BYTES_GROWN, INBOX_BYTES_MAX) - bytes;
        if more == 0 || !self.has_for(tenant, more) {
            return bytes;
        }
        let (tenant, grown) = self.grown.entry(connection).or_insert((tenant, 0));
        *grown += more;
        self.held.add(*tenant, more);
        bytes + more
    }

    /// Whether a tenant has so much that what its connections do not need at the moment is to be given back.
    pub(crate) fn are_scarce(&self, tenant: Tenant) -> bool {
        !self.has_for(tenant, INBOX_BYTES_MAX)
    }

    fn has_for(&self, tenant: Tenant, bytes: usize) -> bool {
        may_have(tenant, self.held.of(tenant), bytes, GROWN_BYTES_MAX - self.held.all())
    }

    /// A message of a tenant does not fit where it is received.
    pub(crate) fn is_short(&mut self, tenant: Tenant) {
        self.short.insert(tenant);
    }

    /// The connections with more than they had from the start whose tenants were short since this was asked last.
    pub(crate) fn of_the_short(&mut self) -> impl Iterator<Item = C> {
        let short = std::mem::take(&mut self.short);
        self.grown
            .iter()
            .filter(move |(_, (tenant, _))| short.contains(tenant))
            .map(|(connection, _)| *connection)
    }

    /// A connection has no more than it had from the start any more, or has ended.
    pub(crate) fn shrank(&mut self, connection: C) {
        if let Some((tenant, grown)) = self.grown.remove(&connection) {
            self.held.take_off(tenant, grown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: Tenant = Tenant(1);

    /// Grows an inbox from the start as far as it goes.
    fn grown(inboxes: &mut Inboxes<usize>, connection: usize, tenant: Tenant) -> usize {
        let mut bytes = INBOX_BYTES;
        loop {
            match inboxes.grow(connection, tenant, bytes) {
                more if more > bytes => bytes = more,
                _ => return bytes,
            }
        }
    }

    #[test]
    fn an_inbox_grows_until_many_messages_fit() {
        let mut inboxes = Inboxes::default();
        let first = inboxes.grow(1, TENANT, INBOX_BYTES);
        assert!((wire::MESSAGE_BYTES_MAX..2 * wire::MESSAGE_BYTES_MAX).contains(&first));
        assert_eq!(inboxes.held.of(TENANT), first - INBOX_BYTES);
        assert_eq!(inboxes.grow(1, TENANT, first), 2 * first);
        inboxes.shrank(1);
        assert_eq!(grown(&mut inboxes, 1, TENANT), INBOX_BYTES_MAX);
        assert_eq!(inboxes.held.all(), INBOX_BYTES_MAX - INBOX_BYTES);
        assert!(!inboxes.are_scarce(TENANT));
        inboxes.shrank(1);
        inboxes.shrank(1);
        assert_eq!(inboxes.held.all(), 0);
    }

    #[test]
    fn a_tenant_with_thousands_of_half_messages_leaves_room_for_others() {
        let mut inboxes = Inboxes::default();
        (0..4096).for_each(|connection| {
            grown(&mut inboxes, connection, TENANT);
        });
        assert!(inboxes.held.all() <= GROWN_BYTES_MAX / 2 && inboxes.are_scarce(TENANT));
        assert_eq!(inboxes.grow(5000, TENANT, INBOX_BYTES), INBOX_BYTES);
        assert_eq!(inboxes.of_the_short().count(), 0, "nobody said that a message waits for that");
        inboxes.is_short(TENANT);
        assert_eq!(inboxes.of_the_short().count(), inboxes.grown.len());
        assert_eq!(inboxes.of_the_short().count(), 0, "none waited since");
        assert_eq!(grown(&mut inboxes, 6000, Tenant(2)), INBOX_BYTES_MAX);
        // What one gives back another has.
        (0..64).for_each(|connection| inboxes.shrank(connection));
        assert!(inboxes.grow(5000, TENANT, INBOX_BYTES) > INBOX_BYTES);
    }
}
