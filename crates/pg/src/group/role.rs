//! What this OSD does for a group, and how that may change.
//!
//! The states and all transitions between them stand in [`TRANSITIONS`], and are drawn in docs/protocol.md; any other is a
//! bug of this program, and asserted. Each has a method of [`Standing`] that is named after what happened.

use super::cutting::Cutting;
use super::learner::{Learning, Promotion};
use super::position::{Difference, MemberPosition};
use crate::operation::OperationId;
use base::{Instant, OsdId, Sequence};
use std::collections::VecDeque;

/// The state of a group here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// It applies what a primary orders, or waits for one.
    Replica,
    /// It is being brought up to date, and applies what a primary orders meanwhile.
    Learner,
    /// A replica that asked the registry for the primary role, and goes on as one until it has the answer.
    Candidate,
    /// The primary, which cannot serve now.
    Waiting,
    /// The primary, which cannot serve until somebody does something.
    Stopped,
    /// The primary asked the registry for an epoch.
    Claiming,
    /// The primary has asked the members where they stand.
    Querying,
    /// The primary brings the members to its own state.
    Repairing,
    /// The primary serves.
    Active,
    /// No member any more: it deletes what it holds.
    Left,
}

/// How many states there are.
const STATES: usize = 10;

impl State {
    /// What each is called, in their order.
    const NAMES: [&str; STATES] = [
        "replica",
        "learner",
        "candidate",
        "waiting",
        "stopped",
        "claiming",
        "querying",
        "repairing",
        "active",
        "left",
    ];

    pub(crate) const fn name(self) -> &'static str {
        State::NAMES[self as usize]
    }
}

/// Every transition there is, and what brings it about.
pub(crate) const TRANSITIONS: [(State, State, &str); 28] = [
    (State::Replica, State::Learner, "the primary lets it join"),
    (State::Replica, State::Candidate, "its primary is silent, or the map names it primary"),
    (State::Replica, State::Waiting, "the map names it primary, and a member is missing"),
    (State::Replica, State::Stopped, "the map names it primary, and its drive failed"),
    (State::Replica, State::Left, "a configuration that is whole without it, or its pool was removed"),
    (State::Learner, State::Replica, "a primary asks where it stands, or the group was split"),
    (State::Learner, State::Candidate, "as a replica, when the map names it in sync"),
    (State::Learner, State::Waiting, "as a replica, when the map names it in sync"),
    (State::Learner, State::Stopped, "as a replica, when the map names it in sync"),
    (State::Learner, State::Left, "a configuration that is whole without it, or its pool was removed"),
    (State::Candidate, State::Replica, "the claim came to nothing"),
    (
        State::Candidate,
        State::Waiting,
        "another primary asks, or the claim came to nothing though the map names it primary",
    ),
    (State::Candidate, State::Querying, "the registry granted the epoch"),
    (State::Waiting, State::Replica, "another OSD is primary"),
    (State::Waiting, State::Stopped, "its drive failed"),
    (State::Waiting, State::Claiming, "members are there again; or the group is handed over, or split"),
    (State::Stopped, State::Waiting, "the configuration changed, or a member is missing"),
    (State::Stopped, State::Claiming, "it tries again"),
    (State::Claiming, State::Replica, "another OSD is primary, or none is known"),
    (State::Claiming, State::Waiting, "the claim came to nothing, or the configuration changed"),
    (State::Claiming, State::Querying, "the registry granted the epoch"),
    (State::Querying, State::Waiting, "the epoch ended, or begins without a member"),
    (
        State::Querying,
        State::Stopped,
        "a log does not reach into those of the others, and too few are left without it",
    ),
    (State::Querying, State::Repairing, "every member said where it stands"),
    (State::Repairing, State::Waiting, "the epoch ended"),
    (State::Repairing, State::Active, "no difference is left"),
    (State::Active, State::Waiting, "the epoch ended"),
    (State::Left, State::Replica, "it is a member again, or a primary asks where it stands"),
];

/// One that applies what a primary orders.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Following {
    /// The sequence of the next write, once an epoch was activated.
    pub(crate) expected: Option<Sequence>,
    /// Since when nothing binds it to the primary any more.
    pub(crate) free_since: Option<Instant>,
}

