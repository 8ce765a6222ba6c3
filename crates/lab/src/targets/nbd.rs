//! An NBD export as a target: one connection, blocking sockets, the protocol of [`doors::nbd::Client`].
//!
//! It is plain on purpose. It measures what any careful client of the export would see, ours or another's.

use crate::engine::{Completion, Kind, Operation, Target, TargetError};
use base::Buffer;
use doors::nbd::{Client, ClientEvent, ExportInfo, Failure, Framing, NbdAddress, NbdUri, Output};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::time::TimeSpec;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a receive waits for a reply by itself.
const RECEIVE_LIMIT: Duration = Duration::from_secs(1);
/// How long a send may wait for room before replies are taken in, so that neither side waits for the other.
const SEND_LIMIT: Duration = Duration::from_millis(1);
const INBOX_BYTES: usize = 1 << 20;
/// Pieces that one system call sends.
const PIECES_MAX: usize = 128;

/// Connects to a server: bytes go to either kind of socket as to any file.
fn connect(address: &NbdAddress) -> std::io::Result<File> {
    let socket: OwnedFd = match address {
        NbdAddress::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(RECEIVE_LIMIT))?;
            stream.set_write_timeout(Some(SEND_LIMIT))?;
            stream.into()
        }
        NbdAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(RECEIVE_LIMIT))?;
            stream.set_write_timeout(Some(SEND_LIMIT))?;
            stream.into()
        }
    };
    Ok(socket.into())
}

#[derive(Debug)]
enum Piece {
    /// In the outbox's own bytes.
    Inline(Range<usize>),
    Shared(Buffer, Range<usize>),
}

/// What is to be sent, in order.
#[derive(Debug, Default)]
struct Outbox {
    inline: Vec<u8>,
    pieces: VecDeque<Piece>,
}

impl Output for Outbox {
    fn inline(&mut self, bytes: &[u8]) {
        let start = self.inline.len();
        self.inline.extend_from_slice(bytes);
        match self.pieces.back_mut() {
            // Whatever was appended last is followed by this, so the two are one piece.
            Some(Piece::Inline(range)) => range.end = self.inline.len(),
            _ => self.pieces.push_back(Piece::Inline(start..self.inline.len())),
        }
    }

    fn shared(&mut self, buffer: Buffer, range: Range<usize>) {
        self.pieces.push_back(Piece::Shared(buffer, range));
    }
}

impl Outbox {
    /// Sends as much as goes without waiting long.
    fn send(&mut self, stream: &mut File) -> std::io::Result<()> {
        while !self.pieces.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = self.pieces.len().min(PIECES_MAX);
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(match piece {
                    Piece::Inline(range) => &self.inline[range.clone()],
                    Piece::Shared(buffer, range) => &buffer.bytes()[range.clone()],
                });
            }
            match stream.write_vectored(&slices[..count]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => self.advance(sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.inline.clear();
        Ok(())
    }

    fn advance(&mut self, mut sent: usize) {
        while sent > 0 {
            let piece = self.pieces.front_mut().expect("no more was sent than there was");
            let (Piece::Inline(range) | Piece::Shared(_, range)) = piece;
            let count = sent.min(range.len());
            range.start += count;
            sent -= count;
            if range.start == range.end {
                self.pieces.pop_front();
            }
        }
    }
}

/// An NBD export. Every write is a plain one: durable when a flush says so, or at once where the server
/// acknowledges only what is durable, as Millpond does.
#[derive(Debug)]
pub struct NbdTarget {
    name: String,
    stream: File,
    client: Client,
    info: ExportInfo,
    outbox: Outbox,
    inbox: Vec<u8>,
    inbox_used: usize,
    events: Vec<ClientEvent>,
    buffers: Vec<Buffer>,
    /// Where the operation in each slot begins in the export.
    offsets: Vec<u64>,
}

impl NbdTarget {
    /// Connects to `uri`, with `depth` slots of `block_bytes`.
    ///
    /// # Errors
    /// No such server or export, or it takes no operations of that size.
    pub fn connect(uri: &str, depth: u32, block_bytes: u32) -> Result<NbdTarget, TargetError> {
        let failed = |error: &dyn std::fmt::Display| TargetError(format!("{uri}: {error}"));
        let parsed: NbdUri =
            uri.parse().map_err(|error: doors::nbd::NbdUriError| TargetError(error.to_string()))?;
        let stream = connect(&parsed.address).map_err(|error| {
            failed(&format!("cannot connect: {error}; does the server run and listen there?"))
        })?;
        let unknown = ExportInfo {
            bytes: 0,
            flags: 0,
            request_bytes_min: 1,
            request_bytes_preferred: 4096,
            request_bytes_max: 0,
            framing: Framing::Simple,
        };
        let mut target = NbdTarget {
            name: uri.to_owned(),
            stream,
            client: Client::new(parsed.export, Framing::Structured),
            info: unknown,
            outbox: Outbox::default(),
            inbox: vec![0; INBOX_BYTES],
            inbox_used: 0,
            events: Vec::with_capacity(2 * depth as usize),
            buffers: (0..depth).map(|_| Buffer::new(block_bytes as usize)).collect(),
            offsets: vec![0; depth as usize],
        };
        target.info = target.negotiate()?;
        if block_bytes > target.info.request_bytes_max {
            return Err(failed(&format!(
                "the server takes at most {} bytes an operation; lower --bs",
                target.info.request_bytes_max
            )));
        }
        Ok(target)
    }

