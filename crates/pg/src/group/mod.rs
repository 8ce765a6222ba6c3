//! One placement group as one of its members sees it.

pub(crate) mod cutting;
mod lanes;
pub(crate) mod learner;
pub(crate) mod line;
pub(crate) mod obedience;
pub(crate) mod position;
pub(crate) mod role;
mod summary;

use base::figures::Traffic;
use base::hash::Map;
use base::map::{ClusterMap, PgConfig};
use base::{Epoch, Instant, LinkId, ObjectKey, OsdId, PgId, Sequence};
use learner::{Learner, Learning};
use role::{Phase, Role, Standing, State};
use std::ops::{Index, IndexMut};

/// Who shall hold a group, as the map says.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// The preferred primary first.
    pub(crate) target: Vec<OsdId>,
    /// How many copies its pool wants, and how few of them in sync still take writes.
    pub(crate) size: usize,
    pub(crate) min_size: usize,
}

/// When what may be tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pauses {
    /// Not before then does this OSD claim again.
    pub(crate) claim_after: Instant,
    /// When the configuration was first seen: its primary is given time to show itself.
    pub(crate) config_seen_at: Instant,
    /// When it was handed over last, and before when it is not again.
    pub(crate) handed_over_at: Option<Instant>,
    pub(crate) hand_over_after: Instant,
    /// A member left too much unread when it was sent a write last: clients' wait until it has taken some of it.
    pub(crate) is_member_behind: bool,
    /// Since when it has taken no change of clients, if it did not when one came last; or since it last began to wait again.
    pub(crate) takes_none_since: Option<Instant>,
    /// A member refused a cut, perhaps as it had no room for a volume's last block: none is cut before then while one says that
    /// it has none.
    pub(crate) tails_wait_until: Option<Instant>,
}

/// A query that waits until nothing is staged any more: only then is the log's end known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingQuery {
    pub(crate) link: LinkId,
    pub(crate) epoch: Epoch,
}

/// What is known of the end of a member's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogTail {
    /// This OSD was in no epoch of the group since it started. Should the end of the log have rotted, it just seems to end
    /// earlier: see `epoch::differences::who_lacks_less`.
    MayHaveRotted,
    /// It is what an epoch agreed on.
    IsKnown,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) pg: PgId,
    /// Which objects are its own: see [`PgId::holds`]. What is on the drive may be about to be split by it still.
    pub(crate) modulus: u32,
    pub(crate) config: PgConfig,
    pub(crate) wanted: Wanted,
    /// The newest epoch this member has obeyed, never one that its map does not show; older primaries are refused.
    pub(crate) epoch: Epoch,
    /// The map that this OSD has shows that epoch, or a later one: so it is no older than the epoch.
    pub(crate) is_shown: bool,
    /// Who began the epoch it obeys, if another OSD did.
    pub(crate) leader: Option<OsdId>,
    pub(crate) standing: Standing,
    /// Staged in the store and not yet durable, in whatever role; and splits that are to be.
    pub(crate) staged_count: u32,
    pub(crate) query: Option<PendingQuery>,
    pub(crate) tail: LogTail,
    pub(crate) pauses: Pauses,
    /// What clients were served of it here.
    pub(crate) traffic: Traffic,
}

