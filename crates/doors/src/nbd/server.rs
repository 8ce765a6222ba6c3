//! One client's connection, seen from the server.
//!
//! Bytes go in, requests come out; completions go in, in any order, and replies come out. A write's
//! payload is never copied here: a request names where it stands in the bytes handed in, and a payload
//! longer than a piece is handed out piece by piece as it arrives. Long reads are handed out piece by
//! piece too, as earlier pieces are answered.
//!
//! Bounds of one connection, all in [`Limits`]: requests taken in and not answered, and the bytes of
//! their pieces that are out. At a bound it stops consuming, and the client feels it. What this cannot
//! bound is how much was answered and not yet sent: its owner sees that, and calls
//! [`Connection::handle_bytes`] again only when little is left.

use super::Output;
use super::exports::Exports;
use super::in_flight::{Answer, Held, InFlight, PieceId, Plan};
use super::negotiation::{ALLOCATION_CONTEXT_ID, Negotiation, Session, Step};
use super::protocol::{
    EXTENDED_REQUEST_MAGIC, ErrorCode, ExtendedExtentDescriptor, ExtendedRequestHeader, ExtentDescriptor,
    Framing, Hole, OptionHeader, REQUEST_BYTES_MAX, REQUEST_MAGIC, RequestHeader, chunk, command,
    command_flag as flag,
};
use super::reply::{Answered, push_part, push_zeros};
use super::terms::Terms;
use super::vocabulary::{Closed, Extent, Failure, Limits, Operation, ReadPart, Request, Waiting};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// The request size that the server advertises as best, in bytes.
pub const BLOCK_BYTES_PREFERRED: u32 = 4096;
/// The longest read that is answered in one chunk on demand (flag `DF`), in bytes.
pub const UNFRAGMENTED_BYTES_MAX: u32 = 1 << 20;
/// The longest payload of a refused write that is skipped; a longer one ends the connection.
const DISCARD_BYTES_MAX: u64 = 2 * REQUEST_BYTES_MAX as u64;
/// The most extents in one answer to a block status request.
const EXTENTS_MAX: usize = 2048;
/// Of a request without data that has more pieces than this, others are let past.
const PIECES_AT_ONCE_MAX: u32 = 64;
/// What a piece without data counts against the bytes in flight at most, whatever it covers.
const CHARGE_WITHOUT_DATA_BYTES: u64 = 256 << 10;

/// What comes next in the stream of requests.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// A request.
    Header,
    /// Pieces of the request in `slot`, from number `piece` on. No payload is awaited.
    Issue { slot: u16, piece: u32, work: Work },
    /// The payload of the write in `slot`, from piece number `piece` on.
    Payload { slot: u16, piece: u32, durable: bool },
    /// Payload that nobody wants; then the failed write in `slot` can be answered, if it was not yet.
    Discard { remaining: u64, slot: Option<u16> },
}

/// A request's header, however it came.
#[derive(Clone, Copy, Debug)]
struct Asked {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u64,
}

impl Asked {
    /// Reads one, or says how many bytes it has.
    fn read(bytes: &[u8], framing: Framing) -> Result<(Asked, usize), Unread> {
        match framing {
            Framing::Simple | Framing::Structured => {
                let size = size_of::<RequestHeader>();
                let (header, _) = RequestHeader::ref_from_prefix(bytes).map_err(|_| Unread::Short(size))?;
                if header.magic != REQUEST_MAGIC {
                    return Err(Unread::Magic(header.magic.get()));
                }
                let RequestHeader { flags, command, cookie, offset, length, .. } = header;
                let (flags, command) = (flags.get(), command.get());
                let (cookie, offset, length) = (cookie.get(), offset.get(), u64::from(length.get()));
                Ok((Asked { flags, command, cookie, offset, length }, size))
            }
            Framing::Extended => {
                let size = size_of::<ExtendedRequestHeader>();
                let (header, _) =
                    ExtendedRequestHeader::ref_from_prefix(bytes).map_err(|_| Unread::Short(size))?;
                if header.magic != EXTENDED_REQUEST_MAGIC {
                    return Err(Unread::Magic(header.magic.get()));
                }
                let ExtendedRequestHeader { flags, command, cookie, offset, length, .. } = header;
                let (flags, command) = (flags.get(), command.get());
                let (cookie, offset, length) = (cookie.get(), offset.get(), length.get());
                Ok((Asked { flags, command, cookie, offset, length }, size))
            }
        }
    }

