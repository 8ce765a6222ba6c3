//! A small blocking NBD client, written from the protocol's text alone
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>), so that an error in the server's
//! own reading of it shows.

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A hung server fails a test instead of hanging it. It answers at the time limit of an operation, if it has one.
const TIMEOUT: Duration = Duration::from_secs(180);

const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED_REPLY: u32 = 8;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const CHUNK_DONE: u16 = 1;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_ERROR: u16 = 0x8001;
const CHUNK_ERROR_AT: u16 = 0x8002;

/// Commands, as the protocol numbers them.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
}

/// Error numbers, as the protocol numbers them.
pub mod error {
    pub const IO: u32 = 5;
    pub const NO_SPACE: u32 = 28;
}

/// What the server said of a request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: u32,
    pub message: String,
}

/// The answer to one request.
#[derive(Debug)]
pub struct Reply {
    pub cookie: u64,
    /// The data of a read, nothing of others.
    pub result: std::result::Result<Vec<u8>, Refusal>,
}

struct Pending {
    offset: u64,
    data: Vec<u8>,
    refusal: Option<Refusal>,
}

/// One connection, with structured replies.
pub struct NbdClient {
    stream: UnixStream,
    pending: HashMap<u64, Pending>,
    next_cookie: u64,
    /// The size of the export in bytes.
    pub bytes: u64,
}