impl Group {
    pub(crate) fn new(
        pg: PgId,
        modulus: u32,
        config: PgConfig,
        target: Vec<OsdId>,
        is_primary: bool,
        now: Instant,
    ) -> Group {
        Group {
            pg,
            modulus,
            epoch: config.epoch,
            is_shown: false,
            config,
            wanted: Wanted { target, ..Wanted::default() },
            leader: None,
            standing: Standing::new(is_primary),
            staged_count: 0,
            query: None,
            tail: LogTail::MayHaveRotted,
            pauses: Pauses { config_seen_at: now, ..Pauses::default() },
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn state(&self) -> State {
        self.standing.state()
    }

    pub(crate) fn is_active(&self) -> bool {
        matches!(self.standing.phase(), Some(Phase::Active))
    }

    /// Takes over whether a map shows its epoch.
    pub(crate) fn note_shown(&mut self, map: &ClusterMap) {
        self.is_shown = map.pgs.get(&self.pg).is_some_and(|config| config.epoch >= self.epoch);
    }

    /// Where its order stands for good, while it serves here: all members in sync have so much of it on stable media, in
    /// order, and each later epoch begins behind that.
    pub(crate) fn reached(&self) -> Sequence {
        let primary = self.standing.primary().filter(|_| self.is_active());
        primary.map_or(Sequence(0), |primary| {
            Sequence(primary.next_sequence.0.saturating_sub(primary.under_way + 1))
        })
    }

    /// Whether enough members are in sync for writes.
    pub(crate) fn is_writable(&self) -> bool {
        self.config.in_sync.len() >= self.wanted.min_size
    }

    pub(crate) fn is_claiming(&self) -> bool {
        matches!(self.state(), State::Claiming | State::Candidate)
    }

    /// Whether this OSD acts as its primary, or is about to.
    pub(crate) fn is_led_here(&self) -> bool {
        matches!(self.standing.role(), Role::Primary(_))
    }

    pub(crate) fn has_left(&self) -> bool {
        matches!(self.standing.role(), Role::Left { .. })
    }

    /// Everybody who holds a part of it, or shall.
    pub(crate) fn members(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.config.in_sync.iter().chain(&self.config.learners).chain(&self.wanted.target).copied()
    }

    /// Whether an OSD holds a part of this group, or shall.
    pub(crate) fn has_member(&self, osd: OsdId) -> bool {
        self.members().any(|member| member == osd)
    }

    /// Whether an object is one of the group's.
    pub(crate) fn holds(&self, key: &ObjectKey) -> bool {
        self.pg == key.pg && self.pg.holds(self.modulus, key.layer, key.object)
    }

    pub(crate) fn replicas(&self, me: OsdId) -> impl Iterator<Item = OsdId> + '_ {
        self.config.in_sync.iter().copied().filter(move |osd| *osd != me)
    }

    /// Members that are to be brought up to date.
    pub(crate) fn wanted_learners(&self) -> impl Iterator<Item = OsdId> + '_ {
        self.wanted.target.iter().copied().filter(|osd| !self.config.in_sync.contains(osd))
    }

    /// Members that are being brought up to date.
    pub(crate) fn learners(&self) -> &[Learner] {
        self.standing.primary().map_or(&[], |primary| &primary.learning.learners)
    }

    /// The same, to change: only a primary has any.
    pub(crate) fn learning_mut(&mut self) -> Option<&mut Learning> {
        self.standing.primary_mut().map(|primary| &mut primary.learning)
    }

    /// One of them, to change.
    pub(crate) fn learner_mut(&mut self, osd: OsdId) -> Option<&mut Learner> {
        self.learning_mut()?.of(osd)
    }

    /// Of these members in sync, those that stay: with a whole target in sync, nobody else is needed.
    pub(crate) fn needed_of(&self, in_sync: &[OsdId], also: OsdId) -> impl Iterator<Item = OsdId> {
        let is_whole = self.is_whole_in(in_sync);
        let is_needed = move |osd: &OsdId| !is_whole || *osd == also || self.wanted.target.contains(osd);
        in_sync.iter().copied().filter(is_needed)
    }

    /// Whether the target has as many members as the pool wants, and all of them are among these.
    pub(crate) fn is_whole_in(&self, in_sync: &[OsdId]) -> bool {
        let Wanted { target, size, .. } = &self.wanted;
        target.len() >= *size && target.iter().all(|osd| in_sync.contains(osd))
    }
}

/// The groups of an OSD. Each keeps its index for as long as the process lives.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    list: Vec<Group>,
    index: Map<PgId, u32>,
}

impl Groups {
    pub(crate) fn find(&self, pg: PgId) -> Option<u32> {
        self.index.get(&pg).copied()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Group> {
        self.list.get(index as usize)
    }

    pub(crate) fn add(&mut self, group: Group) -> u32 {
        let index = self.list.len() as u32;
        self.index.insert(group.pg, index);
        self.list.push(group);
        index
    }

    /// The indices of all that there are now.
    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        0..self.list.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.list.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.list.iter_mut()
    }
}

impl Index<u32> for Groups {
    type Output = Group;

    fn index(&self, index: u32) -> &Group {
        &self.list[index as usize]
    }
}

