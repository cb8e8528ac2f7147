//! The settings of a preflight.

use std::time::Duration;

use ledge_engine::Runtimes;
use ledge_identity::sealing::Sealer;
use ledge_isolation::ChildSettings;
use ledge_models::repository::Predecessor;

use super::requirements::HostCapabilities;

/// Settings of every preflight on this box.
#[derive(Debug, Clone)]
pub struct PreflightSettings {
    /// The runtimes that models run in now.
    pub runtimes: Runtimes,
    /// The processes of models on trial; their starter starts that of settings too.
    pub children: ChildSettings,
    /// The number of cores it may use; 0 is every physical core that this process may use.
    pub threads: usize,
    /// Set to try a model in each runtime that accepts it, as the daemon does when it measures them.
    pub measure: bool,
    /// The deadline of a model whose config names none.
    pub timeout: Duration,
    /// Decrypts files.
    pub sealer: Sealer,
    /// The version that a model on trial follows: it runs as that one does.
    pub predecessor: Option<Predecessor>,
}

impl PreflightSettings {
    /// Makes settings for these runtimes, and models that must answer within `timeout`.
    pub fn new(runtimes: Runtimes, children: ChildSettings, timeout: Duration) -> Self {
        let children = ChildSettings { is_trial: true, ..children };
        Self { runtimes, children, threads: 1, measure: true, timeout, sealer: Sealer::none(), predecessor: None }
    }

    pub(super) fn facts(&self) -> HostCapabilities {
        HostCapabilities::gather(&self.runtimes)
    }
}
