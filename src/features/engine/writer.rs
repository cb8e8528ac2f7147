//! The writer: journal first, then index, then the acknowledgement.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use ledge_base::clock;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;

use super::super::entity_keys::EntityKeys;
use super::super::incoming::IncomingRow;
use super::super::index::{EntityIndex, IndexError, MemTable};
use super::super::journal::{Journal, JournalChange, JournalError};
use super::super::key::IndexKey;
use super::super::online::{FeatureError, PushCounts};
use super::super::profiles::sampler::RowSampler;
use super::super::protection::RecordBody;
use super::super::record::CipherHeader;
use super::super::seal::CipherContext;
use super::super::snapshot::SortedTable;
use super::super::statistics::StoreCounters;
use super::applier::{IndexApplier, PendingAction, PendingChange};
use super::commands::{MaintenanceJob, StoreWriterCommand};
use super::files::CleanStopMark;
use super::{StoreEngine, StoreState};

/// The most rows that share one write to the disk: bounds how long the first of them waits.
const GROUP_ROWS_MAX: usize = 512;

/// The same limit in bytes. A push has [`crate::incoming::PUSH_BYTES_MAX`] at most, and the journal takes twice that at
/// once.
const GROUP_BYTES_MAX: usize = 4 << 20;

/// The bytes of rows in the journal.
fn size(rows: &[IncomingRow]) -> usize {
    rows.iter().map(|row| row.bytes.len()).sum()
}

/// The rows of a push, and the channel for its outcome.
type WaitingPush = (Vec<IncomingRow>, oneshot::Sender<Result<PushCounts, FeatureError>>);

/// The state of the writer thread.
pub struct StoreWriter {
    engine: Arc<StoreEngine>,
    journal: Journal,
    applier: Option<IndexApplier>,
    /// Takes the rows that are to be judged.
    sampler: RowSampler,
    /// The store's state before a restore began.
    before_restore: Option<Arc<StoreState>>,
    /// True when the last push was refused because the disk was full. The beginning and the end of that are logged.
    is_full: bool,
    /// True when the log already says that the index has rows from a future that the clock left again.
    reported_future: bool,
    /// True when the log already says that the clock is behind the rows of the index.
    reported_clock: bool,
}

impl StoreWriter {
    /// Creates a writer for an open journal, without an index yet.
    pub fn new(engine: Arc<StoreEngine>, journal: Journal) -> Self {
        Self {
            engine,
            journal,
            applier: None,
            sampler: RowSampler::default(),
            before_restore: None,
            is_full: false,
            reported_future: false,
            reported_clock: false,
        }
    }

