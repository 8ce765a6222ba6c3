//! The contract of [`Registry`] as tests, to be passed unchanged by every implementation.
//!
//! Each test asks its factory for a registry and uses keys below a prefix of its own, so that a factory
//! may give the same registry, with other content, every time: nothing assumes a first revision or an
//! empty key space. Waits are bounded generously and never assert that something was fast.

use crate::contract::{
    BYTES_PER_TXN_MAX, Compare, Event, KEY_BYTES_MAX, KeyValue, OPERATIONS_PER_TXN_MAX, Operation,
    OperationResult, Registry, Txn, VALUE_BYTES_MAX, Watch, WatchBatch,
};
use crate::error::RegistryError;
use crate::ids::{LeaseId, Revision};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// How long anything that must happen may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the whole suite. The factory gives a registry and whatever must live as long as it.
///
/// # Panics
/// At the first rule that the registry breaks.
pub async fn run<Factory, Made, Guard>(factory: Factory)
where
    Factory: Fn() -> Made,
    Made: Future<Output = (Arc<dyn Registry>, Guard)>,
{
    macro_rules! each {
        ($($test:ident),* $(,)?) => {$({
            let (registry, guard) = factory().await;
            let keys = Keys { prefix: format!("conformance/{}/{}/", stringify!($test), uuid::Uuid::new_v4()) };
            $test(registry, keys).await;
            drop(guard);
        })*};
    }
    each!(
        revisions_and_versions_count_as_in_etcd,
        a_transaction_without_effect_has_no_revision,
        every_kind_of_compare_is_honoured,
        both_branches_are_atomic_and_see_their_own_steps,
        a_range_shows_its_prefix_in_order_at_its_revision,
        concurrent_compare_and_swap_loses_no_increment,
        limits_are_kept_and_a_refusal_changes_nothing,
        values_are_any_bytes,
        a_lease_takes_its_keys_along_when_revoked,
        a_lease_that_is_not_kept_alive_ends,
        a_lease_that_is_kept_alive_lives,
        a_key_belongs_to_the_lease_of_its_last_write,
        a_watch_shows_every_change_once_and_in_order,
        a_watch_shows_whole_transactions,
        a_watch_resumes_from_any_revision,
        a_watch_from_now_shows_nothing_of_before,
        a_watch_sees_only_its_prefix,
        a_watch_can_be_cancelled_while_it_waits,
        watches_during_writes_agree_with_the_keys,
        a_compacted_revision_cannot_be_watched,
    );
}

struct Keys {
    prefix: String,
}

impl Keys {
    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

async fn put(registry: &Arc<dyn Registry>, key: &str, value: &str) -> Revision {
    registry.put(key, value.into()).await.expect("a plain write succeeds")
}

async fn get(registry: &Arc<dyn Registry>, key: &str) -> Option<KeyValue> {
    registry.get(key).await.expect("a plain read succeeds")
}

async fn next(watch: &mut Box<dyn Watch>) -> WatchBatch {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch shows the change");
    let batch = next.expect("the watch goes on");
    assert!(!batch.events.is_empty(), "a batch holds a change at least");
    batch
}

/// Reads a watch up to a revision.
async fn read_to(watch: &mut Box<dyn Watch>, last: Revision) -> Vec<Event> {
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Event| event.revision() < last) {
        let batch = next(watch).await;
        assert!(batch.events.last().is_some_and(|event| event.revision() <= batch.revision));
        assert_eq!(watch.position(), batch.revision.next());
        events.extend(batch.events);
    }
    events
}