/// How far a primary is.
#[derive(Debug)]
pub(crate) enum Phase {
    /// It cannot serve for `reason`.
    Waiting { reason: String },
    /// It cannot serve until somebody does something.
    Stopped { reason: String },
    /// It asked the registry for an epoch.
    Claiming,
    /// It asked the members where they stand.
    Querying { positions: Vec<MemberPosition>, since: Instant },
    /// It brings the members to its own state.
    Repairing(Repairing),
    /// It serves.
    Active,
}

/// What is left to do before an epoch serves: first its mark, then the differences.
#[derive(Debug)]
pub(crate) struct Repairing {
    pub(crate) queue: VecDeque<Difference>,
    pub(crate) current: Option<OperationId>,
    pub(crate) mark_is_due: bool,
    /// The other members, those first whose logs are surely whole to their ends.
    pub(crate) others: Vec<MemberPosition>,
}

/// What the next epoch is to change, beside what the map and the members that answer make necessary.
#[derive(Clone, Debug, Default)]
pub(crate) enum Change {
    #[default]
    None,
    /// A learner that was sent everything becomes a member in sync.
    TakeIn(Promotion),
    /// A member in sync whose log does not reach into those of the others becomes a learner.
    LeaveOut(OsdId),
}

/// The primary of a group, or one that is to be.
#[derive(Debug)]
pub(crate) struct Primary {
    phase: Phase,
    /// The sequence of the next write.
    pub(crate) next_sequence: Sequence,
    /// How many before that are not on all members in sync yet. They get there in order.
    pub(crate) under_way: u64,
    /// Who is being brought up to date.
    pub(crate) learning: Learning,
    /// What of volumes that were made smaller is gone.
    pub(crate) cutting: Cutting,
    /// What the next epoch is to change.
    pub(crate) change: Change,
}

impl Primary {
    fn new(phase: Phase) -> Primary {
        Primary {
            phase,
            next_sequence: Sequence(0),
            under_way: 0,
            learning: Learning::default(),
            cutting: Cutting::default(),
            change: Change::None,
        }
    }

    /// The sequence of the newest write.
    pub(crate) fn last_sequence(&self) -> Sequence {
        Sequence(self.next_sequence.0.saturating_sub(1))
    }
}

/// See the module's documentation.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are a few thousand at most, and a box were a step for each operation"
)]
pub(crate) enum Role {
    Replica(Following),
    Learner(Following),
    Candidate(Following),
    Primary(Primary),
    /// First its log says so, then it `is_marked`.
    Left {
        is_marked: bool,
    },
}

impl Role {
    fn state(&self) -> State {
        match self {
            Role::Replica(_) => State::Replica,
            Role::Learner(_) => State::Learner,
            Role::Candidate(_) => State::Candidate,
            Role::Left { .. } => State::Left,
            Role::Primary(primary) => state_of(&primary.phase),
        }
    }
}

/// The role of an OSD in a group, which changes by the transitions of [`TRANSITIONS`] alone.
#[derive(Debug)]
pub(crate) struct Standing {
    role: Role,
    /// How often it went from one state to another.
    counts: [[u32; STATES]; STATES],
}

impl Standing {
    pub(crate) fn new(is_primary: bool) -> Standing {
        let role = match is_primary {
            true => Role::Primary(Primary::new(Phase::Waiting { reason: "just started".to_owned() })),
            false => Role::Replica(Following::default()),
        };
        Standing { role, counts: [[0; STATES]; STATES] }
    }

    pub(crate) fn state(&self) -> State {
        self.role.state()
    }

    pub(crate) fn role(&self) -> &Role {
        &self.role
    }

    pub(crate) fn phase(&self) -> Option<&Phase> {
        self.primary().map(|primary| &primary.phase)
    }

    pub(crate) fn primary(&self) -> Option<&Primary> {
        if let Role::Primary(primary) = &self.role { Some(primary) } else { None }
    }

    pub(crate) fn primary_mut(&mut self) -> Option<&mut Primary> {
        if let Role::Primary(primary) = &mut self.role { Some(primary) } else { None }
    }

    /// What a replica, learner or candidate knows of the order it applies. A candidate does so until it has an epoch of its
    /// own.
    pub(crate) fn following(&self) -> Option<&Following> {
        match &self.role {
            Role::Replica(following) | Role::Learner(following) | Role::Candidate(following) => {
                Some(following)
            }
            Role::Primary(_) | Role::Left { .. } => None,
        }
    }

