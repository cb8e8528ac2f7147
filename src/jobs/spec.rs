//! A job as it was added, and as it ended: the two files that are written once for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use ledge_base::names::ModelName;
use ledge_base::open_folder::FileStamp;
use ledge_base::principal::Principal;
use ledge_models::serving::windows::DailyWindow;
use serde::{Deserialize, Serialize};

/// The form of the files of a job. Raise it when an earlier version could no longer read them.
pub const FORMAT_VERSION: u32 = 1;

/// The most files of one job.
pub const FILES_MAX: usize = 100_000;

/// The most errors that are shown of a job. The others are counted.
pub const ERRORS_SHOWN_MAX: usize = 100;

/// A job as it was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    pub form: u32,
    pub owner: JobOwner,
    pub model: ModelName,
    pub window: Option<DailyWindow>,
    /// Milliseconds since the Unix epoch.
    pub added_ms: u64,
    pub kind: JobKind,
    pub source: JobSource,
    /// Files of a job of files, bytes of a table.
    pub total: u64,
}

/// The way in which an input is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Each file is a call.
    Files,
    /// Some hundred rows of CSV are a call.
    Table,
}

/// The place of the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum JobSource {
    /// It came over HTTP, and is encrypted in the folder of the job.
    Sent,
    /// It stays in a folder of the owner.
    Folder {
        folder: PathBuf,
        /// The folder of the results; `None` is the same one.
        out: Option<PathBuf>,
        /// The state of a table when the job was added.
        stamp: Option<FileStamp>,
    },
}

/// The caller who added a job, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOwner {
    Peer(IpAddr),
    User(u32),
    Key(String),
    Certificate(String),
    Person(String),
}

impl JobOwner {
    /// `None` for a caller that adds no jobs.
    pub fn of(principal: &Principal) -> Option<Self> {
        match principal {
            Principal::Peer(address) => Some(Self::Peer(*address)),
            Principal::User(uid) => Some(Self::User(*uid)),
            Principal::Key(name) => Some(Self::Key(name.to_string())),
            Principal::Certificate(name) => Some(Self::Certificate(name.to_string())),
            Principal::Person(name) => Some(Self::Person(name.to_string())),
            Principal::Mqtt(_) | Principal::Camera(_) | Principal::Inbox(_) | Principal::Local | Principal::Others => {
                None
            }
        }
    }

    /// The caller that the calls of the job are counted for.
    pub fn principal(&self) -> Principal {
        match self {
            Self::Peer(address) => Principal::Peer(*address),
            Self::User(uid) => Principal::User(*uid),
            Self::Key(name) => Principal::Key(name.as_str().into()),
            Self::Certificate(name) => Principal::Certificate(name.as_str().into()),
            Self::Person(name) => Principal::Person(name.as_str().into()),
        }
    }
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobEnd {
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The reason why the job could not go on; `None` for one that is done.
    pub error: Option<String>,
    pub progress: JobProgress,
}

/// The figures of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobProgress {
    /// Files that have a result or an error, or bytes of a table.
    pub done: u64,
    /// Answered files or rows.
    pub answered: u64,
    /// Files or rows that failed.
    pub failed: u64,
    /// The versions that answered, each with its number of files or rows.
    pub versions: BTreeMap<String, u64>,
    /// The first errors.
    pub errors: Vec<ItemError>,
}

/// A file or row that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ItemError {
    /// The number of the file in the job or of the row in the table, from 0.
    pub item: u64,
    pub error: String,
}

/// A call that has ended: its file, or its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRecord {
    /// The number of the file or of the part of the table, from 0.
    pub item: u64,
    /// The version that answered; `None` without an answer.
    pub version: Option<String>,
    /// Answered files or rows.
    pub answered: u64,
    pub errors: Vec<ItemError>,
    /// Of a table: its bytes up to the end of this part, and those of its results.
    pub input_end: u64,
    pub output_end: u64,
}

impl JobProgress {
    /// Counts an ended call.
    pub fn count(&mut self, kind: JobKind, record: &CallRecord) {
        match kind {
            JobKind::Files => self.done += 1,
            JobKind::Table => self.done = record.input_end,
        }
        self.answered += record.answered;
        self.failed += record.errors.len() as u64;
        if let Some(version) = &record.version {
            *self.versions.entry(version.clone()).or_default() += record.answered;
        }
        let room = ERRORS_SHOWN_MAX.saturating_sub(self.errors.len());
        self.errors.extend(record.errors.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_the_same_caller_after_a_restart() {
        let callers = [
            Principal::Peer("::1".parse().unwrap()),
            Principal::User(7),
            Principal::Key("till".into()),
            Principal::Certificate("shop".into()),
        ];
        for caller in callers {
            let text = serde_json::to_string(&JobOwner::of(&caller).unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<JobOwner>(&text).unwrap().principal(), caller);
        }
        assert_eq!(JobOwner::of(&Principal::Local), None);
    }
}
