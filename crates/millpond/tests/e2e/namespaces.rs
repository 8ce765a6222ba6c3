//! Volumes of one name in several places: each has its own bytes, is named in full, and is opened by keys that are for it alone.

use crate::common::pond::Pond;
use crate::common::{millpond, names, path, wait_until};

/// What NBD says where something is not permitted.
const EPERM: u32 = 1;

const PLACES: [&str; 4] = ["default/disk", "other/disk", "default/a/disk", "other/a/disk"];

/// What the volume of a place holds.
fn content(place: usize) -> Vec<u8> {
    vec![place as u8 + 1; 8192]
}

fn names_in(pond: &Pond, flags: &[&str]) -> Vec<String> {
    let volumes = pond.list(&[&["volume", "ls"], flags].concat());
    let text =
        |volume: &serde_json::Value, field: &str| volume[field].as_str().expect("it is text").to_owned();
    volumes.iter().map(|one| ["pool", "namespace", "name"].map(|field| text(one, field)).join("/")).collect()
}

#[test]
fn volumes_of_one_name_in_two_pools_and_two_namespaces_are_four() {
    let pond = Pond::start("768MiB");
    pond.run(&["pool", "create", "other"]);
    pond.refused(
        &["volume", "create", "other/a/disk", "64MiB"],
        &["no namespace other/a", "namespace create other/a"],
    );
    for place in ["default/a", "other/a"] {
        names(&pond.run(&["namespace", "create", place]), &["namespace", place, "made"]);
    }
    pond.refused(&["namespace", "create", "other/a"], &["a namespace other/a already"]);
    pond.refused(&["namespace", "create", "nowhere/a"], &["no pool nowhere"]);
    pond.refused(&["namespace", "create", "other"], &["other/NAMESPACE"]);
    pond.run(&["volume", "create", "disk", "64MiB"]);
    let door = pond.serve("disk");
    door.client().write(0, &content(0)).expect("it lies within the volume");
    drop(door);
    // Until here a bare name was enough.
    pond.run(&["volume", "create", "disk", "64MiB", "--pool", "other"]);
    for place in &PLACES[2..] {
        pond.run(&["volume", "create", place, "64MiB"]);
    }
    pond.refused(&["volume", "create", "other/disk", "64MiB"], &["a volume disk already"]);
    pond.refused(&["volume", "create", "default/x", "64MiB", "--pool", "other"], &["name one of them"]);
    let ambiguous = &["default/disk", "other/disk", "say which"];
    pond.refused(&["volume", "info", "disk"], ambiguous);
    pond.refused(&["volume", "rm", "disk", "--now"], ambiguous);
    pond.refused(&["volume", "snapshot", "create", "disk@s"], ambiguous);
    pond.refused(&["volume", "export", "disk", "-"], ambiguous);
    names(&pond.try_serve("disk").err().expect("it may be either"), ambiguous);

    let doors: Vec<_> = PLACES.iter().map(|place| pond.serve(place)).collect();
    let mut clients: Vec<_> = doors.iter().map(|door| door.client()).collect();
    for (at, client) in clients.iter_mut().enumerate().skip(1) {
        assert_eq!(client.read(0, 8192).expect("it is served"), vec![0; 8192], "{} is new", PLACES[at]);
        client.write(0, &content(at)).expect("it lies within the volume");
    }
    for (at, client) in clients.iter_mut().enumerate() {
        assert!(client.read(0, 8192).expect("it is served") == content(at), "{}", PLACES[at]);
    }
    // Of all at one moment, under whatever names.
    let wanted = PLACES.map(|place| format!("{place}@s"));
    pond.run(&[&["volume", "snapshot", "create"], &wanted.each_ref().map(String::as_str)[..]].concat());
    drop((clients, doors));

    let all = ["default//disk", "default/a/disk", "other//disk", "other/a/disk"];
    assert_eq!(names_in(&pond, &[]), all);
    assert_eq!(names_in(&pond, &["--pool", "other"]), all[2..]);
    assert_eq!(names_in(&pond, &["--namespace", "a"]), ["default/a/disk", "other/a/disk"]);
    assert_eq!(names_in(&pond, &["--namespace", ""]), ["default//disk", "other//disk"]);
    names(&pond.run(&["volume", "ls"]), &["NAMESPACE"]);
    names(&pond.run(&["volume", "info", "other/a/disk"]), &["namespace   a", "snapshot ls other/a/disk"]);
    let listed = pond.list(&["namespace", "ls", "other"]);
    assert_eq!((listed[0]["name"].as_str(), listed[0]["volumes"].as_u64()), (Some("a"), Some(1)));
    names(&pond.run(&["volume", "snapshot", "ls", "other/a/disk"]), &["s"]);
    names(&pond.run(&["volume", "du", "other/a/disk"]), &["other/a/disk@s alone"]);

    // Clones lie in another namespace, renamed volumes stay in theirs.
    pond.run(&["volume", "clone", "default/disk@s", "default/a/copy"]);
    pond.refused(
        &["volume", "clone", "default/disk@s", "other/copy"],
        &["which is default", "volume export"],
    );
    pond.refused(
        &["volume", "rename", "default/a/copy", "default/copy"],
        &["stays in default/a", "volume clone"],
    );
    pond.run(&["volume", "rename", "default/a/copy", "copied"]);
    pond.refused(&["volume", "snapshot", "rm", "default/disk@s"], &["volume flatten default/a/copied"]);
    names(&pond.run(&["volume", "info", "default/a/copied"]), &["clone of    default/disk@s"]);
    let copied = || pond.serve("default/a/copied").client().read(0, 8192).expect("it is served");
    assert!(copied() == content(0));
    pond.run(&["volume", "flatten", "default/a/copied"]);
    let file = pond.scratch().join("a.diff");
    pond.run(&["volume", "export", "other/a/disk@s", path(&file)]);
    pond.run(&["volume", "import", path(&file), "default/a/imported"]);
    assert!(pond.serve("default/a/imported").client().read(0, 8192).expect("it is served") == content(3));
    pond.run(&["volume", "meta", "set", "other/a/disk", "owner", "mail"]);
    assert_eq!(pond.run(&["volume", "meta", "get", "other/a/disk", "owner"]).trim(), "mail");
    pond.run(&["volume", "limit", "other/a/disk", "--iops", "5000"]);
    pond.run(&["volume", "resize", "other/a/disk", "128MiB"]);
    pond.run(&[
        "schedule",
        "create",
        "daily",
        "default/disk",
        "other/a/disk",
        "--every",
        "1d",
        "--keep",
        "2 last",
    ]);
    names(&pond.run(&["schedule", "info", "daily"]), &["default/disk", "other/a/disk"]);
    pond.run(&["schedule", "rm", "daily"]);

    // What is there is there after a restart, and goes on being apart.
    pond.down();
    pond.up();
    for (at, place) in PLACES.iter().enumerate() {
        assert!(pond.serve(place).client().read(0, 8192).expect("it is served") == content(at), "{place}");
    }
    let bench = ["bench", "--target", "volume:other/a/disk", "--rw", "randread", "--runtime", "1", "--json"];
    assert!(pond.run(&bench).contains("iops"));

    // A namespace goes when nothing is in it, the trash included.
    pond.refused(&["namespace", "rm", "other/a"], &["still holds 1 volumes, disk among them"]);
    pond.refused(&["pool", "rm", "other"], &["still holds"]);
    pond.run(&["volume", "rm", "other/a/disk"]);
    names(&pond.run(&["volume", "trash"]), &["NAMESPACE"]);
    pond.refused(&["namespace", "rm", "other/a"], &["disk (in the trash)"]);
    pond.refused(&["volume", "restore", "other/disk"], &["nothing other/disk in the trash"]);
    pond.run(&["volume", "restore", "other/a/disk"]);
    assert!(pond.serve("other/a/disk").client().read(0, 8192).expect("it is served") == content(3));
    pond.run(&["volume", "rm", "other/a/disk", "--now"]);
    pond.run(&["volume", "rm", "other/disk", "--now"]);
    assert!(
        pond.serve("disk").client().read(0, 8192).expect("it is served") == content(0),
        "it is the only one now"
    );
    pond.refused(&["pool", "rm", "other"], &["namespace rm other/a"]);
    pond.run(&["namespace", "rm", "other/a"]);
    pond.run(&["pool", "rm", "other"]);
    assert!(!pond.run(&["namespace", "ls"]).contains("other"));
}

