//! The copy of the log on the platform: each file of it, byte for byte, under `<url>/<device>/<generation>/`.
//!
//! At least once, in order, and without gaps: a checkpoint is put only when everything that it covers is there, and sending
//! goes on where the checkpoint on the platform ends. A kill or a cut at any point costs a few requests and nothing else.

mod error;
mod hint;
mod remote;
mod s3;
mod tiles;
mod upload;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::backoff::{Backoff, random};
use ledge_base::names::DeviceName;
use ledge_egress::{Egress, HostPort};
use ledge_service::shutdown::Shutdown;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::config::{SyncAddress, SyncConfig};
use super::key::SignedCheckpoint;
use super::layout::{FULL, TileKind, TilePath, WIDTH, entries, log_folder};
use super::local::{LocalLog, generations};
use super::record::AuditRecord;
use super::status::{AuditState, PublishedHead, SyncNews, SyncStatus};
pub use error::SyncError;
use hint::Hint;
use remote::{Remote, Server};
use tiles::SignedLog;
use upload::Upload;

/// When it is sent.
const PACE: Pace = Pace {
    gather: Duration::from_secs(2),
    apart: Duration::from_secs(10),
    first_pause: Duration::from_secs(2),
    longest_pause: Duration::from_mins(5),
};

/// When it is sent, but for `interval_s`.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// What is urgent, or fills a tile, waits this long for what comes with it.
    gather: Duration,
    /// It is not sent more often, however much is urgent: each time leaves files for tiles that are not whole.
    apart: Duration,
    /// The pause after a first failure.
    first_pause: Duration,
    longest_pause: Duration,
}

/// What is copied, and where to.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// The section `[audit.sync]`.
    pub config: SyncConfig,
    /// The folder of all logs.
    pub folder: PathBuf,
    /// The name of this box.
    pub device: DeviceName,
    /// What its checkpoints are checked with.
    pub verifier_key: String,
}

impl SyncConfig {
    /// The server that is connected to, and whether by TLS. `None`: there is none.
    pub(super) fn server(&self) -> Option<(HostPort, bool)> {
        match self.url.as_ref()? {
            SyncAddress::Web(address) => Some((address.at.clone(), address.tls)),
            SyncAddress::Bucket { bucket, .. } => s3::server(self, bucket),
        }
    }
}

/// Copies the log until the daemon stops; at once where it stays here.
pub async fn run(settings: SyncSettings, egress: Egress, state: AuditState, shutdown: Shutdown) {
    let server = match Server::of(&settings, &egress) {
        None => return,
        Some(Ok(server)) => server,
        Some(Err(error)) => {
            tracing::error!(%error, "the audit log is not copied");
            return;
        }
    };
    let task = Task::new(settings, server, state, PACE);
    tokio::select! {
        () = task.run() => {}
        () = shutdown.requested() => {}
    }
}

struct Task {
    settings: SyncSettings,
    server: Server,
    state: AuditState,
    hint: Hint,
    pace: Pace,
    backoff: Backoff,
    /// Logs that need not be looked at any more: complete on the platform, or never to be.
    closed: BTreeSet<u32>,
    /// What went wrong the last time, as it was told.
    failing: Option<String>,
}

impl Task {
    fn new(settings: SyncSettings, server: Server, state: AuditState, pace: Pace) -> Self {
        let url = settings.config.url.as_ref().map(ToString::to_string).unwrap_or_default();
        let hint = Hint::read(&settings.folder, &url);
        state.update(|status| status.sync = Some(SyncStatus { url, ..SyncStatus::default() }));
        let (backoff, closed) = (Backoff::new(pace.first_pause, pace.longest_pause), BTreeSet::new());
        Self { settings, server, state, hint, pace, backoff, closed, failing: None }
    }

    async fn run(mut self) {
        let interval = self.settings.config.interval();
        let mut heads = self.state.heads();
        let mut due = Instant::now();
        // Urgent records are not sent before, either.
        let mut earliest = due;
        let mut done = None;
        self.tell_hint(&mut heads).await;
        loop {
            let head = heads.borrow_and_update().clone();
            let waiting = head.filter(|head| {
                let is_open = !self.closed.contains(&head.generation);
                is_open && done != Some((head.generation, head.checkpoint.size)) && head.checkpoint.size > 0
            });
            let Some(head) = waiting else {
                // The sender lives as long as `state`.
                let _ = heads.changed().await;
                due = due.max(Instant::now() + self.pace.gather.min(interval));
                continue;
            };
            self.note_waiting(&head).await;
            let has_tile = head.checkpoint.size / WIDTH > self.hint.size(head.generation) / WIDTH;
            if (head.is_urgent || has_tile) && self.failing.is_none() {
                due = due.min(earliest.max(Instant::now() + self.pace.gather));
            }
            tokio::select! {
                () = sleep_until(due) => {}
                _ = heads.changed() => continue,
            }
            let (begun, mut got_on) = (Instant::now(), false);
            due = match self.bring(&head, &mut got_on).await {
                Ok(()) => {
                    done = Some((head.generation, head.checkpoint.size));
                    self.succeeded(&head);
                    begun + interval.mul_f64(0.75 + random() / 4.0)
                }
                Err(error) => {
                    if got_on {
                        self.backoff.reset();
                    }
                    let pause = self.backoff.pause(random());
                    self.failed(&head, &error);
                    Instant::now() + pause.max(error.retry_after().unwrap_or_default())
                }
            };
            earliest = begun + self.pace.apart;
        }
    }

