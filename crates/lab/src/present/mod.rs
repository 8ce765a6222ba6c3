//! What came of a plan, for readers.

mod explained;
mod page;
pub mod plots;
mod summary;
mod text;

pub use explained::explained;
pub use page::page;
pub use summary::{Row, Summary};
pub use text::{markdown, terminal};
