//! The journal of a job: a frame for each call that has ended, with its result where the job keeps it. A frame is the
//! result and the mark that it is there in one, so after `kill -9` no call is in it twice, and none is lost.
//!
//! A frame is its length (4 bytes, little-endian) and as many encrypted bytes. The number of the frame is authenticated,
//! so frames cannot change places. Plain, it is a [`CallRecord`] as a line of JSON, and the bytes of the result.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ledge_base::durable;

use crate::cipher::JobCipher;
use crate::spec::CallRecord;

/// The longest frame, in bytes.
const FRAME_BYTES_MAX: u32 = 256 << 20;

/// The frames of a file that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalEnd {
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// True if behind them is something other than a frame that was being written.
    pub is_damaged: bool,
}

/// The frames of a journal, one after another.
#[derive(Debug)]
pub struct JournalReader {
    file: BufReader<File>,
    length: u64,
    cipher: JobCipher,
    end: JournalEnd,
}

impl JournalReader {
    /// Opens the journal of a job. Without a file it has no frames.
    pub fn open(path: &Path, cipher: JobCipher) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        Ok(Some(Self { file: BufReader::new(file), length, cipher, end: JournalEnd::default() }))
    }

    /// The next frame; `None` at the end of those that can be read.
    pub fn next(&mut self) -> io::Result<Option<(CallRecord, Vec<u8>)>> {
        let rest = self.length - self.end.bytes;
        if rest < 4 {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.file.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length);
        // A power cut may leave zeros.
        if length == 0 || u64::from(length) > rest - 4 {
            self.end.is_damaged = length > FRAME_BYTES_MAX;
            return Ok(None);
        }
        let mut sealed = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact(&mut sealed)?;
        let read = self.cipher.unseal(&place(self.end.frames), &sealed).ok().and_then(|plain| parse(&plain));
        let Some(frame) = read else {
            self.end.is_damaged = true;
            return Ok(None);
        };
        self.end.frames += 1;
        self.end.bytes += 4 + u64::from(length);
        Ok(Some(frame))
    }

    /// The frames so far.
    pub fn end(&self) -> JournalEnd {
        self.end
    }
}

/// A journal that is written.
#[derive(Debug)]
pub struct Journal {
    file: File,
    cipher: JobCipher,
    end: JournalEnd,
}

impl Journal {
    /// Opens the journal of a job, and makes it if necessary. `visit` gets each ended call. A frame that was being written
    /// is removed; of a damaged journal, a copy is kept as `journal.damaged`, and the calls behind the damage are run
    /// again.
    pub fn open(path: &Path, cipher: JobCipher, mut visit: impl FnMut(CallRecord)) -> io::Result<Self> {
        let mut end = JournalEnd::default();
        if let Some(mut reader) = JournalReader::open(path, cipher.clone())? {
            while let Some((record, _)) = reader.next()? {
                visit(record);
            }
            end = reader.end();
        }
        if end.is_damaged {
            let copy = damaged(path);
            std::fs::copy(path, &copy)?;
            File::open(&copy)?.sync_all()?;
            tracing::error!(name: "jobs.journal_damaged", copy = %copy.display(), "the journal of a job is damaged");
        }
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        file.set_len(end.bytes)?;
        file.sync_all()?;
        durable::sync_folder(path.parent().unwrap_or(path))?;
        Ok(Self { file, cipher, end })
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.end.bytes
    }

    /// Writes an ended call. When this returns `Ok`, it survives a power cut; after an error the journal must be opened
    /// again.
    pub fn append(&mut self, record: &CallRecord, result: &[u8]) -> io::Result<()> {
        let mut plain = serde_json::to_vec(record)?;
        plain.push(b'\n');
        plain.extend_from_slice(result);
        let sealed = self.cipher.seal(&place(self.end.frames), &plain)?;
        let length = u32::try_from(sealed.len()).ok().filter(|length| *length <= FRAME_BYTES_MAX);
        let length = length.ok_or_else(|| io::Error::other("a result is too long"))?;
        let mut frame = length.to_le_bytes().to_vec();
        frame.extend_from_slice(&sealed);
        self.file.seek(SeekFrom::Start(self.end.bytes))?;
        self.file.write_all(&frame)?;
        self.file.sync_data()?;
        self.end.frames += 1;
        self.end.bytes += frame.len() as u64;
        Ok(())
    }
}

