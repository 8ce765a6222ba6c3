//! Services that serve images to others: libvirt's pools, and iSCSI targets.

use super::{command, libraries_of_ceph, library};
use crate::common::pond::Pond;
use crate::common::whole::becomes_whole;
use crate::common::{Process, has_package, names, path, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use testkit::prerequisites::{installed, is_root};
use testkit::process::{attempt, run, text};

/// Where Debian has what libvirt needs for pools of RBD, and tgt for targets of it.
const LIBVIRT_S_BACKEND: &str = "/usr/share/doc/libvirt-daemon-driver-storage-rbd/copyright";
const TGT_S_BACKEND: &str = "/usr/share/doc/tgt-rbd/copyright";
const TARGET: &str = "iqn.2026-01.org.millpond:image";

/// Files and users that it would find on a machine that it was installed on for good, for it alone.
const LIBVIRTD: &str = "set -e
for file in passwd group; do cp /etc/$file $HERE/$file; done
echo 'libvirt-qemu:x:64055:64055::/nonexistent:/bin/false' >> $HERE/passwd
echo 'libvirt-qemu:x:64055:' >> $HERE/group
for file in passwd group; do mount --bind $HERE/$file /etc/$file; done
mkdir -p /etc/libvirt /var/lib/libvirt /run/libvirt /var/cache/libvirt
for directory in /etc/libvirt /var/lib/libvirt /run/libvirt /var/cache/libvirt; do mount -t tmpfs tmpfs $directory; done
exec libvirtd -f $HERE/libvirtd.conf -p /run/libvirt/pid
";

#[test]
fn libvirt_has_a_pool_of_them() {
    const TEST: &str = "libvirt by librbd";
    if !(is_root(TEST, "libvirtd") && installed(TEST, &["libvirtd", "virsh", "unshare"])) {
        return;
    }
    if !has_package(TEST, "libvirt-daemon-driver-storage-rbd", LIBVIRT_S_BACKEND) {
        return;
    }
    let pond = Pond::start("1GiB");
    becomes_whole(&pond);
    let library = library(&pond);
    // The path of a socket is short.
    let here = tempfile::tempdir().unwrap();
    std::fs::set_permissions(here.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let place = |name: &str| here.path().join(name);
    let configuration = format!(
        "unix_sock_dir = \"{}\"\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n",
        path(here.path())
    );
    std::fs::write(place("libvirtd.conf"), configuration).unwrap();
    std::fs::write(place("start"), LIBVIRTD).unwrap();
    std::fs::write(
        place("pool.xml"),
        "<pool type='rbd'><name>pond</name><source><host name='127.0.0.1'/><name>default</name></source></pool>",
    )
    .unwrap();
    for name in ["made", "cloned"] {
        let volume = format!(
            "<volume><name>{name}</name><capacity unit='M'>32</capacity><target><format type='raw'/></target></volume>"
        );
        std::fs::write(place(name), volume).unwrap();
    }
    let mut libvirtd = command("unshare", &library, &pond);
    libvirtd.args(["--mount", "sh", path(&place("start"))]).env("HERE", here.path());
    let libvirtd = Process::start(&mut libvirtd, &pond.scratch().join("libvirtd.log"));
    let socket = place("libvirt-sock");
    wait_until("libvirtd listens", || socket.exists());
    let uri = format!("qemu+unix:///system?socket={}", path(&socket));
    let virsh =
        |line: &str| run("virsh", &[&["-c", &uri][..], &line.split(' ').collect::<Vec<_>>()].concat());
    virsh(&format!("pool-define {}", path(&place("pool.xml"))));
    virsh("pool-start pond");
    let figure = |said: &str, what: &str| -> f64 {
        let line = said.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    // The manager notes it now and then.
    wait_until("its capacity is that of the cluster", || {
        virsh("pool-refresh pond");
        let capacity = figure(&virsh("pool-info pond --bytes"), "Capacity:");
        let usable = pond.status()["capacity"]["usable_bytes"].as_f64().unwrap();
        (capacity / usable - 1.0).abs() < 0.01
    });
    virsh(&format!("vol-create pond {}", path(&place("made"))));
    virsh("vol-resize made 48M --pool pond");
    assert_eq!(figure(&virsh("vol-info made --pool pond --bytes"), "Capacity:"), f64::from(48 << 20));
    virsh("vol-clone made cloned --pool pond");
    names(&virsh("vol-list pond"), &["default/made", "default/cloned"]);
    names(&pond.run(&["volume", "ls"]), &["made", "cloned", "48MiB"]);
    virsh("vol-delete cloned --pool pond");
    // What libvirt made the clone of is a snapshot, which it protects.
    virsh("vol-delete made --pool pond --delete-snapshots");
    assert!(!pond.run(&["volume", "ls"]).contains("made"));
    assert_eq!(libraries_of_ceph(libvirtd.pid().cast_unsigned()), [""; 0]);
}

#[test]
fn an_iscsi_target_serves_one_as_it_serves_a_file() {
    const TEST: &str = "tgt by librbd";
    if !(is_root(TEST, "tgtd") && installed(TEST, &["tgtd", "tgtadm", "iscsi-test-cu"])) {
        return;
    }
    if !has_package(TEST, "tgt-rbd", TGT_S_BACKEND) {
        return;
    }
    let pond = Pond::start("1GiB");
    const BYTES: u64 = 8 << 20;
    pond.volume("image", &BYTES.to_string());
    becomes_whole(&pond);
    let library = library(&pond);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let control = pond.scratch().join("tgt");
    let mut tgtd = command("tgtd", &library, &pond);
    tgtd.args(["-f", "--iscsi", &format!("portal=127.0.0.1:{port}")]).env("TGT_IPC_SOCKET", &control);
    let mut tgtd = Process::start(&mut tgtd, &pond.scratch().join("tgtd.log"));
    let told = |line: &str| {
        let words = ["--lld", "iscsi"].into_iter().chain(line.split(' '));
        Command::new("tgtadm").args(words).env("TGT_IPC_SOCKET", &control).output().unwrap()
    };
    wait_until("tgtd listens", || {
        assert!(tgtd.runs(), "{}", tgtd.said());
        told("--op show --mode target").status.success()
    });
    let tgtadm = |line: &str| {
        let output = told(line);
        assert!(output.status.success(), "{line}: {}{}", text(&output), tgtd.said());
        text(&output)
    };
    let file = pond.scratch().join("file");
    std::fs::File::create(&file).unwrap().set_len(BYTES).unwrap();
    tgtadm(&format!("--op new --mode target --tid 1 -T {TARGET}"));
    tgtadm(
        "--op new --mode logicalunit --tid 1 --lun 1 --backing-store default/image --bstype rbd --bsopts id=admin",
    );
    tgtadm(&format!("--op new --mode logicalunit --tid 1 --lun 2 --backing-store {}", path(&file)));
    tgtadm("--op bind --mode target --tid 1 -I ALL");
    names(&tgtadm("--op show --mode target"), &["Backing store type: rbd"]);
    assert_eq!(libraries_of_ceph(tgtd.pid().cast_unsigned()), [""; 0]);
    // What it is asked of the target itself is the same for both, and says nothing of an image.
    // (Of an image it writes the same to all a sector at a time, which would take minutes.)
    let suites = "Read6 Read10 Read12 Read16 ReadCapacity10 ReadCapacity16 Write10 Write12 Write16 WriteVerify10 Verify10 \
                  Verify16 Unmap CompareAndWrite";
    for suite in suites.split_whitespace() {
        let judged = |unit: u32| {
            let unit = format!("iscsi://127.0.0.1:{port}/{TARGET}/{unit}");
            let output = attempt("iscsi-test-cu", &["--dataloss", &format!("--test=SCSI.{suite}"), &unit]);
            let said = text(&output);
            let tests = said
                .lines()
                .find(|line| line.trim_start().starts_with("tests "))
                .map(str::trim)
                .map(str::to_owned);
            (tests.unwrap_or_else(|| panic!("{suite}: {said}")), said)
        };
        let ((of_image, said), (of_file, _)) = (judged(1), judged(2));
        assert_eq!(of_image, of_file, "{suite}: {said}");
        let failed = of_image.split_whitespace().nth(4).unwrap_or_default();
        assert_eq!(failed, "0", "{suite}: {said}");
    }
}
