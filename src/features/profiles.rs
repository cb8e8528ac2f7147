//! Profiles: what is usual of the rows of each entity, in views with `[feature_view.unusual]`. They find unusual rows,
//! and forecast features. The detectors are those of `ledge-anomaly`.
//!
//! * `profiles/sampler.rs` - the rows that are judged: the writer thread takes at most one of an entity in an interval
//! * `profiles/profile.rs` - the profile of one entity
//! * `profiles/set.rs` - all profiles, bounded
//! * `profiles/file.rs` - their file, with each profile encrypted as the rows of its entity are
//! * `profiles/answer.rs` - the answers about them
//!
//! The writer hands rows over after it has replied to their pushes, and never waits: rows that find the queue full are
//! not learnt. One thread judges them. An erasure removes the profile from memory and from the file before it is
//! answered; rows that were pushed before it and wait in the queue are then left out (`ProfileSet::leave_out_before`).
//! Without a view that asks for it there is no thread and no file.

pub mod answer;
mod file;
mod profile;
pub mod sampler;
mod set;
#[cfg(test)]
mod tests;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ledge_base::clock;

use super::engine::StoreEngine;
use super::key::IndexKey;
use super::online::DisclosedProfile;
use super::registry::Registry;
use super::view::FeatureView;
#[cfg(any(test, feature = "fuzzing"))]
pub use file::{example_file, fuzz};
pub use profile::EntityProfile;
use sampler::{SAMPLED_ROWS_MAX, SampledRow};
pub use set::ProfileCounts;
use set::ProfileSet;

/// The interval of writes. The largest file has 16 MB, so they are 64 MB a day at most.
const WRITE_INTERVAL: Duration = Duration::from_hours(6);

/// The rows that are judged while others who ask wait.
const BATCH_ROWS_MAX: usize = 256;

/// A message to the thread.
enum ProfileMessage {
    Row(SampledRow),
    Stop,
}

/// The profiles of a store.
pub(crate) struct EntityProfiles {
    file: PathBuf,
    set: Mutex<ProfileSet>,
    /// Set when the thread was started.
    queue: OnceLock<SyncSender<ProfileMessage>>,
}

impl std::fmt::Debug for EntityProfiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EntityProfiles")
    }
}

impl EntityProfiles {
    /// The profiles of the store in `folder`, which are read by [`Self::settle`].
    pub fn new(folder: &Path, registry: &Registry) -> Self {
        let mut set = ProfileSet::default();
        set.declare(registry);
        Self { file: folder.join(file::FILE_NAME), set: Mutex::new(set), queue: OnceLock::new() }
    }

    fn set(&self) -> MutexGuard<'_, ProfileSet> {
        // A panic in a detector leaves one profile as it was before a row, or after it.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread if a view asks for it, and there is none yet.
    pub fn start(engine: &Arc<StoreEngine>) -> io::Result<Option<JoinHandle<()>>> {
        let profiles = &engine.profiles;
        if !profiles.set().is_needed() || profiles.queue.get().is_some() {
            return Ok(None);
        }
        let (queue, rows) = sync_channel(SAMPLED_ROWS_MAX);
        let judging = engine.clone();
        let run = move || {
            if catch_unwind(AssertUnwindSafe(|| judging.profiles.run(&judging, &rows))).is_err() {
                tracing::error!(
                    "the thread that judges rows of feature views panicked; none is judged until a restart"
                );
            }
        };
        let thread = thread::Builder::new().name("features-watch".into()).spawn(run)?;
        let _ = profiles.queue.set(queue);
        Ok(Some(thread))
    }

