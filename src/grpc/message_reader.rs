//! The messages of a request: five bytes, whether it is compressed and its length, and the message (gRPC over HTTP/2,
//! Length-Prefixed-Message).

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use ledge_base::memory_budget::{Account, Reservation};
use ledge_part::api_error::ApiError;
use ledge_part::body::{ContentEncoding, decompressed};

/// The bytes before a message.
const PREFIX_BYTES: usize = 5;

/// The header with the compression of messages.
const ENCODING_HEADER: &str = "grpc-encoding";

/// The most bytes for which memory is reserved before they arrive.
const RESERVE_BYTES_MAX: usize = 1 << 20;

/// Reads the messages of a request body. Memory is counted for what has arrived.
pub struct MessageReader {
    body: Body,
    received: BytesMut,
    hold: Reservation,
    account: Account,
    encoding: Result<Option<ContentEncoding>, ApiError>,
    max_bytes: usize,
}

impl MessageReader {
    /// A reader of messages of at most `max_bytes`, before and after they are decompressed. `account` pays for them.
    pub fn new(headers: &HeaderMap, body: Body, max_bytes: usize, account: Account) -> Self {
        let hold = account.hold();
        Self { body, received: BytesMut::new(), hold, account, encoding: encoding(headers), max_bytes }
    }

    /// The next message, which counts as memory until its last clone is dropped; `None` at the end of the request.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if !self.receive(PREFIX_BYTES).await? {
            return match self.received.len() {
                0 => Ok(None),
                _ => Err(broken_off()),
            };
        }
        let (flag, length) = (self.received.get_u8(), self.received.get_u32() as usize);
        if length > self.max_bytes {
            return Err(self.too_large());
        }
        if !self.receive(length).await? {
            return Err(broken_off());
        }
        let message = self.received.split_to(length).freeze();
        self.hold.resize(self.received.len())?;
        let message = self.account.force_reserve(length).attach(message);
        match flag {
            0 => Ok(Some(message)),
            1 => {
                let encoding = self.encoding.clone()?.ok_or_else(without_encoding)?;
                let (max_bytes, account) = (self.max_bytes, self.account.clone());
                decompressed(encoding, message, max_bytes, &account).await.map(Some)
            }
            _ => Err(ApiError::new(StatusCode::BAD_REQUEST, "a message is neither compressed nor plain")),
        }
    }

    /// Reads until `length` bytes are there; false if the body ends before.
    async fn receive(&mut self, length: usize) -> Result<bool, ApiError> {
        while self.received.len() < length {
            let Some(frame) = self.body.frame().await else { return Ok(false) };
            let frame = frame.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, format!("the request cannot be read: {error}"))
            })?;
            // Trailers have no meaning here.
            let Ok(data) = frame.into_data() else { continue };
            self.hold.grow(data.len())?;
            if self.received.is_empty() {
                self.received.reserve(length.min(RESERVE_BYTES_MAX).max(data.len()));
            }
            self.received.extend_from_slice(&data);
        }
        Ok(true)
    }

    fn too_large(&self) -> ApiError {
        let message = format!("the message is larger than {} bytes (http.max_body_bytes)", self.max_bytes);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }
}

fn without_encoding() -> ApiError {
    let message = format!("a message is compressed, and the request has no {ENCODING_HEADER}");
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

fn broken_off() -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "the request ended within a message")
}

/// The compression of the messages that have the flag.
fn encoding(headers: &HeaderMap) -> Result<Option<ContentEncoding>, ApiError> {
    match headers.get(ENCODING_HEADER).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(None),
        Some(b"gzip") => Ok(Some(ContentEncoding::Gzip)),
        Some(b"deflate") => Ok(Some(ContentEncoding::Deflate)),
        Some(_) => {
            let message = format!("{ENCODING_HEADER} is neither gzip, deflate nor identity");
            Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}
