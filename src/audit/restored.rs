//! The log of a box that was restored from a backup.
//!
//! A backup is older than the last signed head, as a rule. A log that went on from there would be another history of what
//! the platform has. So a restored box never continues a log: another one begins, with the cause `restored`, and names the
//! head that the backup has. Where the key came with the backup, the logs before stay in their places; else they go to
//! `earlier/` with their verifier key, since this box cannot sign for them.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_service::audit_event::PreviousLog;
use serde::{Deserialize, Serialize};

use crate::layout::log_folder;
use crate::local;
use crate::log::unverified_previous;

/// The file in the folder of all logs.
const FILE: &str = "restored.json";

/// The folder of logs that another key signed.
pub const EARLIER_FOLDER: &str = "earlier";

/// The file with their verifier key.
pub const EARLIER_KEY_FILE: &str = "verifier.vkey";

/// The restore of a log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogRestore {
    /// The log that began after it.
    pub generation: u32,
    /// The log before, where that is not in its place.
    pub previous: Option<PreviousLog>,
}

impl LogRestore {
    /// The last restore; `None` without one. A file that cannot be read is none: then the cause of the log is another.
    pub fn read(audit: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(audit.join(FILE)).ok()?).ok()
    }
}

/// Makes the restored folder of all logs at `audit` begin another log at its next start. `earlier_key` is the verifier key
/// of the logs in it, where their key is not in the folder. Returns the number of the new log; `None` for a folder without
/// logs. No process may have the folder open.
pub fn begin_after_restore(audit: &Path, earlier_key: Option<&str>) -> io::Result<Option<u32>> {
    let Some(last) = local::generations(audit)?.last().copied() else { return Ok(None) };
    let generation = last.checked_add(1).ok_or_else(|| io::Error::other("there are too many logs"))?;
    let mut restore = LogRestore { generation, previous: None };
    if let Some(key) = earlier_key {
        restore.previous = Some(unverified_previous(audit, last));
        let earlier = audit.join(EARLIER_FOLDER).join(format!("before-{generation}"));
        durable::create_folder(&earlier)?;
        durable::rename(&audit.join("logs"), &earlier.join("logs"))?;
        durable::replace(&earlier.join(EARLIER_KEY_FILE), format!("{key}\n").as_bytes())?;
    }
    durable::create_folder(&log_folder(audit, generation))?;
    let text = serde_json::to_vec(&restore)?;
    durable::replace(&audit.join(FILE), &text)?;
    Ok(Some(generation))
}

/// Logs of this box that another key signed: before a restore without that key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierLogs {
    /// A folder like that of all logs.
    pub folder: PathBuf,
    /// Their verifier key; empty where its file is missing.
    pub verifier_key: String,
}

/// The earlier logs in the folder of all logs at `audit`.
pub fn earlier_logs(audit: &Path) -> io::Result<Vec<EarlierLogs>> {
    let entries = match std::fs::read_dir(audit.join(EARLIER_FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let read = |entry: io::Result<std::fs::DirEntry>| {
        let folder = entry?.path();
        let verifier_key = local::read(&folder.join(EARLIER_KEY_FILE))?.unwrap_or_default();
        let verifier_key = String::from_utf8_lossy(&verifier_key).trim().to_owned();
        Ok(EarlierLogs { folder, verifier_key })
    };
    entries.map(read).collect()
}

#[cfg(test)]
mod tests {
    use ledge_base::names::DeviceName;
    use ledge_identity::sealing::Sealer;

    use super::*;
    use crate::key::AuditKey;
    use crate::log::{AuditLog, LogBeginning};

    /// A folder with a log of `records`, its key, and the root of its head.
    fn written(folder: &Path, records: u64) -> AuditKey {
        let (key, _) = AuditKey::load_or_create(folder, &device(), &Sealer::none()).unwrap();
        let mut log = AuditLog::open(folder, &device(), &key).unwrap().log;
        for seq in 0..records {
            let record = format!(
                r#"{{"v":1,"seq":{seq},"ts":"2026-01-01T00:00:00Z","actor":{{"kind":"local"}},"event":{{"action":"stopped"}}}}"#
            );
            log.append(record.as_bytes()).unwrap();
        }
        log.commit().unwrap();
        log.sign(&key).unwrap();
        key
    }

    fn device() -> DeviceName {
        "box-1".parse().unwrap()
    }

    fn begun(folder: &Path, key: &AuditKey) -> (u32, LogBeginning) {
        let opened = AuditLog::open(folder, &device(), key).unwrap();
        (opened.log.generation(), opened.begun.unwrap())
    }

    #[test]
    fn with_its_key_a_restored_log_is_followed_by_one_that_names_its_head() {
        let folder = tempfile::tempdir().unwrap();
        let key = written(folder.path(), 300);
        assert_eq!(begin_after_restore(folder.path(), None).unwrap(), Some(2));
        let (generation, LogBeginning { cause, reason, previous }) = begun(folder.path(), &key);
        assert_eq!((generation, cause, reason), (2, "restored", None));
        let previous = previous.unwrap();
        assert_eq!((previous.origin.as_str(), previous.size, previous.found), ("ledge.audit/box-1/1", 300, 300));
        // A daemon that was killed before its first record begins the same log.
        assert_eq!(begun(folder.path(), &key).1.cause, "restored");
    }

    #[test]
    fn without_its_key_a_restored_log_is_kept_apart_and_named_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let old = written(folder.path(), 7).verifier_key().to_owned();
        std::fs::remove_file(folder.path().join("key")).unwrap();
        assert_eq!(begin_after_restore(folder.path(), Some(&old)).unwrap(), Some(2));
        let (key, _) = AuditKey::load_or_create(folder.path(), &device(), &Sealer::none()).unwrap();
        let (generation, LogBeginning { cause, reason, previous }) = begun(folder.path(), &key);
        assert_eq!((generation, cause, reason, previous.unwrap().size), (2, "restored", None, 7));
        assert_eq!(local::generations(folder.path()).unwrap(), [2]);
        let earlier = folder.path().join("earlier/before-2");
        assert_eq!(std::fs::read_to_string(earlier.join(EARLIER_KEY_FILE)).unwrap().trim_end(), old);
        assert!(earlier.join("logs/1/checkpoint").is_file());
        assert_eq!(earlier_logs(folder.path()).unwrap(), [EarlierLogs { folder: earlier, verifier_key: old }]);
    }

    #[test]
    fn a_restored_log_that_is_damaged_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let key = written(folder.path(), 7);
        let records = log_folder(folder.path(), 1).join("tile/entries/000");
        std::fs::File::options().write(true).open(records).unwrap().set_len(20).unwrap();
        begin_after_restore(folder.path(), None).unwrap();
        assert_eq!(begun(folder.path(), &key).1.cause, "damaged");
    }

    #[test]
    fn a_box_without_a_log_begins_its_first() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(begin_after_restore(folder.path(), None).unwrap(), None);
    }
}
