//! What came of a plan, for readers.

mod baseline;
mod explained;
mod machine;
mod page;
pub mod plots;
mod published;
mod summary;
mod sweep;
mod text;

pub use explained::explained;
pub use page::{page, percentile_chart};
pub use summary::{Row, Summary, value_of};
pub use text::{markdown, terminal};
