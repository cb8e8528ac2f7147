//! `sync.json`: the state of the platform at the last contact. A start needs no network to know it.

use std::collections::BTreeMap;
use std::path::Path;

use ledge_base::durable;
use serde::{Deserialize, Serialize};

/// The file in the folder of the log.
const HINT_FILE: &str = "sync.json";

/// The state of the platform. Nothing counts as sent unless the checkpoint on the platform confirms it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditSyncProgress {
    /// The address of the platform. The hint does not count for another one.
    pub url: String,
    /// The logs of this box that it has.
    pub logs: BTreeMap<u32, UploadedLog>,
    /// Tiles that were being sent.
    pub sending: Option<UnconfirmedTiles>,
}

/// The part of a log that the platform has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadedLog {
    pub size: u64,
    /// The time of that contact, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// Tiles that the platform took before their checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnconfirmedTiles {
    pub generation: u32,
    /// The number of records in the checkpoint on the platform at that time.
    pub after: u64,
    /// The platform has the whole tiles of records, and of their hashes, before this one.
    pub tiles: u64,
}

impl AuditSyncProgress {
    /// Reads the hint for the platform at `url`. A hint that cannot be read is empty.
    pub fn read(audit: &Path, url: &str) -> Self {
        let content = std::fs::read(audit.join(HINT_FILE)).unwrap_or_default();
        let hint: Self = serde_json::from_slice(&content).unwrap_or_default();
        if hint.url == url { hint } else { Self { url: url.to_owned(), ..Self::default() } }
    }

    /// The number of records of a log that the platform has.
    pub fn size(&self, generation: u32) -> u64 {
        self.logs.get(&generation).map_or(0, |synced| synced.size)
    }

    /// The number of tiles that need not be sent again after a checkpoint of `after` records.
    pub fn sent(&self, generation: u32, after: u64) -> u64 {
        let sending = self.sending.filter(|sending| sending.generation == generation && sending.after == after);
        sending.map_or(0, |sending| sending.tiles)
    }

    /// Saves the hint. A failure does not stop the upload: on a full disk, records that the platform has can be
    /// removed.
    pub async fn keep(&self, audit: &Path) {
        let path = audit.join(HINT_FILE);
        let content = serde_json::to_vec(self).unwrap_or_default();
        let kept = tokio::task::spawn_blocking(move || durable::replace(&path, &content)).await;
        if let Err(error) = kept.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(%error, "cannot save which part of the audit log the platform has (sync.json)");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_hint_counts_for_its_platform_and_its_checkpoint_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut hint = AuditSyncProgress::read(folder.path(), "https://a/");
        assert_eq!(hint, AuditSyncProgress { url: "https://a/".to_owned(), ..AuditSyncProgress::default() });
        hint.logs.insert(2, UploadedLog { size: 700, at_ms: 5 });
        hint.sending = Some(UnconfirmedTiles { generation: 2, after: 700, tiles: 9 });
        hint.keep(folder.path()).await;
        let again = AuditSyncProgress::read(folder.path(), "https://a/");
        assert_eq!(again, hint);
        assert_eq!((again.size(2), again.size(1)), (700, 0));
        assert_eq!((again.sent(2, 700), again.sent(2, 0), again.sent(1, 700)), (9, 0, 0));
        assert_eq!(AuditSyncProgress::read(folder.path(), "https://b/").size(2), 0);
    }

    #[test]
    fn a_damaged_hint_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for damaged in ["", "{", "[]", r#"{"url":"u","logs":{"1":{"size":-1,"at_ms":0}}}"#, "\u{0}\u{0}"] {
            durable::replace(&folder.path().join(HINT_FILE), damaged.as_bytes()).unwrap();
            assert_eq!(
                AuditSyncProgress::read(folder.path(), "u"),
                AuditSyncProgress { url: "u".to_owned(), ..AuditSyncProgress::default() },
                "{damaged:?}"
            );
        }
    }
}
