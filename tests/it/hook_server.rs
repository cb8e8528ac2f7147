//! `HookServer`: the receiver of alerts, a web server of a few lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use crate::certificates::Identity;

/// A message that does not come by then will not come.
const LIMIT: Duration = Duration::from_secs(90);

/// A request that was accepted.
#[derive(Debug)]
pub struct Hooked {
    /// The request line, then each header in lower case.
    pub head: Vec<String>,
    pub message: Value,
}

impl Hooked {
    /// The check and the status, as `state firing`.
    pub fn news(&self) -> String {
        format!("{} {}", self.message["check"].as_str().unwrap(), self.message["status"].as_str().unwrap())
    }
}

/// Takes messages at `/hook`.
pub struct HookServer {
    pub port: u16,
    scheme: &'static str,
    /// The status of all answers.
    status: Arc<AtomicU16>,
    accepted: Mutex<Receiver<Hooked>>,
}

impl HookServer {
    /// Listens on a free port until the process of the test ends.
    pub fn start() -> Self {
        Self::listen("http", converse)
    }

    /// The same, over TLS. It presents this certificate.
    pub fn start_tls(identity: &Identity) -> Self {
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap());
        Self::listen("https", move |stream, status, accepted| {
            let connection = ServerConnection::new(config.clone()).unwrap();
            converse(StreamOwned::new(connection, stream), status, accepted);
        })
    }

    fn listen(
        scheme: &'static str,
        converse: impl Fn(TcpStream, &AtomicU16, &Sender<Hooked>) + Clone + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, accepted) = channel();
        let status = Arc::new(AtomicU16::new(204));
        let shared = status.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, status, sender, converse) =
                    (stream.unwrap(), shared.clone(), sender.clone(), converse.clone());
                std::thread::spawn(move || converse(stream, &status, &sender));
            }
        });
        Self { port, scheme, status, accepted: Mutex::new(accepted) }
    }

    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}/hook?key=of-the-hook", self.scheme, self.port)
    }

    /// Answers with this status from now on. Messages that it refuses are forgotten.
    pub fn answer(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// The next message that it accepted.
    #[track_caller]
    pub fn next(&self) -> Hooked {
        self.accepted.lock().unwrap().recv_timeout(LIMIT).expect("a message")
    }

    /// The messages that it has accepted and that [`Self::next`] did not return.
    pub fn rest(&self) -> Vec<Hooked> {
        self.accepted.lock().unwrap().try_iter().collect()
    }
}

fn converse(stream: impl Read + Write, status: &AtomicU16, accepted: &Sender<Hooked>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if !matches!(stream.read_line(&mut line), Ok(1..)) {
                return;
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).unwrap();
        let status = status.load(Ordering::Relaxed);
        // Recorded before the answer, so that a test that waits for the effect of the answer finds it.
        if (200..300).contains(&status) {
            let _ = accepted.send(Hooked { head, message: serde_json::from_slice(&body).unwrap() });
        }
        let answer = format!("HTTP/1.1 {status} -\r\ncontent-length: 0\r\n\r\n");
        if stream.get_mut().write_all(answer.as_bytes()).and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
    }
}
