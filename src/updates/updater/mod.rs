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
mod trying;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::MissedTickBehavior;

use super::download::DownloadLimits;
use super::handle::{Order, OrderError, Ordered, UpdaterInbox, Updates};
use super::persisted::Persisted;
use super::plan::Wishes;
use super::platform::Platform;
use super::state::{Cause, Duty, Event, Reason, SubjectState};
use super::store::BlobStore;
use super::subject::{Kind, Subject};
use crate::audit_event::{AuditEvent, AuditSink};
use crate::names::ModelName;
use crate::repository::{ManagedVersion, Repository};
use crate::shutdown::Shutdown;
pub use boot::{BootError, Prepared, prepare};
use hand::{Done, Hand, Verdict};

/// How often stages are judged.
const TICK: Duration = Duration::from_secs(1);

/// How often counts that lead to nothing are written: what a crash may cost of them.
const WRITE_COUNTS: Duration = Duration::from_mins(1);

/// What the updater works with.
#[derive(Debug)]
pub struct Parts {
    /// What serves.
    pub repository: Repository,
    /// What is signed, and where it comes from.
    pub platform: Platform,
    /// What downloads may take.
    pub limits: DownloadLimits,
    /// The folder of the runtimes.
    pub runtimes: PathBuf,
    /// How everybody else knows how updates do.
    pub updates: Updates,
    /// Where audit events go.
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
    jobs: FuturesUnordered<LocalBoxFuture<'static, (Subject, u64, Done)>>,
    next_job: u64,
    written: Instant,
    unwritten: bool,
}

impl Updater {
    /// Goes on from what was found at the start.
    pub fn new(prepared: Prepared, parts: Parts) -> Self {
        let Prepared { store, persisted, .. } = prepared;
        let hand =
            |(subject, state): (&Subject, &SubjectState)| (subject.clone(), Hand::serving(state.live().cloned()));
        let hands = persisted.subjects.iter().map(hand).collect();
        Self {
            parts,
            store,
            persisted,
            hands,
            jobs: FuturesUnordered::new(),
            next_job: 0,
            written: Instant::now(),
            unwritten: false,
        }
    }

