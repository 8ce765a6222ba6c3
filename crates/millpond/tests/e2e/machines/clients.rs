//! Machines that reach the nodes and not the etcd, with the token of a key and nothing else.

use crate::common::hosts::{HOSTS, Hosts};
use crate::common::http::get;
use crate::common::network::Peer;
use crate::common::site::Site;
use crate::common::whole::becomes_whole;
use crate::common::{OnDrop, Process, command, names, path, wait_until};
use crate::rbd;
use auth::{Identity, SecretKey};
use base::ClientId;
use cluster::{Attach, Detach, Grant, Revoke};
use registry::Endpoints;
use registry_remote::DeskPlace;
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// The port of etcd for its clients.
const ETCD_PORT: u16 = 2379;
/// The port of nodes for theirs.
const CLIENT_PORT: u16 = 6480;
/// What NBD says where an operation failed.
const EIO: u32 = 5;
/// Longer than the lease of an attachment lasts.
const LEASE_IS_OVER: Duration = Duration::from_secs(12);
/// Threads that attach and detach a volume without a pause, each on connections of its own.
const STORMING: usize = 24;
/// How often somebody else attaches one meanwhile.
const ATTACHED_MEANWHILE: usize = 3;

/// Makes a key on a host and joins with its token as a client.
pub(super) fn client(hosts: &Hosts, name: &str, access: &str) -> Site {
    let key = hosts.scratch().join(format!("{name}.key"));
    hosts.run_on(0, &format!("millpond auth add {name} {access} --out {}", path(&key)));
    let token = hosts.run_on(1, &format!("millpond auth token {}", path(&key)));
    assert!(token.starts_with("millpond-client1."), "{token}");
    let site = Site::new("client");
    let said = site.run(&["client", "join", token.trim()]);
    names(&said, &["is a client of cluster", name]);
    site
}

fn is_open(hosts: &Hosts, host: u32, port: u16) -> bool {
    let address = SocketAddr::new(hosts.address(host).parse().expect("it is an address"), port);
    TcpStream::connect_timeout(&address, Duration::from_millis(300)).is_ok()
}

/// Starts a `millpond monitor`; answers where it listens too.
fn monitor(site: &Site) -> (Process, String) {
    let mut monitor = command(&["monitor", "--listen", "127.0.0.1:0", "--dir", path(&site.dir())]);
    let mut monitor = Process::start(&mut monitor, &site.scratch().join("monitor.log"));
    // A whole line of it.
    let mut address = None;
    wait_until("the monitor says where it listens", || {
        assert!(monitor.runs(), "it ended: {}", monitor.said());
        let said = monitor.said();
        address = said.split_once("http://").and_then(|(_, rest)| Some(rest.split_once('/')?.0.to_owned()));
        address.is_some()
    });
    (monitor, address.expect("it was waited for"))
}

#[test]
fn all_nodes_are_watched_from_one_machine_of_which_none_needs_to_know() {
    let Some(hosts) = Hosts::up("nodes on other machines are watched", 0) else { return };
    wait_until("the cluster is well", || hosts.health() == "ok");
    (0..HOSTS).for_each(|host| hosts.network().close(host, ETCD_PORT, Peer::Clients));
    let top: Value = serde_json::from_str(&hosts.run_on(1, "millpond top --json")).expect("it is JSON");
    assert_eq!(top["osds"].as_array().map(Vec::len), Some(3), "{top}");
    names(&hosts.run_on(2, "millpond top --once"), &["osd.0", "osd.1", "osd.2"]);

    let site = client(&hosts, "prometheus", "--monitor");
    wait_until("it is told that the cluster is well", || site.status()["health"]["level"] == "ok");
    names(&site.run(&["top", "--once"]), &["osd.0", "osd.1", "osd.2"]);
    names(&site.run(&["auth", "ls"]), &["prometheus", "ask how the cluster is"]);
    site.refused(&["osd", "out", "0", "--allow-fewer-copies"], &["prometheus may not do that"]);
    site.refused(&["volume", "create", "x", "64MiB"], &["prometheus may not do that"]);
    let refusal = site.try_serve("disk").err().expect("it reads no volume");
    names(&refusal, &["to ask how the cluster is"]);
    site.refused(&["monitor", "--listen", "0.0.0.0:0"], &["loopback"]);

    let (_monitor, address) = monitor(&site);
    let (code, _, targets) = get(&address, "/targets");
    assert_eq!(code, 200, "{targets}");
    let targets: Value = serde_json::from_str(&targets).expect("it is JSON");
    let targets = targets.as_array().expect("it is a list");
    let instances: Vec<&str> =
        targets.iter().filter_map(|target| target["labels"]["instance"].as_str()).collect();
    assert_eq!(instances, ["node.0", "node.1", "node.2"]);
    let mut all = String::new();
    for target in targets {
        assert_eq!(target["targets"][0], address);
        let metrics = target["labels"]["__metrics_path__"].as_str().expect("it is a path");
        let (code, head, text) = get(&address, metrics);
        assert!(code == 200 && head.contains("text/plain; version=0.0.4"), "{code} {head}");
        all.push_str(&text);
    }
    names(&all, &["osd=\"osd.0\"", "osd=\"osd.1\"", "osd=\"osd.2\"", "millpond_health_level"]);
    hosts.kill_node(2);
    wait_until("its last figures are not told as today's", || get(&address, "/metrics/2/1").0 == 503);
    wait_until("it is no target any more", || !get(&address, "/targets").2.contains("node.2"));
    assert_eq!(get(&address, "/metrics/0/1").0, 200);
}

