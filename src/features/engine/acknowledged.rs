//! How far pushes were acknowledged, in two small files outside journal and index. When journal, index and snapshots all lack
//! an entry, these are what still knows that it was acknowledged, so that the loss is told.
//!
//! They are overwritten in place after each group of pushes, which costs two short writes to the page cache and survives the
//! end of the process. A thread brings them to the disk at most a second later: a power cut may take them back by that much,
//! never beyond what the journal has.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ledge_base::durable;

use super::super::wire::{Damaged, Reader};

/// The files.
const NAMES: [&str; 2] = ["acknowledged", "acknowledged.copy"];
/// How much older than the newest note the files may be on the disk.
const LAG: Duration = Duration::from_secs(1);

const MAGIC: &[u8; 8] = b"LEDGEACK";
const VERSION: u16 = 1;
/// Magic, version, three numbers, checksum.
const LENGTH: usize = 8 + 2 + 3 * 8 + 4;

/// What the files say.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mark {
    /// Every entry before it was acknowledged.
    next_seq: u64,
    /// Entries that were acknowledged and that the journal turned out to lack, until they are in a snapshot or told as lost.
    lacking: Range<u64>,
}

/// How far pushes were acknowledged, for writer and upkeep.
#[derive(Debug)]
pub struct Acknowledged {
    files: [(PathBuf, OnceLock<File>); 2],
    state: Mutex<State>,
    /// Told when there is something to bring to the disk, and at the end.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mark: Mark,
    /// Whether the files have it on the disk.
    durable: bool,
    closed: bool,
    /// Whether it is known already that they cannot be written.
    failing: bool,
}

/// What a start finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Entries before this one were acknowledged.
    Until(u64),
    /// No file: the store is new, or an earlier version wrote it.
    Nothing,
    /// Files, and none that can be read.
    Damaged,
}

impl Mark {
    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for number in [self.next_seq, self.lacking.start, self.lacking.end] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        let mut mark = [0; LENGTH];
        mark.copy_from_slice(&bytes);
        mark
    }

    fn read(path: &Path) -> io::Result<Result<Self, Damaged>> {
        let mut bytes = Vec::with_capacity(LENGTH + 1);
        File::open(path)?.take(LENGTH as u64 + 1).read_to_end(&mut bytes)?;
        Ok(Self::decode(&bytes))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let (content, sum) = bytes.split_last_chunk::<4>().ok_or(Damaged::Malformed)?;
        let mut reader = Reader::new(content);
        if reader.array()? != *MAGIC {
            return Err(Damaged::Malformed);
        }
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err(Damaged::Checksum);
        }
        if u16::from_le_bytes(reader.array()?) != VERSION {
            return Err(Damaged::Unknown);
        }
        let mut number = || reader.array().map(u64::from_le_bytes);
        let mark = Self { next_seq: number()?, lacking: number()?..number()? };
        if reader.is_empty() { Ok(mark) } else { Err(Damaged::Malformed) }
    }
}

