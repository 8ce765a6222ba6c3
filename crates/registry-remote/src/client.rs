//! The registry of another process.

use crate::link::{Lines, Link, Way};
use crate::nodes::Nodes;
use crate::protocol::{CALL, Failure, WATCH, WatchQuestion};
use async_trait::async_trait;
use auth::Identity;
use cluster::ClusterError;
use registry::implement::{Answer, Caller, PROBE, Request};
use registry::{Connect, DEFAULT_TIMEOUT, Endpoints, Registry, RegistryError, Revision, Watch, WatchBatch};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The pause before a watch goes on that was cut off: who does not read it is cut off soon again.
const RESUME_PAUSE: Duration = Duration::from_millis(50);

/// A registry behind a Unix socket, served by a [`super::SocketServer`], or behind the nodes of a cluster, which serve it to
/// owners.
pub struct RemoteRegistry {
    link: Arc<Link>,
}

impl RemoteRegistry {
    /// A client of the registry at a socket, that connects when it is asked something; operations wait for it up to `timeout`.
    #[must_use]
    pub fn new(socket: &Path, timeout: Duration) -> RemoteRegistry {
        let (way, place) = (Way::Socket(socket.to_owned()), socket.display().to_string());
        RemoteRegistry { link: Arc::new(Link::new(way, place, timeout)) }
    }

    /// A client that has seen its registry answer.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when nobody answers within `timeout`.
    pub async fn connect(socket: &Path, timeout: Duration) -> Result<RemoteRegistry, RegistryError> {
        RemoteRegistry::new(socket, timeout).answering().await
    }

    /// A client of a cluster's nodes that has seen one of them answer.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when none answers within `timeout`, or takes that key; [`RegistryError::Forbidden`] when
    /// it is no owner's.
    pub async fn connect_to_nodes(
        endpoints: &Endpoints,
        identity: &Identity,
        timeout: Duration,
    ) -> Result<RemoteRegistry, RegistryError> {
        let way = Way::Nodes(Nodes::new(endpoints, identity));
        RemoteRegistry { link: Arc::new(Link::new(way, endpoints.place(), timeout)) }.answering().await
    }

    async fn answering(self) -> Result<RemoteRegistry, RegistryError> {
        self.get(PROBE).await?;
        Ok(self)
    }
}

/// What a registry is told that did not do something.
fn of_registry(failure: Failure, link: &Link) -> RegistryError {
    match failure {
        Failure::Registry(error) => error,
        // A registry knows of no volumes.
        failure => {
            let reason = ClusterError::from(failure).to_string();
            RegistryError::Protocol { registry: link.place.clone(), reason }
        }
    }
}

#[async_trait]
impl Caller for RemoteRegistry {
    fn place(&self) -> String {
        self.link.place.clone()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        request.check()?;
        let (answer, may_be_done) = self.link.ask(CALL, &request, request.repeatable()).await;
        match answer.map_err(|failure| of_registry(failure, &self.link)) {
            // An attempt whose answer was lost did what was asked.
            Err(RegistryError::LeaseNotFound { .. })
                if may_be_done && matches!(request, Request::LeaseRevoke { .. }) =>
            {
                Ok(Answer::Done)
            }
            answer => answer,
        }
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        let mut watch = RemoteWatch { link: self.link.clone(), prefix, position: start, lines: None };
        watch.resume().await?;
        Ok(Box::new(watch))
    }
}

/// A watch that outlives connections.
struct RemoteWatch {
    link: Arc<Link>,
    prefix: String,
    position: Revision,
    lines: Option<Lines>,
}

impl RemoteWatch {
    async fn resume(&mut self) -> Result<(), RegistryError> {
        let question = WatchQuestion { prefix: self.prefix.clone(), start: self.position };
        let followed = self.link.follow(WATCH, &question).await;
        let (position, lines) = followed.map_err(|failure| of_registry(failure, &self.link))?;
        (self.position, self.lines) = (position, Some(lines));
        Ok(())
    }
}

#[async_trait]
impl Watch for RemoteWatch {
    fn position(&self) -> Revision {
        self.position
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        loop {
            let Some(lines) = &mut self.lines else {
                match self.resume().await {
                    // A watch has no deadline: it waits for its registry as long as it takes.
                    Ok(()) | Err(RegistryError::Unreachable { .. }) => continue,
                    Err(error) => return Err(error),
                }
            };
            match lines.next::<Result<WatchBatch, RegistryError>>().await {
                Some(Ok(batch)) => {
                    self.position = batch.revision.next();
                    return Ok(batch);
                }
                Some(Err(error)) => {
                    self.lines = None;
                    return Err(error);
                }
                None => {
                    self.link.leave_teller(lines);
                    self.lines = None;
                    tokio::time::sleep(RESUME_PAUSE).await;
                }
            }
        }
    }
}

/// The Unix socket on which a process of this machine serves a registry.
#[derive(Clone, Debug)]
pub struct SocketPlace(pub PathBuf);

#[async_trait]
impl Connect for SocketPlace {
    async fn connect(&self) -> Result<Arc<dyn Registry>, RegistryError> {
        Ok(Arc::new(RemoteRegistry::connect(&self.0, DEFAULT_TIMEOUT).await?))
    }
}

impl fmt::Display for SocketPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unix:{}", self.0.display())
    }
}

// The futures of operations go between threads.
const _: fn(&RemoteRegistry) = |registry| {
    fn is_send(_: impl Future + Send) {}
    is_send(registry.get(""));
};
