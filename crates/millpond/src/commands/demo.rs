//! `millpond demo`, which is `make run`: a cluster, a volume, a measurement, and how to go on from there.

use crate::commands::bench::{self, Challenge};
use crate::host::configuration::Request;
use crate::host::directory::{Directory, DirectoryLock};
use crate::host::local_cluster::{self, LocalCluster, Started};
use crate::host::readiness;
use crate::host::stop::StopSignals;
use crate::output;
use anyhow::{Context, bail};
use base::units::ByteSize;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

/// The volume. Whatever it holds is overwritten by the next demo.
const VOLUME: &str = "demo";
/// The process that serves it.
const SERVER: &str = "nbd";
/// Its size. Three copies of it fit twice into the default OSD files.
const VOLUME_SIZE: ByteSize = ByteSize(4 << 30);
/// How long the challenge runs.
const RUNTIME: Duration = Duration::from_secs(20);
/// How long the NBD server may take to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(15);

/// Runs the demo. It stays up afterwards if there is someone at a terminal; else it leaves nothing behind.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let was_there = path.exists();
    let directory = Directory::new(path)?;
    local_cluster::run_cluster(serve(directory))?;
    if !was_there && !someone_watches() {
        std::fs::remove_dir_all(path)
            .with_context(|| format!("{} cannot be removed; remove it by hand", path.display()))?;
    }
    Ok(())
}

fn someone_watches() -> bool {
    std::io::stdout().is_terminal()
}

async fn serve(directory: Directory) -> anyhow::Result<(anyhow::Result<()>, DirectoryLock)> {
    let mut stop = StopSignals::install()?;
    output::notice(&format!("starting the cluster in {}", directory.given()));
    let mut local = LocalCluster::open(directory.clone(), &Request::default(), true, None).await?;
    let outcome = show(&mut local, &directory, &mut stop).await;
    output::notice("stopping");
    Ok((outcome, local.stop(&mut stop).await))
}

async fn show(local: &mut LocalCluster, directory: &Directory, stop: &mut StopSignals) -> anyhow::Result<()> {
    match local.become_ready(stop).await? {
        Started::Fully => local.announce(&Started::Fully)?,
        Started::Partly(problem) => bail!("the cluster does not fully serve: {problem}"),
        Started::Interrupted => bail!("interrupted before the challenge ran"),
    }
    let bytes = make_volume(local).await?;
    let nodes = local.running().borrow().clone();
    serve_volume(local, directory, stop).await?;
    let challenge = Challenge {
        directory: directory.clone(),
        volume: VOLUME.to_owned(),
        bytes,
        runtime: RUNTIME,
        processes: nodes,
    };
    let work = tokio::task::spawn_blocking(move || bench::challenge(&challenge));
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => {
                done.context("the challenge broke off")??;
                break;
            }
            // A node that ends during the measurement is told of, and started again; the challenge
            // fails by itself if it loses operations.
            _ = local.watch_over() => {}
            // The measuring thread goes with the process.
            () = stop.wait() => bail!("interrupted before the challenge ended"),
        }
    }
    if !someone_watches() {
        output::notice("without a terminal the cluster does not stay up; run it in one to attach clients");
        return Ok(());
    }
    output::print(&how_to_attach(directory, bytes))?;
    output::print_line("The cluster stays up. Ctrl-C stops it; the next `make run` continues with it.")?;
    local.run(stop).await
}

/// The volume's size in bytes: that of an earlier demo's if there is one.
async fn make_volume(local: &LocalCluster) -> anyhow::Result<u64> {
    let map = local.cluster().map().await?;
    if let Some((_, info)) = map.volume_named(VOLUME) {
        output::notice(&format!("volume {VOLUME} of an earlier demo is overwritten"));
        return Ok(info.bytes);
    }
    local
        .cluster()
        .create_volume(VOLUME, readiness::FIRST_POOL, VOLUME_SIZE.0)
        .await
        .with_context(|| format!("cannot make the volume {VOLUME}"))?;
    Ok(VOLUME_SIZE.0)
}

async fn serve_volume(
    local: &mut LocalCluster,
    directory: &Directory,
    stop: &mut StopSignals,
) -> anyhow::Result<()> {
    let socket = directory.nbd_socket();
    let mut listen = std::ffi::OsString::from("unix:");
    listen.push(&socket);
    // Shared: the challenge goes to the same volume beside it.
    let arguments = vec!["nbd".into(), VOLUME.into(), "--shared".into(), "--listen".into(), listen];
    local.start_child(SERVER, arguments)?;
    let connected = async {
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let limit = tokio::time::sleep(LISTEN_LIMIT);
    tokio::pin!(connected, limit);
    loop {
        tokio::select! {
            () = &mut connected => return Ok(()),
            ended = local.watch_over() => {
                if ended.name == SERVER {
                    bail!("volume {VOLUME} cannot be served: {}", ended.message);
                }
            }
            () = stop.wait() => bail!("interrupted before the challenge ran"),
            () = &mut limit => {
                bail!("the NBD server does not listen on {} after {} s", socket.display(), LISTEN_LIMIT.as_secs())
            }
        }
    }
}

fn how_to_attach(directory: &Directory, bytes: u64) -> String {
    let socket = directory.nbd_socket();
    let socket = socket.display();
    let uri = format!("nbd+unix:///{VOLUME}?socket={socket}");
    let flag = format!("--dir {}", directory.given());
    // As it was called: a build is rarely in the PATH.
    let millpond = std::env::args().next().unwrap_or_else(|| "millpond".to_owned());
    format!(
        "
Volume {VOLUME} ({size}, 3 copies) is served over NBD. In a second shell:

  nbdinfo '{uri}'
  qemu-img bench -t none -n -w -d 64 -s 4k -c 200000 -f raw '{uri}'
  fio --name=try --ioengine=nbd --uri='{uri}' --rw=randrw --rwmixread=75 --bs=4k --iodepth=64 \\
      --time_based --runtime=20
  nbd-client -unix {socket} -N {VOLUME} /dev/nbd0    # as root: a block device for mkfs and mount

  {millpond} status {flag}
  {millpond} volume create disk 20GiB {flag}
  {millpond} nbd disk --listen unix:disk.sock {flag}

",
        size = ByteSize(bytes),
    )
}
