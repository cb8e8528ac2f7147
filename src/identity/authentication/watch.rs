//! The store of keys while the daemon runs: it is checked once a second, and changes by the command line are recorded.

use std::time::Duration;

use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;

use super::Authenticator;
use super::administration::ApiKeyChange;
use crate::keys::{self, ApiKeyRecord, ApiKeysError, RecordedApiKeys};

/// The pause between two checks of the store: a check costs one call of `stat`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

impl Authenticator {
    /// Loads changes of the store of keys until the shutdown. Files are read on blocking threads, because a disk may be
    /// slow. A separate task records the changes, so that a slow audit log does not delay a revocation.
    pub async fn watch(self, shutdown: Shutdown) {
        shutdown.spawn(self.clone().record(shutdown.clone()));

        // Changes by the command line while no daemon ran.
        let path = self.shared.path.clone();
        if let Ok(first) = spawn_blocking(move || keys::read(&path)).await {
            self.tell(&first);
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                () = shutdown.requested() => return,
            }
            let reloading = self.clone();
            // A panic is logged, and the next check tries again.
            let _ = spawn_blocking(move || reloading.refresh()).await;
            self.record_ended_sessions();
        }
    }

    /// Reads the store again if it changed, and has the change recorded.
    pub(super) fn refresh(&self) {
        if let Some(read) = self.reload() {
            self.tell(&read);
        }
    }

    fn tell(&self, read: &Result<Vec<ApiKeyRecord>, ApiKeysError>) {
        match read {
            Ok(_) => self.shared.changed.notify_one(),
            Err(_) => self.shared.audit.record_own(AuditEvent::KeyStoreDamaged),
        }
    }

    /// Records the changes of the store, until the shutdown.
    async fn record(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = shutdown.requested() => return,
            }
            let recorded = self.shared.recorded.clone().lock_owned().await;
            // Read under the lock, so that it is not older than a change that was recorded before.
            let path = self.shared.path.clone();
            if let Ok(keys) = blocking(move || keys::read(&path)).await {
                self.record_news(recorded, keys, None).await;
            }
        }
    }

    /// Records the changes in `keys`: `change` under its caller, and all others under the daemon. `false` if the record
    /// of `change` is not durable. A change without a durable record is recorded again with the next change, or by the
    /// next start.
    pub(super) async fn record_news(
        &self,
        mut recorded: OwnedMutexGuard<RecordedApiKeys>,
        keys: Vec<ApiKeyRecord>,
        change: Option<&ApiKeyChange>,
    ) -> bool {
        let news = recorded.news(&keys);
        if news.is_empty() {
            return true;
        }

        let is_change = |event: &AuditEvent| change.is_some_and(|change| change.is(event));
        let (changed, others): (Vec<_>, Vec<_>) = news.into_iter().partition(is_change);
        // One after the other: the loss of a record of others says nothing about the change.
        let are_others_durable = self.record_durably(&Principal::Local, others).await;
        let by = change.map_or(&Principal::Local, |change| &change.by);
        let is_durable = self.record_durably(by, changed).await;
        if !(is_durable && are_others_durable) {
            return is_durable;
        }

        let keep = move || {
            if let Err(error) = recorded.keep(&keys) {
                tracing::warn!(%error, "the list of recorded API keys cannot be written: the next start records them again");
            }
        };
        blocking(keep).await;
        true
    }

    /// Records events, and returns `true` when all of them are on the disk.
    async fn record_durably(&self, by: &Principal, events: Vec<AuditEvent>) -> bool {
        if events.is_empty() {
            return true;
        }
        let audit = &self.shared.audit;
        let mark = audit.mark();
        for event in events {
            audit.record(by, event);
        }
        audit.durable_since(mark).await
    }
}
