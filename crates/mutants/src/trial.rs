//! A sample of mutants before the judges.

use crate::build::build;
use crate::equivalent::Equivalents;
use crate::judge::{Judge, Mode, Place, lives_of, tests_of};
use crate::results::{Judged, Results, Summary, Verdict, write_whole};
use crate::scope::Catalogue;
use crate::tree::Tree;
use anyhow::{Context, bail, ensure};
use base::keyed_hash;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A judge may take so many times as long as it did without a mutant.
const TIMES_AS_LONG: f64 = 5.0;
/// And no less than this: a busy machine is no mutant.
const LIMIT_MIN: Duration = Duration::from_secs(10);
/// All judges of a mutant may take so many times as long as they did without, and some time more for those that fail twice.
const TIMES_ALTOGETHER: f64 = 3.0;
const ALLOWANCE: Duration = Duration::from_secs(20);
/// How long a judge takes without a mutant for a person to be told of it by itself, in seconds.
const LONG_SECONDS: f64 = 2.0;
/// How often it is told, and kept, how far watching is.
const KEPT_EVERY: Duration = Duration::from_secs(10);

/// Where is kept what need not be found again.
const STATE: &str = "state.json";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many mutants to draw.
    pub sample: usize,
    /// By what: the first of a larger sample of the same seed are those of a smaller one.
    pub seed: u64,
    /// How many lives of stores, and as many of clusters, a mutant must survive.
    pub lives: u64,
    /// How many judges at a time.
    pub workers: usize,
    /// The crates to draw from.
    pub packages: Vec<String>,
    /// Where results are kept.
    pub results: PathBuf,
}

/// What need not be found again of the same sources.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    sources: String,
    /// Mutants that do not compile.
    not_viable: BTreeSet<u32>,
    /// What judges do without a mutant.
    watched: BTreeMap<String, Watched>,
}

/// What a judge does without a mutant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Watched {
    seconds: f64,
    /// The mutants that it comes by.
    reached: BTreeSet<u32>,
    failure: Option<String>,
}

impl State {
    fn save(&self, folder: &Path) -> anyhow::Result<()> {
        write_whole(&folder.join(STATE), &serde_json::to_string(self)?)
    }
}

/// The mutants that are drawn of those that compile, in the order in which they are judged.
fn drawn(catalogue: &Catalogue, not_viable: &BTreeSet<u32>, options: &Options) -> Vec<u32> {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&options.seed.to_le_bytes());
    let viable = catalogue.mutants.iter().filter(|(number, mutant)| {
        !not_viable.contains(number) && options.packages.contains(&mutant.package)
    });
    let mut lots: Vec<(u64, u32)> =
        viable.map(|(number, mutant)| (keyed_hash(&key, [mutant.key().as_bytes()]), *number)).collect();
    lots.sort_unstable();
    lots.into_iter().take(options.sample).map(|(_, number)| number).collect()
}

