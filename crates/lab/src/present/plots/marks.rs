//! Events on a chart: a vertical line each, and above the area its label, in rows so that labels do not
//! collide.

use super::frame::{Frame, LINE_HEIGHT};
use super::svg::{Anchor, Path, Svg, TEXT_SIZE_MAX, WIDTH, shorten, text_width};

/// An event: a vertical line with its label. Not drawn outside the span of the curves.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// On the horizontal axis.
    pub x: f64,
    /// What happened.
    pub label: String,
}

/// More are not drawn.
pub(super) const MARKS_MAX: usize = 40;
/// A label that finds no row is shown only under the pointer.
const ROWS_MAX: usize = 4;

/// A mark with the place of its label.
pub(super) struct PlacedMark<'a> {
    mark: &'a Mark,
    x: f64,
    /// Counted from the area upwards; None if no row is free.
    pub(super) row: Option<usize>,
    text: String,
    anchor: Anchor,
}

/// Gives each mark's label a row above the area, from the right to the left: a label stands to the right of
/// its mark, and the marks it spans must end below it.
pub(super) fn place_marks<'a>(marks: &'a [Mark], frame: &Frame) -> Vec<PlacedMark<'a>> {
    let covered = marks.iter().filter(|mark| frame.x.covers(mark.x)).take(MARKS_MAX);
    let mut marks: Vec<(f64, &Mark)> =
        covered.filter_map(|mark| frame.across(mark.x).map(|x| (x, mark))).collect();
    marks.sort_by(|left, right| right.0.total_cmp(&left.0));
    let mut placed: Vec<PlacedMark> = Vec::new();
    let mut taken: Vec<(f64, f64, usize)> = Vec::new();
    for (x, mark) in marks {
        let text = shorten(&mark.label, WIDTH * 0.4, TEXT_SIZE_MAX);
        let width = text_width(&text, TEXT_SIZE_MAX) + 6.0;
        let (anchor, left) =
            if x + width <= WIDTH { (Anchor::Start, x) } else { (Anchor::End, (x - width).max(0.0)) };
        let above = |&(other_left, other_right, row): &(f64, f64, usize)| {
            (left < other_right && other_left < left + width).then_some(row + 1)
        };
        let row = taken.iter().filter_map(above).max().unwrap_or(0);
        let row = (row < ROWS_MAX && !text.is_empty()).then_some(row);
        taken.extend(row.map(|row| (left, left + width, row)));
        placed.push(PlacedMark { mark, x, row, text, anchor });
    }
    placed
}

pub(super) fn draw_marks(svg: &mut Svg, frame: &Frame, marks: &[PlacedMark]) {
    for placed in marks {
        let top = frame.top - LINE_HEIGHT * placed.row.map_or(0.0, |row| (row + 1) as f64);
        let mut line = Path::default();
        line.move_to(placed.x, frame.bottom);
        line.line_to(placed.x, top);
        svg.path_with_tip("plot-mark", &line.finish(), &shorten(&placed.mark.label, 1_000.0, 10.0));
    }
    for placed in marks {
        let Some(row) = placed.row else { continue };
        let beside = if matches!(placed.anchor, Anchor::End) { -4.0 } else { 4.0 };
        let place = (placed.x + beside, frame.top - LINE_HEIGHT * row as f64 - 6.0);
        svg.text("plot-note", placed.anchor, place, &placed.text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::{Axis, Fit, Ruler};
    use super::super::ticks::Unit;
    use super::*;

    fn rows(xs: &[f64]) -> Vec<Option<usize>> {
        let ruler = || Ruler::new(&Axis::linear("", Unit::Number), [0.0, 100.0].into_iter(), Fit::Tight, 5);
        let frame = Frame { left: 0.0, right: 500.0, top: 100.0, bottom: 200.0, x: ruler(), y: ruler() };
        let mark = |&x: &f64| Mark { x, label: "an event".to_owned() };
        let marks: Vec<Mark> = xs.iter().map(mark).collect();
        place_marks(&marks, &frame).iter().rev().map(|placed| placed.row).collect()
    }

    #[test]
    fn an_earlier_label_stands_above_those_it_would_cover() {
        assert_eq!(rows(&[10.0, 50.0]), [Some(0), Some(0)]);
        assert_eq!(rows(&[10.0, 11.0, 12.0]), [Some(2), Some(1), Some(0)]);
        assert_eq!(rows(&[99.0]), [Some(0)]);
    }

    #[test]
    fn events_without_a_row_or_outside_cost_no_room() {
        assert_eq!(rows(&[10.0; 6]), [None, None, Some(3), Some(2), Some(1), Some(0)]);
        assert_eq!(rows(&[-1.0, 101.0, f64::NAN]), []);
        assert_eq!(rows(&[10.0; 1_000]).len(), MARKS_MAX);
    }
}
