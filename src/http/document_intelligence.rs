//! `/documentintelligence`: the interface of Azure AI Document Intelligence, which software for documents calls; and
//! `PUT /process`, that of Open WebUI's external loader.
//!
//! Files, in reading order:
//! * `document_intelligence/config.rs` - `[documents]`
//! * `document_intelligence/operations.rs` - analyses that were begun, and their results

pub mod config;
mod operations;

use std::collections::HashMap;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use ledge_base::clock;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::file_format::{FileFormat, UnexpectedFile};
use ledge_identity::access::CallerAccess;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::reply::json_bytes;
use ledge_part::route::PathParts;
use ledge_protocol::document_call::{DocumentCall, read_document};
use ledge_protocol::document_intelligence::{
    AnalyzeOptions, AnalyzeRequestBody, DocumentModel, failed_operation, loaded_pages, running_operation,
    succeeded_operation,
};
use ledge_protocol::searchable::searchable_pdf;
use ledge_service::off_thread::off_thread;
use serde_json::value::RawValue;

pub use self::operations::Operations;
use self::operations::{Operation, OperationForgotten, OperationId, OperationOutcome};
use super::App;
use super::browser;
use super::call_headers::{self, CallHeaders};
use super::guard;
use super::reply::AnalysisErrorResponse;

/// The root of the interface's paths.
const ROOT: &str = "/documentintelligence";

/// The end of the path of an analysis.
const ANALYZE: &str = ":analyze";

/// The header with the address of the result.
const OPERATION_LOCATION: HeaderName = HeaderName::from_static("operation-location");

/// The time after which to ask for the result, in milliseconds. Most receipts take a second.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const RETRY_AFTER_MS_VALUE: HeaderValue = HeaderValue::from_static("300");

/// Bytes of an operation for each byte of the reader's answer, at most.
const OPERATION_BYTES_PER_BYTE: usize = 4;

