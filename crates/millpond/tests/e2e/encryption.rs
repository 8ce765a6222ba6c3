//! Encryption of a cluster's traffic: nothing of what is written is seen on the way, and switching it loses nothing.
//!
//! As root: it listens on the loopback interface.

use crate::common::fio::fio_notices_nothing_of;
use crate::common::names;
use crate::common::nbd::NbdClient;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::common::whole::becomes_whole;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::prerequisites::is_root;

/// What is looked for: nothing else on this machine says it by chance.
type Marker = [u8; 32];

/// Everything that crosses an interface of this machine, looked through for markers.
struct Wiretap {
    /// What is looked for, and how many packets had it.
    wanted: Arc<Mutex<Vec<(Marker, usize)>>>,
}

impl Wiretap {
    fn new() -> Wiretap {
        let tap = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll);
        let tap = tap.expect("packets are seen by root only");
        setsockopt(&tap, sockopt::RcvBufForce, &(64 << 20)).expect("there is memory for packets");
        let wanted: Arc<Mutex<Vec<(Marker, usize)>>> = Arc::default();
        let looked_for = Arc::downgrade(&wanted);
        std::thread::spawn(move || {
            let mut packet = vec![0; 1 << 17];
            while let Some(wanted) = looked_for.upgrade() {
                let count = recv(tap.as_raw_fd(), &mut packet, MsgFlags::empty()).expect("packets come");
                for (marker, seen) in wanted.lock().expect("nobody panics").iter_mut() {
                    let is_there = packet[..count].windows(marker.len()).any(|window| window == marker);
                    *seen += usize::from(is_there);
                }
            }
        });
        Wiretap { wanted }
    }

    /// How many packets show what is said on a volume: a marker that is written, and read again from each OSD that may
    /// hold it.
    fn sees(&self, client: &mut NbdClient, random: &mut Random) -> usize {
        let marker: Marker = random.bytes(32).try_into().expect("it has that length");
        self.wanted.lock().expect("nobody panics").push((marker, 0));
        let block = marker.repeat(128);
        for index in 0..32 {
            // Objects of many placement groups, so that every pair of OSDs has something to say.
            let offset = index * (4 << 20);
            client.write(offset, &block).expect("it is written");
            assert!(client.read(offset, 4096).expect("it is read") == block);
        }
        // What is on its way to the tap.
        std::thread::sleep(Duration::from_millis(200));
        let mut wanted = self.wanted.lock().expect("nobody panics");
        wanted.pop().expect("it was looked for").1
    }
}

#[test]
fn nothing_of_what_is_written_is_seen_on_the_way_once_encryption_is_on() {
    if !is_root("what is seen on the way", "a packet socket") {
        return;
    }
    let pond = Pond::start("768MiB");
    pond.volume("v", "256MiB");
    let tap = Wiretap::new();
    let mut random = Random::seeded();
    let door = pond.serve("v");
    let mut client = door.client();
    // From the client to a primary and back, and to two replicas.
    wait_until("the tap sees what is said", || tap.sees(&mut client, &mut random) >= 100);
    names(&pond.run(&["status"]), &["traffic  in plain"]);
    names(&pond.run(&["cluster", "encryption"]), &["is off"]);

    names(&pond.run(&["cluster", "encryption", "on"]), &["encrypted from now on"]);
    wait_until("all connections are encrypted", || tap.sees(&mut client, &mut random) == 0);
    becomes_whole(&pond);
    for _ in 0..10 {
        assert_eq!(tap.sees(&mut client, &mut random), 0);
    }
    names(&pond.run(&["cluster", "encryption", "on"]), &["is on"]);
    names(&pond.run(&["status"]), &["traffic  encrypted"]);
    drop((client, door));

    // It is remembered, from the first connection on.
    pond.down();
    pond.up();
    let door = pond.serve("v");
    let mut client = door.client();
    assert_eq!(tap.sees(&mut client, &mut random), 0);

    names(&pond.run(&["cluster", "encryption", "off"]), &["in plain from now on"]);
    wait_until("all connections are plain", || tap.sees(&mut client, &mut random) >= 100);
    becomes_whole(&pond);
}

#[test]
fn encryption_is_switched_on_and_off_while_fio_verifies() {
    fio_notices_nothing_of(&Pond::start_with(&["--osd-size", "3GiB", "--encryption"]), |pond| {
        // Status is what the manager knows, which hears of a change a moment after it was made.
        let is = |word: &str| {
            wait_until(&format!("encryption is {word}"), || pond.status()["cluster"]["encryption"] == word);
        };
        is("on");
        for word in ["off", "on", "off", "on"] {
            pond.run(&["cluster", "encryption", word]);
            is(word);
            std::thread::sleep(Duration::from_secs(4));
            becomes_whole(pond);
        }
        // One right after the other, so that connections are being made by either.
        for word in ["off", "on", "off", "on"] {
            pond.run(&["cluster", "encryption", word]);
        }
        becomes_whole(pond);
    });
}
