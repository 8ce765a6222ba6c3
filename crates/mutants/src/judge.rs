//! What may notice a mutant: programs that fail if it matters to them.
//!
//! They are asked in the order of their cost, and each only of mutants that it comes by when none is on: the others change
//! nothing that it does. Each test is a judge by itself: so a mutant is brought before few of a crate's tests, is killed by the
//! first that fails, and no test suffers from what another does to its process.

use crate::build::{Programs, TestProgram};
use crate::rewrite::on_a_line;
use crate::switch::{MUTANT, REACHED};
use anyhow::{Context, bail, ensure};
use sim::cluster::Scenario;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Lives of the first round of stores, of clusters, and of each script. A mistake that matters everywhere dies in them.
const STORES_FIRST: u64 = 100;
const CLUSTERS_FIRST: u64 = 25;
const SCRIPTED_FIRST: u64 = 6;
/// The most lives of one round: if a mutant never ends, all of its round's time is waited.
const ROUND_MAX: u64 = 400;
/// Of so many lives, one goes by each script.
const LIVES_A_SCRIPTED: u64 = 20;

/// Tests end within this without a mutant, and rounds of lives, watched or not.
const PLAIN_LIMIT: Duration = Duration::from_secs(600);

/// So much of what one says is looked at: who says the same again and again says more than there is room for.
const SAID_BYTES_MAX: u64 = 4 << 20;

/// One that may notice.
#[derive(Clone, Debug)]
pub struct Judge {
    /// What it is called.
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    /// It does the same each time. Others are asked twice before they are believed.
    pub is_deterministic: bool,
}

/// What a judge runs for.
#[derive(Clone, Copy, Debug)]
pub enum Mode<'a> {
    /// No mutant is on.
    Plain,
    /// No mutant is on, and those that it comes by are written to this file, which takes some times as long.
    Watch(&'a Path),
    /// This mutant is on, and so much time is given.
    Mutant(u32, Duration),
}

