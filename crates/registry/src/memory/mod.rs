//! A registry without a file, on a clock that its owner sets: for simulations of clusters.

pub mod history;
pub mod state;
pub mod table;

use crate::contract::Watch;
use crate::error::RegistryError;
use crate::ids::{LeaseId, Revision};
use crate::request::{Answer, Caller, Request};
use async_trait::async_trait;
use history::History;
use state::{Changes, State};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::Table;

/// The logic of the [`EmbeddedRegistry`](crate::EmbeddedRegistry) with nothing around it. Every operation is done when it
/// is polled first, so that no runtime is needed; only a watch with nothing to show waits. The same operations give the
/// same answers: lease ids are counted.
pub struct MemoryRegistry {
    inner: Mutex<Inner>,
}

struct Inner {
    table: Table,
    history: Arc<History>,
    now: Duration,
    /// The last id of a lease.
    leases: u64,
}

impl Inner {
    fn show(&mut self, changes: Changes) {
        for (revision, events) in changes.transactions {
            self.history.push(revision, events);
        }
    }
}

impl Default for MemoryRegistry {
    fn default() -> MemoryRegistry {
        let (state, now) = (State::default(), Duration::ZERO);
        let history = Arc::new(History::new(state.revision(), history::TRANSACTIONS_MAX));
        MemoryRegistry { inner: Mutex::new(Inner { table: Table::new(state, now), history, now, leases: 0 }) }
    }
}

impl MemoryRegistry {
    /// An empty registry at time 0.
    #[must_use]
    pub fn new() -> MemoryRegistry {
        MemoryRegistry::default()
    }

    /// Sets the clock, to the time since an arbitrary start. Leases whose time is over end.
    pub fn advance(&self, now: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.max(now);
        let (at, mut changes) = (inner.now, Changes::default());
        inner.table.expire(at, &mut changes);
        inner.show(changes);
    }

    /// Sets the clock as if the registry had been started anew just now: every lease runs its full time from here, and
    /// watches end.
    pub fn reopen(&self, now: Duration) {
        let mut inner = self.lock();
        inner.now = inner.now.max(now);
        let now = inner.now;
        inner.table.renew_all(now);
        inner.history = Arc::new(History::new(inner.table.revision(), history::TRANSACTIONS_MAX));
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // What could panic while it is held are broken invariants; nobody goes on after those.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Caller for MemoryRegistry {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        request.check()?;
        let mut inner = self.lock();
        let Inner { table, history, now, leases } = &mut *inner;
        let mut changes = Changes::default();
        let draw = || {
            *leases += 1;
            LeaseId(*leases)
        };
        let answer = table.apply(request, *now, draw, history, &mut changes);
        inner.show(changes);
        answer
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        Ok(Box::new(self.lock().history.watch(prefix, start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::contract::{Operation, Registry, Txn};
    use std::time::Instant;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_registry_in_memory_conforms() {
        conformance::run(|| async {
            let registry = Arc::new(MemoryRegistry::new());
            let (began, clocked) = (Instant::now(), Arc::downgrade(&registry));
            let clock = tokio::spawn(async move {
                while let Some(registry) = clocked.upgrade() {
                    registry.advance(began.elapsed());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
            let registry: Arc<dyn Registry> = registry;
            (registry, clock)
        })
        .await;
    }

    #[tokio::test]
    async fn leases_end_by_the_owners_clock_and_run_anew_after_a_reopening() {
        let registry = MemoryRegistry::new();
        let lease = registry.lease_grant(Duration::from_secs(5)).await.unwrap().id;
        registry.txn(Txn::new().then(Operation::put_leased("up", "x", lease))).await.unwrap();
        registry.advance(Duration::from_millis(4_999));
        registry.reopen(Duration::from_secs(60));
        let mut watch = registry.watch("up", Revision(0)).await.unwrap();
        registry.advance(Duration::from_millis(64_999));
        assert!(registry.get("up").await.unwrap().is_some());
        registry.advance(Duration::from_secs(65));
        assert_eq!(registry.get("up").await.unwrap(), None);
        assert_eq!(watch.next().await.unwrap().events[0].key(), "up");
        assert!(matches!(
            registry.lease_keep_alive(lease).await,
            Err(RegistryError::LeaseNotFound { lease: found }) if found == lease
        ));
    }
}
