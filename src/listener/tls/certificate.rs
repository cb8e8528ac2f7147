//! The content of certificates: the only file that reads X.509.

use std::net::IpAddr;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_identity::certificate::PeerCertificate;
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{Ia5String, ObjectIdentifier, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::{Decode, Encode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;
use x509_cert::time::Time;

/// The object identifier of the common name (X.520, 6.2.2).
const COMMON_NAME_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The most names that are read from a certificate.
const NAMES_MAX: usize = 100;

/// The longest name that is read, in bytes: DNS names have at most 253.
const NAME_BYTES_MAX: usize = 255;

/// The names, addresses and validity of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateFacts {
    /// The common name of the subject, then the other names as text, without duplicates.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// The name of the issuer, in the form of RFC 4514.
    pub issuer: String,
    /// Set when issuer and subject are the same.
    pub self_signed: bool,
    /// The begin of its validity, in milliseconds since the Unix epoch.
    pub not_before_ms: u64,
    /// The end of its validity, in milliseconds since the Unix epoch.
    pub not_after_ms: u64,
    /// The serial number, in lower-case hexadecimal digits without leading zeros.
    pub serial: String,
    /// The SHA-256 of the certificate, in lower-case hexadecimal digits.
    pub fingerprint: String,
    /// The SHA-256 of the public key, in the form of `curl --pinnedpubkey`. It stays the same in a renewal with the
    /// same key.
    pub public_key: String,
}

/// The error for a certificate that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be read: {0}")]
pub struct UnreadableCertificate(String);

impl CertificateFacts {
    /// Reads a certificate.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, UnreadableCertificate> {
        let certificate = Certificate::from_der(der).map_err(|error| UnreadableCertificate(error.to_string()))?;
        let body = &certificate.tbs_certificate;
        let (mut names, mut addresses) = (common_names(&body.subject), Vec::new());
        // An extension that cannot be read gives no names; the handshake verifies the certificate itself.
        if let Ok(Some((_, SubjectAltName(others)))) = body.get::<SubjectAltName>() {
            for other in &others {
                match other {
                    GeneralName::DnsName(name)
                    | GeneralName::UniformResourceIdentifier(name)
                    | GeneralName::Rfc822Name(name) => names.push(name.as_str().to_owned()),
                    GeneralName::IpAddress(bytes) => addresses.extend(address(bytes.as_bytes())),
                    _ => {}
                }
            }
        }
        names.retain(|name| is_name(name));
        names.truncate(NAMES_MAX);
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(Self {
            names,
            addresses,
            issuer: body.issuer.to_string(),
            self_signed: body.issuer == body.subject,
            not_before_ms: millis(body.validity.not_before),
            not_after_ms: millis(body.validity.not_after),
            serial: hex::encode(body.serial_number.as_bytes()).trim_start_matches('0').to_owned(),
            fingerprint: hex::encode(digest::digest(&digest::SHA256, der)),
            public_key: public_key_pin(&body.subject_public_key_info.to_der().unwrap_or_default()),
        })
    }

    /// Returns `true` if this is its public key (`SubjectPublicKeyInfo`).
    pub fn has_public_key(&self, public_key: &[u8]) -> bool {
        self.public_key == public_key_pin(public_key)
    }

    /// Converts the facts to those that a request carries.
    pub(super) fn into_peer(self) -> PeerCertificate {
        PeerCertificate { names: self.names, fingerprint: self.fingerprint }
    }

    /// The names and addresses, for people.
    pub fn shown_names(&self) -> String {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let all: Vec<_> = self.names.iter().cloned().chain(addresses).collect();
        if all.is_empty() { "no name".to_owned() } else { all.join(", ") }
    }

    /// The fingerprint in the form of other tools: `AB:CD:…`.
    pub fn shown_fingerprint(&self) -> String {
        let digits = self.fingerprint.to_ascii_uppercase();
        digits.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair)).collect::<Vec<_>>().join(":")
    }
}

/// The time at which the next list of revoked certificates is due, in milliseconds since the Unix epoch; `None` if the
/// list does not state that time, or cannot be read.
pub(super) fn next_update_ms(der: &[u8]) -> Option<u64> {
    CertificateList::from_der(der).ok()?.tbs_cert_list.next_update.map(millis)
}

/// Reads bytes as a certificate and as a list of revoked certificates; `true` when they are either. The folder `fuzz/`
/// and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_certificate(data: &[u8]) -> bool {
    let facts = CertificateFacts::read(&CertificateDer::from(data));
    if let Ok(CertificateFacts { names, fingerprint, .. }) = &facts {
        assert!(names.len() <= NAMES_MAX && fingerprint.len() == 64);
        assert!(names.iter().all(|name| is_name(name)));
    }
    facts.is_ok() || next_update_ms(data).is_some()
}

fn common_names(name: &Name) -> Vec<String> {
    let attributes = name.0.iter().flat_map(|relative| relative.0.iter());
    attributes.filter(|attribute| attribute.oid == COMMON_NAME_OID).filter_map(text).collect()
}

/// The text of an attribute, in the string types that certificates use today.
fn text(attribute: &AttributeTypeAndValue) -> Option<String> {
    let value = &attribute.value;
    match value.tag() {
        Tag::Utf8String => Utf8StringRef::try_from(value).ok().map(|text| text.as_str().to_owned()),
        Tag::PrintableString => PrintableStringRef::try_from(value).ok().map(|text| text.as_str().to_owned()),
        Tag::TeletexString => TeletexStringRef::try_from(value).ok().map(|text| text.as_str().to_owned()),
        Tag::Ia5String => Ia5String::from_der(&value.to_der().ok()?).ok().map(|text| text.as_str().to_owned()),
        _ => None,
    }
}

/// Returns `true` if a text can be looked up, logged and recorded unchanged.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn millis(time: Time) -> u64 {
    u64::try_from(time.to_unix_duration().as_millis()).unwrap_or(u64::MAX)
}

fn public_key_pin(public_key: &[u8]) -> String {
    format!("sha256//{}", STANDARD.encode(digest::digest(&digest::SHA256, public_key)))
}
