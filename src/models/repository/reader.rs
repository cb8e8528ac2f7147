//! Reads model files for the facts about them: in this process, or in the one that the model is to run in.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::backend::Format;
use ledge_engine::files::FileFacts;
use ledge_isolation::{Isolation, KeptChild, ReadError};

use crate::scheduling::engine::Engine;

/// Reads the files of one version. It keeps the process that read them, so that a load of the version finds it running.
#[derive(Debug)]
pub struct ModelReader {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Here,
    Child(ChildReader),
}

/// Has files read in a process of models.
#[derive(Debug)]
pub struct ChildReader {
    engine: Engine,
    isolation: Isolation,
    /// The model and its version, by which its own process is found.
    name: String,
    kept: Mutex<Option<KeptChild>>,
}

impl ModelReader {
    /// Reads in this process.
    pub fn here() -> Self {
        Self { place: Place::Here }
    }

    /// Reads where `isolation` has the version run.
    pub(super) fn of(engine: &Engine, isolation: Isolation, name: &ModelName, version: ModelVersion) -> Self {
        if isolation == Isolation::None || engine.children().is_none() {
            return Self::here();
        }
        let (engine, name, kept) = (engine.clone(), own_process(name, version), Mutex::default());
        Self { place: Place::Child(ChildReader { engine, isolation, name, kept }) }
    }

    /// The process that reads; `None` where that is this one.
    pub fn child(&self) -> Option<&ChildReader> {
        match &self.place {
            Place::Here => None,
            Place::Child(child) => Some(child),
        }
    }
}

impl ChildReader {
    /// Has an open file read. Blocks until that is done.
    pub fn read(&self, format: Format, file: &File) -> Result<FileFacts, ReadError> {
        let children = self.engine.children();
        let children = children.ok_or_else(|| ReadError::NoProcess("there are none".to_owned()))?;
        let (facts, child) = children.read(self.isolation, &self.name, &self.engine.runtimes(), format, file)?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(facts)
    }
}

/// The name of the process that only the instances of a version share.
pub(super) fn own_process(name: &ModelName, version: ModelVersion) -> String {
    format!("{name}/{version}")
}
