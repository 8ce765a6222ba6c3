//! A cluster that moves from the registry of `millpond up` to an etcd, and back: its data comes along, whatever breaks off on
//! the way, and a person is told where it is.

use crate::common::pieces::{check, write};
use crate::common::pond::Pond;
use crate::common::whole::MOVED_WITHIN;
use crate::common::{command, millpond, names, path, text, wait_longer, wait_until};
use cluster::{Migration, Presence};
use registry::{Operation, Registry, Txn};
use registry_embedded::EmbeddedRegistry;
use registry_etcd::{EtcdOptions, EtcdRegistry};
use std::process::Stdio;
use std::time::Duration;
use testkit::Etcd;
use testkit::prerequisites::installed;

/// A cluster that does not run, with a first round of pieces on its volume `disk`.
fn pond_that_is_down() -> Pond {
    let pond = Pond::start("512MiB");
    pond.volume("disk", "256MiB");
    write(&mut pond.serve("disk").client(), 0);
    pond.down();
    pond
}

#[test]
fn a_volume_survives_the_way_to_an_etcd_and_back() {
    if !installed("a volume survives the way to an etcd and back", &["etcd", "etcdctl"]) {
        return;
    }
    let pond = Pond::start("512MiB");
    pond.volume("disk", "256MiB");
    write(&mut pond.serve("disk").client(), 0);
    let etcd = Etcd::start(1, &[]);
    let url = etcd.url();
    let there = ["registry", "migrate", "--to", &url, "--host", "alpha"];
    pond.refused(&there, &["is already up", "millpond down"]);
    pond.refused(&["registry", "migrate", "--to", "embedded"], &["is already up"]);
    // What is killed leaves leases behind, which end by themselves.
    pond.kill_all(&[], |_| ());
    pond.refused(&["registry", "migrate", "--to", "etcd://127.0.0.1:1"], &["127.0.0.1:1"]);
    let said = pond.run(&there);
    names(&said, &[&url, "127.0.0.1", "node.listen", "millpond up --detach", "millpond node join"]);
    let status = pond.run(&["status"]);
    names(&status, &["osd.0 on node.0 is down", "look at host alpha", "millpond up"]);
    pond.up();
    wait_until("all is well", || pond.status()["health"]["level"] == "ok");
    let door = pond.serve("disk");
    let mut client = door.client();
    check(&mut client, 1);
    write(&mut client, 1);
    // It is used as before.
    let added = pond.json(&["osd", "add", "--size", "512MiB"]);
    pond.refused(&["osd", "add", "--size", "512MiB", "--node", "9"], &["is no node of this host", "node.2"]);
    let number = added["osd"].to_string();
    let nodes = pond.list(&["node", "ls"]);
    assert!(nodes.iter().all(|node| node["host"] == "alpha"), "{nodes:?}");
    assert!(pond.run(&["cluster", "token"]).starts_with("millpond1."));
    pond.refused(&["node", "start"], &["millpond up"]);
    pond.refused(&["node", "join", "millpond1.e30", "--listen", "127.0.0.1", "--device", "x"], &["token"]);
    assert_eq!(pond.http_addresses().len(), 4);
    // Servers of volumes are told of.
    pond.down();
    let back = ["registry", "migrate", "--to", "embedded"];
    pond.refused(&back, &["volume.1 is attached", "is in use"]);
    drop((client, door));
    let elsewhere = format!("{url}/other");
    pond.refused(&["registry", "migrate", "--to", &elsewhere], &["--to embedded"]);
    names(&pond.run(&there), &["is in etcd://"]);
    let said = pond.run(&back);
    names(&said, &["registry.redb", "Nobody needs etcd://"]);
    pond.refused(&back, &["nothing to move"]);
    let left = etcd.ctl(&["get", "--prefix", "--keys-only", "/millpond/"]);
    assert_eq!(left.trim(), "/millpond/millpond/moved");
    drop(etcd);
    pond.up();
    let door = pond.serve("disk");
    check(&mut door.client(), 2);
    drop(door);
    let status = pond.status();
    assert_eq!(status["osds"].as_array().map(Vec::len), Some(4), "{status}");
    pond.run(&["osd", "out", &number]);
    wait_longer(MOVED_WITHIN, "the drive that was added can be removed", || {
        pond.attempt(&["osd", "rm", &number]).0
    });
}

/// The registries of a cluster, while no process has them.
struct Registries {
    runtime: tokio::runtime::Runtime,
    url: String,
    file: std::path::PathBuf,
}

impl Registries {
    fn of(pond: &Pond, url: &str) -> Registries {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        Registries { runtime, url: url.to_owned(), file: pond.dir().join("registry.redb") }
    }

    fn with<T>(&self, work: impl AsyncFnOnce(&EmbeddedRegistry, &EtcdRegistry) -> T) -> T {
        self.runtime.block_on(async {
            let embedded = EmbeddedRegistry::open(&self.file).expect("nobody has it");
            let options: EtcdOptions = self.url.parse().expect("it is a URL");
            let etcd = EtcdRegistry::connect(options.with_timeout(Duration::from_secs(30))).await;
            work(&embedded, &etcd.expect("etcd starts")).await
        })
    }

