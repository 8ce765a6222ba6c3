//! Programs that know Ceph's libraries, as Debian has them, on volumes: unmodified, and with no library of Ceph in them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::pond::Pond;
use crate::common::whole::{OSDS, becomes_whole, every_epoch_ends, node_of};
use nix::sys::signal::Signal;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::prerequisites::installed;
use testkit::process::signal;

/// The names that programs know the library by: it is one.
const NAMES: [&str; 2] = ["librados.so.2", "librbd.so.1"];
/// Parts of an image that are written at the same time.
const PARTS: u64 = 4;
const PART_BYTES: u64 = 32 << 20;
/// How long fio writes and verifies, and how often a node is killed meanwhile, unless there is another time in this variable.
const SECONDS: u64 = 20;
const SECONDS_VARIABLE: &str = "MILLPOND_RBD_SECONDS";
const KILL_EVERY: Duration = Duration::from_secs(10);

/// A directory in which programs find the library.
fn library(pond: &Pond) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_millpond")).with_file_name("deps").join("libcapi.so");
    let directory = pond.scratch().join("lib");
    std::fs::create_dir_all(&directory).unwrap();
    for name in NAMES {
        symlink(&built, directory.join(name)).unwrap();
    }
    directory
}

/// A program that has it, and finds the cluster.
fn command(program: &str, library: &Path, pond: &Pond) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library).env("LD_BIND_NOW", "1").env("MILLPOND_DIR", pond.dir());
    command.env_remove("CEPH_CONF").env_remove("CEPH_ARGS");
    command
}

/// The libraries of Ceph that a process has.
fn libraries_of_ceph(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_its = |line: &&str| {
        line.contains("/ceph/") || line.contains("librados.so.2.") || line.contains("librbd.so.1.")
    };
    maps.lines().filter(is_its).map(str::to_owned).collect()
}

#[test]
fn fio_verifies_parts_of_an_image_while_nodes_are_killed() {
    const TEST: &str = "fio by librbd";
    if !installed(TEST, &["fio"]) {
        return;
    }
    let pond = Pond::start("1GiB");
    pond.volume("image", &(PARTS * PART_BYTES).to_string());
    becomes_whole(&pond);
    let library = library(&pond);
    let seconds = std::env::var(SECONDS_VARIABLE).map_or(SECONDS, |seconds| seconds.parse().unwrap());
    let mut fio = command("fio", &library, &pond);
    fio.args(["--ioengine=rbd", "--clientname=admin", "--pool=default", "--rbdname=image", "--thread=1"]);
    fio.args([
        "--rw=randrw",
        "--bsrange=512-256k",
        "--bs_unaligned=0",
        "--iodepth=8",
        "--verify=crc32c",
        "--verify_fatal=1",
    ]);
    fio.args([format!("--runtime={seconds}"), "--time_based=1".to_owned(), format!("--size={PART_BYTES}")]);
    for part in 0..PARTS {
        fio.args([format!("--name=part-{part}"), format!("--offset={}", part * PART_BYTES)]);
    }
    let fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, began) = (fio.id(), Instant::now());
    let ended = std::thread::spawn(move || fio.wait_with_output().unwrap());
    let mut osds = (0..OSDS).cycle();
    while !ended.is_finished() {
        std::thread::sleep(KILL_EVERY.min(Duration::from_secs(seconds)) / 2);
        if began.elapsed() + KILL_EVERY < Duration::from_secs(seconds) {
            assert_eq!(libraries_of_ceph(pid), [""; 0]);
            let osd = osds.next().unwrap();
            every_epoch_ends(&pond, || signal(node_of(&pond, osd), Signal::SIGKILL));
            becomes_whole(&pond);
        }
    }
    let ended = ended.join().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("err= 0"), "{said}");
}

#[test]
fn python_s_libraries_find_all_that_they_know() {
    const TEST: &str = "Python's rbd";
    let has_it = Command::new("/usr/bin/python3").args(["-c", "import rbd"]).output();
    if !has_it.is_ok_and(|has_it| has_it.status.success()) {
        return testkit::prerequisites::not_tested(
            TEST,
            "python3-rbd is not installed; `make test-deps` installs it",
        );
    }
    let pond = Pond::start("1GiB");
    becomes_whole(&pond);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/images.py");
    // As many descriptors as a login of Debian's has.
    let mut python = command("/bin/sh", &library(&pond), &pond);
    python.args(["-c", "ulimit -n 1024 && exec /usr/bin/python3 \"$0\""]);
    let output = python.arg(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all of it\n", "{said}");
}
