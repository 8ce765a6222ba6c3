//! `millpond vhost-user`: a volume as the disk of a virtual machine.

use crate::commands::serving::{self, ServingArguments};
use crate::host::access;
use crate::host::directory::Directory;
use crate::host::stop;
use crate::output;
use clap::Args;
use doors::vhost_user::{Backend, BackendOptions, QUEUES_MAX};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  millpond vhost-user disk                                   on the socket vhost-user-disk.sock in the cluster's directory
  millpond vhost-user disk --socket /run/vm-1.sock --queues 4
  millpond vhost-user disk@monday                            a snapshot, as a disk that cannot be written to
  millpond vhost-user disk --open --socket /run/vm-1.sock    attached by the first write: at both ends of a live migration

A virtual machine has it as a disk by, for example:
  qemu-system-x86_64 ... -m 4G -object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem \\
    -chardev socket,id=disk,path=/run/vm-1.sock,reconnect=1 -device vhost-user-blk-pci,chardev=disk,num-queues=4

When this command ends, or its machine restarts it, the virtual machine waits for the next one, and its requests are done by that.";

/// Serve a volume to a virtual machine, as a disk by vhost-user-blk, until Ctrl-C.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct VhostUserArguments {
    /// The volume, or a snapshot, as VOLUME@SNAPSHOT
    #[arg(value_name = "VOLUME")]
    pub volume: String,

    /// The Unix socket to listen on [default: DIR/vhost-user-VOLUME.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// How many queues the disk has at most: as many as the virtual machine has processors, as a rule
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: u16,

    #[command(flatten)]
    pub serving: ServingArguments,
}

/// Serves the volume until someone wishes it to stop.
pub fn run(arguments: &VhostUserArguments, path: &Path) -> anyhow::Result<()> {
    arguments.serving.end_with_parent()?;
    let directory = Directory::new(path)?;
    serving::check_name(&arguments.volume)?;
    access::require_up(&directory)?;
    let socket = match &arguments.socket {
        Some(path) => std::path::absolute(path)?,
        None => directory.vhost_user_socket(&arguments.volume),
    };
    let options = BackendOptions {
        cluster: directory.access(arguments.serving.key.as_deref())?,
        volume: arguments.volume.clone(),
        socket,
        queues: arguments.queues,
        open: arguments.serving.open_as(),
        timeout: arguments.serving.timeout,
    };
    let mut backend = Backend::open(&options)?;
    let stopper = backend.stopper();
    stop::on_wish(move || stopper.stop())?;
    output::print(&how_to_connect(&options.volume, backend.socket(), options.queues))?;
    backend.run()?;
    output::notice("stopping");
    Ok(())
}

fn how_to_connect(volume: &str, socket: &Path, queues: u16) -> String {
    format!(
        "Serving {volume} on {}. A virtual machine whose memory is shared has it as a disk by:\n\n  \
         -chardev socket,id=disk,path={},reconnect=1 -device vhost-user-blk-pci,chardev=disk,num-queues={queues}\n\n\
         Ctrl-C stops it.\n",
        socket.display(),
        // QEMU takes two commas for one.
        socket.display().to_string().replace(',', ",,")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invitation_has_what_qemu_is_to_be_told() {
        let text = how_to_connect("disk", Path::new("/run/a,b.sock"), 2);
        assert!(
            text.contains("on /run/a,b.sock.") && text.contains("path=/run/a,,b.sock,reconnect=1"),
            "{text}"
        );
        assert!(text.contains("num-queues=2"), "{text}");
    }
}
