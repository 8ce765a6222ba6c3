//! Volumes as disks of virtual machines, by vhost-user-blk: guests with Debian's kernel, in Debian's QEMU.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::machine::{self, Guest, Image, has_guests};
use crate::common::pond::Pond;
use crate::common::whole::becomes_whole;
use crate::common::{Process, command, path};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::prerequisites::installed;

/// How long a guest writes and verifies, unless there is another time in this variable.
const SECONDS: u64 = 20;
const SECONDS_VARIABLE: &str = "MILLPOND_VHOST_SECONDS";
/// How often its back-end is killed meanwhile.
const KILL_EVERY: Duration = Duration::from_secs(5);

/// A back-end, which ends with the test.
struct Served {
    process: Process,
    socket: PathBuf,
}

impl Served {
    fn start(pond: &Pond, volume: &str, name: &str, flags: &[&str]) -> Served {
        let socket = pond.scratch().join(format!("{name}.sock"));
        let mut served =
            command(&["--dir", path(&pond.dir()), "vhost-user", volume, "--socket", path(&socket)]);
        let process = Process::start(served.args(flags), &pond.scratch().join(format!("{name}.log")));
        let mut served = Served { process, socket };
        served.process.says("Serving ");
        served
    }

    /// What QEMU is told to have it as a disk with four queues.
    fn disk(&self) -> [String; 4] {
        let socket = format!("socket,id=disk,path={},reconnect=1", path(&self.socket));
        let device = "vhost-user-blk-pci,chardev=disk,num-queues=4";
        ["-chardev".to_owned(), socket, "-device".to_owned(), device.to_owned()]
    }
}

/// A cluster with a volume for guests, where they can be had.
fn pond_for_guests(test: &str) -> Option<Pond> {
    if !(has_guests(test) && installed(test, &["fio"])) {
        return None;
    }
    let pond = Pond::start("1GiB");
    pond.volume("disk", "256MiB");
    becomes_whole(&pond);
    Some(pond)
}

fn seconds() -> u64 {
    std::env::var(SECONDS_VARIABLE).map_or(SECONDS, |seconds| seconds.parse().unwrap())
}

fn arguments(disk: &[String]) -> Vec<&str> {
    disk.iter().map(String::as_str).collect()
}

#[test]
fn a_guest_s_writes_are_all_there_though_its_back_end_is_killed_again_and_again() {
    const TEST: &str = "vhost-user-blk while its back-end is killed";
    let Some(pond) = pond_for_guests(TEST) else { return };
    let mut served = Served::start(&pond, "disk", "disk", &[]);
    let script = machine::writes(seconds())
        + "[ $(cat /sys/block/vda/size) = 524288 ] && [ $(ls /sys/block/vda/mq | wc -l) = 2 ] || exit 3
           blkdiscard -o 0 -l 33554432 /dev/vda && cmp -n 33554432 /dev/vda /dev/zero";
    let image = Image::new(pond.scratch(), &script, &["fio", "blkdiscard"], &[], &["virtio_blk"]);
    let mut guest = Guest::start(&image, pond.scratch(), "vm", &arguments(&served.disk()));
    guest.wait_for("GUEST-WRITES");
    let (mut kills, mut killed) = (0, Instant::now());
    while !guest.has_ended() {
        if killed.elapsed() >= KILL_EVERY {
            served.process.is_killed();
            served = Served::start(&pond, "disk", "disk", &[]);
            (kills, killed) = (kills + 1, Instant::now());
        }
        guest.wait_a_while();
    }
    guest.ends_well();
    assert!(kills + 1 >= seconds() / KILL_EVERY.as_secs(), "it was killed {kills} times");
}

#[test]
fn a_guest_moves_to_another_qemu_while_it_writes() {
    const TEST: &str = "live migration by vhost-user-blk";
    let Some(pond) = pond_for_guests(TEST) else { return };
    let image = machine::image_that_writes(pond.scratch(), seconds());
    let [here, there] = ["here", "there"].map(|name| Served::start(&pond, "disk", name, &["--open"]));
    let mut source = Guest::start(&image, pond.scratch(), "vm-here", &arguments(&here.disk()));
    let incoming = pond.scratch().join("incoming.sock");
    let disk = there.disk();
    let mut of_target = arguments(&disk);
    let from = format!("unix:{}", path(&incoming));
    of_target.extend(["-incoming", &from]);
    let mut target = Guest::start(&image, pond.scratch(), "vm-there", &of_target);
    source.wait_for("GUEST-WRITES");
    std::thread::sleep(Duration::from_secs(3));
    source.moves_to(&incoming);
    assert!(!source.has_ended(), "it wrote when it was moved: {}", source.console());
    target.ends_well();
}