#[test]
fn a_key_of_a_namespace_opens_the_volumes_in_it_and_no_other_s_by_osds_that_are_asked_for_these() {
    let pond = Pond::start("768MiB");
    for place in ["default/mine", "default/other"] {
        pond.run(&["namespace", "create", place]);
    }
    for volume in ["default/mine/v", "default/other/v", "default/v"] {
        pond.run(&["volume", "create", volume, "64MiB"]);
        pond.serve(volume).client().write(0, &[7; 4096]).expect("it lies within the volume");
    }
    let key = |name: &str, flags: &[&str]| {
        let file = path(&pond.scratch().join(format!("{name}.key"))).to_owned();
        pond.run(&[&["auth", "add", name, "--out", &file, "--pool", "default"], flags].concat());
        file
    };
    let writer = key("writer", &["--namespace", "mine", "--rw"]);
    let reader = key("reader", &["--namespace", "mine", "--ro"]);
    let whole = key("whole", &["--rw"]);
    pond.refused(
        &["auth", "add", "x", "--pool", "default", "--namespace", "nope", "--rw"],
        &["no namespace default/nope"],
    );
    pond.refused(&["auth", "add", "x", "--namespace", "mine", "--rw"], &["--pool"]);
    names(&pond.run(&["auth", "ls"]), &["read and write default/mine", "read default/mine"]);
    pond.refused(&["namespace", "rm", "default/mine"], &["still holds"]);

    // Whoever serves it has the registry's word for the volume, and OSDs have their own.
    for (volume, file, reads, writes) in [
        ("default/mine/v", &writer, true, true),
        ("default/mine/v", &reader, true, false),
        ("default/mine/v", &whole, true, true),
        ("default/other/v", &writer, false, false),
        ("default/other/v", &reader, false, false),
        ("default/v", &writer, false, false),
    ] {
        let door = pond.serve_with(volume, &["--key", file]);
        let mut client = door.client();
        let (read, written) = (client.read(0, 4096), client.write(4096, &[9; 4096]));
        let expected = if reads { Ok(vec![7; 4096]) } else { Err(EPERM) };
        assert_eq!(read.map_err(|refusal| refusal.code), expected, "{volume}");
        assert_eq!(
            written.map_err(|refusal| refusal.code),
            if writes { Ok(()) } else { Err(EPERM) },
            "{volume}"
        );
    }
    let door = pond.serve("default/other/v");
    assert_eq!(door.client().read(4096, 4096).expect("it is served"), vec![0; 4096], "nothing was written");
    drop(door);

    // A key that is removed opens nothing, and then nothing keeps the namespace.
    let door = pond.serve_with("default/mine/v", &["--key", &writer, "--timeout", "10s"]);
    let mut client = door.client();
    client.write(0, &[8; 4096]).expect("it may");
    pond.run(&["auth", "rm", "writer"]);
    wait_until("the removed key opens nothing", || client.write(0, &[6; 4096]).is_err());
    drop((client, door));
    pond.run(&["volume", "rm", "default/mine/v", "--now"]);
    pond.refused(
        &["namespace", "rm", "default/mine"],
        &["the key reader is for the namespace default/mine", "auth rm reader"],
    );
    pond.run(&["auth", "rm", "reader"]);
    pond.run(&["namespace", "rm", "default/mine"]);
    assert!(
        !millpond(&["--dir", path(&pond.dir()), "volume", "create", "default/mine/v", "64MiB"])
            .status
            .success()
    );
}
