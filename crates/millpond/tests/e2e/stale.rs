//! A member that was away for longer than its groups' logs reach serves nothing old when it is back and leads, whatever was
//! written meanwhile: blocks of equal checksums too, made for that, or by a file system.

use crate::common::nbd::{NbdClient, command};
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::common::whole::{BLOCK, becomes_whole, groups, node_of};
use nix::sys::signal::Signal;
use testkit::process::{Frozen, signal};

/// Blocks that are overwritten by others of equal CRC-32C, every third one.
const CHANGED: u64 = 200;
/// Writes of other blocks meanwhile: more than the log of the one group has entries.
const MEANWHILE: u64 = 1500;
/// Where those go, in blocks.
const MEANWHILE_AT: u64 = 4096;
/// Requests in flight.
const DEPTH: usize = 32;

/// The polynomial of CRC-32C as it stands in a message, least significant bit first: xored in anywhere, it leaves the checksum.
fn multiple(bytes: &mut [u8], at: usize) {
    let multiple = (1u64 << 32 | 0x1edc_6f41).reverse_bits() >> 31;
    for (byte, of) in bytes[at..].iter_mut().zip(multiple.to_le_bytes()) {
        *byte ^= of;
    }
}

/// What a block holds at first, and then.
fn contents(block: u64) -> [Vec<u8>; 2] {
    let before: Vec<u8> = (0..BLOCK).map(|byte| (byte ^ (block * 31)) as u8).collect();
    let mut after = before.clone();
    multiple(&mut after, 8 + block as usize % 4000);
    assert!(before != after && base::crc32c(&before) == base::crc32c(&after));
    [before, after]
}

/// Writes blocks, and waits until all of it is acknowledged.
fn write_all(client: &mut NbdClient, writes: impl Iterator<Item = (u64, Vec<u8>)>) {
    let mut in_flight = 0;
    let written = |client: &mut NbdClient| {
        let reply = client.receive().expect("the connection holds");
        reply.result.unwrap_or_else(|refusal| panic!("a write failed: {refusal:?}"));
    };
    for (block, data) in writes {
        client.send(command::WRITE, 0, block * BLOCK, BLOCK as u32, &data).expect("the connection holds");
        in_flight += 1;
        if in_flight == DEPTH {
            written(client);
            in_flight -= 1;
        }
    }
    (0..in_flight).for_each(|_| written(client));
}

/// Who leads the one group.
fn primary(pond: &Pond) -> u32 {
    groups(pond)[0]["primary"].as_u64().expect("a group has a primary") as u32
}

/// A cluster of three with one group and a volume in it.
fn of_one_group() -> Pond {
    let pond = Pond::start("1GiB");
    pond.run(&["pool", "rm", "default"]);
    pond.run(&["pool", "create", "default", "--pg-count", "1"]);
    pond.volume("v", "64MiB");
    becomes_whole(&pond);
    pond
}

/// What the member that leads by preference has when it leads again: it was away, by `leaves`, while everything was written.
fn nothing_is_stale<T>(pond: &Pond, leaves: impl FnOnce(u32) -> T) {
    let door = pond.serve("v");
    let mut client = door.client();
    let blocks = || (0..CHANGED).map(|number| number * 3);
    write_all(&mut client, blocks().map(|block| (block, contents(block)[0].clone())));
    let preferred = primary(pond);
    let away = leaves(preferred);
    wait_until("another one leads", || primary(pond) != preferred);
    write_all(&mut client, blocks().map(|block| (block, contents(block)[1].clone())));
    let mut random = Random::seeded();
    write_all(
        &mut client,
        (0..MEANWHILE).map(|number| (MEANWHILE_AT + number, random.bytes(BLOCK as usize))),
    );
    drop(away);
    // Then it leads again.
    becomes_whole(pond);
    assert_eq!(primary(pond), preferred);
    let stale = blocks().filter(|block| {
        let data = client.read(block * BLOCK, BLOCK as u32).expect("it can be read");
        let [before, after] = contents(*block);
        assert!(data == before || data == after, "block {block} holds something else");
        data == before
    });
    assert_eq!(stale.count(), 0, "of {CHANGED} blocks that were overwritten");
}

#[test]
fn a_node_that_stood_still_past_its_log_serves_no_older_block_of_equal_checksum() {
    let pond = of_one_group();
    nothing_is_stale(&pond, |osd| Frozen::new(node_of(&pond, osd)));
}

#[test]
fn a_node_that_was_killed_and_stayed_away_past_its_log_serves_no_older_block_of_equal_checksum() {
    let pond = of_one_group();
    nothing_is_stale(&pond, |osd| {
        // Until it is killed it stands still: `up` would start it anew.
        let pid = node_of(&pond, osd);
        (Frozen::new(pid), KilledAtLast(pid))
    });
}

/// A process that is killed when this goes.
struct KilledAtLast(i32);

impl Drop for KilledAtLast {
    fn drop(&mut self) {
        signal(self.0, Signal::SIGKILL);
    }
}