    pub(crate) fn following_mut(&mut self) -> Option<&mut Following> {
        match &mut self.role {
            Role::Replica(following) | Role::Learner(following) | Role::Candidate(following) => {
                Some(following)
            }
            Role::Primary(_) | Role::Left { .. } => None,
        }
    }

    /// Where the members that a primary asked stand, as far as they said.
    pub(crate) fn positions_mut(&mut self) -> Option<&mut Vec<MemberPosition>> {
        match &mut self.role {
            Role::Primary(Primary { phase: Phase::Querying { positions, .. }, .. }) => Some(positions),
            _ => None,
        }
    }

    pub(crate) fn repairing(&self) -> Option<&Repairing> {
        if let Some(Phase::Repairing(repairing)) = self.phase() { Some(repairing) } else { None }
    }

    pub(crate) fn repairing_mut(&mut self) -> Option<&mut Repairing> {
        match &mut self.role {
            Role::Primary(Primary { phase: Phase::Repairing(repairing), .. }) => Some(repairing),
            _ => None,
        }
    }

    /// The learner that shall be taken in.
    pub(crate) fn promotion(&self) -> Option<&Promotion> {
        match &self.role {
            Role::Primary(Primary { change: Change::TakeIn(promotion), .. }) => Some(promotion),
            _ => None,
        }
    }

    /// The member that shall be left out.
    pub(crate) fn unfit(&self) -> Option<OsdId> {
        match self.role {
            Role::Primary(Primary { change: Change::LeaveOut(osd), .. }) => Some(osd),
            _ => None,
        }
    }

    /// How often it went from one state to another: `(from, to, times)`.
    pub(crate) fn transitions(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        State::NAMES.into_iter().zip(&self.counts).flat_map(|(from, row)| {
            State::NAMES.into_iter().zip(row).map(move |(to, times)| (from, to, u64::from(*times)))
        })
    }

    // What can happen. Each is one or more rows of `TRANSITIONS`.

    /// It cannot serve, and tries again by itself. What it did as the primary ends; answers the operation of the repair that
    /// was under way.
    pub(crate) fn must_wait(&mut self, reason: String) -> Option<OperationId> {
        let current = self.repairing().and_then(|repairing| repairing.current);
        self.go_on_as_primary(Phase::Waiting { reason });
        current
    }

    /// It cannot serve until somebody does something.
    pub(crate) fn must_stop(&mut self, reason: String) {
        self.go_on_as_primary(Phase::Stopped { reason });
    }

    /// It asks the registry for an epoch. One that obeys a primary goes on doing so until the answer.
    pub(crate) fn claims(&mut self) {
        match self.role {
            Role::Replica(following) | Role::Learner(following) => self.enter(Role::Candidate(following)),
            _ => self.go_on_as_primary(Phase::Claiming),
        }
    }

    /// The claim came to nothing, and another OSD is primary, or nobody.
    pub(crate) fn claim_was_in_vain(&mut self) {
        match self.role {
            Role::Candidate(following) => self.enter(Role::Replica(following)),
            _ => self.obeys(),
        }
    }

    /// The registry granted the epoch: the members are asked where they stand.
    pub(crate) fn epoch_was_granted(&mut self, now: Instant) {
        self.go_on_as_primary(Phase::Querying { positions: Vec::new(), since: now });
        let primary = self.primary_mut().expect("it was just made one");
        primary.change = Change::None;
        primary.learning.asked.clear();
    }

    /// Every member said where it stands.
    pub(crate) fn differences_are_known(&mut self, next_sequence: Sequence, repairing: Repairing) {
        self.go_on_as_primary(Phase::Repairing(repairing));
        let primary = self.primary_mut().expect("it was just made one");
        (primary.next_sequence, primary.under_way) = (next_sequence, 0);
    }

    /// All members agree.
    pub(crate) fn serves(&mut self) {
        self.go_on_as_primary(Phase::Active);
        // Whoever led since it was looked may have gone by an older map.
        self.primary_mut().expect("it was just made one").cutting = Cutting::default();
    }

