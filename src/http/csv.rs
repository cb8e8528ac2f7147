//! CSV to a model with a pipeline of rows: read, run and answered part by part, in constant memory.
//!
//! The first [`HELD_BACK_BYTES`] of the answer are held back until the body has ended. A mistake that is found by then
//! is answered with its status, and a small file has an answer of known length. A later mistake breaks the answer off,
//! without the last chunk, so that no client takes it for a whole one, and is logged.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesOrdered, StreamExt};
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::content::rows::RowsText;
use ledge_engine::pipeline::content::{CallContent, PipelineInput};
use ledge_models::repository::{LoadedModel, Pinned};
use ledge_models::serving::request::{InferRequest, InferResponse, Payload, ResultForm};
use ledge_models::serving::{Serving, ServingError};
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::counted_body;
use ledge_protocol::ModelTarget;
use ledge_protocol::call;
use ledge_protocol::csv_rows::{CsvError, CsvRows};
use ledge_protocol::row_answers::{RowAnswers, RowsForm};
use ledge_service::off_thread::off_thread;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::App;
use super::accept::accepted_weight;
use super::call_headers::CallHeaders;

/// The bytes of an answer that are held back while the body has not ended.
const HELD_BACK_BYTES: usize = 1 << 20;
/// The most bytes of a result that are written as lines on an async thread.
const INLINE_RESULT_BYTES_MAX: usize = 128 << 10;
/// The pause before a part that found no place is tried again. A queue of small models drains in less.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// True for a body of CSV.
pub fn is_csv(content_type: Option<&str>) -> bool {
    let kind = content_type.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("text/csv")
}

/// Answers CSV.
pub async fn infer(
    app: &App,
    target: ModelTarget,
    parts: &Parts,
    body: Body,
    terms: CallHeaders,
    principal: Principal,
) -> Result<Response, ApiError> {
    let arrived = std::time::Instant::now();
    let account = body::account(parts, app.context());
    let opened = open(app, &target, &parts.headers).map(|(model, form)| {
        let calls = PartCalls { serving: app.serving().clone(), model, terms, principal: principal.clone() };
        (form, calls)
    });
    let (form, calls) = match opened {
        Ok(opened) => opened,
        Err(refusal) => {
            body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
            return Err(refusal);
        }
    };
    let version = calls.model.version;
    let mut table = CsvCall {
        parts_at_a_time: calls.model.scale().max + 1,
        calls: Arc::new(calls),
        account: account.clone(),
        body: body.into_data_stream(),
        timeout: app.context().limits().timeout,
        rest: Bytes::new(),
        rows: CsvRows::default(),
        has_ended: false,
        running: FuturesOrdered::new(),
        answers: RowAnswers::new(form),
    };

    let (mut begin, mut hold) = (Vec::new(), account.hold());
    let is_whole = loop {
        let next = match table.next().await {
            Ok(Some(lines)) => hold.grow(lines.len()).map(|()| Some(lines)).map_err(ApiError::from),
            other => other,
        };
        match next {
            Ok(Some(lines)) => begin.extend_from_slice(&lines),
            Ok(None) => break true,
            Err(failure) => {
                // The sender reads the answer after it has sent everything.
                let rest = std::mem::replace(&mut table.body, Body::empty().into_data_stream());
                body::discard(Body::from_stream(rest), app.context().limits()).await;
                call::log_answered(&target.model, arrived, None, &principal, Err(&failure));
                return Err(failure);
            }
        }
        if begin.len() >= HELD_BACK_BYTES {
            break false;
        }
    };

    let begin = Bytes::from(begin);
    let mut response = if is_whole {
        call::log_answered(&target.model, arrived, None, &principal, Ok(version));
        let bytes = begin.len();
        let mut response = counted_body::keep_until_sent(Response::new(Body::from(begin)), hold);
        counted_body::mark_counted(&mut response, bytes);
        body::compress_response(&parts.headers, response, &account).await
    } else {
        let rest = stream::try_unfold((table, hold), move |(mut table, hold)| {
            let (target, principal) = (target.clone(), principal.clone());
            async move {
                match table.next().await {
                    Ok(lines) => {
                        if lines.is_none() {
                            call::log_answered(&target.model, arrived, None, &principal, Ok(version));
                        }
                        // Read by the connection when the caller has taken the part before it.
                        let counted = |lines: Vec<u8>| table.account.force_reserve(lines.len()).attach(lines.into());
                        Ok(lines.map(counted).map(|lines| (lines, (table, hold))))
                    }
                    Err(failure) => {
                        let (model, reason) = (&target.model, failure.message.as_str());
                        tracing::warn!(
                            name: "csv.aborted",
                            %model,
                            %principal,
                            reason,
                            "an answer to CSV was broken off"
                        );
                        Err(io::Error::other(failure.message))
                    }
                }
            }
        });
        Response::new(Body::from_stream(stream::iter([Ok(begin)]).chain(rest)))
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form.content_type()));
    Ok(response)
}

