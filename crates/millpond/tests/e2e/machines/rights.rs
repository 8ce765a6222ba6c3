//! Machines whose keys change the volumes of a pool, and those whose keys do not.

use super::clients::client;
use crate::common::hosts::Hosts;
use crate::common::{names, path};

/// What changes volumes of the pool `default` as they are here, each done if it may be.
const CHANGES: [&[&str]; 18] = [
    &["create", "new", "64MiB"],
    &["resize", "disk", "2GiB"],
    &["rename", "disk", "new"],
    &["snapshot", "create", "disk@new"],
    &["snapshot", "rename", "disk@s", "new"],
    &["snapshot", "protect", "disk@s"],
    &["snapshot", "unprotect", "disk@s"],
    &["snapshot", "rm", "disk@s"],
    &["clone", "disk@s", "new"],
    &["flatten", "copy", "--no-wait"],
    &["flatten", "copy", "--stop"],
    &["rollback", "disk@s", "--discard-changes"],
    &["meta", "set", "disk", "owner", "somebody"],
    &["meta", "rm", "disk", "owner"],
    &["rm", "disk"],
    &["rm", "disk", "--now"],
    &["restore", "lies"],
    &["purge", "lies"],
];

#[test]
fn a_key_that_manages_a_pool_makes_and_changes_its_volumes_from_afar_and_no_other_does() {
    let Some(hosts) = Hosts::up("rights of keys to change volumes", 0) else { return };
    for line in [
        "pool create other",
        "volume create theirs 64MiB --pool other",
        "volume create their-trash 64MiB --pool other",
        "volume rm their-trash --keep never",
        "volume snapshot create disk@s theirs@s",
        "volume clone disk@s copy",
        "volume meta set disk owner mail",
        "volume create lies 64MiB",
        "volume rm lies --keep never",
    ] {
        hosts.run_on(0, &format!("millpond {line}"));
    }
    let all = || {
        let lists = ["volume ls", "volume trash", "volume snapshot ls disk", "volume meta ls disk"];
        lists.map(|list| hosts.run_on(1, &format!("millpond {list} --json")))
    };
    let before = all();
    let refused = [
        (client(&hosts, "backup", "--pool default --ro"), "auth add NAME --pool P --manage"),
        (client(&hosts, "vm-host", "--pool default --rw"), "auth add NAME --pool P --manage"),
    ];
    // Where a bare name leads to nothing that its key is for.
    let tenant = client(&hosts, "tenant", "--pool other --manage");
    for (site, words) in &refused {
        for change in CHANGES {
            site.refused(&[&["volume"], change].concat(), &["may not do that", words]);
        }
    }
    for change in CHANGES {
        tenant.refused(&[&["volume"], change].concat(), &[]);
    }
    refused[1].0.refused(&["volume", "purge", "--all"], &["may not do that", "--manage"]);
    assert_eq!(all(), before);

    let manager = client(&hosts, "manager", "--pool default --manage");
    names(&hosts.run_on(0, "millpond auth ls"), &["manager", "manage default", "read and write default"]);
    names(&manager.run(&["volume", "create", "v", "64MiB"]), &["volume v made"]);
    names(&manager.run(&["volume", "resize", "v", "128MiB"]), &["volume v has 128MiB now"]);
    let door = manager.serve("v");
    let mut writes = door.client();
    writes.write(0, &[1; 8192]).expect("it may write");
    // Its clients stand still for that.
    names(
        &manager.run(&["volume", "snapshot", "create", "v@one", "disk@one"]),
        &["v@one made", "disk@one made"],
    );
    writes.write(0, &[2; 8192]).expect("it goes on");
    drop((writes, door));
    manager.run(&["volume", "snapshot", "rename", "v@one", "first"]);
    manager.run(&["volume", "snapshot", "protect", "v@first"]);
    manager.refused(&["volume", "snapshot", "rm", "v@first"], &["protect"]);
    manager.run(&["volume", "snapshot", "unprotect", "v@first"]);
    manager.run(&["volume", "clone", "v@first", "c"]);
    assert_eq!(manager.serve("c").client().read(0, 8192).expect("it holds that"), [1; 8192]);
    manager.refused(&["volume", "snapshot", "rm", "v@first"], &["millpond volume flatten default/c"]);
    names(&manager.run(&["volume", "du", "v"]), &["v@first alone"]);
    names(&manager.run(&["volume", "flatten", "c"]), &["volume c is flat"]);
    manager.run(&["volume", "rollback", "v@first", "--discard-changes"]);
    assert_eq!(manager.serve("v").client().read(0, 8192).expect("it is back"), [1; 8192]);
    names(&manager.run(&["volume", "snapshot", "rm", "v@first"]), &["snapshot v@first removed"]);
    manager.run(&["volume", "meta", "set", "v", "owner", "web"]);
    assert_eq!(manager.run(&["volume", "meta", "get", "v", "owner"]).trim(), "web");
    manager.run(&["volume", "meta", "rm", "v", "owner"]);
    // Made smaller, it grows when what it lost is deleted.
    manager.run(&["volume", "resize", "v", "4MiB", "--allow-shrink"]);
    manager.run(&["volume", "resize", "v", "64MiB"]);
    names(&manager.run(&["volume", "rename", "v", "w"]), &["volume v is called w now"]);
    manager.run(&["volume", "rm", "w"]);
    manager.run(&["volume", "create", "w", "64MiB"]);
    manager.refused(&["volume", "restore", "w"], &["there is a volume w already", "--as NEW"]);
    names(&manager.run(&["volume", "restore", "w", "--as", "v"]), &["volume v is back"]);
    manager.run(&["volume", "rm", "w", "--now"]);
    manager.run(&["volume", "rm", "v"]);
    // Of all that there is in the trash, what lay in its pool.
    names(&manager.run(&["volume", "purge", "--all"]), &["2 volumes removed"]);
    let export = manager.scratch().join("disk.diff");
    manager.run(&["volume", "export", "disk@one", path(&export)]);
    manager.run(&["volume", "import", path(&export), "imported"]);
    names(&manager.run(&["volume", "snapshot", "ls", "imported"]), &["one"]);

    for (change, words) in [
        (&["create", "x", "64MiB", "--pool", "other"][..], "does not make volumes in pool other"),
        (&["resize", "other/theirs", "1GiB"], "no pool that its key is for"),
        (&["clone", "other/theirs@s", "x"], "no pool that its key is for"),
        (&["snapshot", "create", "disk@two", "other/theirs@two"], "no pool that its key is for"),
        (&["meta", "ls", "other/theirs"], "no pool that its key is for"),
        (&["limit", "disk", "--iops", "5"], "the key of an owner"),
    ] {
        manager.refused(&[&["volume"], change].concat(), &["manager may not do that", words]);
    }
    // Of another pool nothing is seen.
    for (change, words) in [
        (&["rm", "theirs"][..], "no volume theirs"),
        (&["rm", "other/theirs"], "no volume other/theirs"),
        (&["restore", "their-trash"], "nothing their-trash in the trash"),
        (&["purge", "other/their-trash"], "nothing other/their-trash in the trash"),
        (&["clone", "theirs@s", "x"], "no volume theirs"),
        (&["snapshot", "create", "disk@two", "theirs@two"], "no volume theirs"),
        (&["meta", "ls", "theirs"], "no volume theirs"),
    ] {
        manager.refused(&[&["volume"], change].concat(), &[words]);
    }
    assert!(!manager.run(&["volume", "ls"]).contains("theirs"));
    manager.refused(&["pool", "create", "mine"], &["manager may not do that"]);
    manager.refused(&["schedule", "rm", "x"], &["manager may not do that"]);
    manager.refused(&["auth", "add", "x", "--admin"], &["manager may not do that"]);
    names(&hosts.run_on(0, "millpond volume trash"), &["their-trash"]);
    names(&hosts.run_on(0, "millpond volume snapshot ls theirs"), &["s"]);
    hosts.run_on(0, "millpond auth rm manager");
    manager.refused(&["volume", "create", "late", "64MiB"], &["is not one of this cluster"]);
}
