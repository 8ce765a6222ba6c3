//! What the members of a group may differ in, as their logs tell.
//!
//! Pure functions of where the members stand ([`MemberPosition`]).

use crate::block_set::BlockSet;
use crate::group::position::{Difference, MemberPosition, range_of};
use base::log_entry::{MEND, REPAIR, UNDONE, name_of};
use base::{BlockRange, Epoch, LayerId, LogEntry, OsdId, PgId, Sequence};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// A member whose log does not reach into those of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    pub(crate) osd: OsdId,
    pub(crate) last_sequence: Sequence,
    pub(crate) window_start: Sequence,
}

/// Who of the members shall lead instead of the last of them, which would undo what its log lacks.
///
/// Where the end of a log rotted before its OSD started, the log just seems to end earlier. So who was in an epoch since
/// it started knows better what was done than who was not. If nobody was, whose log goes furthest has lost least: by what
/// was ordered while an epoch served, for who had that had all before it. The mark of an epoch that never served, or its
/// first repairs, may have gone to a member that lacks the rest.
pub(crate) fn who_lacks_less(members: &[MemberPosition]) -> Option<OsdId> {
    let end = |member: &MemberPosition| {
        let at = |entry: &LogEntry| (entry.epoch, entry.sequence);
        let served = member.entries.iter().rev().find(|entry| tells_agreement(entry)).map(at);
        let last = member.entries.last().map(at);
        (!member.may_lack_tail, served, last.unwrap_or((Epoch(0), member.last_sequence)))
    };
    let (own, others) = members.split_last()?;
    let best = others.iter().reduce(|best, other| if end(other) > end(best) { other } else { best })?;
    let lacks_less = own.may_lack_tail && end(best) > end(own);
    lacks_less.then_some(best.osd)
}

/// Whether an entry was ordered while its epoch served: when all members agreed on everything before it.
fn tells_agreement(entry: &LogEntry) -> bool {
    !entry.is_mark() && !entry.is_repair()
}

/// The newest entry that all members have and that tells that they agreed on everything before it. Members apply
/// what they get in order and without a gap, so whoever has it had been in agreement.
pub(crate) fn agreement(members: &[MemberPosition]) -> Option<Sequence> {
    let (first, others) = members.split_first()?;
    let names = |member: &MemberPosition| -> BTreeSet<(Sequence, Epoch)> {
        member.entries.iter().map(|entry| (entry.sequence, entry.epoch)).collect()
    };
    let others: Vec<_> = others.iter().map(names).collect();
    let is_common =
        |entry: &&LogEntry| others.iter().all(|other| other.contains(&(entry.sequence, entry.epoch)));
    let entries = first.entries.iter().rev();
    entries.filter(|entry| tells_agreement(entry)).find(is_common).map(|entry| entry.sequence)
}

/// The repairs of a range that bring a member's content: a write that its log has is done, one that it lacks is undone.
pub(crate) fn as_told_by(
    member: &MemberPosition,
    difference: Difference,
) -> impl Iterator<Item = Difference> + use<> {
    let Difference { range, origin } = difference;
    let (name, mend) = (name_of(origin), origin & MEND);
    let runs = done_runs(member.entries.iter().copied(), &range, name);
    runs.into_iter().map(move |(first_block, block_count, was_done)| {
        let undone = if name != 0 && !was_done { UNDONE } else { 0 };
        let origin = name | REPAIR | mend | undone;
        Difference { range: BlockRange { first_block, block_count, ..range }, origin }
    })
}

