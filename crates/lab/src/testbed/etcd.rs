//! An etcd of three members on this machine.

use super::cleanup::Undo;
use anyhow::Context;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

const MEMBERS: usize = 3;

/// See the module's documentation. It ends when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    hosts: Vec<String>,
    _undo: Undo,
}

impl Etcd {
    /// Starts one with its files in `directory`, which is made.
    pub fn start(directory: &Path) -> anyhow::Result<Etcd> {
        std::fs::create_dir(directory)?;
        // Held until all are found, so that none is found twice.
        let listeners =
            (0..2 * MEMBERS).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
        let addresses = addresses.collect::<std::io::Result<Vec<String>>>()?;
        drop(listeners);
        let (clients, peers) = addresses.split_at(MEMBERS);
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(index, peer)| format!("m{index}=http://{peer}")).collect();
        let members: Arc<Mutex<Vec<Child>>> = Arc::default();
        let stopped = Arc::clone(&members);
        let undo = Undo::new(move || stop(&mut stopped.lock().unwrap_or_else(PoisonError::into_inner)));
        for (index, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
            let started = Command::new("etcd")
                .args(["--name", &format!("m{index}"), "--data-dir"])
                .arg(directory.join(format!("m{index}")))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &cluster.join(","), "--log-level", "warn"])
                .args(["--quota-backend-bytes", "4294967296"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(directory.join(format!("m{index}.log")))?)
                .spawn();
            let member = started.context("etcd cannot be started; `make deps` installs it")?;
            members.lock().unwrap_or_else(PoisonError::into_inner).push(member);
        }
        Ok(Etcd { hosts: clients.to_vec(), _undo: undo })
    }

    /// How clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.hosts.join(","))
    }
}

fn stop(members: &mut [Child]) {
    for member in members {
        // One that has ended by itself is what was wanted.
        member.kill().and_then(|()| member.wait()).ok();
    }
}
