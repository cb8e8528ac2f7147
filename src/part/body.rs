//! Bodies: read with a limit and a deadline, unpacked, and packed again on the way out.

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
use http_body_util::{BodyExt, LengthLimitError, Limited};
use ledge_base::memory_budget::{Account, Hold, NoRoom, UNCOUNTED_BYTES_MAX};
use ledge_base::principal::Principal;
use ledge_service::off_thread::off_thread;

use crate::failure::Failure;
use crate::held;
use crate::web::{BodyLimits, Web};

/// Smaller answers are not packed: the header would weigh as much as what is saved.
const LEAST_PACKED: usize = 1024;

/// The most memory that is set aside for a body before it has come.
const MOST_RESERVED: usize = 8 << 20;

/// What of a packed body is unpacked at once.
const UNPACKED: usize = 64 << 10;

/// How long somebody who may not ask can take to send a body.
const STRANGER: Duration = Duration::from_secs(2);

/// A body, which counts as long as it is there, and the account for what is made of it.
pub struct Received {
    pub bytes: Bytes,
    pub account: Account,
}

/// Why a body was not read.
#[derive(Debug)]
enum Unread {
    TooLarge,
    NoRoom,
    Other(axum::BoxError),
}

impl From<NoRoom> for Unread {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

impl From<axum::BoxError> for Unread {
    fn from(error: axum::BoxError) -> Self {
        if error.is::<LengthLimitError>() { Self::TooLarge } else { Self::Other(error) }
    }
}

impl From<std::io::Error> for Unread {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.into())
    }
}

/// Reads the whole body, unpacked. `http.max_body_bytes` holds for the bytes on the wire and for the unpacked ones, and
/// `http.max_memory_bytes` for those of all bodies together.
pub async fn read(parts: &Parts, body: Body, web: &Web) -> Result<Received, Failure> {
    let headers = &parts.headers;
    let (limits, limit) = (web.limits(), web.limits().max_bytes);
    let failure = |unread, what: &str| match unread {
        Unread::TooLarge => Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is larger than {limit} bytes (http.max_body_bytes)"),
        ),
        Unread::NoRoom => NoRoom.into(),
        Unread::Other(error) => Failure::new(StatusCode::BAD_REQUEST, format!("the body cannot be {what}: {error}")),
    };
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limit) {
        return Err(failure(Unread::TooLarge, "read"));
    }
    let encoding = encoding(headers)?;
    let account = account(parts, web);
    if !account.has_room(announced.unwrap_or(0)) {
        turn_down(headers, body, limits).await;
        return Err(NoRoom.into());
    }
    let mut hold = account.hold();
    let assembled = assemble(Limited::new(body, limit), announced, &mut hold);
    let assembled = tokio::time::timeout(limits.timeout, assembled).await.map_err(|_| {
        let timeout_ms = limits.timeout.as_millis();
        let message = format!("the body did not arrive within {timeout_ms} ms (http.body_timeout_ms)");
        Failure::new(StatusCode::REQUEST_TIMEOUT, message)
    })?;
    let bytes = assembled.map_err(|unread| failure(unread, "read"))?;
    let bytes = hold.keep(bytes);
    let Some(encoding) = encoding else { return Ok(Received { bytes, account }) };
    let mut hold = account.hold();
    let unpacking = off_thread(&account, move || {
        let unpacked = unpack(encoding, &bytes, limit, &mut hold)?;
        Ok(hold.keep(unpacked.into()))
    });
    let bytes = unpacking.await.map_err(|unread| failure(unread, "unpacked"))?;
    Ok(Received { bytes, account })
}

/// In whose name a request takes memory.
fn account(parts: &Parts, web: &Web) -> Account {
    web.memory().account(parts.extensions.get().cloned().unwrap_or(Principal::Others))
}

fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The frames of a body in one piece.
///
/// Each is copied and let go as it comes, so that the connection reads the next one into the same memory. A body that
/// came in one frame is not copied.
async fn assemble(body: Limited<Body>, announced: Option<usize>, hold: &mut Hold) -> Result<Bytes, Unread> {
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        // What is announced need not come: it counts as it does.
        if hold.grow(data.len()).is_err() {
            // Its sender reads the answer after all of it is sent. The caller of this function limits the time.
            drop((whole, data));
            hold.release();
            while let Some(frame) = body.frame().await {
                frame?;
            }
            return Err(Unread::NoRoom);
        }
        if whole.is_empty() {
            if announced == Some(data.len()) {
                return Ok(data);
            }
            whole.reserve(announced.unwrap_or(0).min(MOST_RESERVED).max(data.len()));
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Reads a body that nobody wants, so that its sender can go on to read the answer. False when it does not end in time
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

/// Reads a body that nobody wants, unless its sender waits to be invited to send it: to read it would be to invite.
pub async fn turn_down(headers: &HeaderMap, body: Body, limits: &BodyLimits) {
    if !headers.contains_key(header::EXPECT) {
        discard(body, limits).await;
    }
}

/// The same for a caller who may not ask at all: what is more than a plain request is not read, and the connection is
/// closed.
pub async fn discard_small(body: Body) {
    let drain = async {
        let mut body = std::pin::pin!(Limited::new(body, UNCOUNTED_BYTES_MAX));
        while let Some(Ok(_)) = body.frame().await {}
    };
    let _ = tokio::time::timeout(STRANGER, drain).await;
}

/// Whether a body is announced that costs more to keep than the question whether it is wanted.
pub fn is_large(headers: &HeaderMap) -> bool {
    announced(headers).is_none_or(|length| length > UNCOUNTED_BYTES_MAX)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Gzip,
    Deflate,
}

impl Encoding {
    fn name(self) -> HeaderValue {
        HeaderValue::from_static(if self == Self::Gzip { "gzip" } else { "deflate" })
    }
}

pub fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Failure> {
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

fn unpack(encoding: Encoding, packed: &[u8], limit: usize, hold: &mut Hold) -> Result<Vec<u8>, Unread> {
    match encoding {
        Encoding::Gzip => whole(MultiGzDecoder::new(packed), limit, hold),
        // "deflate" means zlib (RFC 9110, 8.4.1.2), yet some clients send it bare.
        Encoding::Deflate if packed.first().is_some_and(|first| first & 0x0f == 8) => {
            whole(ZlibDecoder::new(packed), limit, hold)
        }
        Encoding::Deflate => whole(DeflateDecoder::new(packed), limit, hold),
    }
}

/// All of a stream, read only as far as it fits.
fn whole(mut stream: impl Read, limit: usize, hold: &mut Hold) -> Result<Vec<u8>, Unread> {
    let mut bytes = Vec::new();
    loop {
        let read = stream.by_ref().take(UNPACKED as u64).read_to_end(&mut bytes)?;
        if bytes.len() > limit {
            return Err(Unread::TooLarge);
        }
        if read == 0 {
            return Ok(bytes);
        }
        hold.grow(read)?;
    }
}

/// Packs an answer when the caller asked for it and it is worth it.
pub async fn pack(asked: &HeaderMap, response: Response, account: &Account) -> Response {
    let response = held::counted(response, account);
    let Some(encoding) = accepted(asked) else { return response };
    let (mut parts, body) = response.into_parts();
    let Ok(collected) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let bytes = collected.to_bytes();
    if bytes.len() < LEAST_PACKED {
        return Response::from_parts(parts, Body::from(bytes));
    }
    let plain = bytes.clone();
    let to = account.clone();
    let packing = move || {
        let packed = compress(encoding, std::iter::once(bytes))?;
        Ok::<_, std::io::Error>(to.take_anyway(packed.len()).keep(packed.into()))
    };
    match off_thread(account, packing).await {
        Ok(packed) => {
            parts.headers.insert(header::CONTENT_ENCODING, encoding.name());
            parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
            Response::from_parts(parts, Body::from(packed))
        }
        _ => Response::from_parts(parts, Body::from(plain)),
    }
}

/// Packs an answer that is made in pieces.
pub async fn pack_pieces(
    encoding: Encoding,
    pieces: impl Iterator<Item = Bytes> + Send + 'static,
    account: &Account,
) -> std::io::Result<Response> {
    let to = account.clone();
    let packing = move || {
        let packed = compress(encoding, pieces)?;
        Ok::<_, std::io::Error>(to.take_anyway(packed.len()).keep(packed.into()))
    };
    let packed = off_thread(account, packing).await?;
    let mut response = crate::reply::json_bytes(packed);
    response.headers_mut().insert(header::CONTENT_ENCODING, encoding.name());
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Ok(response)
}

fn compress(encoding: Encoding, mut pieces: impl Iterator<Item = Bytes>) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    match encoding {
        Encoding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            pieces.try_for_each(|piece| encoder.write_all(&piece))?;
            encoder.finish()
        }
        Encoding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            pieces.try_for_each(|piece| encoder.write_all(&piece))?;
            encoder.finish()
        }
    }
}

/// The first of gzip and deflate that `Accept-Encoding` names without `q=0`. `*` alone is no wish for either.
pub fn accepted(headers: &HeaderMap) -> Option<Encoding> {
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
    use ledge_base::memory_budget::MemoryBudget;

    fn headers(name: header::HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
    }

    fn unpacked(encoding: Encoding, packed: &[u8], limit: usize) -> Result<Vec<u8>, Unread> {
        unpack(encoding, packed, limit, &mut Account::unlimited().hold())
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
            let packed = compress(encoding, std::iter::once(body.clone().into())).unwrap();
            assert_eq!(unpacked(encoding, &packed, body.len()).unwrap(), body);
        }
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, &body).unwrap();
        assert_eq!(unpacked(Encoding::Deflate, &encoder.finish().unwrap(), body.len()).unwrap(), body);
    }

    #[test]
    fn a_bomb_unpacks_no_further_than_the_limit() {
        let packed = compress(Encoding::Gzip, std::iter::once(vec![0; 10 << 20].into())).unwrap();
        assert!(matches!(unpacked(Encoding::Gzip, &packed, 1000), Err(Unread::TooLarge)));
        assert!(matches!(unpacked(Encoding::Gzip, b"not gzip", 1000), Err(Unread::Other(_))));
        let memory = MemoryBudget::new(1 << 20);
        let unpacked = unpack(Encoding::Gzip, &packed, 10 << 20, &mut memory.account(Principal::Others).hold());
        assert!(matches!(unpacked, Err(Unread::NoRoom)));
        assert_eq!(memory.used(), 0);
    }
}