    fn negotiate(&mut self) -> Result<ExportInfo, TargetError> {
        let deadline = Instant::now() + HANDSHAKE_LIMIT;
        loop {
            self.exchange(RECEIVE_LIMIT)?;
            for event in self.events.drain(..) {
                if let ClientEvent::Connected(info) = event {
                    return Ok(info);
                }
            }
            if Instant::now() >= deadline {
                return Err(self.broken("the server does not answer; is it an NBD server?"));
            }
        }
    }

    fn broken(&self, what: impl std::fmt::Display) -> TargetError {
        TargetError(format!("{}: {what}", self.name))
    }

    /// Sends what there is to send and takes in what comes within `limit`, which the events then tell. Data of reads are
    /// where they belong when it returns.
    fn exchange(&mut self, limit: Duration) -> Result<(), TargetError> {
        self.outbox.send(&mut self.stream).map_err(|error| self.broken(format!("cannot send: {error}")))?;
        let mut flags = MsgFlags::MSG_DONTWAIT;
        if !self.outbox.pieces.is_empty() {
            // Replies must be taken in, but not waited for.
        } else if limit < RECEIVE_LIMIT {
            let waited = TimeSpec::from_duration(limit);
            let mut readable = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match ppoll(&mut readable, Some(waited), None) {
                Ok(0) | Err(Errno::EINTR) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(self.broken(format!("cannot wait for replies: {error}"))),
            }
        } else {
            flags = MsgFlags::empty();
        }
        match recv(self.stream.as_raw_fd(), &mut self.inbox[self.inbox_used..], flags) {
            Ok(0) => return Err(self.broken("the server closed the connection")),
            Ok(count) => self.inbox_used += count,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(()),
            Err(error) => return Err(self.broken(format!("cannot receive: {error}"))),
        }
        let first = self.events.len();
        let consumed =
            self.client.handle_bytes(&self.inbox[..self.inbox_used], &mut self.events, &mut self.outbox);
        for event in &self.events[first..] {
            match event {
                ClientEvent::Data { token, offset, data } => {
                    let source = &self.inbox[data.clone()];
                    slot_bytes(&mut self.buffers, &self.offsets, *token, *offset, source.len())
                        .copy_from_slice(source);
                }
                ClientEvent::Hole { token, offset, length } => {
                    slot_bytes(&mut self.buffers, &self.offsets, *token, *offset, *length as usize).fill(0);
                }
                ClientEvent::Connected(_) | ClientEvent::Done { .. } => {}
            }
        }
        self.inbox.copy_within(consumed..self.inbox_used, 0);
        self.inbox_used -= consumed;
        match self.client.closed() {
            Some(error) => Err(self.broken(error)),
            None => Ok(()),
        }
    }
}

/// A failure in words: where, and what the server said of it.
fn told(name: &str, operation_offset: u64, failure: &Failure) -> String {
    let offset = failure.offset.unwrap_or(operation_offset);
    let reason =
        if failure.message.is_empty() { "the server gave no reason" } else { failure.message.as_str() };
    format!("{name}: offset {offset}: {:?}: {reason}", failure.code)
}

/// The part of a slot's data that stands for `length` bytes at `offset` of the export.
fn slot_bytes<'a>(
    buffers: &'a mut [Buffer],
    offsets: &[u64],
    token: u64,
    offset: u64,
    length: usize,
) -> &'a mut [u8] {
    let slot = token as usize;
    let start = (offset - offsets[slot]) as usize;
    let bytes = buffers[slot].bytes_mut().expect("a buffer that is read into is not being sent");
    &mut bytes[start..start + length]
}

