//! Clusters in trouble, and what is said of them.

use super::*;
use crate::view::{self, PgHealth, Reports};
use base::map::{ClusterMap, NodeInfo, OsdInfo, PgConfig, PoolInfo};
use base::schedule::LateSchedule;
use base::status::{Away, OsdStatus, PgState, PgStatus, RecoveryProgress};
use base::{Epoch, OsdId, PgId, PoolId};

/// The moment at which all of it is, in seconds since 1970.
const NOW: u64 = 1_800_000_000;

type Statuses = BTreeMap<OsdId, OsdStatus>;

fn healthy() -> (ClusterMap, Statuses) {
    let mut map = ClusterMap::default();
    let mut statuses = Statuses::new();
    let members: Vec<OsdId> = (0..3).map(OsdId).collect();
    for (index, osd) in (0u32..).zip(&members) {
        let address = Some(format!("127.0.0.1:{}", 7000 + index).parse().unwrap());
        let info = OsdInfo { node: NodeId(index), bytes: 1 << 30, address, ..OsdInfo::default() };
        map.osds.insert(*osd, info);
        statuses.insert(*osd, OsdStatus { usable_bytes: 1 << 30, ..OsdStatus::default() });
    }
    let pool = PoolInfo { name: "default".into(), size: 3, min_size: 2, pg_count: 6, ..PoolInfo::default() };
    map.pools.insert(PoolId(1), pool);
    for index in 0..6 {
        let pg = PgId { pool: PoolId(1), index };
        let primary = OsdId(index % 3);
        let config = PgConfig { epoch: Epoch(1), primary, in_sync: members.clone(), ..PgConfig::default() };
        map.pgs.insert(pg, config);
        let status = PgStatus {
            epoch: Epoch(1),
            state: PgState::Active,
            in_sync: members.clone(),
            objects: 0,
            recovery: None,
            cut_through: Default::default(),
            flatten: Default::default(),
        };
        statuses.get_mut(&primary).unwrap().pgs.insert(pg, status);
    }
    (map, statuses)
}

fn verdict(map: &ClusterMap, statuses: &Statuses) -> Health {
    judged(map, &Reports::from(statuses.clone()))
}

fn judged(map: &ClusterMap, reports: &Reports) -> Health {
    let pgs = view::pgs(map, reports);
    judge(&view::osds(map, reports, NOW), &pgs, &view::pools(map, &pgs), reports.silence.as_deref())
}

#[test]
fn a_whole_cluster_has_no_problems() {
    let (map, statuses) = healthy();
    assert_eq!(verdict(&map, &statuses), Health { level: Level::Ok, problems: vec![] });
}

#[test]
fn a_lost_osd_is_named_with_the_groups_it_stops() {
    let (mut map, mut statuses) = healthy();
    map.osds.get_mut(&OsdId(1)).unwrap().address = None;
    statuses.remove(&OsdId(1));
    let health = verdict(&map, &statuses);
    assert_eq!(health.level, Level::Error);
    let text: Vec<&str> = health.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(
        text,
        ["2 of 6 placement groups are stopped: primary osd.1 is down", "osd.1 on node.1 is down"]
    );
    assert!(health.problems.iter().all(|problem| !problem.next.is_empty()));
}

