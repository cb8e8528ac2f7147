//! The report, as it is written in JSON. Times are in RFC 3339, in UTC.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::annex::AnnexReport;
use crate::evidence::Evidence;

/// The form of a report.
pub const REPORT_FORM: &str = "ledge.report/1";

/// The report of a month.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// [`REPORT_FORM`].
    pub form: &'static str,
    /// Such as `2026-11`.
    pub month: String,
    /// The first moment of the month, and the first one after it.
    pub begins: String,
    pub ends: String,
    /// Months are in UTC.
    pub time_zone: &'static str,
    /// The box, by its name.
    pub device: String,
    /// The version of Ledge that made the report.
    pub version: String,
    pub made: String,
    pub coverage: Coverage,
    pub models: Models,
    pub calls: Calls,
    pub features: FeatureCalls,
    pub egress: EgressOfMonth,
    /// The sections that list events, in order.
    pub events: Vec<EventSection>,
    pub findings: Findings,
    pub drift: DriftOfMonth,
    pub retention: Retention,
    /// Sections of parts that keep figures of their own. All other sections are made of the audit log.
    pub own_figures: Vec<AddedSection>,
    /// The number of records of each action in the month.
    pub records: Vec<ActionCount>,
    pub annexes: Vec<AnnexReport>,
}

/// The part of the month that the report covers, and the logs that it was made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Coverage {
    /// True if the month is over, the logs have its beginning, and nothing is wrong with them.
    pub complete: bool,
    /// The limits of the report, in sentences.
    pub notes: Vec<String>,
    /// The number of records of the month.
    pub records: u64,
    /// The number of records of the month that are not signed yet.
    pub unsigned: u64,
    /// The first and the last record of the month.
    pub first_record: Option<RecordPlace>,
    pub last_record: Option<RecordPlace>,
    pub logs: Vec<LogHead>,
}

/// A record by its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordPlace {
    pub log: u32,
    pub record: u64,
    pub at: String,
}

/// A log, and the signed head under which it was verified.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogHead {
    pub log: u32,
    pub origin: Option<String>,
    pub verifier_key: Option<String>,
    /// The number of signed records, and the root hash of their tree.
    pub size: u64,
    pub root: Option<String>,
    /// The first record on this box. Earlier ones were pruned.
    pub first: u64,
    /// `whole`, `gap`, `fork` or `tampered`.
    pub verdict: &'static str,
    pub findings: Vec<LogFault>,
    /// Findings that are not listed.
    pub more_findings: u64,
}

/// Something that is wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogFault {
    pub record: Option<u64>,
    pub what: String,
}

/// The versions of models, and the times that they served.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Models {
    pub served: Vec<ServedVersion>,
    /// Times that are not listed, because there are too many.
    pub unlisted: u64,
}

/// A time in which a version served.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServedVersion {
    pub model: String,
    pub version: u64,
    /// BLAKE3 of its files.
    pub digest: String,
    /// The time of the record that it was loaded in, which may be before the month.
    pub from: String,
    pub loaded: Evidence,
    /// The end, if it was within the month.
    pub until: Option<String>,
    /// The cause of its end: `unloaded`, `replaced`, `suspended`, `stopped` (the service), or `restarted` (without an orderly
    /// stop; the end is the last record before).
    pub ended_by: Option<&'static str>,
    pub ended: Option<Evidence>,
}

/// Inference, by caller and model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calls {
    pub rows: Vec<CallRow>,
    /// The calls of callers and models that are not listed, because there are too many: the total without the rows.
    pub others: Option<CallCounts>,
    /// All calls. Their records are those of the inference actions in [`Report::records`].
    pub total: CallCounts,
}

/// The calls of one caller to one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallRow {
    /// Such as `key:till-7`; a tag where the box cannot tell the name.
    pub caller: String,
    /// `None` where no model has the name that was asked for.
    pub model: Option<String>,
    #[serde(flatten)]
    pub counts: CallCounts,
    pub evidence: Vec<Evidence>,
}

/// Numbers of calls, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CallCounts {
    pub calls: u64,
    pub ok: u64,
    pub failed: u64,
    pub refused: u64,
    pub late: u64,
    pub unavailable: u64,
    /// The sum of their durations, and the longest one, in microseconds.
    pub us: u64,
    pub us_max: u64,
}

/// Reads and pushes of features, by caller and feature view.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FeatureCalls {
    pub rows: Vec<FeatureCallRow>,
    /// Further rows of this table that are not listed, because there are too many.
    pub unlisted: u64,
}

/// The reads or pushes of one caller and feature view.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FeatureCallRow {
    pub caller: String,
    pub feature_view: String,
    /// `features_read` or `features_pushed`.
    pub action: &'static str,
    pub calls: u64,
    pub rows: u64,
    pub evidence: Vec<Evidence>,
}

