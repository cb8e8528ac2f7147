//! The journal: the acknowledged changes of the feature store, in order.
//!
//! A folder of segments, each a header and groups. A group is written with one write and one fsync, and the next one
//! only afterwards. A bad place before a complete group, or before a complete next segment, was acknowledged once, so
//! it is damage: it is reported, and never cut off. A bad end of the last segment is the remainder of an unacknowledged
//! write after a power cut, and is cut off.

mod chain;
mod damage;
mod entry;
mod format;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod replay;
mod scan;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use ledge_base::durable;

use super::key::IndexKey;
use chain::{SegmentChain, SegmentEnd, SegmentReader, SegmentStep, file_name};
pub use chain::{begin, list};
pub use damage::{JournalDamage, JournalDamageReason};
pub use entry::{JournalChange, JournalEntry};
pub use format::GROUP_BYTES_MAX;
use format::{HEADER_BYTES, PreviousSegment, SegmentHeader, encode_group, group_length};
pub use replay::{ReplayError, replay, verify};

/// The journal of a folder, for the one thread that writes.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    segment_bytes: u64,
    /// In order. All but the last one never change again.
    segments: Vec<AcknowledgedSegment>,
    /// The file of the last segment. Without one, the next append begins a new segment.
    writer: Option<SegmentWriter>,
    /// The next segment begins with this sequence number at least.
    least_seq: u64,
    /// The statement of the first segment about the segments before it, which no longer exist.
    before_first: Option<PreviousSegment>,
    buffer: Vec<u8>,
}

/// The acknowledged part of a segment.
#[derive(Debug)]
struct AcknowledgedSegment {
    first_seq: u64,
    length: u64,
    next_seq: u64,
    path: PathBuf,
    damaged: bool,
}

#[derive(Debug)]
struct SegmentWriter {
    file: File,
    mark: u64,
}

/// A journal, and the report of its opening.
#[derive(Debug)]
pub struct OpenedJournal {
    pub journal: Journal,
    pub report: OpenReport,
}

/// The result of opening a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReport {
    /// The first sequence number that can still be replayed; `None` without any segment.
    pub first_seq: Option<u64>,
    /// The sequence number that the next entry gets.
    pub next_seq: u64,
    /// The number of bytes that were cut off at the end. They were not acknowledged.
    pub cut_off: u64,
    /// The acknowledged entries that are missing at the end. They are also in `damage`.
    pub lacking: Option<Range<u64>>,
    /// The places where acknowledged entries may be lost.
    pub damage: Vec<JournalDamage>,
}

/// Reasons why the journal cannot be opened or appended to.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("the journal in {} cannot be read", folder.display())]
    Read { folder: PathBuf, source: io::Error },
    #[error("the journal {} cannot be written", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("the journal {} was written by a later version of Ledge: install that version or a newer one", file.display())]
    Newer { file: PathBuf },
    #[error("a write to the journal is limited to {} MiB", GROUP_BYTES_MAX >> 20)]
    TooLarge,
    #[error("the journal has used up its sequence numbers")]
    Exhausted,
}

impl JournalError {
    /// True when the only problem is a full disk.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Write { source, .. } if durable::is_full(source))
    }
}

