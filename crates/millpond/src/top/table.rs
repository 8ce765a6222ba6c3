//! A sample as rows of text, for the live view and for tables.

use super::rates::{OsdRate, Sample, TrafficRate};
use super::{Order, View};
use crate::output;
use base::units::ByteSize;

/// The headings of OSDs; `>` aligns to the right.
const OSD_HEADINGS: [&str; 14] = [
    "OSD", "NODE", ">READ/s", ">WRITE/s", ">REPL/s", ">READ", ">WRITTEN", ">R P50", ">R P99", ">W P50",
    ">W P99", ">CPU", ">CPU/OP", ">ERR/s",
];
/// The headings of whatever else has traffic.
const TRAFFIC_HEADINGS: [&str; 8] =
    ["NAME", ">READ/s", ">WRITE/s", ">READ", ">WRITTEN", ">THROTTLED/s", ">QUEUED/s", "LIMITS"];

/// The headings of a view.
pub fn headings(view: View) -> &'static [&'static str] {
    if view == View::Osd { &OSD_HEADINGS } else { &TRAFFIC_HEADINGS }
}

/// The rows of a view in an order; of OSDs the sum is the last.
pub fn rows(sample: &Sample, view: View, order: Order) -> Vec<Vec<String>> {
    if view == View::Osd {
        let mut osds: Vec<&OsdRate> = sample.osds.iter().collect();
        match order {
            Order::Operations => descending(&mut osds, |osd| osd.operations_per_s() + osd.replicated_per_s),
            Order::Bytes => descending(&mut osds, |osd| osd.read_bytes_per_s + osd.written_bytes_per_s),
            // As they are.
            Order::Name => {}
        }
        return osds.into_iter().chain([&sample.total]).map(osd_row).collect();
    }
    let mut rates: Vec<&TrafficRate> = match view {
        View::Pool => &sample.pools,
        View::Volume => &sample.volumes,
        View::Osd | View::Client => &sample.clients,
    }
    .iter()
    .collect();
    match order {
        Order::Operations => descending(&mut rates, |rate| rate.operations_per_s()),
        Order::Bytes => descending(&mut rates, |rate| rate.read_bytes_per_s + rate.written_bytes_per_s),
        Order::Name => rates.sort_by(|one, other| one.name.cmp(&other.name)),
    }
    rates.into_iter().map(traffic_row).collect()
}

fn descending<T>(rates: &mut [&T], by: impl Fn(&T) -> f64) {
    rates.sort_by(|one, other| by(other).total_cmp(&by(one)));
}

/// What stands above the rows.
pub fn summary(sample: &Sample) -> String {
    let (total, recovery) = (&sample.total, &sample.recovery);
    let mut text = format!(
        "health {}   {} operations/s   read {}/s, written {}/s   in flight {}",
        sample.health.name(),
        rate(total.operations_per_s()),
        bytes(total.read_bytes_per_s),
        bytes(total.written_bytes_per_s),
        total.in_flight,
    );
    if let Some(cpu_us) = total.cpu_us_per_operation {
        text.push_str(&format!("   CPU {cpu_us:.1} us/operation"));
    }
    if recovery.objects_left > 0 || recovery.bytes_per_s > 0.0 {
        text.push_str(&format!(
            "\nrecovery {}/s, {} objects left, {} known to differ",
            bytes(recovery.bytes_per_s),
            recovery.objects_left,
            ByteSize(recovery.bytes_left)
        ));
    }
    for reason in &sample.silent {
        text.push_str(&format!("\nnot counted: {reason}"));
    }
    text
}

/// All views as tables.
pub fn text(sample: &Sample) -> String {
    let mut text = format!("{}\n", summary(sample));
    for view in View::ALL {
        let rows = rows(sample, view, Order::Name);
        if rows.is_empty() {
            continue;
        }
        let table = output::table::render(headings(view), rows);
        text.push_str(&format!("\n{}\n{table}", view.name()));
    }
    text
}

fn osd_row(osd: &OsdRate) -> Vec<String> {
    vec![
        osd.name.clone(),
        osd.node.map(|node| node.to_string()).unwrap_or_default(),
        rate(osd.reads_per_s),
        rate(osd.writes_per_s),
        rate(osd.replicated_per_s),
        bytes(osd.read_bytes_per_s),
        bytes(osd.written_bytes_per_s),
        latency(osd.read_p50_us),
        latency(osd.read_p99_us),
        latency(osd.write_p50_us),
        latency(osd.write_p99_us),
        format!("{:.0}%", osd.cpu_percent),
        latency(osd.cpu_us_per_operation),
        rate(osd.errors_per_s),
    ]
}

fn traffic_row(traffic: &TrafficRate) -> Vec<String> {
    vec![
        traffic.name.clone(),
        rate(traffic.reads_per_s),
        rate(traffic.writes_per_s),
        bytes(traffic.read_bytes_per_s),
        bytes(traffic.written_bytes_per_s),
        rate(traffic.throttled_per_s),
        rate(traffic.queued_per_s),
        traffic.limits.clone(),
    ]
}

fn rate(rate: f64) -> String {
    match rate {
        ..0.05 => "0".to_owned(),
        ..10.0 => format!("{rate:.1}"),
        _ => format!("{rate:.0}"),
    }
}

fn bytes(rate: f64) -> String {
    ByteSize(rate as u64).to_string()
}

/// Microseconds in a unit that suits them.
fn latency(us: Option<f64>) -> String {
    match us {
        None => "-".to_owned(),
        Some(us) if us < 1e3 => format!("{us:.0}us"),
        Some(us) if us < 1e6 => format!("{:.1}ms", us / 1e3),
        Some(us) => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_size() {
        assert_eq!([0.0, 0.25, 9.94, 1234.5].map(rate), ["0", "0.2", "9.9", "1234"]);
        let shown = [None, Some(85.2), Some(1500.0), Some(2.5e6)].map(latency);
        assert_eq!(shown, ["-", "85us", "1.5ms", "2.5s"]);
    }
}
