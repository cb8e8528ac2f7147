//! The segments of a folder, each of which states how its predecessor ended, and what of them is damaged.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use super::format::{HEADER, Header, Previous};
use super::scan::{Found, Groups, read_header};
use super::{Damage, Entry, Reason};
use crate::record::Damaged;

/// A segment file.
#[derive(Debug)]
pub struct Segment {
    /// The sequence number in its name.
    pub first_seq: u64,
    pub path: PathBuf,
    /// How long the file was when it was looked at.
    pub length: u64,
    /// Its header, which states the sequence number in its name.
    pub header: Result<Header, Damaged>,
    pub end: End,
}

/// Where a segment ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// It is the last one: what is whole in it counts.
    Last,
    Stated(Previous),
    /// Its successor cannot say, or is not the one that followed it.
    Unknown {
        /// The first sequence number of the one that follows now.
        next_seq: u64,
        /// The file that is missing in between.
        missing: Option<PathBuf>,
    },
}

/// The segments of a folder in order.
#[derive(Debug)]
pub struct Chain {
    pub segments: Vec<Segment>,
    /// A last one that had not been created to the end: nothing in it was ever acknowledged.
    pub unborn: Option<Segment>,
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

impl Chain {
    /// Looks at the names and headers in `folder`.
    pub fn look(folder: &Path) -> io::Result<Self> {
        let found = list(folder)?;
        let mut segments: Vec<Segment> = Vec::with_capacity(found.len());
        for (first_seq, path) in found {
            let file = match File::open(&path) {
                // It was removed meanwhile, and whatever was before it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    segments.clear();
                    continue;
                }
                file => file?,
            };
            let length = file.metadata()?.len();
            let header = match read_header(&file, length)? {
                Ok(header) if header.first_seq != first_seq => Err(Damaged::Malformed),
                header => header,
            };
            if let Some(before) = segments.last_mut() {
                before.end = end_before(folder, before.first_seq, first_seq, header.as_ref().ok());
            }
            segments.push(Segment { first_seq, path, length, header, end: End::Last });
        }
        // The header is fsynced before anything is written behind it.
        let unborn = segments.pop_if(|last| {
            last.length <= HEADER as u64 && matches!(last.header, Err(Damaged::Malformed | Damaged::Checksum))
        });
        if let Some(last) = segments.last_mut() {
            last.end = End::Last;
        }
        Ok(Self { segments, unborn })
    }
}

/// What a successor says of the segment before it.
fn end_before(folder: &Path, before: u64, next_seq: u64, successor: Option<&Header>) -> End {
    let Some(header) = successor else { return End::Unknown { next_seq, missing: None } };
    match header.previous {
        Some(previous) if previous.first_seq == before => End::Stated(previous),
        Some(previous) => End::Unknown { next_seq, missing: Some(folder.join(file_name(previous.first_seq))) },
        None => End::Unknown { next_seq, missing: Some(folder.join(file_name(next_seq))) },
    }
}

/// What reading a segment comes to next.
#[derive(Debug)]
pub enum Step {
    /// The entries of a whole group.
    Entries(Vec<Entry>),
    /// Acknowledged entries may be lost here. What follows is what can still be read.
    Damage(Damage),
    /// So many bytes at the end of the last segment had not been acknowledged.
    Torn(u64),
}

/// Reads one segment.
#[derive(Debug)]
pub struct SegmentReader<'s, R = BufReader<File>> {
    segment: &'s Segment,
    groups: Groups<R>,
    header: Option<Damaged>,
    over: bool,
}

impl<'s> SegmentReader<'s> {
    /// Opens the file.
    pub fn new(segment: &'s Segment) -> io::Result<Self> {
        Self::over(segment, BufReader::with_capacity(64 << 10, File::open(&segment.path)?))
    }
}

impl<'s, R: Read + Seek> SegmentReader<'s, R> {
    /// Reads the segment's bytes from `file`.
    pub fn over(segment: &'s Segment, file: R) -> io::Result<Self> {
        let end = match &segment.end {
            End::Stated(previous) => previous.length.min(segment.length),
            End::Last | End::Unknown { .. } => segment.length,
        };
        let groups = Groups::new(file, segment.header.as_ref().ok(), segment.first_seq, end)?;
        Ok(Self { segment, groups, header: segment.header.err(), over: false })
    }

    /// Where the groups that have been read end, and the sequence number after them.
    pub fn position(&self) -> (u64, u64) {
        self.groups.position()
    }

    /// What comes next; `None` at the end.
    pub fn step(&mut self) -> io::Result<Option<Step>> {
        let (at, seq) = self.position();
        if self.over {
            return Ok(None);
        }
        if let Some(damaged) = self.header.take() {
            let reason = Reason::Header(damaged);
            let to_seq = if self.groups.find_next()? { Some(self.position().1) } else { self.stated_end() };
            return Ok(Some(Step::Damage(self.damage(0, seq, to_seq, reason))));
        }
        let damaged = match self.groups.read_next()? {
            Found::Group(group) => match group.entries() {
                Ok(entries) => return Ok(Some(Step::Entries(entries))),
                Err(damaged) => {
                    let to_seq = Some(group.next_seq);
                    return Ok(Some(Step::Damage(self.damage(at, seq, to_seq, Reason::Group(damaged)))));
                }
            },
            Found::End => {
                self.over = true;
                return Ok(self.at_the_end().map(Step::Damage));
            }
            Found::Bad(damaged) => damaged,
        };
        // What was written after this place was written only when this place had been acknowledged.
        if self.groups.find_next()? {
            if self.position() == (at, seq) {
                // It was being written when it was first looked at.
                return self.step();
            }
            let to_seq = Some(self.position().1);
            return Ok(Some(Step::Damage(self.damage(at, seq, to_seq, Reason::Group(damaged)))));
        }
        self.over = true;
        Ok(Some(match &self.segment.end {
            End::Last => Step::Torn(self.segment.length.saturating_sub(at)),
            End::Stated(_) | End::Unknown { .. } => {
                Step::Damage(self.damage(at, seq, self.stated_end(), Reason::Group(damaged)))
            }
        }))
    }

    /// What is missing where the file ends between two groups.
    fn at_the_end(&self) -> Option<Damage> {
        let (at, seq) = self.position();
        match &self.segment.end {
            End::Last => None,
            End::Stated(previous) => (previous.next_seq != seq || previous.length != at)
                .then(|| self.damage(at, seq, self.stated_end(), Reason::Short)),
            End::Unknown { next_seq, missing: None } => {
                (*next_seq != seq).then(|| self.damage(at, seq, self.stated_end(), Reason::Short))
            }
            End::Unknown { missing: Some(missing), .. } => {
                let damage = self.damage(0, seq, self.stated_end(), Reason::Missing);
                Some(Damage { file: missing.clone(), ..damage })
            }
        }
    }

    fn stated_end(&self) -> Option<u64> {
        match &self.segment.end {
            End::Last => None,
            End::Stated(previous) => Some(previous.next_seq),
            End::Unknown { next_seq, .. } => Some(*next_seq),
        }
    }

    fn damage(&self, offset: u64, from_seq: u64, to_seq: Option<u64>, reason: Reason) -> Damage {
        Damage { file: self.segment.path.clone(), offset, from_seq, to_seq, reason }
    }
}
