//! One encryption key for each entity, in all views: destroying the key erases the entity.
//!
//! The keys are in separate small files, each encrypted as a whole under the master key, so that another master key
//! requires no value to be rewritten. Each file exists twice: one bad place anywhere loses nothing.
//!
//! ```text
//! keys/a/, keys/b/        the two copies
//!   head                  the secret behind the tags, and which shards there are
//!   00.keys .. ff.keys    the keys by the first byte of their entity's tag
//!   added-<number>        keys that were made since then, in pieces of one fsync each
//! ```
//!
//! A key is on the disk before a row that needs it is acknowledged.

mod error;
mod files;
pub mod form;
mod table;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use ledge_identity::sealing::Sealer;

use super::seal::KEY_BYTES;
use super::value::Value;
use super::wire::{DamagedBytes, put_value, put_varint};
pub use error::EntityKeysError;
use files::{AddedKeysFile, KeyFiles};
pub use files::{copies, is_added};
use form::{EntityKey, EntityTag, KeysHead, SHARDS, shard_of, shard_of_tag};
use table::KeyShard;

/// Added keys are folded into the shards when they are at least this many, and a quarter of all.
const FOLD_KEYS_MIN: usize = 16_384;
/// They are also folded when they are in more files than this: each rewrite of keys leaves one.
const ADDED_FILES_MAX: usize = 64;

/// The keys of a store.
#[derive(Debug)]
pub struct EntityKeys {
    sealer: Sealer,
    disk: KeyFiles,
    store: [u8; 16],
    secret: [u8; 32],
    complete: AtomicBool,
    shards: Vec<RwLock<KeyShard>>,
    adding: Mutex<UncompactedKeys>,
    /// The keys that were used since a census began, while one runs.
    used: Mutex<Option<HashSet<u32>>>,
    counting: AtomicBool,
    /// Held while files are rewritten; locked before `adding`.
    rewriting: Mutex<RewriteState>,
}

/// New keys that are not in a shard file yet.
#[derive(Debug, Default)]
struct UncompactedKeys {
    /// Keys that are not on the disk yet.
    waiting: Vec<EntityKey>,
    /// The file that receives them.
    file: Option<AddedKeysFile>,
    /// The number of the next file of added keys.
    next_file: u32,
    /// The number of files of added keys, and of keys in them.
    files: usize,
    keys: usize,
    /// True when a fold was requested.
    fold_asked: bool,
}

#[derive(Debug)]
struct RewriteState {
    head: KeysHead,
    /// The numbers of keys that are removed from memory, and not yet from the disk.
    doomed: Vec<u32>,
}

