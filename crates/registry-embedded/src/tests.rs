//! The embedded registry over restarts, against damage, and against a second opener.

use super::*;
use base::ClusterId;
use registry::conformance;
use registry::{Operation, Registry, Txn};
use std::fs;
use tempfile::TempDir;

fn cluster() -> ClusterId {
    ClusterId(uuid::Uuid::from_u128(7))
}

fn fresh() -> (TempDir, PathBuf, EmbeddedRegistry) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("registry.redb");
    let registry = EmbeddedRegistry::create(&path, cluster()).unwrap();
    (directory, path, registry)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_registry_conforms() {
    conformance::run(|| async {
        let (directory, _, registry) = fresh();
        let registry: Arc<dyn Registry> = Arc::new(registry);
        (registry, directory)
    })
    .await;
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_reopening() {
    let (_directory, path, registry) = fresh();
    let lease = registry.lease_grant(Duration::from_secs(60)).await.unwrap();
    for index in 0..300u32 {
        let txn = Txn::new()
            .then(Operation::put(format!("key/{:02}", index % 40), index.to_string()))
            .then(Operation::put_leased("leased", "x", lease.id));
        registry.txn(txn).await.unwrap();
    }
    registry.delete("key/07").await.unwrap();
    let before = registry.range("").await.unwrap();
    drop(registry);
    let registry = EmbeddedRegistry::open_of(&path, cluster()).unwrap();
    assert_eq!(registry.range("").await.unwrap(), before);
    assert_eq!(before.entries.len(), 40);
    registry.lease_revoke(lease.id).await.unwrap();
    assert_eq!(registry.get("leased").await.unwrap(), None);
    let mut watch = registry.watch("", before.revision).await.unwrap();
    assert!(matches!(watch.next().await, Err(RegistryError::Compacted { .. })));
    let mut watch = registry.watch("", before.revision.next()).await.unwrap();
    assert_eq!(watch.next().await.unwrap().events[0].key(), "leased");
}

#[tokio::test]
async fn keys_of_a_client_that_died_go_after_a_reopening() {
    let (_directory, path, registry) = fresh();
    let lease = registry.lease_grant(Duration::from_secs(1)).await.unwrap();
    registry.txn(Txn::new().then(Operation::put_leased("up", "x", lease.id))).await.unwrap();
    drop(registry);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let registry = EmbeddedRegistry::open(&path).unwrap();
    let range = registry.range("up").await.unwrap();
    assert_eq!(range.entries.len(), 1, "the lease has its full time again");
    let mut watch = registry.watch("up", range.revision.next()).await.unwrap();
    let batch = tokio::time::timeout(Duration::from_secs(10), watch.next()).await.unwrap().unwrap();
    assert!(matches!(&batch.events[..], [registry::Event::Delete { .. }]));
}

#[test]
fn a_second_opener_is_refused_while_the_first_lives() {
    let (_directory, path, registry) = fresh();
    let second = EmbeddedRegistry::open(&path).err().unwrap();
    assert!(matches!(second, OpenError::InUse { .. }), "{second}");
    assert!(second.to_string().contains("millpond down"));
    assert!(matches!(EmbeddedRegistry::create(&path, cluster()), Err(OpenError::AlreadyThere { .. })));
    drop(registry);
    EmbeddedRegistry::open(&path).unwrap();
}

#[test]
fn a_missing_or_foreign_or_empty_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("registry.redb");
    assert!(matches!(EmbeddedRegistry::open(&path), Err(OpenError::Missing { .. })));
    for contents in [&b""[..], b"hello", &[0; 100_000]] {
        fs::write(&path, contents).unwrap();
        let error = EmbeddedRegistry::open(&path).err().unwrap();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("backup"));
    }
    let foreign = directory.path().join("foreign.redb");
    drop(redb::Database::create(&foreign).unwrap());
    assert!(matches!(EmbeddedRegistry::open(&foreign), Err(OpenError::Damaged { .. })));
    assert!(matches!(EmbeddedRegistry::open(directory.path()), Err(OpenError::Damaged { .. })));
    let nowhere = directory.path().join("no/such/registry.redb");
    assert!(matches!(EmbeddedRegistry::create(&nowhere, cluster()), Err(OpenError::Io { .. })));
}

