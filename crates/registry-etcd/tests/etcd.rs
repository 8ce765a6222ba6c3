//! The registry on a real etcd: the contract, and what members that fail do to it.

use cluster::{Cluster, HistoryBounds};
use registry::{
    Compare, Event, Operation, Registry, RegistryError, RegistryTrouble, Revision, Txn, conformance,
};
use registry_etcd::{EtcdOptions, EtcdRegistry};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::Etcd;

fn options(url: &str) -> EtcdOptions {
    url.parse().expect("it is a URL")
}

/// A registry that is there within what etcd needs to start.
async fn registry(url: &str) -> EtcdRegistry {
    let patient = options(url).with_timeout(Duration::from_secs(30));
    EtcdRegistry::connect(patient).await.expect("etcd starts")
}

#[tokio::test]
async fn one_member_keeps_the_contract() {
    conformance::run(|| async {
        let etcd = Etcd::start(1, &[]);
        (Arc::new(registry(&etcd.url()).await) as Arc<dyn Registry>, etcd)
    })
    .await;
}

#[tokio::test]
async fn three_members_keep_the_contract() {
    let etcd = Arc::new(Etcd::start(3, &[]));
    conformance::run(|| {
        let etcd = etcd.clone();
        async move { (Arc::new(registry(&etcd.url()).await) as Arc<dyn Registry>, etcd) }
    })
    .await;
}

