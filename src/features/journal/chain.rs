//! The segments of a folder in order. Each one states the end of its predecessor, which shows damage.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::format::{HEADER_BYTES, PreviousSegment, SegmentHeader};
use super::scan::{JournalGroupReader, ScannedGroup, read_header};
use super::{JournalDamage, JournalDamageReason, JournalEntry};
use crate::record::DamagedBytes;

/// A segment file.
#[derive(Debug)]
pub struct JournalSegment {
    /// The sequence number in its name.
    pub first_seq: u64,
    pub path: PathBuf,
    /// The length of the file when it was listed.
    pub length: u64,
    /// Its header, which states the sequence number in its name.
    pub header: Result<SegmentHeader, DamagedBytes>,
    pub end: SegmentEnd,
}

/// The end of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentEnd {
    /// The last segment: all complete groups count.
    Last,
    Stated(PreviousSegment),
    /// Its successor is damaged, or is not the one that followed it.
    Unknown {
        /// The first sequence number of the segment that follows now.
        next_seq: u64,
        /// The file that is missing in between.
        missing: Option<PathBuf>,
    },
}

/// The segments of a folder in order.
#[derive(Debug)]
pub struct SegmentChain {
    pub segments: Vec<JournalSegment>,
    /// A last segment after an interrupted creation: nothing in it was acknowledged.
    pub unfinished: Option<JournalSegment>,
}

/// The name of the segment with this first entry.
pub fn file_name(first_seq: u64) -> String {
    format!("journal-{first_seq:016x}.log")
}

fn first_seq(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("journal-")?.strip_suffix(".log")?;
    let first_seq = u64::from_str_radix(digits, 16).ok()?;
    (file_name(first_seq) == name).then_some(first_seq)
}

