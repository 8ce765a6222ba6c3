//! Operations as data: what the embedded registry's thread is handed and what goes over the socket.

use crate::contract::{
    KeyValue, Lease, Range, Registry, RegistryTrouble, Txn, TxnResult, Watch, check_key, check_prefix,
    check_ttl,
};
use crate::error::RegistryError;
use crate::ids::{LeaseId, Revision};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One operation of a [`Registry`], watches apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the operations of a registry say what these are")]
pub enum Request {
    Get { key: String },
    Range { prefix: String },
    Txn(Txn),
    LeaseGrant { ttl_ms: u64 },
    LeaseKeepAlive { lease: LeaseId },
    LeaseRevoke { lease: LeaseId },
    Compact { revision: Revision },
}

impl Request {
    /// Whether it keeps the limits; checked before it is queued or sent, and again at the server.
    pub fn check(&self) -> Result<(), RegistryError> {
        match self {
            Request::Get { key } => check_key(key),
            Request::Range { prefix } => check_prefix(prefix),
            Request::Txn(txn) => txn.check(),
            Request::LeaseGrant { ttl_ms } => check_ttl(Duration::from_millis(*ttl_ms)),
            Request::LeaseKeepAlive { .. } | Request::LeaseRevoke { .. } | Request::Compact { .. } => Ok(()),
        }
    }

    /// Whether doing it twice is as good as once. A second grant leaves a lease that ends by itself.
    pub fn repeatable(&self) -> bool {
        match self {
            Request::Txn(txn) => {
                let reads = |operation: &crate::Operation| {
                    matches!(operation, crate::Operation::Get { .. } | crate::Operation::Range { .. })
                };
                txn.then.iter().chain(&txn.otherwise).all(reads)
            }
            _ => true,
        }
    }
}

/// What a [`Request`] is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the operations of a registry say what these are")]
pub enum Answer {
    Got(Option<KeyValue>),
    Range(Range),
    Txn(TxnResult),
    Granted { lease: LeaseId, ttl_ms: u64 },
    Done,
}

impl Answer {
    /// The error of a peer that answers something else than it was asked.
    pub fn unexpected(&self, registry: &str) -> RegistryError {
        let kind = match self {
            Answer::Got(_) => "a key",
            Answer::Range(_) => "a range",
            Answer::Txn(_) => "a transaction",
            Answer::Granted { .. } => "a lease",
            Answer::Done => "done",
        };
        RegistryError::Protocol { registry: registry.to_owned(), reason: format!("a question with {kind}") }
    }
}

/// A registry that takes its operations as data. It is a [`Registry`] by that.
#[async_trait]
pub trait Caller: Send + Sync + 'static {
    /// Where it is, for errors.
    fn place(&self) -> String;
    /// Performs one request.
    async fn call(&self, request: Request) -> Result<Answer, RegistryError>;
    /// Starts a watch.
    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError>;
    /// What is wrong with it.
    async fn find_troubles(&self) -> Vec<RegistryTrouble> {
        Vec::new()
    }
}

#[async_trait]
impl<T: Caller> Registry for T {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, RegistryError> {
        match self.call(Request::Get { key: key.to_owned() }).await? {
            Answer::Got(entry) => Ok(entry),
            other => Err(other.unexpected(&self.place())),
        }
    }

    async fn range(&self, prefix: &str) -> Result<Range, RegistryError> {
        match self.call(Request::Range { prefix: prefix.to_owned() }).await? {
            Answer::Range(range) => Ok(range),
            other => Err(other.unexpected(&self.place())),
        }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResult, RegistryError> {
        match self.call(Request::Txn(txn)).await? {
            Answer::Txn(result) => Ok(result),
            other => Err(other.unexpected(&self.place())),
        }
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<Lease, RegistryError> {
        check_ttl(ttl)?;
        match self.call(Request::LeaseGrant { ttl_ms: ttl.as_millis() as u64 }).await? {
            Answer::Granted { lease, ttl_ms } => Ok(Lease { id: lease, ttl: Duration::from_millis(ttl_ms) }),
            other => Err(other.unexpected(&self.place())),
        }
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), RegistryError> {
        done(self, Request::LeaseKeepAlive { lease }).await
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), RegistryError> {
        done(self, Request::LeaseRevoke { lease }).await
    }

    async fn watch(&self, prefix: &str, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        check_prefix(prefix)?;
        self.start_watch(prefix.to_owned(), start).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), RegistryError> {
        done(self, Request::Compact { revision }).await
    }

    async fn troubles(&self) -> Vec<RegistryTrouble> {
        self.find_troubles().await
    }
}

async fn done<T: Caller>(caller: &T, request: Request) -> Result<(), RegistryError> {
    match caller.call(request).await? {
        Answer::Done => Ok(()),
        other => Err(other.unexpected(&caller.place())),
    }
}

/// Performs a request on any registry.
pub async fn perform(registry: &dyn Registry, request: Request) -> Result<Answer, RegistryError> {
    request.check()?;
    match request {
        Request::Get { key } => registry.get(&key).await.map(Answer::Got),
        Request::Range { prefix } => registry.range(&prefix).await.map(Answer::Range),
        Request::Txn(txn) => registry.txn(txn).await.map(Answer::Txn),
        Request::LeaseGrant { ttl_ms } => {
            let lease = registry.lease_grant(Duration::from_millis(ttl_ms)).await?;
            Ok(Answer::Granted { lease: lease.id, ttl_ms: lease.ttl.as_millis() as u64 })
        }
        Request::LeaseKeepAlive { lease } => registry.lease_keep_alive(lease).await.map(|()| Answer::Done),
        Request::LeaseRevoke { lease } => registry.lease_revoke(lease).await.map(|()| Answer::Done),
        Request::Compact { revision } => registry.compact(revision).await.map(|()| Answer::Done),
    }
}
