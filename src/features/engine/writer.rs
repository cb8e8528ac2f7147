//! The writer: journal first, then index, then the acknowledgement.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ledge_base::clock;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;

use super::super::entity_keys::EntityKeys;
use super::super::journal::{Change, Journal, JournalError};
use super::super::key::IndexKey;
use super::super::online::{FeatureError, Pushed};
use super::super::protection::Body;
use super::super::record::Seal;
use super::super::seal::Place;
use super::super::statistics::Counters;
use super::super::store::{Index, IndexError};
use super::applier::{Action, Applier, Pending};
use super::files::Clean;
use super::orders::{Command, Incoming, Job};
use super::{Engine, State};

/// How many rows share one write to the disk at most: a bound on how long the first of them waits.
const GROUP: usize = 512;

/// The same in bytes. A push has [`super::super::MAX_PUSH`] at most, and the journal takes twice that at once.
const GROUP_BYTES: usize = 4 << 20;

/// The bytes of rows in the journal.
fn size(rows: &[Incoming]) -> usize {
    rows.iter().map(|row| row.bytes.len()).sum()
}

/// A push, and who is told of its end.
type Waiting = (Vec<Incoming>, oneshot::Sender<Result<Pushed, FeatureError>>);

/// The writer's own.
pub struct Writer {
    engine: Arc<Engine>,
    journal: Journal,
    applier: Option<Applier>,
    /// What the state was before a restore began.
    before_restore: Option<Arc<State>>,
    /// Whether the last push was refused for want of room: it is told when that begins and ends.
    is_full: bool,
    /// Whether it was told that the index has rows from a future that the clock took back.
    told_of_future: bool,
    /// Whether it was told that the clock is behind the rows of the index.
    told_of_clock: bool,
}

impl Writer {
    /// Over an open journal, without an index yet.
    pub fn new(engine: Arc<Engine>, journal: Journal) -> Self {
        Self {
            engine,
            journal,
            applier: None,
            before_restore: None,
            is_full: false,
            told_of_future: false,
            told_of_clock: false,
        }
    }

    /// Runs until it is told to close.
    pub fn run(mut self, mut commands: Receiver<Command>) {
        self.publish_figures();
        while let Some(first) = commands.blocking_recv() {
            let mut next = Some(first);
            while let Some(command) = next.take() {
                match command {
                    Command::Push { rows, reply } => {
                        let (mut waiting, mut bytes) = (rows.len(), size(&rows));
                        let mut pushes = vec![(rows, reply)];
                        while waiting < GROUP && bytes < GROUP_BYTES {
                            match commands.try_recv() {
                                Ok(Command::Push { rows, reply }) => {
                                    (waiting, bytes) = (waiting + rows.len(), bytes + size(&rows));
                                    pushes.push((rows, reply));
                                }
                                Ok(other) => {
                                    next = Some(other);
                                    break;
                                }
                                Err(_) => break,
                            }
                        }
                        self.push(pushes);
                    }
                    Command::Close => return self.close(),
                    other => self.serve(other),
                }
            }
        }
        self.close();
    }

    fn serve(&mut self, command: Command) {
        match command {
            Command::Purge { expired, now_us, reply } => {
                let registry = self.engine.registry.load_full();
                let gone = self.on_index(|applier| applier.purge(&registry, &expired, now_us)).unwrap_or(0);
                self.publish_rows();
                let _ = reply.send(gone);
            }
            Command::Mark { rotate, reply } => {
                let _ = reply.send(self.mark(rotate));
            }
            Command::NoteDamage(damage) => {
                if let Err(error) = self.journal.note_damage(&damage) {
                    tracing::warn!(%error, "the journal of the feature store cannot start a new segment");
                }
            }
            Command::RemoveBefore { seq, reply } => {
                let removed = self.journal.remove_before(seq);
                self.publish_figures();
                let _ = reply.send(removed);
            }
            Command::Erase { records, keys, reply } => {
                let _ = reply.send(self.erase(&records, &keys));
            }
            Command::EndCensus { forget, reply } => {
                let _ = reply.send(self.engine.protection.keys().map_or(0, |keys| keys.end_census(forget)));
            }
            Command::Handover { applier, reply } => {
                let _ = reply.send(self.take_over(applier));
            }
            Command::BeginRestore { reply } => {
                self.before_restore = Some(self.engine.state.swap(Arc::new(State::Restoring)));
                let _ = reply.send(self.journal.next_seq());
            }
            Command::EndRestore { replay_from, reply } => {
                let _ = reply.send(self.end_restore(replay_from));
            }
            Command::Turn { reply } => {
                let _ = reply.send(());
            }
            Command::Push { .. } | Command::Close => {}
        }
    }

