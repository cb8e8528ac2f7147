//! The thread that owns the log: it takes recorded events, makes them durable, signs, and keeps the quota.
//!
//! Only callers that ask for durable records wait for it. Events that it cannot write are counted, and a record reports
//! them as soon as one can be written.

mod append;
mod clock_watch;
mod entries;
mod losses;
mod open;
mod open_log;
mod room;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::principal::Principal;
use ledge_identity::sealing::Sealer;
use ledge_service::audit_event::sink::{AuditItem, EntryBatch, LostEntries, QueuedEntry};
use ledge_service::audit_event::{AuditEvent, AuditQueue};

use super::config::AuditConfig;
use super::log::AuditLogError;
use super::status::{AuditState, LiveCopyRecord, PublishedCheckpoint};
use append::{AppendedEntries, append};
use clock_watch::ClockWatch;
use entries::sum;
use losses::{LossCause, UnreportedLosses};
use open_log::OpenAuditLog;
use room::{AuditLogLimits, LogCapacity};

/// Time that records wait for others, so that they share one fsync.
const GROUP_COMMIT_DELAY: Duration = Duration::from_millis(50);

/// Interval of the checks of the clocks when nothing is recorded. Also the longest that durable records wait for a
/// signed head.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time over which calls are counted for one record.
const COUNTS_INTERVAL: Duration = Duration::from_mins(1);

/// Interval of the checks of the keys for tags. A key that was destroyed by hand is out of use within this time.
const TAG_KEYS_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The pause before another attempt to open the log.
const OPEN_RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Time without a record before a record reports that the box runs. In a fleet, a box that is silent for
/// longer than a day counts as lost.
const IDLE_RECORD_INTERVAL: Duration = Duration::from_hours(24);

/// The pause after a forked log before another log may be replaced for that; doubled each time.
const FORK_PAUSE_MIN: Duration = Duration::from_hours(1);

/// The longest pause after a forked log.
const FORK_PAUSE_MAX: Duration = Duration::from_hours(24);

/// Number of events of the writer itself that wait while the log cannot be written.
const OWN_EVENTS_MAX: usize = 1000;

/// The writer.
pub struct AuditLogWriter {
    folder: PathBuf,
    device: DeviceName,
    tag_days: (u32, u32),
    is_synced: bool,
    limits: AuditLogLimits,
    queue: AuditQueue,
    state: AuditState,
    /// Decrypts the keys, and encrypts new ones.
    sealer: Sealer,
    open: Option<OpenAuditLog>,
    retry: Instant,
    losses: UnreportedLosses,
    room: LogCapacity,
    /// Events of the writer itself that are not written yet.
    own: Vec<QueuedEntry>,
    /// The last warning about something other than the log itself.
    warned: Option<String>,
    clock: ClockWatch,
    minute: Instant,
    /// When the keys for tags are checked next.
    tags_turn: Instant,
    /// The number of records of this log that the platform has.
    synced: u64,
    /// When a record was last written.
    written: Instant,
    idle_after: Duration,
    /// The logs before this one that the platform has.
    complete: BTreeSet<u32>,
    /// The log of which the platform has another history, until another log has begun.
    forked: Option<u32>,
    /// When another log may begin for that, and the pause after it: a broken server must not make a box begin log after
    /// log.
    fork_from: Instant,
    fork_pause: Duration,
    is_ending: bool,
}

/// Reasons why records are lost now.
#[derive(Debug, thiserror::Error)]
enum RecordWriteError {
    #[error(transparent)]
    Log(#[from] AuditLogError),
    #[error(
        "the audit log has {bytes} bytes, and its quota is {quota}: records may be removed only after they are copied to the platform (`audit.sync`); restore the copy, or raise `audit.quota_mb`"
    )]
    Quota { bytes: u64, quota: u64 },
}

