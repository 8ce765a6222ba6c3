//! Curves over two axes: latency percentiles by subject, IOPS over time with events, latency against
//! throughput.
//!
//! What cannot be drawn (not a number, infinite, beyond 1e30) is a gap in its curve. A chart without data
//! shows its axes and says so. Nothing here panics on any data.

use super::axis::{Axis, Fit, Ruler, Scale, is_drawable};
use super::frame::{BELOW, Frame, LINE_HEIGHT, room_left};
use super::labels::{Occupied, SAMPLE_LENGTH, Sample, draw_legend, series_classes, spread_apart};
pub use super::marks::Mark;
use super::marks::{MARKS_MAX, draw_marks, place_marks};
use super::svg::{Anchor, COLOUR_COUNT, Path, Svg, TEXT_SIZE_MAX, WIDTH, shorten, text_width};
use super::thin::{Kept, POINTS_MAX, thin};

/// Curves over two axes. `to_svg` draws them.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is shown, best as a statement.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves. The first 14 are drawn: more cannot be told apart.
    pub lines: Vec<Line>,
    /// Events. The first 40 are drawn.
    pub marks: Vec<Mark>,
}

/// One curve.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Named beside the curve's end, or in a legend; where all names are empty, there is none.
    pub name: String,
    /// In the order in which they are connected.
    pub points: Vec<(f64, f64)>,
    /// The uncertainty of the curve as (x, low, high), by rising x; may be empty.
    pub band: Vec<(f64, f64, f64)>,
    /// A label for each point, such as its depth; may be empty or shorter than the points. A label that finds
    /// no free place is shown only under the pointer.
    pub labels: Vec<String>,
    /// Whether each point is marked: for few points that were measured one by one. Such a curve is told apart
    /// by its markers, any other by its dashes. No effect on more than 100 points.
    pub markers: bool,
}

const LINES_MAX: usize = 2 * COLOUR_COUNT;
const MARKERS_MAX: usize = 100;
/// More points than this tell nothing under the pointer, to keep the report small.
const TIPS_MAX: usize = 40;
const AREA_HEIGHT: f64 = 220.0;

/// A curve in units of the picture.
struct Drawn<'a> {
    line: &'a Line,
    series: usize,
    kept: Vec<Kept>,
    markers: bool,
    /// Whether it goes up and down so much that dashes would only be dirt: a thin, whole line is drawn
    /// instead.
    busy: bool,
}

impl Drawn<'_> {
    fn sample(&self) -> Sample {
        match (self.markers, self.busy) {
            (true, _) => Sample::LineWithMarker,
            (false, true) => Sample::WholeLine,
            (false, false) => Sample::Line,
        }
    }
}

