//! What an OSD is like, for operators and tests: nothing is decided by it.
//!
//! A request is counted when it is answered. It took from when it was taken up, by the clock of that turn, to the turn
//! in which the answer was sent; what it waited in the inbox before, for want of room, is not seen from here. Each count
//! is a few additions to memory that is there: no clock is read for it, and nothing allocated.

use crate::context::{Me, Shared};
use crate::group::Group;
use crate::links::Peer;
use crate::report::{DamageCounts, GroupSummary};
use crate::router::Router;
use base::figures::{Figures, Traffic};
use base::{ClientId, PgId, PoolId, VolumeId};
use std::borrow::Cow;
use std::collections::BTreeMap;

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
