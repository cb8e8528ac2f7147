//! Calls of the model: in this process, or at a running server that may be busy or be restarted meanwhile.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_egress::{DaemonAddress, DaemonAnswer, DaemonConnection, DaemonConnectionError};
use ledge_engine::pipeline::file_format::FileFormat;
use ledge_identity::access::ViewScope;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::Serving;
use ledge_part::api_error::StatusCode;
use ledge_protocol::call::{self, BodyKind, InferenceCall};
use ledge_protocol::decode::ModelTarget;
use serde_json::{Map, Value};

use super::progress::InferProgress;
use super::stop::StopSignal;
use crate::cli::features::daemon::message;
use crate::cli::models::missing::DidYouMean;
use crate::daemon::Standalone;

/// The answer for one file, as HTTP sends it in JSON, or the reason why the call failed.
pub type FileAnswer = Result<Map<String, Value>, String>;

/// The longest wait of one call for a busy server, which may answer background work at one time of the day only.
const BUSY_MAX: Duration = Duration::from_hours(25);
/// The longest pause before the next attempt, even if the server asks for a longer one.
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// The pause before the next attempt where the server names none.
const PAUSE: Duration = Duration::from_secs(1);
/// A server that takes longer than this for one call hangs. A model's own limit is far below, and the connection
/// notices within two minutes that a machine has vanished.
const CALL_TIMEOUT: Duration = Duration::from_mins(70);
/// The number of times that the connection may break during the call of one file. The file itself may be what crashes
/// the server.
const BREAKS_MAX: u32 = 3;

/// Where the model runs.
pub enum ModelLocation {
    Here(Box<Standalone>),
    Server(RunningServer),
}

impl ModelLocation {
    /// The cores that run inferences, where a server says so.
    pub async fn cores(&self) -> anyhow::Result<Option<usize>> {
        match self {
            Self::Here(serving) => Ok(Some(serving.repository().engine().cores().len())),
            Self::Server(server) => server.cores().await,
        }
    }

    /// The version that answers calls to `target` now.
    pub async fn version(&self, target: &ModelTarget) -> anyhow::Result<ModelVersion> {
        match self {
            Self::Here(serving) => Ok(serving.repository().pin(&target.model, target.version)?.version),
            Self::Server(server) => server.version(target).await,
        }
    }

    /// Asks for the answer to a file's content. `None` when a stop came before the server took the call. An error is
    /// one of the whole run.
    pub async fn ask(
        &self,
        target: &ModelTarget,
        content: Bytes,
        progress: &InferProgress,
        stop: &StopSignal,
    ) -> anyhow::Result<Option<FileAnswer>> {
        match self {
            Self::Here(serving) => Ok(ask_here(serving, target, content, stop).await),
            Self::Server(server) => server.ask(target, content, progress, stop).await,
        }
    }
}

async fn ask_here(serving: &Serving, target: &ModelTarget, body: Bytes, stop: &StopSignal) -> Option<FileAnswer> {
    loop {
        let call = InferenceCall {
            target: target.clone(),
            form: BodyKind::sniffed(&body, content_type(&body), None),
            body: body.clone(),
            prefers_text: false,
            priority: None,
            deadline: None,
            arrived: Instant::now(),
            account: MemoryAccount::unlimited(),
            views: ViewScope::ALL,
            camera: None,
        };
        let failure = match call::answer(serving, call, &Principal::Local).await {
            Ok(answer) => return Some(object(&answer.body)),
            Err(failure) => failure,
        };
        match failure.retry_after_s {
            // A model with a short queue, and more calls in flight than it holds.
            Some(seconds) if failure.status == StatusCode::TOO_MANY_REQUESTS => {
                stop.pause(Duration::from_secs(seconds).min(PAUSE_MAX)).await?;
            }
            _ => return Some(Err(failure.message)),
        }
    }
}

/// The content type of a file: that of its format by its first bytes, none for a request or rows in JSON, and otherwise
/// text where it is one.
fn content_type(content: &[u8]) -> Option<&'static str> {
    if let Some(format) = FileFormat::of(content) {
        return Some(format.content_type());
    }
    let start = content.trim_ascii_start();
    let is_list = start.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"{"));
    let is_json = start.starts_with(b"{") || is_list;
    if is_json {
        return None;
    }
    Some(if std::str::from_utf8(content).is_ok() { "text/plain" } else { "application/octet-stream" })
}

/// The body of an answer.
fn object(body: &[u8]) -> FileAnswer {
    serde_json::from_slice(body)
        .map_err(|_| "the answer is not JSON: leave binary_data and binary_data_output out of the request".to_owned())
}

/// A running server, and the connections to it that are idle.
pub struct RunningServer {
    address: DaemonAddress,
    idle: Mutex<Vec<DaemonConnection>>,
    priority: Priority,
    /// The longest time to wait for a server that does not answer.
    patience: Duration,
}

/// The reason for a further attempt.
enum RetryReason {
    /// The server is there, and has no place for the call.
    Busy { pause: Duration },
    /// The server is not there, or cannot answer any call.
    Unavailable { pause: Duration },
}

impl RunningServer {
    /// Connects to the server. Calls of priority batch wait while it is busy, and `patience` at most while it does not
    /// answer; others fail at once.
    pub async fn open(address: DaemonAddress, priority: Priority, patience: Duration) -> anyhow::Result<Self> {
        let idle = Mutex::new(vec![DaemonConnection::open(&address).await?]);
        Ok(Self { address, idle, priority, patience })
    }

    async fn cores(&self) -> anyhow::Result<Option<usize>> {
        let metadata = self.document("/v2").await?;
        Ok(metadata.get("inference_cores").and_then(Value::as_u64).and_then(|cores| usize::try_from(cores).ok()))
    }

