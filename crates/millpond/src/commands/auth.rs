//! `millpond auth`: who may connect, and what they may do then.

mod certificate;

use crate::Usage;
use crate::args::ListArguments;
use crate::commands::limits::LimitArguments;
use crate::host::access;
use crate::output::{self, table};
use ::auth::SecretKey;
use anyhow::{Context, bail};
use base::map::ClusterMap;
use base::{Access, Limits, Permission, PlaceName, PoolId, Principal, PublicKey, Rights};
use clap::{Args, Subcommand};
use cluster::{Cluster, ClusterError};
use registry::Endpoints;
use registry_remote::Desk;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use volume::token::ClientToken;

/// What can be done with keys.
#[derive(Subcommand, Clone, Debug)]
pub enum AuthCommand {
    /// Make a key for a client, in a file that is to be handed to it
    #[command(after_help = "Examples:\n  millpond auth add vm-host-1 --pool default --rw\n  \
                            millpond auth add backup --pool default --pool archive --ro --out backup.key\n  \
                            millpond auth add vm-hosts --pool vms --manage\n  \
                            millpond auth add team-a --pool vms --namespace team-a --manage\n  \
                            millpond auth add alice --admin\n  millpond auth add prometheus --monitor\n\n\
                            Whoever has the file can act as that client: hand it over on a safe way.\n\
                            `millpond nbd disk --key vm-host-1.key` uses it on a host of the cluster; `millpond auth \
                            token vm-host-1.key` prints what another machine needs.")]
    Add(AddArguments),
    /// Print the token with which a machine becomes a client, from its key
    #[command(
        after_help = "Examples:\n  millpond auth token vm-host-1.key\n\nWhoever has it can act as that client. It \
                            leads to the nodes of the cluster, not to its etcd.\n`millpond client join` takes it on the \
                            other machine."
    )]
    Token {
        /// The file of the key, as `millpond auth add` makes it
        #[arg(value_name = "KEY")]
        key: PathBuf,
    },
    /// Make a certificate for a server of volumes, or for a client of one that encrypts with TLS
    #[command(
        subcommand,
        after_help = "Examples:\n  millpond auth certificate server --host pond.example --host 192.0.2.1 --out tls\n  \
                            millpond auth certificate client vm-host-1.key --out vm-host-1-tls\n\nThe owner's key vouches for \
                            servers, and clients know them by ca-cert.pem. What a client may do follows from its key, as ever: \
                            `millpond auth rm` ends that."
    )]
    Certificate(certificate::CertificateCommand),
    /// List who may connect
    #[command(after_help = "Examples:\n  millpond auth ls\n  millpond auth ls --json")]
    Ls(ListArguments),
    /// Limit what is done under a key in a second, with all volumes and connections together
    #[command(after_help = "Examples:\n  millpond auth limit vm-host-1 --iops 20000 --bandwidth 1GiB\n  \
                            millpond auth limit vm-host-1 --none\n\nWhat is beyond a limit waits; nothing fails. A volume is \
                            limited by `millpond volume limit`.")]
    Limit {
        /// Whose
        name: String,
        /// What its limits are to be.
        #[command(flatten)]
        limits: LimitArguments,
    },
    /// Take a key's access away; its connections end at once
    #[command(after_help = "Examples:\n  millpond auth rm vm-host-1")]
    Rm {
        /// Whose
        name: String,
    },
}

/// A key to make, and what its client may do.
#[derive(Args, Clone, Debug)]
pub struct AddArguments {
    /// The client's name, unique in the cluster
    name: String,
    /// A pool whose volumes it may use; repeat it for more
    #[arg(
        long = "pool",
        value_name = "POOL",
        required_unless_present_any = ["admin", "monitor"],
        conflicts_with_all = ["admin", "monitor"]
    )]
    pools: Vec<String>,
    /// A namespace of that pool, so that it may use the volumes in it and no others; repeat it for more
    #[arg(long = "namespace", value_name = "NAMESPACE", requires = "pools")]
    namespaces: Vec<String>,
    /// It may read and write them
    #[arg(long, conflicts_with = "ro", required_unless_present_any = ["ro", "manage", "admin", "monitor"])]
    rw: bool,
    /// It may only read them
    #[arg(long)]
    ro: bool,
    /// It may read and write them, and make, change and remove them
    #[arg(long, conflicts_with_all = ["rw", "ro"])]
    manage: bool,
    /// It may do everything
    #[arg(long, conflicts_with_all = ["rw", "ro", "manage"])]
    admin: bool,
    /// It may ask how the cluster is, and do nothing
    #[arg(long, conflicts_with_all = ["rw", "ro", "manage", "admin"])]
    monitor: bool,
    /// The file to write the secret key to [default: NAME.key]
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// Print the new key's public half and access as JSON
    #[arg(long)]
    json: bool,
}

