//! What goes over the socket: one JSON object per line, in UTF-8, each line at most
//! [`LINE_BYTES_MAX`] long.
//!
//! The client says `hello` with protocol and version, the server answers with its own. Then the client
//! sends requests, each with an id of its choice, as many at once as it likes; answers bear that id and
//! come in any order. Watches are numbered by the client and share the connection. What the server has to
//! say that is longer than a line comes as consecutive `part` lines, whose texts together are the object.
//! A server that closes a connection says why in a `close` line. A node that serves clients tells them of the
//! others that do in an `endpoints` line, whenever these change.

use registry::Endpoint;
use registry::RegistryError;
use registry::implement::{Answer, Request};
use registry::{Revision, WatchBatch};
use serde::{Deserialize, Serialize};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What a hello must name.
pub(super) const PROTOCOL: &str = "millpond-registry";
/// Grows when the two ends can no longer understand each other.
pub(super) const VERSION: u32 = 1;
/// Bytes of the longest line, its end excluded. What a transaction's limits allow fits.
pub(super) const LINE_BYTES_MAX: usize = 2 << 20;
/// Bytes of text in a part: escaped as a JSON string it at most doubles.
const PART_BYTES_MAX: usize = 1000 << 10;
/// Bytes of the largest message put together from parts.
const MESSAGE_BYTES_MAX: usize = 512 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ClientLine {
    Hello { protocol: String, version: u32 },
    Request { id: u64, request: Request },
    Watch { id: u64, watch: u64, prefix: String, start: Revision },
    Unwatch { watch: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ServerLine {
    Hello { version: u32 },
    Answer { id: u64, result: Result<Answer, RegistryError> },
    Batch { watch: u64, result: Result<WatchBatch, RegistryError> },
    Part { text: String, last: bool },
    Endpoints { endpoints: Vec<Endpoint> },
    Close { reason: String },
}

/// Why no line could be read.
#[derive(thiserror::Error, Debug)]
pub(super) enum LineError {
    #[error("a line is longer than {bytes_max} bytes")]
    TooLong { bytes_max: usize },
    #[error("the connection ended within a line")]
    Cut,
    #[error("a message of parts is larger than {MESSAGE_BYTES_MAX} bytes")]
    MessageTooLarge,
    #[error("line {number} makes no sense: {reason}")]
    Malformed { number: u64, reason: String },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Cuts a stream into lines, never holding more than one and a read's worth besides.
pub(super) struct LineReader<R> {
    stream: R,
    buffer: Vec<u8>,
    /// Bytes of the buffer known to hold no line's end.
    searched: usize,
    number: u64,
    /// Bytes of the longest line.
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(stream: R) -> LineReader<R> {
        LineReader::limited(stream, LINE_BYTES_MAX)
    }

    pub(super) fn limited(stream: R, bytes_max: usize) -> LineReader<R> {
        LineReader { stream, buffer: Vec::new(), searched: 0, number: 0, bytes_max }
    }

    /// The next line as an object, or `None` at the stream's end. Safe to cancel.
    pub(super) async fn next<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let Some(line) = self.next_line().await? else { return Ok(None) };
        parse(&line, self.number).map(Some)
    }

    async fn next_line(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.searched = 0;
                self.number += 1;
                return if line.len() > self.bytes_max { Err(self.too_long()) } else { Ok(Some(line)) };
            }
            self.searched = self.buffer.len();
            if self.searched > self.bytes_max {
                return Err(self.too_long());
            }
            self.buffer.reserve(16 << 10);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(LineError::Cut) };
            }
        }
    }
}

