//! Reading the whole journal.

use std::io;
use std::path::{Path, PathBuf};

use super::chain::{SegmentChain, SegmentReader, SegmentStep};
use super::{JournalDamage, JournalEntry};

/// Reasons why entries could not be read back. Entries passed on before the error are valid.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError<E> {
    #[error("the journal in {} cannot be read", folder.display())]
    Read { folder: PathBuf, source: io::Error },
    #[error("{0}")]
    Damaged(JournalDamage),
    /// Entries are no longer, or not yet, in the journal.
    #[error("the journal lacks the entries from {from_seq} to {}", to_seq.saturating_sub(1))]
    Gap {
        /// The first one that is missing.
        from_seq: u64,
        /// The first one after those.
        to_seq: u64,
    },
    #[error("an entry of the journal could not be applied")]
    Each(#[source] E),
}

/// Calls `each` with every entry from `from_seq` on, in order, and returns the sequence number after the last one.
///
/// While a [`super::Journal`] appends, `to_seq` must be its [`super::Journal::next_seq`] of any earlier moment: reading
/// stops there, so that only durable entries are passed on, and a missing entry before it is an error. Without
/// `to_seq`, all complete entries are read. Sequence numbers that were never used are no gap, and damage that lost
/// nothing from `from_seq` on is ignored.
pub fn replay<E>(
    folder: &Path,
    from_seq: u64,
    to_seq: Option<u64>,
    mut each: impl FnMut(JournalEntry) -> Result<(), E>,
) -> Result<u64, ReplayError<E>> {
    let unreadable = |source| ReplayError::Read { folder: folder.to_owned(), source };
    let SegmentChain { mut segments, .. } = SegmentChain::read(folder).map_err(unreadable)?;

    // All entries of a segment come before its successor.
    while let [_, next, ..] = segments.as_slice()
        && next.first_seq <= from_seq
    {
        segments.remove(0);
    }
    if let Some(first) = segments.first() {
        let unused_from = first.header.ok().and_then(|header| header.previous).map(|previous| previous.next_seq);
        if unused_from.unwrap_or(first.first_seq).min(first.first_seq) > from_seq {
            return Err(ReplayError::Gap { from_seq, to_seq: first.first_seq });
        }
    }

    let mut reached = from_seq;
    'segments: for segment in &segments {
        let mut reader = SegmentReader::new(segment).map_err(unreadable)?;
        reached = reached.max(segment.first_seq);
        while to_seq.is_none_or(|to_seq| reached < to_seq) {
            match reader.step().map_err(unreadable)? {
                None | Some(SegmentStep::Torn(_)) => continue 'segments,
                Some(SegmentStep::Damage(damage)) if damage.to_seq.is_some_and(|to_seq| to_seq <= from_seq) => {}
                Some(SegmentStep::Damage(damage)) => return Err(ReplayError::Damaged(damage)),
                Some(SegmentStep::Entries(entries)) => {
                    for entry in entries {
                        let seq = entry.seq;
                        if seq < from_seq || to_seq.is_some_and(|to_seq| seq >= to_seq) {
                            continue;
                        }
                        each(entry).map_err(ReplayError::Each)?;
                        reached = seq + 1;
                    }
                }
            }
        }
        break;
    }

    match to_seq {
        Some(to_seq) if reached < to_seq => Err(ReplayError::Gap { from_seq: reached, to_seq }),
        _ => Ok(reached),
    }
}

/// Reads everything in `folder` and checks every checksum. Returns the damage.
///
/// It may run while a [`super::Journal`] appends to the folder.
pub fn verify(folder: &Path) -> io::Result<Vec<JournalDamage>> {
    let mut found = Vec::new();
    for segment in &SegmentChain::read(folder)?.segments {
        let mut reader = match SegmentReader::new(segment) {
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            reader => reader?,
        };
        while let Some(step) = reader.step()? {
            if let SegmentStep::Damage(damage) = step {
                found.push(damage);
            }
        }
    }
    Ok(found)
}
