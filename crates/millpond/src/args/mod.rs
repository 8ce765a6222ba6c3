//! Flags that several commands share.

pub mod etcd;

use clap::Args;

/// How a list is printed.
#[derive(Args, Clone, Copy, Debug)]
pub struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
