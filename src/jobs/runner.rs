//! The runner: one task that runs the oldest job that may run, some of its calls at a time.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesOrdered, StreamExt};
use ledge_base::clock::{self, ClockComparison};
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_base::time_id::TimeId;
use ledge_engine::pipeline::content::rows::RowsText;
use ledge_engine::pipeline::content::{CallContent, PipelineInput};
use ledge_engine::pipeline::file_format::UnexpectedFile;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::request::{InferRequest, InferResponse, Payload, ResultForm};
use ledge_models::serving::{Serving, windows};
use ledge_part::api_error::{ApiError, FailureKind, StatusCode};
use ledge_protocol::row_answers::RowAnswers;
use ledge_service::off_thread::WorkThread;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::queue::{JobQueue, NextStep};
use crate::spec::{CallRecord, ItemError, JobKind, JobSpec};
use crate::work::{CallResult, JobCall, JobContent, JobStop, JobWork};

/// The most calls of a job at a time.
const AT_A_TIME_MAX: usize = 4;

/// The times that a file is read at which a model's process ends: then it counts as the cause.
const CRASHES_MAX: u32 = 3;

/// Results end by their age only when the clock was not set for so long.
const STEADY_TIME: Duration = Duration::from_hours(1);

/// The pause before the next look at the callers that wait.
const CALLERS_PAUSE: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug)]
pub struct JobRunner {
    pub queue: JobQueue,
    pub serving: Serving,
    /// The longest file, in bytes.
    pub file_bytes_max: usize,
}

/// A line of JSON, or the file, with the result of a file.
#[derive(Serialize)]
struct FileResult<'a> {
    job: &'a str,
    item: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_name: Option<&'a ModelName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_version: Option<String>,
    /// With the member of the pipeline's kind, such as `labels`.
    #[serde(flatten)]
    result: BTreeMap<&'static str, &'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// The arguments of the calls of a job.
struct JobCalls<'a> {
    serving: &'a Serving,
    id: &'a TimeId,
    spec: &'a JobSpec,
    principal: Principal,
    account: MemoryAccount,
}

impl JobRunner {
    /// Runs jobs for ever. Without a job to run it sleeps until one is added, or a window may open.
    pub async fn run(&self) {
        let mut clock = ClockComparison::new(Instant::now(), clock::FLOOR.now_millis());
        loop {
            let steady = clock.steady_for(Instant::now(), clock::FLOOR.now_millis());
            if steady.is_some_and(|time| time >= STEADY_TIME) {
                self.queue.expire().await;
            }
            match self.queue.next(Instant::now()) {
                NextStep::Run(id) => self.run_job(&id).await,
                NextStep::Wait(None) => self.queue.changed().await,
                NextStep::Wait(Some(pause)) => {
                    let _ = tokio::time::timeout(pause, self.queue.changed()).await;
                }
            }
        }
    }

    /// Runs a job until its end, until its window closes, or until it cannot go on.
    async fn run_job(&self, id: &TimeId) {
        let Some(job) = self.queue.job(id) else { return };
        // A panic about one job must not end the work on others.
        let ran = AssertUnwindSafe(self.run_calls(id, &job.spec)).catch_unwind().await;
        let stop = ran.unwrap_or_else(|_| Err(JobStop::Later("its processing panicked".to_owned())));
        let ended = match stop {
            Ok(true) => self.queue.end(id, None).await,
            Ok(false) => {
                self.queue.stopped(id);
                Ok(())
            }
            Err(JobStop::Failed(error)) => self.queue.end(id, Some(error)).await,
            Err(JobStop::Later(problem)) => {
                self.queue.stuck(id, &problem, Instant::now());
                Ok(())
            }
        };
        if let Err(error) = ended {
            self.queue.stuck(id, &error.to_string(), Instant::now());
        }
    }

