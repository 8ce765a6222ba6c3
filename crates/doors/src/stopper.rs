//! How a door is closed from elsewhere: by a signal, for example.

use ring::Waker;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends what serves a door, from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    wanted: Arc<AtomicBool>,
    pub(crate) waker: Waker,
}

impl Stopper {
    /// One for the loop that this wakes.
    pub(crate) fn new(waker: Waker) -> Stopper {
        Stopper { wanted: Arc::default(), waker }
    }

    /// Has it end what is under way and return.
    pub fn stop(&self) {
        self.wanted.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether it is to end.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }
}
