//! The file of the profiles. Each profile is encrypted under the key of its entity, as its rows are, so that it is gone
//! with that key.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use ledge_anomaly::{RowProfile, SeriesDetector};
use ledge_base::stored_form::{self, StoredFormError};
use ledge_base::{clock, durable};
use serde::{Deserialize, Serialize};

use super::profile::{EntityProfile, UnusualRow, pace};
use super::set::{PROFILES_BYTES_MAX, ProfileSet};
use crate::engine::StoreEngine;
use crate::key::IndexKey;
use crate::protection::RowCipher;
use crate::record::CipherHeader;
use crate::seal::CipherContext;
use crate::value::ValueType;
use crate::view::{FeatureView, ViewId, WatchedFeatures};
use crate::wire::{ByteReader, put_value};

/// The file's name in the folder of the store.
pub const FILE_NAME: &str = "profiles";

/// The heads of the file and of each profile in it. Raised when an earlier version could no longer read them.
const FILE_HEAD: &[u8] = b"LFP1";
const PROFILE_HEAD: &[u8] = b"LEP1";

/// More than the largest file: what is stored of a profile is smaller than its memory.
const FILE_BYTES_MAX: u64 = 2 * PROFILES_BYTES_MAX as u64;

/// Set in the number that a file is encrypted with in place of that of a journal entry: no entry has it.
const FILE_MARK: u64 = 1 << 63;

/// The whole file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct StoredFile {
    /// The number that its profiles are encrypted with: the time of the write.
    number: u64,
    /// The declaration of each view. What was learnt under another one is dropped.
    views: BTreeMap<u32, String>,
    profiles: Vec<StoredEntry>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct StoredEntry {
    key: [u8; IndexKey::LENGTH],
    /// The number of its encryption key; 0: not encrypted.
    key_id: u32,
    body: Vec<u8>,
}

/// The content of an entry.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct StoredProfile {
    /// The values of the join keys, as the store writes values.
    entity: Vec<u8>,
    last_us: i64,
    rows: Vec<u8>,
    series: Vec<Vec<u8>>,
    unusual: Option<UnusualRow>,
}

/// The profiles of a file.
#[derive(Debug, Default)]
pub struct StoredProfiles {
    pub profiles: Vec<(IndexKey, EntityProfile)>,
    /// False when some were left out: of other declarations, erased or damaged ones.
    pub is_whole: bool,
}

/// Reads the file. One that cannot be used is set aside, and all is learnt anew.
pub fn read(path: &Path, engine: &StoreEngine, set: &ProfileSet) -> StoredProfiles {
    let none = StoredProfiles { profiles: Vec::new(), is_whole: true };
    let reason = match read_file(path) {
        Ok(Some(Ok(file))) => return usable(file, &engine.protection, |id| set.view(id)),
        Ok(None) => return none,
        Ok(Some(Err(error))) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(name: "features.profiles_damaged", path = %path.display(), reason, "what is usual of the rows of feature views cannot be read; it is set aside, and learnt anew");
    // Under the name that an erasure removes.
    if let Err(error) = engine.files.set_aside(path, FILE_NAME) {
        tracing::warn!(path = %path.display(), %error, "it cannot be set aside, and will be overwritten");
    }
    none
}

fn read_file(path: &Path) -> io::Result<Option<Result<StoredFile, StoredFormError>>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Ok(Some(Err(StoredFormError::Content))),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(Some(stored_form::decode(FILE_HEAD, &fs::read(path)?)))
}

/// The profiles that can be decrypted, and have the present declaration.
fn usable<'v>(
    file: StoredFile,
    protection: &RowCipher,
    view: impl Fn(ViewId) -> Option<&'v std::sync::Arc<FeatureView>>,
) -> StoredProfiles {
    let count = file.profiles.len();
    let profile = |entry: StoredEntry| {
        let key = IndexKey::from(entry.key);
        let view = view(key.view())?;
        let watched = view.unusual.as_ref()?;
        if file.views.get(&view.id.0).map(String::as_str) != Some(&*watched.declaration) {
            return None;
        }
        let seal = if entry.key_id == 0 { CipherHeader::default() } else { CipherHeader::of_entity(entry.key_id) };
        let context = CipherContext { key: &key, seq: file.number, windows: false };
        let body = protection.open(&context, seal, &entry.body).ok()?;
        Some((key, decode(&body, view, watched)?))
    };
    let profiles: Vec<_> = file.profiles.into_iter().filter_map(profile).collect();
    StoredProfiles { is_whole: profiles.len() == count, profiles }
}

