//! The request and the response, `ExportLogsServiceRequest` and its response (opentelemetry-proto, collector/logs/v1),
//! in the JSON form of protobuf that OTLP uses: numbers of 64 bits are strings.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::status::LiveCopyRecord;

/// `SEVERITY_NUMBER_INFO` and `SEVERITY_NUMBER_WARN`.
const INFO: u8 = 9;
const WARN: u8 = 13;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExportLogsServiceRequest<'a> {
    resource_logs: [ResourceLogs<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceLogs<'a> {
    resource: Resource<'a>,
    scope_logs: [ScopeLogs<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: [Attribute<'a>; 2],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScopeLogs<'a> {
    scope: InstrumentationScope,
    log_records: Vec<LogRecord<'a>>,
}

#[derive(Serialize)]
struct InstrumentationScope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LogRecord<'a> {
    time_unix_nano: String,
    observed_time_unix_nano: String,
    severity_number: u8,
    severity_text: &'static str,
    body: AnyValue<'a>,
    attributes: [Attribute<'a>; 5],
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'static str,
    value: AnyValue<'a>,
}

#[derive(Serialize)]
enum AnyValue<'a> {
    #[serde(rename = "stringValue")]
    Text(Cow<'a, str>),
    #[serde(rename = "intValue")]
    Integer(String),
    #[serde(rename = "boolValue")]
    Bool(bool),
}

/// The fields of the response that are used.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExportLogsServiceResponse {
    partial_success: Option<ExportLogsPartialSuccess>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExportLogsPartialSuccess {
    rejected_log_records: ProtoJsonInt64,
}

/// A number of 64 bits. Protobuf writes it as a string, and takes a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum ProtoJsonInt64 {
    Text(String),
    Number(i64),
}

impl Default for ProtoJsonInt64 {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// The body of a request.
pub(super) fn body(device: &str, records: &[Arc<LiveCopyRecord>], now_ms: u64) -> serde_json::Result<Vec<u8>> {
    let text = |key, value| Attribute { key, value: AnyValue::Text(Cow::Borrowed(value)) };
    let scope = InstrumentationScope { name: "ledge.audit", version: env!("CARGO_PKG_VERSION") };
    let log_records = records.iter().map(|record| log_record(record, now_ms)).collect();
    let resource = Resource { attributes: [text("service.name", "ledge"), text("service.instance.id", device)] };
    serde_json::to_vec(&ExportLogsServiceRequest {
        resource_logs: [ResourceLogs { resource, scope_logs: [ScopeLogs { scope, log_records }] }],
    })
}

fn log_record(record: &LiveCopyRecord, now_ms: u64) -> LogRecord<'_> {
    let (severity_number, severity_text) = if record.is_warning { (WARN, "WARN") } else { (INFO, "INFO") };
    let text = |value| AnyValue::Text(Cow::Borrowed(value));
    LogRecord {
        time_unix_nano: nanoseconds(record.at_ms),
        observed_time_unix_nano: nanoseconds(now_ms),
        severity_number,
        severity_text,
        body: AnyValue::Text(String::from_utf8_lossy(record.line.trim_ascii_end())),
        attributes: [
            Attribute { key: "log", value: text(&record.origin) },
            Attribute { key: "seq", value: AnyValue::Integer(integer(record.seq)) },
            Attribute { key: "leaf", value: AnyValue::Text(STANDARD.encode(record.leaf.0).into()) },
            Attribute { key: "action", value: text(record.action) },
            Attribute { key: "lossy", value: AnyValue::Bool(true) },
        ],
    }
}

/// A time as `fixed64` of protobuf.
fn nanoseconds(unix_millis: u64) -> String {
    unix_millis.saturating_mul(1_000_000).to_string()
}

/// A number as `int64` of protobuf. A collector refuses the whole request for a greater one.
fn integer(number: u64) -> String {
    i64::try_from(number).unwrap_or(i64::MAX).to_string()
}

/// The number of records that a response says were refused. A response of another form counts as none.
pub(super) fn refused(body: &[u8]) -> u64 {
    let response: ExportLogsServiceResponse = serde_json::from_slice(body).unwrap_or_default();
    match response.partial_success.unwrap_or_default().rejected_log_records {
        ProtoJsonInt64::Text(text) => text.parse().unwrap_or(0),
        ProtoJsonInt64::Number(number) => u64::try_from(number).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_has_the_form_of_otlp_in_json() {
        let record = LiveCopyRecord {
            origin: "ledge.audit/box-7/1".into(),
            seq: u64::MAX,
            at_ms: 1_795_222_800_500,
            leaf: tlog_tiles::Hash([7; 32]),
            action: "access_denied",
            is_warning: true,
            line: b"{\"a\":1}".into(),
        };
        let body = body("box-7", &[Arc::new(record)], 1_795_222_800_501).unwrap();
        let parsed: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({"resourceLogs": [{
            "resource": {"attributes": [
                {"key": "service.name", "value": {"stringValue": "ledge"}},
                {"key": "service.instance.id", "value": {"stringValue": "box-7"}},
            ]},
            "scopeLogs": [{
                "scope": {"name": "ledge.audit", "version": env!("CARGO_PKG_VERSION")},
                "logRecords": [{
                    "timeUnixNano": "1795222800500000000",
                    "observedTimeUnixNano": "1795222800501000000",
                    "severityNumber": 13,
                    "severityText": "WARN",
                    "body": {"stringValue": "{\"a\":1}"},
                    "attributes": [
                        {"key": "log", "value": {"stringValue": "ledge.audit/box-7/1"}},
                        {"key": "seq", "value": {"intValue": "9223372036854775807"}},
                        {"key": "leaf", "value": {"stringValue": "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc="}},
                        {"key": "action", "value": {"stringValue": "access_denied"}},
                        {"key": "lossy", "value": {"boolValue": true}},
                    ],
                }],
            }],
        }]});
        assert_eq!(parsed, expected);
    }

    #[test]
    fn what_was_refused_is_read_in_each_form() {
        for (body, expected) in [
            ("", 0),
            ("{}", 0),
            ("\n\x02\x08\x03", 0),
            (r#"{"partialSuccess":{}}"#, 0),
            (r#"{"partialSuccess":null}"#, 0),
            (r#"{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"too old"}}"#, 3),
            (r#"{"partialSuccess":{"rejectedLogRecords":4}}"#, 4),
            (r#"{"partialSuccess":{"rejectedLogRecords":-4}}"#, 0),
        ] {
            assert_eq!(refused(body.as_bytes()), expected, "{body}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_is_too_strange(body: Vec<u8>) {
            let _ = refused(&body);
        }
    }
}
