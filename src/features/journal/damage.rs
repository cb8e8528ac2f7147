//! What is said of damage.

use std::fmt;
use std::path::PathBuf;

use crate::record::Damaged;

/// A place where acknowledged entries may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The segment, or the file that should be there.
    pub file: PathBuf,
    pub offset: u64,
    /// The first entry that may be lost.
    pub from_seq: u64,
    /// The first one after those; `None`: nobody knows how many followed. The same as `from_seq`: none is lost.
    pub to_seq: Option<u64>,
    pub reason: Reason,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The header of a segment.
    Header(Damaged),
    Group(Damaged),
    /// The segment ends before it should.
    Short,
    /// The file is not there.
    Missing,
    /// The folder has no segment.
    Empty,
}

impl Damage {
    /// Whether it is none, but of a form that only a later version knows.
    pub fn is_of_a_later_version(&self) -> bool {
        matches!(self.reason, Reason::Header(Damaged::Unknown) | Reason::Group(Damaged::Unknown))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, from_seq, to_seq, reason } = self;
        match reason {
            Reason::Header(damaged) => write!(f, "{}: the header: {damaged}", file.display())?,
            Reason::Group(damaged) => write!(f, "{}: the group at byte {offset}: {damaged}", file.display())?,
            Reason::Short => write!(f, "{}: it ends at byte {offset}, before it should", file.display())?,
            Reason::Missing => write!(f, "{}: the file is missing", file.display())?,
            Reason::Empty => write!(f, "{}: no file is left", file.display())?,
        }
        match to_seq.map(|to_seq| to_seq.saturating_sub(*from_seq)) {
            Some(0) => f.write_str("; no entry is lost"),
            Some(1) => write!(f, "; entry {from_seq} may be lost"),
            Some(count) => write!(f, "; entries {from_seq} to {} may be lost", from_seq + count - 1),
            None => write!(f, "; entries from {from_seq} on may be lost"),
        }
    }
}
