//! Pictures of what was measured: SVG for a report that is one HTML file, and text for a terminal.
//!
//! - [`chart`]: curves, with bands of uncertainty, labelled points and marked events.
//! - [`bars`]: stacked bars; [`forest`]: ratios with their intervals; [`heat`]: latency over time.
//! - [`terminal`]: the same charts as text, and sparklines.
//! - [`axis`] and [`ticks`]: scales, units, and how a value is written.
//! - [`style`]: the style sheets that a page with these pictures needs.
//!
//! A picture is one SVG element without ids, scripts or anything to load, so that any number of them share a
//! page. Its colours come from the page, for light and dark. Everything is told in words as well, for those
//! who do not see.
//!
//! Three rules hold everywhere. What was not measured is a gap or `unavailable`, never 0. Every name is
//! hostile: it is escaped, cut to its room, and cannot reach out of its element. Whatever the data, a picture
//! is drawn, and its size is bounded: nothing here returns an error, and nothing panics save for a bug in
//! here.

pub mod axis;
pub mod bars;
pub mod chart;
pub mod forest;
mod frame;
pub mod heat;
mod labels;
mod marks;
pub mod style;
mod svg;
pub mod terminal;
mod thin;
pub mod ticks;

pub(super) use svg::escape;
