//! The store of keys while the daemon runs: it is checked once a second, and changes by the command line are recorded.

use std::path::PathBuf;
use std::time::Duration;

use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::shutdown::Shutdown;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::Authenticator;
use crate::keys::{self, KeyRecord, KeysError, RecordedKeys};

/// The pause between two checks of the store: a check costs one call of `stat`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

impl Authenticator {
    /// Loads changes of the store of keys until the shutdown. Files are read on blocking threads, because a disk may be
    /// slow. A separate task records the changes, so that a slow audit log does not delay a revocation.
    pub async fn watch(self, shutdown: Shutdown) {
        let (newest, told) = watch::channel(None);
        let folder = self.shared.path.parent().map_or_else(PathBuf::new, Into::into);
        shutdown.spawn(record(self.shared.audit.clone(), folder, told));
        let tell = |read: Result<Vec<KeyRecord>, KeysError>| match read {
            Ok(keys) => _ = newest.send(Some(keys)),
            Err(_) => self.shared.audit.record_own(AuditEvent::KeyStoreDamaged),
        };

        // Changes by the command line while no daemon ran.
        let path = self.shared.path.clone();
        if let Ok(first) = spawn_blocking(move || keys::read(&path)).await {
            tell(first);
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                () = shutdown.requested() => return,
            }
            let reloading = self.clone();
            if let Ok(Some(read)) = spawn_blocking(move || reloading.reload()).await {
                tell(read);
            }
        }
    }
}

/// Records the changes in each version of the store that is sent, until the channel closes.
async fn record(audit: AuditSink, folder: PathBuf, mut told: watch::Receiver<Option<Vec<KeyRecord>>>) {
    let Ok(mut recorded) = spawn_blocking(move || RecordedKeys::load(folder)).await else { return };
    while told.changed().await.is_ok() {
        let keys = told.borrow_and_update().clone().unwrap_or_default();
        let news = recorded.news(&keys);
        if news.is_empty() {
            continue;
        }

        let mark = audit.mark();
        for event in news {
            audit.record_own(event);
        }
        // Events that are not durable are recorded again by the next start.
        if !audit.durable_since(mark).await {
            continue;
        }

        let keep = move || {
            if let Err(error) = recorded.keep(&keys) {
                tracing::warn!(%error, "the list of recorded API keys cannot be written: the next start records them again");
            }
            recorded
        };
        match spawn_blocking(keep).await {
            Ok(kept) => recorded = kept,
            Err(_) => return,
        }
    }
}
