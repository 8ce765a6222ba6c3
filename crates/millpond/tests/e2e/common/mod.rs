//! What tests of the command have in common: clusters of its processes, clients of volumes, and what is done to them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

pub mod authority;
pub mod door;
pub mod fio;
pub mod guardian;
pub mod hosts;
pub mod http;
pub mod machine;
pub mod mounted;
pub mod nbd;
pub mod network;
pub mod pieces;
pub mod pond;
pub mod probe;
pub mod random;
pub mod raw;
pub mod replicas;
pub mod site;
pub mod time_of_day;
pub mod whole;

pub use testkit::process::{attempt, run, text};
pub use testkit::{PATIENCE, Process, wait_longer, wait_until};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command to its end, on no cluster in particular.
pub fn millpond(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the command can be started")
}

/// The command, free of what the environment would add.
pub fn command(arguments: &[&str]) -> Command {
    free(Command::new(env!("CARGO_BIN_EXE_millpond")), arguments)
}

/// The same for what starts nodes, which comes before programs that compute: nodes that are starved lose their leases, and
/// that is not what is tested.
pub fn urgent_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(URGENT[0]);
    command.args(&URGENT[1..]).arg(env!("CARGO_BIN_EXE_millpond"));
    free(command, arguments)
}

/// Stands before a command line that is urgent. Who is not root is told that it is not, and goes on. Where the kernel shares
/// processors by sessions (`sched_autogroup`), what starts nodes has a share of its own anyway, and this does nothing.
pub const URGENT: [&str; 3] = ["nice", "-n", "-10"];

fn free(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments).env_remove("MILLPOND_DIR").env_remove("MILLPOND_LOG");
    command
}

/// Asserts that a message names what it must.
#[track_caller]
pub fn names(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Whether a package of Debian's is installed, of which this file tells; says so where it is not.
pub fn has_package(test: &str, package: &str, file: &str) -> bool {
    let has_it = Path::new(file).exists();
    if !has_it {
        testkit::prerequisites::not_tested(
            test,
            &format!("{package} is not installed; `make test-deps` installs it"),
        );
    }
    has_it
}

/// A path as an argument.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("scratch paths are text")
}

/// A directory on a real drive, where direct I/O works, that goes away with the test.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("e2e-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a scratch directory can be made")
}

/// Does something when it is dropped.
pub struct OnDrop<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Gives this thread, and what it starts from now on, mounts of its own. Who makes a network namespace gets a copy of all
/// mounts, and a file system that is in such a copy stays mounted when it is unmounted here.
pub fn have_own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).expect("root may have mounts of its own");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("they can be made private");
}
