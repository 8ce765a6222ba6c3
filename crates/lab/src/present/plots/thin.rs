//! Makes a curve of many points small without changing what is seen.
//!
//! The algorithm is M4 (Jugel et al., "M4: A Visualization-Oriented Time Series Data Aggregation", VLDB 2014,
//! section 4): of the points that share a column of pixels, the first, the lowest, the highest and the last
//! draw the same picture as all of them. Where the curve turns back (latency against throughput), the points
//! are grouped by their order instead, and the leftmost and rightmost of each group are kept too.

/// No thinned curve has more points.
pub(super) const POINTS_MAX: usize = 400;

/// A point that is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kept {
    /// Which of the given points it is.
    pub(super) index: usize,
    pub(super) x: f64,
    pub(super) y: f64,
    /// Whether there is a gap before it: points that could not be drawn.
    pub(super) starts: bool,
}

/// At most `POINTS_MAX` of `points`, in order, with all peaks. None is a gap.
pub(super) fn thin(points: &[Option<(f64, f64)>]) -> Vec<Kept> {
    let mut present: Vec<Kept> = Vec::with_capacity(points.len());
    let mut starts = true;
    for (index, point) in points.iter().enumerate() {
        if let Some((x, y)) = *point {
            present.push(Kept { index, x, y, starts });
        }
        starts = point.is_none();
    }
    if present.len() <= POINTS_MAX {
        return present;
    }
    let span = present[present.len() - 1].x - present[0].x;
    let runs_forward = span > 0.0 && present.is_sorted_by(|left, right| left.x <= right.x);
    let (kept_per_group, group_count) = if runs_forward { (4, POINTS_MAX / 4) } else { (6, POINTS_MAX / 6) };
    let group = |position: usize| {
        let share = match runs_forward {
            true => (present[position].x - present[0].x) / span,
            false => position as f64 / present.len() as f64,
        };
        ((share * group_count as f64) as usize).min(group_count - 1)
    };
    let mut kept: Vec<Kept> = Vec::with_capacity(POINTS_MAX);
    let mut first = 0;
    while first < present.len() {
        let number = group(first);
        let end = (first..present.len()).find(|&position| group(position) != number).unwrap_or(present.len());
        keep_outermost(&present[first..end], kept_per_group == 6, &mut kept);
        first = end;
    }
    assert!(kept.len() <= POINTS_MAX, "{} points kept", kept.len());
    kept
}

fn keep_outermost(group: &[Kept], sideways: bool, kept: &mut Vec<Kept>) {
    let outermost = |key: fn(&Kept) -> f64| {
        let order = move |left: &usize, right: &usize| key(&group[*left]).total_cmp(&key(&group[*right]));
        [(0..group.len()).min_by(order), (0..group.len()).max_by(order)]
    };
    let mut positions = vec![Some(0), group.len().checked_sub(1)];
    positions.extend(outermost(|point| point.y));
    if sideways {
        positions.extend(outermost(|point| point.x));
    }
    let mut positions: Vec<usize> = positions.into_iter().flatten().collect();
    positions.sort_unstable();
    positions.dedup();
    let mut after = 0;
    for position in positions {
        // A gap among the dropped points remains one.
        let starts = group[after..=position].iter().any(|point| point.starts);
        kept.push(Kept { starts, ..group[position] });
        after = position + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: usize) -> Vec<Option<(f64, f64)>> {
        (0..count).map(|index| Some((index as f64 * 0.05, (index as f64 * 0.7).sin()))).collect()
    }

    #[test]
    fn few_points_stay_as_they_are() {
        let kept = thin(&wave(POINTS_MAX));
        assert_eq!(kept.len(), POINTS_MAX);
        assert_eq!(kept.iter().filter(|point| point.starts).count(), 1);
    }

    #[test]
    fn peaks_both_ends_and_the_order_survive() {
        for place in [1, 777, 5_000, 9_998] {
            let mut points = wave(10_000);
            points[place] = Some((place as f64 * 0.05, 1_000.0));
            points[(place + 4_321) % 10_000] = Some((((place + 4_321) % 10_000) as f64 * 0.05, -1_000.0));
            let kept = thin(&points);
            assert!(kept.len() <= POINTS_MAX && kept.len() > POINTS_MAX / 2);
            assert!(kept.iter().any(|point| point.y == 1_000.0 && point.index == place));
            assert!(kept.iter().any(|point| point.y == -1_000.0));
            assert_eq!((kept[0].index, kept[kept.len() - 1].index), (0, 9_999));
            assert!(kept.is_sorted_by(|left, right| left.index < right.index));
        }
    }

    #[test]
    fn a_curve_that_turns_back_keeps_its_outermost_points() {
        let spiral = |index: usize| {
            let turn = index as f64 * 0.01;
            Some((turn * turn.cos(), turn * turn.sin()))
        };
        let mut points: Vec<_> = (0..10_000).map(spiral).collect();
        points[4_444] = Some((-500.0, 0.0));
        let kept = thin(&points);
        assert!(kept.len() <= POINTS_MAX);
        assert!(kept.iter().any(|point| point.x == -500.0));
    }

    #[test]
    fn a_gap_survives_and_does_not_cost_points() {
        let mut points = wave(10_000);
        points[3_000..3_500].fill(None);
        points[7_001] = None;
        let kept = thin(&points);
        assert_eq!(kept.iter().filter(|point| point.starts).count(), 3);
        (0..10_000).step_by(2).for_each(|index| points[index] = None);
        assert!(thin(&points).len() <= POINTS_MAX);
    }

    #[test]
    fn nothing_and_one_place_are_no_trouble() {
        assert!(thin(&[]).is_empty());
        assert!(thin(&[None, None]).is_empty());
        let kept = thin(&vec![Some((1.0, 1.0)); 5_000]);
        assert!(!kept.is_empty() && kept.len() <= POINTS_MAX);
    }
}
