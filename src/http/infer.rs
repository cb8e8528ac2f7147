//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::cmp::Reverse;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use ledge_base::principal::Principal;
use ledge_engine::pipeline::annotation::PictureFormat;
use ledge_identity::access::CallerAccess;
use ledge_models::serving::request::CacheOutcome;
use ledge_part::api_error::ApiError;
use ledge_part::body::{self, ReceivedBody};
use ledge_part::counted_body;
use ledge_part::route::PathParts;
use ledge_protocol::annotated;
use ledge_protocol::call::{self, BodyKind, ContentType, HEADER_LENGTH, InferenceCall};
use ledge_protocol::decode;
use ledge_protocol::searchable;

use super::App;
use super::accept::accepted_ranges;
use super::call_headers::{self, CallHeaders};
use super::csv;
use super::models::target;

/// The header with the outcome of the response cache.
const CACHE_HEADER: &str = "x-ledge-cache";

/// Answers an inference call: tensors in the protocol's framing, or a photograph.
pub async fn infer(
    State(app): State<App>,
    PathParts(path): PathParts,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
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
    if csv::is_csv(call_headers::content_type(&parts.headers)) {
        return csv::infer(&app, target, &parts, body, CallHeaders { priority, deadline }, principal).await;
    }
    let ReceivedBody { bytes: body, account } = body::read(&parts, body, app.context()).await?;
    let form = BodyKind::of(call_headers::content_type(&parts.headers), header_length(&parts.headers)?);
    let call = InferenceCall {
        target,
        body,
        form,
        prefers_text: wants_text(&parts.headers),
        priority,
        deadline,
        arrived,
        account: account.clone(),
        views: access.feature_views().clone(),
        camera: call_headers::camera(&parts.headers)?,
    };

    if wants_pdf(&parts.headers) {
        return searchable(&app, call, &principal).await;
    }
    if let Some(format) = wanted_picture(&parts.headers) {
        return annotated(&app, call, format, &principal).await;
    }
    let answer = call::answer(app.serving(), call, &principal).await?;
    let mut response = counted_body::counted_json(answer.body);
    let headers = response.headers_mut();
    match answer.content_type {
        ContentType::Json => {}
        ContentType::Binary { header_length } => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(HEADER_LENGTH, HeaderValue::from(header_length));
        }
        ContentType::Text => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            headers.insert(header::VARY, HeaderValue::from_static("accept"));
        }
    }
    if let Some(outcome) = answer.cache {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(outcome.as_str()));
    }
    if answer.content_type == ContentType::Text {
        return Ok(response);
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
    Ok(file_response(picture.body, format.content_type(), picture.cache))
}

/// Answers with the document that was sent, with a text layer.
async fn searchable(app: &App, call: InferenceCall, principal: &Principal) -> Result<Response, ApiError> {
    let document = searchable::answer(app.serving(), call, principal).await?;
    Ok(file_response(document.body, "application/pdf", document.cache))
}

/// An answer that is a file, whose bytes are counted already.
fn file_response(body: Bytes, content_type: &'static str, cache: Option<CacheOutcome>) -> Response {
    let mut response = counted_body::counted(body, HeaderValue::from_static(content_type));
    let headers = response.headers_mut();
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    if let Some(outcome) = cache {
        headers.insert(CACHE_HEADER, HeaderValue::from_static(outcome.as_str()));
    }
    response
}

/// Set when `Accept` prefers PDF to JSON, by its own name alone.
fn wants_pdf(headers: &HeaderMap) -> bool {
    let formats: [(_, &[&str]); 2] =
        [(true, &["application/pdf"]), (false, &["*/*", "application/*", "application/json"])];
    preferred(headers, &formats).unwrap_or(false)
}

/// Set when `Accept` prefers text to JSON.
fn wants_text(headers: &HeaderMap) -> bool {
    let formats: [(_, &[&str]); 2] =
        [(true, &["*/*", "text/*", "text/plain"]), (false, &["*/*", "application/*", "application/json"])];
    preferred(headers, &formats).unwrap_or(false)
}

/// The format of the picture that `Accept` prefers to JSON. The most specific range that fits a format decides about it
/// (RFC 9110, 12.5.1). Of equal weights the first range wins, and within one range JSON, then JPEG.
pub(super) fn wanted_picture(headers: &HeaderMap) -> Option<PictureFormat> {
    let formats: [(_, &[&str]); 3] = [
        (Some(PictureFormat::Png), &["*/*", "image/*", "image/png"]),
        (Some(PictureFormat::Jpeg), &["*/*", "image/*", "image/jpg", "image/jpeg"]),
        (None, &["*/*", "application/*", "application/json"]),
    ];
    preferred(headers, &formats).flatten()
}

/// The format that `Accept` prefers among some, each with the ranges that fit it, the most specific one last. The last
/// of equal ones.
fn preferred<F: Copy>(headers: &HeaderMap, formats: &[(F, &[&str])]) -> Option<F> {
    let ranges: Vec<_> = accepted_ranges(headers).collect();
    let accepted = |(format, names): &(F, &[&str])| {
        let range = |name: &&str| ranges.iter().enumerate().find(|(_, (range, _))| range == name);
        let (place, (_, weight)) = names.iter().rev().find_map(range)?;
        (*weight > 0.0).then_some((*weight, Reverse(place), *format))
    };
    let best = formats.iter().filter_map(accepted);
    best.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1))).map(|(_, _, format)| format)
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
    let value = headers.get(HEADER_LENGTH);
    Ok(value.map(|value| decode::parse_header_length(value.as_bytes())).transpose()?)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    proptest! {
        /// A format that a caller excludes by name is never sent.
        #[test]
        fn an_excluded_format_is_never_sent(
            ranges in vec(
                (select(&["*/*", "image/*", "application/*", "application/json", "text/html"][..]), 0..=10_u8), 0..5,
            ),
            excluded in select(&[PictureFormat::Jpeg, PictureFormat::Png][..]),
            place in 0..5_usize,
        ) {
            let mut ranges: Vec<_> = ranges
                .into_iter()
                .map(|(range, tenths)| format!("{range};q={}", f32::from(tenths) / 10.0))
                .collect();
            ranges.insert(place.min(ranges.len()), format!("{};q=0", excluded.content_type()));
            let accept = HeaderValue::try_from(ranges.join(", ")).unwrap();
            let wanted = wanted_picture(&HeaderMap::from_iter([(header::ACCEPT, accept)]));
            prop_assert_ne!(wanted, Some(excluded), "{:?}", ranges);
        }
    }

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
            ("image/png;q=2", None),
            ("image/jpeg;q=0, image/*", Some(PictureFormat::Png)),
            ("image/*, image/jpeg;q=0", Some(PictureFormat::Png)),
            ("image/jpeg;q=0, image/png;q=0, image/*", None),
            ("image/*;q=0, */*", None),
            ("image/*;q=0.2, image/png;q=0.3", Some(PictureFormat::Png)),
            ("image/png;q=0.3, */*;q=0.2", Some(PictureFormat::Png)),
            ("*/*, image/png", None),
            ("application/json;q=0.1, */*;q=0.2", Some(PictureFormat::Jpeg)),
            ("application/json;q=0, */*;q=0", None),
            ("image/jpg;q=0.5, image/jpeg;q=0", None),
            ("text/html,application/xml;q=0.9,image/webp,image/apng,*/*;q=0.8", None),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wanted_picture(&headers), wanted, "{accept}");
        }
        assert_eq!(wanted_picture(&HeaderMap::new()), None);
    }
}
