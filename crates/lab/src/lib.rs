//! The measuring: what `millpond bench` and the benchmarks stand on.
//!
//! - [`engine`]: what a job is, in fio's names and meanings; which block comes next and which bytes it gets; keeping a
//!   [`engine::Target`] busy and timing every operation; latency without loss, CPU without guesses.
//! - [`targets`]: a drive, a volume, an NBD export, and memory.
//! - [`plan`]: what is measured, as data; [`run`] measures it by [`agent`]s and watches ([`monitor`]).
//! - [`challenges`]: plans that come with the program.
//! - [`archive`]: what came of a plan, as it is kept; [`trust`] says why it is not to be trusted, if it is not.
//! - [`statistics`]: what several rounds say together, and how surely; [`present`] tells it to readers.
//! - [`report`]: the outcome of a job for people and for programs.
//! - [`testbed`]: drives made of memory, a cluster on them and jobs as processes, taken down on every way out.
//! - [`scenarios`]: what the benchmarks measure: kinds of jobs on subjects in rounds, and what else happens to a cluster.
//!
//! Two rules hold everywhere. A figure that could not be measured is absent (`unavailable`), never 0.
//! Percentiles come from one merged histogram, never from an average of percentiles.
//!
//! When something fails: an operation that fails ends its job, which still reports what it measured,
//! with the number of errors and the first one's text. A job that fails ends its scenario, and what was
//! set up (loop devices, cluster, files) is taken down on every way out.

pub mod agent;
pub mod archive;
pub mod challenges;
pub mod engine;
pub mod monitor;
pub mod plan;
pub mod present;
pub mod report;
pub mod run;
pub mod scenarios;
pub mod statistics;
pub mod targets;
pub mod testbed;
pub mod trust;