#[test]
fn a_degraded_group_says_what_it_means_and_what_comes_next() {
    let (mut map, mut statuses) = healthy();
    let pg = PgId { pool: PoolId(1), index: 0 };
    let config = map.pgs.get_mut(&pg).unwrap();
    (config.in_sync, config.learners) = (vec![OsdId(0), OsdId(2)], vec![OsdId(1)]);
    let status = statuses.get_mut(&OsdId(0)).unwrap().pgs.get_mut(&pg).unwrap();
    status.in_sync = vec![OsdId(0), OsdId(2)];
    let health = verdict(&map, &statuses);
    assert_eq!(health.level, Level::Warning);
    assert_eq!(
        (health.problems[0].code, health.problems[0].what.as_str()),
        (Code::PgDegraded, "1 of 6 placement groups of pool default has 2 of 3 copies")
    );
    assert_eq!(
        health.problems[0].consequence,
        "one more failure stops it until somebody is back, and loses nothing"
    );
    let next = &health.problems[0].next;
    assert!(next.starts_with("wait: osd.1 was not reached a moment ago; it catches up"), "{next}");
    let status = statuses.get_mut(&OsdId(0)).unwrap().pgs.get_mut(&pg).unwrap();
    status.recovery = Some(RecoveryProgress { objects_left: 3, bytes_left: 4096 });
    let next = verdict(&map, &statuses).problems.swap_remove(0).next;
    assert_eq!(
        next,
        "wait: osd.1 is catching up by itself; 3 objects, of them 4KiB known to differ, are left"
    );
    statuses.get_mut(&OsdId(1)).unwrap().full = true;
    let next =
        &verdict(&map, &statuses).problems.into_iter().find(|it| it.next.starts_with("wait")).unwrap().next;
    assert!(next.contains("osd.1 is full and may have no room for what it lacks: add OSDs"), "{next}");
    map.osds.get_mut(&OsdId(1)).unwrap().address = None;
    let health = verdict(&map, &statuses);
    let degraded = health.problems.iter().find(|problem| problem.what.contains("2 of 3 copies")).unwrap();
    assert!(degraded.next.starts_with("bring osd.1 back"), "{}", degraded.next);
}

#[test]
fn a_group_is_not_active_on_the_word_of_an_older_epoch() {
    let (mut map, statuses) = healthy();
    map.pgs.get_mut(&PgId { pool: PoolId(1), index: 0 }).unwrap().epoch = Epoch(2);
    let pgs = view::pgs(&map, &Reports::from(statuses));
    assert_eq!((pgs[0].state, pgs[1].state), (PgHealth::Peering, PgHealth::Active));
}

/// The problems of `map`, each with what comes next.
fn told(map: &ClusterMap, statuses: &Statuses, away: Option<Away>) -> Vec<String> {
    let away = away.into_iter().map(|away| (OsdId(2), away)).collect();
    let health = judged(map, &Reports { away, ..Reports::from(statuses.clone()) });
    health.problems.into_iter().map(|problem| format!("{}: {}", problem.what, problem.next)).collect()
}

#[test]
fn an_osd_that_is_down_says_what_becomes_of_it() {
    let (mut map, statuses) = healthy();
    map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    let down = |away| {
        let problems = told(&map, &statuses, away);
        problems.into_iter().find(|problem| problem.starts_with("osd.2 on node.2 is down: ")).unwrap()
    };
    assert!(down(None).ends_with("starts the node again by itself, unless it was told --no-restart"));
    let mut joined = map.clone();
    joined.nodes.insert(NodeId(2), NodeInfo { host: "h3".into(), ..NodeInfo::default() });
    let told = self::told(&joined, &statuses, None);
    assert!(
        told.iter().any(|problem| problem.contains("look at host h3: `millpond node start`")),
        "{told:?}"
    );
    let told = down(Some(Away::Out { at_unix_seconds: NOW + 470 }));
    assert!(told.ends_with("it is taken out in 8 min if it stays away"), "{told}");
    let told = down(Some(Away::In { reason: "too few are left".into() }));
    assert!(told.ends_with("it is not taken out by itself: too few are left"), "{told}");
}

/// The problem of an OSD that is down and tells why.
fn told_of(map: &ClusterMap, statuses: &Statuses, code: Code) -> Problem {
    let problems = verdict(map, statuses).problems;
    let found = problems.iter().find(|problem| problem.code == code);
    found.unwrap_or_else(|| panic!("{code} is missing: {problems:?}")).clone()
}

