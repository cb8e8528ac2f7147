//! Loads of the versions on this box, remembered across starts: the files that were served, and loads that failed.
//! Pure: no clock, no disk.
//!
//! A version that this box has served is known by its files, its `model.toml`, the libraries and the CPU. It loads
//! first, and a start waits for it. Any other is new. After a failed load a version is not loaded again before a pause,
//! which doubles with each failure in a row from a minute to a day. A request, and a change of its files, of its
//! `model.toml` or of the libraries, load it at once.

pub mod file;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use ledge_base::clock;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::retry::{FailureStreak, RetryPauses};
use ledge_engine::backend::Runtime;
use serde::{Deserialize, Serialize};

use super::folder::VersionFile;
use super::load_limit;

/// The pauses between two tries of a version that does not load.
const PAUSES: RetryPauses = RetryPauses { first: Duration::from_mins(1), longest: Duration::from_hours(24) };

/// The format of the file. A later one is set aside.
const FORMAT_VERSION: u32 = 1;

/// The most versions of a model that are known; the lowest are forgotten first.
const VERSIONS_MAX: usize = 64;

/// The most characters of a reason that are kept.
const REASON_CHARS_MAX: usize = 2000;

/// A version that this box has served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    /// Stands for its `model.toml`, the libraries and the CPU.
    pub conditions: String,
    /// BLAKE3 of its files.
    pub digest: String,
    pub files: Vec<VersionFile>,
    /// The time of its load, in milliseconds.
    pub took_ms: u64,
    /// `None` where its own file answered golden inputs wrong, and another stands in for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<CheckedVersion>,
}

/// The last load of a version that passed all its checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckedVersion {
    /// Stands for the files of the model, golden inputs among them, its `model.toml`, the libraries and the CPU.
    pub content: String,
    pub runtime: Runtime,
}

impl ServedVersion {
    fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |bytes, file| bytes.saturating_add(file.bytes))
    }

    /// The time of its load.
    pub fn took(&self) -> Duration {
        Duration::from_millis(self.took_ms)
    }

    /// True when `other` adds nothing worth writing.
    fn is_like(&self, other: &Self) -> bool {
        let is_usual = self.took_ms / 2 <= other.took_ms && other.took_ms / 2 <= self.took_ms;
        is_usual && Self { took_ms: self.took_ms, ..other.clone() } == *self
    }
}

/// A load that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedLoad {
    /// Stands for the files of the model, its `model.toml`, the libraries and the CPU.
    pub content: String,
    /// One line for people.
    pub reason: String,
    /// True when it ran out of time.
    pub is_timeout: bool,
    /// True when the box is at fault, and not the model: it is tried again each minute.
    pub is_of_box: bool,
}

/// Failed loads in a row of one content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadFailureStreak {
    content: String,
    reason: String,
    timeouts: u32,
    streak: FailureStreak,
    /// True when the box is at fault. It is forgotten with the process: a start tries the version at once.
    #[serde(skip)]
    is_of_box: bool,
}

impl LoadFailureStreak {
    /// The number of failed loads in a row.
    pub fn count(&self) -> u32 {
        self.streak.failures()
    }

    /// The reason, the failures in a row, and the advice.
    pub fn describe(&self, model: &ModelName) -> String {
        let mut text = self.reason.clone();
        if self.count() > 1 {
            let since = clock::rfc3339(self.streak.since_ms());
            let _ = write!(text, "; it failed {} times since {since}", self.count());
        }
        let next = clock::rfc3339(self.streak.next_ms(PAUSES));
        let _ = write!(
            text,
            "; the next try is at {next}, or at once after a change of its files or POST /v2/repository/models/{model}/load"
        );
        text
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct VersionRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    served: Option<ServedVersion>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<LoadFailureStreak>,
}

/// The records of all versions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadRecords {
    versions: BTreeMap<(ModelName, ModelVersion), VersionRecord>,
}

/// The records as they are stored.
#[derive(Serialize, Deserialize)]
struct StoredRecords {
    format: u32,
    versions: Vec<StoredLoad>,
}

#[derive(Serialize, Deserialize)]
struct StoredLoad {
    model: ModelName,
    version: ModelVersion,
    #[serde(flatten)]
    record: VersionRecord,
}

/// Reasons why stored records are not used.
#[derive(Debug, thiserror::Error)]
pub enum LoadRecordsError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it has the format {0} of a later version of Ledge")]
    Later(u32),
}

impl LoadRecords {
    fn parse(content: &[u8]) -> Result<Self, LoadRecordsError> {
        let stored: StoredRecords = serde_json::from_slice(content)?;
        if stored.format > FORMAT_VERSION {
            return Err(LoadRecordsError::Later(stored.format));
        }
        let versions = stored.versions.into_iter().filter(|entry| entry.record != VersionRecord::default());
        let versions = versions.map(|entry| ((entry.model, entry.version), entry.record));
        Ok(Self { versions: versions.collect() })
    }

    fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let entry = |((model, version), record): (&(ModelName, ModelVersion), &VersionRecord)| {
            let failure = record.failure.clone().filter(|failure| !failure.is_of_box);
            let record = VersionRecord { failure, ..record.clone() };
            (record != VersionRecord::default()).then(|| StoredLoad { model: model.clone(), version: *version, record })
        };
        let versions = self.versions.iter().filter_map(entry).collect();
        serde_json::to_vec_pretty(&StoredRecords { format: FORMAT_VERSION, versions })
    }

    fn get(&self, model: &ModelName, version: ModelVersion) -> Option<&VersionRecord> {
        self.versions.get(&(model.clone(), version))
    }

    /// The files that this box served as this version.
    pub fn served(&self, model: &ModelName, version: ModelVersion) -> Option<&ServedVersion> {
        self.get(model, version)?.served.as_ref()
    }

    /// The failure of this version, if it is one of this content.
    pub fn failure(&self, model: &ModelName, version: ModelVersion, content: &str) -> Option<&LoadFailureStreak> {
        self.get(model, version)?.failure.as_ref().filter(|failure| failure.content == content)
    }

    /// Every version with a failed last load.
    pub fn failures(&self) -> impl Iterator<Item = (&ModelName, ModelVersion, &LoadFailureStreak)> {
        self.versions.iter().filter_map(|((model, version), record)| Some((model, *version, record.failure.as_ref()?)))
    }

    /// Records a version that loaded. Returns true when that changes the records.
    pub fn record_served(&mut self, model: &ModelName, version: ModelVersion, served: ServedVersion) -> bool {
        let record = self.versions.entry((model.clone(), version)).or_default();
        let failed = record.failure.take().is_some();
        if record.served.as_ref().is_some_and(|known| known.is_like(&served)) {
            return failed;
        }
        record.served = Some(served);
        let of_model = self.versions.keys().filter(|(name, _)| name == model);
        let lowest = of_model.clone().find(|(_, of)| *of != version).cloned();
        if of_model.count() > VERSIONS_MAX
            && let Some(lowest) = lowest
        {
            self.versions.remove(&lowest);
        }
        true
    }

    /// Records a load that failed. Returns true when it is news: another reason than the last time.
    pub fn record_failure(
        &mut self,
        model: &ModelName,
        version: ModelVersion,
        failed: FailedLoad,
        now_ms: u64,
    ) -> bool {
        let record = self.versions.entry((model.clone(), version)).or_default();
        let FailedLoad { content, reason, is_timeout, is_of_box } = failed;
        let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
        let before = record.failure.take();
        let is_news = before.as_ref().is_none_or(|before| before.reason != reason);
        let before = before.filter(|before| before.content == content);
        let timeouts = before.as_ref().map_or(0, |before| before.timeouts).saturating_add(u32::from(is_timeout));
        let before = before.filter(|_| !is_of_box);
        let streak = before.map_or_else(|| FailureStreak::begin(now_ms), |before| before.streak.and_again(now_ms));
        record.failure = Some(LoadFailureStreak { content, reason, timeouts, streak, is_of_box });
        is_news
    }

    /// True when the next try of a version that failed is due.
    pub fn is_due(&self, model: &ModelName, version: ModelVersion, now_ms: u64) -> bool {
        let failure = self.get(model, version).and_then(|record| record.failure.as_ref());
        failure.is_some_and(|failure| failure.streak.is_due(PAUSES, now_ms))
    }

    /// The models with a version that failed, and the time until the next try of the first of these.
    pub fn next_tries(&self, now_ms: u64) -> BTreeMap<ModelName, Duration> {
        let mut tries = BTreeMap::<ModelName, Duration>::new();
        for (model, _, failure) in self.failures() {
            let wait = failure.streak.wait(PAUSES, now_ms);
            tries.entry(model.clone()).and_modify(|first| *first = wait.min(*first)).or_insert(wait);
        }
        tries
    }

    /// Removes the failures of a model. Returns true when there were any.
    pub fn forget_failures(&mut self, model: &ModelName) -> bool {
        let of_model = self.versions.iter_mut().filter(|((name, _), _)| name == model);
        let forgotten = of_model.filter_map(|(_, record)| record.failure.take()).count();
        self.versions.retain(|_, record| *record != VersionRecord::default());
        forgotten > 0
    }

    /// Keeps the records of versions that `is_there`. Returns true when others were removed.
    pub fn retain(&mut self, is_there: impl Fn(&ModelName, ModelVersion) -> bool) -> bool {
        let before = self.versions.len();
        self.versions.retain(|(model, version), _| is_there(model, *version));
        self.versions.len() < before
    }

    /// The limit of a load of this many bytes.
    pub fn limit(&self, model: &ModelName, version: ModelVersion, content: &str, bytes: u64) -> Duration {
        let others = self.versions.iter().filter(|((name, _), _)| name != model);
        let served = others.filter_map(|(_, record)| record.served.as_ref());
        let timeouts = self.failure(model, version, content).map_or(0, |failure| failure.timeouts);
        load_limit::limit(bytes, served.map(|served| (served.bytes(), served.took())), timeouts)
    }
}

#[cfg(test)]
mod tests;
