//! One stream socket: what came in, what goes out, and what is under way.

use crate::encryption::Encryption;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use base::Buffer;
use std::os::fd::OwnedFd;

/// The message header of a gathered send, kept where the kernel can find it.
pub(crate) struct SendState {
    vectors: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
}

/// One socket and what is under way on it.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    pub(crate) serial: u32,
    pub(crate) inbox: Option<Inbox>,
    /// None while what goes over it goes in plain.
    pub(crate) encryption: Option<Box<Encryption>>,
    pub(crate) queued: Outbox,
    sending: Outbox,
    send_state: SendState,
    pub(crate) is_receiving: bool,
    /// How much came so far.
    pub(crate) received_bytes: u64,
    /// The last receipt emptied the socket: looking into it before something comes is in vain.
    pub(crate) is_drained: bool,
    pub(crate) is_sending: bool,
    pub(crate) is_dirty: bool,
    pub(crate) is_connecting: bool,
    /// Its socket is being made elsewhere.
    pub(crate) is_reserved: bool,
    /// Why it is being closed; it goes when nothing is in flight on it any more.
    pub(crate) closing: Option<String>,
    /// The reason was reported.
    pub(crate) is_reported: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, serial: u32, inbox_bytes: usize) -> Connection {
        let mut inbox = Inbox::default();
        inbox.grow(inbox_bytes);
        // SAFETY: a msghdr of zeros is valid: no name, no vectors, no control data.
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        Connection {
            socket,
            serial,
            inbox: Some(inbox),
            encryption: None,
            queued: Outbox::default(),
            sending: Outbox::default(),
            send_state: SendState { vectors: Vec::new(), message: Box::new(message) },
            is_receiving: false,
            received_bytes: 0,
            is_drained: false,
            is_sending: false,
            is_dirty: false,
            is_connecting: false,
            is_reserved: false,
            closing: None,
            is_reported: false,
        }
    }

    pub(crate) fn unsent_bytes(&self) -> usize {
        let sealed = self.encryption.as_ref().map_or(0, |encryption| encryption.unsent_bytes());
        self.queued.bytes() + self.sending.bytes() + sealed
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.is_receiving && !self.is_sending && !self.is_connecting
    }

    /// The next gathered send, or `None` when there is nothing to send. The caller submits it and sets
    /// `is_sending`; until [`Self::send_done`] nothing touches the memory it points at. Buffers that are not needed any
    /// more go to `released`.
    pub(crate) fn start_send(&mut self, released: &mut Vec<Buffer>) -> Option<*const libc::msghdr> {
        assert!(!self.is_sending, "one send at a time keeps the bytes in order");
        if self.sending.is_empty() {
            std::mem::swap(&mut self.sending, &mut self.queued);
        }
        match &mut self.encryption {
            None if self.sending.is_empty() => return None,
            None => self.sending.gather(&mut self.send_state.vectors),
            Some(encryption) => {
                if encryption.is_sent() {
                    encryption.seal(&mut self.sending, released);
                }
                if encryption.is_sent() {
                    return None;
                }
                encryption.gather(&mut self.send_state.vectors);
            }
        }
        self.send_state.message.msg_iov = self.send_state.vectors.as_mut_ptr();
        self.send_state.message.msg_iovlen = self.send_state.vectors.len() as _;
        Some(&raw const *self.send_state.message)
    }

    /// The last send, which is not waited for. Says in it that it is the last, where that can be told from a cut.
    pub(crate) fn start_last_send(&mut self, released: &mut Vec<Buffer>) -> Option<*const libc::msghdr> {
        self.start_send(released);
        if let Some(encryption) = &mut self.encryption
            && self.sending.is_empty()
            && self.queued.is_empty()
        {
            encryption.seal_end();
        }
        self.start_send(released)
    }

    pub(crate) fn send_done(&mut self, count: usize, released: &mut Vec<Buffer>) {
        match &mut self.encryption {
            None => self.sending.sent(count, released),
            Some(encryption) => encryption.sent(count, released),
        }
    }

    pub(crate) fn release_all(&mut self, released: &mut Vec<Buffer>) {
        self.sending.release(released);
        self.queued.release(released);
        if let Some(encryption) = &mut self.encryption {
            encryption.release(released);
        }
    }
}