/// The keys of a store, and the repairs of their files.
#[derive(Debug)]
pub struct OpenedKeys {
    pub keys: EntityKeys,
    /// Files of which one copy was damaged, with the reason. They are repaired.
    pub repaired: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EntityKeys {
    /// True when the store in `folder` has keys.
    pub fn exist(folder: &Path) -> Result<bool, EntityKeysError> {
        KeyFiles::new(folder).exists()
    }

    /// Opens the keys of the store in `folder`, or creates the first files. The caller has made sure that nothing there
    /// was ever encrypted, or that it is lost.
    pub fn open(folder: &Path, sealer: Sealer) -> Result<OpenedKeys, EntityKeysError> {
        let disk = KeyFiles::new(folder);
        if !sealer.is_on() {
            return Err(EntityKeysError::Off);
        }

        let mut repaired = Vec::new();
        let head = if disk.exists()? {
            disk.read_head(&sealer, &mut repaired)?
        } else {
            let mut head = KeysHead { store: [0; 16], secret: [0; 32], complete: false, present: [false; SHARDS] };
            let random = getrandom::fill(&mut head.store).and_then(|()| getrandom::fill(&mut head.secret));
            random.map_err(|_| EntityKeysError::Exhausted)?;
            disk.create()?;
            disk.write_head(&sealer, &head)?;
            head
        };

        let mut shards = Vec::with_capacity(SHARDS);
        for (number, present) in head.present.iter().enumerate() {
            let mut shard = KeyShard::new(number);
            if *present {
                let (next, entries) = disk.read_shard(&sealer, &head, number, &mut repaired)?;
                shard.merge(next, entries);
            }
            shards.push(shard);
        }

        let numbers = disk.added()?;
        let mut added: Vec<Vec<EntityKey>> = vec![Vec::new(); SHARDS];
        let mut keys = 0;
        for number in &numbers {
            for entry in disk.read_added(&sealer, &head, *number, &mut repaired)? {
                keys += 1;
                if let Some(shard) = added.get_mut(shard_of(entry.id)) {
                    shard.push(entry);
                }
            }
        }
        for (shard, entries) in shards.iter_mut().zip(added) {
            shard.merge(1, entries);
        }

        let next_file = numbers.last().map_or(1, |last| last + 1);
        let adding = UncompactedKeys { next_file, files: numbers.len(), keys, ..UncompactedKeys::default() };

        let keys = Self {
            sealer,
            store: head.store,
            secret: head.secret,
            complete: AtomicBool::new(head.complete),
            shards: shards.into_iter().map(RwLock::new).collect(),
            adding: Mutex::new(adding),
            used: Mutex::default(),
            counting: AtomicBool::new(false),
            rewriting: Mutex::new(RewriteState { head, doomed: Vec::new() }),
            disk,
        };
        Ok(OpenedKeys { keys, repaired })
    }

    /// The tag of an entity: names and values of its join keys, in any order.
    pub fn tag<'n>(&self, entity: impl IntoIterator<Item = (&'n str, &'n Value)>) -> EntityTag {
        let mut parts: Vec<_> = entity.into_iter().collect();
        parts.sort_unstable_by_key(|(name, _)| *name);
        let mut text = Vec::with_capacity(64);
        for (name, value) in parts {
            put_varint(&mut text, name.len() as u64);
            text.extend_from_slice(name.as_bytes());
            put_value(&mut text, value);
        }
        let mut tag = [0; form::TAG_BYTES];
        tag.copy_from_slice(&blake3::keyed_hash(&self.secret, &text).as_bytes()[..form::TAG_BYTES]);
        tag
    }

    /// True when everything in the store is encrypted.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    /// Records that everything is encrypted, on the disk too.
    pub fn set_complete(&self) -> Result<(), EntityKeysError> {
        let mut rewriting = lock(&self.rewriting);
        let head = KeysHead { complete: true, ..rewriting.head.clone() };
        self.disk.write_head(&self.sealer, &head)?;
        rewriting.head = head;
        self.complete.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The number of keys.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    fn shard(&self, number: usize) -> Option<&RwLock<KeyShard>> {
        self.shards.get(number)
    }

    /// The key of a number.
    pub fn key(&self, id: u32) -> Result<[u8; KEY_BYTES], DamagedBytes> {
        let shard = self.shard(shard_of(id)).ok_or(DamagedBytes::KeyMissing)?;
        shard.read().unwrap_or_else(PoisonError::into_inner).by_id(id).map(|entry| entry.key)
    }

    /// The numbers of an entity's keys.
    pub fn key_ids(&self, tag: &EntityTag) -> Vec<u32> {
        let Some(shard) = self.shard(shard_of_tag(tag)) else { return Vec::new() };
        shard.read().unwrap_or_else(PoisonError::into_inner).by_tag(tag).map(|entry| entry.id).collect()
    }

    /// The key of an entity, and its number. A new one is not on the disk before [`Self::persist`].
    pub fn find_or_make(&self, tag: &EntityTag) -> Result<(u32, [u8; KEY_BYTES]), EntityKeysError> {
        let found = self.find_or_add(tag)?;
        if self.counting.load(Ordering::Acquire) {
            self.use_key(found.0);
        }
        Ok(found)
    }

    /// Begins a census of the keys in use: [`Self::use_key`] of each record, and all keys used for encryption
    /// meanwhile.
    pub fn begin_census(&self) {
        *lock(&self.used) = Some(HashSet::new());
        self.counting.store(true, Ordering::Release);
    }

    /// Marks a key as used.
    pub fn use_key(&self, id: u32) {
        if let Some(used) = lock(&self.used).as_mut() {
            used.insert(id);
        }
    }

    /// The number of keys that are not marked as used so far.
    pub fn unused(&self) -> usize {
        self.count().saturating_sub(lock(&self.used).as_ref().map_or(usize::MAX, HashSet::len))
    }

    /// Ends the census. With `forget`, drops the unused keys and returns their number. Only the thread that encrypts
    /// calls this, so no unused key can come into use meanwhile. Call [`Self::destroy`] afterwards.
    pub fn end_census(&self, forget: bool) -> usize {
        self.counting.store(false, Ordering::Release);
        let Some(used) = lock(&self.used).take().filter(|_| forget) else { return 0 };
        let mut unused = Vec::new();
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            unused.extend(shard.content().1.iter().map(|entry| entry.id).filter(|id| !used.contains(id)));
        }
        self.mark(&unused);
        unused.len()
    }