impl Chart {
    /// A chart without curves.
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.to_owned(), x, y, lines: Vec::new(), marks: Vec::new() }
    }

    /// The chart as an SVG element for an HTML page with `PLOT_STYLE`.
    pub fn to_svg(&self) -> String {
        let mut svg = Svg::new();
        let mut top = svg.heading(&self.title);
        let lines = self.lines.get(..LINES_MAX).unwrap_or(&self.lines);
        let direct = self.names_fit_beside(lines);
        let mut frame = self.frame(lines, direct);
        let mut drawn: Vec<Drawn> =
            lines.iter().enumerate().map(|(series, line)| line.draw(series, &frame)).collect();
        if !direct && drawn.iter().any(|drawn| !drawn.line.name.is_empty()) {
            top += self.draw_legend(&mut svg, top, &drawn);
        }
        let marks = place_marks(&self.marks, &frame);
        let rows = marks.iter().filter_map(|mark| mark.row).map(|row| row + 1).max().unwrap_or(0);
        svg.text(
            "plot-label",
            Anchor::Start,
            (2.0, top + 11.0),
            &shorten(&self.y.label, WIDTH, TEXT_SIZE_MAX),
        );
        frame.top = top + LINE_HEIGHT + 6.0 + LINE_HEIGHT * rows as f64;
        frame.bottom = frame.top + AREA_HEIGHT;
        drawn.iter_mut().flat_map(|drawn| &mut drawn.kept).for_each(|point| point.y += frame.top);
        frame.draw(&mut svg, &shorten(&self.x.label, WIDTH * 0.8, TEXT_SIZE_MAX));
        draw_marks(&mut svg, &frame, &marks);
        lines.iter().enumerate().for_each(|(series, line)| draw_band(&mut svg, &frame, series, &line.band));
        drawn.iter().for_each(|drawn| self.draw_line(&mut svg, drawn));
        draw_point_labels(&mut svg, &frame, &drawn);
        if direct {
            draw_names_beside(&mut svg, &frame, &drawn);
        }
        if drawn.iter().all(|drawn| drawn.kept.is_empty()) {
            let middle = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
            svg.text("plot-label", Anchor::Middle, middle, "nothing was measured");
        }
        svg.finish(frame.bottom + BELOW, &self.title, &self.description())
    }

    /// Fits the axes to the data; the heights are set once the rows above are known.
    fn frame(&self, lines: &[Line], direct: bool) -> Frame {
        // What is no point must not stretch the axes.
        let is_point = |&&(x, y): &&(f64, f64)| is_drawable(x) && is_drawable(y);
        let of_points = lines.iter().flat_map(|line| &line.points).filter(is_point);
        let of_bands = lines.iter().flat_map(|line| &line.band);
        let xs = of_points.clone().map(|point| point.0).chain(of_bands.clone().map(|band| band.0));
        let ys = of_points.map(|point| point.1).chain(of_bands.flat_map(|band| [band.1, band.2]));
        // Points with markers would be cut in half by the edge.
        let x_fit = match lines.iter().any(|line| line.markers) && self.x.scale != Scale::Percentile {
            true => Fit::Airy,
            false => Fit::Tight,
        };
        let x = Ruler::new(&self.x, xs, x_fit, 5);
        let y = Ruler::new(&self.y, ys, Fit::Airy, 5);
        let names = lines.iter().map(|line| text_width(&line.name, TEXT_SIZE_MAX)).fold(0.0, f64::max);
        let right = if direct { WIDTH - names - SAMPLE_LENGTH - 10.0 } else { WIDTH - 14.0 };
        Frame { left: room_left(&y), right, top: 0.0, bottom: AREA_HEIGHT, x, y }
    }

    /// Whether every curve ends at the right edge, and its name is short enough to stand there.
    fn names_fit_beside(&self, lines: &[Line]) -> bool {
        let short = lines.iter().all(|line| text_width(&line.name, TEXT_SIZE_MAX) <= WIDTH * 0.25);
        let frame = self.frame(lines, false);
        let near_the_edge = frame.right - (frame.right - frame.left) * 0.08;
        let ends_at_the_edge = |line: &Line| {
            let last = line.points.iter().rev().find_map(|&point| frame.at(point));
            last.is_some_and(|(x, _)| x >= near_the_edge)
        };
        self.lines.len() <= 8 && lines.len() > 1 && short && lines.iter().all(ends_at_the_edge)
    }

    fn draw_legend(&self, svg: &mut Svg, top: f64, drawn: &[Drawn]) -> f64 {
        let names: Vec<_> =
            drawn.iter().map(|drawn| (drawn.series, drawn.line.name.as_str(), drawn.sample())).collect();
        let more = self.lines.len().saturating_sub(LINES_MAX);
        let remark = if more > 0 { format!("and {more} more, not drawn") } else { String::new() };
        draw_legend(svg, top, &names, &remark)
    }

    fn draw_line(&self, svg: &mut Svg, drawn: &Drawn) {
        let mut path = Path::default();
        for (index, point) in drawn.kept.iter().enumerate() {
            if point.starts {
                path.move_to(point.x, point.y);
                if drawn.kept.get(index + 1).is_none_or(|next| next.starts) {
                    path.dot();
                }
            } else {
                path.line_to(point.x, point.y);
            }
        }
        svg.open_group(&series_classes(drawn.series, drawn.markers || drawn.busy));
        svg.path(if drawn.busy { "plot-line plot-busy" } else { "plot-line" }, &path.finish());
        if drawn.markers {
            let tips = drawn.kept.len() <= TIPS_MAX;
            for point in &drawn.kept {
                let marker = Path::marker(drawn.series, point.x, point.y, 3.6);
                match tips {
                    true => svg.path_with_tip("plot-marker", &marker, &self.tip(drawn.line, point.index)),
                    false => svg.path("plot-marker", &marker),
                }
            }
        }
        svg.close_group();
    }

    fn tip(&self, line: &Line, index: usize) -> String {
        let (x, y) = line.points[index];
        let label = line.labels.get(index).map(|label| format!(" ({label})")).unwrap_or_default();
        let tip = format!("{}{label}: {} at {}", line.name, self.y.value(y), self.x.value(x));
        shorten(&tip, 1_000.0, 10.0)
    }

    /// The chart in words, for those who do not see it.
    fn description(&self) -> String {
        let mut words = format!("{} by {}.", self.y.label, self.x.label);
        for line in self.lines.iter().take(LINES_MAX) {
            let name = shorten(&line.name, 600.0, 10.0);
            let present = line.points.iter().filter(|point| is_drawable(point.0) && is_drawable(point.1));
            let lowest = present.clone().min_by(|left, right| left.1.total_cmp(&right.1));
            let highest = present.clone().max_by(|left, right| left.1.total_cmp(&right.1));
            let tell = |point: &(f64, f64)| format!("{} at {}", self.y.value(point.1), self.x.value(point.0));
            words += &match (lowest, highest) {
                (Some(lowest), Some(highest)) => {
                    let count = super::ticks::value(present.count() as f64, super::ticks::Unit::Number);
                    format!(" {name}: {count} points, from {} to {}.", tell(lowest), tell(highest))
                }
                _ => format!(" {name}: nothing was measured."),
            };
        }
        for mark in self.marks.iter().take(MARKS_MAX) {
            words += &format!(" At {}: {}.", self.x.value(mark.x), shorten(&mark.label, 600.0, 10.0));
        }
        words
    }
}

