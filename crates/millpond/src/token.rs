//! The token with which a host joins a cluster: one line that holds all it needs to reach the registry. Whoever has it owns
//! the cluster, as whoever reaches its registry does.

use crate::settings::{EtcdFiles, Settings};
use anyhow::{Context, bail};
use base::ClusterId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a token begins with, so that it is recognised, and another version of it refused.
const PREFIX: &str = "millpond1.";
/// A token is much shorter than this, in characters.
const CHARACTERS_MAX: usize = 256 << 10;

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// The registry's URL.
    pub registry: String,
    /// The cluster.
    pub cluster: ClusterId,
    /// What etcd wants to see.
    #[serde(flatten)]
    pub etcd: EtcdFiles,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without its secrets.
        formatter.debug_struct("Token").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Token {
    /// The token of the cluster that this machine takes part in.
    pub fn of(settings: &Settings) -> anyhow::Result<Token> {
        let registry = settings.registry_url().context("the settings name no registry")?.to_owned();
        let cluster = settings.cluster()?.context("the settings name no cluster")?;
        Ok(Token { registry, cluster, etcd: settings.etcd_files()? })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        write!(formatter, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(text))
    }
}

impl FromStr for Token {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Token> {
        let wrong =
            "this is no token of a cluster; `millpond cluster token` prints it on a host that takes part";
        let Some(encoded) = text.trim().strip_prefix(PREFIX) else { bail!(wrong) };
        if encoded.len() > CHARACTERS_MAX {
            bail!(wrong);
        }
        let text = URL_SAFE_NO_PAD.decode(encoded).context(wrong)?;
        serde_json::from_slice(&text).context(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_what_it_prints_and_shows_nobody_what_is_in_it() {
        let token = Token {
            registry: "etcds://a:1/x/".into(),
            cluster: ClusterId::default(),
            etcd: EtcdFiles {
                password: Some("secret".into()),
                user: Some("u".into()),
                ..EtcdFiles::default()
            },
        };
        let text = token.to_string();
        assert!(text.starts_with(PREFIX) && !text.contains("secret") && !text.contains([' ', '=', '/', '+']));
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(text.parse::<Token>().unwrap(), token);
        for wrong in ["", "millpond1.", "millpond2.e30", "millpond1.e30", &text[..text.len() - 2]] {
            let refusal = wrong.parse::<Token>().unwrap_err().to_string();
            assert!(refusal.contains("cluster token"), "{wrong}: {refusal}");
        }
    }
}
