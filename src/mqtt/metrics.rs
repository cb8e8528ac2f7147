//! The metrics of MQTT.

use std::fmt::Error;

use ledge_base::telemetry::messages::{AnswerStatusClass, MqttFigures, MqttMessageKind, UnansweredKind};
use ledge_part::metrics::{family, gauge_value, single};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Writes the metrics of the connection to the broker.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, figures: &MqttFigures) -> Result<(), Error> {
    let mut gauge = |name, help, value| single(encoder, name, help, &ConstGauge::new(value));
    gauge(
        "mqtt_connected",
        "1 while each session that the broker accepts is connected, else 0",
        i64::from(figures.connected),
    )?;
    gauge("mqtt_in_flight_bytes", "Bytes of the messages being worked on", gauge_value(figures.in_flight_bytes))?;
    gauge(
        "mqtt_outbox_messages",
        "Messages that wait to be sent or acknowledged",
        gauge_value(figures.outbox_messages),
    )?;
    gauge("mqtt_outbox_bytes", "Bytes of the messages that wait so", gauge_value(figures.outbox_bytes))?;
    let mut counter = |name, help, value: u64| single(encoder, name, help, &ConstCounter::new(value));
    counter("mqtt_connections", "Connections made to the broker", figures.connections)?;
    counter("mqtt_duplicates", "Messages that had been received before", figures.duplicates)?;
    counter("mqtt_replaced", "Messages that a newer one replaced before their turn came", figures.replaced)?;
    counter("mqtt_skipped", "Messages that the conditions of a binding exclude", figures.skipped)?;
    counter("mqtt_answers_refused", "Answers that the broker refused", figures.refused_answers)?;
    let kinds = MqttMessageKind::ALL.map(MqttMessageKind::as_str);
    by(encoder, "mqtt_received", "Messages received, by kind", "kind", kinds, figures.received)?;
    let classes = AnswerStatusClass::ALL.map(AnswerStatusClass::as_str);
    by(encoder, "mqtt_answered", "Requests answered, by outcome", "outcome", classes, figures.answered)?;
    let reasons = UnansweredKind::ALL.map(UnansweredKind::as_str);
    by(encoder, "mqtt_unanswered", "Requests left without an answer, by reason", "reason", reasons, figures.unanswered)
}

fn by<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: [&'static str; N],
    counts: [u64; N],
) -> Result<(), Error> {
    let samples = values.into_iter().zip(counts);
    let samples = samples.map(|(value, count)| (vec![(label, value.to_owned())], ConstCounter::new(count)));
    family(encoder, name, help, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_sample() {
        let figures = MqttFigures {
            connected: true,
            connections: 2,
            received: [3, 4, 5],
            answered: [6, 7, 8, 9],
            unanswered: [10, 11, 18],
            duplicates: 12,
            replaced: 13,
            skipped: 19,
            refused_answers: 14,
            in_flight_bytes: 15,
            outbox_messages: 16,
            outbox_bytes: 17,
        };
        let samples = ledge_part::metrics::samples(move |encoder| encode(encoder, &figures));
        let expected = [
            "ledge_mqtt_connected 1",
            "ledge_mqtt_in_flight_bytes 15",
            "ledge_mqtt_outbox_messages 16",
            "ledge_mqtt_outbox_bytes 17",
            "ledge_mqtt_connections_total 2",
            "ledge_mqtt_duplicates_total 12",
            "ledge_mqtt_replaced_total 13",
            "ledge_mqtt_skipped_total 19",
            "ledge_mqtt_answers_refused_total 14",
            "ledge_mqtt_received_total{kind=\"call\"} 3",
            "ledge_mqtt_received_total{kind=\"group_call\"} 4",
            "ledge_mqtt_received_total{kind=\"binding\"} 5",
            "ledge_mqtt_answered_total{outcome=\"ok\"} 6",
            "ledge_mqtt_answered_total{outcome=\"client_error\"} 7",
            "ledge_mqtt_answered_total{outcome=\"overloaded\"} 8",
            "ledge_mqtt_answered_total{outcome=\"server_error\"} 9",
            "ledge_mqtt_unanswered_total{reason=\"loop\"} 10",
            "ledge_mqtt_unanswered_total{reason=\"invalid\"} 11",
            "ledge_mqtt_unanswered_total{reason=\"overload\"} 18",
        ];
        assert_eq!(samples, expected);
    }
}
