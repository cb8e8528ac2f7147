//! The location of a secret: a file, or a credential that systemd passes to the service. A secret is read when it is
//! needed, and never kept.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::config_path;
use crate::toml_check::from_text;

/// The environment variable with the folder of a service's credentials (systemd.exec, `LoadCredential=`).
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// Their folder for root, while the service runs.
const SERVICE_CREDENTIALS: &str = "/run/credentials/ledge.service";

/// The largest secret, in bytes: a chain of certificates has some 10 kB.
const SECRET_BYTES_MAX: u64 = 1 << 20;

/// The capacity beyond the length of a file with which it is read to its end without another buffer.
const SPARE_CAPACITY_BYTES: usize = 64;

/// Decrypts the content of a file that Ledge encrypted.
pub type SecretDecryptor = Box<dyn Fn(&[u8]) -> Result<Zeroizing<Vec<u8>>, String> + Send + Sync>;

/// Tells encrypted content by its first bytes, and decrypts it.
static DECRYPTOR: OnceLock<(&'static [u8], SecretDecryptor)> = OnceLock::new();

/// From now on, content of secret files that begins with `magic` is decrypted. Only the first call of a process counts.
pub fn decrypt_with(magic: &'static [u8], decryptor: SecretDecryptor) {
    let _ = DECRYPTOR.set((magic, decryptor));
}

/// A file with a secret in it. As text: a path, or `credential:NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretFile {
    Path(PathBuf),
    /// A credential of the service, by its name.
    Credential(String),
}

/// A text that does not name a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a path or credential:NAME, got {text:?}")]
pub struct InvalidSecretFile {
    text: String,
}

/// The reason why a secret cannot be read. The error never holds the secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The service was started without credentials, or this is not the service.
    #[error(
        "{file}: this process has no credentials: a service gets them by LoadCredential= in its unit, and a command \
         line only as root while the service runs (sudo ledge ...)"
    )]
    NoCredentials { file: SecretFile },
    #[error("{file} cannot be read: {source}")]
    Unreadable { file: SecretFile, source: io::Error },
    /// The file is longer than any secret of its kind.
    #[error("{file} is larger than {} MiB", largest >> 20)]
    TooLarge {
        file: SecretFile,
        /// The limit in bytes.
        largest: u64,
    },
    #[error("{file} cannot be decrypted: {reason}")]
    Encrypted { file: SecretFile, reason: String },
    #[error("{file} is not UTF-8 text")]
    NotText { file: SecretFile },
}

impl SecretFile {
    /// Makes a relative path relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        if let Self::Path(path) = self {
            config_path::resolve(path, root);
        }
    }

    /// Its path; `None` for a credential in a process without credentials.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Path(path) => Some(path.clone()),
            Self::Credential(name) => {
                credential(name, std::env::var_os(CREDENTIALS_VARIABLE), Path::new(SERVICE_CREDENTIALS))
            }
        }
    }

    /// Reads it.
    pub fn read(&self) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        self.read_at_most(SECRET_BYTES_MAX)
    }

    /// Reads it, unless it has more than `largest` bytes.
    pub fn read_at_most(&self, largest: u64) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let path = self.path().ok_or_else(|| SecretError::NoCredentials { file: self.clone() })?;
        let unreadable = |source| SecretError::Unreadable { file: self.clone(), source };
        let file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len().min(largest);
        // Allocate enough at once: a vector that grows leaves copies in memory.
        let room = usize::try_from(length).unwrap_or_default() + SPARE_CAPACITY_BYTES;
        let mut content = Zeroizing::new(Vec::with_capacity(room));
        let length = file.take(largest + 1).read_to_end(&mut content).map_err(unreadable)?;
        if length as u64 > largest {
            return Err(SecretError::TooLarge { file: self.clone(), largest });
        }
        match DECRYPTOR.get() {
            Some((magic, decrypt)) if content.starts_with(magic) => {
                decrypt(&content).map_err(|reason| SecretError::Encrypted { file: self.clone(), reason })
            }
            _ => Ok(content),
        }
    }

    /// Reads it as text, without the line end that editors add.
    pub fn read_text(&self) -> Result<String, SecretError> {
        let content = self.read()?;
        let text = std::str::from_utf8(&content).map_err(|_| SecretError::NotText { file: self.clone() })?;
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// True if users other than its owner may read the file. For a credential, systemd sets the permissions.
    pub fn is_exposed(&self) -> bool {
        matches!(self, Self::Path(path) if path.metadata().is_ok_and(|file| file.mode() & 0o044 != 0))
    }
}

