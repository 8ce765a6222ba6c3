//! Who is behind whom: the order of operations on the blocks of objects.
//!
//! An object that operations touch has a *lane*, one for all layers of its volume, for whoever reads sees several of them. It is its
//! blocks in runs, each with the operation that is last in line there. Who
//! joins takes the runs over that it overlaps, and is behind those who were last on them, and on no others; it is free when
//! all of these have left. What a run tells is read once, by who takes it over, and whoever joins adds at most two: so what
//! joining and leaving cost does not grow with how many wait. Only [`Lanes::reorder`], for what was damaged, goes through all
//! that are on an object.

use base::hash::Map;
use base::{BlockRange, ObjectKey};

/// A lane with more room for runs than that does not keep it.
const RUNS_KEPT_MAX: usize = 64;

/// Where somebody stands, from joining to leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    /// A number for it. Those of who left are given again.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Blocks with one and the same last in line.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u16,
    end: u16,
    last: Place,
}

/// The order on one object.
#[derive(Debug, Default)]
struct Lane {
    key: ObjectKey,
    /// In order, without overlaps.
    runs: Vec<Run>,
    /// All that are on the object, in order.
    head: Option<Place>,
    tail: Option<Place>,
}

/// What is known at a place.
#[derive(Debug)]
struct Stand {
    /// `None` of what has no blocks.
    lane: Option<u32>,
    first: u16,
    end: u16,
    /// Runs on which it is the last.
    runs: u16,
    /// How many it is right behind.
    before: u32,
    /// Those right behind it, in order.
    behind: Option<u32>,
    last_behind: Option<u32>,
    /// Its neighbours in the lane.
    previous: Option<Place>,
    next: Option<Place>,
    /// It left before it was free: until then it keeps those behind it where they are.
    has_left: bool,
}

/// Somebody who is right behind somebody, and the next one who is behind the same.
#[derive(Clone, Copy, Debug)]
struct Link {
    place: Place,
    next: Option<u32>,
}

/// An object by the name that its lane has: a clone's is its parent's, whose blocks it reads.
fn of_all_layers(key: ObjectKey) -> ObjectKey {
    ObjectKey { layer: key.layer.volume().family().first_layer(), ..key }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    stands: Vec<Stand>,
    free_stands: Vec<Place>,
    links: Vec<Link>,
    free_links: Vec<u32>,
    lanes: Vec<Lane>,
    free_lanes: Vec<u32>,
    by_object: Map<ObjectKey, u32>,
    /// Runs, links and stands that were looked at.
    #[cfg(test)]
    pub(crate) steps: std::cell::Cell<usize>,
}

impl Lanes {
    /// Whether somebody is in line on one of these blocks.
    pub(crate) fn is_taken(&self, range: &BlockRange) -> bool {
        let Some(lane) = self.by_object.get(&of_all_layers(range.key)) else { return false };
        let runs = &self.lanes[*lane as usize].runs;
        let (first, end) = (range.first_block, range.first_block + range.block_count);
        let at = runs.partition_point(|run| run.end <= first);
        self.step(1);
        first < end && runs.get(at).is_some_and(|run| run.first < end)
    }

    /// Whether nobody is before it on any of its blocks.
    pub(crate) fn is_free(&self, place: Place) -> bool {
        self.stands[place.index()].before == 0
    }

    /// Joins behind all who are on these blocks.
    pub(crate) fn join(&mut self, range: &BlockRange) -> Place {
        let stand = Stand {
            lane: None,
            first: range.first_block,
            end: range.first_block + range.block_count,
            runs: 0,
            before: 0,
            behind: None,
            last_behind: None,
            previous: None,
            next: None,
            has_left: false,
        };
        let place = match self.free_stands.pop() {
            Some(place) => {
                self.stands[place.index()] = stand;
                place
            }
            None => {
                self.stands.push(stand);
                Place(self.stands.len() as u32 - 1)
            }
        };
        if range.block_count > 0 {
            let lane = self.lane_of(of_all_layers(range.key));
            self.stands[place.index()].lane = Some(lane);
            self.append(lane, place);
            self.take_over(lane, place);
        }
        place
    }

