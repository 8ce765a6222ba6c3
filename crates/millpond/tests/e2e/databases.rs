//! PostgreSQL with its data on one volume and its log on another, under load, while snapshots are made of both at one moment:
//! a database that is started on clones of each pair is consistent, and has every commit that was acknowledged before they were begun.
//!
//! `MILLPOND_DATABASE_SNAPSHOTS` says how many pairs.

use crate::common::door::Door;
use crate::common::mounted::Mounted;
use crate::common::pond::Pond;
use crate::common::whole::becomes_whole;
use crate::common::{OnDrop, Process, have_own_mounts, path, run, text, wait_until};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testkit::prerequisites::{installed, is_root, not_tested};

/// Of each volume.
const VOLUME_BYTES: u64 = 512 << 20;
/// What is left out where it cannot run.
const TEST: &str = "a database that is snapshotted";
/// How many pairs of snapshots if nothing else is said.
const SNAPSHOTS: usize = 5;
/// From one to the next.
const EVERY: Duration = Duration::from_millis(700);
/// Whom the database runs as: it does not as root.
const USER: &str = "postgres";

/// The programs of the newest PostgreSQL that Debian has installed here.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    programs.filter(|bin| bin.join("pg_amcheck").exists()).max()
}

/// Two volumes, or clones of two snapshots, and the file systems on them.
struct Stage {
    data: Mounted,
    log: Mounted,
    _doors: [Door; 2],
}

/// A database that runs.
struct Database<'a> {
    programs: &'a Path,
    /// Its socket, and what it says.
    home: PathBuf,
    data: PathBuf,
}

