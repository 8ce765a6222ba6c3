//! What the OSDs of all processes told last, and what the processes logged, in the memory of the process that manages the cluster.
//!
//! - A process tells on a connection of its own ([`Line`]), first all, then what has changed ([`crate::reports`]). What it
//!   told stands for as long as it goes on telling, even if only that all is as before.
//! - What was not confirmed for [`STALE_AFTER`] is not shown: better nothing than what may have been over for long.
//! - A node tells of its own OSDs only, and can take no more memory than telling of every group there is would.
//! - Nothing is kept when the process is no longer the manager; the next one is told all anew.

use crate::log::{ClusterLog, LogLine, LogQuery, text_of};
use crate::reports::{OsdReport, Report};
use base::map::ClusterMap;
use base::status::{OsdStatus, PgState, PgStatus, Statuses};
use base::{NodeId, OsdId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long what was told is shown without being confirmed: as long as the registry takes an OSD for alive.
pub const STALE_AFTER: Duration = Duration::from_secs(6);
/// How long a new manager waits for all nodes to tell before it answers for those that did.
pub const GATHER_LIMIT: Duration = Duration::from_secs(3);
/// Placement groups that a node may tell of beyond those of the map, which may be older than what the node knows: as many as
/// a new pool can have.
const GROUPS_BEYOND_MAP_MAX: usize = 1 << 16;
/// The longest text that is kept, in bytes; what is behind is cut off.
const TEXT_BYTES_MAX: usize = 1024;
/// The most entries that are kept of a list.
const LIST_MAX: usize = 64;
/// The most removed pools that an OSD is heard to hold nothing of: the first ones, after which come others when these are gone.
const CLEARED_POOLS_MAX: usize = 4096;
/// The most placement groups that an OSD is heard to want a sound copy in: one for each block that it remembers as wanted.
const IN_WANT_MAX: usize = 4096;

/// Why a report is not taken.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody else is the manager.
    #[error("this process does not manage the cluster; the registry says who does")]
    NotManager,
    /// What was told before is not known here.
    #[error("what was told before is not known here; connect anew, and tell all of it")]
    Anew,
    /// The map does not show that OSD yet.
    #[error("{0} is not known here yet; try again in a moment")]
    NotYet(OsdId),
    /// An OSD of another node.
    #[error("{osd} is not of {node}, which tells of it; a node can tell of its own OSDs only")]
    NotIts {
        /// The OSD.
        osd: OsdId,
        /// Who told of it.
        node: NodeId,
    },
    /// More groups than there are.
    #[error("{node} tells of more placement groups than there are")]
    TooMuch {
        /// Who.
        node: NodeId,
    },
}

/// What is known of all OSDs at one moment.
#[derive(Clone, Debug)]
pub struct Heard {
    /// How those are that told it and confirmed it lately.
    pub statuses: Statuses,
    /// How long ago the one that was not confirmed the longest was confirmed.
    pub oldest: Duration,
    /// Whether every OSD that is up was heard, or there was time enough for it.
    pub is_complete: bool,
}

/// See the module's documentation. A clone is the same one.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    ledger: Arc<Mutex<Ledger>>,
}

/// What this process is to the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Term {
    /// One of those that are not the manager.
    #[default]
    None,
    /// It may be the manager before it hears that it is: whoever else hears of it first is heard.
    Stands,
    /// The manager.
    Manages { since: Instant },
}

#[derive(Debug, Default)]
struct Ledger {
    term: Term,
    /// The next line's number.
    next_line: u64,
    /// Those from here on were opened since it stands, or is the manager.
    first_line: u64,
    /// The open ones.
    lines: BTreeSet<u64>,
    nodes: BTreeMap<NodeId, BTreeMap<OsdId, Entry>>,
    log: ClusterLog,
}

#[derive(Debug)]
struct Entry {
    status: Arc<OsdStatus>,
    line: u64,
    confirmed: Instant,
}

/// The connection of a process that tells. What was told on it is forgotten in time when it ends.
#[derive(Debug)]
pub struct Line {
    collector: Collector,
    number: u64,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.collector.lock().lines.remove(&self.number);
    }
}

impl Collector {
    /// This process may be the manager from now on: others learn who is as soon as the registry has it, and what they tell at
    /// once is to be taken. [`Self::begin`] or [`Self::end`] follows.
    pub fn stand(&self) {
        let mut ledger = self.lock();
        ledger.term = Term::Stands;
        ledger.first_line = ledger.next_line;
    }