/// The traffic that left the box.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EgressOfMonth {
    /// By destination and kind.
    pub sent: Vec<SentRow>,
    /// Kinds with inputs of callers that were sent; empty: none.
    pub inputs: Vec<String>,
    /// The time up to which the bytes are counted.
    pub counted_until: Option<String>,
    pub connections: Vec<ConnectionRow>,
    /// Pictures of cameras that were published.
    pub pictures: Vec<PictureRow>,
    /// Rows of these tables that are not listed, because there are too many.
    pub unlisted: u64,
}

/// The bytes of one kind that one destination got.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SentRow {
    pub destination: String,
    pub region: String,
    /// The kind, as in `ledge audit egress`.
    pub kind: String,
    /// Before encryption.
    pub bytes: u64,
    /// The records of which the bytes are the difference: the last one before the month, if there is one, and those of
    /// the month.
    pub evidence: Vec<Evidence>,
}

/// The connections to one destination for one purpose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConnectionRow {
    pub destination: String,
    pub region: String,
    pub purpose: String,
    pub connections: u64,
    pub evidence: Vec<Evidence>,
}

/// The pictures of one camera.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PictureRow {
    pub camera: String,
    pub pictures: u64,
    pub evidence: Vec<Evidence>,
}

/// A section that lists events.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventSection {
    /// Such as `erasures`.
    pub name: &'static str,
    pub title: &'static str,
    /// The number of events of each action.
    pub counts: Vec<ActionCount>,
    /// The first ones.
    pub rows: Vec<EventRow>,
    /// The number of further ones, which are only in the counts.
    pub unlisted: u64,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventRow {
    pub at: String,
    pub log: u32,
    pub record: u64,
    pub caller: String,
    pub action: &'static str,
    /// The fields of the record, without the action.
    pub fields: BTreeMap<String, Value>,
    /// Facts that the record alone does not say, such as a start without an orderly stop before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<&'static str>,
}

/// The records of one action.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActionCount {
    pub action: &'static str,
    /// The number of records.
    pub records: u64,
    /// The number of events: a record may stand for several.
    pub events: u64,
    pub evidence: Vec<Evidence>,
}

/// Settings of retention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Retention {
    /// The settings now, by key. Changes within the month are among the events of administration.
    pub settings: BTreeMap<String, Value>,
}

/// Findings about drift and objectives that began or ended in the month.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Findings {
    pub rows: Vec<FindingRow>,
    /// Records of further findings.
    pub unlisted: u64,
}

/// A finding, as often as it began and ended in the month.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FindingRow {
    /// Such as `drift wine_mlp`.
    pub finding: String,
    pub model: Option<String>,
    pub version: Option<u64>,
    /// `warn`, or `fail` if it was that once.
    pub worst: &'static str,
    /// The time of its first record.
    pub first: String,
    pub began: u64,
    pub began_evidence: Vec<Evidence>,
    pub ended: u64,
    pub ended_evidence: Vec<Evidence>,
}

/// Drift of models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DriftOfMonth {
    /// The reference of each version at the end of the month, which may have been fixed before it.
    pub references: Vec<ReferenceRow>,
    /// Releases that were taken back because of drift.
    pub rollbacks: Vec<RollbackRow>,
    /// Records of further versions and rollbacks.
    pub unlisted: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReferenceRow {
    pub model: String,
    pub version: u64,
    /// `learnt`, `inherited` or `accepted`.
    pub reference: String,
    pub fixed: String,
    pub evidence: Vec<Evidence>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RollbackRow {
    /// Such as `models/minilm`.
    pub subject: String,
    pub version: u64,
    pub at: String,
    pub evidence: Vec<Evidence>,
}

/// A section of a part that keeps figures of its own, such as accounts: they are not signed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AddedSection {
    /// A fixed word, such as `objectives`.
    pub name: &'static str,
    pub title: &'static str,
    /// The meaning of the figures, and their limits, in sentences.
    pub note: String,
    /// The columns, with their widths on the page in percent.
    #[serde(serialize_with = "names_of")]
    pub columns: Vec<(&'static str, u8)>,
    pub rows: Vec<AddedRow>,
}

fn names_of<S: Serializer>(columns: &[(&'static str, u8)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(columns.iter().map(|(name, _)| name))
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AddedRow {
    /// A text or a number for each column.
    pub cells: Vec<Value>,
    pub source: FigureSource,
}

/// The source of the numbers of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FigureSource {
    /// The file, in the state folder.
    pub file: String,
    /// The key in that file, and in the output of `show`.
    pub key: String,
    /// The command that prints the same numbers.
    pub show: String,
}
