//! Front-ends and back-ends come and go; requests are done once each, or again.

use super::guest::{DATA, MEMORY_AT, nothing_ends};
use super::*;
use std::os::fd::AsRawFd;
use vhost::vhost_user::VhostUserFrontend;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

/// Has nothing answered from now on.
fn silence(served: &Served) {
    served.cluster.set_faults(Faults { hang_up_on_writes: true, ..Faults::default() });
}

/// Offers two writes that do not end.
fn offer_two(guest: &mut Guest) {
    for (head, sector, byte) in [(0, 8, 1u8), (3, 16, 2)] {
        let at = DATA + 0x10_0000 * (u64::from(head) + 1);
        guest.put_header(at, OUT, sector);
        guest.put(at + 4096, &[byte; 4096]);
        let chain = Chain::default().readable(at, 16).readable(at + 4096, 4096).writable(at + 16, 1);
        guest.put_chain(Guest::ring_at(0), head, &chain);
        guest.offer(0, head);
    }
}

/// Has two writes under way on the first ring, which are tried again and again.
fn leave_two(served: &Served, guest: &mut Guest) {
    silence(served);
    offer_two(guest);
    wait_until("both are tried", || served.cluster.hang_ups() >= 2);
}

/// The next back-end, for which all is well again. Its predecessor's front-end hears of no end.
fn follow(served: &mut Served, guest: &mut Guest) {
    served.cluster.set_faults(Faults::default());
    served.running = Running::start(&served.options);
    guest.hang_up();
}

/// The two end.
fn both_end(guest: &mut Guest) {
    let mut heads = [guest.wait(0).0, guest.wait(0).0];
    heads.sort_unstable();
    assert_eq!(heads, [0, 3]);
}

#[test]
fn what_a_back_end_left_is_done_by_the_next() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.write(0, 0, &[9; 512]);
    leave_two(&served, &mut guest);
    // It waits a while for what is under way, and then does without.
    served.running.stop();
    nothing_ends(&mut guest, 0);
    follow(&mut served, &mut guest);
    guest.connect(&served.options.socket);
    both_end(&mut guest);
    nothing_ends(&mut guest, 0);
    assert_eq!(guest.read(1, 8, 8192), [[1; 4096], [2; 4096]].concat());
    assert_eq!(guest.read(0, 0, 512), [9; 512], "what had ended is not under way");
}

#[test]
fn who_comes_back_waits_for_what_it_had_under_way() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    leave_two(&served, &mut guest);
    guest.hang_up();
    let mut guest = std::thread::scope(|scope| {
        let (cluster, socket) = (&served.cluster, &served.options.socket);
        let connecting = scope.spawn(move || {
            guest.connect(socket);
            guest
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!connecting.is_finished(), "it is not served before those have ended");
        cluster.set_faults(Faults::default());
        connecting.join().unwrap()
    });
    // They are done again: nobody was told that they are done.
    both_end(&mut guest);
    guest.write(1, 8, &[7; 512]);
    let mut expected = [[1; 4096], [2; 4096]].concat();
    expected[..512].fill(7);
    assert_eq!(guest.read(0, 8, 8192), expected);
    assert_eq!(served.running.stop(), 0);
}

#[test]
fn a_ring_that_is_to_stop_ends_what_is_under_way_first() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.write(0, 0, &[9; 512]);
    leave_two(&served, &mut guest);
    std::thread::scope(|scope| {
        let front = guest.frontend.as_ref().unwrap();
        let stopping = scope.spawn(move || front.get_vring_base(0).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        assert!(!stopping.is_finished());
        served.cluster.set_faults(Faults::default());
        assert_eq!(stopping.join().unwrap(), 3, "three requests were taken");
    });
    assert!(guest.ended(0).is_some() && guest.ended(0).is_some() && guest.ended(0).is_none());
    // What is put into it now waits until it is started.
    let chain = guest.plain(OUT, 40, 512);
    guest.put_chain(Guest::ring_at(0), 0, &chain);
    guest.offer(0, 0);
    nothing_ends(&mut guest, 0);
    guest.start(0);
    assert_eq!(guest.wait(0).0, 0);
}

