//! The store of keys while the daemon runs: it is looked at once a second, and what the command line changed in it is
//! recorded.

use std::path::PathBuf;
use std::time::Duration;

use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::shutdown::Shutdown;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::Authenticator;
use crate::keys::{self, KeyRecord, KeysError, Recorded};

/// How often the store is looked at: a look costs a call of `stat`.
const INTERVAL: Duration = Duration::from_secs(1);

impl Authenticator {
    /// Takes up what changes in the store of keys, until the end of the daemon. Off the async threads, for a disk may take
    /// its time; and what is recorded of it has a task of its own, for an audit log that takes its time keeps no key alive.
    pub async fn watch(self, shutdown: Shutdown) {
        let (newest, told) = watch::channel(None);
        let folder = self.shared.path.parent().map_or_else(PathBuf::new, Into::into);
        shutdown.spawn(record(self.shared.audit.clone(), folder, told));
        let tell = |read: Result<Vec<KeyRecord>, KeysError>| match read {
            Ok(keys) => _ = newest.send(Some(keys)),
            Err(_) => self.shared.audit.record_own(AuditEvent::KeyStoreDamaged),
        };
        // What a command line did while no daemon ran.
        let path = self.shared.path.clone();
        if let Ok(first) = spawn_blocking(move || keys::read(&path)).await {
            tell(first);
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = shutdown.requested() => return,
            }
            let reloading = self.clone();
            if let Ok(Some(read)) = spawn_blocking(move || reloading.reload()).await {
                tell(read);
            }
        }
    }
}

/// Records what is new in each store that is told, until none will be.
async fn record(audit: AuditSink, folder: PathBuf, mut told: watch::Receiver<Option<Vec<KeyRecord>>>) {
    let Ok(mut recorded) = spawn_blocking(move || Recorded::load(folder)).await else { return };
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
        // What is not recorded for good is told again by the next start.
        if !audit.durable_since(mark).await {
            continue;
        }
        let keep = move || {
            if let Err(error) = recorded.keep(&keys) {
                tracing::warn!(%error, "the next start will record again which API keys were made and revoked");
            }
            recorded
        };
        match spawn_blocking(keep).await {
            Ok(kept) => recorded = kept,
            Err(_) => return,
        }
    }
}
