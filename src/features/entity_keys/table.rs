//! The keys in memory: 56 bytes each, found by number and by entity. A million keys that were added one by one took 110
//! MB of the process.

use std::collections::HashSet;

use super::super::wire::DamagedBytes;
use super::form::{EntityKey, EntityTag, number};

/// The keys of one shard.
#[derive(Debug)]
pub struct KeyShard {
    place: usize,
    /// The count of the next key.
    next: u32,
    /// By their numbers, ascending.
    entries: Vec<EntityKey>,
    /// Positions in `entries`, by tag and then by number.
    by_tag: Vec<u32>,
}

impl KeyShard {
    /// Creates an empty shard.
    pub fn new(shard: usize) -> Self {
        Self { place: shard, next: 1, entries: Vec::new(), by_tag: Vec::new() }
    }

    /// The count of the next key, and all keys.
    pub fn content(&self) -> (u32, &[EntityKey]) {
        (self.next, &self.entries)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds keys from files. Keys that are there already stay unchanged.
    pub fn merge(&mut self, next: u32, entries: Vec<EntityKey>) {
        self.next = self.next.max(next);
        for entry in entries {
            self.next = self.next.max((entry.id & 0x00ff_ffff) + 1);
            if let Err(at) = self.entries.binary_search_by_key(&entry.id, |known| known.id) {
                self.entries.insert(at, entry);
            }
        }
        self.index();
    }

    fn index(&mut self) {
        let entries = &self.entries;
        self.by_tag = (0..).take(entries.len()).collect();
        self.by_tag.sort_unstable_by_key(|at| entries.get(*at as usize).map(|entry| (entry.tag, entry.id)));
        self.by_tag.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// The key of a number.
    pub fn by_id(&self, id: u32) -> Result<&EntityKey, DamagedBytes> {
        match self.entries.binary_search_by_key(&id, |known| known.id) {
            Ok(at) => self.entries.get(at).ok_or(DamagedBytes::Erased),
            // A number beyond the last one was given by a file that is lost.
            Err(_) if id & 0x00ff_ffff >= self.next => Err(DamagedBytes::KeyMissing),
            Err(_) => Err(DamagedBytes::Erased),
        }
    }

    /// The keys of an entity, the newest last. There are several only after a crash in the middle of an erasure.
    pub fn by_tag(&self, tag: &EntityTag) -> impl Iterator<Item = &EntityKey> {
        let tag_at = |at: &u32| self.entries.get(*at as usize).map(|entry| entry.tag);
        let from = self.by_tag.partition_point(|at| tag_at(at) < Some(*tag));
        let to = self.by_tag.partition_point(|at| tag_at(at) <= Some(*tag));
        self.by_tag.get(from..to).unwrap_or_default().iter().filter_map(|at| self.entries.get(*at as usize))
    }

    /// Adds a key for an entity; `None` when all numbers are used.
    pub fn add(&mut self, tag: EntityTag, key: [u8; super::super::seal::KEY_BYTES]) -> Option<&EntityKey> {
        let id = number(self.place, self.next)?;
        let place = u32::try_from(self.entries.len()).ok()?;
        let tag_at = |at: &u32| self.entries.get(*at as usize).map(|entry| entry.tag);
        let at = self.by_tag.partition_point(|at| tag_at(at) <= Some(tag));
        // Grow by an eighth: doubling could leave half of the memory unused.
        if self.entries.len() == self.entries.capacity() {
            let more = self.entries.len() / 8 + 4;
            self.entries.reserve_exact(more);
            self.by_tag.reserve_exact(more);
        }
        self.next += 1;
        self.by_tag.insert(at, place);
        self.entries.push(EntityKey { id, tag, key });
        self.entries.last()
    }

    /// Drops keys.
    pub fn remove(&mut self, ids: &[u32]) {
        let before = self.entries.len();
        let gone: HashSet<u32> = ids.iter().copied().collect();
        self.entries.retain(|entry| !gone.contains(&entry.id));
        if self.entries.len() != before {
            self.index();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_are_found_by_number_and_entity(tags in prop::collection::vec(0..40_u8, 0..100), gone in prop::collection::vec(0..40_u8, 0..10)) {
            let mut shard = KeyShard::new(3);
            let mut known: BTreeMap<u8, u32> = BTreeMap::new();
            for tag in tags {
                if known.contains_key(&tag) {
                    continue;
                }
                known.insert(tag, shard.add([tag; 16], [tag; 32]).unwrap().id);
            }
            let gone: Vec<_> = gone.iter().filter_map(|tag| known.remove(tag)).collect();
            shard.remove(&gone);
            for (tag, id) in &known {
                prop_assert_eq!(shard.by_id(*id).unwrap().key, [*tag; 32]);
                prop_assert_eq!(shard.by_tag(&[*tag; 16]).map(|entry| entry.id).collect::<Vec<_>>(), vec![*id]);
            }
            for id in &gone {
                prop_assert_eq!(shard.by_id(*id), Err(DamagedBytes::Erased));
            }
            let never = number(3, shard.content().0).unwrap();
            prop_assert_eq!(shard.by_id(never), Err(DamagedBytes::KeyMissing));
            prop_assert_eq!(shard.len(), known.len());
        }
    }
}
