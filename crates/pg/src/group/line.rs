//! The operations of groups: those under way, and behind them those that wait for their blocks or for room.
//!
//! An operation waits for all that came before it on one of its blocks, whether that is under way or waits itself
//! ([`super::lanes`]). When these are gone it is *ready*, and is started in its turn. Reads leave the line then: they hold
//! nothing back, and whatever changes is behind those that came before it.
//!
//! Each group has a line of its own. What they are kept in is one for all, so that it is as small as what is in line: of many
//! groups that serve, few have an operation at a time, and whatever each had for itself would not be in a cache when that comes.

use super::lanes::{Lanes, Place};
use crate::operation::OperationId;
use base::BlockRange;
use std::collections::VecDeque;

/// The most writes of one group that are ordered and not yet acknowledged. Below the length of the log that a
/// store keeps (1,024), so that members' logs always overlap.
pub(crate) const IN_FLIGHT_MAX: usize = 256;

/// What was needed for more is given back when nobody is left in line.
const LENGTH_KEPT_MAX: usize = 1024;

/// How far an operation in line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// It is ready, and whoever asked for it tries to start it.
    Starting,
    UnderWay,
}

/// An operation in line.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: OperationId,
    state: State,
    is_read: bool,
    /// It is in a list of what is ready.
    is_listed: bool,
    /// How many joined before it.
    number: u64,
    group: u32,
    /// Its neighbours among those of the group.
    newer: Option<Place>,
    older: Option<Place>,
}

/// The line of one group. Only a primary has anybody in it.
#[derive(Debug, Default)]
struct Line {
    /// Reads whose blocks are free, oldest first.
    ready_reads: VecDeque<OperationId>,
    /// The same of what changes something, or checks.
    ready: VecDeque<OperationId>,
    /// How many are under way: writes, unaligned ones whose edges are being read, and what else holds back what comes after
    /// it.
    under_way: usize,
    /// Who joined last, of those who are left.
    newest: Option<Place>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    lanes: Lanes,
    /// By place.
    members: Vec<Option<Member>>,
    /// By slot.
    places: Vec<Option<Place>>,
    /// By group.
    lines: Vec<Line>,
    /// How many are in line, and how many ever were.
    count: usize,
    joined: u64,
    /// Memory for a list of places.
    freed: Vec<Place>,
}

impl Lines {
    /// Whether something new on these blocks must wait.
    pub(crate) fn must_wait(&self, range: &BlockRange) -> bool {
        self.lanes.is_taken(range)
    }

    /// No more of a group is taken under way.
    pub(crate) fn is_full(&self, group: u32) -> bool {
        self.line(group).is_some_and(Line::is_full)
    }

    /// Whether something of a group may be started.
    pub(crate) fn has_ready(&self, group: u32) -> bool {
        self.line(group).is_some_and(|line| !line.ready_reads.is_empty() || !line.ready.is_empty())
    }

    /// What of a group is under way or waits, in no order that says anything.
    pub(crate) fn all(&self, group: u32) -> impl Iterator<Item = OperationId> {
        self.members_of(group).map(|(_, member)| member.id)
    }

    /// What of a group is under way, in no order that says anything.
    pub(crate) fn under_way(&self, group: u32) -> impl Iterator<Item = OperationId> {
        let members = self.members_of(group).map(|(_, member)| member);
        members.filter(|member| member.state == State::UnderWay).map(|member| member.id)
    }

    /// What is in line on these blocks, in order, and whether it is under way.
    pub(crate) fn on(&self, range: BlockRange) -> impl Iterator<Item = (OperationId, bool)> {
        let members = self.lanes.on(range).filter_map(move |place| self.members[place.index()]);
        members.map(|member| (member.id, member.state == State::UnderWay))
    }

    /// An operation waits, behind all others on its blocks.
    pub(crate) fn wait(&mut self, group: u32, id: OperationId, is_read: bool, range: &BlockRange) {
        let place = self.join(group, id, is_read, range, State::Waiting);
        self.list(place, false);
    }