    /// The version asked for, or the highest that is live, which answers by default.
    async fn version(&self, target: &ModelTarget) -> anyhow::Result<ModelVersion> {
        let path = format!("/v2/models/{}{}", target.model, version_path(target));
        let metadata = match self.document(&path).await {
            Ok(metadata) => metadata,
            Err(error) => bail!("{error:#}{}", self.did_you_mean(&target.model).await),
        };
        let versions = metadata.get("versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let highest = versions.iter().filter_map(|version| version.as_str()?.parse().ok()).max();
        target.version.or(highest).with_context(|| format!("the server names no version of '{}'", target.model))
    }

    async fn document(&self, path: &str) -> anyhow::Result<Value> {
        let mut connection = self.connection().await?;
        let answer = connection.get(path).await?;
        self.keep(connection);
        match answer.status {
            200 => serde_json::from_slice(&answer.body).with_context(|| format!("the answer to {path} is not JSON")),
            status => bail!("{} ({status})", message(status, &answer.body)),
        }
    }

    async fn ask(
        &self,
        target: &ModelTarget,
        content: Bytes,
        progress: &InferProgress,
        stop: &StopSignal,
    ) -> anyhow::Result<Option<FileAnswer>> {
        let path = format!("/v2/models/{}{}/infer", target.model, version_path(target));
        let waits = self.priority == Priority::Batch;
        let (mut busy_since, mut lost_since): (Option<Instant>, Option<Instant>) = (None, None);
        let (mut breaks, mut was_ready) = (0, false);
        loop {
            let (obstacle, reason) = match self.post(&path, content.clone()).await {
                Ok(answer) if answer.status == 200 => return Ok(Some(object(&answer.body))),
                Ok(answer) => {
                    let reason = format!("{} ({})", message(answer.status, &answer.body), answer.status);
                    match (answer.status, answer.retry_after) {
                        (401, _) => bail!(reason),
                        (404, _) if was_ready => bail!("{reason}{}", self.did_you_mean(&target.model).await),
                        (404, _) => {
                            // A server that has just been started does not know its models yet.
                            was_ready = self.is_ready().await;
                            let pause = if was_ready { Duration::ZERO } else { PAUSE };
                            (RetryReason::Unavailable { pause }, reason)
                        }
                        (429, Some(pause)) if waits => (RetryReason::Busy { pause }, reason),
                        (503, Some(pause)) if waits => (RetryReason::Unavailable { pause }, reason),
                        _ => return Ok(Some(Err(reason))),
                    }
                }
                Err(error @ (DaemonConnectionError::Exchange(_) | DaemonConnectionError::Connect { .. })) if waits => {
                    breaks += u32::from(matches!(error, DaemonConnectionError::Exchange(_)));
                    if breaks == BREAKS_MAX {
                        return Ok(Some(Err(format!("{error}, {BREAKS_MAX} times"))));
                    }
                    (RetryReason::Unavailable { pause: PAUSE }, error.to_string())
                }
                Err(error) => return Err(error.into()),
            };

            let (pause, since, longest) = match obstacle {
                RetryReason::Busy { pause } => {
                    lost_since = None;
                    (pause, *busy_since.get_or_insert_with(Instant::now), BUSY_MAX)
                }
                RetryReason::Unavailable { pause } => {
                    (pause, *lost_since.get_or_insert_with(Instant::now), self.patience)
                }
            };
            let left = longest.saturating_sub(since.elapsed());
            if left.is_zero() && !pause.is_zero() {
                bail!("{reason}, for {} s (--wait)", longest.as_secs());
            }
            if !pause.is_zero() {
                progress.waiting(&reason);
            }
            if stop.pause(pause.min(PAUSE_MAX).min(left)).await.is_none() {
                return Ok(None);
            }
        }
    }

    /// Posts the content of a file. The connection is kept for the next one if it can be.
    async fn post(&self, path: &str, content: Bytes) -> Result<DaemonAnswer, DaemonConnectionError> {
        let kind = content_type(&content).unwrap_or("application/json");
        let headers = [("content-type", kind), ("x-ledge-priority", self.priority.as_str())];
        let mut connection = self.connection().await?;
        let answer = tokio::time::timeout(CALL_TIMEOUT, connection.post(path, &headers, content)).await;
        let late = |_| DaemonConnectionError::Connect {
            url: self.address.url.clone(),
            error: std::io::ErrorKind::TimedOut.into(),
        };
        let answer = answer.map_err(late)??;
        self.keep(connection);
        Ok(answer)
    }

    /// The end of a sentence about a model that the server does not have: its models of similar names.
    async fn did_you_mean(&self, model: &ModelName) -> String {
        let index = async {
            let mut connection = self.connection().await.ok()?;
            let answer = connection.post("/v2/repository/index", &[], Bytes::new()).await.ok()?;
            serde_json::from_slice::<Value>(&answer.body).ok()
        };
        let index = index.await.unwrap_or_default();
        let names = index.as_array().into_iter().flatten().filter_map(|model| model.get("name")?.as_str());
        DidYouMean::new(model, names).to_string()
    }

    /// True once the server has loaded its models.
    async fn is_ready(&self) -> bool {
        let Ok(mut connection) = self.connection().await else { return false };
        connection.get("/v2/health/ready").await.is_ok_and(|answer| answer.status == 200)
    }

    async fn connection(&self) -> Result<DaemonConnection, DaemonConnectionError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(connection),
            None => DaemonConnection::open(&self.address).await,
        }
    }

    fn keep(&self, connection: DaemonConnection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

fn version_path(target: &ModelTarget) -> String {
    target.version.map(|version| format!("/versions/{version}")).unwrap_or_default()
}
