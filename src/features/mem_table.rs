//! A layer: the records that changed since a snapshot, in sled. The only code that knows sled.
//!
//! sled is fast while its content fits its cache, and it never frees space. Therefore a layer is small, and the next
//! snapshot replaces it. sled is not trusted with acknowledged rows either: sled 0.34.7's flush does not survive a
//! power cut, and after a torn page it may not open at all, or panic, or report corruption much later (measured: 16 of
//! 20 modelled power cuts lost data). After a flipped byte it may open without an error and lack records (seen here).
//! Therefore every call is guarded, every record has a checksum, all content has one sum ([`ContentChecksum`]), and
//! [`IndexError::Damaged`] leads to another layer, filled from the journal, never to "not found".
//!
//! The value of an entity is one of
//!
//! ```text
//! 80, record                 the record; no snapshot below has one of the entity
//! 81, record                 the record, in place of the one below
//! d0, entry, checksum        the one below was removed by this journal entry
//! record                     as 80: an index of an earlier version, which has every record
//! ```

use std::fmt;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ledge_base::{durable, sys};
use serde::{Deserialize, Serialize};
use sled::{Db, IVec, Tree};

use super::key::IndexKey;
use super::record;

/// The longest time for opening: it takes milliseconds, and under a second with a million entities; a damaged store may
/// never open.
const OPEN_TIMEOUT: Duration = Duration::from_mins(2);

/// The longest wait for sled's lock: its threads hold it for a while after the store was closed.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The text in sled's error when the lock is held. sled has no separate kind of error for it.
const LOCKED_ERROR_TEXT: &str = "could not acquire lock";

/// The keys of the tree `meta`.
const META_APPLIED: &[u8] = b"applied";
const META_BEGUN: &[u8] = b"begun";
const META_COMPLETE: &[u8] = b"complete";
const META_HASH_KEY: &[u8] = b"hash key";
const META_SNAPSHOT: &[u8] = b"snapshot";

/// The first byte of a value: a record, a record over another one below, or the removal of that one.
const RECORD: u8 = 0x80;
const RECORD_OVER: u8 = 0x81;
const REMOVED: u8 = 0xd0;
/// The bytes of a removal: its kind, the entry, a checksum.
const REMOVED_BYTES: usize = 1 + 8 + 4;

/// Errors of the index.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IndexError {
    /// The index, or a record from it, is not as it was written.
    #[error("the index is damaged: {reason}")]
    Damaged {
        /// The message of sled, or of the failed check.
        reason: String,
    },
    #[error("the index cannot be read or written: {reason}")]
    Io { reason: String },
    /// Another owner has the index open, or sled has not released its lock yet.
    #[error("the index cannot be read or written: {reason}")]
    Locked { reason: String },
}

impl IndexError {
    /// An error for damage that was found.
    pub fn damaged(reason: impl Into<String>) -> Self {
        Self::Damaged { reason: reason.into() }
    }
}

impl From<sled::Error> for IndexError {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(error) if is_locked(&error) => Self::Locked { reason: error.to_string() },
            sled::Error::Io(error) if is_of_the_system(&error) => Self::Io { reason: error.to_string() },
            error => Self::damaged(error.to_string()),
        }
    }
}

/// True when the system refused the operation. Any other error, such as a file that ends too early, is damage: another
/// attempt would find the same.
fn is_of_the_system(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let kinds =
        [Kind::StorageFull, Kind::QuotaExceeded, Kind::PermissionDenied, Kind::ReadOnlyFilesystem, Kind::OutOfMemory];
    kinds.contains(&error.kind())
}

fn is_locked(error: &io::Error) -> bool {
    error.to_string().contains(LOCKED_ERROR_TEXT)
}

/// A layer, in its own folder.
#[derive(Debug)]
pub struct MemTable {
    rows: Tree,
    meta: Tree,
    db: Arc<Db>,
    folder: PathBuf,
    /// The keys that were ever put in; `None` in a layer from before this start.
    keys: Option<KeyBloomFilter>,
}

/// A Bloom filter, which excludes most keys that were never added. An index key is a hash, so its bytes are used as
/// they are.
struct KeyBloomFilter(Box<[AtomicU64]>);

impl KeyBloomFilter {
    /// With this many words and a layer of 16 MiB, some 120,000 records, one in 7000 of the other keys is still
    /// searched in sled.
    const WORDS: usize = 1 << 16;