impl Line {
    /// A curve without markers, labels or a band.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points, ..Self::default() }
    }

    fn has_markers(&self) -> bool {
        self.markers && self.points.len() <= MARKERS_MAX
    }

    fn draw(&self, series: usize, frame: &Frame) -> Drawn<'_> {
        let places: Vec<Option<(f64, f64)>> = self.points.iter().map(|&point| frame.at(point)).collect();
        let kept = thin(&places);
        let climb: f64 = kept.windows(2).map(|pair| (pair[1].y - pair[0].y).abs()).sum();
        let busy = climb > 3.0 * AREA_HEIGHT;
        Drawn { line: self, series, kept, markers: self.has_markers(), busy }
    }
}

/// A band as one area. Of the entries that share a column of pixels, the lowest and the highest count.
fn draw_band(svg: &mut Svg, frame: &Frame, series: usize, band: &[(f64, f64, f64)]) {
    let placed: Vec<(f64, f64, f64)> = band
        .iter()
        .filter_map(|&(x, low, high)| {
            let ((x, low), (_, high)) = (frame.at((x, low))?, frame.at((x, high))?);
            Some((x, low, high))
        })
        .collect();
    let joined: Vec<(f64, f64, f64)> = placed
        .chunks(placed.len().div_ceil(POINTS_MAX / 2).max(1))
        .map(|chunk| {
            let low = chunk.iter().map(|entry| entry.1).fold(f64::NEG_INFINITY, f64::max);
            let high = chunk.iter().map(|entry| entry.2).fold(f64::INFINITY, f64::min);
            (chunk[0].0, low, high)
        })
        // The last chunk may end far from where it begins.
        .chain(placed.last().copied())
        .collect();
    let Some(&(x, _, high)) = joined.first() else { return };
    let mut path = Path::default();
    path.move_to(x, high);
    joined.iter().for_each(|&(x, _, high)| path.line_to(x, high));
    joined.iter().rev().for_each(|&(x, low, _)| path.line_to(x, low));
    path.close();
    svg.open_group(&series_classes(series, true));
    svg.path("plot-band", &path);
    svg.close_group();
}