    /// The number before which the index has every entry, and how many records it has.
    fn mark(&mut self, rotate: bool) -> Result<(u64, u64), FeatureError> {
        let Some(records) = self.on_index(|applier| Ok(applier.content.tally.records)) else {
            return Err(FeatureError::Unavailable { reason: self.engine.state.load().reason() });
        };
        if rotate {
            let unwritten = |error: JournalError| FeatureError::Unavailable { reason: error.to_string() };
            self.journal.rotate().map_err(unwritten)?;
        }
        Ok((self.journal.next_seq(), records))
    }

    fn push(&mut self, pushes: Vec<Waiting>) {
        let latest_us = self.believed_until();
        let (first_seq, bodies) = match self.write(&pushes, latest_us) {
            Ok(written) => written,
            Err(error) => {
                for (_, reply) in pushes {
                    let _ = reply.send(Err(error.clone()));
                }
                return;
            }
        };
        let mut pending = Vec::with_capacity(bodies.len());
        let mut bodies = bodies.into_iter();
        let mut replies = Vec::with_capacity(pushes.len());
        for (rows, reply) in pushes {
            replies.push((rows.len(), reply));
            for (Incoming { view, key, row, .. }, body) in rows.into_iter().zip(bodies.by_ref()) {
                let seq = first_seq + pending.len() as u64;
                pending.push(Pending { seq, key, action: Action::Put(view, row, body), latest_us });
            }
        }
        // Without an index the rows are in the journal, and enter the next index from there.
        let outcomes = self.on_index(|applier| applier.apply(&pending));
        let taken_back = self.applier.as_mut().map_or(0, |applier| std::mem::take(&mut applier.taken_back));
        self.engine.counters.taken_back.fetch_add(taken_back, Relaxed);
        let mut outcomes = outcomes.into_iter().flatten();
        let mut rows = pending.iter();
        // Counted under one lock, and told before anybody hears of it.
        let told: Vec<_> = self.engine.counters.with_views(|views| {
            let count = |(count, reply)| {
                let mut outcome = Pushed::default();
                for pending in rows.by_ref().take(count) {
                    let merged = outcomes.next().unwrap_or(super::super::merge::Merged::Accepted);
                    outcome.count(merged);
                    if let Action::Put(view, row, _) = &pending.action {
                        let view = views.entry(view.id).or_default();
                        view.pushed.count(merged);
                        let newest_us = Some(view.newest_us).filter(|newest| *newest <= latest_us);
                        view.newest_us = newest_us.map_or(row.event_us, |newest| newest.max(row.event_us));
                    }
                }
                (outcome, reply)
            };
            replies.into_iter().map(count).collect()
        });
        for (outcome, reply) in told {
            let _ = reply.send(Ok(outcome));
        }
        self.publish_rows();
    }

    /// The latest event time that is believed now. Once it is told when there are later ones, and when none is judged though
    /// there are some later than the clock.
    fn believed_until(&mut self) -> i64 {
        let now_us = clock::unix_micros();
        let latest_us = self.engine.believed_until(now_us);
        let Some(newest_us) = self.applier.as_ref().map(|applier| applier.content.newest_us) else { return latest_us };
        let is_behind = latest_us == i64::MAX && newest_us > now_us;
        if is_behind && !self.told_of_clock {
            tracing::warn!(
                clock = clock::rfc3339_micros(now_us),
                newest = clock::rfc3339_micros(newest_us),
                "the clock is behind the rows of the feature store, as before a box reaches a time server: it judges no event \
                 time, and rows without an event_timestamp get one just after the newest, until it is set (docs/features.md)"
            );
        }
        if !is_behind && self.told_of_clock {
            let rows = self.engine.counters.stamped_ahead.swap(0, Relaxed);
            tracing::info!(
                rows,
                "the clock judges event times again: these rows without an event_timestamp got a later one"
            );
        }
        self.told_of_clock = is_behind;
        let is_future = newest_us > latest_us;
        if is_future && !self.told_of_future {
            tracing::warn!(
                newest = clock::rfc3339_micros(newest_us),
                believed_until = clock::rfc3339_micros(latest_us),
                "rows of the feature store have event times from a future that the clock took back: they count no longer \
                 as the newest of their entities, and the next push to each replaces them"
            );
        }
        self.told_of_future = is_future;
        latest_us
    }

