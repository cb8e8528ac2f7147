//! A model of the catalogue.

use std::collections::BTreeMap;

use ledge_base::names::ModelName;
use serde::{Deserialize, Serialize};

use crate::trust::TufTarget;

/// The longest text of a description, in characters.
pub(super) const DESCRIPTION_CHARS_MAX: usize = 500;

/// The most files of a model.
pub(super) const FILES_MAX: usize = 1_000;

/// The most levels of a path below the folder of a model, such as `golden/cat.png`.
pub(super) const LEVELS_MAX: usize = 3;

/// A model of a catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogueModel {
    /// The name of its folder.
    pub name: ModelName,
    pub description: CatalogueDescription,
    /// The reason why it cannot be added.
    pub problem: Option<String>,
    /// Its files, by their paths below its folder.
    pub(super) files: BTreeMap<String, TufTarget>,
}

/// The signed description of a model, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CatalogueDescription {
    /// Its job.
    pub description: Option<String>,
    pub license: Option<String>,
    /// The origin of its weights.
    pub source: Option<String>,
    /// Its measured accuracy, with the data that it was measured on.
    pub accuracy: Option<String>,
    pub release: Option<String>,
}

impl CatalogueDescription {
    /// Reads the custom data of a target: JSON in a text, since the canonical JSON of TUF has no fractions.
    pub(super) fn of(target: &TufTarget) -> Self {
        let text = target.custom.as_ref().and_then(|custom| custom.get("ledge")?.as_str());
        let mut description: Self = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let Self { description: job, license, source, accuracy, release } = &mut description;
        for text in [job, license, source, accuracy, release].into_iter().flatten() {
            // It is shown on a terminal.
            *text = text.chars().filter(|character| !character.is_control()).take(DESCRIPTION_CHARS_MAX).collect();
        }
        description
    }
}