/// Where a judge may write: one at a time.
#[derive(Clone, Debug)]
pub struct Place {
    /// For what it makes. Removed afterwards.
    pub scratch: PathBuf,
    /// For what it says.
    pub output: PathBuf,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why it did not end well, if so.
    pub failure: Option<String>,
    /// It did not end by itself in the time that was given.
    pub was_ended: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// The first seeds of so many lives in rounds that become longer.
fn rounds(lives: u64, first: u64) -> Vec<Range<u64>> {
    let (mut rounds, mut begin, mut end) = (Vec::new(), 0, first);
    while begin < lives {
        rounds.push(begin..end.min(lives));
        begin = end;
        end = (end * 4).min(end + ROUND_MAX);
    }
    rounds
}

/// The judges that are tests: all of these programs.
///
/// # Errors
/// A program does not tell which it has.
pub fn tests_of(programs: &[TestProgram]) -> anyhow::Result<Vec<Judge>> {
    let mut judges = Vec::new();
    for TestProgram { name, program, directory } in programs {
        let mut command = Command::new(program);
        command.args(["--list", "--format", "terse"]).current_dir(directory).stdin(Stdio::null());
        let output = command.output().with_context(|| format!("{name}: cannot be run"))?;
        ensure!(output.status.success(), "{name}: does not tell which tests it has: {}", output.status);
        let listing = String::from_utf8(output.stdout).with_context(|| format!("{name}: lists no text"))?;
        judges.extend(listing.lines().filter_map(|line| line.strip_suffix(": test")).map(|test| Judge {
            name: format!("{name}: {test}"),
            program: program.clone(),
            arguments: vec!["--exact".to_owned(), test.to_owned()],
            directory: directory.clone(),
            is_deterministic: false,
        }));
    }
    Ok(judges)
}

/// The judges that are lives: so many of stores and of clusters, and a share of that by each script.
#[must_use]
pub fn lives_of(programs: &Programs, directory: &Path, lives: u64) -> Vec<Judge> {
    let of_lives = |what: &str, option: &[&str], seeds: Range<u64>| {
        let numbers = [
            "--from".to_owned(),
            seeds.start.to_string(),
            "--seeds".to_owned(),
            (seeds.end - seeds.start).to_string(),
        ];
        Judge {
            name: format!("{what}: lives {} to {}", seeds.start, seeds.end - 1),
            program: programs.simulator.clone(),
            arguments: option.iter().map(|&one| one.to_owned()).chain(numbers).collect(),
            directory: directory.to_owned(),
            is_deterministic: true,
        }
    };
    let of_stores =
        rounds(lives, STORES_FIRST).into_iter().map(|seeds| of_lives("stores", &["--store"], seeds));
    let mut judges: Vec<Judge> = of_stores.collect();
    judges.extend(rounds(lives, CLUSTERS_FIRST).into_iter().map(|seeds| of_lives("clusters", &[], seeds)));
    for scenario in Scenario::ALL.map(|scenario| format!("{scenario:?}")) {
        let seeds = rounds(lives / LIVES_A_SCRIPTED, SCRIPTED_FIRST);
        judges.extend(seeds.into_iter().map(|seeds| of_lives(&scenario, &["--scenario", &scenario], seeds)));
    }
    judges
}

impl Judge {
    /// One that a shell is, for tests.
    #[cfg(test)]
    pub(crate) fn of_shell(name: &str, script: &str) -> Judge {
        Judge {
            name: name.to_owned(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            directory: "/".into(),
            is_deterministic: true,
        }
    }

    /// Has it run, and once more if it fails though it does not do the same each time: that may have other causes. Who did not
    /// end is not waited for again.
    ///
    /// # Errors
    /// It cannot be run at all.
    pub fn ask(&self, mode: Mode, place: &Place) -> anyhow::Result<Outcome> {
        let outcome = self.run(mode, place)?;
        let is_doubted = outcome.failure.is_some() && !outcome.was_ended && !self.is_deterministic;
        if is_doubted { self.run(mode, place) } else { Ok(outcome) }
    }

    fn run(&self, mode: Mode, place: &Place) -> anyhow::Result<Outcome> {
        let limit = match mode {
            Mode::Plain | Mode::Watch(_) => PLAIN_LIMIT,
            Mode::Mutant(_, limit) => limit,
        };
        let limit_seconds = limit.as_secs_f64().ceil().max(1.0) as u64;
        let cannot = || format!("{}: cannot be run", self.name);
        fs::create_dir_all(&place.scratch).with_context(cannot)?;
        let output = File::create(&place.output).with_context(cannot)?;
        // `timeout` ends it with all that it started, even if this program is gone by then.
        let mut command = Command::new("timeout");
        command.arg("--signal=KILL").arg(limit_seconds.to_string()).arg(&self.program).args(&self.arguments);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
            .env("TMPDIR", &place.scratch)
            .env("RUST_BACKTRACE", "0")
            .env_remove(MUTANT)
            .env_remove(REACHED);
        match mode {
            Mode::Plain => {}
            Mode::Watch(file) => {
                command.env(REACHED, file);
            }
            Mode::Mutant(number, _) => {
                command.env(MUTANT, number.to_string());
            }
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let begin = Instant::now();
        let status = command.status().with_context(cannot)?;
        let took = begin.elapsed();
        // What cannot be removed, such as what is mounted there, is in nobody's way.
        let _ = fs::remove_dir_all(&place.scratch);
        let mut said = Vec::new();
        File::open(&place.output)?.take(SAID_BYTES_MAX).read_to_end(&mut said)?;
        let said = String::from_utf8_lossy(&said);
        // These are of `timeout` itself.
        if matches!(status.code(), Some(125..=127)) {
            bail!("{}: cannot be run: {}", self.name, said.trim());
        }
        let was_ended = !status.success() && took >= Duration::from_secs(limit_seconds);
        let failure = match status.success() {
            true => None,
            false if was_ended => Some(format!("no end within {limit_seconds} s")),
            false => Some(evidence(&said).unwrap_or_else(|| status.to_string())),
        };
        Ok(Outcome { failure, was_ended, seconds: took.as_secs_f64() })
    }
}

/// What of a program's words tells why it failed: the first life that did, or the first panic, or test, or else the last line.
fn evidence(said: &str) -> Option<String> {
    const PANIC: &str = "panicked at ";
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // What panicked in a life is told again with the failure of that life.
    let of_life = lines.iter().find(|line| line.starts_with("seed ") && !line.ends_with(" panicked"));
    if let Some(line) = of_life {
        return Some(on_a_line(line));
    }
    let of_panic = lines.iter().enumerate().find_map(|(index, line)| Some((index, line.find(PANIC)?)));
    if let Some((index, begin)) = of_panic {
        let message = lines.get(index + 1).copied().unwrap_or_default();
        return Some(on_a_line(&format!("{} {message}", &lines[index][begin..])));
    }
    lines.iter().find(|line| line.ends_with("... FAILED")).or(lines.last()).map(|line| on_a_line(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(script: &str) -> Judge {
        Judge::of_shell("it", script)
    }

    fn run(judge: &Judge, mode: Mode) -> anyhow::Result<Outcome> {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { scratch: scratch.path().join("scratch"), output: scratch.path().join("output") };
        let outcome = judge.run(mode, &place);
        assert!(outcome.is_err() || !place.scratch.exists());
        outcome
    }

    #[test]
    fn each_life_is_in_one_round_and_later_rounds_are_longer() {
        assert_eq!(rounds(2000, 25), [0..25, 25..100, 100..400, 400..800, 800..1200, 1200..1600, 1600..2000]);
        assert_eq!(rounds(30, 25), [0..25, 25..30]);
        assert_eq!(rounds(10, 25).last(), Some(&(0..10)));
        assert_eq!(rounds(0, 25), []);
    }

    #[test]
    fn each_test_of_a_program_is_a_judge_that_runs_it_alone() {
        const THIS: &str = "judge::tests::each_test_of_a_program_is_a_judge_that_runs_it_alone";
        const OTHER: &str = "judge::tests::what_fails_tells_why";
        let program = std::env::current_exe().unwrap();
        let program = TestProgram { name: "mutants: unit tests".to_owned(), program, directory: "/".into() };
        let judges = tests_of(&[program]).unwrap();
        let of =
            |test: &str| judges.iter().find(|judge| judge.name == format!("mutants: unit tests: {test}"));
        assert!(of(THIS).is_some());
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { scratch: scratch.path().join("scratch"), output: scratch.path().join("output") };
        assert_eq!(of(OTHER).unwrap().run(Mode::Plain, &place).unwrap().failure, None);
        let said = fs::read_to_string(&place.output).unwrap();
        assert!(said.contains("running 1 test\n") && said.contains(OTHER), "{said}");
    }

    #[test]
    fn all_lives_are_lived_and_each_script_has_a_share_of_them() {
        let programs = Programs { tests: Vec::new(), simulator: "/sim".into() };
        let judges = lives_of(&programs, Path::new("/"), 200);
        let with = |option: &str| -> Vec<&str> {
            let of = judges.iter().filter(|judge| judge.arguments.iter().any(|one| one == option));
            of.map(|judge| judge.name.as_str()).collect()
        };
        assert_eq!(with("--store"), ["stores: lives 0 to 99", "stores: lives 100 to 199"]);
        assert_eq!(with("AwayPastTheLog"), ["AwayPastTheLog: lives 0 to 5", "AwayPastTheLog: lives 6 to 9"]);
        assert_eq!(with("--scenario").len(), 2 * Scenario::ALL.len());
        assert_eq!(judges.len(), 2 + 3 + 2 * Scenario::ALL.len());
    }

    #[test]
    fn what_fails_tells_why() {
        assert_eq!(
            evidence("running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nerror\n").unwrap(),
            "test b ... FAILED"
        );
        assert_eq!(evidence("  seed 7 failed: stale\n  replay it\n").unwrap(), "seed 7 failed: stale");
        let panic = "thread 'main' (7) panicked at a.rs:1:2:\nno such group\n";
        assert_eq!(
            evidence(&format!("test b ... FAILED\n{panic}")).unwrap(),
            "panicked at a.rs:1:2: no such group"
        );
        let life = format!("{panic}seed 7 panicked\nseed 7 failed at 0.1 s: panic: no such group\n");
        assert_eq!(evidence(&life).unwrap(), "seed 7 failed at 0.1 s: panic: no such group");
        assert_eq!(evidence("one\ntwo\n\n").unwrap(), "two");
        assert_eq!(evidence("\n"), None);
    }

    #[test]
    fn a_judge_is_told_which_mutant_is_on_and_has_so_much_time() {
        let mutant = Mode::Mutant(7, Duration::from_secs(60));
        let asks = judge("test $MILLPOND_MUTANT = 7 && test -d $TMPDIR && touch $TMPDIR/it");
        assert_eq!(run(&asks, mutant).unwrap().failure, None);
        let fails = judge("echo seed 3; echo else; exit 1");
        assert_eq!(run(&fails, mutant).unwrap().failure.unwrap(), "seed 3");
        let sleeps = judge("sleep 600 & sleep 600");
        let outcome = run(&sleeps, Mode::Mutant(7, Duration::from_millis(400))).unwrap();
        assert!(outcome.was_ended);
        assert_eq!(outcome.failure.unwrap(), "no end within 1 s");
        let missing = Judge { program: "/not/there".into(), ..judge("true") };
        assert!(run(&missing, mutant).is_err());
    }

    #[test]
    fn who_fails_is_asked_again_unless_that_is_known_to_be_the_same_or_there_was_no_end() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { scratch: scratch.path().join("scratch"), output: scratch.path().join("output") };
        let count = scratch.path().join("count");
        let asked = |script: &str, is_deterministic: bool| {
            fs::write(&count, "").unwrap();
            let judge = judge(&format!("echo >> {}; {script}", count.display()));
            let judge = Judge { is_deterministic, ..judge };
            let outcome = judge.ask(Mode::Mutant(7, Duration::from_secs(1)), &place).unwrap();
            (fs::read_to_string(&count).unwrap().len(), outcome.failure.is_some())
        };
        assert_eq!(asked("true", false), (1, false));
        assert_eq!(asked("exit 1", false), (2, true));
        let second = format!("test $(wc -l < {}) = 2", count.display());
        assert_eq!(asked(&second, false), (2, false));
        assert_eq!(asked("exit 1", true), (1, true));
        assert_eq!(asked("sleep 600", false), (1, true));
    }

    #[test]
    fn a_judge_that_is_watched_has_no_mutant_on() {
        let asks = judge("test -z \"$MILLPOND_MUTANT\" && test $MILLPOND_MUTANTS_REACHED = /a/file");
        assert_eq!(run(&asks, Mode::Watch(Path::new("/a/file"))).unwrap().failure, None);
    }
}
