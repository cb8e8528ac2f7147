//! The one task that owns the state of updates.
//!
//! An event makes a state, the state is written to disk, and only then [`Updater::reconcile`] brings the box in line with
//! it. What is to be done follows from the state alone, so it does not matter where a box was cut off.
//!
//! It runs on a thread of its own: it may wait for the disk.

mod boot;
mod fetching;
mod hand;
mod judging;
mod orders;
mod pauses;
mod serving;
mod telling;
mod trying;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::abortable;
use ledge_base::clock;
use ledge_base::names::{DeviceName, ModelName};
use ledge_models::repository::{LoadedModel, Repository};
use ledge_service::audit_event::AuditSink;
use ledge_service::shutdown::Shutdown;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::MissedTickBehavior;

use super::download::DownloadLimits;
use super::handle::{Ordered, UpdaterInbox, Updates};
use super::persisted::Persisted;
use super::plan::Wishes;
use super::platform::Platform;
use super::state::{Cause, Duty, Event, Installed, Reason, Stage, SubjectState};
use super::store::BlobStore;
use super::subject::{Kind, Subject};
use super::trial::{LiveModel, TrialSettings};
pub use boot::{BootError, Prepared, managed_as_it_lies, prepare};
use hand::{Done, Hand, Verdict};

/// How often stages are judged.
const TICK: Duration = Duration::from_secs(1);

/// How often counts that lead to nothing are written: what a crash may cost of them.
const WRITE_COUNTS: Duration = Duration::from_mins(1);

/// What the updater works with.
#[derive(Debug)]
pub struct Parts {
    pub repository: Repository,
    /// What is signed, and where it comes from.
    pub platform: Platform,
    pub limits: DownloadLimits,
    /// How releases are tried in a process of their own.
    pub trials: TrialSettings,
    /// How everybody else knows how updates do.
    pub updates: Updates,
    pub audit: AuditSink,
    /// The end of the daemon.
    pub shutdown: Shutdown,
}

/// The task.
pub struct Updater {
    parts: Parts,
    store: BlobStore,
    persisted: Persisted,
    hands: BTreeMap<Subject, Hand>,
    finished: mpsc::UnboundedReceiver<Finished>,
    finish: mpsc::UnboundedSender<Finished>,
    /// One download and one trial at a time: together they keep to the bandwidth and the memory that one may take.
    turns: Turns,
    next_job: u64,
    /// What was found before this start was counted.
    before: BTreeMap<Subject, SubjectState>,
    written: Instant,
    unwritten: bool,
    /// Whether a step was not taken because it could not be written down.
    missed: bool,
}

impl Updater {
    /// Goes on from what was found at the start.
    pub fn new(prepared: Prepared, parts: Parts) -> Self {
        let Prepared { store, persisted, before, .. } = prepared;
        let hand = |(subject, old): (&Subject, &SubjectState)| {
            // Settings and libraries were read before this start was counted.
            let taken_up = if subject.kind == Kind::Model { persisted.subjects.get(subject)? } else { old };
            Some((subject.clone(), Hand::serving(taken_up.live().cloned())))
        };
        let hands = before.iter().filter_map(hand).collect();
        let (finish, finished) = mpsc::unbounded_channel();
        Self {
            parts,
            store,
            persisted,
            hands,
            finished,
            finish,
            turns: Turns::default(),
            next_job: 0,
            before,
            written: Instant::now(),
            unwritten: false,
            missed: false,
        }
    }

