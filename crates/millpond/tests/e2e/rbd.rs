//! Programs that know Ceph's libraries, as Debian has them, on volumes: unmodified, and with no library of Ceph in them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

pub mod library;
mod services;

use crate::common::has_package;
use crate::common::machine::{self, Guest, Image, has_guests};
use crate::common::pond::Pond;
use crate::common::site::Site;
use crate::common::whole::{OSDS, becomes_whole, every_epoch_ends, node_of};
use nix::sys::signal::Signal;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::prerequisites::installed;
use testkit::process::{Frozen, signal};

/// The names that programs know the library by: it is one.
const NAMES: [&str; 2] = ["librados.so.2", "librbd.so.1"];
/// Parts of an image that are written at the same time.
const PARTS: u64 = 4;
const PART_BYTES: u64 = 32 << 20;
/// How long fio writes and verifies, and how often a node is killed meanwhile, unless there is another time in this variable.
const SECONDS: u64 = 20;
const SECONDS_VARIABLE: &str = "MILLPOND_RBD_SECONDS";
/// How long a guest that is moved writes and verifies.
const GUEST_SECONDS: u64 = 20;
const KILL_EVERY: Duration = Duration::from_secs(10);

/// A directory in which programs find the library.
pub fn library(pond: &Site) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_millpond")).with_file_name("deps").join("libcapi.so");
    let directory = pond.scratch().join("lib");
    std::fs::create_dir_all(&directory).unwrap();
    for name in NAMES {
        symlink(&built, directory.join(name)).unwrap();
    }
    directory
}

/// A program that has it, and finds the cluster.
pub fn command(program: &str, library: &Path, pond: &Pond) -> Command {
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

/// Where Debian has what QEMU needs for images of RBD.
const QEMU_S_BLOCK: &str = "/usr/share/doc/qemu-block-extra/copyright";

fn has_qemu_s_block(test: &str) -> bool {
    has_package(test, "qemu-block-extra", QEMU_S_BLOCK)
}

#[test]
fn qemu_img_makes_and_changes_images() {
    const TEST: &str = "qemu-img by librbd";
    if !installed(TEST, &["qemu-img", "qemu-io"]) {
        return;
    }
    if !has_qemu_s_block(TEST) {
        return;
    }
    let pond = Pond::start("1GiB");
    becomes_whole(&pond);
    let library = library(&pond);
    let run = |program: &str, arguments: &[&str]| {
        let output = command(program, &library, &pond).args(arguments).output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        said
    };
    let file = pond.scratch().join("image.raw");
    let content: Vec<u8> = (0..8 << 20).map(|at: u32| (at / 4096 % 251) as u8 + 1).collect();
    std::fs::write(&file, &content).unwrap();
    let file = file.to_str().unwrap();
    let image = "rbd:default/image";
    run("qemu-img", &["create", "-f", "raw", image, "8M"]);
    assert!(run("qemu-img", &["info", "-f", "raw", image]).contains("8 MiB"));
    // Nothing is there, and then all of it.
    assert!(run("qemu-img", &["map", "--output=json", "-f", "raw", image]).contains(r#""data": false"#));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", file, image]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, image]);
    assert!(!run("qemu-img", &["map", "--output=json", "-f", "raw", image]).contains(r#""data": false"#));
    // A snapshot is what it was, and is gone back to.
    run("qemu-img", &["snapshot", "-c", "before", image]);
    assert!(run("qemu-img", &["snapshot", "-l", image]).contains("before"));
    run("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 1M", "-c", "read -P 7 1M 1M", image]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, "rbd:default/image@before"]);
    run("qemu-img", &["snapshot", "-a", "before", image]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, image]);
    run("qemu-img", &["snapshot", "-d", "before", image]);
    run("qemu-img", &["resize", "-f", "raw", image, "32M"]);
    assert!(run("qemu-img", &["info", "-f", "raw", image]).contains("32 MiB"));
    run(
        "qemu-io",
        &[
            "-f",
            "raw",
            "-c",
            "read -P 0 8M 24M",
            "-c",
            "write -z 0 8M",
            "-c",
            "discard 0 8M",
            "-c",
            "read -P 0 0 32M",
            image,
        ],
    );
}

/// What QEMU is told to have an image as a disk.
const DISK: [&str; 4] = [
    "-drive",
    "id=disk,if=none,format=raw,cache=none,discard=unmap,file=rbd:default/image",
    "-device",
    "virtio-blk-pci,drive=disk,num-queues=2",
];

/// A cluster with an image for guests, and the library, where guests can be had.
fn pond_for_guests(test: &str) -> Option<(Pond, PathBuf)> {
    if !(has_guests(test) && installed(test, &["fio"]) && has_qemu_s_block(test)) {
        return None;
    }
    let pond = Pond::start("1GiB");
    pond.volume("image", "256MiB");
    becomes_whole(&pond);
    let library = library(&pond);
    Some((pond, library))
}

/// A guest on an image.
fn guest(pond: &Pond, library: &Path, image: &Image, name: &str, more: &[&str]) -> Guest {
    let qemu = command("qemu-system-x86_64", library, pond);
    Guest::start_by(qemu, image, pond.scratch(), name, &[&DISK, more].concat())
}

#[test]
fn a_guest_lives_on_an_image_and_moves_to_another_qemu_while_it_writes() {
    const TEST: &str = "live migration by librbd";
    let Some((pond, library)) = pond_for_guests(TEST) else { return };
    let image = machine::image_that_writes(pond.scratch(), GUEST_SECONDS);
    let mut source = guest(&pond, &library, &image, "vm-here", &[]);
    let socket = pond.scratch().join("incoming.sock");
    let from = format!("unix:{}", socket.display());
    let mut target = guest(&pond, &library, &image, "vm-there", &["-incoming", &from]);
    source.wait_for("GUEST-WRITES");
    std::thread::sleep(Duration::from_secs(3));
    source.moves_to(&socket);
    assert!(!source.has_ended(), "it wrote when it was moved: {}", source.console());
    target.ends_well();
    for guest in [&source, &target] {
        assert_eq!(libraries_of_ceph(guest.pid().cast_unsigned()), [""; 0]);
    }
}

#[test]
fn an_owner_that_stood_still_while_another_wrote_writes_nothing_when_it_goes_on() {
    const TEST: &str = "a stopped former owner by librbd";
    let Some((pond, library)) = pond_for_guests(TEST) else { return };
    let image = machine::image_that_writes(pond.scratch(), 600);
    let mut owner = guest(&pond, &library, &image, "vm", &[]);
    owner.wait_for("GUEST-WRITES");
    std::thread::sleep(Duration::from_secs(3));
    let does = |what: &str| {
        let output =
            command("qemu-io", &library, &pond).args(["-f", "raw", "-c", what, "rbd:default/image"]).output();
        let output = output.unwrap();
        let said = testkit::process::text(&output);
        assert!(
            output.status.success() && !said.contains("rror") && !said.contains("ailed"),
            "{what}: {said}"
        );
    };
    let still = Frozen::new(owner.pid());
    does("write -P 7 0 128M");
    drop(still);
    // It has requests on their way, and a guest that goes on.
    std::thread::sleep(Duration::from_secs(5));
    does("read -P 7 0 128M");
}

/// Where the tests are that Ceph has for its own library, in a file that is not part of this project: `src/test/pybind/test_rbd.py` of the
/// branch `pacific`.
const SUITE_VARIABLE: &str = "MILLPOND_TEST_RBD";
/// Those of them that do not pass, and why: it only becomes shorter.
const LEFT: &str = include_str!("test_rbd.left");
/// So many pass at least.
const PASSED_MIN: usize = 140;

/// The first words of a list's lines.
fn listed(list: &str) -> Vec<&str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()).collect()
}