/// The longest host name that an error repeats, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// True for a path of this interface, also one without a route.
pub(super) fn is_below(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The values of the parts of a path, by their names.
type PathValues = HashMap<String, String>;

/// `POST /documentintelligence/documentModels/{document_model}:analyze`: begins an analysis.
pub async fn analyze(
    State(app): State<App>,
    path: Result<PathParts, ApiError>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, AnalysisErrorResponse> {
    let PathParts(path) = path?;
    let (parts, body) = request.into_parts();
    let (model, options, headers, address) = match begin(&app, &path, &parts, &principal, &access) {
        Ok(begun) => begun,
        Err(failure) => {
            body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
            return Err(failure);
        }
    };
    let document = receive(&app, &parts, body, &principal).await?;
    let created_ms = clock::unix_millis();
    let (id, forgotten) = app.operations().begin(&principal, model, created_ms, app.documents().max_operations)?;
    let version = options.api_version;
    let location = format!("{address}{ROOT}/documentModels/{}/analyzeResults/{id}?api-version={version}", model.id());
    let location = HeaderValue::try_from(location).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the host of the request is no part of an address: {error}"))
    })?;
    let task =
        AnalysisTask { app: app.clone(), id, forgotten, created_ms, principal, headers, document, model, options };
    let shutdown = app.context().shutdown().clone();
    app.context().shutdown().spawn(async move {
        tokio::select! {
            () = task.run() => {}
            // Nobody can ask for the result any more.
            () = shutdown.requested() => {}
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response.headers_mut().insert(OPERATION_LOCATION, location);
    response.headers_mut().insert(RETRY_AFTER_MS, RETRY_AFTER_MS_VALUE);
    Ok(response)
}

/// A document that was received, and the account for what is made of it.
struct Document {
    bytes: Bytes,
    account: MemoryAccount,
}

/// The terms of an analysis before its document is read: the model, the options, and the address of this box.
type Begun = (DocumentModel, AnalyzeOptions, CallHeaders, String);

fn begin(
    app: &App,
    path: &PathValues,
    parts: &Parts,
    principal: &Principal,
    access: &CallerAccess,
) -> Result<Begun, AnalysisErrorResponse> {
    let asked = value(path, "document_model");
    let model = asked.strip_suffix(ANALYZE).unwrap_or(asked).parse()?;
    if !asked.ends_with(ANALYZE) {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("send a POST to {asked}{ANALYZE}")).into());
    }
    let options = AnalyzeOptions::parse(parts.uri.query().unwrap_or_default())?;
    let headers = CallHeaders::read(&parts.headers, Instant::now())?;
    let reader = &app.documents().model;
    guard::check_model(app, parts, principal, access, reader)?;
    let location = own_address(app, parts)?;
    // A large body is not read for a call that has no place in the queue.
    let refused = || app.serving().refusal(reader, None, headers.priority, principal);
    match body::is_large(&parts.headers).then(refused).flatten() {
        Some(refused) => Err(ApiError::from(refused).into()),
        None => Ok((model, options, headers, location)),
    }
}

/// The address by which the caller reaches this box. A foreign one would send the caller's key elsewhere.
fn own_address(app: &App, parts: &Parts) -> Result<String, ApiError> {
    let in_uri = parts.uri.authority().map(Authority::as_str);
    let host = in_uri.or_else(|| parts.headers.get(header::HOST)?.to_str().ok()).unwrap_or_default();
    if let Some(public) = app.documents().public_url.as_ref().filter(|public| public.is_of(host)) {
        return Ok(public.to_string());
    }
    if host.is_empty() || !browser::is_own_host(host.as_bytes(), &app.config().allowed_hosts) {
        let shown: String = host.chars().take(SHOWN_CHARS_MAX).collect();
        let message = format!(
            "the host {shown:?} of the request is not a known name of this box, so it cannot be in the address of the \
             result: add the name to http.allowed_hosts"
        );
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let scheme = parts.extensions.get::<Scheme>().unwrap_or(&Scheme::HTTP);
    Ok(format!("{scheme}://{host}"))
}

/// Reads the document out of a body: JSON with base64, or the file itself.
async fn receive(
    app: &App,
    parts: &Parts,
    body: Body,
    principal: &Principal,
) -> Result<Document, AnalysisErrorResponse> {
    let kind = call_headers::content_type(&parts.headers).unwrap_or_default().to_ascii_lowercase();
    let is_json = kind.starts_with("application/json");
    let is_file = ["application/octet-stream", "application/pdf", "image/"].iter().any(|start| kind.starts_with(start));
    if !is_json && !is_file {
        body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
        let message = format!("content type {kind:?} is not read: send JSON, or a file as application/octet-stream");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message).into());
    }
    // Results that wait for the caller give way to its next document.
    while !body::has_room(parts, app.context()) && app.operations().make_room(principal) {}
    let ReceivedBody { bytes, account } = body::read(parts, body, app.context()).await?;
    let bytes = if is_json {
        let mut copies = account.take(3 * bytes.len()).map_err(ApiError::from)?;
        let document = off_thread(&account, move || AnalyzeRequestBody::document(&bytes)).await?;
        // No more than was counted.
        let _ = copies.resize(document.len());
        copies.attach(document.into())
    } else {
        bytes
    };
    let refused = |error: UnexpectedFile| ApiError::new(StatusCode::BAD_REQUEST, error.to_string());
    UnexpectedFile::unless_document(&bytes).map_err(refused).map_err(AnalysisErrorResponse::of_document)?;
    Ok(Document { bytes, account })
}

/// An analysis that runs.
struct AnalysisTask {
    app: App,
    id: OperationId,
    forgotten: OperationForgotten,
    created_ms: u64,
    principal: Principal,
    headers: CallHeaders,
    document: Document,
    model: DocumentModel,
    options: AnalyzeOptions,
}

impl AnalysisTask {
    /// Runs to its end, and keeps the result for its time.
    async fn run(self) {
        let outcome = self.outcome().await.unwrap_or_else(|failure| OperationOutcome {
            body: failed_operation(self.created_ms, &failure).into(),
            pdf: None,
        });
        let Self { app, id, forgotten, document, .. } = self;
        // It is not kept with its result.
        drop(document);
        app.operations().end(id, outcome);
        // A result that has given way to another one is not waited for.
        let _ = tokio::time::timeout(app.documents().keep_results(), forgotten).await;
        app.operations().forget(id);
    }

