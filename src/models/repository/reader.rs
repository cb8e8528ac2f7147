//! Reads model files for the facts about them, in the process that the model is to run in.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

#[cfg(any(test, feature = "in-process"))]
use ledge_base::contained;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::backend::ModelFormat;
#[cfg(any(test, feature = "in-process"))]
use ledge_engine::files;
use ledge_engine::files::ModelFileFacts;
use ledge_isolation::{Isolation, KeptWorkerProcess, ModelReadError};

use crate::scheduling::engine::InferScheduler;

/// Reads the files of one version. It keeps the process that read them, so that a load of the version finds it running.
#[derive(Debug)]
pub struct ModelReader {
    place: ReaderLocation,
}

#[derive(Debug)]
enum ReaderLocation {
    /// In this process: only in tests.
    #[cfg(any(test, feature = "in-process"))]
    Here,
    Child(ChildReader),
}

/// Has files read in a process of models.
#[derive(Debug)]
struct ChildReader {
    engine: InferScheduler,
    isolation: Isolation,
    /// The model and its version, by which its own process is found.
    name: String,
    kept: Mutex<Option<KeptWorkerProcess>>,
}

impl ModelReader {
    /// Reads in this process.
    #[cfg(any(test, feature = "in-process"))]
    pub fn here() -> Self {
        Self { place: ReaderLocation::Here }
    }

    /// Reads where `isolation` has the version run.
    pub(super) fn of(engine: &InferScheduler, isolation: Isolation, name: &ModelName, version: ModelVersion) -> Self {
        #[cfg(feature = "in-process")]
        if engine.is_in_process() {
            return Self::here();
        }
        let (engine, name, kept) = (engine.clone(), own_process(name, version), Mutex::default());
        Self { place: ReaderLocation::Child(ChildReader { engine, isolation, name, kept }) }
    }

    /// Reads the facts about an open file. Blocks until that is done. The error completes a sentence about the file.
    pub fn read(&self, format: ModelFormat, file: &File) -> Result<ModelFileFacts, ModelReadError> {
        match &self.place {
            #[cfg(any(test, feature = "in-process"))]
            ReaderLocation::Here => {
                let content = file.try_clone().and_then(|file| contained::content(file, contained::MODEL_MAX));
                let content = content.map_err(|error| ModelReadError::Refused(format!("cannot be read: {error}")))?;
                files::read(format, &content).map_err(ModelReadError::Refused)
            }
            ReaderLocation::Child(child) => child.read(format, file),
        }
    }
}

impl ChildReader {
    fn read(&self, format: ModelFormat, file: &File) -> Result<ModelFileFacts, ModelReadError> {
        let children = self.engine.children();
        let (facts, child) = children.read(self.isolation, &self.name, &self.engine.runtimes(), format, file)?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
        Ok(facts)
    }
}

/// The name of the process that only the instances of a version share.
pub(super) fn own_process(name: &ModelName, version: ModelVersion) -> String {
    format!("{name}/{version}")
}
