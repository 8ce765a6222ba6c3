//! `sim`: runs simulated lives by seed, and replays one that failed.

use clap::Parser;
use sim::store_life::SABOTAGES;
use sim::{cluster, store_life};
use std::fmt::Debug;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::Sabotage;

/// Runs whole simulated clusters through random work and faults, and checks what their clients saw.
///
/// Each seed is one life, the same every time. A failing seed is printed with the command that replays it.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "Examples:\n  sim --seeds 1000                         run 1000 lives of clusters\n  \
                  sim --minutes 5 --from 1000000           run as many as there is time for\n  \
                  sim --seed 42 --trace                    replay one, telling its story\n  \
                  sim --store --seeds 1000                 run 1000 lives of stores\n  \
                  sim --store --seed 42 --trace            replay one, printing every event\n  \
                  sim --store --seeds 2000 --sabotage TrustTornBatch   break the store; a failure is expected\n  \
                  sim --scenario AwayPastTheLog --seeds 10   a life that goes by a script"
)]
struct Arguments {
    /// Simulate the store of one OSD instead of a cluster
    #[arg(long)]
    store: bool,
    /// How many seeds to run
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: u64,
    /// The first of them
    #[arg(long, alias = "start", default_value_t = 0, value_name = "SEED")]
    from: u64,
    /// Go on with further seeds for so many minutes, however many that are
    #[arg(long, value_name = "MINUTES", conflicts_with_all = ["seeds", "seed", "store"])]
    minutes: Option<u64>,
    /// Run this seed alone
    #[arg(long, conflicts_with_all = ["seeds", "from"], value_name = "SEED")]
    seed: Option<u64>,
    /// Print every event
    #[arg(long)]
    trace: bool,
    /// Go on after a failure, and count
    #[arg(long)]
    keep_going: bool,
    /// Give OSDs fewer buffers than operations may wait
    #[arg(long)]
    scarce_buffers: bool,
    /// Keep drives sound and data where it is
    #[arg(long)]
    plain_faults: bool,
    /// Clients open their volumes, and own them by turns.
    #[arg(long)]
    opens: bool,
    /// Break the store on purpose: the checker must notice
    #[arg(long, value_parser = |name: &str| named(name, &SABOTAGES), value_name = "NAME")]
    sabotage: Option<Sabotage>,
    /// Format drives with what clients take for their secret: what looks like the store's own is a danger then
    #[arg(long, requires = "store")]
    known_secret: bool,
    /// Run lives that go by a script, each in ways that its seed draws
    #[arg(long, value_parser = |name: &str| named(name, &cluster::Scenario::ALL), value_name = "NAME", conflicts_with = "store")]
    scenario: Option<cluster::Scenario>,
    /// Break the OSDs on purpose: the checkers must notice
    #[arg(long, value_parser = |name: &str| named(name, &pg::Sabotage::ALL), value_name = "NAME", conflicts_with = "store")]
    break_osds: Option<pg::Sabotage>,
}

fn named<T: Copy + Debug>(name: &str, known: &[T]) -> Result<T, String> {
    let found = known.iter().find(|one| format!("{one:?}").eq_ignore_ascii_case(name));
    found.copied().ok_or_else(|| format!("there is no such one; known are {known:?}"))
}

/// The seed that is running, for the message of a panic, which ends a release build at once.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let inner = std::panic::take_hook();
    let (is_store, of_stores, scenario) =
        (arguments.store, settings_of_stores(&arguments), arguments.scenario);
    std::panic::set_hook(Box::new(move |panic| {
        inner(panic);
        let seed = SEED.load(Ordering::Relaxed);
        let command = match is_store {
            true => store_life::replay_command(seed, of_stores),
            false => cluster::replay_command(seed, scenario),
        };
        eprintln!("seed {seed} panicked\n  {command}");
    }));
    let all_is_well = if arguments.store { run_stores(&arguments) } else { run_clusters(&arguments) };
    if all_is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn seeds_of(arguments: &Arguments) -> std::ops::Range<u64> {
    match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None if arguments.minutes.is_some() => arguments.from..u64::MAX,
        None => arguments.from..arguments.from.saturating_add(arguments.seeds),
    }
}

fn printer(arguments: &Arguments) -> Option<fn(&str)> {
    let print: fn(&str) = |line| println!("{line}");
    arguments.trace.then_some(print)
}

