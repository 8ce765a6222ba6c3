//! Horizontal stacked bars: CPU by role for each operation.
//!
//! A value that is not a number, infinite or negative was not measured: it has no length, and its row's total
//! says `at least`. A row of such values says `unavailable`, never 0.

use super::axis::is_drawable;
use super::frame::LINE_HEIGHT;
use super::labels::{Sample, draw_legend, series_classes};
use super::svg::{Anchor, COLOUR_COUNT, Path, Svg, TEXT_SIZE_MAX, WIDTH, shorten, text_width, wrap};
use super::ticks::{self, Unit};

/// Stacked bars. `to_svg` draws them.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What is shown, best as a statement.
    pub title: String,
    /// What the length of a bar is, without the unit.
    pub label: String,
    /// What the values count.
    pub unit: Unit,
    /// Each row's name and one value for each part; further values are ignored. The first 60 rows are drawn.
    pub rows: Vec<(String, Vec<f64>)>,
    /// The names of the parts. Where there are more than 7, the last ones are drawn as `other`.
    pub parts: Vec<String>,
}

const ROWS_MAX: usize = 60;
const ROW_HEIGHT: f64 = 27.0;
const BAR_HEIGHT: f64 = 19.0;
/// Between two lines of a long name.
const LINE_GAP: f64 = 14.5;

/// One row as drawn.
struct Row {
    /// By part as drawn; 0 where it was not measured.
    values: Vec<f64>,
    total: f64,
    /// The total for people.
    text: String,
}

impl Bars {
    /// The bars as an SVG element for an HTML page with `PLOT_STYLE`.
    pub fn to_svg(&self) -> String {
        let mut svg = Svg::new();
        let mut top = svg.heading(&self.title);
        let parts = self.drawn_parts();
        if parts.len() > 1 {
            let name = |(part, name)| (part, String::as_str(name), Sample::Box);
            let names: Vec<_> = parts.iter().enumerate().map(name).collect();
            top += draw_legend(&mut svg, top, &names, "");
        }
        svg.text("plot-label", Anchor::Start, (2.0, top + 11.0), &shorten(&self.label, WIDTH, TEXT_SIZE_MAX));
        top += LINE_HEIGHT + 2.0;
        let rows: Vec<Row> =
            self.rows.iter().take(ROWS_MAX).map(|row| self.row(&row.1, parts.len())).collect();
        let widest = |texts: &mut dyn Iterator<Item = &str>| {
            texts.map(|text| text_width(text, TEXT_SIZE_MAX)).fold(0.0, f64::max)
        };
        let names_width = widest(&mut self.rows.iter().map(|row| row.0.as_str())).min(WIDTH * 0.34);
        let totals_width = widest(&mut rows.iter().map(|row| row.text.as_str()));
        let left = names_width + 10.0;
        let is_long = |row: &(String, Vec<f64>)| text_width(&row.0, TEXT_SIZE_MAX) > names_width;
        let row_height = if self.rows.iter().any(is_long) { ROW_HEIGHT + 7.0 } else { ROW_HEIGHT };
        let longest = rows.iter().map(|row| row.total).fold(0.0, f64::max);
        // Nothing but zeros: any scale will do.
        let units_per_value = if longest > 0.0 { (WIDTH - left - totals_width - 8.0) / longest } else { 0.0 };
        let first = top;
        for (row, (name, _)) in rows.iter().zip(&self.rows) {
            let middle = top + row_height / 2.0;
            draw_name(&mut svg, name, names_width, (left - 7.0, middle + 4.0));
            draw_row(&mut svg, (left, middle), units_per_value, self, name, row, &parts);
            top += row_height;
        }
        match rows.is_empty() {
            true => {
                svg.text(
                    "plot-label",
                    Anchor::Middle,
                    (WIDTH / 2.0, top + LINE_HEIGHT),
                    "nothing was measured",
                );
                top += 2.0 * LINE_HEIGHT;
            }
            false => svg.line("plot-axis", (left, first), (left, top)),
        }
        if self.rows.len() > ROWS_MAX {
            let more = format!("and {} more, not drawn", self.rows.len() - ROWS_MAX);
            svg.text("plot-label", Anchor::Start, (left, top + 14.0), &more);
            top += LINE_HEIGHT;
        }
        svg.finish(top + 6.0, &self.title, &self.description(&rows, &parts))
    }

    fn drawn_parts(&self) -> Vec<String> {
        if self.parts.len() <= COLOUR_COUNT {
            return self.parts.clone();
        }
        let other = self.parts.len() - (COLOUR_COUNT - 1);
        let first = self.parts.iter().take(COLOUR_COUNT - 1).cloned();
        first.chain(std::iter::once(format!("{other} others"))).collect()
    }

    fn row(&self, values: &[f64], parts: usize) -> Row {
        let values = values.get(..self.parts.len()).unwrap_or(values);
        let is_measured = |value: &f64| is_drawable(*value) && *value >= 0.0;
        let mut drawn = vec![0.0; parts];
        for (part, value) in values.iter().enumerate().filter(|(_, value)| is_measured(value)) {
            drawn[part.min(parts - 1)] += value;
        }
        let measured = values.iter().filter(|value| is_measured(value)).count();
        let total = drawn.iter().sum();
        let text = match measured {
            0 => "unavailable".to_owned(),
            _ if measured < values.len() => format!("at least {}", ticks::value(total, self.unit)),
            _ => ticks::value(total, self.unit),
        };
        Row { values: drawn, total, text }
    }

