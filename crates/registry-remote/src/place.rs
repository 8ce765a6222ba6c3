//! Where a registry is that somebody serves over a connection.

use crate::RemoteRegistry;
use async_trait::async_trait;
use auth::Identity;
use registry::{Connect, DEFAULT_TIMEOUT, Endpoints, Registry, RegistryError};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a registry is served.
#[derive(Clone, Debug)]
pub enum RemotePlace {
    /// The Unix socket on which a process of this machine serves it.
    Socket(PathBuf),
    /// The nodes of its cluster, which serve it to clients.
    Nodes {
        /// Where they do.
        endpoints: Endpoints,
        /// The key to come with. It is no part of the text.
        identity: Identity,
    },
}

#[async_trait]
impl Connect for RemotePlace {
    async fn connect(&self) -> Result<Arc<dyn Registry>, RegistryError> {
        Ok(match self {
            RemotePlace::Socket(path) => Arc::new(RemoteRegistry::connect(path, DEFAULT_TIMEOUT).await?),
            RemotePlace::Nodes { endpoints, identity } => {
                Arc::new(RemoteRegistry::connect_to_nodes(endpoints, identity, DEFAULT_TIMEOUT).await?)
            }
        })
    }
}

impl fmt::Display for RemotePlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemotePlace::Socket(path) => write!(formatter, "unix:{}", path.display()),
            RemotePlace::Nodes { endpoints, .. } => endpoints.fmt(formatter),
        }
    }
}
