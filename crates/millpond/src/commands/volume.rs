//! `millpond volume`: block volumes.

mod du;
mod export;
mod import;
mod lineage;
mod lock;
mod meta;
mod snapshot;
mod trash;
mod watchers;

use crate::Usage;
use crate::args::ListArguments;
use crate::commands::limits::LimitArguments;
use crate::commands::status;
use crate::host::access;
use crate::host::inquiry::Inquiry;
use crate::host::readiness::FIRST_POOL;
use crate::output;
use crate::output::time::since_1970;
use anyhow::{Context, bail};
use base::duration::{Limit, about};
use base::map::ClusterMap;
use base::names::Unfound;
use base::units::ByteSize;
use base::{PlaceName, PoolId, Qos, VolumeId, VolumeName, Weight};
use clap::Subcommand;
use cluster::{Attachments, ChangeVolumes, Changed, ClusterError, VolumeChange};
use export::ExportArguments;
use health::view::{self, AttachmentView, PgHealth, PgView, TrashedVolumeView, VolumeDetail, VolumeView};
use import::ImportArguments;
use lock::LockCommand;
use meta::MetaCommand;
use registry::RegistryError;
use registry_remote::Desk;
use snapshot::{SnapshotCommand, SnapshotName};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use trash::Which;

/// How long a volume that is to grow is waited for, if what it held before it was made smaller is still being deleted.
const CUT_PATIENCE: Duration = Duration::from_secs(30);
/// The pause before it is tried again.
const CUT_PAUSE: Duration = Duration::from_millis(200);

