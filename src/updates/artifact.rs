//! The subjects of updates, and the names of their signed targets.

use std::fmt;
use std::str::FromStr;

use ledge_base::names::{InvalidName, ModelName, ModelVersion};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kinds of artifacts, each below its own folder in the TUF repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArtifactKind {
    /// A model: `models/NAME/VERSION/FILE`.
    Model,
    /// Settings from a closed, safe set: `configurations/NAME/VERSION/FILE`.
    Configuration,
    /// The shared libraries of an inference runtime: `runtimes/NAME/VERSION/FILE`.
    Runtime,
    /// Ledge itself, as packages for the package manager: `packages/NAME/VERSION/FILE`. Only `upgrade/` handles it.
    Package,
}

impl ArtifactKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Model, Self::Configuration, Self::Runtime, Self::Package];

    /// Returns its folder in the repository of targets, and in the update store.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Configuration => "configurations",
            Self::Runtime => "runtimes",
            Self::Package => "packages",
        }
    }
}

/// A model, configuration, runtime or package that is updated as a whole. As text `models/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Artifact {
    pub kind: ArtifactKind,
    pub name: ModelName,
}

/// The path of a signed target: `models/NAME/VERSION/FILE`. Valid by construction: four levels, without one that leads
/// elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath {
    /// The subject that it is part of.
    pub subject: Artifact,
    pub version: ModelVersion,
    /// The name of the file.
    pub file: FileName,
}

/// The name of one file of a release: one safe path component.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(ModelName);

/// Errors of a text that names no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    #[error("{text:?} is not of the form {{models,configurations,runtimes,packages}}/NAME/VERSION/FILE")]
    Form { text: String },
    #[error(transparent)]
    Name(#[from] InvalidName),
}

impl FileName {
    /// Returns it as a path component.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for FileName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        text.parse().map(Self)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Artifact {
    /// Makes the subject of a model.
    pub fn model(name: ModelName) -> Self {
        Self { kind: ArtifactKind::Model, name }
    }
}

impl fmt::Display for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.folder(), self.name)
    }
}

impl FromStr for Artifact {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let form = || InvalidTarget::Form { text: text.chars().take(200).collect() };
        let (folder, name) = text.split_once('/').ok_or_else(form)?;
        let kind = ArtifactKind::ALL.into_iter().find(|kind| kind.folder() == folder).ok_or_else(form)?;
        Ok(Self { kind, name: name.parse()? })
    }
}

impl TargetPath {
    /// Returns another file of the same release.
    #[must_use]
    pub fn sibling(&self, file: &FileName) -> Self {
        Self { file: file.clone(), ..self.clone() }
    }
}

impl fmt::Display for TargetPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.subject, self.version, self.file)
    }
}

impl FromStr for TargetPath {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        let form = || InvalidTarget::Form { text: text.chars().take(200).collect() };
        let levels: Vec<&str> = text.split('/').collect();
        let [folder, name, version, file] = levels.as_slice() else { return Err(form()) };
        let subject = format!("{folder}/{name}").parse()?;
        Ok(Self { subject, version: version.parse()?, file: file.parse()? })
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                ledge_base::toml_check::from_text(deserializer)
            }
        }
    )*};
}

as_text!(Artifact, TargetPath, FileName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_path_is_read_as_it_is_written() {
        for text in
            ["models/minilm/2/model.onnx", "configurations/night/1/settings.toml", "runtimes/openvino/7/libs.so.1"]
        {
            assert_eq!(text.parse::<TargetPath>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_could_lead_elsewhere_is_no_target_path() {
        for bad in [
            "models/../2/model.onnx",
            "models/a/0/model.onnx",
            "models/a/01/x",
            "models/a/1/.hidden",
            "models/a/1/b/c",
            "models/a/1",
            "fleet/default/1/x",
            "/models/a/1/x",
            "models//1/x",
            "",
        ] {
            assert!(bad.parse::<TargetPath>().is_err(), "{bad}");
        }
    }
}
