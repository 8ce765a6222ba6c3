//! The same charts as text, for a terminal: a sparkline of block characters, and curves of Braille dots.
//!
//! Without colours several curves of dots cannot be told apart, so each then has a character of its own. The
//! ASCII fallback serves logs and terminals that know nothing else; every character it gives is ASCII, names
//! included.

use super::axis::{Fit, Ruler};
use super::chart::{Chart, Line};

/// Which characters a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Characters {
    /// Braille dots, blocks and lines.
    Unicode,
    /// Nothing else.
    Ascii,
}

/// What to draw on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    /// The columns of the whole plot, labels included; at least 30 and at most 400 are used.
    pub width: usize,
    /// The rows of the area of curves, without title and labels; at least 4 and at most 100 are used.
    pub height: usize,
    /// What it can show.
    pub characters: Characters,
    /// Whether to write ANSI colours: decide by whether it is a terminal, and by `NO_COLOR`.
    pub colour: bool,
}

const BLOCKS: [&str; 2] = ["▁▂▃▄▅▆▇█", "_.:-=+*#"];
/// Told apart by their shape.
const GLYPHS: [&str; 2] = ["●▲■◆▼+×", "*o+x#@%"];
/// Cyan, yellow, magenta, green, red, blue, white.
const ANSI_COLOURS: [u8; 7] = [36, 33, 35, 32, 31, 34, 37];
const MARKS_MAX: usize = 40;
const NAME_LENGTH_MAX: usize = 60;

/// The values as one line of at most `width` characters; of values that share a character, the one farthest
/// from the median counts, so that both a peak and a pause are seen. From 0, or from the lowest value if that
/// is below. What is not a number is a blank.
pub fn sparkline(values: &[f64], width: usize, characters: Characters) -> String {
    let blocks: Vec<char> = BLOCKS[characters as usize].chars().collect();
    let shared = values.len().div_ceil(width.max(1)).max(1);
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
    let farthest = |chunk: &[f64]| {
        let finite = chunk.iter().copied().filter(|value| value.is_finite());
        finite.max_by(|left, right| (left - median).abs().total_cmp(&(right - median).abs()))
    };
    let joined: Vec<Option<f64>> = values.chunks(shared).map(farthest).collect();
    let low = joined.iter().flatten().copied().fold(0.0, f64::min);
    let high = joined.iter().flatten().copied().fold(0.0, f64::max);
    // Halved, since the difference of two large numbers may be infinite.
    let span = high / 2.0 - low / 2.0;
    let block = |value: f64| {
        let share = if span > 0.0 { (value / 2.0 - low / 2.0) / span } else { 0.0 };
        blocks[((share * blocks.len() as f64) as usize).min(blocks.len() - 1)]
    };
    joined.into_iter().map(|value| value.map_or(' ', block)).collect()
}

/// The chart with its axes, names and marks, each line ended by a newline and free of trailing blanks.
pub fn plot(chart: &Chart, terminal: Terminal) -> String {
    let width = terminal.width.clamp(30, 400);
    let height = terminal.height.clamp(4, 100);
    let lines = chart.lines.get(..ANSI_COLOURS.len()).unwrap_or(&chart.lines);
    let xs = lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    let ys = lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let x = Ruler::new(&chart.x, xs, Fit::Tight, (width / 14).max(2));
    let y = Ruler::new(&chart.y, ys, Fit::Airy, (height / 3).max(2));
    let labels: Vec<(usize, String)> = y
        .ticks
        .iter()
        .filter(|tick| !tick.label.is_empty())
        .filter_map(|tick| Some((row_of(y.place(tick.value)?, height), terminal.clean(&tick.label))))
        .collect();
    let margin = labels.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0).min(width / 3) + 1;
    let mut canvas = Canvas::new(width - margin - 1, height, terminal, lines.len());
    for mark in chart.marks.iter().filter(|mark| x.covers(mark.x)).take(MARKS_MAX) {
        x.place(mark.x).into_iter().for_each(|share| canvas.draw_mark(share));
    }
    lines.iter().enumerate().for_each(|(series, line)| canvas.draw_line(series, line, &x, &y));

    let mut text = Text::default();
    text.push(&terminal.fit(&chart.title, width));
    text.push(&terminal.legend(lines, canvas.dots));
    text.push(&terminal.fit(&chart.y.label, width));
    let [wall, notch, ..] = terminal.rules();
    for row in 0..height {
        let label = labels.iter().find(|(labelled, _)| *labelled == row).map_or("", |(_, label)| label);
        let wall = if label.is_empty() { wall } else { notch };
        text.push(&format!("{:>1$} {wall}{2}", cut(label, margin - 1), margin - 1, canvas.row(row)));
    }
    push_horizontal_axis(&mut text, &x, &chart.x.label, margin, canvas.width, terminal);
    if x.ticks.is_empty() || y.ticks.is_empty() {
        text.push("nothing was measured");
    }
    for mark in chart.marks.iter().take(MARKS_MAX) {
        let when = chart.x.value(mark.x);
        text.push(&terminal.fit(&format!("{} {when}: {}", terminal.mark(), mark.label), width));
    }
    text.0
}

