//! What stands between a registry and who uses it, and meddles.

use async_trait::async_trait;
use registry::{KeyValue, Lease, LeaseId, Range, Registry, RegistryError, Revision, Txn, TxnResult, Watch};
use std::sync::Arc;
use std::time::Duration;

/// Decides over what is asked of a registry.
#[async_trait]
pub trait Between: Send + Sync + 'static {
    /// Whether reads reach the registry.
    ///
    /// # Errors
    /// What is answered instead.
    fn lets_read(&self) -> Result<(), RegistryError> {
        Ok(())
    }

    /// Waits until a key may be read.
    async fn before_get(&self, _key: &str) {}

    /// Performs a transaction, or what else comes of it.
    ///
    /// # Errors
    /// Those of the registry, or of who meddles.
    async fn txn(&self, registry: &Arc<dyn Registry>, txn: Txn) -> Result<TxnResult, RegistryError>;
}

/// A registry behind somebody who meddles.
pub struct Behind<B>(pub Arc<dyn Registry>, pub B);

#[async_trait]
impl<B: Between> Registry for Behind<B> {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, RegistryError> {
        self.1.lets_read()?;
        self.1.before_get(key).await;
        self.0.get(key).await
    }
    async fn range(&self, prefix: &str) -> Result<Range, RegistryError> {
        self.1.lets_read()?;
        self.0.range(prefix).await
    }
    async fn txn(&self, txn: Txn) -> Result<TxnResult, RegistryError> {
        self.1.txn(&self.0, txn).await
    }
    async fn lease_grant(&self, ttl: Duration) -> Result<Lease, RegistryError> {
        self.0.lease_grant(ttl).await
    }
    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), RegistryError> {
        self.0.lease_keep_alive(lease).await
    }
    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), RegistryError> {
        self.0.lease_revoke(lease).await
    }
    async fn watch(&self, prefix: &str, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        self.0.watch(prefix, start).await
    }
    async fn compact(&self, revision: Revision) -> Result<(), RegistryError> {
        self.0.compact(revision).await
    }
}