#[test]
fn pages_that_are_written_to_are_noted_while_that_is_asked_for() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    guest.write(0, 0, &[9; 8192]);
    let log = tempfile::tempfile().unwrap();
    let log_bytes = (MEMORY_AT + guest::MEMORY_BYTES) / 4096 / 8;
    log.set_len(log_bytes).unwrap();
    let pages = || -> Vec<u64> {
        let mut bytes = vec![0; log_bytes as usize];
        std::os::unix::fs::FileExt::read_exact_at(&log, &mut bytes, 0).unwrap();
        let bits = bytes.iter().enumerate();
        let bits = bits.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at as u64 * 8 + bit)
        });
        bits.map(|page| page - MEMORY_AT / 4096).collect()
    };
    let features = guest.front().get_features().unwrap();
    let region =
        VhostUserDirtyLogRegion { mmap_size: log_bytes, mmap_offset: 0, mmap_handle: log.as_raw_fd() };
    guest.front().set_log_base(0, Some(region)).unwrap();
    guest.read(0, 0, 8192);
    assert!(pages().is_empty(), "it is not asked for yet");
    guest.front().set_features(features).unwrap();
    let ring = guest.ring(0, true);
    guest.front().set_vring_addr(0, &ring).unwrap();
    guest.read(0, 0, 8192);
    let of_data = DATA / 4096;
    assert_eq!(pages(), [2, of_data, of_data + 1, of_data + 2], "the used ring, the status, the data");
    guest.write(0, 0, &[1; 8192]);
    assert_eq!(pages(), [2, of_data, of_data + 1, of_data + 2], "what is written to the disk is only read");
}

#[test]
fn a_volume_that_another_takes_ends_the_back_end_and_its_requests_stay() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    leave_two(&served, &mut guest);
    served.cluster.take_over("disk");
    let error = served.running.wait();
    assert!(matches!(error, BackendError::Loop(_)), "{error}");
    nothing_ends(&mut guest, 0);
    served.cluster.set_faults(Faults::default());
    served.cluster.revoke_attachments();
    served.running = Running::start(&served.options);
    guest.hang_up();
    guest.connect(&served.options.socket);
    guest.wait(0);
    guest.wait(0);
}

#[test]
fn one_front_end_is_served_at_a_time_and_the_next_when_it_is_gone() {
    let served = Served::start(|_, _| {});
    let mut first = served.guest();
    first.write(0, 0, &[1; 512]);
    std::thread::scope(|scope| {
        let served = &served;
        let second = scope.spawn(move || served.guest().read(0, 0, 512));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!second.is_finished());
        first.write(0, 0, &[2; 512]);
        first.hang_up();
        assert_eq!(second.join().unwrap(), [2; 512]);
    });
}

#[test]
fn memory_is_plugged_in_and_out() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    assert!(guest.front().get_max_mem_slots().unwrap() >= 32);
    let more = tempfile::tempfile().unwrap();
    more.set_len(1 << 20).unwrap();
    let region = vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: MEMORY_AT + (64 << 20),
        memory_size: 1 << 20,
        userspace_addr: 0x1000_0000,
        mmap_offset: 0,
        mmap_handle: more.as_raw_fd(),
    };
    guest.write(0, 0, &[6; 4096]);
    let into_it = Chain::default().readable(DATA, 16).writable(64 << 20, 4096).writable(DATA + 16, 1);
    guest.put_header(DATA, IN, 0);
    guest.ask(0, &into_it);
    assert_eq!(guest.get(DATA + 16, 1), [1], "there is no such memory yet");
    guest.front().add_mem_region(&region).unwrap();
    guest.ask(0, &into_it);
    assert_eq!(guest.get(DATA + 16, 1), [0]);
    let mut bytes = [0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&more, &mut bytes, 0).unwrap();
    assert_eq!(bytes, [6; 4096]);
    guest.front().remove_mem_region(&region).unwrap();
    guest.ask(0, &into_it);
    assert_eq!(guest.get(DATA + 16, 1), [1]);
    assert!(guest.front().remove_mem_region(&region).is_err());
}

#[test]
fn who_follows_a_dead_one_at_the_same_socket_need_not_wait_for_its_lease() {
    let served = Served::start(|_, _| {});
    let note = note_at(&served.options.socket);
    let lease = std::fs::read_to_string(&note).unwrap();
    // As if its process had been killed: somebody else has the volume by that lease, and nobody the lock on the note.
    let elsewhere = served.options.socket.with_extension("other");
    let options = BackendOptions { socket: elsewhere.clone(), ..served.options.clone() };
    let refused = Backend::open(&options).err().unwrap();
    assert!(refused.to_string().contains("attached"), "{refused}");
    std::fs::write(note_at(&elsewhere), lease).unwrap();
    let before = ::ring::now();
    let mut next = Running::start(&options);
    assert!(::ring::now().since(before) < Duration::from_secs(5), "a lease lasts ten");
    let mut guest = Guest::new();
    guest.connect(&elsewhere);
    guest.write(0, 0, &[1; 512]);
    assert!(!served.cluster.fences().is_empty(), "what the dead one sent is fenced");
    assert_eq!(next.stop(), 0);
    assert!(!note_at(&elsewhere).exists(), "who ends in good order leaves no note");
}

