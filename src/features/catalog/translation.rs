//! Translation of the numbers of a backup to those of this store, by names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{CatalogViewEntry, ViewCatalog, shown};
use crate::record::FeatureRow;
use crate::value::{ScalarType, ValueType};
use crate::view::{FieldId, ViewId};

/// A view as the store has it: with every field that was ever declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredView {
    pub id: ViewId,
    /// The join keys, in their order.
    pub join_keys: Vec<(Arc<str>, ScalarType)>,
    /// The columns, in the order of their numbers.
    pub fields: Vec<(FieldId, Arc<str>, ValueType)>,
}

/// The translation of all numbers in a backup.
#[derive(Debug, Default)]
pub struct CatalogTranslation {
    views: HashMap<ViewId, ViewTranslation>,
}

/// The translation of the numbers of one view.
#[derive(Debug)]
pub struct ViewTranslation {
    pub id: ViewId,
    fields: HashMap<FieldId, FieldId>,
    /// True when every field keeps its number.
    pub same_fields: bool,
}

impl ViewCatalog {
    /// All stored views.
    pub fn stored_views(&self) -> impl Iterator<Item = StoredView> {
        self.views.values().map(CatalogViewEntry::stored)
    }

    /// A stored view.
    pub fn stored_view(&self, name: &str) -> Option<StoredView> {
        self.views.get(name).map(CatalogViewEntry::stored)
    }

    /// The translation of the views and fields of `backup` that are `in_use`, or everything that does not fit this
    /// store, in words.
    pub fn translation(
        &self,
        backup: &Self,
        in_use: &BTreeMap<ViewId, BTreeSet<FieldId>>,
    ) -> Result<CatalogTranslation, Vec<String>> {
        let (mut translation, mut problems) = (CatalogTranslation::default(), Vec::new());
        for (id, fields) in in_use {
            let Some((name, theirs)) = backup.views.iter().find(|(_, entry)| entry.id == id.0) else {
                problems.push(format!("it has rows of view number {}, which its own catalog does not list", id.0));
                continue;
            };
            let Some(ours) = self.views.get(name) else {
                problems.push(format!("feature view '{name}' is not declared here"));
                continue;
            };

            if theirs.join_keys != ours.join_keys {
                let (was, is) = (shown(&theirs.join_keys), shown(&ours.join_keys));
                problems.push(format!("the join keys of feature view '{name}' are {was} in the backup, and {is} here"));
            }
            let number = |name| ours.fields.get(name).map(|field| FieldId(field.id));
            let fields_here = theirs.fields.iter().filter_map(|(name, was)| Some((FieldId(was.id), number(name)?)));
            let same_fields = theirs.fields.iter().all(|(name, was)| number(name) == Some(FieldId(was.id)));
            let view = ViewTranslation { id: ViewId(ours.id), fields: fields_here.collect(), same_fields };

            for field in fields {
                let Some((field_name, was)) = theirs.fields.iter().find(|(_, entry)| entry.id == field.0) else {
                    problems.push(format!(
                        "a row of feature view '{name}' has field number {}, which the backup's catalog does not list",
                        field.0
                    ));
                    continue;
                };
                match ours.fields.get(field_name) {
                    None => {
                        problems.push(format!("feature '{field_name}' of feature view '{name}' is not declared here"));
                    }
                    Some(is) if is.value_type != was.value_type => problems.push(format!(
                        "feature '{field_name}' of feature view '{name}' is {} in the backup, and {} here",
                        was.value_type, is.value_type
                    )),
                    Some(_) => {}
                }
            }

            translation.views.insert(*id, view);
        }

        if problems.is_empty() { Ok(translation) } else { Err(problems) }
    }
}

impl CatalogViewEntry {
    fn stored(&self) -> StoredView {
        let field =
            |(name, entry): (&Arc<str>, &super::CatalogFieldEntry)| (FieldId(entry.id), name.clone(), entry.value_type);
        let mut fields: Vec<_> = self.fields.iter().map(field).collect();
        fields.sort_unstable_by_key(|(id, ..)| *id);
        let join_keys = self.join_keys.iter().map(|key| (key.name.clone(), key.value_type)).collect();
        StoredView { id: ViewId(self.id), join_keys, fields }
    }
}

impl CatalogTranslation {
    /// A view by the number that it has in the backup.
    pub fn view(&self, id: ViewId) -> Option<&ViewTranslation> {
        self.views.get(&id)
    }
}

impl ViewTranslation {
    /// The number of a field here.
    pub fn field(&self, id: FieldId) -> Option<FieldId> {
        self.fields.get(&id).copied()
    }

    /// Renumbers the values of a row.
    pub fn row(&self, row: &mut FeatureRow) {
        if self.same_fields {
            return;
        }
        row.values.retain_mut(|(id, _)| match self.field(*id) {
            Some(here) => {
                *id = here;
                true
            }
            None => false,
        });
        row.values.sort_unstable_by_key(|(id, _)| *id);
    }
}
