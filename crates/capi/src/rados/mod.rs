//! What `librados.so.2` has: a cluster, and pools in it.

mod cluster;
mod missing;
mod pool;
mod space;
mod versions;

pub use pool::Pool;
