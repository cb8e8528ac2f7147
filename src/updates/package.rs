//! The signed description of a release: the custom data of its first target.
//!
//! ```json
//! {"ledge": {"schema": 1, "files": ["model.toml", "labels.txt"], "semantic_version": "2.1.0",
//!   "requires": {"ledge": "0.1.0", "runtimes": ["onnxruntime"], "architectures": ["x86_64"], "memory_mb": 128},
//!   "limits": {"memory_mb": 512, "seconds": 120},
//!   "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 13]}], "outputs": [...],
//!   "accuracy": {"dataset": "wine, held out", "samples": 36, "top1": 0.97},
//!   "reference": {"output": "probabilities", "classes": [0.33, 0.40, 0.27]}, "tolerance": 0.01,
//!   "agreement": {"version": 1, "agreed": 194, "compared": 200}}}
//! ```
//!
//! It is signed as canonical JSON, which has no fractions: `ledge-platform` writes the value of `"ledge"` as a string
//! with this JSON in it. An object is read as well.
//!
//! All files of a release are in one folder: for a model these are `model.toml`, labels and golden inputs besides the
//! model's own files.

use ledge_base::names::ModelVersion;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::artifact::FileName;
use super::upgrade::package::ReleasePackages;

/// The only schema that this version reads.
const SCHEMA: u32 = 1;

/// Most files of a release.
const MAX_FILES: usize = 1_000;

/// The signed description of a release, besides the bytes of its files.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Package {
    pub schema: u32,
    /// The files besides the first, each of them a target of the same version.
    #[serde(default)]
    pub files: Vec<FileName>,
    #[serde(default)]
    pub semantic_version: Option<String>,
    /// The requirements on a box.
    #[serde(default)]
    pub requires: Requirements,
    /// The limits of its preflight.
    #[serde(default)]
    pub limits: PreflightLimits,
    /// The inputs of the model; empty where it names none.
    #[serde(default)]
    pub inputs: Vec<DeclaredPort>,
    #[serde(default)]
    pub outputs: Vec<DeclaredPort>,
    /// Its measured accuracy before it was signed: shown, and not judged.
    #[serde(default)]
    pub accuracy: Option<Value>,
    /// The expected distribution of its classes.
    #[serde(default)]
    pub reference: Option<ReferenceClasses>,
    /// The difference up to which two versions agree; 0.01 where it names none.
    #[serde(default)]
    pub tolerance: Option<f64>,
    /// The answers on which it agreed with an earlier release, before it was signed.
    #[serde(default)]
    pub agreement: Option<ExpectedAgreement>,
    /// The packages of Ledge itself, in a release of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<ReleasePackages>,
}

/// The answers on which a release agreed with an earlier one of the same subject, on inputs of the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedAgreement {
    /// The version of the earlier release.
    pub version: ModelVersion,
    pub agreed: u64,
    pub compared: u64,
}

/// The requirements on a box.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Requirements {
    /// The oldest version of Ledge.
    pub ledge: Option<String>,
    /// The runtimes of which one must be installed; any when empty.
    pub runtimes: Vec<String>,
    /// The machines (`x86_64`, `aarch64`); any when empty.
    pub architectures: Vec<String>,
    /// The least memory of the machine, in MiB.
    pub memory_mb: Option<u64>,
}

/// The limits of its preflight.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PreflightLimits {
    /// Resident memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Time, in seconds.
    pub seconds: Option<u64>,
}

/// An input or output, as it is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredPort {
    pub name: String,
    /// Its datatype, in the words of the Open Inference Protocol.
    pub datatype: String,
    /// Its dimensions, -1 where they vary.
    pub shape: Vec<i64>,
}

/// The expected distribution of the best classes of an output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferenceClasses {
    /// The output with the scores.
    pub output: String,
    /// The share of each class, in the order of the scores.
    pub classes: Vec<f64>,
}

/// Reasons why a description cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
    #[error("the target has no custom data \"ledge\": it is not a release; publish it with ledge-platform")]
    Missing,
    #[error("the description of the release cannot be read: {reason}")]
    Form { reason: String },
}

impl Package {
    /// Reads the custom data of a target.
    pub fn from_custom(custom: Option<&Value>) -> Result<Self, PackageError> {
        let value = custom.and_then(|custom| custom.get("ledge")).ok_or(PackageError::Missing)?;
        let form = |reason: String| PackageError::Form { reason };
        let package: Self = match value {
            Value::String(text) => serde_json::from_str(text),
            value => Self::deserialize(value),
        }
        .map_err(|error| form(error.to_string()))?;
        if package.schema != SCHEMA {
            return Err(form(format!("schema {} is not known, this version of Ledge reads {SCHEMA}", package.schema)));
        }
        if package.files.len() > MAX_FILES {
            return Err(form(format!("{} files, {MAX_FILES} at most", package.files.len())));
        }
        let mut names: Vec<_> = package.files.iter().collect();
        names.sort_unstable();
        names.dedup();
        if names.len() != package.files.len() {
            return Err(form("a file is named twice".to_owned()));
        }
        Ok(package)
    }
}

/// Reads the custom data of a target; true when it describes a release. It names each file once and not too many, and
/// is the same after it was written and read again. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_release_description(data: &[u8]) -> bool {
    let Ok(custom) = serde_json::from_slice::<Value>(data) else { return false };
    let Ok(package) = Package::from_custom(Some(&custom)) else { return false };
    let names: std::collections::BTreeSet<_> = package.files.iter().collect();
    assert!(package.schema == SCHEMA && package.files.len() <= MAX_FILES && names.len() == package.files.len());
    assert!(names.iter().all(|name| !name.as_str().contains('/') && !name.as_str().starts_with('.')));
    let written = serde_json::json!({ "ledge": package });
    assert!(Package::from_custom(Some(&written)).is_ok_and(|again| again == package), "{written}");
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_description_needs_little() {
        let package = Package::from_custom(Some(&json!({"ledge": {"schema": 1}, "other": 2}))).unwrap();
        assert_eq!(package, Package { schema: 1, ..Package::default() });
    }

    #[test]
    fn a_description_with_fractions_comes_as_text() {
        let text = json!({"schema": 1, "files": ["model.toml"], "tolerance": 0.25, "reference": {"output": "p", "classes": [0.5, 0.5]}});
        let package = Package::from_custom(Some(&json!({ "ledge": text.to_string() }))).unwrap();
        assert_eq!(package, Package::from_custom(Some(&json!({ "ledge": text }))).unwrap());
        assert_eq!(package.tolerance, Some(0.25));
        assert!(Package::from_custom(Some(&json!({"ledge": "{"}))).is_err());
    }

    #[test]
    fn what_is_no_description_is_told() {
        let error = |value| Package::from_custom(Some(&value)).unwrap_err().to_string();
        assert_eq!(Package::from_custom(None), Err(PackageError::Missing));
        for (description, reason) in [
            (json!({"schema": 2}), "schema 2 is not known"),
            (json!({"schema": 1, "files": ["../x"]}), "starts with a dot"),
            (json!({"schema": 1, "files": ["a", "a"]}), "named twice"),
        ] {
            let error = error(json!({ "ledge": description }));
            assert!(error.contains(reason), "{error}");
        }
    }
}
