//! The one task that owns the state of updates.
//!
//! An event makes a new state, the state is written to disk, and only then [`Updater::reconcile`] brings the box in
//! line with it. The work to do follows from the state only, so it does not matter where a box was cut off.
//!
//! The task runs on a separate thread, because it may wait for the disk.

mod boot;
mod download_job;
mod job_outcome;
mod jobs;
mod load_jobs;
mod orders;
mod paces;
mod pauses;
mod publish;
mod serving;
mod verdict;
mod trial_runtime;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, abortable};
use ledge_base::clock;
use ledge_base::names::{DeviceName, ModelName};
use ledge_models::repository::trial_mark::{TrialMark, TrialWorkGuard};
use ledge_models::repository::{LoadedModel, Repository};
use ledge_service::audit_event::AuditSink;
use ledge_service::shutdown::Shutdown;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::MissedTickBehavior;

use super::artifact::{Artifact, ArtifactKind};
use super::download::DownloadLimits;
use super::gates::PaceJudgement;
use super::handle::{QueuedAdministratorCommand, UpdaterInbox, Updates};
use super::persisted::PersistedStates;
use super::plan::DesiredStates;
use super::platform::Platform;
use super::preflight::{LiveModel, PreflightSettings};
use super::state::{
    InstalledRelease, RollbackCause, RollbackReason, RolloutPhase, SubjectState, UpdateAction, UpdateEvent,
};
use super::store::UpdateStore;
pub use boot::{UpdateBootError, UpdateBootState, prepare, read_managed};
use job_outcome::UpdateJobOutcome;
use paces::PaceVerdict;
use trial_runtime::{StageVerdict, TrialRuntime};

/// Interval at which stages are judged.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);

/// The time after the start of the updater for which settings on trial count as being loaded.
const SETTINGS_LOAD_TIME: Duration = Duration::from_mins(1);

/// Interval at which counts without other changes are written: a crash loses at most this much of them.
const COUNTS_WRITE_INTERVAL: Duration = Duration::from_mins(1);

/// The parts that the updater works with.
#[derive(Debug)]
pub struct UpdaterParts {
    pub repository: Repository,
    /// The signed metadata and its source.
    pub platform: Platform,
    pub limits: DownloadLimits,
    /// Settings of the preflight of releases.
    pub preflight: PreflightSettings,
    /// The handle through which all other parts read the status.
    pub updates: Updates,
    pub audit: AuditSink,
    /// The shutdown of the daemon.
    pub shutdown: Shutdown,
}

/// The task that owns the state of updates.
pub struct Updater {
    parts: UpdaterParts,
    store: UpdateStore,
    persisted: PersistedStates,
    trial_runtimes: BTreeMap<Artifact, TrialRuntime>,
    finished: mpsc::UnboundedReceiver<FinishedUpdateJob>,
    finish: mpsc::UnboundedSender<FinishedUpdateJob>,
    /// One download and one preflight at a time, so that together they stay within the bandwidth and memory of one.
    slots: UpdateJobSlots,
    next_job: u64,
    /// The states before this start was counted.
    before: BTreeMap<Artifact, SubjectState>,
    written: Instant,
    unwritten: bool,
    /// Set when a step was not taken because the state could not be written.
    missed: bool,
    /// The releases on trial that this start loaded.
    loads: BTreeMap<Artifact, TrialWorkGuard>,
    started: Instant,
}

impl Updater {
    /// Continues from the states found at the start.
    pub fn new(prepared: UpdateBootState, parts: UpdaterParts) -> Self {
        let UpdateBootState { store, persisted, before, loads, .. } = prepared;
        let trial_runtime = |(subject, old): (&Artifact, &SubjectState)| {
            // Settings and libraries were read before this start was counted.
            let taken_up = if subject.kind == ArtifactKind::Model { persisted.subjects.get(subject)? } else { old };
            Some((subject.clone(), TrialRuntime::serving(taken_up.live().cloned())))
        };
        let trial_runtimes = before.iter().filter_map(trial_runtime).collect();
        let (finish, finished) = mpsc::unbounded_channel();
        Self {
            parts,
            store,
            persisted,
            trial_runtimes,
            finished,
            finish,
            slots: UpdateJobSlots::default(),
            next_job: 0,
            before,
            written: Instant::now(),
            unwritten: false,
            missed: false,
            loads,
            started: Instant::now(),
        }
    }

