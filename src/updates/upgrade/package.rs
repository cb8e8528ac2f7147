//! The package that this Ledge was installed from, and the packages of a release.

use std::path::Path;

use ledge_base::names::ModelName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::artifact::{Artifact, ArtifactKind, FileName};

/// The file in the folder of root's service that names the installed package.
pub const PACKAGE_FILE: &str = "package.json";

/// The file in which a package names itself, and the program that it brings.
const OWN_FILE: &str = "usr/share/ledge/package.json";
const OWN_PROGRAM: &str = "usr/bin/ledge";

/// The package that this Ledge was installed from. Root's service asks the package manager, and writes it down for the
/// daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledPackage {
    /// `ledge` or `ledge-slim`.
    pub name: ModelName,
    /// The version of the package, such as `0.2.0-1`.
    pub version: String,
    pub format: PackageFormat,
    /// In the words of the package manager, such as `amd64` or `x86_64`.
    pub architecture: String,
}

/// The package manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PackageFormat {
    Deb,
    Rpm,
}

impl InstalledPackage {
    /// Reads what root's service wrote into `folder`; an error says why there is nothing.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let file = folder.join(PACKAGE_FILE);
        let content = std::fs::read(&file).map_err(|error| {
            format!(
                "ledge-upgrade.service has not run yet ({}: {error}): systemctl enable --now ledge-upgrade",
                file.display()
            )
        })?;
        serde_json::from_slice(&content).map_err(|error| format!("{} is damaged: {error}", file.display()))
    }

    /// The package that brought `program`, by the file in which it names itself; `None` for another program, and in an
    /// image, which has no such file. `root` is `/`, except in tests.
    pub fn of_program(root: &Path, program: &Path) -> Option<Self> {
        if program != root.join(OWN_PROGRAM) {
            return None;
        }
        serde_json::from_slice(&std::fs::read(root.join(OWN_FILE)).ok()?).ok()
    }

    /// The subject of rollouts that upgrade it.
    pub fn subject(&self) -> Artifact {
        Artifact { kind: ArtifactKind::Package, name: self.name.clone() }
    }
}

/// The packages of a release, in its signed description.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasePackages {
    pub name: ModelName,
    /// The version of the program, such as `0.2.0`.
    pub version: String,
    pub files: Vec<PackageFile>,
}

/// One package of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageFile {
    pub file: FileName,
    pub format: PackageFormat,
    pub architecture: String,
    /// The version of the package.
    pub version: String,
}

impl ReleasePackages {
    /// The package for this machine.
    pub fn for_machine(&self, installed: &InstalledPackage) -> Option<&PackageFile> {
        let InstalledPackage { name, format, architecture, .. } = installed;
        let fits = |file: &&PackageFile| file.format == *format && file.architecture == *architecture;
        self.files.iter().find(fits).filter(|_| self.name == *name)
    }
}
