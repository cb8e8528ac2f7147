//! TLS as a client, and the files that TLS clients and servers read.

mod error;
mod files;
mod fingerprint;
mod pinned;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ledge_base::clock::{self, ClockFloor};
use ledge_base::secret::SecretFile;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::{Host, HostPort};
pub use error::TlsError;
use files::fault_in_words;
pub use files::{CERTIFICATE_FILE_BYTES_MAX, certificates, identity_error, private_key};
pub use fingerprint::{CertificateFingerprint, CertificatePin, InvalidCertificateFingerprint};
use pinned::{NotPinned, PinnedCertificateVerifier};

/// The CA for the server's certificate, and the certificate of this client. The files are read at each connection, so
/// that a renewed certificate needs no restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsClientSettings {
    /// A PEM file with the CA certificates that are trusted instead of the system's.
    pub ca: Option<SecretFile>,
    /// A PEM file with the client's certificate, followed by its issuers.
    pub certificate: Option<SecretFile>,
    /// A PEM file with the key of that certificate.
    pub key: Option<SecretFile>,
    /// The one certificate that the server may present, in place of any CA.
    pub pinned: Option<CertificatePin>,
}

/// A TLS client that has read its files and is ready to connect.
pub(super) struct TlsClient {
    connector: TlsConnector,
    name: ServerName<'static>,
    peer: TlsPeer,
}

/// The time at which certificates are checked: the clock's, but never before the proven time.
#[derive(Debug)]
pub struct CertificateTime {
    /// The clock, in milliseconds since the Unix epoch.
    pub system_ms: fn() -> u64,
    /// The proven time.
    pub floor: &'static ClockFloor,
}

impl TimeProvider for CertificateTime {
    fn current_time(&self) -> Option<UnixTime> {
        let now_ms = self.floor.plausible_millis((self.system_ms)());
        Some(UnixTime::since_unix_epoch(Duration::from_millis(now_ms)))
    }
}

/// The details of a connection that explain its failure.
#[derive(Debug, Clone)]
pub(super) struct TlsPeer {
    trusted: String,
    certificate: Option<SecretFile>,
}

impl TlsClient {
    /// Reads the files. Blocks.
    pub(super) fn read(settings: &TlsClientSettings, to: &HostPort) -> Result<Self, TlsError> {
        Self::read_at(settings, to, CertificateTime { system_ms: clock::unix_millis, floor: &clock::FLOOR })
    }

    /// As [`Self::read`], with certificates checked at `time`.
    pub(super) fn read_at(
        settings: &TlsClientSettings,
        to: &HostPort,
        time: CertificateTime,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let failed = |error: Error| TlsError::Failed { reason: error.to_string() };
        let builder = ClientConfig::builder_with_details(provider, Arc::new(time))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(failed)?;
        let builder = match &settings.pinned {
            Some(pin) => {
                let verifier = PinnedCertificateVerifier::new(pin, builder.crypto_provider().clone())?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            None => builder.with_root_certificates(roots(settings.ca.as_ref())?),
        };

        let mut config = match (&settings.certificate, &settings.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(certificate), Some(key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| identity_error(error, certificate, key))?,
            _ => return Err(TlsError::Half),
        };
        // Each connection reads its files again, so there is nothing to resume.
        config.resumption = rustls::client::Resumption::disabled();

        let name = match &to.host {
            Host::Ip(address) => ServerName::IpAddress((*address).into()),
            Host::Name(name) => ServerName::try_from(name.clone())
                .map_err(|_| TlsError::Failed { reason: format!("{name} cannot be the name in a certificate") })?,
        };
        let trusted = match &settings.ca {
            Some(file) => format!("a CA in {file}"),
            None => "a CA that this machine trusts".to_owned(),
        };
        let peer = TlsPeer { trusted, certificate: settings.certificate.clone() };
        Ok(Self { connector: Arc::new(config).into(), name, peer })
    }

    /// Does the handshake over `stream`.
    pub(super) async fn connect<S>(self, stream: S) -> Result<(TlsStream<S>, TlsPeer), TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match self.connector.connect(self.name, stream).await {
            Ok(stream) => Ok((stream, self.peer)),
            Err(error) => Err(self.peer.explain(error)),
        }
    }
}

impl TlsPeer {
    /// The error for a failed handshake.
    fn explain(&self, error: io::Error) -> TlsError {
        match of_rustls(&error) {
            Some(Error::InvalidMessage(_)) => TlsError::NotTls,
            Some(Error::InvalidCertificate(fault)) => self.certificate_error(fault),
            Some(Error::AlertReceived(alert)) => self.alert(*alert),
            Some(other) => TlsError::Failed { reason: other.to_string() },
            None => TlsError::Closed { reason: error },
        }
    }

    /// The error after a handshake. In TLS 1.3 the server checks the client's certificate after the client has finished
    /// the handshake, so a refusal comes in place of the first answer.
    pub(super) fn explain_later(&self, error: io::Error) -> io::Error {
        match of_rustls(&error) {
            Some(Error::AlertReceived(alert)) => io::Error::new(error.kind(), self.alert(*alert)),
            _ => error,
        }
    }

    fn alert(&self, alert: AlertDescription) -> TlsError {
        use AlertDescription as Alert;
        let about_certificate = matches!(
            alert,
            Alert::CertificateRequired
                | Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                | Alert::DecryptError
        );
        match &self.certificate {
            Some(certificate) if about_certificate => {
                TlsError::CertificateRefused { certificate: certificate.clone(), alert: format!("{alert:?}") }
            }
            None if about_certificate => TlsError::CertificateRequired,
            // TLS 1.2 answers this for a missing certificate, among other reasons.
            None if alert == Alert::HandshakeFailure => TlsError::Failed {
                reason: "the server answered with the alert HandshakeFailure: does it want a client certificate?"
                    .into(),
            },
            _ => TlsError::Failed { reason: format!("the server answered with the alert {alert:?}") },
        }
    }

    fn certificate_error(&self, fault: &CertificateError) -> TlsError {
        match fault {
            // A CA that was created again under its old name causes a bad signature.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsError::Untrusted { trusted: self.trusted.clone() }
            }
            CertificateError::NotValidForNameContext { expected, presented } => {
                TlsError::WrongName { expected: expected.to_str().into_owned(), presented: names(presented) }
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TlsError::Dated { when: "has expired" }
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsError::Dated { when: "is not valid yet" }
            }
            CertificateError::Other(other) if let Some(NotPinned { presented }) = other.0.downcast_ref() => {
                TlsError::NotPinned { presented: *presented }
            }
            other => TlsError::Unacceptable { reason: fault_in_words(other) },
        }
    }
}

/// The names in a certificate without the syntax of rustls, which has `DnsName("x")`.
fn names(presented: &[String]) -> String {
    let name = |text: &String| text.split('"').nth(1).unwrap_or(text).to_owned();
    match presented {
        [] => "no name at all (no subjectAltName)".to_owned(),
        names => names.iter().map(name).collect::<Vec<_>>().join(", "),
    }
}

fn of_rustls(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn roots(ca: Option<&SecretFile>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = ca {
        for certificate in certificates(file)? {
            let reason = |error: Error| TlsError::BadCertificate { file: file.clone(), reason: error.to_string() };
            roots.add(certificate).map_err(reason)?;
        }
        return Ok(roots);
    }
    // Skip unreadable certificates of the system: if a needed one is missing, the handshake reports it.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(TlsError::NoSystemCa) } else { Ok(roots) }
}
