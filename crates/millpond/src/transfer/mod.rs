//! Volumes written to files and pipes, and read from them.

pub mod diff_v1;
pub mod worker;
