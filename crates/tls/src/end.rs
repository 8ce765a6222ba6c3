//! How a session ends.

/// Why nothing more comes over a session.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The other side ended it, and said so.
    #[error("the peer closed the connection")]
    Closed,
    /// The other side found something wrong.
    #[error("the peer ended the encrypted connection: {0}")]
    Alert(String),
    /// What came is no record.
    #[error(
        "what came over an encrypted connection is not encrypted: it was changed on its way, or the peer sends in plain"
    )]
    NoRecord,
    /// A record does not verify.
    #[error("what came over an encrypted connection does not verify: it was changed on its way")]
    Forged,
    /// A record verifies and has no place here.
    #[error("the peer breaks the rules of TLS: it sent {0}")]
    Unexpected(&'static str),
}
