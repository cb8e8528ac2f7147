//! The faults of a log, and their places.

use serde::Serialize;

/// The kind of a fault. Later ones are worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFindingKind {
    Gap,
    /// There is another history of the same log.
    Fork,
    /// The content differs from what was signed.
    Tampered,
}

impl LogFindingKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Fork => "fork",
            Self::Tampered => "tampered",
        }
    }
}

/// A fault of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogFinding {
    pub wrong: LogFindingKind,
    /// The first record concerned, if that is known.
    pub seq: Option<u64>,
    pub what: String,
}

/// Number of findings of each kind that are listed. In a log of another form every record would be one.
const FINDINGS_PER_KIND_MAX: usize = 20;

/// The findings so far: the first ones in words, the others counted.
#[derive(Debug, Clone, Default)]
pub struct LogFindings {
    /// The first ones of each kind.
    pub list: Vec<LogFinding>,
    pub more: u64,
}

impl LogFindings {
    /// Adds a finding.
    pub fn push(&mut self, wrong: LogFindingKind, seq: impl Into<Option<u64>>, what: impl FnOnce() -> String) {
        // The list must have one of each kind, because the verdict is read from it.
        if self.list.iter().filter(|finding| finding.wrong == wrong).count() < FINDINGS_PER_KIND_MAX {
            self.list.push(LogFinding { wrong, seq: seq.into(), what: what() });
        } else {
            self.more += 1;
        }
    }
}