    /// Brings the rows of all pushes to the disk; the number of the first, and what the journal has of each.
    fn write(&mut self, pushes: &[Waiting], latest_us: i64) -> Result<(u64, Vec<Body>), FeatureError> {
        let engine = &self.engine;
        // While the index is opened nobody knows which entries it has: a new one must come after them.
        if matches!(&**engine.state.load(), State::Opening | State::Restoring | State::Closed) {
            return Err(FeatureError::Unavailable { reason: engine.state.load().reason() });
        }
        let not_written = |reason: String| FeatureError::NotWritten { reason };
        let (free, least) =
            (engine.files.free().map_err(|error| not_written(error.to_string()))?, engine.config.min_free_mb << 20);
        if free < least {
            return Err(Self::refuse(&self.engine, &mut self.is_full, free));
        }
        let bodies = self.seal(pushes)?;
        let rows = pushes.iter().flat_map(|(rows, _)| rows);
        let changes: Vec<(IndexKey, Change)> = (rows.zip(&bodies))
            .map(|(incoming, Body { seal, bytes })| {
                let bytes = bytes.clone();
                let is_plain = *seal == Seal::default();
                (incoming.key, if is_plain { Change::Put(bytes) } else { Change::PutSealed(seal.key_id, bytes) })
            })
            .collect();
        let engine = &self.engine;
        let written = self.journal.append(&changes, latest_us).map_err(|error| {
            if error.is_full() {
                // What it was measured by may lie: quotas, and blocks kept for root.
                return Self::refuse(&self.engine, &mut self.is_full, free);
            }
            let reason = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
            tracing::error!(%error, reason, "the journal of the feature store cannot be written");
            Counters::count(&engine.counters.not_written);
            not_written(format!("{error}{reason}"))
        })?;
        engine.acknowledged.note(self.journal.next_seq());
        Counters::count(&engine.counters.groups);
        self.publish_figures();
        // At full rate it would have grown far beyond by the next look.
        if engine.has_journal_grown(self.journal.bytes()) && !engine.snapshot_asked.swap(true, Relaxed) {
            let _ = engine.jobs.send(Job::Look);
        }
        if std::mem::take(&mut self.is_full) {
            tracing::info!("the feature store's disk has room again: pushes are taken");
            engine.audit.record_space("feature_store", true);
        }
        Ok((*written.start(), bodies))
    }

