//! Takes a test's cluster down when the test is killed, and could not do so itself.

use super::{attempt, path};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Reads until its input ends, which it does with the test. Then it kills all that names the scratch directory in its command
/// line, and removes the directory.
const SCRIPT: &str = r#"cat > /dev/null; pkill -KILL -f -- "$1/"; sleep 0.2; rm -rf "$1""#;

/// See the module's documentation. Dropped, it does nothing: the test lives.
pub struct Guardian {
    child: Child,
    scratch: PathBuf,
}

impl Guardian {
    /// Watches over the cluster in `scratch`, whose processes all name something in it in their command lines.
    pub fn of(scratch: &Path) -> Guardian {
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "guardian", path(scratch)])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What kills the test's group leaves it.
            .process_group(0)
            .spawn()
            .expect("a shell can be started");
        Guardian { child, scratch: scratch.to_owned() }
    }

    /// Kills what the guardian would kill.
    pub fn kill_everything(&self) {
        attempt("pkill", &["-KILL", "-f", "--", &format!("{}/", path(&self.scratch))]);
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Before its input ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
