//! What is to come of a plan.

use crate::archive::{Figure, Outcome, Sample, figure_named};
use crate::plan::{Expectation, Plan};
use crate::statistics::median;
use anyhow::{Context, bail};

/// Whether all that is expected is of figures that there are.
pub(super) fn check(plan: &Plan) -> anyhow::Result<()> {
    for expected in &plan.expectations {
        if figure_named(&expected.figure).is_none() {
            let names: Vec<&str> = crate::archive::FIGURES.iter().map(|figure| figure.name).collect();
            bail!("{:?} is no figure; these are: {}", expected.figure, names.join(", "));
        }
    }
    Ok(())
}

/// What did not come, in words.
pub(super) fn missed(plan: &Plan, outcome: &Outcome) -> Vec<String> {
    let missed = plan.expectations.iter().flat_map(|expected| match missed_of(expected, outcome) {
        Ok(missed) => missed,
        Err(error) => vec![format!("{error:#}")],
    });
    missed.collect()
}

fn missed_of(expected: &Expectation, outcome: &Outcome) -> anyhow::Result<Vec<String>> {
    let number = |name: &str| {
        let found = outcome.subjects.iter().position(|subject| subject.name == name);
        found.with_context(|| format!("there is no subject {name}"))
    };
    let (subject, than) = (number(&expected.subject)?, expected.than.as_deref().map(number).transpose()?);
    let figure = figure_named(&expected.figure).context("there is no such figure")?;
    let mut missed = Vec::new();
    for (point, view) in outcome.points.iter().enumerate() {
        let is_meant = |name: &String| *name == view.name || *name == view.job_name;
        if !expected.job.as_ref().is_none_or(is_meant) {
            continue;
        }
        let of = |subject: usize| median_of(figure, outcome.samples_of(point, subject, false));
        let (found, unit) = match than {
            None => (of(subject), String::new()),
            Some(than) => {
                let quotient = of(subject).zip(of(than)).map(|(one, other)| one / other);
                (quotient, format!(" times that of {}", outcome.subjects[than].name))
            }
        };
        let what = format!("{} of {} in {}", figure.heading, expected.subject, view.name);
        match found {
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

fn median_of<'a>(figure: &Figure, samples: impl Iterator<Item = &'a Sample>) -> Option<f64> {
    median(samples.filter_map(|sample| (figure.of)(sample)).collect())
}
