//! The thread that owns the log: it takes what was recorded, makes it durable, signs, and keeps within the quota.
//!
//! Nobody waits for it but those who ask for their records to be durable. Whatever it cannot write is counted, and a record
//! says so as soon as one can be written.

mod append;
mod clock_watch;
mod entries;
mod losses;
mod open;
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
use ledge_service::audit_event::sink::{Batch, Entry, Lost, Recorded};
use ledge_service::audit_event::{AuditEvent, AuditQueue};

use super::config::AuditConfig;
use super::log::LogError;
use super::status::{AuditState, LiveRecord, PublishedHead};
use append::{Appended, append};
use clock_watch::ClockWatch;
use entries::sum;
use losses::{Cause, Losses};
use open::OpenLog;
use room::{Limits, Room};

/// Records wait this long for others, so that they share one fsync.
const GROUP: Duration = Duration::from_millis(50);

/// The writer looks at its clocks this often when nothing is recorded. Also the longest that records go without a signed
/// head over them.
const TICK: Duration = Duration::from_secs(1);

/// Calls are counted over this time.
const MINUTE: Duration = Duration::from_mins(1);

/// The keys for tags are looked at this often: one that was destroyed by hand is out of use within that time.
const TAGS: Duration = Duration::from_secs(10);

/// A log that does not open is tried again after this time.
const RETRY: Duration = Duration::from_secs(10);

/// Where nothing else is recorded for this long, a record says that the box is there: who looks at a fleet takes one that
/// has been silent for longer than a day for lost.
const IDLE: Duration = Duration::from_hours(24);

/// After one log was found forked, the next one may be after this time, and twice it for each more.
const FORK: Duration = Duration::from_hours(1);

/// The longest of these pauses.
const LONGEST_FORK: Duration = Duration::from_hours(24);

/// How many events of the writer itself wait at most while the log cannot be written.
const MOST_OWN: usize = 1000;

/// What the writer works with.
pub struct Writer {
    folder: PathBuf,
    device: DeviceName,
    tag_days: (u32, u32),
    is_synced: bool,
    limits: Limits,
    queue: AuditQueue,
    state: AuditState,
    /// Opens the keys, and seals those that are made.
    sealer: Sealer,
    open: Option<OpenLog>,
    retry: Instant,
    losses: Losses,
    room: Room,
    /// What the writer itself has to tell, and could not write yet.
    own: Vec<Entry>,
    /// What was last said of things beside the log.
    warned: Option<String>,
    clock: ClockWatch,
    minute: Instant,
    /// When the keys for tags are looked at.
    tags_turn: Instant,
    /// How many records of this log the platform has.
    synced: u64,
    /// When something was last recorded.
    written: Instant,
    idle_after: Duration,
    /// The logs before this one that the platform has.
    complete: BTreeSet<u32>,
    /// A log of which the platform has another history, until another one has begun.
    forked: Option<u32>,
    /// When another log may begin for that, and how long the next one has to wait: a server that answers anything must not
    /// make a box begin one after the other.
    fork_from: Instant,
    fork_pause: Duration,
    is_ending: bool,
}

/// Why records are lost now.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(
        "the audit log takes {bytes} bytes, and its quota is {quota}: nothing of it may be removed before it is copied to the platform (`audit.sync`), or a greater `audit.quota_mb` is set"
    )]
    Quota { bytes: u64, quota: u64 },
}

