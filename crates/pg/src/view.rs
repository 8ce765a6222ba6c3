//! What an OSD is like, for operators and tests: nothing is decided by it.
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
use base::{ClientId, PgId, PoolId, VolumeId};
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

    /// Whether something is being deleted that lies beyond the end of a volume.
    #[must_use]
    pub fn is_cutting(self) -> bool {
        !self.router.cuts.is_idle()
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