impl Journal {
    /// Opens the journal in `folder`, which is created if it does not exist.
    ///
    /// The names and headers of all segments are checked, and the last segment to its end; damage further down is found
    /// by [`replay`] and [`verify`]. The last group counts if it is complete: it is fsynced before this returns. When
    /// the last segment is damaged, it stays unchanged, and a new one begins behind it. The next sequence number is at
    /// least `least_seq` and `acknowledged`, and beyond all that were ever seen.
    ///
    /// If entries before `acknowledged` are missing, a bad end is not an unacknowledged write but damage. The new
    /// segment, which would hide the gap, is created only by [`Self::ready`].
    pub fn open(
        folder: &Path,
        segment_bytes: u64,
        least_seq: u64,
        acknowledged: u64,
    ) -> Result<OpenedJournal, JournalError> {
        let unreadable = |source| JournalError::Read { folder: folder.to_owned(), source };
        durable::create_folder(folder).map_err(unreadable)?;
        let SegmentChain { segments, unfinished } = SegmentChain::read(folder).map_err(unreadable)?;

        let mut journal = Self {
            folder: folder.to_owned(),
            segment_bytes,
            segments: Vec::with_capacity(segments.len()),
            writer: None,
            least_seq: least_seq.max(acknowledged).max(1),
            before_first: None,
            buffer: Vec::new(),
        };

        let mut cut_off = 0;
        let mut end = 1;
        if let Some(unfinished) = unfinished {
            std::fs::remove_file(&unfinished.path).map_err(unreadable)?;
            durable::sync_folder(folder).map_err(unreadable)?;
            journal.least_seq = journal.least_seq.max(unfinished.first_seq);
            cut_off = unfinished.length;
        }

        let mut found = Vec::new();
        for segment in segments {
            let kept = AcknowledgedSegment {
                first_seq: segment.first_seq,
                length: segment.length,
                next_seq: segment.first_seq,
                path: segment.path.clone(),
                damaged: false,
            };

            let kept = match &segment.end {
                SegmentEnd::Stated(stated) if segment.header.is_ok() && segment.length >= stated.length => {
                    AcknowledgedSegment { length: stated.length, next_seq: stated.next_seq, ..kept }
                }
                _ => {
                    let (mut damage, mut torn) = (Vec::new(), 0);
                    let mut reader = SegmentReader::new(&segment).map_err(unreadable)?;
                    while let Some(step) = reader.step().map_err(unreadable)? {
                        match step {
                            SegmentStep::Damage(one) => damage.push(one),
                            SegmentStep::Torn(bytes) => torn = bytes,
                            SegmentStep::Entries(_) => {}
                        }
                    }
                    let (length, next_seq) = reader.position();
                    if matches!(segment.end, SegmentEnd::Last) && next_seq < acknowledged {
                        let (file, reason) = (segment.path.clone(), JournalDamageReason::Short);
                        let to_seq = Some(acknowledged);
                        damage.push(JournalDamage { file, offset: length, from_seq: next_seq, to_seq, reason });
                    }
                    if damage.is_empty() {
                        cut_off += torn;
                    }
                    if damage.iter().any(JournalDamage::is_of_a_later_version) {
                        return Err(JournalError::Newer { file: segment.path });
                    }
                    let damaged = damage.iter().any(|damage| damage.file == segment.path);
                    found.append(&mut damage);
                    if let (SegmentEnd::Last, false, Ok(header)) = (&segment.end, damaged, &segment.header) {
                        let opened =
                            SegmentWriter::open(&segment.path, header.mark, length, folder).map_err(unreadable)?;
                        journal.writer = Some(opened).filter(|_| header.is_current);
                    }
                    AcknowledgedSegment { length, next_seq, damaged, ..kept }
                }
            };

            end = kept.next_seq;
            journal.least_seq = journal.least_seq.max(kept.next_seq);
            if kept.damaged {
                // Its name is taken, and its true end is unknown.
                journal.least_seq = journal.least_seq.max(kept.first_seq.saturating_add(1));
            }
            if segment.header.is_ok_and(|header| !header.is_current) {
                // The name of a segment of an earlier version is taken, too, and it may be empty.
                journal.least_seq = journal.least_seq.max(kept.first_seq.saturating_add(1));
            }
            journal.segments.push(kept);
        }

        if journal.segments.is_empty() && acknowledged > 1 {
            // No entry is left, and none is missing beyond those that are reported here.
            journal.before_first = Some(PreviousSegment { first_seq: 1, length: HEADER_BYTES as u64, next_seq: 1 });
            let (file, reason, from_seq) =
                (folder.to_owned(), JournalDamageReason::Empty, least_seq.clamp(1, acknowledged));
            found.push(JournalDamage { file, offset: 0, from_seq, to_seq: Some(acknowledged), reason });
        }

        let lacking = (end < acknowledged).then_some(end..acknowledged);
        let begins_anew =
            |last: &AcknowledgedSegment| last.damaged || journal.writer.is_none() || last.next_seq < journal.least_seq;
        // If this fails, the next append tries again and reports the reason.
        if lacking.is_none() && journal.segments.last().is_some_and(begins_anew) {
            let _ = journal.start_segment();
        }

        let first_seq = journal.segments.first().map(|first| first.first_seq);
        let report = OpenReport { first_seq, next_seq: journal.next_seq(), cut_off, lacking, damage: found };
        Ok(OpenedJournal { journal, report })
    }