    /// Works until the shutdown is requested.
    pub async fn run(mut self, mut inbox: UpdaterInboxParts) {
        self.tell();
        for (subject, before) in std::mem::take(&mut self.before) {
            self.told(&subject, &before, &self.state(&subject));
            self.give_up_what_does_not_load(&subject).await;
            self.reconcile(&subject).await;
        }
        // The last daemon may have been cut off before it did.
        self.collect();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.requested() => break,
                Some(ordered) = inbox.orders.recv() => {
                    self.ordered(ordered).await;
                    // What was kept back while it was pinned may begin.
                    let wishes = inbox.wishes.borrow().clone();
                    if let Some(wishes) = wishes {
                        self.wanted(wishes).await;
                    }
                }
                Ok(()) = inbox.wishes.changed() => {
                    let wishes = inbox.wishes.borrow_and_update().clone();
                    if let Some(wishes) = wishes {
                        self.wanted(wishes).await;
                    }
                }
                () = inbox.retries.notified() => self.retry().await,
                Some(Finished { subject, job, done }) = self.finished.recv() => self.done(&subject, job, done).await,
                _ = ticks.tick() => {
                    let passed = last.elapsed();
                    last = Instant::now();
                    self.tick(passed).await;
                    if self.missed && !self.unwritten {
                        // What is wanted is said once; what it led to could not be written down then.
                        self.missed = false;
                        self.hands.values_mut().for_each(Hand::went_well);
                        let wishes = inbox.wishes.borrow().clone();
                        // Nothing known is not the same as nothing wanted.
                        if let Some(wishes) = wishes {
                            self.wanted(wishes).await;
                        }
                    }
                }
            }
        }
        // A job that is dropped here is taken up again by the next start.
        self.write_counts();
        self.let_models_go().await;
    }

    fn known(&self) -> Vec<Subject> {
        self.persisted.subjects.keys().cloned().collect()
    }

    fn state(&self, subject: &Subject) -> SubjectState {
        self.persisted.subjects.get(subject).cloned().unwrap_or_default()
    }

    fn hand(&mut self, subject: &Subject) -> &mut Hand {
        self.hands.entry(subject.clone()).or_default()
    }

    async fn wanted(&mut self, wishes: Wishes) {
        let mut subjects = self.known();
        subjects.extend(wishes.keys().filter(|subject| !self.persisted.subjects.contains_key(subject)).cloned());
        for subject in subjects {
            let wish = wishes.get(&subject).cloned().unwrap_or_default();
            let has_own = self.owner_has(&subject);
            self.advance(&subject, Event::Wanted { wish, has_own }).await;
        }
    }

    async fn tick(&mut self, passed: Duration) {
        for subject in self.known() {
            let state = self.state(&subject);
            if state.live() != self.hand(&subject).serving.as_ref() {
                // A version before that did not load again.
                self.reconcile(&subject).await;
            }
            let Some(trial) = &state.trial else { continue };
            if trial.held {
                continue;
            }
            self.count_fetched(&subject).await;
            let seconds = self.hand(&subject).whole_seconds(passed);
            if seconds > 0 {
                self.advance(&subject, Event::Waited { seconds }).await;
            }
            let verdict = if self.has_nothing_to_be_beside(&subject) {
                Verdict::Pass
            } else {
                judging::judge(subject.kind, &self.state(&subject), self.hand(&subject))
            };
            match verdict {
                Verdict::Pass if self.hand(&subject).is_due() => _ = self.advance(&subject, Event::Passed).await,
                Verdict::Wait | Verdict::Pass => {}
                Verdict::Fail(reason) => _ = self.advance(&subject, Event::Failed(reason)).await,
            }
            // A pause between two attempts may be over.
            self.reconcile(&subject).await;
        }
        if self.unwritten || self.written.elapsed() >= WRITE_COUNTS {
            self.write_counts();
        }
    }

    async fn done(&mut self, subject: &Subject, job: u64, done: Done) {
        if !self.hand(subject).finish(job) {
            // Of a trial that is over.
            return;
        }
        match done {
            Done::Described { digest, package } => {
                self.hand(subject).went_well();
                self.advance(subject, Event::Described { digest, package: package.into() }).await;
            }
            Done::Loaded(model) => {
                self.hand(subject).beside = Some(model);
                if !self.advance(subject, Event::Passed).await
                    && let Some(model) = self.hand(subject).beside.take()
                {
                    // It is loaded anew when the step can be taken.
                    self.parts.repository.clone().end(model).await;
                }
            }
            Done::Passed => _ = self.advance(subject, Event::Passed).await,
            Done::Failed(reason) => _ = self.advance(subject, Event::Failed(reason)).await,
            Done::Interrupted(reason) => {
                self.hand(subject).pause_after_attempt(&reason);
                self.advance(subject, Event::Interrupted(reason)).await;
            }
            Done::Later { reason, after, wasted } => self.hindered(subject, reason, after, wasted).await,
        }
        self.reconcile(subject).await;
    }

    /// Takes a step: the state after `event`, on disk, then done. `false`: it could not be written down, and is not taken.
    async fn advance(&mut self, subject: &Subject, event: Event) -> bool {
        let before = self.state(subject);
        let after = before.clone().after(event, subject.kind);
        if after == before {
            return true;
        }
        let counts_only = without_counts(&after) == without_counts(&before);
        self.persisted.subjects.insert(subject.clone(), after.clone());
        if counts_only {
            return true;
        }
        if let Err(error) = self.persisted.write() {
            // Settings and libraries are taken up by a start, which goes by what is on disk.
            let falls_back = subject.kind == Kind::Model && falls_back(&before, &after);
            if !falls_back {
                // A step that is not on disk is not taken. It comes up again: the work of its stage is done anew.
                self.persisted.subjects.insert(subject.clone(), before);
                let reason = Reason::new(Cause::Disk, format!("the state of updates cannot be written: {error}"));
                tracing::error!(%subject, %error, "the state of updates cannot be written; the step is taken later");
                self.hand(subject).pause(&reason);
                (self.unwritten, self.missed) = (true, true);
                self.tell();
                return false;
            }
            // Falling back needs no leave. A start before it can be written tries the new version once more.
            tracing::error!(%subject, %error, "the state of updates cannot be written; falling back all the same");
            self.unwritten = true;
        } else {
            self.written = Instant::now();
            self.unwritten = false;
        }
        if stage(&before) != stage(&after) {
            self.hand(subject).went_well();
        }
        // First done, then said: who reads it finds it so.
        self.reconcile(subject).await;
        self.told(subject, &before, &after);
        if after.trial.is_none() && before.trial.is_some() {
            self.collect();
        }
        true
    }

    /// Brings the box in line with the state of a subject.
    async fn reconcile(&mut self, subject: &Subject) {
        let state = self.state(subject);
        let duty = state.duty();
        self.hand(subject).keep_to(&state);
        let was_on_trial = self.hand(subject).let_go_of_stale(&state);
        self.switch(subject, &state).await;
        if subject.kind == Kind::Model {
            if was_on_trial {
                self.end_trial(subject, &state).await;
            }
            self.show_requests(subject, &state);
            self.watch_live(subject, &state).await;
        }
        let is_due = state.trial.as_ref().is_none_or(|trial| trial.is_due(clock::unix_millis()));
        if is_due && self.hand(subject).may_start(duty) {
            self.start(subject, &state, duty);
        }
        self.tell();
    }

    /// The live models that run in the runtime of this name: those of releases, and those of the owner of this box.
    fn live_models_in(&self, runtime: &ModelName) -> Vec<LiveModel> {
        let repository = &self.parts.repository;
        let live = repository.all_live().into_iter().filter(|model| model.runtime().as_str() == runtime.as_str());
        let model = |model: Arc<LoadedModel>| {
            let (name, version, files) = (model.name.clone(), model.version, model.folder.clone());
            let subject = Subject { kind: Kind::Model, name: name.clone() };
            let state = self.persisted.subjects.get(&subject);
            let is_it = |release: &&Installed| self.store.release_folder(&subject, release) == files;
            let golden_min = state.and_then(|state| state.golden_min(state.kept().find(is_it)?));
            // The owner's versions lie below the folder of their model, a release is flat.
            let above = files.parent().filter(|_| repository.is_of_folder(&files));
            let folder = above.unwrap_or(&files).to_owned();
            LiveModel { name, version, folder, files, golden_min }
        };
        live.map(model).collect()
    }

    fn start(&mut self, subject: &Subject, state: &SubjectState, duty: Duty) {
        let job = match duty {
            Duty::Download => fetching::job(self, subject, state),
            Duty::Try => trying::in_a_process(self, subject, state),
            Duty::LoadBeside => trying::beside(self, subject, state),
            Duty::Soak | Duty::Mirror | Duty::Share | Duty::Rest => return,
        };
        let Some(job) = job else { return };
        let number = self.next_job;
        self.next_job += 1;
        let turn = self.turns.of(duty);
        let waits = Arc::new(AtomicBool::new(turn.is_some()));
        let has_turn = waits.clone();
        let work = async move {
            // The semaphore is never closed.
            let _turn = match turn {
                Some(turn) => turn.acquire_owned().await.ok(),
                None => None,
            };
            has_turn.store(false, Ordering::Relaxed);
            job.await
        };
        let (work, end) = abortable(work);
        // A load that is cut off half-way would leave its state behind: it comes to its end, and nobody wants it then.
        self.hand(subject).begin(duty, number, (duty != Duty::LoadBeside).then_some(end), waits);
        // A task of its own: what the updater waits for, such as a model's lock, the job may hold.
        let ending = Ending { finish: self.finish.clone(), subject: Some(subject.clone()), job: number };
        self.parts.shutdown.spawn(async move {
            if let Ok(done) = work.await {
                ending.with(done);
            }
        });
    }

    fn write_counts(&mut self) {
        self.written = Instant::now();
        match self.persisted.write() {
            Ok(()) => self.unwritten = false,
            Err(error) => tracing::warn!(%error, "the counts of updates cannot be written"),
        }
    }

    /// Removes what no state needs any more: not yet while a download has not said which blobs it is at.
    fn collect(&self) {
        let is_unnamed = |(subject, state): (&Subject, &SubjectState)| {
            state.trial.as_ref().is_some_and(|trial| trial.stage == Stage::Downloading)
                && self.hands.get(subject).is_none_or(|hand| hand.wanted_blobs().is_empty())
        };
        if self.persisted.subjects.iter().any(is_unnamed) {
            return;
        }
        let keep =
            self.persisted.subjects.iter().map(|(subject, state)| (subject.clone(), state.kept().cloned().collect()));
        let wanted = self.hands.values().flat_map(Hand::wanted_blobs).collect();
        match self.store.collect(&keep.collect(), &wanted) {
            Ok(0) => {}
            Ok(bytes) => tracing::info!(bytes, "the update store was cleared up"),
            Err(error) => tracing::warn!(%error, "the update store cannot be cleared up"),
        }
    }
}