impl Writer {
    /// A writer of what comes through `queue`.
    pub fn new(
        config: &AuditConfig,
        device: &DeviceName,
        queue: AuditQueue,
        state: AuditState,
        sealer: Sealer,
    ) -> Self {
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
            sealer,
            open: None,
            retry: now,
            losses: Losses::default(),
            room: Room::Enough,
            own: Vec::new(),
            warned: None,
            clock: ClockWatch::new(now, clock::unix_millis()),
            minute: now + MINUTE,
            tags_turn: now + TAGS,
            synced: 0,
            written: now,
            idle_after: IDLE,
            complete: BTreeSet::new(),
            forked: None,
            fork_from: now,
            fork_pause: FORK,
            is_ending: false,
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
                // What came meanwhile: nobody waits for more.
                let batch = self.queue.take();
                if !batch.entries.is_empty() || batch.lost.is_some() {
                    self.turn(batch);
                }
                return self.end();
            }
        }
    }

    fn turn(&mut self, batch: Batch) {
        let (now, now_ms) = (Instant::now(), clock::unix_millis());
        let Batch { mut entries, lost, flushes, is_urgent, is_last } = batch;
        self.is_ending |= is_last;
        if let Some(lost) = lost {
            self.losses.count(Cause::Queue, lost);
        }
        if now >= self.minute || is_last {
            self.minute = now + MINUTE;
            entries.extend(entries::of_counts(self.queue.take_counts(), now_ms));
            entries.extend(entries::of_features(self.queue.take_features(), now_ms));
            entries.extend(entries::of_denials(self.queue.take_untold(now, is_last), now_ms));
        }
        if let Some(by_ms) = self.clock.jump(now, now_ms) {
            self.tell(now_ms, AuditEvent::ClockJumped { by_ms });
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
                let signed = self.sign(&mut open, is_urgent || is_last, now, now_ms);
                self.open = Some(open);
                let is_written = written.is_ok();
                match written.and(signed) {
                    Ok(()) => self.works(),
                    Err(error) => self.fail(&error.to_string()),
                }
                is_written
            }
        };
        self.tell_status();
        self.state.turn();
        if written {
            // Who no longer waits need not hear it.
            let _: Vec<_> = flushes.into_iter().map(|flush| flush.send(())).collect();
        }
    }

    /// Something that the writer itself has to tell. It waits until it is written.
    fn tell(&mut self, now_ms: u64, event: AuditEvent) {
        let entry = own(now_ms, event);
        if self.own.len() < MOST_OWN {
            self.own.push(entry);
        } else {
            self.lose(Cause::Log, &[entry]);
        }
    }

    /// Appends what there is room for, and makes it durable. `Ok` when every event is; calls may have been refused.
    fn write(&mut self, open: &mut OpenLog, entries: Vec<Entry>, now: Instant, now_ms: u64) -> Result<(), WriteError> {
        self.turn_tags(open, now, now_ms);
        if entries.is_empty() && self.own.is_empty() && now.duration_since(self.written) >= self.idle_after {
            self.tell(now_ms, AuditEvent::Idle);
        }
        let mut rest = entries.into_iter();
        loop {
            // The room is looked at for each part: a flood must not take more than there is.
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
        open: &mut OpenLog,
        part: Vec<Entry>,
        now: Instant,
        now_ms: u64,
    ) -> Result<(), (Cause, WriteError)> {
        self.make_room(open, now, now_ms);
        let room = self.room;
        if room == Room::None {
            self.lose(Cause::Quota, &part);
            return Err((Cause::Quota, WriteError::Quota { bytes: open.log.bytes(), quota: self.limits.quota }));
        }
        let takes_calls = room == Room::Enough;
        let (taken, refused): (Vec<_>, Vec<_>) =
            part.into_iter().partition(|entry| takes_calls || entries::calls(entry).is_none());
        if let Some(cause) = room.lacks() {
            self.lose(cause, &refused);
        }
        let due = self.losses.take_due(now, |cause| !self.is_ending && room.lacks() == Some(cause));
        let told = due.iter().map(|(cause, lost)| own(now_ms, losses::event(*cause, *lost)));
        let lost = sum(&taken, now_ms);
        let all: Vec<_> = self.own.iter().cloned().chain(told).chain(taken).collect();
        if all.is_empty() {
            return Ok(());
        }
        match append(open, all, &self.queue) {
            Ok(Appended { live, left_out }) => {
                self.written = now;
                self.own.clear();
                self.losses.told(&due, now);
                self.count(Cause::Log, left_out);
                if let Err(error) = open.tags.told() {
                    // They are told again by the next start.
                    self.warn(format!("that the keys for tags are recorded cannot be kept: {error}"));
                }
                open.is_urgent |= live.iter().any(|record| record.is_warning);
                self.send_live(live);
                Ok(())
            }
            Err(error) => {
                // What the writer has to tell waits for the next turn: it is not lost.
                self.losses.put_back(due);
                let cause = if error.is_full() { Cause::Disk } else { Cause::Log };
                self.count(cause, lost);
                Err((cause, error.into()))
            }
        }
    }

    /// Changes the key for tags when its time is over.
    fn turn_tags(&mut self, open: &mut OpenLog, now: Instant, now_ms: u64) {
        if now < self.tags_turn {
            return;
        }
        self.tags_turn = now + TAGS;
        match open.tags.turn(now_ms) {
            Ok(events) => {
                if !events.is_empty() {
                    self.queue.set_tag_key(Some(open.tags.current()));
                }
                for event in events {
                    self.tell(now_ms, event);
                }
            }
            // The key of before stays in use.
            Err(error) => self.warn(error.to_string()),
        }
    }

    /// Removes what may go where room is short, and finds what may be recorded.
    fn make_room(&mut self, open: &mut OpenLog, now: Instant, now_ms: u64) {
        if let Err(error) = self.prune(open, now_ms) {
            self.warn(format!("records of the audit log cannot be removed: {error}"));
        }
        let bytes = open.log.bytes();
        let room = match self.limits.room(bytes, room::free(&self.folder)) {
            // Its first record is needed to bring those before it to the platform, and then they can go.
            Room::None if open.log.durable_size() == 0 => Room::EventsAlone(Cause::Quota),
            room => room,
        };
        let (before, enough) = (std::mem::replace(&mut self.room, room), room == Room::Enough);
        if let Some(cause) = room.lacks().filter(|cause| before.lacks() != Some(*cause)) {
            self.losses.begins(cause, now);
        }
        if enough != (before == Room::Enough) {
            self.tell(now_ms, AuditEvent::SpaceChanged { what: "audit_log".into(), enough });
            if enough {
                tracing::info!("the audit log has room again");
            } else {
                tracing::error!(bytes, "the audit log has no room: inference calls are counted and not recorded");
            }
        }
    }

    /// Removes what has to go and may, the logs before this one first. A record of it comes before: who finds records
    /// missing must find why.
    fn prune(&mut self, open: &mut OpenLog, now_ms: u64) -> Result<(), LogError> {
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
            // What the platform refused of an older log is nowhere but here: it goes when nothing else can.
            return if self.synced > 0 { self.prune_older(open, false, now_ms) } else { Ok(()) };
        };
        let pruned = own(now_ms, AuditEvent::RecordsPruned { below, synced: self.is_synced });
        match append(open, vec![pruned.clone()], &self.queue) {
            Ok(Appended { live, .. }) => self.send_live(live),
            // Where the disk is full, only what is removed makes room for it.
            Err(error) if error.is_full() => self.own.push(pruned),
            Err(error) => return Err(error),
        }
        open.log.prune(below).map(drop)
    }

    fn prune_older(&mut self, open: &mut OpenLog, synced: bool, now_ms: u64) -> Result<(), LogError> {
        if open.log.prune_older()? > 0 {
            self.tell(now_ms, AuditEvent::RecordsPruned { below: open.log.first(), synced });
        }
        Ok(())
    }

    /// Signs what is durable, when it has waited long enough.
    fn sign(&mut self, open: &mut OpenLog, at_once: bool, now: Instant, now_ms: u64) -> Result<(), WriteError> {
        let signed = open.log.checkpoint().map(|checkpoint| checkpoint.size);
        let is_due = at_once || now.duration_since(open.signed) >= TICK;
        // A log without records has no head.
        if signed.unwrap_or(0) == open.log.durable_size() || !is_due {
            return Ok(());
        }
        open.signed = now;
        let generation = open.log.generation();
        let checkpoint = open.log.sign(&open.key)?.clone();
        let is_urgent = std::mem::take(&mut open.is_urgent);
        self.state.publish(PublishedHead { generation, checkpoint, at_ms: now_ms, is_urgent });
        Ok(())
    }

    fn send_live(&self, live: Vec<Arc<LiveRecord>>) {
        for record in live {
            self.state.send_live(record);
        }
    }

    fn lose(&mut self, cause: Cause, entries: &[Entry]) {
        for entry in entries {
            entries::forget(entry, &self.queue);
        }
        let since_ms = entries.iter().map(|entry| entry.at_ms).min().unwrap_or(0);
        self.count(cause, sum(entries, since_ms));
    }

    fn count(&mut self, cause: Cause, lost: Lost) {
        if lost.events > 0 {
            // Before anybody hears that what was recorded is durable.
            self.queue.events_lost();
        }
        self.losses.count(cause, lost);
    }

    /// The log is as it should be.
    fn works(&mut self) {
        if self.state.set_error(None).is_some() {
            tracing::info!("the audit log can be written again");
        }
    }

    /// Says once what is wrong.
    fn fail(&self, reason: &str) {
        if self.state.set_error(Some(reason.to_owned())).as_deref() != Some(reason) {
            tracing::error!(reason, "the audit log cannot be written; what is lost of it is counted");
        }
    }

    /// Says once what goes wrong beside the log, which goes on.
    fn warn(&mut self, reason: String) {
        if self.warned.as_ref() != Some(&reason) {
            tracing::error!(reason, "the audit log goes on, but not all is well with it");
            self.warned = Some(reason);
        }
    }

    fn tell_status(&self) {
        let lost = self.losses.total();
        self.state.update(|status| {
            status.lost = lost;
            if let Some(OpenLog { log, .. }) = &self.open {
                status.log = Some(log.figures());
            }
        });
    }

    /// What was lost is told here, at least.
    fn end(self) {
        let (calls, events) = self.losses.total();
        if calls + events > 0 {
            tracing::warn!(calls, events, "what the audit log did not record since the start");
        }
    }
}

fn own(at_ms: u64, event: AuditEvent) -> Entry {
    Entry { at_ms, what: Recorded::Event(Principal::Local, event) }
}
