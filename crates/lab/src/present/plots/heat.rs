//! A heat map of latency over time: how many operations took how long, when.
//!
//! The colour follows the logarithm of the count, so that a single slow operation is seen beside a million
//! fast ones. Cells of one colour are one path, and what touches within a column is one stroke: 120 × 44
//! cells are some 20 KB and never more than 80.

use super::axis::{Axis, Fit, Ruler, is_drawable};
use super::frame::{BELOW, Frame, LINE_HEIGHT, room_left};
use super::svg::{Anchor, Path, Svg, TEXT_SIZE_MAX, WIDTH, shorten, text_width};
use super::ticks::{self, Unit};

/// Counts by time and latency. `to_svg` draws them.
#[derive(Clone, Debug)]
pub struct Heat {
    /// What is shown, best as a statement.
    pub title: String,
    /// What the columns are.
    pub x_label: String,
    /// What the rows are: a latency of what.
    pub y_label: String,
    /// Where in time, or of which subject, each column of cells is.
    pub columns: Columns,
    /// The lower bounds of the latency buckets, in microseconds, rising.
    pub rows: Vec<f64>,
    /// Counts by column and then by row; what is missing is 0. Where there are more than 120 columns or 44
    /// rows with counts, neighbours are added up.
    pub cells: Vec<Vec<u64>>,
}

/// What the columns of a heat map stand for.
#[derive(Clone, Debug, PartialEq)]
pub enum Columns {
    /// When each column begins, in seconds, evenly spaced.
    Seconds(Vec<f64>),
    /// A name for each column.
    Names(Vec<String>),
}

const COLUMNS_MAX: usize = 120;
const ROWS_MAX: usize = 44;
const LEVEL_COUNT: usize = 8;
const AREA_HEIGHT: f64 = 220.0;

/// The cells after neighbours were added up and empty rows at both ends were left out.
struct Grid {
    cells: Vec<Vec<u64>>,
    /// The bounds of the rows in microseconds, one more than rows, rising.
    bounds_us: Vec<f64>,
    highest: u64,
}

impl Heat {
    /// The heat map as an SVG element for an HTML page with `PLOT_STYLE`.
    pub fn to_svg(&self) -> String {
        let mut svg = Svg::new();
        let mut top = svg.heading(&self.title);
        let grid = self.grid();
        if grid.highest > 0 {
            top += draw_key(&mut svg, top, &grid);
        }
        svg.text(
            "plot-label",
            Anchor::Start,
            (2.0, top + 11.0),
            &shorten(&self.y_label, WIDTH, TEXT_SIZE_MAX),
        );
        top += LINE_HEIGHT + 6.0;
        let frame = self.frame(&grid, top);
        frame.draw(&mut svg, &shorten(&self.x_label, WIDTH * 0.8, TEXT_SIZE_MAX));
        self.draw_column_names(&mut svg, &frame);
        if grid.highest > 0 {
            draw_cells(&mut svg, &frame, &grid);
        } else {
            let middle = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
            svg.text("plot-label", Anchor::Middle, middle, "nothing was measured");
        }
        svg.finish(frame.bottom + BELOW, &self.title, &self.description(&grid))
    }

    fn grid(&self) -> Grid {
        let bounds_us = self.bounds_us();
        let row_count = bounds_us.len() - 1;
        let count = |column: usize, row: usize| self.cells[column].get(row).copied().unwrap_or(0);
        let is_used = |row: &usize| (0..self.cells.len()).any(|column| count(column, *row) > 0);
        let first = (0..row_count).find(is_used).unwrap_or(0);
        let end = (0..row_count).rev().find(is_used).map_or(row_count, |row| row + 1);
        let columns_joined = self.cells.len().div_ceil(COLUMNS_MAX).max(1);
        let rows_joined = (end - first).div_ceil(ROWS_MAX).max(1);
        let row_starts: Vec<usize> = (first..end).step_by(rows_joined).collect();
        let sum = |columns: std::ops::Range<usize>, row: usize| {
            let rows = row..(row + rows_joined).min(end);
            columns
                .flat_map(|column| rows.clone().map(move |row| (column, row)))
                .fold(0u64, |sum, (column, row)| sum.saturating_add(count(column, row)))
        };
        let cells: Vec<Vec<u64>> = (0..self.cells.len())
            .step_by(columns_joined)
            .map(|column| {
                let columns = column..(column + columns_joined).min(self.cells.len());
                row_starts.iter().map(|&row| sum(columns.clone(), row)).collect()
            })
            .collect();
        let highest = cells.iter().flatten().copied().max().unwrap_or(0);
        let bounds_us = row_starts.iter().chain([&end]).map(|&row| bounds_us[row]).collect();
        Grid { cells, bounds_us, highest }
    }

