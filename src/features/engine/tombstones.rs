//! Tombstones: the entities that were erased, so that an older backup does not restore them. A tombstone has only a
//! keyed hash of the entity.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ledge_base::clock;
use ledge_base::durable;
use ledge_identity::sealing::{EncryptionPurpose, Sealer};
use serde::{Deserialize, Serialize};

use super::super::value::Value;
use super::super::wire::{put_value, put_varint};

/// The name of the file in the store's folder.
pub const FILE_NAME: &str = "erased.json";
const ASSOCIATED_DATA: &[u8] = b"feature store: erased entities";

/// The tombstones of a store.
#[derive(Debug)]
pub struct Tombstones {
    path: PathBuf,
    sealer: Sealer,
    list: Mutex<TombstoneList>,
}

/// The time of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErasureTime {
    /// The journal's entry that removed it.
    seq: u64,
    /// In milliseconds since the Unix epoch.
    at_ms: u64,
}

/// The point from which on an erasure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasureCutoff {
    /// For a backup of this store: the first journal entry that it may lack. No clock is involved.
    Entry(u64),
    /// For a backup of another store, because its entries are numbered differently: the time when it was made, in
    /// milliseconds since the Unix epoch.
    Time(u64),
}

/// A keyed hash of an entity: the values of some join keys, with their names.
type EntityHash = [u8; 16];

#[derive(Debug, Default, PartialEq)]
struct TombstoneList {
    /// The secret behind the hashes.
    secret: [u8; 32],
    /// The numbers of keys that an unfinished erasure has to destroy.
    doomed: BTreeSet<u32>,
    /// By the names of the join keys, in order. An entry stands for every entity with these join keys, also for one
    /// with further join keys.
    erased: HashMap<Vec<String>, HashMap<EntityHash, ErasureTime>>,
}

/// The form of the file. Hashes and secret are in hexadecimal digits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TombstonesFile {
    secret: String,
    doomed_keys: BTreeSet<u32>,
    erased: Vec<TombstonesByKeys>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TombstonesByKeys {
    join_keys: Vec<String>,
    entities: BTreeMap<String, ErasureTime>,
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

impl TombstoneList {
    fn hash<'e>(&self, entity: impl Iterator<Item = (&'e str, &'e Value)>) -> EntityHash {
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

    fn encode(&self) -> io::Result<Vec<u8>> {
        let of_names = |(names, entities): (&Vec<String>, &HashMap<EntityHash, ErasureTime>)| TombstonesByKeys {
            join_keys: names.clone(),
            entities: entities.iter().map(|(hash, when)| (hex::encode(hash), *when)).collect(),
        };
        let erased = self.erased.iter().map(of_names).collect();
        let form = TombstonesFile { secret: hex::encode(self.secret), doomed_keys: self.doomed.clone(), erased };
        Ok(serde_json::to_vec(&form)?)
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let malformed = || io::Error::other("it is malformed");
        let form: TombstonesFile = serde_json::from_slice(bytes)?;
        let secret = from_hex(&form.secret).ok_or_else(malformed)?;
        let mut list = Self { secret, doomed: form.doomed_keys, erased: HashMap::new() };
        for TombstonesByKeys { join_keys, entities } in form.erased {
            let entities = entities.into_iter().map(|(hash, when)| Some((from_hex(&hash)?, when)));
            let entities: Option<HashMap<_, _>> = entities.collect();
            list.erased.insert(join_keys, entities.ok_or_else(malformed)?);
        }
        Ok(list)
    }
}

impl Tombstones {
    /// Reads the tombstones of the store in `folder`.
    pub fn open(folder: &Path, sealer: Sealer) -> io::Result<Self> {
        let path = folder.join(FILE_NAME);
        let list = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut list = TombstoneList::default();
                getrandom::fill(&mut list.secret).map_err(io::Error::other)?;
                list
            }
            Err(error) => return Err(error),
            Ok(bytes) if Sealer::is_sealed(&bytes) => {
                let plain = sealer.open(EncryptionPurpose::FeatureStore, ASSOCIATED_DATA, &bytes);
                let plain = plain.map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
                TombstoneList::decode(&plain)?
            }
            Ok(bytes) => TombstoneList::decode(&bytes)
                .map_err(|error| io::Error::other(format!("{} is damaged ({error}). It keeps backups from restoring erased entities. To start without that protection, remove the file", path.display())))?,
        };
        Ok(Self { path, sealer, list: Mutex::new(list) })
    }

    /// Records an entity that is about to be erased, once for each type that its values have in some view, as erased
    /// not before the journal's entry `seq`; and its keys. When this returns `Ok`, it survives a power cut, and
    /// [`Self::doomed`] has the keys until [`Self::end`]: nothing may be encrypted with them any more.
    pub fn begin(&self, names: &[&str], values: &[Vec<Value>], seq: u64, keys: &[u32]) -> io::Result<()> {
        self.note(names, values, seq, |doomed| doomed.extend(keys))
    }

    /// Records that the entity is erased, by this entry of the journal, and all doomed keys are destroyed.
    pub fn end(&self, names: &[&str], values: &[Vec<Value>], seq: u64) -> io::Result<()> {
        self.note(names, values, seq, BTreeSet::clear)
    }

    /// The keys of an unfinished erasure.
    pub fn doomed(&self) -> Vec<u32> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).doomed.iter().copied().collect()
    }

    /// Records that the doomed keys are destroyed.
    pub fn clear_doomed(&self) -> io::Result<()> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut list.doomed).is_empty() { Ok(()) } else { self.write(&list) }
    }

    fn note(
        &self,
        names: &[&str],
        values: &[Vec<Value>],
        seq: u64,
        change: impl FnOnce(&mut BTreeSet<u32>),
    ) -> io::Result<()> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut list.doomed);
        let hashes: Vec<_> = values.iter().map(|values| list.hash(names.iter().copied().zip(values))).collect();
        let erased = list.erased.entry(names.iter().map(ToString::to_string).collect()).or_default();
        // The last erasure counts. If the file cannot be written, the entry in memory does no harm.
        erased.extend(hashes.into_iter().map(|hash| (hash, ErasureTime { seq, at_ms: clock::unix_millis() })));
        self.write(&list)
    }

    /// True when the entity was erased since then, itself or by a part of its join keys.
    pub fn has(&self, entity: &[(&str, &Value)], since: ErasureCutoff) -> bool {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.erased.iter().any(|(names, erased)| {
            let value = |name: &String| entity.iter().find(|(key, _)| key == name).copied();
            let part: Option<Vec<_>> = names.iter().map(value).collect();
            let when = part.and_then(|part| erased.get(&list.hash(part.into_iter())));
            when.is_some_and(|when| match since {
                ErasureCutoff::Entry(from) => from <= when.seq,
                ErasureCutoff::Time(ms) => ms <= when.at_ms,
            })
        })
    }

    pub fn is_empty(&self) -> bool {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).erased.is_empty()
    }

    /// Encrypts the file again under the current master key.
    pub fn rekey(&self) -> io::Result<()> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if list.erased.is_empty() { Ok(()) } else { self.write(&list) }
    }

    fn write(&self, list: &TombstoneList) -> io::Result<()> {
        let sealed = self.sealer.seal(EncryptionPurpose::FeatureStore, ASSOCIATED_DATA, &list.encode()?);
        durable::replace_private(&self.path, &sealed.map_err(io::Error::other)?)
    }
}

