//! The queue: all jobs with their states, in memory and on the disk.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::backoff::{self, Backoff};
use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_base::time_id::TimeId;
use ledge_identity::sealing::Sealer;
use ledge_models::serving::windows;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use tokio::sync::Notify;

use crate::config::JobsConfig;
use crate::spec::{CallRecord, JobEnd, JobProgress, JobSpec};
use crate::store::{JobInput, JobStore};

/// The pauses before a job that could not go on is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// The time between two looks for jobs whose retention has ended.
const RETENTION_INTERVAL: Duration = Duration::from_hours(1);

/// The activity of a job that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobActivity {
    Waiting,
    Running,
    /// Calls of others wait for a model, so it starts none.
    Paused,
}

/// A job, as it is now.
#[derive(Debug, Clone)]
pub struct Job {
    pub id: TimeId,
    pub spec: Arc<JobSpec>,
    pub progress: JobProgress,
    pub activity: JobActivity,
    /// The times since the start at which it paused for callers.
    pub pauses: u64,
    /// The reason why it does not go on.
    pub problem: Option<String>,
    pub end: Option<JobEnd>,
}

#[derive(Debug)]
struct JobEntry {
    job: Job,
    bytes: u64,
    retry: Option<(Instant, Backoff)>,
}

/// The reason why a job was not added or removed.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("there are {most} jobs, with those that are kept after their end: remove some, or raise jobs.max_jobs")]
    TooMany { most: usize },
    #[error("the jobs would take more than {most} MiB (jobs.max_mb): remove some, or wait for their end")]
    TooLarge { most: u64 },
    #[error("the disk has less than {least} MiB free (jobs.min_free_mb)")]
    DiskFull { least: u64 },
    #[error("there is no such job")]
    Unknown,
    #[error("the folder of jobs: {0}")]
    Files(#[from] io::Error),
}

/// The next thing to do.
#[derive(Debug, PartialEq, Eq)]
pub enum NextStep {
    Run(TimeId),
    /// Nothing until then, or until a job is added; `None` is forever.
    Wait(Option<Duration>),
}

/// See the module. Clones share it.
#[derive(Debug, Clone)]
pub struct JobQueue(Arc<QueueState>);

#[derive(Debug)]
struct QueueState {
    config: JobsConfig,
    /// The time for which a job is kept after its end, in milliseconds.
    kept_ms: u64,
    store: JobStore,
    audit: AuditSink,
    jobs: Mutex<BTreeMap<TimeId, JobEntry>>,
    /// Held while a job is added, so that the limits hold.
    adding: tokio::sync::Mutex<()>,
    changed: Notify,
    figures: QueueFigures,
}

/// The figures since the start.
#[derive(Debug, Default)]
pub struct QueueFigures {
    pub answered: AtomicU64,
    pub failed: AtomicU64,
    pub pauses: AtomicU64,
}

impl JobQueue {
    /// Reads the jobs of the folder. Those that have ended are kept for the time `kept`.
    pub fn open(config: &JobsConfig, kept: Duration, sealer: Sealer, audit: AuditSink) -> io::Result<Self> {
        let store = JobStore::new(config.path.clone(), sealer);
        let mut jobs = BTreeMap::new();
        for stored in store.load()? {
            let job = Job {
                id: stored.id.clone(),
                spec: Arc::new(stored.spec),
                progress: stored.progress,
                activity: JobActivity::Waiting,
                pauses: 0,
                problem: None,
                end: stored.end,
            };
            jobs.insert(stored.id, JobEntry { job, bytes: stored.bytes, retry: None });
        }
        Ok(Self(Arc::new(QueueState {
            config: config.clone(),
            kept_ms: u64::try_from(kept.as_millis()).unwrap_or(u64::MAX),
            store,
            audit,
            jobs: Mutex::new(jobs),
            adding: tokio::sync::Mutex::default(),
            changed: Notify::new(),
            figures: QueueFigures::default(),
        })))
    }

    pub fn config(&self) -> &JobsConfig {
        &self.0.config
    }

    pub fn store(&self) -> &JobStore {
        &self.0.store
    }