    /// The bars in words, for those who do not see them.
    fn description(&self, rows: &[Row], parts: &[String]) -> String {
        let mut words = format!("{}.", self.label);
        for ((name, _), row) in self.rows.iter().zip(rows) {
            words += &format!(" {}: {}", shorten(name, 600.0, 10.0), row.text);
            for (part, value) in parts.iter().zip(&row.values).filter(|(_, value)| **value > 0.0) {
                words += &format!(", {} {}", shorten(part, 300.0, 10.0), ticks::value(*value, self.unit));
            }
            words.push('.');
        }
        words
    }
}

fn draw_name(svg: &mut Svg, name: &str, width: f64, place: (f64, f64)) {
    let lines = wrap(name, width, TEXT_SIZE_MAX, 2);
    for (index, line) in lines.iter().enumerate() {
        let lowered = LINE_GAP * (index as f64 - (lines.len() - 1) as f64 / 2.0);
        svg.text("plot-name", Anchor::End, (place.0, place.1 + lowered), line);
    }
}

fn draw_row(
    svg: &mut Svg,
    (left, middle): (f64, f64),
    units_per_value: f64,
    bars: &Bars,
    name: &str,
    row: &Row,
    parts: &[String],
) {
    let mut x = left;
    for (part, &value) in row.values.iter().enumerate() {
        let length = value * units_per_value;
        // Thinner than half a tenth draws nothing.
        if length < 0.05 {
            x += length;
            continue;
        }
        let figure = ticks::value(value, bars.unit);
        let colour = series_classes(part, true);
        let tip = shorten(&format!("{name}, {}: {figure}", parts[part]), 1_000.0, 10.0);
        let area = Path::rectangle(x, middle - BAR_HEIGHT / 2.0, length, BAR_HEIGHT);
        svg.path_with_tip(&format!("plot-bar {colour}"), &area, &tip);
        if parts.len() > 1 && text_width(&figure, TEXT_SIZE_MAX) + 6.0 <= length {
            let class = format!("plot-inside {colour}");
            svg.text(&class, Anchor::Middle, (x + length / 2.0, middle + 4.0), &figure);
        }
        x += length;
    }
    svg.text("plot-name", Anchor::Start, (x + 6.0, middle + 4.0), &row.text);
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::{HOSTILE, assert_well_formed};
    use super::*;

    fn sample() -> Bars {
        Bars {
            title: "CPU for each operation".to_owned(),
            label: "CPU".to_owned(),
            unit: Unit::Microseconds,
            rows: vec![
                ("millpond".to_owned(), vec![4.0, 6.0, 2.0]),
                ("Ceph".to_owned(), vec![40.0, f64::NAN, 20.0]),
                ("lost".to_owned(), vec![f64::NAN, f64::INFINITY, -1.0]),
            ],
            parts: ["client", "network", "drive"].map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn what_was_not_measured_is_never_zero() {
        let svg = sample().to_svg();
        assert_well_formed(&svg);
        for expected in [">12 µs<", ">at least 60 µs<", ">unavailable<", "millpond, network: 6 µs"] {
            assert!(svg.contains(expected), "{expected} in {svg}");
        }
    }

    #[test]
    fn hostile_names_and_odd_shapes_are_drawn() {
        let mut bars = sample();
        bars.title = HOSTILE.join(" ");
        bars.label = HOSTILE.join(" ");
        bars.parts = (0..20).map(|part| HOSTILE[part % 6].repeat(part)).collect();
        bars.rows = (0..100).map(|row| (HOSTILE[row % 6].repeat(row), vec![row as f64; row % 25])).collect();
        let svg = bars.to_svg();
        assert_well_formed(&svg);
        assert!(!svg.contains("<script") && svg.contains("14 others") && svg.contains("and 40 more"));
        let none = Bars { rows: vec![("a".to_owned(), vec![1.0])], parts: Vec::new(), ..sample() };
        assert_well_formed(&none.to_svg());
        assert_well_formed(&Bars { rows: Vec::new(), ..sample() }.to_svg());
        assert_well_formed(&Bars { rows: vec![("zero".to_owned(), vec![0.0; 3])], ..sample() }.to_svg());
    }

    #[test]
    fn many_rows_are_limited() {
        let rows = (0..100).map(|row| (format!("row {row}"), vec![1.0; 3])).collect();
        let svg = Bars { rows, ..sample() }.to_svg();
        assert!(svg.contains(">row 59<") && !svg.contains(">row 60<"));
    }

    #[test]
    fn twelve_rows_of_seven_parts_are_small() {
        let bars = Bars {
            rows: (0..12).map(|row| (format!("subject {row}"), vec![1.5; 7])).collect(),
            parts: (0..7).map(|part| format!("part {part}")).collect(),
            ..sample()
        };
        assert!(bars.to_svg().len() <= 22_000, "{}", bars.to_svg().len());
    }
}