    /// Leaves. Those whom it was the last before are free now, and appended to `freed`, those who joined first before others.
    pub(crate) fn leave(&mut self, place: Place, freed: &mut Vec<Place>) {
        if !self.is_free(place) {
            self.stands[place.index()].has_left = true;
            return;
        }
        let mut at = freed.len();
        self.let_go(place, freed);
        while let Some(next) = freed.get(at).copied() {
            if self.stands[next.index()].has_left {
                freed.remove(at);
                self.let_go(next, freed);
            } else {
                at += 1;
            }
        }
    }

    /// Who is on these blocks, in order.
    pub(crate) fn on(&self, range: BlockRange) -> impl Iterator<Item = Place> {
        let lane = self.by_object.get(&of_all_layers(range.key)).map(|lane| &self.lanes[*lane as usize]);
        let (first, end) = (range.first_block, range.first_block + range.block_count);
        let all = std::iter::successors(lane.and_then(|lane| lane.head), move |place| {
            self.step(1);
            self.stands[place.index()].next
        });
        all.filter(move |place| {
            let stand = &self.stands[place.index()];
            !stand.has_left && stand.first < end && first < stand.end
        })
    }

    /// Puts all who are on the same object as this one into the order of their ranks, and of equal ranks into the one in
    /// which they stand. Who is free may be so no more; only this one may become it.
    pub(crate) fn reorder(&mut self, place: Place, rank: impl Fn(Place) -> u8) {
        let Some(lane) = self.stands[place.index()].lane else { return };
        let head = self.lanes[lane as usize].head;
        let mut all: Vec<Place> =
            std::iter::successors(head, |place| self.stands[place.index()].next).collect();
        self.step(all.len());
        all.sort_by_key(|place| rank(*place));
        for place in &all {
            self.take_behind(*place, |_, _| {});
            let stand = &mut self.stands[place.index()];
            (stand.runs, stand.before, stand.previous, stand.next) = (0, 0, None, None);
        }
        let emptied = &mut self.lanes[lane as usize];
        emptied.runs.clear();
        (emptied.head, emptied.tail) = (None, None);
        for place in all {
            self.append(lane, place);
            self.take_over(lane, place);
        }
    }

