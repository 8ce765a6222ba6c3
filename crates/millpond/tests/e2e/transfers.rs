//! What a volume holds, and what changed in it, goes to another cluster as a stream; and what is no whole stream, or goes on from
//! something else, changes nothing there.

use crate::common::nbd::NbdClient;
use crate::common::pond::Pond;
use crate::common::{names, path};
use std::path::Path;

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: &str = "32MiB";

fn write(client: &mut NbdClient, at: u64, round: u8) {
    let data: Vec<u8> = (0..MIB).map(|byte| (byte / 4096) as u8 ^ round).collect();
    client.write(at * MIB, &data).expect("it lies within the volume");
}

/// All that a volume or a snapshot holds.
fn content(pond: &Pond, what: &str) -> Vec<u8> {
    let door = pond.serve(what);
    let mut client = door.client();
    (0..32).flat_map(|at| client.read(at * MIB, MIB as u32).expect("it lies within the volume")).collect()
}

fn size(file: &Path) -> u64 {
    std::fs::metadata(file).expect("it was written").len()
}

#[test]
fn a_volume_goes_elsewhere_whole_and_then_by_what_changed_and_nothing_else_is_taken() {
    let [from, to] = [Pond::start("512MiB"), Pond::start("512MiB")];
    let [whole, changes] = ["whole.diff", "changes.diff"].map(|name| from.dir().join(name));
    from.volume("v", VOLUME_BYTES);
    let door = from.serve("v");
    let mut client = door.client();
    (0..8).for_each(|at| write(&mut client, at, 1));
    from.run(&["volume", "snapshot", "create", "v@one"]);
    write(&mut client, 3, 2);
    client.write(20 * MIB + 100, &[7; 50]).expect("it lies within the volume");
    client.trim(5 * MIB, 2 * MIB as u32).expect("it lies within the volume");
    from.run(&["volume", "snapshot", "create", "v@two"]);
    write(&mut client, 9, 3);

    // What it holds now is of no one moment, while somebody has it.
    let (is_done, _, said) = from.attempt(&["volume", "export", "v", path(&from.dir().join("now.diff"))]);
    assert!(is_done, "{said}");
    names(&said, &["may change it meanwhile"]);
    from.refused(&["volume", "export", "v@one", "--since", "two", path(&whole)], &["not older than v@one"]);
    from.refused(&["volume", "export", "v@none", path(&whole)], &["no snapshot v@none"]);
    from.run(&["volume", "export", "v@one", path(&whole)]);
    from.refused(&["volume", "export", "v@one", path(&whole)], &["is there already"]);
    from.run(&["volume", "export", "v@two", "--since", "one", path(&changes)]);
    assert!((8 * MIB..8 * MIB + 4096).contains(&size(&whole)), "{}", size(&whole));
    // A piece that was written anew, and the block in which some bytes were.
    assert!((MIB + 4096..MIB + 8192).contains(&size(&changes)), "{}", size(&changes));

    let import = |file: &Path| to.run(&["volume", "import", path(file), "copy"]);
    let refused = |file: &Path, words: &[&str]| to.refused(&["volume", "import", path(file), "copy"], words);
    refused(&changes, &["no volume copy", "since its snapshot one"]);
    // What is cut short, or was changed on its way, makes no volume.
    let bad = to.dir().join("bad.diff");
    let bytes = std::fs::read(&whole).expect("it was just written");
    std::fs::write(&bad, &bytes[..bytes.len() - 100]).expect("the directory takes files");
    refused(&bad, &["cut short", "fetch it once more"]);
    let mut changed = bytes.clone();
    changed[3 * MIB as usize] ^= 1;
    std::fs::write(&bad, changed).expect("the directory takes files");
    refused(&bad, &["not what was written"]);
    assert!(to.list(&["volume", "ls"]).iter().all(|volume| volume["name"] != "copy"));

    let named = [b"rbd diff v1\nt\x07\0\0\0my snaps\0\0\0\x01\0\0\0\0e".as_slice()].concat();
    std::fs::write(&bad, named).expect("the directory takes files");
    refused(&bad, &["\"my snap\" cannot be the name of a snapshot"]);
    assert!(to.list(&["volume", "ls"]).iter().all(|volume| volume["name"] != "copy"));

    import(&whole);
    names(&to.run(&["volume", "snapshot", "ls", "copy"]), &["one"]);
    refused(&whole, &["has a snapshot one already"]);
    // Somebody writes to it.
    write(&mut to.serve("copy").client(), 30, 4);
    let before = content(&to, "copy");
    refused(&changes, &["written to since copy@one", "rollback copy@one --discard-changes"]);
    std::fs::write(&bad, &std::fs::read(&changes).expect("it was just written")[..9000])
        .expect("it is there");
    refused(&bad, &["cut short"]);
    assert!(content(&to, "copy") == before, "what was refused changed something");
    let back = ["volume", "rollback", "copy@one", "--discard-changes"];
    to.run(&back);
    to.run(&["volume", "resize", "copy", "16MiB", "--allow-shrink"]);
    refused(&changes, &["another size than copy@one had", "rollback copy@one"]);
    to.run(&back);
    import(&changes);
    for snapshot in ["one", "two"] {
        let held = [(&from, "v"), (&to, "copy")].map(|(pond, of)| content(pond, &format!("{of}@{snapshot}")));
        assert!(held[0] == held[1], "{snapshot} is not what it was");
    }
    refused(&changes, &["has a snapshot two already"]);

    // By a pipe, of a volume as it is now.
    drop((client, door));
    let script = format!(
        "{0} volume export v - --since two --dir {1} | {0} volume import - copy --dir {2}",
        env!("CARGO_BIN_EXE_millpond"),
        path(&from.dir()),
        path(&to.dir())
    );
    crate::common::run("bash", &["-o", "pipefail", "-c", &script]);
    assert!(content(&from, "v") == content(&to, "copy"));
}
