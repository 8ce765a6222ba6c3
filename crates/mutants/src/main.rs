//! `mutants`: makes small mistakes in the code, one at a time, and tells which of them no test notices.

use anyhow::ensure;
use clap::Parser;
use mutants::scope::SCOPE;
use mutants::trial::{self, Options};
use std::path::{Path, PathBuf};

/// Draw mutants of the code by a seed, and see whether tests and lives of the simulator notice them.
///
/// Run it in the root of the repository. What was found is kept, and gone on with when it is started again.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "Examples:\n  mutants --sample 120 --seed 1            judge 120 mutants\n  \
                  mutants --sample 240 --seed 1            and 120 more\n  \
                  mutants --crate pg --lives 200           of pg alone, with fewer lives\n  \
                  mutants --list                           tell what could be made"
)]
struct Arguments {
    /// How many mutants to draw
    #[arg(long, default_value_t = 120, value_name = "N")]
    sample: usize,
    /// What to draw them by
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    seed: u64,
    /// How many lives of stores, and as many of clusters, are there for a mutant to survive
    #[arg(long, default_value_t = 2000, value_name = "N")]
    lives: u64,
    /// How many judges run at a time
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// Draw from this crate; may be given more than once. From all if not given
    #[arg(long = "crate", value_name = "NAME")]
    packages: Vec<String>,
    /// Where to keep results
    #[arg(long, default_value = "target/mutants/results.json", value_name = "FILE")]
    json: PathBuf,
    /// List all mutants that could be made, and build none
    #[arg(long)]
    list: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let known = SCOPE.map(|(name, _)| name.to_owned());
    let packages = if arguments.packages.is_empty() { known.to_vec() } else { arguments.packages };
    for name in &packages {
        ensure!(known.contains(name), "{name}: mutants are made of {} only", known.join(", "));
    }
    let root = Path::new(".").canonicalize()?;
    if arguments.list {
        return trial::list(&root, &packages);
    }
    let options = Options {
        sample: arguments.sample,
        seed: arguments.seed,
        lives: arguments.lives,
        workers: usize::from(arguments.workers),
        packages,
        results: arguments.json,
    };
    trial::run(&root, &options)
}