    pub fn audit(&self) -> &AuditSink {
        &self.0.audit
    }

    pub fn figures(&self) -> &QueueFigures {
        &self.0.figures
    }

    /// All jobs, in the order in which they were added.
    pub fn jobs(&self) -> Vec<Job> {
        self.lock().values().map(|entry| entry.job.clone()).collect()
    }

    /// A job; `None` if it is not there any more.
    pub fn job(&self, id: &TimeId) -> Option<Job> {
        Some(self.lock().get(id)?.job.clone())
    }

    fn bytes(&self) -> u64 {
        self.lock().values().map(|entry| entry.bytes).sum()
    }

    /// True if the jobs may take so many bytes more.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.bytes().saturating_add(bytes) <= self.0.config.max_mb << 20
    }

    /// Adds a job for a caller. It is on the disk when this returns.
    pub async fn add(
        &self,
        spec: JobSpec,
        input: crate::store::InputPart,
        content: Vec<u8>,
        caller: &Principal,
    ) -> Result<Job, QueueError> {
        let _adding = self.0.adding.lock().await;
        let config = &self.0.config;
        if self.lock().len() >= config.max_jobs {
            return Err(QueueError::TooMany { most: config.max_jobs });
        }
        if !self.has_room(content.len() as u64) {
            return Err(QueueError::TooLarge { most: config.max_mb });
        }
        let id = TimeId::generate(clock::FLOOR.now_millis())?;
        let (store, stored, about) = (self.0.store.clone(), spec.clone(), id.clone());
        let least = config.min_free_mb;
        let bytes = ledge_service::off_thread::blocking(move || {
            let free = ledge_base::telemetry::system::DiskSpace::under(store.path())?.available_bytes;
            if free.saturating_sub(content.len() as u64) < least << 20 {
                return Err(QueueError::DiskFull { least });
            }
            Ok(store.add(&about, &stored, JobInput { part: input, content: &content })?)
        });
        let bytes = bytes.await?;
        let job = Job {
            id: id.clone(),
            spec: Arc::new(spec),
            progress: JobProgress::default(),
            activity: JobActivity::Waiting,
            pauses: 0,
            problem: None,
            end: None,
        };
        self.lock().insert(id.clone(), JobEntry { job: job.clone(), bytes, retry: None });
        let (model, job_id) = (job.spec.model.clone(), id.to_string());
        self.0.audit.record(caller, AuditEvent::JobAdded { job: job_id, model });
        tracing::info!(name: "jobs.added", %id, model = %job.spec.model, "job added");
        self.0.changed.notify_one();
        Ok(job)
    }

    /// Stops a job that has not ended, and removes it with its input and result.
    pub async fn remove(&self, id: &TimeId, caller: &Principal) -> Result<(), QueueError> {
        let removed = self.lock().remove(id).ok_or(QueueError::Unknown)?;
        let cause = if removed.job.end.is_some() { "removed" } else { "cancelled" };
        self.remove_files(id).await?;
        self.0.audit.record(caller, AuditEvent::JobRemoved { job: id.to_string(), cause: cause.into() });
        tracing::info!(name: "jobs.removed", %id, cause, "job removed");
        self.0.changed.notify_one();
        Ok(())
    }

    async fn remove_files(&self, id: &TimeId) -> io::Result<()> {
        let (store, about) = (self.0.store.clone(), id.clone());
        ledge_service::off_thread::blocking(move || store.remove(&about)).await
    }

    /// The time at which a job that has ended is removed, in milliseconds since the Unix epoch.
    pub fn kept_until_ms(&self, end: &JobEnd) -> u64 {
        end.at_ms.saturating_add(self.0.kept_ms)
    }

    /// Removes the jobs that have ended longer ago than the retention.
    pub async fn expire(&self) {
        let now = clock::FLOOR.now_millis();
        let is_over = |entry: &JobEntry| entry.job.end.as_ref().is_some_and(|end| now >= self.kept_until_ms(end));
        let over: Vec<_> = self.lock().iter().filter(|(_, entry)| is_over(entry)).map(|(id, _)| id.clone()).collect();
        for id in over {
            if let Err(error) = self.remove_files(&id).await {
                tracing::warn!(name: "jobs.not_removed", %id, %error, "a job cannot be removed after its retention");
                continue;
            }
            self.lock().remove(&id);
            self.0.audit.record_own(AuditEvent::JobRemoved { job: id.to_string(), cause: "expired".into() });
        }
    }

    /// The next step of the runner.
    pub fn next(&self, now: Instant) -> NextStep {
        let jobs = self.lock();
        let mut wait: Option<Duration> = None;
        for (id, entry) in jobs.iter() {
            let pause = if entry.job.end.is_some() {
                Some(RETENTION_INTERVAL)
            } else {
                let retry = entry.retry.as_ref().map(|(at, _)| at.saturating_duration_since(now));
                retry.filter(|pause| !pause.is_zero()).or_else(|| windows::pause(entry.job.spec.window))
            };
            match pause {
                None => return NextStep::Run(id.clone()),
                Some(pause) => wait = Some(wait.map_or(pause, |other| other.min(pause))),
            }
        }
        NextStep::Wait(wait)
    }

    /// Waits until a job is added or removed.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn update<T>(&self, id: &TimeId, change: impl FnOnce(&mut JobEntry) -> T) -> Option<T> {
        self.lock().get_mut(id).map(change)
    }

    /// Notes that a job goes on, with its figures.
    pub fn begun(&self, id: &TimeId, progress: JobProgress) {
        self.update(id, |entry| {
            entry.job.activity = JobActivity::Running;
            entry.job.progress = progress;
        });
    }

    /// Notes that a job starts no calls while those of others wait, or that it does so again.
    pub fn set_paused(&self, id: &TimeId, is_paused: bool) {
        let begins = self.update(id, |entry| {
            let activity = if is_paused { JobActivity::Paused } else { JobActivity::Running };
            let before = std::mem::replace(&mut entry.job.activity, activity);
            let begins = is_paused && before != activity;
            entry.job.pauses += u64::from(begins);
            begins
        });
        if begins == Some(true) {
            self.0.figures.pauses.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an ended call, which is on the disk with so many bytes.
    pub fn call_ended(&self, id: &TimeId, record: &CallRecord, bytes: u64) {
        self.0.figures.answered.fetch_add(record.answered, Ordering::Relaxed);
        self.0.figures.failed.fetch_add(record.errors.len() as u64, Ordering::Relaxed);
        self.update(id, |entry| {
            let kind = entry.job.spec.kind;
            entry.job.progress.count(kind, record);
            entry.bytes += bytes;
            (entry.job.problem, entry.retry) = (None, None);
        });
    }

    /// Notes that a job stopped because its window closed.
    pub fn stopped(&self, id: &TimeId) {
        self.update(id, |entry| entry.job.activity = JobActivity::Waiting);
    }

    /// Notes that a job cannot go on now. It is tried again.
    pub fn stuck(&self, id: &TimeId, problem: &str, now: Instant) {
        let is_new = self.update(id, |entry| {
            let mut pauses = entry.retry.take().map_or_else(|| Backoff::new(FIRST_PAUSE, PAUSE_MAX), |(_, kept)| kept);
            entry.retry = Some((now + pauses.pause(backoff::random()), pauses));
            entry.job.activity = JobActivity::Waiting;
            entry.job.problem.replace(problem.to_owned()).is_none()
        });
        if is_new == Some(true) {
            tracing::warn!(name: "jobs.stuck", %id, problem, "a job waits; it is tried again");
        }
    }

    /// Ends a job. The end is on the disk when this returns.
    pub async fn end(&self, id: &TimeId, error: Option<String>) -> io::Result<()> {
        let Some(job) = self.job(id) else { return Ok(()) };
        let end = JobEnd { at_ms: clock::FLOOR.now_millis(), error, progress: job.progress };
        let (store, about, stored) = (self.0.store.clone(), id.clone(), end.clone());
        ledge_service::off_thread::blocking(move || store.end(&about, &stored)).await?;
        let outcome = if end.error.is_some() { "failed" } else { "done" };
        let JobProgress { answered, failed, .. } = end.progress;
        let event = AuditEvent::JobEnded { job: id.to_string(), outcome: outcome.into(), answered, failed };
        self.update(id, |entry| {
            (entry.job.end, entry.job.problem, entry.retry) = (Some(end), None, None);
            entry.job.activity = JobActivity::Waiting;
        });
        self.0.audit.record_own(event);
        tracing::info!(name: "jobs.ended", %id, outcome, answered, failed, "job ended");
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TimeId, JobEntry>> {
        // Nothing panics under this lock.
        self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{FORMAT_VERSION, JobKind, JobOwner, JobSource};
    use crate::store::InputPart;

    fn spec(window: Option<&str>) -> JobSpec {
        JobSpec {
            form: FORMAT_VERSION,
            owner: JobOwner::User(0),
            model: "m".parse().unwrap(),
            window: window.map(|window| window.parse().unwrap()),
            added_ms: 1,
            kind: JobKind::Files,
            source: JobSource::Sent,
            total: 1,
        }
    }

    fn open(folder: &std::path::Path) -> JobQueue {
        let config = JobsConfig { path: folder.to_owned(), max_jobs: 3, max_mb: 1, ..JobsConfig::default() };
        JobQueue::open(&config, Duration::from_hours(24), Sealer::none(), AuditSink::to_nowhere()).unwrap()
    }

    /// A window that is closed for an hour at least.
    fn closed() -> String {
        let hour = clock::local_second_of_day() / 3600;
        format!("{:02}:00-{:02}:00", (hour + 2) % 24, (hour + 3) % 24)
    }

    #[tokio::test]
    async fn the_oldest_job_runs_that_may_and_others_do_not_wait_for_one_that_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let (queue, now) = (open(folder.path()), Instant::now());
        assert_eq!(queue.next(now), NextStep::Wait(None));
        let add = async |window: Option<&str>| {
            queue.add(spec(window), InputPart::Sent, b"x".to_vec(), &Principal::User(0)).await.map(|job| job.id)
        };
        add(Some(&closed())).await.unwrap();
        assert!(matches!(queue.next(now), NextStep::Wait(Some(pause)) if pause <= Duration::from_mins(1)));
        let (one, two) = (add(None).await.unwrap(), add(None).await.unwrap());
        let (one, two) = if one < two { (one, two) } else { (two, one) };
        assert_eq!(queue.next(now), NextStep::Run(one.clone()));
        queue.stuck(&one, "no model", now);
        assert_eq!(queue.next(now), NextStep::Run(two.clone()));
        assert_eq!(queue.next(now + PAUSE_MAX), NextStep::Run(one.clone()));
        assert!(matches!(add(None).await, Err(QueueError::TooMany { most: 3 })));

        queue.end(&one, None).await.unwrap();
        queue.remove(&two, &Principal::User(0)).await.unwrap();
        let again = open(folder.path()).jobs();
        assert_eq!(again.len(), 2);
        assert_eq!(again.iter().filter(|job| job.end.is_some()).map(|job| &job.id).collect::<Vec<_>>(), [&one]);
    }

    #[tokio::test]
    async fn an_ended_job_is_kept_for_its_retention_and_a_large_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let queue = open(folder.path());
        let large = queue.add(spec(None), InputPart::Sent, vec![0; 2 << 20], &Principal::User(0)).await;
        assert!(matches!(large, Err(QueueError::TooLarge { most: 1 })));
        let id = queue.add(spec(None), InputPart::Sent, Vec::new(), &Principal::User(0)).await.unwrap().id;
        queue.end(&id, Some("no".to_owned())).await.unwrap();
        queue.expire().await;
        assert!(queue.job(&id).is_some());
        queue.update(&id, |entry| entry.job.end.as_mut().unwrap().at_ms -= 8 * 86_400_000);
        queue.expire().await;
        assert!(queue.job(&id).is_none() && open(folder.path()).jobs().is_empty());
    }
}
