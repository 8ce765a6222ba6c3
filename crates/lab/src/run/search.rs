//! The highest rate at which a figure keeps within a bound: as much as there is first, and then rates between one at which it
//! holds and one at which it does not, until these are close to each other.

use super::Progress;
use super::sample::{self, Asked};
use crate::archive::{Figure, Probe, Sample, figure_named};
use crate::plan::{Objective, Point};
use anyhow::Context;

/// Rates that are as close as this, one by the other, are not told apart.
const CLOSE: f64 = 1.05;
/// Of a rate that was asked for at least so much is to be had.
const HAD_MIN: f64 = 0.99;
/// Where the bound holds at no less than this part of what there is, it is not the load that breaks it.
const SHARES_MAX: f64 = 64.0;
/// More rates are never tried.
const PROBES_MAX: usize = 14;

/// Takes samples of one point until the rate is found: the sample at that rate, or the last one if the bound holds at none.
pub(super) fn take(
    asked: &Asked<'_>,
    objective: &Objective,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Sample> {
    let figure = figure_named(&objective.figure).context("there is no such figure")?;
    let mut search = Search::default();
    let mut probes = Vec::new();
    let mut best = None;
    let mut asked_iops = None;
    loop {
        let sample = sample::take(&at_rate(asked, asked_iops, &mut asked.point.clone()), progress)?;
        let probe = probe_of(&sample, asked_iops, figure, objective);
        probes.push(probe);
        let is_over = sample.stopped_early || !sample.missing.is_empty();
        let next = if is_over { None } else { search.next(&probe).filter(|_| probes.len() < PROBES_MAX) };
        // What was cut short is told, and not what came before.
        if is_over || probe.holds || best.is_none() && next.is_none() {
            best = Some(sample);
        }
        match next.map(|rate| whole_rate(rate, asked.point.clients)) {
            Some(rate) => asked_iops = Some(rate),
            None => break,
        }
    }
    let mut best = best.context("no rate was tried")?;
    best.probes = probes;
    Ok(best)
}

/// The same at a rate of all clients together; as fast as it can without.
fn at_rate<'a>(asked: &Asked<'a>, asked_iops: Option<u32>, point: &'a mut Point) -> Asked<'a> {
    point.job.rate_iops = asked_iops.map(|rate| rate / point.clients);
    Asked { point, ..*asked }
}

/// A rate that so many clients can have a whole part of.
fn whole_rate(rate: f64, clients: u32) -> u32 {
    ((rate / f64::from(clients)).round() as u32).max(1) * clients
}

fn probe_of(sample: &Sample, asked_iops: Option<u32>, figure: &Figure, objective: &Objective) -> Probe {
    let value = (figure.of)(sample);
    let is_had =
        asked_iops.is_none_or(|rate| sample.iops() >= f64::from(rate) * HAD_MIN && sample.overdue == 0);
    let holds = is_had && sample.errors == 0 && value.is_some_and(|value| value <= objective.at_most);
    Probe { asked_iops: asked_iops.map(f64::from), iops: sample.iops(), value, holds }
}

/// Between which rates it lies, as far as is known.
#[derive(Default)]
struct Search {
    /// As much as there is.
    most: f64,
    holds_at: Option<f64>,
    not_at: Option<f64>,
}

impl Search {
    /// Which rate is to be tried after that one, if any.
    fn next(&mut self, probe: &Probe) -> Option<f64> {
        let rate = probe.asked_iops.unwrap_or(probe.iops);
        self.most = self.most.max(rate);
        match (probe.holds, probe.asked_iops) {
            // There is no more.
            (true, None) => return None,
            (true, Some(_)) => self.holds_at = Some(rate),
            (false, _) => self.not_at = Some(rate),
        }
        let not_at = self.not_at?;
        match self.holds_at {
            Some(holds_at) => (not_at / holds_at > CLOSE).then(|| (not_at * holds_at).sqrt()),
            None => Some(not_at / 2.0).filter(|rate| *rate >= 1.0 && *rate >= self.most / SHARES_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates that are tried of something that keeps within the bound up to `limit`, and the highest at which it did.
    fn search(most: f64, limit: f64) -> (Vec<f64>, Option<f64>) {
        let mut search = Search::default();
        let (mut tried, mut highest, mut asked_iops) = (Vec::new(), None, None);
        loop {
            let rate: f64 = asked_iops.unwrap_or(most);
            let probe = Probe { asked_iops, iops: rate, value: None, holds: rate <= limit };
            tried.push(rate);
            if probe.holds {
                highest = Some(highest.map_or(rate, |highest: f64| highest.max(rate)));
            }
            match search.next(&probe) {
                Some(next) => asked_iops = Some(next),
                None => return (tried, highest),
            }
        }
    }

    #[test]
    fn the_highest_rate_is_found_to_five_percent_and_none_where_there_is_none() {
        for limit in [990.0, 700.0, 400.0, 51.0, 17.0] {
            let (tried, highest) = search(1000.0, limit);
            let highest = highest.unwrap();
            assert!(highest <= limit && highest * CLOSE >= limit, "{limit}: {highest} of {tried:?}");
            assert!(tried.len() <= PROBES_MAX, "{tried:?}");
        }
        assert_eq!(search(1000.0, 2000.0), (vec![1000.0], Some(1000.0)), "all that there is");
        assert_eq!(search(1000.0, 15.0).1, None);
        assert_eq!((whole_rate(1000.4, 3), whole_rate(0.2, 2)), (999, 2));
    }
}
