//! How a command learns how the cluster is: it asks the process that manages it, with the key of whoever owns the directory.
//! Where that does not answer, the registry still knows who is up and who holds what, and that is shown, with a warning.

use crate::host::directory::Directory;
use crate::output;
use crate::output::time::since_1970;
use anyhow::{Context, bail};
use api::http::{Answer, LOG_PATH};
use auth::{Identity, SecretKey};
use axum::body::Bytes;
use base::map::ClusterMap;
use base::{Encryption, PublicKey};
use cluster::{Drives, HttpRecord, Manager, ManagerRecord, Vantage};
use health::problem::Health;
use health::status::{Overview, Picture, Status};
use health::view::{OsdView, PgView, PoolView, Reports};
use manager::log::{LogQuery, LogView};
use node::ManagerLink;
use registry_remote::Desk;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a manager is waited for: as long as the lease of one that died lasts, and its successor needs to be told all.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause before it is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// After this it is told that somebody is waited for.
const SAY_AFTER: Duration = Duration::from_secs(1);

/// A cluster that can be asked how it is.
pub struct Inquiry {
    desk: Desk,
    /// Where the key may be that it is asked with, the best first.
    keys: [PathBuf; 3],
}

fn read<T: DeserializeOwned>(answer: &Answer) -> anyhow::Result<T> {
    let read = serde_json::from_slice(&answer.body);
    read.context("the manager's answer makes no sense; is it of another version?")
}

/// Why the manager gave no answer.
enum NoAnswer {
    /// It may soon.
    NotYet(String),
    /// It will not.
    Never(String),
}

impl Inquiry {
    /// Asks about a cluster as whoever owns a directory.
    pub fn new(desk: Desk, directory: &Directory) -> Inquiry {
        let keys = [directory.admin_key(), directory.host_key(), directory.client_key()];
        Inquiry { desk, keys }
    }

    /// Where what does not change from moment to moment is asked.
    pub fn desk(&self) -> &Desk {
        &self.desk
    }

    /// Everything but the groups.
    pub async fn status(&self) -> anyhow::Result<Status> {
        self.ask("/api/v1/status", |picture| picture.status).await
    }

    /// Everything but what grows with the cluster.
    pub async fn overview(&self) -> anyhow::Result<Overview> {
        self.ask("/api/v1/overview", |picture| picture.status.overview).await
    }

    /// The verdict.
    pub async fn health(&self) -> anyhow::Result<Health> {
        self.ask("/api/v1/health", |picture| picture.status.overview.health).await
    }

    /// The OSDs.
    pub async fn osds(&self) -> anyhow::Result<Vec<OsdView>> {
        self.ask("/api/v1/osds", |picture| picture.status.osds).await
    }

    /// The same as the manager tells them, or why it does not.
    pub async fn told_osds(&self) -> anyhow::Result<Result<Vec<OsdView>, String>> {
        match self.ask_patiently("/api/v1/osds").await? {
            Ok(answer) => read(&answer).map(Ok),
            Err(silence) => Ok(Err(silence)),
        }
    }

    /// The placement groups.
    pub async fn pgs(&self) -> anyhow::Result<Vec<PgView>> {
        self.ask("/api/v1/pgs", |picture| picture.pgs).await
    }

    /// The pools.
    pub async fn pools(&self) -> anyhow::Result<Vec<PoolView>> {
        self.ask("/api/v1/pools", |picture| picture.status.overview.pools).await
    }

    /// What the nodes logged. Where no manager tells it, nobody does.
    pub async fn log(&self, query: &LogQuery) -> anyhow::Result<LogView> {
        let query = serde_urlencoded::to_string(query).context("cannot write the query")?;
        match self.ask_patiently(&format!("{LOG_PATH}?{query}")).await? {
            Ok(answer) => read(&answer),
            Err(silence) => {
                bail!("{silence}; each node's own log, node.N.log in its directory, has what it logged")
            }
        }
    }

    /// What a certain manager answers now, if it does.
    pub async fn ask_once<T: DeserializeOwned>(&self, record: &ManagerRecord, path: &str) -> Option<T> {
        let key = self.desk.map().await.ok()?.key_of_node(record.node);
        let answer = self.ask_manager(record, key, path).await.ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        of_registry: impl FnOnce(Picture) -> T,
    ) -> anyhow::Result<T> {
        let silence = match self.ask_patiently(path).await? {
            Ok(answer) => return read(&answer),
            Err(silence) => silence,
        };
        output::warning(&format!("{silence}; shown is what the registry knows"));
        let map = self.desk.map().await?;
        Ok(of_registry(self.as_the_registry_knows(&map, silence).await?))
    }

