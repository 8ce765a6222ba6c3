//! The other side: one connection to an NBD server, ours or another's, for benchmarks and tests.
//!
//! Read data are not collected: each run that arrives is an event that says where it stands in the bytes
//! handed in. What the server says is judged as strictly as what clients say; a server that breaks the
//! protocol ends the connection with a reason.

use super::Output;
use super::protocol::{
    BlockSizeInformation, CHUNK_MAGIC, ChunkHeader, EXTENDED_CHUNK_MAGIC, EXTENDED_REQUEST_MAGIC, ErrorCode,
    ExportInformation, ExtendedChunkHeader, ExtendedRequestHeader, Framing, GREETING_MAGIC, Greeting,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, REQUEST_BYTES_MAX, REQUEST_MAGIC,
    RequestHeader, SIMPLE_REPLY_MAGIC, SimpleReply, chunk, command, command_flag, handshake_flag,
    information, option, option_reply,
};
use super::vocabulary::Failure;
use base::Buffer;
use std::ops::Range;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// The longest reply to an option, and the longest chunk without data, in bytes.
const REPLY_BYTES_MAX: usize = 16 << 10;
/// The most parts of a read, with gaps between them, that came before the rest.
const PARTS_MAX: usize = 32;

/// What the server said of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its size in bytes.
    pub bytes: u64,
    /// Of [`super::protocol::transmission_flag`].
    pub flags: u16,
    /// Requests are multiples of this many bytes.
    pub request_bytes_min: u32,
    /// Requests of multiples of this many bytes are best.
    pub request_bytes_preferred: u32,
    /// The longest payload of a request in bytes.
    pub request_bytes_max: u32,
    /// How requests and replies travel.
    pub framing: Framing,
}

/// What happened on a connection. Tokens are those given with the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// Requests can be sent from now on.
    Connected(ExportInfo),
    /// A part of a read's data came.
    Data {
        /// Of the read.
        token: u64,
        /// Where the data stand in the export.
        offset: u64,
        /// Where they stand in the bytes handed in.
        data: Range<usize>,
    },
    /// A part of a read is zeros.
    Hole {
        /// Of the read.
        token: u64,
        /// Where the zeros stand in the export.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// A request was answered to its end.
    Done {
        /// Of the request.
        token: u64,
        /// Whether it worked. If a read did not, what came of it before may be wrong.
        result: Result<(), Failure>,
    },
}

/// Why a connection is of no more use.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// Somebody else listens there.
    #[error("the server greeted with {0:#018x}; it does not speak NBD, check the address")]
    NotNbd(u64),
    /// Too old.
    #[error("the server is too old: it does not offer the fixed newstyle of the NBD protocol")]
    TooOld,
    /// It did not give the export.
    #[error("the server refused export {export:?}: {message}")]
    Refused {
        /// The one asked for.
        export: String,
        /// The server's words, or its error number.
        message: String,
    },
    /// It said what makes no sense.
    #[error("the server broke the NBD protocol: {0}")]
    Broken(String),
}

/// A request that was sent and not yet answered.
#[derive(Debug, Default)]
struct Pending {
    token: u64,
    generation: u32,
    used: bool,
    reads: bool,
    offset: u64,
    length: u64,
    /// Bytes of a read that did not come yet.
    missing: u64,
    /// Where those stand in the export that came in chunks: parts that do not touch, in order.
    came: Vec<Range<u64>>,
    failure: Option<Failure>,
}

/// What comes next in the stream of replies.
#[derive(Clone, Copy, Debug)]
enum Next {
    Header,
    Data(Run),
}

/// Data of the read in `slot`; behind them its reply is over, or not.
#[derive(Clone, Copy, Debug)]
struct Run {
    slot: usize,
    offset: u64,
    remaining: u64,
    done: bool,
}

#[derive(Debug)]
enum Phase {
    Greeting,
    /// Asked for a framing.
    Asking,
    /// Asked for the export.
    Going(ExportInfo),
    Ready(Next),
    Closed(ClientError),
}

