//! The log: to the journal if systemd started the process, else to standard error.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use systemd_journal_logger::{JournalLog, connected_to_journal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt as format;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::util::SubscriberInitExt;

use super::event_name::WithEventName;
use super::journal::JournaldLayer;
use crate::toml_check::from_text;

/// The section `[log]` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    pub format: LogFormat,
    /// The events that are logged.
    pub level: LogLevel,
}

/// The destination and the form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// The journal if standard error is connected to it, else text.
    #[default]
    Auto,
    /// The systemd journal, with a journal field for each field of an event.
    Journal,
    /// Lines of text, on standard error.
    Text,
    /// One JSON object a line, on standard error.
    Json,
}

/// The events that are logged: a level, or levels by target, as in `info,ledge::http=debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevel(String);

impl LogLevel {
    fn filter(&self, is_watched: bool) -> Result<Targets, LoggingError> {
        let levels = if is_watched { self.without_records() } else { self.0.clone() };
        by_crate(&levels).parse().map_err(|source| LoggingError::Level { level: self.clone(), source })
    }

    /// The levels without the records of the audit log, unless these are named: on a terminal each event would appear
    /// twice, once as a message and once as a record.
    fn without_records(&self) -> String {
        let asks = self.0.split(',').any(|part| part.starts_with(AUDIT_TARGET));
        if asks { self.0.clone() } else { format!("{},{AUDIT_TARGET}=off", self.0) }
    }
}

/// The parts of Ledge by their names in a level (`ledge::http=debug`), with the targets of their events, if these do
/// not begin with `ledge_` and the name.
const PARTS_ELSEWHERE: [(&str, &[&str]); 7] = [
    ("fleet", &["ledge_updates::report", "ledge_updates::rollout"]),
    ("inference", &["ledge_engine", "ledge_models::scheduling"]),
    ("pipeline", &["ledge_engine::pipeline"]),
    ("repository", &["ledge_models::repository"]),
    ("serving", &["ledge_models::serving"]),
    ("shutdown", &["ledge_service::shutdown"]),
    ("telemetry", &["ledge_base::telemetry"]),
];

/// The parts that are modules of the crate `ledge` itself.
const PARTS_OF_THE_ROOT: [&str; 3] = ["cli", "config", "daemon"];

/// Replaces the names of parts by the targets of their crates: `ledge::http=debug` becomes `ledge_http=debug`.
fn by_crate(levels: &str) -> String {
    let directive = |directive: &str| {
        let Some(rest) = directive.strip_prefix("ledge::") else { return directive.to_owned() };
        let end = rest.find([':', '=']).unwrap_or(rest.len());
        let (part, rest) = rest.split_at(end);
        if PARTS_OF_THE_ROOT.contains(&part) {
            return directive.to_owned();
        }
        match PARTS_ELSEWHERE.iter().find(|(name, _)| *name == part) {
            Some((_, targets)) => targets.iter().map(|target| format!("{target}{rest}")).collect::<Vec<_>>().join(","),
            None => format!("ledge_{part}{rest}"),
        }
    };
    levels.split(',').map(directive).collect::<Vec<_>>().join(",")
}

/// The target of the audit log's records.
const AUDIT_TARGET: &str = "audit";

impl Default for LogLevel {
    fn default() -> Self {
        Self("info".into())
    }
}

/// A text that is not a log level.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected off, error, warn, info, debug or trace, or TARGET=LEVEL, separated by commas, got {text:?}")]
pub struct InvalidLogLevel {
    text: String,
}

impl FromStr for LogLevel {
    type Err = InvalidLogLevel;