    /// An operation that changes something waits behind what is under way on its blocks, and before all that waits there,
    /// even if it waits already.
    pub(crate) fn wait_first(&mut self, group: u32, id: OperationId, range: &BlockRange) {
        let place = self.place_of(id).unwrap_or_else(|| self.join(group, id, false, range, State::Waiting));
        self.go_ahead(place);
    }

    /// An operation is under way: what is on its blocks, or comes there, waits until it has ended. One that was in line
    /// keeps its place, with all blocks that it joined with.
    pub(crate) fn hold(&mut self, group: u32, id: OperationId, range: &BlockRange) {
        match self.place_of(id) {
            Some(place) => self.change(place, State::UnderWay),
            None => {
                let place = self.join(group, id, false, range, State::UnderWay);
                if !self.lanes.is_free(place) {
                    self.put_ahead(place);
                }
            }
        }
    }

    /// An operation that was under way waits again, before all others on its blocks.
    pub(crate) fn put_back(&mut self, group: u32, id: OperationId, is_read: bool, range: &BlockRange) {
        let place = match self.place_of(id) {
            Some(place) => place,
            None => self.join(group, id, is_read, range, State::Waiting),
        };
        self.change(place, State::Waiting);
        self.go_ahead(place);
    }

    /// The next of a group that can be started, if something can: [`Self::was_tried`] is to be told what became of it. Reads come
    /// first, if they may be read: what keeps others from being started, too many that are under way or a store without room,
    /// does not keep them.
    pub(crate) fn next_ready(&mut self, group: u32, may_read: bool) -> Option<OperationId> {
        loop {
            let line = self.lines.get_mut(group as usize)?;
            let read = if may_read { line.ready_reads.pop_front() } else { None };
            let id = match read {
                Some(id) => id,
                None if line.is_full() => return None,
                None => line.ready.pop_front()?,
            };
            let Some(place) = self.place_of(id) else { continue };
            let member = self.members[place.index()].as_mut().expect("somebody is at a known place");
            member.is_listed = false;
            // A mend may have come before it.
            if member.state == State::Waiting && self.lanes.is_free(place) {
                member.state = State::Starting;
                return Some(id);
            }
        }
    }

    /// What [`Self::next_ready`] named was started, or there was no room for it. One that is not under way by now leaves the
    /// line, unless it waits again: then the answer is `false`, and it is the next.
    pub(crate) fn was_tried(&mut self, id: OperationId, is_started: bool) -> bool {
        let Some(place) = self.place_of(id) else { return true };
        match self.members[place.index()].map(|member| member.state) {
            Some(State::Starting) if is_started => self.ended(id),
            Some(State::Starting) => {
                self.change(place, State::Waiting);
                self.list(place, true);
                return false;
            }
            Some(State::Waiting) => return false,
            Some(State::UnderWay) | None => {}
        }
        true
    }

    /// An operation is not in line any more, if it was.
    pub(crate) fn ended(&mut self, id: OperationId) {
        let Some(place) = self.place_of(id) else { return };
        let group = self.take(place).group;
        let mut freed = std::mem::take(&mut self.freed);
        self.lanes.leave(place, &mut freed);
        for place in freed.drain(..) {
            self.list(place, false);
        }
        self.freed = freed;
        self.give_back(group);
    }

    /// Takes all of a group, those under way first.
    pub(crate) fn take_all(&mut self, group: u32) -> Vec<OperationId> {
        let places: Vec<Place> = self.members_of(group).map(|(place, _)| place).collect();
        let mut freed = std::mem::take(&mut self.freed);
        let leave = |place| {
            self.lanes.leave(place, &mut freed);
            self.take(place)
        };
        let mut all: Vec<Member> = places.into_iter().map(leave).collect();
        // Whoever was freed by one of them was one of them.
        freed.clear();
        self.freed = freed;
        if let Some(line) = self.lines.get_mut(group as usize) {
            *line = Line::default();
        }
        self.give_back(group);
        all.sort_unstable_by_key(|member| (member.state != State::UnderWay, member.number));
        all.into_iter().map(|member| member.id).collect()
    }