/// The blocks whose content members may disagree about: those touched by log entries that not all have. Entries from
/// before a split may be of the other half: they tell of agreement, and of nothing to repair.
///
/// # Errors
/// When a member's log ends before another's begins: its gap is larger than a log can tell.
pub(crate) fn differences(
    pg: PgId,
    modulus: u32,
    members: &[MemberPosition],
) -> Result<VecDeque<Difference>, Behind> {
    // Entries before this sequence are gone from some log; every member must reach up to it.
    let logs_begin = members.iter().map(|member| member.log_begins).max().unwrap_or_default();
    let window_start = agreement(members).map_or(logs_begin, Sequence::next);
    if let Some(behind) = members.iter().find(|member| member.last_sequence.next() < window_start) {
        let (osd, last_sequence) = (behind.osd, behind.last_sequence);
        return Err(Behind { osd, last_sequence, window_start });
    }
    let mut holders: BTreeMap<(Sequence, Epoch), (LogEntry, usize)> = BTreeMap::new();
    for member in members {
        let mut seen = BTreeSet::new();
        for entry in member.entries.iter().filter(|entry| entry.sequence >= window_start) {
            if seen.insert((entry.sequence, entry.epoch)) {
                holders.entry((entry.sequence, entry.epoch)).or_insert((*entry, 0)).1 += 1;
            }
        }
    }
    let ranges: BTreeSet<Difference> = holders
        .into_values()
        .filter(|(entry, count)| *count < members.len() && !entry.is_mark())
        .filter(|(entry, _)| pg.holds(modulus, entry.layer, entry.object))
        .map(|(entry, _)| {
            let mend = if entry.is_mend() { MEND } else { 0 };
            Difference { range: range_of(pg, &entry), origin: name_of(entry.origin) | mend }
        })
        .collect();
    let words: Vec<Words> = members.iter().map(words_of).collect();
    // What only mends differ in comes last: then they bring what all have agreed on, as they did before.
    let (mends, writes): (Vec<_>, Vec<_>) = ranges.into_iter().partition(|range| range.origin & MEND != 0);
    Ok(writes.into_iter().chain(mends).flat_map(|range| unsettled(&words, range)).collect())
}

/// What a member's log says of each write that has a name, by volume, object and name, oldest first.
type Words = BTreeMap<(LayerId, u32, u64), Vec<LogEntry>>;

fn words_of(member: &MemberPosition) -> Words {
    let mut words = Words::new();
    for entry in member.entries.iter().filter(|entry| !entry.is_mark()) {
        words.entry((entry.layer, entry.object, name_of(entry.origin))).or_default().push(*entry);
    }
    words
}

/// The parts of a range on which the members' newest words of its write differ. Where all have the same, an epoch that
/// began since made them agree: its repair brought everybody the same content, whatever they had before.
fn unsettled(words: &[Words], difference: Difference) -> Vec<Difference> {
    let Difference { range, origin } = difference;
    let (key, name) = (range.key, name_of(origin));
    if name == 0 {
        return vec![difference];
    }
    let of_member = |words: &Words| {
        let entries = words.get(&(key.layer, key.object, name)).map_or(&[][..], Vec::as_slice);
        newest_words(entries.iter().rev().copied(), &range, |entry| (entry.sequence, entry.epoch))
    };
    let words: Vec<Vec<Option<(Sequence, Epoch)>>> = words.iter().map(of_member).collect();
    let differ = |block: u16| {
        let mut newest = words.iter().map(|words| words[usize::from(block - range.first_block)]);
        let first = newest.next().flatten();
        first.is_none() || newest.any(|other| other != first)
    };
    let runs = runs_alike(range.blocks(), differ).into_iter().filter(|(.., differs)| *differs);
    runs.map(|(first_block, block_count, _)| Difference {
        range: BlockRange { first_block, block_count, ..range },
        origin,
    })
    .collect()
}

/// What a log says of a write: of blocks that are in neither it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// It was done there.
    pub(crate) done: BlockSet,
    /// What was done there was undone.
    pub(crate) undone: BlockSet,
}

/// What a group's log, oldest entry first, says of the write that its client calls `name`, of the blocks of a range. Members agree
/// on a write run by run, and whoever leads may change in between: so each block has its own answer, that of the newest entry
/// about it. Nothing of that write is in flight. Entries are within an object: whoever reads them from a drive or a message checks
/// that.
pub(crate) fn told_of(log: impl DoubleEndedIterator<Item = LogEntry>, range: &BlockRange, name: u64) -> Told {
    let mut told = Told::default();
    // What has no name is in no log.
    let mut untold = if name == 0 { BlockSet::default() } else { BlockSet::of(range.blocks()) };
    let mut newest_first = log.rev();
    while !untold.is_empty()
        && let Some(entry) = newest_first.find(|entry| entry.is_of(&range.key, name))
    {
        let news = BlockSet::of(entry.first_block..entry.end()).and(untold);
        let of_this_kind = if entry.origin & UNDONE == 0 { &mut told.done } else { &mut told.undone };
        *of_this_kind = of_this_kind.or(news);
        untold = untold.without(news);
    }
    told
}

