//! The area that two axes enclose: its grid, its ticks, and where a pair of values lies in it.

use super::axis::Ruler;
use super::svg::{Anchor, Path, Svg, TEXT_SIZE_MAX, WIDTH, text_width};

/// The height that tick labels and the label of the horizontal axis take below an area.
pub(super) const BELOW: f64 = 44.0;

/// The height of one line of text.
pub(super) const LINE_HEIGHT: f64 = 18.0;

/// The least room between two tick labels.
const LABEL_GAP: f64 = 9.0;

/// An area between two axes, in units of the picture.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) x: Ruler,
    pub(super) y: Ruler,
}

/// The room that the tick labels of the vertical axis take.
pub(super) fn room_left(y: &Ruler) -> f64 {
    let widest = y.ticks.iter().map(|tick| text_width(&tick.label, TEXT_SIZE_MAX)).fold(0.0, f64::max);
    (widest + 8.0).clamp(24.0, WIDTH / 3.0)
}

impl Frame {
    /// Where a pair of values is drawn; None if one of them cannot be.
    pub(super) fn at(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        Some((self.across(x)?, self.bottom - (self.bottom - self.top) * self.y.place(y)?))
    }

    /// Where a value of the horizontal axis is drawn.
    pub(super) fn across(&self, x: f64) -> Option<f64> {
        Some(self.left + (self.right - self.left) * self.x.place(x)?)
    }

    /// The grid and the ticks. Drawn first, since data lies on top.
    pub(super) fn draw(&self, svg: &mut Svg, x_label: &str) {
        self.draw_vertical_axis(svg);
        self.draw_horizontal_axis(svg);
        let middle = (self.left + self.right) / 2.0;
        svg.text("plot-label", Anchor::Middle, (middle, self.bottom + BELOW - 5.0), x_label);
    }

    fn draw_vertical_axis(&self, svg: &mut Svg) {
        let mut grid = Path::default();
        let mut lowest_label = f64::NEG_INFINITY;
        for tick in self.y.ticks.iter().rev() {
            let Some(share) = self.y.place(tick.value) else { continue };
            let y = self.bottom - (self.bottom - self.top) * share;
            if tick.label.is_empty() {
                grid.move_to(self.left - 3.0, y);
                grid.line_to(self.left, y);
                continue;
            }
            grid.move_to(self.left, y);
            grid.line_to(self.right, y);
            if y - lowest_label >= LINE_HEIGHT * 0.9 {
                svg.text("plot-tick", Anchor::End, (self.left - 6.0, y + 4.0), &tick.label);
                lowest_label = y;
            }
        }
        svg.path("plot-grid", &grid.finish());
    }

    pub(super) fn draw_horizontal_axis(&self, svg: &mut Svg) {
        let (mut grid, mut axis) = (Path::default(), Path::default());
        axis.move_to(self.left, self.bottom);
        axis.line_to(self.right, self.bottom);
        for tick in &self.x.ticks {
            let Some(x) = self.across(tick.value) else { continue };
            let length = if tick.label.is_empty() { 2.5 } else { 4.0 };
            axis.move_to(x, self.bottom);
            axis.line_to(x, self.bottom + length);
            if !tick.label.is_empty() {
                grid.move_to(x, self.top);
                grid.line_to(x, self.bottom);
            }
        }
        for (middle, label) in self.horizontal_labels() {
            svg.text("plot-tick", Anchor::Middle, (middle, self.bottom + 19.0), label);
        }
        svg.path("plot-grid", &grid.finish());
        svg.path("plot-axis", &axis.finish());
    }

    /// The middles of the tick labels and the labels, without those that would collide: every second or third
    /// of even steps, and of uneven ones the lower percentile.
    fn horizontal_labels(&self) -> Vec<(f64, &str)> {
        let labels: Vec<(f64, f64, &str)> = self
            .x
            .ticks
            .iter()
            .filter(|tick| !tick.label.is_empty())
            .filter_map(|tick| {
                let half = text_width(&tick.label, TEXT_SIZE_MAX) / 2.0;
                Some((self.across(tick.value)?.min(WIDTH - half).max(half), half, tick.label.as_str()))
            })
            .collect();
        if self.x.is_uneven() {
            let mut free_until = WIDTH;
            let mut kept = Vec::new();
            for &(middle, half, label) in labels.iter().rev() {
                if middle + half <= free_until {
                    kept.push((middle, label));
                    free_until = middle - half - LABEL_GAP;
                }
            }
            return kept;
        }
        let collide = |stride: usize| {
            let mut shown = labels.iter().step_by(stride).peekable();
            std::iter::from_fn(|| shown.next().zip(shown.peek().copied()))
                .any(|(left, right)| left.0 + left.1 + LABEL_GAP > right.0 - right.1)
        };
        let stride = (1..=labels.len().max(1)).find(|&stride| !collide(stride)).unwrap_or(1);
        labels.iter().step_by(stride).map(|&(middle, _, label)| (middle, label)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::{Axis, Fit};
    use super::super::ticks::Unit;
    use super::*;

    fn frame(x: &Axis, values: &[f64], ticks: usize) -> Frame {
        let x = Ruler::new(x, values.iter().copied(), Fit::Tight, ticks);
        let y = Ruler::new(&Axis::from_zero("", Unit::Number), [1.0].into_iter(), Fit::Airy, 5);
        Frame { left: 40.0, right: 500.0, top: 0.0, bottom: 200.0, x, y }
    }

    #[test]
    fn even_labels_are_left_out_evenly() {
        let frame = frame(&Axis::linear("", Unit::Number), &[0.0, 900_000.0], 18);
        let labels: Vec<&str> = frame.horizontal_labels().into_iter().map(|label| label.1).collect();
        assert_eq!(
            labels,
            [
                "0", "100,000", "200,000", "300,000", "400,000", "500,000", "600,000", "700,000", "800,000",
                "900,000"
            ]
            .into_iter()
            .step_by(2)
            .collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_highest_percentile_keeps_its_label() {
        let frame = frame(&Axis::percentiles(""), &[0.99999999], 5);
        let labels = frame.horizontal_labels();
        assert_eq!(labels[0].1, "99.999999 %");
        assert!(
            labels.len() < frame.x.ticks.len() && labels.iter().any(|label| label.1 == "90 %"),
            "{labels:?}"
        );
    }

    #[test]
    fn a_pair_is_drawn_where_its_values_lie() {
        let frame = frame(&Axis::linear("", Unit::Number), &[0.0, 10.0], 5);
        assert_eq!(frame.at((0.0, 0.0)), Some((40.0, 200.0)));
        assert_eq!(frame.at((10.0, 0.0)), Some((500.0, 200.0)));
        assert_eq!(frame.at((f64::NAN, 0.0)), None);
        assert_eq!(frame.at((0.0, f64::INFINITY)), None);
    }
}
