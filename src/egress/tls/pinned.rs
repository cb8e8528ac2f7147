//! A server that is known by its certificate itself: cameras and other devices sign their own.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use super::error::TlsError;
use super::files::certificates;
use super::fingerprint::{CertificateFingerprint, CertificatePin};

/// The server presented another certificate than the pinned one.
#[derive(Debug, thiserror::Error)]
#[error("not the pinned certificate")]
pub(super) struct NotPinned {
    pub presented: CertificateFingerprint,
}

impl CertificatePin {
    /// The fingerprint. It reads the file, which blocks.
    fn fingerprint(&self) -> Result<CertificateFingerprint, TlsError> {
        match self {
            Self::Sha256(fingerprint) => Ok(*fingerprint),
            Self::File(file) => match certificates(file)?.first() {
                Some(certificate) => Ok(CertificateFingerprint::of(certificate)),
                None => Err(TlsError::NoCertificate { file: file.clone() }),
            },
        }
    }
}

/// Accepts one certificate, and proves by the handshake that the server has its key.
#[derive(Debug)]
pub(super) struct PinnedCertificateVerifier {
    pinned: CertificateFingerprint,
    provider: Arc<CryptoProvider>,
}

impl PinnedCertificateVerifier {
    pub fn new(pin: &CertificatePin, provider: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        Ok(Self { pinned: pin.fingerprint()?, provider })
    }
}

impl ServerCertVerifier for PinnedCertificateVerifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _issuers: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = CertificateFingerprint::of(presented);
        if presented == self.pinned {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::Other(OtherError(Arc::new(NotPinned { presented }))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
