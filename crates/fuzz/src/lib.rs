//! Feeds whatever reads bytes of strangers, of users or of drives with bytes that nobody meant.
//!
//! A [`Target`] is a function of bytes, with some that are valid. The [`driver`] makes inputs that are like those
//! ([`mutate`]), from a seed, on any compiler; `fuzz/` has libFuzzer make them, guided by coverage, on a nightly one.
//!
//! What is behind a checksum, a secret or a length is not reached by chance. So each target puts these right itself, if the
//! input says so by its first byte. What a target reaches is counted by [`Outcomes`]: of each is known what it must reach in
//! so many inputs, and a test sees that it does.
//!
//! A target fails by panicking, by holding more memory than it may, or by taking longer than anything may. What it finds is
//! told with the input, and with the seed and number that make that again.

pub mod driver;
pub mod mutate;
pub mod outcomes;
pub mod targets;

pub use driver::{Failure, Target};
pub use outcomes::{Outcome, Outcomes};
pub use targets::reads_back;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ring::counting::CountingAllocator = ring::counting::CountingAllocator;