    /// Whether the cluster lives in the registry of this machine, and in etcd.
    fn lives(&self) -> (bool, bool) {
        self.with(async |embedded, etcd| {
            let is_here = |presence| matches!(presence, Presence::Here(_));
            let embedded = Presence::read(embedded).await.expect("it can be read");
            let etcd = Presence::read(etcd).await.expect("it can be read");
            (is_here(embedded), is_here(etcd))
        })
    }

    /// As if the move to etcd had broken off after the cluster left and before it arrived.
    fn is_on_its_way(&self) {
        self.with(async |embedded, etcd| {
            let name: EtcdOptions = self.url.parse().expect("it is a URL");
            let migration = Migration::new(embedded, "here", etcd, name.to_string());
            migration.run().await.expect("it can be moved");
            let note = embedded.get("millpond/moved").await.expect("it can be read").expect("it has left");
            let txn = Txn::new()
                .then(Operation::delete("millpond/map/cluster"))
                .then(Operation::put("millpond/moving-in", note.value));
            etcd.txn(txn).await.expect("it can be written");
        });
    }
}

#[test]
fn a_cluster_on_its_way_is_started_nowhere_and_goes_on_or_back() {
    if !installed("a cluster on its way is started nowhere", &["etcd"]) {
        return;
    }
    let pond = pond_that_is_down();
    let etcd = Etcd::start(1, &[]);
    let url = etcd.url();
    let registries = Registries::of(&pond, &url);
    let there = ["registry", "migrate", "--to", &url];
    let with = |flags: &[&'static str]| [&there[..], flags].concat();

    registries.is_on_its_way();
    assert_eq!(registries.lives(), (false, false));
    pond.refused(&["up"], &["was moved from this registry", "registry migrate", &url]);
    let other = pond.scratch().join("other");
    let init = ["cluster", "init", "--registry", &url, "--dir", path(&other)];
    let output = millpond(&init);
    assert!(!output.status.success());
    names(&text(&output), &["is being moved into this registry", "registry migrate"]);
    let elsewhere = format!("{url}/other");
    pond.refused(&["registry", "migrate", "--to", &elsewhere], &["to finish that move, name that one"]);
    // Back.
    names(&pond.run(&with(&["--cancel"])), &["registry.redb", "millpond up"]);
    assert_eq!(registries.lives(), (true, false));
    pond.up();
    check(&mut pond.serve("disk").client(), 1);
    write(&mut pond.serve("disk").client(), 1);
    pond.down();
    // On.
    registries.is_on_its_way();
    names(&pond.run(&there), &["is in etcd://"]);
    assert_eq!(registries.lives(), (false, true));
    pond.refused(&with(&["--cancel"]), &["has arrived"]);
    pond.up();
    check(&mut pond.serve("disk").client(), 2);
    pond.down();
    // Back, though etcd is gone: a person says so, and is believed.
    pond.run(&["registry", "migrate", "--to", "embedded"]);
    registries.is_on_its_way();
    drop(etcd);
    pond.refused(&with(&["--cancel"]), &["no answer from the registry"]);
    pond.refused(&with(&["--target-is-lost"]), &["--cancel"]);
    pond.run(&with(&["--cancel", "--target-is-lost"]));
    pond.up();
    check(&mut pond.serve("disk").client(), 2);
}

#[test]
fn a_move_may_be_killed_at_any_moment() {
    if !installed("a move may be killed at any moment", &["etcd"]) {
        return;
    }
    let pond = pond_that_is_down();
    let etcd = Etcd::start(1, &[]);
    let url = etcd.url();
    let registries = Registries::of(&pond, &url);
    let dir = pond.dir();
    let (mut to, mut arrivals, mut kills, mut since_arrival) = (url.as_str(), 0, 0, 0);
    for round in 0u64..60 {
        let mut moving = command(&["registry", "migrate", "--to", to, "--dir", path(&dir)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command can be started");
        // Later and later until it arrives, so that every step is the last one once, however fast this machine is.
        std::thread::sleep(Duration::from_millis(3 * since_arrival + round % 3));
        let _ = moving.kill();
        // An exit code of its own that is no success: it was killed last time when all was done, and nothing is left to move.
        let has_ended = moving.wait().expect("it is a child").code().is_some();
        let lives = registries.lives();
        assert_ne!(lives, (true, true), "it lives in both");
        if has_ended {
            (arrivals, since_arrival) = (arrivals + 1, 0);
            assert_eq!(lives, (to == "embedded", to != "embedded"));
            to = if to == "embedded" { &url } else { "embedded" };
        } else {
            (kills, since_arrival) = (kills + 1, since_arrival + 1);
        }
    }
    eprintln!("{arrivals} arrived, {kills} were killed");
    assert!(kills > 5, "{kills}");
    for to in [to, "embedded"] {
        let (worked, _, told) = pond.attempt(&["registry", "migrate", "--to", to]);
        assert!(worked || told.contains("there is nothing to move"), "{told}");
    }
    assert_eq!(registries.lives(), (true, false));
    pond.up();
    check(&mut pond.serve("disk").client(), 1);
}
