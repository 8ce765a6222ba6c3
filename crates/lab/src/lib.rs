//! The measuring: what `millpond bench` and the benchmark suite stand on.
//!
//! - [`plan`]: what a job is, in fio's names and meanings.
//! - [`generator`]: which block comes next and which bytes it gets, from a seed.
//! - [`engine`]: keeps a [`engine::Target`] busy and times every operation.
//! - [`raw`], [`volume`], [`nbd`], [`memory`]: a drive, a volume, an NBD export, and memory as targets.
//! - [`histogram`], [`cpu`]: latency without loss, CPU without guesses.
//! - [`report`], [`challenge`]: the outcome for people and for programs.
//! - [`suite`], [`comparison`], [`jobs`], [`testbed`], [`command`], [`cleanup`]: a raw device and a replicated volume, side by side.
//! - [`failover`], [`steady`]: what clients notice when a node is lost.
//! - [`encryption`]: what it costs.
//! - [`large`]: thousands of OSDs, and what watching them costs.
//!
//! Two rules hold everywhere. A figure that could not be measured is absent (`unavailable`), never 0.
//! Percentiles come from one merged histogram, never from an average of percentiles.
//!
//! When something fails: an operation that fails ends its job, which still reports what it measured,
//! with the number of errors and the first one's text. A job that fails ends the suite, and what the
//! suite set up (loop devices, cluster, files) is taken down on every way out.

pub mod challenge;
pub mod cleanup;
pub mod command;
pub mod comparison;
pub mod cpu;
pub mod encryption;
pub mod engine;
pub mod failover;
pub mod generator;
pub mod histogram;
pub mod jobs;
pub mod large;
pub mod memory;
pub mod nbd;
pub mod plan;
pub mod raw;
pub mod report;
pub mod steady;
pub mod suite;
pub mod testbed;
pub mod volume;
