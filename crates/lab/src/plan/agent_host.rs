//! Where load is made.

use super::PlanFileError;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

/// A host that makes load. Exactly one of `ssh`, `tcp` and `command` says how it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentHost {
    /// What it is called.
    pub name: String,
    /// Its name for `ssh`, which must let this user in without a question.
    pub ssh: Option<String>,
    /// What `millpond` is called there, with `ssh`.
    pub millpond: Option<String>,
    /// The address and port at which `millpond lab agent --listen` runs there.
    pub tcp: Option<String>,
    /// The file of the key that it was given, with `tcp`.
    pub key: Option<PathBuf>,
    /// What a shell runs here that becomes `millpond lab agent` there, as `kubectl exec -i load-1 -- millpond lab agent`.
    pub command: Option<String>,
}

impl AgentHost {
    /// What is run here for an agent there.
    #[must_use]
    pub fn start(&self) -> Command {
        match (&self.command, &self.tcp) {
            (Some(line), _) => {
                let mut command = Command::new("sh");
                // The shell becomes it, so that who ends one ends the other.
                command.args(["-c", &format!("exec {line}")]);
                command
            }
            (None, Some(address)) => {
                // This program, even if another was built meanwhile.
                let mut command = Command::new("/proc/self/exe");
                command.args(["lab", "reach", address, "--key"]).args(&self.key);
                command
            }
            (None, None) => {
                let mut command = Command::new("ssh");
                // No questions, and a host that vanished is noticed.
                command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
                command.args(["-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=3"]);
                command.args(&self.ssh).arg("--");
                command.args([self.millpond.as_deref().unwrap_or("millpond"), "lab", "agent"]);
                command
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), PlanFileError> {
        let wrong = |text: &str| Err(PlanFileError::Sense(format!("agent {:?}: {text}", self.name)));
        let ways = [self.ssh.is_some(), self.tcp.is_some(), self.command.is_some()];
        if ways.into_iter().filter(|is_given| *is_given).count() != 1 {
            return wrong("give exactly one of ssh, tcp and command");
        }
        if self.tcp.is_some() != self.key.is_some() {
            return wrong("tcp and key go together; `millpond lab agent --listen` makes the key");
        }
        if self.tcp.as_ref().is_some_and(|address| address.starts_with('-')) {
            return wrong("tcp is no address; write HOST:PORT");
        }
        if self.millpond.is_some() && self.ssh.is_none() {
            return wrong("millpond goes with ssh; the command names it by itself");
        }
        // What begins so ssh takes for an option.
        if self.ssh.as_ref().is_some_and(|host| host.is_empty() || host.starts_with('-')) {
            return wrong("ssh is no host's name");
        }
        Ok(())
    }
}
