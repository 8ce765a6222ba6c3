//! What `librbd.so.1` has: images.

mod attributes;
mod clones;
mod completions;
mod copies;
mod data;
mod diff;
mod directory;
mod facts;
mod groups;
mod image;
mod linked;
mod locks;
mod metadata;
mod migration;
mod missing;
mod namespaces;
mod options;
mod overrides;
mod ownership;
mod snapshots;
mod statistics;
mod trash;
mod watchers;
