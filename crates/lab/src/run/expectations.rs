//! What is to come of a plan.

use crate::archive::{Outcome, figure_named};
use crate::plan::{Expectation, Plan};
use crate::present::{Summary, value_of};
use anyhow::Context;

/// What did not come, in words: by the figures and ratios that are told.
pub(super) fn missed(plan: &Plan, outcome: &Outcome) -> Vec<String> {
    let summary = Summary::of(outcome);
    let missed = plan.expectations.iter().flat_map(|expected| {
        missed_of(expected, plan, outcome, &summary).unwrap_or_else(|error| vec![format!("{error:#}")])
    });
    missed.collect()
}

fn missed_of(
    expected: &Expectation,
    plan: &Plan,
    outcome: &Outcome,
    summary: &Summary,
) -> anyhow::Result<Vec<String>> {
    let number = |name: &str| {
        let found = outcome.subjects.iter().position(|subject| subject.name == name);
        found.with_context(|| format!("there is no subject {name}"))
    };
    let (subject, than) = (number(&expected.subject)?, expected.than.as_deref().map(number).transpose()?);
    let figure = figure_named(&expected.figure).context("there is no such figure")?;
    let mut missed = Vec::new();
    for (number, point) in plan.points()?.iter().enumerate() {
        let is_meant = |name: &String| *name == point.name || *name == point.job_name;
        let is_for = |subject: usize| point.is_for(&plan.subjects[subject]);
        let is_left_out = |subject: usize| outcome.subjects[subject].left_out.is_some();
        if is_left_out(subject) || than.is_some_and(is_left_out) {
            continue;
        }
        if !expected.job.as_ref().is_none_or(is_meant) || !is_for(subject) || !than.is_none_or(is_for) {
            continue;
        }
        let of = |subject: usize| value_of(outcome, number, subject, figure);
        let (found, unit) = match than {
            None => (of(subject), String::new()),
            Some(than) => {
                let told = summary.of_point(number).find(|row| row.figure.name == figure.name);
                let ratio = told
                    .filter(|_| outcome.base_of(subject) == Some(than))
                    .and_then(|row| row.ratios[subject].as_ref());
                let quotient = || of(subject).zip(of(than)).map(|(one, other)| one / other);
                let found = ratio.map(|ratio| ratio.estimate).or_else(quotient);
                (found, format!(" times that of {}", outcome.subjects[than].name))
            }
        };
        let what = format!("{} of {} in {}", figure.heading, expected.subject, point.name);
        match found.filter(|found| found.is_finite()) {
            None => missed.push(format!("{what} is unavailable")),
            Some(found) => {
                if let Some(least) = expected.at_least.filter(|least| found < *least) {
                    missed.push(format!("{what} is {found:.2}{unit}, and was to be {least} at least"));
                }
                if let Some(most) = expected.at_most.filter(|most| found > *most) {
                    missed.push(format!("{what} is {found:.2}{unit}, and was to be {most} at most"));
                }
            }
        }
    }
    Ok(missed)
}
