//! Waking a reactor from another thread.

use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

/// Wakes the reactor it came from out of its sleep. Cheap to clone, from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<File>,
}

impl Waker {
    /// Makes the reactor's next turn report [`crate::Event::Woken`].
    pub fn wake(&self) {
        // It fails only when the counter is full, and then a wake-up is on its way already.
        let _ = (&*self.event).write(&1u64.to_ne_bytes());
    }

    pub(crate) fn new() -> std::io::Result<Waker> {
        // SAFETY: eventfd takes no pointers; its result is checked before use.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(descriptor) };
        Ok(Waker { event: Arc::new(File::from(event)) })
    }

    pub(crate) fn file(&self) -> &File {
        &self.event
    }
}
