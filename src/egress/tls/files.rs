//! Files with certificates and keys, and the reasons why one cannot be used.

use ledge_base::secret::SecretFile;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, Error, InconsistentKeys};

use super::error::TlsError;

/// The largest file of certificates or of a revocation list, in bytes: the list of a CA with a million revoked
/// certificates has some 40 MB.
pub const CERTIFICATE_FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads a PEM file with at least one certificate. Blocks.
pub fn certificates(file: &SecretFile) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = file.read_at_most(CERTIFICATE_FILE_BYTES_MAX)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::NoCertificate { file: file.clone() }),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::BadCertificate { file: file.clone(), reason: error.to_string() }),
    }
}

/// Reads a PEM file with a private key. Blocks.
pub fn private_key(file: &SecretFile) -> Result<PrivateKeyDer<'static>, TlsError> {
    let pem = file.read()?;
    PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| TlsError::BadKey { file: file.clone(), reason: error.to_string() })
}

/// The error for a certificate and key that rustls does not accept.
pub fn identity_error(error: Error, certificate: &SecretFile, key: &SecretFile) -> TlsError {
    match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            TlsError::KeyMismatch { certificate: certificate.clone(), key: key.clone() }
        }
        Error::InvalidCertificate(fault) => {
            TlsError::BadCertificate { file: certificate.clone(), reason: fault_in_words(&fault) }
        }
        other => TlsError::BadKey { file: key.clone(), reason: other.to_string() },
    }
}

/// A message for two faults of self-made certificates that the library names by one word only.
pub(super) fn fault_in_words(fault: &CertificateError) -> String {
    let text = format!("{fault:?}");
    if text.contains("CaUsedAsEndEntity") {
        "it is a CA certificate; have that CA issue one for the server (CA:FALSE, not self-signed)".to_owned()
    } else if text.contains("UnsupportedCertVersion") {
        "it has X.509 version 1; issue one of version 3, with a subjectAltName".to_owned()
    } else {
        fault.to_string()
    }
}
