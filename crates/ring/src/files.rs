//! Files (drives) on the ring, and the operations on them.

use crate::event::{Event, FileId};
use crate::operation::Operation as Wanted;
use crate::queue::Queue;
use base::Buffer;
use io_uring::{opcode, squeue, types};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A file, with no more operations handed to the kernel at a time than its device takes: for one more, the
/// kernel would put a thread to sleep, which costs far more than the operation.
struct OpenFile {
    /// Held open for the sake of locks on it; operations name its slot.
    _file: File,
    depth: usize,
    in_flight: usize,
    waiting: VecDeque<(u64, squeue::Entry)>,
}

/// A file operation in flight. It owns what the kernel works on.
struct Operation {
    file: FileId,
    token: u64,
    buffer: Option<Buffer>,
    expected_bytes: usize,
    what: &'static str,
    offset: u64,
}

/// All of them.
pub(crate) struct Files {
    /// The first file's slot in the ring's table, behind those of the connections.
    first_slot: u32,
    /// What completions of file operations are told by; the number of the operation is added.
    user_data: u64,
    files: Vec<OpenFile>,
    operations: Vec<Option<Operation>>,
    operations_free: Vec<u32>,
    buffers_are_registered: bool,
}

impl Files {
    pub(crate) fn new(first_slot: u32, user_data: u64) -> Files {
        Files {
            first_slot,
            user_data,
            files: Vec::new(),
            operations: Vec::new(),
            operations_free: Vec::new(),
            buffers_are_registered: false,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.files.len()
    }

    /// Operations handed to the kernel, or on their way there.
    pub(crate) fn in_flight(&self) -> usize {
        self.files.iter().map(|file| file.in_flight).sum()
    }

    pub(crate) fn register_buffers<'a>(
        &mut self,
        buffers: impl Iterator<Item = &'a mut Buffer>,
        queue: &Queue,
    ) -> io::Result<()> {
        assert!(!self.buffers_are_registered, "buffers are registered once");
        let mut vectors = Vec::new();
        let mut registered = Vec::new();
        for buffer in buffers.take(usize::from(u16::MAX >> 2)) {
            let bytes = buffer.bytes();
            vectors.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
            registered.push(buffer);
        }
        // SAFETY: the kernel pins the pages themselves; should a buffer be freed while they are registered,
        // its pages stay pinned and are merely unused, since operations name a registration only through a
        // live `Buffer`.
        match unsafe { queue.ring()?.register_buffers(&vectors) } {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.buffers_are_registered = true;
        for (index, buffer) in registered.into_iter().enumerate() {
            buffer.set_registration(index as u16);
        }
        Ok(())
    }

    pub(crate) fn add(&mut self, file: File, depth: usize, queue: &Queue) -> io::Result<FileId> {
        let index = self.files.len() as u32;
        queue.ring()?.register(self.first_slot + index, file.as_raw_fd())?;
        let (depth, waiting) = (depth.max(1), VecDeque::new());
        self.files.push(OpenFile { _file: file, depth, in_flight: 0, waiting });
        Ok(FileId(index))
    }

    pub(crate) fn read(
        &mut self,
        file: FileId,
        token: u64,
        offset: u64,
        mut buffer: Buffer,
        length: usize,
        queue: &mut Queue,
    ) {
        let registration = buffer.registration().filter(|_| self.buffers_are_registered);
        let memory = buffer.bytes_mut().expect("a buffer being filled has one holder");
        assert!(length <= memory.len(), "a read fits its buffer");
        let (slot, pointer) = (self.slot(file), memory.as_mut_ptr());
        let entry = match registration {
            Some(index) => opcode::ReadFixed::new(slot, pointer, length as u32, index).offset(offset).build(),
            None => opcode::Read::new(slot, pointer, length as u32).offset(offset).build(),
        };
        let buffer = Some(buffer);
        let operation = Operation { file, token, buffer, expected_bytes: length, what: "read", offset };
        self.start(entry, operation, queue);
    }

    pub(crate) fn write(
        &mut self,
        file: FileId,
        token: u64,
        offset: u64,
        buffer: Buffer,
        length: usize,
        queue: &mut Queue,
    ) {
        let registration = buffer.registration().filter(|_| self.buffers_are_registered);
        assert!(length <= buffer.size(), "a write lies within its buffer");
        let (slot, pointer) = (self.slot(file), buffer.bytes().as_ptr());
        let entry = match registration {
            Some(index) => {
                opcode::WriteFixed::new(slot, pointer, length as u32, index).offset(offset).build()
            }
            None => opcode::Write::new(slot, pointer, length as u32).offset(offset).build(),
        };
        let buffer = Some(buffer);
        let operation = Operation { file, token, buffer, expected_bytes: length, what: "write", offset };
        self.start(entry, operation, queue);
    }

    pub(crate) fn flush(&mut self, file: FileId, token: u64, queue: &mut Queue) {
        let entry = opcode::Fsync::new(self.slot(file)).flags(types::FsyncFlags::DATASYNC).build();
        let operation = Operation { file, token, buffer: None, expected_bytes: 0, what: "flush", offset: 0 };
        self.start(entry, operation, queue);
    }

    fn slot(&self, file: FileId) -> types::Fixed {
        types::Fixed(self.first_slot + file.0)
    }

    fn start(&mut self, entry: squeue::Entry, operation: Operation, queue: &mut Queue) {
        let index = self.operations_free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() as u32 - 1
        });
        let file = &mut self.files[operation.file.0 as usize];
        self.operations[index as usize] = Some(operation);
        let user_data = self.user_data | u64::from(index);
        if file.in_flight == file.depth {
            file.waiting.push_back((user_data, entry));
        } else {
            file.in_flight += 1;
            // SAFETY: `operations` owns the memory until `done`, or for good.
            unsafe { queue.push(user_data, Wanted::File(entry)) };
        }
    }

    /// An operation completed.
    pub(crate) fn done(&mut self, index: u32, result: i32, queue: &mut Queue) -> Event {
        let operation = self.operations[index as usize].take().expect("a completion belongs to an operation");
        self.operations_free.push(index);
        let Operation { file, token, buffer, expected_bytes, what, offset } = operation;
        let file = &mut self.files[file.0 as usize];
        match file.waiting.pop_front() {
            // SAFETY: as in `start`.
            Some((user_data, entry)) => unsafe { queue.push(user_data, Wanted::File(entry)) },
            None => file.in_flight -= 1,
        }
        let result = if result < 0 {
            let cause = io::Error::from_raw_os_error(-result);
            Err(io::Error::new(
                cause.kind(),
                format!("{what} of {expected_bytes} bytes at offset {offset}: {cause}"),
            ))
        } else if result as usize != expected_bytes {
            Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{what} at offset {offset} ended after {result} of {expected_bytes} bytes"),
            ))
        } else {
            Ok(())
        };
        Event::FileDone { token, buffer, result }
    }

    /// A drive never answers: the memory it may still write is left to it.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.operations));
    }
}
