//! Operations that cannot be done: with a time limit they fail in time and say why, without one they wait until they can.

use crate::common::nbd::{NbdClient, command, error};
use crate::common::pond::Pond;
use crate::common::whole::{BLOCK, becomes_whole, node_of};
use crate::common::{attempt, names, text, wait_until};
use std::time::{Duration, Instant};
use testkit::process::Frozen;

/// What is written lies in so many groups.
const PLACES: u64 = 16;
/// An operation that fails at a limit of 3 s has failed by then, on a busy machine too.
const IN_TIME: Duration = Duration::from_secs(60);
/// So often at most it is told that operations failed at their limit.
const TOLD_EVERY: Duration = Duration::from_secs(10);

fn place(index: u64) -> u64 {
    index * (4 << 20)
}

fn content(index: u64) -> Vec<u8> {
    vec![index as u8 + 1; BLOCK as usize]
}

#[test]
fn with_too_few_members_operations_fail_at_their_limit_or_wait_for_a_node_to_come_back() {
    let pond = Pond::start("512MiB");
    for volume in ["limited", "patient", "measured"] {
        pond.volume(volume, "64MiB");
    }
    let (limited, patient) = (pond.serve_with("limited", &["--timeout", "3s"]), pond.serve("patient"));
    becomes_whole(&pond);
    let (mut limited_client, mut patient_client) = (limited.client(), patient.client());
    for index in 0..PLACES {
        wait_until("it is written in time", || limited_client.write(place(index), &content(index)).is_ok());
    }

    let frozen_at = Instant::now();
    let frozen = [0, 1].map(|osd| Frozen::new(node_of(&pond, osd)));
    for index in 0..PLACES {
        let data = content(index);
        patient_client
            .send(command::WRITE, 0, place(index), BLOCK as u32, &data)
            .expect("the connection holds");
    }
    let waiting = std::thread::spawn(move || {
        for _ in 0..PLACES {
            let reply = patient_client.receive().expect("the connection holds");
            reply.result.expect("what waits without a limit is done in the end");
        }
        patient_client
    });
    let mut fails_in_time = |index: u64| {
        let began = Instant::now();
        let refusal = limited_client.write(place(index), &content(index)).expect_err("nobody can serve it");
        assert!(refusal.code == error::IO && began.elapsed() < IN_TIME, "{refusal:?}, {:?}", began.elapsed());
        names(&refusal.message, &["\"limited\"", "pg ", "osd.", "3 s", "may still take effect"]);
    };
    (0..2).for_each(&mut fails_in_time);
    let began = Instant::now();
    let uri = format!("--uri={}", limited.uri());
    let fio = attempt("fio", &["--name=late", "--ioengine=nbd", "--rw=write", "--bs=4k", "--size=64k", &uri]);
    let words = text(&fio);
    assert!(!fio.status.success() && began.elapsed() < IN_TIME, "{words}");
    names(&words, &["Input/output error"]);
    let bench =
        ["bench", "--target", "volume:measured", "--rw", "randwrite", "--runtime", "4", "--timeout", "1s"];
    pond.refused(&bench, &["\"measured\"", "not done within 1 s", "pg ", "osd."]);
    assert!(!waiting.is_finished(), "somebody served what too few members hold");

    drop(frozen);
    let mut patient_client = waiting.join().expect("every write was done");
    // Before anything else is asked of it, which may have to wait too.
    let count = |log: &str, what: &str| log.matches(what).count();
    wait_until("the log says that operations go on", || count(&patient.log(), "go on again") == 1);
    let log = patient.log();
    assert_eq!(count(&log, "operations wait"), 1, "{log}");
    names(&log, &["patient", "pg ", "osd."]);
    wait_until("the operations with a limit are done again", || {
        limited_client.write(place(0), &content(0)).is_ok()
    });
    let log = limited.log();
    let told_max = 1 + frozen_at.elapsed().div_duration_f64(TOLD_EVERY) as usize;
    assert!((1..=told_max).contains(&count(&log, "operations failed at their time limit")), "{log}");
    names(&log, &["limited", "pg ", "osd."]);
    becomes_whole(&pond);
    holds_everything(&mut patient_client);
    holds_everything(&mut limited_client);
}

fn holds_everything(client: &mut NbdClient) {
    for index in 0..PLACES {
        let mut found = Vec::new();
        wait_until("it is read in time", || {
            client.read(place(index), BLOCK as u32).map(|data| found = data).is_ok()
        });
        assert!(found == content(index), "block {index}");
    }
}
