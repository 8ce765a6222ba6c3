//! Queries that came before the map that names their sender.
//!
//! Who claimed an epoch asks its members at once, and to those the map comes on a way of its own. So what is asked by an epoch
//! that the map does not show yet is neither obeyed nor refused: it is kept, and looked at again with the next map. What a link
//! brought that has ended counts no more then, and makes room before if none is left. Of a group the newest of each sender
//! counts, for whoever asks by one epoch has given up those before it.

use crate::links::Links;
use base::{LinkId, PgId};
use std::collections::BTreeMap;
use wire::Query;

/// Queries of one link that are kept. Whoever leads more groups asks about the others again when it has waited in vain.
const KEPT_MAX: usize = 4096;
/// The same of all links together.
const KEPT_ALL_MAX: usize = 16 * KEPT_MAX;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct KeptQueries {
    by_link: BTreeMap<LinkId, BTreeMap<PgId, Query>>,
    /// How many there are in all.
    count: usize,
}

impl KeptQueries {
    /// Keeps a query. False if too many are, or a newer one is.
    pub(super) fn keep(&mut self, links: &Links, link: LinkId, query: Query) -> bool {
        if self.count >= KEPT_ALL_MAX {
            self.by_link.retain(|link, _| links.get(*link).is_some());
            self.count = self.by_link.values().map(BTreeMap::len).sum();
        }
        let of_link = self.by_link.entry(link).or_default();
        if let Some(known) = of_link.get_mut(&query.pg) {
            let is_newer = query.epoch >= known.epoch;
            if is_newer {
                *known = query;
            }
            return is_newer;
        }
        let is_room = of_link.len() < KEPT_MAX && self.count < KEPT_ALL_MAX;
        if is_room {
            of_link.insert(query.pg, query);
            self.count += 1;
        }
        is_room
    }

    /// All that are kept, in the order of links and groups; none is from here on.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (LinkId, Query)> + use<> {
        let by_link = std::mem::take(self).by_link;
        by_link.into_iter().flat_map(|(link, queries)| queries.into_values().map(move |query| (link, query)))
    }

    /// Whether no more are kept than may be.
    ///
    /// # Errors
    /// What is beyond its bound.
    pub(crate) fn check_bounds(&self) -> Result<(), String> {
        let (mut most, mut in_all) = (0, 0);
        for queries in self.by_link.values() {
            (most, in_all) = (queries.len().max(most), in_all + queries.len());
        }
        if most > KEPT_MAX || in_all > KEPT_ALL_MAX || in_all != self.count {
            return Err(format!("{in_all} queries are kept ({} counted), {most} of one link", self.count));
        }
        Ok(())
    }

    /// How many are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::OsdLink;
    use base::{Epoch, Instant, OsdId, PoolId};

    const LINK: LinkId = LinkId(3);

    fn query(index: u32, epoch: u32) -> Query {
        Query { pg: PgId { pool: PoolId(1), index }, modulus: PgId::COUNT_MAX, epoch: Epoch(epoch) }
    }

    fn links(count: u32) -> Links {
        let mut links = Links::default();
        for osd in 0..count {
            let peer = OsdLink::new(OsdId(osd), None, Instant::default());
            links.insert_osd(LinkId(3 + u64::from(osd)), peer);
        }
        links
    }

    #[test]
    fn of_a_group_the_newest_query_of_a_link_is_kept() {
        let (mut kept, links) = (KeptQueries::default(), links(2));
        assert!(kept.keep(&links, LINK, query(1, 5)) && kept.keep(&links, LINK, query(1, 7)));
        assert!(!kept.keep(&links, LINK, query(1, 6)), "it is over by the word of its sender");
        let again = Query { modulus: 2, ..query(1, 7) };
        assert!(kept.keep(&links, LINK, again), "what it says last counts");
        assert!(kept.keep(&links, LINK, query(0, 2)) && kept.keep(&links, LinkId(4), query(1, 6)));
        let expected = [(LINK, query(0, 2)), (LINK, again), (LinkId(4), query(1, 6))];
        assert_eq!(kept.take().collect::<Vec<_>>(), expected);
        assert_eq!(kept.len(), 0);
    }

    #[test]
    fn nobody_has_queries_kept_without_end_and_none_outlasts_its_link() {
        let most = KEPT_MAX as u32;
        let (mut kept, mut links) = (KeptQueries::default(), links(17));
        for link in 0..16 {
            assert!((0..most).all(|index| kept.keep(&links, LinkId(3 + link), query(index, 5))));
            assert!(!kept.keep(&links, LinkId(3 + link), query(most, 5)));
        }
        assert!(kept.keep(&links, LINK, query(0, 6)), "a newer one takes no room");
        let last = LinkId(3 + 16);
        assert!(!kept.keep(&links, last, query(0, 5)), "others have it all");
        assert_eq!(kept.check_bounds(), Ok(()));
        links.forget(LINK);
        assert!(kept.keep(&links, last, query(0, 5)));
        assert_eq!(kept.len(), 15 * KEPT_MAX + 1);
    }

    /// So many queries of each of these links.
    fn of_links(counts: &[usize]) -> KeptQueries {
        let of_link = |count: &usize| -> BTreeMap<PgId, Query> {
            (0..*count as u32).map(|index| (query(index, 5).pg, query(index, 5))).collect()
        };
        let by_link = (3..).map(LinkId).zip(counts.iter().map(of_link)).collect();
        KeptQueries { by_link, count: counts.iter().sum() }
    }

    #[test]
    fn more_than_may_be_kept_or_than_are_counted_is_told_of() {
        for (counts, is_sound) in [
            (vec![1, KEPT_MAX, 2], true),
            (vec![1, KEPT_MAX + 1, 2], false),
            (vec![KEPT_MAX; 16], true),
            ([vec![KEPT_MAX; 16], vec![1]].concat(), false),
        ] {
            assert_eq!(of_links(&counts).check_bounds().is_ok(), is_sound, "{counts:?}");
        }
        for counted in [2, 4] {
            let kept = KeptQueries { count: counted, ..of_links(&[1, 2]) };
            assert!(kept.check_bounds().is_err(), "there are three");
        }
    }
}
