//! A certificate that this box makes for itself: for a first evening, before a company's own authority signs one.

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
use super::names::BoxNames;

/// How long it is valid.
const LIFETIME: Duration = Duration::from_hours(365 * 24);

/// It is renewed when it has no more than this left.
const RENEWED_BEFORE: Duration = Duration::from_hours(30 * 24);

/// It begins before it is made: the clock of a caller may be behind.
const BEGINS_BEFORE: Duration = Duration::from_hours(24);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    #[error(transparent)]
    Read(#[from] TlsError),
    #[error("a self-signed certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("a self-signed certificate cannot be kept in {}: {source}", folder.display())]
    Keep { folder: PathBuf, source: io::Error },
}

/// Where it is kept: the certificate, and the key that only this box has.
pub(super) fn files(state: &Path) -> (SecretFile, SecretFile) {
    let folder = state.join("tls");
    (SecretFile::Path(folder.join("self-signed.pem")), SecretFile::Path(folder.join("self-signed.key")))
}

/// What there is of it.
struct Kept {
    /// It stays for good, so that whoever compared it once need not do it again.
    key: Option<KeyPair>,
    /// What the certificate says, where it is that of the key.
    facts: Option<CertificateFacts>,
}

impl Kept {
    fn read(state: &Path) -> Result<Self, TlsError> {
        let (certificate, key) = files(state);
        let key = usable(private_key(&key))?.and_then(|key| KeyPair::try_from(&key).ok());
        let facts = usable(certificates(&certificate))?.and_then(|chain| CertificateFacts::read(chain.first()?).ok());
        let fits =
            |facts: &CertificateFacts| key.as_ref().is_some_and(|key| facts.is_of(&key.subject_public_key_info()));
        Ok(Self { facts: facts.filter(fits), key })
    }
}

/// What is missing or broken is to be made anew. What only cannot be read now, as when there are no file descriptors left, is
/// not.
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

/// Makes a new one where there is none that does, and says why.
pub(super) fn renew(state: &Path, names: &BoxNames, now_ms: u64) -> Result<Option<&'static str>, SelfSignedError> {
    let kept = Kept::read(state)?;
    let reason = outdated(kept.facts.as_ref(), names, now_ms);
    if reason.is_some() {
        make(state, kept.key, names, now_ms)?;
    }
    Ok(reason)
}

/// Why a new one is to be made instead of `kept`; `None` when it is not. One that has not begun yet stays: the clock of this box
/// is behind, and would make another that is no better.
fn outdated(kept: Option<&CertificateFacts>, names: &BoxNames, now_ms: u64) -> Option<&'static str> {
    let Some(kept) = kept else { return Some("there is none yet") };
    let left = Duration::from_millis(kept.not_after_ms.saturating_sub(now_ms));
    let has = |address: &IpAddr| kept.addresses.contains(address);
    if left < RENEWED_BEFORE {
        Some("the one before is about to end")
    } else if !names.names.iter().all(|name| kept.names.contains(name)) || !names.listened.iter().all(has) {
        Some("this box has another name, or listens on another address, than before")
    } else {
        None
    }
}

/// Makes one for these names, with a new key where none is kept, and puts it in place of the one before.
fn make(state: &Path, kept: Option<KeyPair>, names: &BoxNames, now_ms: u64) -> Result<(), SelfSignedError> {
    let is_new = kept.is_none();
    let key = match kept {
        Some(key) => key,
        // P-256, which every client knows.
        None => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?,
    };
    let certificate = sign(&key, names, now_ms)?;
    let folder = state.join("tls");
    let keep = || {
        durable::create_folder(&folder)?;
        if is_new {
            durable::replace_private(&folder.join("self-signed.key"), key.serialize_pem().as_bytes())?;
        }
        // After a power cut between the two the certificate is not that of the key, and the next start signs one that is.
        durable::replace(&folder.join("self-signed.pem"), certificate.as_bytes())
    };
    keep().map_err(|source| SelfSignedError::Keep { folder: folder.clone(), source })
}

/// The certificate, as PEM.
fn sign(key: &KeyPair, names: &BoxNames, now_ms: u64) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(names.names.clone())?;
    params.subject_alt_names.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, names.names.first().map_or("ledge", String::as_str));
    // Whoever lists the authorities that a machine trusts should see what this one is.
    subject.push(DnType::OrganizationName, "Ledge (self-signed)");
    params.distinguished_name = subject;
    // Another one each time: some clients refuse two certificates of one issuer with the same number.
    params.serial_number = Some(SerialNumber::from(now_ms));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(now_ms);
    (params.not_before, params.not_after) = (now - BEGINS_BEFORE, now + LIFETIME);
    Ok(params.self_signed(key)?.pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn names(listened: &str) -> BoxNames {
        let listened = std::collections::BTreeSet::from([listened.parse::<IpAddr>().unwrap()]);
        BoxNames { names: vec!["box".to_owned(), "localhost".to_owned()], addresses: listened.clone(), listened }
    }

    fn shown(state: &Path) -> CertificateFacts {
        Kept::read(state).unwrap().facts.unwrap()
    }

    #[test]
    fn it_is_signed_anew_for_what_is_configured_and_with_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let renew = |names: &BoxNames, now_ms| renew(folder.path(), names, now_ms).unwrap();
        let mut names = names("192.0.2.1");
        assert_eq!(renew(&names, NOW_MS), Some("there is none yet"));
        let first = shown(folder.path());
        names.addresses.insert("192.0.2.99".parse().unwrap());
        assert_eq!(renew(&names, NOW_MS), None, "an address that the network gave it");
        assert_eq!(renew(&names, 0), None, "a clock that is behind");
        names.listened.insert("192.0.2.2".parse().unwrap());
        assert!(renew(&names, NOW_MS).is_some());
        let second = shown(folder.path());
        assert!(first.fingerprint != second.fingerprint && first.public_key == second.public_key);
        assert!(second.addresses.contains(&"192.0.2.99".parse().unwrap()));
        let soon = u64::try_from(LIFETIME.saturating_sub(RENEWED_BEFORE).as_millis()).unwrap() + 1;
        assert_eq!(renew(&names, NOW_MS + soon), Some("the one before is about to end"));
        assert_eq!(shown(folder.path()).public_key, first.public_key);
    }

    #[test]
    fn what_is_broken_is_made_anew_and_what_cannot_be_read_now_is_not() {
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
