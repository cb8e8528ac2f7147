//! Tests against a server on loopback that misbehaves on demand.

mod fork;
mod links;
mod platform;
mod turns;

use std::collections::BTreeMap;

use ledge_base::names::DeviceName;
use ledge_service::audit_event::AuditSink;
use tempfile::TempDir;

use super::*;
use crate::key::AuditKey;
use crate::layout::changed;
use crate::log::AuditLog;
use platform::TestPlatform;

/// A box with a log, and the task that copies it.
struct SyncBox {
    folder: TempDir,
    key: AuditKey,
    log: AuditLog,
    state: AuditState,
}

impl SyncBox {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (key, _) =
            AuditKey::load_or_create(folder.path(), &device(), &ledge_identity::sealing::Sealer::none()).unwrap();
        let log = AuditLog::open(folder.path(), &device(), &key).unwrap().log;
        Self { folder, key, log, state: AuditState::default() }
    }

    /// Appends records, and gives the new head.
    fn grow(&mut self, count: u64, word: &str) -> PublishedCheckpoint {
        for _ in 0..count {
            let record = format!("{word} {}", self.log.size());
            self.log.append(record.as_bytes()).unwrap();
        }
        self.log.commit().unwrap();
        self.head()
    }

    fn head(&mut self) -> PublishedCheckpoint {
        let checkpoint = self.log.sign(&self.key).unwrap().clone();
        PublishedCheckpoint { generation: self.log.generation(), checkpoint, at_ms: 1, is_urgent: false }
    }

    fn task(&self, platform: &TestPlatform) -> AuditSyncTask {
        let config = AuditSyncConfig { url: Some(platform.url().parse().unwrap()), ..AuditSyncConfig::default() };
        let (folder, verifier_key) = (self.folder.path().to_owned(), self.key.verifier_key().to_owned());
        let settings = AuditSyncSettings { config, folder, device: device(), verifier_key };
        let egress = Egress::new(&ledge_egress::EgressConfig::default(), AuditSink::channel().0);
        let server = AuditServer::of(&settings, &egress).unwrap().unwrap();
        let ms = Duration::from_millis;
        let pace = AuditSyncTiming {
            gather_delay: ms(1),
            interval_min: ms(1),
            retry_pause_min: ms(1),
            retry_pause_max: ms(2),
        };
        AuditSyncTask::new(settings, server, self.state.clone(), pace)
    }

    /// The files of a platform that has all of the log: paths and bytes.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let generation = self.log.generation();
        let local = LocalAuditLog::open(&log_folder(self.folder.path(), generation));
        let head = SignedCheckpoint::open(&local.checkpoint().unwrap().unwrap(), self.key.verifier_key()).unwrap();
        let tiles = changed(0, head.size);
        let mut files: BTreeMap<_, _> = tiles
            .into_iter()
            .map(|tile| (format!("/audit/box-1/{generation}/{}", tile.path()), local.tile(tile).unwrap().unwrap()))
            .collect();
        files.insert(format!("/audit/box-1/{generation}/checkpoint"), head.note);
        files
    }
}

fn device() -> DeviceName {
    "box-1".parse().unwrap()
}

async fn copy_up_to(task: &mut AuditSyncTask, head: &PublishedCheckpoint) -> Result<(), AuditSyncError> {
    task.copy_up_to(head, &mut false).await
}
