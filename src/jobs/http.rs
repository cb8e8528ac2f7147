//! The routes of jobs. A caller sees its own jobs; one that may administer sees all.

use std::path::{Path, PathBuf};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::stream;
use ledge_base::names::ModelName;
use ledge_base::open_folder::FileStamp;
use ledge_base::principal::Principal;
use ledge_base::time_id::TimeId;
use ledge_base::{clock, durable};
use ledge_engine::pipeline::content::PipelineInput;
use ledge_identity::access::Permission;
use ledge_identity::authentication::Caller;
use ledge_models::serving::Serving;
use ledge_models::serving::windows::DailyWindow;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::handler_context::HandlerContext;
use ledge_part::reply::json;
use ledge_part::route::needs::OPERATE;
use ledge_part::route::{PathParts, Route, RouteScope};
use ledge_protocol::row_answers::RowsForm;
use ledge_service::off_thread::blocking;
use serde::{Deserialize, Serialize};

use crate::config::JobsConfig;
use crate::journal::JournalReader;
use crate::queue::{Job, JobActivity, JobQueue, QueueError};
use crate::spec::{FILES_MAX, FORMAT_VERSION, ItemError, JobKind, JobOwner, JobSource, JobSpec};
use crate::store::InputPart;
use crate::work;

/// The routes of jobs.
pub const ROUTES: &[Route<JobsHttpState>] = &[
    Route::get("/jobs", OPERATE, || get(list)).scope(RouteScope::Box).caller(),
    Route::post("/jobs", OPERATE, || post(add)).scope(RouteScope::Box).caller().audited(),
    Route::get("/jobs/{id}", OPERATE, || get(show)).scope(RouteScope::Box).caller(),
    Route::get("/jobs/{id}/result", OPERATE, || get(result)).scope(RouteScope::Box).caller().recorded_as("job_result"),
    Route::post("/jobs/{id}/remove", OPERATE, || post(remove)).scope(RouteScope::Box).caller().audited(),
];

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct JobsHttpState {
    pub queue: JobQueue,
    pub serving: Serving,
    pub context: HandlerContext,
}

/// Jobs of a caller.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobsDocument {
    pub jobs: Vec<JobDocument>,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDocument {
    pub id: String,
    pub owner: String,
    pub model: ModelName,
    pub kind: JobKind,
    pub window: Option<DailyWindow>,
    /// `waiting` for its window or for other jobs, `running`, `paused` for callers, `stuck`, `done`, or `failed`.
    pub state: String,
    /// The reason why it is stuck or failed.
    pub reason: Option<String>,
    /// Files, or bytes of a table.
    pub total: u64,
    pub done: u64,
    /// Answered files or rows.
    pub answered: u64,
    /// Files or rows that failed.
    pub failed: u64,
    /// The first errors, with the numbers of their files or rows, from 0.
    pub errors: Vec<ItemError>,
    /// The versions that answered, each with its number of files or rows.
    pub model_versions: std::collections::BTreeMap<String, u64>,
    /// The times since the start of the daemon at which it paused for callers.
    pub pauses: u64,
    /// The folder of its results; `null` for a job whose result is fetched.
    pub results: Option<PathBuf>,
    /// RFC 3339.
    pub added_at: String,
    pub ended_at: Option<String>,
    /// The time at which it is removed.
    pub kept_until: Option<String>,
}

impl JobDocument {
    pub fn new(job: &Job, queue: &JobQueue) -> Self {
        let Job { id, spec, progress, activity, pauses, problem, end } = job;
        let state = match (end, problem, activity) {
            (Some(end), ..) if end.error.is_some() => "failed",
            (Some(_), ..) => "done",
            (None, Some(_), _) => "stuck",
            (None, None, JobActivity::Waiting) => "waiting",
            (None, None, JobActivity::Running) => "running",
            (None, None, JobActivity::Paused) => "paused",
        };
        let results = match &spec.source {
            JobSource::Sent => None,
            JobSource::Folder { folder, out, .. } => Some(out.as_ref().unwrap_or(folder).clone()),
        };
        Self {
            id: id.to_string(),
            owner: spec.owner.principal().to_string(),
            model: spec.model.clone(),
            kind: spec.kind,
            window: spec.window,
            state: state.to_owned(),
            reason: end.as_ref().and_then(|end| end.error.clone()).or_else(|| problem.clone()),
            total: spec.total,
            done: progress.done,
            answered: progress.answered,
            failed: progress.failed,
            errors: progress.errors.clone(),
            model_versions: progress.versions.clone(),
            pauses: *pauses,
            results,
            added_at: clock::rfc3339(spec.added_ms),
            ended_at: end.as_ref().map(|end| clock::rfc3339(end.at_ms)),
            kept_until: end.as_ref().map(|end| clock::rfc3339(queue.kept_until_ms(end))),
        }
    }
}