    fn find_or_add(&self, tag: &EntityTag) -> Result<(u32, [u8; KEY_BYTES]), EntityKeysError> {
        let shard = self.shard(shard_of_tag(tag)).ok_or(EntityKeysError::Exhausted)?;
        let found = |shard: &KeyShard| shard.by_tag(tag).last().map(|entry| (entry.id, entry.key));
        if let Some(found) = found(&shard.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(found);
        }
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(|_| EntityKeysError::Exhausted)?;
        let mut adding = lock(&self.adding);
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = found(&shard) {
            return Ok(found);
        }
        let entry = shard.add(*tag, key).ok_or(EntityKeysError::Exhausted)?;
        adding.waiting.push(entry.clone());
        Ok((entry.id, key))
    }

    /// Writes every new key to the disk: one write and one fsync for each copy, and nothing without a new key.
    pub fn persist(&self) -> Result<(), EntityKeysError> {
        let mut adding = lock(&self.adding);
        if adding.waiting.is_empty() {
            return Ok(());
        }
        let UncompactedKeys { waiting, file, next_file, files, keys, .. } = &mut *adding;
        let mut added = if let Some(added) = file.take() {
            added
        } else {
            let number = *next_file;
            *next_file += 1;
            *files += 1;
            self.disk.create_added(number)?
        };
        match added.append(&self.sealer, &self.store, waiting) {
            Ok(()) => {
                *file = Some(added);
                *keys += waiting.len();
                waiting.clear();
                waiting.shrink_to(1024);
                Ok(())
            }
            // It is unknown how much of it is on the disk: the next attempt uses another file.
            Err(error) => Err(error),
        }
    }

    /// True when enough keys were added for [`Self::compact`]. Returns true once.
    pub fn is_fold_due(&self) -> bool {
        let mut adding = lock(&self.adding);
        let many = adding.files > ADDED_FILES_MAX || (adding.keys >= FOLD_KEYS_MIN && adding.keys >= self.count() / 4);
        let due = many && !adding.fold_asked;
        adding.fold_asked |= due;
        due
    }

    /// The encryption of the files.
    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// Writes the added keys into their shards.
    pub fn compact(&self) -> Result<(), EntityKeysError> {
        let mut rewriting = lock(&self.rewriting);
        lock(&self.adding).fold_asked = false;
        let (numbers, keys) = self.close_added()?;
        let mut touched = [false; SHARDS];
        for number in &numbers {
            for entry in self.read_added(&rewriting.head, *number)? {
                if let Some(touched) = touched.get_mut(shard_of(entry.id)) {
                    *touched = true;
                }
            }
        }
        self.rewrite(&mut rewriting, &touched)?;
        self.remove_added(&numbers, keys)
    }

    /// Encrypts every file again under the current master key. No value is rewritten, and after a power cut at any
    /// moment every file opens with the one or the other master key.
    pub fn rekey(&self) -> Result<u64, EntityKeysError> {
        let mut rewriting = lock(&self.rewriting);
        let (numbers, keys) = self.close_added()?;
        self.rewrite(&mut rewriting, &[true; SHARDS])?;
        self.remove_added(&numbers, keys)?;
        self.disk.write_head(&self.sealer, &rewriting.head)?;
        Ok(self.count() as u64)
    }