impl Target for NbdTarget {
    fn bytes(&self) -> u64 {
        self.info.bytes
    }

    fn alignment_bytes(&self) -> u32 {
        self.info.request_bytes_min
    }

    fn data_mut(&mut self, slot: u32) -> &mut [u8] {
        self.buffers[slot as usize].bytes_mut().expect("a write was sent whole before it was answered")
    }

    fn submit(&mut self, operation: Operation) -> Result<(), TargetError> {
        let slot = operation.slot as usize;
        let token = u64::from(operation.slot);
        self.offsets[slot] = operation.offset;
        match operation.kind {
            Kind::Read => self.client.read(token, operation.offset, operation.length, &mut self.outbox),
            Kind::Write => {
                let buffer = self.buffers[slot].clone();
                let range = 0..operation.length as usize;
                self.client.write(token, operation.offset, buffer, range, false, &mut self.outbox);
            }
        }
        Ok(())
    }

    fn wait(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), TargetError> {
        let deadline = Instant::now() + limit;
        loop {
            self.exchange(deadline.saturating_duration_since(Instant::now()))?;
            for event in self.events.drain(..) {
                if let ClientEvent::Done { token, result } = event {
                    let slot = u32::try_from(token).expect("tokens are slots");
                    let result =
                        result.map_err(|failure| told(&self.name, self.offsets[slot as usize], &failure));
                    completions.push(Completion { slot, result });
                }
            }
            if !completions.is_empty() || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cpu::Monitor;
    use crate::engine::plan::{Job, Mode, TargetName};
    use crate::engine::{Measured, RunError, run};
    use base::units::ByteSize;
    use std::ops::ControlFlow;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use testkit::prerequisites::not_tested;

    #[test]
    fn partial_sends_go_on_where_they_stopped() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        sender.set_write_timeout(Some(SEND_LIMIT)).unwrap();
        let mut buffer = Buffer::new(1 << 20);
        buffer.bytes_mut().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
        let (mut outbox, mut expected) = (Outbox::default(), Vec::new());
        let mut stream = File::from(OwnedFd::from(sender));
        for index in 0..300usize {
            outbox.inline(&index.to_le_bytes());
            outbox.inline(b"header");
            outbox.shared(buffer.clone(), index..index + 9000);
            expected.extend_from_slice(&index.to_le_bytes());
            expected.extend_from_slice(b"header");
            expected.extend_from_slice(&buffer.bytes()[index..index + 9000]);
        }
        let mut received = Vec::new();
        let mut turns = 0;
        while received.len() < expected.len() {
            outbox.send(&mut stream).unwrap();
            let mut bytes = vec![0; 100_000];
            let count = recv(receiver.as_raw_fd(), &mut bytes, MsgFlags::empty()).unwrap();
            received.extend_from_slice(&bytes[..count]);
            turns += 1;
        }
        assert!(turns > 1, "everything fitted at once, so that nothing was tested");
        assert!(received == expected);
        outbox.send(&mut stream).unwrap();
        assert!(outbox.pieces.is_empty() && outbox.inline.is_empty());
        assert!(buffer.is_unique(), "what is sent is let go");
    }

    /// Somebody else's server over a file of 8 MiB.
    struct Server {
        process: Child,
        directory: tempfile::TempDir,
    }

    impl Server {
        /// `None` where QEMU's tools are not installed.
        fn start(extra: &[&str]) -> Option<Server> {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("file");
            std::fs::File::create(&file).unwrap().set_len(8 << 20).unwrap();
            let started = Command::new("qemu-nbd")
                .args(["--format=raw", "--persistent", "--export-name=demo", "--socket"])
                .arg(directory.path().join("socket"))
                .args(extra)
                .arg(&file)
                .stderr(Stdio::null())
                .spawn();
            let process = match started {
                Ok(process) => process,
                Err(error) => {
                    not_tested("qemu-nbd", &format!("{error}; install it with `make deps`"));
                    return None;
                }
            };
            let server = Server { process, directory };
            let deadline = Instant::now() + HANDSHAKE_LIMIT;
            while UnixStream::connect(server.socket()).is_err() {
                assert!(Instant::now() < deadline, "qemu-nbd does not listen");
                std::thread::sleep(Duration::from_millis(10));
            }
            Some(server)
        }

        fn socket(&self) -> PathBuf {
            self.directory.path().join("socket")
        }

        fn uri(&self, export: &str) -> String {
            format!("nbd+unix:///{export}?socket={}", self.socket().display())
        }

        fn job(&self, mode: Mode, block: u64, depth: u32, io_size: u64) -> Job {
            Job {
                block: ByteSize(block),
                depth,
                runtime: None,
                io_size: Some(io_size),
                ..Job::new(TargetName::Nbd(self.uri("demo")), mode)
            }
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.process.kill().ok();
            self.process.wait().ok();
        }
    }

    fn measure(server: &Server, job: &Job) -> Result<Measured, RunError> {
        let mut target = NbdTarget::connect(&server.uri("demo"), job.depth, job.block.0 as u32).unwrap();
        run(&mut target, job, &Monitor::new(Vec::new()), |_| ControlFlow::Continue(()))
    }

    #[test]
    fn what_is_written_lies_where_it_belongs_and_is_read_back() {
        let Some(server) = Server::start(&[]) else { return };
        let measured = measure(&server, &server.job(Mode::Write, 65_536, 16, 8 << 20)).unwrap();
        assert_eq!((measured.writes.count(), measured.errors), (128, 0));
        let contents = std::fs::read(server.directory.path().join("file")).unwrap();
        for (index, block) in contents.chunks(4096).enumerate() {
            assert_eq!(block[..8], (index as u64 * 4096).to_le_bytes());
        }
        let mut target = NbdTarget::connect(&server.uri("demo"), 2, 1 << 20).unwrap();
        let length = 1 << 20;
        for (slot, offset) in [(0, 4096), (1, 3 << 20)] {
            target.submit(Operation { slot, kind: Kind::Read, offset, length }).unwrap();
        }
        let mut completions = Vec::new();
        while completions.len() < 2 {
            target.wait(Duration::from_secs(1), &mut completions).unwrap();
        }
        assert!(completions.iter().all(|completion| completion.result.is_ok()));
        assert!(target.data_mut(0)[..1 << 20] == contents[4096..4096 + (1 << 20)]);
        assert!(target.data_mut(1)[..1 << 20] == contents[3 << 20..4 << 20]);
    }

    #[test]
    fn many_and_large_operations_in_both_directions_do_not_block_each_other() {
        let Some(server) = Server::start(&[]) else { return };
        let measured = measure(&server, &server.job(Mode::ReadWrite, 1 << 20, 32, 256 << 20)).unwrap();
        assert_eq!(measured.reads.count() + measured.writes.count(), 256);
        let measured = measure(&server, &server.job(Mode::RandomReadWrite, 4096, 64, 64 << 20)).unwrap();
        assert_eq!(measured.reads.count() + measured.writes.count(), 16_384);
    }

    #[test]
    fn a_refused_operation_is_told_with_its_place() {
        let Some(server) = Server::start(&["--read-only"]) else { return };
        let measured = measure(&server, &server.job(Mode::Write, 4096, 4, 1 << 20)).unwrap();
        assert!(measured.errors > 0);
        let error = measured.first_error.unwrap();
        assert!(error.contains("demo") && error.contains("offset"), "{error}");
    }

    #[test]
    fn a_server_that_is_not_there_or_goes_away_is_named() {
        let error = NbdTarget::connect("nbd+unix:///demo?socket=/nowhere.sock", 1, 4096).unwrap_err();
        assert!(error.0.contains("/nowhere.sock") && error.0.contains("does the server run"), "{error}");
        let Some(mut server) = Server::start(&[]) else { return };
        let error = NbdTarget::connect(&server.uri("other"), 1, 4096).unwrap_err();
        assert!(error.0.contains("other"), "{error}");
        let job = Job {
            runtime: Some(Duration::from_secs(60)),
            io_size: None,
            ..server.job(Mode::RandomRead, 4096, 4, 1)
        };
        let mut target = NbdTarget::connect(&server.uri("demo"), job.depth, 4096).unwrap();
        server.process.kill().unwrap();
        let monitor = Monitor::new(Vec::new());
        let error = run(&mut target, &job, &monitor, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, RunError::Target { .. }), "{error}");
    }
}
