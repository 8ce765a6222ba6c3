//! Guests and front-ends that break the rules.

use super::guest::{DATA, ENTRIES, MEMORY_AT, MEMORY_BYTES, Piece, USER_AT};
use super::*;
use proptest::prelude::*;
use std::os::fd::AsRawFd;
use vhost::VhostBackend;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vmm_sys_util::eventfd::EventFd;

/// The ring does no more, another one does, and after a new start it does again.
fn breaks(guest: &mut Guest, why: &str) {
    guest.wait_for_break(0);
    assert_eq!(guest.ended(0), None, "{why}");
    guest.write(1, 0, &[1; 512]);
}

fn breaks_by(chain: Chain, why: &str) {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.put_header(DATA, OUT, 8);
    guest.put_chain(Guest::ring_at(0), 0, &chain);
    guest.offer(0, 0);
    breaks(&mut guest, why);
    assert_eq!(served.cluster.allocated_blocks(), 1, "{why}: nothing is done of it");
}

#[test]
fn chains_without_a_header_or_a_place_for_the_status_break_their_ring() {
    let chain = Chain::default;
    breaks_by(chain().readable(DATA, 15).writable(DATA + 16, 1), "a short header");
    breaks_by(chain().writable(DATA + 16, 100), "no header");
    breaks_by(chain().readable(DATA, 16).readable(DATA + 4096, 512), "no status");
    breaks_by(chain().readable(DATA, 16).readable(DATA + 4096, 512).writable(DATA, 0), "an empty status");
    breaks_by(chain().writable(DATA + 16, 1).readable(DATA, 16), "the wrong order");
    breaks_by(chain().readable(DATA, 16).writable(MEMORY_BYTES, 1), "a status outside");
    breaks_by(chain().readable(MEMORY_BYTES - 8, 16).writable(DATA + 16, 1), "half a header outside");
    breaks_by(chain().readable(u64::MAX - MEMORY_AT - 7, 16).writable(DATA + 16, 1), "a header that wraps");
}

#[test]
fn chains_that_do_not_end_break_their_ring() {
    let served = Served::start(|_, _| {});
    let ring = Guest::ring_at(0);
    let readable = Piece { at: DATA, length: 16, is_writable: false };
    type Way = fn(&Guest, u64, Piece);
    let ways: [(&str, Way); 6] = [
        ("a circle", |guest, ring, piece| guest.put_descriptor(ring, piece, 1, 0)),
        ("a descriptor that there is not", |guest, ring, piece| {
            guest.put_descriptor(ring, piece, 1, ENTRIES)
        }),
        ("a table in a table", |guest, ring, piece| {
            guest.put_descriptor(ring, Piece { at: DATA, length: 32, ..piece }, 4, 0);
            guest.put_descriptor(DATA, Piece { at: DATA + 64, length: 32, ..piece }, 4, 0);
        }),
        ("a part of a table", |guest, ring, piece| {
            guest.put_descriptor(ring, Piece { at: DATA, length: 17, ..piece }, 4, 0);
        }),
        ("a table outside", |guest, ring, piece| {
            guest.put_descriptor(ring, Piece { at: MEMORY_BYTES - 8, length: 32, ..piece }, 4, 0);
        }),
        ("a circle in a table", |guest, ring, piece| {
            guest.put_descriptor(ring, Piece { at: DATA + 64, length: 1 << 20, ..piece }, 4, 0);
            guest.put_descriptor(DATA + 64, piece, 1, 0);
        }),
    ];
    for (why, put) in ways {
        let mut guest = served.guest();
        put(&guest, ring, readable);
        guest.offer(0, 0);
        breaks(&mut guest, why);
        // The guest's driver starts it anew.
        guest.front().get_vring_base(0).unwrap();
        assert_eq!(guest.ended(0), None);
    }
}

