//! What programs link is there, by name and version.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::prerequisites::not_tested;

/// This library, where its tests are built.
fn own() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libcapi.so")
}

/// The library that this machine's programs have by that name.
fn installed(name: &str) -> Option<PathBuf> {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = listed.lines().find(|line| line.trim().starts_with(name))?;
    Some(PathBuf::from(line.rsplit_once("=> ")?.1))
}

/// Symbols of C's that a library gives to programs. Behind an `@@` stands the version of those that have one.
fn symbols(library: &Path, prefix: &str) -> BTreeSet<String> {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    assert!(listed.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = names.lines().filter_map(|line| line.split_whitespace().nth(2));
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    // What has a version for programs that are linked now may stand there for older ones too. Versions have names themselves.
    let is_older =
        |name: &str| names.iter().any(|other| other.split_once("@@").is_some_and(|(other, _)| other == name));
    let is_of_c =
        |name: &&String| name.starts_with(prefix) && !name.starts_with("LIBRADOS_") && !is_older(name);
    names.iter().filter(is_of_c).cloned().collect()
}

#[test]
fn every_function_that_debian_s_libraries_have_is_there() {
    for (name, prefix) in [("librbd.so.1", "rbd_"), ("librados.so.2", "rados_")] {
        let Some(library) = installed(name) else {
            not_tested(
                "symbols of Ceph's libraries",
                &format!("{name} is not installed; `make test-deps` installs it"),
            );
            continue;
        };
        let theirs = symbols(&library, prefix);
        assert!(theirs.len() > 200, "{}", theirs.len());
        let own = symbols(&own(), prefix);
        let missing: Vec<&String> = theirs.difference(&own).collect();
        let surplus: Vec<&String> = own.difference(&theirs).collect();
        assert!(missing.is_empty() && surplus.is_empty(), "missing: {missing:?}, not known: {surplus:?}");
    }
}

#[test]
fn nothing_else_is_given_to_programs() {
    let all = symbols(&own(), "");
    let other: Vec<&String> =
        all.iter().filter(|name| !name.starts_with("rbd_") && !name.starts_with("rados_")).collect();
    assert!(other.is_empty(), "{other:?}");
}