#[test]
fn a_client_with_a_token_needs_no_etcd_and_outlives_the_nodes_that_serve_it() {
    let Some(hosts) = Hosts::up("clients without a way to etcd", 0) else { return };
    (0..HOSTS).for_each(|host| hosts.network().close(host, ETCD_PORT, Peer::Clients));
    (0..HOSTS).for_each(|host| assert!(!is_open(&hosts, host, ETCD_PORT)));
    hosts.run_on(0, "millpond pool create other");
    hosts.run_on(0, "millpond volume create theirs 64MiB --pool other");

    let vm_host = client(&hosts, "vm-host", "--pool default --rw");
    names(&vm_host.run(&["volume", "ls"]), &["disk"]);
    vm_host.refused(&["volume", "create", "x", "64MiB"], &["vm-host may not do that", "--manage"]);
    for change in [&["rm", "disk"][..], &["rename", "disk", "x"], &["limit", "disk", "--none"]] {
        vm_host.refused(&[&["volume"], change].concat(), &["vm-host may not do that"]);
    }
    vm_host.refused(&["osd", "out", "0", "--allow-fewer-copies"], &["vm-host may not do that"]);
    vm_host.refused(&["status"], &["vm-host may not do that"]);
    vm_host.refused(&["cluster", "token"], &["is a client"]);
    let refusal = vm_host.try_serve("other/theirs").err().expect("it is of another pool");
    names(&refusal, &["no pool that its key is for"]);
    let refusal = vm_host.try_serve("theirs").err().expect("a bare name means none of another pool");
    names(&refusal, &["no volume theirs"]);

    let door = vm_host.serve_with("disk", &["--timeout", "120s"]);
    let mut volume = door.client();
    volume.write(0, &[1; 8192]).unwrap();
    let info = || hosts.run_on(1, "millpond volume info disk");
    names(&info(), &["by the key of vm-host"]);
    let mut goes_on = |round: u8| {
        std::thread::sleep(LEASE_IS_OVER);
        wait_until("it has found another", || info().contains("by the key of vm-host"));
        volume.write(8192, &[round; 8192]).unwrap();
        assert_eq!(volume.read(8192, 8192).unwrap(), vec![round; 8192]);
    };
    // Whichever serves it falls silent, until one is left.
    (1..HOSTS).for_each(|host| hosts.network().close(host, CLIENT_PORT, Peer::Clients));
    goes_on(1);
    hosts.network().heal();
    (0..HOSTS).for_each(|host| hosts.network().close(host, ETCD_PORT, Peer::Clients));
    // That one is there, and does not reach the etcd any more.
    hosts.run_on(0, "nft add rule ip cut out tcp dport 2379 drop");
    goes_on(2);
    hosts.network().heal();
    becomes_whole(&hosts);
    (0..HOSTS).for_each(|host| hosts.network().close(host, ETCD_PORT, Peer::Clients));
    drop((volume, door));
    assert!(!info().contains("vm-host"), "it detached");

    // Who only reads may not have it alone, and bears with others who do the same.
    let backup = client(&hosts, "backup", "--pool default --ro");
    let refusal = backup.try_serve("disk").err().expect("it would be the only one");
    names(&refusal, &["--shared"]);
    let door = backup.serve_with("disk", &["--shared", "--read-only"]);
    assert_eq!(door.client().read(0, 8192).unwrap(), vec![1; 8192]);
    drop(door);

    // An owner does everything from afar.
    let owner = client(&hosts, "owner", "--admin");
    owner.run(&["volume", "create", "made-from-afar", "64MiB"]);
    names(&owner.run(&["status"]), &["health"]);

    let door = vm_host.serve_with("disk", &["--timeout", "10s"]);
    let mut volume = door.client();
    volume.write(0, &[2; 8192]).unwrap();
    owner.run(&["auth", "rm", "vm-host"]);
    wait_until("the removed key opens nothing", || match volume.write(0, &[3; 8192]) {
        Ok(()) => false,
        Err(refusal) => refusal.code == EIO,
    });
    vm_host.refused(&["volume", "ls"], &["is not one of this cluster", "auth ls"]);
}

