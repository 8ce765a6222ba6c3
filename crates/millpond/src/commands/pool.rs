//! `millpond pool`: how often and how finely data is spread.

use crate::Usage;
use crate::args::ListArguments;
use crate::commands::status;
use crate::host::access;
use crate::host::configuration::{REPLICAS_MAX, min_size_default};
use crate::host::inquiry::Inquiry;
use crate::output;
use anyhow::{Context, bail};
use base::map::{DeviceClass, FailureDomain, PlacementRule, PoolInfo};
use clap::{Subcommand, ValueEnum};
use cluster::Cluster;
use health::view::{self, PoolView};
use placement::{PG_COUNT_MAX, default_pg_count};
use std::path::Path;
use std::time::Duration;

/// How long the manager may take to hear of a change.
const TOLD_LIMIT: Duration = Duration::from_secs(3);
/// How often it is asked meanwhile.
const TOLD_PAUSE: Duration = Duration::from_millis(20);

/// What can be done with pools.
#[derive(Subcommand, Clone, Debug)]
pub enum PoolCommand {
    /// Make a pool on the OSDs that there are
    #[command(after_help = "Examples:\n  millpond pool create fast\n  \
                            millpond pool create scratch --size 1 --pg-count 16\n  \
                            millpond pool create safe --failure-domain rack\n  \
                            millpond pool create archive --device-class hdd")]
    Create {
        /// Its name, unique in the cluster
        name: String,
        /// Copies of each object
        #[arg(long, value_name = "COPIES", default_value_t = 3,
              value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
        size: u32,
        /// Copies below which a placement group stops [default: half of --size, rounded up]
        #[arg(long, value_name = "COPIES",
              value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
        min_size: Option<u32>,
        /// Placement groups: the pieces in which data is spread over OSDs [default: for about 100 copies on each OSD, of
        /// all pools together]
        #[arg(long, value_name = "COUNT",
              value_parser = clap::value_parser!(u32).range(1..=i64::from(PG_COUNT_MAX)))]
        pg_count: Option<u32>,
        /// What no two copies of a group lie in, if there are enough: osd, host, rack, zone or region
        #[arg(long, value_name = "LEVEL", default_value_t)]
        failure_domain: FailureDomain,
        /// Use OSDs on such drives alone: nvme, ssd or hdd
        #[arg(long, value_name = "CLASS")]
        device_class: Option<DeviceClass>,
        /// Print the new pool as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the pools
    #[command(after_help = "Examples:\n  millpond pool ls\n  millpond pool ls --json")]
    Ls(ListArguments),
    /// Change how many copies a pool keeps, or how finely its data is spread, while it serves
    #[command(after_help = "Examples:\n  millpond pool set fast --size 3 --min-size 2\n  \
                            millpond pool set scratch --min-size 1\n  \
                            millpond pool set fast --pg-count 64\n  \
                            millpond pool set fast --pg-autoscale on")]
    Set {
        /// Its name
        name: String,
        /// Copies of each object from now on
        #[arg(long, value_name = "COPIES",
              required_unless_present_any = ["min_size", "pg_count", "pg_autoscale"], value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
        size: Option<u32>,
        /// Copies below which a placement group stops, from now on
        #[arg(long, value_name = "COPIES",
              value_parser = clap::value_parser!(u32).range(1..=i64::from(REPLICAS_MAX)))]
        min_size: Option<u32>,
        /// Placement groups from now on: twice as many as there are. Each is split in two, with a short pause for whoever
        /// uses it; no data is copied. They are never made fewer
        #[arg(long, value_name = "COUNT",
              value_parser = clap::value_parser!(u32).range(1..=i64::from(PG_COUNT_MAX)))]
        pg_count: Option<u32>,
        /// Whether the placement groups are split, step by step, when a new pool would get at least twice
        /// as many
        #[arg(long, value_name = "ON|OFF")]
        pg_autoscale: Option<Switch>,
        /// Print the pool as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a pool that holds no volume
    #[command(after_help = "Examples:\n  millpond pool rm scratch")]
    Rm {
        /// Its name
        name: String,
        /// Print what was removed as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Whether something happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It does.
    On,
    /// It does not.
    Off,
}

