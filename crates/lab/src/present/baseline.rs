//! Jobs as so many times of another one, each subject by itself: what clients have beside something by what they have alone.

use super::summary::ratio_by_baseline;
use super::text::told;
use crate::archive::{FIGURES, Outcome};

/// The figures that are told so.
const TOLD: [&str; 4] = ["iops", "mean_us", "p99_us", "machine_us"];

/// What heads the columns of [`rows`].
pub(super) fn headings(outcome: &Outcome) -> Vec<String> {
    let by = outcome.baseline.and_then(|point| outcome.points.get(point)).map_or("", |point| &point.name);
    let subjects = outcome.subjects.iter().map(|subject| format!(">{}", subject.name));
    [format!("job, by {by}"), "figure".to_owned()].into_iter().chain(subjects).collect()
}

/// Each job but the baseline, by that.
pub(super) fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (number, point) in
        outcome.points.iter().enumerate().filter(|(number, _)| Some(*number) != outcome.baseline)
    {
        for (nth, figure) in FIGURES.iter().filter(|figure| TOLD.contains(&figure.name)).enumerate() {
            let ratios = (0..outcome.subjects.len())
                .map(|subject| ratio_by_baseline(outcome, number, subject, figure));
            let ratios: Vec<_> = ratios.collect();
            if ratios.iter().all(Option::is_none) {
                continue;
            }
            let name = if nth == 0 { point.name.clone() } else { String::new() };
            let cells = [name, figure.heading.to_owned()].into_iter();
            rows.push(cells.chain(ratios.iter().map(|ratio| told(ratio.as_ref()))).collect());
        }
    }
    rows
}
