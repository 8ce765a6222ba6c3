//! A registry's state with the time its leases have left, on a clock that its owner reads. No file, no random source.

use super::history::History;
use super::state::{Changes, State};
use crate::contract::Range;
use crate::error::RegistryError;
use crate::ids::{LeaseId, Revision};
use crate::request::{Answer, Request};
use std::collections::BTreeMap;
use std::time::Duration;

/// See the module's documentation. Times count from an arbitrary start of the owner's.
pub struct Table {
    state: State,
    /// When each lease ends unless it is kept alive.
    deadlines: BTreeMap<LeaseId, Duration>,
}

impl Table {
    /// Every lease of `state` runs its full time anew.
    pub fn new(state: State, now: Duration) -> Table {
        let mut table = Table { state, deadlines: BTreeMap::new() };
        table.renew_all(now);
        table
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.state.revision()
    }

    /// Performs a request. `draw` gives ids for leases until one is unused.
    pub fn apply(
        &mut self,
        request: Request,
        now: Duration,
        mut draw: impl FnMut() -> LeaseId,
        history: &History,
        changes: &mut Changes,
    ) -> Result<Answer, RegistryError> {
        match request {
            Request::Get { key } => Ok(Answer::Got(self.state.get(&key).cloned())),
            Request::Range { prefix } => {
                let entries = self.state.range(&prefix);
                Ok(Answer::Range(Range { revision: self.state.revision(), entries }))
            }
            Request::Txn(txn) => self.state.txn(&txn, changes).map(Answer::Txn),
            Request::LeaseGrant { ttl_ms } => {
                let ttl = Duration::from_millis(ttl_ms);
                let mut id = draw();
                while id.0 == 0 || self.state.lease_ttl(id).is_some() {
                    id = draw();
                }
                self.state.grant(id, ttl, changes);
                self.deadlines.insert(id, now + ttl);
                Ok(Answer::Granted { lease: id, ttl_ms })
            }
            Request::LeaseKeepAlive { lease } => {
                let ttl = self.state.lease_ttl(lease).ok_or(RegistryError::LeaseNotFound { lease })?;
                self.deadlines.insert(lease, now + ttl);
                Ok(Answer::Done)
            }
            Request::LeaseRevoke { lease } => {
                if !self.state.end_lease(lease, changes) {
                    return Err(RegistryError::LeaseNotFound { lease });
                }
                self.deadlines.remove(&lease);
                Ok(Answer::Done)
            }
            Request::Compact { revision } => {
                // Of these changes nothing is in history yet, and history is bounded without it.
                let shown = self.state.revision().0 - changes.transactions.len() as u64;
                let is_unshown = revision.0 > shown && revision <= self.state.revision();
                history.compact(if is_unshown { Revision(shown) } else { revision })?;
                Ok(Answer::Done)
            }
        }
    }

    /// When the first lease ends, unless it is kept alive.
    pub fn next_end(&self) -> Option<Duration> {
        self.deadlines.values().min().copied()
    }

    /// Ends the leases whose time was over at `at`.
    pub fn expire(&mut self, at: Duration, changes: &mut Changes) {
        let ended = self.deadlines.iter().filter(|(_, deadline)| **deadline <= at).map(|(id, _)| *id);
        for lease in ended.collect::<Vec<LeaseId>>() {
            tracing::debug!(%lease, "a lease ended: it was not kept alive");
            self.state.end_lease(lease, changes);
            self.deadlines.remove(&lease);
        }
    }

    /// Lets every lease run its full time anew.
    pub fn renew_all(&mut self, now: Duration) {
        self.deadlines = self.state.leases().map(|(id, ttl)| (id, now + ttl)).collect();
    }

    /// Nothing can be changed any more, so no lease ends either.
    pub fn stop(&mut self) {
        self.deadlines.clear();
    }
}
