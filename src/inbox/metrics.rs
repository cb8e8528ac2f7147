//! The metrics of inboxes.

use std::fmt::Error;

use ledge_part::metrics::{MetricLabels, family, gauge_value, label};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::http::InboxDocument;

/// Writes the metrics of all inboxes.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, inboxes: &[InboxDocument]) -> Result<(), Error> {
    let files = inboxes.iter().flat_map(|inbox| {
        [("read", inbox.read), ("failed", inbox.failed)].map(|(outcome, count)| {
            let labels = vec![("inbox", inbox.name.clone()), ("outcome", outcome.to_owned())];
            (labels, ConstCounter::new(count))
        })
    });
    family(encoder, "inbox_files", "Files of inboxes by outcome: `failed` are no readable documents", files)?;
    let gauge = |name: &str, help: &str, encoder: &mut DescriptorEncoder<'_>, value: fn(&InboxDocument) -> u64| {
        let samples =
            inboxes.iter().map(|inbox| (label("inbox", &inbox.name), ConstGauge::new(gauge_value(value(inbox)))));
        family(encoder, name, help, samples)
    };
    gauge("inbox_files_waiting", "Files in the folder, and those that are being read", encoder, |inbox| inbox.waiting)?;
    gauge("inbox_stuck", "1 while files wait for longer than their turn", encoder, |inbox| {
        u64::from(inbox.problem.is_some())
    })?;
    let receivers = || inboxes.iter().flat_map(|inbox| inbox.receivers.iter().map(move |receiver| (inbox, receiver)));
    let labels = |inbox: &InboxDocument, way: &str| -> MetricLabels {
        vec![("inbox", inbox.name.clone()), ("way", way.to_owned())]
    };
    let sent = receivers().map(|(inbox, to)| (labels(inbox, &to.way), ConstCounter::new(to.sent)));
    family(encoder, "inbox_messages", "Messages that a receiver has got", sent)?;
    let waiting = receivers().map(|(inbox, to)| (labels(inbox, &to.way), ConstGauge::new(gauge_value(to.waiting))));
    family(encoder, "inbox_messages_waiting", "Messages that a receiver has not got yet", waiting)
}