fn run_clusters(arguments: &Arguments) -> bool {
    let settings = cluster::Settings {
        print: printer(arguments),
        scarce_buffers: arguments.scarce_buffers,
        plain_faults: arguments.plain_faults,
        scenario: arguments.scenario,
        sabotage: arguments.break_osds,
        store_sabotage: arguments.sabotage,
        opens: arguments.opens,
        gives_up_early: false,
        gives_up_what_counts: false,
    };
    let seeds = seeds_of(arguments);
    let clock = Clock::start();
    let (mut total, mut failures, mut done) = (cluster::Report::default(), Vec::new(), 0u64);
    let shows_progress = std::io::stderr().is_terminal() && arguments.seed.is_none();
    let limit = arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes));
    for seed in seeds {
        if limit.is_some_and(|limit| clock.elapsed() >= limit) {
            break;
        }
        SEED.store(seed, Ordering::Relaxed);
        done += 1;
        match cluster::run_guarded(seed, settings) {
            Ok(report) => total.merge(&report),
            Err(failure) => {
                eprintln!("{failure}");
                failures.push(failure);
                if !arguments.keep_going {
                    break;
                }
            }
        }
        if shows_progress && done.is_multiple_of(20) {
            eprint!("\r{done} seeds, {} failed, {:.1} seeds/s ", failures.len(), clock.rate(done));
        }
    }
    if shows_progress {
        eprintln!();
    }
    for (what, number) in total.coverage.iter() {
        println!("{number:>12}  {what}");
    }
    println!(
        "{done} seeds, {} failed: {} operations, {} events, {} s of virtual time; {:.1} seeds/s",
        failures.len(),
        total.operations,
        total.events,
        total.milliseconds / 1000,
        clock.rate(done)
    );
    if arguments.seed.is_some() {
        println!("trace hash {:016x}", total.trace_hash);
    }
    // Said again: a log that is cut short from the front still names them.
    for failure in &failures {
        println!("{failure}");
    }
    failures.is_empty()
}

/// How fast the simulation runs, for the person who waits: no life ever sees it.
struct Clock(std::time::Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "no simulated life sees it")]
    fn start() -> Clock {
        Clock(std::time::Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn rate(&self, done: u64) -> f64 {
        done as f64 / self.elapsed().max(Duration::from_millis(1)).as_secs_f64()
    }
}

fn settings_of_stores(arguments: &Arguments) -> store_life::Settings {
    store_life::Settings {
        sabotage: arguments.sabotage,
        secret_is_known: arguments.known_secret,
        print: printer(arguments),
    }
}

fn run_stores(arguments: &Arguments) -> bool {
    let settings = settings_of_stores(arguments);
    let seeds = seeds_of(arguments);
    let (mut total, mut failed) = (store_life::Report::default(), 0u64);
    for seed in seeds.clone() {
        SEED.store(seed, Ordering::Relaxed);
        match store_life::run_guarded(seed, settings) {
            Ok(report) => add(&mut total, &report),
            Err(failure) => {
                eprintln!("{failure}");
                failed += 1;
                if !arguments.keep_going {
                    return false;
                }
            }
        }
    }
    println!(
        "{} seeds, {failed} failed: {} operations, {} crashes, {} clean shutdowns, {} unacknowledged \
         operations survived, {} batches replayed, {} blocks cleaned, {} refusals because full, {} starts refused \
         for a rotten header, {} blocks pushed, {} of equal checksums, {} that may look like the store's own, {} events",
        seeds.end - seeds.start,
        total.operations,
        total.crashes,
        total.shutdowns,
        total.survivors,
        total.replayed_batches,
        total.cleaned_blocks,
        total.refusals,
        total.refused_headers,
        total.pushed_blocks,
        total.colliding_blocks,
        total.lookalike_blocks,
        total.events
    );
    if arguments.seed.is_some() {
        println!("trace hash {:016x}", total.trace_hash);
    }
    failed == 0
}

fn add(total: &mut store_life::Report, report: &store_life::Report) {
    total.trace_hash = report.trace_hash;
    total.events += report.events;
    total.operations += report.operations;
    total.crashes += report.crashes;
    total.shutdowns += report.shutdowns;
    total.survivors += report.survivors;
    total.refusals += report.refusals;
    total.cleaned_blocks += report.cleaned_blocks;
    total.replayed_batches += report.replayed_batches;
    total.splits += report.splits;
    total.forgets += report.forgets;
    total.held += report.held;
    total.refused_headers += report.refused_headers;
    total.pushed_blocks += report.pushed_blocks;
    total.colliding_blocks += report.colliding_blocks;
    total.lookalike_blocks += report.lookalike_blocks;
}
