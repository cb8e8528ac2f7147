//! The store of keys while the daemon runs: it is looked at once a second, and what the command line changed in it is
//! recorded.

use std::path::PathBuf;
use std::time::Duration;

use super::Authenticator;
use crate::audit_event::AuditEvent;
use crate::identity::keys::{KeyRecord, Recorded};
use crate::shutdown::Shutdown;

/// How often the store is looked at: a look costs a call of `stat`.
const INTERVAL: Duration = Duration::from_secs(1);

impl Authenticator {
    /// Takes up what changes in the store of keys, until the end of the daemon.
    pub async fn watch(self, shutdown: Shutdown) {
        let mut recorded = Recorded::load(self.shared.path.parent().map_or_else(PathBuf::new, Into::into));
        // What a command line did while no daemon ran.
        let first = crate::identity::keys::read(&self.shared.path);
        self.record(first.ok().as_deref(), &mut recorded).await;
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = shutdown.requested() => return,
            }
            if !self.has_changed() {
                continue;
            }
            let reloading = self.clone();
            // Off the async threads: a disk may take its time.
            let Ok(Some(read)) = tokio::task::spawn_blocking(move || reloading.reload()).await else { continue };
            self.record(read.ok().as_deref(), &mut recorded).await;
        }
    }

    fn has_changed(&self) -> bool {
        let stamp = super::Stamp::of(&self.shared.path);
        let before = self.shared.keys.load();
        stamp.map_or(before.known.is_some(), |stamp| stamp != before.stamp)
    }

    /// Records what is new in the store; `None` is one that cannot be read.
    async fn record(&self, keys: Option<&[KeyRecord]>, recorded: &mut Recorded) {
        let audit = &self.shared.audit;
        let Some(keys) = keys else { return audit.record_own(AuditEvent::KeyStoreDamaged) };
        let news = recorded.news(keys);
        if news.is_empty() {
            return;
        }
        let mark = audit.mark();
        for event in news {
            audit.record_own(event);
        }
        // What is not recorded for good is told again by the next start.
        if audit.durable_since(mark).await
            && let Err(error) = recorded.keep(keys)
        {
            tracing::warn!(%error, "the next start will record again which API keys were made and revoked");
        }
    }
}