#[test]
fn an_osd_that_is_not_started_says_why_and_names_the_one_command_that_makes_it_anew() {
    let (mut map, mut statuses) = healthy();
    map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    let reason = "/dev/x: a batch header at offset 4096 is damaged".to_owned();
    let (path, pid) = ("/dev/x".to_owned(), 77);
    let refused = OsdStatus { start_refused: Some(reason.clone()), path, pid, ..OsdStatus::default() };
    statuses.insert(OsdId(2), refused);
    let problem = told_of(&map, &statuses, Code::OsdStartRefused);
    assert_eq!(problem.what, format!("osd.2 on node.2 is down: it is not started: {reason}"));
    assert!(problem.next.starts_with("run `millpond osd replace 2`, with `--drive PATH` if"), "{problem:?}");
    // Nothing else is known of it, and zeros would be figures.
    let osd = &view::osds(&map, &Reports::from(statuses.clone()), NOW)[2];
    assert_eq!((osd.used_bytes, osd.full, osd.is_reported()), (None, None, false));
    assert_eq!((osd.path.as_deref(), osd.pid), (Some("/dev/x"), Some(77)));
    map.nodes.insert(NodeId(2), NodeInfo { host: "h3".into(), ..NodeInfo::default() });
    map.osds.get_mut(&OsdId(2)).unwrap().admission = Admission::Out;
    for config in map.pgs.values_mut() {
        config.in_sync.retain(|osd| *osd != OsdId(2));
        config.primary = config.in_sync[0];
    }
    let problem = told_of(&map, &statuses, Code::OsdStartRefused);
    let next = &problem.next;
    assert!(next.contains("`millpond osd replace 2` on host h3") && next.contains("osd rm 2"), "{next}");
}

#[test]
fn a_drive_that_failed_is_replaced_by_one_command_too() {
    let (mut map, mut statuses) = healthy();
    map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    let status = statuses.get_mut(&OsdId(2)).unwrap();
    (status.failure, status.pid) = (Some("a write failed".to_owned()), 77);
    let next = told_of(&map, &statuses, Code::OsdDriveFailed).next;
    assert!(next.starts_with("put another drive in, and run `millpond osd replace 2`"), "{next}");
    assert!(next.ends_with("have it tried again with `kill 77`"), "{next}");
}

#[test]
fn a_drive_that_hangs_is_looked_at_before_it_is_replaced() {
    let (mut map, mut statuses) = healthy();
    map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    let status = statuses.get_mut(&OsdId(2)).unwrap();
    (status.drive_hangs, status.path) = (true, "/dev/nvme0n1".to_owned());
    let problem = told_of(&map, &statuses, Code::OsdDriveHangs);
    assert!(problem.what.contains("its drive /dev/nvme0n1 does nothing"), "{}", problem.what);
    let next = &problem.next;
    assert!(next.contains("`dmesg`") && next.contains("run `millpond osd replace 2`"), "{next}");
    // One that is out stays up.
    let (mut map, mut statuses) = healthy();
    map.osds.get_mut(&OsdId(2)).unwrap().admission = Admission::Out;
    statuses.get_mut(&OsdId(2)).unwrap().drive_hangs = true;
    let problem = told_of(&map, &statuses, Code::OsdDriveHangs);
    assert!(problem.what.starts_with("osd.2 on node.2: its drive "), "{}", problem.what);
}

