//! Two outcomes as if they were one.

use super::outcome::{Outcome, PointView, Sample, SubjectView};

/// What two runs have in common, as an outcome of two subjects, which are the runs: each point is one of a subject that both have.
///
/// # Errors
/// They have nothing in common.
pub fn side_by_side(first: &Outcome, other: &Outcome) -> Result<Outcome, String> {
    let (mut points, mut differ) = (Vec::new(), Vec::new());
    let mut samples: Vec<Sample> = Vec::new();
    for (subject, view) in first.subjects.iter().enumerate() {
        let Some(other_subject) = other.subjects.iter().position(|one| one.name == view.name) else {
            continue;
        };
        let other_view = &other.subjects[other_subject];
        let was = |view: &SubjectView| (view.what.clone(), view.bytes, view.is_filled, view.is_cached);
        if was(view) != was(other_view) {
            let told = |view: &SubjectView| match view.bytes {
                Some(bytes) => format!("{} of {bytes} bytes", view.what),
                None => view.what.clone(),
            };
            differ.push(format!("{} was {} and is {}", view.name, told(view), told(other_view)));
        }
        for (point, point_view) in first.points.iter().enumerate() {
            // A job of the same name that does something else is another one.
            // Commands have paths of their run in them.
            let is_same = |one: &PointView| {
                PointView { run: None, ..one.clone() } == PointView { run: None, ..point_view.clone() }
                    && one.run.is_some() == point_view.run.is_some()
            };
            let Some(other_point) = other.points.iter().position(is_same) else { continue };
            let mut found = [
                first.samples_of(point, subject, false).cloned().collect::<Vec<_>>(),
                other.samples_of(other_point, other_subject, false).cloned().collect(),
            ];
            if found.iter().any(Vec::is_empty) {
                continue;
            }
            for (run, found) in found.iter_mut().enumerate() {
                for mut sample in found.drain(..) {
                    (sample.subject, sample.point) = (run, points.len());
                    samples.push(sample);
                }
            }
            let name = format!("{} on {}", point_view.name, view.name);
            points.push(PointView { name, ..point_view.clone() });
        }
    }
    if points.is_empty() {
        return Err(format!(
            "{} and {} have no job on a subject of the same name in common, or their jobs of the same name differ",
            first.name, other.name
        ));
    }
    let run = |outcome: &Outcome, name: &str| SubjectView {
        name: name.to_owned(),
        what: format!("{} of {}", outcome.name, outcome.build.version),
        is_filled: true,
        ..SubjectView::default()
    };
    let mut note = "They were not measured in turns: what differs may be the machine's state.".to_owned();
    if first.machine != other.machine {
        note += &format!(" Nor on the same machine: the other ran on {}.", other.machine);
    }
    for what in differ {
        note += &format!(" {what}.");
    }
    let findings = [(first, "first"), (other, "other")].into_iter().flat_map(|(outcome, name)| {
        outcome.findings.iter().cloned().map(move |mut finding| {
            finding.text = format!("{name}: {}", finding.text);
            finding
        })
    });
    Ok(Outcome {
        title: format!("{} and {}", first.title, other.title),
        note: Some(note),
        rounds: first.rounds.max(other.rounds),
        control: false,
        in_turns: false,
        subjects: vec![run(first, "first"), run(other, "other")],
        points,
        samples,
        findings: findings.collect(),
        disappointments: Vec::new(),
        published: Vec::new(),
        baseline: None,
        ..first.clone()
    })
}
