//! Clusters over many machines, which are network namespaces here: how hosts join, what they stand, and links between nodes
//! that are cut. Needs root.

#[path = "../common/mod.rs"]
mod common;

/// `make test` skips tests by this name where it runs all other programs, beside which it runs these.
#[path = "."]
mod many_hosts {
    mod certificates;
    mod clients;
    mod grow;
    mod join;
    mod partitions;
    mod trouble;
}