#[test]
fn who_is_several_is_told_of_as_several() {
    let (mut map, mut statuses) = healthy();
    let pg = PgId { pool: PoolId(1), index: 0 };
    let config = map.pgs.get_mut(&pg).unwrap();
    (config.primary, config.in_sync) = (OsdId(1), vec![OsdId(1)]);
    config.learners = vec![OsdId(0), OsdId(2)];
    let own = statuses.get_mut(&OsdId(0)).unwrap().pgs.remove(&pg).unwrap();
    statuses.get_mut(&OsdId(1)).unwrap().pgs.insert(pg, PgStatus { in_sync: vec![OsdId(1)], ..own });
    let next = |map: &ClusterMap, statuses: &Statuses| told_of(map, statuses, Code::PgLastCopy).next;
    let both = next(&map, &statuses);
    let expected =
        "wait: osd.0 and osd.2 were not reached a moment ago; they catch up by themselves, or are shown";
    assert!(both.starts_with(expected), "{both}");
    let group = statuses.get_mut(&OsdId(1)).unwrap().pgs.get_mut(&pg).unwrap();
    group.recovery = Some(RecoveryProgress { objects_left: 1, bytes_left: 4096 });
    let both = next(&map, &statuses);
    let expected =
        "wait: osd.0 and osd.2 are catching up by themselves; 1 object, of it 4KiB known to differ, is left";
    assert_eq!(both, expected);
    for osd in [0, 2] {
        statuses.get_mut(&OsdId(osd)).unwrap().full = true;
    }
    let both = next(&map, &statuses);
    assert!(both.contains("osd.0 and osd.2 are full and may have no room for what they lack"), "{both}");
    for osd in [0, 2] {
        map.osds.get_mut(&OsdId(osd)).unwrap().address = None;
    }
    let both = next(&map, &statuses);
    let expected = "bring osd.0 and osd.2 back (`millpond osd tree` shows their nodes); they catch up";
    assert!(both.starts_with(expected), "{both}");
}

#[test]
fn an_osd_that_is_out_is_a_problem_as_long_as_it_holds_or_misses_something() {
    let (mut map, statuses) = healthy();
    map.osds.get_mut(&OsdId(2)).unwrap().admission = Admission::Out;
    // Nothing was found to take its place yet.
    let problems = told(&map, &statuses, None);
    assert!(
        problems[0].starts_with("osd.2 is out; 6 of 6 placement groups are still to be moved off it: nobody")
    );
    for (pg, config) in &map.pgs {
        map.targets.insert(*pg, config.in_sync.iter().copied().filter(|osd| *osd != OsdId(2)).collect());
    }
    let problems = told(&map, &statuses, None);
    assert!(problems[0].contains("are still to be moved off it: wait"), "{problems:?}");
    assert!(
        problems[1].starts_with("pool default wants 3 copies and only 2 OSDs on 2 nodes are in: add one")
    );
    for config in map.pgs.values_mut() {
        config.in_sync.retain(|osd| *osd != OsdId(2));
        config.primary = config.in_sync[0];
    }
    let problems = told(&map, &statuses, None);
    assert!(!problems.iter().any(|problem| problem.contains("moved off it")), "{problems:?}");
    let degraded = problems.iter().find(|problem| problem.contains("2 of 3 copies"));
    assert!(degraded.is_none_or(|problem| problem.contains("osd add")), "{problems:?}");
    map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    let problems = told(&map, &statuses, None);
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("nothing waits for it: remove it with `millpond osd rm 2`")),
        "{problems:?}"
    );
}

#[test]
fn a_full_osd_is_an_error_and_a_damaged_block_a_warning() {
    let (map, mut statuses) = healthy();
    statuses.get_mut(&OsdId(0)).unwrap().damaged_reads = 1;
    statuses.get_mut(&OsdId(2)).unwrap().full = true;
    let health = verdict(&map, &statuses);
    let levels: Vec<Level> = health.problems.iter().map(|problem| problem.level).collect();
    assert_eq!(levels, [Level::Error, Level::Warning]);
    assert!(health.problems[0].what.contains("osd.2 is full"));
    assert!(health.problems[1].what.contains("1 block whose"));
}