    fn run(&self, engine: &StoreEngine, queue: &Receiver<ProfileMessage>) {
        let mut written = Instant::now();
        loop {
            match queue.recv_timeout(WRITE_INTERVAL.saturating_sub(written.elapsed())) {
                Ok(ProfileMessage::Row(row)) => {
                    if self.judge(engine, &row, queue) {
                        break;
                    }
                }
                Ok(ProfileMessage::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if written.elapsed() >= WRITE_INTERVAL {
                written = Instant::now();
                // The error is in the log.
                let _ = self.write(engine);
            }
        }
        let _ = self.write(engine);
    }

    /// Judges a row and some that wait behind it. True when the thread is to end.
    fn judge(&self, engine: &StoreEngine, first: &SampledRow, queue: &Receiver<ProfileMessage>) -> bool {
        let now_us = clock::unix_micros();
        let mut set = self.set();
        set.take(first, now_us);
        let mut is_end = false;
        for message in queue.try_iter().take(BATCH_ROWS_MAX) {
            match message {
                ProfileMessage::Row(row) => set.take(&row, now_us),
                ProfileMessage::Stop => {
                    is_end = true;
                    break;
                }
            }
        }
        publish(engine, &set);
        is_end
    }

    /// Hands rows to the thread, as far as its queue has room.
    pub fn offer(&self, rows: Vec<SampledRow>) {
        let Some(queue) = self.queue.get() else { return };
        for row in rows {
            if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(ProfileMessage::Row(row))
            {
                return;
            }
        }
    }

    /// Asks the profiles.
    fn with<T>(&self, ask: impl FnOnce(&ProfileSet) -> T) -> T {
        ask(&self.set())
    }

    /// The profiles of an entity, for a disclosure.
    pub fn disclose(&self, view: &FeatureView, is_it: impl Fn(&EntityProfile) -> bool) -> Vec<DisclosedProfile> {
        let of_view = |profile: &&EntityProfile| profile.view == view.id && is_it(profile);
        let profiles = self.set();
        let found = profiles.iter().map(|(_, profile)| profile).filter(of_view);
        found.map(|profile| answer::disclosed(view, profile)).collect()
    }

    /// As [`ProfileSet::teach_normal`].
    fn teach_normal(&self, engine: &StoreEngine, key: &IndexKey) -> Option<bool> {
        let mut set = self.set();
        let taught = set.teach_normal(key);
        publish(engine, &set);
        taught
    }

    /// Ends the thread after the rows that wait, which writes the file.
    pub fn stop(&self) {
        if let Some(queue) = self.queue.get() {
            // The thread has ended already where this fails.
            let _ = queue.send(ProfileMessage::Stop);
        }
    }

    /// Reads the file, the first time that there is an index, and drops the profiles of entities that the index does
    /// not have: they were erased, expired, or are not in a backup that was restored.
    pub fn settle(&self, engine: &StoreEngine) {
        let Some(index) = engine.live() else { return };
        let mut set = self.set();
        if !set.is_loaded() {
            let read = file::read(&self.file, engine, &set);
            set.load(read);
        }
        set.retain(|key, _| {
            // Where the index cannot be read, it is not known to lack the entity.
            let found =
                index.get(key).map(|record| record.is_some_and(|bytes| !engine.protection.is_erased(key, &bytes)));
            found.unwrap_or(true)
        });
        let is_changed = set.is_changed();
        publish(engine, &set);
        drop(set);
        if is_changed {
            // The error is in the log.
            let _ = self.write(engine);
        }
    }

    /// Applies new declarations: what was learnt of other features is dropped.
    pub fn declare(&self, engine: &StoreEngine, registry: &Registry) {
        let mut set = self.set();
        let is_less = set.declare(registry);
        publish(engine, &set);
        drop(set);
        if is_less {
            // The error is in the log.
            let _ = self.write(engine);
        }
    }

    /// Drops the profiles of erased entities from memory. [`Self::rewrite`] has to follow.
    /// `removed_by`: the journal's entry that removed them, or the next one.
    pub fn erase(&self, engine: &StoreEngine, is_erased: impl Fn(&EntityProfile) -> bool, removed_by: u64) {
        let mut set = self.set();
        set.leave_out_before(removed_by);
        set.retain(|_, profile| !is_erased(profile));
        publish(engine, &set);
    }

    /// Rows before this entry of the journal, which still wait, are not learnt.
    pub fn leave_out_before(&self, seq: u64) {
        self.set().leave_out_before(seq);
    }

    /// Writes the file with what is in memory now, though nothing changed: nothing else is in any file then.
    pub fn rewrite(&self, engine: &StoreEngine) -> io::Result<()> {
        if !self.set().is_loaded() {
            self.settle(engine);
        }
        let mut set = self.set();
        if !set.is_loaded() {
            return Err(io::Error::other("the profiles of entities are not read yet"));
        }
        set.note_change();
        drop(set);
        self.write(engine)
    }

    /// Writes the file, if anything changed. Without a profile there is none. An error is logged.
    fn write(&self, engine: &StoreEngine) -> io::Result<()> {
        let mut set = self.set();
        if !set.is_loaded() || !set.is_changed() {
            return Ok(());
        }
        file::write(&self.file, engine, &set).inspect(|()| set.note_written()).inspect_err(|error| {
            tracing::warn!(name: "features.profiles_unwritten", path = %self.file.display(), %error, "what is usual of the rows of feature views cannot be written");
        })
    }
}

/// Publishes the counts of all views.
fn publish(engine: &StoreEngine, set: &ProfileSet) {
    let counts = set.counts();
    engine.counters.with_views(|views| {
        for counters in views.values_mut() {
            counters.profiles = ProfileCounts::default();
        }
        for (view, counts) in counts {
            views.entry(view).or_default().profiles = counts;
        }
    });
}
