//! A sample of mutants before the judges.

use crate::build::{LeftOut, build};
use crate::equivalent::Equivalents;
use crate::judge::{Judge, Mode, Place, lives_of, tests_of};
use crate::results::{Judged, Results, Summary, Verdict, write_whole};
use crate::scope::{Catalogue, Mutant};
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
/// And no less than this.
const LIMIT_MIN: Duration = Duration::from_secs(10);
/// Who had so many times as long as a run without a mutant takes right after, had time enough: a busy machine is no mutant.
const TIMES_ENOUGH: f64 = TIMES_AS_LONG / 2.0;
/// So often a judge that does not end is asked, each time for as long as is due by what a run without a mutant took last.
const ASKED_MAX: usize = 2;
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
    /// Mutants that were not built.
    left_out: LeftOut,
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
fn drawn(catalogue: &Catalogue, left_out: &LeftOut, options: &Options) -> Vec<u32> {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&options.seed.to_le_bytes());
    let is_meant = |(number, mutant): &(&u32, &Mutant)| {
        !left_out.has(**number) && options.packages.contains(&mutant.package)
    };
    let viable = catalogue.mutants.iter().filter(is_meant);
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

/// How long a mutant may take before a judge that takes so many seconds without it.
fn limit(seconds: f64) -> Duration {
    LIMIT_MIN.max(Duration::from_secs_f64(TIMES_AS_LONG * seconds))
}

/// Whether a judge that takes so many seconds without a mutant notices this one. A test that fails may do so by other causes,
/// and who does not end may be slow with the machine: so it runs without a mutant right after, and what that does too is no
/// mutant's doing.
fn noticed(
    judge: &Judge,
    mut seconds: f64,
    mutant: u32,
    limit: impl Fn(f64) -> Duration,
    place: &Place,
) -> anyhow::Result<Option<Verdict>> {
    let name = &judge.name;
    for _ in 0..ASKED_MAX {
        let limit = limit(seconds);
        let outcome = judge.ask(Mode::Mutant(mutant, limit), place)?;
        let Some(evidence) = outcome.failure else { return Ok(None) };
        let is_certain = judge.is_deterministic && !outcome.was_ended;
        let plain = if is_certain { None } else { Some(judge.ask(Mode::Plain, place)?) };
        if let Some(failure) = plain.as_ref().and_then(|plain| plain.failure.as_ref()) {
            let reason = format!("{name} failed without a mutant too: {failure}");
            return Ok(Some(Verdict::Undecided { reason }));
        }
        match plain {
            Some(plain) if outcome.was_ended => {
                if TIMES_ENOUGH * plain.seconds <= limit.as_secs_f64() {
                    return Ok(Some(Verdict::TimedOut { judge: name.clone(), seconds: outcome.seconds }));
                }
                seconds = plain.seconds.max(seconds);
            }
            _ => {
                let (judge, seconds) = (name.clone(), outcome.seconds);
                return Ok(Some(Verdict::Killed { judge, evidence, seconds }));
            }
        }
    }
    let reason = format!("{name} did not end, and took {seconds:.0} s without it: the machine was slow");
    Ok(Some(Verdict::Undecided { reason }))
}

