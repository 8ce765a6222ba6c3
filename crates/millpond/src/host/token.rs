//! Tokens: one line that holds all that a machine needs to know.
//!
//! With that of a cluster a host joins it: it leads to the registry, so whoever has it owns the cluster. With that of a client a
//! machine may use some volumes: it holds the client's key and leads to the nodes that serve clients.

use crate::host::settings::{EtcdFiles, Settings};
use anyhow::{Context, bail};
use base::ClusterId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use volume::token::{CLIENT_PREFIX, CLUSTER_PREFIX, decode, encode};

/// The token of a cluster.
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
        if settings.are_of_client() {
            bail!("this machine is a client of its cluster; a host that takes part has the token");
        }
        let registry = settings.registry_url().context("the settings name no registry")?.to_owned();
        let cluster = settings.cluster().context("the settings name no cluster")?;
        Ok(Token { registry, cluster, etcd: settings.etcd_files()? })
    }
}

/// A token as somebody gave it: `-` stands for what comes on stdin.
pub fn given<T: FromStr<Err: Into<anyhow::Error>>>(text: &str) -> anyhow::Result<T> {
    let parsed = match text {
        "-" => std::io::read_to_string(std::io::stdin()).context("cannot read the token from stdin")?.parse(),
        token => token.parse(),
    };
    parsed.map_err(Into::into)
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        encode(CLUSTER_PREFIX, self, formatter)
    }
}

impl FromStr for Token {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Token> {
        if text.trim().starts_with(CLIENT_PREFIX) {
            bail!(
                "this is the token of a client, and does not let a host have drives in the cluster; `millpond client join` takes \
                 it, `millpond cluster token` prints the other kind"
            );
        }
        let wrong =
            "this is no token of a cluster; `millpond cluster token` prints it on a host that takes part";
        Ok(decode(CLUSTER_PREFIX, text, wrong)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use fuzz::driver::prove;
    use fuzz::{Outcomes, Target, reads_back};
    use volume::token::ClientToken;

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
        assert!(
            text.starts_with(CLUSTER_PREFIX)
                && !text.contains("secret")
                && !text.contains([' ', '=', '/', '+'])
        );
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(text.parse::<Token>().unwrap(), token);
        for wrong in ["", "millpond1.", "millpond2.e30", "millpond1.e30", &text[..text.len() - 2]] {
            let refusal = wrong.parse::<Token>().unwrap_err().to_string();
            assert!(refusal.contains("cluster token"), "{wrong}: {refusal}");
        }
    }

    #[test]
    fn whatever_is_given_as_a_token_is_refused_or_reads_back() {
        fn run(input: &[u8], seen: &mut Outcomes) {
            let Some((choice, bytes)) = input.split_first() else { return };
            // What is in a token is hardly ever reached but in base64 and behind the right prefix.
            let text = match choice % 3 {
                0 => format!("{CLUSTER_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)),
                1 => format!("{CLIENT_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)),
                _ => String::from_utf8_lossy(bytes).into_owned(),
            };
            seen.note("cluster", if reads_back::<Token>(text.as_bytes()) { "read" } else { "refused" });
            seen.note("client", if reads_back::<ClientToken>(text.as_bytes()) { "read" } else { "refused" });
        }
        const CLUSTER: &[u8] = br#"{"registry":"etcd://a:1","cluster":"07070707-0707-0707-0707-070707070707","user":"u","ca":"c"}"#;
        const CLIENT: &[u8] =
            br#"{"registry":"millpond://x","cluster":"07070707-0707-0707-0707-070707070707","key":"k"}"#;
        prove(&Target {
            name: "tokens",
            about: "the tokens of clusters and of clients",
            run,
            examples: || {
                let text = [&b"\x02millpond1."[..], URL_SAFE_NO_PAD.encode(CLUSTER).as_bytes()].concat();
                vec![[&[0][..], CLUSTER].concat(), [&[1][..], CLIENT].concat(), text]
            },
            expected: || {
                let outcomes = ["read", "refused"].into_iter();
                outcomes.flat_map(|how| [("cluster", how), ("client", how)]).collect()
            },
            inputs: 10_000,
            bytes_max: 500,
            memory_bytes_max: 64 << 10,
        });
    }

    #[test]
    fn a_client_s_token_is_none_of_a_cluster_and_the_other_way_round() {
        let token = ClientToken {
            registry: "millpond://x".into(),
            cluster: ClusterId::default(),
            key: "secret".into(),
        };
        let text = token.to_string();
        assert_eq!(text.parse::<ClientToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains("secret"));
        let refusal = text.parse::<Token>().unwrap_err().to_string();
        assert!(refusal.contains("client join"), "{refusal}");
        let cluster =
            Token { registry: "etcd://a".into(), cluster: token.cluster, etcd: EtcdFiles::default() };
        let refusal = cluster.to_string().parse::<ClientToken>().unwrap_err().to_string();
        assert!(refusal.contains("auth token"), "{refusal}");
        assert!("x".parse::<ClientToken>().unwrap_err().to_string().contains("auth token"));
    }
}
