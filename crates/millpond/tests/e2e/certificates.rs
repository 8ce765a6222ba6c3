//! Volumes over a network: encrypted, and to each client what its key may have, by programs that nobody here wrote.

use crate::common::door::Door;
use crate::common::machine::{Guest, Image, has_guests};
use crate::common::pond::Pond;
use crate::common::{attempt, names, path, run, text, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::prerequisites::installed;

/// A cluster with a volume that is served encrypted, and where that is.
struct Served {
    pond: Pond,
    // Ends before the cluster does.
    door: Option<Door>,
    port: u16,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.door.take();
    }
}

impl Served {
    fn start() -> Served {
        let pond = Pond::start("768MiB");
        pond.volume("v", "64MiB");
        let tls = path(&pond.scratch().join("tls")).to_owned();
        pond.run(&[
            "auth",
            "certificate",
            "server",
            "--host",
            "127.0.0.1",
            "--host",
            "pond.example",
            "--out",
            &tls,
        ]);
        let door = pond.serve_with("v", &["--listen", "tcp:127.0.0.1:0", "--tls", &tls]);
        let log = door.log();
        let (_, rest) = log.split_once("tcp:127.0.0.1:").expect("it says where it listens");
        let port = rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|port| port.parse().ok());
        let port = port.expect("it says at which port it listens");
        Served { pond, door: Some(door), port }
    }

    /// Makes a key and a certificate of it, and answers the directory of that.
    fn client(&self, name: &str, flags: &[&str]) -> String {
        let key = path(&self.pond.scratch().join(format!("{name}.key"))).to_owned();
        self.pond.run(&[&["auth", "add", name, "--out", &key], flags].concat());
        let out = path(&self.pond.scratch().join(format!("{name}-tls"))).to_owned();
        self.pond.run(&["auth", "certificate", "client", &key, "--out", &out]);
        out
    }

    fn uri(&self, certificates: &str) -> String {
        format!("nbds://127.0.0.1:{}/v?tls-certificates={certificates}", self.port)
    }

    /// What QEMU is told so that it connects with these certificates.
    fn of_qemu(&self, certificates: &str) -> Vec<String> {
        let port = self.port;
        vec![
            "--object".to_owned(),
            format!("tls-creds-x509,id=tls,endpoint=client,dir={certificates}"),
            "--image-opts".to_owned(),
            format!(
                "driver=raw,file.driver=nbd,file.server.type=inet,file.server.host=127.0.0.1,file.server.port={port},file.export=v,file.tls-creds=tls"
            ),
        ]
    }
}

/// A program that is refused, and says why.
#[track_caller]
fn refused(program: &str, arguments: &[&str], words: &str) {
    let output = attempt(program, arguments);
    let said = text(&output);
    assert!(!output.status.success() && said.contains(words), "{program} {arguments:?}: {said}");
}

#[test]
fn a_client_of_a_network_encrypts_and_has_what_its_key_may_have() {
    if !installed("NBD over TLS", &["nbdinfo", "nbdcopy", "qemu-img", "qemu-io", "openssl"]) {
        return;
    }
    let served = Served::start();
    let writer = served.client("writer", &["--pool", "default", "--rw"]);
    let reader = served.client("reader", &["--pool", "default", "--ro"]);
    served.pond.run(&["pool", "create", "other"]);
    let stranger = served.client("stranger", &["--pool", "other", "--rw"]);

    // Written and read by several programs.
    assert_eq!(run("nbdinfo", &["--size", &served.uri(&writer)]).trim(), (64 << 20).to_string());
    let image = served.pond.scratch().join("image");
    std::fs::write(&image, vec![7u8; 8 << 20]).unwrap();
    run("nbdcopy", &[path(&image), &served.uri(&writer)]);
    let qemu = served.of_qemu(&writer);
    let qemu: Vec<&str> = qemu.iter().map(String::as_str).collect();
    names(&run("qemu-img", &[&["info"], qemu.as_slice()].concat()), &["64 MiB"]);
    let said = run(
        "qemu-io",
        &[qemu.as_slice(), &["-c", "read -P 7 0 8M", "-c", "write -P 9 1M 1M", "-c", "read -P 9 1M 1M"]]
            .concat(),
    );
    assert!(!said.contains("failed"), "{said}");
    let copy = served.pond.scratch().join("copy");
    run("nbdcopy", &[&served.uri(&reader), path(&copy)]);
    let copied = std::fs::read(&copy).unwrap();
    assert!(
        copied[..1 << 20].iter().all(|byte| *byte == 7)
            && copied[1 << 20..2 << 20].iter().all(|byte| *byte == 9)
    );

    // What a key may not do it does not do.
    assert_eq!(run("nbdinfo", &["--is", "read-only", &served.uri(&reader)]), "");
    refused("nbdcopy", &[path(&image), &served.uri(&reader)], "read-only");
    refused("nbdinfo", &[&served.uri(&stranger)], "No such file");

    // Nobody comes in who does not encrypt, whom the cluster does not know, or whose key it knows no more.
    // (The reason is said, and libnbd shows it where it is asked for details.)
    let in_the_clear = attempt("nbdinfo", &[&format!("nbd://127.0.0.1:{}/v", served.port)]);
    assert!(!in_the_clear.status.success(), "{}", text(&in_the_clear));
    let foreign = served.pond.scratch().join("foreign-tls");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::copy(format!("{writer}/ca-cert.pem"), foreign.join("ca-cert.pem")).unwrap();
    let [key, certificate] =
        ["client-key.pem", "client-cert.pem"].map(|name| path(&foreign.join(name)).to_owned());
    run(
        "openssl",
        &[
            "req",
            "-x509",
            "-newkey",
            "ed25519",
            "-nodes",
            "-subj",
            "/CN=foreign",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ],
    );
    refused("nbdinfo", &[&served.uri(path(&foreign))], "");
    let gone = served.client("gone", &["--pool", "default", "--rw"]);
    run("nbdinfo", &[&served.uri(&gone)]);
    served.pond.run(&["auth", "rm", "gone"]);
    wait_until("the key is not known any more", || {
        !attempt("nbdinfo", &[&served.uri(&gone)]).status.success()
    });
    refused("nbdinfo", &[&served.uri(&gone)], "");
    // And no client takes another for the server.
    std::fs::copy(&certificate, foreign.join("ca-cert.pem")).unwrap();
    assert!(!attempt("nbdinfo", &[&served.uri(path(&foreign))]).status.success());
}