impl Acknowledged {
    /// Reads the files in `folder`, of which the one that says more counts. Nothing is written yet.
    pub fn open(folder: &Path) -> (Self, Found) {
        let (mut newest, mut found): (Option<Mark>, _) = (None, Found::Nothing);
        for name in NAMES {
            match Mark::read(&folder.join(name)) {
                Ok(Ok(mark)) if newest.as_ref().is_none_or(|newest| newest.next_seq < mark.next_seq) => {
                    newest = Some(mark);
                }
                Ok(Ok(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(_)) | Err(_) => found = Found::Damaged,
            }
        }
        let mark = newest.inspect(|mark| found = Found::Until(mark.next_seq));
        let mark = mark.unwrap_or(Mark { next_seq: 0, lacking: 0..0 });
        let state = State { mark, durable: true, closed: false, failing: false };
        let files = NAMES.map(|name| (folder.join(name), OnceLock::new()));
        (Self { files, state: Mutex::new(state), changed: Condvar::new() }, found)
    }

    /// Takes note of what the journal had when it was opened: whatever comes before `next_seq`, less the entries that it lacks
    /// though they were acknowledged. The files are made where they are missing or damaged. When this returns, all of it
    /// survives a power cut, unless the disk refuses.
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

    /// Entries before `next_seq` are about to be acknowledged: they are in the journal, fsynced.
    pub fn note(&self, next_seq: u64) {
        let mut state = self.state();
        if state.mark.next_seq < next_seq {
            state.mark.next_seq = next_seq;
            self.write(&mut state);
        }
    }

    /// Entries that were acknowledged and that the journal lacks: no snapshot has them all yet.
    pub fn lacking(&self) -> Option<Range<u64>> {
        Some(self.state().mark.lacking.clone()).filter(|lacking| !lacking.is_empty())
    }

    /// From `seq` on they were told as lost.
    pub fn told_from(&self, seq: u64) {
        self.end_lacking(|lacking| lacking.start..lacking.end.min(seq));
    }

    /// A snapshot has every entry before `seq`.
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

    /// Brings what was noted to the disk, a second later at most, until [`Self::close`].
    pub fn keep_durable(&self) {
        loop {
            let mut state = self.state();
            while state.durable && !state.closed {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            // What is noted meanwhile goes along.
            let waited = self.changed.wait_timeout_while(state, LAG, |state| !state.closed);
            let closed = waited.unwrap_or_else(PoisonError::into_inner).0.closed;
            self.sync();
            if closed {
                return;
            }
        }
    }

    /// The end: nothing is noted afterwards.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, state: &mut State) {
        let written = self.write_open(&state.mark);
        // Success proves little: a file that could not be opened is not written either. `sync` sees to all of them.
        if written.is_err() {
            Self::complain(state, written);
        }
        if std::mem::take(&mut state.durable) {
            self.changed.notify_all();
        }
    }

    fn write_open(&self, mark: &Mark) -> io::Result<()> {
        let bytes = mark.encode();
        let written = self.files.iter().filter_map(|(_, file)| Some(file.get()?.write_all_at(&bytes, 0)));
        written.fold(Ok(()), Result::and)
    }

    /// Brings the files to the disk, opens those that could not be opened yet, and writes again what could not be written.
    fn sync(&self) {
        let mut state = self.state();
        state.durable = true;
        let opened = self.files.iter().map(|(path, file)| open(path, file, &state.mark));
        let opened = opened.fold(Ok(()), Result::and);
        let written = if state.failing { self.write_open(&state.mark) } else { Ok(()) };
        drop(state);

        let synced = self.files.iter().filter_map(|(_, file)| Some(file.get()?.sync_data()));
        let done = synced.fold(opened.and(written), Result::and);
        Self::complain(&mut self.state(), done);
    }

    fn complain(state: &mut State, done: io::Result<()>) {
        let failed = done.is_err();
        if let Err(error) = done
            && !state.failing
        {
            tracing::warn!(%error, "how far pushes were acknowledged cannot be noted: a loss might not be told");
        }
        state.failing = failed;
    }
}

/// Opens a file that is not open yet, with this mark in it. One that is whole is never without content.
fn open(path: &Path, file: &OnceLock<File>, mark: &Mark) -> io::Result<()> {
    if file.get().is_some() {
        return Ok(());
    }
    if !matches!(Mark::read(path), Ok(Ok(_))) {
        durable::replace(path, &mark.encode())?;
    }
    let opened = File::options().write(true).open(path)?;
    opened.write_all_at(&mark.encode(), 0)?;
    let _ = file.set(opened);
    Ok(())
}

/// Reads a mark for the fuzzers; true when it is one. It is read only from exactly what is written of it.
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(mark) = Mark::decode(data) else { return false };
    assert_eq!(mark.encode(), data);
    true
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what a broken disk leaves is written here")]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn reopened(folder: &Path) -> (Acknowledged, Found) {
        Acknowledged::open(folder)
    }

    #[test]
    fn what_was_noted_is_known_after_the_process_ended_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let (acknowledged, found) = reopened(folder.path());
        assert_eq!(found, Found::Nothing);
        acknowledged.begin(1, None);
        acknowledged.note(501);
        acknowledged.note(7);
        assert_eq!(reopened(folder.path()).1, Found::Until(501));
    }

    #[test]
    fn one_of_the_two_files_is_enough_and_the_other_is_made_again() {
        for lost in NAMES {
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
                assert_eq!((found, acknowledged.lacking()), (Found::Until(501), Some(7..9)), "{lost}");
                acknowledged.begin(501, None);
                for name in NAMES {
                    assert!(Mark::decode(&fs::read(folder.path().join(name)).unwrap()).is_ok(), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_reported_once_until_it_can() {
        for lost in [&NAMES[..], &NAMES[..1], &NAMES[1..]] {
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
            assert_eq!(reopened(folder.path()).1, Found::Until(4));
        }
    }

    #[test]
    fn two_damaged_files_are_told_from_none() {
        let folder = tempfile::tempdir().unwrap();
        for name in NAMES {
            fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(reopened(folder.path()).1, Found::Damaged);
    }

    #[test]
    fn what_the_journal_lacks_is_known_until_it_was_told_or_a_snapshot_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let lacking = || reopened(folder.path()).0.lacking();
        let (acknowledged, _) = reopened(folder.path());
        acknowledged.begin(501, Some(250..501));
        assert_eq!(lacking(), Some(250..501));
        acknowledged.told_from(400);
        assert_eq!(lacking(), Some(250..400));
        acknowledged.in_snapshot(399);
        assert_eq!(lacking(), Some(250..400));
        acknowledged.in_snapshot(400);
        assert_eq!(lacking(), None);
        acknowledged.begin(501, Some(300..501));
        acknowledged.told_from(1);
        assert_eq!(lacking(), None);
    }

    proptest! {
        #[test]
        fn a_mark_is_read_as_it_was_written_and_no_other_byte_is_taken_for_it(
            numbers in any::<[u64; 3]>(), at in 0..LENGTH, flip in 1..=u8::MAX,
        ) {
            let [next_seq, start, end] = numbers;
            let mark = Mark { next_seq, lacking: start..end };
            let mut bytes = mark.encode();
            prop_assert_eq!(Mark::decode(&bytes), Ok(mark));
            for length in 0..LENGTH {
                prop_assert!(Mark::decode(&bytes[..length]).is_err());
            }
            bytes[at] ^= flip;
            prop_assert!(Mark::decode(&bytes).is_err());
        }
    }
}
