//! Reports of damage in the journal.

use std::fmt;
use std::path::PathBuf;

use crate::record::DamagedBytes;

/// A place where acknowledged entries may be lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDamage {
    /// The segment, or the file that should be there.
    pub file: PathBuf,
    pub offset: u64,
    /// The first entry that may be lost.
    pub from_seq: u64,
    /// The first entry after those. `None`: it is unknown how many followed. The same as `from_seq`: none is lost.
    pub to_seq: Option<u64>,
    pub reason: JournalDamageReason,
}

/// The kind of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalDamageReason {
    /// The header of a segment is damaged.
    Header(DamagedBytes),
    Group(DamagedBytes),
    /// The segment ends before it should.
    Short,
    /// The file is not there.
    Missing,
    /// The folder has no segment.
    Empty,
}

impl JournalDamage {
    /// True when this is no damage, but a form of a later version.
    pub fn is_of_a_later_version(&self) -> bool {
        matches!(
            self.reason,
            JournalDamageReason::Header(DamagedBytes::Unknown) | JournalDamageReason::Group(DamagedBytes::Unknown)
        )
    }
}

impl fmt::Display for JournalDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, from_seq, to_seq, reason } = self;
        match reason {
            JournalDamageReason::Header(damaged) => {
                write!(f, "{}: the header cannot be used: {damaged}", file.display())?;
            }
            JournalDamageReason::Group(damaged) => {
                write!(f, "{}: the group at byte {offset} cannot be used: {damaged}", file.display())?;
            }
            JournalDamageReason::Short => write!(f, "{}: the file ends too early, at byte {offset}", file.display())?,
            JournalDamageReason::Missing => write!(f, "{}: the file is missing", file.display())?,
            JournalDamageReason::Empty => write!(f, "{}: all journal files are missing", file.display())?,
        }
        match to_seq.map(|to_seq| to_seq.saturating_sub(*from_seq)) {
            Some(0) => f.write_str("; no entry is lost"),
            Some(1) => write!(f, "; entry {from_seq} may be lost"),
            Some(count) => write!(f, "; entries {from_seq} to {} may be lost", from_seq + count - 1),
            None => write!(f, "; entries from {from_seq} on may be lost"),
        }
    }
}
