//! Where a cluster's registry is, and how to get there.

use async_trait::async_trait;
use auth::Identity;
use registry::{Connect, DEFAULT_TIMEOUT, Endpoints, Registry, RegistryError};
use registry_etcd::{EtcdOptions, EtcdRegistry};
use registry_remote::{DeskPlace, RemoteRegistry};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// Where a registry is: `unix:PATH`, a URL of etcd's, or nodes that serve it.
#[derive(Clone, Debug)]
pub enum Location {
    /// The Unix socket on which a process of this machine serves it.
    Socket(PathBuf),
    /// An etcd.
    Etcd(EtcdOptions),
    /// The nodes of its cluster, which serve it to owners, and answer other clients as far as their keys go.
    Nodes {
        /// Where they do.
        endpoints: Endpoints,
        /// The key to come with. It is no part of the text.
        identity: Identity,
    },
}

#[async_trait]
impl Connect for Location {
    async fn connect(&self) -> Result<Arc<dyn Registry>, RegistryError> {
        Ok(match self {
            Location::Etcd(options) => Arc::new(EtcdRegistry::connect(options.clone()).await?),
            Location::Socket(path) => Arc::new(RemoteRegistry::connect(path, DEFAULT_TIMEOUT).await?),
            Location::Nodes { endpoints, identity } => {
                Arc::new(RemoteRegistry::connect_to_nodes(endpoints, identity, DEFAULT_TIMEOUT).await?)
            }
        })
    }
}

impl From<Location> for DeskPlace {
    fn from(location: Location) -> DeskPlace {
        match location {
            Location::Nodes { endpoints, .. } => DeskPlace::Nodes(endpoints),
            location => DeskPlace::Registry(Arc::new(location)),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Socket(path) => write!(formatter, "unix:{}", path.display()),
            Location::Etcd(options) => options.fmt(formatter),
            Location::Nodes { endpoints, .. } => endpoints.fmt(formatter),
        }
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Location, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err(format!("{text:?} names no registry; write unix:PATH")),
            Some(path) => Ok(Location::Socket(path.into())),
            None => text.parse().map(Location::Etcd).map_err(|error| {
                format!("{error}; a registry that a process of this machine serves is unix:PATH")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_reads_back_what_it_prints() {
        for text in
            ["unix:/run/r.sock", "etcd://10.0.0.1:2379,10.0.0.2:2379/pond/", "etcds://[::1]:2379/millpond/"]
        {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
        }
        for wrong in ["", "unix:", "tcp:1.2.3.4", "/run/r.sock", "etcd://"] {
            assert!(wrong.parse::<Location>().is_err(), "{wrong}");
        }
    }
}