#[test]
fn an_osd_on_its_way_to_being_full_says_at_which_point_what_happens() {
    let (map, mut statuses) = healthy();
    let mut judged_at = |used_bytes: u64, full: bool| {
        let status = statuses.get_mut(&OsdId(1)).unwrap();
        (status.usable_bytes, status.used_bytes, status.full) = (1000, used_bytes, full);
        verdict(&map, &statuses)
    };
    assert_eq!(judged_at(849, false).problems, []);
    for (used, start, urgency) in [
        (850, "osd.1 is filled to 85 %", "before that"),
        (899, "osd.1 is filled to 89 %", "before that"),
        (900, "osd.1 is nearly full: filled to 90 %", "now"),
        (999, "osd.1 is nearly full: filled to 99 %", "now"),
    ] {
        let health = judged_at(used, false);
        let [problem] = health.problems.as_slice() else { panic!("{health:?}") };
        assert_eq!((health.level, problem.level), (Level::Warning, Level::Warning));
        assert!(problem.what.starts_with(start), "{}", problem.what);
        let consequence = &problem.consequence;
        assert!(consequence.contains("ENOSPC") && consequence.contains("backfill"), "{consequence}");
        assert!(problem.next.starts_with(&format!("add OSDs or remove data {urgency}")), "{}", problem.next);
    }
    // A full one says so, and nothing less.
    let health = judged_at(1000, true);
    let [problem] = health.problems.as_slice() else { panic!("{health:?}") };
    assert_eq!((problem.level, problem.what.as_str()), (Level::Error, "osd.1 is full and refuses writes"));
}

#[test]
fn figures_nobody_reported_are_absent() {
    let (map, _) = healthy();
    let osds = view::osds(&map, &Reports::default(), NOW);
    let capacity = view::capacity(&osds);
    assert_eq!((capacity.bytes, capacity.used_bytes, capacity.osds_unreported), (3 << 30, None, 3));
    assert_eq!(view::pgs(&map, &Reports::default())[0].state, PgHealth::Unknown);
}

#[test]
fn who_tells_nothing_is_named_once_and_nobody_is_where_no_manager_tells() {
    let (mut map, mut statuses) = healthy();
    statuses.remove(&OsdId(1));
    let health = verdict(&map, &statuses);
    let what: Vec<&str> = health.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(
        what,
        [
            "2 of 6 placement groups are in an unknown state: node.1, which runs the primary, tells nothing",
            "node.1 tells the manager nothing of its 1 OSD, which is up"
        ]
    );
    map.osds.get_mut(&OsdId(2)).unwrap().address = None;
    let reports = Reports { silence: Some("node.0 does not answer".to_owned()), ..Reports::default() };
    let health = judged(&map, &reports);
    let codes: Vec<Code> = health.problems.iter().map(|problem| problem.code).collect();
    // Who is down, the registry knows.
    assert_eq!(codes, [Code::ManagerSilent, Code::PgStopped, Code::PgUnknown, Code::OsdDown]);
    assert!(health.problems[0].what.contains("node.0 does not answer"), "{health:?}");
    assert!(health.problems[2].what.ends_with("nobody tells anything"), "{health:?}");
}