impl AuditLogWriter {
    /// A writer of the events in `queue`.
    pub fn new(
        config: &AuditConfig,
        device: &DeviceName,
        queue: AuditQueue,
        state: AuditState,
        sealer: Sealer,
    ) -> Self {
        let now = Instant::now();
        let limits = AuditLogLimits { quota: config.quota_mb << 20, min_free: config.min_free_mb << 20 };
        state.update(|status| status.quota = limits.quota);
        Self {
            folder: config.path.clone(),
            device: device.clone(),
            tag_days: (config.tag_period_days, config.keep_tag_keys_days),
            is_synced: config.sync.url.is_some(),
            limits,
            queue,
            state,
            sealer,
            open: None,
            retry: now,
            losses: UnreportedLosses::default(),
            room: LogCapacity::Enough,
            own: Vec::new(),
            warned: None,
            clock: ClockWatch::new(now, clock::unix_millis()),
            minute: now + COUNTS_INTERVAL,
            tags_turn: now + TAG_KEYS_CHECK_INTERVAL,
            synced: 0,
            written: now,
            idle_after: IDLE_RECORD_INTERVAL,
            complete: BTreeSet::new(),
            forked: None,
            fork_from: now,
            fork_pause: FORK_PAUSE_MIN,
            is_ending: false,
        }
    }

    /// Writes until the sink is closed. Needs its own thread, because it waits for the disk.
    pub fn run(mut self) {
        loop {
            self.queue.wait(Instant::now() + CLOCK_CHECK_INTERVAL, false);
            self.queue.wait(Instant::now() + GROUP_COMMIT_DELAY, true);
            let batch = self.queue.take();
            let is_last = batch.is_last;
            self.turn(batch);
            if is_last {
                // Events that arrived meanwhile. Nothing waits for later ones.
                let batch = self.queue.take();
                if !batch.entries.is_empty() || batch.lost.is_some() {
                    self.turn(batch);
                }
                return self.end();
            }
        }
    }

    fn turn(&mut self, batch: EntryBatch) {
        let (now, now_ms) = (Instant::now(), clock::unix_millis());
        let EntryBatch { mut entries, lost, flushes, is_urgent, is_last } = batch;
        self.is_ending |= is_last;
        if let Some(lost) = lost {
            self.losses.count(LossCause::Queue, lost);
        }

        if now >= self.minute || is_last {
            self.minute = now + COUNTS_INTERVAL;
            entries.extend(entries::of_counts(self.queue.take_counts(), now_ms));
            entries.extend(entries::of_features(self.queue.take_features(), now_ms));
            entries.extend(entries::of_denials(self.queue.take_untold(now, is_last), now_ms));
        }
        if let Some(by_ms) = self.clock.jump(now, now_ms) {
            self.record_own(now_ms, AuditEvent::ClockJumped { by_ms });
        }

        if self.open.is_none() && (now >= self.retry || is_last) {
            self.open(now_ms);
        }
        self.apply_sync_news(now_ms);

        let written = match self.open.take() {
            None => {
                self.lose(LossCause::Log, &entries);
                false
            }
            Some(mut open) => {
                let written = self.write(&mut open, entries, now, now_ms);
                // Also after a failure: durable records are signed, and nothing else.
                let signed = self.sign(&mut open, is_urgent || is_last, now, now_ms);
                self.open = Some(open);
                let is_written = written.is_ok();
                match written.and(signed) {
                    Ok(()) => self.report_writable(),
                    Err(error) => self.report_failure(&error.to_string()),
                }
                is_written
            }
        };

        self.publish_status();
        self.state.turn();
        if written {
            // A caller may no longer wait.
            let _: Vec<_> = flushes.into_iter().map(|flush| flush.send(())).collect();
        }
    }

    /// Records an event of the writer itself. It waits until it can be written.
    fn record_own(&mut self, now_ms: u64, event: AuditEvent) {
        let entry = own_entry(now_ms, event);
        if self.own.len() < OWN_EVENTS_MAX {
            self.own.push(entry);
        } else {
            self.lose(LossCause::Log, &[entry]);
        }
    }

    /// Appends the entries for which there is room, and makes them durable. `Ok`: every event is durable, though calls
    /// may have been refused.
    fn write(
        &mut self,
        open: &mut OpenAuditLog,
        entries: Vec<QueuedEntry>,
        now: Instant,
        now_ms: u64,
    ) -> Result<(), RecordWriteError> {
        self.check_tag_keys(open, now, now_ms);
        if entries.is_empty() && self.own.is_empty() && now.duration_since(self.written) >= self.idle_after {
            self.record_own(now_ms, AuditEvent::Idle);
        }
        let mut rest = entries.into_iter();
        loop {
            // The room is checked for each part, so that a flood of events stays within the quota.
            let part: Vec<_> = rest.by_ref().take(self.limits.part()).collect();
            if let Err((cause, error)) = self.write_part(open, part, now, now_ms) {
                self.lose(cause, rest.as_slice());
                return Err(error);
            }
            if rest.len() == 0 {
                return Ok(());
            }
        }
    }

