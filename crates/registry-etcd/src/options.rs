//! Where an etcd is, and how to be let in.

use super::certificates::EtcdTls;
use super::convert::Space;
use registry::DEFAULT_TIMEOUT;
use registry::implement::check_prefix;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tonic::transport::Endpoint;

/// Where a registry's keys stand unless told otherwise.
const SPACE: &str = "/millpond/";
/// With that all keys of a cluster begin.
const OWN: &str = "millpond";
/// Bytes of the longest name of a registry's keys in etcd: with it the largest transaction still fits.
const SPACE_BYTES_MAX: usize = 256;
const PORT: u16 = 2379;

/// How an etcd is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOptions {
    /// Host and port of each member. One is enough to begin with; all are needed to outlive any.
    pub(super) endpoints: Vec<String>,
    pub(super) space: Space,
    /// Whether and how traffic is encrypted.
    pub(super) tls: Option<EtcdTls>,
    /// Who asks, where etcd wants to know that and no certificate tells it.
    pub(super) user: Option<EtcdUser>,
    /// How long an operation is tried.
    pub(super) timeout: Duration,
}

/// A user of etcd's.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for EtcdUser {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EtcdUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a URL names no etcd.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error(
    "{url:?} names no etcd: {reason}; write etcd://HOST:PORT,HOST:PORT/NAME/ (etcds:// where it wants TLS), for example \
     etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379"
)]
pub struct EtcdUrlError {
    url: String,
    reason: String,
}

impl EtcdOptions {
    /// With certificates; a URL that begins with `etcds` has none until then.
    #[must_use]
    pub fn with_tls(mut self, tls: EtcdTls) -> EtcdOptions {
        self.tls = Some(tls);
        self
    }

    /// With a user's name and password.
    #[must_use]
    pub fn with_user(mut self, user: EtcdUser) -> EtcdOptions {
        self.user = Some(user);
        self
    }

    /// With another time that an operation is tried for; 10 s unless told otherwise.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> EtcdOptions {
        self.timeout = timeout;
        self
    }

    /// What speaks against us, whatever a member says.
    pub(super) fn complaint(&self) -> Option<String> {
        self.tls.as_ref()?.complaint()
    }

    /// How a member is reached.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(super) fn endpoint(&self, endpoint: &str) -> Result<Endpoint, String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let plain = Endpoint::from_shared(format!("{scheme}://{endpoint}"))
            .map_err(|error| format!("{endpoint:?} is no host and port: {error}"))?;
        let Some(tls) = &self.tls else { return Ok(plain) };
        plain.tls_config(tls.config()?).map_err(|error| super::link::with_causes(&error))
    }
}

impl FromStr for EtcdOptions {
    type Err = EtcdUrlError;

    fn from_str(url: &str) -> Result<EtcdOptions, EtcdUrlError> {
        let refuse = |reason: &str| EtcdUrlError { url: url.to_owned(), reason: reason.to_owned() };
        let (rest, tls) = match (url.strip_prefix("etcd://"), url.strip_prefix("etcds://")) {
            (Some(rest), _) => (rest, None),
            (_, Some(rest)) => (rest, Some(EtcdTls::default())),
            _ => return Err(refuse("it does not begin with etcd:// or etcds://")),
        };
        let (hosts, name) = rest.split_once('/').map_or((rest, None), |(hosts, name)| (hosts, Some(name)));
        let mut endpoints = Vec::new();
        for host in hosts.split(',') {
            if host.is_empty() || host.contains(['@', '?', '#', ' ']) {
                return Err(refuse(&format!("{host:?} is no host")));
            }
            // The colons of an address of IP version 6 stand in brackets.
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            endpoints.push(if has_port { host.to_owned() } else { format!("{host}:{PORT}") });
        }
        if let Some(endpoint) = endpoints.iter().find(|endpoint| {
            let port = endpoint.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            !matches!(port, Some(Ok(1..)))
        }) {
            return Err(refuse(&format!("{endpoint:?} has no port from 1 to 65535")));
        }
        let space = match name.map(|name| name.trim_matches('/')) {
            None | Some("") => SPACE.to_owned(),
            Some(name) => format!("/{name}/"),
        };
        // There the keys of whoever has what stands before it as its name begin.
        if space[1..].split('/').skip(1).any(|part| part == OWN) {
            return Err(refuse(&format!("behind a / its name may have no part {OWN:?}")));
        }
        if space.len() > SPACE_BYTES_MAX || check_prefix(&space).is_err() {
            return Err(refuse(&format!(
                "the name of its keys must be printable, at most {SPACE_BYTES_MAX} bytes"
            )));
        }
        Ok(EtcdOptions { endpoints, space: Space(space), tls, user: None, timeout: DEFAULT_TIMEOUT })
    }
}

/// Its URL, with neither keys nor passwords.
impl fmt::Display for EtcdOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        write!(formatter, "{scheme}://{}{}", self.endpoints.join(","), self.space.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_members_and_where_the_keys_stand() {
        for (url, expected) in [
            ("etcd://a", "etcd://a:2379/millpond/"),
            ("etcd://a:1,b:2/", "etcd://a:1,b:2/millpond/"),
            ("etcds://10.0.0.1:2379/lab/one", "etcds://10.0.0.1:2379/lab/one/"),
            ("etcd://[fd00::1],[fd00::2]:7", "etcd://[fd00::1]:2379,[fd00::2]:7/millpond/"),
        ] {
            let options: EtcdOptions = url.parse().expect(url);
            assert_eq!(options.to_string(), expected);
            assert_eq!(options.to_string().parse(), Ok(options), "what it says of itself names it");
        }
    }

    #[test]
    fn what_names_no_etcd_is_refused_with_an_example() {
        for url in
            ["", "a:2379", "http://a", "etcd://", "etcd://a,,b", "etcd://a:0", "etcd://a:b", "etcd://u:p@a"]
        {
            let refusal = url.parse::<EtcdOptions>().expect_err(url).to_string();
            assert!(refusal.contains("etcd://10.0.0.1:2379,"), "{refusal}");
        }
        let long = format!("etcd://a/{}", "n".repeat(255));
        assert!(long.parse::<EtcdOptions>().is_err());
        let names = ["millpond", "millpond/two", "two/millpond", "two/millpond/three"];
        let is_refused = names.map(|name| format!("etcd://a/{name}").parse::<EtcdOptions>().is_err());
        assert_eq!(is_refused, [false, false, true, true]);
    }

    #[test]
    fn secrets_are_not_shown() {
        let user = EtcdUser { name: "mp".to_owned(), password: "hush".to_owned() };
        let options: EtcdOptions = "etcds://a".parse().expect("it is a URL");
        let options = options.with_user(user);
        assert!(!format!("{options:?} {options}").contains("hush"));
    }
}
