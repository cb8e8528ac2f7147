//! Verifies a log: the head is signed, the records are those under the head, and none is missing.
//!
//! The verifier key is the only input besides the files. It is one pass, in memory that does not grow with the log.

pub mod findings;
pub mod summary;
pub mod tree;
mod walk;

use std::collections::BTreeSet;

use ledge_service::audit_event::{AuditEvent, PreviousLog};
use serde::{Serialize, Serializer};
use tlog_tiles::Hash;

use super::files::{AuditFilesError, AuditLogFiles};
use super::key::{CheckpointError, SignedCheckpoint};
use super::layout::{TileKind, TilePath, whole_entries};
use super::record::AuditRecord;
use findings::{LogFinding, LogFindingKind, LogFindings};
use summary::LogSummary;
use walk::{EachRecord, ExpectedRootHash, LogWalk, RootHashSource};

/// The most records in a log: a box that writes a million a second would need 2,000 years for them.
pub const RECORDS_MAX: u64 = 1 << 56;

/// A log to verify.
#[derive(Debug, Clone)]
pub struct LogToVerify {
    pub files: AuditLogFiles,
    /// The expected number of the log among those of its box, if its path names one.
    pub generation: Option<u32>,
    /// The verifier keys of which one must fit its checkpoint.
    pub keys: Vec<String>,
}

/// The logs of a box to verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyScope {
    /// One that was named. Others next to it do not matter.
    One,
    /// All of them, the first one first: none may be missing.
    All,
}

/// The result of verifying a log.
#[derive(Debug, Clone, Serialize)]
pub struct LogVerificationReport {
    pub place: String,
    /// The first line of its checkpoint, once that was opened.
    pub origin: Option<String>,
    /// The verifier key that fits the checkpoint.
    pub verifier_key: Option<String>,
    /// The number of signed records.
    pub size: u64,
    /// The signed root hash.
    #[serde(serialize_with = "as_base64")]
    pub root: Option<Hash>,
    /// The first record that exists. Earlier ones were pruned.
    pub first: u64,
    /// The number of records after the head, which are not signed yet.
    pub unsigned: u64,
    /// The size of the earlier checkpoint that this log was found to contain.
    pub contains: Option<u64>,
    pub summary: LogSummary,
    pub findings: Vec<LogFinding>,
    /// The number of further findings that are not listed.
    pub more: u64,
}

#[expect(clippy::ref_option, reason = "serde gives the field as it is")]
fn as_base64<S: Serializer>(hash: &Option<Hash>, serializer: S) -> Result<S::Ok, S::Error> {
    match hash {
        Some(hash) => serializer.collect_str(hash),
        None => serializer.serialize_none(),
    }
}

impl LogVerificationReport {
    /// The worst finding; `None` when the log is whole.
    pub fn verdict(&self) -> Option<LogFindingKind> {
        self.findings.iter().map(|finding| finding.wrong).max()
    }
}

/// A record that was read while its log is verified. What is wrong with it, or with its log, is in the report.
#[derive(Debug, Clone, Copy)]
pub struct VisitedRecord<'r> {
    /// The index of its log among those to verify.
    pub place: usize,
    pub record: &'r AuditRecord,
    /// False for a record after the head, which is not signed yet.
    pub is_signed: bool,
}