/// The body of a request for a job on files of the owner.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathRequest {
    model: ModelName,
    /// A folder, a file of CSV, or another file, below a folder of `jobs.folders`.
    path: PathBuf,
    /// The folder of the results; the default is that of the input.
    #[serde(default)]
    out: Option<PathBuf>,
    #[serde(default)]
    window: Option<DailyWindow>,
}

/// A job that is asked for, before it has an owner.
struct WantedJob {
    model: ModelName,
    window: Option<DailyWindow>,
    kind: JobKind,
    source: JobSource,
    total: u64,
    part: InputPart,
    content: Vec<u8>,
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        let status = match &error {
            QueueError::Unknown => StatusCode::NOT_FOUND,
            QueueError::TooMany { .. } | QueueError::TooLarge { .. } | QueueError::DiskFull { .. } => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            QueueError::Files(error) if durable::is_full(error) => StatusCode::INSUFFICIENT_STORAGE,
            QueueError::Files(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

fn may_see(job: &Job, caller: &Caller) -> bool {
    caller.access.allows(Permission::Administer) || job.spec.owner.principal() == caller.principal
}

/// `GET /jobs`.
async fn list(State(served): State<JobsHttpState>, Extension(caller): Extension<Caller>) -> Response {
    let mut jobs = served.queue.jobs();
    jobs.retain(|job| may_see(job, &caller));
    json(&JobsDocument { jobs: jobs.iter().map(|job| JobDocument::new(job, &served.queue)).collect() })
}

/// The job of a path, which the caller may see.
fn job(served: &JobsHttpState, path: &PathParts, caller: &Caller) -> Result<Job, ApiError> {
    let id = path.0.get("id").and_then(|id| TimeId::parse(id.as_ref()));
    let job = id.and_then(|id| served.queue.job(&id)).filter(|job| may_see(job, caller));
    job.ok_or_else(|| QueueError::Unknown.into())
}

/// `GET /jobs/{id}`.
async fn show(
    State(served): State<JobsHttpState>,
    path: PathParts,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let job = job(&served, &path, &caller)?;
    Ok(json(&JobDocument::new(&job, &served.queue)))
}

/// `POST /jobs/{id}/remove`.
async fn remove(
    State(served): State<JobsHttpState>,
    path: PathParts,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let job = job(&served, &path, &caller)?;
    let (queue, id) = (served.queue.clone(), job.id.clone());
    let removal = async move { queue.remove(&id, &caller.principal).await };
    served.context.run_to_completion(removal).await??;
    Ok(json(&JobDocument::new(&job, &served.queue)))
}

/// `POST /jobs`: JSON names files of the owner; any other body is the input itself, with `?model=NAME`.
async fn add(
    State(served): State<JobsHttpState>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let received = body::read(&parts, body, &served.context).await?;
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let wanted = if kind == "application/json" {
        let request: PathRequest = serde_json::from_slice(&received.bytes).map_err(|error| bad(error.to_string()))?;
        let config = served.queue.config().clone();
        blocking(move || of_path(&config, request)).await?
    } else {
        of_body(parts.uri.query().unwrap_or_default(), &kind, &received.bytes)?
    };
    check_model(&served.serving, &wanted, &caller.principal)?;

    let owner = JobOwner::of(&caller.principal)
        .ok_or_else(|| ApiError::new(StatusCode::FORBIDDEN, "this caller adds no jobs"))?;
    let WantedJob { model, window, kind, source, total, part, content } = wanted;
    let window = window.or(served.queue.config().window);
    let added_ms = clock::FLOOR.now_millis();
    let spec = JobSpec { form: FORMAT_VERSION, owner, model, window, added_ms, kind, source, total };
    let queue = served.queue.clone();
    let adding = async move { queue.add(spec, part, content, &caller.principal).await };
    let job = served.context.run_to_completion(adding).await??;
    Ok(json(&JobDocument::new(&job, &served.queue)))
}

/// Refuses a job whose model is not here, or takes other inputs.
fn check_model(serving: &Serving, wanted: &WantedJob, caller: &Principal) -> Result<(), ApiError> {
    let name = &wanted.model;
    let input = serving.pin(name, None, caller)?.model.input();
    match (wanted.kind, input) {
        (_, None) => Err(bad(format!("the model '{name}' takes only tensors, and jobs have files or rows"))),
        (JobKind::Table, Some(PipelineInput::Rows)) => Ok(()),
        (JobKind::Files, Some(PipelineInput::Rows)) => {
            Err(bad(format!("the model '{name}' takes rows: name a file that ends in .csv, or send text/csv")))
        }
        (JobKind::Table, Some(input)) => Err(bad(format!("the model '{name}' takes {}, and no rows", input.plural()))),
        (JobKind::Files, Some(_)) => Ok(()),
    }
}

/// A job whose input is the body of the request.
fn of_body(query: &str, kind: &str, content: &Bytes) -> Result<WantedJob, ApiError> {
    let (mut model, mut window) = (None, None);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("model", name)) if model.is_none() => {
                model = Some(name.parse::<ModelName>().map_err(|error| bad(error.to_string()))?);
            }
            Some(("window", text)) if window.is_none() => {
                window = Some(text.replace("%3A", ":").parse::<DailyWindow>().map_err(bad)?);
            }
            _ => return Err(bad(format!("unknown query {part:?}: expected model=NAME and window=HH:MM-HH:MM"))),
        }
    }
    let model = model.ok_or_else(|| bad("name the model: /jobs?model=NAME"))?;
    if content.is_empty() {
        return Err(bad("the body is empty: send a document, an image, a text or CSV"));
    }
    let kind = if kind == "text/csv" { JobKind::Table } else { JobKind::Files };
    let total = if kind == JobKind::Table { content.len() as u64 } else { 1 };
    let (source, part) = (JobSource::Sent, InputPart::Sent);
    Ok(WantedJob { model, window, kind, source, total, part, content: content.to_vec() })
}