#[test]
fn rings_that_claim_more_than_they_hold_break() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.put(Guest::ring_at(0) + 0x1000 + 2, &(ENTRIES + 1).to_le_bytes());
    guest.kick(0).write(1).unwrap();
    breaks(&mut guest, "more available than there is room");
    drop(guest);
    let mut guest = served.guest();
    guest.offer(0, ENTRIES);
    breaks(&mut guest, "a head that there is not");
}

#[test]
fn data_outside_of_the_memory_fail_their_request_alone() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.write(0, 0, &[3; 4096]);
    for kind in [IN, OUT] {
        for at in [MEMORY_BYTES - 100, MEMORY_BYTES, 1 << 50, u64::MAX - MEMORY_AT - 100] {
            guest.put_header(DATA, kind, 0);
            guest.put(DATA + 16, &[0xee]);
            let chain = Chain(vec![
                Piece { at: DATA, length: 16, is_writable: false },
                Piece { at, length: 4096, is_writable: kind == IN },
                Piece { at: DATA + 16, length: 1, is_writable: true },
            ]);
            assert_eq!(guest.ask(0, &chain), 1);
            assert_eq!(guest.get(DATA + 16, 1), [1], "{kind} at {at:x}");
        }
    }
    // Of several pieces, the later ones of which wrap around the end of all addresses.
    for length in [512 << 10, 1 << 20] {
        guest.put_header(DATA, IN, 0);
        let far = u64::MAX - MEMORY_AT - 100;
        let chain = Chain::default().readable(DATA, 16).writable(far, length).writable(DATA + 16, 1);
        assert_eq!((guest.ask(0, &chain), guest.get(DATA + 16, 1)), (1, vec![1]));
    }
    assert_eq!(guest.read(0, 0, 4096), [3; 4096]);
}

#[test]
fn the_same_descriptor_offered_over_and_over_harms_nobody_else() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    served.cluster.set_faults(Faults { hang_up_on_writes: true, ..Faults::default() });
    let chain = guest.plain(OUT, 0, 512);
    guest.put_chain(Guest::ring_at(0), 0, &chain);
    for _ in 0..5 * ENTRIES {
        guest.offer(0, 0);
        std::thread::sleep(Duration::from_millis(2));
    }
    served.cluster.set_faults(Faults::default());
    guest.write(1, 8, &[1; 512]);
    guest.hang_up();
    let mut guest = served.guest();
    guest.write(0, 8, &[2; 512]);
    assert_eq!(served.running.stop(), 0);
}

/// A front-end that says something wrong is sent away, and the next is served.
fn is_sent_away(served: &Served, why: &str, says: impl FnOnce(&mut Guest)) {
    let mut guest = served.guest();
    says(&mut guest);
    let is_gone = |guest: &mut Guest| guest.front().get_features().is_err();
    wait_until(why, || is_gone(&mut guest));
    drop(guest);
    served.guest().write(0, 0, &[1; 512]);
}

