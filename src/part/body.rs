//! Bodies: requests are read under a limit and a deadline and decompressed, and answers are compressed.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, LengthLimitError, Limited, StreamBody};
use hyper::body::Frame;
use ledge_base::memory_budget::{MemoryAccount, MemoryBudgetExhausted, MemoryReservation, UNCOUNTED_BYTES_MAX};
use ledge_base::principal::Principal;
use ledge_service::off_thread::off_thread;

use crate::api_error::ApiError;
use crate::counted_body;
use crate::handler_context::{BodyLimits, HandlerContext};

/// The smallest answer that is compressed, in bytes. Below it the header would cost as much as compression saves.
const COMPRESSED_BYTES_MIN: usize = 1024;

/// The most memory that is reserved for a body before it arrives, in bytes.
const BODY_RESERVE_BYTES_MAX: usize = 8 << 20;

/// The step in which a body is decompressed, in bytes: the limits are checked after each.
const DECOMPRESSION_STEP_BYTES: usize = 64 << 10;

/// The time that a caller without permission has to send its body.
const UNAUTHORIZED_BODY_TIMEOUT: Duration = Duration::from_secs(2);

/// A body, which is counted as memory while it exists, and the account for the data that is made of it.
pub struct ReceivedBody {
    pub bytes: Bytes,
    pub account: MemoryAccount,
}

/// The reason why a body was not read.
#[derive(Debug)]
enum BodyError {
    TooLarge,
    NoRoom,
    Other(axum::BoxError),
}

impl From<MemoryBudgetExhausted> for BodyError {
    fn from(_: MemoryBudgetExhausted) -> Self {
        Self::NoRoom
    }
}

impl From<axum::BoxError> for BodyError {
    fn from(error: axum::BoxError) -> Self {
        if error.is::<LengthLimitError>() { Self::TooLarge } else { Self::Other(error) }
    }
}

impl From<std::io::Error> for BodyError {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.into())
    }
}

/// Reads the whole body and decompresses it. `http.max_body_bytes` limits the bytes on the wire and the decompressed
/// bytes, and `http.max_memory_bytes` those of all bodies together.
pub async fn read(parts: &Parts, body: Body, context: &HandlerContext) -> Result<ReceivedBody, ApiError> {
    let headers = &parts.headers;
    let (limits, limit) = (context.limits(), context.limits().max_bytes);
    let announced = content_length(headers);
    if announced.is_some_and(|length| length > limit) {
        return Err(failure(BodyError::TooLarge, "read", limit));
    }
    let encoding = content_encoding(headers)?;
    let account = account(parts, context);
    if !account.has_room(announced.unwrap_or(0)) {
        discard_unless_expected(headers, body, limits).await;
        return Err(MemoryBudgetExhausted.into());
    }

    let mut hold = account.hold();
    let assembled = collect(Limited::new(body, limit), announced, &mut hold);
    let assembled = tokio::time::timeout(limits.timeout, assembled).await.map_err(|_| {
        let timeout_ms = limits.timeout.as_millis();
        let message = format!("the body did not arrive within {timeout_ms} ms (http.body_timeout_ms)");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    })?;
    let bytes = assembled.map_err(|unread| failure(unread, "read", limit))?;
    let bytes = hold.attach(bytes);

    let Some(encoding) = encoding else { return Ok(ReceivedBody { bytes, account }) };
    let bytes = decompressed(encoding, bytes, limit, &account).await?;
    Ok(ReceivedBody { bytes, account })
}

/// Decompresses a body of at most `limit` bytes, off the async threads. It counts as memory until it is dropped.
pub async fn decompressed(
    encoding: ContentEncoding,
    packed: Bytes,
    limit: usize,
    account: &MemoryAccount,
) -> Result<Bytes, ApiError> {
    let mut hold = account.hold();
    let decompressing = off_thread(account, move || {
        let decompressed = decompress(encoding, &packed, limit, &mut hold)?;
        Ok(hold.attach(decompressed.into()))
    });
    decompressing.await.map_err(|unread| failure(unread, "decompressed", limit))
}