/// Writes the file. Without a profile it is removed.
pub fn write(path: &Path, engine: &StoreEngine, set: &ProfileSet) -> io::Result<()> {
    let protection = &engine.protection;
    let number = clock::unix_micros().unsigned_abs() | FILE_MARK;
    let (mut profiles, mut views) = (Vec::new(), BTreeMap::new());
    for (key, profile) in set.iter() {
        let Some(watched) = set.view(profile.view).and_then(|view| view.unusual.as_ref()) else { continue };
        views.entry(profile.view.0).or_insert_with(|| watched.declaration.to_string());
        let context = CipherContext { key, seq: number, windows: false };
        let sealed = protection.seal(&context, &profile.entity, encode(profile).into()).map_err(io::Error::other)?;
        profiles.push(StoredEntry { key: *key.as_bytes(), key_id: sealed.seal.key_id, body: sealed.bytes.into() });
    }
    if profiles.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => durable::sync_folder(engine.files.folder()),
        };
    }
    // Where rows are still plain, their entities may have got their keys only now.
    protection.persist().map_err(io::Error::other)?;
    durable::replace_private(path, &stored_form::encode(FILE_HEAD, &StoredFile { number, views, profiles }))
}

fn encode(profile: &EntityProfile) -> Vec<u8> {
    let mut entity = Vec::new();
    for value in &profile.entity {
        put_value(&mut entity, value);
    }
    let stored = StoredProfile {
        entity,
        last_us: profile.last_us,
        rows: profile.rows.encode(),
        series: profile.series.iter().map(SeriesDetector::encode).collect(),
        unusual: profile.unusual.clone(),
    };
    stored_form::encode(PROFILE_HEAD, &stored)
}

/// Reads the output of [`encode`], for a view; `None` for what does not fit it.
fn decode(body: &[u8], view: &FeatureView, watched: &WatchedFeatures) -> Option<EntityProfile> {
    let stored: StoredProfile = stored_form::decode(PROFILE_HEAD, body).ok()?;
    let features = watched.features.len();
    let mut reader = ByteReader::new(&stored.entity);
    let mut entity = Vec::with_capacity(view.join_keys.len());
    for key in &view.join_keys {
        entity.push(reader.value().ok().filter(|value| value.value_type() == ValueType::Scalar(key.value_type))?);
    }
    let rows = RowProfile::decode(&stored.rows).ok().filter(|rows| rows.features() == features)?;
    let series: Vec<SeriesDetector> =
        stored.series.iter().map(|series| SeriesDetector::decode(series).ok()).collect::<Option<_>>()?;
    let is_paced = series.iter().all(|series| Some(series.pace()) == pace(watched));
    let is_sound = |row: &UnusualRow| {
        row.score.is_finite()
            && row.features.iter().all(|explained| {
                let numbers = [explained.share, explained.value, explained.low, explained.high];
                usize::from(explained.feature) < features && numbers.iter().all(|number| number.is_finite())
            })
    };
    let fits =
        reader.is_empty() && series.len() == features && is_paced && stored.unusual.as_ref().is_none_or(is_sound);
    fits.then_some(EntityProfile {
        view: view.id,
        entity,
        last_us: stored.last_us,
        rows,
        series,
        unusual: stored.unusual,
    })
}

/// Feeds arbitrary bytes to the readers of the file, as the whole file and as one profile, with and without their heads
/// and checksums. True when a profile is accepted.
///
/// # Panics
/// When it is not the same after it was written and read again, which is a bug.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> bool {
    let Some(view) = example_view() else { return false };
    let Some(watched) = &view.unusual else { return false };
    let mut accepted = false;
    for bytes in [data.to_vec(), stored_form::framed(PROFILE_HEAD, data)] {
        if let Some(profile) = decode(&bytes, &view, watched) {
            assert_eq!(decode(&encode(&profile), &view, watched).as_ref(), Some(&profile));
            accepted = true;
        }
    }
    let protection = RowCipher::new(None, &crate::catalog::ViewCatalog::default());
    for bytes in [data.to_vec(), stored_form::framed(FILE_HEAD, data)] {
        if let Ok(file) = stored_form::decode::<StoredFile>(FILE_HEAD, &bytes) {
            accepted |= !usable(file, &protection, |_| Some(&view)).profiles.is_empty();
        }
    }
    accepted
}

/// A view of two features, with which a fuzzer's bytes are read.
#[cfg(any(test, feature = "fuzzing"))]
pub fn example_view() -> Option<std::sync::Arc<FeatureView>> {
    let text = "entity = [{ name = 'm' }]\n[[feature_view]]\nname = 'v'\nentities = ['m']\n\
                schema = [{ name = 'a', dtype = 'Float64' }, { name = 'b', dtype = 'Float64' }]\nunusual = {}\n";
    crate::registry::Registry::parse(text).ok()?.view("v").ok().cloned()
}

/// The bytes of a profile of [`example_view`], without head and checksum, for a fuzzer to begin with.
#[cfg(any(test, feature = "fuzzing"))]
pub fn example_file() -> Vec<u8> {
    let Some(view) = example_view() else { return Vec::new() };
    let entity = vec![crate::value::Value::String("press-7".into())];
    let profile = view.unusual.as_ref().and_then(|watched| EntityProfile::new(view.id, entity, watched));
    profile.map(|profile| encode(&profile).split_off(PROFILE_HEAD.len() + 4)).unwrap_or_default()
}
