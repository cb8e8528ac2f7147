//! What a certificate says: the only file that reads X.509.

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

/// X.520, 6.2.2.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// More names than this no certificate needs.
const MOST_NAMES: usize = 100;

/// A longer name is nobody's.
const LONGEST_NAME: usize = 255;

/// What people and callers need to know of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateFacts {
    /// The common name of its subject, then its other names as text. Each once.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    /// Who signed it, as RFC 4514 writes names.
    pub issuer: String,
    /// Whether its subject signed it itself.
    pub self_signed: bool,
    /// When it begins, in milliseconds since the Unix epoch.
    pub not_before_ms: u64,
    /// When it ends, in milliseconds since the Unix epoch.
    pub not_after_ms: u64,
    /// The SHA-256 of it, in small hexadecimal digits.
    pub fingerprint: String,
    /// The SHA-256 of its public key, which stays when it is renewed with the same key, as `curl --pinnedpubkey` takes it.
    pub public_key: String,
}

/// Why a certificate says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it cannot be read: {0}")]
pub struct UnreadableCertificate(String);

impl CertificateFacts {
    /// Reads a certificate.
    pub fn read(der: &CertificateDer<'_>) -> Result<Self, UnreadableCertificate> {
        let certificate = Certificate::from_der(der).map_err(|error| UnreadableCertificate(error.to_string()))?;
        let body = &certificate.tbs_certificate;
        let (mut names, mut addresses) = (common_names(&body.subject), Vec::new());
        // One that cannot be read has no names; the handshake has its own eyes for the certificate.
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
        names.truncate(MOST_NAMES);
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(Self {
            names,
            addresses,
            issuer: body.issuer.to_string(),
            self_signed: body.issuer == body.subject,
            not_before_ms: millis(body.validity.not_before),
            not_after_ms: millis(body.validity.not_after),
            fingerprint: hex::encode(digest::digest(&digest::SHA256, der)),
            public_key: pin(&body.subject_public_key_info.to_der().unwrap_or_default()),
        })
    }

    /// Whether its public key is this one, as a certificate has it (`SubjectPublicKeyInfo`).
    pub(super) fn is_of(&self, public_key: &[u8]) -> bool {
        self.public_key == pin(public_key)
    }

    /// As a request carries it.
    pub(super) fn into_peer(self) -> PeerCertificate {
        PeerCertificate { names: self.names, fingerprint: self.fingerprint }
    }

    /// Its names and addresses, for people.
    pub fn shown_names(&self) -> String {
        let addresses = self.addresses.iter().map(ToString::to_string);
        let all: Vec<_> = self.names.iter().cloned().chain(addresses).collect();
        if all.is_empty() { "nobody by name".to_owned() } else { all.join(", ") }
    }

    /// The fingerprint as other tools print it: `AB:CD:…`.
    pub fn shown_fingerprint(&self) -> String {
        let digits = self.fingerprint.to_ascii_uppercase();
        digits.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair)).collect::<Vec<_>>().join(":")
    }
}

/// When the next list of revoked certificates was due, in milliseconds since the Unix epoch; `None` where the list does not
/// say, or cannot be read.
pub(super) fn next_update_ms(der: &[u8]) -> Option<u64> {
    CertificateList::from_der(der).ok()?.tbs_cert_list.next_update.map(millis)
}

/// Reads bytes as a certificate as it is shown, and as a list of revoked ones; true when they are either. The folder `fuzz/`
/// and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_certificate(data: &[u8]) -> bool {
    let facts = CertificateFacts::read(&CertificateDer::from(data));
    if let Ok(CertificateFacts { names, fingerprint, .. }) = &facts {
        assert!(names.len() <= MOST_NAMES && fingerprint.len() == 64);
        assert!(names.iter().all(|name| is_name(name)));
    }
    facts.is_ok() || next_update_ms(data).is_some()
}

fn common_names(name: &Name) -> Vec<String> {
    let attributes = name.0.iter().flat_map(|relative| relative.0.iter());
    attributes.filter(|attribute| attribute.oid == COMMON_NAME).filter_map(text).collect()
}

/// The text of an attribute, in the encodings that certificates of this century have.
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

/// Whether a text can be looked up, logged and recorded as it is.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_NAME && !text.contains(char::is_control)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn millis(time: Time) -> u64 {
    u64::try_from(time.to_unix_duration().as_millis()).unwrap_or(u64::MAX)
}

fn pin(public_key: &[u8]) -> String {
    format!("sha256//{}", STANDARD.encode(digest::digest(&digest::SHA256, public_key)))
}
