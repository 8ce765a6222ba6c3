//! `millpond status`: how the cluster is, why, and what to do next.

use crate::commands::verdict;
use crate::host::access;
use crate::output::{self, table};
use base::Encryption;
use base::map::PlacementRule;
use base::units::ByteSize;
use clap::Args;
use health::status::{Counts, ManagerView, Overview};
use health::view::{Capacity, PoolView, VolumeView};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

/// How often `--watch` shows it anew.
const WATCH_EVERY: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  millpond status
  millpond status --watch
  millpond status --json | jq .health.level      \"ok\", \"warning\" or \"error\"

It exits with 0 whenever the cluster answers; scripts look at .health.level.";

/// Show how the cluster is, why, and what to do next.
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = EXAMPLES)]
pub struct StatusArguments {
    /// Print JSON; with --watch one line each time
    #[arg(long)]
    pub json: bool,

    /// Show it again every two seconds, until Ctrl-C
    #[arg(long)]
    pub watch: bool,
}

/// Shows the status once, or again and again.
pub fn run(arguments: &StatusArguments, path: &Path) -> anyhow::Result<()> {
    access::with_inquiry(path, async |inquiry| {
        loop {
            if arguments.json {
                let status = inquiry.status().await?;
                match arguments.watch {
                    false => output::print_json(&status)?,
                    true => output::print_line(&serde_json::to_string(&status)?)?,
                }
            } else {
                // Home, and clear what is below: the picture stays in its place.
                let is_kept = arguments.watch && std::io::stdout().is_terminal();
                let clear = if is_kept { "\x1b[H\x1b[J" } else { "" };
                output::print(&format!("{clear}{}", render(&inquiry.overview().await?)))?;
            }
            if !arguments.watch {
                return Ok(());
            }
            tokio::time::sleep(WATCH_EVERY).await;
        }
    })
}

fn render(status: &Overview) -> String {
    let mut text = format!("cluster  {}\n", status.cluster.id);
    text.push_str(&format!("health   {}", verdict::render(&status.health, "         ")));
    text.push_str(&format!("manager  {}\n", manager(status.manager)));
    let Counts { nodes, nodes_up, osds, osds_up, osds_out } = status.counts;
    text.push_str(&format!("nodes    {}\n", of_all(nodes_up, nodes)));
    let out = if osds_out == 0 { String::new() } else { format!(", {osds_out} out") };
    text.push_str(&format!("OSDs     {}{out}\n", of_all(osds_up, osds)));
    text.push_str(&format!("space    {}\n", space(&status.capacity)));
    text.push_str(match status.cluster.encryption {
        Encryption::On => "traffic  encrypted\n",
        Encryption::Off => "traffic  in plain\n",
    });
    let states: Vec<String> =
        status.pgs.by_state.iter().map(|(state, count)| format!("{count} {}", state.name())).collect();
    let states = if states.is_empty() { "none".to_owned() } else { states.join(", ") };
    text.push_str(&format!("PGs      {states}\n"));
    for note in &status.notes {
        text.push_str(&format!("note     {}: {}\n", note.osd, note.note));
    }
    text.push_str(&format!("\n{}", pool_table(&status.pools)));
    text.push_str(&format!("\n{}", volume_table(&status.volumes)));
    match status.trash.len() {
        0 => {}
        1 => text.push_str("one more in the trash: `millpond volume trash`\n"),
        count => text.push_str(&format!("{count} more in the trash: `millpond volume trash`\n")),
    }
    text
}

/// Who tells all this, and how old what it was told is at most.
fn manager(manager: Option<ManagerView>) -> String {
    match manager {
        None => "silent: how the OSDs are is not known".to_owned(),
        Some(manager) => {
            let seconds = manager.oldest_report_ms as f64 / 1000.0;
            format!("{}; what it was told is {seconds:.1} s old at most", manager.node)
        }
    }
}

