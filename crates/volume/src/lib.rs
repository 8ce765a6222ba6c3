//! Volumes, attached or opened: what every door and the benchmark work on.
//!
//! Two sides meet in a bounded queue. The control side, [`VolumeSession`], is a thread of its own with
//! ordinary asynchronous code: it talks to the registry, holds the lease under which the volumes are
//! attached, watches the cluster map, and makes the connections to OSDs. The data side, [`VolumeLoop`], belongs to the thread that
//! made it: a reactor and a [`client::Client`], turned by whoever serves or measures the volumes.
//!
//! Invariant: the data side sends requests only under an attachment that the session believes to live.
//! Where that belief is late, the generation in each request lets the OSDs refuse it; an attachment that follows one that
//! did not end well begins with making them do so ([`fence`]). A volume that nobody shares can be attached anew while it is
//! used, so that what was sent before, and nobody waits for any more, cannot take effect.
//!
//! A volume that is opened and not attached ([`OpenAs`]) is read by the newest map and under no attachment. The data side says when it
//! has something to change, and the control side has the volume attached then, and given up when another wishes it (`ownership.rs`).
//!
//! When things fail: an unreachable registry stops nothing, the session tries on and the data side works
//! by the last map. A lease that ended is taken up again if nobody attached meanwhile. Else that is the end:
//! [`SessionEvent::Lost`] is told once, the links to all OSDs are cut, and every turn after that fails with the reason.
//! A primary that is away is waited for by the client, which connects again by itself.

mod buffers;
mod dialler;
mod fence;
mod note;
mod ownership;
mod session;
mod slots;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod token;
mod volume_loop;

pub use buffers::{Buffers, PIECE_BYTES_MAX};
pub use session::{AttachError, ClusterAccess, OpenAs, SessionEvent, SessionOptions, VolumeSession};
pub use slots::Slots;
pub use volume_loop::{AttachedVolume, LoopError, Renewal, VolumeLoop, WITHOUT_RING};
