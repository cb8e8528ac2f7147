//! The last acknowledged push, in two small files outside journal and index. When journal, index and snapshots all lack
//! an entry, these files still prove that it was acknowledged, so that the loss is reported.
//!
//! They are overwritten in place after each group of pushes, which costs two short writes to the page cache and
//! survives the end of the process. A thread syncs them to the disk at most a second later: a power cut may set them
//! back by that much, but they are never ahead of the journal.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ledge_base::durable;

use super::super::wire::{ByteReader, DamagedBytes};

/// The names of the two files.
const FILE_NAMES: [&str; 2] = ["acknowledged", "acknowledged.copy"];
/// The longest time that a new position may wait for its fsync.
const SYNC_DELAY_MAX: Duration = Duration::from_secs(1);

const MAGIC: &[u8; 8] = b"LEDGEACK";
const VERSION: u16 = 1;
/// Magic, version, three numbers, checksum.
const MARK_BYTES: usize = 8 + 2 + 3 * 8 + 4;

/// The content of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatermarkFile {
    /// All entries before this one were acknowledged.
    next_seq: u64,
    /// Acknowledged entries that the journal lacks, until a snapshot has them or they were reported as lost.
    lacking: Range<u64>,
}

/// The position of the last acknowledged push, shared by writer and maintenance.
#[derive(Debug)]
pub struct CommitWatermark {
    files: [(PathBuf, OnceLock<File>); 2],
    state: Mutex<WatermarkState>,
    /// Notified when there is something to sync, and at the end.
    changed: Condvar,
}

#[derive(Debug)]
struct WatermarkState {
    mark: WatermarkFile,
    /// True when the files on the disk have the position.
    durable: bool,
    closed: bool,
    /// True when the log already says that they cannot be written.
    failing: bool,
}

/// The state of the files at a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredWatermark {
    /// All entries before this one were acknowledged.
    Until(u64),
    /// No file: the store is new, or an earlier version wrote it.
    Missing,
    /// No file can be read.
    Damaged,
}

impl WatermarkFile {
    fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = Vec::with_capacity(MARK_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for number in [self.next_seq, self.lacking.start, self.lacking.end] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(&bytes);
        mark
    }

    fn read(path: &Path) -> io::Result<Result<Self, DamagedBytes>> {
        let mut bytes = Vec::with_capacity(MARK_BYTES + 1);
        File::open(path)?.take(MARK_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Self::decode(&bytes))
    }

    fn decode(bytes: &[u8]) -> Result<Self, DamagedBytes> {
        let (content, sum) = bytes.split_last_chunk::<4>().ok_or(DamagedBytes::Malformed)?;
        let mut reader = ByteReader::new(content);
        if reader.array()? != *MAGIC {
            return Err(DamagedBytes::Malformed);
        }
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err(DamagedBytes::Checksum);
        }
        if u16::from_le_bytes(reader.array()?) != VERSION {
            return Err(DamagedBytes::Unknown);
        }
        let mut number = || reader.array().map(u64::from_le_bytes);
        let mark = Self { next_seq: number()?, lacking: number()?..number()? };
        if reader.is_empty() { Ok(mark) } else { Err(DamagedBytes::Malformed) }
    }
}

