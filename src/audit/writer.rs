//! The thread that owns the log: it takes what was recorded, makes it durable, signs, and keeps within the quota.
//!
//! Nobody waits for it but those who ask for their records to be durable. Whatever it cannot write is counted, and a record
//! says so as soon as one can be written.

mod clock_watch;
mod entries;
mod losses;
mod room;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::AuditConfig;
use super::key::{AuditKey, KeyError};
use super::layout::{self, TileKind, TilePath, WIDTH, log_folder};
use super::local::LocalLog;
use super::log::{Begun, Log, LogError, Opened};
use super::record::{Actor, AuditRecord, Timestamp, VERSION};
use super::status::{AuditState, LiveRecord, PublishedHead, SyncNews};
use super::tags::{Tags, TagsError};
use crate::audit_event::sink::{Batch, Entry, Lost, Recorded};
use crate::audit_event::{AuditEvent, AuditQueue};
use crate::clock;
use crate::durable;
use crate::names::DeviceName;
use crate::principal::Principal;
use clock_watch::ClockWatch;
use losses::{Cause, Losses};
use room::{Limits, Room};

/// Records wait this long for others, so that they share one fsync.
const GROUP: Duration = Duration::from_millis(50);

/// The writer looks at its clocks this often when nothing is recorded. Also the longest that records go without a signed
/// head over them.
const TICK: Duration = Duration::from_secs(1);

/// Calls are counted over this time.
const MINUTE: Duration = Duration::from_secs(60);

/// The keys for tags are looked at this often: one that was destroyed by hand is out of use within that time.
const TAGS: Duration = Duration::from_secs(10);

/// A log that does not open is tried again after this time.
const RETRY: Duration = Duration::from_secs(10);

/// What the writer works with.
pub struct Writer {
    folder: PathBuf,
    device: DeviceName,
    tag_days: (u32, u32),
    is_synced: bool,
    limits: Limits,
    queue: AuditQueue,
    state: AuditState,
    open: Option<OpenLog>,
    retry: Instant,
    losses: Losses,
    room: Room,
    clock: ClockWatch,
    minute: Instant,
    /// When the keys for tags are looked at.
    tags_turn: Instant,
    /// How many records of this log the platform has.
    synced: u64,
}

/// What there is while the log can be written.
struct OpenLog {
    key: AuditKey,
    tags: Tags,
    log: Log,
    signed: Instant,
    /// Whether the next head should be sent at once.
    is_urgent: bool,
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
    /// A writer of what comes through `queue`.
    pub fn new(config: &AuditConfig, device: &DeviceName, queue: AuditQueue, state: AuditState) -> Self {
        let now = Instant::now();
        let limits = Limits { quota: config.quota_mb << 20, min_free: config.min_free_mb << 20 };
        state.update(|status| status.quota = limits.quota);
        Self {
            folder: config.path.clone(),
            device: device.clone(),
            tag_days: (config.tag_period_days, config.keep_tag_keys_days),
            is_synced: config.sync.url.is_some(),
            limits,
            queue,
            state,
            open: None,
            retry: now,
            losses: Losses::default(),
            room: Room::Enough,
            clock: ClockWatch::new(now, clock::unix_millis()),
            minute: now + MINUTE,
            tags_turn: now + TAGS,
            synced: 0,
        }
    }

    /// Writes until the sink is closed. For a thread of its own: it waits for the disk.
    pub fn run(mut self) {
        loop {
            self.queue.wait(Instant::now() + TICK, false);
            self.queue.wait(Instant::now() + GROUP, true);
            let batch = self.queue.take();
            let is_last = batch.is_last;
            self.turn(batch);
            if is_last {
                return self.end();
            }
        }
    }

