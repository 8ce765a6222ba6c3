//! Ratios with their intervals (a forest plot): how much faster, on a logarithmic axis, so that twice and
//! half are equally far from 1.
//!
//! A ratio that is not above 0 was not measured: its row says `unavailable`.

use super::axis::{Axis, Fit, Ruler, is_drawable};
use super::frame::{Frame, LINE_HEIGHT};
use super::labels::series_classes;
use super::svg::{Anchor, Path, Svg, TEXT_SIZE_MAX, WIDTH, shorten, text_width, wrap};
use super::ticks::{self, Unit};

/// Ratios by name. `to_svg` draws them.
#[derive(Clone, Debug)]
pub struct Forest {
    /// What is shown, best as a statement.
    pub title: String,
    /// The first 60 are drawn.
    pub rows: Vec<ForestRow>,
    /// The ratio that means no difference: 1.
    pub neutral: f64,
    /// What it means to lie below and above the neutral ratio, such as `slower` and `faster`.
    pub sides: Option<[String; 2]>,
}

/// One ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct ForestRow {
    /// What was compared.
    pub name: String,
    /// The ratio.
    pub estimate: f64,
    /// The ends of its confidence interval. Without one the ratio is drawn as if it could be neutral.
    pub interval: Option<[f64; 2]>,
    /// A remark below the name; may be empty.
    pub note: String,
}

const ROWS_MAX: usize = 60;
/// What a side is called has so much room at least, beside the picture if need be.
const SIDE_WIDTH_MIN: f64 = 60.0;
const ROW_HEIGHT: f64 = 26.0;
/// Between the lines of a name and its note.
const LINE_GAP: f64 = 15.5;
/// Longer names take two lines.
const NAMES_WIDTH_MAX: f64 = WIDTH * 0.32;

fn is_ratio(value: f64) -> bool {
    is_drawable(value) && value > 0.0
}

/// With as many decimals as its neighbours in a column of ratios.
fn ratio(value: f64) -> String {
    if (0.1..10.0).contains(&value) { format!("{value:.2}") } else { ticks::value(value, Unit::Number) }
}

impl ForestRow {
    /// The interval from low to high, if both are ratios.
    fn drawn_interval(&self) -> Option<[f64; 2]> {
        let [one, other] = self.interval?;
        (is_ratio(one) && is_ratio(other)).then(|| [one.min(other), one.max(other)])
    }

    fn text(&self) -> String {
        if !is_ratio(self.estimate) {
            return "unavailable".to_owned();
        }
        let estimate = format!("{}×", ratio(self.estimate));
        match self.drawn_interval() {
            Some([low, high]) => {
                let [low, high] = [low, high].map(ratio);
                format!("{estimate} ({low}–{high})")
            }
            None => estimate,
        }
    }
}

