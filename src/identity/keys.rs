//! The store of API keys: one file with the hash and the access of each key. Only the holders have the secrets.
//!
//! The command line writes it, and the daemon for an administrator over HTTP. With a damaged file every key is refused.
//! The file is never created again by itself, because that would revoke every key.

mod document;
mod error;
mod expiry;
mod file;
mod record;
mod recorded;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::{KeyName, ModelName};
use ledge_base::token_bucket::CallRate;

use super::access::{CallerAccess, Role, ViewScope};
use super::api_key::{ApiKey, ApiKeyId};
pub use document::{ApiKeyDocument, ApiKeyState};
pub use error::ApiKeysError;
pub use expiry::{ApiKeyExpiry, DEFAULT_LIFETIME};
#[cfg(any(test, feature = "fuzzing"))]
pub use file::fuzz_keys;
pub use file::{FORMAT_VERSION, KeyFileStamp, read};
pub use record::{ApiKeyRecord, SecretHash};
pub use recorded::RecordedApiKeys;

/// The file in the state folder.
pub const FILE: &str = "keys.json";

/// The properties of a new key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewApiKey {
    pub name: KeyName,
    pub roles: Vec<Role>,
    /// The models it covers; `None` is all of them.
    pub models: Option<Vec<ModelName>>,
    /// The feature views that it may read and push; see [`CallerAccess::new`] for a key without it.
    pub feature_views: Option<ViewScope>,
    /// The time of its expiry, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// The most requests a second, over time; 0 is no limit.
    pub max_rate: CallRate,
    /// The most requests at a time; 0 is no limit.
    pub max_concurrent: u32,
}

impl ApiKeysError {
    /// The message with its cause, on one line.
    pub fn with_cause(&self) -> String {
        use std::error::Error as _;
        self.source().map_or_else(|| self.to_string(), |source| format!("{self}: {source}"))
    }
}

/// The store in a state folder.
#[derive(Debug, Clone)]
pub struct ApiKeyStore {
    path: PathBuf,
}

impl ApiKeyStore {
    /// The store of a state folder. Nothing is read yet.
    pub fn new(state: &Path) -> Self {
        Self { path: state.join(FILE) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, revoked ones included, in the order of their creation. A key that the daemon has recorded as revoked
    /// stays revoked, even if an older store is restored.
    pub fn list(&self) -> Result<Vec<ApiKeyRecord>, ApiKeysError> {
        let mut keys = file::read(&self.path)?;
        let revoked = RecordedApiKeys::load(self.path.parent().unwrap_or(Path::new(".")).to_owned()).revoked();
        for key in &mut keys {
            key.revoked_ms = key.revoked_ms.or(revoked.get(&key.id).copied());
        }
        Ok(keys)
    }

    /// True if more than half of the room for keys is used.
    pub fn is_half_full(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() > file::STORE_FULL_BYTES as u64 / 2)
    }

    /// Creates a key. When this returns, it survives a power cut; the daemon loads it within a second or two.
    pub fn create(&self, new: &NewApiKey, now_ms: u64) -> Result<(ApiKey, ApiKeyRecord), ApiKeysError> {
        if new.roles.is_empty() {
            return Err(ApiKeysError::NoRole);
        }
        if ApiKey::resembles(new.name.as_str()) {
            return Err(ApiKeysError::NameIsKey);
        }
        self.change(file::STORE_FULL_BYTES, |keys| {
            if keys.iter().any(|key| key.name == new.name) {
                return Err(ApiKeysError::NameTaken { name: new.name.clone() });
            }
            let key = loop {
                let key = ApiKey::generate().map_err(ApiKeysError::NoRandom)?;
                if keys.iter().all(|other| other.id != key.id()) {
                    break key;
                }
            };

            let record = ApiKeyRecord {
                id: key.id(),
                name: new.name.clone(),
                blake3: SecretHash(key.hash()),
                roles: CallerAccess::new(new.roles.iter().copied(), None, None).roles().to_vec(),
                models: new.models.clone(),
                feature_views: new.feature_views.clone(),
                created_ms: now_ms,
                expires_ms: new.expires_ms,
                revoked_ms: None,
                max_rate: new.max_rate,
                max_concurrent: new.max_concurrent,
            };
            keys.push(record.clone());
            Ok((key, record))
        })
    }

    /// Revokes the key of this name or id, and returns its record. A key that is revoked already stays as it is.
    pub fn revoke(&self, what: &str, now_ms: u64) -> Result<ApiKeyRecord, ApiKeysError> {
        self.change(file::STORE_BYTES_MAX, |keys| {
            let is_it = |key: &&mut ApiKeyRecord| key.name.as_str() == what || what.parse() == Ok(key.id);
            // A name may look like an id: the name takes precedence.
            let by_name = keys.iter().any(|key| key.name.as_str() == what);
            let found = keys.iter_mut().filter(is_it).find(|key| !by_name || key.name.as_str() == what);
            let key = found.ok_or_else(|| ApiKeysError::Unknown { what: what.chars().take(128).collect() })?;
            key.revoked_ms.get_or_insert(now_ms);
            Ok(key.clone())
        })
    }

    /// Reads, changes and replaces the file, under a lock against other processes and threads. Content above `most`
    /// bytes is not written: it could not be read again.
    fn change<T>(
        &self,
        most: usize,
        change: impl FnOnce(&mut Vec<ApiKeyRecord>) -> Result<T, ApiKeysError>,
    ) -> Result<T, ApiKeysError> {
        let unwritable = |source| ApiKeysError::Unwritable { path: self.path.clone(), source };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        durable::create_folder(folder).map_err(unwritable)?;
        // Lock the folder itself, which root and its owner may both open. The lock ends with this handle, however the
        // process ends.
        let alone = File::open(folder).map_err(unwritable)?;
        alone.lock().map_err(unwritable)?;

        let mut keys = file::read(&self.path)?;
        let done = change(&mut keys)?;
        let content = file::write(&keys).map_err(|error| unwritable(io::Error::other(error)))?;
        if content.len() > most {
            return Err(ApiKeysError::Full { path: self.path.clone() });
        }
        durable::replace_private(&self.path, &content).map_err(unwritable)?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
