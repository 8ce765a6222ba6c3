//! Members that a primary brings up to date, and how far each is.

use base::{BLOCK_BYTES, BlockRange, Instant, LayerId, LinkId, ObjectKey, OsdId, Sequence};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The pause before a learner that is full, that was late or whose primary is damaged is tried again.
pub(crate) const LEARN_PAUSE_LONG: Duration = Duration::from_secs(10);

/// What a learner is still to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// These blocks, whatever they hold.
    Range(BlockRange),
    /// What it lacks of this object, which it had as the group's order has it up to that sequence.
    Object(ObjectKey, Sequence),
    /// Nothing of all objects up to this one: it is told so.
    Reached(ObjectKey),
}

/// How far the comparison of a learner's objects is.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The primary's objects that were not compared yet, in order.
    pub(crate) own: VecDeque<ObjectKey>,
    /// The learner's last object that was.
    pub(crate) after: Option<(LayerId, u32)>,
    /// A page of the learner's objects is on its way.
    pub(crate) is_awaited: bool,
}

/// A learner that receives every write from `from` on, and meanwhile what it lacks.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    pub(crate) from: Sequence,
    /// It has the mark of its join on stable media.
    pub(crate) has_mark: bool,
    pub(crate) work: VecDeque<Work>,
    pub(crate) comparison: Option<Comparison>,
    /// The object of which it was asked what it has, and up to which sequence it had it all.
    pub(crate) blocks_awaited: Option<(ObjectKey, Sequence)>,
    /// Blocks that are being read for it, or that it does not have on stable media yet.
    pub(crate) pushed: u32,
}

impl Joined {
    /// Has blocks, if there are any, be the next that it is given.
    pub(crate) fn put_back(&mut self, range: BlockRange) {
        if range.block_count > 0 {
            self.work.push_front(Work::Range(range));
        }
    }
}

/// A member that is being brought up to date.
#[derive(Debug)]
pub(crate) struct Learner {
    pub(crate) osd: OsdId,
    pub(crate) link: LinkId,
    /// Tells this attempt from earlier ones, whose messages may still be under way.
    pub(crate) session: u32,
    /// When it last answered.
    pub(crate) heard_at: Instant,
    /// `None` while it was only asked where it stands.
    pub(crate) joined: Option<Joined>,
}

impl Learner {
    /// Blocks that are being read for it, or that it does not have on stable media yet.
    pub(crate) fn pushed(&self) -> u32 {
        self.joined.as_ref().map_or(0, |joined| joined.pushed)
    }

    /// Whether something is left that it is to be given.
    pub(crate) fn lacks_something(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| !joined.work.is_empty())
    }

    /// Whether it receives what is ordered with that sequence.
    pub(crate) fn receives(&self, sequence: Sequence) -> bool {
        self.joined.as_ref().is_some_and(|joined| sequence >= joined.from)
    }

    /// What it was not given yet: `(objects, bytes known)`.
    pub(crate) fn left(&self) -> Option<(u64, u64)> {
        let Joined { work, comparison, .. } = self.joined.as_ref()?;
        let compared = comparison.as_ref().map_or(0, |comparison| comparison.own.len() as u64);
        let bytes = work.iter().map(|work| match work {
            Work::Range(range) => u64::from(range.block_count) * BLOCK_BYTES as u64,
            Work::Object(..) | Work::Reached(_) => 0,
        });
        let objects = work.iter().filter(|work| !matches!(work, Work::Reached(_))).count() as u64;
        Some((compared + objects, bytes.sum()))
    }

    /// Whether it has been asked for something.
    pub(crate) fn is_owing(&self) -> bool {
        let Some(Joined { has_mark, comparison, blocks_awaited, pushed, .. }) = &self.joined else {
            return true;
        };
        let compares = comparison.as_ref().is_some_and(|comparison| comparison.is_awaited);
        !has_mark || compares || blocks_awaited.is_some() || *pushed > 0
    }
}

/// A learner that was sent everything.
#[derive(Clone, Debug)]
pub(crate) struct Promotion {
    pub(crate) osd: OsdId,
    pub(crate) link: LinkId,
    /// The ordinal of the last message that was sent to it.
    pub(crate) through: u64,
    pub(crate) since: Instant,
}

/// Whom a primary brings up to date.
#[derive(Debug, Default)]
pub(crate) struct Learning {
    pub(crate) learners: Vec<Learner>,
    /// Who was asked to be one in this epoch, whatever became of that.
    pub(crate) asked: BTreeSet<OsdId>,
    /// Learners that had no room for what they lack. Until what they have too much is gone, nothing else is pushed.
    pub(crate) cramped: BTreeSet<OsdId>,
    /// Not before then is one tried again that was in vain.
    after: BTreeMap<OsdId, Instant>,
}