#[test]
fn front_ends_that_say_what_is_wrong_are_sent_away() {
    let served = Served::start(|_, _| {});
    is_sent_away(&served, "features that were not offered", |guest| {
        let _ = guest.front().set_features(u64::MAX);
    });
    is_sent_away(&served, "a ring that runs is moved", |guest| {
        let mut ring = guest.ring(0, false);
        ring.used_ring_addr += 4096;
        let _ = guest.front().set_vring_addr(0, &ring);
    });
    is_sent_away(&served, "a ring that runs gets another base", |guest| {
        let _ = guest.front().set_vring_base(0, 7);
    });
    is_sent_away(&served, "a ring that runs gets another size", |guest| {
        let _ = guest.front().set_vring_num(0, 4);
    });
    is_sent_away(&served, "a ring is outside of the memory", |guest| {
        guest.front().get_vring_base(0).unwrap();
        let mut ring = guest.ring(0, false);
        ring.desc_table_addr = USER_AT + MEMORY_BYTES - 64;
        let _ = guest.front().set_vring_addr(0, &ring);
        let kick = EventFd::new(0).unwrap();
        let _ = guest.front().set_vring_kick(0, &kick);
    });
    is_sent_away(&served, "a ring is not aligned", |guest| {
        guest.front().get_vring_base(0).unwrap();
        let mut ring = guest.ring(0, false);
        ring.used_ring_addr += 1;
        let _ = guest.front().set_vring_addr(0, &ring);
        let kick = EventFd::new(0).unwrap();
        let _ = guest.front().set_vring_kick(0, &kick);
    });
    is_sent_away(&served, "requests are to be noted in memory that is too small", |guest| {
        guest.front().get_vring_base(0).unwrap();
        guest.front().get_vring_base(1).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(64).unwrap();
        let place = VhostUserInflight::new(1 << 20, 0, 2, ENTRIES);
        let _ = guest.front().set_inflight_fd(&place, file.as_raw_fd());
    });
    is_sent_away(&served, "requests are to be noted elsewhere while rings run", |guest| {
        let wanted = VhostUserInflight::new(0, 0, 1, 2);
        let _ = guest.front().get_inflight_fd(&wanted);
    });
    is_sent_away(&served, "memory that its file does not have", |guest| {
        let file = tempfile::tempfile().unwrap();
        let mut region = guest.region();
        region.mmap_handle = file.as_raw_fd();
        let _ = guest.front().set_mem_table(&[region]);
    });
    is_sent_away(&served, "a log that its file does not have", |guest| {
        let file = tempfile::tempfile().unwrap();
        let region =
            vhost::VhostUserDirtyLogRegion { mmap_size: 4096, mmap_offset: 0, mmap_handle: file.as_raw_fd() };
        let _ = guest.front().set_log_base(0, Some(region));
    });
}

#[test]
fn messages_that_are_none_end_the_connection_and_no_other() {
    use std::io::Write;
    let served = Served::start(|_, _| {});
    for bytes in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(&served.options.socket).unwrap();
        stream.write_all(bytes).unwrap();
        // Or it hangs up in the middle of one.
        drop(stream);
    }
    let frontend = Frontend::connect(&served.options.socket, 2).unwrap();
    assert!(frontend.get_features().is_ok());
    drop(frontend);
    served.guest().write(0, 0, &[1; 512]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever stands in the rings and in the tables, the back-end lives, and serves who behaves.
    #[test]
    fn rings_full_of_nonsense_harm_nobody_else(
        nonsense in proptest::collection::vec((0..0x6000u64, any::<[u8; 16]>()), 1..200),
        shape in proptest::collection::vec((0..8u16, 0..3u64, any::<u32>(), any::<u16>(), 0..16u16), 8..40),
    ) {
        let mut served = Served::start(|_, _| {});
        let mut guest = served.guest();
        let before: Vec<u8> = vec![0x5a; 4096];
        guest.write(1, 1000, &before);
        // Descriptors that are nearly right come further than noise.
        for (index, (slot, place, length, flags, next)) in shape.iter().enumerate() {
            let at = [DATA, DATA + 4096, MEMORY_BYTES - 64][*place as usize];
            let piece = Piece { at, length: length % 20_000, is_writable: flags & 8 != 0 };
            guest.put_header(DATA, u32::from(flags % 16), u64::from(*next));
            guest.put_descriptor(Guest::ring_at(0) + 16 * u64::from(*slot), piece, flags & 7, *next);
            guest.offer(0, index as u16 % 9);
        }
        for (at, bytes) in &nonsense {
            guest.put(*at, bytes);
            if at % 3 == 0 {
                guest.kick((at % 2) as u16).write(1).unwrap();
            }
        }
        guest.hang_up();
        let mut next = served.guest();
        let _ = next.read(1, 1000, 4096);
        next.write(0, 1000, &before);
        prop_assert_eq!(next.read(1, 1000, 4096), before);
        prop_assert_eq!(served.running.stop(), 0);
    }
}
