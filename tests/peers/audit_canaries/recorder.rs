//! `Recorder`: a TLS server that passes everything on to a server behind it, and keeps every decrypted byte.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Authority;

/// A connection: the certificate of the client, and the bytes in both directions.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    pub certificate: Vec<u8>,
    pub sent: Vec<u8>,
    pub received: Vec<u8>,
}

/// Ends when it is dropped.
pub struct Recorder {
    pub port: u16,
    connections: Arc<Mutex<Vec<Connection>>>,
    _runtime: Runtime,
}

/// One direction of one connection.
struct Record {
    connections: Arc<Mutex<Vec<Connection>>>,
    at: usize,
    bytes: fn(&mut Connection) -> &mut Vec<u8>,
}

impl Recorder {
    /// Takes clients with a certificate of `authority`. Without a server behind it, it only listens.
    pub fn start(authority: &Authority, behind: Option<u16>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(authority)));
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<Mutex<Vec<Connection>>>::default();
        let shared = connections.clone();
        runtime.spawn(async move {
            let mut connected = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connected.spawn(serve(stream, acceptor.clone(), behind, shared.clone()));
            }
        });
        Self { port, connections, _runtime: runtime }
    }

    /// `HOST:PORT`, as in the settings.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The bytes recorded so far.
    pub fn connections(&self) -> Vec<Connection> {
        self.connections.lock().unwrap().clone()
    }
}

fn server_config(authority: &Authority) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let identity = authority.issue("127.0.0.1");
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    builder.with_client_cert_verifier(verifier).with_single_cert(vec![certificate], key).unwrap()
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    behind: Option<u16>,
    connections: Arc<Mutex<Vec<Connection>>>,
) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let at = {
        let mut connections = connections.lock().unwrap();
        connections.push(Connection { certificate, ..Connection::default() });
        connections.len() - 1
    };
    let record = |bytes| Record { connections: connections.clone(), at, bytes };
    let (sent, received) = (record(|connection| &mut connection.sent), record(|connection| &mut connection.received));
    let (reader, writer) = tokio::io::split(stream);
    let Some(port) = behind else { return sent.pump(reader, tokio::io::sink()).await };
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    let (from_server, to_server) = server.into_split();
    tokio::join!(sent.pump(reader, to_server), received.pump(from_server, writer));
}

impl Record {
    /// Keeps the bytes before the other side can act on them.
    async fn pump(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut buffer = vec![0; 1 << 16];
        // A client that disconnects without a word has ended its stream, too.
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            (self.bytes)(&mut self.connections.lock().unwrap()[self.at]).extend_from_slice(&buffer[..count]);
            if to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
            let _ = to.flush().await;
        }
        let _ = to.shutdown().await;
    }
}