impl Learning {
    pub(crate) fn of(&mut self, osd: OsdId) -> Option<&mut Learner> {
        self.learners.iter_mut().find(|learner| learner.osd == osd)
    }

    pub(crate) fn of_session(&mut self, session: u32) -> Option<&mut Learner> {
        self.learners.iter_mut().find(|learner| learner.session == session)
    }

    pub(crate) fn forget(&mut self, osd: OsdId) {
        self.learners.retain(|learner| learner.osd != osd);
    }

    /// One is not tried again before then. The others are: one that is slow must not keep all from becoming whole.
    pub(crate) fn put_off(&mut self, osd: OsdId, until: Instant) {
        self.after.insert(osd, until);
    }

    /// Whether one may be tried now, for all that is known of how it went before.
    pub(crate) fn may_try(&self, osd: OsdId, now: Instant) -> bool {
        self.after.get(&osd).is_none_or(|after| now >= *after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learner(joined: Option<Joined>) -> Learner {
        Learner { osd: OsdId(1), link: LinkId(1), session: 1, heard_at: Instant::default(), joined }
    }

    fn joined(has_mark: bool, work: VecDeque<Work>) -> Joined {
        Joined { from: Sequence(5), has_mark, work, comparison: None, blocks_awaited: None, pushed: 0 }
    }

    #[test]
    fn a_learner_owes_an_answer_until_it_has_its_mark_and_all_pushes() {
        assert!(learner(None).is_owing());
        assert!(learner(Some(joined(false, VecDeque::new()))).is_owing());
        assert!(!learner(Some(joined(true, VecDeque::new()))).is_owing());
        assert!(learner(Some(Joined { pushed: 1, ..joined(true, VecDeque::new()) })).is_owing());
    }

    #[test]
    fn what_is_left_counts_ranges_by_their_bytes_and_objects_by_one() {
        let key = ObjectKey::default();
        let range = BlockRange { key, first_block: 0, block_count: 3 };
        let work = [Work::Range(range), Work::Object(key, Sequence(3)), Work::Reached(key)];
        let learner = learner(Some(joined(true, work.into())));
        assert_eq!(learner.left(), Some((2, 3 * BLOCK_BYTES as u64)));
        assert!(learner.receives(Sequence(5)) && !learner.receives(Sequence(4)));
    }

    #[test]
    fn a_learner_owes_whatever_it_was_asked_for() {
        let nothing = || joined(true, VecDeque::new());
        let comparison = |is_awaited| Comparison { own: VecDeque::new(), after: None, is_awaited };
        for is_awaited in [false, true] {
            let joined = Joined { comparison: Some(comparison(is_awaited)), ..nothing() };
            assert_eq!(learner(Some(joined)).is_owing(), is_awaited, "a page of its objects");
        }
        let blocks_awaited = Some((ObjectKey::default(), Sequence(0)));
        assert!(learner(Some(Joined { blocks_awaited, ..nothing() })).is_owing(), "what it has of one");
    }

    #[test]
    fn who_has_not_joined_receives_nothing_and_nobody_knows_what_it_lacks() {
        let asked = learner(None);
        assert!(!asked.receives(Sequence(u64::MAX)) && asked.left().is_none() && asked.pushed() == 0);
        let own = VecDeque::from([ObjectKey::default(); 3]);
        let comparison = Some(Comparison { own, after: None, is_awaited: false });
        let work = VecDeque::from([Work::Object(ObjectKey::default(), Sequence(1))]);
        let joined = learner(Some(Joined { comparison, pushed: 32, ..joined(true, work) }));
        assert_eq!((joined.left(), joined.pushed()), (Some((4, 0)), 32));
    }

    #[test]
    fn what_is_put_back_comes_next_if_it_is_anything() {
        let key = ObjectKey::default();
        let range = |block_count| BlockRange { key, first_block: 5, block_count };
        let mut joined = joined(true, VecDeque::from([Work::Reached(key)]));
        joined.put_back(range(1));
        joined.put_back(range(0));
        assert_eq!(joined.work, [Work::Range(range(1)), Work::Reached(key)]);
    }

    #[test]
    fn of_several_learners_each_is_found_and_forgotten_by_itself() {
        let of = |osd, session| Learner { osd: OsdId(osd), session, ..learner(None) };
        let mut learning = Learning { learners: vec![of(1, 7), of(2, 9), of(3, 8)], ..Learning::default() };
        assert_eq!(learning.of(OsdId(2)).map(|learner| learner.session), Some(9));
        assert_eq!(learning.of_session(8).map(|learner| learner.osd), Some(OsdId(3)));
        assert!(learning.of(OsdId(9)).is_none() && learning.of_session(2).is_none());
        learning.forget(OsdId(2));
        let left: Vec<OsdId> = learning.learners.iter().map(|learner| learner.osd).collect();
        assert_eq!(left, [OsdId(1), OsdId(3)]);
    }
}
