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
/// So many operations are to lie beyond a percentile.
const BEYOND_MIN: f64 = 10.0;
/// More rates are never tried.
const PROBES_MAX: usize = 14;

/// Takes samples of one point until the rate is found, and one more at that rate: the one by which it was found is the luckiest of
/// those that were tried. Where the bound does not hold again, a rate a little lower is taken.
pub(super) fn take(
    asked: &Asked<'_>,
    objective: &Objective,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Sample> {
    let figure = figure_named(&objective.figure).context("there is no such figure")?;
    let clients = asked.point.clients;
    let mut probes: Vec<Probe> = Vec::new();
    let mut search = Search::default();
    let (mut asked_iops, mut is_found) = (None, false);
    loop {
        let mut point = asked.point.clone();
        let mut sample = sample::take(&at_rate(asked, asked_iops, probes.len(), &mut point), progress)?;
        let probe = probe_of(&sample, asked_iops, figure, objective);
        probes.push(probe);
        // What was cut short is told, and not what came before.
        let is_over = sample.stopped_early || !sample.missing.is_empty() || probes.len() >= PROBES_MAX;
        let next = if is_over {
            None
        } else if is_found {
            let lower = whole_rate(f64::from(asked_iops.unwrap_or(1)) / CLOSE, clients);
            Some(lower).filter(|rate| !probe.holds && Some(*rate) != asked_iops)
        } else {
            let next = search.next(&probe).map(|rate| whole_rate(rate, clients));
            let was_tried = |rate: u32| probes.iter().any(|probe| probe.asked_iops == Some(f64::from(rate)));
            let next = next.filter(|rate| !was_tried(*rate));
            is_found = next.is_none() && search.holds_at.is_some();
            next.or(search.holds_at.filter(|_| is_found).map(|rate| rate as u32))
        };
        match next {
            Some(rate) => asked_iops = Some(rate),
            None => {
                sample.probes = probes;
                return Ok(sample);
            }
        }
    }
}

/// The same at a rate of all clients together, as fast as it can without; other offsets for each probe.
fn at_rate<'a>(asked: &Asked<'a>, asked_iops: Option<u32>, probe: usize, point: &'a mut Point) -> Asked<'a> {
    point.job.rate_iops = asked_iops.map(|rate| rate / point.clients);
    Asked { point, probe: probe as u32, ..*asked }
}

/// A rate that so many clients can have a whole part of.
fn whole_rate(rate: f64, clients: u32) -> u32 {
    ((rate / f64::from(clients)).round() as u32).max(1) * clients
}

fn probe_of(sample: &Sample, asked_iops: Option<u32>, figure: &Figure, objective: &Objective) -> Probe {
    let value = (figure.of)(sample);
    let is_had =
        asked_iops.is_none_or(|rate| sample.iops() >= f64::from(rate) * HAD_MIN && sample.overdue == 0);
    // Of fewer a percentile is not known.
    let beyond = figure.quantile.map_or(0.0, |quantile| sample.operations() as f64 * (1.0 - quantile));
    let is_known = figure.quantile.is_none() || beyond >= BEYOND_MIN;
    let is_within = is_known && value.is_some_and(|value| value <= objective.at_most);
    let (errors, holds) = (sample.errors, is_had && sample.errors == 0 && is_within);
    Probe { asked_iops: asked_iops.map(f64::from), iops: sample.iops(), value, errors, holds }
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
            let probe = Probe { asked_iops, iops: rate, holds: rate <= limit, ..Probe::default() };
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
