//! What `librbd.so.1` has: images.

mod clones;
mod completions;
mod copies;
mod data;
mod diff;
mod directory;
mod facts;
mod image;
mod linked;
mod locks;
mod metadata;
mod missing;
mod namespaces;
mod options;
mod snapshots;
mod statistics;
mod trash;
mod watchers;