/// What entries, the newest first, say of each block of a range: of those that cover it the newest has the word. One name may be
/// that of a whole log of writes of a whole object: so entries are gone through once, and none is looked at for a block of which
/// a newer one told.
fn newest_words<T: Copy>(
    entries: impl Iterator<Item = LogEntry>,
    range: &BlockRange,
    word: impl Fn(&LogEntry) -> T,
) -> Vec<Option<T>> {
    let count = usize::from(range.block_count);
    let mut words = vec![None; count];
    // From each block on, one before the first of which nothing was said yet, or that one; it gets closer by being asked.
    let mut untold: Vec<usize> = (0..=count).collect();
    let first_untold = |untold: &mut [usize], from: usize| {
        let mut at = from;
        while untold[at] != at {
            untold[at] = untold[untold[at]];
            at = untold[at];
        }
        at
    };
    for entry in entries {
        if first_untold(&mut untold, 0) == count {
            break;
        }
        let first = usize::from(entry.first_block).saturating_sub(range.first_block.into());
        let end = usize::from(entry.end()).saturating_sub(range.first_block.into()).min(count);
        let mut at = first_untold(&mut untold, first.min(count));
        while at < end {
            words[at] = Some(word(&entry));
            untold[at] = at + 1;
            at = first_untold(&mut untold, at + 1);
        }
    }
    words
}

/// Of which blocks a member's log says that a write was done, in runs: `(block, block count, was_done)`.
fn done_runs(
    log: impl DoubleEndedIterator<Item = LogEntry>,
    range: &BlockRange,
    name: u64,
) -> Vec<(u16, u16, bool)> {
    let told = told_of(log, range, name);
    runs_alike(range.blocks(), |block| told.done.contains(block))
}

