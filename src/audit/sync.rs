//! The copy of the log on the platform: each file of it, byte for byte, under `<url>/<device>/<generation>/`.
//!
//! Files are sent at least once, in order and without gaps: a checkpoint is put only when everything that it covers is
//! there, and sending continues where the checkpoint on the platform ends. A kill or a power cut costs only a few
//! requests.

mod error;
mod hint;
mod remote;
mod s3;
mod settings;
mod tiles;
mod upload;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::backoff::{Backoff, random};
use ledge_egress::{Egress, HostPort};
use ledge_service::shutdown::Shutdown;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::config::{AuditSyncAddress, AuditSyncConfig};
use super::key::SignedCheckpoint;
use super::layout::{FULL_WIDTH, TILE_WIDTH, TileKind, TilePath, entries, log_folder};
use super::local::{LocalAuditLog, generations};
use super::record::AuditRecord;
use super::status::{AuditState, AuditSyncEvent, AuditSyncStatus, PublishedCheckpoint};
pub use error::AuditSyncError;
use hint::AuditSyncProgress;
use remote::{AuditRemote, AuditServer};
pub use settings::AuditSyncSettings;
use tiles::SignedLog;
use upload::AuditLogUpload;

/// The times of sending.
const UPLOAD_PACE: AuditSyncTiming = AuditSyncTiming {
    gather_delay: Duration::from_secs(2),
    interval_min: Duration::from_secs(10),
    retry_pause_min: Duration::from_secs(2),
    retry_pause_max: Duration::from_mins(5),
};

/// The times of sending, besides `interval_s`.
#[derive(Debug, Clone, Copy)]
struct AuditSyncTiming {
    /// Time that urgent records, and those that fill a tile, wait for others.
    gather_delay: Duration,
    /// The shortest time between two uploads, even of urgent records: each upload leaves files of partial tiles.
    interval_min: Duration,
    /// The pause after the first failure.
    retry_pause_min: Duration,
    retry_pause_max: Duration,
}

impl AuditSyncConfig {
    /// The server, and whether the connection is encrypted. `None`: the log stays here.
    pub(super) fn server(&self) -> Option<(HostPort, bool)> {
        match self.url.as_ref()? {
            AuditSyncAddress::Web(address) => Some((address.at.clone(), address.tls)),
            AuditSyncAddress::Bucket { bucket, .. } => s3::server(self, bucket),
        }
    }
}

/// Copies the log until the daemon stops. Returns at once when the log stays here.
pub async fn run(settings: AuditSyncSettings, egress: Egress, state: AuditState, shutdown: Shutdown) {
    let server = match AuditServer::of(&settings, &egress) {
        None => return,
        Some(Ok(server)) => server,
        Some(Err(error)) => {
            tracing::error!(%error, "cannot copy the audit log to the platform");
            return;
        }
    };
    let task = AuditSyncTask::new(settings, server, state, UPLOAD_PACE);
    tokio::select! {
        () = task.run() => {}
        () = shutdown.requested() => {}
    }
}

struct AuditSyncTask {
    settings: AuditSyncSettings,
    server: AuditServer,
    state: AuditState,
    hint: AuditSyncProgress,
    pace: AuditSyncTiming,
    backoff: Backoff,
    /// Logs that are done: complete on the platform, or not to be copied.
    closed: BTreeSet<u32>,
    /// The last failure, as it was logged.
    failing: Option<String>,
}

impl AuditSyncTask {
    fn new(settings: AuditSyncSettings, server: AuditServer, state: AuditState, pace: AuditSyncTiming) -> Self {
        let url = settings.config.url.as_ref().map(ToString::to_string).unwrap_or_default();
        let hint = AuditSyncProgress::read(&settings.folder, &url);
        state.update(|status| status.sync = Some(AuditSyncStatus { url, ..AuditSyncStatus::default() }));
        let (backoff, closed) = (Backoff::new(pace.retry_pause_min, pace.retry_pause_max), BTreeSet::new());
        Self { settings, server, state, hint, pace, backoff, closed, failing: None }
    }