impl<R> LineReader<R> {
    fn too_long(&self) -> LineError {
        LineError::TooLong { bytes_max: self.bytes_max }
    }
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// The server's next message, put together where it came in parts. Not safe to cancel.
    pub(super) async fn next_message(&mut self) -> Result<Option<ServerLine>, LineError> {
        let mut whole = String::new();
        loop {
            match self.next().await? {
                Some(ServerLine::Part { text, last }) => {
                    whole.push_str(&text);
                    if whole.len() > MESSAGE_BYTES_MAX {
                        return Err(LineError::MessageTooLarge);
                    }
                    if last {
                        return parse(whole.as_bytes(), self.number).map(Some);
                    }
                }
                Some(_) | None if !whole.is_empty() => return Err(LineError::Cut),
                other => return Ok(other),
            }
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(text: &[u8], number: u64) -> Result<T, LineError> {
    serde_json::from_slice(text).map_err(|error| LineError::Malformed { number, reason: error.to_string() })
}

/// A client's line, its end included.
pub(super) fn encode(line: &ClientLine) -> Vec<u8> {
    finish_line(serde_json::to_vec(line).expect("plain data with text keys has a JSON form"))
}

fn finish_line(mut line: Vec<u8>) -> Vec<u8> {
    line.push(b'\n');
    line
}

/// Writes a server's message as one line or as parts.
pub(super) async fn write_message<W: AsyncWrite + Unpin>(
    stream: &mut W,
    message: &ServerLine,
) -> io::Result<()> {
    let text = serde_json::to_string(message).expect("plain data with text keys has a JSON form");
    if text.len() <= LINE_BYTES_MAX {
        return stream.write_all(&finish_line(text.into_bytes())).await;
    }
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let cut = rest.floor_char_boundary(PART_BYTES_MAX.min(rest.len()));
        let (text, after) = rest.split_at(cut);
        rest = after;
        let part = ServerLine::Part { text: text.to_owned(), last: rest.is_empty() };
        let line = serde_json::to_vec(&part).expect("plain data with text keys has a JSON form");
        stream.write_all(&finish_line(line)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::{
        BYTES_PER_TXN_MAX, Compare, KEY_BYTES_MAX, KeyValue, OPERATIONS_PER_TXN_MAX, Operation, Txn,
    };

    #[test]
    fn the_largest_transaction_fits_in_a_line() {
        let quotes = "\"".repeat(KEY_BYTES_MAX - 3);
        let key = |index: usize| format!("{quotes}{index:03}");
        let keys = 3 * OPERATIONS_PER_TXN_MAX * KEY_BYTES_MAX;
        let each = (BYTES_PER_TXN_MAX - keys) / (3 * OPERATIONS_PER_TXN_MAX);
        let mut txn = Txn::new();
        for index in 0..OPERATIONS_PER_TXN_MAX {
            txn.compares.push(Compare::Value(key(index), vec![0xff; each].into()));
            txn.then.push(Operation::put_leased(key(index), vec![0xff; each], registry::LeaseId(u64::MAX)));
            txn.otherwise.push(Operation::put_leased(
                key(index),
                vec![0xff; each],
                registry::LeaseId(u64::MAX),
            ));
        }
        txn.check().unwrap();
        let line = encode(&ClientLine::Request { id: u64::MAX, request: Request::Txn(txn) });
        assert!(line.len() <= LINE_BYTES_MAX, "{}", line.len());
    }

    #[tokio::test]
    async fn a_message_longer_than_a_line_arrives_whole() {
        let entry = |index: usize| KeyValue {
            key: format!("key/\"é\"/{index}"),
            value: "\"\\é".repeat(1000).into(),
            create_revision: Revision(1),
            mod_revision: Revision(2),
            version: 1,
            lease: None,
        };
        let range = registry::Range { revision: Revision(2), entries: (0..2000).map(entry).collect() };
        let message = ServerLine::Answer { id: 3, result: Ok(Answer::Range(range.clone())) };
        let mut bytes = Vec::new();
        write_message(&mut bytes, &message).await.unwrap();
        let longest = bytes.split(|&byte| byte == b'\n').map(<[u8]>::len).max().unwrap();
        assert!(bytes.len() > LINE_BYTES_MAX && longest <= LINE_BYTES_MAX);
        let mut reader = LineReader::new(&bytes[..]);
        let Some(ServerLine::Answer { id: 3, result: Ok(Answer::Range(found)) }) =
            reader.next_message().await.unwrap()
        else {
            panic!("another message")
        };
        assert_eq!(found, range);
        assert!(reader.next_message().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn lines_that_are_too_long_or_cut_are_refused() {
        let long = vec![b'x'; LINE_BYTES_MAX + 1];
        let mut reader = LineReader::new(&long[..]);
        assert!(matches!(reader.next::<ClientLine>().await, Err(LineError::TooLong { .. })));
        let mut reader = LineReader::new(&b"{\"hello\""[..]);
        assert!(matches!(reader.next::<ClientLine>().await, Err(LineError::Cut)));
        let mut reader = LineReader::new(&b"\xff\xfe\n"[..]);
        assert!(matches!(reader.next::<ClientLine>().await, Err(LineError::Malformed { number: 1, .. })));
    }
}