/// The segments' files in order, each with the sequence number in its name.
pub fn list(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?;
        if let Some(first_seq) = entry.file_name().to_str().and_then(first_seq) {
            found.push((first_seq, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The beginning of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalStart {
    /// The first entry that it may have.
    pub first_seq: u64,
    /// The entries of the segment before, which is not there any more, as far as the first one states them.
    pub before: Range<u64>,
}

/// The beginning of the journal in `folder`; `None` for one without segments.
pub fn begin(folder: &Path) -> io::Result<Option<JournalStart>> {
    let SegmentChain { segments, .. } = SegmentChain::read(folder)?;
    Ok(segments.first().map(|first| {
        let before = first.header.ok().and_then(|header| header.previous);
        let before = before.map_or(0..0, |before| before.first_seq..before.next_seq);
        JournalStart { first_seq: first.first_seq, before }
    }))
}

impl SegmentChain {
    /// Reads the names and headers of the segments in `folder`.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let found = list(folder)?;

        let mut segments: Vec<JournalSegment> = Vec::with_capacity(found.len());
        for (first_seq, path) in found {
            let file = match File::open(&path) {
                // It was removed meanwhile, and with it all segments before it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    segments.clear();
                    continue;
                }
                file => file?,
            };
            let length = file.metadata()?.len();
            let header = match read_header(&file, length)? {
                Ok(header) if header.first_seq != first_seq => Err(DamagedBytes::Malformed),
                header => header,
            };
            if let Some(before) = segments.last_mut() {
                before.end = end_before(folder, before.first_seq, first_seq, header.as_ref().ok());
            }
            segments.push(JournalSegment { first_seq, path, length, header, end: SegmentEnd::Last });
        }

        // The header is fsynced before anything is written behind it.
        let unfinished = segments.pop_if(|last| {
            last.length <= HEADER_BYTES as u64
                && matches!(last.header, Err(DamagedBytes::Malformed | DamagedBytes::Checksum))
        });
        if let Some(last) = segments.last_mut() {
            last.end = SegmentEnd::Last;
        }
        Ok(Self { segments, unfinished })
    }
}

/// The end of a segment, as its successor states it.
fn end_before(folder: &Path, before: u64, next_seq: u64, successor: Option<&SegmentHeader>) -> SegmentEnd {
    let Some(header) = successor else { return SegmentEnd::Unknown { next_seq, missing: None } };
    match header.previous {
        Some(previous) if previous.first_seq == before => SegmentEnd::Stated(previous),
        Some(previous) => SegmentEnd::Unknown { next_seq, missing: Some(folder.join(file_name(previous.first_seq))) },
        None => SegmentEnd::Unknown { next_seq, missing: Some(folder.join(file_name(next_seq))) },
    }
}

/// The next part of a segment.
#[derive(Debug)]
pub enum SegmentStep {
    /// The entries of a whole group.
    Entries(Vec<JournalEntry>),
    /// Acknowledged entries may be lost here. The next steps have the entries that can still be read.
    Damage(JournalDamage),
    /// The number of bytes at the end of the last segment that were not acknowledged.
    Torn(u64),
}

/// Reads one segment.
#[derive(Debug)]
pub struct SegmentReader<'s, R = BufReader<File>> {
    segment: &'s JournalSegment,
    groups: JournalGroupReader<R>,
    header: Option<DamagedBytes>,
    over: bool,
}

impl<'s> SegmentReader<'s> {
    /// Opens the file.
    pub fn new(segment: &'s JournalSegment) -> io::Result<Self> {
        Self::over(segment, BufReader::with_capacity(64 << 10, File::open(&segment.path)?))
    }
}

impl<'s, R: Read + Seek> SegmentReader<'s, R> {
    /// Reads the segment's bytes from `file`.
    pub fn over(segment: &'s JournalSegment, file: R) -> io::Result<Self> {
        let end = match &segment.end {
            SegmentEnd::Stated(previous) => previous.length.min(segment.length),
            SegmentEnd::Last | SegmentEnd::Unknown { .. } => segment.length,
        };
        let groups = JournalGroupReader::new(file, segment.header.as_ref().ok(), segment.first_seq, end)?;
        Ok(Self { segment, groups, header: segment.header.err(), over: false })
    }

    /// The end of the groups that were read, and the sequence number after them.
    pub fn position(&self) -> (u64, u64) {
        self.groups.position()
    }

    /// Reads the next part; `None` at the end.
    pub fn step(&mut self) -> io::Result<Option<SegmentStep>> {
        let (at, seq) = self.position();
        if self.over {
            return Ok(None);
        }

        if let Some(damaged) = self.header.take() {
            let reason = JournalDamageReason::Header(damaged);
            let to_seq = if self.groups.find_next()? { Some(self.position().1) } else { self.stated_end() };
            return Ok(Some(SegmentStep::Damage(self.damage(0, seq, to_seq, reason))));
        }

        let damaged = match self.groups.read_next()? {
            ScannedGroup::Group(group) => match group.entries() {
                Ok(entries) => return Ok(Some(SegmentStep::Entries(entries))),
                Err(damaged) => {
                    let to_seq = Some(group.next_seq);
                    return Ok(Some(SegmentStep::Damage(self.damage(
                        at,
                        seq,
                        to_seq,
                        JournalDamageReason::Group(damaged),
                    ))));
                }
            },
            ScannedGroup::End => {
                self.over = true;
                return Ok(self.at_the_end().map(SegmentStep::Damage));
            }
            ScannedGroup::Damaged(damaged) => damaged,
        };

        // Groups behind this place were written only after this place was acknowledged.
        if self.groups.find_next()? {
            if self.position() == (at, seq) {
                // The group was being written at the first read.
                return self.step();
            }
            let to_seq = Some(self.position().1);
            return Ok(Some(SegmentStep::Damage(self.damage(at, seq, to_seq, JournalDamageReason::Group(damaged)))));
        }

        self.over = true;
        Ok(Some(match &self.segment.end {
            SegmentEnd::Last => SegmentStep::Torn(self.segment.length.saturating_sub(at)),
            SegmentEnd::Stated(_) | SegmentEnd::Unknown { .. } => {
                SegmentStep::Damage(self.damage(at, seq, self.stated_end(), JournalDamageReason::Group(damaged)))
            }
        }))
    }

    /// The damage where the file ends between two groups, if entries are missing.
    fn at_the_end(&self) -> Option<JournalDamage> {
        let (at, seq) = self.position();
        match &self.segment.end {
            SegmentEnd::Last => None,
            SegmentEnd::Stated(previous) => (previous.next_seq != seq || previous.length != at)
                .then(|| self.damage(at, seq, self.stated_end(), JournalDamageReason::Short)),
            SegmentEnd::Unknown { next_seq, missing: None } => {
                (*next_seq != seq).then(|| self.damage(at, seq, self.stated_end(), JournalDamageReason::Short))
            }
            SegmentEnd::Unknown { missing: Some(missing), .. } => {
                let damage = self.damage(0, seq, self.stated_end(), JournalDamageReason::Missing);
                Some(JournalDamage { file: missing.clone(), ..damage })
            }
        }
    }

    fn stated_end(&self) -> Option<u64> {
        match &self.segment.end {
            SegmentEnd::Last => None,
            SegmentEnd::Stated(previous) => Some(previous.next_seq),
            SegmentEnd::Unknown { next_seq, .. } => Some(*next_seq),
        }
    }

    fn damage(&self, offset: u64, from_seq: u64, to_seq: Option<u64>, reason: JournalDamageReason) -> JournalDamage {
        JournalDamage { file: self.segment.path.clone(), offset, from_seq, to_seq, reason }
    }
}
