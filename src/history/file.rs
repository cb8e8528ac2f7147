//! One series in a file: a page with its name, and a ring of places for each resolution.
//!
//! The place of a record follows from the time of its interval, so no pointer has to be kept, a write touches only its own
//! place, and whatever a power cut or a damaged block leaves costs only the records in it. The file is sparse: places that
//! were never written take no room.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use ledge_base::durable;

use crate::record::{Record, StoredRecord, record_bytes};
use crate::series::{NAME_BYTES_MAX, Resolution, SeriesName};

/// The bytes of the first page.
const HEADER_BYTES: usize = 4096;

/// The first bytes of a file. They end in the version of its form.
const MAGIC: &[u8; 12] = b"ledge-hist\0\x01";

/// A series in a file.
#[derive(Debug)]
pub struct SeriesFile {
    file: File,
    columns: usize,
}

/// The name of the series in the first page of a file; `None` where it is not a history.
pub fn name_in(path: &Path) -> io::Result<Option<SeriesName>> {
    let mut page = vec![0; HEADER_BYTES];
    let file = OpenOptions::new().read(true).custom_flags(no_follow()).open(path)?;
    if !file.metadata()?.is_file() || file.read_exact_at(&mut page, 0).is_err() {
        return Ok(None);
    }
    let text = page.get(MAGIC.len() + 8..).and_then(|rest| rest.split(|byte| *byte == 0).next()).unwrap_or_default();
    let name = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    Ok(name.filter(|name| page == header(name)))
}

fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

/// The records of a span.
#[derive(Debug, Default, PartialEq)]
pub struct RecordSpan {
    /// In the order of their intervals. Those that were not recorded are missing.
    pub records: Vec<Record>,
    /// The places that have bytes which were not written there.
    pub damaged: u32,
}

impl SeriesFile {
    /// Creates the file of a series, or replaces it by an empty one.
    pub fn create(path: &Path, name: &SeriesName) -> io::Result<()> {
        durable::replace_private(path, &header(name))
    }

