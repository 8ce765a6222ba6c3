//! `millpond schedule`: snapshots that are made, and removed again, by themselves.

use crate::Usage;
use crate::args::ListArguments;
use crate::host::access;
use crate::output::time::{ago, since_1970};
use crate::output::{self, table};
use anyhow::{Context, bail};
use base::LayerId;
use base::duration::{about, exactly};
use base::schedule::{Interval, Keep};
use clap::Subcommand;
use cluster::{Cluster, ScheduleChange, WantedSchedule};
use health::schedules::{self, ScheduleState, ScheduleView, ScheduledVolume};
use std::path::Path;
use std::time::Duration;

/// Whoever makes a schedule by which a volume has had all snapshots that it can have in less time is told.
const LASTS_AT_LEAST_SECONDS: u64 = 10 * 366 * 86_400;

/// What can be done with schedules.
#[derive(Subcommand, Clone, Debug)]
pub enum ScheduleCommand {
    /// Have snapshots of volumes made by themselves, of all of them at one moment, and old ones removed
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// Its name, unique in the cluster; its snapshots begin with it
        name: String,
        /// How often: 10s to 366d. The day is cut into such pieces in UTC: 6h is at 0, 6, 12 and 18 o'clock
        #[arg(long, value_name = "TIME")]
        every: Interval,
        /// Which snapshots are kept: numbers of last, hourly, daily, weekly, monthly, yearly
        #[arg(long, value_name = "RULES")]
        keep: Keep,
        /// The volumes, 24 at most
        #[arg(value_name = "VOLUME", required = true)]
        volumes: Vec<String>,
        /// Print the new schedule as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the schedules
    #[command(after_help = "Examples:\n  millpond schedule ls\n  millpond schedule ls --json")]
    Ls(ListArguments),
    /// Show a schedule, with its volumes
    #[command(after_help = "Examples:\n  millpond schedule info hourly")]
    Info {
        /// Its name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change how often snapshots are made, which are kept, or of which volumes they are
    #[command(after_help = "Examples:\n  millpond schedule set hourly --keep '48 hourly, 14 daily'\n  \
                            millpond schedule set hourly --add-volume log --remove-volume scratch")]
    Set {
        /// Its name
        name: String,
        /// How often from now on
        #[arg(long, value_name = "TIME",
              required_unless_present_any = ["keep", "add_volumes", "remove_volumes"])]
        every: Option<Interval>,
        /// Which snapshots are kept from now on. What is kept no more is removed at once
        #[arg(long, value_name = "RULES")]
        keep: Option<Keep>,
        /// One more volume; may be said several times
        #[arg(long = "add-volume", value_name = "VOLUME")]
        add_volumes: Vec<String>,
        /// A volume that is to have no more snapshots by this schedule; those that it has stay. May be said several times
        #[arg(long = "remove-volume", value_name = "VOLUME")]
        remove_volumes: Vec<String>,
        /// Print the schedule as JSON
        #[arg(long)]
        json: bool,
    },
    /// Have a schedule neither make nor remove snapshots until it is resumed
    #[command(after_help = "Examples:\n  millpond schedule pause hourly")]
    Pause {
        /// Its name
        name: String,
    },
    /// Have a schedule go on that was paused
    #[command(after_help = "Examples:\n  millpond schedule resume hourly")]
    Resume {
        /// Its name
        name: String,
    },
    /// Remove a schedule. Its snapshots stay, until somebody removes them
    #[command(after_help = "Examples:\n  millpond schedule rm hourly")]
    Rm {
        /// Its name
        name: String,
        /// Print what was removed as JSON
        #[arg(long)]
        json: bool,
    },
}

const CREATE_EXAMPLES: &str = "\
Examples:
  millpond schedule create hourly --every 1h --keep '24 hourly, 7 daily' disk
  millpond schedule create pair --every 15min --keep '8 last, 24 hourly' data log

Each rule keeps the newest snapshot of each of so many hours, days, weeks, months or years in which there is one; `last` keeps the
newest ones. A snapshot that any rule keeps is kept. One that is protected, or that was cloned from, is not removed meanwhile.";

