//! Programs that nobody here wrote, on a volume over NBD: fio, libnbd, QEMU, the kernel's file systems.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::tools::have_own_mounts;
use crate::common::{Cluster, random_bytes, run, shown, within};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::prerequisites::has_device;

fn cluster_with_volume(bytes: &str) -> (Cluster, String) {
    let mut cluster = Cluster::start("1GiB");
    cluster.millpond(&["volume", "create", "disk", bytes]);
    let uri = cluster.serve("disk");
    (cluster, uri)
}

#[test]
fn fio_verifies_what_it_wrote_in_any_size_and_alignment() {
    let (_cluster, uri) = cluster_with_volume("256MiB");
    let uri = format!("--uri={uri}");
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--verify=crc32c",
        "--iodepth=32",
        "--randrepeat=0",
        "--verify_state_save=0",
    ];
    for job in [
        ["--rw=randwrite", "--bs=4k", "--size=64m", "--verify_fatal=1"],
        ["--rw=randwrite", "--bsrange=512-128k", "--size=64m", "--verify_fatal=1"],
        ["--rw=write", "--bs=1m", "--size=128m", "--verify_fatal=1"],
    ] {
        run("fio", &[&common[..], &job[..]].concat());
    }
}

#[test]
fn libnbd_and_qemu_agree_with_the_volume() {
    let (cluster, uri) = cluster_with_volume("128MiB");
    let info = run("nbdinfo", &[&uri]);
    for expected in [
        "export-size: 134217728",
        "can_fua: true",
        "can_trim: true",
        "can_fast_zero: true",
        "base:allocation",
    ] {
        assert!(info.contains(expected), "{expected} is not in:\n{info}");
    }
    let socket = format!("nbd+unix:///?socket={}", shown(&cluster.path("nbd.sock")));
    assert!(run("nbdinfo", &["--list", &socket]).contains("export=\"disk\""));

    // A sparse file there and back again.
    let (there, back) = (cluster.path("there.raw"), cluster.path("back.raw"));
    let file = std::fs::File::create(&there).unwrap();
    file.set_len(128 << 20).unwrap();
    for (number, offset) in [0u64, 5 << 20, (77 << 20) + 4096, (128 << 20) - 8192].into_iter().enumerate() {
        file.write_all_at(&random_bytes(number as u64 + 1, 8192), offset).unwrap();
    }
    run("nbdcopy", &[shown(&there), &uri]);
    let map = run("nbdinfo", &["--map", &uri]);
    assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
    run("nbdcopy", &[&uri, shown(&back)]);
    assert!(std::fs::read(&there).unwrap() == std::fs::read(&back).unwrap());
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", shown(&there), &uri]);

    let image = cluster.path("image.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, shown(&image)]);
    run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", shown(&image), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, shown(&image)]);
    run(
        "qemu-img",
        &["bench", "-t", "none", "-n", "-w", "-d", "32", "-s", "4096", "-c", "5000", "-f", "raw", &uri],
    );

    run(
        "qemu-io",
        &[
            "-f",
            "raw",
            &uri,
            "-c",
            "write -P 0xab 1000 5001",
            "-c",
            "read -P 0xab 1000 5001",
            "-c",
            "write -P 0xcd 4094 3",
            "-c",
            "read -P 0xcd 4094 3",
            "-c",
            "read -P 0xab 1000 3094",
            "-c",
            "write -z 4096 100000",
            "-c",
            "read -P 0 4097 99999",
            "-c",
            "write -z -u 0 8M",
            "-c",
            "read -P 0 0 8M",
            "-c",
            "write -P 0x11 -f 0 32M",
            "-c",
            "discard 1M 4M",
            "-c",
            "read -P 0 1M 4M",
            "-c",
            "read -P 0x11 0 1M",
            "-c",
            "flush",
        ],
    );
}

/// A program that serves until it is told to stop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.0.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.0.wait();
    }
}

/// A loop device or a mount, undone by the command it holds.
struct Undo(Vec<String>);

impl Drop for Undo {
    fn drop(&mut self) {
        let _ = Command::new(&self.0[0]).args(&self.0[1..]).status();
    }
}

#[test]
fn file_systems_of_the_kernel_live_on_a_volume() {
    if !has_device("file systems of the kernel on a volume", "/dev/fuse") {
        return;
    }
    have_own_mounts();
    let (cluster, uri) = cluster_with_volume("512MiB");
    for (make, check) in [
        (&["mkfs.ext4", "-q", "-F"][..], &["e2fsck", "-f", "-n"][..]),
        (&["mkfs.xfs", "-q", "-f"][..], &["xfs_repair", "-n"][..]),
    ] {
        let file = cluster.path("volume.raw");
        std::fs::write(&file, b"").unwrap();
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&file).arg(&uri).stdin(Stdio::null());
        let _fuse = Server(fuse.spawn().unwrap());
        within(Duration::from_secs(20), "nbdfuse to mount", || {
            std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() == 512 << 20)
        });
        let device = run("losetup", &["-f", "--show", shown(&file)]).trim().to_owned();
        let _loop_device = Undo(vec!["losetup".into(), "-d".into(), device.clone()]);
        run(make[0], &[&make[1..], &[device.as_str()]].concat());
        let mount_point = cluster.path("mount");
        std::fs::create_dir_all(&mount_point).unwrap();
        let mount = || {
            run("mount", &[&device, shown(&mount_point)]);
            Undo(vec!["umount".into(), shown(&mount_point).into()])
        };
        {
            let _mounted = mount();
            for number in 0..40u64 {
                let bytes = random_bytes(number + 1, 1 << (10 + number % 12));
                std::fs::write(mount_point.join(format!("file{number}")), bytes).unwrap();
            }
            run("sync", &[]);
        }
        run(check[0], &[&check[1..], &[device.as_str()]].concat());
        let _mounted = mount();
        for number in 0..40u64 {
            let found = std::fs::read(mount_point.join(format!("file{number}"))).unwrap();
            assert!(found == random_bytes(number + 1, 1 << (10 + number % 12)), "file{number}");
        }
    }
}