/// One connection to an NBD server.
///
/// Give it what comes with [`Self::handle_bytes`]; after [`ClientEvent::Connected`], send requests, each
/// with a token of your own; [`Self::closed`] says when and why it is over. How many requests are in
/// flight is the caller's to bound.
#[derive(Debug)]
pub struct Client {
    export: String,
    phase: Phase,
    pending: Vec<Pending>,
    free: Vec<usize>,
    /// How requests and replies are to travel: first as wanted, then as agreed.
    framing: Framing,
}

impl Client {
    /// A connection to the export of that name; empty means the server's default. Where the server does not know the framing
    /// that is `wanted`, it is the next simpler one.
    #[must_use]
    pub fn new(export: impl Into<String>, wanted: Framing) -> Client {
        Client {
            export: export.into(),
            phase: Phase::Greeting,
            pending: Vec::new(),
            free: Vec::new(),
            framing: wanted,
        }
    }

    /// Whether requests can be sent.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready(_))
    }

    /// Requests sent and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Why it is over, if it is.
    #[must_use]
    pub fn closed(&self) -> Option<&ClientError> {
        match &self.phase {
            Phase::Closed(error) => Some(error),
            _ => None,
        }
    }

    /// Takes in what stands at the front of `bytes` and says how many bytes were consumed. Room for
    /// 17 KiB in the inbox is enough. The data ranges of events refer to `bytes`.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<ClientEvent>,
        output: &mut impl Output,
    ) -> usize {
        let mut consumed = 0;
        loop {
            let rest = &bytes[consumed..];
            let result = match self.phase {
                Phase::Greeting => self.greeting(rest, output),
                Phase::Asking | Phase::Going(_) => self.option_reply(rest, events, output),
                Phase::Ready(Next::Header) => self.reply(rest, events),
                Phase::Ready(Next::Data(run)) => self.data(run, rest.len(), consumed, events),
                Phase::Closed(_) => return consumed,
            };
            match result {
                Ok(Some(count)) => consumed += count,
                Ok(None) => return consumed,
                Err(error) => self.phase = Phase::Closed(error),
            }
        }
    }

    /// Sends a read.
    ///
    /// # Panics
    /// Like all requests, if the client is not ready.
    pub fn read(&mut self, token: u64, offset: u64, length: u32, output: &mut impl Output) {
        self.request(token, command::READ, 0, offset, length.into(), output);
    }

    /// Sends a write of `range` of `buffer`, without copying it.
    ///
    /// # Panics
    /// If the range has more bytes than a length of 32 bits says.
    pub fn write(
        &mut self,
        token: u64,
        offset: u64,
        buffer: Buffer,
        range: Range<usize>,
        durable: bool,
        output: &mut impl Output,
    ) {
        let length = u32::try_from(range.len()).expect("a write is within the server's longest request");
        let flags = if durable { command_flag::FUA } else { 0 };
        self.request(token, command::WRITE, flags, offset, length.into(), output);
        output.shared(buffer, range);
    }

    /// Sends a flush.
    pub fn flush(&mut self, token: u64, output: &mut impl Output) {
        self.request(token, command::FLUSH, 0, 0, 0, output);
    }

    /// Sends a trim.
    ///
    /// # Panics
    /// If it is of more bytes than a length of 32 bits says, without extended headers.
    pub fn trim(&mut self, token: u64, offset: u64, length: u64, output: &mut impl Output) {
        self.request(token, command::TRIM, 0, offset, length, output);
    }

    /// Sends a zeroing.
    ///
    /// # Panics
    /// As [`Self::trim`].
    pub fn write_zeroes(
        &mut self,
        token: u64,
        offset: u64,
        length: u64,
        may_punch: bool,
        output: &mut impl Output,
    ) {
        let flags = if may_punch { 0 } else { command_flag::NO_HOLE };
        self.request(token, command::WRITE_ZEROES, flags, offset, length, output);
    }

    /// Takes leave. The server closes the connection when all is answered.
    pub fn disconnect(&mut self, output: &mut impl Output) {
        assert!(self.is_ready(), "leave is taken of a server that was reached");
        self.push_request(command::DISCONNECT, 0, 0, 0, 0, output);
    }

    fn request(
        &mut self,
        token: u64,
        code: u16,
        flags: u16,
        offset: u64,
        length: u64,
        output: &mut impl Output,
    ) {
        assert!(self.is_ready(), "a request is sent once the server gave the export");
        let reads = code == command::READ;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pending.push(Pending::default());
            self.pending.len() - 1
        });
        let pending = &mut self.pending[slot];
        let missing = if reads { length } else { 0 };
        let generation = pending.generation.wrapping_add(1);
        let mut came = std::mem::take(&mut pending.came);
        came.clear();
        *pending =
            Pending { token, generation, used: true, reads, offset, length, missing, came, failure: None };
        let cookie = u64::from(generation) << 32 | slot as u64;
        self.push_request(code, flags, cookie, offset, length, output);
    }

    fn push_request(
        &self,
        command: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        length: u64,
        output: &mut impl Output,
    ) {
        let (cookie, offset) = (cookie.into(), offset.into());
        if self.framing == Framing::Extended {
            let payload = if command == command::WRITE { command_flag::PAYLOAD_LEN } else { 0 };
            let (magic, flags) = (EXTENDED_REQUEST_MAGIC.into(), (flags | payload).into());
            let (command, length) = (command.into(), length.into());
            let header = ExtendedRequestHeader { magic, flags, command, cookie, offset, length };
            return output.inline(header.as_bytes());
        }
        let length = u32::try_from(length).expect("a longer request needs extended headers").into();
        let (magic, flags, command) = (REQUEST_MAGIC.into(), flags.into(), command.into());
        output.inline(RequestHeader { magic, flags, command, cookie, offset, length }.as_bytes());
    }

    fn greeting(&mut self, bytes: &[u8], output: &mut impl Output) -> Result<Option<usize>, ClientError> {
        // An older server's greeting is longer, so its first words decide.
        let Ok((greeting, _)) = Greeting::ref_from_prefix(bytes) else { return Ok(None) };
        if greeting.magic != GREETING_MAGIC {
            return Err(ClientError::NotNbd(greeting.magic.get()));
        }
        let flags = greeting.flags.get();
        if greeting.option_magic != OPTION_MAGIC || flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(ClientError::TooOld);
        }
        let known = flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        output.inline(&u32::from(known).to_be_bytes());
        self.ask(self.framing, output);
        Ok(Some(size_of::<Greeting>()))
    }

    /// Asks for a framing, if it has to be asked for, or for the export.
    fn ask(&mut self, framing: Framing, output: &mut impl Output) {
        self.framing = framing;
        let Some(option) = option_of(framing) else { return self.go(output) };
        push_option(option, &[], output);
        self.phase = Phase::Asking;
    }

    fn go(&mut self, output: &mut impl Output) {
        let name_bytes = (self.export.len() as u32).to_be_bytes();
        let count = 1u16.to_be_bytes();
        let wanted = information::BLOCK_SIZE.to_be_bytes();
        push_option(option::GO, &[&name_bytes, self.export.as_bytes(), &count, &wanted], output);
        self.phase = Phase::Going(ExportInfo {
            bytes: 0,
            flags: 0,
            request_bytes_min: 1,
            request_bytes_preferred: 4096,
            request_bytes_max: REQUEST_BYTES_MAX,
            framing: self.framing,
        });
    }

    fn option_reply(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<ClientEvent>,
        output: &mut impl Output,
    ) -> Result<Option<usize>, ClientError> {
        let Ok((header, rest)) = OptionReplyHeader::ref_from_prefix(bytes) else { return Ok(None) };
        let (kind, length) = (header.kind.get(), header.length.get() as usize);
        if header.magic != OPTION_REPLY_MAGIC || length > REPLY_BYTES_MAX {
            return Err(broken(format!("{header:?} is no reply to an option")));
        }
        let Some(data) = rest.get(..length) else { return Ok(None) };
        let failed = kind & option_reply::ERROR_BIT != 0;
        match &mut self.phase {
            Phase::Asking if option_of(self.framing) == Some(header.option.get()) => match kind {
                option_reply::ACK => self.go(output),
                _ if failed && self.framing == Framing::Extended => self.ask(Framing::Structured, output),
                _ if failed => self.ask(Framing::Simple, output),
                _ => return Err(broken(format!("a framing was answered with {kind}"))),
            },
            Phase::Going(info) if header.option == option::GO => match kind {
                option_reply::INFO => inform(info, data)?,
                option_reply::ACK if info.flags != 0 => {
                    events.push(ClientEvent::Connected(*info));
                    self.phase = Phase::Ready(Next::Header);
                }
                option_reply::ACK => return Err(broken("the export was given without its size".into())),
                _ if failed => {
                    let message = match data {
                        [] => format!("error {}", kind & !option_reply::ERROR_BIT),
                        text => String::from_utf8_lossy(text).into_owned(),
                    };
                    return Err(ClientError::Refused { export: self.export.clone(), message });
                }
                _ => return Err(broken(format!("the export was answered with {kind}"))),
            },
            _ => return Err(broken(format!("a reply to option {}, not asked for", header.option))),
        }
        Ok(Some(size_of::<OptionReplyHeader>() + length))
    }

    fn reply(&mut self, bytes: &[u8], events: &mut Vec<ClientEvent>) -> Result<Option<usize>, ClientError> {
        let Ok((magic, _)) = U32::read_from_prefix(bytes) else { return Ok(None) };
        match (magic.get(), self.framing) {
            (SIMPLE_REPLY_MAGIC, Framing::Simple | Framing::Structured) => self.simple_reply(bytes, events),
            (CHUNK_MAGIC, Framing::Structured) | (EXTENDED_CHUNK_MAGIC, Framing::Extended) => {
                self.chunk(bytes, events)
            }
            (SIMPLE_REPLY_MAGIC | CHUNK_MAGIC | EXTENDED_CHUNK_MAGIC, _) => {
                Err(broken("a reply came in a way that was not agreed on".into()))
            }
            (other, _) => Err(broken(format!("a reply began with {other:#010x}"))),
        }
    }

    fn simple_reply(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<ClientEvent>,
    ) -> Result<Option<usize>, ClientError> {
        let Ok((reply, _)) = SimpleReply::ref_from_prefix(bytes) else { return Ok(None) };
        let slot = self.slot(reply.cookie.get())?;
        let pending = &mut self.pending[slot];
        if reply.error != 0 {
            let code = ErrorCode::from_wire(reply.error.get());
            pending.failure = Some(Failure::new(code, ""));
            self.finish(slot, events)?;
        } else if pending.missing > 0 {
            if self.framing == Framing::Structured {
                return Err(broken("a read was answered without a chunk, but chunks were agreed on".into()));
            }
            let (offset, remaining) = (pending.offset, pending.length);
            pending.missing = 0;
            self.phase = Phase::Ready(Next::Data(Run { slot, offset, remaining, done: true }));
        } else {
            self.finish(slot, events)?;
        }
        Ok(Some(size_of::<SimpleReply>()))
    }

    fn chunk(&mut self, bytes: &[u8], events: &mut Vec<ClientEvent>) -> Result<Option<usize>, ClientError> {
        let Some(Chunk { flags, kind, cookie, offset, length, header_bytes }) = self.chunk_header(bytes)
        else {
            return Ok(None);
        };
        let payload = &bytes[header_bytes..];
        let slot = self.slot(cookie)?;
        let done = flags & chunk::DONE != 0;
        let pending = &mut self.pending[slot];
        if let Some(offset) = offset.filter(|offset| *offset != pending.offset) {
            return Err(broken(format!("a chunk names {offset}, of a request at {}", pending.offset)));
        }
        let malformed = || broken(format!("a chunk of kind {kind} with {length} bytes makes no sense here"));
        if kind == chunk::OFFSET_DATA && pending.reads && length > size_of::<u64>() {
            let Ok((offset, _)) = U64::read_from_prefix(payload) else { return Ok(None) };
            let (offset, remaining) = (offset.get(), (length - size_of::<u64>()) as u64);
            pending.arrive(offset, remaining)?;
            self.phase = Phase::Ready(Next::Data(Run { slot, offset, remaining, done }));
            return Ok(Some(header_bytes + size_of::<u64>()));
        }
        if length > REPLY_BYTES_MAX {
            return Err(malformed());
        }
        let Some(payload) = payload.get(..length) else { return Ok(None) };
        match kind {
            chunk::NONE if done && length == 0 => {}
            chunk::OFFSET_HOLE if pending.reads => {
                let Some((offset, length)) = parse_hole(payload) else { return Err(malformed()) };
                let token = pending.token;
                pending.arrive(offset, length)?;
                events.push(ClientEvent::Hole { token, offset, length });
            }
            _ if kind & chunk::ERROR_BIT != 0 => {
                let failure = parse_failure(kind, payload).ok_or_else(malformed)?;
                pending.failure.get_or_insert(failure);
            }
            _ => return Err(malformed()),
        }
        if done {
            self.finish(slot, events)?;
        }
        Ok(Some(header_bytes + length))
    }

    /// The front of a chunk, if all of it is there.
    fn chunk_header(&self, bytes: &[u8]) -> Option<Chunk> {
        if self.framing == Framing::Extended {
            let (header, _) = ExtendedChunkHeader::read_from_prefix(bytes).ok()?;
            let ExtendedChunkHeader { flags, kind, cookie, offset, length, .. } = header;
            // One that is longer than can be is refused for that.
            let length = usize::try_from(length.get()).unwrap_or(usize::MAX);
            let (flags, kind, cookie, offset) = (flags.get(), kind.get(), cookie.get(), Some(offset.get()));
            return Some(Chunk { flags, kind, cookie, offset, length, header_bytes: size_of_val(&header) });
        }
        let (header, _) = ChunkHeader::read_from_prefix(bytes).ok()?;
        let ChunkHeader { flags, kind, cookie, length, .. } = header;
        let (flags, kind, cookie, length) = (flags.get(), kind.get(), cookie.get(), length.get() as usize);
        Some(Chunk { flags, kind, cookie, offset: None, length, header_bytes: size_of_val(&header) })
    }

    fn data(
        &mut self,
        run: Run,
        available: usize,
        base: usize,
        events: &mut Vec<ClientEvent>,
    ) -> Result<Option<usize>, ClientError> {
        let Run { slot, offset, remaining, done } = run;
        let count = remaining.min(available as u64);
        if count == 0 {
            return Ok(None);
        }
        let data = base..base + count as usize;
        events.push(ClientEvent::Data { token: self.pending[slot].token, offset, data });
        let (offset, remaining) = (offset + count, remaining - count);
        if remaining > 0 {
            self.phase = Phase::Ready(Next::Data(Run { slot, offset, remaining, done }));
        } else {
            self.phase = Phase::Ready(Next::Header);
            // The data were told of, so they count as consumed even if it ends here.
            if done && let Err(error) = self.finish(slot, events) {
                self.phase = Phase::Closed(error);
            }
        }
        Ok(Some(count as usize))
    }

    /// The request that a reply names.
    fn slot(&self, cookie: u64) -> Result<usize, ClientError> {
        let (slot, generation) = (cookie as u32 as usize, (cookie >> 32) as u32);
        match self.pending.get(slot) {
            Some(pending) if pending.used && pending.generation == generation => Ok(slot),
            _ => Err(broken(format!("a reply to request {cookie:#x}, which was not sent"))),
        }
    }

    fn finish(&mut self, slot: usize, events: &mut Vec<ClientEvent>) -> Result<(), ClientError> {
        let pending = &mut self.pending[slot];
        let result = match pending.failure.take() {
            Some(failure) => Err(failure),
            None if pending.missing > 0 => {
                return Err(broken(format!("{} bytes of a read never came", pending.missing)));
            }
            None => Ok(()),
        };
        pending.used = false;
        self.free.push(slot);
        events.push(ClientEvent::Done { token: pending.token, result });
        Ok(())
    }
}

