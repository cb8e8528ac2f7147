//! The part of the report for the inventory of a fleet: the package, the system, the machine, its disk, the origin of
//! each model, and the certificate of the membership.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_base::telemetry::system::{self, Cpu, DiskSpace};
use ledge_models::repository::Repository;
use schemars::JsonSchema;
use serde::Serialize;

use super::excerpt;
use crate::catalogue;
use crate::upgrade::package::{InstalledPackage, PackageFormat};

/// Longest name of a package's version, of the system and of the machine, in bytes.
const MAX_NAME_BYTES: usize = 80;

/// The validity of a certificate, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateValidity {
    pub from_ms: u64,
    pub until_ms: u64,
}

/// Reads the validity of the certificate by which the platform knows this box; `None` on a box without one.
pub type CertificateReader = Arc<dyn Fn() -> Option<CertificateValidity> + Send + Sync>;

/// The facts for the inventory: those that stay the same until the next start, and the places of the others.
pub struct BoxInventory {
    fixed: InventorySnapshot,
    state: PathBuf,
    certificate: CertificateReader,
}

/// The facts for the inventory at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InventorySnapshot {
    /// The package that this program is from.
    pub package: Option<InstalledPackage>,
    /// The name of the operating system.
    pub os: Option<String>,
    /// The maker and the model of the machine.
    pub model: Option<String>,
    /// The maker's name for the CPU.
    pub cpu: Option<String>,
    /// The disk of the state folder.
    pub disk: Option<DiskSpace>,
    pub certificate: Option<CertificateValidity>,
}

impl fmt::Debug for BoxInventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxInventory").field("fixed", &self.fixed).field("state", &self.state).finish_non_exhaustive()
    }
}

impl BoxInventory {
    /// Reads the facts that stay the same, which takes milliseconds. `root` is the parent of `etc`, `proc`, `sys` and
    /// `usr`: `/`, except in tests. `program` is the file of this program, `state` the state folder.
    pub fn read(root: &Path, program: &Path, state: &Path, certificate: CertificateReader) -> Self {
        let fixed = InventorySnapshot {
            package: InstalledPackage::of_program(root, program),
            os: system::os_name(root),
            model: system::machine_model(root),
            cpu: Some(Cpu::detect(root).model).filter(|model| !model.is_empty()),
            ..InventorySnapshot::default()
        };
        Self { fixed, state: state.to_owned(), certificate }
    }

    /// Reads the other facts: the disk and the certificate.
    pub fn snapshot(&self) -> InventorySnapshot {
        let disk = DiskSpace::of(&self.state).ok();
        InventorySnapshot { disk, certificate: (self.certificate)(), ..self.fixed.clone() }
    }
}

/// The origin of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelOrigin {
    /// Signed updates decide its version.
    Updates,
    /// The package of Ledge brought it.
    Package,
    /// The owner added it from a catalogue, or uploaded it.
    Added,
    /// The owner put it into the model repository.
    Own,
}

impl ModelOrigin {
    /// Finds the origin of a model; `None` for one that has no files, such as the first release of a model on trial.
    pub fn find(name: &ModelName, repository: &Repository) -> Option<Self> {
        if repository.is_managed(name) {
            return Some(Self::Updates);
        }
        if !repository.has_folder(name) {
            return None;
        }
        if repository.sources().is_packaged(name) {
            return Some(Self::Package);
        }
        let is_brought = catalogue::is_brought(&repository.path().join(name.as_str()));
        Some(if is_brought { Self::Added } else { Self::Own })
    }
}

/// The package that the program is from.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedPackage<'a> {
    name: &'a ModelName,
    version: String,
    format: PackageFormat,
    architecture: String,
}

impl<'a> From<&'a InstalledPackage> for ReportedPackage<'a> {
    fn from(package: &'a InstalledPackage) -> Self {
        Self {
            name: &package.name,
            version: excerpt(&package.version, MAX_NAME_BYTES),
            format: package.format,
            architecture: excerpt(&package.architecture, MAX_NAME_BYTES),
        }
    }
}

/// The machine.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedHardware {
    /// The maker and the model of the machine, without its serial number.
    model: Option<String>,
    /// The maker's name for the CPU.
    cpu: Option<String>,
    architecture: &'static str,
}

/// The disk of the state folder.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedDisk {
    total_bytes: u64,
    available_bytes: u64,
}

/// The validity of the certificate by which the platform knows this box.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReportedCertificate {
    from: String,
    until: String,
}

impl InventorySnapshot {
    pub(super) fn reported_os(&self) -> Option<String> {
        self.os.as_ref().map(|name| excerpt(name, MAX_NAME_BYTES))
    }

    pub(super) fn reported_hardware(&self) -> ReportedHardware {
        let name = |name: &Option<String>| name.as_ref().map(|name| excerpt(name, MAX_NAME_BYTES));
        ReportedHardware { model: name(&self.model), cpu: name(&self.cpu), architecture: std::env::consts::ARCH }
    }

    pub(super) fn reported_disk(&self) -> Option<ReportedDisk> {
        let DiskSpace { total_bytes, available_bytes } = self.disk?;
        Some(ReportedDisk { total_bytes, available_bytes })
    }

    pub(super) fn reported_certificate(&self) -> Option<ReportedCertificate> {
        let CertificateValidity { from_ms, until_ms } = self.certificate?;
        Some(ReportedCertificate { from: clock::rfc3339(from_ms), until: clock::rfc3339(until_ms) })
    }
}
