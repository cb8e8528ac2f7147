//! The records of loads on disk: one file, and its only owner. A disk that is full or read-only stops no load: the
//! records are in memory then, and the next start knows those that were written last.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ledge_base::clock;
use ledge_base::durable;
use ledge_base::names::{ModelName, ModelVersion};

use super::{FailedLoad, LoadFailureStreak, LoadRecords, ServedVersion};

/// Name of the file in the box's state folder.
const FILE_NAME: &str = "load_records.json";

/// Left by earlier versions, which remembered loads that ended the daemon, and versions that had been checked.
const EARLIER_FILES: [&str; 2] = ["load_attempts.jsonl", "load_attempts.jsonl.damaged"];
const EARLIER_FOLDER: &str = "proven";

/// A handle to the records. Clones share it.
#[derive(Debug, Clone)]
pub struct LoadRecordFile {
    state: Arc<Mutex<LoadFileState>>,
}

#[derive(Debug)]
struct LoadFileState {
    records: LoadRecords,
    path: PathBuf,
    /// True after a change that could not be written.
    is_behind: bool,
}

impl LoadRecordFile {
    /// Reads the records in the state folder. A file that cannot be read is set aside: each version counts as new then.
    pub fn open(folder: &Path) -> Self {
        let path = folder.join(FILE_NAME);
        let records = read(&path).unwrap_or_else(|error| {
            tracing::error!(path = %path.display(), %error, "the records of loads cannot be read; they are set aside");
            let _ = durable::rename(&path, &path.with_extension("json.damaged"));
            LoadRecords::default()
        });
        for earlier in EARLIER_FILES {
            let _ = std::fs::remove_file(folder.join(earlier));
        }
        let _ = std::fs::remove_dir_all(folder.join(EARLIER_FOLDER));
        Self { state: Arc::new(Mutex::new(LoadFileState { records, path, is_behind: false })) }
    }

    fn lock(&self) -> MutexGuard<'_, LoadFileState> {
        // Nothing panics under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the records.
    pub fn read<T>(&self, look: impl FnOnce(&LoadRecords) -> T) -> T {
        look(&self.lock().records)
    }

    /// The description of the failure of a version, for people.
    pub fn describe_failure(&self, model: &ModelName, version: ModelVersion) -> Option<String> {
        self.read(|records| {
            let mut failures = records.failures();
            let found = failures.find(|(name, of, _)| *name == model && *of == version);
            found.map(|(_, _, failure)| failure.describe(model))
        })
    }

    /// Records a version that loaded. Blocks until it is on the disk.
    pub fn record_served(&self, model: &ModelName, version: ModelVersion, served: ServedVersion) {
        self.change(|records| records.record_served(model, version, served));
    }

    /// Records a load that failed. Returns true when it is news. Blocks until it is on the disk.
    pub fn record_failure(&self, model: &ModelName, version: ModelVersion, failed: FailedLoad) -> bool {
        let mut is_news = false;
        self.change(|records| {
            is_news = records.record_failure(model, version, failed, clock::unix_millis());
            true
        });
        is_news
    }

    /// Removes the failures of a model.
    pub fn forget_failures(&self, model: &ModelName) {
        self.change(|records| records.forget_failures(model));
    }

    /// Keeps the records of versions that `is_there`.
    pub fn retain(&self, is_there: impl Fn(&ModelName, ModelVersion) -> bool) {
        self.change(|records| records.retain(is_there));
    }

    /// The models with a version that failed, and the time until their next try.
    pub fn next_tries(&self) -> BTreeMap<ModelName, Duration> {
        self.read(|records| records.next_tries(clock::unix_millis()))
    }

    /// True when the next try of a version that failed is due.
    pub fn is_due(&self, model: &ModelName, version: ModelVersion) -> bool {
        self.read(|records| records.is_due(model, version, clock::unix_millis()))
    }

    fn change(&self, change: impl FnOnce(&mut LoadRecords) -> bool) {
        let mut state = self.lock();
        if change(&mut state.records) || state.is_behind {
            state.write();
        }
    }
}

impl LoadFileState {
    fn write(&mut self) {
        let written = self.records.encode().map_err(io::Error::from);
        let written = written.and_then(|content| durable::replace(&self.path, &content));
        match written {
            Ok(()) => self.is_behind = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_behind, true) {
                    tracing::warn!(
                        name: "load_records.not_written",
                        path = %self.path.display(),
                        %error,
                        "the records of loads cannot be written: the next start does not know of loads since then"
                    );
                }
            }
        }
    }
}

/// The versions in the file of `folder` with a failed last load; empty when the file cannot be read.
pub fn failures(folder: &Path) -> Vec<(ModelName, ModelVersion, LoadFailureStreak)> {
    let records = read(&folder.join(FILE_NAME)).unwrap_or_default();
    records.failures().map(|(model, version, failure)| (model.clone(), version, failure.clone())).collect()
}

fn read(path: &Path) -> io::Result<LoadRecords> {
    match std::fs::read(path) {
        Ok(content) => LoadRecords::parse(&content).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LoadRecords::default()),
        Err(error) => Err(error),
    }
}

/// Reads the records of loads; true when they are valid. They are the same after they were written and read again. The
/// folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_load_records(data: &[u8]) -> bool {
    let Ok(records) = LoadRecords::parse(data) else { return false };
    let written = records.encode().unwrap_or_default();
    assert!(LoadRecords::parse(&written).is_ok_and(|again| again == records), "{}", written.escape_ascii());
    for (model, version, failure) in records.failures() {
        let _ = (failure.describe(model), records.limit(model, version, &failure.content, u64::MAX));
    }
    let _ = records.next_tries(0);
    true
}