    /// Works until the shutdown is requested.
    pub async fn run(mut self, mut inbox: UpdaterInboxParts) {
        self.publish_status();
        for (subject, before) in std::mem::take(&mut self.before) {
            self.report_change(&subject, &before, &self.state(&subject));
            self.fall_back_if_not_loaded(&subject).await;
            self.reconcile(&subject).await;
        }

        // Models and libraries on trial are loaded. Settings show their effect only while the daemon serves.
        self.loads.retain(|subject, _| subject.kind == ArtifactKind::Configuration);
        // The last process may have been cut off before it did so.
        self.collect_garbage();
        let mut ticks = tokio::time::interval(JUDGE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

        let mut last = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.requested() => break,
                Some(ordered) = inbox.orders.recv() => {
                    self.carry_out(ordered).await;
                    // A rollout that was kept back while the subject was pinned may begin.
                    let desired_states = inbox.desired_states.borrow().clone();
                    if let Some(desired_states) = desired_states {
                        self.apply_desired_states(desired_states).await;
                    }
                }
                Ok(()) = inbox.desired_states.changed() => {
                    let desired_states = inbox.desired_states.borrow_and_update().clone();
                    if let Some(desired_states) = desired_states {
                        self.apply_desired_states(desired_states).await;
                    }
                }
                () = inbox.retries.notified() => self.retry().await,
                Some(FinishedUpdateJob { subject, job, done }) = self.finished.recv() => {
                    self.job_finished(&subject, job, done).await;
                }
                _ = ticks.tick() => {
                    let passed = last.elapsed();
                    last = Instant::now();
                    self.tick(passed).await;
                    if self.missed && !self.unwritten {
                        // Wishes are sent once; their effect could not be written then.
                        self.missed = false;
                        self.trial_runtimes.values_mut().for_each(TrialRuntime::clear_pause);
                        let desired_states = inbox.desired_states.borrow().clone();
                        // Unknown desired states are not the same as no desired states.
                        if let Some(desired_states) = desired_states {
                            self.apply_desired_states(desired_states).await;
                        }
                    }
                }
            }
        }
        // The next start repeats a job that is dropped here.
        self.write_counts();
        self.release_models().await;
    }

    fn known(&self) -> Vec<Artifact> {
        self.persisted.subjects.keys().cloned().collect()
    }

    fn state(&self, subject: &Artifact) -> SubjectState {
        self.persisted.subjects.get(subject).cloned().unwrap_or_default()
    }

    fn trial_runtime(&mut self, subject: &Artifact) -> &mut TrialRuntime {
        self.trial_runtimes.entry(subject.clone()).or_default()
    }

    async fn apply_desired_states(&mut self, desired_states: DesiredStates) {
        let mut subjects = self.known();
        subjects
            .extend(desired_states.keys().filter(|subject| !self.persisted.subjects.contains_key(subject)).cloned());
        for subject in subjects {
            let desired_state = desired_states.get(&subject).cloned().unwrap_or_default();
            let has_own = self.owner_has(&subject);
            self.advance(&subject, UpdateEvent::Wanted { desired_state, has_own }).await;
        }
    }

    async fn tick(&mut self, passed: Duration) {
        if self.started.elapsed() >= SETTINGS_LOAD_TIME {
            self.loads.clear();
        }
        for subject in self.known() {
            let state = self.state(&subject);
            if state.live() != self.trial_runtime(&subject).serving.as_ref() {
                // A previous version did not load.
                self.reconcile(&subject).await;
            }

            let Some(trial) = &state.trial else { continue };
            if trial.held {
                continue;
            }
            self.count_fetched(&subject).await;
            let seconds = self.trial_runtime(&subject).whole_seconds(passed);
            if seconds > 0 {
                self.advance(&subject, UpdateEvent::Waited { seconds }).await;
            }

            let verdict = if let Some(reason) = self.fault_of_libraries(&subject, &state) {
                StageVerdict::Fail(reason)
            } else if self.has_no_incumbent(&subject) {
                StageVerdict::Pass
            } else {
                verdict::judge(subject.kind, &self.state(&subject), self.trial_runtime(&subject))
            };

            match verdict {
                StageVerdict::Pass if self.trial_runtime(&subject).is_due() => {
                    _ = self.advance(&subject, UpdateEvent::Passed).await;
                }
                StageVerdict::Wait | StageVerdict::Pass => {}
                StageVerdict::Measure => self.measure_pace(&subject, &state),
                StageVerdict::Fail(reason) => _ = self.advance(&subject, UpdateEvent::Failed(reason)).await,
            }
            // A pause between two attempts may be over.
            self.reconcile(&subject).await;
        }

        if self.unwritten || self.written.elapsed() >= COUNTS_WRITE_INTERVAL {
            self.write_counts();
        }
    }

    async fn job_finished(&mut self, subject: &Artifact, job: u64, done: UpdateJobOutcome) {
        if !self.trial_runtime(subject).finish(job) {
            // The job belongs to a trial that is over. Models may have moved to its library meanwhile.
            let live = self.state(subject).live().cloned();
            if subject.kind == ArtifactKind::Runtime
                && let Err(reason) = self.move_to_library_of(subject, live.as_ref()).await
            {
                tracing::error!(%subject, reason, "not every model runs in the live library until the next start");
            }
            return;
        }

        match done {
            UpdateJobOutcome::Described { digest, package } => {
                self.trial_runtime(subject).clear_pause();
                self.advance(subject, UpdateEvent::Described { digest, package: package.into() }).await;
            }
            UpdateJobOutcome::Loaded(model) => {
                self.trial_runtime(subject).loaded = Some(model);
                if !self.advance(subject, UpdateEvent::Passed).await
                    && let Some(model) = self.trial_runtime(subject).loaded.take()
                {
                    // It is loaded again when the step can be taken.
                    self.parts.repository.clone().end(model).await;
                }
            }
            UpdateJobOutcome::Passed => _ = self.advance(subject, UpdateEvent::Passed).await,
            UpdateJobOutcome::Paced(pace) => {
                let measured = self.trial_runtime(subject).paces.measured(pace, Instant::now());
                tracing::debug!(%subject, ?measured, "the pace of a version on trial was measured");
                if let PaceVerdict::TooSlow(reason) = measured {
                    self.advance(subject, UpdateEvent::Failed(reason)).await;
                }
            }
            UpdateJobOutcome::Failed(reason) => _ = self.advance(subject, UpdateEvent::Failed(reason)).await,
            UpdateJobOutcome::Interrupted(reason) => {
                self.trial_runtime(subject).pause_after_attempt(&reason);
                self.advance(subject, UpdateEvent::Interrupted(reason)).await;
            }
            UpdateJobOutcome::Deferred { reason, after, wasted } => self.deferred(subject, reason, after, wasted).await,
        }
        self.reconcile(subject).await;
    }

    /// Takes a step: writes the state after `event` to disk, then acts on it. Returns `false` when the state could not
    /// be written and the step is not taken.
    async fn advance(&mut self, subject: &Artifact, event: UpdateEvent) -> bool {
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
            // Settings and libraries take effect at a start, which reads the state on disk.
            let falls_back = subject.kind == ArtifactKind::Model && falls_back(&before, &after);
            if !falls_back {
                // A step that is not on disk is not taken. The work of its stage is repeated.
                self.persisted.subjects.insert(subject.clone(), before);
                let reason = RollbackReason::new(
                    RollbackCause::Disk,
                    format!("the state of updates cannot be written: {error}"),
                );
                tracing::error!(
                    name: "update.state_not_written",
                    %subject,
                    %error,
                    "the state of updates cannot be written; the step is taken later"
                );
                self.trial_runtime(subject).pause(&reason);
                (self.unwritten, self.missed) = (true, true);
                self.publish_status();
                return false;
            }
            // Falling back does not wait for the disk. A start before the state can be written tries the new version
            // again.
            tracing::error!(
                %subject, %error,
                "the state of updates cannot be written; falling back to the previous version anyway"
            );
            self.unwritten = true;
        } else {
            self.written = Instant::now();
            self.unwritten = false;
        }

        if stage(&before) != stage(&after) {
            self.trial_runtime(subject).clear_pause();
        }
        // Act first, then report: readers of the report find it true.
        self.reconcile(subject).await;
        self.report_change(subject, &before, &after);

        if after.trial.is_none() && before.trial.is_some() {
            self.collect_garbage();
        }
        true
    }

    /// Brings the box in line with the state of a subject.
    async fn reconcile(&mut self, subject: &Artifact) {
        let state = self.state(subject);
        let next_action = state.next_action();
        self.trial_runtime(subject).abort_outdated_job(&state);
        let was_on_trial = self.trial_runtime(subject).drop_stale(&state);
        if subject.kind == ArtifactKind::Model
            && matches!(next_action, UpdateAction::Mirror | UpdateAction::Share | UpdateAction::Soak)
        {
            // Before requests are counted, the first of which is marked.
            self.mark(subject);
        }
        self.switch(subject, &state).await;
        if subject.kind == ArtifactKind::Model {
            if was_on_trial {
                self.end_trial(subject, &state).await;
            }
            self.show_requests(subject, &state);
            self.watch_live(subject, &state).await;
        }
        let is_due = state.trial.as_ref().is_none_or(|trial| trial.is_due(clock::unix_millis()));
        if is_due && self.trial_runtime(subject).may_start(next_action) {
            self.start(subject, &state, next_action);
        }
        self.publish_status();
    }

    /// Returns the live models that run in the runtime of this name: those of releases, and the owner's.
    fn live_models_in(&self, runtime: &ModelName) -> Vec<LiveModel> {
        let repository = &self.parts.repository;
        let live = repository.all_live().into_iter().filter(|model| model.runtime().as_str() == runtime.as_str());
        let model = |model: Arc<LoadedModel>| {
            let (name, version, files) = (model.name.clone(), model.version, model.folder.clone());
            let subject = Artifact { kind: ArtifactKind::Model, name: name.clone() };
            let state = self.persisted.subjects.get(&subject);
            let is_it = |release: &&InstalledRelease| self.store.release_folder(&subject, release) == files;
            let golden_min = state.and_then(|state| state.golden_min(state.kept().find(is_it)?));
            // The owner's versions lie below the folder of their model, a release is flat.
            let above = files.parent().filter(|_| repository.is_of_folder(&files));
            let folder = above.unwrap_or(&files).to_owned();
            LiveModel { name, version, folder, files, golden_min }
        };
        live.map(model).collect()
    }

    /// Measures the pace of a version that sees requests, unless that is under way or not due.
    fn measure_pace(&mut self, subject: &Artifact, state: &SubjectState) {
        let next_action = state.next_action();
        if !self.trial_runtime(subject).may_start(next_action) || !self.trial_runtime(subject).paces.are_due() {
            return;
        }
        let Some((trial, limit)) = state.trial.as_ref().and_then(|trial| Some((trial, trial.plan.gate.p95_ratio_max?)))
        else {
            return;
        };
        let recent =
            self.trial_runtime(subject).observations(state).map(|seen| seen.recent_inputs()).unwrap_or_default();
        let trial_runtime = self.trial_runtime(subject);
        let (loaded, previous) = (trial_runtime.loaded.clone(), trial_runtime.previous.clone());
        let live = self.parts.repository.pin(&subject.name, None).ok();
        let (new, before) = if trial.stage == RolloutPhase::Active { (live, previous) } else { (loaded, live) };
        if let Some((new, before)) = new.zip(before) {
            self.start_job(subject, next_action, paces::measure(new, before, limit, recent));
        } else {
            // Without both there is nothing to compare, as after a start during the soak.
            self.trial_runtime(subject).paces.measured(PaceJudgement::WithinLimit, Instant::now());
        }
    }

    fn start_job(&mut self, subject: &Artifact, next_action: UpdateAction, job: BoxFuture<'static, UpdateJobOutcome>) {
        let number = self.next_job;
        self.next_job += 1;
        let turn = self.slots.of(next_action);
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
        // A load that is cut off half-way would leave its state behind: let it end, and drop its result.
        self.trial_runtime(subject).begin(
            next_action,
            number,
            (next_action != UpdateAction::LoadCandidate).then_some(end),
            waits,
        );

        // A separate task, because the job may hold a lock that the updater waits for, such as a model's.
        let ending = UpdateJobGuard { finish: self.finish.clone(), subject: Some(subject.clone()), job: number };
        self.parts.shutdown.spawn(async move {
            if let Ok(done) = work.await {
                ending.with(done);
            }
        });
    }

    /// Returns the mark of a subject's loads and first runs.
    fn mark(&mut self, subject: &Artifact) -> Arc<TrialMark> {
        let path = self.store.mark_path(subject);
        let of_start = self.loads.get(subject).map(TrialWorkGuard::mark);
        self.trial_runtime(subject).mark(|| of_start.unwrap_or_else(|| TrialMark::open(&path)))
    }

    fn write_counts(&mut self) {
        self.written = Instant::now();
        match self.persisted.write() {
            Ok(()) => self.unwritten = false,
            Err(error) => tracing::warn!(%error, "the counts of updates cannot be written"),
        }
    }

    /// Removes files that no state needs any more. Does nothing while a download has not named its blobs yet.
    fn collect_garbage(&self) {
        let is_unnamed = |(subject, state): (&Artifact, &SubjectState)| {
            state.trial.as_ref().is_some_and(|trial| trial.stage == RolloutPhase::Downloading)
                && self.trial_runtimes.get(subject).is_none_or(|trial_runtime| trial_runtime.wanted_blobs().is_empty())
        };
        if self.persisted.subjects.iter().any(is_unnamed) {
            return;
        }
        let keep =
            self.persisted.subjects.iter().map(|(subject, state)| (subject.clone(), state.kept().cloned().collect()));
        let wanted = self.trial_runtimes.values().flat_map(TrialRuntime::wanted_blobs).collect();
        match self.store.collect(&keep.collect(), &wanted) {
            Ok(0) => {}
            Ok(bytes) => tracing::info!(bytes, "unused files were removed from the update store"),
            Err(error) => tracing::warn!(%error, "unused files of the update store cannot be removed"),
        }
    }
}

