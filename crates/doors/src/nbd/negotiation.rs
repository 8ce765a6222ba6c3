//! What client and server agree on before the first read or write: fixed newstyle.
//!
//! Bounds: an option has at most [`OPTION_BYTES_MAX`] bytes of data (a longer one is skipped and refused,
//! a much longer one ends the connection); a connection has at most [`OPTIONS_MAX`] options and some per
//! export, and gets at most [`REPLY_BYTES_MAX`] bytes of replies to them.

use super::exports::Exports;
use super::protocol::{
    ALLOCATION_CONTEXT, BlockSizeInformation, ExportInformation, ExportSize, Framing, GREETING_MAGIC,
    Greeting, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, PADDING_BYTES,
    REQUEST_BYTES_MAX, handshake_flag, information, option, option_reply as reply,
};
use super::server::BLOCK_BYTES_PREFERRED;
use super::terms::{Admittance, Terms};
use super::vocabulary::Closed;
use super::{Output, protocol};
use zerocopy::{FromBytes, IntoBytes};

/// The longest data of an option that is read. Names have 4 KiB at most.
pub(super) const OPTION_BYTES_MAX: usize = 16 << 10;
/// The longest data of an option that is skipped.
const OPTION_SKIP_BYTES_MAX: usize = 1 << 20;
/// Options of one connection, beside [`OPTIONS_PER_EXPORT`].
const OPTIONS_MAX: usize = 256;
/// Some tools describe every export on one connection.
const OPTIONS_PER_EXPORT: usize = 8;
/// Bytes of replies to the options of one connection.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// The number of [`ALLOCATION_CONTEXT`] in replies about it.
pub(super) const ALLOCATION_CONTEXT_ID: u32 = 1;

/// What was agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The export chosen.
    pub export: usize,
    /// How requests and replies travel.
    pub framing: Framing,
    /// `BLOCK_STATUS` may be asked.
    pub block_status: bool,
    /// The client may write, if the export is written to.
    pub may_write: bool,
}

/// What one call of [`Negotiation::step`] came to.
pub(super) enum Step {
    /// This many bytes must be there before the next step.
    Wait(usize),
    /// So many bytes are done with.
    Consumed(usize),
    /// The export that was chosen settles. The same bytes are to come again when it has.
    Settle,
    /// So many bytes are done with, and the client encrypts from here on.
    Encrypt(usize),
    /// So many bytes are done with, and requests follow.
    Agreed(usize, Session),
    /// It is over.
    Closed(usize, Closed),
}

/// What comes next.
#[derive(Debug)]
enum Stage {
    /// The client's flags.
    Flags,
    /// An option.
    Options,
    /// Data of an option that is too long.
    Skip { option: u32, remaining: usize },
}

/// A connection before its first request.
#[derive(Debug)]
pub(super) struct Negotiation {
    exports: Exports,
    terms: Terms,
    stage: Stage,
    padding: bool,
    framing: Framing,
    /// The export for which block status was negotiated.
    block_status: Option<usize>,
    options: usize,
    reply_bytes: usize,
}