    /// Bytes that follow it. QEMU's client (10.0) writes without the flag that says so.
    fn payload_bytes(&self, framing: Framing) -> u64 {
        let is_told = framing == Framing::Extended && self.flags & flag::PAYLOAD_LEN != 0;
        if is_told || self.command == command::WRITE { self.length } else { 0 }
    }
}

/// Why there is no header.
enum Unread {
    /// It has so many bytes.
    Short(usize),
    /// It begins otherwise.
    Magic(u32),
}

/// What pieces without payload are to do.
#[derive(Clone, Copy, Debug)]
enum Work {
    Read,
    Trim,
    WriteZeroes { may_punch: bool, fast: bool },
    Extents { first_only: bool },
}

impl Work {
    /// The same on a piece: where it starts, and how many bytes it has.
    fn on(self, (offset, length): (u64, u64)) -> Operation {
        match self {
            Work::Read => Operation::Read { offset, length: length as usize },
            Work::Trim => Operation::Trim { offset, length },
            Work::WriteZeroes { may_punch, fast } => {
                Operation::WriteZeroes { offset, length, may_punch, fast }
            }
            Work::Extents { first_only } => Operation::Extents { offset, length, first_only },
        }
    }
}

/// What is asked for piece by piece beside all else that comes: zeroing a volume takes a while.
#[derive(Clone, Copy, Debug)]
struct Long {
    export: usize,
    slot: u16,
    /// The next of its pieces.
    piece: u32,
    work: Work,
}

#[derive(Debug)]
enum Phase {
    Negotiating(Negotiation),
    Transmitting(Session, Next),
    /// The client takes leave; what it asked before is still answered.
    Finishing,
    Closed(Closed),
}

/// What a valid request leads to.
enum Verdict {
    /// It is done already.
    Nothing,
    /// To be handed out.
    Issue(Plan, Work),
    /// To be handed out as its payload comes.
    Payload(Plan, bool),
    Disconnect,
}

enum Progress {
    Consumed(usize),
    Wait(Waiting),
}

/// A connection of one NBD client, from the greeting on.
///
/// Call [`Self::handle_bytes`] when bytes came, when a completion came while [`Self::waiting`] said
/// [`Waiting::Completion`] or [`Self::goes_on_by_completions`], when the export settled while it said [`Waiting::Settlement`], and when a send queue
/// that was too long has drained; consume what it says, and
/// do what it pushed before the bytes go away. Complete each request once, at any time, in any order,
/// even after the connection was closed. When [`Self::waiting`] says [`Waiting::Close`], send what is to
/// be sent and close; [`Self::closed`] says why.
///
/// It performs no I/O and reads no clock: a client that stays silent is its owner's to judge, by
/// [`Self::is_negotiating`] and [`Self::in_flight`].
#[derive(Debug)]
pub struct Connection {
    exports: Exports,
    limits: Limits,
    phase: Phase,
    waiting: Waiting,
    in_flight: InFlight,
    bytes_in_flight: u64,
    /// In turns.
    long: VecDeque<Long>,
    shutting_down: bool,
    extents: Vec<(u64, u32)>,
}

impl Connection {
    /// A client connected: greets it.
    ///
    /// # Panics
    /// If a limit is 0, or a piece is below 4 KiB.
    #[must_use]
    pub fn new(exports: Exports, limits: Limits, output: &mut impl Output) -> Connection {
        let negotiation = Negotiation::start(exports.clone(), Terms::Open, output);
        Connection::with(exports, limits, negotiation, size_of::<u32>())
    }

