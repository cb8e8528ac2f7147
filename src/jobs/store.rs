//! The folder of the queue: a folder for each job, which appears and disappears by one rename.
//!
//! In the folder of a job: `job.json`; `key`; `input` (sent over HTTP) or `files` (the names of the owner's files), both
//! encrypted; `journal`; and `end.json` once it has ended, when `input` and `files` are removed.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::time_id::TimeId;
use ledge_base::{checked_folder, durable};
use ledge_identity::sealing::Sealer;

use crate::cipher::JobCipher;
use crate::journal::JournalReader;
use crate::spec::{FORMAT_VERSION, JobEnd, JobProgress, JobSpec};

const SPEC_FILE: &str = "job.json";
const END_FILE: &str = "end.json";
const JOURNAL_FILE: &str = "journal";

/// The encrypted input of a job.
#[derive(Debug, Clone, Copy)]
pub struct JobInput<'a> {
    pub part: InputPart,
    pub content: &'a [u8],
}

/// The form of an encrypted input, and the name of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputPart {
    /// The bytes that came over HTTP.
    Sent,
    /// The names of the owner's files, each ended by a zero byte.
    Files,
}

impl InputPart {
    fn name(self) -> &'static str {
        match self {
            Self::Sent => "input",
            Self::Files => "files",
        }
    }
}

/// A job that was found at the start.
#[derive(Debug)]
pub struct StoredJob {
    pub id: TimeId,
    pub spec: JobSpec,
    pub progress: JobProgress,
    pub end: Option<JobEnd>,
    pub bytes: u64,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct JobStore {
    path: PathBuf,
    sealer: Sealer,
}

impl JobStore {
    /// The store in a folder, which is made with the first job.
    pub fn new(path: PathBuf, sealer: Sealer) -> Self {
        Self { path, sealer }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn folder(&self, id: &TimeId) -> PathBuf {
        self.path.join(id.as_str())
    }

    /// The file of the ended calls of a job.
    pub fn journal(&self, id: &TimeId) -> PathBuf {
        self.folder(id).join(JOURNAL_FILE)
    }

    /// The cipher of a job.
    pub fn cipher(&self, id: &TimeId) -> io::Result<JobCipher> {
        JobCipher::open(&self.folder(id), id, &self.sealer)
    }

    /// The jobs of the folder. What a killed process left half made or half removed is removed; a job that cannot be read
    /// is set aside.
    pub fn load(&self) -> io::Result<Vec<StoredJob>> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut jobs = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            if is_temporary(&name) {
                fs::remove_dir_all(self.path.join(&name))?;
            }
            let Some(id) = TimeId::parse(&name) else { continue };
            match self.read(&id) {
                Ok(job) => jobs.push(job),
                Err(error) => {
                    let aside = self.path.join(format!("damaged-{id}"));
                    durable::rename(&self.folder(&id), &aside)?;
                    tracing::error!(name: "jobs.set_aside", %id, %error, "a job cannot be read and was set aside");
                }
            }
        }
        Ok(jobs)
    }

