//! What an export says of itself, and what it does with every kind of request and with whole images, by programs that
//! nobody here wrote: fio, libnbd, QEMU.

use crate::common::door::Door;
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::{attempt, names, path, run, text};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use testkit::prerequisites::installed;

const VOLUME_BYTES: u64 = 256 << 20;

fn served() -> (Pond, Door) {
    let pond = Pond::start("768MiB");
    pond.volume("v", "256MiB");
    let door = pond.serve("v");
    (pond, door)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("the program printed JSON")
}

#[test]
fn an_export_offers_what_clients_ask_for() {
    if !installed("what an export offers", &["nbdinfo"]) {
        return;
    }
    let (_pond, door) = served();
    let info = json(&run("nbdinfo", &["--json", &door.uri()]));
    assert_eq!(info["structured"], true, "{info}");
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], VOLUME_BYTES, "{export}");
    assert_eq!(export["is_read_only"], false, "{export}");
    for can in ["can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_multi_conn", "can_df"] {
        assert_eq!(export[can], true, "{can} in {export}");
    }
    assert_eq!(export["block_size_minimum"], 1, "{export}");
    let contexts = export["contexts"].to_string();
    assert!(contexts.contains("base:allocation"), "{export}");
    let list =
        json(&run("nbdinfo", &["--list", "--json", &format!("nbd+unix://?socket={}", path(door.socket()))]));
    assert_eq!(list["exports"][0]["export-name"], "v", "{list}");
}

#[test]
fn a_sparse_image_comes_back_as_it_was_and_the_map_shows_its_holes() {
    if !installed("a sparse image", &["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let (pond, door) = served();
    let uri = door.uri();
    let totals = json(&run("nbdinfo", &["--map", "--totals", "--json", &uri]));
    assert_eq!(totals[0]["size"], VOLUME_BYTES, "a new volume holds something: {totals}");
    assert_eq!(totals[0]["description"], "hole,zero", "{totals}");
    let (original, copy) = (pond.scratch().join("original"), pond.scratch().join("copy"));
    let file = File::create(&original).unwrap();
    file.set_len(VOLUME_BYTES).unwrap();
    let mut random = Random::seeded();
    // At the start, across a border of objects, at the end.
    for offset in [0, (64 << 20) - (512 << 10), VOLUME_BYTES - (1 << 20)] {
        file.write_all_at(&random.bytes(1 << 20), offset).unwrap();
    }
    run("nbdcopy", &[path(&original), &uri]);
    run("nbdcopy", &[&uri, path(&copy)]);
    run("cmp", &[path(&original), path(&copy)]);
    let map = json(&run("nbdinfo", &["--map", "--json", &uri]));
    let extents = map.as_array().unwrap();
    let length = |extent: &Value| extent["length"].as_u64().unwrap();
    assert_eq!(extents.iter().map(length).sum::<u64>(), VOLUME_BYTES, "the map has gaps: {map}");
    let data: u64 = extents.iter().filter(|extent| extent["type"] == 0).map(length).sum();
    assert_eq!(data, 3 << 20, "{map}");
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", path(&original), &uri]);
    let image = pond.scratch().join("image.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, path(&image)]);
    run("qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", path(&image), &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, path(&image)]);
    let writes = ["-t", "none", "-n", "-w", "-d", "32", "-s", "4096", "-c", "5000", "-f", "raw", &uri];
    run("qemu-img", &[&["bench"], &writes[..]].concat());
}

#[test]
fn fio_verifies_what_it_wrote_in_any_size_and_alignment() {
    if !installed("fio on an export", &["fio"]) {
        return;
    }
    let (pond, door) = served();
    let uri = format!("--uri={}", door.uri());
    let aux = format!("--aux-path={}", path(pond.scratch()));
    let common = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        &aux,
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randrepeat=0",
    ];
    let jobs: [&[&str]; 5] = [
        &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=64m"],
        &["--rw=write", "--bs=1m", "--iodepth=32", "--size=128m"],
        &["--rw=randwrite", "--bsrange=512-128k", "--blockalign=512", "--iodepth=32", "--size=64m"],
        &["--rw=randrw", "--rwmixread=50", "--bsrange=4k-64k", "--iodepth=16", "--size=32m"],
        &["--rw=write", "--bs=64k", "--iodepth=8", "--offset=128m", "--size=32m", "--fsync=16"],
    ];
    for job in jobs {
        let report = run("fio", &[&common[..], job].concat());
        names(&report, &["err= 0"]);
    }
}

#[test]
fn every_kind_of_request_leaves_what_it_should() {
    if !installed("every kind of request", &["qemu-io"]) {
        return;
    }
    let (_pond, door) = served();
    let uri = door.uri();
    // Each line leaves what a later one checks; `-P` compares with a pattern.
    let commands = [
        "write -P 0x11 0 1M",
        "write -P 0x22 513 70001",
        "read -P 0x11 0 513",
        "read -P 0x22 513 70001",
        "read -P 0x11 70514 100000",
        "write -P 0x33 -f 4194000 1000",
        "flush",
        "read -P 0x33 4194000 1000",
        "write -P 0x44 8M 1M",
        "write -z 8392704 64k",
        "read -P 0x44 8388608 4096",
        "read -P 0 8392704 64k",
        "write -z -u 9000001 4095",
        "read -P 0x44 8990000 10001",
        "read -P 0 9000001 4095",
        "read -P 0x44 9004096 4096",
        "discard 8M 512k",
        "read -P 0x44 9216000 4096",
        "aio_write -P 0x55 16M 256k",
        "aio_write -P 0x66 20M 256k",
        "aio_flush",
        "read -P 0x55 16M 256k",
        "read -P 0x66 20M 256k",
        // Across the end of a block, and over the whole of two objects.
        "write -P 0xcd 25169918 3",
        "read -P 0xcd 25169918 3",
        "write -z -u 24M 8M",
        "read -P 0 24M 8M",
        "write -P 0x77 -f 32M 32M",
        "discard 33M 4M",
        "read -P 0 33M 4M",
        "read -P 0x77 32M 1M",
    ];
    let mut arguments = vec!["-f", "raw", "-d", "unmap"];
    for command in &commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let output = attempt("qemu-io", &arguments);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    for failure in ["failed", "verification"] {
        assert!(!text.contains(failure), "{text}");
    }
    let beyond = attempt("qemu-io", &["-f", "raw", "-c", "write 256M 4096", &uri]);
    assert!(!beyond.status.success(), "a write beyond the end worked");
}
