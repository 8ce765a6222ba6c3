//! Undoing, on every way out: a return, an error, a panic, Ctrl-C, a hang-up or `kill`.
//!
//! What was set up registers how it is taken down. Whoever leaves first takes everything down, the newest
//! first: the [`Undo`] that is dropped, the panic hook (release builds abort on a panic and drop nothing),
//! or the thread that waits for signals. Each undoing happens once. SIGKILL cannot be caught: what it
//! leaves behind is found by the next run, see [`crate::testbed`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Tasks {
    next: u64,
    /// By age. Their lock is held while they run, so that nobody ends the process in the middle.
    pending: BTreeMap<u64, Task>,
}

static TASKS: Mutex<Tasks> = Mutex::new(Tasks { next: 0, pending: BTreeMap::new() });
static HANDLERS: Once = Once::new();

thread_local! {
    static UNDOING: Cell<bool> = const { Cell::new(false) };
}

fn tasks() -> MutexGuard<'static, Tasks> {
    // A task that panicked was already taken out; the others still have to run.
    TASKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something to undo. Dropping it undoes.
#[derive(Debug)]
#[must_use = "dropping it undoes at once"]
pub struct Undo {
    id: u64,
}

impl Undo {
    /// Registers `task`. It must not register or drop another [`Undo`].
    pub fn new(task: impl FnOnce() + Send + 'static) -> Undo {
        let mut tasks = tasks();
        let id = tasks.next;
        tasks.next += 1;
        tasks.pending.insert(id, Box::new(task));
        Undo { id }
    }

    /// Forgets it: there is nothing left to undo.
    pub fn disarm(self) {
        drop(tasks().pending.remove(&self.id));
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let mut tasks = tasks();
        if let Some(task) = tasks.pending.remove(&self.id) {
            undo(task);
        }
    }
}

fn undo(task: Task) {
    UNDOING.set(true);
    task();
    UNDOING.set(false);
}

fn undo_all(tasks: &mut Tasks) {
    while let Some((_, task)) = tasks.pending.pop_last() {
        undo(task);
    }
}

/// Undoes everything also after a panic and after SIGINT, SIGTERM and SIGHUP. Call it once, early; it is for
/// programs, not for tests.
///
/// # Errors
/// The handlers could not be installed.
pub fn install_handlers() -> std::io::Result<()> {
    let mut outcome = Ok(());
    HANDLERS.call_once(|| {
        undo_after_a_panic();
        outcome = watch_signals();
    });
    outcome
}

/// Undoes everything also after a panic. For programs that watch signals themselves; call it once, early.
pub fn undo_after_a_panic() {
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // First: what is told of a panic may end the process.
        // A task that panics holds the lock: there is nothing more to be done here.
        if !UNDOING.get() {
            undo_all(&mut tasks());
        }
        earlier(panic);
    }));
}

/// Undoes everything and ends the process, whatever else it is doing.
pub fn undo_and_exit(code: i32) -> ! {
    // Held until the process is gone: nobody can set up anything more, or leave too early.
    let mut tasks = tasks();
    undo_all(&mut tasks);
    std::process::exit(code)
}

fn watch_signals() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hang_up) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    let wait = move || {
        let number = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => 2,
                _ = terminate.recv() => 15,
                _ = hang_up.recv() => 1,
            }
        });
        eprintln!("stopping: taking down what was set up");
        // The shells' convention for a process that a signal ended.
        undo_and_exit(128 + number);
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn dropping_undoes_once_and_disarming_never() {
        let count = Arc::new(AtomicU32::new(0));
        let (one, two) = (Arc::clone(&count), Arc::clone(&count));
        let add = |count: &AtomicU32, amount| {
            count.fetch_add(amount, Ordering::SeqCst);
        };
        drop(Undo::new(move || add(&one, 1)));
        Undo::new(move || add(&two, 10)).disarm();
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn everything_is_undone_the_newest_first() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Tasks::default();
        for id in 0..3 {
            let order = Arc::clone(&order);
            tasks.pending.insert(id, Box::new(move || order.lock().unwrap().push(id)));
        }
        undo_all(&mut tasks);
        assert_eq!(*order.lock().unwrap(), [2, 1, 0]);
    }
}
