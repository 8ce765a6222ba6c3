//! Jobs as so many times of another one, each subject by itself: what clients have beside something by what they have alone.

use super::summary::{BaselineRow, Summary};
use super::text::told;
use crate::archive::Outcome;

/// What heads the columns of [`rows`].
pub(super) fn headings(outcome: &Outcome) -> Vec<String> {
    let by = outcome.baseline.and_then(|point| outcome.points.get(point)).map_or("", |point| &point.name);
    let subjects = outcome.subjects.iter().map(|subject| format!(">{}", subject.name));
    [format!("job, by {by}"), "figure".to_owned()].into_iter().chain(subjects).collect()
}

/// Each job but the baseline, by that.
pub(super) fn rows(outcome: &Outcome, summary: &Summary) -> Vec<Vec<String>> {
    let mut last = None;
    let row = |row: &BaselineRow| {
        let is_next = last.replace(row.point) != Some(row.point);
        let name = if is_next { outcome.points[row.point].name.clone() } else { String::new() };
        let cells = [name, row.figure.heading.to_owned()].into_iter();
        cells.chain(row.ratios.iter().map(|ratio| told(ratio.as_ref()))).collect()
    };
    summary.by_baseline.iter().map(row).collect()
}