    /// Opens the file of a series. An error of the kind [`io::ErrorKind::InvalidData`] is a file that is not one of this
    /// series.
    pub fn open(path: &Path, name: &SeriesName) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(no_follow()).open(path)?;
        let mut page = vec![0; HEADER_BYTES];
        let is_whole = file.metadata()?.is_file() && file.read_exact_at(&mut page, 0).is_ok() && page == header(name);
        if !is_whole {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("not the history of {name}")));
        }
        Ok(Self { file, columns: name.columns().len() })
    }

    /// Writes records of ascending intervals, neighbours by one system call.
    pub fn write(&self, resolution: Resolution, records: &[Record]) -> io::Result<()> {
        let slots = resolution.slots();
        // Neighbours in the file: not those around its end.
        let is_next = |one: &Record, next: &Record| {
            one.slot.checked_add(1) == Some(next.slot) && !next.slot.is_multiple_of(slots)
        };
        for neighbours in records.chunk_by(is_next) {
            let Some(first) = neighbours.first() else { continue };
            let mut bytes = Vec::with_capacity(neighbours.len() * record_bytes(self.columns));
            for record in neighbours {
                record.encode(&mut bytes);
            }
            self.file.write_all_at(&bytes, self.offset(resolution, first.slot))?;
        }
        Ok(())
    }

    /// Reads the records of some intervals. Those that are older than what is kept are not there.
    pub fn read(&self, resolution: Resolution, slots: Range<u32>) -> io::Result<RecordSpan> {
        let begin = slots.start.max(slots.end.saturating_sub(resolution.slots()));
        let mut span = RecordSpan::default();
        let mut from = begin;
        while from < slots.end {
            let to_end = resolution.slots() - from % resolution.slots();
            let count = to_end.min(slots.end - from);
            self.read_neighbours(resolution, from..from + count, &mut span)?;
            from += count;
        }
        Ok(span)
    }

    fn read_neighbours(&self, resolution: Resolution, slots: Range<u32>, span: &mut RecordSpan) -> io::Result<()> {
        let each = record_bytes(self.columns);
        let mut bytes = vec![0; each * slots.len()];
        read_up_to(&self.file, &mut bytes, self.offset(resolution, slots.start))?;
        for (slot, bytes) in slots.zip(bytes.chunks_exact(each)) {
            match Record::decode(bytes) {
                StoredRecord::Whole(record) if record.slot == slot => span.records.push(record),
                // One of an earlier round.
                StoredRecord::Whole(_) | StoredRecord::Empty => {}
                StoredRecord::Damaged => span.damaged += 1,
            }
        }
        Ok(())
    }

    /// True once a record by the hour was written.
    pub fn has_hours(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() > self.offset(Resolution::Hour, 0))
    }

    /// Forgets the records by the hour, and gives back their room. A power cut does not bring them back.
    pub fn forget_hours(&self) -> io::Result<()> {
        self.file.set_len(self.offset(Resolution::Hour, 0))?;
        self.file.sync_data()
    }

    /// Makes the records that were written survive a power cut.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Overwrites the records of intervals before `limit_ms`, in milliseconds since the Unix epoch, also those of earlier
    /// rounds. Returns their number, and that of the records that are left.
    pub fn forget_before(&self, limit_ms: u64) -> io::Result<(u64, u64)> {
        let (mut forgotten, mut left) = (0, 0);
        let each = record_bytes(self.columns);
        for resolution in Resolution::ALL {
            let limit = resolution.slot(limit_ms);
            let mut bytes = vec![0; each * usize::try_from(resolution.slots()).unwrap_or(0)];
            let begin = self.offset(resolution, 0);
            read_up_to(&self.file, &mut bytes, begin)?;
            for (place, record) in (0..).zip(bytes.chunks_exact(each)) {
                match Record::decode(record) {
                    StoredRecord::Whole(record) if record.slot < limit => {
                        self.file.write_all_at(&vec![0; each], begin + place * each as u64)?;
                        forgotten += 1;
                    }
                    StoredRecord::Whole(_) => left += 1,
                    StoredRecord::Empty | StoredRecord::Damaged => {}
                }
            }
        }
        if forgotten > 0 {
            self.file.sync_data()?;
        }
        Ok((forgotten, left))
    }

    fn offset(&self, resolution: Resolution, slot: u32) -> u64 {
        let before = Resolution::ALL.into_iter().take_while(|one| *one < resolution).map(Resolution::slots);
        let places = u64::from(before.sum::<u32>() + slot % resolution.slots());
        HEADER_BYTES as u64 + places * record_bytes(self.columns) as u64
    }
}

/// The most bytes of a file of a series.
pub const fn file_bytes_max(columns: usize, has_hours: bool) -> u64 {
    let hours = if has_hours { Resolution::Hour.slots() } else { 0 };
    let places = Resolution::FiveSeconds.slots() + Resolution::Minute.slots() + hours;
    HEADER_BYTES as u64 + places as u64 * record_bytes(columns) as u64
}

