//! A connection whose both ends proved who they are.

use std::collections::VecDeque;
use std::io;
use tls::{End, PLAINTEXT_BYTES_MAX, Session};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;

/// What may wait between a stream and its encryption, in each direction.
const PIPE_BYTES: usize = 64 << 10;

/// A connection whose both ends proved who they are: in plain from there on, or encrypted.
#[derive(Debug)]
pub struct Channel {
    pub(crate) stream: TcpStream,
    session: Option<Session>,
}

impl Channel {
    pub(crate) fn new(stream: TcpStream, session: Option<Session>) -> Channel {
        Channel { stream, session }
    }

    /// Whether what goes over it is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }

    /// Its socket and its encryption, for who does not work with `tokio`.
    ///
    /// # Errors
    /// When the system does not give the socket back.
    pub fn into_parts(self) -> io::Result<(std::net::TcpStream, Option<Session>)> {
        Ok((self.stream.into_std()?, self.session))
    }

    /// As a stream, for who speaks HTTP on it. What is encrypted passes through a task of its own.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn into_stream(self) -> Box<dyn Stream> {
        if self.session.is_none() {
            return Box::new(self.stream);
        }
        let (far, near) = tokio::io::duplex(PIPE_BYTES);
        // Who uses the stream sees it end, which is all there is to say.
        tokio::spawn(async move { drop(carry(self, near).await) });
        Box::new(far)
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// When the connection is over.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(session) = &mut self.session else { return self.stream.write_all(bytes).await };
        let mut records = VecDeque::new();
        for piece in bytes.chunks(PLAINTEXT_BYTES_MAX) {
            session.seal(&[piece], &mut records);
        }
        send_all(&mut self.stream, records).await
    }

    /// Waits for bytes and appends them to `into`. Answers how many: 0 once the other side has ended the connection.
    ///
    /// # Errors
    /// When the connection broke, or what came over it does not verify.
    pub async fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let Some(session) = &mut self.session else { return self.stream.read_buf(into).await };
        let start = into.len();
        into.resize(start + PLAINTEXT_BYTES_MAX, 0);
        let read = receive_encrypted(&mut self.stream, session, &mut into[start..]).await;
        into.truncate(start + *read.as_ref().unwrap_or(&0));
        read
    }
}

/// A connection as `tokio` has them.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Carries what is said on one end of a pipe over an encrypted connection, and back, until either ends.
async fn carry(mut channel: Channel, mut near: DuplexStream) -> io::Result<()> {
    let (mut received, mut said) = (Vec::new(), Vec::new());
    loop {
        received.clear();
        said.clear();
        tokio::select! {
            count = channel.receive(&mut received) => match count? {
                0 => return Ok(()),
                _ => near.write_all(&received).await?,
            },
            count = near.read_buf(&mut said) => match count? {
                0 => return Ok(()),
                _ => channel.send(&said).await?,
            },
        }
    }
}

async fn receive_encrypted(
    stream: &mut TcpStream,
    session: &mut Session,
    into: &mut [u8],
) -> io::Result<usize> {
    loop {
        match session.read(into) {
            Ok(0) => {}
            Ok(count) => return Ok(count),
            Err(End::Closed) => return Ok(0),
            Err(end) => return Err(io::Error::new(io::ErrorKind::InvalidData, end)),
        }
        if session.has_answer() {
            let mut records = VecDeque::new();
            session.answer(&mut records);
            send_all(stream, records).await?;
        }
        match stream.read(session.space()).await? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it was cut off: its end was not announced",
                ));
            }
            count => session.received(count),
        }
    }
}

async fn send_all(stream: &mut TcpStream, records: VecDeque<Vec<u8>>) -> io::Result<()> {
    for record in records {
        stream.write_all(&record).await?;
    }
    Ok(())
}
