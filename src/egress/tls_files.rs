//! The files of a TLS client as a section of the configuration, which all outbound connections share.

use std::path::Path;

use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{ValueProblem, empty_if_none, none_if_empty};
use serde::{Deserialize, Serialize};

use super::tls::TlsClientSettings;

/// The CA of the server, and the certificate of this box.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsClientFiles {
    /// The CAs that may have signed the server's certificate; `None` is those that the system trusts.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub ca_file: Option<SecretFile>,
    /// The certificate of this box, and its intermediate CAs.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub certificate_file: Option<SecretFile>,
    /// The key of the certificate.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub key_file: Option<SecretFile>,
}

impl TlsClientFiles {
    /// Makes relative paths relative to `root`.
    pub fn resolve(&mut self, root: &Path) {
        let files = [&mut self.ca_file, &mut self.certificate_file, &mut self.key_file];
        files.into_iter().flatten().for_each(|file| file.resolve(root));
    }

    /// The mistake of a certificate without its key, or the reverse, at the key `section`.
    pub fn problem(&self, section: &str) -> Option<ValueProblem> {
        let is_half = self.certificate_file.is_some() != self.key_file.is_some();
        is_half
            .then(|| ValueProblem::new(section, "`certificate_file` and `key_file` go together: set both, or neither"))
    }

    /// The settings of a connection.
    pub fn settings(&self) -> TlsClientSettings {
        let Self { ca_file, certificate_file, key_file } = self.clone();
        TlsClientSettings { ca: ca_file, certificate: certificate_file, key: key_file, pinned: None }
    }

    /// The keys within a section that has this one as `tls`, and their values.
    pub fn keys(&self) -> [(&'static str, Option<&SecretFile>); 3] {
        [
            ("tls.ca_file", self.ca_file.as_ref()),
            ("tls.certificate_file", self.certificate_file.as_ref()),
            ("tls.key_file", self.key_file.as_ref()),
        ]
    }
}
