//! The description of each kind of content, and the fields of its messages.

use std::borrow::Cow;

use ledge_alerts::message as alert_message;
use ledge_audit::config::AuditConfig;
use ledge_audit::live::LiveCopy;
use ledge_audit::record::AuditRecord;
use ledge_cameras::messages::{CameraEvent, CameraObjectCounts, CameraStatus};
use ledge_egress::{EgressContent, REQUEST_HEADERS, SNAPSHOT_HEADERS, WEBHOOK_HEADERS};
use ledge_history::unusual_message;
use ledge_inbox::message::InboxMessage;
use ledge_membership::{CertificateRequest, Diagnosis};
use ledge_mqtt::answer;
use ledge_mqtt::connect;
use ledge_part::api_error::ErrorBody;
use ledge_protocol::{content, encode};
use ledge_updates::report;
use serde::Serialize;

use super::fields::{ReportedField, of_schema};

/// One form of message.
#[derive(Debug, Serialize)]
pub struct EgressMessageForm {
    pub name: Cow<'static, str>,
    /// All its fields.
    pub fields: Vec<ReportedField>,
}

/// The description of a kind of content.
pub fn what(content: EgressContent) -> &'static str {
    match content {
        EgressContent::Protocol => {
            "the connection itself: handshakes, subscriptions, acknowledgements; no data of callers; every destination \
             may receive it"
        }
        EgressContent::Answer => {
            "results of inference, for callers over MQTT, for bindings of a topic to a model, and of cameras"
        }
        EgressContent::Presence => "the state of this box and of each camera, online or offline",
        EgressContent::Report => "the software, machine, models and health of this box, for the platform",
        EgressContent::Call => {
            "inference calls to another box: Ledge sends none, only `ledge-bench` does, a tool of its developers"
        }
        EgressContent::Request => {
            "requests for files of the update repository and for pictures of cameras, without data about this box"
        }
        EgressContent::Audit => {
            "the audit log and its proofs: callers appear as keyed tags, and the data that they sent does not appear"
        }
        EgressContent::Alert => {
            "what is wrong with this box, for the webhooks and the broker of [[alert]], and what is unusual, for the broker"
        }
        EgressContent::Document => {
            "fields and text of the documents of [[inbox]], for its webhook and the broker, where an entry of \
             egress.allow names them"
        }
        EgressContent::CertificateRequest => {
            "requests for the certificate of this box, to the platform whose member it is: its name, public keys, and \
             the version of Ledge"
        }
        EgressContent::Diagnosis => {
            "answers to the questions of the platform that membership.questions allows: checks of `ledge doctor` by \
             their names, without their texts; where an entry of egress.allow names them"
        }
        EgressContent::Picture => {
            "pictures of cameras with camera.publish_pictures, over MQTT, with the parts of camera.blur blurred"
        }
    }
}

