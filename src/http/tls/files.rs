//! What the files of `[http.tls]` hold, ready to serve with.

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
use super::config::{ClientCertificates, HttpTlsConfig};
use super::self_signed::SelfSignedError;

/// The only application protocol.
const ALPN: &[u8] = b"http/1.1";

/// Why there is nothing to serve TLS with.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    #[error(transparent)]
    File(#[from] TlsError),
    #[error("no certificate is set: set http.tls.certificate_file and http.tls.key_file, or http.tls.self_signed")]
    NoCertificate,
    #[error("the certificate in {file} is of no use: {reason}")]
    Unreadable { file: SecretFile, reason: UnreadableCertificate },
    /// A new certificate that is worse than the one there is.
    #[error("the certificate in {file} has expired")]
    Expired { file: SecretFile },
    #[error("the certificate in {file} begins at {from}")]
    NotYet {
        file: SecretFile,
        /// When, as RFC 3339 writes it.
        from: String,
    },
    #[error("{file} holds no list of revoked certificates (CRL, as PEM or DER) that can be used: {reason}")]
    Revoked { file: SecretFile, reason: String },
    #[error("client certificates cannot be judged by {file}: {reason}")]
    ClientCa { file: SecretFile, reason: String },
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
    #[error("TLS cannot be served: {0}")]
    Setup(String),
}

/// What was read.
pub(super) struct Material {
    pub acceptor: TlsAcceptor,
    pub facts: CertificateFacts,
    /// When the next list of revoked certificates was due, in milliseconds since the Unix epoch.
    pub crl_due_ms: Option<u64>,
    /// Of all that was read.
    pub digest: blake3::Hash,
    /// What client certificates are judged by.
    pub trust: Trust,
}

/// What client certificates are judged by.
#[derive(Clone)]
pub(super) struct Trust {
    /// Of the authorities, and what they have revoked.
    pub digest: blake3::Hash,
    pub verifier: Arc<dyn ClientCertVerifier>,
}

/// How to make it.
pub(super) struct Recipe<'a> {
    /// The section `[http.tls]`.
    pub settings: &'a HttpTlsConfig,
    /// The certificate and its key.
    pub pair: (&'a SecretFile, &'a SecretFile),
    /// By which clock client certificates are judged.
    pub time: CertificateTime,
    /// For clients that come back.
    pub tickets: Option<&'a Arc<dyn ProducesTickets>>,
}

impl Recipe<'_> {
    /// Reads the files. It blocks.
    pub fn read(self) -> Result<Material, ServerTlsError> {
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
        let clients = Clients::read(self.settings)?;
        let trust_digest = clients.digest();
        digest.update(trust_digest.as_bytes());
        let crl_due_ms = clients.crls.iter().filter_map(|crl| next_update_ms(crl)).min();
        let asks = clients.asks();
        let trust = Trust { digest: trust_digest, verifier: clients.verifier(self.settings, provider.clone())? };
        let builder = ServerConfig::builder_with_details(provider, Arc::new(self.time))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| ServerTlsError::Setup(error.to_string()))?
            .with_client_cert_verifier(trust.verifier.clone());
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| identity_error(error, certificate_file, key_file))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // A session that is resumed keeps the client certificate that it began with, whatever was revoked or has expired
        // since: where certificates count, each connection shows one anew. Otherwise the state is in the ticket, and a
        // flood of handshakes leaves nothing here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match self.tickets {
            Some(tickets) if !asks => config.ticketer = tickets.clone(),
            _ => config.send_tls13_tickets = 0,
        }
        Ok(Material { acceptor: Arc::new(config).into(), facts, crl_due_ms, digest: digest.finalize(), trust })
    }
}

/// What client certificates are judged by.
struct Clients {
    roots: RootCertStore,
    crls: Vec<CertificateRevocationListDer<'static>>,
}

impl Clients {
    fn read(settings: &HttpTlsConfig) -> Result<Self, ServerTlsError> {
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
        settings: &HttpTlsConfig,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, ServerTlsError> {
        let file = match (settings.client_certificates, &settings.client_ca_file) {
            (ClientCertificates::None, _) => return Ok(WebPkiClientVerifier::no_client_auth()),
            (_, Some(file)) => file,
            // Nobody who asks for certificates without saying whose may let everybody in.
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

/// As PEM, or as the DER that authorities publish.
fn revocation_lists(file: &SecretFile) -> Result<Vec<CertificateRevocationListDer<'static>>, ServerTlsError> {
    let content = file.read_at_most(CERTIFICATE_FILE_BYTES_MAX).map_err(TlsError::from)?;
    let wrong = |reason: String| ServerTlsError::Revoked { file: file.clone(), reason };
    // The tag of a sequence, with which no PEM text begins.
    if content.first() == Some(&0x30) {
        return Ok(vec![content.to_vec().into()]);
    }
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&content).collect();
    let found = found.map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() { Err(wrong("it has none".into())) } else { Ok(found) }
}

fn add(digest: &mut blake3::Hasher, bytes: &[u8]) {
    digest.update(&bytes.len().to_le_bytes());
    digest.update(bytes);
}
