//! `millpond ceph-conf`: what programs that use Ceph's RBD read to find this cluster.

use crate::Usage;
use crate::commands::auth;
use crate::host::access;
use crate::host::new_files::{NewFile, write_all};
use crate::output;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  millpond ceph-conf                               ceph.conf here, for programs of this machine that act as its owner
  millpond ceph-conf --key vm-host-1.key --user libvirt --out /etc/ceph
                                                   for a machine that is none of the cluster: with ceph.client.libvirt.keyring

Programs find the library by LD_LIBRARY_PATH, or where `make capi-install` puts it, and the file by CEPH_CONF, or in /etc/ceph.
The keyring holds a key: whoever has it can act as that client.";

/// Write the ceph.conf by which programs that use Ceph's RBD find this cluster.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CephConfArguments {
    /// The file of the key to act with, as `millpond auth add` makes it: a keyring is written too, and works on other machines
    #[arg(long, value_name = "PATH")]
    pub key: Option<PathBuf>,

    /// What programs call themselves
    #[arg(long, value_name = "NAME", default_value = "admin")]
    pub user: String,

    /// The directory to write to
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
}

/// Performs it.
pub fn run(arguments: &CephConfArguments, directory: &Path) -> anyhow::Result<()> {
    let CephConfArguments { key, user, out } = arguments;
    base::names::check(user).map_err(|reason| {
        Usage(format!("{user:?} is no name for programs: it {reason}; say --user admin"))
    })?;
    let out = std::path::absolute(out)?;
    let files = match key {
        Some(key) => {
            let token = access::with_cluster(directory, async |cluster| auth::token(cluster, key).await)?;
            with_key(&out, user, &token.to_string())
        }
        None => {
            access::with_cluster(directory, async |cluster| Ok(cluster.id().await?))?;
            vec![of_this_machine(&out, &std::path::absolute(directory)?)]
        }
    };
    write_all(&out, &files)?;
    output::print_line(&format!("CEPH_CONF={} leads programs here", files[0].path().display()))
}

fn of_this_machine(out: &Path, directory: &Path) -> NewFile {
    NewFile::open(out.join("ceph.conf"), format!("[global]\nmillpond_dir = {}\n", directory.display()))
}

fn with_key(out: &Path, user: &str, token: &str) -> Vec<NewFile> {
    let ring = out.join(format!("ceph.client.{user}.keyring"));
    let conf = format!("[client.{user}]\nkeyring = {}\n", ring.display());
    let key = format!("[client.{user}]\nkey = {}\n", STANDARD.encode(token));
    vec![NewFile::open(out.join("ceph.conf"), conf), NewFile::secret(ring, key)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyring_holds_the_token_and_the_file_leads_to_it() {
        let directory = tempfile::tempdir().unwrap();
        write_all(directory.path(), &with_key(directory.path(), "guest", "a token")).unwrap();
        let ring = directory.path().join("ceph.client.guest.keyring");
        let key = STANDARD.encode("a token");
        assert_eq!(std::fs::read_to_string(&ring).unwrap(), format!("[client.guest]\nkey = {key}\n"));
        let conf = std::fs::read_to_string(directory.path().join("ceph.conf")).unwrap();
        assert_eq!(conf, format!("[client.guest]\nkeyring = {}\n", ring.display()));
    }
}
