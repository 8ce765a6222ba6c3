//! What drivers ask for, however they cut it.

use super::guest::{DATA, Piece};
use super::*;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 512) as u8 ^ (at as u8).wrapping_mul(7) ^ seed).collect()
}

#[test]
fn what_is_written_by_one_queue_is_read_by_another() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    for (seed, (sector, length)) in
        [(0, 512), (9, 4096), (800, 12_800), (8191, 1 << 20)].into_iter().enumerate()
    {
        let bytes = pattern(length, seed as u8);
        guest.write(0, sector, &bytes);
        assert_eq!(guest.read(1, sector, length), bytes, "{length} at {sector}");
        assert!(guest.is_told(0) && guest.is_told(1));
    }
    assert_eq!(guest.read(0, 40_000, 4096), vec![0; 4096]);
    assert_eq!(served.running.stop(), 0, "every buffer comes back to its pool");
}

#[test]
fn requests_are_done_however_they_are_cut() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    let bytes = pattern(8192, 3);
    guest.put(DATA + 4096, &bytes);
    // The header in three, its end with the data; the data in uneven pieces.
    guest.put_header(DATA + 4096 - 16, OUT, 77);
    let chain = Chain::default()
        .readable(DATA + 4080, 3)
        .readable(DATA + 4083, 0)
        .readable(DATA + 4083, 12)
        .readable(DATA + 4095, 1001)
        .readable(DATA + 5096, 7192)
        .writable(DATA + 16, 1);
    guest.put(DATA + 16, &[0xee]);
    assert_eq!(guest.ask(0, &chain), 1);
    assert_eq!(guest.get(DATA + 16, 1), [OK]);
    // The status at the end of the data.
    guest.put_header(DATA, IN, 77);
    guest.put(DATA + 4096, &[0xee; 8193]);
    let chain = Chain::default().readable(DATA, 16).writable(DATA + 4096, 100).writable(DATA + 4196, 8093);
    assert_eq!(guest.ask(1, &chain), 8193);
    assert_eq!(guest.get(DATA + 4096, 8192), bytes);
    assert_eq!(guest.get(DATA + 4096 + 8192, 1), [OK]);
    // In a table of their own.
    guest.put(DATA + 4096, &[0xee; 8192]);
    guest.put(DATA + 16, &[0xee]);
    let table = Piece { at: DATA + 256, length: 48, is_writable: false };
    let chain = Chain::default().readable(DATA, 16).writable(DATA + 4096, 8192).writable(DATA + 16, 1);
    guest.put_chain(DATA + 256, 0, &chain);
    guest.put_descriptor(Guest::ring_at(0), table, 4, 0);
    guest.offer(0, 0);
    assert_eq!(guest.wait(0), (0, 8193));
    assert_eq!((guest.get(DATA + 4096, 8192), guest.get(DATA + 16, 1)), (bytes, vec![OK]));
}

#[test]
fn many_requests_are_under_way_at_once() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    for round in 0..40u64 {
        // Two chains of three descriptors fit, and one of two.
        for (place, head) in [0u16, 3].into_iter().enumerate() {
            let at = DATA + 0x10_0000 * (place as u64 + 1);
            guest.put_header(at, OUT, 4000 * (place as u64 + 1) + 16 * round);
            guest.put(at + 4096, &pattern(8192, round as u8));
            let chain = Chain::default().readable(at, 16).readable(at + 4096, 8192).writable(at + 16, 1);
            guest.put(at + 16, &[0xee]);
            guest.put_chain(Guest::ring_at(0), head, &chain);
            guest.offer(0, head);
        }
        guest.put_header(DATA, FLUSH, 0);
        let flush = Chain::default().readable(DATA, 16).writable(DATA + 16, 1);
        guest.put_chain(Guest::ring_at(0), 6, &flush);
        guest.offer(0, 6);
        let mut heads: Vec<u16> = (0..3).map(|_| guest.wait(0).0).collect();
        heads.sort_unstable();
        assert_eq!(heads, [0, 3, 6]);
    }
    for round in 0..40 {
        assert_eq!(guest.read(1, 8000 + 16 * round, 8192), pattern(8192, round as u8));
    }
}

#[test]
fn the_disk_says_what_it_is() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    let capacity = |guest: &mut Guest| u64::from_le_bytes(guest.configuration(0, 8).try_into().unwrap());
    assert_eq!(capacity(&mut guest), DISK_BYTES / 512);
    assert_eq!(guest.configuration(34, 2), [2, 0], "queues");
    assert_eq!(guest.status_of(0, GET_ID, 0, 20), OK);
    let name = guest.get(DATA + 4096, 20);
    assert!(name.starts_with(b"millpond-"), "{name:?}");
    assert_eq!(guest.status_of(0, GET_ID, 0, 19), IOERR);
    assert_eq!(guest.status_of(0, FLUSH, 0, 0), OK);
    // A guest may write to it, and nothing comes of that.
    guest.front().set_config(32, VhostUserConfigFlags::WRITABLE, &[1]).unwrap();
    served.cluster.with(async |cluster| cluster.resize_volume("disk", 2 * DISK_BYTES, false).await.unwrap());
    wait_until("it has grown", || capacity(&mut guest) == 2 * DISK_BYTES / 512);
    guest.write(0, DISK_BYTES / 512, &[1; 512]);
}

