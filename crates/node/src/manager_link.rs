//! The way to the process that manages the cluster: HTTP on a connection whose both ends have proved their keys.

use api::http::{Answer, AskManager, Asking};
use auth::Identity;
use axum::body::Bytes;
use axum::http::{Method, Request, header};
use base::map::ClusterMap;
use base::{Encryption, PublicKey};
use cluster::{Known, ManagerRecord, Vantage};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(8);
/// The longest answer that is read, in bytes: all that is known of 65,536 groups is some 20 MB.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A connection to the manager.
pub struct ManagerLink {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<()>,
}

impl Drop for ManagerLink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl ManagerLink {
    /// Connects to whoever must be at an address.
    ///
    /// # Errors
    /// In words, for a person.
    pub async fn connect(
        identity: &Identity,
        key: PublicKey,
        address: SocketAddr,
        encryption: Encryption,
    ) -> Result<ManagerLink, String> {
        let channel = auth::reach(identity, key, address, encryption).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(channel.into_stream()))
            .await
            .map_err(|error| format!("{address} cannot be asked: {error}"))?;
        // Why it ended, whoever asks is told.
        let connection = tokio::spawn(async move { drop(connection.await) });
        Ok(ManagerLink { address, sender, connection })
    }

    /// Asks for a path.
    ///
    /// # Errors
    /// In words, for a person. The connection is of no use then.
    pub async fn get(&mut self, path: &str) -> Result<Answer, String> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// Tells something.
    ///
    /// # Errors
    /// In words, for a person. The connection is of no use then.
    pub async fn post(&mut self, path: &str, json: Bytes) -> Result<Answer, String> {
        self.send(Method::POST, path, json).await
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Answer, String> {
        let address = self.address;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, address.to_string())
            .body(Full::new(body))
            .map_err(|error| format!("{path} cannot be asked for: {error}"))?;
        let sender = &mut self.sender;
        let answering = async {
            sender.ready().await.map_err(|error| error.to_string())?;
            let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let code = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            Ok(Answer { code, body })
        };
        match timeout(ANSWER_LIMIT, answering).await {
            Ok(answered) => answered.map_err(|error: String| format!("{address} did not answer: {error}")),
            Err(_) => Err(format!("{address} did not answer within {} s", ANSWER_LIMIT.as_secs())),
        }
    }
}

/// The way to whoever manages the cluster at the moment.
#[derive(Clone)]
pub struct ToManager {
    /// The key of this node.
    pub identity: Identity,
    /// The map, kept current.
    pub maps: watch::Receiver<Arc<ClusterMap>>,
    /// The manager, kept current.
    pub manager: watch::Receiver<Known<ManagerRecord>>,
}

impl ToManager {
    /// Connects to it.
    ///
    /// # Errors
    /// In words, for a person.
    pub async fn connect(&self) -> Result<ManagerLink, String> {
        let record = match &*self.manager.borrow() {
            Known::Is(record) => record.clone(),
            Known::Absent => return Err("nobody manages the cluster at the moment".to_owned()),
            Known::NotYet => return Err("who manages the cluster is not known here yet".to_owned()),
        };
        let node = record.node;
        let address = record.address.ok_or_else(|| {
            format!("{node} manages the cluster, and is of a version that does not answer; start it anew")
        })?;
        let (key, encryption, address) = {
            let map = self.maps.borrow();
            let nearest = Vantage::default().nearest(map.nodes.get(&node), address);
            (map.key_of_node(node), map.encryption, nearest)
        };
        let key =
            key.ok_or_else(|| format!("{node} manages the cluster, and the cluster map shows no key of it"))?;
        let link = ManagerLink::connect(&self.identity, key, address, encryption).await;
        link.map_err(|error| format!("{node}, which manages the cluster, cannot be reached: {error}"))
    }
}

impl AskManager for ToManager {
    fn ask<'a>(&'a self, path: &'a str) -> Asking<'a> {
        Box::pin(async move { self.connect().await?.get(path).await })
    }
}