    /// The lower bounds, and above them the upper bound of the last row: as far away as the one below.
    /// Bounds that do not rise, or that a logarithm cannot show, are mended.
    fn bounds_us(&self) -> Vec<f64> {
        let mut bounds: Vec<f64> = Vec::with_capacity(self.rows.len() + 1);
        let least = self.rows.iter().copied().filter(|&bound| is_drawable(bound) && bound > 0.0);
        let least = least.fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 1.0 };
        for &bound in &self.rows {
            // A first bucket from 0 is drawn from half of the next bound.
            let lowest_allowed = bounds.last().map_or(least / 2.0, |below| below * 1.000_001);
            bounds.push(if is_drawable(bound) { bound.max(lowest_allowed) } else { lowest_allowed });
        }
        let last = bounds.last().copied().unwrap_or(1.0);
        let before = bounds.len().checked_sub(2).map_or(last / 2.0, |position| bounds[position]);
        bounds.push(last * (last / before).min(10.0));
        bounds
    }

    fn frame(&self, grid: &Grid, top: f64) -> Frame {
        let y_axis = Axis::logarithmic("", Unit::Microseconds);
        let bounds = if grid.highest > 0 { grid.bounds_us.as_slice() } else { &[] };
        let y = Ruler::new(&y_axis, bounds.iter().copied(), Fit::Tight, 5);
        let span = match &self.columns {
            Columns::Seconds(starts) => span(starts, self.cells.len()),
            Columns::Names(_) => None,
        };
        let x = Ruler::new(&Axis::linear("", Unit::Seconds), span.into_iter().flatten(), Fit::Tight, 5);
        Frame { left: room_left(&y), right: WIDTH - 14.0, top, bottom: top + AREA_HEIGHT, x, y }
    }

    fn draw_column_names(&self, svg: &mut Svg, frame: &Frame) {
        let Columns::Names(names) = &self.columns else { return };
        let columns = self.cells.len().max(1) as f64;
        let width = (frame.right - frame.left) / columns;
        let widest = names.iter().map(|name| text_width(name, TEXT_SIZE_MAX)).fold(0.0, f64::max).min(90.0);
        let stride = ((widest + 6.0) / width).ceil().max(1.0) as usize;
        for (column, name) in names.iter().enumerate().take(self.cells.len()).step_by(stride) {
            let x = frame.left + width * (column as f64 + 0.5);
            let name = shorten(name, (width * stride as f64).max(40.0), TEXT_SIZE_MAX);
            svg.text("plot-tick", Anchor::Middle, (x, frame.bottom + 19.0), &name);
        }
    }

    /// The map in words, for those who do not see it.
    fn description(&self, grid: &Grid) -> String {
        let total = grid.cells.iter().flatten().fold(0u64, |sum, count| sum.saturating_add(*count));
        if total == 0 {
            return format!("{} by {}. Nothing was measured.", self.y_label, self.x_label);
        }
        let ends = [grid.bounds_us[0], grid.bounds_us[grid.bounds_us.len() - 1]];
        let [low, high] = ends.map(|bound| ticks::value(bound, Unit::Microseconds));
        let [total, highest] = [total, grid.highest].map(|count| ticks::value(count as f64, Unit::Number));
        format!(
            "{} by {}, as a heat map. {total} operations took from {low} to {high}; \
             the fullest cell holds {highest}.",
            self.y_label, self.x_label
        )
    }
}

