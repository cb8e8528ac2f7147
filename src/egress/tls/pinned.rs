//! A server that is known by its certificate itself: cameras and other devices sign their own.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::from_text;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{TlsError, certificates};

/// The SHA-256 of a certificate in DER. As text: 64 hexadecimal digits, with or without colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

/// The one certificate that a server may present. Its names, dates and issuer do not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    Sha256(Fingerprint),
    /// A PEM file with it.
    File(SecretFile),
}

/// A text that is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the SHA-256 of a certificate, which are 64 hexadecimal digits")]
pub struct InvalidFingerprint;

/// The server presented another certificate than the pinned one.
#[derive(Debug, thiserror::Error)]
#[error("not the pinned certificate")]
pub(super) struct NotPinned {
    pub presented: Fingerprint,
}

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        let value = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(InvalidFingerprint);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks().0) {
            *byte = value(high).zip(value(low)).map(|(high, low)| high << 4 | low).ok_or(InvalidFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl Pin {
    /// The fingerprint. It reads the file, which blocks.
    fn fingerprint(&self) -> Result<Fingerprint, TlsError> {
        match self {
            Self::Sha256(fingerprint) => Ok(*fingerprint),
            Self::File(file) => match certificates(file)?.first() {
                Some(certificate) => Ok(Fingerprint::of(certificate)),
                None => Err(TlsError::NoCertificate { file: file.clone() }),
            },
        }
    }
}

/// Accepts one certificate, and proves by the handshake that the server has its key.
#[derive(Debug)]
pub(super) struct PinVerifier {
    pinned: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl PinVerifier {
    pub fn new(pin: &Pin, provider: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        Ok(Self { pinned: pin.fingerprint()?, provider })
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _issuers: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let presented = Fingerprint::of(presented);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_may_have_colons_and_any_case() {
        let plain = "0a".repeat(32);
        let read = |text: &str| text.parse::<Fingerprint>().map(|it| it.to_string());
        assert_eq!(read(&plain), Ok(plain.clone()));
        assert_eq!(read(&["0A"; 32].join(":")), Ok(plain.clone()));
        for wrong in ["", "0a", &plain[1..], &plain.replace('a', "g"), &format!("{plain}00"), &plain.replace('a', "ä")]
        {
            assert_eq!(read(wrong), Err(InvalidFingerprint), "{wrong}");
        }
    }
}
