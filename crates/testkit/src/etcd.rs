//! An etcd of a test's own.

use crate::process::{Frozen, Process, attempt, run};
use crate::wait::wait_until;
use std::net::TcpListener;
use std::process::{Command, Output};

/// An etcd, which ends with the test.
pub struct Etcd {
    members: Vec<Member>,
    directory: tempfile::TempDir,
    cluster: String,
    options: Vec<String>,
}

struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    process: Option<Process>,
}

impl Etcd {
    /// Starts members on ports of this machine that are free.
    pub fn start(members: usize, options: &[&str]) -> Etcd {
        // Held until all are found, so that none is found twice.
        let listeners: Vec<TcpListener> =
            (0..2 * members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let ports: Vec<u16> =
            listeners.iter().map(|listener| listener.local_addr().expect("it listens").port()).collect();
        drop(listeners);
        let member = |(index, ports): (usize, &[u16])| Member {
            name: format!("m{index}"),
            client_port: ports[0],
            peer_port: ports[1],
            process: None,
        };
        let members: Vec<Member> = ports.chunks(2).enumerate().map(member).collect();
        let cluster: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, url(member.peer_port))).collect();
        let mut etcd = Etcd {
            cluster: cluster.join(","),
            members,
            directory: tempfile::tempdir().expect("a directory can be made"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        for index in 0..etcd.members.len() {
            etcd.start_member(index);
        }
        etcd
    }

    /// How clients reach it.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.endpoints().join(","))
    }

    fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect()
    }

    /// Starts a member that is new, or was killed.
    pub fn start_member(&mut self, index: usize) {
        let log = self.directory.path().join(format!("m{index}.log"));
        let member = &mut self.members[index];
        let (client, peer) = (url(member.client_port), url(member.peer_port));
        let mut command = Command::new("setpriv");
        // It ends with this process, however that ends.
        command.args(["--pdeathsig", "KILL", "etcd", "--name", &member.name, "--data-dir"]);
        command.arg(self.directory.path().join(&member.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &self.cluster, "--logger", "zap", "--log-outputs", "stderr"]);
        command.args(["--log-level", "warn", "--unsafe-no-fsync"]).args(&self.options);
        member.process = Some(Process::start(&mut command, &log));
    }

    /// Kills a member.
    pub fn kill_member(&mut self, index: usize) {
        drop(self.members[index].process.take().expect("it runs"));
    }

    /// A member stands still until what this gives is dropped.
    pub fn freeze_member(&self, index: usize) -> Frozen {
        Frozen::new(self.members[index].process.as_ref().expect("it runs").pid())
    }

    /// Runs `etcdctl` on all members.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        run("etcdctl", &[&["--endpoints", &self.endpoints().join(",")], arguments].concat())
    }

    /// Waits until all members answer.
    pub fn is_well(&self) {
        is_well(&self.endpoints());
    }

    /// The member that leads, as soon as one does.
    pub fn leader(&self) -> usize {
        leader(&self.endpoints())
    }
}

/// Runs `etcdctl` on the members at these endpoints.
pub fn try_ctl(endpoints: &[String], arguments: &[&str]) -> Output {
    attempt("etcdctl", &[&["--endpoints", &endpoints.join(",")], arguments].concat())
}

/// Waits until the members at all of these endpoints answer.
pub fn is_well(endpoints: &[String]) {
    wait_until("all members of etcd are well", || {
        try_ctl(endpoints, &["endpoint", "health"]).status.success()
    });
}

/// Which of the members at these endpoints leads, as soon as one does.
pub fn leader(endpoints: &[String]) -> usize {
    let mut leader = None;
    wait_until("etcd has a leader", || {
        let output = try_ctl(endpoints, &["endpoint", "status"]);
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let leads = |line: &&str| line.split(", ").nth(4) == Some("true");
        leader = lines
            .lines()
            .find(leads)
            .and_then(|line| endpoints.iter().position(|endpoint| line.starts_with(&format!("{endpoint},"))));
        leader.is_some()
    });
    leader.expect("it was waited for")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in self.members.iter().filter(|_| std::thread::panicking()) {
            let said = member.process.as_ref().map(Process::said).unwrap_or_default();
            let lines: Vec<&str> = said.lines().collect();
            eprintln!("{}: {}", member.name, lines[lines.len().saturating_sub(10)..].join("\n"));
        }
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}
