//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;

use super::models::{PathParts, target};
use super::reply::{Failure, json, json_bytes};
use super::terms::HeaderTerms;
use super::{App, body};
use crate::pipeline::image::ImageFormat;
use crate::principal::Principal;
use crate::protocol::decode::{self, DecodedRequest, Target};
use crate::protocol::photograph::PhotographAnswer;
use crate::protocol::{ProtocolError, encode};
use crate::serving::request::{CacheOutcome, PhotographRequest};

/// Says how much of a body is JSON; what follows is binary tensor data.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Says what the response cache did.
const CACHE: &str = "x-ledge-cache";

/// JSON above this is not decoded on an async thread, which would keep other callers waiting.
const LARGE_JSON: usize = 256 << 10;

/// Answers an inference call: tensors in the protocol's framing, or a photograph.
pub async fn infer(
    State(app): State<App>,
    PathParts(path): PathParts,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let target = target(&path)?;
    let arrived = Instant::now();
    if body::is_large(&parts.headers) {
        let priority = HeaderTerms::read(&parts.headers, arrived)?.priority;
        if let Some(refused) = app.serving().refusal(&target.model, target.version, priority, &principal) {
            body::discard(body, app.config()).await;
            return Err(refused.into());
        }
    }
    let bytes = body::read(&parts.headers, body, app.config()).await?;
    let header_length = header_length(&parts.headers)?;
    let terms = HeaderTerms::read(&parts.headers, arrived)?;
    let is_photograph =
        header_length.is_none() && content_type(&parts.headers).is_some_and(|kind| kind.starts_with("image/"));
    let response = if is_photograph {
        let Target { model, version } = target;
        let request =
            PhotographRequest { model, version, photograph: bytes, deadline: terms.deadline, priority: terms.priority };
        let answer = app.serving().classify(request, &principal).await?;
        with_cache(answer.response.cache, json(&PhotographAnswer::new(&answer)))
    } else {
        let looks_like = ImageFormat::sniff(&bytes);
        let DecodedRequest { id, mut request, reply, .. } =
            decode(target, bytes, header_length, arrived).await.map_err(|error| match looks_like {
                Some(format) if header_length.is_none() => {
                    let kind = format.content_type();
                    Failure::new(
                        StatusCode::BAD_REQUEST,
                        format!("the body is a photograph: send it with 'Content-Type: {kind}'"),
                    )
                }
                _ => error.into(),
            })?;
        request.priority = request.priority.or(terms.priority);
        request.deadline = terms.deadline_or(request.deadline);
        let answer = app.serving().infer(request, &principal).await?;
        let encoded = encode::encode_response(&answer, id.as_deref(), &reply)?;
        let header_length = encoded.header_length;
        let mut response = json_bytes(encoded.into_bytes());
        if let Some(length) = header_length {
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(HEADER_LENGTH, HeaderValue::from(length));
        }
        with_cache(answer.cache, response)
    };
    Ok(body::pack(&parts.headers, response).await)
}

/// Decodes a request, a large one off the async thread: 1 MB of JSON takes some milliseconds.
async fn decode(
    target: Target,
    bytes: Bytes,
    header_length: Option<usize>,
    arrived: Instant,
) -> Result<DecodedRequest, ProtocolError> {
    if header_length.unwrap_or(bytes.len()) <= LARGE_JSON {
        return decode::decode_request(target, bytes, header_length, arrived);
    }
    let decoding = tokio::task::spawn_blocking(move || decode::decode_request(target, bytes, header_length, arrived));
    decoding.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Says what the response cache did, if there is one.
fn with_cache(cache: Option<CacheOutcome>, mut response: Response) -> Response {
    if let Some(outcome) = cache {
        response.headers_mut().insert(CACHE, HeaderValue::from_static(outcome.as_str()));
    }
    response
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(header::CONTENT_TYPE)?.to_str().ok()?.trim().to_ascii_lowercase())
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, Failure> {
    let value = headers.get(HEADER_LENGTH);
    Ok(value.map(|value| decode::parse_header_length(value.as_bytes())).transpose()?)
}