/// A job on files of the owner.
fn of_path(config: &JobsConfig, request: PathRequest) -> Result<WantedJob, ApiError> {
    let PathRequest { model, path, out, window } = request;
    let outside = |path: &Path| {
        let message = format!("{} is in no folder of jobs.folders: add its folder there", path.display());
        ApiError::new(StatusCode::FORBIDDEN, message)
    };
    let wrong = |error: std::io::Error| bad(error.to_string());
    let (root, rest) = config.folder_of(&path).ok_or_else(|| outside(&path))?;
    if let Some(out) = &out {
        let (root, rest) = config.folder_of(out).ok_or_else(|| outside(out))?;
        work::open_below(root, rest).map_err(wrong)?;
    }
    if let Ok(folder) = work::open_below(root, rest) {
        let names = work::listed(&folder).map_err(wrong)?;
        if names.is_empty() {
            return Err(bad(format!("{} has no files: folders in it are not read", path.display())));
        }
        if names.len() > FILES_MAX {
            return Err(bad(format!("{} has more than {FILES_MAX} files: make several jobs", path.display())));
        }
        let content = work::stored_names(names.iter().map(std::ffi::OsString::as_os_str));
        let source = JobSource::Folder { folder: path, out, stamp: None };
        let (kind, total) = (JobKind::Files, names.len() as u64);
        return Ok(WantedJob { model, window, kind, source, total, part: InputPart::Files, content });
    }
    let (parent, name) = rest.parent().zip(rest.file_name()).ok_or_else(|| bad("it names no file"))?;
    let folder = path.parent().unwrap_or(root).to_owned();
    let stamp = work::open_below(root, parent).and_then(|folder| folder.stamp(name)).map_err(wrong)?;
    let stamp: FileStamp = stamp.ok_or_else(|| bad(format!("{} is no regular file", path.display())))?;
    let is_table = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    let (kind, total) = if is_table { (JobKind::Table, stamp.bytes) } else { (JobKind::Files, 1) };
    let content = work::stored_names([name]);
    let source = JobSource::Folder { folder, out, stamp: is_table.then_some(stamp) };
    Ok(WantedJob { model, window, kind, source, total, part: InputPart::Files, content })
}

