//! The routes of the catalogue and of uploads.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::{Stream, TryStreamExt};
use ledge_base::clock;
use ledge_base::durable;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::authentication::Caller;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::handler_context::{BodyLimits, HandlerContext};
use ledge_part::reply::json;
use ledge_part::route::needs::{ADMINISTER, OPERATE, VIEW};
use ledge_part::route::{PathParts, Route, RouteScope};
use ledge_service::audit_event::AuditEvent;
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use serde::Serialize;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::folder::MadeModelFolder;
use super::state::{CatalogueState, CatalogueView};
use super::upload::{UploadError, receive};
use super::{CatalogueDescription, CatalogueError, CatalogueModel, folder};

/// The most bytes behind a refused archive, or behind its end, that are read so that the caller gets the answer.
const DISCARDED_BYTES_MAX: u64 = 8 << 20;

/// The least rate of an upload, in bytes a second, so that a slow upload cannot hold the only permit for changes for
/// long.
const UPLOAD_BYTES_PER_S_MIN: u64 = 10_000;

/// The time after which the rate is judged.
const UPLOAD_RATE_AFTER: Duration = Duration::from_mins(1);

/// The routes of the catalogue.
pub const ROUTES: &[Route<CatalogueHttpState>] = &[
    Route::get("/catalogue", VIEW, || get(catalogue)).scope(RouteScope::Box),
    Route::post("/catalogue/refresh", OPERATE, || post(refresh))
        .scope(RouteScope::Box)
        .recorded_as("catalogue_refresh"),
    Route::post("/catalogue/models/{name}/add", OPERATE, || post(add)).scope(RouteScope::Box).audited().caller(),
    Route::post("/catalogue/models/{name}/remove", ADMINISTER, || post(remove)).scope(RouteScope::Box).audited(),
    Route::post("/catalogue/models/{name}/upload", ADMINISTER, || post(upload))
        .scope(RouteScope::Box)
        .audited()
        .caller(),
];

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct CatalogueHttpState {
    pub(super) state: Arc<CatalogueState>,
    pub(super) context: HandlerContext,
}

#[derive(Serialize)]
struct CatalogueDocument<'a> {
    /// The catalogue; `null` where none is configured.
    address: Option<String>,
    /// The folder of the owner's models.
    folder: String,
    /// The most bytes of an upload; 0 where none is allowed.
    upload_max_bytes: u64,
    /// The time at which the list was read, in RFC 3339; `null` before the first.
    read_at: Option<String>,
    models: Vec<ModelDocument<'a>>,
    /// The models of this box that a catalogue or an upload brought, and that can be removed.
    brought: Vec<ModelName>,
    adding: Option<AdditionDocument<'a>>,
    last_addition: Option<ResultDocument<'a>>,
}

#[derive(Serialize)]
struct ModelDocument<'a> {
    name: &'a ModelName,
    #[serde(flatten)]
    description: &'a CatalogueDescription,
    bytes: u64,
    state: &'static str,
    is_added: bool,
    problem: Option<&'a str>,
}

#[derive(Serialize)]
struct AdditionDocument<'a> {
    name: &'a ModelName,
    bytes: u64,
    fetched_bytes: u64,
}

#[derive(Serialize)]
struct ResultDocument<'a> {
    name: &'a ModelName,
    at: String,
    error: Option<&'a str>,
}

/// `GET /catalogue`: the list that was read last, and the addition under way. Reads no network.
async fn catalogue(State(served): State<CatalogueHttpState>) -> Response {
    document(served.state).await
}

/// `POST /catalogue/refresh`: reads the signed list of the catalogue.
async fn refresh(State(served): State<CatalogueHttpState>, request: Request) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    served.context.run_to_completion(served.state.clone().refresh()).await??;
    Ok(document(served.state).await)
}

