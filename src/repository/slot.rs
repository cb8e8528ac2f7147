//! The live versions of one model behind one atomic pointer.
//!
//! A request pins what it finds here and keeps it until it is answered, whatever a load or an update does meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::loaded_model::LoadedModel;
use crate::names::ModelVersion;

/// The live versions of one model.
#[derive(Debug, Default)]
pub struct Slot {
    live: ArcSwap<BTreeMap<ModelVersion, Arc<LoadedModel>>>,
}

impl Slot {
    /// The version asked for, or the default: the highest that is live.
    pub fn pin(&self, version: Option<ModelVersion>) -> Option<Arc<LoadedModel>> {
        let live = self.live.load();
        match version {
            Some(version) => live.get(&version).cloned(),
            None => live.last_key_value().map(|(_, model)| model.clone()),
        }
    }

    /// All live versions, ascending.
    pub fn live(&self) -> Vec<Arc<LoadedModel>> {
        self.live.load().values().cloned().collect()
    }

    /// Replaces the live versions; requests that pinned the old ones finish on them.
    pub fn swap(&self, models: impl IntoIterator<Item = Arc<LoadedModel>>) {
        self.live.store(Arc::new(models.into_iter().map(|model| (model.version, model)).collect()));
    }
}
