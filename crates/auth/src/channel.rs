//! A connection whose both ends proved who they are.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tls::{End, PLAINTEXT_BYTES_MAX, Session};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// What may wait between a stream and its encryption, in each direction.
const PIPE_BYTES: usize = 64 << 10;
/// So many records may wait to be sent before nothing more is read.
const UNSENT_MAX: usize = 16;
/// How long it may take to say that nothing follows.
const FAREWELL_LIMIT: Duration = Duration::from_secs(1);

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

    /// Has the connection end when what was sent is not acknowledged for so long: a host that died says nothing.
    ///
    /// # Errors
    /// When the system refuses that.
    pub fn end_unless_acknowledged_within(&self, limit: Duration) -> io::Result<()> {
        socket2::SockRef::from(&self.stream).set_tcp_user_timeout(Some(limit))
    }

    /// As a stream, for who speaks HTTP on it. What is encrypted passes through a task of its own.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn into_stream(self) -> Box<dyn Stream> {
        let Some(session) = self.session else { return Box::new(self.stream) };
        let (far, near) = tokio::io::duplex(PIPE_BYTES);
        let (held, left) = oneshot::channel();
        // Who uses the stream sees it end, which is all there is to say.
        tokio::spawn(async move { drop(carry(self.stream, session, near, left).await) });
        Box::new(Carried { far, _held: held })
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

/// A stream whose bytes a task carries over an encrypted connection, which hears of it when this is dropped.
struct Carried {
    far: DuplexStream,
    _held: oneshot::Sender<()>,
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.far).poll_read(context, into)
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.far).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.far).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.far).poll_shutdown(context)
    }
}

/// Carries what is said on one end of a pipe over an encrypted connection, and back, until either ends. No direction waits
/// for the other: both sides may say much at the same time.
async fn carry(
    stream: TcpStream,
    mut session: Session,
    near: DuplexStream,
    mut left: oneshot::Receiver<()>,
) -> io::Result<()> {
    let (mut from_peer, mut to_peer) = stream.into_split();
    let (mut from_user, mut to_user) = tokio::io::split(near);
    let mut said = vec![0; PLAINTEXT_BYTES_MAX];
    let mut received = vec![0; PLAINTEXT_BYTES_MAX];
    let mut undelivered = 0..0;
    let mut unsent = Unsent::default();
    loop {
        if undelivered.is_empty() {
            undelivered = match session.read(&mut received) {
                Ok(count) => 0..count,
                Err(End::Closed) => return Ok(()),
                Err(end) => return Err(io::Error::new(io::ErrorKind::InvalidData, end)),
            };
            session.answer(&mut unsent.records);
        }
        tokio::select! {
            count = to_peer.write(unsent.first()), if !unsent.records.is_empty() => unsent.sent(count?),
            count = to_user.write(&received[undelivered.clone()]), if !undelivered.is_empty() => match count {
                Ok(count) => undelivered.start += count,
                // It left, and what it said before goes out still.
                Err(_) => break,
            },
            // Who asks for answers and does not read them is not heard any further.
            count = from_peer.read(session.space()),
                if undelivered.is_empty() && unsent.records.len() < UNSENT_MAX => match count? {
                0 => return Err(cut_off()),
                count => session.received(count),
            },
            count = from_user.read(&mut said), if unsent.records.is_empty() => match count? {
                0 => break,
                count => session.seal(&[&said[..count]], &mut unsent.records),
            },
            _ = &mut left => break,
        }
    }
    // Whether the peer reads or not, it is over soon.
    let farewell = async {
        loop {
            while !unsent.records.is_empty() {
                let count = to_peer.write(unsent.first()).await?;
                unsent.sent(count);
            }
            match from_user.read(&mut said).await? {
                0 => break,
                count => session.seal(&[&said[..count]], &mut unsent.records),
            }
        }
        session.seal_end(&mut unsent.records);
        to_peer.write_all(unsent.first()).await
    };
    timeout(FAREWELL_LIMIT, farewell).await.unwrap_or(Ok(()))
}

/// Records that wait to be sent.
#[derive(Default)]
struct Unsent {
    records: VecDeque<Vec<u8>>,
    /// How many bytes of the first are sent.
    bytes_sent: usize,
}

impl Unsent {
    /// What is to be sent next; nothing, if nothing is.
    fn first(&self) -> &[u8] {
        self.records.front().map_or(&[], |record| &record[self.bytes_sent..])
    }

    fn sent(&mut self, count: usize) {
        self.bytes_sent += count;
        if self.first().is_empty() {
            self.records.pop_front();
            self.bytes_sent = 0;
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
            0 => return Err(cut_off()),
            count => session.received(count),
        }
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it was cut off: its end was not announced")
}

async fn send_all(stream: &mut TcpStream, records: VecDeque<Vec<u8>>) -> io::Result<()> {
    for record in records {
        stream.write_all(&record).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, SecretKey};
    use base::Encryption;
    use tokio::net::TcpListener;

    async fn pair() -> (Channel, Channel) {
        let [one, other] = [(); 2].map(|()| Identity::new(&SecretKey::generate().unwrap()));
        let (key, listener) = (other.public(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let accepting = async {
            let (stream, _) = listener.accept().await.unwrap();
            other.accept(stream, Encryption::On, |_| Ok(())).await.unwrap().0
        };
        tokio::join!(async { crate::reach(&one, key, address, Encryption::On).await.unwrap() }, accepting)
    }

    #[tokio::test]
    async fn both_sides_may_say_more_than_waits_between_them_before_either_reads() {
        const BYTES: usize = 16 << 20;
        let (one, other) = pair().await;
        let both = [one.into_stream(), other.into_stream()].map(|stream| async move {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let writing = async {
                for piece in 0..BYTES / 4096 {
                    writer.write_all(&[piece as u8; 4096]).await.unwrap();
                }
            };
            let reading = async {
                let mut piece = [0; 4096];
                for expected in 0..BYTES / 4096 {
                    reader.read_exact(&mut piece).await.unwrap();
                    assert_eq!(piece, [expected as u8; 4096]);
                }
            };
            tokio::join!(writing, reading);
        });
        let [one, other] = both;
        timeout(Duration::from_secs(60), async { tokio::join!(one, other) }).await.unwrap();
    }

    #[tokio::test]
    async fn who_reads_nothing_keeps_no_connection_that_was_left() {
        let (one, other) = pair().await;
        let mut stream = one.into_stream();
        // More than fits on the way, so that something is left to be sent for ever.
        let piece = vec![7; 1 << 20];
        while timeout(Duration::from_millis(200), stream.write_all(&piece)).await.is_ok() {}
        drop(stream);
        tokio::time::sleep(FAREWELL_LIMIT + Duration::from_millis(500)).await;
        let (socket, _) = other.into_parts().unwrap();
        // What is on the way is read, and then it is over.
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let ended = std::io::copy(&mut &socket, &mut std::io::sink());
        assert!(
            ended.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::ConnectionReset),
            "{ended:?}"
        );
    }

    #[tokio::test]
    async fn the_end_of_a_stream_is_announced() {
        let (one, mut other) = pair().await;
        let mut stream = one.into_stream();
        stream.write_all(b"all").await.unwrap();
        drop(stream);
        let mut heard = Vec::new();
        while other.receive(&mut heard).await.expect("it was not cut off") > 0 {}
        assert_eq!(heard, b"all");
    }
}