    fn from_str(text: &str) -> Result<Self, InvalidLogLevel> {
        // A filter reads a single word as a target and logs everything of it, so a misspelt level would turn off all
        // other targets.
        let is_level = |word: &str| !word.is_empty() && word.parse::<tracing::level_filters::LevelFilter>().is_ok();
        let is_known = |part: &str| match part.split_once('=') {
            Some((target, level)) => !target.is_empty() && !target.contains('[') && is_level(level),
            None => is_level(part),
        };
        if !text.split(',').all(is_known) {
            return Err(InvalidLogLevel { text: text.chars().take(80).collect() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LogLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Serialize for LogLevel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The reason why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("log level {level} cannot be used")]
    Level { level: LogLevel, source: tracing_subscriber::filter::ParseError },
    #[error("the log is already set up")]
    AlreadySet(#[source] tracing_subscriber::util::TryInitError),
}

/// Sets up the log of this process, once. Records of the crate `log` are included.
///
/// If the journal cannot be reached, the log goes to standard error as text, and its first line says so.
pub fn init(config: &LogConfig) -> Result<(), LoggingError> {
    let (output, no_journal) = output(config.format);
    let is_text = match config.format {
        LogFormat::Auto => !connected_to_journal(),
        LogFormat::Text => true,
        LogFormat::Journal => no_journal.is_some(),
        LogFormat::Json => false,
    };
    let filter = config.level.filter(is_text && std::io::stderr().is_terminal())?;
    tracing_subscriber::registry().with(output.with_filter(filter)).try_init().map_err(LoggingError::AlreadySet)?;
    if let Some(error) = no_journal {
        tracing::warn!(%error, "the journal cannot be reached: logging to standard error instead");
    }
    Ok(())
}

type LogLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The layer that writes, and the error if it should have been the journal.
fn output(format: LogFormat) -> (LogLayer, Option<std::io::Error>) {
    match format {
        LogFormat::Auto if connected_to_journal() => output(LogFormat::Journal),
        LogFormat::Auto | LogFormat::Text => (text(), None),
        LogFormat::Json => (json().with_writer(std::io::stderr).boxed(), None),
        LogFormat::Journal => match JournalLog::empty() {
            Ok(journal) => (JournaldLayer(journal.with_syslog_identifier("ledge".into())).boxed(), None),
            Err(error) => (text(), Some(error)),
        },
    }
}

type JsonFormat = WithEventName<format::format::Format<format::format::Json>>;

fn json<S>() -> format::Layer<S, format::format::JsonFields, JsonFormat>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let json = format::layer().json().flatten_event(true).with_current_span(true).with_span_list(false);
    json.map_event_format(WithEventName)
}

fn text() -> LogLayer {
    // See https://no-color.org.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    format::layer().with_ansi(colours).with_writer(|| OneLineWriter(io::stderr())).boxed()
}

/// A log in which each event is one line, regardless of its texts: some come from processes that run foreign code, and
/// their text must not look like a line of Ledge. The journal and JSON keep them apart by themselves.
struct OneLineWriter<W>(W);

impl<W: Write> Write for OneLineWriter<W> {
    /// Writes an event, which comes as a whole.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = event.strip_suffix(b"\n").map_or((event, &b""[..]), |text| (text, &b"\n"[..]));
        if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in text {
            match byte {
                b'\n' => line.extend(b"\\n"),
                b'\r' => line.extend(b"\\r"),
                byte => line.push(*byte),
            }
        }
        line.extend(end);
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::journal::tests::Captured;

    #[test]
    fn a_level_is_a_level_or_levels_by_target() {
        for good in ["info", "off", "WARN", "info,ledge::http=debug", "warn,ort=error"] {
            assert!(good.parse::<LogLevel>().is_ok(), "{good}");
        }
        for bad in
            ["", "inof", "ledge", "info,", "info,verbose", "warn, info", "ledge=loud", "=,=", "ledge[span]=trace"]
        {
            assert!(bad.parse::<LogLevel>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_event_with_several_lines_of_text_is_one_line_of_the_log() {
        let mut log = OneLineWriter(Vec::new());
        for event in ["WARN a line\n", "WARN said=x\r\n2026-01-01 ERROR forged\n"] {
            log.write_all(event.as_bytes()).unwrap();
        }
        let expected = "WARN a line\nWARN said=x\\r\\n2026-01-01 ERROR forged\n";
        assert_eq!(String::from_utf8(log.0).unwrap(), expected);
    }

    #[test]
    fn a_terminal_shows_no_records_beside_their_events_unless_they_are_asked_for() {
        let shown = |level: &str| LogLevel(level.to_owned()).without_records();
        assert_eq!(shown("info"), "info,audit=off");
        assert_eq!(shown("info,ledge::http=debug"), "info,ledge::http=debug,audit=off");
        for asked in ["info,audit=debug", "audit=info,warn"] {
            assert_eq!(shown(asked), asked);
        }
    }

    #[test]
    fn a_level_names_a_part_whatever_crate_it_is_in() {
        for (given, filter) in [
            ("info", "info"),
            ("info,ledge::http=debug", "info,ledge_http=debug"),
            ("info,ledge::http::tls=debug,ort=warn", "info,ledge_http::tls=debug,ort=warn"),
            ("ledge::repository::loads=trace", "ledge_models::repository::loads=trace"),
            ("ledge::inference=debug", "ledge_engine=debug,ledge_models::scheduling=debug"),
            ("info,ledge::shutdown=off", "info,ledge_service::shutdown=off"),
            ("ledge::fleet=debug", "ledge_updates::report=debug,ledge_updates::rollout=debug"),
            ("ledge::daemon=debug,ledge=warn", "ledge::daemon=debug,ledge=warn"),
        ] {
            assert_eq!(by_crate(given), filter);
        }
    }

    #[test]
    fn a_line_of_json_has_the_name_of_its_event_if_the_source_gives_one() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let layer = json().with_writer(log.reopen().unwrap());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let _span = tracing::info_span!("call", model = "resnet").entered();
            tracing::info!(name: "update.committed", version = 2, "update committed");
            tracing::info!(version = 3, "no name");
        });
        let log = std::fs::read_to_string(log.path()).unwrap();
        let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [named, unnamed] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&named["event_name"], &named["version"]), (&"update.committed".into(), &2.into()), "{named}");
        assert_eq!(named["message"], "update committed", "{named}");
        assert_eq!((unnamed.get("event_name"), &unnamed["version"]), (None, &3.into()), "{unnamed}");
    }

    /// One test, because a process has one log.
    #[test]
    fn records_of_the_crate_log_keep_their_origin_and_a_second_log_is_refused() {
        let captured = Captured::default();
        let layer = JournaldLayer(captured.clone()).with_filter("off,sled=warn".parse::<Targets>().unwrap());
        tracing_subscriber::registry().with(layer).try_init().unwrap();
        log::warn!(target: "sled", "slow");
        log::info!(target: "sled", "not worth a line");
        log::error!(target: "other", "not asked for");
        assert_eq!(*captured.0.lock().unwrap(), ["WARN sled src/base/telemetry/logging.rs a line : slow"]);
        assert!(matches!(init(&LogConfig::default()), Err(LoggingError::AlreadySet(_))));
    }

    #[test]
    fn without_a_journal_the_log_is_text_and_says_why() {
        let there = std::path::Path::new("/run/systemd/journal/socket").exists();
        assert!(there || output(LogFormat::Journal).1.is_some());
        assert!(output(LogFormat::Text).1.is_none());
    }
}
