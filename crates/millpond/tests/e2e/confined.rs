//! Where io_uring is forbidden, as in most containers: who needs no drive goes on without, and a node says why it does not start.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::door::Door;
use crate::common::pond::Pond;
use crate::common::whole::{becomes_whole, every_epoch_ends, node_of};
use crate::common::{names, path};
use crate::rbd;
use nix::sys::signal::Signal;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::prerequisites::installed;
use testkit::process::{signal, text};

/// What is said then.
const SERVES: &str = "epoll serves instead";

/// Has a command refused io_uring: see the script.
fn confine(command: &mut Command, program: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/without_io_uring.py");
    command.arg(script).arg(program);
}

/// `millpond`, confined.
fn millpond(pond: &Pond) -> Command {
    let mut command = Command::new("python3");
    confine(&mut command, env!("CARGO_BIN_EXE_millpond"));
    command.env_remove("MILLPOND_DIR").env_remove("MILLPOND_LOG");
    command.args(["--dir", path(&pond.dir())]);
    command
}

/// The kinds of what a process has open that has no name in any directory.
fn nameless(pid: i32) -> Vec<String> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = descriptors.filter_map(|one| std::fs::read_link(one.ok()?.path()).ok());
    let named = targets.filter_map(|target| target.to_str().map(str::to_owned));
    named.filter(|target| target.starts_with("anon_inode:")).collect()
}

#[test]
fn fio_verifies_an_image_by_the_library_while_a_node_is_killed() {
    if !installed("fio by librbd without io_uring", &["fio", "python3"]) {
        return;
    }
    let pond = Pond::start("1GiB");
    pond.volume("image", "64MiB");
    becomes_whole(&pond);
    let library = rbd::library(&pond);
    let mut fio = rbd::command("python3", &library, &pond);
    confine(&mut fio, "fio");
    let [log, configuration] = ["librbd.log", "ceph.conf"].map(|name| pond.scratch().join(name));
    std::fs::write(&configuration, format!("[global]\nlog_file = {}\n", path(&log))).unwrap();
    fio.env("CEPH_CONF", &configuration);
    fio.args([
        "--name=confined",
        "--ioengine=rbd",
        "--clientname=admin",
        "--pool=default",
        "--rbdname=image",
    ]);
    fio.args(["--thread=1", "--rw=randrw", "--bsrange=512-256k", "--bs_unaligned=0", "--iodepth=16"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--runtime=10", "--time_based=1", "--size=64m"]);
    let fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = fio.id().cast_signed();
    let ended = std::thread::spawn(move || fio.wait_with_output().unwrap());
    std::thread::sleep(Duration::from_secs(3));
    let open = nameless(pid);
    assert!(open.iter().any(|one| one.contains("eventpoll")), "{open:?}");
    assert!(!open.iter().any(|one| one.contains("io_uring")), "{open:?}");
    every_epoch_ends(&pond, || signal(node_of(&pond, 0), Signal::SIGKILL));
    let ended = text(&ended.join().unwrap());
    assert!(ended.contains("err= 0"), "{ended}");
    names(&std::fs::read_to_string(&log).unwrap(), &[SERVES]);
}

#[test]
fn a_volume_is_served_by_nbd() {
    if !installed("NBD without io_uring", &["python3"]) {
        return;
    }
    let pond = Pond::start("1GiB");
    pond.volume("v", "64MiB");
    becomes_whole(&pond);
    let door = Door::of(millpond(&pond), pond.scratch(), "v", "confined", &[]).unwrap();
    names(&door.log(), &[SERVES]);
    let open = nameless(door.pid());
    assert!(!open.iter().any(|one| one.contains("io_uring")), "{open:?}");
    let (first, large) = (vec![7; 512], vec![9; 8 << 20]);
    {
        let mut client = door.client();
        client.write(4096, &first).unwrap();
        client.write(1 << 20, &large).unwrap();
        client.flush().unwrap();
    }
    let mut client = door.client();
    assert!(client.read(4096, 512).unwrap() == first);
    assert!(client.read(1 << 20, 8 << 20).unwrap() == large);
    assert!(client.read(16 << 20, 4096).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_node_does_not_start_and_says_who_forbids_it() {
    if !installed("a node without io_uring", &["python3"]) {
        return;
    }
    let pond = Pond::start("256MiB");
    pond.down();
    let output = millpond(&pond).arg("up").output().unwrap();
    assert!(!output.status.success());
    names(&text(&output), &["io_uring", "seccomp"]);
}