    async fn run(mut self) {
        let interval = self.settings.config.interval();
        let mut heads = self.state.heads();
        let mut due = Instant::now();
        // Urgent records are not sent earlier either.
        let mut earliest = due;
        let mut done = None;
        self.report_hint(&mut heads).await;

        loop {
            let head = heads.borrow_and_update().clone();
            let waiting = head.filter(|head| {
                let is_open = !self.closed.contains(&head.generation);
                is_open && done != Some((head.generation, head.checkpoint.size)) && head.checkpoint.size > 0
            });
            let Some(head) = waiting else {
                // The sender lives while `state` does.
                let _ = heads.changed().await;
                due = due.max(Instant::now() + self.pace.gather_delay.min(interval));
                continue;
            };

            self.report_waiting(&head).await;
            let has_tile = head.checkpoint.size / TILE_WIDTH > self.hint.size(head.generation) / TILE_WIDTH;
            if (head.is_urgent || has_tile) && self.failing.is_none() {
                due = due.min(earliest.max(Instant::now() + self.pace.gather_delay));
            }
            tokio::select! {
                () = sleep_until(due) => {}
                _ = heads.changed() => continue,
            }

            let (begun, mut made_progress) = (Instant::now(), false);
            due = match self.copy_up_to(&head, &mut made_progress).await {
                Ok(()) => {
                    done = Some((head.generation, head.checkpoint.size));
                    self.succeeded(&head);
                    begun + interval.mul_f64(0.75 + random() / 4.0)
                }
                Err(error) => {
                    if made_progress {
                        self.backoff.reset();
                    }
                    let pause = self.backoff.pause(random());
                    self.failed(&head, &error);
                    Instant::now() + pause.max(error.retry_after().unwrap_or_default())
                }
            };

            earliest = begun + self.pace.interval_min;
        }
    }

    /// Reports to the writer what the platform had at the last contact. Needs no network.
    async fn report_hint(&self, heads: &mut watch::Receiver<Option<PublishedCheckpoint>>) {
        let Ok(head) = heads.wait_for(Option::is_some).await.map(|head| head.clone()) else { return };
        let Some(PublishedCheckpoint { generation, checkpoint, .. }) = head else { return };
        let size = self.hint.size(generation);
        if (1..=checkpoint.size).contains(&size) {
            self.state.tell(AuditSyncEvent::Has { generation, size });
        }
    }

    /// Uploads the older logs, then this one up to its head.
    async fn copy_up_to(&mut self, head: &PublishedCheckpoint, made_progress: &mut bool) -> Result<(), AuditSyncError> {
        let remote = AuditRemote::open(&self.server, &self.settings).await?;
        for generation in self.older(head.generation).await? {
            match self.copy_older(&remote, generation, made_progress).await {
                Ok(()) => {}
                // Another attempt would fail too, and the current log does not wait for it.
                Err(error) if error.is_of_one_log() => {
                    tracing::error!(%error, "cannot copy an older audit log to the platform");
                }
                Err(error) => return Err(error),
            }
            self.closed.insert(generation);
        }
        self.upload(&remote, head.generation, head.checkpoint.clone(), made_progress).await
    }

    async fn older(&self, current: u32) -> Result<Vec<u32>, AuditSyncError> {
        let folder = self.settings.folder.clone();
        let found = tokio::task::spawn_blocking(move || generations(&folder)).await;
        let found = found.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let mut found = found.map_err(|error| AuditSyncError::File { path: self.settings.folder.clone(), error })?;
        found.retain(|generation| *generation < current && !self.closed.contains(generation));
        Ok(found)
    }

