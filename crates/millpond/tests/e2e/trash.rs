//! What is removed can be had back, as it was, until its time in the trash is up; then its space is free.

use crate::common::pond::Pond;
use crate::common::whole::{becomes_whole, groups};
use crate::common::{names, wait_longer, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const BYTES: u64 = 16 << 20;
const PIECE: u32 = 1 << 20;
/// How long OSDs may take to delete what a volume of four objects held.
const GONE_WITHIN: Duration = Duration::from_secs(30);

fn content(at: u64) -> Vec<u8> {
    (0..PIECE).map(|byte| (at / u64::from(PIECE) * 31 + u64::from(byte) / 7) as u8 | 1).collect()
}

fn pieces() -> impl Iterator<Item = u64> {
    (0..BYTES).step_by(PIECE as usize)
}

fn objects(pond: &Pond) -> u64 {
    groups(pond).iter().map(|group| group["objects"].as_u64().unwrap_or(u64::MAX / 1024)).sum()
}

fn trash(pond: &Pond) -> Vec<Value> {
    pond.list(&["volume", "trash"])
}

#[test]
fn a_volume_comes_back_out_of_the_trash_as_it_was_and_its_space_is_free_when_its_time_is_up() {
    let pond = Pond::start("1GiB");
    pond.volume("v", &BYTES.to_string());
    let door = pond.serve("v");
    let mut client = door.client();
    pieces().for_each(|at| client.write(at, &content(at)).expect("it lies within the volume"));
    pond.refused(&["volume", "rm", "v"], &["volume v is attached", "detach it there first"]);
    // Whoever serves it goes on when it is called otherwise.
    names(&pond.run(&["volume", "rename", "v", "w"]), &["volume v is called w now"]);
    client.write(0, &content(0)).expect("it is served still");
    drop((client, door));
    pond.run(&["volume", "meta", "set", "w", "owner", "the \u{1b}[1mmail server"]);

    let said = pond.run(&["volume", "rm", "w"]);
    names(&said, &["in the trash for 7 d", "volume restore w", "volume purge w"]);
    assert!(pond.list(&["volume", "ls"]).iter().all(|volume| volume["name"] != "w"));
    pond.refused(&["volume", "info", "w"], &["volume w is in the trash", "volume restore w"]);
    names(&pond.run(&["volume", "trash"]), &["w", "in 7 d"]);
    names(&pond.run(&["status"]), &["one more in the trash"]);
    becomes_whole(&pond);
    // What groups hold is told now and then.
    wait_until("all of it is there still", || objects(&pond) >= BYTES >> 22);
    let held = objects(&pond);

    pond.volume("w", &BYTES.to_string());
    pond.refused(&["volume", "restore", "w"], &["there is a volume w already", "--as NEW"]);
    names(&pond.run(&["volume", "restore", "w", "--as", "v"]), &["volume v is back"]);
    assert_eq!(trash(&pond), Vec::<Value>::new());
    assert_eq!(pond.json(&["volume", "meta", "ls", "v"]), json!({"owner": "the \u{1b}[1mmail server"}));
    assert!(!pond.run(&["volume", "meta", "ls", "v"]).contains('\u{1b}'), "a table that a value takes over");
    pond.run(&["volume", "meta", "rm", "v", "owner"]);
    pond.refused(&["volume", "meta", "get", "v", "owner"], &["nothing is noted", "volume meta ls v"]);
    let door = pond.serve("v");
    let mut client = door.client();
    for at in pieces() {
        assert!(client.read(at, PIECE).expect("it lies within the volume") == content(at), "at {at}");
    }
    drop((client, door));

    pond.run(&["volume", "rm", "w", "--keep", "never"]);
    pond.run(&["volume", "rm", "v", "--keep", "1s"]);
    wait_until("the manager purges what lay there for its time", || {
        let left = trash(&pond);
        left.len() == 1 && left[0]["name"] == "w" && left[0]["purged_at_unix_seconds"].is_null()
    });
    pond.refused(&["volume", "restore", "v"], &["there is nothing v in the trash"]);
    wait_longer(GONE_WITHIN, "what it held is deleted", || objects(&pond) + (BYTES >> 22) <= held);
    pond.refused(&["volume", "purge"], &["say which volume"]);
    names(&pond.run(&["volume", "purge", "--all"]), &["volume w removed"]);
    names(&pond.run(&["volume", "purge", "--all"]), &["nothing was in the trash"]);
}
