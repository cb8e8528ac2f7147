//! The self-signed certificate of this box: for first tests, before an authority signs one.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge_base::durable;
use ledge_base::secret::{SecretError, SecretFile};
use ledge_egress::{TlsError, certificates, private_key};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PublicKeyData as _, SanType, SerialNumber,
};

use super::certificate::CertificateFacts;
use super::names::CertificateNames;

/// The time for which the certificate is valid.
const CERTIFICATE_LIFETIME: Duration = Duration::from_hours(365 * 24);

/// The time before its expiry at which the certificate is renewed.
const RENEWAL_BEFORE_EXPIRY: Duration = Duration::from_hours(30 * 24);

/// The time by which the clock of a caller may be behind: the certificate is valid from so long before it is made.
const CLOCK_SKEW_MAX: Duration = Duration::from_hours(24);

/// The reason why there is no self-signed certificate.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    #[error(transparent)]
    Read(#[from] TlsError),
    #[error("a self-signed certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("a self-signed certificate cannot be stored in {}: {source}", folder.display())]
    Keep { folder: PathBuf, source: io::Error },
}

/// The files of the certificate and of its key, which only this box has.
pub(super) fn files(state: &Path) -> (SecretFile, SecretFile) {
    let folder = state.join("tls");
    (SecretFile::Path(folder.join("self-signed.pem")), SecretFile::Path(folder.join("self-signed.key")))
}

/// The stored key and certificate, as far as they can be used.
struct StoredCertificatePair {
    /// The key, which never changes, so that clients compare it only once.
    key: Option<KeyPair>,
    /// The facts of the certificate, if it belongs to the key.
    facts: Option<CertificateFacts>,
}

impl StoredCertificatePair {
    fn read(state: &Path) -> Result<Self, TlsError> {
        let (certificate, key) = files(state);
        let key = usable(private_key(&key))?.and_then(|key| KeyPair::try_from(&key).ok());
        let facts = usable(certificates(&certificate))?.and_then(|chain| CertificateFacts::read(chain.first()?).ok());
        let fits = |facts: &CertificateFacts| {
            key.as_ref().is_some_and(|key| facts.has_public_key(&key.subject_public_key_info()))
        };
        Ok(Self { facts: facts.filter(fits), key })
    }
}

/// Returns `None` for a file that is missing or damaged, which is then made again. A file that cannot be read now, for
/// example without free file descriptors, is an error.
fn usable<T>(read: Result<T, TlsError>) -> Result<Option<T>, TlsError> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(TlsError::Secret(SecretError::Unreadable { source, .. })) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error @ TlsError::Secret(_)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Makes a new certificate if the stored one is missing or outdated, and returns the reason.
pub(super) fn renew(
    state: &Path,
    names: &CertificateNames,
    now_ms: u64,
) -> Result<Option<&'static str>, SelfSignedError> {
    let stored = StoredCertificatePair::read(state)?;
    let reason = outdated(stored.facts.as_ref(), names, now_ms);
    if reason.is_some() {
        make(state, stored.key, names, now_ms)?;
    }
    Ok(reason)
}

/// The reason why the stored certificate must be replaced; `None` when it stays. A certificate that is not valid yet
/// stays: the clock of this box is behind, and a new certificate would not be better.
fn outdated(stored: Option<&CertificateFacts>, names: &CertificateNames, now_ms: u64) -> Option<&'static str> {
    let Some(stored) = stored else { return Some("there was none") };
    let left = Duration::from_millis(stored.not_after_ms.saturating_sub(now_ms));
    let has = |address: &IpAddr| stored.addresses.contains(address);
    if left < RENEWAL_BEFORE_EXPIRY {
        Some("the previous one expires soon")
    } else if !names.names.iter().all(|name| stored.names.contains(name)) || !names.listened.iter().all(has) {
        Some("the previous one lacks a name of this box, or an address of http.listen")
    } else {
        None
    }
}

