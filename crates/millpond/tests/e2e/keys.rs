//! Keys: what each opens, and that it opens nothing once it is removed.

use crate::common::pond::Pond;
use crate::common::{names, path, wait_until};
use std::os::unix::fs::PermissionsExt;

/// What NBD says where something is not permitted.
const EPERM: u32 = 1;
const EIO: u32 = 5;

/// Makes a key and answers its file.
fn add(pond: &Pond, name: &str, flags: &[&str]) -> String {
    let file = path(&pond.scratch().join(format!("{name}.key"))).to_owned();
    let told = pond.run(&[&["auth", "add", name, "--out", &file], flags].concat());
    names(&told, &[name, &file]);
    file
}

#[test]
fn a_key_opens_what_it_was_made_for_until_it_is_removed() {
    let pond = Pond::start("768MiB");
    pond.run(&["pool", "create", "other"]);
    pond.volume("v", "64MiB");
    let writer = add(&pond, "vm-host", &["--pool", "default", "--rw"]);
    let reader = add(&pond, "backup", &["--pool", "default", "--pool", "other", "--ro"]);
    let stranger = add(&pond, "tenant", &["--pool", "other", "--rw"]);
    names(
        &pond.run(&["auth", "ls"]),
        &["vm-host", "read and write default", "read default, read other", "node.2", "admin"],
    );
    assert!(!pond.run(&["auth", "ls", "--json"]).contains("PRIVATE"));

    let door = pond.serve_with("v", &["--key", &reader]);
    let mut client = door.client();
    assert_eq!(client.read(0, 4096).unwrap(), vec![0; 4096]);
    assert_eq!(client.write(0, &[1; 4096]).unwrap_err().code, EPERM);
    assert_eq!(client.trim(0, 4096).unwrap_err().code, EPERM);
    drop((client, door));

    let door = pond.serve_with("v", &["--key", &stranger]);
    let mut client = door.client();
    assert_eq!(client.read(0, 4096).unwrap_err().code, EPERM);
    assert_eq!(client.write(0, &[1; 4096]).unwrap_err().code, EPERM);
    drop((client, door));

    let door = pond.serve_with("v", &["--key", &writer, "--timeout", "10s"]);
    let mut client = door.client();
    client.write(0, &[2; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), vec![2; 4096]);
    pond.run(&["auth", "rm", "vm-host"]);
    // Until every OSD has heard of it.
    wait_until("the removed key opens nothing", || match client.write(0, &[3; 4096]) {
        Ok(()) => false,
        Err(refusal) => refusal.code == EIO,
    });
    names(&door.log(), &["is not one of this cluster", "auth ls"]);
    drop((client, door));
    let door = pond.serve("v");
    assert_ne!(door.client().read(0, 4096).unwrap(), vec![0; 4096], "what was acknowledged is there");
}

#[test]
fn what_cannot_be_is_refused_in_words_and_leaves_no_key_behind() {
    let pond = Pond::start("768MiB");
    pond.volume("v", "64MiB");
    let file = pond.scratch().join("x.key");
    let out = path(&file);
    pond.refused(&["auth", "add", "x", "--out", out], &["--pool"]);
    pond.refused(&["auth", "add", "x", "--pool", "nowhere", "--rw", "--out", out], &["no pool nowhere"]);
    pond.refused(&["auth", "add", "a b", "--admin", "--out", out], &["\"a b\"", "characters"]);
    pond.refused(
        &["auth", "add", "admin", "--admin", "--out", out],
        &["a key admin already", "auth rm admin"],
    );
    pond.refused(&["auth", "rm", "nobody"], &["no key nobody", "auth ls"]);
    pond.refused(&["auth", "rm", "node.1"], &["node.1 is a node"]);
    assert!(!file.exists());
    add(&pond, "x", &["--admin"]);
    pond.refused(&["auth", "add", "y", "--admin", "--out", out], &["File exists", "--out"]);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let listen = format!("unix:{}", path(&pond.scratch().join("x.sock")));
    pond.refused(&["nbd", "v", "--key", out, "--listen", &listen], &["can be read by others", "chmod 600"]);
    // The keys of the cluster itself are nobody else's either.
    for key in ["admin.key", "node.0/node.key"] {
        let mode = std::fs::metadata(pond.dir().join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}
