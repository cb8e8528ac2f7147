//! The options of every verb, and the configuration that they choose.

use std::path::PathBuf;

use clap::Args;
use ledge_base::names;
use ledge_base::toml_check::BadConfiguration;
use ledge_features::registry::Registry;

use crate::config::{Config, ConfigSources, LoadedConfig};

/// The options of every verb.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct GlobalArgs {
    /// The folder of everything: ledge.toml, models, runtimes and the state of this box.
    ///
    /// Relative paths in the configuration are relative to it. Without --root and --config, the paths of the installed
    /// package are used: /etc/ledge/ledge.toml, /var/lib/ledge and /usr/lib/ledge/runtimes.
    #[arg(long, global = true, value_name = "DIR", env = "LEDGE_ROOT")]
    pub root: Option<PathBuf>,
    /// The configuration file [default: ledge.toml in the root, if it exists].
    ///
    /// Without --root, the folder of this file is the root.
    #[arg(long, global = true, value_name = "FILE", env = "LEDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Set one key, which overrides the file and the environment. Can be repeated.
    ///
    /// The value is TOML; plain text needs no quotes: --set log.level=debug. LEDGE_LOG_LEVEL=debug in the environment
    /// does the same.
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl GlobalArgs {
    /// The sources of the configuration.
    pub fn sources(&self) -> ConfigSources {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| names::is_setting(name))
            .map(|(name, value)| (name, value.to_string_lossy().into_owned()));
        ConfigSources {
            root: self.root.clone(),
            file: self.config.clone(),
            environment: environment.collect(),
            set: self.set.clone(),
        }
    }

    /// The configuration and the source of each setting, or its mistakes as a [`BadConfiguration`].
    pub fn load(&self) -> anyhow::Result<LoadedConfig> {
        let loaded = self.sources().load().map_err(BadConfiguration)?;
        loaded.config.membership.open_private_keys();
        Ok(loaded)
    }

    /// The configuration for a verb that needs only `section`.
    pub fn load_section(&self, section: &str) -> anyhow::Result<Config> {
        Ok(self.sources().load_section(section).map_err(BadConfiguration)?)
    }

    /// The configuration, or its mistakes as a [`BadConfiguration`].
    pub fn load_config(&self) -> anyhow::Result<Config> {
        Ok(self.load()?.config)
    }
}

/// The feature views that a configuration declares, or their mistakes as a [`BadConfiguration`].
pub fn load_registry(config: &Config) -> Result<Registry, BadConfiguration> {
    Registry::load(&config.features.views, &config.features.path).map_err(BadConfiguration)
}