    /// This process is the manager from now on. What it was told since it stands counts.
    pub fn begin(&self, now: Instant) {
        let mut ledger = self.lock();
        if ledger.term != Term::Stands {
            ledger.first_line = ledger.next_line;
        }
        ledger.term = Term::Manages { since: now };
    }

    /// It is not the manager, or no longer.
    pub fn end(&self) {
        let mut ledger = self.lock();
        ledger.term = Term::None;
        ledger.nodes.clear();
        ledger.log.clear();
    }

    /// Whether it is.
    #[must_use]
    pub fn is_manager(&self) -> bool {
        self.lock().since().is_some()
    }

    /// Whether it takes reports: it is the manager, or may be it before it hears so.
    #[must_use]
    pub fn takes_reports(&self) -> bool {
        !matches!(self.lock().term, Term::None)
    }

    /// A process connected.
    #[must_use]
    pub fn line(&self) -> Line {
        let mut ledger = self.lock();
        let number = ledger.next_line;
        ledger.next_line += 1;
        ledger.lines.insert(number);
        Line { collector: self.clone(), number }
    }

    /// Takes what a process of `node` told.
    ///
    /// # Errors
    /// Why it is not taken. What the report says behind what was refused is not taken either, so the process must tell all
    /// anew, on another connection.
    pub fn take(
        &self,
        now: Instant,
        line: &Line,
        node: NodeId,
        map: &ClusterMap,
        report: Report,
    ) -> Result<(), Refusal> {
        let mut ledger = self.lock();
        if ledger.term == Term::None {
            return Err(Refusal::NotManager);
        }
        if line.number < ledger.first_line {
            return Err(Refusal::Anew);
        }
        if let Some(log) = report.log {
            ledger.log.take(node, log);
        }
        let osds = ledger.nodes.entry(node).or_default();
        for osd in report.ended {
            if osds.get(&osd).is_some_and(|entry| entry.line == line.number) {
                osds.remove(&osd);
            }
        }
        let mut reports = report.osds.into_iter();
        let taken = reports.try_for_each(|report| match map.osds.get(&report.osd) {
            None => Err(Refusal::NotYet(report.osd)),
            Some(info) if info.node != node => Err(Refusal::NotIts { osd: report.osd, node }),
            Some(_) => take_one(osds, now, line.number, report),
        });
        if taken.is_ok() {
            for entry in osds.values_mut().filter(|entry| entry.line == line.number) {
                entry.confirmed = now;
            }
        }
        // Of a report that is refused some was taken.
        let groups: usize = osds.values().map(|entry| entry.status.pgs.len()).sum();
        if groups > map.pgs.len() + GROUPS_BEYOND_MAP_MAX {
            ledger.nodes.remove(&node);
            return Err(Refusal::TooMuch { node });
        }
        taken
    }

    /// What is known now. None: this process is not the manager.
    #[must_use]
    pub fn heard(&self, now: Instant, map: &ClusterMap) -> Option<Heard> {
        let mut ledger = self.lock();
        let began = ledger.since()?;
        let Ledger { lines, nodes, .. } = &mut *ledger;
        let is_fresh = |entry: &Entry| now.duration_since(entry.confirmed) < STALE_AFTER;
        nodes.retain(|_, osds| {
            // Whose connection stands goes on from what it told, however long it was silent.
            osds.retain(|osd, entry| {
                (is_fresh(entry) || lines.contains(&entry.line)) && map.osds.contains_key(osd)
            });
            !osds.is_empty()
        });
        let fresh = || nodes.values().flatten().filter(|(_, entry)| is_fresh(entry));
        let statuses: Statuses = fresh().map(|(osd, entry)| (*osd, entry.status.clone())).collect();
        let oldest = fresh().map(|(_, entry)| now.duration_since(entry.confirmed)).max();
        let mut up = map.osds.iter().filter(|(_, info)| info.address.is_some());
        let is_complete =
            now.duration_since(began) >= GATHER_LIMIT || up.all(|(osd, _)| statuses.contains_key(osd));
        Some(Heard { statuses, oldest: oldest.unwrap_or_default(), is_complete })
    }

