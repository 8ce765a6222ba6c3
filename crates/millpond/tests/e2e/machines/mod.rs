//! Clusters over many machines, which are network namespaces here: how hosts join, what they stand, and links between nodes
//! that are cut. Needs root.

mod certificates;
mod clients;
mod grow;
mod join;
mod namespaces;
mod partitions;
mod rights;
mod trouble;
