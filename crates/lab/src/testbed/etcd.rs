//! An etcd of three members on this machine.

use super::TestbedError;
use super::cleanup::Undo;
use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const MEMBERS: usize = 3;

/// See the module's documentation. It ends when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    hosts: Vec<String>,
    pids: Vec<u32>,
    _undo: Undo,
}

impl Etcd {
    /// Starts one with its files in `directory`, which is made.
    ///
    /// # Errors
    /// It is not installed, or no ports are free.
    pub fn start(directory: &Path) -> Result<Etcd, TestbedError> {
        let failed = TestbedError::Etcd;
        std::fs::create_dir(directory).map_err(failed)?;
        // Held until all are found, so that none is found twice.
        let listeners =
            (0..2 * MEMBERS).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
        let listeners = listeners.map_err(failed)?;
        let ports = listeners.iter().map(|listener| Ok(listener.local_addr()?.port()));
        let ports = ports.collect::<std::io::Result<Vec<u16>>>().map_err(failed)?;
        drop(listeners);
        let cluster: Vec<String> = ports
            .chunks(2)
            .enumerate()
            .map(|(index, ports)| format!("m{index}=http://127.0.0.1:{}", ports[1]))
            .collect();
        let mut members = Vec::new();
        for (index, ports) in ports.chunks(2).enumerate() {
            let [client, peer] = [ports[0], ports[1]].map(|port| format!("http://127.0.0.1:{port}"));
            let log = File::create(directory.join(format!("m{index}.log"))).map_err(failed)?;
            let started = Command::new("etcd")
                .args(["--name", &format!("m{index}"), "--data-dir"])
                .arg(directory.join(format!("m{index}")))
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &cluster.join(","), "--log-level", "warn"])
                .args(["--quota-backend-bytes", "4294967296"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn();
            match started {
                Ok(member) => members.push(member),
                Err(error) => {
                    stop(&mut members);
                    return Err(failed(error));
                }
            }
        }
        let hosts = ports.chunks(2).map(|ports| format!("127.0.0.1:{}", ports[0])).collect();
        let pids = members.iter().map(Child::id).collect();
        let members = Mutex::new(members);
        let undo = Undo::new(move || stop(&mut members.lock().unwrap_or_else(PoisonError::into_inner)));
        Ok(Etcd { hosts, pids, _undo: undo })
    }

    /// How clients reach it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.hosts.join(","))
    }

    /// Its processes.
    #[must_use]
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }
}

fn stop(members: &mut [Child]) {
    for member in members {
        // One that has ended by itself is what was wanted.
        member.kill().and_then(|()| member.wait()).ok();
    }
}
