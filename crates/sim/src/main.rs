//! `sim`: runs simulated lives by seed, and replays one that failed.

use clap::Parser;
use sim::store_life::{self, Report, SABOTAGES, Settings};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use store::Sabotage;

/// Runs the store on simulated drives through random work and crashes, and checks it against a model.
///
/// Each seed is one life, the same every time. A failing seed is printed with the command that replays it.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "Examples:\n  sim --store --seeds 1000                run 1000 lives\n  \
                  sim --store --seed 42 --trace            replay one, printing every event\n  \
                  sim --store --seeds 2000 --sabotage TrustTornBatch   break the store; a failure is expected"
)]
struct Arguments {
    /// Simulate the store (the only subject so far)
    #[arg(long, required = true)]
    store: bool,
    /// How many seeds to run
    #[arg(long, default_value_t = 1000, value_name = "N")]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    start: u64,
    /// Run this seed alone
    #[arg(long, conflicts_with_all = ["seeds", "start"], value_name = "SEED")]
    seed: Option<u64>,
    /// Print every event
    #[arg(long)]
    trace: bool,
    /// Go on after a failure, and count
    #[arg(long)]
    keep_going: bool,
    /// Break the store on purpose: the checker must notice
    #[arg(long, value_parser = sabotage_named, value_name = "NAME")]
    sabotage: Option<Sabotage>,
}

fn sabotage_named(name: &str) -> Result<Sabotage, String> {
    SABOTAGES
        .into_iter()
        .find(|sabotage| format!("{sabotage:?}").eq_ignore_ascii_case(name))
        .ok_or_else(|| format!("no such sabotage; known are {SABOTAGES:?}"))
}

/// The seed that is running, for the message of a panic, which ends a release build at once.
static SEED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let print: fn(&str) = |line| println!("{line}");
    let settings = Settings { sabotage: arguments.sabotage, print: arguments.trace.then_some(print) };
    let inner = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        inner(panic);
        let seed = SEED.load(Ordering::Relaxed);
        eprintln!("seed {seed} panicked\n  {}", store_life::replay_command(seed, settings.sabotage));
    }));
    let seeds = match arguments.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => arguments.start..arguments.start.saturating_add(arguments.seeds),
    };
    let (mut total, mut failed) = (Report::default(), 0u64);
    for seed in seeds.clone() {
        SEED.store(seed, Ordering::Relaxed);
        match store_life::run_guarded(seed, settings) {
            Ok(report) => add(&mut total, &report),
            Err(failure) => {
                eprintln!("{failure}");
                failed += 1;
                if !arguments.keep_going {
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    println!(
        "{} seeds, {failed} failed: {} operations, {} crashes, {} clean shutdowns, {} unacknowledged \
         operations survived, {} batches replayed, {} blocks cleaned, {} refusals because full, {} events",
        seeds.end - seeds.start,
        total.operations,
        total.crashes,
        total.shutdowns,
        total.survivors,
        total.replayed_batches,
        total.cleaned_blocks,
        total.refusals,
        total.events
    );
    if arguments.seed.is_some() {
        println!("trace hash {:016x}", total.trace_hash);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn add(total: &mut Report, report: &Report) {
    total.trace_hash = report.trace_hash;
    total.events += report.events;
    total.operations += report.operations;
    total.crashes += report.crashes;
    total.shutdowns += report.shutdowns;
    total.survivors += report.survivors;
    total.refusals += report.refusals;
    total.cleaned_blocks += report.cleaned_blocks;
    total.replayed_batches += report.replayed_batches;
}
