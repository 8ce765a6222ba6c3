//! `millpond client`: machines that use volumes of a cluster and have no part in it.

use crate::host::access;
use crate::host::directory::Directory;
use crate::host::settings::Settings;
use crate::output;
use anyhow::{Context, bail};
use base::{Access, Permission};
use clap::Subcommand;
use cluster::Identify;
use std::path::Path;
use volume::token::ClientToken;

/// What can be done with clients.
#[derive(Subcommand, Clone, Debug)]
pub enum ClientCommand {
    /// Let this machine use the volumes that its token is for
    #[command(after_help = JOIN_EXAMPLES)]
    Join {
        /// The client's token; `-` reads it from stdin, where no list of processes shows it
        token: String,
    },
}

const JOIN_EXAMPLES: &str = "\
Examples:
  millpond client join - --dir /etc/millpond < vm-host-1.token
  millpond nbd disk --dir /etc/millpond --listen unix:/run/disk.sock

On a host of the cluster, `millpond auth add vm-host-1 --pool default --rw` makes the key and `millpond auth token
vm-host-1.key` prints the token. The machine reaches the nodes of the cluster at their client port and at the ports of their
OSDs; it needs no etcd. Joining again with a new token tells it of the nodes that there are now.";

/// Performs a `client` command.
pub fn run(command: &ClientCommand, path: &Path) -> anyhow::Result<()> {
    let ClientCommand::Join { token } = command;
    join(&crate::host::token::given(token)?, &Directory::new(path)?)
}

fn join(token: &ClientToken, directory: &Directory) -> anyhow::Result<()> {
    if directory.has_cluster() {
        bail!("`millpond up` runs the cluster in {}; join another one with another --dir", directory.given());
    }
    directory.prepare()?;
    let _lock = directory.lock()?;
    let mut settings = Settings::load(directory)?;
    match settings.cluster() {
        Some(_) if !settings.are_of_client() => bail!(
            "{} is of a machine that takes part in a cluster, and reaches all of it; join as a client with another --dir",
            directory.given()
        ),
        Some(id) if id != token.cluster => {
            bail!("{} is of cluster {id}, not {}; join with another --dir", directory.given(), token.cluster)
        }
        _ => {}
    }
    let way_in = token.access()?;
    let public = way_in.identity.public();
    // Before anything is kept: a token that leads nowhere leaves what was there.
    let (may, is_monitor) = access::block_on(async {
        let desk = way_in.desk.open(&way_in.identity).await?;
        let found = desk.ask(Identify {}).await?;
        if found != token.cluster {
            bail!(
                "the token is of cluster {}, and its nodes are of cluster {found}; get a new one",
                token.cluster
            );
        }
        let map = desk.map().await?;
        let (name, principal) =
            map.principal_of(&public).context("the cluster does not know the token's key; get a new one")?;
        let volumes = |pool: &base::PoolId, namespace: &str, permission: Permission| {
            let pool = map.pools.get(pool).map_or("a pool that was removed", |pool| &pool.name);
            let place = match namespace {
                "" => format!("pool {pool}"),
                _ => format!("namespace {pool}/{namespace}"),
            };
            match permission {
                Permission::Read => format!("those of {place}, to read them"),
                Permission::ReadWrite => format!("those of {place}, to read and write them"),
                Permission::Manage => format!("those of {place}, to use, make, change and remove them"),
            }
        };
        let may = match &principal.access {
            Access::Pools(rights) => {
                let pools = rights.pools.iter().map(|(pool, permission)| volumes(pool, "", *permission));
                let named = rights.named().map(|(pool, name, permission)| volumes(&pool, name, permission));
                let may: Vec<String> = pools.chain(named).collect();
                format!("is for volumes: {}", may.join("; "))
            }
            Access::Monitor => "is to ask how the cluster is".to_owned(),
            Access::Admin | Access::Node(_) => "opens everything".to_owned(),
        };
        Ok((format!("{name}, {may}"), principal.access == Access::Monitor))
    })?;
    settings.take_client(&token.registry, token.cluster, &token.key)?;
    settings.store()?;
    let given = directory.given();
    let next = match is_monitor {
        true => format!(
            "`millpond status --dir {given}` shows how it is, `millpond monitor --dir {given}` has Prometheus scrape it."
        ),
        false => format!(
            "`millpond volume ls --dir {given}` lists the volumes, `millpond nbd VOLUME --dir {given}` serves one to this \
             machine."
        ),
    };
    output::print_line(&format!(
        "This machine is a client of cluster {}. Its key, {may}.\n{next}",
        token.cluster
    ))
}
