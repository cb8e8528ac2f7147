//! Whether a log is whole: its head signed, its records those that the head stands for, none missing.
//!
//! Nothing of what wrote the log is used but the verifier key. One pass, in memory that does not grow with the log.

pub mod findings;
pub mod summary;
pub mod tree;
mod walk;

use std::collections::BTreeSet;

use ledge_service::audit_event::{AuditEvent, PreviousLog};
use serde::{Serialize, Serializer};
use tlog_tiles::Hash;

use super::files::{FilesError, LogFiles};
use super::key::{CheckpointError, SignedCheckpoint};
use super::layout::{TileKind, TilePath, whole_entries};
use super::record::AuditRecord;
use findings::{Finding, Findings, Wrong};
use summary::Summary;
use walk::Walk;

/// No log has more records: a box that writes a million a second would need 2,000 years for it.
pub const LARGEST: u64 = 1 << 56;

/// A log that is looked at.
#[derive(Debug, Clone)]
pub struct Place {
    pub files: LogFiles,
    /// Which of the logs of its box it has to be, where the place says so.
    pub generation: Option<u32>,
    /// What its checkpoint may be signed with.
    pub keys: Vec<String>,
}

/// Which logs of a box are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One that was named. What lies beside it is nobody's business.
    One,
    /// All of them, the first one first: none may be missing.
    All,
}

/// What is known of a log after all of it was looked at.
#[derive(Debug, Clone, Serialize)]
pub struct LogReport {
    pub place: String,
    /// The first line of its checkpoint, once that was opened.
    pub origin: Option<String>,
    /// What the checkpoint was opened with.
    pub verifier_key: Option<String>,
    /// How many records are signed.
    pub size: u64,
    /// The root hash that is signed.
    #[serde(serialize_with = "as_base64")]
    pub root: Option<Hash>,
    /// The first record that is there: those before it were pruned.
    pub first: u64,
    /// How many records follow that are not signed yet.
    pub unsigned: u64,
    /// The size of the earlier checkpoint that this log was found to contain.
    pub contains: Option<u64>,
    pub summary: Summary,
    pub findings: Vec<Finding>,
    /// How many more things are wrong that are not listed.
    pub more: u64,
}

#[expect(clippy::ref_option, reason = "serde gives the field as it is")]
fn as_base64<S: Serializer>(hash: &Option<Hash>, serializer: S) -> Result<S::Ok, S::Error> {
    match hash {
        Some(hash) => serializer.collect_str(hash),
        None => serializer.serialize_none(),
    }
}

impl LogReport {
    /// The worst of what is wrong; `None` when the log is whole.
    pub fn verdict(&self) -> Option<Wrong> {
        self.findings.iter().map(|finding| finding.wrong).max()
    }
}

/// A root that a log has to have at a size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    size: u64,
    root: Hash,
    evidence: Evidence,
}

/// Who says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Evidence {
    Checkpoint,
    /// The first record of the log that follows.
    NextLog,
}

impl Evidence {
    fn words(self) -> &'static str {
        match self {
            Self::Checkpoint => "the earlier checkpoint",
            Self::NextLog => "the log that follows",
        }
    }
}

/// Looks at all of the logs. `earlier` is a checkpoint that was opened with one of the keys: the log of its origin has to
/// contain it.
pub async fn verify(
    places: &[Place],
    scope: Scope,
    earlier: Option<&SignedCheckpoint>,
) -> Result<Vec<LogReport>, FilesError> {
    let mut reports: Vec<LogReport> = Vec::new();
    let mut next = places.iter().skip(1);
    for place in places {
        let follower = match next.next() {
            Some(place) => previous_of(&place.files).await?,
            None => None,
        };
        reports.push(verify_log(place, earlier, follower.as_ref()).await?);
    }
    let origins: BTreeSet<String> = reports.iter().filter_map(|report| report.origin.clone()).collect();
    if scope == Scope::All {
        for report in &mut reports {
            let previous = report.summary.begun.as_ref().and_then(|begun| begun.previous.as_ref());
            if let Some(previous) = previous.filter(|previous| !origins.contains(&previous.origin)) {
                let what =
                    format!("the log before it, {} with {} records, is not here", previous.origin, previous.size);
                report.findings.push(Finding { wrong: Wrong::Gap, seq: None, what });
            }
        }
    }
    if let (Some(earlier), Some(report)) = (earlier, reports.last_mut())
        && !origins.contains(&earlier.origin)
    {
        let what = format!("the log {} is not here, of which the earlier checkpoint is", earlier.origin);
        report.findings.push(Finding { wrong: Wrong::Tampered, seq: None, what });
    }
    Ok(reports)
}