#[test]
fn what_cannot_be_done_is_said_and_does_nothing() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    let end = DISK_BYTES / 512;
    assert_eq!(guest.status_of(0, IN, end, 512), IOERR, "beyond the end");
    assert_eq!(guest.status_of(0, OUT, end - 1, 1024), IOERR, "across the end");
    assert_eq!(guest.status_of(0, OUT, end - 1, 512), OK, "up to the end");
    for sector in [u64::MAX, u64::MAX / 512, u64::MAX / 512 + 1, 1 << 55] {
        assert_eq!(guest.status_of(0, OUT, sector, 512), IOERR, "{sector}");
    }
    for length in [0, 1, 511, 513, 4095] {
        assert_eq!(guest.status_of(0, IN, 0, length), IOERR, "{length} bytes");
        assert_eq!(guest.status_of(0, OUT, 0, length), IOERR, "{length} bytes");
    }
    for kind in [2, 3, 5, 14, 15, 26, u32::MAX] {
        assert_eq!(guest.status_of(0, kind, 0, 512), UNSUPP, "{kind}");
    }
    assert_eq!(served.cluster.allocated_blocks(), 1);
}

#[test]
fn ranges_are_discarded_and_zeroed() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.write(0, 0, &[7; 65536]);
    assert_eq!(served.cluster.allocated_blocks(), 16);
    let mut change = |kind: u32, range: (u64, u32, u32), count: u32| {
        let one: Vec<u8> =
            [&range.0.to_le_bytes()[..], &range.1.to_le_bytes(), &range.2.to_le_bytes()].concat();
        guest.put(DATA + 4096, &one.repeat(3));
        guest.status_of(0, kind, 0, 16 * count)
    };
    assert_eq!(change(DISCARD, (8, 16, 0), 1), OK);
    assert_eq!(change(WRITE_ZEROES, (64, 8, 1), 1), OK);
    assert_eq!(change(WRITE_ZEROES, (72, 8, 0), 1), OK);
    assert_eq!(change(DISCARD, (8, 16, 1), 1), UNSUPP, "it has no such flag");
    assert_eq!(change(WRITE_ZEROES, (8, 16, 2), 1), UNSUPP);
    assert_eq!(change(DISCARD, (8, 16, 0), 2), IOERR, "one range a request");
    assert_eq!(change(DISCARD, (8, 16, 0), 0), IOERR);
    assert_eq!(change(DISCARD, (u64::MAX, 16, 0), 1), IOERR);
    assert_eq!(change(DISCARD, (DISK_BYTES / 512 - 8, 16, 0), 1), IOERR);
    assert_eq!(change(WRITE_ZEROES, (0, u32::MAX, 0), 1), IOERR);
    assert_eq!(change(WRITE_ZEROES, (0, 0, 0), 1), IOERR);
    assert_eq!(served.cluster.allocated_blocks(), 12);
    let mut expected = vec![7; 65536];
    expected[4096..12_288].fill(0);
    expected[32_768..40_960].fill(0);
    assert_eq!(guest.read(1, 0, 65536), expected);
}

#[test]
fn what_is_only_read_is_a_disk_that_cannot_be_written_to() {
    let mut served = Served::start(|_, _| {});
    served.guest().write(0, 8, &[5; 512]);
    assert_eq!(served.running.stop(), 0);
    served.options.open = OpenAs::Reader;
    served.running = Running::start(&served.options);
    let mut guest = served.guest();
    let features = guest.front().get_features().unwrap();
    assert_eq!(features >> 5 & 1, 1, "read-only");
    assert_eq!(guest.read(0, 8, 512), [5; 512]);
    assert_eq!(guest.status_of(0, OUT, 8, 512), IOERR);
    guest.put(DATA + 4096, &[0; 16]);
    assert_eq!(guest.status_of(0, DISCARD, 0, 16), IOERR);
    assert_eq!(guest.read(0, 8, 512), [5; 512]);
}

#[test]
fn drivers_without_event_indices_or_protocol_features_are_served_too() {
    let served = Served::start(|_, _| {});
    for missing in [1 << 29, 1 << 28, 1 << 29 | 1 << 28] {
        let mut guest = Guest::new();
        guest.features &= !missing;
        guest.connect(&served.options.socket);
        guest.write(0, 8, &[5; 512]);
        assert_eq!(guest.read(1, 8, 512), [5; 512]);
        assert!(guest.is_told(0));
    }
}

#[test]
fn failures_of_the_volume_are_told_and_nothing_else_fails() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.write(0, 0, &[5; 4096]);
    served.cluster.set_faults(Faults { refuse_reads: Some(wire::Status::Damaged), ..Faults::default() });
    assert_eq!(guest.status_of(0, IN, 0, 4096), IOERR);
    assert_eq!(guest.status_of(1, OUT, 8, 512), OK);
    served.cluster.set_faults(Faults::default());
    assert_eq!(guest.read(0, 0, 4096), [5; 4096]);
}
