//! Whose requests are handled next.
//!
//! Clients share an OSD's thread by tenant: all connections of a key are one. In each turn each tenant that sent something gets
//! the same part of [`TURN_MAX`]; what is not handled by then waits for the next turn, in which those begin who came last or
//! not at all. So a turn is short whatever is sent, and who floods an OSD, by however many connections, waits for itself. What
//! had to wait for memory or room is presented again before what came after it, a few at a time ([`crate::stalled`]).

use crate::stalled::Stalled;
use base::Tenant;
use std::collections::VecDeque;
use std::time::Duration;

/// How long clients are handled in a turn: what else happened meanwhile, and other OSDs with their leases, wait for so long.
const TURN_MAX: Duration = Duration::from_millis(1);

/// What a tenant's connections brought.
#[derive(Debug)]
struct Line<C> {
    /// They brought something, or were handled for as long as one may be, in order.
    fresh: VecDeque<C>,
    stalled: Stalled<C>,
    is_in_order: bool,
}

impl<C> Default for Line<C> {
    fn default() -> Line<C> {
        Line { fresh: VecDeque::new(), stalled: Stalled::default(), is_in_order: false }
    }
}

impl<C> Line<C> {
    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.stalled.due() == 0
    }
}

/// How far a turn is.
#[derive(Debug, Default)]
struct Turn {
    /// How many tenants may still have a part of it.
    tenants: usize,
    part: Duration,
    /// How much of the turn is over when the present tenant's part is.
    until: Duration,
    /// How many of that one's connections are still to be presented again.
    due: usize,
}

/// See the module's documentation. Its lists keep their memory.
#[derive(Debug)]
pub(crate) struct Rounds<C> {
    /// By tenant.
    lines: Vec<Line<C>>,
    /// Tenants with something in their lines, the next one first.
    order: VecDeque<Tenant>,
    turn: Turn,
}

impl<C> Default for Rounds<C> {
    fn default() -> Rounds<C> {
        Rounds { lines: Vec::new(), order: VecDeque::new(), turn: Turn::default() }
    }
}

impl<C> Rounds<C> {
    /// A connection brought something, or has more.
    pub(crate) fn push(&mut self, tenant: Tenant, connection: C) {
        self.line(tenant).fresh.push_back(connection);
    }

    /// What a connection brought cannot be handled yet.
    pub(crate) fn push_stalled(&mut self, tenant: Tenant, connection: C) {
        self.line(tenant).stalled.push(connection);
    }

    fn line(&mut self, tenant: Tenant) -> &mut Line<C> {
        if self.lines.len() <= tenant.index() {
            self.lines.resize_with(tenant.index() + 1, Line::default);
        }
        let line = &mut self.lines[tenant.index()];
        if !std::mem::replace(&mut line.is_in_order, true) {
            self.order.push_back(tenant);
        }
        line
    }

    /// Whether nobody is to be handled.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A turn begins.
    pub(crate) fn begin(&mut self) {
        let tenants = self.order.len();
        let part = TURN_MAX / tenants.max(1) as u32;
        self.turn = Turn { tenants, part, until: part, due: self.due_first() };
    }

    /// How many of the next tenant's connections are to be presented again.
    fn due_first(&self) -> usize {
        self.order.front().map_or(0, |tenant| self.lines[tenant.index()].stalled.due())
    }

    /// The connection to be handled next in a turn of which so much is over, and whose it is; [`Self::push`] or
    /// [`Self::push_stalled`] tells if something is left of it. None when it is time for something else.
    pub(crate) fn next(&mut self, over: Duration) -> Option<(Tenant, C)> {
        while self.turn.tenants > 0 {
            let tenant = *self.order.front()?;
            let line = &mut self.lines[tenant.index()];
            if over < self.turn.until {
                let is_due = self.turn.due > 0;
                self.turn.due -= usize::from(is_due);
                let stalled = if is_due { line.stalled.pop() } else { None };
                if let Some(connection) = stalled.or_else(|| line.fresh.pop_front()) {
                    return Some((tenant, connection));
                }
            }
            self.pass_on(tenant, over);
        }
        None
    }

    /// It is the turn of the next tenant, if there is still time.
    fn pass_on(&mut self, tenant: Tenant, over: Duration) {
        let line = &mut self.lines[tenant.index()];
        self.order.pop_front();
        line.is_in_order = !line.is_empty();
        if line.is_in_order {
            self.order.push_back(tenant);
        }
        self.turn.tenants = if over < TURN_MAX { self.turn.tenants - 1 } else { 0 };
        (self.turn.until, self.turn.due) = (over + self.turn.part, self.due_first());
    }

