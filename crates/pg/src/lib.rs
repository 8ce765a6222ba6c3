//! An OSD without I/O: placement groups and their replication over one store.
//!
//! [`Osd`] is a state machine. Whoever drives it tells it what happened (`handle_*`), once per turn calls
//! [`Osd::end_turn`], and performs what it asks of [`Io`]. It reads no clock and draws no random number, so
//! the same code runs on `io_uring` and under a simulator.
//!
//! # Where to look
//! Every input goes through `router` to the mechanism it concerns. A mechanism owns what only it changes, and gets what it
//! needs of the rest as a `context::Context`; the folders depend on each other in this order only, each on those before it:
//!
//! - `links`: who is connected, what it may do, who may count on not being replaced, who is there.
//! - `group`: one placement group: its *role* here with all transitions (`group::role`), the line of its operations, and
//!   **who refuses a stale primary, and why that is enough** (`group::obedience`).
//! - `codec`: what each member gets of a write. `replication`: how it is ordered, sent and **acknowledged**
//!   (`replication::order::member_has`), and the other end of that.
//! - `epoch`: how a group begins to serve: claim, query, mark, repair.
//! - `request`: what clients ask: the queue, admission, reads, writes, unaligned edges.
//! - `heal`: members that catch up, damage that is repaired, and looked for.
//! - `moves`: how a group comes to lie where it shall, splits, and how what nobody needs goes.
//! - `fence`: whoever had a volume before is served no more. `hello`: who connected, and whether it is let in.
//!
//! Beside them `disk` (the store and its memory), `patience` (whether the drive does anything), `ledger` (what is staged and not
//! durable), `operation` (one request on its way), `shares` (who has how much of what waits), `volumes` (what the map says),
//! `damage`, `pace` and `mclock` (when work and clients' requests begin), `block_set`, `journal` (what is counted and noted), and `view`, which shows all that, in part as `report`s.
//!
//! # Invariants
//! - A write is acknowledged only when every in-sync member has it on stable media.
//! - A read is served only while no in-sync member may take the group over.
//! - A read is answered only from blocks without a write under way, so from committed state.
//! - Within an epoch a replica applies exactly the sequence the primary ordered, without a gap.
//! - Bytes whose checksum does not verify leave neither by a reply nor by replication.

mod block_set;
mod broken;
mod codec;
mod context;
mod damage;
mod disk;
mod epoch;
mod fence;
mod group;
mod heal;
mod hello;
mod io;
mod journal;
mod ledger;
mod limits;
mod links;
mod mclock;
mod moves;
mod operation;
mod osd;
mod pace;
mod patience;
mod replication;
mod report;
mod request;
mod router;
mod shares;
#[cfg(test)]
mod testing;
mod view;
mod volumes;
#[cfg(test)]
mod who_may_say_what;

#[cfg(feature = "broken")]
#[doc(hidden)]
pub use broken::Sabotage;
pub use io::Io;
#[doc(hidden)]
pub use io::reads_data;
pub use links::LinkError;
pub use links::access::Credential;
pub use osd::{Osd, OsdOptions, Progress};
pub use report::{DamageCounts, GroupSummary, LostBlock, ScrubReport};
pub use view::View;