impl CommitWatermark {
    /// Reads the files in `folder`; the one with the higher position counts. Nothing is written yet.
    pub fn open(folder: &Path) -> (Self, StoredWatermark) {
        let (mut newest, mut found): (Option<WatermarkFile>, _) = (None, StoredWatermark::Missing);
        for name in FILE_NAMES {
            match WatermarkFile::read(&folder.join(name)) {
                Ok(Ok(mark)) if newest.as_ref().is_none_or(|newest| newest.next_seq < mark.next_seq) => {
                    newest = Some(mark);
                }
                Ok(Ok(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(_)) | Err(_) => found = StoredWatermark::Damaged,
            }
        }
        let mark = newest.inspect(|mark| found = StoredWatermark::Until(mark.next_seq));
        let mark = mark.unwrap_or(WatermarkFile { next_seq: 0, lacking: 0..0 });
        let state = WatermarkState { mark, durable: true, closed: false, failing: false };
        let files = FILE_NAMES.map(|name| (folder.join(name), OnceLock::new()));
        (Self { files, state: Mutex::new(state), changed: Condvar::new() }, found)
    }

    /// Records the end of the journal when it was opened: all entries before `next_seq`, except the acknowledged ones
    /// that it lacks. The files are created where they are missing or damaged. When this returns, the position survives
    /// a power cut, unless the disk refuses writes.
    pub fn begin(&self, next_seq: u64, lacking: Option<Range<u64>>) {
        let mut state = self.state();
        state.mark.next_seq = state.mark.next_seq.max(next_seq);
        if let Some(lacking) = lacking {
            let known = &state.mark.lacking;
            let start = if known.is_empty() { lacking.start } else { known.start.min(lacking.start) };
            state.mark.lacking = start..known.end.max(lacking.end);
        }
        self.write(&mut state);
        drop(state);
        self.sync();
    }

    /// Records that entries before `next_seq` are about to be acknowledged: they are in the journal, fsynced.
    pub fn note(&self, next_seq: u64) {
        let mut state = self.state();
        if state.mark.next_seq < next_seq {
            state.mark.next_seq = next_seq;
            self.write(&mut state);
        }
    }

    /// The acknowledged entries that the journal lacks and that no snapshot has completely yet.
    pub fn lacking(&self) -> Option<Range<u64>> {
        Some(self.state().mark.lacking.clone()).filter(|lacking| !lacking.is_empty())
    }

    /// Records that lacking entries from `seq` on were reported as lost.
    pub fn reported_lost_from(&self, seq: u64) {
        self.end_lacking(|lacking| lacking.start..lacking.end.min(seq));
    }

    /// Records that a snapshot has every entry before `seq`.
    pub fn in_snapshot(&self, seq: u64) {
        self.end_lacking(|lacking| if lacking.end <= seq { 0..0 } else { lacking.clone() });
    }

    fn end_lacking(&self, change: impl FnOnce(&Range<u64>) -> Range<u64>) {
        let mut state = self.state();
        let left = change(&state.mark.lacking);
        if left == state.mark.lacking {
            return;
        }
        state.mark.lacking = left;
        self.write(&mut state);
        drop(state);
        self.sync();
    }

    /// Syncs new positions to the disk, at most a second later, until [`Self::close`].
    pub fn keep_durable(&self) {
        loop {
            let mut state = self.state();
            while state.durable && !state.closed {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            // Later positions share the same fsync.
            let waited = self.changed.wait_timeout_while(state, SYNC_DELAY_MAX, |state| !state.closed);
            let closed = waited.unwrap_or_else(PoisonError::into_inner).0.closed;
            self.sync();
            if closed {
                return;
            }
        }
    }

    /// Ends the syncing: no position is recorded afterwards.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, WatermarkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &mut WatermarkState) {
        let written = self.write_open(&state.mark);
        // Only errors count here: a file that is not open is skipped. `sync` handles all files.
        if written.is_err() {
            Self::report_failure(state, written);
        }
        if std::mem::take(&mut state.durable) {
            self.changed.notify_all();
        }
    }

    fn write_open(&self, mark: &WatermarkFile) -> io::Result<()> {
        let bytes = mark.encode();
        let written = self.files.iter().filter_map(|(_, file)| Some(file.get()?.write_all_at(&bytes, 0)));
        written.fold(Ok(()), Result::and)
    }

    /// Syncs the files to the disk, opens those that could not be opened yet, and writes again after a failed write.
    fn sync(&self) {
        let mut state = self.state();
        state.durable = true;
        let opened = self.files.iter().map(|(path, file)| open(path, file, &state.mark));
        let opened = opened.fold(Ok(()), Result::and);
        let written = if state.failing { self.write_open(&state.mark) } else { Ok(()) };
        drop(state);

        let synced = self.files.iter().filter_map(|(_, file)| Some(file.get()?.sync_data()));
        let done = synced.fold(opened.and(written), Result::and);
        Self::report_failure(&mut self.state(), done);
    }

    fn report_failure(state: &mut WatermarkState, done: io::Result<()>) {
        let failed = done.is_err();
        if let Err(error) = done
            && !state.failing
        {
            tracing::warn!(%error, "cannot write the position of the last acknowledged push; a loss of acknowledged pushes might not be reported");
        }
        state.failing = failed;
    }
}

/// Opens a file that is not open yet, and writes this mark. A new file appears by a rename, never without content.
fn open(path: &Path, file: &OnceLock<File>, mark: &WatermarkFile) -> io::Result<()> {
    if file.get().is_some() {
        return Ok(());
    }
    if !matches!(WatermarkFile::read(path), Ok(Ok(_))) {
        durable::replace(path, &mark.encode())?;
    }
    let opened = File::options().write(true).open(path)?;
    opened.write_all_at(&mark.encode(), 0)?;
    let _ = file.set(opened);
    Ok(())
}

/// Reads a mark for the fuzzers; true when it is valid. Only the exact bytes that are written of a mark are accepted.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(mark) = WatermarkFile::decode(data) else { return false };
    assert_eq!(mark.encode(), data);
    true
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what a broken disk leaves is written here")]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn reopened(folder: &Path) -> (CommitWatermark, StoredWatermark) {
        CommitWatermark::open(folder)
    }

    #[test]
    fn what_was_noted_is_known_after_the_process_ended_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let (acknowledged, found) = reopened(folder.path());
        assert_eq!(found, StoredWatermark::Missing);
        acknowledged.begin(1, None);
        acknowledged.note(501);
        acknowledged.note(7);
        assert_eq!(reopened(folder.path()).1, StoredWatermark::Until(501));
    }

    #[test]
    fn one_of_the_two_files_is_enough_and_the_other_is_made_again() {
        for lost in FILE_NAMES {
            for content in [None, Some(&b""[..]), Some(b"LEDGEACKnonsense")] {
                let folder = tempfile::tempdir().unwrap();
                let (acknowledged, _) = reopened(folder.path());
                acknowledged.begin(501, Some(7..9));
                let path = folder.path().join(lost);
                match content {
                    None => fs::remove_file(&path).unwrap(),
                    Some(content) => fs::write(&path, content).unwrap(),
                }
                let (acknowledged, found) = reopened(folder.path());
                assert_eq!((found, acknowledged.lacking()), (StoredWatermark::Until(501), Some(7..9)), "{lost}");
                acknowledged.begin(501, None);
                for name in FILE_NAMES {
                    assert!(WatermarkFile::decode(&fs::read(folder.path().join(name)).unwrap()).is_ok(), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_reported_once_until_it_can() {
        for lost in [&FILE_NAMES[..], &FILE_NAMES[..1], &FILE_NAMES[1..]] {
            let folder = tempfile::tempdir().unwrap();
            for name in lost {
                fs::create_dir(folder.path().join(name)).unwrap();
            }
            let (acknowledged, _) = reopened(folder.path());
            acknowledged.begin(1, None);
            for next_seq in 2..5 {
                acknowledged.note(next_seq);
                assert!(acknowledged.state().failing, "the next sync would report it again: {lost:?}");
                acknowledged.sync();
            }
            for name in lost {
                fs::remove_dir(folder.path().join(name)).unwrap();
            }
            acknowledged.sync();
            assert!(!acknowledged.state().failing);
            assert_eq!(reopened(folder.path()).1, StoredWatermark::Until(4));
        }
    }

    #[test]
    fn two_damaged_files_are_told_from_none() {
        let folder = tempfile::tempdir().unwrap();
        for name in FILE_NAMES {
            fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(reopened(folder.path()).1, StoredWatermark::Damaged);
    }

    #[test]
    fn what_the_journal_lacks_is_known_until_it_was_told_or_a_snapshot_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let lacking = || reopened(folder.path()).0.lacking();
        let (acknowledged, _) = reopened(folder.path());
        acknowledged.begin(501, Some(250..501));
        assert_eq!(lacking(), Some(250..501));
        acknowledged.reported_lost_from(400);
        assert_eq!(lacking(), Some(250..400));
        acknowledged.in_snapshot(399);
        assert_eq!(lacking(), Some(250..400));
        acknowledged.in_snapshot(400);
        assert_eq!(lacking(), None);
        acknowledged.begin(501, Some(300..501));
        acknowledged.reported_lost_from(1);
        assert_eq!(lacking(), None);
    }

    proptest! {
        #[test]
        fn a_mark_is_read_as_it_was_written_and_no_other_byte_is_taken_for_it(
            numbers in any::<[u64; 3]>(), at in 0..MARK_BYTES, flip in 1..=u8::MAX,
        ) {
            let [next_seq, start, end] = numbers;
            let mark = WatermarkFile { next_seq, lacking: start..end };
            let mut bytes = mark.encode();
            prop_assert_eq!(WatermarkFile::decode(&bytes), Ok(mark));
            for length in 0..MARK_BYTES {
                prop_assert!(WatermarkFile::decode(&bytes[..length]).is_err());
            }
            bytes[at] ^= flip;
            prop_assert!(WatermarkFile::decode(&bytes).is_err());
        }
    }
}
