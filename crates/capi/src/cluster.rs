//! A cluster that a program is connected to: what is asked of it runs on a thread of this library's, so that whoever asks may be
//! anybody.

use crate::configuration::Configuration;
use crate::entry::without_signals;
use crate::errno::{Answer, Errno};
use crate::log::Log;
use auth::AuthError;
use base::Encryption;
use base::map::ClusterMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cluster::{ChangeVolumes, Changed, Cluster, ClusterError, Question, VolumeChange};
use registry_remote::{Desk, DeskPlace};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use volume::ClusterAccess;
use volume::token::ClientToken;

/// How long it may take until the map shows what was changed.
const SHOWN_LIMIT: Duration = Duration::from_secs(10);
/// How long a node may take to say why it does not answer.
const REFUSED_LIMIT: Duration = Duration::from_secs(1);
/// Waits without a limit end then: nobody waits so long.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// See the module's documentation.
pub struct Connected {
    runtime: Runtime,
    desk: Desk,
    maps: watch::Receiver<Arc<ClusterMap>>,
    access: ClusterAccess,
    /// What tells this program's connection from others.
    instance: u64,
    description: String,
    question_limit: Option<Duration>,
    operation_limit: Option<Duration>,
    log: Log,
}

/// How what is said leads to a cluster.
fn access(said: &Configuration) -> Answer<ClusterAccess> {
    if let Some(key) = said.key()? {
        let text = STANDARD.decode(&key).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let token: ClientToken = text.as_deref().unwrap_or(&key).parse().map_err(|_| Errno(libc::EINVAL))?;
        return token.access().map_err(|_| Errno(libc::EINVAL));
    }
    let directory = said.directory().ok_or(Errno(libc::ENOENT))?;
    ClusterAccess::local(&directory).map_err(|_| Errno(libc::EACCES))
}

/// Has it done on a runtime's thread, and waits for that.
fn done<T: Send + 'static>(
    runtime: &Runtime,
    limit: Option<Duration>,
    work: impl Future<Output = T> + Send + 'static,
) -> Answer<T> {
    let (sender, receiver) = sync_channel(1);
    let task = runtime.spawn(async move {
        // Whoever waited may have given up.
        let _ = sender.send(work.await);
    });
    receiver.recv_timeout(limit.unwrap_or(FOREVER)).map_err(|_| {
        task.abort();
        Errno(libc::ETIMEDOUT)
    })
}

/// Whether a node says that the key is not one of its cluster's. Whoever asks for more tries one node after the other meanwhile: one may
/// know of a key of which another does not know yet.
fn is_refused(runtime: &Runtime, access: &ClusterAccess) -> bool {
    let DeskPlace::Nodes(endpoints) = &access.desk else { return false };
    endpoints.all().iter().any(|endpoint| {
        let (endpoint, identity) = (*endpoint, access.identity.clone());
        let asking = async move {
            let stream = TcpStream::connect(endpoint.address).await.ok()?;
            identity.connect(stream, endpoint.key, Encryption::On).await.err()
        };
        matches!(done(runtime, Some(REFUSED_LIMIT), asking), Ok(Some(AuthError::Refused(_))))
    })
}