fn place(frame: u64) -> String {
    format!("frame {frame}")
}

fn damaged(path: &Path) -> PathBuf {
    path.with_extension("damaged")
}

fn parse(plain: &[u8]) -> Option<(CallRecord, Vec<u8>)> {
    let end = plain.iter().position(|byte| *byte == b'\n')?;
    let (head, rest) = plain.split_at_checked(end)?;
    Some((serde_json::from_slice(head).ok()?, rest.get(1..)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use ledge_base::time_id::TimeId;
    use ledge_identity::sealing::Sealer;
    use proptest::prelude::*;

    use super::*;

    fn record(item: u64) -> CallRecord {
        CallRecord { item, version: Some("1".to_owned()), answered: 1, errors: Vec::new(), input_end: 0, output_end: 0 }
    }

    fn cipher(folder: &Path) -> JobCipher {
        let id = TimeId::generate(0).unwrap();
        JobCipher::create(folder, &id, &Sealer::none()).unwrap()
    }

    fn items(path: &Path, cipher: &JobCipher) -> Vec<u64> {
        let mut items = Vec::new();
        Journal::open(path, cipher.clone(), |record| items.push(record.item)).unwrap();
        items
    }

    #[expect(clippy::disallowed_methods, reason = "the test makes torn files")]
    fn write(path: &Path, content: &[u8]) {
        std::fs::write(path, content).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn a_journal_that_is_cut_anywhere_has_the_whole_frames_before_and_goes_on(
            sizes in prop::collection::vec(0_usize..50, 1..5),
            cut in any::<prop::sample::Index>(),
            zeros in 0_usize..8,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let (path, cipher) = (folder.path().join("journal"), cipher(folder.path()));
            let mut journal = Journal::open(&path, cipher.clone(), |_| ()).unwrap();
            let mut ends = vec![0];
            for (item, size) in sizes.iter().enumerate() {
                journal.append(&record(item as u64), &vec![7; *size]).unwrap();
                ends.push(usize::try_from(journal.bytes()).unwrap());
            }
            let mut content = std::fs::read(&path).unwrap();
            let cut = cut.index(content.len() + 1);
            content.truncate(cut);
            content.extend(vec![0; zeros]);
            write(&path, &content);
            let whole = ends.iter().filter(|end| **end <= cut).count() as u64 - 1;
            prop_assert_eq!(items(&path, &cipher), (0..whole).collect::<Vec<_>>());
            Journal::open(&path, cipher.clone(), |_| ()).unwrap().append(&record(99), b"x").unwrap();
            prop_assert_eq!(items(&path, &cipher), (0..whole).chain([99]).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_changed_frame_is_set_aside_and_never_believed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cipher) = (folder.path().join("journal"), cipher(folder.path()));
        let mut journal = Journal::open(&path, cipher.clone(), |_| ()).unwrap();
        let ends = [0, 1, 2].map(|item| {
            journal.append(&record(item), b"secret result").unwrap();
            usize::try_from(journal.bytes()).unwrap()
        });
        let content = std::fs::read(&path).unwrap();
        assert!(!content.windows(6).any(|part| part == b"secret"));
        let mut swapped = content[..ends[0]].to_vec();
        swapped.extend_from_slice(&content[ends[1]..]);
        write(&path, &swapped);
        assert_eq!(items(&path, &cipher), [0]);
        assert_eq!(std::fs::read(folder.path().join("journal.damaged")).unwrap(), swapped);
    }
}
