//! The files of `feature_views.d` as they are written. [`super::declared`] checks the values. Keys that are needed are
//! optional here, so that all of those that are missing are reported.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File as OpenFile;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ledge_base::names::FeatureName;
use ledge_base::toml_check::{self, ConfigMistake, TomlEntryPlace, from_text};
use serde::{Deserialize, Deserializer};

use super::duration::DurationText;
use crate::value::{ScalarType, ValueType};
use crate::view::{AggregateFunction, WindowKind};

/// The largest file, in bytes. Declarations may be in several files.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The text of a file.
#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryFile {
    pub entity: Vec<EntityToml>,
    pub feature_view: Vec<ViewToml>,
    pub feature_service: Vec<ServiceToml>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct EntityToml {
    #[serde(deserialize_with = "given")]
    pub name: Option<FeatureName>,
    #[serde(deserialize_with = "given")]
    pub join_key: Option<FeatureName>,
    #[serde(deserialize_with = "given")]
    pub value_type: Option<ScalarType>,
    pub description: String,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct ViewToml {
    #[serde(deserialize_with = "given")]
    pub name: Option<FeatureName>,
    pub description: String,
    pub entities: Vec<String>,
    pub ttl: Option<DurationText>,
    pub source: SourceToml,
    pub lateness: Option<DurationText>,
    pub schema: Vec<FieldToml>,
    pub aggregation: Vec<AggregationToml>,
    pub unusual: Option<UnusualToml>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct UnusualToml {
    pub features: Option<Vec<String>>,
    pub interval: Option<DurationText>,
    pub alarms_per_week: Option<f64>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct SourceToml {
    #[serde(deserialize_with = "given")]
    pub name: Option<FeatureName>,
    #[serde(deserialize_with = "given")]
    pub timestamp_field: Option<FeatureName>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct FieldToml {
    #[serde(deserialize_with = "given")]
    pub name: Option<FeatureName>,
    #[serde(deserialize_with = "given")]
    pub dtype: Option<ValueType>,
    pub optional: bool,
    pub description: String,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct AggregationToml {
    pub column: Option<String>,
    #[serde(deserialize_with = "given")]
    pub function: Option<AggregateFunctionText>,
    pub time_window: Option<DurationText>,
    pub slide_interval: Option<DurationText>,
    #[serde(deserialize_with = "given")]
    pub kind: Option<WindowKindText>,
    #[serde(deserialize_with = "given")]
    pub name: Option<FeatureName>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceToml {
    #[serde(deserialize_with = "given")]
    pub name: Option<FeatureName>,
    pub description: String,
    pub features: Vec<String>,
}

/// The function of an aggregation, in Feast's words.
#[derive(Debug, Clone, Copy)]
pub struct AggregateFunctionText(pub AggregateFunction);

impl AggregateFunctionText {
    const ALL: [(&str, AggregateFunction); 8] = [
        ("count", AggregateFunction::Count),
        ("sum", AggregateFunction::Sum),
        ("mean", AggregateFunction::Mean),
        ("min", AggregateFunction::Min),
        ("max", AggregateFunction::Max),
        ("last", AggregateFunction::Last),
        ("std", AggregateFunction::Std),
        ("count_distinct", AggregateFunction::CountDistinct),
    ];
}

impl fmt::Display for AggregateFunctionText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, function)| *function == self.0).map(|(name, _)| name);
        f.write_str(name.unwrap_or(&""))
    }
}

impl FromStr for AggregateFunctionText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, function)| Self(*function)).ok_or_else(|| {
            format!("unknown function {text:?}: expected count, sum, mean, min, max, last, std or count_distinct")
        })
    }
}

/// The kind of window of an aggregation.
#[derive(Debug, Clone, Copy)]
pub struct WindowKindText(pub WindowKind);

impl FromStr for WindowKindText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sliding" => Ok(Self(WindowKind::Sliding)),
            "tumbling" => Ok(Self(WindowKind::Tumbling)),
            _ => Err(format!("unknown kind {text:?}: expected sliding or tumbling")),
        }
    }
}

fn given<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    from_text(deserializer).map(Some)
}

/// A file that was read.
#[derive(Debug)]
pub struct RegistrySourceFile {
    pub path: String,
    pub file: RegistryFile,
    places: BTreeMap<String, TomlEntryPlace>,
}

impl RegistrySourceFile {
    /// The line of a key, or of the table that should have it.
    pub fn line(&self, key: &str) -> Option<usize> {
        toml_check::nearest(&self.places, key, 0).map(|place| place.line)
    }
}

/// All files of a folder.
#[derive(Debug, Default)]
pub struct RegistrySourceFiles {
    /// The files that are TOML, by name.
    pub files: Vec<RegistrySourceFile>,
    /// The files that are no TOML, unknown keys, and values not of the type of their key.
    pub mistakes: Vec<ConfigMistake>,
    /// Set when a file or a part of one could not be read. The names that the other files refer to may be declared
    /// there.
    pub is_incomplete: bool,
}

impl RegistrySourceFiles {
    /// Reads every `*.toml` of `folder`, by name. A missing folder has none.
    pub fn read(folder: &Path) -> Self {
        let mut read = Self::default();
        let listed = match paths(folder) {
            Ok(listed) => listed,
            Err(error) => {
                read.fail(folder, &error);
                return read;
            }
        };
        for path in listed {
            match read_text(&path) {
                Ok(text) => read.add(path.display().to_string(), &text),
                Err(error) => read.fail(&path, &error),
            }
        }
        read
    }

    fn fail(&mut self, path: &Path, error: &io::Error) {
        self.is_incomplete = true;
        self.mistakes.push(ConfigMistake::new(path.display().to_string(), "", format!("cannot be read: {error}")));
    }

    /// Adds the text of one file.
    pub fn add(&mut self, path: String, text: &str) {
        let checked = toml_check::check::<RegistryFile>(&path, text);
        self.is_incomplete |= checked.value.is_none() || !checked.unread.is_empty();
        self.mistakes.extend(checked.mistakes);
        self.files.extend(checked.value.map(|file| RegistrySourceFile { path, file, places: checked.places }));
    }
}

fn paths(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    // A hidden file belongs to an editor, or is still being written.
    let hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml") && !hidden(path));
    paths.sort();
    Ok(paths)
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    OpenFile::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let reason = format!("it is larger than {FILE_BYTES_MAX} bytes: split it into several files");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}
