//! What both ends know: paths, and JSON in both directions. Every path is asked with POST. An answer is one line, or a line
//! and others as things come to pass: a stream. In a stream, an empty line says that there is nothing to say, and that the registry
//! answers.

use cluster::{ClusterError, Question};
use registry::{RegistryError, Revision};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One operation of a registry: a [`registry::implement::Request`].
pub(crate) const CALL: &str = "/registry/1/call";
/// A [`WatchQuestion`]: a stream of a revision and batches.
pub(crate) const WATCH: &str = "/registry/1/watch";
/// A stream of all entries of the cluster map, and batches.
pub(crate) const MAP: &str = "/desk/1/map";
/// Bytes of the longest operation of a registry. What a transaction's limits allow fits.
pub(crate) const CALL_BYTES_MAX: usize = 2 << 20;
/// Bytes of the longest question of a client.
pub(crate) const QUESTION_BYTES_MAX: usize = 64 << 10;
/// After so long without anything to say in a stream, that is said.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Where a question is asked.
pub(crate) fn path_of<Q: Question>() -> String {
    format!("/desk/1/{}", Q::NAME)
}

/// What to watch.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WatchQuestion {
    pub(crate) prefix: String,
    pub(crate) start: Revision,
}

/// Why something was not done.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failure {
    Registry(RegistryError),
    /// In words.
    Refused(String),
    /// [`ClusterError::VolumeExists`]. For this and the others below whoever asked knows what to do next.
    VolumeExists {
        name: String,
    },
    /// [`ClusterError::StillCut`].
    StillCut {
        name: String,
    },
    /// [`ClusterError::Unsettled`].
    Unsettled {
        volume: String,
        holder: String,
    },
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Failure {
        match error {
            ClusterError::Registry(error) => Failure::Registry(error),
            ClusterError::VolumeExists { name } => Failure::VolumeExists { name },
            ClusterError::StillCut { name } => Failure::StillCut { name },
            ClusterError::Unsettled { volume, holder } => Failure::Unsettled { volume, holder },
            error => Failure::Refused(error.to_string()),
        }
    }
}

impl From<Failure> for ClusterError {
    fn from(failure: Failure) -> ClusterError {
        match failure {
            Failure::Registry(error) => error.into(),
            Failure::Refused(reason) => ClusterError::Refused { reason },
            Failure::VolumeExists { name } => ClusterError::VolumeExists { name },
            Failure::StillCut { name } => ClusterError::StillCut { name },
            Failure::Unsettled { volume, holder } => ClusterError::Unsettled { volume, holder },
        }
    }
}

/// A line of JSON, its end included.
pub(crate) fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("plain data with text keys has a JSON form");
    line.push(b'\n');
    line
}