#[test]
#[ignore = "it needs a file of Ceph's sources: `make test-rbd FILE=...` runs it"]
fn the_tests_of_ceph_s_own_library_pass_but_for_those_that_are_listed() {
    let suite = std::env::var_os(SUITE_VARIABLE).unwrap_or_else(|| panic!("{SUITE_VARIABLE} names the file"));
    let pond = Pond::start("1GiB");
    becomes_whole(&pond);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/suite.py");
    let mut python = command("/usr/bin/python3", &library(&pond), &pond);
    let output = python.arg(script).arg(suite).env("RBD_FEATURES", "61").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let named = |what: &str| -> Vec<&str> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        lines.filter_map(|line| line.split(' ').next()).collect()
    };
    let mut left = listed(LEFT);
    let mut failed = named("failed");
    left.sort_unstable();
    failed.sort_unstable();
    assert_eq!(failed, left, "{said}");
    let passed = named("ok").len();
    assert!(passed >= PASSED_MIN, "{passed}");
    println!(
        "{passed} passed, {} skipped, {} failed as they are listed to",
        named("skipped").len(),
        failed.len()
    );
}

/// Those of go-ceph's tests that do not pass, and why: it only becomes shorter.
const GO_LEFT: &str = include_str!("go_ceph.left");
/// So many pass at least.
const GO_PASSED_MIN: usize = 65;
/// How long one of its tests may take by itself.
const GO_LIMIT: &str = "10s";

#[test]
#[ignore = "it needs Go 1.23, and fetches modules: `make test-go-ceph` runs it"]
fn the_tests_of_go_ceph_pass_but_for_those_that_are_listed() {
    let pond = Pond::start("2GiB");
    becomes_whole(&pond);
    let built = pond.scratch().join("rbd.test");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/go_ceph");
    let mut go = Command::new("go");
    go.current_dir(module).args(["test", "-c", "-mod=readonly", "-tags", "pacific", "-o"]).arg(&built);
    let output = go.arg("github.com/ceph/go-ceph/rbd").output().unwrap();
    assert!(output.status.success(), "{}", testkit::process::text(&output));
    let configuration = pond.scratch().join("ceph.conf");
    std::fs::write(&configuration, format!("[global]\nmillpond_dir = {}\n", pond.dir().display())).unwrap();
    let library = library(&pond);
    let run = |arguments: &[&str]| {
        let mut test = command(built.to_str().unwrap(), &library, &pond);
        test.env("CEPH_CONF", &configuration).env("CEPH_VERSION", "pacific").args(arguments);
        test.current_dir(pond.scratch()).output().unwrap()
    };
    let left = listed(GO_LEFT);
    let others = run(&["-test.v", "-test.timeout=120s", &format!("-test.skip=^({})$", left.join("|"))]);
    let said = testkit::process::text(&others);
    assert!(others.status.success(), "{said}");
    let passed = said.lines().filter(|line| line.starts_with("--- PASS: ")).count();
    assert!(passed >= GO_PASSED_MIN, "{passed}: {said}");
    for name in &left {
        let output = run(&[&format!("-test.timeout={GO_LIMIT}"), "-test.v", &format!("-test.run=^{name}$")]);
        let said = testkit::process::text(&output);
        assert!(said.contains(name), "there is no {name}");
        assert!(!output.status.success(), "{name} passes, and is listed as one that does not: {said}");
    }
    println!("{passed} passed, {} failed as they are listed to", left.len());
}
