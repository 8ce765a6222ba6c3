//! The subcommands: each a module with its arguments and its `run`.

pub mod arguments;
pub mod auth;
pub mod bench;
pub mod client;
pub mod cluster;
pub mod config;
pub mod demo;
pub mod detach;
pub mod log;
pub mod membership;
pub mod migrate;
pub mod monitor;
pub mod nbd;
pub mod node;
pub mod node_process;
pub mod osd;
pub mod pg;
pub mod placement;
pub mod pool;
pub mod replacement;
pub mod scrub;
pub mod simulation;
pub mod status;
pub mod up;
pub mod verdict;
pub mod volume;