#[test]
fn every_code_can_come_up() {
    let mut found: BTreeSet<Code> = BTreeSet::new();
    let mut see = |change: &dyn Fn(&mut ClusterMap, &mut Statuses)| {
        let (mut map, mut statuses) = healthy();
        change(&mut map, &mut statuses);
        let problems = verdict(&map, &statuses).problems;
        assert!(problems.iter().all(|problem| !problem.consequence.is_empty()), "{problems:?}");
        found.extend(problems.iter().map(|problem| problem.code));
        problems.into_iter().map(|problem| problem.code).collect::<Vec<Code>>()
    };
    let pg = PgId { pool: PoolId(1), index: 0 };
    let state = |statuses: &mut Statuses, state| {
        statuses.get_mut(&OsdId(0)).unwrap().pgs.get_mut(&pg).unwrap().state = state;
    };
    let status = |statuses: &mut Statuses, change: &dyn Fn(&mut OsdStatus)| {
        change(statuses.get_mut(&OsdId(0)).unwrap());
    };
    let is_down = |map: &mut ClusterMap, osd: u32| map.osds.get_mut(&OsdId(osd)).unwrap().address = None;
    let reason = || "a reason".to_owned();
    assert_eq!(see(&|map, _| is_down(map, 1)), [Code::PgStopped, Code::OsdDown]);
    see(&|_, statuses| state(statuses, PgState::Stopped { reason: reason() }));
    assert_eq!(see(&|_, statuses| state(statuses, PgState::Waiting { reason: reason() })), [Code::PgWaiting]);
    assert_eq!(see(&|_, statuses| state(statuses, PgState::Peering)), [Code::PgPeering]);
    assert_eq!(see(&|_, statuses| status(statuses, &|it| it.pgs.clear())), [Code::PgUnknown]);
    assert_eq!(see(&|_, statuses| status(statuses, &|it| it.lost_blocks = 1)), [Code::DataLost]);
    assert_eq!(see(&|_, statuses| status(statuses, &|it| it.full = true)), [Code::OsdFull]);
    let filled = |statuses: &mut Statuses, used| {
        status(statuses, &|it| (it.used_bytes, it.usable_bytes) = (used, 100));
    };
    assert_eq!(see(&|_, statuses| filled(statuses, 85)), [Code::OsdFilling]);
    assert_eq!(see(&|_, statuses| filled(statuses, 90)), [Code::OsdNearlyFull]);
    let damaged = see(&|_, statuses| status(statuses, &|it| it.damaged_reads = 1));
    assert_eq!(damaged, [Code::OsdDamagedBlocks]);
    let copies = |map: &mut ClusterMap, count| map.pgs.get_mut(&pg).unwrap().in_sync.truncate(count);
    assert_eq!(see(&|map, _| copies(map, 2)), [Code::PgDegraded]);
    assert_eq!(see(&|map, _| copies(map, 1)), [Code::PgLastCopy]);
    let failed = see(&|map, statuses| {
        is_down(map, 0);
        status(statuses, &|it| it.failure = Some(reason()));
    });
    assert!(failed.contains(&Code::OsdDriveFailed), "{failed:?}");
    let hangs = see(&|map, statuses| {
        is_down(map, 0);
        status(statuses, &|it| it.drive_hangs = true);
    });
    assert!(hangs.contains(&Code::OsdDriveHangs) && !hangs.contains(&Code::OsdDown), "{hangs:?}");
    let refused = see(&|map, statuses| {
        is_down(map, 2);
        let refused = OsdStatus { start_refused: Some(reason()), ..OsdStatus::default() };
        statuses.insert(OsdId(2), refused);
    });
    assert!(refused.contains(&Code::OsdStartRefused) && !refused.contains(&Code::OsdDown), "{refused:?}");
    let out = |map: &mut ClusterMap, osd: u32| {
        map.osds.get_mut(&OsdId(osd)).unwrap().admission = Admission::Out;
    };
    assert!(see(&|map, _| out(map, 2)).contains(&Code::OsdDraining));
    let short = see(&|map, _| {
        out(map, 2);
        is_down(map, 2);
        for (pg, config) in &mut map.pgs {
            config.in_sync.retain(|osd| *osd != OsdId(2));
            config.primary = config.in_sync[0];
            map.targets.insert(*pg, config.in_sync.clone());
        }
    });
    assert!(short.contains(&Code::OsdRemovable) && short.contains(&Code::PoolShortOfOsds), "{short:?}");
    assert_eq!(see(&|map, _| (map.pools.clear(), map.pgs.clear()).0), [Code::PoolNone]);
    let silent = see(&|_, statuses| drop(statuses.remove(&OsdId(0))));
    assert_eq!(silent, [Code::PgUnknown, Code::NodeSilent]);
    let nobody = Reports { silence: Some(reason()), ..Reports::default() };
    found.extend(judged(&healthy().0, &nobody).problems.iter().map(|problem| problem.code));
    let of_schedule = LateSchedule { slot_unix_seconds: NOW, volumes: Vec::new(), reason: reason() };
    found.extend(late(&[("hourly".to_owned(), of_schedule)].into()).map(|problem| problem.code));
    // What is wrong with the registry, those know who ask it.
    let is_found = |code: &Code| found.contains(code) || code.name().starts_with("REGISTRY_");
    let missing: Vec<Code> = Code::ALL.into_iter().filter(|code| !is_found(code)).collect();
    assert!(missing.is_empty(), "no cluster shows {missing:?}");
}
