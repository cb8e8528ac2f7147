//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::annotation::PictureFormat;
use ledge_identity::access::Access;
use ledge_part::api_error::ApiError;
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::reply::json_bytes;
use ledge_part::route::PathParts;
use ledge_protocol::annotated;
use ledge_protocol::call::{self, BodyKind, HEADER_LENGTH, InferenceCall};
use ledge_protocol::decode;

use super::App;
use super::call_headers::{self, CallHeaders};
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
    let form = BodyKind::of(call_headers::content_type(&parts.headers), header_length(&parts.headers)?);
    let call = InferenceCall {
        target,
        body,
        form,
        priority,
        deadline,
        arrived,
        account: account.clone(),
        views: access.feature_views().clone(),
        camera: call_headers::camera(&parts.headers)?,
    };

    if let Some(format) = wanted_picture(&parts.headers) {
        return annotated(&app, call, format, &principal).await;
    }
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

/// Answers with the photograph that was sent, annotated.
async fn annotated(
    app: &App,
    call: InferenceCall,
    format: PictureFormat,
    principal: &Principal,
) -> Result<Response, ApiError> {
    let picture = annotated::answer(app.serving(), call, format, &app.vision().blur_rule(), principal).await?;
    let bytes = picture.body.len();
    let mut response = Response::new(picture.body.into());
    counted_body::mark_counted(&mut response, bytes);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Some(outcome) = picture.cache {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(outcome.as_str()));
    }
    Ok(response)
}

/// The format of the picture that `Accept` prefers to JSON (RFC 9110, 12.5.1). The first of equal weights wins.
fn wanted_picture(headers: &HeaderMap) -> Option<PictureFormat> {
    let mut best = (0.0, None);
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let format = match parts.next().unwrap_or_default().to_ascii_lowercase().as_str() {
            "image/jpeg" | "image/jpg" | "image/*" => Some(PictureFormat::Jpeg),
            "image/png" => Some(PictureFormat::Png),
            "application/json" | "application/*" | "*/*" => None,
            _ => continue,
        };
        let weight = parts
            .find_map(|part| part.strip_prefix(['q', 'Q'])?.strip_prefix('='))
            .map_or(Some(1.0), |weight| weight.parse().ok());
        if let Some(weight) = weight.filter(|weight| *weight > best.0) {
            best = (weight, format);
        }
    }
    best.1
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let value = headers.get(HEADER_LENGTH);
    Ok(value.map(|value| decode::parse_header_length(value.as_bytes())).transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_sent_to_callers_that_prefer_one() {
        for (accept, wanted) in [
            ("image/jpeg", Some(PictureFormat::Jpeg)),
            ("image/PNG", Some(PictureFormat::Png)),
            ("image/*", Some(PictureFormat::Jpeg)),
            ("*/*", None),
            ("", None),
            ("text/html, image/png;q=0.5", Some(PictureFormat::Png)),
            ("application/json, image/png", None),
            ("image/png, */*", Some(PictureFormat::Png)),
            ("image/png;q=0.9, image/jpeg", Some(PictureFormat::Jpeg)),
            ("image/png;q=0, */*;q=0.1", None),
            ("image/png;q=x", None),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wanted_picture(&headers), wanted, "{accept}");
        }
        assert_eq!(wanted_picture(&HeaderMap::new()), None);
    }
}
