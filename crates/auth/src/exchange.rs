//! The handshake's messages: one side of TLS over a socket, until both leave it or go on under its keys.

use crate::error::AuthError;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus};
use rustls::{CommonState, Error, ExtractedSecrets};
use std::io;
use tls::Session;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that a whole handshake may bring; one brings some hundred. Who sends more means something else.
const RECEIVED_BYTES_MAX: usize = 8 << 10;
/// Room for one receipt.
const RECEIPT_BYTES: usize = 4 << 10;
/// What a record is larger than what is in it, at most.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// One side of TLS.
pub(crate) trait Side: std::ops::Deref<Target: std::ops::Deref<Target = CommonState>> + Sized {
    type Data: Send + 'static;
    fn process<'c, 'i>(&'c mut self, received: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn into_keys(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, received: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(received)
    }
    fn into_keys(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error> {
        self.dangerous_into_kernel_connection()
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, received: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(received)
    }
    fn into_keys(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), Error> {
        self.dangerous_into_kernel_connection()
    }
}

/// Where a handshake stands when nothing more follows from what was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The other side must send more.
    Waits,
    /// Both sides proved who they are, and may say something.
    Stands,
    /// The other side says no more.
    Ended,
}

/// A failure of an exchange, before anybody says what it means.
#[derive(thiserror::Error, Debug)]
pub(crate) enum Failure {
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] Error),
}

/// One side of TLS on a socket, or on whatever a test has in place of one.
pub(crate) struct Exchange<S, T> {
    tls: S,
    stream: T,
    received: Vec<u8>,
    received_bytes: usize,
    outgoing: Vec<u8>,
    /// What the other side said under the keys, and was not taken.
    heard: Vec<u8>,
}

impl<S: Side, T: AsyncRead + AsyncWrite + Unpin> Exchange<S, T> {
    pub(crate) fn new(tls: S, stream: T) -> Exchange<S, T> {
        let (received, outgoing, heard) = (Vec::new(), Vec::new(), Vec::new());
        Exchange { tls, stream, received, received_bytes: 0, outgoing, heard }
    }

    /// What TLS knows of the other side.
    pub(crate) fn tls(&self) -> &CommonState {
        &self.tls
    }

    /// Makes the handshake.
    pub(crate) async fn establish(&mut self) -> Result<(), Failure> {
        loop {
            match self.advance().await? {
                Standing::Stands => return Ok(()),
                Standing::Waits => self.receive().await?,
                Standing::Ended => return Err(ended()),
            }
        }
    }

    /// Says something under the keys of the handshake, which stands.
    pub(crate) async fn say(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let mut record = vec![0; bytes.len() + RECORD_OVERHEAD_BYTES];
        let sealed = match self.tls.process(&mut []).state? {
            ConnectionState::WriteTraffic(mut traffic) => traffic.encrypt(bytes, &mut record),
            _ => return Err(Error::HandshakeNotComplete.into()),
        };
        self.outgoing.extend_from_slice(&record[..sealed.map_err(cannot_encrypt)?]);
        self.flush().await
    }

    /// Hears so many bytes that the other side says under the keys.
    pub(crate) async fn hear(&mut self, count: usize) -> Result<Vec<u8>, Failure> {
        while self.heard.len() < count {
            let standing = self.advance().await?;
            if self.heard.len() >= count {
                break;
            }
            if standing == Standing::Ended {
                return Err(ended());
            }
            self.receive().await?;
        }
        Ok(self.heard.drain(..count).collect())
    }

    /// Hears what the other side says until it ends, or has said `bytes_max`. However that ends, what came is answered.
    pub(crate) async fn hear_out(&mut self, bytes_max: usize) -> Vec<u8> {
        while self.heard.len() < bytes_max
            && matches!(self.advance().await, Ok(standing) if standing != Standing::Ended)
            && self.receive().await.is_ok()
        {}
        self.heard.truncate(bytes_max);
        std::mem::take(&mut self.heard)
    }

