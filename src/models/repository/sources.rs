//! The folders that models come from: the owner's, and the one that the package brought.
//!
//! One index: a model is the owner's when the owner has a folder of that name, else the package's. Both are only read;
//! the package replaces its own folder at an upgrade.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::names::{ModelName, ModelVersion};

use super::config::RepositoryConfig;
use super::folder::{self, MisnamedFolder, ModelFolderError};
use super::model_config::ModelConfig;

/// The folders of a repository. Signed releases are separate: updates have their folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolders {
    owners: PathBuf,
    packaged: Option<PathBuf>,
}

/// A model that is not loaded, as its files describe it.
#[derive(Debug)]
pub struct ModelOnDisk {
    /// Its `model.toml`.
    pub config: ModelConfig,
    /// The requested version, if it exists and is among those that are served.
    pub served: Option<ModelVersion>,
}

impl ModelFolders {
    /// One folder: the owner's.
    pub fn new(owners: PathBuf) -> Self {
        Self { owners, packaged: None }
    }

    /// Those of the configuration.
    pub fn of(config: &RepositoryConfig) -> Self {
        let packaged = (!config.packaged.as_os_str().is_empty()).then(|| config.packaged.clone());
        Self { owners: config.path.clone(), packaged }
    }

    /// The owner's folder.
    pub fn owners(&self) -> &Path {
        &self.owners
    }

    /// Both folders, for messages.
    pub fn describe(&self) -> String {
        match &self.packaged {
            Some(packaged) => format!("{} or {}", self.owners.display(), packaged.display()),
            None => self.owners.display().to_string(),
        }
    }

    /// The folder of a model, whether it exists or not.
    pub fn folder(&self, name: &ModelName) -> PathBuf {
        let owners = self.owners.join(name.as_str());
        match self.packaged.as_ref().map(|packaged| packaged.join(name.as_str())) {
            Some(packaged) if packaged.is_dir() && !owners.is_dir() => packaged,
            _ => owners,
        }
    }

    /// True if the package brought this model, and the owner has none of its name.
    pub fn is_packaged(&self, name: &ModelName) -> bool {
        let folder = self.folder(name);
        folder.is_dir() && self.packaged.as_ref().is_some_and(|packaged| folder.starts_with(packaged))
    }

    /// Reads the description of a model, for calls of this version or of the default one; `None` when it has no folder.
    pub fn on_disk(
        &self,
        name: &ModelName,
        version: Option<ModelVersion>,
    ) -> Result<Option<ModelOnDisk>, ModelFolderError> {
        let folder = self.folder(name);
        if !folder.is_dir() {
            return Ok(None);
        }
        let (config, _) = folder::model_config(&folder)?;
        let (versions, _) = folder::versions(&folder)?;
        let served = config.version_policy.select(&versions);
        let asked = version.or_else(|| served.last().copied());
        let served = asked.filter(|asked| served.contains(asked) && versions.contains(asked));
        Ok(Some(ModelOnDisk { config, served }))
    }

    /// True when a path lies in one of them.
    pub fn has(&self, path: &Path) -> bool {
        path.starts_with(&self.owners) || self.packaged.as_ref().is_some_and(|packaged| path.starts_with(packaged))
    }

    /// The models of both, each once. Folders with other names are returned separately, for a warning.
    pub fn models(&self) -> Result<(Vec<ModelName>, Vec<MisnamedFolder>), ModelFolderError> {
        let Some(packaged) = &self.packaged else { return folder::models(&self.owners) };
        // With a package's models, an owner's folder that does not exist yet is not a mistake; neither is a package
        // without models.
        let (mut models, mut misnamed) = none_if_missing(folder::models(&self.owners))?;
        let (more, more_misnamed) = none_if_missing(folder::models(packaged))?;
        models.extend(more);
        misnamed.extend(more_misnamed);
        models.sort_unstable();
        models.dedup();
        Ok((models, misnamed))
    }
}

fn none_if_missing<T: Default>(found: Result<T, ModelFolderError>) -> Result<T, ModelFolderError> {
    match found {
        Err(ModelFolderError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(root: &Path, models: &[&str]) -> ModelFolders {
        for model in models {
            std::fs::create_dir_all(root.join(model)).unwrap();
        }
        ModelFolders { owners: root.join("owner"), packaged: Some(root.join("package")) }
    }

    #[test]
    fn a_model_of_the_owner_stands_in_for_the_packaged_one_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        let sources = sources(root.path(), &["owner/both", "package/both", "owner/own", "package/brought"]);
        let names: Vec<_> = sources.models().unwrap().0.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["both", "brought", "own"]);
        let folder = |name: &str| sources.folder(&name.parse().unwrap());
        assert_eq!(folder("both"), root.path().join("owner/both"));
        assert_eq!(folder("own"), root.path().join("owner/own"));
        assert_eq!(folder("brought"), root.path().join("package/brought"));
        assert_eq!(folder("neither"), root.path().join("owner/neither"));
        let packaged = |name: &str| sources.is_packaged(&name.parse().unwrap());
        assert_eq!(["both", "own", "brought", "neither"].map(packaged), [false, false, true, false]);
    }

    #[test]
    fn beside_a_package_no_folder_has_to_be_there() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(sources(root.path(), &[]).models().unwrap(), (vec![], vec![]));
        assert!(ModelFolders::new(root.path().join("owner")).models().is_err());
    }

    #[test]
    fn a_folder_that_is_no_folder_is_a_mistake() {
        let root = tempfile::tempdir().unwrap();
        ledge_base::durable::replace(&root.path().join("owner"), b"").unwrap();
        assert!(sources(root.path(), &["package/brought"]).models().is_err());
    }
}