/// Performs a `pool` command.
pub fn run(command: &PoolCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        PoolCommand::Create { name, size, min_size, pg_count, failure_domain, device_class, json } => {
            let min_size = min_size.unwrap_or(min_size_default(*size));
            if min_size > *size {
                bail!(Usage(format!(
                    "--min-size {min_size} is more than the {size} copies of --size; lower it"
                )));
            }
            let pool = access::with_cluster_and_inquiry(directory, async |cluster, inquiry| {
                let rule = PlacementRule { failure_domain: *failure_domain, device_class: *device_class };
                let pg_count = match pg_count {
                    Some(pg_count) => *pg_count,
                    None => default_pg_count(&cluster.map().await?, &rule, *size),
                };
                let info = PoolInfo {
                    name: name.clone(),
                    size: *size,
                    min_size,
                    pg_count,
                    rule,
                    ..PoolInfo::default()
                };
                cluster.create_pool_by(&info).await?;
                until_told(inquiry, |pools| pools.iter().any(|pool| pool.name == *name)).await;
                find(cluster, inquiry, name).await
            })?;
            output::show(*json, &pool, || {
                format!("pool {name} made: {}, {} placement groups\n", copies(*size), pool.pg_count)
            })
        }
        PoolCommand::Set { name, size, min_size, pg_count, pg_autoscale, json } => {
            let pool = access::with_cluster_and_inquiry(directory, async |cluster, inquiry| {
                if size.is_some() || min_size.is_some() {
                    cluster.change_pool(name, *size, *min_size).await?;
                }
                if let Some(pg_count) = pg_count {
                    cluster.set_pg_count(name, *pg_count).await?;
                }
                if let Some(switch) = pg_autoscale {
                    cluster.set_pg_autoscale(name, *switch == Switch::On).await?;
                }
                find(cluster, inquiry, name).await
            })?;
            let groups = match pool.split_to {
                Some(split_to) => format!("{} placement groups are being split to {split_to}", pool.pg_count),
                None => format!("it has {} placement groups", pool.pg_count),
            };
            output::show(*json, &pool, || {
                format!(
                    "pool {name} shall keep {}, and takes writes while {} of them are in sync; {groups}; `millpond status` \
                     shows how far they are\n",
                    copies(pool.size),
                    pool.min_size
                )
            })
        }
        PoolCommand::Ls(arguments) => {
            let pools = access::with_inquiry(directory, async |inquiry| inquiry.pools().await)?;
            output::show(arguments.json, &pools, || status::pool_table(&pools))
        }
        PoolCommand::Rm { name, json } => {
            let pool = access::with_cluster_and_inquiry(directory, async |cluster, inquiry| {
                let pool = find(cluster, inquiry, name).await?;
                cluster.remove_pool(name).await?;
                until_told(inquiry, |pools| pools.iter().all(|told| told.pool != pool.pool)).await;
                Ok(pool)
            })?;
            output::show(*json, &pool, || format!("pool {name} removed\n"))
        }
    }
}

/// So many copies, in words.
pub fn copies(size: u32) -> String {
    format!("{size} {}", if size == 1 { "copy (no redundancy)" } else { "copies" })
}

/// Waits until the manager, which tells how the cluster is, knows of a change: so whoever asks next finds it. Should that take long,
/// the change is made nevertheless.
async fn until_told(inquiry: &Inquiry, is_told: impl Fn(&[PoolView]) -> bool) {
    let told = async {
        while inquiry.pools().await.is_ok_and(|pools| !is_told(&pools)) {
            tokio::time::sleep(TOLD_PAUSE).await;
        }
    };
    // Time is up, or it is told.
    let _ = tokio::time::timeout(TOLD_LIMIT, told).await;
}

/// A pool as it is in the registry now, with what the manager knows of its groups.
async fn find(cluster: &Cluster, inquiry: &Inquiry, name: &str) -> anyhow::Result<PoolView> {
    let pools = view::pools(&cluster.map().await?, &[]).into_iter();
    let mut found = pools.filter(|pool| pool.name == name);
    let mut pool =
        found.next().with_context(|| format!("there is no pool {name}; `millpond pool ls` lists them"))?;
    if let Some(told) = inquiry.pools().await?.iter().find(|told| told.pool == pool.pool) {
        pool.pgs_active = told.pgs_active;
    }
    Ok(pool)
}
