//! Tenants: who shares what there is of something with whom, and how much of it each has.
//!
//! No tenant holds more than it leaves to the others: the threshold of each is what is free (Choudhury and Hahne, "Dynamic
//! queue length thresholds for shared-memory packet switches", 1998, with a factor of one). One that is alone gets half. Of
//! several that give back what they got each comes to have as much as is free; who gives nothing back leaves half of what was
//! free to whoever comes after it. Nobody needs to know how many there are, and nothing is kept for those who want nothing.

/// Who holds something, as whoever lends it numbers those to whom it lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u16);

impl Tenant {
    /// Whoever it is lent to beside tenants: that has no share.
    pub const NOBODY: Tenant = Tenant(0);

    /// Its place in a table.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How much of something tenants hold.
#[derive(Debug, Default)]
pub struct Held {
    all: usize,
    /// By tenant, nobody included.
    by_tenant: Vec<usize>,
}

impl Held {
    /// What all hold.
    #[must_use]
    pub fn all(&self) -> usize {
        self.all
    }

    /// What one holds.
    #[must_use]
    pub fn of(&self, tenant: Tenant) -> usize {
        self.by_tenant.get(tenant.index()).copied().unwrap_or(0)
    }

    /// It gets more.
    pub fn add(&mut self, tenant: Tenant, count: usize) {
        if self.by_tenant.len() <= tenant.index() {
            self.by_tenant.resize(tenant.index() + 1, 0);
        }
        self.by_tenant[tenant.index()] += count;
        self.all += count;
    }

    /// It gives some back.
    ///
    /// # Panics
    /// If it does not hold so much.
    pub fn take_off(&mut self, tenant: Tenant, count: usize) {
        let held = self.by_tenant.get_mut(tenant.index()).filter(|held| **held >= count);
        *held.expect("only what is held is given back") -= count;
        self.all -= count;
    }
}

/// Whether a tenant that holds so much may have `more`, where so much is free. One that holds nothing may have whatever is
/// there.
#[must_use]
pub fn may_have(tenant: Tenant, held: usize, more: usize, free: usize) -> bool {
    more <= free && (tenant == Tenant::NOBODY || held == 0 || held + more <= free - more)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tenants who take all that they may have, one after the other; answers what each has.
    fn taken(tenants: u16, all: usize) -> Vec<usize> {
        let mut held = Held::default();
        let tenants: Vec<Tenant> = (1..=tenants).map(Tenant).collect();
        while tenants.iter().any(|tenant| {
            let may_have = may_have(*tenant, held.of(*tenant), 1, all - held.all());
            held.add(*tenant, usize::from(may_have));
            may_have
        }) {}
        tenants.iter().map(|tenant| held.of(*tenant)).collect()
    }

    #[test]
    fn nobody_holds_more_than_it_leaves_to_the_others() {
        assert_eq!(taken(1, 64), [32]);
        assert_eq!(taken(3, 64), [32, 16, 8], "none of them gives anything back");
        assert!(may_have(Tenant::NOBODY, 64, 64, 64), "who is no tenant has no share");
        assert!(may_have(Tenant(1), 0, 64, 64) && !may_have(Tenant(1), 0, 65, 64));
    }

    #[test]
    fn what_is_given_back_is_not_held_any_more() {
        let mut held = Held::default();
        held.add(Tenant(3), 5);
        held.add(Tenant::NOBODY, 2);
        held.take_off(Tenant(3), 4);
        assert_eq!((held.of(Tenant(3)), held.of(Tenant(7)), held.all()), (1, 0, 3));
    }
}