/// Gets each record, in the order of the logs.
type RecordVisitor<'v> = &'v mut (dyn FnMut(VisitedRecord<'_>) + Send);

/// Verifies logs. `earlier` is a checkpoint that fits one of the keys: the log of its origin must contain it.
pub async fn verify(
    places: &[LogToVerify],
    scope: VerifyScope,
    earlier: Option<&SignedCheckpoint>,
) -> Result<Vec<LogVerificationReport>, AuditFilesError> {
    verify_each(places, scope, earlier, &mut |_| {}).await
}

/// As [`verify`], with a visitor that gets each record in the same pass.
pub async fn verify_each(
    places: &[LogToVerify],
    scope: VerifyScope,
    earlier: Option<&SignedCheckpoint>,
    visitor: RecordVisitor<'_>,
) -> Result<Vec<LogVerificationReport>, AuditFilesError> {
    let mut reports: Vec<LogVerificationReport> = Vec::new();
    let mut next = places.iter().skip(1);
    for (index, place) in places.iter().enumerate() {
        let follower = match next.next() {
            Some(place) => previous_of(&place.files).await?,
            None => None,
        };
        let mut of_log =
            |record: &AuditRecord, is_signed: bool| visitor(VisitedRecord { place: index, record, is_signed });
        reports.push(verify_log(place, earlier, follower.as_ref(), &mut of_log).await?);
    }

    let origins: BTreeSet<String> = reports.iter().filter_map(|report| report.origin.clone()).collect();
    if scope == VerifyScope::All {
        for report in &mut reports {
            let previous = report.summary.begun.as_ref().and_then(|begun| begun.previous.as_ref());
            if let Some(previous) = previous.filter(|previous| !origins.contains(&previous.origin)) {
                let what = format!("the log before it, {} with {} records, is missing", previous.origin, previous.size);
                report.findings.push(LogFinding { wrong: LogFindingKind::Gap, seq: None, what });
            }
        }
    }

    if let (Some(earlier), Some(report)) = (earlier, reports.last_mut())
        && !origins.contains(&earlier.origin)
    {
        let what = format!("the log {} of the earlier checkpoint is missing", earlier.origin);
        report.findings.push(LogFinding { wrong: LogFindingKind::Tampered, seq: None, what });
    }
    Ok(reports)
}

/// The log before this one, according to its first record, which is checked when its own log is verified.
async fn previous_of(files: &AuditLogFiles) -> Result<Option<PreviousLog>, AuditFilesError> {
    let first = TilePath { kind: TileKind::Entries, index: 0, width: 1 };
    let Some(bundle) = files.tile(first).await? else { return Ok(None) };
    let record = whole_entries(&bundle).0.first().and_then(|line| AuditRecord::parse(line).ok());
    Ok(match record.map(|record| record.event) {
        Some(AuditEvent::LogBegun { previous, .. }) => previous,
        _ => None,
    })
}

async fn verify_log(
    place: &LogToVerify,
    earlier: Option<&SignedCheckpoint>,
    follower: Option<&PreviousLog>,
    each: EachRecord<'_>,
) -> Result<LogVerificationReport, AuditFilesError> {
    let LogToVerify { files, generation, keys } = place;
    let mut report = LogVerificationReport {
        place: files.to_string(),
        origin: None,
        verifier_key: None,
        size: 0,
        root: None,
        first: 0,
        unsigned: 0,
        contains: None,
        summary: LogSummary::default(),
        findings: Vec::new(),
        more: 0,
    };

    let mut findings = LogFindings::default();
    let opened = if let Some(note) = files.checkpoint().await? {
        open(&note, keys, *generation, &mut findings)
    } else {
        findings.push(LogFindingKind::Gap, None, || "there is no checkpoint: nothing here is signed".to_owned());
        None
    };

    if let Some((checkpoint, key)) = opened {
        let points = points(&checkpoint, earlier, follower, files, &mut findings);
        let contains = earlier.filter(|earlier| earlier.origin == checkpoint.origin).map(|earlier| earlier.size);
        let walk = LogWalk::new(files, checkpoint.size, points, findings, each);
        let walked = walk.finish(checkpoint.root).await?;
        (report.origin, report.verifier_key) = (Some(checkpoint.origin), Some(key));
        (report.size, report.root) = (checkpoint.size, Some(checkpoint.root));
        (report.first, report.unsigned, report.summary) = (walked.first, walked.unsigned, walked.summary);
        findings = walked.findings;
        check_pruned(&report, files, follower.is_none(), &mut findings);
        report.contains = contains.filter(|_| walked.contains);
    }

    (report.findings, report.more) = (findings.list, findings.more);
    Ok(report)
}

/// Checks that the box removed the missing first records. A copy of the log has all records.
fn check_pruned(report: &LogVerificationReport, files: &AuditLogFiles, is_last: bool, findings: &mut LogFindings) {
    let LogVerificationReport { first, summary, .. } = report;
    let Some(last) = first.checked_sub(1) else { return };
    if !files.is_local() {
        findings.push(LogFindingKind::Gap, 0, || format!("records 0 to {last} are missing"));
    } else if is_last && summary.pruned_below < *first {
        // For a log that is followed by another one, the record of the removal is in that one.
        findings.push(LogFindingKind::Gap, 0, || {
            format!(
                "records 0 to {last} are missing, and no record says that the box pruned them (a power cut right \
                     after it did looks the same)"
            )
        });
    }
}

/// Opens a checkpoint with the key that signed it.
fn open(
    note: &[u8],
    keys: &[String],
    generation: Option<u32>,
    findings: &mut LogFindings,
) -> Option<(SignedCheckpoint, String)> {
    let mut wrong = None;
    for key in keys {
        match SignedCheckpoint::open(note, key) {
            Ok(checkpoint) => {
                let name = key.split('+').next().unwrap_or_default();
                let of_key = checkpoint.origin.strip_prefix(name).and_then(|rest| rest.strip_prefix('/'));
                let number = of_key.and_then(|number| number.parse::<u32>().ok());
                let as_placed = number.filter(|number| generation.is_none_or(|generation| generation == *number));
                if as_placed.is_none() {
                    let wanted = generation.map_or_else(|| "N".to_owned(), |generation| generation.to_string());
                    findings.push(LogFindingKind::Tampered, None, || {
                        format!("the checkpoint is of another log: {}, expected {name}/{wanted}", checkpoint.origin)
                    });
                    return None;
                }
                if checkpoint.size > RECORDS_MAX {
                    findings.push(LogFindingKind::Tampered, None, || {
                        format!("the checkpoint has {} records, more than a log can have", checkpoint.size)
                    });
                    return None;
                }
                return Some((checkpoint, key.clone()));
            }
            // A wrong signature says more than a key of another name.
            Err(error @ CheckpointError::Signature { .. }) => wrong = Some(error),
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }

    let reason = wrong.map_or_else(|| "there is no key to check it with".to_owned(), |error| error.to_string());
    findings.push(LogFindingKind::Tampered, None, || format!("the checkpoint is not valid: {reason}"));
    None
}

/// The roots that the log must have below its head, in order of size.
fn points(
    checkpoint: &SignedCheckpoint,
    earlier: Option<&SignedCheckpoint>,
    follower: Option<&PreviousLog>,
    files: &AuditLogFiles,
    findings: &mut LogFindings,
) -> Vec<ExpectedRootHash> {
    let mut points = Vec::new();
    let size = checkpoint.size;
    if let Some(earlier) = earlier.filter(|earlier| earlier.origin == checkpoint.origin) {
        if earlier.size > size {
            let (cut, before) = (earlier.size - size, earlier.size);
            findings.push(LogFindingKind::Tampered, size, || {
                format!("its end was cut off: {cut} of the {before} records in the earlier checkpoint are missing")
            });
        } else {
            points.push(ExpectedRootHash {
                size: earlier.size,
                root: earlier.root,
                evidence: RootHashSource::Checkpoint,
            });
        }
    }

    if let Some(previous) = follower.filter(|previous| previous.origin == checkpoint.origin) {
        if previous.size > size {
            // A copy may have been behind when the box began another log. The box itself cannot be.
            let wrong = if files.is_local() { LogFindingKind::Tampered } else { LogFindingKind::Gap };
            findings.push(wrong, size, || {
                format!("it ends here, but the log that follows says that {} records were signed", previous.size)
            });
        } else if let Ok(root) = Hash::parse_hash(&previous.root) {
            points.push(ExpectedRootHash { size: previous.size, root, evidence: RootHashSource::NextLog });
        } else {
            findings.push(LogFindingKind::Tampered, None, || {
                "the log that follows has no valid root hash for it".to_owned()
            });
        }
    }

    points.sort_by_key(|point| point.size);
    points
}

#[cfg(test)]
mod tests;