    /// Drops keys, in memory only: nothing is encrypted with them any more. [`Self::destroy`] has to follow.
    pub fn mark(&self, ids: &[u32]) {
        // Lock both, so that no doomed key is being written to the disk.
        let mut rewriting = lock(&self.rewriting);
        let mut adding = lock(&self.adding);
        let gone: HashSet<u32> = ids.iter().copied().collect();
        adding.waiting.retain(|entry| !gone.contains(&entry.id));
        rewriting.doomed.extend_from_slice(ids);
        let mut of_shard: Vec<Vec<u32>> = vec![Vec::new(); SHARDS];
        for id in ids {
            if let Some(ids) = of_shard.get_mut(shard_of(*id)) {
                ids.push(*id);
            }
        }
        for (shard, ids) in self.shards.iter().zip(of_shard).filter(|(_, ids)| !ids.is_empty()) {
            shard.write().unwrap_or_else(PoisonError::into_inner).remove(&ids);
        }
    }

    /// Removes doomed keys from every file. When this returns `Ok`, no file has them, and that survives a power cut.
    pub fn destroy(&self) -> Result<(), EntityKeysError> {
        let mut rewriting = lock(&self.rewriting);
        if rewriting.doomed.is_empty() {
            return Ok(());
        }
        let (numbers, _) = self.close_added()?;

        let doomed: HashSet<u32> = rewriting.doomed.iter().copied().collect();
        let mut touched = [false; SHARDS];
        for id in &doomed {
            if let Some(touched) = touched.get_mut(shard_of(*id)) {
                *touched = true;
            }
        }

        // The shards first: they record which numbers were given.
        self.rewrite(&mut rewriting, &touched)?;
        for number in numbers {
            let mut entries = self.read_added(&rewriting.head, number)?;
            let before = entries.len();
            entries.retain(|entry| !doomed.contains(&entry.id));
            if entries.is_empty() {
                self.remove_added(&[number], before)?;
            } else if entries.len() != before {
                self.disk.replace_added(&self.sealer, &rewriting.head, number, &entries)?;
                let mut adding = lock(&self.adding);
                adding.keys = adding.keys.saturating_sub(before - entries.len());
            }
        }

        rewriting.doomed.clear();
        Ok(())
    }

    fn read_added(&self, head: &KeysHead, number: u32) -> Result<Vec<EntityKey>, EntityKeysError> {
        let mut repaired = Vec::new();
        let entries = self.disk.read_added(&self.sealer, head, number, &mut repaired);
        for repaired in repaired {
            tracing::warn!(repaired, "a key file of the feature store was damaged, and is restored from its copy");
        }
        entries
    }

    /// Removes files of added keys, `keys` in all, which the shards have by now.
    fn remove_added(&self, numbers: &[u32], keys: usize) -> Result<(), EntityKeysError> {
        numbers.iter().try_for_each(|number| self.disk.remove_added(*number))?;
        let mut adding = lock(&self.adding);
        adding.files = adding.files.saturating_sub(numbers.len());
        adding.keys = adding.keys.saturating_sub(keys);
        Ok(())
    }

    /// Closes the open file of added keys. Returns the numbers of all files of added keys, which are final now, and the
    /// number of their keys.
    fn close_added(&self) -> Result<(Vec<u32>, usize), EntityKeysError> {
        let mut adding = lock(&self.adding);
        adding.file = None;
        Ok((self.disk.added()?, adding.keys))
    }

    /// Writes the content of shards in memory to their files.
    fn rewrite(&self, rewriting: &mut RewriteState, touched: &[bool; SHARDS]) -> Result<(), EntityKeysError> {
        let mut head = rewriting.head.clone();
        let numbers = touched.iter().enumerate().filter(|(number, touched)| {
            let empty = || {
                self.shard(*number)
                    .is_none_or(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).content().0 == 1)
            };
            **touched && !empty()
        });
        for (number, _) in numbers {
            let Some(shard) = self.shard(number) else { continue };
            let content = {
                let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
                let (next, entries) = shard.content();
                form::encode_shard(next, entries)
            };
            self.disk.write_shard(&self.sealer, &head, number, &content)?;
            if let Some(present) = head.present.get_mut(number) {
                *present = true;
            }
        }
        if head != rewriting.head {
            self.disk.write_head(&self.sealer, &head)?;
            rewriting.head = head;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