/// `GET /jobs/{id}/result`: lines of JSON, or CSV.
async fn result(
    State(served): State<JobsHttpState>,
    path: PathParts,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let job = job(&served, &path, &caller)?;
    let conflict = |message: String| ApiError::new(StatusCode::CONFLICT, message);
    if let JobSource::Folder { folder, out, .. } = &job.spec.source {
        let folder = out.as_ref().unwrap_or(folder).display();
        return Err(conflict(format!("the results of this job are files in {folder}")));
    }
    if job.end.is_none() {
        return Err(conflict("this job has not ended: ask for it later".to_owned()));
    }
    let (store, id) = (served.queue.store().clone(), job.id.clone());
    let opened = blocking(move || JournalReader::open(&store.journal(&id), store.cipher(&id)?)).await;
    let reader = opened.map_err(QueueError::from)?;
    let account = served.context.memory().account(caller.principal);
    let lines = stream::try_unfold(reader, move |reader| {
        let account = account.clone();
        async move {
            let Some(mut reader) = reader else { return Ok(None) };
            let (reader, next) = blocking(move || {
                let next = reader.next();
                (reader, next)
            })
            .await;
            let Some((_, content)) = next? else {
                // Removed or damaged: no client takes the answer for a whole one.
                let is_whole = !reader.end().is_damaged;
                return if is_whole { Ok(None) } else { Err(std::io::Error::other("the result is damaged")) };
            };
            let content = account.force_reserve(content.len()).attach(content.into());
            Ok(Some((content, Some(reader))))
        }
    });
    let form = if job.spec.kind == JobKind::Table { RowsForm::Csv } else { RowsForm::JsonLines };
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_table_or_one_file_and_its_query_is_strict() {
        let of = |query: &str, kind: &str| of_body(query, kind, &Bytes::from_static(b"a\n1\n"));
        let table = of("model=m&window=22%3A00-06%3A00", "text/csv").unwrap();
        assert_eq!((table.kind, table.total, table.window), (JobKind::Table, 4, Some("22:00-06:00".parse().unwrap())));
        assert_eq!(of("model=m", "application/pdf").unwrap().kind, JobKind::Files);
        for wrong in ["", "model=a/b", "model=m&model=n", "model=m&x=1", "model=m&window=1"] {
            assert_eq!(of(wrong, "text/csv").err().unwrap().status, StatusCode::BAD_REQUEST, "{wrong}");
        }
        assert!(of_body("model=m", "text/csv", &Bytes::new()).is_err());
    }

    #[test]
    fn a_path_outside_the_listed_folders_is_forbidden() {
        let folder = tempfile::tempdir().unwrap();
        let config = JobsConfig { folders: vec![folder.path().to_owned()], ..JobsConfig::default() };
        let of = |path: &Path, out: Option<PathBuf>| {
            of_path(&config, PathRequest { model: "m".parse().unwrap(), path: path.to_owned(), out, window: None })
        };
        let status = |path: &Path, out: Option<PathBuf>| of(path, out).err().unwrap().status.as_u16();
        assert_eq!(status(Path::new("/etc/passwd"), None), 403);
        assert_eq!(status(folder.path(), None), 400);
        assert_eq!(status(&folder.path().join("none.csv"), None), 400);
        for name in ["b.csv", "a.png", ".hidden"] {
            durable::replace(&folder.path().join(name), b"x\n1\n").unwrap();
        }
        assert_eq!(status(folder.path(), Some("/etc".into())), 403);
        let all = of(folder.path(), None).unwrap();
        assert_eq!((all.kind, all.total, all.content.as_slice()), (JobKind::Files, 2, &b"a.png\0b.csv\0"[..]));
        let table = of(&folder.path().join("b.csv"), None).unwrap();
        assert_eq!((table.kind, table.total, table.content.as_slice()), (JobKind::Table, 4, &b"b.csv\0"[..]));
    }
}