/// What becomes of a mutant before these judges.
fn verdict(judges: &[(&Judge, &Watched)], mutant: u32, place: &Place) -> anyhow::Result<Verdict> {
    let come_by: Vec<&(&Judge, &Watched)> =
        judges.iter().filter(|(_, watched)| watched.reached.contains(&mutant)).collect();
    let (begin, all) = (Instant::now(), altogether(come_by.iter().map(|(_, watched)| watched.seconds).sum()));
    let mut undecided = None;
    for (judge, watched) in &come_by {
        if begin.elapsed() >= all {
            let reason = format!("all judges together took more than {:.0} s", all.as_secs_f64());
            undecided.get_or_insert(Verdict::Undecided { reason });
            break;
        }
        match noticed(judge, watched.seconds, mutant, limit, place)? {
            None => {}
            // Another one may tell.
            Some(unclear @ Verdict::Undecided { .. }) => {
                undecided.get_or_insert(unclear);
            }
            Some(verdict) => return Ok(verdict),
        }
    }
    Ok(undecided.unwrap_or(if come_by.is_empty() { Verdict::Unreached } else { Verdict::Survived }))
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
    let is_open = |number: &u32| {
        let known = results.judged.get(&catalogue.mutants[number].key());
        known.is_none_or(|one| !one.verdict.is_final())
    };
    let open: Vec<u32> = drawn.iter().copied().filter(is_open).collect();
    let (left, results) = (AtomicUsize::new(open.len()), Mutex::new(results));
    let work = |number: &u32, place: &Place| {
        let mutant = catalogue.mutants[number].clone();
        let begin = Instant::now();
        let verdict = verdict(judges, *number, place)?;
        let words = match &verdict {
            Verdict::Killed { judge, evidence, .. } => format!("killed by {judge}: {evidence}"),
            Verdict::TimedOut { judge, seconds } => format!("no end within {seconds:.0} s: {judge}"),
            Verdict::Undecided { reason } => format!("undecided: {reason}"),
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
        let known = results.judged.get(&key).map(|one| &one.verdict);
        if let Some(Verdict::Killed { judge, .. } | Verdict::TimedOut { judge, .. }) = known {
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

    let mut left_out = std::mem::take(&mut state.left_out);
    let programs = build(&tree, &catalogue, &folder.join("build"), &mut left_out, |left_out| {
        state.left_out.clone_from(left_out);
        // What was watched was of another build.
        state.watched.clear();
        state.save(&folder)
    })?;
    state.left_out.clone_from(&left_out);
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

    results.viable = by_package(&catalogue, |number| !left_out.has(number));
    results.not_viable = by_package(&catalogue, |number| left_out.not_viable.contains(&number));
    results.beside = by_package(&catalogue, |number| left_out.beside.contains(&number));
    let failures =
        unsound.iter().filter_map(|(judge, watched)| Some((judge.name.clone(), watched.failure.clone()?)));
    results.left_out = failures.collect();
    let drawn = drawn(&catalogue, &left_out, options);
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
        let (catalogue, none) = (catalogue(1000), LeftOut::default());
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
    fn only_what_is_built_is_drawn_and_only_of_the_crates_that_are_named() {
        let catalogue = catalogue(20);
        let left_out = LeftOut { not_viable: [2, 4, 6].into(), beside: [8].into() };
        let drawn: BTreeSet<u32> =
            drawn(&catalogue, &left_out, &options(1, 100, &["pg"])).into_iter().collect();
        assert_eq!(drawn, BTreeSet::from([10, 12, 14, 16, 18, 20]));
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
    fn a_judge_has_some_times_its_own_time_and_so_have_all_together() {
        let seconds = Duration::from_secs;
        assert_eq!(limit(0.01), seconds(10), "what is short takes longer by chance");
        assert_eq!(limit(8.0), seconds(40));
        assert_eq!(altogether(0.0), seconds(20));
        assert_eq!(altogether(100.0), seconds(320));
    }

    /// What comes of asking a shell that takes no time, where each is given these seconds and so many times as long as it is
    /// known to take.
    fn asked(script: &str, is_deterministic: bool, seconds: f64, times: f64) -> Option<Verdict> {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { scratch: scratch.path().join("scratch"), output: scratch.path().join("output") };
        let mut judge = Judge::of_shell("it", script);
        judge.is_deterministic = is_deterministic;
        let limit = |known: f64| Duration::from_secs_f64(seconds + times * known);
        noticed(&judge, 0.0, 7, limit, &place).unwrap()
    }

    #[test]
    fn no_end_is_a_mutants_doing_only_if_there_is_one_without_it() {
        let hangs = asked("test -z \"$MILLPOND_MUTANT\" || sleep 600", true, 2.0, 0.0);
        assert!(matches!(&hangs, Some(Verdict::TimedOut { judge, .. }) if judge == "it"), "{hangs:?}");
        // The machine is slow, with a mutant and without.
        assert_eq!(asked("sleep 1.5", true, 1.0, 5.0), None, "by what it takes now it is given more");
        let slow = asked("sleep 1.5", true, 1.0, 0.0);
        assert!(matches!(&slow, Some(Verdict::Undecided { reason }) if reason.contains("slow")), "{slow:?}");
    }

    #[test]
    fn a_test_that_fails_without_a_mutant_too_says_nothing_of_it() {
        let always = asked("echo seed 3; exit 1", false, 9.0, 0.0);
        let with_it = asked("test -z \"$MILLPOND_MUTANT\" || { echo seed 3; exit 1; }", false, 9.0, 0.0);
        let is_open = matches!(&always, Some(Verdict::Undecided { reason }) if reason.contains("seed 3"));
        assert!(is_open, "{always:?}");
        let is_killed = matches!(&with_it, Some(Verdict::Killed { evidence, .. }) if evidence == "seed 3");
        assert!(is_killed, "{with_it:?}");
    }

    #[test]
    fn who_tells_nothing_leaves_it_to_the_others() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place { scratch: scratch.path().join("scratch"), output: scratch.path().join("output") };
        let (mut unsound, sound) = (judge("first", "*"), judge("second", "1"));
        unsound.is_deterministic = false;
        let reached = Watched { reached: [1, 2].into(), ..Watched::default() };
        let judges = [(&unsound, &reached), (&sound, &reached)];
        let of = |mutant| verdict(&judges, mutant, &place).unwrap();
        assert!(matches!(of(1), Verdict::Killed { judge, .. } if judge == "second"));
        assert!(matches!(of(2), Verdict::Undecided { .. }) && !of(2).is_final());
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
