//! The frame of every method: a request of one message, a response of one or several, and the status in trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::{self, Stream, StreamExt as _};
use http_body_util::StreamBody;
use hyper::body::Frame;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_part::api_error::ApiError;
use ledge_part::grpc::{self, STATUS};
use ledge_part::handler_context::HandlerContext;
use prost::Message;

use super::message_reader::GrpcMessageReader;
use super::methods::{AdmittedCaller, GrpcMethodsState};
use super::streams::LongLivedAnswer;

/// The largest message of methods that take no tensors.
pub const SMALL_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The header with the time that a caller waits: up to eight digits and a unit.
const TIMEOUT_HEADER: HeaderName = HeaderName::from_static("grpc-timeout");

/// The time after which a caller may try again while this box restarts.
pub const RESTART_TIME: Duration = Duration::from_secs(1);

/// The head of a call.
#[derive(Debug, Clone)]
pub struct CallHead {
    /// Pays for the messages of the call.
    pub account: MemoryAccount,
    pub arrived: Instant,
    /// The time after which the answer is useless to the caller.
    pub deadline: Option<Instant>,
}

impl CallHead {
    /// Reads the head of a call.
    pub fn read(request: &Request, context: &HandlerContext) -> Result<Self, ApiError> {
        let arrived = Instant::now();
        let principal = request.extensions().get().cloned().unwrap_or(Principal::Others);
        let account = context.memory().account(principal);
        // A deadline beyond the range of the clock counts as no deadline.
        let deadline = timeout(request.headers())?.and_then(|timeout| arrived.checked_add(timeout));
        Ok(Self { account, arrived, deadline })
    }
}

/// The time in `grpc-timeout`.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get(&TIMEOUT_HEADER) else { return Ok(None) };
    let invalid =
        || ApiError::new(StatusCode::BAD_REQUEST, format!("{TIMEOUT_HEADER}: expected up to eight digits and a unit"));
    let text = value.to_str().map_err(|_| invalid())?;
    let (digits, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(invalid)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number).ok_or_else(invalid)?;
    Ok(Some(match unit {
        "H" => Duration::from_hours(number),
        "M" => Duration::from_mins(number),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return Err(invalid()),
    }))
}

/// A call of a method that takes and gives one message.
pub struct UnaryCall {
    pub methods: GrpcMethodsState,
    caller: Result<AdmittedCaller, ApiError>,
}

impl UnaryCall {
    /// The caller of a method that is not public.
    pub fn caller(&self) -> Result<&AdmittedCaller, ApiError> {
        self.caller.as_ref().map_err(Clone::clone)
    }
}

/// Answers a method with one message for one message of at most [`SMALL_MESSAGE_BYTES_MAX`].
pub async fn unary<Q, A, F, Fut>(methods: GrpcMethodsState, request: Request, answer: F) -> Response
where
    Q: Message + Default,
    A: Message,
    F: FnOnce(UnaryCall, Q) -> Fut,
    Fut: Future<Output = Result<A, ApiError>>,
{
    let answered = async {
        let caller = AdmittedCaller::of(&request);
        let head = CallHead::read(&request, methods.context())?;
        let message = one_message(methods.context(), request, SMALL_MESSAGE_BYTES_MAX, &head.account).await?;
        answer(UnaryCall { methods, caller }, decoded(message)?).await
    };
    match answered.await {
        Ok(answer) => one_answer(framed(&answer)),
        Err(error) => error.into_response(),
    }
}

/// Reads the only message of a request.
pub async fn one_message(
    context: &HandlerContext,
    request: Request,
    max_bytes: usize,
    account: &MemoryAccount,
) -> Result<Bytes, ApiError> {
    let (parts, body) = request.into_parts();
    let mut messages = GrpcMessageReader::new(&parts.headers, body, max_bytes, account.clone());
    let reading = async {
        let message = messages.next().await?;
        let message = message.ok_or_else(|| refused("the request has no message"))?;
        match messages.next().await? {
            None => Ok(message),
            Some(_) => Err(refused("the request has more than one message")),
        }
    };
    let limit = context.limits().timeout;
    tokio::time::timeout(limit, reading).await.map_err(|_| {
        let message = format!("the request did not arrive within {} ms (http.body_timeout_ms)", limit.as_millis());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    })?
}

/// The message in these bytes.
pub fn decoded<M: Message + Default>(bytes: Bytes) -> Result<M, ApiError> {
    M::decode(bytes).map_err(|error| refused(&format!("the message cannot be decoded: {error}")))
}

fn refused(reason: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, reason)
}

/// A message behind its prefix.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    // No answer has four gigabytes: the memory budget is smaller, or an error came before.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// A response of one framed message.
pub fn one_answer(message: Bytes) -> Response {
    with_content_type(Body::new(UnaryBody::Message(message)))
}

/// The body of a response of one message: that, and the status of success. It announces no length, which a call has
/// not.
#[derive(Debug)]
enum UnaryBody {
    Message(Bytes),
    Status,
    End,
}

impl HttpBody for UnaryBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = if matches!(*self, Self::Message(_)) { Self::Status } else { Self::End };
        Poll::Ready(match std::mem::replace(&mut *self, next) {
            Self::Message(message) => Some(Ok(Frame::data(message))),
            Self::Status => Some(Ok(Frame::trailers(success()))),
            Self::End => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::End)
    }
}

fn success() -> HeaderMap {
    HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))])
}

fn with_content_type(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
    response
}

/// A response of framed messages, which ends with their error or with success.
pub fn response(messages: impl Stream<Item = Result<Bytes, ApiError>> + Send + 'static) -> Response {
    let frames = stream::unfold(Some(Box::pin(messages)), |messages| async {
        let mut messages = messages?;
        Some(match messages.next().await {
            Some(Ok(message)) => (Frame::data(message), Some(messages)),
            Some(Err(error)) => (Frame::trailers(grpc::status(&error)), None),
            None => (Frame::trailers(success()), None),
        })
    });
    with_content_type(Body::new(StreamBody::new(frames.map(Ok::<_, Infallible>))))
}

/// A response with a stream that stays open while it has no message to send.
pub fn lasting_response(messages: impl Stream<Item = Result<Bytes, ApiError>> + Send + 'static) -> Response {
    let mut response = response(messages);
    response.extensions_mut().insert(LongLivedAnswer);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_digits_and_a_unit() {
        let read = |text: &str| {
            let headers = HeaderMap::from_iter([(TIMEOUT_HEADER, HeaderValue::from_str(text).unwrap())]);
            timeout(&headers).ok().flatten()
        };
        assert_eq!(read("250m"), Some(Duration::from_millis(250)));
        assert_eq!(read("99999999H"), Some(Duration::from_hours(99_999_999)));
        assert_eq!(read("1n"), Some(Duration::from_nanos(1)));
        for invalid in ["", "1", "m", "1.5S", "-1S", "+1S", "123456789u", "1s", " 1S", "1ms"] {
            assert_eq!(read(invalid), None, "{invalid}");
        }
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
    }
}
