//! The wish to stop, as Ctrl-C, SIGTERM or a closed terminal express it.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears the signals that ask a process to end. Without it they would end it at once.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl StopSignals {
    /// From now on the signals are heard. Call it before there is anything to clean up.
    pub fn install() -> anyhow::Result<StopSignals> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(StopSignals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next of them. Dropping the future loses none.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}

/// Has `action` run, on a thread of its own, each time someone wishes this process to stop. For commands
/// whose main thread has other things to do than to wait for signals.
pub fn on_wish(mut action: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime that listens for signals")?;
    // Installed before the thread starts: from here on no signal ends the process by itself.
    let mut signals = runtime.block_on(async { StopSignals::install() })?;
    let listen = move || {
        runtime.block_on(async {
            loop {
                signals.wait().await;
                action();
            }
        });
    };
    std::thread::Builder::new()
        .name("stop-signals".to_owned())
        .spawn(listen)
        .context("cannot start the thread that listens for signals")?;
    Ok(())
}