    /// True if all calls have ended; false if it stopped before.
    async fn run_calls(&self, id: &TimeId, spec: &JobSpec) -> Result<bool, JobStop> {
        let work = JobWork::new(
            id.clone(),
            spec.clone(),
            self.queue.store().clone(),
            self.queue.config().clone(),
            self.file_bytes_max,
        );
        let work = WorkThread::spawn("job", work)?;
        self.queue.begun(id, work.run(JobWork::open).await?);

        let principal = spec.owner.principal();
        let account = self.serving.memory().account(principal.clone());
        let calls = JobCalls { serving: &self.serving, id, spec, principal, account };
        let at_a_time = std::thread::available_parallelism().map_or(1, usize::from).min(AT_A_TIME_MAX);
        // In their order: the parts of a table are written one behind the other.
        let mut running = FuturesOrdered::<BoxFuture<'_, Result<CallResult, JobStop>>>::new();
        // Set when no more calls are begun; and when a part of a table has no result, so that none can be written behind it.
        let (mut stop, mut has_gap) = (None, false);
        loop {
            while stop.is_none() && running.len() < at_a_time {
                if self.queue.job(id).is_none() || windows::pause(spec.window).is_some() {
                    stop = Some(Ok(false));
                } else if self.callers_wait() {
                    self.queue.set_paused(id, true);
                    if running.is_empty() {
                        tokio::time::sleep(CALLERS_PAUSE).await;
                        continue;
                    }
                    break;
                } else {
                    self.queue.set_paused(id, false);
                    match work.run(JobWork::next_call).await {
                        Ok(Some(call)) => running.push_back(calls.run(call).boxed()),
                        Ok(None) => stop = Some(Ok(true)),
                        Err(error) => stop = Some(Err(error)),
                    }
                }
            }
            let Some(result) = running.next().await else { break };
            if has_gap {
                continue;
            }
            if let Err(error) = self.finish_call(id, &work, result).await {
                stop = Some(Err(error));
                has_gap = spec.kind == JobKind::Table;
            }
        }
        if !matches!(stop, Some(Ok(false) | Err(JobStop::Later(_)))) {
            work.run(JobWork::finish).await?;
        }
        stop.unwrap_or(Ok(false))
    }

    async fn finish_call(
        &self,
        id: &TimeId,
        work: &WorkThread<JobWork>,
        result: Result<CallResult, JobStop>,
    ) -> Result<(), JobStop> {
        let result = result?;
        if self.queue.job(id).is_none() {
            return Ok(());
        }
        if !self.queue.has_room(result.content.len() as u64) {
            let most = self.queue.config().max_mb;
            return Err(JobStop::Later(format!("the jobs take {most} MiB (jobs.max_mb): fetch and remove results")));
        }
        let (record, bytes) = work.run(move |work| work.finish_call(result)).await?;
        self.queue.call_ended(id, &record, bytes);
        Ok(())
    }

    /// True while a call for which somebody waits has no place to run.
    fn callers_wait(&self) -> bool {
        self.serving.repository().all_live().iter().any(|model| model.instance_usage().queued_interactive > 0)
    }
}

