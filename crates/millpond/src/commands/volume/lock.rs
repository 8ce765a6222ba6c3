//! `millpond volume lock`: advisory locks, by which programs tell each other who works on a volume.

use crate::host::access;
use crate::output::time::{ago, since_1970};
use crate::output::{self, table};
use clap::Subcommand;
use cluster::{Lock, LockRecord, Locks, Unlock};
use std::path::Path;
use std::time::Duration;

/// What can be done with the locks of a volume.
#[derive(Subcommand, Clone, Debug)]
pub enum LockCommand {
    /// List who holds which lock of a volume
    #[command(after_help = "Examples:\n  millpond volume lock ls disk")]
    Ls {
        /// The volume
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a lock of a volume. It keeps nobody from anything who does not ask for it
    #[command(after_help = ADD_EXAMPLES)]
    Add {
        /// The volume
        name: String,
        /// The lock
        #[arg(value_name = "ID")]
        lock: String,
        /// Hold it together with others who give the same tag
        #[arg(long, value_name = "TAG")]
        shared: Option<String>,
        /// What tells this from other times that the same locker holds it
        #[arg(long, value_name = "COOKIE", default_value = "")]
        cookie: String,
        /// Who takes it [default: the name of this machine]
        #[arg(long, value_name = "LOCKER")]
        locker: Option<String>,
    },
    /// Remove a lock that a locker holds, also one that is gone
    #[command(after_help = "Examples:\n  millpond volume lock rm disk backup alpha")]
    Rm {
        /// The volume
        name: String,
        /// The lock
        #[arg(value_name = "ID")]
        lock: String,
        /// Who holds it, as `millpond volume lock ls` shows
        locker: String,
        /// Under which cookie
        #[arg(long, value_name = "COOKIE", default_value = "")]
        cookie: String,
    },
}

const ADD_EXAMPLES: &str = "\
Examples:
  millpond volume lock add disk backup
  millpond volume lock add disk readers --shared backup --cookie $$

A lock stays until it is removed by `millpond volume lock rm`, whatever becomes of who took it, and goes with the volume.";

/// Performs a `volume lock` command.
pub fn run(command: &LockCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        LockCommand::Ls { name, json } => {
            let locks = access::with_desk(directory, async |desk| {
                Ok(desk.ask(Locks { volume: name.clone() }).await?)
            })?;
            output::show(*json, &locks, || list(&locks, since_1970()))
        }
        LockCommand::Add { name, lock, shared, cookie, locker } => {
            let host = host();
            let lock = LockRecord {
                name: lock.clone(),
                locker: locker.clone().unwrap_or_else(|| host.clone()),
                cookie: cookie.clone(),
                tag: shared.clone(),
                description: format!("pid {} on {host}, millpond volume lock", std::process::id()),
                principal: None,
                since_unix_seconds: since_1970().as_secs(),
            };
            access::with_desk(directory, async |desk| {
                Ok(desk.ask(Lock { volume: name.clone(), lock }).await?)
            })
        }
        LockCommand::Rm { name, lock, locker, cookie } => access::with_desk(directory, async |desk| {
            let (volume, name) = (name.clone(), lock.clone());
            let (locker, cookie) = (locker.clone(), cookie.clone());
            Ok(desk.ask(Unlock { volume, name, locker, cookie }).await?)
        }),
    }
}

/// The name of this machine.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

fn list(locks: &[LockRecord], now: Duration) -> String {
    if locks.is_empty() {
        return "nobody holds a lock\n".to_owned();
    }
    let row = |lock: &LockRecord| {
        vec![
            lock.name.escape_debug().to_string(),
            lock.locker.escape_debug().to_string(),
            lock.cookie.escape_debug().to_string(),
            lock.tag
                .as_ref()
                .map_or("exclusive".to_owned(), |tag| format!("shared as {}", tag.escape_debug())),
            lock.principal.clone().unwrap_or_default(),
            ago(Duration::from_secs(lock.since_unix_seconds), now),
            lock.description.escape_debug().to_string(),
        ]
    };
    table::render(&["ID", "LOCKER", "COOKIE", "HELD", "KEY", "SINCE", "BY"], locks.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_listed_with_whom_they_are_shared_and_steer_no_terminal() {
        let lock = LockRecord {
            name: "a\u{1b}[2J".to_owned(),
            locker: "alpha".to_owned(),
            tag: Some("t".to_owned()),
            since_unix_seconds: 60,
            ..LockRecord::default()
        };
        let text = list(&[lock], Duration::from_secs(120));
        assert!(
            text.contains("shared as t") && text.contains("alpha") && text.contains("60 s ago"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(list(&[], Duration::ZERO), "nobody holds a lock\n");
    }
}
