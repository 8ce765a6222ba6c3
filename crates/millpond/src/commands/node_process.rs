//! `millpond node-process`: a process of one node, a child of `up` or of `node run`.

use crate::host::directory::Directory;
use crate::host::settings::Settings;
use anyhow::{Context, bail};
use auth::{Identity, SecretKey};
use base::NodeId;
use clap::Args;
use manager::log::ProcessLog;
use nix::sys::signal::Signal;
use node::Location;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process of one node, started by `up` or `node run`.
#[derive(Args, Clone, Debug)]
pub struct NodeProcessArguments {
    /// The node's number
    #[arg(long, value_name = "NUMBER")]
    pub node: u32,

    /// Where the registry is: unix:PATH, or a URL of etcd's [default: what the settings in --dir say]
    #[arg(long, value_name = "LOCATION")]
    pub registry: Option<Location>,

    /// The file of the node's key
    #[arg(long, value_name = "PATH")]
    pub key: PathBuf,

    /// The drive of an OSD; repeat it for more
    #[arg(long = "osd", value_name = "PATH", required = true)]
    pub osds: Vec<PathBuf>,

    /// Whether the drives lose what they did not flush with power [default: what the kernel says]
    #[arg(long, value_name = "BOOL")]
    pub volatile_cache: Option<bool>,

    /// The longest an OSD polls before it sleeps, in microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub spin_us: u64,

    /// An address that its OSDs listen on; repeat it for more, the one that is preferred first
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub listen: Vec<IpAddr>,

    /// The port of these addresses on which clients are served the registry [default: none]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub client_port: Option<u16>,

    /// The process to end with
    #[arg(long, value_name = "PID")]
    pub parent: Option<u32>,
}

/// Runs the node until SIGTERM, or until its parent is gone.
pub fn run(arguments: &NodeProcessArguments, directory: &Path, log: &ProcessLog) -> anyhow::Result<()> {
    if let Some(parent) = arguments.parent {
        end_with(parent)?;
    }
    let registry = match &arguments.registry {
        Some(registry) => registry.clone(),
        None => {
            let settings = Settings::require(&Directory::new(directory)?)?;
            settings.registry()?.context("the settings name no registry")?
        }
    };
    let config = node::Config {
        node: NodeId(arguments.node),
        registry,
        identity: Identity::new(&SecretKey::load(&arguments.key)?),
        osds: arguments.osds.clone(),
        volatile_cache: arguments.volatile_cache,
        spin_max: Duration::from_micros(arguments.spin_us),
        listen: arguments.listen.clone(),
        client_port: arguments.client_port,
        log: log.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_parent_is_gone_does_not_start() {
        let error = end_with(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("has ended"), "{error}");
    }
}
