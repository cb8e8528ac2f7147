//! The answer to the question `doctor`: the findings about this box, without anything that a person has written.
//!
//! A finding has a text for people, with paths, addresses and names of cameras in it. None of it is here: a check is a
//! word of a closed list, with its level, the number of its findings, and numbers that a part marked as harmless.

use std::collections::BTreeMap;

use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_part::check::{Finding, FindingMeasure, FindingStatus};
use rcgen::{KeyPair, SigningKey as _};
use schemars::JsonSchema;
use serde::Serialize;

use crate::envelope::Envelope;
use crate::question::Question;
use crate::request::RequestError;

/// The payload type of answers.
const DIAGNOSIS_TYPE: &str = "application/vnd.ledge.diagnosis+json";

/// The payload of an answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Diagnosis<'a> {
    version: u32,
    /// The name of this box.
    #[serde(rename = "box")]
    device: &'a str,
    /// `doctor`.
    question: &'static str,
    /// The id of the question.
    id: &'a str,
    /// The time of the answer.
    at: String,
    /// The version of Ledge.
    ledge: &'static str,
    checks: Vec<DiagnosedCheck>,
}

/// The findings of one check and level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DiagnosedCheck {
    check: CheckName,
    level: CheckLevel,
    /// The number of findings, such as models, cameras or folders. They are not named.
    count: u64,
    /// The least free room of a disk or of the memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    /// The least time until a certificate ends, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<u64>,
}

/// The level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckLevel {
    Ok,
    Warning,
    Failure,
}

impl From<FindingStatus> for CheckLevel {
    fn from(status: FindingStatus) -> Self {
        match status {
            FindingStatus::Ok | FindingStatus::Info => Self::Ok,
            FindingStatus::Warn => Self::Warning,
            FindingStatus::Fail => Self::Failure,
        }
    }
}

/// The closed list of checks, each with the beginning of the names of its findings.
macro_rules! checks {
    ($($check:ident: $beginning:literal,)*) => {
        /// A check of `ledge doctor`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum CheckName {
            $($check,)*
            /// A check that is not in this list.
            Other,
        }

        impl CheckName {
            pub const BEGINNINGS: &[(&str, Self)] = &[$(($beginning, Self::$check)),*];
        }
    };
}

checks! {
    Clock: "clock",
    Cpu: "cpu",
    Cores: "cores",
    Memory: "memory",
    State: "state",
    Access: "access",
    LocalAccess: "local access",
    LocalPlain: "local plain",
    Tls: "tls",
    GrpcTls: "grpc tls",
    Runtimes: "runtimes",
    Isolation: "runtimes.isolation",
    Onnxruntime: "onnxruntime",
    Openvino: "openvino",
    FeatureStore: "feature store",
    Egress: "egress",
    AuditLog: "audit log",
    AuditKey: "audit key",
    AuditCopy: "audit copy",
    Encryption: "encryption",
    DaemonSandbox: "seal of the daemon",
    ModelSandbox: "seal of models",
    Mqtt: "mqtt",
    Membership: "membership",
    Updates: "updates",
    UpdatesMetadata: "updates metadata",
    UpdatesRoot: "updates root",
    Catalogue: "catalogue",
    CatalogueRoot: "catalogue root",
    Models: "models",
    ModelFolders: "model folders",
    Cameras: "cameras",
    Model: "model ",
    Crashes: "crashes ",
    FullQueue: "queue ",
    FailingCalls: "failing ",
    WrongValues: "values ",
    RolledBack: "update ",
    Camera: "camera ",
    Inbox: "inbox ",
    Alert: "alert ",
}

impl CheckName {
    /// The check of a finding. What follows the space in the name of a finding was chosen by a person.
    pub fn of(name: &str) -> Self {
        let is_it = |beginning: &str| match beginning.strip_suffix(' ') {
            Some(_) => name.starts_with(beginning),
            None => name == beginning,
        };
        let exact = Self::BEGINNINGS.iter().filter(|(beginning, _)| !beginning.ends_with(' '));
        let named = Self::BEGINNINGS.iter().filter(|(beginning, _)| beginning.ends_with(' '));
        exact.chain(named).find(|(beginning, _)| is_it(beginning)).map_or(Self::Other, |(_, check)| *check)
    }
}

/// The findings as checks, in the order of the list.
pub fn checks(findings: &[Finding]) -> Vec<DiagnosedCheck> {
    let mut checks: BTreeMap<(CheckName, CheckLevel), DiagnosedCheck> = BTreeMap::new();
    for finding in findings {
        let (check, level) = (CheckName::of(&finding.name), CheckLevel::from(finding.status));
        let empty = DiagnosedCheck { check, level, count: 0, free_bytes: None, seconds_left: None };
        let entry = checks.entry((check, level)).or_insert(empty);
        entry.count += 1;
        match finding.measure {
            Some(FindingMeasure::FreeBytes(bytes)) => {
                entry.free_bytes = Some(entry.free_bytes.map_or(bytes, |least| least.min(bytes)));
            }
            Some(FindingMeasure::SecondsLeft(seconds)) => {
                entry.seconds_left = Some(entry.seconds_left.map_or(seconds, |least| least.min(seconds)));
            }
            None => {}
        }
    }
    checks.into_values().collect()
}

/// Makes the answer to a question at `now_ms`, signed by the key of the certificate with the serial number `serial`.
pub fn answer(
    question: &Question,
    device: &DeviceName,
    findings: &[Finding],
    (key, serial): (&KeyPair, &str),
    now_ms: u64,
) -> Result<Vec<u8>, RequestError> {
    let payload = Diagnosis {
        version: 1,
        device: device.as_str(),
        question: question.kind.name(),
        id: &question.id,
        at: clock::rfc3339(now_ms),
        ledge: env!("CARGO_PKG_VERSION"),
        checks: checks(findings),
    };
    let payload = serde_json::to_vec(&payload)?;
    let envelope = Envelope::sign(DIAGNOSIS_TYPE, &payload, serial, |bytes| key.sign(bytes))?;
    Ok(serde_json::to_vec(&envelope)?)
}
