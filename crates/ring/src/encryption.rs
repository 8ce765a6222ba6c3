//! An encrypted connection's session, and the records that it sealed and that are on their way out.

use crate::inbox::Inbox;
use crate::outbox::Outbox;
use base::Buffer;
use std::collections::VecDeque;
use tls::{End, PLAINTEXT_BYTES_MAX, Session};

/// Plaintext that is sealed for one gathered send at most: the rest waits, so that one turn does not seal for all others.
const SEALED_BYTES_MAX: usize = 256 << 10;
/// Pieces that become one record at most.
const PIECES_PER_RECORD_MAX: usize = 64;

/// What an encrypted connection has beside its plaintext.
#[derive(Debug)]
pub(crate) struct Encryption {
    session: Session,
    records: VecDeque<Vec<u8>>,
    /// Bytes of the first record that were sent.
    sent_of_first: usize,
    /// Bytes of all records that were not.
    unsent_bytes: usize,
    /// What they were sealed from: lent until all of them are sent, so that what somebody leaves unread counts as it does in
    /// plain.
    sealed_from: Vec<Buffer>,
}

impl Encryption {
    pub(crate) fn new(session: Session) -> Encryption {
        let (records, sealed_from) = (VecDeque::new(), Vec::new());
        Encryption { session, records, sent_of_first: 0, unsent_bytes: 0, sealed_from }
    }

    /// Where received bytes go; empty while there is something to be read. It is bounded by the inbox, and so with all inboxes
    /// of whoever shares with this one: twice as large, it brings more than fits there, so that both grow.
    pub(crate) fn space(&mut self, inbox_bytes: usize) -> &mut [u8] {
        self.session.space_within(2 * inbox_bytes)
    }

    pub(crate) fn received(&mut self, count: usize) {
        self.session.received(count);
    }

    /// Moves what verifies to an inbox with room, and answers whether there was something.
    ///
    /// # Errors
    /// When nothing more comes, with the reason.
    pub(crate) fn read(&mut self, inbox: &mut Inbox) -> Result<bool, End> {
        let count = self.session.read(inbox.space())?;
        inbox.received(count);
        Ok(count > 0)
    }

    /// Whether something must be sent for its own sake.
    pub(crate) fn has_answer(&self) -> bool {
        self.session.has_answer()
    }

    /// Whether everything sealed was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes that were sealed and not sent.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    /// Seals the beginning of what waits in the clear, once everything sealed before was sent.
    pub(crate) fn seal(&mut self, plaintext: &mut Outbox, released: &mut Vec<Buffer>) {
        assert!(self.is_sent(), "records are counted when there are new ones only");
        self.session.answer(&mut self.records);
        let mut sealed = 0;
        while sealed < SEALED_BYTES_MAX && !plaintext.is_empty() {
            let mut pieces: [&[u8]; PIECES_PER_RECORD_MAX] = [&[]; PIECES_PER_RECORD_MAX];
            let (mut count, mut bytes) = (0, 0);
            for piece in plaintext.pieces().take(PIECES_PER_RECORD_MAX) {
                let room = PLAINTEXT_BYTES_MAX - bytes;
                let part = &piece[..piece.len().min(room)];
                pieces[count] = part;
                (count, bytes) = (count + 1, bytes + part.len());
                if bytes == PLAINTEXT_BYTES_MAX {
                    break;
                }
            }
            if bytes > 0 {
                self.session.seal(&pieces[..count], &mut self.records);
            }
            plaintext.sent(bytes, &mut self.sealed_from);
            sealed += bytes;
        }
        self.unsent_bytes = self.records.iter().map(Vec::len).sum();
        if self.is_sent() {
            self.release(released);
        }
    }

    /// Gives back what the records were sealed from.
    pub(crate) fn release(&mut self, released: &mut Vec<Buffer>) {
        released.append(&mut self.sealed_from);
    }

    /// Seals the word that nothing follows.
    pub(crate) fn seal_end(&mut self) {
        self.session.seal_end(&mut self.records);
        self.unsent_bytes += self.records.back().map_or(0, Vec::len);
    }

    /// Fills `vectors` for one gathered send. The records stay where they are until [`Self::sent`].
    pub(crate) fn gather(&self, vectors: &mut Vec<libc::iovec>) {
        vectors.clear();
        let mut skipped = self.sent_of_first;
        for record in &self.records {
            let bytes = &record[std::mem::take(&mut skipped)..];
            vectors.push(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
        }
    }

    /// Drops the first `count` bytes of the records; buffers go to `released` with the last of them.
    pub(crate) fn sent(&mut self, count: usize, released: &mut Vec<Buffer>) {
        self.unsent_bytes -= count;
        self.sent_of_first += count;
        while let Some(first) = self.records.front().filter(|first| first.len() <= self.sent_of_first) {
            self.sent_of_first -= first.len();
            self.records.pop_front();
        }
        assert!(!self.records.is_empty() || self.sent_of_first == 0, "no more is sent than was asked for");
        if self.is_sent() {
            self.release(released);
        }
    }
}