#[test]
fn the_kernel_s_client_is_served_by_who_encrypts_for_it_alone() {
    const TEST: &str = "the kernel's NBD client by TLS";
    if !(has_guests(TEST) && installed(TEST, &["nbd-client", "qemu-nbd", "fio"])) {
        return;
    }
    let served = Served::start();
    let writer = served.client("writer", &["--pool", "default", "--rw"]);
    let removed = served.client("removed", &["--pool", "default", "--rw"]);
    served.pond.run(&["auth", "rm", "removed"]);
    let files = [&writer, &removed].map(|directory| {
        ["ca-cert.pem", "client-cert.pem", "client-key.pem"].map(|name| Path::new(directory).join(name))
    });
    let files: Vec<&Path> = files.iter().flatten().map(PathBuf::as_path).collect();
    // Debian's nbd-client knows no TLS later than 1.2, so QEMU encrypts. For a guest this machine's loopback has another address than
    // the certificate names.
    let connects = |directory: &str| {
        format!(
            "qemu-nbd -c /dev/nbd0 --fork --object tls-creds-x509,id=tls,endpoint=client,dir={directory} --image-opts \
             driver=raw,file.driver=nbd,file.server.type=inet,file.server.host=10.0.2.2,file.server.port={},file.export=v,\
             file.tls-creds=tls,file.tls-hostname=pond.example",
            served.port
        )
    };
    let script = format!(
        "mkdir -p /var/lock
         nbd-client 10.0.2.2 {port} /dev/nbd0 -N v -b 512 && exit 2
         {removed} && exit 3
         {writer} || exit 4
         until [ $(cat /sys/block/nbd0/size) = 131072 ]; do sleep 0.1; done
         fio --name=part --filename=/dev/nbd0 --size=32m --direct=1 --ioengine=io_uring --iodepth=8 --rw=randrw \
         --bsrange=512-64k --verify=crc32c --verify_fatal=1 --time_based --runtime=5 2>&1 | grep -q 'err= 0' || exit 6
         qemu-nbd -d /dev/nbd0",
        port = served.port,
        removed = connects(&removed),
        writer = connects(&writer),
    );
    let programs = ["nbd-client", "qemu-nbd", "fio"];
    let image = Image::new(served.pond.scratch(), &script, &programs, &files, &["nbd"]);
    let said = Guest::start(&image, served.pond.scratch(), "vm", &[]).ends_well();
    names(&said, &["this server serves nothing in the clear"]);
}

#[test]
fn a_connection_ends_with_its_key() {
    if !installed("a connection's key is removed", &["qemu-io"]) {
        return;
    }
    let served = Served::start();
    let certificates = served.client("guest", &["--pool", "default", "--rw"]);
    let mut qemu = Command::new("qemu-io")
        .args(served.of_qemu(&certificates))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut says = qemu.stdin.take().unwrap();
    let mut lines = BufReader::new(qemu.stdout.take().unwrap()).lines();
    let mut ask = |command: &str| {
        writeln!(says, "{command}").unwrap();
        says.flush().unwrap();
        lines
            .find_map(|line| line.ok().filter(|line| line.contains("wrote") || line.contains("failed")))
            .unwrap()
    };
    assert!(ask("write -P 1 0 4k").contains("wrote 4096"));
    served.pond.run(&["auth", "rm", "guest"]);
    wait_until("nothing is written any more", || ask("write -P 2 0 4k").contains("failed"));
    drop(says);
    qemu.wait().unwrap();
}

#[test]
fn volumes_are_served_to_a_network_by_nobody_who_did_not_mean_to() {
    let pond = Pond::start("768MiB");
    pond.volume("v", "64MiB");
    let refused = |flags: &[&str], words: &[&str]| {
        let (is_done, _, said) = pond.attempt(&[&["nbd", "v"], flags].concat());
        assert!(!is_done);
        names(&said, words);
    };
    refused(&["--listen", "tcp:0.0.0.0:0"], &["0.0.0.0", "--tls", "--plain"]);
    let nowhere = path(&pond.scratch().join("nowhere")).to_owned();
    refused(&["--listen", "tcp:0.0.0.0:0", "--tls", &nowhere], &["server-cert.pem", "auth certificate"]);
    pond.run(&["auth", "certificate", "server", "--host", "::1", "--out", &nowhere]);
    let (_, _, again) = pond.attempt(&["auth", "certificate", "server", "--host", "::1", "--out", &nowhere]);
    names(&again, &["exists", "--out"]);
    let (_, _, wrong) =
        pond.attempt(&["auth", "certificate", "server", "--host", "not a host", "--out", &nowhere]);
    names(&wrong, &["not a host"]);
    let key = path(&pond.scratch().join("monitor.key")).to_owned();
    pond.run(&["auth", "add", "monitor", "--monitor", "--out", &key]);
    let (is_done, _, said) = pond.attempt(&["auth", "certificate", "client", &key, "--out", &nowhere]);
    assert!(!is_done);
    names(&said, &["not for volumes"]);
}
