//! Opens the log that is written, and begins another one where necessary.

use std::path::{Path, PathBuf};
use std::time::Instant;

use ledge_base::durable;
use ledge_service::audit_event::AuditEvent;
use serde::{Deserialize, Serialize};

use super::super::key::{AuditKey, AuditKeyError};
use super::super::layout::{self, TILE_WIDTH, TileKind, TilePath, log_folder};
use super::super::local::LocalAuditLog;
use super::super::log::{AuditLog, AuditLogError, LogBeginning, OpenedAuditLog};
use super::super::record::AuditRecord;
use super::super::status::{AuditSyncEvent, PublishedCheckpoint};
use super::super::tags::{AuditTagKeys, TagKeysError};
use super::open_log::OpenAuditLog;
use super::{AuditLogWriter, FORK_PAUSE_MAX, OPEN_RETRY_PAUSE, clock_watch, own_entry};

/// Reasons why the log cannot be opened.
#[derive(Debug, thiserror::Error)]
enum AuditLogOpenError {
    #[error("the folder {path}: {error}", path = path.display())]
    Folder { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Key(#[from] AuditKeyError),
    #[error(transparent)]
    Tags(#[from] TagKeysError),
    #[error(transparent)]
    Log(#[from] AuditLogError),
}

impl AuditLogWriter {
    /// Opens the log. The next records report changes made by that.
    pub(super) fn open(&mut self, now_ms: u64) {
        self.retry = Instant::now() + OPEN_RETRY_PAUSE;
        match self.try_open(now_ms) {
            Ok(open) => {
                self.synced = 0;
                self.state.update(|status| {
                    open.log.origin().clone_into(&mut status.origin);
                    open.key.verifier_key().clone_into(&mut status.verifier_key);
                    // Before the head is published, which may cover fewer records.
                    status.log = Some(open.log.figures());
                });
                self.queue.set_tag_key(Some(open.tags.current()));
                // Also when nothing can be recorded: copying records to the platform is what makes room.
                if let Some(checkpoint) = open.log.checkpoint().filter(|checkpoint| checkpoint.size > 0).cloned() {
                    let generation = open.log.generation();
                    self.state.publish(PublishedCheckpoint { generation, checkpoint, at_ms: now_ms, is_urgent: false });
                }
                self.open = Some(open);
            }
            Err(error) => self.report_failure(&error.to_string()),
        }
    }

    fn try_open(&mut self, now_ms: u64) -> Result<OpenAuditLog, AuditLogOpenError> {
        let folder = |error| AuditLogOpenError::Folder { path: self.folder.clone(), error };
        durable::create_folder(&self.folder).map_err(folder)?;
        let (key, is_new) = AuditKey::load_or_create(&self.folder, &self.device, &self.sealer)?;
        if is_new {
            self.record_own(now_ms, AuditEvent::AuditKeyMade { verifier_key: key.verifier_key().to_owned() });
        }

        let OpenedAuditLog { log, begun } = AuditLog::open(&self.folder, &self.device, &key)?;
        let (days, keep) = self.tag_days;
        let (tags, tag_events) = AuditTagKeys::open(&self.folder, days, keep, now_ms, &self.sealer)?;
        let alarm = LogAlarm::read(&self.folder);
        self.state.update(|status| status.alarm = alarm);
        if let Some(begun) = begun {
            self.record_beginning(begun, log.generation(), now_ms);
        } else if let Some(last_ms) = last_ms(&self.folder, &log)
            // A box that was off for a while is normal, a clock behind the last record is not.
            && let Some(by_ms) = clock_watch::jump(last_ms, now_ms).filter(|by_ms| *by_ms < 0)
        {
            self.record_own(now_ms, AuditEvent::ClockJumped { by_ms });
        }

        for event in tag_events {
            self.record_own(now_ms, event);
        }
        Ok(OpenAuditLog { key, tags, log, signed: Instant::now(), is_urgent: false })
    }

    /// Records the beginning of the log `generation`, and raises the alarm if the log before it was damaged or forked.
    fn record_beginning(&mut self, begun: LogBeginning, generation: u32, now_ms: u64) {
        let LogBeginning { cause, reason, previous } = begun;
        if let Some(reason) = reason {
            tracing::error!(
                name: "audit.log_replaced",
                reason,
                cause,
                "the audit log cannot be continued: it is kept as it is, and another one begins"
            );
            let alarm = LogAlarm { generation: generation.saturating_sub(1), reason };
            if let Err(error) = alarm.write(&self.folder) {
                self.warn(format!(
                    "the alarm about the audit log ends with this process, as it cannot be written: {error}"
                ));
            }
            self.state.update(|status| status.alarm = Some(alarm.reason));
        }
        self.own.insert(0, own_entry(now_ms, AuditEvent::LogBegun { cause: cause.into(), previous }));
    }

    /// Applies the news of the sync.
    pub(super) fn apply_sync_news(&mut self, now_ms: u64) {
        // Without an open log, the news wait.
        let Some(open) = self.open.take() else { return };
        let current = open.log.generation();
        for news in self.state.take_news() {
            match news {
                AuditSyncEvent::Has { generation, size } if generation == current => {
                    self.synced = self.synced.max(size);
                }
                AuditSyncEvent::Has { generation, .. } => {
                    self.complete.insert(generation);
                }
                AuditSyncEvent::Forked { generation } => self.forked = Some(generation),
            }
        }

        let now = Instant::now();
        self.open = if self.forked == Some(current) && now >= self.fork_from {
            self.fork_from = now + self.fork_pause;
            self.fork_pause = (self.fork_pause * 2).min(FORK_PAUSE_MAX);
            self.begin_another(open, now_ms)
        } else {
            Some(open)
        };
    }

    fn begin_another(&mut self, open: OpenAuditLog, now_ms: u64) -> Option<OpenAuditLog> {
        let OpenAuditLog { key, tags, log, .. } = open;
        let reason = format!("the platform has another history of {}", log.origin());
        match log.begin_another("forked", &self.device) {
            Ok(OpenedAuditLog { log, begun }) => {
                (self.synced, self.forked) = (0, None);
                if let Some(begun) = begun {
                    self.record_beginning(LogBeginning { reason: Some(reason), ..begun }, log.generation(), now_ms);
                }
                let origin = log.origin().to_owned();
                self.state.update(|status| status.origin = origin);
                Some(OpenAuditLog { key, tags, log, signed: Instant::now(), is_urgent: true })
            }
            Err(error) => {
                // The log is opened again, and found forked again.
                self.fork_from = Instant::now();
                self.report_failure(&error.to_string());
                None
            }
        }
    }
}

/// `alarm.json`: the reason why a log was not continued, for later starts.
#[derive(Debug, Serialize, Deserialize)]
struct LogAlarm {
    /// The log that was not continued. The alarm ends when its folder, the evidence, is gone.
    generation: u32,
    reason: String,
}

impl LogAlarm {
    const FILE: &str = "alarm.json";

    /// The reason of the alarm that an earlier process raised. A file that cannot be read is an alarm, too.
    fn read(audit: &Path) -> Option<String> {
        let path = audit.join(Self::FILE);
        let content = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            content => content,
        };
        match content.and_then(|content| Ok(serde_json::from_slice::<Self>(&content)?)) {
            Ok(alarm) => log_folder(audit, alarm.generation).exists().then_some(alarm.reason),
            Err(error) => Some(format!("{}: {error}", path.display())),
        }
    }

    fn write(&self, audit: &Path) -> std::io::Result<()> {
        durable::replace(&audit.join(Self::FILE), &serde_json::to_vec(self)?)
    }
}

/// The time of the last record of a log, if that is still on this box.
fn last_ms(folder: &Path, log: &AuditLog) -> Option<u64> {
    let last = log.durable_size().checked_sub(1)?;
    let width = u16::try_from(last % TILE_WIDTH + 1).ok()?;
    let local = LocalAuditLog::open(&log_folder(folder, log.generation()));
    let bundle = local.tile(TilePath { kind: TileKind::Entries, index: last / TILE_WIDTH, width }).ok()??;
    let record = AuditRecord::parse(layout::entries(&bundle).ok()?.last()?).ok()?;
    Some(record.ts.0)
}