/// Counts up by compare-and-swap until told to end; answers how far, and how often the outcome was not known.
async fn count(registry: Arc<EtcdRegistry>, enough: Arc<std::sync::atomic::AtomicBool>) -> (u64, u64) {
    let (mut done, mut unknown) = (0, 0);
    while !enough.load(std::sync::atomic::Ordering::Relaxed) {
        let read = match registry.get("counter").await {
            Ok(read) => read,
            Err(RegistryError::Unreachable { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let number = read.as_ref().map_or(0, number);
        let txn = Txn::new()
            .when(Compare::unchanged("counter", read.as_ref()))
            .then(Operation::put("counter", (number + 1).to_string()));
        match registry.txn(txn).await {
            Ok(result) => done += u64::from(result.succeeded),
            Err(RegistryError::OutcomeUnknown { .. }) => unknown += 1,
            Err(RegistryError::Unreachable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (done, unknown)
}

async fn counter(registry: &EtcdRegistry) -> u64 {
    let entry = registry.get("counter").await.expect("it can be read");
    entry.map_or(0, |entry| number(&entry))
}

fn number(entry: &registry::KeyValue) -> u64 {
    String::from_utf8_lossy(entry.value.as_bytes()).parse().expect("a number was written")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_killed_and_stand_still_and_nothing_is_lost_or_done_twice() {
    let mut etcd = Etcd::start(3, &[]);
    let registry = Arc::new(registry(&etcd.url()).await);
    // Longer than a member stands still, and than a busy machine takes to notice and to elect another.
    let lease = registry.lease_grant(Duration::from_secs(12)).await.expect("a lease is granted");
    let put = Txn::new().then(Operation::put_leased("mine", "x", lease.id));
    let from = registry.txn(put).await.expect("it is written").revision.next();
    let mut watch = registry.watch("counter", from).await.expect("a watch starts");
    let enough = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let counting = tokio::spawn(count(registry.clone(), enough.clone()));
    let keeping = tokio::spawn({
        let (registry, enough) = (registry.clone(), enough.clone());
        async move {
            while !enough.load(std::sync::atomic::Ordering::Relaxed) {
                match registry.lease_keep_alive(lease.id).await {
                    Ok(()) | Err(RegistryError::Unreachable { .. }) => {}
                    Err(error) => panic!("the lease was lost: {error}"),
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    });
    // A member is away until somebody else has served for a while.
    let goes_on = async || {
        let before = counter(&registry).await;
        while counter(&registry).await < before + 100 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    goes_on().await;
    for _ in 0..2 {
        let leader = etcd.leader();
        etcd.kill_member(leader);
        goes_on().await;
        etcd.start_member(leader);
        etcd.is_well();
        let frozen = etcd.freeze_member(etcd.leader());
        // Not as long as the lease: a leader that stands still for longer has it revoked when it goes on.
        tokio::time::sleep(Duration::from_secs(6)).await;
        drop(frozen);
        etcd.is_well();
        goes_on().await;
    }
    enough.store(true, std::sync::atomic::Ordering::Relaxed);
    keeping.await.expect("the lease was kept");
    let (done, unknown) = counting.await.expect("it counted");
    let counted = counter(&registry).await;
    eprintln!("{done} counted, {unknown} unknown, {counted} in the end");
    assert!(
        (done..=done + unknown).contains(&counted),
        "{done} + {unknown} unknown, and {counted} in the end"
    );
    assert!(done > 500, "{done}");
    assert!(registry.get("mine").await.expect("it can be read").is_some(), "the lease lived");
    // The watch saw each number once, in order.
    let mut seen = 0;
    while seen < counted {
        let batch = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
        for event in batch.expect("it shows all").expect("it goes on").events {
            let Event::Put(entry) = event else { panic!("nothing was deleted") };
            seen += 1;
            assert_eq!(String::from_utf8_lossy(entry.value.as_bytes()), seen.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_everything_waits_and_no_lease_ends() {
    let mut etcd = Etcd::start(3, &[]);
    let registry = registry(&etcd.url()).await;
    // It ends within the time in which nobody is heard, and who leads next counts it from its beginning.
    let ttl = Duration::from_secs(8);
    let lease = registry.lease_grant(ttl).await.expect("a lease is granted");
    let put = Txn::new().then(Operation::put_leased("mine", "x", lease.id));
    registry.txn(put).await.expect("it is written");
    let leader = etcd.leader();
    let began = Instant::now();
    let lost = [leader, (leader + 1) % 3];
    lost.iter().for_each(|member| etcd.kill_member(*member));
    let hasty = EtcdRegistry::new(options(&etcd.url()).with_timeout(Duration::from_secs(4)));
    let read = hasty.get("mine").await.expect_err("nobody can tell");
    assert!(matches!(read, RegistryError::Unreachable { .. }), "{read}");
    assert!(read.to_string().contains("majority"), "{read}");
    // Of what a member knows by itself nothing is said, compares alone included.
    let compare = hasty.txn(Txn::new().when(Compare::Exists("mine".to_owned()))).await;
    assert!(compare.is_err(), "{compare:?}");
    let outlasted = ttl + Duration::from_secs(2);
    tokio::time::sleep(outlasted.saturating_sub(began.elapsed())).await;
    lost.iter().for_each(|member| etcd.start_member(*member));
    registry.lease_keep_alive(lease.id).await.expect("time without a majority does not count");
    assert!(registry.get("mine").await.expect("it can be read").is_some());
    registry.lease_revoke(lease.id).await.expect("it lives");
    let gone = registry.lease_keep_alive(lease.id).await.expect_err("it was revoked");
    assert_eq!(gone, RegistryError::LeaseNotFound { lease: lease.id });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_far_behind_shows_all_and_one_that_is_too_far_says_so() {
    const CHANGES: u64 = 2500;
    let etcd = Etcd::start(1, &[]);
    let registry = registry(&etcd.url()).await;
    let first = registry.put("a", "0".into()).await.expect("it is written");
    for number in 1..CHANGES {
        registry.put("a", number.to_string().into()).await.expect("it is written");
    }
    let mut watch = registry.watch("a", first).await.expect("a watch starts");
    let mut seen = 0;
    while seen < CHANGES {
        let batch = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
        let batch = batch.expect("it shows all").expect("history is there");
        for event in &batch.events {
            assert_eq!(event.revision(), Revision(first.0 + seen));
            seen += 1;
        }
        assert_eq!(batch.revision, Revision(first.0 + seen - 1), "and no further");
        assert_eq!(watch.position(), batch.revision.next());
    }
    // What was deleted in the last revision that is cut off is missed, so a watch from there is too late.
    registry.delete("a").await.expect("it is there");
    let deleted = Revision(first.0 + CHANGES);
    registry.put("a", "again".into()).await.expect("it is written");
    registry.compact(deleted).await.expect("the past can be cut off");
    registry.compact(deleted).await.expect("twice is as good as once");
    let late = async {
        let mut watch = registry.watch("a", deleted).await?;
        watch.next().await
    };
    let late = tokio::time::timeout(Duration::from_secs(30), late).await.expect("it is told");
    assert!(matches!(late, Err(RegistryError::Compacted { asked, .. }) if asked == deleted), "{late:?}");
    let mut watch = registry.watch("a", deleted.next()).await.expect("a watch starts");
    let batch =
        tokio::time::timeout(Duration::from_secs(30), watch.next()).await.expect("it shows the change");
    assert_eq!(batch.expect("it is in time").revision, deleted.next());
    let future = registry.compact(Revision(1 << 40)).await.expect_err("that is not there yet");
    assert!(matches!(future, RegistryError::RevisionInFuture { .. }), "{future}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_forgotten_as_it_grows_old_and_the_keys_stay() {
    let etcd = Etcd::start(1, &[]);
    let registry = Arc::new(registry(&etcd.url()).await);
    let first = registry.put("a", "0".into()).await.expect("it is written");
    let cluster = Cluster::new(registry.clone());
    let bounds = HistoryBounds { keep: Duration::from_secs(2), every: Duration::from_millis(200) };
    let bounding = tokio::spawn(async move { cluster.bound_history(bounds).await });
    let is_forgotten = async |from: Revision| {
        let mut watch = registry.watch("a", from).await.expect("a watch starts");
        match tokio::time::timeout(Duration::from_secs(30), watch.next()).await.expect("it shows something") {
            Ok(_) => false,
            Err(RegistryError::Compacted { .. }) => true,
            Err(error) => panic!("{error}"),
        }
    };
    let began = std::time::Instant::now();
    let mut number = 0;
    while !is_forgotten(first).await {
        number += 1;
        registry.put("a", number.to_string().into()).await.expect("it is written");
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is forgotten");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(began.elapsed() > Duration::from_secs(1), "what is new is kept");
    let last = registry.put("a", "last".into()).await.expect("it is written");
    assert!(!is_forgotten(last).await);
    let kept = registry.get("a").await.expect("it can be read").expect("it is there");
    assert_eq!(kept.value.as_bytes(), b"last");
    bounding.abort();
}

/// Writes until an etcd with room for 8 MiB refuses, and answers how.
async fn fill(registry: &EtcdRegistry) -> RegistryError {
    for index in 0..40 {
        if let Err(refused) = registry.put(&format!("large/{index}"), vec![7; 1 << 20].into()).await {
            return refused;
        }
    }
    panic!("40 MiB fit into 8");
}

/// Waits until such troubles are found with the members: who lives may be busy choosing a leader meanwhile.
async fn come_to_be(registry: &EtcdRegistry, are_meant: impl Fn(&[RegistryTrouble]) -> bool) {
    let began = std::time::Instant::now();
    loop {
        let found = registry.troubles().await;
        if are_meant(&found) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_members_is_found() {
    let mut etcd = Etcd::start(3, &["--quota-backend-bytes", "8388608"]);
    let registry = registry(&etcd.url()).await;
    etcd.kill_member(2);
    let port = etcd.url().rsplit(':').next().map(str::to_owned).expect("it has one");
    come_to_be(
        &registry,
        |found| matches!(found, [RegistryTrouble::MemberDown { member, .. }] if member.ends_with(&port)),
    )
    .await;
    etcd.start_member(2);
    let began = std::time::Instant::now();
    // A leader that is busy, or changes, refuses too.
    while !fill(&registry).await.to_string().contains("--quota-backend-bytes") {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not say that it is full");
    }
    come_to_be(&registry, |found| {
        found.len() == 3 && found.iter().all(|one| matches!(one, RegistryTrouble::Full { .. }))
    })
    .await;
    // Alone it takes no part.
    etcd.kill_member(0);
    etcd.kill_member(1);
    let is_alone = |found: &[RegistryTrouble]| {
        let reasons: Vec<&str> = found
            .iter()
            .filter_map(|one| match one {
                RegistryTrouble::MemberDown { reason, .. } => Some(reason.as_str()),
                _ => None,
            })
            .collect();
        reasons.len() == 3 && reasons.iter().any(|reason| reason.contains("majority"))
    };
    come_to_be(&registry, is_alone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_never_lies_about_what_it_did() {
    let etcd = Etcd::start(1, &["--quota-backend-bytes", "8388608"]);
    let registry = registry(&etcd.url()).await;
    let refused = fill(&registry).await;
    assert!(matches!(refused, RegistryError::OutcomeUnknown { .. }), "{refused}");
    assert!(refused.to_string().contains("--quota-backend-bytes"), "{refused}");
    assert!(registry.get("large/0").await.expect("it can be read").is_some());
    assert!(registry.delete("large/0").await.is_ok(), "what makes room is done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_nobody_named_take_over_from_the_one_that_was() {
    let mut etcd = Etcd::start(3, &[]);
    let all = etcd.url();
    drop(registry(&all).await);
    // Each tells where it is when it has started.
    while etcd.ctl(&["member", "list"]).matches(", http://127.0.0.1").count() < 6 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let first = all.split(',').next().expect("there is one");
    let registry = registry(first).await;
    registry.put("a", "1".into()).await.expect("it is written");
    let mut watch = registry.watch("a", Revision(0)).await.expect("a watch starts");
    // It is asked at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    etcd.kill_member(0);
    let began = std::time::Instant::now();
    while let Err(error) = registry.put("a", "2".into()).await {
        assert!(began.elapsed() < Duration::from_secs(40), "{error}");
    }
    let batch = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
    let batch = batch.expect("it shows the change").expect("it goes on");
    assert!(
        matches!(&batch.events[..], [Event::Put(entry), ..] if entry.value.as_bytes() == b"2"),
        "{batch:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_another_etcd_is_not_believed() {
    let mut etcds = [Etcd::start(1, &[]), Etcd::start(1, &[])];
    for (etcd, name) in etcds.iter().zip(["first", "second"]) {
        registry(&etcd.url()).await.put("name", name.into()).await.expect("it is written");
    }
    let both = format!("{},{}", etcds[0].url(), etcds[1].url().replace("etcd://", ""));
    let both = EtcdRegistry::new(options(&both).with_timeout(Duration::from_secs(8)));
    let found = both.get("name").await.expect("one of them answers").expect("both have it").value;
    // Which of them it is is drawn. When that one is gone, the other one is no substitute.
    etcds[usize::from(found.as_bytes() == b"second")].kill_member(0);
    let refused = both.get("name").await.expect_err("the other etcd has other keys");
    assert!(matches!(refused, RegistryError::Unreachable { .. }), "{refused}");
    let write = both.put("name", "third".into()).await.expect_err("nor is it written to");
    assert!(matches!(write, RegistryError::Unreachable { .. }), "{write}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_known_is_refused_and_a_password_lets_in_for_ever() {
    // Tokens live for 2 s.
    let etcd = Etcd::start(1, &["--auth-token-ttl", "2"]);
    drop(registry(&etcd.url()).await);
    etcd.ctl(&["user", "add", "root:secret"]);
    etcd.ctl(&["user", "grant-role", "root", "root"]);
    etcd.ctl(&["role", "add", "mp"]);
    etcd.ctl(&["role", "grant-permission", "mp", "readwrite", "--prefix=true", "/millpond/"]);
    etcd.ctl(&["user", "add", "mp:hush"]);
    etcd.ctl(&["user", "grant-role", "mp", "mp"]);
    etcd.ctl(&["auth", "enable"]);
    let hasty = options(&etcd.url()).with_timeout(Duration::from_secs(3));
    let refused = EtcdRegistry::connect(hasty.clone()).await.err().expect("it says not who it is");
    assert!(refused.to_string().contains("user name"), "{refused}");
    let user =
        |password: &str| registry_etcd::EtcdUser { name: "mp".to_owned(), password: password.to_owned() };
    let wrong = EtcdRegistry::connect(hasty.clone().with_user(user("guess"))).await;
    let wrong = wrong.err().expect("the password is wrong").to_string();
    assert!(wrong.contains("authentication failed") && !wrong.contains("guess"), "{wrong}");
    let registry =
        EtcdRegistry::connect(options(&etcd.url()).with_user(user("hush"))).await.expect("it is let in");
    let mut watch = registry.watch("", Revision(0)).await.expect("a watch starts");
    for round in 0..3 {
        registry.put("k", round.to_string().into()).await.expect("it is written");
        let batch = tokio::time::timeout(Duration::from_secs(30), watch.next()).await;
        assert_eq!(batch.expect("it shows the change").expect("it goes on").events.len(), 1);
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let elsewhere = options(&format!("{}/other", etcd.url())).with_user(user("hush"));
    let elsewhere = EtcdRegistry::connect(elsewhere.with_timeout(Duration::from_secs(3))).await;
    assert!(elsewhere.err().expect("it has no rights there").to_string().contains("permission denied"));
}
