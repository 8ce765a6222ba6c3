//! `millpond volume import`: a volume made of a stream, or brought to what a stream leads to.

use super::PlacedName;
use super::export::{WINDOW_BYTES, check_versions, layer_of};
use super::snapshot::take_snapshots;
use crate::host::access;
use crate::host::directory::Directory;
use crate::output;
use crate::transfer::diff_v1::{Change, DiffReader, Subject};
use crate::transfer::worker::{CHUNK_BYTES, Worker, parts};
use anyhow::{Context, bail, ensure};
use base::names::Unfound;
use base::units::ByteSize;
use base::{LayerId, VolumeName};
use clap::Args;
use cluster::{ChangeVolumes, VolumeChange, WantedSnapshot, check_name};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use volume::OpenAs;

const EXAMPLES: &str = "\
Examples:
  millpond volume import monday.diff disk          makes the volume, and its snapshot monday
  millpond volume import tuesday.diff disk         goes on from there
  rbd export-diff pool/disk@monday - | millpond volume import - disk

Before anything is changed all of it is looked at: one that is cut short, or goes on from another snapshot, or from one that the
volume was written to since, changes nothing. What comes by a pipe lies in a file of the temporary directory (TMPDIR) meanwhile.";

/// Make a volume of what `millpond volume export` or `rbd export-diff` wrote, or bring one to that
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ImportArguments {
    /// The file; - for standard input
    pub file: PathBuf,
    /// The volume: one that is not there yet or holds nothing; or, of what changed, one that holds what the snapshot holds that it
    /// goes on from
    pub volume: String,
    /// The pool, if the volume's name does not say so [default: where it is, or for a new one: default]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
}

/// Performs it.
pub fn run(arguments: &ImportArguments, path: &Path) -> anyhow::Result<()> {
    let ImportArguments { file, volume, pool } = arguments;
    let name: VolumeName = volume.parse()?;
    let placed = PlacedName::new(&name, pool.as_deref())?;
    // With a pool beside it no other is meant.
    let volume = &match pool {
        Some(_) if name.place.is_none() => format!("{}/{name}", placed.pool),
        _ => volume.clone(),
    };
    let directory = Directory::new(path)?;
    access::require_up(&directory)?;
    let mut input = open(file)?;
    let subject = look_through(&input).with_context(|| format!("{} cannot be imported", file.display()))?;
    input.rewind()?;
    prepare(path, volume, placed, &subject)?;
    // From here on nobody else writes to it.
    let mut worker = Worker::open(&directory, volume.clone(), OpenAs::Owner, "millpond volume import")?;
    let from = check_base(path, volume, &worker, &subject)?;
    if let Some(at) = first_change(&mut worker, from)? {
        match &subject.from {
            None => bail!("the volume {volume} holds something already; choose another name"),
            Some(from) => bail!(
                "the volume {volume} was written to since {volume}@{from} was made, at byte {at} for one; `millpond volume rollback \
                 {volume}@{from} --discard-changes` takes that back"
            ),
        }
    }
    let resize = VolumeChange::Resize { name: volume.clone(), bytes: subject.bytes, allow_shrink: true };
    access::change(path, resize)?;
    while worker.bytes() != subject.bytes {
        worker.turn()?;
    }
    let (data, zeros) = apply(&input, &mut worker).with_context(|| broken_off(volume, &subject))?;
    if let Some(to) = &subject.to {
        take_snapshot(path, &mut worker, volume, to).with_context(|| broken_off(volume, &subject))?;
    }
    output::notice(&format!("{volume}: {} of data, {} of zeros", ByteSize(data), ByteSize(zeros)));
    Ok(())
}

/// What to do when it ended in the middle.
fn broken_off(volume: &str, subject: &Subject) -> String {
    let undo = match &subject.from {
        Some(from) => format!("millpond volume rollback {volume}@{from} --discard-changes"),
        None => format!("millpond volume rm {volume} --now"),
    };
    format!("the volume {volume} has a part of it now; `{undo}` takes that back, then say it again")
}

/// The stream as a file, in which it can be gone back.
fn open(path: &Path) -> anyhow::Result<File> {
    let is_pipe = path == Path::new("-");
    if !is_pipe {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
    }
    let mut spool =
        tempfile::tempfile().context("no temporary file can be made; TMPDIR names the directory")?;
    let mut input: Box<dyn Read> =
        if is_pipe { Box::new(std::io::stdin()) } else { Box::new(File::open(path)?) };
    std::io::copy(&mut input, &mut spool)
        .context("what comes by the pipe cannot be kept; TMPDIR names the directory")?;
    spool.rewind()?;
    Ok(spool)
}