/// What the first record of a log says of the log before; whether that record is right is seen when its log is looked at.
async fn previous_of(files: &LogFiles) -> Result<Option<PreviousLog>, FilesError> {
    let first = TilePath { kind: TileKind::Entries, index: 0, width: 1 };
    let Some(bundle) = files.tile(first).await? else { return Ok(None) };
    let record = whole_entries(&bundle).0.first().and_then(|line| AuditRecord::parse(line).ok());
    Ok(match record.map(|record| record.event) {
        Some(AuditEvent::LogBegun { previous, .. }) => previous,
        _ => None,
    })
}

async fn verify_log(
    place: &Place,
    earlier: Option<&SignedCheckpoint>,
    follower: Option<&PreviousLog>,
) -> Result<LogReport, FilesError> {
    let Place { files, generation, keys } = place;
    let mut report = LogReport {
        place: files.to_string(),
        origin: None,
        verifier_key: None,
        size: 0,
        root: None,
        first: 0,
        unsigned: 0,
        contains: None,
        summary: Summary::default(),
        findings: Vec::new(),
        more: 0,
    };
    let mut findings = Findings::default();
    let opened = if let Some(note) = files.checkpoint().await? {
        open(&note, keys, *generation, &mut findings)
    } else {
        findings.push(Wrong::Gap, None, || "there is no checkpoint: nothing here is signed".to_owned());
        None
    };
    if let Some((checkpoint, key)) = opened {
        let points = points(&checkpoint, earlier, follower, files, &mut findings);
        let contains = earlier.filter(|earlier| earlier.origin == checkpoint.origin).map(|earlier| earlier.size);
        let walk = Walk::new(files, checkpoint.size, points, findings);
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

/// Whether the box removed what is missing at the beginning. A copy of the log has everything.
fn check_pruned(report: &LogReport, files: &LogFiles, is_last: bool, findings: &mut Findings) {
    let LogReport { first, summary, .. } = report;
    let Some(last) = first.checked_sub(1) else { return };
    if !files.is_local() {
        findings.push(Wrong::Gap, 0, || format!("records 0 to {last} are missing"));
    } else if is_last && summary.pruned_below < *first {
        // Of a log that another one follows, no record may say so: it goes first, whatever that one is at.
        findings.push(Wrong::Gap, 0, || {
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
    findings: &mut Findings,
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
                    findings.push(Wrong::Tampered, None, || {
                        format!("the checkpoint is of another log: {}, expected {name}/{wanted}", checkpoint.origin)
                    });
                    return None;
                }
                if checkpoint.size > LARGEST {
                    findings.push(Wrong::Tampered, None, || format!("no log has {} records", checkpoint.size));
                    return None;
                }
                return Some((checkpoint, key.clone()));
            }
            // What the signature says is worth more than that another key has another name.
            Err(error @ CheckpointError::Signature { .. }) => wrong = Some(error),
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    let reason = wrong.map_or_else(|| "there is no key to check it with".to_owned(), |error| error.to_string());
    findings.push(Wrong::Tampered, None, || format!("the checkpoint does not count: {reason}"));
    None
}

/// The roots that the log has to have on the way to its head, in order of size.
fn points(
    checkpoint: &SignedCheckpoint,
    earlier: Option<&SignedCheckpoint>,
    follower: Option<&PreviousLog>,
    files: &LogFiles,
    findings: &mut Findings,
) -> Vec<Point> {
    let mut points = Vec::new();
    let size = checkpoint.size;
    if let Some(earlier) = earlier.filter(|earlier| earlier.origin == checkpoint.origin) {
        if earlier.size > size {
            let (cut, before) = (earlier.size - size, earlier.size);
            findings.push(Wrong::Tampered, size, || {
                format!(
                    "its end was cut off: {cut} records are missing of the {before} that the earlier checkpoint has"
                )
            });
        } else {
            points.push(Point { size: earlier.size, root: earlier.root, evidence: Evidence::Checkpoint });
        }
    }
    if let Some(previous) = follower.filter(|previous| previous.origin == checkpoint.origin) {
        if previous.size > size {
            // A copy may have been behind when the box went over to another log; the box itself may not.
            let wrong = if files.is_local() { Wrong::Tampered } else { Wrong::Gap };
            findings.push(wrong, size, || {
                format!("it ends here, and the log that follows says that {} records were signed", previous.size)
            });
        } else if let Ok(root) = Hash::parse_hash(&previous.root) {
            points.push(Point { size: previous.size, root, evidence: Evidence::NextLog });
        } else {
            findings.push(Wrong::Tampered, None, || "the log that follows names no hash for its root".to_owned());
        }
    }
    points.sort_by_key(|point| point.size);
    points
}

#[cfg(test)]
mod tests;