/// `POST /catalogue/models/{name}/add`: begins to fetch a model, which is loaded once it is here.
async fn add(
    State(served): State<CatalogueHttpState>,
    PathParts(path): PathParts,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    served.state.clone().begin_addition(name(&path)?, caller)?;
    let mut response = document(served.state).await;
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// `POST /catalogue/models/{name}/remove`: takes a model out of service and removes its folder, if all of it came from
/// a catalogue or an upload.
async fn remove(
    State(served): State<CatalogueHttpState>,
    PathParts(path): PathParts,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), served.context.limits()).await;
    let (name, state) = (name(&path)?, served.state.clone());
    let removal = async move {
        let _turn = state.turn()?;
        let (removing, unwanted) = (state.clone(), name.clone());
        blocking(move || folder::remove(removing.folder(), &unwanted, false)).await?;
        state.audit.record(&principal, AuditEvent::ModelRemoved { model: name.clone() });
        // Unloads it, or loads the package's model of this name.
        let refreshed = state.repository.refresh_model(&name, &principal).await;
        refreshed
            .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("it is removed, but {error}")))
    };
    served.context.run_to_completion(removal).await??;
    Ok(document(served.state).await)
}

#[derive(Serialize)]
struct UploadDocument {
    name: ModelName,
    folder: String,
}

/// `POST /catalogue/models/{name}/upload`: a model's folder as a tar archive. The model is there and loaded with the
/// answer, or nothing of it: it is tried in a separate process first. The archive may be as large as
/// `[catalogue] upload_max_mb`; each part of it must arrive within `http.body_timeout_ms`, and all of it at
/// [`UPLOAD_BYTES_PER_S_MIN`].
async fn upload(
    State(served): State<CatalogueHttpState>,
    PathParts(path): PathParts,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let CatalogueHttpState { state, context } = served;
    let begun = name(&path).and_then(|name| {
        if state.config.upload_max_mb == 0 {
            return Err(UploadError::Off.into());
        }
        state.check_name(&name)?;
        Ok((name, state.turn()?))
    });
    let (name, turn) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            body::discard_unless_expected(&parts.headers, body, context.limits()).await;
            return Err(failure);
        }
    };

    let arriving = arriving(body, context.limits(), state.shutdown.clone());
    let mut archive = SyncIoBridge::new(StreamReader::new(Box::pin(arriving)));
    let work = async move {
        let _turn = turn;
        let (receiving, wanted, asking) = (state.clone(), name.clone(), caller.clone());
        let limits = state.upload_limits();
        let received = blocking(move || {
            let may_appear = || Ok(receiving.may_change(&asking)?);
            let received = receive(&mut archive, &wanted, receiving.folder(), limits, may_appear);
            // The caller reads the answer once it has sent everything.
            let _ = io::copy(&mut archive.take(DISCARDED_BYTES_MAX), &mut io::sink());
            received
        });
        let MadeModelFolder { folder, digest } = received.await?;
        let principal = &caller.principal;
        let added = AuditEvent::ModelAdded { model: name.clone(), origin: "upload".into(), digest };
        state.audit.record(principal, added);
        if let Err(error) = state.repository.load(&name, principal).await {
            // Otherwise a model that never loads would stay, which only a shell could remove.
            let (removing, unwanted) = (state.clone(), name.clone());
            blocking(move || folder::remove(removing.folder(), &unwanted, true)).await?;
            state.audit.record(principal, AuditEvent::ModelRemoved { model: name.clone() });
            let _ = state.repository.refresh_model(&name, principal).await;
            let message = format!("the upload is removed again, because the model does not load: {error}");
            return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
        Ok(UploadDocument { name, folder: folder.display().to_string() })
    };
    let uploaded = context.run_to_completion(work).await??;
    let mut response = json(&uploaded);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// The parts of a body as they arrive. A part that is late, a slow sender and the shutdown end it with an error.
fn arriving(
    body: Body,
    limits: &BodyLimits,
    shutdown: Shutdown,
) -> impl Stream<Item = io::Result<bytes::Bytes>> + Send + use<> {
    let (timeout, begun) = (limits.timeout, Instant::now());
    let parts = Box::pin(body.into_data_stream().map_err(io::Error::other));
    futures_util::stream::unfold((parts, 0), move |(mut parts, mut arrived)| {
        let shutdown = shutdown.clone();
        async move {
            let failed = |message: String| Err(io::Error::new(io::ErrorKind::TimedOut, message));
            let next = tokio::select! {
                next = tokio::time::timeout(timeout, parts.try_next()) => next.unwrap_or_else(|_| {
                    failed(format!("no data arrived for {} ms (http.body_timeout_ms)", timeout.as_millis()))
                }),
                () = shutdown.requested() => failed("the service is stopping".to_owned()),
            };
            arrived += next.as_ref().ok().and_then(Option::as_ref).map_or(0, |part| part.len() as u64);
            let is_slow = begun.elapsed() > UPLOAD_RATE_AFTER
                && arrived / begun.elapsed().as_secs().max(1) < UPLOAD_BYTES_PER_S_MIN;
            let next = if is_slow && matches!(next, Ok(Some(_))) {
                failed(format!("fewer than {UPLOAD_BYTES_PER_S_MIN} bytes arrive in a second"))
            } else {
                next
            };
            next.transpose().map(|part| (part, (parts, arrived)))
        }
    })
}

fn name(path: &std::collections::HashMap<String, String>) -> Result<ModelName, ApiError> {
    let name = path.get("name").map_or("", String::as_str);
    name.parse().map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("the name of the model: {error}")))
}

