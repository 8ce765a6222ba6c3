//! Jobs whose points differ in how much is asked at once, and where that does not help any more.

use super::summary::Summary;
use crate::archive::Outcome;
use std::collections::{BTreeMap, BTreeSet};

/// Fewer points make no curve.
const POINTS_MIN: usize = 3;
/// A point is the knee that has this much of the highest rate, of 1, with the least asked at once.
const KNEE_SHARE: f64 = 0.9;

/// The points of a job, from the least asked at once to the most.
pub(super) struct Sweep<'a> {
    pub(super) name: &'a str,
    pub(super) points: Vec<usize>,
}

/// All of an outcome's.
pub(super) fn sweeps(outcome: &Outcome) -> Vec<Sweep<'_>> {
    let mut jobs: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, point) in outcome.points.iter().enumerate() {
        jobs.entry(&point.job_name).or_default().push(number);
    }
    let mut sweeps = Vec::new();
    for (name, mut points) in jobs {
        points.sort_by_key(|point| load(outcome, *point));
        let loads: BTreeSet<_> = points.iter().map(|point| load(outcome, *point)).collect();
        // Points that differ in anything else are no curve.
        if points.len() >= POINTS_MIN && loads.len() == points.len() {
            sweeps.push(Sweep { name, points });
        }
    }
    sweeps
}

/// Operations a second that are asked for, if they are, and operations in flight.
fn load(outcome: &Outcome, point: usize) -> (u64, u64) {
    let view = &outcome.points[point];
    let clients = u64::from(view.clients);
    (view.job.rate_iops.map_or(0, u64::from) * clients, u64::from(view.job.depth) * clients)
}

/// The same for a reader.
pub(super) fn load_words(outcome: &Outcome, point: usize) -> String {
    match load(outcome, point) {
        (0, depth) => depth.to_string(),
        (rate, _) => format!("{rate}/s"),
    }
}

/// Of each sweep on each subject, in words, with how much at once it has nearly all that it has at most.
pub(super) fn knees(outcome: &Outcome, summary: &Summary) -> Vec<String> {
    let mut knees = Vec::new();
    for Sweep { name, points } in sweeps(outcome) {
        for (subject, view) in outcome.subjects.iter().enumerate() {
            let of = |point: usize| {
                Some((
                    point,
                    summary.value(point, subject, "iops")?,
                    summary.value(point, subject, "p99_us")?,
                ))
            };
            let known: Vec<(usize, f64, f64)> = points.iter().filter_map(|point| of(*point)).collect();
            let highest = known.iter().map(|(_, iops, _)| *iops).fold(0.0, f64::max);
            let knee = known.iter().find(|(_, iops, _)| *iops >= KNEE_SHARE * highest);
            let (Some((point, iops, p99_us)), true) = (knee, known.len() >= POINTS_MIN) else { continue };
            knees.push(format!(
                "{name} on {}: {:.0} % of the highest rate are had with {} at once, 99 % of them within {p99_us:.0} µs.",
                view.name,
                iops / highest * 100.0,
                load_words(outcome, *point)
            ));
        }
    }
    knees
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{PointView, Sample, SubjectView};
    use crate::engine::cpu::Machine;
    use crate::engine::histogram::{Buckets, Latency};
    use crate::engine::plan::{Job, Mode, TargetName};
    use crate::present::{markdown, page, terminal};
    use crate::report::side;
    use base::units::ByteSize;

    /// A job at four depths, of which the third has nearly all that the last has.
    fn outcome() -> Outcome {
        let point = |depth: u32| {
            let job = Job { depth, ..Job::new(TargetName::Raw("-".into()), Mode::RandomRead) };
            PointView {
                name: format!("job iodepth={depth}"),
                job_name: "job".to_owned(),
                job,
                clients: 1,
                run: None,
                within: None,
            }
        };
        let sample = |point: usize, iops: u64, latency_us: u64| {
            let mut reads = Latency::default();
            (0..iops).for_each(|_| reads.record(latency_us * 1000));
            Sample {
                point,
                round: 1,
                seconds: 1.0,
                read: side(&reads, 1.0, ByteSize(4096)),
                latencies: vec![(Buckets::from(&reads), Buckets::default())],
                ..Sample::default()
            }
        };
        Outcome {
            title: "<script>alert('&\"')</script>".to_owned(),
            machine: Machine { cpu: None, cpus: None, memory_bytes: None, kernel: None },
            ended_early: None,
            subjects: vec![SubjectView {
                name: "disk".to_owned(),
                what: "raw:/dev/<b>".to_owned(),
                is_filled: true,
                ..SubjectView::default()
            }],
            // Not in the order of their depths.
            points: vec![point(16), point(1), point(64), point(4)],
            samples: vec![sample(0, 950, 100), sample(1, 100, 10), sample(2, 1000, 900), sample(3, 400, 20)],
            ..Outcome::begun("sweep", "test", 1, 0)
        }
    }

    #[test]
    fn the_knee_is_the_least_at_once_that_has_nearly_all() {
        let mut outcome = outcome();
        let found = knees(&outcome, &Summary::of(&outcome));
        assert_eq!(
            found,
            ["job on disk: 95 % of the highest rate are had with 16 at once, 99 % of them within 100 µs."]
        );
        // What differs in something else is no curve.
        outcome.points[3].job.depth = 64;
        assert!(knees(&outcome, &Summary::of(&outcome)).is_empty());
    }

    #[test]
    fn reports_tell_what_there_is_and_nothing_in_a_name_becomes_markup() {
        let outcome = outcome();
        let summary = Summary::of(&outcome);
        let html = page(&outcome, &summary);
        assert!(
            !html.contains("<script") && !html.contains("<b>") && html.contains("&lt;script&gt;"),
            "{html}"
        );
        assert!(html.contains("job on disk: 95 %") && html.contains("Nothing speaks against"), "{html}");
        for text in [terminal(&outcome, &summary), markdown(&outcome, &summary)] {
            assert!(text.contains("950") && text.contains("job on disk: 95 %"), "{text}");
            assert!(
                !text.contains('\x1b')
                    && text.contains("unavailable")
                    && text.contains("1970-01-01 00:00 UTC"),
                "{text}"
            );
        }
    }
}
