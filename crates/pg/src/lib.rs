//! An OSD without I/O: placement groups and their replication over one store.
//!
//! [`Osd`] is a state machine. Whoever drives it tells it what happened (`handle_*`), once per turn calls
//! [`Osd::end_turn`], and performs what it asks of [`Io`]. It reads no clock and draws no random number, so
//! the same code runs on `io_uring` and under a simulator.
//!
//! # Where to look
//! - [`osd`]: links, greetings, the map, the turn.
//! - [`request`]: what clients ask: checks, conflicts, reads.
//! - [`write`]: how a write is ordered, replicated and **acknowledged** (`Osd::member_has`).
//! - [`replica`]: the other end of replication.
//! - [`peering`]: how a group begins an epoch, and brings its members to the primary's state.
//! - [`lease`]: who may count on not being replaced; [`recovery`]: how a member that was away catches up, and [`pace`]: how fast;
//!   [`mend`]: how damage is repaired; [`scrub`]: how it is looked for; [`drive`]: a drive that is not what it was;
//!   [`fence`]: whoever had a volume before is served no more;
//!   [`placement`]: how a group moves to other OSDs; [`split`]: how it becomes two.
//! - `access`: what whoever connected may do.
//! - [`counting`]: what is counted of all that, for operators.
//! - [`group`], [`operation`]: the state those work on.
//!
//! # Invariants
//! - A write is acknowledged only when every in-sync member has it on stable media.
//! - A read is served only while no in-sync member may take the group over.
//! - A read is answered only from blocks without a write under way, so from committed state.
//! - Within an epoch a replica applies exactly the sequence the primary ordered, without a gap.
//! - Bytes whose checksum does not verify leave neither by a reply nor by replication.

mod access;
pub mod counting;
pub mod drive;
pub mod fence;
pub mod group;
mod io;
pub mod lease;
pub mod mend;
mod milestone;
pub mod operation;
pub mod osd;
pub mod pace;
pub mod peering;
pub mod placement;
pub mod presence;
pub mod recovery;
pub mod replica;
pub mod request;
mod sabotage;
pub mod scrub;
pub mod split;
#[cfg(test)]
mod testing;
pub mod write;

pub use access::Credential;
pub use group::GroupSummary;
pub use io::Io;
pub use mend::{DamageCounts, LostBlock};
#[doc(hidden)]
pub use osd::reads_data;
pub use osd::{LinkError, Osd, OsdOptions, Progress};
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use scrub::ScrubReport;