/// Makes a certificate for these names, with a new key where none is stored, and replaces the previous one.
fn make(state: &Path, stored: Option<KeyPair>, names: &CertificateNames, now_ms: u64) -> Result<(), SelfSignedError> {
    let is_new = stored.is_none();
    let key = match stored {
        Some(key) => key,
        // P-256, which every client supports.
        None => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?,
    };
    let certificate = sign(&key, names, now_ms)?;
    let folder = state.join("tls");
    let keep = || {
        durable::create_folder(&folder)?;
        if is_new {
            durable::replace_private(&folder.join("self-signed.key"), key.serialize_pem().as_bytes())?;
        }
        // After a power cut between the two, the certificate does not belong to the key, and the next start makes one
        // that does.
        durable::replace(&folder.join("self-signed.pem"), certificate.as_bytes())
    };
    keep().map_err(|source| SelfSignedError::Keep { folder: folder.clone(), source })
}

/// Signs a certificate, and returns it as PEM.
fn sign(key: &KeyPair, names: &CertificateNames, now_ms: u64) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(names.names.clone())?;
    params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, names.names.first().map_or("ledge", String::as_str));
    // Shown in lists of the authorities that a machine trusts.
    subject.push(DnType::OrganizationName, "Ledge (self-signed)");
    params.distinguished_name = subject;
    // A new number each time: some clients refuse two certificates of one issuer with the same number.
    params.serial_number = Some(SerialNumber::from(now_ms));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(now_ms);
    (params.not_before, params.not_after) = (now - CLOCK_SKEW_MAX, now + CERTIFICATE_LIFETIME);
    Ok(params.self_signed(key)?.pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn names(listened: &str) -> CertificateNames {
        let listened = std::collections::BTreeSet::from([listened.parse::<IpAddr>().unwrap()]);
        CertificateNames {
            names: vec!["box".to_owned(), "localhost".to_owned()],
            addresses: listened.clone(),
            listened,
        }
    }

    fn shown(state: &Path) -> CertificateFacts {
        StoredCertificatePair::read(state).unwrap().facts.unwrap()
    }

    #[test]
    fn it_is_renewed_for_a_new_configuration_and_with_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let renew = |names: &CertificateNames, now_ms| renew(folder.path(), names, now_ms).unwrap();
        let mut names = names("192.0.2.1");
        assert_eq!(renew(&names, NOW_MS), Some("there was none"));
        let first = shown(folder.path());
        names.addresses.insert("192.0.2.99".parse().unwrap());
        assert_eq!(renew(&names, NOW_MS), None, "an address that the network assigned");
        assert_eq!(renew(&names, 0), None, "a clock that is behind");
        names.listened.insert("192.0.2.2".parse().unwrap());
        assert!(renew(&names, NOW_MS).is_some());
        let second = shown(folder.path());
        assert!(first.fingerprint != second.fingerprint && first.public_key == second.public_key);
        assert!(second.addresses.contains(&"192.0.2.99".parse().unwrap()));
        let soon = u64::try_from(CERTIFICATE_LIFETIME.saturating_sub(RENEWAL_BEFORE_EXPIRY).as_millis()).unwrap() + 1;
        assert_eq!(renew(&names, NOW_MS + soon), Some("the previous one expires soon"));
        assert_eq!(shown(folder.path()).public_key, first.public_key);
    }

    #[test]
    fn a_damaged_file_is_made_again_and_an_unreadable_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let names = names("192.0.2.1");
        let file = |name: &str| folder.path().join("tls").join(name);
        renew(folder.path(), &names, NOW_MS).unwrap();
        let first = shown(folder.path());
        durable::replace(&file("self-signed.pem"), b"torn").unwrap();
        assert!(renew(folder.path(), &names, NOW_MS).unwrap().is_some());
        assert_eq!(shown(folder.path()).public_key, first.public_key);
        std::fs::remove_file(file("self-signed.key")).unwrap();
        assert!(renew(folder.path(), &names, NOW_MS).unwrap().is_some());
        assert_ne!(shown(folder.path()).public_key, first.public_key);
        // A folder can be opened, and not read.
        std::fs::remove_file(file("self-signed.key")).unwrap();
        std::fs::create_dir(file("self-signed.key")).unwrap();
        let before = std::fs::read(file("self-signed.pem")).unwrap();
        assert!(matches!(renew(folder.path(), &names, NOW_MS), Err(SelfSignedError::Read(TlsError::Secret(_)))));
        assert_eq!(std::fs::read(file("self-signed.pem")).unwrap(), before);
    }
}
