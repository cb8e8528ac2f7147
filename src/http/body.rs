//! Bodies: read with a limit and a deadline, unpacked, and packed again on the way out.

use std::time::Duration;

use std::io::Read;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::config::HttpConfig;
use super::reply::Failure;

/// Smaller answers are not packed: the header would weigh as much as what is saved.
const LEAST_PACKED: usize = 1024;

/// The most memory that is set aside for a body before it has come.
const MOST_RESERVED: usize = 8 << 20;

/// A body above this is not read into memory when its model's queue is full already.
const LARGE: usize = 16 << 10;

/// How long somebody who may not ask can take to send a body.
const STRANGER: Duration = Duration::from_secs(2);

/// Reads the whole body, unpacked. `limit` holds for the bytes on the wire and for the unpacked ones.
pub async fn read(headers: &HeaderMap, body: Body, config: &HttpConfig) -> Result<Bytes, Failure> {
    let limit = config.max_body_bytes;
    let too_large = || {
        Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {limit} bytes (http.max_body_bytes)"),
        )
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let assembled = assemble(Limited::new(body, limit), announced);
    let assembled = tokio::time::timeout(config.body_timeout(), assembled).await.map_err(|_| {
        let message = format!("the body did not arrive within {} ms (http.body_timeout_ms)", config.body_timeout_ms);
        Failure::new(StatusCode::REQUEST_TIMEOUT, message)
    })?;
    let bytes = match assembled {
        Ok(bytes) => bytes,
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => return Err(Failure::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}"))),
    };
    match encoding(headers)? {
        None => Ok(bytes),
        Some(encoding) => {
            let unpacked = tokio::task::spawn_blocking(move || unpack(encoding, &bytes, limit)).await;
            match unpacked {
                Ok(Ok(bytes)) if bytes.len() > limit => Err(too_large()),
                Ok(Ok(bytes)) => Ok(bytes.into()),
                Ok(Err(error)) => {
                    Err(Failure::new(StatusCode::BAD_REQUEST, format!("the body cannot be unpacked: {error}")))
                }
                Err(_) => Err(Failure::new(StatusCode::BAD_REQUEST, "the body cannot be unpacked")),
            }
        }
    }
}

/// The frames of a body in one piece.
///
/// Each is copied and let go as it comes, so that the connection reads the next one into the same memory. A body that
/// came in one frame is not copied.
async fn assemble(body: Limited<Body>, announced: Option<usize>) -> Result<Bytes, axum::BoxError> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if whole.is_empty() {
            if announced == Some(data.len()) {
                return Ok(data);
            }
            // What is announced need not come: beyond this it is believed as it does.
            whole.reserve(announced.unwrap_or(0).min(MOST_RESERVED).max(data.len()));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Reads a body that nobody wants, so that its sender can go on to read the answer. False when it does not end in time
/// or is too large; the connection is then closed.
pub async fn discard(body: Body, config: &HttpConfig) -> bool {
    let drain = async {
        let mut body = std::pin::pin!(Limited::new(body, config.max_body_bytes));
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(config.body_timeout(), drain).await.unwrap_or(false)
}

/// The same for a caller who may not ask at all: what is more than a plain request is not read, and the connection is
/// closed.
pub async fn discard_small(body: Body) {
    let drain = async {
        let mut body = std::pin::pin!(Limited::new(body, LARGE));
        while let Some(Ok(_)) = body.frame().await {}
    };
    let _ = tokio::time::timeout(STRANGER, drain).await;
}

/// Whether a body is announced that costs more to keep than the question whether it is wanted.
pub fn is_large(headers: &HeaderMap) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    length.is_none_or(|length| length > LARGE)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Deflate,
}

fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Failure> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(None) };
    match value.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(Encoding::Gzip)),
        "deflate" => Ok(Some(Encoding::Deflate)),
        other => {
            let message = format!("content encoding {other:?} is not supported: send gzip, deflate or none");
            Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

/// Unpacks at most one byte more than `limit`.
fn unpack(encoding: Encoding, packed: &[u8], limit: usize) -> std::io::Result<Vec<u8>> {
    let limit = limit as u64 + 1;
    let mut bytes = Vec::new();
    match encoding {
        Encoding::Gzip => MultiGzDecoder::new(packed).take(limit).read_to_end(&mut bytes)?,
        // "deflate" means zlib (RFC 9110, 8.4.1.2), yet some clients send it bare.
        Encoding::Deflate if packed.first().is_some_and(|first| first & 0x0f == 8) => {
            ZlibDecoder::new(packed).take(limit).read_to_end(&mut bytes)?
        }
        Encoding::Deflate => DeflateDecoder::new(packed).take(limit).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

/// Packs an answer when the caller asked for it and it is worth it.
pub async fn pack(asked: &HeaderMap, response: Response) -> Response {
    let Some(encoding) = accepted(asked) else { return response };
    let (mut parts, body) = response.into_parts();
    let Ok(collected) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let bytes = collected.to_bytes();
    if bytes.len() < LEAST_PACKED {
        return Response::from_parts(parts, Body::from(bytes));
    }
    let plain = bytes.clone();
    match tokio::task::spawn_blocking(move || compress(encoding, &bytes)).await {
        Ok(Ok(packed)) => {
            let name = if encoding == Encoding::Gzip { "gzip" } else { "deflate" };
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
            parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            Response::from_parts(parts, Body::from(packed))
        }
        _ => Response::from_parts(parts, Body::from(plain)),
    }
}

fn compress(encoding: Encoding, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    match encoding {
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes)?;
            encoder.finish()
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes)?;
            encoder.finish()
        }
    }
}

/// The first of gzip and deflate that `Accept-Encoding` names without `q=0`. `*` alone is no wish for either.
fn accepted(headers: &HeaderMap) -> Option<Encoding> {
    let text = headers.get(header::ACCEPT_ENCODING)?.to_str().ok()?;
    let wanted = |name: &str| {
        text.split(',').any(|item| {
            let mut parts = item.split(';').map(str::trim);
            let named = parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case(name));
            named && !parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)))
        })
    };
    if wanted("gzip") {
        Some(Encoding::Gzip)
    } else if wanted("deflate") {
        Some(Encoding::Deflate)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    #[test]
    fn accept_encoding_is_read_with_its_weights() {
        let accept = |value| accepted(&headers(header::ACCEPT_ENCODING, value));
        assert_eq!(accept("gzip, deflate"), Some(Encoding::Gzip));
        assert_eq!(accept("gzip;q=0, deflate"), Some(Encoding::Deflate));
        assert_eq!(accept("br, identity"), None);
        assert_eq!(accept("*"), None);
        assert_eq!(accepted(&HeaderMap::new()), None);
    }

    #[test]
    fn what_is_packed_unpacks_in_both_encodings_and_bare_deflate_too() {
        let body = b"ledge".repeat(1000);
        for encoding in [Encoding::Gzip, Encoding::Deflate] {
            let packed = compress(encoding, &body).unwrap();
            assert_eq!(unpack(encoding, &packed, body.len()).unwrap(), body);
        }
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, &body).unwrap();
        assert_eq!(unpack(Encoding::Deflate, &encoder.finish().unwrap(), body.len()).unwrap(), body);
    }

    #[test]
    fn a_bomb_unpacks_no_further_than_the_limit() {
        let packed = compress(Encoding::Gzip, &vec![0; 10 << 20]).unwrap();
        assert_eq!(unpack(Encoding::Gzip, &packed, 1000).unwrap().len(), 1001);
        assert!(unpack(Encoding::Gzip, b"not gzip", 1000).is_err());
    }
}
