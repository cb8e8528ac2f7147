//! The messages of a request: five bytes, whether it is compressed and its length, and the message (gRPC over HTTP/2,
//! Length-Prefixed-Message).

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_part::api_error::ApiError;
use ledge_part::body::{ContentEncoding, decompressed};

/// The bytes before a message.
const PREFIX_BYTES: usize = 5;

/// The header with the compression of messages.
const ENCODING_HEADER: &str = "grpc-encoding";

/// The most bytes for which memory is reserved before they arrive.
const RESERVE_BYTES_MAX: usize = 1 << 20;

/// The smallest message that is not copied out of a frame with all of it.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// Reads the messages of a request body. Memory is counted for what has arrived.
pub struct GrpcMessageReader {
    body: Body,
    received: BytesMut,
    hold: MemoryReservation,
    account: MemoryAccount,
    encoding: Result<Option<ContentEncoding>, ApiError>,
    max_bytes: usize,
}

impl GrpcMessageReader {
    /// A reader of messages of at most `max_bytes`, before and after they are decompressed. `account` pays for them.
    pub fn new(headers: &HeaderMap, body: Body, max_bytes: usize, account: MemoryAccount) -> Self {
        let hold = account.hold();
        Self { body, received: BytesMut::new(), hold, account, encoding: encoding(headers), max_bytes }
    }

    /// The next message, which counts as memory until its last clone is dropped; `None` at the end of the request.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.received.is_empty()
            && let Some(message) = self.next_in_one_frame().await?
        {
            return Ok(Some(message));
        }
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

    /// The next message, if it is plain, large and all of the next frame, whose memory it shares. Otherwise the frame
    /// is received.
    async fn next_in_one_frame(&mut self) -> Result<Option<Bytes>, ApiError> {
        let Some(mut data) = self.frame().await? else { return Ok(None) };
        let announced = data.first_chunk().map(|&[_, a, b, c, d]| u32::from_be_bytes([a, b, c, d]) as usize);
        let message_bytes = announced.unwrap_or(0).saturating_add(PREFIX_BYTES);
        let is_plain = data.first() == Some(&0);
        if is_plain && data.len() == message_bytes && (SHARED_BYTES_MIN..=self.max_bytes).contains(&data.len()) {
            let mut hold = self.account.hold();
            hold.grow(data.len())?;
            data.advance(PREFIX_BYTES);
            return Ok(Some(hold.attach(data)));
        }
        self.hold.grow(data.len())?;
        self.received.reserve(message_bytes.min(RESERVE_BYTES_MAX).max(data.len()));
        self.received.extend_from_slice(&data);
        Ok(None)
    }

    /// Reads until `length` bytes are there; false if the body ends before.
    async fn receive(&mut self, length: usize) -> Result<bool, ApiError> {
        while self.received.len() < length {
            let Some(data) = self.frame().await? else { return Ok(false) };
            self.hold.grow(data.len())?;
            self.received.extend_from_slice(&data);
        }
        Ok(true)
    }

    /// The data of the next frame; `None` at the end of the body.
    async fn frame(&mut self) -> Result<Option<Bytes>, ApiError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, format!("the request cannot be read: {error}"))
            })?;
            // Trailers have no meaning here.
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
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
