//! An etcd of a test's own.
#![allow(dead_code, reason = "no test uses all of this")]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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
    process: Option<Child>,
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
        let hosts: Vec<String> =
            self.members.iter().map(|member| format!("127.0.0.1:{}", member.client_port)).collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// Starts a member that is new, or was killed.
    pub fn start_member(&mut self, index: usize) {
        let log = self.log(index);
        let member = &mut self.members[index];
        let (client, peer) = (url(member.client_port), url(member.peer_port));
        let output = File::options().create(true).append(true).open(&log).expect("a log can be made");
        let mut command = Command::new("setpriv");
        // It ends with this process, however that ends.
        command.args(["--pdeathsig", "KILL", "etcd", "--name", &member.name, "--data-dir"]);
        command.arg(self.directory.path().join(&member.name));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &self.cluster, "--logger", "zap", "--log-outputs", "stderr"]);
        command.args(["--log-level", "warn", "--unsafe-no-fsync"]).args(&self.options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let process = command.spawn().expect("setpriv and etcd are there; `make deps` installs them");
        member.process = Some(process);
    }

    /// Kills a member.
    pub fn kill_member(&mut self, index: usize) {
        let mut process = self.members[index].process.take().expect("it runs");
        process.kill().expect("it can be killed");
        process.wait().expect("it was a child");
    }

    /// A member stands still until it is told to go on.
    pub fn freeze_member(&self, index: usize) {
        self.signal(index, Signal::SIGSTOP);
    }

    /// It goes on.
    pub fn thaw_member(&self, index: usize) {
        self.signal(index, Signal::SIGCONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        let pid = self.members[index].process.as_ref().expect("it runs").id();
        kill(Pid::from_raw(pid.cast_signed()), signal).expect("it runs");
    }

    /// Runs `etcdctl` on all members.
    pub fn ctl(&self, arguments: &[&str]) -> String {
        let endpoints = self.url().replace("etcd://", "");
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &endpoints])
            .args(arguments)
            .output()
            .expect("etcdctl is there; `make deps` installs it");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "etcdctl {arguments:?}: {}", said(&output.stderr));
        said(&output.stdout)
    }

    /// The member that leads.
    pub fn leader(&self) -> usize {
        let lines = self.ctl(&["endpoint", "status"]);
        let leads = |line: &str| line.split(", ").nth(4) == Some("true");
        lines.lines().position(leads).unwrap_or_else(|| panic!("nobody leads: {lines}"))
    }

    fn log(&self, index: usize) -> PathBuf {
        self.directory.path().join(format!("{}.log", self.members[index].name))
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for (index, member) in self.members.iter_mut().enumerate() {
            if let Some(mut process) = member.process.take() {
                // One that ended by itself did so for a reason.
                process.kill().and_then(|()| process.wait()).ok();
            }
            if std::thread::panicking() {
                let log = self.directory.path().join(format!("m{index}.log"));
                eprintln!("{}: {}", member.name, last_lines(&log));
            }
        }
    }
}

fn last_lines(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
