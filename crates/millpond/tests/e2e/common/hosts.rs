//! A cluster of many hosts, each in a network namespace of its own with a drive, and a member of an etcd on each of the
//! first three, made by the very commands that docs/operations.md names. Needs root.

use super::network::{Network, Peer};
use super::site::{Cluster, Site};
use super::{OnDrop, URGENT, attempt, path, wait_until};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use testkit::etcd;
use testkit::prerequisites::installed;

/// Hosts of the document.
pub const HOSTS: u32 = 3;
/// Where the document tells how.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
/// Bytes of a drive, as a file.
const DRIVE_BYTES: u64 = 3 << 30;

/// See the module's documentation. Everything on the hosts ends when this is dropped.
pub struct Hosts {
    site: Site,
    network: Network,
    token: RefCell<String>,
    /// What is in the environment of a host's processes from now on.
    environment: RefCell<BTreeMap<u32, Vec<(&'static str, String)>>>,
}

impl Deref for Hosts {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Cluster for Hosts {
    fn down(&self) {
        for host in self.those_that_run() {
            self.run_on(host, "millpond node stop");
        }
    }
}

impl Hosts {
    /// Bare hosts, the document's and so many more; or says which test is left out because that cannot be done here.
    pub fn bare(test: &str, more: u32) -> Option<Hosts> {
        if !installed(test, &["etcd", "etcdctl", "pkill"]) {
            return None;
        }
        let network = Network::make(test, HOSTS + more)?;
        // Commands find the cluster as the first host does.
        let hosts = Hosts {
            site: Site::new("h1"),
            network,
            token: RefCell::default(),
            environment: RefCell::default(),
        };
        for host in 0..HOSTS + more {
            let drive = File::create(hosts.drive(host)).expect("a file can be made");
            drive.set_len(DRIVE_BYTES).expect("a file can be that long");
        }
        Some(hosts)
    }

    /// A cluster of the document's hosts, and so many bare ones.
    pub fn up(test: &str, more: u32) -> Option<Hosts> {
        let hosts = Hosts::bare(test, more)?;
        hosts.follow(&walk());
        Some(hosts)
    }

    /// Runs commands of the document.
    pub fn follow(&self, walk: &[(bool, String)]) {
        for (is_on_each, line) in walk {
            (0..if *is_on_each { HOSTS } else { 1 }).for_each(|host| self.follow_line(host, line));
        }
    }

    /// Runs a command of the document on a host. A token that it prints is that of the commands to come.
    pub fn follow_line(&self, host: u32, line: &str) {
        let said = self.run_on(host, &self.here(line, host));
        let mut words = said.split_ascii_whitespace();
        if let Some(token) = words.find(|word| word.starts_with("millpond1.")) {
            token.clone_into(&mut self.token.borrow_mut());
        }
    }

    /// What a line of the document means for one host here.
    fn here(&self, line: &str, host: u32) -> String {
        let mut line = line.to_owned();
        for other in (0..HOSTS).rev() {
            line = line.replace(&format!("10.0.0.{}", other + 1), &self.address(other));
        }
        // Its processes are killed and its machine never is. With a disk that others keep busy, a member would stand still
        // for as long as a flush takes, and the others with it.
        line.replace("etcd --", "etcd --unsafe-no-fsync --")
            .replace("/var/lib/etcd-millpond", path(&self.etcd_dir(host)))
            .replace("/dev/nvme0n1", path(&self.drive(host)))
    }

    /// The network between them.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// A host's address.
    pub fn address(&self, host: u32) -> String {
        self.network.address(Peer::Node(host))
    }

    /// Where a host keeps its settings and keys.
    pub fn dir_of(&self, host: u32) -> PathBuf {
        self.scratch().join(format!("h{}", host + 1))
    }

    /// A host's drive.
    pub fn drive(&self, host: u32) -> PathBuf {
        self.scratch().join(format!("drive.{host}"))
    }

    /// What the node of a host has said.
    pub fn node_log(&self, host: u32) -> String {
        std::fs::read_to_string(self.dir_of(host).join("node.log")).unwrap_or_default()
    }

    /// Sets a variable in the environment of what is started on a host from now on.
    pub fn set(&self, host: u32, name: &'static str, value: &str) {
        self.environment.borrow_mut().entry(host).or_default().push((name, value.to_owned()));
    }