#[test]
fn programs_of_other_machines_use_images_by_a_keyring_until_its_key_is_removed() {
    const TEST: &str = "librbd by a key";
    let Some(hosts) = Hosts::up(TEST, 0) else { return };
    let library = rbd::library(&hosts);
    let Some(program) = rbd::library::compiled(TEST, hosts.scratch(), &library, false) else { return };
    let (key, out) = (hosts.scratch().join("vm-host.key"), hosts.scratch().join("ceph"));
    hosts.run_on(0, "millpond volume create image 64MiB");
    hosts.run_on(0, &format!("millpond auth add vm-host --pool default --rw --out {}", path(&key)));
    hosts.run_on(1, &format!("millpond ceph-conf --key {} --out {}", path(&key), path(&out)));
    let says = |what: &str| {
        let mut program = std::process::Command::new(&program);
        program.arg(what).env("LD_LIBRARY_PATH", &library).env("CEPH_CONF", out.join("ceph.conf"));
        let output = program.env_remove("MILLPOND_DIR").output().expect("it can be started");
        (String::from_utf8_lossy(&output.stdout).into_owned(), output)
    };
    let (said, output) = says("reads");
    assert_eq!(said, "4096\n", "{output:?}");
    (0..HOSTS).for_each(|host| hosts.network().close(host, CLIENT_PORT, Peer::Clients));
    assert_eq!(says("connect").0, "-110\n", "ETIMEDOUT");
    hosts.network().heal();
    wait_until("it is let in again", || says("connect").0 == "0\n");
    hosts.run_on(0, "millpond auth rm vm-host");
    wait_until("EACCES", || says("connect").0 == "-13\n");
}

/// Attaches a volume and detaches it or does not, without a pause, as often as nodes let it. Answers how often that was.
fn storm(place: &DeskPlace, identity: &Identity, first: u64, enough: &AtomicBool) -> u64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("there is memory for that");
    runtime.block_on(async {
        let desk = place.open(identity).await.expect("nodes are reached when they are asked");
        let (mut client, mut attached) = (first, 0);
        while !enough.load(Ordering::Relaxed) {
            client += 1;
            let Ok(lease) = desk.ask(Grant { ttl: Duration::from_secs(10) }).await else { continue };
            let volume = "theirs".to_owned();
            let description = "somebody in a hurry".to_owned();
            let asked = Attach {
                volume,
                client: ClientId(client),
                lease,
                shared: false,
                description,
                id: None,
                knows_layers: true,
                yields: false,
                renews: false,
            };
            if let Ok(attachment) = desk.ask(asked).await {
                attached += 1;
                if client.is_multiple_of(2) {
                    drop(desk.ask(Detach { volume: attachment.id, client: attachment.client }).await);
                }
            }
            drop(desk.ask(Revoke { lease }).await);
        }
        attached
    })
}

#[test]
fn who_attaches_and_detaches_without_a_pause_keeps_nobody_else_from_it() {
    let Some(hosts) = Hosts::up("a storm of attaches", 0) else { return };
    hosts.run_on(0, "millpond pool create other");
    hosts.run_on(0, "millpond volume create theirs 64MiB --pool other");
    hosts.run_on(0, "millpond volume create second 64MiB");
    let tenant = client(&hosts, "tenant", "--pool other --rw");
    let settings = std::fs::read_to_string(tenant.dir().join("millpond.toml")).expect("it has joined");
    let url = settings.split('"').find(|text| Endpoints::is_url(text)).expect("they name the nodes");
    let place = DeskPlace::Nodes(url.parse().expect("it is a list of nodes"));
    let key = SecretKey::load(&hosts.scratch().join("tenant.key")).expect("the key can be read");
    let identity = Identity::new(&key);

    let vm_host = client(&hosts, "vm-host", "--pool default --rw");
    let door = vm_host.serve_with("disk", &["--timeout", "60s"]);
    let mut volume = door.client();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_the_end = OnDrop(|| enough.store(true, Ordering::Relaxed));
        let (place, identity, enough) = (&place, &identity, &enough);
        let storming: Vec<_> = (0..STORMING as u64)
            .map(|number| scope.spawn(move || storm(place, identity, number << 32, enough)))
            .collect();
        for round in 0..ATTACHED_MEANWHILE as u8 {
            let began = Instant::now();
            let second = vm_host.serve_with("second", &["--timeout", "60s"]);
            eprintln!("attached in the storm after {:.1} s", began.elapsed().as_secs_f64());
            let data = [round + 1; 8192];
            for written in [&mut volume, &mut second.client()] {
                written.write(0, &data).expect("writes go on");
                assert_eq!(written.read(0, 8192).expect("reads go on"), data);
            }
            drop(second);
        }
        enough.store(true, Ordering::Relaxed);
        let attached: u64 = storming.into_iter().map(|one| one.join().expect("it ends by itself")).sum();
        assert!(attached > 0, "nobody was let, so there was no storm");
        eprintln!("{attached} attaches");
    });
    wait_until("the cluster is well", || hosts.health() == "ok");
    becomes_whole(&hosts);
}
