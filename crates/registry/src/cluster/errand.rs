//! What a client has a node do for it, where it may not write to the registry itself.

use super::{AttachRecord, Attachment, ClusterError};
use crate::error::RegistryError;
use crate::interface::LeaseId;
use base::{ClientId, Generation, VolumeId};
use serde::{Deserialize, Serialize};

/// What is to be done: the operations of [`super::Cluster`] of the same names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the operations say what these are")]
pub enum Errand {
    Attach { volume: String, client: ClientId, lease: LeaseId, shared: bool, description: String },
    Resume { volume: VolumeId, client: ClientId, generation: Generation, lease: LeaseId },
    Detach { volume: VolumeId, client: ClientId },
    Fenced { volume: VolumeId, client: ClientId, generation: Generation },
    Attachments { volume: VolumeId },
}

impl Errand {
    /// Whether doing it twice is as good as once.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Errand::Attach { .. })
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is attached.
    Attached(Attachment),
    /// Whether it goes on.
    Resumed(bool),
    /// It is done.
    Done,
    /// Who has it.
    Attachments(Vec<AttachRecord>),
    /// It was not done, and why: a [`ClusterError`] in words.
    Refused(String),
}

impl Outcome {
    /// What an errand came to that a node was to do.
    pub(super) fn of<T>(
        done: Result<T, ClusterError>,
        outcome: impl FnOnce(T) -> Outcome,
    ) -> Result<Outcome, RegistryError> {
        match done {
            Ok(done) => Ok(outcome(done)),
            Err(ClusterError::Registry(error)) => Err(error),
            Err(error) => Ok(Outcome::Refused(error.to_string())),
        }
    }

    /// The same, for who sent for it.
    pub(super) fn expect<T>(self, wanted: impl FnOnce(Outcome) -> Option<T>) -> Result<T, ClusterError> {
        if let Outcome::Refused(reason) = self {
            return Err(ClusterError::Refused { reason });
        }
        wanted(self).ok_or_else(|| {
            let reason = "something else than was asked".to_owned();
            RegistryError::Protocol { registry: crate::endpoint::SCHEME.to_owned(), reason }.into()
        })
    }
}