/// What can be done with volumes.
#[derive(Subcommand, Clone, Debug)]
pub enum VolumeCommand {
    /// Make a volume. It takes space only as it is written
    #[command(after_help = "Examples:\n  millpond volume create disk 20GiB\n  \
                            millpond volume create scratch 512MiB --pool scratch\n  \
                            millpond volume create fast/team-a/disk 20GiB\n\n\
                            Everywhere a volume is named NAME, POOL/NAME or POOL/NAMESPACE/NAME. A bare NAME is looked for in the \
                            default namespaces of all pools.")]
    Create {
        /// Its name, unique in its namespace: letters, digits, dot, dash and underscore
        #[arg(value_name = "NAME|POOL/NAME|POOL/NAMESPACE/NAME")]
        name: VolumeName,
        /// Its size, up to 64TiB, for example 20GiB
        size: ByteSize,
        /// The pool it lies in, if its name does not say so [default: default]
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Print the new volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    #[command(
        after_help = "Examples:\n  millpond volume ls\n  millpond volume ls --pool fast --namespace team-a\n  \
                            millpond volume ls --json | jq -r '.[].name'"
    )]
    Ls {
        /// Only those of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
        /// Only those of this namespace; an empty name means the default one
        #[arg(long, value_name = "NAME")]
        namespace: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List who has a volume open: to read it, or to write to it when nobody else does
    #[command(
        after_help = "Examples:\n  millpond volume watchers disk\n\nA volume that somebody has open is not removed."
    )]
    Watchers {
        /// The volume
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Advisory locks: who works on a volume, for programs that heed it
    #[command(subcommand)]
    Lock(LockCommand),
    /// Show a volume, who has it attached, and who has it open
    #[command(after_help = "Examples:\n  millpond volume info disk")]
    Info {
        /// Its name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the size of a volume. One that was made smaller grows when what it held beyond its end is deleted
    #[command(after_help = "Examples:\n  millpond volume resize disk 40GiB\n  \
                            millpond volume resize disk 10GiB --allow-shrink   loses what lies beyond 10GiB")]
    Resize {
        /// Its name
        name: String,
        /// Its new size
        size: ByteSize,
        /// Allow a smaller size, which loses what lies beyond it
        #[arg(long)]
        allow_shrink: bool,
        /// Print the volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a volume another name, also while it is attached
    #[command(after_help = "Examples:\n  millpond volume rename disk disk-of-mail")]
    Rename {
        /// Its name
        name: String,
        /// Its new name, which no other volume of its namespace has: it stays where it is
        new: String,
        /// Print the volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// Limit what clients do with a volume in a second, all of them together
    #[command(after_help = LIMIT_EXAMPLES)]
    Limit {
        /// The volume
        name: String,
        /// What its limits are to be.
        #[command(flatten)]
        limits: LimitArguments,
    },
    /// Reserve operations for a volume, or have it weigh more, for when several want more than OSDs do
    #[command(after_help = QOS_EXAMPLES)]
    Qos {
        /// The volume
        name: String,
        /// Operations of 4 KiB a second that begin before whatever is not reserved; 0 for none
        #[arg(long, value_name = "IOPS")]
        reservation: Option<u32>,
        /// How much it has of the rest: one of 200 twice as much as one of 100
        #[arg(long, value_name = "NUMBER")]
        weight: Option<Weight>,
        /// Print what is set as JSON
        #[arg(long)]
        json: bool,
    },
    /// Snapshots: what volumes held at one moment. They take space only as volumes are written anew
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Show what room a volume takes, and what is free when one of its snapshots is removed
    #[command(
        after_help = "Examples:\n  millpond volume du disk\n\nIt may be attached meanwhile. What a clone sees of its parent is \
                            the parent's."
    )]
    Du {
        /// Its name
        name: String,
        /// Print JSON, in bytes
        #[arg(long)]
        json: bool,
    },
    Export(ExportArguments),
    Import(ImportArguments),
    /// Make a volume that holds what a snapshot holds. It takes space only as it is written
    #[command(after_help = CLONE_EXAMPLES)]
    Clone {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
        /// The name of the new volume, which lies in the same pool. A bare one is beside the snapshot's volume
        new: String,
        /// Print the new volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy to a clone what it sees of the snapshot that it was made of, so that it depends on that no more
    #[command(after_help = FLATTEN_EXAMPLES)]
    Flatten {
        /// The clone, attached or not
        name: String,
        /// Do not wait until it is done
        #[arg(long)]
        no_wait: bool,
        /// End it. What was copied stays
        #[arg(long, conflicts_with = "no_wait")]
        stop: bool,
    },
    /// Have a volume that nobody has attached hold what one of its snapshots holds
    #[command(
        after_help = "Examples:\n  millpond volume rollback disk@monday --discard-changes\n\nOther snapshots stay, \
                            newer ones too; it has the size that the snapshot has."
    )]
    Rollback {
        /// The snapshot
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        snapshot: SnapshotName,
        /// What was written since, and no snapshot holds, may go
        #[arg(long)]
        discard_changes: bool,
        /// Print the volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// Note text beside a volume, by key; nothing in the cluster heeds it
    #[command(subcommand)]
    Meta(MetaCommand),
    /// Put a volume into the trash, from where it can be restored for some time
    #[command(after_help = RM_EXAMPLES)]
    Rm {
        /// Its name
        name: String,
        /// How long it is kept there before it is removed for good: 3d, 12h, never
        #[arg(long, value_name = "DURATION", default_value = "7d", conflicts_with = "now")]
        keep: Limit,
        /// Remove it for good at once, with all it holds
        #[arg(long)]
        now: bool,
        /// Print what was removed as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the volumes in the trash
    #[command(after_help = "Examples:\n  millpond volume trash")]
    Trash(ListArguments),
    /// Bring a volume back out of the trash
    #[command(
        after_help = "Examples:\n  millpond volume restore disk\n  millpond volume restore --id 17 --as disk-of-monday"
    )]
    Restore {
        /// The volume.
        #[command(flatten)]
        which: Which,
        /// The name that it has from now on, where another has its own by now
        #[arg(long = "as", value_name = "NEW")]
        new: Option<String>,
        /// Print the volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a volume in the trash for good, with all it holds
    #[command(after_help = "Examples:\n  millpond volume purge scratch\n  millpond volume purge --all")]
    Purge {
        /// The volume.
        #[command(flatten)]
        which: Which,
        /// All that is in the trash now
        #[arg(long, conflicts_with_all = ["name", "id"])]
        all: bool,
        /// Print what was removed as JSON
        #[arg(long)]
        json: bool,
    },
}

const QOS_EXAMPLES: &str = "\
Examples:
  millpond volume qos disk --reservation 2000
  millpond volume qos disk --weight 200
  millpond volume qos disk --reservation 0 --weight 100     as it was

As long as nobody else uses the OSDs, a volume has all of them. All reservations together are less than what OSDs are taken to do:
`millpond cluster capacity`. It is heeded within a second; `millpond top` shows whose operations wait.";

const LIMIT_EXAMPLES: &str = "\
Examples:
  millpond volume limit disk --iops 5000
  millpond volume limit disk --iops 5000:20000 --write-bandwidth 100MiB
  millpond volume limit disk --iops none
  millpond volume limit disk --none

A limit holds for all clients and OSDs together, and is changed while they work. What is beyond it waits; nothing fails. A key is
limited by `millpond auth limit`.";

const CLONE_EXAMPLES: &str = "\
Examples:
  millpond volume snapshot create golden@v1
  millpond volume clone golden@v1 machine-1
  millpond volume clone fast/golden@v1 fast/team-a/machine-1

The snapshot is not removed as long as it has clones. A clone may have snapshots, and clones of these, 16 deep; what depends on
too much is freed by `millpond volume flatten`.";

const FLATTEN_EXAMPLES: &str = "\
Examples:
  millpond volume flatten machine-1
  millpond volume flatten machine-1 --stop

Copying goes on in the cluster whoever waits for it. Whoever uses the volume, or its snapshots, sees no difference.";

const RM_EXAMPLES: &str = "\
Examples:
  millpond volume rm scratch
  millpond volume rm scratch --keep 30d
  millpond volume rm scratch --now

In the trash it takes as much space as before. `millpond volume restore NAME` brings it back as it was, `millpond volume
purge NAME` frees its space. How long it is kept is measured by the clock of the node that manages the cluster.";

/// Performs a `volume` command.
pub fn run(command: &VolumeCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        VolumeCommand::Create { name, size, pool, json } => {
            let PlacedName { pool, namespace, name: called } = PlacedName::new(name, pool.as_deref())?;
            // Versions that know of no namespaces know bare names only.
            let called = if namespace.is_empty() { called } else { format!("{pool}/{namespace}/{called}") };
            let notes = BTreeMap::new();
            let create = VolumeChange::Create { name: called, pool: pool.clone(), bytes: size.0, notes };
            let volume = change_and_find(directory, create)?;
            tell(&volume, *json, &format!("volume {name} made: {size} in pool {pool}"))
        }
        VolumeCommand::Ls { pool, namespace, json } => {
            let volumes =
                access::with_desk(directory, async |desk| listed(&desk.map().await?, pool, namespace))?;
            output::show(*json, &volumes, || status::volume_table(&volumes))
        }
        VolumeCommand::Info { name, json } => {
            let detail = access::with_desk(directory, async |desk| detail(desk, name).await)?;
            output::show(*json, &detail, || info(&detail))
        }
        VolumeCommand::Resize { name, size, allow_shrink, json } => {
            let volume = access::with_inquiry(directory, async |inquiry| {
                resize(inquiry, name, *size, *allow_shrink).await?;
                find(&inquiry.desk().map().await?, name)
            })?;
            tell(&volume, *json, &format!("volume {name} has {size} now"))
        }
        VolumeCommand::Rename { name, new, json } => {
            let volume = access::with_desk(directory, async |desk| {
                let VolumeView { volume, .. } = find(&desk.map().await?, name)?;
                let rename = VolumeChange::Rename { name: name.clone(), new: new.clone() };
                desk.ask(ChangeVolumes { change: rename }).await?;
                find_by_id(&desk.map().await?, volume)
            })?;
            tell(&volume, *json, &format!("volume {name} is called {new} now"))
        }
        VolumeCommand::Limit { name, limits } => {
            limits.check()?;
            let set = access::with_cluster(directory, async |cluster| {
                Ok(cluster.limit_volume(name, |set| limits.apply(set)).await?)
            })?;
            limits.tell(&format!("volume {name}"), &set)
        }
        VolumeCommand::Qos { name, reservation, weight, json } => {
            if reservation.is_none() && weight.is_none() {
                let what = "nothing is to be set; --reservation 2000 reserves operations, --weight 200 has it weigh more";
                return Err(Usage(what.to_owned()).into());
            }
            let set = access::with_cluster(directory, async |cluster| {
                let change = |qos: &mut Qos| {
                    qos.reservation = reservation.unwrap_or(qos.reservation);
                    qos.weight = weight.unwrap_or(qos.weight);
                };
                Ok(cluster.set_qos(name, change).await?)
            })?;
            output::show(*json, &set, || format!("volume {name}: {set}\n"))
        }
        VolumeCommand::Snapshot(command) => snapshot::run(command, directory),
        VolumeCommand::Du { name, json } => du::run(name, *json, directory),
        VolumeCommand::Export(arguments) => export::run(arguments, directory),
        VolumeCommand::Import(arguments) => import::run(arguments, directory),
        VolumeCommand::Clone { snapshot, new, json } => {
            let SnapshotName { volume, snapshot: name } = snapshot.clone();
            let notes = BTreeMap::new();
            let clone = VolumeChange::Clone { volume, snapshot: name, name: new.clone(), notes };
            let volume = change_and_find(directory, clone)?;
            tell(&volume, *json, &format!("volume {new} made: it holds what {snapshot} holds"))
        }
        VolumeCommand::Flatten { name, stop: true, .. } => lineage::end_flattening(directory, name),
        VolumeCommand::Flatten { name, no_wait, .. } => lineage::flatten(directory, name, !no_wait),
        VolumeCommand::Rollback { snapshot, discard_changes, json } => {
            lineage::roll_back(directory, snapshot, *discard_changes)?;
            let volume =
                access::with_desk(directory, async |desk| find(&desk.map().await?, &snapshot.volume))?;
            tell(&volume, *json, &format!("volume {} holds what {snapshot} holds", snapshot.volume))
        }
        VolumeCommand::Meta(command) => meta::run(command, directory),
        VolumeCommand::Watchers { name, json } => watchers::run(name, *json, directory),
        VolumeCommand::Lock(command) => lock::run(command, directory),
        VolumeCommand::Rm { name, keep, now, json } => {
            let volume = access::with_desk(directory, async |desk| {
                let volume = find(&desk.map().await?, name)?;
                let change = match now {
                    true => VolumeChange::Remove { name: name.clone() },
                    false => trash::from_now(name, *keep),
                };
                desk.ask(ChangeVolumes { change }).await?;
                Ok(volume)
            })?;
            let what = match (*now, *keep) {
                (true, _) => format!("volume {name} removed"),
                (false, Limit::Never) => format!(
                    "volume {name} is in the trash until `millpond volume purge {name}`; `millpond volume restore {name}` \
                     brings it back"
                ),
                (false, Limit::Seconds(seconds)) => format!(
                    "volume {name} is in the trash for {}; `millpond volume restore {name}` brings it back, `millpond volume \
                     purge {name}` frees its space now",
                    about(seconds)
                ),
            };
            tell(&volume, *json, &what)
        }
        VolumeCommand::Trash(arguments) => {
            let volumes = access::with_desk(directory, async |desk| Ok(view::trash(&desk.map().await?)))?;
            output::show(arguments.json, &volumes, || trash::table(&volumes, since_1970()))
        }
        VolumeCommand::Restore { which, new, json } => {
            let volume = access::with_desk(directory, async |desk| {
                let found = which.find(&desk.map().await?)?;
                let restore = VolumeChange::Restore { id: found.volume, name: new.clone() };
                match desk.ask(ChangeVolumes { change: restore }).await {
                    Err(error @ ClusterError::VolumeExists { .. }) if new.is_none() => {
                        bail!("{error}: `millpond volume restore --id {} --as NEW`", found.volume.0)
                    }
                    restored => restored?,
                };
                find_by_id(&desk.map().await?, found.volume)
            })?;
            tell(&volume, *json, &format!("volume {} is back", volume.name))
        }
        VolumeCommand::Purge { which, all, json } => {
            let purged = access::with_desk(directory, async |desk| {
                let map = desk.map().await?;
                let meant = if *all { view::trash(&map) } else { vec![which.find(&map)?] };
                purge(desk, meant, *all).await
            })?;
            output::show(*json, &purged, || match &purged[..] {
                [] => "nothing was in the trash any more\n".to_owned(),
                [one] => format!("volume {} removed\n", one.name),
                several => format!("{} volumes removed\n", several.len()),
            })
        }
    }
}

