//! What a client has a node do for it, where it may not write to the registry itself.

use super::{AttachRecord, Attachment, ClusterError};
use base::{ClientId, Generation, VolumeId};
use registry::LeaseId;
use registry::{RawErrand, RegistryError};
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
    /// As a registry carries it. All but an attach may be done twice as well as once.
    pub(crate) fn raw(&self) -> RawErrand {
        let body = serde_json::to_value(self).expect("it has nothing that JSON lacks");
        RawErrand { body, is_repeatable: !matches!(self, Errand::Attach { .. }) }
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
    pub(crate) fn expect<T>(
        answer: serde_json::Value,
        wanted: impl FnOnce(Outcome) -> Option<T>,
    ) -> Result<T, ClusterError> {
        let outcome = serde_json::from_value(answer).ok();
        if let Some(Outcome::Refused(reason)) = outcome {
            return Err(ClusterError::Refused { reason });
        }
        outcome.and_then(wanted).ok_or_else(|| {
            let reason = "something else than was asked".to_owned();
            RegistryError::Protocol { registry: registry::implement::SCHEME.to_owned(), reason }.into()
        })
    }
}