    fn turn(&mut self, batch: Batch) {
        let (now, now_ms) = (Instant::now(), clock::unix_millis());
        let Batch { mut entries, lost, flushes, is_urgent, is_last } = batch;
        if let Some(lost) = lost {
            self.losses.count(Cause::Queue, lost);
        }
        if now >= self.minute || is_last {
            self.minute = now + MINUTE;
            entries.extend(entries::of_counts(self.queue.take_counts(), now_ms));
        }
        if let Some(by_ms) = self.clock.jump(now, now_ms) {
            entries.insert(0, own(now_ms, AuditEvent::ClockJumped { by_ms }));
        }
        if self.open.is_none() && (now >= self.retry || is_last) {
            self.open(now_ms);
        }
        self.heed_news(now_ms);
        let written = match self.open.take() {
            None => {
                self.lose(Cause::Log, &entries);
                false
            }
            Some(mut open) => {
                let written = self.write(&mut open, entries, now, now_ms);
                // Also after a failure: what is durable is to be signed, and nothing else is.
                self.sign(&mut open, is_urgent || is_last, now, now_ms);
                self.open = Some(open);
                written
            }
        };
        if written {
            // Who no longer waits need not hear it.
            let _: Vec<_> = flushes.into_iter().map(|flush| flush.send(())).collect();
        }
        self.tell_status();
    }

