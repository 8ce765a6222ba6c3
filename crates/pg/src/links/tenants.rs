//! Whose each link is: the links of one key share with each other what there is for clients.

use base::hash::Map;
use base::{Instant, LinkId, PublicKey, Tenant};
use std::collections::{BTreeMap, VecDeque};

/// What is known of a tenant.
#[derive(Debug, Default)]
struct Entry {
    /// None of a number that is nobody's now.
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
    /// Numbers that are nobody's, the one that was given back first at the front: memory that was lent under it is long back.
    free: VecDeque<Tenant>,
}

impl Tenants {
    /// Somebody with that key connected.
    pub(crate) fn enter(&mut self, link: LinkId, key: PublicKey) {
        let tenant = match self.by_key.get(&key) {
            Some(tenant) => *tenant,
            None => self.number(key),
        };
        self.entries[tenant.index()].links += 1;
        let before = self.by_link.insert(link, tenant);
        assert!(before.is_none(), "a link is one connection's");
    }

    fn number(&mut self, key: PublicKey) -> Tenant {
        let tenant = self.free.pop_front().unwrap_or_else(|| {
            let number = self.entries.len().max(1);
            self.entries.resize_with(number + 1, Entry::default);
            Tenant(number.try_into().expect("there are fewer connections than numbers"))
        });
        self.entries[tenant.index()] = Entry { key: Some(key), ..Entry::default() };
        self.by_key.insert(key, tenant);
        tenant
    }

    /// A link ended, if it was there.
    pub(crate) fn leave(&mut self, link: LinkId) {
        let Some(tenant) = self.by_link.remove(&link) else { return };
        let entry = &mut self.entries[tenant.index()];
        entry.links -= 1;
        if entry.links == 0
            && let Some(key) = entry.key.take()
        {
            self.by_key.remove(&key);
            self.free.push_back(tenant);
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
        tenants.enter(LinkId(5), PublicKey([3; 32]));
        assert_eq!(tenants.entries.len(), 3, "a number is used again");
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
}