/// The version that answers all of a file, and the form of its answers.
fn open(app: &App, target: &ModelTarget, headers: &HeaderMap) -> Result<(Arc<LoadedModel>, RowsForm), ApiError> {
    let ModelTarget { model: name, version } = target;
    let model = app.serving().repository().pin(name, *version)?;
    if model.input() != Some(PipelineInput::Rows) {
        let sections = PipelineInput::Rows.sections();
        let message = format!("model '{name}' takes no rows: its model.toml has no {sections}. Send tensors");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    if body::content_encoding(headers)?.is_some() {
        let message = "CSV is read while it arrives, and not decompressed: send it without Content-Encoding";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let form = wanted_form(headers).ok_or_else(|| {
        let message = "CSV is answered with text/csv, or with application/x-ndjson, a JSON object a line";
        ApiError::new(StatusCode::NOT_ACCEPTABLE, message)
    })?;
    Ok((model, form))
}

/// The form that `Accept` prefers, of equal ones CSV; `None` if it excludes both.
fn wanted_form(headers: &HeaderMap) -> Option<RowsForm> {
    if !headers.contains_key(header::ACCEPT) {
        return Some(RowsForm::Csv);
    }
    let csv = accepted_weight(headers, &["text/csv", "text/*", "*/*"]);
    let lines = ["application/x-ndjson", "application/jsonl", "application/x-jsonlines"];
    let lines = lines.iter().map(|name| accepted_weight(headers, &[name, "application/*", "*/*"])).fold(0.0, f32::max);
    match (csv > 0.0, lines > csv) {
        (_, true) => Some(RowsForm::JsonLines),
        (true, false) => Some(RowsForm::Csv),
        (false, false) => None,
    }
}

/// The arguments of the call for each part of a file.
struct PartCalls {
    serving: Serving,
    model: Arc<LoadedModel>,
    terms: CallHeaders,
    principal: Principal,
}

impl PartCalls {
    /// Runs a part. A part that is refused for lack of room is tried again. For the first part, the caller gets the
    /// error instead.
    async fn run(self: Arc<Self>, part: RowsText, account: MemoryAccount) -> Result<InferResponse, ServingError> {
        let (is_first, since) = (part.first() == 0, Instant::now());
        let _rows = loop {
            match account.take(part.json().len()) {
                Ok(held) => break held,
                Err(_) if !is_first && since.elapsed() < self.model.timeout => tokio::time::sleep(RETRY_PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        };
        loop {
            let request = InferRequest {
                payload: Payload::Content(CallContent::Rows(part.clone()), ResultForm::Json),
                deadline: self.terms.deadline,
                priority: self.terms.priority,
                account: account.clone(),
            };
            // Each part is a separate call, which does not count in the trial of an update.
            let pinned = Pinned::unwatched(self.model.clone());
            match self.serving.infer(pinned, request, &self.principal).await {
                Err(error) if !is_first && error.retry_after().is_some() && since.elapsed() < self.model.timeout => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                answered => return answered,
            }
        }
    }
}

/// A file that is being read and answered.
struct CsvCall {
    calls: Arc<PartCalls>,
    account: MemoryAccount,
    body: BodyDataStream,
    /// The time for a part to arrive.
    timeout: Duration,
    /// The unread rest of the last piece of the body.
    rest: Bytes,
    rows: CsvRows,
    has_ended: bool,
    /// The parts in progress, in the order of the file.
    running: FuturesOrdered<BoxFuture<'static, Result<InferResponse, ServingError>>>,
    parts_at_a_time: usize,
    answers: RowAnswers,
}

impl CsvCall {
    /// The lines of the next part; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, ApiError> {
        let mut end = Instant::now() + self.timeout;
        loop {
            let answer = if self.has_ended || self.running.len() >= self.parts_at_a_time {
                self.running.next().await
            } else {
                tokio::select! {
                    biased;
                    Some(answer) = self.running.next() => Some(answer),
                    part = next_part(&mut self.body, &mut self.rest, &mut self.rows, end, self.timeout) => {
                        let mut part = part?;
                        if part.is_none() {
                            self.has_ended = true;
                            part = self.rows.finish().map_err(|error| csv_error(&error))?;
                        }
                        if let Some(part) = part {
                            let run = self.calls.clone().run(part, self.account.clone());
                            self.running.push_back(Box::pin(run));
                        }
                        end = Instant::now() + self.timeout;
                        continue;
                    }
                }
            };
            let Some(answer) = answer else { return Ok(None) };
            return self.lines(answer?).await.map(Some);
        }
    }

    /// The answer to a part as lines.
    async fn lines(&mut self, answer: InferResponse) -> Result<Vec<u8>, ApiError> {
        let result = answer.result.map_or_else(|| RawValue::NULL.to_owned(), |result| result.json);
        let lines = if result.get().len() <= INLINE_RESULT_BYTES_MAX {
            self.answers.lines(&result)
        } else {
            let mut answers = self.answers.clone();
            let (lines, answers) = off_thread(&self.account, move || (answers.lines(&result), answers)).await;
            self.answers = answers;
            lines
        };
        lines.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }
}

/// The next whole part of the body; `None` at its end. It may be dropped and called again.
async fn next_part(
    body: &mut BodyDataStream,
    rest: &mut Bytes,
    rows: &mut CsvRows,
    end: Instant,
    timeout: Duration,
) -> Result<Option<RowsText>, ApiError> {
    loop {
        if let Some(part) = rows.read(rest).map_err(|error| csv_error(&error))? {
            return Ok(Some(part));
        }
        let piece = tokio::time::timeout_at(end, body.next()).await.map_err(|_| {
            let message = format!(
                "no further {} rows arrived within {} ms (http.body_timeout_ms)",
                CsvRows::PART_ROWS,
                timeout.as_millis()
            );
            ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
        })?;
        match piece {
            Some(Ok(piece)) => *rest = piece,
            Some(Err(error)) => {
                return Err(ApiError::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")));
            }
            None => return Ok(None),
        }
    }
}

fn csv_error(error: &CsvError) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, error.to_string())
}