    fn line(&self, group: u32) -> Option<&Line> {
        self.lines.get(group as usize)
    }

    /// Who is in the line of a group, the newest first.
    fn members_of(&self, group: u32) -> impl Iterator<Item = (Place, &Member)> {
        let member_at = |place: Place| Some((place, self.members[place.index()].as_ref()?));
        let newest = self.line(group).and_then(|line| line.newest);
        std::iter::successors(newest.and_then(member_at), move |(_, member)| member.older.and_then(member_at))
    }

    fn place_of(&self, id: OperationId) -> Option<Place> {
        let place = (*self.places.get(id.slot as usize)?)?;
        self.members[place.index()].filter(|member| member.id == id).map(|_| place)
    }

    fn join(
        &mut self,
        group: u32,
        id: OperationId,
        is_read: bool,
        range: &BlockRange,
        state: State,
    ) -> Place {
        let place = self.lanes.join(range);
        self.make_room(group, id.slot, place);
        let line = &mut self.lines[group as usize];
        line.under_way += usize::from(state == State::UnderWay);
        let older = line.newest.replace(place);
        let number = self.joined;
        let member = Member { id, state, is_read, is_listed: false, number, group, newer: None, older };
        self.members[place.index()] = Some(member);
        if let Some(older) = older.and_then(|older| self.members[older.index()].as_mut()) {
            older.newer = Some(place);
        }
        let before = self.places[id.slot as usize].replace(place);
        assert!(before.is_none(), "an operation joins the line once");
        (self.joined, self.count) = (self.joined + 1, self.count + 1);
        place
    }

    /// Makes room for somebody who is the first at its place, in its slot or in its group.
    fn make_room(&mut self, group: u32, slot: u32, place: Place) {
        let (group, slot, place) = (group as usize, slot as usize, place.index());
        if self.lines.len() <= group {
            self.lines.resize_with(group + 1, Line::default);
        }
        self.places.resize(self.places.len().max(slot + 1), None);
        self.members.resize(self.members.len().max(place + 1), None);
    }

    /// Nobody is at a place any more.
    fn take(&mut self, place: Place) -> Member {
        let member = self.members[place.index()].take().expect("somebody is at a known place");
        let line = &mut self.lines[member.group as usize];
        line.under_way -= usize::from(member.state == State::UnderWay);
        match member.newer {
            Some(newer) => self.at(newer).older = member.older,
            None => line.newest = member.older,
        }
        if let Some(older) = member.older {
            self.at(older).newer = member.newer;
        }
        self.places[member.id.slot as usize] = None;
        self.count -= 1;
        member
    }

    fn at(&mut self, place: Place) -> &mut Member {
        self.members[place.index()].as_mut().expect("somebody is at a known place")
    }

    /// Gives the memory back that so many had as seldom are in line.
    fn give_back(&mut self, group: u32) {
        if let Some(line) = self.lines.get_mut(group as usize)
            && line.newest.is_none()
            && line.ready_reads.capacity().max(line.ready.capacity()) > LENGTH_KEPT_MAX
        {
            *line = Line::default();
        }
        if self.count == 0 && self.members.len() > LENGTH_KEPT_MAX {
            (self.lanes, self.members) = (Lanes::default(), Vec::new());
        }
    }

    fn change(&mut self, place: Place, state: State) {
        let Some(member) = &mut self.members[place.index()] else { return };
        let line = &mut self.lines[member.group as usize];
        line.under_way -= usize::from(member.state == State::UnderWay);
        line.under_way += usize::from(state == State::UnderWay);
        member.state = state;
    }

