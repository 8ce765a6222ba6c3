//! Where logs go: to stderr, and what a node should tell the manager into the process's own memory.

use crate::output;
use crate::output::time::since_1970;
use manager::log::{LogLevel, ProcessLog};
use std::fmt::Write;
use std::io::IsTerminal;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Logs to stderr what `MILLPOND_LOG` lets pass (default: warnings of everything, information of a node), as text, or as one
/// JSON object a line if `MILLPOND_LOG_FORMAT` is `json`. Answers where the newest of it is kept.
pub fn start() -> ProcessLog {
    let filter = EnvFilter::try_from_env("MILLPOND_LOG").unwrap_or_else(|_| EnvFilter::new("warn,node=info"));
    let format = std::env::var("MILLPOND_LOG_FORMAT").unwrap_or_default();
    let stderr = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let stderr = match format.as_str() {
        "json" => stderr.json().boxed(),
        _ => stderr.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    let log = ProcessLog::default();
    let kept = ToProcessLog(log.clone()).with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(filter).with(stderr).with(kept).init();
    if !["", "text", "json"].contains(&format.as_str()) {
        output::warning(&format!(
            "MILLPOND_LOG_FORMAT is {format:?}; it may be text or json, so this is text"
        ));
    }
    log
}

/// Keeps what is logged in the process's memory.
struct ToProcessLog(ProcessLog);

impl<S: Subscriber> Layer<S> for ToProcessLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warn,
            _ => LogLevel::Info,
        };
        let mut words = Words::default();
        event.record(&mut words);
        let at = since_1970();
        let text = words.message + &words.fields;
        self.0.add(at.as_millis() as u64, level, event.metadata().target(), &text);
    }
}

/// An event in words.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into memory does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_kept_in_words_with_its_fields() {
        let log = ProcessLog::default();
        let kept = ToProcessLog(log.clone()).with_filter(LevelFilter::INFO);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(kept), || {
            let error = "no such file";
            tracing::warn!(osd = %base::OsdId(3), path = "/dev/x", found = 2, %error, "blocks are {}", "damaged");
            tracing::debug!("of no interest to others");
            tracing::error!(target: "store", "it failed");
        });
        let records = log.after(0);
        assert_eq!(records.len(), 2, "{records:?}");
        assert_eq!(
            records[0].text,
            r#"blocks are damaged osd=osd.3 path="/dev/x" found=2 error=no such file"#
        );
        assert_eq!((records[0].level, records[0].number), (LogLevel::Warn, 1));
        assert!(records[0].source.ends_with("logging::tests") && records[0].at_ms > 1_700_000_000_000);
        assert_eq!((records[1].level, records[1].source.as_str()), (LogLevel::Error, "store"));
    }
}
