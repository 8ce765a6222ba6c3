//! The command as a new user meets it: help, wrong calls, wrong devices, directories without a cluster.

use crate::common::site::Site;
use crate::common::{OnDrop, Process, attempt, command, millpond, names, path, wait_until};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use testkit::Etcd;
use testkit::prerequisites::{installed, not_tested};

/// Runs it, expects that exit code, and gives what it wrote to stderr.
#[track_caller]
fn refused(code: i32, arguments: &[&str]) -> String {
    let output = millpond(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?} wrote a result in spite of its error");
    stderr
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory can be made")
}

fn sparse(directory: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = directory.join(name);
    let file = std::fs::File::create(&path).expect("a scratch file can be made");
    file.set_len(bytes).expect("a scratch file can be sparse");
    path
}

#[test]
fn every_command_explains_itself_with_examples() {
    let commands: &[&[&str]] = &[
        &[],
        &["up"],
        &["down"],
        &["status"],
        &["health"],
        &["health", "explain"],
        &["top"],
        &["osd", "tree"],
        &["osd", "wipe"],
        &["osd", "add"],
        &["osd", "out"],
        &["osd", "in"],
        &["osd", "rm"],
        &["osd", "replace"],
        &["osd", "reweight"],
        &["osd", "class"],
        &["registry", "migrate"],
        &["pg", "dump"],
        &["placement", "locate"],
        &["placement", "simulate"],
        &["pool", "create"],
        &["pool", "set"],
        &["pool", "ls"],
        &["pool", "rm"],
        &["volume", "create"],
        &["volume", "ls"],
        &["volume", "info"],
        &["volume", "resize"],
        &["volume", "rename"],
        &["volume", "meta", "ls"],
        &["volume", "meta", "get"],
        &["volume", "meta", "set"],
        &["volume", "meta", "rm"],
        &["volume", "rm"],
        &["volume", "trash"],
        &["volume", "restore"],
        &["volume", "purge"],
        &["schedule", "create"],
        &["schedule", "ls"],
        &["schedule", "info"],
        &["schedule", "set"],
        &["schedule", "pause"],
        &["schedule", "resume"],
        &["schedule", "rm"],
        &["nbd"],
        &["bench"],
        &["lab"],
        &["lab", "run"],
        &["lab", "fio"],
        &["lab", "list"],
        &["lab", "explain"],
        &["lab", "report"],
        &["lab", "compare"],
        &["demo"],
        &["completions"],
    ];
    for command in commands {
        let mut arguments = command.to_vec();
        arguments.push("--help");
        let output = millpond(&arguments);
        assert!(output.status.success(), "{arguments:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        names(&text, &["Usage: millpond", "Examples:"]);
        assert!(!text.contains("--parent") && !text.contains("--detached"), "{arguments:?} shows internals");
    }
}

#[test]
fn a_wrong_call_exits_with_2_and_says_what_would_be_right() {
    let directory = scratch();
    let dir = path(directory.path());
    let cases: &[(&[&str], &[&str])] = &[
        (&["up", "--nodes", "0"], &["--nodes", "1..=64"]),
        (&["up", "--osd-size", "8 parsecs"], &["--osd-size", "8GiB"]),
        (&["up", "--osd-size", "1MiB"], &["--osd-size 1MiB", "256MiB"]),
        (&["up", "--osd-size", "1GiB", "--device", "/dev/x"], &["cannot be used with"]),
        (&["up", "--replicas", "4"], &["--replicas 4", "only 3"]),
        (&["up", "--nodes", "2", "--device", "/dev/x"], &["--nodes 2", "only 1 device"]),
        (&["up", "--osd-out-after", "soon"], &["--osd-out-after", "10min", "never"]),
        (&["up", "--osd-out-after", "0"], &["no time at all", "never"]),
        (&["up", "--frobnicate"], &["--frobnicate"]),
        (
            &["health", "explain", "OSD_DOWM"],
            &["\"OSD_DOWM\" is no health code", "OSD_DOWN", "health explain"],
        ),
        (&["top"], &["needs a terminal", "--once"]),
        (&["osd", "out", "three"], &["\"three\" names no OSD", "osd.3"]),
        (&["osd", "replace"], &["<ID>"]),
        (&["osd", "replace", "three"], &["\"three\" names no OSD", "osd.3"]),
        (&["osd", "add"], &["--device", "--size"]),
        (&["osd", "add", "--size", "1GiB", "--device", "/dev/x"], &["cannot be used with"]),
        (&["volume", "create", "x", "huge"], &["\"huge\" is not a size", "GiB"]),
        (&["pool", "create", "x", "--size", "2", "--min-size", "3"], &["--min-size 3", "lower it"]),
        (&["pool", "set", "x"], &["--size"]),
        (&["pool", "create", "x", "--failure-domain", "shelf"], &["shelf", "osd, host, rack"]),
        (&["osd", "reweight", "0", "1.5"], &["1.5", "from 0 to 1"]),
        (&["osd", "class", "0", "floppy"], &["floppy", "nvme, ssd, hdd, or auto"]),
        (&["placement", "locate", "0"], &["--rack"]),
        (&["placement", "simulate", "--hosts", "1", "--osds-per-host", "1"], &["--copies 3", "1 OSDs"]),
        (&["nbd"], &["VOLUME"]),
        (&["nbd", "a", "a"], &["volume a is named twice"]),
        (&["nbd", "a", "--listen", "/run/x"], &["unix:PATH"]),
        (&["bench", "--target", "/dev/x"], &["raw:PATH"]),
        (&["bench", "--target", "volume:x", "--rw", "trim"], &["randread"]),
        (&["bench", "--target", "volume:x", "--iodepth", "0"], &["--iodepth 0"]),
        (&["bench", "--target", "volume:x", "--rwmixread", "101"], &["--rwmixread 101"]),
        (&["lab", "run", "10m"], &["10m", "millpond lab list"]),
        (&["lab", "explain", "10k", "--set", "rounds"], &["rounds=2"]),
        (&["lab", "explain", "10k", "--set", "speed=2"], &["no speed", "osd_size", "rounds"]),
        (&["lab", "explain", "10k", "--set", "rounds=0"], &["rounds = 0", "1 to 1000"]),
        (&["node-process", "--node", "0", "--registry", "tcp:x", "--osd", "y"], &["unix:PATH"]),
        (&["node", "join", "x", "--device", "/dev/x"], &["--listen"]),
        (&["registry", "migrate", "--to", "embedded", "--listen", "here"], &["--listen", "IP address"]),
        (&["completions", "cobol"], &["bash"]),
        (&["vloume"], &["vloume"]),
    ];
    for (arguments, expected) in cases {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--dir", dir]);
        names(&refused(2, &arguments), expected);
    }
    assert!(!directory.path().join("registry.redb").exists(), "a wrong call made a cluster");
}

#[test]
fn without_a_cluster_every_command_says_how_to_get_one() {
    let directory = scratch();
    let dir = path(directory.path());
    let commands: &[&[&str]] = &[
        &["status"],
        &["status", "--json"],
        &["health"],
        &["top", "--once"],
        &["osd", "tree"],
        &["osd", "add", "--size", "1GiB"],
        &["osd", "out", "0"],
        &["osd", "in", "0"],
        &["osd", "rm", "0"],
        &["osd", "replace", "0"],
        &["osd", "reweight", "0", "0.5"],
        &["osd", "class", "0", "ssd"],
        &["pg", "dump"],
        &["placement", "locate", "0", "--rack", "r1"],
        &["placement", "simulate", "--from-cluster"],
        &["pool", "ls"],
        &["pool", "create", "x"],
        &["pool", "set", "x", "--size", "2"],
        &["volume", "ls"],
        &["volume", "create", "x", "1GiB"],
        &["volume", "info", "x"],
        &["volume", "resize", "x", "1GiB"],
        &["volume", "rename", "x", "y"],
        &["volume", "meta", "ls", "x"],
        &["volume", "meta", "set", "x", "k", "v"],
        &["volume", "rm", "x"],
        &["volume", "rm", "x", "--now"],
        &["volume", "trash"],
        &["volume", "restore", "x"],
        &["volume", "purge", "--all"],
        &["nbd", "x"],
        &["bench", "--target", "volume:x"],
        &["down"],
    ];
    for command in commands {
        let mut arguments = command.to_vec();
        arguments.extend(["--dir", dir]);
        names(&refused(1, &arguments), &["no cluster in", dir, "millpond up --dir"]);
        let by_environment = crate::common::command(command).env("MILLPOND_DIR", dir).output().unwrap();
        names(&String::from_utf8_lossy(&by_environment.stderr), &["no cluster in", dir]);
    }
}

#[test]
fn a_directory_that_cannot_hold_a_cluster_is_refused() {
    let directory = scratch();
    let file = sparse(directory.path(), "file", 0);
    names(&refused(1, &["up", "--dir", path(&file.join("x"))]), &["cannot make the directory", "--dir"]);
    let long = directory.path().join("x".repeat(110));
    names(&refused(1, &["up", "--dir", path(&long)]), &["bytes too long", "shorter --dir"]);
    names(&refused(1, &["up", "--detach", "--dir", path(&long)]), &["shorter --dir"]);
}

#[test]
fn wrong_devices_are_refused_by_name_and_leave_nothing_behind() {
    let directory = scratch();
    let pond = directory.path().join("pond");
    let good = sparse(directory.path(), "good", 256 << 20);
    let small = sparse(directory.path(), "small", (256 << 20) - 4096);
    let foreign = sparse(directory.path(), "foreign", 256 << 20);
    let mut file = std::fs::OpenOptions::new().write(true).open(&foreign).unwrap();
    file.seek(SeekFrom::Start(1080)).unwrap();
    file.write_all(b"\x53\xef").unwrap();
    let missing = directory.path().join("missing");
    let cases: &[(&Path, &[&str])] = &[
        (&missing, &["missing", "no such device"]),
        (&small, &["small: too small", "at least 256MiB"]),
        (&foreign, &["foreign", "ext4", "osd wipe"]),
        (directory.path(), &["is a directory"]),
        (Path::new("/dev/null"), &["/dev/null", "neither a block device nor a file"]),
        (&good, &["same drive"]),
    ];
    for (device, expected) in cases {
        let arguments = ["up", "--dir", path(&pond), "--device", path(&good), "--device", path(device)];
        names(&refused(1, &arguments), expected);
        assert!(!pond.join("registry.redb").exists(), "{device:?} left a cluster behind");
    }
}

#[test]
fn the_device_of_the_root_file_system_is_neither_taken_nor_wiped() {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = mountinfo.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    let source = root.split(" - ").nth(1).unwrap().split(' ').nth(1).unwrap();
    if !Path::new(source).exists() || !source.starts_with("/dev/") {
        not_tested("the device of the root file system", &format!("{source} is no device that can be named"));
        return;
    }
    let directory = scratch();
    let dir = path(directory.path());
    names(&refused(1, &["up", "--dir", dir, "--device", source]), &[source, "is mounted at", "unmount"]);
    names(&refused(1, &["osd", "wipe", source, "--yes"]), &[source, "is mounted at"]);
}

#[test]
fn a_read_only_device_is_refused() {
    let directory = scratch();
    let pond = directory.path().join("pond");
    let file = sparse(directory.path(), "drive", 256 << 20);
    let output = attempt("losetup", &["--find", "--show", "--read-only", path(&file)]);
    if !output.status.success() {
        // Without the right to make loop devices this is no superuser, whom a mode would not stop.
        let mut permissions = file.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&file, permissions).unwrap();
        names(&refused(1, &["up", "--dir", path(&pond), "--device", path(&file)]), &["drive", "read-only"]);
        return;
    }
    let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let _detached = OnDrop(|| drop(attempt("losetup", &["--detach", &device])));
    let refusal = refused(1, &["up", "--dir", path(&pond), "--device", &device]);
    names(&refusal, &[&device, "is read-only", "blockdev --setrw"]);
    let behind = refused(1, &["up", "--dir", path(&pond), "--device", path(&file)]);
    names(&behind, &["is the file behind", &device]);
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = millpond(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        names(&String::from_utf8(output.stdout).unwrap(), &["millpond", "volume", "resize"]);
    }
}

