//! `millpond top`: what the cluster does now, by OSD, pool, volume and client.

mod rates;
pub(crate) mod scrape;
mod screen;
mod table;

use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::output;
use anyhow::bail;
use base::ClientId;
use clap::{Args, ValueEnum};
use cluster::{Attachments, HttpServers};
use lab::engine::plan::parse_seconds;
use rates::{Reading, Sample};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  millpond top                          live; q ends it
  millpond top --view volume
  millpond top --once                   one sample as tables, for a terminal or not
  millpond top --json | jq '.osds[] | {name, reads_per_s, read_p99_us}'

Keys: q ends it, Tab or 1 to 4 changes the view, s the order.
Latencies are those at the OSDs, from buckets that double in width: a p99 is right to within a factor of two.
CPU is that of the OSDs' threads, without what the kernel does for them on others.";

/// Show what the cluster does now.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TopArguments {
    /// What to show first
    #[arg(long, value_enum, default_value_t = View::Osd)]
    pub view: View,

    /// Print one sample, with all views, and end
    #[arg(long)]
    pub once: bool,

    /// Print one sample as JSON, and end
    #[arg(long)]
    pub json: bool,

    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    pub interval: Duration,
}

/// By what it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// By OSD
    Osd,
    /// By pool
    Pool,
    /// By volume: the busiest
    Volume,
    /// By client: the busiest
    Client,
}

impl View {
    const ALL: [View; 4] = [View::Osd, View::Pool, View::Volume, View::Client];

    fn name(self) -> &'static str {
        match self {
            View::Osd => "OSDs",
            View::Pool => "pools",
            View::Volume => "volumes",
            View::Client => "clients",
        }
    }
}

/// In which order it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Operations,
    Bytes,
    Name,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Operations => Order::Bytes,
            Order::Bytes => Order::Name,
            Order::Name => Order::Operations,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Order::Operations => "operations",
            Order::Bytes => "bytes",
            Order::Name => "name",
        }
    }
}

/// Shows it once, or until somebody has seen enough.
pub fn run(arguments: &TopArguments, directory: &Path) -> anyhow::Result<()> {
    let is_once = arguments.once || arguments.json;
    let has_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if !is_once && !has_terminal {
        bail!(crate::Usage("the live view needs a terminal; use --once or --json without one".to_owned()));
    }
    access::with_inquiry(directory, async |inquiry| {
        if !is_once {
            return screen::run(inquiry, arguments.view, arguments.interval).await;
        }
        let before = Reading::take(inquiry, &BTreeMap::new()).await?;
        tokio::time::sleep(arguments.interval).await;
        let now = Reading::take(inquiry, &before.clients).await?;
        if now.nodes.is_empty() {
            bail!("no process of the cluster tells its figures: {}", reasons(&now.silent));
        }
        let sample = Sample::between(&before, &now);
        output::show(arguments.json, &sample, || table::text(&sample))
    })
}

fn reasons(silent: &[String]) -> String {
    match silent {
        [] => "the registry knows of none; look whether its nodes run with `millpond status`".to_owned(),
        silent => silent.join("; "),
    }
}

impl Reading {
    /// Reads the counts now. `known` are clients whose names were read before.
    async fn take(inquiry: &Inquiry, known: &BTreeMap<ClientId, String>) -> anyhow::Result<Reading> {
        let desk = inquiry.desk();
        let map = Arc::new(desk.map().await?);
        let overview = inquiry.overview().await?;
        let (nodes, silent) = scrape::all(&desk.ask(HttpServers {}).await?, &map, inquiry).await?;
        let at = Instant::now();
        let mut clients = known.clone();
        let osds = || nodes.iter().flat_map(|node| &node.osds);
        if osds().flat_map(|osd| &osd.clients).any(|it| !clients.contains_key(&it.client)) {
            // Who they are stands with the volumes that they have attached.
            let mut volumes: Vec<_> = osds().flat_map(|osd| &osd.volumes).map(|it| it.volume).collect();
            volumes.sort_unstable();
            volumes.dedup();
            for volume in volumes {
                let attached = desk.ask(Attachments { volume }).await?;
                clients.extend(attached.into_iter().map(|record| (record.client, record.description)));
            }
        }
        Ok(Reading {
            at,
            nodes,
            silent,
            map,
            clients,
            level: overview.health.level,
            recovery_objects_left: overview.recovery.objects_left,
            recovery_bytes_left: overview.recovery.bytes_left,
        })
    }
}
