//! The log that is written: how it is opened, and when another one begins.

use std::path::{Path, PathBuf};
use std::time::Instant;

use ledge_base::durable;
use ledge_service::audit_event::AuditEvent;

use super::super::key::{AuditKey, KeyError};
use super::super::layout::{self, TileKind, TilePath, WIDTH, log_folder};
use super::super::local::LocalLog;
use super::super::log::{Begun, Log, LogError, Opened};
use super::super::record::AuditRecord;
use super::super::status::{PublishedHead, SyncNews};
use super::super::tags::{Tags, TagsError};
use super::{LONGEST_FORK, RETRY, Writer, clock_watch, own};

/// What there is while the log can be written.
pub struct OpenLog {
    pub key: AuditKey,
    pub tags: Tags,
    pub log: Log,
    pub signed: Instant,
    /// Whether the next head should be sent at once.
    pub is_urgent: bool,
}

/// Why the log cannot be written.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("the folder {path}: {error}", path = path.display())]
    Folder { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Tags(#[from] TagsError),
    #[error(transparent)]
    Log(#[from] LogError),
}

impl Writer {
    /// Opens the log. What that brought is told with the next records.
    pub(super) fn open(&mut self, now_ms: u64) {
        self.retry = Instant::now() + RETRY;
        match self.try_open(now_ms) {
            Ok(open) => {
                self.synced = 0;
                self.state.update(|status| {
                    open.log.origin().clone_into(&mut status.origin);
                    open.key.verifier_key().clone_into(&mut status.verifier_key);
                    // Before the head is told, which may cover fewer records.
                    status.log = Some(open.log.figures());
                });
                self.queue.set_tag_key(Some(open.tags.current()));
                // Also where nothing can be recorded, what there is goes to the platform, which is what makes room.
                if let Some(checkpoint) = open.log.checkpoint().filter(|checkpoint| checkpoint.size > 0).cloned() {
                    let generation = open.log.generation();
                    self.state.publish(PublishedHead { generation, checkpoint, at_ms: now_ms, is_urgent: false });
                }
                self.open = Some(open);
            }
            Err(error) => self.fail(&error.to_string()),
        }
    }

    fn try_open(&mut self, now_ms: u64) -> Result<OpenLog, OpenError> {
        let folder = |error| OpenError::Folder { path: self.folder.clone(), error };
        durable::create_folder(&self.folder).map_err(folder)?;
        let (key, is_new) = AuditKey::load_or_create(&self.folder, &self.device, &self.sealer)?;
        if is_new {
            self.tell(now_ms, AuditEvent::AuditKeyMade { verifier_key: key.verifier_key().to_owned() });
        }
        let Opened { log, begun } = Log::open(&self.folder, &self.device, &key)?;
        let (days, keep) = self.tag_days;
        let (tags, tag_events) = Tags::open(&self.folder, days, keep, now_ms, &self.sealer)?;
        if let Some(begun) = begun {
            self.begins(begun, now_ms);
        } else if let Some(last_ms) = last_ms(&self.folder, &log)
            // A box that was off for a while is no news, one that is before its own past is.
            && let Some(by_ms) = clock_watch::jump(last_ms, now_ms).filter(|by_ms| *by_ms < 0)
        {
            self.tell(now_ms, AuditEvent::ClockJumped { by_ms });
        }
        for event in tag_events {
            self.tell(now_ms, event);
        }
        Ok(OpenLog { key, tags, log, signed: Instant::now(), is_urgent: false })
    }

    /// The first record of a log, and the alarm where it should not have been necessary.
    fn begins(&mut self, begun: Begun, now_ms: u64) {
        let Begun { cause, reason, previous } = begun;
        if let Some(reason) = reason {
            tracing::error!(
                reason,
                cause,
                "the audit log does not go on; what there is of it is kept, and another one begins"
            );
            self.state.update(|status| status.alarm = Some(reason));
        }
        self.own.insert(0, own(now_ms, AuditEvent::LogBegun { cause: cause.into(), previous }));
    }

    /// What the sync found out.
    pub(super) fn heed_news(&mut self, now_ms: u64) {
        // Without a log it waits.
        let Some(open) = self.open.take() else { return };
        let current = open.log.generation();
        for news in self.state.take_news() {
            match news {
                SyncNews::Has { generation, size } if generation == current => self.synced = self.synced.max(size),
                SyncNews::Has { generation, .. } => {
                    self.complete.insert(generation);
                }
                SyncNews::Forked { generation } => self.forked = Some(generation),
            }
        }
        let now = Instant::now();
        self.open = if self.forked == Some(current) && now >= self.fork_from {
            self.fork_from = now + self.fork_pause;
            self.fork_pause = (self.fork_pause * 2).min(LONGEST_FORK);
            self.begin_another(open, now_ms)
        } else {
            Some(open)
        };
    }

    fn begin_another(&mut self, open: OpenLog, now_ms: u64) -> Option<OpenLog> {
        let OpenLog { key, tags, log, .. } = open;
        let reason = format!("the platform has another history of {}", log.origin());
        match log.begin_another("forked", &self.device) {
            Ok(Opened { log, begun }) => {
                (self.synced, self.forked) = (0, None);
                if let Some(begun) = begun {
                    self.begins(Begun { reason: Some(reason), ..begun }, now_ms);
                }
                let origin = log.origin().to_owned();
                self.state.update(|status| status.origin = origin);
                Some(OpenLog { key, tags, log, signed: Instant::now(), is_urgent: true })
            }
            Err(error) => {
                // It is opened again, and found forked again.
                self.fork_from = Instant::now();
                self.fail(&error.to_string());
                None
            }
        }
    }
}

/// When the last record of a log happened, where it is still here.
fn last_ms(folder: &Path, log: &Log) -> Option<u64> {
    let last = log.durable_size().checked_sub(1)?;
    let width = u16::try_from(last % WIDTH + 1).ok()?;
    let local = LocalLog::open(&log_folder(folder, log.generation()));
    let bundle = local.tile(TilePath { kind: TileKind::Entries, index: last / WIDTH, width }).ok()??;
    let record = AuditRecord::parse(layout::entries(&bundle).ok()?.last()?).ok()?;
    Some(record.ts.0)
}