impl Forest {
    /// The ratios as an SVG element for an HTML page with `PLOT_STYLE`.
    pub fn to_svg(&self) -> String {
        let mut svg = Svg::new();
        let top = svg.heading(&self.title) + if self.sides.is_some() { LINE_HEIGHT + 6.0 } else { 4.0 };
        let rows = self.rows.get(..ROWS_MAX).unwrap_or(&self.rows);
        let widest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
        let names = widest(&mut rows.iter().map(|row| text_width(&row.name, TEXT_SIZE_MAX)));
        let names = names.min(NAMES_WIDTH_MAX);
        let figures = widest(&mut rows.iter().map(|row| text_width(&row.text(), TEXT_SIZE_MAX)));
        let height: f64 = rows.iter().map(|row| row.height(names)).sum();
        let left = names + 16.0;
        let axis = Axis::logarithmic("", Unit::Times);
        let intervals = rows.iter().filter_map(ForestRow::drawn_interval).flatten();
        let values = rows.iter().map(|row| row.estimate).chain(intervals).chain([self.neutral]);
        let frame = Frame {
            left,
            right: (WIDTH - figures - 12.0).max(left + 60.0),
            top,
            bottom: top + height.max(ROW_HEIGHT),
            x: Ruler::new(&axis, values.filter(|&value| is_ratio(value)), Fit::Airy, 4),
            y: Ruler::new(&axis, std::iter::empty(), Fit::Airy, 1),
        };
        frame.draw_horizontal_axis(&mut svg);
        self.draw_neutral(&mut svg, &frame);
        let mut row_top = top;
        for row in rows {
            self.draw_row(&mut svg, &frame, row, row_top, names);
            row_top += row.height(names);
        }
        if rows.is_empty() {
            let middle = ((frame.left + frame.right) / 2.0, top + ROW_HEIGHT / 2.0);
            svg.text("plot-label", Anchor::Middle, middle, "nothing was measured");
        }
        let bottom = frame.bottom + 44.0;
        let more = self.rows.len().saturating_sub(ROWS_MAX);
        let more = if more > 0 { format!(" {more} more rows are not drawn.") } else { String::new() };
        let key = format!("Filled: the interval excludes {}.{more}", ticks::value(self.neutral, Unit::Times));
        svg.text("plot-label", Anchor::Start, (2.0, bottom - 4.0), &key);
        svg.finish(bottom + 4.0, &self.title, &self.description(rows))
    }

    fn draw_neutral(&self, svg: &mut Svg, frame: &Frame) {
        let Some(x) = is_ratio(self.neutral).then(|| frame.across(self.neutral)).flatten() else { return };
        svg.line("plot-neutral", (x, frame.top), (x, frame.bottom));
        if let Some([below, above]) = &self.sides {
            let y = frame.top - 8.0;
            let below = format!("← {}", shorten(below, (x - 40.0).max(SIDE_WIDTH_MIN), TEXT_SIZE_MAX));
            let above =
                format!("{} →", shorten(above, (WIDTH - x - 40.0).max(SIDE_WIDTH_MIN), TEXT_SIZE_MAX));
            svg.text("plot-label", Anchor::End, (x - 8.0, y), &below);
            svg.text("plot-label", Anchor::Start, (x + 8.0, y), &above);
        }
    }

    fn draw_row(&self, svg: &mut Svg, frame: &Frame, row: &ForestRow, top: f64, names_width: f64) {
        let middle = top + ROW_HEIGHT / 2.0;
        let lines = row.name_lines(names_width);
        for (index, line) in lines.iter().enumerate() {
            svg.text("plot-name", Anchor::Start, (2.0, middle + 4.0 + LINE_GAP * index as f64), line);
        }
        if !row.note.is_empty() {
            let note = shorten(&row.note, frame.left - 4.0, TEXT_SIZE_MAX * 0.92);
            svg.text(
                "plot-note plot-label",
                Anchor::Start,
                (2.0, middle + 4.0 + LINE_GAP * lines.len() as f64),
                &note,
            );
        }
        svg.text("plot-name", Anchor::End, (WIDTH - 2.0, middle + 4.0), &row.text());
        let Some(x) = is_ratio(row.estimate).then(|| frame.across(row.estimate)).flatten() else { return };
        svg.open_group(&series_classes(0, true));
        let mut excludes_neutral = false;
        if let Some([low, high]) = row.drawn_interval() {
            excludes_neutral = !(low..=high).contains(&self.neutral);
            let ends = [low, high].map(|end| frame.across(end).unwrap_or(x));
            let mut whisker = Path::default();
            whisker.move_to(ends[0], middle - 5.5);
            whisker.line_to(ends[0], middle + 5.5);
            whisker.move_to(ends[0], middle);
            whisker.line_to(ends[1], middle);
            whisker.move_to(ends[1], middle - 5.5);
            whisker.line_to(ends[1], middle + 5.5);
            svg.path("plot-whisker", &whisker.finish());
        }
        let tip = shorten(&format!("{}: {}", row.name, row.text()), 1_000.0, 10.0);
        let class = if excludes_neutral { "plot-marker" } else { "plot-hollow" };
        svg.path_with_tip(class, &Path::marker(1, x, middle, if excludes_neutral { 4.8 } else { 4.2 }), &tip);
        svg.close_group();
    }

