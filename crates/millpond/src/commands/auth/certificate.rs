//! `millpond auth certificate`: certificates for clients of networks that speak TLS, as those of NBD do.

use crate::Usage;
use crate::host::access;
use crate::host::directory::Directory;
use crate::host::new_files::{NewFile, write_all};
use crate::output;
use anyhow::bail;
use auth::certificate::{AUTHORITY_FILE, CLIENT_FILES, Certified, SERVER_FILES};
use auth::{Authority, SecretKey};
use base::{Access, PublicKey};
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// For how long certificates are good, in days, unless something else is said.
const DAYS: u32 = 3650;

/// Which certificate.
#[derive(Subcommand, Clone, Debug)]
pub enum CertificateCommand {
    /// Make one for a server: ca-cert.pem, server-cert.pem and server-key.pem
    Server {
        /// A name or an address under which clients reach it; may be given several times
        #[arg(long = "host", value_name = "HOST", required = true)]
        hosts: Vec<String>,
        /// Where to, and for how long.
        #[command(flatten)]
        to: To,
    },
    /// Make one for a client, of its key: ca-cert.pem, client-cert.pem and client-key.pem
    Client {
        /// The file of the key, as `millpond auth add` makes it
        #[arg(value_name = "KEY")]
        key: PathBuf,
        /// Where to, and for how long.
        #[command(flatten)]
        to: To,
    },
}

/// Where a certificate is written, and for how long it is good.
#[derive(Args, Clone, Debug)]
pub struct To {
    /// The directory to write to, which is made
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// For how many days it is good
    #[arg(long, value_name = "DAYS", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Writes it.
pub fn run(command: &CertificateCommand, directory: &Path) -> anyhow::Result<()> {
    let owner = SecretKey::load(&Directory::new(directory)?.admin_key())?;
    let (CertificateCommand::Server { to, .. } | CertificateCommand::Client { to, .. }) = command;
    let (id, client) = access::with_cluster(directory, async |cluster| {
        let client = match command {
            CertificateCommand::Client { key, .. } => Some(client(&cluster.map().await?, key)?),
            CertificateCommand::Server { .. } => None,
        };
        Ok((cluster.id().await?, client))
    })?;
    let authority = Authority::new(&owner, &format!("Millpond {id}"))?;
    let lifetime = DAY * to.days;
    let (names, made) = match (command, &client) {
        (CertificateCommand::Server { hosts, .. }, _) => {
            if let Some(wrong) = hosts.iter().find(|host| !is_host(host)) {
                bail!(Usage(format!("{wrong:?} is neither a name of a host nor an address")));
            }
            (SERVER_FILES, authority.server(hosts, lifetime)?)
        }
        (CertificateCommand::Client { .. }, Some((name, key))) => {
            (CLIENT_FILES, authority.client(key, name, lifetime)?)
        }
        (CertificateCommand::Client { .. }, None) => bail!("the key was not read"),
    };
    let Certified { certificate, key } = made;
    let files = [
        NewFile::open(to.out.join(AUTHORITY_FILE), authority.certificate().to_owned()),
        NewFile::open(to.out.join(names[0]), certificate),
        NewFile::secret(to.out.join(names[1]), key),
    ];
    write_all(&to.out, &files)?;
    let days = to.days;
    output::print_line(&match client {
        None => format!(
            "good for {days} days; `millpond nbd VOLUME --listen tcp:0.0.0.0 --tls {}` uses it",
            to.out.display()
        ),
        Some((name, _)) => {
            format!(
                "good for {days} days, as long as the cluster knows the key; whoever has it can act as {name}"
            )
        }
    })
}

/// Whose a key is that the cluster knows, which may have volumes.
fn client(map: &base::map::ClusterMap, path: &Path) -> anyhow::Result<(String, SecretKey)> {
    let key = SecretKey::load(path)?;
    let name = whose(map, &key.public()).map_err(|reason| anyhow::anyhow!("{}: {reason}", path.display()))?;
    Ok((name, key))
}

fn whose(map: &base::map::ClusterMap, key: &PublicKey) -> Result<String, &'static str> {
    match map.principal_of(key) {
        None => Err("the cluster does not know this key; `millpond auth ls` shows whose it knows"),
        Some((name, principal)) => match principal.access {
            Access::Admin | Access::Pools(_) => Ok(name.to_owned()),
            Access::Node(_) | Access::Monitor => {
                Err("this key is not for volumes; `millpond auth add` makes one that is")
            }
        },
    }
}

/// Whether a text can be the name of a host, or its address.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'*');
        !label.is_empty() && label.len() <= 63 && label.bytes().all(allowed)
    };
    text.parse::<std::net::IpAddr>().is_ok() || text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_or_addresses() {
        for host in ["pond", "pond.example", "192.0.2.1", "::1", "*.example"] {
            assert!(is_host(host), "{host}");
        }
        for wrong in ["", "a b", "pond.", "http://pond", "pond:10809", &"x".repeat(64)] {
            assert!(!is_host(wrong), "{wrong}");
        }
    }
}
