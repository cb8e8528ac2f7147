//! The store of API keys: one file with the hash of each key, and what the key may do. Its secrets are in nobody's hands
//! but their holders'.
//!
//! The command line writes it and the daemon reads it. A file that is damaged lets nobody in, and is never made anew:
//! whoever does that takes the way of every holder away, and has to mean it.

mod file;
mod recorded;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::{KeyName, ModelName};
use ledge_base::token_bucket::Rate;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::access::{Access, Role, ViewScope};
use super::api_key::{ApiKey, KeyId};
pub use file::{FORM, Stamp, fuzz_keys, read};
pub use recorded::Recorded;

/// The file in the state folder.
pub const FILE: &str = "keys.json";

/// What is known of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// What its holder's key begins with.
    pub id: KeyId,
    /// Who holds it. No other key has, or had, this name.
    pub name: KeyName,
    /// BLAKE3 of its secret.
    pub blake3: SecretHash,
    pub roles: Vec<Role>,
    /// The models it is for; without it all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<ModelName>>,
    /// The feature views whose values it may read and push; see [`Access::new`] for a key without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feature_views: Option<ViewScope>,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<u64>,
    /// The most requests a second, over time; 0 is no limit.
    #[serde(default)]
    pub max_rate: Rate,
    /// The most requests at a time; 0 is no limit.
    #[serde(default)]
    pub max_concurrent: u32,
}

/// BLAKE3 of a secret. Compared in constant time, as `blake3::Hash` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretHash(pub blake3::Hash);

impl Serialize for SecretHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.to_hex().as_str())
    }
}

impl<'de> Deserialize<'de> for SecretHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(&text).ok().filter(|hash| hash.to_hex().as_str() == text);
        hash.map(Self).ok_or_else(|| serde::de::Error::custom("expected 64 hexadecimal digits"))
    }
}

impl KeyRecord {
    /// What it may do.
    pub fn access(&self) -> Access {
        Access::new(self.roles.iter().copied(), self.models.clone(), self.feature_views.clone())
    }
}

/// What a new key is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    pub name: KeyName,
    pub roles: Vec<Role>,
    /// The models it is for; `None` is all of them.
    pub models: Option<Vec<ModelName>>,
    /// The feature views whose values it may read and push; see [`Access::new`] for a key without it.
    pub feature_views: Option<ViewScope>,
    /// When it ends, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// The most requests a second, over time; 0 is no limit.
    pub max_rate: Rate,
    /// The most requests at a time; 0 is no limit.
    pub max_concurrent: u32,
}

/// Why the store cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// It holds something else, or a part. It is left alone.
    #[error(
        "{} is no store of API keys of this version ({reason}): restore it from a backup, or remove it and make every key anew",
        path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    /// Somebody else may write it, and so make keys.
    #[error("{} can be written by others than its owner: chmod 600 it, and look who made which key", path.display())]
    Exposed { path: PathBuf },
    #[error("{} cannot be written", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    /// It would be larger than a store may be.
    #[error(
        "{} is full, with revoked keys among those in it: remove it, and make every key that is still needed anew",
        path.display()
    )]
    Full { path: PathBuf },
    #[error("there is a key of the name '{name}' already (revoked keys keep theirs): take another name")]
    NameTaken { name: KeyName },
    #[error("a key without a role may do nothing: name at least one")]
    NoRole,
    #[error("there is no key of the name or id '{what}'")]
    Unknown { what: String },
    #[error("the system gives no random numbers: {0}")]
    NoRandom(getrandom::Error),
}

/// The store in a state folder, as the command line has it.
#[derive(Debug, Clone)]
pub struct KeyStore {
    path: PathBuf,
}

impl KeyStore {
    /// That of this state folder. Nothing is read yet.
    pub fn new(state: &Path) -> Self {
        Self { path: state.join(FILE) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, revoked ones included, in the order in which they were made. Those that the daemon knows to be revoked are,
    /// whatever an older store says.
    pub fn list(&self) -> Result<Vec<KeyRecord>, KeysError> {
        let mut keys = file::read(&self.path)?;
        let revoked = Recorded::load(self.path.parent().unwrap_or(Path::new(".")).to_owned()).revoked();
        for key in &mut keys {
            key.revoked_ms = key.revoked_ms.or(revoked.get(&key.id).copied());
        }
        Ok(keys)
    }

    /// Whether half of the room for keys is taken.
    pub fn is_half_full(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() > file::FULL as u64 / 2)
    }

    /// Makes a key. When this returns, it survives a power cut; the daemon knows it within moments.
    pub fn create(&self, new: &NewKey, now_ms: u64) -> Result<(ApiKey, KeyRecord), KeysError> {
        if new.roles.is_empty() {
            return Err(KeysError::NoRole);
        }
        self.change(file::FULL, |keys| {
            if keys.iter().any(|key| key.name == new.name) {
                return Err(KeysError::NameTaken { name: new.name.clone() });
            }
            let key = loop {
                let key = ApiKey::generate().map_err(KeysError::NoRandom)?;
                if keys.iter().all(|other| other.id != key.id()) {
                    break key;
                }
            };
            let record = KeyRecord {
                id: key.id(),
                name: new.name.clone(),
                blake3: SecretHash(key.hash()),
                roles: Access::new(new.roles.iter().copied(), None, None).roles().to_vec(),
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

    /// Revokes the key of this name or id, and gives what is known of it. One that is revoked already stays as it is.
    pub fn revoke(&self, what: &str, now_ms: u64) -> Result<KeyRecord, KeysError> {
        self.change(file::LARGEST, |keys| {
            let is_it = |key: &&mut KeyRecord| key.name.as_str() == what || what.parse() == Ok(key.id);
            // A name may look like an id: the name counts.
            let by_name = keys.iter().any(|key| key.name.as_str() == what);
            let found = keys.iter_mut().filter(is_it).find(|key| !by_name || key.name.as_str() == what);
            let key = found.ok_or_else(|| KeysError::Unknown { what: what.chars().take(128).collect() })?;
            key.revoked_ms.get_or_insert(now_ms);
            Ok(key.clone())
        })
    }

    /// Reads, changes and replaces the file, while no other command line does. What is larger than `most` is not written: it
    /// could not be read again.
    fn change<T>(
        &self,
        most: usize,
        change: impl FnOnce(&mut Vec<KeyRecord>) -> Result<T, KeysError>,
    ) -> Result<T, KeysError> {
        let unwritable = |source| KeysError::Unwritable { path: self.path.clone(), source };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        durable::create_folder(folder).map_err(unwritable)?;
        // The folder itself, which root and its owner may both open, whoever of them came first. Gone with this handle,
        // however the process ends.
        let alone = File::open(folder).map_err(unwritable)?;
        alone.lock().map_err(unwritable)?;
        let mut keys = file::read(&self.path)?;
        let done = change(&mut keys)?;
        let content = file::write(&keys).map_err(|error| unwritable(io::Error::other(error)))?;
        if content.len() > most {
            return Err(KeysError::Full { path: self.path.clone() });
        }
        durable::replace_private(&self.path, &content).map_err(unwritable)?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
