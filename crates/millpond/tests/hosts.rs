//! From three bare hosts to a cluster by the very commands that docs/operations.md names, each host in a network namespace
//! of its own, with a member of an etcd and a drive; then hosts die and come back.

mod common;

use common::nbd::NbdClient;
use common::network::{Network, Peer};
use common::tools::{attempt, installed};
use common::{path, scratch, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const HOSTS: u32 = 3;
/// Where the document tells how.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
/// Reads until its input ends, which it does with the test, and then ends all that names the scratch directory.
const GUARDIAN: &str = r#"cat > /dev/null; pkill -KILL -f -- "$1/"; sleep 0.2; rm -rf "$1""#;

struct Hosts {
    network: Network,
    scratch: PathBuf,
    token: String,
    guardian: Child,
}

impl Hosts {
    fn make(test: &str) -> Option<Hosts> {
        if !installed(test, &["etcd", "pkill"]) {
            return None;
        }
        let network = Network::make(test)?;
        let scratch = scratch().keep();
        let guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian", path(&scratch)])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell can be started");
        for host in 0..HOSTS {
            let drive =
                std::fs::File::create(scratch.join(format!("drive.{host}"))).expect("a file can be made");
            drive.set_len(2 << 30).expect("a file can be that long");
        }
        Some(Hosts { network, scratch, token: String::new(), guardian })
    }

    fn dir(&self, host: u32) -> PathBuf {
        self.scratch.join(format!("h{}", host + 1))
    }

    /// What a line of the document means for one host here.
    fn here(&self, line: &str, host: u32) -> String {
        let mut line = line.to_owned();
        for other in (0..HOSTS).rev() {
            line = line.replace(&format!("10.0.0.{}", other + 1), &self.network.address(Peer::Node(other)));
        }
        let etcd = self.scratch.join(format!("etcd.{host}"));
        line.replace("/var/lib/etcd-millpond", path(&etcd))
            .replace("/dev/nvme0n1", path(&self.scratch.join(format!("drive.{host}"))))
    }

    /// Runs a line in a shell on a host.
    fn shell(&self, host: u32, line: &str) -> Output {
        let bin = Path::new(env!("CARGO_BIN_EXE_millpond")).parent().expect("it is in a directory");
        let path_variable = format!("{}:{}", path(bin), std::env::var("PATH").unwrap_or_default());
        let log = std::fs::File::options().create(true).append(true).open(self.scratch.join("etcd.log"));
        Command::new("ip")
            .args(["netns", "exec", &self.network.namespace(host), "sh", "-c", line])
            .env("PATH", path_variable)
            .env("NAME", format!("h{}", host + 1))
            .env("ADDRESS", self.network.address(Peer::Node(host)))
            .env("TOKEN", &self.token)
            .env("MILLPOND_DIR", self.dir(host))
            .stdin(Stdio::null())
            // What stays in the background must not hold a pipe open.
            .stderr(log.expect("a log can be made"))
            .stdout(if line.ends_with('&') { Stdio::null() } else { Stdio::piped() })
            .output()
            .expect("a shell can be started")
    }

    #[track_caller]
    fn run(&self, host: u32, line: &str) -> String {
        let output = self.shell(host, line);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {said}{}", self.log());
        said
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.scratch.join("etcd.log")).unwrap_or_default();
        text.lines().rev().take(10).collect::<Vec<_>>().join("\n")
    }

    fn health(&self) -> String {
        let output = self.shell(0, "millpond status --json");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["health"]["level"].as_str().unwrap_or_default().to_owned()
    }

    /// The host loses all of its Millpond processes at once.
    fn kill_node(&self, host: u32) {
        attempt("pkill", &["-KILL", "-f", "--", &format!("millpond node.*{}", path(&self.dir(host)))]);
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
            for host in 0..HOSTS {
                let log = std::fs::read_to_string(self.dir(host).join("node.log")).unwrap_or_default();
                eprintln!("h{}: {}", host + 1, log.lines().rev().take(15).collect::<Vec<_>>().join("\n"));
            }
        }
        // Its input ends, and it does what is to be done before the network goes.
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
    }
}