impl<'a> Database<'a> {
    /// Makes a new one.
    fn create(programs: &'a Path, home: &Path, data: &Path, log: &Path) -> Database<'a> {
        let database = Database::at(programs, home, data);
        let (data, log) = (path(&database.data).to_owned(), log.join("log"));
        database.does("initdb", &["--auth=trust", "--data-checksums", "-D", &data, "-X", path(&log)]);
        database
    }

    /// Where one was found.
    fn at(programs: &'a Path, home: &Path, data: &Path) -> Database<'a> {
        std::fs::create_dir_all(home).expect("a scratch directory can be made");
        run("chown", &[USER, path(home)]);
        Database { programs, home: home.to_owned(), data: data.join("data") }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        // It becomes the program: who kills the process kills that.
        let mut command = Command::new("setpriv");
        let user = [format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_owned()];
        command.args(user).arg("--").arg(self.programs.join(program)).args(arguments);
        command.current_dir("/").env("PGHOST", &self.home).env("PGUSER", USER).env("PGDATABASE", USER);
        command
    }

    /// Whether it worked, and what it printed.
    fn attempt(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let output = self.command(program, arguments).output().expect("setpriv is there");
        (output.status.success(), text(&output))
    }

    #[track_caller]
    fn does(&self, program: &str, arguments: &[&str]) -> String {
        let (worked, said) = self.attempt(program, arguments);
        let log = || std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
        assert!(worked, "{program} {arguments:?}: {said}\n{}", log());
        said
    }

    fn start(&self) {
        let options = format!("-k {} -c listen_addresses= -c shared_buffers=16MB", path(&self.home));
        let log = self.home.join("log");
        self.does("pg_ctl", &["-D", path(&self.data), "-l", path(&log), "-o", &options, "-w", "start"]);
    }

    fn stop(&self) {
        self.does("pg_ctl", &["-D", path(&self.data), "-m", "fast", "-w", "stop"]);
    }

    #[track_caller]
    fn answers(&self, query: &str) -> String {
        self.does("psql", &["-X", "-A", "-t", "-c", query]).trim().to_owned()
    }

    /// Commits one number after the other. `acknowledged` is how many were.
    fn count(&self, acknowledged: &AtomicU64, enough: &AtomicBool) {
        for next in 1.. {
            if enough.load(Ordering::Relaxed) {
                return;
            }
            self.answers(&format!("insert into numbers values ({next})"));
            acknowledged.store(next, Ordering::SeqCst);
        }
    }

    /// Has the data catch up with the log all the time: data that is newer than the log beside it is of no use.
    fn check_points(&self, enough: &AtomicBool) {
        while !enough.load(Ordering::Relaxed) {
            self.answers("checkpoint");
        }
    }

    /// Asserts that all is there that was acknowledged, that nothing is there without what was committed before it, and that
    /// what each transaction changes in several tables is there in all of them or in none.
    fn is_whole(&self, acknowledged: u64) {
        let numbers = self.answers("select count(*), coalesce(max(n), 0) from numbers");
        let (count, last) = numbers.split_once('|').expect("there are two columns");
        assert_eq!(count, last, "numbers are missing between others");
        let count: u64 = count.parse().expect("a count is a number");
        assert!(count >= acknowledged, "{acknowledged} commits were acknowledged, {count} are there");
        let sums = [
            "abalance) from pgbench_accounts",
            "bbalance) from pgbench_branches",
            "tbalance) from pgbench_tellers",
        ];
        let history = self.answers("select coalesce(sum(delta), 0) from pgbench_history");
        for sum in sums {
            assert_eq!(self.answers(&format!("select sum({sum}")), history, "{sum}");
        }
        self.does("pg_amcheck", &["--install-missing", "--heapallindexed", "-d", USER]);
        self.stop();
        self.does("pg_checksums", &["--check", "-D", path(&self.data)]);
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        self.attempt("pg_ctl", &["-D", path(&self.data), "-m", "immediate", "stop"]);
    }
}

/// Serves two volumes, as devices in folders of these names.
fn stage(pond: &Pond, place: &Path, [data, log]: [&str; 2]) -> Option<Stage> {
    let doors = [data, log].map(|name| pond.serve(name));
    let [data, log] = [(data, &doors[0]), (log, &doors[1])]
        .map(|(name, door)| Mounted::device(TEST, &place.join(name), &door.uri(), VOLUME_BYTES));
    Some(Stage { data: data?, log: log?, _doors: doors })
}

/// Starts a database on clones of the snapshots of that number, and looks at it.
fn look(pond: &Pond, place: &Path, programs: &Path, number: usize, acknowledged: u64) {
    let names = ["data", "log"].map(|volume| {
        let clone = format!("{volume}.{number}");
        pond.run(&["volume", "clone", &format!("{volume}@{number}"), &clone]);
        clone
    });
    let mut stage = stage(pond, place, [&names[0], &names[1]]).expect("it was possible before");
    // The log of the file system is played again. Others with these UUIDs are mounted.
    let (data, log) = (stage.data.mount_with(&["-o", "nouuid"]), stage.log.mount_with(&["-o", "nouuid"]));
    let database = Database::at(programs, &place.join(format!("home.{number}")), &data);
    let to_log = database.data.join("pg_wal");
    std::fs::remove_file(&to_log).expect("the log is elsewhere");
    symlink(log.join("log"), &to_log).expect("the data's folder can be written to");
    std::fs::remove_file(database.data.join("postmaster.pid")).expect("it ran when the snapshots were made");
    database.start();
    database.is_whole(acknowledged);
    drop(database);
    for mounted in [&mut stage.data, &mut stage.log] {
        mounted.unmount();
        mounted.on_device(&["xfs_repair", "-n"]);
    }
    drop(stage);
    for name in &names {
        pond.run(&["volume", "rm", name, "--now"]);
    }
}

#[test]
#[ignore = "it needs PostgreSQL, which `make nightly` installs"]
fn a_database_on_snapshots_of_two_volumes_at_one_moment_has_all_that_was_committed_before() {
    let needed = ["nbdfuse", "losetup", "mount", "fusermount3", "mkfs.xfs", "xfs_repair", "setpriv"];
    if !installed(TEST, &needed) || !is_root(TEST, "mounting") {
        return;
    }
    let Some(programs) = programs() else {
        return not_tested(TEST, "PostgreSQL is not installed; install the package `postgresql`");
    };
    have_own_mounts();
    let snapshots = std::env::var("MILLPOND_DATABASE_SNAPSHOTS");
    let snapshots = snapshots.map_or(SNAPSHOTS, |text| text.parse().expect("it is a number"));
    // Where another user gets to.
    let place = tempfile::tempdir().expect("a scratch directory can be made");
    let may_enter = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(place.path(), may_enter).expect("one's own may be changed");
    let pond = Pond::start("4GiB");
    pond.volume("data", "512MiB");
    pond.volume("log", "512MiB");
    becomes_whole(&pond);
    let Some(mut stage) = stage(&pond, place.path(), ["data", "log"]) else { return };
    let [data, log] = [&mut stage.data, &mut stage.log].map(|mounted| {
        mounted.on_device(&["mkfs.xfs", "-q", "-f"]);
        let top = mounted.mount();
        run("chown", &[USER, path(&top)]);
        top
    });
    let database = Database::create(&programs, &place.path().join("home"), &data, &log);
    database.start();
    database.answers("create table numbers (n bigint primary key)");
    database.does("pgbench", &["-i", "-q", "-s", "2"]);
    let (acknowledged, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut load = Process::start(
        &mut database.command("pgbench", &["-c", "4", "-T", "86400"]),
        &place.path().join("pgbench.log"),
    );
    let made: Vec<u64> = std::thread::scope(|scope| {
        // Also when what follows panics: the scope waits for its threads.
        let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
        scope.spawn(|| database.count(&acknowledged, &enough));
        scope.spawn(|| database.check_points(&enough));
        let make = |number: usize| {
            std::thread::sleep(EVERY);
            let before = acknowledged.load(Ordering::SeqCst);
            pond.run(&["volume", "snapshot", "create", &format!("data@{number}"), &format!("log@{number}")]);
            before
        };
        (0..snapshots).map(make).collect()
    });
    assert!(load.runs(), "pgbench ended: {}", load.said());
    load.is_killed();
    let served = "select count(*) from pg_stat_activity where application_name = 'pgbench'";
    wait_until("the last transaction ended", || database.answers(served) == "0");
    database.is_whole(acknowledged.load(Ordering::SeqCst));
    for (number, acknowledged) in made.iter().enumerate() {
        look(&pond, place.path(), &programs, number, *acknowledged);
    }
    eprintln!("{snapshots} pairs, the last one after {:?} commits were acknowledged", made.last());
    drop(database);
    stage.data.unmount();
    stage.log.unmount();
}
