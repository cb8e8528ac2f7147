//! The section `[catalogue]` of the configuration.

use std::path::{Path, PathBuf};

use ledge_base::config_path;
use ledge_base::toml_check::{ValueProblem, empty_if_none, none_if_empty};
use ledge_egress::{ConfiguredDestination, HostPort, TlsClientFiles};
use ledge_part::check::Finding;
use ledge_part::section::{ConfigSection, DoctorContext};
use serde::{Deserialize, Serialize};

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
            proxy: None,
            upload_max_mb: 0,
            tls: TlsClientFiles::default(),
        }
    }
}

impl ConfigSection for CatalogueConfig {
    fn resolve(&mut self, root: &Path) {
        for path in [&mut self.path, &mut self.root_file] {
            config_path::resolve(path, root);
        }
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