#[test]
fn every_health_code_is_explained_without_a_cluster() {
    for code in health::codes::Code::ALL {
        let output = millpond(&["health", "explain", code.name()]);
        assert!(output.status.success(), "{code}");
        let text = String::from_utf8(output.stdout).unwrap();
        names(&text, &[code.name(), "means", "for data", "do ", "goes away"]);
    }
    let json = millpond(&["health", "explain", "--json"]).stdout;
    let all: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(all.as_array().unwrap().len(), health::codes::Code::ALL.len());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Closed before anything can have been read.
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(child.wait().unwrap().success(), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn a_wipe_asks_first() {
    let directory = scratch();
    let drive = directory.path().join("drive");
    std::fs::write(&drive, [7; 8192]).unwrap();
    names(&refused(1, &["osd", "wipe", path(&drive)]), &["8KiB", "add --yes"]);
    assert_eq!(std::fs::read(&drive).unwrap(), [7; 8192]);
    assert!(millpond(&["osd", "wipe", path(&drive), "--yes"]).status.success());
    assert_eq!(std::fs::read(&drive).unwrap(), [0; 8192]);
}

/// Starts `up` in the foreground, and waits until it has taken the directory.
fn up(dir: &Path) -> Process {
    let log = dir.join("test.log");
    let up = Process::start(&mut command(&["up", "--osd-size", "256MiB", "--dir", path(dir)]), &log);
    let named = format!("\"pid\":{},", up.pid());
    wait_until("it takes the directory", || {
        std::fs::read_to_string(dir.join("lock")).is_ok_and(|text| text.contains(&named))
    });
    up
}

#[test]
fn a_second_up_on_a_directory_is_refused_and_names_the_first() {
    let directory = scratch();
    let mut up = up(directory.path());
    let pid = format!("process {}", up.pid());
    let dir = path(directory.path());
    names(&refused(1, &["up", "--dir", dir]), &["already up", &pid, "millpond down"]);
    names(&refused(1, &["up", "--detach", "--dir", dir]), &["already up", &pid]);
    let down = millpond(&["down", "--dir", dir]);
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    up.ends();
    assert!(!directory.path().join("registry.sock").exists(), "the socket was left behind");
    names(&refused(1, &["status", "--dir", dir]), &["is not up", "millpond up --detach"]);
    names(&refused(1, &["nbd", "x", "--dir", dir]), &["is not up"]);
    let again = millpond(&["down", "--dir", dir]);
    names(&String::from_utf8_lossy(&again.stdout), &["nothing to stop"]);
    assert!(again.status.success());
}

#[test]
fn a_later_up_refuses_flags_that_contradict_the_cluster() {
    let directory = scratch();
    let dir = path(directory.path());
    let mut up = up(directory.path());
    // The configuration is remembered before the registry is served.
    wait_until("the registry is served", || directory.path().join("registry.sock").exists() || !up.runs());
    assert!(millpond(&["down", "--dir", dir]).status.success());
    up.ends();
    let cases: &[(&[&str], &str)] = &[
        (&["--nodes", "2"], "has 3 nodes"),
        (&["--replicas", "2"], "3 copies"),
        (&["--osd-size", "1GiB"], "OSD files of 256MiB"),
        (&["--device", "/dev/x", "--device", "/dev/y", "--device", "/dev/z"], "files of its own"),
    ];
    for (flags, expected) in cases {
        let mut arguments = vec!["up", "--dir", dir];
        arguments.extend(*flags);
        names(&refused(2, &arguments), &[flags[0], expected, "leave"]);
    }
}

/// Whether the one OSD is reached at all of these addresses, and others are told the first.
fn is_reached_at(site: &Site, addresses: &[&str]) -> bool {
    let status = site.try_status();
    let told = status["osds"][0]["address"].as_str().and_then(|address| address.rsplit_once(':'));
    told.is_some_and(|(first, port)| {
        let is_reached = |address: &&str| TcpStream::connect(format!("{address}:{port}")).is_ok();
        first == addresses[0] && addresses.iter().all(is_reached)
    })
}

#[test]
fn a_node_that_joins_is_reached_at_every_address_that_it_was_given_and_so_it_is_when_it_starts_again() {
    let test = "a node is reached at every address that it was given";
    if !installed(test, &["etcd", "pkill"]) {
        return;
    }
    if Path::new("/run/systemd/system").exists() && nix::unistd::geteuid().is_root() {
        return not_tested(test, "systemd would run its node as that of this machine");
    }
    let (site, etcd) = (Site::new("h"), Etcd::start(1, &[]));
    let _ends = OnDrop(|| site.kill_everything());
    let drive = sparse(site.scratch(), "drive", 512 << 20);
    site.run(&["cluster", "init", "--registry", &etcd.url()]);
    let token = site.run(&["cluster", "token"]);
    let join = ["node", "join", token.trim(), "--device", path(&drive), "--listen"];
    let again = [&join[..], &["127.0.0.2", "--listen", "127.0.0.2"]].concat();
    site.refused(&again, &["127.0.0.2 is given twice"]);
    site.run(&[&join[..], &["127.0.0.2", "--listen", "127.0.0.1"]].concat());
    wait_until("it is reached at both", || is_reached_at(&site, &["127.0.0.2", "127.0.0.1"]));
    site.run(&["node", "stop"]);
    site.run(&["node", "start"]);
    wait_until("it is reached at both again", || is_reached_at(&site, &["127.0.0.2", "127.0.0.1"]));
}

#[test]
fn a_damaged_registry_file_is_refused_by_name() {
    let directory = scratch();
    let dir = path(directory.path());
    std::fs::write(directory.path().join("registry.redb"), vec![0x5a; 64 << 10]).unwrap();
    names(&refused(1, &["up", "--dir", dir]), &["registry.redb", "damaged"]);
    std::fs::write(directory.path().join("registry.redb"), b"").unwrap();
    names(&refused(1, &["up", "--dir", dir]), &["registry.redb"]);
}
