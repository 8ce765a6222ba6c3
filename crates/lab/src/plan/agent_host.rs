//! Where load is made.

use super::PlanFileError;
use serde::Deserialize;
use std::process::Command;

/// A host that makes load. Exactly one of `ssh` and `command` says how it is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentHost {
    /// What it is called.
    pub name: String,
    /// Its name for `ssh`, which must let this user in without a question.
    pub ssh: Option<String>,
    /// What `millpond` is called there, with `ssh`.
    pub millpond: Option<String>,
    /// What a shell runs here that becomes `millpond lab agent` there, as `kubectl exec -i load-1 -- millpond lab agent`.
    pub command: Option<String>,
}

impl AgentHost {
    /// What is run here for an agent there.
    #[must_use]
    pub fn start(&self) -> Command {
        match (&self.command, &self.ssh) {
            (Some(line), _) => {
                let mut command = Command::new("sh");
                // The shell becomes it, so that who ends one ends the other.
                command.args(["-c", &format!("exec {line}")]);
                command
            }
            (None, ssh) => {
                let mut command = Command::new("ssh");
                // No questions, and a host that vanished is noticed.
                command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
                command.args(["-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=3"]);
                command.args(ssh).arg("--");
                command.args([self.millpond.as_deref().unwrap_or("millpond"), "lab", "agent"]);
                command
            }
        }
    }

    pub(super) fn check(&self) -> Result<(), PlanFileError> {
        let wrong = |text: &str| Err(PlanFileError::Sense(format!("agent {:?}: {text}", self.name)));
        if self.ssh.is_some() == self.command.is_some() {
            return wrong("give exactly one of ssh and command");
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