/// Every form of message of a kind of content.
pub fn messages(content: EgressContent) -> Vec<EgressMessageForm> {
    let constant = |name, fields: &[(&'static str, &'static str)]| EgressMessageForm {
        name: Cow::Borrowed(name),
        fields: fields.iter().map(|(name, what)| ReportedField::new(name, what)).collect(),
    };
    let typed = |name, schema: schemars::Schema| EgressMessageForm {
        name: Cow::Borrowed(name),
        fields: of_schema(schema.as_value()),
    };
    match content {
        EgressContent::Protocol => vec![
            constant("the connection to a broker (MQTT CONNECT)", &connect::CONNECT_FIELDS),
            constant(
                "subscriptions and acknowledgements of an MQTT connection",
                &[
                    ("topic filters", "of subscriptions: those of mqtt.bindings, and the topics of this box"),
                    ("packet identifiers", "in acknowledgements, with a reason code"),
                ],
            ),
            constant(
                "the TLS handshake",
                &[
                    ("server name", "the configured host (SNI)"),
                    ("client certificate", "if one is configured, with the proof of its key"),
                ],
            ),
        ],
        EgressContent::Answer => vec![
            typed("an answer to tensors (JSON, with numbers also in binary after it)", encode::schema()),
            typed("an answer to a photograph (JSON)", content::schema()),
            typed("an answer without a result (JSON)", schemars::schema_for!(ErrorBody<'static>)),
            constant(
                "a part of one of these, where a binding selects it",
                &[("*", "mqtt.bindings.select: one value of the answer")],
            ),
            constant("properties of each answer (MQTT 5)", &answer::ANSWER_PROPERTIES),
            typed("an event of a camera (JSON)", schemars::schema_for!(CameraEvent<'static>)),
            typed("the counts of a camera (JSON)", schemars::schema_for!(CameraObjectCounts<'static>)),
            typed("the state of a camera (JSON)", schemars::schema_for!(CameraStatus<'static>)),
            constant(
                "an entity of Home Assistant (JSON)",
                &[("*", "the names of this box, of a camera, its zones and labels, and the topics of their values")],
            ),
        ],
        EgressContent::Presence => vec![constant("presence", &[("*", "the word online or offline, nothing else")])],
        EgressContent::Report => vec![typed("the reported document (JSON)", report::schema())],
        EgressContent::Call => vec![constant(
            "a call of `ledge-bench`",
            &[("*", "an image or tensors named on the command line, or random numbers of the model's shape")],
        )],
        EgressContent::Request => {
            vec![
                constant("a request for a file (HTTP GET; to a proxy, CONNECT with the host)", &REQUEST_HEADERS),
                constant("a request for a picture of a camera (HTTP GET)", &SNAPSHOT_HEADERS),
            ]
        }
        EgressContent::Audit => audit_messages(&AuditConfig::default()),
        EgressContent::Alert => vec![
            typed("an alert (JSON)", alert_message::schema()),
            typed("what is unusual, with history.unusual_mqtt (JSON)", unusual_message::schema()),
            constant("the request that carries it (HTTP POST)", &WEBHOOK_HEADERS),
        ],
        EgressContent::Document => vec![
            typed("a message about a document (JSON)", schemars::schema_for!(InboxMessage<'static>)),
            constant("the request that carries it to a webhook (HTTP POST)", &WEBHOOK_HEADERS),
        ],
        EgressContent::CertificateRequest => {
            let payload = schemars::schema_for!(CertificateRequest<'static>);
            vec![typed("a request for a certificate (JSON in a DSSE envelope, HTTP PUT)", payload)]
        }
        EgressContent::Diagnosis => vec![
            typed(
                "an answer to `doctor` (JSON in a DSSE envelope, HTTP PUT)",
                schemars::schema_for!(Diagnosis<'static>),
            ),
            constant("a request for a question (HTTP GET)", &REQUEST_HEADERS),
        ],
        EgressContent::Picture => {
            vec![constant("a picture of a camera", &[("*", "a JPEG with the objects that were found drawn into it")])]
        }
    }
}

/// The forms of the audit log: in its files on the platform, and in each live copy.
fn audit_messages(config: &AuditConfig) -> Vec<EgressMessageForm> {
    let disclosures: Vec<_> = config.live_copies().into_iter().map(LiveCopy::disclosure).collect();
    let protocols: Vec<_> = disclosures.iter().map(|copy| format!("by {}", copy.protocol)).collect();
    let protocols = match protocols.as_slice() {
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
        [] => String::new(),
    };
    let record = of_schema(AuditRecord::schema().as_value());

    let besides =
        disclosures.iter().filter_map(|copy| Some(format!("; by {} also {}", copy.protocol, copy.beside_records?)));
    let besides = besides.collect::<Vec<_>>().concat();
    let proofs = vec![
        ReportedField::new("origin", "ledge.audit/<name of this box>/<generation>"),
        ReportedField::new("size", "how many records the log has"),
        ReportedField::new("root", "the hash of all records"),
        ReportedField::new("signature", "of the three above, by the audit key of this box"),
        ReportedField::new("hashes", "SHA-256 of records and of hashes"),
        ReportedField::new("leaf", "next to each record in live copies: its hash; with its number, time and severity"),
        ReportedField::new("name and version", &format!("in live copies: of this box, and of Ledge{besides}")),
    ];

    let mut request = vec![
        ReportedField::new("path", "what is configured, the name of this box, and the name of the file"),
        ReportedField::new("host, user-agent, accept", "the host that is configured, ledge, */*"),
        ReportedField::new("content-type, content-length", "of the file or of the records"),
        ReportedField::new("if-none-match", "* for a file that must not be there yet"),
        ReportedField::new("query", "for a bucket: the id of the access key, date, region and signature, as S3 has it"),
    ];
    let of_copies = disclosures.iter().flat_map(|copy| copy.request_headers);
    request.extend(of_copies.map(|(name, what)| ReportedField::new(name, what)));

    [
        (format!("a record (JSON), in entry bundles, {protocols}"), record),
        ("what proves records (C2SP tlog-tiles), and which log they are of".to_owned(), proofs),
        ("the request that carries them (HTTP GET, PUT and POST)".to_owned(), request),
    ]
    .into_iter()
    .map(|(name, fields)| EgressMessageForm { name: Cow::Owned(name), fields })
    .collect()
}
