//! Why a connection came to nothing.

use base::{Encryption, PublicKey};
use std::time::Duration;

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Why a connection came to nothing.
#[derive(thiserror::Error, Debug)]
pub enum AuthError {
    /// The connection broke.
    #[error("the connection ended in the handshake: {0}")]
    Connection(#[source] std::io::Error),
    /// It took too long.
    #[error("the handshake was not done within {} s", HANDSHAKE_LIMIT.as_secs())]
    TooSlow,
    /// The other side has another key than it must have.
    #[error(
        "the other side is not who it should be: it did not prove that it has the key {expected}; is somebody else \
         listening there?"
    )]
    Impostor {
        /// The key that it must have.
        expected: PublicKey,
    },
    /// The other side does not speak this protocol, or breaks it.
    #[error("the handshake failed: {0}")]
    Protocol(String),
    /// One side wants encryption and the other does not know it, or speaks another protocol altogether.
    #[error(
        "the two sides do not agree on a protocol{}",
        match encryption {
            Encryption::On => ": this one sends nothing in plain, as the cluster is set, and the other knows no \
                encryption; is it of an older version?",
            Encryption::Off => "; is the other one of another version?",
        }
    )]
    NoCommonProtocol {
        /// What this side wants.
        encryption: Encryption,
    },
    /// The other side refused, as it said.
    #[error("{0}")]
    Refused(String),
    /// This side refused.
    #[error("{key} is refused: {reason}")]
    Unauthorized {
        /// Who connected.
        key: PublicKey,
        /// Why.
        reason: String,
    },
}