#[test]
fn a_file_of_a_newer_format_is_refused_with_both_and_what_to_do() {
    let (_directory, path, registry) = fresh();
    drop(registry);
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(meta).unwrap().insert("format", 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let error = EmbeddedRegistry::open(&path).err().unwrap().to_string();
    for part in ["registry.redb", "format 2", "up to 1", "run the version that wrote it"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn the_registry_of_another_cluster_is_refused() {
    let (_directory, path, registry) = fresh();
    drop(registry);
    let other = ClusterId(uuid::Uuid::from_u128(8));
    assert!(matches!(EmbeddedRegistry::open_of(&path, other), Err(OpenError::OtherCluster { .. })));
    assert_eq!(EmbeddedRegistry::open(&path).unwrap().cluster(), cluster());
}

/// A file with some content, closed cleanly or as a crash leaves it, and what it holds.
fn written(clean: bool) -> (Vec<u8>, State) {
    let (_directory, path, registry) = fresh();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for index in 0..60u32 {
            let value = index.to_string().repeat(20);
            registry.txn(Txn::new().then(Operation::put(format!("key/{index}"), value))).await.unwrap();
        }
    });
    let crashed = fs::read(&path).unwrap();
    drop(registry);
    let bytes = if clean { fs::read(&path).unwrap() } else { crashed };
    fs::write(&path, &bytes).unwrap();
    let (_file, state, _) = RegistryFile::open(&path).unwrap();
    (bytes, state)
}

#[test]
fn a_flipped_bit_is_an_error_or_changes_nothing() {
    for clean in [true, false] {
        let (bytes, state) = written(clean);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.redb");
        let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        // Every bit of what has no checksum in the header, a bit of every byte of the commit slots, and
        // a bit of a sample of all bytes that hold something.
        let header = (0..64 * 8).map(|bit| (bit / 8, bit % 8)).chain((64..320).map(|at| (at, at % 8)));
        let sample = used.iter().copied().step_by(used.len() / 400 + 1).map(|at| (at, at % 8));
        let mut refused = 0;
        for (at, bit) in header.chain(sample) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            fs::write(&path, &damaged).unwrap();
            match RegistryFile::open(&path) {
                Ok((_file, found, _)) => {
                    assert!(found == state, "bit {bit} of byte {at} changed what is read, clean: {clean}");
                }
                Err(OpenError::Damaged { .. }) => refused += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
        assert!(refused > 300, "{refused}");
    }
}

#[test]
fn a_page_of_noise_is_an_error_or_changes_nothing() {
    for clean in [true, false] {
        let (bytes, state) = written(clean);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.redb");
        let mut refused = 0;
        for page in
            (0..bytes.len() / 4096).filter(|page| bytes[page * 4096..][..4096].iter().any(|&b| b != 0))
        {
            for seed in 0..4u64 {
                let mut damaged = bytes.clone();
                for (index, byte) in damaged[page * 4096..][..4096].iter_mut().enumerate() {
                    *byte = if seed == 0 { 0 } else { base::hash::mix(seed << 32 | index as u64) as u8 };
                }
                fs::write(&path, &damaged).unwrap();
                match RegistryFile::open(&path) {
                    Ok((_file, found, _)) => assert!(found == state, "page {page} changed what is read"),
                    Err(OpenError::Damaged { .. }) => refused += 1,
                    Err(other) => panic!("page {page}: {other}"),
                }
            }
        }
        assert!(refused >= 8, "{refused}");
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    for clean in [true, false] {
        let (bytes, _) = written(clean);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("registry.redb");
        for length in (1..bytes.len()).step_by(bytes.len() / 200).chain([bytes.len() - 1, bytes.len() - 4096])
        {
            fs::write(&path, &bytes[..length]).unwrap();
            let error =
                RegistryFile::open(&path).err().unwrap_or_else(|| panic!("opened with {length} bytes"));
            assert!(matches!(error, OpenError::Damaged { .. }), "{length}: {error}");
        }
    }
}

#[test]
fn a_copy_taken_between_two_commits_opens_with_every_acknowledged_key() {
    let (_directory, path, registry) = fresh();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let copies = tempfile::tempdir().unwrap();
    for index in 0..20u32 {
        runtime.block_on(registry.put(&format!("key/{index}"), "x".into())).unwrap();
        let copy = copies.path().join(index.to_string());
        fs::copy(&path, &copy).unwrap();
        let (_file, state, _) = RegistryFile::open(&copy).unwrap();
        assert_eq!(state.range("key/").len(), index as usize + 1);
    }
}