/// The front of a chunk, however it came.
struct Chunk {
    flags: u16,
    kind: u16,
    cookie: u64,
    /// Where its request starts, if it says so.
    offset: Option<u64>,
    length: usize,
    header_bytes: usize,
}

/// By which option a framing is asked for.
fn option_of(framing: Framing) -> Option<u32> {
    match framing {
        Framing::Simple => None,
        Framing::Structured => Some(option::STRUCTURED_REPLY),
        Framing::Extended => Some(option::EXTENDED_HEADERS),
    }
}

impl Pending {
    /// Counts data of a read, which lie within what was asked for and come once.
    fn arrive(&mut self, offset: u64, length: u64) -> Result<(), ClientError> {
        let is_asked = |end: &u64| offset >= self.offset && *end <= self.offset + self.length && length > 0;
        let Some(end) = offset.checked_add(length).filter(is_asked) else {
            return Err(broken(format!("{length} bytes at {offset} came, which were not asked for")));
        };
        let first = self.came.partition_point(|part| part.end < offset);
        let touched = self.came[first..].iter().take_while(|part| part.start <= end).count();
        let touched = first..first + touched;
        let parts = &self.came[touched.clone()];
        if parts.iter().any(|part| part.start < end && offset < part.end) {
            return Err(broken(format!("of {length} bytes at {offset} some came twice")));
        }
        let start = parts.first().map_or(offset, |part| part.start.min(offset));
        let end = parts.last().map_or(end, |part| part.end.max(end));
        self.came.splice(touched, std::iter::once(start..end));
        if self.came.len() > PARTS_MAX {
            return Err(broken(format!("a read came in more than {PARTS_MAX} parts with gaps between them")));
        }
        self.missing -= length;
        Ok(())
    }
}