    /// Tells the other side that this one says no more.
    pub(crate) async fn end(&mut self) -> Result<(), Failure> {
        let mut record = [0; RECORD_OVERHEAD_BYTES];
        let sealed = match self.tls.process(&mut []).state? {
            ConnectionState::WriteTraffic(mut traffic) => traffic.queue_close_notify(&mut record),
            _ => return Err(Error::HandshakeNotComplete.into()),
        };
        self.outgoing.extend_from_slice(&record[..sealed.map_err(cannot_encrypt)?]);
        self.flush().await?;
        Ok(self.stream.shutdown().await?)
    }

    /// Leaves TLS: what follows is in the clear, or goes on under its keys.
    ///
    /// # Errors
    /// When something was received already that nobody was to send yet.
    pub(crate) fn into_parts(self, is_encrypted: bool) -> Result<(T, Option<Session>), AuthError> {
        if !self.received.is_empty() || !self.heard.is_empty() {
            return Err(AuthError::Protocol("it did not wait for the end of the handshake".to_owned()));
        }
        let session = if is_encrypted {
            let keys = self.tls.into_keys().and_then(|(secrets, keys)| Session::new(secrets, keys));
            Some(keys.map_err(|error| AuthError::Protocol(error.to_string()))?)
        } else {
            None
        };
        Ok((self.stream, session))
    }

    /// Leaves TLS to a session under its keys, which has what the other side said already.
    ///
    /// # Errors
    /// When the handshake agreed on what no session knows.
    pub(crate) fn into_session(self) -> Result<(T, Session), AuthError> {
        let keys = self.tls.into_keys().and_then(|(secrets, keys)| Session::new(secrets, keys));
        let mut session = keys.map_err(|error| AuthError::Protocol(error.to_string()))?;
        session.begin_with(&self.heard, &self.received);
        Ok((self.stream, session))
    }

    /// Does what follows from what was received, and sends what the other side is to know of that.
    async fn advance(&mut self) -> Result<Standing, Failure> {
        let standing = self.process();
        if standing.is_err() {
            // An alert says what is wrong. It fails all the same if that cannot be sent.
            let _ = self.process();
            let _ = self.flush().await;
        } else {
            self.flush().await?;
        }
        Ok(standing?)
    }

    fn process(&mut self) -> Result<Standing, Error> {
        loop {
            let UnbufferedStatus { mut discard, state } = self.tls.process(&mut self.received);
            let mut standing = None;
            match state? {
                ConnectionState::EncodeTlsData(data) => encode(data, &mut self.outgoing)?,
                // It is, before anything else is received.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        self.heard.extend_from_slice(record.payload);
                    }
                }
                ConnectionState::BlockedHandshake => standing = Some(Standing::Waits),
                ConnectionState::WriteTraffic(_) => standing = Some(Standing::Stands),
                _ => standing = Some(Standing::Ended),
            }
            self.received.drain(..discard);
            if let Some(standing) = standing {
                return Ok(standing);
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        self.stream.write_all(&self.outgoing).await?;
        self.outgoing.clear();
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), Failure> {
        if self.received_bytes >= RECEIVED_BYTES_MAX {
            return Err(Error::General("it does not come to an end".to_owned()).into());
        }
        let start = self.received.len();
        self.received.resize(start + RECEIPT_BYTES, 0);
        let received = self.stream.read(&mut self.received[start..]).await;
        self.received.truncate(start + *received.as_ref().unwrap_or(&0));
        match received? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => {
                self.received_bytes += count;
                Ok(())
            }
        }
    }
}

fn encode<Data>(mut data: EncodeTlsData<'_, Data>, outgoing: &mut Vec<u8>) -> Result<(), Error> {
    let start = outgoing.len();
    loop {
        match data.encode(&mut outgoing[start..]) {
            Ok(_) => return Ok(()),
            Err(EncodeError::InsufficientSize(needed)) => outgoing.resize(start + needed.required_size, 0),
            Err(EncodeError::AlreadyEncoded) => return Err(Error::EncryptError),
        }
    }
}

fn cannot_encrypt(_: EncryptError) -> Failure {
    Failure::Tls(Error::EncryptError)
}

fn ended() -> Failure {
    Failure::Connection(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side ended it"))
}
