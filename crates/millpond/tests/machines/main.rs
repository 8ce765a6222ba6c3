//! Clusters over many machines, which are network namespaces here: how hosts join, what they stand, and links between nodes
//! that are cut. Needs root.

#[path = "../common/mod.rs"]
mod common;

mod certificates;
mod join;
mod partitions;
mod trouble;
