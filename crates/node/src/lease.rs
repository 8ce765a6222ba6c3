//! Signs of life, by which this node's part in the cluster lasts.

use std::time::Duration;

/// How long an OSD counts as up, and a manager as such, without a sign of life.
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(6);
/// How often a sign of life is given.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);
