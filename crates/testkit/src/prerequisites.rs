//! What tests need of the machine, and what is said where it is not there.
//!
//! A test that cannot run does not fail: a machine without root or without QEMU may still test the rest. But it never passes
//! in silence either. It is noted in the file that [`NOTED_IN`] names, which `make test` shows at its end, and it fails where
//! [`ALL_MUST_RUN`] is set, as continuous integration does.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Names the file that has a line for each test that did not run.
pub const NOTED_IN: &str = "MILLPOND_TESTS_LEFT_OUT";
/// Set where everything that tests need must be there.
pub const ALL_MUST_RUN: &str = "MILLPOND_TEST_ALL";

/// Says that a test is left out, and why.
///
/// # Panics
/// Where all tests must run.
pub fn not_tested(test: &str, why: &str) {
    assert!(std::env::var_os(ALL_MUST_RUN).is_none(), "not tested: {test}: {why}");
    let line = format!("not tested: {test}: {why}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os(NOTED_IN) {
        // One write, so that lines of tests that run beside each other stay whole.
        let noted = File::options().create(true).append(true).open(&path);
        noted.and_then(|mut file| file.write_all(line.as_bytes())).expect("what was left out can be noted");
    }
}

/// Whether all programs are installed; says so where they are not.
pub fn installed(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = |program: &str| path.split(':').any(|folder| Path::new(folder).join(program).exists());
    let missing: Vec<_> = programs.iter().copied().filter(|program| !found(program)).collect();
    if !missing.is_empty() {
        not_tested(test, &format!("{} not installed; `make deps` installs it", missing.join(", ")));
    }
    missing.is_empty()
}

/// Whether this is root; says so where it is not.
pub fn is_root(test: &str, for_what: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        not_tested(test, &format!("{for_what} needs root"));
    }
    is_root
}

/// Whether root can use a device of the kernel's here; says so where it is not so.
pub fn has_device(test: &str, device: &str) -> bool {
    let is_there = is_root(test, device) && Path::new(device).exists();
    if !is_there && nix::unistd::geteuid().is_root() {
        not_tested(test, &format!("{device} is not there"));
    }
    is_there
}