impl JobCalls<'_> {
    async fn run(&self, call: JobCall) -> Result<CallResult, JobStop> {
        let JobCall { item, content, input_end } = call;
        match content {
            JobContent::File { name, bytes } => {
                let answer = match bytes {
                    Ok(bytes) => self.call_file(bytes).await?,
                    Err(reason) => Err(reason),
                };
                let shown = name.as_ref().map(|name| name.to_string_lossy().into_owned());
                let content = self.line(item, shown, answer.as_ref());
                let version = answer.as_ref().ok().map(|answer| answer.version.to_string());
                let errors = answer.err().map(|error| ItemError { item, error });
                let answered = u64::from(errors.is_none());
                let record = CallRecord {
                    item,
                    version,
                    answered,
                    errors: errors.into_iter().collect(),
                    input_end,
                    output_end: 0,
                };
                Ok(CallResult { record, name, content, header_bytes: 0 })
            }
            JobContent::Rows(rows) => self.call_rows(item, rows, input_end).await,
        }
    }

    /// The answer to a file, or the reason why it has none.
    async fn call_file(&self, bytes: Bytes) -> Result<Result<InferResponse, String>, JobStop> {
        let memory = self.account.take(bytes.len()).map_err(|error| JobStop::Later(error.to_string()))?;
        let bytes = memory.attach(bytes);
        self.call(|input| {
            if input == PipelineInput::Document {
                UnexpectedFile::unless_document(&bytes).map_err(|error| error.to_string())?;
            }
            CallContent::of_file(input, bytes.clone()).map_err(|error| error.to_string())
        })
        .await
    }

    /// Calls the model of the job, again after a crash. The inner error is that of the input.
    async fn call(
        &self,
        content: impl Fn(PipelineInput) -> Result<CallContent, String>,
    ) -> Result<Result<InferResponse, String>, JobStop> {
        let mut crashes = 0;
        loop {
            let error = match self.try_call(&content).await {
                Ok(answered) => return Ok(answered),
                Err(error) => error,
            };
            match error.kind() {
                FailureKind::Refused => return Ok(Err(error.message)),
                FailureKind::Crashed if crashes + 1 >= CRASHES_MAX => return Ok(Err(error.message)),
                FailureKind::Crashed => crashes += 1,
                FailureKind::Later => return Err(JobStop::Later(error.message)),
            }
        }
    }

    async fn try_call(
        &self,
        content: &impl Fn(PipelineInput) -> Result<CallContent, String>,
    ) -> Result<Result<InferResponse, String>, ApiError> {
        let pinned = self.serving.pin(&self.spec.model, None, &self.principal)?;
        let refused = |message: String| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message);
        let model = &self.spec.model;
        let input = pinned.model.input().ok_or_else(|| refused(format!("the model '{model}' takes only tensors")))?;
        let content = match content(input) {
            Ok(content) => content,
            Err(reason) => return Ok(Err(reason)),
        };
        let request = InferRequest {
            payload: Payload::Content(content, ResultForm::Json),
            deadline: None,
            priority: Some(Priority::Batch),
            account: self.account.clone(),
        };
        Ok(Ok(self.serving.infer(pinned, request, &self.principal).await?))
    }

    fn line(&self, item: u64, file: Option<String>, answer: Result<&InferResponse, &String>) -> Vec<u8> {
        let result = FileResult {
            job: self.id.as_str(),
            item,
            file,
            model_name: answer.ok().map(|answer| &answer.model),
            model_version: answer.ok().map(|answer| answer.version.to_string()),
            result: answer
                .iter()
                .flat_map(|answer| &answer.result)
                .map(|kept| (kept.kind.member, &*kept.json))
                .collect(),
            error: answer.err().map(String::as_str),
        };
        // Maps have text keys only, so this does not fail.
        let mut line = serde_json::to_vec(&result).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// The answers to a part of a table. Where the part fails, its rows are called one by one.
    async fn call_rows(&self, item: u64, rows: RowsText, input_end: u64) -> Result<CallResult, JobStop> {
        let mut record = CallRecord { item, version: None, answered: 0, errors: Vec::new(), input_end, output_end: 0 };
        let (mut content, mut header_bytes) = (Vec::new(), 0);
        let whole = self.call_part(&rows).await?;
        let parts = match whole {
            Err(_) if rows.count() > 1 => {
                let singles = rows.divided(1).unwrap_or_default();
                let mut parts = Vec::with_capacity(singles.len());
                for single in singles {
                    let answer = self.call_part(&single).await?;
                    parts.push((single, answer));
                }
                parts
            }
            answer => vec![(rows, answer)],
        };
        for (rows, answer) in parts {
            let wrong = match &answer {
                Ok(answer) => {
                    let json = answer.result.as_ref().map_or(RawValue::NULL, |result| &result.json);
                    let lines = |is_headed: bool| RowAnswers::numbered_csv(is_headed).lines_from(json, rows.first());
                    // Each part has the header, and the one that is written first keeps it.
                    match lines(true)
                        .and_then(|rest| Ok((if content.is_empty() { lines(false)? } else { rest.clone() }, rest)))
                    {
                        Ok((lines, rest)) => {
                            header_bytes = header_bytes.max(lines.len() - rest.len());
                            content.extend_from_slice(&lines);
                            record.answered += rows.count() as u64;
                            record.version = Some(answer.version.to_string());
                            continue;
                        }
                        Err(error) => error.to_string(),
                    }
                }
                Err(reason) => reason.clone(),
            };
            record.errors.push(ItemError { item: rows.first() as u64, error: wrong });
        }
        Ok(CallResult { record, name: None, content, header_bytes })
    }

    async fn call_part(&self, rows: &RowsText) -> Result<Result<InferResponse, String>, JobStop> {
        let _memory = self.account.take(rows.json().len()).map_err(|error| JobStop::Later(error.to_string()))?;
        self.call(|_| Ok(CallContent::Rows(rows.clone()))).await
    }
}
