//! Volumes that are opened and not attached: read beside whoever has them, and written to by turns.

use crate::common::door::Door;
use crate::common::pond::Pond;
use crate::common::{PATIENCE, attempt, names, path, run, text, wait_until};
use serde_json::Value;
use std::time::Instant;
use testkit::prerequisites::installed;
use testkit::process::Frozen;

/// How the protocol says that something is not permitted.
const EPERM: u32 = 1;
/// And that it failed.
const EIO: u32 = 5;

fn open(pond: &Pond, name: &str, flags: &[&str]) -> Door {
    Door::open(pond, "v", name, flags).unwrap_or_else(|said| panic!("the NBD server ended: {said}"))
}

fn pond() -> Pond {
    let pond = Pond::start("768MiB");
    pond.volume("v", "64MiB");
    pond
}

fn watchers(pond: &Pond) -> Vec<Value> {
    let listed = pond.run(&["volume", "watchers", "v", "--json"]);
    serde_json::from_str::<Vec<Value>>(&listed).expect("it prints JSON")
}

fn info(pond: &Pond) -> Value {
    serde_json::from_str(&pond.run(&["volume", "info", "v", "--json"])).expect("it prints JSON")
}

#[test]
fn a_read_only_export_beside_a_writer_shows_what_that_writes_and_refuses_writes() {
    if !installed("a read-only export", &["nbdinfo", "qemu-img", "qemu-io"]) {
        return;
    }
    let pond = pond();
    let owner = open(&pond, "owner", &[]);
    let reader = open(&pond, "reader", &["--read-only"]);
    let generation = info(&pond)["generation"].clone();
    let told: Value = serde_json::from_str(&run("nbdinfo", &["--json", &reader.uri()])).unwrap();
    assert_eq!(told["exports"][0]["is_read_only"], true, "{told}");
    let (mut writes, mut reads) = (owner.client(), reader.client());
    for round in 1..=20u8 {
        writes.write(u64::from(round) * 4096, &[round; 8192]).unwrap();
        assert_eq!(reads.read(u64::from(round) * 4096, 8192).unwrap(), [round; 8192]);
    }
    let refusal = reads.write(0, &[1; 4096]).unwrap_err();
    assert_eq!(refusal.code, EPERM, "{refusal:?}");
    run("qemu-img", &["info", "-f", "raw", &reader.uri()]);
    run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 20 80k 8k", &reader.uri()]);
    let listed = watchers(&pond);
    assert!(listed.len() == 1 && listed[0]["read_only"] == true && listed[0]["owns"] == false, "{listed:?}");
    names(&pond.run(&["volume", "info", "v"]), &["attached    by pid", "open        by pid", "(read-only)"]);
    // Nobody else gets it, and a volume that is open is not removed, attached or not.
    names(&Door::open(&pond, "v", "other", &[]).err().expect("it is attached"), &["attached by pid"]);
    drop(writes);
    drop(owner);
    pond.refused(&["volume", "rm", "v"], &["is open (read-only)", "volume watchers v"]);
    // Who comes next writes, and the one who reads is none the wiser.
    let next = open(&pond, "owner", &[]);
    next.client().write(0, &[77; 4096]).unwrap();
    assert_eq!(reads.read(0, 4096).unwrap(), [77; 4096]);
    assert_ne!(info(&pond)["generation"], generation, "whoever had it before is fenced");
    // A snapshot that somebody reads keeps its volume too.
    pond.run(&["volume", "snapshot", "create", "v@s"]);
    drop((reads, reader, next));
    let of_snapshot = Door::open(&pond, "v@s", "snapshot", &[]).unwrap();
    names(&pond.run(&["volume", "watchers", "v"]), &["snapshot s"]);
    pond.refused(&["volume", "rm", "v"], &["is open (a snapshot)"]);
    drop(of_snapshot);
    assert!(watchers(&pond).is_empty());
    pond.run(&["volume", "rm", "v"]);
}

