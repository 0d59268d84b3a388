//! Logging to standard error: text on a terminal, JSON otherwise.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use crate::api_server;
use crate::missing_rights::MissingRights;
use crate::text::log_line;

/// The client library logs each retry of a failed request, and warns with the complete text of an answer that it
/// cannot parse, such as a list of all nodes. nodegate logs errors where it handles them.
const LIBRARIES: &str = "kube_client=off";

/// Maximum length of an error in a log line, in bytes. Errors of parsers and of the API server can repeat their
/// input.
const BRIEF_MAX: usize = 512;

/// Truncates an error for a log line, an event or a report to 512 bytes.
pub fn brief(error: impl fmt::Display) -> String {
    struct Brief(String);
    impl fmt::Write for Brief {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = BRIEF_MAX - self.0.len();
            if text.len() <= left {
                self.0.push_str(text);
                return Ok(());
            }
            self.0.push_str(&text[..text.floor_char_boundary(left)]);
            Err(fmt::Error)
        }
    }
    let mut brief = Brief(String::new());
    if write!(brief, "{error}").is_err() {
        brief.0.push('…');
    }
    brief.0
}

/// An invalid log level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value:?}: {why}")]
pub struct LevelError {
    name: &'static str,
    value: String,
    why: String,
}

/// The filter from `RUST_LOG` (if set) or `LOG_LEVEL`. `LOG_LEVEL` accepts Python's names and numbers, as the label
/// operator did, and `TRACE`. `DEBUG` and `TRACE` are about nodegate's own lines; `RUST_LOG` can ask libraries for more
/// than INFO too.
///
/// # Errors
/// Returns an error if the value is invalid.
pub fn filter(rust_log: Option<&str>, log_level: Option<&str>) -> Result<EnvFilter, LevelError> {
    if let Some(value) = rust_log.filter(|value| !value.is_empty()) {
        let fault = |error: tracing_subscriber::filter::ParseError| LevelError {
            name: "RUST_LOG",
            value: value.to_owned(),
            why: error.to_string(),
        };
        return EnvFilter::try_new(value).map_err(fault);
    }
    let value = log_level.unwrap_or_default().trim();
    let level = match value.to_ascii_uppercase().as_str() {
        "" | "INFO" | "20" => "info",
        "TRACE" | "5" => "info,nodegate=trace",
        "DEBUG" | "10" | "NOTSET" | "0" => "info,nodegate=debug",
        "WARNING" | "WARN" | "30" => "warn",
        "ERROR" | "40" | "CRITICAL" | "FATAL" | "50" => "error",
        _ => {
            let why = "expected DEBUG, INFO, WARNING, ERROR or CRITICAL".to_owned();
            return Err(LevelError { name: "LOG_LEVEL", value: value.to_owned(), why });
        }
    };
    Ok(EnvFilter::new(format!("{level},{LIBRARIES}")))
}

/// Writes each event as one line, and escapes every character that a terminal would interpret. Therefore logs have no
/// colors: at this point nodegate's own escape sequences cannot be told from others.
struct Lines<W>(W);

impl<W: io::Write> io::Write for Lines<W> {
    /// Receives a complete event from the formatting layer.
    ///
    /// An event that cannot be written, for example to a full disk, is lost: the formatting layer would report the error
    /// on standard error, and panic because that cannot be written either.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let _ = self.0.write_all(log_line(&text).as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Leaves out what an outage of the API server explains: warnings and errors about requests, whose text is in the field
/// `error`. [`api_server`] reports the outage itself.
struct DuringOutage {
    is_failing: fn() -> bool,
}

/// The parts that report errors of requests to the API server.
const REQUESTERS: [&str; 6] = [
    "nodegate_controller",
    "nodegate_stores::certificates",
    "nodegate_stores::inventory::stored",
    "nodegate_stores::machines",
    "nodegate_stores::state",
    "kube_lease_manager",
];

impl<S: Subscriber> Layer<S> for DuringOutage {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let is_explained = *metadata.level() <= Level::WARN
            && metadata.fields().field("error").is_some()
            && REQUESTERS.iter().any(|requester| metadata.target().starts_with(requester));
        // Who looks into nodegate wants to see all of them.
        let is_wanted = || LevelFilter::current() >= LevelFilter::DEBUG;
        !is_explained || is_wanted() || !(self.is_failing)()
    }
}

