//! Checks the declarations of all files together: entities first, then the views over them, then the services over
//! those.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use ledge_base::names::FeatureName;
use ledge_base::toml_check::{ConfigMistake, within};

use super::file::{EntityToml, RegistrySourceFile, RegistrySourceFiles, ServiceToml};
use crate::value::ScalarType;
use crate::view::{FeatureService, FeatureView};

/// The most feature views that may be declared.
pub const VIEWS_MAX: usize = 1024;

/// A place in a file.
#[derive(Debug, Clone)]
pub struct TomlPlace<'s> {
    source: &'s RegistrySourceFile,
    key: String,
}

impl TomlPlace<'_> {
    /// A key of the table at this place.
    pub fn at(&self, key: &str) -> Self {
        Self { source: self.source, key: within(&self.key, key) }
    }

    /// An element of an array of the table at this place.
    pub fn element(&self, key: &str, index: usize) -> Self {
        self.at(&format!("{key}[{index}]"))
    }

    /// A mistake at this place.
    pub fn mistake(&self, message: impl Display) -> ConfigMistake {
        ConfigMistake { line: self.source.line(&self.key), ..ConfigMistake::new(&self.source.path, &self.key, message) }
    }

    fn line(&self) -> String {
        match self.source.line(&self.key) {
            Some(line) => format!("{}:{line}", self.source.path),
            None => self.source.path.clone(),
        }
    }
}

/// The parts of an entity that views need.
#[derive(Debug, Clone)]
pub struct DeclaredEntity {
    /// The column of its key.
    pub join_key: Arc<str>,
    pub value_type: ScalarType,
}

/// The checked declarations of all files.
#[derive(Debug, Default)]
pub struct DeclaredRegistry<'s> {
    /// The views without a mistake, their places, and those of their fields. They have no numbers yet.
    pub views: Vec<(FeatureView, TomlPlace<'s>, Vec<TomlPlace<'s>>)>,
    /// The services without a mistake.
    pub services: Vec<FeatureService>,
    pub mistakes: Vec<ConfigMistake>,
    pub(super) entities: HashMap<Arc<str>, DeclaredEntity>,
    names: HashMap<(&'static str, Arc<str>), String>,
    key_types: HashMap<Arc<str>, (ScalarType, String)>,
    timestamps: HashMap<Arc<str>, (Arc<str>, String)>,
}

impl<'s> DeclaredRegistry<'s> {
    /// Checks the files, if all of them could be read.
    pub fn check(read: &'s RegistrySourceFiles) -> Self {
        let mut declared = Self::default();
        if read.is_incomplete {
            return declared;
        }
        let all = || read.files.iter().map(|source| (source, TomlPlace { source, key: String::new() }));
        for (source, root) in all() {
            for (at, entity) in source.file.entity.iter().enumerate() {
                declared.entity(entity, &root.element("entity", at));
            }
        }
        let mut views = 0;
        for (source, root) in all() {
            for (at, view) in source.file.feature_view.iter().enumerate() {
                let place = root.element("feature_view", at);
                views += 1;
                if views == VIEWS_MAX + 1 {
                    declared.report(&place, format!("is the {views}th feature view, and the limit is {VIEWS_MAX}"));
                }
                declared.view(view, place);
            }
        }
        for (source, root) in all() {
            for (at, service) in source.file.feature_service.iter().enumerate() {
                declared.service(service, &root.element("feature_service", at));
            }
        }
        declared
    }

    pub(super) fn report(&mut self, place: &TomlPlace<'_>, message: impl Display) {
        self.mistakes.push(place.mistake(message));
    }

    /// The value of a key that must be there.
    pub(super) fn required<T: Clone>(&mut self, place: &TomlPlace<'_>, key: &str, value: Option<&T>) -> Option<T> {
        if value.is_none() {
            self.report(place, format!("needs the key {key}"));
        }
        value.cloned()
    }

