//! `millpond volume`: block volumes.

use crate::args::ListArguments;
use crate::commands::status;
use crate::host::access;
use crate::host::readiness::FIRST_POOL;
use crate::output;
use anyhow::Context;
use base::map::ClusterMap;
use base::units::ByteSize;
use clap::Subcommand;
use cluster::Attachments;
use health::view::{self, AttachmentView, VolumeDetail, VolumeView};
use registry_remote::Desk;
use std::path::Path;

/// What can be done with volumes.
#[derive(Subcommand, Clone, Debug)]
pub enum VolumeCommand {
    /// Make a volume. It takes space only as it is written
    #[command(after_help = "Examples:\n  millpond volume create disk 20GiB\n  \
                            millpond volume create scratch 512MiB --pool scratch")]
    Create {
        /// Its name, unique in the cluster: letters, digits, dot, dash and underscore
        name: String,
        /// Its size, up to 64TiB, for example 20GiB
        size: ByteSize,
        /// The pool it lies in
        #[arg(long, value_name = "NAME", default_value = FIRST_POOL)]
        pool: String,
        /// Print the new volume as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the volumes
    #[command(after_help = "Examples:\n  millpond volume ls\n  millpond volume ls --json | jq -r '.[].name'")]
    Ls(ListArguments),
    /// Show a volume and who has it attached
    #[command(after_help = "Examples:\n  millpond volume info disk")]
    Info {
        /// Its name
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the size of a volume
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
    /// Remove a volume and all it holds
    #[command(after_help = "Examples:\n  millpond volume rm scratch")]
    Rm {
        /// Its name
        name: String,
        /// Print what was removed as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Performs a `volume` command.
pub fn run(command: &VolumeCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        VolumeCommand::Create { name, size, pool, json } => {
            let volume = access::with_cluster(directory, async |cluster| {
                cluster.create_volume(name, pool, size.0).await?;
                find(&cluster.map().await?, name)
            })?;
            tell(&volume, *json, &format!("volume {name} made: {size} in pool {pool}"))
        }
        VolumeCommand::Ls(arguments) => {
            let volumes = access::with_desk(directory, async |desk| Ok(view::volumes(&desk.map().await?)))?;
            output::show(arguments.json, &volumes, || status::volume_table(&volumes))
        }
        VolumeCommand::Info { name, json } => {
            let detail = access::with_desk(directory, async |desk| detail(desk, name).await)?;
            output::show(*json, &detail, || info(&detail))
        }
        VolumeCommand::Resize { name, size, allow_shrink, json } => {
            let volume = access::with_cluster(directory, async |cluster| {
                cluster.resize_volume(name, size.0, *allow_shrink).await?;
                find(&cluster.map().await?, name)
            })?;
            tell(&volume, *json, &format!("volume {name} has {size} now"))
        }
        VolumeCommand::Rm { name, json } => {
            let volume = access::with_cluster(directory, async |cluster| {
                let volume = find(&cluster.map().await?, name)?;
                cluster.remove_volume(name).await?;
                Ok(volume)
            })?;
            tell(&volume, *json, &format!("volume {name} removed"))
        }
    }
}

fn tell(volume: &VolumeView, json: bool, sentence: &str) -> anyhow::Result<()> {
    output::show(json, volume, || format!("{sentence}\n"))
}

fn find(map: &ClusterMap, name: &str) -> anyhow::Result<VolumeView> {
    view::volumes(map)
        .into_iter()
        .find(|volume| volume.name == name)
        .with_context(|| format!("there is no volume {name}; `millpond volume ls` lists them"))
}

async fn detail(desk: &Desk, name: &str) -> anyhow::Result<VolumeDetail> {
    let volume = find(&desk.map().await?, name)?;
    let attachments = desk.ask(Attachments { volume: volume.volume }).await?;
    let attachments = attachments
        .into_iter()
        .map(|record| AttachmentView {
            client: format!("{:016x}", record.client.0),
            description: record.description,
            shared: record.shared,
            principal: record.principal,
        })
        .collect();
    Ok(VolumeDetail { volume, attachments })
}

fn info(detail: &VolumeDetail) -> String {
    let VolumeDetail { volume, attachments } = detail;
    let mut text = format!(
        "name        {}\nid          {}\npool        {}\nsize        {} ({} bytes)\ngeneration  {}\n",
        volume.name,
        volume.volume.0,
        volume.pool,
        ByteSize(volume.bytes),
        volume.bytes,
        volume.generation.0
    );
    if attachments.is_empty() {
        text.push_str("attached    by nobody\n");
    }
    for attachment in attachments {
        let mut how = if attachment.shared { "shared" } else { "exclusive" }.to_owned();
        if let Some(principal) = &attachment.principal {
            how.push_str(&format!(", by the key of {principal}"));
        }
        text.push_str(&format!("attached    by {} ({how})\n", attachment.description));
    }
    text
}
