//! A volume ends where it says. What it loses when it is made smaller, by the byte, is zeros when it has grown again, also
//! where a member was away meanwhile that leads then.

use crate::common::nbd::{NbdClient, error};
use crate::common::pond::Pond;
use crate::common::replicas::replicas_are_equal;
use crate::common::whole::{BLOCK, becomes_whole, groups, node_of};
use crate::common::{names, wait_until};
use testkit::process::Frozen;

/// The volume, as it is made.
const WHOLE: u64 = 64 << 20;
/// Where it ends when it was made smaller: within an object, a block and a sector.
const END: u64 = 5 * (4 << 20) + 37 * BLOCK + 1234;
/// Bytes that are read or written at a time.
const PIECE: u64 = 256 << 10;

/// What a piece holds that was written.
fn written(at: u64) -> Vec<u8> {
    (0..PIECE).map(|byte| (1 + (at / PIECE * 31 + byte / 7) % 251) as u8).collect()
}

fn pieces() -> impl Iterator<Item = u64> {
    (0..WHOLE).step_by(PIECE as usize)
}

fn write_everything(client: &mut NbdClient) {
    for at in pieces() {
        client.write(at, &written(at)).expect("it lies within the volume");
    }
}

/// Asserts that the volume holds what was written up to the end that it had, and zeros behind it.
fn holds_what_was_left(client: &mut NbdClient) {
    for at in pieces() {
        let found = client.read(at, PIECE as u32).expect("it lies within the volume");
        let left = END.saturating_sub(at).min(PIECE) as usize;
        assert!(found[..left] == written(at)[..left], "what was not cut off changed, at {at}");
        assert!(found[left..].iter().all(|byte| *byte == 0), "something came back, at {at}");
    }
}

fn primary(pond: &Pond) -> u64 {
    groups(pond)[0]["primary"].as_u64().expect("a group has a primary")
}

#[test]
fn what_is_cut_off_does_not_come_back_when_the_member_leads_that_was_away() {
    let pond = Pond::start("1GiB");
    pond.run(&["pool", "rm", "default"]);
    pond.run(&["pool", "create", "default", "--pg-count", "1"]);
    pond.volume("v", &WHOLE.to_string());
    becomes_whole(&pond);
    let door = pond.serve("v");
    let mut client = door.client();
    write_everything(&mut client);
    let preferred = primary(&pond);
    let away = Frozen::new(node_of(&pond, preferred as u32));
    wait_until("another one leads", || primary(&pond) != preferred);

    pond.refused(&["volume", "resize", "v", &END.to_string()], &["--allow-shrink"]);
    pond.run(&["volume", "resize", "v", &END.to_string(), "--allow-shrink"]);
    // Whoever serves it hears of that in a moment.
    wait_until("nothing is served beyond the end", || client.read(END, 1).is_err());
    let refusal = client.write(END - 1, &[1, 2]).expect_err("it reaches beyond the end");
    assert_eq!(refusal.code, error::NO_SPACE, "{refusal:?}");
    let last = client.read(END - 1, 1).expect("it is the last byte");
    assert_eq!(last[0], written(END / PIECE * PIECE)[(END % PIECE) as usize - 1]);

    // It waits until nothing is left of what was cut off.
    pond.run(&["volume", "resize", "v", &WHOLE.to_string()]);
    wait_until("the larger volume is served", || client.read(WHOLE - 1, 1).is_ok());
    holds_what_was_left(&mut client);
    drop(away);
    becomes_whole(&pond);
    assert_eq!(primary(&pond), preferred);
    holds_what_was_left(&mut client);
    // It is a volume like any other.
    write_everything(&mut client);
    let found = client.read(WHOLE - PIECE, PIECE as u32).expect("it lies within the volume");
    assert!(found == written(WHOLE - PIECE));
    drop((client, door));
    replicas_are_equal(&pond, WHOLE / BLOCK);
}

#[test]
fn a_volume_that_cannot_be_cut_everywhere_does_not_grow_and_says_why() {
    let pond = Pond::start("1GiB");
    pond.volume("v", "64MiB");
    becomes_whole(&pond);
    // With two of three away its groups take no writes.
    let away = [1, 2].map(|osd| Frozen::new(node_of(&pond, osd)));
    pond.run(&["volume", "resize", "v", "32MiB", "--allow-shrink"]);
    let info = pond.run(&["volume", "info", "v"]);
    names(&info, &["32MiB", "does not grow"]);
    pond.refused(
        &["volume", "resize", "v", "64MiB"],
        &["v cannot grow yet", "waited for 30 s", "placement groups", "millpond status", "pg 1."],
    );
    // Smaller it may become at any time.
    pond.run(&["volume", "resize", "v", "16MiB", "--allow-shrink"]);
    drop(away);
    becomes_whole(&pond);
    pond.run(&["volume", "resize", "v", "64MiB"]);
    names(&pond.run(&["volume", "info", "v"]), &["64MiB"]);
}
