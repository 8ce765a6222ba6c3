//! A registry inside this process, on one file.
//!
//! A thread of its own owns the file and the state. It takes the requests that wait, applies them to the
//! state in memory, writes what they changed in one durable commit, and only then answers them and shows
//! the changes to watches. So a crowd of writers shares a flush, and nobody sees what could be lost.
//!
//! Leases run on the monotonic clock. Their remaining time is not written down: after a reopening each
//! runs its full time anew, so the keys of a client that died meanwhile go then. The same after a time in
//! which this process stood still: nobody could keep a lease alive then. History is kept in
//! memory only: a watch from before a reopening ends in `Compacted`.
//!
//! When the file cannot be written, the state in memory may be ahead of it. The registry then answers
//! everything with [`RegistryError::Storage`] until it is opened again.

mod file;
mod verify;

pub use file::OpenError;

use async_trait::async_trait;
use base::ClusterId;
use file::RegistryFile;
use registry::RegistryError;
use registry::implement::{Answer, Caller, Request};
use registry::implement::{Changes, History, State, Table, history};
use registry::{LeaseId, Revision, Watch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Requests that may wait for the registry's thread; further callers wait for room.
const QUEUED_MAX: usize = 1024;
/// Requests that one commit may serve.
const BATCH_MAX: usize = 256;
/// How long an ended lease may still be kept alive by a request that waits in the queue.
const EXPIRY_GRACE: Duration = Duration::from_secs(1);
/// When a lease that should be looked at is looked at so much later, this process did not run.
const STOOD_STILL: Duration = Duration::from_millis(500);

type Reply = oneshot::Sender<Result<Answer, RegistryError>>;

/// A registry on a file of this process. Dropping it finishes what was begun and releases the file.
pub struct EmbeddedRegistry {
    path: PathBuf,
    cluster: ClusterId,
    history: Arc<History>,
    requests: Option<mpsc::Sender<(Request, Reply)>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl EmbeddedRegistry {
    /// Makes a new registry for a cluster. The file must not be there.
    ///
    /// # Errors
    /// [`OpenError::AlreadyThere`], or what the system refused.
    pub fn create(path: &Path, cluster: ClusterId) -> Result<EmbeddedRegistry, OpenError> {
        let file = RegistryFile::create(path, cluster)?;
        EmbeddedRegistry::start(path, file, State::default(), cluster)
    }

    /// Opens a registry, after verifying all of it.
    ///
    /// # Errors
    /// Why it cannot be trusted, or who uses it.
    pub fn open(path: &Path) -> Result<EmbeddedRegistry, OpenError> {
        let (file, state, cluster) = RegistryFile::open(path)?;
        EmbeddedRegistry::start(path, file, state, cluster)
    }

    /// Opens the registry of a known cluster.
    ///
    /// # Errors
    /// [`OpenError::OtherCluster`], and those of [`Self::open`].
    pub fn open_of(path: &Path, expected: ClusterId) -> Result<EmbeddedRegistry, OpenError> {
        let (file, state, found) = RegistryFile::open(path)?;
        if found != expected {
            return Err(OpenError::OtherCluster { path: path.to_owned(), found, expected });
        }
        EmbeddedRegistry::start(path, file, state, found)
    }

    /// The cluster it was made for.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    fn start(
        path: &Path,
        file: RegistryFile,
        state: State,
        cluster: ClusterId,
    ) -> Result<EmbeddedRegistry, OpenError> {
        let io_error = |source| OpenError::Io { path: path.to_owned(), source };
        let history = Arc::new(History::new(state.revision(), history::TRANSACTIONS_MAX));
        let (sender, receiver) = mpsc::channel(QUEUED_MAX);
        // Its own runtime, for its timer only: commits block, and must block nobody else.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(io_error)?;
        let engine = Engine {
            path: path.display().to_string(),
            file,
            table: Table::new(state, Duration::ZERO),
            began: Instant::now(),
            history: history.clone(),
            failed: None,
        };
        let thread = std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || runtime.block_on(engine.run(receiver)))
            .map_err(io_error)?;
        Ok(EmbeddedRegistry {
            path: path.to_owned(),
            cluster,
            history,
            requests: Some(sender),
            thread: Some(thread),
        })
    }
}

