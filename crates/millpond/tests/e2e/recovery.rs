//! How fast what is missing is copied beside clients, and that people decide how fast.

use crate::common::nbd::NbdClient;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::whole::{becomes_whole, goes_on_in, node_of, without};
use crate::common::{names, wait_until};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::process::Frozen;

const MIB: u64 = 1 << 20;
/// MiB that are written while a member is away.
const MISSED: u64 = 96;
/// How long recovery has the least share. At 2 MiB a second from each of two OSDs, most is left then.
const WATCHED: Duration = Duration::from_secs(8);

/// The bytes a second that each OSD shows to copy within [`WATCHED`], of those that copy any.
fn rates(pond: &Pond) -> BTreeMap<u64, BTreeSet<u64>> {
    let began = Instant::now();
    let mut rates = BTreeMap::<_, BTreeSet<_>>::new();
    while began.elapsed() < WATCHED {
        for osd in pond.status()["osds"].as_array().expect("they are listed") {
            if let Some(rate) = osd["recovery_bytes_per_s"].as_u64().filter(|rate| *rate > 0) {
                rates.entry(osd["osd"].as_u64().expect("it has a number")).or_default().insert(rate);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    rates
}

/// Has every OSD serve something all the time, yet little.
fn ask_for_little(mut client: NbdClient, is_enough: &AtomicBool) {
    for index in (0..MISSED / 4).cycle() {
        if is_enough.load(Ordering::Relaxed) {
            return;
        }
        client.write(index * 4 * MIB, &[7; 4096]).expect("it is written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn recovery_beside_clients_is_as_fast_as_its_share_says_and_the_share_can_be_changed_meanwhile() {
    let pond = Pond::start("512MiB");
    pond.volume("v", "128MiB");
    names(&pond.run(&["cluster", "recovery"]), &["10%"]);
    pond.refused(&["cluster", "recovery", "90%"], &["90%", "from 1% to 80%"]);
    names(&pond.run(&["cluster", "recovery", "1%"]), &["1%"]);
    wait_until("status shows it", || pond.status()["cluster"]["recovery_share"] == 1);
    let door = pond.serve("v");
    let mut client = door.client();
    let data = Random::seeded().bytes(MIB as usize);
    client.write(0, &data).unwrap();
    let away = goes_on_in(&pond, without(2), || Frozen::new(node_of(&pond, 2)));
    for index in 0..MISSED {
        client.write(index * MIB, &data).unwrap();
    }
    let is_enough = Arc::new(AtomicBool::new(false));
    let asking = std::thread::spawn({
        let is_enough = Arc::clone(&is_enough);
        move || ask_for_little(client, &is_enough)
    });
    drop(away);
    let rates = rates(&pond);
    let left = pond.status()["recovery"]["bytes_left"].as_u64().expect("it is told");
    pond.run(&["cluster", "recovery", "80%"]);
    let began = Instant::now();
    becomes_whole(&pond);
    let took = began.elapsed();
    is_enough.store(true, Ordering::Relaxed);
    asking.join().expect("its writes succeed");
    // In some seconds it is as said: until clients come again, which may take a moment when a member is back, nobody is spared,
    // and at the end there is little left.
    let is_as_said = |rates: &BTreeSet<u64>| rates.range(MIB..3 * MIB).next().is_some();
    assert!(rates.len() == 2 && rates.values().all(is_as_said), "{rates:?} at 1%");
    assert!(left > 0, "all was copied within {WATCHED:?} at 1%");
    assert!(took < WATCHED, "the rest took {took:?} at 80%");
}
