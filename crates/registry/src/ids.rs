//! What a registry numbers: its transactions and its leases.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts the modifying transactions of a registry. 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision of the next modifying transaction.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A lease, drawn at random by the registry and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl LeaseId {
    /// From the system's random source, so that no id returns after a reopening.
    pub fn random() -> LeaseId {
        // etcd's ids are positive 64-bit signed numbers; so are these.
        LeaseId((uuid::Uuid::new_v4().as_u64_pair().1 << 2) >> 1)
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "lease.{:x}", self.0)
    }
}
