//! All profiles of a store, bounded.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::file::StoredProfiles;
use super::profile::{EntityProfile, bytes_of};
use super::sampler::{SampledRow, is_due};
use crate::key::IndexKey;
use crate::registry::Registry;
use crate::view::{FeatureView, ViewId};

/// The memory of all profiles, in bytes: 1,110 entities of two features, or 74 of 32.
pub const PROFILES_BYTES_MAX: usize = 16 << 20;

/// A new entity takes the place of the one whose last row is the oldest, if that is so many microseconds before its own:
/// a day. Otherwise more entities than fit, which push in turn, would drop one another before anything is learnt.
const IDLE_US: i64 = 86_400_000_000;

/// The entities of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProfileCounts {
    /// Those with a profile.
    pub watched: u64,
    /// Those that too little was seen of.
    pub learning: u64,
    pub unusual: u64,
}

/// The profiles by index key.
#[derive(Debug, Default)]
pub struct ProfileSet {
    /// The declared views that ask for it.
    views: HashMap<ViewId, Arc<FeatureView>>,
    profiles: HashMap<IndexKey, EntityProfile>,
    bytes: usize,
    /// True once the file was read, or found missing.
    is_loaded: bool,
    /// True when the file differs.
    is_changed: bool,
    /// True when the last new entity found no room.
    is_full: bool,
    /// Rows before this entry of the journal are not learnt: an erasure, or a restore, came after them.
    from_seq: u64,
}

impl ProfileSet {
    /// Takes the declarations, and drops profiles of other ones. True when there are fewer now.
    pub fn declare(&mut self, registry: &Registry) -> bool {
        let before = std::mem::take(&mut self.views);
        let watched = registry.views().filter(|view| view.unusual.is_some());
        self.views = watched.map(|view| (view.id, view.clone())).collect();
        let declaration = |view: &Arc<FeatureView>| view.unusual.as_ref().map(|unusual| unusual.declaration.clone());
        let is_same =
            |view: &ViewId| self.views.get(view).and_then(declaration) == before.get(view).and_then(declaration);
        let gone: Vec<ViewId> = before.keys().filter(|view| !is_same(view)).copied().collect();
        self.retain(|_, profile| !gone.contains(&profile.view))
    }

    /// True when a view asks for it.
    pub fn is_needed(&self) -> bool {
        !self.views.is_empty()
    }

    /// Takes what the file has.
    pub fn load(&mut self, StoredProfiles { profiles, is_whole }: StoredProfiles) {
        self.is_loaded = true;
        self.is_changed |= !is_whole;
        for (key, profile) in profiles {
            if self.bytes + profile.bytes() <= PROFILES_BYTES_MAX {
                self.insert(key, profile);
            }
        }
    }

    pub fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub fn note_change(&mut self) {
        self.is_changed = true;
    }

    pub fn note_written(&mut self) {
        self.is_changed = false;
    }

    /// The view of this number, if it asks for it.
    pub fn view(&self, id: ViewId) -> Option<&Arc<FeatureView>> {
        self.views.get(&id)
    }

    /// True when the last new entity found no room.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Judges and learns a row. Left out are rows of an earlier declaration, or that expired, or from before an erasure.
    pub fn take(&mut self, row: &SampledRow, now_us: i64) {
        let Some(view) = self.views.get(&row.view.id).cloned() else { return };
        let (Some(watched), Some(of_row)) = (&view.unusual, &row.view.unusual) else { return };
        let is_expired = row.view.ttl_us().is_some_and(|ttl| row.event_us.saturating_add(ttl) < now_us);
        if watched.declaration != of_row.declaration || !self.is_loaded || is_expired || row.seq < self.from_seq {
            return;
        }
        if !self.profiles.contains_key(&row.key) {
            if !self.make_room(row.event_us, bytes_of(watched.features.len())) {
                return;
            }
            let Some(profile) = EntityProfile::new(view.id, row.entity.clone(), watched) else { return };
            self.insert(row.key, profile);
        }
        let Some(profile) = self.profiles.get_mut(&row.key) else { return };
        if is_due(watched, profile.last_us, row.event_us) {
            profile.take(row, watched);
            self.is_changed = true;
        }
    }

    fn insert(&mut self, key: IndexKey, profile: EntityProfile) {
        self.bytes += profile.bytes();
        let before = self.profiles.insert(key, profile);
        self.bytes -= before.map_or(0, |before| before.bytes());
    }

    /// Makes room for a profile of `bytes` of an entity that was pushed at `event_us`.
    fn make_room(&mut self, event_us: i64, bytes: usize) -> bool {
        while self.bytes + bytes > PROFILES_BYTES_MAX {
            let oldest = self.profiles.iter().min_by_key(|(_, profile)| profile.last_us);
            let idle = oldest.filter(|(_, profile)| profile.last_us.saturating_add(IDLE_US) < event_us);
            let Some(key) = idle.map(|(key, _)| *key) else {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::warn!(
                        name: "features.profiles_full",
                        entities = self.profiles.len(),
                        "no memory is left to learn what is usual of further entities of feature views; one that is not pushed for a day makes room"
                    );
                }
                return false;
            };
            self.remove(&key);
        }
        self.is_full = false;
        true
    }

    fn remove(&mut self, key: &IndexKey) {
        if let Some(profile) = self.profiles.remove(key) {
            self.bytes -= profile.bytes();
            self.is_changed = true;
        }
    }

    /// Keeps the profiles that `is_kept`. True when there are fewer now.
    pub fn retain(&mut self, is_kept: impl Fn(&IndexKey, &EntityProfile) -> bool) -> bool {
        let is_gone = |(key, profile): (&IndexKey, &EntityProfile)| (!is_kept(key, profile)).then_some(*key);
        let gone: Vec<IndexKey> = self.profiles.iter().filter_map(is_gone).collect();
        for key in &gone {
            self.remove(key);
        }
        !gone.is_empty()
    }

    /// Rows before this entry of the journal, which still wait, are not learnt.
    pub fn leave_out_before(&mut self, seq: u64) {
        self.from_seq = self.from_seq.max(seq);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&IndexKey, &EntityProfile)> {
        self.profiles.iter()
    }

    pub fn get(&self, key: &IndexKey) -> Option<&EntityProfile> {
        self.profiles.get(key)
    }

    /// A person says that the last unusual row of an entity is normal. `None`: it has no profile. False: there was no
    /// unusual row.
    pub fn teach_normal(&mut self, key: &IndexKey) -> Option<bool> {
        let is_taught = self.profiles.get_mut(key)?.teach_normal();
        self.is_changed |= is_taught;
        Some(is_taught)
    }

    /// The counts of each view that asks for it.
    pub fn counts(&self) -> BTreeMap<ViewId, ProfileCounts> {
        let mut counts: BTreeMap<_, _> = self.views.keys().map(|view| (*view, ProfileCounts::default())).collect();
        for profile in self.profiles.values() {
            let counts = counts.entry(profile.view).or_default();
            counts.watched += 1;
            counts.learning += u64::from(profile.rows.needed() > 0);
            counts.unusual += u64::from(profile.unusual.is_some());
        }
        counts
    }
}
