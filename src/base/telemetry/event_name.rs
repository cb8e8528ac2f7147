//! The names of events, such as `update.committed`: what a program that reads the log can rely on. docs/operating.md
//! lists them. Names are in JSON and in the journal; a line of text is for people.

use std::fmt;

use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The field of a log line that has the name of its event. `event` is the record in a line of the audit log.
const FIELD: &str = "event_name";

/// The same field in the journal.
pub const JOURNAL_FIELD: &str = "EVENT_NAME";

/// Returns the name that the source gave to an event. Without one, `tracing` makes a name of the place in the source:
/// `event src/daemon.rs:247`.
pub fn event_name(metadata: &Metadata<'static>) -> Option<&'static str> {
    Some(metadata.name()).filter(|name| !name.contains(' '))
}

/// A format of one JSON object a line, with the name of the event.
pub struct WithEventName<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for WithEventName<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Some(name) = event_name(event.metadata()) else { return self.0.format_event(context, writer, event) };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        let fields = line.trim_end().strip_suffix('}').ok_or(fmt::Error)?;
        writeln!(writer, "{fields},\"{FIELD}\":\"{name}\"}}")
    }
}
