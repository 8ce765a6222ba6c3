//! One node's daemon: a thread for each OSD, and the control side that ties them to the registry.
//!
//! - [`shard`]: an OSD's thread: `ring` + `pg` + `store` in one loop. `rounds`: whose requests are handled next; `stalled`:
//!   connections whose messages wait; `inboxes`: in how much memory, and `socket_buffers`: in how much of the kernel's;
//!   `standstill`: clients that neither take nor send; `unwelcome`: who is refused when it has said something; `looks`: when it is
//!   looked whether there is something to tell.
//! - `switchboard`: an OSD's connections, made and accepted, with their handshakes.
//! - [`control`]: ordinary tokio code: what a node runs. `bay`: the place of one drive, whose OSD is started, waited for, and
//!   tried again; `osd_control`: the lease of a running OSD, the cluster map, new epochs. `listeners`: one port on several
//!   addresses.
//! - [`Attendance`]: what a process does besides: `reporter` tells the manager how the OSDs are, `manager_port` is where the
//!   manager is told and asked, `manager_link` the way there.
//! - `client_port`: where clients ask what their keys may ask; `entrance`: how whoever comes to it or to
//!   the manager's port is let in.
//! - `http`: metrics and the read side of the API, on the loopback interface; `tally`: what shards tell for it.
//! - `candidate`: which process decides for the cluster, and when, where data shall lie and who is taken out; `scheduling`:
//!   when it has snapshots made by schedules; `scrubbing`: when each OSD has its groups scrubbed; `clock`: what time it is for
//!   these.
//! - `lease`: by which signs of life all of that lasts.
//!
//! The two sides meet in bounded queues. A node whose registry is away goes on serving; what needs a new epoch
//! waits. A node whose drive fails, or cannot be used from the start, says so in its status and serves the others.

mod attendance;
mod bay;
mod candidate;
mod client_port;
mod clock;
pub mod control;
mod entrance;
mod error;
mod http;
mod inboxes;
mod lease;
mod listeners;
mod location;
mod looks;
mod manager_link;
mod manager_port;
mod osd_control;
mod refusals;
mod reporter;
mod rounds;
mod scheduling;
mod scrubbing;
pub mod shard;
mod socket_buffers;
mod stalled;
mod standstill;
mod switchboard;
mod tally;
mod unwelcome;

pub use attendance::Attendance;
pub use control::{Config, run};
pub use error::NodeError;
pub use location::Location;
pub use manager_link::{ManagerLink, ToManager};
pub use reporter::report;