    /// A client that was greeted elsewhere and has encrypted there goes on here, on those terms. Old answers end with zeros if it
    /// wants padding.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn encrypted(exports: Exports, limits: Limits, terms: Terms, padding: bool) -> Connection {
        let negotiation = Negotiation::go_on(exports.clone(), terms, padding);
        Connection::with(exports, limits, negotiation, size_of::<OptionHeader>())
    }

    fn with(exports: Exports, limits: Limits, negotiation: Negotiation, needed: usize) -> Connection {
        assert!(limits.requests_in_flight_max > 0, "a connection serves at least one request");
        assert!(limits.read_piece_bytes.min(limits.write_piece_bytes) >= 4096, "pieces have 4 KiB or more");
        Connection {
            phase: Phase::Negotiating(negotiation),
            exports,
            limits,
            waiting: Waiting::Bytes(needed),
            in_flight: InFlight::default(),
            bytes_in_flight: 0,
            long: VecDeque::new(),
            shutting_down: false,
            extents: Vec::new(),
        }
    }

    /// The export that the client chose, by its place in [`Exports`].
    #[must_use]
    pub fn export(&self) -> Option<usize> {
        match &self.phase {
            Phase::Transmitting(session, _) => Some(session.export),
            _ => None,
        }
    }

    /// Whether no export was chosen yet.
    #[must_use]
    pub fn is_negotiating(&self) -> bool {
        matches!(self.phase, Phase::Negotiating(_))
    }

    /// Whether the client said that it asks for nothing more, and waits for the last answers.
    #[must_use]
    pub fn is_finishing(&self) -> bool {
        matches!(self.phase, Phase::Finishing)
    }

    /// Requests taken in and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.count()
    }

    /// What it needs to go on.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        if self.closed().is_some() { Waiting::Close } else { self.waiting }
    }

    /// Whether a completion has it ask for more, whatever else it waits for.
    #[must_use]
    pub fn goes_on_by_completions(&self) -> bool {
        !self.long.is_empty() || matches!(self.waiting(), Waiting::Completion | Waiting::Close)
    }

    /// Why it is over, if it is.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        match &self.phase {
            Phase::Closed(closed) => Some(closed),
            _ => None,
        }
    }

    /// From now on, refuses what comes with the word that the server is going. What is in flight is
    /// still answered.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Asks for more of what was taken in before, as far as the limits allow: see [`Self::goes_on_by_completions`].
    /// [`Self::handle_bytes`] does it too. None of it is a write or a read.
    pub fn go_on(&mut self, requests: &mut Vec<Request>, output: &mut impl Output) {
        if self.closed().is_none() {
            self.issue_long(requests, output);
        }
    }

    /// Takes in what stands at the front of `bytes`, as far as it is there and the limits allow, and says
    /// how many bytes were consumed. Pushes work to `requests` and replies to `output`. The data ranges of
    /// writes refer to `bytes`.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        requests: &mut Vec<Request>,
        output: &mut impl Output,
    ) -> usize {
        let mut consumed = 0;
        self.go_on(requests, output);
        loop {
            let rest = &bytes[consumed..];
            let progress = match &mut self.phase {
                Phase::Negotiating(negotiation) => match negotiation.step(rest, self.shutting_down, output) {
                    Step::Wait(count) => Progress::Wait(Waiting::Bytes(count)),
                    Step::Settle => Progress::Wait(Waiting::Settlement),
                    Step::Consumed(count) => Progress::Consumed(count),
                    // It is encrypted already, or not to be: who must encrypt does so before it comes here.
                    Step::Encrypt(count) => {
                        self.phase = Phase::Closed(Closed::Aborted);
                        Progress::Consumed(count)
                    }
                    Step::Agreed(count, session) => {
                        self.phase = Phase::Transmitting(session, Next::Header);
                        Progress::Consumed(count)
                    }
                    Step::Closed(count, closed) => {
                        self.phase = Phase::Closed(closed);
                        Progress::Consumed(count)
                    }
                },
                Phase::Transmitting(session, next) => {
                    let (session, next) = (*session, *next);
                    self.transmit(session, next, rest, consumed, requests, output)
                }
                Phase::Finishing => Progress::Wait(Waiting::Completion),
                Phase::Closed(_) => Progress::Wait(Waiting::Close),
            };
            match progress {
                Progress::Consumed(count) => consumed += count,
                Progress::Wait(waiting) => {
                    self.waiting = waiting;
                    return consumed;
                }
            }
        }
    }

    /// Whether the data of a read piece will be kept here until the rest of its request is read, because
    /// the answer goes out in one go. A buffer given for it would be away for as long.
    ///
    /// # Panics
    /// If `id` is not in flight.
    pub fn keeps_data(&mut self, id: PieceId) -> bool {
        let entry = self.in_flight.entry_mut(id.slot);
        entry.plan.answer == Answer::Whole && entry.pieces() > 1
    }

    /// A read piece's data are here. `parts` in order, together as long as the piece.
    ///
    /// # Panics
    /// If they are not, or `id` is not a read in flight.
    pub fn complete_read<'a>(
        &mut self,
        id: PieceId,
        parts: impl IntoIterator<Item = ReadPart<'a>>,
        output: &mut impl Output,
    ) {
        let open = self.closed().is_none();
        let entry = self.in_flight.take_back(id);
        let (offset, length) = entry.piece(id.index);
        let plan = entry.plan;
        let mut total = 0;
        let parts = parts.into_iter().inspect(|part| total += part.length() as u64);
        match plan.answer {
            _ if !open => return,
            Answer::Chunks => {
                let done = entry.is_complete() && entry.failure.is_none();
                plan.answered.push_data_head(offset, length, done, output);
                parts.for_each(|part| push_part(part, output));
            }
            Answer::Whole if entry.pieces() == 1 => {
                plan.answered.push_whole_head(plan.length, output);
                parts.for_each(|part| push_part(part, output));
            }
            Answer::Whole => {
                for (ordinal, part) in parts.enumerate() {
                    entry.hold(id.index, ordinal as u32, part);
                }
            }
            Answer::Acknowledgement | Answer::Extents { .. } => panic!("{id:?} is no read"),
        }
        assert_eq!(total, length, "a read is completed with as many bytes as it asked for");
        self.settle(id, output);
    }

    /// A read piece is all zeros.
    ///
    /// # Panics
    /// If `id` is not a read in flight.
    pub fn complete_hole(&mut self, id: PieceId, output: &mut impl Output) {
        let open = self.closed().is_none();
        let entry = self.in_flight.entry_mut(id.slot);
        let (offset, length) = entry.piece(id.index);
        let is_structured = entry.plan.answered.framing > Framing::Simple;
        let alone = is_structured && entry.plan.answer == Answer::Whole && entry.pieces() == 1;
        if !open || !(alone || entry.plan.answer == Answer::Chunks) {
            return self.complete_read(id, [ReadPart::Zeros(length as usize)], output);
        }
        let entry = self.in_flight.take_back(id);
        let done = entry.is_complete() && entry.failure.is_none();
        let hole = Hole { offset: offset.into(), bytes: (length as u32).into() };
        entry.plan.answered.push_chunk(chunk::OFFSET_HOLE, done, size_of::<Hole>(), output);
        output.inline(hole.as_bytes());
        self.settle(id, output);
    }

    /// A piece of a write, trim or zeroing is done, and durable.
    ///
    /// # Panics
    /// If `id` is none in flight.
    pub fn complete(&mut self, id: PieceId, output: &mut impl Output) {
        let open = self.closed().is_none();
        let entry = self.in_flight.take_back(id);
        assert_eq!(entry.plan.answer, Answer::Acknowledgement, "{id:?} is a write, trim or zeroing");
        if open {
            self.settle(id, output);
        }
    }

    /// The extents asked for, from the start of the range; they may end before its end, but not be none.
    /// More than the protocol can carry are cut.
    ///
    /// # Panics
    /// If there are none, or `id` is no such request in flight.
    pub fn complete_extents(
        &mut self,
        id: PieceId,
        extents: impl IntoIterator<Item = Extent>,
        output: &mut impl Output,
    ) {
        let open = self.closed().is_none();
        let entry = self.in_flight.take_back(id);
        let Answer::Extents { first_only } = entry.plan.answer else { panic!("{id:?} asks for no extents") };
        if !open {
            return;
        }
        let descriptors_max = if first_only { 1 } else { EXTENTS_MAX };
        let mut remaining = entry.plan.length;
        self.extents.clear();
        for extent in extents {
            let length = extent.length.min(remaining);
            remaining -= length;
            let flags = extent.flags();
            let count = self.extents.len();
            match self.extents.last_mut() {
                _ if length == 0 => {}
                Some((last_length, last_flags)) if *last_flags == flags => *last_length += length,
                _ if count == descriptors_max => break,
                _ => self.extents.push((length, flags)),
            }
        }
        assert!(!self.extents.is_empty(), "a range has at least one extent");
        push_extents(entry.plan.answered, &self.extents, output);
        self.settle(id, output);
    }

    /// A piece of any kind failed. The first failure of a request is the one its client sees.
    ///
    /// # Panics
    /// If `id` is not in flight.
    pub fn fail(&mut self, id: PieceId, mut failure: Failure, output: &mut impl Output) {
        let open = self.closed().is_none();
        let entry = self.in_flight.take_back(id);
        let (start, length) = entry.piece(id.index);
        // A volume reports blocks and objects, which may begin before the piece.
        failure.offset = failure.offset.map(|offset| offset.clamp(start, start + length - 1));
        entry.fail(failure);
        if open {
            self.settle(id, output);
        }
    }

    fn transmit(
        &mut self,
        session: Session,
        next: Next,
        bytes: &[u8],
        base: usize,
        requests: &mut Vec<Request>,
        output: &mut impl Output,
    ) -> Progress {
        match next {
            Next::Header => self.header(session, bytes, requests, output),
            Next::Issue { slot, piece, work } => self.issue(session, slot, piece, work, requests, output),
            Next::Payload { slot, piece, durable } => {
                self.payload(session, slot, piece, durable, bytes.len(), base, requests)
            }
            Next::Discard { remaining, slot } => {
                let count = remaining.min(bytes.len() as u64);
                if count == 0 {
                    return Progress::Wait(Waiting::Bytes(1));
                }
                let remaining = remaining - count;
                let next = if remaining > 0 { Next::Discard { remaining, slot } } else { Next::Header };
                self.phase = Phase::Transmitting(session, next);
                if remaining == 0
                    && let Some(slot) = slot
                {
                    self.issued(slot, output);
                }
                Progress::Consumed(count as usize)
            }
        }
    }

    fn header(
        &mut self,
        session: Session,
        bytes: &[u8],
        requests: &mut Vec<Request>,
        output: &mut impl Output,
    ) -> Progress {
        let (asked, size) = match Asked::read(bytes, session.framing) {
            Ok(read) => read,
            Err(Unread::Short(size)) => return Progress::Wait(Waiting::Bytes(size)),
            Err(Unread::Magic(magic)) => {
                self.phase = Phase::Closed(Closed::RequestMagic(magic));
                return Progress::Consumed(0);
            }
        };
        if self.in_flight.count() >= usize::from(self.limits.requests_in_flight_max) {
            return Progress::Wait(Waiting::Completion);
        }
        let answered = Answered { cookie: asked.cookie, offset: asked.offset, framing: session.framing };
        let next = match self.judge(session, &asked, answered) {
            Ok(Verdict::Nothing) => {
                answered.push_done(asked.command == command::READ, output);
                Next::Header
            }
            Ok(Verdict::Issue(plan, work)) => {
                let slot = self.in_flight.insert(plan);
                let is_short = self.in_flight.entry_mut(slot).pieces() <= PIECES_AT_ONCE_MAX;
                if is_short || plan.answer != Answer::Acknowledgement {
                    Next::Issue { slot, piece: 0, work }
                } else {
                    self.long.push_back(Long { export: session.export, slot, piece: 0, work });
                    self.issue_long(requests, output);
                    Next::Header
                }
            }
            Ok(Verdict::Payload(plan, durable)) => {
                Next::Payload { slot: self.in_flight.insert(plan), piece: 0, durable }
            }
            Ok(Verdict::Disconnect) => {
                self.phase = Phase::Finishing;
                self.finish_if_idle();
                return Progress::Consumed(size);
            }
            Err(failure) => {
                let payload = asked.payload_bytes(session.framing);
                if payload > DISCARD_BYTES_MAX {
                    self.phase = Phase::Closed(Closed::PayloadLength(payload));
                    return Progress::Consumed(0);
                }
                answered.push_failure(&failure, output);
                match payload {
                    0 => Next::Header,
                    _ => Next::Discard { remaining: payload, slot: None },
                }
            }
        };
        self.phase = Phase::Transmitting(session, next);
        Progress::Consumed(size)
    }

    /// Checks a request against the protocol, the export and what was agreed on.
    fn judge(&self, session: Session, asked: &Asked, answered: Answered) -> Result<Verdict, Failure> {
        let export = &self.exports.all()[session.export];
        let Asked { flags, command: code, offset, length, .. } = *asked;
        let is_structured = session.framing > Framing::Simple;
        let invalid = |text: String| Err(Failure::new(ErrorCode::Invalid, text));
        if code == command::DISCONNECT {
            return Ok(Verdict::Disconnect);
        }
        if self.shutting_down {
            return Err(Failure::new(ErrorCode::Shutdown, "this server is shutting down"));
        }
        let flags_allowed = match code {
            command::READ if is_structured => flag::FUA | flag::DF,
            command::WRITE if session.framing == Framing::Extended => flag::FUA | flag::PAYLOAD_LEN,
            command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => flag::FUA,
            command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::FUA | flag::REQ_ONE,
            _ => return invalid(format!("this server does not know command {code}")),
        };
        if flags & !flags_allowed != 0 {
            return invalid(format!(
                "command {code} was sent with flags {flags:#x}, which it does not have here"
            ));
        }
        if code == command::FLUSH {
            // Whatever was acknowledged is durable already.
            return if offset == 0 && length == 0 {
                Ok(Verdict::Nothing)
            } else {
                invalid("a flush covers everything: its offset and length are 0".into())
            };
        }
        let writes = matches!(code, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && (export.read_only() || !session.may_write) {
            let text = format!("export {:?} is read-only", export.name());
            return Err(Failure::new(ErrorCode::NotPermitted, text));
        }
        if matches!(code, command::READ | command::WRITE) && length > u64::from(REQUEST_BYTES_MAX) {
            return invalid(format!(
                "{length} bytes in one request are more than the {REQUEST_BYTES_MAX} offered"
            ));
        }
        if code == command::BLOCK_STATUS && (!session.block_status || length == 0) {
            return invalid(
                "block status needs the context base:allocation, and a range that is not empty".into(),
            );
        }
        if offset.checked_add(length).is_none_or(|end| end > export.bytes()) {
            let grows = matches!(code, command::WRITE | command::WRITE_ZEROES);
            let code = if grows { ErrorCode::NoSpace } else { ErrorCode::Invalid };
            let size = export.bytes();
            let text =
                format!("{length} bytes at {offset} reach beyond the end of {:?} at {size}", export.name());
            return Err(Failure::new(code, text));
        }
        let unfragmented = flags & flag::DF != 0;
        if unfragmented && length > u64::from(UNFRAGMENTED_BYTES_MAX) {
            let text =
                format!("at most {UNFRAGMENTED_BYTES_MAX} bytes are read without fragments, not {length}");
            return Err(Failure::new(ErrorCode::Overflow, text));
        }
        // What is read comes from the drives each time: there is nothing to bring nearer.
        if length == 0 || code == command::CACHE {
            return Ok(Verdict::Nothing);
        }
        let mut plan = Plan {
            answered,
            length,
            answer: Answer::Acknowledgement,
            piece_bytes: base::OBJECT_BYTES,
            charge_bytes_max: CHARGE_WITHOUT_DATA_BYTES,
        };
        Ok(match code {
            command::READ => {
                plan.answer = if is_structured && !unfragmented { Answer::Chunks } else { Answer::Whole };
                plan.piece_bytes = u64::from(self.limits.read_piece_bytes);
                plan.charge_bytes_max = u64::MAX;
                Verdict::Issue(plan, Work::Read)
            }
            command::WRITE => {
                plan.piece_bytes = u64::from(self.limits.write_piece_bytes);
                plan.charge_bytes_max = u64::MAX;
                Verdict::Payload(plan, flags & flag::FUA != 0)
            }
            command::TRIM => Verdict::Issue(plan, Work::Trim),
            command::WRITE_ZEROES => {
                let (may_punch, fast) = (flags & flag::NO_HOLE == 0, flags & flag::FAST_ZERO != 0);
                Verdict::Issue(plan, Work::WriteZeroes { may_punch, fast })
            }
            _ => {
                let first_only = flags & flag::REQ_ONE != 0;
                plan.answer = Answer::Extents { first_only };
                plan.piece_bytes = u64::MAX;
                Verdict::Issue(plan, Work::Extents { first_only })
            }
        })
    }

    /// Hands out the next piece of a request without payload.
    fn issue(
        &mut self,
        session: Session,
        slot: u16,
        piece: u32,
        work: Work,
        requests: &mut Vec<Request>,
        output: &mut impl Output,
    ) -> Progress {
        let entry = self.in_flight.entry_mut(slot);
        if entry.failure.is_some() {
            self.phase = Phase::Transmitting(session, Next::Header);
            self.issued(slot, output);
            return Progress::Consumed(0);
        }
        // What is answered in one go is kept until then, so room for all of it comes first; afterwards
        // none of its pieces waits.
        let needed = match (entry.plan.answer, piece) {
            (Answer::Whole, 0) => entry.plan.length,
            (Answer::Whole, _) => 0,
            _ => entry.piece_charge(piece),
        };
        if !self.has_room(needed) {
            return Progress::Wait(Waiting::Completion);
        }
        let operation = work.on(self.in_flight.entry_mut(slot).piece(piece));
        let last = self.hand_out(session.export, slot, piece, operation, requests);
        let next = if last { Next::Header } else { Next::Issue { slot, piece: piece + 1, work } };
        self.phase = Phase::Transmitting(session, next);
        Progress::Consumed(0)
    }

    /// Hands out pieces of requests that have many, one of each in turn. They leave half of the room to what comes meanwhile.
    fn issue_long(&mut self, requests: &mut Vec<Request>, output: &mut impl Output) {
        while let Some(Long { export, slot, piece, work }) = self.long.pop_front() {
            let is_going = self.shutting_down;
            let entry = self.in_flight.entry_mut(slot);
            if is_going {
                entry.fail(Failure::new(ErrorCode::Shutdown, "this server is shutting down"));
            }
            if entry.failure.is_some() {
                self.issued(slot, output);
                continue;
            }
            let (charge, at) = (entry.piece_charge(piece), entry.piece(piece));
            if self.bytes_in_flight > 0 && self.bytes_in_flight + charge > self.limits.bytes_in_flight_max / 2
            {
                return self.long.push_front(Long { export, slot, piece, work });
            }
            if !self.hand_out(export, slot, piece, work.on(at), requests) {
                self.long.push_back(Long { export, slot, piece: piece + 1, work });
            }
        }
    }

    /// Hands out the next piece of a write, once its data are here.
    #[expect(clippy::too_many_arguments, reason = "all of it is the place in the stream")]
    fn payload(
        &mut self,
        session: Session,
        slot: u16,
        piece: u32,
        durable: bool,
        available: usize,
        base: usize,
        requests: &mut Vec<Request>,
    ) -> Progress {
        let entry = self.in_flight.entry_mut(slot);
        let (offset, length) = entry.piece(piece);
        if entry.failure.is_some() {
            let remaining = entry.plan.answered.offset + entry.plan.length - offset;
            self.phase = Phase::Transmitting(session, Next::Discard { remaining, slot: Some(slot) });
            return Progress::Consumed(0);
        }
        if !self.has_room(length) {
            return Progress::Wait(Waiting::Completion);
        }
        let length = length as usize;
        if available < length {
            return Progress::Wait(Waiting::Bytes(length));
        }
        let operation = Operation::Write { offset, data: base..base + length, durable };
        let last = self.hand_out(session.export, slot, piece, operation, requests);
        let next = if last { Next::Header } else { Next::Payload { slot, piece: piece + 1, durable } };
        self.phase = Phase::Transmitting(session, next);
        Progress::Consumed(length)
    }

    fn has_room(&self, bytes: u64) -> bool {
        let used = self.bytes_in_flight;
        bytes == 0 || used == 0 || used + bytes <= self.limits.bytes_in_flight_max
    }

    /// Pushes one piece and counts it; says whether it was its request's last.
    fn hand_out(
        &mut self,
        export: usize,
        slot: u16,
        piece: u32,
        operation: Operation,
        requests: &mut Vec<Request>,
    ) -> bool {
        let id = self.in_flight.issue(slot, piece);
        let entry = self.in_flight.entry_mut(slot);
        let charge = entry.piece_charge(piece);
        entry.charged_bytes += charge;
        self.bytes_in_flight += charge;
        requests.push(Request { id, export, operation });
        entry.issued
    }

    /// No more pieces of a failed request will be handed out.
    fn issued(&mut self, slot: u16, output: &mut impl Output) {
        self.in_flight.entry_mut(slot).issued = true;
        self.answer_if_complete(slot, output);
    }

    /// A piece came back: what it counted is free, unless its data are kept.
    fn settle(&mut self, id: PieceId, output: &mut impl Output) {
        let entry = self.in_flight.entry_mut(id.slot);
        if entry.plan.answer != Answer::Whole {
            let charge = entry.piece_charge(id.index);
            entry.charged_bytes -= charge;
            self.bytes_in_flight -= charge;
        }
        self.answer_if_complete(id.slot, output);
    }

    /// Says the last word on a request whose pieces are all back.
    fn answer_if_complete(&mut self, slot: u16, output: &mut impl Output) {
        let entry = self.in_flight.entry_mut(slot);
        if !entry.is_complete() {
            return;
        }
        let plan = entry.plan;
        if let Some(failure) = &mut entry.failure {
            if !matches!(plan.answer, Answer::Chunks | Answer::Whole) {
                // The protocol knows places of errors for reads above all; some clients refuse others.
                failure.offset = None;
            }
            plan.answered.push_failure(failure, output);
        } else if plan.answer == Answer::Acknowledgement {
            plan.answered.push_done(false, output);
        } else if plan.answer == Answer::Whole && entry.pieces() > 1 {
            plan.answered.push_whole_head(plan.length, output);
            entry.held.sort_unstable_by_key(|(piece, ordinal, _)| (*piece, *ordinal));
            for (_, _, held) in entry.held.drain(..) {
                match held {
                    Held::Shared(buffer, range) => output.shared(buffer, range),
                    Held::Copied(bytes) => output.inline(&bytes),
                    Held::Zeros(count) => push_zeros(count, output),
                }
            }
        }
        self.bytes_in_flight -= std::mem::take(&mut entry.charged_bytes);
        self.in_flight.remove(slot);
        self.finish_if_idle();
    }

    fn finish_if_idle(&mut self) {
        if matches!(self.phase, Phase::Finishing) && self.in_flight.count() == 0 {
            self.phase = Phase::Closed(Closed::Disconnected);
        }
    }
}

/// The answer to a block status request: lengths and flags.
fn push_extents(answered: Answered, extents: &[(u64, u32)], output: &mut impl Output) {
    let context = ALLOCATION_CONTEXT_ID.to_be_bytes();
    if answered.framing == Framing::Extended {
        let bytes = 2 * context.len() + extents.len() * size_of::<ExtendedExtentDescriptor>();
        answered.push_chunk(chunk::BLOCK_STATUS_EXT, true, bytes, output);
        output.inline(&context);
        output.inline(&(extents.len() as u32).to_be_bytes());
        for (length, flags) in extents {
            let flags = u64::from(*flags).into();
            output.inline(ExtendedExtentDescriptor { length: (*length).into(), flags }.as_bytes());
        }
        return;
    }
    let bytes = context.len() + extents.len() * size_of::<ExtentDescriptor>();
    answered.push_chunk(chunk::BLOCK_STATUS, true, bytes, output);
    output.inline(&context);
    for (length, flags) in extents {
        // Such a request has a length of 32 bits, and its extents lie within it.
        let length = (*length as u32).into();
        output.inline(ExtentDescriptor { length, flags: (*flags).into() }.as_bytes());
    }
}