    /// The name at `place`, which no other of its kind may have.
    pub(super) fn name(
        &mut self,
        what: &'static str,
        place: &TomlPlace<'_>,
        name: Option<&FeatureName>,
    ) -> Option<Arc<str>> {
        let name: Arc<str> = self.required(place, "name", name)?.as_str().into();
        let place = place.at("name");
        match self.names.get(&(what, name.clone())) {
            Some(first) => {
                let message = format!("there is {what} '{name}' already in {first}: give one of them another name");
                self.report(&place, message);
            }
            None => drop(self.names.insert((what, name.clone()), place.line())),
        }
        Some(name)
    }

    fn entity(&mut self, entity: &EntityToml, place: &TomlPlace<'_>) {
        let Some(name) = self.name("an entity", place, entity.name.as_ref()) else { return };
        let join_key: Arc<str> = entity.join_key.as_ref().map_or_else(|| name.clone(), |key| key.as_str().into());
        let value_type = entity.value_type.unwrap_or(ScalarType::String);
        let type_place = place.at("value_type");
        if matches!(value_type, ScalarType::Float32 | ScalarType::Float64) {
            self.report(
                &type_place,
                format!("{value_type} cannot be a join key, because two floats are seldom equal: use String or Int64"),
            );
        }
        match self.key_types.get(&join_key) {
            Some((other, first)) if *other != value_type => {
                let message = format!(
                    "join key '{join_key}' is {value_type} here and {other} in {first}: use one type, or two names"
                );
                self.report(&type_place, message);
            }
            Some(_) => {}
            None => drop(self.key_types.insert(join_key.clone(), (value_type, place.line()))),
        }
        self.entities.entry(name).or_insert(DeclaredEntity { join_key, value_type });
    }

    /// Checks that all views of a push source have the same event time column: a push has only one.
    pub(super) fn timestamp(&mut self, source: &Arc<str>, field: &Arc<str>, place: &TomlPlace<'_>) {
        match self.timestamps.get(source) {
            Some((other, first)) if other != field => {
                let message = format!(
                    "push source '{source}' has its event time in '{field}' here and in '{other}' in {first}: use one column, or two sources"
                );
                self.report(place, message);
            }
            Some(_) => {}
            None => drop(self.timestamps.insert(source.clone(), (field.clone(), place.line()))),
        }
    }

    fn service(&mut self, service: &ServiceToml, place: &TomlPlace<'_>) {
        let before = self.mistakes.len();
        let name = self.name("a feature service", place, service.name.as_ref());
        if service.features.is_empty() {
            self.report(place, "needs the key features: a list of \"VIEW:FEATURE\" or \"VIEW\"");
        }

        let views: BTreeMap<&str, &FeatureView> = self.views.iter().map(|(view, ..)| (&*view.name, view)).collect();
        let (mut features, mut seen, mut mistakes) = (Vec::new(), HashSet::new(), Vec::new());
        for (at, reference) in service.features.iter().enumerate() {
            let place = place.element("features", at);
            let (view_name, feature) = match reference.split_once(':') {
                Some((view, feature)) => (view, Some(feature)),
                None => (reference.as_str(), None),
            };
            let Some(view) = views.get(view_name) else {
                // A view that has mistakes exists all the same, and is not reported as unknown.
                if !self.names.contains_key(&("a feature view", view_name.into())) {
                    mistakes.push(place.mistake(format!("there is no feature view '{view_name}'")));
                }
                continue;
            };
            let meant: Vec<Arc<str>> = view
                .feature_names()
                .filter(|name| feature.is_none_or(|feature| &***name == feature))
                .cloned()
                .collect();
            if meant.is_empty() {
                let feature = feature.unwrap_or_default();
                mistakes.push(place.mistake(format!("feature view '{view_name}' has no feature '{feature}'")));
            }
            for feature in meant {
                if !seen.insert((view.name.clone(), feature.clone())) {
                    mistakes.push(place.mistake(format!("{view_name}:{feature} is in this service twice")));
                }
                features.push((view.name.clone(), feature));
            }
        }

        self.mistakes.extend(mistakes);

        if let Some(name) = name
            && self.mistakes.len() == before
        {
            self.services.push(FeatureService { name, description: service.description.clone(), features });
        }
    }
}
