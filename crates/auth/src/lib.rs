//! Who is at the other end of a connection: keys, and the handshake in which each side proves that it has its own.
//!
//! - [`SecretKey`]: an Ed25519 key in a file that nobody else may read.
//! - [`Identity`]: such a key, ready for handshakes: [`Identity::connect`] and [`Identity::accept`].
//! - [`certificate`]: certificates of keys, for programs that know TLS alone.
//! - [`dial`]: a connection to an OSD, which must prove to be the one that the cluster map shows there; [`reach`]: one to
//!   whoever has a certain key.
//!
//! The handshake is that of TLS 1.3 with raw public keys (RFC 8446, RFC 7250) in place of certificates: what a key may
//! do stands in the cluster map, so there is no authority to trust, nothing that expires, and no clock that must be
//! right. Each handshake signs fresh random numbers of both sides, so none can be replayed.
//!
//! What follows is a [`Channel`]: in plain, or encrypted with the keys of that very handshake if either side wants it,
//! which is part of what both signed. docs/security.md says what each is worth.

pub mod certificate;
mod channel;
mod dial;
mod error;
mod exchange;
mod handshake;
mod key;
#[cfg(feature = "testing")]
mod testing;

pub use certificate::{Authority, CertificateError, CertifiedServer};
pub use channel::{Channel, Stream};
pub use dial::{dial, key_at, reach};
pub use error::{AuthError, HANDSHAKE_LIMIT};
pub use handshake::Identity;
pub use key::{KeyError, SecretKey};
