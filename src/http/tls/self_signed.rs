//! A certificate that this box makes for itself: for a first evening, before a company's own authority signs one.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};

use super::certificate::CertificateFacts;
use super::names::BoxNames;
use crate::durable;
use crate::secret::SecretFile;

/// How long it is valid.
const LIFETIME: Duration = Duration::from_hours(365 * 24);

/// It is renewed when it has no more than this left.
const RENEWED_BEFORE: Duration = Duration::from_hours(30 * 24);

/// It begins before it is made: the clock of a caller may be behind.
const BEGINS_BEFORE: Duration = Duration::from_hours(24);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// It cannot be made.
    #[error("a self-signed certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// It cannot be kept.
    #[error("a self-signed certificate cannot be kept in {}: {source}", folder.display())]
    Keep {
        /// Where.
        folder: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where it is kept: the certificate, and the key that only this box has.
pub(super) fn files(state: &Path) -> (SecretFile, SecretFile) {
    let folder = state.join("tls");
    (SecretFile::Path(folder.join("self-signed.pem")), SecretFile::Path(folder.join("self-signed.key")))
}

/// Why a new one is to be made instead of `kept`; `None` when it is not.
pub(super) fn outdated(kept: Option<&CertificateFacts>, names: &BoxNames, now_ms: u64) -> Option<&'static str> {
    let Some(kept) = kept else { return Some("there is none yet") };
    let left = Duration::from_millis(kept.not_after_ms.saturating_sub(now_ms));
    let has = |address: &IpAddr| kept.addresses.contains(address);
    if left < RENEWED_BEFORE {
        Some("the one before is about to end")
    } else if now_ms < kept.not_before_ms {
        Some("the one before has not begun yet")
    } else if !names.names.iter().all(|name| kept.names.contains(name)) || !names.addresses.iter().all(has) {
        Some("this box has other names or addresses than before")
    } else {
        None
    }
}

/// Makes one for these names, and keeps it in place of the one before.
pub(super) fn make(state: &Path, names: &BoxNames, now_ms: u64) -> Result<(), SelfSignedError> {
    let (certificate, key) = sign(names, now_ms)?;
    let folder = state.join("tls");
    let keep = || {
        durable::create_folder(&folder)?;
        // A power cut between the two leaves a pair that does not fit, and the next start makes a new one.
        durable::replace_private(&folder.join("self-signed.key"), key.as_bytes())?;
        durable::replace(&folder.join("self-signed.pem"), certificate.as_bytes())
    };
    keep().map_err(|source| SelfSignedError::Keep { folder: folder.clone(), source })
}

/// The certificate and its key, both as PEM.
fn sign(names: &BoxNames, now_ms: u64) -> Result<(String, String), rcgen::Error> {
    // P-256, which every client knows.
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(names.names.clone())?;
    params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, names.names.first().map_or("ledge", String::as_str));
    // Whoever lists the authorities that a machine trusts should see what this one is.
    subject.push(DnType::OrganizationName, "Ledge (self-signed)");
    params.distinguished_name = subject;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(now_ms);
    (params.not_before, params.not_after) = (now - BEGINS_BEFORE, now + LIFETIME);
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}
