//! `[console]`

use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

/// The section `[console]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsoleConfig {
    /// Serves the page, and the routes that only the page needs.
    pub enabled: bool,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl ConfigSection for ConsoleConfig {}