impl NbdClient {
    /// Connects and enters transmission.
    pub fn connect(socket: &Path, export: &str) -> Result<NbdClient> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut client = NbdClient { stream, pending: HashMap::new(), next_cookie: 1, bytes: 0 };
        let greeting: [u8; 18] = client.take()?;
        if &greeting[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(broken("greeting"));
        }
        // Fixed newstyle, no zeroes behind the export.
        client.stream.write_all(&3u32.to_be_bytes())?;
        client.option(OPTION_STRUCTURED_REPLY, &[])?;
        if client.option_reply()?.0 != REPLY_ACK {
            return Err(broken("structured replies"));
        }
        let mut go = (export.len() as u32).to_be_bytes().to_vec();
        go.extend_from_slice(export.as_bytes());
        go.extend_from_slice(&0u16.to_be_bytes());
        client.option(OPTION_GO, &go)?;
        loop {
            let (kind, data) = client.option_reply()?;
            match kind {
                REPLY_INFO if data.starts_with(&[0, 0]) && data.len() == 12 => {
                    client.bytes = number(&data[2..10]);
                }
                REPLY_INFO => {}
                REPLY_ACK => return Ok(client),
                _ => return Err(Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
    }

    /// Sends a request and gives its cookie. `length` is that of `payload` for a write.
    pub fn send(&mut self, code: u16, flags: u16, offset: u64, length: u32, payload: &[u8]) -> Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend_from_slice(&flags.to_be_bytes());
        request.extend_from_slice(&code.to_be_bytes());
        request.extend_from_slice(&cookie.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(payload);
        // Poisoned, so that a part of a read that never comes shows.
        let data = if code == command::READ { vec![0xee; length as usize] } else { Vec::new() };
        self.pending.insert(cookie, Pending { offset, data, refusal: None });
        self.stream.write_all(&request)?;
        Ok(cookie)
    }

    /// Waits for the next request that is answered to its end.
    pub fn receive(&mut self) -> Result<Reply> {
        loop {
            let (cookie, over) = match u32::from_be_bytes(self.take()?) {
                0x6744_6698 => self.simple_reply()?,
                0x668e_33ef => self.chunk()?,
                _ => return Err(broken("magic of a reply")),
            };
            if over {
                let pending = self.pending.remove(&cookie).ok_or_else(|| broken("cookie"))?;
                let result = match pending.refusal {
                    Some(refusal) => Err(refusal),
                    None => Ok(pending.data),
                };
                return Ok(Reply { cookie, result });
            }
        }
    }

    fn simple_reply(&mut self) -> Result<(u64, bool)> {
        let code = u32::from_be_bytes(self.take()?);
        let cookie = u64::from_be_bytes(self.take()?);
        let pending = self.pending.get_mut(&cookie).ok_or_else(|| broken("cookie"))?;
        if code != 0 {
            pending.refusal = Some(Refusal { code, message: String::new() });
        } else if !pending.data.is_empty() {
            return Err(broken("a read answered without a chunk"));
        }
        Ok((cookie, true))
    }

    fn chunk(&mut self) -> Result<(u64, bool)> {
        let flags = u16::from_be_bytes(self.take()?);
        let kind = u16::from_be_bytes(self.take()?);
        let cookie = u64::from_be_bytes(self.take()?);
        let length = u32::from_be_bytes(self.take()?) as usize;
        let mut payload = vec![0; length.min(64 << 20)];
        self.stream.read_exact(&mut payload)?;
        let pending = self.pending.get_mut(&cookie).ok_or_else(|| broken("cookie"))?;
        match kind {
            0 => {}
            CHUNK_DATA if length > 8 => pending.place(number(&payload[..8]), &payload[8..])?,
            CHUNK_HOLE if length == 12 => {
                let zeros = vec![0; number(&payload[8..]) as usize];
                pending.place(number(&payload[..8]), &zeros)?;
            }
            CHUNK_ERROR | CHUNK_ERROR_AT if length >= 6 => {
                let end = 6 + number(&payload[4..6]) as usize;
                let text = payload.get(6..end).ok_or_else(|| broken("length of a message"))?;
                let message = String::from_utf8_lossy(text).into_owned();
                pending.refusal = Some(Refusal { code: number(&payload[..4]) as u32, message });
            }
            _ => return Err(broken("chunk")),
        }
        Ok((cookie, flags & CHUNK_DONE != 0))
    }

    /// One request and its answer, with nothing else in flight.
    fn ask(
        &mut self,
        code: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> Result<std::result::Result<Vec<u8>, Refusal>> {
        let cookie = self.send(code, 0, offset, length, payload)?;
        let reply = self.receive()?;
        assert_eq!(reply.cookie, cookie, "the answer is to another request");
        Ok(reply.result)
    }

    /// Reads.
    #[track_caller]
    pub fn read(&mut self, offset: u64, length: u32) -> std::result::Result<Vec<u8>, Refusal> {
        self.ask(command::READ, offset, length, &[]).expect("the connection holds")
    }

    /// Writes.
    #[track_caller]
    pub fn write(&mut self, offset: u64, data: &[u8]) -> std::result::Result<(), Refusal> {
        let length = data.len() as u32;
        self.ask(command::WRITE, offset, length, data).expect("the connection holds").map(drop)
    }

    /// Trims.
    #[track_caller]
    pub fn trim(&mut self, offset: u64, length: u32) -> std::result::Result<(), Refusal> {
        self.ask(command::TRIM, offset, length, &[]).expect("the connection holds").map(drop)
    }

    /// Flushes.
    #[track_caller]
    pub fn flush(&mut self) -> std::result::Result<(), Refusal> {
        self.ask(command::FLUSH, 0, 0, &[]).expect("the connection holds").map(drop)
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Result<()> {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes)
    }

    fn option_reply(&mut self) -> Result<(u32, Vec<u8>)> {
        let header: [u8; 20] = self.take()?;
        if number(&header[..8]) != 0x0003_e889_0455_65a9 {
            return Err(broken("reply to an option"));
        }
        let mut data = vec![0; (number(&header[16..]) as usize).min(64 << 10)];
        self.stream.read_exact(&mut data)?;
        Ok((number(&header[12..16]) as u32, data))
    }

    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT]> {
        let mut bytes = [0; COUNT];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Pending {
    fn place(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let outside = || broken("offset of a chunk");
        let start = offset.checked_sub(self.offset).ok_or_else(outside)? as usize;
        self.data.get_mut(start..start + bytes.len()).ok_or_else(outside)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// A big-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the server broke the protocol: {what}"))
}
