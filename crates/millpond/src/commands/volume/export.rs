//! `millpond volume export`: what a snapshot or a volume holds, or what changed, as a stream.

use super::find;
use super::snapshot::SnapshotName;
use crate::host::access;
use crate::host::directory::Directory;
use crate::output;
use crate::transfer::diff_v1::{DiffWriter, Subject};
use crate::transfer::worker::{Worker, parts};
use anyhow::{Context, bail, ensure};
use base::map::{ClusterMap, OsdInfo};
use base::units::ByteSize;
use base::{LayerId, OBJECT_BYTES, VolumeId};
use clap::Args;
use client::Change;
use cluster::Attachments;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use volume::OpenAs;

/// What of a volume is asked about at a time, in bytes.
pub(super) const WINDOW_BYTES: u64 = 64 * OBJECT_BYTES;

const EXAMPLES: &str = "\
Examples:
  millpond volume export disk@monday monday.diff
  millpond volume export disk@tuesday --since monday tuesday.diff   what changed between both
  millpond volume export disk@monday - | ssh host millpond volume import - disk
  millpond volume export disk@monday - | rbd import-diff - pool/disk

Nothing is read that did not change. The format is that of Ceph's `rbd export-diff`.";

/// Write what a snapshot holds, or what changed since an earlier one, to a file or a pipe
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArguments {
    /// The snapshot; or a volume that nobody has attached, as it is now
    #[arg(value_name = "VOLUME[@SNAPSHOT]")]
    pub what: String,
    /// The file, which is not there yet; - for standard output
    pub file: PathBuf,
    /// Only what changed since this snapshot of the same volume
    #[arg(long, value_name = "SNAPSHOT")]
    pub since: Option<String>,
}

/// Where it goes.
enum Target {
    Pipe(std::io::Stdout),
    /// A file that has its name when all of it is written, and is gone if that does not come.
    File(NamedTempFile),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Target::Pipe(out) => out.write(bytes),
            Target::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Target::Pipe(out) => out.flush(),
            Target::File(file) => file.flush(),
        }
    }
}

impl Target {
    fn open(path: &Path) -> anyhow::Result<Target> {
        if path == Path::new("-") {
            return Ok(Target::Pipe(std::io::stdout()));
        }
        ensure!(!path.exists(), "{} is there already; choose another name, or remove it", path.display());
        let folder = folder_of(path);
        let file = NamedTempFile::new_in(folder);
        Ok(Target::File(file.with_context(|| format!("no file can be made in {}", folder.display()))?))
    }

    fn name_it(self, path: &Path) -> anyhow::Result<()> {
        let Target::File(file) = self else { return Ok(()) };
        file.as_file().sync_all()?;
        file.persist_noclobber(path).with_context(|| path.display().to_string())?;
        File::open(folder_of(path))?.sync_all()?;
        Ok(())
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// Performs it.
pub fn run(arguments: &ExportArguments, path: &Path) -> anyhow::Result<()> {
    let ExportArguments { what, file, since } = arguments;
    let directory = Directory::new(path)?;
    access::require_up(&directory)?;
    let (volume, snapshot) = match what.split_once('@') {
        Some(_) => {
            let SnapshotName { volume, snapshot } = what.parse().map_err(anyhow::Error::msg)?;
            (volume, Some(snapshot))
        }
        None => (what.clone(), None),
    };
    let (map, attached) = access::with_desk(path, async |desk| {
        let map = desk.map().await?;
        let id = find(&map, &volume)?.volume;
        Ok((map, desk.ask(Attachments { volume: id }).await?))
    })?;
    let id = find(&map, &volume)?.volume;
    check_versions(&map)?;
    if let Some(holder) = attached.first().filter(|_| snapshot.is_none()) {
        output::notice(&format!(
            "{volume} is attached by {}, which may change it meanwhile: what is exported is of no one moment. Export a snapshot for \
             that",
            holder.description
        ));
    }
    let layer_of = |name: &String| layer_of(&map, id, &volume, name);
    let (since_layer, to_layer) =
        (since.as_ref().map(layer_of).transpose()?, snapshot.as_ref().map(layer_of).transpose()?);
    if let (Some(since), Some(to)) = (since_layer, to_layer)
        && since >= to
    {
        bail!("the snapshot that it is to go on from is not older than {what}");
    }
    let mut worker = Worker::open(&directory, what.clone(), OpenAs::Reader, "millpond volume export")?;
    let subject = Subject { from: since.clone(), to: snapshot, bytes: worker.bytes() };
    let mut stream = DiffWriter::begin(BufWriter::new(Target::open(file)?), &subject)?;
    let (data, zeros) = transfer(&mut worker, &mut stream, since_layer)?;
    let target = stream.end()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    target.name_it(file)?;
    output::notice(&format!("{what}: {} of data, {} of zeros", ByteSize(data), ByteSize(zeros)));
    Ok(())
}

/// Whether all OSDs can tell what changed.
pub(super) fn check_versions(map: &ClusterMap) -> anyhow::Result<()> {
    let is_old = |info: &OsdInfo| info.address.is_some() && !info.knows_layers;
    match map.osds.iter().find(|(_, info)| is_old(info)) {
        None => Ok(()),
        Some((osd, _)) => bail!(
            "{osd} runs a version that cannot tell what changed; start its node with the version of this program first"
        ),
    }
}

/// The layer of a snapshot.
pub(super) fn layer_of(
    map: &ClusterMap,
    id: VolumeId,
    volume: &str,
    name: &String,
) -> anyhow::Result<LayerId> {
    map.snapshot_named(id, name).with_context(|| {
        format!("there is no snapshot {volume}@{name}; `millpond volume snapshot ls {volume}` lists them")
    })
}

/// Writes all that changed; answers how many bytes of data, and of zeros.
fn transfer(
    worker: &mut Worker,
    stream: &mut DiffWriter<impl Write>,
    since: Option<LayerId>,
) -> anyhow::Result<(u64, u64)> {
    let (mut data, mut zeros) = (0, 0);
    for (start, length) in parts(0, worker.bytes(), WINDOW_BYTES) {
        let changes = worker.changed(start, length, since)?;
        let (mut at, mut ranges) = (start, Vec::new());
        for (length, change) in changes {
            match change {
                Change::Same => {}
                Change::Data => ranges.push((at, length)),
                Change::Zeros => {
                    stream.zeros(at, length)?;
                    zeros += length;
                }
            }
            at += length;
        }
        data += ranges.iter().map(|(_, length)| length).sum::<u64>();
        worker.read(ranges, |offset, bytes| Ok(stream.data(offset, bytes)?))?;
    }
    Ok((data, zeros))
}