/// From the first column's start to the last one's end.
fn span(starts: &[f64], columns: usize) -> Option<[f64; 2]> {
    let starts = starts.get(..columns).unwrap_or(starts);
    let (&first, &last) = (starts.first()?, starts.last()?);
    let step = if starts.len() > 1 { (last - first) / (starts.len() - 1) as f64 } else { 1.0 };
    Some([first, last + step])
}

/// From 1 for a single operation to `LEVEL_COUNT` for the highest count; 0 for none.
fn level(count: u64, highest: u64) -> usize {
    match count {
        0 => 0,
        _ if count >= highest => LEVEL_COUNT,
        _ => {
            let share = (count as f64).ln() / (highest as f64).ln();
            1 + ((share * (LEVEL_COUNT - 1) as f64).round() as usize).min(LEVEL_COUNT - 1)
        }
    }
}

fn draw_cells(svg: &mut Svg, frame: &Frame, grid: &Grid) {
    let mut paths: Vec<Path> = (0..LEVEL_COUNT).map(|_| Path::default()).collect();
    let width = (frame.right - frame.left) / grid.cells.len() as f64;
    let height_at = |bound: usize| {
        let share = frame.y.place(grid.bounds_us[bound]).unwrap_or(0.0);
        frame.bottom - (frame.bottom - frame.top) * share
    };
    for (column, counts) in grid.cells.iter().enumerate() {
        let x = frame.left + width * (column as f64 + 0.5);
        let mut row = 0;
        while row < counts.len() {
            let level = level(counts[row], grid.highest);
            let run =
                counts[row..].iter().take_while(|count| self::level(**count, grid.highest) == level).count();
            if level > 0 {
                paths[level - 1].move_to(x, height_at(row));
                paths[level - 1].line_to(x, height_at(row + run));
            }
            row += run;
        }
    }
    // Strokes overlap a little, or the page would show through between them.
    svg.raw(&format!("<g class=\"plot-cells\" stroke-width=\"{}\">", super::svg::number(width + 0.15)));
    for (level, path) in paths.into_iter().enumerate() {
        svg.path(&format!("plot-h{}", level + 1), &path.finish());
    }
    svg.close_group();
}

/// Which colour is how many operations. Gives the height taken.
fn draw_key(svg: &mut Svg, top: f64, grid: &Grid) -> f64 {
    let middle = top + LINE_HEIGHT / 2.0;
    let highest = ticks::value(grid.highest as f64, Unit::Number);
    let mut x = 2.0;
    let ends = if grid.highest > 1 { 1..=LEVEL_COUNT } else { LEVEL_COUNT..=LEVEL_COUNT };
    svg.text("plot-label", Anchor::Start, (x, middle + 4.0), "1");
    x += 14.0;
    for level in ends {
        svg.path(&format!("plot-h{level}"), &Path::rectangle(x, middle - 5.0, 20.0, 10.0));
        x += 20.0;
    }
    let text =
        if grid.highest > 1 { format!("{highest} operations in a cell") } else { "operation".to_owned() };
    svg.text("plot-label", Anchor::Start, (x + 6.0, middle + 4.0), &text);
    LINE_HEIGHT + 6.0
}

#[cfg(test)]
mod tests {
    use super::super::svg::tests::{HOSTILE, assert_well_formed};
    use super::*;

    fn heat(columns: usize, rows: usize, count: impl Fn(usize, usize) -> u64) -> Heat {
        Heat {
            title: "Latency over time".to_owned(),
            x_label: "Time".to_owned(),
            y_label: "Latency of writes".to_owned(),
            columns: Columns::Seconds((0..columns).map(|column| column as f64).collect()),
            rows: (0..rows).map(|row| 50.0 * 1.2f64.powi(row as i32)).collect(),
            cells: (0..columns).map(|column| (0..rows).map(|row| count(column, row)).collect()).collect(),
        }
    }

