//! The files of `[http.tls]`, read and ready to serve with.

use std::sync::Arc;

use ledge_base::secret::SecretFile;
use ledge_egress::{CERTIFICATE_FILE_BYTES_MAX, CertificateTime, TlsError, certificates, identity_error, private_key};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::certificate::{CertificateFacts, UnreadableCertificate, next_update_ms};
use super::config::{ClientCertificates, TlsConfig};
use super::self_signed::SelfSignedError;

/// The protocol on a connection (RFC 7301), one for each listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplicationProtocol {
    Http1,
    Http2,
}

impl ApplicationProtocol {
    /// The identification sequence.
    fn id(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// The reason why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    #[error(transparent)]
    File(#[from] TlsError),
    #[error(
        "no certificate is configured: set http.tls.certificate_file and http.tls.key_file, or http.tls.self_signed"
    )]
    NoCertificate,
    #[error("the certificate in {file} cannot be used: {reason}")]
    Unreadable { file: SecretFile, reason: UnreadableCertificate },
    /// A new certificate that has expired, while the one in use is valid.
    #[error("the certificate in {file} has expired")]
    Expired { file: SecretFile },
    #[error("the certificate in {file} is not valid before {from}")]
    NotYet {
        file: SecretFile,
        /// The begin of its validity, in RFC 3339.
        from: String,
    },
    #[error("{file} contains no valid list of revoked certificates (CRL, as PEM or DER): {reason}")]
    Revoked { file: SecretFile, reason: String },
    #[error("client certificates cannot be verified with {file}: {reason}")]
    ClientCa { file: SecretFile, reason: String },
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// The content of the files, ready to serve with.
pub(super) struct LoadedTlsFiles {
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
    pub facts: CertificateFacts,
    /// The time at which the next list of revoked certificates is due, in milliseconds since the Unix epoch.
    pub crl_due_ms: Option<u64>,
    /// The digest of everything that was read.
    pub digest: blake3::Hash,
    pub trust: ClientTrust,
}

/// The authorities and revocations that client certificates are verified with.
#[derive(Clone)]
pub(super) struct ClientTrust {
    /// The digest of the authorities and their revocations.
    pub digest: blake3::Hash,
    pub verifier: Arc<dyn ClientCertVerifier>,
}

/// The files to read, and the settings that apply to them.
pub(super) struct TlsFilesToLoad<'a> {
    pub settings: &'a TlsConfig,
    /// The certificate and its key.
    pub pair: (&'a SecretFile, &'a SecretFile),
    /// The clock that client certificates are verified with.
    pub time: CertificateTime,
    /// The tickets with which clients resume connections.
    pub tickets: Option<&'a Arc<dyn ProducesTickets>>,
}

impl TlsFilesToLoad<'_> {
    /// Reads the files. It blocks.
    pub fn read(self) -> Result<LoadedTlsFiles, ServerTlsError> {
        let (certificate_file, key_file) = self.pair;
        let chain = certificates(certificate_file)?;
        let key = private_key(key_file)?;
        let unreadable = |reason| ServerTlsError::Unreadable { file: certificate_file.clone(), reason };
        let leaf = chain.first().ok_or(ServerTlsError::NoCertificate)?;
        let facts = CertificateFacts::read(leaf).map_err(unreadable)?;
        let mut digest = blake3::Hasher::new();
        for certificate in &chain {
            add(&mut digest, certificate);
        }
        add(&mut digest, key.secret_der());

        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let clients = ClientAuthorities::read(self.settings)?;
        let trust_digest = clients.digest();
        digest.update(trust_digest.as_bytes());
        let crl_due_ms = clients.crls.iter().filter_map(|crl| next_update_ms(crl)).min();
        let asks = clients.asks();
        let trust = ClientTrust { digest: trust_digest, verifier: clients.verifier(self.settings, provider.clone())? };

        let builder = ServerConfig::builder_with_details(provider, Arc::new(self.time))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| ServerTlsError::Setup(error.to_string()))?
            .with_client_cert_verifier(trust.verifier.clone());
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| identity_error(error, certificate_file, key_file))?;
        // A resumed connection keeps the client certificate of its first handshake, even if it was revoked or has
        // expired since. Therefore each connection must present a client certificate if these are used. Otherwise the
        // state is in the ticket, and a flood of handshakes uses no memory here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match self.tickets {
            Some(tickets) if !asks => config.ticketer = tickets.clone(),
            _ => config.send_tls13_tickets = 0,
        }
        let with = |protocol: ApplicationProtocol| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.id().to_vec()];
            Arc::new(config)
        };
        let (http1, http2) = (with(ApplicationProtocol::Http1), with(ApplicationProtocol::Http2));
        Ok(LoadedTlsFiles { http1, http2, facts, crl_due_ms, digest: digest.finalize(), trust })
    }
}

