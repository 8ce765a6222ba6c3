//! Handshakes over whatever carries bytes, without a clock, for whoever changes these on their way.

use crate::error::AuthError;
use crate::handshake::Identity;
use base::{Encryption, PublicKey};
use tls::Session;
use tokio::io::{AsyncRead, AsyncWrite};

impl Identity {
    /// As [`Self::connect`]. Answers what is left of the stream, and its session if it is encrypted.
    ///
    /// # Errors
    /// As [`Self::connect`], but for its limit of time.
    pub async fn connect_over<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
        expected: PublicKey,
        encryption: Encryption,
    ) -> Result<(T, Option<Session>), AuthError> {
        self.connect_now(stream, expected, encryption).await
    }

    /// As [`Self::accept`]. Answers what is left of the stream, and its session if it is encrypted.
    ///
    /// # Errors
    /// As [`Self::accept`], but for its limit of time.
    pub async fn accept_over<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: T,
        encryption: Encryption,
        authorize: impl FnOnce(PublicKey) -> Result<(), String>,
    ) -> Result<(T, Option<Session>), AuthError> {
        self.accept_now(stream, encryption, authorize).await.map(|(parts, ())| parts)
    }
}
