//! The section `[catalogue]` of the configuration.

use std::io;
use std::path::{Path, PathBuf};

use ledge_base::config_path;
use ledge_base::toml_check::{self, ConfigMistake, ValueProblem, empty_if_none, none_if_empty};
use ledge_egress::{ConfiguredDestination, HostPort, TlsClientFiles};
use ledge_part::check::Finding;
use ledge_part::section::{ConfigSection, DoctorContext};
use serde::{Deserialize, Serialize};

use super::error::CatalogueError;
use crate::config::RepositoryAddress;
use crate::doctor::{self, CheckedRepository};

/// The source of models that the owner of the box may add.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CatalogueConfig {
    /// The folder of the trusted metadata and of unfinished downloads.
    pub path: PathBuf,
    /// The catalogue, with `metadata/` and `targets/` below it. `None`: each command names one.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub address: Option<RepositoryAddress>,
    /// The root metadata of the catalogue, which this box trusts first.
    pub root_file: PathBuf,
    /// The catalogue that the publisher of an installed package put into it, for a box that sets none; empty for none.
    pub publisher_file: PathBuf,
    /// A proxy that is asked to connect (HTTP CONNECT).
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub proxy: Option<HostPort>,
    /// The largest model that may be uploaded, in MiB; 0: no uploads.
    pub upload_max_mb: u64,
    /// The section `[catalogue.tls]`.
    pub tls: TlsClientFiles,
}

impl Default for CatalogueConfig {
    fn default() -> Self {
        Self {
            path: "catalogue".into(),
            address: None,
            root_file: "catalogue-root.json".into(),
            publisher_file: PathBuf::new(),
            proxy: None,
            upload_max_mb: 0,
            tls: TlsClientFiles::default(),
        }
    }
}

/// A catalogue, and the root metadata that a box trusts first.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueSource {
    pub address: RepositoryAddress,
    pub root_file: PathBuf,
}

/// The file that the publisher of a package puts into it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Publisher {
    catalogue: Option<CatalogueSource>,
}

impl CatalogueConfig {
    /// The catalogue at `from`, else that of the box, else that of the package. The root metadata of the package is for
    /// a box that has none. `None` where nobody names a catalogue.
    pub fn source(&self, from: Option<&RepositoryAddress>) -> Result<Option<CatalogueSource>, CatalogueError> {
        let (own, has_root) = (from.or(self.address.as_ref()).cloned(), self.root_file.exists());
        // A box that has both of its own goes on when the file of the package is broken.
        let published = if own.is_some() && has_root { None } else { self.published()? };
        let root_file = match &published {
            Some(published) if !has_root => published.root_file.clone(),
            _ => self.root_file.clone(),
        };
        let address = own.or(published.map(|published| published.address));
        Ok(address.map(|address| CatalogueSource { address, root_file }))
    }

    fn published(&self) -> Result<Option<CatalogueSource>, CatalogueError> {
        let file = &self.publisher_file;
        if file.as_os_str().is_empty() {
            return Ok(None);
        }
        let name = file.display().to_string();
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| CatalogueError::Publisher(format!("{name}: {error}")))?,
        };
        let first = |mistakes: Vec<ConfigMistake>| mistakes.first().map(ToString::to_string).unwrap_or_default();
        let publisher = toml_check::parse::<Publisher>(&name, &text).map_err(first);
        Ok(publisher.map_err(CatalogueError::Publisher)?.catalogue)
    }
}

impl ConfigSection for CatalogueConfig {
    fn resolve(&mut self, root: &Path) {
        for path in [&mut self.path, &mut self.root_file] {
            config_path::resolve(path, root);
        }
        config_path::resolve_if_set(&mut self.publisher_file, root);
        self.tls.resolve(root);
    }

    fn problems(&self) -> Vec<ValueProblem> {
        self.tls.problem("tls").into_iter().collect()
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let destination = |address: &RepositoryAddress| {
            address.destination("address", self.proxy.as_ref(), "which models this box fetches")
        };
        self.address.as_ref().and_then(destination).into_iter().collect()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        let Some(address) = &self.address else { return Vec::new() };
        let checked = CheckedRepository {
            section: "catalogue",
            address_key: "address",
            owner: "the catalogue",
            root_file: &self.root_file,
            address,
        };
        let client = |egress: &_| crate::source::client(address, egress, self.proxy.clone(), || self.tls.settings());
        let mut checks = vec![doctor::root(&checked)];
        checks.extend(context.may_connect.then(|| doctor::repository(&checked, context, client)));
        checks
    }
}
