//! What each process of a node runs beside its OSDs: it stands ready to manage the cluster, tells the manager how its OSDs
//! are, and answers who asks over HTTP.

use crate::candidate::Candidate;
use crate::http;
use crate::manager_link::ToManager;
use crate::manager_port::ManagerPort;
use crate::reporter::report;
use api::board::Board;
use api::http::{Parts, Source};
use auth::Identity;
use base::NodeId;
use base::map::ClusterMap;
use cluster::Cluster;
use manager::collector::Collector;
use manager::log::ProcessLog;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What it is done for, and with.
pub struct Attendance {
    /// The node.
    pub node: NodeId,
    /// Its key.
    pub identity: Identity,
    /// The cluster.
    pub cluster: Cluster,
    /// The same by a link to its registry of its own, for who asks at the manager's port: leases do not wait for those.
    pub asked: Cluster,
    /// Its map, kept current.
    pub maps: watch::Receiver<Arc<ClusterMap>>,
    /// The addresses of this machine at which it is reached, the one that is preferred first.
    pub listen: Vec<IpAddr>,
    /// What the OSDs of this process tell.
    pub board: Board,
    /// What this process logs.
    pub log: ProcessLog,
}

impl Attendance {
    /// Begins, in tasks that end when `stop` changes, or with what is answered.
    ///
    /// # Errors
    /// When no port is free at all of these addresses, or one of them is not one of this machine: which, and why.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn begin(self, stop: &watch::Receiver<bool>) -> std::io::Result<JoinSet<()>> {
        let Attendance { node, identity, cluster, asked, maps, listen, board, log } = self;
        let port = ManagerPort::open(&listen)?;
        let collector = Collector::default();
        let records = cluster.watch_manager();
        let to = ToManager { identity: identity.clone(), maps: maps.clone(), manager: records.clone() };
        let source = Arc::new(Source::new(Parts {
            node,
            cluster: asked,
            maps: maps.clone(),
            manager: records.clone(),
            board: board.clone(),
            collector: collector.clone(),
            elsewhere: Arc::new(to.clone()),
        }));
        let candidate = Candidate { node, cluster: cluster.clone(), address: port.address, collector };
        let mut tasks = JoinSet::new();
        tasks.spawn(candidate.run(maps, records, stop.clone()));
        tasks.spawn(http::run(cluster.clone(), node, port.address, source.clone(), stop.clone()));
        let mut own_stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = port.serve(node, identity, source) => {}
                () = report(node, cluster, to, board, log) => {}
                _ = own_stop.changed() => {}
            }
        });
        Ok(tasks)
    }
}
