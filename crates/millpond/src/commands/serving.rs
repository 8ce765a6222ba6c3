//! What commands that serve volumes to programs have in common.

use crate::Usage;
use crate::commands::node_process;
use anyhow::bail;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use volume::OpenAs;

/// The shortest time limit of operations: as long as a failover under load.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// How volumes are had while they are served.
#[derive(Args, Clone, Debug)]
pub struct ServingArguments {
    /// Open the volumes and do not attach them before there is something to write. When another who opened them so has something to
    /// write, they are given up to that, and got back by the next write here
    #[arg(long, conflicts_with = "read_only")]
    pub open: bool,

    /// Refuse writes. The volumes are only opened, whoever has them attached
    #[arg(long)]
    pub read_only: bool,

    /// How long an operation may take before it fails with EIO, for example 30s [default: it waits for ever].
    /// A write that failed so may still take effect
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub timeout: Option<Duration>,

    /// The file of the key to act with, as `millpond auth add` makes it [default: that of the cluster's owner]
    #[arg(long, env = "MILLPOND_KEY", value_name = "PATH")]
    pub key: Option<PathBuf>,

    /// The process to end with.
    #[arg(long, hide = true, value_name = "PID")]
    pub parent: Option<u32>,
}

impl ServingArguments {
    pub fn open_as(&self) -> OpenAs {
        match self {
            ServingArguments { read_only: true, .. } => OpenAs::Reader,
            ServingArguments { open: true, .. } => OpenAs::Writer,
            _ => OpenAs::Owner,
        }
    }

    /// Whoever started this process takes it with it.
    pub fn end_with_parent(&self) -> anyhow::Result<()> {
        self.parent.map_or(Ok(()), node_process::end_with)
    }
}

/// What ends with an @ names nothing.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    if name.ends_with('@') {
        bail!(Usage(format!(
            "{name} names no snapshot; a volume is named without @, a snapshot VOLUME@SNAPSHOT"
        )));
    }
    Ok(())
}

/// A time limit of operations, as people write it: `30s`, `500ms`, `2m`, or seconds alone.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write for example 30s, 2m or 1500ms");
    let trimmed = text.trim();
    let split = trimmed.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    let timeout = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    if timeout < TIMEOUT_MIN {
        return Err(format!(
            "{text:?} is less than {} s, which the cluster may need to go on without a node; allow more",
            TIMEOUT_MIN.as_secs()
        ));
    }
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_read_as_people_write_them() {
        for (text, milliseconds) in
            [("30", 30_000), ("1.5s", 1500), ("2500ms", 2500), ("2m", 120_000), ("1 h", 3_600_000)]
        {
            assert_eq!(parse_timeout(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "s", "0", "0.5s", "999ms", "-3", "nan", "inf", "1e300", "3 weeks"] {
            assert!(parse_timeout(wrong).is_err(), "{wrong}");
        }
    }
}
