//! Counts what is written to a registry, by watching all of it.

use registry::{Event, Registry, Revision};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::task::JoinHandle;

/// What was written.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Writes {
    /// The time, in seconds.
    pub seconds: f64,
    /// Transactions that changed something.
    pub transactions: u64,
    /// Keys that were written or deleted.
    pub changes: u64,
    /// Bytes of these keys and their values.
    pub bytes: u64,
    /// Changes by kind of key.
    pub by_kind: BTreeMap<String, u64>,
}

/// Counts from when it is made.
pub struct Meter {
    began: Instant,
    counted: Arc<Mutex<(Option<Revision>, Writes)>>,
    watching: JoinHandle<()>,
}

impl Meter {
    /// Begins to count.
    pub async fn begin(registry: &Arc<dyn Registry>) -> anyhow::Result<Meter> {
        let now = registry.range("millpond/manager").await?.revision;
        let mut watch = registry.watch("", now.next()).await?;
        let counted: Arc<Mutex<(Option<Revision>, Writes)>> = Arc::default();
        let counting = counted.clone();
        let watching = tokio::spawn(async move {
            // It ends with the registry, or with the meter.
            while let Ok(batch) = watch.next().await {
                let mut counted = counting.lock().unwrap_or_else(PoisonError::into_inner);
                for event in &batch.events {
                    count(&mut counted, event);
                }
            }
        });
        Ok(Meter { began: Instant::now(), counted, watching })
    }

    /// What was written since.
    pub fn end(self) -> Writes {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        Writes { seconds: self.began.elapsed().as_secs_f64(), ..counted.1.clone() }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn count((last, writes): &mut (Option<Revision>, Writes), event: &Event) {
    if *last != Some(event.revision()) {
        *last = Some(event.revision());
        writes.transactions += 1;
    }
    writes.changes += 1;
    writes.bytes += match event {
        Event::Put(entry) => entry.key.len() + entry.value.len(),
        Event::Delete { key, .. } => key.len(),
    } as u64;
    *writes.by_kind.entry(kind_of(event.key())).or_default() += 1;
}

/// A key without what tells it from others of its kind.
fn kind_of(key: &str) -> String {
    let parts: Vec<&str> = key.split('/').collect();
    let depth = if parts.get(1) == Some(&"map") { 3 } else { 2 };
    parts[..parts.len().min(depth)].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::{MemoryRegistry, Operation, Txn};

    #[test]
    fn keys_of_a_kind_are_counted_together() {
        assert_eq!(kind_of("millpond/map/pg/1.17"), "millpond/map/pg");
        assert_eq!(kind_of("millpond/http/3-77"), "millpond/http");
        assert_eq!(kind_of("millpond/manager"), "millpond/manager");
        assert_eq!(kind_of("other"), "other");
    }

    #[tokio::test]
    async fn what_is_written_is_counted_once() {
        let registry: Arc<dyn Registry> = Arc::new(MemoryRegistry::new());
        registry.put("millpond/map/pg/1.0", "before".into()).await.unwrap();
        let meter = Meter::begin(&registry).await.unwrap();
        let txn = Txn::new()
            .then(Operation::put("millpond/map/pg/1.1", "abc"))
            .then(Operation::put("millpond/map/pg/1.2", "abc"));
        registry.txn(txn).await.unwrap();
        registry.delete("millpond/map/pg/1.0").await.unwrap();
        while meter.counted.lock().unwrap().1.changes < 3 {
            tokio::task::yield_now().await;
        }
        let writes = meter.end();
        assert_eq!((writes.transactions, writes.changes), (2, 3));
        assert_eq!(writes.bytes, 3 * 19 + 6);
        assert_eq!(writes.by_kind, BTreeMap::from([("millpond/map/pg".to_owned(), 3)]));
    }
}
