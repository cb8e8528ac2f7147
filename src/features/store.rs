//! The index: the newest record of each entity, in sled. The only code that knows sled.
//!
//! sled is fast, and not trusted with acknowledged rows. sled 0.34.7's flush does not survive a power cut, and after a
//! torn page it may not open at all, or panic, or report corruption much later (measured: 16 of 20 modelled power cuts
//! lost data). After a flipped byte it may open without an error and lack records (seen here). So every call is
//! guarded, every record has a checksum, the content is added up ([`Tally`]), and [`IndexError::Damaged`] leads to a
//! rebuild from snapshot and journal, never to "not found".

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ledge_base::durable;
use serde::{Deserialize, Serialize};
use sled::{Db, IVec, Tree};

use super::key::IndexKey;
use super::record;

/// The longest time for opening: it takes milliseconds, and under a second with a million entities; a damaged store may
/// never open.
const OPEN_TIMEOUT: Duration = Duration::from_mins(2);

/// The longest wait for sled's lock: its threads hold it for a while after the store was closed.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The text in sled's error when the lock is held, which has no kind of its own.
const LOCKED_ERROR_TEXT: &str = "could not acquire lock";

/// The precision of expiry: an hour, so that pushing to an entity again seldom moves its expiry entry.
const EXPIRY_STEP_US: i64 = 3_600_000_000;

/// The keys of the tree `meta`.
const META_APPLIED: &[u8] = b"applied";
const META_COMPLETE: &[u8] = b"complete";
const META_HASH_KEY: &[u8] = b"hash key";

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

/// The index of a store: one generation of it, in a folder of its own.
#[derive(Debug)]
pub struct Index {
    rows: Tree,
    expiry: Tree,
    meta: Tree,
    db: Arc<Db>,
    folder: PathBuf,
}

impl Drop for Index {
    /// Closing sled may hang, or panic, over a damaged store. A separate thread closes it, so that the caller does
    /// neither.
    fn drop(&mut self) {
        let last = (self.rows.clone(), self.expiry.clone(), self.meta.clone(), self.db.clone());
        let close = move || {
            // The other handles are dropped when `drop` has returned.
            while Arc::strong_count(&last.3) > 1 {
                thread::park_timeout(Duration::from_millis(1));
            }
            let _ = catch_unwind(AssertUnwindSafe(|| drop(last)));
        };
        if let Err(error) = thread::Builder::new().name("features-close".into()).spawn(close) {
            tracing::warn!(%error, "cannot start the thread that closes an index of the feature store");
        }
    }
}

/// The number of records, and a sum over their contents that does not depend on their order: two sets of records with
/// the same tally are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    pub records: u64,
    /// The wrapping sum of 64 bits of each.
    pub sum: u64,
}

impl Tally {
    /// Adds a record.
    pub fn add(&mut self, key: &IndexKey, record: &[u8]) {
        self.records += 1;
        self.sum = self.sum.wrapping_add(digest(key, record));
    }

    /// Subtracts a record.
    pub fn subtract(&mut self, key: &IndexKey, record: &[u8]) {
        self.records = self.records.saturating_sub(1);
        self.sum = self.sum.wrapping_sub(digest(key, record));
    }
}

