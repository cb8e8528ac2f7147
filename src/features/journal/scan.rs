//! Reading one segment of any bytes.

use std::io::{self, Read, Seek, SeekFrom};

use bytes::Bytes;

use super::format::{GROUP_HEAD_BYTES, HEADER_BYTES, JournalGroup, JournalGroupHeader, SegmentHeader};
use crate::record::DamagedBytes;

/// The bytes that are read at a time when searching for a group.
const SEARCH_WINDOW_BYTES: usize = 256 << 10;

/// The groups of one segment, in order.
#[derive(Debug)]
pub struct JournalGroupReader<R> {
    file: R,
    /// The position of the next read; `None` after a read that ended early. Seeking to the current position is avoided:
    /// it would empty the buffer, and groups may be small.
    reads_at: Option<u64>,
    /// The position of the next group.
    at: u64,
    end: u64,
    mark: u64,
    next_seq: u64,
}

/// The result of reading a group.
#[derive(Debug)]
pub enum ScannedGroup {
    Group(JournalGroup),
    /// The end of the segment.
    End,
    Damaged(DamagedBytes),
}

/// Reads the header of a segment of `length` bytes.
pub fn read_header(mut file: impl Read, length: u64) -> io::Result<Result<SegmentHeader, DamagedBytes>> {
    if length < HEADER_BYTES as u64 {
        return Ok(Err(DamagedBytes::Malformed));
    }
    let mut bytes = [0; HEADER_BYTES];
    Ok(read_full(&mut file, &mut bytes)?.and_then(|()| SegmentHeader::decode(&bytes)))
}

impl<R: Read + Seek> JournalGroupReader<R> {
    /// The groups of a segment that ends at `end`, which must not be beyond the end of the file. Without a readable
    /// header, the mark is taken from the first group.
    pub fn new(mut file: R, header: Option<&SegmentHeader>, first_seq: u64, end: u64) -> io::Result<Self> {
        let at = HEADER_BYTES as u64;
        let mark = if let Some(header) = header {
            header.mark
        } else {
            file.seek(SeekFrom::Start(at))?;
            let mut mark = [0; 8];
            read_full(&mut file, &mut mark)?.map_or(0, |()| u64::from_le_bytes(mark))
        };
        Ok(Self { file, reads_at: None, at, end, mark, next_seq: first_seq })
    }

    /// The position of the next group, and its expected first sequence number.
    pub fn position(&self) -> (u64, u64) {
        (self.at, self.next_seq)
    }

    /// Reads the next group. A damaged group does not advance the position.
    pub fn read_next(&mut self) -> io::Result<ScannedGroup> {
        if self.at >= self.end {
            return Ok(ScannedGroup::End);
        }
        Ok(match self.group_at(self.at)? {
            Ok((group, _)) if group.first_seq != self.next_seq => ScannedGroup::Damaged(DamagedBytes::Malformed),
            Ok((group, end)) => {
                self.at = end;
                self.next_seq = group.next_seq;
                ScannedGroup::Group(group)
            }
            Err(damaged) => ScannedGroup::Damaged(damaged),
        })
    }

    /// Moves to the first complete group at or after the current position. False without one.
    pub fn find_next(&mut self) -> io::Result<bool> {
        let mark = self.mark.to_le_bytes();
        let mut from = self.at;
        let mut window = Vec::with_capacity(SEARCH_WINDOW_BYTES);

        while from + (GROUP_HEAD_BYTES as u64) <= self.end {
            window.clear();
            self.go_to(from)?;
            self.reads_at = None;
            (&mut self.file).take((SEARCH_WINDOW_BYTES as u64).min(self.end - from)).read_to_end(&mut window)?;
            let candidates = window.windows(mark.len()).enumerate().filter(|(_, bytes)| *bytes == mark);
            for (offset, _) in candidates.collect::<Vec<_>>() {
                let at = from + offset as u64;
                if let Ok((group, _)) = self.group_at(at)?
                    && group.first_seq >= self.next_seq
                {
                    self.at = at;
                    self.next_seq = group.first_seq;
                    return Ok(true);
                }
            }
            if window.len() < SEARCH_WINDOW_BYTES {
                break;
            }
            // A mark may cross the border of two windows.
            from += (SEARCH_WINDOW_BYTES - mark.len() + 1) as u64;
        }

        Ok(false)
    }

    fn go_to(&mut self, at: u64) -> io::Result<()> {
        if self.reads_at != Some(at) {
            self.file.seek(SeekFrom::Start(at))?;
        }
        Ok(())
    }

    fn group_at(&mut self, at: u64) -> io::Result<Result<(JournalGroup, u64), DamagedBytes>> {
        let content = at + GROUP_HEAD_BYTES as u64;
        if content > self.end {
            return Ok(Err(DamagedBytes::Malformed));
        }
        self.go_to(at)?;
        self.reads_at = None;
        let mut head = [0; GROUP_HEAD_BYTES];
        if let Err(damaged) = read_full(&mut self.file, &mut head)? {
            return Ok(Err(damaged));
        }
        let head = JournalGroupHeader::decode(head).filter(|head| head.mark == self.mark);
        let Some(head) = head.filter(|head| head.length() as u64 <= self.end - content) else {
            return Ok(Err(DamagedBytes::Malformed));
        };
        let mut bytes = vec![0; head.length()];
        if let Err(damaged) = read_full(&mut self.file, &mut bytes)? {
            return Ok(Err(damaged));
        }
        self.reads_at = Some(content + head.length() as u64);
        if !head.matches(&bytes) {
            return Ok(Err(DamagedBytes::Checksum));
        }
        Ok(JournalGroup::decode(&Bytes::from(bytes)).map(|group| (group, content + head.length() as u64)))
    }
}

/// Fills `bytes`. A file that became shorter counts as damage, not as an I/O error.
fn read_full(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<Result<(), DamagedBytes>> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(Ok(())),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Err(DamagedBytes::Malformed)),
        Err(error) => Err(error),
    }
}
