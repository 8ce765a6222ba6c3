//! What a program in C is told, compiled with Debian's headers, while sanitizers look over its shoulder.

use super::{command, library};
use crate::common::pond::Pond;
use crate::common::random::Random;
use crate::common::whole::{OSDS, becomes_whole};
use crate::common::{has_package, path};
use crate::damage::spoil;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use testkit::prerequisites::installed;
use testkit::process::{run, text};

/// Where Debian has what programs are compiled with.
const HEADER: &str = "/usr/include/rbd/librbd.h";
/// How often an image is opened and closed, unless there is another number in this variable.
const OPENS: u32 = 500;
const OPENS_VARIABLE: &str = "MILLPOND_RBD_OPENS";
/// How long connecting to nobody may take: what the program asks for, and as long again.
const CONNECT_LIMIT: Duration = Duration::from_secs(6);

/// The program, if it can be had here. What is sanitized is told of memory that is used wrongly or never freed.
pub fn compiled(test: &str, scratch: &Path, library: &Path, is_sanitized: bool) -> Option<PathBuf> {
    if !(installed(test, &["gcc"]) && has_package(test, "librbd-dev", HEADER)) {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/rbd/library.c");
    let program = scratch.join("library");
    let mut arguments =
        vec!["-g", "-O1", "-Wall", "-Werror", "-Wno-deprecated-declarations", "-o", path(&program)];
    if is_sanitized {
        arguments.push("-fsanitize=address,undefined");
    }
    let libraries = ["librados.so.2", "librbd.so.1"].map(|name| library.join(name));
    arguments.push(path(&source));
    arguments.extend(libraries.iter().map(|library| path(library)));
    run("gcc", &arguments);
    Some(program)
}

struct Tried {
    pond: Pond,
    library: PathBuf,
    program: PathBuf,
}

impl Tried {
    fn new(test: &str, osd_size: &str, image_size: &str, is_sanitized: bool) -> Option<Tried> {
        let pond = Pond::start(osd_size);
        pond.volume("image", image_size);
        becomes_whole(&pond);
        let library = library(&pond);
        let program = compiled(test, pond.scratch(), &library, is_sanitized)?;
        Some(Tried { pond, library, program })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(path(&self.program), &self.library, &self.pond);
        command.args(arguments);
        command
    }

    #[track_caller]
    fn goes_well(&self, arguments: &[&str]) -> String {
        let output: Output = self.command(arguments).output().unwrap();
        let said = text(&output);
        assert!(output.status.success() && !said.lines().any(|line| line.starts_with("not ")), "{said}");
        said
    }
}

#[test]
fn errors_are_those_of_ceph_s_libraries_and_memory_is_used_as_it_should_be() {
    let Some(tried) = Tried::new("errors of librbd", "1GiB", "64MiB", true) else { return };
    let said = tried.goes_well(&["errors"]);
    assert!(said.matches("ok ").count() >= 50, "{said}");
}

#[test]
fn what_is_opened_and_closed_leaves_nothing_behind() {
    let Some(tried) = Tried::new("opens and closes by librbd", "1GiB", "64MiB", false) else { return };
    let opens = std::env::var(OPENS_VARIABLE).unwrap_or_else(|_| OPENS.to_string());
    let said = tried.goes_well(&["opens", &opens]);
    assert!(said.contains("ok memory"), "{said}");
}

#[test]
fn a_full_cluster_is_told_as_such() {
    let Some(tried) = Tried::new("a full cluster by librbd", "256MiB", "1GiB", false) else { return };
    tried.goes_well(&["fills"]);
}

#[test]
fn damage_that_no_copy_mends_is_told_and_its_drive_is_named() {
    let Some(tried) = Tried::new("damage by librbd", "256MiB", "64MiB", false) else { return };
    let pond = &tried.pond;
    let data = Random::seeded().bytes(4096);
    pond.serve("image").client().write(0, &data).unwrap();
    pond.down();
    (0..OSDS).for_each(|osd| spoil(pond, osd, &data));
    pond.up();
    becomes_whole(pond);
    let output = tried.command(&["reads"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "-5\n", "EIO");
    let logged = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(logged.starts_with("librbd: ") && logged.contains("osd."), "{logged}");
}

#[test]
fn a_cluster_that_is_away_is_not_waited_for_longer_than_was_asked() {
    let Some(tried) = Tried::new("an unreachable cluster by librbd", "256MiB", "64MiB", false) else {
        return;
    };
    assert_eq!(tried.goes_well(&["connect"]), "0\n");
    tried.pond.down();
    let began = Instant::now();
    assert_eq!(tried.goes_well(&["connect"]), "-110\n", "ETIMEDOUT");
    assert!(began.elapsed() < CONNECT_LIMIT, "{:?}", began.elapsed());
}