/// The commands of the document's walk: on each host, or on the first.
fn walk() -> Vec<(bool, String)> {
    let document = std::fs::read_to_string(DOCUMENT).expect("the document is there");
    let section =
        document.split("## From three bare hosts to a cluster").nth(1).expect("it has that section");
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut is_on_each = false;
    let mut commands = Vec::new();
    for line in block.expect("it has commands").lines() {
        match line.strip_prefix("# on ") {
            Some(place) => is_on_each = place.starts_with("each host"),
            None => commands.push((is_on_each, line.to_owned())),
        }
    }
    commands
}

#[test]
fn three_bare_hosts_become_a_cluster_by_the_commands_of_the_document() {
    let Some(mut hosts) = Hosts::make("three bare hosts become a cluster") else { return };
    let walk = walk();
    let count: u32 = walk.iter().map(|(is_on_each, _)| if *is_on_each { HOSTS } else { 1 }).sum();
    assert!((5..10).contains(&count), "{count} commands");
    for (is_on_each, line) in &walk {
        for host in 0..if *is_on_each { HOSTS } else { 1 } {
            let said = hosts.run(host, &hosts.here(line, host));
            let words = said.split_ascii_whitespace();
            if let Some(token) = words.into_iter().find(|word| word.starts_with("millpond1.")) {
                hosts.token = token.to_owned();
            }
        }
    }
    wait_until("the cluster is well", || hosts.health() == "ok");
    let nodes: Value = serde_json::from_str(&hosts.run(1, "millpond node ls --json")).unwrap();
    let names: Vec<&str> =
        nodes.as_array().unwrap().iter().filter_map(|node| node["host"].as_str()).collect();
    assert_eq!(names, ["h1", "h2", "h3"]);

    let socket = hosts.scratch.join("nbd.sock");
    hosts.run(0, &format!("millpond nbd disk --listen unix:{} > {0}.log 2>&1 &", path(&socket)));
    let log = hosts.scratch.join("nbd.sock.log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("the volume is served", || said().contains("Serving "));
    let mut client = NbdClient::connect(&socket, "disk").unwrap();
    for round in 0..4u8 {
        client.write(u64::from(round) << 22, &[round + 1; 8192]).unwrap();
    }

    // A host dies: its processes, and its member of etcd.
    hosts.kill_node(2);
    attempt("pkill", &["-KILL", "-f", "--", path(&hosts.scratch.join("etcd.2"))]);
    for round in 0..4u8 {
        client.write((u64::from(round) << 22) + 8192, &[round + 11; 8192]).unwrap();
        assert_eq!(client.read(u64::from(round) << 22, 8192).unwrap(), vec![round + 1; 8192]);
    }
    wait_until("the lost host is told of", || hosts.health() == "warning");
    let (is_on_each, etcd) = &walk[0];
    assert!(*is_on_each);
    hosts.run(2, &hosts.here(etcd, 2));
    hosts.run(2, "millpond node start");
    wait_until("the cluster is well again", || hosts.health() == "ok");
    for round in 0..4u8 {
        assert_eq!(client.read((u64::from(round) << 22) + 8192, 8192).unwrap(), vec![round + 11; 8192]);
    }

    // Somebody who joins twice, with the wrong drive, or nobody's token.
    let refused = |line: &str, words: &str| {
        let output = hosts.shell(1, &format!("{line} 2>&1"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && said.contains(words), "{line}: {said}");
    };
    let address = hosts.network.address(Peer::Node(1));
    let join = format!("millpond node join $TOKEN --listen {address} --device");
    refused(&format!("{join} /dev/null"), "already");
    refused(&format!("{join} /dev/null --dir {}", path(&hosts.scratch.join("other"))), "/dev/null");
    refused("millpond node join millpond1.e30 --listen 127.0.0.1 --device x --dir x", "cluster token");
    refused("millpond node rm 1", "is in");
    refused("millpond osd add --device x", "node.devices");
}
