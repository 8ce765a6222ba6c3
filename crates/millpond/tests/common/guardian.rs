//! Takes a test's cluster down when the test is killed, and could not do so itself.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Reads process ids until its input ends, which it does with the test. Then it kills those that still belong to the
/// scratch directory (a number may be another process's by then), stops the cluster and removes the directory.
const SCRIPT: &str = r#"
pids=
while read -r pid; do pids="$pids $pid"; done
for pid in $pids; do
    if tr '\0' ' ' < "/proc/$pid/cmdline" | grep -qF "$2"; then kill -KILL "$pid"; fi
done
"$1" down --dir "$2/p"
rm -rf "$2"
"#;

/// See the module's documentation. Dropped, it does nothing: the test lives.
pub struct Guardian {
    child: Child,
    pids: Mutex<Option<ChildStdin>>,
}

impl Guardian {
    /// Watches over the cluster in the directory `p` of `scratch`.
    pub fn of(scratch: &Path) -> Guardian {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "guardian", env!("CARGO_BIN_EXE_millpond")])
            .arg(scratch)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What kills the test's group leaves it.
            .process_group(0)
            .spawn()
            .expect("a shell can be started");
        let pids = Mutex::new(child.stdin.take());
        Guardian { child, pids }
    }

    /// A process that is to end with the test too. Its command line names something in the scratch directory.
    pub fn watch(&self, pid: u32) {
        let mut pids = self.pids.lock().unwrap_or_else(PoisonError::into_inner);
        let pids = pids.as_mut().expect("it is taken when the guardian is dropped");
        writeln!(pids, "{pid}").expect("the guardian reads");
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Before its input ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