    /// It obeys the primary that the map names when that asks where it stands, and nothing from before.
    pub(crate) fn obeys(&mut self) {
        self.enter(Role::Replica(Following::default()));
    }

    /// An epoch begins here with its mark, or where a learner's stream begins.
    pub(crate) fn was_activated(&mut self, next: Sequence, is_learner: bool) {
        let mut following = *self.following().expect("only a replica or learner is activated");
        following.expected = Some(next);
        self.enter(if is_learner { Role::Learner(following) } else { Role::Replica(following) });
    }

    /// The learner that was to be taken in is not, if there was one.
    pub(crate) fn promotion_failed(&mut self) {
        if let Role::Primary(Primary { change: change @ Change::TakeIn(_), .. }) = &mut self.role {
            *change = Change::None;
        }
    }

    /// The group was split: what an epoch from before sends is not taken any more.
    pub(crate) fn was_split(&mut self) {
        if let Some(following) = self.following_mut() {
            following.expected = None;
        }
        if let Role::Learner(following) = self.role {
            self.enter(Role::Replica(following));
        }
    }

    /// A configuration is whole without it, or its pool was removed.
    pub(crate) fn left(&mut self) {
        self.enter(Role::Left { is_marked: false });
    }

    /// Its log says that it left.
    pub(crate) fn leaving_was_marked(&mut self) {
        self.enter(Role::Left { is_marked: true });
    }

    fn go_on_as_primary(&mut self, phase: Phase) {
        let (from, to) = (self.state(), state_of(&phase));
        match &mut self.role {
            Role::Primary(primary) => primary.phase = phase,
            _ => self.role = Role::Primary(Primary::new(phase)),
        }
        self.count(from, to);
    }

    fn enter(&mut self, role: Role) {
        let (from, to) = (self.state(), role.state());
        self.role = role;
        self.count(from, to);
    }

    fn count(&mut self, from: State, to: State) {
        if from == to {
            return;
        }
        let is_listed = TRANSITIONS.iter().any(|(one, other, _)| (*one, *other) == (from, to));
        assert!(is_listed, "no group goes from {} to {}", from.name(), to.name());
        self.counts[from as usize][to as usize] += 1;
    }
}