fn broken(what: String) -> ClientError {
    ClientError::Broken(what)
}

fn push_option(code: u32, parts: &[&[u8]], output: &mut impl Output) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header =
        OptionHeader { magic: OPTION_MAGIC.into(), option: code.into(), length: (length as u32).into() };
    output.inline(header.as_bytes());
    for part in parts {
        output.inline(part);
    }
}

/// Takes in one fact about the export; unknown facts are nobody's loss.
fn inform(info: &mut ExportInfo, data: &[u8]) -> Result<(), ClientError> {
    let kind = U16::read_from_prefix(data).map(|(kind, _)| kind.get());
    match kind {
        Ok(information::EXPORT) => {
            let fact = ExportInformation::read_from_bytes(data)
                .map_err(|_| broken(format!("the size of the export has {} bytes", data.len())))?;
            (info.bytes, info.flags) = (fact.export.bytes.get(), fact.export.flags.get());
        }
        Ok(information::BLOCK_SIZE) => {
            let fact = BlockSizeInformation::read_from_bytes(data)
                .map_err(|_| broken(format!("the block size has {} bytes", data.len())))?;
            info.request_bytes_min = fact.bytes_min.get().max(1);
            info.request_bytes_preferred = fact.bytes_preferred.get().max(1);
            info.request_bytes_max = fact.bytes_max.get();
        }
        Ok(_) => {}
        Err(_) => return Err(broken("a fact about the export has no kind".into())),
    }
    Ok(())
}

/// Offset and length of a hole chunk, or `None` if it has another size.
fn parse_hole(payload: &[u8]) -> Option<(u64, u64)> {
    let (offset, rest) = U64::read_from_prefix(payload).ok()?;
    Some((offset.get(), u64::from(U32::read_from_bytes(rest).ok()?.get())))
}

/// The content of an error chunk, or `None` if its lengths are wrong.
fn parse_failure(kind: u16, payload: &[u8]) -> Option<Failure> {
    let (error, rest) = U32::read_from_prefix(payload).ok()?;
    let (message_bytes, rest) = U16::read_from_prefix(rest).ok()?;
    let (message, rest) = rest.split_at_checked(usize::from(message_bytes.get()))?;
    let offset = match kind {
        chunk::ERROR_OFFSET => Some(U64::read_from_bytes(rest).ok()?.get()),
        _ => None,
    };
    let code = ErrorCode::from_wire(error.get());
    Some(Failure { code, offset, message: String::from_utf8_lossy(message).into_owned() })
}
