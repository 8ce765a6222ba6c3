//! `millpond node`: the process of one node, a child of `up`.

use anyhow::{Context, bail};
use base::NodeId;
use clap::Args;
use nix::sys::signal::Signal;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

/// One node's process, started by `up`.
#[derive(Args, Clone, Debug)]
pub struct NodeArguments {
    /// The node's number
    #[arg(long, value_name = "NUMBER")]
    pub node: u32,

    /// Where the registry is served: unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = parse_registry)]
    pub registry: PathBuf,

    /// The drive of an OSD; repeat it for more
    #[arg(long = "osd", value_name = "PATH", required = true)]
    pub osds: Vec<PathBuf>,

    /// Whether the drives lose what they did not flush with power [default: what the kernel says]
    #[arg(long, value_name = "BOOL")]
    pub volatile_cache: Option<bool>,

    /// The longest an OSD polls before it sleeps, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub spin_us: u64,

    /// The address that its OSDs listen on. Hidden, and for tests alone: there is neither authentication nor encryption
    /// yet, so whoever reaches another address than the loopback one reads and writes everything
    #[arg(long, hide = true, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub listen: IpAddr,

    /// The process to end with
    #[arg(long, value_name = "PID")]
    pub parent: Option<u32>,
}

/// Runs the node until SIGTERM, or until its parent is gone.
pub fn run(arguments: &NodeArguments) -> anyhow::Result<()> {
    if let Some(parent) = arguments.parent {
        end_with(parent)?;
    }
    let config = node::Config {
        node: NodeId(arguments.node),
        registry: arguments.registry.clone(),
        osds: arguments.osds.clone(),
        volatile_cache: arguments.volatile_cache,
        spin_max: Duration::from_micros(arguments.spin_us),
        listen: arguments.listen,
    };
    Ok(node::run(config)?)
}

/// Has the kernel send this process SIGTERM when `parent` ends, however it ends.
pub fn end_with(parent: u32) -> anyhow::Result<()> {
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).context("cannot tie this process to its parent")?;
    // It may have ended before the kernel was told.
    if nix::unistd::getppid().as_raw() != i32::try_from(parent).unwrap_or(-1) {
        bail!("its parent, process {parent}, has ended");
    }
    Ok(())
}

fn parse_registry(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err(format!("{text:?} names no registry; write unix:PATH")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_parent_is_gone_does_not_start() {
        let error = end_with(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("has ended"), "{error}");
    }

    #[test]
    fn only_a_unix_socket_names_a_registry() {
        assert_eq!(parse_registry("unix:/run/r.sock"), Ok("/run/r.sock".into()));
        assert!(parse_registry("unix:").is_err());
        assert!(parse_registry("tcp:1.2.3.4").is_err());
    }
}