/// The end of a job, with its result.
struct FinishedUpdateJob {
    subject: Artifact,
    job: u64,
    done: UpdateJobOutcome,
}

/// Reports the end of a job in any case: a bug in it must not stop its subject for ever.
struct UpdateJobGuard {
    finish: mpsc::UnboundedSender<FinishedUpdateJob>,
    subject: Option<Artifact>,
    job: u64,
}

impl UpdateJobGuard {
    fn with(mut self, done: UpdateJobOutcome) {
        self.send(done);
    }

    fn send(&mut self, done: UpdateJobOutcome) {
        if let Some(subject) = self.subject.take() {
            // During shutdown the receiver may be gone.
            let _ = self.finish.send(FinishedUpdateJob { subject, job: self.job, done });
        }
    }
}

impl Drop for UpdateJobGuard {
    fn drop(&mut self) {
        self.send(UpdateJobOutcome::Interrupted(RollbackReason::new(
            RollbackCause::Load,
            "the job ended without a result, which is a bug in Ledge: see its log",
        )));
    }
}

/// Semaphores that let one download and one preflight run at a time.
struct UpdateJobSlots {
    download: Arc<Semaphore>,
    preflight: Arc<Semaphore>,
}

impl Default for UpdateJobSlots {
    fn default() -> Self {
        Self { download: Arc::new(Semaphore::new(1)), preflight: Arc::new(Semaphore::new(1)) }
    }
}

