//! `make fuzz`: runs targets for a while or for so many inputs, and shows what they reached.

use clap::Parser;
use fuzz::driver::{ROUND_INPUTS, Rounds, TIME_LIMIT, input_of, run_input, run_round};
use fuzz::targets::{TARGETS, find};
use fuzz::{Failure, Outcomes, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: ring::counting::CountingAllocator = ring::counting::CountingAllocator;

/// Feeds what reads bytes of strangers, users and drives with bytes that nobody meant
#[derive(Parser)]
struct Arguments {
    /// The target; all of them if none is named
    #[arg(long)]
    target: Option<String>,
    /// For so many seconds, all targets together
    #[arg(long, conflicts_with = "inputs")]
    seconds: Option<u64>,
    /// So many inputs of each target; without this and `--seconds`, as many as suffice for what is expected
    #[arg(long)]
    inputs: Option<u64>,
    /// Where chance begins; a failure tells that of its round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes each input to a file before it is run, for those that end the process
    #[arg(long)]
    careful: bool,
    /// Where inputs that fail are written
    #[arg(long, default_value = "target/fuzz")]
    directory: PathBuf,
    /// Lists the targets
    #[arg(long)]
    list: bool,
    /// Writes the examples of each target to a folder of this one, for libFuzzer to begin with
    #[arg(long)]
    examples: Option<PathBuf>,
    /// Runs these inputs instead, of the target that is named
    #[arg(requires = "target")]
    files: Vec<PathBuf>,
}

/// The number of an input that is none.
const NONE: u64 = u64::MAX;

/// Which inputs are being run: so that one that does not end is found.
struct Progress {
    target: AtomicUsize,
    workers: Vec<Worker>,
}

/// One of those that run rounds at the same time.
struct Worker {
    seed: AtomicU64,
    /// The number of its input, or [`NONE`].
    number: AtomicU64,
}

impl Progress {
    fn new(workers: usize) -> Progress {
        let idle = || Worker { seed: AtomicU64::new(0), number: AtomicU64::new(NONE) };
        let workers = std::iter::repeat_with(idle).take(workers).collect();
        Progress { target: AtomicUsize::new(0), workers }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.list {
        TARGETS.iter().for_each(|target| println!("{:16} {}", target.name, target.about));
        return Ok(());
    }
    let targets: Vec<&'static Target> = match &arguments.target {
        None => TARGETS.iter().collect(),
        Some(name) => {
            vec![find(name).ok_or_else(|| format!("there is no target {name:?}; `--list` has all"))?]
        }
    };
    if let Some(folder) = &arguments.examples {
        let written = targets.iter().try_for_each(|target| write_examples(target, &folder.join(target.name)));
        return written.map_err(|error| format!("{}: {error}", folder.display()));
    }
    let cannot_write = |error: std::io::Error| format!("{}: {error}", arguments.directory.display());
    fs::create_dir_all(&arguments.directory).map_err(cannot_write)?;
    if !arguments.files.is_empty() {
        return arguments.files.iter().try_for_each(|file| run_file(targets[0], file));
    }
    let workers = match arguments.careful {
        // There is one file for what was run last.
        true => 1,
        false => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let progress = Arc::new(Progress::new(workers));
    let (watched, directory) = (progress.clone(), arguments.directory.clone());
    std::thread::spawn(move || watch(&watched, &directory));
    let mut left = targets.len() as u32;
    let end = arguments.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    for target in targets {
        // What the ones before did not need is shared by those behind them.
        let until = end.map(|end| Instant::now() + end.saturating_duration_since(Instant::now()) / left);
        left -= 1;
        run_target(target, arguments, until, &progress)?;
    }
    Ok(())
}

fn write_examples(target: &Target, folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut examples = (target.examples)().into_iter().enumerate();
    examples.try_for_each(|(number, input)| fs::write(folder.join(number.to_string()), input))
}

fn run_file(target: &Target, file: &Path) -> Result<(), String> {
    let input = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut seen = Outcomes::default();
    let result = run_input(target, &input, &mut seen);
    print!("{}: {}\n{seen}", file.display(), if result.is_ok() { "passes" } else { "fails" });
    result.map_err(|reason| format!("{}: {reason}", file.display()))
}

/// What those share who run rounds of a target.
struct Run<'a> {
    target: &'static Target,
    arguments: &'a Arguments,
    until: Option<Instant>,
    rounds: Rounds,
    has_failed: AtomicBool,
}

impl Run<'_> {
    fn goes_on(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed) && self.until.is_none_or(|until| Instant::now() < until)
    }

    /// Where stands which round a worker is in.
    fn round_file(&self, worker: usize) -> PathBuf {
        file_of(&self.arguments.directory, self.target, &format!("{worker}.round"))
    }

    /// Runs one round after the other. Answers how many inputs that were, and what they came to.
    fn work(&self, number: usize, worker: &Worker) -> Result<(u64, Outcomes), String> {
        let Run { target, arguments: Arguments { directory, careful, .. }, .. } = self;
        let (round_file, input_file) = (self.round_file(number), file_of(directory, target, "input"));
        let (mut inputs, mut seen) = (0, Outcomes::default());
        while self.goes_on()
            && let Some((seed, count)) = self.rounds.take()
        {
            fs::write(&round_file, seed.to_string()).map_err(|error| error.to_string())?;
            worker.seed.store(seed, Ordering::Relaxed);
            let before = |number: u64, input: &[u8]| {
                worker.number.store(number, Ordering::Relaxed);
                if *careful && let Err(error) = fs::write(&input_file, input) {
                    eprintln!("{}: {error}", input_file.display());
                }
                self.goes_on()
            };
            let ran = run_round(target, seed, count, &mut seen, before);
            worker.number.store(NONE, Ordering::Relaxed);
            self.has_failed.fetch_or(ran.is_err(), Ordering::Relaxed);
            fs::remove_file(&round_file).map_err(|error| error.to_string())?;
            inputs += ran.map_err(|failure| keep(directory, &failure))?;
        }
        Ok((inputs, seen))
    }
}

