//! `TestPlatform`: a web server that keeps uploads in memory, and misbehaves on demand.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The fault of a request.
#[derive(Debug, Clone, Copy)]
pub enum PlatformFault {
    /// It is answered so, and nothing else happens.
    Status(u16),
    /// The connection breaks before the body has come.
    CutBefore,
    /// It is done, and then the connection breaks.
    CutAfter,
    /// There is more after a while.
    RetryAfter,
}

type FaultRule = dyn Fn(&Method, &str, usize) -> Option<PlatformFault> + Send + Sync;

struct PlatformShared {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    requests: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
    bytes: AtomicU64,
    faults: Mutex<Arc<FaultRule>>,
}

/// A running server.
pub struct TestPlatform {
    port: u16,
    shared: Arc<PlatformShared>,
}

impl TestPlatform {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(PlatformShared {
            files: Mutex::default(),
            requests: Mutex::default(),
            count: watch::channel(0).0,
            bytes: AtomicU64::new(0),
            faults: Mutex::new(Arc::new(|_: &Method, _: &str, _: usize| None)),
        });
        let served = shared.clone();
        #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = served.clone();
                #[expect(clippy::disallowed_methods, reason = "it ends with the runtime of the test")]
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(shared.clone(), request));
                    // The tests break connections, so errors are expected.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/audit/", self.port)
    }

    /// Sets the fault of a request, by its method, its path and its number from 0.
    pub fn misbehave(&self, faults: impl Fn(&Method, &str, usize) -> Option<PlatformFault> + Send + Sync + 'static) {
        *self.shared.faults.lock().unwrap() = Arc::new(faults);
    }

    pub fn behave(&self) {
        self.misbehave(|_, _, _| None);
    }

    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.shared.files.lock().unwrap().clone()
    }

    pub fn set(&self, path: &str, content: &[u8]) {
        self.shared.files.lock().unwrap().insert(path.to_owned(), content.to_vec());
    }

    pub fn restore(&self, files: BTreeMap<String, Vec<u8>>) {
        *self.shared.files.lock().unwrap() = files;
    }

    /// The requests since this was last asked: method, path and answer.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.shared.requests.lock().unwrap())
    }

    /// The bytes received in bodies.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Waits until this many requests were answered since the start.
    pub async fn answered(&self, count: usize) {
        self.shared.count.subscribe().wait_for(|answered| *answered >= count).await.unwrap();
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the connection breaks")]
struct Broken;

async fn answer(shared: Arc<PlatformShared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Broken> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let number = *shared.count.borrow();
    let faults = shared.faults.lock().unwrap().clone();
    let fault = faults(&method, &path, number);
    let is_new = request.headers().get("if-none-match").is_some_and(|value| value == "*");
    let respond = |status: u16, body: Vec<u8>| -> Result<_, Infallible> {
        shared.requests.lock().unwrap().push(format!("{method} {path} {status}"));
        shared.count.send_modify(|count| *count += 1);
        let mut response = Response::new(Full::new(body.into()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        Ok(response)
    };
    let done = match fault {
        Some(PlatformFault::CutBefore) => {
            shared.count.send_modify(|count| *count += 1);
            return Err(Broken);
        }
        Some(PlatformFault::Status(status)) => respond(status, Vec::new()),
        Some(PlatformFault::RetryAfter) => respond(503, Vec::new()).map(|mut response| {
            response.headers_mut().insert("retry-after", 3600.into());
            response
        }),
        None | Some(PlatformFault::CutAfter) => {
            let body = request.into_body().collect().await.map_err(|_| Broken)?.to_bytes().to_vec();
            shared.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
            let mut files = shared.files.lock().unwrap();
            let there = files.get(&path).cloned();
            match (method.as_str(), there) {
                ("GET", Some(file)) => respond(200, file),
                ("GET", None) => respond(404, Vec::new()),
                (_, Some(_)) if is_new => respond(412, Vec::new()),
                (_, there) => {
                    files.insert(path.clone(), body);
                    respond(if there.is_some() { 204 } else { 201 }, Vec::new())
                }
            }
        }
    };
    let Ok(response) = done;
    if matches!(fault, Some(PlatformFault::CutAfter)) { Err(Broken) } else { Ok(response) }
}
