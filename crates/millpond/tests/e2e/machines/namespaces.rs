//! Machines whose keys are for a namespace: what they see, make and change there, and that there is nothing else for them.

use super::clients::client;
use crate::common::hosts::Hosts;
use crate::common::names;

#[test]
fn a_key_that_manages_a_namespace_makes_and_changes_its_volumes_from_afar_and_sees_no_others() {
    let Some(hosts) = Hosts::up("keys for namespaces", 0) else { return };
    for line in [
        "namespace create default/mine",
        "namespace create default/theirs",
        "volume create default/theirs/secret 64MiB",
        "volume snapshot create default/theirs/secret@s",
        "volume create default/theirs/trashed 64MiB",
        "volume rm default/theirs/trashed --keep never",
    ] {
        hosts.run_on(0, &format!("millpond {line}"));
    }
    let of_others = || {
        let lists = [
            "volume ls --namespace theirs",
            "volume ls --namespace ''",
            "volume trash",
            "volume snapshot ls default/theirs/secret",
        ];
        lists.map(|list| hosts.run_on(1, &format!("millpond {list} --json")))
    };
    let before = of_others();
    let mine = client(&hosts, "mine", "--pool default --namespace mine --manage");
    let reader = client(&hosts, "reader", "--pool default --namespace mine --ro");
    assert!(!mine.run(&["volume", "ls"]).contains("disk"), "the volumes of others are not shown");
    mine.refused(&["volume", "create", "v", "64MiB"], &["does not make volumes in pool default"]);
    mine.run(&["volume", "create", "default/mine/v", "64MiB"]);
    names(&mine.run(&["volume", "ls"]), &["v", "mine"]);
    names(&mine.run(&["namespace", "ls"]), &["mine"]);
    assert!(!mine.run(&["namespace", "ls"]).contains("theirs"));
    let door = mine.serve("v");
    let mut writes = door.client();
    writes.write(0, &[1; 8192]).expect("it may write");
    mine.run(&["volume", "snapshot", "create", "v@one"]);
    names(&mine.run(&["volume", "info", "v"]), &["by the key of mine"]);
    drop((writes, door));
    mine.run(&["volume", "clone", "v@one", "default/mine/c"]);
    mine.run(&["volume", "resize", "c", "128MiB"]);
    names(&mine.run(&["volume", "du", "v"]), &["v@one alone"]);
    mine.run(&["volume", "rename", "v", "w"]);
    mine.run(&["volume", "rm", "c"]);
    mine.run(&["volume", "restore", "c"]);
    mine.run(&["volume", "rm", "c"]);
    names(&mine.run(&["volume", "purge", "--all"]), &["volume c removed"]);
    assert_eq!(
        reader.serve_with("w", &["--shared", "--read-only"]).client().read(0, 8192).unwrap(),
        [1; 8192]
    );
    reader.refused(&["volume", "rm", "w"], &["reader may not do that", "--manage"]);

    for change in [
        &["info", "disk"][..],
        &["info", "default/theirs/secret"],
        &["rm", "default/theirs/secret", "--now"],
        &["rename", "default/theirs/secret", "x"],
        &["snapshot", "rm", "default/theirs/secret@s"],
        &["clone", "default/theirs/secret@s", "default/mine/stolen"],
        &["snapshot", "create", "w@two", "default/theirs/secret@two"],
        &["meta", "ls", "default/theirs/secret"],
        &["restore", "default/theirs/trashed"],
        &["restore", "--id", "3"],
        &["du", "default/theirs/secret"],
        &["create", "default/theirs/x", "64MiB"],
        &["rename", "w", "default/theirs/w"],
        &["limit", "w", "--iops", "5"],
    ] {
        mine.refused(&[&["volume"], change].concat(), &[]);
    }
    mine.refused(&["namespace", "create", "default/more"], &["mine may not do that"]);
    mine.refused(&["namespace", "rm", "default/theirs"], &["mine may not do that"]);
    let refusal = mine.try_serve("default/theirs/secret").err().expect("it is of another namespace");
    names(&refusal, &["no pool that its key is for"]);
    assert_eq!(of_others(), before);
    // Who manages the pool makes a namespace in it.
    let pool = client(&hosts, "pool", "--pool default --manage");
    pool.run(&["namespace", "create", "default/more"]);
    names(&pool.run(&["volume", "ls"]), &["disk", "secret", "w"]);
    pool.run(&["namespace", "rm", "default/more"]);
    pool.refused(&["namespace", "rm", "default/mine"], &["still holds"]);
}