/// Has all workers run rounds.
fn run_target(
    target: &'static Target,
    arguments: &Arguments,
    until: Option<Instant>,
    progress: &Progress,
) -> Result<(), String> {
    let wanted = arguments.inputs.or(if until.is_some() { None } else { Some(target.inputs) });
    let (rounds, has_failed) = (Rounds::new(arguments.seed, wanted), AtomicBool::new(false));
    let run = Run { target, arguments, until, rounds, has_failed };
    let left_behind = (0..progress.workers.len()).map(|worker| fs::read_to_string(run.round_file(worker)));
    for before in left_behind.flatten() {
        println!(
            "{}: the last run ended in the midst of the round of seed {before}; `make fuzz TARGET={} SEED={before} \
             INPUTS={ROUND_INPUTS} CAREFUL=1` writes what it was told last to {}",
            target.name,
            target.name,
            file_of(&arguments.directory, target, "input").display()
        );
    }
    let place = TARGETS.iter().position(|one| one.name == target.name).expect("it is one of them");
    progress.target.store(place, Ordering::Relaxed);
    let (mut inputs, mut seen, began) = (0, Outcomes::default(), Instant::now());
    let run = &run;
    let results: Vec<Result<(u64, Outcomes), String>> = std::thread::scope(|scope| {
        let workers = progress.workers.iter().enumerate();
        let running: Vec<_> =
            workers.map(|(number, worker)| scope.spawn(move || run.work(number, worker))).collect();
        running.into_iter().map(|worker| worker.join().expect("what a target does is caught")).collect()
    });
    for result in results {
        let (more, of_one) = result?;
        inputs += more;
        seen.add(&of_one);
    }
    let took = began.elapsed();
    let rate = inputs as f64 / took.as_secs_f64().max(1e-3);
    println!(
        "{}: {inputs} inputs in {:.1} s, {rate:.0} a second, from seed {}",
        target.name,
        took.as_secs_f64(),
        arguments.seed
    );
    print!("{seen}");
    let missing = seen.missing(&(target.expected)());
    match missing.len() {
        0 => Ok(()),
        count if inputs < target.inputs => {
            println!("{:>12}  not reached yet, by less than {} inputs", count, target.inputs);
            Ok(())
        }
        _ => Err(format!("{}: {inputs} inputs did not reach {missing:?}", target.name)),
    }
}

fn file_of(directory: &Path, target: &Target, what: &str) -> PathBuf {
    directory.join(format!("{}.{what}", target.name))
}

/// Writes an input that failed, and says so.
fn keep(directory: &Path, failure: &Failure) -> String {
    let Failure { target, seed, input, .. } = failure;
    let file = directory.join(format!("{target}-{seed}-{}.failed", failure.number));
    match fs::write(&file, input) {
        Ok(()) => format!(
            "{failure}\nit is in {}; run it again with: make fuzz TARGET={target} FILES={}",
            file.display(),
            file.display()
        ),
        Err(error) => format!("{failure}\nit cannot be written to {}: {error}\n{input:?}", file.display()),
    }
}

/// Ends the process when an input takes too long. It is made again from its seed, for whoever has it does not let go.
fn watch(progress: &Progress, directory: &Path) {
    let mut seen = vec![((0, NONE), Instant::now()); progress.workers.len()];
    loop {
        std::thread::sleep(Duration::from_secs(1));
        for (worker, (last, since)) in progress.workers.iter().zip(&mut seen) {
            let (seed, number) = (worker.seed.load(Ordering::Relaxed), worker.number.load(Ordering::Relaxed));
            if (seed, number) != *last || number == NONE {
                (*last, *since) = ((seed, number), Instant::now());
            }
            if since.elapsed() <= 2 * TIME_LIMIT {
                continue;
            }
            let target = &TARGETS[progress.target.load(Ordering::Relaxed)];
            eprintln!("{}: input {number} of seed {seed} does not end", target.name);
            if let Ok(input) = input_of(target, seed, number) {
                let (target, reason) = (target.name, "it does not end".to_owned());
                eprintln!("{}", keep(directory, &Failure { target, seed, number, input, reason }));
            }
            std::process::exit(1);
        }
    }
}