/// Returns `true` if an announced body would find room now.
pub fn has_room(parts: &Parts, context: &HandlerContext) -> bool {
    account(parts, context).has_room(content_length(&parts.headers).unwrap_or(0))
}

/// The error of a body that was not read or decompressed.
fn failure(unread: BodyError, what: &str, limit: usize) -> ApiError {
    match unread {
        BodyError::TooLarge => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {limit} bytes (http.max_body_bytes)"),
        ),
        BodyError::NoRoom => MemoryBudgetExhausted.into(),
        BodyError::Other(error) => {
            ApiError::new(StatusCode::BAD_REQUEST, format!("the body cannot be {what}: {error}"))
        }
    }
}

/// The account that a request takes memory from.
pub fn account(parts: &Parts, context: &HandlerContext) -> MemoryAccount {
    context.memory().account(parts.extensions.get().cloned().unwrap_or(Principal::Others))
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Collects the frames of a body into one buffer.
///
/// Each frame is copied and dropped as it arrives, so that the connection reads the next one into the same memory. A
/// body in one frame is not copied.
async fn collect(
    body: Limited<Body>,
    announced: Option<usize>,
    hold: &mut MemoryReservation,
) -> Result<Bytes, BodyError> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        // The announced bytes may never arrive: they are counted as they do.
        if hold.grow(data.len()).is_err() {
            // The sender reads the answer after it has sent everything. The caller of this function limits the time.
            drop((whole, data));
            hold.release();
            while let Some(frame) = body.frame().await {
                frame?;
            }
            return Err(BodyError::NoRoom);
        }
        if whole.is_empty() {
            if announced == Some(data.len()) {
                return Ok(data);
            }
            whole.reserve(announced.unwrap_or(0).min(BODY_RESERVE_BYTES_MAX).max(data.len()));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Reads the start of a body before its sender has a permission: up to `bytes`, within [`UNAUTHORIZED_BODY_TIMEOUT`].
/// Returns it with the whole body.
pub async fn peek(mut body: Body, bytes: usize) -> (Bytes, Body) {
    let (mut start, mut behind) = (BytesMut::new(), None);
    let reading = async {
        while start.len() < bytes {
            match body.frame().await.map(|frame| frame.map(Frame::into_data)) {
                // Copied into one piece: a body in chunks of one byte would take a hundred times its size.
                Some(Ok(Ok(data))) => start.extend_from_slice(&data),
                Some(Ok(Err(other))) => return behind = Some(Ok(other)),
                Some(Err(error)) => return behind = Some(Err(error)),
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(UNAUTHORIZED_BODY_TIMEOUT, reading).await;
    let start = start.freeze();
    let whole = stream::iter([Ok(Frame::data(start.clone()))].into_iter().chain(behind)).chain(BodyStream::new(body));
    (start.slice(..start.len().min(bytes)), Body::new(StreamBody::new(whole)))
}

/// Reads and drops a body, so that its sender can go on to read the answer. `false` when the body does not end in time
/// or is too large; the connection is then closed.
pub async fn discard(body: Body, limits: &BodyLimits) -> bool {
    let drain = async {
        let mut body = std::pin::pin!(Limited::new(body, limits.max_bytes));
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(limits.timeout, drain).await.unwrap_or(false)
}

/// Reads and drops a body. With `Expect: 100-continue`, reading the body would send the 100, so it is not read.
pub async fn discard_unless_expected(headers: &HeaderMap, body: Body, limits: &BodyLimits) {
    if !headers.contains_key(header::EXPECT) {
        discard(body, limits).await;
    }
}

/// The same for a caller without permission: only a small body is read, and after a larger one the connection is
/// closed.
pub async fn discard_small(body: Body) {
    let drain = async {
        let mut body = std::pin::pin!(Limited::new(body, UNCOUNTED_BYTES_MAX));
        while let Some(Ok(_)) = body.frame().await {}
    };
    let _ = tokio::time::timeout(UNAUTHORIZED_BODY_TIMEOUT, drain).await;
}

/// Returns `true` if a body may be so large that it pays to ask before reading it whether the call would be accepted.
pub fn is_large(headers: &HeaderMap) -> bool {
    content_length(headers).is_none_or(|length| length > UNCOUNTED_BYTES_MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentEncoding {
    Gzip,
    Deflate,
}

impl ContentEncoding {
    pub fn name(self) -> HeaderValue {
        HeaderValue::from_static(if self == Self::Gzip { "gzip" } else { "deflate" })
    }
}

pub fn content_encoding(headers: &HeaderMap) -> Result<Option<ContentEncoding>, ApiError> {
    let Some(value) = headers.get(header::CONTENT_ENCODING) else { return Ok(None) };
    match value.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(ContentEncoding::Gzip)),
        "deflate" => Ok(Some(ContentEncoding::Deflate)),
        other => {
            let message = format!("content encoding {other:?} is not supported: send gzip, deflate or none");
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

fn decompress(
    encoding: ContentEncoding,
    packed: &[u8],
    limit: usize,
    hold: &mut MemoryReservation,
) -> Result<Vec<u8>, BodyError> {
    match encoding {
        ContentEncoding::Gzip => decompress_all(MultiGzDecoder::new(packed), limit, hold),
        // "deflate" means zlib (RFC 9110, 8.4.1.2), but some clients send raw deflate.
        ContentEncoding::Deflate if packed.first().is_some_and(|first| first & 0x0f == 8) => {
            decompress_all(ZlibDecoder::new(packed), limit, hold)
        }
        ContentEncoding::Deflate => decompress_all(DeflateDecoder::new(packed), limit, hold),
    }
}

/// Reads all of a stream, up to the limit.
fn decompress_all(mut stream: impl Read, limit: usize, hold: &mut MemoryReservation) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    loop {
        let read = stream.by_ref().take(DECOMPRESSION_STEP_BYTES as u64).read_to_end(&mut bytes)?;
        if bytes.len() > limit {
            return Err(BodyError::TooLarge);
        }
        if read == 0 {
            return Ok(bytes);
        }
        hold.grow(read)?;
    }
}

/// Compresses an answer when the caller accepts it and the answer is large enough.
pub async fn compress_response(asked: &HeaderMap, response: Response, account: &MemoryAccount) -> Response {
    let response = counted_body::count(response, account);
    let Some(encoding) = accepted_encoding(asked) else { return response };
    let (mut parts, body) = response.into_parts();
    let Ok(collected) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let bytes = collected.to_bytes();
    if bytes.len() < COMPRESSED_BYTES_MIN {
        return Response::from_parts(parts, Body::from(bytes));
    }

    let plain = bytes.clone();
    let to = account.clone();
    let compressing = move || {
        let compressed = compress(encoding, std::iter::once(bytes))?;
        Ok::<_, std::io::Error>(to.force_reserve(compressed.len()).attach(compressed.into()))
    };
    match off_thread(account, compressing).await {
        Ok(compressed) => {
            parts.headers.insert(header::CONTENT_ENCODING, encoding.name());
            parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            Response::from_parts(parts, Body::from(compressed))
        }
        _ => Response::from_parts(parts, Body::from(plain)),
    }
}

/// Compresses an answer that is made in pieces.
pub async fn compress_pieces(
    encoding: ContentEncoding,
    pieces: impl Iterator<Item = Bytes> + Send + 'static,
    account: &MemoryAccount,
) -> std::io::Result<Response> {
    let to = account.clone();
    let compressing = move || {
        let compressed = compress(encoding, pieces)?;
        Ok::<_, std::io::Error>(to.force_reserve(compressed.len()).attach(compressed.into()))
    };
    let compressed = off_thread(account, compressing).await?;
    let mut response = crate::reply::json_bytes(compressed);
    response.headers_mut().insert(header::CONTENT_ENCODING, encoding.name());
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Ok(response)
}

/// Compresses bytes with gzip at the highest level, for content that is compressed once and sent often. Takes some 10
/// ms for 100 kB.
pub fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn compress(encoding: ContentEncoding, mut pieces: impl Iterator<Item = Bytes>) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    match encoding {
        ContentEncoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            pieces.try_for_each(|piece| encoder.write_all(&piece))?;
            encoder.finish()
        }
        ContentEncoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            pieces.try_for_each(|piece| encoder.write_all(&piece))?;
            encoder.finish()
        }
    }
}

/// The first of gzip and deflate that `Accept-Encoding` names without `q=0`. `*` counts as neither.
pub fn accepted_encoding(headers: &HeaderMap) -> Option<ContentEncoding> {
    let text = headers.get(header::ACCEPT_ENCODING)?.to_str().ok()?;
    let wanted = |name: &str| {
        text.split(',').any(|item| {
            let mut parts = item.split(';').map(str::trim);
            let named = parts.next().is_some_and(|coding| coding.eq_ignore_ascii_case(name));
            named && !parts.any(|part| part.strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0)))
        })
    };
    if wanted("gzip") {
        Some(ContentEncoding::Gzip)
    } else if wanted("deflate") {
        Some(ContentEncoding::Deflate)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::memory_budget::MemoryBudget;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    fn unpacked(encoding: ContentEncoding, packed: &[u8], limit: usize) -> Result<Vec<u8>, BodyError> {
        decompress(encoding, packed, limit, &mut MemoryAccount::unlimited().hold())
    }

    #[test]
    fn accept_encoding_is_read_with_its_weights() {
        let accept = |value| accepted_encoding(&headers(header::ACCEPT_ENCODING, value));
        assert_eq!(accept("gzip, deflate"), Some(ContentEncoding::Gzip));
        assert_eq!(accept("gzip;q=0, deflate"), Some(ContentEncoding::Deflate));
        assert_eq!(accept("br, identity"), None);
        assert_eq!(accept("*"), None);
        assert_eq!(accepted_encoding(&HeaderMap::new()), None);
    }

    #[tokio::test]
    async fn a_body_is_whole_after_its_start_was_read() {
        let pieces: [&[u8]; 3] = [b"ab", b"cd", b"ef"];
        for (bytes, expected) in [(0, ""), (1, "a"), (3, "abc"), (6, "abcdef"), (9, "abcdef")] {
            let frames = pieces.map(|piece| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(piece))));
            let (start, body) = peek(Body::new(StreamBody::new(stream::iter(frames))), bytes).await;
            assert_eq!(start, expected);
            assert_eq!(body.collect().await.unwrap().to_bytes(), "abcdef");
        }
    }

    #[test]
    fn both_encodings_round_trip_and_raw_deflate_is_read() {
        let body = b"ledge".repeat(1000);
        for encoding in [ContentEncoding::Gzip, ContentEncoding::Deflate] {
            let packed = compress(encoding, std::iter::once(body.clone().into())).unwrap();
            assert_eq!(unpacked(encoding, &packed, body.len()).unwrap(), body);
        }
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, &body).unwrap();
        assert_eq!(unpacked(ContentEncoding::Deflate, &encoder.finish().unwrap(), body.len()).unwrap(), body);
    }

    #[test]
    fn a_decompression_bomb_is_read_only_up_to_the_limit() {
        let packed = compress(ContentEncoding::Gzip, std::iter::once(vec![0; 10 << 20].into())).unwrap();
        assert!(matches!(unpacked(ContentEncoding::Gzip, &packed, 1000), Err(BodyError::TooLarge)));
        assert!(matches!(unpacked(ContentEncoding::Gzip, b"not gzip", 1000), Err(BodyError::Other(_))));
        let memory = MemoryBudget::new(1 << 20);
        let unpacked =
            decompress(ContentEncoding::Gzip, &packed, 10 << 20, &mut memory.account(Principal::Others).hold());
        assert!(matches!(unpacked, Err(BodyError::NoRoom)));
        assert_eq!(memory.used(), 0);
    }
}
