//! The numbers of views and fields in the store. A name keeps its number for ever, and no number is reused: files on
//! disk never change their meaning with the declarations.
//!
//! Kept in two files, written one after the other: after a power cut, or with either of them damaged, the other one is
//! used.

mod translation;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ledge_base::durable;
use ledge_base::toml_check::from_text;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::value::{ScalarType, ValueType};
use super::view::{FeatureView, FieldId, ViewId};
pub use translation::{CatalogTranslation, StoredView};

/// The names of the two files.
const FILE_NAMES: [&str; 2] = ["catalog.json", "catalog.copy.json"];

/// The version of their form.
const FORMAT: u32 = 1;

/// The numbers of every view that was ever declared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewCatalog {
    generation: u64,
    /// The last number given to a view.
    last_view: u32,
    views: BTreeMap<Arc<str>, CatalogViewEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogViewEntry {
    id: u32,
    join_keys: Vec<CatalogJoinKeyEntry>,
    /// The last number given to a field.
    last_field: u16,
    fields: BTreeMap<Arc<str>, CatalogFieldEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogJoinKeyEntry {
    name: Arc<str>,
    #[serde(rename = "type", serialize_with = "as_text", deserialize_with = "from_text")]
    value_type: ScalarType,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogFieldEntry {
    id: u16,
    #[serde(rename = "type", serialize_with = "as_text", deserialize_with = "from_text")]
    value_type: ValueType,
}

fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// The form of a catalog on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CatalogEnvelope {
    format: u32,
    /// The hash of the catalog's text, in hexadecimal.
    blake3: String,
    catalog: Box<RawValue>,
}

/// Reasons why a catalog cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The text is no catalog, or was changed.
    #[error("it is damaged")]
    Damaged,
    #[error("it has a form that this version of Ledge cannot read")]
    Unknown,
    #[error("it cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error(
        "neither {} nor {} of the feature store can be used ({reason}): restore a backup with `ledge features restore`, or move {folder} away to start with an empty store",
        FILE_NAMES[0], FILE_NAMES[1]
    )]
    Lost {
        /// The folder of the store.
        folder: String,
        /// The problems of both files.
        reason: String,
    },
}

/// Reasons why a declared view does not fit the stored view of its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewSchemaConflict {
    #[error(
        "feature '{field}' of feature view '{view}' was {was} and is {is} now: give it another name, such as '{field}_v2'; what is stored keeps its type"
    )]
    FieldType {
        /// The index of the field in the view.
        index: usize,
        field: Arc<str>,
        view: Arc<str>,
        /// The type that is stored.
        was: ValueType,
        /// The type that is declared.
        is: ValueType,
    },
    #[error(
        "the join keys of feature view '{view}' were {was} and are {is} now: give the view another name, such as '{view}_v2'; what is stored keeps its keys"
    )]
    JoinKeys { view: Arc<str>, was: String, is: String },
    #[error("feature view '{view}' has used up all 65535 feature numbers: give the view another name")]
    Exhausted { view: Arc<str> },
}

impl ViewCatalog {
    /// Sets the numbers of a view and its fields, with new numbers for new names.
    pub fn admit(&mut self, view: &mut FeatureView) -> Result<(), Vec<ViewSchemaConflict>> {
        let join_keys: Vec<CatalogJoinKeyEntry> = view
            .join_keys
            .iter()
            .map(|key| CatalogJoinKeyEntry { name: key.name.clone(), value_type: key.value_type })
            .collect();

        let exhausted = || vec![ViewSchemaConflict::Exhausted { view: view.name.clone() }];
        let mut changed = false;
        if !self.views.contains_key(&view.name) {
            self.last_view = self.last_view.checked_add(1).ok_or_else(exhausted)?;
            let (id, join_keys) = (self.last_view, join_keys.clone());
            let entry = CatalogViewEntry { id, join_keys, last_field: 0, fields: BTreeMap::new() };
            self.views.insert(view.name.clone(), entry);
            changed = true;
        }

        let Some(entry) = self.views.get_mut(&view.name) else { return Err(exhausted()) };
        let mut conflicts = Vec::new();
        if entry.join_keys != join_keys {
            let (was, is) = (shown(&entry.join_keys), shown(&join_keys));
            conflicts.push(ViewSchemaConflict::JoinKeys { view: view.name.clone(), was, is });
        }

        view.id = ViewId(entry.id);
        for (index, field) in view.fields.iter_mut().enumerate() {
            if let Some(known) = entry.fields.get(&field.name) {
                field.id = FieldId(known.id);
                if known.value_type != field.value_type {
                    let (was, is) = (known.value_type, field.value_type);
                    let (field, view) = (field.name.clone(), view.name.clone());
                    conflicts.push(ViewSchemaConflict::FieldType { index, field, view, was, is });
                }
                continue;
            }
            let Some(id) = entry.last_field.checked_add(1) else {
                conflicts.push(ViewSchemaConflict::Exhausted { view: view.name.clone() });
                break;
            };
            entry.last_field = id;
            entry.fields.insert(field.name.clone(), CatalogFieldEntry { id, value_type: field.value_type });
            field.id = FieldId(id);
            changed = true;
        }

        self.generation += u64::from(changed);
        if conflicts.is_empty() { Ok(()) } else { Err(conflicts) }
    }