/// Sends logs to standard error. A second call has no effect.
pub fn init(filter: EnvFilter) {
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines(io::stderr()));
    let outage = DuringOutage { is_failing: api_server::is_failing };
    let started = if std::io::stderr().is_terminal() {
        builder.with_target(false).with_ansi(false).finish().with(outage).with(MissingRights::default()).try_init()
    } else {
        builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .finish()
            .with(outage)
            .with(MissingRights::default())
            .try_init()
    };
    // Only a second subscriber in one process fails, and then the first one stays.
    drop(started);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The output of the text format for a field with this text, for each way of recording fields.
    fn logged(hostile: &str) -> String {
        let written = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl io::Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                io::Write::write(&mut *self.0.lock().unwrap(), bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let shared = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || Lines(Shared(shared.clone())))
            .without_time()
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(text = hostile, shown = %hostile, debug = ?hostile, "{hostile}");
        });
        let bytes = written.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_text_from_a_node_is_logged_on_one_line_without_escape_sequences() {
        let text = logged("evil\u{1b}[2J\u{1b}]0;title\u{7}\r\u{9b}31m\u{202e}\nWARN forged");
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
    }

    #[test]
    fn an_event_that_cannot_be_written_is_no_error() {
        struct Full;
        impl io::Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::StorageFull.into())
            }
        }
        assert_eq!(io::Write::write(&mut Lines(Full), b"event").unwrap(), 5);
        assert_eq!(io::Write::write(&mut Lines(Full), b"event").unwrap(), 5, "the next one is tried, too");
    }

    #[test]
    fn what_an_outage_explains_is_left_out_and_everything_else_is_logged() {
        #[derive(Clone, Default)]
        struct Seen(std::sync::Arc<std::sync::Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Seen {
            fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
                self.0.lock().unwrap().push(event.metadata().target().to_owned());
            }
        }
        let logged = |is_failing: fn() -> bool| {
            let seen = Seen::default();
            let subscriber = tracing_subscriber::registry()
                .with(LevelFilter::INFO)
                .with(seen.clone())
                .with(DuringOutage { is_failing });
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(target: "nodegate_controller::node::queue", error = "refused", "a request failed");
                tracing::error!(target: "nodegate_controller::leader", error = "refused", "a request failed");
                tracing::warn!(target: "nodegate_controller::leader", "no error");
                tracing::info!(target: "nodegate_controller::node::queue", error = "x", "not a failure");
                tracing::error!(target: "nodegate::cli::run::serve", error = "x", "not a request");
            });
            seen.0.lock().unwrap().len()
        };
        assert_eq!((logged(|| true), logged(|| false)), (3, 5));
    }

    #[test]
    fn an_error_that_repeats_an_object_is_truncated() {
        assert_eq!(brief("short"), "short");
        let told = brief(format!("invalid type: string {:?}", "ü".repeat(1_000_000)));
        assert!(told.starts_with("invalid type: string") && told.ends_with('…') && told.len() < 600, "{}", told.len());
    }

    #[test]
    fn log_level_accepts_pythons_names() {
        for (name, level) in [("WARNING", "warn"), ("warning", "warn"), ("CRITICAL", "error"), ("", "info")] {
            assert_eq!(filter(None, Some(name)).unwrap().to_string(), format!("kube_client=off,{level}"), "{name}");
        }
        for (name, level) in [("10", "debug"), ("Debug", "debug"), ("trace", "trace")] {
            let expected = format!("kube_client=off,nodegate={level},info");
            assert_eq!(filter(None, Some(name)).unwrap().to_string(), expected, "libraries log as by default: {name}");
        }
        let error = filter(None, Some("LOUD")).unwrap_err().to_string();
        assert!(error.contains("LOG_LEVEL") && error.contains("WARNING"), "{error}");
        assert_eq!(filter(Some("nodegate=trace"), Some("ERROR")).unwrap().to_string(), "nodegate=trace");
    }
}
