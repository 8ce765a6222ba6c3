//! Programs that nobody here wrote.

use std::process::{Command, Output};

/// Runs a program and gives what came of it.
pub fn attempt(program: &str, arguments: &[&str]) -> Output {
    match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => panic!("{program} cannot be started: {error}"),
    }
}

/// Runs a program that must work, and gives its output.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = attempt(program, arguments);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// Gives this thread, and what it starts from now on, mounts of its own. Who makes a network namespace gets a copy of all
/// mounts, and a file system that is in such a copy stays mounted when it is unmounted here.
pub fn have_own_mounts() {
    use nix::mount::{MsFlags, mount};
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("root may have mounts of its own");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("they can be made private");
}

/// Gives programs another time of day, and leaves them the clock that nobody sets.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// The environment in which a program has another time of day: so much later or earlier, as `+7m` or `-90d`.
pub fn at_another_time(difference: &str) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", FAKETIME.to_owned()),
        ("FAKETIME", difference.to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        // It would leave files behind when a program is killed.
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ]
}
