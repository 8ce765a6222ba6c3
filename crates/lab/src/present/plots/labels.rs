//! Names of series, beside their ends or in a legend, and labels that do not lie on top of each other.

use super::frame::LINE_HEIGHT;
use super::svg::{Anchor, COLOUR_COUNT, Path, Svg, TEXT_SIZE_MAX, WIDTH, shorten, text_width};

/// The length of the piece of a line that stands before its name.
pub(super) const SAMPLE_LENGTH: f64 = 24.0;

/// The classes of a series: its colour, and its dashes where it has no markers.
pub(super) fn series_classes(series: usize, markers: bool) -> String {
    let colour = series % COLOUR_COUNT + 1;
    // The second round of colours has other dashes than the first.
    let dashes = (series + series / COLOUR_COUNT) % COLOUR_COUNT + 1;
    if markers { format!("plot-c{colour}") } else { format!("plot-c{colour} plot-d{dashes}") }
}

/// What stands before a name in a legend.
#[derive(Clone, Copy)]
pub(super) enum Sample {
    /// With its dashes.
    Line,
    WholeLine,
    LineWithMarker,
    Box,
}

impl Sample {
    /// How far from its left end the name stands.
    fn width(self) -> f64 {
        if matches!(self, Sample::Box) { 18.0 } else { SAMPLE_LENGTH }
    }

    pub(super) fn draw(self, svg: &mut Svg, series: usize, left: f64, middle: f64) {
        svg.open_group(&series_classes(series, !matches!(self, Sample::Line)));
        match self {
            Sample::Box => svg.path("plot-bar", &Path::rectangle(left, middle - 6.0, 12.0, 12.0)),
            Sample::Line | Sample::WholeLine => {
                svg.line("plot-line", (left, middle), (left + SAMPLE_LENGTH - 4.0, middle))
            }
            Sample::LineWithMarker => {
                svg.line("plot-line", (left, middle), (left + SAMPLE_LENGTH - 4.0, middle));
                let marker = Path::marker(series, left + SAMPLE_LENGTH / 2.0 - 2.0, middle, 3.6);
                svg.path("plot-marker", &marker);
            }
        }
        svg.close_group();
    }
}

/// Names with their samples in as many rows as needed, below `top`. `remark` follows the last name.
/// Gives the height taken.
pub(super) fn draw_legend(svg: &mut Svg, top: f64, names: &[(usize, &str, Sample)], remark: &str) -> f64 {
    let (mut x, mut row) = (2.0, 0);
    let mut place = |width: f64| {
        if x > 2.0 && x + width > WIDTH {
            (x, row) = (2.0, row + 1);
        }
        let left = x;
        x += width + 16.0;
        (left, top + LINE_HEIGHT * (row as f64 + 0.5))
    };
    for &(series, name, sample) in names {
        let name = shorten(name, WIDTH - SAMPLE_LENGTH - 8.0, TEXT_SIZE_MAX);
        let (left, middle) = place(sample.width() + text_width(&name, TEXT_SIZE_MAX));
        sample.draw(svg, series, left, middle);
        svg.text("plot-name", Anchor::Start, (left + sample.width(), middle + 4.0), &name);
    }
    if !remark.is_empty() {
        let (left, middle) = place(text_width(remark, TEXT_SIZE_MAX));
        svg.text("plot-label", Anchor::Start, (left, middle + 4.0), remark);
    }
    LINE_HEIGHT * (row + 1) as f64 + 6.0
}

/// Moves labels apart until they are `gap` from each other, as near to where they belong as that allows,
/// within `[low, high]` if they fit at all. In the order given.
pub(super) fn spread_apart(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&left, &right| wanted[left].total_cmp(&wanted[right]));
    // Labels that touch form a stack around the middle of where they belong; stacks that touch become one.
    let mut stacks: Vec<(f64, usize)> = Vec::new();
    for &index in &order {
        let (mut start, mut count) = (wanted[index], 1);
        while let Some(&(below, members)) =
            stacks.last().filter(|stack| stack.0 + stack.1 as f64 * gap > start)
        {
            stacks.pop();
            let (below_weight, weight) = (members as f64, count as f64);
            start = (below * below_weight + (start - below_weight * gap) * weight) / (below_weight + weight);
            count += members;
        }
        stacks.push((start, count));
    }
    let spread =
        stacks.iter().flat_map(|&(start, count)| (0..count).map(move |place| start + place as f64 * gap));
    let mut places = vec![0.0; wanted.len()];
    order.iter().zip(spread).for_each(|(&index, place)| places[index] = place);
    keep_within(&mut places, &order, gap, low, high);
    places
}

fn keep_within(places: &mut [f64], order: &[usize], gap: f64, low: f64, high: f64) {
    let mut free = low;
    for &index in order {
        places[index] = places[index].max(free);
        free = places[index] + gap;
    }
    let mut free = high;
    for &index in order.iter().rev() {
        places[index] = places[index].min(free);
        free = places[index] - gap;
    }
}

/// Rectangles already taken by text or markers.
#[derive(Default)]
pub(super) struct Occupied {
    boxes: Vec<[f64; 4]>,
}

impl Occupied {
    /// Takes a rectangle given by its left, top, right and bottom.
    pub(super) fn take(&mut self, area: [f64; 4]) {
        self.boxes.push(area);
    }

    pub(super) fn is_free(&self, area: [f64; 4]) -> bool {
        self.boxes.iter().all(|other| {
            area[2] <= other[0] || other[2] <= area[0] || area[3] <= other[1] || other[3] <= area[1]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::assert_well_formed;
    use super::*;

    #[test]
    fn labels_that_collide_are_moved_apart_and_stay_within() {
        let table: [(&[f64], &[f64]); 6] = [
            (&[60.0, 20.0, 18.0, 4.0, 58.0], &[64.0, 24.0, 14.0, 4.0, 54.0]),
            (&[10.0, 50.0], &[10.0, 50.0]),
            (&[50.0, 50.0, 50.0], &[40.0, 50.0, 60.0]),
            (&[99.0, 98.0], &[100.0, 90.0]),
            (&[0.0, 0.0], &[0.0, 10.0]),
            (&[], &[]),
        ];
        for (wanted, expected) in table {
            assert_eq!(spread_apart(wanted, 10.0, 0.0, 100.0), expected);
        }
    }

    #[test]
    fn occupied_places_are_not_given_twice() {
        let mut occupied = Occupied::default();
        occupied.take([0.0, 0.0, 10.0, 10.0]);
        assert!(!occupied.is_free([9.0, 9.0, 20.0, 20.0]));
        assert!(occupied.is_free([10.0, 0.0, 20.0, 10.0]) && occupied.is_free([0.0, 10.0, 10.0, 20.0]));
    }

    #[test]
    fn a_legend_breaks_into_rows_and_every_colour_repeats_with_other_dashes() {
        let name = "a name of some length".to_owned();
        let names: Vec<_> = (0..9).map(|series| (series, name.as_str(), Sample::Line)).collect();
        let mut svg = Svg::new();
        assert!(draw_legend(&mut svg, 0.0, &names, "and more") > 4.0 * LINE_HEIGHT);
        assert_well_formed(&svg.finish(100.0, "", ""));
        assert_ne!(series_classes(0, false), series_classes(COLOUR_COUNT, false));
    }
}