impl Negotiation {
    /// Greets the client.
    pub fn start(exports: Exports, terms: Terms, output: &mut impl Output) -> Negotiation {
        let greeting = Greeting {
            magic: GREETING_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).into(),
        };
        output.inline(greeting.as_bytes());
        Negotiation {
            exports,
            terms,
            stage: Stage::Flags,
            padding: true,
            framing: Framing::Simple,
            block_status: None,
            options: 0,
            reply_bytes: 0,
        }
    }

    /// Goes on with a client that was greeted and has encrypted since: nothing else was agreed on.
    pub fn go_on(exports: Exports, terms: Terms, padding: bool) -> Negotiation {
        Negotiation {
            exports,
            terms,
            stage: Stage::Options,
            padding,
            framing: Framing::Simple,
            block_status: None,
            options: 0,
            reply_bytes: 0,
        }
    }

    /// Whether the client wants old answers to end with zeros.
    pub fn padding(&self) -> bool {
        self.padding
    }

    /// Handles the one unit at the front of `bytes`, if it is there as a whole.
    pub fn step(&mut self, bytes: &[u8], shutting_down: bool, output: &mut impl Output) -> Step {
        match self.stage {
            Stage::Flags => self.client_flags(bytes),
            Stage::Skip { option, remaining } => {
                let count = remaining.min(bytes.len());
                if count == 0 {
                    return Step::Wait(1);
                }
                self.stage = Stage::Skip { option, remaining: remaining - count };
                if remaining == count {
                    let text = format!("an option has at most {OPTION_BYTES_MAX} bytes of data");
                    self.reply(output, option, reply::ERR_TOO_BIG, &[text.as_bytes()]);
                    self.stage = Stage::Options;
                }
                Step::Consumed(count)
            }
            Stage::Options => {
                let Ok((header, rest)) = OptionHeader::ref_from_prefix(bytes) else {
                    return Step::Wait(size_of::<OptionHeader>());
                };
                let (code, length) = (header.option.get(), header.length.get() as usize);
                if header.magic != OPTION_MAGIC {
                    return Step::Closed(0, Closed::OptionMagic(header.magic.get()));
                }
                let allowed = OPTIONS_MAX + OPTIONS_PER_EXPORT * self.exports.all().len();
                if self.options == allowed || self.reply_bytes > REPLY_BYTES_MAX {
                    return Step::Closed(0, Closed::TooManyOptions(self.options));
                }
                if length > OPTION_BYTES_MAX {
                    if length > OPTION_SKIP_BYTES_MAX || code == option::EXPORT_NAME {
                        return Step::Closed(0, Closed::OptionLength { option: code, bytes: length });
                    }
                    self.options += 1;
                    self.stage = Stage::Skip { option: code, remaining: length };
                    return Step::Consumed(size_of::<OptionHeader>());
                }
                let Some(data) = rest.get(..length) else {
                    return Step::Wait(size_of::<OptionHeader>() + length);
                };
                if !shutting_down && self.must_settle(code, data) {
                    return Step::Settle;
                }
                self.options += 1;
                self.option(code, data, shutting_down, output)
            }
        }
    }

    /// Whether an option chooses an export that nobody can begin to use now.
    fn must_settle(&self, code: u32, data: &[u8]) -> bool {
        let name = match code {
            option::EXPORT_NAME => Some(data),
            option::GO => Fields(data).string(),
            _ => None,
        };
        let export = name.and_then(|name| self.known(name));
        export.is_some_and(|export| self.exports.all()[export].is_settling())
    }

    fn client_flags(&mut self, bytes: &[u8]) -> Step {
        let Ok((flags, _)) = zerocopy::big_endian::U32::read_from_prefix(bytes) else {
            return Step::Wait(size_of::<u32>());
        };
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags.get() & !known != 0 {
            return Step::Closed(0, Closed::ClientFlags(flags.get()));
        }
        self.padding = flags.get() & u32::from(handshake_flag::NO_ZEROES) == 0;
        self.stage = Stage::Options;
        Step::Consumed(size_of::<u32>())
    }

    fn option(&mut self, code: u32, data: &[u8], shutting_down: bool, output: &mut impl Output) -> Step {
        let consumed = size_of::<OptionHeader>() + data.len();
        if code == option::ABORT {
            self.reply(output, code, reply::ACK, &[]);
            return Step::Closed(consumed, Closed::Aborted);
        }
        if code == option::EXPORT_NAME {
            return self.export_name(consumed, data, shutting_down, output);
        }
        if shutting_down {
            self.refuse(output, code, reply::ERR_SHUTDOWN, "this server is shutting down");
            return Step::Consumed(consumed);
        }
        match &self.terms {
            Terms::MustEncrypt if code == option::STARTTLS && data.is_empty() => {
                self.reply(output, code, reply::ACK, &[]);
                return Step::Encrypt(consumed);
            }
            Terms::MustEncrypt => {
                let text = "this server serves nothing in the clear; connect with TLS, as nbds://";
                self.refuse(output, code, reply::ERR_TLS_REQD, text);
                return Step::Consumed(consumed);
            }
            Terms::Refused(reason) => {
                let reason = reason.clone();
                self.refuse(output, code, reply::ERR_POLICY, &reason);
                return Step::Consumed(consumed);
            }
            Terms::Open | Terms::Admitted(_) => {}
        }
        match code {
            option::LIST if data.is_empty() => {
                let all = self.exports.clone();
                let seen = |at: &usize| self.terms.with(*at) > Admittance::Hidden;
                let seen: Vec<usize> = (0..all.all().len()).filter(seen).collect();
                for export in seen.into_iter().map(|at| &all.all()[at]) {
                    let length = (export.name().len() as u32).to_be_bytes();
                    let parts = [&length, export.name().as_bytes(), export.description().as_bytes()];
                    self.reply(output, code, reply::SERVER, &parts);
                }
                self.reply(output, code, reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS if data.is_empty() => {
                self.agree_on_framing(code, output);
            }
            option::LIST | option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => {
                self.refuse(output, code, reply::ERR_INVALID, "this option has no data");
            }
            option::INFO | option::GO => {
                if let Some(export) = self.describe(code, data, output)
                    && code == option::GO
                {
                    return Step::Agreed(consumed, self.session(export));
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(code, data, output);
            }
            option::STARTTLS if self.terms != Terms::Open => {
                self.refuse(output, code, reply::ERR_INVALID, "this connection is encrypted already");
            }
            option::STARTTLS => {
                let text =
                    "this server does not encrypt; connect without TLS, over a Unix socket if in doubt";
                self.refuse(output, code, reply::ERR_UNSUP, text);
            }
            _ => self.refuse(output, code, reply::ERR_UNSUP, "this server does not know the option"),
        }
        Step::Consumed(consumed)
    }

    /// Answers `STRUCTURED_REPLY` and `EXTENDED_HEADERS`. There is no way back.
    fn agree_on_framing(&mut self, code: u32, output: &mut impl Output) {
        let wanted = if code == option::EXTENDED_HEADERS { Framing::Extended } else { Framing::Structured };
        if self.framing == Framing::Extended {
            let kind = match wanted {
                Framing::Extended => reply::ERR_INVALID,
                _ => reply::ERR_EXT_HEADER_REQD,
            };
            return self.refuse(output, code, kind, "extended headers were agreed on already");
        }
        self.framing = wanted;
        self.reply(output, code, reply::ACK, &[]);
    }

    fn session(&self, export: usize) -> Session {
        Session {
            export,
            framing: self.framing,
            block_status: self.framing > Framing::Simple && self.block_status == Some(export),
            may_write: self.terms.with(export) == Admittance::Write,
        }
    }

    /// The old way to choose: it knows no errors, so whatever is wrong ends the connection.
    fn export_name(
        &mut self,
        consumed: usize,
        name: &[u8],
        shutting_down: bool,
        output: &mut impl Output,
    ) -> Step {
        if shutting_down {
            return Step::Closed(consumed, Closed::ShuttingDown);
        }
        if self.framing == Framing::Extended {
            // By the protocol it does not go with them.
            return Step::Closed(consumed, Closed::OldWay);
        }
        let Some(index) = self.known(name) else {
            return Step::Closed(consumed, Closed::ExportUnknown(readable(name)));
        };
        output.inline(self.size_and_flags(index).as_bytes());
        if self.padding {
            output.inline(&[0; PADDING_BYTES]);
        }
        Step::Agreed(consumed, self.session(index))
    }

    /// Answers `INFO` or `GO`; gives the export if there is one.
    fn describe(&mut self, code: u32, data: &[u8], output: &mut impl Output) -> Option<usize> {
        let mut fields = Fields(data);
        let wanted = fields.string().and_then(|name| {
            let count = usize::from(fields.u16()?);
            (fields.0.len() == 2 * count).then_some((name, fields.0))
        });
        let Some((name, kinds)) = wanted else {
            self.refuse(output, code, reply::ERR_INVALID, "the lengths in this option do not fit its data");
            return None;
        };
        let index = self.find(code, name, output)?;
        let exports = self.exports.clone();
        let export = &exports.all()[index];
        let asked = |kind: u16| kinds.chunks_exact(2).any(|asked| asked == kind.to_be_bytes());
        if asked(information::NAME) {
            let parts = [&information::NAME.to_be_bytes(), export.name().as_bytes()];
            self.reply(output, code, reply::INFO, &parts);
        }
        if asked(information::DESCRIPTION) && !export.description().is_empty() {
            let parts = [&information::DESCRIPTION.to_be_bytes(), export.description().as_bytes()];
            self.reply(output, code, reply::INFO, &parts);
        }
        let block_size = BlockSizeInformation {
            kind: information::BLOCK_SIZE.into(),
            bytes_min: 1.into(),
            bytes_preferred: BLOCK_BYTES_PREFERRED.into(),
            bytes_max: REQUEST_BYTES_MAX.into(),
        };
        self.reply(output, code, reply::INFO, &[block_size.as_bytes()]);
        let size = ExportInformation { kind: information::EXPORT.into(), export: self.size_and_flags(index) };
        self.reply(output, code, reply::INFO, &[size.as_bytes()]);
        self.reply(output, code, reply::ACK, &[]);
        Some(index)
    }

    /// Answers `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn meta_context(&mut self, code: u32, data: &[u8], output: &mut impl Output) {
        let list = code == option::LIST_META_CONTEXT;
        if !list {
            // Whatever comes of this, it replaces what was chosen before.
            self.block_status = None;
        }
        if self.framing == Framing::Simple {
            let text = "negotiate structured replies before metadata contexts";
            return self.refuse(output, code, reply::ERR_INVALID, text);
        }
        let Some((name, matched)) = meta_queries(data, list) else {
            let text = "the lengths in this option do not fit its data";
            return self.refuse(output, code, reply::ERR_INVALID, text);
        };
        let Some(index) = self.find(code, name, output) else { return };
        if matched {
            // An id has a meaning only once the context is chosen.
            let id = if list { 0 } else { ALLOCATION_CONTEXT_ID };
            let parts = [&id.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()];
            self.reply(output, code, reply::META_CONTEXT, &parts);
            if !list {
                self.block_status = Some(index);
            }
        }
        self.reply(output, code, reply::ACK, &[]);
    }

    fn find(&mut self, code: u32, name: &[u8], output: &mut impl Output) -> Option<usize> {
        let found = self.known(name);
        if found.is_none() {
            let text = if name.is_empty() {
                "this server has no default export; name one, `nbdinfo --list` shows them".to_owned()
            } else {
                format!("this server has no export {:?}; `nbdinfo --list` shows those it has", readable(name))
            };
            self.refuse(output, code, reply::ERR_UNKNOWN, &text);
        }
        found
    }

    /// The export of that name, if the client may see it.
    fn known(&self, name: &[u8]) -> Option<usize> {
        self.exports.find(name).filter(|export| self.terms.with(*export) > Admittance::Hidden)
    }

    fn size_and_flags(&self, index: usize) -> ExportSize {
        let export = &self.exports.all()[index];
        let may_write = self.terms.with(index) == Admittance::Write;
        ExportSize {
            bytes: export.bytes().into(),
            flags: export.flags_for(self.framing > Framing::Simple, may_write).into(),
        }
    }

    fn refuse(&mut self, output: &mut impl Output, code: u32, kind: u32, text: &str) {
        self.reply(output, code, kind, &[text.as_bytes()]);
    }

    fn reply(&mut self, output: &mut impl Output, code: u32, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = OptionReplyHeader {
            magic: OPTION_REPLY_MAGIC.into(),
            option: code.into(),
            kind: kind.into(),
            length: (length as u32).into(),
        };
        output.inline(header.as_bytes());
        for part in parts {
            output.inline(part);
        }
        self.reply_bytes += size_of::<OptionReplyHeader>() + length;
    }
}

/// The start of a name that a client sent, fit to be shown.
fn readable(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned()
}

/// The export name of a metadata option, and whether its queries match the one context there is; `None`
/// if the lengths are wrong.
fn meta_queries(data: &[u8], list: bool) -> Option<(&[u8], bool)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    let mut matched = list && count == 0;
    // Each query takes at least four bytes, so the data end a count that lies.
    for _ in 0..count {
        let query = fields.string()?;
        matched |= query == ALLOCATION_CONTEXT.as_bytes() || (list && query == b"base:");
    }
    fields.0.is_empty().then_some((name, matched))
}

/// Reads the data of an option from front to back.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u16(&mut self) -> Option<u16> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*head))
    }

    fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*head))
    }

    /// A string that its length precedes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        if length > protocol::STRING_BYTES_MAX {
            return None;
        }
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }
}
