//! What is seen of a machine while it is measured, beside CPU time (`engine::cpu`).

mod counters;
mod cycles;
mod drives;
mod network;
mod pressure;
mod stacks;
mod threads;
mod threads_cpu;

pub use counters::device_bytes;
pub use cycles::{CycleCount, Cycles, clock_mhz};
pub use drives::{DriveUse, Drives};
pub use network::{InterfaceUse, Network};
pub use pressure::{Pressure, Stalls};
pub use threads::{Found, Place, Stack, Watch, most};
pub use threads_cpu::{ThreadTimes, ThreadUse};
