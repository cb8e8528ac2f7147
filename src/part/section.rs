//! A section of the configuration.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use ledge_base::telemetry::logging::LogConfig;
use ledge_base::toml_check::ValueProblem;
use ledge_egress::{ConfiguredDestination, EgressConfig};
use ledge_identity::device::DeviceConfig;
use ledge_identity::sealing::EncryptionConfig;
use serde_json::Value;

use crate::check::Finding;
use crate::{PartEnvironment, Subsystem};

/// A section of the configuration: the struct that serde deserializes. Every method has a default.
pub trait ConfigSection: Debug + Send + Sync {
    /// Makes relative paths relative to `root`.
    fn resolve(&mut self, _root: &Path) {}

    /// The mistakes in it although each value is well-formed, with keys within the section.
    fn problems(&self) -> Vec<ValueProblem> {
        Vec::new()
    }

    /// The destinations that it names. Those that `[egress]` does not allow, or that must be encrypted, are mistakes.
    fn destinations(&self) -> Vec<ConfiguredDestination> {
        Vec::new()
    }

    /// The findings for `ledge doctor`, which runs next to the daemon or without one, and for the daemon itself.
    fn doctor(&self, _context: &DoctorContext<'_>) -> Vec<Finding> {
        Vec::new()
    }

    /// Opens the part of this section. `None` where it is off, and where the daemon opens the part itself, because it
    /// connects it to other parts.
    fn open(&self, _environment: &PartEnvironment) -> Result<Option<Arc<dyn Subsystem>>, String> {
        Ok(None)
    }
}

/// The input of [`ConfigSection::doctor`] besides the section.
pub struct DoctorContext<'a> {
    /// The state folder of this box.
    pub state: &'a Path,
    pub device: &'a DeviceConfig,
    pub encryption: &'a EncryptionConfig,
    pub egress: &'a EgressConfig,
    /// Set if a check may open connections. Otherwise checks of other machines are left out.
    pub may_connect: bool,
    /// Returns the answer of this box's daemon to a GET of a path; `None` where it does not run, and where it answers
    /// with an error.
    pub ask_daemon: &'a dyn Fn(&str) -> Option<Value>,
}

/// For tests: returns the findings of a section on a box with defaults in all other sections and without a running
/// daemon.
pub fn findings_alone(section: &dyn ConfigSection, state: &Path) -> Vec<Finding> {
    let (device, encryption, egress) = (DeviceConfig::default(), EncryptionConfig::default(), EgressConfig::default());
    section.doctor(&DoctorContext {
        state,
        device: &device,
        encryption: &encryption,
        egress: &egress,
        may_connect: true,
        ask_daemon: &|_| None,
    })
}

impl ConfigSection for EncryptionConfig {
    fn resolve(&mut self, root: &Path) {
        self.resolve(root);
    }
}

impl ConfigSection for DeviceConfig {}

impl ConfigSection for LogConfig {}