    /// Runs until [`StoreWriterCommand::Close`].
    pub fn run(mut self, mut commands: Receiver<StoreWriterCommand>) {
        self.publish_figures();
        while let Some(first) = commands.blocking_recv() {
            let mut next = Some(first);
            while let Some(command) = next.take() {
                match command {
                    StoreWriterCommand::Push { rows, reply } => {
                        let (mut waiting, mut bytes) = (rows.len(), size(&rows));
                        let mut pushes = vec![(rows, reply)];
                        while waiting < GROUP_ROWS_MAX && bytes < GROUP_BYTES_MAX {
                            match commands.try_recv() {
                                Ok(StoreWriterCommand::Push { rows, reply }) => {
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
                    StoreWriterCommand::Close => return self.close(),
                    other => self.serve(other),
                }
            }
        }
        self.close();
    }

    fn serve(&mut self, command: StoreWriterCommand) {
        match command {
            StoreWriterCommand::TakePushes { from } => self.take_pushes(from),
            StoreWriterCommand::Position { reply } => {
                let records = self.on_index(|applier| Ok(applier.content.records()));
                let _ = reply
                    .send(records.map(|records| (self.journal.next_seq(), records)).ok_or_else(|| self.no_index()));
            }
            StoreWriterCommand::Freeze { layer, least, reply } => {
                let _ = reply.send(self.rotate(layer, least));
            }
            StoreWriterCommand::Rebase { index, snapshot, reply } => {
                let _ = reply.send(self.install(&index, &snapshot));
            }
            StoreWriterCommand::NoteDamage(damage) => {
                if let Err(error) = self.journal.note_damage(&damage) {
                    tracing::warn!(%error, "cannot begin a new segment of the feature store's journal; the next push tries again");
                }
            }
            StoreWriterCommand::RemoveBefore { seq, reply } => {
                let removed = self.journal.remove_before(seq);
                self.publish_figures();
                let _ = reply.send(removed);
            }
            StoreWriterCommand::Erase { records, keys, reply } => {
                let _ = reply.send(self.erase(&records, &keys));
            }
            StoreWriterCommand::EndCensus { forget, reply } => {
                let _ = reply.send(self.engine.protection.keys().map_or(0, |keys| keys.end_census(forget)));
            }
            StoreWriterCommand::Handover { applier, reply } => {
                let _ = reply.send(self.take_over(*applier));
            }
            StoreWriterCommand::BeginRestore { reply } => {
                self.before_restore = Some(self.engine.state.swap(Arc::new(StoreState::Restoring)));
                let _ = reply.send(self.journal.next_seq());
            }
            StoreWriterCommand::EndRestore { replay_from, reply } => {
                let _ = reply.send(self.end_restore(replay_from));
            }
            StoreWriterCommand::Ping { reply } => {
                let _ = reply.send(());
            }
            StoreWriterCommand::Push { .. } | StoreWriterCommand::Close => {}
        }
    }

    fn take_pushes(&mut self, from: u64) {
        if let Err(error) = self.go_beyond(from - 1) {
            // Pushes wait until the index is open, and report the reason then.
            return tracing::warn!(%error, "cannot begin a new segment of the feature store's journal yet");
        }
        let current = self.engine.state.load();
        if matches!(&**current, StoreState::Opening) {
            self.engine.state.compare_and_swap(&*current, Arc::new(StoreState::Comparing));
        }
    }

    /// Makes entries from now on newer than those of the index, of which `last` is the last one.
    fn go_beyond(&mut self, last: u64) -> Result<(), JournalError> {
        let next = self.journal.next_seq();
        if last >= next {
            self.journal.skip_to(last + 1)?;
            self.publish_figures();
            let reason = format!("it ends before entry {next}, and the index has entries up to {last}");
            self.engine.alarm("the journal of the feature store lacks its end; a snapshot takes its place", &reason);
            let _ = self.engine.jobs.send(MaintenanceJob::Snapshot { reply: oneshot::channel().0 });
        }
        Ok(())
    }

    fn no_index(&self) -> FeatureError {
        FeatureError::Unavailable { reason: self.engine.state.load().reason() }
    }

    /// Puts `layer` on the index, for the entries of a new journal segment.
    fn rotate(&mut self, layer: MemTable, least: u64) -> Result<Arc<EntityIndex>, FeatureError> {
        let unwritten = |error: JournalError| FeatureError::Unavailable { reason: error.to_string() };
        let content = self.on_index(|applier| {
            let content = &applier.content;
            Ok((applier.index.clone(), content.records(), content.top.changed()))
        });
        let Some((index, records, changed)) = content else { return Err(self.no_index()) };
        self.journal.skip_to(least).and_then(|()| self.journal.rotate()).map_err(unwritten)?;
        self.publish_figures();
        let (number, hash_key) = (self.journal.next_seq(), self.engine.hash_key.id());
        let begun = layer.begin(number, hash_key);
        begun.map_err(|error| FeatureError::Unavailable { reason: error.to_string() })?;
        let frozen = Arc::new(index.rotate(Arc::new(layer), number, records, changed));
        let Some(applier) = self.applier.as_mut().filter(|_| self.engine.exchange(&index, &frozen)) else {
            return Err(self.no_index());
        };
        applier.rotate(frozen.clone());
        self.publish_figures();
        Ok(frozen)
    }

    /// Makes the index read everything below its top layer from `snapshot`. False when another index is in use by now.
    fn install(&mut self, index: &Arc<EntityIndex>, snapshot: &Arc<SortedTable>) -> bool {
        let installed = Arc::new(index.install(snapshot.clone()));
        let Some(applier) = self.applier.as_mut().filter(|_| self.engine.exchange(index, &installed)) else {
            return false;
        };
        applier.install(installed, snapshot.statistics());
        self.publish_rows();
        true
    }

    fn push(&mut self, pushes: Vec<WaitingPush>) {
        let latest_us = self.trusted_until();
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
            for (IncomingRow { view, key, row, .. }, body) in rows.into_iter().zip(bodies.by_ref()) {
                let seq = first_seq + pending.len() as u64;
                pending.push(PendingChange { seq, key, action: PendingAction::Put(view, row, body), latest_us });
            }
        }

        // Without an index the rows are in the journal only, and enter the next index from there.
        let mut sampler = std::mem::take(&mut self.sampler);
        let outcomes = self.on_index(|applier| applier.apply_sampled(&pending, &mut sampler));
        self.sampler = sampler;
        let taken_back = self.applier.as_mut().map_or(0, |applier| std::mem::take(&mut applier.taken_back));
        self.engine.counters.taken_back.fetch_add(taken_back, Relaxed);

        let mut outcomes = outcomes.into_iter().flatten();
        let mut rows = pending.iter();
        // Count everything under one lock, and before any caller gets its reply.
        let told: Vec<_> = self.engine.counters.with_views(|views| {
            let count = |(count, reply)| {
                let mut outcome = PushCounts::default();
                for pending in rows.by_ref().take(count) {
                    let merged = outcomes.next().unwrap_or(super::super::merge::MergeOutcome::Accepted);
                    outcome.count(merged);
                    if let PendingAction::Put(view, row, _) = &pending.action {
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
        self.engine.profiles.offer(self.sampler.drain());
        self.publish_rows();
    }

    /// The latest event time that is trusted now. Logs once when the index has later ones, and when the check is off
    /// although some are later than the clock.
    fn trusted_until(&mut self) -> i64 {
        let now_us = clock::unix_micros();
        let latest_us = self.engine.trusted_until(now_us);
        let Some(newest_us) = self.applier.as_ref().map(|applier| applier.content.newest_us()) else {
            return latest_us;
        };

        let is_behind = latest_us == i64::MAX && newest_us > now_us;
        if is_behind && !self.reported_clock {
            tracing::warn!(
                name: "features.clock_behind",
                clock = clock::rfc3339_micros(now_us),
                newest = clock::rfc3339_micros(newest_us),
                "the clock is behind the newest row of the feature store, as before the first contact with a time server. \
                 Until it is set, event times are not checked, and rows without an event_timestamp get one just after \
                 the newest row (docs/features.md)"
            );
        }

        if !is_behind && self.reported_clock {
            let rows = self.engine.counters.stamped_ahead.swap(0, Relaxed);
            tracing::info!(
                name: "features.clock_set",
                rows,
                "the clock is set, and event times are checked again; these rows without an event_timestamp got a time ahead of it"
            );
        }
        self.reported_clock = is_behind;

        let is_future = newest_us > latest_us;
        if is_future && !self.reported_future {
            tracing::warn!(
                name: "features.clock_set_back",
                newest = clock::rfc3339_micros(newest_us),
                believed_until = clock::rfc3339_micros(latest_us),
                "the clock was set back, and rows of the feature store have event times in its future. They no longer count \
                 as the newest of their entities, and the next push to each entity replaces them"
            );
        }
        self.reported_future = is_future;
        latest_us
    }

    /// Writes the rows of all pushes to the disk. Returns the number of the first, and each row as the journal has it.
    fn write(&mut self, pushes: &[WaitingPush], latest_us: i64) -> Result<(u64, Vec<RecordBody>), FeatureError> {
        let engine = &self.engine;
        // Until the index is open it is unknown which entries it has, and a new entry must come after them.
        if matches!(&**engine.state.load(), StoreState::Opening | StoreState::Restoring | StoreState::Closed) {
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
        let changes: Vec<(IndexKey, JournalChange)> = (rows.zip(&bodies))
            .map(|(incoming, RecordBody { seal, bytes })| {
                let bytes = bytes.clone();
                let is_plain = *seal == CipherHeader::default();
                (
                    incoming.key,
                    if is_plain { JournalChange::Put(bytes) } else { JournalChange::PutSealed(seal.key_id, bytes) },
                )
            })
            .collect();

        let engine = &self.engine;

        let written = self.journal.append(&changes, latest_us).map_err(|error| {
            if error.is_full() {
                // The free space reported by the file system ignores quotas and blocks reserved for root.
                return Self::refuse(&self.engine, &mut self.is_full, free);
            }
            let reason = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
            tracing::error!(%error, reason, "the journal of the feature store cannot be written");
            StoreCounters::count(&engine.counters.not_written);
            not_written(format!("{error}{reason}"))
        })?;

        engine.acknowledged.note(self.journal.next_seq());
        StoreCounters::count(&engine.counters.groups);
        self.publish_figures();
        // At full rate the journal would grow far beyond the limit until the next check.
        if engine.has_grown(self.journal.bytes()) && !engine.snapshot_asked.swap(true, Relaxed) {
            let _ = engine.jobs.send(MaintenanceJob::RunPeriodic);
        }

        if std::mem::take(&mut self.is_full) {
            tracing::info!("the feature store's disk has room again: pushes are accepted");
            engine.audit.record_space("feature_store", true);
        }

        Ok((*written.start(), bodies))
    }

    /// The rows as the journal will have them, encrypted where encryption is on. New keys are on the disk when this
    /// returns.
    fn seal(&mut self, pushes: &[WaitingPush]) -> Result<Vec<RecordBody>, FeatureError> {
        let protection = &self.engine.protection;
        let rows = pushes.iter().flat_map(|(rows, _)| rows);
        if protection.keys().is_none() {
            return Ok(rows.map(|incoming| RecordBody::plain(incoming.bytes.clone())).collect());
        }
        let not_written = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "rows for the feature store cannot be encrypted");
            StoreCounters::count(&self.engine.counters.not_written);
            FeatureError::NotWritten { reason: error.to_string() }
        };
        let first_seq = self.journal.ready().map_err(|error| not_written(&error))?;
        let seal = |(seq, incoming): (u64, &IncomingRow)| {
            let context = CipherContext { key: &incoming.key, seq, windows: false };
            protection.seal(&context, &incoming.row.entity, incoming.bytes.clone())
        };
        let bodies: Result<Vec<_>, _> = (first_seq..).zip(rows).map(seal).collect();
        let bodies = bodies.map_err(|error| not_written(&error))?;
        protection.persist().map_err(|error| not_written(&error))?;
        if protection.keys().is_some_and(EntityKeys::is_fold_due) {
            let _ = self.engine.jobs.send(MaintenanceJob::FoldKeys);
        }
        Ok(bodies)
    }

    /// Drops keys, so that a later push gets a new one, and removes records, in journal and index. Returns the number
    /// of the last entry that removes one, or of the next entry.
    fn erase(&mut self, records: &[IndexKey], keys: &[u32]) -> Result<u64, FeatureError> {
        // This comes first: if the process ends here, the next start destroys the keys.
        if let Some(known) = self.engine.protection.keys() {
            known.mark(keys);
        }
        if !matches!(&**self.engine.state.load(), StoreState::Ready(_)) {
            return Err(FeatureError::NotErased { reason: self.engine.state.load().reason() });
        }
        self.sampler.forget(records);
        let (mut removed_by, latest_us) = (self.journal.next_seq(), self.trusted_until());
        for records in records.chunks(GROUP_ROWS_MAX) {
            let changes: Vec<_> = records.iter().map(|key| (*key, JournalChange::Delete)).collect();
            let written = self.journal.append(&changes, latest_us);
            let written = written.map_err(|error| FeatureError::NotErased { reason: error.to_string() })?;
            removed_by = *written.end();
            self.engine.acknowledged.note(self.journal.next_seq());
            let removal = |(seq, key): (u64, &IndexKey)| PendingChange {
                seq,
                key: *key,
                action: PendingAction::Delete,
                latest_us,
            };
            let pending: Vec<_> = written.zip(records).map(removal).collect();
            self.on_index(|applier| applier.apply(&pending));
        }
        self.publish_figures();
        self.publish_rows();
        Ok(removed_by)
    }

    fn refuse(engine: &StoreEngine, is_full: &mut bool, free: u64) -> FeatureError {
        StoreCounters::count(&engine.counters.refused_disk_full);
        let error = engine.disk_full(free);
        if !std::mem::replace(is_full, true) {
            tracing::warn!(%error, "the feature store's disk is full: pushes are refused until there is room");
            engine.audit.record_space("feature_store", false);
        }
        error
    }

    /// Runs `work` on the index, if there is a usable one.
    fn on_index<T>(&mut self, work: impl FnOnce(&mut IndexApplier) -> Result<T, IndexError>) -> Option<T> {
        let applier = self.applier.as_mut()?;
        match &**self.engine.state.load() {
            StoreState::Ready(index) if Arc::ptr_eq(index, &applier.index) => match work(applier) {
                Ok(done) => return Some(done),
                Err(error) => self.engine.give_up(&applier.index.clone(), &error),
            },
            // Kept: the index is in use again when the restore fails.
            StoreState::Restoring => return None,
            // A reader has found it damaged.
            StoreState::Ready(_)
            | StoreState::Opening
            | StoreState::Comparing
            | StoreState::Rebuilding { .. }
            | StoreState::Closed => {}
        }
        self.applier = None;
        None
    }

    /// Brings an index up to the last entry, and puts it in use instead of the current one, which it returns.
    fn take_over(&mut self, mut applier: IndexApplier) -> Result<Option<IndexApplier>, String> {
        let last = applier.applied.max(applier.content.highest);
        self.go_beyond(last).map_err(|error| error.to_string())?;

        if self.engine.acknowledged.lacking().is_some() {
            // Only the index has these entries.
            let _ = self.engine.jobs.send(MaintenanceJob::Snapshot { reply: oneshot::channel().0 });
        }

        let (from, to, had) = (applier.applied + 1, self.journal.next_seq(), last);
        let gaps = super::recovery::replay(&self.engine, from, to, had, &mut applier).map_err(String::from)?;
        if let (Some(lost), Some(_)) = (gaps.first(), &self.applier) {
            // The current index has these entries.
            return Err(lost.clone());
        }
        super::recovery::report_lost(&self.engine, &gaps);

        applier.taken_back = 0;
        // Before any read, and before event times are compared with the clock.
        self.engine.note_newest(applier.content.newest_us());

        let state = Arc::new(StoreState::Ready(applier.index.clone()));
        let old = self.applier.replace(applier);
        // Logs a problem with the clock at the start already, and not only with the first push.
        self.trusted_until();
        match &mut self.before_restore {
            Some(before) => *before = state,
            None => self.engine.state.store(state),
        }
        self.publish_rows();
        Ok(old)
    }

    fn end_restore(&mut self, replay_from: Option<u64>) -> Option<Arc<EntityIndex>> {
        let before = self.before_restore.take()?;
        let Some(seq) = replay_from else {
            self.engine.state.store(before);
            return None;
        };
        let reason = "a backup was restored".to_owned();
        self.engine.state.store(Arc::new(StoreState::Rebuilding { reason }));
        if let Err(error) = self.journal.skip_to(seq) {
            // The index is built up to the snapshot's number anyway, and the next push tries again.
            tracing::warn!(%error, "cannot begin a new segment of the feature store's journal; the next push tries again");
        }
        self.publish_figures();
        self.applier.take().map(|applier| applier.index)
    }

    fn publish_figures(&self) {
        self.engine.counters.journal_bytes.store(self.journal.bytes(), Relaxed);
        self.engine.counters.journal_next_seq.store(self.journal.next_seq(), Relaxed);
        let changed = self.applier.as_ref().map_or(0, |applier| applier.content.top.bytes);
        self.engine.counters.layer_bytes.store(changed, Relaxed);
    }

    fn publish_rows(&self) {
        let Some(applier) = &self.applier else { return };
        self.engine.note_newest(applier.content.newest_us());
        self.engine.counters.with_views(|views| {
            for view in views.values_mut() {
                view.rows = 0;
            }
            for (view, rows) in applier.content.rows() {
                views.entry(view).or_default().rows = rows;
            }
        });
    }

    fn close(mut self) {
        let started = Instant::now();
        self.engine.state.store(Arc::new(StoreState::Closed));
        self.engine.acknowledged.close();
        self.engine.profiles.stop();
        let Some(applier) = self.applier.take() else { return };
        if let Err(error) = applier.note_applied() {
            tracing::warn!(%error, "the feature store was not closed cleanly; the next start checks its index");
            return;
        }
        let Some(generation) = super::recovery::generation(applier.index.top().folder()) else { return };
        let clean = CleanStopMark { generation, applied: applier.applied, checksum: applier.content.top.checksum };
        let closed = applier.index.top().flush().map_err(|error| error.to_string());
        match closed.and_then(|()| self.engine.files.mark_clean(&clean).map_err(|error| error.to_string())) {
            Ok(()) => tracing::debug!(ms = started.elapsed().as_millis(), "the feature store is closed"),
            Err(error) => {
                tracing::warn!(error, "the feature store was not closed cleanly; the next start checks its index");
            }
        }
        drop(applier);
    }
}