    /// Puts one that waits before all others that wait on its blocks.
    fn go_ahead(&mut self, place: Place) {
        if !self.lanes.is_free(place) {
            self.put_ahead(place);
        }
        self.list(place, true);
    }

    /// Puts what is under way on an object before all that waits there, and this one between them, if it waits.
    fn put_ahead(&mut self, place: Place) {
        let members = &self.members;
        self.lanes.reorder(place, |other| match members[other.index()] {
            Some(Member { state: State::UnderWay | State::Starting, .. }) => 0,
            _ if other == place => 1,
            _ => 2,
        });
    }

    /// Notes that an operation can be started, if it can.
    fn list(&mut self, place: Place, is_next: bool) {
        let Some(member) = &mut self.members[place.index()] else { return };
        if member.state != State::Waiting || member.is_listed || !self.lanes.is_free(place) {
            return;
        }
        member.is_listed = true;
        let line = &mut self.lines[member.group as usize];
        let ready = if member.is_read { &mut line.ready_reads } else { &mut line.ready };
        if is_next { ready.push_front(member.id) } else { ready.push_back(member.id) }
    }
}

impl Line {
    fn is_full(&self) -> bool {
        self.under_way >= IN_FLIGHT_MAX
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use base::{OBJECT_BLOCKS, ObjectKey, PgId, hash};

    const GROUP: u32 = 3;

    fn id(slot: u32) -> OperationId {
        OperationId { slot, serial: 1 }
    }

    fn range(first_block: u16, block_count: u16) -> BlockRange {
        BlockRange { key: ObjectKey::default(), first_block, block_count }
    }

    /// The next that is ready.
    fn next(line: &mut Lines) -> Option<OperationId> {
        line.next_ready(GROUP, true)
    }

    /// Starts all that is ready as reads are: it leaves the line.
    fn start_all(line: &mut Lines) -> Vec<u32> {
        let mut started = Vec::new();
        while let Some(id) = next(line) {
            started.push(id.slot);
            assert!(line.was_tried(id, true));
        }
        started
    }

    #[test]
    fn what_touches_the_blocks_of_something_before_it_waits() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(0, 2));
        line.wait(GROUP, id(1), false, &range(1, 10));
        assert!(line.must_wait(&range(1, 1)) && line.must_wait(&range(10, 3)));
        assert!(!line.must_wait(&range(11, 2)), "these blocks are free");
        let other = ObjectKey { object: 1, ..ObjectKey::default() };
        assert!(!line.must_wait(&BlockRange { key: other, ..range(0, 2) }), "of another object");
        line.wait(GROUP, id(2), true, &range(10, 3));
        let all = [(id(0), true), (id(1), false), (id(2), false)];
        assert_eq!(line.on(range(1, 10)).collect::<Vec<_>>(), all);
        assert_eq!(line.on(range(2, 8)).collect::<Vec<_>>(), all[1..2], "not those right before and behind");
        assert_eq!(next(&mut line), None, "one behind the other");
        line.ended(id(0));
        assert_eq!(start_all(&mut line), [1, 2]);
        assert!(!line.must_wait(&BlockRange::whole(ObjectKey::default())));
    }

    #[test]
    fn what_waits_on_a_block_is_started_in_the_order_in_which_it_came() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(5, 1));
        for slot in 1..6 {
            line.wait(GROUP, id(slot), slot % 2 == 0, &range(5, 1));
        }
        line.ended(id(0));
        assert_eq!(start_all(&mut line), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_put_back_is_the_first_on_its_blocks() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(0, 2));
        line.hold(GROUP, id(1), &range(10, 2));
        line.wait(GROUP, id(2), false, &range(10, 2));
        line.put_back(GROUP, id(1), false, &range(10, 2));
        // A read that was under way, which nobody saw in line.
        line.wait(GROUP, id(3), false, &range(0, 2));
        line.put_back(GROUP, id(4), true, &range(1, 10));
        assert_eq!(line.under_way(GROUP).collect::<Vec<_>>(), [id(0)]);
        assert_eq!(next(&mut line), None, "the read is behind what is under way, and before the others");
        line.ended(id(0));
        assert_eq!(start_all(&mut line), [4, 1, 3, 2]);
    }

    #[test]
    fn what_is_put_back_while_it_is_started_is_tried_no_more_in_this_turn() {
        let mut line = Lines::default();
        line.wait(GROUP, id(0), false, &range(0, 2));
        let ready = next(&mut line).unwrap();
        line.hold(GROUP, ready, &range(0, 2));
        line.put_back(GROUP, ready, false, &range(0, 2));
        assert!(!line.was_tried(ready, true), "it waits again");
        assert_eq!(next(&mut line), Some(ready));
        assert!(!line.was_tried(ready, false), "there was no room for it");
        assert_eq!(next(&mut line), Some(ready));
        line.hold(GROUP, ready, &range(0, 2));
        assert!(line.was_tried(ready, true) && line.must_wait(&range(0, 1)));
    }

    #[test]
    fn a_mend_is_behind_what_is_under_way_and_before_what_waits() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(3, 1));
        line.wait(GROUP, id(1), false, &range(0, 8));
        line.wait_first(GROUP, id(2), &range(3, 1));
        assert_eq!(line.on(range(3, 1)).collect::<Vec<_>>(), [(id(0), true), (id(2), false), (id(1), false)]);
        line.ended(id(0));
        assert_eq!(next(&mut line), Some(id(2)));
        line.hold(GROUP, id(2), &range(3, 1));
        assert!(line.was_tried(id(2), true));
        // Of a block where nothing is under way it begins at once, and holds back what waits.
        line.hold(GROUP, id(3), &range(6, 1));
        line.ended(id(2));
        assert_eq!(next(&mut line), None);
        line.ended(id(3));
        assert_eq!(start_all(&mut line), [1]);
    }

    #[test]
    fn what_ends_before_its_turn_leaves_the_others_where_they_are() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(0, 1));
        line.wait(GROUP, id(1), false, &range(0, 2));
        line.wait(GROUP, id(2), false, &range(1, 1));
        line.ended(id(1));
        assert!(line.must_wait(&range(1, 1)));
        line.ended(id(0));
        assert_eq!(start_all(&mut line), [2]);
    }

    #[test]
    fn a_full_line_starts_reads_and_nothing_else() {
        let mut line = Lines::default();
        for slot in 0..IN_FLIGHT_MAX as u32 {
            line.hold(GROUP, id(slot), &range(slot as u16, 1));
        }
        line.wait(GROUP, id(1000), false, &range(900, 1));
        line.wait(GROUP, id(1001), true, &range(901, 1));
        line.wait(GROUP, id(1002), true, &range(902, 1));
        assert!(line.is_full(GROUP));
        assert_eq!(next(&mut line), Some(id(1001)));
        assert!(!line.was_tried(id(1001), false), "there was no memory for it");
        assert_eq!(line.next_ready(GROUP, false), None);
        assert_eq!(start_all(&mut line), [1001, 1002]);
        line.ended(id(7));
        line.wait(GROUP, id(1003), true, &range(903, 1));
        assert_eq!(line.next_ready(GROUP, false), Some(id(1000)));
    }

    #[test]
    fn all_are_taken_at_once_those_under_way_first() {
        let mut line = Lines::default();
        line.wait(GROUP, id(0), true, &range(0, 4));
        line.hold(GROUP, id(1), &range(8, 4));
        line.wait(GROUP, id(2), false, &range(2, 8));
        // A mark has no blocks.
        line.hold(GROUP, id(3), &range(0, 0));
        assert_eq!(line.take_all(GROUP), [1, 3, 0, 2].map(id));
        assert!(!line.has_ready(GROUP) && line.take_all(GROUP).is_empty());
        assert!(!line.must_wait(&BlockRange::whole(ObjectKey::default())));
    }

    /// Blocks of a group.
    fn of(group: u32, first_block: u16) -> BlockRange {
        let pg = PgId { index: group, ..PgId::default() };
        BlockRange { key: ObjectKey { pg, ..ObjectKey::default() }, ..range(first_block, 1) }
    }

    #[test]
    fn each_group_has_a_line_of_its_own() {
        let mut lines = Lines::default();
        lines.hold(1, id(1000), &of(1, 0));
        for slot in 0..IN_FLIGHT_MAX as u32 {
            lines.hold(0, id(slot), &of(0, slot as u16));
        }
        lines.wait(0, id(1001), true, &of(0, 0));
        lines.wait(1, id(1002), false, &of(1, 0));
        assert!(lines.is_full(0) && !lines.is_full(1) && !lines.is_full(2));
        assert_eq!(lines.under_way(1).collect::<Vec<_>>(), [id(1000)]);
        lines.ended(id(0));
        assert!(lines.has_ready(0) && !lines.has_ready(1));
        assert_eq!(lines.take_all(0).len(), IN_FLIGHT_MAX);
        assert!(!lines.has_ready(0) && !lines.is_full(0) && lines.all(0).next().is_none());
        assert!(!lines.must_wait(&of(0, 1)) && lines.must_wait(&of(1, 0)));
        assert_eq!(lines.all(1).collect::<Vec<_>>(), [1002, 1000].map(id));
        lines.ended(id(1000));
        assert_eq!((lines.next_ready(0, true), lines.next_ready(1, true)), (None, Some(id(1002))));
        assert!(lines.was_tried(id(1002), true) && lines.count == 0);
    }

    #[test]
    fn what_is_kept_of_many_groups_is_what_was_in_line_at_once() {
        let mut lines = Lines::default();
        for group in 0..100 {
            for slot in 0..3 {
                lines.hold(group, id(slot), &of(group, slot as u16));
            }
            // From between the others, and from both ends.
            for (slot, left) in [(1, &[2, 0][..]), (2, &[0]), (0, &[])] {
                lines.ended(id(slot));
                assert_eq!(lines.all(group).map(|id| id.slot).collect::<Vec<_>>(), left);
            }
        }
        assert_eq!((lines.members.len(), lines.places.len()), (3, 3));
    }

    /// The same by going through all.
    #[derive(Default)]
    struct Search {
        under_way: Vec<(OperationId, BlockRange)>,
        waiting: VecDeque<(OperationId, BlockRange)>,
    }

    impl Search {
        fn has_conflict(&self, range: &BlockRange, waiting_before: usize) -> bool {
            let waiting = self.waiting.iter().take(waiting_before);
            self.under_way.iter().chain(waiting).any(|(_, other)| other.overlaps(range))
        }

        fn ready(&self) -> Vec<OperationId> {
            let all = self.waiting.iter().enumerate();
            all.filter(|(at, (_, range))| !self.has_conflict(range, *at)).map(|(_, (id, _))| *id).collect()
        }

        fn take_waiting(&mut self, id: OperationId) -> (OperationId, BlockRange) {
            let at = self.waiting.iter().position(|(other, _)| *other == id).unwrap();
            self.waiting.remove(at).unwrap()
        }
    }

    #[test]
    fn whoever_is_ready_would_be_found_by_a_search_of_all() {
        for seed in 0..50_u64 {
            let (mut line, mut search) = (Lines::default(), Search::default());
            let mut state = seed;
            let mut draw = |below: u64| {
                state = hash::mix(state.wrapping_add(1));
                state % below
            };
            for slot in 0..1000 {
                let first_block = draw(24) as u16;
                let key = ObjectKey { object: draw(2) as u32, ..ObjectKey::default() };
                let range = BlockRange { key, first_block, block_count: 1 + draw(8) as u16 };
                let new = (id(slot), range);
                assert_eq!(line.must_wait(&range), search.has_conflict(&range, usize::MAX));
                match draw(16) {
                    // A read that met damage.
                    0 => {
                        line.put_back(GROUP, new.0, true, &range);
                        search.waiting.push_front(new);
                    }
                    // A mend.
                    1 if search.has_conflict(&range, 0) => {
                        line.wait_first(GROUP, new.0, &range);
                        search.waiting.push_front(new);
                    }
                    1 => {
                        line.hold(GROUP, new.0, &range);
                        search.under_way.push(new);
                    }
                    2 if !search.under_way.is_empty() => {
                        let at = draw(search.under_way.len() as u64) as usize;
                        let (id, range) = search.under_way.swap_remove(at);
                        line.put_back(GROUP, id, false, &range);
                        search.waiting.push_front((id, range));
                    }
                    3..8 if !search.under_way.is_empty() => {
                        let at = draw(search.under_way.len() as u64) as usize;
                        line.ended(search.under_way.swap_remove(at).0);
                    }
                    3..8 => {}
                    _ if search.has_conflict(&range, usize::MAX) => {
                        line.wait(GROUP, new.0, draw(2) == 0, &range);
                        search.waiting.push_back(new);
                    }
                    _ => {
                        line.hold(GROUP, new.0, &range);
                        search.under_way.push(new);
                    }
                }
                while draw(3) > 0 {
                    let Some(id) = next(&mut line) else {
                        assert!(search.ready().is_empty(), "seed {seed}, operation {slot}");
                        break;
                    };
                    assert!(search.ready().contains(&id), "seed {seed}, operation {slot}: {id:?}");
                    let is_held = draw(2) == 0;
                    let (_, range) = search.take_waiting(id);
                    if is_held {
                        line.hold(GROUP, id, &range);
                        search.under_way.push((id, range));
                    }
                    assert!(line.was_tried(id, true));
                }
            }
            while let Some((id, _)) = search.under_way.pop() {
                line.ended(id);
            }
            let mut left = start_all(&mut line);
            let mut expected: Vec<u32> = search.waiting.iter().map(|(id, _)| id.slot).collect();
            left.sort_unstable();
            expected.sort_unstable();
            assert_eq!(left, expected, "seed {seed}: whatever waits is started in the end");
            assert!(line.count == 0 && line.take_all(GROUP).is_empty());
        }
    }

    #[test]
    fn what_an_operation_costs_does_not_grow_with_what_waits() {
        let one_block = |_: u32| range(7, 1);
        let scattered = |number: u32| range((number * 389 % OBJECT_BLOCKS as u32) as u16, 1);
        let overlapping = |number: u32| range((number * 37 % 960) as u16, 64);
        let alternating = |number: u32| {
            if number.is_multiple_of(2) { range(0, 1024) } else { range(number as u16 % 1024, 1) }
        };
        let shapes: [&dyn Fn(u32) -> BlockRange; 4] = [&one_block, &scattered, &overlapping, &alternating];
        for (shape, blocks) in shapes.into_iter().enumerate() {
            for length in [100, 10_000] {
                let mut line = Lines::default();
                line.hold(GROUP, id(0), &BlockRange::whole(ObjectKey::default()));
                for number in 1..=length {
                    assert!(line.must_wait(&blocks(number)));
                    line.wait(GROUP, id(number), true, &blocks(number));
                }
                // Whoever else is in the group comes and goes beside them.
                let others =
                    BlockRange { key: ObjectKey { object: 9, ..ObjectKey::default() }, ..range(7, 1) };
                let before = line.lanes.steps.get();
                assert!(!line.must_wait(&others));
                line.hold(GROUP, id(length + 1), &others);
                line.ended(id(length + 1));
                assert!(line.lanes.steps.get() - before <= 4, "beside {length} of shape {shape}");
                line.ended(id(0));
                assert_eq!(start_all(&mut line).len(), length as usize);
                let each = line.lanes.steps.get() / length as usize;
                assert!(each <= 10, "{each} steps for each of {length} of shape {shape}");
            }
        }
    }

    #[test]
    fn memory_of_a_long_line_is_given_back_when_it_is_empty() {
        for is_read in [true, false] {
            let mut line = Lines::default();
            for slot in 0..2 * LENGTH_KEPT_MAX as u32 {
                let key = ObjectKey { object: slot, ..ObjectKey::default() };
                line.wait(GROUP, id(slot), is_read, &BlockRange::whole(key));
            }
            assert_eq!(start_all(&mut line).len(), 2 * LENGTH_KEPT_MAX);
            let Line { ready_reads, ready, .. } = &line.lines[GROUP as usize];
            assert_eq!([line.members.capacity(), ready_reads.capacity(), ready.capacity()], [0; 3]);
        }
    }

    #[test]
    fn memory_of_a_line_that_was_not_too_long_is_kept() {
        let mut line = Lines::default();
        for slot in 0..LENGTH_KEPT_MAX as u32 {
            line.wait(GROUP, id(slot), false, &range(0, 1));
        }
        assert_eq!(start_all(&mut line).len(), LENGTH_KEPT_MAX);
        assert!(line.count == 0 && line.members.capacity() >= LENGTH_KEPT_MAX);
        assert!(line.freed.capacity() > 0);
    }

    #[test]
    fn something_is_ready_as_long_as_a_read_or_a_change_is() {
        for is_read in [true, false] {
            let mut line = Lines::default();
            line.hold(GROUP, id(0), &range(0, 1));
            line.wait(GROUP, id(1), is_read, &range(0, 1));
            assert!(!line.has_ready(GROUP), "its block is taken");
            line.ended(id(0));
            assert!(line.has_ready(GROUP));
            assert_eq!(start_all(&mut line), [1]);
            assert!(!line.has_ready(GROUP));
        }
    }

    #[test]
    fn what_waits_already_and_is_to_be_the_first_is_in_line_and_ready_once() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(0, 1));
        line.wait(GROUP, id(1), false, &range(0, 2));
        line.wait_first(GROUP, id(2), &range(0, 1));
        line.wait_first(GROUP, id(2), &range(0, 1));
        let mut all: Vec<u32> = line.all(GROUP).map(|id| id.slot).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        line.ended(id(0));
        line.wait_first(GROUP, id(2), &range(0, 1));
        assert_eq!(next(&mut line), Some(id(2)));
        assert!(!line.has_ready(GROUP), "the other one is behind it");
        assert!(line.was_tried(id(2), true));
        assert_eq!(start_all(&mut line), [1]);
    }

    #[test]
    fn what_has_no_blocks_waits_for_nobody_and_nobody_for_it() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(0, 8));
        assert!(!line.must_wait(&range(4, 0)));
        line.wait(GROUP, id(1), false, &range(4, 0));
        assert_eq!(next(&mut line), Some(id(1)));
        line.hold(GROUP, id(1), &range(4, 0));
        line.ended(id(0));
        assert!(!line.must_wait(&range(0, 8)));
        assert_eq!(line.under_way(GROUP).collect::<Vec<_>>(), [id(1)]);
    }

    #[test]
    fn whoever_finds_its_blocks_free_does_not_look_at_what_waits_elsewhere_on_the_object() {
        let mut line = Lines::default();
        line.hold(GROUP, id(0), &range(7, 1));
        for slot in 1..1000 {
            line.wait(GROUP, id(slot), false, &range(7, 1));
        }
        let before = line.lanes.steps.get();
        line.hold(GROUP, id(1000), &range(9, 1));
        line.put_back(GROUP, id(1000), false, &range(9, 1));
        assert!(line.lanes.steps.get() - before <= 8);
        assert_eq!(next(&mut line), Some(id(1000)));
    }
}