    fn write_part(
        &mut self,
        open: &mut OpenAuditLog,
        part: Vec<QueuedEntry>,
        now: Instant,
        now_ms: u64,
    ) -> Result<(), (LossCause, RecordWriteError)> {
        self.make_room(open, now, now_ms);
        let room = self.room;
        if room == LogCapacity::None {
            self.lose(LossCause::Quota, &part);
            return Err((
                LossCause::Quota,
                RecordWriteError::Quota { bytes: open.log.bytes(), quota: self.limits.quota },
            ));
        }

        let takes_calls = room == LogCapacity::Enough;
        let (taken, refused): (Vec<_>, Vec<_>) =
            part.into_iter().partition(|entry| takes_calls || entries::calls(entry).is_none());
        if let Some(cause) = room.lacks() {
            self.lose(cause, &refused);
        }

        let due = self.losses.take_due(now, |cause| !self.is_ending && room.lacks() == Some(cause));
        let told = due.iter().map(|(cause, lost)| own_entry(now_ms, losses::event(*cause, *lost)));
        let lost = sum(&taken, now_ms);
        let all: Vec<_> = self.own.iter().cloned().chain(told).chain(taken).collect();
        if all.is_empty() {
            return Ok(());
        }

        match append(open, all, &self.queue) {
            Ok(AppendedEntries { live, left_out }) => {
                self.written = now;
                self.own.clear();
                self.losses.told(&due, now);
                self.count(LossCause::Log, left_out);
                if let Err(error) = open.tags.told() {
                    // The next start records them again.
                    self.warn(format!("cannot save that changes of the keys for tags are recorded: {error}"));
                }
                open.is_urgent |= live.iter().any(|record| record.is_warning);
                self.send_live(live);
                Ok(())
            }
            Err(error) => {
                // Events of the writer itself are not lost: they wait for the next turn.
                self.losses.put_back(due);
                let cause = if error.is_full() { LossCause::Disk } else { LossCause::Log };
                self.count(cause, lost);
                Err((cause, error.into()))
            }
        }
    }

    /// Changes the key for tags when its time is over.
    fn check_tag_keys(&mut self, open: &mut OpenAuditLog, now: Instant, now_ms: u64) {
        if now < self.tags_turn {
            return;
        }
        self.tags_turn = now + TAG_KEYS_CHECK_INTERVAL;
        match open.tags.turn(now_ms) {
            Ok(events) => {
                if !events.is_empty() {
                    self.queue.set_tag_key(Some(open.tags.current()));
                }
                for event in events {
                    self.record_own(now_ms, event);
                }
            }
            // The key stays in use.
            Err(error) => self.warn(error.to_string()),
        }
    }

    /// Removes old records if room is short, and decides which events may be recorded.
    fn make_room(&mut self, open: &mut OpenAuditLog, now: Instant, now_ms: u64) {
        if let Err(error) = self.prune(open, now_ms) {
            self.warn(format!("cannot remove old records of the audit log: {error}"));
        }

        let bytes = open.log.bytes();
        let room = match self.limits.room(bytes, room::free(&self.folder)) {
            // Its first record is needed so that the older logs reach the platform and can be removed.
            LogCapacity::None if open.log.durable_size() == 0 => LogCapacity::EventsAlone(LossCause::Quota),
            room => room,
        };
        let (before, enough) = (std::mem::replace(&mut self.room, room), room == LogCapacity::Enough);
        if let Some(cause) = room.lacks().filter(|cause| before.lacks() != Some(*cause)) {
            self.losses.begins(cause, now);
        }

        if enough != (before == LogCapacity::Enough) {
            self.record_own(now_ms, AuditEvent::SpaceChanged { what: "audit_log".into(), enough });
            if enough {
                tracing::info!("the audit log has room again");
            } else {
                tracing::error!(bytes, "the audit log has no room: inference calls are counted and not recorded");
            }
        }
    }