/// Performs a `schedule` command.
pub fn run(command: &ScheduleCommand, directory: &Path) -> anyhow::Result<()> {
    let now = since_1970();
    match command {
        ScheduleCommand::Create { name, every, keep, volumes, json } => {
            let made = access::with_cluster(directory, async |cluster| {
                let wanted = WantedSchedule { volumes: volumes.clone(), every: *every, keep: keep.clone() };
                cluster.create_schedule(name, wanted, now.as_secs()).await?;
                find(cluster, name).await
            })?;
            warn_of_the_end(*every);
            output::show(*json, &made, || format!("schedule {name} made: {}\n", next(&made, now)))
        }
        ScheduleCommand::Ls(arguments) => {
            let all = access::with_cluster(directory, async |cluster| all(cluster).await)?;
            output::show(arguments.json, &all, || list(&all, now))
        }
        ScheduleCommand::Info { name, json } => {
            let found = access::with_cluster(directory, async |cluster| find(cluster, name).await)?;
            output::show(*json, &found, || describe(&found, now))
        }
        ScheduleCommand::Set { name, every, keep, add_volumes, remove_volumes, json } => {
            if let Some(both) = add_volumes.iter().find(|name| remove_volumes.contains(name)) {
                bail!(Usage(format!("{both} cannot be both added and removed; say one of them")));
            }
            let changed = access::with_cluster(directory, async |cluster| {
                let change = ScheduleChange {
                    every: *every,
                    keep: keep.clone(),
                    add: add_volumes.clone(),
                    remove: remove_volumes.clone(),
                };
                cluster.change_schedule(name, &change, now.as_secs()).await?;
                find(cluster, name).await
            })?;
            if let Some(every) = every {
                warn_of_the_end(*every);
            }
            output::show(*json, &changed, || {
                format!(
                    "schedule {name} makes snapshots every {} and keeps {}: {}\n",
                    exactly(changed.every_seconds),
                    changed.keep,
                    next(&changed, now)
                )
            })
        }
        ScheduleCommand::Pause { name } => {
            pause(directory, name, true, now)?;
            output::print_line(&format!(
                "schedule {name} is paused: it makes and removes no snapshots until `millpond schedule resume {name}`"
            ))
        }
        ScheduleCommand::Resume { name } => {
            let resumed = pause(directory, name, false, now)?;
            output::print_line(&format!("schedule {name} goes on: {}", next(&resumed, now)))
        }
        ScheduleCommand::Rm { name, json } => {
            let removed = access::with_cluster(directory, async |cluster| {
                let removed = find(cluster, name).await?;
                cluster.remove_schedule(name).await?;
                Ok(removed)
            })?;
            output::show(*json, &removed, || {
                let count: usize = removed.volumes.iter().map(|volume| volume.snapshots).sum();
                match count {
                    0 => format!("schedule {name} removed\n"),
                    _ => format!(
                        "schedule {name} removed; the {count} snapshots that it made stay, until somebody removes them\n"
                    ),
                }
            })
        }
    }
}

fn pause(directory: &Path, name: &str, paused: bool, now: Duration) -> anyhow::Result<ScheduleView> {
    access::with_cluster(directory, async |cluster| {
        cluster.pause_schedule(name, paused, now.as_secs()).await?;
        find(cluster, name).await
    })
}

async fn all(cluster: &Cluster) -> anyhow::Result<Vec<ScheduleView>> {
    let late = cluster.manager().await?.map(|manager| manager.late).unwrap_or_default();
    Ok(schedules::schedules(&cluster.map().await?, &late, since_1970().as_secs()))
}

async fn find(cluster: &Cluster, name: &str) -> anyhow::Result<ScheduleView> {
    let found = all(cluster).await?.into_iter().find(|schedule| schedule.name == name);
    found.with_context(|| format!("there is no schedule {name}; `millpond schedule ls` lists them"))
}

/// A volume has so many snapshots in its life and no more.
fn warn_of_the_end(every: Interval) {
    let seconds = u64::from(LayerId::NUMBER_MAX) * every.seconds();
    if seconds < LASTS_AT_LEAST_SECONDS {
        output::notice(&format!(
            "a volume can have {} snapshots made in its life, those included that are removed again: so often, for {}; then it is \
             to be copied to a new one",
            LayerId::NUMBER_MAX,
            about(seconds)
        ));
    }
}

/// When a schedule is due next, in words.
fn next(schedule: &ScheduleView, now: Duration) -> String {
    match (schedule.state, schedule.next_unix_seconds) {
        (ScheduleState::Paused, _) => "it is paused".to_owned(),
        (_, None) => "none of its volumes is there".to_owned(),
        (_, Some(at)) => format!("the next snapshots are made {}", until(at, now)),
    }
}