    /// Works until the shutdown is requested.
    pub async fn run(mut self, mut inbox: UpdaterInboxParts) {
        self.tell();
        for subject in self.known() {
            self.reconcile(&subject).await;
        }
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.parts.shutdown.requested() => break,
                Some(ordered) = inbox.orders.recv() => self.ordered(ordered).await,
                Ok(()) = inbox.wishes.changed() => {
                    let wishes = inbox.wishes.borrow_and_update().clone();
                    self.wanted(wishes.unwrap_or_default()).await;
                }
                Some((subject, job, done)) = self.jobs.next(), if !self.jobs.is_empty() => {
                    self.done(&subject, job, done).await;
                }
                _ = ticks.tick() => {
                    let passed = last.elapsed();
                    last = Instant::now();
                    self.tick(passed).await;
                }
            }
        }
        // A job that is dropped here is taken up again by the next start.
        self.write_counts();
        self.jobs.clear();
        self.let_models_go().await;
    }

    /// Waits until the models that are not live have given their memory back: a process that ends while a runtime still
    /// tears one down crashes.
    async fn let_models_go(&mut self) {
        for (subject, hand) in std::mem::take(&mut self.hands) {
            let models = hand.into_models();
            self.parts.repository.release_candidate(&subject.name).await;
            for model in models {
                // What is live by now is another's to end.
                if Arc::strong_count(&model) == 1 {
                    self.parts.repository.end(model).await;
                }
            }
        }
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
            self.advance(&subject, Event::Wanted(wish)).await;
        }
    }

    async fn ordered(&mut self, ordered: Ordered) {
        let Ordered { subject, order, principal, answer } = ordered;
        let known = self.persisted.subjects.get(&subject);
        let impossible = match (order, known) {
            (_, None) => Some(OrderError::Unknown { subject: subject.clone() }),
            (Order::Cancel, Some(state)) if state.trial.is_none() => {
                Some(OrderError::NoTrial { subject: subject.clone() })
            }
            (Order::RollBack, Some(state)) if state.trial.is_none() && !self.has_before(&subject, state) => {
                Some(OrderError::NothingToRollBack { subject: subject.clone() })
            }
            _ => None,
        };
        if let Some(error) = impossible {
            let _ = answer.send(Err(error));
            return;
        }
        let named = subject.to_string();
        self.parts.audit.record(AuditEvent::UpdateOrdered { subject: named, order: order.name(), principal });
        let event = match order {
            Order::Pin => Event::Pin,
            Order::Unpin => Event::Unpin,
            Order::RollBack if self.is_first(&subject) => Event::LeaveToOwner,
            Order::RollBack => Event::RollBack,
            Order::Cancel => Event::Cancel,
        };
        self.advance(&subject, event).await;
        let answered = match self.unwritten {
            false => Ok(()),
            true => Err(OrderError::Failed { subject, reason: "it is done, and cannot be written down".to_owned() }),
        };
        // Whoever asked may be gone.
        let _ = answer.send(answered);
        // What was kept back while it was pinned may begin.
        self.parts.updates.look_now();
    }

    /// Whether a subject without a trial has something to go back to: a release, or what the owner of this box has.
    fn has_before(&self, subject: &Subject, state: &SubjectState) -> bool {
        let owners =
            || subject.kind != Kind::Model || self.parts.repository.path().join(subject.name.as_str()).is_dir();
        state.committed.is_some() && (state.previous.is_some() || owners())
    }

    /// Whether no release was there before the one that runs.
    fn is_first(&self, subject: &Subject) -> bool {
        let state = self.persisted.subjects.get(subject);
        state.is_some_and(|state| state.trial.is_none() && state.previous.is_none())
    }

    async fn tick(&mut self, passed: Duration) {
        for subject in self.known() {
            let state = self.state(&subject);
            let Some(trial) = &state.trial else { continue };
            if trial.held {
                continue;
            }
            let bytes = self.hand(&subject).take_fetched();
            if bytes > 0 {
                self.parts.updates.tell(|status| status.fetched_bytes += bytes);
                self.advance(&subject, Event::Fetched { bytes }).await;
            }
            let seconds = self.hand(&subject).whole_seconds(passed);
            if seconds > 0 {
                self.advance(&subject, Event::Waited { seconds }).await;
            }
            match judging::judge(&self.state(&subject), self.hand(&subject)) {
                Verdict::Wait => {}
                Verdict::Pass => self.advance(&subject, Event::Passed).await,
                Verdict::Fail(reason) => self.advance(&subject, Event::Failed(reason)).await,
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
                self.advance(subject, Event::Described { digest, package: package.into() }).await;
            }
            Done::Loaded(model) => {
                self.hand(subject).beside = Some(model);
                self.advance(subject, Event::Passed).await;
            }
            Done::Passed => self.advance(subject, Event::Passed).await,
            Done::Failed(reason) => self.advance(subject, Event::Failed(reason)).await,
            Done::Interrupted(reason) => {
                self.hand(subject).pause(&reason);
                self.advance(subject, Event::Interrupted(reason)).await;
            }
            Done::Later { reason, after } => {
                tracing::warn!(%subject, %reason, "an update waits before its next attempt");
                self.hand(subject).pause_at_least(&reason, after);
            }
        }
        self.reconcile(subject).await;
    }

    /// Takes a step: the state after `event`, on disk, then done.
    async fn advance(&mut self, subject: &Subject, event: Event) {
        let before = self.state(subject);
        let after = before.clone().after(event, subject.kind);
        if after == before {
            return;
        }
        let counts_only = without_counts(&after) == without_counts(&before);
        self.persisted.subjects.insert(subject.clone(), after.clone());
        if counts_only {
            return;
        }
        if let Err(error) = self.persisted.write() {
            let falls_back = before.trial.is_some() && after.trial.is_none() && after.committed == before.committed;
            if !falls_back {
                // A step that is not on disk is not taken. It comes up again: the work of its stage is done anew.
                self.persisted.subjects.insert(subject.clone(), before);
                let reason = Reason::new(Cause::Disk, format!("the state of updates cannot be written: {error}"));
                tracing::error!(%subject, %error, "the state of updates cannot be written; the step is taken later");
                self.hand(subject).pause(&reason);
                self.unwritten = true;
                return;
            }
            // Falling back needs no leave. A start before it can be written tries the new version once more.
            tracing::error!(%subject, %error, "the state of updates cannot be written; falling back all the same");
            self.unwritten = true;
        } else {
            self.written = Instant::now();
            self.unwritten = false;
        }
        // First done, then said: who reads it finds it so.
        self.reconcile(subject).await;
        self.told(subject, &before, &after);
        if after.trial.is_none() && before.trial.is_some() {
            self.collect();
        }
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
        if self.hand(subject).may_start(duty) {
            self.start(subject, &state, duty);
        }
        self.tell();
    }

    /// Nothing is mirrored, shared or watched any more.
    async fn end_trial(&mut self, subject: &Subject, state: &SubjectState) {
        let repository = self.parts.repository.clone();
        repository.release_candidate(&subject.name).await;
        if let Some(release) = state.live() {
            let managed = self.managed(subject, release, state);
            // It is live: this only ends the counting.
            if let Err(reason) = repository.restore(&subject.name, Some(managed), None).await {
                tracing::error!(%subject, reason, "the live version is not what it should be");
            }
        }
    }

    /// After a start during its soak the new version is live, and is watched again.
    async fn watch_live(&mut self, subject: &Subject, state: &SubjectState) {
        let Some(trial) = state.trial.as_ref().filter(|_| state.duty() == Duty::Soak) else { return };
        let Some(observations) = self.hand(subject).watch_again(trial) else { return };
        let managed = self.managed(subject, &trial.release, state);
        let repository = self.parts.repository.clone();
        if let Ok(live) = repository.pin(&subject.name, Some(trial.release.version)) {
            drop(repository.activate(&subject.name, live, managed, Some(observations)).await);
        }
    }

    /// Lets requests see the new version as far as its stage allows.
    fn show_requests(&mut self, subject: &Subject, state: &SubjectState) {
        let name = subject.name.clone();
        let candidate = self.hand(subject).candidate(state);
        if let Some(changed) = candidate {
            self.parts.repository.set_candidate(&name, changed);
        }
    }

    /// Makes live what the state says is live.
    async fn switch(&mut self, subject: &Subject, state: &SubjectState) {
        let live = state.live().cloned();
        if self.hand(subject).serving == live {
            return;
        }
        if subject.kind != Kind::Model {
            // Settings and libraries are read when the daemon starts.
            tracing::info!(%subject, "the daemon starts anew to take up an update");
            self.hand(subject).serving = live;
            self.parts.shutdown.request_restart();
            return;
        }
        let managed = live.as_ref().map(|release| self.managed(subject, release, state));
        let repository = self.parts.repository.clone();
        let (beside, observations) = {
            let hand = self.hand(subject);
            let is_trial = state.trial.as_ref().is_some_and(|trial| Some(&trial.release) == live.as_ref());
            (if is_trial { hand.beside.take() } else { None }, hand.observations(state))
        };
        let name: ModelName = subject.name.clone();
        let started = Instant::now();
        match (beside, managed) {
            (Some(model), Some(managed)) => {
                let before = repository.activate(&name, model, managed, observations).await;
                let hand = self.hand(subject);
                hand.kept = before;
                hand.is_watched = true;
                tracing::info!(%subject, switch_us = started.elapsed().as_micros(), "the new version is live");
            }
            (_, managed) => {
                let kept = self.hand(subject).kept.take();
                if let Err(reason) = repository.restore(&name, managed, kept).await {
                    tracing::error!(%subject, reason, "the version before does not load again");
                } else {
                    tracing::info!(%subject, switch_us = started.elapsed().as_micros(), "the version before is live");
                }
            }
        }
        self.hand(subject).serving = live;
    }

    fn managed(&self, subject: &Subject, release: &super::state::Installed, state: &SubjectState) -> ManagedVersion {
        let golden_min =
            state.trial.as_ref().filter(|trial| trial.release == *release).and_then(|trial| trial.plan.gate.golden_min);
        ManagedVersion { version: release.version, folder: self.store.release_folder(subject, release), golden_min }
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
        self.hand(subject).begin(duty, number);
        let subject = subject.clone();
        let ended = self.hand(&subject).ended(number);
        self.jobs.push(Box::pin(async move {
            tokio::select! {
                done = job => (subject, number, done),
                () = ended => (subject, number, Done::Passed),
            }
        }));
    }

    /// Says what became of a subject: to the log, the audit log and everybody who reads the status.
    fn told(&self, subject: &Subject, before: &SubjectState, after: &SubjectState) {
        let moved = |version, rollout: &crate::names::DeviceName, stage: &'static str, cause: Option<&'static str>| {
            self.parts.audit.record(AuditEvent::UpdateMoved {
                subject: subject.to_string(),
                version,
                rollout: rollout.to_string(),
                stage,
                cause,
            });
        };
        if after.outcome != before.outcome
            && let Some(outcome) = &after.outcome
        {
            match &outcome.rolled_back {
                None => {
                    tracing::info!(%subject, version = %outcome.version, rollout = %outcome.rollout, "update committed");
                    moved(outcome.version, &outcome.rollout, "committed", None);
                }
                Some((stage, reason)) => {
                    tracing::warn!(%subject, version = %outcome.version, rollout = %outcome.rollout, %stage,
                        cause = reason.cause.name(), detail = reason.detail, "update rolled back");
                    moved(outcome.version, &outcome.rollout, "rolled_back", Some(reason.cause.name()));
                    self.parts.updates.tell(|status| *status.rollbacks.entry(reason.cause.name()).or_default() += 1);
                }
            }
        }
        let stage = |state: &SubjectState| state.trial.as_ref().map(|trial| (trial.plan.rollout.clone(), trial.stage));
        if let Some(trial) = &after.trial
            && stage(before) != stage(after)
        {
            tracing::info!(%subject, version = %trial.release.version, rollout = %trial.plan.rollout, stage = %trial.stage,
                "update moved");
            moved(trial.release.version, &trial.plan.rollout, trial.stage.name(), None);
        }
    }

    fn tell(&self) {
        let subjects = &self.persisted.subjects;
        self.parts.updates.tell(|status| {
            if status.subjects != *subjects {
                status.subjects.clone_from(subjects);
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

    /// Removes what no state needs any more.
    fn collect(&self) {
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

/// What is left of a state when the counts are taken out that change all the time.
fn without_counts(state: &SubjectState) -> SubjectState {
    let mut state = state.clone();
    if let Some(trial) = &mut state.trial {
        trial.in_stage_s = 0;
        trial.fetched_bytes = 0;
    }
    state
}

/// The part of the inbox that is the updater's.
#[derive(Debug)]
pub struct UpdaterInboxParts {
    /// What the platform wants.
    pub wishes: tokio::sync::watch::Receiver<Option<Wishes>>,
    /// What people want.
    pub orders: tokio::sync::mpsc::Receiver<Ordered>,
}

impl UpdaterInbox {
    /// The updater's part and the poller's.
    pub fn split(self) -> (UpdaterInboxParts, tokio::sync::mpsc::Receiver<super::handle::Look>) {
        (UpdaterInboxParts { wishes: self.wishes, orders: self.orders }, self.looks)
    }
}

impl std::fmt::Debug for Updater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Updater").field("subjects", &self.persisted.subjects.len()).finish_non_exhaustive()
    }
}
