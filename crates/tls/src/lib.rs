//! The records of an encrypted connection: TLS 1.3 (RFC 8446, section 5) after its handshake.
//!
//! Whoever made the handshake hands over the keys it ended with; a [`Session`] seals what is sent under them and opens
//! what comes. It performs no I/O, so a reactor, an asynchronous task and a test use the same one:
//! - to send, [`Session::seal`] pieces of plaintext and send the records, in order;
//! - to receive, put bytes into [`Session::space`], say how many with [`Session::received`], and [`Session::read`]
//!   until that answers 0;
//! - after a read, send what [`Session::answer`] has, if it has something.
//!
//! Cryptography, keys and their renewal are those of `rustls`. Here is what surrounds them: where a record begins and
//! ends, its number, and what of TLS is heeded after the handshake: data, key updates, the end.
//!
//! Invariants: no record number is used twice under a key, and no key for more records than its cipher allows. Nothing
//! is handed over that did not verify, in the order in which it was sealed.
//!
//! When things fail: the first record that does not verify or makes no sense ends the session for good; what came
//! before it is handed over still. A stream that was cut off ends in the middle of something; that the other side
//! meant to end it, only [`End::Closed`] says.

mod end;
mod incoming;
mod session;

pub use end::End;
pub use session::Session;

/// Bytes of plaintext in one record at most (RFC 8446, section 5.1).
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// The header of a record: its type, a version that says nothing any more, its length.
const HEADER_BYTES: usize = 5;
/// Bytes that may follow the header of a record (RFC 8446, section 5.2).
const CIPHERTEXT_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 256;