fn of_all(up: usize, total: usize) -> String {
    if up == total { format!("{total}, all up") } else { format!("{up} of {total} up") }
}

fn space(capacity: &Capacity) -> String {
    let (Some(used), Some(usable)) = (capacity.used_bytes, capacity.usable_bytes) else {
        return format!("unavailable ({} of drives)", ByteSize(capacity.bytes));
    };
    let percent = if usable == 0 { 0.0 } else { used as f64 * 100.0 / usable as f64 };
    let missing = match capacity.osds_unreported {
        0 => String::new(),
        1 => ", 1 OSD not counted".to_owned(),
        count => format!(", {count} OSDs not counted"),
    };
    format!("{} of {} used ({percent:.1} %), every copy counted{missing}", ByteSize(used), ByteSize(usable))
}

/// The pools as a table, or a line that says there are none.
pub fn pool_table(pools: &[PoolView]) -> String {
    if pools.is_empty() {
        return "no pools; make one with `millpond pool create NAME`\n".to_owned();
    }
    let row = |pool: &PoolView| {
        let rule = PlacementRule { failure_domain: pool.failure_domain, device_class: pool.device_class };
        vec![
            pool.name.clone(),
            pool.size.to_string(),
            pool.min_size.to_string(),
            rule.to_string(),
            match pool.split_to {
                Some(split_to) => format!("{} of {split_to}", pool.pg_count),
                None => pool.pg_count.to_string(),
            },
            pool.pgs_active.to_string(),
            pool.volumes.to_string(),
            ByteSize(pool.volume_bytes).to_string(),
        ]
    };
    let headings = ["POOL", ">COPIES", ">MINIMUM", "RULE", ">PGS", ">ACTIVE", ">VOLUMES", ">PROVISIONED"];
    table::render(&headings, pools.iter().map(row))
}

/// The volumes as a table, or a line that says there are none.
pub fn volume_table(volumes: &[VolumeView]) -> String {
    if volumes.is_empty() {
        return "no volumes; make one with `millpond volume create NAME SIZE`\n".to_owned();
    }
    let row = |volume: &VolumeView| {
        vec![
            volume.name.clone(),
            ByteSize(volume.bytes).to_string(),
            volume.pool.clone(),
            volume.namespace.clone(),
            volume.volume.0.to_string(),
            volume.generation.0.to_string(),
        ]
    };
    let headings = ["VOLUME", ">SIZE", "POOL", "NAMESPACE", ">ID", ">GENERATION"];
    with_namespaces(headings, volumes.iter().map(row))
}

/// A table with a column for namespaces, which is left out where there is none but the default ones.
pub fn with_namespaces<const N: usize>(
    headings: [&str; N],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut rows: Vec<Vec<String>> = rows.into_iter().collect();
    let mut headings = headings.to_vec();
    if let Some(column) = headings.iter().position(|heading| *heading == "NAMESPACE")
        && rows.iter().all(|row| row[column].is_empty())
    {
        headings.remove(column);
        rows.iter_mut().for_each(|row| drop(row.remove(column)));
    }
    table::render(&headings, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::OsdId;
    use base::map::{ClusterMap, OsdInfo};
    use health::status::Picture;
    use health::view::Reports;

    #[test]
    fn an_unreported_figure_is_unavailable_and_not_zero() {
        let mut map = ClusterMap::default();
        let info = OsdInfo { bytes: 1 << 30, ..OsdInfo::default() };
        map.osds.insert(OsdId(0), info);
        let reports = Reports { silence: Some("nobody manages the cluster".into()), ..Reports::default() };
        let text = render(&Picture::of(&map, &reports, None, 0).status.overview);
        assert!(text.contains("space    unavailable (1GiB of drives)"), "{text}");
        assert!(text.contains("OSDs     0 of 1 up"), "{text}");
        assert!(text.contains("next: "), "{text}");
        assert!(text.contains("MANAGER_SILENT") && text.contains("manager  silent"), "{text}");
    }
}