fn until(at: u64, now: Duration) -> String {
    match at.saturating_sub(now.as_secs()) {
        0 => "now".to_owned(),
        left => format!("in {}", about(left)),
    }
}

fn since(at: Option<u64>, now: Duration) -> String {
    at.map_or("never".to_owned(), |at| ago(Duration::from_secs(at), now))
}

fn state(schedule: &ScheduleView) -> String {
    match &schedule.reason {
        Some(reason) => format!("{}: {reason}", schedule.state.name()),
        None => schedule.state.name().to_owned(),
    }
}

fn volume_name(volume: &ScheduledVolume) -> String {
    match volume.is_there {
        true => volume.name.clone(),
        false => format!("{} (not there)", volume.name),
    }
}

fn list(schedules: &[ScheduleView], now: Duration) -> String {
    if schedules.is_empty() {
        return "there is no schedule\n".to_owned();
    }
    let row = |one: &ScheduleView| {
        vec![
            one.name.clone(),
            exactly(one.every_seconds),
            one.keep.clone(),
            one.volumes.iter().map(volume_name).collect::<Vec<_>>().join(", "),
            since(one.last_unix_seconds, now),
            one.next_unix_seconds.map_or("never".to_owned(), |at| until(at, now)),
            state(one),
        ]
    };
    table::render(
        &["SCHEDULE", ">EVERY", "KEEP", "VOLUMES", ">LAST", ">NEXT", "STATE"],
        schedules.iter().map(row),
    )
}

fn describe(schedule: &ScheduleView, now: Duration) -> String {
    let mut text = format!(
        "schedule  {}\nevery     {}\nkeep      {}\nstate     {}\nnext      {}\n\n",
        schedule.name,
        exactly(schedule.every_seconds),
        schedule.keep,
        state(schedule),
        schedule.next_unix_seconds.map_or("never".to_owned(), |at| until(at, now)),
    );
    let row = |volume: &ScheduledVolume| {
        vec![volume_name(volume), volume.snapshots.to_string(), since(volume.last_unix_seconds, now)]
    };
    text.push_str(&table::render(&["VOLUME", ">SNAPSHOTS", ">LAST"], schedule.volumes.iter().map(row)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(state: ScheduleState, reason: Option<&str>) -> ScheduleView {
        let volume = |name: &str, is_there| ScheduledVolume {
            name: name.to_owned(),
            is_there,
            snapshots: 3,
            last_unix_seconds: Some(1_000_000),
        };
        ScheduleView {
            name: "hourly".to_owned(),
            every_seconds: 3600,
            keep: "24 hourly".to_owned(),
            state,
            reason: reason.map(str::to_owned),
            volumes: vec![volume("disk", true), volume("old", false)],
            last_unix_seconds: Some(1_000_000),
            next_unix_seconds: (state != ScheduleState::Paused).then_some(1_007_800),
        }
    }

    #[test]
    fn schedules_are_listed_with_what_they_did_last_do_next_and_why_they_do_not() {
        let now = Duration::from_secs(1_007_200);
        assert_eq!(list(&[], now), "there is no schedule\n");
        let late = shown(ScheduleState::Late, Some("client 1 does not stand still"));
        for (one, parts) in [
            (shown(ScheduleState::Active, None), ["in 10 min", "active"]),
            (shown(ScheduleState::Paused, None), ["never", "paused"]),
            (late, ["in 10 min", "late: client 1 does not stand still"]),
        ] {
            let listed = list(std::slice::from_ref(&one), now);
            let line = listed.lines().nth(1).unwrap();
            for part in ["hourly", "1h", "24 hourly", "disk, old (not there)", "2 h ago"].iter().chain(&parts)
            {
                assert!(line.contains(part), "{part}: {line}");
            }
            let told = describe(&one, now);
            for part in ["every     1h", "old (not there)", "3", "2 h ago", parts[1]] {
                assert!(told.contains(part), "{part}: {told}");
            }
        }
    }

    #[test]
    fn whoever_made_a_schedule_is_told_when_its_first_snapshot_is_made() {
        let said = |state| next(&shown(state, None), Duration::from_secs(1_007_200));
        assert_eq!(said(ScheduleState::Active), "the next snapshots are made in 10 min");
        assert_eq!(said(ScheduleState::Paused), "it is paused");
        let due = next(&shown(ScheduleState::Active, None), Duration::from_secs(1_007_800));
        assert_eq!(due, "the next snapshots are made now");
    }
}
