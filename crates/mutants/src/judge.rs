//! What may notice a mutant: programs that fail if it matters to them.
//!
//! They are asked in the order of their cost, and each only of mutants that it comes by when none is on: the others change
//! nothing that it does.

use crate::build::Programs;
use crate::switch::{MUTANT, REACHED};
use anyhow::{Context, bail};
use sim::cluster::Scenario;
use std::fs::{self, File};
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

/// Programs of tests end within this without a mutant, and rounds of lives, watched or not.
const PLAIN_LIMIT: Duration = Duration::from_secs(3600);

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

/// All judges: programs of tests, and so many lives of stores and of clusters.
#[must_use]
pub fn judges(programs: &Programs, directory: &Path, lives: u64) -> Vec<Judge> {
    let tests = programs.tests.iter().map(|test| Judge {
        name: test.name.clone(),
        program: test.program.clone(),
        arguments: Vec::new(),
        directory: test.directory.clone(),
        is_deterministic: false,
    });
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
    let mut judges: Vec<Judge> = tests.collect();
    judges
        .extend(rounds(lives, STORES_FIRST).into_iter().map(|seeds| of_lives("stores", &["--store"], seeds)));
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

    /// Runs it.
    ///
    /// # Errors
    /// It cannot be run at all.
    pub fn run(&self, mode: Mode, place: &Place) -> anyhow::Result<Outcome> {
        let limit = match mode {
            Mode::Plain | Mode::Watch(_) => PLAIN_LIMIT,
            Mode::Mutant(_, limit) => limit,
        };
        let cannot = || format!("{}: cannot be run", self.name);
        fs::create_dir_all(&place.scratch).with_context(cannot)?;
        let output = File::create(&place.output).with_context(cannot)?;
        // `timeout` ends it with all that it started, even if this program is gone by then.
        let mut command = Command::new("timeout");
        command
            .arg("--signal=KILL")
            .arg(limit.as_secs().max(1).to_string())
            .arg(&self.program)
            .args(&self.arguments);
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
        let removed = fs::remove_dir_all(&place.scratch);
        let said = String::from_utf8_lossy(&fs::read(&place.output)?).into_owned();
        // These are of `timeout` itself.
        if matches!(status.code(), Some(125..=127)) {
            bail!("{}: cannot be run: {}", self.name, said.trim());
        }
        removed.with_context(cannot)?;
        let failure = match status.success() {
            true => None,
            false if took >= limit => Some(format!("no end within {} s", limit.as_secs())),
            false => Some(evidence(&said).unwrap_or_else(|| status.to_string())),
        };
        Ok(Outcome { failure, seconds: took.as_secs_f64() })
    }
}

/// What of a program's words tells why it failed: the first test, or the first seed, or else the last line.
fn evidence(said: &str) -> Option<String> {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let tells = |line: &&str| line.ends_with("... FAILED") || line.starts_with("seed ");
    lines().find(tells).or_else(|| lines().next_back()).map(crate::rewrite::on_a_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::TestProgram;

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
    fn all_lives_are_lived_and_each_script_has_a_share_of_them() {
        let test =
            TestProgram { name: "pg: unit tests".to_owned(), program: "/pg".into(), directory: "/".into() };
        let programs = Programs { tests: vec![test], simulator: "/sim".into() };
        let judges = judges(&programs, Path::new("/"), 200);
        let with = |option: &str| -> Vec<&str> {
            let of = judges.iter().filter(|judge| judge.arguments.iter().any(|one| one == option));
            of.map(|judge| judge.name.as_str()).collect()
        };
        assert_eq!(judges[0].name, "pg: unit tests");
        assert_eq!(with("--store"), ["stores: lives 0 to 99", "stores: lives 100 to 199"]);
        assert_eq!(with("AwayPastTheLog"), ["AwayPastTheLog: lives 0 to 5", "AwayPastTheLog: lives 6 to 9"]);
        assert_eq!(with("--scenario").len(), 2 * Scenario::ALL.len());
        assert_eq!(judges.len(), 1 + 2 + 3 + 2 * Scenario::ALL.len());
    }

    #[test]
    fn what_fails_tells_why() {
        assert_eq!(
            evidence("running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nerror\n").unwrap(),
            "test b ... FAILED"
        );
        assert_eq!(evidence("  seed 7 failed: stale\n  replay it\n").unwrap(), "seed 7 failed: stale");
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
        let failure = run(&sleeps, Mode::Mutant(7, Duration::from_secs(1))).unwrap().failure;
        assert_eq!(failure.unwrap(), "no end within 1 s");
        let missing = Judge { program: "/not/there".into(), ..judge("true") };
        assert!(run(&missing, mutant).is_err());
    }

    #[test]
    fn a_judge_that_is_watched_has_no_mutant_on() {
        let asks = judge("test -z \"$MILLPOND_MUTANT\" && test $MILLPOND_MUTANTS_REACHED = /a/file");
        assert_eq!(run(&asks, Mode::Watch(Path::new("/a/file"))).unwrap().failure, None);
    }
}
