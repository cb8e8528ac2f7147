//! Connections with HTTP/2: how calls come to the methods, and how a connection ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::OriginalUri;
use axum::http::uri::Scheme;
use axum::http::{Request, StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use ledge_listener::tls::ApplicationProtocol;
use ledge_listener::{Connection, ConnectionService, end_requested};
use ledge_part::api_error::ApiError;
use ledge_part::{grpc, reply};
use ledge_service::shutdown::Shutdown;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tower_service::Service as _;

use super::SERVICE;
use super::streams::{ConnectionStreams, LongLivedAnswer};

/// The most open streams of a connection.
const STREAMS_MAX: u32 = 100;

/// The most bytes of the headers of a call: names, values and 32 bytes for each (RFC 9113, section 6.5.2).
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;

/// The bytes that a caller may send before they are read: of a stream, and of all streams of a connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// The largest frame that is received. A connection keeps an incomplete one in memory that is not counted.
const FRAME_BYTES_MAX: u32 = 256 << 10;

/// The time between two pings that ask whether a caller is still there, and the time for its reply.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The most calls of a connection that the caller cancels; behind them the connection is closed in order. A client
/// opens another one by itself, and one that opens and resets streams for ever has to begin again.
const CANCELLED_CALLS_MAX: usize = 1000;

/// The time for which a connection that ends waits for streams without a call.
const CLOSING_TIME: Duration = Duration::from_secs(1);

/// The least and the greatest time between two looks at a connection.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(50);
const LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Methods of Triton's interface that this box does not have, with the reason.
const ABSENT_METHODS: [(&str, &str); 3] = [
    ("SharedMemory", "this box has no shared memory with callers: send tensors in raw_input_contents"),
    ("TraceSetting", "this box keeps no traces of calls: GET /metrics and ModelStatistics have their times"),
    ("LogSettings", "the log is set in the section [log] of the configuration"),
];

/// gRPC as the service of connections, over the routes of the methods behind their guards. `idle_timeout` is the time
/// that a connection may be without a stream.
pub fn service(methods: Router, idle_timeout: Duration, write_timeout: Duration) -> ConnectionService {
    let methods = methods.fallback(unknown_method).layer(map_response(with_status));
    let limits = GrpcConnectionTimeouts { idle: idle_timeout, write: write_timeout };
    let serve = move |connection| -> BoxFuture<'static, ()> { Box::pin(serve(methods.clone(), limits, connection)) };
    ConnectionService { name: SERVICE, protocol: ApplicationProtocol::Http2, serve: Arc::new(serve) }
}

async fn unknown_method(OriginalUri(uri): OriginalUri) -> ApiError {
    let absent = ABSENT_METHODS.iter().find(|(method, _)| uri.path().contains(method));
    let reason = absent.map_or("reflection lists the methods", |(_, reason)| *reason);
    ApiError::new(StatusCode::NOT_IMPLEMENTED, format!("no method {}: {reason}", uri.path()))
}

/// Writes an error as a status of gRPC.
async fn with_status(response: Response) -> Response {
    response.extensions().get::<ApiError>().map(grpc::error_response).unwrap_or(response)
}

#[derive(Debug, Clone, Copy)]
struct GrpcConnectionTimeouts {
    idle: Duration,
    write: Duration,
}

/// Runs the streams of a connection as tasks of the daemon.
#[derive(Debug, Clone)]
struct TaskExecutor(Shutdown);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for TaskExecutor {
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

async fn serve(methods: Router, limits: GrpcConnectionTimeouts, connection: Connection) {
    let Connection { stream, peer, calls, tls, shutdown } = connection;
    let mut builder = http2::Builder::new(TaskExecutor(shutdown.clone()));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);

    let streams = ConnectionStreams::new(calls.clone(), limits.write);
    let scheme = if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    let of_service = streams.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let stream = of_service.open();
        let mut request = request.map(Body::new);
        let extensions = request.extensions_mut();
        extensions.insert(peer.clone());
        extensions.insert(scheme.clone());
        extensions.insert(of_service.clone());
        // A router is always ready.
        let answer = is_grpc(&request).then(|| methods.clone().call(request));
        async move {
            let answer = match answer {
                Some(answer) => answer.await,
                None => Ok(reply::error(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "HTTP/2 is for gRPC: use HTTP/1.1")),
            };
            answer.map(|answer| {
                let lasts = answer.extensions().get::<LongLivedAnswer>().is_some();
                answer.map(|body| stream.answer(body, lasts))
            })
        }
    });

    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut end_requested = pin!(end_requested(tls, &calls, &shutdown));
    let mut looks = interval((limits.idle.min(limits.write) / 4).clamp(LOOK_INTERVAL_MIN, LOOK_INTERVAL_MAX));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut ends_at, mut idle_since) = (None, None::<Instant>);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    // Debug level only: callers hang up or send invalid frames at any time.
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::debug!(name: "connection.failed", %error, reason, "connection ended");
                }
                return;
            }
            () = &mut end_requested, if ends_at.is_none() => {
                ends_at = Some(Instant::now() + CLOSING_TIME);
                connection.as_mut().graceful_shutdown();
            }
            _ = looks.tick() => {
                if streams.has_late_reader() {
                    tracing::debug!("closed a connection, because its caller reads no answers");
                    return;
                }
                let now = Instant::now();
                idle_since = streams.is_empty().then(|| idle_since.unwrap_or(now));
                let is_idle = idle_since.is_some_and(|since| now - since >= limits.idle);
                if ends_at.is_none() && (is_idle || streams.cancelled() > CANCELLED_CALLS_MAX) {
                    ends_at = Some(now + CLOSING_TIME);
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
        let is_over = ends_at.is_some_and(|at| Instant::now() >= at) && calls.is_answered();
        if is_over || calls.may_end_now() {
            return;
        }
    }
}

/// Returns `true` for a request of gRPC, by its content type.
fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|content_type| content_type.as_bytes().starts_with(grpc::CONTENT_TYPE.as_bytes()))
}
