//! The model to measure: `MODEL[:VERSION][@RUNTIME]`, isolated in a repository with no other model.

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};
use ledge::cli::models::missing::{self, AlternativeSources};
use ledge_base::durable;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::backend::Runtime;
use ledge_models::repository::ModelFolders;
use ledge_models::repository::config::RepositoryConfig;

/// A model; one of its versions, or the served one; in one runtime, or the one of its config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub model: ModelName,
    pub version: Option<ModelVersion>,
    pub runtime: Option<Runtime>,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, runtime) = match text.split_once('@') {
            None => (text, None),
            Some((rest, name)) => {
                let runtime = Runtime::ALL.into_iter().find(|runtime| runtime.as_str() == name);
                (rest, Some(runtime.ok_or_else(|| format!("no runtime {name:?}: expected onnxruntime or openvino"))?))
            }
        };
        let (model, version) = match text.split_once(':') {
            None => (text, None),
            Some((model, version)) => (model, Some(version.parse().map_err(|error| format!("{error}"))?)),
        };
        Ok(Self { model: model.parse().map_err(|error| format!("{error}"))?, version, runtime })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.model)?;
        self.version.iter().try_for_each(|version| write!(f, ":{version}"))?;
        self.runtime.iter().try_for_each(|runtime| write!(f, "@{runtime}"))
    }
}

impl Subject {
    /// Creates a repository at `folder` that contains only this model, with its version and runtime pinned. The folders
    /// of its versions are links into `repository`; its other files are copies, as no link may lead out of a model's
    /// folder.
    pub fn isolate(&self, repository: &RepositoryConfig, folder: &Path) -> anyhow::Result<()> {
        let sources = ModelFolders::of(repository);
        missing::require(&sources, &self.model, AlternativeSources::RootOrServer)?;
        let own = sources.folder(&self.model);
        let repository = &repository.path;
        let own = own.canonicalize()?;
        std::fs::create_dir(folder)?;
        let copy = folder.join(self.model.as_str());
        if self.version.is_none() && self.runtime.is_none() {
            return Ok(symlink(own, copy)?);
        }
        if let Some(version) = self.version
            && !own.join(version.to_string()).is_dir()
        {
            bail!("model '{}' has no version {version} in {}", self.model, repository.display());
        }
        copy_tree(&own, &copy, &|name| match name.parse::<ModelVersion>() {
            Ok(_) => EntryAction::Link,
            Err(_) if name == "model.toml" => EntryAction::Skip,
            Err(_) => EntryAction::Copy,
        })?;
        let config = own.join("model.toml");
        let text = if config.exists() { std::fs::read_to_string(&config)? } else { String::new() };
        durable::replace(&copy.join("model.toml"), self.pinned(&text)?.as_bytes())?;
        Ok(())
    }

    /// The text of a `model.toml` with the version and runtime pinned.
    fn pinned(&self, text: &str) -> anyhow::Result<String> {
        let mut table: toml::Table = text.parse().context("model.toml is not valid TOML")?;
        if let Some(runtime) = self.runtime {
            table.insert("runtime".to_owned(), runtime.as_str().into());
        }
        if let Some(version) = self.version {
            let number = i64::try_from(version.get()).context("the version number is too large")?;
            let policy = toml::Table::from_iter([("specific".to_owned(), toml::Value::Array(vec![number.into()]))]);
            table.insert("version_policy".to_owned(), policy.into());
        }
        Ok(toml::to_string(&table)?)
    }
}

/// The treatment of an entry of a model's folder.
enum EntryAction {
    Copy,
    Link,
    Skip,
}

fn copy_tree(from: &Path, to: &Path, action: &dyn Fn(&str) -> EntryAction) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (own, copy) = (entry.path(), to.join(entry.file_name()));
        match action(&entry.file_name().to_string_lossy()) {
            EntryAction::Link => symlink(own, copy)?,
            EntryAction::Copy if entry.file_type()?.is_dir() => copy_tree(&own, &copy, &|_| EntryAction::Copy)?,
            EntryAction::Copy if entry.file_type()?.is_symlink() => symlink(std::fs::read_link(own)?, copy)?,
            EntryAction::Copy if entry.file_type()?.is_file() => std::fs::copy(own, copy).map(drop)?,
            EntryAction::Copy | EntryAction::Skip => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_models::repository::model_config::{ModelConfig, RuntimeChoice, VersionPolicy};

    #[test]
    fn a_subject_is_displayed_as_it_is_parsed() {
        for text in ["m", "m:3", "m@openvino", "a.b-c:12@onnxruntime"] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
        for wrong in ["", ":1", "m:0", "m:x", "m@", "m@tensorrt", "a/b", "m@openvino:1"] {
            assert!(wrong.parse::<Subject>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pinned_config_keeps_the_other_keys() {
        let subject: Subject = "m:3@openvino".parse().unwrap();
        let text = "max_batch_size = 8\nruntime = \"auto\"\n[[golden]]\nfile = \"a.json\"\n";
        let config = ModelConfig::parse("model.toml", &subject.pinned(text).unwrap()).unwrap();
        assert_eq!((config.max_batch_size, config.golden.len()), (Some(8), 1));
        assert_eq!(config.runtime, RuntimeChoice::OpenVino);
        assert_eq!(config.version_policy, VersionPolicy::Specific(vec![3_u64.try_into().unwrap()]));
    }
}
