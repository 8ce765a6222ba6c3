//! What the machine did while it was measured, as tables: drives, network, threads.

use crate::archive::{Outcome, Sample};
use crate::monitor::{DriveUse, Found, InterfaceUse, Place, Stack, ThreadUse, most};
use crate::report::figure;
use crate::statistics::median;
use std::collections::BTreeMap;

/// A table with what stands above it.
pub(super) struct Table {
    pub(super) title: String,
    pub(super) headings: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// The most jobs of which it is told: each adds some KB.
const POINTS_TOLD: usize = 8;
/// Threads, places and stacks that are told for each job on each subject.
const THREADS_TOLD: usize = 10;
const PLACES_TOLD: usize = 15;
const STACKS_TOLD: usize = 6;
/// Functions of a stack that are told, those where it waits: the outer ones are how every call begins.
const FUNCTIONS_TOLD: usize = 6;

/// All of them that have rows.
pub(super) fn tables(outcome: &Outcome) -> Vec<Table> {
    let mut tables = vec![drives(outcome), network(outcome), thread_times(outcome)];
    for (name, samples) in cases(outcome) {
        let found: Vec<&Found> = samples.iter().filter_map(|sample| sample.threads.as_ref()).collect();
        tables.push(places(&name, &found));
        tables.push(stacks(&name, &found));
    }
    tables.retain(|table| !table.rows.is_empty());
    tables
}

/// Each job on each subject, and its samples.
fn cases(outcome: &Outcome) -> Vec<(String, Vec<&Sample>)> {
    let points = outcome.points.iter().enumerate().take(POINTS_TOLD);
    let cases = points.flat_map(|(point, point_view)| {
        outcome.subjects.iter().enumerate().map(move |(subject, view)| {
            let name = format!("{} on {}", point_view.name, view.name);
            (name, outcome.samples_of(point, subject, false).collect())
        })
    });
    cases.collect()
}

fn words(headings: &[&str]) -> Vec<String> {
    headings.iter().map(|heading| (*heading).to_owned()).collect()
}

/// A column of a table of medians.
enum Column<T> {
    /// Of what does nothing this is 0.
    Rate(fn(&T, &Sample) -> Option<f64>),
    /// Of what does nothing there is none.
    Each(fn(&T) -> Option<f64>),
}

/// By names that samples have in common, the medians of columns.
fn medians<T>(
    samples: &[&Sample],
    of: fn(&Sample) -> &Vec<T>,
    names: fn(&T) -> Vec<String>,
    columns: &[Column<T>],
) -> Vec<(Vec<String>, Vec<Option<f64>>)> {
    let mut found: BTreeMap<Vec<String>, Vec<Vec<f64>>> = BTreeMap::new();
    for sample in samples {
        for one in of(sample) {
            let values = found.entry(names(one)).or_insert_with(|| vec![Vec::new(); columns.len()]);
            for (values, column) in values.iter_mut().zip(columns) {
                match column {
                    Column::Rate(of) => values.extend(of(one, sample)),
                    Column::Each(of) => values.extend(of(one)),
                }
            }
        }
    }
    // What did nothing in a sample is not in it.
    let told = |(mut values, column): (Vec<f64>, &Column<T>)| {
        if matches!(column, Column::Rate(_)) {
            values.resize(samples.len(), 0.0);
        }
        median(values)
    };
    let medians = |values: Vec<Vec<f64>>| values.into_iter().zip(columns).map(told).collect();
    found.into_iter().map(|(names, values)| (names, medians(values))).collect()
}

fn drives(outcome: &Outcome) -> Table {
    let columns: [Column<DriveUse>; 8] = [
        Column::Rate(|drive, _| Some(drive.read_iops)),
        Column::Each(|drive| drive.read_bytes_each.map(|bytes| bytes / 1024.0)),
        Column::Each(|drive| drive.read_us),
        Column::Rate(|drive, _| Some(drive.write_iops)),
        Column::Each(|drive| drive.write_bytes_each.map(|bytes| bytes / 1024.0)),
        Column::Each(|drive| drive.write_us),
        Column::Rate(|drive, _| Some(drive.in_flight)),
        Column::Rate(|drive, _| Some(drive.busy * 100.0)),
    ];
    let rows = cases(outcome).into_iter().flat_map(|(case, samples)| {
        let drives = medians(&samples, |sample| &sample.drives, |drive| vec![drive.name.clone()], &columns);
        drives.into_iter().map(move |(names, values)| cells(&case, names, &values))
    });
    Table {
        title: "What devices got, as the kernel passed it on".to_owned(),
        headings: words(&[
            "job",
            "device",
            ">reads/s",
            ">KiB each",
            ">µs each",
            ">writes/s",
            ">KiB each",
            ">µs each",
            ">in flight",
            ">busy %",
        ]),
        rows: rows.collect(),
    }
}

fn network(outcome: &Outcome) -> Table {
    let columns: [Column<InterfaceUse>; 6] = [
        Column::Rate(|interface, _| Some(interface.received_mib_per_second)),
        Column::Rate(|interface, _| Some(interface.sent_mib_per_second)),
        Column::Rate(|interface, _| Some(interface.received_packets_per_second)),
        Column::Rate(|interface, _| Some(interface.sent_packets_per_second)),
        Column::Rate(|interface, _| Some(interface.errors as f64)),
        Column::Rate(|interface, _| Some(interface.dropped as f64)),
    ];
    let rows = cases(outcome).into_iter().flat_map(|(case, samples)| {
        let name = |interface: &InterfaceUse| vec![interface.name.clone()];
        let interfaces = medians(&samples, |sample| &sample.network, name, &columns);
        interfaces.into_iter().map(move |(names, values)| cells(&case, names, &values))
    });
    Table {
        title: "What network interfaces moved".to_owned(),
        headings: words(&[
            "job",
            "interface",
            ">MiB/s in",
            ">MiB/s out",
            ">packets/s in",
            ">packets/s out",
            ">errors",
            ">dropped",
        ]),
        rows: rows.collect(),
    }
}

fn thread_times(outcome: &Outcome) -> Table {
    let mut rows = Vec::new();
    for (case, samples) in cases(outcome) {
        let names = |thread: &ThreadUse| vec![thread.process.clone(), thread.thread.clone()];
        let columns: [Column<ThreadUse>; 4] = [
            Column::Each(|thread| Some(thread.threads as f64)),
            Column::Rate(|thread, sample| per_operation(thread.cpu_us, sample)),
            Column::Rate(|thread, sample| per_operation(thread.waited_us, sample)),
            Column::Rate(|thread, sample| per_operation(thread.slices as f64, sample)),
        ];
        let mut threads = medians(&samples, |sample| &sample.thread_times, names, &columns);
        threads.sort_by(|one, other| other.1[1].partial_cmp(&one.1[1]).unwrap_or(std::cmp::Ordering::Equal));
        let told = threads.into_iter().take(THREADS_TOLD);
        rows.extend(told.map(|(names, values)| cells(&case, names, &values)));
    }
    Table {
        title: "CPU time of threads, and how long they waited for a CPU".to_owned(),
        headings: words(&[
            "job",
            "process",
            "thread",
            ">threads",
            ">CPU µs/op",
            ">waited µs/op",
            ">wake-ups/op",
        ]),
        rows,
    }
}

fn per_operation(sum: f64, sample: &Sample) -> Option<f64> {
    (sample.operations() > 0).then(|| sum / sample.operations() as f64)
}

/// Names, and values as they are told.
fn cells(case: &str, names: Vec<String>, values: &[Option<f64>]) -> Vec<String> {
    let values = values.iter().map(|value| figure(*value));
    std::iter::once(case.to_owned()).chain(names).chain(values).collect()
}

/// What it waits in, and how.
fn where_(place: &Place) -> String {
    match place.state {
        Some('D') => format!("{}, not to be interrupted", place.what),
        _ => place.what.clone(),
    }
}

fn places(case: &str, found: &[&Found]) -> Table {
    let (due, taken) = found.iter().fold((0, 0), |sum, one| (sum.0 + one.due, sum.1 + one.taken));
    let places = most(found.iter().flat_map(|one| &one.places).map(|(what, count)| (what, *count)));
    let rows = places.into_iter().take(PLACES_TOLD).map(|(place, count)| {
        let threads = count as f64 / taken.max(1) as f64;
        vec![place.process.clone(), place.thread.clone(), where_(place), format!("{threads:.2}")]
    });
    let cost = found.iter().map(|one| one.cost).fold(0.0, f64::max) * 100.0;
    Table {
        title: format!(
            "Where threads were, {case}: {taken} looks of {due} that were due, at {cost:.1} % of a core"
        ),
        headings: words(&["process", "thread", "where", ">threads"]),
        rows: rows.collect(),
    }
}

fn stacks(case: &str, found: &[&Found]) -> Table {
    let (taken, with_stacks) =
        found.iter().fold((0, 0), |sum, one| (sum.0 + one.taken, sum.1 + one.with_stacks));
    let stacks = most(found.iter().flat_map(|one| &one.stacks).map(|(what, count)| (what, *count)));
    let rows = stacks.into_iter().take(STACKS_TOLD).map(|(stack, count)| {
        let Stack { place, functions } = stack;
        let looks = if place.state == Some('D') { taken } else { with_stacks };
        let inner: Vec<&str> = functions.rsplit(';').take(FUNCTIONS_TOLD).collect();
        vec![
            place.process.clone(),
            place.thread.clone(),
            inner.join(" < "),
            format!("{:.2}", count as f64 / looks.max(1) as f64),
        ]
    });
    Table {
        title: format!("Kernel stacks of threads that waited, {case}"),
        headings: words(&["process", "thread", "where it waits < what called that", ">threads"]),
        rows: rows.collect(),
    }
}