/// What a job came to.
struct Finished {
    subject: Subject,
    job: u64,
    done: Done,
}

/// Says that a job has ended, whatever became of it: a fault of ours in it must not stop its subject for ever.
struct Ending {
    finish: mpsc::UnboundedSender<Finished>,
    subject: Option<Subject>,
    job: u64,
}

impl Ending {
    fn with(mut self, done: Done) {
        self.send(done);
    }

    fn send(&mut self, done: Done) {
        if let Some(subject) = self.subject.take() {
            // At the end of the daemon nobody hears it.
            let _ = self.finish.send(Finished { subject, job: self.job, done });
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.send(Done::Interrupted(Reason::new(Cause::Load, "the work on it broke off by a fault of Ledge")));
    }
}

/// Whose turn it is.
struct Turns {
    download: Arc<Semaphore>,
    trial: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { download: Arc::new(Semaphore::new(1)), trial: Arc::new(Semaphore::new(1)) }
    }
}

impl Turns {
    fn of(&self, duty: Duty) -> Option<Arc<Semaphore>> {
        match duty {
            Duty::Download => Some(self.download.clone()),
            Duty::Try => Some(self.trial.clone()),
            _ => None,
        }
    }
}

/// Whether a step leads to a version that ran before, or to none, and to nothing new.
fn falls_back(before: &SubjectState, after: &SubjectState) -> bool {
    let commits =
        after.committed != before.committed && after.committed != before.previous && after.committed.is_some();
    after.trial.is_none() && !commits && (before.trial.is_some() || after.live() != before.live())
}