async fn wait_until_gone(registry: &Arc<dyn Registry>, key: &str) {
    let waiting = async {
        while get(registry, key).await.is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the key goes with its lease");
}

async fn revisions_and_versions_count_as_in_etcd(registry: Arc<dyn Registry>, keys: Keys) {
    let key = keys.key("a");
    assert_eq!(get(&registry, &key).await, None);
    let first = put(&registry, &key, "1").await;
    let second = put(&registry, &key, "2").await;
    assert!(second > first && first > Revision(0));
    let entry = get(&registry, &key).await.expect("it was written");
    assert_eq!((entry.create_revision, entry.mod_revision, entry.version), (first, second, 2));
    assert_eq!((entry.value.as_bytes(), entry.lease), (&b"2"[..], None));
    assert!(registry.delete(&key).await.expect("a delete succeeds"));
    assert!(!registry.delete(&key).await.expect("a delete of nothing succeeds"));
    let again = put(&registry, &key, "3").await;
    let entry = get(&registry, &key).await.expect("it was written again");
    assert_eq!((entry.create_revision, entry.mod_revision, entry.version), (again, again, 1));
}

async fn a_transaction_without_effect_has_no_revision(registry: Arc<dyn Registry>, keys: Keys) {
    let key = keys.key("a");
    let before = put(&registry, &key, "1").await;
    let reads = Txn::new()
        .then(Operation::get(&key))
        .then(Operation::range(&keys.prefix))
        .then(Operation::delete(keys.key("absent")));
    let result = registry.txn(reads).await.expect("reading succeeds");
    assert_eq!(result.revision, before);
    assert_eq!(result.results[2], OperationResult::Deleted(false));
    let refused = Txn::new().when(Compare::Absent(key.clone())).then(Operation::put(&key, "2"));
    let result = registry.txn(refused).await.expect("a compare that fails is no error");
    assert!(!result.succeeded);
    assert_eq!((result.revision, result.results), (before, vec![]));
    let three =
        (0..3).fold(Txn::new(), |txn, index| txn.then(Operation::put(keys.key(&format!("n{index}")), "x")));
    assert_eq!(registry.txn(three).await.expect("writing succeeds").revision, before.next());
}

async fn every_kind_of_compare_is_honoured(registry: Arc<dyn Registry>, keys: Keys) {
    let (there, absent) = (keys.key("there"), keys.key("absent"));
    put(&registry, &there, "1").await;
    let revision = put(&registry, &there, "2").await;
    let cases = [
        (Compare::Exists(there.clone()), true),
        (Compare::Exists(absent.clone()), false),
        (Compare::Absent(there.clone()), false),
        (Compare::Absent(absent.clone()), true),
        (Compare::ModRevision(there.clone(), revision), true),
        (Compare::ModRevision(there.clone(), Revision(revision.0 - 1)), false),
        (Compare::ModRevision(there.clone(), revision.next()), false),
        (Compare::ModRevision(there.clone(), Revision(0)), false),
        (Compare::ModRevision(absent.clone(), Revision(0)), true),
        (Compare::Value(there.clone(), "2".into()), true),
        (Compare::Value(there.clone(), "1".into()), false),
        (Compare::Value(absent.clone(), "".into()), false),
        (Compare::Version(there.clone(), 2), true),
        (Compare::Version(there.clone(), 1), false),
        (Compare::Version(absent.clone(), 0), true),
        (Compare::Version(absent.clone(), 1), false),
    ];
    for (compare, holds) in &cases {
        let result = registry.txn(Txn::new().when(compare.clone())).await.expect("comparing succeeds");
        assert_eq!(result.succeeded, *holds, "{compare:?}");
    }
    for (compare, holds) in cases {
        let both = Txn::new().when(Compare::Exists(there.clone())).when(compare.clone());
        let result = registry.txn(both).await.expect("comparing succeeds");
        assert_eq!(result.succeeded, holds, "all compares must hold: {compare:?}");
    }
}

async fn both_branches_are_atomic_and_see_their_own_steps(registry: Arc<dyn Registry>, keys: Keys) {
    let (guard, a, b) = (keys.key("guard"), keys.key("a"), keys.key("b"));
    let txn = || {
        Txn::new()
            .when(Compare::Exists(guard.clone()))
            .then(Operation::delete(&a))
            .then(Operation::get(&a))
            .then(Operation::put(&b, "then"))
            .otherwise(Operation::put(&a, "else"))
            .otherwise(Operation::get(&a))
            .otherwise(Operation::range(&keys.prefix))
            .otherwise(Operation::put(&guard, "x"))
    };
    let result = registry.txn(txn()).await.expect("the else branch succeeds");
    assert!(!result.succeeded);
    let entry = get(&registry, &a).await.expect("the else branch wrote it");
    assert_eq!(entry.mod_revision, result.revision);
    assert_eq!(result.results[0], OperationResult::Put);
    assert_eq!(result.results[1], OperationResult::Got(Some(entry.clone())));
    assert_eq!(result.results[2], OperationResult::Range(vec![entry]));
    let result = registry.txn(txn()).await.expect("the then branch succeeds");
    assert!(result.succeeded);
    let then = [OperationResult::Deleted(true), OperationResult::Got(None), OperationResult::Put];
    assert_eq!(result.results, then);
    assert_eq!(get(&registry, &a).await, None);
    assert_eq!(get(&registry, &b).await.map(|entry| entry.mod_revision), Some(result.revision));
}

async fn a_range_shows_its_prefix_in_order_at_its_revision(registry: Arc<dyn Registry>, keys: Keys) {
    for name in ["b/2", "b/10", "a", "c", "b", "b0", "b/ü"] {
        put(&registry, &keys.key(name), name).await;
    }
    let last = put(&registry, &keys.key("b/2"), "again").await;
    let range = registry.range(&keys.key("b/")).await.expect("a range succeeds");
    assert_eq!(range.revision, last);
    let found: Vec<_> = range.entries.iter().map(|entry| &entry.key[keys.prefix.len()..]).collect();
    assert_eq!(found, ["b/10", "b/2", "b/ü"]);
    assert_eq!(range.entries[1].value.as_bytes(), b"again");
    let all = registry.range("").await.expect("a range of everything succeeds");
    assert!(all.entries.len() >= 7);
    assert!(all.entries.is_sorted_by(|a, b| a.key < b.key));
    assert_eq!(registry.range(&keys.key("none")).await.expect("an empty range succeeds").entries, vec![]);
}

async fn concurrent_compare_and_swap_loses_no_increment(registry: Arc<dyn Registry>, keys: Keys) {
    const TASKS: u64 = 8;
    const INCREMENTS: u64 = 15;
    let key = keys.key("counter");
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (registry, key) = (registry.clone(), key.clone());
            tokio::spawn(async move {
                for _ in 0..INCREMENTS {
                    loop {
                        let read = get(&registry, &key).await;
                        let number = read.as_ref().map_or(0, |entry| {
                            let text =
                                std::str::from_utf8(entry.value.as_bytes()).expect("a number was written");
                            text.parse::<u64>().expect("a number was written")
                        });
                        let txn = Txn::new()
                            .when(Compare::unchanged(&key, read.as_ref()))
                            .then(Operation::put(&key, (number + 1).to_string()));
                        if registry.txn(txn).await.expect("the transaction succeeds").succeeded {
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task ends well");
    }
    let entry = get(&registry, &key).await.expect("it was counted");
    assert_eq!(entry.value.as_bytes(), (TASKS * INCREMENTS).to_string().as_bytes());
    assert_eq!(entry.version, TASKS * INCREMENTS);
}

async fn limits_are_kept_and_a_refusal_changes_nothing(registry: Arc<dyn Registry>, keys: Keys) {
    let key = |index: usize| keys.key(&format!("{index:04}"));
    let puts = |count| (0..count).fold(Txn::new(), |txn, index| txn.then(Operation::put(key(index), "x")));
    let before = registry.range(&keys.prefix).await.expect("a range succeeds");
    let long = keys.key(&"k".repeat(KEY_BYTES_MAX));
    let refused = [
        Txn::new().then(Operation::put("", "x")),
        Txn::new().then(Operation::put(key(0), "x")).then(Operation::put(long, "x")),
        Txn::new().then(Operation::put(key(0), vec![0; VALUE_BYTES_MAX + 1])),
        Txn::new()
            .then(Operation::put(key(0), vec![0; VALUE_BYTES_MAX]))
            .then(Operation::put(key(1), vec![0; VALUE_BYTES_MAX])),
        puts(OPERATIONS_PER_TXN_MAX + 1),
        Txn::new().then(Operation::put(key(0), "1")).then(Operation::put(key(0), "2")),
        Txn::new().then(Operation::put(key(0), "1")).then(Operation::delete(key(0))),
        Txn::new().then(Operation::put(key(0), "1")).then(Operation::put_leased(
            key(1),
            "1",
            LeaseId(u64::MAX >> 2),
        )),
    ];
    for (index, txn) in refused.into_iter().enumerate() {
        assert!(registry.txn(txn).await.is_err(), "case {index}");
    }
    assert_eq!(registry.range(&keys.prefix).await.expect("a range succeeds").entries, before.entries);
    registry.txn(puts(OPERATIONS_PER_TXN_MAX)).await.expect("the largest number of operations is possible");
    let largest = Txn::new()
        .then(Operation::put(key(0), vec![0xa5; VALUE_BYTES_MAX]))
        .then(Operation::put(key(1), vec![0; BYTES_PER_TXN_MAX - VALUE_BYTES_MAX - 2 * key(0).len()]));
    registry.txn(largest).await.expect("the largest transaction is possible");
    let name = "k".repeat(KEY_BYTES_MAX - keys.prefix.len());
    put(&registry, &keys.key(&name), "x").await;
    assert!(get(&registry, &keys.key(&name)).await.is_some());
}

async fn values_are_any_bytes(registry: Arc<dyn Registry>, keys: Keys) {
    let all: Vec<u8> = (0..=255).collect();
    let values =
        [&b""[..], b"\"quoted\\\"", b"{\"base64\":\"Zm9v\"}", &all, "wörter\n".as_bytes(), &[0xff; 10_000]];
    for value in values {
        registry.put(&keys.key("v"), value.into()).await.expect("any bytes can be written");
        let entry = get(&registry, &keys.key("v")).await.expect("it was written");
        assert_eq!(entry.value.as_bytes(), value);
    }
}

async fn a_lease_takes_its_keys_along_when_revoked(registry: Arc<dyn Registry>, keys: Keys) {
    let lease = registry.lease_grant(Duration::from_secs(600)).await.expect("a lease is granted");
    assert!(lease.ttl >= Duration::from_secs(600));
    let other = registry.lease_grant(Duration::from_secs(600)).await.expect("a lease is granted");
    assert_ne!(lease.id, other.id);
    let txn = Txn::new()
        .then(Operation::put_leased(keys.key("a"), "x", lease.id))
        .then(Operation::put_leased(keys.key("b"), "x", lease.id))
        .then(Operation::put_leased(keys.key("c"), "x", other.id))
        .then(Operation::put(keys.key("d"), "x"));
    let written = registry.txn(txn).await.expect("writing with a lease succeeds").revision;
    assert_eq!(get(&registry, &keys.key("a")).await.and_then(|entry| entry.lease), Some(lease.id));
    let mut watch = registry.watch(&keys.prefix, written.next()).await.expect("a watch starts");
    registry.lease_revoke(lease.id).await.expect("a lease can be revoked");
    let batch = next(&mut watch).await;
    let mut deleted: Vec<_> = batch.events.iter().map(|event| (event.key(), event.revision())).collect();
    deleted.sort_unstable();
    let (a, b) = (keys.key("a"), keys.key("b"));
    assert_eq!(deleted, [(a.as_str(), written.next()), (b.as_str(), written.next())], "in one revision");
    assert!(batch.events.iter().all(|event| matches!(event, Event::Delete { .. })));
    let left = registry.range(&keys.prefix).await.expect("a range succeeds").entries;
    assert_eq!(
        left.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>(),
        [keys.key("c"), keys.key("d")]
    );
    let gone = RegistryError::LeaseNotFound { lease: lease.id };
    assert_eq!(registry.lease_keep_alive(lease.id).await, Err(gone.clone()));
    assert_eq!(registry.lease_revoke(lease.id).await, Err(gone.clone()));
    let late = Txn::new().then(Operation::put_leased(keys.key("a"), "x", lease.id));
    assert_eq!(registry.txn(late).await, Err(gone));
    registry.lease_revoke(other.id).await.expect("a lease can be revoked");
}

async fn a_lease_that_is_not_kept_alive_ends(registry: Arc<dyn Registry>, keys: Keys) {
    let lease = registry.lease_grant(Duration::from_secs(1)).await.expect("a lease is granted");
    let txn = Txn::new().then(Operation::put_leased(keys.key("a"), "x", lease.id));
    let written = registry.txn(txn).await.expect("writing with a lease succeeds").revision;
    let mut watch = registry.watch(&keys.prefix, written.next()).await.expect("a watch starts");
    let batch = next(&mut watch).await;
    assert!(matches!(&batch.events[..], [Event::Delete { .. }]));
    assert_eq!(get(&registry, &keys.key("a")).await, None);
    let gone = RegistryError::LeaseNotFound { lease: lease.id };
    assert_eq!(registry.lease_keep_alive(lease.id).await, Err(gone));
    assert!(registry.lease_grant(Duration::ZERO).await.is_err());
}

async fn a_lease_that_is_kept_alive_lives(registry: Arc<dyn Registry>, keys: Keys) {
    let lease = registry.lease_grant(Duration::from_secs(2)).await.expect("a lease is granted");
    let txn = Txn::new().then(Operation::put_leased(keys.key("a"), "x", lease.id));
    registry.txn(txn).await.expect("writing with a lease succeeds");
    let until = tokio::time::Instant::now() + lease.ttl * 2;
    while tokio::time::Instant::now() < until {
        registry.lease_keep_alive(lease.id).await.expect("a living lease can be kept alive");
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert!(get(&registry, &keys.key("a")).await.is_some());
    }
    wait_until_gone(&registry, &keys.key("a")).await;
}

async fn a_key_belongs_to_the_lease_of_its_last_write(registry: Arc<dyn Registry>, keys: Keys) {
    let ttl = Duration::from_secs(600);
    let first = registry.lease_grant(ttl).await.expect("a lease is granted");
    let second = registry.lease_grant(ttl).await.expect("a lease is granted");
    let leased = |name: &str, lease| Txn::new().then(Operation::put_leased(keys.key(name), "x", lease));
    for name in ["freed", "moved", "reborn", "kept"] {
        registry.txn(leased(name, first.id)).await.expect("writing with a lease succeeds");
    }
    put(&registry, &keys.key("freed"), "y").await;
    registry.txn(leased("moved", second.id)).await.expect("writing with another lease succeeds");
    registry.delete(&keys.key("reborn")).await.expect("a delete succeeds");
    put(&registry, &keys.key("reborn"), "y").await;
    registry.txn(leased("kept", first.id)).await.expect("writing with the same lease succeeds");
    registry.lease_revoke(first.id).await.expect("a lease can be revoked");
    let names = |entries: Vec<KeyValue>| -> Vec<String> {
        entries.into_iter().map(|entry| entry.key[keys.prefix.len()..].to_owned()).collect()
    };
    let left = registry.range(&keys.prefix).await.expect("a range succeeds");
    assert_eq!(names(left.entries), ["freed", "moved", "reborn"]);
    registry.lease_revoke(second.id).await.expect("a lease can be revoked");
    let left = registry.range(&keys.prefix).await.expect("a range succeeds");
    assert_eq!(names(left.entries), ["freed", "reborn"]);
}

async fn a_watch_shows_every_change_once_and_in_order(registry: Arc<dyn Registry>, keys: Keys) {
    let before = put(&registry, &keys.key("before"), "x").await;
    let mut watch = registry.watch(&keys.prefix, before.next()).await.expect("a watch starts");
    let mut expected = Vec::new();
    let mut last = before;
    for index in 0..50 {
        let key = keys.key(&format!("{}", index % 7));
        if index % 5 == 4 {
            let existed = registry.delete(&key).await.expect("a delete succeeds");
            last = if existed { last.next() } else { last };
            if existed {
                expected.push((key, last, None));
            }
        } else {
            last = put(&registry, &key, &index.to_string()).await;
            expected.push((key, last, Some(index.to_string())));
        }
    }
    let shown: Vec<_> = read_to(&mut watch, last)
        .await
        .into_iter()
        .map(|event| match event {
            Event::Put(entry) => {
                let value = String::from_utf8_lossy(entry.value.as_bytes()).into_owned();
                (entry.key, entry.mod_revision, Some(value))
            }
            Event::Delete { key, revision } => (key, revision, None),
        })
        .collect();
    assert_eq!(shown, expected);
}

async fn a_watch_shows_whole_transactions(registry: Arc<dyn Registry>, keys: Keys) {
    let start = put(&registry, &keys.key("start"), "x").await;
    let mut watch = registry.watch(&keys.prefix, start.next()).await.expect("a watch starts");
    let mut last = start;
    for round in 0..10 {
        let txn = (0..OPERATIONS_PER_TXN_MAX).fold(Txn::new(), |txn, index| {
            txn.then(Operation::put(keys.key(&format!("{index:03}")), round.to_string()))
        });
        last = registry.txn(txn).await.expect("writing succeeds").revision;
    }
    let mut seen = start;
    while seen < last {
        let batch = next(&mut watch).await;
        let mut counts = BTreeMap::new();
        for event in &batch.events {
            assert!(event.revision() > seen, "nothing is repeated");
            *counts.entry(event.revision()).or_insert(0) += 1;
        }
        assert!(counts.values().all(|&count| count == OPERATIONS_PER_TXN_MAX), "{counts:?}");
        seen = batch.revision;
    }
}

async fn a_watch_resumes_from_any_revision(registry: Arc<dyn Registry>, keys: Keys) {
    let mut revisions = Vec::new();
    for index in 0..20 {
        revisions.push(put(&registry, &keys.key("a"), &index.to_string()).await);
    }
    let last = revisions[19];
    for &start in &revisions {
        let mut watch = registry.watch(&keys.prefix, start).await.expect("a watch of the past starts");
        assert_eq!(watch.position(), start);
        let shown: Vec<_> = read_to(&mut watch, last).await.iter().map(Event::revision).collect();
        let expected: Vec<_> = revisions.iter().copied().filter(|revision| *revision >= start).collect();
        assert_eq!(shown, expected);
    }
}

async fn a_watch_from_now_shows_nothing_of_before(registry: Arc<dyn Registry>, keys: Keys) {
    put(&registry, &keys.key("a"), "before").await;
    let mut watch = registry.watch(&keys.prefix, Revision(0)).await.expect("a watch starts");
    let after = put(&registry, &keys.key("a"), "after").await;
    assert!(watch.position() <= after);
    let batch = next(&mut watch).await;
    assert_eq!(batch.events.iter().map(Event::revision).collect::<Vec<_>>(), [after]);
}

async fn a_watch_sees_only_its_prefix(registry: Arc<dyn Registry>, keys: Keys) {
    let mut watch = registry.watch(&keys.key("b/"), Revision(0)).await.expect("a watch starts");
    for name in ["a", "b", "b0", "c/b/"] {
        put(&registry, &keys.key(name), "x").await;
    }
    let both = Txn::new().then(Operation::put(keys.key("a"), "y")).then(Operation::put(keys.key("b/1"), "y"));
    registry.txn(both).await.expect("writing succeeds");
    let batch = next(&mut watch).await;
    assert_eq!(batch.events.iter().map(|event| event.key()).collect::<Vec<_>>(), [keys.key("b/1")]);
}

async fn a_watch_can_be_cancelled_while_it_waits(registry: Arc<dyn Registry>, keys: Keys) {
    let mut watch = registry.watch(&keys.prefix, Revision(0)).await.expect("a watch starts");
    let mut shown = Vec::new();
    let mut written = Vec::new();
    for index in 0..30u64 {
        written.push(put(&registry, &keys.key("a"), &index.to_string()).await);
        for wait_us in [0, 100, 1000] {
            let wait = Duration::from_micros(wait_us * (index % 4));
            if let Ok(batch) = tokio::time::timeout(wait, watch.next()).await {
                shown.extend(batch.expect("the watch goes on").events.iter().map(Event::revision));
            }
        }
    }
    while shown.len() < written.len() {
        shown.extend(next(&mut watch).await.events.iter().map(Event::revision));
    }
    assert_eq!(shown, written);
}

async fn watches_during_writes_agree_with_the_keys(registry: Arc<dyn Registry>, keys: Keys) {
    const WRITERS: usize = 4;
    const WRITES: usize = 40;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (registry, prefix) = (registry.clone(), keys.prefix.clone());
            tokio::spawn(async move {
                for index in 0..WRITES {
                    let key = format!("{prefix}{}", (index * 7 + writer) % 10);
                    if index % 4 == 3 {
                        registry.delete(&key).await.expect("a delete succeeds");
                    } else {
                        put(&registry, &key, &format!("{writer}.{index}")).await;
                    }
                }
            })
        })
        .collect();
    let mut copies = Vec::new();
    for _ in 0..3 {
        let range = registry.range(&keys.prefix).await.expect("a range succeeds");
        let watch = registry.watch(&keys.prefix, range.revision.next()).await.expect("a watch starts");
        let entries: BTreeMap<_, _> =
            range.entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        copies.push((entries, watch));
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.expect("a writer ends well");
    }
    let last = put(&registry, &keys.key("end"), "x").await;
    let truth = registry.range(&keys.prefix).await.expect("a range succeeds");
    for (mut entries, mut watch) in copies {
        for event in read_to(&mut watch, last).await {
            match event {
                Event::Put(entry) => entries.insert(entry.key.clone(), entry),
                Event::Delete { key, .. } => entries.remove(&key),
            };
        }
        assert_eq!(entries.into_values().collect::<Vec<_>>(), truth.entries);
    }
}

async fn a_compacted_revision_cannot_be_watched(registry: Arc<dyn Registry>, keys: Keys) {
    let first = put(&registry, &keys.key("a"), "1").await;
    put(&registry, &keys.key("a"), "2").await;
    let third = put(&registry, &keys.key("a"), "3").await;
    let fourth = put(&registry, &keys.key("b"), "4").await;
    registry.compact(third).await.expect("the past can be compacted");
    let late = async {
        let mut watch = registry.watch(&keys.prefix, first).await?;
        watch.next().await
    };
    let late = tokio::time::timeout(PATIENCE, late).await.expect("it is refused");
    assert!(matches!(late, Err(RegistryError::Compacted { .. })), "{late:?}");
    let mut watch = registry.watch(&keys.prefix, fourth).await.expect("a watch starts");
    assert_eq!(next(&mut watch).await.events[0].revision(), fourth);
    assert_eq!(get(&registry, &keys.key("a")).await.map(|entry| entry.mod_revision), Some(third));
    assert!(registry.compact(Revision(u64::MAX >> 2)).await.is_err(), "the future cannot be compacted");
}
