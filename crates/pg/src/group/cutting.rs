//! How far a primary is with what its group holds beyond the ends of volumes that were made smaller: see
//! [`crate::moves::cut`], which goes on with it.

use base::status::FlattenStatus;
use base::{CutId, Instant, LayerId};
use std::collections::BTreeMap;

/// The block in which a volume ends, if it ends within one: what lies behind the end there is zeroed.
#[derive(Clone, Copy, Debug)]
struct Tail {
    cut: CutId,
    /// All members have it.
    is_cut: bool,
    /// If what was begun comes to nothing, it is not begun again before then.
    again_at: Instant,
}

/// See the module's documentation. It holds for one epoch: another one begins by looking.
#[derive(Debug, Default)]
pub(crate) struct Cutting {
    /// See [`base::status::PgStatus::cut_through`].
    pub(crate) through: CutId,
    /// Nothing is left of what the newest map asks for.
    pub(crate) is_settled: bool,
    /// When the objects were last searched, no block lay beyond an end, and what was under way reached beyond the ends of these
    /// cuts. `None` if that is not so: they are to be searched.
    clear_but_for: Option<Vec<CutId>>,
    tails: BTreeMap<LayerId, Tail>,
    /// All objects were looked at in this epoch for what nobody sees ([`crate::moves::prune`]).
    pub(crate) was_swept: bool,
    /// Nothing is left that the removals of snapshots up to this one took out of everybody's sight.
    pub(crate) pruned_through: CutId,
    /// How far clones are with being flattened ([`crate::moves::flatten`]).
    pub(crate) flatten: FlattenStatus,
}

impl Cutting {
    /// A newer map may ask for more.
    pub(crate) fn is_asked_anew(&mut self) {
        (self.is_settled, self.clear_but_for) = (false, None);
    }

    /// A newer map asks for nothing.
    pub(crate) fn is_asked_nothing(&mut self) {
        let Cutting { was_swept, pruned_through, flatten, .. } = *self;
        *self = Cutting { was_swept, pruned_through, flatten, ..Cutting::default() };
    }

    /// Whether a search of the objects may find what the last one did not: something has ended since that reached beyond an
    /// end. `reached` are the cuts of whose ends that is so now.
    pub(crate) fn is_to_be_searched(&self, reached: &[CutId]) -> bool {
        self.clear_but_for.as_ref().is_none_or(|before| before.iter().any(|cut| !reached.contains(cut)))
    }

    /// The objects were searched. If no block lay beyond an end, these are the cuts behind whose ends something reached that
    /// was under way.
    pub(crate) fn was_searched(&mut self, clear_but_for: Option<Vec<CutId>>) {
        self.clear_but_for = clear_but_for;
    }

    /// Whether all members have the last block of a volume as that cut wants it.
    pub(crate) fn has_cut_tail(&self, layer: LayerId, cut: CutId) -> bool {
        self.tails.get(&layer).is_some_and(|tail| tail.cut == cut && tail.is_cut)
    }

    /// Whether it may be begun to cut the last block of a volume: not while that was begun a short while ago.
    pub(crate) fn may_cut_tail(&self, layer: LayerId, cut: CutId, now: Instant) -> bool {
        self.tails.get(&layer).is_none_or(|tail| tail.cut != cut || !tail.is_cut && now >= tail.again_at)
    }

    /// That is begun.
    pub(crate) fn begins_tail(&mut self, layer: LayerId, cut: CutId, again_at: Instant) {
        self.tails.insert(layer, Tail { cut, is_cut: false, again_at });
    }

    /// All members have it, or there is nothing.
    pub(crate) fn tail_is_cut(&mut self, layer: LayerId, cut: CutId) {
        self.tails.insert(layer, Tail { cut, is_cut: true, again_at: Instant::default() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_search_that_found_nothing_counts_until_what_reached_beyond_an_end_has_ended() {
        let mut cutting = Cutting::default();
        assert!(cutting.is_to_be_searched(&[]));
        cutting.was_searched(None);
        assert!(cutting.is_to_be_searched(&[]), "it found something, which is gone by now");
        cutting.was_searched(Some(vec![CutId(3), CutId(5)]));
        assert!(!cutting.is_to_be_searched(&[CutId(5), CutId(4), CutId(3)]));
        assert!(cutting.is_to_be_searched(&[CutId(5)]));
        cutting.was_searched(Some(Vec::new()));
        assert!(!cutting.is_to_be_searched(&[]) && !cutting.is_to_be_searched(&[CutId(3)]));
        cutting.is_asked_anew();
        assert!(cutting.is_to_be_searched(&[]));
    }

    #[test]
    fn the_end_of_another_cut_is_another_one() {
        let (volume, now) = (LayerId(1), Instant { nanoseconds: 1_000 });
        let later = now + Duration::from_secs(1);
        let mut cutting = Cutting::default();
        assert!(cutting.may_cut_tail(volume, CutId(3), now));
        cutting.begins_tail(volume, CutId(3), later);
        assert!(
            !cutting.may_cut_tail(volume, CutId(3), now) && cutting.may_cut_tail(volume, CutId(3), later)
        );
        assert!(cutting.may_cut_tail(volume, CutId(4), now), "the volume was made smaller once more");
        cutting.tail_is_cut(volume, CutId(3));
        assert!(cutting.has_cut_tail(volume, CutId(3)) && !cutting.may_cut_tail(volume, CutId(3), later));
        assert!(!cutting.has_cut_tail(volume, CutId(4)) && cutting.may_cut_tail(volume, CutId(4), now));
    }
}
