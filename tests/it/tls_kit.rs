//! A box with an `https://` address, its authority, and a client that speaks TLS.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::certificates::{Authority, Identity};
use crate::client::Client;
use crate::daemon::{TestRoot, write};

/// Only an https:// address over TCP; plain HTTP over the socket.
pub const LISTEN: &str = "http.listen=[\"https://127.0.0.1:0\", \"unix:ledge.sock\"]";

pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A client that trusts one authority.
pub struct TlsClient {
    pub config: ClientConfig,
}

impl TlsClient {
    /// Which shows `identity`.
    pub fn new(trusted: &str, identity: Option<&Identity>) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).map(Result::unwrap);
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain.collect(), key).unwrap()
            }
        };
        Self { config }
    }

    /// A connection with a handshake that is complete on this side.
    pub fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_mins(1)))?;
        let name = address.ip().into();
        let connection = ClientConnection::new(Arc::new(self.config.clone()), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(stream)
    }

    /// The same, to ask over.
    pub fn client(&self, address: SocketAddr) -> io::Result<Client> {
        self.connect(address).map(Client::over)
    }

    /// Returns `true` if a new connection gets an answer. A client certificate is judged after the handshake.
    pub fn is_served(&self, address: SocketAddr) -> bool {
        self.client(address).and_then(|mut client| client.try_get("/v2")).is_ok_and(|answer| answer.status == 200)
    }

    /// The certificate that is shown now: a session that is resumed still has the one that it began with.
    pub fn shown(&self, address: SocketAddr) -> Vec<u8> {
        let mut config = self.config.clone();
        config.resumption = rustls::client::Resumption::disabled();
        Self { config }.connect(address).unwrap().conn.peer_certificates().unwrap()[0].to_vec()
    }
}

/// A certificate as the bytes that are shown.
pub fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

/// Puts a certificate and its key where [`with_certificate`] has them.
pub fn put(root: &TestRoot, identity: &Identity) {
    write(&root.folder.path().join("box.key"), identity.key.as_bytes());
    write(&root.folder.path().join("box.pem"), identity.certificate.as_bytes());
}

/// A root of a box with a certificate of this authority.
pub fn with_certificate(root: TestRoot, authority: &Authority) -> TestRoot {
    put(&root, &authority.issue("127.0.0.1"));
    root.set(LISTEN).set("http.tls.certificate_file=\"box.pem\"").set("http.tls.key_file=\"box.key\"")
}
