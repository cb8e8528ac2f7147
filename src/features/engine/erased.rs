//! Which entities were erased, so that a backup from before does not bring them back. Of an entity there is a keyed hash
//! alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::super::value::Value;
use super::super::wire::{put_value, put_varint};
use crate::clock;
use crate::durable;
use crate::identity::sealing::{SealPurpose, Sealer};

/// Its file.
pub const NAME: &str = "erased.json";
const PLACE: &[u8] = b"feature store: erased entities";

/// The entities that were erased.
#[derive(Debug)]
pub struct ErasedEntities {
    path: PathBuf,
    sealer: Sealer,
    list: Mutex<List>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// The secret behind the hashes.
    secret: [u8; 32],
    erased: Vec<Tombstone>,
}

/// An entity, or all that have these join keys among others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tombstone {
    /// The names of the join keys, in order.
    names: Vec<String>,
    hash: [u8; 16],
    /// When, in milliseconds since the Unix epoch.
    at_ms: u64,
}

impl List {
    fn hash<'e>(&self, entity: impl Iterator<Item = (&'e str, &'e Value)>) -> [u8; 16] {
        let mut text = Vec::with_capacity(64);
        for (name, value) in entity {
            put_varint(&mut text, name.len() as u64);
            text.extend_from_slice(name.as_bytes());
            put_value(&mut text, value);
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::keyed_hash(&self.secret, &text).as_bytes()[..16]);
        hash
    }
}

impl ErasedEntities {
    /// Those of the store in `folder`.
    pub fn open(folder: &Path, sealer: Sealer) -> io::Result<Self> {
        let path = folder.join(NAME);
        let list = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut list = List::default();
                getrandom::fill(&mut list.secret).map_err(io::Error::other)?;
                list
            }
            Err(error) => return Err(error),
            Ok(bytes) if Sealer::is_sealed(&bytes) => {
                let plain = sealer.open(SealPurpose::FeatureStore, PLACE, &bytes);
                let plain = plain.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
                serde_json::from_slice(&plain)?
            }
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::other(format!("{} is damaged ({error}); without it a backup may bring back what was erased: remove it to go on all the same", path.display())))?,
        };
        Ok(Self { path, sealer, list: Mutex::new(list) })
    }

    /// Takes note of an entity, in each type that its values have somewhere. When this returns `Ok`, it survives a power cut.
    pub fn add(&self, names: &[&str], values: &[Vec<Value>]) -> io::Result<()> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = list.clone();
        for values in values {
            let hash = next.hash(names.iter().copied().zip(values));
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            // The last time counts.
            next.erased.retain(|known| known.hash != hash || known.names != names);
            next.erased.push(Tombstone { names, hash, at_ms: clock::unix_millis() });
        }
        self.write(&next)?;
        *list = next;
        Ok(())
    }

    /// Whether an entity was erased after `since_ms`, or by a part of its join keys.
    pub fn has(&self, entity: &[(&str, &Value)], since_ms: u64) -> bool {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let later = list.erased.iter().filter(|tombstone| tombstone.at_ms >= since_ms);
        let mut hashed: Vec<(&[String], Option<[u8; 16]>)> = Vec::new();
        for tombstone in later {
            let known = hashed.iter().find(|(names, _)| *names == tombstone.names.as_slice()).map(|(_, hash)| *hash);
            let hash = known.unwrap_or_else(|| {
                let value = |name: &String| entity.iter().find(|(key, _)| key == name).copied();
                let part: Option<Vec<_>> = tombstone.names.iter().map(value).collect();
                let hash = part.map(|part| list.hash(part.into_iter()));
                hashed.push((&tombstone.names, hash));
                hash
            });
            if hash == Some(tombstone.hash) {
                return true;
            }
        }
        false
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).erased.is_empty()
    }

    /// Seals them under the current master key.
    pub fn reseal(&self) -> io::Result<()> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.erased.is_empty() { Ok(()) } else { self.write(&list) }
    }

    fn write(&self, list: &List) -> io::Result<()> {
        let sealed = self.sealer.seal(SealPurpose::FeatureStore, PLACE, &serde_json::to_vec(list)?);
        durable::replace_private(&self.path, &sealed.map_err(io::Error::other)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erased_entity_is_known_by_any_of_its_join_keys_until_a_later_backup() {
        for sealer in [Sealer::none(), Sealer::with_keys(&[[3; 32]])] {
            let folder = tempfile::tempdir().unwrap();
            let erased = ErasedEntities::open(folder.path(), sealer.clone()).unwrap();
            let (customer, shop) = (Value::String("customer-4711".into()), Value::Int64(3));
            erased.add(&["customer"], &[vec![customer.clone()]]).unwrap();
            let erased = ErasedEntities::open(folder.path(), sealer.clone()).unwrap();
            assert!(erased.has(&[("customer", &customer)], 1));
            assert!(erased.has(&[("shop", &shop), ("customer", &customer)], 1));
            assert!(!erased.has(&[("shop", &shop)], 1));
            assert!(!erased.has(&[("customer", &shop)], 1));
            assert!(!erased.has(&[("customer", &customer)], u64::MAX), "it came back before that backup");
            let bytes = fs::read(folder.path().join(NAME)).unwrap();
            assert_eq!(Sealer::is_sealed(&bytes), sealer.is_on());
            assert!(!String::from_utf8_lossy(&bytes).contains("4711"));
        }
    }
}
