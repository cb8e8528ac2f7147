//! The declared entities, feature views and feature services: `feature_views.d/*.toml`, with the numbers that the
//! store's [`ViewCatalog`] gives them.

mod declared;
mod duration;
mod file;
mod unusual_check;
mod view_check;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;

use ledge_base::toml_check::ConfigMistake;
use rustc_hash::FxHashMap;

use super::catalog::{ViewCatalog, ViewSchemaConflict};
use super::online::{FeatureError, FeatureSelection, PushTarget};
use super::view::{Feature, FeaturePosition, FeatureService, FeatureView, ViewId};
use declared::DeclaredRegistry;
use file::RegistrySourceFiles;

/// The current declarations.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    views: BTreeMap<Arc<str>, RegisteredView>,
    by_id: HashMap<ViewId, Arc<FeatureView>>,
    sources: HashMap<Arc<str>, Vec<Arc<FeatureView>>>,
    services: BTreeMap<Arc<str>, (Arc<FeatureService>, Vec<Feature>)>,
    catalog: ViewCatalog,
    /// True when the catalog on disk differs, or has a damaged copy.
    unsaved: bool,
}

/// A view, and the positions of its features.
#[derive(Debug, Clone)]
struct RegisteredView {
    view: Arc<FeatureView>,
    /// Its names are the owner's, so no caller can choose names that collide.
    features: FxHashMap<Arc<str>, FeaturePosition>,
}

impl RegisteredView {
    fn new(view: FeatureView) -> Self {
        let features = view.feature_names().filter_map(|name| Some((name.clone(), view.feature(name)?))).collect();
        Self { view: Arc::new(view), features }
    }

    fn feature(&self, name: &str) -> Result<Feature, FeatureError> {
        let unknown = || FeatureError::UnknownFeature { view: self.view.name.to_string(), feature: name.into() };
        Ok(Feature { view: self.view.clone(), index: *self.features.get(name).ok_or_else(unknown)? })
    }

    fn all(&self) -> impl Iterator<Item = Feature> {
        let columns = (0..self.view.fields.len()).map(FeaturePosition::Field);
        let aggregates = (0..self.view.aggregations.len()).map(FeaturePosition::Aggregation);
        columns.chain(aggregates).map(|index| Feature { view: self.view.clone(), index })
    }
}

impl Registry {
    /// Reads every `*.toml` of `views`, where a missing folder declares nothing, and the catalog of the store in
    /// `store`; or reports the mistakes in all of them. Nothing is written.
    pub fn load(views: &Path, store: &Path) -> Result<Self, Vec<ConfigMistake>> {
        let read = RegistrySourceFiles::read(views);
        let (catalog, whole, lost) = match ViewCatalog::read(store) {
            Ok((catalog, whole)) => (catalog, whole, None),
            Err(error) => {
                (ViewCatalog::default(), true, Some(ConfigMistake::new(store.display().to_string(), "", error)))
            }
        };
        match (Self::build(&read, catalog), lost) {
            (Err(mistakes), lost) => Err(mistakes.into_iter().chain(lost).collect()),
            // Without a view the catalog is not needed.
            (Ok(registry), Some(lost)) if !registry.is_empty() => Err(vec![lost]),
            (Ok(registry), _) => Ok(Self { unsaved: registry.unsaved || !whole, ..registry }),
        }
    }

    /// Reads the declarations of one text, for an empty store.
    pub fn parse(text: &str) -> Result<Self, Vec<ConfigMistake>> {
        let mut read = RegistrySourceFiles::default();
        read.add("views.toml".into(), text);
        Self::build(&read, ViewCatalog::default())
    }

    fn build(read: &RegistrySourceFiles, mut catalog: ViewCatalog) -> Result<Self, Vec<ConfigMistake>> {
        let DeclaredRegistry { views, services, mut mistakes, .. } = DeclaredRegistry::check(read);
        let generation = catalog.generation();
        let mut registry = Self::default();
        for (mut view, place, field_places) in views {
            for conflict in catalog.admit(&mut view).err().unwrap_or_default() {
                let at = match &conflict {
                    ViewSchemaConflict::FieldType { index, .. } => {
                        field_places.get(*index).map(|field| field.at("dtype"))
                    }
                    ViewSchemaConflict::JoinKeys { .. } => Some(place.at("entities")),
                    ViewSchemaConflict::Exhausted { .. } => None,
                };
                mistakes.push(at.as_ref().unwrap_or(&place).mistake(conflict));
            }
            registry.add_view(view);
        }

        for service in services {
            registry.add_service(service);
        }

        mistakes.extend_from_slice(&read.mistakes);
        if !mistakes.is_empty() {
            // The files are read in the order of their names.
            mistakes.sort_by(|one, other| (&one.source, one.line).cmp(&(&other.source, other.line)));
            return Err(mistakes);
        }

        registry.unsaved = catalog.generation() != generation;
        registry.catalog = catalog;
        Ok(registry)
    }

