//! The back-end with a cluster in memory, and a front-end with a guest whose driver says what it likes.

mod guest;
mod hostile;
mod lives;
mod requests;

use super::*;
use guest::{Chain, Guest, IN, OUT};
use std::sync::mpsc;
use testkit::wait_until;
use volume::testing::{Faults, TestCluster};

const DISK_BYTES: u64 = 64 << 20;

/// A back-end on a thread of its own.
struct Running {
    stopper: Stopper,
    thread: Option<JoinHandle<(Result<(), BackendError>, usize)>>,
}

impl Running {
    fn start(options: &BackendOptions) -> Running {
        let (sender, receiver) = mpsc::channel();
        let options = options.clone();
        let thread = std::thread::spawn(move || {
            let mut backend = Backend::open(&options).unwrap();
            sender.send(backend.stopper()).unwrap();
            let outcome = backend.run();
            if outcome.is_ok() {
                // What was still on its way out when the last request ended.
                let mut events = Vec::new();
                backend.device.volume.turn(Some(Duration::from_millis(20)), &mut events).unwrap();
                backend.device.work();
            }
            (outcome, backend.device.lent())
        });
        Running { stopper: receiver.recv().unwrap(), thread: Some(thread) }
    }

    /// Stops it. The answer is how many buffers did not come back.
    fn stop(&mut self) -> usize {
        self.stopper.stop();
        let (outcome, lent) = self.thread.take().unwrap().join().unwrap();
        outcome.unwrap();
        lent
    }

    /// Waits until it ends by itself.
    fn wait(&mut self) -> BackendError {
        self.thread.take().unwrap().join().unwrap().0.unwrap_err()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // A test that failed already has something to say.
            let _ = thread.join();
        }
    }
}

/// A cluster with a volume `disk` that is served.
struct Served {
    running: Running,
    options: BackendOptions,
    cluster: TestCluster,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start(change: impl FnOnce(&TestCluster, &mut BackendOptions)) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let cluster = TestCluster::start(directory.path());
        cluster.create_volume("disk", DISK_BYTES);
        let mut options = BackendOptions {
            cluster: cluster.access(),
            volume: "disk".to_owned(),
            socket: directory.path().join("disk.sock"),
            queues: 2,
            open: OpenAs::Owner,
            timeout: None,
        };
        change(&cluster, &mut options);
        let running = Running::start(&options);
        Served { running, options, cluster, _directory: directory }
    }

    /// A guest whose rings run.
    fn guest(&self) -> Guest {
        let mut guest = Guest::new();
        guest.connect(&self.options.socket);
        guest
    }
}
