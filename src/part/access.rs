//! The access of callers, as a part of the daemon.

use ledge_base::toml_check::Problem;
use ledge_identity::access_config::AccessConfig;
use ledge_identity::authentication::Authenticator;

use crate::section::Section;
use crate::{Environment, Part};

impl Section for AccessConfig {
    fn problems(&self) -> Vec<Problem> {
        self.problems()
    }
}

impl Part for Authenticator {
    fn name(&self) -> &'static str {
        "access"
    }

    /// Starts the task that reloads the API keys when their file changes.
    fn spawn(&self, environment: &Environment) -> Result<(), String> {
        environment.shutdown.spawn(self.clone().watch(environment.shutdown.clone()));
        Ok(())
    }
}