    /// What the processes logged, and the place behind the newest. None: this process is not the manager.
    #[must_use]
    pub fn log(&self, query: &LogQuery) -> Option<(u64, Vec<LogLine>)> {
        let ledger = self.lock();
        ledger.since().map(|_| ledger.log.lines(query))
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Whoever panicked while holding it left whole entries behind.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Since when this process is the manager, if it is.
    fn since(&self) -> Option<Instant> {
        match self.term {
            Term::Manages { since } => Some(since),
            Term::None | Term::Stands => None,
        }
    }
}

fn take_one(
    osds: &mut BTreeMap<OsdId, Entry>,
    now: Instant,
    line: u64,
    report: OsdReport,
) -> Result<(), Refusal> {
    if report.anew {
        let status = Arc::default();
        osds.insert(report.osd, Entry { status, line, confirmed: now });
    }
    let entry = osds.get_mut(&report.osd).filter(|entry| entry.line == line).ok_or(Refusal::Anew)?;
    let status = Arc::make_mut(&mut entry.status);
    if let Some(mut new) = report.status {
        cut(&mut new);
        new.pgs = std::mem::take(&mut status.pgs);
        *status = new;
    }
    for pg in report.pgs_gone {
        status.pgs.remove(&pg);
    }
    status.pgs.extend(report.pgs.into_iter().map(|(pg, mut group)| {
        cut_group(&mut group);
        (pg, group)
    }));
    Ok(())
}

/// Cuts off what is longer than anything that an OSD has to say.
fn cut(status: &mut OsdStatus) {
    status.lost.truncate(LIST_MAX);
    status.notes.truncate(LIST_MAX);
    status.cleared_pools.truncate(CLEARED_POOLS_MAX);
    status.in_want.truncate(IN_WANT_MAX);
    let reasons = [&mut status.failure, &mut status.start_refused].into_iter().flatten();
    status.notes.iter_mut().chain([&mut status.path]).chain(reasons).for_each(cut_text);
}

fn cut_group(group: &mut PgStatus) {
    group.in_sync.truncate(LIST_MAX);
    if let PgState::Waiting { reason } | PgState::Stopped { reason } = &mut group.state {
        cut_text(reason);
    }
}

fn cut_text(text: &mut String) {
    *text = text_of(text, TEXT_BYTES_MAX);
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::map::OsdInfo;
    use base::{Epoch, PgId, PoolId};

    const NODE: NodeId = NodeId(1);

    /// Two OSDs on each of two nodes, all up.
    fn map() -> ClusterMap {
        let mut map = ClusterMap::default();
        for osd in 0..4 {
            let address = Some(([127, 0, 0, 1], 7000 + osd as u16).into());
            map.osds.insert(OsdId(osd), OsdInfo { node: NodeId(osd / 2), address, ..OsdInfo::default() });
        }
        map
    }

    fn pg(index: u32) -> PgId {
        PgId { pool: PoolId(1), index }
    }

    fn group(reason: &str) -> PgStatus {
        let state = PgState::Waiting { reason: reason.to_owned() };
        let (epoch, cut_through, flatten) = (Epoch(1), Default::default(), Default::default());
        PgStatus { epoch, state, in_sync: vec![OsdId(2)], objects: 0, recovery: None, cut_through, flatten }
    }

    fn anew(osd: u32, used_bytes: u64) -> OsdReport {
        OsdReport {
            osd: OsdId(osd),
            anew: true,
            status: Some(OsdStatus { used_bytes, ..OsdStatus::default() }),
            pgs: BTreeMap::from([(pg(0), group("a")), (pg(1), group("b"))]),
            pgs_gone: vec![],
        }
    }

    fn change(osd: u32) -> OsdReport {
        OsdReport { osd: OsdId(osd), anew: false, status: None, pgs: BTreeMap::new(), pgs_gone: vec![] }
    }

    fn of(osds: Vec<OsdReport>) -> Report {
        Report { osds, ..Report::default() }
    }

    #[expect(clippy::disallowed_methods, reason = "there is no other way to a first moment")]
    fn begun() -> (Collector, Instant) {
        let (collector, now) = (Collector::default(), Instant::now());
        collector.begin(now);
        (collector, now)
    }

    #[test]
    fn what_is_told_piece_by_piece_amounts_to_all_of_it() {
        let ((collector, now), map) = (begun(), map());
        let line = collector.line();
        let tell = |report| collector.take(now, &line, NODE, &map, report);
        assert_eq!(tell(of(vec![anew(2, 5), anew(3, 6)])), Ok(()));
        let new = OsdStatus { used_bytes: 7, ..OsdStatus::default() };
        let pgs = BTreeMap::from([(pg(2), group("c"))]);
        assert_eq!(
            tell(of(vec![OsdReport { status: Some(new), pgs, pgs_gone: vec![pg(0)], ..change(2) }])),
            Ok(())
        );
        let heard = collector.heard(now, &map).unwrap();
        let expected = OsdStatus {
            used_bytes: 7,
            pgs: BTreeMap::from([(pg(1), group("b")), (pg(2), group("c"))]),
            ..OsdStatus::default()
        };
        assert_eq!(*heard.statuses[&OsdId(2)], expected);
        assert_eq!((heard.statuses.len(), heard.is_complete), (2, false));
        assert_eq!(tell(Report { ended: vec![OsdId(3)], ..Report::default() }), Ok(()));
        assert_eq!(collector.heard(now, &map).unwrap().statuses.len(), 1);
    }

    #[test]
    fn a_node_tells_of_its_own_osds_and_only_after_it_began() {
        let ((collector, now), map) = (begun(), map());
        let line = collector.line();
        let tell = |report| collector.take(now, &line, NODE, &map, report);
        let not_its = Err(Refusal::NotIts { osd: OsdId(1), node: NODE });
        assert_eq!(tell(of(vec![anew(1, 5)])), not_its);
        assert_eq!(
            tell(Report { osds: vec![anew(2, 1), anew(1, 5)], ended: vec![OsdId(0)], log: None }),
            not_its
        );
        assert_eq!(tell(of(vec![anew(9, 5)])), Err(Refusal::NotYet(OsdId(9))));
        assert_eq!(tell(of(vec![change(3)])), Err(Refusal::Anew));
        // What another connection told is not what this one's changes are about.
        let other = collector.line();
        assert_eq!(collector.take(now, &other, NODE, &map, of(vec![change(2)])), Err(Refusal::Anew));
        assert_eq!(
            collector.take(now, &other, NODE, &map, Report { ended: vec![OsdId(2)], ..Report::default() }),
            Ok(())
        );
        assert!(collector.heard(now, &map).unwrap().statuses.contains_key(&OsdId(2)));
    }

    #[test]
    fn no_node_takes_more_memory_than_all_groups_would() {
        let ((collector, now), map) = (begun(), map());
        let line = collector.line();
        let tell = |report| collector.take(now, &line, NODE, &map, report);
        let many = |osd, count: usize| OsdReport {
            pgs: (0..count as u32).map(|index| (pg(index), group(""))).collect(),
            ..anew(osd, 0)
        };
        assert_eq!(tell(of(vec![many(2, GROUPS_BEYOND_MAP_MAX)])), Ok(()));
        assert_eq!(tell(of(vec![many(3, 1)])), Err(Refusal::TooMuch { node: NODE }));
        assert!(collector.heard(now, &map).unwrap().statuses.is_empty());
        // Nor by reports whose end is refused.
        let refused = tell(of(vec![many(2, GROUPS_BEYOND_MAP_MAX + 1), anew(9, 0)]));
        assert_eq!(refused, Err(Refusal::TooMuch { node: NODE }));
        assert!(collector.heard(now, &map).unwrap().statuses.is_empty());
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let status = OsdStatus {
            path: long.clone(),
            failure: Some(long.clone()),
            start_refused: Some(long.clone()),
            notes: vec![long.clone(); LIST_MAX + 1],
            cleared_pools: vec![PoolId(1); CLEARED_POOLS_MAX + 1],
            in_want: vec![pg(0); IN_WANT_MAX + 1],
            ..OsdStatus::default()
        };
        let pgs =
            BTreeMap::from([(pg(0), PgStatus { in_sync: vec![OsdId(0); LIST_MAX + 1], ..group(&long) })]);
        assert_eq!(tell(of(vec![OsdReport { status: Some(status), pgs, ..anew(2, 0) }])), Ok(()));
        let heard = collector.heard(now, &map).unwrap();
        let status = &heard.statuses[&OsdId(2)];
        let is_cut = |text: &str| text.len() <= TEXT_BYTES_MAX && long.starts_with(text);
        assert!(is_cut(&status.path));
        let reasons = [&status.failure, &status.start_refused];
        assert!(reasons.iter().all(|reason| reason.as_deref().is_some_and(is_cut)));
        assert!(status.notes.len() == LIST_MAX && status.notes.iter().all(|note| is_cut(note)));
        assert_eq!((status.cleared_pools.len(), status.in_want.len()), (CLEARED_POOLS_MAX, IN_WANT_MAX));
        let group = &status.pgs[&pg(0)];
        assert_eq!(group.in_sync.len(), LIST_MAX);
        assert!(matches!(&group.state, PgState::Waiting { reason } if is_cut(reason)));
    }

    #[test]
    fn what_is_not_confirmed_is_not_shown_and_shown_again_when_it_is() {
        let ((collector, now), map) = (begun(), map());
        let line = collector.line();
        collector.take(now, &line, NODE, &map, of(vec![anew(2, 5), anew(3, 5)])).unwrap();
        let later = now + STALE_AFTER - Duration::from_millis(1);
        let heard = collector.heard(later, &map).unwrap();
        assert_eq!((heard.statuses.len(), heard.oldest, heard.is_complete), (2, later - now, true));
        let late = now + STALE_AFTER;
        assert!(collector.heard(late, &map).unwrap().statuses.is_empty());
        // It stood still, and goes on where it stopped.
        collector.take(late, &line, NODE, &map, Report::default()).unwrap();
        let heard = collector.heard(late, &map).unwrap();
        assert_eq!((heard.statuses.len(), heard.oldest), (2, Duration::ZERO));
        // Its connection broke: what it told stands until it had time to connect again.
        drop(line);
        assert_eq!(collector.heard(late, &map).unwrap().statuses.len(), 2);
        assert!(collector.heard(late + STALE_AFTER, &map).unwrap().statuses.is_empty());
        assert!(collector.lock().nodes.is_empty());
    }

    #[test]
    fn all_is_complete_when_every_osd_that_is_up_was_heard() {
        let ((collector, now), mut map) = (begun(), map());
        let line = collector.line();
        collector.take(now, &line, NODE, &map, of(vec![anew(2, 5), anew(3, 5)])).unwrap();
        assert!(!collector.heard(now, &map).unwrap().is_complete);
        for osd in 0..2 {
            map.osds.get_mut(&OsdId(osd)).unwrap().address = None;
        }
        assert!(collector.heard(now, &map).unwrap().is_complete);
    }

    #[test]
    fn nothing_outlives_the_end_of_being_the_manager() {
        let ((collector, now), map) = (begun(), map());
        let line = collector.line();
        let tell = |line: &Line| collector.take(now, line, NODE, &map, of(vec![anew(2, 5)]));
        tell(&line).unwrap();
        collector.end();
        assert!(collector.heard(now, &map).is_none() && !collector.is_manager());
        assert_eq!(tell(&line), Err(Refusal::NotManager));
        collector.begin(now);
        assert_eq!(tell(&line), Err(Refusal::Anew), "it may have told changes meanwhile that nobody took");
        tell(&collector.line()).unwrap();
        assert_eq!(collector.heard(now, &map).unwrap().statuses.len(), 1);
    }

    #[test]
    fn who_hears_first_that_a_process_is_the_manager_is_heard_and_one_that_is_not_elected_keeps_nothing() {
        let ((_, now), map) = (begun(), map());
        let collector = Collector::default();
        let tell = |line: &Line| collector.take(now, line, NODE, &map, of(vec![anew(2, 5)]));
        let early = collector.line();
        assert_eq!(tell(&early), Err(Refusal::NotManager));
        collector.stand();
        assert_eq!(tell(&early), Err(Refusal::Anew), "what it told before was not taken");
        let line = collector.line();
        tell(&line).unwrap();
        // It tells nobody anything before it knows that it is the manager.
        assert!(collector.heard(now, &map).is_none() && !collector.is_manager());
        // All have as long as ever to tell, however long the election took.
        let later = now + GATHER_LIMIT;
        collector.begin(later);
        let heard = collector.heard(later, &map).unwrap();
        assert_eq!((heard.statuses.len(), heard.is_complete), (1, false));
        collector.take(later, &line, NODE, &map, Report::default()).expect("the line goes on");
        collector.end();
        collector.stand();
        tell(&collector.line()).unwrap();
        collector.end();
        assert_eq!(tell(&collector.line()), Err(Refusal::NotManager));
        collector.begin(later);
        assert!(collector.heard(later, &map).unwrap().statuses.is_empty());
    }
}
