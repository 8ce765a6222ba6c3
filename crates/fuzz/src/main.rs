//! `make fuzz`: runs targets for a while or for so many inputs, and shows what they reached.

use clap::Parser;
use fuzz::driver::{ROUND_INPUTS, TIME_LIMIT, input_of, run_input, run_round};
use fuzz::targets::{TARGETS, find};
use fuzz::{Failure, Outcomes, Target};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// Which input is being run: so that one that does not end is found.
#[derive(Default)]
struct Progress {
    target: AtomicUsize,
    seed: AtomicU64,
    /// The next one's number.
    number: AtomicU64,
    /// Counts all.
    inputs: AtomicU64,
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
    let progress = Arc::new(Progress::default());
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

/// Runs one round after the other.
fn run_target(
    target: &'static Target,
    arguments: &Arguments,
    until: Option<Instant>,
    progress: &Progress,
) -> Result<(), String> {
    let wanted = arguments.inputs.or(if until.is_some() { None } else { Some(target.inputs) });
    let (directory, began) = (&arguments.directory, Instant::now());
    let (round_file, input_file) = (file_of(directory, target, "round"), file_of(directory, target, "input"));
    if let Ok(before) = fs::read_to_string(&round_file) {
        println!(
            "{}: the last run ended in the midst of the round of seed {before}; `make fuzz TARGET={} SEED={before} \
             INPUTS={ROUND_INPUTS} CAREFUL=1` writes what it was told last to {}",
            target.name,
            target.name,
            input_file.display()
        );
    }
    let place = TARGETS.iter().position(|one| one.name == target.name).expect("it is one of them");
    progress.target.store(place, Ordering::Relaxed);
    let mut seen = Outcomes::default();
    let (mut inputs, mut seed) = (0, arguments.seed);
    let goes_on = || until.is_none_or(|until| Instant::now() < until);
    while wanted.is_none_or(|wanted| inputs < wanted) && goes_on() {
        let count = wanted.map_or(ROUND_INPUTS, |wanted| ROUND_INPUTS.min(wanted - inputs));
        fs::write(&round_file, seed.to_string()).map_err(|error| error.to_string())?;
        progress.seed.store(seed, Ordering::Relaxed);
        let before = |number: u64, input: &[u8]| {
            progress.number.store(number, Ordering::Relaxed);
            progress.inputs.fetch_add(1, Ordering::Relaxed);
            if arguments.careful
                && let Err(error) = fs::write(&input_file, input)
            {
                eprintln!("{}: {error}", input_file.display());
            }
            goes_on()
        };
        let ran = run_round(target, seed, count, &mut seen, before);
        fs::remove_file(&round_file).map_err(|error| error.to_string())?;
        inputs += ran.map_err(|failure| keep(directory, &failure))?;
        seed = seed.wrapping_add(1);
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
    let (mut last, mut since) = (0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let inputs = progress.inputs.load(Ordering::Relaxed);
        if inputs != last || inputs == 0 {
            (last, since) = (inputs, Instant::now());
        }
        if since.elapsed() <= 2 * TIME_LIMIT {
            continue;
        }
        let target = &TARGETS[progress.target.load(Ordering::Relaxed)];
        let (seed, number) = (progress.seed.load(Ordering::Relaxed), progress.number.load(Ordering::Relaxed));
        eprintln!("{}: input {number} of seed {seed} does not end", target.name);
        if let Ok(input) = input_of(target, seed, number) {
            let (target, reason) = (target.name, "it does not end".to_owned());
            eprintln!("{}", keep(directory, &Failure { target, seed, number, input, reason }));
        }
        std::process::exit(1);
    }
}