    /// Opens the log, and records what that brought.
    fn open(&mut self, now_ms: u64) {
        self.retry = Instant::now() + RETRY;
        match self.try_open(now_ms) {
            Ok((mut open, first)) => {
                self.synced = 0;
                self.state.update(|status| {
                    status.error = None;
                    status.origin = open.log.origin().to_owned();
                    status.verifier_key = open.key.verifier_key().to_owned();
                });
                self.queue.set_tag_key(Some(open.tags.current()));
                // A failure is counted and told like any other.
                self.write(&mut open, first, Instant::now(), now_ms);
                self.open = Some(open);
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn try_open(&mut self, now_ms: u64) -> Result<(OpenLog, Vec<Entry>), OpenError> {
        let folder = |error| OpenError::Folder { path: self.folder.clone(), error };
        durable::create_folder(&self.folder).map_err(folder)?;
        let (key, is_new) = AuditKey::load_or_create(&self.folder, &self.device)?;
        let Opened { log, begun } = Log::open(&self.folder, &self.device, &key)?;
        let (days, keep) = self.tag_days;
        let (tags, tag_events) = Tags::open(&self.folder, days, keep, now_ms)?;
        let mut first = Vec::new();
        if let Some(begun) = begun {
            first.push(self.begins(begun));
        } else if let Some(last_ms) = last_ms(&self.folder, &log)
            // A box that was off for a while is no news, one that is before its own past is.
            && let Some(by_ms) = clock_watch::jump(last_ms, now_ms).filter(|by_ms| *by_ms < 0)
        {
            first.push(AuditEvent::ClockJumped { by_ms });
        }
        if is_new {
            first.push(AuditEvent::AuditKeyMade { verifier_key: key.verifier_key().to_owned() });
        }
        first.extend(tag_events);
        let first = first.into_iter().map(|event| own(now_ms, event)).collect();
        Ok((OpenLog { key, tags, log, signed: Instant::now(), is_urgent: false }, first))
    }

    /// The first record of a log, and the alarm where it should not have been necessary.
    fn begins(&mut self, begun: Begun) -> AuditEvent {
        let Begun { cause, reason, previous } = begun;
        // Of a log that is sound on this box, only the platform can tell.
        let other = || previous.as_ref().map(|log| format!("{}: the platform has another history of it", log.origin));
        if let Some(reason) = reason.or_else(other) {
            tracing::error!(
                reason,
                cause,
                "the audit log does not go on; what there is of it is kept, and another one begins"
            );
            self.state.update(|status| status.alarm = Some(reason));
        }
        AuditEvent::LogBegun { cause: cause.into(), previous }
    }

    /// What the sync found out.
    fn heed_news(&mut self, now_ms: u64) {
        for news in self.state.take_news() {
            let Some(open) = self.open.take() else { return };
            self.open = match news {
                SyncNews::Has { generation, size } if generation == open.log.generation() => {
                    self.synced = self.synced.max(size);
                    Some(open)
                }
                SyncNews::Forked { generation } if generation == open.log.generation() => {
                    self.begin_another(open, now_ms)
                }
                SyncNews::Has { .. } | SyncNews::Forked { .. } => Some(open),
            };
        }
    }

    fn begin_another(&mut self, open: OpenLog, now_ms: u64) -> Option<OpenLog> {
        let OpenLog { key, tags, log, .. } = open;
        match log.begin_another("forked", &self.device, &key) {
            Ok(Opened { log, begun }) => {
                self.synced = 0;
                let mut open = OpenLog { key, tags, log, signed: Instant::now(), is_urgent: true };
                let first: Vec<_> = begun.into_iter().map(|begun| own(now_ms, self.begins(begun))).collect();
                let origin = open.log.origin().to_owned();
                self.state.update(|status| status.origin = origin);
                self.write(&mut open, first, Instant::now(), now_ms);
                Some(open)
            }
            Err(error) => {
                self.fail(error.to_string());
                None
            }
        }
    }

    /// Appends what there is room for, and makes it durable. Whether all of it is.
    fn write(&mut self, open: &mut OpenLog, entries: Vec<Entry>, now: Instant, now_ms: u64) -> bool {
        let mut own_events = self.turn_tags(open, now, now_ms);
        own_events.extend(self.make_room(open, now));
        let room = self.room;
        let goes_on = |cause| cause == Cause::Quota && room != Room::Enough;
        let told = if room == Room::None { Vec::new() } else { self.losses.due(now, goes_on) };
        own_events.extend(told.iter().map(|(_, event)| event.clone()));
        let own_events = own_events.into_iter().map(|event| own(now_ms, event));
        let (taken, refused): (Vec<_>, Vec<_>) = own_events.chain(entries).partition(|entry| match room {
            Room::Enough => true,
            Room::EventsAlone => entries::calls(entry).is_none(),
            Room::None => false,
        });
        self.lose(Cause::Quota, &refused);
        let is_whole = refused.iter().all(|entry| entries::calls(entry).is_some());
        if taken.is_empty() {
            return is_whole;
        }
        let lost = sum(&taken, now_ms);
        match append(open, taken, &self.queue) {
            Ok(live) => {
                told.iter().for_each(|(cause, _)| self.losses.told(*cause, now));
                if self.state.status().error.is_some() {
                    tracing::info!("the audit log can be written again");
                    self.state.update(|status| status.error = None);
                }
                if let Err(error) = open.tags.told() {
                    // They are told again by the next start.
                    tracing::warn!(%error, "that records are written cannot be kept");
                }
                open.is_urgent |= live.iter().any(|record| record.is_warning);
                live.into_iter().for_each(|record| self.state.send_live(record));
                is_whole
            }
            Err(error) => {
                // What was to be told of losses stays to be told; it is no loss of its own.
                let own_events = u64::try_from(told.len()).unwrap_or(0);
                let lost = Lost { events: lost.events.saturating_sub(own_events), ..lost };
                self.losses.count(if error.is_full() { Cause::Disk } else { Cause::Log }, lost);
                self.fail(error.to_string());
                false
            }
        }
    }

    /// Changes the key for tags when its time is over.
    fn turn_tags(&mut self, open: &mut OpenLog, now: Instant, now_ms: u64) -> Vec<AuditEvent> {
        if now < self.tags_turn {
            return Vec::new();
        }
        self.tags_turn = now + TAGS;
        match open.tags.turn(now_ms) {
            Ok(events) => {
                if !events.is_empty() {
                    self.queue.set_tag_key(Some(open.tags.current()));
                }
                events
            }
            Err(error) => {
                self.fail(error.to_string());
                Vec::new()
            }
        }
    }

    /// Removes what may go where room is short, and says what may be recorded.
    fn make_room(&mut self, open: &mut OpenLog, now: Instant) -> Vec<AuditEvent> {
        let (log, mut events) = (&mut open.log, Vec::new());
        let removable = if self.is_synced { self.synced } else { log.durable_size() };
        if let Some(below) = self.limits.prune_below(log.bytes(), log.first(), log.durable_size(), removable) {
            match log.prune(below) {
                Ok(_) => events.push(AuditEvent::RecordsPruned { below: log.first(), synced: self.is_synced }),
                Err(error) => tracing::error!(%error, "records of the audit log cannot be removed"),
            }
        }
        let room = self.limits.room(log.bytes(), room::free(&self.folder));
        if (room == Room::Enough) != (self.room == Room::Enough) {
            let enough = room == Room::Enough;
            events.push(AuditEvent::SpaceChanged { what: "audit_log".into(), enough });
            if enough {
                tracing::info!("the audit log has room again");
            } else {
                self.losses.begins(Cause::Quota, now);
                let bytes = log.bytes();
                tracing::error!(bytes, "the audit log has no room: inference calls are counted and not recorded");
            }
        }
        self.room = room;
        events
    }

    /// Signs what is durable, when it has waited long enough.
    fn sign(&mut self, open: &mut OpenLog, at_once: bool, now: Instant, now_ms: u64) {
        let signed = open.log.checkpoint().map(|checkpoint| checkpoint.size);
        let is_due = at_once || now.duration_since(open.signed) >= TICK;
        if signed == Some(open.log.durable_size()) || !is_due {
            return;
        }
        open.signed = now;
        let generation = open.log.generation();
        match open.log.sign(&open.key) {
            Ok(checkpoint) => {
                let is_urgent = std::mem::take(&mut open.is_urgent);
                self.state.publish(PublishedHead {
                    generation,
                    checkpoint: checkpoint.clone(),
                    at_ms: now_ms,
                    is_urgent,
                });
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn lose(&mut self, cause: Cause, entries: &[Entry]) {
        entries.iter().for_each(|entry| entries::forget(entry, &self.queue));
        let since_ms = entries.iter().map(|entry| entry.at_ms).min().unwrap_or(0);
        self.losses.count(cause, sum(entries, since_ms));
    }

    /// Says once what is wrong.
    fn fail(&mut self, reason: String) {
        if self.state.status().error.as_ref() != Some(&reason) {
            tracing::error!(reason, "the audit log cannot be written; what is lost of it is counted");
            self.state.update(|status| status.error = Some(reason));
        }
    }

    fn tell_status(&self) {
        let lost = self.losses.total();
        self.state.update(|status| {
            status.lost = lost;
            if let Some(OpenLog { log, .. }) = &self.open {
                (status.size, status.first, status.bytes) = (log.durable_size(), log.first(), log.bytes());
            }
        });
    }

    /// What was lost and told nobody is told here, at least.
    fn end(self) {
        let (calls, events) = self.losses.total();
        if calls + events > 0 {
            tracing::warn!(calls, events, "what the audit log did not record since the start");
        }
    }
}

/// Appends records and makes them durable; gives them as live copies get them.
fn append(open: &mut OpenLog, entries: Vec<Entry>, queue: &AuditQueue) -> Result<Vec<Arc<LiveRecord>>, LogError> {
    let key = open.tags.current();
    let origin: Arc<str> = open.log.origin().into();
    let mut records = Vec::with_capacity(entries.len());
    for entry in entries {
        let (principal, event) = entries::resolve(entry.what, Some(&key), queue);
        let (action, is_warning) = (event.action(), event.is_warning());
        let is_inference = event.is_inference();
        let record = AuditRecord {
            v: VERSION,
            seq: open.log.size(),
            ts: Timestamp(entry.at_ms),
            actor: Actor::of(&principal, Some(&key)),
            event,
        };
        let line = record.to_line();
        let leaf = match open.log.append(&line) {
            Err(error @ LogError::TooLong { .. }) => {
                // Nothing that is recorded can be; the others must not suffer from it.
                tracing::error!(%error, action, "an audit record is left out");
                continue;
            }
            appended => appended?,
        };
        let live =
            LiveRecord { origin: origin.clone(), seq: record.seq, at_ms: entry.at_ms, leaf, action, is_warning, line };
        records.push((Arc::new(live), principal, is_inference));
    }
    open.log.commit()?;
    for (record, principal, is_inference) in &records {
        let (seq, event) = (record.seq, String::from_utf8_lossy(&record.line));
        if *is_inference {
            // One line a call would be the whole content of the log of a busy box.
            tracing::debug!(target: "audit", seq, %principal, %event);
        } else {
            tracing::info!(target: "audit", seq, %principal, %event);
        }
    }
    Ok(records.into_iter().map(|(record, ..)| record).collect())
}

fn own(at_ms: u64, event: AuditEvent) -> Entry {
    Entry { at_ms, what: Recorded::Event(Principal::Local, event) }
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

/// How much is lost when these are.
fn sum(entries: &[Entry], since_ms: u64) -> Lost {
    let mut lost = Lost { since_ms, calls: 0, events: 0 };
    for entry in entries {
        match entries::calls(entry) {
            Some(calls) => lost.calls += calls,
            None => lost.events += 1,
        }
    }
    lost
}

#[cfg(test)]
mod tests;
