//! Where a node serves the registry to clients, and how lists of such places are written.

use base::PublicKey;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// What the URL of a registry begins with that nodes serve.
pub const SCHEME: &str = "millpond://";

/// Where a node serves the registry to clients, and the key that it proves there. Its text is KEY@ADDRESS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// The node's key.
    pub key: PublicKey,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}@{}", self.key, self.address)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let (key, address) = text
            .split_once('@')
            .ok_or_else(|| format!("{text:?} is no endpoint of a node; one is KEY@ADDRESS:PORT"))?;
        let address = address.parse().map_err(|_| format!("{address:?} is no address with a port"))?;
        Ok(Endpoint { address, key: key.parse()? })
    }
}

/// The endpoints of a cluster's nodes, one at least. Their text is `millpond://KEY@ADDRESS:PORT,KEY@ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Vec<Endpoint>);

impl Endpoints {
    /// These, if there is one.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>) -> Option<Endpoints> {
        (!endpoints.is_empty()).then_some(Endpoints(endpoints))
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Endpoint] {
        &self.0
    }

    /// Whether a text is meant as the URL of such a registry.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Where they are, without their keys, for people.
    #[must_use]
    pub fn place(&self) -> String {
        let addresses: Vec<String> = self.0.iter().map(|endpoint| endpoint.address.to_string()).collect();
        format!("{SCHEME}{}", addresses.join(","))
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(Endpoint::to_string).collect();
        write!(formatter, "{SCHEME}{}", texts.join(","))
    }
}

impl FromStr for Endpoints {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoints, String> {
        let wrong = || format!("{text:?} names no nodes; write {SCHEME}KEY@ADDRESS:PORT,KEY@ADDRESS:PORT");
        let list = text.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let endpoints = list.split(',').map(str::parse).collect::<Result<Vec<Endpoint>, String>>();
        endpoints.ok().and_then(Endpoints::new).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_back_what_they_print() {
        let endpoint = |number: u8| Endpoint {
            address: SocketAddr::from(([10, 0, 0, number], 6480)),
            key: PublicKey([number; 32]),
        };
        let endpoints = Endpoints::new(vec![endpoint(1), endpoint(2)]).unwrap();
        let text = endpoints.to_string();
        assert!(Endpoints::is_url(&text) && !text.contains(' '), "{text}");
        assert_eq!(text.parse(), Ok(endpoints.clone()));
        assert_eq!(endpoints.place(), "millpond://10.0.0.1:6480,10.0.0.2:6480");
        let v6 = "[::1]:6480".parse().unwrap();
        let v6 = Endpoints::new(vec![Endpoint { address: v6, ..endpoint(1) }]).unwrap();
        assert_eq!(v6.to_string().parse(), Ok(v6));
        for wrong in ["", "millpond://", "millpond://10.0.0.1:6480", &text[..text.len() - 5], &text[1..]] {
            assert!(wrong.parse::<Endpoints>().is_err(), "{wrong}");
        }
        assert_eq!(Endpoints::new(Vec::new()), None);
    }
}