async fn document(state: Arc<CatalogueState>) -> Response {
    let CatalogueView { list, addition, last } = state.seen().clone();
    let (read_at_ms, models) = list.map_or((None, Arc::from([])), |(at_ms, models)| (Some(at_ms), models));
    blocking(move || {
        let row = |model: &'_ CatalogueModel| {
            let state = model.presence(state.folder());
            (state.name(), state != super::CataloguePresence::Absent)
        };
        let rows: Vec<_> = models.iter().map(|model| (model, row(model))).collect();
        json(&CatalogueDocument {
            // A file of the package that cannot be used is an error of the next reading.
            address: state.config.source(None).ok().flatten().map(|source| source.address.to_string()),
            folder: state.folder().display().to_string(),
            upload_max_bytes: state.upload_limits().bytes,
            read_at: read_at_ms.map(clock::rfc3339),
            models: rows
                .into_iter()
                .map(|(model, (state, is_added))| ModelDocument {
                    name: &model.name,
                    description: &model.description,
                    bytes: model.bytes(),
                    state,
                    is_added,
                    problem: model.problem.as_deref(),
                })
                .collect(),
            brought: folder::brought(state.folder()),
            adding: addition.as_ref().map(|addition| AdditionDocument {
                name: &addition.name,
                bytes: addition.bytes,
                fetched_bytes: addition.fetched.load(Ordering::Relaxed),
            }),
            last_addition: last.as_ref().map(|last| ResultDocument {
                name: &last.name,
                at: clock::rfc3339(last.at_ms),
                error: last.error.as_deref(),
            }),
        })
    })
    .await
}

impl From<CatalogueError> for ApiError {
    fn from(error: CatalogueError) -> Self {
        let status = match &error {
            CatalogueError::NotAdmitted => StatusCode::UNAUTHORIZED,
            CatalogueError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            CatalogueError::NoCatalogue
            | CatalogueError::Managed { .. }
            | CatalogueError::Busy { .. }
            | CatalogueError::Unusable { .. }
            | CatalogueError::Exists { .. }
            | CatalogueError::Link { .. }
            | CatalogueError::Own { .. } => StatusCode::CONFLICT,
            CatalogueError::Unknown { .. } | CatalogueError::NoModel { .. } => StatusCode::NOT_FOUND,
            CatalogueError::Trust { .. } | CatalogueError::Fetch { .. } => StatusCode::BAD_GATEWAY,
            CatalogueError::Room { .. } => StatusCode::INSUFFICIENT_STORAGE,
            CatalogueError::File { error, .. } if durable::is_full(error) => StatusCode::INSUFFICIENT_STORAGE,
            CatalogueError::Publisher(_)
            | CatalogueError::RootFile { .. }
            | CatalogueError::OtherRoot { .. }
            | CatalogueError::Damaged { .. }
            | CatalogueError::Store(_)
            | CatalogueError::Changed { .. }
            | CatalogueError::File { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let error = match error {
            UploadError::Catalogue(error) => return error.into(),
            error => error,
        };
        let status = match &error {
            UploadError::Catalogue(_) => StatusCode::INTERNAL_SERVER_ERROR,
            UploadError::Off => StatusCode::CONFLICT,
            UploadError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            UploadError::Archive(error) if error.kind() == io::ErrorKind::TimedOut => StatusCode::REQUEST_TIMEOUT,
            UploadError::Archive(_)
            | UploadError::Path { .. }
            | UploadError::Kind { .. }
            | UploadError::Empty
            | UploadError::Files => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}