/// Does the work for each of them, some at a time, until it fails for one.
fn for_each<T: Sync>(
    all: &[T],
    workers: usize,
    work: impl Fn(&T, &Place) -> anyhow::Result<()> + Sync,
    folder: &Path,
) -> anyhow::Result<()> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work_on = |worker: usize| {
        // Short, for the path of a socket has 107 characters at most.
        let scratch = std::env::temp_dir().join(format!("mutants-{}-{worker}", std::process::id()));
        let place = Place { scratch, output: folder.join(format!("output-{worker}")) };
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(one, &place) {
                next.store(all.len(), Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let work_on = &work_on;
            scope.spawn(move || work_on(worker));
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// What a judge does without a mutant: it runs once for its time, and once to see what it comes by.
fn watched(judge: &Judge, place: &Place) -> anyhow::Result<Watched> {
    let file = place.output.with_extension("reached");
    let _ = fs::remove_file(&file);
    let mut outcome = judge.ask(Mode::Plain, place)?;
    if outcome.failure.is_none() {
        outcome.failure = judge.ask(Mode::Watch(&file), place)?.failure;
    }
    // Who comes by none writes none.
    let text = fs::read_to_string(&file).unwrap_or_default();
    let reached: Result<BTreeSet<u32>, _> = text.lines().map(str::parse).collect();
    let reached = reached.with_context(|| format!("{}: cannot be understood", file.display()))?;
    Ok(Watched { seconds: outcome.seconds, reached, failure: outcome.failure })
}

/// Has each judge run without a mutant, unless it is known how it does that well.
fn watch(judges: &[Judge], state: &Mutex<State>, folder: &Path, workers: usize) -> anyhow::Result<()> {
    let is_known =
        |judge: &Judge| lock(state).watched.get(&judge.name).is_some_and(|watched| watched.failure.is_none());
    let unknown: Vec<&Judge> = judges.iter().filter(|judge| !is_known(judge)).collect();
    println!("{} of {} judges are to run without a mutant", unknown.len(), judges.len());
    let (left, kept_at) = (AtomicUsize::new(unknown.len()), Mutex::new(Instant::now()));
    let work = |judge: &&Judge, place: &Place| -> anyhow::Result<()> {
        let watched = watched(judge, place)?;
        let name = &judge.name;
        match &watched.failure {
            Some(failure) if judge.is_deterministic => bail!("{name} fails without a mutant: {failure}"),
            Some(failure) => println!("fails without a mutant, and judges nothing: {name}: {failure}"),
            None if watched.seconds >= LONG_SECONDS => {
                println!("{:>6.1} s, {:>5} mutants: {name}", watched.seconds, watched.reached.len());
            }
            None => {}
        }
        let left = left.fetch_sub(1, Ordering::Relaxed) - 1;
        let (mut state, mut kept_at) = (lock(state), lock(&kept_at));
        state.watched.insert(name.clone(), watched);
        if left == 0 || kept_at.elapsed() >= KEPT_EVERY {
            println!("{left} judges are left to run without a mutant");
            state.save(folder)?;
            *kept_at = Instant::now();
        }
        Ok(())
    };
    let done = for_each(&unknown, workers, work, folder);
    // What was seen before one failed is kept, too.
    lock(state).save(folder)?;
    done
}

/// How long a mutant may take, before judges that take so many seconds without it.
fn altogether(seconds: f64) -> Duration {
    Duration::from_secs_f64(TIMES_ALTOGETHER * seconds) + ALLOWANCE
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a mutant may take before a judge that takes so many seconds without it, if so much is left for all of them.
fn limit(seconds: f64, left: Duration) -> Duration {
    LIMIT_MIN.max(Duration::from_secs_f64(TIMES_AS_LONG * seconds)).min(left)
}

/// What becomes of a mutant before these judges.
fn verdict(judges: &[(&Judge, &Watched)], mutant: u32, place: &Place) -> anyhow::Result<Verdict> {
    let come_by: Vec<&(&Judge, &Watched)> =
        judges.iter().filter(|(_, watched)| watched.reached.contains(&mutant)).collect();
    let (begin, all) = (Instant::now(), altogether(come_by.iter().map(|(_, watched)| watched.seconds).sum()));
    for (judge, watched) in &come_by {
        let limit = limit(watched.seconds, all.saturating_sub(begin.elapsed()));
        let outcome = judge.ask(Mode::Mutant(mutant, limit), place)?;
        if let Some(evidence) = outcome.failure {
            return Ok(Verdict::Killed { judge: judge.name.clone(), evidence, seconds: outcome.seconds });
        }
    }
    Ok(if come_by.is_empty() { Verdict::Unreached } else { Verdict::Survived })
}

/// How many of the mutants are of each crate.
fn by_package(catalogue: &Catalogue, is_meant: impl Fn(u32) -> bool) -> BTreeMap<String, usize> {
    let mut numbers = BTreeMap::new();
    for (_, mutant) in catalogue.mutants.iter().filter(|(number, _)| is_meant(**number)) {
        *numbers.entry(mutant.package.clone()).or_default() += 1;
    }
    numbers
}

/// Has those judged that were drawn and are not yet in the results.
fn judge_drawn(
    drawn: &[u32],
    catalogue: &Catalogue,
    judges: &[(&Judge, &Watched)],
    results: Results,
    options: &Options,
    folder: &Path,
) -> anyhow::Result<Results> {
    let is_open = |number: &u32| !results.judged.contains_key(&catalogue.mutants[number].key());
    let open: Vec<u32> = drawn.iter().copied().filter(is_open).collect();
    let (left, results) = (AtomicUsize::new(open.len()), Mutex::new(results));
    let work = |number: &u32, place: &Place| {
        let mutant = catalogue.mutants[number].clone();
        let begin = Instant::now();
        let verdict = verdict(judges, *number, place)?;
        let words = match &verdict {
            Verdict::Killed { judge, evidence, .. } => format!("killed by {judge}: {evidence}"),
            Verdict::Survived => "SURVIVED".to_owned(),
            Verdict::Unreached => "unreached".to_owned(),
            Verdict::Equivalent { reason } => format!("equivalent: {reason}"),
        };
        let left = left.fetch_sub(1, Ordering::Relaxed) - 1;
        println!(
            "{left:>5} left, {:>5.1} s: {} (mutant {number}): {words}",
            begin.elapsed().as_secs_f64(),
            mutant.key()
        );
        let mut results = lock(&results);
        results.judged.insert(mutant.key(), Judged { number: *number, mutant, verdict });
        results.save(&options.results)
    };
    for_each(&open, options.workers, work, folder)?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Notes of those that were drawn which are known as equivalent, and tells where judges know better.
fn note_equivalents(results: &mut Results, drawn: &[u32], catalogue: &Catalogue, equivalents: &Equivalents) {
    // The list is a person's to change.
    results.judged.retain(|_, one| !matches!(one.verdict, Verdict::Equivalent { .. }));
    for number in drawn {
        let mutant = &catalogue.mutants[number];
        let Some(reason) = equivalents.reason(mutant) else { continue };
        let key = mutant.key();
        if let Some(Judged { verdict: Verdict::Killed { judge, .. }, .. }) = results.judged.get(&key) {
            println!("{key}: is listed as equivalent, and was killed by {judge}");
            continue;
        }
        let verdict = Verdict::Equivalent { reason: reason.to_owned() };
        results.judged.insert(key, Judged { number: *number, mutant: mutant.clone(), verdict });
    }
    for one in equivalents.stale(catalogue) {
        println!("listed as equivalent, and not there any more: {one}");
    }
}

/// Builds the mutants of the repository at `root`, has a sample of them judged, and shows what became of it. Whatever was found
/// before is gone on with.
///
/// # Errors
/// What cannot be built or run; a life that fails without a mutant.
pub fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let folder = root.join("target/mutants");
    let tree = Tree::read(root, folder.join("source"))?;
    let (catalogue, equivalents) = (Catalogue::of(root)?, Equivalents::read(root)?);
    let sources = tree.fingerprint(&catalogue);
    let mut results = Results::open(&options.results, &sources, options.lives)?;
    let state = fs::read(folder.join(STATE)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let state = state.filter(|state: &State| state.sources == sources);
    let mut state = state.unwrap_or_else(|| State { sources, ..State::default() });

    let mut not_viable = std::mem::take(&mut state.not_viable);
    let programs = build(&tree, &catalogue, &folder.join("build"), &mut not_viable, |not_viable| {
        state.not_viable.clone_from(not_viable);
        // What was watched was of another build.
        state.watched.clear();
        state.save(&folder)
    })?;
    state.not_viable.clone_from(&not_viable);
    limit_resources()?;

    let mut judges = tests_of(&programs.tests)?;
    judges.extend(lives_of(&programs, root, options.lives));
    let state = Mutex::new(state);
    watch(&judges, &state, &folder, options.workers)?;
    let watched = state.into_inner().unwrap_or_else(PoisonError::into_inner).watched;
    let (mut sound, unsound): (Vec<_>, Vec<_>) = judges
        .iter()
        .filter_map(|judge| Some((judge, watched.get(&judge.name)?)))
        .partition(|(_, watched)| watched.failure.is_none());
    sound.sort_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds));
    let seconds: f64 = sound.iter().map(|(_, watched)| watched.seconds).sum();
    println!(
        "{} judges: a mutant that they all come by takes about {seconds:.0} s to survive, and {:.0} s at most",
        sound.len(),
        altogether(seconds).as_secs_f64()
    );

    results.viable = by_package(&catalogue, |number| !not_viable.contains(&number));
    results.not_viable = by_package(&catalogue, |number| not_viable.contains(&number));
    let failures =
        unsound.iter().filter_map(|(judge, watched)| Some((judge.name.clone(), watched.failure.clone()?)));
    results.left_out = failures.collect();
    let drawn = drawn(&catalogue, &not_viable, options);
    note_equivalents(&mut results, &drawn, &catalogue, &equivalents);
    let results = judge_drawn(&drawn, &catalogue, &sound, results, options, &folder)?;
    results.save(&options.results)?;
    let drawn: Vec<String> = drawn.iter().map(|number| catalogue.mutants[number].key()).collect();
    let summary =
        Summary { results: &results, packages: &options.packages, drawn: &drawn, seed: options.seed };
    print!("\n{summary}");
    Ok(())
}

/// A mutant may want all memory there is: whatever is started from here on gets so much, and leaves no image of it.
fn limit_resources() -> anyhow::Result<()> {
    use nix::sys::resource::{Resource, setrlimit};
    const MEMORY_BYTES_MAX: u64 = 4 << 30;
    setrlimit(Resource::RLIMIT_DATA, MEMORY_BYTES_MAX, MEMORY_BYTES_MAX)
        .context("memory cannot be limited")?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).context("images of memory cannot be forbidden")
}

/// Lists all mutants that could be made of the repository at `root`.
///
/// # Errors
/// It cannot be read.
pub fn list(root: &Path, packages: &[String]) -> anyhow::Result<()> {
    let catalogue = Catalogue::of(root)?;
    ensure!(!catalogue.mutants.is_empty(), "there are none");
    for (number, mutant) in catalogue.mutants.iter().filter(|(_, mutant)| packages.contains(&mutant.package))
    {
        println!("{number:>5} {}: {} => {}", mutant.key(), mutant.original, mutant.mutated);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equivalent::tests::listed;
    use crate::scope::Mutant;

    fn catalogue(mutants: u32) -> Catalogue {
        let mutant = |number: u32| Mutant {
            package: if number.is_multiple_of(2) { "pg" } else { "store" }.to_owned(),
            file: "a.rs".into(),
            line: number as usize,
            column: 1,
            nth: 0,
            function: String::new(),
            operator: String::new(),
            original: String::new(),
            mutated: String::new(),
            occurrence: number as usize,
        };
        Catalogue {
            sources: Vec::new(),
            mutants: (1..=mutants).map(|number| (number, mutant(number))).collect(),
        }
    }

    fn options(seed: u64, sample: usize, packages: &[&str]) -> Options {
        let packages = packages.iter().map(|&name| name.to_owned()).collect();
        Options { sample, seed, lives: 0, workers: 1, packages, results: PathBuf::new() }
    }

    #[test]
    fn a_seed_draws_the_same_and_a_larger_sample_goes_on_with_a_smaller_one() {
        let (catalogue, none) = (catalogue(1000), BTreeSet::new());
        let draw = |seed, sample| drawn(&catalogue, &none, &options(seed, sample, &["pg", "store"]));
        assert_eq!(draw(1, 50), draw(1, 50));
        assert_eq!(draw(1, 50), draw(1, 100)[..50]);
        assert_ne!(draw(1, 50), draw(2, 50));
        assert_eq!(draw(1, 5000).into_iter().collect::<BTreeSet<u32>>().len(), 1000);
        // Of both halves about as many: 50 of 100 with a deviation of 5.
        let low = draw(1, 100).iter().filter(|number| **number <= 500).count();
        assert!((30..=70).contains(&low), "{low}");
    }

    #[test]
    fn only_what_compiles_is_drawn_and_only_of_the_crates_that_are_named() {
        let catalogue = catalogue(20);
        let not_viable = BTreeSet::from([2, 4, 6]);
        let drawn: BTreeSet<u32> =
            drawn(&catalogue, &not_viable, &options(1, 100, &["pg"])).into_iter().collect();
        assert_eq!(drawn, BTreeSet::from([8, 10, 12, 14, 16, 18, 20]));
    }

    #[test]
    fn all_are_worked_on_once_and_a_failure_ends_the_work() {
        let done = Mutex::new(Vec::new());
        let all: Vec<u32> = (0..100).collect();
        let note = |one: &u32, _: &Place| {
            lock(&done).push(*one);
            Ok(())
        };
        for_each(&all, 4, note, Path::new("/")).unwrap();
        lock(&done).sort_unstable();
        assert_eq!(*lock(&done), all);
        let fails = |one: &u32, _: &Place| if *one == 3 { bail!("{one} fails") } else { Ok(()) };
        assert_eq!(for_each(&all, 1, fails, Path::new("/")).unwrap_err().to_string(), "3 fails");
    }

    /// A judge that notices the mutants of these numbers, as a shell's pattern.
    fn judge(name: &str, noticed: &str) -> Judge {
        let script = format!("case $MILLPOND_MUTANT in {noticed}) echo seed 1; exit 1;; esac");
        Judge::of_shell(name, &script)
    }

    #[test]
    fn a_mutant_is_judged_by_those_that_come_by_it_until_one_notices() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { scratch: scratch.path().join("scratch"), output: scratch.path().join("output") };
        let (first, second) = (judge("first", "1|3"), judge("second", "1|2|3"));
        let watched =
            |reached: &[u32]| Watched { reached: reached.iter().copied().collect(), ..Watched::default() };
        let (by_first, by_second) = (watched(&[1, 4]), watched(&[1, 2, 4]));
        let judges = [(&first, &by_first), (&second, &by_second)];
        let killer = |mutant| match verdict(&judges, mutant, &place).unwrap() {
            Verdict::Killed { judge, evidence, .. } => {
                assert_eq!(evidence, "seed 1");
                judge
            }
            other => format!("{other:?}"),
        };
        assert_eq!(killer(1), "first");
        assert_eq!(killer(2), "second");
        assert_eq!(killer(3), "Unreached", "nobody comes by it, so nobody is asked");
        assert_eq!(killer(4), "Survived");
    }

    #[test]
    fn a_judge_has_some_times_its_own_time_and_no_more_than_is_left_for_all_of_them() {
        let seconds = Duration::from_secs;
        assert_eq!(limit(0.01, seconds(300)), seconds(10), "a busy machine is no mutant");
        assert_eq!(limit(8.0, seconds(300)), seconds(40));
        assert_eq!(limit(8.0, seconds(7)), seconds(7));
        assert_eq!(altogether(0.0), seconds(20));
        assert_eq!(altogether(100.0), seconds(320));
    }

    #[test]
    fn one_that_is_listed_as_equivalent_is_not_judged_unless_it_was_killed() {
        let catalogue = catalogue(3);
        let root = tempfile::tempdir().unwrap();
        let entries = [1, 2].map(|number| (catalogue.mutants[&number].clone(), "it is right as well"));
        let equivalents = listed(root.path(), &entries).unwrap();
        let verdict = |results: &Results, number: u32| {
            results.judged.get(&catalogue.mutants[&number].key()).map(|one| one.verdict.clone())
        };
        let judged = |number: u32, verdict: Verdict| {
            let mutant = catalogue.mutants[&number].clone();
            (mutant.key(), Judged { number, mutant, verdict })
        };
        let killed = Verdict::Killed { judge: "it".to_owned(), evidence: "seed 1".to_owned(), seconds: 1.0 };
        let equivalent = Verdict::Equivalent { reason: "it is right as well".to_owned() };
        let before = [judged(1, killed.clone()), judged(2, Verdict::Survived), judged(3, equivalent.clone())];
        let mut results = Results { judged: before.into(), ..Results::default() };
        note_equivalents(&mut results, &[1, 2, 3], &catalogue, &equivalents);
        assert_eq!(verdict(&results, 1), Some(killed));
        assert_eq!(verdict(&results, 2), Some(equivalent));
        assert_eq!(verdict(&results, 3), None, "it is listed no more, and has to be judged");
    }
}
