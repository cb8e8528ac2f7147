//! Which entities were erased, so that a backup from before does not bring them back. Of an entity there is a keyed hash
//! alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ledge_base::clock;
use ledge_base::durable;
use ledge_identity::sealing::{SealPurpose, Sealer};
use serde::{Deserialize, Serialize};

use super::super::value::Value;
use super::super::wire::{put_value, put_varint};

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

/// When an entity was erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    /// The journal's entry that removed it.
    seq: u64,
    /// In milliseconds since the Unix epoch.
    at_ms: u64,
}

/// What is asked about: whether something was erased since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// A backup of this store, which may lack what the journal has from this entry on. No clock has a part in it.
    Entry(u64),
    /// One of another store, whose entries have numbers of their own: when it was made.
    Time(u64),
}

/// A keyed hash of an entity: the values of some join keys, with their names.
type Hash = [u8; 16];

#[derive(Debug, Default, PartialEq)]
struct List {
    /// The secret behind the hashes.
    secret: [u8; 32],
    /// The numbers of keys that an erasure was about to destroy.
    doomed: BTreeSet<u32>,
    /// By the names of the join keys, in order: an entity, or all that have these join keys among others.
    erased: HashMap<Vec<String>, HashMap<Hash, When>>,
}

/// The list as its file has it. The numbers are in hexadecimal digits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    secret: String,
    doomed_keys: BTreeSet<u32>,
    erased: Vec<FormOfNames>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormOfNames {
    join_keys: Vec<String>,
    entities: BTreeMap<String, When>,
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok().map(|()| bytes)
}

impl List {
    fn hash<'e>(&self, entity: impl Iterator<Item = (&'e str, &'e Value)>) -> Hash {
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
        let of_names = |(names, entities): (&Vec<String>, &HashMap<Hash, When>)| FormOfNames {
            join_keys: names.clone(),
            entities: entities.iter().map(|(hash, when)| (hex::encode(hash), *when)).collect(),
        };
        let erased = self.erased.iter().map(of_names).collect();
        let form = Form { secret: hex::encode(self.secret), doomed_keys: self.doomed.clone(), erased };
        Ok(serde_json::to_vec(&form)?)
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let malformed = || io::Error::other("it is malformed");
        let form: Form = serde_json::from_slice(bytes)?;
        let secret = from_hex(&form.secret).ok_or_else(malformed)?;
        let mut list = Self { secret, doomed: form.doomed_keys, erased: HashMap::new() };
        for FormOfNames { join_keys, entities } in form.erased {
            let entities = entities.into_iter().map(|(hash, when)| Some((from_hex(&hash)?, when)));
            let entities: Option<HashMap<_, _>> = entities.collect();
            list.erased.insert(join_keys, entities.ok_or_else(malformed)?);
        }
        Ok(list)
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
                List::decode(&plain)?
            }
            Ok(bytes) => List::decode(&bytes)
                .map_err(|error| io::Error::other(format!("{} is damaged ({error}); without it a backup may bring back what was erased: remove it to go on all the same", path.display())))?,
        };
        Ok(Self { path, sealer, list: Mutex::new(list) })
    }

    /// Takes note of an entity that is about to be erased, in each type that its values have somewhere, not before the journal's
    /// entry `seq`; and of its keys. When this returns `Ok`, it survives a power cut, and [`Self::doomed`] has the keys until
    /// [`Self::end`]: nothing may be sealed with them any more.
    pub fn begin(&self, names: &[&str], values: &[Vec<Value>], seq: u64, keys: &[u32]) -> io::Result<()> {
        self.note(names, values, seq, |doomed| doomed.extend(keys))
    }

    /// Takes note that it is erased, by this entry of the journal, and all doomed keys are destroyed.
    pub fn end(&self, names: &[&str], values: &[Vec<Value>], seq: u64) -> io::Result<()> {
        self.note(names, values, seq, BTreeSet::clear)
    }

    /// The keys of an erasure that did not come to its end.
    pub fn doomed(&self) -> Vec<u32> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).doomed.iter().copied().collect()
    }

    /// Takes note that they are destroyed.
    pub fn settle(&self) -> io::Result<()> {
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
        // The last time counts. Where the file cannot be written, it does no harm that the list has it already.
        erased.extend(hashes.into_iter().map(|hash| (hash, When { seq, at_ms: clock::unix_millis() })));
        self.write(&list)
    }

    /// Whether an entity was erased since, or by a part of its join keys.
    pub fn has(&self, entity: &[(&str, &Value)], since: Since) -> bool {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.erased.iter().any(|(names, erased)| {
            let value = |name: &String| entity.iter().find(|(key, _)| key == name).copied();
            let part: Option<Vec<_>> = names.iter().map(value).collect();
            let when = part.and_then(|part| erased.get(&list.hash(part.into_iter())));
            when.is_some_and(|when| match since {
                Since::Entry(from) => from <= when.seq,
                Since::Time(ms) => ms <= when.at_ms,
            })
        })
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
        let sealed = self.sealer.seal(SealPurpose::FeatureStore, PLACE, &list.encode()?);
        durable::replace_private(&self.path, &sealed.map_err(io::Error::other)?)
    }
}