impl IndexMut<u32> for Groups {
    fn index_mut(&mut self, index: u32) -> &mut Group {
        &mut self.list[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::role::Repairing;
    use super::*;
    use base::{LayerId, PoolId};
    use std::collections::VecDeque;

    const PG: PgId = PgId { pool: PoolId(1), index: 2 };

    fn ids(osds: &[u32]) -> Vec<OsdId> {
        osds.iter().copied().map(OsdId).collect()
    }

    /// A group that is led here.
    fn group(in_sync: &[u32], learners: &[u32], target: &[u32]) -> Group {
        let (in_sync, learners) = (ids(in_sync), ids(learners));
        let config =
            PgConfig { epoch: Epoch(5), primary: OsdId(0), in_sync, learners, ..PgConfig::default() };
        Group::new(PG, 4, config, ids(target), true, Instant::default())
    }

    #[test]
    fn members_are_who_holds_a_part_of_a_group_or_shall() {
        let group = group(&[0, 1], &[2], &[3, 1]);
        assert_eq!(group.members().collect::<Vec<_>>(), ids(&[0, 1, 2, 3, 1]));
        assert_eq!((0..5).map(|osd| group.has_member(OsdId(osd))).filter(|is| *is).count(), 4);
        assert!(!group.has_member(OsdId(4)));
        assert_eq!(group.replicas(OsdId(0)).collect::<Vec<_>>(), ids(&[1]));
        assert_eq!(group.wanted_learners().collect::<Vec<_>>(), ids(&[3]));
    }

    #[test]
    fn nobody_else_is_needed_when_as_many_as_the_pool_wants_are_in_sync_where_they_shall_be() {
        let mut group = group(&[], &[], &[0, 1]);
        let all = &[0, 1, 2][..];
        for (size, in_sync, is_whole) in
            [(2, all, true), (2, &all[1..], false), (2, &all[..2], true), (1, all, true), (3, all, false)]
        {
            group.wanted.size = size;
            assert_eq!(group.is_whole_in(&ids(in_sync)), is_whole, "{in_sync:?} of {size}");
        }
        group.wanted.size = 2;
        let needed = |in_sync: &[u32]| group.needed_of(&ids(in_sync), OsdId(3)).collect::<Vec<_>>();
        assert_eq!(needed(&[4, 0, 3, 2, 1]), ids(&[0, 3, 1]));
        assert_eq!(needed(&[4, 0, 3, 2]), ids(&[4, 0, 3, 2]), "it is not whole without them");
    }

    #[test]
    fn an_object_is_the_groups_by_its_place_and_by_its_name() {
        let group = group(&[0], &[], &[0]);
        let layer = LayerId(1);
        for object in 0..8 {
            let place = PgId::of_object(PG.pool, 4, layer, object);
            assert_eq!(group.holds(&ObjectKey { pg: place, layer, object }), place == PG);
            assert_eq!(group.holds(&ObjectKey { pg: PG, layer, object }), place == PG, "so it calls itself");
            let elsewhere = PgId { index: 3, ..PG };
            assert!(!group.holds(&ObjectKey { pg: elsewhere, layer, object }));
        }
    }

    #[test]
    fn an_epoch_is_shown_by_a_map_with_that_one_or_a_later_one() {
        let mut group = group(&[0], &[], &[0]);
        for (shown, is_shown) in [(Some(4), false), (Some(5), true), (None, false), (Some(6), true)] {
            let mut map = ClusterMap::default();
            if let Some(epoch) = shown {
                map.pgs.insert(PG, PgConfig { epoch: Epoch(epoch), ..PgConfig::default() });
            }
            group.note_shown(&map);
            assert_eq!(group.is_shown, is_shown, "{shown:?}");
        }
    }

    #[test]
    fn an_order_stands_up_to_what_is_under_way_while_its_group_serves() {
        let mut group = group(&[0, 1], &[], &[0, 1]);
        assert!(group.is_led_here() && !group.is_active() && !group.has_left());
        group.standing.claims();
        assert!(group.is_claiming());
        group.standing.epoch_was_granted(Instant::default());
        let (queue, others) = (VecDeque::new(), Vec::new());
        let repairing = Repairing { queue, current: None, mark_is_due: false, others };
        group.standing.differences_are_known(Sequence(10), repairing);
        assert_eq!(group.reached(), Sequence(0), "it does not serve yet");
        group.standing.serves();
        assert!(group.is_active() && !group.is_claiming());
        assert_eq!(group.reached(), Sequence(9));
        for (next, under_way, reached) in [(10, 2, 7), (1, 0, 0), (0, 0, 0)] {
            let primary = group.standing.primary_mut().expect("it is one");
            (primary.next_sequence, primary.under_way) = (Sequence(next), under_way);
            assert_eq!(group.reached(), Sequence(reached));
        }
        for (min_size, is_writable) in [(1, true), (2, true), (3, false)] {
            group.wanted.min_size = min_size;
            assert_eq!(group.is_writable(), is_writable, "{min_size}");
        }
    }
}
