//! Reads and verifies the logs of a box, and makes the report of a month.

use std::collections::BTreeMap;
use std::ops::Range;

use ledge_audit::files::AuditFilesError;
use ledge_audit::verify::findings::LogFindingKind;
use ledge_audit::verify::{self, LogToVerify, LogVerificationReport, VerifyScope, VisitedRecord};
use ledge_base::clock::{self, TimeZone};
use ledge_base::month::Month;
use serde_json::Value;

use crate::annex;
pub use crate::collector::CallerNames;
use crate::collector::{CollectedMonth, MonthCollector, MonthSpan};
use crate::document::{AddedSection, Coverage, LogFault, LogHead, REPORT_FORM, Report, Retention};

/// The input of a report besides the month.
#[derive(Debug, Clone)]
pub struct ReportSource {
    /// The logs of the box, the oldest first.
    pub logs: Vec<LogToVerify>,
    pub names: CallerNames,
    /// The name of the box.
    pub device: String,
    /// The settings of [`setting_keys`], by key.
    pub settings: BTreeMap<String, Value>,
    /// The sections of parts that keep figures of their own, for the month.
    pub added: Vec<AddedSection>,
}

/// The settings of retention, which a report shows.
const RETENTION_SETTINGS: &[&str] = &[
    "audit.keep_tag_keys_days",
    "audit.quota_mb",
    "audit.tag_period_days",
    "features.keep_expired_h",
    "retention.history_days",
    "retention.inbox_days",
    "retention.jobs_days",
];

/// The keys of the settings that a report shows.
pub fn setting_keys() -> Vec<String> {
    let mut keys = annex::settings();
    keys.extend(RETENTION_SETTINGS.iter().map(|key| (*key).to_owned()));
    keys.into_iter().collect()
}

/// Makes the report of a month at the moment `now_ms`. Reads all logs, from their beginning on.
pub async fn report(source: &ReportSource, month: Month, now_ms: u64) -> Result<Report, AuditFilesError> {
    // Records are in UTC, and a month in local time would begin at other records after a change of the time zone.
    let span_ms = month.span_ms(&TimeZone::utc());
    let mut collector = MonthCollector::new(span_ms.clone(), &source.names);
    let numbers: Vec<u32> = source.logs.iter().zip(1..).map(|(log, index)| log.generation.unwrap_or(index)).collect();
    let mut visitor = |visited: VisitedRecord<'_>| {
        let log = numbers.get(visited.place).copied().unwrap_or_default();
        collector.take(log, visited.record, visited.is_signed);
    };
    let verified = verify::verify_each(&source.logs, VerifyScope::All, None, &mut visitor).await?;

    let CollectedMonth { calls, features, models, egress, events, findings, drift, records, span } = collector.finish();
    let setting = |key: &&str| Some(((*key).to_owned(), source.settings.get(*key)?.clone()));
    let retention = Retention { settings: RETENTION_SETTINGS.iter().filter_map(setting).collect() };
    Ok(Report {
        form: REPORT_FORM,
        month: month.to_string(),
        begins: clock::rfc3339(span_ms.start),
        ends: clock::rfc3339(span_ms.end),
        time_zone: "UTC",
        device: source.device.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        made: clock::rfc3339(now_ms),
        coverage: coverage(&span_ms, now_ms, span, &numbers, &verified),
        models,
        calls,
        features,
        egress,
        events,
        findings,
        drift,
        retention,
        own_figures: source.added.clone(),
        annexes: annex::with_evidence(&records, &source.settings),
        records,
    })
}

/// The coverage of the report, and its limits in sentences.
fn coverage(
    month: &Range<u64>,
    now_ms: u64,
    span: MonthSpan,
    numbers: &[u32],
    verified: &[LogVerificationReport],
) -> Coverage {
    let mut notes = Vec::new();
    if now_ms < month.end {
        notes.push(format!("The month is not over: this report ends at {}.", clock::rfc3339(now_ms)));
    }
    if span.records == 0 {
        notes.push("The logs have no record of this month.".to_owned());
    }
    let first_log = verified.first();
    let begun = first_log.and_then(|log| log.summary.begun.as_ref());
    let oldest = first_log.and_then(|log| log.summary.since);
    if !span.has_before && span.records > 0 {
        let at = oldest.map_or_else(String::new, |at| format!(" at {at}"));
        notes.push(match begun.map(|begun| begun.cause.as_str()) {
            Some("new") => format!("The log begins within the month{at}: the box was new."),
            Some(cause) => {
                format!("The log begins within the month{at} (cause: {cause}). What was before it is not on this box.")
            }
            None => format!(
                "Records of the beginning of the month are not on this box any more: the first one is of{}.",
                at.trim_start_matches(" at")
            ),
        });
    }
    for (log, number) in verified.iter().zip(numbers) {
        let begun = log.summary.begun.as_ref().filter(|begun| begun.cause != "new");
        let in_month = log.summary.since.is_some_and(|since| month.contains(&since.0));
        if let (Some(begun), true, true) = (begun, in_month, span.has_before) {
            notes.push(format!("Log {number} begins within the month (cause: {}).", begun.cause));
        }
        if let Some(worst) = log.verdict() {
            notes.push(format!(
                "Log {number} is not whole ({}): numbers that name records of it may be wrong or too small. See the \
                 findings below.",
                worst.name()
            ));
        }
    }
    if span.lost > 0 {
        notes.push(format!("{} calls and other events were lost before they became records.", span.lost));
    }
    if span.has_jumps {
        notes.push("The clock of the box jumped: records near a jump may be of another time than they say.".to_owned());
    }
    if span.unsigned > 0 {
        notes.push(format!("{} records are not signed yet, and can be proved once they are.", span.unsigned));
    }
    if span.has_uncertain_egress {
        notes.push("Bytes that left the box after the month may be among those of the month: they were not counted at its end.".to_owned());
    }

    let is_whole = verified.iter().all(|log| log.verdict().is_none());
    let is_new = begun.is_some_and(|begun| begun.cause == "new");
    Coverage {
        complete: now_ms >= month.end
            && (span.has_before || (is_new && span.records > 0))
            && is_whole
            && span.lost == 0,
        notes,
        records: span.records,
        unsigned: span.unsigned,
        first_record: span.first,
        last_record: span.last,
        logs: verified.iter().zip(numbers).map(|(log, number)| head(*number, log)).collect(),
    }
}

fn head(number: u32, log: &LogVerificationReport) -> LogHead {
    let findings = log.findings.iter().map(|finding| LogFault { record: finding.seq, what: finding.what.clone() });
    LogHead {
        log: number,
        origin: log.origin.clone(),
        verifier_key: log.verifier_key.clone(),
        size: log.size,
        root: log.root.map(|root| root.to_string()),
        first: log.first,
        verdict: log.verdict().map_or("whole", LogFindingKind::name),
        findings: findings.collect(),
        more_findings: log.more,
    }
}