    /// What the registry alone knows, where the manager does not answer; `silence` says why.
    pub async fn as_the_registry_knows(&self, map: &ClusterMap, silence: String) -> anyhow::Result<Picture> {
        let drives = self.desk.ask(Drives {}).await?;
        let manager = self.desk.ask(Manager {}).await?;
        let (away, late) = manager.map(|(manager, _)| (manager.away, manager.late)).unwrap_or_default();
        let reports = Reports { drives, away, late, silence: Some(silence), ..Reports::default() };
        Ok(Picture::of(map, &reports, None, since_1970().as_secs()))
    }

    /// What the manager answers, or why none does. An error is one of the registry.
    async fn ask_patiently(&self, path: &str) -> anyhow::Result<Result<Answer, String>> {
        let began = Instant::now();
        let mut has_said = false;
        loop {
            let answered = match self.desk.ask(Manager {}).await? {
                Some((record, key)) => self.ask_manager(&record, key, path).await,
                None => Err(NoAnswer::NotYet("nobody manages the cluster".to_owned())),
            };
            let reason = match answered {
                Ok(answer) => return Ok(Ok(answer)),
                Err(NoAnswer::Never(reason)) => return Ok(Err(reason)),
                Err(NoAnswer::NotYet(reason)) => reason,
            };
            if began.elapsed() > PATIENCE || !self.is_anybody_up().await? {
                return Ok(Err(reason));
            }
            if began.elapsed() > SAY_AFTER && !has_said {
                output::notice(&format!("{reason}; waiting for another"));
                has_said = true;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Whether there is a process that could manage the cluster.
    async fn is_anybody_up(&self) -> anyhow::Result<bool> {
        Ok(self.desk.map().await?.osds.values().any(|info| info.address.is_some()))
    }

    async fn ask_manager(
        &self,
        record: &ManagerRecord,
        key: Option<PublicKey>,
        path: &str,
    ) -> Result<Answer, NoAnswer> {
        let node = record.node;
        let identity = self.identity().map_err(NoAnswer::Never)?;
        let address = record.address.ok_or_else(|| {
            NoAnswer::Never(format!(
                "{node}, which manages the cluster, is of a version that does not answer"
            ))
        })?;
        let key = key.ok_or_else(|| {
            NoAnswer::Never(format!("{node} manages the cluster, and has no key in its map"))
        })?;
        let silent = |reason| {
            NoAnswer::NotYet(format!("{node}, which manages the cluster, does not answer: {reason}"))
        };
        // Whether it is encrypted the manager says, which proves its key before that.
        let mut linked = ManagerLink::connect(&identity, key, address, Encryption::Off).await;
        if linked.is_err()
            && let Ok(map) = self.desk.map().await
        {
            // Of its addresses, another one may be reached from here.
            let nearest = Vantage::default().nearest(map.nodes.get(&node), address);
            if nearest != address {
                linked = ManagerLink::connect(&identity, key, nearest, Encryption::Off).await;
            }
        }
        let mut link = linked.map_err(silent)?;
        let answer = link.get(path).await.map_err(silent)?;
        if answer.code.is_success() {
            return Ok(answer);
        }
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        Err(match answer.code.is_server_error() {
            true => silent(said),
            false => NoAnswer::Never(format!("{node}, which manages the cluster, refused: {said}")),
        })
    }

    /// What one process answers of its own OSDs, asked at its node's address.
    pub async fn ask_process(
        identity: &Identity,
        server: &HttpRecord,
        map: &ClusterMap,
        path: &str,
    ) -> anyhow::Result<Bytes> {
        let address =
            server.remote_address.context("it is of a version that does not answer; start it anew")?;
        let address = Vantage::default().nearest(map.nodes.get(&server.node), address);
        let key = map.key_of_node(server.node).context("the cluster map shows no key of it")?;
        // Whether it is encrypted the process says, which proves its key before that.
        let linked = ManagerLink::connect(identity, key, address, Encryption::Off).await;
        let mut link = linked.map_err(anyhow::Error::msg)?;
        let answer = link.get(path).await.map_err(anyhow::Error::msg)?;
        if !answer.code.is_success() {
            bail!("it answered {}: {}", answer.code, String::from_utf8_lossy(&answer.body));
        }
        Ok(answer.body)
    }

    /// The key that is asked with.
    pub fn identity(&self) -> Result<Identity, String> {
        let path = self.keys.iter().find(|path| path.exists()).unwrap_or(&self.keys[0]);
        SecretKey::load(path)
            .map(|key| Identity::new(&key))
            .map_err(|error| format!("the manager cannot be asked without a key: {error}"))
    }
}