/// The name of a volume that is to be made, with where that is.
pub(super) struct PlacedName {
    pub(super) pool: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl PlacedName {
    /// One that may say where it is, or a pool beside it may.
    fn new(said: &VolumeName, pool: Option<&str>) -> anyhow::Result<PlacedName> {
        let place = match (&said.place, pool) {
            (Some(place), Some(pool)) if place.pool != pool => bail!(Usage(format!(
                "{said} is in the pool {}, and --pool says {pool}; name one of them",
                place.pool
            ))),
            (Some(place), _) => place.clone(),
            (None, pool) => {
                PlaceName { pool: pool.unwrap_or(FIRST_POOL).to_owned(), namespace: String::new() }
            }
        };
        Ok(PlacedName { pool: place.pool, namespace: place.namespace, name: said.name.clone() })
    }
}

/// Has a volume made.
fn change_and_find(directory: &Path, change: VolumeChange) -> anyhow::Result<VolumeView> {
    access::with_desk(directory, async |desk| match desk.ask(ChangeVolumes { change }).await? {
        Changed::Volume(id) => find_by_id(&desk.map().await?, id),
        other => bail!("a node answers with {other:?} that a volume was made; is it of another version?"),
    })
}

/// The volumes of a pool, or of a namespace, as far as that is said.
fn listed(
    map: &ClusterMap,
    pool: &Option<String>,
    namespace: &Option<String>,
) -> anyhow::Result<Vec<VolumeView>> {
    if let Some(name) = pool.as_ref().filter(|name| map.pool_named(name).is_none()) {
        return Err(ClusterError::NoSuchPool { name: name.clone() }.into());
    }
    let mut volumes = view::volumes(map);
    volumes.retain(|volume| pool.as_ref().is_none_or(|pool| volume.pool == *pool));
    volumes.retain(|volume| namespace.as_ref().is_none_or(|namespace| volume.namespace == *namespace));
    Ok(volumes)
}

/// Purges volumes; answers those that were. Of all that there are, those are meant that this key may purge, if it may any.
async fn purge(
    desk: &Desk,
    meant: Vec<TrashedVolumeView>,
    are_all: bool,
) -> anyhow::Result<Vec<TrashedVolumeView>> {
    let (mut purged, mut refusal) = (Vec::new(), None);
    for volume in meant {
        let change = VolumeChange::Purge { id: volume.volume, generation: volume.generation };
        match desk.ask(ChangeVolumes { change }).await {
            Ok(Changed::Done) => purged.push(volume),
            // Somebody restored it since, or it is purged by now.
            Ok(_) => {}
            Err(error @ ClusterError::Registry(RegistryError::Forbidden { .. })) if are_all => {
                refusal = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    match refusal {
        Some(refusal) if purged.is_empty() => Err(refusal.into()),
        _ => Ok(purged),
    }
}

/// Changes a volume's size. If what it held beyond its end is still being deleted, it waits for that.
async fn resize(inquiry: &Inquiry, name: &str, size: ByteSize, allow_shrink: bool) -> anyhow::Result<()> {
    let (began, desk) = (Instant::now(), inquiry.desk());
    let mut has_said = false;
    loop {
        let change = VolumeChange::Resize { name: name.to_owned(), bytes: size.0, allow_shrink };
        match desk.ask(ChangeVolumes { change }).await {
            Err(ClusterError::StillCut { .. }) if began.elapsed() < CUT_PATIENCE => {}
            Err(error @ ClusterError::StillCut { .. }) => {
                let pool = desk.map().await?.volume_named(name).map(|(_, info)| info.pool);
                let holds_up = match lineage::groups(inquiry).await? {
                    Some(groups) => what_holds_up(&groups, pool),
                    None => "an owner of the cluster sees which are not; say it again later".to_owned(),
                };
                bail!("{error}. That was waited for {} s: {holds_up}", CUT_PATIENCE.as_secs());
            }
            done => return Ok(done.map(drop)?),
        }
        if !has_said {
            output::notice(&format!(
                "volume {name} was made smaller; waiting until what it held beyond its end is deleted"
            ));
            has_said = true;
        }
        tokio::time::sleep(CUT_PAUSE).await;
    }
}

/// Why not all that lay beyond the end of a volume of that pool is deleted, and what is to be done.
fn what_holds_up(pgs: &[PgView], pool: Option<PoolId>) -> String {
    let of_pool = || pgs.iter().filter(|group| Some(group.pg.pool) == pool);
    let mut idle = of_pool().filter(|group| group.state != PgHealth::Active);
    let Some(first) = idle.next() else {
        return "all of them are active, and what is left goes on being deleted; say it again later"
            .to_owned();
    };
    let (idle, all) = (1 + idle.count(), of_pool().count());
    let reason = first.reason.as_deref().unwrap_or("nothing is told of it");
    format!("{idle} of {all} are not; pg {}: {reason}", first.pg)
}

fn tell(volume: &VolumeView, json: bool, sentence: &str) -> anyhow::Result<()> {
    output::show(json, volume, || format!("{sentence}\n"))
}

fn find(map: &ClusterMap, name: &str) -> anyhow::Result<VolumeView> {
    match map.find_volume(name) {
        Ok((id, _)) => find_by_id(map, id),
        Err(missing @ Unfound::Missing { .. }) => {
            let wanted: VolumeName = name.parse()?;
            match map.trash().any(|(_, info, _)| map.may_mean(&wanted, info)) {
                true => {
                    bail!("volume {name} is in the trash; `millpond volume restore {name}` brings it back")
                }
                false => Err(missing.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

fn find_by_id(map: &ClusterMap, id: VolumeId) -> anyhow::Result<VolumeView> {
    let found = view::volumes(map).into_iter().find(|volume| volume.volume == id);
    found.with_context(|| format!("{id} was removed a moment ago; `millpond volume ls` lists what there is"))
}

async fn detail(desk: &Desk, name: &str) -> anyhow::Result<VolumeDetail> {
    let map = desk.map().await?;
    let volume = find(&map, name)?;
    let snapshots = view::snapshots(&map, volume.volume);
    let attachments = desk.ask(Attachments { volume: volume.volume }).await?;
    let watchers = watchers::watchers(desk, &map, volume.volume, &attachments).await?;
    let attachments = attachments
        .into_iter()
        .map(|record| AttachmentView {
            client: format!("{:016x}", record.client.0),
            description: record.description,
            shared: record.shared,
            yields: record.yields,
            principal: record.principal,
        })
        .collect();
    Ok(VolumeDetail { volume, attachments, watchers, snapshots })
}

fn info(detail: &VolumeDetail) -> String {
    let VolumeDetail { volume, attachments, watchers, snapshots } = detail;
    let mut text = format!(
        "name        {}\nid          {}\npool        {}\n{}size        {} ({} bytes)\ngeneration  {}\n",
        volume.name,
        volume.volume.0,
        volume.pool,
        match volume.namespace.as_str() {
            "" => String::new(),
            namespace => format!("namespace   {namespace}\n"),
        },
        ByteSize(volume.bytes),
        volume.bytes,
        volume.generation.0
    );
    if volume.cutting {
        text.push_str(
            "shrunk      what it held beyond its end is being deleted; it does not grow before that\n",
        );
    }
    if let Some(parent) = &volume.parent {
        let how = if volume.flattening { "; what it sees of that is being copied" } else { "" };
        text.push_str(&format!("clone of    {parent}{how}\n"));
    }
    if !volume.limits.is_none() {
        text.push_str(&format!("limits      {}\n", volume.limits));
    }
    if !volume.qos.is_default() {
        text.push_str(&format!("service     {}\n", volume.qos));
    }
    if !snapshots.is_empty() {
        let count = snapshots.len();
        let name = if volume.namespace.is_empty() { volume.name.clone() } else { volume.full_name() };
        text.push_str(&format!("snapshots   {count}; `millpond volume snapshot ls {name}` lists them\n"));
    }
    if attachments.is_empty() {
        text.push_str("attached    by nobody\n");
    }
    for attachment in attachments {
        let how = match (attachment.shared, attachment.yields) {
            (true, _) => "shared",
            (false, true) => "until another who has it open writes",
            (false, false) => "exclusive",
        };
        let mut how = how.to_owned();
        if let Some(principal) = &attachment.principal {
            how.push_str(&format!(", by the key of {principal}"));
        }
        text.push_str(&format!("attached    by {} ({how})\n", attachment.description));
    }
    for watcher in watchers {
        text.push_str(&format!("open        by {} ({})\n", watcher.description, watchers::how(watcher)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Epoch, OsdId, PgId};

    fn group(pool: u32, index: u32, state: PgHealth, reason: Option<&str>) -> PgView {
        PgView {
            pg: PgId { pool: PoolId(pool), index },
            state,
            reason: reason.map(str::to_owned),
            epoch: Epoch(1),
            primary: OsdId(0),
            in_sync: vec![OsdId(0)],
            learners: vec![],
            target: vec![OsdId(0)],
            objects: None,
            recovery: None,
            flatten: None,
        }
    }

    #[test]
    fn whoever_waits_in_vain_for_a_volume_to_grow_is_told_which_group_does_not_serve() {
        let mut pgs: Vec<PgView> = (0..3).map(|index| group(1, index, PgHealth::Active, None)).collect();
        pgs.push(group(2, 0, PgHealth::Stopped, Some("primary osd.7 is down")));
        let told = what_holds_up(&pgs, Some(PoolId(1)));
        assert!(told.contains("all of them are active"), "{told}");
        pgs[1] = group(1, 1, PgHealth::Waiting, Some("osd.3 cannot be reached; start its node"));
        let told = what_holds_up(&pgs, Some(PoolId(1)));
        assert!(told.contains("1 of 3") && told.contains("pg 1.1: osd.3 cannot be reached"), "{told}");
    }
}
