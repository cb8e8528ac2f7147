//! Connections with HTTP/1.1: how requests come to the router, and how a connection ends.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use axum::body::Body;
use axum::http::uri::{Authority, Scheme};
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use ledge_listener::tls::ApplicationProtocol;
use ledge_listener::{Connection, ConnectionService, end_requested};
use ledge_part::reply;
use tower_service::Service as _;

use super::config::HttpConfig;
use super::connection_close::{ConnectionRequestTracker, ParseErrorStream};
use super::head_lines::REQUEST_HEAD_BYTES_MAX;
use super::{Routers, SERVICE};

/// HTTP/1.1 as the service of connections.
pub fn service(routers: &Routers, config: &HttpConfig) -> ConnectionService {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(config.header_timeout()).max_buf_size(REQUEST_HEAD_BYTES_MAX);
    let routers = routers.clone();
    let serve = move |connection| -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(serve(builder.clone(), routers.clone(), connection))
    };
    ConnectionService { name: SERVICE, protocol: ApplicationProtocol::Http1, serve: Arc::new(serve) }
}

/// Serves the requests of one connection, one after the other.
async fn serve(builder: http1::Builder, routers: Routers, connection: Connection) {
    let Connection { stream, peer, calls: connection_calls, tls, shutdown } = connection;
    let (calls, requests) = (connection_calls.clone(), ConnectionRequestTracker::default());
    let stream = ParseErrorStream::new(stream, calls.clone(), requests.clone());
    let (router, stop) = (routers.of(&peer), shutdown.clone());
    let scheme = if tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP };
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(|body| Body::new(requests.body(body)));
        request.extensions_mut().insert(peer.clone());
        request.extensions_mut().insert(scheme.clone());
        let (stop, calls, call) = (stop.clone(), calls.clone(), calls.begin());
        // A router is always ready.
        let answer = has_host(&request).then(|| router.clone().call(request));
        async move {
            let mut answer = match answer {
                Some(answer) => answer.await,
                None => Ok(reply::error(StatusCode::BAD_REQUEST, "expected the header host once, with a valid host")),
            };
            if let Ok(answer) = &mut answer
                && (stop.is_restart() || calls.gives_way())
            {
                // This is the last answer on this connection.
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            answer.map(|answer| answer.map(|body| call.until_sent(body)))
        }
    });

    let calls = connection_calls;
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = end_requested(tls, &calls, &shutdown) => {
            Pin::new(&mut connection).graceful_shutdown();
            // hyper would wait for the rest of a head.
            poll_fn(|context| match Pin::new(&mut connection).poll(context) {
                Poll::Pending if calls.may_end_now() => Poll::Ready(Ok(())),
                polled => polled,
            })
            .await
        }
    };

    let error = ended.err();
    if let Some(error) = &error {
        // Debug level only: callers hang up or send invalid requests at any time.
        let reason = std::error::Error::source(error).map(ToString::to_string);
        tracing::debug!(name: "connection.failed", %error, reason, "connection ended");
    }
    let closing = connection.into_parts().io.into_inner().close(error.as_ref());
    tokio::select! {
        biased;
        // A caller that is gone needs no reply.
        _ = closing => {}
        () = shutdown.requested() => {}
        () = calls.asked_to_end() => {}
    }
}

/// Returns `true` if a request has one valid Host header, as HTTP/1.1 requires (RFC 9112, section 3.2). The host may be
/// empty.
fn has_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => request.version() < Version::HTTP_11,
        (Some(host), None) => {
            host.is_empty() || Authority::try_from(host.as_bytes()).is_ok_and(|host| !host.as_str().contains('@'))
        }
        (Some(_), Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::Router;
    use axum::routing::get;
    use ledge_listener::{ConnectionLimits, Handover, Listeners};
    use ledge_service::shutdown::Shutdown;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::{Semaphore, mpsc};

    use super::*;

    /// A server that answers `/` at once and `/wait` when `end` has a permit; `begun` gets a message for each call of
    /// it.
    struct WaitingServer {
        at: SocketAddr,
        begun: mpsc::UnboundedReceiver<()>,
        end: Arc<Semaphore>,
        _shutdown: Shutdown,
    }

    impl WaitingServer {
        async fn with_connections(count: usize) -> Self {
            let address = "127.0.0.1:0".parse().unwrap();
            // Longer than any test, so that only a new connection can end another one here.
            let config = HttpConfig { listen: vec![address], header_timeout_ms: 600_000, ..HttpConfig::default() };
            let limits = ConnectionLimits { max_connections: count, write_timeout: config.write_timeout() };
            let (shutdown, end) = (Shutdown::default(), Arc::new(Semaphore::new(0)));
            let (call, begun) = mpsc::unbounded_channel();
            let ended = end.clone();
            let wait = move || async move {
                call.send(()).unwrap();
                ended.acquire().await.unwrap().forget();
                "late"
            };
            let router = Router::new().route("/", get(async || "soon")).route("/wait", get(wait));
            let bound = Listeners::bind(config.endpoints(), config.socket_mode, &Handover::default()).await;
            let listeners = bound.unwrap();
            let at = listeners.tcp_addresses()[0];
            listeners.serve(&[service(&router.into(), &config)], limits, None, &Arc::default(), &shutdown);
            Self { at, begun, end, _shutdown: shutdown }
        }

        async fn send(&self, bytes: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.at).await.unwrap();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            stream
        }
    }

    async fn rest(stream: &mut TcpStream) -> String {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        rest
    }

    #[tokio::test]
    async fn connections_without_a_request_give_way_to_one_with_a_request() {
        let server = WaitingServer::with_connections(3).await;
        let mut held = Vec::new();
        for bytes in ["", "G", "GET / HTTP/1.1\r\nhost: x\r\n", "", "POST", ""] {
            held.push(server.send(bytes).await);
        }
        let mut newcomer = server.send("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        assert!(rest(&mut newcomer).await.ends_with("soon"));
        for stream in held.iter_mut().take(3) {
            assert_eq!(rest(stream).await, "", "closed for those behind it");
        }
    }

    #[tokio::test]
    async fn a_call_is_never_cut_for_a_newcomer_and_its_answer_is_the_last_of_its_connection() {
        let mut server = WaitingServer::with_connections(2).await;
        let wait = "GET /wait HTTP/1.1\r\nhost: x\r\n\r\n";
        let (mut one, mut other) = (server.send(wait).await, server.send(wait).await);
        server.begun.recv().await.unwrap();
        server.begun.recv().await.unwrap();
        let mut newcomer = server.send(wait).await;
        // As soon as the newcomer waits for a place, the next answer gives up its own.
        server.end.add_permits(1);
        let last = tokio::select! {
            last = rest(&mut one) => last,
            last = rest(&mut other) => last,
        };
        assert!(last.contains("connection: close") && last.ends_with("late"), "{last}");
        server.begun.recv().await.unwrap();
        server.end.add_permits(2);
        let mut first = [0; 15];
        newcomer.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
    }
}
