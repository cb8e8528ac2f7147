//! Certificates of the platform's authority: verified chains, signatures by their keys, the time of renewal.

use std::time::Duration;

use ledge_base::clock;
use ledge_listener::tls::CertificateFacts;
use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use webpki::aws_lc_rs::{ECDSA_P256_SHA256, ECDSA_P256_SHA384, ECDSA_P384_SHA256, ECDSA_P384_SHA384, ED25519};
use webpki::aws_lc_rs::{RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// The most certificates of a chain: a certificate, its issuer, and spare.
const CHAIN_CERTIFICATES_MAX: usize = 8;

/// The signatures that authorities make.
const SIGNATURE_ALGORITHMS: &[&dyn rustls::pki_types::SignatureVerificationAlgorithm] = &[
    ECDSA_P256_SHA256,
    ECDSA_P256_SHA384,
    ECDSA_P384_SHA256,
    ECDSA_P384_SHA384,
    ED25519,
    RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512,
];

/// A certificate, followed by its issuers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateChain(Vec<CertificateDer<'static>>);

/// The reason why a certificate is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("there is no certificate in PEM format")]
    None,
    #[error("a certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the private key cannot be read: {0}")]
    UnreadableKey(String),
    #[error("the certificate is not valid: {0}")]
    Invalid(String),
    #[error("the certificate is valid from {from}, and the clock of this box shows {now}")]
    NotYetValid { from: String, now: String },
    #[error("the certificate expired at {until}, and the clock of this box shows {now}")]
    Expired { until: String, now: String },
    #[error("the certificate is for {found}, and not for {expected}")]
    Name { expected: String, found: String },
    #[error("the signature is not by the key of the certificate")]
    Signature,
    #[error("the certificate is for another key")]
    Key,
}

impl CertificateChain {
    /// Reads the certificates of a PEM text; other sections of it are ignored.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).take(CHAIN_CERTIFICATES_MAX).collect();
        match read {
            Ok(chain) if chain.is_empty() => Err(CertificateError::None),
            Ok(chain) => Ok(Self(chain)),
            Err(error) => Err(CertificateError::Unreadable(error.to_string())),
        }
    }

    fn leaf(&self) -> Result<(EndEntityCert<'_>, &[CertificateDer<'static>]), CertificateError> {
        let (leaf, issuers) = self.0.split_first().ok_or(CertificateError::None)?;
        let leaf = EndEntityCert::try_from(leaf).map_err(|error| CertificateError::Unreadable(error.to_string()))?;
        Ok((leaf, issuers))
    }

    /// Verifies at `now_ms` that the chain leads to the root in `ca` (PEM), and that it is one of a client.
    pub fn verify(&self, ca: &str, now_ms: u64) -> Result<(), CertificateError> {
        let Self(roots) = Self::from_pem(ca.as_bytes())?;
        let anchors: Result<Vec<_>, _> = roots.iter().map(anchor_from_trusted_cert).collect();
        let anchors = anchors.map_err(|error| CertificateError::Unreadable(error.to_string()))?;
        let (leaf, issuers) = self.leaf()?;
        let now = UnixTime::since_unix_epoch(Duration::from_millis(now_ms));
        let usage = KeyUsage::client_auth();
        leaf.verify_for_usage(SIGNATURE_ALGORITHMS, &anchors, issuers, now, usage, None, None)
            .map(drop)
            .map_err(invalid)
    }

    /// The facts of the certificate itself.
    pub fn facts(&self) -> Result<CertificateFacts, CertificateError> {
        let leaf = self.0.first().ok_or(CertificateError::None)?;
        CertificateFacts::read(leaf).map_err(|error| CertificateError::Unreadable(error.to_string()))
    }

    /// The SHA-256 of the certificate itself, in lower-case hexadecimal digits.
    pub fn fingerprint(&self) -> Result<String, CertificateError> {
        Ok(self.facts()?.fingerprint)
    }

    /// Refuses a certificate whose common name is another one.
    pub fn is_for(&self, name: &str) -> Result<(), CertificateError> {
        let facts = self.facts()?;
        if facts.names.first().is_some_and(|found| found == name) {
            return Ok(());
        }
        Err(CertificateError::Name { expected: name.to_owned(), found: facts.shown_names() })
    }

    /// Refuses a signature (ECDSA with SHA-256) that is not by the key of the certificate.
    pub fn verify_signature(&self, signed: &[u8], signature: &[u8]) -> Result<(), CertificateError> {
        let (leaf, _) = self.leaf()?;
        let verified = leaf.verify_signature(ECDSA_P256_SHA256, signed, signature);
        verified.map_err(|_| CertificateError::Signature)
    }
}

fn invalid(error: webpki::Error) -> CertificateError {
    let shown = |time: UnixTime| clock::rfc3339(time.as_secs() * 1000);
    match error {
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotYetValid { from: shown(not_before), now: shown(time) }
        }
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::Expired { until: shown(not_after), now: shown(time) }
        }
        other => CertificateError::Invalid(other.to_string()),
    }
}

/// Reads the private key of a PEM text; other sections of it, such as the certificates before it, are ignored.
pub fn private_key(pem: &[u8]) -> Result<KeyPair, CertificateError> {
    let unreadable = |error: &dyn std::fmt::Display| CertificateError::UnreadableKey(error.to_string());
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| unreadable(&error))?;
    KeyPair::try_from(&key).map_err(|error| unreadable(&error))
}

/// The time at which a certificate is renewed, in milliseconds since the Unix epoch: after two thirds of its life.
pub fn renewal_ms(facts: &CertificateFacts) -> u64 {
    let life = facts.not_after_ms.saturating_sub(facts.not_before_ms);
    facts.not_before_ms.saturating_add(life / 3 * 2)
}
