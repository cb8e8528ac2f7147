//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::collections::HashMap;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::models::target;
use super::reply::{Failure, json, json_bytes};
use super::{App, body};
use crate::pipeline::image::ImageFormat;
use crate::principal::Principal;
use crate::protocol::decode::{self, DecodedRequest};
use crate::protocol::encode;
use crate::protocol::photograph::PhotographAnswer;

/// Says how much of a body is JSON; what follows is binary tensor data.
const HEADER_LENGTH: &str = "inference-header-content-length";

/// Answers an inference call: tensors in the protocol's framing, or a photograph.
pub async fn infer(
    State(app): State<App>,
    Path(path): Path<HashMap<String, String>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let target = target(&path)?;
    let arrived = Instant::now();
    let bytes = body::read(&parts.headers, body, app.config()).await?;
    let header_length = header_length(&parts.headers)?;
    let is_photograph =
        header_length.is_none() && content_type(&parts.headers).is_some_and(|kind| kind.starts_with("image/"));
    let response = if is_photograph {
        let answer = app.serving().classify(&target.model, target.version, bytes, &principal).await?;
        json(&PhotographAnswer::new(&answer))
    } else {
        let looks_like = ImageFormat::sniff(&bytes);
        let DecodedRequest { id, request, reply, .. } = decode::decode_request(target, bytes, header_length, arrived)
            .map_err(|error| match looks_like {
            Some(format) if header_length.is_none() => {
                let kind = format.content_type();
                Failure::new(
                    StatusCode::BAD_REQUEST,
                    format!("the body is a photograph: send it with 'Content-Type: {kind}'"),
                )
            }
            _ => error.into(),
        })?;
        let answer = app.serving().infer(request, &principal).await?;
        let encoded = encode::encode_response(&answer, id.as_deref(), &reply)?;
        let header_length = encoded.header_length;
        let mut response = json_bytes(encoded.into_bytes());
        if let Some(length) = header_length {
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(HEADER_LENGTH, HeaderValue::from(length));
        }
        response
    };
    Ok(body::pack(&parts.headers, response).await)
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(header::CONTENT_TYPE)?.to_str().ok()?.trim().to_ascii_lowercase())
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, Failure> {
    let value = headers.get(HEADER_LENGTH);
    Ok(value.map(|value| decode::parse_header_length(value.as_bytes())).transpose()?)
}