    fn add_view(&mut self, view: FeatureView) {
        let known = RegisteredView::new(view);
        let view = &known.view;
        self.by_id.insert(view.id, view.clone());
        self.sources.entry(view.source.name.clone()).or_default().push(view.clone());
        self.views.insert(view.name.clone(), known);
    }

    fn add_service(&mut self, service: FeatureService) {
        let features = service.features.iter().filter_map(|(view, feature)| self.feature(view, feature).ok()).collect();
        self.services.insert(service.name.clone(), (Arc::new(service), features));
    }

    /// True when no feature view is declared.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Every view, by name.
    pub fn views(&self) -> impl Iterator<Item = &Arc<FeatureView>> {
        self.views.values().map(|known| &known.view)
    }

    /// Every feature service, by name.
    pub fn services(&self) -> impl Iterator<Item = &Arc<FeatureService>> {
        self.services.values().map(|(service, _)| service)
    }

    /// A view.
    pub fn view(&self, name: &str) -> Result<&Arc<FeatureView>, FeatureError> {
        self.known(name).map(|known| &known.view)
    }

    fn known(&self, view: &str) -> Result<&RegisteredView, FeatureError> {
        self.views.get(view).ok_or_else(|| FeatureError::UnknownView { view: view.into() })
    }

    /// A view by its number in the store; `None` when it is no longer declared.
    pub fn view_by_id(&self, id: ViewId) -> Option<&Arc<FeatureView>> {
        self.by_id.get(&id)
    }

    /// The views of a push source.
    pub fn source(&self, name: &str) -> Result<Vec<Arc<FeatureView>>, FeatureError> {
        self.sources.get(name).cloned().ok_or_else(|| FeatureError::UnknownSource { source_name: name.into() })
    }

    /// The target views of a push.
    pub fn targets(&self, target: &PushTarget) -> Result<Vec<Arc<FeatureView>>, FeatureError> {
        match target {
            PushTarget::Source(name) => self.source(name),
            PushTarget::View(name) => self.view(name).map(|view| vec![view.clone()]),
        }
    }

    /// The features of a selection, in its order.
    pub fn select(&self, selection: &FeatureSelection) -> Result<Vec<Feature>, FeatureError> {
        match selection {
            FeatureSelection::Features(references) => self.references(references),
            FeatureSelection::Service(name) => {
                let found = self.services.get(name.as_str()).map(|(_, features)| features.clone());
                found.ok_or_else(|| FeatureError::UnknownService { service: name.clone() })
            }
        }
    }

    /// One feature.
    pub fn feature(&self, view: &str, feature: &str) -> Result<Feature, FeatureError> {
        self.known(view)?.feature(feature)
    }

    fn references(&self, references: &[String]) -> Result<Vec<Feature>, FeatureError> {
        let mut features = Vec::with_capacity(references.len());
        // In most calls all features are of one view, and finding the view takes as long as finding a feature.
        let mut last: Option<(&str, &RegisteredView)> = None;
        for reference in references {
            let Some((view, feature)) = reference.split_once(':') else {
                features.extend(self.known(reference)?.all());
                continue;
            };
            let known = match last {
                Some((name, known)) if name == view => known,
                _ => self.known(view)?,
            };
            last = Some((view, known));
            features.push(known.feature(feature)?);
        }
        Ok(features)
    }

    /// The numbers that views and fields have in the store.
    pub fn catalog(&self) -> &ViewCatalog {
        &self.catalog
    }

    /// The number of views in the catalog that are no longer declared. Their rows stay until they expire.
    pub fn undeclared(&self) -> usize {
        self.catalog.views().filter(|(_, id)| !self.by_id.contains_key(id)).count()
    }

    /// Saves the catalog in the store's folder, which is created if it does not exist; writes nothing when nothing is
    /// new. Must be called before any row is written, as rows refer to it.
    pub fn save(&self, store: &Path) -> io::Result<()> {
        if self.unsaved { self.catalog.save(store) } else { Ok(()) }
    }
}

/// Feeds arbitrary bytes to the reader of declarations, for a fuzzer: it ends with views or mistakes, and the same text
/// gives the same declarations. True when there are no mistakes.
///
/// # Panics
/// When that does not hold, which is a bug.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let mut read = RegistrySourceFiles::default();
    read.add("views.toml".into(), text);
    let Ok(registry) = Registry::build(&read, ViewCatalog::default()) else { return false };
    let again = Registry::build(&read, registry.catalog.clone());
    assert!(again.is_ok_and(|again| !again.unsaved && again.views().eq(registry.views())), "{text}");
    let kept = ViewCatalog::from_json(&registry.catalog.to_json());
    assert!(kept.is_ok_and(|kept| kept == registry.catalog), "{text}");
    true
}

#[cfg(test)]
mod tests;