impl Connected {
    /// Where errors are written.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Connects to the cluster that is meant.
    ///
    /// # Errors
    /// `ENOENT`: none is said. `EACCES`: its key is not known there. `ETIMEDOUT`: it does not answer.
    pub fn connect(said: &Configuration) -> Answer<Arc<Connected>> {
        let access = access(said)?;
        let runtime = without_signals(|| {
            Builder::new_multi_thread().worker_threads(1).thread_name("librados").enable_all().build()
        });
        let runtime = runtime.map_err(|_| Errno(libc::EAGAIN))?;
        let (place, identity) = (access.desk.clone(), access.identity.clone());
        let open = async move {
            let desk = place.open(&identity).await.map_err(|error| Errno::from(&error))?;
            // Who may not come learns of it here.
            desk.map().await.map_err(|error| Errno::from(&error))?;
            let mut maps = desk.watch_map();
            let first = maps.wait_for(|map| map.revision > 0).await;
            first.map_err(|_| Errno(libc::EIO))?;
            Ok::<_, Errno>((desk, maps))
        };
        let opened = done(&runtime, said.limit("client_mount_timeout"), open).flatten();
        let (desk, maps) = match opened {
            Err(Errno(libc::ETIMEDOUT)) if is_refused(&runtime, &access) => return Err(Errno(libc::EACCES)),
            opened => opened?,
        };
        let question_limit = said.limit("rados_mon_op_timeout");
        let operation_limit = said.limit("rados_osd_op_timeout");
        // As programs read it: a positive number of theirs.
        let instance = RandomState::new().build_hasher().finish() >> 1;
        let description = format!("librbd, process {}", std::process::id());
        Ok(Arc::new(Connected {
            runtime,
            desk,
            maps,
            access,
            instance,
            description,
            question_limit,
            operation_limit,
            log: Log::new(said),
        }))
    }

    /// The way in, for images.
    #[must_use]
    pub fn access(&self) -> &ClusterAccess {
        &self.access
    }

    /// What tells this connection from others.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Who this is, for people.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// How long an operation on data may take.
    #[must_use]
    pub fn operation_limit(&self) -> Option<Duration> {
        self.operation_limit
    }

    /// The newest map that came.
    #[must_use]
    pub fn map(&self) -> Arc<ClusterMap> {
        self.maps.borrow().clone()
    }

    /// The map as of now: it shows all that was done before.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub fn map_now(&self) -> Answer<ClusterMap> {
        let desk = self.desk.clone();
        let map = done(&self.runtime, self.question_limit, async move { desk.map().await })?;
        map.map_err(|error| Errno::from(&error))
    }

    /// Waits a while until the map is as it is to be; whether it is.
    pub fn wait_for(&self, is_so: impl Fn(&ClusterMap) -> bool + Send + Sync + 'static) -> bool {
        if is_so(&self.maps.borrow()) {
            return true;
        }
        let mut maps = self.maps.clone();
        let waits = async move { maps.wait_for(|map| is_so(map)).await.is_ok() };
        done(&self.runtime, Some(SHOWN_LIMIT), waits).unwrap_or(false)
    }

    /// Asks.
    ///
    /// # Errors
    /// Those of the question; `ETIMEDOUT`.
    pub fn ask<Q: Question>(&self, question: Q) -> Answer<Q::Answer> {
        self.ask_within(question, self.question_limit)
    }

    /// The same, with a time limit of its own.
    ///
    /// # Errors
    /// Those.
    pub fn ask_within<Q: Question>(&self, question: Q, limit: Option<Duration>) -> Answer<Q::Answer> {
        let desk = self.desk.clone();
        let answer = done(&self.runtime, limit, async move { desk.ask(question).await })?;
        answer.map_err(|error| Errno::from(&error))
    }

    /// Does what only an owner may.
    ///
    /// # Errors
    /// `EPERM`: this key is none's that reaches the registry. Those of what is done; `ETIMEDOUT`.
    pub fn as_owner<T: Send + 'static, F: Future<Output = Result<T, ClusterError>> + Send + 'static>(
        &self,
        work: impl FnOnce(Cluster) -> F + Send + 'static,
    ) -> Answer<T> {
        let DeskPlace::Registry(registry) = self.access.desk.clone() else { return Err(Errno(libc::EPERM)) };
        let done = done(&self.runtime, self.question_limit, async move {
            work(Cluster::new(registry.connect().await?)).await
        })?;
        done.map_err(|error| Errno::from(&error))
    }

    /// Has volumes changed.
    ///
    /// # Errors
    /// Those of the change; `ETIMEDOUT`.
    pub fn change(&self, change: VolumeChange) -> Answer<Changed> {
        self.ask(ChangeVolumes { change })
    }
}