/// Labels of points, each at the first of four places that is free.
fn draw_point_labels(svg: &mut Svg, frame: &Frame, drawn: &[Drawn]) {
    let labelled = || drawn.iter().filter(|drawn| drawn.markers);
    let mut occupied = Occupied::default();
    for point in labelled().flat_map(|drawn| &drawn.kept) {
        occupied.take([point.x - 4.0, point.y - 4.0, point.x + 4.0, point.y + 4.0]);
    }
    for drawn in labelled() {
        for point in &drawn.kept {
            let Some(label) = drawn.line.labels.get(point.index).filter(|label| !label.is_empty()) else {
                continue;
            };
            let text = shorten(label, WIDTH * 0.25, TEXT_SIZE_MAX);
            let width = text_width(&text, TEXT_SIZE_MAX);
            let half = width / 2.0;
            let places = [
                (Anchor::Middle, point.x, point.y - 8.0, point.x - half),
                (Anchor::Middle, point.x, point.y + 17.0, point.x - half),
                (Anchor::Start, point.x + 8.0, point.y + 4.0, point.x + 8.0),
                (Anchor::End, point.x - 8.0, point.y + 4.0, point.x - 8.0 - width),
            ];
            let free = places.into_iter().find_map(|(anchor, x, y, left)| {
                let area = [left, y - 11.0, left + width, y + 2.0];
                let within =
                    area[0] >= frame.left && area[2] <= WIDTH && area[1] >= 0.0 && area[3] <= frame.bottom;
                (within && occupied.is_free(area)).then_some((anchor, (x, y), area))
            });
            if let Some((anchor, place, area)) = free {
                occupied.take(area);
                svg.text("plot-note", anchor, place, &text);
            }
        }
    }
}