    /// Appends changes as one group, with one write and one fsync, and returns their sequence numbers. Event times up
    /// to `latest_us` are trusted now.
    ///
    /// When this returns `Ok`, all of them survive a power cut. When it fails, none of them counts: the segment is cut
    /// back to its acknowledged length. When that fails too, or the fsync had failed, nothing is written to the segment
    /// again, its sequence numbers are not used again, and the header of the next segment states its valid length. Only
    /// if the process ends before the next append succeeds, and the segment could not be cut, such a group may be found
    /// complete when the journal is opened.
    pub fn append(
        &mut self,
        changes: &[(IndexKey, JournalChange)],
        latest_us: i64,
    ) -> Result<RangeInclusive<u64>, JournalError> {
        let length = group_length(changes).ok_or(JournalError::TooLarge)?;
        let first_seq = self.next_seq();
        if changes.is_empty() {
            return Ok(RangeInclusive::new(first_seq, first_seq - 1));
        }

        let full = |last: &AcknowledgedSegment| {
            last.length > HEADER_BYTES as u64 && last.length + length as u64 > self.segment_bytes
        };
        if self.writer.is_none() || self.segments.last().is_none_or(full) {
            self.start_segment()?;
        }

        let (Some(writer), Some(last)) = (&mut self.writer, self.segments.last_mut()) else {
            return Err(JournalError::Exhausted);
        };
        let first_seq = last.next_seq;
        let next_seq = first_seq.checked_add(changes.len() as u64).ok_or(JournalError::Exhausted)?;
        encode_group(&mut self.buffer, writer.mark, first_seq, changes, latest_us);

        let failed = match writer.file.write_all(&self.buffer) {
            Ok(()) => writer.file.sync_data().err().map(|source| (source, false)),
            Err(source) => Some((source, true)),
        };
        if let Some((source, may_go_on)) = failed {
            let file = last.path.clone();
            self.undo(may_go_on, next_seq);
            return Err(JournalError::Write { file, source });
        }

        last.length += self.buffer.len() as u64;
        last.next_seq = next_seq;
        // Release the memory of an unusually large group.
        self.buffer.shrink_to(1 << 20);
        Ok(first_seq..=next_seq - 1)
    }

    /// Ensures that there is a segment to append to. Returns the sequence number that the next entry will have in any
    /// case: a row encrypted for it decrypts as no other entry.
    pub fn ready(&mut self) -> Result<u64, JournalError> {
        if self.writer.is_none() {
            self.start_segment()?;
        }
        Ok(self.next_seq())
    }

    /// Cuts the last segment back to its acknowledged length. After a failed fsync it is unknown which parts of the
    /// file are on disk, and the next fsync would not report it. Then the segment is not written again, and the
    /// sequence numbers below `next_seq` are not used again.
    fn undo(&mut self, may_go_on: bool, next_seq: u64) {
        let (Some(mut writer), Some(last)) = (self.writer.take(), self.segments.last()) else { return };
        let cut = writer.cut(last.length);
        if may_go_on && cut.is_ok() {
            self.writer = Some(writer);
        } else {
            self.least_seq = self.least_seq.max(next_seq);
            // If this fails, the next append tries again and reports the reason.
            let _ = self.start_segment();
        }
    }

    /// Begins a new segment. The header is on disk, and the name in the folder, before this returns.
    fn start_segment(&mut self) -> Result<(), JournalError> {
        self.writer = None;
        let previous = self.segments.last();
        let first_seq = previous.map_or(1, |last| last.next_seq).max(self.least_seq);
        let previous = previous.map(|last| PreviousSegment {
            first_seq: last.first_seq,
            length: last.length,
            next_seq: last.next_seq,
        });
        let previous = previous.or(self.before_first);
        let path = self.folder.join(file_name(first_seq));
        let writer = SegmentWriter::create(&path, &self.folder, first_seq, previous)
            .map_err(|source| JournalError::Write { file: path.clone(), source })?;
        self.writer = Some(writer);
        self.segments.push(AcknowledgedSegment {
            first_seq,
            length: HEADER_BYTES as u64,
            next_seq: first_seq,
            path,
            damaged: false,
        });
        Ok(())
    }

