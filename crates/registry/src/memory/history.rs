//! The latest changes, kept in memory so that a watch can resume. Bounded by transactions and bytes.
//!
//! A watch has no queue of its own: it reads here at its own pace, and learns that it is too late when
//! what it wants was dropped. So a slow watcher costs nothing and hurts nobody.

use crate::contract::{Event, Watch, WatchBatch};
use crate::error::RegistryError;
use crate::ids::Revision;
use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Transactions that history reaches back.
pub const TRANSACTIONS_MAX: usize = 10_000;
/// Bytes of keys and values that history holds, the newest transaction excepted.
const BYTES_MAX: usize = 64 << 20;
/// After so many changes or bytes, a batch ends with the transaction it is at.
const BATCH_EVENTS: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;

struct Transaction {
    events: Vec<Event>,
    bytes: usize,
}

struct Kept {
    /// Transactions of the revisions `compacted + 1 ..= compacted + transactions.len()`.
    transactions: VecDeque<Transaction>,
    compacted: Revision,
    bytes: usize,
}

/// The history of one registry, shared by its watches.
pub struct History {
    kept: Mutex<Kept>,
    latest: watch::Sender<Revision>,
    transactions_max: usize,
}

impl History {
    /// An empty history: everything up to `revision` counts as compacted.
    pub fn new(revision: Revision, transactions_max: usize) -> History {
        let kept = Kept { transactions: VecDeque::new(), compacted: revision, bytes: 0 };
        History { kept: Mutex::new(kept), latest: watch::Sender::new(revision), transactions_max }
    }

    /// Adds the next transaction and wakes the watches.
    pub fn push(&self, revision: Revision, events: Vec<Event>) {
        let bytes = events.iter().map(Event::bytes).sum();
        let mut kept = self.lock();
        assert_eq!(revision, kept.latest().next(), "every revision enters history, in order");
        kept.transactions.push_back(Transaction { events, bytes });
        kept.bytes += bytes;
        while kept.transactions.len() > 1
            && (kept.transactions.len() > self.transactions_max || kept.bytes > BYTES_MAX)
        {
            kept.drop_oldest();
        }
        drop(kept);
        self.latest.send_replace(revision);
    }

    /// Drops everything up to `revision`.
    pub fn compact(&self, revision: Revision) -> Result<(), RegistryError> {
        let mut kept = self.lock();
        if revision > kept.latest() {
            return Err(RegistryError::RevisionInFuture { asked: revision, latest: kept.latest() });
        }
        while kept.compacted < revision {
            kept.drop_oldest();
        }
        Ok(())
    }

    /// A watch from `start` on, or from now on where that is 0.
    pub fn watch(self: &Arc<Self>, prefix: String, start: Revision) -> HistoryWatch {
        let latest = self.latest.subscribe();
        let position = if start == Revision(0) { self.lock().latest().next() } else { start };
        HistoryWatch { history: Arc::downgrade(self), prefix, position, latest }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held but the assertion on order, before anything is changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn latest(&self) -> Revision {
        Revision(self.compacted.0 + self.transactions.len() as u64)
    }

    fn drop_oldest(&mut self) {
        let oldest = self.transactions.pop_front().expect("the caller saw that there is one");
        self.bytes -= oldest.bytes;
        self.compacted = self.compacted.next();
    }

    /// The changes of a prefix from `position` on, and the last revision looked at.
    fn read(&self, prefix: &str, position: Revision) -> Result<WatchBatch, RegistryError> {
        if position <= self.compacted {
            return Err(RegistryError::Compacted { asked: position, compacted: self.compacted });
        }
        let mut batch = WatchBatch { revision: Revision(position.0 - 1), events: Vec::new() };
        let mut bytes = 0;
        let skipped = usize::try_from(position.0 - self.compacted.0 - 1).unwrap_or(usize::MAX);
        for transaction in self.transactions.iter().skip(skipped) {
            let matching = transaction.events.iter().filter(|event| event.key().starts_with(prefix));
            for event in matching {
                bytes += event.bytes();
                batch.events.push(event.clone());
            }
            batch.revision = batch.revision.next();
            if batch.events.len() >= BATCH_EVENTS || bytes >= BATCH_BYTES {
                break;
            }
        }
        Ok(batch)
    }
}

/// A reader of a [`History`]. It does not keep the registry open.
pub struct HistoryWatch {
    history: std::sync::Weak<History>,
    prefix: String,
    position: Revision,
    latest: watch::Receiver<Revision>,
}

#[async_trait]
impl Watch for HistoryWatch {
    fn position(&self) -> Revision {
        self.position
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        loop {
            // Seen before it is read: what is pushed between the two wakes this watch again.
            self.latest.borrow_and_update();
            let history = self.history.upgrade().ok_or(RegistryError::Closed)?;
            let batch = history.lock().read(&self.prefix, self.position)?;
            drop(history);
            self.position = batch.revision.next();
            if !batch.events.is_empty() {
                return Ok(batch);
            }
            self.latest.changed().await.map_err(|_| RegistryError::Closed)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deleted(key: &str, revision: u64) -> Vec<Event> {
        vec![Event::Delete { key: key.into(), revision: Revision(revision) }]
    }

    #[tokio::test]
    async fn history_forgets_the_oldest_transactions_and_says_so() {
        let history = Arc::new(History::new(Revision(5), 3));
        for revision in 6..=10 {
            history.push(Revision(revision), deleted("a", revision));
        }
        let late = history.watch("a".into(), Revision(7)).next().await;
        assert_eq!(late, Err(RegistryError::Compacted { asked: Revision(7), compacted: Revision(7) }));
        let mut watch = history.watch("a".into(), Revision(8));
        assert_eq!(watch.next().await.unwrap().events.len(), 3);
        assert_eq!(watch.position(), Revision(11));
    }

    #[tokio::test]
    async fn a_watch_of_another_prefix_does_not_fall_behind_while_it_is_awaited() {
        let history = Arc::new(History::new(Revision(0), 3));
        let mut watch = history.watch("b".into(), Revision(0));
        let waiting = tokio::spawn(async move { watch.next().await });
        for revision in 1..=20 {
            history.push(Revision(revision), deleted(if revision == 20 { "b" } else { "a" }, revision));
            tokio::task::yield_now().await;
        }
        let batch = waiting.await.unwrap().unwrap();
        assert_eq!(batch.events, deleted("b", 20));
    }

    #[tokio::test]
    async fn a_watch_ends_when_its_registry_closes() {
        let history = Arc::new(History::new(Revision(0), 3));
        let mut watch = history.watch("b".into(), Revision(0));
        drop(history);
        assert_eq!(watch.next().await, Err(RegistryError::Closed));
    }

    #[tokio::test]
    async fn bytes_bound_history_too() {
        let history = Arc::new(History::new(Revision(0), usize::MAX));
        for revision in 1..=70_000 {
            history.push(Revision(revision), deleted(&"k".repeat(1024), revision));
        }
        assert!(history.lock().bytes <= BYTES_MAX);
        assert!(history.lock().transactions.len() > 60_000);
    }
}