    /// The lane of an object.
    fn lane_of(&mut self, key: ObjectKey) -> u32 {
        let (lanes, free) = (&mut self.lanes, &mut self.free_lanes);
        let lane = *self.by_object.entry(key).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                lanes.push(Lane::default());
                lanes.len() as u32 - 1
            })
        });
        lanes[lane as usize].key = key;
        lane
    }

    /// Puts somebody at the end of all that are on an object.
    fn append(&mut self, lane: u32, place: Place) {
        let previous = self.lanes[lane as usize].tail.replace(place);
        self.stands[place.index()].previous = previous;
        match previous {
            Some(previous) => self.stands[previous.index()].next = Some(place),
            None => self.lanes[lane as usize].head = Some(place),
        }
    }

    /// Makes somebody the last in line on its blocks, behind those who were.
    fn take_over(&mut self, lane: u32, place: Place) {
        let Stand { first, end, .. } = self.stands[place.index()];
        let own = Run { first, end, last: place };
        let runs = &self.lanes[lane as usize].runs;
        let from = runs.partition_point(|run| run.end <= first);
        let to = from + runs[from..].partition_point(|run| run.first < end);
        // What is left of the outermost stays as it was.
        let (mut pieces, mut count) = ([own; 3], 0);
        if let Some(run) = runs[from..to].first().filter(|run| run.first < first) {
            pieces[count] = Run { end: first, ..*run };
            count += 1;
        }
        pieces[count] = own;
        count += 1;
        if let Some(run) = runs[from..to].last().filter(|run| run.end > end) {
            pieces[count] = Run { first: end, ..*run };
            count += 1;
        }
        for at in from..to {
            let last = self.lanes[lane as usize].runs[at].last;
            self.stands[last.index()].runs -= 1;
            self.put_behind(last, place);
        }
        for piece in &pieces[..count] {
            self.stands[piece.last.index()].runs += 1;
        }
        self.lanes[lane as usize].runs.splice(from..to, pieces[..count].iter().copied());
        self.step(to - from + 1);
    }

    /// Notes that one is right behind another, once.
    fn put_behind(&mut self, other: Place, place: Place) {
        let last = self.stands[other.index()].last_behind;
        if last.is_some_and(|last| self.links[last as usize].place == place) {
            return;
        }
        let link = Link { place, next: None };
        let at = match self.free_links.pop() {
            Some(at) => {
                self.links[at as usize] = link;
                at
            }
            None => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
        };
        match last {
            Some(last) => self.links[last as usize].next = Some(at),
            None => self.stands[other.index()].behind = Some(at),
        }
        self.stands[other.index()].last_behind = Some(at);
        self.stands[place.index()].before += 1;
    }

    /// Takes those away who are right behind somebody, and shows each.
    fn take_behind(&mut self, place: Place, mut show: impl FnMut(&mut Stand, Place)) {
        let stand = &mut self.stands[place.index()];
        stand.last_behind = None;
        let mut next = stand.behind.take();
        while let Some(at) = next {
            let link = self.links[at as usize];
            self.free_links.push(at);
            show(&mut self.stands[link.place.index()], link.place);
            next = link.next;
            self.step(1);
        }
    }

    /// Has somebody leave who is free.
    fn let_go(&mut self, place: Place, freed: &mut Vec<Place>) {
        self.take_behind(place, |stand, behind| {
            stand.before -= 1;
            if stand.before == 0 {
                freed.push(behind);
            }
        });
        if let Some(lane) = self.stands[place.index()].lane {
            self.drop_runs(lane, place);
            self.unlink(lane, place);
        }
        self.free_stands.push(place);
    }

    /// Nobody is last in line any more where this one is.
    fn drop_runs(&mut self, lane: u32, place: Place) {
        let Stand { first, end, runs: own, .. } = self.stands[place.index()];
        if own == 0 {
            return;
        }
        let runs = &mut self.lanes[lane as usize].runs;
        let from = runs.partition_point(|run| run.end <= first);
        let to = from + runs[from..].partition_point(|run| run.first < end);
        let dropped = runs.extract_if(from..to, |run| run.last == place).count();
        assert_eq!(dropped, usize::from(own), "it is last in line on runs of its own blocks");
        self.step(to - from);
    }

    /// Takes somebody out of all that are on an object.
    fn unlink(&mut self, lane: u32, place: Place) {
        let Stand { previous, next, .. } = self.stands[place.index()];
        match previous {
            Some(previous) => self.stands[previous.index()].next = next,
            None => self.lanes[lane as usize].head = next,
        }
        match next {
            Some(next) => self.stands[next.index()].previous = previous,
            None => self.lanes[lane as usize].tail = previous,
        }
        let lane_left = &mut self.lanes[lane as usize];
        if lane_left.head.is_none() {
            assert!(lane_left.runs.is_empty(), "a run has somebody on it");
            if lane_left.runs.capacity() > RUNS_KEPT_MAX {
                lane_left.runs = Vec::new();
            }
            self.by_object.remove(&lane_left.key);
            self.free_lanes.push(lane);
        }
    }

    #[cfg(test)]
    fn step(&self, count: usize) {
        self.steps.set(self.steps.get() + count);
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn step(&self, _: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(object: u32, first_block: u16, block_count: u16) -> BlockRange {
        BlockRange { key: ObjectKey { object, ..ObjectKey::default() }, first_block, block_count }
    }

    /// All who are on an object, in order.
    fn all(lanes: &Lanes, object: u32) -> Vec<Place> {
        lanes.on(BlockRange::whole(range(object, 0, 0).key)).collect()
    }

    /// Has somebody leave. Answers who is free by that.
    fn leave(lanes: &mut Lanes, place: Place) -> Vec<Place> {
        let mut freed = Vec::new();
        lanes.leave(place, &mut freed);
        freed
    }

    #[test]
    fn whoever_leaves_an_object_leaves_the_others_there_in_their_order() {
        let mut lanes = Lanes::default();
        let blocks = [(0, 1), (5, 1), (0, 8), (6, 2)];
        let [a, b, c, d] = blocks.map(|(first, count)| lanes.join(&range(3, first, count)));
        assert_eq!(all(&lanes, 3), [a, b, c, d]);
        // From between the others, and then from the front.
        assert!(leave(&mut lanes, b).is_empty());
        assert_eq!(all(&lanes, 3), [a, c, d]);
        assert_eq!(leave(&mut lanes, a), [c]);
        assert_eq!(all(&lanes, 3), [c, d]);
        assert_eq!(leave(&mut lanes, c), [d]);
        assert_eq!(all(&lanes, 3), [d]);
        // And from the end, whose place the next one gets.
        let e = lanes.join(&range(3, 0, 1));
        assert!(leave(&mut lanes, d).is_empty());
        let f = lanes.join(&range(3, 7, 1));
        assert_eq!(all(&lanes, 3), [e, f]);
        assert!(leave(&mut lanes, f).is_empty());
        let g = lanes.join(&range(3, 7, 1));
        assert_eq!((g, all(&lanes, 3)), (f, vec![e, g]));
        for place in [e, g] {
            assert!(lanes.is_free(place) && leave(&mut lanes, place).is_empty());
        }
        assert!(lanes.by_object.is_empty() && !lanes.is_taken(&BlockRange::whole(range(3, 0, 0).key)));
    }

    #[test]
    fn what_was_kept_of_who_left_serves_the_next() {
        let mut lanes = Lanes::default();
        for object in 0..100 {
            // The second is behind the first, and the third behind both: that is noted once of each, however many runs they have.
            let blocks = [(0, 4), (1, 1), (0, 4)];
            let places = blocks.map(|(first, count)| lanes.join(&range(object, first, count)));
            for (place, freed) in places.into_iter().zip([vec![places[1]], vec![places[2]], vec![]]) {
                assert_eq!(leave(&mut lanes, place), freed);
            }
            assert!(lanes.by_object.is_empty(), "nobody is on object {object}");
        }
        assert_eq!((lanes.stands.len(), lanes.links.len(), lanes.lanes.len()), (3, 3, 1));
        assert!(lanes.lanes[0].runs.capacity() > 0, "no operation has memory made for what the last one had");
        // What was needed once for very many is given back.
        let many: Vec<Place> = (0..200).map(|number| lanes.join(&range(0, 2 * number, 1))).collect();
        for place in many {
            assert!(leave(&mut lanes, place).is_empty());
        }
        assert!(lanes.lanes[0].runs.capacity() <= RUNS_KEPT_MAX);
    }

    #[test]
    fn who_leaves_before_its_turn_frees_nobody_before_that_would_have_come() {
        let mut lanes = Lanes::default();
        let blocks = [(0, 2), (1, 2), (2, 2), (3, 2)];
        let [a, b, c, d] = blocks.map(|(first, count)| lanes.join(&range(0, first, count)));
        for place in [c, b] {
            assert!(leave(&mut lanes, place).is_empty());
        }
        assert_eq!(all(&lanes, 0), [a, d]);
        assert!(!lanes.is_free(d));
        assert_eq!(leave(&mut lanes, a), [d], "all between them had left");
        // Of several who are free at once one had left, and the others are in the order in which they joined.
        let blocks = [(0, 4), (0, 1), (2, 1), (3, 1), (2, 1)];
        let [a, b, c, d, e] = blocks.map(|(first, count)| lanes.join(&range(1, first, count)));
        assert!(leave(&mut lanes, c).is_empty());
        assert_eq!(leave(&mut lanes, a), [b, d, e]);
    }

    #[test]
    fn whoever_is_last_in_line_nowhere_leaves_without_a_look_at_those_who_are() {
        let mut lanes = Lanes::default();
        let whole = BlockRange::whole(ObjectKey::default());
        let long: Vec<Place> = (0..100).map(|_| lanes.join(&whole)).collect();
        let short: Vec<Place> = whole.blocks().map(|block| lanes.join(&range(0, block, 1))).collect();
        let before = lanes.steps.get();
        let freed: Vec<Place> = long.into_iter().flat_map(|place| leave(&mut lanes, place)).collect();
        assert_eq!(freed[99..], short, "one whole after the other, and then all blocks");
        let steps = lanes.steps.get() - before;
        assert!(steps <= 2 * short.len(), "{steps} steps");
    }
}
