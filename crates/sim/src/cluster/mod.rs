//! A whole cluster's life from one number.
//!
//! The real [`store::Store`] in the real [`pg::Osd`], the real [`::client::Client`], and the real
//! [`Cluster`](::cluster::Cluster) and [`Management`](manager::Management) on a registry in memory,
//! under one virtual clock, with a simulated network and simulated drives. Things break for some time: processes
//! die, power fails, nodes hang, links break, the network is cut, the registry is away, clocks drift, operators
//! change their minds. Then nothing breaks any more, and the cluster has to heal.
//!
//! # What is checked
//! 1. Every block is a linearizable register over what all clients asked for and were told, up to a last read of
//!    everything by a new client ([`checker`]); so no acknowledged write is lost. Whose value a read brought is told by
//!    its bytes, all of them, for there are lives in which all versions of a block have one checksum ([`crate::contents`]).
//! 2. At rest, the in-sync members of each group hold the same bytes, and all of them verify (`inspect`).
//! 3. In an epoch of a group at most one life of one node serves, the registered primary's.
//! 4. Every store's accounting is exact.
//! 5. When nothing breaks any more, every operation ends and every group serves within a minute.
//! 6. Who was dropped from a group deletes nothing of it before its whole target was in sync without it.
//! 7. Where one client at a time has the volumes, nothing is done for another that begins after the fence stood; and
//!    what had begun before is done before anything of the new holder on the same block.
//! 8. What a removed volume or pool held is gone everywhere, and within half a minute from whoever was away.
//! 9. Nothing under test panics.
//! 10. Of somebody who means harm, with the key of another pool or of an OSD, nothing of that is other than without; and what
//!     waits on an OSD meanwhile stays within its bounds.
//! 11. A write takes effect once, however often it was sent: also when the log that would tell has forgotten it.
//! 12. What a volume lost that was made smaller is zeros when it has grown again, nothing before its end is touched, and
//!     meanwhile nobody is served beyond it.
//! 13. A snapshot holds what its volume held at the moment when it was made, of all volumes of which one was made with it, whoever
//!     reads it and when. What nobody sees any more is deleted everywhere, and nothing else.
//!
//! # Where to look
//! - [`plan`]: what a seed draws: cluster, load, faults. Turn these knobs to look elsewhere.
//! - `faults`: what breaks how; `absence`: how somebody misses more than logs can tell; `atlas`: what has rotted, so that a
//!   sound copy of everything is left. `life`: the loop over events. `world`: clock, events, inputs.
//! - `hostile`: who means harm, and what it may do.
//! - `snapshots`: an operator makes and removes them. `script`: lives in which nothing is left to chance but times.
//! - `network`, `registry`, `node`, `client`: what they are named after. `fencer`: how a client takes a volume over.
//! - `history`, [`checker`], `inspect`: the checks.
//!
//! # Determinism
//! There is one source of chance, and one queue of events, ordered by time and then by the order of their
//! making. Two runs of a seed have the same [`Report`], its trace hash included.

mod absence;
mod atlas;
pub mod checker;
mod client;
mod clones;
pub mod coverage;
mod faults;
mod fencer;
mod history;
mod hostile;
mod inspect;
mod life;
mod network;
mod node;
mod ownership;
pub mod plan;
mod registry;
mod script;
mod snapshots;
mod topology;
mod world;

use coverage::Coverage;
use life::Life;
use pg::Sabotage;
pub use script::Scenario;
use std::hint::black_box;
use std::sync::Once;

/// How to run a life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Is given the life's story line by line.
    pub print: Option<fn(&str)>,
    /// Gives OSDs fewer buffers than operations may wait.
    pub scarce_buffers: bool,
    /// Drives stay sound, and nothing moves: only processes, power, network and registry fail. What takes many such
    /// faults at the right moments is likelier so.
    pub plain_faults: bool,
    /// The life goes by a script instead of chance.
    pub scenario: Option<Scenario>,
    /// Breaks a promise of the OSDs, to see the checkers notice.
    pub sabotage: Option<Sabotage>,
    /// Breaks a promise of the stores, to see the checkers notice.
    pub store_sabotage: Option<store::Sabotage>,
    /// Clients open their volumes, and own them by turns.
    pub opens: bool,
    /// Has them give up what another wishes at once, whatever is under way, to see the checkers notice.
    pub gives_up_early: bool,
    /// Has drives replaced that hold the last copy of something, as if nobody looked: to see the checkers notice.
    pub gives_up_what_counts: bool,
}

/// What happened in a life in which nothing was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Two runs of a seed have the same.
    pub trace_hash: u64,
    /// Events of the simulation.
    pub events: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Virtual time.
    pub milliseconds: u64,
    /// What happened how often.
    pub coverage: Coverage,
}

impl Report {
    /// Adds another life's figures; its trace hash stays behind.
    pub fn merge(&mut self, other: &Report) {
        self.trace_hash = other.trace_hash;
        self.events += other.events;
        self.operations += other.operations;
        self.milliseconds += other.milliseconds;
        self.coverage.merge(&other.coverage);
    }
}

/// What went wrong in the life of one seed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The script that it went by, if it did.
    pub scenario: Option<Scenario>,
    /// The virtual time.
    pub seconds: f64,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "seed {} failed at {:.6} s: {}\n  ", self.seed, self.seconds, self.message)?;
        write!(formatter, "{}", replay_command(self.seed, self.scenario))
    }
}

/// The command that runs `seed` again and tells its story.
#[must_use]
pub fn replay_command(seed: u64, scenario: Option<Scenario>) -> String {
    let scenario = scenario.map(|scenario| format!(" --scenario {scenario:?}")).unwrap_or_default();
    format!("replay it with: cargo run -p sim --release -- --seed {seed} --trace{scenario}")
}

/// Runs the life of `seed`.
///
/// # Errors
/// What is wrong, with the command that shows it again.
pub fn run(seed: u64, settings: Settings) -> Result<Report, Failure> {
    keep_memory();
    let mut life = Life::new(seed, settings);
    let report = match settings.scenario {
        Some(scenario) => life.play(scenario),
        None => life.live(),
    };
    let scenario = settings.scenario;
    report.map_err(|message| Failure { seed, scenario, seconds: life.seconds(), message })
}

/// Has the allocator keep what is freed. Each start of a node takes and frees some pieces of a few 100 KiB and more, which the
/// allocator of the GNU C library gets from the kernel and gives back, to be zeroed anew each time, until one much larger was
/// freed: then it takes such pieces for common.
fn keep_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(black_box(Vec::<u8>::with_capacity(24 << 20))));
}

/// As [`run`], with a panic as a failure like any other. Where panics abort, as in release builds, this is the
/// same as [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_guarded(seed: u64, settings: Settings) -> Result<Report, Failure> {
    std::panic::catch_unwind(|| run(seed, settings)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        let (scenario, message) = (settings.scenario, format!("panic: {text}"));
        Err(Failure { seed, scenario, seconds: 0.0, message })
    })
}