    /// A program on a host.
    pub fn command_on(&self, host: u32, program: &str) -> Command {
        let bin = Path::new(env!("CARGO_BIN_EXE_millpond")).parent().expect("it is in a directory");
        let path_variable = format!("{}:{}", path(bin), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(URGENT[0]);
        command
            .args(&URGENT[1..])
            .args(["ip", "netns", "exec", &self.network.namespace(host), program])
            .env("PATH", path_variable)
            .env("NAME", format!("h{}", host + 1))
            .env("ADDRESS", self.address(host))
            .env("TOKEN", &*self.token.borrow())
            .env("MILLPOND_DIR", self.dir_of(host))
            .envs(self.environment.borrow().get(&host).into_iter().flatten().cloned());
        command
    }

    /// Runs a line in a shell on a host.
    pub fn shell(&self, host: u32, line: &str) -> Output {
        let stays = line.ends_with('&');
        let log = || {
            let log = self.scratch().join(format!("shell.{host}.log"));
            Stdio::from(File::options().create(true).append(true).open(log).expect("a log can be made"))
        };
        self.command_on(host, "sh")
            .args(["-c", line])
            .stdin(Stdio::null())
            // What stays in the background must not hold a pipe open.
            .stderr(log())
            .stdout(if stays { log() } else { Stdio::piped() })
            .output()
            .expect("a shell can be started")
    }

    /// Runs a line that must work in a shell on a host, and gives its output.
    #[track_caller]
    pub fn run_on(&self, host: u32, line: &str) -> String {
        let output = self.shell(host, line);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "host {host}: {line}: {said}\n{}", self.logs());
        said
    }

