//! What happens to a subject while it is measured.

use super::{Host, filled_in};
use crate::archive::Happened;
use crate::plan::{Event, Plan, Point, Subject};
use crate::testbed::command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an event may take beyond the window.
const LIMIT: Duration = Duration::from_secs(600);

/// The events of one sample, on a thread of their own.
pub(super) struct Events {
    /// Dropped, it lets none begin any more.
    going_on: Sender<()>,
    thread: JoinHandle<Vec<Happened>>,
}

impl Events {
    /// Has them happen, each when it is due since now.
    pub(super) fn begin(
        plan: &Plan,
        host: &dyn Host,
        (subject, point): (&Subject, &Point),
        mark: &str,
        stopping: &Arc<AtomicBool>,
    ) -> Option<Events> {
        let is_meant = |event: &&Event| {
            event.is_of(point) && event.subject.as_ref().is_none_or(|name| *name == subject.name)
        };
        let mut due: Vec<(Duration, String, String)> = plan
            .events
            .iter()
            .filter(is_meant)
            .map(|event| (event.at, event.name.clone(), filled_in(&event.run, subject, host)))
            .collect();
        if due.is_empty() {
            return None;
        }
        due.sort();
        let (going_on, ended) = channel::<()>();
        let (began, mark, stopping) = (Instant::now(), mark.to_owned(), stopping.clone());
        let happen = move || {
            let mut happened = Vec::new();
            for (at, name, line) in due {
                let left = at.saturating_sub(began.elapsed());
                if ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                let at_s = began.elapsed().as_secs_f64();
                let failed = command::run_line(&line, &mark, LIMIT, &stopping).err();
                happened.push(Happened {
                    name,
                    at_s,
                    took_s: began.elapsed().as_secs_f64() - at_s,
                    failed: failed.map(|error| error.to_string()),
                });
            }
            happened
        };
        let thread = std::thread::Builder::new().name("events".to_owned()).spawn(happen).ok()?;
        Some(Events { going_on, thread })
    }

    /// What has happened, when what is under way has ended.
    pub(super) fn end(self) -> Vec<Happened> {
        drop(self.going_on);
        self.thread.join().unwrap_or_default()
    }
}
