//! What a client has of a cluster: a clerk of its own, or those of the nodes.

use crate::link::{Lines, Link, Way};
use crate::nodes::Nodes;
use crate::protocol::{MAP, path_of};
use async_trait::async_trait;
use auth::Identity;
use base::PublicKey;
use base::map::ClusterMap;
use cluster::{Clerk, Cluster, ClusterError, MapFollower, Question, keep_map};
use registry::{Connect, DEFAULT_TIMEOUT, Endpoints, Range, RegistryError, Revision, Watch, WatchBatch};
use std::sync::Arc;
use tokio::sync::watch;

/// Where a client asks.
#[derive(Clone, Debug)]
pub enum DeskPlace {
    /// It reaches the registry, and answers by itself.
    Registry(Arc<dyn Connect>),
    /// The nodes of the cluster answer, by what they think of its key.
    Nodes(Endpoints),
}

impl DeskPlace {
    /// The desk there. That of nodes is reached when it is asked something.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when the registry does not answer in time.
    pub async fn open(&self, identity: &Identity) -> Result<Desk, RegistryError> {
        match self {
            DeskPlace::Registry(registry) => Ok(Desk::of(Cluster::new(registry.connect().await?))),
            DeskPlace::Nodes(endpoints) => {
                let nodes = Nodes::new(endpoints, identity);
                let link = Link::new(Way::Nodes(nodes), endpoints.place(), DEFAULT_TIMEOUT);
                Ok(Desk(Answering::Nodes { link: Arc::new(link), key: identity.public() }))
            }
        }
    }
}

/// Where a client asks what it must know of a cluster, and has done what must be written down for it.
#[derive(Clone)]
pub struct Desk(Answering);

#[derive(Clone)]
enum Answering {
    Here(Clerk),
    Nodes {
        link: Arc<Link>,
        /// Whose key they are asked with: what bare names of volumes mean goes by what that is for.
        key: PublicKey,
    },
}

impl Desk {
    /// That of who reaches the registry.
    #[must_use]
    pub fn of(cluster: Cluster) -> Desk {
        Desk(Answering::Here(Clerk::of_owner(cluster)))
    }

    /// Asks.
    ///
    /// # Errors
    /// Those of the question. [`RegistryError::OutcomeUnknown`] for one that must not be asked twice, and whose answer was
    /// lost.
    pub async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, ClusterError> {
        match &self.0 {
            Answering::Here(clerk) => clerk.ask(question).await,
            Answering::Nodes { link, .. } => {
                let (answer, _) = link.ask(&path_of::<Q>(), &question, Q::IS_REPEATABLE).await;
                Ok(answer?)
            }
        }
    }

    /// The map as of now.
    ///
    /// # Errors
    /// As [`Cluster::map`].
    pub async fn map(&self) -> Result<ClusterMap, ClusterError> {
        match self.follow_map().await?.map() {
            Some(map) => {
                self.learn(&map);
                Ok(map)
            }
            // Why there is none.
            None => Err(self.ask(cluster::Identify {}).await.err().unwrap_or(ClusterError::NoCluster)),
        }
    }

    /// The map, kept current by a task of its own for as long as a receiver lives. Until the first reading has come, it is
    /// the empty map of revision 0.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn watch_map(&self) -> watch::Receiver<Arc<ClusterMap>> {
        let (desk, learning) = (self.clone(), self.clone());
        let begin = move || {
            let desk = desk.clone();
            async move { desk.follow_map().await }
        };
        keep_map(begin, move |map| learning.learn(map))
    }

    fn learn(&self, map: &ClusterMap) {
        if let Answering::Nodes { link, .. } = &self.0 {
            link.learn(map);
        }
    }

    async fn follow_map(&self) -> Result<MapFollower, ClusterError> {
        let mut with = None;
        let (range, changes): (Range, Box<dyn Watch>) = match &self.0 {
            Answering::Here(clerk) => clerk.follow_map().await?,
            Answering::Nodes { link, key } => {
                with = Some(*key);
                let (range, lines): (Range, Lines) = link.follow(MAP, &()).await?;
                let position = range.revision.next();
                (range, Box::new(Followed { lines, position, link: link.clone() }))
            }
        };
        Ok(MapFollower::of(range, changes)?.seen_with(with))
    }
}

/// The changes of the map, as a node tells them.
struct Followed {
    lines: Lines,
    position: Revision,
    link: Arc<Link>,
}

#[async_trait]
impl Watch for Followed {
    fn position(&self) -> Revision {
        self.position
    }

    async fn next(&mut self) -> Result<WatchBatch, RegistryError> {
        let told: Option<WatchBatch> = self.lines.next().await;
        let batch = told.ok_or_else(|| {
            self.link.leave_teller(&self.lines);
            RegistryError::Unreachable {
                registry: self.link.place.clone(),
                waited_ms: 0,
                reason: "the node that told of its changes does not any more".to_owned(),
            }
        })?;
        self.position = batch.revision.next();
        Ok(batch)
    }
}
