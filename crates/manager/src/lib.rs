//! What decides for a cluster, so that nobody needs to be asked, and knows how its OSDs are.
//!
//! - [`decide`]: what is to be done, from the map and a moment: who is out, where data shall lie, which pools are split, when
//!   groups are scrubbed, which removed pools can be forgotten, which volumes may grow again, of which snapshots are made. It waits for
//!   nobody.
//! - [`Management`]: has all of that written where it is kept, under the condition that what it was decided by still holds.
//! - [`Scheduling`]: the same for snapshots that are made by themselves, which may have to wait for clients.
//! - [`reports`]: what processes tell the manager; [`collector`]: what the manager was told.
//! - [`log`]: what processes log, kept by the manager.
//! - [`announcements`]: what the manager says in its own log when the cluster changed.
//!
//! Time is an argument. Which process is the manager, and when it looks again, is that process's to say.

pub mod announcements;
pub mod collector;
pub mod decide;
pub mod log;
mod management;
pub mod reports;
mod scheduling;

pub use management::Management;
pub use scheduling::Scheduling;