fn state_of(phase: &Phase) -> State {
    match phase {
        Phase::Waiting { .. } => State::Waiting,
        Phase::Stopped { .. } => State::Stopped,
        Phase::Claiming => State::Claiming,
        Phase::Querying { .. } => State::Querying,
        Phase::Repairing(_) => State::Repairing,
        Phase::Active => State::Active,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{CutId, LinkId};

    const NEXT: Sequence = Sequence(7);

    fn replica() -> Standing {
        let mut standing = Standing::new(false);
        standing.was_activated(NEXT, false);
        standing
    }

    #[test]
    fn a_replica_that_claims_applies_what_its_primary_orders_until_it_has_the_epoch() {
        let mut standing = replica();
        standing.claims();
        assert_eq!(standing.state(), State::Candidate);
        assert_eq!(standing.following().and_then(|following| following.expected), Some(NEXT));
        standing.epoch_was_granted(Instant::default());
        assert!(standing.following().is_none() && standing.state() == State::Querying);
    }

    #[test]
    fn a_primary_that_claims_obeys_nobody() {
        let mut standing = Standing::new(true);
        standing.claims();
        assert!(standing.state() == State::Claiming && standing.following().is_none());
        standing.claim_was_in_vain();
        assert_eq!(standing.state(), State::Replica);
    }

    #[test]
    fn a_claim_in_vain_leaves_a_replica_as_it_was() {
        let mut standing = replica();
        standing.claims();
        standing.claim_was_in_vain();
        assert_eq!(standing.state(), State::Replica);
        assert_eq!(standing.following().and_then(|following| following.expected), Some(NEXT));
    }

    #[test]
    fn a_split_ends_what_an_epoch_from_before_may_send() {
        let mut standing = Standing::new(false);
        standing.was_activated(NEXT, true);
        assert_eq!(standing.state(), State::Learner);
        standing.was_split();
        assert_eq!(standing.state(), State::Replica);
        assert_eq!(standing.following().and_then(|following| following.expected), None);
        let mut standing = replica();
        standing.claims();
        standing.was_split();
        assert_eq!(standing.state(), State::Candidate);
        assert_eq!(standing.following().and_then(|following| following.expected), None);
    }

    #[test]
    #[should_panic(expected = "no group goes from waiting to active")]
    fn what_the_table_does_not_list_is_refused() {
        Standing::new(true).serves();
    }

    #[test]
    fn what_an_epoch_was_to_change_is_forgotten_when_it_begins() {
        let mut standing = Standing::new(true);
        let primary = standing.primary_mut().expect("it is one");
        primary.change = Change::LeaveOut(OsdId(3));
        primary.learning.asked.insert(OsdId(4));
        standing.claims();
        assert_eq!(standing.unfit(), Some(OsdId(3)));
        standing.epoch_was_granted(Instant::default());
        assert_eq!(standing.unfit(), None);
        assert!(standing.primary().is_some_and(|primary| primary.learning.asked.is_empty()));
    }

    #[test]
    #[should_panic(expected = "no group goes from querying to replica")]
    fn nobody_obeys_in_the_middle_of_its_own_epoch() {
        let mut standing = Standing::new(true);
        standing.claims();
        standing.epoch_was_granted(Instant::default());
        standing.obeys();
    }

    #[test]
    fn what_a_group_went_through_is_counted() {
        let mut standing = replica();
        for _ in 0..2 {
            standing.claims();
            standing.claim_was_in_vain();
        }
        let counted: Vec<_> = standing.transitions().filter(|(.., times)| *times > 0).collect();
        assert_eq!(counted, [("replica", "candidate", 2), ("candidate", "replica", 2)]);
    }

    #[test]
    fn a_promotion_that_failed_is_forgotten_and_nothing_else_is() {
        let mut standing = Standing::new(true);
        let promotion = Promotion { osd: OsdId(3), link: LinkId(1), through: 0, since: Instant::default() };
        standing.primary_mut().expect("it is one").change = Change::TakeIn(promotion);
        assert_eq!(standing.promotion().map(|promotion| promotion.osd), Some(OsdId(3)));
        standing.promotion_failed();
        assert!(standing.promotion().is_none());
        standing.primary_mut().expect("it is one").change = Change::LeaveOut(OsdId(4));
        standing.promotion_failed();
        assert_eq!(standing.unfit(), Some(OsdId(4)));
    }

    #[test]
    fn a_primary_that_cannot_go_on_tells_of_the_repair_that_was_under_way() {
        for current in [None, Some(OperationId { slot: 4, serial: 2 })] {
            let mut standing = Standing::new(true);
            standing.claims();
            standing.epoch_was_granted(Instant::default());
            let (queue, others) = (VecDeque::new(), Vec::new());
            standing.differences_are_known(NEXT, Repairing { queue, current, mark_is_due: false, others });
            let primary = standing.primary().expect("it is one");
            assert_eq!((primary.last_sequence(), primary.under_way), (Sequence(6), 0));
            assert_eq!(standing.must_wait("a test".to_owned()), current);
            assert_eq!(standing.state(), State::Waiting);
        }
        assert_eq!(Standing::new(true).primary().map(Primary::last_sequence), Some(Sequence(0)));
    }

    #[test]
    fn what_was_cut_in_an_earlier_epoch_is_looked_at_anew() {
        let mut standing = Standing::new(true);
        standing.claims();
        standing.epoch_was_granted(Instant::default());
        let (queue, others) = (VecDeque::new(), Vec::new());
        let repairing = Repairing { queue, current: None, mark_is_due: false, others };
        standing.differences_are_known(NEXT, repairing);
        standing.primary_mut().expect("it is one").cutting.through = CutId(3);
        standing.serves();
        assert_eq!(standing.primary().map(|primary| primary.cutting.through), Some(CutId(0)));
    }

    #[test]
    fn the_table_and_the_drawing_in_the_docs_are_the_same() {
        let text = include_str!("../../../../docs/protocol.md");
        let drawn: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split("` | `");
                Some((cells.next()?, cells.next()?.split('`').next()?))
            })
            .filter(|(from, to)| [from, to].iter().all(|name| State::NAMES.contains(name)))
            .collect();
        let listed: Vec<_> = TRANSITIONS.iter().map(|(from, to, _)| (from.name(), to.name())).collect();
        assert_eq!(drawn, listed);
    }
}