    /// A line that must be refused on a host, with these words.
    #[track_caller]
    pub fn refused_on(&self, host: u32, line: &str, words: &[&str]) {
        let output = self.shell(host, &format!("{line} 2>&1"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "host {host}: {line}: {said}");
        super::names(&said, words);
    }

    /// A bare host joins.
    pub fn join(&self, host: u32) {
        let (_, join) = walk().into_iter().find(|(_, line)| line.contains("node join")).expect("it is there");
        self.run_on(host, &self.here(&join, host));
    }

    /// The verdict on the cluster; nothing while it cannot be had.
    pub fn health(&self) -> String {
        self.try_status()["health"]["level"].as_str().unwrap_or_default().to_owned()
    }

    /// `node ls --json`.
    pub fn nodes(&self) -> Vec<Value> {
        self.list(&["node", "ls"])
    }

    /// The node that a host is.
    pub fn node_of(&self, host: u32) -> Value {
        let name = format!("h{}", host + 1);
        let found = self.nodes().into_iter().rfind(|node| node["host"] == *name);
        found.unwrap_or_else(|| panic!("{name} is not among the nodes"))
    }

    /// The OSD on a host.
    pub fn osd_of(&self, host: u32) -> u32 {
        let osds = self.node_of(host)["osds"].clone();
        let osd = osds[0].as_u64().expect("it has an OSD");
        u32::try_from(osd).expect("an OSD's number is small")
    }

    /// The process that manages the cluster, as soon as there is one.
    pub fn manager(&self) -> i32 {
        let mut found = None;
        wait_until("somebody manages the cluster", || {
            let pid = self.nodes().iter().find_map(|node| node["manager_pid"].as_i64());
            found = pid.and_then(|pid| i32::try_from(pid).ok());
            found.is_some()
        });
        found.expect("it was waited for")
    }

    /// The host loses all of its Millpond processes at once.
    pub fn kill_node(&self, host: u32) {
        attempt("pkill", &["-KILL", "-f", "--", &format!("millpond node.*{}", path(&self.dir_of(host)))]);
    }

    /// Starts the node of a host when it is dropped.
    pub fn starts_again(&self, host: u32) -> OnDrop<impl FnMut()> {
        OnDrop(move || drop(self.shell(host, "millpond node start")))
    }

    /// The hosts whose node runs.
    fn those_that_run(&self) -> Vec<u32> {
        let runs = |host: &u32| {
            let pattern = format!("millpond node.*{}", path(&self.dir_of(*host)));
            attempt("pgrep", &["-f", "--", &pattern]).status.success()
        };
        (0..self.network.nodes()).filter(runs).collect()
    }

    fn etcd_dir(&self, host: u32) -> PathBuf {
        self.scratch().join(format!("etcd.{host}"))
    }

    /// Kills a host's member of etcd.
    pub fn kill_etcd(&self, host: u32) {
        let pattern = format!("^etcd .*{}", path(&self.etcd_dir(host)));
        attempt("pkill", &["-KILL", "-f", "--", &pattern]);
        // The next one needs its ports.
        wait_until("the member of etcd is gone", || {
            !attempt("pgrep", &["-f", "--", &pattern]).status.success()
        });
    }

    /// The process of a host's member of etcd.
    pub fn etcd_pid(&self, host: u32) -> i32 {
        let pattern = format!("^etcd .*{}", path(&self.etcd_dir(host)));
        let found = super::run("pgrep", &["-f", "--", &pattern]);
        found.trim().parse().expect("it is one process")
    }

    /// Starts a host's member of etcd again.
    pub fn start_etcd(&self, host: u32) {
        self.start_etcd_with(host, "");
    }

    fn start_etcd_with(&self, host: u32, flags: &str) {
        let (_, line) = &walk()[0];
        let line = line.replace("etcd --name", &format!("etcd {flags} --name"));
        self.run_on(host, &self.here(&line, host));
    }

    /// Starts a host's member of etcd which wants certificates of its clients and shows its own: `NAME.pem` of the
    /// authority `ca.pem`, both in `folder`.
    pub fn start_etcd_with_certificate(&self, host: u32, folder: &Path, name: &str) {
        let (_, line) = &walk()[0];
        let line = line.replace("client-urls http://", "client-urls https://");
        let folder = path(folder);
        let flags = format!(
            "etcd --cert-file {folder}/{name}.pem --key-file {folder}/{name}.key --trusted-ca-file {folder}/ca.pem \
             --client-cert-auth --name"
        );
        self.run_on(host, &self.here(&line.replace("etcd --name", &flags), host));
    }

    /// Puts another member of etcd, which knows nothing yet, in the place of a host's.
    pub fn replace_etcd(&self, host: u32) {
        let name = format!("h{}", host + 1);
        let members = self.etcdctl(&["member", "list"]);
        let own = members.lines().find(|line| line.contains(&format!(", {name}, ")));
        let own = own.and_then(|line| line.split(',').next()).expect("it is a member");
        self.kill_etcd(host);
        // Etcd changes its members only when those that are left have known each other for some seconds.
        let is_done = |arguments: &[&str]| self.try_etcdctl(arguments).status.success();
        wait_until("the old member is removed", || is_done(&["member", "remove", own]));
        std::fs::remove_dir_all(self.etcd_dir(host)).expect("its data can be removed");
        let peers = format!("--peer-urls=http://{}:2380", self.address(host));
        wait_until("the new member is expected", || is_done(&["member", "add", &name, &peers]));
        self.start_etcd_with(host, "--initial-cluster-state existing");
        self.etcd_is_well();
    }

    /// Waits until all members of etcd answer.
    pub fn etcd_is_well(&self) {
        etcd::is_well(&self.etcd_endpoints());
    }

    /// The host whose member leads etcd.
    pub fn etcd_leader(&self) -> u32 {
        etcd::leader(&self.etcd_endpoints()) as u32
    }

    fn etcd_endpoints(&self) -> Vec<String> {
        (0..HOSTS).map(|host| format!("{}:2379", self.address(host))).collect()
    }

    /// Runs `etcdctl`, which must work, on the members that run.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        let output = self.try_etcdctl(arguments);
        let said = super::text(&output);
        assert!(output.status.success(), "etcdctl {arguments:?}: {said}\n{}", self.logs());
        said
    }

    fn try_etcdctl(&self, arguments: &[&str]) -> Output {
        etcd::try_ctl(&self.etcd_endpoints(), arguments)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Before the network goes.
        self.site.kill_everything();
    }
}

/// The commands of the document's walk: on each host, or on the first.
pub fn walk() -> Vec<(bool, String)> {
    let commands = commands("## From three bare hosts to a cluster").into_iter();
    commands.map(|(place, line)| (place.starts_with("each host"), line)).collect()
}

/// The commands of a section of the document, each with where it is to be run.
pub fn commands(heading: &str) -> Vec<(String, String)> {
    let document = std::fs::read_to_string(DOCUMENT).expect("the document is there");
    let section = document.split(&format!("{heading}\n")).nth(1).expect("it has that section");
    let block = section.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut on = String::new();
    let mut commands = Vec::new();
    for line in block.expect("it has commands").lines() {
        match line.strip_prefix("# on ") {
            Some(place) => place.clone_into(&mut on),
            None => commands.push((on.clone(), line.to_owned())),
        }
    }
    commands
}