    #[test]
    fn the_colour_follows_the_logarithm_of_the_count() {
        let levels: Vec<usize> = [0, 1, 10, 100, 1_000, 10_000].map(|count| level(count, 10_000)).to_vec();
        assert_eq!(levels, [0, 1, 3, 5, 6, 8]);
        assert_eq!(level(1, 1), LEVEL_COUNT);
        assert_eq!(level(u64::MAX, u64::MAX), LEVEL_COUNT);
    }

    #[test]
    fn joining_neighbours_loses_no_operation() {
        let heat = heat(1_237, 311, |column, row| (column * 31 + row * 17) as u64 % 7);
        let grid = heat.grid();
        let before: u64 = heat.cells.iter().flatten().sum();
        assert_eq!(grid.cells.iter().flatten().sum::<u64>(), before);
        assert!(grid.cells.len() == 113 && grid.cells[0].len() == 39, "11 columns and 8 rows are one each");
        assert!(grid.bounds_us.len() == grid.cells[0].len() + 1 && grid.bounds_us.is_sorted());
    }

    #[test]
    fn bounds_that_do_not_rise_are_mended_and_full_counts_do_not_overflow() {
        let mut heat = heat(300, 4, |_, _| u64::MAX);
        heat.rows = vec![0.0, 100.0, 50.0, f64::NAN];
        let bounds = heat.bounds_us();
        assert!(bounds[0] == 25.0 && bounds.is_sorted_by(|low, high| low < high), "{bounds:?}");
        assert_well_formed(&heat.to_svg());
    }

    #[test]
    fn a_single_slow_operation_is_drawn() {
        let svg = heat(60, 40, |column, row| {
            u64::from(column == 30 && row == 39) + u64::from(row == 2) * 1_000_000
        });
        let svg = svg.to_svg();
        assert_well_formed(&svg);
        assert!(
            svg.contains("class=\"plot-h1\" d=\"M") && svg.to_string().matches("plot-h8\" d").count() == 2
        );
    }

    #[test]
    fn typical_maps_are_small_and_the_worst_is_bounded() {
        let bell =
            |_, row: usize| 100_000u64.checked_shr((row as i64 - 12).unsigned_abs() as u32 * 2).unwrap_or(0);
        let typical = heat(600, 60, bell).to_svg();
        assert!(typical.len() <= 25_000, "{}", typical.len());
        let noise = |column: usize, row: usize| 1 << ((column * 7_919 + row * 104_729 + column * row) % 20);
        let worst = heat(5_000, 500, noise).to_svg();
        assert_well_formed(&worst);
        assert!(worst.len() <= 80_000, "{}", worst.len());
    }

    #[test]
    fn odd_shapes_and_hostile_names_are_drawn() {
        let mut odd = heat(3, 4, |_, _| 1);
        odd.rows = vec![0.0, f64::NAN, -5.0, 100.0];
        odd.columns = Columns::Names(HOSTILE.map(|name| name.repeat(50)).to_vec());
        odd.title = HOSTILE.join(" ");
        assert_well_formed(&odd.to_svg());
        odd.cells = vec![vec![1; 9], Vec::new(), vec![u64::MAX; 2]];
        assert_well_formed(&odd.to_svg());
        odd.columns = Columns::Seconds(vec![f64::NAN, 1.0]);
        assert_well_formed(&odd.to_svg());
        odd.rows = vec![f64::INFINITY];
        assert_well_formed(&odd.to_svg());
        odd.rows = Vec::new();
        assert_well_formed(&odd.to_svg());
        for (columns, rows) in [(0, 0), (0, 3), (3, 0), (1, 1), (2, 2)] {
            assert_well_formed(&heat(columns, rows, |_, _| 1).to_svg());
            assert!(heat(columns, rows, |_, _| 0).to_svg().contains("nothing was measured"));
        }
    }
}
