//! What is seen of a machine while it is measured, beside CPU time (`engine::cpu`).

mod counters;
mod pressure;
mod threads;

pub use counters::device_bytes;
pub use pressure::{Pressure, Stalls};
pub use threads::{Found, Place, Watch};