/// Which trial a state has, and how far it is.
fn stage(state: &SubjectState) -> Option<(&DeviceName, Stage)> {
    state.trial.as_ref().map(|trial| (&trial.plan.rollout, trial.stage))
}

/// What is left of a state when the counts are taken out that change all the time.
fn without_counts(state: &SubjectState) -> SubjectState {
    let mut state = state.clone();
    if let Some(trial) = &mut state.trial {
        trial.in_stage_s = 0;
        trial.fetched_bytes = 0;
        trial.fault = None;
    }
    state
}

/// The part of the inbox that is the updater's.
#[derive(Debug)]
pub struct UpdaterInboxParts {
    pub wishes: tokio::sync::watch::Receiver<Option<Wishes>>,
    pub orders: tokio::sync::mpsc::Receiver<Ordered>,
    /// People want what waits for its next attempt to be tried now.
    pub retries: Arc<Notify>,
}

impl UpdaterInbox {
    /// The updater's part and the poller's.
    pub fn split(self) -> (UpdaterInboxParts, tokio::sync::mpsc::Receiver<super::handle::Look>) {
        (UpdaterInboxParts { wishes: self.wishes, orders: self.orders, retries: self.retries }, self.looks)
    }
}

impl std::fmt::Debug for Updater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updater").field("subjects", &self.persisted.subjects.len()).finish_non_exhaustive()
    }
}