    async fn outcome(&self) -> Result<OperationOutcome, ApiError> {
        let Document { bytes, account } = &self.document;
        let answer = read(&self.app, bytes, account, self.headers, &self.principal).await?;
        let pdf = if self.options.wants_pdf {
            Some(searchable_pdf(bytes.clone(), answer.get(), account.clone(), self.headers.deadline).await?)
        } else {
            None
        };
        let mut memory = account.take(OPERATION_BYTES_PER_BYTE * answer.get().len()).map_err(ApiError::from)?;
        let (created_ms, model, options) = (self.created_ms, self.model, self.options.clone());
        let is_pdf = FileFormat::of(bytes) == Some(FileFormat::Pdf);
        let body = off_thread(account, move || {
            let body = succeeded_operation(created_ms, answer.get(), (model, &options), is_pdf)?;
            memory.resize(body.len()).map_err(ApiError::from)?;
            Ok::<_, ApiError>(memory.attach(body.into()))
        });
        Ok(OperationOutcome { body: body.await?, pdf })
    }
}

/// The reader's answer to a document.
async fn read(
    app: &App,
    document: &Bytes,
    account: &MemoryAccount,
    CallHeaders { priority, deadline }: CallHeaders,
    principal: &Principal,
) -> Result<Box<RawValue>, ApiError> {
    let model = &app.documents().model;
    let call = DocumentCall { model, document, account, priority, deadline, principal };
    Ok(read_document(app.serving(), call).await?.document)
}

/// `GET /documentintelligence/documentModels/{document_model}/analyzeResults/{result}`.
pub async fn result(
    State(app): State<App>,
    path: Result<PathParts, ApiError>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, AnalysisErrorResponse> {
    let operation = find(&app, &path?.0, &request, &principal)?;
    let Some(OperationOutcome { body, .. }) = operation.outcome else {
        let mut response = json_bytes(running_operation(operation.created_ms));
        response.headers_mut().insert(RETRY_AFTER_MS, RETRY_AFTER_MS_VALUE);
        return Ok(response);
    };
    let account = app.context().memory().account(principal);
    Ok(body::compress_response(request.headers(), counted_body::counted_json(body), &account).await)
}

/// `GET /documentintelligence/documentModels/{document_model}/analyzeResults/{result}/pdf`.
pub async fn pdf(
    State(app): State<App>,
    path: Result<PathParts, ApiError>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, AnalysisErrorResponse> {
    let operation = find(&app, &path?.0, &request, &principal)?;
    let pdf = operation.outcome.and_then(|outcome| outcome.pdf).ok_or_else(|| {
        let message = "the analysis has no PDF: ask for it by output=pdf, and wait until the analysis has succeeded";
        ApiError::new(StatusCode::NOT_FOUND, message)
    })?;
    Ok(counted_body::counted(pdf, HeaderValue::from_static("application/pdf")))
}

fn value<'p>(path: &'p PathValues, name: &str) -> &'p str {
    path.get(name).map(String::as_str).unwrap_or_default()
}

fn find(app: &App, path: &PathValues, request: &Request, caller: &Principal) -> Result<Operation, ApiError> {
    AnalyzeOptions::parse(request.uri().query().unwrap_or_default())?;
    app.operations().find(value(path, "result"), value(path, "document_model").parse()?, caller)
}

/// `PUT /process`: the pages of a document, for Open WebUI.
pub async fn process(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let headers = CallHeaders::read(&parts.headers, Instant::now()).and_then(|headers| {
        let checked = guard::check_model(&app, &parts, &principal, &access, &app.documents().model);
        checked.map(|()| headers).map_err(|denied| denied.failure)
    });
    let headers = match headers {
        Ok(headers) => headers,
        Err(failure) => {
            body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
            return Err(failure);
        }
    };
    let ReceivedBody { bytes, account } = body::read(&parts, body, app.context()).await?;
    let answer = read(&app, &bytes, &account, headers, &principal).await?;
    let mut memory = account.take(2 * answer.get().len()).map_err(ApiError::from)?;
    let written = off_thread(&account, move || {
        let body = loaded_pages(answer.get())?;
        memory.resize(body.len()).map_err(ApiError::from)?;
        Ok::<_, ApiError>(memory.attach(body.into()))
    });
    Ok(counted_body::counted_json(written.await?))
}
