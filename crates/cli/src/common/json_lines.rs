//! Lines of a server as JSON objects, for programs that collect logs.
//!
//! ```text
//! {"timestamp":"2026-11-29T10:00:00.000001Z","level":"WARN","message":"pool: its file system does not report errors"}
//! ```
//!
//! The log has the same objects, and its fields beside them ([`start_log`]).

use std::fmt::Arguments;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Whether messages and announcements of this process are JSON objects.
static IS_CHOSEN: AtomicBool = AtomicBool::new(false);

/// Format of the lines that a server writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

impl LogFormat {
    pub(crate) const ALL: [LogFormat; 2] = [LogFormat::Text, LogFormat::Json];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }

    pub(crate) const fn summary(self) -> &'static str {
        match self {
            LogFormat::Text => "For people",
            LogFormat::Json => {
                "A JSON object a line, on standard output too, for programs that collect logs"
            }
        }
    }
}

/// Starts the log on standard error. With [`LogFormat::Json`], all further lines of the process are JSON objects.
pub(crate) fn start_log(level: LevelFilter, format: LogFormat) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // The subscriber reports its own write errors on stderr, which is what it cannot write.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => {
            IS_CHOSEN.store(true, Ordering::Relaxed);
            log.json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .init();
        }
    }
}

/// Returns `text`, of one line, as a JSON object and a line end; `None` if the process writes plain text.
///
/// The word before the first colon gives the level, as in `warning: the pool is a copy`.
pub(crate) fn of(text: Arguments<'_>) -> Option<String> {
    if !IS_CHOSEN.load(Ordering::Relaxed) {
        return None;
    }
    let text = text.to_string();
    Some(object(&now(), text.trim_end()))
}

fn object(timestamp: &str, text: &str) -> String {
    let (level, message) = match text.split_once(": ") {
        Some(("error", message)) => (Level::ERROR, message),
        Some(("warning", message)) => (Level::WARN, message),
        _ if text.starts_with("damage: ") => (Level::ERROR, text),
        _ => (Level::INFO, text),
    };
    let [timestamp, level, message] =
        [timestamp, level.as_str(), message].map(serde_json::Value::from);
    format!("{{\"timestamp\":{timestamp},\"level\":{level},\"message\":{message}}}\n")
}

/// Returns the time as the log writes it.
fn now() -> String {
    let mut text = String::new();
    let written = SystemTime.format_time(&mut Writer::new(&mut text));
    written.expect("a string takes every text");
    text
}

#[cfg(test)]
mod tests {
    use super::{now, object};

    #[test]
    fn the_first_word_of_a_message_gives_its_level() {
        for (text, level, message) in [
            ("error: it fails: \"x\"", "ERROR", "it fails: \"x\""),
            ("warning: it is old", "WARN", "it is old"),
            ("damage: segment 3", "ERROR", "damage: segment 3"),
            ("pool p: 16 MiB", "INFO", "pool p: 16 MiB"),
        ] {
            let line = object("now", text);
            assert!(line.ends_with("}\n"), "{line}");
            let found: serde_json::Value = serde_json::from_str(&line).unwrap();
            let expected =
                serde_json::json!({ "timestamp": "now", "level": level, "message": message });
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_time_is_in_utc_with_microseconds() {
        let now = now();
        assert_eq!(now.len(), "2026-11-29T10:00:00.000001Z".len(), "{now}");
        assert!(now.ends_with('Z'), "{now}");
    }
}
