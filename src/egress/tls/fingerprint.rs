//! The fingerprint of a certificate, and the certificate that a server may present in place of any CA.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::from_text;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The SHA-256 of a certificate in DER. As text: 64 hexadecimal digits, with or without colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateFingerprint([u8; 32]);

/// The one certificate that a server may present. Its names, dates and issuer do not matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificatePin {
    Sha256(CertificateFingerprint),
    /// A PEM file with it.
    File(SecretFile),
}

/// A text that is not a fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the SHA-256 of a certificate, which are 64 hexadecimal digits")]
pub struct InvalidCertificateFingerprint;

impl CertificateFingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(bytes)
    }
}

impl FromStr for CertificateFingerprint {
    type Err = InvalidCertificateFingerprint;

    fn from_str(text: &str) -> Result<Self, InvalidCertificateFingerprint> {
        let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b':').collect();
        let value = |digit: &u8| char::from(*digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(InvalidCertificateFingerprint);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks().0) {
            *byte =
                value(high).zip(value(low)).map(|(high, low)| high << 4 | low).ok_or(InvalidCertificateFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for CertificateFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for CertificateFingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CertificateFingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_may_have_colons_and_any_case() {
        let plain = "0a".repeat(32);
        let read = |text: &str| text.parse::<CertificateFingerprint>().map(|it| it.to_string());
        assert_eq!(read(&plain), Ok(plain.clone()));
        assert_eq!(read(&["0A"; 32].join(":")), Ok(plain.clone()));
        for wrong in ["", "0a", &plain[1..], &plain.replace('a', "g"), &format!("{plain}00"), &plain.replace('a', "ä")]
        {
            assert_eq!(read(wrong), Err(InvalidCertificateFingerprint), "{wrong}");
        }
    }
}
