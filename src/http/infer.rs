//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use ledge_base::principal::Principal;
use ledge_identity::access::Access;
use ledge_part::api_error::ApiError;
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::reply::json_bytes;
use ledge_part::route::PathParts;
use ledge_protocol::call::{self, BodyKind, HEADER_LENGTH, InferenceCall};
use ledge_protocol::decode;

use super::App;
use super::call_headers::CallHeaders;
use super::models::target;

/// The header with the outcome of the response cache.
const CACHE_HEADER: &str = "x-ledge-cache";

/// Answers an inference call: tensors in the protocol's framing, or a photograph.
pub async fn infer(
    State(app): State<App>,
    PathParts(path): PathParts,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<Access>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let target = target(&path)?;
    let arrived = Instant::now();
    let terms = CallHeaders::read(&parts.headers, arrived).and_then(|terms| {
        // A large body is not read for a call that has no place in the queue.
        let is_large = body::is_large(&parts.headers);
        let refused = || app.serving().refusal(&target.model, target.version, terms.priority, &principal);
        is_large.then(refused).flatten().map_or(Ok(terms), |refused| Err(refused.into()))
    });
    let CallHeaders { priority, deadline } = match terms {
        Ok(terms) => terms,
        Err(failure) => {
            body::discard_unless_expected(&parts.headers, body, app.context().limits()).await;
            return Err(failure);
        }
    };
    let ReceivedBody { bytes: body, account } = body::read(&parts, body, app.context()).await?;
    let form = BodyKind::of(content_type(&parts.headers), header_length(&parts.headers)?);
    let call = InferenceCall {
        target,
        body,
        form,
        priority,
        deadline,
        arrived,
        account: account.clone(),
        views: access.feature_views().clone(),
    };

    let answer = call::answer(app.serving(), call, &principal).await?;
    let bytes = answer.body.len();
    let mut response = json_bytes(answer.body);
    counted_body::mark_counted(&mut response, bytes);
    let headers = response.headers_mut();
    if let Some(length) = answer.header_length {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(HEADER_LENGTH, HeaderValue::from(length));
    }
    if let Some(outcome) = answer.cache {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(outcome.as_str()));
    }
    Ok(body::compress_response(&parts.headers, response, &account).await)
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE)?.to_str().ok()
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let value = headers.get(HEADER_LENGTH);
    Ok(value.map(|value| decode::parse_header_length(value.as_bytes())).transpose()?)
}