    /// The ratios in words, for those who do not see them.
    fn description(&self, rows: &[ForestRow]) -> String {
        let mut words = "Ratios with their intervals.".to_owned();
        for row in rows {
            words += &format!(" {}: {}.", shorten(&row.name, 600.0, 10.0), row.text());
        }
        words
    }
}

impl ForestRow {
    /// At least one line, be it empty.
    fn name_lines(&self, width: f64) -> Vec<String> {
        let lines = wrap(&self.name, width, TEXT_SIZE_MAX, 2);
        if lines.is_empty() { vec![String::new()] } else { lines }
    }

    fn height(&self, names_width: f64) -> f64 {
        let lines = self.name_lines(names_width).len() + usize::from(!self.note.is_empty());
        ROW_HEIGHT + LINE_GAP * (lines - 1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::{HOSTILE, assert_well_formed};
    use super::*;

    fn row(estimate: f64, interval: Option<[f64; 2]>) -> ForestRow {
        ForestRow { name: "random reads".to_owned(), estimate, interval, note: String::new() }
    }

    fn forest(rows: Vec<ForestRow>) -> Forest {
        Forest { title: "Ratios".to_owned(), rows, neutral: 1.0, sides: None }
    }

    #[test]
    fn a_ratio_is_filled_only_if_its_interval_excludes_the_neutral_one() {
        let class = |interval| {
            let svg = forest(vec![row(1.2, interval)]).to_svg();
            assert_well_formed(&svg);
            (svg.contains("plot-marker"), svg.contains("plot-hollow"))
        };
        assert_eq!(class(Some([1.1, 1.3])), (true, false));
        assert_eq!(class(Some([1.3, 1.1])), (true, false), "the ends may come in either order");
        assert_eq!(class(Some([0.9, 1.3])), (false, true));
        assert_eq!(class(None), (false, true));
    }

    #[test]
    fn the_interval_is_written_from_low_to_high() {
        assert_eq!(row(1.2, Some([1.3, 1.1])).text(), "1.20× (1.10–1.30)");
        assert_eq!(row(0.004, Some([0.002, 12.3])).text(), "0.004× (0.002–12.3)");
    }

    #[test]
    fn twice_and_half_are_equally_far_from_one() {
        let axis = Axis::logarithmic("", Unit::Times);
        let ruler = Ruler::new(&axis, [0.5, 2.0].into_iter(), Fit::Airy, 4);
        let [half, one, twice] = [0.5, 1.0, 2.0].map(|ratio| ruler.place(ratio).unwrap());
        assert!((twice - one - (one - half)).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_ratio_is_unavailable() {
        for estimate in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            let svg =
                forest(vec![row(estimate, Some([0.0, f64::NAN])), row(1.5, Some([f64::NAN, 2.0]))]).to_svg();
            assert_well_formed(&svg);
            assert!(svg.contains(">unavailable<") && svg.contains(">1.50×<"), "{svg}");
        }
    }

    #[test]
    fn hostile_names_and_odd_shapes_are_drawn() {
        let mut hostile = forest(Vec::new());
        assert_well_formed(&hostile.to_svg());
        hostile.title = HOSTILE.join(" ");
        hostile.sides = Some([HOSTILE[0].repeat(50), HOSTILE[1].repeat(50)]);
        hostile.rows = (0..100)
            .map(|index| ForestRow {
                name: HOSTILE[index % 6].repeat(index),
                note: HOSTILE[(index + 1) % 6].repeat(index),
                ..row(10f64.powi(index as i32 - 50), None)
            })
            .collect();
        for neutral in [1.0, f64::NAN, 0.0] {
            hostile.neutral = neutral;
            let svg = hostile.to_svg();
            assert_well_formed(&svg);
            assert!(!svg.contains("<script"));
        }
    }
}