/// 64 bits of a record, from its checksum, which covers all of it, and its key, which is a hash.
fn digest(key: &IndexKey, record: &[u8]) -> u64 {
    let sum = record.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
    let key = key.as_bytes().last_chunk().map_or(0, |key| u64::from_le_bytes(*key));
    // Mix the bits, so that records whose checksums were exchanged do not give the same sum (SplitMix64's constants).
    let mut mixed = key ^ (u64::from(sum) << 32 | u64::from(sum));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A record as the index keeps it.
pub type RecordBytes = IVec;

/// Changes of records and of when they expire.
#[derive(Debug, Default)]
pub struct Changes {
    rows: Vec<(IndexKey, Option<IVec>)>,
    expiry: Vec<ExpiryKey>,
    expired: Vec<ExpiryKey>,
    applied: Option<u64>,
}

/// The hour, and the entity's key.
pub type ExpiryKey = [u8; 8 + IndexKey::LENGTH];

impl Changes {
    /// Writes a record over one that expired at `old_purge_us`, if there was one.
    pub fn put(&mut self, key: &IndexKey, record: &[u8], purge_us: i64, old_purge_us: Option<i64>) {
        self.rows.push((*key, Some(record.into())));
        let (old, new) = (old_purge_us.and_then(|old| expiry_key(old, key)), expiry_key(purge_us, key));
        if old != new {
            self.expired.extend(old);
            self.expiry.extend(new);
        }
    }

    /// Removes a record that expired at `purge_us`.
    pub fn remove(&mut self, key: &IndexKey, purge_us: i64) {
        self.rows.push((*key, None));
        self.expired.extend(expiry_key(purge_us, key));
    }

    /// Removes an expiry entry without a record.
    pub fn forget_expiry(&mut self, entry: &[u8]) {
        self.expired.extend(ExpiryKey::try_from(entry));
    }

    /// Records that every journal entry up to `seq` is in the index.
    pub fn applied(&mut self, seq: u64) {
        self.applied = Some(seq);
    }
}

/// The expiry entry of a record: the hour from which on it may be swept, and its key.
pub fn expiry_key(purge_us: i64, key: &IndexKey) -> Option<ExpiryKey> {
    let step = u64::try_from(purge_us.checked_add(EXPIRY_STEP_US)? / EXPIRY_STEP_US).ok()?;
    let mut entry = [0; 8 + IndexKey::LENGTH];
    let (hour, rest) = entry.split_at_mut(8);
    hour.copy_from_slice(&step.to_be_bytes());
    rest.copy_from_slice(key.as_bytes());
    (purge_us != i64::MAX).then_some(entry)
}

impl Index {
    /// Opens the index in `folder`, or creates one. sled may panic or hang over a damaged one: it is opened on a thread
    /// of its own, and given up after a time.
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
            expiry: tree("expiry")?,
            meta: tree("meta")?,
            folder: folder.to_owned(),
            db: Arc::new(db.clone()),
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

    /// The record of an entity, as it was written. Its checksum is not checked here.
    pub fn get(&self, key: &IndexKey) -> Result<Option<RecordBytes>, IndexError> {
        guard(|| Ok(self.rows.get(key.as_bytes())?))
    }

    /// Makes changes, each record as a whole, in an order in which a partial write is harmless: the sweep removes
    /// expiry entries without a record, and the journal has the entries after the recorded last one. So there is no
    /// transaction, which took twice the time, and for which sled lets every reader wait.
    pub fn apply(&self, changes: &Changes) -> Result<(), IndexError> {
        guard(|| {
            for entry in &changes.expiry {
                self.expiry.insert(entry, &[])?;
            }
            for (key, record) in &changes.rows {
                match record {
                    Some(record) => self.rows.insert(key.as_bytes(), record)?,
                    None => self.rows.remove(key.as_bytes())?,
                };
            }
            for entry in &changes.expired {
                self.expiry.remove(entry)?;
            }
            if let Some(applied) = changes.applied {
                self.meta.insert(META_APPLIED, &applied.to_be_bytes())?;
            }
            Ok(())
        })
    }

    /// Calls `each` with every record, after checking its checksum, until it returns an error.
    pub fn scan<E: From<IndexError>>(&self, each: impl FnMut(IndexKey, &[u8]) -> Result<(), E>) -> Result<(), E> {
        self.scan_prefix(&[], each)
    }

    /// As [`Self::scan`], for the records whose keys begin with `prefix`.
    pub fn scan_prefix<E: From<IndexError>>(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(IndexKey, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut records = self.rows.scan_prefix(prefix);
        while let Some(entry) = guard(|| Ok(records.next().transpose()?))? {
            let (key, bytes) = entry;
            let key = IndexKey::try_from(&*key).map_err(|_| IndexError::damaged("a key has the wrong length"))?;
            record::verify(&key, &bytes)
                .map_err(|error| IndexError::damaged(format!("a record cannot be used: {error}")))?;
            each(key, &bytes)?;
        }
        Ok(())
    }

    /// Up to `most` entities, with their expiry entries, that may be swept at `now_us`.
    pub fn expired(&self, now_us: i64, most: usize) -> Result<Vec<(Vec<u8>, IndexKey)>, IndexError> {
        let end = u64::try_from(now_us / EXPIRY_STEP_US).unwrap_or(0).saturating_add(1);
        guard(|| {
            let mut found = Vec::new();
            for entry in self.expiry.range(..&end.to_be_bytes()[..]).take(most) {
                let (entry, _) = entry?;
                let key = entry.get(8..).and_then(|key| IndexKey::try_from(key).ok());
                found.push((entry.to_vec(), key.ok_or_else(|| IndexError::damaged("an expiry entry is malformed"))?));
            }
            Ok(found)
        })
    }

    /// The last journal entry that is in the index, with all before it. 0 is none.
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

    /// Marks the index complete, on the disk too.
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
    use crate::record::{Record, Row};
    use crate::value::Value;
    use crate::view::ViewId;

    fn record(number: i64, purge_us: i64) -> (IndexKey, Vec<u8>) {
        let row = Row { entity: vec![Value::Int64(number)], event_us: 1, values: vec![] };
        let key = HashKey::new([1; 32]).index_key(ViewId(3), &row.entity);
        (key, Record { seq: 1, purge_us, row, windows: vec![] }.encode(&key))
    }

    fn keys(index: &Index) -> usize {
        let mut count = 0;
        index
            .scan::<IndexError>(|_, _| {
                count += 1;
                Ok(())
            })
            .unwrap();
        count
    }

    #[test]
    fn what_is_written_together_is_there_after_open_write_drop_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        for round in 0..5u32 {
            let index = Index::open(&path, 16 << 20).unwrap();
            assert_eq!((index.applied().unwrap(), keys(&index)), (u64::from(round) * 10, round as usize * 100));
            let mut changes = Changes::default();
            for number in 0..100 {
                let (key, bytes) = record(i64::from(round) * 100 + number, i64::MAX);
                changes.put(&key, &bytes, i64::MAX, None);
            }
            changes.applied(u64::from(round + 1) * 10);
            index.apply(&changes).unwrap();
        }
    }

    #[test]
    fn an_entity_is_swept_when_its_hour_is_over_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let index = Index::open(&folder.path().join("index"), 16 << 20).unwrap();
        let hour = EXPIRY_STEP_US;
        let mut changes = Changes::default();
        for (number, purge_us) in [(1, 5 * hour), (2, 7 * hour + 1), (3, i64::MAX)] {
            let (key, bytes) = record(number, purge_us);
            changes.put(&key, &bytes, purge_us, None);
        }
        index.apply(&changes).unwrap();
        let expired = |now| index.expired(now, 10).unwrap().into_iter().map(|(_, key)| key).collect::<Vec<_>>();
        assert_eq!(expired(5 * hour), []);
        assert_eq!(expired(6 * hour), [record(1, 0).0]);
        assert_eq!(expired(100 * hour), [record(1, 0).0, record(2, 0).0]);
        let (key, bytes) = record(1, 9 * hour);
        let mut changes = Changes::default();
        changes.put(&key, &bytes, 9 * hour, Some(5 * hour));
        changes.remove(&record(2, 0).0, 7 * hour + 1);
        index.apply(&changes).unwrap();
        assert_eq!(expired(8 * hour), []);
        assert_eq!(expired(10 * hour), [key]);
        assert_eq!(keys(&index), 2);
    }

    #[test]
    fn an_index_that_is_open_already_is_locked_and_not_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let index = Index::open(&path, 16 << 20).unwrap();
        let refused = Index::open_here(&path, 16 << 20).unwrap_err();
        assert!(matches!(refused, IndexError::Locked { .. }), "{refused:?}");
        assert!(refused.to_string().starts_with("the index cannot be read or written: "), "{refused}");
        drop(index);
        Index::open(&path, 16 << 20).unwrap();
    }
}