impl LoadedTlsFiles {
    /// Accepts handshakes that agree on `protocol`.
    pub fn acceptor(&self, protocol: ApplicationProtocol) -> TlsAcceptor {
        match protocol {
            ApplicationProtocol::Http1 => self.http1.clone().into(),
            ApplicationProtocol::Http2 => self.http2.clone().into(),
        }
    }
}

/// The authorities of client certificates, and their revocations.
struct ClientAuthorities {
    roots: RootCertStore,
    crls: Vec<CertificateRevocationListDer<'static>>,
}

impl ClientAuthorities {
    fn read(settings: &TlsConfig) -> Result<Self, ServerTlsError> {
        let (mut roots, mut crls) = (RootCertStore::empty(), Vec::new());
        if let Some(file) = &settings.client_ca_file {
            for certificate in certificates(file)? {
                roots
                    .add(certificate)
                    .map_err(|error| ServerTlsError::ClientCa { file: file.clone(), reason: error.to_string() })?;
            }
            if let Some(file) = &settings.client_crl_file {
                crls = revocation_lists(file)?;
            }
        }
        Ok(Self { roots, crls })
    }

    fn asks(&self) -> bool {
        !self.roots.is_empty()
    }

    fn digest(&self) -> blake3::Hash {
        let mut digest = blake3::Hasher::new();
        for root in &self.roots.roots {
            add(&mut digest, &root.subject);
            add(&mut digest, &root.subject_public_key_info);
            add(&mut digest, root.name_constraints.as_deref().unwrap_or_default());
        }
        for crl in &self.crls {
            add(&mut digest, crl);
        }
        digest.finalize()
    }

    fn verifier(
        self,
        settings: &TlsConfig,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, ServerTlsError> {
        let file = match (settings.client_certificates, &settings.client_ca_file) {
            (ClientCertificates::None, _) => return Ok(WebPkiClientVerifier::no_client_auth()),
            (_, Some(file)) => file,
            // Without authorities every certificate would be accepted.
            (_, None) => return Err(ServerTlsError::Setup("http.tls.client_ca_file is not set".into())),
        };
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots), provider).with_crls(self.crls);
        let builder = match settings.client_certificates {
            ClientCertificates::Required => builder,
            _ => builder.allow_unauthenticated(),
        };
        builder.build().map_err(|error| match (error, &settings.client_crl_file) {
            (VerifierBuilderError::InvalidCrl(error), Some(file)) => {
                ServerTlsError::Revoked { file: file.clone(), reason: format!("{error:?}") }
            }
            (error, _) => ServerTlsError::ClientCa { file: file.clone(), reason: error.to_string() },
        })
    }
}

/// Reads lists of revoked certificates as PEM, or as the DER that authorities publish.
fn revocation_lists(file: &SecretFile) -> Result<Vec<CertificateRevocationListDer<'static>>, ServerTlsError> {
    let content = file.read_at_most(CERTIFICATE_FILE_BYTES_MAX).map_err(TlsError::from)?;
    let wrong = |reason: String| ServerTlsError::Revoked { file: file.clone(), reason };
    // The DER tag of a sequence; no PEM text begins with it.
    if content.first() == Some(&0x30) {
        return Ok(vec![content.to_vec().into()]);
    }
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&content).collect();
    let found = found.map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() { Err(wrong("the file has no list".into())) } else { Ok(found) }
}

fn add(digest: &mut blake3::Hasher, bytes: &[u8]) {
    digest.update(&bytes.len().to_le_bytes());
    digest.update(bytes);
}