/// Somebody who may connect: `auth ls --json` is a list of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrincipalView {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub public_key: PublicKey,
    /// `node`, `admin`, `monitor` or `pools`.
    pub role: &'static str,
    /// What it may do with the volumes of which pools, by name, if its role is `pools`.
    pub pools: BTreeMap<String, Permission>,
    /// What it may do with the volumes of which namespaces, by their full names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub namespaces: BTreeMap<String, Permission>,
    /// How much may be done under it.
    #[serde(skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
}

impl PrincipalView {
    fn new(name: &str, principal: &Principal, map: &ClusterMap) -> PrincipalView {
        let pool = |id: PoolId| {
            let pool = map.pools.get(&id).map(|pool| pool.name.clone());
            pool.unwrap_or_else(|| format!("{id} (removed)"))
        };
        let (mut pools, mut namespaces) = (BTreeMap::new(), BTreeMap::new());
        let role = match &principal.access {
            Access::Node(_) => "node",
            Access::Admin => "admin",
            Access::Monitor => "monitor",
            Access::Pools(rights) => {
                pools.extend(rights.pools.iter().map(|(id, permission)| (pool(*id), *permission)));
                let named = rights.named();
                namespaces.extend(named.map(|(id, name, permission)| {
                    (PlaceName { pool: pool(id), namespace: name.to_owned() }.to_string(), permission)
                }));
                "pools"
            }
        };
        let Principal { public_key, limits, .. } = *principal;
        PrincipalView { name: name.to_owned(), public_key, role, pools, namespaces, limits }
    }

