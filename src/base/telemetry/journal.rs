//! Turns `tracing` events into journal entries whose fields can be searched: `journalctl MODEL=resnet`.
//!
//! systemd-journal-logger is a backend of the crate `log`. The layer here hands it one record an event, with the fields
//! of the event and of the spans around it as key-values. It writes each key as a journal field: in upper case, with
//! underscores for other characters, cut to 64 bytes. The message repeats the fields of the event, because `journalctl`
//! shows no fields by default.

use std::fmt::{Debug, Write as _};

use log::{Log, Record};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::event_name::{JOURNAL_FIELD, event_name};

/// Journal fields that the backend fills itself. They would hide a field of an event with the same name.
const FILLED_BY_BACKEND: [&str; 8] =
    ["MESSAGE", "PRIORITY", "TARGET", "CODE_FILE", "CODE_LINE", "CODE_MODULE", "SYSLOG_PID", "SYSLOG_IDENTIFIER"];

/// A layer that sends every event to a `log` backend.
pub struct JournaldLayer<L>(pub L);

/// The fields of an event or a span.
#[derive(Default)]
struct EventFields {
    message: String,
    /// The fields in the order of the source, for the message.
    told: String,
    pairs: Vec<(String, String)>,
    /// The target of a record of the crate `log`: `tracing` has its target, module, file and line only as fields.
    target: Option<String>,
    module: Option<String>,
    file: Option<String>,
    line: Option<u32>,
}

impl EventFields {
    fn put(&mut self, name: &str, value: String) {
        match name {
            "message" => self.message = value,
            "log.target" => self.target = Some(value),
            "log.module_path" => self.module = Some(value),
            "log.file" => self.file = Some(value),
            "log.line" => self.line = value.parse().ok(),
            name => {
                let gap = if self.told.is_empty() { "" } else { " " };
                // Writing to a text cannot fail.
                let _ = write!(self.told, "{gap}{name}={value}");
                let upper = name.to_ascii_uppercase();
                let name = if FILLED_BY_BACKEND.contains(&upper.as_str()) { format!("FIELD_{upper}") } else { upper };
                match self.pairs.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, old)) => *old = value,
                    None => self.pairs.push((name, value)),
                }
            }
        }
    }

    /// The separator between the message and the fields.
    fn gap(&self) -> &'static str {
        if self.message.is_empty() || self.told.is_empty() { "" } else { " " }
    }

    /// Adds the fields of an outer span that inner ones do not have: `journalctl` shows the first one of a name.
    fn add_outer(&mut self, outer: &Self) {
        for (name, value) in &outer.pairs {
            if !self.pairs.iter().any(|(known, _)| known == name) {
                self.pairs.push((name.clone(), value.clone()));
            }
        }
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.to_owned());
    }
}

impl log::kv::Source for EventFields {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn log::kv::VisitSource<'kvs>) -> Result<(), log::kv::Error> {
        self.pairs.iter().try_for_each(|(name, value)| {
            visitor.visit_pair(log::kv::Key::from_str(name), log::kv::Value::from(value.as_str()))
        })
    }
}

impl<S, L> Layer<S> for JournaldLayer<L>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    L: Log + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = EventFields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &tracing::span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<EventFields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<EventFields>() {
                fields.add_outer(outer);
            }
        }
        let metadata = event.metadata();
        if let Some(name) = event_name(metadata) {
            // Not in the message: people read that.
            fields.pairs.push((JOURNAL_FIELD.to_owned(), name.to_owned()));
        }
        self.0.log(
            &Record::builder()
                .level(level(*metadata.level()))
                .target(fields.target.as_deref().unwrap_or(metadata.target()))
                .module_path(fields.module.as_deref().or(metadata.module_path()))
                .file(fields.file.as_deref().or(metadata.file()))
                .line(fields.line.or(metadata.line()))
                .args(format_args!("{}{}{}", fields.message, fields.gap(), fields.told))
                .key_values(&fields)
                .build(),
        );
    }
}

fn level(level: Level) -> log::Level {
    match level {
        Level::ERROR => log::Level::Error,
        Level::WARN => log::Level::Warn,
        Level::INFO => log::Level::Info,
        Level::DEBUG => log::Level::Debug,
        Level::TRACE => log::Level::Trace,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Keeps each record as one line.
    #[derive(Debug, Clone, Default)]
    pub struct Captured(pub Arc<Mutex<Vec<String>>>);

    impl Log for Captured {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            struct LoggedPairs(Vec<String>);
            impl<'kvs> log::kv::VisitSource<'kvs> for LoggedPairs {
                fn visit_pair(&mut self, k: log::kv::Key<'kvs>, v: log::kv::Value<'kvs>) -> Result<(), log::kv::Error> {
                    self.0.push(format!("{k}={v}"));
                    Ok(())
                }
            }
            let mut pairs = LoggedPairs(Vec::new());
            record.key_values().visit(&mut pairs).unwrap();
            let file = record.file().unwrap_or("-");
            let line = record.line().map_or("no line", |_| "a line");
            let (level, target, pairs) = (record.level(), record.target(), pairs.0.join(" "));
            let entry = format!("{level} {target} {file} {line} {pairs}: {}", record.args());
            self.0.lock().unwrap().push(entry);
        }

        fn flush(&self) {}
    }

    fn check(act: impl FnOnce(), expected: &str) {
        let captured = Captured::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(JournaldLayer(captured.clone())), act);
        assert_eq!(*captured.0.lock().unwrap(), [expected]);
    }

    #[test]
    fn the_fields_of_an_event_stay_fields() {
        check(
            || tracing::warn!(target: "t", model = "resnet", latency_us = 12, ok = true, share = 0.5, "took {}", "long"),
            "WARN t src/base/telemetry/journal.rs a line MODEL=resnet LATENCY_US=12 OK=true SHARE=0.5: took long model=resnet latency_us=12 ok=true share=0.5",
        );
    }

    #[test]
    fn the_fields_of_spans_come_along_and_inner_ones_win() {
        check(
            || {
                let outer =
                    tracing::info_span!("outer", request = 1, model = "outer", principal = tracing::field::Empty);
                outer.record("principal", "uid:0");
                let _outer = outer.entered();
                let _inner = tracing::info_span!("inner", model = "inner", version = 2).entered();
                tracing::error!(target: "t", version = 3, "failed");
            },
            "ERROR t src/base/telemetry/journal.rs a line VERSION=3 MODEL=inner REQUEST=1 PRINCIPAL=uid:0: failed version=3",
        );
    }

    #[test]
    fn the_name_of_an_event_is_a_field_that_the_message_does_not_repeat() {
        check(
            || tracing::info!(name: "update.committed", target: "t", version = 2, "update committed"),
            "INFO t src/base/telemetry/journal.rs a line VERSION=2 EVENT_NAME=update.committed: update committed version=2",
        );
    }

    #[test]
    fn an_event_without_a_message_is_told_by_its_fields() {
        check(
            || tracing::info!(target: "t", event = "{}"),
            "INFO t src/base/telemetry/journal.rs a line EVENT={}: event={}",
        );
    }

    #[test]
    fn a_field_does_not_hide_behind_a_standard_one() {
        check(
            || tracing::info!(target: "t", priority = 7, "x"),
            "INFO t src/base/telemetry/journal.rs a line FIELD_PRIORITY=7: x priority=7",
        );
    }
}
