//! The section `[updates]` of the configuration.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ledge_base::toml_check::{empty_if_none, from_text, in_range, none_if_empty};
use ledge_egress::{ConfiguredDestination, ConfiguredProxy, HostPort, TlsClientFiles, WebAddress};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The source of signed updates, and the limits on them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpdatesConfig {
    /// The folder of the update store.
    pub path: PathBuf,
    /// The TUF repository, with `metadata/` and `targets/` below it. `None`: no platform updates this box.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub repository: Option<RepositoryAddress>,
    /// The root metadata that this box trusts first: from the package, or from the person who set up the box.
    pub root_file: PathBuf,
    /// A proxy that is asked to connect (HTTP CONNECT).
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub proxy: Option<HostPort>,
    /// The mean time between two checks of the platform, in seconds; each pause is drawn from 75 to 125 % of it.
    #[serde(deserialize_with = "in_range::<5, 86_400, _, _>")]
    pub poll_interval_s: u64,
    /// The highest download rate, in bytes a second; 0 is no limit.
    #[serde(deserialize_with = "in_range::<0, 10_000_000_000, _, _>")]
    pub max_bytes_per_s: u64,
    /// The disk space that downloads leave free, in MiB.
    #[serde(deserialize_with = "in_range::<0, 1_048_576, _, _>")]
    pub min_free_mb: u64,
    /// The section `[updates.tls]`.
    pub tls: TlsClientFiles,
}

impl Default for UpdatesConfig {
    fn default() -> Self {
        Self {
            path: "updates".into(),
            repository: None,
            root_file: "root.json".into(),
            proxy: None,
            poll_interval_s: 300,
            max_bytes_per_s: 0,
            min_free_mb: 512,
            tls: TlsClientFiles::default(),
        }
    }
}

/// The address of a TUF repository: `https://HOST[:PORT]/PATH`, `http://` on this machine, or `file:///FOLDER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepositoryAddress {
    Http {
        tls: bool,
        at: HostPort,
        /// The prefix of its paths: `/` or `/a/b/`.
        base: String,
    },
    /// A folder, such as that of a USB stick.
    Folder(PathBuf),
}

/// The error of a text that is not an address of a repository. It does not repeat the text, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected https://HOST[:PORT]/PATH, without an '@' and a '?', or file:///FOLDER")]
pub struct InvalidRepositoryAddress;

impl FromStr for RepositoryAddress {
    type Err = InvalidRepositoryAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(folder) = text.strip_prefix("file://") {
            return if folder.starts_with('/') {
                Ok(Self::Folder(folder.into()))
            } else {
                Err(InvalidRepositoryAddress)
            };
        }
        let WebAddress { tls, at, path } = text.parse().map_err(|_| InvalidRepositoryAddress)?;
        let base = format!("{}/", path.trim_end_matches('/'));
        Ok(Self::Http { tls, at, base })
    }
}

impl fmt::Display for RepositoryAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { tls, at, base } => write!(f, "{}://{at}{base}", if *tls { "https" } else { "http" }),
            Self::Folder(folder) => write!(f, "file://{}", folder.display()),
        }
    }
}

impl Serialize for RepositoryAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RepositoryAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl RepositoryAddress {
    /// Returns true if requests to it reveal to the network what this box runs.
    pub fn is_exposed(&self) -> bool {
        matches!(self, Self::Http { tls: false, at, .. } if !at.host.is_loopback())
    }

    /// Returns it as a destination, unless it is a folder. `key` is its key in the section, and `shown` names the data
    /// that requests to it reveal without encryption.
    pub(crate) fn destination(
        &self,
        key: &str,
        proxy: Option<&HostPort>,
        shown: &str,
    ) -> Option<ConfiguredDestination> {
        let Self::Http { tls, at, .. } = self else { return None };
        let problem = format!("is not encrypted: anybody on the network can see {shown}; use https://");
        Some(ConfiguredDestination {
            key: key.into(),
            at: at.clone(),
            proxy: proxy.map(|at| ConfiguredProxy { key: "proxy".into(), at: at.clone() }),
            is_encrypted: *tls,
            plaintext_problem: Some(problem),
        })
    }
}

impl UpdatesConfig {
    /// Returns [`Self::poll_interval_s`] as a duration.
    pub fn poll_interval(&self) -> Duration {
        Duration::from_secs(self.poll_interval_s)
    }
}
