//! Ceph's libraries for C, by the names, symbols and meaning that programs know: what they do with images is done with Millpond's
//! volumes. [`docs/rbd.md`](../../../docs/rbd.md) says what there is and what is not.
//!
//! Three rules hold for all of it. Nothing reaches the program but answers: no panic, signal, logger, allocator or exit. Whoever
//! calls may be any thread, also a callback's; what it would have to wait for itself is refused. Whatever is handed over is the
//! program's; it is looked at only as its documentation says that it may be.
#![allow(unsafe_code, reason = "what C hands over can be had in no other way; each place says why it may")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what each function may be given, the C headers of its name say"
)]

mod cluster;
mod completion;
mod configuration;
mod entry;
mod errno;
mod image;
mod log;
mod memory;
mod missing;
mod rados;
mod rbd;
mod text;