/// The path of a credential: in the folder given to this process, else in that of the service, which only root may
/// enter.
fn credential(name: &str, given: Option<OsString>, of_service: &Path) -> Option<PathBuf> {
    match given {
        Some(given) => Some(PathBuf::from(given).join(name)),
        None => Some(of_service.join(name)).filter(|path| path.is_file()),
    }
}

impl FromStr for SecretFile {
    type Err = InvalidSecretFile;

    fn from_str(text: &str) -> Result<Self, InvalidSecretFile> {
        let wrong = || InvalidSecretFile { text: text.to_owned() };
        match text.strip_prefix("credential:") {
            Some(name) => {
                let safe = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
                safe.then(|| Self::Credential(name.to_owned())).ok_or_else(wrong)
            }
            None if text.is_empty() || text.contains('\0') => Err(wrong()),
            None => Ok(Self::Path(text.into())),
        }
    }
}

impl fmt::Display for SecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The key itself may have been written in the place of its path.
            Self::Path(path) if is_key(path) => f.write_str("(64 hexadecimal digits: a key instead of a path)"),
            Self::Path(path) => path.display().fmt(f),
            Self::Credential(name) => write!(f, "credential:{name}"),
        }
    }
}

fn is_key(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    name.len() == 64 && name.iter().all(u8::is_ascii_hexdigit)
}

impl Serialize for SecretFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SecretFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_secret_is_a_path_or_a_credential() {
        assert_eq!("a/b".parse(), Ok(SecretFile::Path("a/b".into())));
        assert_eq!("credential:mqtt".parse(), Ok(SecretFile::Credential("mqtt".into())));
        for wrong in ["", "credential:", "credential:a/b", "credential:..", "a\0"] {
            assert!(wrong.parse::<SecretFile>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_credential_is_in_the_folder_of_this_process_else_in_that_of_the_service() {
        let service = tempfile::tempdir().unwrap();
        let path = service.path().join("master");
        assert_eq!(credential("master", None, service.path()), None);
        crate::durable::replace_private(&path, b"x").unwrap();
        assert_eq!(credential("master", None, service.path()), Some(path));
        assert_eq!(credential("master", Some("/own".into()), service.path()), Some("/own/master".into()));
        let error = SecretFile::Credential("master".into()).read().unwrap_err().to_string();
        assert!(error.contains("sudo ledge"), "{error}");
    }

    #[test]
    fn a_key_in_the_place_of_its_file_is_not_shown() {
        let key = "0123456789abcdef".repeat(4);
        let shown = |path: &str| SecretFile::Path(path.into()).to_string();
        assert!(!shown(&key).contains("0123") && !shown(&format!("/etc/{key}")).contains("0123"));
        assert_eq!(shown(&key[1..]), key[1..]);
    }

    #[test]
    fn a_file_that_others_may_read_is_exposed() {
        use std::os::unix::fs::PermissionsExt as _;
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, expected) in [(0o600, false), (0o640, true), (0o604, true), (0o400, false)] {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(SecretFile::Path(file.path().into()).is_exposed(), expected, "{mode:o}");
        }
        assert!(!SecretFile::Credential("x".into()).is_exposed());
    }

    #[test]
    fn a_text_loses_the_end_of_its_line_and_nothing_else() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b" pass word \r\n").unwrap();
        let secret = SecretFile::Path(file.path().into());
        assert_eq!(secret.read_text().unwrap(), " pass word ");
        file.write_all(b"\xff").unwrap();
        assert!(matches!(secret.read_text(), Err(SecretError::NotText { .. })));
        assert!(matches!(SecretFile::Path("/nonexistent".into()).read(), Err(SecretError::Unreadable { .. })));
    }

    #[test]
    fn what_is_too_large_is_refused_and_never_cut_off() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[b'x'; 100]).unwrap();
        let secret = SecretFile::Path(file.path().into());
        assert_eq!(secret.read_at_most(100).unwrap().len(), 100);
        assert!(matches!(secret.read_at_most(99), Err(SecretError::TooLarge { largest: 99, .. })));
        file.as_file().set_len(SECRET_BYTES_MAX + 1).unwrap();
        assert!(secret.read().unwrap_err().to_string().ends_with("is larger than 1 MiB"));
    }
}