    /// What the journal will have of each row. New keys are on the disk when this returns.
    fn seal(&mut self, pushes: &[Waiting]) -> Result<Vec<Body>, FeatureError> {
        let protection = &self.engine.protection;
        let rows = pushes.iter().flat_map(|(rows, _)| rows);
        if protection.keys().is_none() {
            return Ok(rows.map(|incoming| Body::plain(incoming.bytes.clone())).collect());
        }
        let not_written = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "rows for the feature store cannot be sealed");
            Counters::count(&self.engine.counters.not_written);
            FeatureError::NotWritten { reason: error.to_string() }
        };
        let first_seq = self.journal.ready().map_err(|error| not_written(&error))?;
        let seal = |(seq, incoming): (u64, &Incoming)| {
            let place = Place { key: &incoming.key, seq, windows: false };
            protection.seal(&place, &incoming.row.entity, incoming.bytes.clone())
        };
        let bodies: Result<Vec<_>, _> = (first_seq..).zip(rows).map(seal).collect();
        let bodies = bodies.map_err(|error| not_written(&error))?;
        protection.persist().map_err(|error| not_written(&error))?;
        if protection.keys().is_some_and(EntityKeys::is_fold_due) {
            let _ = self.engine.jobs.send(Job::FoldKeys);
        }
        Ok(bodies)
    }

    /// Forgets keys, so that a push that comes afterwards gets another one, and removes records, in journal and index. The
    /// number of the last entry that removes one, or of the next entry.
    fn erase(&mut self, records: &[IndexKey], keys: &[u32]) -> Result<u64, FeatureError> {
        // Whatever comes of the rest: should the process end, the next start destroys them.
        if let Some(known) = self.engine.protection.keys() {
            known.doom(keys);
        }
        if !matches!(&**self.engine.state.load(), State::Ready(_)) {
            return Err(FeatureError::NotErased { reason: self.engine.state.load().reason() });
        }
        let (mut removed_by, latest_us) = (self.journal.next_seq(), self.believed_until());
        for records in records.chunks(GROUP) {
            let changes: Vec<_> = records.iter().map(|key| (*key, Change::Delete)).collect();
            let written = self.journal.append(&changes, latest_us);
            let written = written.map_err(|error| FeatureError::NotErased { reason: error.to_string() })?;
            removed_by = *written.end();
            self.engine.acknowledged.note(self.journal.next_seq());
            let removal = |(seq, key): (u64, &IndexKey)| Pending { seq, key: *key, action: Action::Delete, latest_us };
            let pending: Vec<_> = written.zip(records).map(removal).collect();
            self.on_index(|applier| applier.apply(&pending));
        }
        self.publish_figures();
        self.publish_rows();
        Ok(removed_by)
    }

    fn refuse(engine: &Engine, is_full: &mut bool, free: u64) -> FeatureError {
        Counters::count(&engine.counters.refused_disk_full);
        let error = engine.disk_full(free);
        if !std::mem::replace(is_full, true) {
            tracing::warn!(%error, "the feature store's disk is full: pushes are refused until there is room");
            engine.audit.record_space("feature_store", false);
        }
        error
    }

    /// Does `work` on the index, if there is one that can be used.
    fn on_index<T>(&mut self, work: impl FnOnce(&mut Applier) -> Result<T, IndexError>) -> Option<T> {
        let applier = self.applier.as_mut()?;
        match &**self.engine.state.load() {
            State::Ready(index) if Arc::ptr_eq(index, &applier.index) => match work(applier) {
                Ok(done) => return Some(done),
                Err(error) => self.engine.give_up(&applier.index.clone(), &error),
            },
            // It comes back when nothing is restored after all.
            State::Restoring => return None,
            // A reader has found it damaged.
            State::Ready(_) | State::Opening | State::Rebuilding { .. } | State::Closed => {}
        }
        self.applier = None;
        None
    }

    /// Brings an index up to the last entry, and puts it in the place of the one there is.
    fn take_over(&mut self, mut applier: Applier) -> Result<Option<Applier>, String> {
        let (next, last) = (self.journal.next_seq(), applier.applied.max(applier.content.highest));
        if last >= next {
            // What comes now must be newer than what the index has.
            self.journal.skip_to(last + 1).map_err(|error| error.to_string())?;
            self.publish_figures();
            let reason = format!("it ends before entry {next}, and the index has entries up to {last}");
            self.engine.alarm("the journal of the feature store lacks its end; a snapshot takes its place", &reason);
            let _ = self.engine.jobs.send(Job::Snapshot { reply: oneshot::channel().0 });
        }
        if self.engine.acknowledged.lacking().is_some() {
            // Only the index has them.
            let _ = self.engine.jobs.send(Job::Snapshot { reply: oneshot::channel().0 });
        }
        let (from, to, had) = (applier.applied + 1, self.journal.next_seq(), last);
        let gaps = super::recovery::replay(&self.engine, from, to, had, &mut applier).map_err(String::from)?;
        if let (Some(lost), Some(_)) = (gaps.first(), &self.applier) {
            // The index that there is has them.
            return Err(lost.clone());
        }
        super::recovery::tell(&self.engine, &gaps);
        applier.taken_back = 0;
        // Before anybody reads or judges by the clock what it has.
        self.engine.note_newest(applier.content.newest_us);
        let state = Arc::new(State::Ready(applier.index.clone()));
        let old = self.applier.replace(applier);
        // What it has to tell comes at the start already, and not with the first push alone.
        self.believed_until();
        match &mut self.before_restore {
            Some(before) => *before = state,
            None => self.engine.state.store(state),
        }
        self.publish_rows();
        Ok(old)
    }

    fn end_restore(&mut self, replay_from: Option<u64>) -> Option<Arc<Index>> {
        let before = self.before_restore.take()?;
        let Some(seq) = replay_from else {
            self.engine.state.store(before);
            return None;
        };
        let reason = "a backup was restored".to_owned();
        self.engine.state.store(Arc::new(State::Rebuilding { reason }));
        if let Err(error) = self.journal.skip_to(seq) {
            // The index is built up to the snapshot's number all the same, and then it is tried again.
            tracing::warn!(%error, "the journal of the feature store cannot start a new segment");
        }
        self.publish_figures();
        self.applier.take().map(|applier| applier.index)
    }

    fn publish_figures(&self) {
        self.engine.counters.journal_bytes.store(self.journal.bytes(), Relaxed);
        self.engine.counters.journal_next_seq.store(self.journal.next_seq(), Relaxed);
    }

    fn publish_rows(&self) {
        let Some(applier) = &self.applier else { return };
        self.engine.note_newest(applier.content.newest_us);
        self.engine.counters.with_views(|views| {
            for (view, rows) in &applier.content.rows {
                views.entry(*view).or_default().rows = *rows;
            }
        });
    }

    fn close(mut self) {
        let started = Instant::now();
        self.engine.state.store(Arc::new(State::Closed));
        self.engine.acknowledged.close();
        let Some(applier) = self.applier.take() else { return };
        if let Err(error) = applier.note_applied() {
            tracing::warn!(%error, "the feature store was not closed in order; the next start checks it");
            return;
        }
        let Some(generation) = super::recovery::generation(applier.index.folder()) else { return };
        let clean = Clean { generation, applied: applier.applied, tally: applier.content.tally };
        let closed = applier.index.flush().map_err(|error| error.to_string());
        match closed.and_then(|()| self.engine.files.mark_clean(&clean).map_err(|error| error.to_string())) {
            Ok(()) => tracing::debug!(ms = started.elapsed().as_millis(), "the feature store is closed"),
            Err(error) => tracing::warn!(error, "the feature store was not closed in order; the next start checks it"),
        }
        drop(applier);
    }
}