/// Each curve's name beside its end, after a piece of the curve.
fn draw_names_beside(svg: &mut Svg, frame: &Frame, drawn: &[Drawn]) {
    let ends: Vec<f64> = drawn.iter().filter_map(|drawn| drawn.kept.last()).map(|point| point.y).collect();
    let places = spread_apart(&ends, LINE_HEIGHT, frame.top, frame.bottom);
    for (drawn, middle) in drawn.iter().zip(places) {
        drawn.sample().draw(svg, drawn.series, frame.right + 8.0, middle);
        let place = (frame.right + 8.0 + SAMPLE_LENGTH, middle + 4.0);
        svg.text("plot-name", Anchor::Start, place, &drawn.line.name);
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::{HOSTILE, assert_well_formed};
    use super::super::ticks::Unit;
    use super::*;

    fn chart(lines: Vec<Line>) -> Chart {
        let (x, y) = (Axis::linear("Time", Unit::Seconds), Axis::from_zero("IOPS", Unit::Number));
        Chart { lines, ..Chart::new("IOPS over time", x, y) }
    }

    /// Repeatable noise in [0, 1).
    fn noise(state: &mut u64) -> f64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    fn noisy(name: &str, count: usize) -> Line {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        Line::new(name, (0..count).map(|index| (index as f64, 1_000.0 * noise(&mut state))).collect())
    }

    /// The subpaths of the first curve as written, in units of the picture.
    fn curves(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let paths = svg.split("<path class=\"plot-line").skip(1);
        let mut paths = paths.map(|path| path.split(" d=\"").nth(1).unwrap().split('"').next().unwrap());
        // Only the samples in the legend have absolute steps.
        let path = paths.find(|path| !path.contains('L')).unwrap();
        let mut curves: Vec<Vec<(f64, f64)>> = Vec::new();
        let (mut pen, mut rest) = ((0.0, 0.0), path);
        while let Some(command) = rest.chars().next() {
            let end =
                rest[1..].find(|character: char| character.is_alphabetic()).map_or(rest.len(), |end| end + 1);
            let numbers = rest[1..end].replace('-', " -");
            let numbers: Vec<f64> =
                numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
            pen = match command {
                'M' => (numbers[0], numbers[1]),
                'm' | 'l' => (pen.0 + numbers[0], pen.1 + numbers[1]),
                'h' => (pen.0 + numbers[0], pen.1),
                'v' => (pen.0, pen.1 + numbers[0]),
                _ => panic!("{command} in {path}"),
            };
            if command.eq_ignore_ascii_case(&'m') {
                curves.push(Vec::new());
            }
            curves.last_mut().unwrap().push(pen);
            rest = &rest[end..];
        }
        curves
    }

    #[test]
    fn five_curves_of_ten_thousand_points_are_small() {
        let lines = (0..5).map(|number| noisy(&format!("subject {number}"), 10_000)).collect();
        let svg = chart(lines).to_svg();
        assert_well_formed(&svg);
        assert!(svg.len() <= 30_000, "{} bytes", svg.len());
        assert!(svg.contains("10,000 points"));
    }

    #[test]
    fn a_single_peak_and_a_single_pause_are_still_drawn() {
        let mut line = noisy("spiky", 10_000);
        line.points[3_333].1 = 50_000.0;
        line.points[6_666].1 = -20_000.0;
        let svg = chart(vec![line]).to_svg();
        let points = curves(&svg).concat();
        let heights = || points.iter().map(|point| point.1);
        let (top, bottom) = (heights().fold(f64::INFINITY, f64::min), heights().fold(0.0, f64::max));
        // Both ends have a twentieth of air each.
        assert!((bottom - top - AREA_HEIGHT / 1.1).abs() < 0.2, "{top} to {bottom}");
    }

    #[test]
    fn what_was_not_measured_is_a_gap_and_a_lonely_point_a_dot() {
        let broken = [f64::NAN, f64::INFINITY, 1e300];
        for broken in broken {
            let heights = [1.0, 2.0, broken, 2.0, broken, 3.0, 1.0];
            let points = heights.iter().enumerate().map(|(index, height)| (index as f64, *height)).collect();
            let svg = chart(vec![Line::new("broken", points)]).to_svg();
            assert_well_formed(&svg);
            assert_eq!(curves(&svg).iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2]);
            assert!(svg.contains("h0"));
        }
    }

    #[test]
    fn hostile_names_are_text_wherever_they_stand() {
        for name in HOSTILE {
            for name in [name.to_owned(), name.repeat(10_000)] {
                let axis = |unit| Axis::linear(&name, unit);
                let mut chart = Chart::new(&name, axis(Unit::Number), axis(Unit::Bytes));
                chart.lines = vec![
                    Line { labels: vec![name.clone(); 3], markers: true, ..noisy(&name, 3) },
                    Line { band: vec![(0.0, 1.0, 2.0), (1.0, 1.0, 2.0)], ..noisy(&name, 3) },
                ];
                chart.marks = vec![Mark { x: 1.0, label: name.clone() }];
                let svg = chart.to_svg();
                assert_well_formed(&svg);
                assert!(!svg.contains("<script") && svg.len() < 30_000, "{} bytes", svg.len());
            }
        }
    }

    #[test]
    fn any_data_on_any_axes_is_drawn() {
        let specials = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            1e-300,
            1e300,
            1e29,
            -1e29,
        ];
        let scales = [Scale::Linear, Scale::Log, Scale::Percentile];
        let mut state = 88_172_645_463_325_252;
        for round in 0..1_000 {
            let mut value = || match noise(&mut state) {
                share if share < 0.3 => specials[(share * 40.0) as usize],
                share => (share - 0.5) * 10f64.powi((round % 13) - 6),
            };
            let count = [0, 1, 2, 7, 150, 450][round as usize % 6];
            let line = Line {
                name: "any".to_owned(),
                points: (0..count).map(|_| (value(), value())).collect(),
                band: (0..count).map(|_| (value(), value(), value())).collect(),
                labels: vec!["label".to_owned(); count / 2],
                markers: round % 2 == 0,
            };
            let mut chart = chart(vec![line; 1 + round as usize % 3]);
            chart.marks = (0..round % 9).map(|_| Mark { x: value(), label: "event".to_owned() }).collect();
            chart.x.scale = scales[round as usize % 3];
            chart.y.scale = scales[(round / 3) as usize % 3];
            assert_well_formed(&chart.to_svg());
        }
    }

    #[test]
    fn an_empty_chart_says_so() {
        for lines in
            [vec![], vec![Line::new("empty", vec![])], vec![Line::new("broken", vec![(f64::NAN, 1.0)])]]
        {
            let svg = chart(lines).to_svg();
            assert_well_formed(&svg);
            assert!(svg.contains("nothing was measured") && !svg.contains("plot-tick"));
        }
    }

    #[test]
    fn names_stand_beside_curves_that_end_at_the_edge_and_in_a_legend_otherwise() {
        let is_direct =
            |lines: Vec<Line>| chart(lines).names_fit_beside(&chart(vec![]).lines).then_some(()).is_some();
        assert!(!is_direct(vec![]));
        let both = chart(vec![noisy("one", 100), noisy("two", 100)]);
        assert!(both.names_fit_beside(&both.lines));
        let short = chart(vec![noisy("one", 100), noisy("two", 50)]);
        assert!(!short.names_fit_beside(&short.lines));
        let long = chart(vec![noisy(&"long".repeat(20), 100), noisy("two", 100)]);
        assert!(!long.names_fit_beside(&long.lines));
        for chart in [both, short, long] {
            assert_eq!(chart.to_svg().matches(">two<").count(), 1);
        }
    }

    #[test]
    fn every_label_is_shown_or_under_the_pointer_and_none_covers_another() {
        let crowded = Line {
            labels: (0..40).map(|depth| format!("depth {depth}")).collect(),
            markers: true,
            ..Line::new("crowded", (0..40).map(|depth| (1.0, f64::from(depth))).collect())
        };
        let svg = chart(vec![crowded]).to_svg();
        assert_well_formed(&svg);
        for depth in 0..40 {
            assert!(svg.contains(&format!("crowded (depth {depth}): {depth} at ")), "{depth}");
        }
        let shown = svg.matches("plot-note").count();
        assert!((2..35).contains(&shown), "{shown}");
    }

    #[test]
    fn marks_within_the_curves_are_drawn_and_the_others_only_told() {
        let mut chart = chart(vec![noisy("one", 100)]);
        let mark = |x, label: &str| Mark { x, label: label.to_owned() };
        chart.marks =
            vec![mark(50.0, "within"), mark(51.0, "soon after"), mark(500.0, "far"), mark(f64::NAN, "never")];
        let svg = chart.to_svg();
        assert_well_formed(&svg);
        assert_eq!(svg.matches("class=\"plot-mark\"").count(), 2);
        assert!(svg.contains("At 8.33 min: far.") && svg.contains("At unavailable: never."));
        let row = |label: &str| {
            let is_label = |text: &&str| text.split('>').nth(1) == Some(&format!("{label}</text"));
            let text = svg.split("<text").find(is_label).unwrap();
            text.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(row("within") < row("soon after"), "the earlier label stands above, clear of the later line");
    }

    #[test]
    fn many_curves_and_marks_are_limited_and_say_so() {
        let mut chart = chart((0..100).map(|number| noisy(&format!("subject {number}"), 10)).collect());
        chart.marks = (0..1_000)
            .map(|number| Mark { x: f64::from(number) / 120.0, label: "event".to_owned() })
            .collect();
        let svg = chart.to_svg();
        assert_well_formed(&svg);
        assert_eq!(svg.matches("plot-name").count(), LINES_MAX);
        let many_markers = Line { markers: true, ..noisy("markers", MARKERS_MAX + 1) };
        assert!(!Chart { lines: vec![many_markers], ..chart.clone() }.to_svg().contains("plot-marker"));
        assert!(svg.contains("and 86 more, not drawn") && svg.len() < 40_000, "{} bytes", svg.len());
    }

    #[test]
    fn a_band_of_many_entries_keeps_its_widest_places() {
        let mut band: Vec<_> = (0..10_000).map(|index| (f64::from(index), 400.0, 600.0)).collect();
        (band[4_321].1, band[4_321].2) = (0.0, 1_000.0);
        let svg =
            chart(vec![Line { band, ..Line::new("banded", vec![(0.0, 500.0), (9_999.0, 500.0)]) }]).to_svg();
        assert_well_formed(&svg);
        assert!(svg.len() < 8_000, "{} bytes", svg.len());
        // Up from 600 to 1,000 and down from 400 to 0, of 1,050: with a twentieth of air above.
        let step = (AREA_HEIGHT * 400.0 / 1_050.0 * 10.0).round() / 10.0;
        let band = svg.split("plot-band\" d=\"").nth(1).unwrap().split('"').next().unwrap();
        let count = |step: String| band.matches(&step).count();
        assert_eq!((count(format!("-{step}")), count(format!(" {step}"))), (2, 2), "{band}");
    }

    #[test]
    fn the_picture_is_told_in_words() {
        let svg = chart(vec![Line::new("one", vec![(0.0, 1_000.0), (60.0, 3_000.0)])]).to_svg();
        assert!(svg.contains("role=\"img\"") && svg.contains("<title>IOPS over time</title>"));
        assert!(
            svg.contains("<desc>IOPS by Time. one: 2 points, from 1,000 at 0 to 3,000 at 60 s.</desc>"),
            "{svg}"
        );
    }
}
