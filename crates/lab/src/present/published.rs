//! What others have published, and how many times that was measured.

use super::summary::value_of;
use crate::archive::{Outcome, figure_named};
use crate::report::figure;

/// What heads the columns of [`rows`].
pub(super) const HEADINGS: [&str; 7] =
    ["published", "job", "figure", ">theirs", "subject", ">measured", ">times"];

/// Each published figure beside what each subject has in each job that it is of.
pub(super) fn rows(outcome: &Outcome) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for published in &outcome.published {
        let Some(meant) = figure_named(&published.figure) else { continue };
        for (number, point) in outcome.points.iter().enumerate() {
            if published.job.as_ref().is_some_and(|name| *name != point.name && *name != point.job_name) {
                continue;
            }
            for (subject, view) in outcome.subjects.iter().enumerate() {
                if published.subject.as_ref().is_some_and(|name| *name != view.name) {
                    continue;
                }
                let Some(value) = value_of(outcome, number, subject, meant) else { continue };
                rows.push(vec![
                    published.by.clone(),
                    point.name.clone(),
                    meant.heading.to_owned(),
                    figure(Some(published.value)),
                    view.name.clone(),
                    figure(Some(value)),
                    format!("{:.3}", value / published.value),
                ]);
            }
        }
    }
    rows
}