    /// How soon the next turn is to be at the latest.
    pub(crate) fn pause_max(&self) -> Option<Duration> {
        let lines = self.order.iter().map(|tenant| &self.lines[tenant.index()]);
        let pause = |line: &Line<C>| {
            if line.fresh.is_empty() { line.stalled.pause_max() } else { Some(Duration::ZERO) }
        };
        lines.filter_map(pause).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Tenant = Tenant(1);
    const OTHER: Tenant = Tenant(2);

    /// A turn in which it takes so long to handle a connection; what becomes of each says `handle`.
    fn turn(
        rounds: &mut Rounds<u32>,
        step: Duration,
        mut handle: impl FnMut(&mut Rounds<u32>, Tenant, u32),
    ) -> Vec<u32> {
        let (mut handled, mut over) = (Vec::new(), Duration::ZERO);
        rounds.begin();
        while let Some((tenant, connection)) = rounds.next(over) {
            handled.push(connection);
            handle(rounds, tenant, connection);
            over += step;
        }
        handled
    }

    #[test]
    fn who_floods_has_its_part_of_a_turn_and_no_more() {
        let mut rounds = Rounds::default();
        (0..100).for_each(|connection| rounds.push(ONE, connection));
        rounds.push(OTHER, 1000);
        let step = TURN_MAX / 20;
        // Whatever is handled of the first has more.
        let again = |rounds: &mut Rounds<u32>, tenant, connection| {
            if tenant == ONE {
                rounds.push(tenant, connection);
            }
        };
        let handled = turn(&mut rounds, step, again);
        assert_eq!(handled, (0..10).chain([1000]).collect::<Vec<_>>());
        assert_eq!(rounds.pause_max(), Some(Duration::ZERO), "it goes on at once");
        assert_eq!(turn(&mut rounds, step, again), (10..30).collect::<Vec<_>>(), "alone it has all of it");
    }

    #[test]
    fn where_time_does_not_suffice_for_all_the_others_are_the_first_of_the_next_turn() {
        let mut rounds = Rounds::default();
        for tenant in 1..=5 {
            rounds.push(Tenant(tenant), u32::from(tenant));
            rounds.push(Tenant(tenant), u32::from(10 * tenant));
        }
        let step = TURN_MAX / 2;
        assert_eq!(turn(&mut rounds, step, |_, _, _| {}), [1, 2]);
        assert_eq!(turn(&mut rounds, step, |_, _, _| {}), [3, 4]);
        assert_eq!(turn(&mut rounds, step, |_, _, _| {}), [5, 10]);
        assert_eq!(turn(&mut rounds, Duration::ZERO, |_, _, _| {}), [20, 30, 40, 50]);
        assert!(rounds.is_empty() && rounds.pause_max().is_none());
        assert!(turn(&mut rounds, step, |_, _, _| {}).is_empty());
    }

    #[test]
    fn what_waits_is_presented_before_what_came_later_and_once_in_a_turn() {
        let mut rounds = Rounds::default();
        let stalls = |rounds: &mut Rounds<u32>, tenant, connection| rounds.push_stalled(tenant, connection);
        rounds.push(ONE, 1);
        rounds.push(ONE, 2);
        assert_eq!(turn(&mut rounds, Duration::ZERO, stalls), [1, 2]);
        rounds.push(ONE, 3);
        assert_eq!(turn(&mut rounds, Duration::ZERO, stalls), [1, 2, 3]);
        assert_eq!(rounds.pause_max(), None, "they wait for something to happen");
        assert_eq!(turn(&mut rounds, Duration::ZERO, |_, _, _| {}), [1, 2, 3]);
        assert!(rounds.is_empty());
    }

    #[test]
    fn of_very_many_that_wait_a_turn_presents_a_few_and_others_are_not_kept_by_them() {
        let mut rounds = Rounds::default();
        (0..4096).for_each(|connection| rounds.push_stalled(ONE, connection));
        rounds.push(OTHER, 5000);
        let stalls = |rounds: &mut Rounds<u32>, tenant, connection| {
            if tenant == ONE {
                rounds.push_stalled(tenant, connection);
            }
        };
        let first = turn(&mut rounds, Duration::ZERO, stalls);
        assert!(first.len() < 100 && first.ends_with(&[5000]), "{first:?}");
        assert!(rounds.pause_max().is_some_and(|pause| pause > Duration::ZERO));
        let second = turn(&mut rounds, Duration::ZERO, stalls);
        assert_eq!(second[0], first.len() as u32 - 1, "the next ones");
    }

    #[test]
    fn the_next_turn_is_as_soon_as_whoever_waits_the_least_wants_it() {
        let mut rounds = Rounds::default();
        (0..100).for_each(|connection| rounds.push_stalled(ONE, connection));
        let pause = rounds.pause_max().unwrap();
        assert!(pause > Duration::ZERO);
        rounds.push_stalled(OTHER, 1000);
        assert_eq!(rounds.pause_max(), Some(pause), "that one waits for something to happen");
        rounds.push(OTHER, 1001);
        assert_eq!(rounds.pause_max(), Some(Duration::ZERO));
        let handled = turn(&mut rounds, Duration::ZERO, |_, _, _| {});
        assert_eq!((handled.len(), handled.last()), (66, Some(&1001)));
        // Who brings something again once it is through is handled again.
        rounds.push(OTHER, 1002);
        assert!(turn(&mut rounds, Duration::ZERO, |_, _, _| {}).contains(&1002));
        assert!(rounds.is_empty());
    }
}