    /// Removes old records if necessary and allowed, those of older logs first. A record of the removal is written
    /// before it, so that missing records are explained.
    fn prune(&mut self, open: &mut OpenAuditLog, now_ms: u64) -> Result<(), AuditLogError> {
        if !self.limits.is_over(open.log.bytes()) {
            return Ok(());
        }
        let is_complete = open.log.older()?.iter().all(|older| self.complete.contains(older));
        if !self.is_synced || is_complete {
            self.prune_older(open, self.is_synced, now_ms)?;
        }

        let log = &open.log;
        let removable = if self.is_synced { self.synced } else { log.durable_size() };
        let below = self.limits.prune_below(log.bytes(), log.first(), log.durable_size(), removable);
        let Some(below) = below.map(|below| log.prunable(below)).filter(|below| *below > log.first()) else {
            // Older logs that the platform refused exist only here: they are removed when nothing else can be.
            return if self.synced > 0 { self.prune_older(open, false, now_ms) } else { Ok(()) };
        };

        let pruned = own_entry(now_ms, AuditEvent::RecordsPruned { below, synced: self.is_synced });
        match append(open, vec![pruned.clone()], &self.queue) {
            Ok(AppendedEntries { live, .. }) => self.send_live(live),
            // On a full disk, only the removal makes room for this record.
            Err(error) if error.is_full() => self.own.push(pruned),
            Err(error) => return Err(error),
        }
        open.log.prune(below).map(drop)
    }

    fn prune_older(&mut self, open: &mut OpenAuditLog, synced: bool, now_ms: u64) -> Result<(), AuditLogError> {
        if open.log.prune_older()? > 0 {
            self.record_own(now_ms, AuditEvent::RecordsPruned { below: open.log.first(), synced });
        }
        Ok(())
    }

    /// Signs the durable records when they have waited long enough.
    fn sign(
        &mut self,
        open: &mut OpenAuditLog,
        at_once: bool,
        now: Instant,
        now_ms: u64,
    ) -> Result<(), RecordWriteError> {
        let signed = open.log.checkpoint().map(|checkpoint| checkpoint.size);
        let is_due = at_once || now.duration_since(open.signed) >= CLOCK_CHECK_INTERVAL;
        // A log without records has no head.
        if signed.unwrap_or(0) == open.log.durable_size() || !is_due {
            return Ok(());
        }

        open.signed = now;
        let generation = open.log.generation();
        let checkpoint = open.log.sign(&open.key)?.clone();
        let is_urgent = std::mem::take(&mut open.is_urgent);
        self.state.publish(PublishedCheckpoint { generation, checkpoint, at_ms: now_ms, is_urgent });
        Ok(())
    }

    fn send_live(&self, live: Vec<Arc<LiveCopyRecord>>) {
        for record in live {
            self.state.send_live(record);
        }
    }

    fn lose(&mut self, cause: LossCause, entries: &[QueuedEntry]) {
        for entry in entries {
            entries::forget(entry, &self.queue);
        }
        let since_ms = entries.iter().map(|entry| entry.at_ms).min().unwrap_or(0);
        self.count(cause, sum(entries, since_ms));
    }

    fn count(&mut self, cause: LossCause, lost: LostEntries) {
        if lost.events > 0 {
            // Done before callers learn that their records are durable.
            self.queue.events_lost();
        }
        self.losses.count(cause, lost);
    }

    /// Reports that the log can be written.
    fn report_writable(&mut self) {
        if self.state.set_error(None).is_some() {
            tracing::info!("the audit log can be written again");
        }
    }

    /// Reports why the log cannot be written; the same reason is logged once.
    fn report_failure(&self, reason: &str) {
        if self.state.set_error(Some(reason.to_owned())).as_deref() != Some(reason) {
            tracing::error!(reason, "the audit log cannot be written; lost records are counted");
        }
    }

    /// Logs, once, a failure that does not stop the log.
    fn warn(&mut self, reason: String) {
        if self.warned.as_ref() != Some(&reason) {
            tracing::error!(reason, "a part of the audit log failed; records are still written");
            self.warned = Some(reason);
        }
    }

    fn publish_status(&self) {
        let lost = self.losses.total();
        self.state.update(|status| {
            status.lost = lost;
            if let Some(OpenAuditLog { log, .. }) = &self.open {
                status.log = Some(log.figures());
            }
        });
    }

    /// Logs the losses since the start, which no record may report any more.
    fn end(self) {
        let (calls, events) = self.losses.total();
        if calls + events > 0 {
            tracing::warn!(calls, events, "events since the start that the audit log did not record");
        }
    }
}

fn own_entry(at_ms: u64, event: AuditEvent) -> QueuedEntry {
    QueuedEntry { at_ms, what: AuditItem::Event(Principal::Local, event) }
}