    async fn copy_older(
        &mut self,
        remote: &AuditRemote,
        generation: u32,
        made_progress: &mut bool,
    ) -> Result<(), AuditSyncError> {
        let folder = log_folder(&self.settings.folder, generation);
        let local = LocalAuditLog::open(&folder);
        let read = tokio::task::spawn_blocking(move || local.checkpoint()).await;
        let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let Some(note) = read.map_err(|error| AuditSyncError::File { path: folder, error })? else { return Ok(()) };

        let head = SignedCheckpoint::open(&note, &self.settings.verifier_key)
            .map_err(|error| AuditSyncError::Foreign { generation, reason: error.to_string() })?;
        if head.size == 0 || self.hint.size(generation) == head.size {
            // The writer may remove its records, also after a restart.
            self.state.tell(AuditSyncEvent::Has { generation, size: head.size });
            return Ok(());
        }
        self.upload(remote, generation, head, made_progress).await
    }

    async fn upload(
        &mut self,
        remote: &AuditRemote,
        generation: u32,
        head: SignedCheckpoint,
        made_progress: &mut bool,
    ) -> Result<(), AuditSyncError> {
        let size = head.size;
        let local = LocalAuditLog::open(&log_folder(&self.settings.folder, generation));
        let log = SignedLog { generation, local, head: Arc::new(head), sent: 0 };
        let mut upload = AuditLogUpload { settings: &self.settings, remote, hint: &mut self.hint, made_progress };
        upload.send(log).await?;
        self.state.tell(AuditSyncEvent::Has { generation, size });
        Ok(())
    }

    fn succeeded(&mut self, head: &PublishedCheckpoint) {
        self.backoff.reset();
        if self.failing.take().is_some() {
            tracing::info!(records = head.checkpoint.size, "the audit log is copied to the platform again");
        }
        let size = head.checkpoint.size;
        let at_ms = self.hint.logs.get(&head.generation).map(|synced| synced.at_ms);
        self.update(|sync| {
            *sync = AuditSyncStatus { url: std::mem::take(&mut sync.url), size, at_ms, ..AuditSyncStatus::default() };
        });
    }

    /// Reports a failure; the same one is logged once.
    fn failed(&mut self, head: &PublishedCheckpoint, error: &AuditSyncError) {
        let summary = error.summary();
        let is_new = self.failing.as_ref() != Some(&summary);
        self.failing = Some(summary);
        self.update(|sync| sync.error = Some(error.to_string()));
        if let AuditSyncError::Forked { .. } = error {
            self.closed.insert(head.generation);
            self.state.tell(AuditSyncEvent::Forked { generation: head.generation });
            // The next log does not wait for this one.
            self.failing = None;
            self.update(|sync| sync.waiting_since_ms = None);
            tracing::error!(%error, "cannot copy the audit log to the platform");
        } else if is_new {
            tracing::warn!(%error, "cannot copy the audit log to the platform, trying again");
        }
    }

    /// Reports since when records wait for the platform.
    async fn report_waiting(&mut self, head: &PublishedCheckpoint) {
        let known = self.hint.logs.get(&head.generation).copied();
        let size = known.map_or(0, |synced| synced.size);
        let is_noted = self.state.status().sync.is_some_and(|sync| sync.waiting_since_ms.is_some());
        if size >= head.checkpoint.size || is_noted {
            return;
        }
        let local = LocalAuditLog::open(&log_folder(&self.settings.folder, head.generation));
        let since = tokio::task::spawn_blocking(move || written_at(&local, size)).await.ok().flatten();
        let since = since.unwrap_or(head.at_ms);
        self.update(|sync| {
            sync.size = size;
            sync.at_ms = known.map(|synced| synced.at_ms);
            sync.waiting_since_ms = Some(since);
        });
    }

    fn update(&self, change: impl FnOnce(&mut AuditSyncStatus)) {
        self.state.update(|status| change(status.sync.get_or_insert_default()));
    }
}

/// The time of a record.
fn written_at(log: &LocalAuditLog, seq: u64) -> Option<u64> {
    let place = seq % TILE_WIDTH;
    let width = u16::try_from(place + 1).unwrap_or(FULL_WIDTH);
    let bundle = log.tile(TilePath { kind: TileKind::Entries, index: seq / TILE_WIDTH, width }).ok()??;
    let entries = entries(&bundle).ok()?;
    let record = AuditRecord::parse(entries.last()?).ok()?;
    Some(record.ts.0)
}

#[cfg(test)]
mod tests;