impl UpdateJobSlots {
    fn of(&self, next_action: UpdateAction) -> Option<Arc<Semaphore>> {
        match next_action {
            UpdateAction::Download => Some(self.download.clone()),
            UpdateAction::Preflight => Some(self.preflight.clone()),
            _ => None,
        }
    }
}

/// Returns true if a step leads to a version that ran before, or to none, and to nothing new.
fn falls_back(before: &SubjectState, after: &SubjectState) -> bool {
    let commits =
        after.committed != before.committed && after.committed != before.previous && after.committed.is_some();
    after.trial.is_none() && !commits && (before.trial.is_some() || after.live() != before.live())
}

/// Returns the trial of a state, and how far it is.
fn stage(state: &SubjectState) -> Option<(&DeviceName, RolloutPhase)> {
    state.trial.as_ref().map(|trial| (&trial.plan.rollout, trial.stage))
}

/// Returns a state without the counts that change all the time.
fn without_counts(state: &SubjectState) -> SubjectState {
    let mut state = state.clone();
    if let Some(trial) = &mut state.trial {
        trial.in_stage_s = 0;
        trial.fetched_bytes = 0;
        trial.fault = None;
    }
    state
}

/// The updater's part of the inbox.
#[derive(Debug)]
pub struct UpdaterInboxParts {
    pub desired_states: tokio::sync::watch::Receiver<Option<DesiredStates>>,
    pub orders: tokio::sync::mpsc::Receiver<QueuedAdministratorCommand>,
    /// Requests to make delayed attempts now.
    pub retries: Arc<Notify>,
}

impl UpdaterInbox {
    /// Splits the inbox into the updater's part and the poller's.
    pub fn split(self) -> (UpdaterInboxParts, tokio::sync::mpsc::Receiver<super::handle::PollerCommand>) {
        (
            UpdaterInboxParts { desired_states: self.desired_states, orders: self.orders, retries: self.retries },
            self.checks,
        )
    }
}

impl std::fmt::Debug for Updater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updater").field("subjects", &self.persisted.subjects.len()).finish_non_exhaustive()
    }
}