/// A back-end that follows one with two requests under way, and a guest whose rings do not run yet.
fn inherited() -> (Served, Guest) {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    leave_two(&served, &mut guest);
    served.running.stop();
    follow(&mut served, &mut guest);
    guest.connects_enabled = false;
    (served, guest)
}

#[test]
fn what_a_dead_one_left_is_done_before_a_ring_moves_elsewhere() {
    let (served, mut guest) = inherited();
    guest.connect(&served.options.socket);
    assert_eq!(guest.front().get_vring_base(0).unwrap(), 2);
    assert!(guest.ended(0).is_some() && guest.ended(0).is_some(), "nobody else would do them");
}

#[test]
fn a_ring_stops_though_what_a_dead_one_left_cannot_be_done() {
    let (served, mut guest) = inherited();
    // The first of them is a request no more.
    guest.put_chain(Guest::ring_at(0), 0, &Chain::default().readable(DATA, 3));
    guest.connect(&served.options.socket);
    guest.front().get_vring_base(0).unwrap();
    assert_eq!(guest.ended(0), None);
}

#[test]
fn what_an_osd_refuses_because_another_has_the_volume_is_not_told_to_the_guest() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    served.cluster.set_faults(Faults { refuse_writes: Some(wire::Status::Fenced), ..Faults::default() });
    offer_two(&mut guest);
    let error = served.running.wait();
    assert!(matches!(error, BackendError::Loop(LoopError::Lost { .. })), "{error}");
    nothing_ends(&mut guest, 0);
    follow(&mut served, &mut guest);
    guest.connect(&served.options.socket);
    guest.wait(0);
    guest.wait(0);
    assert_eq!(guest.read(1, 8, 8192), [[1; 4096], [2; 4096]].concat());
}

#[test]
fn it_stops_though_somebody_waits_for_what_does_not_end() {
    let mut served = Served::start(|_, _| {});
    let mut guest = served.guest();
    leave_two(&served, &mut guest);
    std::thread::scope(|scope| {
        let front = guest.frontend.as_ref().unwrap();
        let stopping = scope.spawn(move || front.get_vring_base(0).is_err());
        std::thread::sleep(Duration::from_millis(200));
        served.running.stop();
        assert!(stopping.join().unwrap(), "it is told that nobody answers");
    });
    served.running = Running::start(&served.options);
    guest.hang_up();
    guest.connect(&served.options.socket);
    let before = served.cluster.hang_ups();
    wait_until("they are tried again", || served.cluster.hang_ups() >= before + 3);
    guest.hang_up();
    std::thread::scope(|scope| {
        let socket = &served.options.socket;
        let connecting =
            scope.spawn(move || vhost::vhost_user::Frontend::connect(socket, 2).unwrap().get_features());
        std::thread::sleep(Duration::from_millis(300));
        served.running.stop();
        assert!(connecting.join().unwrap().is_err());
    });
}

#[test]
fn who_comes_back_is_served_though_what_it_left_never_ends() {
    let served = Served::start(|_, _| {});
    let mut guest = served.guest();
    leave_two(&served, &mut guest);
    guest.hang_up();
    let began = ::ring::now();
    let mut guest = served.guest();
    assert!(::ring::now().since(began) > Duration::from_secs(5), "they are waited for");
    assert!(!served.cluster.fences().is_empty(), "and then they take effect never more");
    assert_eq!(guest.read(0, 8, 512), [0; 512]);
    served.cluster.set_faults(Faults::default());
    guest.write(0, 8, &[9; 512]);
    assert_eq!(guest.read(0, 8, 512), [9; 512]);
}

#[test]
fn zeroings_of_much_take_turns() {
    let served = Served::start(|cluster, options| {
        cluster.create_volume("large", 64 << 30);
        options.volume = "large".to_owned();
    });
    let mut guest = served.guest();
    for (head, from) in [(0u16, 0u64), (3, 4 << 30)] {
        let at = DATA + 0x10_0000 * (u64::from(head) + 1);
        guest.put_header(at, 13, 0);
        guest.put(at + 4096, &(from / 512).to_le_bytes());
        guest.put(at + 4104, &((4u64 << 30) / 512).to_le_bytes());
        let chain = Chain::default().readable(at, 16).readable(at + 4096, 16).writable(at + 16, 1);
        guest.put_chain(Guest::ring_at(0), head, &chain);
        guest.offer(0, head);
    }
    guest.write(1, 0, &[1; 512]);
    both_end(&mut guest);
    assert_eq!([guest.get(DATA + 0x10_0010, 1), guest.get(DATA + 0x40_0010, 1)], [[0], [0]]);
}
