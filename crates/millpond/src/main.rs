//! The `millpond` command: starts a cluster, shows it, changes it, serves it, measures it.
//!
//! - [`commands`]: what the command line accepts, and each subcommand, a module with its arguments and its `run`; [`top`], the live view, has a folder of its own.
//! - [`args`]: flags that several of them share.
//! - [`host`]: what runs and finds a cluster on this machine: its directory, settings, drives and processes.
//! - [`output`]: what is printed, and where logs go.
//!
//! An error that reaches `main` is printed for a person: what happened, to what, and what to do next. Exit codes: 0 done,
//! 1 failed, 2 called wrongly.

mod args;
mod commands;
mod host;
mod output;
mod top;
mod transfer;

use clap::{CommandFactory, Parser};
use commands::arguments::{Arguments, Command};
use commands::{
    auth, bench, ceph_conf, client, cluster, config, demo, detach, lab, log, migrate, monitor, namespace,
    nbd, node, node_process, osd, pg, placement, pool, schedule, scrub, status, up, verdict, vhost_user,
    volume,
};
use manager::log::ProcessLog;
use std::process::ExitCode;

/// A command that was called wrongly: exit code 2, as for a flag that does not exist.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

fn main() -> ExitCode {
    #[cfg(panic = "unwind")]
    abort_on_panic();
    let arguments = Arguments::parse();
    let log = output::logging::start();
    match run(&arguments, &log) {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&format!("{error:#}"));
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// A panic ends the process, as it does where the profile says so: what a thread that failed shared with others is not to be
/// trusted.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

fn run(arguments: &Arguments, log: &ProcessLog) -> anyhow::Result<ExitCode> {
    let directory = arguments.dir.as_path();
    match &arguments.command {
        Command::Up(up) => up::run(up, directory),
        Command::Down => detach::down(directory),
        Command::Status(status) => status::run(status, directory),
        Command::Health(health) => return verdict::run(health, directory),
        Command::Top(top) => top::run(top, directory),
        Command::Log(log) => log::run(log, directory),
        Command::Monitor(monitor) => monitor::run(monitor, directory),
        Command::Osd(osd) => osd::run(osd, directory),
        Command::Pg(pg) => pg::run(pg, directory),
        Command::Placement(placement) => placement::run(placement, directory),
        Command::Pool(pool) => pool::run(pool, directory),
        Command::Namespace(namespace) => namespace::run(namespace, directory),
        Command::Scrub(scrub) => scrub::run(scrub, directory),
        Command::Volume(volume) => volume::run(volume, directory),
        Command::Schedule(schedule) => schedule::run(schedule, directory),
        Command::Auth(auth) => auth::run(auth, directory),
        Command::Nbd(nbd) => nbd::run(nbd, directory),
        Command::VhostUser(vhost_user) => vhost_user::run(vhost_user, directory),
        Command::CephConf(conf) => ceph_conf::run(conf, directory),
        Command::Bench(bench) => bench::run(bench, directory),
        Command::Lab(lab) => return lab::run(lab, directory),
        Command::Demo => demo::run(directory),
        Command::Cluster(cluster) => cluster::run(cluster, directory),
        Command::Node(node) => node::run(node, directory),
        Command::Client(client) => client::run(client, directory),
        Command::Registry(registry) => migrate::run(registry, directory),
        Command::NodeProcess(process) => node_process::run(process, directory, log),
        Command::Config(config) => config::run(config, directory),
        Command::Completions { shell } => completions(*shell),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "millpond", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