    /// The writer knows what the platform had without the network.
    async fn tell_hint(&self, heads: &mut watch::Receiver<Option<PublishedHead>>) {
        let Ok(head) = heads.wait_for(Option::is_some).await.map(|head| head.clone()) else { return };
        let Some(PublishedHead { generation, checkpoint, .. }) = head else { return };
        let size = self.hint.size(generation);
        if (1..=checkpoint.size).contains(&size) {
            self.state.tell(SyncNews::Has { generation, size });
        }
    }

    /// Brings the platform up to the head, and what came before it first.
    async fn bring(&mut self, head: &PublishedHead, got_on: &mut bool) -> Result<(), SyncError> {
        let remote = Remote::open(&self.server, &self.settings).await?;
        for generation in self.older(head.generation).await? {
            match self.bring_older(&remote, generation, got_on).await {
                Ok(()) => {}
                // It is as it is, and the log of today does not wait for it.
                Err(error) if error.is_of_one_log() => tracing::error!(%error, "an older audit log is not copied"),
                Err(error) => return Err(error),
            }
            self.closed.insert(generation);
        }
        self.upload(&remote, head.generation, head.checkpoint.clone(), got_on).await
    }

    async fn older(&self, current: u32) -> Result<Vec<u32>, SyncError> {
        let folder = self.settings.folder.clone();
        let found = tokio::task::spawn_blocking(move || generations(&folder)).await;
        let found = found.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let mut found = found.map_err(|error| SyncError::File { path: self.settings.folder.clone(), error })?;
        found.retain(|generation| *generation < current && !self.closed.contains(generation));
        Ok(found)
    }

    async fn bring_older(&mut self, remote: &Remote, generation: u32, got_on: &mut bool) -> Result<(), SyncError> {
        let folder = log_folder(&self.settings.folder, generation);
        let local = LocalLog::open(&folder);
        let read = tokio::task::spawn_blocking(move || local.checkpoint()).await;
        let read = read.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let Some(note) = read.map_err(|error| SyncError::File { path: folder, error })? else { return Ok(()) };
        let head = SignedCheckpoint::open(&note, &self.settings.verifier_key)
            .map_err(|error| SyncError::Foreign { generation, reason: error.to_string() })?;
        if head.size == 0 || self.hint.size(generation) == head.size {
            // The writer may remove it, also after a restart.
            self.state.tell(SyncNews::Has { generation, size: head.size });
            return Ok(());
        }
        self.upload(remote, generation, head, got_on).await
    }

    async fn upload(
        &mut self,
        remote: &Remote,
        generation: u32,
        head: SignedCheckpoint,
        got_on: &mut bool,
    ) -> Result<(), SyncError> {
        let size = head.size;
        let local = LocalLog::open(&log_folder(&self.settings.folder, generation));
        let log = SignedLog { generation, local, head: Arc::new(head), sent: 0 };
        let mut upload = Upload { settings: &self.settings, remote, hint: &mut self.hint, got_on };
        upload.send(log).await?;
        self.state.tell(SyncNews::Has { generation, size });
        Ok(())
    }

    fn succeeded(&mut self, head: &PublishedHead) {
        self.backoff.reset();
        if self.failing.take().is_some() {
            tracing::info!(records = head.checkpoint.size, "the audit log is copied to the platform again");
        }
        let size = head.checkpoint.size;
        let at_ms = self.hint.logs.get(&head.generation).map(|synced| synced.at_ms);
        self.update(|sync| {
            *sync = SyncStatus { url: std::mem::take(&mut sync.url), size, at_ms, ..SyncStatus::default() };
        });
    }

    /// Tells what is wrong, once.
    fn failed(&mut self, head: &PublishedHead, error: &SyncError) {
        let gist = error.gist();
        let is_new = self.failing.as_ref() != Some(&gist);
        self.failing = Some(gist);
        self.update(|sync| sync.error = Some(error.to_string()));
        if let SyncError::Forked { .. } = error {
            self.closed.insert(head.generation);
            self.state.tell(SyncNews::Forked { generation: head.generation });
            // What the next log has is not held up by it.
            self.failing = None;
            self.update(|sync| sync.waiting_since_ms = None);
            tracing::error!(%error, "the audit log is not copied");
        } else if is_new {
            tracing::warn!(%error, "the audit log is not copied for now; it is tried again");
        }
    }

    /// Since when the platform lacks something.
    async fn note_waiting(&mut self, head: &PublishedHead) {
        let known = self.hint.logs.get(&head.generation).copied();
        let size = known.map_or(0, |synced| synced.size);
        let is_noted = self.state.status().sync.is_some_and(|sync| sync.waiting_since_ms.is_some());
        if size >= head.checkpoint.size || is_noted {
            return;
        }
        let local = LocalLog::open(&log_folder(&self.settings.folder, head.generation));
        let since = tokio::task::spawn_blocking(move || written_at(&local, size)).await.ok().flatten();
        let since = since.unwrap_or(head.at_ms);
        self.update(|sync| {
            sync.size = size;
            sync.at_ms = known.map(|synced| synced.at_ms);
            sync.waiting_since_ms = Some(since);
        });
    }

    fn update(&self, change: impl FnOnce(&mut SyncStatus)) {
        self.state.update(|status| change(status.sync.get_or_insert_default()));
    }
}

/// When a record was written.
fn written_at(log: &LocalLog, seq: u64) -> Option<u64> {
    let place = seq % WIDTH;
    let width = u16::try_from(place + 1).unwrap_or(FULL);
    let bundle = log.tile(TilePath { kind: TileKind::Entries, index: seq / WIDTH, width }).ok()??;
    let entries = entries(&bundle).ok()?;
    let record = AuditRecord::parse(entries.last()?).ok()?;
    Some(record.ts.0)
}

#[cfg(test)]
mod tests;