    /// What it may do, in words.
    fn access(&self) -> String {
        match self.role {
            "node" => "is a node".to_owned(),
            "admin" => "everything".to_owned(),
            "monitor" => "ask how the cluster is".to_owned(),
            _ => {
                let all = self.pools.iter().chain(&self.namespaces);
                let words = all.map(|(pool, permission)| match permission {
                    Permission::Read => format!("read {pool}"),
                    Permission::ReadWrite => format!("read and write {pool}"),
                    Permission::Manage => format!("manage {pool}"),
                });
                words.collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// Performs an `auth` command.
pub fn run(command: &AuthCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        AuthCommand::Add(arguments) => {
            let AddArguments { name, json, .. } = arguments;
            let out = arguments.out.clone().unwrap_or_else(|| format!("{name}.key").into());
            let view = access::with_cluster(directory, async |cluster| add(cluster, arguments, &out).await)?;
            output::show(*json, &view, || {
                format!(
                    "{name} may connect: {}. Its secret key is in {}; whoever has that file can act as {name}.\n",
                    view.access(),
                    out.display()
                )
            })
        }
        AuthCommand::Token { key } => {
            let token = access::with_cluster(directory, async |cluster| token(cluster, key).await)?;
            output::print_line(&token.to_string())
        }
        AuthCommand::Certificate(command) => certificate::run(command, directory),
        AuthCommand::Ls(arguments) => {
            let views = access::with_desk(directory, async |desk| list(desk).await)?;
            output::show(arguments.json, &views, || table(&views))
        }
        AuthCommand::Limit { name, limits } => {
            limits.check()?;
            let set = access::with_cluster(directory, async |cluster| {
                Ok(cluster.limit_principal(name, |set| limits.apply(set)).await?)
            })?;
            limits.tell(&format!("key {name}"), &set)
        }
        AuthCommand::Rm { name } => {
            access::with_cluster(directory, async |cluster| remove(cluster, name).await)?;
            output::print_line(&format!("{name} may not connect any more; its connections end now"))
        }
    }
}

/// Lets in a new client.
async fn add(cluster: &Cluster, arguments: &AddArguments, out: &Path) -> anyhow::Result<PrincipalView> {
    let AddArguments { name, pools, namespaces, ro, manage, admin, monitor, .. } = arguments;
    let map = cluster.map().await?;
    let access = match (admin, monitor) {
        (true, _) => Access::Admin,
        (_, true) => Access::Monitor,
        _ => {
            let permission = match (ro, manage) {
                (true, _) => Permission::Read,
                (_, true) => Permission::Manage,
                _ => Permission::ReadWrite,
            };
            let named = pools.iter().map(|name| match map.pool_named(name) {
                Some((id, _)) => Ok((id, permission)),
                None => Err(ClusterError::NoSuchPool { name: name.clone() }),
            });
            let whole: Rights = named.collect::<Result<_, _>>()?;
            Access::Pools(rights(whole, pools, namespaces, permission, &map)?)
        }
    };
    let key = SecretKey::generate()?;
    let principal = Principal::new(key.public(), access);
    // The file first: a client whose key nobody has could only be removed again.
    key.save(out, name).context("the key was not made; name another file with --out")?;
    if let Err(error) = cluster.add_principal(name, &principal).await {
        // Nothing knows this key.
        let _ = std::fs::remove_file(out);
        return Err(error.into());
    }
    Ok(PrincipalView::new(name, &principal, &map))
}

/// Of pools as a whole, or of some namespaces of the one.
fn rights(
    whole: Rights,
    pools: &[String],
    namespaces: &[String],
    permission: Permission,
    map: &ClusterMap,
) -> anyhow::Result<Rights> {
    if namespaces.is_empty() {
        return Ok(whole);
    }
    let (Some((&id, _)), [pool]) = (whole.pools.first_key_value(), pools) else {
        bail!(Usage(
            "--namespace is of one pool; name that alone, and make another key for others".to_owned()
        ));
    };
    for namespace in namespaces {
        if !map.namespaces.get(&id).is_some_and(|named| named.contains_key(namespace)) {
            let place = PlaceName { pool: pool.clone(), namespace: namespace.clone() }.to_string();
            return Err(ClusterError::NoSuchNamespace { place }.into());
        }
    }
    let named = namespaces.iter().map(|name| (name.clone(), permission)).collect();
    Ok(Rights { namespaces: [(id, named)].into(), ..Rights::default() })
}

/// What a machine needs to become a client, by the file of its key.
pub(super) async fn token(cluster: &Cluster, path: &Path) -> anyhow::Result<ClientToken> {
    let key = SecretKey::load(path)?;
    let map = cluster.map().await?;
    let shown = path.display();
    match map.principal_of(&key.public()).map(|(_, principal)| &principal.access) {
        None => bail!("{shown}: the cluster does not know this key; `millpond auth ls` shows whose it knows"),
        Some(Access::Node(node)) => {
            bail!("{shown}: is the key of {node}; give a client one of its own, from `millpond auth add`")
        }
        Some(Access::Admin | Access::Pools(_) | Access::Monitor) => {}
    }
    let endpoints = Endpoints::new(registry_remote::endpoints(&map)).context(
        "no node of this cluster serves clients of other machines; those do that joined with `millpond node join`, unless \
         their node.client_port is 0",
    )?;
    let key = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    Ok(ClientToken { registry: endpoints.to_string(), cluster: map.cluster, key })
}

async fn list(desk: &Desk) -> anyhow::Result<Vec<PrincipalView>> {
    let map = desk.map().await?;
    Ok(map.principals.iter().map(|(name, principal)| PrincipalView::new(name, principal, &map)).collect())
}

async fn remove(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    match cluster.principals().await?.get(name).map(|principal| &principal.access) {
        None => bail!("there is no key {name}; `millpond auth ls` lists them"),
        Some(Access::Node(_)) => {
            bail!(Usage(format!(
                "{name} is a node of the cluster: it would serve nobody any more; take its OSDs out first"
            )))
        }
        Some(_) => {}
    }
    cluster.remove_principal(name).await?;
    Ok(())
}

fn table(views: &[PrincipalView]) -> String {
    let row = |view: &PrincipalView| {
        vec![view.name.clone(), view.access(), view.limits.to_string(), view.public_key.to_string()]
    };
    table::render(&["NAME", "MAY", "LIMITS", "PUBLIC KEY"], views.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::NodeId;
    use base::map::{NamespaceInfo, PoolInfo};

    #[test]
    fn an_access_is_told_in_words() {
        let mut map = ClusterMap::default();
        let pool =
            PoolInfo { name: "fast".into(), size: 3, min_size: 2, pg_count: 64, ..PoolInfo::default() };
        map.pools.insert(PoolId(1), pool);
        let may = |access| {
            let principal = Principal::new(PublicKey([1; 32]), access);
            PrincipalView::new("x", &principal, &map).access()
        };
        assert_eq!(may(Access::Admin), "everything");
        assert_eq!(may(Access::Monitor), "ask how the cluster is");
        assert_eq!(may(Access::Node(NodeId(1))), "is a node");
        let pools = Rights::from([(PoolId(1), Permission::Read), (PoolId(9), Permission::ReadWrite)]);
        assert_eq!(may(Access::Pools(pools)), "read fast, read and write pool.9 (removed)");
        let pools = Rights::from([(PoolId(1), Permission::Manage)]);
        assert_eq!(may(Access::Pools(pools)), "manage fast");
        let whole = || Rights::from([(PoolId(1), Permission::Manage)]);
        let fast = ["fast".to_owned()];
        map.namespaces.insert(PoolId(1), [("a".to_owned(), NamespaceInfo::default())].into());
        let named = rights(whole(), &fast, &["a".to_owned()], Permission::Manage, &map).unwrap();
        assert_eq!((named.to(PoolId(1), ""), named.to(PoolId(1), "a")), (None, Some(Permission::Manage)));
        let principal = Principal::new(PublicKey([1; 32]), Access::Pools(named));
        assert_eq!(PrincipalView::new("x", &principal, &map).access(), "manage fast/a");
        let missing = rights(whole(), &fast, &["b".to_owned()], Permission::Manage, &map).unwrap_err();
        assert!(missing.to_string().contains("no namespace fast/b"), "{missing}");
        let two = ["fast".to_owned(), "slow".to_owned()];
        assert!(rights(whole(), &two, &["a".to_owned()], Permission::Manage, &map).is_err());
    }
}