    /// A counter that grows with every change.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The names of all views that were ever declared, with their numbers.
    pub fn views(&self) -> impl Iterator<Item = (&Arc<str>, ViewId)> {
        self.views.iter().map(|(name, entry)| (name, ViewId(entry.id)))
    }

    /// The text that is written to disk, with its checksum.
    pub fn to_json(&self) -> String {
        // Serializing maps with strings as keys cannot fail.
        let text = serde_json::to_string(self).unwrap_or_default();
        let blake3 = blake3::hash(text.as_bytes()).to_hex();
        format!(r#"{{"format":{FORMAT},"blake3":"{blake3}","catalog":{text}}}"#)
    }

    /// Reads the output of [`Self::to_json`], and nothing that differs from it.
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        let envelope: CatalogEnvelope = serde_json::from_str(text).map_err(|_| CatalogError::Damaged)?;
        let content = envelope.catalog.get();
        if blake3::hash(content.as_bytes()).to_hex().as_str() != envelope.blake3 {
            return Err(CatalogError::Damaged);
        }
        if envelope.format != FORMAT {
            return Err(CatalogError::Unknown);
        }
        let catalog: Self = serde_json::from_str(content).map_err(|_| CatalogError::Damaged)?;
        if catalog.to_json() == text { Ok(catalog) } else { Err(CatalogError::Damaged) }
    }

    /// Reads the catalog of the store in `folder`: empty when there is no store. The flag is true when both files are
    /// good and equal.
    pub fn read(folder: &Path) -> Result<(Self, bool), CatalogError> {
        let copies = paths(folder).map(|path| read_copy(&path));
        let mut reasons = Vec::new();
        let mut good: Vec<Self> = Vec::new();
        for (copy, name) in copies.into_iter().zip(FILE_NAMES) {
            match copy {
                Ok(Some(catalog)) => good.push(catalog),
                Ok(None) => {}
                Err(error) => reasons.push(format!("{name}: {error}")),
            }
        }
        let whole = matches!(good.as_slice(), [one, other] if one == other);
        if let Some(newest) = good.into_iter().max_by_key(|catalog| catalog.generation) {
            return Ok((newest, whole));
        }
        if reasons.is_empty() && has_data(folder) {
            // With new numbers the stored rows would be assigned to the wrong views.
            reasons.push("both are missing, but the store has data".to_owned());
        }
        if reasons.is_empty() {
            return Ok((Self::default(), true));
        }
        Err(CatalogError::Lost { folder: folder.display().to_string(), reason: reasons.join("; ") })
    }

    /// Saves the catalog in the store's `folder`, which is created if it does not exist. When this returns `Ok`, it
    /// survives a power cut; when it fails, this catalog or the one before is there.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        if !folder.is_dir() {
            std::fs::create_dir_all(folder)?;
            folder.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), durable::sync_folder)?;
        }
        let text = self.to_json();
        paths(folder).iter().try_for_each(|path| durable::replace(path, text.as_bytes()))
    }
}

fn paths(folder: &Path) -> [PathBuf; 2] {
    FILE_NAMES.map(|name| folder.join(name))
}

fn read_copy(path: &Path) -> Result<Option<ViewCatalog>, CatalogError> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CatalogError::Read(error)),
        Ok(bytes) => {
            std::str::from_utf8(&bytes).map_err(|_| CatalogError::Damaged).and_then(ViewCatalog::from_json).map(Some)
        }
    }
}

/// True when a store used the folder: it keeps everything in subfolders.
fn has_data(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.path().is_dir() && entry.file_name() != "lost+found")
}

fn shown(keys: &[CatalogJoinKeyEntry]) -> String {
    keys.iter().map(|key| format!("{} ({})", key.name, key.value_type)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