#[test]
fn two_gateways_that_open_a_volume_write_by_turns() {
    if !installed("two gateways", &["fio"]) {
        return;
    }
    let pond = pond();
    let (one, two) = (open(&pond, "one", &["--open"]), open(&pond, "two", &["--open"]));
    assert_eq!(info(&pond)["attachments"].as_array().map(Vec::len), Some(0), "nobody has it yet");
    let (mut first, mut second) = (one.client(), two.client());
    assert_eq!(first.read(0, 4096).unwrap(), [0; 4096]);
    let mut took = Vec::new();
    for round in 0..40u8 {
        let (writer, reader) =
            if round % 2 == 0 { (&mut first, &mut second) } else { (&mut second, &mut first) };
        let began = Instant::now();
        writer.write(0, &[round; 4096]).unwrap();
        took.push(began.elapsed());
        assert_eq!(reader.read(0, 4096).unwrap(), [round; 4096]);
    }
    took.sort_unstable();
    println!(
        "a write that takes the volume over: p50 {:?}, p99 {:?}",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    let listed = watchers(&pond);
    assert_eq!(listed.iter().filter(|one| one["owns"] == true).count(), 1, "{listed:?}");
    drop((first, second));
    // Both write all the time, each in its own half.
    let jobs = [(&one, "0", "one"), (&two, "32m", "two")].map(|(door, offset, name)| {
        let uri = format!("--uri={}", door.uri());
        let (name, offset) = (format!("--name={name}"), format!("--offset={offset}"));
        let scratch = format!("--aux-path={}", path(pond.scratch()));
        std::thread::spawn(move || {
            let arguments = [
                &name,
                "--ioengine=nbd",
                &uri,
                &scratch,
                &offset,
                "--rw=randwrite",
                "--bs=4k",
                "--iodepth=8",
                "--size=4m",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
            ];
            attempt("fio", &arguments)
        })
    });
    for job in jobs {
        let output = job.join().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        names(&text(&output), &["err= 0"]);
    }
    let handed_over = info(&pond)["generation"].as_u64().unwrap();
    assert!(handed_over > 40, "it changed hands while both wrote: {handed_over}");
    drop((one, two));
    wait_until("nobody has it", || info(&pond)["attachments"].as_array().is_some_and(Vec::is_empty));
    pond.run(&["volume", "rm", "v"]);
}

#[test]
fn an_owner_that_stands_still_is_waited_for_and_one_that_is_dead_is_fenced() {
    let pond = pond();
    let mut one = open(&pond, "one", &["--open"]);
    let two = open(&pond, "two", &["--open", "--timeout", "3s"]);
    let (mut first, mut second) = (one.client(), two.client());
    first.write(0, &[1; 4096]).unwrap();
    {
        let _frozen = Frozen::new(one.pid());
        let refusal = second.write(0, &[2; 4096]).unwrap_err();
        assert_eq!(refusal.code, EIO, "{refusal:?}");
        names(&format!("{refusal:?}"), &["was asked of pid", "not given it up"]);
        assert_eq!(second.read(0, 4096).unwrap(), [1; 4096], "it reads on");
    }
    // It goes on, hears that another wished it, and gives it up.
    wait_until("the other one gets it", || second.write(0, &[3; 4096]).is_ok());
    first.write(4096, &[4; 4096]).unwrap();
    assert_eq!(second.read(0, 8192).unwrap(), [[3; 4096], [4; 4096]].concat());
    // Dead, it is waited for until its lease ends.
    one.is_killed();
    let began = Instant::now();
    wait_until("the other one gets it in spite of that", || second.write(0, &[5; 4096]).is_ok());
    println!("after the owner was killed: {:?}", began.elapsed());
    assert!(began.elapsed() < PATIENCE);
    // One that stands still until its lease has ended changes nothing when it goes on.
    let mut three = open(&pond, "three", &["--open"]);
    let mut third = three.client();
    third.write(8192, &[6; 4096]).unwrap();
    let frozen = Frozen::new(three.pid());
    wait_until("it is fenced", || second.write(8192, &[7; 4096]).is_ok());
    drop(frozen);
    wait_until("it notices, and ends", || !three.runs());
    names(&three.log(), &["lease ended"]);
    assert_eq!(second.read(8192, 4096).unwrap(), [7; 4096]);
}

#[test]
fn who_keeps_a_volume_is_not_asked_for_it() {
    let pond = pond();
    let (owner, other) = (open(&pond, "owner", &[]), open(&pond, "other", &["--open"]));
    let mut opened = other.client();
    let refusal = opened.write(0, &[1; 4096]).unwrap_err();
    assert_eq!(refusal.code, EPERM, "{refusal:?}");
    names(&format!("{refusal:?}"), &["has it attached", "--open"]);
    drop(owner);
    opened.write(0, &[1; 4096]).unwrap();
    // The other way round: who wants it for good is told how to come to terms.
    let said = Door::open(&pond, "v", "owner", &[]).err().expect("it is owned");
    names(&said, &["attached by pid", "--open"]);
    // A snapshot is made of what is owned by turns, and a standstill is no hand-over.
    pond.run(&["volume", "snapshot", "create", "v@s"]);
    opened.write(0, &[2; 4096]).unwrap();
    let of_snapshot = Door::open(&pond, "v@s", "snapshot", &[]).unwrap();
    assert_eq!(of_snapshot.client().read(0, 4096).unwrap(), [1; 4096]);
    // Who exports or measures only reads.
    let file = pond.scratch().join("exported");
    let (is_done, _, said) = pond.attempt(&["volume", "export", "v", path(&file)]);
    assert!(is_done, "{said}");
    names(&said, &["may change it meanwhile"]);
    pond.run(&["bench", "--target", "volume:v", "--rw", "randread", "--runtime", "1", "--size", "1MiB"]);
}

#[test]
fn locks_are_told_of_and_keep_nobody_from_anything() {
    let pond = pond();
    pond.run(&["volume", "lock", "add", "v", "backup", "--locker", "alpha"]);
    pond.refused(&["volume", "lock", "add", "v", "backup", "--locker", "beta"], &["is held by alpha"]);
    pond.refused(&["volume", "lock", "add", "v", "backup", "--locker", "alpha"], &["already"]);
    for cookie in ["1", "2"] {
        pond.run(&["volume", "lock", "add", "v", "readers", "--shared", "t", "--cookie", cookie]);
    }
    pond.refused(&["volume", "lock", "add", "v", "readers"], &["shared as \"t\""]);
    let listed = pond.run(&["volume", "lock", "ls", "v"]);
    names(&listed, &["backup", "alpha", "exclusive", "shared as t"]);
    let door = open(&pond, "door", &[]);
    door.client().write(0, &[1; 4096]).unwrap();
    pond.refused(&["volume", "lock", "rm", "v", "backup", "beta"], &["is not held by \"beta\""]);
    pond.run(&["volume", "lock", "rm", "v", "backup", "alpha"]);
    pond.run(&["volume", "lock", "add", "v", "backup", "--locker", "beta"]);
    let listed = pond.run(&["volume", "lock", "ls", "v", "--json"]);
    let locks: Vec<Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!(locks.len(), 3, "{listed}");
}
