//! Where the registry is of a cluster that `up` runs: in this process, or in an etcd that it was moved to
//! ([`crate::commands::migrate`]).

use crate::Usage;
use crate::host::access;
use crate::host::configuration::{Configuration, Drives, Request, Stored};
use crate::host::directory::Directory;
use crate::host::settings::Settings;
use anyhow::{Context, bail};
use base::ClusterId;
use cluster::{Cluster, Presence};
use node::Location;
use registry::Registry;
use registry_embedded::EmbeddedRegistry;
use registry_remote::SocketServer;
use std::ffi::OsString;
use std::sync::Arc;

/// See the module's documentation.
pub struct Home {
    registry: Arc<dyn Registry>,
    cluster: ClusterId,
    /// What says where the registry is, unless it is in this process.
    elsewhere: Option<Settings>,
}

impl Home {
    /// Opens the registry of the cluster in a directory, or makes one. Nobody else is served it yet.
    pub async fn open(directory: &Directory, request: &Request) -> anyhow::Result<(Home, Configuration)> {
        let settings = Settings::load(directory)?;
        match settings.registry_url() {
            None => Home::here(directory, request).await,
            Some(_) => Home::elsewhere(settings, directory, request).await,
        }
    }

    async fn here(directory: &Directory, request: &Request) -> anyhow::Result<(Home, Configuration)> {
        let (registry, configuration) = open_registry(directory, request).await?;
        let cluster = registry.cluster();
        let registry: Arc<dyn Registry> = registry;
        Cluster::new(registry.clone()).create(cluster).await.context("cannot set up the registry")?;
        Ok((Home { registry, cluster, elsewhere: None }, configuration))
    }

    async fn elsewhere(
        settings: Settings,
        directory: &Directory,
        request: &Request,
    ) -> anyhow::Result<(Home, Configuration)> {
        let given = directory.given();
        if let Some(node) = settings.node() {
            bail!(
                "the machine of {given} is {node} of a cluster of several hosts; `millpond node start --dir {given}` runs it"
            );
        }
        if settings.are_of_client() {
            bail!(
                "the machine of {given} is a client of a cluster of other hosts; another --dir is for a cluster of this machine \
                 alone"
            );
        }
        if !settings.are_of_up() {
            bail!(
                "the machine of {given} manages a cluster of several hosts and has no drives in it; `millpond node join` gives \
                 it some, and another --dir is for a cluster of this machine alone"
            );
        }
        let cluster = access::connect(&settings, directory).await?;
        let id = cluster.id().await?;
        let registry = cluster.registry().clone();
        let configuration = Stored::require(registry.as_ref()).await?.configuration;
        if let Some(conflict) = configuration.conflict(request, directory) {
            bail!(Usage(conflict));
        }
        Ok((Home { registry, cluster: id, elsewhere: Some(settings) }, configuration))
    }

    /// The registry.
    pub fn registry(&self) -> &Arc<dyn Registry> {
        &self.registry
    }

    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Whether the registry is in another process, so that the cluster may have nodes of other hosts.
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Serves the registry to the other processes of this machine, if it is in this one.
    pub fn serve(&self, directory: &Directory) -> anyhow::Result<Option<SocketServer>> {
        if self.is_elsewhere() {
            return Ok(None);
        }
        let server = SocketServer::bind(&directory.registry_socket(), self.registry.clone());
        server.map(Some).context("cannot serve the registry")
    }

    /// What a node's process is told of where the registry is, and of where others reach it.
    pub fn arguments(&self, directory: &Directory, node: u32) -> anyhow::Result<Vec<OsString>> {
        Ok(match &self.elsewhere {
            None => {
                let registry = Location::Socket(directory.registry_socket()).to_string();
                vec!["--registry".into(), registry.into(), "--dir".into(), directory.node(node).into()]
            }
            // With what etcd wants to see, which stands on no command line.
            Some(settings) => {
                let spin = settings.spin_max().as_micros();
                let mut arguments: Vec<OsString> = vec!["--dir".into(), directory.path().into()];
                arguments.extend(settings.listen().to_flags());
                arguments.extend(["--spin-us".into(), spin.to_string().into()]);
                arguments
            }
        })
    }
}

async fn open_registry(
    directory: &Directory,
    request: &Request,
) -> anyhow::Result<(Arc<EmbeddedRegistry>, Configuration)> {
    let path = directory.registry_file();
    let registry = if directory.has_cluster() {
        let opened = EmbeddedRegistry::open(&path)?;
        match Presence::read(&opened).await? {
            Presence::Absent | Presence::Here(_) => {}
            // Says what to do.
            moved => drop(moved.id()?),
        }
        if let Some(configuration) = Configuration::load(&opened).await? {
            if let Some(conflict) = configuration.conflict(request, directory) {
                bail!(Usage(conflict));
            }
            return Ok((Arc::new(opened), configuration));
        }
        // A first start that got no further than this.
        Some(opened)
    } else {
        None
    };
    let configuration = Configuration::new(request)?;
    // Before anything is made: a wrong device leaves no half of a cluster behind.
    if let Drives::Devices(paths) = &configuration.drives {
        drive::check_new(paths)?;
    }
    let registry = match registry {
        Some(registry) => registry,
        None => EmbeddedRegistry::create(&path, ClusterId(uuid::Uuid::new_v4()))?,
    };
    configuration.store(&registry).await?;
    Ok((Arc::new(registry), configuration))
}
