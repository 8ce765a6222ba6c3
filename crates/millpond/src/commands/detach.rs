//! A cluster in the background: `up --detach` starts it and waits until it serves, `down` ends it.

use crate::host::access;
use crate::host::directory::{Directory, Holder, Phase};
use crate::host::supervisor;
use crate::output;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long `down` waits: longer than `up` waits for its nodes.
const DOWN_LIMIT: Duration = Duration::from_secs(40);

/// Starts an `up` that moves to a session of its own, so that Ctrl-C here does not reach it; shows what it says, and returns when the cluster serves.
pub fn start(directory: &Directory) -> anyhow::Result<()> {
    directory.prepare()?;
    // Tells at once who runs the cluster, if someone does. The background process takes it again.
    drop(directory.lock()?);
    let log_path = directory.up_log();
    let log = supervisor::open_log(&log_path)?;
    let mut said = File::open(&log_path).with_context(|| format!("cannot read {}", log_path.display()))?;
    said.seek(SeekFrom::End(0)).with_context(|| format!("cannot read {}", log_path.display()))?;
    // Called as this process was, but for the one word.
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|word| if word == "--detach" { "--detached".into() } else { word });
    let mut child = supervisor::start_in_background(arguments, log)?;
    loop {
        let ended = child.try_wait().context("cannot wait for the background process")?;
        let holder = directory.holder()?.filter(|holder| holder.pid == child.id());
        // After the look at both: all that they said before they changed is in the log by now.
        show_news(&mut said)?;
        if let Some(status) = ended {
            let code = status.code().map_or_else(|| status.to_string(), |code| format!("exit code {code}"));
            bail!("the cluster did not come up ({code}); what is said above is in {}", log_path.display());
        }
        if let Some(Holder { phase: Phase::Running, problem, .. }) = holder {
            match problem {
                None => return Ok(()),
                Some(problem) => bail!(
                    "the cluster runs in the background, but not everything serves: {problem}; \
                     `millpond status --dir {}` says what to do",
                    directory.given()
                ),
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Ends the cluster that is up in the directory at `path`, and waits until it has ended.
pub fn down(path: &Path) -> anyhow::Result<()> {
    let directory = Directory::new(path)?;
    let Some(holder) = directory.holder()? else {
        if !directory.has_cluster() {
            return access::no_cluster(&directory);
        }
        return output::print_line(&format!(
            "The cluster in {} is not up; nothing to stop.",
            directory.given()
        ));
    };
    let started = Instant::now();
    let mut asked = false;
    // While it tells how far it is, it is nameless for a moment.
    let is_same = |now: &Holder| holder.pid == 0 || now.pid == 0 || now.pid == holder.pid;
    while let Some(now) = directory.holder()?.filter(is_same) {
        if !asked && now.pid != 0 {
            asked = true;
            let pid = i32::try_from(now.pid).context("the lock file names an impossible process")?;
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)
                .with_context(|| format!("cannot ask process {pid} to end; it may belong to another user"))?;
        }
        if started.elapsed() > DOWN_LIMIT {
            bail!(
                "process {} still runs the cluster after {} s; read {}, or end it with `kill -9 {}`: \
                 what was acknowledged is safe",
                now.pid,
                DOWN_LIMIT.as_secs(),
                directory.up_log().display(),
                now.pid
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
    output::print_line(&format!("The cluster in {} has stopped.", directory.given()))
}

/// Shows what was appended to a log since it was read last.
fn show_news(log: &mut File) -> anyhow::Result<()> {
    let mut news = Vec::new();
    log.read_to_end(&mut news).context("cannot read the log of the background process")?;
    if news.is_empty() {
        return Ok(());
    }
    output::print(&String::from_utf8_lossy(&news))
}