/// Blocks in runs of which the same is true: `(block, block count, what)`.
pub(crate) fn runs_alike<T: PartialEq>(blocks: Range<u16>, what: impl Fn(u16) -> T) -> Vec<(u16, u16, T)> {
    let mut runs: Vec<(u16, u16, T)> = Vec::new();
    for block in blocks {
        let what = what(block);
        match runs.last_mut() {
            Some((_, count, last)) if *last == what => *count += 1,
            _ => runs.push((block, 1, what)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{OBJECT_BLOCKS, ObjectKey, PoolId};

    fn entry(epoch: u32, sequence: u64, block: u16) -> LogEntry {
        LogEntry {
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            layer: LayerId(1),
            object: 0,
            first_block: block,
            block_count: 1,
            origin: 0,
        }
    }

    fn member(osd: u32, is_whole: bool, entries: &[LogEntry]) -> MemberPosition {
        let last_sequence = entries.last().map_or(Sequence(0), |entry| entry.sequence);
        let first = entries.first().map_or(Sequence(0), |entry| entry.sequence);
        MemberPosition {
            osd: OsdId(osd),
            last_sequence,
            log_begins: if is_whole { Sequence(0) } else { first },
            is_incomplete: false,
            may_lack_tail: false,
            entries: entries.to_vec(),
        }
    }

    fn blocks(members: &[MemberPosition]) -> Result<Vec<u16>, Behind> {
        let pg = PgId { pool: PoolId(1), index: 0 };
        Ok(differences(pg, 1, members)?.into_iter().map(|difference| difference.range.first_block).collect())
    }

    #[test]
    fn members_that_agree_need_no_repair() {
        let log = [entry(1, 1, 10), entry(1, 2, 11)];
        assert_eq!(blocks(&[member(0, true, &log), member(1, true, &log)]), Ok(vec![]));
    }

    #[test]
    fn what_one_lacks_and_what_one_has_beyond_are_both_repaired() {
        let common = [entry(1, 1, 10)];
        let ahead = [entry(1, 1, 10), entry(1, 2, 11)];
        let diverged = [entry(1, 1, 10), entry(2, 2, 12)];
        let members = [member(0, true, &common), member(1, true, &ahead), member(2, true, &diverged)];
        assert_eq!(blocks(&members), Ok(vec![11, 12]));
    }

    #[test]
    fn what_two_of_three_have_is_a_difference_and_what_one_says_twice_counts_once() {
        let log = [entry(1, 1, 10), entry(1, 2, 11)];
        let twice = [log[0], log[1], log[1]];
        for members in [
            [member(0, true, &log), member(1, true, &log), member(2, true, &log[..1])],
            [member(0, true, &log), member(1, true, &twice), member(2, true, &log[..1])],
            [member(0, true, &log[..1]), member(1, true, &twice), member(2, true, &log)],
        ] {
            assert_eq!(blocks(&members), Ok(vec![11]));
        }
        // The same of a write that has a name: the first two have the same word of it, and it is a difference all the same.
        let named = [log[0], LogEntry { origin: 7, ..log[1] }];
        let last = LogEntry { origin: 7 | REPAIR, ..entry(2, 4, 11) };
        let repaired = [named[0], named[1], last];
        for members in [
            [member(0, true, &named), member(1, true, &named), member(2, true, &repaired)],
            [member(0, true, &named), member(1, true, &named), member(2, true, &named[..1])],
        ] {
            assert_eq!(blocks(&members), Ok(vec![11]));
        }
    }

    #[test]
    fn what_all_have_behind_their_agreement_and_marks_are_nothing_to_repair() {
        let common = entry(1, 1, 10);
        let repair = LogEntry { origin: REPAIR, ..entry(2, 3, 14) };
        let mark = LogEntry { block_count: 0, ..entry(2, 2, 0) };
        let all = [common, mark, repair];
        assert_eq!(blocks(&[member(0, true, &all), member(1, true, &all)]), Ok(vec![]));
        assert_eq!(blocks(&[member(0, true, &all), member(1, true, &all[..2])]), Ok(vec![14]));
        assert_eq!(blocks(&[member(0, true, &all[..2]), member(1, true, &all[..1])]), Ok(vec![]));
    }

    #[test]
    fn a_write_without_a_name_is_not_settled_by_what_another_one_brought() {
        let common = entry(1, 1, 9);
        let nameless = entry(1, 2, 10);
        let repair = LogEntry { origin: REPAIR, ..entry(2, 4, 10) };
        let members = [member(0, true, &[common, nameless, repair]), member(1, true, &[common, repair])];
        assert_eq!(blocks(&members), Ok(vec![10]));
    }

    #[test]
    fn entries_that_left_a_log_are_not_taken_for_differences() {
        let long: Vec<_> = (1..=20).map(|sequence| entry(1, sequence, sequence as u16)).collect();
        assert_eq!(blocks(&[member(0, false, &long[5..]), member(1, true, &long)]), Ok(vec![]));
        assert_eq!(blocks(&[member(0, false, &long[5..19]), member(1, false, &long[8..])]), Ok(vec![20]));
    }

    #[test]
    fn a_member_beyond_the_reach_of_the_log_stops_the_group() {
        let long: Vec<_> = (1..=20).map(|sequence| entry(1, sequence, sequence as u16)).collect();
        let behind = blocks(&[member(0, false, &long[10..]), member(1, true, &[])]).unwrap_err();
        assert_eq!((behind.osd, behind.window_start), (OsdId(1), Sequence(11)));
    }

    #[test]
    fn what_an_epoch_made_the_same_everywhere_is_no_difference_any_more() {
        // One member never had the write; an epoch began, and its repair was the same on both. Then came another write of
        // the same block, which one has: that is all they differ in, and its repair tells of both content and write.
        let first = LogEntry { origin: 7, ..entry(1, 2, 10) };
        let repair = LogEntry { origin: 7 | REPAIR | UNDONE, ..entry(2, 4, 10) };
        let second = LogEntry { origin: 8, ..entry(2, 5, 10) };
        let had = [entry(1, 1, 9), first, repair, second];
        let lacked = [entry(1, 1, 9), repair];
        let members = [member(0, true, &had), member(1, true, &lacked)];
        let pg = PgId { pool: PoolId(1), index: 0 };
        let found = differences(pg, 1, &members).unwrap();
        assert_eq!(
            found
                .iter()
                .map(|difference| (difference.range.first_block, difference.origin))
                .collect::<Vec<_>>(),
            [(10, 8)]
        );
        // Before that repair was on both, the write was a difference. A part of it that only one repaired is one still.
        let wide = LogEntry { block_count: 3, ..first };
        let of_one = LogEntry { origin: 7 | REPAIR, ..entry(2, 5, 11) };
        let members = [
            member(0, true, &[entry(1, 1, 9), wide, repair, of_one]),
            member(1, true, &[entry(1, 1, 9), repair]),
        ];
        let found = differences(pg, 1, &members).unwrap();
        let parts: Vec<_> = found
            .iter()
            .map(|difference| (difference.range.first_block, difference.range.block_count))
            .collect();
        assert_eq!(parts, [(11, 2), (11, 1)]);
    }

    #[test]
    fn what_only_mends_differ_in_is_mended_once_more_when_all_else_agrees() {
        let common = [entry(1, 1, 9)];
        let mend = LogEntry { origin: REPAIR | MEND, ..entry(1, 2, 10) };
        let write = LogEntry { origin: 7, ..entry(1, 3, 10) };
        let members = [member(0, true, &[common[0], mend, write]), member(1, true, &common)];
        let found = differences(PgId { pool: PoolId(1), index: 0 }, 1, &members).unwrap();
        assert_eq!(found.iter().map(|difference| difference.origin).collect::<Vec<_>>(), [7, MEND]);
        // Wherever they lie.
        let mend = LogEntry { first_block: 5, ..mend };
        let members = [member(0, true, &[common[0], mend, write]), member(1, true, &common)];
        assert_eq!(blocks(&members), Ok(vec![10, 5]));
    }

    #[test]
    fn a_repair_tells_what_the_log_of_the_content_tells() {
        let key = ObjectKey { pg: PgId { pool: PoolId(1), index: 0 }, layer: LayerId(1), object: 0 };
        let range = BlockRange { key, first_block: 10, block_count: 2 };
        let told = |entries: &[LogEntry], origin| -> Vec<(u16, u64)> {
            let parts = as_told_by(&member(0, true, entries), Difference { range, origin });
            parts.map(|part| (part.range.first_block, part.origin)).collect()
        };
        let write = LogEntry { origin: 7, block_count: 2, ..entry(1, 1, 10) };
        assert_eq!(told(&[write], 7), [(10, 7 | REPAIR)]);
        assert_eq!(told(&[write], 8), [(10, 8 | REPAIR | UNDONE)]);
        let undone = LogEntry { origin: 7 | REPAIR | UNDONE, ..entry(2, 2, 11) };
        assert_eq!(told(&[write], MEND), [(10, REPAIR | MEND)]);
        assert_eq!(told(&[write, undone], 7), [(10, 7 | REPAIR), (11, 7 | REPAIR | UNDONE)]);
        assert_eq!(told(&[write], 0), [(10, REPAIR)], "a write without a name is never told undone");
        // What was told before counts no more: another member's content is told by that one's log.
        assert_eq!(told(&[write], 7 | REPAIR | UNDONE), [(10, 7 | REPAIR)]);
    }

    #[test]
    fn of_each_block_the_newest_entry_about_it_has_the_word() {
        let key = ObjectKey { pg: PgId { pool: PoolId(1), index: 0 }, layer: LayerId(1), object: 0 };
        let of = |sequence, blocks: Range<u16>, origin| LogEntry {
            origin,
            block_count: blocks.end - blocks.start,
            ..entry(1, sequence, blocks.start)
        };
        let log = [
            of(1, 0..100, 7),
            of(2, 20..40, 7 | REPAIR | UNDONE),
            of(3, 30..200, 8),
            LogEntry { object: 1, ..of(4, 0..100, 7) },
            of(5, 35..50, 7 | REPAIR),
            of(6, 90..OBJECT_BLOCKS as u16, 7),
        ];
        let told = |first_block, block_count, name| {
            told_of(log.iter().copied(), &BlockRange { key, first_block, block_count }, name)
        };
        let is = |blocks: Range<u16>| BlockSet::of(blocks);
        let undone = is(20..35);
        assert_eq!(
            told(0, OBJECT_BLOCKS as u16, 7),
            Told { done: is(0..OBJECT_BLOCKS as u16).without(undone), undone }
        );
        assert_eq!(told(10, 20, 7), Told { done: is(10..20), undone: is(20..30) });
        assert_eq!(told(10, 40, 8), Told { done: is(30..50), undone: is(0..0) });
        assert_eq!(told(0, 100, 0), Told::default());
        assert_eq!(told(0, 100, 9), Told::default());
    }

    #[test]
    fn what_a_log_says_of_a_write_is_found_in_one_walk_however_many_entries_have_its_name() {
        let key = ObjectKey { pg: PgId { pool: PoolId(1), index: 0 }, layer: LayerId(1), object: 0 };
        let whole = BlockRange::whole(key);
        let last = whole.block_count - 1;
        // All but the last block, of which only the oldest entry tells; and the first blocks only.
        let wide = |sequence: u64| LogEntry { origin: 7, block_count: last, ..entry(1, sequence, 0) };
        let narrow = |sequence: u64| LogEntry { origin: 7, ..entry(1, sequence, sequence as u16 % 8) };
        let oldest = LogEntry { origin: 7, ..entry(1, 0, last) };
        for of_name in [&wide as &dyn Fn(u64) -> LogEntry, &narrow] {
            let log: Vec<LogEntry> = std::iter::once(oldest).chain((1..=1024).map(of_name)).collect();
            let (looked_at, told) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
            let newest_first = log.iter().rev().copied().inspect(|_| looked_at.set(looked_at.get() + 1));
            let words = newest_words(newest_first, &whole, |entry| {
                told.set(told.get() + 1);
                entry.sequence
            });
            assert!(looked_at.get() <= log.len() && told.get() <= usize::from(whole.block_count));
            let is_newest = |block: u16| {
                let newest = log.iter().rev().find(|entry| entry.covers(block));
                words[usize::from(block)] == newest.map(|entry| entry.sequence)
            };
            assert!(whole.blocks().all(is_newest));
        }
        // Of a part of the object, and of entries that begin before it and end behind it.
        let part = BlockRange { first_block: 4, block_count: 4, key };
        let entries = [(2, 3), (6, 9), (5, 1), (9, 1), (0, 1), (0, 0)];
        let log = entries.map(|(block, block_count): (u16, u16)| LogEntry {
            block_count,
            ..entry(1, block.into(), block)
        });
        let words = newest_words(log.iter().rev().copied(), &part, |entry| entry.sequence.0);
        assert_eq!(words, [Some(2), Some(5), Some(6), Some(6)]);
    }

    #[test]
    fn whose_log_may_have_lost_its_end_lets_another_lead_that_knows_more() {
        let log = [entry(1, 1, 10), entry(1, 2, 11)];
        let restarted =
            |osd, entries: &[LogEntry]| MemberPosition { may_lack_tail: true, ..member(osd, true, entries) };
        let went_on = member(1, true, &log);
        assert_eq!(who_lacks_less(&[went_on.clone(), restarted(0, &log[..1])]), Some(OsdId(1)));
        // The later epoch began with what the one that went on has.
        let marked = [entry(1, 1, 10), entry(2, 3, 12)];
        assert_eq!(who_lacks_less(&[went_on.clone(), restarted(0, &marked)]), Some(OsdId(1)));
        assert_eq!(who_lacks_less(&[restarted(1, &log), restarted(0, &log[..1])]), Some(OsdId(1)));
        assert_eq!(
            who_lacks_less(&[restarted(1, &log), restarted(2, &marked), restarted(0, &log)]),
            Some(OsdId(2))
        );
        // Whichever of them comes first; of those who know the same it is the first.
        assert_eq!(
            who_lacks_less(&[restarted(2, &marked), restarted(1, &log), restarted(0, &log)]),
            Some(OsdId(2))
        );
        assert_eq!(
            who_lacks_less(&[restarted(2, &log), restarted(1, &log), restarted(0, &log[..1])]),
            Some(OsdId(2))
        );
        // The mark of an epoch that did not get far says nothing of what went before.
        let mark = LogEntry { block_count: 0, ..entry(2, 3, 0) };
        let repair = LogEntry { origin: REPAIR, ..entry(2, 4, 10) };
        let claimed = [log[0], mark, repair];
        assert_eq!(who_lacks_less(&[restarted(1, &log), restarted(0, &claimed)]), Some(OsdId(1)));
        assert_eq!(who_lacks_less(&[restarted(1, &claimed), restarted(0, &log)]), None);
        assert_eq!(who_lacks_less(&[restarted(1, &log), restarted(0, &log)]), None);
        assert_eq!(who_lacks_less(&[went_on, member(0, true, &log[..1])]), None);
        assert_eq!(who_lacks_less(&[restarted(0, &log)]), None);
    }

    #[test]
    fn a_common_entry_tells_agreement_unless_it_repaired_something() {
        let common = [entry(1, 1, 10), entry(1, 2, 11)];
        let forked: Vec<_> = common.iter().copied().chain([entry(1, 3, 12)]).collect();
        let went_on: Vec<_> = common.iter().copied().chain([entry(2, 3, 13)]).collect();
        let members = [member(0, true, &forked), member(1, true, &went_on)];
        assert_eq!(agreement(&members), Some(Sequence(2)));
        assert_eq!(blocks(&members), Ok(vec![12, 13]));
        // The same numbers, and nothing in common: which writes went before cannot be told.
        assert_eq!(agreement(&[member(0, false, &forked[2..]), member(1, false, &went_on[2..])]), None);
        let repair = LogEntry { origin: REPAIR, ..entry(2, 4, 14) };
        assert_eq!(agreement(&[member(0, false, &[repair]), member(1, false, &[repair])]), None);
    }
}
