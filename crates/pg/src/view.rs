//! What an OSD is like, for operators, tests and whoever runs it: nothing here is decided by it.
//!
//! A request is counted when it is answered. It took from when it was taken up, by the clock of that turn, to the turn
//! in which the answer was sent; what it waited in the inbox before, for want of room, is not seen from here. Each count
//! is a few additions to memory that is there: no clock is read for it, and nothing allocated.

use crate::context::{Me, Shared};
use crate::group::Group;
use crate::links::{Peer, backlog, inquiries};
use crate::report::{DamageCounts, GroupSummary};
use crate::request::queue;
use crate::router::Router;
use base::figures::{Figures, Traffic};
use base::{ClientId, PgId, PoolId, PublicKey, VolumeId};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) me: Me,
    pub(crate) shared: &'a Shared,
    pub(crate) router: &'a Router,
}

impl<'a> View<'a> {
    fn groups(self) -> impl Iterator<Item = &'a Group> {
        self.shared.groups.iter()
    }

    /// The groups this OSD is primary of.
    pub fn summaries(self) -> impl Iterator<Item = GroupSummary> {
        let is_led = move |group: &&Group| group.config.primary == self.me.id && group.is_led_here();
        self.groups().filter(is_led).map(Group::summary)
    }

    /// The groups that this OSD left, and whose objects it deletes.
    #[doc(hidden)]
    pub fn left_groups(self) -> impl Iterator<Item = PgId> {
        self.groups().filter(|group| group.has_left()).map(|group| group.pg)
    }

    /// Of the pools that the map shows as removed, those of which nothing is held any more on stable media, in order.
    pub fn cleared_pools(self) -> impl Iterator<Item = PoolId> {
        let Shared { disk, groups, volumes, .. } = self.shared;
        let on_its_way = groups.iter().filter(|group| group.staged_count > 0).map(|group| group.pg);
        let removed = &volumes.map.removed_pools;
        // Where objects of a group are there, its log is too.
        let is_removed = |pool: &PoolId| removed.contains_key(pool);
        let held: BTreeSet<PoolId> =
            disk.store.groups().chain(on_its_way).map(|pg| pg.pool).filter(is_removed).collect();
        removed.keys().copied().filter(move |pool| !held.contains(pool))
    }

    /// Whether the drive does nothing of what it is asked, or nothing of one kind, as far as it was looked: then this OSD takes part
    /// in nothing new until it does.
    #[must_use]
    pub fn drive_hangs(self) -> bool {
        self.router.is_silent
    }

    /// How many links there are of a key.
    #[must_use]
    pub fn links_of(self, key: &PublicKey) -> usize {
        self.shared.links.tenants.links_of(key)
    }

    /// The damage that was met since the start, and what became of it.
    #[must_use]
    pub fn damage(self) -> DamageCounts {
        self.shared.damage.counts
    }

    /// Bytes of data that members that catch up were sent since the start.
    #[must_use]
    pub fn pushed_bytes(self) -> u64 {
        self.shared.journal.pushed_bytes
    }

    /// The newest things worth an operator's attention, oldest first.
    pub fn notes(self) -> impl Iterator<Item = &'a str> {
        self.shared.journal.notes()
    }

    /// Operations of clients that have not ended.
    #[must_use]
    pub fn operations_in_flight(self) -> usize {
        self.shared.operations.in_flight()
    }

    /// Whether something is being deleted that lies beyond the end of a volume, or that nobody sees.
    #[must_use]
    pub fn is_cutting(self) -> bool {
        let Router { cuts, prunes, flattens, .. } = self.router;
        !(cuts.is_idle() && prunes.is_idle() && flattens.is_idle())
    }

    /// Whether no scrub is under way or waits.
    #[must_use]
    pub fn scrub_is_over(self) -> bool {
        self.router.scrubs.is_idle()
    }

    /// The group that is being scrubbed, whether deeply, and how many objects are still to be looked at.
    #[must_use]
    pub fn scrub_progress(self) -> Option<(PgId, bool, u64)> {
        self.router.scrubs.progress()
    }

    /// What it did since the start.
    #[must_use]
    pub fn figures(self) -> &'a Figures {
        &self.shared.journal.figures
    }

    /// What clients were served of each pool since the start.
    #[must_use]
    pub fn pool_traffic(self) -> BTreeMap<PoolId, Traffic> {
        let mut pools: BTreeMap<PoolId, Traffic> = BTreeMap::new();
        for group in self.groups() {
            pools.entry(group.pg.pool).or_default().add(&group.traffic);
        }
        pools
    }

    /// What clients were served of each volume since the start.
    pub fn volume_traffic(self) -> impl Iterator<Item = (VolumeId, Traffic)> {
        self.shared.volumes.iter().map(|(id, volume)| (id, volume.traffic))
    }

    /// What each client that is connected was served since it connected.
    pub fn client_traffic(self) -> impl Iterator<Item = (ClientId, Traffic)> {
        self.shared.links.peers().filter_map(|(_, peer)| match peer {
            Peer::Client(client) => Some((client.id, client.traffic)),
            Peer::Unknown(_) | Peer::Osd(_) => None,
        })
    }

    /// Checks that what waits here for whoever is connected is within the bounds that are promised for it: requests in line,
    /// what other OSDs sent and cannot be handled, what they ask, fences.
    ///
    /// # Errors
    /// What is beyond.
    #[doc(hidden)]
    pub fn check_bounds(self) -> Result<(), String> {
        queue::check_bounds(&self.shared.disk, &self.shared.operations)?;
        backlog::check_bounds(&self.shared.links)?;
        inquiries::check_bounds(&self.shared.links)?;
        self.router.kept.check_bounds()?;
        self.router.fences.check_bounds()
    }

    /// How often what happened since the start, and how often a group went from one state to another.
    #[doc(hidden)]
    pub fn milestones(self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        let passed = self.shared.journal.milestones();
        let passed = passed.map(|(name, times)| (Cow::Borrowed(name), times));
        let transitions = self.groups().flat_map(|group| group.standing.transitions());
        let transitions =
            transitions.map(|(from, to, times)| (Cow::Owned(format!("state: {from} to {to}")), times));
        passed.chain(transitions).filter(|(_, times)| *times > 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::journal::Milestone;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::map::PgConfig;
    use base::{Epoch, ObjectKey, OsdId};
    use std::sync::Arc;

    #[test]
    fn the_groups_that_are_reported_are_those_that_are_led_here_by_the_map_too() {
        let mut alone = Alone::with_groups(3);
        alone.is_led_by(OsdId(1), Epoch(9));
        // It acts as the primary of this one still, and another one is it.
        alone.osd.shared.groups[1].config.primary = OsdId(1);
        let led: Vec<PgId> = alone.osd.view().summaries().map(|summary| summary.pg).collect();
        assert_eq!(led, [PgId { index: 2, ..PG }]);
    }

    #[test]
    fn a_group_that_was_left_is_told_while_it_is_known() {
        let mut alone = Alone::with_groups(2);
        assert_eq!(alone.osd.view().left_groups().count(), 0);
        let mut map = map(2);
        map.revision = 2;
        let (epoch, primary) = (Epoch(9), OsdId(1));
        map.targets.insert(PG, vec![primary]);
        map.pgs.insert(PG, PgConfig { epoch, primary, in_sync: vec![primary], ..PgConfig::default() });
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(alone.osd.view().left_groups().collect::<Vec<_>>(), [PG]);
    }

    #[test]
    fn how_far_a_scrub_is_counts_the_objects_that_are_left() {
        let mut alone = Alone::new();
        (0..3).for_each(|object| alone.write(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object }));
        assert!(alone.osd.view().scrub_is_over() && alone.osd.view().scrub_progress().is_none());
        assert!(alone.osd.begin_scrub(PG, false));
        assert!(!alone.osd.view().scrub_is_over());
        alone.with(|router, cx| router.scrubs.advance(cx));
        assert_eq!(alone.osd.view().scrub_progress(), Some((PG, false, 2)), "one of three is looked at");
        alone.run();
        assert!(alone.osd.view().scrub_is_over() && alone.osd.view().scrub_progress().is_none());
    }

    #[test]
    fn what_happened_is_told_by_name_and_what_did_not_is_left_out() {
        let mut alone = Alone::new();
        let times = |alone: &Alone, wanted: &str| {
            alone.osd.view().milestones().find(|(name, _)| name == wanted).map(|(_, times)| times)
        };
        let ended = "read: refused, for a lease ended";
        assert_eq!(times(&alone, ended), None);
        for _ in 0..2 {
            alone.osd.shared.journal.pass(Milestone::LeaseEnded);
        }
        assert_eq!(times(&alone, ended), Some(2));
        assert_eq!(times(&alone, "state: repairing to active"), Some(1));
        assert!(alone.osd.view().milestones().all(|(_, times)| times > 0));
        alone.osd.shared.journal.pushed_bytes = 5;
        assert_eq!(alone.osd.view().pushed_bytes(), 5);
    }

    #[test]
    fn whatever_is_read_for_another_osd_beyond_the_bound_is_told() {
        let mut alone = Alone::new();
        let link = alone.connect(OsdId(1));
        let mut counts_within = 0;
        while alone.osd.view().check_bounds().is_ok() {
            alone.osd.shared.links.osd_mut(link).unwrap().inquiries.read_begins();
            counts_within += 1;
            assert!(counts_within <= 65, "no bound is looked at");
        }
        assert_eq!(counts_within, 65);
        alone.osd.shared.links.osd_mut(link).unwrap().inquiries.read_ended();
        assert_eq!(alone.osd.view().check_bounds(), Ok(()));
    }
}