/// Reads as much as the file has. The rest of `bytes` stays as it is.
fn read_up_to(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.read_at(bytes, offset) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                bytes = bytes.get_mut(count..).unwrap_or_default();
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The first page: magic bytes, the length of the name and the name.
fn header(name: &SeriesName) -> Vec<u8> {
    let text = name.to_string();
    debug_assert!(text.len() <= NAME_BYTES_MAX);
    let mut page = MAGIC.to_vec();
    page.extend(u32::try_from(name.columns().len()).unwrap_or(0).to_le_bytes());
    page.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
    page.extend(text.bytes());
    page.resize(HEADER_BYTES, 0);
    page
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::series::USAGE_COLUMNS;

    fn file() -> (TempDir, SeriesFile) {
        let folder = tempfile::tempdir().unwrap();
        let (path, name) = (folder.path().join("wine"), "model:wine".parse().unwrap());
        SeriesFile::create(&path, &name).unwrap();
        let file = SeriesFile::open(&path, &name).unwrap();
        (folder, file)
    }

    fn record(slot: u32) -> Record {
        #[expect(clippy::cast_precision_loss, reason = "only compared")]
        Record { slot, covered_s: 60, figures: vec![slot as f32; USAGE_COLUMNS.len()].into() }
    }

    fn slots(span: &RecordSpan) -> Vec<u32> {
        span.records.iter().map(|record| record.slot).collect()
    }

    #[test]
    fn records_of_each_resolution_are_apart_and_the_newest_round_is_read() {
        let (_folder, file) = file();
        for resolution in Resolution::ALL {
            let round = resolution.slots();
            file.write(resolution, &[record(round - 1), record(round), record(round + 1)]).unwrap();
            assert_eq!(slots(&file.read(resolution, 0..round + 5).unwrap()), [round - 1, round, round + 1]);
            file.write(resolution, &[record(2 * round - 1)]).unwrap();
            let all = file.read(resolution, 0..2 * round + 1).unwrap();
            assert_eq!((slots(&all), all.damaged), (vec![round + 1, 2 * round - 1], 0), "{resolution:?}");
        }
    }

    #[test]
    fn a_damaged_block_costs_only_its_records() {
        let (folder, file) = file();
        let all: Vec<_> = (7200..7200 + 720).map(record).collect();
        file.write(Resolution::FiveSeconds, &all).unwrap();
        let raw = OpenOptions::new().write(true).open(folder.path().join("wine")).unwrap();
        raw.write_all_at(&[0xa5; 512], 8192).unwrap();
        let span = file.read(Resolution::FiveSeconds, 7200..7920).unwrap();
        assert_eq!(span.records.len() + span.damaged as usize, 720);
        assert!((11..=14).contains(&span.damaged), "{}", span.damaged);
    }

    #[test]
    fn the_file_of_another_series_or_of_another_form_is_refused() {
        let (folder, _file) = file();
        let path = folder.path().join("wine");
        let open = |name: &str| SeriesFile::open(&path, &name.parse().unwrap()).map(drop).map_err(|error| error.kind());
        assert_eq!(open("model:wine"), Ok(()));
        assert_eq!(open("model:wind"), Err(io::ErrorKind::InvalidData));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[11] = 2;
        #[expect(clippy::disallowed_methods, reason = "a damaged file need not be durable")]
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(open("model:wine"), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn hours_that_are_forgotten_are_empty() {
        let (_folder, file) = file();
        file.write(Resolution::Minute, &[record(60)]).unwrap();
        file.write(Resolution::Hour, &[record(1)]).unwrap();
        file.forget_hours().unwrap();
        assert_eq!(slots(&file.read(Resolution::Hour, 0..9).unwrap()), [0; 0]);
        assert_eq!(slots(&file.read(Resolution::Minute, 0..90).unwrap()), [60]);
        assert!(file.file.metadata().unwrap().len() <= file_bytes_max(USAGE_COLUMNS.len(), false));
    }

    proptest! {
        #[test]
        fn what_was_written_last_is_read(writes in proptest::collection::vec((0..4000_u32, 1..50_u32), 1..20)) {
            let (_folder, file) = file();
            let mut last = std::collections::BTreeMap::new();
            for (from, count) in writes {
                let records: Vec<_> = (from..from + count).map(record).collect();
                file.write(Resolution::Minute, &records).unwrap();
                for record in records {
                    last.insert(record.slot % Resolution::Minute.slots(), record.slot);
                }
            }
            for round in 0..3 {
                let from = round * Resolution::Minute.slots();
                let read = slots(&file.read(Resolution::Minute, from..from + Resolution::Minute.slots()).unwrap());
                let mut expected: Vec<_> =
                    last.values().copied().filter(|slot| slot / Resolution::Minute.slots() == round).collect();
                expected.sort_unstable();
                prop_assert_eq!(read, expected);
            }
        }
    }
}
