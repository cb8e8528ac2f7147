//! The metrics of alerts.

use std::fmt::Error;
use std::sync::Arc;

use ledge_part::metrics::{MetricLabels, family, gauge_value};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::receiver::AlertReceiver;

/// Writes the metrics of all receivers.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, receivers: &[Arc<AlertReceiver>]) -> Result<(), Error> {
    let all: Vec<_> = receivers.iter().map(|receiver| (labels(receiver), receiver.status())).collect();
    let messages = all.iter().flat_map(|(labels, status)| {
        [("sent", status.sent), ("failed", status.failed)].map(|(outcome, count)| {
            let labels = labels.iter().cloned().chain([("outcome", outcome.to_owned())]);
            (labels.collect(), ConstCounter::new(count))
        })
    });
    let help = "Messages of alerts by outcome: `failed` counts each attempt";
    family(encoder, "alert_messages", help, messages)?;
    let due = all.iter().map(|(labels, status)| (labels.clone(), ConstGauge::new(gauge_value(status.due))));
    family(encoder, "alert_messages_due", "Messages that are due and not sent yet", due)?;
    let firing = all.iter().map(|(labels, status)| (labels.clone(), ConstGauge::new(gauge_value(status.firing.len()))));
    family(encoder, "alert_checks_firing", "Checks that are wrong for longer than hold_s", firing)
}

fn labels(receiver: &AlertReceiver) -> MetricLabels {
    vec![("alert", receiver.alert.to_string()), ("way", receiver.way.name().to_owned())]
}