fn push_horizontal_axis(
    text: &mut Text,
    x: &Ruler,
    label: &str,
    margin: usize,
    width: usize,
    terminal: Terminal,
) {
    let [_, _, corner, floor, foot] = terminal.rules();
    let places = x_labels(x, width, terminal);
    let is_foot = |column| places.iter().any(|(foot, ..)| *foot == column);
    let base: String = (0..width).map(|column| if is_foot(column) { foot } else { floor }).collect();
    let mut below = vec![' '; width];
    for (_, start, label) in &places {
        below.splice(start..&(start + label.chars().count()), label.chars());
    }
    text.push(&format!("{corner:>0$}{base}", margin + 1));
    for line in [below.iter().collect::<String>(), terminal.fit(label, width)] {
        text.push(&format!("{:1$}{line}", "", margin + 1));
    }
}

/// Where the tick labels of the horizontal axis go: column of the tick, column where the label starts, label.
fn x_labels(x: &Ruler, width: usize, terminal: Terminal) -> Vec<(usize, usize, String)> {
    let mut places = Vec::new();
    let mut free_until = width;
    for tick in x.ticks.iter().rev().filter(|tick| !tick.label.is_empty()) {
        let Some(share) = x.place(tick.value) else { continue };
        let label = terminal.clean(&tick.label);
        let length = label.chars().count();
        let column = (share * (width - 1) as f64).round() as usize;
        let start = column.saturating_sub(length / 2).min(width.saturating_sub(length));
        if start + length <= free_until {
            free_until = start.saturating_sub(1);
            places.push((column, start, label));
        }
    }
    places
}