    /// The sequence number of the next entry: one more than that of the last entry in the journal, or higher.
    pub fn next_seq(&self) -> u64 {
        match self.segments.last() {
            Some(last) => last.next_seq,
            None => self.least_seq,
        }
    }

    /// Begins a new segment at a later sequence number: after a restore, because the restored records have sequence
    /// numbers of their own. An earlier number changes nothing. When this returns `Ok`, it survives a power cut.
    pub fn skip_to(&mut self, seq: u64) -> Result<(), JournalError> {
        if seq <= self.next_seq() {
            return Ok(());
        }
        self.least_seq = self.least_seq.max(seq);
        self.start_segment()
    }

    /// Begins a new segment, unless the last one is still empty.
    pub fn rotate(&mut self) -> Result<(), JournalError> {
        match self.segments.last() {
            Some(last) if self.writer.is_some() && last.next_seq == last.first_seq => Ok(()),
            _ => self.start_segment(),
        }
    }

    /// Marks segments as damaged that [`replay`] or [`verify`] found. Nothing is appended to a damaged segment again,
    /// and [`Self::remove_before`] sets it aside.
    pub fn note_damage(&mut self, damage: &[JournalDamage]) -> Result<(), JournalError> {
        for segment in &mut self.segments {
            segment.damaged |= damage.iter().any(|damage| damage.file == segment.path);
        }
        if let Some(last) = self.segments.last().filter(|last| last.damaged) {
            self.least_seq = self.least_seq.max(last.next_seq).max(last.first_seq.saturating_add(1));
            self.start_segment()?;
        }
        Ok(())
    }

    /// Removes the segments with only entries before `seq`, the oldest first, and never the last one.
    ///
    /// A damaged one is kept for inspection as `journal-….log.damaged`, until the next damaged one takes its place. A
    /// file that another program moved is no error.
    pub fn remove_before(&mut self, seq: u64) -> io::Result<()> {
        while let [first, next, ..] = self.segments.as_slice()
            && next.first_seq <= seq
        {
            let removed = if first.damaged { self.set_aside(&first.path) } else { std::fs::remove_file(&first.path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => drop(self.segments.remove(0)),
            }
        }
        durable::sync_folder(&self.folder)
    }

    fn set_aside(&self, path: &Path) -> io::Result<()> {
        for entry in self.folder.read_dir()? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().ends_with(b".log.damaged") {
                std::fs::remove_file(entry.path())?;
            }
        }
        durable::rename(path, &path.with_extension("log.damaged"))
    }

    /// The number of acknowledged bytes in all files.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    /// The number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }
}

impl SegmentWriter {
    /// Opens a segment of which `length` bytes count, and cuts off the rest.
    fn open(path: &Path, mark: u64, length: u64, folder: &Path) -> io::Result<Self> {
        let mut writer = Self { file: OpenOptions::new().read(true).write(true).open(path)?, mark };
        // Needed even when nothing is cut: a killed process may have written the last group without fsync.
        writer.cut(length)?;
        durable::sync_folder(folder)?;
        Ok(writer)
    }

    fn create(path: &Path, folder: &Path, first_seq: u64, previous: Option<PreviousSegment>) -> io::Result<Self> {
        // Remove the leftovers of a failed attempt.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mark = getrandom::u64()? | 1;
        let mut writer = Self { file: OpenOptions::new().write(true).create_new(true).open(path)?, mark };
        let written = writer.file.write_all(&SegmentHeader::new(mark, first_seq, previous).encode());
        let written = written.and_then(|()| writer.file.sync_data()).and_then(|()| durable::sync_folder(folder));
        if let Err(error) = written {
            let _ = std::fs::remove_file(path);
            return Err(error);
        }
        Ok(writer)
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length))?;
        self.file.sync_all()
    }
}