/// Looks whether a stream is whole.
fn look_through(input: &File) -> anyhow::Result<Subject> {
    let mut stream = DiffReader::begin(BufReader::with_capacity(CHUNK_BYTES as usize, input))?;
    let mut room = vec![0; CHUNK_BYTES as usize];
    while stream.next()?.is_some() {
        while stream.data(&mut room)?.is_some() {}
    }
    Ok(stream.subject().clone())
}

/// Makes the volume if there is none, and looks whether what is there can be what the stream goes on from.
fn prepare(path: &Path, volume: &str, placed: PlacedName, subject: &Subject) -> anyhow::Result<()> {
    subject.to.as_deref().map_or(Ok(()), |to| check_name("snapshot", to))?;
    access::with_desk(path, async |desk| {
        let map = desk.map().await?;
        check_versions(&map)?;
        let known = match map.find_volume(volume) {
            Err(Unfound::Missing { .. }) => None,
            found => Some(found?),
        };
        match (known, &subject.from) {
            (Some((id, _)), _) => {
                if let Some(to) = subject.to.as_ref().filter(|to| map.snapshot_named(id, to).is_some()) {
                    bail!("the volume {volume} has a snapshot {to} already, to which this leads");
                }
                Ok(())
            }
            (None, Some(from)) => bail!(
                "there is no volume {volume}, and this is only what changed since its snapshot {from}; import what leads to that first"
            ),
            (None, None) => {
                let PlacedName { pool, namespace, name } = placed;
                let name = if namespace.is_empty() { name } else { format!("{pool}/{namespace}/{name}") };
                let change =
                    VolumeChange::Create { name, pool, bytes: subject.bytes, notes: BTreeMap::new() };
                desk.ask(ChangeVolumes { change }).await?;
                Ok(())
            }
        }
    })
}

/// The layer that the stream goes on from.
fn check_base(
    path: &Path,
    volume: &str,
    worker: &Worker,
    subject: &Subject,
) -> anyhow::Result<Option<LayerId>> {
    let map = access::with_desk(path, async |desk| Ok(desk.map().await?))?;
    let (id, _) = map.find_volume(volume)?;
    ensure!(id == worker.volume(), "another volume is called {volume} by now; say it again");
    let Some(from) = &subject.from else {
        ensure!(
            map.snapshots_of(id).next().is_none(),
            "the volume {volume} has snapshots, and this goes on from none; choose another name"
        );
        return Ok(None);
    };
    let layer = layer_of(&map, id, volume, from)
        .context("this is what changed since a snapshot that is not there")?;
    let bytes = map.snapshot(layer).map_or(0, |snapshot| snapshot.bytes);
    ensure!(
        bytes == worker.bytes(),
        "the volume {volume} has another size than {volume}@{from} had; `millpond volume rollback {volume}@{from} --discard-changes` \
         takes that back"
    );
    Ok(Some(layer))
}

/// Where the volume holds something else than the snapshot of that layer; than nothing, if there is none.
fn first_change(worker: &mut Worker, since: Option<LayerId>) -> anyhow::Result<Option<u64>> {
    for (mut at, length) in parts(0, worker.bytes(), WINDOW_BYTES) {
        for (length, change) in worker.changed(at, length, since)? {
            if change != client::Change::Same {
                return Ok(Some(at));
            }
            at += length;
        }
    }
    Ok(None)
}

fn apply(input: &File, worker: &mut Worker) -> anyhow::Result<(u64, u64)> {
    let mut stream = DiffReader::begin(BufReader::with_capacity(CHUNK_BYTES as usize, input))?;
    let mut room = vec![0; CHUNK_BYTES as usize];
    let (mut written, mut zeros) = (0, 0);
    while let Some(change) = stream.next()? {
        match change {
            Change::Data { mut offset, length } => {
                while let Some(data) = stream.data(&mut room)? {
                    worker.write(offset, data)?;
                    offset += data.len() as u64;
                }
                written += length;
            }
            Change::Zeros { offset, length } => {
                worker.zero(offset, length)?;
                zeros += length;
            }
        }
    }
    worker.finish()?;
    Ok((written, zeros))
}

/// Makes the snapshot that the stream leads to, for which this very client is asked to stand still.
fn take_snapshot(path: &Path, worker: &mut Worker, volume: &str, name: &str) -> anyhow::Result<()> {
    let wanted = WantedSnapshot { volume: volume.to_owned(), name: name.to_owned() };
    std::thread::scope(|scope| {
        let taking = scope
            .spawn(|| access::with_desk(path, async |desk| Ok(take_snapshots(desk, vec![wanted]).await?)));
        while !taking.is_finished() {
            worker.turn()?;
        }
        taking.join().expect("it does not panic")?;
        Ok(())
    })
}