/// Reads the list for the fuzzers; true when it is valid. It is the same after it was written and read again.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(list) = TombstoneList::decode(data) else { return false };
    let written = list.encode().unwrap_or_default();
    assert!(TombstoneList::decode(&written).is_ok_and(|again| again == list), "{}", written.escape_ascii());
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_erased_entity_is_known_by_any_of_its_join_keys_until_a_later_backup() {
        for sealer in [Sealer::none(), Sealer::with_keys(&[[3; 32]])] {
            let folder = tempfile::tempdir().unwrap();
            let tombstones = Tombstones::open(folder.path(), sealer.clone()).unwrap();
            let (customer, shop) = (Value::String("customer-4711".into()), Value::Int64(3));
            tombstones.begin(&["customer"], &[vec![customer.clone()]], 40, &[7, 5]).unwrap();
            let tombstones = Tombstones::open(folder.path(), sealer.clone()).unwrap();
            assert_eq!(tombstones.doomed(), [5, 7]);
            tombstones.clear_doomed().unwrap();
            assert_eq!(Tombstones::open(folder.path(), sealer.clone()).unwrap().doomed(), [0; 0]);

            tombstones.begin(&["customer"], &[], 40, &[9]).unwrap();
            tombstones.end(&["customer"], &[vec![customer.clone()], vec![Value::Int64(8)]], 70).unwrap();
            let tombstones = Tombstones::open(folder.path(), sealer.clone()).unwrap();
            assert_eq!(tombstones.doomed(), [0; 0]);

            for since in [ErasureCutoff::Time(1), ErasureCutoff::Entry(1), ErasureCutoff::Entry(70)] {
                assert!(tombstones.has(&[("customer", &customer)], since));
                assert!(tombstones.has(&[("shop", &shop), ("customer", &customer)], since));
                assert!(tombstones.has(&[("customer", &Value::Int64(8))], since));
                assert!(!tombstones.has(&[("shop", &shop)], since));
                assert!(!tombstones.has(&[("customer", &shop)], since));
            }

            // The entity was pushed again before that backup, regardless of the clock.
            for since in [ErasureCutoff::Time(u64::MAX), ErasureCutoff::Entry(71)] {
                assert!(!tombstones.has(&[("customer", &customer)], since));
            }

            let bytes = fs::read(folder.path().join(FILE_NAME)).unwrap();
            assert_eq!(Sealer::is_sealed(&bytes), sealer.is_on());
            assert!(!String::from_utf8_lossy(&bytes).contains("4711"));
        }
    }

    #[test]
    fn a_list_that_was_changed_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let tombstones = Tombstones::open(folder.path(), Sealer::none()).unwrap();
        tombstones.end(&["customer"], &[vec![Value::Int64(8)]], 40).unwrap();
        let path = folder.path().join(FILE_NAME);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [("\"secret\":\"", "\"secret\":\"0"), ("{\"seq\"", "{\"sequence\""), ("}]}", "}]")] {
            durable::replace(&path, text.replacen(from, to, 1).as_bytes()).unwrap();
            assert!(Tombstones::open(folder.path(), Sealer::none()).is_err(), "{to}");
        }
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(
            secret: [u8; 32],
            doomed in prop::collection::btree_set(any::<u32>(), 0..4),
            all in prop::collection::hash_map(
                prop::collection::vec("[a-z]{0,4}", 0..3),
                prop::collection::hash_map(any::<EntityHash>(), any::<(u64, u64)>(), 0..5),
                0..5,
            ),
        ) {
            let with_when = |(hash, (seq, at_ms))| (hash, ErasureTime { seq, at_ms });
            let erased = all.into_iter().map(|(names, found)| (names, found.into_iter().map(with_when).collect())).collect();
            let list = TombstoneList { secret, doomed, erased };
            let read = TombstoneList::decode(&list.encode().unwrap()).unwrap();
            prop_assert_eq!((read.secret, read.doomed, read.erased), (list.secret, list.doomed, list.erased));
        }
    }
}