    fn new() -> Self {
        Self((0..Self::WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Four places: a word, and a bit in it.
    fn places(key: &IndexKey) -> impl Iterator<Item = (usize, u64)> {
        let place = |part: u32| {
            let part = part as usize;
            (part % Self::WORDS, 1 << ((part / Self::WORDS) % 64))
        };
        key.hash().into_iter().map(place)
    }

    fn add(&self, key: &IndexKey) {
        for (word, bit) in Self::places(key) {
            if let Some(word) = self.0.get(word) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    fn may_have(&self, key: &IndexKey) -> bool {
        Self::places(key).all(|(word, bit)| self.0.get(word).is_none_or(|word| word.load(Ordering::Relaxed) & bit != 0))
    }
}

impl fmt::Debug for KeyBloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFilter")
    }
}

impl Drop for MemTable {
    /// Closing sled may hang, or panic, over a damaged store. A separate thread closes it, so that the caller does
    /// neither.
    fn drop(&mut self) {
        let last = (self.rows.clone(), self.meta.clone(), self.db.clone());
        let close = move || {
            // The other handles are dropped when `drop` has returned.
            while Arc::strong_count(&last.2) > 1 {
                thread::park_timeout(Duration::from_millis(1));
            }
            let _ = catch_unwind(AssertUnwindSafe(|| drop(last)));
            sys::return_free_memory();
        };
        if let Err(error) = thread::Builder::new().name("features-close".into()).spawn(close) {
            tracing::warn!(%error, "cannot start the thread that closes an index of the feature store");
        }
    }
}

/// The number of values, and a sum over their contents that does not depend on their order: two layers with the same
/// checksum are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ContentChecksum {
    pub records: u64,
    /// The wrapping sum of 64 bits of each.
    pub sum: u64,
}

impl ContentChecksum {
    /// Adds a value.
    pub fn add(&mut self, key: &IndexKey, value: &[u8]) {
        self.records += 1;
        self.sum = self.sum.wrapping_add(digest(key, value));
    }

    /// Subtracts a value.
    pub fn subtract(&mut self, key: &IndexKey, value: &[u8]) {
        self.records = self.records.saturating_sub(1);
        self.sum = self.sum.wrapping_sub(digest(key, value));
    }
}

/// 64 bits of a value, from its checksum, which covers all of it, and its key, which is a hash.
fn digest(key: &IndexKey, value: &[u8]) -> u64 {
    let sum = value.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
    let key = key.as_bytes().last_chunk().map_or(0, |key| u64::from_le_bytes(*key));
    // The checksum of a record does not cover the kind of the value.
    let kind = value.first().copied().filter(|kind| *kind >= RECORD).map_or(0, u64::from);
    // Mix the bits, so that records with exchanged checksums do not give the same sum (SplitMix64's constants).
    let mut mixed = key ^ (u64::from(sum) << 32 | u64::from(sum)) ^ (kind << 16);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A record as a layer keeps it.
pub type MemTableBytes = IVec;

/// The value of an entity in a layer.
#[derive(Debug, Clone)]
pub struct MemTableValue {
    bytes: IVec,
    /// The entity's record; `None` where it was removed.
    pub record: Option<MemTableBytes>,
    /// True when a snapshot below has a record of the entity.
    pub is_below: bool,
    /// The sequence number of the last journal entry that is in it.
    pub seq: u64,
}

impl MemTableValue {
    /// A record, as [`super::record::RecordHeader::with_body`] wrote it.
    pub fn of_record(record: &[u8], is_below: bool) -> Self {
        let kind = [if is_below { RECORD_OVER } else { RECORD }];
        let bytes = IVec::from([&kind, record].concat());
        let seq = record::sequence_number(record);
        Self { record: Some(bytes.subslice(1, record.len())), bytes, is_below, seq }
    }

    /// The removal of the record below, by journal entry `seq`.
    pub fn removed(key: &IndexKey, seq: u64) -> Self {
        let content = [&[REMOVED][..], &seq.to_le_bytes()].concat();
        let sum = removal_checksum(key, &content).to_le_bytes();
        Self { bytes: [&content[..], &sum].concat().into(), record: None, is_below: true, seq }
    }

    /// Reads the value of an entity. The checksum of a record is not checked here.
    fn read(key: &IndexKey, bytes: IVec) -> Result<Self, record::DamagedBytes> {
        use record::DamagedBytes::{Checksum, Malformed};
        let first = *bytes.first().ok_or(Malformed)?;
        if first == REMOVED {
            let (content, sum) = bytes.split_last_chunk::<4>().ok_or(Malformed)?;
            if bytes.len() != REMOVED_BYTES || removal_checksum(key, content) != u32::from_le_bytes(*sum) {
                return Err(Checksum);
            }
            let seq = content.last_chunk().map_or(0, |seq| u64::from_le_bytes(*seq));
            return Ok(Self { bytes, record: None, is_below: true, seq });
        }
        let (record, is_below) = match first {
            RECORD | RECORD_OVER => (bytes.subslice(1, bytes.len() - 1), first == RECORD_OVER),
            ..RECORD => (bytes.clone(), false),
            _ => return Err(Malformed),
        };
        let seq = record::sequence_number(&record);
        Ok(Self { bytes, record: Some(record), is_below, seq })
    }

    /// Its bytes in the layer.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn removal_checksum(key: &IndexKey, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Changes of values.
#[derive(Debug, Default)]
pub struct MemTableChanges {
    /// `None` removes the value: the entity was nowhere else.
    rows: Vec<(IndexKey, Option<MemTableValue>)>,
    begun: Option<u64>,
    applied: Option<u64>,
}

impl MemTableChanges {
    /// Writes a value, or removes it.
    pub fn put(&mut self, key: &IndexKey, value: Option<MemTableValue>) {
        self.rows.push((*key, value));
    }

    /// Records that no value is of a later entry than `seq`.
    pub fn begun(&mut self, seq: u64) {
        self.begun = Some(seq);
    }

    /// Records that every journal entry up to `seq` is in the layer, or below it.
    pub fn applied(&mut self, seq: u64) {
        self.applied = Some(seq);
    }
}

impl MemTable {
    /// Opens the layer in `folder`, or creates one. sled may panic or hang over a damaged one, so a separate thread
    /// opens it, and is given up after a time.
    pub fn open(folder: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        let (sender, receiver) = mpsc::channel();
        let path = folder.to_owned();
        let open = move || {
            let until = Instant::now() + LOCK_TIMEOUT;
            loop {
                match guard(|| Self::open_here(&path, cache_bytes)) {
                    Err(IndexError::Locked { .. }) if Instant::now() < until => {
                        thread::park_timeout(Duration::from_millis(5));
                    }
                    done => return drop(sender.send(done)),
                }
            }
        };
        let thread = thread::Builder::new().name("features-open".into()).spawn(open);
        thread.map_err(|error| IndexError::Io { reason: error.to_string() })?;
        match receiver.recv_timeout(OPEN_TIMEOUT) {
            Ok(done) => done,
            Err(_) => Err(IndexError::damaged(format!("it did not open within {} s", OPEN_TIMEOUT.as_secs()))),
        }
    }

    fn open_here(folder: &Path, cache_bytes: u64) -> Result<Self, IndexError> {
        let io = |error: io::Error| IndexError::Io { reason: error.to_string() };
        let is_new = !folder.exists();
        if !is_new {
            remove_unfinished(folder).map_err(io)?;
        }

        let config = sled::Config::default().path(folder).cache_capacity(cache_bytes).flush_every_ms(None);
        let db = config.open()?;
        let tree = |name: &str| db.open_tree(name);
        let index = Self {
            rows: tree("rows")?,
            meta: tree("meta")?,
            folder: folder.to_owned(),
            db: Arc::new(db.clone()),
            keys: is_new.then(KeyBloomFilter::new),
        };

        if is_new {
            // Without this, a power cut in the first moments would leave a store that does not open.
            index.flush()?;
            for entry in std::fs::read_dir(folder).map_err(io)? {
                let path = entry.map_err(io)?.path();
                File::open(&path).and_then(|file| file.sync_all()).map_err(io)?;
            }
            durable::sync_folder(folder).map_err(io)?;
            folder.parent().map_or(Ok(()), durable::sync_folder).map_err(io)?;
        }

        Ok(index)
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The value of an entity. The checksum of its record is not checked here.
    pub fn get(&self, key: &IndexKey) -> Result<Option<MemTableValue>, IndexError> {
        if self.keys.as_ref().is_some_and(|keys| !keys.may_have(key)) {
            return Ok(None);
        }
        let found = guard(|| Ok(self.rows.get(key.as_bytes())?))?;
        found.map(|bytes| MemTableValue::read(key, bytes)).transpose().map_err(unusable)
    }

    /// Makes changes, each value as a whole. A partial write is harmless: the journal has the entries after the
    /// recorded last one. Therefore no transaction is used: it took twice the time, and sled makes every reader wait
    /// for it.
    pub fn apply(&self, changes: &MemTableChanges) -> Result<(), IndexError> {
        guard(|| {
            if let Some(begun) = changes.begun {
                self.meta.insert(META_BEGUN, &begun.to_be_bytes())?;
            }
            for (key, value) in &changes.rows {
                if let Some(keys) = &self.keys {
                    keys.add(key);
                }
                match value {
                    Some(value) => self.rows.insert(key.as_bytes(), &value.bytes)?,
                    None => self.rows.remove(key.as_bytes())?,
                };
            }
            if let Some(applied) = changes.applied {
                self.meta.insert(META_APPLIED, &applied.to_be_bytes())?;
            }
            Ok(())
        })
    }

    /// Its values with keys that begin with `prefix`, in the order of the keys.
    pub fn scan(&self, prefix: &[u8]) -> MemTableScan {
        MemTableScan { values: self.rows.scan_prefix(prefix) }
    }

    /// The number of the snapshot below it. 0: without a snapshot, so the layer has every record.
    pub fn snapshot(&self) -> Result<u64, IndexError> {
        self.number(META_SNAPSHOT).map(Option::unwrap_or_default)
    }

    /// The last journal entry of which it may have a value; `None` in an index of an earlier version, which does not
    /// know it.
    pub fn begun(&self) -> Result<Option<u64>, IndexError> {
        let (begun, applied) = (self.number(META_BEGUN)?, self.applied()?);
        Ok(begun.map(|begun| begun.max(applied)))
    }

    /// The last journal entry that is applied to it or to the snapshot below, with all before. 0: no entry.
    pub fn applied(&self) -> Result<u64, IndexError> {
        self.number(META_APPLIED).map(Option::unwrap_or_default)
    }

    fn number(&self, key: &[u8]) -> Result<Option<u64>, IndexError> {
        let bytes = guard(|| Ok(self.meta.get(key)?))?;
        let number = |bytes: IVec| <[u8; 8]>::try_from(&*bytes).map(u64::from_be_bytes);
        bytes.map(number).transpose().map_err(|_| IndexError::damaged("a number in it is malformed"))
    }

    /// True when the index is complete.
    pub fn is_complete(&self) -> Result<bool, IndexError> {
        guard(|| Ok(self.meta.contains_key(META_COMPLETE)?))
    }

    /// True when its index keys were made with the hash key of this id.
    pub fn is_keyed_by(&self, hash_key: [u8; 8]) -> Result<bool, IndexError> {
        guard(|| Ok(self.meta.get(META_HASH_KEY)?.is_some_and(|id| *id == hash_key)))
    }

    /// Begins a new layer over the snapshot of this number, without waiting for the disk: after a power cut it may be
    /// an unfinished one, and the journal has its entries.
    pub fn begin(&self, snapshot: u64, hash_key: [u8; 8]) -> Result<(), IndexError> {
        guard(|| {
            self.meta.insert(META_HASH_KEY, &hash_key)?;
            self.meta.insert(META_SNAPSHOT, &snapshot.to_be_bytes())?;
            let last = snapshot.saturating_sub(1).to_be_bytes();
            self.meta.insert(META_BEGUN, &last)?;
            self.meta.insert(META_APPLIED, &last)?;
            self.meta.insert(META_COMPLETE, &[])?;
            Ok(())
        })
    }

    /// Marks a layer complete that has every record, on the disk too.
    pub fn set_complete(&self, hash_key: [u8; 8]) -> Result<(), IndexError> {
        guard(|| {
            self.meta.insert(META_HASH_KEY, &hash_key)?;
            self.flush()?;
            self.meta.insert(META_COMPLETE, &[])?;
            self.flush()
        })
    }

    /// Gives all changes to the kernel, so that they survive the end of this process.
    pub fn write_out(&self) -> Result<(), IndexError> {
        guard(|| {
            self.db.flush()?;
            Ok(())
        })
    }

    /// Syncs all changes to the disk. sled's own flush leaves them in the drive's cache.
    pub fn flush(&self) -> Result<(), IndexError> {
        guard(|| {
            self.db.flush()?;
            let synced = File::open(self.folder.join("db")).and_then(|file| file.sync_all());
            synced.map_err(|error| IndexError::Io { reason: error.to_string() })
        })
    }
}

/// Reads a layer in the order of the keys.
pub struct MemTableScan {
    values: sled::Iter,
}

impl MemTableScan {
    /// The next value, after checking its checksum.
    pub fn next(&mut self) -> Result<Option<(IndexKey, MemTableValue)>, IndexError> {
        let Some((key, bytes)) = guard(|| Ok(self.values.next().transpose()?))? else { return Ok(None) };
        let key = IndexKey::try_from(&*key).map_err(|_| IndexError::damaged("a key has the wrong length"))?;
        let value = MemTableValue::read(&key, bytes).map_err(unusable)?;
        if let Some(record) = &value.record {
            record::verify(&key, record).map_err(unusable)?;
        }
        Ok(Some((key, value)))
    }
}

fn unusable(error: record::DamagedBytes) -> IndexError {
    IndexError::damaged(format!("a record cannot be used: {error}"))
}

/// Removes sled's unfinished summary of its file, as after a full disk: sled would take it for a damaged one.
fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "generating") {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Runs a call to sled. A panic counts as damage, unless the disk is full.
fn guard<T>(work: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("sled panicked");
            let is_full = ["StorageFull", "QuotaExceeded"].iter().any(|kind| text.contains(kind));
            Err(if is_full { IndexError::Io { reason: text.to_owned() } } else { IndexError::damaged(text) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use crate::record::{FeatureRecord, FeatureRow};
    use crate::value::Value;
    use crate::view::ViewId;

    fn key(number: i64) -> IndexKey {
        HashKey::new([1; 32]).index_key(ViewId(3), &[Value::Int64(number)])
    }

    fn value(number: i64, is_below: bool) -> MemTableValue {
        let row = FeatureRow { entity: vec![Value::Int64(number)], event_us: 1, values: vec![] };
        let record = FeatureRecord { seq: 1, purge_us: i64::MAX, row, windows: vec![] };
        MemTableValue::of_record(&record.encode(&key(number)), is_below)
    }

    fn values(layer: &MemTable) -> Vec<(IndexKey, MemTableValue)> {
        let mut scan = layer.scan(&[]);
        std::iter::from_fn(|| scan.next().unwrap()).collect()
    }

    #[test]
    fn what_is_written_together_is_there_after_open_write_drop_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("layer");
        for round in 0..5u32 {
            let layer = MemTable::open(&path, 16 << 20).unwrap();
            let found = (layer.applied().unwrap(), values(&layer).len());
            assert_eq!(found, (u64::from(round) * 10, round as usize * 100));
            let mut changes = MemTableChanges::default();
            for number in 0..100 {
                let number = i64::from(round) * 100 + number;
                changes.put(&key(number), Some(value(number, false)));
            }
            changes.applied(u64::from(round + 1) * 10);
            layer.apply(&changes).unwrap();
        }
    }

    #[test]
    fn a_record_a_removal_and_a_record_of_an_earlier_version_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let layer = MemTable::open(&folder.path().join("layer"), 16 << 20).unwrap();
        layer.begin(7, [2; 8]).unwrap();
        let mut changes = MemTableChanges::default();
        changes.put(&key(1), Some(value(1, false)));
        changes.put(&key(2), Some(value(2, true)));
        changes.put(&key(3), Some(MemTableValue::removed(&key(3), 9)));
        layer.apply(&changes).unwrap();
        layer.rows.insert(key(4).as_bytes(), value(4, false).record.unwrap()).unwrap();

        let mut found: Vec<_> = values(&layer);
        found.sort_by_key(|(found, _)| (1..5).find(|number| key(*number) == *found));
        let found: Vec<_> =
            found.iter().map(|(_, value)| (value.record.is_some(), value.is_below, value.seq)).collect();
        assert_eq!(found, [(true, false, 1), (true, true, 1), (false, true, 9), (true, false, 1)]);
        assert_eq!((layer.snapshot().unwrap(), layer.applied().unwrap()), (7, 6));

        // A removal of another entity, and one that was changed.
        let removal = MemTableValue::removed(&key(3), 9);
        assert!(MemTableValue::read(&key(1), removal.bytes.clone()).is_err());
        for at in 1..removal.bytes.len() {
            let mut bytes = removal.bytes.to_vec();
            bytes[at] ^= 1;
            assert!(MemTableValue::read(&key(3), bytes.into()).is_err());
        }
    }

    #[test]
    fn a_layer_that_is_open_already_is_locked_and_not_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("layer");
        let layer = MemTable::open(&path, 16 << 20).unwrap();
        let refused = MemTable::open_here(&path, 16 << 20).unwrap_err();
        assert!(matches!(refused, IndexError::Locked { .. }), "{refused:?}");
        assert!(refused.to_string().starts_with("the index cannot be read or written: "), "{refused}");
        drop(layer);
        MemTable::open(&path, 16 << 20).unwrap();
    }
}
