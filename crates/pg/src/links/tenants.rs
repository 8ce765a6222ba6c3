//! Whose each link is: the links of one key share with each other what there is for clients.
//!
//! What a link tied up may outlast it: operations in line, and memory that is on its way out. So a key keeps its number when its
//! last link ends, and has it still when it is back: it cannot have one share after the other.

use base::hash::Map;
use base::{Instant, LinkId, PublicKey, Tenant};
use std::collections::{BTreeMap, VecDeque};

/// So many keys without a link keep their numbers. What one of them held is given back long before so many others have come and
/// gone.
const IDLE_MAX: usize = 4096;

/// What is known of a tenant.
#[derive(Debug, Default)]
struct Entry {
    /// None of the number that is not used.
    key: Option<PublicKey>,
    links: usize,
    /// When something of it had to wait last.
    held_back_at: Option<Instant>,
}

/// See the module's documentation. Links without a credential are nobody's.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_link: Map<LinkId, Tenant>,
    by_key: BTreeMap<PublicKey, Tenant>,
    /// By number. The first is not used.
    entries: Vec<Entry>,
    /// Those without a link, the one whose last link ended first at the front.
    idle: VecDeque<Tenant>,
}

impl Tenants {
    /// Somebody with that key connected.
    pub(crate) fn enter(&mut self, link: LinkId, key: PublicKey) {
        let tenant = match self.by_key.get(&key) {
            Some(tenant) => *tenant,
            None => self.number(key),
        };
        if self.entries[tenant.index()].links == 0 {
            self.idle.retain(|idle| *idle != tenant);
        }
        self.entries[tenant.index()].links += 1;
        let before = self.by_link.insert(link, tenant);
        assert!(before.is_none(), "a link is one connection's");
    }

    fn number(&mut self, key: PublicKey) -> Tenant {
        let idle = if self.idle.len() >= IDLE_MAX { self.idle.pop_front() } else { None };
        let tenant = idle.unwrap_or_else(|| {
            let number = self.entries.len().max(1);
            self.entries.resize_with(number + 1, Entry::default);
            Tenant(number.try_into().expect("there are fewer connections than numbers"))
        });
        let entry = Entry { key: Some(key), ..Entry::default() };
        let before = std::mem::replace(&mut self.entries[tenant.index()], entry);
        if let Some(before) = before.key {
            self.by_key.remove(&before);
        }
        self.by_key.insert(key, tenant);
        tenant
    }

    /// A link ended, if it was there.
    pub(crate) fn leave(&mut self, link: LinkId) {
        let Some(tenant) = self.by_link.remove(&link) else { return };
        let entry = &mut self.entries[tenant.index()];
        entry.links -= 1;
        if entry.links == 0 {
            self.idle.push_back(tenant);
        }
    }

    /// Whose a link is.
    pub(crate) fn of(&self, link: LinkId) -> Tenant {
        self.by_link.get(&link).copied().unwrap_or_default()
    }

    /// How many links a key has.
    pub(crate) fn links_of(&self, key: &PublicKey) -> usize {
        self.by_key.get(key).map_or(0, |tenant| self.entries[tenant.index()].links)
    }

    /// How many links share with that one, itself included.
    pub(crate) fn links_beside(&self, link: LinkId) -> usize {
        self.by_link.get(&link).map_or(1, |tenant| self.entries[tenant.index()].links)
    }

    /// Something that came on a link has to wait.
    pub(crate) fn note_held_back(&mut self, link: LinkId, now: Instant) {
        if let Some(tenant) = self.by_link.get(&link) {
            self.entries[tenant.index()].held_back_at = Some(now);
        }
    }

    /// Whether something of a tenant had to wait since then.
    pub(crate) fn was_held_back(&self, tenant: Tenant, since: Instant) -> bool {
        let at = self.entries.get(tenant.index()).and_then(|entry| entry.held_back_at);
        at.is_some_and(|at| at >= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A key of its own for each number.
    fn numbered(number: usize) -> PublicKey {
        let mut key = [7; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        PublicKey(key)
    }

    #[test]
    fn all_links_of_a_key_are_one_tenant_until_the_last_has_ended() {
        let mut tenants = Tenants::default();
        let (one, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        tenants.enter(LinkId(1), one);
        tenants.enter(LinkId(2), one);
        tenants.enter(LinkId(3), other);
        assert_eq!(tenants.of(LinkId(1)), tenants.of(LinkId(2)));
        assert_ne!(tenants.of(LinkId(1)), tenants.of(LinkId(3)));
        assert_eq!((tenants.of(LinkId(4)), tenants.links_beside(LinkId(4))), (Tenant::NOBODY, 1));
        assert_eq!((tenants.links_of(&one), tenants.links_beside(LinkId(2))), (2, 2));
        for link in [1, 1, 2] {
            tenants.leave(LinkId(link));
        }
        assert_eq!((tenants.links_of(&one), tenants.links_of(&other)), (0, 1));
    }

    #[test]
    fn a_key_that_is_back_is_the_tenant_that_it_was() {
        let mut tenants = Tenants::default();
        tenants.enter(LinkId(1), numbered(0));
        let tenant = tenants.of(LinkId(1));
        tenants.leave(LinkId(1));
        let passes_by = |tenants: &mut Tenants, number: usize| {
            tenants.enter(LinkId(2), numbered(number));
            assert_ne!(tenants.of(LinkId(2)), tenant);
            tenants.leave(LinkId(2));
        };
        (1..IDLE_MAX).for_each(|number| passes_by(&mut tenants, number));
        tenants.enter(LinkId(1), numbered(0));
        assert_eq!((tenants.of(LinkId(1)), tenants.links_of(&numbered(0))), (tenant, 1));
        tenants.leave(LinkId(1));
        // Numbers are not used up by keys that are gone.
        (IDLE_MAX..3 * IDLE_MAX).for_each(|number| {
            tenants.enter(LinkId(2), numbered(number));
            tenants.leave(LinkId(2));
        });
        assert_eq!((tenants.entries.len(), tenants.by_key.len()), (IDLE_MAX + 1, IDLE_MAX));
        assert_eq!(tenants.idle.len(), IDLE_MAX);
    }

    #[test]
    fn who_had_to_wait_is_remembered_for_a_while() {
        let mut tenants = Tenants::default();
        let now = Instant::default() + Duration::from_secs(9);
        tenants.enter(LinkId(1), PublicKey([1; 32]));
        tenants.note_held_back(LinkId(1), now);
        let tenant = tenants.of(LinkId(1));
        assert!(tenants.was_held_back(tenant, now));
        assert!(!tenants.was_held_back(tenant, now + Duration::from_secs(1)));
        tenants.note_held_back(LinkId(2), now);
        assert!(!tenants.was_held_back(Tenant::NOBODY, now), "who has no key has no share");
    }

    #[test]
    fn who_still_has_a_link_keeps_its_number_however_many_come_and_go() {
        let mut tenants = Tenants::default();
        let key = PublicKey([1; 32]);
        tenants.enter(LinkId(1), key);
        tenants.enter(LinkId(2), key);
        let tenant = tenants.of(LinkId(1));
        tenants.leave(LinkId(1));
        for number in 0..=IDLE_MAX {
            assert_eq!(tenants.links_of(&numbered(number)), 0);
            tenants.enter(LinkId(3), numbered(number));
            assert_ne!(tenants.of(LinkId(3)), tenant);
            tenants.leave(LinkId(3));
        }
        assert_eq!((tenants.of(LinkId(2)), tenants.links_of(&key)), (tenant, 1));
    }
}
