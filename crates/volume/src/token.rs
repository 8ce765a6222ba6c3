//! Tokens: one line that holds all that a machine needs to know. That of a client holds its key and leads to the nodes that serve
//! clients; that of a host which takes part in a cluster is known to the program that runs it.

use super::session::ClusterAccess;
use auth::{Identity, SecretKey};
use base::ClusterId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use registry::Endpoints;
use registry_remote::DeskPlace;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a cluster's token begins with, so that it is recognised, and another version of it refused.
pub const CLUSTER_PREFIX: &str = "millpond1.";
/// What a client's token begins with.
pub const CLIENT_PREFIX: &str = "millpond-client1.";
/// A token is much shorter than this, in characters.
const CHARACTERS_MAX: usize = 256 << 10;

/// Why a text is no token, or leads nowhere.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("{0}")]
pub struct TokenError(pub String);

/// The token of a client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientToken {
    /// The URL of the nodes that serve it.
    pub registry: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// Its secret key, in PEM.
    pub key: String,
}

impl fmt::Debug for ClientToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without its secret.
        formatter.debug_struct("ClientToken").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl ClientToken {
    /// Where it leads, and the key to come with.
    ///
    /// # Errors
    /// What is in it is none.
    pub fn access(&self) -> Result<ClusterAccess, TokenError> {
        let endpoints: Endpoints = self.registry.parse().map_err(TokenError)?;
        let key = SecretKey::from_pem(&self.key)
            .map_err(|reason| TokenError(format!("the token holds no key ({reason}); get a new one")))?;
        Ok(ClusterAccess { desk: DeskPlace::Nodes(endpoints), identity: Identity::new(&key) })
    }
}

/// Writes a token behind its prefix.
///
/// # Errors
/// The formatter's.
pub fn encode(prefix: &str, token: &impl Serialize, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = serde_json::to_vec(token).map_err(|_| fmt::Error)?;
    write!(formatter, "{prefix}{}", URL_SAFE_NO_PAD.encode(text))
}

/// Reads a token that has a prefix.
///
/// # Errors
/// It is none: what `wrong` says.
pub fn decode<T: DeserializeOwned>(prefix: &str, text: &str, wrong: &str) -> Result<T, TokenError> {
    let encoded = text.trim().strip_prefix(prefix).filter(|encoded| encoded.len() <= CHARACTERS_MAX);
    let text = encoded.and_then(|encoded| URL_SAFE_NO_PAD.decode(encoded).ok());
    let token = text.and_then(|text| serde_json::from_slice(&text).ok());
    token.ok_or_else(|| TokenError(wrong.to_owned()))
}

impl fmt::Display for ClientToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        encode(CLIENT_PREFIX, self, formatter)
    }
}

impl FromStr for ClientToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<ClientToken, TokenError> {
        let wrong = if text.trim().starts_with(CLUSTER_PREFIX) {
            "this token lets a host take part in the cluster, and whoever has it owns that; give a client its own, which \
             `millpond auth token` prints"
        } else {
            "this is no token of a client; `millpond auth token KEY` prints it on a host that takes part"
        };
        decode(CLIENT_PREFIX, text, wrong)
    }
}
