//! Where a program's threads leave operations for the one that works on an image.

use super::operation::Request;
use crate::errno::Errno;
use ring::Waker;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Operations that may wait to be taken; whoever brings more waits too.
const WAITING_MAX: usize = 16_384;

#[derive(Default)]
struct Inner {
    requests: Vec<Request>,
    /// The thread sleeps, or is about to: it is to be woken.
    is_asleep: bool,
    /// No more are taken.
    is_closed: Option<Errno>,
}

/// See the module's documentation.
pub(super) struct Inbox {
    inner: Mutex<Inner>,
    has_room: Condvar,
    waker: Waker,
    /// The thread that works on the image: what it brings itself, from a callback, it cannot wait for.
    worker: ThreadId,
}

impl Inbox {
    pub(super) fn new(waker: Waker, worker: ThreadId) -> Inbox {
        Inbox { inner: Mutex::default(), has_room: Condvar::new(), waker, worker }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Nothing that can panic runs while it is held.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread is that which works on the image.
    pub(super) fn is_of_worker(&self) -> bool {
        std::thread::current().id() == self.worker
    }

    /// Leaves an operation. One that is not taken any more comes back, with the reason.
    pub(super) fn put(&self, request: Request) -> Result<(), (Errno, Request)> {
        let mut inner = self.inner();
        while inner.requests.len() >= WAITING_MAX && inner.is_closed.is_none() && !self.is_of_worker() {
            inner = self.has_room.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(error) = inner.is_closed {
            return Err((error, request));
        }
        request.is_left_to(self.worker);
        inner.requests.push(request);
        let is_asleep = std::mem::take(&mut inner.is_asleep);
        drop(inner);
        if is_asleep {
            self.waker.wake();
        }
        Ok(())
    }

    /// Why it takes no more, if it does not.
    pub(super) fn closed(&self) -> Option<Errno> {
        self.inner().is_closed
    }

    /// Takes all that are there, into an empty list.
    pub(super) fn take(&self, requests: &mut Vec<Request>) {
        let mut inner = self.inner();
        let was_full = inner.requests.len() >= WAITING_MAX;
        std::mem::swap(&mut inner.requests, requests);
        drop(inner);
        if was_full {
            self.has_room.notify_all();
        }
    }

    /// Notes that whoever leaves something from now on is to wake the thread; not if something is there.
    pub(super) fn may_sleep(&self) -> bool {
        let mut inner = self.inner();
        inner.is_asleep = inner.requests.is_empty();
        inner.is_asleep
    }

    /// The thread is awake.
    pub(super) fn is_awake(&self) {
        self.inner().is_asleep = false;
    }

    /// Takes no more, if nothing is there; whether it is so.
    pub(super) fn close_if_empty(&self, why: Errno) -> bool {
        let mut inner = self.inner();
        let is_empty = inner.requests.is_empty();
        if is_empty {
            inner.is_closed.get_or_insert(why);
            self.has_room.notify_all();
        }
        is_empty
    }

    /// Takes no more: whoever brings something is told that.
    pub(super) fn close(&self, why: Errno) {
        self.inner().is_closed.get_or_insert(why);
        self.has_room.notify_all();
    }
}