fn row_of(share: f64, height: usize) -> usize {
    ((1.0 - share) * (height - 1) as f64).round() as usize
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// Lines without trailing blanks; empty ones are left out.
#[derive(Default)]
struct Text(String);

impl Text {
    fn push(&mut self, line: &str) {
        let line = line.trim_end();
        if !line.is_empty() {
            self.0.push_str(line);
            self.0.push('\n');
        }
    }
}

impl Terminal {
    /// Text that cannot steer the terminal, and in ASCII if it must be.
    fn clean(self, text: &str) -> String {
        let mut clean = String::new();
        for character in text.chars().take(400) {
            match character {
                _ if character.is_control() => clean.push('?'),
                // These reverse the direction of writing.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => clean.push('?'),
                _ if self.characters == Characters::Unicode || character.is_ascii() => clean.push(character),
                'µ' => clean.push('u'),
                '×' => clean.push('x'),
                '−' | '–' => clean.push('-'),
                _ => clean.push('?'),
            }
        }
        clean
    }

    /// Clean text in at most `width` columns; what was cut off is seen to be.
    fn fit(self, text: &str, width: usize) -> String {
        let clean = self.clean(text);
        if clean.chars().count() <= width {
            return clean;
        }
        match self.characters {
            Characters::Unicode => cut(&clean, width - 1) + "…",
            Characters::Ascii => cut(&clean, width - 3) + "...",
        }
    }

    /// The wall, a tick on it, the corner, the floor, and a tick on it.
    fn rules(self) -> [char; 5] {
        match self.characters {
            Characters::Unicode => ['│', '┤', '└', '─', '┬'],
            Characters::Ascii => ['|', '+', '+', '-', '+'],
        }
    }

    fn mark(self) -> char {
        match self.characters {
            Characters::Unicode => '┊',
            Characters::Ascii => ':',
        }
    }

    fn glyph(self, series: usize) -> char {
        GLYPHS[self.characters as usize].chars().nth(series % ANSI_COLOURS.len()).unwrap_or('*')
    }

    fn coloured(self, series: usize, text: &str) -> String {
        match self.colour {
            true => format!("\x1b[{}m{text}\x1b[0m", ANSI_COLOURS[series % ANSI_COLOURS.len()]),
            false => text.to_owned(),
        }
    }

    fn legend(self, lines: &[Line], dots: bool) -> String {
        let names: Vec<String> = lines
            .iter()
            .enumerate()
            .map(|(series, line)| {
                let glyph = if dots { '─' } else { self.glyph(series) };
                self.coloured(series, &format!("{glyph} {}", self.fit(&line.name, NAME_LENGTH_MAX)))
            })
            .collect();
        if names.len() > 1 { names.join("   ") } else { String::new() }
    }
}

/// The cells that curves are drawn on.
struct Canvas {
    terminal: Terminal,
    width: usize,
    height: usize,
    /// Whether a cell holds eight Braille dots rather than one character of its curve.
    dots: bool,
    cells: Vec<Cell>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// The bits of its Braille character.
    bits: u8,
    /// Whose colour or character it has: the last curve drawn there.
    series: Option<usize>,
    mark: bool,
}

/// Braille's order of bits, by row and column.
const BRAILLE_BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

impl Canvas {
    fn new(width: usize, height: usize, terminal: Terminal, lines: usize) -> Self {
        let dots = terminal.characters == Characters::Unicode && (terminal.colour || lines == 1);
        Self { terminal, width, height, dots, cells: vec![Cell::default(); width * height] }
    }

    /// How finely one can draw: dots across and down.
    fn dot_counts(&self) -> (usize, usize) {
        if self.dots { (self.width * 2, self.height * 4) } else { (self.width, self.height) }
    }

    fn draw_mark(&mut self, share: f64) {
        let column = (share * (self.width - 1) as f64).round() as usize;
        (0..self.height).for_each(|row| self.cells[row * self.width + column].mark = true);
    }

    fn draw_line(&mut self, series: usize, line: &Line, x: &Ruler, y: &Ruler) {
        let (across, down) = self.dot_counts();
        let mut before: Option<(i64, i64)> = None;
        for &(point_x, point_y) in &line.points {
            let place = x.place(point_x).zip(y.place(point_y)).map(|(x_share, y_share)| {
                let column = (x_share * (across - 1) as f64).round() as i64;
                (column, row_of(y_share, down) as i64)
            });
            if let Some(place) = place {
                self.draw_segment(series, before.unwrap_or(place), place);
            }
            before = place;
        }
    }

    fn draw_segment(&mut self, series: usize, from: (i64, i64), to: (i64, i64)) {
        let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).max(1);
        for step in 0..=steps {
            let share = step as f64 / steps as f64;
            let between = |from: i64, to: i64| (from as f64 + (to - from) as f64 * share).round() as usize;
            self.set(series, between(from.0, to.0), between(from.1, to.1));
        }
    }

    fn set(&mut self, series: usize, across: usize, down: usize) {
        let (column, row, bit) = match self.dots {
            true => (across / 2, down / 4, BRAILLE_BITS[down % 4][across % 2]),
            false => (across, down, 0),
        };
        let cell = &mut self.cells[row * self.width + column];
        cell.bits |= bit;
        cell.series = Some(series);
    }

    fn row(&self, row: usize) -> String {
        let mut text = String::new();
        let mut colour = None;
        for cell in &self.cells[row * self.width..(row + 1) * self.width] {
            if self.terminal.colour && cell.series != colour {
                text.push_str(&match cell.series {
                    Some(series) => format!("\x1b[{}m", ANSI_COLOURS[series % ANSI_COLOURS.len()]),
                    None => "\x1b[0m".to_owned(),
                });
                colour = cell.series;
            }
            text.push(match cell.series {
                Some(_) if self.dots => char::from_u32(0x2800 + u32::from(cell.bits)).unwrap_or(' '),
                Some(series) => self.terminal.glyph(series),
                None if cell.mark => self.terminal.mark(),
                None => ' ',
            });
        }
        if colour.is_some() {
            text.push_str("\x1b[0m");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::Axis;
    use super::super::chart::Mark;
    use super::super::svg::tests::HOSTILE;
    use super::super::ticks::Unit;
    use super::*;

    fn terminal(characters: Characters, colour: bool) -> Terminal {
        Terminal { width: 60, height: 8, characters, colour }
    }

    fn chart(lines: Vec<Line>) -> Chart {
        let x = Axis::linear("Time", Unit::Seconds);
        let y = Axis::from_zero("IOPS", Unit::Number);
        let marks = vec![Mark { x: 5.0, label: "node 2 killed".to_owned() }];
        Chart { lines, marks, ..Chart::new("IOPS over time", x, y) }
    }

    fn ramp() -> Line {
        Line::new("ramp", (0..=10).map(|second| (f64::from(second), f64::from(second) * 1_000.0)).collect())
    }

    #[test]
    fn a_sparkline_rises_with_its_values_and_keeps_peaks() {
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 80, Characters::Unicode), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[0.0, 3.5, 7.0], 80, Characters::Ascii), "_=#");
        assert_eq!(sparkline(&[1.0, f64::NAN, f64::INFINITY, 1.0], 80, Characters::Unicode), "█  █");
        assert_eq!(sparkline(&[], 80, Characters::Unicode), "");
        assert_eq!(sparkline(&[0.0, 0.0], 80, Characters::Unicode), "▁▁");
        assert_eq!(sparkline(&[-f64::MAX, f64::MAX], 80, Characters::Unicode), "▁█");
        let mut values = vec![1.0; 10_000];
        values[1_234] = 100.0;
        let line = sparkline(&values, 40, Characters::Unicode);
        assert_eq!((line.chars().count(), line.matches('█').count()), (40, 1));
        values[1_234] = 0.0;
        assert_eq!(sparkline(&values, 40, Characters::Unicode).matches('▁').count(), 1, "a pause is seen");
        assert_eq!(sparkline(&[1.0, 2.0, 2.0], 0, Characters::Unicode), "█");
    }

    #[test]
    fn a_rising_curve_is_drawn_from_the_lower_left_to_the_upper_right() {
        let text = plot(&chart(vec![ramp()]), terminal(Characters::Ascii, false));
        let expected = "\
IOPS over time
IOPS
10,000 +                          :                      ***
       |                          :                 *****
       |                          :       **********
       |                          :  *****
 5,000 +                  ***********
       |             *****        :
       |   **********             :
     0 +***                       :
       ++---------+---------+----------+---------+---------+
        0        2 s       4 s        6 s       8 s     10 s
        Time
: 5 s: node 2 killed
";
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let points = vec![(0.0, 5.0), (1.0, 5.0), (2.0, f64::NAN), (9.0, 5.0), (10.0, 5.0)];
        let text = plot(&chart(vec![Line::new("gap", points)]), terminal(Characters::Ascii, false));
        let drawn = text.matches('*').count();
        assert!((8..20).contains(&drawn), "{text}");
    }

    #[test]
    fn labels_below_do_not_touch() {
        let axis = Axis::percentiles("");
        let x = Ruler::new(&axis, [0.999_999_99].into_iter(), Fit::Tight, 5);
        let places = x_labels(&x, 40, terminal(Characters::Unicode, false));
        let apart = |pair: &[(usize, usize, String)]| pair[1].1 + pair[1].2.chars().count() < pair[0].1;
        assert!(places.len() > 2 && places.windows(2).all(apart), "{places:?}");
    }

    #[test]
    fn every_combination_draws_everything_within_its_width() {
        let broken = Line::new("broken", vec![(0.0, f64::NAN), (f64::INFINITY, 1.0), (3.0, 1e300)]);
        let lines = [vec![], vec![ramp()], vec![broken.clone()], vec![ramp(), broken], vec![ramp(); 30]];
        for lines in lines {
            for characters in [Characters::Unicode, Characters::Ascii] {
                for (width, height) in [(0, 0), (30, 4), (80, 20), (100_000, 100_000)] {
                    let text =
                        plot(&chart(lines.clone()), Terminal { width, height, characters, colour: false });
                    let legend = if lines.len() > 1 { 2 } else { usize::MAX };
                    let fits = |(row, line): (usize, &str)| {
                        row + 1 == legend || line.chars().count() <= width.clamp(30, 400)
                    };
                    assert!(text.lines().enumerate().all(fits), "{text}");
                    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
                }
            }
        }
    }

    #[test]
    fn ascii_is_ascii_and_hostile_names_cannot_steer_the_terminal() {
        let mut hostile = chart(HOSTILE.map(|name| Line { name: name.repeat(20), ..ramp() }).to_vec());
        hostile.title = HOSTILE.join("µ×");
        hostile.y.unit = Unit::Microseconds;
        hostile.marks.push(Mark { x: 3.0, label: HOSTILE[3].to_owned() });
        assert!(plot(&hostile, terminal(Characters::Ascii, false)).is_ascii());
        let text = plot(&hostile, terminal(Characters::Unicode, false));
        assert!(!text.chars().any(|character| character.is_control() && character != '\n'));
        assert!(!text.contains('\u{202e}'));
    }

    #[test]
    fn colours_are_always_ended() {
        let text = plot(&chart(vec![ramp(), ramp()]), terminal(Characters::Unicode, true));
        for line in text.lines().filter(|line| line.contains('\x1b')) {
            let last = line.rfind("\x1b[").map(|start| &line[start..]);
            assert!(last.is_some_and(|last| last.starts_with("\x1b[0m")), "{line:?}");
        }
        assert!(!plot(&chart(vec![ramp(), ramp()]), terminal(Characters::Unicode, false)).contains('\x1b'));
    }
}