/// Reads the list for the fuzzers; true when it is one. It is the same after it was written and read again.
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(list) = List::decode(data) else { return false };
    let written = list.encode().unwrap_or_default();
    assert!(List::decode(&written).is_ok_and(|again| again == list), "{}", written.escape_ascii());
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
            let erased = ErasedEntities::open(folder.path(), sealer.clone()).unwrap();
            let (customer, shop) = (Value::String("customer-4711".into()), Value::Int64(3));
            erased.begin(&["customer"], &[vec![customer.clone()]], 40, &[7, 5]).unwrap();
            let erased = ErasedEntities::open(folder.path(), sealer.clone()).unwrap();
            assert_eq!(erased.doomed(), [5, 7]);
            erased.settle().unwrap();
            assert_eq!(ErasedEntities::open(folder.path(), sealer.clone()).unwrap().doomed(), [0; 0]);
            erased.begin(&["customer"], &[], 40, &[9]).unwrap();
            erased.end(&["customer"], &[vec![customer.clone()], vec![Value::Int64(8)]], 70).unwrap();
            let erased = ErasedEntities::open(folder.path(), sealer.clone()).unwrap();
            assert_eq!(erased.doomed(), [0; 0]);
            for since in [Since::Time(1), Since::Entry(1), Since::Entry(70)] {
                assert!(erased.has(&[("customer", &customer)], since));
                assert!(erased.has(&[("shop", &shop), ("customer", &customer)], since));
                assert!(erased.has(&[("customer", &Value::Int64(8))], since));
                assert!(!erased.has(&[("shop", &shop)], since));
                assert!(!erased.has(&[("customer", &shop)], since));
            }
            // It came back before that backup, whatever the clock said.
            for since in [Since::Time(u64::MAX), Since::Entry(71)] {
                assert!(!erased.has(&[("customer", &customer)], since));
            }
            let bytes = fs::read(folder.path().join(NAME)).unwrap();
            assert_eq!(Sealer::is_sealed(&bytes), sealer.is_on());
            assert!(!String::from_utf8_lossy(&bytes).contains("4711"));
        }
    }

    #[test]
    fn a_list_that_was_changed_is_not_taken_for_an_empty_one() {
        let folder = tempfile::tempdir().unwrap();
        let erased = ErasedEntities::open(folder.path(), Sealer::none()).unwrap();
        erased.end(&["customer"], &[vec![Value::Int64(8)]], 40).unwrap();
        let path = folder.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [("\"secret\":\"", "\"secret\":\"0"), ("{\"seq\"", "{\"sequence\""), ("}]}", "}]")] {
            durable::replace(&path, text.replacen(from, to, 1).as_bytes()).unwrap();
            assert!(ErasedEntities::open(folder.path(), Sealer::none()).is_err(), "{to}");
        }
    }

    proptest! {
        #[test]
        fn a_list_is_read_as_it_was_written(
            secret: [u8; 32],
            doomed in prop::collection::btree_set(any::<u32>(), 0..4),
            all in prop::collection::hash_map(
                prop::collection::vec("[a-z]{0,4}", 0..3),
                prop::collection::hash_map(any::<Hash>(), any::<(u64, u64)>(), 0..5),
                0..5,
            ),
        ) {
            let with_when = |(hash, (seq, at_ms))| (hash, When { seq, at_ms });
            let erased = all.into_iter().map(|(names, found)| (names, found.into_iter().map(with_when).collect())).collect();
            let list = List { secret, doomed, erased };
            let read = List::decode(&list.encode().unwrap()).unwrap();
            prop_assert_eq!((read.secret, read.doomed, read.erased), (list.secret, list.doomed, list.erased));
        }
    }
}