impl Drop for EmbeddedRegistry {
    fn drop(&mut self) {
        // Without senders the thread ends after what is queued; joined, so that the file can be opened again.
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(path = %self.path.display(), "the registry's thread had panicked");
        }
    }
}

#[async_trait]
impl Caller for EmbeddedRegistry {
    fn place(&self) -> String {
        self.path.display().to_string()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        request.check()?;
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or(RegistryError::Closed)?;
        requests.send((request, reply)).await.map_err(|_| RegistryError::Closed)?;
        answer.await.map_err(|_| RegistryError::Closed)?
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        Ok(Box::new(self.history.watch(prefix, start)))
    }
}

/// What the registry's thread owns.
struct Engine {
    path: String,
    file: RegistryFile,
    table: Table,
    /// What the table's times count from.
    began: Instant,
    history: Arc<History>,
    /// Why the file could not be written, once it could not.
    failed: Option<RegistryError>,
}

impl Engine {
    async fn run(mut self, mut requests: mpsc::Receiver<(Request, Reply)>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            // Not before now: what came before, a slow commit, is not a time in which nobody was heard.
            let due = self.table.next_end().map(|end| end.max(self.began.elapsed()));
            let expiry = async {
                match due {
                    Some(due) => tokio::time::sleep_until((self.began + due).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Requests first: a lease that was kept alive in time is not ended because this thread
                // was held up in a commit.
                biased;
                received = requests.recv_many(&mut batch, BATCH_MAX) => {
                    if received == 0 {
                        return;
                    }
                    self.notice_a_stop(due);
                    self.serve(&mut batch);
                    // Under a load that never pauses leases must end too, but not one whose renewal
                    // may be waiting in the queue.
                    self.expire(EXPIRY_GRACE);
                }
                () = expiry => {
                    self.notice_a_stop(due);
                    self.expire(Duration::ZERO);
                }
            }
        }
    }

    fn serve(&mut self, batch: &mut Vec<(Request, Reply)>) {
        let mut changes = Changes::default();
        let mut answers = Vec::with_capacity(batch.len());
        for (request, reply) in batch.drain(..) {
            let answer = match &self.failed {
                Some(error) => Err(error.clone()),
                None => self.apply(request, &mut changes),
            };
            answers.push((reply, answer));
        }
        let committed = self.commit(changes);
        for (reply, answer) in answers {
            // Who no longer waits for the answer has dropped the receiver; that is no fault.
            let _ = reply.send(committed.clone().and(answer));
        }
    }

    fn apply(&mut self, request: Request, changes: &mut Changes) -> Result<Answer, RegistryError> {
        self.table.apply(request, self.began.elapsed(), LeaseId::random, &self.history, changes)
    }

    /// Lets all leases run anew if it woke much later than it wanted: nobody could keep one alive meanwhile.
    fn notice_a_stop(&mut self, due: Option<Duration>) {
        let now = self.began.elapsed();
        if due.is_some_and(|due| now > due + STOOD_STILL) {
            tracing::warn!("the registry stood still for a while; all leases run anew");
            self.table.renew_all(now);
        }
    }

    fn expire(&mut self, grace: Duration) {
        let mut changes = Changes::default();
        if let Some(at) = self.began.elapsed().checked_sub(grace) {
            self.table.expire(at, &mut changes);
        }
        if let Err(error) = self.commit(changes) {
            tracing::error!(%error, "ended leases could not be written");
        }
    }

    fn commit(&mut self, changes: Changes) -> Result<(), RegistryError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if changes.writes.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.commit(self.table.revision(), &changes.writes) {
            let error = RegistryError::Storage { path: self.path.clone(), reason: error.to_string() };
            self.failed = Some(error.clone());
            self.table.stop();
            return Err(error);
        }
        for (revision, events) in changes.transactions {
            self.history.push(revision, events);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