    fn read(&self, id: &TimeId) -> io::Result<StoredJob> {
        let folder = self.folder(id);
        durable::remove_leftovers(&folder)?;
        let spec: JobSpec = serde_json::from_slice(&fs::read(folder.join(SPEC_FILE))?)?;
        if spec.form > FORMAT_VERSION {
            return Err(io::Error::other("a later version of Ledge made it"));
        }
        let end = match fs::read(folder.join(END_FILE)) {
            Ok(text) => Some(serde_json::from_slice::<JobEnd>(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let progress = if let Some(end) = &end {
            self.remove_input(id)?;
            end.progress.clone()
        } else {
            let mut progress = JobProgress::default();
            if let Some(mut journal) = JournalReader::open(&self.journal(id), self.cipher(id)?)? {
                while let Some((record, _)) = journal.next()? {
                    progress.count(spec.kind, &record);
                }
            }
            progress
        };
        let mut bytes = 0;
        for entry in fs::read_dir(&folder)? {
            bytes += entry?.metadata()?.len();
        }
        Ok(StoredJob { id: id.clone(), spec, progress, end, bytes })
    }

    /// Stores a new job. When this returns `Ok`, the job survives a power cut. Returns its bytes.
    pub fn add(&self, id: &TimeId, spec: &JobSpec, input: JobInput<'_>) -> io::Result<u64> {
        durable::create_folder(&self.path)?;
        checked_folder::close_to_others(&self.path)?;
        let new = self.path.join(format!("new-{id}"));
        let made = (|| {
            fs::create_dir(&new)?;
            let cipher = JobCipher::create(&new, id, &self.sealer)?;
            let sealed = cipher.seal(input.part.name(), input.content)?;
            durable::create_private(&new.join(input.part.name()), &sealed)?;
            durable::create_private(&new.join(SPEC_FILE), &serde_json::to_vec(spec)?)?;
            durable::rename(&new, &self.folder(id))?;
            Ok(sealed.len() as u64)
        })();
        if made.is_err() {
            let _ = fs::remove_dir_all(&new);
        }
        made
    }

    /// The input of a job.
    pub fn input(&self, id: &TimeId, part: InputPart) -> io::Result<Vec<u8>> {
        let sealed = fs::read(self.folder(id).join(part.name()))?;
        self.cipher(id)?.unseal(part.name(), &sealed)
    }

    /// Writes the end of a job, and removes its input. When this returns `Ok`, the end survives a power cut.
    pub fn end(&self, id: &TimeId, end: &JobEnd) -> io::Result<()> {
        durable::replace_private(&self.folder(id).join(END_FILE), &serde_json::to_vec(end)?)?;
        self.remove_input(id)
    }

    fn remove_input(&self, id: &TimeId) -> io::Result<()> {
        for part in [InputPart::Sent, InputPart::Files] {
            match fs::remove_file(self.folder(id).join(part.name())) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        durable::sync_folder(&self.folder(id))
    }

    /// Removes a job with its key, input and results. When this returns `Ok`, it does not come back.
    pub fn remove(&self, id: &TimeId) -> io::Result<()> {
        let old = self.path.join(format!("old-{id}"));
        durable::rename(&self.folder(id), &old)?;
        let _ = fs::remove_file(JobCipher::key_file(&old));
        // The rest is removed at the next start if this fails.
        let _ = fs::remove_dir_all(&old);
        Ok(())
    }

    /// Encrypts the keys of all jobs again that are plain or under an old master key; `done` gets each, `true` for one
    /// that was plain. A job that is removed meanwhile needs nothing.
    pub fn rekey(&self, stop: &dyn Fn() -> bool, mut done: impl FnMut(bool)) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Ok(()) };
        for entry in entries {
            if stop() {
                break;
            }
            let Some(id) = TimeId::parse(&entry?.file_name()) else { continue };
            match JobCipher::rekey(&self.folder(&id), &id, &self.sealer) {
                Ok(changed) => changed.into_iter().for_each(&mut done),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let id = name.strip_prefix("new-").or_else(|| name.strip_prefix("old-"));
    id.is_some_and(|id| TimeId::parse(OsStr::new(id)).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::spec::{JobKind, JobOwner, JobSource};

    fn spec() -> JobSpec {
        JobSpec {
            form: FORMAT_VERSION,
            owner: JobOwner::User(0),
            model: "m".parse().unwrap(),
            window: Some("22:00-06:00".parse().unwrap()),
            added_ms: 1,
            kind: JobKind::Files,
            source: JobSource::Sent,
            total: 1,
        }
    }

    #[test]
    fn a_job_is_there_whole_or_not_at_all_and_is_encrypted_under_its_own_key() {
        let folder = tempfile::tempdir().unwrap();
        let keys = [[1; 32], [2; 32]];
        let store = |sealer| JobStore::new(folder.path().join("jobs"), sealer);
        let plain = store(Sealer::none());
        assert!(plain.load().unwrap().is_empty());
        let id = TimeId::generate(1).unwrap();
        plain.add(&id, &spec(), JobInput { part: InputPart::Sent, content: b"a patient's page" }).unwrap();
        for left in ["new", "old"] {
            fs::create_dir(folder.path().join(format!("jobs/{left}-{id}"))).unwrap();
        }
        let stored = fs::read(folder.path().join(format!("jobs/{id}/input"))).unwrap();
        assert!(!stored.windows(7).any(|part| part == b"patient"));

        // The key of the job moves under a master key, and from that to another.
        for (sealer, was_plain) in
            [(Sealer::with_keys(&keys[..1]), true), (Sealer::with_keys(&[keys[1], keys[0]]), false)]
        {
            let mut done = Vec::new();
            store(sealer).rekey(&|| false, |plain| done.push(plain)).unwrap();
            assert_eq!(done, [was_plain]);
        }
        let (sealed, foreign) = (store(Sealer::with_keys(&keys[1..])), store(Sealer::with_keys(&[[3; 32]])));
        assert_eq!(sealed.input(&id, InputPart::Sent).unwrap(), b"a patient's page");
        assert!(foreign.input(&id, InputPart::Sent).unwrap_err().to_string().contains("master key"));

        let jobs = sealed.load().unwrap();
        assert_eq!((jobs.len(), &jobs[0].spec, &jobs[0].end), (1, &spec(), &None));
        assert_eq!(fs::read_dir(folder.path().join("jobs")).unwrap().count(), 1);
        let mut journal = Journal::open(&sealed.journal(&id), sealed.cipher(&id).unwrap(), |_| ()).unwrap();
        let record = crate::spec::CallRecord {
            item: 0,
            version: None,
            answered: 1,
            errors: vec![],
            input_end: 0,
            output_end: 0,
        };
        journal.append(&record, b"result").unwrap();
        assert_eq!(sealed.load().unwrap()[0].progress.done, 1);
        let end = JobEnd { at_ms: 5, error: None, progress: JobProgress { done: 1, ..JobProgress::default() } };
        sealed.end(&id, &end).unwrap();
        assert!(sealed.input(&id, InputPart::Sent).is_err());
        assert_eq!(sealed.load().unwrap()[0].end, Some(end));
        sealed.remove(&id).unwrap();
        assert_eq!(fs::read_dir(folder.path().join("jobs")).unwrap().count(), 0);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test damages a file")]
    fn a_job_that_cannot_be_read_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let store = JobStore::new(folder.path().to_owned(), Sealer::none());
        let id = TimeId::generate(1).unwrap();
        store.add(&id, &spec(), JobInput { part: InputPart::Files, content: b"a\0" }).unwrap();
        fs::write(folder.path().join(format!("{id}/job.json")), b"{").unwrap();
        assert!(store.load().unwrap().is_empty());
        assert!(folder.path().join(format!("damaged-{id}/job.json")).exists());
    }
}
